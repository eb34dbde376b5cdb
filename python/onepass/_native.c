/*
 * onepass._native: the C library for PyTorch's tensors.
 *
 * SPDX-License-Identifier: MIT
 *
 * A tensor is known here by its address, shape, strides, type and device only. They are read through
 * DLPack's table of C functions, which PyTorch's tensor class has from 2.10 on, or else from the
 * tensor's attributes. So no header of PyTorch's is needed, and one binary serves every version of it
 * and, by the stable ABI, of Python.
 *
 * An operator either does the work and returns new tensors, or finds that the library does not cover
 * the call and returns None. The caller then goes to PyTorch's own operator, which does it or says what
 * is wrong.
 *
 * Everything that touches the plans runs with the GIL held; only onepass_run does not.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03080000
#include <Python.h>

#include <onepass.h>
#include <stdlib.h>
#include <string.h>

/* ---- What PyTorch tells us once ------------------------------------------------------------------ */

/* DLPack's DLPackExchangeAPI, major version 1. onepass_tensor has the layout of its DLTensor. */
typedef struct {
  struct {
    uint32_t major, minor;
    void *previous;
  } header;
  void *allocate, *from_object, *to_object;
  int (*view)(void *object, onepass_tensor *tensor);
  int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} Exchange;

#define PLAN_SLOTS 1024
#define PLAN_WAYS  4 /* a signature may be in so many neighbouring slots */

typedef struct {
  onepass_plan *plan;
  size_t workspace;
  int users; /* the table and the calls that run it now */
  int words;
  int64_t key[];
} CachedPlan;

typedef struct {
  const Exchange *exchange; /* NULL before 2.10 */
  PyObject *tensor_type, *parameter_type;
  PyObject *modes; /* a tuple of functions; if one gives a true value, somebody is watching */
  PyObject *grad_enabled;
  PyObject *forward_ad; /* the module; its _current_level is -1 outside of forward-mode AD */
  PyObject *threads;    /* how many threads PyTorch would use */
  PyObject *stream;     /* device index -> address of the current stream */
  PyObject *workspace;  /* bytes, device index -> a tensor that is scratch memory */
  PyObject *empty_like; /* torch.empty_like */
  PyObject *contiguous; /* its keyword arguments for a contiguous tensor */
  PyObject *float32;    /* Tensor.new_empty's keyword arguments for torch.float32 */
  PyObject *dtypes;     /* torch.dtype -> (code, bits) */
  PyObject *name_data_ptr, *name_shape, *name_stride, *name_dtype, *name_is_cpu, *name_get_device,
      *name_is_neg, *name_requires_grad, *name_new_empty, *name_current_level;
  CachedPlan *plans[PLAN_SLOTS];
  unsigned next_victim;
} State;

/* ---- Reading tensors ----------------------------------------------------------------------------- */

typedef struct {
  onepass_tensor tensor;
  int64_t shape[ONEPASS_MAX_NDIM],
      strides[ONEPASS_MAX_NDIM]; /* where PyTorch does not lend its own */
} View;

static PyObject *call_method(PyObject *object, PyObject *name) {
  return PyObject_CallMethodObjArgs(object, name, NULL);
}

/* An int64_t out of an object that is consumed; -1 with an exception set if it is none. */
static int64_t take_integer(PyObject *object) {
  if (!object) return -1;
  const int64_t value = PyLong_AsLongLong(object);
  Py_DECREF(object);
  return value;
}

/* Whether an object that is consumed is true; -1 with an exception set if that cannot be told. */
static int take_truth(PyObject *object) {
  if (!object) return -1;
  const int truth = PyObject_IsTrue(object);
  Py_DECREF(object);
  return truth;
}

/* The lengths in a tuple that is consumed, or -1. */
static int take_lengths(PyObject *tuple, int64_t *lengths) {
  if (!tuple) return -1;
  const Py_ssize_t count = PyTuple_Size(tuple);
  int ndim = count <= ONEPASS_MAX_NDIM ? (int)count : -1;
  for (int i = 0; i < ndim; i++) {
    lengths[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    if (lengths[i] == -1 && PyErr_Occurred()) ndim = -1;
  }
  Py_DECREF(tuple);
  return ndim;
}

static int read_address(const State *state, PyObject *object, void **address) {
  PyObject *number = call_method(object, state->name_data_ptr);
  if (!number) return -1;
  *address = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return PyErr_Occurred() ? -1 : 0;
}

static int read_attributes(const State *state, PyObject *object, View *view) {
  onepass_tensor *tensor = &view->tensor;
  tensor->ndim = take_lengths(PyObject_GetAttr(object, state->name_shape), view->shape);
  if (tensor->ndim < 0 ||
      take_lengths(call_method(object, state->name_stride), view->strides) != tensor->ndim)
    return -1;
  tensor->shape = view->shape;
  tensor->strides = view->strides;
  tensor->byte_offset = 0;

  PyObject *dtype = PyObject_GetAttr(object, state->name_dtype);
  if (!dtype) return -1;
  PyObject *code_and_bits = PyDict_GetItem(state->dtypes, dtype);
  Py_DECREF(dtype);
  if (!code_and_bits) return -1;
  tensor->dtype.code = (uint8_t)PyLong_AsLong(PyTuple_GetItem(code_and_bits, 0));
  tensor->dtype.bits = (uint8_t)PyLong_AsLong(PyTuple_GetItem(code_and_bits, 1));
  tensor->dtype.lanes = 1;

  PyObject *is_cpu = PyObject_GetAttr(object, state->name_is_cpu);
  if (!is_cpu) return -1;
  const int on_cpu = is_cpu == Py_True;
  Py_DECREF(is_cpu);
  tensor->device.type = on_cpu ? ONEPASS_CPU : ONEPASS_CUDA;
  tensor->device.id =
      on_cpu ? 0 : (int32_t)take_integer(call_method(object, state->name_get_device));

  PyObject *address = call_method(object, state->name_data_ptr);
  if (!address) return -1;
  tensor->data = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return PyErr_Occurred() ? -1 : 0;
}

static int is_compact(const onepass_tensor *tensor) {
  int64_t expected = 1;
  for (int i = tensor->strides ? tensor->ndim - 1 : -1; i >= 0; i--) {
    if (tensor->strides[i] != expected) return 0;
    expected *= tensor->shape[i] > 0 ? tensor->shape[i] : 1; /* as PyTorch counts */
  }
  return 1;
}

/* -1, perhaps with an exception set, for what the library cannot know as a tensor. */
static int read_tensor(const State *state, PyObject *object, View *view) {
  const int failed = state->exchange ? state->exchange->view(object, &view->tensor)
                                     : read_attributes(state, object, view);
  if (failed) return -1;
  if (view->tensor.ndim > ONEPASS_MAX_NDIM) return -1;
  enum { PINNED = 3 }; /* DLPack's kDLCUDAHost: memory of the CPU */
  if (view->tensor.device.type == PINNED) view->tensor.device = (onepass_device){ONEPASS_CPU, 0};
  /* The imaginary part of a conjugate is a view of numbers whose sign is still to be changed. */
  if (!is_compact(&view->tensor) && take_truth(call_method(object, state->name_is_neg)) != 0)
    return -1;
  return 0;
}

/* ---- One call ------------------------------------------------------------------------------------ */

/* In the order of onepass_tensors and onepass_buffers. */
enum { X, WEIGHT, BIAS, Y, MEAN, RSTD, DY, DX, DWEIGHT, DBIAS, ROLES };

typedef struct {
  int pools; /* which of the two descriptions it is */
  union {
    onepass_norm norm;
    onepass_pool pool;
  } description;
  View views[ROLES];
  unsigned present;                /* a bit for each role */
  int64_t outer[ONEPASS_MAX_NDIM]; /* the shape of mean and rstd, or of what is pooled */
} Call;

_Static_assert(sizeof(onepass_tensors) == ROLES * sizeof(void *),
               "roles and onepass_tensors agree");
_Static_assert(sizeof(onepass_buffers) == ROLES * sizeof(void *),
               "roles and onepass_buffers agree");

/* Reads the tensor for a role; None is none. 0 if that can be done. */
static int take(const State *state, Call *call, int role, PyObject *object) {
  if (object == Py_None) return 0;
  call->present |= 1u << role;
  return read_tensor(state, object, &call->views[role]);
}

/* ---- Plans, found again by what they were made for ------------------------------------------------- */

/* The longest key: the description, threads, roles and device, and shape and strides of each tensor. */
#define KEY_WORDS (16 + ROLES * (1 + 2 * ONEPASS_MAX_NDIM))

static int write_key(const Call *call, int threads, int64_t *key) {
  int n = 0;
  if (call->pools) {
    const onepass_pool *pool = &call->description.pool;
    key[n++] = 1 + 2 * pool->direction + 4 * pool->ceil_mode + 8 * pool->count_include_pad;
    key[n++] = pool->kernel[0];
    key[n++] = pool->stride[0];
    key[n++] = pool->padding[0];
  } else {
    const onepass_norm *norm = &call->description.norm;
    key[n++] = 0 + 2 * (int)norm->direction + 4 * (int)norm->op + 8 * (int)norm->reduction;
    key[n++] = norm->axis;
    memcpy(&key[n++], &norm->eps, sizeof norm->eps);
  }
  key[n++] = (int64_t)threads << 32 | call->present;
  for (int role = 0; role < ROLES; role++) {
    if (!(call->present >> role & 1)) continue;
    const onepass_tensor *tensor = &call->views[role].tensor;
    key[n++] = (int64_t)tensor->device.id << 32 | (int64_t)tensor->device.type << 24 |
               tensor->ndim << 16 | tensor->dtype.code << 8 | tensor->dtype.bits;
    const size_t size = (size_t)tensor->ndim * sizeof(int64_t);
    memcpy(&key[n], tensor->shape, size);
    n += tensor->ndim;
    if (tensor->strides) { /* those without are made here and follow from x */
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

/* ---- Running ------------------------------------------------------------------------------------- */

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
  if (!workspace->tensor) return -1;
  PyObject *address = call_method(workspace->tensor, state->name_data_ptr);
  if (!address) return -1;
  workspace->address = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return PyErr_Occurred() ? -1 : 0;
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

/* 1: done. 0: the library does not cover it. -1: an exception is set. */
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

/* As judge. */
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
    onepass_status status;
    Py_BEGIN_ALLOW_THREADS status =
        onepass_run(cached->plan, &buffers, workspace.address, cached->workspace, stream);
    Py_END_ALLOW_THREADS result = judge(status);
  }
  free_workspace(&workspace);
  release_plan(cached);
  return result;
}

/* Runs the call and gives back its outputs, which are consumed; None if it is not covered. */
static PyObject *finish(State *state, const Call *call, onepass_device device, PyObject *outputs) {
  const int done = run(state, call, device);
  if (done == 1) return outputs;
  Py_DECREF(outputs);
  if (done == 0) Py_RETURN_NONE;
  return NULL;
}

/* A tensor that cannot be read (a wrapper, a layout without data) is PyTorch's to deal with; so is what
 * else it may be that made reading fail. */
static PyObject *not_covered(PyObject *outputs) {
  Py_XDECREF(outputs);
  PyErr_Clear();
  Py_RETURN_NONE;
}

/* ---- New tensors --------------------------------------------------------------------------------- */

/* A tensor just made for a role, which is compact and otherwise like another; consumes it on failure. */
static PyObject *take_compact(const State *state, Call *call, int role, PyObject *made,
                              const onepass_tensor *like) {
  if (!made) return NULL;
  onepass_tensor *tensor = &call->views[role].tensor;
  *tensor = *like;
  tensor->strides = NULL;
  tensor->byte_offset = 0;
  call->present |= 1u << role;
  if (read_address(state, made, &tensor->data) != 0) Py_CLEAR(made);
  return made;
}

/* torch.empty_like(object), which keeps the strides if they leave no gaps. */
static PyObject *new_like(const State *state, Call *call, int role, PyObject *object,
                          const onepass_tensor *tensor) {
  PyObject *made = PyObject_CallFunctionObjArgs(state->empty_like, object, NULL);
  if (is_compact(tensor)) return take_compact(state, call, role, made, tensor);
  if (made && take(state, call, role, made) != 0) Py_CLEAR(made);
  return made;
}

/* The same, but always contiguous. */
static PyObject *new_contiguous(const State *state, Call *call, int role, PyObject *object,
                                const onepass_tensor *tensor) {
  if (is_compact(tensor)) return new_like(state, call, role, object, tensor);
  PyObject *args = PyTuple_Pack(1, object);
  PyObject *made = args ? PyObject_Call(state->empty_like, args, state->contiguous) : NULL;
  Py_XDECREF(args);
  return take_compact(state, call, role, made, tensor);
}

/* object.new_empty(shape, **keywords); consumes the shape. */
static PyObject *new_shaped(const State *state, PyObject *object, PyObject *shape,
                            PyObject *keywords) {
  PyObject *args = shape ? PyTuple_Pack(1, shape) : NULL;
  PyObject *method = PyObject_GetAttr(object, state->name_new_empty);
  PyObject *made = args && method ? PyObject_Call(method, args, keywords) : NULL;
  Py_XDECREF(method);
  Py_XDECREF(args);
  Py_XDECREF(shape);
  return made;
}

/* ---- LayerNorm ----------------------------------------------------------------------------------- */

/* The first normalized axis, or -1 if x does not end with that shape. */
static int normalized_axis(const onepass_tensor *x, PyObject *normalized_shape) {
  const Py_ssize_t count = PySequence_Size(normalized_shape);
  if (count < 1 || count > x->ndim) return -1;
  const int axis = x->ndim - (int)count;
  for (int i = 0; i < count; i++)
    if (take_integer(PySequence_GetItem(normalized_shape, i)) != x->shape[axis + i]) return -1;
  return axis;
}

/* Room for the mean and 1/deviation of each row: a tensor with two rows; or bytes, if any object will
 * do and the CPU needs them, because making a tensor takes longer than a small LayerNorm. */
enum { NO_STATISTICS, STATISTICS, STATISTICS_TENSOR };

static int64_t row_count(const onepass_tensor *x, int axis) {
  int64_t rows = 1;
  for (int i = 0; i < axis; i++) rows *= x->shape[i];
  return rows;
}

static PyObject *new_statistics(const State *state, const onepass_tensor *x, int axis,
                                PyObject *object, int kind) {
  const int64_t rows = row_count(x, axis);
  if (kind == STATISTICS && x->device.type == ONEPASS_CPU)
    return PyBytes_FromStringAndSize(NULL, rows * 2 * (x->dtype.bits == 64 ? 8 : 4));
  return new_shaped(state, object, Py_BuildValue("iL", 2, (long long)rows),
                    x->dtype.bits == 16 ? state->float32 : NULL);
}

/* mean and rstd are its two halves, shaped as x with ones for the normalized axes. */
static int take_statistics(const State *state, Call *call, int axis, PyObject *object) {
  const onepass_tensor *x = &call->views[X].tensor;
  onepass_tensor *mean = &call->views[MEAN].tensor, *rstd = &call->views[RSTD].tensor;
  const int64_t rows = row_count(x, axis), size = x->dtype.bits == 64 ? 8 : 4;
  if (PyBytes_Check(object)) {
    if (PyBytes_Size(object) != rows * 2 * size) return -1;
    *mean = *x;
    mean->data = PyBytes_AsString(object);
    mean->dtype = size == 8 ? ONEPASS_F64 : ONEPASS_F32;
  } else if (take(state, call, MEAN, object) != 0 || mean->ndim != 2 || mean->shape[0] != 2 ||
             mean->shape[1] != rows || !is_compact(mean)) {
    return -1;
  }
  for (int i = 0; i < x->ndim; i++) call->outer[i] = i < axis ? x->shape[i] : 1;
  mean->ndim = x->ndim;
  mean->shape = call->outer;
  mean->strides = NULL;
  *rstd = *mean;
  rstd->data = (char *)mean->data + rows * size;
  call->present |= 1u << MEAN | 1u << RSTD;
  return 0;
}

PyDoc_STRVAR(layer_norm_doc,
             "layer_norm(x, normalized_shape, weight, bias, eps, statistics)\n\n"
             "y, or (y, statistics) if asked for, or None.");
static PyObject *layer_norm(PyObject *module, PyObject *args) {
  PyObject *x, *shape, *weight, *bias;
  double eps;
  int kind;
  if (!PyArg_ParseTuple(args, "OOOOdi", &x, &shape, &weight, &bias, &eps, &kind))
    return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 0;
  call.present = 0;
  if (take(state, &call, X, x) || take(state, &call, WEIGHT, weight) ||
      take(state, &call, BIAS, bias))
    return not_covered(NULL);
  const onepass_tensor *tensor = &call.views[X].tensor;
  const int axis = normalized_axis(tensor, shape);
  if (axis < 0) return not_covered(NULL);
  call.description.norm = (onepass_norm){.op = ONEPASS_LAYER_NORM, .axis = axis, .eps = eps};

  PyObject *y = new_contiguous(state, &call, Y, x, tensor);
  if (!y) return not_covered(NULL);
  if (kind == NO_STATISTICS) return finish(state, &call, tensor->device, y);
  PyObject *statistics = new_statistics(state, tensor, axis, x, kind);
  PyObject *both = statistics ? PyTuple_Pack(2, y, statistics) : NULL;
  Py_DECREF(y);
  Py_XDECREF(statistics);
  if (!both || take_statistics(state, &call, axis, statistics) != 0) return not_covered(both);
  return finish(state, &call, tensor->device, both);
}

PyDoc_STRVAR(layer_norm_backward_doc,
             "layer_norm_backward(dy, x, normalized_shape, weight, bias, statistics, wants_weight, "
             "wants_bias)\n\n(dx, dweight, dbias), with None for what is not wanted, or None.");
static PyObject *layer_norm_backward(PyObject *module, PyObject *args) {
  PyObject *dy, *x, *shape, *weight, *bias, *statistics;
  int wants_weight, wants_bias;
  if (!PyArg_ParseTuple(args, "OOOOOOpp", &dy, &x, &shape, &weight, &bias, &statistics,
                        &wants_weight, &wants_bias))
    return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 0;
  call.present = 0;
  if (take(state, &call, X, x) || take(state, &call, DY, dy) || take(state, &call, WEIGHT, weight))
    return not_covered(NULL);
  const int axis = normalized_axis(&call.views[X].tensor, shape);
  if (axis < 0 || take_statistics(state, &call, axis, statistics) != 0) return not_covered(NULL);
  call.description.norm =
      (onepass_norm){.op = ONEPASS_LAYER_NORM, .direction = ONEPASS_BACKWARD, .axis = axis};

  PyObject *grads = PyTuple_New(3);
  const struct {
    int role, wanted;
    PyObject *like;
  } outputs[3] = {{DX, 1, x}, {DWEIGHT, wants_weight, weight}, {DBIAS, wants_bias, bias}};
  View likes[3]; /* the outputs' shapes may lie here */
  for (int i = 0; i < 3 && grads; i++) {
    PyObject *made = Py_None;
    if (!outputs[i].wanted)
      Py_INCREF(made);
    else if (read_tensor(state, outputs[i].like, &likes[i]) != 0 ||
             !(made = new_contiguous(state, &call, outputs[i].role, outputs[i].like,
                                     &likes[i].tensor)))
      return not_covered(grads);
    PyTuple_SetItem(grads, i, made);
  }
  return grads ? finish(state, &call, call.views[X].tensor.device, grads) : NULL;
}

/* ---- L1Norm -------------------------------------------------------------------------------------- */

static onepass_norm l1_description(onepass_direction direction, int dim, int by_sum, double eps) {
  return (onepass_norm){.op = ONEPASS_L1_NORM,
                        .direction = direction,
                        .axis = dim,
                        .reduction = by_sum ? ONEPASS_SUM : ONEPASS_MEAN,
                        .eps = eps};
}

PyDoc_STRVAR(l1_norm_doc, "l1_norm(x, dim, by_sum, eps)\n\ny or None.");
static PyObject *l1_norm(PyObject *module, PyObject *args) {
  PyObject *x;
  int dim, by_sum;
  double eps;
  if (!PyArg_ParseTuple(args, "Oipd", &x, &dim, &by_sum, &eps)) return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 0;
  call.present = 0;
  call.description.norm = l1_description(ONEPASS_FORWARD, dim, by_sum, eps);
  if (take(state, &call, X, x)) return not_covered(NULL);
  PyObject *y = new_like(state, &call, Y, x, &call.views[X].tensor);
  return y ? finish(state, &call, call.views[X].tensor.device, y) : not_covered(NULL);
}

PyDoc_STRVAR(l1_norm_backward_doc, "l1_norm_backward(dy, x, dim, by_sum, eps)\n\ndx or None.");
static PyObject *l1_norm_backward(PyObject *module, PyObject *args) {
  PyObject *dy, *x;
  int dim, by_sum;
  double eps;
  if (!PyArg_ParseTuple(args, "OOipd", &dy, &x, &dim, &by_sum, &eps)) return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 0;
  call.present = 0;
  call.description.norm = l1_description(ONEPASS_BACKWARD, dim, by_sum, eps);
  if (take(state, &call, X, x) || take(state, &call, DY, dy)) return not_covered(NULL);
  PyObject *dx = new_like(state, &call, DX, x, &call.views[X].tensor);
  return dx ? finish(state, &call, call.views[X].tensor.device, dx) : not_covered(NULL);
}

/* ---- AvgPool1d ----------------------------------------------------------------------------------- */

static onepass_pool pool_description(onepass_direction direction, int64_t kernel, int64_t stride,
                                     int64_t padding, int ceil_mode, int count_include_pad) {
  return (onepass_pool){.op = ONEPASS_AVG_POOL,
                        .direction = direction,
                        .spatial = 1,
                        .kernel = {kernel, 1, 1},
                        .stride = {stride, 1, 1},
                        .padding = {padding, 0, 0},
                        .ceil_mode = ceil_mode,
                        .count_include_pad = count_include_pad};
}

/* object.new_empty(...) with the object's shape but for the last axis; for a role of the call. */
static PyObject *new_lines(const State *state, Call *call, int role, PyObject *object,
                           const onepass_tensor *tensor, int64_t length) {
  PyObject *shape = PyTuple_New(tensor->ndim);
  for (int i = 0; shape && i < tensor->ndim; i++) {
    call->outer[i] = i < tensor->ndim - 1 ? tensor->shape[i] : length;
    PyTuple_SetItem(shape, i, PyLong_FromLongLong(call->outer[i]));
  }
  PyObject *made = new_shaped(state, object, shape, NULL);
  made = take_compact(state, call, role, made, tensor);
  call->views[role].tensor.shape = call->outer;
  return made;
}

PyDoc_STRVAR(avg_pool1d_doc,
             "avg_pool1d(x, kernel, stride, padding, ceil_mode, "
             "count_include_pad)\n\ny or None.");
static PyObject *avg_pool1d(PyObject *module, PyObject *args) {
  PyObject *x;
  long long kernel, stride, padding;
  int ceil_mode, count_include_pad;
  if (!PyArg_ParseTuple(args, "OLLLpp", &x, &kernel, &stride, &padding, &ceil_mode,
                        &count_include_pad))
    return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 1;
  call.present = 0;
  call.description.pool =
      pool_description(ONEPASS_FORWARD, kernel, stride, padding, ceil_mode, count_include_pad);
  if (take(state, &call, X, x)) return not_covered(NULL);
  const onepass_tensor *tensor = &call.views[X].tensor;
  int64_t length;
  if (tensor->ndim < 1 || onepass_pool_length(tensor->shape[tensor->ndim - 1], kernel, stride,
                                              padding, ceil_mode, &length) != ONEPASS_OK)
    return not_covered(NULL);
  for (int i = 0; i < tensor->ndim; i++)
    if (tensor->shape[i] == 0) /* PyTorch pools no batches, but not no channels */
      return not_covered(NULL);
  PyObject *y = new_lines(state, &call, Y, x, tensor, length);
  return y ? finish(state, &call, tensor->device, y) : not_covered(NULL);
}

PyDoc_STRVAR(avg_pool1d_backward_doc,
             "avg_pool1d_backward(dy, length, kernel, stride, padding, "
             "ceil_mode, count_include_pad)\n\ndx or None.");
static PyObject *avg_pool1d_backward(PyObject *module, PyObject *args) {
  PyObject *dy;
  long long length, kernel, stride, padding;
  int ceil_mode, count_include_pad;
  if (!PyArg_ParseTuple(args, "OLLLLpp", &dy, &length, &kernel, &stride, &padding, &ceil_mode,
                        &count_include_pad))
    return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 1;
  call.present = 0;
  call.description.pool =
      pool_description(ONEPASS_BACKWARD, kernel, stride, padding, ceil_mode, count_include_pad);
  if (take(state, &call, DY, dy)) return not_covered(NULL);
  PyObject *dx = new_lines(state, &call, DX, dy, &call.views[DY].tensor, length);
  return dx ? finish(state, &call, call.views[DY].tensor.device, dx) : not_covered(NULL);
}

/* ---- What kind of call this is ------------------------------------------------------------------- */

enum { PLAIN = 1, NEEDS_GRAD = 2 };

/* Is anybody watching what happens to tensors, or does a tensor stand for something else? */
static int is_watched(const State *state, PyObject *tensors) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); i++) {
    PyObject *tensor = PyTuple_GetItem(tensors, i);
    const PyObject *type = (PyObject *)Py_TYPE(tensor);
    const int may_be_none = i > 0; /* the first is the input */
    if (type != state->tensor_type && type != state->parameter_type &&
        !(may_be_none && tensor == Py_None))
      return 1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(state->modes); i++)
    if (take_truth(PyObject_CallObject(PyTuple_GetItem(state->modes, i), NULL)) != 0) return 1;
  return take_integer(PyObject_GetAttr(state->forward_ad, state->name_current_level)) != -1;
}

static int needs_grad(const State *state, PyObject *tensors) {
  if (take_truth(PyObject_CallObject(state->grad_enabled, NULL)) == 0) return 0;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); i++) {
    PyObject *tensor = PyTuple_GetItem(tensors, i);
    if (tensor != Py_None && take_truth(PyObject_GetAttr(tensor, state->name_requires_grad)) != 0)
      return 1;
  }
  return 0;
}

PyDoc_STRVAR(kind_doc,
             "kind(*tensors)\n\n0 if PyTorch has to see what is done with these tensors; "
             "or else PLAIN, or PLAIN | NEEDS_GRAD.");
static PyObject *kind(PyObject *module, PyObject *tensors) {
  const State *state = PyModule_GetState(module);
  int kind = 0;
  if (!is_watched(state, tensors)) kind = PLAIN | (needs_grad(state, tensors) ? NEEDS_GRAD : 0);
  return PyErr_Occurred() ? NULL : PyLong_FromLong(kind);
}

PyDoc_STRVAR(covers_cuda_doc, "covers_cuda(index)\n\nWhether onepass works on that GPU.");
static PyObject *covers_cuda(PyObject *module, PyObject *index) {
  (void)module;
  onepass_cuda_info info;
  const long device = PyLong_AsLong(index);
  if (device == -1 && PyErr_Occurred()) return NULL;
  return PyBool_FromLong(onepass_get_cuda_info((int32_t)device, &info) == ONEPASS_OK &&
                         info.major >= 8);
}

/* ---- The module ---------------------------------------------------------------------------------- */

PyDoc_STRVAR(setup_doc,
             "setup(exchange, tensor_type, parameter_type, modes, grad_enabled, "
             "forward_ad, threads, stream, workspace, empty_like, contiguous, float32, "
             "dtypes)\n\nOnce, before all else: what this PyTorch offers.");
static PyObject *setup(PyObject *module, PyObject *args) {
  State *state = PyModule_GetState(module);
  PyObject *exchange;
  PyObject **const kept[] = {&state->tensor_type,  &state->parameter_type, &state->modes,
                             &state->grad_enabled, &state->forward_ad,     &state->threads,
                             &state->stream,       &state->workspace,      &state->empty_like,
                             &state->contiguous,   &state->float32,        &state->dtypes};
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOO", &exchange, kept[0], kept[1], kept[2], kept[3],
                        kept[4], kept[5], kept[6], kept[7], kept[8], kept[9], kept[10], kept[11]))
    return NULL;
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) Py_INCREF(*kept[i]);
  if (exchange != Py_None) {
    const Exchange *table = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
    if (!table) return NULL;
    state->exchange = table->header.major == 1 ? table : NULL;
  }
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"setup", setup, METH_VARARGS, setup_doc},
    {"kind", kind, METH_VARARGS, kind_doc},
    {"covers_cuda", covers_cuda, METH_O, covers_cuda_doc},
    {"layer_norm", layer_norm, METH_VARARGS, layer_norm_doc},
    {"layer_norm_backward", layer_norm_backward, METH_VARARGS, layer_norm_backward_doc},
    {"l1_norm", l1_norm, METH_VARARGS, l1_norm_doc},
    {"l1_norm_backward", l1_norm_backward, METH_VARARGS, l1_norm_backward_doc},
    {"avg_pool1d", avg_pool1d, METH_VARARGS, avg_pool1d_doc},
    {"avg_pool1d_backward", avg_pool1d_backward, METH_VARARGS, avg_pool1d_backward_doc},
    {NULL, NULL, 0, NULL},
};

static int fill_module(PyObject *module) {
  State *state = PyModule_GetState(module);
  const struct {
    PyObject **name;
    const char *text;
  } names[] = {
      {&state->name_data_ptr, "data_ptr"},   {&state->name_shape, "shape"},
      {&state->name_stride, "stride"},       {&state->name_dtype, "dtype"},
      {&state->name_is_cpu, "is_cpu"},       {&state->name_get_device, "get_device"},
      {&state->name_is_neg, "is_neg"},       {&state->name_requires_grad, "requires_grad"},
      {&state->name_new_empty, "new_empty"}, {&state->name_current_level, "_current_level"},
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return -1;
  const struct {
    const char *name;
    int value;
  } constants[] = {{"PLAIN", PLAIN},
                   {"NEEDS_GRAD", NEEDS_GRAD},
                   {"NO_STATISTICS", NO_STATISTICS},
                   {"STATISTICS", STATISTICS},
                   {"STATISTICS_TENSOR", STATISTICS_TENSOR}};
  for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
    if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) != 0) return -1;
  return PyModule_AddStringConstant(module, "version", onepass_version_string());
}

/* The module lives as long as the process: what its state holds is never given back. */
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "onepass._native",
    .m_doc = "The C library onepass for PyTorch's tensors.",
    .m_size = sizeof(State),
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && fill_module(module) != 0) Py_CLEAR(module);
  return module;
}
