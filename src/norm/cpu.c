/* A normalization on CPU threads: what each thread does with the kernels, strategy by strategy. */
#include <math.h>

#include "cpu/threads.h"
#include "norm/cpu_work.h"

enum {
  ROWS_SUMMED = 64, /* rows whose dweight is summed before double takes over; whole batches */
  BATCH = 16,       /* short rows that are in flight together */
  SHORT_BACKWARD =
      512 /* bytes of a row; for longer ones it counts more that reads and writes overlap */
};

/* ---- Pieces of rows -------------------------------------------------------------------------- */

typedef onepass_norm_work work;

static char *scratch_for(const work *w, int worker) { return onepass_scratch_for(w, worker); }

static onepass_stretch row_at(const work *w, int64_t row) {
  return (onepass_stretch){&w->problem->rows, row, &w->problem->elements};
}

static bool is_in_scratch(const onepass_norm_problem *p) { return p->packed || p->staging; }

/* Where element `begin` of a row is, or, of rows that go through scratch memory, any address: for
 * prefetching. */
static const char *row_start(const work *w, onepass_role role, int64_t row, int64_t begin) {
  const onepass_stretch run = row_at(w, row);
  if (is_in_scratch(w->problem)) return onepass_buffer(&w->buffers, role);
  return onepass_element_at(w, role, &run, begin);
}

static const char *weight_at(const onepass_norm_problem *p, const void *weight, int64_t element) {
  return weight ? (const char *)weight + element * onepass_type_size(p->held_weight_type) : NULL;
}

static double saved_at(const work *w, onepass_role role, int64_t row) {
  return onepass_saved_at(w, role, row);
}

/* ---- Forward --------------------------------------------------------------------------------- */

static onepass_row_sums gather_piece(const work *w, int64_t row, int64_t begin, int64_t count,
                                     char *scratch) {
  const onepass_stretch run = row_at(w, row);
  return w->problem->kernels->gather(onepass_read_summed(w, &run, begin, count, false, scratch),
                                     count);
}

static void apply_piece(const work *w, int64_t row, int64_t begin, int64_t count,
                        const onepass_row_scale *scale, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const onepass_stretch run = row_at(w, row);
  const char *x = onepass_read_summed(w, &run, begin, count, true, scratch);
  p->kernels->apply(p, scale, onepass_place_to_write(w, ONEPASS_ROLE_Y, &run, begin, scratch), x,
                    weight_at(p, w->buffers.weight, begin), weight_at(p, w->buffers.bias, begin),
                    count);
  onepass_finish_piece(w, ONEPASS_ROLE_Y, &run, begin, count, scratch);
}

static void forward_packed_row(const work *w, int64_t row, char *packed) {
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count;
  onepass_row_sums sums = {0};
  for (int64_t i = 0; i < n; i += ONEPASS_NORM_CHUNK) {
    const int64_t count = onepass_least(n - i, ONEPASS_NORM_CHUNK);
    onepass_merge_forward(p->op->statistic, &sums, (double)i,
                          gather_piece(w, row, i, count, packed), (double)count);
  }
  const onepass_row_scale scale = onepass_scale_row(p, sums);
  onepass_save_row(w, row, &scale);
  for (int64_t i = 0; i < n; i += ONEPASS_NORM_CHUNK) {
    apply_piece(w, row, i, onepass_least(n - i, ONEPASS_NORM_CHUNK), &scale, packed);
  }
}

static void forward_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  if (w->problem->turned) {
    onepass_norm_forward_turned(w, worker, begin, end);
  } else if (!is_in_scratch(w->problem)) {
    w->problem->kernels->forward_rows(w->problem, &w->buffers, begin, end);
  } else {
    for (int64_t row = begin; row < end; row++) forward_packed_row(w, row, scratch_for(w, worker));
  }
}

/* ---- Forward, split: all sums, then all rows segment by segment ------------------------------ */

static onepass_row_sums *sums_of_row(const work *w, int64_t row) {
  return (onepass_row_sums *)(w->workspace + w->problem->sums_at) + row * w->problem->chunks;
}

static void gather_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t n = w->problem->elements.count;
  for (int64_t segment = begin; segment < end; segment++) {
    const int64_t first = segment * w->problem->segment,
                  last = onepass_least(first + w->problem->segment, n);
    for (int64_t row = 0; row < w->problem->rows.count; row++) {
      onepass_row_sums *sums = sums_of_row(w, row);
      for (int64_t i = first; i < last; i += ONEPASS_NORM_CHUNK) {
        sums[i / ONEPASS_NORM_CHUNK] = gather_piece(
            w, row, i, onepass_least(last - i, ONEPASS_NORM_CHUNK), scratch_for(w, worker));
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
                            (double)onepass_least(n - i, ONEPASS_NORM_CHUNK));
    }
    onepass_row_scale *scale = scale_of_row(w, row);
    *scale = onepass_scale_row(p, *sums);
    onepass_save_row(w, row, scale);
  }
}

/* Backwards through the segments: what was gathered last is still in the cache. Pieces are short,
 * so that their weights stay in L1 for all rows; what comes next, mostly the same piece of the next
 * row, is fetched meanwhile. */
static void apply_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count, rows = p->rows.count;
  const bool has_weights = w->buffers.weight || w->buffers.bias;
  const int64_t piece = has_weights || is_in_scratch(p) ? ONEPASS_NORM_APPLIED : p->segment;
  for (int64_t segment = end - 1; segment >= begin; segment--) {
    const int64_t first = segment * p->segment, last = onepass_least(first + p->segment, n);
    for (int64_t i = first; i < last; i += piece) {
      for (int64_t row = 0; row < rows; row++) {
        onepass_row_scale scale = *scale_of_row(w, row);
        const bool more_rows = row + 1 < rows;
        if (has_weights && (more_rows || i + piece < n)) {
          scale.soon_x =
              row_start(w, ONEPASS_ROLE_X, more_rows ? row + 1 : 0, more_rows ? i : i + piece);
        }
        apply_piece(w, row, i, onepass_least(last - i, piece), &scale, scratch_for(w, worker));
      }
    }
  }
}

static void forward_split(work *w) {
  const onepass_norm_problem *p = w->problem;
  const int64_t segments = p->tasks;
  onepass_parallel(p->threads, segments, gather_segments, w);
  onepass_parallel(p->threads, p->rows.count, merge_forward_rows, w);
  onepass_parallel(p->threads, segments, apply_segments, w);
}

/* ---- Backward -------------------------------------------------------------------------------- */

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

/* x, and dy as it was before the activation. */
typedef struct pair {
  const char *x, *dy;
} pair;

/* Where dy is on its way. A row that is kept is behind everything else in the scratch. */
static char *staged_dy(const work *w, int64_t begin, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  if (!p->keeps_dy) return onepass_piece_at(p, scratch, ONEPASS_STAGED_DY);
  const int64_t before = p->row_block ? 2 * p->elements.count : 0; /* the sums of weights */
  return onepass_piece_at(p, scratch, ONEPASS_PIECES) + sums_bytes(w, before + begin);
}

/* To gather or, `again`, to apply. */
static pair read_pair(const work *w, int64_t row, int64_t begin, int64_t count, bool again,
                      char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const onepass_stretch run = row_at(w, row);
  char *staged = staged_dy(w, begin, scratch);
  pair both = {onepass_read_x(w, &run, begin, count, scratch), staged};
  if (again && p->keeps_dy) return both;
  both.dy = onepass_read_dy(w, &run, begin, count, staged, scratch);
  if (p->activation) {
    const onepass_row_scale before = onepass_scale_by_saved(saved_at(w, ONEPASS_ROLE_MEAN, row),
                                                            saved_at(w, ONEPASS_ROLE_RSTD, row));
    onepass_pass_activation(w, both.x, staged, &before, weight_at(p, w->buffers.weight, begin),
                            weight_at(p, w->buffers.bias, begin), count, scratch);
  }
  return both;
}

static onepass_row_sums gather_backward_piece(const work *w, int64_t row, int64_t begin,
                                              int64_t count, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const pair both = read_pair(w, row, begin, count, false, scratch);
  return p->kernels->gather_backward(p, both.x, both.dy, weight_at(p, w->buffers.weight, begin),
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
                                 char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const onepass_stretch run = row_at(w, row);
  const pair both = read_pair(w, row, begin, count, true, scratch);
  p->kernels->apply_backward(p, gradient,
                             onepass_place_to_write(w, ONEPASS_ROLE_DX, &run, begin, scratch),
                             both.x, both.dy, weight_at(p, w->buffers.weight, begin),
                             recent_at(w, sums, begin, 0), recent_at(w, sums, begin, 1), count);
  onepass_finish_piece(w, ONEPASS_ROLE_DX, &run, begin, count, scratch);
}

/* The same and, of the next row, what gather_backward_piece does. */
static onepass_row_sums apply_and_gather_piece(const work *w, int64_t row, int64_t begin,
                                               int64_t count, const onepass_row_gradient *gradient,
                                               const weight_sums *sums, char *packed) {
  const onepass_norm_problem *p = w->problem;
  const onepass_stretch run = row_at(w, row);
  if (is_in_scratch(p)) {
    apply_backward_piece(w, row, begin, count, gradient, sums, packed);
    return gather_backward_piece(w, row + 1, begin, count, packed);
  }
  const onepass_next_row next = {.x = row_start(w, ONEPASS_ROLE_X, row + 1, begin),
                                 .dy = row_start(w, ONEPASS_ROLE_DY, row + 1, begin),
                                 .mean = saved_at(w, ONEPASS_ROLE_MEAN, row + 1),
                                 .rstd = saved_at(w, ONEPASS_ROLE_RSTD, row + 1)};
  return p->kernels->apply_gather_backward(
      p, gradient, onepass_place_to_write(w, ONEPASS_ROLE_DX, &run, begin, packed),
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

/* The first element of a row that is dense. */
static char *dense_row(const work *w, onepass_role role, int64_t row) {
  const onepass_norm_problem *p = w->problem;
  return onepass_buffer(&w->buffers, role) +
         onepass_walk_offset(&p->rows, role, row) * onepass_type_size(p->type);
}

/* Short rows spend their time on what comes once a row, so a batch of them is gathered, then applied. */
static void backward_batch(const work *w, int64_t first, int64_t count,
                           const weight_sums *weights) {
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count;
  onepass_next_row rows[BATCH];
  onepass_row_gradient gradients[BATCH];
  for (int64_t i = 0; i < count; i++) {
    onepass_row_sums sums = {0};
    rows[i] = (onepass_next_row){
        dense_row(w, ONEPASS_ROLE_X, first + i), dense_row(w, ONEPASS_ROLE_DY, first + i),
        saved_at(w, ONEPASS_ROLE_MEAN, first + i), saved_at(w, ONEPASS_ROLE_RSTD, first + i)};
    onepass_merge_backward(&sums,
                           p->kernels->gather_backward(p, rows[i].x, rows[i].dy, w->buffers.weight,
                                                       rows[i].mean, rows[i].rstd, n));
    gradients[i] = onepass_gradient_of_row(p, sums, rows[i].mean, rows[i].rstd);
  }
  for (int64_t i = 0; i < count; i++) {
    const onepass_next_row *soon = &rows[i + 1 < count ? i + 1 : i];
    gradients[i].soon_x = soon->x;
    gradients[i].soon_dy = soon->dy;
    p->kernels->apply_backward(p, &gradients[i], dense_row(w, ONEPASS_ROLE_DX, first + i),
                               rows[i].x, rows[i].dy, w->buffers.weight,
                               recent_at(w, weights, 0, 0), recent_at(w, weights, 0, 1), n);
  }
}

static void backward_short_rows(const work *w, int worker, int64_t begin, int64_t end,
                                weight_sums *weights) {
  const int64_t batch = w->problem->turned ? w->problem->strip : BATCH;
  for (int64_t row = begin; row < end; row += batch) {
    const int64_t count = onepass_least(end - row, batch);
    if (w->problem->turned) {
      onepass_norm_backward_turned(w, worker, row, row + count, recent_at(w, weights, 0, 0),
                                   recent_at(w, weights, 0, 1));
    } else {
      backward_batch(w, row, count, weights);
    }
    weights->rows += count;
    if (weights->rows == ROWS_SUMMED) add_recent(w, weights);
  }
  add_recent(w, weights);
}

/* Rows begin..end. Pieces of the next row are gathered between pieces of this one, so that reads
 * from memory and writes to it overlap. */
static void backward_some_rows(const work *w, int worker, int64_t begin, int64_t end,
                               weight_sums *weights) {
  char *packed = scratch_for(w, worker);
  const int64_t n = w->problem->elements.count, piece = ONEPASS_NORM_BACKWARD_CHUNK;
  const int64_t bytes = n * onepass_type_size(w->problem->type);
  if (bytes <= SHORT_BACKWARD && !is_in_scratch(w->problem)) {
    backward_short_rows(w, worker, begin, end, weights);
    return;
  }
  onepass_row_sums next = {0};
  for (int64_t i = 0; i < n; i += piece) {
    onepass_merge_backward(&next,
                           gather_backward_piece(w, begin, i, onepass_least(n - i, piece), packed));
  }
  for (int64_t row = begin; row < end; row++) {
    onepass_row_gradient gradient = gradient_of(w, row, next);
    next = (onepass_row_sums){0};
    for (int64_t i = 0; i < n; i += piece) {
      const int64_t count = onepass_least(n - i, piece);
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
  weight_sums weights = {.count = p->elements.count};
  if (!p->row_block) {
    backward_some_rows(w, worker, begin, end, &weights);
    return;
  }
  weights.recent = onepass_piece_at(p, scratch_for(w, worker), ONEPASS_PIECES);
  for (int64_t block = begin; block < end; block++) {
    weights.total = (double *)(w->workspace + p->partials_at) + block * 2 * p->elements.count;
    start_weight_sums(w, &weights);
    backward_some_rows(w, worker, block * p->row_block,
                       onepass_least((block + 1) * p->row_block, p->rows.count), &weights);
    add_recent(w, &weights);
  }
}

static void store_weight_gradient(const work *w, onepass_role role, int64_t begin,
                                  const double *values, int64_t count) {
  if (!onepass_has(&w->plan->layouts, role)) return;
  const onepass_norm_problem *p = w->problem;
  const onepass_type type = w->plan->layouts.of[role].type;
  char *base = onepass_buffer(&w->buffers, role);
  if (p->narrow_sums && onepass_walk_is_dense(&p->elements, role)) {
    p->narrow_sums(base + begin * onepass_type_size(type), values, count);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    onepass_store(type, base, onepass_walk_offset(&p->elements, role, begin + i), values[i]);
  }
}

/* Elements begin..end of dweight and dbias from the partials of all blocks of rows, in their order.
 */
static void add_partials(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t n = w->problem->elements.count;
  const int64_t blocks = onepass_divide_up(w->problem->rows.count, w->problem->row_block);
  const double *partials = (const double *)(w->workspace + w->problem->partials_at);
  (void)worker;
  enum { SOME = 512 }; /* whose sums stay in L1 */
  double dweight[SOME], dbias[SOME];
  for (int64_t first = begin; first < end; first += SOME) {
    const int64_t count = onepass_least(end - first, SOME);
    memset(dweight, 0, sizeof dweight);
    memset(dbias, 0, sizeof dbias);
    for (int64_t block = 0; block < blocks; block++) {
      const double *of_block = partials + block * 2 * n + first;
      for (int64_t i = 0; i < count; i++) dweight[i] += of_block[i];
      for (int64_t i = 0; i < count; i++) dbias[i] += of_block[n + i];
    }
    store_weight_gradient(w, ONEPASS_ROLE_DWEIGHT, first, dweight, count);
    store_weight_gradient(w, ONEPASS_ROLE_DBIAS, first, dbias, count);
  }
}

/* ---- Backward, split ------------------------------------------------------------------------- */

static void gather_backward_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t n = w->problem->elements.count, piece = ONEPASS_NORM_BACKWARD_CHUNK;
  for (int64_t segment = begin; segment < end; segment++) {
    const int64_t first = segment * w->problem->segment,
                  last = onepass_least(first + w->problem->segment, n);
    for (int64_t row = 0; row < w->problem->rows.count; row++) {
      onepass_row_sums *sums = sums_of_row(w, row);
      for (int64_t i = first; i < last; i += piece) {
        sums[i / piece] = gather_backward_piece(w, row, i, onepass_least(last - i, piece),
                                                scratch_for(w, worker));
      }
    }
  }
}

static void merge_backward_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    onepass_row_sums *sums = sums_of_row(w, row);
    for (int64_t i = 1; i < w->problem->chunks; i++) onepass_merge_backward(sums, sums[i]);
  }
}

/* Elements begin..end of all rows, and of dweight and dbias. */
static void apply_backward_columns(const work *w, int64_t begin, int64_t end, char *packed) {
  const onepass_norm_problem *p = w->problem;
  weight_sums weights = {0};
  if (onepass_sums_weights(&w->plan->layouts)) {
    weights.begin = begin;
    weights.count = end - begin;
    weights.total = (double *)(void *)onepass_piece_at(p, packed, ONEPASS_PIECES);
    weights.recent = (char *)(weights.total + 2 * ONEPASS_NORM_APPLIED);
    start_weight_sums(w, &weights);
  }
  for (int64_t row = 0; row < p->rows.count; row++) {
    onepass_row_gradient gradient = gradient_of(w, row, *sums_of_row(w, row));
    expect_soon(w, &gradient, row + 1 < p->rows.count ? row + 1 : row, begin);
    apply_backward_piece(w, row, begin, end - begin, &gradient, &weights, packed);
    count_summed_row(w, &weights);
  }
  add_recent(w, &weights);
  if (!weights.recent) return;
  store_weight_gradient(w, ONEPASS_ROLE_DWEIGHT, begin, weights.total, weights.count);
  store_weight_gradient(w, ONEPASS_ROLE_DBIAS, begin, weights.total + weights.count, weights.count);
}

static void apply_backward_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t n = w->problem->elements.count;
  for (int64_t segment = end - 1; segment >= begin; segment--) {
    const int64_t first = segment * w->problem->segment;
    const int64_t last = onepass_least(first + w->problem->segment, n);
    for (int64_t i = first; i < last; i += ONEPASS_NORM_APPLIED) {
      apply_backward_columns(w, i, onepass_least(i + ONEPASS_NORM_APPLIED, last),
                             scratch_for(w, worker));
    }
  }
}

static void backward_split(work *w) {
  const onepass_norm_problem *p = w->problem;
  const int64_t segments = p->tasks;
  onepass_parallel(p->threads, segments, gather_backward_segments, w);
  onepass_parallel(p->threads, p->rows.count, merge_backward_rows, w);
  onepass_parallel(p->threads, segments, apply_backward_segments, w);
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Packed and widened at once. */
static const void *pack_wide(const work *w, onepass_role role, char *dense) {
  const onepass_norm_problem *p = w->problem;
  for (int64_t i = 0; i < p->elements.count; i++) {
    onepass_store(p->held_weight_type, dense, i,
                  onepass_load(p->weight_type, onepass_buffer(&w->buffers, role),
                               onepass_walk_offset(&p->elements, role, i)));
  }
  return dense;
}

static void pack_weights(work *w) {
  const onepass_norm_problem *p = w->problem;
  if (p->held_weight_type != p->weight_type) {
    char *dense_weight = w->workspace + p->weights_at;
    char *dense_bias = dense_weight + p->elements.count * onepass_type_size(p->held_weight_type);
    if (w->buffers.weight) w->buffers.weight = pack_wide(w, ONEPASS_ROLE_WEIGHT, dense_weight);
    if (w->buffers.bias) w->buffers.bias = pack_wide(w, ONEPASS_ROLE_BIAS, dense_bias);
    return;
  }
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

/* Each row would widen them again. */
static void widen_weights(work *w) {
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count;
  char *weight = w->workspace + p->weights_at;
  char *bias = weight + n * onepass_type_size(p->held_weight_type);
  if (w->buffers.weight) {
    p->widen_weights(weight, w->buffers.weight, n);
    w->buffers.weight = weight;
  }
  if (w->buffers.bias) {
    p->widen_weights(bias, w->buffers.bias, n);
    w->buffers.bias = bias;
  }
}

void onepass_norm_run_cpu(const onepass_plan *plan, const onepass_buffers *buffers,
                          void *workspace) {
  const onepass_norm_problem *p = &plan->problem.norm;
  work w = {.plan = plan, .problem = p, .buffers = *buffers, .workspace = workspace};
  if (p->packed_weights) pack_weights(&w);
  if (p->widen_weights) widen_weights(&w);
  switch (p->strategy) {
    case ONEPASS_NORM_COLUMNS:
      onepass_parallel(p->threads, p->tasks, onepass_norm_do_strips, &w);
      break;
    case ONEPASS_NORM_CELLS:
    case ONEPASS_NORM_SPLIT_CELLS:
      onepass_norm_run_cells(&w);
      break;
    case ONEPASS_NORM_LANES:
    case ONEPASS_NORM_SPLIT_LANES:
      onepass_norm_run_lanes(&w);
      break;
    case ONEPASS_NORM_SPLIT:
      (p->backward ? backward_split : forward_split)(&w);
      break;
    default:
      onepass_parallel(p->threads, p->tasks, p->backward ? backward_rows : forward_rows, &w);
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
  for (int64_t row = 0; !p->backward && row < p->rows.count; row++)
    onepass_save_row(&w, row, &nothing);
  for (int64_t i = 0; p->backward && i < p->elements.count; i++) {
    store_weight_gradient(&w, ONEPASS_ROLE_DWEIGHT, i, &(double){0}, 1);
    store_weight_gradient(&w, ONEPASS_ROLE_DBIAS, i, &(double){0}, 1);
  }
}
