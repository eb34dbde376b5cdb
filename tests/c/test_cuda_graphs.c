/*
 * A run can be captured in a CUDA graph, in every capture mode, and the graph replayed as often as
 * one likes: it reads what the inputs hold then.
 *
 * Nothing is run before it is captured, so the first use of every kernel is within a capture.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "gpu.h"

enum { REPLAYS = 20, CONTENTS = 4 };

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};
enum { MODES = sizeof modes / sizeof *modes };

/* A problem with several contents for its inputs, and what each should give. */
typedef struct problem {
  call *host[CONTENTS], *reference[CONTENTS];
  gpu_call *device;
} problem;

static problem problem_new(const call_form *form) {
  problem p;
  for (int i = 0; i < CONTENTS; i++) {
    p.host[i] = call_new_as(form);
    call_fill(p.host[i], 5 + (uint64_t)i, 0.25 * i, 1 + i);
    p.reference[i] = call_reference(p.host[i]);
  }
  p.device = gpu_call_new(p.host[0]);
  return p;
}

static void problem_free(problem *p) {
  gpu_call_free(p->device);
  for (int i = 0; i < CONTENTS; i++) {
    call_free(p->reference[i]);
    call_free(p->host[i]);
  }
}

/* NULL when the capture failed. */
static CUgraphExec capture(problem *p, const onepass_plan *plan, const gpu_workspace *workspace,
                           CUstream stream, CUstreamCaptureMode mode) {
  CUgraph graph = NULL;
  CUgraphExec executable = NULL;
  GPU(cuStreamBeginCapture(stream, mode));
  const onepass_status status = gpu_run(plan, p->device, workspace, stream);
  const CUresult ended = gpu->cuStreamEndCapture(stream, &graph);
  EXPECT(status == ONEPASS_OK, "%s, mode %d: %s: %s", gpu_label_of(p->device).text, (int)mode,
         onepass_status_name(status), onepass_last_message());
  EXPECT(ended == CUDA_SUCCESS, "%s, mode %d: the capture ended with error %d",
         gpu_label_of(p->device).text, (int)mode, (int)ended);
  if (ended != CUDA_SUCCESS || graph == NULL) return NULL;
  GPU(cuGraphInstantiateWithFlags(&executable, graph, 0));
  GPU(cuGraphDestroy(graph));
  return executable;
}

static void expect_nothing_ran(problem *p, CUstreamCaptureMode mode) {
  gpu_download(p->device, p->host[0]);
  for (int r = 0; r < ROLES; r++) {
    const array *a = p->host[0]->role[r];
    if (a == NULL || !role_is_output(p->host[0]->kind, (enum role)r)) continue;
    EXPECT(array_untouched(a), "%s, mode %d: %s was written while capturing",
           gpu_label_of(p->device).text, (int)mode, role_name[r]);
  }
}

static void expect_replays_right(problem *p, CUgraphExec graph, CUstream stream) {
  for (int replay = 0; replay < REPLAYS; replay++) {
    const int i = replay % CONTENTS;
    gpu_upload(p->device, p->host[i]);
    GPU(cuGraphLaunch(graph, stream));
    GPU(cuStreamSynchronize(stream));
    expect_gpu_right(p->device, p->host[i], p->reference[i]);
  }
  for (int replay = 0; replay < REPLAYS; replay++) GPU(cuGraphLaunch(graph, stream));
  expect_gpu_right(p->device, p->host[(REPLAYS - 1) % CONTENTS],
                   p->reference[(REPLAYS - 1) % CONTENTS]);
}

static void expect_kernel_can_be_captured(problem *p, int kernel, CUstream stream) {
  onepass_plan *plan = gpu_plan(p->device, kernel);
  if (plan == NULL) return;
  gpu_workspace workspace = gpu_workspace_new(plan);
  for (int m = 0; m < MODES; m++) {
    gpu_upload(p->device, p->host[0]);
    gpu_workspace_scramble(&workspace, (uint64_t)m);
    CUgraphExec graph = capture(p, plan, &workspace, stream, modes[m]);
    if (graph == NULL) continue;
    expect_nothing_ran(p, modes[m]);
    expect_replays_right(p, graph, stream);
    GPU(cuGraphExecDestroy(graph));
  }
  EXPECT(gpu_workspace_guards_hold(&workspace), "%s: wrote outside the workspace",
         gpu_label_of(p->device).text);
  gpu_workspace_free(&workspace);
  onepass_plan_destroy(plan);
}

static void test_every_kernel_can_be_captured_and_replayed(CUstream stream) {
  const struct {
    int64_t shape[2];
    int axis;
  } rows[] = {{{64, 100}, 1}, {{5, 1025}, 1}, {{2, 20000}, 1}, {{1, 70001}, 1}, {{65, 48}, 0}};
  for (size_t s = 0; s < sizeof rows / sizeof *rows; s++) {
    for (int k = 0; k < KINDS; k++) {
      if (rows[s].axis == 0 && k > L1_BACKWARD) continue;
      for (int d = 0; d < 4; d += 3) { /* f32 and bf16 */
        const call_form form = {.kind = (enum kind)k,
                                .dtype = every_dtype[d],
                                .weight_dtype = every_dtype[d],
                                .ndim = 2,
                                .shape = rows[s].shape,
                                .axis = rows[s].axis};
        problem p = problem_new(&form);
        for (int kernel = 0; kernel < ONEPASS_CUDA_KERNEL_COUNT; kernel++) {
          expect_kernel_can_be_captured(&p, kernel, stream);
        }
        problem_free(&p);
      }
    }
  }
}

/* Forward and the backward of it in one graph, with one workspace: each run waits for the one
 * before. */
static void test_runs_follow_each_other_in_one_graph(CUstream stream) {
  const int64_t shape[2] = {300, 1000};
  call *host[2] = {call_new(LAYER_FORWARD, ONEPASS_F32, 2, shape, 1),
                   call_new(LAYER_BACKWARD, ONEPASS_F32, 2, shape, 1)};
  call *reference[2] = {call_reference(host[0]), call_reference(host[1])};
  gpu_call *device[2] = {gpu_call_new(host[0]), gpu_call_new(host[1])};
  onepass_plan *plan[2] = {gpu_plan(device[0], 0), gpu_plan(device[1], 0)};
  const int larger = onepass_plan_workspace(plan[1]) > onepass_plan_workspace(plan[0]);
  gpu_workspace workspace = gpu_workspace_new(plan[larger]);
  CUgraph graph;
  CUgraphExec executable;
  GPU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int repeat = 0; repeat < 3; repeat++) {
    for (int i = 0; i < 2; i++) EXPECT_OK(gpu_run(plan[i], device[i], &workspace, stream));
  }
  GPU(cuStreamEndCapture(stream, &graph));
  GPU(cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int replay = 0; replay < REPLAYS; replay++) GPU(cuGraphLaunch(executable, stream));
  for (int i = 0; i < 2; i++) {
    expect_gpu_right(device[i], host[i], reference[i]);
    onepass_plan_destroy(plan[i]);
    gpu_call_free(device[i]);
    call_free(reference[i]);
    call_free(host[i]);
  }
  GPU(cuGraphExecDestroy(executable));
  GPU(cuGraphDestroy(graph));
  gpu_workspace_free(&workspace);
}

int main(void) {
  CUstream stream;
  if (!gpu_open("test_cuda_graphs")) return EXPECT_SKIPPED;
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  test_every_kernel_can_be_captured_and_replayed(stream);
  test_runs_follow_each_other_in_one_graph(stream);
  GPU(cuStreamDestroy(stream));
  return expect_report("test_cuda_graphs");
}
