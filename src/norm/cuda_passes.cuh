/* Rows too long for the chip's shared memory, or too few to be worth keeping blocks in step: three
 * kernels. The first sums segments of rows, the second merges those sums, the third reads x (and dy)
 * again, from the last-level cache where it still is there, and writes the results. */
#ifndef ONEPASS_NORM_CUDA_PASSES_CUH
#define ONEPASS_NORM_CUDA_PASSES_CUH

#include "norm/cuda_common.cuh"

enum { PASSES_BLOCK = 256, PASSES_PACKS = 4, PASSES_AHEAD = 4 };

template <bool MOMENTS, bool BACKWARD> struct pass_sums {
  static const int count = BACKWARD ? (MOMENTS ? 3 : 2) : (MOMENTS ? 2 : 1);
};

/* Block b sums segment b % segments, `slice` elements, of row b / segments. */
template <class T, bool MOMENTS, bool BACKWARD> __device__ inline void passes_gather(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = pass_sums<MOMENTS, BACKWARD>::count;
  __shared__ C of_warps[PASSES_BLOCK / WARP * ONEPASS_NORM_MOST_SUMS];
  const int64_t row = blockIdx.x / a.segments, begin = blockIdx.x % a.segments * a.slice;
  const int64_t rest = a.elements.count - begin;
  const int length = (int)(rest < a.slice ? rest : a.slice);
  const T *x = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row) + begin;
  const T *dy = BACKWARD ? row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, row) + begin : NULL;
  const slice_view<T> view(x, length);
  C first = 0, mean = 0, rstd = 0;
  if (MOMENTS && !BACKWARD) first = widen(*x);
  if (MOMENTS && BACKWARD) {
    mean = *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row);
    rstd = *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
  }
  thread_moments<C> of_x;
  plain_sums<C, SUMS> mine;
  of_x.clear();
  mine.clear();
  for (int start = threadIdx.x; start < view.slots(); start += PASSES_AHEAD * PASSES_BLOCK) {
    C v[PASSES_AHEAD][VEC], g[PASSES_AHEAD][VEC], w[PASSES_AHEAD][VEC];
#pragma unroll
    for (int k = 0; k < PASSES_AHEAD; k++) {
      const int slot = start + k * PASSES_BLOCK, at = slot * VEC - view.phase;
      if (slot >= view.slots()) continue;
      if (view.is_whole(slot)) {
        widen_pack(v[k], *(const pack<T, VEC> *)(x + at));
        if (BACKWARD) load_any(g[k], dy + at);
        if (BACKWARD && MOMENTS && a.at.weight) load_weights_at<T>(w[k], a.at.weight, begin + at, a);
      } else {
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          const bool here = view.has(slot * VEC + j);
          v[k][j] = here ? widen(x[at + j]) : (C)0;
          if (BACKWARD) g[k][j] = here ? widen(dy[at + j]) : (C)0;
          if (BACKWARD && MOMENTS && a.at.weight) {
            w[k][j] = here ? weight_at<T>(a.at.weight, begin + at + j, a) : (C)0;
          }
        }
      }
      if (BACKWARD && MOMENTS && !a.at.weight) {
#pragma unroll
        for (int j = 0; j < VEC; j++) w[k][j] = 1;
      }
    }
#pragma unroll
    for (int k = 0; k < PASSES_AHEAD; k++) {
      const int slot = start + k * PASSES_BLOCK;
      if (slot >= view.slots()) continue;
      if constexpr (BACKWARD) {
        add_products<MOMENTS>(mine, v[k], g[k], w[k], view, slot, mean, rstd);
      } else if constexpr (MOMENTS) {
        add_slot(of_x, v[k], view, slot, first);
      } else {
        mine.v[0] += sum_of_slot(v[k], view, slot);
      }
    }
  }
  double *to = a.sums + (int64_t)blockIdx.x * SUMS;
  if constexpr (MOMENTS && !BACKWARD) {
    const moments<C> all = sum_block(of_x.finish(), (moments<C> *)of_warps);
    if (threadIdx.x == 0) to[0] = (double)first + (double)all.mean, to[1] = all.squares;
  } else {
    const plain_sums<C, SUMS> all = sum_block(mine, (plain_sums<C, SUMS> *)of_warps);
    if (threadIdx.x < SUMS) to[threadIdx.x] = all.v[threadIdx.x];
  }
}

/* A warp merges the sums of a row's segments in place of those of its first segment. */
template <class T, bool MOMENTS, bool BACKWARD> __device__ inline void passes_merge(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = pass_sums<MOMENTS, BACKWARD>::count;
  const int64_t row = (int64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
  const int lane = threadIdx.x % WARP;
  if (row >= a.rows.count) return;
  double *sums = a.sums + row * a.segments * SUMS;
  if constexpr (MOMENTS && !BACKWARD) {
    moments<double> mine;
    mine.clear();
    for (int64_t i = lane; i < a.segments; i += WARP) {
      const int64_t rest = a.elements.count - i * a.slice;
      mine.merge(moments<double>{(double)(rest < a.slice ? rest : a.slice), sums[i * SUMS], sums[i * SUMS + 1]});
    }
    mine = sum_lanes(mine, WARP);
    if (lane != 0) return;
    sums[0] = mine.mean;
    sums[1] = mine.squares;
    if (a.at.mean) *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = (C)mine.mean;
    if (a.at.rstd) {
      *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) = scale_by_moments<C>(mine.mean, mine.squares, a).scale;
    }
  } else {
    plain_sums<double, SUMS> mine;
    mine.clear();
    for (int64_t i = lane; i < a.segments; i += WARP) {
#pragma unroll
      for (int k = 0; k < SUMS; k++) mine.v[k] += sums[i * SUMS + k];
    }
    mine = sum_lanes(mine, WARP);
    if (lane < SUMS) sums[lane] = mine.v[lane];
  }
}

/* Block b writes PASSES_BLOCK * PASSES_PACKS slots, less one where rows are not aligned, of one row.
 * What was read last comes first: it may still be in the cache. */
template <class T, bool MOMENTS> __device__ inline void passes_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = pass_sums<MOMENTS, false>::count;
  const int width = (PASSES_BLOCK * PASSES_PACKS - 1) * VEC;
  const int64_t pieces = (a.elements.count + width - 1) / width;
  const int64_t block = (int64_t)gridDim.x - 1 - blockIdx.x, row = block / pieces, begin = block % pieces * width;
  const int64_t rest = a.elements.count - begin;
  const T *x = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row) + begin;
  T *y = row_of<T>(a.at.y, a, ONEPASS_ROLE_Y, row) + begin;
  const slice_view<T> view(x, (int)(rest < width ? rest : width));
  const bool alike = phase_of(y) == view.phase;
  const double *sums = a.sums + row * a.segments * SUMS;
  row_scale<C> scale;
  if constexpr (MOMENTS) {
    scale = scale_by_moments<C>(sums[0], sums[1], a);
  } else {
    scale = scale_by_sum<C>(sums[0], a);
  }
  C v[PASSES_PACKS][VEC];
#pragma unroll
  for (int k = 0; k < PASSES_PACKS; k++) {
    const int slot = threadIdx.x + k * PASSES_BLOCK, at = slot * VEC - view.phase;
    if (slot >= view.slots()) continue;
    if (view.is_whole(slot)) {
      widen_pack(v[k], load_once<T, VEC>(x + at));
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) v[k][j] = view.has(slot * VEC + j) ? widen(x[at + j]) : (C)0;
    }
  }
#pragma unroll
  for (int k = 0; k < PASSES_PACKS; k++) {
    const int slot = threadIdx.x + k * PASSES_BLOCK, at = slot * VEC - view.phase;
    if (slot >= view.slots()) continue;
#pragma unroll
    for (int j = 0; j < VEC; j++) v[k][j] = apply_scale<MOMENTS>(scale, v[k][j]);
    if (MOMENTS) {
      const bool whole = view.is_whole(slot);
      C part[VEC];
      if (a.at.weight) {
        if (whole) load_weights_at<T>(part, a.at.weight, begin + at, a);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          if (whole || view.has(slot * VEC + j)) v[k][j] *= whole ? part[j] : weight_at<T>(a.at.weight, begin + at + j, a);
        }
      }
      if (a.at.bias) {
        if (whole) load_weights_at<T>(part, a.at.bias, begin + at, a);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          if (whole || view.has(slot * VEC + j)) v[k][j] += whole ? part[j] : weight_at<T>(a.at.bias, begin + at + j, a);
        }
      }
    }
    store_slot(y, v[k], view, slot, alike);
  }
}

/* A block has the same columns of `row_group` rows, so that dweight and dbias are summed in
 * registers. VEC is 1 where rows are not all aligned. */
template <class T, bool MOMENTS, int VEC> __device__ inline void passes_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = pass_sums<MOMENTS, true>::count;
  const int64_t width = (int64_t)PASSES_BLOCK * PASSES_PACKS * VEC, n = a.elements.count;
  const int64_t pieces = (n + width - 1) / width, group = blockIdx.x / pieces;
  const int64_t begin = blockIdx.x % pieces * width + threadIdx.x * VEC, step = PASSES_BLOCK * VEC;
  const int64_t first_row = group * a.row_group;
  const int64_t last_row = first_row + a.row_group < a.rows.count ? first_row + a.row_group : a.rows.count;
  C weight[PASSES_PACKS][VEC], dweight[PASSES_PACKS][VEC], dbias[PASSES_PACKS][VEC];
#pragma unroll
  for (int k = 0; k < PASSES_PACKS; k++) {
#pragma unroll
    for (int j = 0; j < VEC; j++) weight[k][j] = 1, dweight[k][j] = dbias[k][j] = 0;
    if (MOMENTS && a.at.weight && begin + k * step < n) {
      load_weights_at<T>(weight[k], a.at.weight, begin + k * step, a);
    }
  }
  for (int64_t row = last_row - 1; row >= first_row; row--) {
    const T *x = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row), *dy = row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, row);
    T *dx = row_of<T>(a.at.dx, a, ONEPASS_ROLE_DX, row);
    const double *sums = a.sums + row * a.segments * SUMS;
    pack<T, VEC> at_x[PASSES_PACKS], at_dy[PASSES_PACKS];
#pragma unroll
    for (int k = 0; k < PASSES_PACKS; k++) {
      if (begin + k * step >= n) continue;
      at_x[k] = load_once<T, VEC>(x + begin + k * step);
      at_dy[k] = load_once<T, VEC>(dy + begin + k * step);
    }
    row_gradient<C> gradient;
    if constexpr (MOMENTS) {
      gradient = gradient_by_moments<C>(sums[0], sums[1], sums[2], *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row),
                                        *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row), a);
    } else {
      gradient = gradient_by_sums<C>(sums[0], sums[1], a);
    }
#pragma unroll
    for (int k = 0; k < PASSES_PACKS; k++) {
      if (begin + k * step >= n) continue;
      C v[VEC], g[VEC], out[VEC];
      widen_pack(v, at_x[k]);
      widen_pack(g, at_dy[k]);
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if constexpr (MOMENTS) {
          const C z = normalized(gradient, v[j]);
          dweight[k][j] += g[j] * z;
          dbias[k][j] += g[j];
          out[j] = apply_moments_gradient(gradient, z, g[j] * weight[k][j]);
        } else {
          out[j] = apply_l1_gradient(gradient, v[j], g[j]);
        }
      }
      store_once(dx + begin + k * step, narrow_pack<C, T, VEC>(out));
    }
  }
  if (!MOMENTS) return;
#pragma unroll
  for (int k = 0; k < PASSES_PACKS; k++) {
    if (begin + k * step >= n) continue;
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      const int64_t column = begin + k * step + j;
      if (a.dweight_parts) ((C *)a.dweight_parts)[group * n + column] = dweight[k][j];
      if (a.dbias_parts) ((C *)a.dbias_parts)[group * n + column] = dbias[k][j];
    }
  }
}

#endif
