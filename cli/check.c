#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <onepass.h>
#include <stdio.h>
#include <string.h>

#include "buffers.h"
#include "check_cases.h"
#include "check_run.h"
#include "cli.h"
#include "options.h"
#include "table.h"

enum { MOST_FAILURES_SHOWN = 20 };

/* What the command line asks for. */
typedef struct request {
  int op, device;
  bool quick, full, json;
  int64_t threads, seed, number;
} request;

/* The cases of one operator, direction and type: a line of the table. */
typedef struct group {
  problem problem; /* of the first case */
  int64_t cases, failed;
  double of_bound, relative, absolute;
} group;

typedef struct run {
  const request *request;
  effort effort;
  checker checker;
  group group;
  int64_t cases, failed;
  bool header_shown;
} run;

static const column columns[] = {{"op", 10, false},  {"dir", 3, false},  {"dtype", 5, false},
                                 {"cases", 6, true}, {"worst", 6, true}, {"max err", 8, true},
                                 {"", 6, false}};

enum { COLUMNS = sizeof columns / sizeof *columns };

/* ---- Groups ---- */

static void print_group_json(const group *group) {
  json json;
  json_begin(&json);
  json_text(&json, "op", op_choices[group->problem.op]);
  json_text(&json, "dir", direction_name(group->problem.direction));
  json_text(&json, "dtype", dtype_name(group->problem.dtype));
  json_integer(&json, "cases", group->cases);
  json_integer(&json, "failed", group->failed);
  json_number(&json, "worst_of_bound", group->of_bound);
  json_number(&json, "max_err", group->relative);
  json_number(&json, "max_abs_err", group->absolute);
  json_flag(&json, "ok", group->failed == 0);
  json_end(&json);
}

static void print_group(run *run, const group *group) {
  if (!run->header_shown) table_row(columns, COLUMNS, NULL);
  run->header_shown = true;
  char cases[24], of_bound[24], error[24];
  snprintf(cases, sizeof cases, "%" PRId64, group->cases);
  snprintf(of_bound, sizeof of_bound, "%.2f", group->of_bound);
  snprintf(error, sizeof error, "%.1e", group->relative);
  const char *const cells[COLUMNS] = {op_choices[group->problem.op],
                                      direction_name(group->problem.direction),
                                      dtype_name(group->problem.dtype),
                                      cases,
                                      of_bound,
                                      error,
                                      group->failed ? "FAIL" : "ok"};
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

static void describe_options(char *text, size_t size, const problem *problem) {
  if (problem->op == OP_AVG_POOL1D)
    snprintf(text, size,
             "kernel %" PRId64 " stride %" PRId64 " padding %" PRId64
             " ceil_mode %d count_include_pad %d",
             problem->kernel, problem->stride, problem->padding, problem->ceil_mode,
             problem->count_include_pad);
  else if (problem->op == OP_L1_NORM)
    snprintf(text, size, "axis %" PRId32 " reduction %s eps %g", problem->axis,
             problem->reduction == ONEPASS_MEAN ? "mean" : "sum", problem->eps);
  else
    snprintf(text, size, "axis %" PRId32 " eps %g weight %s bias %s stats %s", problem->axis,
             problem->eps, problem->weight ? dtype_name(problem->weight_dtype) : "no",
             problem->bias ? dtype_name(problem->weight_dtype) : "no",
             !problem->stats      ? "no"
             : problem->keep_axes ? "with ones"
                                  : "yes");
}

/* The options that bring the same case back. */
static void describe_command(char *text, size_t size, const run *run, int64_t number) {
  char threads[32] = "";
  if (run->request->threads)
    snprintf(threads, sizeof threads, " --threads %" PRId64, run->request->threads);
  snprintf(text, size, "onepass check%s%s --seed %" PRId64 " --case %" PRId64,
           run->effort == EFFORT_QUICK  ? " --quick"
           : run->effort == EFFORT_FULL ? " --full"
                                        : "",
           threads, run->request->seed, number);
}

static void print_failure(const run *run, const check_case *check_case, const char *reason) {
  const problem *problem = &check_case->problem;
  char shape[192], options[160], command[128];
  format_shape(shape, sizeof shape, problem->shape, problem->ndim);
  describe_options(options, sizeof options, problem);
  describe_command(command, sizeof command, run, check_case->number);
  progress(NULL);
  if (run->request->json) {
    json json;
    json_begin(&json);
    json_integer(&json, "failed_case", check_case->number);
    json_text(&json, "op", op_choices[problem->op]);
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
         check_case->number, op_choices[problem->op], direction_name(problem->direction),
         dtype_name(problem->dtype), shape, options, layout_name(check_case->layout),
         values_name(check_case->values), in_place_name(check_case->in_place));
  printf("     %s\n     again: %s\n", reason, command);
  fflush(stdout);
}

/* ---- Cases ---- */

static bool wanted(const request *request, const check_case *check_case) {
  if (request->number >= 0) return check_case->number == request->number;
  return request->op == OP_COUNT || (int)check_case->problem.op == request->op;
}

static void add_to_group(group *group, const check_case *check_case, const outcome *outcome) {
  const verdict *verdict = &outcome->verdict;
  group->problem = check_case->problem;
  group->cases++;
  group->failed += !outcome->passed;
  if (verdict->of_bound > group->of_bound) group->of_bound = verdict->of_bound;
  /* elsewhere large terms cancel, and an error says something only beside its bound */
  if (check_case->values == VALUES_OFFSET || check_case->values == VALUES_HUGE) return;
  if (check_case->values == VALUES_TINY) return;
  if (verdict->relative > group->relative) group->relative = verdict->relative;
  if (verdict->absolute > group->absolute) group->absolute = verdict->absolute;
}

static void visit(void *context, const check_case *check_case) {
  run *run = context;
  if (!wanted(run->request, check_case)) return;
  if (!same_group(&run->group.problem, &check_case->problem)) finish_group(run);
  if (run->cases % 64 == 0)
    progress("check: %s %s %s, %" PRId64 " cases done", op_choices[check_case->problem.op],
             direction_name(check_case->problem.direction), dtype_name(check_case->problem.dtype),
             run->cases);
  outcome outcome;
  run_case(&run->checker, check_case, &outcome);
  add_to_group(&run->group, check_case, &outcome);
  run->cases++;
  if (outcome.passed) return;
  run->failed++;
  if (run->failed <= MOST_FAILURES_SHOWN) print_failure(run, check_case, outcome.reason);
}

static void print_summary(const run *run, double seconds) {
  if (run->request->json) {
    json json;
    json_begin(&json);
    json_integer(&json, "passed", run->cases - run->failed);
    json_integer(&json, "failed", run->failed);
    json_number(&json, "seconds", seconds);
    json_end(&json);
    return;
  }
  if (run->failed > MOST_FAILURES_SHOWN)
    printf("%" PRId64 " more failed and are not shown\n", run->failed - MOST_FAILURES_SHOWN);
  printf("%" PRId64 " cases passed, %" PRId64 " failed (%.1f s)\n", run->cases - run->failed,
         run->failed, seconds);
}

static int check_all(const request *request) {
  run run = {.request = request};
  run.effort = request->quick ? EFFORT_QUICK : request->full ? EFFORT_FULL : EFFORT_NORMAL;
  run.checker = (checker){.seed = (uint64_t)request->seed, .threads = {1, 2, 3}, .thread_count = 3};
  if (request->threads) {
    run.checker.threads[1] = (int32_t)request->threads;
    run.checker.thread_count = 2;
  }
  find_levels(&run.checker);
  double start = seconds_now();
  visit_cases(run.effort, visit, &run);
  finish_group(&run);
  if (run.cases == 0)
    return usage_error("check", "--case %" PRId64 ": the list has no such case", request->number);
  print_summary(&run, seconds_now() - start);
  return run.failed ? EXIT_OFF : EXIT_FINE;
}

int run_check(int count, char **arguments) {
  request request = {.op = OP_COUNT, .device = DEVICE_AUTO, .seed = 1, .number = -1};
  bool help;
  const option options[] = {{"--op", OPTION_CHOICE, &request.op, 0, 0, op_choices},
                            {"--quick", OPTION_FLAG, &request.quick, 0, 0, NULL},
                            {"--full", OPTION_FLAG, &request.full, 0, 0, NULL},
                            {"--threads", OPTION_NUMBER, &request.threads, 1, 1024, NULL},
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
  failed = require_device("check", request.device);
  return failed ? failed : check_all(&request);
}
