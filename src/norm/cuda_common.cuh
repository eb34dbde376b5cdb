/* What all kernels of the normalization family share: where rows are, how sums of parts become sums
 * of rows, and what is done with them. */
#ifndef ONEPASS_NORM_CUDA_COMMON_CUH
#define ONEPASS_NORM_CUDA_COMMON_CUH

#include "cuda/elements.cuh"
#include "norm/cuda.h"

typedef onepass_norm_args norm_args;

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

/* The numbers of the statistic in the type of sums. */
template <class C>
__device__ inline C eps_of(const norm_args &a) {
  return sizeof(C) == 4 ? a.f32.eps : (C)a.eps;
}
template <class C>
__device__ inline C share_of(const norm_args &a) {
  return sizeof(C) == 4 ? a.f32.share : (C)a.share;
}
template <class C>
__device__ inline C one_over_n(const norm_args &a) {
  return sizeof(C) == 4 ? a.f32.one_over_n : (C)a.one_over_n;
}

/* Arguments are in memory, too, and come to a multiprocessor line by line as they are first read. While a kernel waits for its
 * turn that costs nothing: a word of each of those lines that most kernels read. Nothing but this condition needs them, and it
 * does no more than keep the compiler from leaving them out. */
__device__ inline void touch_arguments(const norm_args &a) {
#if __CUDA_ARCH__ >= 900
  enum { WORDS_OF_LINE = 16, WORDS_READ = 128 };
  if (!a.ahead.arguments) return;
  const unsigned *const words = (const unsigned *)&a;
  unsigned all = ~0u;
#pragma unroll
  for (int i = WORDS_OF_LINE - 4; i < WORDS_READ; i += WORDS_OF_LINE) all &= words[i];
  if (all == ~0u) __nanosleep(0);
#endif
}

/* ---- Where things are ------------------------------------------------------------------------ */

__device__ inline int64_t offset_on(const onepass_walk &walk, int role, int64_t position) {
  if (walk.ndim <= 1) return position * walk.stride[0][role];
  int64_t offset = 0;
#pragma unroll 1
  for (int axis = walk.ndim - 1; axis > 0; axis--) {
    offset += position % walk.size[axis] * walk.stride[axis][role];
    position /= walk.size[axis];
  }
  return offset + position * walk.stride[0][role];
}

/* The same for rows, of which there are fewer than 2^31 where they are on several axes. */
template <class T, bool ONE_AXIS = false>
__device__ inline T *row_of(const void *base, const norm_args &a, int role, int64_t row) {
  const onepass_walk &walk = a.rows;
  if (ONE_AXIS || walk.ndim <= 1) return (T *)base + row * walk.stride[0][role];
  int64_t offset = 0;
  unsigned position = (unsigned)row;
#pragma unroll 1
  for (int axis = walk.ndim - 1; axis > 0; axis--) {
    const unsigned before = divide(position, a.by_axis[axis]);
    offset += (position - before * (unsigned)walk.size[axis]) * walk.stride[axis][role];
    position = before;
  }
  return (T *)base + offset + position * walk.stride[0][role];
}

/* The same for several tensors at once: a loop for each would be between what they are asked for. */
template <int TENSORS>
__device__ inline void find_row(int64_t (&offsets)[TENSORS], const int (&roles)[TENSORS],
                                const norm_args &a, int64_t row) {
  const onepass_walk &walk = a.rows;
#pragma unroll
  for (int t = 0; t < TENSORS; t++) offsets[t] = 0;
  if (walk.ndim > 1) {
    unsigned position = (unsigned)row;
#pragma unroll 1
    for (int axis = walk.ndim - 1; axis > 0; axis--) {
      const unsigned before = divide(position, a.by_axis[axis]),
                     place = position - before * (unsigned)walk.size[axis];
#pragma unroll
      for (int t = 0; t < TENSORS; t++) offsets[t] += place * walk.stride[axis][roles[t]];
      position = before;
    }
    row = position;
  }
#pragma unroll
  for (int t = 0; t < TENSORS; t++) offsets[t] += row * walk.stride[0][roles[t]];
}

/* Numbers of weight or bias, which are of x's type or float. */
template <class T, class C, int N>
__device__ inline void load_weights_at(C (&to)[N], const void *weights, int64_t index,
                                       const norm_args &a) {
  if (sizeof(T) == 2 && a.f32_weights) {
    load_any(to, (const float *)weights + index);
  } else {
    load_any(to, (const T *)weights + index);
  }
}

/* The same for kernels that work on aligned packs, or on single elements. */
template <class T, class C, int N>
__device__ inline void load_aligned_weights(C (&to)[N], const void *weights, int64_t index,
                                            const norm_args &a) {
  if (sizeof(T) == 2 && a.f32_weights) {
    load_aligned(to, (const float *)weights + index);
  } else {
    load_aligned(to, (const T *)weights + index);
  }
}

template <class T>
__device__ inline typename sums_of<T>::type weight_at(const void *weights, int64_t index,
                                                      const norm_args &a) {
  if (sizeof(T) == 2 && a.f32_weights) return ((const float *)weights)[index];
  return widen(((const T *)weights)[index]);
}

/* ---- Sums of rows ---------------------------------------------------------------------------- */

/* How the sums of rows come about. Kernels without loops of their own for squares take those for moments, too: they
 * have a bool. */
enum { OF_MAGNITUDES = false, OF_MOMENTS = true, OF_SQUARES };

template <int STATISTIC>
struct sum_count {
  static const int FORWARD = STATISTIC == OF_MOMENTS ? 2 : 1;
  static const int BACKWARD = STATISTIC == OF_MOMENTS ? 3 : STATISTIC == OF_SQUARES ? 1 : 2;
};

/* Sums that just add up. Part of a row or all of it. */
template <class C, int N>
struct plain_sums {
  C v[N];
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = 0;
  }
  template <class D>
  __device__ void merge(const plain_sums<D, N> &later) {
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

/* The sums of `lanes` neighbouring lanes, a power of two, with the same bits in every one of them. */
template <class S>
__device__ inline S sum_lanes(S mine, int lanes) {
#pragma unroll
  for (int mask = 1; mask < WARP; mask *= 2) {
    if (mask < lanes) mine.merge(mine.of_lane(mask));
  }
  return mine;
}

/* The sums of a block's threads, in every thread. One barrier; what of_warps points to must not be
 * used for the sums before or after these. */
template <class S>
__device__ inline S sum_block(S mine, S *of_warps) {
  const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP;
  mine = sum_lanes(mine, WARP);
  if (warps == 1) return mine;
  if (lane == 0) of_warps[threadIdx.x / WARP] = mine;
  __syncthreads();
  if (warps <= 8) { /* every thread for itself */
    mine = of_warps[0];
#pragma unroll
    for (int warp = 1; warp < 8; warp++) {
      if (warp < warps) mine.merge(of_warps[warp]);
    }
    return mine;
  }
  if (lane < warps) {
    mine = of_warps[lane];
  } else {
    mine.clear();
  }
  return sum_lanes(mine, WARP);
}

/* How a slice of a row lies in slots of 16 aligned bytes: element e is at position phase + e. */
template <class T>
struct slice_view {
  static const int VEC = vector_of<T>::count;
  int phase, end; /* positions of the first element and past the last one */
  __device__ slice_view() {}
  __device__ slice_view(const T *first, int length)
      : phase(phase_of(first)), end(phase_of(first) + length) {}
  __device__ int slots() const { return (int)((unsigned)(end + VEC - 1) / VEC); }
  __device__ bool is_whole(int slot) const {
    return slot >= (phase > 0) && slot < (int)((unsigned)end / VEC);
  }
  __device__ bool has(int position) const { return position >= phase && position < end; }
};

/* v - from. Halves are mostly taken about 0, which is looked at once for all of them. */
template <class T, class C, int N>
__device__ inline void take_off(C (&v)[N], C from) {
  if (sizeof(T) == 2 && from == 0) return;
#pragma unroll
  for (int j = 0; j < N; j++) v[j] -= from;
}

/* What the elements of a slot add to the sums of their row. Those of a slot that is partly another
 * row's are looked at one by one. */
template <class T, class C, int N>
__device__ inline void add_deviations(plain_sums<C, 2> &mine, C (&v)[N], C about) {
  /* Of its own, so that slots do not wait for each other. Floats begin with 0: an instruction more, and `stream` is 2 %
   * faster (measured). */
  const int FIRST = sizeof(T) == 2;
  take_off<T>(v, about);
  C sum = FIRST ? v[0] : 0, squares = FIRST ? v[0] * v[0] : 0;
#pragma unroll
  for (int j = FIRST; j < N; j++) {
    sum += v[j];
    squares += v[j] * v[j];
  }
  mine.v[0] += sum;
  mine.v[1] += squares;
}

template <class C, int N>
__device__ inline void add_magnitudes(plain_sums<C, 1> &mine, const C (&v)[N]) {
  C sum = 0;
#pragma unroll
  for (int j = 0; j < N; j++) sum += v[j] < 0 ? -v[j] : v[j];
  mine.v[0] += sum;
}

template <class C, int N>
__device__ inline void add_squares(plain_sums<C, 1> &mine, const C (&v)[N]) {
  C sum = 0;
#pragma unroll
  for (int j = 0; j < N; j++) sum += v[j] * v[j];
  mine.v[0] += sum;
}

/* Of squares rstd is left out: the sum is multiplied by it. */
template <int STATISTIC, class C, int SUMS>
__device__ inline void add_product(plain_sums<C, SUMS> &mine, C x, C dy, C w, C mean, C rstd) {
  if constexpr (STATISTIC == OF_SQUARES) {
    mine.v[0] += dy * w * x;
  } else if constexpr (STATISTIC == OF_MOMENTS) {
    const C z = (x - mean) * rstd, g = dy * w;
    mine.v[0] += g;
    mine.v[1] += g * z;
    mine.v[2] += z;
  } else {
    mine.v[0] += x < 0 ? -x : x;
    mine.v[1] += dy * x;
  }
}

template <class C>
__device__ inline bool is_finite(C v) {
  return v - v == 0;
}

/* Whether the operator subtracts a mean. Those that do not take their squares about 0, which is their guess, and their
 * mean. */
__device__ inline bool is_centered(const norm_args &a) {
  return a.denominator == ONEPASS_BY_DEVIATION;
}

/* The mean, as `about` and what is to be added, and the squares about it, of some numbers. */
template <class C>
struct row_moments {
  C about, more, squares;
  bool lossy; /* the mean is so far from `about` that the difference of squares lost bits */
  __device__ row_moments(const plain_sums<C, 2> &sums, C from, C one_over_count, int limit = 4,
                         bool centered = true) {
    about = from;
    if (!centered) {
      more = 0;
      squares = sums.v[1];
      lossy = false;
      return;
    }
    more = sums.v[0] * one_over_count;
    const C of_mean = sums.v[0] * more;
    squares = sums.v[1] - of_mean;
    lossy = !(of_mean <= limit * squares);
    if (squares < 0) squares = 0;
  }
};

/* How far the mean may be from what sums were made about, in squares of the deviation: halves have fewer
 * bits to lose. */
template <class T>
struct lossless {
  static const int SQUARES = sizeof(T) == 2 ? 16 : 4;
};

/* The mean of a row with Inf is Inf, unless deviations are from Inf. */
template <class C>
__device__ inline C finite_guess(C guess) {
  return is_finite(guess) ? guess : 0;
}

/* A number near the mean of the row, for most rows: the mean of its first elements, rounded to T. The mean
 * of halves cannot be as far from 0, measured by their deviation, unless most of them are alike: 0 does. The elements
 * are always loaded: not to, where no mean is subtracted, would be a branch to wait in. */
template <class T>
__device__ inline typename sums_of<T>::type guess_mean(const T *row, const norm_args &a) {
  if (sizeof(T) == 2) return 0;
  typename sums_of<T>::type sum = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) sum += widen(row[i < a.elements.count ? i : 0]);
  const typename sums_of<T>::type guess = finite_guess(widen(narrow_to<T>::from(sum / 4)));
  return is_centered(a) ? guess : 0;
}

/* ---- What is done with them ------------------------------------------------------------------ */

/* Forward: y = ((x - shift) * scale + offset) * weight + bias; ABS: y = x * first * scale. */
template <class C>
struct row_scale {
  C shift, scale, offset, mean, first;
};

__device__ inline float one_over_root(float v) { return rsqrtf(v); }
__device__ inline double one_over_root(double v) { return 1 / sqrt(v); }

template <class C>
__device__ inline bool is_normal(C v);
template <>
__device__ inline bool is_normal(float v) {
  return v >= 0x1p-126f && v <= 0x1.fffffep127f;
}
template <>
__device__ inline bool is_normal(double v) {
  return v >= 0x1p-1022 && v <= 0x1.fffffffffffffp1023;
}

/* 1 / denominator is a product of two numbers, so that neither is too large or too small for C. The first is 1 but for
 * denominators that are themselves far from it. */
template <class C>
__device__ inline C first_factor(C denominator, bool far) {
  const C large = sizeof(C) == 8 ? (C)0x1p512 : (C)0x1p64;
  return !far ? 1 : denominator < 1 ? large : 1 / large;
}
template <class C>
__device__ inline bool find_second_factor(C &second, C denominator) {
  second = 1 / denominator;
  if (is_normal(second)) return false;
  second = 1 / (denominator * first_factor(denominator, true));
  return true;
}
template <class C>
__device__ inline void find_factors(C &first, C &second, C denominator) {
  first = first_factor(denominator, find_second_factor(second, denominator));
}

/* What a row of this norm is divided by. */
template <class C>
__device__ inline C denominator_of(C norm, C eps, const norm_args &a) {
  if (a.clamp) return norm < eps ? eps : norm;
  return norm + eps;
}

/* Operators that subtract no mean: what the elements of a row are multiplied with. */
template <class C>
__device__ inline C scale_of_squares(C mean_square, const norm_args &a) {
  if (a.denominator == ONEPASS_BY_RMS) return one_over_root(mean_square + eps_of<C>(a));
  return 1 / denominator_of(sqrt(mean_square * (C)a.elements.count), eps_of<C>(a), a);
}

/* And how much of z times (sum of g z) the gradient takes off. Where a length is clamped, or is 0, it
 * changes nothing. */
template <class C>
__device__ inline C share_of_products(C rstd, const norm_args &a) {
  if (a.denominator != ONEPASS_BY_LENGTH) return one_over_n<C>(a);
  const C rest = 1 - eps_of<C>(a) * rstd; /* the length's share of the denominator */
  if (rest <= (sizeof(C) == 8 ? (C)0x1p-50 : (C)0x1p-21)) return 0; /* rstd is rounded */
  return a.clamp ? 1 : 1 / rest;
}

/* The saved mean of a row, of operators that have one. */
template <class C>
__device__ inline C saved_mean(const C *mean, const norm_args &a) {
  return is_centered(a) ? *mean : (C)0;
}

template <class C>
__device__ inline row_scale<C> scale_by_sum(double sum, const norm_args &a) {
  row_scale<C> row = {0};
  find_factors(row.first, row.scale, (C)denominator_of(sum * a.share, a.eps, a));
  return row;
}

/* A mean of 1e4 rounded to float is off by up to 5e-4; the offset puts back what rounding took. */
template <class C>
__device__ inline row_scale<C> scale_by_moments(double mean, double squares, const norm_args &a) {
  row_scale<C> row = {0};
  if (!is_centered(a)) {
    row.scale = scale_of_squares((C)(squares * a.one_over_n), a);
    return row;
  }
  row.scale = one_over_root((C)(squares * a.one_over_n + a.eps));
  row.shift = (C)mean;
  row.offset = (C)((double)row.shift - mean) * row.scale;
  return row;
}

template <bool MOMENTS, class C>
__device__ inline C apply_scale(const row_scale<C> &row, C x) {
  if (MOMENTS) return (x - row.shift) * row.scale + row.offset;
  return x * row.first * row.scale;
}

/* Backward. ABS: dx = dy * first factor * scale - sign(x) * slope; MOMENTS: z = (x - mean) * rstd + offset and
 * dx = g * rstd + z * by_z + constant, g being dy * weight. */
template <class C>
struct row_gradient {
  C scale, slope, denominator;
  bool far; /* scale is the second factor of one over the denominator, and the first is not 1 */
  C mean, rstd, offset, by_z, constant;
};

template <class C>
__device__ inline row_gradient<C> gradient_by_sums(double sum, double dot, const norm_args &a) {
  row_gradient<C> row = {0};
  row.denominator = (C)denominator_of(sum * a.share, a.eps, a);
  row.far = find_second_factor(row.scale, row.denominator);
  row.slope = (C)(dot * a.share) / row.denominator / row.denominator;
  if (a.clamp && sum * a.share < a.eps) row.slope = 0;
  return row;
}

/* The mean of z would be 0 had the saved mean not been rounded: what it is is taken off again. */
template <class C>
__device__ inline row_gradient<C> gradient_by_moments(double sum, double dot, double of_z, C mean,
                                                      C rstd, const norm_args &a) {
  row_gradient<C> row = {0};
  const double offset = -of_z * a.one_over_n;
  row.mean = mean;
  row.rstd = rstd;
  if (!is_centered(a)) {
    row.by_z = -rstd * (C)dot * share_of_products(rstd, a);
    return row;
  }
  row.offset = (C)offset;
  row.by_z = (C)(-rstd * (dot + offset * sum) * a.one_over_n);
  row.constant = (C)(-rstd * sum * a.one_over_n);
  return row;
}

template <class C>
__device__ inline C normalized(const row_gradient<C> &row, C x) {
  return (x - row.mean) * row.rstd + row.offset;
}

template <class C>
__device__ inline C apply_l1_gradient(const row_gradient<C> &row, C x, C dy) {
  const C sign = (C)((x > 0) - (x < 0));
  return dy * first_factor(row.denominator, row.far) * row.scale - sign * row.slope;
}

template <class C>
__device__ inline C apply_moments_gradient(const row_gradient<C> &row, C z, C g) {
  return g * row.rstd + (z * row.by_z + row.constant);
}

#endif
