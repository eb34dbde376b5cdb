/* SPDX-License-Identifier: MIT */
#include "calls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const role_name[ROLES] = {
    "x",       "weight", "bias",     "y",   "mean", "rstd",         "dy",          "dx",
    "dweight", "dbias",  "residual", "sum", "dsum", "running_mean", "running_var", "indices"};
const char *const kind_name[ALL_KINDS] = {
    "l1_norm",    "l1_norm_backward",    "layer_norm",       "layer_norm_backward",
    "rms_norm",   "rms_norm_backward",   "l2_norm",          "l2_norm_backward",
    "avg_pool1d", "avg_pool1d_backward", "fused layer_norm", "fused layer_norm_backward"};

/* i: input, o: output, p: optional output, q: optional input; in the order of enum role. */
static const char role_use[ALL_KINDS][ROLES + 1] = {
    [L1_FORWARD] = "i--o------------",    [L1_BACKWARD] = "i-----io--------",
    [LAYER_FORWARD] = "iqqopp----------", [LAYER_BACKWARD] = "iq--iiiopp------",
    [RMS_FORWARD] = "iq-o-p----------",   [RMS_BACKWARD] = "iq---iiop-------",
    [L2_FORWARD] = "i--o-p----------",    [L2_BACKWARD] = "i----iio--------",
    [POOL_FORWARD] = "i--o------------",  [POOL_BACKWARD] = "------io--------",
    [FUSED_FORWARD] = "iqqopp----ip----", [FUSED_BACKWARD] = "iqq-iiiopp--q---",
};

int role_is_used(enum kind kind, enum role role) { return role_use[kind][role] != '-'; }

int role_is_output(enum kind kind, enum role role) {
  return role_use[kind][role] == 'o' || role_use[kind][role] == 'p';
}

int role_is_optional(enum kind kind, enum role role) {
  return role_use[kind][role] == 'q' || role_use[kind][role] == 'p';
}

/* Rows of l1_norm and l2_norm are along one axis, those of the others along all from there on. */
static int is_along_one_axis(enum kind kind) {
  return kind == L1_FORWARD || kind == L1_BACKWARD || kind == L2_FORWARD || kind == L2_BACKWARD;
}

static int is_pool(enum kind kind) { return kind == POOL_FORWARD || kind == POOL_BACKWARD; }

static array *make_compact(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  (void)role;
  return array_new(dtype, ndim, shape);
}

/* The shape of one role's tensor when x (or, for the pool's backward, dx) has this one. */
static int shape_of_role(const call *c, enum role role, int ndim, const int64_t *shape, int axis,
                         int64_t *out) {
  memcpy(out, shape, (size_t)ndim * sizeof *out);
  if (role == MEAN || role == RSTD) {
    for (int d = axis; d < (is_along_one_axis(c->kind) ? axis + 1 : ndim); d++) out[d] = 1;
    return ndim;
  }
  if (role == WEIGHT || role == BIAS || role == DWEIGHT || role == DBIAS) {
    memcpy(out, shape + axis, (size_t)(ndim - axis) * sizeof *out);
    return ndim - axis;
  }
  if (is_pool(c->kind) && (role == Y || role == DY)) {
    onepass_status status =
        onepass_pool_length(shape[ndim - 1], c->pool.kernel[0], c->pool.stride[0],
                            c->pool.padding[0], c->pool.ceil_mode, &out[ndim - 1]);
    if (status != ONEPASS_OK) {
      fprintf(stderr, "the test's pool is impossible: %s\n", onepass_last_message());
      exit(2);
    }
  }
  return ndim;
}

static onepass_dtype dtype_of_role(enum role role, onepass_dtype dtype, onepass_dtype weight) {
  if (role == MEAN || role == RSTD) return dtype_of_stats(dtype);
  return role == WEIGHT || role == BIAS || role == DWEIGHT || role == DBIAS ? weight : dtype;
}

/* A call without arrays. */
static call *describe_call(enum kind kind, int axis) {
  call *c = calloc(1, sizeof *c);
  if (c == NULL) exit(2);
  c->kind = kind;
  const int fused = kind == FUSED_FORWARD || kind == FUSED_BACKWARD;
  c->norm.op = kind == LAYER_FORWARD || kind == LAYER_BACKWARD || fused ? ONEPASS_LAYER_NORM
               : kind == RMS_FORWARD || kind == RMS_BACKWARD            ? ONEPASS_RMS_NORM
               : kind == L2_FORWARD || kind == L2_BACKWARD              ? ONEPASS_L2_NORM
                                                                        : ONEPASS_L1_NORM;
  c->norm.direction = c->pool.direction =
      role_is_used(kind, DX) ? ONEPASS_BACKWARD : ONEPASS_FORWARD;
  c->norm.axis = axis;
  c->norm.eps = is_along_one_axis(kind) ? 1e-6 : 1e-5;
  if (fused) c->norm.activation = ONEPASS_GELU;
  c->pool.spatial = 1;
  c->pool.kernel[0] = 3;
  c->pool.stride[0] = 2;
  c->pool.padding[0] = 1;
  c->pool.count_include_pad = 1;
  return c;
}

call *call_new_with(enum kind kind, onepass_dtype dtype, onepass_dtype weight_dtype, int ndim,
                    const int64_t *shape, int axis, array_maker maker) {
  call *c = describe_call(kind, axis);
  int first = axis < 0 ? axis + ndim : axis;
  for (int r = 0; r < ROLES; r++) {
    int64_t role_shape[ONEPASS_MAX_NDIM];
    if (!role_is_used(kind, (enum role)r)) continue;
    int role_ndim = shape_of_role(c, (enum role)r, ndim, shape, first, role_shape);
    c->role[r] = maker((enum role)r, dtype_of_role((enum role)r, dtype, weight_dtype), role_ndim,
                       role_shape);
  }
  call_fill(c, 1, 0.25, 1);
  return c;
}

call *call_new(enum kind kind, onepass_dtype dtype, int ndim, const int64_t *shape, int axis) {
  return call_new_with(kind, dtype, dtype, ndim, shape, axis, make_compact);
}

static void compact_strides(int ndim, const int64_t *shape, int64_t *strides) {
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = step;
    step *= shape[d];
  }
}

call *call_new_as(const call_form *form) {
  call *c = describe_call(form->kind, form->axis);
  int first = form->axis < 0 ? form->axis + form->ndim : form->axis;
  if (form->kernel) {
    c->pool.kernel[0] = form->kernel;
    c->pool.stride[0] = form->stride;
    c->pool.padding[0] = form->padding;
  }
  for (int r = 0; r < ROLES; r++) {
    const enum role role = (enum role)r;
    int64_t shape[ONEPASS_MAX_NDIM], strides[ONEPASS_MAX_NDIM];
    if (!role_is_used(form->kind, role)) continue;
    int ndim = shape_of_role(c, role, form->ndim, form->shape, first, shape);
    compact_strides(ndim, shape, strides);
    c->role[r] = array_new_strided(dtype_of_role(role, form->dtype, form->weight_dtype), ndim,
                                   shape, strides, form->shift[r]);
  }
  call_fill(c, 1, 0.25, 1);
  return c;
}

void call_free(call *c) {
  if (c == NULL) return;
  for (int r = 0; r < ROLES; r++) {
    array_free(c->role[r]);
    array_free(c->terms[r]);
  }
  free(c);
}

/* From one element of a row to the next, in the order of the elements of x. */
static int64_t step_in_row(const call *c) {
  const array *x = c->role[X];
  int64_t step = 1;
  if (!is_along_one_axis(c->kind)) return 1;
  const int axis = c->norm.axis < 0 ? c->norm.axis + x->tensor.ndim : c->norm.axis;
  for (int d = axis + 1; d < x->tensor.ndim; d++) step *= x->shape[d];
  return step;
}

/* The mean and rstd of x as a forward would save them, in double and in the obvious way. */
static void fill_stats(call *c) {
  const array *x = c->role[X];
  const int64_t rows = c->role[RSTD]->count, step = step_in_row(c);
  const int64_t columns = rows ? x->count / rows : 0;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t first = r / step * step * columns + r % step;
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < columns; k++) sum += array_get(x, first + k * step);
    const double mean = c->role[MEAN] ? sum / (double)columns : 0;
    for (int64_t k = 0; k < columns; k++) {
      double from_mean = array_get(x, first + k * step) - mean;
      squares += from_mean * from_mean;
    }
    if (c->role[MEAN]) array_set(c->role[MEAN], r, mean);
    array_set(c->role[RSTD], r,
              c->kind == L2_BACKWARD ? 1 / (sqrt(squares) + c->norm.eps)
                                     : 1 / sqrt(squares / (double)columns + c->norm.eps));
  }
}

void call_fill(call *c, uint64_t seed, double offset, double scale) {
  for (int r = 0; r < ROLES; r++) {
    if (c->role[r] == NULL || role_is_output(c->kind, (enum role)r)) continue;
    array_fill_random(c->role[r], seed * 100 + (uint64_t)r, r == X ? offset : 0.5,
                      r == X ? scale : 1);
  }
  if (c->role[RSTD] && !role_is_output(c->kind, RSTD)) fill_stats(c);
}

static const onepass_tensor *tensor_or_null(const array *a) { return a ? &a->tensor : NULL; }

onepass_tensors call_tensors(const call *c) {
  onepass_tensors tensors = {
      tensor_or_null(c->role[X]),           tensor_or_null(c->role[WEIGHT]),
      tensor_or_null(c->role[BIAS]),        tensor_or_null(c->role[Y]),
      tensor_or_null(c->role[MEAN]),        tensor_or_null(c->role[RSTD]),
      tensor_or_null(c->role[DY]),          tensor_or_null(c->role[DX]),
      tensor_or_null(c->role[DWEIGHT]),     tensor_or_null(c->role[DBIAS]),
      tensor_or_null(c->role[RESIDUAL]),    tensor_or_null(c->role[SUM]),
      tensor_or_null(c->role[DSUM]),        tensor_or_null(c->role[RUNNING_MEAN]),
      tensor_or_null(c->role[RUNNING_VAR]), tensor_or_null(c->role[INDICES]),
  };
  return tensors;
}

onepass_status call_plan(const call *c, onepass_plan **plan) {
  onepass_tensors tensors = call_tensors(c);
  return is_pool(c->kind) ? onepass_plan_pool(plan, &c->pool, &tensors, &c->options)
                          : onepass_plan_norm(plan, &c->norm, &tensors, &c->options);
}

onepass_status call_run(const call *c) {
  onepass_tensors tensors = call_tensors(c);
  return is_pool(c->kind) ? pool_once(&c->pool, &tensors, &c->options)
                          : norm_once(&c->norm, &tensors, &c->options);
}

int kind_has_helper(enum kind kind) {
  switch (kind) {
    case RMS_FORWARD:
    case RMS_BACKWARD:
    case L2_FORWARD:
    case L2_BACKWARD:
    case FUSED_FORWARD:
    case FUSED_BACKWARD:
      return 0;
    default:
      return 1;
  }
}

onepass_status call_helper(const call *c) {
  onepass_tensors t = call_tensors(c);
  const onepass_norm *n = &c->norm;
  const onepass_pool *p = &c->pool;
  if (!kind_has_helper(c->kind)) return norm_once(n, &t, NULL);
  switch (c->kind) {
    case L1_FORWARD:
      return onepass_l1_norm(t.x, n->axis, n->reduction, n->eps, t.y);
    case L1_BACKWARD:
      return onepass_l1_norm_backward(t.dy, t.x, n->axis, n->reduction, n->eps, t.dx);
    case LAYER_FORWARD:
      return onepass_layer_norm(t.x, n->axis, t.weight, t.bias, n->eps, t.y, t.mean, t.rstd);
    case LAYER_BACKWARD:
      return onepass_layer_norm_backward(t.dy, t.x, n->axis, t.weight, t.mean, t.rstd, t.dx,
                                         t.dweight, t.dbias);
    case POOL_FORWARD:
      return onepass_avg_pool1d(t.x, p->kernel[0], p->stride[0], p->padding[0], p->ceil_mode,
                                p->count_include_pad, t.y);
    default:
      return onepass_avg_pool1d_backward(t.dy, p->kernel[0], p->stride[0], p->padding[0],
                                         p->ceil_mode, p->count_include_pad, t.dx);
  }
}

/* The largest finite value. */
static double largest(const array *a) {
  double size = 0;
  for (int64_t i = 0; a != NULL && i < a->count; i++) {
    double value = fabs(array_get(a, i));
    if (isfinite(value) && value > size) size = value;
  }
  return size;
}

/* 1 / (mean|x| + eps), or with the sum, for every element: the reference's y / x. */
static void fill_with_l1_scale(array *scale, const call *reference) {
  call forward = *reference;
  forward.kind = L1_FORWARD;
  forward.norm.direction = ONEPASS_FORWARD;
  forward.role[DY] = forward.role[DX] = NULL;
  forward.role[Y] = scale;
  if (call_run(&forward) != ONEPASS_OK) exit(2);
  for (int64_t i = 0; i < scale->count; i++) {
    double x = array_get(reference->role[X], i);
    array_set(scale, i, x == 0 ? 0 : array_get(scale, i) / x);
  }
}

/* How large the terms were that an element is the sum of. They, not the result, set the size of the
 * rounding errors: differences such as x - mean cancel, and a small variance magnifies that. */
static array *scale_of_terms(const call *reference, enum role role) {
  const call *c = reference;
  const array *output = c->role[role];
  array *scale = array_new(ONEPASS_F64, output->tensor.ndim, output->shape);
  double x = largest(c->role[X]), dy = largest(c->role[DY]), bias = largest(c->role[BIAS]);
  double weight = c->role[WEIGHT] ? largest(c->role[WEIGHT]) : 1;
  double dsum = largest(c->role[DSUM]);
  if (c->kind == FUSED_FORWARD) x += largest(c->role[RESIDUAL]);
  const array *rstd = c->role[RSTD];
  int64_t rows = rstd ? rstd->count : 0;
  double sum = 0, most_rstd = largest(rstd);
  if (c->kind == L1_BACKWARD) fill_with_l1_scale(scale, c);
  for (int64_t r = 0; rstd != NULL && r < rows; r++) sum += array_get(rstd, r);
  for (int64_t i = 0; i < scale->count; i++) {
    double size;
    double row_rstd =
        rstd && scale->count >= rows && rows ? array_get(rstd, i / (scale->count / rows)) : 1;
    switch (c->kind) {
      case L1_FORWARD:
        size = fabs(array_get(output, i));
        break;
      case L1_BACKWARD:
        size = fmax(2 * dy * array_get(scale, i), fabs(array_get(output, i))); /* x = 0: no scale */
        break;
      case LAYER_FORWARD:
        size = role == Y      ? x * row_rstd * weight + bias
               : role == MEAN ? x
                              : row_rstd * (1 + x * row_rstd);
        break;
      case LAYER_BACKWARD:
        size = role == DX        ? row_rstd * dy * weight * (1 + x * row_rstd)
               : role == DWEIGHT ? dy * x * sum
                                 : dy * (double)rows;
        break;
      case FUSED_FORWARD: /* an activation is at most 1.13 times as steep */
        size = role == Y      ? 1.13 * (x * row_rstd * weight + bias)
               : role == MEAN ? x
               : role == SUM  ? 0
                              : row_rstd * (1 + x * row_rstd);
        break;
      case FUSED_BACKWARD: /* and its slope changes by at most 0.8 a unit */
        size = (1.13 + 0.8 * (x * row_rstd * weight + bias)) *
               (role == DX        ? row_rstd * dy * weight * (1 + x * row_rstd)
                : role == DWEIGHT ? dy * x * sum
                                  : dy * (double)rows);
        if (role == DX) size += dsum;
        break;
      case RMS_FORWARD:
      case L2_FORWARD:
        size = fabs(array_get(output, i));
        break;
      case RMS_BACKWARD:
        size =
            role == DX ? row_rstd * dy * weight * (1 + x * row_rstd * x * row_rstd) : dy * x * sum;
        break;
      case L2_BACKWARD:
        size = most_rstd * dy * (1 + sqrt((double)scale->count / (double)rows));
        break;
      case POOL_FORWARD:
        size = x;
        break;
      default:
        size = dy;
        break;
    }
    array_set(scale, i, size);
  }
  return scale;
}

call *call_reference(const call *c) {
  call *reference = calloc(1, sizeof *reference);
  if (reference == NULL) exit(2);
  *reference = *c;
  memset(reference->terms, 0, sizeof reference->terms);
  reference->options = (onepass_options){.reference = 1};
  for (int r = 0; r < ROLES; r++) {
    const array *a = c->role[r];
    if (a == NULL) continue;
    reference->role[r] = role_is_output(c->kind, (enum role)r)
                             ? array_new(ONEPASS_F64, a->tensor.ndim, a->shape)
                             : array_compact(a, a->tensor.dtype);
  }
  if (call_run(reference) != ONEPASS_OK) {
    fprintf(stderr, "%s: the reference failed: %s\n", kind_name[c->kind], onepass_last_message());
    exit(2);
  }
  for (int r = 0; r < ROLES; r++) {
    if (reference->role[r] && role_is_output(c->kind, (enum role)r))
      reference->terms[r] = scale_of_terms(reference, (enum role)r);
  }
  return reference;
}

/* The reference adds up in the plain order, in double: an error like a random walk's. It shows only
 * where the results are doubles themselves. */
static double error_of_reference(const call *reference) {
  const array *summed = reference->role[X] ? reference->role[X] : reference->role[DY];
  return sqrt((double)summed->count) * dtype_unit(ONEPASS_F64);
}

double call_distance(const call *c, const call *reference) {
  double worst = 0;
  for (int r = 0; r < ROLES; r++) {
    const array *a = c->role[r];
    if (a == NULL || !role_is_output(c->kind, (enum role)r)) continue;
    /* Arithmetic in the type of the statistics, one rounding to the output's type, and half of
     * that type's smallest step where a result is that small. */
    onepass_dtype dtype = a->tensor.dtype;
    double arithmetic = 16 * dtype_unit(dtype_of_stats(dtype)) + error_of_reference(reference);
    double smallest = dtype.bits == 16 && dtype.code == 2 ? ldexp(1, -25) : 1e-300;
    for (int64_t i = 0; i < a->count; i++) {
      double actual = array_get(a, i), wanted = array_get(reference->role[r], i);
      if ((isnan(actual) && isnan(wanted)) || actual == wanted) continue;
      double bound = arithmetic * array_get(reference->terms[r], i) + smallest +
                     1.01 * dtype_unit(dtype) * fabs(wanted);
      double distance = fabs(actual - wanted) / bound;
      if (!(distance <= worst)) worst = isnan(distance) ? (double)INFINITY : distance;
    }
  }
  return worst;
}

int call_outputs_same_bits(const call *a, const call *b) {
  for (int r = 0; r < ROLES; r++) {
    if (a->role[r] == NULL || !role_is_output(a->kind, (enum role)r)) continue;
    if (!array_same_bits(a->role[r], b->role[r])) return 0;
  }
  return 1;
}

int call_guards_hold(const call *c) {
  for (int r = 0; r < ROLES; r++) {
    if (c->role[r] != NULL && !array_guards_hold(c->role[r])) return 0;
  }
  return 1;
}
