/* Rows of any strides, element by element. And the last step of every backward that sums over rows. */
#ifndef ONEPASS_NORM_CUDA_STRIDED_CUH
#define ONEPASS_NORM_CUDA_STRIDED_CUH

#include "norm/cuda_activation.cuh"
#include "norm/cuda_common.cuh"

/* Where a row is, however many there are. */
template <class T>
__device__ inline T *any_row_of(const void *base, const norm_args &a, int role, int64_t row) {
  return (T *)base + offset_on(a.rows, role, row);
}

enum { STRIDED_BLOCK = 256, SUM_PARTS_BLOCK = 256 };

/* ---- Any strides: a block takes row after row --------------------------------------------------
 * A thread may have any number of a row's elements, one after the other: it adds them up in double. */

template <class T, class C>
__device__ inline C strided_weight(const norm_args &a, const void *base, int role, int64_t element,
                                   C otherwise) {
  return base ? weight_at<T>(base, offset_on(a.elements, role, element), a) : otherwise;
}

/* The gradient behind an activation, from the one before it. */
template <class T, class C>
__device__ inline C strided_slope(const norm_args &a, int64_t element, C z, C weight) {
  const C bias = strided_weight<T, C>(a, a.at.bias, ONEPASS_ROLE_BIAS, element, 0);
  return activation_slope(a.activation, z * weight + bias);
}

template <class T, class C>
struct strided_row {
  const norm_args &a;
  int64_t row;
  __device__ C get(const void *base, int role, int64_t element) const {
    return widen(any_row_of<T>(base, a, role, row)[offset_on(a.elements, role, element)]);
  }
  /* x, or its sum with the residual, rounded as if it had been written and read again. */
  template <bool FUSED>
  __device__ C get_x(int64_t element) const {
    const C x = get(a.at.x, ONEPASS_ROLE_X, element);
    if (!FUSED || !a.at.residual) return x;
    return widen(narrow_to<T>::from(x + get(a.at.residual, ONEPASS_ROLE_RESIDUAL, element)));
  }
  template <bool FUSED>
  __device__ plain_sums<double, 2> deviations(C about) const {
    plain_sums<double, 2> mine;
    mine.clear();
    for (int64_t i = threadIdx.x; i < a.elements.count; i += STRIDED_BLOCK) {
      const C deviation = get_x<FUSED>(i) - about;
      mine.v[0] += deviation;
      mine.v[1] += deviation * deviation;
    }
    return mine;
  }
  __device__ void put(void *base, int role, int64_t element, C value) const {
    any_row_of<T>(base, a, role, row)[offset_on(a.elements, role, element)] =
        narrow_to<T>::from(value);
  }
};

template <class T, bool MOMENTS, bool FUSED = false>
__device__ inline void strided_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<double, 2> of_deviations[STRIDED_BLOCK / WARP];
  __shared__ plain_sums<double, 1> of_sums[STRIDED_BLOCK / WARP];
  const int64_t n = a.elements.count;
  for (int64_t row = blockIdx.x; row < a.rows.count; row += gridDim.x) {
    const strided_row<T, C> at = {a, row};
    row_scale<C> scale;
    __syncthreads(); /* the sums of the row before have been read */
    if constexpr (MOMENTS) {
      C about = n && is_centered(a) ? finite_guess(at.template get_x<FUSED>(0)) : 0;
      row_moments<double> found(sum_block(at.template deviations<FUSED>(about), of_deviations),
                                about, a.one_over_n, 4, is_centered(a));
      if (found.lossy && n) {
        about = finite_guess((C)(found.about + found.more));
        __syncthreads(); /* the first sums have been read */
        found = row_moments<double>(sum_block(at.template deviations<FUSED>(about), of_deviations),
                                    about, a.one_over_n);
      }
      double mean = found.about + found.more;
      scale = scale_by_moments<C>(mean, found.squares, a);
      if (n == 0) { /* nothing has a length of 0, but no mean */
        mean = nan("");
        scale.scale = a.denominator == ONEPASS_BY_LENGTH ? scale_of_squares((C)0, a) : (C)mean;
      }
      if (threadIdx.x == 0) {
        if (a.at.mean) *any_row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = (C)mean;
        if (a.at.rstd) *any_row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) = scale.scale;
      }
    } else {
      plain_sums<double, 1> mine;
      mine.clear();
      for (int64_t i = threadIdx.x; i < n; i += STRIDED_BLOCK) {
        const C v = at.get(a.at.x, ONEPASS_ROLE_X, i);
        mine.v[0] += v < 0 ? -v : v;
      }
      scale = scale_by_sum<C>(sum_block(mine, of_sums).v[0], a);
    }
    for (int64_t i = threadIdx.x; i < n; i += STRIDED_BLOCK) {
      const C x = at.template get_x<FUSED>(i);
      C v = apply_scale<MOMENTS>(scale, x);
      if (MOMENTS) {
        v = v * strided_weight<T, C>(a, a.at.weight, ONEPASS_ROLE_WEIGHT, i, 1) +
            strided_weight<T, C>(a, a.at.bias, ONEPASS_ROLE_BIAS, i, 0);
      }
      if (FUSED && a.at.sum) at.put(a.at.sum, ONEPASS_ROLE_SUM, i, x);
      at.put(a.at.y, ONEPASS_ROLE_Y, i, FUSED ? activate(a.activation, v) : v);
    }
  }
}

/* dx may lie over x or dy, which dweight and dbias still need: those are summed first, by
 * strided_sums, and dx is written last, by strided_backward with `write` set. */
template <class T, bool MOMENTS, bool FUSED = false>
__device__ inline void strided_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = MOMENTS ? 3 : 2;
  __shared__ plain_sums<double, SUMS> of_warps[STRIDED_BLOCK / WARP];
  const int64_t n = a.elements.count;
  for (int64_t row = blockIdx.x; row < a.rows.count; row += gridDim.x) {
    const strided_row<T, C> at = {a, row};
    plain_sums<double, SUMS> mine;
    C mean = 0, rstd = 0;
    if (MOMENTS) {
      mean = saved_mean(any_row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row), a);
      rstd = *any_row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
    }
    mine.clear();
    __syncthreads(); /* the sums of the row before have been read */
    for (int64_t i = threadIdx.x; i < n; i += STRIDED_BLOCK) {
      const C x = at.get(a.at.x, ONEPASS_ROLE_X, i);
      C dy = at.get(a.at.dy, ONEPASS_ROLE_DY, i);
      const C w = MOMENTS ? strided_weight<T, C>(a, a.at.weight, ONEPASS_ROLE_WEIGHT, i, 1) : 1;
      if (FUSED) dy *= strided_slope<T>(a, i, (x - mean) * rstd, w);
      plain_sums<C, SUMS> one;
      one.clear();
      add_product<MOMENTS>(one, x, dy, w, mean, rstd);
      mine.merge(one);
    }
    const plain_sums<double, SUMS> all = sum_block(mine, of_warps);
    row_gradient<C> gradient;
    if constexpr (MOMENTS) {
      gradient = gradient_by_moments<C>(all.v[0], all.v[1], all.v[2], mean, rstd, a);
    } else {
      gradient = gradient_by_sums<C>(all.v[0], all.v[1], a);
    }
    for (int64_t i = threadIdx.x; i < n; i += STRIDED_BLOCK) {
      const C x = at.get(a.at.x, ONEPASS_ROLE_X, i), dy = at.get(a.at.dy, ONEPASS_ROLE_DY, i);
      if constexpr (MOMENTS) {
        const C w = strided_weight<T, C>(a, a.at.weight, ONEPASS_ROLE_WEIGHT, i, 1),
                z = normalized(gradient, x);
        const C g = FUSED ? dy * strided_slope<T>(a, i, z, w) * w : dy * w;
        C dx = apply_moments_gradient(gradient, z, g);
        if (FUSED && a.at.dsum) dx += at.get(a.at.dsum, ONEPASS_ROLE_DSUM, i);
        at.put(a.at.dx, ONEPASS_ROLE_DX, i, dx);
      } else {
        at.put(a.at.dx, ONEPASS_ROLE_DX, i, apply_l1_gradient(gradient, x, dy));
      }
    }
  }
}

/* The mean of z of each row, for strided_sums: a block a row. */
template <class T>
__device__ inline void strided_offsets(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<double, 1> of_warps[STRIDED_BLOCK / WARP];
  for (int64_t row = blockIdx.x; row < a.rows.count; row += gridDim.x) {
    const strided_row<T, C> at = {a, row};
    const C mean = saved_mean(any_row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row), a);
    const C rstd = *any_row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
    plain_sums<double, 1> mine;
    mine.clear();
    __syncthreads(); /* the sums of the row before have been read */
    for (int64_t i = threadIdx.x; i < a.elements.count; i += STRIDED_BLOCK) {
      mine.v[0] += (at.get(a.at.x, ONEPASS_ROLE_X, i) - mean) * rstd;
    }
    mine = sum_block(mine, of_warps);
    /* Where no mean is subtracted it may be anything. */
    if (threadIdx.x == 0) a.sums[row] = is_centered(a) ? mine.v[0] * a.one_over_n : 0;
  }
}

/* dweight and dbias of one column in a thread, over `row_group` rows. */
template <class T, bool FUSED = false>
__device__ inline void strided_sums(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int64_t n = a.elements.count, pieces = (n + STRIDED_BLOCK - 1) / STRIDED_BLOCK;
  const int64_t column = blockIdx.x % pieces * STRIDED_BLOCK + threadIdx.x,
                group = blockIdx.x / pieces;
  if (column >= n) return;
  double dweight = 0, dbias = 0;
  for (int64_t row = group * a.row_group; row < (group + 1) * a.row_group && row < a.rows.count;
       row++) {
    const strided_row<T, C> at = {a, row};
    const C mean = saved_mean(any_row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row), a);
    const C rstd = *any_row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
    const C z = (at.get(a.at.x, ONEPASS_ROLE_X, column) - mean) * rstd - (C)a.sums[row];
    C dy = at.get(a.at.dy, ONEPASS_ROLE_DY, column);
    if (FUSED)
      dy *= strided_slope<T>(a, column, z,
                             strided_weight<T, C>(a, a.at.weight, ONEPASS_ROLE_WEIGHT, column, 1));
    dweight += dy * z;
    dbias += dy;
  }
  if (a.dweight_parts) ((C *)a.dweight_parts)[group * n + column] = (C)dweight;
  if (a.dbias_parts) ((C *)a.dbias_parts)[group * n + column] = (C)dbias;
}

/* ---- dweight and dbias from their parts -------------------------------------------------------- */

/* `team` threads, a power of two, share the parts of a column, in double: parts 0, team, 2 team, ... go to
 * the first one and so on. A thread asks for some at once: there are few for each, and nothing else to do. Every
 * other block is for dbias. */
template <class T>
__device__ inline void sum_parts(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ double shared[SUM_PARTS_BLOCK];
  const bool of_bias = blockIdx.x % 2;
  const C *parts = (const C *)(of_bias ? a.dbias_parts : a.dweight_parts);
  void *to = of_bias ? a.at.dbias : a.at.dweight;
  if (!to) return;
  const int width = SUM_PARTS_BLOCK / a.team, lane = threadIdx.x % width,
            part = threadIdx.x / width;
  const int64_t n = a.elements.count, column = (int64_t)(blockIdx.x / 2) * width + lane;
  const int AT_ONCE = 16;
  const C *from = parts + part * n + column;
  const int64_t step = a.team * n;
  double sum = 0;
  for (int64_t p = part; p < a.segments; p += AT_ONCE * a.team, from += AT_ONCE * step) {
    C some[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      some[k] = 0;
      if (column < n && p + k * a.team < a.segments) some[k] = from[k * step];
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) sum += some[k];
  }
  shared[threadIdx.x] = sum;
  for (int half = a.team / 2; half > 0; half /= 2) {
    __syncthreads();
    if (part < half) shared[threadIdx.x] += shared[threadIdx.x + half * width];
  }
  if (part != 0 || column >= n) return;
  sum = shared[threadIdx.x];
  const int role = of_bias ? ONEPASS_ROLE_DBIAS : ONEPASS_ROLE_DWEIGHT;
  const int64_t at = offset_on(a.elements, role, column);
  if (sizeof(T) == 2 && a.f32_weights) {
    ((float *)to)[at] = (float)sum;
  } else {
    ((T *)to)[at] = narrow_to<T>::from((C)sum);
  }
}

#endif
