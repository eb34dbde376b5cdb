/*
 * On a GPU onepass writes its outputs and its workspace and nothing else, wherever these start, and
 * takes no memory that it does not give back.
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

static void expect_stays_inside(const call_form *form) {
  call *host = call_new_as(form);
  call *reference = call_reference(host);
  gpu_call *g = gpu_call_new(host);
  gpu_try_every_kernel(g, host, reference, NULL, expect_gpu_right);
  gpu_call_free(g);
  call_free(reference);
  call_free(host);
}

/* Lengths around the widths of vectors, warps and blocks. */
static void test_nothing_around_the_outputs_is_written(void) {
  const int64_t columns[] = {1,    2,    3,    7,    8,    9,    31,   32,   33,   63,
                             64,   65,   127,  128,  129,  255,  257,  511,  513,  1023,
                             1024, 1025, 2047, 2049, 4095, 4096, 4097, 8191, 10001};
  for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
    for (int64_t rows = 1; rows <= 9; rows += 4) {
      for (int k = 0; k < KINDS; k++) {
        const int64_t shape[2] = {rows, columns[c]};
        const onepass_dtype dtype = every_dtype[(c + (size_t)rows + (size_t)k) % 4];
        if (k >= POOL_FORWARD && columns[c] < 2) continue;
        expect_stays_inside(&(call_form){.kind = (enum kind)k,
                                         .dtype = dtype,
                                         .weight_dtype = dtype,
                                         .ndim = 2,
                                         .shape = shape,
                                         .axis = 1});
      }
    }
  }
}

/* Each array by itself one element off 16 bytes, and all of them, in rows of even and odd length. */
static void test_every_array_may_start_one_element_off(void) {
  const int64_t shapes[][2] = {{5, 64}, {3, 127}, {4, 1024}, {3, 1025}, {2, 4095}, {1, 20001}};
  const int all = ROLES;
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (int k = 0; k < KINDS; k++) {
      for (int off = 0; off <= all; off++) {
        if (off < ROLES && !role_is_used((enum kind)k, (enum role)off)) continue;
        for (int d = 0; d < 4; d++) {
          call_form form = {.kind = (enum kind)k,
                            .dtype = every_dtype[d],
                            .weight_dtype = dtype_size(every_dtype[d]) == 2 && off % 2
                                                ? ONEPASS_F32
                                                : every_dtype[d],
                            .ndim = 2,
                            .shape = shapes[s],
                            .axis = 1};
          for (int r = 0; r < ROLES; r++) form.shift[r] = off == r || off == all;
          expect_stays_inside(&form);
        }
      }
    }
  }
}

/* Windows of every kind, lines that start anywhere. */
static void test_windows_stay_inside(void) {
  const int64_t windows[][3] = {{8, 1, 4}, {2, 2, 0},   {3, 1, 1},
                                {5, 7, 2}, {33, 1, 16}, {64, 3, 0}};
  const int64_t lengths[] = {64, 65, 257, 4095, 10000};
  for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
      for (int k = POOL_FORWARD; k <= POOL_BACKWARD; k++) {
        for (int off = 0; off < 2; off++) {
          const int64_t shape[3] = {2, 3, lengths[l]};
          const onepass_dtype dtype = every_dtype[(w + l) % 4];
          call_form form = {.kind = (enum kind)k,
                            .dtype = dtype,
                            .weight_dtype = dtype,
                            .ndim = 3,
                            .shape = shape,
                            .axis = -1,
                            .kernel = windows[w][0],
                            .stride = windows[w][1],
                            .padding = windows[w][2]};
          for (int r = 0; r < ROLES; r++) form.shift[r] = off;
          expect_stays_inside(&form);
        }
      }
    }
  }
}

int main(void) {
  if (!gpu_open("test_cuda_memory")) return EXPECT_SKIPPED;
  test_many_calls_take_no_memory();
  test_nothing_around_the_outputs_is_written();
  test_every_array_may_start_one_element_off();
  test_windows_stay_inside();
  return expect_report("test_cuda_memory");
}
