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

__device__ inline unsigned divide(unsigned n, const onepass_divider &d) {
  return d.by == 1 ? n : __umulhi(n, d.multiplier) >> d.shift;
}

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

/* ---- Runs: gather ---------------------------------------------------------------------------- */

/* Elements [0, length) of a run as slots. Slots [first, last) are read as they are, elements in [0, head)
 * and [tail, length) one by one. */
template <class T>
struct run_view {
  static const int VEC = vector_of<T>::count;
  int phase, length, first, last, head, tail;
  /* before, behind: how many elements may be read there. alike: the other tensors start at the same place
   * of their 16 bytes. */
  __device__ run_view(const T *x, int count, int64_t before, int64_t behind, bool alike) {
    phase = phase_of(x);
    length = count;
    const int slots = (int)((unsigned)(phase + length + VEC - 1) / VEC);
    first = phase > before;
    last = slots * VEC - phase - length > behind ? slots - 1 : slots;
    if (!alike || length == 0 || last <= first) {
      first = last = 0;
      head = tail = length;
    } else {
      head = first ? VEC - phase : 0;
      tail = last * VEC - phase < length ? last * VEC - phase : length;
    }
  }
  __device__ bool is_own(int slot) const { /* all of it */
    return slot * VEC >= phase && slot * VEC - phase + VEC <= length;
  }
  __device__ bool has(int at) const { return at >= 0 && at < length; }
};

template <class T, bool BACKWARD, bool FUSED>
__device__ inline void runs_gather(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = cell_sums<BACKWARD>::count;
  const int AHEAD = FUSED ? 2 : 4; /* slots that are loaded together */
  typedef plain_sums<C, SUMS> sums;
  __shared__ sums of_warps[2][CELLS_WARPS];
  const int team = a.team, lane = threadIdx.x % team;
  const unsigned unit = blockIdx.x * (CELLS_BLOCK / team) + threadIdx.x / team;
  const unsigned cell = a.segments == 1 ? unit : unit / (unsigned)a.segments;
  const unsigned segment = unit - cell * (unsigned)a.segments;
  const bool there = cell < a.batches * a.channels;
  const unsigned batch = there ? divide(cell, a.by_channels) : 0,
                 channel = there ? cell - batch * (unsigned)a.channels : 0;
  const int64_t begin = segment * a.slice, rest = a.positions - begin;
  const int length = there ? (int)(rest < a.slice ? rest : a.slice) : 0;
  const T *x = cell_of<T>(a.at.x, a, ONEPASS_ROLE_X, batch, channel) + begin;
  const T *dy = NULL, *residual = NULL;
  T *sum = NULL;
  bool alike = true;
  if (BACKWARD) {
    dy = cell_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, batch, channel) + begin;
    alike = phase_of(dy) == phase_of(x);
  }
  if (FUSED && !BACKWARD) {
    residual = cell_of<T>(a.at.residual, a, ONEPASS_ROLE_RESIDUAL, batch, channel) + begin;
    alike = phase_of(residual) == phase_of(x);
    if (a.at.sum) {
      sum = cell_of<T>(a.at.sum, a, ONEPASS_ROLE_SUM, batch, channel) + begin;
      alike = alike && phase_of(sum) == phase_of(x);
    }
  }
  const int64_t in_range = a.range_cells == 1 ? 0 : a.range_cells == a.channels ? channel : cell;
  const int64_t before = in_range * a.positions + begin;
  const run_view<T> view(x, length, before, a.range_cells * a.positions - before - length, alike);
  gather_numbers<C, 1> with;
  if (BACKWARD) {
    load_gather_numbers<T, FUSED>(a, batch, channel, with, 0);
  } else {
    with.about[0] = 0;
    if (sizeof(T) != 2 && length) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int at = i < length ? i : 0;
        with.about[0] += summed_at(x, residual, at, at);
      }
      with.about[0] = widen(narrow_to<T>::from(with.about[0] / 4));
    }
    if (FUSED && sum) { /* which may lie over what others still make their guess of */
      if (team > WARP) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
  bool again = true;
  for (int round = 0; again; round++) {
    sums mine[1];
    mine[0].clear();
    for (int start = view.first + lane; start < view.last; start += AHEAD * team) {
      pack<T, VEC> x_of[AHEAD], more_of[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        const int slot = start + k * team, at = slot * VEC - view.phase;
        if (slot >= view.last) continue;
        x_of[k] = load_pack<T, VEC>(x + at);
        if (BACKWARD) more_of[k] = load_pack<T, VEC>(dy + at);
        if (FUSED && !BACKWARD && residual) more_of[k] = load_pack<T, VEC>(residual + at);
      }
#pragma unroll(FUSED ? 1 : AHEAD)
      for (int k = 0; k < AHEAD; k++) {
        const int slot = start + k * team, at = slot * VEC - view.phase;
        if (slot >= view.last) break;
        pack<T, VEC> &x_now = x_of[FUSED ? 0 : k], &more_now = more_of[FUSED ? 0 : k];
        const bool own = view.is_own(slot);
        if (FUSED && !BACKWARD && residual) {
          x_now = summed(x_now, more_now);
          if (sum && own) store_pack(sum + at, x_now);
          if (sum && !own) {
#pragma unroll
            for (int j = 0; j < VEC; j++) {
              if (view.has(at + j)) sum[at + j] = x_now.v[j];
            }
          }
        }
        C v[VEC], g[VEC];
        widen_pack(v, x_now);
        if (BACKWARD) widen_pack(g, more_now);
        if (!own) { /* what neighbours have adds nothing */
#pragma unroll
          for (int j = 0; j < VEC; j++) {
            if (view.has(at + j)) continue;
            v[j] = with.about[0];
            if (BACKWARD) g[j] = 0;
          }
        }
        add_pack<BACKWARD, FUSED>(mine, v, g, with, a.activation);
        if (FUSED) {
          rotate(x_of);
          rotate(more_of);
        }
      }
    }
    for (int i = lane; i < view.head + length - view.tail; i += team) {
      const int at = i < view.head ? i : i - view.head + view.tail;
      C v[1] = {summed_at(x, residual, at, at)}, g[1] = {BACKWARD ? widen(dy[at]) : (C)0};
      if (FUSED && !BACKWARD && sum && residual) sum[at] = narrow_to<T>::from(v[0]);
      add_pack<BACKWARD, FUSED>(mine, v, g, with, a.activation);
    }
    const sums all = team > WARP ? sum_block(mine[0], of_warps[round]) : sum_lanes(mine[0], team);
    const int64_t part = (int64_t)batch * a.segments + segment;
    if constexpr (BACKWARD) {
      if (there && lane == 0) store_products(a, part, batch, channel, all);
      again = false;
    } else {
      const row_moments<C> found(all, with.about[0], 1 / (C)length, lossless<T>::SQUARES);
      bool once_more = there && found.lossy && round == 0;
      if (there && !once_more && lane == 0)
        store_moments(a, part, channel, (double)found.about + (double)found.more, found.squares);
      /* A team whose neighbours in its warp go on does the same again, with the same result. */
      again = team > WARP ? once_more : __any_sync(ALL_LANES, once_more);
      if (once_more) with.about[0] += found.more;
      if (FUSED && sum) {
        __threadfence_block(); /* what was written comes before what is read */
        x = sum;
        residual = NULL;
      }
    }
  }
}

/* ---- Runs: apply ----------------------------------------------------------------------------- */

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

/* A block has some slots of one range of cells that lie one after the other; what was read last comes
 * first, as it may still be in the cache. */
template <class T, bool BACKWARD, bool FUSED, int PACKS>
__device__ inline void runs_apply(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count;
  const C *befores = (const C *)a.before;
  const int64_t length = a.range_cells * a.positions;
  const unsigned pieces = (unsigned)a.apply_pieces;
  const unsigned block = gridDim.x - 1 - blockIdx.x, range = block / pieces;
  const unsigned first_of_range = range * (unsigned)a.range_cells,
                 batch = divide(first_of_range, a.by_channels);
  applied<T> to =
      applied_at<T, BACKWARD, FUSED>(a, batch, first_of_range - batch * (unsigned)a.channels);
  const int phase = phase_of(to.x);
  bool alike = phase_of(to.out) == phase;
  if (to.more) alike = alike && phase_of(to.more) == phase;
  if (FUSED && to.dsum) alike = alike && phase_of(to.dsum) == phase;
  if (FUSED && to.sum) alike = alike && phase_of(to.sum) == phase;
  /* The first position of the block's first slot, the cell it is in, and where there. */
  const int64_t position = (int64_t)(block % pieces) * (VEC * CELLS_BLOCK * PACKS) - phase;
  const int64_t first_cell = position <= 0            ? 0
                             : position <= 0x7fffffff ? divide((unsigned)position, a.by_positions)
                                                      : position / a.positions;
  const int inside = (int)(position - first_cell * a.positions), positions = (int)a.positions;
  const unsigned cell = first_of_range + (unsigned)first_cell;
  const int64_t left = length - position; /* positions from there to the end */
  to.x += position;
  to.out += position;
  if (to.more) to.more += position;
  if (FUSED && to.dsum) to.dsum += position;
  if (FUSED && to.sum) to.sum += position;
  pack<T, VEC> x_of[PACKS], more_of[PACKS], dsum_of[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; k++) {
    const int at = (int)(threadIdx.x + k * CELLS_BLOCK) * VEC;
    if (!alike || position + at < 0 || at + VEC > left) continue;
    x_of[k] = load_pack<T, VEC>(to.x + at);
    if (BACKWARD || (FUSED && to.more)) more_of[k] = load_pack<T, VEC>(to.more + at);
    if (BACKWARD && FUSED && to.dsum) dsum_of[k] = load_pack<T, VEC>(to.dsum + at);
  }
#pragma unroll 1
  for (int k = 0; k < PACKS; k++) {
    const int at = (int)(threadIdx.x + k * CELLS_BLOCK) * VEC;
    if (at >= left) break;
    if (!alike || position + at < 0 || at + VEC > left) { /* the ends of a range */
#pragma unroll 1
      for (int i = at; i < at + VEC; i++) {
        if (position + i < 0 || i >= left) continue;
        const unsigned of = cell + divide((unsigned)(inside + i), a.by_positions);
        apply_one<BACKWARD, FUSED>(a, to, numbers_at(a, of), i, i, i, i);
      }
    } else {
      results<BACKWARD, FUSED, C, VEC> all;
      if (FUSED && !BACKWARD && to.more) {
        x_of[0] = summed(x_of[0], more_of[0]);
        if (to.sum) store_pack(to.sum + at, x_of[0]);
      }
      widen_pack(all.v, x_of[0]);
      if (BACKWARD) widen_pack(all.g, more_of[0]);
      unsigned of = divide((unsigned)(inside + at), a.by_positions);
      int in_cell = inside + at - (int)of * positions;
      of += cell;
      unsigned number = numbers_at(a, of);
      cell_numbers<C> with = numbers_of<BACKWARD, T, C>(a, number);
      C before = BACKWARD && FUSED ? befores[number] : 0;
      if (in_cell + VEC <= positions) {
#pragma unroll
        for (int j = 0; j < VEC; j++) all.take(j, with, before);
      } else {
#pragma unroll 1
        for (int j = 0; j < VEC; j++, in_cell++) {
          if (in_cell == positions) {
            in_cell = 0;
            number = numbers_at(a, ++of);
            with = numbers_of<BACKWARD, T, C>(a, number);
            if (BACKWARD && FUSED) before = befores[number];
          }
          all.take(0, with, before);
          all.next();
        }
      }
      all.finish(a.activation);
      if (BACKWARD && FUSED && to.dsum) {
        C more[VEC];
        widen_pack(more, dsum_of[0]);
#pragma unroll
        for (int j = 0; j < VEC; j++) all.v[j] += more[j];
      }
      store_result(a, to.out + at, narrow_pack<C, T, VEC>(all.v));
    }
    rotate(x_of);
    if (BACKWARD || FUSED) rotate(more_of);
    if (BACKWARD && FUSED) rotate(dsum_of);
  }
}

/* ---- Lanes ----------------------------------------------------------------------------------- */

/* `team` lanes run across channels, VEC each; the other threads of a block share positions. */
template <class T, int VEC>
struct lanes_place {
  int lane, first, step; /* which positions of the block a thread has */
  int64_t channel, batch, begin, end;
  int64_t piece; /* of all batches */
  bool active;
  __device__ lanes_place(const cells_args &a, unsigned block, int64_t slice, unsigned pieces) {
    lane = threadIdx.x % a.team;
    first = threadIdx.x / a.team;
    step = CELLS_BLOCK / a.team;
    const unsigned strip = a.team * VEC, strips = ((unsigned)a.channels + strip - 1) / strip;
    const unsigned of_all = block / strips, of_batch = of_all % pieces;
    piece = of_all;
    channel = (int64_t)(block % strips) * strip + lane * VEC;
    batch = of_all / pieces;
    begin = of_batch * slice;
    end = begin + slice < a.positions ? begin + slice : a.positions;
    active = channel < a.channels;
  }
};

template <class T, int VEC, bool BACKWARD, bool FUSED>
__device__ inline void lanes_gather(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = cell_sums<BACKWARD>::count;
  const int AHEAD = FUSED || (BACKWARD && VEC == 8) ? 2 : 4;
  __shared__ C shared[SUMS][CELLS_WARPS][WARP * VEC];
  __shared__ C abouts[WARP * VEC];
  const lanes_place<T, VEC> at(a, blockIdx.x, a.slice, (unsigned)a.segments);
  const T *x = cell_of<T>(a.at.x, a, ONEPASS_ROLE_X, at.batch, at.channel);
  int64_t x_step = a.stride[ONEPASS_ROLE_X][ONEPASS_OF_POSITIONS];
  const int64_t dy_step = a.stride[ONEPASS_ROLE_DY][ONEPASS_OF_POSITIONS],
                residual_step = a.stride[ONEPASS_ROLE_RESIDUAL][ONEPASS_OF_POSITIONS],
                sum_step = a.stride[ONEPASS_ROLE_SUM][ONEPASS_OF_POSITIONS];
  const T *dy = BACKWARD ? cell_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, at.batch, at.channel) : NULL;
  const T *residual = NULL;
  T *sum = NULL;
  if (FUSED && !BACKWARD && a.at.residual) {
    residual = cell_of<T>(a.at.residual, a, ONEPASS_ROLE_RESIDUAL, at.batch, at.channel);
    if (a.at.sum) sum = cell_of<T>(a.at.sum, a, ONEPASS_ROLE_SUM, at.batch, at.channel);
  }
  gather_numbers<C, VEC> with;
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    with.about[j] = with.scale[j] = with.bias[j] = 0;
    if (BACKWARD && at.active) load_gather_numbers<T, FUSED>(a, at.batch, at.channel + j, with, j);
  }
  if (!BACKWARD && sizeof(T) != 2 && at.active) {
#pragma unroll
    for (int j = 0; j < VEC; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int64_t p = at.begin + i < at.end ? at.begin + i : at.begin;
        with.about[j] +=
            summed_at(x + j, residual ? residual + j : NULL, p * x_step, p * residual_step);
      }
      with.about[j] = widen(narrow_to<T>::from(with.about[j] / 4));
    }
  }
  if (FUSED && sum) __syncthreads(); /* it may lie over what others still make their guess of */
  const int outputs = a.team * VEC;  /* a thread finishes one channel of the strip */
  bool again = true;
  for (int round = 0; again; round++) {
    plain_sums<C, SUMS> mine[VEC];
#pragma unroll
    for (int j = 0; j < VEC; j++) mine[j].clear();
    for (int64_t start = at.begin + at.first; at.active && start < at.end;
         start += AHEAD * at.step) {
      pack<T, VEC> x_of[AHEAD], more_of[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        const int64_t p = start + k * at.step;
        if (p >= at.end) continue;
        x_of[k] = load_pack<T, VEC>(x + p * x_step);
        if (BACKWARD) more_of[k] = load_pack<T, VEC>(dy + p * dy_step);
        if (FUSED && !BACKWARD && residual)
          more_of[k] = load_pack<T, VEC>(residual + p * residual_step);
      }
#pragma unroll(FUSED ? 1 : AHEAD)
      for (int k = 0; k < AHEAD; k++) {
        const int64_t p = start + k * at.step;
        if (p >= at.end) break;
        pack<T, VEC> &x_now = x_of[FUSED ? 0 : k], &more_now = more_of[FUSED ? 0 : k];
        if (FUSED && !BACKWARD && residual) {
          x_now = summed(x_now, more_now);
          if (sum) store_pack(sum + p * sum_step, x_now);
        }
        C v[VEC], g[VEC];
        widen_pack(v, x_now);
        if (BACKWARD) widen_pack(g, more_now);
        add_pack<BACKWARD, FUSED>(mine, v, g, with, a.activation);
        if (FUSED) {
          rotate(x_of);
          rotate(more_of);
        }
      }
    }
    /* The lanes of a warp that have the same channels, then the warps. */
#pragma unroll 1
    for (int mask = WARP / 2; mask >= a.team; mask /= 2) {
#pragma unroll
      for (int j = 0; j < VEC; j++) mine[j].merge(mine[j].of_lane(mask));
    }
    if (threadIdx.x % WARP < a.team) {
#pragma unroll
      for (int j = 0; j < VEC; j++) {
#pragma unroll
        for (int i = 0; i < SUMS; i++)
          shared[i][threadIdx.x / WARP][j * a.team + at.lane] = mine[j].v[i];
      }
    }
    __syncthreads();
    const int j = threadIdx.x / a.team; /* of the lane's channels, the one to finish */
    const int64_t channel = at.channel + j;
    const bool finishes = (int)threadIdx.x < outputs && at.active;
    plain_sums<C, SUMS> all;
    all.clear();
    if (finishes) {
#pragma unroll
      for (int warp = 0; warp < CELLS_WARPS; warp++) {
#pragma unroll
        for (int i = 0; i < SUMS; i++) all.v[i] += shared[i][warp][threadIdx.x];
      }
    }
    if constexpr (BACKWARD) {
      if (finishes) store_products(a, at.piece, at.batch, channel, all);
      again = false;
    } else {
      C about = 0;
      if (round > 0) {
        if (finishes) about = abouts[threadIdx.x];
      } else {
        if (at.first == 0 && at.active) {
#pragma unroll
          for (int i = 0; i < VEC; i++) abouts[i * a.team + at.lane] = with.about[i];
        }
        __syncthreads();
        if (finishes) about = abouts[threadIdx.x];
      }
      const row_moments<C> found(all, about, 1 / (C)(at.end - at.begin), lossless<T>::SQUARES);
      const bool once_more = finishes && found.lossy && round == 0;
      if (finishes && !once_more)
        store_moments(a, at.piece, channel, (double)found.about + (double)found.more,
                      found.squares);
      if (once_more) abouts[threadIdx.x] = about + found.more;
      again = __syncthreads_or(once_more);
#pragma unroll
      for (int i = 0; i < VEC; i++) {
        if (again && at.active) with.about[i] = abouts[i * a.team + at.lane];
      }
      if (FUSED && sum) {
        __threadfence_block(); /* what was written comes before what is read */
        x = sum;
        x_step = sum_step;
        residual = NULL;
      }
    }
  }
}

template <class T, int VEC, bool BACKWARD, bool FUSED>
__device__ inline void lanes_apply(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  /* Positions that are loaded together: as many as there are registers for. */
  const int AHEAD = BACKWARD && FUSED && VEC == 8 ? 1 : FUSED || BACKWARD ? 2 : 4;
  const lanes_place<T, VEC> at(a, gridDim.x - 1 - blockIdx.x, a.apply_slice,
                               (unsigned)a.apply_pieces);
  if (!at.active) return;
  const applied<T> to = applied_at<T, BACKWARD, FUSED>(a, at.batch, at.channel);
  const int64_t
      x_step =
          a.stride[FUSED && a.reads_sum ? ONEPASS_ROLE_SUM : ONEPASS_ROLE_X][ONEPASS_OF_POSITIONS],
      more_step =
          a.stride[BACKWARD ? ONEPASS_ROLE_DY : ONEPASS_ROLE_RESIDUAL][ONEPASS_OF_POSITIONS],
      out_step = a.stride[BACKWARD ? ONEPASS_ROLE_DX : ONEPASS_ROLE_Y][ONEPASS_OF_POSITIONS],
      dsum_step = a.stride[ONEPASS_ROLE_DSUM][ONEPASS_OF_POSITIONS],
      sum_step = a.stride[ONEPASS_ROLE_SUM][ONEPASS_OF_POSITIONS];
  const int64_t number = (a.groups ? at.batch * a.channels : 0) + at.channel;
  cell_numbers<C> with[VEC];
  C before[VEC];
  if (!BACKWARD && a.direct) {
#pragma unroll 1
    for (int j = 0; j < VEC; j++) {
      with[0] = numbers_of<BACKWARD, T, C>(a, number + j);
      rotate(with);
    }
  } else {
#pragma unroll
    for (int j = 0; j < VEC; j++) with[j] = ((const cell_numbers<C> *)a.numbers)[number + j];
  }
#pragma unroll
  for (int j = 0; j < VEC; j++)
    before[j] = BACKWARD && FUSED ? ((const C *)a.before)[number + j] : 0;
  for (int64_t start = at.begin + at.first; start < at.end; start += AHEAD * at.step) {
    pack<T, VEC> x_of[AHEAD], more_of[AHEAD], dsum_of[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int64_t p = start + k * at.step;
      if (p >= at.end) continue;
      x_of[k] = load_pack<T, VEC>(to.x + p * x_step);
      if (BACKWARD || (FUSED && to.more)) more_of[k] = load_pack<T, VEC>(to.more + p * more_step);
      if (BACKWARD && FUSED && to.dsum) dsum_of[k] = load_pack<T, VEC>(to.dsum + p * dsum_step);
    }
#pragma unroll(FUSED ? 1 : AHEAD)
    for (int k = 0; k < AHEAD; k++) {
      const int64_t p = start + k * at.step;
      if (p >= at.end) break;
      results<BACKWARD, FUSED, C, VEC> all;
      if (FUSED && !BACKWARD && to.more) {
        x_of[0] = summed(x_of[0], more_of[0]);
        if (to.sum) store_pack(to.sum + p * sum_step, x_of[0]);
      }
      widen_pack(all.v, x_of[FUSED ? 0 : k]);
      if (BACKWARD) widen_pack(all.g, more_of[FUSED ? 0 : k]);
#pragma unroll
      for (int j = 0; j < VEC; j++) all.take(j, with[j], before[j]);
      all.finish(a.activation);
      if (BACKWARD && FUSED && to.dsum) {
        C more[VEC];
        widen_pack(more, dsum_of[0]);
#pragma unroll
        for (int j = 0; j < VEC; j++) all.v[j] += more[j];
      }
      store_result(a, to.out + p * out_step, narrow_pack<C, T, VEC>(all.v));
      if (FUSED) {
        rotate(x_of);
        rotate(more_of);
        if (BACKWARD) rotate(dsum_of);
      }
    }
  }
}

/* ---- Any strides: a block takes cell after cell, element by element -------------------------- */

/* Where an element of a cell is in x, in what is added to it or dy, in sum or dsum, and in the result. */
struct element_offsets {
  int64_t x, more, beside, out;
  __device__ element_offsets(const cells_args &a, int64_t position, int x_role, int more_role,
                             int beside_role, int out_role) {
    x = more = beside = out = 0;
#pragma unroll 1
    for (int axis = a.spatial.ndim - 1; axis >= 0; axis--) {
      const int64_t left = axis ? position / a.spatial.size[axis] : 0,
                    here = position - left * a.spatial.size[axis];
      x += here * a.spatial.stride[x_role][axis];
      more += here * a.spatial.stride[more_role][axis];
      beside += here * a.spatial.stride[beside_role][axis];
      out += here * a.spatial.stride[out_role][axis];
      position = left;
    }
  }
};

template <class T, bool BACKWARD>
__device__ inline void any_gather(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = cell_sums<BACKWARD>::count;
  __shared__ plain_sums<C, SUMS> of_warps[2][CELLS_WARPS];
  for (int64_t cell = blockIdx.x; cell < a.batches * a.channels; cell += gridDim.x) {
    const int64_t batch = cell / a.channels, channel = cell % a.channels;
    const T *x = cell_of<T>(a.at.x, a, ONEPASS_ROLE_X, batch, channel);
    const T *dy = BACKWARD ? cell_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, batch, channel) : NULL;
    const T *residual = NULL;
    T *sum = NULL;
    if (!BACKWARD && a.at.residual) {
      residual = cell_of<T>(a.at.residual, a, ONEPASS_ROLE_RESIDUAL, batch, channel);
      if (a.at.sum) sum = cell_of<T>(a.at.sum, a, ONEPASS_ROLE_SUM, batch, channel);
    }
    int x_role = ONEPASS_ROLE_X;
    gather_numbers<C, 1> with;
    if (BACKWARD) {
      load_gather_numbers<T, true>(a, batch, channel, with, 0);
    } else {
      with.about[0] = summed_at(x, residual, 0, 0);
    }
    __syncthreads(); /* all have their guess, and the sums of the cell before have been read */
    bool again = true;
    for (int round = 0; again; round++) {
      plain_sums<C, SUMS> mine[1];
      mine[0].clear();
      for (int64_t i = threadIdx.x; i < a.positions; i += CELLS_BLOCK) {
        const element_offsets at(a, i, x_role, BACKWARD ? ONEPASS_ROLE_DY : ONEPASS_ROLE_RESIDUAL,
                                 ONEPASS_ROLE_SUM, ONEPASS_ROLE_SUM);
        C v[1] = {summed_at(x, residual, at.x, at.more)},
          g[1] = {BACKWARD ? widen(dy[at.more]) : (C)0};
        if (!BACKWARD && sum && residual) sum[at.out] = narrow_to<T>::from(v[0]);
        add_pack<BACKWARD, true>(mine, v, g, with, a.activation);
      }
      const plain_sums<C, SUMS> all = sum_block(mine[0], of_warps[round]);
      if constexpr (BACKWARD) {
        if (threadIdx.x == 0) store_products(a, batch, batch, channel, all);
        again = false;
      } else {
        const row_moments<C> found(all, with.about[0], 1 / (C)a.positions);
        again = found.lossy && round == 0;
        if (!again && threadIdx.x == 0)
          store_moments(a, batch, channel, (double)found.about + (double)found.more, found.squares);
        with.about[0] += found.more;
        if (sum) x = sum, x_role = ONEPASS_ROLE_SUM, residual = NULL;
      }
    }
  }
}

template <class T, bool BACKWARD>
__device__ inline void any_apply(const cells_args &a) {
  for (int64_t cell = blockIdx.x; cell < a.batches * a.channels; cell += gridDim.x) {
    const int64_t batch = cell / a.channels, channel = cell % a.channels;
    const applied<T> to = applied_at<T, BACKWARD, true>(a, batch, channel);
    const int64_t number = a.groups ? cell : channel;
    for (int64_t i = threadIdx.x; i < a.positions; i += CELLS_BLOCK) {
      const element_offsets at(a, i, a.reads_sum ? ONEPASS_ROLE_SUM : ONEPASS_ROLE_X,
                               BACKWARD ? ONEPASS_ROLE_DY : ONEPASS_ROLE_RESIDUAL,
                               BACKWARD ? ONEPASS_ROLE_DSUM : ONEPASS_ROLE_SUM,
                               BACKWARD ? ONEPASS_ROLE_DX : ONEPASS_ROLE_Y);
      apply_one<BACKWARD, true>(a, to, number, at.x, at.more, at.beside, at.out);
    }
  }
}

/* ---- Merge ----------------------------------------------------------------------------------- */

__device__ inline double elements_of_part(const cells_args &a, int64_t segment) {
  return (double)(segment + 1 < a.segments ? a.slice : a.positions - segment * a.slice);
}

/* z as in channel_scale, but with the saved mean and rstd; dx = g * weight * rstd + z * by_z + constant. */
struct row_slopes {
  double offset, by_z, constant;
  __device__ row_slopes(const cells_args &a, double rstd, double sum, double dot, double of_z) {
    offset = by_z = constant = 0;
    if (a.given) return;
    offset = -of_z * a.one_over_n;
    by_z = -rstd * (dot + offset * sum) * a.one_over_n;
    constant = -rstd * sum * a.one_over_n;
  }
};

template <class T, class C>
__device__ inline void store_backward(const cells_args &a, int64_t number, int64_t channel, C mean,
                                      C rstd, const row_slopes &row) {
  const C weight = channel_number<T>(a.at.weight, a, ONEPASS_ROLE_WEIGHT, channel, 1),
          bias = channel_number<T>(a.at.bias, a, ONEPASS_ROLE_BIAS, channel, 0);
  const cell_numbers<C> with = {mean, (C)(row.by_z * rstd), rstd * weight,
                                (C)(row.by_z * row.offset + row.constant)};
  ((cell_numbers<C> *)a.numbers)[number] = with;
  if (a.before) ((C *)a.before)[number] = (C)(row.offset * weight + bias);
}

template <class C>
__device__ inline void save_row(const cells_args &a, int64_t batch, int64_t row, double mean,
                                C rstd) {
  if (a.at.mean) *cell_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, batch, row) = (C)mean;
  if (a.at.rstd) *cell_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, batch, row) = rstd;
}

template <class T>
__device__ inline void move_running(const cells_args &a, int64_t channel, double mean,
                                    double variance) {
  const double old_mean =
                   channel_number<T>(a.at.running_mean, a, ONEPASS_ROLE_RUNNING_MEAN, channel, 0),
               old_variance =
                   channel_number<T>(a.at.running_var, a, ONEPASS_ROLE_RUNNING_VAR, channel, 0);
  set_channel_number<T>(a.at.running_mean, a, ONEPASS_ROLE_RUNNING_MEAN, channel,
                        old_mean + a.momentum * (mean - old_mean));
  set_channel_number<T>(a.at.running_var, a, ONEPASS_ROLE_RUNNING_VAR, channel,
                        old_variance + a.momentum * (variance - old_variance));
}

__device__ inline double unbiased(const cells_args &a, double variance) {
  return variance * (double)a.row_elements / (double)(a.row_elements - 1);
}

/* group_norm: `merge_team` lanes have a row. */
template <class T>
__device__ inline void groups_merge_forward(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int team = a.merge_team, lane = threadIdx.x % team;
  const int64_t row = (int64_t)blockIdx.x * (CELLS_BLOCK / team) + threadIdx.x / team;
  const bool there = row < a.batches * a.groups;
  const int64_t batch = (unsigned)row / (unsigned)a.groups, group = row - batch * a.groups,
                width = a.group_channels;
  const double *sums =
      (const double *)a.sums + (batch * a.segments * a.channels + group * width) * 2;
  const int64_t parts = there ? width * a.segments : 0; /* segment by segment */
  plain_sums<double, 2> mine;
  plain_sums<double, 1> apart;
  mine.clear();
  apart.clear();
#pragma unroll 2
  for (int64_t i = lane; i < parts; i += team) {
    const unsigned segment = (unsigned)i / (unsigned)width;
    const double *part = sums + (segment * a.channels + (i - segment * width)) * 2;
    mine.v[0] += part[0] * elements_of_part(a, segment);
    mine.v[1] += part[1];
  }
  mine = sum_lanes(mine, team);
  double mean = mine.v[0] * a.one_over_n;
#pragma unroll 2
  for (int64_t i = lane; i < parts; i += team) {
    const unsigned segment = (unsigned)i / (unsigned)width;
    const double *part = sums + (segment * a.channels + (i - segment * width)) * 2;
    apart.v[0] += (part[0] - mean) * (part[0] - mean) * elements_of_part(a, segment);
  }
  const double squares = mine.v[1] + sum_lanes(apart, team).v[0];
  double variance = squares * a.one_over_n;
  if (!there) return;
  if (a.given) { /* a group is a channel */
    mean = channel_number<T>(a.at.running_mean, a, ONEPASS_ROLE_RUNNING_MEAN, group, 0);
    variance = channel_number<T>(a.at.running_var, a, ONEPASS_ROLE_RUNNING_VAR, group, 0);
  }
  const channel_scale<C> result(a, mean, variance);
#pragma unroll 1
  for (int64_t i = lane; i < width; i += team)
    ((cell_numbers<C> *)a.numbers)[batch * a.channels + group * width + i] =
        forward_numbers<T>(a, group * width + i, result);
  if (lane != 0) return;
  save_row(a, batch, group, mean, result.scale);
  if (a.moves) {
    a.rows[row * 2] = mean;
    a.rows[row * 2 + 1] = unbiased(a, variance);
  }
}

/* `merge_cell` of these lanes have a cell at a time. What is left of a cell's sums for dweight and dbias
 * takes the place of those of its first segment. */
template <class T>
__device__ inline void groups_merge_backward(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int team = a.merge_team, lane = threadIdx.x % team;
  const int of_cell = a.merge_cell, within = lane % of_cell, at_once = team / of_cell;
  const int64_t row = (int64_t)blockIdx.x * (CELLS_BLOCK / team) + threadIdx.x / team;
  const bool there = row < a.batches * a.groups;
  const int64_t batch = (unsigned)row / (unsigned)a.groups, group = row - batch * a.groups,
                width = a.group_channels;
  C *sums = (C *)a.sums + (batch * a.segments * a.channels + group * width) * 3;
  plain_sums<double, 3> mine;
  mine.clear();
  for (int64_t first = 0; a.segments && first < width; first += at_once) {
    const int64_t i = first + lane / of_cell;
    plain_sums<double, 3> cell;
    cell.clear();
    if (there && i < width) {
#pragma unroll 2
      for (int64_t segment = within; segment < a.segments; segment += of_cell) {
#pragma unroll
        for (int k = 0; k < 3; k++) cell.v[k] += sums[(segment * a.channels + i) * 3 + k];
      }
    }
    cell = sum_lanes(cell, of_cell);
    if (!there || i >= width || within != 0) continue;
    const double weight =
        channel_number<T>(a.at.weight, a, ONEPASS_ROLE_WEIGHT, group * width + i, 1);
    mine.v[0] += weight * cell.v[0];
    mine.v[1] += weight * cell.v[1];
    mine.v[2] += cell.v[2];
    sums[i * 3] = (C)cell.v[0];
    sums[i * 3 + 1] = (C)cell.v[1];
  }
  mine = sum_lanes(mine, team);
  __syncwarp();
  if (!there) return;
  const C mean = *cell_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, batch, group),
          rstd = *cell_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, batch, group);
  const row_slopes slopes(a, rstd, mine.v[0], mine.v[1], mine.v[2]);
#pragma unroll 1
  for (int64_t i = lane; i < width; i += team) {
    store_backward<T>(a, batch * a.channels + group * width + i, group * width + i, mean, rstd,
                      slopes);
    if (a.segments)
      sums[i * 3 + 1] = (C)((double)sums[i * 3 + 1] + slopes.offset * (double)sums[i * 3]);
  }
}

/* The sums of the threads of a block that have the same channel: some lanes run across channels. */
template <class S>
__device__ inline S sum_across(S mine, S (&shared)[CELLS_WARPS][MERGE_LANES]) {
#pragma unroll
  for (int mask = MERGE_LANES; mask < WARP; mask *= 2) mine.merge(mine.of_lane(mask));
  if (threadIdx.x % WARP < MERGE_LANES) shared[threadIdx.x / WARP][threadIdx.x % WARP] = mine;
  __syncthreads();
  mine = shared[0][threadIdx.x % MERGE_LANES];
#pragma unroll
  for (int warp = 1; warp < CELLS_WARPS; warp++)
    mine.merge(shared[warp][threadIdx.x % MERGE_LANES]);
  return mine;
}

/* batch_norm: a row is a channel. */
template <class T>
__device__ inline void channels_merge_forward(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<double, 2> of_sums[CELLS_WARPS][MERGE_LANES];
  __shared__ plain_sums<double, 1> of_apart[CELLS_WARPS][MERGE_LANES];
  const int first = threadIdx.x / MERGE_LANES;
  const int64_t channel = (int64_t)blockIdx.x * MERGE_LANES + threadIdx.x % MERGE_LANES;
  const double *sums = (const double *)a.sums + channel * 2;
  const int64_t parts = channel < a.channels ? a.parts : 0;
  plain_sums<double, 2> mine;
  plain_sums<double, 1> apart;
  mine.clear();
  apart.clear();
#pragma unroll 4
  for (int64_t p = first; p < parts; p += CELLS_BLOCK / MERGE_LANES) {
    const double *part = sums + p * a.channels * 2;
    mine.v[0] += part[0] * elements_of_part(a, (unsigned)p % (unsigned)a.segments);
    mine.v[1] += part[1];
  }
  mine = sum_across(mine, of_sums);
  double mean = mine.v[0] * a.one_over_n;
#pragma unroll 4
  for (int64_t p = first; p < parts; p += CELLS_BLOCK / MERGE_LANES) {
    const double distance = sums[p * a.channels * 2] - mean;
    apart.v[0] += distance * distance * elements_of_part(a, (unsigned)p % (unsigned)a.segments);
  }
  const double squares = mine.v[1] + sum_across(apart, of_apart).v[0];
  double variance = squares * a.one_over_n;
  if (channel >= a.channels || first != 0) return;
  if (a.given) {
    mean = channel_number<T>(a.at.running_mean, a, ONEPASS_ROLE_RUNNING_MEAN, channel, 0);
    variance = channel_number<T>(a.at.running_var, a, ONEPASS_ROLE_RUNNING_VAR, channel, 0);
  }
  const channel_scale<C> result(a, mean, variance);
  ((cell_numbers<C> *)a.numbers)[channel] = forward_numbers<T>(a, channel, result);
  save_row(a, 0, channel, mean, result.scale);
  if (a.moves) move_running<T>(a, channel, mean, unbiased(a, variance));
}

template <class T>
__device__ inline void channels_merge_backward(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<double, 3> of_sums[CELLS_WARPS][MERGE_LANES];
  const int first = threadIdx.x / MERGE_LANES;
  const int64_t channel = (int64_t)blockIdx.x * MERGE_LANES + threadIdx.x % MERGE_LANES;
  const C *sums = (const C *)a.sums + channel * 3;
  const int64_t parts = channel < a.channels ? a.parts : 0;
  plain_sums<double, 3> mine;
  mine.clear();
#pragma unroll 4
  for (int64_t p = first; p < parts; p += CELLS_BLOCK / MERGE_LANES) {
#pragma unroll
    for (int k = 0; k < 3; k++) mine.v[k] += sums[p * a.channels * 3 + k];
  }
  mine = sum_across(mine, of_sums);
  if (channel >= a.channels || first != 0) return;
  const C mean = *cell_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, 0, channel),
          rstd = *cell_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, 0, channel);
  const double weight = channel_number<T>(a.at.weight, a, ONEPASS_ROLE_WEIGHT, channel, 1);
  const row_slopes slopes(a, rstd, weight * mine.v[0], weight * mine.v[1], mine.v[2]);
  store_backward<T>(a, channel, channel, mean, rstd, slopes);
  set_channel_number<T>(a.at.dweight, a, ONEPASS_ROLE_DWEIGHT, channel,
                        mine.v[1] + slopes.offset * mine.v[0]);
  set_channel_number<T>(a.at.dbias, a, ONEPASS_ROLE_DBIAS, channel, mine.v[0]);
}

/* group_norm: what is summed over batches. */
template <class T, bool BACKWARD>
__device__ inline void sum_batches(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<double, 2> of_sums[CELLS_WARPS][MERGE_LANES];
  const int first = threadIdx.x / MERGE_LANES;
  const int64_t channel = (int64_t)blockIdx.x * MERGE_LANES + threadIdx.x % MERGE_LANES;
  const int64_t batches = channel < a.channels ? a.batches : 0;
  plain_sums<double, 2> mine;
  mine.clear();
#pragma unroll 4
  for (int64_t batch = first; batch < batches; batch += CELLS_BLOCK / MERGE_LANES) {
    if (BACKWARD) {
      if (!a.segments) continue;
      const C *sums = (const C *)a.sums + (batch * a.segments * a.channels + channel) * 3;
      mine.v[0] += sums[0];
      mine.v[1] += sums[1];
    } else {
      mine.v[0] += a.rows[(batch * a.channels + channel) * 2];
      mine.v[1] += a.rows[(batch * a.channels + channel) * 2 + 1];
    }
  }
  mine = sum_across(mine, of_sums);
  if (channel >= a.channels || first != 0) return;
  if (BACKWARD) {
    set_channel_number<T>(a.at.dweight, a, ONEPASS_ROLE_DWEIGHT, channel, mine.v[1]);
    set_channel_number<T>(a.at.dbias, a, ONEPASS_ROLE_DBIAS, channel, mine.v[0]);
  } else {
    move_running<T>(a, channel, mine.v[0] / (double)a.batches, mine.v[1] / (double)a.batches);
  }
}

#endif
