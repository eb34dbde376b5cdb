/*
 * Plans, found again by what they were made for, and run.
 *
 * SPDX-License-Identifier: MIT
 *
 * The table is used with the GIL held; only onepass_run goes without. A plan that leaves the table while
 * another thread runs it is destroyed when that is done.
 */
#include <stdlib.h>
#include <string.h>

#include "_binding.h"

#define PLAN_WAYS 4 /* a signature may be in so many neighbouring slots */

struct CachedPlan {
  onepass_plan *plan;
  size_t workspace;
  int users; /* the table and the calls that run it now */
  int words;
  int64_t key[];
};

/* ---- The table ------------------------------------------------------------------------------- */

/* The longest key: the description, threads, roles and device, and shape and strides of each tensor. */
#define KEY_WORDS (24 + ROLES * (1 + 2 * ONEPASS_MAX_NDIM))

static int write_pool(const onepass_pool *pool, int64_t *key) {
  int n = 0;
  key[n++] = 1 | (int)pool->direction << 1 | pool->ceil_mode << 2 | pool->count_include_pad << 3 |
             pool->adaptive << 4 | (int)pool->op << 5 | pool->spatial << 8;
  for (int i = 0; i < pool->spatial && i < 3; i++) {
    key[n++] = pool->kernel[i];
    key[n++] = pool->stride[i];
    key[n++] = pool->padding[i];
    key[n++] = pool->dilation[i];
  }
  key[n++] = pool->divisor;
  memcpy(&key[n++], &pool->p, sizeof pool->p);
  return n;
}

static int write_norm(const onepass_norm *norm, int64_t *key) {
  int n = 0;
  const int flags = (int)norm->direction << 1 | (int)norm->reduction << 2 | norm->clamp << 3 |
                    norm->use_running << 4 | (int)norm->op << 5 | (int)norm->activation << 8;
  key[n++] = (norm->axis * (INT64_C(1) << 16) + norm->axes) * (1 << 16) + flags;
  memcpy(&key[n++], &norm->eps, sizeof norm->eps);
  if (is_by_channel(norm)) {
    key[n++] = norm->groups;
    memcpy(&key[n++], &norm->momentum, sizeof norm->momentum);
  }
  return n;
}

static int write_key(const Call *call, int threads, int64_t *key) {
  int n = call->pools ? write_pool(&call->description.pool, key)
                      : write_norm(&call->description.norm, key);
  key[n++] = (int64_t)threads << 32 | call->present;
  for (int role = 0; role < ROLES; role++) {
    if (!(call->present >> role & 1)) continue;
    const onepass_tensor *tensor = &call->views[role].tensor;
    const int has_strides = tensor->strides != NULL; /* those without are made here: compact */
    key[n++] = (int64_t)tensor->device.id << 32 | has_strides << 20 |
               (int64_t)tensor->device.type << 24 | tensor->ndim << 16 | tensor->dtype.code << 8 |
               tensor->dtype.bits;
    const size_t size = (size_t)tensor->ndim * sizeof(int64_t);
    memcpy(&key[n], tensor->shape, size);
    n += tensor->ndim;
    if (has_strides) {
      memcpy(&key[n], tensor->strides, size);
      n += tensor->ndim;
    }
  }
  return n;
}

static size_t hash_of(const int64_t *key, int words) {
  uint64_t hash = 0;
  for (int i = 0; i < words; i++) {
    hash = (hash ^ (uint64_t)key[i]) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return (size_t)hash;
}

static void release_plan(CachedPlan *cached) {
  if (cached && --cached->users == 0) {
    onepass_plan_destroy(cached->plan);
    free(cached);
  }
}

static onepass_status make_plan(const Call *call, int threads, CachedPlan *cached) {
  const onepass_tensor *tensors[ROLES] = {NULL};
  for (int role = 0; role < ROLES; role++)
    if (call->present >> role & 1) tensors[role] = &call->views[role].tensor;
  onepass_tensors by_name;
  memcpy(&by_name, tensors, sizeof by_name);
  const onepass_options options = {.threads = threads};
  const onepass_status status =
      call->pools ? onepass_plan_pool(&cached->plan, &call->description.pool, &by_name, &options)
                  : onepass_plan_norm(&cached->plan, &call->description.norm, &by_name, &options);
  if (status == ONEPASS_OK) cached->workspace = onepass_plan_workspace(cached->plan);
  return status;
}

/* A free slot, or one whose plan has to go. */
static CachedPlan **slot_for(State *state, size_t first) {
  for (size_t way = 0; way < PLAN_WAYS; way++)
    if (!state->plans[(first + way) % PLAN_SLOTS]) return &state->plans[(first + way) % PLAN_SLOTS];
  return &state->plans[(first + state->next_victim++ % PLAN_WAYS) % PLAN_SLOTS];
}

/* On ONEPASS_OK *found is a plan that the caller releases. */
static onepass_status find_plan(State *state, const Call *call, int threads, CachedPlan **found) {
  int64_t key[KEY_WORDS];
  const int words = write_key(call, threads, key);
  const size_t first = hash_of(key, words);
  for (size_t way = 0; way < PLAN_WAYS; way++) {
    CachedPlan *cached = state->plans[(first + way) % PLAN_SLOTS];
    if (cached && cached->words == words && memcmp(cached->key, key, sizeof *key * words) == 0) {
      cached->users++;
      *found = cached;
      return ONEPASS_OK;
    }
  }
  CachedPlan *cached = calloc(1, sizeof *cached + sizeof *key * words);
  if (!cached) return ONEPASS_OUT_OF_MEMORY;
  const onepass_status status = make_plan(call, threads, cached);
  if (status != ONEPASS_OK) {
    free(cached);
    return status;
  }
  cached->words = words;
  memcpy(cached->key, key, sizeof *key * words);
  cached->users = 2; /* the table and the caller */
  CachedPlan **slot = slot_for(state, first);
  release_plan(*slot);
  *slot = cached;
  *found = cached;
  return ONEPASS_OK;
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Scratch memory for one run: none, on the stack, or allocated on the call's device. */
typedef struct {
  _Alignas(64) char small[4096];
  void *address;
  void *allocated;  /* CPU */
  PyObject *tensor; /* GPU: PyTorch's, so that its allocator and graphs know of it */
} Workspace;

static int get_workspace(const State *state, onepass_device device, size_t size,
                         Workspace *workspace) {
  workspace->address = workspace->allocated = workspace->tensor = NULL;
  if (size == 0) return 0;
  if (device.type == ONEPASS_CPU) {
    workspace->address = workspace->small;
    if (size > sizeof workspace->small) {
      workspace->allocated = aligned_alloc(64, (size + 63) / 64 * 64);
      workspace->address = workspace->allocated;
    }
    return workspace->address ? 0 : (PyErr_NoMemory(), -1);
  }
  workspace->tensor =
      PyObject_CallFunction(state->workspace, "ni", (Py_ssize_t)size, (int)device.id);
  return workspace->tensor ? read_address(state, workspace->tensor, &workspace->address) : -1;
}

static void free_workspace(Workspace *workspace) {
  free(workspace->allocated);
  Py_XDECREF(workspace->tensor);
}

static int get_stream(const State *state, onepass_device device, void **stream) {
  *stream = NULL;
  if (device.type == ONEPASS_CPU) return 0;
  if (state->exchange) return state->exchange->current_stream(device.type, device.id, stream);
  PyObject *address = PyObject_CallFunction(state->stream, "i", (int)device.id);
  if (!address) return -1;
  *stream = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return PyErr_Occurred() ? -1 : 0;
}

/* 1: done. 0: the library does not cover the call, and nothing was written. -1: an exception is set. */
static int judge(onepass_status status) {
  switch (status) {
    case ONEPASS_OK:
      return 1;
    case ONEPASS_OUT_OF_MEMORY:
    case ONEPASS_BAD_WORKSPACE:
    case ONEPASS_BAD_STREAM:
    case ONEPASS_CUDA_ERROR:
      PyErr_Format(PyExc_RuntimeError, "onepass: %s", onepass_last_message());
      return -1;
    default:
      return 0;
  }
}

static int run(State *state, const Call *call, onepass_device device) {
  int threads = 0;
  if (device.type == ONEPASS_CPU) {
    threads = (int)take_integer(PyObject_CallObject(state->threads, NULL));
    if (PyErr_Occurred()) return -1;
  }
  CachedPlan *cached;
  const onepass_status planned = find_plan(state, call, threads, &cached);
  if (planned != ONEPASS_OK) return judge(planned);

  Workspace workspace;
  void *stream;
  int result = -1;
  if (get_workspace(state, device, cached->workspace, &workspace) == 0 &&
      get_stream(state, device, &stream) == 0) {
    void *addresses[ROLES] = {NULL};
    for (int role = 0; role < ROLES; role++)
      if (call->present >> role & 1)
        addresses[role] =
            (char *)call->views[role].tensor.data + call->views[role].tensor.byte_offset;
    onepass_buffers buffers;
    memcpy(&buffers, addresses, sizeof buffers);
    PyThreadState *thread = PyEval_SaveThread();
    const onepass_status status =
        onepass_run(cached->plan, &buffers, workspace.address, cached->workspace, stream);
    PyEval_RestoreThread(thread);
    result = judge(status);
  }
  free_workspace(&workspace);
  release_plan(cached);
  return result;
}

PyObject *finish(State *state, const Call *call, onepass_device device, PyObject *outputs) {
  const int done = run(state, call, device);
  if (done == 1) return outputs;
  Py_DECREF(outputs);
  if (done == 0) Py_RETURN_NONE;
  return NULL;
}

PyObject *not_covered(PyObject *outputs) {
  Py_XDECREF(outputs);
  PyErr_Clear();
  Py_RETURN_NONE;
}
