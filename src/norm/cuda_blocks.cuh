/* Rows that fit in the registers of a block, or in them and its shared memory, forward.
 *
 * A block has one row and no other: a new block costs no more than another row would, and several of
 * them on a multiprocessor load while others sum or store. Thread t has the packs t, t + threads, ... of
 * the row.
 *
 * Moves each element of x once and each element of y once. */
#ifndef ONEPASS_NORM_CUDA_BLOCKS_CUH
#define ONEPASS_NORM_CUDA_BLOCKS_CUH

#include "norm/cuda_slices.cuh"

/* Packs of a thread in its registers; launch_cuda.c knows them, too. */
enum {
  BLOCKS_MOST_THREADS = 512,
  BLOCKS_FEW_PACKS = 2,
  BLOCKS_PACKS = 4,
  BLOCKS_MANY_PACKS = 8, /* of rows that fill a multiprocessor */
  WIDE_MOST_THREADS = 1024,
  SHIFT_BLOCK = 256 /* cuda.c knows it, too */
};

/* Blocks of up to so many threads ask for weights together with the row; in larger ones they would take the
 * registers of another block. */
__host__ __device__ constexpr int blocks_early_threads(int vec) { return vec == 2 ? 256 : 128; }

/* Of rows that start anywhere. */
__host__ __device__ constexpr int phased_threads(int vec) { return vec == 8 ? 256 : 512; }

/* Of a thread's packs, those that wait in its registers. */
__host__ __device__ constexpr int wide_packs(int vec) { return vec == 2 ? 3 : 5; }

/* Asks for a row that some block needs soon. */
template <class T>
__device__ inline void prefetch_next_row(const norm_args &a) {
  const int64_t next = (int64_t)blockIdx.x + a.lookahead;
  if (a.lookahead == 0 || threadIdx.x != 0 || next >= a.rows.count) return;
  prefetch_range(row_of<T>(a.at.x, a, ONEPASS_ROLE_X, next), a.elements.count);
}

/* Every row starts at a multiple of a pack. EARLY_WEIGHTS: weights are asked for together with the row, where
 * registers allow it. FULL: rows are on one axis, and every thread has PACKS packs of them. */
template <class T, class W, int STATISTIC, int PACKS, bool EARLY_WEIGHTS, bool FUSED = false,
          bool CHANNELS = false, bool FULL = false>
__device__ inline void blocks_forward(const norm_args &a) {
  const bool MOMENTS = STATISTIC == OF_MOMENTS;
  const bool EARLY = EARLY_WEIGHTS && (PACKS == BLOCKS_PACKS || !SAVES_REGISTERS);
  const bool SPLIT = !FUSED && (!EARLY || PACKS > BLOCKS_PACKS); /* faster there */
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = sum_count<STATISTIC>::FORWARD;
  __shared__ plain_sums<C, SUMS> of_warps[2][BLOCKS_MOST_THREADS / WARP];
  const int64_t row = blockIdx.x;
  const int n = (int)a.elements.count;
  const T *x = row_of<T, FULL>(a.at.x, a, ONEPASS_ROLE_X, row);
  const auto at = [](int i) { return (int)(threadIdx.x + i * blockDim.x) * vector_of<T>::count; };
  const auto has = [&](int i) { return FULL || at(i) < n; };
  pack<T, VEC> held[PACKS];
  if constexpr (FUSED) {
    const summed_row<T> from(a, row);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      if (has(i)) held[i] = from.template take<VEC>(at(i));
    }
  } else {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      if (has(i)) held[i] = load_pack<T, VEC>(x + at(i));
    }
  }
  /* The first pack of a sum may be written over by now: 0 is the guess there. */
  C guess = 0;
  if constexpr (MOMENTS && sizeof(T) > 2 && !FUSED)
    guess = mean_of_pack<T, C>(load_pack<T, VEC>(x));
  if (sizeof(T) == 8 && !is_centered(a)) guess = 0; /* floats have kernels for squares */
  pack<W, VEC> weight[EARLY ? PACKS : 1], bias[EARLY ? PACKS : 1];
  if constexpr (EARLY) {
    const auto load = [&](const void *weights, const void *biases) {
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        if (!has(i)) continue;
        weight[i] = aligned_weights<W, VEC>(weights, at(i), 1);
        if (MOMENTS) bias[i] = aligned_weights<W, VEC>(biases, at(i), 0);
      }
    };
    const bool all = a.at.weight && (!MOMENTS || a.at.bias);
    if (all) { /* looked at once */
      __builtin_assume(all);
      load(a.at.weight, a.at.bias);
    } else {
      load(a.at.weight, a.at.bias);
    }
  }
  const auto find_y = [&] { return row_of<T, FULL>(a.at.y, a, ONEPASS_ROLE_Y, row); };
  T *y = SAVES_REGISTERS ? NULL : find_y();
  row_scale<C> scale;
  about_guess<T, SPLIT>(guess, [&](C about, int again) {
    plain_sums<C, SUMS> mine;
    mine.clear();
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      if (has(i)) gather_forward<STATISTIC>(mine, held[i], about);
      stay_packed(held[i]);
    }
    if (FULL) widen_anew(held, a.zero);
    if (again == 0) prefetch_next_row<T>(a);
    const plain_sums<C, SUMS> sums = sum_block(mine, of_warps[again]);
    return find_scale<STATISTIC, T, FULL>(scale, sums, guess, again, a);
  });
  if (SAVES_REGISTERS) y = find_y();
  if constexpr (FUSED) {
    write_fused(held, a.activation, [&](const pack<T, VEC> &x, int i, int activation) {
      pack<W, VEC> by, more;
      if (!has(i)) return;
      by = aligned_weights<W, VEC>(a.at.weight, at(i), 1);
      if (MOMENTS) more = aligned_weights<W, VEC>(a.at.bias, at(i), 0);
      store_pack(y + at(i), apply_forward<STATISTIC, T, W>(x, by, more, scale, activation));
    });
  }
  about_shift<T, SPLIT>(scale, [&](const row_scale<C> &by) {
#pragma unroll
    for (int i = 0; i < PACKS && !FUSED; i++) {
      const int k = EARLY ? i : 0;
      if (!has(i)) continue;
      if constexpr (CHANNELS) {
        const int64_t channel = first_channel(a, row) + divide((unsigned)at(i), a.by_channel);
        store_pack(y + at(i), apply_channel(held[i], by, channel, a));
        continue;
      }
      if (EARLY) {
        stay_packed(weight[k]);
        if (MOMENTS) stay_packed(bias[k]);
      } else {
        if (STATISTIC != OF_MAGNITUDES) weight[k] = aligned_weights<W, VEC>(a.at.weight, at(i), 1);
        if (MOMENTS) bias[k] = aligned_weights<W, VEC>(a.at.bias, at(i), 0);
      }
      store_pack(y + at(i), apply_forward<STATISTIC, T, W>(held[i], weight[k], bias[k], by));
    }
  });
  if (STATISTIC != OF_MAGNITUDES && threadIdx.x == 0) save_moments<FULL>(scale, row, a);
}

/* ---- Rows that start anywhere --------------------------------------------------------------------- */

/* Copies of weight and bias: see norm_args. A thread writes a pack of one of them. */
template <class T, class W>
__device__ inline void make_shifted_copies(const norm_args &a) {
  const int VEC = vector_of<T>::count;
  const int length = (int)a.copy_length, n = (int)a.elements.count, packs = length / VEC;
  const int number = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  const bool is_bias = number >= length; /* VEC copies have as many packs as one has elements */
  const int at = number - (is_bias ? length : 0), copy = at / packs, first = at % packs * VEC;
  const W *from = (const W *)(is_bias ? a.at.bias : a.at.weight);
  if (!from || at >= length) return;
  pack<W, VEC> made;
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    const int column = first + j - copy;
    made.v[j] = column >= 0 && column < n ? from[column] : narrow_to<W>::from(0.f);
  }
  *(pack<W, VEC> *)((W *)(is_bias ? a.bias_copies : a.weight_copies) + (int64_t)copy * length +
                    first) = made;
}

/* A block has a row. The kernel before this one has made copies of the weights, if there are any, and has waited for
 * what x waits for. */
template <class T, class W, int STATISTIC>
__device__ inline void phased_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const bool MOMENTS = STATISTIC == OF_MOMENTS, WEIGHTS = STATISTIC != OF_MAGNITUDES;
  const int VEC = vector_of<T>::count, SUMS = sum_count<STATISTIC>::FORWARD, PACKS = BLOCKS_PACKS;
  __shared__ plain_sums<C, SUMS> of_warps[2][phased_threads(VEC) / WARP];
  if (!a.copy_length) {
    ask_ahead(a.ahead);
    touch_arguments(a);
    await_turn();
  }
  const T *x = row_of<T, true>(a.at.x, a, ONEPASS_ROLE_X, blockIdx.x);
  const slice_span<T> span = slice_span<T>::from_whole_pack(x, (int)a.elements.count);
  const dealt_row<T> mine(span, blockDim.x, PACKS);
  const auto column = [&](int i) { return (int)(threadIdx.x + i * blockDim.x) * VEC - span.begin; };
  pack<T, VEC> held[PACKS];
  pack<T, 1> end = {};
  pack<W, 1> end_weight, end_bias;
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
    if (mine.has(i)) held[i] = load_pack<T, VEC>(x + column(i));
  }
  if (mine.column >= 0) { /* its weights with it: they would be waited for at the end */
    end.v[0] = x[mine.column];
    if (WEIGHTS) end_weight = aligned_weights<W, 1>(a.at.weight, mine.column, 1);
    if (MOMENTS) end_bias = aligned_weights<W, 1>(a.at.bias, mine.column, 0);
  }
  C guess = MOMENTS ? guess_mean(x, a) : 0;
  if (a.copy_length) await_turn();
  let_next_begin((unsigned)a.few_blocks);
  prefetch_next_row<T>(a);
  row_scale<C> scale;
  about_guess<T>(guess, [&](C about, int again) {
    plain_sums<C, SUMS> sums;
    sums.clear();
    gather_dealt<STATISTIC>(sums, mine, held, end, about);
    sums = sum_block(sums, of_warps[again]);
    return find_scale<STATISTIC, T>(scale, sums, guess, again, a);
  });
  T *y = row_of<T, true>(a.at.y, a, ONEPASS_ROLE_Y, blockIdx.x);
  if (mine.column >= 0)
    y[mine.column] = apply_forward<STATISTIC, T, W>(end, end_weight, end_bias, scale).v[0];
  const int64_t shifted = (uintptr_t)x % 16 / sizeof(T) * (a.copy_length + 1);
  const W *weights = a.at.weight ? (const W *)a.weight_copies + shifted : NULL;
  const W *biases = a.at.bias ? (const W *)a.bias_copies + shifted : NULL;
  about_shift<T>(scale, [&](const row_scale<C> &by) {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      if (!mine.has(i)) continue;
      pack<W, VEC> weight, bias;
      if (WEIGHTS) weight = aligned_weights<W, VEC>(weights, column(i), 1);
      if (MOMENTS) bias = aligned_weights<W, VEC>(biases, column(i), 0);
      store_pack(y + column(i), apply_forward<STATISTIC, T, W>(held[i], weight, bias, by));
    }
  });
  if (WEIGHTS && threadIdx.x == 0) save_moments<true>(scale, blockIdx.x, a);
}

/* Rows without weights, of which no mean is subtracted, starting anywhere. The first packs of a thread wait
 * in its registers, a.chunks more in shared memory. */
template <class T, int STATISTIC>
__device__ inline void wide_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, PACKS = wide_packs(VEC);
  __shared__ plain_sums<C, 1> of_warps[WIDE_MOST_THREADS / WARP];
  extern __shared__ __align__(16) char places[];
  const thread_ring<T, 1, 1> waiting(places, blockDim.x);
  const T *x = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, blockIdx.x);
  const slice_span<T> span(x, (int)a.elements.count, a.aligned);
  const dealt_row<T> mine(span, blockDim.x, PACKS + a.chunks);
#pragma unroll 4
  for (int k = 0; k < a.chunks; k++) {
    if (mine.has(PACKS + k))
      copy_async_alone(waiting.place(k, 0, 0), x - span.begin + waiting.position(PACKS + k), 16);
  }
  commit_copies();
  pack<T, VEC> held[PACKS];
  pack<T, 1> end = {};
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
    if (mine.has(i)) held[i] = load_pack<T, VEC>(x - span.begin + waiting.position(i));
  }
  if (mine.column >= 0) end.v[0] = x[mine.column];
  prefetch_next_row<T>(a);
  plain_sums<C, 1> sums;
  C none = 0; /* nothing is guessed */
  sums.clear();
  gather_dealt<STATISTIC>(sums, mine, held, end, none);
  wait_for_all_but<0>();
#pragma unroll 4
  for (int k = 0; k < a.chunks; k++) {
    if (mine.has(PACKS + k)) gather_forward<STATISTIC>(sums, *waiting.place(k, 0, 0), none);
  }
  row_scale<C> scale;
  sums = sum_block(sums, of_warps);
  find_scale<STATISTIC, T>(scale, sums, none, true, a);
  if (STATISTIC == OF_SQUARES && threadIdx.x == 0) save_moments<false>(scale, blockIdx.x, a);
  T *y = row_of<T>(a.at.y, a, ONEPASS_ROLE_Y, blockIdx.x);
  const auto scaled =
      [&](const auto &elements) { /* which are no weights, but those are not looked at */
                                  return apply_forward<false, T, T>(elements, elements, elements,
                                                                    scale);
      };
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
    if (mine.has(i)) store_pack(y - span.begin + waiting.position(i), scaled(held[i]));
  }
  if (mine.column >= 0) y[mine.column] = scaled(end).v[0];
#pragma unroll 4
  for (int k = 0; k < a.chunks; k++) {
    if (mine.has(PACKS + k))
      store_pack(y - span.begin + waiting.position(PACKS + k), scaled(*waiting.place(k, 0, 0)));
  }
}

#endif
