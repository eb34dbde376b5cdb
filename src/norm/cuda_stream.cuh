/* Rows that a team of blocks shares, slice by slice: the slices of several rows flow through the shared memory of
 * a block.
 *
 * Worker t has the packs t, t + workers, ... of every slice, at most PACKS of them, in places of its own. In one step it
 * asks for the slice of a row that is far ahead, gathers the sums of one that has arrived, and writes the results of one
 * whose sums have come back from the team; in between, `lookahead` rows wait for theirs. Nothing but sums makes warps
 * wait for each other.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_STREAM_CUH
#define ONEPASS_NORM_CUDA_STREAM_CUH

#include "norm/cuda_letters.cuh"

/* launch_cuda.c knows them, too. */
enum {
  STREAM_WORKERS = 512,
  STREAM_READERS = 2,    /* warps that wait for letters */
  STREAM_ON_THE_WAY = 1, /* of the slices that were asked for, besides those that have arrived */
  STREAM_THREADS = STREAM_WORKERS + (1 + STREAM_READERS) * WARP
};

template <class T, class W, bool MOMENTS, bool BACKWARD, int PACKS>
struct stream : team_member<T, MOMENTS, BACKWARD, STREAM_WORKERS, ONEPASS_NORM_STREAM_ROWS, 4> {
  typedef team_member<T, MOMENTS, BACKWARD, STREAM_WORKERS, ONEPASS_NORM_STREAM_ROWS, 4> member;
  typedef typename member::C C;
  typedef typename member::sums_type sums_type;
  static const int VEC = vector_of<T>::count, TENSORS = BACKWARD ? 2 : 1;
  static const bool FORWARD_MOMENTS = member::FORWARD_MOMENTS;
  static const int STREAM_ROWS = ONEPASS_NORM_STREAM_ROWS;
  using member::a;
  using member::about;
  using member::begin;
  using member::length;
  using member::memory;
  using member::rows;
  using member::rstd_of;
  using member::slice_of;
  using member::span_of;
  using member::x_rows;

  __device__ stream(const norm_args &args, typename member::memory_type &shared)
      : member(args, shared) {}

  __device__ void work(char *places) const {
    const thread_ring<T, PACKS, TENSORS> ring(places, STREAM_WORKERS);
    /* Rows with weights all start at the same place of a sector: a thread has the same columns of each. */
    const dealt_row<T> of_first(span_of(0), STREAM_WORKERS, PACKS);
    const auto deal = [&](int row) {
      return MOMENTS ? of_first : dealt_row<T>(span_of(row), STREAM_WORKERS, PACKS);
    };
    int asked = 0;
    const auto ask = [&](int slot) {
      if (asked < rows) {
        const dealt_row<T> mine = deal(asked);
        ring.ask(slot, 0, slice_of(a.at.x, ONEPASS_ROLE_X, asked), mine);
        if (BACKWARD) ring.ask(slot, 1, slice_of(a.at.dy, ONEPASS_ROLE_DY, asked), mine);
        const int later = asked + a.prefetched;
        if (threadIdx.x == 0 && later < rows) {
          prefetch_range(slice_of(a.at.x, ONEPASS_ROLE_X, later), length);
          if (BACKWARD) prefetch_range(slice_of(a.at.dy, ONEPASS_ROLE_DY, later), length);
        }
        asked++;
      }
      commit_copies();
    };
    for (int k = 0; k < a.ring; k++) ask(k);
    waiting_weights<W, VEC> weight[MOMENTS ? PACKS : 1], bias[MOMENTS && !BACKWARD ? PACKS : 1];
    pack<W, 1> end_weight, end_bias;
    C dweight[MOMENTS && BACKWARD ? PACKS : 1][VEC], dbias[MOMENTS && BACKWARD ? PACKS : 1][VEC];
    C end_dweight[1] = {0}, end_dbias[1] = {0};
    if constexpr (MOMENTS) {
      const W *weights = a.at.weight ? (const W *)a.at.weight + begin : NULL;
      const W *biases = a.at.bias ? (const W *)a.at.bias + begin : NULL;
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        const int column = ring.position(i) - of_first.begin;
        weight[i].load(weights, column, 1, a.aligned, of_first.has(i));
        if constexpr (!BACKWARD) bias[i].load(biases, column, 0, a.aligned, of_first.has(i));
        if constexpr (BACKWARD) {
#pragma unroll
          for (int j = 0; j < VEC; j++) dweight[i][j] = dbias[i][j] = 0;
        }
      }
      if (of_first.column >= 0) {
        end_weight = aligned_weights<W, 1>(weights, of_first.column, 1);
        if constexpr (!BACKWARD) end_bias = aligned_weights<W, 1>(biases, of_first.column, 0);
      }
    }
    const int warp = threadIdx.x / WARP;
    if constexpr (FORWARD_MOMENTS) member::count_elements(warp, of_first.elements());
    const auto load_end = [&](const void *base, int role, int row, const dealt_row<T> &mine) {
      pack<T, 1> end = {};
      if (mine.column >= 0) end.v[0] = slice_of(base, role, row)[mine.column];
      return end;
    };

    int gathered = 0, gather_slot = 0;
    C mean = about(0), rstd = rstd_of(0);
    const auto sum_packs = [&](const dealt_row<T> &mine, const pack<T, 1> &end_x,
                               const pack<T, 1> &end_dy, C guess) {
      sums_type sums;
      sums.clear();
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        const int k = MOMENTS ? i : 0;
        if (!mine.has(i)) continue;
        const pack<T, VEC> x = *ring.place(gather_slot, 0, i);
        if constexpr (BACKWARD) {
          gather_backward<MOMENTS>(sums, x, *ring.place(gather_slot, 1, i), weight[k].get(), guess,
                                   rstd);
        } else {
          gather_forward<MOMENTS>(sums, x, guess);
        }
      }
      if (mine.column >= 0) {
        if constexpr (BACKWARD) {
          gather_backward<MOMENTS>(sums, end_x, end_dy, end_weight, guess, rstd);
        } else {
          gather_forward<MOMENTS>(sums, end_x, guess);
        }
      }
      return sum_lanes(sums, WARP);
    };
    const auto gather = [&] {
      const dealt_row<T> mine = deal(gathered);
      const pack<T, 1> end_x = load_end(a.at.x, ONEPASS_ROLE_X, gathered, mine);
      const pack<T, 1> end_dy =
          BACKWARD ? load_end(a.at.dy, ONEPASS_ROLE_DY, gathered, mine) : end_x;
      sums_type sums;
      C guess = mean;
#pragma unroll 1
      for (bool again = false;; again = true) {
        sums = sum_packs(mine, end_x, end_dy, guess);
        if constexpr (FORWARD_MOMENTS) {
          /* The warp's own moments: its part of the row may be far from the guess. */
          if (memory.elements_of_warps[warp] == 0) break;
          const row_moments<C> found(sums, guess, memory.one_over_elements[warp],
                                     lossless<T>::SQUARES, is_centered(a));
          if (found.lossy && !again) {
            guess = finite_guess(rounded<T>(guess + found.more));
            continue;
          }
          sums.v[0] = (guess - mean) + found.more;
          sums.v[1] = found.squares;
        }
        break;
      }
      if (threadIdx.x % WARP == 0) {
        memory.of_warps[gathered % STREAM_ROWS][warp] = sums;
        if (FORWARD_MOMENTS && threadIdx.x == 0) memory.guesses[gathered % STREAM_ROWS] = mean;
        arrive(&memory.gathered[gathered % STREAM_ROWS]);
      }
      gathered++;
      mean = about(gathered); /* there before it is needed */
      rstd = rstd_of(gathered);
      if (++gather_slot == a.ring) gather_slot = 0;
    };
    wait_for_all_but<STREAM_ON_THE_WAY>();
    for (int k = 0; k < a.lookahead && gathered < rows; k++) gather();

    int slot = 0;
    for (int row = 0; row < rows; row++) {
      const dealt_row<T> mine = deal(row);
      /* There when they are needed. */
      const pack<T, 1> end_x = load_end(a.at.x, ONEPASS_ROLE_X, row, mine);
      const pack<T, 1> end_dy = BACKWARD ? load_end(a.at.dy, ONEPASS_ROLE_DY, row, mine) : end_x;
      wait_for_all_but<STREAM_ON_THE_WAY>();
      if (gathered < rows) gather();
      await(&memory.known[row % STREAM_ROWS], row / STREAM_ROWS & 1);
      const row_result<C, BACKWARD> &result = memory.results[row % STREAM_ROWS];
      T *out = BACKWARD ? slice_of(a.at.dx, ONEPASS_ROLE_DX, row)
                        : slice_of(a.at.y, ONEPASS_ROLE_Y, row);
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        const int k = MOMENTS ? i : 0;
        if (!mine.has(i)) continue;
        const pack<T, VEC> x = *ring.place(slot, 0, i);
        pack<T, VEC> made;
        if constexpr (BACKWARD) {
          made = apply_backward<MOMENTS, T, W>(x, *ring.place(slot, 1, i), weight[k].get(),
                                               result.gradient, dweight[k], dbias[k]);
        } else {
          made = apply_forward<MOMENTS, T, W>(x, weight[k].get(), bias[k].get(), result.scale);
        }
        store_streaming(out - mine.begin + ring.position(i), made);
      }
      if (mine.column >= 0) {
        if constexpr (BACKWARD) {
          out[mine.column] = apply_backward<MOMENTS, T, W>(end_x, end_dy, end_weight,
                                                           result.gradient, end_dweight, end_dbias)
                                 .v[0];
        } else {
          out[mine.column] =
              apply_forward<MOMENTS, T, W>(end_x, end_weight, end_bias, result.scale).v[0];
        }
      }
      ask(slot);
      if (++slot == a.ring) slot = 0;
    }
    if constexpr (MOMENTS && BACKWARD) {
      store_parts<T>(x_rows.team * a.elements.count + begin, of_first, ring, dweight, dbias,
                     end_dweight[0], end_dbias[0], a);
    }
  }

  __device__ void post_letters() const {
    for (int i = 0; i < rows; i++) member::post_letter(i);
  }

  /* Warps that read letters take turns. */
  __device__ void read_letters(int reader) const {
    for (int i = reader; i < rows; i += STREAM_READERS) {
      if (FORWARD_MOMENTS) await(&memory.gathered[i % STREAM_ROWS], i / STREAM_ROWS & 1);
      member::read_letters_of(i, [] {});
    }
  }
};

template <class T, class W, bool MOMENTS, bool BACKWARD, int PACKS>
__device__ inline void stream_rows(const norm_args &a) {
  typedef stream<T, W, MOMENTS, BACKWARD, PACKS> of_block;
  __shared__ typename of_block::memory_type memory;
  extern __shared__ __align__(16) char places[];
  memory.init();
  __syncthreads();
  const of_block block(a, memory);
  const int other = (int)threadIdx.x / WARP - of_block::WARPS;
  if (other < 0) {
    block.work(places);
  } else if (other == 0) {
    block.post_letters();
  } else {
    block.read_letters(other - 1);
  }
}

#endif
