#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "cli.h"
#include "copy.h"

enum {
  CHECKED_ELEMENTS = 4 << 20, /* of the first rows; the last row is checked as well */
  FEWEST_REPETITIONS = 5,
  MOST_REPETITIONS = 2000,
  MOST_SETS = 2048,
  BYTES_WORTH_A_THREAD = 256 << 10
};

static const double seconds_per_line = 1.0;

/* ---- How much of a result is checked ---- */

/* Can the problem be cut along its first axis into problems of their own? */
static bool has_slices(const problem *problem) {
  return problem->op == OP_AVG_POOL1D ? problem->ndim > 1 : problem->axis > 0;
}

static int64_t slices_checked(const problem *problem, int64_t elements) {
  int64_t all = problem->shape[0];
  if (!has_slices(problem)) return all;
  int64_t head = CHECKED_ELEMENTS / (elements / all);
  return head < 1 ? 1 : head < all ? head : all;
}

static bool sums_all_rows(const problem *problem) {
  return problem->op == OP_LAYER_NORM && problem->direction == ONEPASS_BACKWARD &&
         (problem->weight || problem->bias);
}

static int64_t operand_bytes(const operand operands[ROLES]) {
  int64_t bytes = 0;
  for (role role = X; role < ROLES; role++)
    if (operands[role].ndim > 0)
      bytes += 2 * GUARD + operands[role].span * dtype_size(operands[role].dtype);
  return bytes;
}

int64_t measure_memory(const problem *problem) {
  operand operands[ROLES];
  if (!problem_operands(problem, LAYOUT_COMPACT, operands)) return -1;
  const operand *result = &operands[problem->direction == ONEPASS_FORWARD ? Y : DX];
  int64_t own = operand_bytes(operands);
  if (own > INT64_MAX / 64) return -1;
  int64_t slices = slices_checked(problem, result->elements);
  int64_t reference = result->elements / problem->shape[0] * slices * 8;
  int64_t whole = result->elements * dtype_size(result->dtype);
  if (sums_all_rows(problem) && whole > reference) reference = whole;
  return 2 * own + reference; /* the copy moves as many bytes as the operator */
}

/* ---- Checking ---- */

/* The slices [first, first + count) of a problem along its first axis, in the same memory. */
static void narrow(const problem *whole, const operand operands[ROLES], int64_t first,
                   int64_t count, problem *narrowed, operand slices[ROLES]) {
  *narrowed = *whole;
  narrowed->shape[0] = count;
  memcpy(slices, operands, ROLES * sizeof *slices);
  const role sliced[] = {X, Y, DY, DX, MEAN, RSTD};
  for (int i = 0; i < 6; i++) {
    operand *operand = &slices[sliced[i]];
    if (operand->ndim == 0) continue;
    operand->data += first * operand->strides[0] * dtype_size(operand->dtype);
    operand->elements = operand->elements / operand->shape[0] * count;
    operand->shape[0] = count;
  }
}

static bool check_part(const problem *problem, const operand operands[ROLES], unsigned native,
                       unsigned roles, verdict *verdict, const char **reason) {
  operand want[ROLES];
  onepass_status status = run_reference(problem, operands, native, want);
  bool judged = status == ONEPASS_OK && judge(problem, operands, want, roles, verdict);
  operands_free(want);
  if (status == ONEPASS_OUT_OF_MEMORY || (status == ONEPASS_OK && !judged))
    *reason = "not enough memory for the reference";
  else if (status != ONEPASS_OK)
    *reason = onepass_last_message();
  return judged;
}

static bool check_slices(const problem *whole, const operand operands[ROLES], int64_t first,
                         int64_t count, verdict *verdict, const char **reason) {
  problem narrowed;
  operand slices[ROLES];
  narrow(whole, operands, first, count, &narrowed, slices);
  unsigned roles = ALL_ROLES & ~(1u << DWEIGHT | 1u << DBIAS); /* those need every slice */
  return check_part(&narrowed, slices, 0, roles, verdict, reason);
}

static bool check_result(const problem *problem, const operand operands[ROLES], verdict *verdict,
                         const char **reason) {
  if (!has_slices(problem)) return check_part(problem, operands, 0, ALL_ROLES, verdict, reason);
  const operand *result = &operands[problem->direction == ONEPASS_FORWARD ? Y : DX];
  int64_t all = problem->shape[0], head = slices_checked(problem, result->elements);
  if (!check_slices(problem, operands, 0, head, verdict, reason)) return false;
  if (head < all && !check_slices(problem, operands, all - 1, 1, verdict, reason)) return false;
  return !sums_all_rows(problem) ||
         check_part(problem, operands, 1u << DX, 1u << DWEIGHT | 1u << DBIAS, verdict, reason);
}

/* ---- Timing ---- */

/* Everything a measurement holds on to. Small problems have several sets of operands, which are
 * used in turn, so that none is still in a cache. */
typedef struct bench_state {
  const problem *problem;
  const measure_options *options;
  onepass_plan *plan;
  onepass_plan_info info;
  operand (*sets)[ROLES];
  int64_t set_count;
  void *workspace;
  unsigned char *copy_from, *copy_to;
  int64_t copy_stride; /* from one set's bytes to the next one's: whole pages */
  int32_t copy_threads;
  double *times[1 + COPY_METHODS];
  int64_t repetitions;
} bench_state;

static int64_t sets_needed(const bench_state *state) {
  int64_t bytes = state->info.bytes > 0 ? state->info.bytes : 1;
  int64_t most = available_memory() / 3 / (2 * bytes + ROLES * 4096);
  int64_t sets = 2 * state->options->last_cache / bytes + 1;
  if (sets > most) sets = most;
  if (sets > MOST_SETS) sets = MOST_SETS;
  return sets > 1 ? sets : 1;
}

/* The backward of layer_norm gets the mean and rstd that its forward saves for it. What else the
 * forward writes goes where dx will be. */
static bool fill_stats(const bench_state *state, operand operands[ROLES]) {
  problem forward = *state->problem;
  forward.direction = ONEPASS_FORWARD;
  forward.weight = forward.bias = false;
  operand call[ROLES];
  problem_operands(&forward, LAYOUT_COMPACT, call);
  const role from[] = {X, DX, MEAN, RSTD}, to[] = {X, Y, MEAN, RSTD};
  for (int i = 0; i < 4; i++) call[to[i]].data = operands[from[i]].data;
  onepass_options options = {.threads = state->options->threads};
  onepass_plan *plan = NULL;
  bool filled = false;
  if (problem_plan(&forward, call, &options, &plan) == ONEPASS_OK) {
    onepass_buffers buffers = operand_buffers(call);
    size_t size = onepass_plan_workspace(plan);
    void *workspace = allocate_bytes((int64_t)size);
    filled = workspace && onepass_run(plan, &buffers, workspace, size, NULL) == ONEPASS_OK;
    free(workspace);
  }
  onepass_plan_destroy(plan);
  return filled;
}

/* Random values for the inputs, and for the outputs, too: no page is left untouched. */
static bool fill_set(bench_state *state, int64_t set) {
  const distribution normal = {0, 1};
  operand *operands = state->sets[set];
  problem_operands(state->problem, LAYOUT_COMPACT, operands);
  for (role role = X; role < ROLES; role++) {
    if (operands[role].ndim == 0) continue;
    if (!operand_reserve(&operands[role], LAYOUT_COMPACT)) return false;
    fill_random(operands[role].dtype, operands[role].data, operands[role].elements, normal,
                random_bits((uint64_t)set, (uint64_t)role), state->options->threads);
  }
  bool needs_stats =
      state->problem->op == OP_LAYER_NORM && state->problem->direction == ONEPASS_BACKWARD;
  return !needs_stats || fill_stats(state, operands);
}

static bool prepare_sets(bench_state *state) {
  state->set_count = sets_needed(state);
  state->sets = calloc((size_t)state->set_count, sizeof *state->sets);
  if (!state->sets) return false;
  for (int64_t set = 0; set < state->set_count; set++)
    if (!fill_set(state, set)) return false;
  if (state->info.workspace) state->workspace = allocate_bytes((int64_t)state->info.workspace);
  return state->workspace || !state->info.workspace;
}

static bool prepare_copy(bench_state *state) {
  state->copy_stride = (state->info.bytes / 2 + 4095) / 4096 * 4096;
  /* waking a thread takes longer than copying a little */
  int64_t useful = state->info.bytes / BYTES_WORTH_A_THREAD + 1;
  state->copy_threads =
      useful < state->options->threads ? (int32_t)useful : state->options->threads;
  int64_t bytes = state->copy_stride * state->set_count;
  state->copy_from = allocate_bytes(bytes);
  state->copy_to = allocate_bytes(bytes);
  for (int i = 0; i <= COPY_METHODS; i++)
    state->times[i] = calloc(MOST_REPETITIONS, sizeof **state->times);
  for (int i = 0; i <= COPY_METHODS; i++)
    if (!state->times[i]) return false;
  if (!state->copy_from || !state->copy_to) return false;
  fill_bytes(state->copy_from, bytes, 1, state->options->threads);
  fill_bytes(state->copy_to, bytes, 2, state->options->threads);
  return true;
}

static bool run_set(const bench_state *state, int64_t set, const char **reason) {
  onepass_buffers buffers = operand_buffers(state->sets[set]);
  onepass_status status =
      onepass_run(state->plan, &buffers, state->workspace, state->info.workspace, NULL);
  if (status != ONEPASS_OK) *reason = onepass_last_message();
  return status == ONEPASS_OK;
}

/* As the operator's sets do, the pieces copied lie apart from each other, and none has just been
 * copied by the other method. */
static int64_t copy_offset(const bench_state *state, int64_t set, int method) {
  int64_t piece = set * 7919 + method * (state->set_count / COPY_METHODS);
  return piece % state->set_count * state->copy_stride;
}

static bool time_once(bench_state *state, int64_t repetition, const char **reason) {
  int64_t set = repetition % state->set_count;
  double start = seconds_now();
  if (!run_set(state, set, reason)) return false;
  double end = seconds_now();
  state->times[0][repetition] = end - start;
  for (int method = 0; method < COPY_METHODS; method++) {
    int64_t offset = copy_offset(state, set, method);
    start = seconds_now();
    copy_bytes((copy_method)method, state->copy_to + offset, state->copy_from + offset,
               state->info.bytes / 2, state->copy_threads);
    end = seconds_now();
    state->times[1 + method][repetition] = end - start;
  }
  return true;
}

/* The operator and the copies take turns, so that whatever else the machine does hits them alike.
 */
static bool time_all(bench_state *state, const char **reason) {
  double start = seconds_now();
  int64_t wanted = state->options->repetitions;
  int64_t most = wanted ? wanted : MOST_REPETITIONS;
  if (most > MOST_REPETITIONS) most = MOST_REPETITIONS;
  if (!time_once(state, 0, reason)) return false; /* warms up; overwritten below */
  while (state->repetitions < most) {
    bool enough = state->repetitions >= FEWEST_REPETITIONS;
    if (!wanted && enough && seconds_now() - start > seconds_per_line) break;
    if (!time_once(state, state->repetitions, reason)) return false;
    state->repetitions++;
  }
  return true;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *times, int64_t count) {
  qsort(times, (size_t)count, sizeof *times, compare_doubles);
  return (times[(count - 1) / 2] + times[count / 2]) / 2;
}

static void release(bench_state *state) {
  for (int64_t set = 0; state->sets && set < state->set_count; set++)
    operands_free(state->sets[set]);
  free(state->sets);
  free(state->workspace);
  free(state->copy_from);
  free(state->copy_to);
  for (int i = 0; i <= COPY_METHODS; i++) free(state->times[i]);
  onepass_plan_destroy(state->plan);
}

static bool make_plan(bench_state *state, const char **reason) {
  operand operands[ROLES];
  problem_operands(state->problem, LAYOUT_COMPACT, operands);
  onepass_options options = {.threads = state->options->threads,
                             .vector_level = state->options->vector_level};
  onepass_status status = problem_plan(state->problem, operands, &options, &state->plan);
  if (status == ONEPASS_OK) status = onepass_plan_describe(state->plan, &state->info);
  if (status != ONEPASS_OK) *reason = onepass_last_message();
  return status == ONEPASS_OK;
}

static bool measure_state(bench_state *state, measurement *measurement, const char **reason) {
  *reason = "not enough memory";
  if (!make_plan(state, reason) || !prepare_sets(state)) return false;
  if (!run_set(state, 0, reason)) return false;
  if (!check_result(state->problem, state->sets[0], &measurement->verdict, reason)) return false;
  *reason = "not enough memory";
  if (!prepare_copy(state) || !time_all(state, reason)) return false;
  measurement->plan = state->info;
  measurement->repetitions = state->repetitions;
  measurement->seconds = median(state->times[0], state->repetitions);
  measurement->copy_seconds = median(state->times[1], state->repetitions);
  for (int i = 1; i < COPY_METHODS; i++) {
    double copy = median(state->times[1 + i], state->repetitions);
    if (copy < measurement->copy_seconds) measurement->copy_seconds = copy;
  }
  return true;
}

bool measure(const problem *problem, const measure_options *options, measurement *measurement,
             const char **reason) {
  memset(measurement, 0, sizeof *measurement);
  bench_state state = {.problem = problem, .options = options};
  bool measured = measure_state(&state, measurement, reason);
  release(&state);
  return measured;
}
