/* How the CPU goes about a normalization: the strategy, the pieces, the threads, the workspace. */
#include "core/plan.h"
#include "cpu/machine.h"
#include "norm/cpu.h"

enum {
  SEGMENT = 131072,            /* SPLIT: elements of all rows that a thread does together */
  MOST_ROW_BLOCKS = 64,        /* ROWS backward: partial dweights */
  LEAST_ROW_BLOCK = 16,        /* rows a partial dweight is worth */
  MOST_SUMMED_BY_ROWS = 16384, /* longer rows sum dweight by columns: partials would leave L2 */
  LEAST_STREAMED_ROW = 2048,   /* bytes; shorter rows have too many unaligned ends to stream */
  LEAST_ROWS_WIDENED = 16,     /* fewer do not pay for widening their weights */
  NARROWEST_STRIP = 64,
  WIDEST_STRIP = 1024,
  LEAST_LANES = 8 /* COLUMNS: fewer rows side by side are packed instead */
};

static const unsigned whole_roles = ONEPASS_WHOLE_ROLES;
static const unsigned weight_roles =
    ONEPASS_BIT(ONEPASS_ROLE_WEIGHT) | ONEPASS_BIT(ONEPASS_ROLE_BIAS);

static bool all_dense(const onepass_layouts *layouts, unsigned roles, const onepass_walk *walk) {
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!(layouts->present & roles & ONEPASS_BIT(role))) continue;
    if (!onepass_walk_is_dense(walk, role)) return false;
  }
  return true;
}

/* The axis of the rows along which every tensor is dense, or -1. */
static int find_lane_axis(const onepass_layouts *layouts, const onepass_walk *rows) {
  for (int axis = rows->ndim - 1; axis >= 0; axis--) {
    bool dense = rows->size[axis] >= LEAST_LANES;
    for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
      if (!(layouts->present & whole_roles & ONEPASS_BIT(role))) continue;
      dense &= rows->stride[role][axis] == 1;
    }
    if (dense) return axis;
  }
  return -1;
}

static const onepass_norm_kernels *kernels_at(onepass_vector_level level,
                                              onepass_statistic statistic, onepass_type type,
                                              onepass_type weight_type) {
#if defined(__x86_64__)
  if (level == ONEPASS_VECTOR_AVX512) {
    return onepass_norm_kernels_avx512(statistic, type, weight_type);
  }
  if (level == ONEPASS_VECTOR_AVX2) return onepass_norm_kernels_avx2(statistic, type, weight_type);
  return onepass_norm_kernels_sse2(statistic, type, weight_type);
#elif defined(__aarch64__)
#if defined(ONEPASS_HAS_NEON_BF16)
  if (level == ONEPASS_VECTOR_NEON_BF16)
    return onepass_norm_kernels_neon_bf16(statistic, type, weight_type);
#endif
  (void)level;
  return onepass_norm_kernels_neon(statistic, type, weight_type);
#else
  (void)level;
  return onepass_norm_kernels_generic(statistic, type, weight_type);
#endif
}

static int64_t chunk_of(const onepass_norm_problem *p) {
  return p->backward ? ONEPASS_NORM_BACKWARD_CHUNK : ONEPASS_NORM_CHUNK;
}

/* x, or x and dy, for so many elements; saturating, as one of them alone may be near 2^63 bytes. */
static int64_t bytes_read_together(const onepass_norm_problem *p, int64_t elements) {
  const int64_t bytes = elements * onepass_type_size(p->type);
  if (!p->backward) return bytes;
  return bytes > INT64_MAX / 2 ? INT64_MAX : 2 * bytes;
}

static int64_t bytes_of_weights(const onepass_layouts *layouts) {
  int64_t bytes = 0;
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!(layouts->present & weight_roles & ONEPASS_BIT(role))) continue;
    const onepass_layout *layout = &layouts->of[role];
    if (__builtin_add_overflow(bytes, layout->count * onepass_type_size(layout->type), &bytes)) {
      return INT64_MAX;
    }
  }
  return bytes;
}

/* Where dweight is summed the choice must not depend on the machine or the threads, or the bits
 * would. */
static onepass_norm_strategy choose_strategy(const onepass_layouts *layouts,
                                             const onepass_norm_problem *p, int threads) {
  const int64_t rows = p->rows.count, n = p->elements.count;
  if (p->backward && onepass_sums_weights(layouts)) {
    return n > MOST_SUMMED_BY_ROWS || rows < 2 * LEAST_ROW_BLOCK ? ONEPASS_NORM_SPLIT
                                                                 : ONEPASS_NORM_ROWS;
  }
  const bool side_by_side =
      p->packed || n == 1; /* rows of one element are each other's neighbours */
  if (side_by_side && p->elements.ndim <= 1 && p->lane_axis >= 0 && p->kernels->forward_columns) {
    return ONEPASS_NORM_COLUMNS;
  }
  const int64_t row_bytes = bytes_read_together(p, n);
  if (rows < threads && n > chunk_of(p)) return ONEPASS_NORM_SPLIT;
  if (row_bytes <= onepass_this_machine()->l2) return ONEPASS_NORM_ROWS;
  /* Rows beyond L2 can still wait in the last level, if there are enough of them to keep reading
   * the next while writing this one, and if it holds both, and the weights that every row needs. */
  const int64_t weight_bytes = bytes_of_weights(layouts);
  const bool fits = row_bytes <= (onepass_this_machine()->last - weight_bytes) / (2 * threads);
  return fits && rows >= 4 * (int64_t)threads ? ONEPASS_NORM_ROWS : ONEPASS_NORM_SPLIT;
}

/* Whether weights of a half type are better made f32 once than widened again for every row: there
 * are many rows, and they still fit in the first-level cache beside the rows. */
static bool worth_widening(const onepass_layouts *layouts, const onepass_norm_problem *p) {
  const int64_t most = onepass_this_machine()->l1 / 2 / (2 * (int64_t)sizeof(float)); /* of each */
  return (layouts->present & weight_roles) && onepass_type_size(p->weight_type) < 4 &&
         !p->packed_weights && p->rows.count >= LEAST_ROWS_WIDENED && p->elements.count <= most;
}

/* Whole chunks, few enough for every thread to have a segment. */
static int64_t choose_segment(const onepass_norm_problem *p, int threads) {
  const int64_t chunk = chunk_of(p);
  const int64_t share =
      onepass_divide_up(onepass_divide_up(p->elements.count, threads), chunk) * chunk;
  return share < SEGMENT ? share : SEGMENT;
}

/* How many pieces there are for threads to share. */
static int64_t count_tasks(const onepass_norm_problem *p) {
  switch (p->strategy) {
    case ONEPASS_NORM_SPLIT:
      return onepass_divide_up(p->elements.count, p->segment);
    case ONEPASS_NORM_COLUMNS:
      return p->rows.count / p->rows.size[p->lane_axis] *
             onepass_divide_up(p->rows.size[p->lane_axis], p->strip);
    default:
      return p->row_block ? onepass_divide_up(p->rows.count, p->row_block) : p->rows.count;
  }
}

/* As many rows at once as fit in half the second-level cache, but whole cache lines of them. */
static int64_t choose_strip(const onepass_norm_problem *p) {
  const int64_t column = bytes_read_together(p, p->elements.count);
  const int64_t fits = onepass_this_machine()->l2 / 2 / column / NARROWEST_STRIP * NARROWEST_STRIP;
  if (fits < NARROWEST_STRIP) return NARROWEST_STRIP;
  return fits < WIDEST_STRIP ? fits : WIDEST_STRIP;
}

static size_t scratch_of(const onepass_norm_problem *p, bool summing) {
  const size_t sums_size = (size_t)onepass_type_size(onepass_type_of_sums(p->type));
  const size_t n = (size_t)p->elements.count, element = (size_t)onepass_type_size(p->type);
  if (p->strategy == ONEPASS_NORM_COLUMNS) {
    return (size_t)p->strip * ONEPASS_COLUMN_SCRATCH * sizeof(double);
  }
  size_t size = p->packed ? 3 * ONEPASS_NORM_CHUNK * element : 0; /* x, dy and the output */
  if (summing && p->strategy == ONEPASS_NORM_ROWS) size += 2 * n * sums_size;
  if (summing && p->strategy == ONEPASS_NORM_SPLIT) {
    size += 2 * ONEPASS_NORM_APPLIED * (sums_size + sizeof(double));
  }
  return size;
}

static size_t place(size_t *end, size_t size) {
  const size_t at = *end;
  *end += (size + 63) / 64 * 64;
  return at;
}

static size_t lay_out_workspace(onepass_norm_problem *p, bool summing, bool has_weights) {
  const size_t rows = (size_t)p->rows.count, n = (size_t)p->elements.count;
  size_t end = 0;
  if (p->strategy == ONEPASS_NORM_SPLIT) {
    p->sums_at = place(&end, rows * (size_t)p->chunks * sizeof(onepass_row_sums));
    p->scales_at = place(&end, p->backward ? 0 : rows * sizeof(onepass_row_scale));
  }
  if (summing && p->strategy == ONEPASS_NORM_ROWS) {
    p->partials_at = place(&end, (size_t)p->tasks * 2 * n * sizeof(double));
  }
  if ((p->packed_weights || p->widen_weights) && has_weights) {
    p->weights_at = place(&end, 2 * n * (size_t)onepass_type_size(p->held_weight_type));
  }
  p->scratch_size = (scratch_of(p, summing) + 63) / 64 * 64;
  p->scratch_at = place(&end, p->scratch_size * (size_t)p->threads);
  return end;
}

void onepass_norm_choose_cpu(onepass_plan *plan, int threads, onepass_vector_level level) {
  static const char *const kernel_names[ONEPASS_NORM_STRATEGY_COUNT][2] = {
      [ONEPASS_NORM_ROWS] = {"rows", "packed_rows"},
      [ONEPASS_NORM_SPLIT] = {"split_rows", "packed_split_rows"},
      [ONEPASS_NORM_COLUMNS] = {"columns", "columns"}};
  onepass_norm_problem *p = &plan->problem.norm;
  const bool summing = p->backward && onepass_sums_weights(&plan->layouts);
  plan->info.vector = onepass_vector_name(level);
  if (p->rows.count == 0 || p->elements.count == 0) {
    plan->run = onepass_norm_run_empty;
    plan->info.kernel = "empty";
    return;
  }
  plan->run = onepass_norm_run_cpu;
  p->one_over_n = 1 / (double)p->elements.count;
  p->held_weight_type = p->weight_type;
  p->packed = !all_dense(&plan->layouts, whole_roles, &p->elements);
  p->packed_weights = !all_dense(&plan->layouts, weight_roles, &p->elements);
  if (worth_widening(&plan->layouts, p)) {
    p->widen_weights = kernels_at(level, p->op->statistic, p->type, p->weight_type)->widen_weights;
    p->held_weight_type = ONEPASS_TYPE_F32;
  }
  p->kernels = kernels_at(level, p->op->statistic, p->type, p->held_weight_type);
  p->lane_axis = find_lane_axis(&plan->layouts, &p->rows);
  threads = onepass_threads_worth(threads, plan->info.bytes);
  p->strategy = choose_strategy(&plan->layouts, p, threads);
  if (p->strategy == ONEPASS_NORM_COLUMNS) p->strip = choose_strip(p);
  if (p->strategy == ONEPASS_NORM_SPLIT) p->segment = choose_segment(p, threads);
  if (p->strategy == ONEPASS_NORM_ROWS && summing) {
    const int64_t even = onepass_divide_up(p->rows.count, MOST_ROW_BLOCKS);
    p->row_block = even > LEAST_ROW_BLOCK ? even : LEAST_ROW_BLOCK;
  }
  p->chunks = onepass_divide_up(p->elements.count, chunk_of(p));
  p->tasks = count_tasks(p);
  p->threads = p->tasks < threads ? (int)p->tasks : threads;
  p->stream = !p->packed && p->elements.count * onepass_type_size(p->type) >= LEAST_STREAMED_ROW &&
              plan->info.bytes > onepass_this_machine()->last;
  plan->info.kernel = kernel_names[p->strategy][p->packed];
  plan->info.threads = p->threads;
  plan->info.workspace = lay_out_workspace(p, summing, plan->layouts.present & weight_roles);
}
