/*
 * The promises of the header that are not about numbers: versions, names, messages, layouts of the
 * structs, plans, the length of a pooled axis, empty tensors.
 *
 * SPDX-License-Identifier: MIT
 */
#define _POSIX_C_SOURCE 200809L /* barriers */
#include <pthread.h>
#include <stdlib.h>

#include "calls.h"
#include "expect.h"

static void test_the_version_is_the_headers(void) {
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", ONEPASS_VERSION_MAJOR, ONEPASS_VERSION_MINOR,
           ONEPASS_VERSION_PATCH);
  EXPECT_TEXT(ONEPASS_VERSION_STRING, text);
  EXPECT_TEXT(onepass_version_string(), ONEPASS_VERSION_STRING);
  EXPECT_INT(onepass_version(), ONEPASS_VERSION);
}

static void test_every_status_has_its_own_name(void) {
#define NAME(status) \
  { status, #status }
  const struct {
    onepass_status status;
    const char *name;
  } names[] = {NAME(ONEPASS_OK),
               NAME(ONEPASS_NULL_POINTER),
               NAME(ONEPASS_BAD_OPERATOR),
               NAME(ONEPASS_BAD_OPTION),
               NAME(ONEPASS_BAD_DEVICE),
               NAME(ONEPASS_BAD_DTYPE),
               NAME(ONEPASS_BAD_NDIM),
               NAME(ONEPASS_BAD_SHAPE),
               NAME(ONEPASS_BAD_STRIDES),
               NAME(ONEPASS_BAD_AXIS),
               NAME(ONEPASS_BAD_KERNEL),
               NAME(ONEPASS_BAD_WINDOW_STRIDE),
               NAME(ONEPASS_BAD_PADDING),
               NAME(ONEPASS_OVERLAP),
               NAME(ONEPASS_MISALIGNED),
               NAME(ONEPASS_BAD_WORKSPACE),
               NAME(ONEPASS_OUT_OF_MEMORY),
               NAME(ONEPASS_BAD_STREAM),
               NAME(ONEPASS_CUDA_ERROR)};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    EXPECT_INT(names[i].status, (int)i);
    EXPECT_TEXT(onepass_status_name(names[i].status), names[i].name);
  }
  EXPECT(onepass_status_name((onepass_status)9999) != NULL, "status 9999 has a NULL name");
  EXPECT(onepass_status_name((onepass_status)-1) != NULL, "status -1 has a NULL name");
}

/* Each thread fails in its own way, waits until all have, and finds its own message. */
typedef struct failing_thread {
  pthread_barrier_t *barrier;
  int64_t kernel;
  char message[256];
} failing_thread;

static void *fail_and_remember(void *argument) {
  failing_thread *self = argument;
  int64_t pooled;
  onepass_pool_length(5, self->kernel, 1, 0, 0, &pooled);
  pthread_barrier_wait(self->barrier);
  snprintf(self->message, sizeof self->message, "%s", onepass_last_message());
  pthread_barrier_wait(self->barrier);
  return NULL;
}

static void test_each_thread_has_its_own_message(void) {
  enum { THREADS = 4 };
  pthread_barrier_t barrier;
  pthread_t threads[THREADS];
  failing_thread states[THREADS];
  int64_t pooled;
  EXPECT_INT(onepass_pool_length(5, -1234, 1, 0, 0, &pooled), ONEPASS_BAD_KERNEL);
  pthread_barrier_init(&barrier, NULL, THREADS);
  for (int i = 0; i < THREADS; i++) {
    states[i] = (failing_thread){&barrier, -1000 - i, ""};
    pthread_create(&threads[i], NULL, fail_and_remember, &states[i]);
  }
  for (int i = 0; i < THREADS; i++) {
    char value[16];
    pthread_join(threads[i], NULL);
    snprintf(value, sizeof value, "%d", -1000 - i);
    EXPECT(strstr(states[i].message, value) != NULL, "thread %d has the message \"%s\"", i,
           states[i].message);
  }
  pthread_barrier_destroy(&barrier);
  EXPECT(strstr(onepass_last_message(), "-1234") != NULL, "the main thread's message became \"%s\"",
         onepass_last_message());
}

static void *message_of_a_new_thread(void *argument) {
  (void)argument;
  const char *message = onepass_last_message();
  return (void *)(uintptr_t)(message != NULL && message[0] == '\0');
}

static void test_a_thread_that_has_not_failed_has_an_empty_message(void) {
  pthread_t thread;
  void *is_empty = NULL;
  pthread_create(&thread, NULL, message_of_a_new_thread, NULL);
  pthread_join(thread, &is_empty);
  EXPECT(is_empty != NULL, "a new thread's message is NULL or not empty");
}

/* DLPack's structs as its header has them (version 0.8), declared here so that the test needs none.
 */
typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;
typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} DLTensor;

static void test_a_tensor_is_laid_out_as_dlpacks(void) {
#define SAME_PLACE(field)                                                             \
  do {                                                                                \
    EXPECT_INT(offsetof(onepass_tensor, field), offsetof(DLTensor, field));           \
    EXPECT_INT(sizeof(((onepass_tensor *)0)->field), sizeof(((DLTensor *)0)->field)); \
  } while (0)
  EXPECT_INT(sizeof(onepass_tensor), sizeof(DLTensor));
  SAME_PLACE(data);
  SAME_PLACE(device);
  SAME_PLACE(ndim);
  SAME_PLACE(dtype);
  SAME_PLACE(shape);
  SAME_PLACE(strides);
  SAME_PLACE(byte_offset);
  EXPECT_INT(offsetof(onepass_device, id), offsetof(DLDevice, device_id));
  EXPECT_INT(offsetof(onepass_dtype, bits), offsetof(DLDataType, bits));
  EXPECT_INT(offsetof(onepass_dtype, lanes), offsetof(DLDataType, lanes));
  EXPECT_INT(ONEPASS_CPU, 1);  /* kDLCPU */
  EXPECT_INT(ONEPASS_CUDA, 2); /* kDLCUDA */
}

static void test_the_types_have_dlpacks_numbers(void) {
  const onepass_dtype types[4] = {ONEPASS_F32, ONEPASS_F64, ONEPASS_F16, ONEPASS_BF16};
  const int code[4] = {2, 2, 2, 4}, bits[4] = {32, 64, 16, 16};
  for (int i = 0; i < 4; i++) {
    EXPECT_INT(types[i].code, code[i]);
    EXPECT_INT(types[i].bits, bits[i]);
    EXPECT_INT(types[i].lanes, 1);
  }
}

static void test_a_plan_says_what_it_will_do(void) {
  const int64_t shape[3] = {8, 4, 100};
  const char *const ops[KINDS] = {"l1_norm",  "l1_norm", "layer_norm", "layer_norm", "rms_norm",
                                  "rms_norm", "l2_norm", "l2_norm",    "avg_pool1d", "avg_pool1d"};
  for (int k = 0; k < KINDS; k++) {
    call *c = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    onepass_plan *plan = NULL;
    onepass_plan_info info = {0};
    int64_t bytes = 0;
    c->options.threads = 2;
    for (int r = 0; r < ROLES; r++) {
      if (c->role[r]) bytes += c->role[r]->count * dtype_size(c->role[r]->tensor.dtype);
    }
    if (EXPECT_OK(call_plan(c, &plan)) && EXPECT_OK(onepass_plan_describe(plan, &info))) {
      EXPECT_TEXT(info.op, ops[k]);
      EXPECT(info.kernel && info.kernel[0], "%s has no kernel", kind_name[k]);
      EXPECT(info.vector && strcmp(info.vector, "double") != 0, "%s: vector is %s", kind_name[k],
             info.vector ? info.vector : "NULL");
      EXPECT(info.threads >= 1 && info.threads <= 2, "%s: %d threads", kind_name[k], info.threads);
      EXPECT_INT(info.bytes, bytes);
      EXPECT_INT(info.workspace, onepass_plan_workspace(plan));
    }
    onepass_plan_destroy(plan);
    c->options.reference = 1;
    if (EXPECT_OK(call_plan(c, &plan)) && EXPECT_OK(onepass_plan_describe(plan, &info))) {
      EXPECT_TEXT(info.vector, "double");
    }
    onepass_plan_destroy(plan);
    call_free(c);
  }
}

static void test_this_machine_is_described(void) {
  onepass_cpu_info info;
  memset(&info, 0xFF, sizeof info);
  EXPECT_OK(onepass_get_cpu_info(&info));
  EXPECT(memchr(info.name, '\0', sizeof info.name) != NULL && info.name[0], "no processor name");
  EXPECT(info.vector && info.vector[0], "no vector level");
  EXPECT(info.build && info.build[0], "no build");
  EXPECT(info.threads >= 1, "%d threads", info.threads);
  EXPECT(info.l1 > 0 && info.l2 >= info.l1 && info.last >= info.l2, "caches of %lld, %lld, %lld",
         (long long)info.l1, (long long)info.l2, (long long)info.last);
}

/* Worked by hand from PyTorch's rule: floor or ceil of (L + 2p - k) / s, plus 1; with ceil_mode
 * one less if the last window would start in the padding on the right. */
static void test_pooled_lengths_are_pytorchs(void) {
  const struct {
    int64_t length, kernel, stride, padding, floor, ceil;
  } rows[] = {
      {65536, 8, 1, 4, 65537, 65537},
      {1, 1, 1, 0, 1, 1},
      {9, 3, 2, 1, 5, 5},
      {10, 3, 2, 0, 4, 5},    /* 7 / 2 = 3.5; the fifth window starts at 8 */
      {10, 3, 2, 1, 5, 6},    /* 9 / 2 = 4.5; the sixth starts at 9 of 10 */
      {5, 2, 3, 1, 2, 2},     /* 5 / 3 = 1.67; the third would start at 6 - 1 = 5 of 5 */
      {5, 2, 4, 0, 1, 2},     /* 3 / 4 = 0.75; the second starts at 4 */
      {4, 2, 4, 0, 1, 1},     /* 2 / 4 = 0.5; the second would start at 4 of 4 */
      {7, 7, 7, 0, 1, 1},     /* exactly one window */
      {7, 4, 10, 2, 1, 1},    /* 7 / 10; the second would start at 8 of 7 */
      {6, 4, 5, 2, 2, 2},     /* 6 / 5 = 1.2; the third would start at 10 - 2 = 8 of 6 */
      {100, 2, 2, 1, 51, 51}, /* 100 / 2 = 50 exactly */
      {3, 2, 1, 1, 4, 4},
      {INT64_C(3000000000), 2, 1, 0, INT64_C(2999999999), INT64_C(2999999999)},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (int ceil_mode = 0; ceil_mode < 2; ceil_mode++) {
      int64_t pooled = -1, wanted = ceil_mode ? rows[i].ceil : rows[i].floor;
      EXPECT_OK(onepass_pool_length(rows[i].length, rows[i].kernel, rows[i].stride, rows[i].padding,
                                    ceil_mode, &pooled));
      EXPECT(pooled == wanted, "row %zu, ceil_mode %d: %lld is not %lld", i, ceil_mode,
             (long long)pooled, (long long)wanted);
    }
  }
}

/* Near the end of 64 bits a length may be refused, but never wrong. */
static void test_pooled_lengths_do_not_wrap_around(void) {
  const struct {
    int64_t length, kernel, stride, padding, pooled;
  } rows[] = {
      {INT64_C(4611686018427387903), 10, INT64_C(6550114869914519624), 2, 1},
      {INT64_C(2305843009213693952), 223, INT64_C(7793209187112594078), 8, 1},
      {INT64_MAX, 1, 1, 0, INT64_MAX},
      {INT64_MAX - 2, 2, 1, 1, INT64_MAX - 1},
      {9, 3, INT64_MAX, 1, 1},
      {INT64_MAX, INT64_MAX, 1, 0, 1},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    for (int ceil_mode = 0; ceil_mode < 2; ceil_mode++) {
      int64_t pooled = -1;
      onepass_status status = onepass_pool_length(rows[i].length, rows[i].kernel, rows[i].stride,
                                                  rows[i].padding, ceil_mode, &pooled);
      EXPECT(status == ONEPASS_BAD_SHAPE || (status == ONEPASS_OK && pooled == rows[i].pooled),
             "row %zu, ceil_mode %d: %s, %lld instead of %lld", i, ceil_mode,
             onepass_status_name(status), (long long)pooled, (long long)rows[i].pooled);
    }
  }
}

static void test_the_one_call_functions_do_what_plan_and_run_do(void) {
  const int64_t shape[3] = {5, 7, 33};
  for (size_t d = 0; d < 4; d++) {
    for (int k = 0; k < KINDS; k++) {
      call *planned = call_new((enum kind)k, every_dtype[d], 3, shape, -1);
      call *helped = call_new((enum kind)k, every_dtype[d], 3, shape, -1);
      EXPECT_OK(call_run(planned));
      EXPECT_OK(call_helper(helped));
      EXPECT(call_outputs_same_bits(planned, helped), "%s of %s differs", kind_name[k],
             dtype_name(every_dtype[d]));
      EXPECT(call_guards_hold(helped), "%s of %s wrote outside", kind_name[k],
             dtype_name(every_dtype[d]));
      call_free(planned);
      call_free(helped);
    }
  }
}

/* The first element is byte_offset behind data, in the helpers; a plan does not look at either. */
static void test_byte_offset_is_honoured(void) {
  const int64_t shape[3] = {5, 7, 33};
  for (int k = 0; k < KINDS; k++) {
    call *with_offset = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    call *without = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    for (int r = 0; r < ROLES; r++) {
      if (without->role[r] == NULL) continue;
      EXPECT(with_offset->role[r]->tensor.byte_offset > 0, "the test has no offset to honour");
      without->role[r]->tensor.data = array_data(without->role[r]);
      without->role[r]->tensor.byte_offset = 0;
    }
    EXPECT_OK(call_helper(with_offset));
    EXPECT_OK(call_helper(without));
    for (int r = 0; r < ROLES; r++) { /* so that the arrays find their elements again */
      if (without->role[r]) {
        without->role[r]->tensor.byte_offset = with_offset->role[r]->tensor.byte_offset;
      }
    }
    EXPECT(call_outputs_same_bits(with_offset, without), "%s differs", kind_name[k]);
    EXPECT(call_guards_hold(with_offset), "%s wrote outside", kind_name[k]);
    call_free(with_offset);
    call_free(without);
  }
}

static void test_a_plan_does_not_look_at_data(void) {
  const int64_t shape[3] = {5, 7, 33};
  for (int k = 0; k < KINDS; k++) {
    call *c = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    call *same = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    onepass_tensors tensors = call_tensors(c);
    onepass_buffers buffers = buffers_of(&tensors);
    onepass_plan *plan = NULL;
    for (int r = 0; r < ROLES; r++) {
      if (c->role[r]) c->role[r]->tensor.data = NULL;
    }
    EXPECT_OK(call_plan(c, &plan));
    EXPECT_OK(run_plan(plan, &buffers));
    EXPECT_OK(call_run(same));
    EXPECT(call_outputs_same_bits(c, same), "%s differs", kind_name[k]);
    onepass_plan_destroy(plan);
    call_free(c);
    call_free(same);
  }
}

/* A plan copies what it was given: the caller may reuse the descriptions at once. */
static void test_a_plan_keeps_no_pointer_to_its_description(void) {
  const int64_t shape[3] = {5, 7, 33};
  for (int k = 0; k < KINDS; k++) {
    call *c = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    call *same = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    onepass_tensors tensors = call_tensors(c);
    onepass_buffers buffers = buffers_of(&tensors);
    onepass_plan *plan = NULL;
    int64_t kept_shape[ROLES][ONEPASS_MAX_NDIM];
    EXPECT_OK(call_plan(c, &plan));
    for (int r = 0; r < ROLES; r++) {
      if (c->role[r] == NULL) continue;
      memcpy(kept_shape[r], c->role[r]->shape, sizeof kept_shape[r]);
      memset(c->role[r]->shape, 0x7F, sizeof kept_shape[r]);
    }
    memset(&c->norm, 0x7F, sizeof c->norm);
    memset(&c->pool, 0x7F, sizeof c->pool);
    EXPECT_OK(run_plan(plan, &buffers));
    EXPECT_OK(run_plan(plan, &buffers)); /* and again */
    for (int r = 0; r < ROLES; r++) {
      if (c->role[r]) memcpy(c->role[r]->shape, kept_shape[r], sizeof kept_shape[r]);
    }
    EXPECT_OK(call_run(same));
    EXPECT(call_outputs_same_bits(c, same), "%s differs", kind_name[k]);
    onepass_plan_destroy(plan);
    call_free(c);
    call_free(same);
  }
}

static void test_zeroed_options_are_the_same_as_none(void) {
  const int64_t shape[2] = {6, 50};
  call *zeroed = call_new(LAYER_FORWARD, ONEPASS_F32, 2, shape, 1);
  call *none = call_new(LAYER_FORWARD, ONEPASS_F32, 2, shape, 1);
  onepass_tensors tensors = call_tensors(none);
  EXPECT_OK(call_run(zeroed));
  EXPECT_OK(norm_once(&none->norm, &tensors, NULL));
  EXPECT(call_outputs_same_bits(zeroed, none), "they differ");
  call_free(zeroed);
  call_free(none);
}

static void expect_empty_is_fine(enum kind kind, const int64_t *shape, int axis, int reference) {
  call *c = call_new(kind, ONEPASS_F32, 3, shape, axis);
  c->options.reference = reference;
  EXPECT(call_run(c) == ONEPASS_OK && call_helper(c) == ONEPASS_OK,
         "%s of (%d, %d, %d), axis %d, reference %d: %s", kind_name[kind], (int)shape[0],
         (int)shape[1], (int)shape[2], axis, reference, onepass_last_message());
  EXPECT(call_guards_hold(c), "%s of (%d, %d, %d), axis %d, reference %d wrote outside",
         kind_name[kind], (int)shape[0], (int)shape[1], (int)shape[2], axis, reference);
  call_free(c);
}

static void test_empty_tensors_are_no_work_and_no_error(void) {
  const int64_t shapes[][3] = {{0, 3, 9}, {4, 0, 9}, {0, 0, 9}, {4, 3, 0}, {0, 3, 0}, {4, 0, 0}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (int k = 0; k < KINDS; k++) {
      for (int axis = -3; axis < 0; axis++) {
        if (k >= POOL_FORWARD && (axis != -1 || shapes[s][2] == 0 || shapes[s][1] == 0)) continue;
        expect_empty_is_fine((enum kind)k, shapes[s], axis, 0);
        expect_empty_is_fine((enum kind)k, shapes[s], axis, 1);
      }
    }
  }
}

/* A tensor without elements needs no memory. */
static void test_an_empty_tensor_may_have_null_data(void) {
  const int64_t shape[3] = {0, 3, 9};
  for (int k = 0; k < KINDS; k++) {
    call *c = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    for (int r = 0; r < ROLES; r++) {
      if (c->role[r] == NULL || c->role[r]->count) continue;
      c->role[r]->tensor.data = NULL;
      c->role[r]->tensor.byte_offset = 0;
    }
    EXPECT(call_helper(c) == ONEPASS_OK, "%s: %s", kind_name[k], onepass_last_message());
    call_free(c);
  }
}

/* The gradient of a weight that was used in no row is zero, not what was in memory before. */
static void test_dweight_and_dbias_of_no_rows_are_zero(void) {
  const int64_t shape[2] = {0, 9};
  call *c = call_new(LAYER_BACKWARD, ONEPASS_F32, 2, shape, 1);
  EXPECT_OK(call_run(c));
  for (int64_t i = 0; i < 9; i++) {
    EXPECT(array_get(c->role[DWEIGHT], i) == 0, "dweight[%d] is %g", (int)i,
           array_get(c->role[DWEIGHT], i));
    EXPECT(array_get(c->role[DBIAS], i) == 0, "dbias[%d] is %g", (int)i,
           array_get(c->role[DBIAS], i));
  }
  EXPECT(call_guards_hold(c), "it wrote outside");
  call_free(c);
}

static void test_one_element_is_enough(void) {
  const int64_t one[3] = {1, 1, 1};
  for (size_t d = 0; d < 4; d++) {
    for (int ndim = 1; ndim <= 3; ndim++) {
      for (int k = 0; k < KINDS; k++) {
        if (k >= POOL_FORWARD && ndim == 1) continue;
        call *c = call_new((enum kind)k, every_dtype[d], ndim, one, -1);
        EXPECT(call_helper(c) == ONEPASS_OK, "%s: %s", kind_name[k], onepass_last_message());
        call *reference = call_reference(c);
        double distance = call_distance(c, reference);
        EXPECT(distance <= 1, "%s of one %s: %g times the bound", kind_name[k],
               dtype_name(every_dtype[d]), distance);
        EXPECT(call_guards_hold(c), "%s wrote outside", kind_name[k]);
        call_free(reference);
        call_free(c);
      }
    }
  }
}

/* The ways to leave out what the caller does not want give the same values as the whole. */
static void test_outputs_that_are_left_out_change_nothing_in_the_others(void) {
  const int64_t shape[2] = {37, 65};
  const enum kind kinds[2] = {LAYER_FORWARD, LAYER_BACKWARD};
  for (int k = 0; k < 2; k++) {
    call *whole = call_new(kinds[k], ONEPASS_F32, 2, shape, 1);
    EXPECT_OK(call_run(whole));
    for (int left_out = 0; left_out < ROLES; left_out++) {
      if (!role_is_output(kinds[k], (enum role)left_out)) continue;
      if (!role_is_optional(kinds[k], (enum role)left_out)) continue;
      call *part = call_new(kinds[k], ONEPASS_F32, 2, shape, 1);
      array_free(part->role[left_out]);
      part->role[left_out] = NULL;
      EXPECT_OK(call_run(part));
      EXPECT(call_outputs_same_bits(part, whole), "%s without %s differs", kind_name[kinds[k]],
             role_name[left_out]);
      call_free(part);
    }
    call_free(whole);
  }
}

int main(void) {
  test_the_version_is_the_headers();
  test_every_status_has_its_own_name();
  test_each_thread_has_its_own_message();
  test_a_thread_that_has_not_failed_has_an_empty_message();
  test_a_tensor_is_laid_out_as_dlpacks();
  test_the_types_have_dlpacks_numbers();
  test_a_plan_says_what_it_will_do();
  test_this_machine_is_described();
  test_pooled_lengths_are_pytorchs();
  test_pooled_lengths_do_not_wrap_around();
  test_the_one_call_functions_do_what_plan_and_run_do();
  test_byte_offset_is_honoured();
  test_a_plan_does_not_look_at_data();
  test_a_plan_keeps_no_pointer_to_its_description();
  test_zeroed_options_are_the_same_as_none();
  test_empty_tensors_are_no_work_and_no_error();
  test_an_empty_tensor_may_have_null_data();
  test_dweight_and_dbias_of_no_rows_are_zero();
  test_one_element_is_enough();
  test_outputs_that_are_left_out_change_nothing_in_the_others();
  return expect_report("test_interface");
}
