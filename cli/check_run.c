#define _POSIX_C_SOURCE 200809L
#include "check_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "options.h"

/* A case with its memory. On a GPU every operand has a twin there: inputs are uploaded once,
 * outputs before each run, and what a run wrote is brought back to be judged. */
typedef struct trial {
  const checker *checker;
  gpu *gpu; /* NULL: the CPU */
  const check_case *check_case;
  const problem *problem;
  operand operands[ROLES];        /* inputs as they are given, outputs as they were written */
  operand want[ROLES];            /* of the reference */
  unsigned char *snapshot[ROLES]; /* outputs of the first run done this way, guards and all */
  unsigned char *initial[ROLES];  /* what outputs that are moved on are before; NULL: PATTERN */
  outcome *outcome;
} trial;

__attribute__((format(printf, 2, 3))) static bool fail(trial *trial, const char *format, ...) {
  if (!trial->outcome->passed) return false;
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

static bool fail_gpu(trial *trial, const char *what) {
  return fail(trial, "%s: %s", what, trial->gpu->reason);
}

/* The vector level or the kernel. */
static const char *way_name(const trial *trial, const onepass_options *options) {
  static const char *const levels[] = {"best", "baseline", "avx2", "avx512", "neon_bf16"};
  return trial->gpu ? cuda_kernel_choices[options->cuda_kernel] : levels[options->vector_level];
}

/* What a run is called when it fails. */
typedef struct run_name {
  char text[64];
} run_name;

static run_name name_run(const trial *trial, const onepass_options *options) {
  run_name name;
  if (trial->gpu)
    snprintf(name.text, sizeof name.text, "kernel %s", way_name(trial, options));
  else
    snprintf(name.text, sizeof name.text, "%s, %" PRId32 " threads", way_name(trial, options),
             options->threads);
  return name;
}

static bool is_output(const trial *trial, role role) {
  return trial->operands[role].ndim > 0 && role_is_output(trial->problem, role);
}

void find_levels(checker *checker) {
  problem problem = make_problem(&op_table[0], ONEPASS_FORWARD, ONEPASS_F32);
  set_shape(&problem, (const int64_t[]){8}, 1);
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

/* How large values may be for what is summed of them, their squares or the powers of lp_pool, to
 * fit into the type of sums. */
static double huge_value(const problem *problem) {
  bool f64 = dtype_equal(problem->dtype, ONEPASS_F64);
  if (dtype_equal(problem->dtype, ONEPASS_F16)) return 1e4;
  bool norm = problem->op->family == FAMILY_NORM;
  if (!norm && problem->op->pool == ONEPASS_LP_POOL) return f64 ? 1e80 : 1e10;
  if (norm && problem->op->divisor != BY_MAGNITUDE) return f64 ? 1e100 : 1e15;
  return f64 ? 1e150 : 1e30;
}

static distribution distribution_of(const check_case *check_case) {
  onepass_dtype dtype = check_case->problem.dtype;
  double huge = huge_value(&check_case->problem);
  switch (check_case->values) {
    case VALUES_OFFSET:
      return (distribution){dtype.bits == 16 ? 100 : 1e4, 1};
    case VALUES_TINY:
      return (distribution){0, dtype_equal(dtype, ONEPASS_F16) ? 1e-3 : 1 / huge};
    case VALUES_HUGE:
      return (distribution){0, huge};
    default:
      return (distribution){0, 1};
  }
}

static void zero_some(const trial *trial, operand *operand, uint64_t seed) {
  view view = problem_view(trial->problem);
  if (trial->problem->op->family == FAMILY_POOL) /* dy has smaller planes than x */
    view.length = view.run = view.pitch = operand->elements / view.rows;
  for (int64_t row = 0; row < view.rows; row++)
    for (int64_t i = 0; i < view.length; i++) {
      int64_t index = view_element(&view, row, i);
      if (row % 3 == 2 || random_bits(seed, (uint64_t)index) % 3 == 0)
        store_element(operand->dtype, operand_at(operand, index), 0);
    }
}

/* Random values; where they stand for a deviation, above 0. */
static void fill_normal(operand *operand, distribution wanted, bool positive, uint64_t seed) {
  if (operand->compact && !positive) {
    int32_t threads = operand->elements > 1 << 20 ? 4 : 1;
    fill_random(operand->dtype, operand->data, operand->elements, wanted, seed, threads);
    return;
  }
  for (int64_t i = 0; i < operand->elements; i++) {
    double value = wanted.mean + wanted.deviation * random_normal(seed, (uint64_t)i);
    if (positive) value = value < 0 ? 0.25 - value : 0.25 + value;
    store_element(operand->dtype, operand_at(operand, i), value);
  }
}

static void fill_operand(trial *trial, role role, uint64_t seed) {
  operand *operand = &trial->operands[role];
  /* What the values of a case describe is x, or dy where there is no x. */
  bool main = role == X || (role == DY && !has_role(trial->problem, X));
  distribution normal = {0, 1};
  fill_normal(operand, main ? distribution_of(trial->check_case) : normal,
              role == RUNNING_VAR || role == RSTD, seed);
  if (!main || operand->elements == 0) return;
  values values = trial->check_case->values;
  if (values == VALUES_ZEROS) zero_some(trial, operand, seed + 1);
  double special = values == VALUES_NAN ? NAN : seed & 1 ? INFINITY : -INFINITY;
  if (values == VALUES_NAN || values == VALUES_INF)
    store_element(operand->dtype, operand_at(operand, operand->elements / 2), special);
}

/* What backward reads of its forward is what the reference finds: statistics, maxima's indices,
 * powers' roots. */
static bool fill_saved(trial *trial, uint64_t seed) {
  problem forward = forward_of(trial->problem);
  operand operands[ROLES], found[ROLES] = {{.ndim = 0}};
  problem_operands(&forward, LAYOUT_COMPACT, operands);
  if (has_role(trial->problem, X)) {
    operands[X] = trial->operands[X];
    operands[X].memory = NULL; /* not ours to free */
  } else {
    if (!operand_allocate(&operands[X], LAYOUT_COMPACT)) return fail(trial, "no memory");
    fill_normal(&operands[X], (distribution){0, 1}, false, seed);
  }
  onepass_status status = run_reference(&forward, operands, 0, found);
  for (role role = X; role < ROLES && status == ONEPASS_OK; role++) {
    operand *given = &trial->operands[role];
    if (role == X || given->ndim == 0 || found[role].ndim == 0) continue;
    for (int64_t i = 0; i < given->elements; i++) {
      double value;
      operand_load(&found[role], i, 1, 1, &value);
      store_element(given->dtype, operand_at(given, i), value);
    }
  }
  operands_free(found);
  operands_free(operands);
  return status == ONEPASS_OK || fail_status(trial, "reference forward", status);
}

static bool needs_saved(const problem *problem) {
  const unsigned saved = ROLE_BIT(MEAN) | ROLE_BIT(RSTD) | ROLE_BIT(Y) | ROLE_BIT(INDICES);
  return problem->direction == ONEPASS_BACKWARD && (problem->roles & saved) &&
         !problem->norm.use_running;
}

static bool make_twins(trial *trial) {
  for (role role = X; role < ROLES; role++) {
    operand *operand = &trial->operands[role];
    if (operand->ndim == 0) continue;
    operand->twin = gpu_allocate(trial->gpu, operand->memory_size);
    if (!operand->twin ||
        !gpu_upload(trial->gpu, operand->twin, operand->memory, operand->memory_size))
      return fail_gpu(trial, role_name(role));
  }
  return true;
}

static bool keep_initial(trial *trial, role role) {
  const operand *operand = &trial->operands[role];
  trial->initial[role] = allocate_bytes(operand->memory_size);
  if (!trial->initial[role]) return fail(trial, "no memory");
  memcpy(trial->initial[role], operand->memory, (size_t)operand->memory_size);
  return true;
}

static bool prepare(trial *trial) {
  problem_operands(trial->problem, trial->check_case->layout, trial->operands);
  uint64_t seed = random_bits(trial->checker->seed, (uint64_t)trial->check_case->number);
  for (role role = X; role < ROLES; role++) {
    operand *operand = &trial->operands[role];
    if (operand->ndim == 0) continue;
    if (!operand_allocate(operand, trial->check_case->layout)) return fail(trial, "no memory");
    bool updated = role_is_updated(trial->problem, role);
    if (updated || !is_output(trial, role))
      fill_operand(trial, role, random_bits(seed, (uint64_t)role));
    if (updated && !keep_initial(trial, role)) return false;
    if (!is_output(trial, role)) continue;
    trial->snapshot[role] = allocate_bytes(operand->memory_size);
    if (!trial->snapshot[role]) return fail(trial, "no memory");
  }
  if (needs_saved(trial->problem) && !fill_saved(trial, random_bits(seed, ROLES))) return false;
  return !trial->gpu || make_twins(trial);
}

/* ---- Memory of the device ---- */

/* Turn a call on operands of the host into the same one on their twins. */
static bool move_to_gpu(trial *trial, operand call[ROLES]) {
  operands_on((onepass_device){ONEPASS_CUDA, trial->gpu->device}, call);
  for (role role = X; role < ROLES; role++) {
    operand *operand = &call[role];
    if (operand->ndim == 0) continue;
    if (is_output(trial, role) &&
        !gpu_upload(trial->gpu, operand->twin, operand->memory, operand->memory_size))
      return fail_gpu(trial, role_name(role));
    operand->data = operand->twin + (operand->data - operand->memory);
    operand->memory = operand->twin;
  }
  return true;
}

static bool bring_back(trial *trial, const char *what) {
  for (role role = X; role < ROLES; role++) {
    const operand *operand = &trial->operands[role];
    if (is_output(trial, role) &&
        !gpu_download(trial->gpu, operand->memory, operand->twin, operand->memory_size))
      return fail_gpu(trial, what);
  }
  return true;
}

static bool twin_unchanged(trial *trial, const operand *operand, const char *what) {
  unsigned char *found = allocate_bytes(operand->memory_size);
  bool brought = found && gpu_download(trial->gpu, found, operand->twin, operand->memory_size);
  bool same = brought && memcmp(found, operand->memory, (size_t)operand->memory_size) == 0;
  free(found);
  if (!found) return fail(trial, "no memory");
  if (!brought) return fail_gpu(trial, what);
  return same || fail(trial, "%s: wrote to an input", what);
}

static bool inputs_unchanged(trial *trial, const char *what) {
  for (role role = X; role < ROLES && trial->gpu; role++) {
    const operand *operand = &trial->operands[role];
    if (operand->ndim == 0 || is_output(trial, role)) continue;
    if (!twin_unchanged(trial, operand, what)) return false;
  }
  return true;
}

/* A workspace full of PATTERN, with a guard band behind it. */
static unsigned char *make_workspace(trial *trial, int64_t size) {
  int64_t all = size + GUARD;
  unsigned char *workspace = trial->gpu ? gpu_allocate(trial->gpu, all) : allocate_bytes(all);
  if (workspace && !trial->gpu) memset(workspace, PATTERN, (size_t)all);
  if (workspace && trial->gpu) gpu_fill(trial->gpu, workspace, PATTERN, all);
  return workspace;
}

/* Wait for the run, see whether it wrote behind its workspace, and release that. */
static bool finish_workspace(trial *trial, unsigned char *workspace, int64_t size,
                             const char *what) {
  unsigned char guard[GUARD];
  bool read = true, overrun = false;
  if (trial->gpu) {
    read = gpu_download(trial->gpu, guard, workspace + size, GUARD);
    gpu_free(trial->gpu, workspace);
  } else {
    memcpy(guard, workspace + size, GUARD);
    free(workspace);
  }
  if (!read) return fail_gpu(trial, what);
  for (int i = 0; i < GUARD; i++) overrun = overrun || guard[i] != PATTERN;
  return !overrun || fail(trial, "%s: wrote behind its workspace", what);
}

/* ---- Runs ---- */

/* Outputs as they were at first, or full of the input they will overwrite; and the operands of the
 * call, which differ from the trial's in that the overwritten input is the output. */
static void reset_outputs(trial *trial, operand call[ROLES]) {
  for (role role = X; role < ROLES; role++) {
    if (!is_output(trial, role)) continue;
    operand *operand = &trial->operands[role];
    if (trial->initial[role])
      memcpy(operand->memory, trial->initial[role], (size_t)operand->memory_size);
    else
      memset(operand->memory, PATTERN, (size_t)operand->memory_size);
  }
  memcpy(call, trial->operands, sizeof trial->operands);
  in_place in_place = trial->check_case->in_place;
  if (in_place == SEPARATE) return;
  operand *from = &trial->operands[in_place_input(in_place)];
  operand *to = &trial->operands[in_place_output(in_place)];
  for (int64_t i = 0; i < from->elements; i++)
    memcpy(operand_at(to, i), operand_at(from, i), (size_t)dtype_size(from->dtype));
  call[in_place_input(in_place)] = *to;
}

static bool run_plan(trial *trial, const onepass_plan *plan, const operand call[ROLES],
                     const char *what) {
  int64_t size = (int64_t)onepass_plan_workspace(plan);
  unsigned char *workspace = size ? make_workspace(trial, size) : NULL;
  if (size && !workspace) return fail(trial, "%s: no memory for its workspace", what);
  onepass_buffers buffers = operand_buffers(call);
  void *stream = trial->gpu ? trial->gpu->stream : NULL;
  onepass_status status = onepass_run(plan, &buffers, workspace, (size_t)size, stream);
  bool within = !workspace || finish_workspace(trial, workspace, size, what);
  return status == ONEPASS_OK ? within : fail_status(trial, what, status);
}

static void note_kernel(outcome *outcome, const char *name) {
  for (int i = 0; i < outcome->name_count; i++)
    if (strcmp(outcome->names[i], name) == 0) return;
  if (outcome->name_count < MOST_NAMES) outcome->names[outcome->name_count++] = name;
}

static bool run_once(trial *trial, const onepass_options *options) {
  run_name what = name_run(trial, options);
  operand call[ROLES];
  reset_outputs(trial, call);
  if (trial->gpu && !move_to_gpu(trial, call)) return false;
  onepass_plan *plan = NULL;
  onepass_plan_info info;
  onepass_status status = problem_plan(trial->problem, call, options, &plan);
  if (status == ONEPASS_OK) status = onepass_plan_describe(plan, &info);
  if (status != ONEPASS_OK) return fail_status(trial, what.text, status);
  note_kernel(trial->outcome, info.kernel);
  bool ran = run_plan(trial, plan, call, what.text);
  onepass_plan_destroy(plan);
  return ran && (!trial->gpu || bring_back(trial, what.text));
}

typedef const onepass_tensor *const role_tensors[ROLES];

static onepass_status call_l1_norm(const problem *problem, role_tensors t) {
  const onepass_norm *norm = &problem->norm;
  if (problem->direction == ONEPASS_FORWARD)
    return onepass_l1_norm(t[X], norm->axis, norm->reduction, norm->eps, t[Y]);
  return onepass_l1_norm_backward(t[DY], t[X], norm->axis, norm->reduction, norm->eps, t[DX]);
}

static onepass_status call_layer_norm(const problem *problem, role_tensors t) {
  const onepass_norm *norm = &problem->norm;
  if (problem->direction == ONEPASS_FORWARD)
    return onepass_layer_norm(t[X], norm->axis, t[WEIGHT], t[BIAS], norm->eps, t[Y], t[MEAN],
                              t[RSTD]);
  return onepass_layer_norm_backward(t[DY], t[X], norm->axis, t[WEIGHT], t[MEAN], t[RSTD], t[DX],
                                     t[DWEIGHT], t[DBIAS]);
}

static onepass_status call_avg_pool1d(const problem *problem, role_tensors t) {
  const onepass_pool *pool = &problem->pool;
  bool forward = problem->direction == ONEPASS_FORWARD;
  return (forward ? onepass_avg_pool1d : onepass_avg_pool1d_backward)(
      t[forward ? X : DY], pool->kernel[0], pool->stride[0], pool->padding[0], pool->ceil_mode,
      pool->count_include_pad, t[forward ? Y : DX]);
}

/* The one-call function that says all of the problem, or NULL. */
typedef onepass_status (*helper)(const problem *problem, role_tensors tensors);

static helper find_helper(const problem *problem) {
  const onepass_norm *norm = &problem->norm;
  const onepass_pool *pool = &problem->pool;
  if (problem->op->family == FAMILY_POOL) {
    bool plain = pool->op == ONEPASS_AVG_POOL && pool->spatial == 1;
    return plain && !pool->adaptive && !pool->divisor ? call_avg_pool1d : NULL;
  }
  bool fused = norm->activation || norm->clamp || norm->axes ||
               (problem->roles & (ROLE_BIT(RESIDUAL) | ROLE_BIT(DSUM)));
  if (fused) return NULL;
  if (norm->op == ONEPASS_L1_NORM) return call_l1_norm;
  return norm->op == ONEPASS_LAYER_NORM ? call_layer_norm : NULL;
}

static bool run_helper(trial *trial, helper helper) {
  operand call[ROLES];
  reset_outputs(trial, call);
  if (trial->gpu && !move_to_gpu(trial, call)) return false;
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
  onepass_status status = helper(trial->problem, used);
  if (status != ONEPASS_OK) return fail_status(trial, "one call", status);
  if (!trial->gpu) return true;
  return gpu_wait_default(trial->gpu) ? bring_back(trial, "one call") : fail_gpu(trial, "one call");
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
static bool surroundings_untouched(trial *trial, const char *what) {
  for (role role = X; role < ROLES; role++) {
    if (!is_output(trial, role)) continue;
    operand operand = trial->operands[role];
    for (int64_t i = 0; i < operand.elements; i++)
      memset(operand_at(&operand, i), PATTERN, (size_t)dtype_size(operand.dtype));
    for (int64_t i = 0; i < operand.memory_size; i++)
      if (operand.memory[i] != PATTERN)
        return fail(trial, "%s: wrote outside %s, at byte %" PRId64, what, role_name(role),
                    i - (operand.data - operand.memory));
  }
  return true;
}

static bool judge_run(trial *trial, const char *what, verdict *verdict) {
  for (role role = X; role < ROLES; role++)
    if (is_output(trial, role))
      memcpy(trial->snapshot[role], trial->operands[role].memory,
             (size_t)trial->operands[role].memory_size);
  bool judged = judge(trial->problem, trial->operands, trial->want, ALL_ROLES, verdict);
  verdict_merge(&trial->outcome->verdict, verdict);
  if (!judged) return fail(trial, "no memory");
  if (verdict->wrong > 0)
    return fail(trial,
                "%s: %" PRId64 " elements wrong, worst %s[%" PRId64
                "] = %.17g, expected %.17g "
                "(%.3g times the bound)",
                what, verdict->wrong, role_name(verdict->role), verdict->index, verdict->got,
                verdict->want, verdict->of_bound);
  return surroundings_untouched(trial, what);
}

/* One vector level with every number of threads, or one kernel of a GPU. */
static bool check_way(trial *trial, onepass_options options, int thread_count, verdict *verdict) {
  const checker *checker = trial->checker;
  options.threads = checker->threads[0];
  if (!run_once(trial, &options)) return false;
  const char *way = way_name(trial, &options);
  if (!judge_run(trial, way, verdict) || !inputs_unchanged(trial, way)) return false;
  for (int i = 0; i < thread_count; i++) {
    options.threads = checker->threads[i];
    run_name what = name_run(trial, &options);
    if (!run_once(trial, &options) || !same_bits(trial, what.text)) return false;
  }
  return true;
}

static onepass_status describe_way(const trial *trial, const onepass_options *options,
                                   onepass_plan_info *info) {
  operand call[ROLES];
  memcpy(call, trial->operands, sizeof call);
  if (trial->gpu) operands_on((onepass_device){ONEPASS_CUDA, trial->gpu->device}, call);
  onepass_plan *plan = NULL;
  onepass_status status = problem_plan(trial->problem, call, options, &plan);
  if (status == ONEPASS_OK) status = onepass_plan_describe(plan, info);
  onepass_plan_destroy(plan);
  return status;
}

/* What has no kernels of its own is the same at every level and on any number of threads. */
static bool is_reference(const trial *trial, const onepass_options *options) {
  onepass_plan_info info;
  return describe_way(trial, options, &info) == ONEPASS_OK && strcmp(info.kernel, "reference") == 0;
}

static bool check_levels(trial *trial) {
  for (int i = 0; i < trial->checker->level_count; i++) {
    verdict verdict = {.wrong = 0};
    onepass_options options = {.vector_level = trial->checker->levels[i]};
    bool reference = is_reference(trial, &options);
    if (reference && i + 1 < trial->checker->level_count) continue;
    if (!check_way(trial, options, reference ? 1 : trial->checker->thread_count, &verdict))
      return false;
  }
  return true;
}

/* Every kernel that can do the problem, also after one has failed; last of all the one the library
 * takes by itself. */
static bool check_kernels(trial *trial) {
  outcome *outcome = trial->outcome;
  for (int32_t i = 1; i <= ONEPASS_CUDA_KERNEL_COUNT; i++) {
    onepass_options options = {.cuda_kernel = i % ONEPASS_CUDA_KERNEL_COUNT};
    bool best = options.cuda_kernel == ONEPASS_CUDA_BEST;
    onepass_plan_info info;
    onepass_status status = describe_way(trial, &options, &info);
    if (status == ONEPASS_BAD_OPTION && !best) continue;
    if (status != ONEPASS_OK) return fail_status(trial, way_name(trial, &options), status);
    verdict verdict = {.wrong = 0};
    bool passed = check_way(trial, options, trial->checker->thread_count, &verdict);
    outcome->kernels[outcome->kernel_count++] =
        (kernel_run){info.kernel, options.cuda_kernel, passed, verdict.of_bound};
  }
  return outcome->passed;
}

static bool check_session(trial *trial) {
  if (!prepare(trial)) return false;
  onepass_status status = run_reference(trial->problem, trial->operands, 0, trial->want);
  if (status != ONEPASS_OK) return fail_status(trial, "reference", status);
  if (!(trial->gpu ? check_kernels : check_levels)(trial)) return false;
  helper helper = find_helper(trial->problem);
  return !helper || (run_helper(trial, helper) && same_bits(trial, "one call"));
}

void run_case(const checker *checker, const check_case *check_case, gpu *gpu, outcome *outcome) {
  memset(outcome, 0, sizeof *outcome);
  outcome->passed = true;
  trial trial = {.checker = checker,
                 .gpu = gpu,
                 .check_case = check_case,
                 .problem = &check_case->problem,
                 .outcome = outcome};
  check_session(&trial);
  for (role role = X; role < ROLES; role++) {
    free(trial.snapshot[role]);
    free(trial.initial[role]);
    if (gpu) gpu_free(gpu, trial.operands[role].twin);
  }
  operands_free(trial.want);
  operands_free(trial.operands);
}
