/* Rows of one element, on one axis: there is nothing to sum but dweight and dbias. A thread has up to SINGLES_ROWS rows, or
 * packs of rows, at a time, as far apart as there are threads, and asks for all of them before it works on the first.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_SINGLES_CUH
#define ONEPASS_NORM_CUDA_SINGLES_CUH

#include "norm/cuda_slices.cuh"

/* launch_cuda.c knows them, too. */
enum { SINGLES_ROWS = 4, SINGLES_MOST_THREADS = 512 };

/* A thread's rows of `count`, or packs of N rows side by side, behind `skipped` others. */
template <int N>
struct single_rows {
  int64_t first, step, count, skipped;
  __device__ single_rows(int64_t skip, int64_t number)
      : first((int64_t)blockIdx.x * blockDim.x + threadIdx.x),
        step((int64_t)gridDim.x * blockDim.x),
        count(number),
        skipped(skip) {}
  __device__ bool has(int r) const { return first + r * step < count; }
  __device__ void go_on() { first += SINGLES_ROWS * step; }
  template <class T>
  __device__ T *at(const void *base, int role, int r, const norm_args &a) const {
    const int64_t row = skipped + (first + r * step) * N;
    return (T *)base + (N > 1 ? row : row * a.rows.stride[0][role]);
  }
  /* Those that there are; the others are left as they are. */
  template <class T>
  __device__ void load(pack<T, N> (&to)[SINGLES_ROWS], const void *base, int role,
                       const norm_args &a) const {
#pragma unroll
    for (int r = 0; r < SINGLES_ROWS; r++) {
      if (has(r)) to[r] = load_pack<T, N>(at<T>(base, role, r, a));
    }
  }
};

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

template <class T, bool BACKWARD, int N>
__device__ inline void divide_singles(int64_t skipped, int64_t count, const norm_args &a) {
  typedef typename sums_of<T>::type C;
#pragma unroll 1
  for (single_rows<N> rows(skipped, count); rows.has(0); rows.go_on()) {
    pack<T, N> x[SINGLES_ROWS], dy[SINGLES_ROWS];
    rows.load(x, a.at.x, ONEPASS_ROLE_X, a);
    if (BACKWARD) rows.load(dy, a.at.dy, ONEPASS_ROLE_DY, a);
#pragma unroll
    for (int r = 0; r < SINGLES_ROWS; r++) {
      if (!rows.has(r)) break;
      C v[N], g[N];
      widen_pack(v, x[r]);
      if (BACKWARD) widen_pack(g, dy[r]);
#pragma unroll
      for (int j = 0; j < N; j++)
        v[j] = BACKWARD ? single_gradient(v[j], g[j], a) : divided_by_itself(v[j], a);
      store_pack(rows.template at<T>(BACKWARD ? a.at.dx : a.at.y,
                                     BACKWARD ? ONEPASS_ROLE_DX : ONEPASS_ROLE_Y, r, a),
                 narrow_pack<C, T, N>(v));
    }
  }
}

/* Sixteen bytes of rows at a time, where all tensors have them side by side. */
template <class T, bool BACKWARD>
__device__ inline void single_magnitudes(const norm_args &a) {
  const int VEC = vector_of<T>::count;
  const int64_t packs = a.aligned ? a.rows.count / VEC : 0;
  divide_singles<T, BACKWARD, VEC>(0, packs, a);
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

template <class T>
__device__ inline void single_moments_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const single_rows<1> rows(0, a.rows.count);
  pack<T, 1> x[SINGLES_ROWS];
  rows.load(x, a.at.x, ONEPASS_ROLE_X, a);
  single_weight<T> weight(a.at.weight, 1, a), bias(a.at.bias, 0, a);
#pragma unroll
  for (int r = 0; r < SINGLES_ROWS; r++) {
    if (!rows.has(r)) return;
    const C v = widen(x[r].v[0]), apart = v - v; /* from the mean, which it is: 0, or NaN */
    const C rstd = one_over_root(apart * apart + eps_of<C>(a));
    *rows.at<T>(a.at.y, ONEPASS_ROLE_Y, r, a) =
        narrow_to<T>::from(apart * rstd * weight.get() + bias.get());
    if (a.at.mean) *rows.at<C>(a.at.mean, ONEPASS_ROLE_MEAN, r, a) = v;
    if (a.at.rstd) *rows.at<C>(a.at.rstd, ONEPASS_ROLE_RSTD, r, a) = rstd;
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
  for (single_rows<1> rows(0, a.rows.count); rows.has(0); rows.go_on()) {
    pack<T, 1> x[SINGLES_ROWS], dy[SINGLES_ROWS];
    pack<C, 1> mean[SINGLES_ROWS], rstd[SINGLES_ROWS];
    rows.load(x, a.at.x, ONEPASS_ROLE_X, a);
    rows.load(dy, a.at.dy, ONEPASS_ROLE_DY, a);
    rows.load(mean, a.at.mean, ONEPASS_ROLE_MEAN, a);
    rows.load(rstd, a.at.rstd, ONEPASS_ROLE_RSTD, a);
#pragma unroll
    for (int r = 0; r < SINGLES_ROWS; r++) {
      if (!rows.has(r)) break;
      const C g = widen(dy[r].v[0]), by_weight = g * weight.get();
      /* About the mean it is 0, or NaN, whatever the rounding of the saved mean has left. */
      const C about = (widen(x[r].v[0]) - mean[r].v[0]) * rstd[r].v[0], z = about - about;
      *rows.at<T>(a.at.dx, ONEPASS_ROLE_DX, r, a) =
          narrow_to<T>::from(((by_weight - by_weight) - by_weight * z * z) * rstd[r].v[0]);
      over_rows.v[0] += g * z;
      over_rows.v[1] += g;
    }
  }
  if (!a.dweight_parts && !a.dbias_parts) return;
  over_rows = sum_block(over_rows, of_warps);
  void *const to = threadIdx.x ? a.dbias_parts : a.dweight_parts;
  if (threadIdx.x > 1 || !to) return;
  store_part<T>(to, blockIdx.x, over_rows.v[threadIdx.x ? 1 : 0], a);
}

#endif
