/* The references: the definitions, in double, one element after the other. */
#include <math.h>

#include "core/plan.h"

static int64_t row_length(const onepass_norm_reference *r) { return r->problem->elements.count; }

static int64_t offset_of(const onepass_norm_reference *r, onepass_role role, int64_t element) {
  return onepass_walk_offset(&r->problem->rows, role, r->row) +
         onepass_walk_offset(&r->problem->elements, role, element);
}

static double get(const onepass_norm_reference *r, onepass_role role, int64_t element) {
  return onepass_load(r->layouts->of[role].type, onepass_buffer(r->buffers, role),
                      offset_of(r, role, element));
}

static void put(const onepass_norm_reference *r, onepass_role role, int64_t element, double value) {
  if (!onepass_has(r->layouts, role)) return;
  onepass_store(r->layouts->of[role].type, onepass_buffer(r->buffers, role),
                offset_of(r, role, element), value);
}

static double weight_at(const onepass_norm_reference *r, int64_t element) {
  return onepass_has(r->layouts, ONEPASS_ROLE_WEIGHT) ? get(r, ONEPASS_ROLE_WEIGHT, element) : 1.0;
}

static double bias_at(const onepass_norm_reference *r, int64_t element) {
  return onepass_has(r->layouts, ONEPASS_ROLE_BIAS) ? get(r, ONEPASS_ROLE_BIAS, element) : 0.0;
}

/* ---- l1_norm --------------------------------------------------------------------------------- */

static double l1_denominator(const onepass_norm_reference *r) {
  const int64_t n = row_length(r);
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += fabs(get(r, ONEPASS_ROLE_X, i));
  return (r->problem->divide_by_count ? sum / (double)n : sum) + r->problem->eps;
}

void onepass_norm_l1_forward(const onepass_norm_reference *r) {
  const double denominator = l1_denominator(r);
  for (int64_t i = 0; i < row_length(r); i++) {
    put(r, ONEPASS_ROLE_Y, i, get(r, ONEPASS_ROLE_X, i) / denominator);
  }
}

/* y_i = x_i / d, and d grows by sign(x_i) (over n, for a mean) as x_i does. */
void onepass_norm_l1_backward(const onepass_norm_reference *r) {
  const int64_t n = row_length(r);
  const double denominator = l1_denominator(r);
  double dot = 0;
  for (int64_t i = 0; i < n; i++) dot += get(r, ONEPASS_ROLE_DY, i) * get(r, ONEPASS_ROLE_X, i);
  double slope = dot / denominator / denominator;
  if (r->problem->divide_by_count) slope /= (double)n;
  for (int64_t i = 0; i < n; i++) {
    const double x = get(r, ONEPASS_ROLE_X, i);
    const double sign = (x > 0) - (x < 0);
    put(r, ONEPASS_ROLE_DX, i, get(r, ONEPASS_ROLE_DY, i) / denominator - sign * slope);
  }
}

/* ---- layer_norm ------------------------------------------------------------------------------ */

static double row_mean(const onepass_norm_reference *r) {
  const int64_t n = row_length(r);
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += get(r, ONEPASS_ROLE_X, i);
  return sum / (double)n;
}

void onepass_norm_layer_forward(const onepass_norm_reference *r) {
  const int64_t n = row_length(r);
  const double mean = row_mean(r);
  double squares = 0;
  for (int64_t i = 0; i < n; i++) {
    const double deviation = get(r, ONEPASS_ROLE_X, i) - mean;
    squares += deviation * deviation;
  }
  const double rstd = 1 / sqrt(squares / (double)n + r->problem->eps);
  for (int64_t i = 0; i < n; i++) {
    const double normalized = (get(r, ONEPASS_ROLE_X, i) - mean) * rstd;
    put(r, ONEPASS_ROLE_Y, i, normalized * weight_at(r, i) + bias_at(r, i));
  }
  put(r, ONEPASS_ROLE_MEAN, 0, mean);
  put(r, ONEPASS_ROLE_RSTD, 0, rstd);
}

/* The mean is taken from x itself: the saved one is rounded (docs/numerics.md). */
void onepass_norm_layer_backward(const onepass_norm_reference *r) {
  const int64_t n = row_length(r);
  const double mean = row_mean(r), rstd = get(r, ONEPASS_ROLE_RSTD, 0);
  double sum = 0, dot = 0;
  for (int64_t i = 0; i < n; i++) {
    const double normalized = (get(r, ONEPASS_ROLE_X, i) - mean) * rstd;
    const double dy = get(r, ONEPASS_ROLE_DY, i), g = dy * weight_at(r, i);
    sum += g;
    dot += g * normalized;
    r->dweight[i] += dy * normalized;
    r->dbias[i] += dy;
  }
  for (int64_t i = 0; i < n; i++) {
    const double normalized = (get(r, ONEPASS_ROLE_X, i) - mean) * rstd;
    const double g = get(r, ONEPASS_ROLE_DY, i) * weight_at(r, i);
    const double dx = rstd * (g - sum / (double)n - normalized * dot / (double)n);
    put(r, ONEPASS_ROLE_DX, i, dx);
  }
}

/* ---- Running them ---------------------------------------------------------------------------- */

void onepass_norm_run_reference(const onepass_plan *plan, const onepass_buffers *buffers,
                                void *workspace) {
  const onepass_norm_problem *problem = &plan->problem.norm;
  const int64_t n = problem->elements.count;
  double *sums = workspace;
  for (int64_t i = 0; i < 2 * n; i++) sums[i] = 0;
  onepass_norm_reference row = {.problem = problem,
                                .layouts = &plan->layouts,
                                .buffers = buffers,
                                .dweight = sums,
                                .dbias = sums + n};
  for (row.row = 0; row.row < problem->rows.count; row.row++) {
    (problem->backward ? problem->op->reference_backward : problem->op->reference_forward)(&row);
  }
  if (!problem->backward) return;
  row.row = 0; /* dweight and dbias have no rows */
  for (int64_t i = 0; i < n; i++) {
    put(&row, ONEPASS_ROLE_DWEIGHT, i, row.dweight[i]);
    put(&row, ONEPASS_ROLE_DBIAS, i, row.dbias[i]);
  }
}
