/* SPDX-License-Identifier: MIT */
#include "array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, PATTERN = 0xA5 };

const onepass_dtype every_dtype[4] = {{2, 32, 1}, {2, 64, 1}, {2, 16, 1}, {4, 16, 1}};

int64_t dtype_size(onepass_dtype dtype) { return dtype.bits / 8; }

const char *dtype_name(onepass_dtype dtype) {
  if (dtype.code == 4) return "bf16";
  return dtype.bits == 64 ? "f64" : dtype.bits == 32 ? "f32" : "f16";
}

double dtype_unit(onepass_dtype dtype) {
  if (dtype.code == 4) return ldexp(1, -8);
  return ldexp(1, dtype.bits == 64 ? -53 : dtype.bits == 32 ? -24 : -11);
}

onepass_dtype dtype_of_stats(onepass_dtype dtype) {
  return dtype.bits == 64 ? ONEPASS_F64 : ONEPASS_F32;
}

static void *allocate(size_t size, size_t alignment) {
  void *memory = NULL;
  size_t whole = (size + alignment - 1) / alignment * alignment;
  memory = aligned_alloc(alignment, whole ? whole : alignment);
  if (memory == NULL) {
    fprintf(stderr, "the test has no memory for %zu bytes\n", size);
    exit(2);
  }
  return memory;
}

static int is_compact(int ndim, const int64_t *shape, const int64_t *strides) {
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    if (shape[d] != 1 && strides[d] != step) return 0;
    step *= shape[d];
  }
  return 1;
}

array *array_new_strided(onepass_dtype dtype, int ndim, const int64_t *shape,
                         const int64_t *strides, int64_t shift) {
  array *a = calloc(1, sizeof *a);
  int64_t last = 0;
  if (a == NULL) exit(2);
  a->count = 1;
  for (int d = 0; d < ndim; d++) {
    a->shape[d] = shape[d];
    a->strides[d] = strides[d];
    a->count *= shape[d];
    last += (shape[d] - 1) * strides[d];
  }
  a->compact = is_compact(ndim, shape, strides);
  size_t extent = a->count ? (size_t)((last + 1) * dtype_size(dtype)) : 0;
  size_t offset = GUARD + (size_t)(shift * dtype_size(dtype));
  a->block_size = offset + extent + GUARD;
  a->block = allocate(a->block_size, 64);
  memset(a->block, PATTERN, a->block_size);
  a->tensor =
      (onepass_tensor){a->block, {ONEPASS_CPU, 0}, ndim, dtype, a->shape, a->strides, offset};
  return a;
}

array *array_new(onepass_dtype dtype, int ndim, const int64_t *shape) {
  int64_t strides[ONEPASS_MAX_NDIM];
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = step;
    step *= shape[d];
  }
  return array_new_strided(dtype, ndim, shape, strides, 0);
}

array *array_compact(const array *source, onepass_dtype dtype) {
  array *a = array_new(dtype, source->tensor.ndim, source->shape);
  array_copy_values(a, source);
  return a;
}

void array_free(array *a) {
  if (a == NULL) return;
  free(a->block);
  free(a);
}

void *array_data(const array *a) { return a->block + a->tensor.byte_offset; }

static unsigned char *element(const array *a, int64_t i) {
  int64_t position = 0;
  if (a->compact) {
    return (unsigned char *)array_data(a) + i * dtype_size(a->tensor.dtype);
  }
  uint32_t left = (uint32_t)i; /* which many CPUs divide three times as fast as 64 bits */
  for (int d = a->tensor.ndim - 1; d >= 0; d--) {
    const uint32_t size = (uint32_t)a->shape[d];
    position += left % size * a->strides[d];
    left /= size;
  }
  return (unsigned char *)array_data(a) + position * dtype_size(a->tensor.dtype);
}

/* The nearest multiple of 2^exponent, ties to even: the default rounding of rint. */
static double to_multiple(double value, int exponent) {
  return ldexp(rint(ldexp(value, -exponent)), exponent);
}

/* value rounded to `digits` significant bits, not below the type's smallest step. */
static double to_digits(double value, int digits, int smallest) {
  int exponent;
  if (value == 0 || !isfinite(value)) return value;
  frexp(value, &exponent);
  exponent -= digits;
  if (exponent >= smallest && exponent > -900) { /* the same by its bits, as most values are */
    const int dropped = 53 - digits;
    uint64_t bits;
    memcpy(&bits, &value, 8);
    bits += (UINT64_C(1) << (dropped - 1)) - 1 + (bits >> dropped & 1);
    bits = bits >> dropped << dropped;
    memcpy(&value, &bits, 8);
    return value;
  }
  return to_multiple(value, exponent < smallest ? smallest : exponent);
}

static uint16_t half_from(double value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  double size = fabs(to_digits(value, 11, -24));
  int exponent;
  if (isnan(value)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  if (size < ldexp(1, -14)) return sign | (uint16_t)ldexp(size, 24);
  double fraction = frexp(size, &exponent); /* in [0.5, 1) */
  return sign | (uint16_t)((exponent + 14) << 10) | (uint16_t)((fraction * 2 - 1) * 1024);
}

/* As a float whose exponent is too small by what the types' biases differ. */
static double half_to(uint16_t bits) {
  const uint32_t wide = (uint32_t)(bits & 0x7fff) << 13;
  float scaled;
  memcpy(&scaled, &wide, 4);
  const double size = (bits & 0x7c00) != 0x7c00 ? (double)scaled * 0x1p112
                      : bits & 0x3ff            ? (double)NAN
                                                : (double)INFINITY;
  return bits & 0x8000 ? -size : size;
}

static uint16_t bfloat_from(double value) {
  float rounded = (float)to_digits(value, 8, -133);
  uint32_t bits;
  if (isnan(value)) return 0x7fc0;
  memcpy(&bits, &rounded, 4);
  return (uint16_t)(bits >> 16);
}

static double bfloat_to(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return (double)value;
}

double array_get(const array *a, int64_t i) {
  const unsigned char *at = element(a, i);
  onepass_dtype dtype = a->tensor.dtype;
  double d;
  float f;
  uint16_t h;
  if (dtype.bits == 64) {
    memcpy(&d, at, 8);
    return d;
  }
  if (dtype.bits == 32) {
    memcpy(&f, at, 4);
    return (double)f;
  }
  memcpy(&h, at, 2);
  return dtype.code == 4 ? bfloat_to(h) : half_to(h);
}

void array_set(array *a, int64_t i, double value) {
  unsigned char *at = element(a, i);
  onepass_dtype dtype = a->tensor.dtype;
  float f = (float)value;
  if (dtype.bits == 64) {
    memcpy(at, &value, 8);
  } else if (dtype.bits == 32) {
    memcpy(at, &f, 4);
  } else {
    uint16_t h = dtype.code == 4 ? bfloat_from(value) : half_from(value);
    memcpy(at, &h, 2);
  }
}

/* Past the first PERIOD elements the same ones once more, where that is a copy: their number is a prime, so that neither
 * rows nor what blocks have of them begin alike. */
void array_fill_random(array *a, uint64_t seed, double offset, double scale) {
  enum { PERIOD = 1000003 };
  const int64_t drawn = a->compact && a->count > PERIOD ? PERIOD : a->count;
  const size_t size = (size_t)dtype_size(a->tensor.dtype);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (int64_t i = 0; i < drawn; i++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    double sum = 0;
    for (int k = 0; k < 3; k++) sum += (double)(state >> 21 * k & 0x1FFFFF) * 0x1p-21 - 0.5;
    array_set(a, i, offset + 2 * scale * sum); /* the sum of three has a deviation of 1/2 */
  }
  for (int64_t i = drawn; i < a->count; i += drawn) {
    const int64_t left = a->count - i;
    memcpy(element(a, i), array_data(a), size * (size_t)(left < drawn ? left : drawn));
  }
}

void array_fill(array *a, double value) {
  for (int64_t i = 0; i < a->count; i++) array_set(a, i, value);
}

static int are_alike(const array *a, const array *b) {
  return a->compact && b->compact && a->count == b->count &&
         memcmp(&a->tensor.dtype, &b->tensor.dtype, sizeof a->tensor.dtype) == 0;
}

void array_copy_values(array *to, const array *from) {
  if (are_alike(to, from)) {
    memcpy(array_data(to), array_data(from),
           (size_t)(from->count * dtype_size(from->tensor.dtype)));
    return;
  }
  for (int64_t i = 0; i < to->count; i++) array_set(to, i, array_get(from, i));
}

static int is_pattern(const unsigned char *bytes, size_t count) {
  for (size_t k = 0; k < count; k++) {
    if (bytes[k] != PATTERN) return 0;
  }
  return 1;
}

/* What is no element's: around them, and between them where they are strided. */
int array_guards_hold(const array *a) {
  const size_t size = (size_t)dtype_size(a->tensor.dtype);
  if (a->compact) {
    const size_t begin = a->tensor.byte_offset, end = begin + (size_t)a->count * size;
    return is_pattern(a->block, begin) && is_pattern(a->block + end, a->block_size - end);
  }
  unsigned char *element_bytes = calloc(a->block_size, 1);
  int holds = 1;
  if (element_bytes == NULL) exit(2);
  for (int64_t i = 0; i < a->count; i++)
    memset(element_bytes + (element(a, i) - a->block), 1, size);
  for (size_t k = 0; k < a->block_size; k++) {
    if (!element_bytes[k] && a->block[k] != PATTERN) holds = 0;
  }
  free(element_bytes);
  return holds;
}

int array_untouched(const array *a) { return is_pattern(a->block, a->block_size); }

void array_repaint(array *a) { memset(a->block, PATTERN, a->block_size); }

int array_same_bits(const array *a, const array *b) {
  if (a->count != b->count) return 0;
  if (are_alike(a, b))
    return memcmp(array_data(a), array_data(b), (size_t)(a->count * dtype_size(a->tensor.dtype))) ==
           0;
  for (int64_t i = 0; i < a->count; i++) {
    if (memcmp(element(a, i), element(b, i), (size_t)dtype_size(a->tensor.dtype)) != 0) return 0;
  }
  return 1;
}

double array_distance(const array *a, const array *b, double absolute, double relative) {
  double worst = 0;
  if (a->count != b->count) return INFINITY;
  for (int64_t i = 0; i < a->count; i++) {
    double u = array_get(a, i), v = array_get(b, i);
    if (isnan(u) && isnan(v)) continue;
    if (u == v) continue;
    double distance = fabs(u - v) / (absolute + relative * fabs(v));
    if (!(distance <= worst)) worst = isnan(distance) ? (double)INFINITY : distance;
  }
  return worst;
}

static void *address_of(const onepass_tensor *tensor) {
  if (tensor == NULL || tensor->data == NULL) return NULL;
  return (unsigned char *)tensor->data + tensor->byte_offset;
}

onepass_buffers buffers_of(const onepass_tensors *tensors) {
  onepass_buffers buffers = {
      address_of(tensors->x),           address_of(tensors->weight),
      address_of(tensors->bias),        address_of(tensors->y),
      address_of(tensors->mean),        address_of(tensors->rstd),
      address_of(tensors->dy),          address_of(tensors->dx),
      address_of(tensors->dweight),     address_of(tensors->dbias),
      address_of(tensors->residual),    address_of(tensors->sum),
      address_of(tensors->dsum),        address_of(tensors->running_mean),
      address_of(tensors->running_var), address_of(tensors->indices),
  };
  return buffers;
}

onepass_status run_plan(const onepass_plan *plan, const onepass_buffers *buffers) {
  size_t size = onepass_plan_workspace(plan);
  void *workspace = size ? allocate(size, 64) : NULL;
  onepass_status status = onepass_run(plan, buffers, workspace, size, NULL);
  free(workspace);
  return status;
}

static onepass_status run_and_destroy(onepass_plan *plan, const onepass_tensors *tensors) {
  onepass_buffers buffers = buffers_of(tensors);
  onepass_status status = run_plan(plan, &buffers);
  onepass_plan_destroy(plan);
  return status;
}

onepass_status norm_once(const onepass_norm *norm, const onepass_tensors *tensors,
                         const onepass_options *options) {
  onepass_plan *plan = NULL;
  onepass_status status = onepass_plan_norm(&plan, norm, tensors, options);
  return status == ONEPASS_OK ? run_and_destroy(plan, tensors) : status;
}

onepass_status pool_once(const onepass_pool *pool, const onepass_tensors *tensors,
                         const onepass_options *options) {
  onepass_plan *plan = NULL;
  onepass_status status = onepass_plan_pool(&plan, pool, tensors, options);
  return status == ONEPASS_OK ? run_and_destroy(plan, tensors) : status;
}
