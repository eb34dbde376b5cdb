/* What may be done to y last, and its slope, in the type of sums. The numbers are onepass_activation's;
 * reference.c says the same in double. */
#ifndef ONEPASS_NORM_CUDA_ACTIVATION_CUH
#define ONEPASS_NORM_CUDA_ACTIVATION_CUH

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

/* Looked at once for all of them. */
template <class C, int N>
__device__ inline void activate_all(int activation, C (&v)[N]) {
  if (activation == ONEPASS_NO_ACTIVATION) return;
  if (activation == ONEPASS_RELU) {
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = activate((int)ONEPASS_RELU, v[j]);
  } else if (activation == ONEPASS_GELU) {
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = activate((int)ONEPASS_GELU, v[j]);
  } else if (activation == ONEPASS_GELU_TANH) {
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = activate((int)ONEPASS_GELU_TANH, v[j]);
  } else {
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = activate((int)ONEPASS_SILU, v[j]);
  }
}

template <class C>
__device__ inline C activation_slope(int activation, C x) {
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

#endif
