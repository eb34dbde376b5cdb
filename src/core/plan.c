#include "core/plan.h"

#include <inttypes.h>
#include <stdlib.h>

#include "cpu/machine.h"
#include "cpu/threads.h"

/* A thread wakes in the time it takes to move about this much. Sanitized builds have less, so that small tensors, of which
 * most tests are, are shared by several threads there. */
#ifndef ONEPASS_BYTES_WORTH_A_THREAD
#define ONEPASS_BYTES_WORTH_A_THREAD (128 * 1024)
#endif

enum { WORKSPACE_ALIGNMENT = 64, MOST_THREADS_ASKED = 4096 };

onepass_status onepass_read_options(const onepass_options *options, onepass_choices *choices) {
  const onepass_options asked = options ? *options : (onepass_options){0};
  if (asked.threads < 0 || asked.threads > MOST_THREADS_ASKED) {
    return onepass_fail(ONEPASS_BAD_OPTION, "options.threads = %d: expected 0 (default) to %d",
                        (int)asked.threads, MOST_THREADS_ASKED);
  }
  choices->threads = asked.threads ? asked.threads : onepass_default_threads();
  choices->reference = asked.reference != 0;
  choices->cuda_kernel = (onepass_cuda_kernel)asked.cuda_kernel;
  if (asked.cuda_kernel < 0 || asked.cuda_kernel >= ONEPASS_CUDA_KERNEL_COUNT) {
    return onepass_fail(ONEPASS_BAD_OPTION, "options.cuda_kernel = %d: expected 0 (best) to %d",
                        (int)asked.cuda_kernel, ONEPASS_CUDA_KERNEL_COUNT - 1);
  }
  return onepass_choose_level(asked.vector_level, &choices->level);
}

onepass_status onepass_open_plan_device(onepass_plan *plan, const onepass_choices *choices) {
  const onepass_device device = plan->layouts.device;
  if (device.type != ONEPASS_CUDA) return ONEPASS_OK;
  const onepass_status status = onepass_cuda_open_device(device.id, "device.id", &plan->device);
  if (status != ONEPASS_OK || !choices->reference) return status;
  return onepass_fail(ONEPASS_BAD_OPTION,
                      "options.reference = 1: expected 0, as the reference runs on the CPU");
}

int64_t onepass_bytes_to_move(const onepass_layouts *layouts) {
  int64_t bytes = 0;
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!onepass_has(layouts, role)) continue;
    const onepass_layout *layout = &layouts->of[role];
    /* A repeated element (stride 0) is read from memory once. */
    const int64_t elements = layout->count < layout->span ? layout->count : layout->span;
    if (__builtin_add_overflow(bytes, elements * onepass_type_size(layout->type), &bytes)) {
      return INT64_MAX;
    }
  }
  return bytes;
}

int onepass_threads_worth(int threads, int64_t bytes) {
  const int64_t worth = 1 + bytes / ONEPASS_BYTES_WORTH_A_THREAD;
  return worth < threads ? (int)worth : threads;
}

/* ---- Plans the caller keeps ------------------------------------------------------------------ */

static onepass_status keep_plan(onepass_plan **plan, const onepass_plan *made) {
  *plan = malloc(sizeof **plan);
  if (!*plan) {
    return onepass_fail(ONEPASS_OUT_OF_MEMORY, "plan: no memory for its %zu bytes", sizeof **plan);
  }
  **plan = *made;
  return ONEPASS_OK;
}

static onepass_status null_plan_pointer(void) {
  return onepass_fail(ONEPASS_NULL_POINTER, "plan = NULL: expected where to put the plan");
}

onepass_status onepass_plan_norm(onepass_plan **plan, const onepass_norm *norm,
                                 const onepass_tensors *tensors, const onepass_options *options) {
  if (!plan) return null_plan_pointer();
  *plan = NULL;
  onepass_plan made;
  const onepass_status status = onepass_make_norm(&made, norm, tensors, options);
  return status == ONEPASS_OK ? keep_plan(plan, &made) : status;
}

onepass_status onepass_plan_pool(onepass_plan **plan, const onepass_pool *pool,
                                 const onepass_tensors *tensors, const onepass_options *options) {
  if (!plan) return null_plan_pointer();
  *plan = NULL;
  onepass_plan made;
  const onepass_status status = onepass_make_pool(&made, pool, tensors, options);
  return status == ONEPASS_OK ? keep_plan(plan, &made) : status;
}

void onepass_plan_destroy(onepass_plan *plan) { free(plan); }

size_t onepass_plan_workspace(const onepass_plan *plan) { return plan ? plan->info.workspace : 0; }

onepass_status onepass_plan_describe(const onepass_plan *plan, onepass_plan_info *info) {
  if (!plan) return onepass_fail(ONEPASS_NULL_POINTER, "plan = NULL: expected a plan");
  if (!info)
    return onepass_fail(ONEPASS_NULL_POINTER, "info = NULL: expected an onepass_plan_info");
  *info = plan->info;
  return ONEPASS_OK;
}

static onepass_status check_workspace(const onepass_plan *plan, const void *workspace,
                                      size_t workspace_size) {
  const size_t needed = plan->info.workspace;
  if (needed && (!workspace || workspace_size < needed)) {
    return onepass_fail(ONEPASS_BAD_WORKSPACE,
                        "workspace = %p, workspace_size = %zu: expected at least %zu bytes",
                        workspace, workspace_size, needed);
  }
  if (needed && (uintptr_t)workspace % WORKSPACE_ALIGNMENT) {
    return onepass_fail(ONEPASS_BAD_WORKSPACE, "workspace = %p: expected a multiple of %d bytes",
                        workspace, WORKSPACE_ALIGNMENT);
  }
  return ONEPASS_OK;
}

/* Every address is memory of the plan's device. */
static onepass_status check_memory(const onepass_plan *plan, const onepass_buffers *buffers) {
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!onepass_has(&plan->layouts, role) || !plan->layouts.of[role].count) continue;
    const char *name = onepass_role_name(role), *address = onepass_buffer(buffers, role);
    const onepass_status status = plan->device
                                      ? onepass_cuda_check_memory(plan->device, name, address)
                                      : onepass_cuda_check_host_memory(name, address);
    if (status != ONEPASS_OK) return status;
  }
  return ONEPASS_OK;
}

static onepass_status queue_on_device(const onepass_plan *plan, const onepass_buffers *buffers,
                                      void *workspace, void *stream) {
  bool entered;
  onepass_status status = onepass_cuda_enter(plan->device, &entered);
  if (status != ONEPASS_OK) return status;
  status = onepass_cuda_check_stream(plan->device, stream);
  if (status == ONEPASS_OK && plan->info.workspace) {
    status = onepass_cuda_check_memory(plan->device, "workspace", workspace);
  }
  if (status == ONEPASS_OK) status = plan->queue(plan, buffers, workspace, stream);
  onepass_cuda_leave(entered);
  return status;
}

onepass_status onepass_run(const onepass_plan *plan, const onepass_buffers *buffers,
                           void *workspace, size_t workspace_size, void *stream) {
  if (!plan) return onepass_fail(ONEPASS_NULL_POINTER, "plan = NULL: expected a plan");
  if (!buffers) return onepass_fail(ONEPASS_NULL_POINTER, "buffers = NULL: expected addresses");
  if (stream && !plan->device) {
    return onepass_fail(ONEPASS_BAD_DEVICE, "stream = %p: expected NULL on the CPU", stream);
  }
  onepass_status status =
      onepass_check_buffers(&plan->layouts, buffers, plan->in_place, plan->in_place_count);
  if (status == ONEPASS_OK) status = check_workspace(plan, workspace, workspace_size);
  if (status == ONEPASS_OK) status = check_memory(plan, buffers);
  if (status != ONEPASS_OK) return status;
  if (plan->device) return queue_on_device(plan, buffers, workspace, stream);
  plan->run(plan, buffers, workspace);
  return ONEPASS_OK;
}

/* ---- One call -------------------------------------------------------------------------------- */

/* The workspace is freed in the order of the stream, so after the work that uses it. */
static onepass_status run_once_on_device(const onepass_plan *plan, const onepass_buffers *buffers) {
  const size_t size = plan->info.workspace;
  void *workspace = NULL;
  onepass_status status = size ? onepass_cuda_allocate(plan->device, size, &workspace) : ONEPASS_OK;
  if (status == ONEPASS_OK) status = onepass_run(plan, buffers, workspace, size, NULL);
  if (workspace) onepass_cuda_free(plan->device, workspace);
  return status;
}

static onepass_status run_once(const onepass_plan *plan, const onepass_tensors *tensors) {
  onepass_buffers buffers = {0};
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    const onepass_tensor *tensor = ((const onepass_tensor *const *)tensors)[role];
    if (tensor && tensor->data) {
      ((char **)&buffers)[role] = (char *)tensor->data + tensor->byte_offset;
    }
  }
  void *workspace = NULL;
  const size_t size = plan->info.workspace;
  if (plan->device) return run_once_on_device(plan, &buffers);
  if (size) {
    workspace = aligned_alloc(WORKSPACE_ALIGNMENT, (size + WORKSPACE_ALIGNMENT - 1) /
                                                       WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT);
    if (!workspace) {
      return onepass_fail(ONEPASS_OUT_OF_MEMORY, "workspace: no memory for its %zu bytes", size);
    }
  }
  const onepass_status status = onepass_run(plan, &buffers, workspace, size, NULL);
  free(workspace);
  return status;
}

static onepass_status norm_once(const onepass_norm *norm, const onepass_tensors *tensors) {
  onepass_plan plan;
  const onepass_status status = onepass_make_norm(&plan, norm, tensors, NULL);
  return status == ONEPASS_OK ? run_once(&plan, tensors) : status;
}

static onepass_status pool_once(const onepass_pool *pool, const onepass_tensors *tensors) {
  onepass_plan plan;
  const onepass_status status = onepass_make_pool(&plan, pool, tensors, NULL);
  return status == ONEPASS_OK ? run_once(&plan, tensors) : status;
}

onepass_status onepass_l1_norm(const onepass_tensor *x, int32_t axis, onepass_reduction reduction,
                               double eps, const onepass_tensor *y) {
  return norm_once(&(onepass_norm){.op = ONEPASS_L1_NORM,
                                   .direction = ONEPASS_FORWARD,
                                   .axis = axis,
                                   .reduction = reduction,
                                   .eps = eps},
                   &(onepass_tensors){.x = x, .y = y});
}

onepass_status onepass_l1_norm_backward(const onepass_tensor *dy, const onepass_tensor *x,
                                        int32_t axis, onepass_reduction reduction, double eps,
                                        const onepass_tensor *dx) {
  return norm_once(&(onepass_norm){.op = ONEPASS_L1_NORM,
                                   .direction = ONEPASS_BACKWARD,
                                   .axis = axis,
                                   .reduction = reduction,
                                   .eps = eps},
                   &(onepass_tensors){.x = x, .dy = dy, .dx = dx});
}

onepass_status onepass_layer_norm(const onepass_tensor *x, int32_t axis,
                                  const onepass_tensor *weight, const onepass_tensor *bias,
                                  double eps, const onepass_tensor *y, const onepass_tensor *mean,
                                  const onepass_tensor *rstd) {
  return norm_once(
      &(onepass_norm){
          .op = ONEPASS_LAYER_NORM, .direction = ONEPASS_FORWARD, .axis = axis, .eps = eps},
      &(onepass_tensors){
          .x = x, .weight = weight, .bias = bias, .y = y, .mean = mean, .rstd = rstd});
}

onepass_status onepass_layer_norm_backward(const onepass_tensor *dy, const onepass_tensor *x,
                                           int32_t axis, const onepass_tensor *weight,
                                           const onepass_tensor *mean, const onepass_tensor *rstd,
                                           const onepass_tensor *dx, const onepass_tensor *dweight,
                                           const onepass_tensor *dbias) {
  return norm_once(
      &(onepass_norm){.op = ONEPASS_LAYER_NORM, .direction = ONEPASS_BACKWARD, .axis = axis},
      &(onepass_tensors){.x = x,
                         .weight = weight,
                         .mean = mean,
                         .rstd = rstd,
                         .dy = dy,
                         .dx = dx,
                         .dweight = dweight,
                         .dbias = dbias});
}

static onepass_pool avg_pool1d(onepass_direction direction, int64_t kernel, int64_t stride,
                               int64_t padding, int32_t ceil_mode, int32_t count_include_pad) {
  return (onepass_pool){.op = ONEPASS_AVG_POOL,
                        .direction = direction,
                        .spatial = 1,
                        .kernel = {kernel},
                        .stride = {stride},
                        .padding = {padding},
                        .ceil_mode = ceil_mode,
                        .count_include_pad = count_include_pad};
}

onepass_status onepass_avg_pool1d(const onepass_tensor *x, int64_t kernel, int64_t stride,
                                  int64_t padding, int32_t ceil_mode, int32_t count_include_pad,
                                  const onepass_tensor *y) {
  const onepass_pool pool =
      avg_pool1d(ONEPASS_FORWARD, kernel, stride, padding, ceil_mode, count_include_pad);
  return pool_once(&pool, &(onepass_tensors){.x = x, .y = y});
}

onepass_status onepass_avg_pool1d_backward(const onepass_tensor *dy, int64_t kernel, int64_t stride,
                                           int64_t padding, int32_t ceil_mode,
                                           int32_t count_include_pad, const onepass_tensor *dx) {
  const onepass_pool pool =
      avg_pool1d(ONEPASS_BACKWARD, kernel, stride, padding, ceil_mode, count_include_pad);
  return pool_once(&pool, &(onepass_tensors){.dy = dy, .dx = dx});
}
