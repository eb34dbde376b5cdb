/* SPDX-License-Identifier: MIT */
#include "gpu.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, WORKSPACE_PATTERN = 0x5A, STAGE_BYTES = 16 << 20, MOST_COPIES = 2 * ROLES };

const onepass_cuda_api *gpu;
/* Memory of the host that the device reaches by itself. All copies go through it. */
static unsigned char *stage;
static pthread_mutex_t stage_lock = PTHREAD_MUTEX_INITIALIZER;
static int device_in_use = -1;

const char *const gpu_kernel_name[ONEPASS_CUDA_KERNEL_COUNT] = {
    [ONEPASS_CUDA_BEST] = "best",       [ONEPASS_CUDA_WARPS] = "warps",
    [ONEPASS_CUDA_BLOCKS] = "blocks",   [ONEPASS_CUDA_RING] = "ring",
    [ONEPASS_CUDA_STREAM] = "stream",   [ONEPASS_CUDA_PASSES] = "passes",
    [ONEPASS_CUDA_COLUMNS] = "columns", [ONEPASS_CUDA_STRIDED] = "strided",
    [ONEPASS_CUDA_WINDOWS] = "windows", [ONEPASS_CUDA_POINTS] = "points",
};

/* What ran last: an error may be its. */
static gpu_label ran_last;

void gpu_require(CUresult result, const char *what, const char *file, int line) {
  const char *name = NULL;
  if (result == CUDA_SUCCESS) return;
  gpu->cuGetErrorName(result, &name);
  fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, name ? name : "an unknown error");
  if (ran_last.text[0]) fprintf(stderr, "after %s\n", ran_last.text);
  exit(1);
}

/* ---- Devices and contexts -------------------------------------------------------------------- */

int gpu_count(void) {
  int count = 0;
  GPU(cuDeviceGetCount(&count));
  return count;
}

static CUdevice device_of(int id) {
  CUdevice device;
  GPU(cuDeviceGet(&device, id));
  return device;
}

int gpu_major(void) {
  int major = 0;
  GPU(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                           device_of(device_in_use)));
  return major;
}

int64_t gpu_l2(void) {
  int size = 0;
  GPU(cuDeviceGetAttribute(&size, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device_of(device_in_use)));
  return size;
}

CUcontext gpu_current(void) {
  CUcontext context = NULL;
  GPU(cuCtxGetCurrent(&context));
  return context;
}

void gpu_enter(int id) {
  CUcontext context;
  if (gpu_current()) GPU(cuCtxPopCurrent(&context));
  GPU(cuDevicePrimaryCtxRetain(&context, device_of(id)));
  GPU(cuCtxPushCurrent(context));
  device_in_use = id;
}

static void expect_onepass_knows_them(const char *test) {
  int32_t known = -1;
  onepass_status status = onepass_get_cuda_count(&known);
  if (status == ONEPASS_OK && known == gpu_count()) return;
  fprintf(stderr, "%s: the driver has %d devices, onepass %d: %s\n", test, gpu_count(), (int)known,
          status == ONEPASS_OK ? "no error" : onepass_last_message());
  exit(1);
}

/* A function of the driver that only tests want, by its symbol: so that the library does not ask
 * every driver for it, and because cuda.h gives cuCtxCreate other arguments in every other version.
 */
static void find_symbol(const char *name, void *function, size_t size) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void *symbol = library ? dlsym(library, name) : NULL;
  if (symbol == NULL) {
    fprintf(stderr, "the driver has no %s\n", name);
    exit(1);
  }
  memcpy(function, &symbol, size);
}

static void make_stage(void) {
  CUresult (*allocate)(void **, size_t, unsigned);
  find_symbol("cuMemHostAlloc", &allocate, sizeof allocate);
  gpu_require(allocate((void **)&stage, STAGE_BYTES, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc",
              __FILE__, __LINE__);
}

static void free_stage(void) {
  CUresult (*release)(void *);
  find_symbol("cuMemFreeHost", &release, sizeof release);
  gpu_require(release(stage), "cuMemFreeHost", __FILE__, __LINE__);
}

int gpu_open(const char *test) {
  const char *reason = "";
  gpu = onepass_cuda_open(&reason);
  if (gpu == NULL || gpu_count() == 0) {
    printf("skip: %s: %s\n", test, gpu ? "the driver has no device" : reason);
    return 0;
  }
  expect_onepass_knows_them(test);
  gpu_enter(0);
  if (gpu_major() < 8) {
    printf("skip: %s: the device has compute capability %d, onepass needs 8.0\n", test,
           gpu_major());
    return 0;
  }
  make_stage();
  return 1;
}

CUcontext gpu_context_new(void) {
  CUresult (*create)(CUcontext *, unsigned, CUdevice);
  CUcontext context = NULL;
  find_symbol("cuCtxCreate_v2", &create, sizeof create);
  gpu_require(create(&context, 0, device_of(device_in_use)), "cuCtxCreate", __FILE__, __LINE__);
  return context;
}

void gpu_context_free(CUcontext context) {
  CUresult (*destroy)(CUcontext);
  find_symbol("cuCtxDestroy_v2", &destroy, sizeof destroy);
  gpu_require(destroy(context), "cuCtxDestroy", __FILE__, __LINE__);
}

void gpu_close(void) {
  CUresult (*reset)(CUdevice);
  GPU(cuCtxSynchronize());
  free_stage();
  find_symbol("cuDevicePrimaryCtxReset_v2", &reset, sizeof reset);
  gpu_require(reset(device_of(device_in_use)), "cuDevicePrimaryCtxReset", __FILE__, __LINE__);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static CUdeviceptr address_of(const void *memory) { return (CUdeviceptr)(uintptr_t)memory; }

void *gpu_allocate(size_t size) {
  CUdeviceptr memory = 0;
  GPU(cuMemAlloc(&memory, size ? size : 1));
  return (void *)(uintptr_t)memory;
}

void gpu_free(void *memory) {
  if (memory) GPU(cuMemFree(address_of(memory)));
}

/* Which together fit into the stage. */
static void copy_at_once(const gpu_copy *copies, int count, int to_device) {
  unsigned char *at = stage;
  for (int i = 0; i < count; at += copies[i++].size) {
    if (to_device) {
      memcpy(at, copies[i].host, copies[i].size);
      GPU(cuMemcpyHtoDAsync(address_of(copies[i].device), at, copies[i].size, NULL));
    } else {
      GPU(cuMemcpyDtoHAsync(at, address_of(copies[i].device), copies[i].size, NULL));
    }
  }
  GPU(cuCtxSynchronize()); /* other streams do not wait for this one */
  at = stage;
  for (int i = 0; i < count && !to_device; at += copies[i++].size) {
    memcpy(copies[i].host, at, copies[i].size);
  }
}

static void copy_all(const gpu_copy *copies, int count, int to_device) {
  gpu_copy parts[MOST_COPIES];
  int used = 0;
  size_t room = STAGE_BYTES;
  pthread_mutex_lock(&stage_lock);
  for (int i = 0; i < count; i++) {
    for (size_t done = 0; done < copies[i].size;) {
      const size_t left = copies[i].size - done;
      gpu_copy *part = &parts[used++];
      *part = (gpu_copy){(char *)copies[i].device + done, (char *)copies[i].host + done,
                         left < room ? left : room};
      done += part->size;
      room -= part->size;
      if (room && used < MOST_COPIES) continue;
      copy_at_once(parts, used, to_device);
      used = 0;
      room = STAGE_BYTES;
    }
  }
  copy_at_once(parts, used, to_device);
  pthread_mutex_unlock(&stage_lock);
}

void gpu_to_device(const gpu_copy *copies, int count) { copy_all(copies, count, 1); }

void gpu_to_host(const gpu_copy *copies, int count) { copy_all(copies, count, 0); }

size_t gpu_free_memory(void) {
  size_t free_bytes = 0, all = 0;
  GPU(cuMemGetInfo(&free_bytes, &all));
  return free_bytes;
}

gpu_workspace gpu_workspace_new(const onepass_plan *plan) {
  gpu_workspace workspace = {NULL, onepass_plan_workspace(plan), NULL};
  if (workspace.size == 0) return workspace;
  workspace.block = gpu_allocate(GUARD + workspace.size + GUARD);
  workspace.address = (unsigned char *)workspace.block + GUARD;
  GPU(cuMemsetD8Async(address_of(workspace.block), WORKSPACE_PATTERN,
                      GUARD + workspace.size + GUARD, NULL));
  GPU(cuCtxSynchronize());
  return workspace;
}

void gpu_workspace_free(gpu_workspace *workspace) {
  gpu_free(workspace->block);
  *workspace = (gpu_workspace){NULL, 0, NULL};
}

static void *allocate_host(size_t size) {
  void *memory = malloc(size ? size : 1);
  if (memory == NULL) {
    fprintf(stderr, "the test has no memory for %zu bytes\n", size);
    exit(2);
  }
  return memory;
}

void gpu_workspace_scramble(const gpu_workspace *workspace, uint64_t seed) {
  if (workspace->size == 0) return;
  unsigned char *bytes = allocate_host(workspace->size);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  memset(bytes, 0xFF, workspace->size);
  for (size_t i = 0; seed && i < workspace->size; i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    bytes[i] = (unsigned char)(state >> 32);
  }
  gpu_to_device(&(gpu_copy){workspace->address, bytes, workspace->size}, 1);
  free(bytes);
}

int gpu_workspace_guards_hold(const gpu_workspace *workspace) {
  unsigned char guards[2][GUARD], *block = workspace->block;
  if (workspace->size == 0) return 1;
  GPU(cuCtxSynchronize());
  gpu_to_host(
      (gpu_copy[]){{block, guards[0], GUARD}, {block + GUARD + workspace->size, guards[1], GUARD}},
      2);
  for (int i = 0; i < 2 * GUARD; i++) {
    if (guards[i / GUARD][i % GUARD] != WORKSPACE_PATTERN) return 0;
  }
  return 1;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

gpu_call *gpu_call_new(call *host) {
  gpu_call *g = calloc(1, sizeof *g);
  if (g == NULL) exit(2);
  g->call = *host;
  for (int r = 0; r < ROLES; r++) {
    if (host->role[r] == NULL) continue;
    array *a = &g->arrays[r];
    *a = *host->role[r];
    a->block = NULL; /* elements are not for the host */
    a->tensor.data = gpu_allocate(a->block_size);
    a->tensor.device = (onepass_device){ONEPASS_CUDA, device_in_use};
    a->tensor.shape = a->shape;
    a->tensor.strides = a->strides;
    g->call.role[r] = a;
  }
  gpu_upload(g, host);
  return g;
}

void gpu_call_free(gpu_call *g) {
  if (g == NULL) return;
  for (int r = 0; r < ROLES; r++) {
    if (g->call.role[r]) gpu_free(g->arrays[r].tensor.data);
  }
  free(g);
}

void gpu_upload(gpu_call *g, call *host) {
  gpu_copy copies[ROLES];
  int count = 0;
  for (int r = 0; r < ROLES; r++) {
    array *a = host->role[r];
    if (a == NULL) continue;
    if (role_is_output(host->kind, (enum role)r)) array_repaint(a);
    copies[count++] = (gpu_copy){g->arrays[r].tensor.data, a->block, a->block_size};
  }
  gpu_to_device(copies, count);
}

int gpu_download(const gpu_call *g, call *host) {
  gpu_copy copies[ROLES];
  const array *inputs[ROLES];
  int count = 0, inputs_hold = 1;
  GPU(cuCtxSynchronize());
  for (int r = 0; r < ROLES; r++) {
    array *a = host->role[r];
    if (a == NULL) continue;
    const int is_input = !role_is_output(host->kind, (enum role)r);
    inputs[count] = is_input ? a : NULL;
    copies[count++] =
        (gpu_copy){g->arrays[r].tensor.data,
                   is_input ? allocate_host(a->block_size) : (void *)a->block, a->block_size};
  }
  gpu_to_host(copies, count);
  for (int i = 0; i < count; i++) {
    if (inputs[i] == NULL) continue;
    inputs_hold &= memcmp(copies[i].host, inputs[i]->block, inputs[i]->block_size) == 0;
    free(copies[i].host);
  }
  return inputs_hold;
}

onepass_status gpu_run(const onepass_plan *plan, const gpu_call *g, const gpu_workspace *workspace,
                       CUstream stream) {
  onepass_tensors tensors = call_tensors(&g->call);
  onepass_buffers buffers = buffers_of(&tensors);
  ran_last = gpu_label_of(g);
  return onepass_run(plan, &buffers, workspace->address, workspace->size, stream);
}

onepass_status gpu_run_once(const gpu_call *g, CUstream stream) {
  onepass_plan *plan = NULL;
  onepass_status status = call_plan(&g->call, &plan);
  if (status != ONEPASS_OK) return status;
  gpu_workspace workspace = gpu_workspace_new(plan);
  status = gpu_run(plan, g, &workspace, stream);
  GPU(cuCtxSynchronize());
  gpu_workspace_free(&workspace);
  onepass_plan_destroy(plan);
  return status;
}

gpu_label gpu_label_of(const gpu_call *g) {
  gpu_label label;
  const call *c = &g->call;
  const array *x = c->role[X] ? c->role[X] : c->role[DX];
  const int kernel = c->options.cuda_kernel;
  const int known = kernel >= 0 && kernel < ONEPASS_CUDA_KERNEL_COUNT;
  int used = snprintf(label.text, sizeof label.text, "%s of %s ", kind_name[c->kind],
                      dtype_name(x->tensor.dtype));
  for (int d = 0; d < x->tensor.ndim; d++) {
    used += snprintf(label.text + used, sizeof label.text - (size_t)used, "%s%" PRId64,
                     d ? "x" : "", x->shape[d]);
  }
  snprintf(label.text + used, sizeof label.text - (size_t)used, ", axis %d, kernel %s",
           (int)c->norm.axis, known ? gpu_kernel_name[kernel] : "out of range");
  return label;
}
