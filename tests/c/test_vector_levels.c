/*
 * Every vector level this CPU has gives right answers, not only the best one.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdbool.h>
#include <stdlib.h>

#include "calls.h"
#include "expect.h"
#include "levels.h"

static void expect_right_on(int level, enum kind kind, onepass_dtype dtype, const int64_t *shape,
                            int axis) {
  call *c = call_new(kind, dtype, 3, shape, axis);
  c->options.vector_level = level;
  c->options.threads = 2;
  if (EXPECT_OK(call_run(c))) {
    call *reference = call_reference(c);
    double distance = call_distance(c, reference);
    EXPECT(distance <= 1, "level %s, %s of %s %dx%dx%d over axis %d: %g times the bound",
           level_name[level], kind_name[kind], dtype_name(dtype), (int)shape[0], (int)shape[1],
           (int)shape[2], axis, distance);
    EXPECT(call_guards_hold(c), "level %s, %s wrote outside", level_name[level], kind_name[kind]);
    call_free(reference);
  }
  call_free(c);
}

static void test_every_level_this_cpu_has_is_right(void) {
  const int64_t shapes[][3] = {{2, 3, 7},     {4, 5, 31},   {2, 16, 64},  {1, 9, 1025},
                               {1, 2, 30001}, {3, 200, 17}, {1, 1, 70001}};
  for (int level = 0; level < LEVELS; level++) {
    if (!cpu_has_level(level)) {
      printf("skip: vector level %s is not on this CPU\n", level_name[level]);
      continue;
    }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
      for (size_t d = 0; d < 4; d++) {
        for (int k = 0; k < KINDS; k++) {
          expect_right_on(level, (enum kind)k, every_dtype[d], shapes[s], -1);
        }
        for (int k = 0; k <= L2_BACKWARD; k++) {
          expect_right_on(level, (enum kind)k, every_dtype[d], shapes[s], 1);
        }
      }
    }
  }
}

/* With either of them, both or none; every third row far from 0, and so treated unlike the rows beside it. */
static void test_weight_and_bias_may_be_left_out(void) {
  const int64_t shapes[][2] = {{7, 40}, {7, 1100}, {4, 9001}, {2, 70001}};
  for (int level = 0; level < LEVELS; level++) {
    if (!cpu_has_level(level)) continue;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
      for (int form = 0; form < 4 * 4 * 2; form++) {
        const onepass_dtype dtype = every_dtype[form / 8];
        const bool mixed = form & 4 && dtype_size(dtype) == 2;
        call *c = call_new_as(&(call_form){.kind = LAYER_FORWARD,
                                           .dtype = dtype,
                                           .weight_dtype = mixed ? ONEPASS_F32 : dtype,
                                           .ndim = 2,
                                           .shape = shapes[s],
                                           .axis = 1});
        for (int64_t i = 0; i < c->role[X]->count; i++) {
          if (i / shapes[s][1] % 3 == 1) array_set(c->role[X], i, array_get(c->role[X], i) + 50);
        }
        for (int r = WEIGHT; r <= BIAS; r++) {
          if (form & (r == WEIGHT ? 1 : 2)) continue;
          array_free(c->role[r]);
          c->role[r] = NULL;
        }
        c->options.vector_level = level;
        c->options.threads = 1;
        if (EXPECT_OK(call_run(c))) {
          call *reference = call_reference(c);
          const double distance = call_distance(c, reference);
          EXPECT(distance <= 1, "level %s, %s %dx%d with%s weight, with%s bias: %g times the bound",
                 level_name[level], dtype_name(dtype), (int)shapes[s][0], (int)shapes[s][1],
                 form & 1 ? "" : "out", form & 2 ? "" : "out", distance);
          call_free(reference);
        }
        call_free(c);
      }
    }
  }
}

/* A plan says which level it runs on. */
static void test_a_plan_runs_on_the_level_that_was_asked_for(void) {
  const int64_t shape[3] = {2, 3, 64};
  onepass_cpu_info cpu;
  EXPECT_OK(onepass_get_cpu_info(&cpu));
  int is_x86 = strcmp(cpu.vector, "sse2") == 0 || strncmp(cpu.vector, "avx", 3) == 0;
  int is_arm = strncmp(cpu.vector, "neon", 4) == 0;
  const char *baseline = is_x86 ? "sse2" : is_arm ? "neon" : cpu.vector;
  for (int level = 0; level < LEVELS; level++) {
    onepass_plan *plan = NULL;
    onepass_plan_info info = {0};
    if (!cpu_has_level(level)) continue;
    call *c = call_new(L1_FORWARD, ONEPASS_F32, 3, shape, -1);
    c->options.vector_level = level;
    EXPECT_OK(call_plan(c, &plan));
    EXPECT_OK(onepass_plan_describe(plan, &info));
    EXPECT_TEXT(info.vector, level == ONEPASS_VECTOR_BEST       ? cpu.vector
                             : level == ONEPASS_VECTOR_BASELINE ? baseline
                                                                : level_name[level]);
    onepass_plan_destroy(plan);
    call_free(c);
  }
}

int main(void) {
  test_every_level_this_cpu_has_is_right();
  test_weight_and_bias_may_be_left_out();
  test_a_plan_runs_on_the_level_that_was_asked_for();
  return expect_report("test_vector_levels");
}
