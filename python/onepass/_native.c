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
 * A call either does the work and returns True, or finds that the library does not cover it, leaves
 * the outputs alone and returns False. The caller then goes to PyTorch's own operator, which does it or
 * says what is wrong.
 *
 * Everything below that touches the plans runs with the GIL held; only onepass_run does not.
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
  PyObject *strided; /* torch.strided */
  PyObject *modes;    /* a tuple of functions; if one gives a true value, tensors are not just data */
  PyObject *autocast; /* is any autocast on? */
  PyObject *grad_enabled;
  PyObject *forward_ad; /* the module; its _current_level is -1 outside of forward-mode AD */
  PyObject *threads;    /* how many threads PyTorch would use */
  PyObject *stream;     /* device index -> address of the current stream */
  PyObject *allocate;   /* bytes, device index -> a tensor that is scratch memory */
  PyObject *dtypes;     /* torch.dtype -> (code, bits) */
  PyObject *name_data_ptr, *name_shape, *name_stride, *name_dtype, *name_is_cpu, *name_get_device,
      *name_is_neg, *name_layout, *name_requires_grad, *name_current_level;
  CachedPlan *plans[PLAN_SLOTS];
  unsigned next_victim;
} State;

/* ---- Reading tensors ----------------------------------------------------------------------------- */

typedef struct {
  onepass_tensor tensor;
  int64_t shape[ONEPASS_MAX_NDIM], strides[ONEPASS_MAX_NDIM]; /* where PyTorch does not lend its own */
} View;

static PyObject *call_method(PyObject *object, PyObject *name) {
  return PyObject_CallMethodObjArgs(object, name, NULL);
}

/* An int64_t out of an object that is consumed; -1 with an exception set if it is none. */
static int64_t take_integer(PyObject *object) {
  if (!object)
    return -1;
  const int64_t value = PyLong_AsLongLong(object);
  Py_DECREF(object);
  return value;
}

/* The lengths in a tuple that is consumed, or -1. */
static int take_lengths(PyObject *tuple, int64_t *lengths) {
  if (!tuple)
    return -1;
  const Py_ssize_t count = PyTuple_Size(tuple);
  int ndim = count <= ONEPASS_MAX_NDIM ? (int)count : -1;
  for (int i = 0; i < ndim; i++) {
    lengths[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    if (lengths[i] == -1 && PyErr_Occurred())
      ndim = -1;
  }
  Py_DECREF(tuple);
  return ndim;
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
  if (!dtype)
    return -1;
  PyObject *code_and_bits = PyDict_GetItem(state->dtypes, dtype);
  Py_DECREF(dtype);
  if (!code_and_bits)
    return -1;
  tensor->dtype.code = (uint8_t)PyLong_AsLong(PyTuple_GetItem(code_and_bits, 0));
  tensor->dtype.bits = (uint8_t)PyLong_AsLong(PyTuple_GetItem(code_and_bits, 1));
  tensor->dtype.lanes = 1;

  PyObject *is_cpu = PyObject_GetAttr(object, state->name_is_cpu);
  if (!is_cpu)
    return -1;
  const int on_cpu = is_cpu == Py_True;
  Py_DECREF(is_cpu);
  tensor->device.type = on_cpu ? ONEPASS_CPU : ONEPASS_CUDA;
  tensor->device.id = on_cpu ? 0 : (int32_t)take_integer(call_method(object, state->name_get_device));

  PyObject *address = call_method(object, state->name_data_ptr);
  if (!address)
    return -1;
  tensor->data = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return PyErr_Occurred() ? -1 : 0;
}

/* -1, perhaps with an exception set, for what the library cannot know as a tensor. */
static int read_tensor(const State *state, PyObject *object, View *view) {
  if (!state->exchange)
    return read_attributes(state, object, view);
  if (state->exchange->view(object, &view->tensor) != 0)
    return -1;
  enum { PINNED = 3 }; /* DLPack's kDLCUDAHost: memory of the CPU */
  if (view->tensor.device.type == PINNED)
    view->tensor.device = (onepass_device){ONEPASS_CPU, 0};
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
  unsigned present; /* a bit for each role */
  int64_t ones[ONEPASS_MAX_NDIM];
} Call;

_Static_assert(sizeof(onepass_tensors) == ROLES * sizeof(void *), "roles and onepass_tensors agree");
_Static_assert(sizeof(onepass_buffers) == ROLES * sizeof(void *), "roles and onepass_buffers agree");

/* Reads the tensor for a role; None is none. 0 if that can be done. */
static int take(const State *state, Call *call, int role, PyObject *object) {
  if (object == Py_None)
    return 0;
  call->present |= 1u << role;
  return read_tensor(state, object, &call->views[role]);
}

/* mean and rstd are the two rows of one tensor, compact and shaped as x with ones for the normalized
 * axes. */
static int take_statistics(const State *state, Call *call, int axis, PyObject *object) {
  if (object == Py_None)
    return 0;
  if (take(state, call, MEAN, object) != 0)
    return -1;
  const onepass_tensor *x = &call->views[X].tensor;
  onepass_tensor *mean = &call->views[MEAN].tensor, *rstd = &call->views[RSTD].tensor;
  int64_t rows = 1;
  for (int i = 0; i < x->ndim; i++) {
    call->ones[i] = i < axis ? x->shape[i] : 1;
    rows *= call->ones[i];
  }
  if (mean->ndim != 2 || mean->shape[0] != 2 || mean->shape[1] != rows)
    return -1;
  mean->ndim = x->ndim;
  mean->shape = call->ones;
  mean->strides = NULL;
  *rstd = *mean;
  if (rows > 0)
    rstd->data = (char *)mean->data + rows * (mean->dtype.bits / 8);
  call->present |= 1u << RSTD;
  return 0;
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
    if (!(call->present >> role & 1))
      continue;
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
    if (call->present >> role & 1)
      tensors[role] = &call->views[role].tensor;
  onepass_tensors by_name;
  memcpy(&by_name, tensors, sizeof by_name);
  const onepass_options options = {.threads = threads};
  const onepass_status status =
      call->pools
          ? onepass_plan_pool(&cached->plan, &call->description.pool, &by_name, &options)
          : onepass_plan_norm(&cached->plan, &call->description.norm, &by_name, &options);
  if (status == ONEPASS_OK)
    cached->workspace = onepass_plan_workspace(cached->plan);
  return status;
}

/* A free slot, or one whose plan has to go. */
static CachedPlan **slot_for(State *state, size_t first) {
  for (size_t way = 0; way < PLAN_WAYS; way++)
    if (!state->plans[(first + way) % PLAN_SLOTS])
      return &state->plans[(first + way) % PLAN_SLOTS];
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
  if (!cached)
    return ONEPASS_OUT_OF_MEMORY;
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
  if (size == 0)
    return 0;
  if (device.type == ONEPASS_CPU) {
    workspace->address = workspace->small;
    if (size > sizeof workspace->small) {
      workspace->allocated = aligned_alloc(64, (size + 63) / 64 * 64);
      workspace->address = workspace->allocated;
    }
    return workspace->address ? 0 : (PyErr_NoMemory(), -1);
  }
  workspace->tensor =
      PyObject_CallFunction(state->allocate, "ni", (Py_ssize_t)size, (int)device.id);
  if (!workspace->tensor)
    return -1;
  PyObject *address = call_method(workspace->tensor, state->name_data_ptr);
  if (!address)
    return -1;
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
  if (device.type == ONEPASS_CPU)
    return 0;
  if (state->exchange)
    return state->exchange->current_stream(device.type, device.id, stream);
  PyObject *address = PyObject_CallFunction(state->stream, "i", (int)device.id);
  if (!address)
    return -1;
  *stream = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  return PyErr_Occurred() ? -1 : 0;
}

/* What the library does not cover is PyTorch's; what went wrong while it tried is an error. */
static PyObject *answer(onepass_status status) {
  switch (status) {
  case ONEPASS_OK:
    Py_RETURN_TRUE;
  case ONEPASS_OUT_OF_MEMORY:
  case ONEPASS_BAD_WORKSPACE:
  case ONEPASS_BAD_STREAM:
  case ONEPASS_CUDA_ERROR:
    PyErr_Format(PyExc_RuntimeError, "onepass: %s", onepass_last_message());
    return NULL;
  default:
    Py_RETURN_FALSE;
  }
}

static PyObject *run(State *state, const Call *call, onepass_device device) {
  int threads = 0;
  if (device.type == ONEPASS_CPU) {
    threads = (int)take_integer(PyObject_CallObject(state->threads, NULL));
    if (PyErr_Occurred())
      return NULL;
  }
  CachedPlan *cached;
  onepass_status status = find_plan(state, call, threads, &cached);
  if (status != ONEPASS_OK)
    return answer(status);

  Workspace workspace;
  void *stream;
  PyObject *result = NULL;
  if (get_workspace(state, device, cached->workspace, &workspace) == 0 &&
      get_stream(state, device, &stream) == 0) {
    void *addresses[ROLES] = {NULL};
    for (int role = 0; role < ROLES; role++)
      if (call->present >> role & 1)
        addresses[role] = (char *)call->views[role].tensor.data + call->views[role].tensor.byte_offset;
    onepass_buffers buffers;
    memcpy(&buffers, addresses, sizeof buffers);
    Py_BEGIN_ALLOW_THREADS
    status = onepass_run(cached->plan, &buffers, workspace.address, cached->workspace, stream);
    Py_END_ALLOW_THREADS
    result = answer(status);
  }
  free_workspace(&workspace);
  release_plan(cached);
  return result;
}

/* A tensor that cannot be read (a wrapper, a type without data) is PyTorch's to deal with. */
static PyObject *not_covered(void) {
  PyErr_Clear();
  Py_RETURN_FALSE;
}

/* ---- The operators ------------------------------------------------------------------------------- */

/* The first normalized axis, or -1 if x does not end with that shape. */
static int normalized_axis(const onepass_tensor *x, PyObject *normalized_shape) {
  const Py_ssize_t count = PySequence_Size(normalized_shape);
  if (count < 1 || count > x->ndim)
    return -1;
  const int axis = x->ndim - (int)count;
  for (int i = 0; i < count; i++)
    if (take_integer(PySequence_GetItem(normalized_shape, i)) != x->shape[axis + i])
      return -1;
  return axis;
}

PyDoc_STRVAR(layer_norm_doc, "layer_norm(x, normalized_shape, weight, bias, eps, y, statistics)");
static PyObject *layer_norm(PyObject *module, PyObject *args) {
  PyObject *x, *shape, *weight, *bias, *y, *statistics;
  double eps;
  if (!PyArg_ParseTuple(args, "OOOOdOO", &x, &shape, &weight, &bias, &eps, &y, &statistics))
    return NULL;
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 0;
  call.present = 0;
  if (take(state, &call, X, x) || take(state, &call, WEIGHT, weight) ||
      take(state, &call, BIAS, bias) || take(state, &call, Y, y))
    return not_covered();
  const int axis = normalized_axis(&call.views[X].tensor, shape);
  if (axis < 0 || take_statistics(state, &call, axis, statistics))
    return not_covered();
  call.description.norm = (onepass_norm){.op = ONEPASS_LAYER_NORM, .axis = axis, .eps = eps};
  return run(state, &call, call.views[X].tensor.device);
}

PyDoc_STRVAR(layer_norm_backward_doc, "layer_norm_backward(dy, x, normalized_shape, weight, "
                                      "statistics, dx, dweight, dbias)");
static PyObject *layer_norm_backward(PyObject *module, PyObject *args) {
  PyObject *dy, *x, *shape, *weight, *statistics, *dx, *dweight, *dbias;
  if (!PyArg_ParseTuple(args, "OOOOOOOO", &dy, &x, &shape, &weight, &statistics, &dx, &dweight,
                        &dbias))
    return NULL;
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 0;
  call.present = 0;
  if (take(state, &call, X, x) || take(state, &call, DY, dy) ||
      take(state, &call, WEIGHT, weight) || take(state, &call, DX, dx) ||
      take(state, &call, DWEIGHT, dweight) || take(state, &call, DBIAS, dbias))
    return not_covered();
  const int axis = normalized_axis(&call.views[X].tensor, shape);
  if (axis < 0 || take_statistics(state, &call, axis, statistics))
    return not_covered();
  call.description.norm =
      (onepass_norm){.op = ONEPASS_LAYER_NORM, .direction = ONEPASS_BACKWARD, .axis = axis};
  return run(state, &call, call.views[X].tensor.device);
}

PyDoc_STRVAR(l1_norm_doc, "l1_norm(x, dim, by_sum, eps, y)");
static PyObject *l1_norm(PyObject *module, PyObject *args) {
  PyObject *x, *y;
  int dim, by_sum;
  double eps;
  if (!PyArg_ParseTuple(args, "OipdO", &x, &dim, &by_sum, &eps, &y))
    return NULL;
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 0;
  call.present = 0;
  if (take(state, &call, X, x) || take(state, &call, Y, y))
    return not_covered();
  call.description.norm = (onepass_norm){
      .op = ONEPASS_L1_NORM, .axis = dim, .reduction = by_sum ? ONEPASS_SUM : ONEPASS_MEAN, .eps = eps};
  return run(state, &call, call.views[X].tensor.device);
}

PyDoc_STRVAR(l1_norm_backward_doc, "l1_norm_backward(dy, x, dim, by_sum, eps, dx)");
static PyObject *l1_norm_backward(PyObject *module, PyObject *args) {
  PyObject *dy, *x, *dx;
  int dim, by_sum;
  double eps;
  if (!PyArg_ParseTuple(args, "OOipdO", &dy, &x, &dim, &by_sum, &eps, &dx))
    return NULL;
  State *state = PyModule_GetState(module);
  Call call;
  call.pools = 0;
  call.present = 0;
  if (take(state, &call, X, x) || take(state, &call, DY, dy) || take(state, &call, DX, dx))
    return not_covered();
  call.description.norm = (onepass_norm){.op = ONEPASS_L1_NORM,
                                         .direction = ONEPASS_BACKWARD,
                                         .axis = dim,
                                         .reduction = by_sum ? ONEPASS_SUM : ONEPASS_MEAN,
                                         .eps = eps};
  return run(state, &call, call.views[X].tensor.device);
}

/* Both directions take the same arguments: a tensor to read, the window, a tensor to write. */
static PyObject *avg_pool1d_either(PyObject *module, PyObject *args, onepass_direction direction) {
  PyObject *from, *to;
  long long kernel, stride, padding;
  int ceil_mode, count_include_pad;
  if (!PyArg_ParseTuple(args, "OLLLppO", &from, &kernel, &stride, &padding, &ceil_mode,
                        &count_include_pad, &to))
    return NULL;
  State *state = PyModule_GetState(module);
  const int reads = direction == ONEPASS_FORWARD ? X : DY;
  const int writes = direction == ONEPASS_FORWARD ? Y : DX;
  Call call;
  call.pools = 1;
  call.present = 0;
  if (take(state, &call, reads, from) || take(state, &call, writes, to))
    return not_covered();
  call.description.pool = (onepass_pool){.op = ONEPASS_AVG_POOL,
                                         .direction = direction,
                                         .spatial = 1,
                                         .kernel = {kernel, 1, 1},
                                         .stride = {stride, 1, 1},
                                         .padding = {padding},
                                         .ceil_mode = ceil_mode,
                                         .count_include_pad = count_include_pad};
  return run(state, &call, call.views[reads].tensor.device);
}

PyDoc_STRVAR(avg_pool1d_doc,
             "avg_pool1d(x, kernel, stride, padding, ceil_mode, count_include_pad, y)");
static PyObject *avg_pool1d(PyObject *module, PyObject *args) {
  return avg_pool1d_either(module, args, ONEPASS_FORWARD);
}

PyDoc_STRVAR(avg_pool1d_backward_doc,
             "avg_pool1d_backward(dy, kernel, stride, padding, ceil_mode, count_include_pad, dx)");
static PyObject *avg_pool1d_backward(PyObject *module, PyObject *args) {
  return avg_pool1d_either(module, args, ONEPASS_BACKWARD);
}

/* ---- What kind of call this is ------------------------------------------------------------------- */

enum { PLAIN = 1, NEEDS_GRAD = 2, AUTOCAST = 4 };

/* Whether an object that is consumed is true; -1 with an exception set if that cannot be told. */
static int take_truth(PyObject *object) {
  if (!object)
    return -1;
  const int truth = PyObject_IsTrue(object);
  Py_DECREF(object);
  return truth;
}

/* Is it the tensor's own elements that count, and nothing that PyTorch keeps beside them? */
static int is_plain(const State *state, PyObject *object) {
  if (object == Py_None)
    return 1;
  const PyObject *type = (PyObject *)Py_TYPE(object);
  if (type != state->tensor_type && type != state->parameter_type)
    return 0;
  PyObject *layout = PyObject_GetAttr(object, state->name_layout);
  Py_XDECREF(layout); /* a constant of PyTorch's */
  return layout == state->strided && take_truth(call_method(object, state->name_is_neg)) == 0;
}

PyDoc_STRVAR(kind_doc, "kind(*tensors)\n\n0 if PyTorch has to be asked about these tensors or the "
                       "present modes, or else PLAIN, with NEEDS_GRAD and AUTOCAST if so.");
static PyObject *kind(PyObject *module, PyObject *tensors) {
  State *state = PyModule_GetState(module);
  const Py_ssize_t count = PyTuple_Size(tensors);
  int kind = PLAIN;
  for (Py_ssize_t i = 0; i < PyTuple_Size(state->modes) && kind; i++)
    if (take_truth(PyObject_CallObject(PyTuple_GetItem(state->modes, i), NULL)) != 0)
      kind = 0;
  if (kind && take_integer(PyObject_GetAttr(state->forward_ad, state->name_current_level)) != -1)
    kind = 0;
  for (Py_ssize_t i = 0; i < count && kind; i++)
    if (!is_plain(state, PyTuple_GetItem(tensors, i)))
      kind = 0;
  if (kind && take_truth(PyObject_CallObject(state->autocast, NULL)) != 0)
    kind |= AUTOCAST;
  if (kind && take_truth(PyObject_CallObject(state->grad_enabled, NULL)) != 0)
    for (Py_ssize_t i = 0; i < count; i++) {
      PyObject *tensor = PyTuple_GetItem(tensors, i);
      if (tensor != Py_None &&
          take_truth(PyObject_GetAttr(tensor, state->name_requires_grad)) != 0)
        kind |= NEEDS_GRAD;
    }
  if (PyErr_Occurred())
    return NULL;
  return PyLong_FromLong(kind);
}

PyDoc_STRVAR(covers_cuda_doc, "covers_cuda(index)\n\nWhether onepass works on that GPU.");
static PyObject *covers_cuda(PyObject *module, PyObject *index) {
  (void)module;
  onepass_cuda_info info;
  const long device = PyLong_AsLong(index);
  if (device == -1 && PyErr_Occurred())
    return NULL;
  return PyBool_FromLong(onepass_get_cuda_info((int32_t)device, &info) == ONEPASS_OK &&
                         info.major >= 8);
}

/* ---- The module ---------------------------------------------------------------------------------- */

PyDoc_STRVAR(setup_doc, "setup(exchange, tensor_type, parameter_type, strided, modes, autocast, "
                        "grad_enabled, forward_ad, threads, stream, allocate, dtypes)\n\nOnce, before all else: "
                        "what this PyTorch offers.");
static PyObject *setup(PyObject *module, PyObject *args) {
  State *state = PyModule_GetState(module);
  PyObject *exchange;
  PyObject **const kept[] = {&state->tensor_type, &state->parameter_type, &state->strided,
                             &state->modes,       &state->autocast,       &state->grad_enabled,
                             &state->forward_ad,  &state->threads,        &state->stream,
                             &state->allocate,    &state->dtypes};
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOOO", &exchange, kept[0], kept[1], kept[2], kept[3], kept[4],
                        kept[5], kept[6], kept[7], kept[8], kept[9], kept[10]))
    return NULL;
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
    Py_INCREF(*kept[i]);
  if (exchange != Py_None) {
    const Exchange *table = PyCapsule_GetPointer(exchange, "dlpack_exchange_api");
    if (!table)
      return NULL;
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
      {&state->name_data_ptr, "data_ptr"},
      {&state->name_shape, "shape"},
      {&state->name_stride, "stride"},
      {&state->name_dtype, "dtype"},
      {&state->name_is_cpu, "is_cpu"},
      {&state->name_get_device, "get_device"},
      {&state->name_is_neg, "is_neg"},
      {&state->name_layout, "layout"},
      {&state->name_requires_grad, "requires_grad"},
      {&state->name_current_level, "_current_level"},
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!(*names[i].name = PyUnicode_InternFromString(names[i].text)))
      return -1;
  if (PyModule_AddIntConstant(module, "PLAIN", PLAIN) != 0 ||
      PyModule_AddIntConstant(module, "NEEDS_GRAD", NEEDS_GRAD) != 0 ||
      PyModule_AddIntConstant(module, "AUTOCAST", AUTOCAST) != 0)
    return -1;
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
  if (module && fill_module(module) != 0)
    Py_CLEAR(module);
  return module;
}
