/* What all kernels of the normalization family share: where rows are, how sums of parts become sums
 * of rows, and what is done with them. */
#ifndef ONEPASS_NORM_CUDA_COMMON_CUH
#define ONEPASS_NORM_CUDA_COMMON_CUH

#include "cuda/elements.cuh"
#include "norm/cuda.h"

typedef onepass_norm_args norm_args;

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

/* ---- Where things are ------------------------------------------------------------------------ */

__device__ inline int64_t offset_on(const onepass_walk &walk, int role, int64_t position) {
  if (walk.ndim <= 1) return position * walk.stride[role][0];
  int64_t offset = 0;
  for (int axis = walk.ndim - 1; axis > 0; axis--) {
    offset += position % walk.size[axis] * walk.stride[role][axis];
    position /= walk.size[axis];
  }
  return offset + position * walk.stride[role][0];
}

template <class T> __device__ inline T *row_of(const void *base, const norm_args &a, int role, int64_t row) {
  return (T *)base + offset_on(a.rows, role, row);
}

/* Numbers of weight or bias, which are of x's type or float. */
template <class T, class C, int N>
__device__ inline void load_weights_at(C (&to)[N], const void *weights, int64_t index, const norm_args &a) {
  if (sizeof(T) == 2 && a.f32_weights) {
    load_any(to, (const float *)weights + index);
  } else {
    load_any(to, (const T *)weights + index);
  }
}

template <class T> __device__ inline typename sums_of<T>::type weight_at(const void *weights, int64_t index, const norm_args &a) {
  if (sizeof(T) == 2 && a.f32_weights) return ((const float *)weights)[index];
  return widen(((const T *)weights)[index]);
}

/* ---- Sums of rows ---------------------------------------------------------------------------- */

/* Sums that just add up. Part of a row or all of it. */
template <class C, int N> struct plain_sums {
  C v[N];
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = 0;
  }
  __device__ void merge(const plain_sums &later) {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] += later.v[i];
  }
  __device__ plain_sums of_lane(int mask) const {
    plain_sums other;
#pragma unroll
    for (int i = 0; i < N; i++) other.v[i] = __shfl_xor_sync(ALL_LANES, v[i], mask);
    return other;
  }
};

/* The mean of some numbers and the sum of their squares about it. */
template <class C> struct moments {
  C count, mean, squares;
  __device__ void clear() { count = mean = squares = 0; }
  __device__ void merge(const moments &later) {
    const C all = count + later.count;
    const C apart = later.mean - mean, portion = all > 0 ? later.count / all : 0;
    squares += later.squares + apart * apart * count * portion;
    mean += apart * portion;
    count = all;
  }
  __device__ moments of_lane(int mask) const {
    moments other;
    other.count = __shfl_xor_sync(ALL_LANES, count, mask);
    other.mean = __shfl_xor_sync(ALL_LANES, mean, mask);
    other.squares = __shfl_xor_sync(ALL_LANES, squares, mask);
    return other;
  }
};

/* The sums of `lanes` neighbouring lanes, a power of two, in every one of them: the lower part first,
 * so that all get the same bits. */
template <class S> __device__ inline S sum_lanes(S mine, int lanes) {
  const int lane = threadIdx.x % WARP;
  for (int mask = 1; mask < lanes; mask *= 2) {
    S other = mine.of_lane(mask);
    if (lane & mask) {
      other.merge(mine);
      mine = other;
    } else {
      mine.merge(other);
    }
  }
  return mine;
}

/* The sums of a block's threads, in every thread. One barrier; what of_warps points to must not be
 * used for the sums before or after these. */
template <class S> __device__ inline S sum_block(S mine, S *of_warps) {
  const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
  mine = sum_lanes(mine, WARP);
  if (lane == 0) of_warps[threadIdx.x / WARP] = mine;
  __syncthreads();
  if (lane < warps) {
    mine = of_warps[lane];
  } else {
    mine.clear();
  }
  return sum_lanes(mine, WARP);
}

/* How a slice of a row lies in slots of 16 aligned bytes: element e is at position phase + e. */
template <class T> struct slice_view {
  static const int VEC = vector_of<T>::count;
  int phase, end; /* positions of the first element and past the last one */
  __device__ slice_view(const T *first, int length) : phase(phase_of(first)), end(phase_of(first) + length) {}
  __device__ int slots() const { return (end + VEC - 1) / VEC; }
  __device__ bool is_whole(int slot) const { return slot * VEC >= phase && (slot + 1) * VEC <= end; }
  __device__ bool has(int position) const { return position >= phase && position < end; }
};

/* One thread's part of the moments of a row: deviations from the mean of its first slot, which are
 * small numbers, whose squares lose nothing. */
template <class C> struct thread_moments {
  C about, count, sum, squares;
  __device__ void clear() { about = count = sum = squares = 0; }
  __device__ void add(C v) {
    const C deviation = v - about;
    sum += deviation;
    squares += deviation * deviation;
  }
  template <int N> __device__ void add_all(const C (&v)[N]) {
    if (count == 0) {
      C of_slot = v[0];
#pragma unroll
      for (int j = 1; j < N; j++) of_slot += v[j];
      about = of_slot / N;
    }
    count += N;
#pragma unroll
    for (int j = 0; j < N; j++) add(v[j]);
  }
  __device__ void add_one(C v) {
    if (count == 0) about = v;
    count += 1;
    add(v);
  }
  __device__ moments<C> finish() const {
    const C more = count > 0 ? sum / count : 0;
    const C left = squares - sum * more;
    return moments<C>{count, about + more, left < 0 ? 0 : left};
  }
};

/* Add a slot's elements, less `first`, to a thread's moments. */
template <class T, class C, int N>
__device__ inline void add_slot(thread_moments<C> &mine, C (&v)[N], const slice_view<T> &view, int slot, C first) {
#pragma unroll
  for (int j = 0; j < N; j++) v[j] -= first;
  if (view.is_whole(slot)) {
    mine.add_all(v);
  } else {
#pragma unroll
    for (int j = 0; j < N; j++) {
      if (view.has(slot * N + j)) mine.add_one(v[j]);
    }
  }
}

template <class T, class C, int N>
__device__ inline C sum_of_slot(const C (&v)[N], const slice_view<T> &view, int slot) {
  const bool whole = view.is_whole(slot);
  C sum = 0;
#pragma unroll
  for (int j = 0; j < N; j++) {
    if (whole || view.has(slot * N + j)) sum += v[j] < 0 ? -v[j] : v[j];
  }
  return sum;
}

/* The terms of a slot's elements in the backward sums. */
template <bool MOMENTS, class T, class C, int N, int SUMS>
__device__ inline void add_products(plain_sums<C, SUMS> &mine, const C (&x)[N], const C (&dy)[N], const C (&w)[N],
                                    const slice_view<T> &view, int slot, C mean, C rstd) {
  const bool whole = view.is_whole(slot);
  plain_sums<C, SUMS> here;
  here.clear();
#pragma unroll
  for (int j = 0; j < N; j++) {
    if (!whole && !view.has(slot * N + j)) continue;
    if constexpr (MOMENTS) {
      const C z = (x[j] - mean) * rstd, g = dy[j] * w[j];
      here.v[0] += g;
      here.v[1] += g * z;
      here.v[2] += z;
    } else {
      here.v[0] += x[j] < 0 ? -x[j] : x[j];
      here.v[1] += dy[j] * x[j];
    }
  }
  mine.merge(here);
}

template <class T, class C, int N>
__device__ inline void store_slot(T *slice, const C (&v)[N], const slice_view<T> &view, int slot, bool alike) {
  const int first = slot * N - view.phase;
  const pack<T, N> out = narrow_pack<C, T, N>(v);
  if (alike && view.is_whole(slot)) {
    store_once(slice + first, out);
  } else {
#pragma unroll
    for (int j = 0; j < N; j++) {
      if (view.has(slot * N + j)) slice[first + j] = out.v[j];
    }
  }
}

/* ---- What is done with them ------------------------------------------------------------------ */

/* Forward: y = ((x - shift) * scale + offset) * weight + bias; ABS: y = x * scale, or x / denominator
 * where the scale is not a normal number. */
template <class C> struct row_scale {
  C shift, scale, offset, denominator;
  bool divide;
};

template <class C> __device__ inline bool is_normal(C v);
template <> __device__ inline bool is_normal(float v) { return v >= 0x1p-126f && v <= 0x1.fffffep127f; }
template <> __device__ inline bool is_normal(double v) {
  return v >= 0x1p-1022 && v <= 0x1.fffffffffffffp1023;
}

template <class C> __device__ inline row_scale<C> scale_by_sum(double sum, const norm_args &a) {
  row_scale<C> row = {0};
  row.denominator = (C)(sum * a.share + a.eps);
  row.scale = 1 / row.denominator;
  row.divide = !is_normal(row.scale);
  return row;
}

/* A mean of 1e4 rounded to float is off by up to 5e-4; the offset puts back what rounding took. */
template <class C> __device__ inline row_scale<C> scale_by_moments(double mean, double squares, const norm_args &a) {
  row_scale<C> row = {0};
  const double rstd = 1 / sqrt(squares * a.one_over_n + a.eps);
  row.scale = (C)rstd;
  row.shift = (C)mean;
  row.offset = (C)(((double)row.shift - mean) * rstd);
  return row;
}

template <bool MOMENTS, class C> __device__ inline C apply_scale(const row_scale<C> &row, C x) {
  if (MOMENTS) return (x - row.shift) * row.scale + row.offset;
  return row.divide ? x / row.denominator : x * row.scale;
}

/* Backward. ABS: dx = dy * scale - sign(x) * slope; MOMENTS: z = (x - mean) * rstd + offset and
 * dx = g * rstd + z * by_z + constant, g being dy * weight. */
template <class C> struct row_gradient {
  C scale, slope, denominator;
  bool divide;
  C mean, rstd, offset, by_z, constant;
};

template <class C> __device__ inline row_gradient<C> gradient_by_sums(double sum, double dot, const norm_args &a) {
  row_gradient<C> row = {0};
  const double denominator = sum * a.share + a.eps;
  row.denominator = (C)denominator;
  row.scale = 1 / row.denominator;
  row.slope = (C)(dot / denominator / denominator * a.share);
  row.divide = !is_normal(row.scale);
  return row;
}

/* The mean of z would be 0 had the saved mean not been rounded: what it is is taken off again. */
template <class C>
__device__ inline row_gradient<C> gradient_by_moments(double sum, double dot, double of_z, C mean, C rstd,
                                                      const norm_args &a) {
  row_gradient<C> row = {0};
  const double offset = -of_z * a.one_over_n;
  row.mean = mean;
  row.rstd = rstd;
  row.offset = (C)offset;
  row.by_z = (C)(-rstd * (dot + offset * sum) * a.one_over_n);
  row.constant = (C)(-rstd * sum * a.one_over_n);
  return row;
}

template <class C> __device__ inline C normalized(const row_gradient<C> &row, C x) {
  return (x - row.mean) * row.rstd + row.offset;
}

template <class C> __device__ inline C apply_l1_gradient(const row_gradient<C> &row, C x, C dy) {
  const C sign = (C)((x > 0) - (x < 0));
  return (row.divide ? dy / row.denominator : dy * row.scale) - sign * row.slope;
}

template <class C> __device__ inline C apply_moments_gradient(const row_gradient<C> &row, C z, C g) {
  return g * row.rstd + (z * row.by_z + row.constant);
}

#endif
