#include <inttypes.h>
#include <onepass.h>
#include <stdio.h>
#include <string.h>

#include "bench_lines.h"
#include "buffers.h"
#include "cli.h"
#include "gpu.h"
#include "measure.h"
#include "table.h"

static const char *const direction_choices[] = {"fwd", "bwd", "both", NULL};

/* ---- Output ---- */

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

/* One number along one axis, otherwise an array. */
static void print_sizes_json(json *json, const char *name, const int64_t *sizes, int32_t count) {
  if (count == 1)
    json_integer(json, name, sizes[0]);
  else
    json_sizes(json, name, sizes, count);
}

static void print_arguments_json(json *json, const problem *problem) {
  const op_entry *op = problem->op;
  if (takes_window(op)) {
    print_sizes_json(json, "kernel_size", problem->pool.kernel, op->spatial);
    print_sizes_json(json, "stride", problem->pool.stride, op->spatial);
    print_sizes_json(json, "padding", problem->pool.padding, op->spatial);
  }
  if (takes_dilation(op)) print_sizes_json(json, "dilation", problem->pool.dilation, op->spatial);
  if (takes_output(op)) print_sizes_json(json, "output", problem->pooled, op->spatial);
  if (takes_axis(op)) json_integer(json, "axis", problem->norm.axis - problem->ndim);
  if (takes_groups(op)) json_integer(json, "groups", problem->norm.groups);
  if (takes_activation(op))
    json_text(json, "activation", activation_choices[problem->norm.activation]);
}

static void print_json(const request *request, const problem *problem,
                       const measurement *measured) {
  json json;
  json_begin(&json);
  json_text(&json, "op", problem->op->name);
  json_text(&json, "dir", direction_name(problem->direction));
  json_text(&json, "dtype", dtype_name(problem->dtype));
  json_sizes(&json, "shape", problem->shape, problem->ndim);
  print_arguments_json(&json, problem);
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
    char shape[192], arguments[96];
    format_shape(shape, sizeof shape, lines->problems[i].shape, lines->problems[i].ndim);
    format_arguments(arguments, sizeof arguments, &lines->problems[i]);
    widen(&table.columns[0], lines->problems[i].op->name);
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
  cells[0] = text_cell(problem->op->name);
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
    progress("bench: %d of %d: %s %s %s", i + 1, lines->count, problem->op->name,
             direction_name(problem->direction), dtype_name(problem->dtype));
    measurement measured;
    const char *reason;
    bool done = measure(problem, options, &measured, &reason);
    progress(NULL);
    if (!done) {
      usage_error("bench", "%s: %s", problem->op->name, reason);
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
  static lines lines; /* too large for a stack; there is one bench in a run */
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
  request request = {
      .op = OPS_MAIN, .direction = BOTH_DIRECTIONS, .device = DEVICE_AUTO, .axis = NOT_GIVEN};
  bool help;
  const option options[] = {
      {"--op", OPTION_CHOICE, &request.op, 0, 0, op_choices()},
      {"--shape", OPTION_SHAPE, &request.shape, 0, 0, NULL},
      {"--axis", OPTION_NUMBER, &request.axis, -ONEPASS_MAX_NDIM, ONEPASS_MAX_NDIM - 1, NULL},
      {"--groups", OPTION_NUMBER, &request.groups, 1, INT64_MAX, NULL},
      {"--activation", OPTION_CHOICE, &request.activation, 0, 0, activation_choices},
      {"--kernel", OPTION_SIZES, &request.kernel, 1, POOL_AXES, NULL},
      {"--stride", OPTION_SIZES, &request.stride, 1, POOL_AXES, NULL},
      {"--padding", OPTION_SIZES, &request.padding, 0, POOL_AXES, NULL},
      {"--dilation", OPTION_SIZES, &request.dilation, 1, POOL_AXES, NULL},
      {"--output", OPTION_SIZES, &request.output, 1, POOL_AXES, NULL},
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
