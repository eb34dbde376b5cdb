/*
 * Tensors of more than 2^31 elements: in one row, in a few long ones, in very many short ones, and
 * in the lines of a pool.
 *
 * Inputs repeat one period of random values, so that the host knows every sum from one period, and
 * outputs repeat as well: one period is compared with what it should be, the rest with that period.
 * Where bits differ (which is allowed) elements are compared with what they should be, too.
 *
 * SPDX-License-Identifier: MIT
 */
#include <inttypes.h>
#include <stdlib.h>

#include "gpu.h"

enum { GUARD = 256, PATTERN = 0xA5 };
static const int64_t two31 = INT64_C(1) << 31;

typedef struct form {
  enum kind kind;
  onepass_dtype dtype;
  int64_t rows, columns;           /* of x, or for a pool's backward of dx */
  int64_t kernel, stride, padding; /* pools only */
  int64_t period;                  /* of the inputs; whole rows, or part of one */
} form;

typedef struct huge {
  form form;
  int64_t in, out;             /* how long a row of x or dy is, and one of y or dx */
  int64_t distinct;            /* rows from which on they repeat */
  array *period[ROLES];        /* one period of each input */
  unsigned char *block[ROLES]; /* on the device, with guards */
  int64_t count[ROLES];
  double *stat[4]; /* of the distinct rows; see find_l1_stats and find_layer_stats */
} huge;

static const double l1_eps = 1e-6, layer_eps = 1e-5;

static onepass_dtype dtype_of(const huge *h, int role) {
  return role == MEAN || role == RSTD ? dtype_of_stats(h->form.dtype) : h->form.dtype;
}

static int64_t size_of(const huge *h, int role) { return dtype_size(dtype_of(h, role)); }

static int is_pool(enum kind kind) { return kind >= POOL_FORWARD; }

/* An input's element k of row q. Weight and bias are one row that all share. */
static double at(const huge *h, int role, int64_t q, int64_t k) {
  const int64_t start = role == WEIGHT || role == BIAS ? 0 : q % h->distinct * h->in;
  return array_get(h->period[role], (start + k) % h->period[role]->count);
}

/* ---- What the outputs should be -------------------------------------------------------------- */

typedef double (*term)(const huge *h, int64_t q, int64_t k);

/* The sum over a row, from one period of it. */
static double row_sum(const huge *h, int64_t q, term value) {
  const int64_t period = h->form.period, whole = h->in / period, rest = h->in % period;
  double all = 0, part = 0;
  for (int64_t k = 0; k < (whole ? period : rest); k++) {
    if (k == rest) part = all;
    all += value(h, q, k);
  }
  return whole ? (double)whole * all + part : all;
}

static double x_size(const huge *h, int64_t q, int64_t k) { return fabs(at(h, X, q, k)); }
static double x_of(const huge *h, int64_t q, int64_t k) { return at(h, X, q, k); }
static double dy_x(const huge *h, int64_t q, int64_t k) { return at(h, DY, q, k) * at(h, X, q, k); }
static double dy_x_size(const huge *h, int64_t q, int64_t k) { return fabs(dy_x(h, q, k)); }
static double from_mean(const huge *h, int64_t q, int64_t k) {
  return at(h, X, q, k) - h->stat[0][q];
}
static double squared(const huge *h, int64_t q, int64_t k) {
  return from_mean(h, q, k) * from_mean(h, q, k);
}
static double normalized(const huge *h, int64_t q, int64_t k) {
  return from_mean(h, q, k) * h->stat[1][q];
}
static double dy_weight(const huge *h, int64_t q, int64_t k) {
  return at(h, DY, q, k) * at(h, WEIGHT, q, k);
}
static double dy_normalized(const huge *h, int64_t q, int64_t k) {
  return dy_weight(h, q, k) * normalized(h, q, k);
}

/* The denominator, the sum of dy x, and that of |dy x|. */
static void find_l1_stats(huge *h, int64_t q) {
  h->stat[0][q] = row_sum(h, q, x_size) / (double)h->in + l1_eps;
  if (h->form.kind == L1_FORWARD) return;
  h->stat[1][q] = row_sum(h, q, dy_x);
  h->stat[2][q] = row_sum(h, q, dy_x_size);
}

/* Mean and rstd; the means of dy weight and of dy weight times the normalized x. A backward is given
 * the first two as their type rounds them. */
static void find_layer_stats(huge *h, int64_t q) {
  h->stat[0][q] = row_sum(h, q, x_of) / (double)h->in;
  h->stat[1][q] = 1 / sqrt(row_sum(h, q, squared) / (double)h->in + layer_eps);
  if (h->form.kind == LAYER_FORWARD) return;
  array_set(h->period[MEAN], q, h->stat[0][q]);
  array_set(h->period[RSTD], q, h->stat[1][q]);
  h->stat[0][q] = array_get(h->period[MEAN], q);
  h->stat[1][q] = array_get(h->period[RSTD], q);
  h->stat[2][q] = row_sum(h, q, dy_weight) / (double)h->in;
  h->stat[3][q] = row_sum(h, q, dy_normalized) / (double)h->in;
}

/* A value and the size of the terms that it is made of, which sets its error. */
typedef struct expected {
  double value, terms;
} expected;

static expected expected_l1(const huge *h, int64_t q, int64_t k) {
  const double x = at(h, X, q, k), d = h->stat[0][q];
  if (h->form.kind == L1_FORWARD) return (expected){x / d, fabs(x) / d};
  const double c = 1 / (double)h->in / d / d, g = at(h, DY, q, k) / d;
  const double sign = (x > 0) - (x < 0);
  return (expected){g - c * sign * h->stat[1][q], fabs(g) + c * h->stat[2][q]};
}

static expected expected_y(const huge *h, int64_t q, int64_t k) {
  const double weight = at(h, WEIGHT, q, k), bias = at(h, BIAS, q, k), rstd = h->stat[1][q];
  return (expected){normalized(h, q, k) * weight + bias,
                    (fabs(at(h, X, q, k)) + 1) * rstd * fabs(weight) + fabs(bias)};
}

static expected expected_dx(const huge *h, int64_t q, int64_t k) {
  const double g = dy_weight(h, q, k), hat = normalized(h, q, k), rstd = h->stat[1][q];
  return (expected){rstd * (g - h->stat[2][q] - hat * h->stat[3][q]),
                    rstd * (fabs(g) + 1 + fabs(hat))};
}

/* Over all rows: how often each of the distinct ones is there is known. */
static expected expected_gradient(const huge *h, int role, int64_t k) {
  expected e = {0, 0};
  for (int64_t q = 0; q < h->distinct; q++) {
    const int64_t times = h->form.rows / h->distinct + (q < h->form.rows % h->distinct);
    const double dy = at(h, DY, q, k), hat = role == DWEIGHT ? normalized(h, q, k) : 1;
    e.value += (double)times * dy * hat;
    e.terms += (double)times * fabs(dy) * (fabs(hat) + 1);
  }
  return e;
}

static expected expected_pooled(const huge *h, int64_t q, int64_t j) {
  const form *f = &h->form;
  const int64_t start = j * f->stride - f->padding;
  expected e = {0, 0};
  for (int64_t t = start < 0 ? 0 : start; t < start + f->kernel && t < h->in; t++) {
    e.value += at(h, X, q, t);
    e.terms += fabs(at(h, X, q, t));
  }
  return (expected){e.value / (double)f->kernel, e.terms / (double)f->kernel};
}

static expected expected_spread(const huge *h, int64_t q, int64_t t) {
  const form *f = &h->form;
  const int64_t last = (t + f->padding) / f->stride;
  expected e = {0, 0};
  for (int64_t j = last < h->in ? last : h->in - 1; j >= 0; j--) {
    if (j * f->stride - f->padding + f->kernel <= t) break;
    e.value += at(h, DY, q, j) / (double)f->kernel;
    e.terms += fabs(at(h, DY, q, j)) / (double)f->kernel;
  }
  return e;
}

static expected expected_at(const huge *h, int role, int64_t i) {
  if (role == DWEIGHT || role == DBIAS) return expected_gradient(h, role, i);
  if (role == MEAN) return (expected){h->stat[0][i % h->distinct], 1};
  if (role == RSTD) {
    const double rstd = h->stat[1][i % h->distinct];
    return (expected){rstd, rstd * (1 + rstd)};
  }
  const int64_t q = i / h->out % h->distinct, k = i % h->out;
  switch (h->form.kind) {
    case LAYER_FORWARD:
      return expected_y(h, q, k);
    case LAYER_BACKWARD:
      return expected_dx(h, q, k);
    case POOL_FORWARD:
      return expected_pooled(h, q, k);
    case POOL_BACKWARD:
      return expected_spread(h, q, k);
    default:
      return expected_l1(h, q, k);
  }
}

/* ---- Arrays on the device -------------------------------------------------------------------- */

static int64_t elements_of(const huge *h, int role) {
  if (role == MEAN || role == RSTD) return h->form.rows;
  if (role == WEIGHT || role == BIAS || role == DWEIGHT || role == DBIAS) return h->form.columns;
  return h->form.rows * (role_is_output(h->form.kind, (enum role)role) ? h->out : h->in);
}

static size_t bytes_of(const huge *h, int role) {
  return (size_t)(elements_of(h, role) * size_of(h, role));
}

/* After how many elements an output repeats itself, within one row or over whole rows. */
static int64_t period_of_output(const huge *h, int role) {
  const form *f = &h->form;
  const int64_t in_a_row = f->kind == POOL_FORWARD    ? f->period / f->stride
                           : f->kind == POOL_BACKWARD ? f->period * f->stride
                                                      : f->period;
  if (role == MEAN || role == RSTD) return h->distinct;
  if (role == DWEIGHT || role == DBIAS) return h->in < f->period ? h->in : f->period;
  return h->in > f->period ? in_a_row : h->distinct * h->out;
}

static int64_t period_of_input(const huge *h, int role) {
  if (role == MEAN || role == RSTD) return h->distinct;
  const int64_t count = elements_of(h, role);
  return count < h->form.period ? count : h->form.period;
}

static CUdeviceptr first_of(const huge *h, int role) {
  return (CUdeviceptr)(uintptr_t)(h->block[role] + GUARD);
}

/* One period from the host, then what is there behind itself until the array is full. */
static void fill(const huge *h, int role) {
  const array *period = h->period[role];
  const size_t all = bytes_of(h, role);
  size_t there = (size_t)(period->count * size_of(h, role));
  gpu_to_device(&(gpu_copy){h->block[role] + GUARD, array_data(period), there}, 1);
  while (there < all) {
    const size_t more = there < all - there ? there : all - there;
    GPU(cuMemcpyDtoDAsync(first_of(h, role) + there, first_of(h, role), more, NULL));
    there += more;
  }
  GPU(cuCtxSynchronize());
}

static void make_arrays(huge *h) {
  for (int r = 0; r < ROLES; r++) {
    if (!role_is_used(h->form.kind, (enum role)r)) continue;
    h->block[r] = gpu_allocate(GUARD + bytes_of(h, r) + GUARD);
    GPU(cuMemsetD8Async((CUdeviceptr)(uintptr_t)h->block[r], PATTERN,
                        GUARD + bytes_of(h, r) + GUARD, NULL));
    if (!role_is_output(h->form.kind, (enum role)r)) fill(h, r);
  }
}

static void make_periods(huge *h) {
  for (int r = 0; r < ROLES; r++) {
    if (!role_is_used(h->form.kind, (enum role)r)) continue;
    if (role_is_output(h->form.kind, (enum role)r)) continue;
    const int64_t count = period_of_input(h, r);
    h->period[r] = array_new(dtype_of(h, r), 1, &count);
    array_fill_random(h->period[r], 40 + (uint64_t)r, r == X ? 0.25 : 0.5, 1);
  }
}

static void find_stats(huge *h) {
  if (is_pool(h->form.kind)) return;
  for (int s = 0; s < 4; s++) {
    h->stat[s] = calloc((size_t)h->distinct, sizeof *h->stat[s]);
    if (h->stat[s] == NULL) exit(2);
  }
  for (int64_t q = 0; q < h->distinct; q++) {
    if (h->form.kind <= L1_BACKWARD)
      find_l1_stats(h, q);
    else
      find_layer_stats(h, q);
  }
}

static huge huge_of(const form *f) {
  huge h = {.form = *f, .in = f->columns, .out = f->columns};
  int64_t pooled = f->columns;
  if (is_pool(f->kind)) {
    EXPECT_OK(onepass_pool_length(f->columns, f->kernel, f->stride, f->padding, 0, &pooled));
  }
  if (f->kind == POOL_FORWARD) h.out = pooled;
  if (f->kind == POOL_BACKWARD) h.in = pooled;
  h.form.period = h.in > f->period ? f->period : f->period / h.in * h.in;
  h.distinct = h.in > f->period ? f->rows : h.form.period / h.in;
  return h;
}

static void huge_free(huge *h) {
  for (int r = 0; r < ROLES; r++) {
    gpu_free(h->block[r]);
    array_free(h->period[r]);
  }
  for (int s = 0; s < 4; s++) free(h->stat[s]);
}

/* ---- Running and comparing ------------------------------------------------------------------- */

static onepass_status run(const huge *h) {
  const form *f = &h->form;
  const int64_t x_shape[2] = {f->rows, f->columns}, rows[2] = {f->rows, 1};
  const int64_t pooled[2] = {f->rows, f->kind == POOL_FORWARD ? h->out : h->in};
  const onepass_tensor *of[ROLES] = {NULL};
  onepass_tensor tensors[ROLES];
  for (int r = 0; r < ROLES; r++) {
    if (h->block[r] == NULL) continue;
    const int is_row = r == WEIGHT || r == BIAS || r == DWEIGHT || r == DBIAS;
    const int is_pooled = is_pool(f->kind) && (r == Y || r == DY);
    tensors[r] = (onepass_tensor){h->block[r],
                                  {ONEPASS_CUDA, 0},
                                  is_row ? 1 : 2,
                                  dtype_of(h, r),
                                  is_row                   ? &f->columns
                                  : r == MEAN || r == RSTD ? rows
                                  : is_pooled              ? pooled
                                                           : x_shape,
                                  NULL,
                                  GUARD};
    of[r] = &tensors[r];
  }
  switch (f->kind) {
    case L1_FORWARD:
      return onepass_l1_norm(of[X], 1, ONEPASS_MEAN, l1_eps, of[Y]);
    case L1_BACKWARD:
      return onepass_l1_norm_backward(of[DY], of[X], 1, ONEPASS_MEAN, l1_eps, of[DX]);
    case LAYER_FORWARD:
      return onepass_layer_norm(of[X], 1, of[WEIGHT], of[BIAS], layer_eps, of[Y], of[MEAN],
                                of[RSTD]);
    case LAYER_BACKWARD:
      return onepass_layer_norm_backward(of[DY], of[X], 1, of[WEIGHT], of[MEAN], of[RSTD], of[DX],
                                         of[DWEIGHT], of[DBIAS]);
    case POOL_FORWARD:
      return onepass_avg_pool1d(of[X], f->kernel, f->stride, f->padding, 0, 1, of[Y]);
    default:
      return onepass_avg_pool1d_backward(of[DY], f->kernel, f->stride, f->padding, 0, 1, of[DX]);
  }
}

static int is_right(const huge *h, int role, int64_t i, double actual) {
  const expected e = expected_at(h, role, i);
  const onepass_dtype dtype = dtype_of(h, role);
  const double bound =
      64 * dtype_unit(dtype_of_stats(dtype)) * e.terms + 1.01 * dtype_unit(dtype) * fabs(e.value);
  return fabs(actual - e.value) <= bound;
}

/* `count` elements from `first` on, `period` at a time. */
static void expect_range_right(const huge *h, int role, int64_t first, int64_t count,
                               int64_t period) {
  const int64_t size = size_of(h, role);
  array *before = array_new(dtype_of(h, role), 1, &period);
  array *now = array_new(dtype_of(h, role), 1, &period);
  int64_t wrong = 0, wrong_at = -1;
  for (int64_t start = 0; start < count; start += period) {
    const int64_t here = period < count - start ? period : count - start;
    gpu_to_host(&(gpu_copy){h->block[role] + GUARD + (first + start) * size, array_data(now),
                            (size_t)(here * size)},
                1);
    const int same =
        start && memcmp(array_data(before), array_data(now), (size_t)(here * size)) == 0;
    for (int64_t k = 0; !same && k < here; k++) {
      const double value = array_get(now, k);
      if ((start && value == array_get(before, k)) || is_right(h, role, first + start + k, value)) {
        continue;
      }
      if (!wrong++) wrong_at = first + start + k;
    }
    if (start == 0) memcpy(array_data(before), array_data(now), (size_t)(here * size));
  }
  EXPECT(wrong == 0,
         "%s of %s %" PRId64 "x%" PRId64 ": %" PRId64 " elements of %s are wrong, first %" PRId64,
         kind_name[h->form.kind], dtype_name(h->form.dtype), h->form.rows, h->form.columns, wrong,
         role_name[role], wrong_at);
  array_free(before);
  array_free(now);
}

static void expect_output_right(const huge *h, int role) {
  const int64_t period = period_of_output(h, role), all = elements_of(h, role);
  const int by_rows = (role == Y || role == DX) && h->in > h->form.period;
  const int64_t count = by_rows ? h->out : all;
  for (int64_t first = 0; first < all; first += count) {
    expect_range_right(h, role, first, count, period < count ? period : count);
  }
}

static void expect_guards_hold(const huge *h, int role) {
  unsigned char guards[2][GUARD];
  gpu_to_host((gpu_copy[]){{h->block[role], guards[0], GUARD},
                           {h->block[role] + GUARD + bytes_of(h, role), guards[1], GUARD}},
              2);
  for (int i = 0; i < 2 * GUARD; i++) {
    if (!EXPECT(guards[i / GUARD][i % GUARD] == PATTERN, "%s: wrote %s %s", kind_name[h->form.kind],
                i < GUARD ? "before" : "behind", role_name[role])) {
      return;
    }
  }
}

static size_t memory_for(const huge *h) {
  size_t bytes = (size_t)1 << 30; /* kernels, workspace */
  for (int r = 0; r < ROLES; r++) {
    if (role_is_used(h->form.kind, (enum role)r)) bytes += bytes_of(h, r) + 2 * GUARD;
  }
  return bytes;
}

/* 0 when there is no memory for it. */
static int expect_form_right(const form *f) {
  huge h = huge_of(f);
  if (memory_for(&h) > gpu_free_memory()) {
    printf("skip: test_cuda_huge: %s of %s %" PRId64 "x%" PRId64
           ": needs %.1f GiB of device memory, %.1f are free\n",
           kind_name[f->kind], dtype_name(f->dtype), f->rows, f->columns,
           (double)memory_for(&h) / (1 << 30), (double)gpu_free_memory() / (1 << 30));
    return 0;
  }
  make_periods(&h);
  find_stats(&h);
  make_arrays(&h);
  if (EXPECT_OK(run(&h))) {
    GPU(cuCtxSynchronize());
    for (int r = 0; r < ROLES; r++) {
      if (h.block[r]) expect_guards_hold(&h, r);
      if (h.block[r] && role_is_output(f->kind, (enum role)r)) expect_output_right(&h, r);
    }
  }
  huge_free(&h);
  return 1;
}

int main(void) {
  const int64_t million = 1000000;
  const form forms[] = {
      {L1_FORWARD, ONEPASS_BF16, 1, two31 + 1111, 0, 0, 0, million},
      {L1_BACKWARD, ONEPASS_BF16, 1, two31 + 1111, 0, 0, 0, million},
      {LAYER_FORWARD, ONEPASS_BF16, 1, two31 + 1111, 0, 0, 0, million},
      {LAYER_BACKWARD, ONEPASS_BF16, 1, two31 + 1111, 0, 0, 0, million},
      {L1_FORWARD, ONEPASS_F32, 1, two31 + 1111, 0, 0, 0, million},
      {LAYER_BACKWARD, ONEPASS_BF16, 3, two31 / 2 + 5, 0, 0, 0, million},
      {LAYER_FORWARD, ONEPASS_F32, 3, two31 / 2 + 5, 0, 0, 0, million},
      {L1_FORWARD, ONEPASS_F32, two31 / 64 + 3, 64, 0, 0, 0, million},
      {L1_BACKWARD, ONEPASS_BF16, two31 / 64 + 3, 64, 0, 0, 0, million},
      {LAYER_FORWARD, ONEPASS_BF16, two31 / 64 + 3, 64, 0, 0, 0, million},
      {LAYER_BACKWARD, ONEPASS_F32, two31 / 64 + 3, 64, 0, 0, 0, million},
      {LAYER_FORWARD, ONEPASS_BF16, two31 / 3 + 11, 3, 0, 0, 0, million},
      {POOL_FORWARD, ONEPASS_F32, two31 / 65536 + 3, 65536, 8, 1, 4, million},
      {POOL_BACKWARD, ONEPASS_F32, two31 / 65536 + 3, 65536, 8, 1, 4, million},
      {POOL_FORWARD, ONEPASS_BF16, two31 / 1000 + 3, 1000, 3, 2, 1, million},
      {POOL_BACKWARD, ONEPASS_BF16, two31 / 1000 + 3, 1000, 3, 2, 1, million},
      {POOL_FORWARD, ONEPASS_BF16, 1, two31 + 1111, 3, 2, 1, million},
      {POOL_BACKWARD, ONEPASS_BF16, 1, two31 + 1111, 3, 2, 1, million},
  };
  int done = 0;
  if (!gpu_open("test_cuda_huge")) return EXPECT_SKIPPED;
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) done += expect_form_right(&forms[i]);
  return done ? expect_report("test_cuda_huge") : EXPECT_SKIPPED;
}
