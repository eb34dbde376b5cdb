#include "bench_lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "buffers.h"
#include "cli.h"
#include "measure.h"

enum { REFERENCE_ELEMENTS = 2 << 20 /* what is timed of operators that have no kernels yet */ };

const char *const vector_choices[] = {"best", "baseline", "avx2",      "avx512",
                                      "sse2", "neon",     "neon_bf16", NULL};

/* ---- Options ---- */

static int check_suits(const request *request, const char *option, bool (*suits)(const op_entry *),
                       const char *whom) {
  for (int i = 0; i < op_count; i++)
    if (op_is_chosen(request->op, &op_table[i]) && suits(&op_table[i])) return 0;
  if (is_one_op(request->op))
    return usage_error("bench", "%s is for %s, not %s", option, whom, op_table[request->op].name);
  return usage_error("bench", "%s is for %s; choose with --op", option, whom);
}

int check_request(const request *request) {
  const struct {
    const char *name;
    bool given;
    bool (*suits)(const op_entry *);
    const char *whom;
  } options[] = {{"--axis", request->axis != NOT_GIVEN, takes_axis, "norms along axes"},
                 {"--groups", request->groups > 0, takes_groups, "group_norm"},
                 {"--activation", request->activation > 0, takes_activation, "norms with weights"},
                 {"--kernel", request->kernel.ndim > 0, takes_window, "poolings with windows"},
                 {"--stride", request->stride.ndim > 0, takes_window, "poolings with windows"},
                 {"--padding", request->padding.ndim > 0, takes_padding, "avg_pool and max_pool"},
                 {"--dilation", request->dilation.ndim > 0, takes_dilation, "max_pool"},
                 {"--output", request->output.ndim > 0, takes_output, "adaptive poolings"}};
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    if (!options[i].given) continue;
    int failed = check_suits(request, options[i].name, options[i].suits, options[i].whom);
    if (failed) return failed;
  }
  for (int32_t i = 0; i < request->shape.ndim; i++) {
    if (request->shape.sizes[i] > 0) continue;
    char text[192];
    format_shape(text, sizeof text, request->shape.sizes, request->shape.ndim);
    return usage_error("bench", "--shape %s: nothing to time in an empty tensor", text);
  }
  return 0;
}

/* ---- Problems ---- */

/* What became of an operator and a shape. */
typedef enum fate { FATE_FINE, FATE_LEFT_OUT, FATE_ERROR } fate;

/* An operator that was not asked for by name and does not suit the rest is left out without a word.
 */
static bool is_named(const request *request) {
  return is_one_op(request->op) || request->op == OPS_MAIN;
}

/* One size for all pooled axes, or one for each. */
static fate set_sizes(const request *request, const op_entry *op, const char *option,
                      const shape *given, int64_t otherwise, int64_t *sizes) {
  for (int a = 0; a < op->spatial; a++)
    sizes[a] = given->ndim == 0 ? otherwise : given->sizes[given->ndim == 1 ? 0 : a];
  if (given->ndim <= 1 || given->ndim == op->spatial) return FATE_FINE;
  if (!is_one_op(request->op)) return FATE_LEFT_OUT;
  char text[192];
  format_shape(text, sizeof text, given->sizes, given->ndim);
  usage_error("bench", "%s %s: %s pools %" PRId32 " ax%ss", option, text, op->name, op->spatial,
              op->spatial == 1 ? "i" : "e");
  return FATE_ERROR;
}

static fate set_window(const request *request, problem *problem) {
  const op_entry *op = problem->op;
  onepass_pool *pool = &problem->pool;
  fate fate = FATE_FINE;
  if (op->adaptive)
    return set_sizes(request, op, "--output", &request->output, op->output, problem->pooled);
  fate = set_sizes(request, op, "--kernel", &request->kernel, op->kernel, pool->kernel);
  if (fate == FATE_FINE)
    fate = set_sizes(request, op, "--stride", &request->stride, op->stride, pool->stride);
  if (fate == FATE_FINE && takes_dilation(op))
    fate = set_sizes(request, op, "--dilation", &request->dilation, 1, pool->dilation);
  if (fate == FATE_FINE && takes_padding(op))
    fate = set_sizes(request, op, "--padding", &request->padding, 0, pool->padding);
  for (int a = 0; a < op->spatial && takes_padding(op) && request->padding.ndim == 0; a++)
    pool->padding[a] = pool->kernel[a] / 2;
  pool->count_include_pad = op->pool == ONEPASS_AVG_POOL;
  return fate;
}

static fate set_norm(const request *request, problem *problem) {
  const op_entry *op = problem->op;
  int64_t axis = op->norm == ONEPASS_LAYER_NORM && problem->ndim == 4 ? -3 : -1;
  if (request->axis != NOT_GIVEN) axis = request->axis;
  if (takes_axis(op) && (axis < -problem->ndim || axis >= problem->ndim)) {
    if (!is_named(request) && request->shape.ndim == 0) return FATE_LEFT_OUT;
    usage_error("bench",
                "--axis %" PRId64 ": expected %" PRId32 " to %" PRId32 " for a shape of %" PRId32
                " sizes",
                axis, -problem->ndim, problem->ndim - 1, problem->ndim);
    return FATE_ERROR;
  }
  set_axis(problem, (int32_t)(axis < 0 ? axis + problem->ndim : axis));
  if (takes_groups(op) && request->groups) problem->norm.groups = request->groups;
  if (takes_activation(op)) set_activation(problem, (onepass_activation)request->activation);
  return FATE_FINE;
}

/* How many sizes a shape of the operator may have. */
static fate check_ndim(const request *request, const op_entry *op, const shape *shape) {
  bool pool = op->family == FAMILY_POOL;
  int32_t least = pool ? op->spatial + 1 : weights_by_channel(op) ? 2 : 1;
  int32_t most = pool ? op->spatial + 2 : ONEPASS_MAX_NDIM;
  if (shape->ndim >= least && shape->ndim <= most) return FATE_FINE;
  if (!is_one_op(request->op)) return FATE_LEFT_OUT;
  char text[192];
  format_shape(text, sizeof text, shape->sizes, shape->ndim);
  usage_error("bench", "--shape %s: ndim = %" PRId32 ": %s takes %" PRId32 " to %" PRId32 " sizes",
              text, shape->ndim, op->name, least, most);
  return FATE_ERROR;
}

static fate describe(const request *request, const op_entry *op, onepass_direction direction,
                     int dtype, const shape *shape, problem *problem) {
  *problem = make_problem(op, direction, dtype_at(dtype));
  fate fate = check_ndim(request, op, shape);
  if (fate != FATE_FINE) return fate;
  set_shape(problem, shape->sizes, shape->ndim);
  if (op->family == FAMILY_NORM) return set_norm(request, problem);
  fate = set_window(request, problem);
  if (fate != FATE_FINE) return fate;
  onepass_status status = set_pooled(problem);
  bool asked = is_one_op(request->op) || request->kernel.ndim > 0;
  if (status == ONEPASS_BAD_KERNEL && !asked) return FATE_LEFT_OUT;
  if (status == ONEPASS_OK) return FATE_FINE;
  usage_error("bench", "%s: %s", op->name, onepass_last_message());
  return FATE_ERROR;
}

/* ---- Can it be done? ---- */

int32_t vector_level(const request *request) {
  const int32_t levels[] = {ONEPASS_VECTOR_BEST,     ONEPASS_VECTOR_BASELINE,
                            ONEPASS_VECTOR_AVX2,     ONEPASS_VECTOR_AVX512,
                            ONEPASS_VECTOR_BASELINE, ONEPASS_VECTOR_BASELINE,
                            ONEPASS_VECTOR_NEON_BF16};
  return levels[request->vector];
}

static onepass_status plan_of(const request *request, const problem *problem,
                              onepass_plan_info *info) {
  operand operands[ROLES];
  problem_operands(problem, LAYOUT_COMPACT, operands);
  if (request->gpu) operands_on((onepass_device){ONEPASS_CUDA, request->gpu->device}, operands);
  onepass_options options = {.threads = (int32_t)request->threads,
                             .vector_level = vector_level(request),
                             .cuda_kernel = request->cuda_kernel};
  onepass_plan *plan = NULL;
  onepass_status status = problem_plan(problem, operands, &options, &plan);
  if (status == ONEPASS_OK) status = onepass_plan_describe(plan, info);
  onepass_plan_destroy(plan);
  return status;
}

/* The library's own opinion, in its own words. */
static int check_plan(const request *request, const problem *problem) {
  onepass_plan_info info = {0};
  onepass_status status = plan_of(request, problem, &info);
  if (status != ONEPASS_OK)
    return usage_error("bench", "%s: %s", problem->op->name, onepass_last_message());
  /* sse2 and neon are both the baseline, each of its own kind of CPU */
  const char *name = vector_choices[request->vector];
  bool generic = vector_level(request) == ONEPASS_VECTOR_BEST || strcmp(name, "baseline") == 0;
  bool has_levels = strcmp(info.kernel, "reference") != 0;
  if (generic || !has_levels || strcmp(name, info.vector) == 0) return 0;
  return usage_error("bench", "--vector %s: this CPU does not have it; its baseline is %s", name,
                     info.vector);
}

/* What there is: on the host, and on the device where there is one. */
static memory_need memory_there(const request *request) {
  return (memory_need){available_memory(), request->gpu ? gpu_available(request->gpu) : 0};
}

static int lacks_memory(const problem *problem, const char *kind, int64_t bytes,
                        int64_t available) {
  char text[192], needed[32], there[32];
  format_shape(text, sizeof text, problem->shape, problem->ndim);
  format_bytes(needed, sizeof needed, (double)bytes);
  format_bytes(there, sizeof there, (double)available);
  return usage_error("bench", "--shape %s: %s %s %s needs %s of %s, %s is available", text,
                     problem->op->name, direction_name(problem->direction),
                     dtype_name(problem->dtype), needed, kind, there);
}

static int check_memory(const request *request, const problem *problem) {
  memory_need need = measure_memory(problem, request->gpu), there = memory_there(request);
  if (need.host < 0) {
    char text[192];
    format_shape(text, sizeof text, problem->shape, problem->ndim);
    return usage_error("bench", "--shape %s: too large: its bytes do not fit in 64 bits", text);
  }
  if (need.device > there.device)
    return lacks_memory(problem, "device memory", need.device, there.device);
  if (need.host > there.host) return lacks_memory(problem, "memory", need.host, there.host);
  return 0;
}

/* ---- Lines ---- */

static int add_line(const request *request, const problem *problem, lines *lines) {
  if (lines->count == MOST_LINES) return 0;
  int failed = check_memory(request, problem);
  if (!failed) failed = check_plan(request, problem);
  if (failed) return failed;
  lines->problems[lines->count++] = *problem;
  return 0;
}

static bool is_small_enough(const request *request, const op_entry *op, int dtype,
                            const shape *shape) {
  memory_need there = memory_there(request);
  int64_t elements = 1;
  for (int32_t i = 0; i < shape->ndim; i++) elements *= shape->sizes[i];
  for (int direction = 0; direction < BOTH_DIRECTIONS; direction++) {
    problem problem;
    onepass_plan_info info;
    if (describe(request, op, (onepass_direction)direction, dtype, shape, &problem) != FATE_FINE)
      return true;
    memory_need need = measure_memory(&problem, request->gpu);
    if (need.host > there.host / 2 || need.device > there.device / 2) return false;
    bool slow =
        plan_of(request, &problem, &info) == ONEPASS_OK && strcmp(info.kernel, "reference") == 0;
    if (slow && elements > REFERENCE_ELEMENTS) return false;
  }
  return true;
}

/* Halve the first sizes until the lines fit into half of the memory, and until what is only a
 * reference takes no minutes. */
static shape shape_that_fits(const request *request, const op_entry *op, int number, int dtype) {
  shape shape = op->shapes[number];
  if (request->gpu && op->gpu_first[number]) shape.sizes[0] = op->gpu_first[number];
  for (int32_t i = 0; i < 2 && i < shape.ndim;) {
    if (is_small_enough(request, op, dtype, &shape)) break;
    if (shape.sizes[i] > 1)
      shape.sizes[i] /= 2;
    else
      i++;
  }
  return shape;
}

static int add_shape(const request *request, const op_entry *op, const shape *shape, int dtype,
                     lines *lines) {
  for (int direction = 0; direction < BOTH_DIRECTIONS; direction++) {
    if (request->direction != BOTH_DIRECTIONS && request->direction != direction) continue;
    problem problem;
    fate fate = describe(request, op, (onepass_direction)direction, dtype, shape, &problem);
    if (fate == FATE_LEFT_OUT) continue;
    int failed = fate == FATE_ERROR ? EXIT_USAGE : add_line(request, &problem, lines);
    if (failed) return failed;
  }
  return 0;
}

static int add_op(const request *request, const op_entry *op, int dtype, lines *lines) {
  if (request->shape.ndim) return add_shape(request, op, &request->shape, dtype, lines);
  for (int i = 0; i < BENCH_SHAPES && op->shapes[i].ndim; i++) {
    problem problem;
    fate fate = describe(request, op, ONEPASS_FORWARD, dtype, &op->shapes[i], &problem);
    if (fate == FATE_ERROR) return EXIT_USAGE;
    if (fate == FATE_LEFT_OUT) continue;
    shape shape = shape_that_fits(request, op, i, dtype);
    int failed = add_shape(request, op, &shape, dtype, lines);
    if (failed) return failed;
  }
  return 0;
}

int collect_lines(const request *request, lines *lines) {
  for (int i = 0; i < op_count; i++)
    for (int dtype = 0; dtype < DTYPES; dtype++) {
      if (!op_is_chosen(request->op, &op_table[i])) continue;
      if (request->dtype != DTYPES && request->dtype != dtype) continue;
      int failed = add_op(request, &op_table[i], dtype, lines);
      if (failed) return failed;
    }
  if (lines->count == 0) return usage_error("bench", "none of these operators suits the options");
  return 0;
}
