/* Averages along lines whose outputs lie back to back, an output at a time. Neighbouring threads have neighbouring
 * outputs, whatever the stride, and what their windows share comes from the L1 cache. A thread has POINTS outputs, BLOCK
 * apart, and asks for what all of them need before it adds anything.
 *
 * What a launch has to know is next to each other in the argument: small poolings take no longer than that takes to
 * arrive. */
#ifndef ONEPASS_POOL_CUDA_POINTS_CUH
#define ONEPASS_POOL_CUDA_POINTS_CUH

#include "cuda/elements.cuh"
#include "pool/cuda.h"

typedef onepass_point_args point_args;

enum { POINTS = 4 };

/* A thread's outputs: the line of each and its place there. */
struct line_points {
  const element *in[POINTS]; /* the line's first input */
  int output[POINTS];
  bool exists[POINTS];
  element *out; /* of the first; the others' are BLOCK apart */

  __device__ line_points(const point_args &a) {
    const int64_t first = (int64_t)blockIdx.x * (BLOCK * POINTS);
    const int64_t left = a.total - first;
    const unsigned count = left < BLOCK * POINTS ? (unsigned)left : BLOCK * POINTS;
    const element *lines = (const element *)a.in;
    unsigned place = (unsigned)first; /* of the block, counted from `lines` */
    if (a.total > a.most) {
      int64_t line = divide(blockIdx.x, a.by_outputs);
      place = blockIdx.x - (unsigned)line * (unsigned)a.outputs;
      /* In 32 bits: of the block's number, then of twice that, and so on up to that of its first output. */
#pragma unroll 1
      for (int times = 1; times < BLOCK * POINTS; times *= 2) {
        line *= 2;
        place *= 2;
        if (place >= (unsigned)a.outputs) {
          line++;
          place -= (unsigned)a.outputs;
        }
      }
      lines += line * a.in_step;
    }
    out = (element *)a.out + (first + threadIdx.x);
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
      const unsigned at = place + threadIdx.x + p * BLOCK, line = divide(at, a.by_outputs);
      in[p] = lines + line * a.in_step;
      output[p] = (int)(at - line * (unsigned)a.outputs);
      exists[p] = threadIdx.x + p * BLOCK < count;
    }
  }
  __device__ void store(const sums (&made)[POINTS]) const {
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
      if (exists[p]) out[p * BLOCK] = narrow_to<element>::from(made[p]);
    }
  }
};

__device__ inline sums one_over_kernel(const point_args &a) {
  return sizeof(sums) == 4 ? (sums)a.one_over_kernel_f32 : (sums)a.one_over_kernel;
}

/* What a window is divided by: it begins at input `begin` of a line of `length`. */
__device__ inline int divisor_of(const point_args &a, int begin, int length) {
  int end = begin + a.kernel;
  const int most = a.count_include_pad ? length + a.padding : length;
  if (end > most) end = most;
  return end - (begin < 0 && !a.count_include_pad ? 0 : begin);
}

/* Output o is made of the K inputs from o*step + offset on: forward, and backward at stride 1, if all are divided
 * alike. K: the kernel, or 0 for any. */
template <int K>
__device__ static void point_windows(const point_args &a) {
  const line_points points(a);
  const int kernel = K ? K : a.kernel;
  int begin[POINTS];
  bool whole = true; /* all windows are there, and all of their inputs */
#pragma unroll
  for (int p = 0; p < POINTS; p++) {
    begin[p] = points.output[p] * a.step + a.offset;
    whole &= points.exists[p] & (begin[p] >= 0) & (begin[p] + kernel <= a.inputs);
  }
  sums made[POINTS];
#pragma unroll
  for (int p = 0; p < POINTS; p++) made[p] = 0;
  if (__all_sync(0xffffffffu, whole)) {
    const element *from[POINTS];
#pragma unroll
    for (int p = 0; p < POINTS; p++) from[p] = points.in[p] + begin[p];
#pragma unroll
    for (int k = 0; k < kernel; k++) {
#pragma unroll
      for (int p = 0; p < POINTS; p++) made[p] += widen(from[p][k]);
    }
  } else {
    const auto input = [&](int p, int k) {
      const int at = begin[p] + k;
      element value = narrow_to<element>::from(0);
      if (points.exists[p] & ((unsigned)at < (unsigned)a.inputs)) value = points.in[p][at];
      return value;
    };
    if constexpr (K > 0) {
      element v[K][POINTS];
#pragma unroll
      for (int k = 0; k < K; k++) {
#pragma unroll
        for (int p = 0; p < POINTS; p++) v[k][p] = input(p, k);
      }
#pragma unroll
      for (int k = 0; k < K; k++) {
#pragma unroll
        for (int p = 0; p < POINTS; p++) made[p] += widen(v[k][p]);
      }
    } else {
      for (int k = 0; k < kernel; k++) {
#pragma unroll
        for (int p = 0; p < POINTS; p++) made[p] += widen(input(p, k));
      }
    }
  }
  if (a.uniform) {
#pragma unroll
    for (int p = 0; p < POINTS; p++) made[p] *= one_over_kernel(a);
  } else {
#pragma unroll
    for (int p = 0; p < POINTS; p++) made[p] /= (sums)divisor_of(a, begin[p], a.inputs);
  }
  points.store(made);
}

/* Packs of N elements, multiplied. */
template <int N>
__device__ static void scale_packs(const element *in, element *out, int64_t count, sums factor) {
  const int64_t step = (int64_t)gridDim.x * BLOCK;
#pragma unroll 1
  for (int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x; first < count;
       first += POINTS * step) {
    pack<element, N> v[POINTS];
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
      if (first + p * step < count) v[p] = load_pack<element, N>(in + (first + p * step) * N);
    }
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
      if (first + p * step >= count) break;
      sums wide[N];
      widen_pack(wide, v[p]);
#pragma unroll
      for (int j = 0; j < N; j++) wide[j] *= factor;
      store_pack(out + (first + p * step) * N, narrow_pack<sums, element, N>(wide));
    }
  }
}

/* Every output is the input at its own place, divided: 16 bytes at a time, if tensors begin at multiples of that. */
__device__ static void point_scales(const point_args &a) {
  const int VECTOR = vector_of<element>::count;
  const element *in = (const element *)a.in;
  element *out = (element *)a.out;
  const bool aligned = ((uintptr_t)in | (uintptr_t)out) % 16 == 0;
  if (!aligned) {
    scale_packs<1>(in, out, a.total, one_over_kernel(a));
    return;
  }
  /* The few elements behind the packs are asked for before those. */
  const int64_t packs = a.total / VECTOR;
  const int behind = (int)(a.total - packs * VECTOR);
  const bool has_one = blockIdx.x == 0 && (int)threadIdx.x < behind;
  element last = narrow_to<element>::from(0);
  if (has_one) last = in[packs * VECTOR + threadIdx.x];
  scale_packs<VECTOR>(in, out, packs, one_over_kernel(a));
  if (has_one)
    out[packs * VECTOR + threadIdx.x] = narrow_to<element>::from(widen(last) * one_over_kernel(a));
}

/* An element of dx is made of the windows that hold it, at most TERMS of them, or any number if that is 0: the last one
 * that begins no later than the element, and the ones before it. */
template <int TERMS>
__device__ static void point_gradients(const point_args &a) {
  const line_points points(a);
  const element none = narrow_to<element>::from(0);
  int last[POINTS], into[POINTS]; /* the last window, and where in it the element is */
#pragma unroll
  for (int p = 0; p < POINTS; p++) {
    const unsigned place = (unsigned)(points.output[p] + a.padding);
    last[p] = (int)divide(place, a.by_stride);
    into[p] = (int)place - last[p] * a.step;
  }
  /* dy of the window `before` the last, or 0 */
  const auto dy_of = [&](int p, int before) {
    const int window = last[p] - before;
    element dy = none;
    if (points.exists[p] & (into[p] + before * a.step < a.kernel) &
        ((unsigned)window < (unsigned)a.inputs))
      dy = points.in[p][window];
    return dy;
  };
  sums made[POINTS];
#pragma unroll
  for (int p = 0; p < POINTS; p++) made[p] = 0;
  if constexpr (TERMS > 0) { /* all are divided alike */
    element dy[POINTS][TERMS];
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
#pragma unroll
      for (int t = 0; t < TERMS; t++) dy[p][t] = dy_of(p, t);
    }
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
#pragma unroll
      for (int t = 0; t < TERMS; t++) made[p] += widen(dy[p][t]);
      made[p] *= one_over_kernel(a);
    }
  } else {
#pragma unroll 1
    for (int t = 0; t * a.step < a.kernel; t++) {
      sums dy[POINTS];
#pragma unroll
      for (int p = 0; p < POINTS; p++) dy[p] = widen(dy_of(p, t));
      if (a.uniform) {
#pragma unroll
        for (int p = 0; p < POINTS; p++) made[p] += dy[p] * one_over_kernel(a);
      } else {
#pragma unroll
        for (int p = 0; p < POINTS; p++) {
          const int begin = (last[p] - t) * a.step - a.padding;
          const int divisor = divisor_of(a, begin, a.outputs);
          made[p] += dy[p] / (sums)(divisor > 0 ? divisor : 1);
        }
      }
    }
  }
  points.store(made);
}

#endif
