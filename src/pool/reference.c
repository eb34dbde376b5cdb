/* The reference: each output's window, element by element, in double. */
#include "core/plan.h"

static double get(const onepass_plan *plan, const onepass_buffers *buffers, onepass_role role,
                  int64_t line, int64_t offset) {
  return onepass_load(plan->layouts.of[role].type, onepass_buffer(buffers, role),
                      onepass_walk_offset(&plan->problem.pool.lines, role, line) + offset);
}

static void put(const onepass_plan *plan, const onepass_buffers *buffers, onepass_role role,
                int64_t line, int64_t offset, double value) {
  onepass_store(plan->layouts.of[role].type, onepass_buffer(buffers, role),
                onepass_walk_offset(&plan->problem.pool.lines, role, line) + offset, value);
}

static void pool_line(const onepass_plan *plan, const onepass_buffers *buffers, int64_t line) {
  const onepass_pool_problem *p = &plan->problem.pool;
  for (int64_t o = 0; o < p->pooled; o++) {
    const onepass_window window = onepass_window_of(p, o);
    double sum = 0;
    for (int64_t i = window.begin; i < window.end; i++) {
      sum += get(plan, buffers, ONEPASS_ROLE_X, line, i * p->long_step);
    }
    put(plan, buffers, ONEPASS_ROLE_Y, line, o * p->pooled_step, sum / (double)window.divisor);
  }
}

/* dx_i gathers from every output whose window holds i. Windows move to the right, so the first that
 * can hold i only ever moves on. */
static void pool_line_backward(const onepass_plan *plan, const onepass_buffers *buffers,
                               int64_t line) {
  const onepass_pool_problem *p = &plan->problem.pool;
  int64_t first = 0;
  for (int64_t i = 0; i < p->length; i++) {
    while (first < p->pooled && onepass_window_of(p, first).end <= i) first++;
    double sum = 0;
    for (int64_t o = first; o < p->pooled; o++) {
      const onepass_window window = onepass_window_of(p, o);
      if (window.begin > i) break;
      sum += get(plan, buffers, ONEPASS_ROLE_DY, line, o * p->pooled_step) / (double)window.divisor;
    }
    put(plan, buffers, ONEPASS_ROLE_DX, line, i * p->long_step, sum);
  }
}

void onepass_pool_run_reference(const onepass_plan *plan, const onepass_buffers *buffers,
                                void *workspace) {
  const onepass_pool_problem *p = &plan->problem.pool;
  (void)workspace;
  for (int64_t line = 0; line < p->lines.count; line++) {
    (p->backward ? pool_line_backward : pool_line)(plan, buffers, line);
  }
}
