#include "judge.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "buffers.h"

/* What is known while judging one problem. Rows are lines along the axis that is summed. */
typedef struct trial {
  const problem *problem;
  const operand *got, *want;
  unsigned roles;
  verdict *verdict;
  view view;
  double unit;
  double *row[6]; /* scratch, as long as a row or its pooled twin */
} trial;

void verdict_merge(verdict *verdict, const struct verdict *found) {
  struct verdict merged = found->of_bound > verdict->of_bound ? *found : *verdict;
  merged.absolute = fmax(found->absolute, verdict->absolute);
  merged.relative = fmax(found->relative, verdict->relative);
  merged.wrong = found->wrong + verdict->wrong;
  *verdict = merged;
}

/* ---- One element ---- */

typedef struct precision {
  double rounding; /* half a unit in the last place, relative */
  double floor;    /* half the smallest subnormal, and a little for what happens around it */
  double largest;
} precision;

static precision precision_of(onepass_dtype dtype) {
  if (dtype_equal(dtype, ONEPASS_F64)) return (precision){0x1p-53, 0x1p-1070, DBL_MAX};
  if (dtype_equal(dtype, ONEPASS_F32)) return (precision){0x1p-24, 0x1p-148, FLT_MAX};
  if (dtype_equal(dtype, ONEPASS_F16)) return (precision){0x1p-11, 0x1p-25, 65504};
  return (precision){0x1p-8, 0x1p-133, 0x1.fep127};
}

/* Above 1 is wrong; infinitely wrong for a NaN or an infinity out of place. */
static double error_of_bound(precision precision, double got, double want, double arithmetic) {
  double bound =
      arithmetic * (1 + precision.rounding) + fabs(want) * precision.rounding + precision.floor;
  if (isnan(want)) return isnan(got) ? 0 : INFINITY;
  if (isinf(want) || isinf(got)) {
    bool overflows = fabs(want) + bound >= precision.largest;
    bool same_side = signbit(got) == signbit(want);
    if (overflows && same_side && (isinf(got) || fabs(got) >= precision.largest)) return 0;
    return isfinite(bound) || isinf(want) ? INFINITY : 0;
  }
  if (!isfinite(bound)) return 0;
  return isnan(got) ? INFINITY : fabs(got - want) / bound;
}

static void compare(const trial *trial, role role, int64_t index, double got, double want,
                    double arithmetic) {
  verdict *verdict = trial->verdict;
  double of_bound = error_of_bound(precision_of(trial->got[role].dtype), got, want, arithmetic);
  double error = fabs(got - want);
  if (isfinite(error) && isfinite(arithmetic)) {
    if (error > verdict->absolute) verdict->absolute = error;
    double relative = error / fmax(1, fabs(want));
    if (relative > verdict->relative) verdict->relative = relative;
  }
  if (of_bound > 1) verdict->wrong++;
  if (of_bound <= verdict->of_bound) return;
  verdict->of_bound = of_bound;
  verdict->role = role;
  verdict->index = index;
  verdict->got = got;
  verdict->want = want;
}

static bool wants(const trial *trial, role role) {
  return trial->got[role].ndim > 0 && (trial->roles >> role & 1);
}

/* What the reference, which adds doubles one after the other, may be off by: mostly the root of the
 * count, but a part of the count itself where the values are alike. */
static double reference_slack(int64_t terms) { return 4 + (double)terms / 4; }

/* What to multiply the unit roundoff with for a sum of this many terms. */
static double sum_slack(const trial *trial, int64_t terms) {
  double slack = 6 + log2(terms > 1 ? (double)terms : 1);
  return trial->unit < 0x1p-50 ? slack + reference_slack(terms) : slack;
}

/* Elements of a row: the lines of an (outer, length, inner) view are `inner` apart. */
static int64_t row_start(view view, int64_t row) {
  return view.inner == 0 ? 0 : row / view.inner * view.length * view.inner + row % view.inner;
}

static double *load_row(const trial *trial, const operand *operand, int64_t row, double *to) {
  operand_load(operand, row_start(trial->view, row), trial->view.inner, trial->view.length, to);
  return to;
}

/* ---- L1Norm ---- */

typedef struct l1_terms {
  double divisor; /* mean|x| + eps or sum|x| + eps */
  double share;   /* of each element in the divisor: 1/n or 1 */
} l1_terms;

static l1_terms l1_terms_of(const trial *trial, const double *x) {
  double sum = 0;
  for (int64_t i = 0; i < trial->view.length; i++) sum += fabs(x[i]);
  double share = trial->problem->reduction == ONEPASS_MEAN ? 1 / (double)trial->view.length : 1;
  return (l1_terms){sum * share + trial->problem->eps, share};
}

static void judge_l1_forward(const trial *trial, int64_t row) {
  view view = trial->view;
  const double *got = load_row(trial, &trial->got[Y], row, trial->row[0]);
  const double *want = load_row(trial, &trial->want[Y], row, trial->row[1]);
  double slack = trial->unit * sum_slack(trial, view.length);
  for (int64_t i = 0; i < view.length; i++)
    compare(trial, Y, row_start(view, row) + i * view.inner, got[i], want[i],
            slack * fabs(want[i]));
}

static void judge_l1_backward(const trial *trial, int64_t row) {
  view view = trial->view;
  const double *got = load_row(trial, &trial->got[DX], row, trial->row[0]);
  const double *want = load_row(trial, &trial->want[DX], row, trial->row[1]);
  const double *x = load_row(trial, &trial->want[X], row, trial->row[2]);
  const double *dy = load_row(trial, &trial->want[DY], row, trial->row[3]);
  l1_terms terms = l1_terms_of(trial, x);
  double through_divisor = 0; /* of the gradient, with every term's sign removed */
  for (int64_t i = 0; i < view.length; i++) through_divisor += fabs(dy[i] * x[i]);
  through_divisor *= terms.share / terms.divisor / terms.divisor;
  double slack = trial->unit * sum_slack(trial, view.length);
  for (int64_t i = 0; i < view.length; i++)
    compare(trial, DX, row_start(view, row) + i * view.inner, got[i], want[i],
            slack * (fabs(dy[i]) / terms.divisor + (x[i] != 0 ? through_divisor : 0)));
}

/* ---- LayerNorm ---- */

static double load_one(const operand *operand, int64_t index) {
  double value;
  operand_load(operand, index, 1, 1, &value);
  return value;
}

static void judge_stats(const trial *trial, int64_t row, double mean_error, double rstd_error) {
  if (wants(trial, MEAN)) {
    double got = load_one(&trial->got[MEAN], row), want = load_one(&trial->want[MEAN], row);
    /* one pass over a row with an infinity meets inf - inf; PyTorch's mean is NaN there, too */
    if (!(isinf(want) && isnan(got))) compare(trial, MEAN, row, got, want, mean_error);
  }
  if (wants(trial, RSTD))
    compare(trial, RSTD, row, load_one(&trial->got[RSTD], row), load_one(&trial->want[RSTD], row),
            rstd_error);
}

/* weight and bias are loaded once, in row[4] and row[5]. */
static void judge_layer_forward(const trial *trial, int64_t row) {
  int64_t length = trial->view.length;
  const double *got = load_row(trial, &trial->got[Y], row, trial->row[0]);
  const double *want = load_row(trial, &trial->want[Y], row, trial->row[1]);
  const double *x = load_row(trial, &trial->want[X], row, trial->row[2]);
  const double *weight = trial->row[4], *bias = trial->row[5];
  double sum = 0, magnitude = 0, squares = 0, n = (double)length;
  for (int64_t i = 0; i < length; i++) {
    sum += x[i];
    magnitude += fabs(x[i]);
  }
  double mean = sum / n;
  for (int64_t i = 0; i < length; i++) squares += (x[i] - mean) * (x[i] - mean);
  double rstd = 1 / sqrt(squares / n + trial->problem->eps);
  double slack = trial->unit * sum_slack(trial, length);
  double mean_error = slack * magnitude / n;
  double shift = mean_error * rstd; /* of the normalized values, when the mean is that far off */
  double stretch = slack + shift * shift;
  for (int64_t i = 0; i < length; i++) {
    double normalized = fabs(x[i] - mean) * rstd;
    compare(trial, Y, row * length + i, got[i], want[i],
            fabs(weight[i]) * (normalized * stretch + shift) + 2 * trial->unit * fabs(bias[i]));
  }
  judge_stats(trial, row, mean_error, rstd * stretch);
}

/* What the rows add up to: the magnitudes of the terms of dweight and dbias, and how far off the
 * terms of dweight may be because the mean of their row is. */
typedef struct column_terms {
  double *weight, *weight_off, *bias;
} column_terms;

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
 * only a help to find the true one. */
static void judge_layer_backward(const trial *trial, int64_t row, const column_terms *columns) {
  int64_t length = trial->view.length;
  const double *x = load_row(trial, &trial->want[X], row, trial->row[2]);
  const double *dy = load_row(trial, &trial->want[DY], row, trial->row[3]);
  const double *weight = trial->row[4];
  double rstd = load_one(&trial->want[RSTD], row), n = (double)length, mean = 0;
  for (int64_t i = 0; i < length; i++) mean += x[i] / n;
  double off = normalized_error(trial, x, mean, rstd), plain = 0, crossed = 0;
  for (int64_t i = 0; i < length; i++) {
    double normalized = fabs(x[i] - mean) * rstd, gradient = fabs(dy[i] * weight[i]);
    plain += gradient / n;
    crossed += gradient * normalized / n;
    columns->weight[i] += fabs(dy[i]) * normalized;
    columns->weight_off[i] += fabs(dy[i]) * off;
    columns->bias[i] += fabs(dy[i]);
  }
  if (!wants(trial, DX)) return;
  const double *got = load_row(trial, &trial->got[DX], row, trial->row[0]);
  const double *want = load_row(trial, &trial->want[DX], row, trial->row[1]);
  double slack = trial->unit * sum_slack(trial, length);
  for (int64_t i = 0; i < length; i++) {
    double normalized = fabs(x[i] - mean) * rstd, gradient = fabs(dy[i] * weight[i]);
    double rounding = slack * (gradient + plain + normalized * crossed);
    double shifted = off * (crossed + normalized * plain);
    compare(trial, DX, row * length + i, got[i], want[i], rstd * (rounding + shifted));
  }
}

/* off may be NULL. */
static void judge_column_sums(const trial *trial, role role, const double *terms,
                              const double *off) {
  if (!wants(trial, role)) return;
  double slack = trial->unit * sum_slack(trial, trial->view.outer);
  for (int64_t i = 0; i < trial->view.length; i++)
    compare(trial, role, i, load_one(&trial->got[role], i), load_one(&trial->want[role], i),
            slack * terms[i] + (off ? off[i] : 0));
}

static void load_weights(const trial *trial) {
  int64_t length = trial->view.length;
  for (int64_t i = 0; i < length; i++) {
    trial->row[4][i] = 1;
    trial->row[5][i] = 0;
  }
  if (trial->want[WEIGHT].ndim) operand_load(&trial->want[WEIGHT], 0, 1, length, trial->row[4]);
  if (trial->want[BIAS].ndim) operand_load(&trial->want[BIAS], 0, 1, length, trial->row[5]);
}

static bool judge_layer(const trial *trial) {
  load_weights(trial);
  if (trial->problem->direction == ONEPASS_FORWARD) {
    for (int64_t row = 0; row < trial->view.outer; row++) judge_layer_forward(trial, row);
    return true;
  }
  size_t count = (size_t)trial->view.length + 1;
  double *terms = calloc(3 * count, sizeof *terms);
  if (!terms) return false;
  column_terms columns = {terms, terms + count, terms + 2 * count};
  for (int64_t row = 0; row < trial->view.outer; row++) judge_layer_backward(trial, row, &columns);
  judge_column_sums(trial, DWEIGHT, columns.weight, columns.weight_off);
  judge_column_sums(trial, DBIAS, columns.bias, NULL);
  free(terms);
  return true;
}

/* ---- AvgPool1d ---- */

typedef struct window {
  int64_t first, last; /* elements of the input, without padding */
  double divisor;
} window;

static window window_at(const trial *trial, int64_t position) {
  const problem *problem = trial->problem;
  int64_t length = trial->view.length;
  int64_t start = position * problem->stride - problem->padding;
  int64_t end = start + problem->kernel;
  if (end > length + problem->padding) end = length + problem->padding;
  window window = {start > 0 ? start : 0, end < length ? end : length, 0};
  int64_t counted = problem->count_include_pad ? end - start : window.last - window.first;
  window.divisor = counted > 0 ? (double)counted : 1;
  return window;
}

static void judge_pool_forward(const trial *trial, int64_t row) {
  int64_t length = trial->view.length, pooled = trial->problem->pooled;
  double *got = trial->row[0], *want = trial->row[1], *x = trial->row[2];
  operand_load(&trial->got[Y], row * pooled, 1, pooled, got);
  operand_load(&trial->want[Y], row * pooled, 1, pooled, want);
  operand_load(&trial->want[X], row * length, 1, length, x);
  double slack = trial->unit * sum_slack(trial, trial->problem->kernel);
  for (int64_t position = 0; position < pooled; position++) {
    window window = window_at(trial, position);
    double terms = 0;
    for (int64_t i = window.first; i < window.last; i++) terms += fabs(x[i]);
    compare(trial, Y, row * pooled + position, got[position], want[position],
            slack * terms / window.divisor);
  }
}

static void judge_pool_backward(const trial *trial, int64_t row) {
  int64_t length = trial->view.length, pooled = trial->problem->pooled;
  double *got = trial->row[0], *want = trial->row[1], *dy = trial->row[2], *terms = trial->row[3];
  operand_load(&trial->got[DX], row * length, 1, length, got);
  operand_load(&trial->want[DX], row * length, 1, length, want);
  operand_load(&trial->want[DY], row * pooled, 1, pooled, dy);
  for (int64_t i = 0; i < length; i++) terms[i] = 0;
  for (int64_t position = 0; position < pooled; position++) {
    window window = window_at(trial, position);
    for (int64_t i = window.first; i < window.last; i++)
      terms[i] += fabs(dy[position]) / window.divisor;
  }
  double slack = trial->unit * sum_slack(trial, trial->problem->kernel);
  for (int64_t i = 0; i < length; i++)
    compare(trial, DX, row * length + i, got[i], want[i], slack * terms[i]);
}

/* ---- All ---- */

static bool judge_rows(const trial *trial) {
  bool forward = trial->problem->direction == ONEPASS_FORWARD;
  if (trial->problem->op == OP_LAYER_NORM) return judge_layer(trial);
  for (int64_t row = 0; row < trial->view.outer * trial->view.inner; row++) {
    if (trial->problem->op == OP_L1_NORM)
      (forward ? judge_l1_forward : judge_l1_backward)(trial, row);
    else
      (forward ? judge_pool_forward : judge_pool_backward)(trial, row);
  }
  return true;
}

bool judge(const problem *problem, const operand got[ROLES], const operand want[ROLES],
           unsigned roles, verdict *verdict) {
  trial trial = {.problem = problem, .got = got, .want = want, .roles = roles, .verdict = verdict};
  trial.view = problem_view(problem);
  trial.unit = dtype_equal(problem->dtype, ONEPASS_F64) ? 0x1p-53 : 0x1p-24;
  int64_t longest = trial.view.length > problem->pooled ? trial.view.length : problem->pooled;
  double *scratch = malloc((size_t)(longest + 1) * 6 * sizeof *scratch);
  if (!scratch) return false;
  for (int i = 0; i < 6; i++) trial.row[i] = scratch + i * (longest + 1);
  bool finished = judge_rows(&trial);
  free(scratch);
  return finished;
}
