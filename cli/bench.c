#include <inttypes.h>
#include <onepass.h>
#include <stdio.h>
#include <string.h>

#include "buffers.h"
#include "cli.h"
#include "gpu.h"
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
  int op, dtype, direction, vector, device, cuda_kernel;
  shape shape;
  int64_t axis, kernel, stride, padding, threads, repetitions;
  bool json, verbose;
  gpu *gpu; /* NULL: the CPU */
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

enum { STANDARD_SHAPES = 4 };

/* f32 tensors of 256 MiB or a little more. */
static const standard_shape standard_shapes[STANDARD_SHAPES] = {
    {OP_L1_NORM, {2, {1024, 65535}}},
    {OP_LAYER_NORM, {2, {65536, 1024}}},
    {OP_LAYER_NORM, {4, {16, 64, 256, 256}}},
    {OP_AVG_POOL1D, {3, {8, 128, 65536}}}};

/* Up to 8 GiB. */
static const standard_shape gpu_shapes[STANDARD_SHAPES] = {{OP_L1_NORM, {2, {32768, 65535}}},
                                                           {OP_LAYER_NORM, {2, {32768, 1024}}},
                                                           {OP_LAYER_NORM, {4, {16, 64, 256, 256}}},
                                                           {OP_AVG_POOL1D, {3, {64, 128, 65536}}}};

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
  if (request->gpu) operands_on((onepass_device){ONEPASS_CUDA, request->gpu->device}, operands);
  onepass_options options = {.threads = (int32_t)request->threads,
                             .vector_level = vector_level(request),
                             .cuda_kernel = request->cuda_kernel};
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
                     op_choices[problem->op], direction_name(problem->direction),
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
  failed = check_memory(request, &problem);
  if (!failed) failed = check_plan(request, &problem);
  if (failed) return failed;
  lines->problems[lines->count++] = problem;
  return 0;
}

/* Halve the first size until the lines fit into half of the memory. */
static shape shape_that_fits(const request *request, const standard_shape *standard, int dtype) {
  shape shape = standard->shape;
  memory_need there = memory_there(request);
  for (; shape.sizes[0] > 1; shape.sizes[0] /= 2) {
    problem problem = make_problem(request, standard->op, ONEPASS_BACKWARD, dtype, &shape);
    problem.pooled = shape.sizes[shape.ndim - 1] + 1;
    memory_need need = measure_memory(&problem, request->gpu);
    if (need.host <= there.host / 2 && need.device <= there.device / 2) break;
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
  const standard_shape *shapes = request->gpu ? gpu_shapes : standard_shapes;
  for (int i = 0; i < STANDARD_SHAPES; i++) {
    if (shapes[i].op != op) continue;
    shape shape = shape_that_fits(request, &shapes[i], dtype);
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

static void print_launch_json(json *json, const measurement *measured) {
  json_integer(json, "grid", measured->plan.grid);
  json_integer(json, "block", measured->plan.block);
  json_integer(json, "cluster", measured->plan.cluster);
  json_integer(json, "shared", (int64_t)measured->plan.shared);
  json_integer(json, "launches", measured->plan.launches);
  json_number(json, "host_us", measured->host_seconds * 1e6);
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
  json_text(&json, "device", device_choices[request->device]);
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
  if (request->gpu) print_launch_json(&json, measured);
  json_end(&json);
}

enum { PLAIN_COLUMNS = 9, MOST_COLUMNS = 18 };

typedef struct table {
  column columns[MOST_COLUMNS];
  int count;
} table;

static const column plain_columns[PLAIN_COLUMNS] = {
    {"op", 10, false},   {"dir", 3, false},    {"dtype", 5, false},
    {"shape", 5, false}, {"over", 4, false},   {"time", 10, true},
    {"GB/s", 6, true},   {"of copy", 7, true}, {"max err", 7, true}};

/* What -v adds. */
static const column cpu_columns[] = {
    {"kernel", 14, false}, {"vector", 6, false}, {"threads", 7, true}, {"workspace", 9, true}};
static const column gpu_columns[] = {
    {"kernel", 8, false}, {"grid", 6, true},      {"block", 5, true},    {"cluster", 7, true},
    {"shared", 9, true},  {"workspace", 9, true}, {"launches", 8, true}, {"host", 7, true}};

enum {
  CPU_COLUMNS = sizeof cpu_columns / sizeof *cpu_columns,
  GPU_COLUMNS = sizeof gpu_columns / sizeof *gpu_columns
};

static void widen(column *column, const char *text) {
  if ((int)strlen(text) > column->width) column->width = (int)strlen(text);
}

static table make_table(const request *request, const lines *lines) {
  table table = {.count = PLAIN_COLUMNS};
  memcpy(table.columns, plain_columns, sizeof plain_columns);
  if (request->verbose) {
    bool gpu = request->gpu;
    memcpy(table.columns + PLAIN_COLUMNS, gpu ? gpu_columns : cpu_columns,
           gpu ? sizeof gpu_columns : sizeof cpu_columns);
    table.count += gpu ? GPU_COLUMNS : CPU_COLUMNS;
  }
  for (int i = 0; i < lines->count; i++) {
    char shape[192], arguments[80];
    format_shape(shape, sizeof shape, lines->problems[i].shape, lines->problems[i].ndim);
    format_arguments(arguments, sizeof arguments, &lines->problems[i]);
    widen(&table.columns[3], shape);
    widen(&table.columns[4], arguments);
  }
  return table;
}

typedef struct cell {
  char text[192];
} cell;

static cell number_cell(int64_t number) {
  cell cell;
  snprintf(cell.text, sizeof cell.text, "%" PRId64, number);
  return cell;
}

static cell bytes_cell(size_t bytes) {
  cell cell;
  format_bytes(cell.text, sizeof cell.text, (double)bytes);
  return cell;
}

static cell text_cell(const char *text) {
  cell cell;
  snprintf(cell.text, sizeof cell.text, "%s", text);
  return cell;
}

static cell time_cell(double seconds) {
  cell cell;
  format_time(cell.text, sizeof cell.text, seconds);
  return cell;
}

static void plain_cells(cell *cells, const problem *problem, const measurement *measured) {
  cells[0] = text_cell(op_choices[problem->op]);
  cells[1] = text_cell(direction_name(problem->direction));
  cells[2] = text_cell(dtype_name(problem->dtype));
  format_shape(cells[3].text, sizeof cells[3].text, problem->shape, problem->ndim);
  format_arguments(cells[4].text, sizeof cells[4].text, problem);
  cells[5] = time_cell(measured->seconds);
  snprintf(cells[6].text, sizeof cells[6].text, "%.1f",
           (double)measured->plan.bytes / measured->seconds / 1e9);
  snprintf(cells[7].text, sizeof cells[7].text, "%.2f", measured->copy_seconds / measured->seconds);
  snprintf(cells[8].text, sizeof cells[8].text, "%.1e", measured->verdict.relative);
}

static void cpu_cells(cell *cells, const onepass_plan_info *plan) {
  cells[0] = text_cell(plan->kernel);
  cells[1] = text_cell(plan->vector);
  cells[2] = number_cell(plan->threads);
  cells[3] = bytes_cell(plan->workspace);
}

static void gpu_cells(cell *cells, const onepass_plan_info *plan, double host_seconds) {
  cells[0] = text_cell(plan->kernel);
  cells[1] = number_cell(plan->grid);
  cells[2] = number_cell(plan->block);
  cells[3] = number_cell(plan->cluster);
  cells[4] = bytes_cell(plan->shared);
  cells[5] = bytes_cell(plan->workspace);
  cells[6] = number_cell(plan->launches);
  cells[7] = time_cell(host_seconds);
}

static void print_line(const table *table, const request *request, const problem *problem,
                       const measurement *measured) {
  cell cells[MOST_COLUMNS];
  const char *texts[MOST_COLUMNS];
  plain_cells(cells, problem, measured);
  if (request->gpu)
    gpu_cells(cells + PLAIN_COLUMNS, &measured->plan, measured->host_seconds);
  else
    cpu_cells(cells + PLAIN_COLUMNS, &measured->plan);
  for (int i = 0; i < table->count; i++) texts[i] = cells[i].text;
  table_row(table->columns, table->count, texts);
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
      print_line(&table, request, problem, &measured);
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
  return 0;
}

/* Options that say nothing about the device, once that is known. */
static int check_device_options(const request *request) {
  if (request->device == DEVICE_CUDA && request->vector)
    return usage_error("bench", "--vector %s is for the CPU; add --device cpu",
                       vector_choices[request->vector]);
  if (request->device == DEVICE_CPU && request->cuda_kernel)
    return usage_error("bench", "--cuda-kernel %s is for --device cuda, not for the CPU",
                       cuda_kernel_choices[request->cuda_kernel]);
  return 0;
}

/* The bytes that must be used before the same ones come again, to come from memory: a cache may
 * keep some of the old, and a GPU's does. */
static int find_rotation(const request *request, int64_t last_cache, int64_t *rotation) {
  onepass_cuda_info info;
  *rotation = 2 * last_cache;
  if (!request->gpu) return 0;
  if (onepass_get_cuda_info(request->gpu->device, &info) != ONEPASS_OK)
    return usage_error("bench", "%s", onepass_last_message());
  *rotation = 3 * info.l2;
  return 0;
}

static int bench(request *request) {
  onepass_cpu_info cpu;
  int64_t rotation;
  if (onepass_get_cpu_info(&cpu) != ONEPASS_OK)
    return usage_error("bench", "%s", onepass_last_message());
  if (request->threads == 0) request->threads = cpu.threads;
  lines lines = {.count = 0};
  int failed = find_rotation(request, cpu.last, &rotation);
  if (!failed) failed = collect_lines(request, &lines);
  if (failed) return failed;
  measure_options options = {.gpu = request->gpu,
                             .threads = (int32_t)request->threads,
                             .vector_level = vector_level(request),
                             .cuda_kernel = request->cuda_kernel,
                             .repetitions = request->repetitions,
                             .rotation = rotation};
  return measure_lines(request, &options, &lines);
}

static int bench_on_gpu(request *request) {
  gpu gpu;
  if (!gpu_open(&gpu, 0)) return usage_error("bench", "--device cuda: %s", gpu.reason);
  request->gpu = &gpu;
  int status = bench(request);
  gpu_close(&gpu);
  return status;
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
      {"--cuda-kernel", OPTION_CHOICE, &request.cuda_kernel, 0, 0, cuda_kernel_choices},
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
  if (!failed) failed = choose_device("bench", &request.device);
  if (!failed) failed = check_device_options(&request);
  if (failed) return failed;
  return request.device == DEVICE_CUDA ? bench_on_gpu(&request) : bench(&request);
}
