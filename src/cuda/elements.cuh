/* Elements of every type as numbers of the type of sums, and memory accesses of up to 16 bytes. */
#ifndef ONEPASS_CUDA_ELEMENTS_CUH
#define ONEPASS_CUDA_ELEMENTS_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

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

/* Loads and stores of what is used once: they do not push out of the caches what is used again. */
template <int BYTES>
struct streaming;
template <>
struct streaming<16> {
  typedef uint4 word;
};
template <>
struct streaming<8> {
  typedef uint2 word;
};
template <>
struct streaming<4> {
  typedef unsigned word;
};
template <>
struct streaming<2> {
  typedef unsigned short word;
};

template <class T, int N>
__device__ inline pack<T, N> load_once(const T *p) {
  typedef typename streaming<sizeof(T) * N>::word word;
  union {
    word raw;
    pack<T, N> elements;
  } u;
  u.raw = __ldcs((const word *)p);
  return u.elements;
}

template <class T, int N>
__device__ inline void store_once(T *p, const pack<T, N> &value) {
  typedef typename streaming<sizeof(T) * N>::word word;
  __stcs((word *)p, *(const word *)&value);
}

/* N elements at any address, for what is small and read again and again. */
template <class C, class T, int N>
__device__ inline void load_any(C (&to)[N], const T *p) {
  const int bytes = sizeof(T) * N < 16 ? sizeof(T) * N : 16;
  const int step = bytes / sizeof(T);
  if ((uintptr_t)p % bytes == 0) {
#pragma unroll
    for (int i = 0; i < N; i += step) {
      const pack<T, step> part = *(const pack<T, step> *)(p + i);
#pragma unroll
      for (int j = 0; j < step; j++) to[i + j] = widen(part.v[j]);
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
    const pack<T, step> part = *(const pack<T, step> *)(p + i);
#pragma unroll
    for (int j = 0; j < step; j++) to[i + j] = widen(part.v[j]);
  }
}

template <class C, class T, int N>
__device__ inline void widen_pack(C (&to)[N], const pack<T, N> &from) {
#pragma unroll
  for (int j = 0; j < N; j++) to[j] = widen(from.v[j]);
}

/* Keep halves as they are: the compiler would rather hold on to all of them as floats, which takes twice
 * the registers, than widen them again. */
template <class T, int N>
__device__ inline void stay_packed(pack<T, N> &elements) {
  if constexpr (sizeof(T) == 2 && N == 8) {
    uint4 &words = *(uint4 *)&elements;
    asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
  }
}

template <class C, class T, int N>
__device__ inline pack<T, N> narrow_pack(const C (&from)[N]) {
  pack<T, N> to;
#pragma unroll
  for (int j = 0; j < N; j++) to.v[j] = narrow_to<T>::from(from[j]);
  return to;
}

/* ---- Copies from global to shared memory that do not wait ---- */

/* 16 bytes of which the first `valid` are read; the others become zeros. */
__device__ inline void copy_async(void *shared, const void *global, int valid) {
  const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid)
               : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N>
__device__ inline void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Wait until at most `groups` groups are still under way; fewer may be. */
__device__ inline void wait_for_copies(int groups) {
  if (groups >= 16) {
    wait_for_all_but<16>();
  } else if (groups >= 8) {
    wait_for_all_but<8>();
  } else if (groups >= 4) {
    wait_for_all_but<4>();
  } else if (groups >= 2) {
    wait_for_all_but<2>();
  } else if (groups == 1) {
    wait_for_all_but<1>();
  } else {
    wait_for_all_but<0>();
  }
}

#endif
