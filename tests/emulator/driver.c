/*
 * libcuda.so.1 for the emulated GPU: as much of the CUDA driver as onepass and its tests call. Work that is
 * queued on a stream is done at once, unless the stream is captured. Two devices, so that what is said about
 * the other one can be tried. A module's image is not machine code but the path of a shared library with the
 * same kernels, compiled from kernels.cpp.
 *
 * SPDX-License-Identifier: MIT
 */
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "machine.h"
#include "norm/cells.h"
#include "norm/cuda.h"
#include "pool/cuda.h"

/* As small as may be, so that small tensors already are too large for this and that. */
enum {
  DEVICES = 2,
  MULTIPROCESSORS = 4,
  SHARED_OF_MULTIPROCESSOR = 228 * 1024,
  THREADS_OF_MULTIPROCESSOR = 2048,
  KERNEL_SHARED = 1024, /* kept by the system for every block */
  L2 = 1 << 20,
  ALIGNMENT = 512 /* of memory */
};
static const size_t MEMORY = (size_t)1 << 30;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- Devices and contexts ------------------------------------------------------------------------------- */

struct CUctx_st {
  CUdevice device;
  bool is_gone;
};
static struct CUctx_st primaries[DEVICES] = {{.device = 0}, {.device = 1}};

enum { MOST_CONTEXTS = 16 };
static __thread CUcontext contexts[MOST_CONTEXTS];
static __thread int context_count;

static CUcontext current(void) { return context_count ? contexts[context_count - 1] : NULL; }

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

static const struct {
  CUresult result;
  const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
     "too many blocks in cooperative launch"},
};

CUresult cuGetErrorName(CUresult result, const char **name) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    *name = errors[i].name;
    if (errors[i].result == result) return CUDA_SUCCESS;
  }
  *name = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char **text) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    *text = errors[i].text;
    if (errors[i].result == result) return CUDA_SUCCESS;
  }
  *text = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count) {
  *count = DEVICES;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  if (ordinal < 0 || ordinal >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  snprintf(name, (size_t)size, "emulated GPU %d", device);
  return CUDA_SUCCESS;
}

/* Compute capability 9.0, unless a test wants another. */
static int capability(void) {
  const char *wanted = getenv("EMULATED_CAPABILITY");
  return wanted ? atoi(wanted) : 90;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  if (device < 0 || device >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
  switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = capability() / 10;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = capability() % 10;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = MULTIPROCESSORS;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = MACHINE_SHARED_BYTES;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = SHARED_OF_MULTIPROCESSOR;
      break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = L2;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  (void)device;
  *bytes = MEMORY;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  if (device < 0 || device >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
  *context = &primaries[device];
  return CUDA_SUCCESS;
}

/* cuda.h changes its arguments from version to version. */
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
  (void)flags;
  *context = calloc(1, sizeof **context);
  if (!*context) return CUDA_ERROR_OUT_OF_MEMORY;
  (*context)->device = device;
  return cuCtxPushCurrent(*context);
}

CUresult cuCtxDestroy(CUcontext context) {
  free(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = current();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  if (!context || context_count == MOST_CONTEXTS) return CUDA_ERROR_INVALID_CONTEXT;
  contexts[context_count++] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (context_count) context_count--;
  return context ? cuCtxPushCurrent(context) : CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context) {
  if (!context_count) return CUDA_ERROR_INVALID_CONTEXT;
  *context = contexts[--context_count];
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) { return current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }

/* ---- Memory --------------------------------------------------------------------------------------------- */

/* From malloc, each by itself: what watches malloc watches the kernels, too. */
typedef struct allocation {
  char *address;
  size_t bytes;
  CUdevice device;
  struct allocation *next;
} allocation;
static allocation *allocations;
static size_t in_use[DEVICES];

static allocation *find(CUdeviceptr address) {
  allocation *a = allocations;
  while (a && !((char *)address >= a->address && (char *)address < a->address + a->bytes)) {
    a = a->next;
  }
  return a;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
  CUcontext context = current();
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  if (bytes <= MEMORY - in_use[context->device]) {
    allocation *a = malloc(sizeof *a);
    void *memory = NULL;
    if (a && !posix_memalign(&memory, ALIGNMENT, bytes)) {
      memset(memory, 0xCD, bytes);
      *a = (allocation){memory, bytes, context->device, allocations};
      allocations = a;
      in_use[a->device] += bytes;
      *address = (CUdeviceptr)(uintptr_t)memory;
      result = CUDA_SUCCESS;
    } else {
      free(a);
    }
  }
  pthread_mutex_unlock(&lock);
  return result;
}

CUresult cuMemFree(CUdeviceptr address) {
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  if (!address) return CUDA_SUCCESS;
  pthread_mutex_lock(&lock);
  for (allocation **a = &allocations; *a; a = &(*a)->next) {
    if ((*a)->address != (char *)(uintptr_t)address) continue;
    allocation *gone = *a;
    *a = gone->next;
    in_use[gone->device] -= gone->bytes;
    free(gone->address);
    free(gone);
    result = CUDA_SUCCESS;
    break;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *all) {
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  *all = MEMORY;
  *free_bytes = MEMORY - in_use[current()->device];
  return CUDA_SUCCESS;
}

/* The end of a device. Whoever still has memory there has lost it. */
CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  if (in_use[device])
    machine_fault("%zu bytes of device %d were not freed", in_use[device], device);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                CUdeviceptr address) {
  pthread_mutex_lock(&lock);
  const allocation *a = find(address);
  for (unsigned i = 0; i < count; i++) {
    switch ((int)attributes[i]) {
      case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)values[i] = a ? CU_MEMORYTYPE_DEVICE : 0;
        break;
      case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)values[i] = a ? a->device : -2;
        break;
      default:
        *(int *)values[i] = 0;
    }
  }
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

/* ---- Work: done now, or kept by a graph ----------------------------------------------------------------- */

struct CUfunc_st {
  machine_kernel *kernel;
  char name[80];
};

typedef struct task {
  enum { KERNEL, COPY, FILL } kind;
  CUfunction function;
  unsigned blocks, threads;
  int together;
  machine_arguments arguments;
  char *to;
  const char *from;
  size_t bytes;
  unsigned value, size_of_value;
  struct task *next;
} task;

struct CUgraph_st {
  task *first, **end;
};
struct CUgraphExec_st {
  struct CUgraph_st graph;
};
struct CUstream_st {
  CUcontext context;
  CUgraph captured;
  struct CUstream_st *next;
};
static struct CUstream_st *streams;

static bool is_default(CUstream stream) {
  return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static bool is_known(CUstream stream) {
  pthread_mutex_lock(&lock);
  const struct CUstream_st *s = streams;
  while (s && s != stream) s = s->next;
  pthread_mutex_unlock(&lock);
  return s != NULL;
}

static void do_task(const task *t) {
  switch (t->kind) {
    case KERNEL:
      machine_launch(t->function->kernel, t->function->name, t->blocks, t->threads, t->together,
                     &t->arguments);
      break;
    case COPY:
      memmove(t->to, t->from, t->bytes);
      break;
    case FILL:
      for (size_t i = 0; i < t->bytes; i += t->size_of_value) {
        memcpy(t->to + i, &t->value, t->size_of_value);
      }
  }
}

static CUresult add_task(CUgraph graph, const task *t) {
  task *kept = malloc(sizeof *kept);
  if (!kept) return CUDA_ERROR_OUT_OF_MEMORY;
  *kept = *t;
  kept->next = NULL;
  *graph->end = kept;
  graph->end = &kept->next;
  return CUDA_SUCCESS;
}

static CUresult queue(CUstream stream, const task *t) {
  if (!is_default(stream)) {
    if (!is_known(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (stream->captured) return add_task(stream->captured, t);
  } else if (!current()) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  do_task(t);
  return CUDA_SUCCESS;
}

static CUresult queue_copy(CUstream stream, void *to, const void *from, size_t bytes) {
  return queue(stream, &(task){.kind = COPY, .to = to, .from = from, .bytes = bytes});
}
static void *at(CUdeviceptr address) { return (void *)(uintptr_t)address; }

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
  (void)flags;
  *memory = malloc(bytes);
  return *memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemFreeHost(void *memory) {
  free(memory);
  return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
  (void)stream;
  return cuMemAlloc(address, bytes);
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  (void)stream;
  return cuMemFree(address);
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
  return queue_copy(NULL, at(to), from, bytes);
}
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
  return queue_copy(NULL, to, at(from), bytes);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
  return queue_copy(stream, at(to), from, bytes);
}
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return queue_copy(stream, to, at(from), bytes);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return queue_copy(stream, at(to), at(from), bytes);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return queue(
      stream,
      &(task){.kind = FILL, .to = at(to), .bytes = count, .value = value, .size_of_value = 1});
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return queue(
      stream,
      &(task){.kind = FILL, .to = at(to), .bytes = 4 * count, .value = value, .size_of_value = 4});
}

/* ---- Kernels -------------------------------------------------------------------------------------------- */

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  char path[4096] = {0};
  const char *text = image;
  for (size_t i = 0; i < sizeof path - 1 && text[i] && text[i] != '\n'; i++) path[i] = text[i];
  *module = path[0] == '/' ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!*module) fprintf(stderr, "the emulated GPU: no kernels: %s\n", dlerror());
  return *module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

/* They live as long as the process, as those of a module that is never unloaded do. */
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  static struct CUfunc_st functions[4096];
  static int count;
  void *symbol = dlsym(module, name);
  if (!symbol) return CUDA_ERROR_NOT_FOUND;
  pthread_mutex_lock(&lock);
  struct CUfunc_st *f = &functions[count++];
  pthread_mutex_unlock(&lock);
  memcpy(&f->kernel, &symbol, sizeof symbol);
  snprintf(f->name, sizeof f->name, "%s", name);
  *function = f;
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  (void)function, (void)attribute;
  *value = 0;
  return CUDA_SUCCESS;
}

static size_t arguments_of(const char *kernel) {
  const struct {
    const char *prefix;
    size_t bytes;
  } kinds[] = {{"cells_", sizeof(onepass_cells_args)},  {"abs_", sizeof(onepass_norm_args)},
               {"squares_", sizeof(onepass_norm_args)}, {"moments_", sizeof(onepass_norm_args)},
               {"windows_", sizeof(onepass_pool_args)}, {"points_", sizeof(onepass_point_args)},
               {"", sizeof(onepass_box_args)}};
  int i = 0;
  while (strncmp(kernel, kinds[i].prefix, strlen(kinds[i].prefix))) i++;
  return kinds[i].bytes;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra) {
  task t = {.kind = KERNEL,
            .function = function,
            .blocks = config->gridDimX,
            .threads = config->blockDimX};
  for (unsigned i = 0; i < config->numAttrs; i++) {
    t.together |= config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE &&
                  config->attrs[i].value.cooperative;
  }
  if (extra || !t.blocks || t.blocks > 0x7fffffff || !t.threads ||
      t.threads > MACHINE_MOST_THREADS || config->sharedMemBytes > MACHINE_SHARED_BYTES) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const unsigned by_shared = SHARED_OF_MULTIPROCESSOR / (config->sharedMemBytes + KERNEL_SHARED);
  const unsigned by_threads = THREADS_OF_MULTIPROCESSOR / t.threads;
  const unsigned at_once = MULTIPROCESSORS * (by_shared < by_threads ? by_shared : by_threads);
  if (t.together && t.blocks > at_once) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  memcpy(t.arguments.bytes, parameters[0], arguments_of(function->name));
  return queue(config->hStream, &t);
}

/* ---- Streams, graphs and events ------------------------------------------------------------------------- */

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  (void)flags;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  *stream = calloc(1, sizeof **stream);
  if (!*stream) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  (*stream)->context = current();
  (*stream)->next = streams;
  streams = *stream;
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&lock);
  for (struct CUstream_st **s = &streams; *s; s = &(*s)->next) {
    if (*s != stream) continue;
    *s = stream->next;
    free(stream);
    result = CUDA_SUCCESS;
    break;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

CUresult cuStreamSynchronize(CUstream stream) {
  return is_default(stream) || is_known(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
  if (!is_default(stream) && !is_known(stream)) return CUDA_ERROR_INVALID_HANDLE;
  *context = is_default(stream) ? current() : stream->context;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  (void)mode;
  return CUDA_SUCCESS;
}

static CUgraph new_graph(void) {
  CUgraph graph = calloc(1, sizeof *graph);
  if (graph) graph->end = &graph->first;
  return graph;
}

static void free_tasks(CUgraph graph) {
  for (task *t = graph->first, *next; t; t = next) {
    next = t->next;
    free(t);
  }
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  (void)mode;
  if (is_default(stream) || stream->captured) return CUDA_ERROR_INVALID_VALUE;
  stream->captured = new_graph();
  return stream->captured ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  *graph = stream->captured;
  stream->captured = NULL;
  return *graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                     unsigned long long flags) {
  (void)flags;
  *executable = calloc(1, sizeof **executable);
  if (!*executable) return CUDA_ERROR_OUT_OF_MEMORY;
  (*executable)->graph.end = &(*executable)->graph.first;
  for (const task *t = graph->first; t; t = t->next) add_task(&(*executable)->graph, t);
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  CUresult result = CUDA_SUCCESS;
  for (const task *t = executable->graph.first; t && result == CUDA_SUCCESS; t = t->next) {
    result = queue(stream, t);
  }
  return result;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  free_tasks(&executable->graph);
  free(executable);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  free_tasks(graph);
  free(graph);
  return CUDA_SUCCESS;
}

struct CUevent_st {
  struct timespec when;
};

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof **event);
  return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuEventDestroy(CUevent event) {
  free(event);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  (void)stream;
  timespec_get(&event->when, TIME_UTC);
  return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
  *milliseconds = (float)((double)(to->when.tv_sec - from->when.tv_sec) * 1e3 +
                          (double)(to->when.tv_nsec - from->when.tv_nsec) * 1e-6);
  return CUDA_SUCCESS;
}
