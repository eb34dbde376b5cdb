/*
 * On a GPU onepass takes no memory that it does not give back.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "gpu.h"

enum { CALLS = 10000, WARM_UP = 50, ROUNDS = 3 };

/* The driver hands out memory in pieces of 2 MiB; 10,000 of anything that is lost are more. */
static const size_t noise = ((size_t)2 << 20) - 1;

/* What is done again and again. */
typedef struct work {
  gpu_call *g;
  const onepass_plan *plan;
  const gpu_workspace *workspace;
  CUstream stream;
  int number; /* of times so far */
} work;
typedef int (*work_step)(work *w); /* 0 when it failed */

static int do_times(work *w, work_step step, int times) {
  for (int i = 0; i < times; i++, w->number++) {
    if (!step(w)) return 0;
  }
  GPU(cuCtxSynchronize());
  return 1;
}

/* Once, of all runs, a piece was gone after the first 10,000 calls of one kind; whose it was is not known. What calls lose
 * they lose in every round. */
static void expect_no_growth(work w, work_step step, const char *what) {
  size_t lost = 1;
  int done = do_times(&w, step, WARM_UP);
  for (int round = 0; done && lost > 0 && round < ROUNDS; round++) {
    const size_t before = gpu_free_memory();
    done = do_times(&w, step, CALLS);
    const size_t after = gpu_free_memory();
    lost = after + noise >= before ? 0 : before - after;
  }
  EXPECT(!done || lost == 0, "%s: %d %s took %zu bytes of device memory, the last of %d times",
         gpu_label_of(w.g).text, CALLS, what, lost, ROUNDS);
}

static int run(work *w) { return EXPECT_OK(gpu_run(w->plan, w->g, w->workspace, w->stream)); }

static void expect_runs_keep_nothing(gpu_call *g, CUstream stream) {
  onepass_plan *plan = gpu_plan(g, ONEPASS_CUDA_BEST);
  if (plan == NULL) return;
  gpu_workspace workspace = gpu_workspace_new(plan);
  expect_no_growth((work){.g = g, .plan = plan, .workspace = &workspace, .stream = stream}, run,
                   "runs");
  gpu_workspace_free(&workspace);
  onepass_plan_destroy(plan);
}

static int call_the_helper(work *w) { return EXPECT_OK(call_helper(&w->g->call)); }

static void expect_helpers_keep_nothing(gpu_call *g) {
  if (kind_has_helper(g->call.kind))
    expect_no_growth((work){.g = g}, call_the_helper, "helper calls");
}

static int make_plan(work *w) {
  onepass_plan_destroy(gpu_plan(w->g, w->number % ONEPASS_CUDA_KERNEL_COUNT));
  return 1;
}

static void expect_plans_keep_nothing(gpu_call *g) {
  expect_no_growth((work){.g = g}, make_plan, "plans");
}

/* 2000 rows of 256: the backward of layer_norm needs a workspace there. */
static void test_many_calls_take_no_memory(void) {
  const int64_t shapes[][2] = {{2000, 256}, {1, 300007}};
  CUstream stream;
  int workspaces = 0;
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int s = 0; s < 2; s++) {
    for (int k = 0; k < KINDS; k++) {
      call *host = call_new((enum kind)k, ONEPASS_F32, 2, shapes[s], -1);
      call *reference = call_reference(host);
      gpu_call *g = gpu_call_new(host);
      onepass_plan *plan = gpu_plan(g, ONEPASS_CUDA_BEST);
      workspaces += onepass_plan_workspace(plan) > 0;
      onepass_plan_destroy(plan);
      expect_runs_keep_nothing(g, stream);
      expect_helpers_keep_nothing(g);
      expect_plans_keep_nothing(g);
      g->call.options.cuda_kernel = ONEPASS_CUDA_BEST;
      expect_gpu_right(g, host, reference);
      gpu_call_free(g);
      call_free(reference);
      call_free(host);
    }
  }
  EXPECT(workspaces > 0, "no call here needed a workspace: the helpers' own was not tried");
  GPU(cuStreamDestroy(stream));
}

int main(void) {
  if (!gpu_open("test_cuda_memory")) return EXPECT_SKIPPED;
  test_many_calls_take_no_memory();
  return expect_report("test_cuda_memory");
}
