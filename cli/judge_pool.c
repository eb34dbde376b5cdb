#include <math.h>
#include <stdlib.h>

#include "judge_trial.h"

/* A plane has three axes, those that an operator lacks with one element and one window. */
typedef struct axis {
  int64_t length, pooled, kernel, stride, padding, dilation;
} axis;

/* A window along one axis, without padding, and its factor of the divisor. */
typedef struct window {
  int64_t first, last, step;
  double counted;
} window;

typedef struct planes {
  axis axes[POOL_AXES];
  int64_t length, pooled;          /* elements of a plane, before and after pooling */
  double *got, *want, *x, *dy, *y; /* of one plane */
  double *terms;                   /* the magnitudes that add up to a result */
} planes;

static axis axis_of(const problem *problem, int number) {
  int a = number - (POOL_AXES - problem->op->spatial);
  if (a < 0) return (axis){1, 1, 1, 1, 0, 1};
  const onepass_pool *pool = &problem->pool;
  return (axis){.length = problem->shape[problem->ndim - problem->op->spatial + a],
                .pooled = problem->pooled[a],
                .kernel = pool->kernel[a],
                .stride = pool->stride[a],
                .padding = pool->padding[a],
                .dilation = pool->dilation[a] ? pool->dilation[a] : 1};
}

static window window_at(const problem *problem, const axis *axis, int64_t position) {
  if (axis->kernel == 0) { /* adaptive */
    int64_t first = position * axis->length / axis->pooled;
    int64_t last = ((position + 1) * axis->length + axis->pooled - 1) / axis->pooled;
    return (window){first, last, 1, (double)(last - first)};
  }
  int64_t start = position * axis->stride - axis->padding;
  int64_t end = start + (axis->kernel - 1) * axis->dilation + 1;
  if (end > axis->length + axis->padding) end = axis->length + axis->padding;
  double padded = (double)(end - start);
  while (start < 0) start += axis->dilation;
  if (end > axis->length) end = axis->length;
  double counted = problem->pool.count_include_pad ? padded : (double)(end - start);
  return (window){start, end, axis->dilation, counted > 0 ? counted : 1};
}

/* What the sum over a window is divided by; lp_pool also multiplies with the window's size. */
static double divisor_of(const problem *problem, const window windows[POOL_AXES]) {
  double divisor = windows[0].counted * windows[1].counted * windows[2].counted;
  if (problem->pool.divisor) return (double)problem->pool.divisor;
  if (problem->op->pool != ONEPASS_LP_POOL) return divisor;
  for (int a = 0; a < problem->op->spatial; a++) divisor /= (double)problem->pool.kernel[a];
  return divisor;
}

/* Call visit with the number of every element in the window of every output. */
typedef void (*window_visitor)(const planes *planes, int64_t output, int64_t element,
                               double divisor);

static void visit_window(const trial *trial, const planes *planes, int64_t output,
                         const window windows[POOL_AXES], window_visitor visit) {
  double divisor = divisor_of(trial->problem, windows);
  const window *deep = &windows[0], *high = &windows[1], *wide = &windows[2];
  for (int64_t d = deep->first; d < deep->last; d += deep->step)
    for (int64_t h = high->first; h < high->last; h += high->step)
      for (int64_t w = wide->first; w < wide->last; w += wide->step)
        visit(planes, output, (d * planes->axes[1].length + h) * planes->axes[2].length + w,
              divisor);
}

static void visit_windows(const trial *trial, const planes *planes, window_visitor visit) {
  const axis *axes = planes->axes;
  window windows[POOL_AXES];
  int64_t output = 0;
  for (int64_t d = 0; d < axes[0].pooled; d++) {
    windows[0] = window_at(trial->problem, &axes[0], d);
    for (int64_t h = 0; h < axes[1].pooled; h++) {
      windows[1] = window_at(trial->problem, &axes[1], h);
      for (int64_t w = 0; w < axes[2].pooled; w++) {
        windows[2] = window_at(trial->problem, &axes[2], w);
        visit_window(trial, planes, output++, windows, visit);
      }
    }
  }
}

/* The number of terms in the largest window, or of windows with one element: adaptive ones have at
 * most one more on each side than the lengths' quotient. */
static int64_t window_size(const planes *planes) {
  int64_t size = 1;
  for (int a = 0; a < POOL_AXES; a++) {
    const axis *axis = &planes->axes[a];
    int64_t pooled = axis->pooled ? axis->pooled : 1, length = axis->length ? axis->length : 1;
    size *= axis->kernel ? axis->kernel : length / pooled + pooled / length + 2;
  }
  return size;
}

/* ---- What adds up ---- */

static bool is_lp(const trial *trial) { return trial->problem->op->pool == ONEPASS_LP_POOL; }

/* Make values into the magnitudes of their powers. */
static void take_powers(double *values, int64_t count, double exponent) {
  for (int64_t i = 0; i < count && exponent != 1; i++) values[i] = pow(fabs(values[i]), exponent);
  for (int64_t i = 0; i < count && exponent == 1; i++) values[i] = fabs(values[i]);
}

static void add_element(const planes *planes, int64_t output, int64_t element, double divisor) {
  planes->terms[output] += planes->x[element] / divisor;
}

static void add_share(const planes *planes, int64_t output, int64_t element, double divisor) {
  planes->terms[element] += planes->dy[output] / divisor;
}

/* ---- Outputs ---- */

/* How far off y = m^(1/p) is when m may be off: relatively a p-th of that. Where m may as well be 0, its
 * root may be anything, even NaN. */
static double root_error(const trial *trial, double y, double m, double m_off) {
  double p = trial->problem->pool.p;
  double smallest = trial->unit < 0x1p-50 ? 0x1p-1070 : 0x1p-146; /* powers may be subnormal */
  double relative = (m_off + smallest) / m;
  if (relative >= 0.25) return INFINITY;
  return fabs(y) * (1.5 * relative / p + 4 * trial->unit);
}

static void judge_plane_forward(const trial *trial, const planes *planes, int64_t plane) {
  onepass_pool_op op = trial->problem->op->pool;
  double p = trial->problem->pool.p;
  operand_load(&trial->got[Y], plane * planes->pooled, 1, planes->pooled, planes->got);
  operand_load(&trial->want[Y], plane * planes->pooled, 1, planes->pooled, planes->want);
  if (op != ONEPASS_MAX_POOL) {
    operand_load(&trial->want[X], plane * planes->length, 1, planes->length, planes->x);
    take_powers(planes->x, planes->length, is_lp(trial) ? p : 1);
    for (int64_t i = 0; i < planes->pooled; i++) planes->terms[i] = 0;
    visit_windows(trial, planes, add_element);
  }
  double slack = trial->unit * sum_slack(trial, window_size(planes));
  for (int64_t i = 0; i < planes->pooled; i++) {
    double got = planes->got[i], want = planes->want[i], off = 0; /* maxima are exact */
    if (op == ONEPASS_AVG_POOL) off = slack * planes->terms[i];
    if (is_lp(trial)) {
      double m_off = slack * planes->terms[i];
      off = root_error(trial, want, pow(fabs(want), p), m_off);
      if (isnan(got) && !isnan(want) && isinf(off)) continue;
      if (isnan(want) && pow(fabs(got), p) <= m_off) continue;
    }
    compare(trial, Y, plane * planes->pooled + i, got, want, off);
  }
  if (!wants(trial, INDICES)) return;
  operand_load(&trial->got[INDICES], plane * planes->pooled, 1, planes->pooled, planes->got);
  operand_load(&trial->want[INDICES], plane * planes->pooled, 1, planes->pooled, planes->want);
  for (int64_t i = 0; i < planes->pooled; i++)
    compare(trial, INDICES, plane * planes->pooled + i, planes->got[i], planes->want[i], 0);
}

/* The gradients of maxima go where the indices say. */
static void add_maxima(const trial *trial, const planes *planes, int64_t plane) {
  for (int64_t i = 0; i < planes->pooled; i++) {
    int64_t index = (int64_t)load_one(&trial->want[INDICES], plane * planes->pooled + i);
    if (index >= 0 && index < planes->length) planes->terms[index] += planes->dy[i];
  }
}

static void judge_plane_backward(const trial *trial, const planes *planes, int64_t plane) {
  operand_load(&trial->got[DX], plane * planes->length, 1, planes->length, planes->got);
  operand_load(&trial->want[DX], plane * planes->length, 1, planes->length, planes->want);
  operand_load(&trial->want[DY], plane * planes->pooled, 1, planes->pooled, planes->dy);
  if (has_role(trial->problem, X)) {
    operand_load(&trial->want[X], plane * planes->length, 1, planes->length, planes->x);
    operand_load(&trial->want[Y], plane * planes->pooled, 1, planes->pooled, planes->y);
    for (int64_t i = 0; i < planes->pooled; i++)
      planes->dy[i] = planes->y[i] == 0 ? 0 : planes->dy[i]; /* no powers, no gradient */
    take_powers(planes->y, planes->pooled, 1 - trial->problem->pool.p);
    take_powers(planes->x, planes->length, trial->problem->pool.p - 1);
  }
  for (int64_t i = 0; i < planes->pooled; i++) {
    planes->dy[i] = fabs(planes->dy[i]);
    if (is_lp(trial) && planes->dy[i] != 0) planes->dy[i] *= planes->y[i];
  }
  for (int64_t i = 0; i < planes->length; i++) planes->terms[i] = 0;
  if (trial->problem->op->pool == ONEPASS_MAX_POOL)
    add_maxima(trial, planes, plane);
  else
    visit_windows(trial, planes, add_share);
  double slack = trial->unit * sum_slack(trial, window_size(planes));
  for (int64_t i = 0; i < planes->length; i++)
    compare(trial, DX, plane * planes->length + i, planes->got[i], planes->want[i],
            slack * planes->terms[i] * (is_lp(trial) ? planes->x[i] : 1));
}

/* ---- All ---- */

bool judge_pool(const trial *trial) {
  planes planes = {.length = 1, .pooled = 1};
  for (int a = 0; a < POOL_AXES; a++) {
    planes.axes[a] = axis_of(trial->problem, a);
    planes.length *= planes.axes[a].length;
    planes.pooled *= planes.axes[a].pooled;
  }
  int64_t most = (planes.length > planes.pooled ? planes.length : planes.pooled) + 1;
  double *scratch = malloc((size_t)most * 6 * sizeof *scratch);
  if (!scratch) return false;
  double **const arrays[] = {&planes.got, &planes.want, &planes.x,
                             &planes.dy,  &planes.y,    &planes.terms};
  for (int i = 0; i < 6; i++) *arrays[i] = scratch + i * most;
  bool forward = trial->problem->direction == ONEPASS_FORWARD;
  for (int64_t plane = 0; plane < trial->view.rows; plane++)
    (forward ? judge_plane_forward : judge_plane_backward)(trial, &planes, plane);
  free(scratch);
  return true;
}
