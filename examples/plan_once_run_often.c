/* Plan once, run often: all checks and choices are made by onepass_plan_norm, and onepass_run
 * allocates nothing. The plan is immutable, so threads share it; a workspace is scratch memory, so
 * each thread that runs at the same time brings its own. */
#include <onepass.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLERS = 3, RUNS = 20, ROWS = 64, COLUMNS = 1000, ELEMENTS = ROWS * COLUMNS };

/* What one calling thread has for itself. */
typedef struct caller {
  const onepass_plan *plan; /* the same one for all */
  const float *x;
  float *y;
  void *workspace;
  int failed_runs;
} caller;

static void *run_often(void *argument) {
  caller *own = argument;
  const onepass_buffers buffers = {.x = own->x, .y = own->y};
  for (int i = 0; i < RUNS; i++) {
    const onepass_status status =
        onepass_run(own->plan, &buffers, own->workspace, onepass_plan_workspace(own->plan), NULL);
    if (status != ONEPASS_OK) own->failed_runs++;
  }
  return NULL;
}

/* Workspaces are aligned to 64 bytes; aligned_alloc wants a multiple of that, and 0 needs none. */
static void *new_workspace(size_t size) {
  return size ? aligned_alloc(64, (size + 63) / 64 * 64) : NULL;
}

static onepass_status make_plan(onepass_plan **plan) {
  static const int64_t shape[] = {ROWS, COLUMNS};
  /* No data: a plan is about shapes, strides and types, and runs on any buffers that have those. */
  const onepass_tensor matrix = {
      .device = {ONEPASS_CPU, 0}, .ndim = 2, .dtype = ONEPASS_F32, .shape = shape};
  const onepass_norm l1 = {.op = ONEPASS_L1_NORM, .axis = -1, .reduction = ONEPASS_MEAN};
  const onepass_options one_thread = {.threads = 1}; /* each caller is a thread already */
  return onepass_plan_norm(plan, &l1, &(onepass_tensors){.x = &matrix, .y = &matrix}, &one_thread);
}

int main(void) {
  onepass_plan *plan;
  if (make_plan(&plan) != ONEPASS_OK) {
    fprintf(stderr, "%s\n", onepass_last_message());
    return 1;
  }
  onepass_plan_info info;
  onepass_plan_describe(plan, &info);
  printf("%s by %s: %lld bytes move, %zu bytes of workspace\n", info.op, info.kernel,
         (long long)info.bytes, info.workspace);

  float *x = malloc(ELEMENTS * sizeof *x);
  caller callers[CALLERS];
  pthread_t threads[CALLERS];
  int wrong = !x;
  for (int i = 0; x && i < ELEMENTS; i++) x[i] = (float)(i % 7 - 3);
  for (int i = 0; i < CALLERS; i++) {
    callers[i] = (caller){.plan = plan,
                          .x = x,
                          .y = malloc(ELEMENTS * sizeof(float)),
                          .workspace = new_workspace(info.workspace)};
    wrong |= !callers[i].y || (info.workspace && !callers[i].workspace);
  }
  int started = 0;
  while (!wrong && started < CALLERS &&
         !pthread_create(&threads[started], NULL, run_often, &callers[started])) {
    started++;
  }
  wrong |= started < CALLERS;
  for (int i = 0; i < started; i++) {
    pthread_join(threads[i], NULL);
    wrong |= callers[i].failed_runs;
  }
  /* The same inputs give the same bits, whoever runs the plan. */
  for (int i = 1; !wrong && i < CALLERS; i++) {
    wrong |= memcmp(callers[0].y, callers[i].y, ELEMENTS * sizeof(float)) != 0;
  }
  printf("%d threads, %d runs each: %s\n", CALLERS, RUNS, wrong ? "wrong" : "the same bits");

  for (int i = 0; i < CALLERS; i++) {
    free(callers[i].y);
    free(callers[i].workspace);
  }
  free(x);
  onepass_plan_destroy(plan);
  return wrong ? 1 : 0;
}
