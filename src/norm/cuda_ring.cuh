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

/* Elements over a denominator, for magnitudes. Where one over it is not a normal number they are divided, and not
 * multiplied by two factors as elsewhere: rows of floats that start anywhere take up to 25 % longer that way (measured, not
 * understood). */
template <class C>
struct quotient_by {
  C denominator, scale;
  bool far;
  __device__ explicit quotient_by(C by) : denominator(by), scale(1 / by), far(!is_normal(scale)) {}
  template <class T, int VEC>
  __device__ pack<T, VEC> divide(const pack<T, VEC> &x) const {
    C v[VEC];
    widen_pack(v, x);
    if (far) {
#pragma unroll
      for (int j = 0; j < VEC; j++) v[j] /= denominator;
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) v[j] *= scale;
    }
    return narrow_pack<C, T, VEC>(v);
  }
};

template <class T, class W, bool MOMENTS, int PACKS>
__device__ inline void ring_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = MOMENTS ? 2 : 1;
  __shared__ plain_sums<C, SUMS> of_warps[2][RING_MOST_THREADS / WARP];
  extern __shared__ __align__(16) char places[];
  const thread_ring<T, PACKS, 1> ring(places, blockDim.x);
  const block_rows<T> x_rows(a, a.at.x, ONEPASS_ROLE_X), y_rows(a, a.at.y, ONEPASS_ROLE_Y);
  const slice_span<T> span(x_rows.first, (int)a.elements.count, a.aligned);
  const dealt_row<T> mine(span, blockDim.x, PACKS);
  const int rows = x_rows.count;
  const auto ask = [&](int slot, int row) {
    if (row < rows) ring.ask(slot, 0, x_rows.at(row), mine);
    commit_copies();
  };
#pragma unroll
  for (int k = 0; k < RING_FORWARD; k++) ask(k, k);
  waiting_weights<W, VEC> weight[MOMENTS ? PACKS : 1], bias[MOMENTS ? PACKS : 1];
  pack<W, 1> end_weight, end_bias;
  if constexpr (MOMENTS) {
    const auto column = [&](int i) { return ring.position(i) - span.begin; };
    load_together(weight, a.at.weight, 1, a.aligned, mine.whole, column);
    load_together(bias, a.at.bias, 0, a.aligned, mine.whole, column);
    if (mine.column >= 0) {
      end_weight = aligned_weights<W, 1>(a.at.weight, mine.column, 1);
      end_bias = aligned_weights<W, 1>(a.at.bias, mine.column, 0);
    }
  }
  pack<T, 1> end = {}, next_end = {};
  if (mine.column >= 0) end.v[0] = x_rows.first[mine.column];
  C guess = MOMENTS ? guess_mean(x_rows.first, a) : 0;
  int slot = 0, turn = 0;
  for (int row = 0; row < rows; row++) {
    C next_guess = 0; /* there before it is needed */
    if (row + 1 < rows) {
      if (MOMENTS) next_guess = guess_mean(x_rows.at(row + 1), a);
      if (mine.column >= 0) next_end.v[0] = x_rows.at(row + 1)[mine.column];
    }
    wait_for_all_but<RING_FORWARD - 1>();
    pack<T, VEC> x[PACKS];
#pragma unroll
    for (int i = 0; i < PACKS; i++) x[i] = *ring.place(slot, 0, i);
    ask(slot, row + RING_FORWARD);
    row_scale<C> scale;
    quotient_by<C> by(1);
#pragma unroll 1
    for (bool again = false;; again = true) {
      plain_sums<C, SUMS> sums;
      sums.clear();
      gather_dealt<MOMENTS>(sums, mine, x, end, guess);
      sums = sum_block(sums, of_warps[turn]);
      turn ^= 1;
      if constexpr (MOMENTS) {
        if (find_scale<MOMENTS, T>(scale, sums, guess, again, a)) break;
      } else {
        by = quotient_by<C>(denominator_of(sums.v[0] * share_of<C>(a), eps_of<C>(a), a));
        break;
      }
    }
    T *y = y_rows.at(row);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int k = MOMENTS ? i : 0;
      if (!mine.has(i)) continue;
      T *const to = y - span.begin + ring.position(i);
      if constexpr (MOMENTS) {
        store_streaming(to,
                        apply_forward<MOMENTS, T, W>(x[i], weight[k].get(), bias[k].get(), scale));
      } else {
        store_streaming(to, by.divide(x[i]));
      }
    }
    if (mine.column >= 0) {
      if constexpr (MOMENTS) {
        y[mine.column] = apply_forward<MOMENTS, T, W>(end, end_weight, end_bias, scale).v[0];
      } else {
        y[mine.column] = by.divide(end).v[0];
      }
    }
    if (MOMENTS && threadIdx.x == 0) save_moments<true>(scale, x_rows.number(row), a);
    guess = next_guess;
    end = next_end;
    if (++slot == RING_FORWARD) slot = 0;
  }
}

template <class T, class W, int STATISTIC, int PACKS>
__device__ inline void ring_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const bool WEIGHTS = STATISTIC != OF_MAGNITUDES, MOMENTS = STATISTIC == OF_MOMENTS;
  const int VEC = vector_of<T>::count, SUMS = sum_count<STATISTIC>::BACKWARD;
  __shared__ plain_sums<C, SUMS> of_warps[2][RING_MOST_THREADS / WARP];
  extern __shared__ __align__(16) char places[];
  const thread_ring<T, PACKS, 2> ring(places, blockDim.x);
  const block_rows<T> x_rows(a, a.at.x, ONEPASS_ROLE_X), dy_rows(a, a.at.dy, ONEPASS_ROLE_DY),
      dx_rows(a, a.at.dx, ONEPASS_ROLE_DX);
  const block_rows<C> means(a, a.at.mean, ONEPASS_ROLE_MEAN),
      rstds(a, a.at.rstd, ONEPASS_ROLE_RSTD);
  const slice_span<T> span(x_rows.first, (int)a.elements.count, a.aligned);
  const dealt_row<T> mine(span, blockDim.x, PACKS);
  const int rows = x_rows.count;
  const auto ask = [&](int slot, int row) {
    if (row < rows) {
      ring.ask(slot, 0, x_rows.at(row), mine);
      ring.ask(slot, 1, dy_rows.at(row), mine);
    }
    commit_copies();
  };
#pragma unroll
  for (int k = 0; k < RING_BACKWARD; k++) ask(k, k);
  waiting_weights<W, VEC> weight[WEIGHTS ? PACKS : 1];
  pack<W, 1> end_weight;
  C dweight[WEIGHTS ? PACKS : 1][VEC], dbias[WEIGHTS ? PACKS : 1][VEC];
  C end_dweight[1] = {0}, end_dbias[1] = {0};
  if constexpr (WEIGHTS) {
    load_together(weight, a.at.weight, 1, a.aligned, mine.whole,
                  [&](int i) { return ring.position(i) - span.begin; });
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
#pragma unroll
      for (int j = 0; j < VEC; j++) dweight[i][j] = dbias[i][j] = 0;
    }
    if (mine.column >= 0) end_weight = aligned_weights<W, 1>(a.at.weight, mine.column, 1);
  }
  pack<T, 1> end_x = {}, end_dy = {}, next_end_x = {}, next_end_dy = {};
  if (mine.column >= 0) {
    end_x.v[0] = x_rows.first[mine.column];
    end_dy.v[0] = dy_rows.first[mine.column];
  }
  C mean = MOMENTS ? saved_mean(means.first, a) : 0, rstd = WEIGHTS ? *rstds.first : 0;
  int slot = 0, turn = 0;
  for (int row = 0; row < rows; row++) {
    const int next = row + 1 < rows ? row + 1 : row; /* there before it is needed */
    const C next_mean = MOMENTS ? saved_mean(means.at(next), a) : 0,
            next_rstd = WEIGHTS ? *rstds.at(next) : 0;
    if (mine.column >= 0) {
      next_end_x.v[0] = x_rows.at(next)[mine.column];
      next_end_dy.v[0] = dy_rows.at(next)[mine.column];
    }
    wait_for_all_but<RING_BACKWARD - 1>();
    pack<T, VEC> x[PACKS], dy[PACKS];
    plain_sums<C, SUMS> sums;
    sums.clear();
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int k = WEIGHTS ? i : 0;
      x[i] = *ring.place(slot, 0, i);
      dy[i] = *ring.place(slot, 1, i);
      if (mine.has(i)) {
        gather_backward<STATISTIC>(sums, x[i], dy[i], weight[k].get(), mean, rstd);
      }
      stay_packed(x[i]);
      stay_packed(dy[i]);
    }
    if (mine.column >= 0) gather_backward<STATISTIC>(sums, end_x, end_dy, end_weight, mean, rstd);
    ask(slot, row + RING_BACKWARD);
    sums = sum_block(sums, of_warps[turn]);
    turn ^= 1;
    const row_gradient<C> gradient = find_gradient<STATISTIC>(sums, mean, rstd, a);
    T *dx = dx_rows.at(row);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int k = WEIGHTS ? i : 0;
      if (!mine.has(i)) continue;
      store_streaming(dx - span.begin + ring.position(i),
                      apply_backward<STATISTIC, T, W>(x[i], dy[i], weight[k].get(), gradient,
                                                      dweight[k], dbias[k]));
    }
    if (mine.column >= 0) {
      dx[mine.column] = apply_backward<STATISTIC, T, W>(end_x, end_dy, end_weight, gradient,
                                                        end_dweight, end_dbias)
                            .v[0];
    }
    mean = next_mean;
    rstd = next_rstd;
    end_x = next_end_x;
    end_dy = next_end_dy;
    if (++slot == RING_BACKWARD) slot = 0;
  }
  if constexpr (WEIGHTS) {
    store_parts<T>(blockIdx.x * a.elements.count, mine, ring, dweight, dbias, end_dweight[0],
                   end_dbias[0], a);
  }
}

#endif
