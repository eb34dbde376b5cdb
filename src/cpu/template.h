/* What the kernel templates are made with: names joined from type names, and what those stand for.
 */
#ifndef ONEPASS_CPU_TEMPLATE_H
#define ONEPASS_CPU_TEMPLATE_H

#include "cpu/simd.h"

#define JOIN2_(a, b) a##b
#define JOIN2(a, b)  JOIN2_(a, b)

typedef float element_f32, scalar_f32;
typedef double element_f64, scalar_f64;
typedef uint16_t element_f16, element_bf16;
typedef f32v vector_f32;
typedef f64v vector_f64;
typedef int32_t integer_f32;
typedef int64_t integer_f64;
typedef i32v integers_f32;
typedef i64v integers_f64;
enum { lanes_f32 = LANES_F32, lanes_f64 = LANES_F64 };
#define TYPE_f32 ONEPASS_TYPE_F32
#define TYPE_f64 ONEPASS_TYPE_F64

/* Whether a loop is there once and asks what to do every few vectors, rather than once for each answer: for the baseline
 * of x86-64, which few CPUs are left to. */
#if defined(__SSE2__) && !defined(__AVX2__)
enum { ONE_COPY = 1 };
#else
enum { ONE_COPY = 0 };
#endif

/* Single elements, as sums have them. */
ALWAYS_INLINE float get_f32(const float *p) { return *p; }
ALWAYS_INLINE double get_f64(const double *p) { return *p; }
#if defined(__F16C__)
ALWAYS_INLINE float get_f16(const uint16_t *p) { return _cvtsh_ss(*p); }
ALWAYS_INLINE void put_f16(uint16_t *p, float value) {
  *p = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}
#else
ALWAYS_INLINE float get_f16(const uint16_t *p) { return onepass_float_from_f16(*p); }
ALWAYS_INLINE void put_f16(uint16_t *p, float value) { *p = onepass_f16_from_float(value); }
#endif
ALWAYS_INLINE float get_bf16(const uint16_t *p) { return onepass_float_from_bf16(*p); }

ALWAYS_INLINE void put_f32(float *p, float value) { *p = value; }
ALWAYS_INLINE void put_f64(double *p, double value) { *p = value; }
ALWAYS_INLINE void put_bf16(uint16_t *p, float value) { *p = onepass_bf16_from_float(value); }

/* Ask for the lines that a loop will reach a little later, and on AArch64, whose hardware looks less
 * far ahead, into the second-level cache for those it will reach much later (docs/experiments.md).
 * Past the end it does no harm, but addresses that no page backs are slow to find out about, so
 * never ask for arbitrary ones. */
ALWAYS_INLINE void prefetch_ahead(const void *p, int bytes) {
  enum { SOON = 1024, LATER = 8192 };
  const uintptr_t at = (uintptr_t)p;
  for (int line = 0; line < bytes; line += 64) {
    __builtin_prefetch((const void *)(at + SOON + (uintptr_t)line), 0, 3);
#if defined(__aarch64__)
    __builtin_prefetch((const void *)(at + LATER + (uintptr_t)line), 0, 2);
#endif
  }
}

/* Ask for what another loop will want soon, into the second-level cache. */
ALWAYS_INLINE void prefetch_soon(const void *p, int bytes) {
  for (int line = 0; line < bytes; line += 64) __builtin_prefetch((const char *)p + line, 0, 2);
}

#endif
