/* Pieces of rows and cells on their way to the kernels and back. */
#include "norm/cpu_work.h"

typedef onepass_norm_work work;

static char *run_base(const work *w, onepass_role role, const onepass_stretch *run) {
  return onepass_element_at(w, role, run, 0);
}

/* In the tensor's own type: where they are or, if that is not dense, copied to `packed`. */
static const char *dense_piece(const work *w, onepass_role role, const onepass_stretch *run,
                               int64_t begin, int64_t count, char *packed) {
  const onepass_norm_problem *p = w->problem;
  if (!p->packed) return onepass_element_at(w, role, run, begin);
  onepass_pack(packed, run_base(w, role, run), run->elements, role, onepass_type_size(p->type),
               begin, count);
  return packed;
}

static char *dense_place(const work *w, onepass_role role, const onepass_stretch *run,
                         int64_t begin, char *packed) {
  return w->problem->packed ? packed : onepass_element_at(w, role, run, begin);
}

static void spread_piece(const work *w, onepass_role role, const onepass_stretch *run,
                         int64_t begin, int64_t count, const char *packed) {
  const onepass_norm_problem *p = w->problem;
  if (!p->packed) return;
  onepass_unpack(packed, run_base(w, role, run), run->elements, role, onepass_type_size(p->type),
                 begin, count);
}

/* Tensors of the type of sums are staged only where that type must not be written to their own memory. */
static bool is_wide(const onepass_norm_problem *p) {
  return p->type == onepass_type_of_sums(p->type);
}

static bool stages_output(const work *w, onepass_role role) {
  const onepass_norm_problem *p = w->problem;
  const bool adds = role == ONEPASS_ROLE_DX && onepass_has(&w->plan->layouts, ONEPASS_ROLE_DSUM);
  return p->staging && (adds || !is_wide(p)); /* dx may be over dsum */
}

static const char *read_staged(const work *w, onepass_role role, const onepass_stretch *run,
                               int64_t begin, int64_t count, int packed, char *wide,
                               char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const char *dense = dense_piece(w, role, run, begin, count, onepass_piece_at(p, scratch, packed));
  const bool changes = role == ONEPASS_ROLE_DY && p->activation;
  if (!p->staging || (is_wide(p) && !changes)) return dense;
  p->staging->stage(wide, dense, NULL, NULL, count);
  return wide;
}

/* With a sum to write, the first reading writes it and later ones read it: x may be gone by then. */
const char *onepass_read_summed(const work *w, const onepass_stretch *run, int64_t begin,
                                int64_t count, bool again, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  const onepass_layouts *layouts = &w->plan->layouts;
  const bool has_sum = onepass_has(layouts, ONEPASS_ROLE_SUM);
  if (!onepass_has(layouts, ONEPASS_ROLE_RESIDUAL) || (again && has_sum)) {
    return read_staged(w, again && has_sum ? ONEPASS_ROLE_SUM : ONEPASS_ROLE_X, run, begin, count,
                       ONEPASS_PACKED_X, onepass_piece_at(p, scratch, ONEPASS_STAGED_X), scratch);
  }
  const char *x = dense_piece(w, ONEPASS_ROLE_X, run, begin, count,
                              onepass_piece_at(p, scratch, ONEPASS_PACKED_X));
  const char *residual = dense_piece(w, ONEPASS_ROLE_RESIDUAL, run, begin, count,
                                     onepass_piece_at(p, scratch, ONEPASS_PACKED_DY));
  char *packed_sum = onepass_piece_at(p, scratch, ONEPASS_PACKED_MORE);
  char *sum = has_sum ? dense_place(w, ONEPASS_ROLE_SUM, run, begin, packed_sum) : NULL;
  const bool in_sum = has_sum && is_wide(p);
  char *wide = in_sum ? sum : onepass_piece_at(p, scratch, ONEPASS_STAGED_X);
  p->staging->stage(wide, x, residual, in_sum ? NULL : sum, count);
  if (has_sum) spread_piece(w, ONEPASS_ROLE_SUM, run, begin, count, packed_sum);
  return wide;
}

const char *onepass_read_x(const work *w, const onepass_stretch *run, int64_t begin, int64_t count,
                           char *scratch) {
  return read_staged(w, ONEPASS_ROLE_X, run, begin, count, ONEPASS_PACKED_X,
                     onepass_piece_at(w->problem, scratch, ONEPASS_STAGED_X), scratch);
}

const char *onepass_read_dy(const work *w, const onepass_stretch *run, int64_t begin, int64_t count,
                            char *staged, char *scratch) {
  if (!staged) staged = onepass_piece_at(w->problem, scratch, ONEPASS_STAGED_DY);
  return read_staged(w, ONEPASS_ROLE_DY, run, begin, count, ONEPASS_PACKED_DY, staged, scratch);
}

void onepass_pass_activation(const work *w, const char *x, char *dy,
                             const onepass_row_scale *before, const char *weight, const char *bias,
                             int64_t count, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  char *activated = onepass_piece_at(p, scratch, ONEPASS_STAGED_OUTPUT);
  p->kernels->apply(p, before, activated, x, weight, bias, count);
  p->kernels->pass_slope(p->activation, dy, activated, count);
}

char *onepass_place_to_write(const work *w, onepass_role role, const onepass_stretch *run,
                             int64_t begin, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  if (stages_output(w, role)) return onepass_piece_at(p, scratch, ONEPASS_STAGED_OUTPUT);
  return dense_place(w, role, run, begin, onepass_piece_at(p, scratch, ONEPASS_PACKED_X));
}

void onepass_finish_piece(const work *w, onepass_role role, const onepass_stretch *run,
                          int64_t begin, int64_t count, char *scratch) {
  const onepass_norm_problem *p = w->problem;
  char *packed = onepass_piece_at(p, scratch, ONEPASS_PACKED_X);
  char *to = dense_place(w, role, run, begin, packed);
  const bool staged = stages_output(w, role);
  char *from = staged ? onepass_piece_at(p, scratch, ONEPASS_STAGED_OUTPUT) : to;
  if (p->staging && role == ONEPASS_ROLE_Y) p->kernels->activate(p->activation, from, count);
  if (staged) {
    const char *dsum = NULL;
    if (role == ONEPASS_ROLE_DX && onepass_has(&w->plan->layouts, ONEPASS_ROLE_DSUM)) {
      dsum = dense_piece(w, ONEPASS_ROLE_DSUM, run, begin, count,
                         onepass_piece_at(p, scratch, ONEPASS_PACKED_MORE));
    }
    p->staging->unstage(to, from, dsum, count);
  }
  spread_piece(w, role, run, begin, count, packed);
}

double onepass_saved_at(const work *w, onepass_role role, int64_t row) {
  if (!onepass_has(&w->plan->layouts, role)) return 0;
  return onepass_load(w->plan->layouts.of[role].type, onepass_buffer(&w->buffers, role),
                      onepass_walk_offset(&w->problem->rows, role, row));
}

void onepass_save_row(const work *w, int64_t row, const onepass_row_scale *scale) {
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

double onepass_channel_value(const work *w, onepass_role role, int64_t channel, double otherwise) {
  const onepass_layout *layout = &w->plan->layouts.of[role];
  if (!onepass_has(&w->plan->layouts, role)) return otherwise;
  return onepass_load(layout->type, onepass_buffer(&w->buffers, role), channel * layout->stride[0]);
}

void onepass_put_channel_value(const work *w, onepass_role role, int64_t channel, double value) {
  const onepass_layout *layout = &w->plan->layouts.of[role];
  if (!onepass_has(&w->plan->layouts, role)) return;
  onepass_store(layout->type, onepass_buffer(&w->buffers, role), channel * layout->stride[0],
                value);
}

void onepass_move_running(const work *w, int64_t channel, double mean, double variance) {
  const double momentum = w->problem->momentum, n = (double)w->problem->elements.count;
  const double old_mean = onepass_channel_value(w, ONEPASS_ROLE_RUNNING_MEAN, channel, 0);
  const double old_variance = onepass_channel_value(w, ONEPASS_ROLE_RUNNING_VAR, channel, 0);
  onepass_put_channel_value(w, ONEPASS_ROLE_RUNNING_MEAN, channel,
                            old_mean + momentum * (mean - old_mean));
  onepass_put_channel_value(w, ONEPASS_ROLE_RUNNING_VAR, channel,
                            old_variance + momentum * (variance * n / (n - 1) - old_variance));
}
