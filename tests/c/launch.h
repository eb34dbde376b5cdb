/*
 * GPUs that need not be here, and problems for them, for the tests of launch choices.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef LAUNCH_H
#define LAUNCH_H

#include "core/plan.h"
#include "expect.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

typedef struct gpu {
  const char *name;
  onepass_cuda_properties properties;
} gpu;

static const gpu gpus[] = {
    {"H200", {9, 0, 132, 232448, 233472, 62914560}},
    {"A100", {8, 0, 108, 166912, 167936, 41943040}},
    {"a small 8.6", {8, 6, 28, 101376, 102400, 3145728}},
    {"B200", {10, 0, 148, 232448, 233472, 132644864}},
    {"12.0", {12, 0, 170, 101376, 102400, 100663296}},
};
enum { H200, A100, SMALL, B200, DESKTOP, GPUS };

static const char *const type_names[] = {"f32", "f64", "f16", "bf16"};
static const onepass_dtype types[] = {{2, 32, 1}, {2, 64, 1}, {2, 16, 1}, {4, 16, 1}};
enum { F32, F64, F16, BF16, TYPES };

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }
static inline int64_t up_to(int64_t a, int64_t step) { return divide_up(a, step) * step; }
static inline bool is_power_of_two(int64_t a) { return a > 0 && (a & (a - 1)) == 0; }

/* A check whose message is only put together when it is needed. */
#define PROMISE(trial, describe, condition)                                                 \
  do {                                                                                      \
    const int holds = (condition);                                                          \
    expect_that(holds, __FILE__, __LINE__, #condition, "%s", holds ? "" : describe(trial)); \
  } while (0)

static inline const char *kernel_name(onepass_cuda_kernel kernel) {
  return kernel < ONEPASS_CUDA_KERNEL_COUNT ? onepass_cuda_kernel_name(kernel) : "none";
}

#endif
