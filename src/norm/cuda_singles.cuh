/* Rows of one element, on one axis: there is nothing to sum but dweight and dbias. A thread has a row, or a pack of rows that
 * lie side by side, and then those that are as far away as there are threads.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_SINGLES_CUH
#define ONEPASS_NORM_CUDA_SINGLES_CUH

#include "norm/cuda_slices.cuh"

/* launch_warps.c knows them, too. */
enum { SINGLES_ROWS = 4, SINGLES_MOST_THREADS = 1024 };

__device__ inline int64_t first_single() { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline int64_t singles_at_once() { return (int64_t)gridDim.x * blockDim.x; }

/* ---- Magnitudes --------------------------------------------------------------------------------- */

template <class C>
__device__ inline C divided_by_itself(C v, const norm_args &a) {
  return v / denominator_of(v < 0 ? -v : v, eps_of<C>(a), a);
}

/* What is left of dy / d - sign(x) dy x / d², with d = |x| + eps: dy eps / d², which is mostly 0 and then not divided. Where
 * d is eps, dy / d. As elsewhere NaN where x is not finite, or d is 0. */
template <class C>
__device__ inline C single_gradient(C v, C dy, const norm_args &a) {
  const C size = v < 0 ? -v : v, eps = eps_of<C>(a), by = denominator_of(size, eps, a);
  const bool clamped = a.clamp && size < eps;
  const C left = (clamped ? dy : a.clamp ? dy - dy : dy * eps) + (v - v);
  if (left == 0 && by > 0) return 0;
  return clamped ? left / by : left / by / by;
}

/* Rows from `skipped` on, in packs of N. */
template <class T, bool BACKWARD, int N>
__device__ inline void divide_singles(int64_t skipped, int64_t packs, const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const auto at = [&](const void *base, int role, int64_t i) {
    const int64_t row = skipped + i * N;
    return (T *)base + (N > 1 ? row : row * a.rows.stride[0][role]);
  };
#pragma unroll 1
  for (int64_t i = first_single(); i < packs; i += singles_at_once()) {
    C v[N], g[N];
    const pack<T, N> x = load_pack<T, N>(at(a.at.x, ONEPASS_ROLE_X, i));
    if (BACKWARD) widen_pack(g, load_pack<T, N>(at(a.at.dy, ONEPASS_ROLE_DY, i)));
    widen_pack(v, x);
#pragma unroll
    for (int j = 0; j < N; j++)
      v[j] = BACKWARD ? single_gradient(v[j], g[j], a) : divided_by_itself(v[j], a);
    store_pack(BACKWARD ? at(a.at.dx, ONEPASS_ROLE_DX, i) : at(a.at.y, ONEPASS_ROLE_Y, i),
               narrow_pack<C, T, N>(v));
  }
}

/* Sixteen bytes of rows at a time, where all tensors have them side by side. */
template <class T, bool BACKWARD>
__device__ inline void single_magnitudes(const norm_args &a) {
  const int VEC = vector_of<T>::count;
  const int64_t packs = a.aligned ? a.rows.count / VEC : 0;
  if (packs) divide_singles<T, BACKWARD, VEC>(0, packs, a);
  divide_singles<T, BACKWARD, 1>(packs * VEC, a.rows.count - packs * VEC, a);
}

/* ---- Moments ------------------------------------------------------------------------------------ */

/* The one number of weight or bias: asked for here, and waited for where it is needed. */
template <class T>
struct single_weight {
  pack<T, 1> own;
  float wide; /* halves may have weights of f32 */
  bool is_wide;
  __device__ single_weight(const void *base, float absent, const norm_args &a)
      : wide(absent), is_wide(sizeof(T) == 2 && a.f32_weights) {
    own.v[0] = narrow_to<T>::from(absent);
    if (base && !is_wide) own.v[0] = *(const T *)base;
    if (base && is_wide) wide = *(const float *)base;
  }
  __device__ typename sums_of<T>::type get() {
    stay_packed(own);
    return is_wide ? wide : widen(own.v[0]);
  }
};

/* A thread has up to SINGLES_ROWS rows, and asks for all of them, and then for the weights, before it works on the first. */
template <class T>
__device__ inline void single_moments_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const auto row = [](int r) { return first_single() + r * singles_at_once(); };
  T x[SINGLES_ROWS];
#pragma unroll
  for (int r = 0; r < SINGLES_ROWS; r++) {
    if (row(r) < a.rows.count) x[r] = *row_of<T, true>(a.at.x, a, ONEPASS_ROLE_X, row(r));
  }
  single_weight<T> weight(a.at.weight, 1, a), bias(a.at.bias, 0, a);
#pragma unroll
  for (int r = 0; r < SINGLES_ROWS; r++) {
    if (row(r) >= a.rows.count) return;
    const C v = widen(x[r]), apart = v - v; /* from the mean, which it is: 0, or NaN */
    row_scale<C> scale;
    scale.mean = v;
    scale.scale = one_over_root(apart * apart + eps_of<C>(a));
    *row_of<T, true>(a.at.y, a, ONEPASS_ROLE_Y, row(r)) =
        narrow_to<T>::from(apart * scale.scale * weight.get() + bias.get());
    save_moments<true>(scale, row(r), a);
  }
}

template <class T>
__device__ inline void single_moments_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<C, 2> of_warps[SINGLES_MOST_THREADS / WARP];
  single_weight<T> weight(a.at.weight, 1, a);
  plain_sums<C, 2> over_rows; /* of dy z and of dy */
  over_rows.clear();
#pragma unroll 1
  for (int64_t row = first_single(); row < a.rows.count; row += singles_at_once()) {
    const C v = widen(*row_of<T, true>(a.at.x, a, ONEPASS_ROLE_X, row)),
            dy = widen(*row_of<T, true>(a.at.dy, a, ONEPASS_ROLE_DY, row)),
            mean = *row_of<C, true>(a.at.mean, a, ONEPASS_ROLE_MEAN, row),
            rstd = *row_of<C, true>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
    /* About the mean it is 0, or NaN, whatever the rounding of the saved mean has left. */
    const C about = (v - mean) * rstd, z = about - about, g = dy * weight.get();
    *row_of<T, true>(a.at.dx, a, ONEPASS_ROLE_DX, row) =
        narrow_to<T>::from(((g - g) - g * z * z) * rstd);
    over_rows.v[0] += dy * z;
    over_rows.v[1] += dy;
  }
  if (!a.dweight_parts && !a.dbias_parts) return;
  over_rows = sum_block(over_rows, of_warps);
  void *const to = threadIdx.x ? a.dbias_parts : a.dweight_parts;
  if (threadIdx.x > 1 || !to) return;
  store_part<T>(to, blockIdx.x, over_rows.v[threadIdx.x ? 1 : 0], a);
}

#endif
