/*
 * Values that break careless arithmetic: NaN, infinities, zeros, denormals, offsets much larger
 * than the spread, long sums. The answers are PyTorch's.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "calls.h"
#include "expect.h"
#include "levels.h"

static const int64_t the_shape[2] = {5, 67};

static call *call_on(enum kind kind, onepass_dtype dtype, double eps) {
  call *c = call_new(kind, dtype, 2, the_shape, 1);
  c->norm.eps = eps;
  return c;
}

/* Row 2 is special; the others must not notice. */
static void set_row(array *a, int64_t row, double value) {
  for (int64_t i = 0; i < the_shape[1]; i++) array_set(a, row * the_shape[1] + i, value);
}

static void expect_other_rows_right(const call *c, int64_t row, const char *label) {
  call *reference = call_reference(c);
  enum role out = c->role[Y] ? Y : DX;
  for (int64_t i = 0; i < c->role[out]->count; i++) {
    double actual = array_get(c->role[out], i), wanted = array_get(reference->role[out], i);
    if (i / the_shape[1] == row) continue;
    EXPECT(fabs(actual - wanted) <= 0.02 * (1 + fabs(wanted)), "%s: element %d is %g, not %g",
           label, (int)i, actual, wanted);
  }
  call_free(reference);
}

static void test_a_zero_row_of_l1_norm_is_zero_by_zero(void) {
  for (size_t d = 0; d < 4; d++) {
    for (int reduction = 0; reduction < 2; reduction++) {
      call *c = call_on(L1_FORWARD, every_dtype[d], 0);
      c->norm.reduction = (onepass_reduction)reduction;
      set_row(c->role[X], 2, 0);
      EXPECT_OK(call_run(c));
      for (int64_t i = 0; i < the_shape[1]; i++) {
        double y = array_get(c->role[Y], 2 * the_shape[1] + i);
        EXPECT(isnan(y), "0/0 is %g at %d of %s", y, (int)i, dtype_name(every_dtype[d]));
      }
      expect_other_rows_right(c, 2, "zero row");
      call_free(c);
    }
  }
}

static void test_a_zero_row_of_l1_norm_with_eps_is_zero(void) {
  call *c = call_on(L1_FORWARD, ONEPASS_F32, 1e-6);
  set_row(c->role[X], 2, 0);
  EXPECT_OK(call_run(c));
  for (int64_t i = 0; i < the_shape[1]; i++) {
    double y = array_get(c->role[Y], 2 * the_shape[1] + i);
    EXPECT(y == 0, "0/eps is %g at %d", y, (int)i);
  }
  call_free(c);
}

static void test_the_gradient_of_l1_norm_takes_sign_0_as_0(void) {
  for (int reduction = 0; reduction < 2; reduction++) {
    call *c = call_on(L1_BACKWARD, ONEPASS_F64, 0);
    double sum = 0;
    c->norm.reduction = (onepass_reduction)reduction;
    for (int64_t i = 0; i < c->role[X]->count; i += 3) array_set(c->role[X], i, i % 2 ? 0.0 : -0.0);
    EXPECT_OK(call_run(c));
    for (int64_t i = 0; i < the_shape[1]; i++) sum += fabs(array_get(c->role[X], i));
    if (reduction == ONEPASS_MEAN) sum /= (double)the_shape[1];
    for (int64_t i = 0; i < the_shape[1]; i += 3) {
      double wanted = array_get(c->role[DY], i) / sum;
      EXPECT(fabs(array_get(c->role[DX], i) - wanted) <= 1e-14 * fabs(wanted),
             "dx of a zero is %.17g, not dy / |x| = %.17g", array_get(c->role[DX], i), wanted);
    }
    call_free(c);
  }
}

/* PyTorch: dy / 0 is infinite, and 0 * (0/0) makes it NaN. */
static void test_the_gradient_of_a_zero_row_of_l1_norm_is_nan(void) {
  for (size_t d = 0; d < 4; d++) {
    call *c = call_on(L1_BACKWARD, every_dtype[d], 0);
    set_row(c->role[X], 2, 0);
    EXPECT_OK(call_run(c));
    for (int64_t i = 0; i < the_shape[1]; i++) {
      double dx = array_get(c->role[DX], 2 * the_shape[1] + i);
      EXPECT(isnan(dx), "dx of a zero row is %g at %d of %s", dx, (int)i,
             dtype_name(every_dtype[d]));
    }
    expect_other_rows_right(c, 2, "zero row");
    call_free(c);
  }
}

static void test_a_nan_makes_its_row_nan_and_no_other(void) {
  for (size_t d = 0; d < 4; d++) {
    for (int k = L1_FORWARD; k <= LAYER_BACKWARD; k++) {
      for (int64_t at = 0; at < the_shape[1]; at += 11) {
        call *c = call_on((enum kind)k, every_dtype[d], 1e-5);
        array *out = c->role[c->role[Y] ? Y : DX];
        array_set(c->role[c->role[DY] ? DY : X], 2 * the_shape[1] + at, (double)NAN);
        EXPECT_OK(call_run(c));
        for (int64_t i = 0; i < the_shape[1]; i++) {
          double value = array_get(out, 2 * the_shape[1] + i);
          EXPECT(isnan(value), "%s of %s with NaN at %d has %g at %d", kind_name[k],
                 dtype_name(every_dtype[d]), (int)at, value, (int)i);
        }
        expect_other_rows_right(c, 2, kind_name[k]);
        call_free(c);
      }
    }
  }
}

static void test_an_infinity_in_l1_norm_is_nan_and_the_rest_of_its_row_zero(void) {
  for (size_t d = 0; d < 4; d++) {
    for (int sign = -1; sign <= 1; sign += 2) {
      call *c = call_on(L1_FORWARD, every_dtype[d], 0);
      array_set(c->role[X], 2 * the_shape[1] + 13, sign * (double)INFINITY);
      EXPECT_OK(call_run(c));
      for (int64_t i = 0; i < the_shape[1]; i++) {
        double y = array_get(c->role[Y], 2 * the_shape[1] + i);
        EXPECT(i == 13 ? isnan(y) : y == 0, "beside infinity %s has %g at %d",
               dtype_name(every_dtype[d]), y, (int)i);
      }
      expect_other_rows_right(c, 2, "infinity");
      call_free(c);
    }
  }
}

static void test_an_infinity_in_layer_norm_makes_its_row_nan(void) {
  for (size_t d = 0; d < 4; d++) {
    call *c = call_on(LAYER_FORWARD, every_dtype[d], 1e-5);
    array_set(c->role[X], 2 * the_shape[1] + 13, (double)INFINITY);
    EXPECT_OK(call_run(c));
    for (int64_t i = 0; i < the_shape[1]; i++) {
      double y = array_get(c->role[Y], 2 * the_shape[1] + i);
      EXPECT(isnan(y), "beside infinity %s has %g at %d", dtype_name(every_dtype[d]), y, (int)i);
    }
    EXPECT(isnan(array_get(c->role[RSTD], 2)), "rstd is %g", array_get(c->role[RSTD], 2));
    expect_other_rows_right(c, 2, "infinity");
    call_free(c);
  }
}

/* Not a little of it: what is multiplied with the slope may be infinite, too. */
static void test_slopes_at_minus_infinity_are_0(void) {
  for (size_t d = 0; d < 4; d++) {
    for (int activation = ONEPASS_RELU; activation <= ONEPASS_SILU; activation++) {
      call *c = call_on(FUSED_BACKWARD, every_dtype[d], 1e-5);
      c->norm.activation = (onepass_activation)activation;
      array_set(c->role[BIAS], 13, -(double)INFINITY);
      EXPECT_OK(call_run(c));
      double dweight = array_get(c->role[DWEIGHT], 13), dbias = array_get(c->role[DBIAS], 13);
      EXPECT(dweight == 0 && dbias == 0, "activation %d of %s: dweight is %g, dbias %g", activation,
             dtype_name(every_dtype[d]), dweight, dbias);
      EXPECT(array_get(c->role[DBIAS], 14) != 0, "nothing was computed");
      call_free(c);
    }
  }
}

static void test_pooling_keeps_nan_and_infinity_in_their_windows(void) {
  for (size_t d = 0; d < 4; d++) {
    call *c = call_on(POOL_FORWARD, every_dtype[d], 0);
    int64_t pooled = c->role[Y]->shape[1];
    array_set(c->role[X], 2 * the_shape[1] + 20, (double)NAN); /* windows 10 only: 2i-1..2i+1 */
    array_set(c->role[X], 2 * the_shape[1] + 31, (double)INFINITY); /* windows 15 and 16 */
    EXPECT_OK(call_run(c));
    for (int64_t i = 0; i < c->role[Y]->count; i++) {
      double y = array_get(c->role[Y], i);
      int64_t window = i - 2 * pooled;
      if (window == 10) {
        EXPECT(isnan(y), "the window with NaN of %s is %g", dtype_name(every_dtype[d]), y);
      } else if (window == 15 || window == 16) {
        EXPECT(isinf(y) && y > 0, "the window with infinity of %s is %g",
               dtype_name(every_dtype[d]), y);
      } else {
        EXPECT(isfinite(y), "window %d of %s is %g", (int)window, dtype_name(every_dtype[d]), y);
      }
    }
    call_free(c);
  }
}

/* E[x^2] - E[x]^2 has no digit left here; two passes keep most of them. */
static void test_layer_norm_of_a_large_offset_keeps_its_digits(void) {
  const int64_t shapes[][2] = {{4, 64}, {3, 1000}, {2, 70001}, {1, 300000}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (int k = LAYER_FORWARD; k <= LAYER_BACKWARD; k++) {
      call *c = call_new((enum kind)k, ONEPASS_F32, 2, shapes[s], 1);
      call_fill(c, 9, 1e4, 1);
      EXPECT_OK(call_run(c));
      call *reference = call_reference(c);
      array *out = c->role[c->role[Y] ? Y : DX], *right = reference->role[c->role[Y] ? Y : DX];
      /* 1e4 in f32 has steps of 1e-3: a mean one step off moves every y by that much. */
      double distance = array_distance(out, right, 4e-3, 4e-3);
      EXPECT(distance <= 1, "%s of %dx%d around 1e4: %g times the bound", kind_name[k],
             (int)shapes[s][0], (int)shapes[s][1], distance);
      call_free(reference);
      call_free(c);
    }
  }
}

static void test_a_constant_row_of_layer_norm_is_the_bias(void) {
  const double values[] = {0, 1, -3.5, 1024, 0.1};
  for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
    call *c = call_on(LAYER_FORWARD, ONEPASS_F32, 1e-5);
    set_row(c->role[X], 2, values[v]);
    EXPECT_OK(call_run(c));
    for (int64_t i = 0; i < the_shape[1]; i++) {
      double y = array_get(c->role[Y], 2 * the_shape[1] + i), bias = array_get(c->role[BIAS], i);
      /* The mean may be a few steps of f32 off; 1 / sqrt(eps) = 316 magnifies that. */
      EXPECT(fabs(y - bias) <= 1e-6 + 4 * 316 * 6e-8 * fabs(values[v]) * 4,
             "a row of %g gives %g, not the bias %g", values[v], y, bias);
    }
    call_free(c);
  }
}

/* Rows whose elements are all alike, by less than a deviation of 1 / sqrt(eps) from zero, so that
 * mean * rstd is a number that has to be rounded. */
static void set_constant_rows(call *c) {
  const int64_t rows = c->role[X]->shape[0], n = c->role[X]->shape[1];
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t i = 0; i < n; i++) array_set(c->role[X], row * n + i, 1e-5 * (double)(row + 1));
    if (c->kind != LAYER_BACKWARD) continue;
    array_set(c->role[MEAN], row, array_get(c->role[X], row * n));
    array_set(c->role[RSTD], row, 1 / sqrt(c->norm.eps));
  }
}

static void expect_nothing_of_constant_rows(enum kind kind, onepass_dtype dtype, int64_t n,
                                            int level) {
  const int64_t shape[2] = {200, n};
  call *c = call_new(kind, dtype, 2, shape, 1);
  c->norm.eps = 1e-5;
  c->options.vector_level = level;
  set_constant_rows(c);
  EXPECT_OK(call_run(c));
  const array *out = c->role[kind == LAYER_FORWARD ? Y : DWEIGHT];
  for (int64_t i = 0; i < out->count; i++) {
    double wanted = kind == LAYER_FORWARD ? array_get(c->role[BIAS], i % n) : 0;
    EXPECT(array_get(out, i) == wanted, "%s, constant rows of %d %s, %s: %g, not %g",
           kind_name[kind], (int)n, dtype_name(dtype), level_name[level], array_get(out, i),
           wanted);
  }
  call_free(c);
}

/* There x - mean is 0, so y is the bias and dweight 0: not a rounding error times 1 / sqrt(eps). */
static void test_constant_rows_of_layer_norm_leave_nothing_of_x(void) {
  const int64_t lengths[] = {1, 2, 3, 67, 1024, 20000};
  for (int level = 0; level < LEVELS; level++) {
    for (size_t d = 0; cpu_has_level(level) && d < 4; d++) {
      for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        expect_nothing_of_constant_rows(LAYER_BACKWARD, every_dtype[d], lengths[l], level);
        if (lengths[l] > 4) continue; /* the sum of more equal numbers is rounded */
        expect_nothing_of_constant_rows(LAYER_FORWARD, every_dtype[d], lengths[l], level);
      }
    }
  }
}

/* Denormals are numbers: they are not flushed to zero on the way in. */
static void test_a_row_of_denormals_is_normalized(void) {
  for (size_t d = 0; d < 4; d++) {
    if (every_dtype[d].code == ONEPASS_F16.code && every_dtype[d].bits == 16) continue;
    call *c = call_on(L1_FORWARD, every_dtype[d], 0);
    double tiny = every_dtype[d].bits == 64 ? 4e-310 : 3e-40;
    set_row(c->role[X], 2, tiny);
    array_set(c->role[X], 2 * the_shape[1] + 1, -tiny);
    c->norm.reduction = ONEPASS_SUM;
    EXPECT_OK(call_run(c));
    for (int64_t i = 0; i < the_shape[1]; i++) {
      double y = array_get(c->role[Y], 2 * the_shape[1] + i);
      double wanted = (i == 1 ? -1.0 : 1.0) / (double)the_shape[1];
      EXPECT(fabs(y - wanted) <= 1e-5 + dtype_unit(every_dtype[d]) * fabs(wanted),
             "a denormal %s over its sum is %g, not %g", dtype_name(every_dtype[d]), y, wanted);
    }
    call_free(c);
  }
}

/* Squares of 1e-20 are denormal in f32, and a row around zero gives no hint that they are lost. */
static void test_layer_norm_of_values_whose_squares_are_denormal(void) {
  for (size_t d = 0; d < 4; d++) {
    if (every_dtype[d].code == ONEPASS_F16.code && every_dtype[d].bits == 16) continue;
    const int64_t shape[2] = {3, 640};
    call *c = call_new(LAYER_FORWARD, every_dtype[d], 2, shape, 1);
    c->norm.eps = 0;
    array_fill(c->role[WEIGHT], 1);
    array_fill(c->role[BIAS], 0);
    for (int64_t i = 0; i < c->role[X]->count; i++)
      array_set(c->role[X], i, i % 2 ? 1e-20 : -1e-20);
    EXPECT_OK(call_run(c));
    for (int64_t i = 0; i < c->role[Y]->count; i++) {
      double y = array_get(c->role[Y], i), wanted = i % 2 ? 1 : -1;
      EXPECT(fabs(y - wanted) <= 1e-2, "%s: %g became %g", dtype_name(every_dtype[d]),
             wanted * 1e-20, y);
    }
    call_free(c);
  }
}

static void test_half_denormals_are_read_and_written(void) {
  call *c = call_on(POOL_FORWARD, ONEPASS_F16, 0);
  array_fill(c->role[X], ldexp(3, -24)); /* 3 of the smallest steps */
  c->pool.count_include_pad = 0;
  EXPECT_OK(call_run(c));
  for (int64_t i = 0; i < c->role[Y]->count; i++) {
    EXPECT(array_get(c->role[Y], i) == ldexp(3, -24), "the mean of denormals is %g",
           array_get(c->role[Y], i));
  }
  call_free(c);
}

static void test_huge_values_do_not_overflow_where_the_answer_is_small(void) {
  call *c = call_on(L1_FORWARD, ONEPASS_F32, 0);
  set_row(c->role[X], 2, 1e36); /* the sum is 6.7e37, still an f32 */
  EXPECT_OK(call_run(c));
  for (int64_t i = 0; i < the_shape[1]; i++) {
    double y = array_get(c->role[Y], 2 * the_shape[1] + i);
    EXPECT(fabs(y - 1) <= 1e-5, "1e36 over its mean is %g", y);
  }
  call_free(c);
  c = call_on(L1_FORWARD, ONEPASS_F16, 0);
  set_row(c->role[X], 2, 60000); /* the sum is far beyond f16 */
  EXPECT_OK(call_run(c));
  for (int64_t i = 0; i < the_shape[1]; i++) {
    double y = array_get(c->role[Y], 2 * the_shape[1] + i);
    EXPECT(y == 1, "60000 over its mean is %g in f16", y);
  }
  call_free(c);
}

/* What goes over the type's largest value is infinity, not a wrapped number. */
static void test_results_over_the_largest_half_are_infinite(void) {
  call *c = call_on(LAYER_FORWARD, ONEPASS_F16, 1e-5);
  array_fill(c->role[WEIGHT], 65504);
  EXPECT_OK(call_run(c));
  call *reference = call_reference(c);
  int64_t infinite = 0;
  for (int64_t i = 0; i < c->role[Y]->count; i++) {
    double y = array_get(c->role[Y], i), wanted = array_get(reference->role[Y], i);
    if (fabs(wanted) > 65600) {
      EXPECT(isinf(y) && (y > 0) == (wanted > 0), "%g became %g", wanted, y);
      infinite++;
    } else if (fabs(wanted) < 65400) {
      EXPECT(fabs(y - wanted) <= 1e-3 * fabs(wanted) + 0.6, "%g became %g", wanted, y);
    }
  }
  EXPECT(infinite > 0, "the test has no value over the largest half");
  call_free(reference);
  call_free(c);
}

/* A sum of millions keeps its error near 1e-7: many partial sums, not one long one. */
static void test_a_sum_over_millions_is_accurate(void) {
  const int64_t shape[2] = {1, 3000001};
  for (int k = L1_FORWARD; k <= LAYER_BACKWARD; k++) {
    call *c = call_new((enum kind)k, ONEPASS_F32, 2, shape, 1);
    call_fill(c, 5, 3, 1);
    EXPECT_OK(call_run(c));
    call *reference = call_reference(c);
    for (int r = 0; r < ROLES; r++) {
      if (c->role[r] == NULL || !role_is_output((enum kind)k, (enum role)r)) continue;
      double distance = array_distance(c->role[r], reference->role[r], 1e-6, 1e-6);
      EXPECT(distance <= 1, "%s of 3 million: %s is %g times 1e-6 off", kind_name[k], role_name[r],
             distance);
    }
    call_free(reference);
    call_free(c);
  }
}

static void test_dweight_over_a_million_rows_is_accurate(void) {
  const int64_t shape[2] = {1000003, 3};
  call *c = call_new(LAYER_BACKWARD, ONEPASS_F32, 2, shape, 1);
  EXPECT_OK(call_run(c));
  call *reference = call_reference(c);
  /* Sums of a million terms of size 1: about 5e5 for dbias. */
  double dbias = array_distance(c->role[DBIAS], reference->role[DBIAS], 0.5, 1e-6);
  double dweight = array_distance(c->role[DWEIGHT], reference->role[DWEIGHT], 0.5, 1e-6);
  EXPECT(dbias <= 1, "dbias is %g times the bound off", dbias);
  EXPECT(dweight <= 1, "dweight is %g times the bound off", dweight);
  call_free(reference);
  call_free(c);
}

/* Squares of 1e18 are beyond f32, and so are those of deviations of 1e30: nothing may become 0. */
static void test_layer_norm_of_values_whose_squares_overflow(void) {
  const int64_t lengths[] = {100, 1000, 10000};
  const double spreads[] = {1e-3, 1e12};
  for (size_t l = 0; l < 2 * sizeof lengths / sizeof *lengths; l++) {
    const int64_t shape[2] = {3, lengths[l / 2]};
    const double spread = spreads[l % 2];
    call *c = call_new(LAYER_FORWARD, ONEPASS_F32, 2, shape, 1);
    c->norm.eps = 1e-5;
    for (int64_t i = 0; i < c->role[X]->count; i++) {
      array_set(c->role[X], i, 1e18 * (1 + spread * (double)(i * 7919 % 1000) / 1000));
    }
    EXPECT_OK(call_run(c));
    call *reference = call_reference(c);
    for (int64_t i = 0; i < c->role[Y]->count; i++) {
      double actual = array_get(c->role[Y], i), wanted = array_get(reference->role[Y], i);
      EXPECT(fabs(actual - wanted) <= 1e-3 * (1 + fabs(wanted)), "length %d: y[%d] is %g, not %g",
             (int)shape[1], (int)i, actual, wanted);
    }
    call_free(reference);
    call_free(c);
  }
}

int main(void) {
  test_a_zero_row_of_l1_norm_is_zero_by_zero();
  test_a_zero_row_of_l1_norm_with_eps_is_zero();
  test_the_gradient_of_l1_norm_takes_sign_0_as_0();
  test_the_gradient_of_a_zero_row_of_l1_norm_is_nan();
  test_a_nan_makes_its_row_nan_and_no_other();
  test_an_infinity_in_l1_norm_is_nan_and_the_rest_of_its_row_zero();
  test_an_infinity_in_layer_norm_makes_its_row_nan();
  test_slopes_at_minus_infinity_are_0();
  test_pooling_keeps_nan_and_infinity_in_their_windows();
  test_layer_norm_of_a_large_offset_keeps_its_digits();
  test_a_constant_row_of_layer_norm_is_the_bias();
  test_constant_rows_of_layer_norm_leave_nothing_of_x();
  test_a_row_of_denormals_is_normalized();
  test_layer_norm_of_values_whose_squares_are_denormal();
  test_half_denormals_are_read_and_written();
  test_huge_values_do_not_overflow_where_the_answer_is_small();
  test_results_over_the_largest_half_are_infinite();
  test_layer_norm_of_values_whose_squares_overflow();
  test_a_sum_over_millions_is_accurate();
  test_dweight_over_a_million_rows_is_accurate();
  return expect_report("test_special_values");
}
