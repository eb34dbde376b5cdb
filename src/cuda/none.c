/* What src/cuda/device.c answers in a build without CUDA. */
#include "core/status.h"
#include "cuda/device.h"
#include "norm/plan_cuda.h"
#include "pool/plan_cuda.h"

static onepass_status not_built(void) {
  return onepass_fail(ONEPASS_BAD_DEVICE, "no CUDA device: this build has no CUDA backend");
}

bool onepass_cuda_is_built(void) { return false; }

onepass_status onepass_get_cuda_count(int32_t *count) {
  if (!count) return onepass_fail(ONEPASS_NULL_POINTER, "count = NULL: expected where to put it");
  *count = 0;
  return not_built();
}

onepass_status onepass_get_cuda_info(int32_t id, onepass_cuda_info *info) {
  (void)id;
  if (!info) {
    return onepass_fail(ONEPASS_NULL_POINTER, "info = NULL: expected an onepass_cuda_info");
  }
  return not_built();
}

onepass_status onepass_cuda_open_device(int32_t id, const char *argument,
                                        const onepass_cuda_device **device) {
  (void)id, (void)argument, (void)device;
  return not_built();
}

/* No plan has a device, so these are never asked. */
onepass_status onepass_norm_plan_cuda(struct onepass_plan *plan, onepass_cuda_kernel asked) {
  (void)plan, (void)asked;
  return not_built();
}

onepass_status onepass_groups_plan_cuda(struct onepass_plan *plan, onepass_cuda_kernel asked) {
  (void)plan, (void)asked;
  return not_built();
}

onepass_status onepass_pool_plan_cuda(struct onepass_plan *plan, onepass_cuda_kernel asked) {
  (void)plan, (void)asked;
  return not_built();
}

onepass_status onepass_cuda_check_memory(const onepass_cuda_device *device, const char *name,
                                         const void *address) {
  (void)device, (void)name, (void)address;
  return not_built();
}

onepass_status onepass_cuda_check_host_memory(const char *name, const void *address) {
  (void)name, (void)address;
  return ONEPASS_OK;
}

onepass_status onepass_cuda_check_stream(const onepass_cuda_device *device, void *stream) {
  (void)device, (void)stream;
  return not_built();
}

onepass_status onepass_cuda_enter(const onepass_cuda_device *device, bool *entered) {
  (void)device;
  *entered = false;
  return not_built();
}

void onepass_cuda_leave(bool entered) { (void)entered; }

onepass_status onepass_cuda_allocate(const onepass_cuda_device *device, size_t bytes,
                                     void **address) {
  (void)device, (void)bytes, (void)address;
  return not_built();
}

void onepass_cuda_free(const onepass_cuda_device *device, void *address) {
  (void)device, (void)address;
}
