/*
 * What the files of onepass._native share; _native.c is where to start.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ONEPASS_BINDING_H
#define ONEPASS_BINDING_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03080000
#include <Python.h>

#include <onepass.h>

/* ---- What PyTorch tells us once -------------------------------------------------------------- */

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

typedef struct CachedPlan CachedPlan;
#define PLAN_SLOTS 1024

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
  PyObject *int64;      /* the same for torch.int64 */
  PyObject *dtypes;     /* torch.dtype -> (code, bits) */
  PyObject *name_data_ptr, *name_shape, *name_stride, *name_dtype, *name_is_cpu, *name_is_cuda,
      *name_get_device, *name_is_neg, *name_requires_grad, *name_new_empty, *name_new_empty_strided,
      *name_numel, *name_current_level;
  int64_t small_on_cpu, small_on_cuda; /* elements of a tensor whose gradient is PyTorch's */
  CachedPlan *plans[PLAN_SLOTS];
  unsigned next_victim; /* which of the ways loses its plan next */
} State;

/* ---- Tensors (_tensors.c) -------------------------------------------------------------------- */

/* An object that is consumed as a number or a truth; -1 with an exception set if it is none, or NULL. */
int64_t take_integer(PyObject *object);
int take_truth(PyObject *object);

/* object.name(), a new reference. */
PyObject *call_method(PyObject *object, PyObject *name);

/* A tensor, with room for its shape and strides where PyTorch does not lend its own. */
typedef struct {
  onepass_tensor tensor;
  int64_t shape[ONEPASS_MAX_NDIM], strides[ONEPASS_MAX_NDIM];
} View;

/* -1, perhaps with an exception set, for what the library cannot know as a tensor. */
int read_tensor(const State *state, PyObject *object, View *view);
int read_address(const State *state, PyObject *object, void **address);
int is_compact(const onepass_tensor *tensor);

/* Strides as torch.empty has them with memory_format=torch.channels_last or channels_last_3d. */
int is_channels_last(const onepass_tensor *tensor);
void write_strides(int ndim, const int64_t *shape, int channels_last, int64_t *strides);

/* In the order of onepass_tensors and onepass_buffers. */
enum {
  X,
  WEIGHT,
  BIAS,
  Y,
  MEAN,
  RSTD,
  DY,
  DX,
  DWEIGHT,
  DBIAS,
  RESIDUAL,
  SUM,
  DSUM,
  RUNNING_MEAN,
  RUNNING_VAR,
  INDICES,
  ROLES
};

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

/* Not all of it is set: a call is large, and begun for every one there is. */
static inline void begin(Call *call, int pools) {
  call->pools = pools;
  call->present = 0;
}

static inline int is_by_channel(const onepass_norm *norm) {
  return norm->op == ONEPASS_GROUP_NORM || norm->op == ONEPASS_BATCH_NORM;
}

_Static_assert(sizeof(onepass_tensors) == ROLES * sizeof(void *),
               "roles and onepass_tensors agree");
_Static_assert(sizeof(onepass_buffers) == ROLES * sizeof(void *),
               "roles and onepass_buffers agree");

/* Reads the tensor for a role; None is none. 0 if that can be done. */
int take(const State *state, Call *call, int role, PyObject *object);

/* New tensors for a role of the call; NULL, perhaps with an exception set, if there cannot be one.
 *
 *   new_like        torch.empty_like(object), which keeps the strides if they leave no gaps
 *   new_contiguous  the same, but always contiguous
 *   new_by_channel  the same, but contiguous or PyTorch's channels_last, whichever the object is
 *   take_compact    takes one that was just made and is compact, otherwise like the given tensor */
PyObject *new_like(const State *state, Call *call, int role, PyObject *object,
                   const onepass_tensor *tensor);
PyObject *new_contiguous(const State *state, Call *call, int role, PyObject *object,
                         const onepass_tensor *tensor);
PyObject *new_by_channel(const State *state, Call *call, int role, PyObject *object,
                         const onepass_tensor *tensor);
PyObject *take_compact(const State *state, Call *call, int role, PyObject *made,
                       const onepass_tensor *like);

/* Of that shape, contiguous or channels_last; the type is the object's or that of indices. */
PyObject *new_pooled(const State *state, Call *call, int role, PyObject *object, int ndim,
                     const int64_t *shape, int channels_last, onepass_device device,
                     onepass_dtype dtype);

/* object.new_empty(shape, **keywords); consumes the shape. */
PyObject *new_shaped(const State *state, PyObject *object, PyObject *shape, PyObject *keywords);

/* ---- Plans (_plans.c) ------------------------------------------------------------------------ */

/* Runs the call and gives back its outputs, which are consumed; None if the library does not cover it,
 * and then nothing was written; NULL if there is an exception. */
PyObject *finish(State *state, const Call *call, onepass_device device, PyObject *outputs);

/* None, before there is anything to run; consumes the outputs, which may be NULL. A tensor that cannot be
 * read (a wrapper, a layout without data) is PyTorch's to deal with; so is what else it may be that made
 * reading fail. */
PyObject *not_covered(PyObject *outputs);

/* ---- Operators (_norms.c, _pools.c) ---------------------------------------------------------- */

/* What a norm keeps for its gradient. Room for the mean and 1/deviation of each row, or for what stands in
 * for the latter alone: a tensor with two rows or one; or bytes, if any object will do and the CPU needs
 * them, because making a tensor takes longer than a small LayerNorm. */
enum { NO_STATISTICS, STATISTICS, STATISTICS_TENSOR };

extern PyMethodDef norm_methods[], pool_methods[];

#endif
