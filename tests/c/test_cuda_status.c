/*
 * Bad input to a GPU is a status and a message. Nothing is written, nothing is queued, and the next
 * good call works.
 *
 * SPDX-License-Identifier: MIT
 */
#define _POSIX_C_SOURCE 200809L /* fork */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"
#include "refusal.h"

/* A good call, how it should end, and a plan for it. 2000 rows, so that the backward of layer_norm
 * needs a workspace. */
typedef struct good {
  call *host, *reference;
  gpu_call *device;
  onepass_plan *plan;
  gpu_workspace workspace;
} good;

static good good_new(enum kind kind) {
  const int64_t shape[2] = {2000, 40};
  good g;
  g.host = call_new(kind, ONEPASS_F32, 2, shape, 1);
  g.reference = call_reference(g.host);
  g.device = gpu_call_new(g.host);
  g.plan = gpu_plan(g.device, ONEPASS_CUDA_BEST);
  if (g.plan == NULL) exit(1);
  g.workspace = gpu_workspace_new(g.plan);
  return g;
}

static void good_free(good *g) {
  gpu_workspace_free(&g->workspace);
  onepass_plan_destroy(g->plan);
  gpu_call_free(g->device);
  call_free(g->reference);
  call_free(g->host);
}

/* The buffers as an array in the order of enum role, to change one of them in a loop. */
typedef union addresses {
  onepass_buffers buffers;
  void *of[ROLES];
} addresses;

static addresses addresses_of(const call *c) {
  onepass_tensors tensors = call_tensors(c);
  addresses a;
  a.buffers = buffers_of(&tensors);
  return a;
}

/* After a refusal: no output has changed, on the device or on the host, and a good run is right. */
static void expect_nothing_happened(good *g, const char *label) {
  expect_outputs_untouched(g->host, label);
  EXPECT(gpu_download(g->device, g->host), "%s: an input was written", label);
  expect_outputs_untouched(g->host, label);
  EXPECT_OK(gpu_run(g->plan, g->device, &g->workspace, NULL));
  expect_gpu_right(g->device, g->host, g->reference);
  gpu_upload(g->device, g->host);
}

static void expect_run_refused(good *g, const addresses *a, const void *workspace, size_t size,
                               void *stream, const char *label, onepass_status wanted,
                               const char *argument) {
  expect_status(onepass_run(g->plan, &a->buffers, (void *)(uintptr_t)workspace, size, stream),
                wanted, label);
  expect_message(label, argument, NULL);
  expect_nothing_happened(g, label);
}

static void expect_buffers_refused(good *g, const addresses *a, const char *label,
                                   onepass_status wanted, const char *argument) {
  expect_run_refused(g, a, g->workspace.address, g->workspace.size, NULL, label, wanted, argument);
}

/* ---- Memory in the wrong place --------------------------------------------------------------- */

static void test_cpu_memory_is_refused_on_a_gpu(void) {
  for (int k = 0; k < KINDS; k++) {
    good g = good_new((enum kind)k);
    for (int r = 0; r < ROLES; r++) {
      if (g.host->role[r] == NULL) continue;
      double on_the_stack[8] = {0};
      char label[120];
      addresses a = addresses_of(&g.device->call);
      snprintf(label, sizeof label, "%s, %s in the CPU's memory", kind_name[k], role_name[r]);
      a.of[r] = array_data(g.host->role[r]); /* from malloc */
      expect_buffers_refused(&g, &a, label, ONEPASS_BAD_DEVICE, role_name[r]);
      a.of[r] = on_the_stack;
      expect_buffers_refused(&g, &a, label, ONEPASS_BAD_DEVICE, role_name[r]);
      onepass_tensor tensor = g.device->arrays[r].tensor;
      g.device->arrays[r].tensor.data = g.host->role[r]->block;
      expect_status(call_helper(&g.device->call), ONEPASS_BAD_DEVICE, label);
      expect_message(label, role_name[r], NULL);
      g.device->arrays[r].tensor = tensor;
      expect_nothing_happened(&g, label);
    }
    good_free(&g);
  }
}

static void test_gpu_memory_is_refused_on_the_cpu(void) {
  for (int k = 0; k < KINDS; k++) {
    good g = good_new((enum kind)k);
    onepass_plan *plan = NULL;
    if (!EXPECT_OK(call_plan(g.host, &plan))) continue;
    for (int r = 0; r < ROLES; r++) {
      if (g.host->role[r] == NULL) continue;
      char label[120];
      addresses a = addresses_of(g.host);
      snprintf(label, sizeof label, "%s on the CPU, %s in a GPU's memory", kind_name[k],
               role_name[r]);
      a.of[r] =
          (unsigned char *)g.device->arrays[r].tensor.data + g.device->arrays[r].tensor.byte_offset;
      expect_status(run_plan(plan, &a.buffers), ONEPASS_BAD_DEVICE, label);
      expect_message(label, role_name[r], NULL);
      expect_nothing_happened(&g, label);
    }
    onepass_plan_destroy(plan);
    good_free(&g);
  }
}

static void test_memory_of_another_gpu_is_refused(void) {
  const int last = gpu_count() - 1;
  if (last == 0) {
    printf("skip: test_memory_of_another_gpu_is_refused: there is one device only\n");
    return;
  }
  for (int k = 0; k < KINDS; k++) {
    good g = good_new((enum kind)k);
    gpu_enter(last);
    gpu_call *elsewhere = gpu_call_new(g.host);
    gpu_enter(0);
    for (int r = 0; r < ROLES; r++) {
      if (g.host->role[r] == NULL) continue;
      addresses a = addresses_of(&g.device->call);
      a.of[r] = addresses_of(&elsewhere->call).of[r];
      expect_buffers_refused(&g, &a, kind_name[k], ONEPASS_BAD_DEVICE, role_name[r]);
    }
    gpu_enter(last);
    gpu_call_free(elsewhere);
    gpu_enter(0);
    good_free(&g);
  }
}

/* ---- Devices that are not there, or several -------------------------------------------------- */

static void set_device(gpu_call *g, int id) {
  for (int r = 0; r < ROLES; r++) g->arrays[r].tensor.device.id = id;
}

static void test_a_device_that_does_not_exist_is_refused(void) {
  const int ids[] = {gpu_count(), gpu_count() + 100, INT32_MAX, -1, INT32_MIN};
  for (int k = 0; k < KINDS; k++) {
    good g = good_new((enum kind)k);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
      char value[16];
      onepass_cuda_info info;
      snprintf(value, sizeof value, "%d", ids[i]);
      set_device(g.device, ids[i]);
      expect_plan_refused(&g.device->call, value, ONEPASS_BAD_DEVICE, NULL, value);
      expect_status(call_helper(&g.device->call), ONEPASS_BAD_DEVICE, value);
      set_device(g.device, 0);
      expect_status(onepass_get_cuda_info(ids[i], &info), ONEPASS_BAD_DEVICE, value);
      expect_message("onepass_get_cuda_info", NULL, value);
      expect_nothing_happened(&g, value);
    }
    good_free(&g);
  }
}

static void test_tensors_on_the_cpu_and_a_gpu_are_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    good g = good_new((enum kind)k);
    for (int r = 0; r < ROLES; r++) {
      if (g.host->role[r] == NULL) continue;
      g.device->call.role[r] = g.host->role[r];
      expect_plan_refused(&g.device->call, role_name[r], ONEPASS_BAD_DEVICE, NULL, NULL);
      expect_status(call_helper(&g.device->call), ONEPASS_BAD_DEVICE, role_name[r]);
      g.device->call.role[r] = &g.device->arrays[r];
      expect_nothing_happened(&g, role_name[r]);
    }
    good_free(&g);
  }
}

/* ---- Streams --------------------------------------------------------------------------------- */

static void test_a_stream_of_another_context_is_refused(void) {
  CUcontext other = gpu_context_new(), popped;
  CUstream stream;
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  GPU(cuCtxPopCurrent(&popped));
  for (int k = 0; k < KINDS; k++) {
    good g = good_new((enum kind)k);
    addresses a = addresses_of(&g.device->call);
    expect_run_refused(&g, &a, g.workspace.address, g.workspace.size, stream, "a foreign stream",
                       ONEPASS_BAD_STREAM, "stream");
    good_free(&g);
  }
  GPU(cuCtxPushCurrent(other));
  GPU(cuStreamDestroy(stream));
  GPU(cuCtxPopCurrent(&popped));
  gpu_context_free(other);
}

static void test_a_stream_of_another_gpu_is_refused(void) {
  const int last = gpu_count() - 1;
  CUstream stream;
  if (last == 0) {
    printf("skip: test_a_stream_of_another_gpu_is_refused: there is one device only\n");
    return;
  }
  gpu_enter(last);
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  gpu_enter(0);
  good g = good_new(L1_FORWARD);
  addresses a = addresses_of(&g.device->call);
  expect_run_refused(&g, &a, g.workspace.address, g.workspace.size, stream, "another GPU's stream",
                     ONEPASS_BAD_STREAM, "stream");
  good_free(&g);
  gpu_enter(last);
  GPU(cuStreamDestroy(stream));
  gpu_enter(0);
}

/* In a process of its own, which exits with the number of failed checks: no driver promises what it
 * does with such a handle. */
static int refuse_a_destroyed_stream(void) {
  CUstream stream;
  if (!gpu_open("a destroyed stream")) return 0;
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  good g = good_new(L1_FORWARD);
  addresses a = addresses_of(&g.device->call);
  EXPECT_OK(gpu_run(g.plan, g.device, &g.workspace, stream));
  GPU(cuStreamSynchronize(stream));
  gpu_upload(g.device, g.host);
  GPU(cuStreamDestroy(stream));
  const onepass_status status =
      onepass_run(g.plan, &a.buffers, g.workspace.address, g.workspace.size, stream);
  EXPECT(status == ONEPASS_BAD_STREAM || status == ONEPASS_CUDA_ERROR, "a destroyed stream: %s",
         onepass_status_name(status));
  expect_message("a destroyed stream", NULL, NULL);
  expect_nothing_happened(&g, "a destroyed stream");
  good_free(&g);
  return (int)expect_failures;
}

/* What the driver itself makes of such a handle. */
static int ask_the_driver_about_a_destroyed_stream(void) {
  CUstream stream;
  CUcontext context;
  if (!gpu_open("a destroyed stream")) return 0;
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  GPU(cuStreamDestroy(stream));
  gpu->cuStreamGetCtx(stream, &context);
  return 0;
}

/* Only before this process has a context: those do not outlive a fork. */
static bool run_in_child(int (*run)(void), int *status) {
  fflush(NULL);
  const pid_t child = fork();
  if (child == 0) {
    const int failures = run();
    fflush(NULL);
    _exit(failures ? 1 : 0);
  }
  return EXPECT(child > 0 && waitpid(child, status, 0) == child, "no process for it");
}

static void test_a_destroyed_stream_is_refused(void) {
  int status = 0;
  if (!run_in_child(ask_the_driver_about_a_destroyed_stream, &status)) return;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) { /* sanitizers make an exit of a signal */
    printf("skip: test_a_destroyed_stream_is_refused: the driver itself crashes on one\n");
    return;
  }
  if (!run_in_child(refuse_a_destroyed_stream, &status)) return;
  EXPECT(!WIFSIGNALED(status), "a destroyed stream ends the process with signal %d",
         WTERMSIG(status));
  EXPECT(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "see above");
}

static void test_a_stream_on_the_cpu_is_refused(void) {
  good g = good_new(L1_FORWARD);
  addresses a = addresses_of(g.host);
  onepass_plan *plan = NULL;
  CUstream stream;
  GPU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  EXPECT_OK(call_plan(g.host, &plan));
  expect_status(onepass_run(plan, &a.buffers, NULL, 0, stream), ONEPASS_BAD_DEVICE, "stream");
  expect_message("stream", "stream", NULL);
  expect_outputs_untouched(g.host, "stream");
  GPU(cuStreamDestroy(stream));
  onepass_plan_destroy(plan);
  good_free(&g);
}

/* ---- Workspaces ------------------------------------------------------------------------------ */

static void test_a_workspace_that_does_not_do_is_refused(void) {
  good g = good_new(LAYER_BACKWARD);
  const addresses a = addresses_of(&g.device->call);
  const size_t needed = g.workspace.size;
  unsigned char *device = g.workspace.address;
  if (EXPECT(needed > 0, "dweight of 2000 rows needs no workspace")) {
    const size_t room = (needed + 63) / 64 * 64;
    void *host = aligned_alloc(64, room);
    if (host == NULL) exit(2);
    memset(host, 0x5A, room);
    expect_run_refused(&g, &a, NULL, needed, NULL, "workspace NULL", ONEPASS_BAD_WORKSPACE,
                       "workspace");
    expect_run_refused(&g, &a, device, needed - 1, NULL, "workspace one byte short",
                       ONEPASS_BAD_WORKSPACE, "workspace");
    expect_run_refused(&g, &a, device, 0, NULL, "workspace of no bytes", ONEPASS_BAD_WORKSPACE,
                       "workspace");
    expect_run_refused(&g, &a, device + 8, needed, NULL, "workspace misaligned",
                       ONEPASS_BAD_WORKSPACE, "workspace");
    expect_run_refused(&g, &a, host, room, NULL, "workspace in the CPU's memory",
                       ONEPASS_BAD_DEVICE, "workspace");
    for (size_t i = 0; i < room; i++) {
      if (!EXPECT(((unsigned char *)host)[i] == 0x5A, "the CPU's workspace was written")) break;
    }
    free(host);
  }
  good_free(&g);
}

/* ---- Addresses ------------------------------------------------------------------------------- */

static void test_missing_misaligned_and_overlapping_buffers_are_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    good g = good_new((enum kind)k);
    const addresses right = addresses_of(&g.device->call);
    for (int r = 0; r < ROLES; r++) {
      if (g.host->role[r] == NULL) continue;
      addresses a = right;
      a.of[r] = NULL;
      expect_buffers_refused(&g, &a, kind_name[k], ONEPASS_NULL_POINTER, role_name[r]);
      a.of[r] = (char *)right.of[r] + 1;
      expect_buffers_refused(&g, &a, kind_name[k], ONEPASS_MISALIGNED, role_name[r]);
      for (int other = 0; other < ROLES; other++) {
        if (!role_is_output((enum kind)k, (enum role)r)) break;
        if (other == r || g.host->role[other] == NULL) continue;
        a.of[r] = (char *)right.of[other] + 4;
        expect_buffers_refused(&g, &a, kind_name[k], ONEPASS_OVERLAP, role_name[r]);
      }
    }
    good_free(&g);
  }
}

/* ---- Options --------------------------------------------------------------------------------- */

static void expect_option_refused(good *g, const char *label, const char *argument) {
  expect_plan_refused(&g->device->call, label, ONEPASS_BAD_OPTION, argument, NULL);
  g->device->call.options = (onepass_options){0};
  expect_nothing_happened(g, label);
}

static void test_options_that_make_no_sense_are_refused(void) {
  const int kernels[] = {-1, ONEPASS_CUDA_KERNEL_COUNT, 1000, INT32_MAX, INT32_MIN};
  for (int k = 0; k < KINDS; k++) {
    good g = good_new((enum kind)k);
    g.device->call.options.reference = 1;
    expect_option_refused(&g, "the reference on a GPU", "reference");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
      g.device->call.options.cuda_kernel = kernels[i];
      expect_option_refused(&g, "a kernel that does not exist", "cuda_kernel");
    }
    g.device->call.options.cuda_kernel =
        k >= POOL_FORWARD ? ONEPASS_CUDA_WARPS : ONEPASS_CUDA_WINDOWS;
    expect_option_refused(&g, "a kernel of the other family", "cuda_kernel");
    good_free(&g);
  }
}

int main(void) {
  test_a_destroyed_stream_is_refused();
  if (!gpu_open("test_cuda_status")) return EXPECT_SKIPPED;
  test_cpu_memory_is_refused_on_a_gpu();
  test_gpu_memory_is_refused_on_the_cpu();
  test_memory_of_another_gpu_is_refused();
  test_a_device_that_does_not_exist_is_refused();
  test_tensors_on_the_cpu_and_a_gpu_are_refused();
  test_a_stream_of_another_context_is_refused();
  test_a_stream_of_another_gpu_is_refused();
  test_a_stream_on_the_cpu_is_refused();
  test_a_workspace_that_does_not_do_is_refused();
  test_missing_misaligned_and_overlapping_buffers_are_refused();
  test_options_that_make_no_sense_are_refused();
  return expect_report("test_cuda_status");
}
