#define _POSIX_C_SOURCE 200809L
#include "check_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffers.h"

/* A case with its memory. */
typedef struct session {
  const checker *checker;
  const check_case *check_case;
  const problem *problem;
  operand operands[ROLES];        /* inputs as they are given, outputs as they were written */
  operand want[ROLES];            /* of the reference */
  unsigned char *snapshot[ROLES]; /* outputs of the first run on a vector level, guards and all */
  outcome *outcome;
} session;

__attribute__((format(printf, 2, 3))) static bool fail(session *session, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(session->outcome->reason, sizeof session->outcome->reason, format, arguments);
  va_end(arguments);
  session->outcome->passed = false;
  return false;
}

static bool fail_status(session *session, const char *what, onepass_status status) {
  return fail(session, "%s: %s: %s", what, onepass_status_name(status), onepass_last_message());
}

static const char *level_name(int32_t level) {
  static const char *const names[] = {"best", "baseline", "avx2", "avx512", "neon_bf16"};
  return names[level];
}

static bool is_output(const session *session, role role) {
  return session->operands[role].ndim > 0 && role_is_output(role, session->problem->direction);
}

void find_levels(checker *checker) {
  problem problem = {.op = OP_L1_NORM, .dtype = ONEPASS_F32, .ndim = 1, .shape = {8}};
  operand operands[ROLES];
  problem_operands(&problem, LAYOUT_COMPACT, operands);
  checker->level_count = 0;
  for (int32_t level = ONEPASS_VECTOR_BASELINE; level <= ONEPASS_VECTOR_NEON_BF16; level++) {
    onepass_options options = {.vector_level = level};
    onepass_plan *plan = NULL;
    if (problem_plan(&problem, operands, &options, &plan) == ONEPASS_OK)
      checker->levels[checker->level_count++] = level;
    onepass_plan_destroy(plan);
  }
}

/* ---- Inputs ---- */

/* Values whose squares, or for l1_norm whose sums, still fit into the type. */
static distribution distribution_of(const check_case *check_case) {
  bool layer = check_case->problem.op == OP_LAYER_NORM;
  onepass_dtype dtype = check_case->problem.dtype;
  bool f16 = dtype_equal(dtype, ONEPASS_F16), f64 = dtype_equal(dtype, ONEPASS_F64);
  double huge = f16 ? 1e4 : f64 ? (layer ? 1e100 : 1e150) : (layer ? 1e15 : 1e30);
  switch (check_case->values) {
    case VALUES_OFFSET:
      return (distribution){dtype.bits == 16 ? 100 : 1e4, 1};
    case VALUES_TINY:
      return (distribution){0, f16 ? 1e-3 : 1 / huge};
    case VALUES_HUGE:
      return (distribution){0, huge};
    default:
      return (distribution){0, 1};
  }
}

static void zero_some(const session *session, operand *operand, uint64_t seed) {
  view view = problem_view(session->problem);
  for (int64_t i = 0; i < operand->elements; i++) {
    int64_t row = i / (view.length * view.inner) * view.inner + i % view.inner;
    if (row % 3 == 2 || random_bits(seed, (uint64_t)i) % 3 == 0)
      store_element(operand->dtype, operand_at(operand, i), 0);
  }
}

static void fill_operand(session *session, role role, uint64_t seed) {
  operand *operand = &session->operands[role];
  /* What the values of a case describe is x, or dy where there is no x. */
  bool main = role == X || (role == DY && session->problem->op == OP_AVG_POOL1D);
  distribution normal = {0, 1};
  distribution wanted = main ? distribution_of(session->check_case) : normal;
  if (operand->compact) {
    int32_t threads = operand->elements > 1 << 20 ? 4 : 1;
    fill_random(operand->dtype, operand->data, operand->elements, wanted, seed, threads);
  } else {
    for (int64_t i = 0; i < operand->elements; i++)
      store_element(operand->dtype, operand_at(operand, i),
                    wanted.mean + wanted.deviation * random_normal(seed, (uint64_t)i));
  }
  if (!main || operand->elements == 0) return;
  values values = session->check_case->values;
  if (values == VALUES_ZEROS) zero_some(session, operand, seed + 1);
  double special = values == VALUES_NAN ? NAN : seed & 1 ? INFINITY : -INFINITY;
  if (values == VALUES_NAN || values == VALUES_INF)
    store_element(operand->dtype, operand_at(operand, operand->elements / 2), special);
}

/* mean and rstd for the backward are those the reference finds. */
static bool fill_stats(session *session) {
  problem forward = *session->problem;
  forward.direction = ONEPASS_FORWARD;
  forward.weight = forward.bias = false;
  forward.stats = true;
  operand operands[ROLES], found[ROLES];
  problem_operands(&forward, LAYOUT_COMPACT, operands);
  operands[X] = session->operands[X];
  onepass_status status = run_reference(&forward, operands, 0, found);
  for (role role = MEAN; role <= RSTD && status == ONEPASS_OK; role++) {
    operand *given = &session->operands[role];
    for (int64_t i = 0; i < given->elements; i++) {
      double value;
      operand_load(&found[role], i, 1, 1, &value);
      store_element(given->dtype, operand_at(given, i), value);
    }
  }
  operands_free(found);
  return status == ONEPASS_OK || fail_status(session, "reference forward", status);
}

static bool prepare(session *session) {
  problem_operands(session->problem, session->check_case->layout, session->operands);
  uint64_t seed = random_bits(session->checker->seed, (uint64_t)session->check_case->number);
  for (role role = X; role < ROLES; role++) {
    operand *operand = &session->operands[role];
    if (operand->ndim == 0) continue;
    if (!operand_allocate(operand, session->check_case->layout)) return fail(session, "no memory");
    if (!is_output(session, role)) {
      fill_operand(session, role, random_bits(seed, (uint64_t)role));
      continue;
    }
    session->snapshot[role] = allocate_bytes(operand->memory_size);
    if (!session->snapshot[role]) return fail(session, "no memory");
  }
  bool needs_stats =
      session->problem->op == OP_LAYER_NORM && session->problem->direction == ONEPASS_BACKWARD;
  return !needs_stats || fill_stats(session);
}

/* ---- Runs ---- */

static role overwritten_input(const session *session) {
  return session->check_case->in_place == OVER_DY ? DY : X;
}

/* Outputs full of PATTERN, or of the input they will overwrite; and the operands of the call, which
 * differ from the session's in that the overwritten input is the output. */
static void reset_outputs(session *session, operand call[ROLES]) {
  for (role role = X; role < ROLES; role++)
    if (is_output(session, role))
      memset(session->operands[role].memory, PATTERN, (size_t)session->operands[role].memory_size);
  memcpy(call, session->operands, sizeof session->operands);
  if (session->check_case->in_place == SEPARATE) return;
  role input = overwritten_input(session);
  operand *from = &session->operands[input];
  operand *to = &session->operands[session->problem->direction == ONEPASS_FORWARD ? Y : DX];
  for (int64_t i = 0; i < from->elements; i++)
    memcpy(operand_at(to, i), operand_at(from, i), (size_t)dtype_size(from->dtype));
  call[input] = *to;
}

static bool run_plan(session *session, const onepass_plan *plan, const operand call[ROLES],
                     const char *what) {
  int64_t size = (int64_t)onepass_plan_workspace(plan);
  unsigned char *workspace = allocate_bytes(size + GUARD);
  if (!workspace) return fail(session, "no memory");
  memset(workspace, PATTERN, (size_t)size + GUARD);
  onepass_buffers buffers = operand_buffers(call);
  onepass_status status = onepass_run(plan, &buffers, size ? workspace : NULL, (size_t)size, NULL);
  bool overrun = false;
  for (int i = 0; i < GUARD; i++) overrun = overrun || workspace[size + i] != PATTERN;
  free(workspace);
  if (status != ONEPASS_OK) return fail_status(session, what, status);
  return !overrun || fail(session, "%s: wrote behind its workspace", what);
}

static bool run_once(session *session, int32_t level, int32_t threads) {
  char what[64];
  snprintf(what, sizeof what, "%s, %" PRId32 " threads", level_name(level), threads);
  operand call[ROLES];
  reset_outputs(session, call);
  onepass_options options = {.threads = threads, .vector_level = level};
  onepass_plan *plan = NULL;
  onepass_status status = problem_plan(session->problem, call, &options, &plan);
  if (status != ONEPASS_OK) return fail_status(session, what, status);
  bool ran = run_plan(session, plan, call, what);
  onepass_plan_destroy(plan);
  return ran;
}

static onepass_status call_helper(const problem *problem, const onepass_tensor *const t[ROLES]) {
  bool forward = problem->direction == ONEPASS_FORWARD;
  switch (problem->op) {
    case OP_L1_NORM:
      return forward ? onepass_l1_norm(t[X], problem->axis, problem->reduction, problem->eps, t[Y])
                     : onepass_l1_norm_backward(t[DY], t[X], problem->axis, problem->reduction,
                                                problem->eps, t[DX]);
    case OP_LAYER_NORM:
      return forward ? onepass_layer_norm(t[X], problem->axis, t[WEIGHT], t[BIAS], problem->eps,
                                          t[Y], t[MEAN], t[RSTD])
                     : onepass_layer_norm_backward(t[DY], t[X], problem->axis, t[WEIGHT], t[MEAN],
                                                   t[RSTD], t[DX], t[DWEIGHT], t[DBIAS]);
    default:
      return (forward ? onepass_avg_pool1d : onepass_avg_pool1d_backward)(
          t[forward ? X : DY], problem->kernel, problem->stride, problem->padding,
          problem->ceil_mode, problem->count_include_pad, t[forward ? Y : DX]);
  }
}

static bool run_helper(session *session) {
  operand call[ROLES];
  reset_outputs(session, call);
  onepass_tensor tensors[ROLES];
  const onepass_tensor *used[ROLES];
  for (role role = X; role < ROLES; role++) {
    tensors[role] = operand_tensor(&call[role]);
    used[role] = call[role].ndim > 0 ? &tensors[role] : NULL;
    if (!used[role]) continue;
    tensors[role].data = call[role].memory;
    tensors[role].byte_offset = (uint64_t)(call[role].data - call[role].memory);
    if (call[role].compact) tensors[role].strides = NULL;
  }
  onepass_status status = call_helper(session->problem, used);
  return status == ONEPASS_OK || fail_status(session, "one call", status);
}

/* ---- Verdicts ---- */

static bool same_bits(session *session, const char *what) {
  for (role role = X; role < ROLES; role++) {
    if (!is_output(session, role)) continue;
    const operand *operand = &session->operands[role];
    if (memcmp(operand->memory, session->snapshot[role], (size_t)operand->memory_size) != 0)
      return fail(session, "%s: other bits in %s than the first run", what, role_name(role));
  }
  return true;
}

/* With the elements themselves set back to PATTERN, all of the memory must be PATTERN. */
static bool surroundings_untouched(session *session, int32_t level) {
  for (role role = X; role < ROLES; role++) {
    if (!is_output(session, role)) continue;
    operand operand = session->operands[role];
    for (int64_t i = 0; i < operand.elements; i++)
      memset(operand_at(&operand, i), PATTERN, (size_t)dtype_size(operand.dtype));
    for (int64_t i = 0; i < operand.memory_size; i++)
      if (operand.memory[i] != PATTERN)
        return fail(session, "%s: wrote outside %s, at byte %" PRId64, level_name(level),
                    role_name(role), i - (operand.data - operand.memory));
  }
  return true;
}

static bool judge_level(session *session, int32_t level) {
  verdict *verdict = &session->outcome->verdict;
  int64_t wrong_before = verdict->wrong;
  for (role role = X; role < ROLES; role++)
    if (is_output(session, role))
      memcpy(session->snapshot[role], session->operands[role].memory,
             (size_t)session->operands[role].memory_size);
  if (!judge(session->problem, session->operands, session->want, ALL_ROLES, verdict))
    return fail(session, "no memory");
  if (verdict->wrong > wrong_before)
    return fail(session,
                "%s: %" PRId64 " elements wrong, worst %s[%" PRId64
                "] = %.17g, expected %.17g "
                "(%.3g times the bound)",
                level_name(level), verdict->wrong, role_name(verdict->role), verdict->index,
                verdict->got, verdict->want, verdict->of_bound);
  return surroundings_untouched(session, level);
}

static bool check_level(session *session, int32_t level) {
  const checker *checker = session->checker;
  if (!run_once(session, level, checker->threads[0]) || !judge_level(session, level)) return false;
  for (int i = 0; i < checker->thread_count; i++) {
    char what[64];
    snprintf(what, sizeof what, "%s, %" PRId32 " threads", level_name(level), checker->threads[i]);
    if (!run_once(session, level, checker->threads[i]) || !same_bits(session, what)) return false;
  }
  return true;
}

static bool check_session(session *session) {
  if (!prepare(session)) return false;
  onepass_status status = run_reference(session->problem, session->operands, 0, session->want);
  if (status != ONEPASS_OK) return fail_status(session, "reference", status);
  for (int i = 0; i < session->checker->level_count; i++)
    if (!check_level(session, session->checker->levels[i])) return false;
  return run_helper(session) && same_bits(session, "one call");
}

void run_case(const checker *checker, const check_case *check_case, outcome *outcome) {
  memset(outcome, 0, sizeof *outcome);
  outcome->passed = true;
  session session = {.checker = checker,
                     .check_case = check_case,
                     .problem = &check_case->problem,
                     .outcome = outcome};
  check_session(&session);
  for (role role = X; role < ROLES; role++) free(session.snapshot[role]);
  operands_free(session.want);
  operands_free(session.operands);
}
