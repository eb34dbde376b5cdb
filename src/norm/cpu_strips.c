/* Norms over axes where rows lie side by side: lanes are rows, positions are their elements. A strip of rows is
 * worked on together. */
#include "norm/cpu_work.h"

typedef onepass_norm_work work;

/* A strip of rows in a worker's scratch: sums, then values, then what the kernels want. */
typedef struct strip {
  onepass_lane_sums sums;
  char *values;
  char *scratch;
  int64_t room;
} strip;

static strip lay_out_strip(const onepass_norm_problem *p, char *scratch) {
  double *sums = (double *)(void *)scratch;
  strip s = {.sums = {sums, sums + p->strip, sums + 2 * p->strip}, .room = p->strip + 16};
  s.values = scratch + 3 * p->strip * (int64_t)sizeof(double);
  s.scratch = s.values + ONEPASS_LANE_VALUES * s.room * onepass_sums_size(p);
  return s;
}

static void *strip_value(const onepass_norm_problem *p, const strip *s, int which) {
  return s->values + which * s->room * onepass_sums_size(p);
}

static void set_strip_value(const onepass_norm_problem *p, const strip *s, int which, int64_t lane,
                            double value) {
  onepass_put_sum(p, strip_value(p, s, which), lane, value);
}

/* The tensors of a strip of rows. */
typedef struct row_strip {
  char *base[ONEPASS_ROLE_COUNT];
  int64_t width, first, other; /* lanes, from lane `first` at position `other` of the other axes */
} row_strip;

static void find_elements(const onepass_norm_problem *p, onepass_role role, int64_t begin,
                          int64_t count, int64_t *at) {
  for (int64_t k = 0; k < count; k++) at[k] = onepass_walk_offset(&p->elements, role, begin + k);
}

static const char *position_weight(const onepass_norm_problem *p, const void *weight, int64_t at) {
  return weight ? (const char *)weight + at * onepass_type_size(p->held_weight_type) : NULL;
}

/* Number of a strip's row, as the walk over all rows counts. */
static int64_t row_number(const onepass_norm_problem *p, const row_strip *of, int64_t lane) {
  int64_t behind = 1;
  for (int axis = p->lane_axis + 1; axis < p->rows.ndim; axis++) behind *= p->rows.size[axis];
  const int64_t before = of->other / behind;
  return (before * p->rows.size[p->lane_axis] + of->first + lane) * behind + of->other % behind;
}

/* Rows whose reciprocal of the length is no number to multiply with: y, which is x as yet, is divided. Those rows alone,
 * so that no row's bits depend on which others are in its strip. */
static void divide_strip(const work *w, const row_strip *of, const double *denominators) {
  const onepass_norm_problem *p = w->problem;
  char *base = of->base[ONEPASS_ROLE_Y];
  for (int64_t j = 0; j < of->width; j++) {
    if (!onepass_needs_division(onepass_type_of_sums(p->type), denominators[j])) continue;
    for (int64_t k = 0; k < p->elements.count; k++) {
      const int64_t at = onepass_walk_offset(&p->elements, ONEPASS_ROLE_Y, k) + j;
      onepass_store(p->type, base, at, onepass_load(p->type, base, at) / denominators[j]);
    }
  }
}

/* From the sums of a strip's rows to their scales. Leaves denominators in place of the sums; tells whether some have no
 * reciprocal: those rows are left as they are, zeros with their sign. */
static bool scale_strip(const work *w, const row_strip *of, const strip *s) {
  const onepass_norm_problem *p = w->problem;
  const unsigned saved = ONEPASS_BIT(ONEPASS_ROLE_MEAN) | ONEPASS_BIT(ONEPASS_ROLE_RSTD);
  const bool saves = w->plan->layouts.present & saved;
  void *shift = strip_value(p, s, ONEPASS_LANE_SHIFT),
       *factor = strip_value(p, s, ONEPASS_LANE_SCALE);
  void *offset = strip_value(p, s, ONEPASS_LANE_OFFSET);
  bool exact = false;
  for (int64_t j = 0; j < of->width; j++) {
    const onepass_row_scale row =
        onepass_scale_row(p, (onepass_row_sums){s->sums.a[j], s->sums.b[j], s->sums.c[j]});
    if (saves) onepass_save_row(w, row_number(p, of, j), &row);
    onepass_put_sum(p, shift, j, row.centered ? row.shift : 0);
    onepass_put_sum(p, factor, j, row.exact ? 1 : row.scale);
    onepass_put_sum(p, offset, j, row.exact ? -0.0 : row.offset);
    s->sums.a[j] = row.denominator;
    exact |= row.exact;
  }
  return exact;
}

static void forward_strip(const work *w, const row_strip *of, const strip *s) {
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count;
  int64_t x_at[ONEPASS_LANE_BLOCK], y_at[ONEPASS_LANE_BLOCK];
  for (int64_t i = 0; i < n; i += ONEPASS_LANE_BLOCK) {
    const int64_t count = onepass_least(n - i, ONEPASS_LANE_BLOCK);
    find_elements(p, ONEPASS_ROLE_X, i, count, x_at);
    p->kernels->gather_lanes(of->base[ONEPASS_ROLE_X], x_at, count, of->width, i, &s->sums,
                             s->scratch);
  }
  const bool exact = scale_strip(w, of, s);
  const onepass_lane_scales scales = {strip_value(p, s, ONEPASS_LANE_SHIFT),
                                      strip_value(p, s, ONEPASS_LANE_SCALE),
                                      strip_value(p, s, ONEPASS_LANE_OFFSET)};
  for (int64_t i = 0; i < n; i += ONEPASS_LANE_BLOCK) {
    const int64_t count = onepass_least(n - i, ONEPASS_LANE_BLOCK);
    find_elements(p, ONEPASS_ROLE_X, i, count, x_at);
    find_elements(p, ONEPASS_ROLE_Y, i, count, y_at);
    p->kernels->apply_lanes(p, of->base[ONEPASS_ROLE_Y], y_at, of->base[ONEPASS_ROLE_X], x_at,
                            count, of->width, &scales, position_weight(p, w->buffers.weight, i),
                            position_weight(p, w->buffers.bias, i));
  }
  if (exact) divide_strip(w, of, s->sums.a);
}

static void set_row_gradient(const work *w, const strip *s, int64_t lane, double rstd) {
  const onepass_norm_problem *p = w->problem;
  const bool centered = p->op->denominator == ONEPASS_BY_DEVIATION;
  const double share = centered ? p->one_over_n : onepass_share_of_products(p, rstd);
  const double a = s->sums.a[lane], offset = centered ? -s->sums.c[lane] * share : 0;
  const double by_z = -rstd * (s->sums.b[lane] + offset * a) * share;
  set_strip_value(p, s, ONEPASS_LANE_BY_DY, lane, rstd);
  set_strip_value(p, s, ONEPASS_LANE_BY_Z, lane, by_z);
  set_strip_value(p, s, ONEPASS_LANE_CONSTANT, lane,
                  centered ? by_z * offset - rstd * a * share : 0);
}

static void backward_strip(const work *w, const row_strip *of, const strip *s) {
  const onepass_norm_problem *p = w->problem;
  const int64_t n = p->elements.count;
  const onepass_lane_gradients gradients = {
      strip_value(p, s, ONEPASS_LANE_SAVED_MEAN), strip_value(p, s, ONEPASS_LANE_SAVED_RSTD),
      strip_value(p, s, ONEPASS_LANE_BY_DY), strip_value(p, s, ONEPASS_LANE_BY_Z),
      strip_value(p, s, ONEPASS_LANE_CONSTANT)};
  int64_t x_at[ONEPASS_LANE_BLOCK], dy_at[ONEPASS_LANE_BLOCK], dx_at[ONEPASS_LANE_BLOCK];
  for (int64_t j = 0; j < of->width; j++) {
    const int64_t row = row_number(p, of, j);
    set_strip_value(p, s, ONEPASS_LANE_SAVED_MEAN, j, onepass_saved_at(w, ONEPASS_ROLE_MEAN, row));
    set_strip_value(p, s, ONEPASS_LANE_SAVED_RSTD, j, onepass_saved_at(w, ONEPASS_ROLE_RSTD, row));
    s->sums.a[j] = s->sums.b[j] = s->sums.c[j] = 0;
  }
  for (int64_t i = 0; i < n; i += ONEPASS_LANE_BLOCK) {
    const int64_t count = onepass_least(n - i, ONEPASS_LANE_BLOCK);
    find_elements(p, ONEPASS_ROLE_X, i, count, x_at);
    find_elements(p, ONEPASS_ROLE_DY, i, count, dy_at);
    p->kernels->gather_backward_lanes(
        p, of->base[ONEPASS_ROLE_X], x_at, of->base[ONEPASS_ROLE_DY], dy_at, count, of->width,
        &gradients, position_weight(p, w->buffers.weight, i), &s->sums, s->scratch);
  }
  for (int64_t j = 0; j < of->width; j++) {
    set_row_gradient(w, s, j, onepass_saved_at(w, ONEPASS_ROLE_RSTD, row_number(p, of, j)));
  }
  for (int64_t i = 0; i < n; i += ONEPASS_LANE_BLOCK) {
    const int64_t count = onepass_least(n - i, ONEPASS_LANE_BLOCK);
    find_elements(p, ONEPASS_ROLE_X, i, count, x_at);
    find_elements(p, ONEPASS_ROLE_DY, i, count, dy_at);
    find_elements(p, ONEPASS_ROLE_DX, i, count, dx_at);
    p->kernels->apply_backward_lanes(p, of->base[ONEPASS_ROLE_DX], dx_at, of->base[ONEPASS_ROLE_X],
                                     x_at, of->base[ONEPASS_ROLE_DY], dy_at, count, of->width,
                                     &gradients, position_weight(p, w->buffers.weight, i));
  }
}

void onepass_norm_do_strips(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_norm_problem *p = w->problem;
  const onepass_walk others = onepass_walk_without(&p->rows, p->lane_axis);
  const int64_t lane_count = p->rows.size[p->lane_axis];
  const int64_t strips = onepass_divide_up(lane_count, p->strip);
  const strip s = lay_out_strip(p, onepass_scratch_for(w, worker));
  for (int64_t task = begin; task < end; task++) {
    row_strip of = {.first = task % strips * p->strip, .other = task / strips};
    of.width = onepass_least(p->strip, lane_count - of.first);
    for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
      if (!(w->plan->layouts.present & ONEPASS_WHOLE_ROLES & ONEPASS_BIT(role))) continue;
      of.base[role] =
          onepass_buffer(&w->buffers, role) +
          (onepass_walk_offset(&others, role, of.other) + of.first) * onepass_type_size(p->type);
    }
    (p->backward ? backward_strip : forward_strip)(w, &of, &s);
  }
}
