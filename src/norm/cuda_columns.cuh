/* Rows side by side: a norm along an axis with something dense behind it.
 *
 * A block has a strip of `team` lanes times VEC columns, each of which is a row. Its threads share the elements:
 * thread t has columns lane * VEC on, with lane = t % lanes, of the elements t / lanes, + parts, + 2 parts, ...
 * The first KEPT of them wait in its registers, the others in places of its own in shared memory, if there are
 * `chunks` of those, or else are read again. Sums are put together in shared memory; what follows from them is
 * worked out once for each column, by one thread, and read by the others.
 *
 * The loops have pointers that move on by as many bytes each time, and nothing else to work out. */
#ifndef ONEPASS_NORM_CUDA_COLUMNS_CUH
#define ONEPASS_NORM_CUDA_COLUMNS_CUH

#include "norm/cuda_common.cuh"

/* launch_cuda.c knows them, too. */
enum { COLUMNS_BLOCK = 256, COLUMNS_KEPT = 8, COLUMNS_KEPT_BACKWARD = 4, COLUMNS_STEP = 4 };

__device__ inline float magnitude(float v) { return fabsf(v); }
__device__ inline double magnitude(double v) { return fabs(v); }

/* A thread's elements of one tensor, or of its places in shared memory, one after the other. */
struct moving {
  char *first;
  int64_t step; /* in bytes */
  __device__ char *at(int k) const { return first + k * step; }
};

/* Which column of which rows a strip starts at, as an offset of every tensor: worked out by a thread each. */
struct column_starts {
  int64_t of[ONEPASS_ROLE_DX + 1];
  __device__ void find(const norm_args &a, unsigned outer, int64_t column) {
    const int role = threadIdx.x;
    const onepass_walk &rows = a.rows;
    if (role <= ONEPASS_ROLE_DX) {
      int64_t offset = column * rows.stride[rows.ndim - 1][role];
#pragma unroll 1
      for (int axis = rows.ndim - 2; axis >= 0; axis--) {
        const unsigned size = (unsigned)rows.size[axis], rest = outer / size;
        offset += (outer - rest * size) * rows.stride[axis][role];
        outer = rest;
      }
      of[role] = offset;
    }
    __syncthreads();
  }
};

template <class T, int VEC, int KEPT, int TENSORS>
struct column_strip {
  typedef typename sums_of<T>::type C;
  typedef typename word_of<sizeof(T) * VEC>::type word;
  static const int WARPS = COLUMNS_BLOCK / WARP, MOST_WIDTH = COLUMNS_BLOCK * VEC;
  const norm_args &a;
  const column_starts &starts;
  int lanes, lane, part, parts, width;
  int columns; /* there may be fewer than the width */
  int count;   /* elements of this thread */

  __device__ column_strip(const norm_args &args, column_starts &shared) : a(args), starts(shared) {
    const unsigned strips = (unsigned)a.segments, outer = blockIdx.x / strips;
    const int bits = 31 - __clz(a.team); /* a power of two */
    lanes = a.team;
    lane = threadIdx.x & (lanes - 1);
    part = threadIdx.x >> bits;
    parts = COLUMNS_BLOCK >> bits;
    width = lanes * VEC;
    const int64_t column = (int64_t)(blockIdx.x - outer * strips) * width,
                  left = a.rows.size[a.rows.ndim - 1] - column;
    columns = left < width ? (int)left : width;
    const int n = (int)a.elements.count;
    count = lane * VEC < columns ? (int)((unsigned)(n - part + parts - 1) >> (8 - bits)) : 0;
    shared.find(a, outer, column);
  }

  /* The number saved for column t of the strip. */
  __device__ C *saved(const void *base, int role, int t) const {
    return (C *)base + starts.of[role] + t * a.rows.stride[a.rows.ndim - 1][role];
  }
  /* A tensor shaped as x. */
  __device__ moving along(const void *base, int role) const {
    const int64_t stride = a.elements.stride[0][role];
    return {(char *)((T *)base + starts.of[role] + lane * VEC + part * stride),
            parts * stride * (int64_t)sizeof(T)};
  }
  /* The rest of tensor 0 or 1: where it waits, or else where it came from. */
  __device__ moving rest_of(const void *base, int role, char *places, int which) const {
    const int size = sizeof(T) * VEC;
    const moving tensor = along(base, role);
    if (!a.chunks) return {tensor.at(KEPT), tensor.step};
    return {places + (which * COLUMNS_BLOCK + threadIdx.x) * size, TENSORS * COLUMNS_BLOCK * size};
  }

  /* Calls get(j, pointer) for those of the thread's elements k, k + 1, ... k + N - 1 that there are. */
  template <int N, class GET>
  __device__ void visit(int k, const moving &tensor, int from, GET get) const {
    char *p = tensor.at(from);
#pragma unroll
    for (int j = 0; j < N; j++, p += tensor.step) {
      if (k + j < count) get(j, p);
    }
  }
  template <int N>
  __device__ void load(pack<T, VEC> *to, int k, const moving &tensor) const {
    visit<N>(k, tensor, k, [&](int j, const char *p) { to[j] = load_pack<T, VEC>((const T *)p); });
  }
  /* Of the rest, k counting from its start. */
  template <int N>
  __device__ void load_rest(pack<T, VEC> *to, int k, const moving &rest) const {
    visit<N>(KEPT + k, rest, k,
             [&](int j, const char *p) { *(word *)(to + j) = *(const word *)p; });
  }
  /* To the places of tensor 0 or 1. */
  template <int N>
  __device__ void leave(char *places, int which, int k, const pack<T, VEC> *values) const {
    const int size = sizeof(T) * VEC, step = TENSORS * COLUMNS_BLOCK;
    char *to = places + ((k - KEPT) * step + which * COLUMNS_BLOCK + (int)threadIdx.x) * size;
#pragma unroll
    for (int j = 0; j < N; j++) {
      if (k + j < count) *(word *)(to + j * step * size) = *(const word *)(values + j);
    }
  }
  /* Numbers of weight or bias, of the elements from k on. */
  template <int N>
  __device__ void load_weights(C (&to)[N], const void *base, int role, int k, C otherwise) const {
    const int64_t stride = a.elements.stride[0][role];
#pragma unroll
    for (int j = 0; j < N; j++) to[j] = otherwise;
    if (!base) return;
    const bool wide = sizeof(T) == 2 && a.f32_weights;
    const int64_t size = wide ? 4 : sizeof(T);
    const moving weights = {(char *)base + part * stride * size, parts * stride * size};
    visit<N>(k, weights, k, [&](int j, const char *p) {
      to[j] = wide ? (C) * (const float *)p : (C)widen(*(const T *)p);
    });
  }

  /* Puts sums of this thread's columns where sum_of finds them. */
  template <int SUMS>
  __device__ void gather(C (&mine)[SUMS][VEC], C (*shared)[MOST_WIDTH]) const {
    for (int mask = lanes; mask < WARP; mask *= 2) {
#pragma unroll
      for (int i = 0; i < SUMS * VEC; i++)
        mine[i / VEC][i % VEC] += __shfl_xor_sync(ALL_LANES, mine[i / VEC][i % VEC], mask);
    }
    if ((int)threadIdx.x % WARP < lanes) {
      const int group = lanes < WARP ? threadIdx.x / WARP : part;
#pragma unroll
      for (int s = 0; s < SUMS; s++) spread(shared[s] + group * width, mine[s]);
    }
    __syncthreads();
  }
  /* The sum of column t of the strip, which only the thread that works on it may ask for. */
  __device__ C sum_of(const C *shared, int t) const {
    const int groups = parts < WARPS ? parts : WARPS;
    C all = shared[t];
#pragma unroll
    for (int g = 1; g < WARPS; g++) {
      if (g < groups) all += shared[g * width + t];
    }
    return all;
  }
  /* Calls work(t) for each column t, in one thread each; then all see what it left. */
  template <class WORK>
  __device__ void for_columns(WORK work) const {
#pragma unroll 1
    for (int t = threadIdx.x; t < columns; t += COLUMNS_BLOCK) work(t);
    __syncthreads();
  }
  /* Numbers of this thread's columns. */
  __device__ void spread(C *shared, const C (&from)[VEC]) const {
    pack<C, VEC> all;
#pragma unroll
    for (int j = 0; j < VEC; j++) all.v[j] = from[j];
    *(pack<C, VEC> *)(shared + lane * VEC) = all;
  }
  __device__ void look_up(C (&to)[VEC], const C *shared) const {
    const pack<C, VEC> all = *(const pack<C, VEC> *)(shared + lane * VEC);
#pragma unroll
    for (int j = 0; j < VEC; j++) to[j] = all.v[j];
  }
};

template <class T, int STATISTIC, int VEC>
__device__ inline void columns_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int KEPT = COLUMNS_KEPT, STEP = COLUMNS_STEP;
  const bool CENTERED = STATISTIC == OF_MOMENTS;
  /* Sums, then what is done with the columns. */
  __shared__ __align__(16) C shared[CENTERED                     ? 3
                                    : STATISTIC == OF_MAGNITUDES ? 2
                                                                 : 1][COLUMNS_BLOCK * VEC];
  extern __shared__ __align__(16) char places[];
  __shared__ column_starts starts;
  const column_strip<T, VEC, KEPT, 1> strip(a, starts);
  const moving x = strip.along(a.at.x, ONEPASS_ROLE_X);
  const auto rest_of_x = [&] { return strip.rest_of(a.at.x, ONEPASS_ROLE_X, places, 0); };
  pack<T, VEC> kept[KEPT], others[STEP];
  C sum[1][VEC], shift[VEC];
#pragma unroll
  for (int j = 0; j < VEC; j++) sum[0][j] = shift[j] = 0;
  if (CENTERED && strip.count) {
    const int64_t before = strip.part * a.elements.stride[0][ONEPASS_ROLE_X];
    widen_pack(shift, load_pack<T, VEC>((const T *)x.first - before));
#pragma unroll
    for (int j = 0; j < VEC; j++) shift[j] = finite_guess(shift[j]);
  }
  const auto add = [&](const pack<T, VEC> &elements) {
    C v[VEC];
    widen_pack(v, elements);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      sum[0][j] += STATISTIC == OF_MAGNITUDES ? magnitude(v[j])
                   : STATISTIC == OF_SQUARES  ? v[j] * v[j]
                                              : v[j] - shift[j];
    }
  };
#pragma unroll 1
  for (int k = KEPT; k < strip.count; k += KEPT) {
    strip.template load<KEPT>(kept, k, x);
    if (a.chunks) strip.template leave<KEPT>(places, 0, k, kept);
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
      if (k + j < strip.count) add(kept[j]);
    }
  }
  strip.template load<KEPT>(kept, 0, x);
#pragma unroll
  for (int j = 0; j < KEPT; j++) {
    if (j < strip.count) add(kept[j]);
  }
  if constexpr (CENTERED) {
    if (strip.part == 0) strip.spread(shared[2], shift);
    strip.gather(sum, shared);
    strip.for_columns([&](int t) { shared[0][t] = strip.sum_of(shared[0], t) * one_over_n<C>(a); });
    C more[VEC];
    strip.look_up(more, shared[0]);
#pragma unroll
    for (int j = 0; j < VEC; j++) sum[0][j] = 0;
    const auto add_square = [&](const pack<T, VEC> &elements) {
      C v[VEC];
      widen_pack(v, elements);
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        const C deviation = (v[j] - shift[j]) - more[j];
        sum[0][j] += deviation * deviation;
      }
    };
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
      if (j < strip.count) add_square(kept[j]);
    }
#pragma unroll 1
    for (int k = KEPT; k < strip.count; k += 2) {
      strip.template load_rest<2>(others, k - KEPT, rest_of_x());
#pragma unroll
      for (int j = 0; j < 2; j++) {
        if (k + j < strip.count) add_square(others[j]);
      }
    }
    strip.gather(sum, shared + 1);
  } else {
    strip.gather(sum, shared);
  }
  strip.for_columns([&](int t) {
    const C all = strip.sum_of(shared[CENTERED], t);
    if constexpr (STATISTIC == OF_MAGNITUDES) {
      const row_scale<C> row = scale_by_sum<C>(all, a);
      shared[0][t] = row.first;
      shared[1][t] = row.scale;
    } else {
      row_scale<C> row = {};
      if constexpr (CENTERED) {
        row = scale_by_moments<C>((double)shared[2][t] + (double)shared[0][t], all, a);
        shared[1][t] = row.shift;
        shared[2][t] = row.offset;
        /* The rounded mean is the shift, and the offset what the rounding took. */
        if (a.at.mean) *strip.saved(a.at.mean, ONEPASS_ROLE_MEAN, t) = row.shift;
      } else {
        row.scale = scale_of_squares(all * one_over_n<C>(a), a);
      }
      shared[0][t] = row.scale;
      if (a.at.rstd) *strip.saved(a.at.rstd, ONEPASS_ROLE_RSTD, t) = row.scale;
    }
  });
  C scale[VEC], second[VEC], offset[VEC];
  strip.look_up(scale, shared[0]);
  if constexpr (STATISTIC != OF_SQUARES) strip.look_up(second, shared[1]);
  if constexpr (CENTERED) strip.look_up(offset, shared[2]);
  const moving y = strip.along(a.at.y, ONEPASS_ROLE_Y);
  const auto finish = [&](pack<T, VEC> *elements, int k) {
    C weight[STEP], bias[STEP];
    if constexpr (STATISTIC != OF_MAGNITUDES) {
      strip.load_weights(weight, a.at.weight, ONEPASS_ROLE_WEIGHT, k, 1);
      strip.load_weights(bias, a.at.bias, ONEPASS_ROLE_BIAS, k, 0);
    }
    strip.template visit<STEP>(k, y, k, [&](int i, char *to) {
      C v[VEC];
      widen_pack(v, elements[i]);
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if (STATISTIC == OF_MAGNITUDES) {
          v[j] = v[j] * scale[j] * second[j];
        } else {
          v[j] = CENTERED ? (v[j] - second[j]) * scale[j] + offset[j] : v[j] * scale[j];
          v[j] = v[j] * weight[i] + bias[i];
        }
      }
      store_pack((T *)to, narrow_pack<C, T, VEC>(v));
    });
  };
#pragma unroll
  for (int k = 0; k < KEPT; k += STEP) finish(kept + k, k);
#pragma unroll 1
  for (int k = KEPT; k < strip.count; k += STEP) {
    strip.template load_rest<STEP>(others, k - KEPT, rest_of_x());
    finish(others, k);
  }
}

template <class T, int STATISTIC, int VEC>
__device__ inline void columns_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int KEPT = COLUMNS_KEPT_BACKWARD;
  const bool ABS = STATISTIC == OF_MAGNITUDES, CENTERED = STATISTIC == OF_MOMENTS;
  const int SUMS = ABS ? 2 : CENTERED ? 3 : 1;
  /* Sums, then what is done with the columns; rstd and mean. */
  __shared__ __align__(16) C shared[SUMS + (CENTERED ? 2 : 1)][COLUMNS_BLOCK * VEC];
  extern __shared__ __align__(16) char places[];
  __shared__ column_starts starts;
  const column_strip<T, VEC, KEPT, 2> strip(a, starts);
  const auto rest_of_x = [&] { return strip.rest_of(a.at.x, ONEPASS_ROLE_X, places, 0); };
  const auto rest_of_dy = [&] { return strip.rest_of(a.at.dy, ONEPASS_ROLE_DY, places, 1); };
  const moving x = strip.along(a.at.x, ONEPASS_ROLE_X), dy = strip.along(a.at.dy, ONEPASS_ROLE_DY);
  C sums[SUMS][VEC], mean[VEC], rstd[VEC];
#pragma unroll
  for (int j = 0; j < VEC; j++) {
#pragma unroll
    for (int s = 0; s < SUMS; s++) sums[s][j] = 0;
    mean[j] = rstd[j] = 0;
    if (!strip.count) continue;
    const int t = strip.lane * VEC + j;
    if (CENTERED) mean[j] = *strip.saved(a.at.mean, ONEPASS_ROLE_MEAN, t);
    if (!ABS) rstd[j] = *strip.saved(a.at.rstd, ONEPASS_ROLE_RSTD, t);
  }
  pack<T, VEC> kept_x[KEPT], kept_dy[KEPT];
  C weight[KEPT];
  const auto load_weights = [&](int k) {
    if (!ABS) strip.load_weights(weight, a.at.weight, ONEPASS_ROLE_WEIGHT, k, 1);
  };
  const auto add = [&](int k) {
    load_weights(k);
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
      if (k + i >= strip.count) continue;
      C v[VEC], g[VEC];
      widen_pack(v, kept_x[i]);
      widen_pack(g, kept_dy[i]);
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if constexpr (ABS) {
          sums[0][j] += magnitude(v[j]);
          sums[1][j] += v[j] * g[j];
        } else {
          const C z = (CENTERED ? v[j] - mean[j] : v[j]) * rstd[j], by_weight = g[j] * weight[i];
          sums[0][j] += by_weight * z;
          if constexpr (CENTERED) {
            sums[1][j] += by_weight;
            sums[2][j] += z;
          }
        }
      }
    }
  };
#pragma unroll 1
  for (int k = KEPT; k < strip.count; k += KEPT) {
    strip.template load<KEPT>(kept_x, k, x);
    strip.template load<KEPT>(kept_dy, k, dy);
    if (a.chunks) {
      strip.template leave<KEPT>(places, 0, k, kept_x);
      strip.template leave<KEPT>(places, 1, k, kept_dy);
    }
    add(k);
  }
  strip.template load<KEPT>(kept_x, 0, x);
  strip.template load<KEPT>(kept_dy, 0, dy);
  add(0);
  if (!ABS && strip.part == 0) {
    strip.spread(shared[SUMS], rstd);
    if constexpr (CENTERED) strip.spread(shared[SUMS + 1], mean);
  }
  strip.gather(sums, shared);
  strip.for_columns([&](int t) {
    const C first = strip.sum_of(shared[0], t);
    if constexpr (ABS) {
      const row_gradient<C> row = gradient_by_sums<C>(first, strip.sum_of(shared[1], t), a);
      shared[0][t] = first_factor(row.denominator, row.far);
      shared[1][t] = row.scale;
      shared[2][t] = row.slope;
    } else if constexpr (CENTERED) {
      const row_gradient<C> row =
          gradient_by_moments<C>(strip.sum_of(shared[1], t), first, strip.sum_of(shared[2], t),
                                 shared[SUMS + 1][t], shared[SUMS][t], a);
      shared[0][t] = row.by_z;
      shared[1][t] = row.offset * row.by_z + row.constant;
    } else {
      shared[0][t] = gradient_by_moments<C>(0, first, 0, 0, shared[SUMS][t], a).by_z;
    }
  });
  /* Of z, if not of dy; a constant, or what dy is multiplied with next. */
  C by[VEC], then[VEC], slope[VEC];
  strip.look_up(by, shared[0]);
  if constexpr (STATISTIC != OF_SQUARES) strip.look_up(then, shared[1]);
  if constexpr (ABS) strip.look_up(slope, shared[2]);
  const moving dx = strip.along(a.at.dx, ONEPASS_ROLE_DX);
  const auto finish = [&](int k) {
    load_weights(k);
    strip.template visit<KEPT>(k, dx, k, [&](int i, char *to) {
      C v[VEC], g[VEC];
      widen_pack(v, kept_x[i]);
      widen_pack(g, kept_dy[i]);
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if constexpr (ABS) {
          const C sign = (C)((v[j] > 0) - (v[j] < 0));
          v[j] = g[j] * by[j] * then[j] - sign * slope[j];
        } else {
          const C z = (CENTERED ? v[j] - mean[j] : v[j]) * rstd[j], along_z = z * by[j];
          v[j] = g[j] * weight[i] * rstd[j] + (CENTERED ? along_z + then[j] : along_z);
        }
      }
      store_pack((T *)to, narrow_pack<C, T, VEC>(v));
    });
  };
  finish(0);
#pragma unroll 1
  for (int k = KEPT; k < strip.count; k += KEPT) {
    strip.template load_rest<KEPT>(kept_x, k - KEPT, rest_of_x());
    strip.template load_rest<KEPT>(kept_dy, k - KEPT, rest_of_dy());
    finish(k);
  }
}

#endif
