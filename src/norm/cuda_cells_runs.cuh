/* Cells whose elements lie one after the other, as those of contiguous tensors: threads share a run. */
#ifndef ONEPASS_NORM_CUDA_CELLS_RUNS_CUH
#define ONEPASS_NORM_CUDA_CELLS_RUNS_CUH

#include "norm/cuda_cells.cuh"

/* ---- Gather ---------------------------------------------------------------------------------- */

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
      with.about[0] = finite_guess(widen(narrow_to<T>::from(with.about[0] / 4)));
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
      if (once_more) with.about[0] = finite_guess(with.about[0] + found.more);
      if (FUSED && sum) {
        __threadfence_block(); /* what was written comes before what is read */
        x = sum;
        residual = NULL;
      }
    }
  }
}

/* ---- Apply ----------------------------------------------------------------------------------- */

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
      if (BACKWARD && FUSED && to.dsum) all.add(dsum_of[0]);
      store_result(a, to.out + at, narrow_pack<C, T, VEC>(all.v));
    }
    rotate(x_of);
    if (BACKWARD || FUSED) rotate(more_of);
    if (BACKWARD && FUSED) rotate(dsum_of);
  }
}

#endif
