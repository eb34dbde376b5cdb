/* How the CPU goes about a normalization: the strategy, the pieces, the threads, the workspace. */
#include "cpu/machine.h"
#include "norm/cpu_work.h"

enum {
  SEGMENT = 131072,            /* SPLIT: elements of all rows that a thread does together */
  MOST_ROW_BLOCKS = 64,        /* ROWS backward: partial dweights */
  LEAST_ROW_BLOCK = 16,        /* rows a partial dweight is worth */
  MOST_SUMMED_BY_ROWS = 16384, /* longer rows sum dweight by columns: partials would leave L2 */
  LEAST_STREAMED_ROW = 2048,   /* bytes; shorter rows have too many unaligned ends to stream */
  LEAST_ROWS_WIDENED = 16,     /* fewer do not pay for widening their weights */
  NARROWEST_STRIP = 64,        /* COLUMNS: rows side by side that are done together, */
  WIDEST_STRIP = 2048,    /* as many as possible: each step to the next element is one far away */
  LEAST_LANES = 8,        /* COLUMNS: fewer rows side by side are packed instead */
  LONGEST_TURNED = 64,    /* ROWS: bytes, in the type of sums, of rows that are turned, */
  TURNED_STRIP = 64,      /* so many at a time */
  LEAST_CHANNELS = 4,     /* LANES: fewer channels side by side are packed instead */
  CHANNEL_STRIP = 512,    /* LANES: channels done together */
  STAGED_STRIP = 128,     /* likewise, if they are staged */
  LONGEST_SPREAD = 256,   /* CELLS: elements of a cell for each of which there is a weight */
  LEAST_CELL_ALONE = 2048 /* CELLS: bytes; batch_norm takes shorter cells as they lie in memory */
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
      dense &= rows->stride[axis][role] == 1;
    }
    if (dense) return axis;
  }
  return -1;
}

/* Of a level, or, for what it has no kernels of its own, of the one below. */
static const onepass_norm_kernels *kernels_at(onepass_vector_level level,
                                              onepass_statistic statistic, onepass_type type) {
#if defined(__x86_64__)
  const onepass_norm_kernels *kernels = NULL;
  if (level == ONEPASS_VECTOR_AVX512) kernels = onepass_norm_kernels_avx512(statistic, type);
  if (kernels) return kernels;
  return level == ONEPASS_VECTOR_BASELINE ? onepass_norm_kernels_sse2(statistic, type)
                                          : onepass_norm_kernels_avx2(statistic, type);
#elif defined(__aarch64__)
  const onepass_norm_kernels *kernels = NULL;
#if defined(ONEPASS_HAS_NEON_BF16)
  if (level == ONEPASS_VECTOR_NEON_BF16) kernels = onepass_norm_kernels_neon_bf16(statistic, type);
#endif
  (void)level;
  return kernels ? kernels : onepass_norm_kernels_neon(statistic, type);
#else
  (void)level;
  return onepass_norm_kernels_generic(statistic, type);
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

/* Whether rows of n elements can wait in a cache while their statistic is made. */
static bool can_wait(const onepass_norm_problem *p, int64_t rows, int64_t n, int64_t weight_bytes,
                     int threads) {
  const int64_t row_bytes = bytes_read_together(p, n);
  if (row_bytes <= onepass_this_machine()->l2) return true;
  /* Rows beyond L2 can still wait in the last level, if there are enough of them to keep reading
   * the next while writing this one, and if it holds both, and the weights that every row needs;
   * but not for weights that take longer to read from there than the row takes from memory. */
  const bool fits = row_bytes <= (onepass_this_machine()->last - weight_bytes) / (2 * threads);
  return fits && weight_bytes <= row_bytes && rows >= 4 * (int64_t)threads;
}

/* Whether channels lie side by side and what is behind them does not, or is nothing. */
static bool has_lanes(const onepass_layouts *layouts, const onepass_norm_problem *p) {
  const bool single = p->spatial.count == 1;
  if (!single && (p->channels < LEAST_CHANNELS || all_dense(layouts, whole_roles, &p->spatial))) {
    return false;
  }
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!(layouts->present & whole_roles & ONEPASS_BIT(role))) continue;
    if (p->channels > 1 && p->cells.stride[1][role] != 1) return false;
  }
  return true;
}

/* Whether threads with a row less than others wait for a fourth of the time or more, and all that is read waits in their
 * caches, so that rows taken apart cost nothing. */
static bool are_shared_badly(const onepass_norm_problem *p, int threads) {
  const int64_t rows = p->rows.count;
  const int64_t idle = onepass_divide_up(rows, threads) * threads - rows;
  return rows < 4 * (int64_t)threads && idle > rows / 4 &&
         bytes_read_together(p, p->elements.count) <= onepass_this_machine()->l2 / rows * threads;
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
  if (side_by_side && p->elements.ndim <= 1 && p->lane_axis >= 0 && !p->staging) {
    return ONEPASS_NORM_COLUMNS;
  }
  if (n > chunk_of(p) && (rows < threads || are_shared_badly(p, threads))) {
    return ONEPASS_NORM_SPLIT;
  }
  return can_wait(p, rows, n, bytes_of_weights(layouts), threads) ? ONEPASS_NORM_ROWS
                                                                  : ONEPASS_NORM_SPLIT;
}

/* By channel the choice never shows in the bits. */
static onepass_norm_strategy choose_by_channel(const onepass_layouts *layouts,
                                               const onepass_norm_problem *p, int threads) {
  const bool batch = p->op->view == ONEPASS_VIEW_CHANNELS;
  if (has_lanes(layouts, p)) {
    const int64_t slab = p->channels * p->spatial.count;
    const bool waits = !batch && !p->use_running && p->batches >= threads &&
                       can_wait(p, p->batches, slab, 0, threads);
    return waits ? ONEPASS_NORM_LANES : ONEPASS_NORM_SPLIT_LANES;
  }
  const int64_t rows = p->rows.count, n = p->elements.count;
  const bool scattered = batch && p->spatial.count * onepass_type_size(p->type) < LEAST_CELL_ALONE;
  const bool waits = !p->use_running && !scattered && (rows >= threads || n <= chunk_of(p)) &&
                     can_wait(p, rows, n, 0, threads);
  return waits ? ONEPASS_NORM_CELLS : ONEPASS_NORM_SPLIT_CELLS;
}

/* Whether weights of a half type are better made f32 once than widened again for every row: there
 * are many rows, and they still fit in the first-level cache beside the rows. */
static bool worth_widening(const onepass_layouts *layouts, const onepass_norm_problem *p) {
  const int64_t most = onepass_this_machine()->l1 / 2 / (2 * (int64_t)sizeof(float)); /* of each */
  return (layouts->present & weight_roles) && onepass_type_size(p->weight_type) < 4 &&
         !p->packed_weights && p->rows.count >= LEAST_ROWS_WIDENED && p->elements.count <= most;
}

/* Whole chunks, and as many segments for every thread. */
static int64_t choose_segment(const onepass_norm_problem *p, int threads) {
  const int64_t chunk = chunk_of(p), chunks = onepass_divide_up(p->elements.count, chunk);
  const int64_t segments = onepass_round_up(onepass_divide_up(chunks, SEGMENT / chunk), threads);
  return onepass_divide_up(chunks, segments) * chunk;
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

/* Wide, even if a strip then leaves the second-level cache before it is read again, but a share for every thread, and
 * whole cache lines. */
static int64_t choose_strip(const onepass_norm_problem *p, int threads) {
  const int64_t lanes = p->rows.size[p->lane_axis], others = p->rows.count / lanes;
  int64_t strips = onepass_divide_up(lanes, WIDEST_STRIP);
  if (others < 4 * (int64_t)threads) strips = onepass_round_up(strips, threads);
  return onepass_round_up(onepass_divide_up(lanes, strips), NARROWEST_STRIP);
}

/* What is kept of a slab of LANES: sums of chunks, and values of channels. */
static size_t bytes_of_slab(const onepass_norm_problem *p) {
  const size_t room = (size_t)(p->channels + 15) / 16 * 16;
  return (size_t)p->chunks * 3 * (size_t)p->channels * sizeof(double) +
         ONEPASS_LANE_VALUES * room * (size_t)onepass_type_size(onepass_type_of_sums(p->type));
}

static size_t scratch_of(const onepass_norm_problem *p, bool summing) {
  const size_t sums_size = (size_t)onepass_type_size(onepass_type_of_sums(p->type));
  const size_t n = (size_t)p->elements.count, strip = (size_t)p->strip;
  if (p->strategy == ONEPASS_NORM_COLUMNS) return onepass_norm_strip_bytes(p);
  if (p->strategy == ONEPASS_NORM_LANES || p->strategy == ONEPASS_NORM_SPLIT_LANES) {
    size_t lanes = (strip + 16) * ONEPASS_LANE_SCRATCH * sums_size;
    if (p->staging) lanes += 3 * ONEPASS_LANE_BLOCK * strip * sums_size;
    if (p->strategy == ONEPASS_NORM_LANES) lanes += 64 + bytes_of_slab(p);
    return lanes;
  }
  size_t size = (size_t)onepass_pieces_kept(p) * onepass_piece_bytes(p);
  if (summing && p->strategy == ONEPASS_NORM_ROWS) size += 2 * n * sums_size;
  if (p->keeps_dy) size += n * sums_size;
  if (summing && p->strategy == ONEPASS_NORM_SPLIT) {
    size += 2 * ONEPASS_NORM_APPLIED * (sums_size + sizeof(double));
  }
  if (p->turned) size = (size + 63) / 64 * 64 + onepass_norm_strip_bytes(p);
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
  const size_t cells = (size_t)(p->runs_are_rows ? p->rows.count : p->cells.count);
  if (p->strategy == ONEPASS_NORM_SPLIT_CELLS ||
      (p->strategy == ONEPASS_NORM_CELLS && p->backward)) {
    p->sums_at = place(&end, cells * (size_t)p->chunks * sizeof(onepass_row_sums));
  }
  if (p->strategy == ONEPASS_NORM_SPLIT_CELLS) {
    p->scales_at = place(
        &end, rows * (p->backward ? sizeof(onepass_row_gradient) : sizeof(onepass_row_scale)));
  }
  if (p->strategy == ONEPASS_NORM_SPLIT_LANES) {
    const size_t slabs = p->op->view == ONEPASS_VIEW_CHANNELS ? 1 : (size_t)p->batches;
    const size_t sums = (size_t)p->chunks * 3 * (size_t)p->channels * sizeof(double);
    p->sums_at = place(&end, slabs * sums);
    p->scales_at = place(&end, slabs * (bytes_of_slab(p) - sums));
  }
  if (p->moves_running || (summing && onepass_norm_by_channel(p))) {
    p->moments_at = place(&end, (size_t)p->cells.count * 2 * sizeof(double));
  }
  if (summing && p->strategy == ONEPASS_NORM_ROWS) {
    p->partials_at = place(&end, (size_t)p->tasks * 2 * n * sizeof(double));
  }
  if (p->spreads_weights) {
    const int64_t spread = 2 * p->channels * p->spatial.count;
    p->weights_at =
        place(&end, (size_t)(spread * onepass_type_size(onepass_type_of_sums(p->type))));
  }
  if ((p->packed_weights || p->widen_weights) && has_weights) {
    p->weights_at = place(&end, 2 * n * (size_t)onepass_type_size(p->held_weight_type));
  }
  p->scratch_size = (scratch_of(p, summing) + 63) / 64 * 64;
  p->scratch_at = place(&end, p->scratch_size * (size_t)p->threads);
  return end;
}

static const char *const kernel_names[ONEPASS_NORM_STRATEGY_COUNT][2] = {
    [ONEPASS_NORM_ROWS] = {"rows", "packed_rows"},
    [ONEPASS_NORM_SPLIT] = {"split_rows", "packed_split_rows"},
    [ONEPASS_NORM_COLUMNS] = {"columns", "columns"},
    [ONEPASS_NORM_CELLS] = {"cells", "packed_cells"},
    [ONEPASS_NORM_SPLIT_CELLS] = {"split_cells", "packed_split_cells"},
    [ONEPASS_NORM_LANES] = {"lanes", "lanes"},
    [ONEPASS_NORM_SPLIT_LANES] = {"split_lanes", "split_lanes"}};

/* Something is done besides the norm: pieces go through scratch memory, in the type of sums. */
static bool is_fused(const onepass_plan *plan) {
  const unsigned fused = ONEPASS_BIT(ONEPASS_ROLE_RESIDUAL) | ONEPASS_BIT(ONEPASS_ROLE_DSUM);
  return plan->problem.norm.activation || (plan->layouts.present & fused);
}

static void choose_kernels(onepass_plan *plan, onepass_vector_level level) {
  onepass_norm_problem *p = &plan->problem.norm;
  const onepass_statistic statistic = p->op->statistic;
  const onepass_type wide = onepass_type_of_sums(p->type);
  const onepass_norm_kernels *own = kernels_at(level, statistic, p->type);
  p->held_weight_type = p->weight_type;
  if (onepass_sums_weights(&plan->layouts)) {
    p->narrow_sums = kernels_at(level, statistic, p->weight_type)->narrow_sums;
  }
  if (is_fused(plan)) {
    p->staging = own;
    p->held_weight_type = wide;
    if (p->weight_type != wide && !p->packed_weights) p->widen_weights = own->widen_weights;
    p->kernels = kernels_at(level, statistic, wide);
    return;
  }
  if (worth_widening(&plan->layouts, p)) {
    p->widen_weights = own->widen_weights;
    p->held_weight_type = wide;
  }
  p->kernels = own;
}

static int64_t count_channel_tasks(const onepass_norm_problem *p) {
  if (p->strategy == ONEPASS_NORM_CELLS) return p->rows.count;
  if (p->strategy == ONEPASS_NORM_LANES) return p->batches;
  return INT64_MAX; /* there are several numbers of pieces; none limits the threads */
}

/* Weights are not read by the kernels: they become part of each channel's scale. */
static void plan_channels(onepass_plan *plan, int threads, onepass_vector_level level) {
  onepass_norm_problem *p = &plan->problem.norm;
  const onepass_type wide = onepass_type_of_sums(p->type);
  const bool summing = p->backward && onepass_sums_weights(&plan->layouts);
  p->packed = !all_dense(&plan->layouts, whole_roles, &p->spatial);
  p->kernels = kernels_at(level, p->op->statistic, p->type);
  p->held_weight_type = wide;
  if (is_fused(plan)) {
    p->staging = p->kernels;
    p->kernels = kernels_at(level, p->op->statistic, wide);
  }
  p->moves_running =
      !p->backward && !p->use_running && onepass_has(&plan->layouts, ONEPASS_ROLE_RUNNING_MEAN);
  threads = onepass_threads_worth(threads, plan->info.bytes);
  p->strategy = choose_by_channel(&plan->layouts, p, threads);
  if (p->strategy == ONEPASS_NORM_LANES || p->strategy == ONEPASS_NORM_SPLIT_LANES) {
    p->packed = false;
    p->strip = p->staging ? STAGED_STRIP : CHANNEL_STRIP;
    p->chunks = onepass_divide_up(
        p->op->view == ONEPASS_VIEW_CHANNELS ? p->elements.count : p->spatial.count,
        ONEPASS_LANE_CHUNK);
  } else {
    p->runs_are_rows = !p->backward && p->op->view == ONEPASS_VIEW_GROUPS &&
                       all_dense(&plan->layouts, whole_roles, &p->elements);
    const bool has_weights = plan->layouts.present & weight_roles;
    p->applies_rows = p->runs_are_rows && (!has_weights || p->spatial.count <= LONGEST_SPREAD);
    p->spreads_weights = p->applies_rows && has_weights;
    const int64_t run = p->runs_are_rows ? p->elements.count : p->spatial.count;
    const bool one_sum = p->backward && p->strategy == ONEPASS_NORM_CELLS;
    p->chunks = one_sum ? 1 : onepass_divide_up(run, chunk_of(p));
    p->stream = !p->packed && !p->staging &&
                (p->applies_rows ? run : p->spatial.count) * onepass_type_size(p->type) >=
                    LEAST_STREAMED_ROW &&
                plan->info.bytes > onepass_this_machine()->last;
  }
  p->tasks = count_channel_tasks(p);
  p->threads = p->tasks < threads ? (int)p->tasks : threads;
  plan->info.kernel = kernel_names[p->strategy][p->packed];
  plan->info.threads = p->threads;
  plan->info.workspace = lay_out_workspace(p, summing, false);
}

void onepass_norm_choose_cpu(onepass_plan *plan, int threads, onepass_vector_level level) {
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
  if (onepass_norm_by_channel(p)) {
    plan_channels(plan, threads, level);
    return;
  }
  p->packed = !all_dense(&plan->layouts, whole_roles, &p->elements);
  p->packed_weights = !all_dense(&plan->layouts, weight_roles, &p->elements);
  choose_kernels(plan, level);
  p->lane_axis = find_lane_axis(&plan->layouts, &p->rows);
  threads = onepass_threads_worth(threads, plan->info.bytes);
  p->strategy = choose_strategy(&plan->layouts, p, threads);
  if (p->strategy == ONEPASS_NORM_COLUMNS) p->strip = choose_strip(p, threads);
  if (p->strategy == ONEPASS_NORM_SPLIT) p->segment = choose_segment(p, threads);
  if (p->strategy == ONEPASS_NORM_ROWS && summing) {
    const int64_t even = onepass_divide_up(p->rows.count, MOST_ROW_BLOCKS);
    p->row_block = even > LEAST_ROW_BLOCK ? even : LEAST_ROW_BLOCK;
  }
  const int64_t most_turned = LONGEST_TURNED / onepass_type_size(onepass_type_of_sums(p->type));
  p->turned = p->strategy == ONEPASS_NORM_ROWS && !p->packed && !p->staging && p->rows.ndim <= 1 &&
              p->rows.count >= TURNED_STRIP && p->elements.count <= most_turned;
  if (p->turned) p->strip = TURNED_STRIP;
  p->keeps_dy = p->backward && p->activation && p->strategy == ONEPASS_NORM_ROWS &&
                p->elements.count <= MOST_SUMMED_BY_ROWS;
  p->chunks = onepass_divide_up(p->elements.count, chunk_of(p));
  p->tasks = count_tasks(p);
  p->threads = p->tasks < threads ? (int)p->tasks : threads;
  p->stream = !p->packed && !p->staging &&
              p->elements.count * onepass_type_size(p->type) >= LEAST_STREAMED_ROW &&
              plan->info.bytes > onepass_this_machine()->last;
  plan->info.kernel = p->turned ? "turned_rows" : kernel_names[p->strategy][p->packed];
  plan->info.threads = p->threads;
  plan->info.workspace = lay_out_workspace(p, summing, plan->layouts.present & weight_roles);
}
