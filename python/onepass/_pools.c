/*
 * The poolings: one entry for all of them, and a quicker one for AvgPool1d.
 *
 * SPDX-License-Identifier: MIT
 */
#include "_binding.h"

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

/* The one number in an argument, which may be a sequence of one; -1, perhaps with an exception set, if it
 * is for PyTorch to say what is wrong with it. */
static int64_t one_length(PyObject *given) {
  if (PyLong_Check(given)) return PyLong_AsLongLong(given);
  if (PySequence_Size(given) != 1) return -1;
  PyObject *only = PySequence_GetItem(given, 0);
  if (only && PyLong_Check(only)) return take_integer(only);
  Py_XDECREF(only);
  return -1;
}

PyDoc_STRVAR(avg_pool1d_doc,
             "avg_pool1d(x, kernel, stride, padding, ceil_mode, "
             "count_include_pad)\n\ny or None. Lengths as PyTorch takes them.");
static PyObject *avg_pool1d(PyObject *module, PyObject *args) {
  PyObject *x, *kernel_size, *step, *pad;
  int ceil_mode, count_include_pad;
  if (!PyArg_ParseTuple(args, "OOOOpp", &x, &kernel_size, &step, &pad, &ceil_mode,
                        &count_include_pad))
    return not_covered(NULL);
  const int64_t kernel = one_length(kernel_size);
  const int64_t stride = step == Py_None ? kernel : one_length(step), padding = one_length(pad);
  if (kernel < 0 || stride < 0 || padding < 0) return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  begin(&call, 1);
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
  begin(&call, 1);
  call.description.pool =
      pool_description(ONEPASS_BACKWARD, kernel, stride, padding, ceil_mode, count_include_pad);
  if (take(state, &call, DY, dy)) return not_covered(NULL);
  PyObject *dx = new_lines(state, &call, DX, dy, &call.views[DY].tensor, length);
  return dx ? finish(state, &call, call.views[DY].tensor.device, dx) : not_covered(NULL);
}

/* ---- Any pooling --------------------------------------------------------------------------------- */

/* What Python says of a pooling, in this order; lengths as PyTorch takes them, None where there are none.
 * The kernel of an adaptive one is its output's size. */
#define POOL_FORMAT "(iipOOOOppLd)"
typedef struct {
  int op, spatial, adaptive, ceil_mode, count_include_pad;
  PyObject *kernel, *stride, *padding, *dilation;
  long long divisor;
  double p;
} GivenPool;
#define POOL_FIELDS(given)                                                                 \
  &(given).op, &(given).spatial, &(given).adaptive, &(given).kernel, &(given).stride,      \
      &(given).padding, &(given).dilation, &(given).ceil_mode, &(given).count_include_pad, \
      &(given).divisor, &(given).p

/* A number for each pooled axis, from one for all or a tuple or list; -1 if it is for PyTorch to say what is
 * wrong with it. */
static int read_lengths(PyObject *given, int spatial, int64_t least, int64_t *lengths) {
  const int is_sequence = PyTuple_Check(given) || PyList_Check(given);
  const Py_ssize_t count = is_sequence ? PySequence_Size(given) : 1;
  if (count != 1 && count != spatial) return -1;
  for (int i = 0; i < spatial; i++) {
    PyObject *one = is_sequence ? PySequence_GetItem(given, count == 1 ? 0 : i) : given;
    const int64_t length = one && PyLong_Check(one) ? PyLong_AsLongLong(one) : -1;
    if (is_sequence) Py_XDECREF(one);
    if (length < least) return -1;
    lengths[i] = length;
  }
  return 0;
}

static int describe_pool(const GivenPool *given, onepass_direction direction, onepass_pool *pool) {
  *pool = (onepass_pool){.op = (onepass_pool_op)given->op,
                         .direction = direction,
                         .spatial = given->spatial,
                         .adaptive = given->adaptive};
  if (given->spatial < 1 || given->spatial > 3) return -1;
  if (given->adaptive) return 0;
  pool->ceil_mode = given->ceil_mode;
  pool->count_include_pad = given->count_include_pad;
  pool->divisor = given->divisor;
  pool->p = given->p;
  const int n = given->spatial;
  if (read_lengths(given->kernel, n, 1, pool->kernel) != 0 ||
      read_lengths(given->stride == Py_None ? given->kernel : given->stride, n, 1, pool->stride) ||
      (given->padding != Py_None && read_lengths(given->padding, n, 0, pool->padding) != 0))
    return -1;
  return given->dilation == Py_None ? 0 : read_lengths(given->dilation, n, 1, pool->dilation);
}

/* The sizes of what is pooled; -1 for what PyTorch has an error for, or an opinion of its own. */
static int shape_pooled(const GivenPool *given, const onepass_pool *pool, const onepass_tensor *x,
                        int64_t *shape) {
  const int first = x->ndim - pool->spatial;
  if (first != 1 && first != 2) return -1;
  if (pool->adaptive && read_lengths(given->kernel, pool->spatial, 1, shape + first) != 0)
    return -1;
  for (int i = 0; i < x->ndim; i++) {
    if (x->shape[i] == 0) return -1; /* PyTorch pools no batches, but not no channels */
    const int a = i - first;
    if (a < 0) {
      shape[i] = x->shape[i];
    } else if (!pool->adaptive) {
      if (onepass_pool_length_dilated(x->shape[i], pool->kernel[a], pool->stride[a],
                                      pool->padding[a], pool->dilation[a], pool->ceil_mode,
                                      &shape[i]) != ONEPASS_OK)
        return -1;
      /* What avg_pool3d wants besides. */
      if (pool->spatial == 3 && pool->op != ONEPASS_MAX_POOL && x->shape[i] < pool->kernel[a])
        return -1;
    }
  }
  return 0;
}

/* x and what is pooled have batches, and channels side by side. */
static int pools_channels_last(const onepass_pool *pool, const onepass_tensor *x) {
  return pool->spatial > 1 && x->ndim == pool->spatial + 2 && is_channels_last(x);
}

PyDoc_STRVAR(pool_doc,
             "pool((op, spatial, adaptive, kernel, stride, padding, dilation, ceil_mode, "
             "count_include_pad, divisor, p), indices, x)\n\n"
             "y, or (y, indices) if asked for, or None.");
static PyObject *pool(PyObject *module, PyObject *args) {
  GivenPool given;
  PyObject *x;
  int wants_indices;
  if (!PyArg_ParseTuple(args, POOL_FORMAT "pO", POOL_FIELDS(given), &wants_indices, &x))
    return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  begin(&call, 1);
  onepass_pool *pool = &call.description.pool;
  const onepass_tensor *tensor = &call.views[X].tensor;
  int64_t shape[ONEPASS_MAX_NDIM];
  if (describe_pool(&given, ONEPASS_FORWARD, pool) != 0 || take(state, &call, X, x) != 0 ||
      shape_pooled(&given, pool, tensor, shape) != 0)
    return not_covered(NULL);
  const int channels_last = pools_channels_last(pool, tensor);
  PyObject *y = new_pooled(state, &call, Y, x, tensor->ndim, shape, channels_last, tensor->device,
                           tensor->dtype);
  if (!y) return not_covered(NULL);
  if (!wants_indices) return finish(state, &call, tensor->device, y);
  PyObject *indices = new_pooled(state, &call, INDICES, x, tensor->ndim, shape, channels_last,
                                 tensor->device, ONEPASS_I64);
  PyObject *both = indices ? PyTuple_Pack(2, y, indices) : NULL;
  Py_DECREF(y);
  Py_XDECREF(indices);
  return both ? finish(state, &call, tensor->device, both) : not_covered(NULL);
}

PyDoc_STRVAR(pool_backward_doc,
             "pool_backward((op, spatial, adaptive, kernel, stride, padding, dilation, ceil_mode, "
             "count_include_pad, divisor, p), dy, shape, channels_last, indices, x, y)\n\n"
             "dx, which has that shape, or None.");
static PyObject *pool_backward(PyObject *module, PyObject *args) {
  GivenPool given;
  PyObject *dy, *of_x, *indices, *x, *y;
  int channels_last;
  if (!PyArg_ParseTuple(args, POOL_FORMAT "OOpOOO", POOL_FIELDS(given), &dy, &of_x, &channels_last,
                        &indices, &x, &y))
    return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  begin(&call, 1);
  if (describe_pool(&given, ONEPASS_BACKWARD, &call.description.pool) != 0 ||
      take(state, &call, DY, dy) || take(state, &call, INDICES, indices) ||
      take(state, &call, X, x) || take(state, &call, Y, y))
    return not_covered(NULL);
  const onepass_tensor *tensor = &call.views[DY].tensor;
  int64_t shape[ONEPASS_MAX_NDIM];
  if (PySequence_Size(of_x) != tensor->ndim) return not_covered(NULL);
  for (int i = 0; i < tensor->ndim; i++) shape[i] = take_integer(PySequence_GetItem(of_x, i));
  PyObject *dx = new_pooled(state, &call, DX, dy, tensor->ndim, shape, channels_last,
                            tensor->device, tensor->dtype);
  return dx ? finish(state, &call, tensor->device, dx) : not_covered(NULL);
}

/* Tensors without data, of two planes of two batches that a few windows fit into. */
static onepass_status try_pool(const GivenPool *given, onepass_direction direction,
                               onepass_dtype dtype, onepass_device device, int channels_last) {
  onepass_pool pool;
  if (describe_pool(given, direction, &pool) != 0) return ONEPASS_BAD_OPTION;
  const int back = direction == ONEPASS_BACKWARD, ndim = pool.spatial + 2;
  View longer = {.shape = {2, 2}}, pooled = {.shape = {2, 2}};
  for (int a = 0; a < pool.spatial; a++) {
    const int64_t dilation = pool.dilation[a] ? pool.dilation[a] : 1;
    longer.shape[2 + a] =
        pool.adaptive ? 8 : (pool.kernel[a] - 1) * dilation + 1 + 2 * pool.stride[a];
    pooled.shape[2 + a] = 4;
    if (pool.adaptive) continue;
    const onepass_status status = onepass_pool_length_dilated(
        longer.shape[2 + a], pool.kernel[a], pool.stride[a], pool.padding[a], dilation,
        pool.ceil_mode, &pooled.shape[2 + a]);
    if (status != ONEPASS_OK) return status;
  }
  View *const views[2] = {&longer, &pooled};
  for (int i = 0; i < 2; i++) {
    write_strides(ndim, views[i]->shape, channels_last, views[i]->strides);
    views[i]->tensor = (onepass_tensor){.device = device,
                                        .ndim = ndim,
                                        .dtype = dtype,
                                        .shape = views[i]->shape,
                                        .strides = views[i]->strides};
  }
  onepass_tensor indices = pooled.tensor;
  indices.dtype = ONEPASS_I64;
  const int is_max = pool.op == ONEPASS_MAX_POOL, is_lp = pool.op == ONEPASS_LP_POOL;
  const onepass_tensors tensors = {.x = !back || is_lp ? &longer.tensor : NULL,
                                   .y = !back || is_lp ? &pooled.tensor : NULL,
                                   .dy = back ? &pooled.tensor : NULL,
                                   .dx = back ? &longer.tensor : NULL,
                                   .indices = is_max ? &indices : NULL};
  onepass_plan *plan;
  const onepass_status status = onepass_plan_pool(&plan, &pool, &tensors, NULL);
  if (status == ONEPASS_OK) onepass_plan_destroy(plan);
  return status;
}

PyDoc_STRVAR(covers_pool_doc,
             "covers_pool((op, spatial, adaptive, kernel, stride, padding, dilation, ceil_mode, "
             "count_include_pad, divisor, p), (code, bits), index, channels_last)\n\n"
             "Whether onepass has kernels for that pooling and its gradient on that GPU.");
static PyObject *covers_pool(PyObject *module, PyObject *args) {
  (void)module;
  GivenPool given;
  int code, bits, index, channels_last;
  if (!PyArg_ParseTuple(args, POOL_FORMAT "(ii)ip", POOL_FIELDS(given), &code, &bits, &index,
                        &channels_last))
    return NULL;
  const onepass_dtype dtype = {(uint8_t)code, (uint8_t)bits, 1};
  const onepass_device device = {ONEPASS_CUDA, index};
  int covers = 1;
  for (int direction = ONEPASS_FORWARD; direction <= ONEPASS_BACKWARD; direction++)
    covers &=
        try_pool(&given, (onepass_direction)direction, dtype, device, channels_last) == ONEPASS_OK;
  PyErr_Clear();
  return PyBool_FromLong(covers);
}

/* ---- For the module ------------------------------------------------------------------------------ */

PyMethodDef pool_methods[] = {
    {"pool", pool, METH_VARARGS, pool_doc},
    {"pool_backward", pool_backward, METH_VARARGS, pool_backward_doc},
    {"covers_pool", covers_pool, METH_VARARGS, covers_pool_doc},
    {"avg_pool1d", avg_pool1d, METH_VARARGS, avg_pool1d_doc},
    {"avg_pool1d_backward", avg_pool1d_backward, METH_VARARGS, avg_pool1d_backward_doc},
    {NULL, NULL, 0, NULL},
};
