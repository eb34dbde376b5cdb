#include "cuda/device.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "cuda/archives.h"
#include "cuda/driver.h"
#include "cuda/short_ptx.h"
#include "cuda/unpack.h"

enum {
  MOST_DEVICES = 64,
  MOST_KERNELS = 256, /* of a family and a type: a power of two, and more than there are */
  LONGEST_NAME = 64,
  OLDEST_MAJOR = 8,
  FIRST_OVERLAPPING_DRIVER = 12030 /* earlier ones cannot capture such launches */
};

/* Kernels by name, in a table that only grows: readers need no lock. A name is written before its
 * function is. */
typedef struct loaded_kernel {
  char name[LONGEST_NAME];
  _Atomic(CUfunction) function;
} loaded_kernel;

struct onepass_cuda_device {
  int32_t id;
  CUcontext context;
  onepass_cuda_properties properties;
  bool overlaps; /* launches may begin before those ahead of them have ended */
  pthread_mutex_t loading;
  const onepass_kernel_archive *archives[ONEPASS_CUDA_FAMILIES]; /* of kernels, */
  uint8_t *unpacked[ONEPASS_CUDA_FAMILIES];                      /* once one of them was needed */
  size_t unpacked_size[ONEPASS_CUDA_FAMILIES];
  CUmodule modules[ONEPASS_CUDA_FAMILIES][ONEPASS_TYPE_COUNT];
  loaded_kernel kernels[ONEPASS_CUDA_FAMILIES][ONEPASS_TYPE_COUNT][MOST_KERNELS];
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(onepass_cuda_device *) devices[MOST_DEVICES];
static atomic_bool any_device;

static const onepass_cuda_api *cuda(void) {
  const char *reason;
  return onepass_cuda_open(&reason);
}

static onepass_status refused(const char *what, CUresult result) {
  const char *name = NULL, *text = NULL;
  cuda()->cuGetErrorName(result, &name);
  cuda()->cuGetErrorString(result, &text);
  return onepass_fail(
      result == CUDA_ERROR_OUT_OF_MEMORY ? ONEPASS_OUT_OF_MEMORY : ONEPASS_CUDA_ERROR,
      "%s: %s (%s)", what, name ? name : "unknown error", text ? text : "no description");
}

/* ---- Devices --------------------------------------------------------------------------------- */

bool onepass_cuda_is_built(void) { return true; }

static onepass_status count_devices(int32_t *count) {
  const char *reason;
  const onepass_cuda_api *api = onepass_cuda_open(&reason);
  int found = 0;
  *count = 0;
  if (!api) return onepass_fail(ONEPASS_BAD_DEVICE, "no CUDA device: %s", reason);
  const CUresult result = api->cuDeviceGetCount(&found);
  if (result != CUDA_SUCCESS) return refused("no CUDA device", result);
  if (!found) return onepass_fail(ONEPASS_BAD_DEVICE, "no CUDA device: the driver found none");
  *count = found;
  return ONEPASS_OK;
}

onepass_status onepass_get_cuda_count(int32_t *count) {
  if (!count) return onepass_fail(ONEPASS_NULL_POINTER, "count = NULL: expected where to put it");
  return count_devices(count);
}

static int attribute_of(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  cuda()->cuDeviceGetAttribute(&value, attribute, device);
  return value;
}

static onepass_status find_device(int32_t id, const char *argument, CUdevice *device) {
  int32_t count;
  onepass_status status = count_devices(&count);
  if (status != ONEPASS_OK) return status;
  if (id < 0 || id >= count || id >= MOST_DEVICES) {
    return onepass_fail(ONEPASS_BAD_DEVICE,
                        "%s = %d: expected 0 to %d, as there are %d CUDA devices", argument,
                        (int)id, (int)count - 1, (int)count);
  }
  const CUresult result = cuda()->cuDeviceGet(device, id);
  return result == CUDA_SUCCESS ? ONEPASS_OK : refused("cuDeviceGet", result);
}

onepass_status onepass_get_cuda_info(int32_t id, onepass_cuda_info *info) {
  if (!info)
    return onepass_fail(ONEPASS_NULL_POINTER, "info = NULL: expected an onepass_cuda_info");
  CUdevice device;
  onepass_status status = find_device(id, "device", &device);
  if (status != ONEPASS_OK) return status;
  size_t memory = 0;
  int version = 0;
  memset(info, 0, sizeof *info);
  cuda()->cuDeviceGetName(info->name, sizeof info->name, device);
  cuda()->cuDeviceTotalMem(&memory, device);
  cuda()->cuDriverGetVersion(&version);
  info->major = attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  info->minor = attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  info->multiprocessors = attribute_of(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  info->driver = version;
  info->memory = (int64_t)memory;
  info->l2 = attribute_of(device, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  info->shared = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  return ONEPASS_OK;
}

static onepass_status open_device(int32_t id, const char *argument, onepass_cuda_device *device) {
  CUdevice handle;
  onepass_status status = find_device(id, argument, &handle);
  if (status != ONEPASS_OK) return status;
  onepass_cuda_properties *properties = &device->properties;
  properties->major = attribute_of(handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  properties->minor = attribute_of(handle, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  if (properties->major < OLDEST_MAJOR) {
    return onepass_fail(ONEPASS_BAD_DEVICE,
                        "%s = %d: expected a CUDA device of compute capability %d.0 or more, "
                        "but this one has %d.%d",
                        argument, (int)id, OLDEST_MAJOR, (int)properties->major,
                        (int)properties->minor);
  }
  properties->multiprocessors = attribute_of(handle, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  properties->shared_block =
      attribute_of(handle, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  properties->shared_multiprocessor =
      attribute_of(handle, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  properties->l2 = attribute_of(handle, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  int driver = 0;
  cuda()->cuDriverGetVersion(&driver);
  device->overlaps = properties->major >= 9 && driver >= FIRST_OVERLAPPING_DRIVER;
  const CUresult result = cuda()->cuDevicePrimaryCtxRetain(&device->context, handle);
  if (result != CUDA_SUCCESS) return refused("cuDevicePrimaryCtxRetain", result);
  device->id = id;
  pthread_mutex_init(&device->loading, NULL);
  return ONEPASS_OK;
}

/* Devices stay open until the process ends. */
static onepass_status keep_device(int32_t id, const char *argument) {
  onepass_cuda_device *device = calloc(1, sizeof *device);
  if (!device) {
    return onepass_fail(ONEPASS_OUT_OF_MEMORY, "%s = %d: no memory for its %zu bytes", argument,
                        (int)id, sizeof *device);
  }
  const onepass_status status = open_device(id, argument, device);
  if (status != ONEPASS_OK) {
    free(device);
    return status;
  }
  atomic_store_explicit(&devices[id], device, memory_order_release);
  atomic_store(&any_device, true);
  return ONEPASS_OK;
}

onepass_status onepass_cuda_open_device(int32_t id, const char *argument,
                                        const onepass_cuda_device **device) {
  if (id >= 0 && id < MOST_DEVICES) {
    *device = atomic_load_explicit(&devices[id], memory_order_acquire);
    if (*device) return ONEPASS_OK;
  } else {
    CUdevice none;
    return find_device(id, argument, &none);
  }
  pthread_mutex_lock(&opening);
  const onepass_status status = atomic_load(&devices[id]) ? ONEPASS_OK : keep_device(id, argument);
  *device = atomic_load(&devices[id]);
  pthread_mutex_unlock(&opening);
  return status;
}

const onepass_cuda_properties *onepass_cuda_properties_of(const onepass_cuda_device *device) {
  return &device->properties;
}

/* ---- The current context --------------------------------------------------------------------- */

onepass_status onepass_cuda_enter(const onepass_cuda_device *device, bool *entered) {
  CUcontext current = NULL;
  *entered = false;
  cuda()->cuCtxGetCurrent(&current);
  if (current == device->context) return ONEPASS_OK;
  const CUresult result = cuda()->cuCtxPushCurrent(device->context);
  *entered = result == CUDA_SUCCESS;
  return *entered ? ONEPASS_OK : refused("cuCtxPushCurrent", result);
}

void onepass_cuda_leave(bool entered) {
  CUcontext context;
  if (entered) cuda()->cuCtxPopCurrent(&context);
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static unsigned hash_of(const char *name) {
  unsigned hash = 2166136261u;
  for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
  return hash;
}

/* The place of a name: its own, or the first free one, where function is NULL. */
static loaded_kernel *place_of(loaded_kernel *kernels, const char *name) {
  for (unsigned i = hash_of(name);; i++) {
    loaded_kernel *kernel = &kernels[i % (MOST_KERNELS)];
    if (!atomic_load_explicit(&kernel->function, memory_order_acquire)) return kernel;
    if (!strcmp(kernel->name, name)) return kernel;
  }
}

/* The functions below need the device's context to be current and its lock to be held. */

/* Archives stay unpacked: as much memory as a tensor of modest size, and other types come at once. */
static onepass_status unpack_kernels(onepass_cuda_device *device, onepass_cuda_family family) {
  const onepass_cuda_properties *properties = &device->properties;
  const onepass_kernel_archive *archive =
      onepass_find_kernels(family, properties->major, properties->minor);
  if (!archive) {
    return onepass_fail(ONEPASS_BAD_DEVICE,
                        "device = %d: this build of onepass has no kernels for its compute "
                        "capability, %d.%d",
                        (int)device->id, (int)properties->major, (int)properties->minor);
  }
  device->archives[family] = archive;
  device->unpacked[family] = onepass_unpack_xz(
      archive->begin, (size_t)(archive->end - archive->begin), &device->unpacked_size[family]);
  if (device->unpacked[family]) return ONEPASS_OK;
  return onepass_fail(ONEPASS_OUT_OF_MEMORY,
                      "device = %d: its kernels cannot be unpacked: expected memory for %zu bytes, "
                      "and an archive that is not damaged",
                      (int)device->id, device->unpacked_size[family]);
}

/* An image of PTX is short; the driver takes it long. */
static CUresult load_ptx(CUmodule *module, const uint8_t *image, size_t size) {
  char *text = onepass_lengthen_ptx((const char *)image, &size);
  const CUresult result = text ? cuda()->cuModuleLoadData(module, text) : CUDA_ERROR_OUT_OF_MEMORY;
  free(text);
  return result;
}

static onepass_status load_module(onepass_cuda_device *device, onepass_cuda_family family,
                                  onepass_type type) {
  static const char *const names[ONEPASS_CUDA_FAMILIES][ONEPASS_TYPE_COUNT] = {
      [ONEPASS_CUDA_NORM] = {[ONEPASS_TYPE_F32] = "norm_f32",
                             [ONEPASS_TYPE_F64] = "norm_f64",
                             [ONEPASS_TYPE_F16] = "norm_f16",
                             [ONEPASS_TYPE_BF16] = "norm_bf16"},
      [ONEPASS_CUDA_POOL] = {[ONEPASS_TYPE_F32] = "pool_f32",
                             [ONEPASS_TYPE_F64] = "pool_f64",
                             [ONEPASS_TYPE_F16] = "pool_f16",
                             [ONEPASS_TYPE_BF16] = "pool_bf16"}};
  onepass_status status = ONEPASS_OK;
  if (!device->unpacked[family]) status = unpack_kernels(device, family);
  if (status != ONEPASS_OK) return status;
  size_t size;
  const uint8_t *image = onepass_find_in_tar(
      device->unpacked[family], device->unpacked_size[family], names[family][type], &size);
  if (!image) return refused("loading kernels", CUDA_ERROR_NOT_FOUND);
  CUmodule *module = &device->modules[family][type];
  const CUresult result = device->archives[family]->is_ptx
                              ? load_ptx(module, image, size)
                              : cuda()->cuModuleLoadData(module, image);
  return result == CUDA_SUCCESS ? ONEPASS_OK : refused("loading kernels", result);
}

static onepass_status load_kernel(onepass_cuda_device *device, onepass_cuda_family family,
                                  onepass_type type, const char *name, CUfunction *function) {
  if (!device->modules[family][type]) {
    const onepass_status status = load_module(device, family, type);
    if (status != ONEPASS_OK) return status;
  }
  CUresult result = cuda()->cuModuleGetFunction(function, device->modules[family][type], name);
  if (result != CUDA_SUCCESS) return refused(name, result);
  /* What the kernel itself declares counts, too. */
  int own = 0;
  cuda()->cuFuncGetAttribute(&own, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, *function);
  result = cuda()->cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                      device->properties.shared_block - own);
  if (result == CUDA_SUCCESS && device->properties.major >= 9) {
    result = cuda()->cuFuncSetAttribute(*function,
                                        CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
  }
  return result == CUDA_SUCCESS ? ONEPASS_OK : refused(name, result);
}

onepass_status onepass_cuda_load(const onepass_cuda_device *opened, onepass_cuda_family family,
                                 onepass_type type, const char *name, onepass_cuda_launch *launch) {
  onepass_cuda_device *device = atomic_load(&devices[opened->id]);
  loaded_kernel *kernels = device->kernels[family][type];
  launch->early = device->overlaps;
  launch->function = atomic_load(&place_of(kernels, name)->function);
  if (launch->function) return ONEPASS_OK;
  bool entered;
  onepass_status status = onepass_cuda_enter(device, &entered);
  if (status != ONEPASS_OK) return status;
  /* Loading must not spoil a capture that this thread has under way. */
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  cuda()->cuThreadExchangeStreamCaptureMode(&mode);
  pthread_mutex_lock(&device->loading);
  loaded_kernel *place = place_of(kernels, name);
  launch->function = atomic_load(&place->function);
  if (!launch->function) {
    status = load_kernel(device, family, type, name, &launch->function);
    if (status == ONEPASS_OK) {
      snprintf(place->name, sizeof place->name, "%s", name);
      atomic_store_explicit(&place->function, launch->function, memory_order_release);
    }
  }
  pthread_mutex_unlock(&device->loading);
  cuda()->cuThreadExchangeStreamCaptureMode(&mode);
  onepass_cuda_leave(entered);
  return status;
}

/* ---- Addresses and streams ------------------------------------------------------------------- */

typedef struct whereabouts {
  CUmemorytype type; /* 0: the driver does not know the address */
  int device;
} whereabouts;

static whereabouts find_memory(const onepass_cuda_api *api, const void *address) {
  whereabouts at = {0};
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *values[] = {&at.type, &at.device};
  const CUresult result =
      api->cuPointerGetAttributes(2, attributes, values, (CUdeviceptr)(uintptr_t)address);
  return result == CUDA_SUCCESS ? at : (whereabouts){0};
}

/* Whether the CPU and all devices may use it. */
static bool is_managed(const onepass_cuda_api *api, const void *address) {
  int managed = 0;
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_IS_MANAGED;
  void *value = &managed;
  return api->cuPointerGetAttributes(1, &attribute, &value, (CUdeviceptr)(uintptr_t)address) ==
             CUDA_SUCCESS &&
         managed;
}

onepass_status onepass_cuda_check_memory(const onepass_cuda_device *device, const char *name,
                                         const void *address) {
  const whereabouts at = find_memory(cuda(), address);
  if (at.type == CU_MEMORYTYPE_DEVICE && at.device == device->id) return ONEPASS_OK;
  if (is_managed(cuda(), address)) return ONEPASS_OK;
  if (at.type == CU_MEMORYTYPE_DEVICE) {
    return onepass_fail(ONEPASS_BAD_DEVICE,
                        "%s = %p: expected memory of CUDA device %d, but it is that of device %d",
                        name, address, (int)device->id, at.device);
  }
  return onepass_fail(ONEPASS_BAD_DEVICE,
                      "%s = %p: expected memory of CUDA device %d, but it is the CPU's", name,
                      address, (int)device->id);
}

onepass_status onepass_cuda_check_host_memory(const char *name, const void *address) {
  /* Only where the process uses CUDA already: a CPU run must not be what opens the driver. */
  if (!atomic_load_explicit(&any_device, memory_order_relaxed)) return ONEPASS_OK;
  const whereabouts at = find_memory(cuda(), address);
  if (at.type != CU_MEMORYTYPE_DEVICE || is_managed(cuda(), address)) return ONEPASS_OK;
  return onepass_fail(ONEPASS_BAD_DEVICE,
                      "%s = %p: expected memory of the CPU, but it is that of CUDA device %d", name,
                      address, at.device);
}

/* The default streams have no context of their own. */
onepass_status onepass_cuda_check_stream(const onepass_cuda_device *device, void *stream) {
  if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) return ONEPASS_OK;
  CUcontext context = NULL;
  const CUresult result = cuda()->cuStreamGetCtx(stream, &context);
  if (result != CUDA_SUCCESS) {
    return onepass_fail(ONEPASS_BAD_STREAM, "stream = %p: expected a stream of CUDA device %d",
                        stream, (int)device->id);
  }
  if (context == device->context) return ONEPASS_OK;
  return onepass_fail(ONEPASS_BAD_STREAM,
                      "stream = %p: expected a stream of CUDA device %d's primary context, but it "
                      "is that of another context",
                      stream, (int)device->id);
}

/* ---- Queueing work --------------------------------------------------------------------------- */

onepass_status onepass_cuda_queue(const onepass_cuda_launch *launch, const void *args,
                                  void *stream) {
  CUlaunchAttribute how = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value = {.cooperative = 1}};
  if (!launch->cooperative) {
    how.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    how.value.programmaticStreamSerializationAllowed = 1;
  }
  CUlaunchConfig config = {.gridDimX = (unsigned)launch->grid,
                           .gridDimY = 1,
                           .gridDimZ = 1,
                           .blockDimX = (unsigned)launch->block,
                           .blockDimY = 1,
                           .blockDimZ = 1,
                           .sharedMemBytes = (unsigned)launch->shared,
                           .hStream = stream,
                           .attrs = &how,
                           .numAttrs = launch->cooperative || launch->early};
  void *parameters[] = {(void *)(uintptr_t)args};
  const CUresult result = cuda()->cuLaunchKernelEx(&config, launch->function, parameters, NULL);
  return result == CUDA_SUCCESS ? ONEPASS_OK : refused("launching a kernel", result);
}

onepass_status onepass_cuda_queue_zeros(void *address, size_t bytes, void *stream) {
  const CUresult result =
      cuda()->cuMemsetD32Async((CUdeviceptr)(uintptr_t)address, 0, bytes / 4, stream);
  return result == CUDA_SUCCESS ? ONEPASS_OK : refused("cuMemsetD32Async", result);
}

onepass_status onepass_cuda_allocate(const onepass_cuda_device *device, size_t bytes,
                                     void **address) {
  bool entered;
  *address = NULL;
  onepass_status status = onepass_cuda_enter(device, &entered);
  if (status != ONEPASS_OK) return status;
  CUdeviceptr pointer = 0;
  const CUresult result = cuda()->cuMemAllocAsync(&pointer, bytes, NULL);
  if (result != CUDA_SUCCESS) status = refused("workspace", result);
  *address = (void *)(uintptr_t)pointer;
  onepass_cuda_leave(entered);
  return status;
}

void onepass_cuda_free(const onepass_cuda_device *device, void *address) {
  bool entered;
  if (onepass_cuda_enter(device, &entered) != ONEPASS_OK) return;
  cuda()->cuMemFreeAsync((CUdeviceptr)(uintptr_t)address, NULL);
  onepass_cuda_leave(entered);
}
