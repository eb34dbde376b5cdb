/* Rows that a team of blocks shares: each has a slice of all of its team's rows, and the slices of several
 * rows flow through its shared memory.
 *
 * The first threads of a block work. Worker t has the packs t, t + workers, ... of every
 * slice, at most PACKS of them, in places of its own. In one step it asks for the slice of a row that is
 * far ahead, gathers the sums of one that has arrived, and writes the results of one whose sums have come
 * back from the team; in between, `lookahead` rows wait for theirs. Nothing but sums makes warps wait for
 * each other. The last warps of a block exchange them: one adds up those of its workers and posts them
 * in a mailbox in global memory, the others wait for the letters of the whole team, add them up, in the
 * same order in every block, and tell the workers.
 *
 * Letters carry the number of their row, so they are not read too early; mailboxes are zeroed before the
 * launch. A box is used again only for a row that nobody can have reached before all have read it. The
 * blocks of a team are on the chip together, which a cooperative launch sees to.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_STREAM_CUH
#define ONEPASS_NORM_CUDA_STREAM_CUH

#include "norm/cuda_slices.cuh"

/* launch_cuda.c knows them, too. */
enum {
  STREAM_WORKERS = 512,
  STREAM_READERS = 2,    /* warps that wait for letters */
  STREAM_ON_THE_WAY = 1, /* of the slices that were asked for, besides those that have arrived */
  STREAM_THREADS = STREAM_WORKERS + (1 + STREAM_READERS) * WARP,
  STREAM_ROWS = 32 /* more than can be between gathering and writing */
};

/* ---- Sums of moments, part by part ------------------------------------------------------------------- */

/* Forward, the sums of a part about the guess become its mean's distance from the guess and the squares
 * about that mean; those of parts are put together by their sizes. All other sums just add up. Every lane
 * has `own`, of so many elements (none: 0), and gets those of the warp. */
template <bool FORWARD_MOMENTS, class C, int SUMS>
__device__ inline plain_sums<C, SUMS> put_together(plain_sums<C, SUMS> own, C elements, C all) {
  if constexpr (FORWARD_MOMENTS) {
    plain_sums<C, 1> apart, squares;
    apart.v[0] = own.v[0] * elements;
    apart = sum_lanes(apart, WARP);
    apart.v[0] /= all;
    const C distance = own.v[0] - apart.v[0];
    squares.v[0] = own.v[1] + distance * distance * elements;
    if (elements == 0) squares.v[0] = 0;
    squares = sum_lanes(squares, WARP);
    own.v[0] = apart.v[0];
    own.v[1] = squares.v[0];
    return own;
  } else {
    return sum_lanes(own, WARP);
  }
}

/* ---- The stream ----------------------------------------------------------------------------------------- */

/* What is done with a row when its sums are known. */
template <class C, bool BACKWARD>
struct row_result {
  row_scale<C> scale;
};
template <class C>
struct row_result<C, true> {
  row_gradient<C> gradient;
};

template <class C, int SUMS, bool BACKWARD>
struct stream_memory {
  static const int WARPS = STREAM_WORKERS / WARP;
  plain_sums<C, SUMS> of_warps[STREAM_ROWS][WARPS];
  C elements_of_warps[WARPS], one_over_elements[WARPS];
  C guesses[STREAM_ROWS]; /* what the sums of rows are about */
  row_result<C, BACKWARD> results[STREAM_ROWS];
  unsigned long long gathered[STREAM_ROWS], known[STREAM_ROWS];
};

/* CHANNELS: weights are those of channels, forward. */
template <class T, class W, bool MOMENTS, bool BACKWARD, int PACKS, bool CHANNELS>
struct stream {
  typedef typename sums_of<T>::type C;
  static const int VEC = vector_of<T>::count, TENSORS = BACKWARD ? 2 : 1;
  static const int SUMS = BACKWARD ? (MOMENTS ? 3 : 2) : (MOMENTS ? 2 : 1);
  static const int WORDS = SUMS * (int)sizeof(C) / 4; /* of a letter */
  static const bool FORWARD_MOMENTS = MOMENTS && !BACKWARD, BY_COLUMN = MOMENTS && !CHANNELS;
  static const int WARPS = STREAM_WORKERS / WARP, AT_ONCE = 4;
  typedef plain_sums<C, SUMS> sums_type;
  typedef stream_memory<C, SUMS, BACKWARD> memory_type;

  const norm_args &a;
  memory_type &memory;
  const int rank;
  const int64_t begin; /* of this block's slice */
  const int length;
  const block_rows<T> x_rows;
  const int rows; /* of this team */

  __device__ stream(const norm_args &args, memory_type &shared)
      : a(args),
        memory(shared),
        rank(blockIdx.x % args.team),
        begin(rank * args.slice),
        length(length_of(rank)),
        x_rows(args, args.at.x, ONEPASS_ROLE_X),
        rows(x_rows.count) {}

  __device__ int length_of(int member) const {
    const int64_t rest = a.elements.count - member * a.slice;
    return (int)(rest < a.slice ? rest : a.slice);
  }
  /* Worked out every time: pointers would take registers that others need. */
  __device__ T *slice_of(const void *base, int role, int i) const {
    return row_of<T, true>(base, a, role, x_rows.number(i)) + begin;
  }
  __device__ slice_span<T> span_of(int i) const {
    return slice_span<T>(slice_of(a.at.x, ONEPASS_ROLE_X, i), length, a.aligned);
  }
  /* Forward: a number near the mean. Backward: the saved mean. */
  __device__ C about(int i) const {
    if (!MOMENTS || i >= rows) return 0;
    if (BACKWARD)
      return saved_mean(row_of<C, true>(a.at.mean, a, ONEPASS_ROLE_MEAN, x_rows.number(i)), a);
    return guess_mean(row_of<T, true>(a.at.x, a, ONEPASS_ROLE_X, x_rows.number(i)),
                      a.elements.count);
  }
  __device__ C rstd_of(int i) const {
    if (!MOMENTS || !BACKWARD || i >= rows) return 0;
    return *row_of<C, true>(a.at.rstd, a, ONEPASS_ROLE_RSTD, x_rows.number(i));
  }

  /* -- Those who exchange -- */

  __device__ unsigned long long *letter(int i, int member) const {
    const int64_t box =
        (int64_t)x_rows.team * ONEPASS_NORM_MAIL_SLOTS + i % ONEPASS_NORM_MAIL_SLOTS;
    return a.mail + (box * a.team + member) * WORDS;
  }

  /* Adds a part's sums to those of others. */
  __device__ static void add_part(sums_type &own, C &elements, const sums_type &part, C more) {
    if constexpr (FORWARD_MOMENTS) {
      const C all = elements + more, distance = part.v[0] - own.v[0];
      own.v[1] += part.v[1] + distance * distance * (elements * (more / all));
      own.v[0] += distance * (more / all);
      elements = all;
    } else {
      own.merge(part);
    }
  }

  __device__ void post_letters() const {
    const int lane = threadIdx.x % WARP;
    for (int i = 0; i < rows; i++) {
      await(&memory.gathered[i % STREAM_ROWS], i / STREAM_ROWS & 1);
      sums_type own;
      own.clear();
      if (lane < WARPS) own = memory.of_warps[i % STREAM_ROWS][lane];
      const C of_warp = FORWARD_MOMENTS && lane < WARPS ? memory.elements_of_warps[lane] : 0;
      own = put_together<FORWARD_MOMENTS>(own, of_warp, (C)length);
      const unsigned *words = (const unsigned *)&own;
#pragma unroll
      for (int k = 0; k < WORDS; k++) {
        const unsigned long long word = (unsigned long long)(i + 1) << 32 | words[k];
        if (lane == k) post_word(letter(i, rank) + k, word);
      }
    }
  }

  /* Those of members first, first + WARP, ...: all are asked for before the first is looked at. */
  __device__ void wait_for_letters(sums_type (&sums)[AT_ONCE], int i, int first) const {
    bool here;
    do {
      unsigned long long words[AT_ONCE][WORDS];
#pragma unroll
      for (int m = 0; m < AT_ONCE; m++) {
        const int member = first + m * WARP < a.team ? first + m * WARP : first;
#pragma unroll
        for (int k = 0; k < WORDS; k++) words[m][k] = look_at_word(letter(i, member) + k);
      }
      here = true;
#pragma unroll
      for (int m = 0; m < AT_ONCE; m++) {
        unsigned *to = (unsigned *)&sums[m];
#pragma unroll
        for (int k = 0; k < WORDS; k++) {
          to[k] = (unsigned)words[m][k];
          here = here && words[m][k] >> 32 == (unsigned)(i + 1);
        }
      }
    } while (!here);
  }

  __device__ void read_letters(int reader) const {
    const int lane = threadIdx.x % WARP;
    for (int i = reader; i < rows; i += STREAM_READERS) {
      C mean = 0;
      const C rstd = rstd_of(i);
      if constexpr (BACKWARD) mean = about(i);
      if constexpr (FORWARD_MOMENTS) {
        /* Not read again: where y is x, the row may be written over by now. */
        await(&memory.gathered[i % STREAM_ROWS], i / STREAM_ROWS & 1);
        mean = memory.guesses[i % STREAM_ROWS];
      }
      /* A lane's members one after the other, then those of all lanes. */
      sums_type own;
      C elements = 0;
      own.clear();
      for (int member = lane; member < a.team; member += AT_ONCE * WARP) {
        sums_type sums[AT_ONCE];
        wait_for_letters(sums, i, member);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
          if (member + k * WARP >= a.team) continue;
          add_part(own, elements, sums[k], (C)length_of(member + k * WARP));
        }
      }
      own = put_together<FORWARD_MOMENTS>(own, elements, (C)a.elements.count);
      if (lane == 0) tell(i, own, mean, rstd);
    }
  }

  __device__ void tell(int i, const sums_type &sums, C mean, C rstd) const {
    row_result<C, BACKWARD> result;
    if constexpr (BACKWARD) {
      result.gradient = find_gradient<MOMENTS>(sums, mean, rstd, a);
    } else if constexpr (MOMENTS) {
      if (a.denominator == ONEPASS_BY_DEVIATION) {
        result.scale.scale = one_over_root(sums.v[1] * one_over_n<C>(a) + eps_of<C>(a));
        result.scale.shift = mean;
        result.scale.offset = -sums.v[0] * result.scale.scale;
        result.scale.denominator = mean + sums.v[0]; /* the mean */
      } else {
        mean += sums.v[0];
        result.scale = {};
        result.scale.scale = scale_of_squares(sums.v[1] * one_over_n<C>(a) + mean * mean, a);
      }
      if (rank == 0) save_moments<true>(result.scale, x_rows.number(i), a);
    } else {
      C none = 0;
      find_scale<false, T>(result.scale, sums, none, true, a);
    }
    memory.results[i % STREAM_ROWS] = result;
    arrive(&memory.known[i % STREAM_ROWS]);
  }

  /* -- Those who work -- */

  __device__ void work(char *places) const {
    const thread_ring<T, PACKS, TENSORS> ring(places, STREAM_WORKERS, CHANNELS ? a.chunks : PACKS);
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
    waiting_weights<W, VEC> weight[BY_COLUMN ? PACKS : 1], bias[BY_COLUMN && !BACKWARD ? PACKS : 1];
    int channel[CHANNELS ? PACKS : 1]; /* of a row's */
    pack<W, 1> end_weight, end_bias;
    C dweight[MOMENTS && BACKWARD ? PACKS : 1][VEC], dbias[MOMENTS && BACKWARD ? PACKS : 1][VEC];
    C end_dweight[1] = {0}, end_dbias[1] = {0};
    if constexpr (CHANNELS) {
#pragma unroll
      for (int i = 0; i < PACKS; i++)
        channel[i] = (int)divide((unsigned)(begin + ring.position(i)), a.by_channel);
    } else if constexpr (MOMENTS) {
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
    if constexpr (FORWARD_MOMENTS) {
      plain_sums<C, 1> count;
      count.v[0] = (C)of_first.elements();
      count = sum_lanes(count, WARP);
      if (threadIdx.x % WARP == 0) {
        memory.elements_of_warps[warp] = count.v[0];
        memory.one_over_elements[warp] = 1 / count.v[0];
      }
      __syncwarp();
    }
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
                                     lossless<T>::SQUARES);
          if (found.lossy && !again) {
            guess = rounded<T>(guess + found.more);
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
        const int k = BY_COLUMN ? i : 0;
        if (!mine.has(i)) continue;
        const pack<T, VEC> x = *ring.place(slot, 0, i);
        pack<T, VEC> made;
        if constexpr (BACKWARD) {
          made = apply_backward<MOMENTS, T, W>(x, *ring.place(slot, 1, i), weight[k].get(),
                                               result.gradient, dweight[k], dbias[k]);
        } else if constexpr (CHANNELS) {
          made =
              apply_channel(x, result.scale, first_channel(a, x_rows.number(row)) + channel[i], a);
        } else {
          made = apply_forward<MOMENTS, T, W>(x, weight[k].get(), bias[k].get(), result.scale);
        }
        store_streaming(out - mine.begin + ring.position(i), made);
      }
      if (!CHANNELS && mine.column >= 0) {
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
};

template <class T, class W, bool MOMENTS, bool BACKWARD, int PACKS, bool CHANNELS = false>
__device__ inline void stream_rows(const norm_args &a) {
  typedef stream<T, W, MOMENTS, BACKWARD, PACKS, CHANNELS> of_block;
  __shared__ typename of_block::memory_type memory;
  extern __shared__ __align__(16) char places[];
  if (threadIdx.x < STREAM_ROWS) {
    init_barrier(&memory.gathered[threadIdx.x], of_block::WARPS);
    init_barrier(&memory.known[threadIdx.x], 1);
  }
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
