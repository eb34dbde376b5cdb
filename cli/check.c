#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <onepass.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "check_cases.h"
#include "check_run.h"
#include "cli.h"
#include "gpu.h"
#include "options.h"
#include "parallel.h"
#include "table.h"

enum {
  MOST_FAILURES_SHOWN = 20,
  MOST_KERNELS = 32,
  CASES_OF_WORKER = 2048,  /* of a batch, at least, if the list has them */
  MOST_OF_GROUP = 8192,    /* cases of a group in one batch */
  BYTES_OF_ELEMENT = 64,   /* of all buffers of a case, at most */
  LARGE_ELEMENTS = 1 << 23 /* a case of so many has the memory of a GPU to itself */
};

/* What the command line asks for. */
typedef struct request {
  int op, dtype, device;
  bool quick, full, json;
  int64_t threads, jobs, seed, number;
} request;

/* The cases of one operator, direction and type: a line of the table. */
typedef struct group {
  problem problem; /* of the first case */
  int64_t cases, failed;
  double of_bound, relative, absolute;
  const char *kernels[MOST_KERNELS];
  int kernel_count;
} group;

/* The cases that ran with one of a GPU's kernels: a line of the second table. */
typedef struct kernel_line {
  const char *name;
  int64_t cases, failed;
  int64_t chosen; /* by the library itself */
  int64_t latest; /* the last case counted */
  double of_bound;
} kernel_line;

typedef struct run {
  const request *request;
  effort effort;
  checker checker;
  bool cuda;
  int32_t workers; /* threads that run cases at the same time */
  int64_t memory;  /* that is free, in bytes */
  check_case *list;
  int64_t listed;
  group group;
  kernel_line kernels[MOST_KERNELS];
  int kernel_count;
  int64_t reached[ONEPASS_CUDA_KERNEL_COUNT]; /* cases that each kernel was asked to do, and did */
  int64_t cases, failed;
  bool header_shown;
} run;

static const column columns[] = {{"op", 19, false},  {"dir", 3, false},    {"dtype", 5, false},
                                 {"cases", 6, true}, {"worst", 6, true},   {"max err", 8, true},
                                 {"", 4, false},     {"kernels", 8, false}};

enum { COLUMNS = sizeof columns / sizeof *columns };

/* ---- Groups ---- */

/* The kernels that ran. */
static void list_kernels(char *text, size_t size, const group *group) {
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; i < group->kernel_count && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", group->kernels[i]);
}

static void print_group_json(const group *group) {
  char kernels[256];
  list_kernels(kernels, sizeof kernels, group);
  json json;
  json_begin(&json);
  json_text(&json, "op", group->problem.op->name);
  json_text(&json, "dir", direction_name(group->problem.direction));
  json_text(&json, "dtype", dtype_name(group->problem.dtype));
  json_integer(&json, "cases", group->cases);
  json_integer(&json, "failed", group->failed);
  json_number(&json, "worst_of_bound", group->of_bound);
  json_number(&json, "max_err", group->relative);
  json_number(&json, "max_abs_err", group->absolute);
  json_text(&json, "kernels", kernels);
  json_flag(&json, "ok", group->failed == 0);
  json_end(&json);
}

static void print_group(run *run, const group *group) {
  if (!run->header_shown) table_row(columns, COLUMNS, NULL);
  run->header_shown = true;
  char cases[24], of_bound[24], error[24], kernels[320];
  snprintf(cases, sizeof cases, "%" PRId64, group->cases);
  snprintf(of_bound, sizeof of_bound, "%.2f", group->of_bound);
  snprintf(error, sizeof error, "%.1e", group->relative);
  list_kernels(kernels, sizeof kernels, group);
  const char *const cells[COLUMNS] = {group->problem.op->name,
                                      direction_name(group->problem.direction),
                                      dtype_name(group->problem.dtype),
                                      cases,
                                      of_bound,
                                      error,
                                      group->failed ? "FAIL" : "ok",
                                      kernels};
  table_row(columns, COLUMNS, cells);
}

static void finish_group(run *run) {
  if (run->group.cases == 0) return;
  progress(NULL);
  if (run->request->json)
    print_group_json(&run->group);
  else
    print_group(run, &run->group);
  memset(&run->group, 0, sizeof run->group);
}

static bool same_group(const problem *a, const problem *b) {
  return a->op == b->op && a->direction == b->direction && dtype_equal(a->dtype, b->dtype);
}

/* ---- Failures ---- */

static void describe_norm(char *text, size_t size, const problem *problem) {
  const onepass_norm *norm = &problem->norm;
  char tensors[128] = "";
  for (role role = X; role < ROLES; role++) { /* those that not every call has */
    const unsigned usual =
        ROLE_BIT(X) | ROLE_BIT(Y) | ROLE_BIT(DY) | ROLE_BIT(DX) | ROLE_BIT(DWEIGHT);
    if (!has_role(problem, role) || (usual & ROLE_BIT(role))) continue;
    size_t used = strlen(tensors);
    snprintf(tensors + used, sizeof tensors - used, " %s", role_name(role));
  }
  snprintf(
      text, size,
      "axes %" PRId32 " reduction %s eps %g clamp %d use_running %d weights %s keep_axes %d with%s",
      norm->axes, norm->reduction == ONEPASS_MEAN ? "mean" : "sum", norm->eps, (int)norm->clamp,
      (int)norm->use_running, dtype_name(problem->weight_dtype), problem->keep_axes, tensors);
}

static void describe_options(char *text, size_t size, const problem *problem) {
  char arguments[96], more[256];
  format_arguments(arguments, sizeof arguments, problem);
  if (problem->op->family == FAMILY_NORM)
    describe_norm(more, sizeof more, problem);
  else
    snprintf(more, sizeof more,
             "ceil_mode %d count_include_pad %d divisor %" PRId64 " p %g indices %s",
             (int)problem->pool.ceil_mode, (int)problem->pool.count_include_pad,
             problem->pool.divisor, problem->pool.p, has_role(problem, INDICES) ? "yes" : "no");
  snprintf(text, size, "%s, %s", arguments, more);
}

/* The options that bring the same case back. */
static void describe_command(char *text, size_t size, const run *run, int64_t number) {
  char threads[32] = "";
  if (run->request->threads)
    snprintf(threads, sizeof threads, " --threads %" PRId64, run->request->threads);
  snprintf(text, size, "onepass check --device %s%s%s --seed %" PRId64 " --case %" PRId64,
           device_choices[run->request->device],
           run->effort == EFFORT_QUICK  ? " --quick"
           : run->effort == EFFORT_FULL ? " --full"
                                        : "",
           threads, run->request->seed, number);
}

static void print_failure(const run *run, const check_case *check_case, const char *reason) {
  const problem *problem = &check_case->problem;
  char shape[192], options[384], command[128];
  format_shape(shape, sizeof shape, problem->shape, problem->ndim);
  describe_options(options, sizeof options, problem);
  describe_command(command, sizeof command, run, check_case->number);
  progress(NULL);
  if (run->request->json) {
    json json;
    json_begin(&json);
    json_integer(&json, "failed_case", check_case->number);
    json_text(&json, "op", problem->op->name);
    json_text(&json, "dir", direction_name(problem->direction));
    json_text(&json, "dtype", dtype_name(problem->dtype));
    json_sizes(&json, "shape", problem->shape, problem->ndim);
    json_text(&json, "options", options);
    json_text(&json, "layout", layout_name(check_case->layout));
    json_text(&json, "values", values_name(check_case->values));
    json_text(&json, "in_place", in_place_name(check_case->in_place));
    json_text(&json, "reason", reason);
    json_text(&json, "command", command);
    json_end(&json);
    return;
  }
  printf("FAIL case %" PRId64 ": %s %s %s %s, %s, layout %s, values %s, in place %s\n",
         check_case->number, problem->op->name, direction_name(problem->direction),
         dtype_name(problem->dtype), shape, options, layout_name(check_case->layout),
         values_name(check_case->values), in_place_name(check_case->in_place));
  printf("     %s\n     again: %s\n", reason, command);
  fflush(stdout);
}

/* ---- The kernels of a GPU ---- */

static kernel_line *line_of(run *run, const char *name) {
  for (int i = 0; i < run->kernel_count; i++)
    if (strcmp(run->kernels[i].name, name) == 0) return &run->kernels[i];
  if (run->kernel_count == MOST_KERNELS) return &run->kernels[MOST_KERNELS - 1];
  run->kernels[run->kernel_count].name = name;
  return &run->kernels[run->kernel_count++];
}

static void add_kernels(run *run, const outcome *outcome) {
  for (int i = 0; i < outcome->kernel_count; i++) {
    const kernel_run *found = &outcome->kernels[i];
    kernel_line *line = line_of(run, found->name);
    line->cases += line->latest != run->cases; /* asked for and chosen, a kernel has two runs */
    line->latest = run->cases;
    line->chosen += found->asked == ONEPASS_CUDA_BEST;
    line->failed += !found->passed;
    if (found->of_bound > line->of_bound) line->of_bound = found->of_bound;
    run->reached[found->asked]++;
  }
}

static void print_kernel(const run *run, const kernel_line *line) {
  static const column columns[] = {{"kernel", 10, false},
                                   {"cases", 6, true},
                                   {"chosen", 6, true},
                                   {"worst", 6, true},
                                   {"", 6, false}};
  if (run->request->json) {
    json json;
    json_begin(&json);
    json_text(&json, "kernel", line->name);
    json_integer(&json, "cases", line->cases);
    json_integer(&json, "chosen", line->chosen);
    json_integer(&json, "failed", line->failed);
    json_number(&json, "worst_of_bound", line->of_bound);
    json_flag(&json, "ok", line->failed == 0);
    json_end(&json);
    return;
  }
  if (line == run->kernels) {
    putchar('\n');
    table_row(columns, 5, NULL);
  }
  char cases[24], chosen[24], of_bound[24];
  snprintf(cases, sizeof cases, "%" PRId64, line->cases);
  snprintf(chosen, sizeof chosen, "%" PRId64, line->chosen);
  snprintf(of_bound, sizeof of_bound, "%.2f", line->of_bound);
  const char *const cells[] = {line->name, cases, chosen, of_bound, line->failed ? "FAIL" : "ok"};
  table_row(columns, 5, cells);
}

/* The whole list takes every kernel the device has. Returns how many it did not, and names them. */
static int name_unreached(const run *run, char *text, size_t size) {
  int missing = 0;
  text[0] = '\0';
  bool whole =
      run->request->op == ops_all() && run->request->dtype == DTYPES && run->request->number < 0;
  if (!run->cuda || !whole) return 0;
  for (int kernel = ONEPASS_CUDA_BEST + 1; kernel < ONEPASS_CUDA_KERNEL_COUNT; kernel++) {
    if (run->reached[kernel] > 0) continue;
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", missing++ ? ", " : "", cuda_kernel_choices[kernel]);
  }
  return missing;
}

/* ---- Cases ---- */

static bool wanted(const request *request, const check_case *check_case) {
  if (request->number >= 0) return check_case->number == request->number;
  if (request->dtype != DTYPES && !dtype_equal(check_case->problem.dtype, dtype_at(request->dtype)))
    return false;
  return op_is_chosen(request->op, check_case->problem.op);
}

static void add_names(group *group, const outcome *outcome) {
  for (int i = 0; i < outcome->name_count; i++) {
    int at = 0;
    while (at < group->kernel_count && strcmp(group->kernels[at], outcome->names[i]) != 0) at++;
    if (at < group->kernel_count || at == MOST_KERNELS) continue;
    group->kernels[group->kernel_count++] = outcome->names[i];
  }
}

static void add_to_group(group *group, const check_case *check_case, const outcome *outcome) {
  const verdict *verdict = &outcome->verdict;
  group->problem = check_case->problem;
  group->cases++;
  add_names(group, outcome);
  group->failed += !outcome->passed;
  if (verdict->of_bound > group->of_bound) group->of_bound = verdict->of_bound;
  /* elsewhere large terms cancel, and an error says something only beside its bound */
  if (check_case->values == VALUES_OFFSET || check_case->values == VALUES_HUGE) return;
  if (check_case->values == VALUES_TINY) return;
  if (verdict->relative > group->relative) group->relative = verdict->relative;
  if (verdict->absolute > group->absolute) group->absolute = verdict->absolute;
}

static void record(run *run, const check_case *check_case, const outcome *outcome) {
  if (!same_group(&run->group.problem, &check_case->problem)) finish_group(run);
  run->cases++;
  add_to_group(&run->group, check_case, outcome);
  add_kernels(run, outcome);
  if (outcome->passed) return;
  run->failed++;
  if (run->failed <= MOST_FAILURES_SHOWN) print_failure(run, check_case, outcome->reason);
}

/* A case of a batch. */
typedef struct sized {
  int64_t elements, index;
} sized;

/* Cases of a few groups, which the workers take one by one, the largest first: few are left to run by themselves at the
 * end. */
typedef struct batch {
  const run *run;
  const check_case *cases;
  const sized *order; /* in which they are taken */
  outcome *outcomes;
  int64_t first, count; /* of the list */
  atomic_llong *taken;
} batch;

static void show_progress(const batch *batch, int64_t taken) {
  if (taken % 64) return;
  const problem *problem = &batch->cases[batch->order[taken].index].problem;
  progress("check: %s %s %s, %" PRId64 " cases done", problem->op->name,
           direction_name(problem->direction), dtype_name(problem->dtype), batch->first + taken);
}

static void work(const void *context, int64_t first, int64_t last) {
  const batch *batch = context;
  gpu gpu;
  bool opened = !batch->run->cuda || gpu_open(&gpu, 0);
  (void)first, (void)last;
  for (int64_t taken = atomic_fetch_add(batch->taken, 1); taken < batch->count;
       taken = atomic_fetch_add(batch->taken, 1)) {
    const int64_t i = batch->order[taken].index;
    outcome *outcome = &batch->outcomes[i];
    show_progress(batch, taken);
    if (opened) {
      run_case(&batch->run->checker, &batch->cases[i], batch->run->cuda ? &gpu : NULL, outcome);
      continue;
    }
    memset(outcome, 0, sizeof *outcome);
    snprintf(outcome->reason, sizeof outcome->reason, "opening the device: %s", gpu.reason);
  }
  if (batch->run->cuda && opened) gpu_close(&gpu);
}

static int64_t elements_of(const check_case *check_case) {
  return product(check_case->problem.shape, 0, check_case->problem.ndim);
}

/* Whether there might be no memory for as many of these as there are workers. */
static bool is_large(const run *run, const check_case *check_case) {
  const int64_t elements = elements_of(check_case);
  if (run->cuda && elements >= LARGE_ELEMENTS) return true;
  return elements > run->memory / 2 / BYTES_OF_ELEMENT / run->workers;
}

static int64_t enough_for_batch(const run *run) { return (int64_t)run->workers * CASES_OF_WORKER; }

/* A single worker shows each case as it is done. */
static int64_t most_of_batch(const run *run) {
  return run->workers == 1 ? 1 : enough_for_batch(run) + MOST_OF_GROUP;
}

/* How many cases from this one on are run before any is shown: groups, until there is enough for every worker. */
static int64_t batch_size(const run *run, int64_t first) {
  const check_case *cases = run->list + first;
  const int64_t enough = enough_for_batch(run), most = most_of_batch(run);
  int64_t size = 1;
  if (is_large(run, cases)) return size;
  for (; size < most && first + size < run->listed; size++) {
    if (is_large(run, &cases[size])) break;
    if (size >= enough && !same_group(&cases[size - 1].problem, &cases[size].problem)) break;
  }
  return size;
}

static int compare_sized(const void *a, const void *b) {
  const sized *x = a, *y = b;
  if (x->elements != y->elements) return x->elements < y->elements ? 1 : -1;
  return (x->index > y->index) - (x->index < y->index);
}

static void order_by_size(const check_case *cases, int64_t count, sized *order) {
  for (int64_t i = 0; i < count; i++) order[i] = (sized){elements_of(&cases[i]), i};
  qsort(order, (size_t)count, sizeof *order, compare_sized);
}

static bool run_list(run *run) {
  outcome *outcomes = calloc((size_t)most_of_batch(run), sizeof *outcomes);
  sized *order = calloc((size_t)most_of_batch(run), sizeof *order);
  const bool enough = outcomes && order;
  for (int64_t first = 0; enough && first < run->listed;) {
    const check_case *cases = run->list + first;
    atomic_llong taken = 0;
    batch batch = {run, cases, order, outcomes, first, batch_size(run, first), &taken};
    order_by_size(cases, batch.count, order);
    int32_t workers = batch.count < run->workers ? (int32_t)batch.count : run->workers;
    parallel_jobs(workers, workers, work, &batch);
    for (int64_t i = 0; i < batch.count; i++) record(run, &cases[i], &outcomes[i]);
    first += batch.count;
  }
  free(outcomes);
  free(order);
  return enough;
}

/* Counts the cases, and keeps them once there is a list to keep them in. */
static void collect(void *context, const check_case *check_case) {
  run *run = context;
  if (!wanted(run->request, check_case)) return;
  if (run->list) run->list[run->listed] = *check_case;
  run->listed++;
}

static bool make_list(run *run) {
  visit_cases(run->effort, run->cuda, collect, run);
  run->list = calloc((size_t)run->listed + 1, sizeof *run->list);
  run->listed = 0;
  if (run->list) visit_cases(run->effort, run->cuda, collect, run);
  return run->list != NULL;
}

static void print_summary(const run *run, const char *unreached, double seconds) {
  if (run->request->json) {
    json json;
    json_begin(&json);
    json_integer(&json, "passed", run->cases - run->failed);
    json_integer(&json, "failed", run->failed);
    if (run->cuda) json_text(&json, "unreached", unreached);
    json_number(&json, "seconds", seconds);
    json_end(&json);
    return;
  }
  if (run->failed > MOST_FAILURES_SHOWN)
    printf("%" PRId64 " more failed and are not shown\n", run->failed - MOST_FAILURES_SHOWN);
  if (unreached[0]) printf("FAIL: no case was done by: %s\n", unreached);
  printf("%" PRId64 " cases passed, %" PRId64 " failed", run->cases - run->failed, run->failed);
  printf(" (%.1f s)\n", seconds);
}

static int finish(run *run, double seconds) {
  char unreached[128];
  finish_group(run);
  for (int i = 0; i < run->kernel_count; i++) print_kernel(run, &run->kernels[i]);
  int missing = name_unreached(run, unreached, sizeof unreached);
  print_summary(run, unreached, seconds);
  return run->failed || missing ? EXIT_OFF : EXIT_FINE;
}

/* It is the reference that takes the time, so that as many cases are run at once as there are threads. On the CPU
 * each is run with several numbers of threads besides. */
static int set_threads(run *run) {
  const request *request = run->request;
  onepass_cpu_info cpu;
  if (onepass_get_cpu_info(&cpu) != ONEPASS_OK)
    return usage_error("check", "%s", onepass_last_message());
  run->workers = request->jobs ? (int32_t)request->jobs : cpu.threads;
  run->memory = available_memory();
  run->checker.threads[0] = 1;
  run->checker.threads[1] = !run->cuda && request->threads ? (int32_t)request->threads : 2;
  run->checker.threads[2] = 3;
  run->checker.thread_count = run->cuda ? 1 : request->threads ? 2 : 3;
  return 0;
}

static int check_list(run *run) {
  double start = seconds_now();
  if (!make_list(run) || !run_list(run)) return usage_error("check", "not enough memory");
  if (run->cases == 0)
    return usage_error("check", "--case %" PRId64 ": the list has no such case",
                       run->request->number);
  return finish(run, seconds_now() - start);
}

static int check_all(const request *request) {
  run run = {.request = request, .cuda = request->device == DEVICE_CUDA};
  run.effort = request->quick ? EFFORT_QUICK : request->full ? EFFORT_FULL : EFFORT_NORMAL;
  run.checker.seed = (uint64_t)request->seed;
  int failed = set_threads(&run);
  if (failed) return failed;
  find_levels(&run.checker);
  int status = check_list(&run);
  free(run.list);
  return status;
}

int run_check(int count, char **arguments) {
  request request = {
      .op = ops_all(), .dtype = DTYPES, .device = DEVICE_AUTO, .seed = 1, .number = -1};
  bool help;
  const option options[] = {{"--op", OPTION_CHOICE, &request.op, 0, 0, op_choices()},
                            {"--dtype", OPTION_CHOICE, &request.dtype, 0, 0, dtype_choices},
                            {"--quick", OPTION_FLAG, &request.quick, 0, 0, NULL},
                            {"--full", OPTION_FLAG, &request.full, 0, 0, NULL},
                            {"--threads", OPTION_NUMBER, &request.threads, 1, 1024, NULL},
                            {"--jobs", OPTION_NUMBER, &request.jobs, 1, 256, NULL},
                            {"--device", OPTION_CHOICE, &request.device, 0, 0, device_choices},
                            {"--seed", OPTION_NUMBER, &request.seed, 0, INT64_MAX, NULL},
                            {"--case", OPTION_NUMBER, &request.number, 0, INT64_MAX, NULL},
                            {"--json", OPTION_FLAG, &request.json, 0, 0, NULL},
                            {0}};
  int failed = read_options("check", count, arguments, options, &help);
  if (failed) return failed;
  if (help) {
    fputs(help_text("check"), stdout);
    return EXIT_FINE;
  }
  if (request.quick && request.full)
    return usage_error("check", "--quick and --full exclude each other");
  failed = choose_device("check", &request.device);
  return failed ? failed : check_all(&request);
}
