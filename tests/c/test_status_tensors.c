/*
 * A tensor that cannot be right is refused: by every function, in every part it can play.
 * Each fault is a row of a table; the loop breaks one tensor of one good call at a time.
 *
 * SPDX-License-Identifier: MIT
 */
#include "refusal.h"

typedef struct fault {
  const char *name;
  void (*break_it)(array *a);
  onepass_status status;
  const char *value; /* what the message must say */
} fault;

static int64_t too_large[ONEPASS_MAX_NDIM + 1];
static int64_t fits_alone[ONEPASS_MAX_NDIM + 1];

static void ndim_0(array *a) { a->tensor.ndim = 0; }
static void ndim_negative(array *a) { a->tensor.ndim = -1; }
static void ndim_9(array *a) {
  a->tensor.ndim = 9;
  a->tensor.shape = fits_alone;
  a->tensor.strides = NULL;
}
static void ndim_huge(array *a) { a->tensor.ndim = INT32_MAX; }
static void shape_null(array *a) { a->tensor.shape = NULL; }
static void shape_negative(array *a) { a->shape[a->tensor.ndim - 1] = -3; }
static void shape_most_negative(array *a) { a->shape[0] = INT64_MIN; }
static void shape_overflows(array *a) {
  a->tensor.shape = too_large;
  a->tensor.strides = NULL;
}
static void shape_bytes_overflow(array *a) {
  /* The number of elements fits in 64 bits, their bytes do not. */
  for (int d = 0; d < a->tensor.ndim; d++) a->shape[d] = 1;
  a->shape[a->tensor.ndim - 1] = INT64_MAX / 2 + 1;
  a->tensor.strides = NULL;
}
static void stride_negative(array *a) { a->strides[0] = -7; }
static void stride_overflows(array *a) { a->strides[0] = INT64_MAX / 2; }
static void dtype_integer(array *a) { a->tensor.dtype.code = 0; }
static void dtype_unknown_code(array *a) { a->tensor.dtype.code = 77; }
static void dtype_lanes_2(array *a) { a->tensor.dtype.lanes = 2; }
static void dtype_lanes_0(array *a) { a->tensor.dtype.lanes = 0; }
static void dtype_8_bits(array *a) { a->tensor.dtype.bits = 8; }
static void dtype_0_bits(array *a) { a->tensor.dtype.bits = 0; }
static void dtype_bfloat_32(array *a) { a->tensor.dtype = (onepass_dtype){4, 32, 1}; }
static void device_99(array *a) { a->tensor.device.type = 99; }
static void device_0(array *a) { a->tensor.device.type = 0; }

/* Faults that a tensor has by itself. */
static const fault own_faults[] = {
    {"ndim 0", ndim_0, ONEPASS_BAD_NDIM, "0"},
    {"ndim -1", ndim_negative, ONEPASS_BAD_NDIM, "-1"},
    {"ndim 9", ndim_9, ONEPASS_BAD_NDIM, "9"},
    {"ndim 2^31-1", ndim_huge, ONEPASS_BAD_NDIM, "2147483647"},
    {"shape NULL", shape_null, ONEPASS_NULL_POINTER, "shape"},
    {"negative shape", shape_negative, ONEPASS_BAD_SHAPE, "-3"},
    {"most negative shape", shape_most_negative, ONEPASS_BAD_SHAPE, "-9223372036854775808"},
    {"overflowing shape", shape_overflows, ONEPASS_BAD_SHAPE, "4611686018427387904"},
    {"overflowing bytes", shape_bytes_overflow, ONEPASS_BAD_SHAPE, "4611686018427387904"},
    {"negative stride", stride_negative, ONEPASS_BAD_STRIDES, "-7"},
    {"overflowing stride", stride_overflows, ONEPASS_BAD_STRIDES, "4611686018427387903"},
    {"integer type", dtype_integer, ONEPASS_BAD_DTYPE, "0"},
    {"unknown type code", dtype_unknown_code, ONEPASS_BAD_DTYPE, "77"},
    {"two lanes", dtype_lanes_2, ONEPASS_BAD_DTYPE, "2"},
    {"no lanes", dtype_lanes_0, ONEPASS_BAD_DTYPE, "0"},
    {"8-bit float", dtype_8_bits, ONEPASS_BAD_DTYPE, "8"},
    {"0-bit float", dtype_0_bits, ONEPASS_BAD_DTYPE, "0"},
    {"32-bit bfloat", dtype_bfloat_32, ONEPASS_BAD_DTYPE, "32"},
    {"device type 99", device_99, ONEPASS_BAD_DEVICE, "99"},
    {"device type 0", device_0, ONEPASS_BAD_DEVICE, "0"},
};

static void type_f64(array *a) { a->tensor.dtype = ONEPASS_F64; }
static void type_f16(array *a) { a->tensor.dtype = ONEPASS_F16; }
static void type_bf16(array *a) { a->tensor.dtype = ONEPASS_BF16; }
static void one_more(array *a) {
  a->shape[a->tensor.ndim - 1] += 100;
  a->tensor.strides = NULL; /* compact, so that the shape is all that is wrong */
}
static void another_first(array *a) {
  a->shape[0] += 200;
  a->tensor.strides = NULL;
}

/* Faults that a tensor has beside x in f32: it does not fit the others. */
static const fault misfits[] = {
    {"f64 among f32", type_f64, ONEPASS_BAD_DTYPE, "f64"},
    {"f16 among f32", type_f16, ONEPASS_BAD_DTYPE, "f16"},
    {"bf16 among f32", type_bf16, ONEPASS_BAD_DTYPE, "bf16"},
    {"wrong last extent", one_more, ONEPASS_BAD_SHAPE, "10"},
    {"wrong first extent", another_first, ONEPASS_BAD_SHAPE, "20"},
};

static void stride_0(array *a) {
  for (int d = 0; d < a->tensor.ndim; d++) {
    if (a->shape[d] > 1) a->strides[d] = 0;
  }
}
static void last_stride_0(array *a) {
  int d = a->tensor.ndim - 1;
  while (d > 0 && a->shape[d] == 1) d--;
  a->strides[d] = 0;
}

/* Faults of an output: an element would be written twice. */
static const fault output_faults[] = {
    {"output strides 0", stride_0, ONEPASS_BAD_STRIDES, "0"},
    {"output stride 0", last_stride_0, ONEPASS_BAD_STRIDES, "0"},
};

static call *good_call(enum kind kind) {
  const int64_t shape[3] = {4, 3, 9};
  return call_new(kind, ONEPASS_F32, 3, shape, -1);
}

/* Breaks one role of a good call, by plan and by helper. */
static void expect_fault_refused(enum kind kind, enum role role, const fault *f,
                                 const char *argument) {
  char label[120];
  call *c = good_call(kind);
  snprintf(label, sizeof label, "%s, %s: %s", kind_name[kind], role_name[role], f->name);
  f->break_it(c->role[role]);
  expect_plan_refused(c, label, f->status, argument, argument ? f->value : NULL);
  expect_helper_refused(c, label, f->status, argument, argument ? f->value : NULL);
  call_free(c);
}

/* The tensor that the others are held against; a misfit there is a misfit of the others. */
static enum role leading_role(enum kind kind) { return kind == POOL_BACKWARD ? DX : X; }

static void test_a_tensor_that_cannot_be_is_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    for (int r = 0; r < ROLES; r++) {
      if (!role_is_used((enum kind)k, (enum role)r)) continue;
      for (size_t f = 0; f < sizeof own_faults / sizeof *own_faults; f++) {
        expect_fault_refused((enum kind)k, (enum role)r, &own_faults[f], role_name[r]);
      }
    }
  }
}

static void test_a_tensor_that_does_not_fit_the_others_is_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    for (int r = 0; r < ROLES; r++) {
      if (!role_is_used((enum kind)k, (enum role)r)) continue;
      int leads = (enum role)r == leading_role((enum kind)k) || (k == POOL_BACKWARD && r == DY);
      for (size_t f = 0; f < sizeof misfits / sizeof *misfits; f++) {
        expect_fault_refused((enum kind)k, (enum role)r, &misfits[f], leads ? NULL : role_name[r]);
      }
    }
  }
}

static void test_an_output_that_writes_an_element_twice_is_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    for (int r = 0; r < ROLES; r++) {
      if (!role_is_output((enum kind)k, (enum role)r)) continue;
      for (size_t f = 0; f < sizeof output_faults / sizeof *output_faults; f++) {
        expect_fault_refused((enum kind)k, (enum role)r, &output_faults[f], role_name[r]);
      }
    }
  }
}

/* Rows that start before the last one ends: strides (2, 1) with rows of 9. */
static void test_output_rows_that_overlap_are_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    call *c = good_call((enum kind)k);
    array *output = c->role[c->role[Y] ? Y : DX];
    output->strides[1] = 2;
    expect_plan_refused(c, kind_name[k], ONEPASS_BAD_STRIDES, c->role[Y] ? "y" : "dx", "2");
    expect_helper_refused(c, kind_name[k], ONEPASS_BAD_STRIDES, c->role[Y] ? "y" : "dx", "2");
    call_free(c);
  }
}

/* (4, 3, 9) with strides (1, 4, 12) is a transposed layout, and right. */
static void test_output_strides_in_any_order_are_taken(void) {
  for (int k = 0; k < KINDS; k++) {
    call *c = good_call((enum kind)k);
    array *output = c->role[c->role[Y] ? Y : DX];
    output->strides[0] = 1;
    output->strides[1] = 4;
    output->strides[2] = 12;
    EXPECT_OK(call_helper(c));
    call_free(c);
  }
}

static void test_a_required_tensor_that_is_missing_is_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    for (int r = 0; r < ROLES; r++) {
      if (!role_is_used((enum kind)k, (enum role)r)) continue;
      call *c = good_call((enum kind)k);
      array *taken = c->role[r];
      char label[120];
      snprintf(label, sizeof label, "%s without %s", kind_name[k], role_name[r]);
      c->role[r] = NULL;
      if (role_is_optional((enum kind)k, (enum role)r)) {
        EXPECT(call_helper(c) == ONEPASS_OK, "%s: %s", label, onepass_last_message());
      } else {
        expect_plan_refused(c, label, ONEPASS_NULL_POINTER, role_name[r], "NULL");
        expect_helper_refused(c, label, ONEPASS_NULL_POINTER, role_name[r], "NULL");
      }
      array_free(taken);
      call_free(c);
    }
  }
}

static void test_tensors_on_different_devices_are_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    for (int r = 0; r < ROLES; r++) {
      if (!role_is_used((enum kind)k, (enum role)r)) continue;
      call *c = good_call((enum kind)k);
      char label[120];
      snprintf(label, sizeof label, "%s with %s on CUDA", kind_name[k], role_name[r]);
      c->role[r]->tensor.device.type = ONEPASS_CUDA;
      expect_plan_refused(c, label, ONEPASS_BAD_DEVICE, NULL, NULL);
      expect_helper_refused(c, label, ONEPASS_BAD_DEVICE, NULL, NULL);
      call_free(c);
    }
  }
}

/* Without any device the message says so (test_cuda_absent); with some, that there are fewer. */
static void test_a_device_that_is_not_there_is_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    call *c = good_call((enum kind)k);
    for (int r = 0; r < ROLES; r++) {
      if (c->role[r]) c->role[r]->tensor.device = (onepass_device){ONEPASS_CUDA, 1000};
    }
    expect_plan_refused(c, kind_name[k], ONEPASS_BAD_DEVICE, NULL, NULL);
    expect_helper_refused(c, kind_name[k], ONEPASS_BAD_DEVICE, NULL, NULL);
    call_free(c);
  }
}

typedef struct mix {
  onepass_dtype x, weight, stats;
  onepass_status status;
  const char *argument;
} mix;

static void test_only_type_mixes_that_make_sense_are_taken(void) {
  const mix mixes[] = {
      {ONEPASS_F32, ONEPASS_F32, ONEPASS_F32, ONEPASS_OK, NULL},
      {ONEPASS_F16, ONEPASS_F16, ONEPASS_F32, ONEPASS_OK, NULL},
      {ONEPASS_F16, ONEPASS_F32, ONEPASS_F32, ONEPASS_OK, NULL},
      {ONEPASS_BF16, ONEPASS_BF16, ONEPASS_F32, ONEPASS_OK, NULL},
      {ONEPASS_BF16, ONEPASS_F32, ONEPASS_F32, ONEPASS_OK, NULL},
      {ONEPASS_F64, ONEPASS_F64, ONEPASS_F64, ONEPASS_OK, NULL},
      {ONEPASS_F32, ONEPASS_F64, ONEPASS_F32, ONEPASS_BAD_DTYPE, "weight"},
      {ONEPASS_F32, ONEPASS_F16, ONEPASS_F32, ONEPASS_BAD_DTYPE, "weight"},
      {ONEPASS_F64, ONEPASS_F32, ONEPASS_F64, ONEPASS_BAD_DTYPE, "weight"},
      {ONEPASS_F16, ONEPASS_BF16, ONEPASS_F32, ONEPASS_BAD_DTYPE, "weight"},
      {ONEPASS_BF16, ONEPASS_F16, ONEPASS_F32, ONEPASS_BAD_DTYPE, "weight"},
      {ONEPASS_BF16, ONEPASS_F64, ONEPASS_F32, ONEPASS_BAD_DTYPE, "weight"},
      {ONEPASS_F32, ONEPASS_F32, ONEPASS_F64, ONEPASS_BAD_DTYPE, "mean"},
      {ONEPASS_F64, ONEPASS_F64, ONEPASS_F32, ONEPASS_BAD_DTYPE, "mean"},
      {ONEPASS_F16, ONEPASS_F16, ONEPASS_F16, ONEPASS_BAD_DTYPE, "mean"},
      {ONEPASS_BF16, ONEPASS_BF16, ONEPASS_BF16, ONEPASS_BAD_DTYPE, "mean"},
  };
  const int64_t shape[2] = {3, 5};
  const enum kind kinds[2] = {LAYER_FORWARD, LAYER_BACKWARD};
  for (size_t m = 0; m < sizeof mixes / sizeof *mixes; m++) {
    for (int k = 0; k < 2; k++) {
      /* Blocks of f64, so that whatever type the tensors claim to have, the memory is there. */
      call *c = call_new(kinds[k], ONEPASS_F64, 2, shape, 1);
      char label[120];
      snprintf(label, sizeof label, "%s: %s, weight %s, mean %s", kind_name[kinds[k]],
               dtype_name(mixes[m].x), dtype_name(mixes[m].weight), dtype_name(mixes[m].stats));
      for (int r = 0; r < ROLES; r++) {
        if (c->role[r] == NULL) continue;
        int is_weight = r == WEIGHT || r == BIAS || r == DWEIGHT || r == DBIAS;
        c->role[r]->tensor.dtype = is_weight                ? mixes[m].weight
                                   : r == MEAN || r == RSTD ? mixes[m].stats
                                                            : mixes[m].x;
      }
      if (mixes[m].status == ONEPASS_OK) {
        EXPECT(call_helper(c) == ONEPASS_OK, "%s: %s", label, onepass_last_message());
      } else {
        expect_plan_refused(c, label, mixes[m].status, mixes[m].argument, NULL);
        expect_helper_refused(c, label, mixes[m].status, mixes[m].argument, NULL);
      }
      call_free(c);
    }
  }
}

static void test_mean_may_keep_the_normalized_axes_as_ones_or_drop_them(void) {
  const int64_t shape[3] = {4, 3, 9}, dropped[2] = {4, 3}, turned[2] = {3, 4};
  call *c = call_new(LAYER_FORWARD, ONEPASS_F32, 3, shape, -1);
  EXPECT_OK(call_helper(c));
  array *mean = array_new(ONEPASS_F32, 2, dropped), *rstd = array_new(ONEPASS_F32, 2, dropped);
  array *kept_mean = c->role[MEAN], *kept_rstd = c->role[RSTD];
  c->role[MEAN] = mean;
  c->role[RSTD] = rstd;
  EXPECT_OK(call_helper(c));
  EXPECT(array_same_bits(mean, kept_mean) && array_same_bits(rstd, kept_rstd),
         "the two shapes of mean and rstd hold different values");
  memcpy(mean->shape, turned, sizeof turned);
  mean->tensor.strides = NULL;
  array_repaint(c->role[Y]);
  expect_plan_refused(c, "turned mean", ONEPASS_BAD_SHAPE, "mean", "3");
  array_free(kept_mean);
  array_free(kept_rstd);
  call_free(c);
}

int main(void) {
  for (int d = 0; d <= ONEPASS_MAX_NDIM; d++) {
    too_large[d] = INT64_MAX / 2 + 1;
    fits_alone[d] = 1;
  }
  test_a_tensor_that_cannot_be_is_refused();
  test_a_tensor_that_does_not_fit_the_others_is_refused();
  test_an_output_that_writes_an_element_twice_is_refused();
  test_output_rows_that_overlap_are_refused();
  test_output_strides_in_any_order_are_taken();
  test_a_required_tensor_that_is_missing_is_refused();
  test_tensors_on_different_devices_are_refused();
  test_a_device_that_is_not_there_is_refused();
  test_only_type_mixes_that_make_sense_are_taken();
  test_mean_may_keep_the_normalized_axes_as_ones_or_drop_them();
  return expect_report("test_status_tensors");
}
