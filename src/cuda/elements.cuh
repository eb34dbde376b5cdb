/* Elements of every type as numbers of the type of sums, and memory accesses of up to 16 bytes. */
#ifndef ONEPASS_CUDA_ELEMENTS_CUH
#define ONEPASS_CUDA_ELEMENTS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "cuda/ptx.cuh"

/* The type sums are made in: float, or double for double. */
template <class T>
struct sums_of {
  typedef float type;
};
template <>
struct sums_of<double> {
  typedef double type;
};

__device__ inline float widen(float v) { return v; }
__device__ inline double widen(double v) { return v; }
__device__ inline float widen(__half v) { return __half2float(v); }
__device__ inline float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T>
struct narrow_to;
template <>
struct narrow_to<float> {
  __device__ static float from(float v) { return v; }
};
template <>
struct narrow_to<double> {
  __device__ static double from(double v) { return v; }
};
template <>
struct narrow_to<__half> {
  __device__ static __half from(float v) { return __float2half_rn(v); }
};
template <>
struct narrow_to<__nv_bfloat16> {
  __device__ static __nv_bfloat16 from(float v) { return __float2bfloat16_rn(v); }
};

/* N neighbouring elements, aligned to their size: one access. */
template <class T, int N>
struct alignas(sizeof(T) * N) pack {
  T v[N];
};

template <class T>
struct vector_of {
  static const int count = 16 / sizeof(T);
  typedef pack<T, count> type;
};

/* Where in its 16 bytes an address is, in elements. */
template <class T>
__device__ inline int phase_of(const T *p) {
  return (int)((uintptr_t)p % 16 / sizeof(T));
}

/* Words of up to 16 bytes. */
template <int BYTES>
struct word_of;
template <>
struct word_of<16> {
  typedef uint4 type;
};
template <>
struct word_of<8> {
  typedef uint2 type;
};
template <>
struct word_of<4> {
  typedef unsigned type;
};
template <>
struct word_of<2> {
  typedef unsigned short type;
};

template <int BYTES>
__device__ inline typename word_of<BYTES>::type load_word(const void *p) {
  typedef typename word_of<BYTES>::type word;
  if constexpr (BYTES == 16) return load_in_place((const word *)p);
  return *(const word *)p;
}

template <class T, int N>
__device__ inline pack<T, N> load_pack(const T *p) {
  union {
    typename word_of<sizeof(T) * N>::type raw;
    pack<T, N> elements;
  } u;
  u.raw = load_word<sizeof(T) * N>(p);
  return u.elements;
}

/* Or zeros. The choice is between words, or else the compiler would make it for every element. */
template <class T, int N>
__device__ inline pack<T, N> load_pack_if(bool there, const T *p) {
  union {
    typename word_of<sizeof(T) * N>::type raw;
    pack<T, N> elements;
  } u;
  u.raw = {};
  if (there) u.raw = load_word<sizeof(T) * N>(p);
  return u.elements;
}

/* Measured: behind plain loads a plain store is the faster one, behind copies to shared memory one that
 * leaves the second-level cache first. */
template <class T, int N>
__device__ inline void store_pack(T *p, const pack<T, N> &value) {
  typedef typename word_of<sizeof(T) * N>::type word;
  *(word *)p = *(const word *)&value;
}
template <class T, int N>
__device__ inline void store_streaming(T *p, const pack<T, N> &value) {
  typedef typename word_of<sizeof(T) * N>::type word;
  __stcs((word *)p, *(const word *)&value);
}

/* Two halves in a word at once: taken one by one, each would be cut out of its word first. */
__device__ inline void widen_two(float &low, float &high, unsigned word, __nv_bfloat16) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xffff0000u);
}
__device__ inline void widen_two(float &low, float &high, unsigned word, __half) {
  const float2 both = __half22float2(*(const __half2 *)&word);
  low = both.x;
  high = both.y;
}
__device__ inline unsigned narrow_two(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *(const unsigned *)&both;
}
__device__ inline unsigned narrow_two(float low, float high, __half) {
  const __half2 both = __floats2half2_rn(low, high);
  return *(const unsigned *)&both;
}

template <class C, class T, int N>
__device__ inline void widen_pack(C (&to)[N], const pack<T, N> &from) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    const unsigned *words = (const unsigned *)&from;
#pragma unroll
    for (int j = 0; j < N; j += 2) widen_two(to[j], to[j + 1], words[j / 2], T());
  } else {
#pragma unroll
    for (int j = 0; j < N; j++) to[j] = widen(from.v[j]);
  }
}

/* N elements at any address, for what is small and read again and again. */
template <class C, class T, int N>
__device__ inline void load_any(C (&to)[N], const T *p) {
  const int bytes = sizeof(T) * N < 16 ? sizeof(T) * N : 16;
  const int step = bytes / sizeof(T);
  if ((uintptr_t)p % bytes == 0) {
#pragma unroll
    for (int i = 0; i < N; i += step) {
      widen_pack(*(C(*)[step])(to + i), *(const pack<T, step> *)(p + i));
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = widen(p[i]);
  }
}

/* The same where the address is known to be aligned. */
template <class C, class T, int N>
__device__ inline void load_aligned(C (&to)[N], const T *p) {
  const int step = sizeof(T) * N < 16 ? N : 16 / (int)sizeof(T);
#pragma unroll
  for (int i = 0; i < N; i += step) {
    widen_pack(*(C(*)[step])(to + i), *(const pack<T, step> *)(p + i));
  }
}

/* Keep halves as they are: the compiler would rather hold on to all of them as floats, which takes twice
 * the registers, than widen them again. */
template <class T, int N>
__device__ inline void stay_packed(pack<T, N> &elements) {
  if constexpr (sizeof(T) == 2 && N == 8) {
    stay_words(*(uint4 *)&elements);
  }
}

/* The same for those who assemble: they would keep the floats that were made of halves, or spill them. To them these are
 * other halves from here on, as `zero`, which is 0, comes from the host. */
template <class T, int N, int PACKS>
__device__ inline void widen_anew(pack<T, N> (&packs)[PACKS], unsigned zero) {
  if constexpr (sizeof(T) == 2 && N == 8) {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
#pragma unroll
      for (int k = 0; k < 4; k++) ((unsigned *)&packs[i])[k] ^= zero;
    }
  }
}

template <class C, class T, int N>
__device__ inline pack<T, N> narrow_pack(const C (&from)[N]) {
  pack<T, N> to;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    unsigned *words = (unsigned *)&to;
#pragma unroll
    for (int j = 0; j < N; j += 2) words[j / 2] = narrow_two(from[j], from[j + 1], T());
  } else {
#pragma unroll
    for (int j = 0; j < N; j++) to.v[j] = narrow_to<T>::from(from[j]);
  }
  return to;
}

/* The larger one, or a NaN if either is one; that of floats is an instruction. */
__device__ inline double larger_of(double a, double b) { return b > a || b != b ? b : a; }

/* All move one place down, and `last` comes behind them: so a loop that is not unrolled fills an array. Looking for place j in
 * it is not only longer: nvcc 13.0 then counts from below 0 and compares as if it did not, and leaves after one turn. */
template <class C, int N>
__device__ inline void append(C (&to)[N], C last) {
#pragma unroll
  for (int k = 0; k + 1 < N; k++) to[k] = to[k + 1];
  to[N - 1] = last;
}

#endif
