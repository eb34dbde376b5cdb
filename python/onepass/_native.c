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
 * _norms.c and _pools.c have the operators, _tensors.c reads and makes tensors, _plans.c finds plans again
 * and runs them; here is what is asked before an operator is called, and the module.
 */
#include "_binding.h"

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

/* How many elements a tensor has, or -1, and whether they are on a GPU. */
static int64_t count_elements(const State *state, PyObject *tensor, int *is_cuda) {
  if (!state->exchange) {
    *is_cuda = take_truth(PyObject_GetAttr(tensor, state->name_is_cuda)) == 1;
    return take_integer(call_method(tensor, state->name_numel));
  }
  onepass_tensor view;
  if (state->exchange->view(tensor, &view) != 0) {
    PyErr_Clear();
    return -1;
  }
  *is_cuda = view.device.type == ONEPASS_CUDA;
  int64_t elements = 1;
  for (int i = 0; i < view.ndim; i++) elements *= view.shape[i];
  return elements;
}

/* A gradient of ours is recorded in Python, which takes some microseconds more than in C++. On a small
 * tensor nothing makes up for them, so it is left to PyTorch, whoever is watching. */
static int is_small(const State *state, PyObject *tensors, int64_t on_cpu, int64_t on_cuda) {
  PyObject *input = PyTuple_Size(tensors) > 0 ? PyTuple_GetItem(tensors, 0) : Py_None;
  const PyObject *type = (PyObject *)Py_TYPE(input);
  if (type != state->tensor_type && type != state->parameter_type) return 0;
  int is_cuda = 0;
  const int64_t elements = count_elements(state, input, &is_cuda);
  return elements >= 0 && elements <= (is_cuda ? on_cuda : on_cpu) && needs_grad(state, tensors);
}

PyDoc_STRVAR(kind_or_small_doc,
             "kind_or_small(*tensors)\n\nSMALL if a gradient is needed and the first tensor is so "
             "small that PyTorch does it sooner; or else kind(*tensors).");
static PyObject *kind_or_small(PyObject *module, PyObject *tensors) {
  const State *state = PyModule_GetState(module);
  const int small = is_small(state, tensors, state->small_on_cpu, state->small_on_cuda);
  if (PyErr_Occurred()) return NULL;
  return small ? PyLong_FromLong(SMALL) : kind(module, tensors);
}

PyDoc_STRVAR(kind_or_small_on_gpu_doc,
             "kind_or_small_on_gpu(*tensors)\n\nThe same, where no tensor of the CPU is small: of "
             "operators of which PyTorch does more there, before it begins, than recording takes.");
static PyObject *kind_or_small_on_gpu(PyObject *module, PyObject *tensors) {
  const State *state = PyModule_GetState(module);
  const int small = is_small(state, tensors, -1, state->small_on_cuda);
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
    {"kind_or_small_on_gpu", kind_or_small_on_gpu, METH_VARARGS, kind_or_small_on_gpu_doc},
    {"set_small", set_small, METH_VARARGS, set_small_doc},
    {"covers_cuda", covers_cuda, METH_O, covers_cuda_doc},
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
  if (PyModule_AddFunctions(module, norm_methods) != 0) return -1;
  if (PyModule_AddFunctions(module, pool_methods) != 0) return -1;
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

/* Headers before 3.9 do not say that this is seen outside. */
__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && fill_module(module) != 0) Py_CLEAR(module);
  return module;
}
