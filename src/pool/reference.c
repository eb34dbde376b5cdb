/* The reference: each output's window, or each element's windows, one by one, in double. */
#include <math.h>

#include "core/plan.h"

/* ---- Positions ------------------------------------------------------------------------------- */

typedef struct position {
  int64_t at[ONEPASS_POOL_AXES];
} position;

/* What windows along the three axes hold together. */
typedef struct box {
  onepass_window side[ONEPASS_POOL_AXES];
} box;

/* The first position of a box; false if there is none. */
static bool first_of(const box *b, position *where) {
  bool any = true;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    where->at[a] = b->side[a].begin;
    any = any && b->side[a].begin < b->side[a].end;
  }
  return any;
}

/* On to the next in row-major order; false after the last. */
static bool next_of(const box *b, position *where) {
  for (int a = ONEPASS_POOL_AXES - 1; a >= 0; a--) {
    where->at[a] += b->side[a].step;
    if (where->at[a] < b->side[a].end) return true;
    where->at[a] = b->side[a].begin;
  }
  return false;
}

#define FOR_ALL(where, b) \
  for (bool more_ = first_of((b), (where)); more_; more_ = next_of((b), (where)))

static box all_outputs(const onepass_pool_problem *p) {
  box b;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    b.side[a] = (onepass_window){.end = p->axis[a].pooled, .step = 1};
  }
  return b;
}

static box all_elements(const onepass_pool_problem *p) {
  box b;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    b.side[a] = (onepass_window){.end = p->axis[a].length, .step = 1};
  }
  return b;
}

static box window_of(const onepass_pool_problem *p, const position *output) {
  box b;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    b.side[a] = onepass_window_of(&p->axis[a], output->at[a]);
  }
  return b;
}

static box outputs_of(const onepass_pool_problem *p, const position *element) {
  box b;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    b.side[a] = onepass_outputs_of(&p->axis[a], element->at[a]);
  }
  return b;
}

static bool holds(const box *b, const position *element) {
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    if (!onepass_window_holds(b->side[a], element->at[a])) return false;
  }
  return true;
}

/* The number that indices have for an element. */
static int64_t index_of(const onepass_pool_problem *p, const position *element) {
  return (element->at[0] * p->high.length + element->at[1]) * p->wide.length + element->at[2];
}

/* ---- Elements -------------------------------------------------------------------------------- */

typedef struct plane {
  const onepass_plan *plan;
  const onepass_pool_problem *problem;
  const onepass_buffers *buffers;
  int64_t number;
} plane;

static int64_t offset_of(const plane *in, onepass_role role, const position *where) {
  int64_t offset = onepass_walk_offset(&in->problem->planes, role, in->number);
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    offset += where->at[a] * in->problem->axis[a].step[role];
  }
  return offset;
}

static double get(const plane *in, onepass_role role, const position *where) {
  return onepass_load(in->plan->layouts.of[role].type, onepass_buffer(in->buffers, role),
                      offset_of(in, role, where));
}

static void put(const plane *in, onepass_role role, const position *where, double value) {
  onepass_store(in->plan->layouts.of[role].type, onepass_buffer(in->buffers, role),
                offset_of(in, role, where), value);
}

static int64_t *index_at(const plane *in, const position *output) {
  return (int64_t *)in->buffers->indices + offset_of(in, ONEPASS_ROLE_INDICES, output);
}

/* As PyTorch has it: a half is a square root, which -inf has none of though C's pow gives it one. */
static double power(double x, double exponent) {
  if (exponent == 0.5) return sqrt(x);
  if (exponent == -0.5) return 1 / sqrt(x);
  return pow(x, exponent);
}

/* ---- Forward: one output --------------------------------------------------------------------- */

static void average(const plane *in, const position *output) {
  const box window = window_of(in->problem, output);
  double sum = 0;
  position element;
  FOR_ALL(&element, &window) sum += get(in, ONEPASS_ROLE_X, &element);
  put(in, ONEPASS_ROLE_Y, output, sum / onepass_divisor_of(in->problem, window.side));
}

/* PyTorch's order: the first of several largest, but the last of several NaNs. Of a window that is
 * all padding, -inf and where its first element would be. */
static void maximum(const plane *in, const position *output) {
  const box window = window_of(in->problem, output);
  double largest = -INFINITY;
  position element;
  first_of(&window, &element);
  int64_t index = index_of(in->problem, &element);
  FOR_ALL(&element, &window) {
    const double x = get(in, ONEPASS_ROLE_X, &element);
    if (x > largest || isnan(x)) {
      largest = x;
      index = index_of(in->problem, &element);
    }
  }
  put(in, ONEPASS_ROLE_Y, output, largest);
  if (onepass_has(&in->plan->layouts, ONEPASS_ROLE_INDICES)) *index_at(in, output) = index;
}

/* PyTorch's root of the average times the whole window's size: a window that ceil_mode lets hang
 * over the end weighs as much as the others. */
static void root_of_powers(const plane *in, const position *output) {
  const onepass_pool_problem *p = in->problem;
  const box window = window_of(p, output);
  double sum = 0;
  position element;
  FOR_ALL(&element, &window) sum += power(get(in, ONEPASS_ROLE_X, &element), p->p);
  const double mean = sum / onepass_divisor_of(p, window.side);
  put(in, ONEPASS_ROLE_Y, output, power(mean * p->elements, 1 / p->p));
}

/* ---- Backward: what one output adds to one of its elements ----------------------------------- */

static double share_of_average(const plane *in, const box *window, const position *output,
                               const position *element) {
  (void)element;
  return get(in, ONEPASS_ROLE_DY, output) / onepass_divisor_of(in->problem, window->side);
}

static double share_of_maximum(const plane *in, const box *window, const position *output,
                               const position *element) {
  (void)window;
  const bool is_largest = *index_at(in, output) == index_of(in->problem, element);
  return is_largest ? get(in, ONEPASS_ROLE_DY, output) : 0;
}

/* Without the factor p x^(p-1), which all shares of an element have. y = m^(1/p), so m^(1/p-1) is
 * y^(1-p). As in PyTorch, windows whose powers add up to 0 have no gradient, and neither do NaNs where
 * y^(1-p) is not one (p = 1). */
static double share_of_root(const plane *in, const box *window, const position *output,
                            const position *element) {
  (void)element;
  const onepass_pool_problem *p = in->problem;
  const double y = get(in, ONEPASS_ROLE_Y, output), dy = get(in, ONEPASS_ROLE_DY, output);
  if (y == 0) return 0;
  const double slope = dy * (power(y, 1 - p->p) / p->p);
  return (isnan(y) ? 0 * slope : slope) * p->elements / onepass_divisor_of(p, window->side);
}

/* ---- The operators --------------------------------------------------------------------------- */

static const struct {
  void (*forward)(const plane *in, const position *output);
  double (*share)(const plane *in, const box *window, const position *output,
                  const position *element);
} operators[] = {[ONEPASS_AVG_POOL] = {average, share_of_average},
                 [ONEPASS_MAX_POOL] = {maximum, share_of_maximum},
                 [ONEPASS_LP_POOL] = {root_of_powers, share_of_root}};

/* dx of an element gathers from every output whose window holds it. */
static void gather(const plane *in, const position *element) {
  const onepass_pool_problem *p = in->problem;
  const box outputs = outputs_of(p, element);
  double sum = 0;
  position output;
  FOR_ALL(&output, &outputs) {
    const box window = window_of(p, &output);
    if (holds(&window, element)) sum += operators[p->op].share(in, &window, &output, element);
  }
  if (p->op == ONEPASS_LP_POOL) sum *= p->p * power(get(in, ONEPASS_ROLE_X, element), p->p - 1);
  put(in, ONEPASS_ROLE_DX, element, sum);
}

void onepass_pool_run_reference(const onepass_plan *plan, const onepass_buffers *buffers,
                                void *workspace) {
  const onepass_pool_problem *p = &plan->problem.pool;
  const box all = p->backward ? all_elements(p) : all_outputs(p);
  (void)workspace;
  for (int64_t number = 0; number < p->planes.count; number++) {
    const plane in = {plan, p, buffers, number};
    position where;
    FOR_ALL(&where, &all)(p->backward ? gather : operators[p->op].forward)(&in, &where);
  }
}
