/* Rows that a team of blocks shares, chunk by chunk: slices may be so long that two of them do not fit into a block's
 * shared memory. Forward, with moments; rows are aligned.
 *
 * Chunks of a slice come into a ring in shared memory, one row's after the other's, and every warp has a part of its own
 * to do: one asks for chunks, each when all are done with the one in its place, and asks that a few more come to the
 * second-level cache; two gather the sums of chunks as they arrive; one exchanges the sums of slices with the team by
 * letters; all others write the results of chunks whose row's sums are known. So the next row comes and is gathered
 * while this one waits for its sums and is written, as far as there is room.
 *
 * Weights of columns, twice the bytes of a row, would all have to come from the second-level cache for every row: a
 * writer has its weights in registers, and its biases come from that cache, to places of its own.
 *
 * Moves each element of x once and each element of y once. */
#ifndef ONEPASS_NORM_CUDA_TIDE_CUH
#define ONEPASS_NORM_CUDA_TIDE_CUH

#include "norm/cuda_letters.cuh"

/* launch_cuda.c knows them, too. */
enum {
  TIDE_WRITERS = 384, /* each has one pack of a chunk */
  TIDE_GATHERERS = 64,
  TIDE_THREADS = TIDE_WRITERS + TIDE_GATHERERS + 2 * WARP,
  TIDE_BIASES = 3, /* chunks of biases that are on their way */
  TIDE_AHEAD = 4,  /* chunks from the last one asked for to the one that comes to the cache */
  TIDE_MOST_RING = 40
};

/* Of a slice whose weights are in registers. */
__host__ __device__ constexpr int tide_most_chunks(int vec) { return vec == 8 ? 22 : 21; }

/* Chunks follow it, which arrive faster at whole lines. */
template <class M>
struct __align__(128) tide_memory : M {
  unsigned long long guessed[ONEPASS_NORM_TIDE_ROWS];
  unsigned long long arrived[TIDE_MOST_RING], done[TIDE_MOST_RING]; /* chunks, by place */
  __device__ void init() {
    M::init();
    const int at = threadIdx.x;
    if (at < ONEPASS_NORM_TIDE_ROWS) init_barrier(&guessed[at], WARP);
    if (at < TIDE_MOST_RING) init_barrier(&arrived[at], RANGE_ARRIVALS);
    if (at < TIDE_MOST_RING) init_barrier(&done[at], TIDE_GATHERERS + TIDE_WRITERS);
    announce_barriers();
  }
};

/* Goes around a ring; the barriers of its places change their phase with every round. */
struct tide_place {
  int at;
  unsigned parity;
  __device__ void next(int places) {
    at++;
    if (at == places) parity ^= 1;
    if (at == places) at = 0;
  }
};

/* BY_COLUMN: weights and biases are those of columns; else they are those of channels, or there are none. */
template <class T, bool BY_COLUMN>
struct tide : team_member<T, true, false, TIDE_GATHERERS, ONEPASS_NORM_TIDE_ROWS, 5> {
  typedef team_member<T, true, false, TIDE_GATHERERS, ONEPASS_NORM_TIDE_ROWS, 5> member;
  typedef tide_memory<typename member::memory_type> memory_type;
  typedef typename member::C C;
  typedef typename member::sums_type sums_type;
  static const int VEC = vector_of<T>::count, CHUNK = TIDE_WRITERS * VEC;
  static const int ROWS = ONEPASS_NORM_TIDE_ROWS, MOST_CHUNKS = tide_most_chunks(VEC);
  typedef pack<T, VEC> place[TIDE_WRITERS]; /* of a chunk */
  using member::a;
  using member::about;
  using member::begin;
  using member::length;
  using member::rows;
  using member::slice_of;
  using member::x_rows;

  memory_type &memory;
  place *const ring, *const biases; /* in shared memory */
  const int chunks;                 /* of this block's slice, all whole but the last */

  __device__ tide(const norm_args &args, memory_type &shared, char *places)
      : member(args, shared),
        memory(shared),
        ring((place *)places),
        biases((place *)places + args.ring),
        chunks((length + CHUNK - 1) / CHUNK) {}

  __device__ int elements_of(int chunk) const {
    return chunk < chunks - 1 ? CHUNK : length - (chunks - 1) * CHUNK;
  }

  /* -- The one who asks -- */

  /* A chunk of a row, one after the other. */
  struct cursor {
    int row, chunk;
    const T *from;
  };
  __device__ void next(cursor &c) const {
    c.from += CHUNK;
    if (++c.chunk < chunks) return;
    c.chunk = 0;
    if (++c.row < rows) c.from = slice_of(a.at.x, ONEPASS_ROLE_X, c.row);
  }

  /* All lanes, though one could do it: asking faster made it slower. */
  __device__ void ask_for_chunks() const {
    cursor asked = {0, 0, slice_of(a.at.x, ONEPASS_ROLE_X, 0)}, ahead = asked;
    tide_place to = {0, 1}; /* in the first round all places are free */
#pragma unroll 1
    for (int k = 0; k < TIDE_AHEAD; k++) next(ahead);
#pragma unroll 1
    for (; asked.row < rows; next(asked)) {
      if (ahead.row < rows) {
        if (threadIdx.x % WARP == 0) prefetch_range(ahead.from, elements_of(ahead.chunk));
        next(ahead);
      }
      await(&memory.done[to.at], to.parity);
      bring_range(ring[to.at], asked.from, elements_of(asked.chunk) * (int)sizeof(T),
                  &memory.arrived[to.at]);
      to.next(a.ring);
    }
  }

  /* -- Those who gather -- */

  __device__ static int gatherer() { return threadIdx.x - TIDE_WRITERS; }

  __device__ void gather_whole(sums_type &sums, int at, C about) const {
#pragma unroll
    for (int k = 0; k < TIDE_WRITERS; k += TIDE_GATHERERS)
      gather_forward<true>(sums, ring[at][k + gatherer()], about);
  }
  __device__ void gather_last(sums_type &sums, int at, C about) const {
    const int packs = elements_of(chunks - 1) / VEC;
#pragma unroll 1
    for (int k = gatherer(); k < packs; k += TIDE_GATHERERS)
      gather_forward<true>(sums, ring[at][k], about);
  }

  /* The warp's sums of a row about the guess, as moments. It may be far from it: then they are made again about a
   * better one, from the chunks up to the one in place `at`. */
  __device__ sums_type moments_of(sums_type sums, C guess, int at) const {
    const C one_over_elements = memory.one_over_elements[gatherer() / WARP];
    if (memory.elements_of_warps[gatherer() / WARP] == 0) return sums;
    sums = sum_lanes(sums, WARP);
    row_moments<C> found(sums, guess, one_over_elements, lossless<T>::SQUARES, is_centered(a));
    C better = guess;
    if (found.lossy) {
      better = finite_guess(rounded<T>(guess + found.more));
      sums.clear();
      gather_last(sums, at, better);
#pragma unroll 1
      for (int chunk = chunks - 1; chunk > 0; chunk--) {
        at = (at == 0 ? a.ring : at) - 1;
        gather_whole(sums, at, better);
      }
      found = row_moments<C>(sum_lanes(sums, WARP), better, one_over_elements);
    }
    sums.v[0] = (better - guess) + found.more;
    sums.v[1] = found.squares;
    return sums;
  }

  __device__ void gather_rows() const {
    int packs = (chunks - 1) * (TIDE_WRITERS / TIDE_GATHERERS);
    for (int k = gatherer(); k < elements_of(chunks - 1) / VEC; k += TIDE_GATHERERS) packs++;
    member::count_elements(gatherer() / WARP, packs * VEC);
    tide_place from = {0, 0};
    for (int row = 0; row < rows; row++) {
      int first = from.at; /* place of the row */
      await(&memory.guessed[row % ROWS], row / ROWS & 1);
      const C guess = memory.guesses[row % ROWS];
      sums_type sums;
      sums.clear();
#pragma unroll 1
      for (int chunk = 0; chunk < chunks - 1; chunk++) {
        await(&memory.arrived[from.at], from.parity);
        gather_whole(sums, from.at, guess);
        from.next(a.ring);
      }
      await(&memory.arrived[from.at], from.parity);
      gather_last(sums, from.at, guess);
      sums = moments_of(sums, guess, from.at);
      from.next(a.ring);
      if (threadIdx.x % WARP == 0) {
        memory.of_warps[row % ROWS][gatherer() / WARP] = sums;
        arrive(&memory.gathered[row % ROWS]);
      }
      /* Not sooner: they may have been read twice. */
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; chunk++) {
        arrive(&memory.done[first]);
        first = first + 1 < a.ring ? first + 1 : 0;
      }
    }
  }

  /* -- The one who exchanges letters -- */

  /* What the sums of a row are to be about: a number near its mean. Its place is that of a row whose results are known. */
  __device__ void tell_guess(int i, C guess) const {
    if (i >= rows) return;
    if (i >= ROWS) await(&memory.known[i % ROWS], (i / ROWS - 1) & 1);
    if (threadIdx.x % WARP == 0) memory.guesses[i % ROWS] = guess;
    arrive(&memory.guessed[i % ROWS]);
  }

  /* A letter is posted as soon as its row is gathered, also while those of a row before it are waited for. A block that
   * is its team knows the sums of its rows without any. */
  __device__ void exchange_letters() const {
    tell_guess(0, about(0));
    tell_guess(1, about(1));
    C next_guess = about(2); /* there when it is needed */
    int posted = 0;
    const auto post_next = [&] {
      member::post_letter(posted);
      posted++;
      tell_guess(posted + 1, next_guess);
      next_guess = about(posted + 2);
    };
    for (int i = 0; i < rows; i++) {
      if (a.team == 1) {
        const sums_type own = member::await_slice(i);
        if (threadIdx.x % WARP == 0) member::tell(i, own, memory.guesses[i % ROWS], 0);
        tell_guess(i + 2, next_guess);
        next_guess = about(i + 3);
        continue;
      }
      if (posted == i) post_next();
      member::read_letters_of(i, [&] {
        if (posted == rows || posted >= i + ROWS - 2) return;
        const bool gathered = is_over(&memory.gathered[posted % ROWS], posted / ROWS & 1);
        if (__all_sync(0xffffffffu, gathered)) post_next();
      });
    }
  }

  /* -- Those who write -- */

  __device__ void write_rows() const {
    const int me = threadIdx.x;
    const bool has_last = me * VEC < elements_of(chunks - 1);
    waiting_weights<T, VEC> weight[BY_COLUMN ? MOST_CHUNKS : 1];
    if constexpr (BY_COLUMN) {
      const T *weights = a.at.weight ? (const T *)a.at.weight + begin : NULL;
#pragma unroll
      for (int k = 0; k < MOST_CHUNKS; k++)
        weight[k].load(weights, k * CHUNK + me * VEC, 1, true,
                       k < chunks - 1 || (k == chunks - 1 && has_last));
    }
    const T *bias = a.at.bias ? (const T *)a.at.bias + begin + me * VEC : NULL;
    if (sizeof(T) == 4) stay_address(bias);
    int bias_chunk = 0; /* the next one, again and again */
    const auto ask_for_bias = [&](int to) {
      if (!BY_COLUMN || !a.at.bias) return;
      if (bias_chunk < chunks - 1 || has_last)
        copy_async_alone(&biases[to][me], bias + bias_chunk * CHUNK, 16);
      commit_copies();
      bias_chunk = bias_chunk + 1 < chunks ? bias_chunk + 1 : 0;
    };
    for (int k = 0; BY_COLUMN && k < TIDE_BIASES; k++) {
      if (!a.at.bias) *(uint4 *)&biases[k][me] = make_uint4(0, 0, 0, 0);
      ask_for_bias(k);
    }
    C channel_weight = 1, channel_bias = 0; /* of the chunk that is written next */
    const bool by_channel = !BY_COLUMN && (a.at.weight || a.at.bias);
    const auto load_channel = [&](int64_t of_row, int chunk) {
      if (!by_channel) return;
      const int64_t channel = of_row + channel_of(chunk);
      if (a.at.weight) channel_weight = weight_at<T>(a.at.weight, channel, a);
      if (a.at.bias) channel_bias = weight_at<T>(a.at.bias, channel, a);
    };
    int64_t channels = by_channel ? first_channel(a, x_rows.number(0)) : 0; /* before the row's */
    load_channel(channels, 0);
    int from = 0, bias_from = 0;
    for (int row = 0; row < rows; row++) {
      T *out = slice_of(a.at.y, ONEPASS_ROLE_Y, row) + me * VEC;
      stay_address(out);
      await(&memory.known[row % ROWS], row / ROWS & 1);
      const row_scale<C> scale = memory.results[row % ROWS].scale;
      const auto write = [&](int chunk, const pack<T, VEC> &weights) {
        if (BY_COLUMN) wait_for_all_but<TIDE_BIASES - 1>();
        const pack<T, VEC> x = ring[from][me];
        pack<T, VEC> y;
        if constexpr (BY_COLUMN) {
          y = apply_forward<true, T, T>(x, weights, biases[bias_from][me], scale);
        } else {
          y = apply_channel(x, scale, channel_weight, channel_bias);
        }
        if (chunk < chunks - 1 || has_last) store_streaming(out + chunk * CHUNK, y);
        arrive(&memory.done[from]);
        from = from + 1 < a.ring ? from + 1 : 0;
        ask_for_bias(bias_from);
        bias_from = bias_from + 1 < TIDE_BIASES ? bias_from + 1 : 0;
      };
      if constexpr (BY_COLUMN) {
#pragma unroll
        for (int k = 0; k < MOST_CHUNKS; k++) {
          if (k < chunks) write(k, weight[k].get());
        }
      } else {
#pragma unroll 1
        for (int k = 0; k < chunks; k++) {
          write(k, pack<T, VEC>());
          if (k + 1 < chunks) load_channel(channels, k + 1);
        }
        if (row + 1 < rows) {
          if (by_channel) channels = first_channel(a, x_rows.number(row + 1));
          load_channel(channels, 0);
        }
      }
    }
  }

  /* Of the pack that the writer has in a chunk, among those of the row. */
  __device__ unsigned channel_of(int chunk) const {
    return divide((unsigned)begin + chunk * CHUNK + threadIdx.x * VEC, a.by_channel);
  }
};

/* From 9.0 on. */
template <class T, bool BY_COLUMN>
__device__ inline void tide_rows(const norm_args &a) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  typedef tide<T, BY_COLUMN> of_block;
  await_turn();
  __shared__ typename of_block::memory_type memory;
  extern __shared__ __align__(16) char places[];
  memory.init();
  __syncthreads();
  const of_block block(a, memory, places);
  const int other = (int)threadIdx.x - TIDE_WRITERS;
  if (other < 0) {
    block.write_rows();
  } else if (other < TIDE_GATHERERS) {
    block.gather_rows();
  } else if (other < TIDE_GATHERERS + WARP) {
    block.exchange_letters();
  } else {
    block.ask_for_chunks();
  }
#endif
}

#endif
