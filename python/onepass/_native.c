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
 * _tensors.c reads and makes tensors, _plans.c finds plans again and runs them; here are the operators.
 */
#include "_binding.h"

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

/* ---- What a gradient has to know of each row ----------------------------------------------------- */

/* Room for the mean and 1/deviation of each row, or for what stands in for the latter alone: a tensor
 * with two rows or one; or bytes, if any object will do and the CPU needs them, because making a tensor
 * takes longer than a small LayerNorm. */
enum { NO_STATISTICS, STATISTICS, STATISTICS_TENSOR };

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
  call.pools = 0;
  call.present = 0;
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
  call.pools = 0;
  call.present = 0;
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
  call.pools = 0;
  call.present = 0;
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
  call.pools = 1;
  call.present = 0;
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
  call.pools = 1;
  call.present = 0;
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

/* ---- What kind of call this is ------------------------------------------------------------------- */

enum { PLAIN = 1, NEEDS_GRAD = 2, SMALL = 16 };

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

/* A gradient of ours is recorded in Python, which takes some microseconds more than in C++. On a small
 * tensor nothing makes up for them, so it is left to PyTorch, whoever is watching. */
static int is_small(const State *state, PyObject *tensors) {
  PyObject *input = PyTuple_Size(tensors) > 0 ? PyTuple_GetItem(tensors, 0) : Py_None;
  const PyObject *type = (PyObject *)Py_TYPE(input);
  if ((type != state->tensor_type && type != state->parameter_type) || !needs_grad(state, tensors))
    return 0;
  const int64_t limit = take_truth(PyObject_GetAttr(input, state->name_is_cuda)) == 1
                            ? state->small_on_cuda
                            : state->small_on_cpu;
  return take_integer(call_method(input, state->name_numel)) <= limit;
}

PyDoc_STRVAR(kind_or_small_doc,
             "kind_or_small(*tensors)\n\nSMALL if a gradient is needed and the first tensor is so "
             "small that PyTorch does it sooner; or else kind(*tensors).");
static PyObject *kind_or_small(PyObject *module, PyObject *tensors) {
  const int small = is_small(PyModule_GetState(module), tensors);
  if (PyErr_Occurred()) return NULL;
  return small ? PyLong_FromLong(SMALL) : kind(module, tensors);
}

PyDoc_STRVAR(
    set_small_doc,
    "set_small(on_cpu, on_cuda)\n\nUp to how many elements are small; returns what it was.");
static PyObject *set_small(PyObject *module, PyObject *args) {
  State *state = PyModule_GetState(module);
  PyObject *before =
      Py_BuildValue("LL", (long long)state->small_on_cpu, (long long)state->small_on_cuda);
  long long on_cpu, on_cuda;
  if (!PyArg_ParseTuple(args, "LL", &on_cpu, &on_cuda)) {
    Py_XDECREF(before);
    return NULL;
  }
  state->small_on_cpu = on_cpu;
  state->small_on_cuda = on_cuda;
  return before;
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
             "int64, dtypes)\n\nOnce, before all else: what this PyTorch offers.");
static PyObject *setup(PyObject *module, PyObject *args) {
  State *state = PyModule_GetState(module);
  PyObject *exchange;
  PyObject **const kept[] = {&state->tensor_type,  &state->parameter_type, &state->modes,
                             &state->grad_enabled, &state->forward_ad,     &state->threads,
                             &state->stream,       &state->workspace,      &state->empty_like,
                             &state->contiguous,   &state->float32,        &state->int64,
                             &state->dtypes};
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOOO", &exchange, kept[0], kept[1], kept[2], kept[3],
                        kept[4], kept[5], kept[6], kept[7], kept[8], kept[9], kept[10], kept[11],
                        kept[12]))
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
    {"kind_or_small", kind_or_small, METH_VARARGS, kind_or_small_doc},
    {"set_small", set_small, METH_VARARGS, set_small_doc},
    {"covers_cuda", covers_cuda, METH_O, covers_cuda_doc},
    {"norm", norm, METH_VARARGS, norm_doc},
    {"norm_backward", norm_backward, METH_VARARGS, norm_backward_doc},
    {"layer_norm", layer_norm, METH_VARARGS, layer_norm_doc},
    {"layer_norm_backward", layer_norm_backward, METH_VARARGS, layer_norm_backward_doc},
    {"l1_norm", l1_norm, METH_VARARGS, l1_norm_doc},
    {"l1_norm_backward", l1_norm_backward, METH_VARARGS, l1_norm_backward_doc},
    {"pool", pool, METH_VARARGS, pool_doc},
    {"pool_backward", pool_backward, METH_VARARGS, pool_backward_doc},
    {"covers_pool", covers_pool, METH_VARARGS, covers_pool_doc},
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
      {&state->name_is_cuda, "is_cuda"},
      {&state->name_get_device, "get_device"},
      {&state->name_is_neg, "is_neg"},
      {&state->name_requires_grad, "requires_grad"},
      {&state->name_new_empty, "new_empty"},
      {&state->name_new_empty_strided, "new_empty_strided"},
      {&state->name_numel, "numel"},
      {&state->name_current_level, "_current_level"},
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!(*names[i].name = PyUnicode_InternFromString(names[i].text))) return -1;
  const struct {
    const char *name;
    int value;
  } constants[] = {{"PLAIN", PLAIN},           {"NEEDS_GRAD", NEEDS_GRAD},
                   {"SMALL", SMALL},           {"NO_STATISTICS", NO_STATISTICS},
                   {"STATISTICS", STATISTICS}, {"STATISTICS_TENSOR", STATISTICS_TENSOR}};
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
