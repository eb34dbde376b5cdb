/* Division of numbers below 2^31 by a number that is known before the launch. Both C and CUDA C++ read this. */
#ifndef ONEPASS_CUDA_DIVIDER_H
#define ONEPASS_CUDA_DIVIDER_H

#include <stdint.h>

typedef struct onepass_divider {
  uint32_t multiplier, shift;
} onepass_divider;

/* n / by is (n * multiplier / 2^32 + n) >> shift for every n below 2^31. */
static inline onepass_divider onepass_divider_of(int64_t by) {
  onepass_divider divider = {1, 0};
  if (by < 1 || by > INT32_MAX) return divider; /* not used then */
  while ((INT64_C(1) << divider.shift) < by) divider.shift++;
  const uint64_t above = (UINT64_C(1) << divider.shift) - (uint64_t)by;
  divider.multiplier = (uint32_t)((above << 32) / (uint64_t)by + 1);
  return divider;
}

#ifdef __cplusplus
__device__ inline unsigned divide(unsigned n, const onepass_divider &d) {
  return (__umulhi(n, d.multiplier) + n) >> d.shift;
}
#endif

#endif
