/* Rows of one element: there is nothing to sum but dweight and dbias. A thread has up to SINGLES_ROWS rows at a time, as far
 * apart as there are threads, and asks for all of them before it works on the first.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_SINGLES_CUH
#define ONEPASS_NORM_CUDA_SINGLES_CUH

#include "norm/cuda_slices.cuh"

/* launch_cuda.c knows them, too. */
enum { SINGLES_ROWS = 4, SINGLES_MOST_THREADS = 512 };

/* The rows of a thread from `first` on. */
struct single_rows {
  int64_t first, step, count;
  __device__ single_rows(const norm_args &a)
      : first((int64_t)blockIdx.x * blockDim.x + threadIdx.x),
        step((int64_t)gridDim.x * blockDim.x),
        count(a.rows.count) {}
  __device__ int64_t at(int r) const { return first + r * step; }
  __device__ bool has(int r) const { return at(r) < count; }
  __device__ void go_on() { first += SINGLES_ROWS * step; }
  /* What there is of them; the others are left as they are. */
  template <class T>
  __device__ void load(T (&to)[SINGLES_ROWS], const void *base, int role,
                       const norm_args &a) const {
#pragma unroll
    for (int r = 0; r < SINGLES_ROWS; r++) {
      if (has(r)) to[r] = *row_of<T>(base, a, role, at(r));
    }
  }
};

/* The one number of weight or bias. Both are asked for before either is waited for. */
template <class T, class C>
__device__ inline void load_single_weights(C &weight, C &bias, const norm_args &a) {
  if (sizeof(T) == 2 && a.f32_weights) {
    weight = a.at.weight ? *(const float *)a.at.weight : 1;
    bias = a.at.bias ? *(const float *)a.at.bias : 0;
  } else {
    const T w = a.at.weight ? *(const T *)a.at.weight : narrow_to<T>::from(1);
    const T b = a.at.bias ? *(const T *)a.at.bias : narrow_to<T>::from(0);
    weight = widen(w);
    bias = widen(b);
  }
}

template <class T, bool MOMENTS>
__device__ inline void single_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const single_rows rows(a);
  T x[SINGLES_ROWS];
  rows.load(x, a.at.x, ONEPASS_ROLE_X, a);
  C weight = 1, bias = 0;
  if (MOMENTS) load_single_weights<T>(weight, bias, a);
#pragma unroll
  for (int r = 0; r < SINGLES_ROWS; r++) {
    if (!rows.has(r)) return;
    const C v = widen(x[r]);
    T *const y = row_of<T>(a.at.y, a, ONEPASS_ROLE_Y, rows.at(r));
    row_scale<C> scale;
    if constexpr (MOMENTS) {
      const C apart = v - v; /* from the mean, which it is: 0, or NaN */
      scale.mean = v;
      scale.scale = one_over_root(apart * apart + eps_of<C>(a));
      *y = narrow_to<T>::from(apart * scale.scale * weight + bias);
      save_moments<false>(scale, rows.at(r), a);
    } else {
      plain_sums<C, 1> sums = {{v < 0 ? -v : v}};
      C guess = 0;
      find_scale<OF_MAGNITUDES, T>(scale, sums, guess, false, a);
      *y = narrow_to<T>::from(apply_scale<false>(scale, v));
    }
  }
}

/* The sum of a block's threads, in the first. */
template <class C>
__device__ inline plain_sums<C, 2> sum_singles(plain_sums<C, 2> mine) {
  __shared__ plain_sums<C, 2> of_warps[SINGLES_MOST_THREADS / WARP];
  return sum_block(mine, of_warps);
}

template <class T, bool MOMENTS>
__device__ inline void single_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  C weight = 1, bias;
  if (MOMENTS) load_single_weights<T>(weight, bias, a);
  plain_sums<C, 2> over_rows; /* of dy z and of dy */
  over_rows.clear();
#pragma unroll 1
  for (single_rows rows(a); rows.has(0); rows.go_on()) {
    T x[SINGLES_ROWS], dy[SINGLES_ROWS];
    C mean[SINGLES_ROWS], rstd[SINGLES_ROWS];
    rows.load(x, a.at.x, ONEPASS_ROLE_X, a);
    rows.load(dy, a.at.dy, ONEPASS_ROLE_DY, a);
    if (MOMENTS) {
      rows.load(mean, a.at.mean, ONEPASS_ROLE_MEAN, a);
      rows.load(rstd, a.at.rstd, ONEPASS_ROLE_RSTD, a);
    }
#pragma unroll
    for (int r = 0; r < SINGLES_ROWS; r++) {
      if (!rows.has(r)) break;
      const C v = widen(x[r]), g = widen(dy[r]);
      T *const dx = row_of<T>(a.at.dx, a, ONEPASS_ROLE_DX, rows.at(r));
      if constexpr (MOMENTS) {
        /* What it is about the mean is 0, or NaN, whatever the rounding of the saved mean has left. */
        const C saved = (v - mean[r]) * rstd[r], z = saved - saved, by_weight = g * weight;
        *dx = narrow_to<T>::from(((by_weight - by_weight) - by_weight * z * z) * rstd[r]);
        over_rows.v[0] += g * z;
        over_rows.v[1] += g;
      } else {
        plain_sums<C, 2> sums = {{v < 0 ? -v : v, g * v}};
        *dx = narrow_to<T>::from(
            apply_l1_gradient(find_gradient<OF_MAGNITUDES>(sums, (C)0, (C)0, a), v, g));
      }
    }
  }
  if (!MOMENTS || !(a.dweight_parts || a.dbias_parts)) return;
  over_rows = sum_singles(over_rows);
  if (threadIdx.x != 0) return;
  void *const to[] = {a.dweight_parts, a.dbias_parts};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (!to[i]) continue;
    if (sizeof(T) == 2 && a.narrow_parts) {
      *(T *)to[i] = narrow_to<T>::from(over_rows.v[i]);
    } else {
      ((C *)to[i])[blockIdx.x] = over_rows.v[i];
    }
  }
}

#endif
