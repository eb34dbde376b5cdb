/*
 * The GPU in the C tests: calls whose arrays lie on a device, byte for byte as they lie on the
 * host, guard bands included, and are compared there with the CPU's reference.
 *
 * A driver call that fails ends the program with status 1: after most of them nothing works.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef GPU_H
#define GPU_H

#include "calls.h"
#include "cuda/driver.h"
#include "expect.h"

/* The driver's functions, once gpu_open has found a device. */
extern const onepass_cuda_api *gpu;
#define GPU(call) gpu_require(gpu->call, #call, __FILE__, __LINE__)
void gpu_require(CUresult result, const char *what, const char *file, int line);

/* 1 when there is a device that onepass can use; its primary context is then current. Otherwise
 * prints "skip: test: why". That the driver has devices and onepass knows none of them is a
 * failure, which ends the program. */
int gpu_open(const char *test);
void gpu_close(
    void); /* the end of everything on the device, so that a tool sees what was not freed */

int gpu_count(void);
int gpu_major(void);         /* of the compute capability of the device in use */
int64_t gpu_l2(void);        /* bytes of its second-level cache */
void gpu_enter(int device);  /* makes the primary context of a device the current one */
CUcontext gpu_current(void); /* the context that is current in this thread; NULL: none */

/* A context beside the primary one of the device in use. It becomes current. */
CUcontext gpu_context_new(void);
void gpu_context_free(CUcontext context);

/* ---- Memory ---------------------------------------------------------------------------------- */

void *gpu_allocate(size_t size);
void gpu_free(void *memory); /* NULL is fine */

/* Copies in one direction, which wait for each other no more than once in a while: where programs share a device, a wait
 * is until all others have had their turn. When they return the copies are done. */
typedef struct gpu_copy {
  void *device, *host;
  size_t size;
} gpu_copy;
void gpu_to_device(const gpu_copy *copies, int count);
void gpu_to_host(const gpu_copy *copies, int count);
size_t gpu_free_memory(void); /* bytes that could still be allocated on the device */

/* Scratch memory for one plan, with guard bands. */
typedef struct gpu_workspace {
  void *address; /* NULL where the plan wants none */
  size_t size;
  void *block;
} gpu_workspace;
gpu_workspace gpu_workspace_new(const onepass_plan *plan);
void gpu_workspace_free(gpu_workspace *workspace);
/* Seed 0 fills it with 0xff, any other with random bytes. */
void gpu_workspace_scramble(const gpu_workspace *workspace, uint64_t seed);
int gpu_workspace_guards_hold(const gpu_workspace *workspace);

/* ---- Calls ----------------------------------------------------------------------------------- */

/* The arrays of `call` lie on the device in use: call_plan and call_helper take it, what reads or
 * writes elements does not. */
typedef struct gpu_call {
  call call;
  array arrays[ROLES];
} gpu_call;

/* Arrays as the host's call has them, with the same contents. */
gpu_call *gpu_call_new(call *host);
void gpu_call_free(gpu_call *g);

/* The host's inputs to the device. Outputs get the pattern, here and there. */
void gpu_upload(gpu_call *g, call *host);
/* Waits for the device, then its outputs to the host. 1 when the inputs are as the host has them. */
int gpu_download(const gpu_call *g, call *host);

onepass_status gpu_run(const onepass_plan *plan, const gpu_call *g, const gpu_workspace *workspace,
                       CUstream stream);
/* With the options in g->call and a workspace of its own; waits for the device. */
onepass_status gpu_run_once(const gpu_call *g, CUstream stream);

/* Every onepass_cuda_kernel by its name. */
extern const char *const gpu_kernel_name[ONEPASS_CUDA_KERNEL_COUNT];

/* "layer_norm of f32 3x127, kernel warps", after the options in g->call. */
typedef struct gpu_label {
  char text[160];
} gpu_label;
gpu_label gpu_label_of(const gpu_call *g);

/* The plan with this kernel; NULL where the kernel cannot do the call. */
static inline onepass_plan *gpu_plan(gpu_call *g, int kernel) {
  onepass_plan *plan = NULL;
  g->call.options.cuda_kernel = kernel;
  onepass_status status = call_plan(&g->call, &plan);
  if (kernel != ONEPASS_CUDA_BEST && status == ONEPASS_BAD_OPTION) return NULL;
  EXPECT(status == ONEPASS_OK, "%s: %s: %s", gpu_label_of(g).text, onepass_status_name(status),
         onepass_last_message());
  return plan;
}

/* Waits, and compares: results within the bounds, nothing else written. */
static inline void expect_gpu_right(const gpu_call *g, call *host, const call *reference) {
  const int inputs_hold = gpu_download(g, host);
  const double distance = call_distance(host, reference);
  EXPECT(distance <= 1, "%s: %g times the bound", gpu_label_of(g).text, distance);
  EXPECT(call_guards_hold(host), "%s: wrote outside an output", gpu_label_of(g).text);
  EXPECT(inputs_hold, "%s: wrote to an input or around it", gpu_label_of(g).text);
}

/* Is told of a plan before it is run, and looks at what it gave. */
typedef void (*gpu_planned)(const onepass_plan *plan, const gpu_call *g, int kernel);
typedef void (*gpu_expect)(const gpu_call *g, call *host, const call *reference);

/* Runs one kernel, if it can do the call. planned may be NULL. */
static inline void gpu_try_kernel(gpu_call *g, call *host, const call *reference, int kernel,
                                  gpu_planned planned, gpu_expect expect) {
  onepass_plan *plan = gpu_plan(g, kernel);
  if (plan == NULL) return;
  if (planned) planned(plan, g, kernel);
  gpu_workspace workspace = gpu_workspace_new(plan);
  gpu_upload(g, host);
  EXPECT_OK(gpu_run(plan, g, &workspace, NULL));
  expect(g, host, reference);
  EXPECT(gpu_workspace_guards_hold(&workspace), "%s: wrote outside the workspace",
         gpu_label_of(g).text);
  gpu_workspace_free(&workspace);
  onepass_plan_destroy(plan);
}

static inline void gpu_try_every_kernel(gpu_call *g, call *host, const call *reference,
                                        gpu_planned planned, gpu_expect expect) {
  for (int kernel = 0; kernel < ONEPASS_CUDA_KERNEL_COUNT; kernel++)
    gpu_try_kernel(g, host, reference, kernel, planned, expect);
}

#endif
