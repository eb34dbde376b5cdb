/* What is fused with a norm: the sum with a residual before it, and what may be done to y last, with its slope,
 * in the type of sums. The numbers are onepass_activation's; reference.c says the same in double. */
#ifndef ONEPASS_NORM_CUDA_ACTIVATION_CUH
#define ONEPASS_NORM_CUDA_ACTIVATION_CUH

#include "cuda/elements.cuh"
#include "onepass.h"

__device__ inline float erfc_of(float x) { return erfcf(x); }
__device__ inline double erfc_of(double x) { return erfc(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }
__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }

/* Within 2 ulp, as a division that rounds to nearest takes several times the instructions. */
__device__ inline float quotient(float a, float b) { return __fdividef(a, b); }
__device__ inline double quotient(double a, double b) { return a / b; }

/* Phi(x): by erfc, as 1 + erf would have lost everything far below 0. */
template <class C>
__device__ inline C normal_below(C x) {
  return (C)0.5 * erfc_of(x * (C)-0.70710678118654752440);
}

/* 1 + tanh of the approximation's argument, over 2. */
template <class C>
__device__ inline C tanh_share(C x, C &slope_of_argument) {
  const C by = (C)0.79788456080286535588, cubed = (C)0.044715;
  slope_of_argument = by * (1 + 3 * cubed * x * x);
  /* (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)). */
  return quotient((C)1, 1 + exp_of(-2 * by * (x + cubed * x * x * x)));
}

template <class C>
__device__ inline C activate(int activation, C x) {
  switch (activation) {
    case ONEPASS_RELU:
      return x < 0 ? 0 : x; /* a NaN stays one */
    case ONEPASS_GELU:
      return x * normal_below(x);
    case ONEPASS_GELU_TANH: {
      C slope;
      return x * tanh_share(x, slope);
    }
    case ONEPASS_SILU:
      return quotient(x, 1 + exp_of(-x));
    default:
      return x;
  }
}

template <class C>
__device__ inline C activation_slope(int activation, C x) {
  if (activation && x == x && x - x != 0) return x > 0 ? 1 : 0; /* what it tends to */
  switch (activation) {
    case ONEPASS_RELU:
      return x > 0 ? 1 : 0;
    case ONEPASS_GELU:
      return normal_below(x) + x * exp_of((C)-0.5 * x * x) * (C)0.39894228040143267794;
    case ONEPASS_GELU_TANH: {
      C slope;
      const C share = tanh_share(x, slope), rest = share * (1 - share);
      return rest == 0 ? share : share + x * 2 * rest * slope; /* its slope may have overflowed */
    }
    case ONEPASS_SILU: {
      const C sigmoid = quotient((C)1, 1 + exp_of(-x));
      return sigmoid * (1 + x * (1 - sigmoid));
    }
    default:
      return 1;
  }
}

/* Packs and numbers that wait in registers take turns in the first place: so a loop over them need not be
 * unrolled, and long code is there once. */
template <class P, int N>
__device__ inline void rotate(P (&of)[N]) {
  append(of, of[0]);
}

/* One look at the activation for all of them. */
template <class C, int N>
__device__ inline void activate_all(int activation, C (&v)[N]) {
  if (sizeof(C) == 8 || activation == ONEPASS_GELU) { /* what takes long is there once */
#pragma unroll 1
    for (int j = 0; j < N; j++) {
      v[0] = activate(sizeof(C) == 8 ? activation : (int)ONEPASS_GELU, v[0]);
      rotate(v);
    }
    return;
  }
#define ONEPASS_CASE(which)                                                              \
  if (activation == which) {                                                             \
    _Pragma("unroll") for (int j = 0; j < N; j++) { v[j] = activate((int)which, v[j]); } \
  }
  ONEPASS_CASE(ONEPASS_RELU)
  ONEPASS_CASE(ONEPASS_GELU_TANH)
  ONEPASS_CASE(ONEPASS_SILU)
#undef ONEPASS_CASE
}

template <class C, int N>
__device__ inline void multiply_by_slopes(int activation, C (&g)[N], C (&before)[N]) {
  if (sizeof(C) == 8 || activation == ONEPASS_GELU || activation == ONEPASS_GELU_TANH) {
#pragma unroll 1
    for (int j = 0; j < N; j++) {
      g[0] *= activation_slope(activation, before[0]);
      rotate(g);
      rotate(before);
    }
    return;
  }
#define ONEPASS_CASE(which)                            \
  if (activation == which) {                           \
    _Pragma("unroll") for (int j = 0; j < N; j++) {    \
      g[j] *= activation_slope((int)which, before[j]); \
    }                                                  \
  }
  ONEPASS_CASE(ONEPASS_RELU)
  ONEPASS_CASE(ONEPASS_SILU)
#undef ONEPASS_CASE
}

/* Calls write(pack, number, activation) for all packs that wait. Without an activation, which is the most common, they are
 * written side by side; the code of activations is there once. */
template <class P, int PACKS, class WRITE>
__device__ inline void write_fused(P (&packs)[PACKS], int activation, WRITE write) {
  if (activation == ONEPASS_NO_ACTIVATION) {
#pragma unroll
    for (int i = 0; i < PACKS; i++) write(packs[i], i, (int)ONEPASS_NO_ACTIVATION);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < PACKS; i++) {
    write(packs[0], i, activation);
    rotate(packs);
  }
}

/* x + residual, rounded as if it had been written and read again. */
template <class T, int VEC>
__device__ inline pack<T, VEC> summed(const pack<T, VEC> &x, const pack<T, VEC> &residual) {
  typedef typename sums_of<T>::type C;
  C v[VEC], more[VEC];
  widen_pack(v, x);
  widen_pack(more, residual);
#pragma unroll
  for (int j = 0; j < VEC; j++) v[j] += more[j];
  return narrow_pack<C, T, VEC>(v);
}

#endif
