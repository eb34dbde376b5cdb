/*
 * PyTorch's tensors as the library knows them.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "_binding.h"

/* ---- Reading --------------------------------------------------------------------------------- */

PyObject *call_method(PyObject *object, PyObject *name) {
  return PyObject_CallMethodObjArgs(object, name, NULL);
}

int64_t take_integer(PyObject *object) {
  if (!object) return -1;
  const int64_t value = PyLong_AsLongLong(object);
  Py_DECREF(object);
  return value;
}

int take_truth(PyObject *object) {
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

int read_address(const State *state, PyObject *object, void **address) {
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

  if (take_truth(PyObject_GetAttr(object, state->name_is_cpu)) == 1)
    tensor->device = (onepass_device){ONEPASS_CPU, 0};
  else if (take_truth(PyObject_GetAttr(object, state->name_is_cuda)) == 1)
    tensor->device = (onepass_device){
        ONEPASS_CUDA, (int32_t)take_integer(call_method(object, state->name_get_device))};
  else
    return -1;
  return read_address(state, object, &tensor->data);
}

int is_compact(const onepass_tensor *tensor) {
  int64_t expected = 1;
  for (int i = tensor->strides ? tensor->ndim - 1 : -1; i >= 0; i--) {
    if (tensor->strides[i] != expected) return 0;
    expected *= tensor->shape[i] > 0 ? tensor->shape[i] : 1; /* as PyTorch counts */
  }
  return 1;
}

int read_tensor(const State *state, PyObject *object, View *view) {
  const int failed = state->exchange ? state->exchange->view(object, &view->tensor)
                                     : read_attributes(state, object, view);
  if (failed || view->tensor.ndim > ONEPASS_MAX_NDIM) return -1;
  enum { PINNED = 3 }; /* DLPack's kDLCUDAHost: memory of the CPU */
  if (view->tensor.device.type == PINNED) view->tensor.device = (onepass_device){ONEPASS_CPU, 0};
  /* The imaginary part of a conjugate is a view of numbers whose sign is still to be changed. */
  if (!is_compact(&view->tensor) && take_truth(call_method(object, state->name_is_neg)) != 0)
    return -1;
  return 0;
}

int take(const State *state, Call *call, int role, PyObject *object) {
  if (object == Py_None) return 0;
  call->present |= 1u << role;
  return read_tensor(state, object, &call->views[role]);
}

/* ---- Making ---------------------------------------------------------------------------------- */

PyObject *take_compact(const State *state, Call *call, int role, PyObject *made,
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

PyObject *new_like(const State *state, Call *call, int role, PyObject *object,
                   const onepass_tensor *tensor) {
  PyObject *made = PyObject_CallFunctionObjArgs(state->empty_like, object, NULL);
  if (is_compact(tensor)) return take_compact(state, call, role, made, tensor);
  if (made && take(state, call, role, made) != 0) Py_CLEAR(made);
  return made;
}

PyObject *new_contiguous(const State *state, Call *call, int role, PyObject *object,
                         const onepass_tensor *tensor) {
  if (is_compact(tensor)) return new_like(state, call, role, object, tensor);
  PyObject *args = PyTuple_Pack(1, object);
  PyObject *made = args ? PyObject_Call(state->empty_like, args, state->contiguous) : NULL;
  Py_XDECREF(args);
  return take_compact(state, call, role, made, tensor);
}

int is_channels_last(const onepass_tensor *tensor) {
  if (!tensor->strides || tensor->ndim < 4 || tensor->ndim > 5 || tensor->strides[1] != 1) return 0;
  int64_t expected = tensor->shape[1];
  for (int i = tensor->ndim - 1; i >= 0; i--) {
    if (i == 1) continue;
    if (tensor->strides[i] != expected) return 0;
    expected *= tensor->shape[i];
  }
  return expected > 0;
}

void write_strides(int ndim, const int64_t *shape, int channels_last, int64_t *strides) {
  int64_t expected = 1;
  if (channels_last) {
    strides[1] = 1;
    expected = shape[1];
  }
  for (int i = ndim - 1; i >= 0; i--) {
    if (channels_last && i == 1) continue;
    strides[i] = expected;
    expected *= shape[i];
  }
}

PyObject *new_by_channel(const State *state, Call *call, int role, PyObject *object,
                         const onepass_tensor *tensor) {
  return is_channels_last(tensor) ? new_like(state, call, role, object, tensor)
                                  : new_contiguous(state, call, role, object, tensor);
}

PyObject *new_shaped(const State *state, PyObject *object, PyObject *shape, PyObject *keywords) {
  PyObject *args = shape ? PyTuple_Pack(1, shape) : NULL;
  PyObject *method = PyObject_GetAttr(object, state->name_new_empty);
  PyObject *made = args && method ? PyObject_Call(method, args, keywords) : NULL;
  Py_XDECREF(method);
  Py_XDECREF(args);
  Py_XDECREF(shape);
  return made;
}

static PyObject *new_tuple(int count, const int64_t *lengths) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; i++)
    PyTuple_SetItem(tuple, i, PyLong_FromLongLong(lengths[i]));
  return tuple;
}

static PyObject *new_strided(const State *state, PyObject *object, PyObject *shape,
                             PyObject *strides, PyObject *keywords) {
  PyObject *args = shape && strides ? PyTuple_Pack(2, shape, strides) : NULL;
  PyObject *method = PyObject_GetAttr(object, state->name_new_empty_strided);
  PyObject *made = args && method ? PyObject_Call(method, args, keywords) : NULL;
  Py_XDECREF(method);
  Py_XDECREF(args);
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  return made;
}

PyObject *new_pooled(const State *state, Call *call, int role, PyObject *object, int ndim,
                     const int64_t *shape, int channels_last, onepass_device device,
                     onepass_dtype dtype) {
  View *view = &call->views[role];
  PyObject *keywords = role == INDICES ? state->int64 : NULL;
  memcpy(view->shape, shape, sizeof *shape * ndim);
  write_strides(ndim, shape, channels_last, view->strides);
  view->tensor = (onepass_tensor){.device = device,
                                  .ndim = ndim,
                                  .dtype = dtype,
                                  .shape = view->shape,
                                  .strides = channels_last ? view->strides : NULL};
  PyObject *made = channels_last ? new_strided(state, object, new_tuple(ndim, shape),
                                               new_tuple(ndim, view->strides), keywords)
                                 : new_shaped(state, object, new_tuple(ndim, shape), keywords);
  if (!made) return NULL;
  call->present |= 1u << role;
  if (read_address(state, made, &view->tensor.data) != 0) Py_CLEAR(made);
  return made;
}
