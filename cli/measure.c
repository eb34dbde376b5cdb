#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "cli.h"
#include "copy.h"
#include "measure_check.h"

enum {
  FEWEST_REPETITIONS = 5,
  MOST_REPETITIONS = 2000,
  MOST_SETS = 2048,
  BYTES_WORTH_A_THREAD = 256 << 10,
  RANDOM_BLOCK = 64 << 20, /* bytes of random numbers that a GPU's memory is filled from */
  QUEUED = 16,             /* repetitions on a GPU before the host waits */
  HOST_CALLS = 50,
  HOST_ROUNDS = 9
};

static const double seconds_per_line = 1.0;

memory_need measure_memory(const problem *problem, bool on_gpu) {
  operand operands[ROLES];
  if (!problem_operands(problem, LAYOUT_COMPACT, operands)) return (memory_need){-1, -1};
  int64_t own = operand_bytes(operands);
  if (own > INT64_MAX / 64) return (memory_need){-1, -1};
  int64_t checking = checking_memory(problem, operands, on_gpu);
  int64_t timing = 2 * own; /* the copy moves as many bytes as the operator */
  if (!on_gpu) return (memory_need){timing + checking, 0};
  return (memory_need){checking + RANDOM_BLOCK, timing + 2 * (int64_t)RANDOM_BLOCK};
}

/* Everything a measurement holds on to. Small problems have several sets of operands, which are
 * used in turn, so that none is still in a cache. */
typedef struct bench_state {
  const problem *problem;
  const measure_options *options;
  gpu *gpu; /* NULL: the CPU */
  onepass_plan *plan;
  onepass_plan_info info;
  operand (*sets)[ROLES];
  int64_t set_count;
  void *workspace;
  unsigned char *copy_from, *copy_to;
  int64_t copy_stride; /* from one set's bytes to the next one's: whole pages */
  int32_t copy_threads;
  int copy_methods;
  double *times[1 + COPY_METHODS];
  int64_t repetitions;
  unsigned char *block, *block_copy; /* GPU: random numbers, and where to copy them to */
} bench_state;

/* ---- Memory, where the problem is ---- */

static void *take(const bench_state *state, int64_t bytes) {
  return state->gpu ? gpu_allocate(state->gpu, bytes) : allocate_bytes(bytes);
}

static void drop(const bench_state *state, void *memory) {
  if (state->gpu)
    gpu_free(state->gpu, memory);
  else
    free(memory);
}

static void place_operands(const bench_state *state, operand operands[ROLES]) {
  if (state->gpu) operands_on((onepass_device){ONEPASS_CUDA, state->gpu->device}, operands);
}

static void *stream_of(const bench_state *state) { return state->gpu ? state->gpu->stream : NULL; }

/* On a GPU memory is filled from a block of random numbers that are made on the host. */
static bool make_block(bench_state *state) {
  onepass_dtype dtype = state->problem->dtype;
  unsigned char *made = allocate_bytes(RANDOM_BLOCK);
  state->block = take(state, RANDOM_BLOCK);
  state->block_copy = take(state, RANDOM_BLOCK);
  bool there = made && state->block && state->block_copy;
  if (there) {
    fill_random(dtype, made, RANDOM_BLOCK / dtype_size(dtype), (distribution){0, 1}, 1,
                state->options->threads);
    there = gpu_upload(state->gpu, state->block, made, RANDOM_BLOCK);
  }
  free(made);
  return there;
}

static bool reserve_operand(const bench_state *state, operand *operand) {
  if (!state->gpu) return operand_reserve(operand, LAYOUT_COMPACT);
  operand->memory = take(state, operand->elements * dtype_size(operand->dtype));
  operand->data = operand->memory;
  return operand->memory;
}

static bool fill_operand(const bench_state *state, operand *operand, uint64_t seed) {
  int64_t size = dtype_size(operand->dtype), bytes = operand->elements * size;
  if (state->gpu)
    return gpu_tile(state->gpu, operand->data, bytes, state->block, RANDOM_BLOCK, size, seed);
  fill_random(operand->dtype, operand->data, operand->elements, (distribution){0, 1}, seed,
              state->options->threads);
  return true;
}

/* ---- Operands and buffers ---- */

static int64_t sets_needed(const bench_state *state) {
  int64_t bytes = state->info.bytes > 0 ? state->info.bytes : 1;
  int64_t available = state->gpu ? gpu_available(state->gpu) : available_memory();
  int64_t most = available / 3 / (2 * bytes + ROLES * 4096);
  int64_t sets = state->options->rotation / bytes + 1;
  if (sets > most) sets = most;
  if (sets > MOST_SETS) sets = MOST_SETS;
  return sets > 1 ? sets : 1;
}

/* Where the forward call that saves something for this backward one has its tensors: what backward
 * has itself is there, and what it has not goes where dx and dy will be. */
static const operand *place_of(const problem *backward, const operand operands[ROLES], role role) {
  if (operands[role].ndim > 0) return &operands[role];
  bool pooled = role == Y && backward->op->family == FAMILY_POOL;
  return &operands[pooled ? DY : DX];
}

static bool run_forward(const bench_state *state, const problem *forward,
                        const operand call[ROLES]) {
  onepass_options options = {.threads = state->options->threads};
  onepass_plan *plan = NULL;
  bool done = false;
  if (problem_plan(forward, call, &options, &plan) == ONEPASS_OK) {
    onepass_buffers buffers = operand_buffers(call);
    size_t size = onepass_plan_workspace(plan);
    void *workspace = take(state, (int64_t)size);
    done = workspace &&
           onepass_run(plan, &buffers, workspace, size, stream_of(state)) == ONEPASS_OK &&
           (!state->gpu || gpu_wait(state->gpu));
    drop(state, workspace);
  }
  onepass_plan_destroy(plan);
  return done;
}

/* Backward gets what its forward saves for it: statistics, indices, roots. */
static bool fill_saved(const bench_state *state, operand operands[ROLES], uint64_t seed) {
  problem forward = forward_of(state->problem);
  operand call[ROLES];
  problem_operands(&forward, LAYOUT_COMPACT, call);
  place_operands(state, call);
  for (role role = X; role < ROLES; role++)
    if (call[role].ndim > 0) call[role].data = place_of(state->problem, operands, role)->data;
  return run_forward(state, &forward, call) && fill_operand(state, &operands[DY], seed);
}

/* Random values for the inputs, and for the outputs, too: no page is left untouched. */
static bool fill_set(bench_state *state, int64_t set) {
  operand *operands = state->sets[set];
  problem_operands(state->problem, LAYOUT_COMPACT, operands);
  place_operands(state, operands);
  for (role role = X; role < ROLES; role++) {
    if (operands[role].ndim == 0) continue;
    if (!reserve_operand(state, &operands[role]) ||
        !fill_operand(state, &operands[role], random_bits((uint64_t)set, (uint64_t)role)))
      return false;
  }
  const unsigned saved = ROLE_BIT(MEAN) | ROLE_BIT(RSTD) | ROLE_BIT(Y) | ROLE_BIT(INDICES);
  bool needs_saved =
      state->problem->direction == ONEPASS_BACKWARD && (state->problem->roles & saved);
  return !needs_saved || fill_saved(state, operands, random_bits((uint64_t)set, ROLES));
}

static bool prepare_sets(bench_state *state) {
  state->set_count = sets_needed(state);
  state->sets = calloc((size_t)state->set_count, sizeof *state->sets);
  if (!state->sets || (state->gpu && !make_block(state))) return false;
  for (int64_t set = 0; set < state->set_count; set++)
    if (!fill_set(state, set)) return false;
  if (state->info.workspace) state->workspace = take(state, (int64_t)state->info.workspace);
  return state->workspace || !state->info.workspace;
}

static bool fill_copy(bench_state *state, int64_t bytes) {
  if (state->gpu)
    return gpu_tile(state->gpu, state->copy_from, bytes, state->block, RANDOM_BLOCK, 1, 1) &&
           gpu_tile(state->gpu, state->copy_to, bytes, state->block, RANDOM_BLOCK, 1, 2);
  fill_bytes(state->copy_from, bytes, 1, state->options->threads);
  fill_bytes(state->copy_to, bytes, 2, state->options->threads);
  return true;
}

static bool prepare_copy(bench_state *state) {
  state->copy_stride = (state->info.bytes / 2 + 4095) / 4096 * 4096;
  state->copy_methods = state->gpu ? 1 : COPY_METHODS;
  /* waking a thread takes longer than copying a little */
  int64_t useful = state->info.bytes / BYTES_WORTH_A_THREAD + 1;
  state->copy_threads =
      useful < state->options->threads ? (int32_t)useful : state->options->threads;
  int64_t bytes = state->copy_stride * state->set_count;
  state->copy_from = take(state, bytes);
  state->copy_to = take(state, bytes);
  for (int i = 0; i <= COPY_METHODS; i++)
    state->times[i] = calloc(MOST_REPETITIONS, sizeof **state->times);
  for (int i = 0; i <= COPY_METHODS; i++)
    if (!state->times[i]) return false;
  return state->copy_from && state->copy_to && fill_copy(state, bytes);
}

static bool run_set(const bench_state *state, int64_t set, const char **reason) {
  onepass_buffers buffers = operand_buffers(state->sets[set]);
  onepass_status status =
      onepass_run(state->plan, &buffers, state->workspace, state->info.workspace, stream_of(state));
  if (status != ONEPASS_OK) *reason = onepass_last_message();
  return status == ONEPASS_OK;
}

/* As the operator's sets do, the pieces copied lie apart from each other, and none has just been
 * copied by the other method. */
static int64_t copy_offset(const bench_state *state, int64_t set, int method) {
  int64_t piece = set * 7919 + method * (state->set_count / COPY_METHODS);
  return piece % state->set_count * state->copy_stride;
}

/* ---- Timing on the CPU ---- */

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

/* ---- Timing on a GPU ---- */

/* One run and one copy between three marks. */
static bool queue_once(const bench_state *state, int64_t repetition, void **marks,
                       const char **reason) {
  int64_t set = repetition % state->set_count, offset = copy_offset(state, set, 0);
  *reason = NULL;
  bool queued = gpu_mark(state->gpu, marks[0]) && run_set(state, set, reason) &&
                gpu_mark(state->gpu, marks[1]) &&
                gpu_copy(state->gpu, state->copy_to + offset, state->copy_from + offset,
                         state->info.bytes / 2) &&
                gpu_mark(state->gpu, marks[2]);
  if (!queued && !*reason) *reason = state->gpu->reason;
  return queued;
}

/* Something for the GPU to do while the host queues what is timed, so that no time between two
 * marks is spent waiting for the host. */
static bool keep_busy(const bench_state *state) {
  for (int i = 0; i < QUEUED; i++)
    if (!gpu_copy(state->gpu, state->block_copy, state->block, RANDOM_BLOCK)) return false;
  return true;
}

static bool time_queue(bench_state *state, int64_t first, int64_t count, void **marks,
                       const char **reason) {
  bool kept_busy = keep_busy(state);
  for (int64_t i = 0; i < count && kept_busy; i++)
    if (!queue_once(state, first + i, marks + 3 * i, reason)) return false;
  if (!kept_busy || !gpu_wait(state->gpu)) {
    *reason = state->gpu->reason;
    return false;
  }
  for (int64_t i = 0; i < count; i++)
    for (int what = 0; what < 2; what++)
      state->times[what][first + i] =
          gpu_seconds(state->gpu, marks[3 * i + what], marks[3 * i + what + 1]);
  return true;
}

static bool make_marks(const bench_state *state, void **marks, const char **reason) {
  bool made = true;
  for (int i = 0; i < 3 * QUEUED; i++) {
    marks[i] = gpu_event(state->gpu);
    made = made && marks[i];
  }
  if (!made) *reason = state->gpu->reason;
  return made;
}

/* The time of a call that only queues, one of many in a row on the same operands: the median of some rounds. */
static bool time_host(bench_state *state, double seconds, double *host, const char **reason) {
  double times[HOST_ROUNDS];
  int64_t rounds = HOST_ROUNDS;
  while (rounds > 1 && (double)(rounds * HOST_CALLS) * seconds > seconds_per_line / 2) rounds /= 2;
  for (int64_t round = 0; round < rounds; round++) {
    const double start = seconds_now();
    for (int64_t i = 0; i < HOST_CALLS; i++)
      if (!run_set(state, 0, reason)) return false;
    times[round] = (seconds_now() - start) / HOST_CALLS;
    if (!gpu_wait(state->gpu)) {
      *reason = state->gpu->reason;
      return false;
    }
  }
  *host = median(times, rounds);
  return true;
}

/* ---- Timing ---- */

/* Up to `most` repetitions; marks is NULL on the CPU. Returns how many, or 0. */
static int64_t time_some(bench_state *state, int64_t first, int64_t most, void **marks,
                         const char **reason) {
  if (!marks) return time_once(state, first, reason);
  if (most > QUEUED) most = QUEUED;
  return time_queue(state, first, most, marks, reason) ? most : 0;
}

/* The operator and the copies take turns, so that whatever else the machine does hits them alike.
 */
static bool time_repetitions(bench_state *state, void **marks, const char **reason) {
  int64_t wanted = state->options->repetitions;
  int64_t most = wanted ? wanted : MOST_REPETITIONS;
  if (most > MOST_REPETITIONS) most = MOST_REPETITIONS;
  if (!time_some(state, 0, 1, marks, reason)) return false; /* warms up; overwritten below */
  double start = seconds_now();
  while (state->repetitions < most) {
    bool enough = state->repetitions >= FEWEST_REPETITIONS;
    if (!wanted && enough && seconds_now() - start > seconds_per_line) break;
    int64_t done = time_some(state, state->repetitions, most - state->repetitions, marks, reason);
    if (done == 0) return false;
    state->repetitions += done;
  }
  return true;
}

static bool time_all(bench_state *state, const char **reason) {
  if (!state->gpu) return time_repetitions(state, NULL, reason);
  void *marks[3 * QUEUED];
  bool timed = make_marks(state, marks, reason) && time_repetitions(state, marks, reason);
  for (int i = 0; i < 3 * QUEUED; i++) gpu_event_free(state->gpu, marks[i]);
  return timed;
}

static void release(bench_state *state) {
  for (int64_t set = 0; state->sets && set < state->set_count; set++)
    for (role role = X; role < ROLES; role++) drop(state, state->sets[set][role].memory);
  free(state->sets);
  drop(state, state->workspace);
  drop(state, state->copy_from);
  drop(state, state->copy_to);
  drop(state, state->block);
  drop(state, state->block_copy);
  for (int i = 0; i <= COPY_METHODS; i++) free(state->times[i]);
  onepass_plan_destroy(state->plan);
}

static bool make_plan(bench_state *state, const char **reason) {
  operand operands[ROLES];
  problem_operands(state->problem, LAYOUT_COMPACT, operands);
  place_operands(state, operands);
  onepass_options options = {.threads = state->options->threads,
                             .vector_level = state->options->vector_level,
                             .cuda_kernel = state->options->cuda_kernel};
  onepass_status status = problem_plan(state->problem, operands, &options, &state->plan);
  if (status == ONEPASS_OK) status = onepass_plan_describe(state->plan, &state->info);
  if (status != ONEPASS_OK) *reason = onepass_last_message();
  return status == ONEPASS_OK;
}

static bool prepare(bench_state *state, bool (*step)(bench_state *), const char **reason) {
  if (step(state)) return true;
  *reason = state->gpu && state->gpu->reason ? state->gpu->reason : "not enough memory";
  return false;
}

static bool measure_state(bench_state *state, measurement *measurement, const char **reason) {
  if (!make_plan(state, reason) || !prepare(state, prepare_sets, reason)) return false;
  if (!run_set(state, 0, reason)) return false;
  if (!check_result(state->problem, state->sets[0], state->gpu, &measurement->verdict, reason))
    return false;
  if (!prepare(state, prepare_copy, reason) || !time_all(state, reason)) return false;
  measurement->plan = state->info;
  measurement->repetitions = state->repetitions;
  measurement->seconds = median(state->times[0], state->repetitions);
  measurement->copy_seconds = median(state->times[1], state->repetitions);
  for (int i = 1; i < state->copy_methods; i++) {
    double copy = median(state->times[1 + i], state->repetitions);
    if (copy < measurement->copy_seconds) measurement->copy_seconds = copy;
  }
  return !state->gpu || time_host(state, measurement->seconds, &measurement->host_seconds, reason);
}

bool measure(const problem *problem, const measure_options *options, measurement *measurement,
             const char **reason) {
  memset(measurement, 0, sizeof *measurement);
  bench_state state = {.problem = problem, .options = options, .gpu = options->gpu};
  bool measured = measure_state(&state, measurement, reason);
  release(&state);
  return measured;
}
