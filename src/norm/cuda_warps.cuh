/* Rows short enough for the registers of a warp.
 *
 * `team` neighbouring lanes, a power of two, hold a row: lane l has the packs l, l + team, ... of VEC
 * elements each, at most PACKS of them. With VEC > 1 every row starts at a multiple of the pack's
 * size; rows that do not are done with VEC = 1, where neighbouring lanes still read neighbouring
 * elements. A lane has the same columns of every row, so weight and bias are read once where there
 * is room for them, and dweight and dbias are summed in registers.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_WARPS_CUH
#define ONEPASS_NORM_CUDA_WARPS_CUH

#include "norm/cuda_common.cuh"

enum { WARPS_BLOCK = 256 };

/* The rows of a warp's turn, one for each team. */
struct warp_rows {
  int team, lane; /* lane of the team */
  int64_t first, step;
  int in_warp; /* number of the team */
  __device__ warp_rows(const norm_args &a) {
    team = a.team;
    lane = threadIdx.x % team;
    const int teams = WARP / team;
    in_warp = threadIdx.x % WARP / team;
    const int warps = WARPS_BLOCK / WARP;
    first = ((int64_t)blockIdx.x * warps + threadIdx.x / WARP) * teams;
    step = (int64_t)gridDim.x * warps * teams;
  }
};

template <class T, int VEC, int PACKS>
__device__ inline void load_row(pack<T, VEC> (&to)[PACKS], const void *base, int role, int64_t row,
                                const warp_rows &w, const norm_args &a) {
  const bool active = row < a.rows.count;
  const T *from = row_of<T>(base, a, role, active ? row : 0);
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
    const int64_t column = (int64_t)(w.lane + i * w.team) * VEC;
    if (active && column < a.elements.count) {
      to[i] = load_once<T, VEC>(from + column);
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) to[i].v[j] = narrow_to<T>::from(0);
    }
  }
}

template <class C, class T, int VEC, int PACKS>
__device__ inline void widen_row(C (&to)[PACKS][VEC], const pack<T, VEC> (&from)[PACKS]) {
#pragma unroll
  for (int i = 0; i < PACKS; i++) widen_pack(to[i], from[i]);
}

template <class T, class C, int VEC, int PACKS>
__device__ inline void load_weights(C (&v)[PACKS][VEC], const void *weights, const warp_rows &w,
                                    const norm_args &a, C otherwise) {
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
    const int64_t column = (int64_t)(w.lane + i * w.team) * VEC;
#pragma unroll
    for (int j = 0; j < VEC; j++) v[i][j] = otherwise;
    if (weights && column < a.elements.count) load_aligned_weights<T>(v[i], weights, column, a);
  }
}

template <class T, bool MOMENTS, int VEC, int PACKS>
__device__ inline void warps_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const warp_rows w(a);
  const int64_t n = a.elements.count;
  const bool keep = MOMENTS && PACKS * VEC * sizeof(C) <= 64; /* weights stay in registers */
  C weight[keep ? PACKS : 1][VEC], bias[keep ? PACKS : 1][VEC];
  if constexpr (keep) {
    load_weights<T, C, VEC, PACKS>(weight, a.at.weight, w, a, 1);
    load_weights<T, C, VEC, PACKS>(bias, a.at.bias, w, a, 0);
  }
  for (int64_t first = w.first; first < a.rows.count; first += w.step) {
    const int64_t row = first + w.in_warp;
    const bool active = row < a.rows.count;
    pack<T, VEC> x[PACKS];
    C v[PACKS][VEC];
    load_row<T, VEC, PACKS>(x, a.at.x, ONEPASS_ROLE_X, row, w, a);
    widen_row<C, T, VEC, PACKS>(v, x);
    plain_sums<C, 1> sum;
    sum.clear();
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
#pragma unroll
      for (int j = 0; j < VEC; j++)
        sum.v[0] += MOMENTS ? v[i][j] : (v[i][j] < 0 ? -v[i][j] : v[i][j]);
    }
    sum = sum_lanes(sum, w.team);
    row_scale<C> scale;
    if (MOMENTS) {
      /* About the rounded mean, which v becomes; what is left of the deviations' mean corrects it. */
      const C about = sum.v[0] * (C)a.one_over_n;
      plain_sums<C, 2> left;
      left.clear();
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        if ((int64_t)(w.lane + i * w.team) * VEC >= n) continue;
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          v[i][j] -= about;
          left.v[0] += v[i][j];
          left.v[1] += v[i][j] * v[i][j];
        }
      }
      left = sum_lanes(left, w.team);
      const C more = left.v[0] * (C)a.one_over_n;
      const C variance = (left.v[1] - left.v[0] * more) * (C)a.one_over_n;
      const C rstd =
          one_over_root((variance > 0 || variance != variance ? variance : 0) + (C)a.eps);
      scale.scale = rstd;
      scale.offset = -more * rstd;
      if (active && w.lane == 0) {
        if (a.at.mean) *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = about + more;
        if (a.at.rstd) *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) = rstd;
      }
    } else {
      scale.denominator = sum.v[0] * (C)a.share + (C)a.eps;
      scale.scale = 1 / scale.denominator;
      scale.divide = !is_normal(scale.scale);
    }
    T *y = row_of<T>(a.at.y, a, ONEPASS_ROLE_Y, active ? row : 0);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int64_t column = (int64_t)(w.lane + i * w.team) * VEC;
      if (!active || column >= n) continue;
      C out[VEC];
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        out[j] =
            MOMENTS ? v[i][j] * scale.scale + scale.offset : apply_scale<false>(scale, v[i][j]);
      }
      if constexpr (keep) {
#pragma unroll
        for (int j = 0; j < VEC; j++) out[j] = out[j] * weight[i][j] + bias[i][j];
      } else if (MOMENTS) {
        C part[VEC];
        if (a.at.weight) {
          load_aligned_weights<T>(part, a.at.weight, column, a);
#pragma unroll
          for (int j = 0; j < VEC; j++) out[j] *= part[j];
        }
        if (a.at.bias) {
          load_aligned_weights<T>(part, a.at.bias, column, a);
#pragma unroll
          for (int j = 0; j < VEC; j++) out[j] += part[j];
        }
      }
      store_once(y + column, narrow_pack<C, T, VEC>(out));
    }
  }
}

/* Sums over the rows of a block: first the teams of a warp, then the warps, each in their order. */
template <class C, int VEC, int PACKS>
__device__ inline void sum_over_block(C (&mine)[PACKS][VEC], C *to, const warp_rows &w, int64_t n,
                                      C *shared) {
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      for (int mask = w.team; mask < WARP; mask *= 2) {
        mine[i][j] += __shfl_xor_sync(ALL_LANES, mine[i][j], mask);
      }
      const int64_t column = (int64_t)(w.lane + i * w.team) * VEC + j;
      if (w.in_warp == 0 && column < n) shared[threadIdx.x / WARP * n + column] = mine[i][j];
    }
  }
  __syncthreads();
  for (int64_t column = threadIdx.x; column < n; column += WARPS_BLOCK) {
    C sum = 0;
    for (int warp = 0; warp < WARPS_BLOCK / WARP; warp++) sum += shared[warp * n + column];
    to[column] = sum;
  }
  __syncthreads();
}

template <class T, bool MOMENTS, int VEC, int PACKS>
__device__ inline void warps_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  extern __shared__ __align__(16) char sums_of_warps[];
  const warp_rows w(a);
  const int64_t n = a.elements.count;
  const bool sums_weights = MOMENTS && (a.dweight_parts || a.dbias_parts);
  C weight[PACKS][VEC], dweight[PACKS][VEC], dbias[PACKS][VEC];
  if (MOMENTS) {
    load_weights<T, C, VEC, PACKS>(weight, a.at.weight, w, a, 1);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
#pragma unroll
      for (int j = 0; j < VEC; j++) dweight[i][j] = dbias[i][j] = 0;
    }
  }
  for (int64_t first = w.first; first < a.rows.count; first += w.step) {
    const int64_t row = first + w.in_warp;
    const bool active = row < a.rows.count;
    const int64_t at = active ? row : 0;
    pack<T, VEC> raw_x[PACKS], raw_dy[PACKS];
    C x[PACKS][VEC], dy[PACKS][VEC];
    load_row<T, VEC, PACKS>(raw_x, a.at.x, ONEPASS_ROLE_X, row, w, a);
    load_row<T, VEC, PACKS>(raw_dy, a.at.dy, ONEPASS_ROLE_DY, row, w, a);
    widen_row<C, T, VEC, PACKS>(x, raw_x);
    widen_row<C, T, VEC, PACKS>(dy, raw_dy);
    row_gradient<C> gradient = {0};
    C mean = 0, rstd = 0;
    plain_sums<C, 3> sums;
    sums.clear();
    if (MOMENTS) {
      mean = *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, at);
      rstd = *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, at);
    }
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      if ((int64_t)(w.lane + i * w.team) * VEC >= n) continue;
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if (MOMENTS) {
          const C z = (x[i][j] - mean) * rstd, g = dy[i][j] * weight[i][j];
          sums.v[0] += g;
          sums.v[1] += g * z;
          sums.v[2] += z;
        } else {
          sums.v[0] += x[i][j] < 0 ? -x[i][j] : x[i][j];
          sums.v[1] += dy[i][j] * x[i][j];
        }
      }
    }
    sums = sum_lanes(sums, w.team);
    if (MOMENTS) {
      gradient.mean = mean;
      gradient.rstd = rstd;
      gradient.offset = -sums.v[2] * (C)a.one_over_n;
      gradient.by_z = -rstd * (sums.v[1] + gradient.offset * sums.v[0]) * (C)a.one_over_n;
      gradient.constant = -rstd * sums.v[0] * (C)a.one_over_n;
    } else {
      gradient = gradient_by_sums<C>(sums.v[0], sums.v[1], a);
    }
    T *dx = row_of<T>(a.at.dx, a, ONEPASS_ROLE_DX, at);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int64_t column = (int64_t)(w.lane + i * w.team) * VEC;
      if (!active || column >= n) continue;
      C out[VEC];
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if (MOMENTS) {
          const C z = normalized(gradient, x[i][j]);
          dweight[i][j] += dy[i][j] * z;
          dbias[i][j] += dy[i][j];
          out[j] = apply_moments_gradient(gradient, z, dy[i][j] * weight[i][j]);
        } else {
          out[j] = apply_l1_gradient(gradient, x[i][j], dy[i][j]);
        }
      }
      store_once(dx + column, narrow_pack<C, T, VEC>(out));
    }
  }
  if (!sums_weights) return;
  if (a.dweight_parts)
    sum_over_block<C, VEC, PACKS>(dweight, (C *)a.dweight_parts + blockIdx.x * n, w, n,
                                  (C *)sums_of_warps);
  if (a.dbias_parts)
    sum_over_block<C, VEC, PACKS>(dbias, (C *)a.dbias_parts + blockIdx.x * n, w, n,
                                  (C *)sums_of_warps);
}

#endif
