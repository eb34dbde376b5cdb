/* Whole numbers, as whoever cuts work into pieces needs them. */
#ifndef ONEPASS_CORE_NUMBERS_H
#define ONEPASS_CORE_NUMBERS_H

#include <stdint.h>

static inline int64_t onepass_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t onepass_most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t onepass_divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* The multiple of `step` from a on. */
static inline int64_t onepass_round_up(int64_t a, int64_t step) {
  return onepass_divide_up(a, step) * step;
}

static inline int64_t onepass_power_of_two_from(int64_t a) {
  int64_t power = 1;
  while (power < a) power *= 2;
  return power;
}

#endif
