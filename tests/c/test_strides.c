/*
 * Any strides are right: transposed, sliced, repeated, channels-last, of every tensor. The answer
 * is that of the reference on compact copies, and what lies between the elements stays as it was.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "calls.h"
#include "expect.h"

/* Strides for axes in the order of memory given by `order`, outermost first, with a gap. */
static array *make_permuted(onepass_dtype dtype, int ndim, const int64_t *shape, const int *order,
                            int64_t innermost, int64_t gap, int64_t shift) {
  int64_t strides[ONEPASS_MAX_NDIM];
  int64_t step = innermost;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[order[d]] = step;
    step = step * shape[order[d]] + gap;
  }
  return array_new_strided(dtype, ndim, shape, strides, shift);
}

static array *compact(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  (void)role;
  return array_new(dtype, ndim, shape);
}

/* The whole tensor transposed: the first axis is the fastest. */
static array *transposed(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  int order[ONEPASS_MAX_NDIM];
  (void)role;
  for (int d = 0; d < ndim; d++) order[d] = ndim - 1 - d;
  return make_permuted(dtype, ndim, shape, order, 1, 0, 0);
}

/* (batch, channels, length) with the channels innermost; others as they come. */
static array *channels_last(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  int order[ONEPASS_MAX_NDIM];
  (void)role;
  if (ndim < 3) return array_new(dtype, ndim, shape);
  order[0] = 0;
  for (int d = 1; d < ndim - 1; d++) order[d] = d + 1;
  order[ndim - 1] = 1;
  return make_permuted(dtype, ndim, shape, order, 1, 0, 0);
}

/* A slice of something larger: dense rows with gaps between them, off any boundary. */
static array *sliced_rows(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  int order[ONEPASS_MAX_NDIM];
  for (int d = 0; d < ndim; d++) order[d] = d;
  return make_permuted(dtype, ndim, shape, order, 1, 3, 1 + role % 3);
}

/* Every third element. */
static array *sliced_columns(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  int order[ONEPASS_MAX_NDIM];
  for (int d = 0; d < ndim; d++) order[d] = d;
  return make_permuted(dtype, ndim, shape, order, 3, 5, role % 4);
}

/* One slice of x is repeated along the first axis, one element of the weight everywhere. The other
 * tensors are compact, as outputs must be. */
static array *repeated_x(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  int64_t strides[ONEPASS_MAX_NDIM];
  int64_t step = 1;
  if (role != X && role != WEIGHT) return array_new(dtype, ndim, shape);
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = role == WEIGHT || d == 0 ? 0 : step;
    step *= shape[d];
  }
  return array_new_strided(dtype, ndim, shape, strides, 0);
}

/* One row of dy and one element of the bias are repeated everywhere. */
static array *repeated_dy(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  int64_t strides[ONEPASS_MAX_NDIM] = {0};
  if (role != DY && role != BIAS) return array_new(dtype, ndim, shape);
  if (role == DY) strides[ndim - 1] = 1;
  return array_new_strided(dtype, ndim, shape, strides, 0);
}

/* Inputs one way, outputs another. */
static array *mixed(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  const array_maker makers[3] = {transposed, sliced_columns, compact};
  return makers[role % 3](role, dtype, ndim, shape);
}

/* A plain stride-1 tensor whose axes of size 1 have absurd strides: they are never used. */
static array *strange_ones(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  array *a = array_new(dtype, ndim, shape);
  for (int d = 0; d < ndim; d++) {
    if (shape[d] == 1) a->strides[d] = role % 2 ? 0 : 987654321;
  }
  return a;
}

static const struct {
  const char *name;
  array_maker maker;
} layouts[] = {
    {"compact", compact},
    {"transposed", transposed},
    {"channels last", channels_last},
    {"sliced rows", sliced_rows},
    {"sliced columns", sliced_columns},
    {"repeated x and weight", repeated_x},
    {"repeated dy and bias", repeated_dy},
    {"mixed", mixed},
    {"strange strides of ones", strange_ones},
};

static void expect_right(enum kind kind, onepass_dtype dtype, onepass_dtype weight, int ndim,
                         const int64_t *shape, int axis, size_t layout) {
  call *c = call_new_with(kind, dtype, weight, ndim, shape, axis, layouts[layout].maker);
  c->options.threads = 2;
  if (EXPECT_OK(call_run(c))) {
    call *reference = call_reference(c);
    double distance = call_distance(c, reference);
    EXPECT(distance <= 1, "%s of %s, %s, %d dimensions %dx%d..., axis %d: %g times the bound",
           kind_name[kind], dtype_name(dtype), layouts[layout].name, ndim, (int)shape[0],
           (int)shape[1], axis, distance);
    EXPECT(call_guards_hold(c), "%s of %s, %s, axis %d wrote between or outside the elements",
           kind_name[kind], dtype_name(dtype), layouts[layout].name, axis);
    call_free(reference);
  }
  call_free(c);
}

static void test_any_strides_are_right(void) {
  const int64_t shapes[][4] = {
      {2, 3, 5, 7}, {3, 1, 17, 33}, {1, 8, 1, 130}, {5, 4, 64, 1}, {2, 2, 300, 3}};
  for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
      for (size_t d = 0; d < 4; d++) {
        onepass_dtype dtype = every_dtype[d];
        onepass_dtype weight = dtype.bits == 16 && s % 2 ? ONEPASS_F32 : dtype;
        for (int axis = 0; axis < 4; axis++) {
          for (int k = L1_FORWARD; k <= LAYER_BACKWARD; k++) {
            expect_right((enum kind)k, dtype, weight, 4, shapes[s], axis, l);
          }
        }
        if (shapes[s][3] == 1) continue;
        for (int ndim = 2; ndim <= 3; ndim++) {
          expect_right(POOL_FORWARD, dtype, dtype, ndim, shapes[s] + 4 - ndim, -1, l);
          expect_right(POOL_BACKWARD, dtype, dtype, ndim, shapes[s] + 4 - ndim, -1, l);
        }
      }
    }
  }
}

/* Rows large enough for the kernels that split or stream them. */
static void test_any_strides_are_right_for_large_tensors(void) {
  const int64_t shapes[][3] = {{2, 3, 40000}, {300, 2, 513}, {40, 3000, 3}};
  for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
      for (int k = 0; k < KINDS; k++) {
        expect_right((enum kind)k, ONEPASS_F32, ONEPASS_F32, 3, shapes[s], -1, l);
        if (k <= LAYER_BACKWARD) {
          expect_right((enum kind)k, ONEPASS_F32, ONEPASS_F32, 3, shapes[s], 1, l);
        }
      }
    }
  }
}

static void test_eight_dimensions_are_right(void) {
  const int64_t shape[8] = {2, 1, 3, 2, 2, 1, 3, 4};
  for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
    for (int axis = 0; axis < 8; axis++) {
      for (int k = L1_FORWARD; k <= LAYER_BACKWARD; k++) {
        expect_right((enum kind)k, ONEPASS_F32, ONEPASS_F32, 8, shape, axis, l);
      }
    }
  }
}

/* No strides are compact row-major ones. */
static void test_null_strides_are_compact(void) {
  const int64_t shape[3] = {3, 4, 21};
  for (int k = 0; k < KINDS; k++) {
    call *given = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    call *null = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    for (int r = 0; r < ROLES; r++) {
      if (null->role[r]) null->role[r]->tensor.strides = NULL;
    }
    EXPECT_OK(call_run(given));
    EXPECT_OK(call_run(null));
    EXPECT(call_outputs_same_bits(given, null), "%s differs", kind_name[k]);
    call_free(given);
    call_free(null);
  }
}

int main(void) {
  test_any_strides_are_right();
  test_any_strides_are_right_for_large_tensors();
  test_eight_dimensions_are_right();
  test_null_strides_are_compact();
  return expect_report("test_strides");
}
