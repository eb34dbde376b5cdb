/* SPDX-License-Identifier: MIT */
#include "gpu.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, WORKSPACE_PATTERN = 0x5A };

const onepass_cuda_api *gpu;
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
  return 1;
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

/* A copy from ordinary memory may still be under way when it returns, and other streams do not wait
 * for it. */
void gpu_to_device(void *device, const void *host, size_t size) {
  GPU(cuMemcpyHtoD(address_of(device), host, size));
  GPU(cuCtxSynchronize());
}

void gpu_to_host(void *host, const void *device, size_t size) {
  GPU(cuMemcpyDtoH(host, address_of(device), size));
}

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
  gpu_to_device(workspace->address, bytes, workspace->size);
  free(bytes);
}

static int guard_holds(const unsigned char *device) {
  unsigned char bytes[GUARD];
  gpu_to_host(bytes, device, GUARD);
  for (int i = 0; i < GUARD; i++) {
    if (bytes[i] != WORKSPACE_PATTERN) return 0;
  }
  return 1;
}

int gpu_workspace_guards_hold(const gpu_workspace *workspace) {
  if (workspace->size == 0) return 1;
  const unsigned char *block = workspace->block;
  GPU(cuCtxSynchronize());
  return guard_holds(block) && guard_holds(block + GUARD + workspace->size);
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
  for (int r = 0; r < ROLES; r++) {
    if (host->role[r] == NULL) continue;
    if (role_is_output(host->kind, (enum role)r)) array_repaint(host->role[r]);
    gpu_to_device(g->arrays[r].tensor.data, host->role[r]->block, host->role[r]->block_size);
  }
}

static int is_as_on_host(const array *device, const array *host) {
  unsigned char *bytes = allocate_host(host->block_size);
  gpu_to_host(bytes, device->tensor.data, host->block_size);
  int same = memcmp(bytes, host->block, host->block_size) == 0;
  free(bytes);
  return same;
}

int gpu_download(const gpu_call *g, call *host) {
  int inputs_hold = 1;
  GPU(cuCtxSynchronize());
  for (int r = 0; r < ROLES; r++) {
    if (host->role[r] == NULL) continue;
    if (role_is_output(host->kind, (enum role)r)) {
      gpu_to_host(host->role[r]->block, g->arrays[r].tensor.data, host->role[r]->block_size);
    } else {
      inputs_hold &= is_as_on_host(&g->arrays[r], host->role[r]);
    }
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
