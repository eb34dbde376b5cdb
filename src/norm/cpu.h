/* Between cpu.c, which splits a normalization over threads, and cpu_kernels.c, which does the
 * pieces and is compiled once for every vector level. */
#ifndef ONEPASS_NORM_CPU_H
#define ONEPASS_NORM_CPU_H

#include "core/numbers.h"
#include "norm/norm.h"

/* A row's sums are gathered in chunks of this many elements, always counted from the row's start,
 * in the type of sums; chunks are merged in double, in order. So the bits do not depend on who
 * gathers what. */
enum { ONEPASS_NORM_CHUNK = 4096, ONEPASS_NORM_BACKWARD_CHUNK = 1024 };

/* SPLIT applies so many elements of every row before it goes on: their weights stay in L1. */
enum { ONEPASS_NORM_APPLIED = 1024 };

#define ONEPASS_WHOLE_ROLES                                                                   \
  (ONEPASS_BIT(ONEPASS_ROLE_X) | ONEPASS_BIT(ONEPASS_ROLE_Y) | ONEPASS_BIT(ONEPASS_ROLE_DY) | \
   ONEPASS_BIT(ONEPASS_ROLE_DX) | ONEPASS_BIT(ONEPASS_ROLE_RESIDUAL) |                        \
   ONEPASS_BIT(ONEPASS_ROLE_SUM) | ONEPASS_BIT(ONEPASS_ROLE_DSUM))

static inline bool onepass_sums_weights(const onepass_layouts *layouts) {
  return onepass_has(layouts, ONEPASS_ROLE_DWEIGHT) || onepass_has(layouts, ONEPASS_ROLE_DBIAS);
}

/* The merged sums of a row, or those of one chunk.
 *             forward               backward
 *   ABS       a: sum of |x|         a: sum of |x|        b: sum of dy x
 *   MOMENTS   a: mean               a: sum of g = dy w   b: sum of g x, or, centered,
 *             b: sum of (x - mean)²                      b: sum of g z    c: sum of z
 *             c: above 0 if a and b                      with z = (x - saved mean) * rstd
 *             met Inf and no NaN */
typedef struct onepass_row_sums {
  double a, b, c;
} onepass_row_sums;

/* What forward does to the elements of a row: y = (x * scale + offset) * weight + bias, where the
 * mean is not far from 0, or else, `centered`, y = ((x - shift) * scale + offset) * weight + bias.
 */
typedef struct onepass_row_scale {
  double shift, scale, offset;
  bool centered;
  double denominator; /* ABS and lengths */
  double mean, rstd;  /* MOMENTS: to be saved */
  bool exact;         /* of those scale would not be a normal number: divide in double instead */
  const void *soon_x; /* if not NULL: as many elements as are applied now, wanted next */
} onepass_row_scale;

/* What backward does to them.
 *   ABS       dx = dy * scale - sign(x) * slope
 *   MOMENTS   dx = (dy w) * by_dy + (x - mean) * by_deviation + constant or, centered,
 *             dx = (dy w) * by_dy + z * by_z + constant with z = (x - mean) * rstd + offset,
 *             by_dy being rstd, times the channel's weight if there is one */
typedef struct onepass_row_gradient {
  double scale, slope;
  double denominator;
  double mean, rstd, by_dy, offset, by_z, by_deviation, constant;
  bool exact, centered;
  const void *soon_x,
      *soon_dy; /* as many elements as are applied now: brought into the cache meanwhile */
} onepass_row_gradient;

/* A piece of the row after the one that is applied: where it is, and its saved statistics. */
typedef struct onepass_next_row {
  const void *x, *dy;
  double mean, rstd;
} onepass_next_row;

/* Lanes side by side, each with sums of its own; and what is done to each, in the type of sums. */
typedef struct onepass_lane_sums {
  double *a, *b, *c; /* as in onepass_row_sums; backward always of z */
} onepass_lane_sums;

typedef struct onepass_lane_scales {
  void *shift, *scale, *offset;
} onepass_lane_scales;

typedef struct onepass_lane_gradients {
  void *mean, *rstd, *by_dy, *by_z, *constant;
  void *offset; /* of z, for sum_weight_lanes alone */
} onepass_lane_gradients;

enum {
  ONEPASS_LANE_BLOCK = 128, /* positions summed in the type of sums */
  ONEPASS_LANE_SCRATCH = 3, /* numbers a lane that the kernels want for themselves */
  ONEPASS_LANE_VALUES = 8,  /* and that tell what is done to it */
  ONEPASS_LANE_CHUNK = 512  /* positions whose sums are kept together */
};

typedef struct onepass_norm_kernels {
  /* Rows begin..end, each read once: gathers the next row while it writes this one. */
  void (*forward_rows)(const onepass_norm_problem *problem, const onepass_buffers *buffers,
                       int64_t begin, int64_t end);
  /* One chunk of a row, for the strategies that take rows apart. */
  onepass_row_sums (*gather)(const void *x, int64_t count);
  void (*apply)(const onepass_norm_problem *problem, const onepass_row_scale *scale, void *y,
                const void *x, const void *weight, const void *bias, int64_t count);
  /* The same backward. dweight and dbias, if not NULL, are added to, in the type of sums. */
  onepass_row_sums (*gather_backward)(const onepass_norm_problem *problem, const void *x,
                                      const void *dy, const void *weight, double mean, double rstd,
                                      int64_t count);
  void (*apply_backward)(const onepass_norm_problem *problem, const onepass_row_gradient *gradient,
                         void *dx, const void *x, const void *dy, const void *weight, void *dweight,
                         void *dbias, int64_t count);
  /* apply_backward for this row and gather_backward for the next. */
  onepass_row_sums (*apply_gather_backward)(const onepass_norm_problem *problem,
                                            const onepass_row_gradient *gradient, void *dx,
                                            const void *x, const void *dy, const void *weight,
                                            void *dweight, void *dbias, int64_t count,
                                            const onepass_next_row *next);
  /* Weights of the elements' type in the type of sums; NULL for ABS. */
  void (*widen_weights)(void *to, const void *from, int64_t count);
  /* Doubles in the elements' type, rounded once; NULL for ABS. */
  void (*narrow_sums)(void *to, const double *sums, int64_t count);
  /* `width` neighbouring rows at once, lane by lane, their elements a stride apart; NULL where the statistic
   * has no such kernel. scratch has room for ONEPASS_COLUMN_SCRATCH doubles a row. */
  void (*forward_columns)(const onepass_norm_problem *problem, void *y, int64_t y_stride,
                          const void *x, int64_t x_stride, int64_t width, double *scratch);
  void (*backward_columns)(const onepass_norm_problem *problem, void *dx, int64_t dx_stride,
                           const void *x, int64_t x_stride, const void *dy, int64_t dy_stride,
                           int64_t width, double *scratch);
  /* Lanes of moments; cpu_lanes.h. `weight` and `bias` are one a position, or NULL. */
  void (*gather_lanes)(const void *x, const int64_t *at, int64_t count, int64_t width,
                       int64_t before, const onepass_lane_sums *sums, void *scratch);
  void (*apply_lanes)(const onepass_norm_problem *problem, void *y, const int64_t *y_at,
                      const void *x, const int64_t *x_at, int64_t count, int64_t width,
                      const onepass_lane_scales *scales, const void *weight, const void *bias);
  void (*gather_backward_lanes)(const onepass_norm_problem *problem, const void *x,
                                const int64_t *x_at, const void *dy, const int64_t *dy_at,
                                int64_t count, int64_t width, const onepass_lane_gradients *lanes,
                                const void *weight, const onepass_lane_sums *sums, void *scratch);
  void (*apply_backward_lanes)(const onepass_norm_problem *problem, void *dx, const int64_t *dx_at,
                               const void *x, const int64_t *x_at, const void *dy,
                               const int64_t *dy_at, int64_t count, int64_t width,
                               const onepass_lane_gradients *lanes, const void *weight);
  /* To the sums of dweight and dbias of each position those over its lanes. */
  void (*sum_weight_lanes)(const void *x, const int64_t *x_at, const void *dy, const int64_t *dy_at,
                           int64_t count, int64_t width, const onepass_lane_gradients *lanes,
                           void *dweight, void *dbias);
  /* Fusions; cpu_stage.h. */
  void (*stage)(void *to, const void *x, const void *residual, void *sum, int64_t count);
  void (*unstage)(void *to, const void *from, const void *more, int64_t count);
  void (*activate)(onepass_activation activation, void *y, int64_t count);
  void (*pass_slope)(onepass_activation activation, void *dy, const void *at, int64_t count);
} onepass_norm_kernels;

enum { ONEPASS_COLUMN_SCRATCH = 4 };

/* The kernels for a statistic and an element type, at each level this build has; NULL if those of the level below are as
 * fast. Weights are as the problem says they are held: in that type, or in the type of sums. */
typedef const onepass_norm_kernels *onepass_norm_kernels_at_level(onepass_statistic statistic,
                                                                  onepass_type type);
onepass_norm_kernels_at_level onepass_norm_kernels_sse2, onepass_norm_kernels_avx2,
    onepass_norm_kernels_avx512, onepass_norm_kernels_neon, onepass_norm_kernels_neon_bf16,
    onepass_norm_kernels_generic;

/* ---- From sums to what is done with them: once a row, in double ------------------------------ */

/* Merge the sums of the next `count` elements into those of the `before` elements before them. */
static inline void onepass_merge_forward(onepass_statistic statistic, onepass_row_sums *row,
                                         double before, onepass_row_sums chunk, double count) {
  if (before == 0) {
    *row = chunk;
  } else if (statistic == ONEPASS_STATISTIC_ABS) {
    row->a += chunk.a;
  } else {
    const double apart = chunk.a - row->a, share = count / (before + count);
    row->a += apart * share;
    row->b += chunk.b + apart * apart * before * share;
    row->c += chunk.c;
  }
}

static inline void onepass_merge_backward(onepass_row_sums *row, onepass_row_sums chunk) {
  row->a += chunk.a;
  row->b += chunk.b;
  row->c += chunk.c;
}

/* Whether 1 / denominator serves as a factor in this type: it must be normal, or as special as the
 * quotient would be. */
static inline bool onepass_needs_division(onepass_type sums_type, double denominator) {
  const double factor = 1 / denominator;
  const double least = sums_type == ONEPASS_TYPE_F64 ? 0x1p-1022 : 0x1p-126;
  const double most = sums_type == ONEPASS_TYPE_F64 ? 0x1.fffffffffffffp1023 : 0x1.fffffep127;
  return !((factor >= least) & (factor <= most)); /* without a branch */
}

/* Forward: whether a mean is so many deviations from 0 that it must be subtracted before anything
 * is rounded. That of a constant row is, whatever eps makes of rstd: its y is the bias itself. */
static inline bool onepass_is_far(double mean, double variance) {
  return !(mean * mean <= 4 * variance);
}

/* Backward: whether the saved mean is so far from 0 that its rounding matters, or rstd so far from 1
 * that its square is no factor to multiply with. */
static inline bool onepass_is_delicate(double mean, double rstd) {
  const double ratio = mean * rstd;
  return !(ratio <= 2 && ratio >= -2 && rstd >= 0x1p-20 && rstd <= 0x1p20);
}

/* The value of x rounded to the type of sums. */
static inline double onepass_round_to_sums(onepass_type sums_type, double x) {
  return sums_type == ONEPASS_TYPE_F64 ? x : (double)(float)x;
}

/* What a row of this norm is divided by. */
static inline double onepass_denominator_of(const onepass_norm_problem *problem, double norm) {
  if (problem->clamp) return norm < problem->eps ? problem->eps : norm;
  return norm + problem->eps;
}

/* Operators that subtract no mean: how much of z times (sum of g z) the gradient takes off. Where a
 * length is clamped, or is lost in the rounding of rstd, it changes nothing. */
static inline double onepass_share_of_products(const onepass_norm_problem *problem, double rstd) {
  if (problem->op->denominator != ONEPASS_BY_LENGTH) return problem->one_over_n;
  const double rest = 1 - problem->eps * rstd; /* the length's share of the denominator */
  if (rest <= (problem->type == ONEPASS_TYPE_F64 ? 0x1p-50 : 0x1p-21)) return 0;
  return problem->clamp ? 1 : 1 / rest;
}

/* What subtracts a mean and divides by a deviation. */
static inline onepass_row_scale onepass_scale_by_moments(const onepass_norm_problem *problem,
                                                         double mean, double variance) {
  onepass_row_scale row = {.mean = mean};
  row.rstd = row.scale = 1 / __builtin_sqrt(variance + problem->eps);
  row.centered = onepass_is_far(mean, variance);
  if (row.centered) {
    /* A mean of 1e4 rounded to f32 is off by up to 5e-4; what the rounding took is put back. */
    row.shift = onepass_round_to_sums(onepass_type_of_sums(problem->type), mean);
    row.offset = (row.shift - mean) * row.rstd;
  } else {
    row.offset = -mean * row.rstd;
  }
  return row;
}

/* What a forward that saved these did. */
static inline onepass_row_scale onepass_scale_by_saved(double mean, double rstd) {
  onepass_row_scale row = {.mean = mean, .rstd = rstd, .scale = rstd};
  row.centered = onepass_is_delicate(mean, rstd);
  row.shift = row.centered ? mean : 0;
  row.offset = row.centered ? 0 : -mean * rstd;
  return row;
}

static inline onepass_row_scale onepass_scale_row(const onepass_norm_problem *problem,
                                                  onepass_row_sums sums) {
  const onepass_type sums_type = onepass_type_of_sums(problem->type);
  onepass_row_scale row = {0};
  if (problem->op->statistic == ONEPASS_STATISTIC_ABS) {
    row.denominator = onepass_denominator_of(
        problem, sums.a * (problem->divide_by_count ? problem->one_over_n : 1));
    row.scale = 1 / row.denominator;
    row.exact = onepass_needs_division(sums_type, row.denominator);
  } else if (problem->op->denominator != ONEPASS_BY_DEVIATION) {
    /* The squares of the elements themselves, from those about their mean. */
    double mean_square = sums.b * problem->one_over_n + sums.a * sums.a;
    if (sums.c > 0) mean_square = __builtin_inf();
    if (problem->op->denominator == ONEPASS_BY_RMS) {
      row.rstd = row.scale = 1 / __builtin_sqrt(mean_square + problem->eps);
    } else {
      const double squares = mean_square * (double)problem->elements.count;
      row.denominator = onepass_denominator_of(problem, __builtin_sqrt(squares));
      row.rstd = row.scale = 1 / row.denominator;
      row.exact = onepass_needs_division(sums_type, row.denominator);
    }
  } else {
    return onepass_scale_by_moments(problem, sums.a, sums.b * problem->one_over_n);
  }
  return row;
}

static inline onepass_row_gradient onepass_gradient_of_row(const onepass_norm_problem *problem,
                                                           onepass_row_sums sums, double mean,
                                                           double rstd) {
  const double one_over_n = problem->one_over_n;
  onepass_row_gradient row = {0};
  if (problem->op->statistic == ONEPASS_STATISTIC_ABS) {
    const double share = problem->divide_by_count ? one_over_n : 1;
    row.denominator = onepass_denominator_of(problem, sums.a * share);
    row.scale = 1 / row.denominator;
    row.slope = sums.b / row.denominator / row.denominator * share;
    if (problem->clamp && sums.a * share < problem->eps) row.slope = 0;
    row.exact = onepass_needs_division(onepass_type_of_sums(problem->type), row.denominator);
  } else if (problem->op->denominator != ONEPASS_BY_DEVIATION) {
    row.rstd = row.by_dy = rstd;
    row.centered = onepass_is_delicate(0, rstd);
    const double dot = row.centered ? sums.b : rstd * sums.b;
    row.by_z = -rstd * dot * onepass_share_of_products(problem, rstd);
    row.by_deviation = row.by_z * rstd;
  } else {
    row.mean = mean;
    row.rstd = row.by_dy = rstd;
    row.centered = onepass_is_delicate(mean, rstd);
    if (problem->use_running) return row; /* the statistic is no function of x */
    /* The mean of z would be 0 had the saved mean not been rounded. */
    row.offset = row.centered ? -sums.c * one_over_n : 0;
    const double dot =
        row.centered ? sums.b + row.offset * sums.a : rstd * (sums.b - mean * sums.a);
    row.by_z = -rstd * dot * one_over_n;
    row.by_deviation = row.by_z * rstd;
    row.constant = -rstd * sums.a * one_over_n;
  }
  return row;
}

#endif
