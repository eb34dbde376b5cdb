/*
 * What the members of the pooling family refuse, each field and tensor in turn, and what they take.
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>

#include "expect.h"
#include "refusal.h"

static const int64_t long_shape[5] = {2, 3, 9, 8, 7};

/* A description with its tensors, of two channels without a batch. */
typedef struct member {
  onepass_pool pool;
  array *x, *y, *dy, *dx, *indices;
} member;

static onepass_pool describe(onepass_pool_op op, onepass_direction direction, int spatial,
                             int adaptive) {
  onepass_pool pool = {.op = op, .direction = direction, .spatial = spatial, .adaptive = adaptive};
  for (int a = 0; a < spatial && !adaptive; a++) {
    pool.kernel[a] = 3;
    pool.stride[a] = 2;
    pool.padding[a] = op == ONEPASS_LP_POOL ? 0 : 1;
  }
  if (op == ONEPASS_LP_POOL) pool.p = 2;
  return pool;
}

static void fill_ones(array *a) {
  for (int64_t i = 0; a && i < a->count; i++) array_set(a, i, 1);
}

static member *member_new(onepass_pool_op op, onepass_direction direction, int spatial,
                          int adaptive) {
  static member m;
  int64_t pooled[5];
  const int64_t *shape = long_shape + 4 - spatial;
  m = (member){.pool = describe(op, direction, spatial, adaptive)};
  pooled[0] = shape[0];
  for (int a = 0; a < spatial; a++) {
    pooled[a + 1] = 4;
    if (adaptive) continue;
    EXPECT_OK(onepass_pool_length(shape[a + 1], 3, 2, m.pool.padding[a], 0, &pooled[a + 1]));
  }
  const int back = direction == ONEPASS_BACKWARD, is_lp = op == ONEPASS_LP_POOL;
  if (!back || is_lp) m.x = array_new(ONEPASS_F32, spatial + 1, shape);
  if (!back || is_lp) m.y = array_new(ONEPASS_F32, spatial + 1, pooled);
  if (back) m.dy = array_new(ONEPASS_F32, spatial + 1, pooled);
  if (back) m.dx = array_new(ONEPASS_F32, spatial + 1, shape);
  if (op == ONEPASS_MAX_POOL) m.indices = array_new(ONEPASS_I64, spatial + 1, pooled);
  fill_ones(m.x);
  fill_ones(m.dy);
  if (back) fill_ones(m.y);
  return &m;
}

static void member_free(member *m) {
  array_free(m->x);
  array_free(m->y);
  array_free(m->dy);
  array_free(m->dx);
  array_free(m->indices);
}

static const onepass_tensor *tensor_of(const array *a) { return a ? &a->tensor : NULL; }

static onepass_tensors tensors_of(const member *m) {
  return (onepass_tensors){.x = tensor_of(m->x),
                           .y = tensor_of(m->y),
                           .dy = tensor_of(m->dy),
                           .dx = tensor_of(m->dx),
                           .indices = tensor_of(m->indices)};
}

static void expect_refused(const member *m, const char *label, onepass_status wanted,
                           const char *argument, const char *value) {
  const onepass_tensors tensors = tensors_of(m);
  onepass_plan *plan = (onepass_plan *)(void *)&tensors;
  const onepass_status status = onepass_plan_pool(&plan, &m->pool, &tensors, NULL);
  expect_status(status, wanted, label);
  if (status == ONEPASS_OK) {
    onepass_plan_destroy(plan);
    return;
  }
  expect_message(label, argument, value);
  EXPECT(plan == NULL, "%s: *plan is not NULL after a failure", label);
}

/* ---- Every operator in every number of axes -------------------------------------------------- */

typedef struct named {
  onepass_pool_op op;
  int adaptive;
  const char *name[3];
} named;

static const named family[] = {
    {ONEPASS_AVG_POOL, 0, {"avg_pool1d", "avg_pool2d", "avg_pool3d"}},
    {ONEPASS_AVG_POOL, 1, {"adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"}},
    {ONEPASS_MAX_POOL, 0, {"max_pool1d", "max_pool2d", "max_pool3d"}},
    {ONEPASS_MAX_POOL, 1, {"adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"}},
    {ONEPASS_LP_POOL, 0, {"lp_pool1d", "lp_pool2d", "lp_pool3d"}},
};
enum { FAMILY = sizeof family / sizeof *family };

static void test_every_member_runs_under_its_name(void) {
  for (int f = 0; f < FAMILY; f++) {
    for (int spatial = 1; spatial <= 3; spatial++) {
      for (int back = 0; back < 2; back++) {
        member *m = member_new(family[f].op, (onepass_direction)back, spatial, family[f].adaptive);
        const char *name = family[f].name[spatial - 1];
        const onepass_tensors tensors = tensors_of(m);
        onepass_plan *plan;
        onepass_plan_info info;
        EXPECT_OK(onepass_plan_pool(&plan, &m->pool, &tensors, NULL));
        EXPECT_OK(onepass_plan_describe(plan, &info));
        EXPECT(strcmp(info.op, name) == 0, "%s is called %s", name, info.op);
        onepass_plan_destroy(plan);
        EXPECT(pool_once(&m->pool, &tensors, NULL) == ONEPASS_OK, "%s: %s", name,
               onepass_last_message());
        member_free(m);
      }
    }
  }
}

/* Of the right rank, one less and one more than that are wrong. */
static void test_other_numbers_of_dimensions_are_refused(void) {
  for (int f = 0; f < FAMILY; f++) {
    for (int spatial = 1; spatial <= 3; spatial++) {
      for (int ndim = spatial; ndim <= spatial + 3; ndim += 3) {
        const int64_t shape[6] = {1, 1, 9, 9, 9, 9};
        member m = {.pool = describe(family[f].op, ONEPASS_FORWARD, spatial, family[f].adaptive)};
        char value[16];
        snprintf(value, sizeof value, "%d", ndim);
        m.x = array_new(ONEPASS_F32, ndim, shape + 6 - ndim);
        m.y = array_new(ONEPASS_F32, ndim, shape + 6 - ndim);
        expect_refused(&m, family[f].name[spatial - 1], ONEPASS_BAD_NDIM, "x", value);
        member_free(&m);
      }
    }
  }
}

/* ---- Fields ---------------------------------------------------------------------------------- */

typedef struct fault {
  const char *label;
  onepass_pool_op op;
  int adaptive;
  void (*break_it)(onepass_pool *pool);
  onepass_status status;
  const char *argument, *value;
} fault;

static void kernel_0(onepass_pool *p) { p->kernel[1] = p->padding[1] = 0; }
static void kernel_12(onepass_pool *p) { p->kernel[1] = 12; }
static void stride_0(onepass_pool *p) { p->stride[1] = 0; }
static void padding_2(onepass_pool *p) { p->padding[1] = 2; }
static void padding_1(onepass_pool *p) { p->padding[1] = 1; }
static void padding_2_dilated(onepass_pool *p) {
  p->padding[1] = 2;
  p->dilation[1] = 3;
}
static void dilation_5(onepass_pool *p) { p->dilation[1] = 5; }
static void dilation_2(onepass_pool *p) { p->dilation[1] = 2; }
static void dilation_1(onepass_pool *p) { p->dilation[1] = 1; }
static void dilation_negative(onepass_pool *p) { p->dilation[1] = -4; }
static void dilation_huge(onepass_pool *p) { p->dilation[1] = INT64_MAX; }
static void divisor_negative(onepass_pool *p) { p->divisor = -6; }
static void divisor_7(onepass_pool *p) { p->divisor = 7; }
static void counts_padding(onepass_pool *p) { p->count_include_pad = 1; }
static void ceil_mode(onepass_pool *p) { p->ceil_mode = 1; }
static void p_0(onepass_pool *p) { p->p = 0; }
static void p_negative(onepass_pool *p) { p->p = -2; }
static void p_infinite(onepass_pool *p) { p->p = (double)INFINITY; }
static void p_nan(onepass_pool *p) { p->p = (double)NAN; }
static void p_2(onepass_pool *p) { p->p = 2; }
static void kernel_3(onepass_pool *p) { p->kernel[1] = 3; }
static void stride_2(onepass_pool *p) { p->stride[1] = 2; }
static void is_adaptive(onepass_pool *p) { p->adaptive = 1; }
static void spatial_4(onepass_pool *p) { p->spatial = 4; }
static void op_3(onepass_pool *p) { p->op = (onepass_pool_op)3; }

#define AVG ONEPASS_AVG_POOL
#define MAX ONEPASS_MAX_POOL
#define LP  ONEPASS_LP_POOL

static const fault faults[] = {
    {"kernel 0", MAX, 0, kernel_0, ONEPASS_BAD_KERNEL, "kernel", "[1] = 0"},
    {"kernel 12 over 7 + 2", AVG, 0, kernel_12, ONEPASS_BAD_KERNEL, "kernel", "[1] = 12"},
    {"stride 0", LP, 0, stride_0, ONEPASS_BAD_WINDOW_STRIDE, "stride", "[1] = 0"},
    {"padding 2", AVG, 0, padding_2, ONEPASS_BAD_PADDING, "padding", "[1] = 2"},
    {"padding 2, dilated", MAX, 0, padding_2_dilated, ONEPASS_BAD_PADDING, "padding", "[1] = 2"},
    {"padding of lp", LP, 0, padding_1, ONEPASS_BAD_PADDING, "padding", "[1] = 1"},
    {"dilation 5 over 7 + 2", MAX, 0, dilation_5, ONEPASS_BAD_KERNEL, "kernel", "5"},
    {"dilation -4", MAX, 0, dilation_negative, ONEPASS_BAD_OPTION, "dilation", "-4"},
    {"dilation 2^63-1", MAX, 0, dilation_huge, ONEPASS_BAD_KERNEL, "dilation",
     "9223372036854775807"},
    {"dilation of avg", AVG, 0, dilation_2, ONEPASS_BAD_OPTION, "dilation", "2"},
    {"dilation of lp", LP, 0, dilation_2, ONEPASS_BAD_OPTION, "dilation", "2"},
    {"dilation of adaptive", MAX, 1, dilation_1, ONEPASS_BAD_OPTION, "dilation", "1"},
    {"divisor -6", AVG, 0, divisor_negative, ONEPASS_BAD_OPTION, "divisor", "-6"},
    {"divisor of max", MAX, 0, divisor_7, ONEPASS_BAD_OPTION, "divisor", "7"},
    {"divisor of adaptive", AVG, 1, divisor_7, ONEPASS_BAD_OPTION, "divisor", "7"},
    {"count_include_pad of max", MAX, 0, counts_padding, ONEPASS_BAD_OPTION, "count_include_pad",
     "1"},
    {"count_include_pad of adaptive", AVG, 1, counts_padding, ONEPASS_BAD_OPTION,
     "count_include_pad", "1"},
    {"ceil_mode of adaptive", AVG, 1, ceil_mode, ONEPASS_BAD_OPTION, "ceil_mode", "1"},
    {"kernel of adaptive", AVG, 1, kernel_3, ONEPASS_BAD_KERNEL, "kernel", "3"},
    {"stride of adaptive", MAX, 1, stride_2, ONEPASS_BAD_WINDOW_STRIDE, "stride", "2"},
    {"padding of adaptive", MAX, 1, padding_1, ONEPASS_BAD_PADDING, "padding", "1"},
    {"p 0", LP, 0, p_0, ONEPASS_BAD_OPTION, "p", "0"},
    {"p -2", LP, 0, p_negative, ONEPASS_BAD_OPTION, "p", "-2"},
    {"p infinite", LP, 0, p_infinite, ONEPASS_BAD_OPTION, "p", "inf"},
    {"p NaN", LP, 0, p_nan, ONEPASS_BAD_OPTION, "p", "nan"},
    {"p of avg", AVG, 0, p_2, ONEPASS_BAD_OPTION, "p", "2"},
    {"p NaN of max", MAX, 1, p_nan, ONEPASS_BAD_OPTION, "p", "nan"},
    {"adaptive lp", LP, 0, is_adaptive, ONEPASS_BAD_OPERATOR, "adaptive", "1"},
    {"spatial 4", MAX, 0, spatial_4, ONEPASS_BAD_OPERATOR, "spatial", "4"},
    {"operator 3", MAX, 0, op_3, ONEPASS_BAD_OPERATOR, "op", "3"},
};

static void test_every_bad_field_is_refused(void) {
  for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
    for (int back = 0; back < 2; back++) {
      member *m = member_new(faults[f].op, (onepass_direction)back, 2, faults[f].adaptive);
      faults[f].break_it(&m->pool);
      expect_refused(m, faults[f].label, faults[f].status, faults[f].argument, faults[f].value);
      member_free(m);
    }
  }
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static void test_tensors_that_do_not_fit_are_refused(void) {
  member *m = member_new(ONEPASS_MAX_POOL, ONEPASS_FORWARD, 2, 0);
  m->y->shape[2]--;
  expect_refused(m, "y too short", ONEPASS_BAD_SHAPE, "y", "3");
  m->y->shape[2]++;
  m->indices->shape[1]--;
  expect_refused(m, "indices too short", ONEPASS_BAD_SHAPE, "indices", "3");
  m->indices->shape[1]++;
  m->indices->strides[1] = 0;
  expect_refused(m, "indices that repeat", ONEPASS_BAD_STRIDES, "indices", "0");
  m->indices->strides[1] = 4;
  m->indices->tensor.dtype = ONEPASS_F64;
  expect_refused(m, "indices in f64", ONEPASS_BAD_DTYPE, "indices", "64");
  m->indices->tensor.dtype = ONEPASS_I64;
  m->y->tensor.dtype = ONEPASS_I64;
  expect_refused(m, "y in i64", ONEPASS_BAD_DTYPE, "y", "64");
  m->y->tensor.dtype = ONEPASS_F64;
  expect_refused(m, "y in f64", ONEPASS_BAD_DTYPE, "y", "f64");
  member_free(m);

  m = member_new(ONEPASS_MAX_POOL, ONEPASS_BACKWARD, 2, 0);
  array *indices = m->indices;
  m->indices = NULL;
  expect_refused(m, "no indices", ONEPASS_NULL_POINTER, "indices", NULL);
  m->indices = indices;
  member_free(m);

  m = member_new(ONEPASS_AVG_POOL, ONEPASS_FORWARD, 2, 0);
  m->indices = array_new(ONEPASS_I64, 3, m->y->shape);
  expect_refused(m, "indices of an average", ONEPASS_BAD_OPTION, "indices", NULL);
  m->x->shape[1] = 0;
  array_free(m->indices);
  m->indices = NULL;
  expect_refused(m, "an empty axis", ONEPASS_BAD_SHAPE, "length", "0");
  member_free(m);

  m = member_new(ONEPASS_LP_POOL, ONEPASS_BACKWARD, 2, 0);
  m->x->shape[2]--;
  expect_refused(m, "x shorter than dx", ONEPASS_BAD_SHAPE, "x", "6");
  m->x->shape[2]++;
  m->y->shape[1]--;
  expect_refused(m, "y shorter than dy", ONEPASS_BAD_SHAPE, "y", "2");
  m->y->shape[1]++;
  m->dy->tensor.dtype = ONEPASS_F64;
  expect_refused(m, "dy in f64", ONEPASS_BAD_DTYPE, "dy", "f64");
  member_free(m);

  m = member_new(ONEPASS_AVG_POOL, ONEPASS_FORWARD, 2, 1);
  m->x->shape[1] = 0;
  expect_refused(m, "an empty axis, adaptive", ONEPASS_BAD_SHAPE, "length", "0");
  m->x->shape[1] = 8;
  m->y->shape[0] = 4;
  expect_refused(m, "other channels", ONEPASS_BAD_SHAPE, "y", "4");
  member_free(m);
}

/* Elements times outputs must be a number; nothing is run on such tensors. */
static void test_too_many_adaptive_parts_are_refused(void) {
  member *m = member_new(ONEPASS_AVG_POOL, ONEPASS_BACKWARD, 1, 1);
  m->dx->shape[0] = m->dy->shape[0] = 1;
  m->dx->shape[1] = INT64_C(1) << 33;
  m->dy->shape[1] = INT64_C(1) << 32;
  expect_refused(m, "2^33 to 2^32", ONEPASS_BAD_SHAPE, "length", "8589934592");
  m->dx->shape[1] = m->dy->shape[1] = 4;
  member_free(m);
}

static void test_nothing_to_pool_is_fine(void) {
  for (int f = 0; f < FAMILY; f++) {
    for (int back = 0; back < 2; back++) {
      member *m = member_new(family[f].op, (onepass_direction)back, 2, family[f].adaptive);
      array *all[5] = {m->x, m->y, m->dy, m->dx, m->indices};
      for (int i = 0; i < 5; i++) {
        if (all[i]) all[i]->shape[0] = 0;
      }
      const onepass_tensors tensors = tensors_of(m);
      EXPECT(pool_once(&m->pool, &tensors, NULL) == ONEPASS_OK, "%s without channels: %s",
             family[f].name[1], onepass_last_message());
      if (m->dx) EXPECT(array_untouched(m->dx), "%s: dx was written", family[f].name[1]);
      member_free(m);
    }
  }
}

int main(void) {
  test_every_member_runs_under_its_name();
  test_other_numbers_of_dimensions_are_refused();
  test_every_bad_field_is_refused();
  test_tensors_that_do_not_fit_are_refused();
  test_too_many_adaptive_parts_are_refused();
  test_nothing_to_pool_is_fine();
  return expect_report("test_status_pools");
}
