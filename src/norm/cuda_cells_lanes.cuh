/* Cells whose channels lie side by side, as with channels last: each lane has some of them. And cells of any
 * strides. */
#ifndef ONEPASS_NORM_CUDA_CELLS_LANES_CUH
#define ONEPASS_NORM_CUDA_CELLS_LANES_CUH

#include "norm/cuda_cells.cuh"

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

/* Positions that are loaded together: as many as there are registers for. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
enum { LANES_AHEAD_OF_HALVES = 8 };
#else
enum { LANES_AHEAD_OF_HALVES = 4 };
#endif
template <int VEC, bool BACKWARD, bool FUSED>
struct lanes_ahead {
  static const int gathered =
      FUSED || (BACKWARD && VEC == 8) ? 2 : (BACKWARD || VEC < 8 ? 4 : LANES_AHEAD_OF_HALVES);
  static const int applied = BACKWARD ? (FUSED && VEC == 8 ? 1 : 2) : gathered;
};

template <class T, int VEC, bool BACKWARD, bool FUSED>
__device__ inline void lanes_gather(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = cell_sums<BACKWARD>::count;
  const int AHEAD = lanes_ahead<VEC, BACKWARD, FUSED>::gathered;
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
      with.about[j] = finite_guess(widen(narrow_to<T>::from(with.about[j] / 4)));
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
      if (once_more) abouts[threadIdx.x] = finite_guess(about + found.more);
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
  const int AHEAD = lanes_ahead<VEC, BACKWARD, FUSED>::applied;
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
      if (BACKWARD && FUSED && to.dsum) all.add(dsum_of[0]);
      store_result(a, to.out + p * out_step, narrow_pack<C, T, VEC>(all.v));
      if (FUSED) {
        rotate(x_of);
        rotate(more_of);
        if (BACKWARD) rotate(dsum_of);
      }
    }
  }
}

/* ---- Any strides: a block takes cell after cell, element by element, and adds up in double --- */

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
      x += here * a.spatial.stride[axis][x_role];
      more += here * a.spatial.stride[axis][more_role];
      beside += here * a.spatial.stride[axis][beside_role];
      out += here * a.spatial.stride[axis][out_role];
      position = left;
    }
  }
};

template <class T, bool BACKWARD>
__device__ inline void any_gather(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = cell_sums<BACKWARD>::count;
  __shared__ plain_sums<double, SUMS> of_warps[2][CELLS_WARPS];
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
      with.about[0] = finite_guess(summed_at(x, residual, 0, 0));
    }
    __syncthreads(); /* all have their guess, and the sums of the cell before have been read */
    bool again = true;
    for (int round = 0; again; round++) {
      plain_sums<double, SUMS> mine;
      mine.clear();
      for (int64_t i = threadIdx.x; i < a.positions; i += CELLS_BLOCK) {
        plain_sums<C, SUMS> one[1];
        one[0].clear();
        const element_offsets at(a, i, x_role, BACKWARD ? ONEPASS_ROLE_DY : ONEPASS_ROLE_RESIDUAL,
                                 ONEPASS_ROLE_SUM, ONEPASS_ROLE_SUM);
        C v[1] = {summed_at(x, residual, at.x, at.more)},
          g[1] = {BACKWARD ? widen(dy[at.more]) : (C)0};
        if (!BACKWARD && sum && residual) sum[at.out] = narrow_to<T>::from(v[0]);
        add_pack<BACKWARD, true>(one, v, g, with, a.activation);
        mine.merge(one[0]);
      }
      const plain_sums<double, SUMS> all = sum_block(mine, of_warps[round]);
      if constexpr (BACKWARD) {
        const plain_sums<C, SUMS> products = {{(C)all.v[0], (C)all.v[1], (C)all.v[2]}};
        if (threadIdx.x == 0) store_products(a, batch, batch, channel, products);
        again = false;
      } else {
        const row_moments<double> found(all, with.about[0], 1 / (double)a.positions);
        again = found.lossy && round == 0;
        if (!again && threadIdx.x == 0)
          store_moments(a, batch, channel, found.about + found.more, found.squares);
        with.about[0] = finite_guess((C)(found.about + found.more));
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

#endif
