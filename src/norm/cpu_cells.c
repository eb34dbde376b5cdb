/* Norms by channel on CPU threads, where the elements of a cell (a channel of a batch) go one after the other.
 *
 * All elements of a cell have one weight and one bias, so these become part of its row's scale. Forward and
 * backward first gather each cell's sums, chunk by chunk; a row's are made of those of its cells, in order.
 * So the bits depend neither on who gathers what nor on whether rows are done one by one (ROWS: they wait in
 * the cache) or all together (SPLIT). */
#include <math.h>

#include "cpu/threads.h"
#include "norm/cpu_work.h"

typedef onepass_norm_work work;

enum { SEGMENT = 131072 }; /* elements of a cell that a thread takes at once */

/* ---- Rows, runs and cells -------------------------------------------------------------------- */

/* What is gathered together: a cell or, forward, all cells of a row that lie back to back. */
static int64_t run_length(const onepass_norm_problem *p) {
  return p->runs_are_rows ? p->elements.count : p->spatial.count;
}

static int64_t run_count(const onepass_norm_problem *p) {
  return p->runs_are_rows ? p->rows.count : p->cells.count;
}

static int64_t runs_of_row(const onepass_norm_problem *p) { return run_count(p) / p->rows.count; }

static int64_t cells_of_row(const onepass_norm_problem *p) {
  return p->cells.count / p->rows.count;
}

/* Cells are numbered as they lie in memory, batch by batch. */
static int64_t cell_of_row(const onepass_norm_problem *p, int64_t row, int64_t k) {
  if (p->op->view == ONEPASS_VIEW_CHANNELS) return k * p->channels + row;
  return row * cells_of_row(p) + k;
}

static int64_t row_of_cell(const onepass_norm_problem *p, int64_t cell) {
  return p->op->view == ONEPASS_VIEW_CHANNELS ? cell % p->channels : cell / cells_of_row(p);
}

static int64_t run_of_row(const onepass_norm_problem *p, int64_t row, int64_t k) {
  return p->runs_are_rows ? row : cell_of_row(p, row, k);
}

static onepass_stretch run_at(const onepass_norm_problem *p, int64_t number) {
  if (p->runs_are_rows) return (onepass_stretch){&p->rows, number, &p->elements};
  return (onepass_stretch){&p->cells, number, &p->spatial};
}

static onepass_stretch cell_at(const onepass_norm_problem *p, int64_t number) {
  return (onepass_stretch){&p->cells, number, &p->spatial};
}

/* Elements done in one call of a kernel: packed and staged ones go through scratch memory. */
static int64_t piece_length(const onepass_norm_problem *p, int64_t otherwise) {
  return onepass_pieces_kept(p) ? ONEPASS_NORM_CHUNK : otherwise;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* What running_mean and running_var are moved by: of each row, its mean and its variance. */
static double *moments_of_row(const work *w, int64_t row) {
  return (double *)(w->workspace + w->problem->moments_at) + 2 * row;
}

static onepass_row_sums gather_chunk(const work *w, int64_t run, int64_t begin, int64_t count,
                                     char *scratch) {
  const onepass_stretch where = run_at(w->problem, run);
  return w->problem->kernels->gather(onepass_read_summed(w, &where, begin, count, false, scratch),
                                     count);
}

static onepass_row_scale scale_of_running(const work *w, int64_t row) {
  const int64_t channel = onepass_norm_channel(w->problem, row, 0);
  return onepass_scale_by_moments(w->problem,
                                  onepass_channel_value(w, ONEPASS_ROLE_RUNNING_MEAN, channel, 0),
                                  onepass_channel_value(w, ONEPASS_ROLE_RUNNING_VAR, channel, 0));
}

static onepass_row_scale finish_row(const work *w, int64_t row, onepass_row_sums sums) {
  const onepass_norm_problem *p = w->problem;
  const onepass_row_scale scale =
      p->use_running ? scale_of_running(w, row) : onepass_scale_row(p, sums);
  onepass_save_row(w, row, &scale);
  if (p->moves_running) {
    moments_of_row(w, row)[0] = sums.a;
    moments_of_row(w, row)[1] = sums.b * p->one_over_n;
  }
  return scale;
}

/* The weight and the bias of a channel in the scale of its row. */
static onepass_row_scale scale_of_cell(const work *w, const onepass_row_scale *row, int64_t cell) {
  const int64_t channel = cell % w->problem->channels;
  const double weight = onepass_channel_value(w, ONEPASS_ROLE_WEIGHT, channel, 1);
  onepass_row_scale scale = *row;
  scale.scale *= weight;
  scale.offset = scale.offset * weight + onepass_channel_value(w, ONEPASS_ROLE_BIAS, channel, 0);
  return scale;
}

/* Elements begin..end of a stretch, with a weight and a bias for each element, or none. */
static void apply_stretch(const work *w, const onepass_stretch *where, int64_t begin, int64_t end,
                          const onepass_row_scale *scale, const char *weight, const char *bias,
                          char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const int64_t piece = piece_length(p, end - begin);
  const int64_t size = onepass_type_size(onepass_type_of_sums(p->type));
  for (int64_t i = begin; i < end; i += piece) {
    const int64_t count = onepass_least(end - i, piece);
    const char *x = onepass_read_summed(w, where, i, count, !p->use_running, scratch);
    p->kernels->apply(p, scale, onepass_place_to_write(w, ONEPASS_ROLE_Y, where, i, scratch), x,
                      weight ? weight + i * size : NULL, bias ? bias + i * size : NULL, count);
    onepass_finish_piece(w, ONEPASS_ROLE_Y, where, i, count, scratch);
  }
}

static void apply_cell(const work *w, int64_t cell, int64_t begin, int64_t end,
                       const onepass_row_scale *row, char *scratch) {
  const onepass_stretch where = cell_at(w->problem, cell);
  const onepass_row_scale scale = scale_of_cell(w, row, cell);
  apply_stretch(w, &where, begin, end, &scale, NULL, NULL, scratch);
}

/* ---- Short cells: rows are applied as a whole, weights spread over their elements -------------- */

static char *spread_at(const work *w, onepass_role role, int64_t channel) {
  const onepass_norm_problem *p = w->problem;
  if (!onepass_has(&w->plan->layouts, role)) return NULL;
  const int64_t first = role == ONEPASS_ROLE_BIAS ? p->channels + channel : channel;
  return w->workspace + p->weights_at +
         first * p->spatial.count * onepass_type_size(onepass_type_of_sums(p->type));
}

static void spread_weights(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_type type = onepass_type_of_sums(w->problem->type);
  const onepass_role roles[2] = {ONEPASS_ROLE_WEIGHT, ONEPASS_ROLE_BIAS};
  (void)worker;
  for (int64_t c = begin; c < end; c++) {
    for (int i = 0; i < 2; i++) {
      char *to = spread_at(w, roles[i], c);
      const double value = onepass_channel_value(w, roles[i], c, 0);
      for (int64_t k = 0; to && k < w->problem->spatial.count; k++) {
        if (type == ONEPASS_TYPE_F64) {
          ((double *)(void *)to)[k] = value;
        } else {
          ((float *)(void *)to)[k] = (float)value;
        }
      }
    }
  }
}

static void apply_row(const work *w, int64_t row, int64_t begin, int64_t end,
                      const onepass_row_scale *scale, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const onepass_stretch where = run_at(p, row);
  const int64_t channel = onepass_norm_channel(p, row, 0);
  apply_stretch(w, &where, begin, end, scale, spread_at(w, ONEPASS_ROLE_WEIGHT, channel),
                spread_at(w, ONEPASS_ROLE_BIAS, channel), scratch);
}

/* ---- Forward, row by row ---------------------------------------------------------------------- */

static void merge_chunk(onepass_row_sums *sums, int64_t before, onepass_row_sums chunk,
                        int64_t count) {
  onepass_merge_forward(ONEPASS_STATISTIC_MOMENTS, sums, (double)before, chunk, (double)count);
}

static onepass_row_sums gather_row(const work *w, int64_t row, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const int64_t runs = runs_of_row(p), length = run_length(p);
  onepass_row_sums sums = {0};
  for (int64_t k = 0; k < runs; k++) {
    for (int64_t i = 0; i < length; i += ONEPASS_NORM_CHUNK) {
      const int64_t count = onepass_least(length - i, ONEPASS_NORM_CHUNK);
      merge_chunk(&sums, k * length + i, gather_chunk(w, run_of_row(p, row, k), i, count, scratch),
                  count);
    }
  }
  return sums;
}

static void forward_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  char *scratch = onepass_scratch_for(w, worker);
  const int64_t cells = cells_of_row(p);
  for (int64_t row = begin; row < end; row++) {
    const onepass_row_sums sums =
        p->use_running ? (onepass_row_sums){0} : gather_row(w, row, scratch);
    const onepass_row_scale scale = finish_row(w, row, sums);
    if (p->applies_rows) {
      apply_row(w, row, 0, p->elements.count, &scale, scratch);
      continue;
    }
    for (int64_t k = cells - 1; k >= 0; k--) { /* what was gathered last is nearest */
      apply_cell(w, cell_of_row(p, row, k), 0, p->spatial.count, &scale, scratch);
    }
  }
}

/* ---- Forward, split: all sums, all scales, all cells ------------------------------------------ */

static onepass_row_sums *sums_of_run(const work *w, int64_t run) {
  return (onepass_row_sums *)(w->workspace + w->problem->sums_at) + run * w->problem->chunks;
}

static int64_t segments_of(int64_t length) { return onepass_divide_up(length, SEGMENT); }

static void gather_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t length = run_length(w->problem), segments = segments_of(length);
  char *scratch = onepass_scratch_for(w, worker);
  for (int64_t task = begin; task < end; task++) {
    const int64_t run = task / segments, first = task % segments * SEGMENT;
    const int64_t last = onepass_least(first + SEGMENT, length);
    onepass_row_sums *sums = sums_of_run(w, run);
    for (int64_t i = first; i < last; i += ONEPASS_NORM_CHUNK) {
      sums[i / ONEPASS_NORM_CHUNK] =
          gather_chunk(w, run, i, onepass_least(last - i, ONEPASS_NORM_CHUNK), scratch);
    }
  }
}

static onepass_row_scale *scale_of_row(const work *w, int64_t row) {
  return (onepass_row_scale *)(w->workspace + w->problem->scales_at) + row;
}

static void merge_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const int64_t runs = p->use_running ? 0 : runs_of_row(p), length = run_length(p);
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    onepass_row_sums sums = {0};
    for (int64_t k = 0; k < runs; k++) {
      const onepass_row_sums *chunks = sums_of_run(w, run_of_row(p, row, k));
      for (int64_t i = 0; i < length; i += ONEPASS_NORM_CHUNK) {
        merge_chunk(&sums, k * length + i, chunks[i / ONEPASS_NORM_CHUNK],
                    onepass_least(length - i, ONEPASS_NORM_CHUNK));
      }
    }
    *scale_of_row(w, row) = finish_row(w, row, sums);
  }
}

static int64_t applied_length(const onepass_norm_problem *p) {
  return p->applies_rows ? p->elements.count : p->spatial.count;
}

/* Backwards: what was gathered last is still in the cache. */
static void apply_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const int64_t length = applied_length(p), segments = segments_of(length);
  char *scratch = onepass_scratch_for(w, worker);
  for (int64_t task = end - 1; task >= begin; task--) {
    const int64_t number = task / segments, first = task % segments * SEGMENT;
    const int64_t last = onepass_least(first + SEGMENT, length);
    if (p->applies_rows) {
      apply_row(w, number, first, last, scale_of_row(w, number), scratch);
    } else {
      apply_cell(w, number, first, last, scale_of_row(w, row_of_cell(p, number)), scratch);
    }
  }
}

/* ---- Running statistics: what the rows of a channel have on average ---------------------------- */

static void move_running(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const int64_t rows = p->rows.count / p->channels;
  (void)worker;
  for (int64_t c = begin; c < end; c++) {
    double mean = 0, variance = 0;
    for (int64_t k = 0; k < rows; k++) {
      mean += moments_of_row(w, k * p->channels + c)[0];
      variance += moments_of_row(w, k * p->channels + c)[1];
    }
    onepass_move_running(w, c, mean / (double)rows, variance / (double)rows);
  }
}

static void forward(work *w) {
  const onepass_norm_problem *p = w->problem;
  const int64_t applied = p->applies_rows ? p->rows.count : p->cells.count;
  if (p->spreads_weights) onepass_parallel(p->threads, p->channels, spread_weights, w);
  if (p->strategy == ONEPASS_NORM_CELLS) {
    onepass_parallel(p->threads, p->rows.count, forward_rows, w);
  } else {
    if (!p->use_running) {
      onepass_parallel(p->threads, run_count(p) * segments_of(run_length(p)), gather_segments, w);
    }
    onepass_parallel(p->threads, p->rows.count, merge_rows, w);
    onepass_parallel(p->threads, applied * segments_of(applied_length(p)), apply_segments, w);
  }
  if (p->moves_running) onepass_parallel(p->threads, p->channels, move_running, w);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Of one cell; made once for it. */
typedef struct cell {
  onepass_stretch where;
  double mean, rstd;
  onepass_row_scale before; /* what forward did before the activation */
} cell;

static cell look_at_cell(const work *w, int64_t number) {
  const onepass_norm_problem *p = w->problem;
  const int64_t row = row_of_cell(p, number);
  cell c = {.where = cell_at(p, number),
            .mean = onepass_saved_at(w, ONEPASS_ROLE_MEAN, row),
            .rstd = onepass_saved_at(w, ONEPASS_ROLE_RSTD, row)};
  if (p->activation) {
    const onepass_row_scale saved = onepass_scale_by_saved(c.mean, c.rstd);
    c.before = scale_of_cell(w, &saved, number);
  }
  return c;
}

/* x, and dy as it was before the activation. */
typedef struct pair {
  const char *x, *dy;
} pair;

static pair read_pair(const work *w, const cell *c, int64_t begin, int64_t count, char *scratch) {
  pair both = {onepass_read_x(w, &c->where, begin, count, scratch),
               onepass_read_dy(w, &c->where, begin, count, NULL, scratch)};
  if (w->problem->activation) {
    char *dy = onepass_piece_at(w->problem, scratch, ONEPASS_STAGED_DY);
    onepass_pass_activation(w, both.x, dy, &c->before, NULL, NULL, count, scratch);
  }
  return both;
}

/* Sums of dy alone: the weight is one for all of a cell and comes later. */
static onepass_row_sums gather_backward_chunk(const work *w, const cell *c, int64_t begin,
                                              int64_t count, char *scratch) {
  const pair both = read_pair(w, c, begin, count, scratch);
  return w->problem->kernels->gather_backward(w->problem, both.x, both.dy, NULL, c->mean, c->rstd,
                                              count);
}

static void apply_backward_cell(const work *w, int64_t number, int64_t begin, int64_t end,
                                const onepass_row_gradient *row, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const cell c = look_at_cell(w, number);
  const int64_t piece = piece_length(p, end - begin);
  onepass_row_gradient gradient = *row;
  gradient.by_dy *= onepass_channel_value(w, ONEPASS_ROLE_WEIGHT, number % p->channels, 1);
  const onepass_row_scale of_dy = {.scale =
                                       gradient.by_dy}; /* all there is if the statistic is given */
  for (int64_t i = begin; i < end; i += piece) {
    const int64_t count = onepass_least(end - i, piece);
    char *dx = onepass_place_to_write(w, ONEPASS_ROLE_DX, &c.where, i, scratch);
    if (p->use_running) {
      const char *dy = p->activation ? read_pair(w, &c, i, count, scratch).dy
                                     : onepass_read_dy(w, &c.where, i, count, NULL, scratch);
      p->kernels->apply(p, &of_dy, dx, dy, NULL, NULL, count);
    } else {
      const pair both = read_pair(w, &c, i, count, scratch);
      gradient.soon_x = both.x;
      gradient.soon_dy = both.dy;
      p->kernels->apply_backward(p, &gradient, dx, both.x, both.dy, NULL, NULL, NULL, count);
    }
    onepass_finish_piece(w, ONEPASS_ROLE_DX, &c.where, i, count, scratch);
  }
}

/* A row's sums from those of its cells, and its gradient. Leaves in place of a cell's sums its parts of dbias
 * (a) and dweight (b). */
static onepass_row_gradient finish_backward_row(const work *w, int64_t row) {
  const onepass_norm_problem *p = w->problem;
  const int64_t cells = cells_of_row(p);
  const double mean = onepass_saved_at(w, ONEPASS_ROLE_MEAN, row);
  const double rstd = onepass_saved_at(w, ONEPASS_ROLE_RSTD, row);
  onepass_row_sums sums = {0};
  for (int64_t k = 0; k < cells; k++) {
    const int64_t number = cell_of_row(p, row, k);
    const onepass_row_sums *own = sums_of_run(w, number);
    const double weight = onepass_channel_value(w, ONEPASS_ROLE_WEIGHT, number % p->channels, 1);
    sums.a += own->a * weight;
    sums.b += own->b * weight;
    sums.c += own->c;
  }
  const onepass_row_gradient gradient = onepass_gradient_of_row(p, sums, mean, rstd);
  for (int64_t k = 0; k < cells; k++) {
    onepass_row_sums *own = sums_of_run(w, cell_of_row(p, row, k));
    own->b =
        gradient.centered ? own->b + gradient.offset * own->a : rstd * (own->b - mean * own->a);
    /* The one element of a row is its mean; products that were rounded do not say so. */
    if (p->elements.count == 1 && !p->use_running && isfinite(own->b)) own->b = 0;
  }
  return gradient;
}

static bool gathers_backward(const work *w) {
  return !w->problem->use_running || onepass_sums_weights(&w->plan->layouts);
}

static onepass_row_gradient gradient_of_running(const work *w, int64_t row) {
  return onepass_gradient_of_row(w->problem, (onepass_row_sums){0},
                                 onepass_saved_at(w, ONEPASS_ROLE_MEAN, row),
                                 onepass_saved_at(w, ONEPASS_ROLE_RSTD, row));
}

static void backward_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const int64_t cells = cells_of_row(p), length = p->spatial.count;
  char *scratch = onepass_scratch_for(w, worker);
  for (int64_t row = begin; row < end; row++) {
    for (int64_t k = 0; k < cells; k++) {
      const int64_t number = cell_of_row(p, row, k);
      const cell c = look_at_cell(w, number);
      onepass_row_sums sums = {0};
      for (int64_t i = 0; i < length; i += ONEPASS_NORM_BACKWARD_CHUNK) {
        const int64_t count = onepass_least(length - i, ONEPASS_NORM_BACKWARD_CHUNK);
        onepass_merge_backward(&sums, gather_backward_chunk(w, &c, i, count, scratch));
      }
      *sums_of_run(w, number) = sums;
    }
    const onepass_row_gradient gradient = finish_backward_row(w, row);
    for (int64_t k = cells - 1; k >= 0; k--) {
      apply_backward_cell(w, cell_of_row(p, row, k), 0, length, &gradient, scratch);
    }
  }
}

/* ---- Backward, split ------------------------------------------------------------------------- */

static void gather_backward_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const int64_t length = w->problem->spatial.count, segments = segments_of(length);
  char *scratch = onepass_scratch_for(w, worker);
  for (int64_t task = begin; task < end; task++) {
    const int64_t number = task / segments, first = task % segments * SEGMENT;
    const int64_t last = onepass_least(first + SEGMENT, length);
    const cell c = look_at_cell(w, number);
    onepass_row_sums *sums = sums_of_run(w, number);
    for (int64_t i = first; i < last; i += ONEPASS_NORM_BACKWARD_CHUNK) {
      const int64_t count = onepass_least(last - i, ONEPASS_NORM_BACKWARD_CHUNK);
      sums[i / ONEPASS_NORM_BACKWARD_CHUNK] = gather_backward_chunk(w, &c, i, count, scratch);
    }
  }
}

static onepass_row_gradient *gradient_of(const work *w, int64_t row) {
  return (onepass_row_gradient *)(w->workspace + w->problem->scales_at) + row;
}

static void merge_backward_rows(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  (void)worker;
  for (int64_t row = begin; row < end; row++) {
    if (!gathers_backward(w)) {
      *gradient_of(w, row) = gradient_of_running(w, row);
      continue;
    }
    for (int64_t k = 0; k < cells_of_row(p); k++) {
      onepass_row_sums *chunks = sums_of_run(w, cell_of_row(p, row, k)), sums = {0};
      for (int64_t i = 0; i < p->chunks; i++) onepass_merge_backward(&sums, chunks[i]);
      *chunks = sums;
    }
    *gradient_of(w, row) = finish_backward_row(w, row);
  }
}

static void apply_backward_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const int64_t length = p->spatial.count, segments = segments_of(length);
  for (int64_t task = end - 1; task >= begin; task--) {
    const int64_t number = task / segments, first = task % segments * SEGMENT;
    apply_backward_cell(w, number, first, onepass_least(first + SEGMENT, length),
                        gradient_of(w, row_of_cell(p, number)), onepass_scratch_for(w, worker));
  }
}

static void sum_weight_gradients(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  (void)worker;
  for (int64_t c = begin; c < end; c++) {
    double dweight = 0, dbias = 0;
    for (int64_t n = 0; n < p->batches; n++) {
      const onepass_row_sums *own = sums_of_run(w, n * p->channels + c);
      dbias += own->a;
      dweight += own->b;
    }
    onepass_put_channel_value(w, ONEPASS_ROLE_DWEIGHT, c, dweight);
    onepass_put_channel_value(w, ONEPASS_ROLE_DBIAS, c, dbias);
  }
}

static void backward(work *w) {
  const onepass_norm_problem *p = w->problem;
  const int64_t tasks = p->cells.count * segments_of(p->spatial.count);
  if (p->strategy == ONEPASS_NORM_CELLS) {
    onepass_parallel(p->threads, p->rows.count, backward_rows, w);
  } else {
    if (gathers_backward(w)) onepass_parallel(p->threads, tasks, gather_backward_segments, w);
    onepass_parallel(p->threads, p->rows.count, merge_backward_rows, w);
    onepass_parallel(p->threads, tasks, apply_backward_segments, w);
  }
  if (onepass_sums_weights(&w->plan->layouts)) {
    onepass_parallel(p->threads, p->channels, sum_weight_gradients, w);
  }
}

void onepass_norm_run_cells(work *w) { (w->problem->backward ? backward : forward)(w); }
