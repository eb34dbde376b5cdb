/* A normalization on CPU threads: how it is split up, and what each thread does with the kernels.
 */
#include "norm/cpu.h"

#include <math.h>

#include "core/plan.h"
#include "cpu/machine.h"
#include "cpu/threads.h"

enum {
  SEGMENT = 32768, /* SPLIT: elements of all rows that a thread does together */
  APPLIED_TOGETHER =
      1024,         /* of those, elements of a row applied at a time; their weights stay in L1 */
  ROWS_SUMMED = 64, /* rows whose dweight is summed in the type of sums before double takes over */
  MOST_ROW_BLOCKS = 64, /* ROWS backward: partial dweights */
  LEAST_ROW_BLOCK = 16, /* rows a partial dweight is worth */
  MOST_SUMMED_BY_ROWS =
      16384, /* longer rows sum dweight by columns: partials would not stay in L2 */
  LEAST_STREAMED_ROW =
      2048, /* bytes: shorter rows have too many unaligned ends to write past caches */
  NARROWEST_STRIP = 64,
  WIDEST_STRIP = 1024,
  LEAST_LANES = 8 /* COLUMNS: fewer rows side by side are packed instead */
};

/* ---- Choosing
 * ---------------------------------------------------------------------------------------- */

static const unsigned whole_roles = ONEPASS_BIT(ONEPASS_ROLE_X) | ONEPASS_BIT(ONEPASS_ROLE_Y) |
                                    ONEPASS_BIT(ONEPASS_ROLE_DY) | ONEPASS_BIT(ONEPASS_ROLE_DX);
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

static bool sums_weights(const onepass_layouts *layouts) {
  return onepass_has(layouts, ONEPASS_ROLE_DWEIGHT) || onepass_has(layouts, ONEPASS_ROLE_DBIAS);
}

/* Where dweight is summed the choice must not depend on the machine or the threads, or the bits
 * would. */
static onepass_norm_strategy choose_strategy(const onepass_layouts *layouts,
                                             const onepass_norm_problem *p, int threads) {
  const int64_t rows = p->rows.count, n = p->elements.count;
  if (p->backward && sums_weights(layouts)) {
    return n > MOST_SUMMED_BY_ROWS || rows < 2 * LEAST_ROW_BLOCK ? ONEPASS_NORM_SPLIT
                                                                 : ONEPASS_NORM_ROWS;
  }
  if (p->packed && p->elements.ndim <= 1 && p->lane_axis >= 0 && p->kernels->forward_columns) {
    return ONEPASS_NORM_COLUMNS;
  }
  const int64_t row_bytes = n * onepass_type_size(p->type) * (p->backward ? 2 : 1);
  const int64_t chunk = p->backward ? ONEPASS_NORM_BACKWARD_CHUNK : ONEPASS_NORM_CHUNK;
  if (row_bytes > onepass_this_machine()->l2) return ONEPASS_NORM_SPLIT;
  return rows < threads && n > chunk ? ONEPASS_NORM_SPLIT : ONEPASS_NORM_ROWS;
}

static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static int64_t chunks_of(const onepass_norm_problem *p) {
  return divide_up(p->elements.count,
                   p->backward ? ONEPASS_NORM_BACKWARD_CHUNK : ONEPASS_NORM_CHUNK);
}

/* Whole chunks, few enough for every thread to have a segment. */
static int64_t choose_segment(const onepass_norm_problem *p, int threads) {
  const int64_t chunk = p->backward ? ONEPASS_NORM_BACKWARD_CHUNK : ONEPASS_NORM_CHUNK;
  const int64_t share = divide_up(divide_up(p->elements.count, threads), chunk) * chunk;
  return share < SEGMENT ? share : SEGMENT;
}

/* How many pieces there are for threads to share. */
static int64_t count_tasks(const onepass_norm_problem *p) {
  switch (p->strategy) {
    case ONEPASS_NORM_SPLIT:
      return divide_up(p->elements.count, p->segment);
    case ONEPASS_NORM_COLUMNS:
      return p->rows.count / p->rows.size[p->lane_axis] *
             divide_up(p->rows.size[p->lane_axis], p->strip);
    default:
      return p->row_block ? divide_up(p->rows.count, p->row_block) : p->rows.count;
  }
}

/* As many rows at once as fit in half the second-level cache, but whole cache lines of them. */
static int64_t choose_strip(const onepass_norm_problem *p) {
  const int64_t column = p->elements.count * onepass_type_size(p->type) * (p->backward ? 2 : 1);
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
    size += 2 * APPLIED_TOGETHER * (sums_size + sizeof(double));
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
    p->sums_at = place(&end, rows * (size_t)chunks_of(p) * sizeof(onepass_row_sums));
    p->scales_at = place(&end, p->backward ? 0 : rows * sizeof(onepass_row_scale));
  }
  if (summing && p->strategy == ONEPASS_NORM_ROWS) {
    p->partials_at = place(&end, (size_t)count_tasks(p) * 2 * n * sizeof(double));
  }
  if (p->packed_weights && has_weights) {
    p->weights_at = place(&end, 2 * n * (size_t)onepass_type_size(p->weight_type));
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
  const bool summing = p->backward && sums_weights(&plan->layouts);
  plan->info.vector = onepass_vector_name(level);
  if (p->rows.count == 0 || p->elements.count == 0) {
    plan->run = onepass_norm_run_empty;
    plan->info.kernel = "empty";
    return;
  }
  plan->run = onepass_norm_run_cpu;
  p->one_over_n = 1 / (double)p->elements.count;
  p->kernels = kernels_at(level, p->op->statistic, p->type, p->weight_type);
  p->packed = !all_dense(&plan->layouts, whole_roles, &p->elements);
  p->packed_weights = !all_dense(&plan->layouts, weight_roles, &p->elements);
  p->lane_axis = find_lane_axis(&plan->layouts, &p->rows);
  threads = onepass_threads_worth(threads, plan->info.bytes);
  p->strategy = choose_strategy(&plan->layouts, p, threads);
  if (p->strategy == ONEPASS_NORM_COLUMNS) p->strip = choose_strip(p);
  if (p->strategy == ONEPASS_NORM_SPLIT) p->segment = choose_segment(p, threads);
  if (p->strategy == ONEPASS_NORM_ROWS && summing) {
    const int64_t even = divide_up(p->rows.count, MOST_ROW_BLOCKS);
    p->row_block = even > LEAST_ROW_BLOCK ? even : LEAST_ROW_BLOCK;
  }
  const int64_t tasks = count_tasks(p);
  p->threads = tasks < threads ? (int)tasks : threads;
  p->stream = !p->packed && p->elements.count * onepass_type_size(p->type) >= LEAST_STREAMED_ROW &&
              plan->info.bytes > onepass_this_machine()->last;
  plan->info.kernel = kernel_names[p->strategy][p->packed];
  plan->info.threads = p->threads;
  plan->info.workspace = lay_out_workspace(p, summing, plan->layouts.present & weight_roles);
}

/* ---- Pieces of rows, dense or not
 * --------------------------------------------------------------------- */

typedef struct work {
  const onepass_plan *plan;
  const onepass_norm_problem *problem;
  onepass_buffers buffers; /* with weight and bias dense */
  char *workspace;
} work;

static char *scratch_for(const work *w, int worker) {
  if (!w->problem->scratch_size) return NULL;
  return w->workspace + w->problem->scratch_at + (size_t)worker * w->problem->scratch_size;
}

/* Where a worker's three packed pieces are in its scratch, and where the rest of it begins. */
static char *packed_part(const onepass_norm_problem *p, char *scratch, int part) {
  if (!p->packed) return part < 3 ? NULL : scratch;
  return scratch + part * ONEPASS_NORM_CHUNK * onepass_type_size(p->type);
}

/* Elements begin..begin+count of a row, where they are or, if that is not dense, copied to
 * `packed`. */
static const char *piece_of(const work *w, onepass_role role, int64_t row, int64_t begin,
                            int64_t count, char *packed) {
  const onepass_norm_problem *p = w->problem;
  const int64_t size = onepass_type_size(p->type);
  const char *base =
      onepass_buffer(&w->buffers, role) + onepass_walk_offset(&p->rows, role, row) * size;
  if (!p->packed) return base + begin * size;
  onepass_pack(packed, base, &p->elements, role, size, begin, count);
  return packed;
}

/* Where element `begin` of a row is, or, of rows that are packed, any address: for prefetching. */
static const char *row_start(const work *w, onepass_role role, int64_t row, int64_t begin) {
  const onepass_norm_problem *p = w->problem;
  if (p->packed) return onepass_buffer(&w->buffers, role);
  return onepass_buffer(&w->buffers, role) +
         (onepass_walk_offset(&p->rows, role, row) + begin) * onepass_type_size(p->type);
}

/* Where to write such a piece, and, once it is written, bringing it there. */
static char *piece_to_write(const work *w, onepass_role role, int64_t row, int64_t begin,
                            char *packed) {
  const onepass_norm_problem *p = w->problem;
  if (p->packed) return packed;
  return onepass_buffer(&w->buffers, role) +
         (onepass_walk_offset(&p->rows, role, row) + begin) * onepass_type_size(p->type);
}

static void finish_piece(const work *w, onepass_role role, int64_t row, int64_t begin,
                         int64_t count, const char *packed) {
  const onepass_norm_problem *p = w->problem;
  const int64_t size = onepass_type_size(p->type);
  if (!p->packed) return;
  onepass_unpack(
      packed, onepass_buffer(&w->buffers, role) + onepass_walk_offset(&p->rows, role, row) * size,
      &p->elements, role, size, begin, count);
}

static const char *weight_at(const onepass_norm_problem *p, const void *weight, int64_t element) {
  return weight ? (const char *)weight + element * onepass_type_size(p->weight_type) : NULL;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static double saved_at(const work *w, onepass_role role, int64_t row) {
  if (!onepass_has(&w->plan->layouts, role)) return 0;
  return onepass_load(w->plan->layouts.of[role].type, onepass_buffer(&w->buffers, role),
                      onepass_walk_offset(&w->problem->rows, role, row));
}

static void save(const work *w, int64_t row, const onepass_row_scale *scale) {
  const onepass_layouts *layouts = &w->plan->layouts;
  const onepass_walk *rows = &w->problem->rows;
  if (onepass_has(layouts, ONEPASS_ROLE_MEAN)) {
    onepass_store(layouts->of[ONEPASS_ROLE_MEAN].type, w->buffers.mean,
                  onepass_walk_offset(rows, ONEPASS_ROLE_MEAN, row), scale->mean);
  }
  if (onepass_has(layouts, ONEPASS_ROLE_RSTD)) {
    onepass_store(layouts->of[ONEPASS_ROLE_RSTD].type, w->buffers.rstd,
                  onepass_walk_offset(rows, ONEPASS_ROLE_RSTD, row), scale->rstd);
  }
}

/* ---- Forward
 * ------------------------------------------------------------------------------------------ */

static onepass_row_sums gather_piece(const work *w, int64_t row, int64_t begin, int64_t count,
                                     char *packed) {
  return w->problem->kernels->gather(piece_of(w, ONEPASS_ROLE_X, row, begin, count, packed), count);
}

static void apply_piece(const work *w, int64_t row, int64_t begin, int64_t count,
                        const onepass_row_scale *scale, char *packed) {
  const onepass_norm_problem *p = w->problem;
  const char *x = piece_of(w, ONEPASS_ROLE_X, row, begin, count, packed);
  p->kernels->apply(p, scale, piece_to_write(w, ONEPASS_ROLE_Y, row, begin, packed), x,
                    weight_at(p, w->buffers.weight, begin), weight_at(p, w->buffers.bias, begin),
                    count);
  finish_piece(w, ONEPASS_ROLE_Y, row, begin, count, packed);
}

static void forward_packed_row(const work *w, int64_t row, char *packed) {
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count;
  onepass_row_sums sums = {0};
  for (int64_t i = 0; i < n; i += ONEPASS_NORM_CHUNK) {
    const int64_t count = least(n - i, ONEPASS_NORM_CHUNK);
    onepass_merge_forward(p->op->statistic, &sums, (double)i,
                          gather_piece(w, row, i, count, packed), (double)count);
  }
  const onepass_row_scale scale = onepass_scale_row(p, sums);
  save(w, row, &scale);
  for (int64_t i = 0; i < n; i += ONEPASS_NORM_CHUNK) {
    apply_piece(w, row, i, least(n - i, ONEPASS_NORM_CHUNK), &scale, packed);
  }
}

static void forward_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  if (!w->problem->packed) {
    w->problem->kernels->forward_rows(w->problem, &w->buffers, begin, end);
    return;
  }
  for (int64_t row = begin; row < end; row++) forward_packed_row(w, row, scratch_for(w, worker));
}

/* ---- Forward, split: all sums, then all rows segment by segment
 * --------------------------------------- */

static onepass_row_sums *sums_of_row(const work *w, int64_t row) {
  return (onepass_row_sums *)(w->workspace + w->problem->sums_at) + row * chunks_of(w->problem);
}

static void gather_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t n = w->problem->elements.count;
  for (int64_t segment = begin; segment < end; segment++) {
    const int64_t first = segment * w->problem->segment,
                  last = least(first + w->problem->segment, n);
    for (int64_t row = 0; row < w->problem->rows.count; row++) {
      onepass_row_sums *sums = sums_of_row(w, row);
      for (int64_t i = first; i < last; i += ONEPASS_NORM_CHUNK) {
        sums[i / ONEPASS_NORM_CHUNK] =
            gather_piece(w, row, i, least(last - i, ONEPASS_NORM_CHUNK), scratch_for(w, worker));
      }
    }
  }
}

static onepass_row_scale *scale_of_row(const work *w, int64_t row) {
  return (onepass_row_scale *)(w->workspace + w->problem->scales_at) + row;
}

/* Leaves the sums of the whole row in place of those of its first chunk. */
static void merge_forward_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    onepass_row_sums *sums = sums_of_row(w, row);
    for (int64_t i = ONEPASS_NORM_CHUNK; i < n; i += ONEPASS_NORM_CHUNK) {
      onepass_merge_forward(p->op->statistic, sums, (double)i, sums[i / ONEPASS_NORM_CHUNK],
                            (double)least(n - i, ONEPASS_NORM_CHUNK));
    }
    onepass_row_scale *scale = scale_of_row(w, row);
    *scale = onepass_scale_row(p, *sums);
    save(w, row, scale);
  }
}

/* Backwards through the segments: what was gathered last is still in the cache. Pieces are short,
 * so that their weights stay in L1 for all rows; the same piece of the next row is fetched
 * meanwhile. */
static void apply_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t n = w->problem->elements.count;
  const int64_t rows = w->problem->rows.count;
  for (int64_t segment = end - 1; segment >= begin; segment--) {
    const int64_t first = segment * w->problem->segment;
    const int64_t last = least(first + w->problem->segment, n);
    for (int64_t i = first; i < last; i += APPLIED_TOGETHER) {
      for (int64_t row = 0; row < rows; row++) {
        onepass_row_scale scale = *scale_of_row(w, row);
        scale.soon_x = row_start(w, ONEPASS_ROLE_X, row + 1 < rows ? row + 1 : row, i);
        apply_piece(w, row, i, least(last - i, APPLIED_TOGETHER), &scale, scratch_for(w, worker));
      }
    }
  }
}

static void forward_split(work *w) {
  const onepass_norm_problem *p = w->problem;
  const int64_t segments = count_tasks(p);
  onepass_parallel(p->threads, segments, gather_segments, w);
  onepass_parallel(p->threads, p->rows.count, merge_forward_rows, w);
  onepass_parallel(p->threads, segments, apply_segments, w);
}

/* ---- Backward
 * ------------------------------------------------------------------------------------------ */

/* Sums of dweight and dbias over some rows for `count` elements: `recent` in the type of sums,
 * `total` in double. NULL where the plan has neither. */
typedef struct weight_sums {
  char *recent;
  double *total;
  int64_t begin, count; /* which elements */
  int64_t rows;         /* in `recent` */
} weight_sums;

static size_t sums_bytes(const work *w, int64_t count) {
  return (size_t)(count * onepass_type_size(onepass_type_of_sums(w->problem->type)));
}

static void start_weight_sums(const work *w, weight_sums *sums) {
  if (!sums->recent) return;
  memset(sums->recent, 0, 2 * sums_bytes(w, sums->count));
  memset(sums->total, 0, 2 * (size_t)sums->count * sizeof(double));
  sums->rows = 0;
}

static void add_recent(const work *w, weight_sums *sums) {
  if (!sums->recent || !sums->rows) return;
  if (w->problem->type == ONEPASS_TYPE_F64) {
    const double *recent = (const double *)sums->recent;
    for (int64_t i = 0; i < 2 * sums->count; i++) sums->total[i] += recent[i];
  } else {
    const float *recent = (const float *)sums->recent;
    for (int64_t i = 0; i < 2 * sums->count; i++) sums->total[i] += (double)recent[i];
  }
  memset(sums->recent, 0, 2 * sums_bytes(w, sums->count));
  sums->rows = 0;
}

static void count_summed_row(const work *w, weight_sums *sums) {
  if (++sums->rows == ROWS_SUMMED) add_recent(w, sums);
}

static onepass_row_sums gather_backward_piece(const work *w, int64_t row, int64_t begin,
                                              int64_t count, char *packed) {
  const onepass_norm_problem *p = w->problem;
  char *packed_dy = packed_part(p, packed, 1);
  const char *x = piece_of(w, ONEPASS_ROLE_X, row, begin, count, packed);
  const char *dy = piece_of(w, ONEPASS_ROLE_DY, row, begin, count, packed_dy);
  return p->kernels->gather_backward(x, dy, weight_at(p, w->buffers.weight, begin),
                                     saved_at(w, ONEPASS_ROLE_MEAN, row),
                                     saved_at(w, ONEPASS_ROLE_RSTD, row), count);
}

/* What is added to for element `begin` of the sums, dweight's part or dbias's, or NULL. */
static char *recent_at(const work *w, const weight_sums *sums, int64_t begin, int part) {
  if (!sums->recent) return NULL;
  return sums->recent + sums_bytes(w, begin - sums->begin + part * sums->count);
}

static void apply_backward_piece(const work *w, int64_t row, int64_t begin, int64_t count,
                                 const onepass_row_gradient *gradient, const weight_sums *sums,
                                 char *packed) {
  const onepass_norm_problem *p = w->problem;
  const char *x = piece_of(w, ONEPASS_ROLE_X, row, begin, count, packed);
  const char *dy = piece_of(w, ONEPASS_ROLE_DY, row, begin, count, packed_part(p, packed, 1));
  p->kernels->apply_backward(p, gradient, piece_to_write(w, ONEPASS_ROLE_DX, row, begin, packed), x,
                             dy, weight_at(p, w->buffers.weight, begin),
                             recent_at(w, sums, begin, 0), recent_at(w, sums, begin, 1), count);
  finish_piece(w, ONEPASS_ROLE_DX, row, begin, count, packed);
}

/* The same and, of the next row, what gather_backward_piece does. */
static onepass_row_sums apply_and_gather_piece(const work *w, int64_t row, int64_t begin,
                                               int64_t count, const onepass_row_gradient *gradient,
                                               const weight_sums *sums, char *packed) {
  const onepass_norm_problem *p = w->problem;
  if (p->packed) {
    apply_backward_piece(w, row, begin, count, gradient, sums, packed);
    return gather_backward_piece(w, row + 1, begin, count, packed);
  }
  const onepass_next_row next = {.x = row_start(w, ONEPASS_ROLE_X, row + 1, begin),
                                 .dy = row_start(w, ONEPASS_ROLE_DY, row + 1, begin),
                                 .mean = saved_at(w, ONEPASS_ROLE_MEAN, row + 1),
                                 .rstd = saved_at(w, ONEPASS_ROLE_RSTD, row + 1)};
  return p->kernels->apply_gather_backward(
      p, gradient, piece_to_write(w, ONEPASS_ROLE_DX, row, begin, packed),
      row_start(w, ONEPASS_ROLE_X, row, begin), row_start(w, ONEPASS_ROLE_DY, row, begin),
      weight_at(p, w->buffers.weight, begin), recent_at(w, sums, begin, 0),
      recent_at(w, sums, begin, 1), count, &next);
}

static onepass_row_gradient gradient_of(const work *w, int64_t row, onepass_row_sums sums) {
  return onepass_gradient_of_row(w->problem, sums, saved_at(w, ONEPASS_ROLE_MEAN, row),
                                 saved_at(w, ONEPASS_ROLE_RSTD, row));
}

/* While a piece is applied, this one is brought into the cache: it comes next. */
static void expect_soon(const work *w, onepass_row_gradient *gradient, int64_t row, int64_t begin) {
  gradient->soon_x = row_start(w, ONEPASS_ROLE_X, row, begin);
  gradient->soon_dy = row_start(w, ONEPASS_ROLE_DY, row, begin);
}

/* Rows begin..end. Pieces of the next row are gathered between pieces of this one, so that reads
 * from memory and writes to it overlap. */
static void backward_some_rows(const work *w, int64_t begin, int64_t end, weight_sums *weights,
                               char *packed) {
  const int64_t n = w->problem->elements.count, piece = ONEPASS_NORM_BACKWARD_CHUNK;
  onepass_row_sums next = {0};
  for (int64_t i = 0; i < n; i += piece) {
    onepass_merge_backward(&next, gather_backward_piece(w, begin, i, least(n - i, piece), packed));
  }
  for (int64_t row = begin; row < end; row++) {
    onepass_row_gradient gradient = gradient_of(w, row, next);
    next = (onepass_row_sums){0};
    for (int64_t i = 0; i < n; i += piece) {
      const int64_t count = least(n - i, piece);
      expect_soon(w, &gradient, row + 1 < end ? row + 1 : row, i);
      if (row + 1 == end) {
        apply_backward_piece(w, row, i, count, &gradient, weights, packed);
      } else {
        onepass_merge_backward(
            &next, apply_and_gather_piece(w, row, i, count, &gradient, weights, packed));
      }
    }
    count_summed_row(w, weights);
  }
}

static void backward_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  char *packed = scratch_for(w, worker);
  weight_sums weights = {.count = p->elements.count};
  if (!p->row_block) {
    backward_some_rows(w, begin, end, &weights, packed);
    return;
  }
  weights.recent = packed_part(p, packed, 3);
  for (int64_t block = begin; block < end; block++) {
    weights.total = (double *)(w->workspace + p->partials_at) + block * 2 * p->elements.count;
    start_weight_sums(w, &weights);
    backward_some_rows(w, block * p->row_block, least((block + 1) * p->row_block, p->rows.count),
                       &weights, packed);
    add_recent(w, &weights);
  }
}

static void store_weight_gradient(const work *w, onepass_role role, int64_t element, double value) {
  if (!onepass_has(&w->plan->layouts, role)) return;
  onepass_store(w->plan->layouts.of[role].type, onepass_buffer(&w->buffers, role),
                onepass_walk_offset(&w->problem->elements, role, element), value);
}

/* Elements begin..end of dweight and dbias from the partials of all blocks of rows, in their order.
 */
static void add_partials(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t n = w->problem->elements.count;
  const int64_t blocks = divide_up(w->problem->rows.count, w->problem->row_block);
  const double *partials = (const double *)(w->workspace + w->problem->partials_at);
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    double dweight = 0, dbias = 0;
    for (int64_t block = 0; block < blocks; block++) {
      dweight += partials[block * 2 * n + i];
      dbias += partials[block * 2 * n + n + i];
    }
    store_weight_gradient(w, ONEPASS_ROLE_DWEIGHT, i, dweight);
    store_weight_gradient(w, ONEPASS_ROLE_DBIAS, i, dbias);
  }
}

/* ---- Backward, split
 * -------------------------------------------------------------------------------- */

static void gather_backward_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t n = w->problem->elements.count, piece = ONEPASS_NORM_BACKWARD_CHUNK;
  for (int64_t segment = begin; segment < end; segment++) {
    const int64_t first = segment * w->problem->segment,
                  last = least(first + w->problem->segment, n);
    for (int64_t row = 0; row < w->problem->rows.count; row++) {
      onepass_row_sums *sums = sums_of_row(w, row);
      for (int64_t i = first; i < last; i += piece) {
        sums[i / piece] =
            gather_backward_piece(w, row, i, least(last - i, piece), scratch_for(w, worker));
      }
    }
  }
}

static void merge_backward_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    onepass_row_sums *sums = sums_of_row(w, row);
    for (int64_t i = 1; i < chunks_of(w->problem); i++) onepass_merge_backward(sums, sums[i]);
  }
}

/* Elements begin..end of all rows, and of dweight and dbias. */
static void apply_backward_columns(const work *w, int64_t begin, int64_t end, char *packed) {
  const onepass_norm_problem *p = w->problem;
  weight_sums weights = {0};
  if (sums_weights(&w->plan->layouts)) {
    weights.begin = begin;
    weights.count = end - begin;
    weights.total = (double *)packed_part(p, packed, 3);
    weights.recent = (char *)(weights.total + 2 * APPLIED_TOGETHER);
    start_weight_sums(w, &weights);
  }
  for (int64_t row = 0; row < p->rows.count; row++) {
    onepass_row_gradient gradient = gradient_of(w, row, *sums_of_row(w, row));
    expect_soon(w, &gradient, row + 1 < p->rows.count ? row + 1 : row, begin);
    apply_backward_piece(w, row, begin, end - begin, &gradient, &weights, packed);
    count_summed_row(w, &weights);
  }
  add_recent(w, &weights);
  for (int64_t i = 0; i < weights.count; i++) {
    store_weight_gradient(w, ONEPASS_ROLE_DWEIGHT, begin + i, weights.total[i]);
    store_weight_gradient(w, ONEPASS_ROLE_DBIAS, begin + i, weights.total[weights.count + i]);
  }
}

static void apply_backward_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t n = w->problem->elements.count;
  for (int64_t segment = end - 1; segment >= begin; segment--) {
    const int64_t first = segment * w->problem->segment;
    const int64_t last = least(first + w->problem->segment, n);
    for (int64_t i = first; i < last; i += APPLIED_TOGETHER) {
      apply_backward_columns(w, i, least(i + APPLIED_TOGETHER, last), scratch_for(w, worker));
    }
  }
}

static void backward_split(work *w) {
  const onepass_norm_problem *p = w->problem;
  const int64_t segments = count_tasks(p);
  onepass_parallel(p->threads, segments, gather_backward_segments, w);
  onepass_parallel(p->threads, p->rows.count, merge_backward_rows, w);
  onepass_parallel(p->threads, segments, apply_backward_segments, w);
}

/* ---- Columns
 * ------------------------------------------------------------------------------------------ */

static void do_strips(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const onepass_walk others = onepass_walk_without(&p->rows, p->lane_axis);
  const int64_t lanes = p->rows.size[p->lane_axis], strips = divide_up(lanes, p->strip);
  const int64_t size = onepass_type_size(p->type);
  double *scratch = (double *)scratch_for(w, worker);
  for (int64_t task = begin; task < end; task++) {
    const int64_t first = task % strips * p->strip, width = least(p->strip, lanes - first);
    char *at[ONEPASS_ROLE_COUNT] = {NULL};
    for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
      if (!(w->plan->layouts.present & whole_roles & ONEPASS_BIT(role))) continue;
      at[role] = onepass_buffer(&w->buffers, role) +
                 (onepass_walk_offset(&others, role, task / strips) + first) * size;
    }
    if (p->backward) {
      p->kernels->backward_columns(p, at[ONEPASS_ROLE_DX], at[ONEPASS_ROLE_X], at[ONEPASS_ROLE_DY],
                                   width, scratch);
    } else {
      p->kernels->forward_columns(p, at[ONEPASS_ROLE_Y], at[ONEPASS_ROLE_X], width, scratch);
    }
  }
}

/* ---- Running
 * ------------------------------------------------------------------------------------------ */

static void pack_weights(work *w) {
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count, size = onepass_type_size(p->weight_type);
  char *dense = w->workspace + p->weights_at;
  if (w->buffers.weight) {
    onepass_pack(dense, w->buffers.weight, &p->elements, ONEPASS_ROLE_WEIGHT, size, 0, n);
    w->buffers.weight = dense;
  }
  if (w->buffers.bias) {
    onepass_pack(dense + n * size, w->buffers.bias, &p->elements, ONEPASS_ROLE_BIAS, size, 0, n);
    w->buffers.bias = dense + n * size;
  }
}

void onepass_norm_run_cpu(const onepass_plan *plan, const onepass_buffers *buffers,
                          void *workspace) {
  const onepass_norm_problem *p = &plan->problem.norm;
  work w = {.plan = plan, .problem = p, .buffers = *buffers, .workspace = workspace};
  if (p->packed_weights) pack_weights(&w);
  switch (p->strategy) {
    case ONEPASS_NORM_COLUMNS:
      onepass_parallel(p->threads, count_tasks(p), do_strips, &w);
      break;
    case ONEPASS_NORM_SPLIT:
      (p->backward ? backward_split : forward_split)(&w);
      break;
    default:
      onepass_parallel(p->threads, count_tasks(p), p->backward ? backward_rows : forward_rows, &w);
      if (p->row_block) onepass_parallel(p->threads, p->elements.count, add_partials, &w);
  }
}

/* No elements: the statistics of rows without elements are NaN, sums over no rows are 0. */
void onepass_norm_run_empty(const onepass_plan *plan, const onepass_buffers *buffers,
                            void *workspace) {
  (void)workspace;
  const onepass_norm_problem *p = &plan->problem.norm;
  const work w = {.plan = plan, .problem = p, .buffers = *buffers};
  const onepass_row_scale nothing = {.mean = NAN, .rstd = NAN};
  for (int64_t row = 0; !p->backward && row < p->rows.count; row++) save(&w, row, &nothing);
  for (int64_t i = 0; p->backward && i < p->elements.count; i++) {
    store_weight_gradient(&w, ONEPASS_ROLE_DWEIGHT, i, 0);
    store_weight_gradient(&w, ONEPASS_ROLE_DBIAS, i, 0);
  }
}
