/* Norms by channel on CPU threads where channels lie side by side: channels_last, or nothing behind the
 * channels. Lanes run across channels. A slab is what has its own statistic for every channel: a batch
 * (group_norm) or everything (batch_norm); its positions are summed in chunks, and chunks and channels are
 * merged in order, whoever gathered them. */
#include <math.h>

#include "cpu/threads.h"
#include "norm/cpu_work.h"

typedef onepass_norm_work work;

enum { CHUNK = ONEPASS_LANE_CHUNK };

/* ---- Where things are ------------------------------------------------------------------------ */

static bool is_batch(const onepass_norm_problem *p) { return p->op->view == ONEPASS_VIEW_CHANNELS; }

static const onepass_walk *positions_of(const onepass_norm_problem *p) {
  return is_batch(p) ? &p->elements : &p->spatial;
}

static int64_t slab_count(const onepass_norm_problem *p) { return is_batch(p) ? 1 : p->batches; }

static int64_t strip_count(const onepass_norm_problem *p) {
  return onepass_divide_up(p->channels, p->strip);
}

/* A piece of a slab: some lanes of some of its positions, at most ONEPASS_LANE_BLOCK. */
typedef struct piece {
  int64_t slab, lane, width, position, count;
} piece;

static char *piece_base(const work *w, onepass_role role, const piece *of) {
  const onepass_norm_problem *p = w->problem;
  const int64_t slab = is_batch(p) ? 0 : of->slab * p->cells.stride[0][role];
  return onepass_buffer(&w->buffers, role) + (slab + of->lane) * onepass_type_size(p->type);
}

static void find_positions(const work *w, onepass_role role, const piece *of, int64_t *at) {
  const onepass_walk *positions = positions_of(w->problem);
  if (positions->ndim == 1) {
    const int64_t stride = positions->stride[0][role];
    for (int64_t k = 0; k < of->count; k++) at[k] = (of->position + k) * stride;
    return;
  }
  for (int64_t k = 0; k < of->count; k++) {
    at[k] = onepass_walk_offset(positions, role, of->position + k);
  }
}

/* A piece as a kernel takes it. */
typedef struct lanes {
  char *base;
  int64_t at[ONEPASS_LANE_BLOCK];
} lanes;

static void find_lanes(const work *w, onepass_role role, const piece *of, lanes *found) {
  found->base = piece_base(w, role, of);
  find_positions(w, role, of, found->at);
}

/* A worker's scratch: what the kernels want, then pieces of x, dy and the output, if they are staged. */
static char *staged_part(const onepass_norm_problem *p, char *scratch, int part) {
  const int64_t piece = ONEPASS_LANE_BLOCK * p->strip * onepass_sums_size(p);
  return scratch + ONEPASS_LANE_SCRATCH * (p->strip + 16) * onepass_sums_size(p) + part * piece;
}

static void stage_lanes(const work *w, const lanes *x, const lanes *residual, const lanes *sum,
                        const piece *of, int part, char *scratch, lanes *staged) {
  const onepass_norm_problem *p = w->problem;
  const int64_t size = onepass_type_size(p->type);
  staged->base = staged_part(p, scratch, part);
  for (int64_t k = 0; k < of->count; k++) {
    staged->at[k] = k * of->width;
    p->staging->stage(staged->base + staged->at[k] * onepass_sums_size(p),
                      x->base + x->at[k] * size,
                      residual ? residual->base + residual->at[k] * size : NULL,
                      sum ? sum->base + sum->at[k] * size : NULL, of->width);
  }
}

static void read_lanes(const work *w, onepass_role role, const piece *of, int part, char *scratch,
                       lanes *found) {
  lanes own;
  if (!w->problem->staging) {
    find_lanes(w, role, of, found);
    return;
  }
  find_lanes(w, role, of, &own);
  stage_lanes(w, &own, NULL, NULL, of, part, scratch, found);
}

/* As onepass_read_summed. */
static void read_summed(const work *w, const piece *of, bool again, char *scratch, lanes *found) {
  const onepass_layouts *layouts = &w->plan->layouts;
  const bool has_sum = onepass_has(layouts, ONEPASS_ROLE_SUM);
  if (!onepass_has(layouts, ONEPASS_ROLE_RESIDUAL) || (again && has_sum)) {
    read_lanes(w, again && has_sum ? ONEPASS_ROLE_SUM : ONEPASS_ROLE_X, of, 0, scratch, found);
    return;
  }
  lanes x, residual, sum;
  find_lanes(w, ONEPASS_ROLE_X, of, &x);
  find_lanes(w, ONEPASS_ROLE_RESIDUAL, of, &residual);
  if (has_sum) find_lanes(w, ONEPASS_ROLE_SUM, of, &sum);
  stage_lanes(w, &x, &residual, has_sum ? &sum : NULL, of, 0, scratch, found);
}

static void place_to_write(const work *w, onepass_role role, const piece *of, char *scratch,
                           lanes *found) {
  if (!w->problem->staging) {
    find_lanes(w, role, of, found);
    return;
  }
  found->base = staged_part(w->problem, scratch, 2);
  for (int64_t k = 0; k < of->count; k++) found->at[k] = k * of->width;
}

static void finish_lanes(const work *w, onepass_role role, const piece *of, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  if (!p->staging) return;
  const int64_t size = onepass_type_size(p->type);
  const bool has_dsum =
      role == ONEPASS_ROLE_DX && onepass_has(&w->plan->layouts, ONEPASS_ROLE_DSUM);
  char *staged = staged_part(p, scratch, 2);
  lanes to, dsum;
  find_lanes(w, role, of, &to);
  if (has_dsum) find_lanes(w, ONEPASS_ROLE_DSUM, of, &dsum);
  if (role == ONEPASS_ROLE_Y) {
    p->kernels->activate(p->activation, staged, of->count * of->width);
  }
  for (int64_t k = 0; k < of->count; k++) {
    p->staging->unstage(to.base + to.at[k] * size, staged + k * of->width * onepass_sums_size(p),
                        has_dsum ? dsum.base + dsum.at[k] * size : NULL, of->width);
  }
}

/* ---- Numbers a channel ------------------------------------------------------------------------ */

/* What is kept of a slab: for every chunk three sums a channel and, in the type of sums, what is done to each
 * channel. In the workspace or, where a thread has a slab for itself, in its scratch. */
typedef struct slab_numbers {
  double *sums;
  char *values;
} slab_numbers;

static int64_t lane_room(const onepass_norm_problem *p) { return (p->channels + 15) / 16 * 16; }

static slab_numbers numbers_of(const work *w, int64_t slab, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const int64_t sums = p->chunks * 3 * p->channels;
  if (p->strategy == ONEPASS_NORM_SPLIT_LANES) {
    return (slab_numbers){(double *)(w->workspace + p->sums_at) + slab * sums,
                          w->workspace + p->scales_at +
                              slab * ONEPASS_LANE_VALUES * lane_room(p) * onepass_sums_size(p)};
  }
  char *rest = staged_part(p, scratch, p->staging ? 3 : 0);
  rest += (64 - (uintptr_t)rest % 64) % 64;
  return (slab_numbers){(double *)(void *)rest, rest + sums * (int64_t)sizeof(double)};
}

static onepass_lane_sums sums_at(const onepass_norm_problem *p, const slab_numbers *numbers,
                                 int64_t chunk, int64_t lane) {
  double *first = numbers->sums + chunk * 3 * p->channels + lane;
  return (onepass_lane_sums){first, first + p->channels, first + 2 * p->channels};
}

static char *value_at(const onepass_norm_problem *p, const slab_numbers *numbers, int which,
                      int64_t lane) {
  return numbers->values + (which * lane_room(p) + lane) * onepass_sums_size(p);
}

/* A number in the type of sums. */
static void set_value(const onepass_norm_problem *p, const slab_numbers *numbers, int which,
                      int64_t lane, double value) {
  onepass_put_sum(p, value_at(p, numbers, which, 0), lane, value);
}

static onepass_lane_scales scales_at(const onepass_norm_problem *p, const slab_numbers *numbers,
                                     int64_t lane) {
  return (onepass_lane_scales){value_at(p, numbers, ONEPASS_LANE_SHIFT, lane),
                               value_at(p, numbers, ONEPASS_LANE_SCALE, lane),
                               value_at(p, numbers, ONEPASS_LANE_OFFSET, lane)};
}

static onepass_lane_gradients gradients_at(const onepass_norm_problem *p,
                                           const slab_numbers *numbers, int64_t lane) {
  return (onepass_lane_gradients){value_at(p, numbers, ONEPASS_LANE_SAVED_MEAN, lane),
                                  value_at(p, numbers, ONEPASS_LANE_SAVED_RSTD, lane),
                                  value_at(p, numbers, ONEPASS_LANE_BY_DY, lane),
                                  value_at(p, numbers, ONEPASS_LANE_BY_Z, lane),
                                  value_at(p, numbers, ONEPASS_LANE_CONSTANT, lane),
                                  NULL};
}

/* y = (x - shift) * scale + offset for this channel, from its row's. */
static void set_scale(const work *w, const slab_numbers *numbers, int64_t channel,
                      const onepass_row_scale *row) {
  const onepass_norm_problem *p = w->problem;
  const double weight = onepass_channel_value(w, ONEPASS_ROLE_WEIGHT, channel, 1);
  set_value(p, numbers, ONEPASS_LANE_SHIFT, channel, row->centered ? row->shift : 0);
  set_value(p, numbers, ONEPASS_LANE_SCALE, channel, row->scale * weight);
  set_value(p, numbers, ONEPASS_LANE_OFFSET, channel,
            row->offset * weight + onepass_channel_value(w, ONEPASS_ROLE_BIAS, channel, 0));
}

static int64_t channels_of_row(const onepass_norm_problem *p) {
  return is_batch(p) ? 1 : p->channels / p->groups;
}

static int64_t rows_of_slab(const onepass_norm_problem *p) {
  return p->channels / channels_of_row(p);
}

/* ---- What is done to chunks ------------------------------------------------------------------- */

typedef void block_task(const work *w, const piece *of, const slab_numbers *numbers, int64_t chunk,
                        char *scratch);

/* One strip of one chunk, block by block. */
static void for_each_block(const work *w, int64_t slab, int64_t chunk, int64_t strip,
                           block_task *task, const slab_numbers *numbers, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const int64_t positions = positions_of(p)->count;
  const int64_t last = onepass_least((chunk + 1) * CHUNK, positions);
  piece of = {.slab = slab, .lane = strip * p->strip};
  of.width = onepass_least(p->strip, p->channels - of.lane);
  for (of.position = chunk * CHUNK; of.position < last; of.position += ONEPASS_LANE_BLOCK) {
    of.count = onepass_least(last - of.position, ONEPASS_LANE_BLOCK);
    task(w, &of, numbers, chunk, scratch);
  }
}

static void gather_block(const work *w, const piece *of, const slab_numbers *numbers, int64_t chunk,
                         char *scratch) {
  lanes x;
  read_summed(w, of, false, scratch, &x);
  const onepass_lane_sums sums = sums_at(w->problem, numbers, chunk, of->lane);
  w->problem->kernels->gather_lanes(x.base, x.at, of->count, of->width,
                                    of->position - chunk * CHUNK, &sums, scratch);
}

static void apply_block(const work *w, const piece *of, const slab_numbers *numbers, int64_t chunk,
                        char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const onepass_lane_scales scales = scales_at(p, numbers, of->lane);
  lanes x, y;
  (void)chunk;
  read_summed(w, of, !p->use_running, scratch, &x);
  place_to_write(w, ONEPASS_ROLE_Y, of, scratch, &y);
  p->kernels->apply_lanes(p, y.base, y.at, x.base, x.at, of->count, of->width, &scales, NULL, NULL);
  finish_lanes(w, ONEPASS_ROLE_Y, of, scratch);
}

/* x, and dy as it was before the activation. */
static void read_pair(const work *w, const piece *of, const slab_numbers *numbers, char *scratch,
                      lanes *x, lanes *dy) {
  const onepass_norm_problem *p = w->problem;
  read_lanes(w, ONEPASS_ROLE_X, of, 0, scratch, x);
  read_lanes(w, ONEPASS_ROLE_DY, of, 1, scratch, dy);
  if (!p->activation) return;
  const onepass_lane_scales before = scales_at(p, numbers, of->lane);
  char *activated = staged_part(p, scratch, 2);
  p->kernels->apply_lanes(p, activated, x->at, x->base, x->at, of->count, of->width, &before, NULL,
                          NULL);
  p->kernels->pass_slope(p->activation, dy->base, activated, of->count * of->width);
}

static void gather_backward_block(const work *w, const piece *of, const slab_numbers *numbers,
                                  int64_t chunk, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const onepass_lane_sums sums = sums_at(p, numbers, chunk, of->lane);
  const onepass_lane_gradients gradients = gradients_at(p, numbers, of->lane);
  if (of->position == chunk * CHUNK) {
    for (int64_t j = 0; j < of->width; j++) sums.a[j] = sums.b[j] = sums.c[j] = 0;
  }
  lanes x, dy;
  read_pair(w, of, numbers, scratch, &x, &dy);
  p->kernels->gather_backward_lanes(p, x.base, x.at, dy.base, dy.at, of->count, of->width,
                                    &gradients, NULL, &sums, scratch);
}

static void apply_backward_block(const work *w, const piece *of, const slab_numbers *numbers,
                                 int64_t chunk, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const onepass_lane_gradients gradients = gradients_at(p, numbers, of->lane);
  lanes x, dy, dx;
  (void)chunk;
  read_pair(w, of, numbers, scratch, &x, &dy);
  place_to_write(w, ONEPASS_ROLE_DX, of, scratch, &dx);
  if (p->use_running) { /* dy is all there is if the statistic is given: the constant is 0 */
    const onepass_lane_scales of_dy = {gradients.constant, gradients.by_dy, gradients.constant};
    p->kernels->apply_lanes(p, dx.base, dx.at, dy.base, dy.at, of->count, of->width, &of_dy, NULL,
                            NULL);
  } else {
    p->kernels->apply_backward_lanes(p, dx.base, dx.at, x.base, x.at, dy.base, dy.at, of->count,
                                     of->width, &gradients, NULL);
  }
  finish_lanes(w, ONEPASS_ROLE_DX, of, scratch);
}

/* ---- From the sums of a row to what is done to its channels ------------------------------------ */

/* What running_mean and running_var are moved by or, backward, a channel's parts of dweight and dbias in a
 * slab. */
static double *moments_at(const work *w, int64_t slab, int64_t channel) {
  return (double *)(w->workspace + w->problem->moments_at) +
         2 * (slab * w->problem->channels + channel);
}

static onepass_row_sums merge_row(const work *w, const slab_numbers *numbers, int64_t first) {
  const onepass_norm_problem *p = w->problem;
  const int64_t positions = positions_of(p)->count, channels = channels_of_row(p);
  onepass_row_sums sums = {0};
  double before = 0;
  for (int64_t chunk = 0; chunk < p->chunks; chunk++) {
    const onepass_lane_sums own = sums_at(p, numbers, chunk, first);
    const double count = (double)onepass_least(positions - chunk * CHUNK, CHUNK);
    for (int64_t c = 0; c < channels; c++) {
      onepass_merge_forward(ONEPASS_STATISTIC_MOMENTS, &sums, before,
                            (onepass_row_sums){own.a[c], own.b[c], own.c[c]}, count);
      before += count;
    }
  }
  return sums;
}

static void finish_row(const work *w, int64_t slab, int64_t row_of_slab,
                       const slab_numbers *numbers) {
  const onepass_norm_problem *p = w->problem;
  const int64_t channels = channels_of_row(p), first = row_of_slab * channels;
  onepass_row_sums sums = {0};
  onepass_row_scale scale;
  if (p->use_running) {
    scale =
        onepass_scale_by_moments(p, onepass_channel_value(w, ONEPASS_ROLE_RUNNING_MEAN, first, 0),
                                 onepass_channel_value(w, ONEPASS_ROLE_RUNNING_VAR, first, 0));
  } else {
    sums = merge_row(w, numbers, first);
    scale = onepass_scale_row(p, sums);
  }
  onepass_save_row(w, slab * rows_of_slab(p) + row_of_slab, &scale);
  for (int64_t c = first; c < first + channels; c++) set_scale(w, numbers, c, &scale);
  if (p->moves_running) {
    moments_at(w, slab, first)[0] = sums.a;
    moments_at(w, slab, first)[1] = sums.b * p->one_over_n;
  }
}

/* The saved statistics, and what forward did before the activation. */
static void look_at_saved(const work *w, int64_t slab, int64_t row_of_slab,
                          const slab_numbers *numbers) {
  const onepass_norm_problem *p = w->problem;
  const int64_t channels = channels_of_row(p), first = row_of_slab * channels;
  const int64_t row = slab * rows_of_slab(p) + row_of_slab;
  const double mean = onepass_saved_at(w, ONEPASS_ROLE_MEAN, row);
  const double rstd = onepass_saved_at(w, ONEPASS_ROLE_RSTD, row);
  const onepass_row_scale before = onepass_scale_by_saved(mean, rstd);
  for (int64_t c = first; c < first + channels; c++) {
    set_value(p, numbers, ONEPASS_LANE_SAVED_MEAN, c, mean);
    set_value(p, numbers, ONEPASS_LANE_SAVED_RSTD, c, rstd);
    set_value(p, numbers, ONEPASS_LANE_BY_DY, c,
              rstd * onepass_channel_value(w, ONEPASS_ROLE_WEIGHT, c, 1));
    set_scale(w, numbers, c, &before);
  }
}

/* Sums of a channel over all chunks, left in place of those of its first one. */
static void merge_channel(const work *w, const slab_numbers *numbers, int64_t channel) {
  const onepass_lane_sums all = sums_at(w->problem, numbers, 0, channel);
  for (int64_t chunk = 1; chunk < w->problem->chunks; chunk++) {
    const onepass_lane_sums own = sums_at(w->problem, numbers, chunk, channel);
    *all.a += *own.a;
    *all.b += *own.b;
    *all.c += *own.c;
  }
}

static bool gathers_backward(const work *w) {
  return !w->problem->use_running || onepass_sums_weights(&w->plan->layouts);
}

static void finish_backward_row(const work *w, int64_t slab, int64_t row_of_slab,
                                const slab_numbers *numbers) {
  const onepass_norm_problem *p = w->problem;
  const int64_t channels = channels_of_row(p), first = row_of_slab * channels;
  const double rstd = onepass_saved_at(w, ONEPASS_ROLE_RSTD, slab * rows_of_slab(p) + row_of_slab);
  const bool given =
      p->use_running; /* the statistic is no function of x, whose sums may be infinite */
  const onepass_lane_sums own = sums_at(p, numbers, 0, first);
  onepass_row_sums sums = {0};
  for (int64_t c = 0; gathers_backward(w) && c < channels; c++) {
    const double weight = onepass_channel_value(w, ONEPASS_ROLE_WEIGHT, first + c, 1);
    merge_channel(w, numbers, first + c);
    sums.a += own.a[c] * weight;
    sums.b += own.b[c] * weight;
    sums.c += own.c[c];
  }
  /* The mean of z would be 0 had the saved mean not been rounded. */
  const double offset = given ? 0 : -sums.c * p->one_over_n;
  const double by_z = given ? 0 : -rstd * (sums.b + offset * sums.a) * p->one_over_n;
  const double constant = given ? 0 : by_z * offset - rstd * sums.a * p->one_over_n;
  for (int64_t c = 0; c < channels; c++) {
    set_value(p, numbers, ONEPASS_LANE_BY_Z, first + c, by_z);
    set_value(p, numbers, ONEPASS_LANE_CONSTANT, first + c, constant);
    if (!onepass_sums_weights(&w->plan->layouts)) continue;
    moments_at(w, slab, first + c)[0] = own.b[c] + offset * own.a[c];
    moments_at(w, slab, first + c)[1] = own.a[c];
  }
}

/* ---- Slab by slab: each waits in the cache ----------------------------------------------------- */

static void do_blocks(const work *w, int64_t slab, block_task *task, const slab_numbers *numbers,
                      char *scratch) {
  for (int64_t chunk = 0; chunk < w->problem->chunks; chunk++) {
    for (int64_t strip = 0; strip < strip_count(w->problem); strip++) {
      for_each_block(w, slab, chunk, strip, task, numbers, scratch);
    }
  }
}

static void do_slabs(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const int64_t rows = rows_of_slab(p);
  char *scratch = onepass_scratch_for(w, worker);
  for (int64_t slab = begin; slab < end; slab++) {
    const slab_numbers numbers = numbers_of(w, slab, scratch);
    if (p->backward) {
      for (int64_t row = 0; row < rows; row++) look_at_saved(w, slab, row, &numbers);
      if (gathers_backward(w)) do_blocks(w, slab, gather_backward_block, &numbers, scratch);
      for (int64_t row = 0; row < rows; row++) finish_backward_row(w, slab, row, &numbers);
      do_blocks(w, slab, apply_backward_block, &numbers, scratch);
    } else {
      if (!p->use_running) do_blocks(w, slab, gather_block, &numbers, scratch);
      for (int64_t row = 0; row < rows; row++) finish_row(w, slab, row, &numbers);
      do_blocks(w, slab, apply_block, &numbers, scratch);
    }
  }
}

/* ---- All slabs together ------------------------------------------------------------------------ */

static void do_split_blocks(const work *w, int worker, int64_t task_number, block_task *task) {
  const onepass_norm_problem *p = w->problem;
  const int64_t strips = strip_count(p), chunk = task_number / strips % p->chunks;
  const int64_t slab = task_number / strips / p->chunks;
  const slab_numbers numbers = numbers_of(w, slab, NULL);
  for_each_block(w, slab, chunk, task_number % strips, task, &numbers,
                 onepass_scratch_for(w, worker));
}

static void gather_all(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  block_task *task = w->problem->backward ? gather_backward_block : gather_block;
  for (int64_t i = begin; i < end; i++) do_split_blocks(w, worker, i, task);
}

/* Backwards: what was gathered last is still in the cache. */
static void apply_all(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  block_task *task = w->problem->backward ? apply_backward_block : apply_block;
  for (int64_t i = end - 1; i >= begin; i--) do_split_blocks(w, worker, i, task);
}

typedef void row_task(const work *w, int64_t slab, int64_t row_of_slab,
                      const slab_numbers *numbers);

static void do_split_rows(const work *w, int64_t begin, int64_t end, row_task *task) {
  const int64_t rows = rows_of_slab(w->problem);
  for (int64_t row = begin; row < end; row++) {
    const slab_numbers numbers = numbers_of(w, row / rows, NULL);
    task(w, row / rows, row % rows, &numbers);
  }
}

static void look_at_all(void *context, int worker, int64_t begin, int64_t end) {
  (void)worker;
  do_split_rows(context, begin, end, look_at_saved);
}

static void finish_all(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  (void)worker;
  do_split_rows(w, begin, end, w->problem->backward ? finish_backward_row : finish_row);
}

/* ---- Sums over slabs --------------------------------------------------------------------------- */

static void finish_channels(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const int64_t slabs = slab_count(p);
  (void)worker;
  for (int64_t c = begin; c < end; c++) {
    double first = 0, second = 0;
    for (int64_t slab = 0; slab < slabs; slab++) {
      first += moments_at(w, slab, c)[0];
      second += moments_at(w, slab, c)[1];
    }
    if (p->backward) {
      onepass_put_channel_value(w, ONEPASS_ROLE_DWEIGHT, c, first);
      onepass_put_channel_value(w, ONEPASS_ROLE_DBIAS, c, second);
      continue;
    }
    onepass_move_running(w, c, first / (double)slabs, second / (double)slabs);
  }
}

void onepass_norm_run_lanes(work *w) {
  const onepass_norm_problem *p = w->problem;
  const bool gathers = p->backward ? gathers_backward(w) : !p->use_running;
  if (p->strategy == ONEPASS_NORM_LANES) {
    onepass_parallel(p->threads, slab_count(p), do_slabs, w);
  } else {
    const int64_t tasks = slab_count(p) * p->chunks * strip_count(p);
    if (p->backward) onepass_parallel(p->threads, p->rows.count, look_at_all, w);
    if (gathers) onepass_parallel(p->threads, tasks, gather_all, w);
    onepass_parallel(p->threads, p->rows.count, finish_all, w);
    onepass_parallel(p->threads, tasks, apply_all, w);
  }
  if (p->moves_running || (p->backward && onepass_sums_weights(&w->plan->layouts))) {
    onepass_parallel(p->threads, p->channels, finish_channels, w);
  }
}
