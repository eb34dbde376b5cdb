/* Which kernel and how many blocks a pooling takes on a GPU: a pure function of the problem. */
#include "core/numbers.h"
#include "core/plan.h"

enum {
  BLOCK = 256,
  WARP = 32,
  SLOTS = 4,              /* of 16 bytes, that a thread of a long line makes */
  POINTS = 4,             /* outputs of a thread that makes one after the other */
  LEAST_SCALED = 4096,    /* outputs that are copied in packs */
  FEW_OUTPUTS = 1 << 22,  /* that tiles would take longer for than points */
  MOST_TERMS = 32,        /* of an output that one thread adds up */
  WIDE_OUTPUTS = 8,       /* of a thread, by doubling */
  LONGEST_DOUBLED = 32768 /* bytes of sums, which leave room for half as much */
};

/* Outputs of points that 32 bits count. An emulated GPU has fewer, so that its tests see both ways. */
#ifndef ONEPASS_MOST_NARROW_POINTS
#define ONEPASS_MOST_NARROW_POINTS (INT32_MAX / 2)
#endif

/* ---- Choices --------------------------------------------------------------------------------- */

#define SMALL(kernel, stride) \
  { kernel, stride, "windows_" #kernel "_" #stride }
static const struct {
  int64_t kernel, stride;
  const char *name;
} small_kernels[] = {SMALL(2, 1), SMALL(3, 1), SMALL(4, 1), SMALL(5, 1),
                     SMALL(8, 1), SMALL(2, 2), SMALL(3, 2), SMALL(4, 2)};

bool onepass_pool_is_uniform(const onepass_pool_problem *p) {
  return (p->count_include_pad || p->wide.padding == 0) &&
         (p->wide.pooled - 1) * p->wide.stride + p->wide.kernel <=
             p->wide.length + 2 * p->wide.padding;
}

/* Backward at stride 1 is a window, too; at other strides it is not. All must be divided alike. Strides other than 1 are
 * for halves: points are as fast with larger elements. */
static const char *small_kernel_of(const onepass_pool_problem *p) {
  if (!onepass_pool_is_uniform(p)) return NULL;
  if (p->wide.stride != 1 && (p->backward || onepass_type_size(p->type) > 2)) return NULL;
  for (size_t i = 0; i < sizeof small_kernels / sizeof *small_kernels; i++) {
    if (small_kernels[i].kernel == p->wide.kernel && small_kernels[i].stride == p->wide.stride) {
      return small_kernels[i].name;
    }
  }
  return NULL;
}

int64_t onepass_pool_outputs(const onepass_pool_problem *p) {
  return p->backward ? p->wide.length : p->wide.pooled;
}

/* Slots of 16 bytes that a line's outputs may lie in, wherever they start. */
static int64_t slots_of(const onepass_pool_problem *p) {
  const int64_t vec = 16 / onepass_type_size(p->type);
  return onepass_divide_up(onepass_pool_outputs(p) + vec - 1, vec);
}

/* A thread for each of them. */
static void share_slots(const onepass_pool_problem *p, onepass_pool_launch *l) {
  const int64_t slots = slots_of(p);
  const int64_t tiles = slots <= BLOCK ? 1 : onepass_divide_up(slots, BLOCK * SLOTS);
  l->tiles = (int32_t)onepass_least(tiles, INT32_MAX);
  l->lanes = slots > BLOCK ? 0 : 1;
  while (l->lanes && l->lanes < slots) l->lanes *= 2;
  l->lines_of_block = l->lanes ? BLOCK / l->lanes : 0;
  l->grid = slots > BLOCK ? tiles * p->planes.count
                          : onepass_divide_up(p->planes.count, l->lines_of_block);
}

/* Shared memory for the inputs of a tile of outputs. */
static size_t tile_bytes(const onepass_pool_problem *p) {
  const int64_t size = onepass_type_size(p->type), step = p->backward ? 1 : p->wide.stride;
  return (size_t)(BLOCK * SLOTS * 16 * step + p->wide.kernel * size + 64);
}

static onepass_point_args point_args_of(const onepass_pool_problem *p) {
  const onepass_pool_axis *wide = &p->wide;
  const int64_t outputs = onepass_pool_outputs(p);
  return (onepass_point_args){
      .total = outputs * p->planes.count,
      .in_step = p->planes.stride[0][p->backward ? ONEPASS_ROLE_DY : ONEPASS_ROLE_X],
      .outputs = (int32_t)outputs,
      .inputs = (int32_t)(p->backward ? wide->pooled : wide->length),
      .step = (int32_t)wide->stride,
      .offset = (int32_t)(p->backward ? wide->padding - wide->kernel + 1 : -wide->padding),
      .by_outputs = onepass_divider_of(outputs),
      .by_stride = onepass_divider_of(wide->stride),
      .one_over_kernel_f32 = (float)p->one_over_kernel,
      .kernel = (int32_t)wide->kernel,
      .padding = (int32_t)wide->padding,
      .most = ONEPASS_MOST_NARROW_POINTS,
      .uniform = onepass_pool_is_uniform(p),
      .count_include_pad = p->count_include_pad,
      .one_over_kernel = p->one_over_kernel};
}

/* Every output is one input at the same place, and all lines are one: windows of one element, one apart, or lines of one
 * element; so many that packs pay. */
static bool is_scaled(const onepass_pool_problem *p) {
  const onepass_pool_axis *wide = &p->wide;
  const int role = p->backward ? ONEPASS_ROLE_DY : ONEPASS_ROLE_X;
  return ((wide->kernel == 1 && wide->stride == 1) || (wide->length == 1 && wide->pooled == 1)) &&
         (p->planes.count == 1 || p->planes.stride[0][role] == wide->length) &&
         p->planes.count >= onepass_divide_up(LEAST_SCALED, wide->length);
}

static bool choose_scaled(const onepass_pool_problem *p, const onepass_cuda_properties *device,
                          onepass_pool_launch *l) {
  const int64_t packs =
      onepass_divide_up(p->wide.length * p->planes.count, 16 / onepass_type_size(p->type));
  const double factor = 1 / (double)onepass_window_of(&p->wide, 0).divisor;
  /* A pack a thread, as long as that is not too many blocks. */
  l->grid = onepass_most(
      onepass_divide_up(packs, BLOCK * POINTS),
      onepass_least(onepass_divide_up(packs, BLOCK), 4 * (int64_t)device->multiprocessors));
  l->name = "points_scaled";
  l->kernel = ONEPASS_CUDA_POINTS;
  l->point_args = point_args_of(p);
  l->point_args.one_over_kernel = factor;
  l->point_args.one_over_kernel_f32 = (float)factor;
  return l->grid <= INT32_MAX;
}

/* Lines whose outputs lie back to back, of any length that 32 bits can count, with few terms an output. */
static bool choose_points(const onepass_pool_problem *p, const onepass_cuda_properties *device,
                          onepass_pool_launch *l) {
  static const char *const of_kernel[] = {"points_any", "points_1", "points_2",
                                          "points_3",   "points_4", "points_5",
                                          "points_6",   "points_7", "points_8"};
  static const char *const of_terms[] = {"points_backward_any", "points_backward_1",
                                         "points_backward_2", "points_backward_3",
                                         "points_backward_4"};
  const int64_t outputs = onepass_pool_outputs(p), lines = p->planes.count;
  const int64_t terms = onepass_divide_up(p->wide.kernel, p->wide.stride), limit = INT32_MAX / 4;
  const int role = p->backward ? ONEPASS_ROLE_DX : ONEPASS_ROLE_Y;
  if (p->planes.ndim > 1 || (lines > 1 && p->planes.stride[0][role] != outputs)) return false;
  if (lines == 0 || outputs == 0 || p->wide.length > limit || p->wide.padding > limit ||
      p->wide.kernel > MOST_TERMS || p->wide.stride > limit / onepass_most(1, p->wide.pooled)) {
    return false;
  }
  if (is_scaled(p)) return choose_scaled(p, device, l);
  l->grid = onepass_divide_up(outputs * lines, BLOCK * POINTS);
  if (l->grid > INT32_MAX) return false;
  const bool is_window = !p->backward || (p->wide.stride == 1 && onepass_pool_is_uniform(p));
  l->name = is_window ? of_kernel[p->wide.kernel <= 8 ? p->wide.kernel : 0]
                      : of_terms[terms <= 4 && onepass_pool_is_uniform(p) ? terms : 0];
  l->kernel = ONEPASS_CUDA_POINTS;
  l->point_args = point_args_of(p);
  return true;
}

/* Many outputs of a few common kernels are made faster by tiles. */
static bool is_best_by_points(const onepass_pool_problem *p) {
  return slots_of(p) <= BLOCK || !small_kernel_of(p) ||
         onepass_pool_outputs(p) <= FEW_OUTPUTS / onepass_most(1, p->planes.count);
}

static bool choose_windows(const onepass_pool_problem *p, onepass_pool_launch *l) {
  const int64_t terms =
      p->backward ? onepass_divide_up(p->wide.kernel, p->wide.stride) : p->wide.kernel;
  const int64_t lines = p->planes.count, outputs = onepass_pool_outputs(p);
  const int64_t size = onepass_type_size(onepass_type_of_sums(p->type));
  const bool overlaps =
      p->wide.stride == 1 || (!p->backward && p->wide.kernel > 4 * p->wide.stride);
  share_slots(p, l);
  l->name = l->lanes ? NULL : small_kernel_of(p);
  if (l->name) {
    l->shared = tile_bytes(p);
  } else if (terms <= MOST_TERMS) {
    l->name = "windows_any";
  } else if (overlaps && p->wide.kernel <= LONGEST_DOUBLED / size) {
    /* As many outputs as fit beside their window, twice. */
    const int64_t room = 96 * 1024 / (2 * size) - p->wide.kernel,
                  step = p->backward ? 1 : p->wide.stride;
    l->name = "windows_doubled";
    l->tile = (int32_t)onepass_most(
        1, onepass_least(onepass_least(room / step, BLOCK * WIDE_OUTPUTS), outputs));
    l->tiles = (int32_t)onepass_least(onepass_divide_up(outputs, l->tile), INT32_MAX);
    l->grid = onepass_divide_up(outputs, l->tile) * lines;
    l->shared = (size_t)(2 * ((l->tile - 1) * step + p->wide.kernel) * size);
  } else if (!p->backward) {
    l->name = "windows_warp";
    l->grid = onepass_divide_up(outputs * lines, BLOCK / WARP);
  } else {
    l->name = "windows_any";
    l->many_terms = true;
  }
  return l->grid <= INT32_MAX;
}

bool onepass_pool_choose_cuda(const onepass_pool_problem *problem, bool dense,
                              const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                              onepass_pool_launch *launch) {
  *launch = (onepass_pool_launch){.kernel = ONEPASS_CUDA_WINDOWS, .block = BLOCK};
  const bool best = asked == ONEPASS_CUDA_BEST;
  if (dense && (asked == ONEPASS_CUDA_POINTS || (best && is_best_by_points(problem)))) {
    if (choose_points(problem, device, launch)) return true;
  }
  if (dense && (asked == ONEPASS_CUDA_WINDOWS || best)) {
    if (choose_windows(problem, launch)) return true;
  }
  if (asked != ONEPASS_CUDA_BEST && asked != ONEPASS_CUDA_STRIDED) return false;
  launch->kernel = ONEPASS_CUDA_STRIDED;
  launch->name = "windows_strided";
  launch->shared = 0;
  launch->grid = onepass_divide_up(onepass_pool_outputs(problem) * problem->planes.count, BLOCK);
  return launch->grid <= INT32_MAX;
}
