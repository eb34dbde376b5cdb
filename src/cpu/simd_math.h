/* Functions on vectors: exp, the logistic function and the normal distribution, within about two units in the
 * last place of f32 where they are not tiny. f64 goes lane by lane through the C library. */
#ifndef ONEPASS_CPU_SIMD_MATH_H
#define ONEPASS_CPU_SIMD_MATH_H

#include <math.h>

#include "cpu/simd.h"

/* Lanes of a where the mask is set, else of b. */
ALWAYS_INLINE f32v choose_f32(i32v mask, f32v a, f32v b) {
  return (f32v)(((i32v)a & mask) | ((i32v)b & ~mask));
}
ALWAYS_INLINE f64v choose_f64(i64v mask, f64v a, f64v b) {
  return (f64v)(((i64v)a & mask) | ((i64v)b & ~mask));
}

/* NaN stays NaN. */
ALWAYS_INLINE f32v clamp_f32(f32v x, float least, float most) {
  x = choose_f32(x < least, all_f32(least), x);
  return choose_f32(x > most, all_f32(most), x);
}
ALWAYS_INLINE f64v clamp_f64(f64v x, double least, double most) {
  x = choose_f64(x < least, all_f64(least), x);
  return choose_f64(x > most, all_f64(most), x);
}

/* x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) by its series; 2^n in two steps, as it may be Inf or 0. */
ALWAYS_INLINE f32v exp_f32(f32v x) {
  const float rounder = 0x1.8p23f; /* adding it leaves n in the last bits */
  x = clamp_f32(x, -110, 110);
  const f32v shifted = fma_f32(x, all_f32(1.44269504f), all_f32(rounder)), n = shifted - rounder;
  f32v r = fma_f32(n, all_f32(-0x1.62e4p-1f), x); /* the upper bits of ln 2 */
  r = fma_f32(n, all_f32(-0x1.7f7d1cp-20f), r);
  const f32v r2 = r * r; /* terms in pairs: a shorter chain */
  const f32v high = fma_f32(r, all_f32(1.f / 5040), all_f32(1.f / 720));
  const f32v middle = fma_f32(r, all_f32(1.f / 120), all_f32(1.f / 24));
  const f32v low = fma_f32(r, all_f32(1.f / 6), all_f32(0.5f));
  const f32v e = fma_f32(fma_f32(fma_f32(high, r2, middle), r2, low), r2, r) + 1;
  const i32v whole = (i32v)shifted - (i32v)all_f32(rounder), half = whole >> 1;
  const f32v first = (f32v)((half + 127) << 23), second = (f32v)((whole - half + 127) << 23);
  return e * first * second;
}
ALWAYS_INLINE f64v exp_f64(f64v x) {
  UNROLL for (int lane = 0; lane < LANES_F64; lane++) x[lane] = exp(x[lane]);
  return x;
}

/* 1 / (1 + exp(-x)) */
ALWAYS_INLINE f32v logistic_f32(f32v x) { return 1 / (1 + exp_f32(-x)); }
ALWAYS_INLINE f64v logistic_f64(f64v x) { return 1 / (1 + exp_f64(-x)); }

/* How much of the normal distribution is beyond |x|, on one side: exp(-x^2 / 2) times a polynomial in
 * 1 / (1 + 0.35 z) with z = |x| / sqrt(2), a fit of erfc(z) exp(z^2) / 2 with a relative error of 1.5e-8. */
ALWAYS_INLINE f32v beyond_f32(f32v x) {
  const f32v t = 1 / fma_f32(abs_f32(x), all_f32(0.35f * 0.70710678f), all_f32(1)), t2 = t * t;
  const f32v t98 = fma_f32(t, all_f32(0.033448408617f), all_f32(-0.20103483271f));
  const f32v t76 = fma_f32(t, all_f32(0.42180402941f), all_f32(-0.37222858124f));
  const f32v t54 = fma_f32(t, all_f32(0.33763149540f), all_f32(-0.038049697954f));
  const f32v t32 = fma_f32(t, all_f32(0.12644251818f), all_f32(0.092653984580f));
  const f32v t10 = fma_f32(t, all_f32(0.099360954942f), all_f32(-2.8286860007e-05f));
  const f32v high = fma_f32(fma_f32(t98, t2, t76), t2, t54);
  const f32v scaled = fma_f32(fma_f32(high, t2, t32), t2, t10);
  /* -x^2 / 2 / ln 2 = n + r; 2^r by its series; 2^n is 0 below the normal numbers. */
  const f32v minus_square = max_f32(x * -x, all_f32(-176.1f));
  const f32v factor = all_f32(0x1.715476p-1f), rounder = all_f32(0x1.8p23f);
  const f32v shifted = fma_f32(minus_square, factor, rounder);
  f32v r = fma_f32(minus_square, factor, rounder - shifted);
  r = fma_f32(minus_square, all_f32(0x1.4ae0cp-27f), r); /* what the factor has beyond f32 */
  const f32v r2 = r * r;
  const f32v r65 = fma_f32(r, all_f32(1.5403530e-4f), all_f32(1.3333558e-3f));
  const f32v r43 = fma_f32(r, all_f32(9.6181291e-3f), all_f32(5.5504109e-2f));
  const f32v r21 = fma_f32(r, all_f32(0.24022651f), all_f32(0.69314718f));
  const f32v e = fma_f32(fma_f32(fma_f32(r65, r2, r43), r2, r21), r, all_f32(1));
  return scaled * e * (f32v)(((i32v)shifted - ((i32v)rounder - 127)) << 23);
}

/* How much of it is below x. */
ALWAYS_INLINE f32v below_f32(f32v x) {
  const f32v beyond = beyond_f32(x);
  return choose_f32(x < 0, beyond, 1 - beyond);
}
ALWAYS_INLINE f64v below_f64(f64v x) {
  UNROLL for (int lane = 0; lane < LANES_F64; lane++) x[lane] =
      0.5 * erfc(-x[lane] * 0.70710678118654752440);
  return x;
}

#endif
