#include "gpu.h"

#include <stddef.h>

#include "buffers.h"

bool gpu_tile(gpu *gpu, void *to, int64_t bytes, const void *block, int64_t block_bytes,
              int64_t element_bytes, uint64_t seed) {
  uint64_t places = (uint64_t)(block_bytes / element_bytes / 2);
  int64_t done = 0;
  for (uint64_t piece = 0; done < bytes; piece++) {
    int64_t offset = (int64_t)(random_bits(seed, piece) % places | 1) * element_bytes;
    int64_t size = block_bytes - offset;
    if (size > bytes - done) size = bytes - done;
    if (!gpu_copy(gpu, (char *)to + done, (const char *)block + offset, size)) return false;
    done += size;
  }
  return true;
}

#ifdef ONEPASS_HAS_CUDA

#include "cuda/driver.h"

/* Never NULL once a gpu is open. */
static const onepass_cuda_api *driver(void) {
  const char *reason;
  return onepass_cuda_open(&reason);
}

static bool worked(gpu *gpu, CUresult result) {
  if (result == CUDA_SUCCESS) return true;
  gpu->reason = NULL;
  driver()->cuGetErrorString(result, &gpu->reason);
  if (!gpu->reason) gpu->reason = "unknown CUDA error";
  return false;
}

static CUdeviceptr address(const void *memory) { return (CUdeviceptr)(uintptr_t)memory; }

/* The primary context is kept for the life of the process, as the library does. */
bool gpu_open(gpu *gpu, int32_t device) {
  *gpu = (struct gpu){.device = device};
  const onepass_cuda_api *api = onepass_cuda_open(&gpu->reason);
  CUdevice handle;
  CUcontext context;
  CUstream stream;
  if (!api || !worked(gpu, api->cuDeviceGet(&handle, device)) ||
      !worked(gpu, api->cuDevicePrimaryCtxRetain(&context, handle)) ||
      !worked(gpu, api->cuCtxPushCurrent(context)))
    return false;
  if (worked(gpu, api->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))) {
    gpu->stream = stream;
    return true;
  }
  api->cuCtxPopCurrent(&context);
  return false;
}

void gpu_close(gpu *gpu) {
  CUcontext context;
  worked(gpu, driver()->cuStreamDestroy(gpu->stream));
  worked(gpu, driver()->cuCtxPopCurrent(&context));
}

int64_t gpu_available(gpu *gpu) {
  size_t available, all;
  return worked(gpu, driver()->cuMemGetInfo(&available, &all)) ? (int64_t)available : 0;
}

void *gpu_allocate(gpu *gpu, int64_t bytes) {
  CUdeviceptr memory;
  if (!worked(gpu, driver()->cuMemAlloc(&memory, bytes > 0 ? (size_t)bytes : 1))) return NULL;
  return (void *)(uintptr_t)memory;
}

void gpu_free(gpu *gpu, void *memory) {
  if (memory) worked(gpu, driver()->cuMemFree(address(memory)));
}

bool gpu_upload(gpu *gpu, void *to, const void *from, int64_t bytes) {
  return worked(gpu, driver()->cuMemcpyHtoDAsync(address(to), from, (size_t)bytes, gpu->stream)) &&
         gpu_wait(gpu);
}

bool gpu_download(gpu *gpu, void *to, const void *from, int64_t bytes) {
  return worked(gpu, driver()->cuMemcpyDtoHAsync(to, address(from), (size_t)bytes, gpu->stream)) &&
         gpu_wait(gpu);
}

bool gpu_copy(gpu *gpu, void *to, const void *from, int64_t bytes) {
  return worked(
      gpu, driver()->cuMemcpyDtoDAsync(address(to), address(from), (size_t)bytes, gpu->stream));
}

bool gpu_fill(gpu *gpu, void *to, unsigned char value, int64_t bytes) {
  return worked(gpu, driver()->cuMemsetD8Async(address(to), value, (size_t)bytes, gpu->stream));
}

bool gpu_wait(gpu *gpu) { return worked(gpu, driver()->cuStreamSynchronize(gpu->stream)); }

bool gpu_wait_default(gpu *gpu) { return worked(gpu, driver()->cuStreamSynchronize(NULL)); }

void *gpu_event(gpu *gpu) {
  CUevent event;
  return worked(gpu, driver()->cuEventCreate(&event, CU_EVENT_DEFAULT)) ? event : NULL;
}

void gpu_event_free(gpu *gpu, void *event) {
  if (event) worked(gpu, driver()->cuEventDestroy(event));
}

bool gpu_mark(gpu *gpu, void *event) {
  return worked(gpu, driver()->cuEventRecord(event, gpu->stream));
}

double gpu_seconds(gpu *gpu, void *from, void *to) {
  float milliseconds;
  if (!worked(gpu, driver()->cuEventElapsedTime(&milliseconds, from, to))) return -1;
  return milliseconds * 1e-3;
}

#else

/* No gpu can be opened, so that nothing below is ever called with one. */

static bool refuse(gpu *gpu) {
  gpu->reason = "this build has no CUDA backend";
  return false;
}

bool gpu_open(gpu *gpu, int32_t device) {
  *gpu = (struct gpu){.device = device};
  return refuse(gpu);
}

void gpu_close(gpu *gpu) { refuse(gpu); }

int64_t gpu_available(gpu *gpu) { return refuse(gpu); }

void *gpu_allocate(gpu *gpu, int64_t bytes) {
  (void)bytes;
  refuse(gpu);
  return NULL;
}

void gpu_free(gpu *gpu, void *memory) {
  (void)memory;
  refuse(gpu);
}

bool gpu_upload(gpu *gpu, void *to, const void *from, int64_t bytes) {
  (void)to, (void)from, (void)bytes;
  return refuse(gpu);
}

bool gpu_download(gpu *gpu, void *to, const void *from, int64_t bytes) {
  (void)to, (void)from, (void)bytes;
  return refuse(gpu);
}

bool gpu_copy(gpu *gpu, void *to, const void *from, int64_t bytes) {
  (void)to, (void)from, (void)bytes;
  return refuse(gpu);
}

bool gpu_fill(gpu *gpu, void *to, unsigned char value, int64_t bytes) {
  (void)to, (void)value, (void)bytes;
  return refuse(gpu);
}

bool gpu_wait(gpu *gpu) { return refuse(gpu); }

bool gpu_wait_default(gpu *gpu) { return refuse(gpu); }

void *gpu_event(gpu *gpu) {
  refuse(gpu);
  return NULL;
}

void gpu_event_free(gpu *gpu, void *event) {
  (void)event;
  refuse(gpu);
}

bool gpu_mark(gpu *gpu, void *event) {
  (void)event;
  return refuse(gpu);
}

double gpu_seconds(gpu *gpu, void *from, void *to) {
  (void)from, (void)to;
  return refuse(gpu) - 1.0;
}

#endif
