/* Norms of rows that lie side by side: lanes are rows, positions are their elements, and a strip of rows is worked on
 * together. Short rows, whose elements lie side by side instead, are turned: copied to scratch memory and back, so that
 * what is done once a row is done to many of them at a time. */
#include "cpu/transpose.h"
#include "norm/cpu_work.h"

typedef onepass_norm_work work;

static const unsigned strip_roles =
    ONEPASS_WHOLE_ROLES | ONEPASS_BIT(ONEPASS_ROLE_MEAN) | ONEPASS_BIT(ONEPASS_ROLE_RSTD);

/* A strip of rows in a worker's scratch: x and dy, if they are turned; sums; values; and what the kernels want. */
typedef struct strip {
  char *turned_x, *turned_dy;
  onepass_lane_sums sums;
  char *values;
  char *scratch;
} strip;

/* Lanes there is room for: whole vectors. */
static int64_t room_of(const onepass_norm_problem *p) { return p->strip + 16; }

static int64_t turned_bytes(const onepass_norm_problem *p) {
  return p->turned ? p->elements.count * p->strip * onepass_type_size(p->type) : 0;
}

size_t onepass_norm_strip_bytes(const onepass_norm_problem *p) {
  const int64_t values = ONEPASS_LANE_VALUES + ONEPASS_LANE_SCRATCH;
  const int64_t of_moments =
      3 * p->strip * (int64_t)sizeof(double) + values * room_of(p) * onepass_sums_size(p);
  const int64_t of_abs = ONEPASS_COLUMN_SCRATCH * p->strip * (int64_t)sizeof(double);
  const int64_t turned = (p->backward ? 2 : 1) * turned_bytes(p);
  const int64_t bytes = turned + (p->op->statistic == ONEPASS_STATISTIC_ABS ? of_abs : of_moments);
  return (size_t)onepass_round_up(bytes, 64);
}

static strip lay_out_strip(const work *w, int worker) {
  const onepass_norm_problem *p = w->problem;
  strip s;
  s.turned_x = onepass_scratch_for(w, worker) + p->scratch_size - onepass_norm_strip_bytes(p);
  s.turned_dy = s.turned_x + (p->backward ? turned_bytes(p) : 0);
  double *sums = (double *)(void *)(s.turned_dy + turned_bytes(p));
  s.sums = (onepass_lane_sums){sums, sums + p->strip, sums + 2 * p->strip};
  s.values = (char *)(sums + 3 * p->strip);
  s.scratch = s.values + ONEPASS_LANE_VALUES * room_of(p) * onepass_sums_size(p);
  return s;
}

static void *strip_value(const onepass_norm_problem *p, const strip *s, int which) {
  return s->values + which * room_of(p) * onepass_sums_size(p);
}

/* The tensors of a strip of rows: those of its first row. From row to row mean and rstd are some elements apart, the others
 * one. */
typedef struct row_strip {
  char *base[ONEPASS_ROLE_COUNT];
  int64_t width, mean_step, rstd_step;
} row_strip;

/* Where position k is, in elements. */
static int64_t position(const onepass_norm_problem *p, onepass_role role, int64_t k) {
  return p->turned ? k * p->strip : onepass_walk_offset(&p->elements, role, k);
}

static void find_positions(const onepass_norm_problem *p, onepass_role role, int64_t begin,
                           int64_t count, int64_t *at) {
  for (int64_t k = 0; k < count; k++) at[k] = position(p, role, begin + k);
}

static const char *position_weight(const onepass_norm_problem *p, const void *weight, int64_t at) {
  return weight ? (const char *)weight + at * onepass_type_size(p->held_weight_type) : NULL;
}

/* ---- Moments --------------------------------------------------------------------------------- */

/* Rows whose reciprocal of the length is no number to multiply with: y, which is x as yet, is divided. Those rows alone,
 * so that no row's bits depend on which others are in its strip. */
static void divide_strip(const onepass_norm_problem *p, const row_strip *of,
                         const double *denominators) {
  char *base = of->base[ONEPASS_ROLE_Y];
  for (int64_t j = 0; j < of->width; j++) {
    if (!onepass_needs_division(onepass_type_of_sums(p->type), denominators[j])) continue;
    for (int64_t k = 0; k < p->elements.count; k++) {
      const int64_t at = position(p, ONEPASS_ROLE_Y, k) + j;
      onepass_store(p->type, base, at, onepass_load(p->type, base, at) / denominators[j]);
    }
  }
}

/* From the sums of a strip's rows to their scales. Leaves denominators in place of the sums; tells whether some have no
 * reciprocal: those rows are left as they are, zeros with their sign. */
static bool scale_strip(const onepass_norm_problem *p, const row_strip *of, const strip *s) {
  char *mean = of->base[ONEPASS_ROLE_MEAN], *rstd = of->base[ONEPASS_ROLE_RSTD];
  void *shift = strip_value(p, s, ONEPASS_LANE_SHIFT);
  void *factor = strip_value(p, s, ONEPASS_LANE_SCALE);
  void *offset = strip_value(p, s, ONEPASS_LANE_OFFSET);
  const onepass_lane_sums sums = s->sums;
  bool exact = false;
  for (int64_t j = 0; j < of->width; j++) {
    const onepass_row_scale row =
        onepass_scale_row(p, (onepass_row_sums){sums.a[j], sums.b[j], sums.c[j]});
    if (mean) onepass_put_sum(p, mean, j * of->mean_step, row.mean);
    if (rstd) onepass_put_sum(p, rstd, j * of->rstd_step, row.rstd);
    onepass_put_sum(p, shift, j, row.centered ? row.shift : 0);
    onepass_put_sum(p, factor, j, row.exact ? 1 : row.scale);
    onepass_put_sum(p, offset, j, row.exact ? -0.0 : row.offset);
    sums.a[j] = row.denominator;
    exact |= row.exact;
  }
  return exact;
}

static void forward_moments(const work *w, const row_strip *of, const strip *s) {
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count;
  int64_t x_at[ONEPASS_LANE_BLOCK], y_at[ONEPASS_LANE_BLOCK];
  for (int64_t i = 0; i < n; i += ONEPASS_LANE_BLOCK) {
    const int64_t count = onepass_least(n - i, ONEPASS_LANE_BLOCK);
    find_positions(p, ONEPASS_ROLE_X, i, count, x_at);
    p->kernels->gather_lanes(of->base[ONEPASS_ROLE_X], x_at, count, of->width, i, &s->sums,
                             s->scratch);
  }
  const bool exact = scale_strip(p, of, s);
  const onepass_lane_scales scales = {strip_value(p, s, ONEPASS_LANE_SHIFT),
                                      strip_value(p, s, ONEPASS_LANE_SCALE),
                                      strip_value(p, s, ONEPASS_LANE_OFFSET)};
  for (int64_t i = 0; i < n; i += ONEPASS_LANE_BLOCK) {
    const int64_t count = onepass_least(n - i, ONEPASS_LANE_BLOCK);
    find_positions(p, ONEPASS_ROLE_X, i, count, x_at);
    find_positions(p, ONEPASS_ROLE_Y, i, count, y_at);
    p->kernels->apply_lanes(p, of->base[ONEPASS_ROLE_Y], y_at, of->base[ONEPASS_ROLE_X], x_at,
                            count, of->width, &scales, position_weight(p, w->buffers.weight, i),
                            position_weight(p, w->buffers.bias, i));
  }
  if (exact) divide_strip(p, of, s->sums.a);
}

static double saved_at(const onepass_norm_problem *p, const char *saved, int64_t at) {
  if (!saved) return 0;
  return p->type == ONEPASS_TYPE_F64 ? ((const double *)(const void *)saved)[at]
                                     : (double)((const float *)(const void *)saved)[at];
}

/* What the sums of a strip's rows make of their gradients. */
static void scale_gradients(const onepass_norm_problem *p, const row_strip *of, const strip *s,
                            const onepass_lane_gradients *gradients) {
  const bool centered = p->op->denominator == ONEPASS_BY_DEVIATION;
  const char *saved_rstd = of->base[ONEPASS_ROLE_RSTD];
  const onepass_lane_sums sums = s->sums;
  for (int64_t j = 0; j < of->width; j++) {
    const double rstd = saved_at(p, saved_rstd, j * of->rstd_step);
    const double share = centered ? p->one_over_n : onepass_share_of_products(p, rstd);
    const double a = sums.a[j], offset = centered ? -sums.c[j] * share : 0;
    const double by_z = -rstd * (sums.b[j] + offset * a) * share;
    onepass_put_sum(p, gradients->offset, j, offset);
    onepass_put_sum(p, gradients->by_dy, j, rstd);
    onepass_put_sum(p, gradients->by_z, j, by_z);
    onepass_put_sum(p, gradients->constant, j, centered ? by_z * offset - rstd * a * share : 0);
  }
}

/* dweight and dbias, if not NULL, are for as many elements as a row of turned ones has. */
static void backward_moments(const work *w, const row_strip *of, const strip *s, void *dweight,
                             void *dbias) {
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count;
  const onepass_lane_gradients gradients = {.mean = strip_value(p, s, ONEPASS_LANE_SAVED_MEAN),
                                            .rstd = strip_value(p, s, ONEPASS_LANE_SAVED_RSTD),
                                            .by_dy = strip_value(p, s, ONEPASS_LANE_BY_DY),
                                            .by_z = strip_value(p, s, ONEPASS_LANE_BY_Z),
                                            .constant = strip_value(p, s, ONEPASS_LANE_CONSTANT),
                                            .offset = strip_value(p, s, ONEPASS_LANE_OFFSET)};
  int64_t x_at[ONEPASS_LANE_BLOCK], dy_at[ONEPASS_LANE_BLOCK], dx_at[ONEPASS_LANE_BLOCK];
  for (int64_t j = 0; j < of->width; j++) {
    onepass_put_sum(p, gradients.mean, j,
                    saved_at(p, of->base[ONEPASS_ROLE_MEAN], j * of->mean_step));
    onepass_put_sum(p, gradients.rstd, j,
                    saved_at(p, of->base[ONEPASS_ROLE_RSTD], j * of->rstd_step));
    s->sums.a[j] = s->sums.b[j] = s->sums.c[j] = 0;
  }
  for (int64_t i = 0; i < n; i += ONEPASS_LANE_BLOCK) {
    const int64_t count = onepass_least(n - i, ONEPASS_LANE_BLOCK);
    find_positions(p, ONEPASS_ROLE_X, i, count, x_at);
    find_positions(p, ONEPASS_ROLE_DY, i, count, dy_at);
    p->kernels->gather_backward_lanes(
        p, of->base[ONEPASS_ROLE_X], x_at, of->base[ONEPASS_ROLE_DY], dy_at, count, of->width,
        &gradients, position_weight(p, w->buffers.weight, i), &s->sums, s->scratch);
  }
  scale_gradients(p, of, s, &gradients);
  for (int64_t i = 0; i < n; i += ONEPASS_LANE_BLOCK) {
    const int64_t count = onepass_least(n - i, ONEPASS_LANE_BLOCK);
    find_positions(p, ONEPASS_ROLE_X, i, count, x_at);
    find_positions(p, ONEPASS_ROLE_DY, i, count, dy_at);
    find_positions(p, ONEPASS_ROLE_DX, i, count, dx_at);
    if (dweight) {
      p->kernels->sum_weight_lanes(of->base[ONEPASS_ROLE_X], x_at, of->base[ONEPASS_ROLE_DY], dy_at,
                                   count, of->width, &gradients, dweight, dbias);
    }
    p->kernels->apply_backward_lanes(p, of->base[ONEPASS_ROLE_DX], dx_at, of->base[ONEPASS_ROLE_X],
                                     x_at, of->base[ONEPASS_ROLE_DY], dy_at, count, of->width,
                                     &gradients, position_weight(p, w->buffers.weight, i));
  }
}

/* ---- Either statistic ------------------------------------------------------------------------ */

static void forward_strip(const work *w, const row_strip *of, const strip *s) {
  const onepass_norm_problem *p = w->problem;
  if (p->op->statistic == ONEPASS_STATISTIC_MOMENTS) {
    forward_moments(w, of, s);
    return;
  }
  const int64_t second = p->elements.count > 1;
  p->kernels->forward_columns(p, of->base[ONEPASS_ROLE_Y], position(p, ONEPASS_ROLE_Y, second),
                              of->base[ONEPASS_ROLE_X], position(p, ONEPASS_ROLE_X, second),
                              of->width, s->sums.a);
}

static void backward_strip(const work *w, const row_strip *of, const strip *s, void *dweight,
                           void *dbias) {
  const onepass_norm_problem *p = w->problem;
  if (p->op->statistic == ONEPASS_STATISTIC_MOMENTS) {
    backward_moments(w, of, s, dweight, dbias);
    return;
  }
  const int64_t second = p->elements.count > 1;
  p->kernels->backward_columns(p, of->base[ONEPASS_ROLE_DX], position(p, ONEPASS_ROLE_DX, second),
                               of->base[ONEPASS_ROLE_X], position(p, ONEPASS_ROLE_X, second),
                               of->base[ONEPASS_ROLE_DY], position(p, ONEPASS_ROLE_DY, second),
                               of->width, s->sums.a);
}

void onepass_norm_do_strips(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const onepass_walk others = onepass_walk_without(&p->rows, p->lane_axis);
  const int64_t *lane_step = p->rows.stride[p->lane_axis];
  const int64_t lane_count = p->rows.size[p->lane_axis];
  const int64_t strips = onepass_divide_up(lane_count, p->strip);
  const strip s = lay_out_strip(w, worker);
  for (int64_t task = begin; task < end; task++) {
    const int64_t first = task % strips * p->strip;
    row_strip of = {.width = onepass_least(p->strip, lane_count - first),
                    .mean_step = lane_step[ONEPASS_ROLE_MEAN],
                    .rstd_step = lane_step[ONEPASS_ROLE_RSTD]};
    for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
      if (!(w->plan->layouts.present & strip_roles & ONEPASS_BIT(role))) continue;
      const int64_t at =
          onepass_walk_offset(&others, role, task / strips) + first * lane_step[role];
      of.base[role] = onepass_buffer(&w->buffers, role) +
                      at * onepass_type_size(w->plan->layouts.of[role].type);
    }
    if (p->backward) {
      backward_strip(w, &of, &s, NULL, NULL);
    } else {
      forward_strip(w, &of, &s);
    }
  }
}

/* ---- Short rows, turned ---------------------------------------------------------------------- */

static int64_t row_step(const onepass_norm_problem *p, onepass_role role) {
  return p->rows.ndim ? p->rows.stride[0][role] : 0;
}

static char *row_at(const work *w, onepass_role role, int64_t row) {
  return onepass_buffer(&w->buffers, role) +
         row * row_step(w->problem, role) * onepass_type_size(w->plan->layouts.of[role].type);
}

/* A tensor's rows from `first` on to where they lie side by side, and back. */
static void turn(const work *w, const row_strip *of, onepass_role role, int64_t first) {
  const onepass_norm_problem *p = w->problem;
  onepass_transpose(onepass_type_size(p->type), of->base[role], p->strip, row_at(w, role, first),
                    row_step(p, role), of->width, p->elements.count);
}

static void turn_back(const work *w, const row_strip *of, onepass_role role, int64_t first) {
  const onepass_norm_problem *p = w->problem;
  onepass_transpose(onepass_type_size(p->type), row_at(w, role, first), row_step(p, role),
                    of->base[role], p->strip, p->elements.count, of->width);
}

/* The next rows of begin..end. Results take the place of x. */
static row_strip turned_rows(const work *w, const strip *s, int64_t begin, int64_t end) {
  const onepass_norm_problem *p = w->problem;
  row_strip of = {.width = onepass_least(p->strip, end - begin),
                  .mean_step = row_step(p, ONEPASS_ROLE_MEAN),
                  .rstd_step = row_step(p, ONEPASS_ROLE_RSTD)};
  of.base[ONEPASS_ROLE_X] = of.base[ONEPASS_ROLE_Y] = of.base[ONEPASS_ROLE_DX] = s->turned_x;
  of.base[ONEPASS_ROLE_DY] = s->turned_dy;
  for (int role = ONEPASS_ROLE_MEAN; role <= ONEPASS_ROLE_RSTD; role++) {
    if (onepass_has(&w->plan->layouts, role)) of.base[role] = row_at(w, role, begin);
  }
  return of;
}

void onepass_norm_forward_turned(const work *w, int worker, int64_t begin, int64_t end) {
  const strip s = lay_out_strip(w, worker);
  for (int64_t row = begin; row < end; row += w->problem->strip) {
    const row_strip of = turned_rows(w, &s, row, end);
    turn(w, &of, ONEPASS_ROLE_X, row);
    forward_strip(w, &of, &s);
    turn_back(w, &of, ONEPASS_ROLE_Y, row);
  }
}

void onepass_norm_backward_turned(const work *w, int worker, int64_t begin, int64_t end,
                                  void *dweight, void *dbias) {
  const strip s = lay_out_strip(w, worker);
  for (int64_t row = begin; row < end; row += w->problem->strip) {
    const row_strip of = turned_rows(w, &s, row, end);
    turn(w, &of, ONEPASS_ROLE_X, row);
    turn(w, &of, ONEPASS_ROLE_DY, row);
    backward_strip(w, &of, &s, dweight, dbias);
    turn_back(w, &of, ONEPASS_ROLE_DX, row);
  }
}
