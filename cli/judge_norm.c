#include <math.h>
#include <stdlib.h>

#include "buffers.h"
#include "judge_trial.h"

/* Scratch as long as a row, and sums over rows for every weight or channel. */
typedef struct space {
  double *got, *want, *x, *dy, *dsum;
  double *weight, *bias;             /* ones and zeros where there are none */
  double *weight_terms, *weight_off; /* of dweight, or of running_var */
  double *bias_terms, *bias_off;     /* of dbias, or of running_mean */
} space;

enum { ROW_ARRAYS = 5, WEIGHT_ARRAYS = 6 };

static double *load_row(const trial *trial, const operand *operand, int64_t row, double *to) {
  const view *view = &trial->view;
  for (int64_t i = 0; i < view->length; i += view->run) {
    int64_t first = view_element(view, row, i);
    operand_load(operand, first, view->step, view->run, to + i);
  }
  return to;
}

static void compare_row(const trial *trial, role role, int64_t row, int64_t i, double got,
                        double want, double arithmetic) {
  compare(trial, role, view_element(&trial->view, row, i), got, want, arithmetic);
}

/* ---- l1_norm ---- */

typedef struct l1_terms {
  double divisor; /* the norm and eps */
  double share;   /* of each element in the divisor: 1/n or 1, or 0 where it is clamped */
} l1_terms;

static l1_terms l1_terms_of(const trial *trial, const double *x) {
  const onepass_norm *norm = &trial->problem->norm;
  double sum = 0;
  for (int64_t i = 0; i < trial->view.length; i++) sum += fabs(x[i]);
  double share = norm->reduction == ONEPASS_MEAN ? 1 / (double)trial->view.length : 1;
  if (!norm->clamp) return (l1_terms){sum * share + norm->eps, share};
  return sum * share < norm->eps ? (l1_terms){norm->eps, 0} : (l1_terms){sum * share, share};
}

static void judge_l1_forward(const trial *trial, const space *space, int64_t row) {
  const double *got = load_row(trial, &trial->got[Y], row, space->got);
  const double *want = load_row(trial, &trial->want[Y], row, space->want);
  double slack = trial->unit * sum_slack(trial, trial->view.length);
  for (int64_t i = 0; i < trial->view.length; i++)
    compare_row(trial, Y, row, i, got[i], want[i], slack * fabs(want[i]));
}

static void judge_l1_backward(const trial *trial, const space *space, int64_t row) {
  int64_t length = trial->view.length;
  const double *got = load_row(trial, &trial->got[DX], row, space->got);
  const double *want = load_row(trial, &trial->want[DX], row, space->want);
  const double *x = load_row(trial, &trial->want[X], row, space->x);
  const double *dy = load_row(trial, &trial->want[DY], row, space->dy);
  l1_terms terms = l1_terms_of(trial, x);
  double through_divisor = 0; /* of the gradient, with every term's sign removed */
  for (int64_t i = 0; i < length; i++) through_divisor += fabs(dy[i] * x[i]);
  through_divisor *= terms.share / terms.divisor / terms.divisor;
  double slack = trial->unit * sum_slack(trial, length);
  for (int64_t i = 0; i < length; i++)
    compare_row(trial, DX, row, i, got[i], want[i],
                slack * (fabs(dy[i]) / terms.divisor + (x[i] != 0 ? through_divisor : 0)));
}

/* ---- Activations ---- */

/* How steep an activation is, good enough for a bound. */
static double steepness_near(onepass_activation activation, double x) {
  const double root_2_over_pi = 0.79788456080286535588;
  switch (activation) {
    case ONEPASS_RELU:
      return x > 0;
    case ONEPASS_GELU:
    case ONEPASS_GELU_TANH: /* they differ by less than 0.01 */
      return fabs(0.5 * erfc(-x * 0.70710678118654752440) +
                  x * exp(-0.5 * x * x) * (0.5 * root_2_over_pi)) +
             (activation == ONEPASS_GELU ? 0 : 0.01);
    case ONEPASS_SILU: {
      double sigmoid = 1 / (1 + exp(-x));
      return fabs(sigmoid * (1 + x * (1 - sigmoid)));
    }
    default:
      return 1;
  }
}

/* What an activation makes of a value that may be `off`, with its own roundings: x times a share of
 * it that is a few roundings off where it is near 1, and no curvature above 1. */
static double activated_error(const trial *trial, double x, double off) {
  onepass_activation activation = trial->problem->norm.activation;
  if (activation == ONEPASS_NO_ACTIVATION || activation == ONEPASS_RELU) return off;
  double rounding = 8 * trial->unit * fabs(x);
  return (steepness_near(activation, x) + off) * off + rounding;
}

/* How far off the slope may be. relu's is 0 or 1, and either where its argument is as good as 0. */
static double slope_error(const trial *trial, double x, double off) {
  onepass_activation activation = trial->problem->norm.activation;
  if (activation == ONEPASS_NO_ACTIVATION) return 0;
  if (activation == ONEPASS_RELU) return fabs(x) <= off;
  return off + 8 * trial->unit * (1 + fabs(x));
}

/* ---- The norms with moments, forward ---- */

/* What is known of a row: its statistic, and how far off normalized values may be. */
typedef struct row_terms {
  double mean, variance, rstd;
  double mean_error;
  double shift;   /* of all normalized values alike, when the mean is off */
  double stretch; /* relative to them, when the deviation is */
} row_terms;

static row_terms given_terms(const trial *trial, double mean, double rstd) {
  double slack = trial->unit * sum_slack(trial, 1);
  /* x - mean, or x * rstd - mean * rstd */
  return (row_terms){
      .mean = mean, .rstd = rstd, .shift = 2 * slack * fabs(mean) * rstd, .stretch = slack};
}

static row_terms forward_terms(const trial *trial, const double *x, int64_t row) {
  const problem *problem = trial->problem;
  int64_t length = trial->view.length;
  if (problem->norm.use_running) {
    int64_t channel = weight_of(problem, &trial->view, row, 0);
    double variance = load_one(&trial->want[RUNNING_VAR], channel);
    row_terms given = given_terms(trial, load_one(&trial->want[RUNNING_MEAN], channel),
                                  1 / sqrt(variance + problem->norm.eps));
    given.mean_error = trial->unit * fabs(given.mean);
    return given;
  }
  double sum = 0, magnitude = 0, squares = 0, n = (double)length, eps = problem->norm.eps;
  double slack = trial->unit * sum_slack(trial, length);
  bool centered = problem->op->divisor == BY_DEVIATION;
  for (int64_t i = 0; i < length && centered; i++) {
    sum += x[i];
    magnitude += fabs(x[i]);
  }
  row_terms terms = {.mean = centered ? sum / n : 0, .stretch = slack};
  for (int64_t i = 0; i < length; i++) squares += (x[i] - terms.mean) * (x[i] - terms.mean);
  terms.variance = squares / n;
  double norm = sqrt(squares);
  if (problem->op->divisor == BY_LENGTH)
    terms.rstd = 1 / (problem->norm.clamp ? fmax(norm, eps) : norm + eps);
  else
    terms.rstd = 1 / sqrt(terms.variance + eps);
  if (!centered) return terms;
  terms.mean_error = slack * magnitude / n;
  terms.shift = terms.mean_error * terms.rstd;
  terms.stretch += terms.shift * terms.shift;
  /* the parts of a row that lie apart are merged by their means, doubles that are rounded, too */
  if (weights_by_channel(problem->op))
    terms.stretch += 0x1p-53 * fabs(terms.mean) / sqrt(terms.variance + eps);
  return terms;
}

/* x, or its sum with the residual, rounded to their type. */
static double *load_summed(const trial *trial, int64_t row, const space *space) {
  double *x = load_row(trial, &trial->want[X], row, space->x);
  bool forward = trial->problem->direction == ONEPASS_FORWARD;
  if (!forward || !has_role(trial->problem, RESIDUAL)) return x;
  double *residual = load_row(trial, &trial->want[RESIDUAL], row, space->dy);
  for (int64_t i = 0; i < trial->view.length; i++) {
    double rounded;
    store_element(trial->problem->dtype, &rounded, x[i] + residual[i]);
    load_elements(trial->problem->dtype, &rounded, 1, 1, &x[i]);
  }
  return x;
}

/* What is written once a row. Of a row without elements there is nothing to say: NaN is fine. */
static void judge_stats(const trial *trial, int64_t row, const row_terms *terms) {
  bool empty = trial->view.length == 0;
  if (wants(trial, MEAN)) {
    double got = load_one(&trial->got[MEAN], row), want = load_one(&trial->want[MEAN], row);
    /* one pass over a row with an infinity meets inf - inf; PyTorch's mean is NaN there, too */
    if (!(isinf(want) && isnan(got))) compare(trial, MEAN, row, got, want, terms->mean_error);
  }
  if (wants(trial, RSTD)) {
    double got = load_one(&trial->got[RSTD], row), want = load_one(&trial->want[RSTD], row);
    if (!(empty && isnan(got))) compare(trial, RSTD, row, got, want, terms->rstd * terms->stretch);
  }
}

/* What a row adds to the running statistics of its channel, and how far off that may be. */
static void add_running(const trial *trial, const space *space, int64_t row,
                        const row_terms *terms) {
  int64_t channel = weight_of(trial->problem, &trial->view, row, 0);
  double n = (double)trial->view.length, unbiased = n / (n - 1);
  double slack = trial->unit * sum_slack(trial, trial->view.length);
  space->bias_terms[channel] += fabs(terms->mean);
  space->bias_off[channel] += terms->mean_error;
  space->weight_terms[channel] += terms->variance * unbiased;
  space->weight_off[channel] +=
      (2 * slack * terms->variance + terms->mean_error * terms->mean_error +
       0x1p-52 * fabs(terms->mean) * sqrt(terms->variance)) *
      unbiased;
}

static void judge_moments_forward(const trial *trial, const space *space, int64_t row) {
  const double *x = load_summed(trial, row, space);
  const double *got = load_row(trial, &trial->got[Y], row, space->got);
  const double *want = load_row(trial, &trial->want[Y], row, space->want);
  row_terms terms = forward_terms(trial, x, row);
  for (int64_t i = 0; i < trial->view.length; i++) {
    int64_t w = weight_of(trial->problem, &trial->view, row, i);
    double normalized = (x[i] - terms.mean) * terms.rstd;
    double before = normalized * space->weight[w] + space->bias[w];
    double off = fabs(space->weight[w]) * (fabs(normalized) * terms.stretch + terms.shift) +
                 2 * trial->unit * fabs(space->bias[w]);
    compare_row(trial, Y, row, i, got[i], want[i], activated_error(trial, before, off));
  }
  judge_stats(trial, row, &terms);
  if (role_is_updated(trial->problem, RUNNING_MEAN)) add_running(trial, space, row, &terms);
  if (!wants(trial, SUM)) return;
  load_row(trial, &trial->got[SUM], row, space->got);
  load_row(trial, &trial->want[SUM], row, space->want);
  for (int64_t i = 0; i < trial->view.length; i++)
    compare_row(trial, SUM, row, i, space->got[i], space->want[i], 0);
}

/* was + momentum * (what the rows have on average - was). What it was is gone by now, but follows
 * from what the reference made of it. */
static void judge_running(const trial *trial, role role, const double *terms, const double *off) {
  int64_t channels = trial->problem->shape[1];
  if (!wants(trial, role) || channels == 0) return;
  double momentum = trial->problem->norm.momentum;
  double rows = (double)trial->view.rows / (double)channels; /* of a channel */
  double slack = trial->unit * sum_slack(trial, (int64_t)rows);
  for (int64_t i = 0; i < channels; i++) {
    double got = load_one(&trial->got[role], i), want = load_one(&trial->want[role], i);
    double moved = momentum * terms[i] / rows;
    if (isinf(want) && isnan(got)) continue; /* as the mean itself */
    compare(trial, role, i, got, want, slack * (2 * moved + fabs(want)) + momentum * off[i] / rows);
  }
}

/* ---- Backward ---- */

/* How far off the normalized values of a row may be: by the error of the mean of values around
 * zero, and by that of the reference, which takes the mean of x as it is, in double. */
static double normalized_error(const trial *trial, const double *x, double mean, double rstd) {
  double spread = 0, magnitude = 0, n = (double)trial->view.length;
  for (int64_t i = 0; i < trial->view.length; i++) {
    spread += fabs(x[i] - mean) / n;
    magnitude += fabs(x[i]) / n;
  }
  double slack = trial->unit * sum_slack(trial, trial->view.length);
  return rstd * (slack * spread + 0x1p-53 * reference_slack(trial->view.length) * magnitude);
}

/* The normalized values follow from the mean of x and the saved rstd; the saved mean is rounded and
 * only a help to find the true one. With running statistics both are taken as they are. */
static row_terms backward_terms(const trial *trial, const double *x, int64_t row) {
  double rstd = load_one(&trial->want[RSTD], row), n = (double)trial->view.length, mean = 0;
  if (trial->problem->norm.use_running)
    return given_terms(trial, load_one(&trial->want[MEAN], row), rstd);
  if (trial->problem->op->divisor != BY_DEVIATION) return (row_terms){.rstd = rstd};
  for (int64_t i = 0; i < trial->view.length; i++) mean += x[i] / n;
  double shift = normalized_error(trial, x, mean, rstd);
  return (row_terms){.mean = mean, .rstd = rstd, .shift = shift};
}

/* What the sums over a row are multiplied with, and how far off that may be, relatively. */
typedef struct share {
  double of_sums, slack;
} share;

static share share_of(const trial *trial, double rstd) {
  const onepass_norm *norm = &trial->problem->norm;
  if (norm->use_running) return (share){0, 0};
  if (trial->problem->op->divisor != BY_LENGTH) return (share){1 / (double)trial->view.length, 0};
  double rest = 1 - norm->eps * rstd; /* the length's part of the denominator */
  /* rstd is rounded: less than this is nothing to the reference, too */
  if (rest <= (trial->unit < 0x1p-50 ? 0x1p-50 : 0x1p-21)) return (share){0, 0};
  return norm->clamp ? (share){1, 0} : (share){1 / rest, 4 * trial->unit / rest};
}

/* An element's gradient behind the weight, and how far off it may be: its slope may be. */
typedef struct gradient {
  double normalized;     /* all without their signs */
  double of_y, of_y_off; /* dy times the activation's slope */
  double weighted, weighted_off;
} gradient;

static gradient gradient_of(const trial *trial, const space *space, const row_terms *terms,
                            double x, double dy, int64_t w) {
  double slack = trial->unit * sum_slack(trial, 1), weight = space->weight[w];
  double normalized = (x - terms->mean) * terms->rstd;
  double before = normalized * weight + space->bias[w];
  /* the sums of a row cannot wait for its mean: slopes are taken with the saved one, rounded */
  double saved = trial->unit * fabs(terms->mean) * terms->rstd;
  double off = fabs(weight) * (fabs(normalized) * slack + terms->shift + 2 * saved) +
               2 * trial->unit * fabs(space->bias[w]);
  gradient found = {.normalized = fabs(normalized)};
  found.of_y = fabs(dy) * steepness_near(trial->problem->norm.activation, before);
  found.of_y_off = fabs(dy) * slope_error(trial, before, off);
  found.weighted = found.of_y * fabs(weight);
  found.weighted_off = found.of_y_off * fabs(weight);
  return found;
}

static void judge_moments_backward(const trial *trial, const space *space, int64_t row) {
  int64_t length = trial->view.length;
  const double *x = load_row(trial, &trial->want[X], row, space->x);
  const double *dy = load_row(trial, &trial->want[DY], row, space->dy);
  row_terms terms = backward_terms(trial, x, row);
  share share = share_of(trial, terms.rstd);
  double plain = 0, crossed = 0, plain_off = 0, crossed_off = 0;
  for (int64_t i = 0; i < length; i++) {
    int64_t w = weight_of(trial->problem, &trial->view, row, i);
    gradient g = gradient_of(trial, space, &terms, x[i], dy[i], w);
    plain += g.weighted * share.of_sums;
    crossed += g.weighted * g.normalized * share.of_sums;
    plain_off += g.weighted_off * share.of_sums;
    crossed_off += g.weighted_off * g.normalized * share.of_sums;
    space->weight_terms[w] += g.of_y * g.normalized;
    space->weight_off[w] += g.of_y * terms.shift + g.of_y_off * g.normalized;
    space->bias_terms[w] += g.of_y;
    space->bias_off[w] += g.of_y_off;
  }
  if (!wants(trial, DX)) return;
  if (trial->problem->op->divisor != BY_DEVIATION) plain = plain_off = 0;
  const double *got = load_row(trial, &trial->got[DX], row, space->got);
  const double *want = load_row(trial, &trial->want[DX], row, space->want);
  bool summed = has_role(trial->problem, DSUM);
  if (summed) load_row(trial, &trial->want[DSUM], row, space->dsum);
  double slack = trial->unit * sum_slack(trial, length);
  for (int64_t i = 0; i < length; i++) {
    int64_t w = weight_of(trial->problem, &trial->view, row, i);
    gradient g = gradient_of(trial, space, &terms, x[i], dy[i], w);
    double rounding = slack * (g.weighted + plain + g.normalized * crossed);
    double shifted = terms.shift * (crossed + g.normalized * plain);
    double sloped = g.weighted_off + plain_off + g.normalized * crossed_off;
    double shared = share.slack * g.normalized * crossed;
    double added = summed ? 2 * trial->unit * fabs(space->dsum[i]) : 0;
    compare_row(trial, DX, row, i, got[i], want[i],
                terms.rstd * (rounding + shifted + sloped + shared) + added);
  }
}

static void judge_weight_sums(const trial *trial, role role, const double *terms,
                              const double *off) {
  if (!wants(trial, role)) return;
  int64_t count = weight_count(trial->problem);
  int64_t summed = count ? trial->view.rows * trial->view.length / count : 0;
  double slack = trial->unit * sum_slack(trial, summed);
  for (int64_t i = 0; i < count; i++)
    compare(trial, role, i, load_one(&trial->got[role], i), load_one(&trial->want[role], i),
            slack * terms[i] + off[i]);
}

/* ---- All ---- */

static void load_weights(const trial *trial, const space *space, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    space->weight[i] = 1;
    space->bias[i] = 0;
  }
  if (trial->want[WEIGHT].ndim) operand_load(&trial->want[WEIGHT], 0, 1, count, space->weight);
  if (trial->want[BIAS].ndim) operand_load(&trial->want[BIAS], 0, 1, count, space->bias);
}

static void judge_rows(const trial *trial, const space *space) {
  bool forward = trial->problem->direction == ONEPASS_FORWARD;
  bool l1 = trial->problem->op->divisor == BY_MAGNITUDE;
  void (*judge_row)(const struct trial *, const struct space *, int64_t) =
      l1 ? (forward ? judge_l1_forward : judge_l1_backward)
         : (forward ? judge_moments_forward : judge_moments_backward);
  for (int64_t row = 0; row < trial->view.rows; row++) judge_row(trial, space, row);
  if (forward) {
    judge_running(trial, RUNNING_VAR, space->weight_terms, space->weight_off);
    judge_running(trial, RUNNING_MEAN, space->bias_terms, space->bias_off);
  } else {
    judge_weight_sums(trial, DWEIGHT, space->weight_terms, space->weight_off);
    judge_weight_sums(trial, DBIAS, space->bias_terms, space->bias_off);
  }
}

bool judge_norm(const trial *trial) {
  int64_t row = trial->view.length + 1;
  int64_t weights = weight_count(trial->problem) + 1;
  double *scratch = calloc((size_t)(ROW_ARRAYS * row + WEIGHT_ARRAYS * weights), sizeof *scratch);
  if (!scratch) return false;
  double *by_weight = scratch + ROW_ARRAYS * row;
  space space = {.got = scratch,
                 .want = scratch + row,
                 .x = scratch + 2 * row,
                 .dy = scratch + 3 * row,
                 .dsum = scratch + 4 * row,
                 .weight = by_weight,
                 .bias = by_weight + weights,
                 .weight_terms = by_weight + 2 * weights,
                 .weight_off = by_weight + 3 * weights,
                 .bias_terms = by_weight + 4 * weights,
                 .bias_off = by_weight + 5 * weights};
  load_weights(trial, &space, weights - 1);
  judge_rows(trial, &space);
  free(scratch);
  return true;
}
