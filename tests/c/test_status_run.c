/*
 * A run on buffers that cannot be right is refused before anything is written: missing, misaligned
 * or overlapping ones, and a workspace that does not do.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "refusal.h"

static const int64_t the_shape[3] = {4, 3, 9};

static call *good_call(enum kind kind) { return call_new(kind, ONEPASS_F32, 3, the_shape, -1); }

/* The buffers as an array in the order of enum role, to change one of them in a loop. */
typedef union addresses {
  onepass_buffers buffers;
  void *of[ROLES];
} addresses;

static addresses addresses_of(const call *c) {
  onepass_tensors tensors = call_tensors(c);
  addresses a;
  a.buffers = buffers_of(&tensors);
  return a;
}

static void expect_run_refused(const call *c, const addresses *a, const char *label,
                               onepass_status wanted, const char *argument) {
  onepass_plan *plan = NULL;
  if (!EXPECT_OK(call_plan(c, &plan))) return;
  expect_status(run_plan(plan, &a->buffers), wanted, label);
  expect_message(label, argument, NULL);
  expect_outputs_untouched(c, label);
  onepass_plan_destroy(plan);
}

/* The same fault through the one-line function: the tensor's data is the address. */
static void expect_data_refused(call *c, enum role role, void *data, const char *label,
                                onepass_status wanted, const char *argument) {
  onepass_tensor good = c->role[role]->tensor;
  c->role[role]->tensor.data = data;
  c->role[role]->tensor.byte_offset = 0;
  expect_helper_refused(c, label, wanted, argument, NULL);
  c->role[role]->tensor = good;
}

static void test_a_missing_buffer_is_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    for (int r = 0; r < ROLES; r++) {
      if (!role_is_used((enum kind)k, (enum role)r)) continue;
      char label[120];
      call *c = good_call((enum kind)k);
      addresses a = addresses_of(c);
      snprintf(label, sizeof label, "%s, %s NULL", kind_name[k], role_name[r]);
      a.of[r] = NULL;
      expect_run_refused(c, &a, label, ONEPASS_NULL_POINTER, role_name[r]);
      expect_data_refused(c, (enum role)r, NULL, label, ONEPASS_NULL_POINTER, role_name[r]);
      call_free(c);
    }
  }
}

static void test_a_misaligned_buffer_is_refused(void) {
  for (size_t d = 0; d < 4; d++) {
    for (int k = 0; k < KINDS; k++) {
      for (int r = 0; r < ROLES; r++) {
        if (!role_is_used((enum kind)k, (enum role)r)) continue;
        char label[120];
        call *c = call_new((enum kind)k, every_dtype[d], 3, the_shape, -1);
        addresses a = addresses_of(c);
        snprintf(label, sizeof label, "%s of %s, %s one byte off", kind_name[k],
                 dtype_name(every_dtype[d]), role_name[r]);
        a.of[r] = (char *)a.of[r] + 1;
        expect_run_refused(c, &a, label, ONEPASS_MISALIGNED, role_name[r]);
        expect_data_refused(c, (enum role)r, a.of[r], label, ONEPASS_MISALIGNED, role_name[r]);
        call_free(c);
      }
    }
  }
}

/* An output one element into another argument shares memory with it, whatever that one is. */
static void test_an_output_that_partly_covers_another_argument_is_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    for (int out = 0; out < ROLES; out++) {
      if (!role_is_output((enum kind)k, (enum role)out)) continue;
      for (int other = 0; other < ROLES; other++) {
        if (other == out || !role_is_used((enum kind)k, (enum role)other)) continue;
        char label[120];
        call *c = good_call((enum kind)k);
        addresses a = addresses_of(c);
        snprintf(label, sizeof label, "%s, %s over %s", kind_name[k], role_name[out],
                 role_name[other]);
        a.of[out] = (char *)a.of[other] + 4;
        expect_run_refused(c, &a, label, ONEPASS_OVERLAP, role_name[out]);
        expect_data_refused(c, (enum role)out, a.of[out], label, ONEPASS_OVERLAP, role_name[out]);
        /* The last element of the one on the first of the other is an overlap too. */
        a.of[out] = (char *)a.of[other] - (c->role[out]->count - 1) * 4;
        expect_run_refused(c, &a, label, ONEPASS_OVERLAP, role_name[out]);
        call_free(c);
      }
    }
  }
}

/* In place is for the norms: y on x, dx on x, dx on dy. Anything else at one address is refused. */
static void test_an_output_at_the_address_of_another_argument_is_refused(void) {
  for (int k = 0; k < KINDS; k++) {
    for (int out = 0; out < ROLES; out++) {
      if (!role_is_output((enum kind)k, (enum role)out)) continue;
      for (int other = 0; other < ROLES; other++) {
        int is_norm = k < POOL_FORWARD;
        int in_place =
            is_norm && ((out == Y && other == X) || (out == DX && (other == X || other == DY)));
        if (other == out || in_place || !role_is_used((enum kind)k, (enum role)other)) continue;
        char label[120];
        call *c = good_call((enum kind)k);
        addresses a = addresses_of(c);
        snprintf(label, sizeof label, "%s, %s at %s", kind_name[k], role_name[out],
                 role_name[other]);
        a.of[out] = a.of[other];
        expect_run_refused(c, &a, label, ONEPASS_OVERLAP, role_name[out]);
        call_free(c);
      }
    }
  }
}

/* The same address with other strides would overwrite what is still to be read. */
static void test_in_place_with_other_strides_is_refused(void) {
  for (int k = L1_FORWARD; k <= LAYER_BACKWARD; k++) {
    call *c = good_call((enum kind)k);
    enum role out = c->role[Y] ? Y : DX;
    c->role[out]->strides[0] = 1;
    c->role[out]->strides[1] = 4;
    c->role[out]->strides[2] = 12;
    addresses a = addresses_of(c);
    a.of[out] = a.of[X];
    expect_run_refused(c, &a, kind_name[k], ONEPASS_OVERLAP, role_name[out]);
    call_free(c);
  }
}

/* Buffers that touch but do not overlap are fine: x directly before y. */
static void test_neighbouring_buffers_are_taken(void) {
  const int64_t both[1] = {216};
  for (int k = L1_FORWARD; k <= LAYER_BACKWARD; k++) {
    call *c = good_call((enum kind)k);
    enum role out = c->role[Y] ? Y : DX;
    array *block = array_new(ONEPASS_F32, 1, both);
    addresses a = addresses_of(c);
    onepass_plan *plan = NULL;
    memcpy(array_data(block), a.of[X], 108 * 4);
    a.of[X] = array_data(block);
    a.of[out] = (char *)a.of[X] + 108 * 4;
    EXPECT_OK(call_plan(c, &plan));
    EXPECT_OK(run_plan(plan, &a.buffers));
    EXPECT(array_guards_hold(block), "%s wrote outside", kind_name[k]);
    onepass_plan_destroy(plan);
    array_free(block);
    call_free(c);
  }
}

static void test_a_workspace_that_does_not_do_is_refused(void) {
  const int64_t shape[2] = {4096, 256};
  call *c = call_new(LAYER_BACKWARD, ONEPASS_F32, 2, shape, 1);
  addresses a = addresses_of(c);
  onepass_plan *plan = NULL;
  c->options.threads = 2;
  if (EXPECT_OK(call_plan(c, &plan))) {
    size_t needed = onepass_plan_workspace(plan);
    char value[32];
    if (EXPECT(needed > 0, "dweight of 4096 rows needs no workspace")) {
      size_t room = (needed + 127) / 64 * 64;
      char *workspace = aligned_alloc(64, room);
      if (workspace == NULL) exit(2);
      memset(workspace, 0x5A, room);
      snprintf(value, sizeof value, "%zu", needed);
      expect_status(onepass_run(plan, &a.buffers, NULL, needed, NULL), ONEPASS_BAD_WORKSPACE,
                    "workspace NULL");
      expect_message("workspace NULL", "workspace", value);
      expect_status(onepass_run(plan, &a.buffers, workspace, needed - 1, NULL),
                    ONEPASS_BAD_WORKSPACE, "workspace one byte short");
      expect_message("workspace one byte short", "workspace", value);
      snprintf(value, sizeof value, "%zu", needed - 1);
      expect_message("workspace one byte short", NULL, value);
      expect_status(onepass_run(plan, &a.buffers, workspace, 0, NULL), ONEPASS_BAD_WORKSPACE,
                    "workspace of no bytes");
      expect_status(onepass_run(plan, &a.buffers, workspace + 8, room - 8, NULL),
                    ONEPASS_BAD_WORKSPACE, "workspace misaligned");
      expect_message("workspace misaligned", "workspace", "64");
      for (size_t i = 0; i < room; i++) {
        if (!EXPECT(workspace[i] == 0x5A, "the refused workspace was written at %zu", i)) break;
      }
      expect_outputs_untouched(c, "workspace");
      EXPECT_OK(onepass_run(plan, &a.buffers, workspace, needed, NULL));
      for (size_t i = needed; i < room; i++) {
        EXPECT(workspace[i] == 0x5A, "byte %zu of a workspace of %zu was written", i, needed);
      }
      EXPECT(!array_untouched(c->role[DX]), "a run with enough workspace wrote nothing");
      free(workspace);
    }
  }
  onepass_plan_destroy(plan);
  call_free(c);
}

static void test_a_stream_on_the_cpu_is_refused(void) {
  call *c = good_call(L1_FORWARD);
  addresses a = addresses_of(c);
  onepass_plan *plan = NULL;
  EXPECT_OK(call_plan(c, &plan));
  expect_status(onepass_run(plan, &a.buffers, NULL, 0, c), ONEPASS_BAD_DEVICE, "stream");
  expect_message("stream", "stream", NULL);
  expect_outputs_untouched(c, "stream");
  onepass_plan_destroy(plan);
  call_free(c);
}

int main(void) {
  test_a_missing_buffer_is_refused();
  test_a_misaligned_buffer_is_refused();
  test_an_output_that_partly_covers_another_argument_is_refused();
  test_an_output_at_the_address_of_another_argument_is_refused();
  test_in_place_with_other_strides_is_refused();
  test_neighbouring_buffers_are_taken();
  test_a_workspace_that_does_not_do_is_refused();
  test_a_stream_on_the_cpu_is_refused();
  return expect_report("test_status_run");
}
