/*
 * Vectors of the level this file is compiled for (ONEPASS_LEVEL: sse2, avx2, avx512, neon,
 * neon_bf16, generic).
 *
 * Arithmetic, comparisons and shifts are the compiler's own on vector types; only what those cannot
 * say is written per level here: fused multiply-add, half-precision conversion and streaming
 * stores. The suffix is the element type in memory; arithmetic is always on f32 or f64 vectors of
 * ONEPASS_VECTOR_BYTES, and loads and stores convert. Nothing needs alignment but the streams.
 */
#ifndef ONEPASS_CPU_SIMD_H
#define ONEPASS_CPU_SIMD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/dtype.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#define ONEPASS_VECTOR_BYTES 64
#elif defined(__AVX2__)
#include <immintrin.h>
#define ONEPASS_VECTOR_BYTES 32
#elif defined(__SSE2__)
#include <emmintrin.h>
#define ONEPASS_VECTOR_BYTES 16
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#define ONEPASS_VECTOR_BYTES 16
#else
#define ONEPASS_VECTOR_BYTES 16
#endif

#define NEVER_INLINE static __attribute__((noinline, unused))
#if defined(ONEPASS_COMPACT)
/* The same loops, but once: a copy for every case, checked by sanitizers, takes minutes to compile. */
#define ALWAYS_INLINE static inline __attribute__((unused))
#define UNROLL
#define UNROLL_4
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define UNROLL        _Pragma("GCC unroll 32")
#define UNROLL_4      _Pragma("GCC unroll 4")
#endif

typedef float f32v __attribute__((vector_size(ONEPASS_VECTOR_BYTES)));
typedef double f64v __attribute__((vector_size(ONEPASS_VECTOR_BYTES)));
typedef int32_t i32v __attribute__((vector_size(ONEPASS_VECTOR_BYTES)));
typedef int64_t i64v __attribute__((vector_size(ONEPASS_VECTOR_BYTES)));
typedef uint32_t u32v __attribute__((vector_size(ONEPASS_VECTOR_BYTES)));
typedef uint16_t u16v __attribute__((vector_size(ONEPASS_VECTOR_BYTES / 2))); /* as many as f32v */

typedef f32v f32v_any __attribute__((aligned(4), may_alias));
typedef f64v f64v_any __attribute__((aligned(8), may_alias));
typedef u16v u16v_any __attribute__((aligned(2), may_alias));

enum {
  LANES_F32 = ONEPASS_VECTOR_BYTES / 4,
  LANES_F64 = ONEPASS_VECTOR_BYTES / 8,
};

/* ---- Every lane the same; lanes from..to of a vector, the others zero ------------------------- */

ALWAYS_INLINE f32v all_f32(float value) { return value - (f32v){0}; }
ALWAYS_INLINE f64v all_f64(double value) { return value - (f64v){0}; }

static const int32_t lane_numbers_f32[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const int64_t lane_numbers_f64[8] = {0, 1, 2, 3, 4, 5, 6, 7};

ALWAYS_INLINE i32v lanes_between_f32(int64_t from, int64_t to) { /* all bits of those are set */
  i32v lanes;
  memcpy(&lanes, lane_numbers_f32, sizeof lanes);
  return (lanes >= (int32_t)from) & (lanes < (int32_t)to);
}
ALWAYS_INLINE i64v lanes_between_f64(int64_t from, int64_t to) {
  i64v lanes;
  memcpy(&lanes, lane_numbers_f64, sizeof lanes);
  return (lanes >= from) & (lanes < to);
}
ALWAYS_INLINE f32v only_f32(f32v v, int64_t from, int64_t to) {
  return (f32v)((i32v)v & lanes_between_f32(from, to));
}
ALWAYS_INLINE f64v only_f64(f64v v, int64_t from, int64_t to) {
  return (f64v)((i64v)v & lanes_between_f64(from, to));
}

/* ---- Lanes n.. of a and then of b: what is n elements further on, n at most a vector --------- */

#if defined(__clang__)
#define PICK_(a, b, mask_type, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK_(a, b, mask_type, ...) __builtin_shuffle(a, b, (mask_type){__VA_ARGS__})
#endif

#if ONEPASS_VECTOR_BYTES == 64
#define FROM_8(n)  n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
#define FROM_16(n) FROM_8(n), FROM_8(n + 8)
ALWAYS_INLINE f32v on1_f32(f32v a, f32v b) { return PICK_(a, b, i32v, FROM_16(1)); }
ALWAYS_INLINE f32v on2_f32(f32v a, f32v b) { return PICK_(a, b, i32v, FROM_16(2)); }
ALWAYS_INLINE f32v on4_f32(f32v a, f32v b) { return PICK_(a, b, i32v, FROM_16(4)); }
ALWAYS_INLINE f64v on1_f64(f64v a, f64v b) { return PICK_(a, b, i64v, FROM_8(1)); }
ALWAYS_INLINE f64v on2_f64(f64v a, f64v b) { return PICK_(a, b, i64v, FROM_8(2)); }
ALWAYS_INLINE f64v on4_f64(f64v a, f64v b) { return PICK_(a, b, i64v, FROM_8(4)); }
#elif ONEPASS_VECTOR_BYTES == 32
ALWAYS_INLINE f32v on1_f32(f32v a, f32v b) { return PICK_(a, b, i32v, 1, 2, 3, 4, 5, 6, 7, 8); }
ALWAYS_INLINE f32v on2_f32(f32v a, f32v b) { return PICK_(a, b, i32v, 2, 3, 4, 5, 6, 7, 8, 9); }
ALWAYS_INLINE f32v on4_f32(f32v a, f32v b) { return PICK_(a, b, i32v, 4, 5, 6, 7, 8, 9, 10, 11); }
ALWAYS_INLINE f64v on1_f64(f64v a, f64v b) { return PICK_(a, b, i64v, 1, 2, 3, 4); }
ALWAYS_INLINE f64v on2_f64(f64v a, f64v b) { return PICK_(a, b, i64v, 2, 3, 4, 5); }
ALWAYS_INLINE f64v on4_f64(f64v a, f64v b) {
  (void)a;
  return b;
}
#else
ALWAYS_INLINE f32v on1_f32(f32v a, f32v b) { return PICK_(a, b, i32v, 1, 2, 3, 4); }
ALWAYS_INLINE f32v on2_f32(f32v a, f32v b) { return PICK_(a, b, i32v, 2, 3, 4, 5); }
ALWAYS_INLINE f32v on4_f32(f32v a, f32v b) {
  (void)a;
  return b;
}
ALWAYS_INLINE f64v on1_f64(f64v a, f64v b) { return PICK_(a, b, i64v, 1, 2); }
ALWAYS_INLINE f64v on2_f64(f64v a, f64v b) {
  (void)a;
  return b;
}
ALWAYS_INLINE f64v on4_f64(f64v a, f64v b) {
  return a + b;
} /* too far for two lanes; never called */
#endif

/* ---- |v|, and s >= 0 with v's sign, or 0 where v is 0 ---------------------------------------- */

#if defined(__ARM_NEON) && \
    defined(__aarch64__) /* one operation where the compiler finds two or more */
ALWAYS_INLINE f32v abs_f32(f32v v) { return (f32v)vabsq_f32((float32x4_t)v); }
ALWAYS_INLINE f64v abs_f64(f64v v) { return (f64v)vabsq_f64((float64x2_t)v); }
ALWAYS_INLINE f32v signed_f32(f32v s, f32v v) {
  const uint32x4_t chosen =
      vbslq_u32(vdupq_n_u32(0x80000000), (uint32x4_t)v, (uint32x4_t)s); /* s is not negative */
  return (f32v)vbicq_u32(chosen, vceqzq_f32((float32x4_t)v));
}
ALWAYS_INLINE f64v signed_f64(f64v s, f64v v) {
  const uint64x2_t chosen = vbslq_u64(vdupq_n_u64(1ull << 63), (uint64x2_t)v, (uint64x2_t)s);
  return (f64v)vbicq_u64(chosen, vceqzq_f64((float64x2_t)v));
}
#else
ALWAYS_INLINE f32v abs_f32(f32v v) { return (f32v)((i32v)v & 0x7fffffff); }
ALWAYS_INLINE f64v abs_f64(f64v v) { return (f64v)((i64v)v & INT64_MAX); }
ALWAYS_INLINE f32v signed_f32(f32v s, f32v v) {
  return (f32v)(((i32v)s | ((i32v)v & INT32_MIN)) & (v != (f32v){0}));
}
ALWAYS_INLINE f64v signed_f64(f64v s, f64v v) {
  return (f64v)(((i64v)s | ((i64v)v & INT64_MIN)) & (v != (f64v){0}));
}
#endif

/* ---- The larger one, NaN if either is; a where the mask is set, b elsewhere ------------------ */

#if defined(__ARM_NEON) && defined(__aarch64__)
ALWAYS_INLINE f32v max_f32(f32v a, f32v b) {
  return (f32v)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
}
ALWAYS_INLINE f64v max_f64(f64v a, f64v b) {
  return (f64v)vmaxq_f64((float64x2_t)a, (float64x2_t)b);
}
ALWAYS_INLINE i32v pick_f32(i32v mask, i32v a, i32v b) {
  return (i32v)vbslq_s32((uint32x4_t)mask, (int32x4_t)a, (int32x4_t)b);
}
ALWAYS_INLINE i64v pick_f64(i64v mask, i64v a, i64v b) {
  return (i64v)vbslq_s64((uint64x2_t)mask, (int64x2_t)a, (int64x2_t)b);
}
#else
ALWAYS_INLINE i32v pick_f32(i32v mask, i32v a, i32v b) { return (a & mask) | (b & ~mask); }
ALWAYS_INLINE i64v pick_f64(i64v mask, i64v a, i64v b) { return (a & mask) | (b & ~mask); }
ALWAYS_INLINE f32v max_f32(f32v a, f32v b) {
  return (f32v)pick_f32((i32v)(a > b) | (i32v)(a != a), (i32v)a, (i32v)b);
}
ALWAYS_INLINE f64v max_f64(f64v a, f64v b) {
  return (f64v)pick_f64((i64v)(a > b) | (i64v)(a != a), (i64v)a, (i64v)b);
}
#endif

/* ---- Integers as wide as the elements -------------------------------------------------------- */

typedef i32v i32v_any __attribute__((aligned(4), may_alias));
typedef i64v i64v_any __attribute__((aligned(8), may_alias));

ALWAYS_INLINE i32v all_ints_f32(int32_t value) { return value - (i32v){0}; }
ALWAYS_INLINE i64v all_ints_f64(int64_t value) { return value - (i64v){0}; }
ALWAYS_INLINE i32v load_ints_f32(const int32_t *p) { return *(const i32v_any *)p; }
ALWAYS_INLINE i64v load_ints_f64(const int64_t *p) { return *(const i64v_any *)p; }
ALWAYS_INLINE void store_ints_f32(int32_t *p, i32v v) { *(i32v_any *)p = v; }
ALWAYS_INLINE void store_ints_f64(int64_t *p, i64v v) { *(i64v_any *)p = v; }

/* ---- The sum of all lanes, halves upon halves or neighbours first ------------------------------
 */

ALWAYS_INLINE float fold_f32(f32v v) {
#if defined(__ARM_NEON) && defined(__aarch64__)
  return vaddvq_f32((float32x4_t)v);
#else
  float lane[LANES_F32];
  memcpy(lane, &v, sizeof lane);
  UNROLL for (int half = LANES_F32 / 2; half > 0; half /= 2) {
    UNROLL for (int j = 0; j < half; j++) lane[j] += lane[j + half];
  }
  return lane[0];
#endif
}

ALWAYS_INLINE double fold_f64(f64v v) {
#if defined(__ARM_NEON) && defined(__aarch64__)
  return vaddvq_f64((float64x2_t)v);
#else
  double lane[LANES_F64];
  memcpy(lane, &v, sizeof lane);
  UNROLL for (int half = LANES_F64 / 2; half > 0; half /= 2) {
    UNROLL for (int j = 0; j < half; j++) lane[j] += lane[j + half];
  }
  return lane[0];
#endif
}

/* ---- a * b + c, fused where the level has it ------------------------------------------------- */

#if defined(__AVX512F__)
ALWAYS_INLINE f32v fma_f32(f32v a, f32v b, f32v c) {
  return (f32v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
ALWAYS_INLINE f64v fma_f64(f64v a, f64v b, f64v c) {
  return (f64v)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__AVX2__)
ALWAYS_INLINE f32v fma_f32(f32v a, f32v b, f32v c) {
  return (f32v)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
ALWAYS_INLINE f64v fma_f64(f64v a, f64v b, f64v c) {
  return (f64v)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#elif defined(__ARM_NEON)
ALWAYS_INLINE f32v fma_f32(f32v a, f32v b, f32v c) {
  return (f32v)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
ALWAYS_INLINE f64v fma_f64(f64v a, f64v b, f64v c) {
  return (f64v)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
#else
ALWAYS_INLINE f32v fma_f32(f32v a, f32v b, f32v c) { return a * b + c; }
ALWAYS_INLINE f64v fma_f64(f64v a, f64v b, f64v c) { return a * b + c; }
#endif

/* ---- Loads ----------------------------------------------------------------------------------- */

ALWAYS_INLINE f32v load_f32(const float *p) { return *(const f32v_any *)p; }
ALWAYS_INLINE f64v load_f64(const double *p) { return *(const f64v_any *)p; }

/* Compilers turn generic conversions between 16 and 32 bits into one move a lane, so these are
 * spelled. */
ALWAYS_INLINE u32v widen(u16v v) {
#if defined(__AVX512F__)
  return (u32v)_mm512_cvtepu16_epi32((__m256i)v);
#elif defined(__AVX2__)
  return (u32v)_mm256_cvtepu16_epi32((__m128i)v);
#elif defined(__SSE2__)
  const __m128i low = _mm_cvtsi64_si128((long long)v);
  return (u32v)_mm_unpacklo_epi16(low, _mm_setzero_si128());
#elif defined(__ARM_NEON)
  return (u32v)vmovl_u16((uint16x4_t)v);
#else
  return __builtin_convertvector(v, u32v);
#endif
}

ALWAYS_INLINE u16v narrow(u32v v) { /* every lane is below 2^16 */
#if defined(__AVX512F__)
  return (u16v)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)v, (__m256i)v);
  return (u16v)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 8));
#elif defined(__SSE2__)
  /* Packing saturates signed numbers: move the range to -2^15..2^15 and back. */
  const __m128i low = _mm_srai_epi32(_mm_slli_epi32((__m128i)v, 16), 16);
  return (u16v)_mm_cvtsi128_si64(_mm_packs_epi32(low, low));
#elif defined(__ARM_NEON)
  return (u16v)vmovn_u32((uint32x4_t)v);
#else
  return __builtin_convertvector(v, u16v);
#endif
}

ALWAYS_INLINE f32v widen_bf16(u16v v) { return (f32v)(widen(v) << 16); }

#if defined(__AVX512F__)
ALWAYS_INLINE f32v widen_f16(u16v v) { return (f32v)_mm512_cvtph_ps((__m256i)v); }
#elif defined(__AVX2__)
ALWAYS_INLINE f32v widen_f16(u16v v) { return (f32v)_mm256_cvtph_ps((__m128i)v); }
#elif defined(__ARM_NEON)
ALWAYS_INLINE f32v widen_f16(u16v v) { return (f32v)vcvt_f32_f16((float16x4_t)v); }
#else
/* Lane by lane in integers: far too long to stand in every loop. */
NEVER_INLINE f32v widen_f16(u16v half) {
  f32v v;
  for (int lane = 0; lane < LANES_F32; lane++) v[lane] = onepass_float_from_f16(half[lane]);
  return v;
}
NEVER_INLINE u16v narrow_f16(f32v v) {
  u16v half;
  for (int lane = 0; lane < LANES_F32; lane++) half[lane] = onepass_f16_from_float(v[lane]);
  return half;
}
#endif

ALWAYS_INLINE f32v load_bf16(const uint16_t *p) { return widen_bf16(*(const u16v_any *)p); }
ALWAYS_INLINE f32v load_f16(const uint16_t *p) { return widen_f16(*(const u16v_any *)p); }

/* ---- Rounding to the half types -------------------------------------------------------------- */

ALWAYS_INLINE u16v round_bf16(f32v v) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return (u16v)vreinterpret_u16_bf16(vcvt_bf16_f32((float32x4_t)v));
#else
  const u32v bits = (u32v)v, high = bits >> 16;
  const u32v nearest = (bits + 0x7fff + (high & 1)) >> 16;
  const u32v is_nan = (u32v)(v != v);
  return narrow((nearest & ~is_nan) | ((high | 0x40) & is_nan));
#endif
}

ALWAYS_INLINE u16v round_f16(f32v v) {
#if defined(__AVX512F__)
  return (u16v)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
  return (u16v)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__ARM_NEON)
  return (u16v)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v));
#else
  return narrow_f16(v);
#endif
}

/* ---- Stores; a streaming one leaves the caches alone ----------------------------------------- */

/* Neoverse cores stop allocating on their own once they see whole lines written, so on AArch64 a
 * stream is a plain store: STNP measured the same (docs/performance.md). */
#if defined(__SSE2__)
#define ONEPASS_HAS_STREAMS 1
#else
#define ONEPASS_HAS_STREAMS 0
#endif

ALWAYS_INLINE void stream_bytes(void *p, const void *v, int bytes) {
#if defined(__AVX512F__)
  if (bytes == 64) {
    _mm512_stream_si512((__m512i *)p, _mm512_loadu_si512(v));
    return;
  }
#endif
#if defined(__AVX2__)
  if (bytes == 32) {
    _mm256_stream_si256((__m256i *)p, _mm256_loadu_si256((const __m256i *)v));
    return;
  }
#endif
#if defined(__SSE2__)
  if (bytes == 16) {
    _mm_stream_si128((__m128i *)p, _mm_loadu_si128((const __m128i *)v));
    return;
  }
#endif
  memcpy(p, v, (size_t)bytes);
}

ALWAYS_INLINE void store_f32(float *p, f32v v, bool stream) {
  if (stream) {
    stream_bytes(p, &v, sizeof v);
  } else {
    *(f32v_any *)p = v;
  }
}
ALWAYS_INLINE void store_f64(double *p, f64v v, bool stream) {
  if (stream) {
    stream_bytes(p, &v, sizeof v);
  } else {
    *(f64v_any *)p = v;
  }
}
ALWAYS_INLINE void store_bf16(uint16_t *p, f32v v, bool stream) {
  const u16v half = round_bf16(v);
  if (stream) {
    stream_bytes(p, &half, sizeof half);
  } else {
    *(u16v_any *)p = half;
  }
}
ALWAYS_INLINE void store_f16(uint16_t *p, f32v v, bool stream) {
  const u16v half = round_f16(v);
  if (stream) {
    stream_bytes(p, &half, sizeof half);
  } else {
    *(u16v_any *)p = half;
  }
}

/* ---- Parts of vectors: the first n elements at p, fewer than a vector, and then zeros; lanes from..to, to p[from..to].
 * In registers, as loading what was just stored in parts, or parts of what was just stored, may have to wait until
 * that has left for memory. Lane by lane, where there are no masks, they are too long to stand in every loop. ----- */

#define DEFINE_LOAD_PART(name, vector, lanes, type)       \
  NEVER_INLINE vector name(const type *p, int64_t n) {    \
    vector v = {0};                                       \
    UNROLL for (int lane = 0; lane + 1 < lanes; lane++) { \
      if (lane < n) v[lane] = p[lane];                    \
    }                                                     \
    return v;                                             \
  }
#define DEFINE_STORE_LANES(name, vector, lanes, type)                   \
  NEVER_INLINE void name(type *p, vector v, int64_t from, int64_t to) { \
    UNROLL for (int lane = 0; lane < lanes; lane++) {                   \
      if (lane >= from && lane < to) p[lane] = v[lane];                 \
    }                                                                   \
  }

#if defined(__AVX512F__)
ALWAYS_INLINE uint32_t lanes_between(int64_t from, int64_t to) { return (1u << to) - (1u << from); }

ALWAYS_INLINE f32v load_part_f32(const float *p, int64_t n) {
  return (f32v)_mm512_maskz_loadu_ps((__mmask16)lanes_between(0, n), p);
}
ALWAYS_INLINE f64v load_part_f64(const double *p, int64_t n) {
  return (f64v)_mm512_maskz_loadu_pd((__mmask8)lanes_between(0, n), p);
}
ALWAYS_INLINE u16v load_part_u16(const uint16_t *p, int64_t n) {
  return (u16v)_mm256_maskz_loadu_epi16((__mmask16)lanes_between(0, n), p);
}
ALWAYS_INLINE void store_lanes_f32(float *p, f32v v, int64_t from, int64_t to) {
  _mm512_mask_storeu_ps(p, (__mmask16)lanes_between(from, to), (__m512)v);
}
ALWAYS_INLINE void store_lanes_f64(double *p, f64v v, int64_t from, int64_t to) {
  _mm512_mask_storeu_pd(p, (__mmask8)lanes_between(from, to), (__m512d)v);
}
ALWAYS_INLINE void store_lanes_u16(uint16_t *p, u16v v, int64_t from, int64_t to) {
  _mm256_mask_storeu_epi16(p, (__mmask16)lanes_between(from, to), (__m256i)v);
}
#elif defined(__AVX2__)
ALWAYS_INLINE f32v load_part_f32(const float *p, int64_t n) {
  return (f32v)_mm256_maskload_ps(p, (__m256i)lanes_between_f32(0, n));
}
ALWAYS_INLINE f64v load_part_f64(const double *p, int64_t n) {
  return (f64v)_mm256_maskload_pd(p, (__m256i)lanes_between_f64(0, n));
}
ALWAYS_INLINE void store_lanes_f32(float *p, f32v v, int64_t from, int64_t to) {
  _mm256_maskstore_ps(p, (__m256i)lanes_between_f32(from, to), (__m256)v);
}
ALWAYS_INLINE void store_lanes_f64(double *p, f64v v, int64_t from, int64_t to) {
  _mm256_maskstore_pd(p, (__m256i)lanes_between_f64(from, to), (__m256d)v);
}
DEFINE_LOAD_PART(load_part_u16, u16v, LANES_F32, uint16_t)
DEFINE_STORE_LANES(store_lanes_u16, u16v, LANES_F32, uint16_t)
#else
DEFINE_LOAD_PART(load_part_f32, f32v, LANES_F32, float)
DEFINE_LOAD_PART(load_part_f64, f64v, LANES_F64, double)
DEFINE_LOAD_PART(load_part_u16, u16v, LANES_F32, uint16_t)
DEFINE_STORE_LANES(store_lanes_f32, f32v, LANES_F32, float)
DEFINE_STORE_LANES(store_lanes_f64, f64v, LANES_F64, double)
DEFINE_STORE_LANES(store_lanes_u16, u16v, LANES_F32, uint16_t)
#endif
#undef DEFINE_LOAD_PART
#undef DEFINE_STORE_LANES

ALWAYS_INLINE f32v load_part_bf16(const uint16_t *p, int64_t n) {
  return widen_bf16(load_part_u16(p, n));
}
ALWAYS_INLINE f32v load_part_f16(const uint16_t *p, int64_t n) {
  return widen_f16(load_part_u16(p, n));
}
ALWAYS_INLINE void store_lanes_bf16(uint16_t *p, f32v v, int64_t from, int64_t to) {
  store_lanes_u16(p, round_bf16(v), from, to);
}
ALWAYS_INLINE void store_lanes_f16(uint16_t *p, f32v v, int64_t from, int64_t to) {
  store_lanes_u16(p, round_f16(v), from, to);
}

/* ---- Several vectors at once: a pair of half-type vectors is one load or store --------------- */

ALWAYS_INLINE void loads_f32(f32v *v, const float *p, const int count) {
  UNROLL for (int j = 0; j < count; j++) v[j] = load_f32(p + j * LANES_F32);
}
ALWAYS_INLINE void loads_f64(f64v *v, const double *p, const int count) {
  UNROLL for (int j = 0; j < count; j++) v[j] = load_f64(p + j * LANES_F64);
}
ALWAYS_INLINE void stores_f32(float *p, const f32v *v, const int count, bool stream) {
  if (stream) {
    UNROLL for (int j = 0; j < count; j++) store_f32(p + j * LANES_F32, v[j], true);
  } else {
    UNROLL for (int j = 0; j < count; j++) store_f32(p + j * LANES_F32, v[j], false);
  }
}
ALWAYS_INLINE void stores_f64(double *p, const f64v *v, const int count, bool stream) {
  if (stream) {
    UNROLL for (int j = 0; j < count; j++) store_f64(p + j * LANES_F64, v[j], true);
  } else {
    UNROLL for (int j = 0; j < count; j++) store_f64(p + j * LANES_F64, v[j], false);
  }
}

#if defined(__ARM_NEON) && defined(__aarch64__)

ALWAYS_INLINE void loads_bf16(f32v *v, const uint16_t *p, const int count) {
  UNROLL for (int j = 0; j + 1 < count; j += 2) {
    const uint16x8_t halves = vld1q_u16(p + j * LANES_F32);
    v[j] = (f32v)vzip1q_u16(vdupq_n_u16(0), halves);
    v[j + 1] = (f32v)vzip2q_u16(vdupq_n_u16(0), halves);
  }
  if (count % 2) v[count - 1] = load_bf16(p + (count - 1) * LANES_F32);
}

ALWAYS_INLINE void loads_f16(f32v *v, const uint16_t *p, const int count) {
  UNROLL for (int j = 0; j + 1 < count; j += 2) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p + j * LANES_F32));
    v[j] = (f32v)vcvt_f32_f16(vget_low_f16(halves));
    v[j + 1] = (f32v)vcvt_high_f32_f16(halves);
  }
  if (count % 2) v[count - 1] = load_f16(p + (count - 1) * LANES_F32);
}

ALWAYS_INLINE void stores_bf16(uint16_t *p, const f32v *v, const int count, bool stream) {
  UNROLL for (int j = 0; j + 1 < count; j += 2) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    const bfloat16x8_t low = vcvtq_low_bf16_f32((float32x4_t)v[j]);
    vst1q_u16(p + j * LANES_F32,
              vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(low, (float32x4_t)v[j + 1])));
#else
    vst1q_u16(p + j * LANES_F32,
              vcombine_u16((uint16x4_t)round_bf16(v[j]), (uint16x4_t)round_bf16(v[j + 1])));
#endif
  }
  if (count % 2) store_bf16(p + (count - 1) * LANES_F32, v[count - 1], stream);
}

ALWAYS_INLINE void stores_f16(uint16_t *p, const f32v *v, const int count, bool stream) {
  UNROLL for (int j = 0; j + 1 < count; j += 2) {
    const float16x4_t low = vcvt_f16_f32((float32x4_t)v[j]);
    vst1q_u16(p + j * LANES_F32,
              vreinterpretq_u16_f16(vcvt_high_f16_f32(low, (float32x4_t)v[j + 1])));
  }
  if (count % 2) store_f16(p + (count - 1) * LANES_F32, v[count - 1], stream);
}

#else

ALWAYS_INLINE void stores_u16(uint16_t *p, const u16v *v, const int count, bool stream) {
  if (stream) {
    UNROLL for (int j = 0; j < count; j++) stream_bytes(p + j * LANES_F32, &v[j], sizeof v[j]);
  } else {
    UNROLL for (int j = 0; j < count; j++) * (u16v_any *)(p + j * LANES_F32) = v[j];
  }
}

ALWAYS_INLINE void loads_bf16(f32v *v, const uint16_t *p, const int count) {
  UNROLL for (int j = 0; j < count; j++) v[j] = load_bf16(p + j * LANES_F32);
}
ALWAYS_INLINE void loads_f16(f32v *v, const uint16_t *p, const int count) {
  UNROLL for (int j = 0; j < count; j++) v[j] = load_f16(p + j * LANES_F32);
}
ALWAYS_INLINE void stores_bf16(uint16_t *p, const f32v *v, const int count, bool stream) {
  u16v half[8];
  UNROLL for (int j = 0; j < count; j++) half[j] = round_bf16(v[j]);
  stores_u16(p, half, count, stream);
}
ALWAYS_INLINE void stores_f16(uint16_t *p, const f32v *v, const int count, bool stream) {
  u16v half[8];
  UNROLL for (int j = 0; j < count; j++) half[j] = round_f16(v[j]);
  stores_u16(p, half, count, stream);
}

#endif

/* ---- Sums of halves without widening them first ---------------------------------------------- */

/* Where the CPU has it for a type: to each lane of `sum`, the products of two neighbouring halves.
 * It rounds to odd, which is good enough to add, and takes subnormal numbers for zeros. */
#define HAS_DOTS_f32 0
#define HAS_DOTS_f64 0
#define HAS_DOTS_f16 0
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HAS_DOTS_bf16 1
ALWAYS_INLINE f32v dot_halves(f32v sum, uint16x8_t a, uint16x8_t b) {
  return (f32v)vbfdotq_f32((float32x4_t)sum, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u16(b));
}
ALWAYS_INLINE void add_dots_bf16(f32v *sum, f32v *squares, const uint16_t *p, bool absolute) {
  const uint16x8_t halves = vld1q_u16(p);
  uint16x8_t one = vdupq_n_u16(0x3f80);
  __asm__("" : "+w"(one)); /* GCC 12 takes a bf16 constant for an f16 one */
  const uint16x8_t added = absolute ? vbicq_u16(halves, vdupq_n_u16(0x8000)) : halves;
  *sum = dot_halves(*sum, added, one);
  *squares = dot_halves(*squares, halves, halves);
}
#else
#define HAS_DOTS_bf16 0
#endif

#endif
