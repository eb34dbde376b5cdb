/* Sums across lanes: of as many vectors as a vector has lanes, all at once. Lane j of the result is the sum of vector j's
 * lanes, which are added in one order for every j: neighbours, pairs of them, and so on. */
#ifndef ONEPASS_CPU_SIMD_ACROSS_H
#define ONEPASS_CPU_SIMD_ACROSS_H

#include "cpu/simd.h"

/* Each 16 bytes of the result have sums of neighbours: of a's 16 bytes there, then of b's. */
ALWAYS_INLINE f32v add_neighbours_f32(f32v a, f32v b) {
#if ONEPASS_VECTOR_BYTES == 64
#define EVEN(n) n, n + 2, n + 16, n + 18
  return PICK_(a, b, i32v, EVEN(0), EVEN(4), EVEN(8), EVEN(12)) +
         PICK_(a, b, i32v, EVEN(1), EVEN(5), EVEN(9), EVEN(13));
#elif ONEPASS_VECTOR_BYTES == 32
#define EVEN(n) n, n + 2, n + 8, n + 10
  return PICK_(a, b, i32v, EVEN(0), EVEN(4)) + PICK_(a, b, i32v, EVEN(1), EVEN(5));
#else
#define EVEN(n) n, n + 2, n + 4, n + 6
  return PICK_(a, b, i32v, EVEN(0)) + PICK_(a, b, i32v, EVEN(1));
#endif
#undef EVEN
}

ALWAYS_INLINE f64v add_neighbours_f64(f64v a, f64v b) {
#if ONEPASS_VECTOR_BYTES == 64
  return PICK_(a, b, i64v, 0, 8, 2, 10, 4, 12, 6, 14) +
         PICK_(a, b, i64v, 1, 9, 3, 11, 5, 13, 7, 15);
#elif ONEPASS_VECTOR_BYTES == 32
  return PICK_(a, b, i64v, 0, 4, 2, 6) + PICK_(a, b, i64v, 1, 5, 3, 7);
#else
  return PICK_(a, b, i64v, 0, 2) + PICK_(a, b, i64v, 1, 3);
#endif
}

/* The same with 16 bytes in place of a number: sums of neighbouring ones, a's and then b's. */
#if ONEPASS_VECTOR_BYTES > 16
ALWAYS_INLINE f64v add_quarters_f64(f64v a, f64v b) {
#if ONEPASS_VECTOR_BYTES == 64
  return PICK_(a, b, i64v, 0, 1, 4, 5, 8, 9, 12, 13) +
         PICK_(a, b, i64v, 2, 3, 6, 7, 10, 11, 14, 15);
#else
  return PICK_(a, b, i64v, 0, 1, 4, 5) + PICK_(a, b, i64v, 2, 3, 6, 7);
#endif
}

ALWAYS_INLINE f32v add_quarters_f32(f32v a, f32v b) {
#if ONEPASS_VECTOR_BYTES == 64
#define FOUR(n) n, n + 1, n + 2, n + 3
  return PICK_(a, b, i32v, FOUR(0), FOUR(8), FOUR(16), FOUR(24)) +
         PICK_(a, b, i32v, FOUR(4), FOUR(12), FOUR(20), FOUR(28));
#undef FOUR
#else
  return PICK_(a, b, i32v, 0, 1, 2, 3, 8, 9, 10, 11) +
         PICK_(a, b, i32v, 4, 5, 6, 7, 12, 13, 14, 15);
#endif
}
#endif

/* The vectors are used up. */
ALWAYS_INLINE f32v sums_across_f32(f32v *v) {
  UNROLL for (int j = 0; j < LANES_F32 / 2; j++) v[j] = add_neighbours_f32(v[2 * j], v[2 * j + 1]);
  UNROLL for (int j = 0; j < LANES_F32 / 4; j++) v[j] = add_neighbours_f32(v[2 * j], v[2 * j + 1]);
#if ONEPASS_VECTOR_BYTES > 16
  UNROLL for (int j = 0; j < LANES_F32 / 8; j++) v[j] = add_quarters_f32(v[2 * j], v[2 * j + 1]);
#endif
#if ONEPASS_VECTOR_BYTES > 32
  v[0] = add_quarters_f32(v[0], v[1]);
#endif
  return v[0];
}

ALWAYS_INLINE f64v sums_across_f64(f64v *v) {
  UNROLL for (int j = 0; j < LANES_F64 / 2; j++) v[j] = add_neighbours_f64(v[2 * j], v[2 * j + 1]);
#if ONEPASS_VECTOR_BYTES > 16
  UNROLL for (int j = 0; j < LANES_F64 / 4; j++) v[j] = add_quarters_f64(v[2 * j], v[2 * j + 1]);
#endif
#if ONEPASS_VECTOR_BYTES > 32
  v[0] = add_quarters_f64(v[0], v[1]);
#endif
  return v[0];
}

#endif
