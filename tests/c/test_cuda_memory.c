/*
 * On a GPU onepass takes no memory that it does not give back.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "gpu.h"

enum { CALLS = 10000, WARM_UP = 50 };

/* The driver hands out memory in pieces of 2 MiB; 10,000 of anything that is lost are more. */
static const size_t noise = ((size_t)2 << 20) - 1;

static void expect_no_growth(size_t before, const gpu_call *g, const char *what) {
  GPU(cuCtxSynchronize());
  const size_t after = gpu_free_memory();
  EXPECT(after + noise >= before, "%s: %d %s took %zu bytes of device memory", gpu_label_of(g).text,
         CALLS, what, before - after);
}

static void expect_runs_keep_nothing(gpu_call *g, CUstream stream) {
  onepass_plan *plan = gpu_plan(g, ONEPASS_CUDA_BEST);
  if (plan == NULL) return;
  gpu_workspace workspace = gpu_workspace_new(plan);
  size_t before = 0;
  for (int i = -WARM_UP; i < CALLS; i++) {
    if (i == 0) {
      GPU(cuCtxSynchronize());
      before = gpu_free_memory();
    }
    if (!EXPECT_OK(gpu_run(plan, g, &workspace, stream))) break;
  }
  expect_no_growth(before, g, "runs");
  gpu_workspace_free(&workspace);
  onepass_plan_destroy(plan);
}

static void expect_helpers_keep_nothing(const gpu_call *g) {
  if (!kind_has_helper(g->call.kind)) return;
  size_t before = 0;
  for (int i = -WARM_UP; i < CALLS; i++) {
    if (i == 0) {
      GPU(cuCtxSynchronize());
      before = gpu_free_memory();
    }
    if (!EXPECT_OK(call_helper(&g->call))) break;
  }
  expect_no_growth(before, g, "helper calls");
}

static void expect_plans_keep_nothing(gpu_call *g) {
  size_t before = 0;
  for (int i = -WARM_UP; i < CALLS; i++) {
    onepass_plan *plan = gpu_plan(g, (i + WARM_UP) % ONEPASS_CUDA_KERNEL_COUNT);
    if (i == 0) before = gpu_free_memory();
    onepass_plan_destroy(plan);
  }
  expect_no_growth(before, g, "plans");
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
