#include <inttypes.h>
#include <onepass.h>
#include <stdio.h>
#include <string.h>

#include "buffers.h"
#include "cli.h"
#include "measure.h"
#include "options.h"
#include "problem.h"
#include "table.h"

static const char *const direction_choices[] = {"fwd", "bwd", "both", NULL};
static const char *const vector_choices[] = {"best", "baseline", "avx2",      "avx512",
                                             "sse2", "neon",     "neon_bf16", NULL};

enum { BOTH_DIRECTIONS = 2, NOT_GIVEN = INT32_MIN, MOST_LINES = 64 };

/* What the command line asks for. */
typedef struct request {
  int op, dtype, direction, vector, device;
  shape shape;
  int64_t axis, kernel, stride, padding, threads, repetitions;
  bool json, verbose;
} request;

/* The lines to be measured, all known to be possible before the first is. */
typedef struct lines {
  problem problems[MOST_LINES];
  int count;
} lines;

/* ---- Which lines ---- */

typedef struct standard_shape {
  op_kind op;
  shape shape;
} standard_shape;

/* f32 tensors of 256 MiB or a little more. */
static const standard_shape standard_shapes[] = {{OP_L1_NORM, {2, {1024, 65535}}},
                                                 {OP_LAYER_NORM, {2, {65536, 1024}}},
                                                 {OP_LAYER_NORM, {4, {16, 64, 256, 256}}},
                                                 {OP_AVG_POOL1D, {3, {8, 128, 65536}}}};

enum { STANDARD_SHAPES = sizeof standard_shapes / sizeof *standard_shapes };

static problem make_problem(const request *request, op_kind op, onepass_direction direction,
                            int dtype, const shape *shape) {
  problem problem = {.op = op,
                     .direction = direction,
                     .dtype = dtype_at(dtype),
                     .weight_dtype = dtype_at(dtype),
                     .ndim = shape->ndim,
                     .weight = true,
                     .bias = true,
                     .stats = true,
                     .eps = op == OP_LAYER_NORM ? 1e-5 : 0,
                     .count_include_pad = true};
  memcpy(problem.shape, shape->sizes, sizeof problem.shape);
  int64_t axis = op == OP_LAYER_NORM && shape->ndim == 4 ? -3 : -1;
  if (request->axis != NOT_GIVEN) axis = request->axis;
  problem.axis = (int32_t)(axis < 0 ? axis + shape->ndim : axis);
  problem.kernel = request->kernel != NOT_GIVEN ? request->kernel : 8;
  problem.stride = request->stride != NOT_GIVEN ? request->stride : 1;
  problem.padding = request->padding != NOT_GIVEN ? request->padding : problem.kernel / 2;
  return problem;
}

static int32_t vector_level(const request *request) {
  const int32_t levels[] = {ONEPASS_VECTOR_BEST,     ONEPASS_VECTOR_BASELINE,
                            ONEPASS_VECTOR_AVX2,     ONEPASS_VECTOR_AVX512,
                            ONEPASS_VECTOR_BASELINE, ONEPASS_VECTOR_BASELINE,
                            ONEPASS_VECTOR_NEON_BF16};
  return levels[request->vector];
}

/* The library's own opinion, in its own words. */
static int check_plan(const request *request, const problem *problem) {
  operand operands[ROLES];
  problem_operands(problem, LAYOUT_COMPACT, operands);
  onepass_options options = {.threads = (int32_t)request->threads,
                             .vector_level = vector_level(request)};
  onepass_plan *plan = NULL;
  onepass_plan_info info = {0};
  onepass_status status = problem_plan(problem, operands, &options, &plan);
  if (status == ONEPASS_OK) status = onepass_plan_describe(plan, &info);
  onepass_plan_destroy(plan);
  if (status != ONEPASS_OK)
    return usage_error("bench", "%s: %s", op_choices[problem->op], onepass_last_message());
  /* sse2 and neon are both the baseline, each of its own kind of CPU */
  const char *name = vector_choices[request->vector];
  bool generic = options.vector_level == ONEPASS_VECTOR_BEST || strcmp(name, "baseline") == 0;
  if (generic || strcmp(name, info.vector) == 0) return 0;
  return usage_error("bench", "--vector %s: this CPU does not have it; its baseline is %s", name,
                     info.vector);
}

static int check_memory(const problem *problem) {
  char text[192], needed[32], there[32];
  format_shape(text, sizeof text, problem->shape, problem->ndim);
  int64_t bytes = measure_memory(problem), available = available_memory();
  if (bytes < 0)
    return usage_error("bench", "--shape %s: too large: its bytes do not fit in 64 bits", text);
  if (bytes <= available) return 0;
  format_bytes(needed, sizeof needed, (double)bytes);
  format_bytes(there, sizeof there, (double)available);
  return usage_error("bench", "--shape %s: %s %s %s needs %s of memory, %s is available", text,
                     op_choices[problem->op], direction_name(problem->direction),
                     dtype_name(problem->dtype), needed, there);
}

static int check_axis(const request *request, const problem *problem) {
  if (problem->op == OP_AVG_POOL1D || (problem->axis >= 0 && problem->axis < problem->ndim))
    return 0;
  return usage_error("bench",
                     "--axis %" PRId64 ": expected %" PRId32 " to %" PRId32
                     " for a shape of %" PRId32 " sizes",
                     request->axis, -problem->ndim, problem->ndim - 1, problem->ndim);
}

/* Add one line, or say why not. An operator that was not asked for by name and does not suit the
 * shape is left out without a word. */
static int add_line(const request *request, problem problem, lines *lines) {
  bool named = request->op != OP_COUNT;
  int failed = check_axis(request, &problem);
  if (failed) return failed;
  if (problem.op == OP_AVG_POOL1D) {
    if (!named && (problem.ndim < 2 || problem.ndim > 3)) return 0;
    onepass_status status =
        onepass_pool_length(problem.shape[problem.ndim - 1], problem.kernel, problem.stride,
                            problem.padding, problem.ceil_mode, &problem.pooled);
    if (status == ONEPASS_BAD_KERNEL && !named && request->kernel == NOT_GIVEN) return 0;
    if (status != ONEPASS_OK)
      return usage_error("bench", "%s: %s", op_choices[problem.op], onepass_last_message());
  }
  failed = check_memory(&problem);
  if (!failed) failed = check_plan(request, &problem);
  if (failed) return failed;
  lines->problems[lines->count++] = problem;
  return 0;
}

/* Halve the first size until the lines fit into half of the memory. */
static shape shape_that_fits(const request *request, const standard_shape *standard, int dtype) {
  shape shape = standard->shape;
  int64_t budget = available_memory() / 2;
  for (; shape.sizes[0] > 1; shape.sizes[0] /= 2) {
    problem problem = make_problem(request, standard->op, ONEPASS_BACKWARD, dtype, &shape);
    problem.pooled = shape.sizes[shape.ndim - 1] + 1;
    if (measure_memory(&problem) <= budget) break;
  }
  return shape;
}

static int add_shape(const request *request, op_kind op, const shape *shape, int dtype,
                     lines *lines) {
  for (int direction = 0; direction < BOTH_DIRECTIONS; direction++) {
    if (request->direction != BOTH_DIRECTIONS && request->direction != direction) continue;
    problem problem = make_problem(request, op, (onepass_direction)direction, dtype, shape);
    int failed = add_line(request, problem, lines);
    if (failed) return failed;
  }
  return 0;
}

static int add_op(const request *request, op_kind op, int dtype, lines *lines) {
  if (request->shape.ndim) return add_shape(request, op, &request->shape, dtype, lines);
  for (int i = 0; i < STANDARD_SHAPES; i++) {
    if (standard_shapes[i].op != op) continue;
    shape shape = shape_that_fits(request, &standard_shapes[i], dtype);
    int failed = add_shape(request, op, &shape, dtype, lines);
    if (failed) return failed;
  }
  return 0;
}

static int collect_lines(const request *request, lines *lines) {
  for (op_kind op = 0; op < OP_COUNT; op++)
    for (int dtype = 0; dtype < DTYPES; dtype++) {
      if (request->op != OP_COUNT && request->op != (int)op) continue;
      if (request->dtype != DTYPES && request->dtype != dtype) continue;
      int failed = add_op(request, op, dtype, lines);
      if (failed) return failed;
    }
  return 0;
}

/* ---- Output ---- */

/* What a line says beside its shape: "axis 1", or "k8 s1 p4". */
static void format_arguments(char *text, size_t size, const problem *problem) {
  if (problem->op == OP_AVG_POOL1D)
    snprintf(text, size, "k%" PRId64 " s%" PRId64 " p%" PRId64, problem->kernel, problem->stride,
             problem->padding);
  else
    snprintf(text, size, "axis %" PRId32, problem->axis - problem->ndim);
}

static void format_time(char *text, size_t size, double seconds) {
  if (seconds < 1e-3)
    snprintf(text, size, "%.1f us", seconds * 1e6);
  else
    snprintf(text, size, "%.2f ms", seconds * 1e3);
}

static void print_json(const request *request, const problem *problem,
                       const measurement *measured) {
  json json;
  json_begin(&json);
  json_text(&json, "op", op_choices[problem->op]);
  json_text(&json, "dir", direction_name(problem->direction));
  json_text(&json, "dtype", dtype_name(problem->dtype));
  json_sizes(&json, "shape", problem->shape, problem->ndim);
  if (problem->op == OP_AVG_POOL1D) {
    json_integer(&json, "kernel_size", problem->kernel);
    json_integer(&json, "stride", problem->stride);
    json_integer(&json, "padding", problem->padding);
  } else {
    json_integer(&json, "axis", problem->axis - problem->ndim);
  }
  json_text(&json, "device", "cpu");
  json_integer(&json, "threads", request->threads);
  json_number(&json, "ms", measured->seconds * 1e3);
  json_number(&json, "gbps", (double)measured->plan.bytes / measured->seconds / 1e9);
  json_number(&json, "copy_ms", measured->copy_seconds * 1e3);
  json_number(&json, "of_copy", measured->copy_seconds / measured->seconds);
  json_number(&json, "max_err", measured->verdict.relative);
  json_number(&json, "err_of_bound", measured->verdict.of_bound);
  json_flag(&json, "ok", measured->verdict.wrong == 0);
  json_integer(&json, "bytes", measured->plan.bytes);
  json_integer(&json, "reps", measured->repetitions);
  json_text(&json, "kernel", measured->plan.kernel);
  json_text(&json, "vector", measured->plan.vector);
  json_integer(&json, "threads_used", measured->plan.threads);
  json_integer(&json, "workspace", (int64_t)measured->plan.workspace);
  json_end(&json);
}

typedef struct table {
  column columns[14];
  int count;
} table;

static table make_table(const request *request, const lines *lines) {
  table table = {{{"op", 10, false},
                  {"dir", 3, false},
                  {"dtype", 5, false},
                  {"shape", 5, false},
                  {"over", 4, false},
                  {"time", 10, true},
                  {"GB/s", 6, true},
                  {"of copy", 7, true},
                  {"max err", 7, true},
                  {"kernel", 14, false},
                  {"vector", 6, false},
                  {"threads", 7, true},
                  {"workspace", 9, true}},
                 request->verbose ? 13 : 9};
  for (int i = 0; i < lines->count; i++) {
    char shape[192], arguments[80];
    format_shape(shape, sizeof shape, lines->problems[i].shape, lines->problems[i].ndim);
    format_arguments(arguments, sizeof arguments, &lines->problems[i]);
    if ((int)strlen(shape) > table.columns[3].width) table.columns[3].width = (int)strlen(shape);
    if ((int)strlen(arguments) > table.columns[4].width)
      table.columns[4].width = (int)strlen(arguments);
  }
  return table;
}

static void print_line(const table *table, const problem *problem, const measurement *measured) {
  char shape[192], arguments[80], time[32], speed[32], of_copy[32], error[32], threads[16];
  char workspace[32];
  format_shape(shape, sizeof shape, problem->shape, problem->ndim);
  format_arguments(arguments, sizeof arguments, problem);
  format_time(time, sizeof time, measured->seconds);
  snprintf(speed, sizeof speed, "%.1f", (double)measured->plan.bytes / measured->seconds / 1e9);
  snprintf(of_copy, sizeof of_copy, "%.2f", measured->copy_seconds / measured->seconds);
  snprintf(error, sizeof error, "%.1e", measured->verdict.relative);
  snprintf(threads, sizeof threads, "%" PRId32, measured->plan.threads);
  format_bytes(workspace, sizeof workspace, (double)measured->plan.workspace);
  const char *const cells[] = {op_choices[problem->op],
                               direction_name(problem->direction),
                               dtype_name(problem->dtype),
                               shape,
                               arguments,
                               time,
                               speed,
                               of_copy,
                               error,
                               measured->plan.kernel,
                               measured->plan.vector,
                               threads,
                               workspace};
  table_row(table->columns, table->count, cells);
}

static void print_wrong(const verdict *verdict) {
  printf("  WRONG: %" PRId64 " elements out of bounds, worst %s[%" PRId64
         "] = %.9g, expected %.9g\n",
         verdict->wrong, role_name(verdict->role), verdict->index, verdict->got, verdict->want);
}

/* ---- The command ---- */

static int measure_lines(const request *request, const measure_options *options,
                         const lines *lines) {
  table table = make_table(request, lines);
  int status = EXIT_FINE;
  if (!request->json) table_row(table.columns, table.count, NULL);
  for (int i = 0; i < lines->count; i++) {
    const problem *problem = &lines->problems[i];
    progress("bench: %d of %d: %s %s %s", i + 1, lines->count, op_choices[problem->op],
             direction_name(problem->direction), dtype_name(problem->dtype));
    measurement measured;
    const char *reason;
    bool done = measure(problem, options, &measured, &reason);
    progress(NULL);
    if (!done) {
      usage_error("bench", "%s: %s", op_choices[problem->op], reason);
      return EXIT_OFF;
    }
    if (request->json)
      print_json(request, problem, &measured);
    else
      print_line(&table, problem, &measured);
    if (measured.verdict.wrong == 0) continue;
    if (!request->json) print_wrong(&measured.verdict);
    status = EXIT_OFF;
  }
  return status;
}

/* Options that say nothing about the operator that was asked for, and shapes with nothing in them.
 */
static int check_request(const request *request) {
  bool windowed =
      request->kernel != NOT_GIVEN || request->stride != NOT_GIVEN || request->padding != NOT_GIVEN;
  bool norm = request->op == OP_L1_NORM || request->op == OP_LAYER_NORM;
  if (norm && windowed)
    return usage_error("bench", "--kernel, --stride and --padding are for avg_pool1d, not %s",
                       op_choices[request->op]);
  if (request->op == OP_AVG_POOL1D && request->axis != NOT_GIVEN)
    return usage_error("bench", "--axis %" PRId64 ": avg_pool1d always pools the last axis",
                       request->axis);
  for (int32_t i = 0; i < request->shape.ndim; i++) {
    if (request->shape.sizes[i] > 0) continue;
    char text[192];
    format_shape(text, sizeof text, request->shape.sizes, request->shape.ndim);
    return usage_error("bench", "--shape %s: nothing to time in an empty tensor", text);
  }
  return require_device("bench", request->device);
}

static int bench(request *request) {
  onepass_cpu_info cpu;
  if (onepass_get_cpu_info(&cpu) != ONEPASS_OK)
    return usage_error("bench", "%s", onepass_last_message());
  if (request->threads == 0) request->threads = cpu.threads;
  lines lines = {.count = 0};
  int failed = collect_lines(request, &lines);
  if (failed) return failed;
  measure_options options = {(int32_t)request->threads, vector_level(request), request->repetitions,
                             cpu.last};
  return measure_lines(request, &options, &lines);
}

int run_bench(int count, char **arguments) {
  request request = {.op = OP_COUNT,
                     .direction = BOTH_DIRECTIONS,
                     .device = DEVICE_AUTO,
                     .axis = NOT_GIVEN,
                     .kernel = NOT_GIVEN,
                     .stride = NOT_GIVEN,
                     .padding = NOT_GIVEN};
  bool help;
  const option options[] = {
      {"--op", OPTION_CHOICE, &request.op, 0, 0, op_choices},
      {"--shape", OPTION_SHAPE, &request.shape, 0, 0, NULL},
      {"--axis", OPTION_NUMBER, &request.axis, -ONEPASS_MAX_NDIM, ONEPASS_MAX_NDIM - 1, NULL},
      {"--kernel", OPTION_NUMBER, &request.kernel, 1, INT64_MAX, NULL},
      {"--stride", OPTION_NUMBER, &request.stride, 1, INT64_MAX, NULL},
      {"--padding", OPTION_NUMBER, &request.padding, 0, INT64_MAX, NULL},
      {"--dtype", OPTION_CHOICE, &request.dtype, 0, 0, dtype_choices},
      {"--dir", OPTION_CHOICE, &request.direction, 0, 0, direction_choices},
      {"--threads", OPTION_NUMBER, &request.threads, 1, 1024, NULL},
      {"--vector", OPTION_CHOICE, &request.vector, 0, 0, vector_choices},
      {"--device", OPTION_CHOICE, &request.device, 0, 0, device_choices},
      {"--reps", OPTION_NUMBER, &request.repetitions, 1, 2000, NULL},
      {"--json", OPTION_FLAG, &request.json, 0, 0, NULL},
      {"-v", OPTION_FLAG, &request.verbose, 0, 0, NULL},
      {0}};
  int failed = read_options("bench", count, arguments, options, &help);
  if (failed) return failed;
  if (help) {
    fputs(help_text("bench"), stdout);
    return EXIT_FINE;
  }
  failed = check_request(&request);
  return failed ? failed : bench(&request);
}
