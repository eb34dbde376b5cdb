/*
 * Any thread may call at any time, a plan may be run by many threads at once, and the number of
 * threads never shows in the bits of a result. This program is also the one for ThreadSanitizer.
 *
 * SPDX-License-Identifier: MIT
 */
#include <pthread.h>
#include <stdlib.h>

#include "calls.h"
#include "expect.h"

enum { RUNNERS = 6, RUNS = 3 };

/* Under ThreadSanitizer everything is many times slower: the same shapes, but smaller. */
#if defined(__SANITIZE_THREAD__)
#define SLOW 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLOW 1
#endif
#endif
#ifndef SLOW
#define SLOW 0
#endif

typedef struct runner {
  const onepass_plan *plan;
  call *own; /* the runner's own buffers */
  int failed;
} runner;

static void *run_often(void *argument) {
  runner *self = argument;
  onepass_tensors tensors = call_tensors(self->own);
  onepass_buffers buffers = buffers_of(&tensors);
  for (int i = 0; i < RUNS; i++) {
    if (run_plan(self->plan, &buffers) != ONEPASS_OK) self->failed = 1;
  }
  return NULL;
}

static void test_many_threads_run_one_plan_at_once(void) {
  const int64_t shapes[][2] = {{64, 100}, {300, 1025}, {3, 70001}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (int k = 0; k < KINDS; k++) {
      call *alone = call_new((enum kind)k, ONEPASS_F32, 2, shapes[s], -1);
      onepass_plan *plan = NULL;
      pthread_t threads[RUNNERS];
      runner runners[RUNNERS];
      alone->options.threads = 2;
      if (!EXPECT_OK(call_plan(alone, &plan))) exit(1);
      for (int i = 0; i < RUNNERS; i++) {
        runners[i] = (runner){plan, call_new((enum kind)k, ONEPASS_F32, 2, shapes[s], -1), 0};
      }
      for (int i = 0; i < RUNNERS; i++) pthread_create(&threads[i], NULL, run_often, &runners[i]);
      for (int i = 0; i < RUNNERS; i++) pthread_join(threads[i], NULL);
      EXPECT_OK(call_run(alone));
      for (int i = 0; i < RUNNERS; i++) {
        EXPECT(!runners[i].failed, "%s: a run failed", kind_name[k]);
        EXPECT(call_outputs_same_bits(runners[i].own, alone),
               "%s of %dx%d: runner %d has other bits than a run alone", kind_name[k],
               (int)shapes[s][0], (int)shapes[s][1], i);
        EXPECT(call_guards_hold(runners[i].own), "%s wrote outside", kind_name[k]);
        call_free(runners[i].own);
      }
      onepass_plan_destroy(plan);
      call_free(alone);
    }
  }
}

/* Plans made, described, run and destroyed by all threads at once, good ones and bad ones. */
static void *plan_often(void *argument) {
  runner *self = argument;
  for (int i = 0; i < 20; i++) {
    onepass_plan *plan = NULL;
    onepass_plan_info info;
    onepass_cpu_info cpu;
    if (call_plan(self->own, &plan) != ONEPASS_OK) self->failed = 1;
    if (onepass_plan_describe(plan, &info) != ONEPASS_OK) self->failed = 1;
    if (onepass_get_cpu_info(&cpu) != ONEPASS_OK) self->failed = 1;
    onepass_plan_destroy(plan);
    if (call_helper(self->own) != ONEPASS_OK) self->failed = 1;
    self->own->norm.axis = 17;
    self->own->pool.stride[0] = 0;
    if (call_plan(self->own, &plan) == ONEPASS_OK) self->failed = 1;
    if (plan != NULL || strstr(onepass_last_message(), "=") == NULL) self->failed = 1;
    self->own->norm.axis = -1;
    self->own->pool.stride[0] = 2;
  }
  return NULL;
}

static void test_plans_are_made_by_many_threads_at_once(void) {
  const int64_t shape[2] = {12, 77};
  pthread_t threads[KINDS];
  runner runners[KINDS];
  for (int k = 0; k < KINDS; k++) {
    runners[k] = (runner){NULL, call_new((enum kind)k, ONEPASS_F32, 2, shape, -1), 0};
  }
  for (int k = 0; k < KINDS; k++) pthread_create(&threads[k], NULL, plan_often, &runners[k]);
  for (int k = 0; k < KINDS; k++) pthread_join(threads[k], NULL);
  for (int k = 0; k < KINDS; k++) {
    call *alone = call_new((enum kind)k, ONEPASS_F32, 2, shape, -1);
    EXPECT_OK(call_run(alone));
    EXPECT(!runners[k].failed, "%s: a call failed, or a bad one did not", kind_name[k]);
    EXPECT(call_outputs_same_bits(runners[k].own, alone), "%s has other bits", kind_name[k]);
    call_free(alone);
    call_free(runners[k].own);
  }
}

/* Fewer rows than threads, more rows than threads, rows longer than any cache, short ones. */
static void test_the_number_of_threads_does_not_show_in_the_bits(void) {
  const int64_t million = SLOW ? 100000 : 1000000;
  const int64_t shapes[][3] = {
      {1, 1, 3 * million + 1}, {1, 3, million / 3},   {1, 2000, 64}, {3, 129, 1023},
      {1, 7, 40000},           {2, million / 100, 3}, {1, 5, 1},     {2, 19, 1025}};
  const int threads[] = {2, 3, 5, 8};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (int k = 0; k < KINDS; k++) {
      for (size_t d = 0; d < 4; d += 3) { /* f32 and bf16 */
        for (int axis = -1; axis >= (k <= L1_BACKWARD && d == 0 ? -2 : -1); axis--) {
          if (k >= POOL_FORWARD && shapes[s][2] < 2) continue;
          call *one = call_new((enum kind)k, every_dtype[d], 3, shapes[s], axis);
          call *many = call_new((enum kind)k, every_dtype[d], 3, shapes[s], axis);
          one->options.threads = 1;
          EXPECT_OK(call_run(one));
          for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            many->options.threads = threads[t];
            for (int r = 0; r < ROLES; r++) {
              if (role_is_output((enum kind)k, (enum role)r)) array_repaint(many->role[r]);
            }
            EXPECT_OK(call_run(many));
            EXPECT(call_outputs_same_bits(one, many),
                   "%s of %s %dx%dx%d over axis %d: %d threads give other bits than one",
                   kind_name[k], dtype_name(every_dtype[d]), (int)shapes[s][0], (int)shapes[s][1],
                   (int)shapes[s][2], axis, threads[t]);
          }
          call_free(many);
          call_free(one);
        }
      }
    }
  }
}

static void test_the_same_call_gives_the_same_bits_twice(void) {
  const int64_t shape[2] = {50, 3001};
  for (int k = 0; k < KINDS; k++) {
    call *first = call_new((enum kind)k, ONEPASS_BF16, 2, shape, -1);
    call *second = call_new((enum kind)k, ONEPASS_BF16, 2, shape, -1);
    EXPECT_OK(call_run(first));
    EXPECT_OK(call_run(second));
    EXPECT(call_outputs_same_bits(first, second), "%s differs", kind_name[k]);
    call_free(first);
    call_free(second);
  }
}

/* Rows whose first elements are unlike the rest, so that how a chunk is gathered is decided wrongly
 * and must be decided again: by whoever gathers it, beside another row or not, in the same way. */
static void test_rows_that_mislead_have_the_same_bits_on_any_number_of_threads(void) {
  const int64_t shape[2] = {64, 4096};
  call *c = call_new(LAYER_FORWARD, ONEPASS_F32, 2, shape, 1);
  for (int64_t i = 0; i < c->role[X]->count; i++) {
    const double noise = (double)(i * 7919 % 1000) / 1000 - 0.5;
    const int far = i / shape[1] < 32 || i % shape[1] < 32;
    array_set(c->role[X], i, far ? 100 + 10 * noise : 2 * noise);
  }
  c->options.threads = 1;
  EXPECT_OK(call_run(c));
  float *first = malloc((size_t)c->role[Y]->count * sizeof *first);
  for (int64_t i = 0; i < c->role[Y]->count; i++) first[i] = (float)array_get(c->role[Y], i);
  for (int threads = 2; threads <= 5; threads++) {
    c->options.threads = threads;
    EXPECT_OK(call_run(c));
    int64_t different = 0;
    for (int64_t i = 0; i < c->role[Y]->count; i++) {
      different += (float)array_get(c->role[Y], i) != first[i];
    }
    EXPECT(different == 0, "%d elements differ on %d threads", (int)different, threads);
  }
  free(first);
  call_free(c);
}

/* Of two calls with the same inputs. */
static void expect_same_bits_on_any_threads(call *one, call *many) {
  one->options.threads = 1;
  EXPECT_OK(call_run(one));
  for (int threads = 2; threads <= 11; threads += 3) {
    many->options.threads = threads;
    EXPECT_OK(call_run(many));
    EXPECT(call_outputs_same_bits(one, many), "%s of %s: %d threads give other bits than one",
           kind_name[one->kind], dtype_name(one->role[X]->tensor.dtype), threads);
  }
}

/* Rows side by side, one of which cannot be multiplied with a reciprocal: threads have other neighbours of theirs to do
 * together, whose bits they must not change. */
static void test_a_row_to_be_divided_does_not_change_its_neighbours(void) {
  const int64_t shape[2] = {SLOW ? 500 : 1500, 700}; /* worth several threads */
  const enum kind kinds[] = {L1_FORWARD, L1_BACKWARD, L2_FORWARD};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    for (size_t d = 0; d < 4; d++) {
      call *one = call_new(kinds[k], every_dtype[d], 2, shape, 0);
      call *many = call_new(kinds[k], every_dtype[d], 2, shape, 0);
      one->norm.eps = many->norm.eps = 0;
      for (int64_t i = 0; i < one->role[X]->count; i++) {
        const double x = i % shape[1] == 600 ? -0.0 : array_get(one->role[X], i);
        array_set(one->role[X], i, x);
        array_set(many->role[X], i, x);
      }
      expect_same_bits_on_any_threads(one, many);
      call_free(many);
      call_free(one);
    }
  }
}

/* Rows side by side, a few of which mislead: who is done together with them must not have other bits for it. */
static void test_a_row_that_misleads_does_not_change_its_neighbours(void) {
  const int64_t shape[2] = {40, SLOW ? 5000 : 10007}; /* several strips, others for other threads */
  const enum kind kinds[] = {L2_FORWARD, L2_BACKWARD};
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    call *one = call_new(kinds[k], ONEPASS_F32, 2, shape, 0);
    call *many = call_new(kinds[k], ONEPASS_F32, 2, shape, 0);
    for (int64_t i = 0; i < one->role[X]->count; i++) {
      const int misleads = i % shape[1] % 1000 == 700 && i / shape[1] >= 4;
      const double x = array_get(one->role[X], i) + (misleads ? 1000 : 0);
      array_set(one->role[X], i, x);
      array_set(many->role[X], i, x);
    }
    expect_same_bits_on_any_threads(one, many);
    call_free(many);
    call_free(one);
  }
}

int main(void) {
  test_many_threads_run_one_plan_at_once();
  test_plans_are_made_by_many_threads_at_once();
  test_the_number_of_threads_does_not_show_in_the_bits();
  test_the_same_call_gives_the_same_bits_twice();
  test_rows_that_mislead_have_the_same_bits_on_any_number_of_threads();
  test_a_row_to_be_divided_does_not_change_its_neighbours();
  test_a_row_that_misleads_does_not_change_its_neighbours();
  return expect_report("test_threads");
}
