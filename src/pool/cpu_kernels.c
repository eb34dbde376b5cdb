/* The pooling kernels of one vector level, made from the template for every type. A level that is for bf16
 * (ONEPASS_ONLY_BF16) has those alone, whose sums take some functions of f32; and AVX-512, which does nothing for f64 and
 * f16 (docs/experiments.md), those of f32 and bf16. */
#include "pool/cpu.h"

#include <math.h>

#include "cpu/simd_across.h"
#include "cpu/template.h"

enum {
  CACHE_LINE = 64,
  SPLIT_EVENLY = 4,  /* strides up to here have loops of their own */
  MOST_APART = 128,  /* windows of up to so many elements are summed each by itself, in lanes, */
  MOST_OVERLAP = 16, /* if at most so many of them hold an element; */
  REDUCED_ONE_BY_ONE = 16, /* from this stride on all are; others at every place */
  MOST_HOLDING = 8,    /* backward, gradients come in runs if at most so many windows hold one */
  LEAST_IN_TWOS = 16,  /* shorter rows of maxima are scattered */
  ADDED_ONE_BY_ONE = 8 /* up to so many fours a window adds them up; beyond, it doubles them */
};

#include "pool/cpu_pieces.h"

#ifdef ONEPASS_ONLY_BF16
#pragma GCC diagnostic ignored "-Wunused-function" /* f32's own kernels */
#endif

#define ELEMENT f32
#define SUMS    f32
#include "pool/cpu_one_type.h"
#undef ELEMENT
#undef SUMS

#if !defined(ONEPASS_ONLY_BF16) && !defined(__AVX512F__)
#define ELEMENT f64
#define SUMS    f64
#include "pool/cpu_one_type.h"
#undef ELEMENT
#undef SUMS

#define ELEMENT f16
#define SUMS    f32
#include "pool/cpu_one_type.h"
#undef ELEMENT
#undef SUMS
#endif

#define ELEMENT bf16
#define SUMS    f32
#include "pool/cpu_one_type.h"
#undef ELEMENT
#undef SUMS

#define KERNELS(type)                                                               \
  {                                                                                 \
    forward_##type, backward_##type, planes_forward_##type, planes_backward_##type, \
        maxima_backward_##type, channels_forward_##type, channels_backward_##type   \
  }

const onepass_pool_kernels *JOIN2(onepass_pool_kernels_, ONEPASS_LEVEL)(onepass_type type) {
  static const onepass_pool_kernels of_type[ONEPASS_TYPE_COUNT] = {
#ifndef ONEPASS_ONLY_BF16
      [ONEPASS_TYPE_F32] = KERNELS(f32),
#ifndef __AVX512F__
      [ONEPASS_TYPE_F64] = KERNELS(f64),
      [ONEPASS_TYPE_F16] = KERNELS(f16),
#endif
#endif
      [ONEPASS_TYPE_BF16] = KERNELS(bf16),
  };
  return of_type[type].forward ? &of_type[type] : NULL;
}
