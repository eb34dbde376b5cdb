/* Division of numbers below 2^31 by a number that is known before the launch. Both C and CUDA C++ read this. */
#ifndef ONEPASS_CUDA_DIVIDER_H
#define ONEPASS_CUDA_DIVIDER_H

#include <stdint.h>

typedef struct onepass_divider {
  uint32_t by, multiplier, shift;
} onepass_divider;

static inline onepass_divider onepass_divider_of(int64_t by) {
  onepass_divider divider = {1, 0, 0};
  int log2 = 0;
  if (by <= 1 || by > INT32_MAX) return divider;
  divider.by = (uint32_t)by;
  while ((INT64_C(1) << log2) < by) log2++;
  divider.multiplier = (uint32_t)(((UINT64_C(1) << (31 + log2)) + (uint64_t)by - 1) / (uint64_t)by);
  divider.shift = (uint32_t)(log2 - 1);
  return divider;
}

#endif
