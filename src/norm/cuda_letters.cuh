/* Teams of blocks that share rows: each block has a slice of all of its team's rows, and the sums of slices become
 * those of rows by letters.
 *
 * Most threads of a block work, which cuda_stream.cuh and cuda_tide.cuh are about; some warps exchange sums. They add up
 * those of the workers' warps and post them in mailboxes in global memory, wait for the letters of the whole team, add
 * them up, in the same order in every block, and tell the workers.
 *
 * Letters carry the number of their row, so they are not read too early; mailboxes are zeroed before the
 * launch. A box is used again only for a row that nobody can have reached before all have read it. There may be
 * copies of a letter, so that not all blocks look at the same one. The blocks of a team are on the chip together, which
 * a cooperative launch sees to. */
#ifndef ONEPASS_NORM_CUDA_LETTERS_CUH
#define ONEPASS_NORM_CUDA_LETTERS_CUH

#include "norm/cuda_slices.cuh"

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

/* ---- What a block knows of its rows ------------------------------------------------------------------ */

/* What is done with a row when its sums are known. */
template <class C, bool BACKWARD>
struct row_result {
  row_scale<C> scale;
};
template <class C>
struct row_result<C, true> {
  row_gradient<C> gradient;
};

/* Of WARPS that work and ROWS, more than can be between gathering and writing. */
template <class C, int SUMS, bool BACKWARD, int WARPS, int ROWS>
struct team_memory {
  plain_sums<C, SUMS> of_warps[ROWS][WARPS];
  C elements_of_warps[WARPS], one_over_elements[WARPS];
  C guesses[ROWS]; /* what the sums of rows are about */
  row_result<C, BACKWARD> results[ROWS];
  unsigned long long gathered[ROWS], known[ROWS];
  /* Before the first row; a barrier of the block follows. */
  __device__ void init() {
    if (threadIdx.x >= ROWS) return;
    init_barrier(&gathered[threadIdx.x], WARPS);
    init_barrier(&known[threadIdx.x], 1);
  }
};

/* AT_ONCE: letters that a lane asks for before it looks at the first. */
template <class T, bool MOMENTS, bool BACKWARD, int WORKERS, int ROWS, int AT_ONCE>
struct team_member {
  typedef typename sums_of<T>::type C;
  static const int SUMS = BACKWARD ? (MOMENTS ? 3 : 2) : (MOMENTS ? 2 : 1);
  static const int WORDS = SUMS * (int)sizeof(C) / 4; /* of a letter */
  static const bool FORWARD_MOMENTS = MOMENTS && !BACKWARD;
  static const int WARPS = WORKERS / WARP;
  typedef plain_sums<C, SUMS> sums_type;
  typedef team_memory<C, SUMS, BACKWARD, WARPS, ROWS> memory_type;

  const norm_args &a;
  memory_type &memory;
  const int rank;
  const int64_t begin; /* of this block's slice */
  const int length;
  const block_rows<T> x_rows;
  const int rows; /* of this team */

  __device__ team_member(const norm_args &args, memory_type &shared)
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
    return guess_mean(row_of<T, true>(a.at.x, a, ONEPASS_ROLE_X, x_rows.number(i)), a);
  }
  __device__ C rstd_of(int i) const {
    if (!MOMENTS || !BACKWARD || i >= rows) return 0;
    return *row_of<C, true>(a.at.rstd, a, ONEPASS_ROLE_RSTD, x_rows.number(i));
  }

  /* What the sums of a warp that gathers are divided by; each lane has so many elements. */
  __device__ void count_elements(int warp, int of_lane) const {
    plain_sums<C, 1> count;
    count.v[0] = (C)of_lane;
    count = sum_lanes(count, WARP);
    if (threadIdx.x % WARP == 0) {
      memory.elements_of_warps[warp] = count.v[0];
      memory.one_over_elements[warp] = 1 / count.v[0];
    }
    __syncwarp();
  }

  /* -- Those who exchange -- */

  __device__ unsigned long long *letter(int i, int member, int copy) const {
    const int SLOTS = ONEPASS_NORM_MAIL_SLOTS(ROWS);
    const int64_t box = ((int64_t)x_rows.team * SLOTS + i % SLOTS) * a.copies + copy;
    return a.mail + (box * a.team + member) * WORDS;
  }

  /* Adds the sums of parts to those of others; parts of no elements have none. */
  __device__ static void add_parts(sums_type &own, C &elements, const sums_type (&parts)[AT_ONCE],
                                   const C (&sizes)[AT_ONCE]) {
    if constexpr (FORWARD_MOMENTS) {
      C all = elements, apart = elements * own.v[0];
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        all += sizes[k];
        if (sizes[k] > 0) apart += sizes[k] * parts[k].v[0];
      }
      if (all == 0) return;
      apart /= all;
      C squares = own.v[1] + (own.v[0] - apart) * (own.v[0] - apart) * elements;
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const C distance = parts[k].v[0] - apart;
        if (sizes[k] > 0) squares += parts[k].v[1] + distance * distance * sizes[k];
      }
      own.v[0] = apart;
      own.v[1] = squares;
      elements = all;
    } else {
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        if (sizes[k] > 0) own.merge(parts[k]);
      }
    }
  }

  /* Of this block's slice of a row, as soon as it is gathered. */
  __device__ sums_type await_slice(int i) const {
    const int lane = threadIdx.x % WARP;
    await(&memory.gathered[i % ROWS], i / ROWS & 1);
    sums_type own;
    own.clear();
    if (lane < WARPS) own = memory.of_warps[i % ROWS][lane];
    const C of_warp = FORWARD_MOMENTS && lane < WARPS ? memory.elements_of_warps[lane] : 0;
    return put_together<FORWARD_MOMENTS>(own, of_warp, (C)length);
  }

  __device__ void post_letter(int i) const {
    const int lane = threadIdx.x % WARP;
    const sums_type own = await_slice(i);
    const unsigned *words = (const unsigned *)&own;
    if (lane >= a.copies) return;
    unsigned long long *to = letter(i, rank, lane);
#pragma unroll
    for (int k = 0; k < WORDS; k++) post_word(to + k, (unsigned long long)(i + 1) << 32 | words[k]);
  }

  /* Those of members first, first + WARP, ...: all are asked for before the first is looked at. All lanes look until all
   * have theirs, and do what there is to do in between. */
  template <class IN_BETWEEN>
  __device__ void wait_for_letters(sums_type (&sums)[AT_ONCE], int i, int first,
                                   IN_BETWEEN in_between) const {
    for (;;) {
      unsigned long long words[AT_ONCE][WORDS];
#pragma unroll
      for (int m = 0; m < AT_ONCE; m++) {
        const int member = first + m * WARP < a.team ? first + m * WARP : a.team - 1;
#pragma unroll
        for (int k = 0; k < WORDS; k++)
          words[m][k] = look_at_word(letter(i, member, rank % a.copies) + k);
      }
      bool here = true;
#pragma unroll
      for (int m = 0; m < AT_ONCE; m++) {
        unsigned *to = (unsigned *)&sums[m];
#pragma unroll
        for (int k = 0; k < WORDS; k++) {
          to[k] = (unsigned)words[m][k];
          here = here && words[m][k] >> 32 == (unsigned)(i + 1);
        }
      }
      if (__all_sync(0xffffffffu, here)) return;
      in_between();
    }
  }

  /* Of a row that this block has gathered. */
  template <class IN_BETWEEN>
  __device__ void read_letters_of(int i, IN_BETWEEN in_between) const {
    const int lane = threadIdx.x % WARP;
    const C rstd = rstd_of(i);
    C mean = FORWARD_MOMENTS ? 0 : about(i);
    /* A lane's members one after the other, then those of all lanes. */
    sums_type own;
    C elements = 0;
    own.clear();
    for (int first = 0; first < a.team; first += AT_ONCE * WARP) {
      sums_type sums[AT_ONCE];
      C sizes[AT_ONCE];
      wait_for_letters(sums, i, first + lane, in_between);
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) {
        const int member = first + lane + k * WARP;
        sizes[k] = member < a.team ? (C)length_of(member) : 0;
      }
      add_parts(own, elements, sums, sizes);
    }
    own = put_together<FORWARD_MOMENTS>(own, elements, (C)a.elements.count);
    if (lane > 0) return;
    /* A guess is not made again: where y is x, the row may be written over by now. */
    if (FORWARD_MOMENTS) mean = memory.guesses[i % ROWS];
    tell(i, own, mean, rstd);
  }

  __device__ void tell(int i, const sums_type &sums, C mean, C rstd) const {
    row_result<C, BACKWARD> result;
    if constexpr (BACKWARD) {
      result.gradient = find_gradient<MOMENTS>(sums, mean, rstd, a);
    } else if constexpr (MOMENTS) {
      if (is_centered(a)) {
        result.scale.scale = one_over_root(sums.v[1] * one_over_n<C>(a) + eps_of<C>(a));
        result.scale.shift = mean;
        result.scale.offset = -sums.v[0] * result.scale.scale;
        result.scale.mean = mean + sums.v[0];
      } else {
        result.scale = {};
        result.scale.scale = scale_of_squares(sums.v[1] * one_over_n<C>(a), a);
      }
      if (rank == 0) save_moments<true>(result.scale, x_rows.number(i), a);
    } else {
      C none = 0;
      find_scale<false, T>(result.scale, sums, none, true, a);
    }
    memory.results[i % ROWS] = result;
    arrive(&memory.known[i % ROWS]);
  }
};

#endif
