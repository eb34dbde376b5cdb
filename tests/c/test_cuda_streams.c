/*
 * On a GPU a run is queued on the caller's stream, whichever that is; one plan may run on several
 * streams and from several threads at once; and the caller's current context does not matter and
 * stays as it was.
 *
 * SPDX-License-Identifier: MIT
 */
#include <pthread.h>
#include <stdlib.h>

#include "gpu.h"

enum { STREAMS = 5, RUNNERS = 4, RUNS = 5, ROUNDS = 20 };

/* Rows of every length, from a few lanes of a warp up to the whole chip. */
static const int64_t shapes[][2] = {{64, 100}, {300, 1025}, {2000, 256}, {3, 70001}, {1, 1000003}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void make_streams(CUstream *streams) {
  streams[0] = NULL;
  streams[1] = CU_STREAM_LEGACY;
  streams[2] = CU_STREAM_PER_THREAD;
  GPU(cuStreamCreate(&streams[3], CU_STREAM_DEFAULT));
  GPU(cuStreamCreate(&streams[4], CU_STREAM_NON_BLOCKING));
}

static void free_streams(CUstream *streams) {
  GPU(cuStreamDestroy(streams[3]));
  GPU(cuStreamDestroy(streams[4]));
}

/* The inputs reach their place only after some long work on the same stream, and the outputs are
 * copied away there: a run on any other stream would read or be read too early. */
static void expect_in_order(gpu_call *g, call *host, const call *reference, CUstream stream,
                            void *delay, size_t delay_size) {
  onepass_plan *plan = gpu_plan(g, ONEPASS_CUDA_BEST);
  if (plan == NULL) return;
  gpu_workspace workspace = gpu_workspace_new(plan);
  gpu_call *there = gpu_call_new(host); /* where the inputs come from and the outputs go */
  gpu_upload(g, host);
  for (int r = 0; r < ROLES; r++) {
    if (host->role[r] == NULL || role_is_output(host->kind, (enum role)r)) continue;
    GPU(cuMemsetD8Async((CUdeviceptr)(uintptr_t)g->arrays[r].tensor.data, 0xFF,
                        host->role[r]->block_size, NULL));
  }
  GPU(cuCtxSynchronize());
  GPU(cuMemsetD8Async((CUdeviceptr)(uintptr_t)delay, 1, delay_size, stream));
  for (int inputs = 1; inputs >= 0; inputs--) {
    if (!inputs) EXPECT_OK(gpu_run(plan, g, &workspace, stream));
    for (int r = 0; r < ROLES; r++) {
      if (host->role[r] == NULL || role_is_output(host->kind, (enum role)r) == inputs) continue;
      const gpu_call *from = inputs ? there : g, *to = inputs ? g : there;
      GPU(cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)to->arrays[r].tensor.data,
                            (CUdeviceptr)(uintptr_t)from->arrays[r].tensor.data,
                            host->role[r]->block_size, stream));
    }
  }
  expect_gpu_right(there, host, reference);
  EXPECT(gpu_workspace_guards_hold(&workspace), "%s: wrote outside the workspace",
         gpu_label_of(g).text);
  gpu_call_free(there);
  gpu_workspace_free(&workspace);
  onepass_plan_destroy(plan);
}

static void test_the_work_is_queued_on_the_given_stream(void) {
  const size_t delay_size = (size_t)1 << 29;
  void *delay = gpu_allocate(delay_size);
  CUstream streams[STREAMS];
  make_streams(streams);
  for (int s = 0; s < SHAPES; s++) {
    for (int k = 0; k < KINDS; k++) {
      call *host = call_new((enum kind)k, ONEPASS_F32, 2, shapes[s], -1);
      call *reference = call_reference(host);
      gpu_call *g = gpu_call_new(host);
      for (int i = 0; i < STREAMS; i++) {
        expect_in_order(g, host, reference, streams[i], delay, delay_size);
      }
      gpu_call_free(g);
      call_free(reference);
      call_free(host);
    }
  }
  free_streams(streams);
  gpu_free(delay);
}

/* One of several runs at once: arrays, workspace and stream of its own. */
typedef struct runner {
  call *host, *reference;
  gpu_call *device;
  CUstream stream;
  const onepass_plan *plan;
  gpu_workspace workspace;
  int failed, found_context;
} runner;

static void runner_open(runner *r, enum kind kind, const int64_t *shape, uint64_t seed) {
  *r = (runner){.host = call_new(kind, ONEPASS_F32, 2, shape, -1)};
  call_fill(r->host, seed, 0.25, 1);
  r->reference = call_reference(r->host);
  r->device = gpu_call_new(r->host);
  GPU(cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
}

static void runner_close(runner *r) {
  GPU(cuStreamDestroy(r->stream));
  gpu_call_free(r->device);
  call_free(r->reference);
  call_free(r->host);
}

static void runner_start(runner *r, const onepass_plan *plan, int kernel) {
  r->device->call.options.cuda_kernel = kernel;
  r->plan = plan;
  r->workspace = gpu_workspace_new(plan);
  gpu_upload(r->device, r->host);
}

static void runner_finish(runner *r) {
  EXPECT(!r->failed, "%s: a run failed", gpu_label_of(r->device).text);
  EXPECT(!r->found_context, "%s: a run left a context current", gpu_label_of(r->device).text);
  expect_gpu_right(r->device, r->host, r->reference);
  EXPECT(gpu_workspace_guards_hold(&r->workspace), "%s: wrote outside the workspace",
         gpu_label_of(r->device).text);
  gpu_workspace_free(&r->workspace);
}

static void run_once(runner *r) {
  if (gpu_run(r->plan, r->device, &r->workspace, r->stream) != ONEPASS_OK) r->failed = 1;
}

/* In turns and without waiting, so that runs of both are on the chip together: blocks of two runs
 * that wait for each other must not keep each other from starting. */
static void expect_two_streams_at_once(runner *runners, const onepass_plan *plan, int kernel) {
  for (int i = 0; i < 2; i++) runner_start(&runners[i], plan, kernel);
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < 2; i++) run_once(&runners[i]);
  }
  for (int i = 0; i < 2; i++) runner_finish(&runners[i]);
}

/* A new thread has no current context, and must not have one afterwards. */
static void *run_often(void *argument) {
  runner *self = argument;
  for (int i = 0; i < RUNS; i++) {
    run_once(self);
    if (gpu_current() != NULL) self->found_context = 1;
  }
  return NULL;
}

static void expect_many_threads_at_once(runner *runners, const onepass_plan *plan, int kernel) {
  pthread_t threads[RUNNERS];
  for (int i = 0; i < RUNNERS; i++) runner_start(&runners[i], plan, kernel);
  for (int i = 0; i < RUNNERS; i++) pthread_create(&threads[i], NULL, run_often, &runners[i]);
  for (int i = 0; i < RUNNERS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < RUNNERS; i++) runner_finish(&runners[i]);
}

static void test_one_plan_runs_on_several_streams_and_threads_at_once(void) {
  for (int s = 0; s < SHAPES; s++) {
    for (int k = 0; k < KINDS; k++) {
      runner runners[RUNNERS];
      for (int i = 0; i < RUNNERS; i++) {
        runner_open(&runners[i], (enum kind)k, shapes[s], 2 + (uint64_t)i);
      }
      for (int kernel = 0; kernel < ONEPASS_CUDA_KERNEL_COUNT; kernel++) {
        onepass_plan *plan = gpu_plan(runners[0].device, kernel);
        if (plan == NULL) continue;
        expect_two_streams_at_once(runners, plan, kernel);
        expect_many_threads_at_once(runners, plan, kernel);
        onepass_plan_destroy(plan);
      }
      for (int i = 0; i < RUNNERS; i++) runner_close(&runners[i]);
    }
  }
}

/* Plans, runs, helpers and refusals; `current` must be the thread's context before and after. */
static void expect_context_is_left_alone(CUcontext current) {
  const int64_t shape[2] = {2000, 256};
  for (int k = 0; k < KINDS; k++) {
    CUcontext primary;
    onepass_cuda_info info;
    gpu_enter(0);
    call *host = call_new((enum kind)k, ONEPASS_F32, 2, shape, -1);
    call *reference = call_reference(host);
    gpu_call *g = gpu_call_new(host);
    onepass_plan *plan = gpu_plan(g, ONEPASS_CUDA_BEST);
    gpu_workspace workspace = gpu_workspace_new(plan);
    GPU(cuCtxPopCurrent(&primary));
    if (current) GPU(cuCtxPushCurrent(current));

    onepass_plan *second = NULL;
    EXPECT_OK(call_plan(&g->call, &second));
    EXPECT(gpu_current() == current, "%s: a plan changed the context", kind_name[k]);
    onepass_plan_destroy(second);
    EXPECT_OK(gpu_run(plan, g, &workspace, NULL));
    EXPECT(gpu_current() == current, "%s: a run changed the context", kind_name[k]);
    if (kind_has_helper((enum kind)k)) EXPECT_OK(call_helper(&g->call));
    EXPECT(gpu_current() == current, "%s: the helper changed the context", kind_name[k]);
    EXPECT_OK(onepass_get_cuda_info(0, &info));
    EXPECT(gpu_current() == current, "onepass_get_cuda_info changed the context");
    g->call.norm.axis = 17;
    g->call.pool.stride[0] = 0;
    EXPECT(call_helper(&g->call) != ONEPASS_OK, "%s: nonsense was taken", kind_name[k]);
    EXPECT(gpu_current() == current, "%s: a refusal changed the context", kind_name[k]);
    EXPECT(onepass_run(plan, &(onepass_buffers){0}, NULL, 0, NULL) != ONEPASS_OK,
           "%s: a run on no buffers was taken", kind_name[k]);
    EXPECT(gpu_current() == current, "%s: a refused run changed the context", kind_name[k]);

    if (current) GPU(cuCtxPopCurrent(&current));
    gpu_enter(0);
    expect_gpu_right(g, host, reference);
    onepass_plan_destroy(plan);
    gpu_workspace_free(&workspace);
    gpu_call_free(g);
    call_free(reference);
    call_free(host);
  }
}

static void test_no_context_needs_to_be_current(void) { expect_context_is_left_alone(NULL); }

static void test_another_context_may_be_current(void) {
  CUcontext popped, other = gpu_context_new();
  GPU(cuCtxPopCurrent(&popped));
  EXPECT(popped == other, "the new context was not the current one");
  expect_context_is_left_alone(other);
  gpu_context_free(other);
  EXPECT(gpu_current() != NULL, "the primary context is no longer current");
}

/* Buffers on the last device, with the first one's context current. */
static void test_another_device_may_be_current(void) {
  const int64_t shape[2] = {2000, 256};
  const int last = gpu_count() - 1;
  if (last == 0) {
    printf("skip: test_another_device_may_be_current: there is one device only\n");
    return;
  }
  for (int k = 0; k < KINDS; k++) {
    if (!kind_has_helper((enum kind)k)) continue;
    gpu_enter(last);
    call *host = call_new((enum kind)k, ONEPASS_F32, 2, shape, -1);
    call *reference = call_reference(host);
    gpu_call *g = gpu_call_new(host);
    gpu_enter(0);
    const CUcontext first = gpu_current();
    EXPECT_OK(call_helper(&g->call));
    EXPECT(gpu_current() == first, "%s: the helper changed the context", kind_name[k]);
    gpu_enter(last);
    expect_gpu_right(g, host, reference);
    gpu_call_free(g);
    gpu_enter(0);
    call_free(reference);
    call_free(host);
  }
}

int main(void) {
  if (!gpu_open("test_cuda_streams")) return EXPECT_SKIPPED;
  test_the_work_is_queued_on_the_given_stream();
  test_one_plan_runs_on_several_streams_and_threads_at_once();
  test_no_context_needs_to_be_current();
  test_another_context_may_be_current();
  test_another_device_may_be_current();
  return expect_report("test_cuda_streams");
}
