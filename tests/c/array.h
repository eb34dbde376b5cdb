/*
 * Arrays for the C tests: a tensor of any type and layout in a block of its own, with guard bands
 * around it. Every byte of the block that is no element keeps a pattern, so that a write outside
 * the elements shows.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef ARRAY_H
#define ARRAY_H

#include "onepass.h"

typedef struct array {
  onepass_tensor tensor; /* of the whole thing; data + byte_offset is the first element */
  int64_t shape[ONEPASS_MAX_NDIM];
  int64_t strides[ONEPASS_MAX_NDIM];
  int64_t count;        /* elements */
  int compact;          /* as made: a test that changes strides later does not look at elements */
  unsigned char *block; /* guard, elements and gaps, guard */
  size_t block_size;
} array;

/* Row-major with the first element on a 64-byte boundary. Elements start as the pattern. */
array *array_new(onepass_dtype dtype, int ndim, const int64_t *shape);

/* Any strides, the first element `shift` elements behind a 64-byte boundary. */
array *array_new_strided(onepass_dtype dtype, int ndim, const int64_t *shape,
                         const int64_t *strides, int64_t shift);

/* A compact array with the elements of another, in another type perhaps. */
array *array_compact(const array *source, onepass_dtype dtype);

void array_free(array *a); /* NULL is fine */

/* Elements are numbered in row-major order of the shape, whatever the strides. */
double array_get(const array *a, int64_t i);
void array_set(array *a, int64_t i, double value); /* rounds to nearest even */
void *array_data(const array *a);                  /* the first element's address */

/* Normal-like values: mean `offset`, standard deviation about `scale`. The seed fixes the bits. */
void array_fill_random(array *a, uint64_t seed, double offset, double scale);
void array_fill(array *a, double value);
void array_copy_values(array *to, const array *from); /* the same shape */

/* 1 when every byte that is no element still has the pattern. */
int array_guards_hold(const array *a);
/* 1 when every byte, elements and all, has the pattern: nothing has been written. */
int array_untouched(const array *a);
void array_repaint(array *a); /* puts the pattern back everywhere */

/* 1 when the elements have the same bits. The types are the same. */
int array_same_bits(const array *a, const array *b);

/* The largest |a - b| / (absolute + relative * |b|); NaN and infinities must be the same, else
 * infinity is returned. At most 1 is within the bound. */
double array_distance(const array *a, const array *b, double absolute, double relative);

int64_t dtype_size(onepass_dtype dtype);
const char *dtype_name(onepass_dtype dtype);
double dtype_unit(onepass_dtype dtype);            /* unit roundoff: 2^-24 for f32 */
onepass_dtype dtype_of_stats(onepass_dtype dtype); /* f64 for f64, f32 otherwise */
extern const onepass_dtype every_dtype[4];

/* A plan that is run once with a workspace of its own. The plan must be created. */
onepass_status run_plan(const onepass_plan *plan, const onepass_buffers *buffers);
onepass_status norm_once(const onepass_norm *norm, const onepass_tensors *tensors,
                         const onepass_options *options);
onepass_status pool_once(const onepass_pool *pool, const onepass_tensors *tensors,
                         const onepass_options *options);
onepass_buffers buffers_of(const onepass_tensors *tensors);

#endif
