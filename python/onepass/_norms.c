/*
 * The normalizations: one entry for all of them, and quicker ones for LayerNorm and L1Norm.
 *
 * SPDX-License-Identifier: MIT
 */
#include "_binding.h"

/* ---- What a gradient has to know of each row ----------------------------------------------------- */

/* How many numbers are kept of a row. */
static int kept_of_row(const onepass_norm *norm) {
  if (norm->op == ONEPASS_L1_NORM) return 0;
  return norm->op == ONEPASS_L2_NORM || norm->op == ONEPASS_RMS_NORM ? 1 : 2;
}

/* The shape of mean and rstd, and how many rows that are. */
static int64_t shape_statistics(const Call *call, int64_t *shape, int *ndim) {
  const onepass_norm *norm = &call->description.norm;
  const onepass_tensor *x = &call->views[X].tensor;
  *ndim = 0;
  if (is_by_channel(norm)) {
    if (norm->op == ONEPASS_GROUP_NORM) shape[(*ndim)++] = x->shape[0];
    shape[(*ndim)++] = norm->op == ONEPASS_GROUP_NORM ? norm->groups : x->shape[1];
  } else {
    const int first = norm->axis < 0 ? norm->axis + x->ndim : norm->axis;
    const int count = norm->axes ? norm->axes : norm->op == ONEPASS_L2_NORM ? 1 : x->ndim;
    for (; *ndim < x->ndim; (*ndim)++)
      shape[*ndim] = *ndim >= first && *ndim < first + count ? 1 : x->shape[*ndim];
  }
  int64_t rows = 1;
  for (int i = 0; i < *ndim; i++) rows *= shape[i];
  return rows;
}

static PyObject *new_statistics(const State *state, const Call *call, PyObject *object, int kind) {
  const onepass_tensor *x = &call->views[X].tensor;
  int64_t shape[ONEPASS_MAX_NDIM];
  int ndim;
  const int64_t rows = shape_statistics(call, shape, &ndim);
  const int kept = kept_of_row(&call->description.norm);
  if (kind == STATISTICS && x->device.type == ONEPASS_CPU)
    return PyBytes_FromStringAndSize(NULL, rows * kept * (x->dtype.bits == 64 ? 8 : 4));
  return new_shaped(state, object, Py_BuildValue("iL", kept, (long long)rows),
                    x->dtype.bits == 16 ? state->float32 : NULL);
}

/* mean and rstd are its two halves; without a mean rstd is all of it. */
static int take_statistics(const State *state, Call *call, PyObject *object) {
  const int kept = kept_of_row(&call->description.norm);
  if (kept == 0) return 0;
  const onepass_tensor *x = &call->views[X].tensor;
  onepass_tensor *mean = &call->views[MEAN].tensor, *rstd = &call->views[RSTD].tensor;
  const int64_t size = x->dtype.bits == 64 ? 8 : 4;
  int ndim;
  const int64_t rows = shape_statistics(call, call->outer, &ndim);
  if (PyBytes_Check(object)) {
    if (PyBytes_Size(object) != rows * kept * size) return -1;
    *mean = *x;
    mean->data = PyBytes_AsString(object);
    mean->byte_offset = 0;
    mean->dtype = size == 8 ? ONEPASS_F64 : ONEPASS_F32;
  } else if (take(state, call, MEAN, object) != 0 || mean->ndim != 2 || mean->shape[0] != kept ||
             mean->shape[1] != rows || !is_compact(mean)) {
    return -1;
  }
  mean->ndim = ndim;
  mean->shape = call->outer;
  mean->strides = NULL;
  *rstd = *mean;
  rstd->data = (char *)mean->data + (kept - 1) * rows * size;
  call->present &= ~(1u << MEAN);
  call->present |= (kept == 2 ? 1u << MEAN : 0) | 1u << RSTD;
  return 0;
}

typedef PyObject *NewWhole(const State *, Call *, int, PyObject *, const onepass_tensor *);

/* dx, dweight and dbias, as the tensors that they are the gradients of; NULL if there cannot be any. */
static PyObject *new_gradients(const State *state, Call *call, PyObject *x, PyObject *weight,
                               PyObject *bias, View *likes, NewWhole *new_whole) {
  PyObject *const like[3] = {x, weight, bias};
  const int roles[3] = {DX, DWEIGHT, DBIAS};
  PyObject *grads = PyTuple_New(3);
  for (int i = 0; i < 3 && grads; i++) {
    PyObject *made = Py_None;
    if (!like[i]) {
      Py_INCREF(made);
    } else if (read_tensor(state, like[i], &likes[i]) != 0 ||
               !(made = (i == 0 ? new_whole : new_contiguous)(state, call, roles[i], like[i],
                                                              &likes[i].tensor))) {
      Py_CLEAR(grads);
      break;
    }
    PyTuple_SetItem(grads, i, made);
  }
  return grads;
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
  begin(&call, 0);
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
  PyObject *statistics = new_statistics(state, &call, x, kind);
  PyObject *both = statistics ? PyTuple_Pack(2, y, statistics) : NULL;
  Py_DECREF(y);
  Py_XDECREF(statistics);
  if (!both || take_statistics(state, &call, statistics) != 0) return not_covered(both);
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
  begin(&call, 0);
  if (take(state, &call, X, x) || take(state, &call, DY, dy) || take(state, &call, WEIGHT, weight))
    return not_covered(NULL);
  const int axis = normalized_axis(&call.views[X].tensor, shape);
  if (axis < 0) return not_covered(NULL);
  call.description.norm =
      (onepass_norm){.op = ONEPASS_LAYER_NORM, .direction = ONEPASS_BACKWARD, .axis = axis};
  if (take_statistics(state, &call, statistics) != 0) return not_covered(NULL);
  View likes[3]; /* the outputs' shapes may lie here */
  PyObject *grads = new_gradients(state, &call, x, wants_weight ? weight : NULL,
                                  wants_bias ? bias : NULL, likes, new_contiguous);
  if (!grads) return not_covered(NULL);
  return finish(state, &call, call.views[X].tensor.device, grads);
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
  begin(&call, 0);
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
  begin(&call, 0);
  call.description.norm = l1_description(ONEPASS_BACKWARD, dim, by_sum, eps);
  if (take(state, &call, X, x) || take(state, &call, DY, dy)) return not_covered(NULL);
  PyObject *dx = new_like(state, &call, DX, x, &call.views[X].tensor);
  return dx ? finish(state, &call, call.views[X].tensor.device, dx) : not_covered(NULL);
}

/* ---- Any normalization --------------------------------------------------------------------------- */

/* What Python says of a normalization, in this order. The axis is a number, or normalized_shape as
 * PyTorch takes it: the last axes. groups = -1: a group a channel. */
#define NORM_FORMAT "(iOiLdppdi)"
typedef struct {
  int op, axes, clamp, use_running, activation;
  PyObject *axis;
  long long groups;
  double eps, momentum;
} Given;
#define NORM_FIELDS(given)                                                                  \
  &(given).op, &(given).axis, &(given).axes, &(given).groups, &(given).eps, &(given).clamp, \
      &(given).use_running, &(given).momentum, &(given).activation

/* -1 for what PyTorch has an error for, or an opinion of its own. */
static int check_channels(const Given *given, const onepass_tensor *x) {
  if (x->ndim < 2) return -1;
  int64_t batches_and_spatial = x->shape[0], spatial = 1;
  for (int i = 2; i < x->ndim; i++) spatial *= x->shape[i];
  batches_and_spatial *= spatial;
  if (x->shape[1] == 0 || batches_and_spatial == 0) return -1;
  if (given->op == ONEPASS_BATCH_NORM && given->eps <= 0) return -1;
  if (given->use_running) return 0;
  return (given->groups == -1 ? spatial : batches_and_spatial) == 1 ? -1 : 0;
}

static int describe(const Given *given, onepass_direction direction, Call *call) {
  const onepass_tensor *x = &call->views[X].tensor;
  onepass_norm *norm = &call->description.norm;
  *norm = (onepass_norm){.op = (onepass_norm_op)given->op,
                         .direction = direction,
                         .reduction = given->op == ONEPASS_L1_NORM ? ONEPASS_SUM : ONEPASS_MEAN,
                         .eps = given->eps,
                         .axes = given->axes,
                         .clamp = given->clamp,
                         .use_running = given->use_running,
                         .momentum = given->momentum,
                         .activation = (onepass_activation)given->activation};
  if (is_by_channel(norm)) {
    if (check_channels(given, x) != 0) return -1;
    norm->groups = given->groups == -1 ? x->shape[1] : given->groups;
    return 0;
  }
  if (PyLong_Check(given->axis)) {
    norm->axis = (int32_t)PyLong_AsLong(given->axis);
    return PyErr_Occurred() ? -1 : 0;
  }
  norm->axis = normalized_axis(x, given->axis);
  return norm->axis < 0 ? -1 : 0;
}

/* y, sum and dx are laid out as PyTorch's would be; _format_of in _norms.py says the same. */
static NewWhole *layout_of(const onepass_norm *norm) {
  if (norm->op == ONEPASS_L1_NORM || norm->op == ONEPASS_L2_NORM) return new_like;
  return norm->op == ONEPASS_LAYER_NORM ? new_contiguous : new_by_channel;
}

PyDoc_STRVAR(norm_doc,
             "norm((op, axis, axes, groups, eps, clamp, use_running, momentum, activation), "
             "statistics, x, residual, weight, bias, running_mean, running_var)\n\n"
             "(y, sum, statistics), with None for what there is not, or None.");
static PyObject *norm(PyObject *module, PyObject *args) {
  Given given;
  PyObject *x, *residual, *weight, *bias, *running_mean, *running_var;
  int kind;
  if (!PyArg_ParseTuple(args, NORM_FORMAT "iOOOOOO", NORM_FIELDS(given), &kind, &x, &residual,
                        &weight, &bias, &running_mean, &running_var))
    return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  begin(&call, 0);
  if (take(state, &call, X, x) || take(state, &call, RESIDUAL, residual) ||
      take(state, &call, WEIGHT, weight) || take(state, &call, BIAS, bias) ||
      take(state, &call, RUNNING_MEAN, running_mean) ||
      take(state, &call, RUNNING_VAR, running_var) || describe(&given, ONEPASS_FORWARD, &call) != 0)
    return not_covered(NULL);
  const onepass_tensor *tensor = &call.views[X].tensor;
  NewWhole *new_whole = layout_of(&call.description.norm);
  PyObject *outputs = PyTuple_New(3);
  if (!outputs) return NULL;
  for (int i = 0; i < 3; i++) {
    PyObject *made = Py_None;
    if (i == 0)
      made = new_whole(state, &call, Y, x, tensor);
    else if (i == 1 && residual != Py_None)
      made = new_whole(state, &call, SUM, x, tensor);
    else if (i == 2 && kind != NO_STATISTICS && kept_of_row(&call.description.norm) > 0)
      made = new_statistics(state, &call, x, kind);
    if (!made) return not_covered(outputs);
    if (made == Py_None) Py_INCREF(made);
    PyTuple_SetItem(outputs, i, made);
    if (i == 2 && made != Py_None && take_statistics(state, &call, made) != 0)
      return not_covered(outputs);
  }
  return finish(state, &call, tensor->device, outputs);
}

PyDoc_STRVAR(
    norm_backward_doc,
    "norm_backward((op, axis, axes, groups, eps, clamp, use_running, momentum, activation), "
    "dy, dsum, x, weight, bias, statistics, wants_weight, wants_bias)\n\n"
    "(dx, dweight, dbias), with None for what is not wanted, or None.");
static PyObject *norm_backward(PyObject *module, PyObject *args) {
  Given given;
  PyObject *dy, *dsum, *x, *weight, *bias, *statistics;
  int wants_weight, wants_bias;
  if (!PyArg_ParseTuple(args, NORM_FORMAT "OOOOOOpp", NORM_FIELDS(given), &dy, &dsum, &x, &weight,
                        &bias, &statistics, &wants_weight, &wants_bias))
    return not_covered(NULL);
  State *state = PyModule_GetState(module);
  Call call;
  begin(&call, 0);
  if (take(state, &call, X, x) || take(state, &call, DY, dy) || take(state, &call, DSUM, dsum) ||
      take(state, &call, WEIGHT, weight) ||
      (given.activation && take(state, &call, BIAS, bias)) || /* where its slope is taken */
      describe(&given, ONEPASS_BACKWARD, &call) != 0 ||
      take_statistics(state, &call, statistics) != 0)
    return not_covered(NULL);
  View likes[3]; /* the outputs' shapes may lie here */
  PyObject *grads =
      new_gradients(state, &call, x, wants_weight ? weight : NULL, wants_bias ? bias : NULL, likes,
                    layout_of(&call.description.norm));
  if (!grads) return not_covered(NULL);
  return finish(state, &call, call.views[X].tensor.device, grads);
}

/* ---- For the module ------------------------------------------------------------------------------ */

PyMethodDef norm_methods[] = {
    {"norm", norm, METH_VARARGS, norm_doc},
    {"norm_backward", norm_backward, METH_VARARGS, norm_backward_doc},
    {"layer_norm", layer_norm, METH_VARARGS, layer_norm_doc},
    {"layer_norm_backward", layer_norm_backward, METH_VARARGS, layer_norm_backward_doc},
    {"l1_norm", l1_norm, METH_VARARGS, l1_norm_doc},
    {"l1_norm_backward", l1_norm_backward, METH_VARARGS, l1_norm_backward_doc},
    {NULL, NULL, 0, NULL},
};
