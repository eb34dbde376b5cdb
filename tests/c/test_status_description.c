/*
 * A description or an option that makes no sense is refused, with its own status and a message that
 * says which field, what it was and what was expected.
 *
 * SPDX-License-Identifier: MIT
 */
#include "levels.h"
#include "refusal.h"

static const int64_t the_shape[3] = {4, 3, 9};

static call *good_call(enum kind kind) { return call_new(kind, ONEPASS_F32, 3, the_shape, -1); }

static int is_pool(enum kind kind) { return kind == POOL_FORWARD || kind == POOL_BACKWARD; }

typedef struct fault {
  const char *name;
  void (*break_it)(call *c);
  onepass_status status;
  const char *argument;
  const char *value;
  int helper; /* whether the one-line function can be given it too */
} fault;

static void axis_3(call *c) { c->norm.axis = 3; }
static void axis_minus_4(call *c) { c->norm.axis = -4; }
static void axis_lowest(call *c) { c->norm.axis = INT32_MIN; }
static void axis_highest(call *c) { c->norm.axis = INT32_MAX; }
static void op_unknown(call *c) { c->norm.op = (onepass_norm_op)55; }
static void op_negative(call *c) { c->norm.op = (onepass_norm_op)-1; }
static void direction_unknown(call *c) { c->norm.direction = (onepass_direction)66; }

static const fault norm_faults[] = {
    {"axis 3 of 3", axis_3, ONEPASS_BAD_AXIS, "axis", "3", 1},
    {"axis -4 of 3", axis_minus_4, ONEPASS_BAD_AXIS, "axis", "-4", 1},
    {"axis -2^31", axis_lowest, ONEPASS_BAD_AXIS, "axis", "-2147483648", 1},
    {"axis 2^31-1", axis_highest, ONEPASS_BAD_AXIS, "axis", "2147483647", 1},
    {"operator 55", op_unknown, ONEPASS_BAD_OPERATOR, "op", "55", 0},
    {"operator -1", op_negative, ONEPASS_BAD_OPERATOR, "op", "-1", 0},
    {"direction 66", direction_unknown, ONEPASS_BAD_OPERATOR, "direction", "66", 0},
};

static void reduction_unknown(call *c) { c->norm.reduction = (onepass_reduction)44; }

static const fault l1_faults[] = {
    {"reduction 44", reduction_unknown, ONEPASS_BAD_OPERATOR, "reduction", "44", 1},
};

static void eps_negative(call *c) { c->norm.eps = -0.125; }
static void eps_nan(call *c) { c->norm.eps = (double)NAN; }

/* The backward of layer_norm has rstd and needs no eps; the others do. */
static const fault eps_faults[] = {
    {"eps -0.125", eps_negative, ONEPASS_BAD_OPTION, "eps", "-0.125", 1},
    {"eps NaN", eps_nan, ONEPASS_BAD_OPTION, "eps", "nan", 1},
};

static void pool_op_unknown(call *c) { c->pool.op = (onepass_pool_op)55; }
static void pool_direction_unknown(call *c) { c->pool.direction = (onepass_direction)66; }
static void kernel_0(call *c) { c->pool.kernel[0] = c->pool.padding[0] = 0; }
static void kernel_negative(call *c) { c->pool.kernel[0] = -2; }
static void kernel_too_large(call *c) { c->pool.kernel[0] = 12; }
static void kernel_huge(call *c) { c->pool.kernel[0] = INT64_MAX; }
static void stride_0(call *c) { c->pool.stride[0] = 0; }
static void stride_negative(call *c) { c->pool.stride[0] = -5; }
static void padding_over_half(call *c) { c->pool.padding[0] = 2; }
static void padding_negative(call *c) { c->pool.padding[0] = -1; }
static void padding_huge(call *c) { c->pool.padding[0] = INT64_MAX; }
static void spatial_0(call *c) { c->pool.spatial = 0; }
static void spatial_4(call *c) { c->pool.spatial = 4; }

static const fault pool_faults[] = {
    {"operator 55", pool_op_unknown, ONEPASS_BAD_OPERATOR, "op", "55", 0},
    {"direction 66", pool_direction_unknown, ONEPASS_BAD_OPERATOR, "direction", "66", 0},
    {"kernel 0", kernel_0, ONEPASS_BAD_KERNEL, "kernel", "0", 1},
    {"kernel -2", kernel_negative, ONEPASS_BAD_KERNEL, "kernel", "-2", 1},
    {"kernel 12 over 9 + 2", kernel_too_large, ONEPASS_BAD_KERNEL, "kernel", "12", 1},
    {"kernel 2^63-1", kernel_huge, ONEPASS_BAD_KERNEL, "kernel", "9223372036854775807", 1},
    {"stride 0", stride_0, ONEPASS_BAD_WINDOW_STRIDE, "stride", "0", 1},
    {"stride -5", stride_negative, ONEPASS_BAD_WINDOW_STRIDE, "stride", "-5", 1},
    {"padding 2 for kernel 3", padding_over_half, ONEPASS_BAD_PADDING, "padding", "2", 1},
    {"padding -1", padding_negative, ONEPASS_BAD_PADDING, "padding", "-1", 1},
    {"padding 2^63-1", padding_huge, ONEPASS_BAD_PADDING, "padding", "9223372036854775807", 1},
    {"spatial 0", spatial_0, ONEPASS_BAD_OPERATOR, "spatial", "0", 0},
    {"spatial 4", spatial_4, ONEPASS_BAD_OPERATOR, "spatial", "4", 0},
};

static void threads_negative(call *c) { c->options.threads = -3; }
static void level_negative(call *c) { c->options.vector_level = -9; }
static void level_unknown(call *c) { c->options.vector_level = 88; }

static const fault option_faults[] = {
    {"threads -3", threads_negative, ONEPASS_BAD_OPTION, "threads", "-3", 0},
    {"vector level -9", level_negative, ONEPASS_BAD_OPTION, "vector_level", "-9", 0},
    {"vector level 88", level_unknown, ONEPASS_BAD_OPTION, "vector_level", "88", 0},
};

static void expect_faults_refused(enum kind kind, const fault *faults, size_t count) {
  for (const fault *f = faults; f < faults + count; f++) {
    char label[120];
    call *c = good_call(kind);
    snprintf(label, sizeof label, "%s: %s", kind_name[kind], f->name);
    f->break_it(c);
    expect_plan_refused(c, label, f->status, f->argument, f->value);
    if (f->helper) expect_helper_refused(c, label, f->status, f->argument, f->value);
    call_free(c);
  }
}

#define EXPECT_FAULTS_REFUSED(kind, faults) \
  expect_faults_refused((kind), (faults), sizeof(faults) / sizeof *(faults))

static void test_every_bad_field_of_a_description_is_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    enum kind kind = (enum kind)k;
    EXPECT_FAULTS_REFUSED(kind, option_faults);
    if (is_pool(kind)) {
      EXPECT_FAULTS_REFUSED(kind, pool_faults);
      continue;
    }
    EXPECT_FAULTS_REFUSED(kind, norm_faults);
    if (kind == L1_FORWARD || kind == L1_BACKWARD) EXPECT_FAULTS_REFUSED(kind, l1_faults);
    if (kind != LAYER_BACKWARD) EXPECT_FAULTS_REFUSED(kind, eps_faults);
  }
}

static void test_a_vector_level_this_cpu_lacks_is_refused(void) {
  for (int level = 0; level < LEVELS; level++) {
    call *c = good_call(L1_FORWARD);
    char value[8];
    snprintf(value, sizeof value, "%d", level);
    c->options.vector_level = level;
    if (cpu_has_level(level)) {
      EXPECT(call_run(c) == ONEPASS_OK, "level %d: %s", level, onepass_last_message());
    } else {
      expect_plan_refused(c, level_name[level], ONEPASS_BAD_OPTION, "vector_level", value);
    }
    call_free(c);
  }
}

static void test_every_axis_there_is_is_taken(void) {
  for (int axis = -3; axis < 3; axis++) {
    for (int k = L1_FORWARD; k <= LAYER_BACKWARD; k++) {
      call *c = call_new((enum kind)k, ONEPASS_F32, 3, the_shape, axis);
      EXPECT(call_helper(c) == ONEPASS_OK, "%s over axis %d: %s", kind_name[k], axis,
             onepass_last_message());
      call_free(c);
    }
  }
}

/* avg_pool1d takes (channels, length) and (batch, channels, length), nothing else. */
static void test_a_pool_of_1_or_4_dimensions_is_refused(void) {
  const int64_t shape[5] = {1, 1, 3, 3, 9};
  const int wrong[3] = {1, 4, 5};
  for (int k = POOL_FORWARD; k <= POOL_BACKWARD; k++) {
    for (int w = 0; w < 3; w++) {
      char label[120], value[8];
      call *c = call_new((enum kind)k, ONEPASS_F32, wrong[w], shape + 5 - wrong[w], -1);
      snprintf(label, sizeof label, "%s of %d dimensions", kind_name[k], wrong[w]);
      snprintf(value, sizeof value, "%d", wrong[w]);
      expect_plan_refused(c, label, ONEPASS_BAD_NDIM, NULL, value);
      expect_helper_refused(c, label, ONEPASS_BAD_NDIM, NULL, value);
      call_free(c);
    }
    for (int ndim = 2; ndim <= 3; ndim++) {
      call *c = call_new((enum kind)k, ONEPASS_F32, ndim, shape + 5 - ndim, -1);
      EXPECT(call_helper(c) == ONEPASS_OK, "%s of %d dimensions: %s", kind_name[k], ndim,
             onepass_last_message());
      call_free(c);
    }
  }
}

typedef struct pool_length_fault {
  int64_t length, kernel, stride, padding;
  onepass_status status;
  const char *argument, *value;
} pool_length_fault;

static void test_pool_length_fails_where_a_plan_would(void) {
  const pool_length_fault faults[] = {
      {-1, 3, 2, 1, ONEPASS_BAD_SHAPE, "length", "-1"},
      {9, 0, 2, 0, ONEPASS_BAD_KERNEL, "kernel", "0"},
      {9, -2, 2, 0, ONEPASS_BAD_KERNEL, "kernel", "-2"},
      {9, 14, 2, 1, ONEPASS_BAD_KERNEL, "kernel", "14"},
      {9, INT64_MAX, 2, 1, ONEPASS_BAD_KERNEL, "kernel", "9223372036854775807"},
      {9, 3, 0, 1, ONEPASS_BAD_WINDOW_STRIDE, "stride", "0"},
      {9, 3, INT64_MIN, 1, ONEPASS_BAD_WINDOW_STRIDE, "stride", "-9223372036854775808"},
      {9, 3, 2, 2, ONEPASS_BAD_PADDING, "padding", "2"},
      {9, 3, 2, -1, ONEPASS_BAD_PADDING, "padding", "-1"},
      {9, 3, 2, INT64_MAX, ONEPASS_BAD_PADDING, "padding", "9223372036854775807"},
  };
  for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
    for (int ceil_mode = 0; ceil_mode < 2; ceil_mode++) {
      int64_t pooled = -77;
      char label[120];
      snprintf(label, sizeof label, "pool_length, row %zu, ceil_mode %d", f, ceil_mode);
      expect_status(onepass_pool_length(faults[f].length, faults[f].kernel, faults[f].stride,
                                        faults[f].padding, ceil_mode, &pooled),
                    faults[f].status, label);
      expect_message(label, faults[f].argument, faults[f].value);
      EXPECT(pooled == -77, "%s: *pooled became %lld", label, (long long)pooled);
    }
  }
}

static void test_every_null_argument_is_refused(void) {
  const enum kind norm_kind = L1_FORWARD, pool_kind = POOL_FORWARD;
  call *n = good_call(norm_kind), *p = good_call(pool_kind);
  onepass_tensors norm_tensors = call_tensors(n), pool_tensors = call_tensors(p), none = {0};
  onepass_buffers buffers = buffers_of(&norm_tensors);
  onepass_plan *plan = NULL, *failed = (onepass_plan *)(void *)n;
  onepass_plan_info info;

#define EXPECT_NULL_REFUSED(argument, call)             \
  do {                                                  \
    expect_status((call), ONEPASS_NULL_POINTER, #call); \
    expect_message(#call, argument, NULL);              \
  } while (0)

  EXPECT_NULL_REFUSED("plan", onepass_plan_norm(NULL, &n->norm, &norm_tensors, NULL));
  EXPECT_NULL_REFUSED("plan", onepass_plan_pool(NULL, &p->pool, &pool_tensors, NULL));
  EXPECT_NULL_REFUSED("norm", onepass_plan_norm(&failed, NULL, &norm_tensors, NULL));
  EXPECT(failed == NULL, "norm NULL leaves a plan");
  failed = (onepass_plan *)(void *)n;
  EXPECT_NULL_REFUSED("pool", onepass_plan_pool(&failed, NULL, &pool_tensors, NULL));
  EXPECT(failed == NULL, "pool NULL leaves a plan");
  EXPECT_NULL_REFUSED("tensors", onepass_plan_norm(&failed, &n->norm, NULL, NULL));
  EXPECT_NULL_REFUSED("tensors", onepass_plan_pool(&failed, &p->pool, NULL, NULL));
  EXPECT_NULL_REFUSED("x", onepass_plan_norm(&failed, &n->norm, &none, NULL));
  EXPECT_NULL_REFUSED("x", onepass_plan_pool(&failed, &p->pool, &none, NULL));
  EXPECT_NULL_REFUSED("pooled", onepass_pool_length(9, 3, 2, 1, 0, NULL));
  EXPECT_NULL_REFUSED("info", onepass_get_cpu_info(NULL));
  EXPECT_NULL_REFUSED("plan", onepass_run(NULL, &buffers, NULL, 0, NULL));
  EXPECT_NULL_REFUSED("plan", onepass_plan_describe(NULL, &info));
  EXPECT_OK(onepass_plan_norm(&plan, &n->norm, &norm_tensors, NULL));
  EXPECT_NULL_REFUSED("info", onepass_plan_describe(plan, NULL));
  EXPECT_NULL_REFUSED("buffers", onepass_run(plan, NULL, NULL, 0, NULL));
  EXPECT_INT(onepass_plan_workspace(NULL), 0);
  expect_outputs_untouched(n, "NULL arguments");
  expect_outputs_untouched(p, "NULL arguments");
  onepass_plan_destroy(plan);
  onepass_plan_destroy(NULL);
  call_free(n);
  call_free(p);
}

int main(void) {
  test_every_bad_field_of_a_description_is_refused();
  test_a_vector_level_this_cpu_lacks_is_refused();
  test_every_axis_there_is_is_taken();
  test_a_pool_of_1_or_4_dimensions_is_refused();
  test_pool_length_fails_where_a_plan_would();
  test_every_null_argument_is_refused();
  return expect_report("test_status_description");
}
