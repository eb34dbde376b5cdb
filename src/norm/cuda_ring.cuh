/* Rows that fit in the registers of a block and wait their turn in its shared memory.
 *
 * A block stays for many rows, row b, b + blocks, ... for block b. Thread t has the packs t, t + threads,
 * ... of each, at most PACKS of them, and asks for those of the rows to come while it works on one. All
 * rows of a block start at the same place of a sector, so a thread has the same columns of all of them:
 * weight and bias are read once, and dweight and dbias are summed in registers. Rows are on one axis.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_RING_CUH
#define ONEPASS_NORM_CUDA_RING_CUH

#include "norm/cuda_slices.cuh"

/* Rows under way and being worked on; launch_cuda.c knows them, too. */
enum { RING_MOST_THREADS = 512, RING_FEW_THREADS = 384, RING_FORWARD = 3, RING_BACKWARD = 2 };

template <class T, class W, bool MOMENTS, int PACKS>
__device__ inline void ring_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = MOMENTS ? 2 : 1;
  __shared__ plain_sums<C, SUMS> of_warps[2][RING_MOST_THREADS / WARP];
  extern __shared__ __align__(16) char places[];
  const thread_ring<T, PACKS, 1> ring(places, blockDim.x);
  const block_rows<T> x_rows(a, a.at.x, ONEPASS_ROLE_X), y_rows(a, a.at.y, ONEPASS_ROLE_Y);
  const slice_span<T> span(x_rows.first, (int)a.elements.count, a.aligned);
  const bool whole = ring.has_whole_packs(span);
  const int rows = x_rows.count;
  const auto ask = [&](int slot, int i) {
    if (i < rows) ring.ask(slot, 0, x_rows.at(i), span, whole);
    commit_copies();
  };
#pragma unroll
  for (int k = 0; k < RING_FORWARD; k++) ask(k, k);
  pack<W, VEC> weight[MOMENTS ? PACKS : 1], bias[MOMENTS ? PACKS : 1];
  if constexpr (MOMENTS) {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      weight[i] = weights_of<W, T>(a.at.weight, ring.position(i), span, 1);
      bias[i] = weights_of<W, T>(a.at.bias, ring.position(i), span, 0);
    }
  }
  int slot = 0, turn = 0;
  C guess = MOMENTS ? guess_mean(x_rows.first, a.elements.count) : 0;
  /* Two copies of each: barriers are outside of them, as not all warps of a block take the same. */
  const bool split = !SAVES_REGISTERS && whole;
  pack<T, VEC> x[PACKS];
  const auto gather = [&](const auto &mine_of) {
    plain_sums<C, SUMS> mine;
    mine.clear();
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      if (mine_of.touches(ring.position(i)))
        gather_forward<MOMENTS>(mine, x[i], ring.position(i), mine_of, guess);
      stay_packed(x[i]);
    }
    return mine;
  };
  const auto write = [&](T *y, const row_scale<C> &scale, const auto &mine_of) {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int at = ring.position(i), k = MOMENTS ? i : 0;
      if (!mine_of.touches(at)) continue;
      if (MOMENTS) stay_packed(weight[k]), stay_packed(bias[k]);
      store_span(y, apply_forward<MOMENTS, T, W>(x[i], weight[k], bias[k], scale), at, mine_of);
    }
  };
  for (int row = 0; row < rows; row++) {
    const C next_guess =
        MOMENTS && row + 1 < rows ? guess_mean(x_rows.at(row + 1), a.elements.count) : 0;
    wait_for_all_but<RING_FORWARD - 1>();
#pragma unroll
    for (int i = 0; i < PACKS; i++) x[i] = *ring.place(slot, 0, i);
    ask(slot, row + RING_FORWARD);
    row_scale<C> scale;
#pragma unroll 1
    for (bool again = false;; again = true) {
      const plain_sums<C, SUMS> mine = split ? gather(whole_span<T>(span)) : gather(span);
      const plain_sums<C, SUMS> sums = sum_block(mine, of_warps[turn]);
      turn ^= 1;
      if (find_scale<MOMENTS, T>(scale, sums, guess, again, a)) break;
    }
    if (MOMENTS && threadIdx.x == 0) save_moments<true>(scale, x_rows.number(row), a);
    if (split) {
      write(y_rows.at(row), scale, whole_span<T>(span));
    } else {
      write(y_rows.at(row), scale, span);
    }
    guess = next_guess;
    if (++slot == RING_FORWARD) slot = 0;
  }
}

template <class T, class W, bool MOMENTS, int PACKS>
__device__ inline void ring_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = MOMENTS ? 3 : 2;
  __shared__ plain_sums<C, SUMS> of_warps[2][RING_MOST_THREADS / WARP];
  extern __shared__ __align__(16) char places[];
  const thread_ring<T, PACKS, 2> ring(places, blockDim.x);
  const block_rows<T> x_rows(a, a.at.x, ONEPASS_ROLE_X), dy_rows(a, a.at.dy, ONEPASS_ROLE_DY),
      dx_rows(a, a.at.dx, ONEPASS_ROLE_DX);
  const block_rows<C> means(a, a.at.mean, ONEPASS_ROLE_MEAN),
      rstds(a, a.at.rstd, ONEPASS_ROLE_RSTD);
  const slice_span<T> span(x_rows.first, (int)a.elements.count, a.aligned);
  const bool whole = ring.has_whole_packs(span);
  const int rows = x_rows.count;
  const auto ask = [&](int slot, int i) {
    if (i < rows) {
      ring.ask(slot, 0, x_rows.at(i), span, whole);
      ring.ask(slot, 1, dy_rows.at(i), span, whole);
    }
    commit_copies();
  };
#pragma unroll
  for (int k = 0; k < RING_BACKWARD; k++) ask(k, k);
  pack<W, VEC> weight[MOMENTS ? PACKS : 1];
  C dweight[MOMENTS ? PACKS : 1][VEC], dbias[MOMENTS ? PACKS : 1][VEC];
  if constexpr (MOMENTS) {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      weight[i] = weights_of<W, T>(a.at.weight, ring.position(i), span, 1);
#pragma unroll
      for (int j = 0; j < VEC; j++) dweight[i][j] = dbias[i][j] = 0;
    }
  }
  int slot = 0, turn = 0;
  C mean = MOMENTS ? *means.first : 0, rstd = MOMENTS ? *rstds.first : 0;
  const bool split = !SAVES_REGISTERS && whole; /* as forward */
  pack<T, VEC> x[PACKS], dy[PACKS];
  const auto gather = [&](const auto &mine_of) {
    plain_sums<C, SUMS> mine;
    mine.clear();
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int at = ring.position(i), k = MOMENTS ? i : 0;
      if (mine_of.touches(at)) {
        x[i] = *ring.place(slot, 0, i);
        dy[i] = *ring.place(slot, 1, i);
        if (MOMENTS) stay_packed(weight[k]);
        gather_backward<MOMENTS>(mine, x[i], dy[i], weight[k], at, mine_of, mean, rstd);
      }
      stay_packed(x[i]);
      stay_packed(dy[i]);
    }
    return mine;
  };
  const auto write = [&](T *dx, const row_gradient<C> &gradient, const auto &mine_of) {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int at = ring.position(i), k = MOMENTS ? i : 0;
      if (!mine_of.touches(at)) continue;
      if (MOMENTS) stay_packed(weight[k]);
      const pack<T, VEC> out =
          apply_backward<MOMENTS, T, W>(x[i], dy[i], weight[k], gradient, dweight[k], dbias[k]);
      store_span(dx, out, at, mine_of);
    }
  };
  for (int row = 0; row < rows; row++) {
    const int next = row + 1 < rows ? row + 1 : row;
    const C next_mean = MOMENTS ? *means.at(next) : 0, next_rstd = MOMENTS ? *rstds.at(next) : 0;
    wait_for_all_but<RING_BACKWARD - 1>();
    const plain_sums<C, SUMS> mine = split ? gather(whole_span<T>(span)) : gather(span);
    ask(slot, row + RING_BACKWARD);
    const plain_sums<C, SUMS> sums = sum_block(mine, of_warps[turn]);
    turn ^= 1;
    const row_gradient<C> gradient = find_gradient<MOMENTS>(sums, mean, rstd, a);
    if (split) {
      write(dx_rows.at(row), gradient, whole_span<T>(span));
    } else {
      write(dx_rows.at(row), gradient, span);
    }
    mean = next_mean;
    rstd = next_rstd;
    if (++slot == RING_BACKWARD) slot = 0;
  }
  if constexpr (MOMENTS) store_parts<T>(dweight, dbias, blockIdx.x, 0, ring, span, a);
}

#endif
