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

/* ---- Weights: one for each element of a row, or one for each channel -------------------------- */

static int64_t weight_count(const onepass_norm_problem *p) {
  return onepass_norm_by_channel(p) ? p->channels : p->elements.count;
}

/* Which of the weights an element has. */
static int64_t weight_of(const onepass_norm_reference *r, int64_t element) {
  const onepass_norm_problem *p = r->problem;
  return onepass_norm_by_channel(p) ? onepass_norm_channel(p, r->row, element) : element;
}

static int64_t weight_offset(const onepass_norm_reference *r, onepass_role role, int64_t weight) {
  if (onepass_norm_by_channel(r->problem)) return weight * r->layouts->of[role].stride[0];
  return onepass_walk_offset(&r->problem->elements, role, weight);
}

static double get_weight(const onepass_norm_reference *r, onepass_role role, int64_t weight,
                         double otherwise) {
  if (!onepass_has(r->layouts, role)) return otherwise;
  return onepass_load(r->layouts->of[role].type, onepass_buffer(r->buffers, role),
                      weight_offset(r, role, weight));
}

static void put_weight(const onepass_norm_reference *r, onepass_role role, int64_t weight,
                       double value) {
  if (!onepass_has(r->layouts, role)) return;
  onepass_store(r->layouts->of[role].type, onepass_buffer(r->buffers, role),
                weight_offset(r, role, weight), value);
}

/* ---- l1_norm --------------------------------------------------------------------------------- */

static double denominator_of(const onepass_norm_problem *p, double norm) {
  return p->clamp ? (norm < p->eps ? p->eps : norm) : norm + p->eps;
}

static double l1_of_row(const onepass_norm_reference *r) {
  const int64_t n = row_length(r);
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += fabs(get(r, ONEPASS_ROLE_X, i));
  return r->problem->divide_by_count ? sum / (double)n : sum;
}

void onepass_norm_l1_forward(const onepass_norm_reference *r) {
  const double denominator = denominator_of(r->problem, l1_of_row(r));
  for (int64_t i = 0; i < row_length(r); i++) {
    put(r, ONEPASS_ROLE_Y, i, get(r, ONEPASS_ROLE_X, i) / denominator);
  }
}

/* y_i = x_i / d, and d grows by sign(x_i) (over n, for a mean) as x_i does, unless it is clamped. */
void onepass_norm_l1_backward(const onepass_norm_reference *r) {
  const int64_t n = row_length(r);
  const double norm = l1_of_row(r), denominator = denominator_of(r->problem, norm);
  double dot = 0;
  for (int64_t i = 0; i < n; i++) dot += get(r, ONEPASS_ROLE_DY, i) * get(r, ONEPASS_ROLE_X, i);
  double slope = dot / denominator / denominator;
  if (r->problem->divide_by_count) slope /= (double)n;
  if (r->problem->clamp && norm < r->problem->eps) slope = 0;
  for (int64_t i = 0; i < n; i++) {
    const double x = get(r, ONEPASS_ROLE_X, i);
    const double sign = (x > 0) - (x < 0);
    put(r, ONEPASS_ROLE_DX, i, get(r, ONEPASS_ROLE_DY, i) / denominator - sign * slope);
  }
}

/* ---- The others: y = f((x - mean) * rstd * weight + bias) -------------------------------------- */

static const double ROOT_HALF = 0.70710678118654752440, ROOT_2_OVER_PI = 0.79788456080286535588;

double onepass_activate(onepass_activation activation, double x) {
  switch (activation) {
    case ONEPASS_RELU:
      return x < 0 ? 0 : x; /* a NaN stays one */
    case ONEPASS_GELU:
      return 0.5 * x * (1 + erf(x * ROOT_HALF));
    case ONEPASS_GELU_TANH:
      return 0.5 * x * (1 + tanh(ROOT_2_OVER_PI * (x + 0.044715 * x * x * x)));
    case ONEPASS_SILU:
      return x / (1 + exp(-x));
    default:
      return x;
  }
}

double onepass_activation_slope(onepass_activation activation, double x) {
  if (activation && isinf(x)) return x > 0 ? 1 : 0; /* what it tends to */
  switch (activation) {
    case ONEPASS_RELU:
      return x > 0 ? 1 : 0;
    case ONEPASS_GELU:
      return 0.5 * (1 + erf(x * ROOT_HALF)) + x * exp(-0.5 * x * x) * (0.5 * ROOT_2_OVER_PI);
    case ONEPASS_GELU_TANH: {
      const double by = ROOT_2_OVER_PI, t = tanh(by * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * by * (1 + 3 * 0.044715 * x * x);
    }
    case ONEPASS_SILU: {
      const double sigmoid = 1 / (1 + exp(-x));
      return sigmoid * (1 + x * (1 - sigmoid));
    }
    default:
      return 1;
  }
}

/* x, or its sum with the residual in the type of x: that is what backward gets to see. */
static double get_summed(const onepass_norm_reference *r, int64_t element) {
  const double x = get(r, ONEPASS_ROLE_X, element);
  if (!onepass_has(r->layouts, ONEPASS_ROLE_RESIDUAL)) return x;
  const onepass_type type = r->layouts->of[ONEPASS_ROLE_X].type;
  double rounded;
  onepass_store(type, &rounded, 0, x + get(r, ONEPASS_ROLE_RESIDUAL, element));
  return onepass_load(type, &rounded, 0);
}

/* What is subtracted from a row, and what it is multiplied with; `variance` is that of the row. */
typedef struct statistic {
  double mean, variance, rstd;
} statistic;

/* A sum that keeps what its roundings lose: squares, all of one sign, would add up their errors. */
static void add(double term, double *sum, double *lost) {
  const double kept = term - *lost, more = *sum + kept;
  *lost = isfinite(more) ? (more - *sum) - kept : 0; /* Inf - Inf would make a NaN of an Inf */
  *sum = more;
}

static statistic statistic_of(const onepass_norm_reference *r) {
  const onepass_norm_problem *p = r->problem;
  const int64_t n = row_length(r), channel = onepass_norm_by_channel(p) ? weight_of(r, 0) : 0;
  statistic s = {0};
  if (p->use_running) {
    s.mean = get_weight(r, ONEPASS_ROLE_RUNNING_MEAN, channel, 0);
    s.variance = get_weight(r, ONEPASS_ROLE_RUNNING_VAR, channel, 0);
    s.rstd = 1 / sqrt(s.variance + p->eps);
    return s;
  }
  double squares = 0, lost = 0;
  if (p->op->denominator == ONEPASS_BY_DEVIATION) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += get_summed(r, i);
    s.mean = sum / (double)n;
  }
  for (int64_t i = 0; i < n; i++) {
    const double deviation = get_summed(r, i) - s.mean;
    add(deviation * deviation, &squares, &lost);
  }
  s.variance = squares / (double)n;
  s.rstd = p->op->denominator == ONEPASS_BY_LENGTH ? 1 / denominator_of(p, sqrt(squares))
                                                   : 1 / sqrt(s.variance + p->eps);
  return s;
}

void onepass_norm_moments_forward(const onepass_norm_reference *r) {
  const int64_t n = row_length(r);
  const onepass_norm_problem *p = r->problem;
  const statistic s = statistic_of(r);
  for (int64_t i = 0; i < n; i++) {
    const double x = get_summed(r, i), normalized = (x - s.mean) * s.rstd;
    const int64_t w = weight_of(r, i);
    const double y = normalized * get_weight(r, ONEPASS_ROLE_WEIGHT, w, 1) +
                     get_weight(r, ONEPASS_ROLE_BIAS, w, 0);
    put(r, ONEPASS_ROLE_SUM, i, x);
    put(r, ONEPASS_ROLE_Y, i, onepass_activate(p->activation, y));
  }
  put(r, ONEPASS_ROLE_MEAN, 0, s.mean);
  put(r, ONEPASS_ROLE_RSTD, 0, s.rstd);
  if (!onepass_norm_by_channel(p)) return;
  r->by_weight[weight_of(r, 0)] += s.mean;
  r->by_bias[weight_of(r, 0)] += s.variance * (double)n / (double)(n - 1);
}

/* How much of z times (sum of dy z) is taken off: what 1 / denominator changes by as x does. Where a
 * length is clamped, or is 0, that is nothing. */
static double share_of_products(const onepass_norm_problem *p, double rstd) {
  if (p->op->denominator != ONEPASS_BY_LENGTH) return 1 / (double)p->elements.count;
  const double rest = 1 - p->eps * rstd; /* the length's share of the denominator */
  if (rest <= (p->type == ONEPASS_TYPE_F64 ? 0x1p-50 : 0x1p-21)) return 0; /* rstd is rounded */
  return p->clamp ? 1 : 1 / rest;
}

/* The mean is taken from x itself: the saved one is rounded (docs/numerics.md). */
void onepass_norm_moments_backward(const onepass_norm_reference *r) {
  const onepass_norm_problem *p = r->problem;
  const int64_t n = row_length(r);
  const bool centered = p->op->denominator == ONEPASS_BY_DEVIATION;
  const double rstd = get(r, ONEPASS_ROLE_RSTD, 0);
  double mean = 0, sum = 0, dot = 0;
  if (p->use_running) {
    mean = get(r, ONEPASS_ROLE_MEAN, 0);
  } else if (centered) {
    for (int64_t i = 0; i < n; i++) mean += get(r, ONEPASS_ROLE_X, i) / (double)n;
  }
  const double share = share_of_products(p, rstd);
  for (int pass = 0; pass < 2; pass++) { /* the sums, then dx */
    for (int64_t i = 0; i < n; i++) {
      const int64_t w = weight_of(r, i);
      const double normalized = (get(r, ONEPASS_ROLE_X, i) - mean) * rstd;
      const double weight = get_weight(r, ONEPASS_ROLE_WEIGHT, w, 1);
      const double before = normalized * weight + get_weight(r, ONEPASS_ROLE_BIAS, w, 0);
      const double dy =
          get(r, ONEPASS_ROLE_DY, i) * onepass_activation_slope(p->activation, before);
      if (pass == 0) {
        sum += dy * weight;
        dot += dy * weight * normalized;
        r->by_weight[w] += dy * normalized;
        r->by_bias[w] += dy;
        continue;
      }
      double dx = dy * weight;
      if (!p->use_running) { /* which are constants, whatever is in the row */
        dx -= normalized * dot * share;
        if (centered) dx -= sum * share;
      }
      dx *= rstd;
      if (onepass_has(r->layouts, ONEPASS_ROLE_DSUM)) dx += get(r, ONEPASS_ROLE_DSUM, i);
      put(r, ONEPASS_ROLE_DX, i, dx);
    }
  }
}

/* ---- Running them ---------------------------------------------------------------------------- */

static void move_running(const onepass_norm_reference *r) {
  const onepass_norm_problem *p = r->problem;
  const double rows = p->op->view == ONEPASS_VIEW_CHANNELS ? 1 : (double)p->batches;
  for (int64_t c = 0; c < p->channels; c++) {
    const double mean = get_weight(r, ONEPASS_ROLE_RUNNING_MEAN, c, 0);
    const double var = get_weight(r, ONEPASS_ROLE_RUNNING_VAR, c, 0);
    put_weight(r, ONEPASS_ROLE_RUNNING_MEAN, c,
               mean + p->momentum * (r->by_weight[c] / rows - mean));
    put_weight(r, ONEPASS_ROLE_RUNNING_VAR, c, var + p->momentum * (r->by_bias[c] / rows - var));
  }
}

size_t onepass_norm_reference_workspace(const onepass_norm_problem *problem) {
  return ((size_t)weight_count(problem) * 2 + 1) * sizeof(double);
}

void onepass_norm_run_reference(const onepass_plan *plan, const onepass_buffers *buffers,
                                void *workspace) {
  const onepass_norm_problem *problem = &plan->problem.norm;
  const int64_t weights = weight_count(problem);
  double *sums = workspace;
  for (int64_t i = 0; i < 2 * weights; i++) sums[i] = 0;
  onepass_norm_reference row = {.problem = problem,
                                .layouts = &plan->layouts,
                                .buffers = buffers,
                                .by_weight = sums,
                                .by_bias = sums + weights};
  for (row.row = 0; row.row < problem->rows.count; row.row++) {
    (problem->backward ? problem->op->reference_backward : problem->op->reference_forward)(&row);
  }
  if (!problem->backward) {
    if (!problem->use_running && problem->batches > 0) move_running(&row);
    return;
  }
  for (int64_t i = 0; i < weights; i++) {
    put_weight(&row, ONEPASS_ROLE_DWEIGHT, i, row.by_weight[i]);
    put_weight(&row, ONEPASS_ROLE_DBIAS, i, row.by_bias[i]);
  }
}
