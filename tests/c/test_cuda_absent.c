/*
 * Where there is no CUDA device, because of the machine, its driver or the build, whoever asks for
 * one is told why, and nothing else changes.
 *
 * SPDX-License-Identifier: MIT
 */
#include "refusal.h"

static const char no_device[] = "no CUDA device: ";

static void expect_reason(const char *label) {
  const char *message = onepass_last_message();
  const size_t length = sizeof no_device - 1;
  EXPECT(strncmp(message, no_device, length) == 0 && message[length] != '\0',
         "%s: the message is \"%s\"", label, message);
}

static void test_there_are_none_and_a_reason(void) {
  int32_t count = 7;
  onepass_cuda_info info;
  expect_status(onepass_get_cuda_count(&count), ONEPASS_BAD_DEVICE, "the count");
  EXPECT_INT(count, 0);
  expect_reason("the count");
  expect_status(onepass_get_cuda_info(0, &info), ONEPASS_BAD_DEVICE, "the first device");
  expect_reason("the first device");
}

static void test_null_is_refused_as_everywhere(void) {
  expect_status(onepass_get_cuda_count(NULL), ONEPASS_NULL_POINTER, "count");
  expect_message("count", "count", NULL);
}

static void test_plans_and_helpers_say_the_same(void) {
  const int64_t shape[3] = {4, 3, 9};
  for (int k = 0; k < KINDS; k++) {
    call *c = call_new((enum kind)k, ONEPASS_F32, 3, shape, -1);
    for (int r = 0; r < ROLES; r++) {
      if (c->role[r]) c->role[r]->tensor.device.type = ONEPASS_CUDA;
    }
    expect_plan_refused(c, kind_name[k], ONEPASS_BAD_DEVICE, NULL, NULL);
    expect_reason(kind_name[k]);
    expect_helper_refused(c, kind_name[k], ONEPASS_BAD_DEVICE, NULL, NULL);
    expect_reason(kind_name[k]);
    for (int r = 0; r < ROLES; r++) {
      if (c->role[r]) c->role[r]->tensor.device.type = ONEPASS_CPU;
    }
    EXPECT_OK(call_run(c));
    call_free(c);
  }
}

int main(void) {
  int32_t count = 0;
  if (onepass_get_cuda_count(&count) == ONEPASS_OK) {
    printf("skip: test_cuda_absent: there are %d CUDA devices\n", (int)count);
    return EXPECT_SKIPPED;
  }
  test_there_are_none_and_a_reason();
  test_null_is_refused_as_everywhere();
  test_plans_and_helpers_say_the_same();
  return expect_report("test_cuda_absent");
}
