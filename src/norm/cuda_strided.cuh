/* Rows that are not dense: across them where neighbouring rows lie side by side (columns), and
 * element by element for any other strides (strided). And the last step of every backward that sums
 * over rows. */
#ifndef ONEPASS_NORM_CUDA_STRIDED_CUH
#define ONEPASS_NORM_CUDA_STRIDED_CUH

#include "norm/cuda_common.cuh"

/* Where a row is, however many there are. */
template <class T>
__device__ inline T *any_row_of(const void *base, const norm_args &a, int role, int64_t row) {
  return (T *)base + offset_on(a.rows, role, row);
}

enum { COLUMNS_BLOCK = 512, STRIDED_BLOCK = 256, SUM_PARTS_BLOCK = 256 };

/* L1Norm along an axis with something dense behind it. `team` lanes run along that, VEC elements
 * each; the block's other threads share the rows' elements. Rows of up to KEPT elements a
 * thread stay in registers, the others are read again. */
template <class T, bool BACKWARD, int VEC>
__device__ inline void columns(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int KEPT = BACKWARD ? 4 : 8;
  __shared__ C shared[(BACKWARD ? 2 : 1) * COLUMNS_BLOCK * VEC];
  const int lanes = a.team, lane = threadIdx.x % lanes, part = threadIdx.x / lanes,
            parts = COLUMNS_BLOCK / lanes;
  const int last = a.rows.ndim - 1;
  const int64_t inner = a.rows.size[last], strips = (inner + lanes * VEC - 1) / (lanes * VEC);
  const int64_t column = blockIdx.x % strips * lanes * VEC + lane * VEC, n = a.elements.count;
  const int64_t row = blockIdx.x / strips * inner;
  const bool active = column < inner;
  const int64_t x_step = a.elements.stride[ONEPASS_ROLE_X][0],
                dy_step = a.elements.stride[ONEPASS_ROLE_DY][0];
  const int out_role = BACKWARD ? ONEPASS_ROLE_DX : ONEPASS_ROLE_Y;
  const int64_t out_step = a.elements.stride[out_role][0];
  const T *x = any_row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row) + column;
  const T *dy = BACKWARD ? any_row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, row) + column : NULL;
  T *out = any_row_of<T>(BACKWARD ? a.at.dx : a.at.y, a, out_role, row) + column;
  pack<T, VEC> kept_x[KEPT], kept_dy[BACKWARD ? KEPT : 1];
  C sum[VEC], dot[VEC];
#pragma unroll
  for (int j = 0; j < VEC; j++) sum[j] = dot[j] = 0;
  for (int64_t start = part; active && start < n; start += (int64_t)KEPT * parts) {
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      const int64_t i = start + k * parts;
      if (i >= n) continue;
      kept_x[k] = *(const pack<T, VEC> *)(x + i * x_step);
      if (BACKWARD) kept_dy[k] = *(const pack<T, VEC> *)(dy + i * dy_step);
    }
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      if (start + k * parts >= n) continue;
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        const C v = widen(kept_x[k].v[j]);
        sum[j] += v < 0 ? -v : v;
        if (BACKWARD) dot[j] += v * widen(kept_dy[k].v[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    shared[(j * parts + part) * lanes + lane] = sum[j];
    if (BACKWARD) shared[COLUMNS_BLOCK * VEC + (j * parts + part) * lanes + lane] = dot[j];
  }
  __syncthreads();
  if (!active) return;
  row_scale<C> scale[VEC];
  row_gradient<C> gradient[VEC];
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    C all = 0, all_dot = 0;
    for (int p = 0; p < parts; p++) {
      all += shared[(j * parts + p) * lanes + lane];
      if (BACKWARD) all_dot += shared[COLUMNS_BLOCK * VEC + (j * parts + p) * lanes + lane];
    }
    if (BACKWARD) {
      gradient[j] = gradient_by_sums<C>(all, all_dot, a);
    } else {
      scale[j] = scale_by_sum<C>(all, a);
    }
  }
  const bool kept = n <= (int64_t)KEPT * parts;
  for (int64_t start = part; start < n; start += (int64_t)KEPT * parts) {
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      const int64_t i = start + k * parts;
      if (i >= n) continue;
      if (!kept) kept_x[k] = *(const pack<T, VEC> *)(x + i * x_step);
      if (!kept && BACKWARD) kept_dy[k] = *(const pack<T, VEC> *)(dy + i * dy_step);
    }
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      const int64_t i = start + k * parts;
      if (i >= n) continue;
      C v[VEC];
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if (BACKWARD) {
          v[j] =
              apply_l1_gradient(gradient[j], (C)widen(kept_x[k].v[j]), (C)widen(kept_dy[k].v[j]));
        } else {
          v[j] = apply_scale<false>(scale[j], (C)widen(kept_x[k].v[j]));
        }
      }
      store_pack(out + i * out_step, narrow_pack<C, T, VEC>(v));
    }
  }
}

/* ---- Any strides: a block takes row after row ------------------------------------------------- */

template <class T, class C>
struct strided_row {
  const norm_args &a;
  int64_t row;
  __device__ C get(const void *base, int role, int64_t element) const {
    return widen(any_row_of<T>(base, a, role, row)[offset_on(a.elements, role, element)]);
  }
  __device__ plain_sums<C, 2> deviations(C about) const {
    plain_sums<double, 2> mine;
    mine.clear();
    for (int64_t i = threadIdx.x; i < a.elements.count; i += STRIDED_BLOCK) {
      const C deviation = get(a.at.x, ONEPASS_ROLE_X, i) - about;
      mine.v[0] += deviation;
      mine.v[1] += deviation * deviation;
    }
    return plain_sums<C, 2>{{(C)mine.v[0], (C)mine.v[1]}};
  }
  __device__ void put(void *base, int role, int64_t element, C value) const {
    any_row_of<T>(base, a, role, row)[offset_on(a.elements, role, element)] =
        narrow_to<T>::from(value);
  }
};

template <class T, class C>
__device__ inline C strided_weight(const norm_args &a, const void *base, int role, int64_t element,
                                   C otherwise) {
  return base ? weight_at<T>(base, offset_on(a.elements, role, element), a) : otherwise;
}

template <class T, bool MOMENTS>
__device__ inline void strided_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<C, 2> of_deviations[STRIDED_BLOCK / WARP];
  __shared__ plain_sums<C, 1> of_sums[STRIDED_BLOCK / WARP];
  const int64_t n = a.elements.count;
  for (int64_t row = blockIdx.x; row < a.rows.count; row += gridDim.x) {
    const strided_row<T, C> at = {a, row};
    row_scale<C> scale;
    __syncthreads(); /* the sums of the row before have been read */
    if constexpr (MOMENTS) {
      C about = n ? at.get(a.at.x, ONEPASS_ROLE_X, 0) : 0;
      row_moments<C> found(sum_block(at.deviations(about), of_deviations), about, 1 / (C)n);
      if (found.lossy && n) {
        about += found.more;
        __syncthreads(); /* the first sums have been read */
        found = row_moments<C>(sum_block(at.deviations(about), of_deviations), about, 1 / (C)n);
      }
      const double mean = n ? (double)found.about + (double)found.more : nan("");
      scale = scale_by_moments<C>(mean, found.squares, a);
      if (threadIdx.x == 0) {
        if (a.at.mean) *any_row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = (C)mean;
        if (a.at.rstd)
          *any_row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) = n ? scale.scale : (C)mean;
      }
    } else {
      plain_sums<C, 1> mine;
      mine.clear();
      for (int64_t i = threadIdx.x; i < n; i += STRIDED_BLOCK) {
        const C v = at.get(a.at.x, ONEPASS_ROLE_X, i);
        mine.v[0] += v < 0 ? -v : v;
      }
      scale = scale_by_sum<C>(sum_block(mine, of_sums).v[0], a);
    }
    for (int64_t i = threadIdx.x; i < n; i += STRIDED_BLOCK) {
      C v = apply_scale<MOMENTS>(scale, at.get(a.at.x, ONEPASS_ROLE_X, i));
      if (MOMENTS) {
        v = v * strided_weight<T, C>(a, a.at.weight, ONEPASS_ROLE_WEIGHT, i, 1) +
            strided_weight<T, C>(a, a.at.bias, ONEPASS_ROLE_BIAS, i, 0);
      }
      at.put(a.at.y, ONEPASS_ROLE_Y, i, v);
    }
  }
}

/* dx may lie over x or dy, which dweight and dbias still need: those are summed first, by
 * strided_sums, and dx is written last, by strided_backward with `write` set. */
template <class T, bool MOMENTS>
__device__ inline void strided_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = MOMENTS ? 3 : 2;
  __shared__ plain_sums<C, SUMS> of_warps[STRIDED_BLOCK / WARP];
  const int64_t n = a.elements.count;
  for (int64_t row = blockIdx.x; row < a.rows.count; row += gridDim.x) {
    const strided_row<T, C> at = {a, row};
    plain_sums<C, SUMS> mine;
    C mean = 0, rstd = 0;
    if (MOMENTS) {
      mean = *any_row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row);
      rstd = *any_row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
    }
    mine.clear();
    __syncthreads(); /* the sums of the row before have been read */
    for (int64_t i = threadIdx.x; i < n; i += STRIDED_BLOCK) {
      const C x = at.get(a.at.x, ONEPASS_ROLE_X, i), dy = at.get(a.at.dy, ONEPASS_ROLE_DY, i);
      const C w = MOMENTS ? strided_weight<T, C>(a, a.at.weight, ONEPASS_ROLE_WEIGHT, i, 1) : 1;
      add_product<MOMENTS>(mine, x, dy, w, mean, rstd);
    }
    const plain_sums<C, SUMS> all = sum_block(mine, of_warps);
    row_gradient<C> gradient;
    if constexpr (MOMENTS) {
      gradient = gradient_by_moments<C>(all.v[0], all.v[1], all.v[2], mean, rstd, a);
    } else {
      gradient = gradient_by_sums<C>(all.v[0], all.v[1], a);
    }
    for (int64_t i = threadIdx.x; i < n; i += STRIDED_BLOCK) {
      const C x = at.get(a.at.x, ONEPASS_ROLE_X, i), dy = at.get(a.at.dy, ONEPASS_ROLE_DY, i);
      if constexpr (MOMENTS) {
        const C g = dy * strided_weight<T, C>(a, a.at.weight, ONEPASS_ROLE_WEIGHT, i, 1);
        at.put(a.at.dx, ONEPASS_ROLE_DX, i,
               apply_moments_gradient(gradient, normalized(gradient, x), g));
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
  __shared__ plain_sums<C, 1> of_warps[STRIDED_BLOCK / WARP];
  for (int64_t row = blockIdx.x; row < a.rows.count; row += gridDim.x) {
    const strided_row<T, C> at = {a, row};
    const C mean = *any_row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row);
    const C rstd = *any_row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
    plain_sums<C, 1> mine;
    mine.clear();
    __syncthreads(); /* the sums of the row before have been read */
    for (int64_t i = threadIdx.x; i < a.elements.count; i += STRIDED_BLOCK) {
      mine.v[0] += (at.get(a.at.x, ONEPASS_ROLE_X, i) - mean) * rstd;
    }
    mine = sum_block(mine, of_warps);
    if (threadIdx.x == 0) a.sums[row] = mine.v[0] * a.one_over_n;
  }
}

/* dweight and dbias of one column in a thread, over `row_group` rows. */
template <class T>
__device__ inline void strided_sums(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int64_t n = a.elements.count, pieces = (n + STRIDED_BLOCK - 1) / STRIDED_BLOCK;
  const int64_t column = blockIdx.x % pieces * STRIDED_BLOCK + threadIdx.x,
                group = blockIdx.x / pieces;
  if (column >= n) return;
  C dweight = 0, dbias = 0;
  for (int64_t row = group * a.row_group; row < (group + 1) * a.row_group && row < a.rows.count;
       row++) {
    const strided_row<T, C> at = {a, row};
    const C mean = *any_row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row);
    const C rstd = *any_row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
    const C dy = at.get(a.at.dy, ONEPASS_ROLE_DY, column);
    dweight += dy * ((at.get(a.at.x, ONEPASS_ROLE_X, column) - mean) * rstd - (C)a.sums[row]);
    dbias += dy;
  }
  if (a.dweight_parts) ((C *)a.dweight_parts)[group * n + column] = dweight;
  if (a.dbias_parts) ((C *)a.dbias_parts)[group * n + column] = dbias;
}

/* ---- dweight and dbias from their parts -------------------------------------------------------- */

/* `team` threads share the parts of a column, in double: parts 0, team, 2 team, ... go to the first
 * one and so on. Every other block is for dbias. */
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
  double sum = 0;
  if (column < n) {
#pragma unroll 8
    for (int64_t p = part; p < a.segments; p += a.team) sum += parts[p * n + column];
  }
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (part != 0 || column >= n) return;
  sum = 0;
  for (int p = 0; p < a.team; p++) sum += shared[p * width + lane];
  const int role = of_bias ? ONEPASS_ROLE_DBIAS : ONEPASS_ROLE_DWEIGHT;
  const int64_t at = offset_on(a.elements, role, column);
  if (sizeof(T) == 2 && a.f32_weights) {
    ((float *)to)[at] = (float)sum;
  } else {
    ((T *)to)[at] = narrow_to<T>::from((C)sum);
  }
}

#endif
