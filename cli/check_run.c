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
typedef struct trial {
  const checker *checker;
  const check_case *check_case;
  const problem *problem;
  operand operands[ROLES];        /* inputs as they are given, outputs as they were written */
  operand want[ROLES];            /* of the reference */
  unsigned char *snapshot[ROLES]; /* outputs of the first run on a vector level, guards and all */
  outcome *outcome;
} trial;

__attribute__((format(printf, 2, 3))) static bool fail(trial *trial, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(trial->outcome->reason, sizeof trial->outcome->reason, format, arguments);
  va_end(arguments);
  trial->outcome->passed = false;
  return false;
}

static bool fail_status(trial *trial, const char *what, onepass_status status) {
  return fail(trial, "%s: %s: %s", what, onepass_status_name(status), onepass_last_message());
}

static const char *level_name(int32_t level) {
  static const char *const names[] = {"best", "baseline", "avx2", "avx512", "neon_bf16"};
  return names[level];
}

static bool is_output(const trial *trial, role role) {
  return trial->operands[role].ndim > 0 && role_is_output(role, trial->problem->direction);
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

static void zero_some(const trial *trial, operand *operand, uint64_t seed) {
  view view = problem_view(trial->problem);
  for (int64_t i = 0; i < operand->elements; i++) {
    int64_t row = i / (view.length * view.inner) * view.inner + i % view.inner;
    if (row % 3 == 2 || random_bits(seed, (uint64_t)i) % 3 == 0)
      store_element(operand->dtype, operand_at(operand, i), 0);
  }
}

static void fill_operand(trial *trial, role role, uint64_t seed) {
  operand *operand = &trial->operands[role];
  /* What the values of a case describe is x, or dy where there is no x. */
  bool main = role == X || (role == DY && trial->problem->op == OP_AVG_POOL1D);
  distribution normal = {0, 1};
  distribution wanted = main ? distribution_of(trial->check_case) : normal;
  if (operand->compact) {
    int32_t threads = operand->elements > 1 << 20 ? 4 : 1;
    fill_random(operand->dtype, operand->data, operand->elements, wanted, seed, threads);
  } else {
    for (int64_t i = 0; i < operand->elements; i++)
      store_element(operand->dtype, operand_at(operand, i),
                    wanted.mean + wanted.deviation * random_normal(seed, (uint64_t)i));
  }
  if (!main || operand->elements == 0) return;
  values values = trial->check_case->values;
  if (values == VALUES_ZEROS) zero_some(trial, operand, seed + 1);
  double special = values == VALUES_NAN ? NAN : seed & 1 ? INFINITY : -INFINITY;
  if (values == VALUES_NAN || values == VALUES_INF)
    store_element(operand->dtype, operand_at(operand, operand->elements / 2), special);
}

/* mean and rstd for the backward are those the reference finds. */
static bool fill_stats(trial *trial) {
  problem forward = *trial->problem;
  forward.direction = ONEPASS_FORWARD;
  forward.weight = forward.bias = false;
  forward.stats = true;
  operand operands[ROLES], found[ROLES];
  problem_operands(&forward, LAYOUT_COMPACT, operands);
  operands[X] = trial->operands[X];
  onepass_status status = run_reference(&forward, operands, 0, found);
  for (role role = MEAN; role <= RSTD && status == ONEPASS_OK; role++) {
    operand *given = &trial->operands[role];
    for (int64_t i = 0; i < given->elements; i++) {
      double value;
      operand_load(&found[role], i, 1, 1, &value);
      store_element(given->dtype, operand_at(given, i), value);
    }
  }
  operands_free(found);
  return status == ONEPASS_OK || fail_status(trial, "reference forward", status);
}

static bool prepare(trial *trial) {
  problem_operands(trial->problem, trial->check_case->layout, trial->operands);
  uint64_t seed = random_bits(trial->checker->seed, (uint64_t)trial->check_case->number);
  for (role role = X; role < ROLES; role++) {
    operand *operand = &trial->operands[role];
    if (operand->ndim == 0) continue;
    if (!operand_allocate(operand, trial->check_case->layout)) return fail(trial, "no memory");
    if (!is_output(trial, role)) {
      fill_operand(trial, role, random_bits(seed, (uint64_t)role));
      continue;
    }
    trial->snapshot[role] = allocate_bytes(operand->memory_size);
    if (!trial->snapshot[role]) return fail(trial, "no memory");
  }
  bool needs_stats =
      trial->problem->op == OP_LAYER_NORM && trial->problem->direction == ONEPASS_BACKWARD;
  return !needs_stats || fill_stats(trial);
}

/* ---- Runs ---- */

static role overwritten_input(const trial *trial) {
  return trial->check_case->in_place == OVER_DY ? DY : X;
}

/* Outputs full of PATTERN, or of the input they will overwrite; and the operands of the call, which
 * differ from the trial's in that the overwritten input is the output. */
static void reset_outputs(trial *trial, operand call[ROLES]) {
  for (role role = X; role < ROLES; role++)
    if (is_output(trial, role))
      memset(trial->operands[role].memory, PATTERN, (size_t)trial->operands[role].memory_size);
  memcpy(call, trial->operands, sizeof trial->operands);
  if (trial->check_case->in_place == SEPARATE) return;
  role input = overwritten_input(trial);
  operand *from = &trial->operands[input];
  operand *to = &trial->operands[trial->problem->direction == ONEPASS_FORWARD ? Y : DX];
  for (int64_t i = 0; i < from->elements; i++)
    memcpy(operand_at(to, i), operand_at(from, i), (size_t)dtype_size(from->dtype));
  call[input] = *to;
}

static bool run_plan(trial *trial, const onepass_plan *plan, const operand call[ROLES],
                     const char *what) {
  int64_t size = (int64_t)onepass_plan_workspace(plan);
  unsigned char *workspace = allocate_bytes(size + GUARD);
  if (!workspace) return fail(trial, "no memory");
  memset(workspace, PATTERN, (size_t)size + GUARD);
  onepass_buffers buffers = operand_buffers(call);
  onepass_status status = onepass_run(plan, &buffers, size ? workspace : NULL, (size_t)size, NULL);
  bool overrun = false;
  for (int i = 0; i < GUARD; i++) overrun = overrun || workspace[size + i] != PATTERN;
  free(workspace);
  if (status != ONEPASS_OK) return fail_status(trial, what, status);
  return !overrun || fail(trial, "%s: wrote behind its workspace", what);
}

static bool run_once(trial *trial, int32_t level, int32_t threads) {
  char what[64];
  snprintf(what, sizeof what, "%s, %" PRId32 " threads", level_name(level), threads);
  operand call[ROLES];
  reset_outputs(trial, call);
  onepass_options options = {.threads = threads, .vector_level = level};
  onepass_plan *plan = NULL;
  onepass_status status = problem_plan(trial->problem, call, &options, &plan);
  if (status != ONEPASS_OK) return fail_status(trial, what, status);
  bool ran = run_plan(trial, plan, call, what);
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

static bool run_helper(trial *trial) {
  operand call[ROLES];
  reset_outputs(trial, call);
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
  onepass_status status = call_helper(trial->problem, used);
  return status == ONEPASS_OK || fail_status(trial, "one call", status);
}

/* ---- Verdicts ---- */

static bool same_bits(trial *trial, const char *what) {
  for (role role = X; role < ROLES; role++) {
    if (!is_output(trial, role)) continue;
    const operand *operand = &trial->operands[role];
    if (memcmp(operand->memory, trial->snapshot[role], (size_t)operand->memory_size) != 0)
      return fail(trial, "%s: other bits in %s than the first run", what, role_name(role));
  }
  return true;
}

/* With the elements themselves set back to PATTERN, all of the memory must be PATTERN. */
static bool surroundings_untouched(trial *trial, int32_t level) {
  for (role role = X; role < ROLES; role++) {
    if (!is_output(trial, role)) continue;
    operand operand = trial->operands[role];
    for (int64_t i = 0; i < operand.elements; i++)
      memset(operand_at(&operand, i), PATTERN, (size_t)dtype_size(operand.dtype));
    for (int64_t i = 0; i < operand.memory_size; i++)
      if (operand.memory[i] != PATTERN)
        return fail(trial, "%s: wrote outside %s, at byte %" PRId64, level_name(level),
                    role_name(role), i - (operand.data - operand.memory));
  }
  return true;
}

static bool judge_level(trial *trial, int32_t level) {
  verdict *verdict = &trial->outcome->verdict;
  int64_t wrong_before = verdict->wrong;
  for (role role = X; role < ROLES; role++)
    if (is_output(trial, role))
      memcpy(trial->snapshot[role], trial->operands[role].memory,
             (size_t)trial->operands[role].memory_size);
  if (!judge(trial->problem, trial->operands, trial->want, ALL_ROLES, verdict))
    return fail(trial, "no memory");
  if (verdict->wrong > wrong_before)
    return fail(trial,
                "%s: %" PRId64 " elements wrong, worst %s[%" PRId64
                "] = %.17g, expected %.17g "
                "(%.3g times the bound)",
                level_name(level), verdict->wrong, role_name(verdict->role), verdict->index,
                verdict->got, verdict->want, verdict->of_bound);
  return surroundings_untouched(trial, level);
}

static bool check_level(trial *trial, int32_t level) {
  const checker *checker = trial->checker;
  if (!run_once(trial, level, checker->threads[0]) || !judge_level(trial, level)) return false;
  for (int i = 0; i < checker->thread_count; i++) {
    char what[64];
    snprintf(what, sizeof what, "%s, %" PRId32 " threads", level_name(level), checker->threads[i]);
    if (!run_once(trial, level, checker->threads[i]) || !same_bits(trial, what)) return false;
  }
  return true;
}

static bool check_session(trial *trial) {
  if (!prepare(trial)) return false;
  onepass_status status = run_reference(trial->problem, trial->operands, 0, trial->want);
  if (status != ONEPASS_OK) return fail_status(trial, "reference", status);
  for (int i = 0; i < trial->checker->level_count; i++)
    if (!check_level(trial, trial->checker->levels[i])) return false;
  return run_helper(trial) && same_bits(trial, "one call");
}

void run_case(const checker *checker, const check_case *check_case, outcome *outcome) {
  memset(outcome, 0, sizeof *outcome);
  outcome->passed = true;
  trial trial = {.checker = checker,
                 .check_case = check_case,
                 .problem = &check_case->problem,
                 .outcome = outcome};
  check_session(&trial);
  for (role role = X; role < ROLES; role++) free(trial.snapshot[role]);
  operands_free(trial.want);
  operands_free(trial.operands);
}
