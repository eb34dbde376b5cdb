/* Normalizations by channel: cells.h says what cells are and which steps there are.
 *
 * Every sum is made in an order that only the shape decides. Runs are read in slots of 16 aligned bytes
 * wherever they start: slots that neighbouring cells share are read by both. */
#ifndef ONEPASS_NORM_CUDA_CELLS_CUH
#define ONEPASS_NORM_CUDA_CELLS_CUH

#include "norm/cells.h"
#include "norm/cuda_activation.cuh"
#include "norm/cuda_common.cuh"

typedef onepass_cells_args cells_args;

enum { CELLS_BLOCK = 256, CELLS_WARPS = CELLS_BLOCK / WARP, MERGE_LANES = 4 };

/* What is done to the elements of a cell.
 *   forward    y = activate((x - shift) * by_x + constant)
 *   backward   dx = g * by_dy + (x - shift) * by_x + constant, with g = dy * the activation's slope at
 *              (x - shift) * by_dy + before */
template <class C>
struct alignas(4 * sizeof(C)) cell_numbers {
  C shift, by_x, by_dy, constant;
};

template <bool BACKWARD>
struct cell_sums {
  static const int count = BACKWARD ? 3 : 2;
};

/* ---- Where things are ------------------------------------------------------------------------ */

template <class T>
__device__ inline T *cell_of(const void *base, const cells_args &a, int role, int64_t batch,
                             int64_t channel) {
  return (T *)base + batch * a.stride[role][ONEPASS_OF_BATCHES] +
         channel * a.stride[role][ONEPASS_OF_CHANNELS];
}

/* mean or rstd of the row that a cell is in. */
template <class C>
__device__ inline C *saved_of(const void *base, const cells_args &a, int role, int64_t batch,
                              unsigned channel) {
  const unsigned row = a.groups ? divide(channel, a.by_group) : channel;
  return cell_of<C>(base, a, role, batch, row);
}

template <class T>
__device__ inline typename sums_of<T>::type channel_number(const void *base, const cells_args &a,
                                                           int role, int64_t channel,
                                                           int otherwise) {
  if (!base) return otherwise;
  const int64_t at = channel * a.stride[role][ONEPASS_OF_CHANNELS];
  if (sizeof(T) == 2 && a.f32_weights) return ((const float *)base)[at];
  return widen(((const T *)base)[at]);
}

template <class T>
__device__ inline void set_channel_number(void *base, const cells_args &a, int role,
                                          int64_t channel, double value) {
  typedef typename sums_of<T>::type C;
  if (!base) return;
  const int64_t at = channel * a.stride[role][ONEPASS_OF_CHANNELS];
  if (sizeof(T) == 2 && a.f32_weights) {
    ((float *)base)[at] = (float)value;
  } else {
    ((T *)base)[at] = narrow_to<T>::from((C)value);
  }
}

/* The sums of a part of a cell. `part`: segment of a batch. */
template <class C>
__device__ inline void store_sums(const cells_args &a, int64_t part, int64_t channel,
                                  const plain_sums<C, 3> &sums) {
  C *to = (C *)a.sums + (part * a.channels + channel) * 3;
#pragma unroll
  for (int i = 0; i < 3; i++) to[i] = sums.v[i];
}
__device__ inline void store_moments(const cells_args &a, int64_t part, int64_t channel,
                                     double mean, double squares) {
  double *to = (double *)a.sums + (part * a.channels + channel) * 2;
  to[0] = mean;
  to[1] = squares;
}

/* ---- Elements -------------------------------------------------------------------------------- */

/* What sums are made with. Backward deviations are from the saved mean, and the activation was given
 * deviation * scale + bias. */
template <class C, int N>
struct gather_numbers {
  C about[N], scale[N], bias[N];
};

/* All elements of a pack have numbers of their own (lanes) or the same ones. */
template <bool FUSED, class C, int N, int M>
__device__ inline void add_backward(plain_sums<C, 3> (&mine)[M], const C (&x)[N], C (&dy)[N],
                                    const gather_numbers<C, M> &with, int activation) {
  C deviation[N];
#pragma unroll
  for (int j = 0; j < N; j++) deviation[j] = x[j] - with.about[j % M];
  if constexpr (FUSED) {
    C before[N];
#pragma unroll
    for (int j = 0; j < N; j++) before[j] = deviation[j] * with.scale[j % M] + with.bias[j % M];
    multiply_by_slopes(activation, dy, before);
  }
#pragma unroll
  for (int j = 0; j < N; j++) {
    mine[j % M].v[0] += dy[j];
    mine[j % M].v[1] += dy[j] * deviation[j];
    mine[j % M].v[2] += deviation[j];
  }
}

template <class C, int N, int M>
__device__ inline void add_forward(plain_sums<C, 2> (&mine)[M], const C (&x)[N],
                                   const gather_numbers<C, M> &with) {
  if constexpr (M == 1) { /* of its own, so that packs do not wait for each other */
    C sum = 0, squares = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
      const C deviation = x[j] - with.about[0];
      sum += deviation;
      squares += deviation * deviation;
    }
    mine[0].v[0] += sum;
    mine[0].v[1] += squares;
  } else {
#pragma unroll
    for (int j = 0; j < N; j++) {
      const C deviation = x[j] - with.about[j];
      mine[j].v[0] += deviation;
      mine[j].v[1] += deviation * deviation;
    }
  }
}

template <bool BACKWARD, bool FUSED, class C, int N, int M>
__device__ inline void add_pack(plain_sums<C, cell_sums<BACKWARD>::count> (&mine)[M],
                                const C (&x)[N], C (&dy)[N], const gather_numbers<C, M> &with,
                                int activation) {
  if constexpr (BACKWARD) {
    add_backward<FUSED>(mine, x, dy, with, activation);
  } else {
    add_forward(mine, x, with);
  }
}

/* What backward's sums of a cell are made with. */
template <class T, bool FUSED, class C, int N>
__device__ inline void load_gather_numbers(const cells_args &a, int64_t batch, int64_t channel,
                                           gather_numbers<C, N> &with, int j) {
  with.about[j] = *saved_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, batch, (unsigned)channel);
  if (FUSED) {
    with.scale[j] = *saved_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, batch, (unsigned)channel) *
                    channel_number<T>(a.at.weight, a, ONEPASS_ROLE_WEIGHT, channel, 1);
    with.bias[j] = channel_number<T>(a.at.bias, a, ONEPASS_ROLE_BIAS, channel, 0);
  }
}

template <class C>
__device__ inline void store_products(const cells_args &a, int64_t part, int64_t batch,
                                      int64_t channel, plain_sums<C, 3> sums) {
  const C rstd = *saved_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, batch, (unsigned)channel);
  sums.v[1] *= rstd; /* deviations become z */
  sums.v[2] *= rstd;
  store_sums(a, part, channel, sums);
}

/* An element of x, with that of the residual if there is one. */
template <class T>
__device__ inline typename sums_of<T>::type summed_at(const T *x, const T *residual, int64_t x_at,
                                                      int64_t residual_at) {
  typedef typename sums_of<T>::type C;
  const C v = widen(x[x_at]);
  return residual ? widen(narrow_to<T>::from(v + widen(residual[residual_at]))) : v;
}

/* ---- The last step --------------------------------------------------------------------------- */

__device__ inline unsigned numbers_at(const cells_args &a, unsigned cell) {
  return a.groups ? cell : cell - divide(cell, a.by_channels) * (unsigned)a.channels;
}

/* What a row's mean and variance make of its elements. */
template <class C>
struct channel_scale {
  C shift, scale, offset; /* z = (x - shift) * scale + offset */
  __device__ channel_scale(const cells_args &a, double mean, double variance) {
    scale = one_over_root((C)(variance + a.eps));
    shift = (C)mean;
    offset = (C)((double)shift - mean) * scale;
  }
};

template <class T, class C>
__device__ inline cell_numbers<C> forward_numbers(const cells_args &a, int64_t channel,
                                                  const channel_scale<C> &row) {
  const C weight = channel_number<T>(a.at.weight, a, ONEPASS_ROLE_WEIGHT, channel, 1),
          bias = channel_number<T>(a.at.bias, a, ONEPASS_ROLE_BIAS, channel, 0);
  return {row.shift, row.scale * weight, 0, row.offset * weight + bias};
}

/* Where the statistic is given, nothing need have been done before. */
template <bool BACKWARD, class T, class C>
__device__ inline cell_numbers<C> numbers_of(const cells_args &a, int64_t number) {
  if (BACKWARD || !a.direct) return ((const cell_numbers<C> *)a.numbers)[number];
  return forward_numbers<T>(
      a, number,
      channel_scale<C>(
          a, channel_number<T>(a.at.running_mean, a, ONEPASS_ROLE_RUNNING_MEAN, number, 0),
          channel_number<T>(a.at.running_var, a, ONEPASS_ROLE_RUNNING_VAR, number, 0)));
}

/* Results that do not push x out of the cache, if it may still be there. */
template <class T, int N>
__device__ inline void store_result(const cells_args &a, T *to, const pack<T, N> &value) {
  if (a.streams) {
    store_streaming(to, value);
  } else {
    store_pack(to, value);
  }
}

/* Elements in the last step: what the numbers of their cells make of them, and then the activation for all
 * of them, so that its code is there once. */
template <bool BACKWARD, bool FUSED, class C, int N>
struct results {
  C v[N], g[N]; /* x, which becomes the result, and dy */
  C at[BACKWARD && FUSED ? N : 1], by_dy[BACKWARD && FUSED ? N : 1];
  __device__ void take(int j, const cell_numbers<C> &with, C before) {
    const C deviation = v[j] - with.shift;
    v[j] = deviation * with.by_x + with.constant;
    /* Running statistics do not depend on x, were it infinite. */
    if (BACKWARD && with.by_x == 0) v[j] = with.constant;
    if constexpr (BACKWARD && FUSED) {
      at[j] = deviation * with.by_dy + before;
      by_dy[j] = with.by_dy;
    } else if constexpr (BACKWARD) {
      v[j] = g[j] * with.by_dy + v[j];
    }
  }
  __device__ void
  next() { /* the next one becomes the first; after N times all are where they were */
    rotate(v);
    if (BACKWARD) rotate(g);
    if constexpr (BACKWARD && FUSED) {
      rotate(at);
      rotate(by_dy);
    }
  }
  template <class T>
  __device__ void add(const pack<T, N> &dsum) {
    C more[N];
    widen_pack(more, dsum);
#pragma unroll
    for (int j = 0; j < N; j++) v[j] += more[j];
  }
  __device__ void finish(int activation) {
    if constexpr (BACKWARD && FUSED) {
      multiply_by_slopes(activation, g, at);
#pragma unroll
      for (int j = 0; j < N; j++) v[j] = g[j] * by_dy[j] + v[j];
    } else if constexpr (FUSED) {
      activate_all(activation, v);
    }
  }
};

/* The tensors of the last step at some place; `more` is dy, or what is added to x. */
template <class T>
struct applied {
  const T *x, *more, *dsum;
  T *out, *sum;
};

template <class T, bool BACKWARD, bool FUSED>
__device__ inline applied<T> applied_at(const cells_args &a, int64_t batch, int64_t channel) {
  applied<T> to = {};
  if (FUSED && !BACKWARD && a.reads_sum) {
    to.x = cell_of<T>(a.at.sum, a, ONEPASS_ROLE_SUM, batch, channel);
  } else {
    to.x = cell_of<T>(a.at.x, a, ONEPASS_ROLE_X, batch, channel);
    if (FUSED && !BACKWARD && a.at.residual) {
      to.more = cell_of<T>(a.at.residual, a, ONEPASS_ROLE_RESIDUAL, batch, channel);
      if (a.at.sum) to.sum = cell_of<T>(a.at.sum, a, ONEPASS_ROLE_SUM, batch, channel);
    }
  }
  if (BACKWARD) {
    to.more = cell_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, batch, channel);
    if (FUSED && a.at.dsum) to.dsum = cell_of<T>(a.at.dsum, a, ONEPASS_ROLE_DSUM, batch, channel);
    to.out = cell_of<T>(a.at.dx, a, ONEPASS_ROLE_DX, batch, channel);
  } else {
    to.out = cell_of<T>(a.at.y, a, ONEPASS_ROLE_Y, batch, channel);
  }
  return to;
}

/* What a number of the last step is at one place; the offsets are those of x, more, sum or dsum, and out. */
template <bool BACKWARD, bool FUSED, class T>
__device__ inline void apply_one(const cells_args &a, const applied<T> &to, int64_t number,
                                 int64_t x_at, int64_t more_at, int64_t beside_at, int64_t out_at) {
  typedef typename sums_of<T>::type C;
  const C before = BACKWARD && FUSED ? ((const C *)a.before)[number] : 0;
  results<BACKWARD, FUSED, C, 1> one;
  one.v[0] = widen(to.x[x_at]);
  one.g[0] = to.more ? widen(to.more[more_at]) : (C)0;
  if (FUSED && !BACKWARD && to.more) {
    const T sum = narrow_to<T>::from(one.v[0] + one.g[0]);
    if (to.sum) to.sum[beside_at] = sum;
    one.v[0] = widen(sum);
  }
  one.take(0, numbers_of<BACKWARD, T, C>(a, number), before);
  one.finish(a.activation);
  if (BACKWARD && FUSED && to.dsum) one.v[0] += widen(to.dsum[beside_at]);
  to.out[out_at] = narrow_to<T>::from(one.v[0]);
}

#endif
