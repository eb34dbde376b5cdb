/*
 * Which way a CPU goes about a norm, on both sides of every limit that is the same on all machines.
 *
 * SPDX-License-Identifier: MIT
 */
#include <string.h>

#include "calls.h"
#include "expect.h"

typedef struct choice {
  enum kind kind;
  onepass_dtype dtype;
  int64_t shape[2];
  int axis, threads;
  const char *kernel;
} choice;

static void expect_choices(const choice *choices, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const choice *of = &choices[i];
    call *c = call_new(of->kind, of->dtype, 2, of->shape, of->axis);
    onepass_plan *plan = NULL;
    onepass_plan_info info = {0};
    c->options.threads = of->threads;
    if (EXPECT_OK(call_plan(c, &plan))) EXPECT_OK(onepass_plan_describe(plan, &info));
    EXPECT(info.kernel && strcmp(info.kernel, of->kernel) == 0,
           "%s of %s %dx%d over axis %d on %d threads goes by %s, expected %s", kind_name[of->kind],
           dtype_name(of->dtype), (int)of->shape[0], (int)of->shape[1], of->axis, of->threads,
           info.kernel ? info.kernel : "nothing", of->kernel);
    onepass_plan_destroy(plan);
    call_free(c);
  }
}

#define EXPECT_CHOICES(...)                     \
  expect_choices((const choice[]){__VA_ARGS__}, \
                 sizeof((const choice[]){__VA_ARGS__}) / sizeof(choice))

static void test_short_rows_are_turned_where_there_are_many(void) {
  const onepass_dtype f32 = ONEPASS_F32, f64 = ONEPASS_F64, f16 = ONEPASS_F16, bf16 = ONEPASS_BF16;
  EXPECT_CHOICES(
      {LAYER_FORWARD, f32, {64, 16}, -1, 1, "turned_rows"},
      {LAYER_FORWARD, f32, {63, 16}, -1, 1, "rows"}, {LAYER_FORWARD, f32, {64, 17}, -1, 1, "rows"},
      {LAYER_BACKWARD, f32, {64, 16}, -1, 1, "turned_rows"},
      {LAYER_BACKWARD, f32, {64, 17}, -1, 1, "rows"},
      {RMS_FORWARD, bf16, {1000, 3}, -1, 1, "turned_rows"},
      {RMS_BACKWARD, f16, {64, 16}, -1, 1, "turned_rows"},
      {L1_FORWARD, bf16, {64, 17}, -1, 1, "rows"},
      {L1_BACKWARD, f64, {64, 8}, -1, 1, "turned_rows"}, {L1_FORWARD, f64, {64, 9}, -1, 1, "rows"});
}

static void test_rows_side_by_side_are_columns(void) {
  EXPECT_CHOICES(
      {L1_FORWARD, ONEPASS_F32, {64, 16}, 0, 1, "columns"},
      {L2_BACKWARD, ONEPASS_BF16, {3, 8}, 0, 1, "columns"},
      {L2_FORWARD, ONEPASS_F32, {3, 7}, 0, 1, "packed_rows"},
      {L1_FORWARD, ONEPASS_F32, {64, 1}, -1, 1, "columns"}); /* each other's neighbours */
}

static void test_rows_are_taken_apart_where_threads_would_have_none_or_wait_for_others(void) {
  EXPECT_CHOICES({LAYER_FORWARD, ONEPASS_F32, {1, 40000}, -1, 2, "split_rows"},
                 {LAYER_FORWARD, ONEPASS_F32, {1, 4096}, -1, 2, "rows"}, /* one chunk is not */
                 {LAYER_FORWARD, ONEPASS_F32, {3, 16400}, -1, 2, "split_rows"},
                 {LAYER_FORWARD, ONEPASS_F32, {3, 16400}, -1, 1, "rows"},
                 {LAYER_FORWARD, ONEPASS_F32, {4, 16400}, -1, 2, "rows"},
                 {LAYER_FORWARD, ONEPASS_F32, {7, 16400}, -1, 2, "rows"}, /* too little to wait */
                 {L1_BACKWARD, ONEPASS_F32, {3, 16400}, -1, 2, "split_rows"});
}

static void test_sums_over_rows_are_made_the_same_way_on_any_number_of_threads(void) {
  for (int threads = 1; threads <= 5; threads += 2) {
    EXPECT_CHOICES({LAYER_BACKWARD, ONEPASS_F32, {31, 1000}, -1, threads, "split_rows"},
                   {LAYER_BACKWARD, ONEPASS_F32, {32, 1000}, -1, threads, "rows"},
                   {LAYER_BACKWARD, ONEPASS_F32, {32, 16384}, -1, threads, "rows"},
                   {LAYER_BACKWARD, ONEPASS_F32, {32, 16385}, -1, threads, "split_rows"});
  }
}

int main(void) {
  test_short_rows_are_turned_where_there_are_many();
  test_rows_side_by_side_are_columns();
  test_rows_are_taken_apart_where_threads_would_have_none_or_wait_for_others();
  test_sums_over_rows_are_made_the_same_way_on_any_number_of_threads();
  return expect_report("test_launch_cpu");
}
