/* What a thread has of a row: packs of 16 aligned bytes, or an element of those that are partly another
 * row's. Gathering the sums of packs, and writing what they become. */
#ifndef ONEPASS_NORM_CUDA_SLICES_CUH
#define ONEPASS_NORM_CUDA_SLICES_CUH

#include "norm/cuda_activation.cuh"
#include "norm/cuda_common.cuh"

/* For other devices than compute capability 9.0 the compiler uses more registers for the same: what is only
 * known earlier than it must be would make it spill there. */
#if __CUDA_ARCH__ == 900
enum { SAVES_REGISTERS = 0 };
#else
enum { SAVES_REGISTERS = 1 };
#endif

/* Memory moves this many bytes together: packs are counted from a multiple of it. */
enum { SECTOR = 32 };

/* A row, or a slice of one, in positions: position 0 is its first element, where that is aligned, or else
 * the multiple of a sector before it, or before its first whole pack. A pack is named by the position of its first
 * element. */
template <class T>
struct slice_span {
  static const int VEC = vector_of<T>::count;
  int begin, end; /* positions of the first element, which may be before 0, and past the last */
  __device__ slice_span(const T *first, int length, bool aligned)
      : begin(aligned ? 0 : (int)((uintptr_t)first % SECTOR / sizeof(T))), end(begin + length) {}
  __device__ static slice_span from_whole_pack(const T *first, int length) {
    slice_span span(first, length, false);
    const int sector = SECTOR / (int)sizeof(T), before = span.begin > sector - VEC ? sector : 0;
    span.begin -= before;
    span.end -= before;
    return span;
  }
  __device__ bool holds(int at) const { return at >= begin && at + VEC <= end; }
};

/* A row, or a slice of one, of which the packs that are all its own are dealt out to `threads`
 * threads, `packs` each, and the few elements before and behind them to the lanes of the last warp: none has
 * special cases to look for. */
template <class T>
struct dealt_row {
  static const int VEC = vector_of<T>::count;
  int begin;      /* position of the first element */
  unsigned whole; /* a bit for each pack that this thread has */
  int column;     /* of its element before or behind them, counted from the first, or -1 */
  __device__ dealt_row(const slice_span<T> &span, int threads, int packs)
      : begin(span.begin), whole(0), column(-1) {
    for (int i = 0; i < packs; i++) {
      if (span.holds((int)(threadIdx.x + i * threads) * VEC)) whole |= 1u << i;
    }
    if (threadIdx.x / WARP != threads / WARP - 1) return;
    const int length = span.end - begin, until_aligned = (VEC - begin % VEC) % VEC;
    const int before = until_aligned < length ? until_aligned : length;
    const int behind = (length - before) % VEC, lane = threadIdx.x % WARP;
    if (lane < before + behind) column = lane < before ? lane : length - before - behind + lane;
  }
  __device__ bool has(int i) const { return whole >> i & 1; }
  __device__ int elements() const { return __popc(whole) * VEC + (column >= 0); }
};

/* ---- Weights ------------------------------------------------------------------------------------ */

/* Those of a pack, as they are in memory, by the column of its first element. W is the type of weight and
 * bias, T or float. */
template <class W, int VEC>
__device__ inline pack<W, VEC> aligned_weights(const void *weights, int column, float absent) {
  pack<W, VEC> to;
  if (!weights) {
#pragma unroll
    for (int j = 0; j < VEC; j++) to.v[j] = narrow_to<W>::from(absent);
    stay_packed(to);
  } else if constexpr (sizeof(W) * VEC == 16) {
    *(uint4 *)&to = *(const uint4 *)((const W *)weights + column);
  } else if constexpr (VEC == 1) {
    to.v[0] = ((const W *)weights)[column];
  } else {
    load_aligned(to.v, (const W *)weights + column);
  }
  return to;
}

/* Weights that wait for rows to come. They are held as words: choices between packs of halves, such as that
 * of the ones that are not there, would be made half by half, each in a register of its own. */
template <class W, int VEC>
struct waiting_weights {
  static const int WORDS = sizeof(W) * VEC / 4;
  unsigned words[WORDS];
  __device__ void set(const pack<W, VEC> &to) {
#pragma unroll
    for (int k = 0; k < WORDS; k++) words[k] = ((const unsigned *)&to)[k];
  }
  __device__ pack<W, VEC> get() {
    pack<W, VEC> to;
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
      if (sizeof(W) == 2) stay_word(words[k]); /* widened when needed, no sooner */
      ((unsigned *)&to)[k] = words[k];
    }
    return to;
  }
  __device__ void join(const unsigned short (&halves)[VEC]) {
#pragma unroll
    for (int k = 0; k < WORDS; k++) words[k] = halves[2 * k] | (unsigned)halves[2 * k + 1] << 16;
  }
  /* Of any address. One pack at a time: all loads together would take more registers than there are. */
  __device__ void load(const void *weights, int column, float absent, bool aligned, bool there) {
    set(aligned_weights<W, VEC>(NULL, 0, absent));
    if (!weights || !there) return;
    const W *from = (const W *)weights + column;
    if (aligned) {
#pragma unroll
      for (int k = 0; k < WORDS; k += 4) *(uint4 *)&words[k] = ((const uint4 *)from)[k / 4];
    } else if constexpr (sizeof(W) == 2) {
#pragma unroll
      for (int k = 0; k < WORDS; k++) {
        const unsigned short low = load_in_place((const unsigned short *)from + 2 * k);
        const unsigned short high = load_in_place((const unsigned short *)from + 2 * k + 1);
        words[k] = low | (unsigned)high << 16;
      }
    } else {
#pragma unroll
      for (int k = 0; k < WORDS; k++) words[k] = load_in_place((const unsigned *)from + k);
    }
  }
};

/* Those of all packs that a thread has of a row that starts anywhere. Halves are all asked for before one is waited for. */
template <class W, int VEC, int PACKS, class COLUMN>
__device__ inline void load_together(waiting_weights<W, VEC> (&to)[PACKS], const void *weights,
                                     float absent, bool aligned, unsigned whole, COLUMN column) {
  if constexpr (sizeof(W) == 2) {
    if (!aligned && weights) {
      unsigned short halves[PACKS][VEC];
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          halves[i][j] = 0;
          if (whole >> i & 1)
            halves[i][j] = load_in_place((const unsigned short *)weights + column(i) + j);
        }
      }
#pragma unroll
      for (int i = 0; i < PACKS; i++) to[i].join(halves[i]);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < PACKS; i++) to[i].load(weights, column(i), absent, aligned, whole >> i & 1);
}

/* ---- Sums --------------------------------------------------------------------------------------- */

/* A number of the type of sums that is one of T, too, so that elements can have it. */
template <class T, class C>
__device__ inline C rounded(C v) {
  return (C)widen(narrow_to<T>::from(v));
}

/* Another guess at the mean of a row: that of its first pack. One that is not finite is replaced when sums are made again,
 * which costs other rows nothing. */
template <class T, class C, int VEC>
__device__ inline C mean_of_pack(const pack<T, VEC> &first) {
  C sum = 0;
#pragma unroll
  for (int j = 0; j < VEC; j++) sum += (C)widen(first.v[j]);
  return rounded<T>(sum * (C)(1.0 / VEC));
}

/* Moments: about a guess that is rounded to T. */
template <int STATISTIC, class T, class C, int SUMS, int VEC>
__device__ inline void gather_forward(plain_sums<C, SUMS> &mine, const pack<T, VEC> &x, C guess) {
  C v[VEC];
  widen_pack(v, x);
  if constexpr (STATISTIC == OF_MOMENTS) {
    add_deviations<T>(mine, v, guess);
  } else if constexpr (STATISTIC == OF_SQUARES) {
    add_squares(mine, v);
  } else {
    add_magnitudes(mine, v);
  }
}

/* The same of all that a thread has of a row. */
template <int STATISTIC, class T, class C, int SUMS, int VEC, int PACKS>
__device__ inline void gather_dealt(plain_sums<C, SUMS> &sums, const dealt_row<T> &mine,
                                    pack<T, VEC> (&held)[PACKS], const pack<T, 1> &end, C guess) {
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
    if (mine.has(i)) gather_forward<STATISTIC>(sums, held[i], guess);
    stay_packed(held[i]);
  }
  if (mine.column >= 0) gather_forward<STATISTIC>(sums, end, guess);
}

template <int STATISTIC, class C, int N, int SUMS>
__device__ inline void add_products(plain_sums<C, SUMS> &mine, const C (&x)[N], const C (&dy)[N],
                                    const C (&w)[N], C mean, C rstd) {
  plain_sums<C, SUMS> part; /* of its own, so that packs do not wait for each other */
  part.clear();
#pragma unroll
  for (int j = 0; j < N; j++)
    add_product<STATISTIC>(part, x[j], dy[j], STATISTIC ? w[j] : 1, mean, rstd);
  mine.merge(part);
}

template <int STATISTIC, class T, class W, class C, int SUMS, int VEC>
__device__ inline void gather_backward(plain_sums<C, SUMS> &mine, const pack<T, VEC> &x,
                                       const pack<T, VEC> &dy, const pack<W, VEC> &w, C mean,
                                       C rstd) {
  C v[VEC], g[VEC], by[VEC];
  widen_pack(v, x);
  widen_pack(g, dy);
  if (STATISTIC != OF_MAGNITUDES) widen_pack(by, w);
  add_products<STATISTIC>(mine, v, g, by, mean, rstd);
}

/* ---- What is fused with a norm ---------------------------------------------------------------- */

/* A row and what is added to it; `sum` is where that goes, or NULL. */
template <class T>
struct summed_row {
  const T *x, *residual;
  T *sum;
  __device__ summed_row(const norm_args &a, int64_t row)
      : x(row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row)), residual(NULL), sum(NULL) {
    if (a.at.residual) residual = row_of<T>(a.at.residual, a, ONEPASS_ROLE_RESIDUAL, row);
    if (a.at.sum) sum = row_of<T>(a.at.sum, a, ONEPASS_ROLE_SUM, row);
  }
  /* The pack at an element, which is read before the sum is written: that may be in its place. */
  template <int VEC>
  __device__ pack<T, VEC> take(int64_t at) const {
    pack<T, VEC> v = load_pack<T, VEC>(x + at);
    if (residual) v = summed(v, load_pack<T, VEC>(residual + at));
    if (sum) store_pack(sum + at, v);
    return v;
  }
  /* The same once more, after all sums have been written. */
  template <int VEC>
  __device__ pack<T, VEC> take_again(int64_t at) const {
    if (sum) return load_pack<T, VEC>(sum + at);
    const pack<T, VEC> v = load_pack<T, VEC>(x + at);
    return residual ? summed(v, load_pack<T, VEC>(residual + at)) : v;
  }
};

/* ---- Results ------------------------------------------------------------------------------------ */

/* Squares: there is no bias. */
template <int STATISTIC, class T, class W, class C, int VEC>
__device__ inline pack<T, VEC> apply_forward(const pack<T, VEC> &x, const pack<W, VEC> &w,
                                             const pack<W, VEC> &b, const row_scale<C> &scale,
                                             int activation = ONEPASS_NO_ACTIVATION) {
  C v[VEC];
  widen_pack(v, x);
  if constexpr (STATISTIC == OF_SQUARES) {
    C by[VEC];
    widen_pack(by, w);
#pragma unroll
    for (int j = 0; j < VEC; j++) v[j] = v[j] * scale.scale * by[j];
    activate_all(activation, v);
  } else if constexpr (STATISTIC == OF_MOMENTS) {
    C by[VEC], more[VEC];
    widen_pack(by, w);
    widen_pack(more, b);
    take_off<T>(v, scale.shift);
#pragma unroll
    for (int j = 0; j < VEC; j++) v[j] = (v[j] * scale.scale + scale.offset) * by[j] + more[j];
    activate_all(activation, v);
  } else {
    if (scale.first != 1) { /* hardly ever */
#pragma unroll
      for (int j = 0; j < VEC; j++) v[j] *= scale.first;
    }
#pragma unroll
    for (int j = 0; j < VEC; j++) v[j] *= scale.scale;
  }
  return narrow_pack<C, T, VEC>(v);
}

/* Weights by channel: the elements of a pack are all of one. */
__device__ inline int64_t first_channel(const norm_args &a, int64_t row) {
  return row % a.groups * a.group_channels;
}

template <class T, class C, int VEC>
__device__ inline pack<T, VEC> apply_channel(const pack<T, VEC> &x, const row_scale<C> &row,
                                             C weight, C bias) {
  const C scale = row.scale * weight, offset = row.offset * weight + bias;
  C v[VEC];
  widen_pack(v, x);
#pragma unroll
  for (int j = 0; j < VEC; j++) v[j] = (v[j] - row.shift) * scale + offset;
  return narrow_pack<C, T, VEC>(v);
}
template <class T, class C, int VEC>
__device__ inline pack<T, VEC> apply_channel(const pack<T, VEC> &x, const row_scale<C> &row,
                                             int64_t channel, const norm_args &a) {
  return apply_channel(x, row, a.at.weight ? weight_at<T>(a.at.weight, channel, a) : (C)1,
                       a.at.bias ? weight_at<T>(a.at.bias, channel, a) : (C)0);
}

/* dweight and dbias of the pack's columns are added up. */
template <int STATISTIC, class T, class W, class C, int VEC>
__device__ inline pack<T, VEC> apply_backward(const pack<T, VEC> &x, const pack<T, VEC> &dy,
                                              const pack<W, VEC> &w,
                                              const row_gradient<C> &gradient, C (&dweight)[VEC],
                                              C (&dbias)[VEC]) {
  C v[VEC], g[VEC], by[VEC];
  widen_pack(v, x);
  widen_pack(g, dy);
  if (STATISTIC != OF_MAGNITUDES) widen_pack(by, w);
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    if constexpr (STATISTIC == OF_SQUARES) {
      const C z = v[j] * gradient.rstd;
      dweight[j] += g[j] * z;
      v[j] = g[j] * by[j] * gradient.rstd + z * gradient.by_z;
    } else if constexpr (STATISTIC == OF_MOMENTS) {
      const C z = normalized(gradient, v[j]);
      dweight[j] += g[j] * z;
      dbias[j] += g[j];
      v[j] = apply_moments_gradient(gradient, z, g[j] * by[j]);
    } else {
      v[j] = apply_l1_gradient(gradient, v[j], g[j]);
    }
  }
  return narrow_pack<C, T, VEC>(v);
}

/* What a row's sums come to, for the thread that has them. Moments: false if the guess was no good and
 * the sums should be made again about a better one. */
template <int STATISTIC, class T, bool CENTERED = false, class C, int SUMS>
__device__ inline bool find_scale(row_scale<C> &scale, const plain_sums<C, SUMS> &sums, C &guess,
                                  bool again, const norm_args &a) {
  if constexpr (STATISTIC == OF_SQUARES) {
    scale = {};
    scale.first = 1; /* for wide blocks, which know no weights */
    scale.scale = scale_of_squares(sums.v[0] * one_over_n<C>(a), a);
  } else if constexpr (STATISTIC == OF_MOMENTS) {
    if (!CENTERED && !is_centered(a)) {
      scale = {};
      scale.scale = scale_of_squares(sums.v[1] * one_over_n<C>(a), a);
      return true;
    }
    const row_moments<C> found(sums, guess, one_over_n<C>(a), lossless<T>::SQUARES);
    if (found.lossy && !again) {
      guess = finite_guess(rounded<T>(guess + found.more));
      return false;
    }
    scale.scale = one_over_root(found.squares * one_over_n<C>(a) + eps_of<C>(a));
    scale.shift = guess;
    scale.offset = -found.more * scale.scale;
    scale.mean = guess + found.more;
  } else {
    scale = {};
    find_factors(scale.first, scale.scale,
                 denominator_of(sums.v[0] * share_of<C>(a), eps_of<C>(a), a));
  }
  return true;
}

/* Halves are mostly taken about 0. SPLIT: the compiler is to know it, or it leaves instructions for the difference that are
 * issued and do nothing. So `gather` is given 0 the first time, and `write` a shift of 0 where it is 0, each in code of
 * its own. */
template <class T, bool SPLIT = true, class GUESS, class GATHER>
__device__ inline void about_guess(const GUESS &guess, GATHER gather) {
  if constexpr (SPLIT && sizeof(T) == 2) {
    const GUESS zero = {0};
    if (!gather(zero, 0)) gather(guess, 1);
  } else {
#pragma unroll 1
    for (int again = 0; !gather(guess, again); again++) {
    }
  }
}
template <class T, bool SPLIT = true, class C, class WRITE>
__device__ inline void about_shift(const row_scale<C> &scale, WRITE write) {
  if (SPLIT && sizeof(T) == 2 && scale.shift == 0) {
    row_scale<C> about_zero = scale;
    about_zero.shift = 0;
    write(about_zero);
  } else {
    write(scale);
  }
}

/* The same for several rows at once. */
template <class T, bool SPLIT = true, class C, int ROWS, class WRITE>
__device__ inline void about_shifts(const row_scale<C> (&scale)[ROWS], WRITE write) {
  bool zero = SPLIT && sizeof(T) == 2;
#pragma unroll
  for (int r = 0; r < ROWS; r++) zero = zero && scale[r].shift == 0;
  if (zero) {
    row_scale<C> about_zero[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      about_zero[r] = scale[r];
      about_zero[r].shift = 0;
    }
    write(about_zero);
  } else {
    write(scale);
  }
}

template <bool ONE_AXIS, class C>
__device__ inline void save_moments(const row_scale<C> &scale, int64_t row, const norm_args &a) {
  if (a.at.mean) *row_of<C, ONE_AXIS>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = scale.mean;
  if (a.at.rstd) *row_of<C, ONE_AXIS>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) = scale.scale;
}

template <int STATISTIC, class C, int SUMS>
__device__ inline row_gradient<C> find_gradient(const plain_sums<C, SUMS> &sums, C mean, C rstd,
                                                const norm_args &a) {
  row_gradient<C> row = {0};
  if constexpr (STATISTIC == OF_SQUARES) {
    row.rstd = rstd;
    row.by_z = -rstd * (sums.v[0] * rstd) * share_of_products(rstd, a);
  } else if constexpr (STATISTIC == OF_MOMENTS) {
    row.mean = mean;
    row.rstd = rstd;
    if (!is_centered(a)) {
      row.by_z = -rstd * sums.v[1] * share_of_products(rstd, a);
      return row;
    }
    row.offset = -sums.v[2] * one_over_n<C>(a);
    row.by_z = -rstd * (sums.v[1] + row.offset * sums.v[0]) * one_over_n<C>(a);
    row.constant = -rstd * sums.v[0] * one_over_n<C>(a);
  } else {
    const C norm = sums.v[0] * share_of<C>(a);
    row.denominator = denominator_of(norm, eps_of<C>(a), a);
    row.far = find_second_factor(row.scale, row.denominator);
    row.slope = sums.v[1] * share_of<C>(a) / row.denominator / row.denominator;
    if (a.clamp && norm < eps_of<C>(a)) row.slope = 0;
  }
  return row;
}

/* ---- Rows of a block that stays ------------------------------------------------------------------- */

/* Those of one tensor, by their order; rows are on one axis. `teams` blocks, or teams of them, take turns. */
template <class T>
struct block_rows {
  T *first;
  int64_t step;
  int count, team, teams;
  __device__ block_rows(const norm_args &a, const void *base, int role)
      : team(blockIdx.x / a.team), teams(gridDim.x / a.team) {
    const int64_t stride = a.rows.stride[0][role];
    first = (T *)base + team * stride;
    step = teams * stride;
    count = (int)((a.rows.count - team + teams - 1) / teams);
  }
  __device__ T *at(int i) const { return first + i * step; }
  __device__ int64_t number(int i) const { return team + (int64_t)i * teams; }
};

/* One thread asks for what will be needed soon to come to the second-level cache, where the GPU can be asked for
 * so much at once. */
template <class T>
__device__ inline void prefetch_range(const T *first, int64_t count) {
  const uintptr_t begin = ((uintptr_t)first + 15) / 16 * 16;
  const int64_t bytes = (int64_t)((uintptr_t)(first + count) - begin) / 16 * 16;
  if (bytes > 0) prefetch_bytes((const void *)begin, (unsigned)bytes);
}

/* ---- Rows on their way ---------------------------------------------------------------------------- */

/* A thread's own places in shared memory for its packs of a few rows of some tensors: what it asks for
 * is read by itself alone, so no barrier is needed. */
template <class T, int PACKS, int TENSORS>
struct thread_ring {
  static const int VEC = vector_of<T>::count;
  char *mine;
  int threads, packs; /* there may be places for fewer packs */
  __device__ thread_ring(char *shared, int all, int most = PACKS)
      : mine(shared + threadIdx.x * 16), threads(all), packs(most) {}
  __device__ int position(int i) const { return (int)(threadIdx.x + i * threads) * VEC; }
  __device__ pack<T, VEC> *place(int slot, int tensor, int i) const {
    return (pack<T, VEC> *)(mine + ((slot * TENSORS + tensor) * packs + i) * threads * 16);
  }
  /* Those that the thread has of a row. */
  __device__ void ask(int slot, int tensor, const T *first, const dealt_row<T> &mine) const {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      if (mine.has(i)) copy_async(place(slot, tensor, i), first - mine.begin + position(i), 16);
    }
  }
};

/* ---- Sums over rows ------------------------------------------------------------------------------- */

/* A part of dweight or dbias, or the number itself, which may be of x's type. */
template <class T, class C>
__device__ inline void store_part(void *parts, int64_t at, C sum, const norm_args &a) {
  if (sizeof(T) == 2 && a.narrow_parts) {
    ((T *)parts)[at] = narrow_to<T>::from(sum);
  } else {
    ((C *)parts)[at] = sum;
  }
}

/* A block's sums of dweight and dbias, which its threads have in registers, as a part. `to`: that of the
 * slice's first element. A lane's sums lie side by side, and one by one each store would be of 32 sectors: they go
 * through the places of the warp's own packs, where nothing is on its way any more. */
template <class T, class C, int PACKS>
__device__ inline void store_parts(int64_t to, const dealt_row<T> &mine,
                                   const thread_ring<T, PACKS, 2> &ring,
                                   const C (&dweight)[PACKS][vector_of<T>::count],
                                   const C (&dbias)[PACKS][vector_of<T>::count], C end_dweight,
                                   C end_dbias, const norm_args &a) {
  const int VEC = vector_of<T>::count, STEP = WARP / VEC;
  const int ROOM = 16 / sizeof(C); /* of a place */
  /* Every STEP-th lane has a sum that this one stores, from `other` on: always the same of its VEC. */
  const int lane = (int)threadIdx.x % WARP, other = lane / VEC, which_of_other = lane % VEC;
  wait_for_all_but<0>();
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
    const unsigned has = __ballot_sync(ALL_LANES, mine.has(i));
    if (!has) continue;
    const int64_t first = to + (ring.position(i) - lane * VEC - mine.begin) + lane;
    const C *from = (const C *)ring.place(0, which_of_other / ROOM, i) + (other - lane) * ROOM +
                    which_of_other % ROOM;
#pragma unroll
    for (int which = 0; which < 2; which++) {
      void *const parts = which ? a.dbias_parts : a.dweight_parts;
      if (!parts) continue;
#pragma unroll
      for (int j = 0; j < VEC; j++)
        ((C *)ring.place(0, j / ROOM, i))[j % ROOM] = which ? dbias[i][j] : dweight[i][j];
      __syncwarp();
      /* Looked at once: stores behind branches of their own take longer. */
      if (sizeof(T) == 2 && a.narrow_parts) {
#pragma unroll
        for (int k = 0; k < VEC; k++) {
          if (has >> (other + k * STEP) & 1)
            ((T *)parts)[first + k * WARP] = narrow_to<T>::from(from[k * STEP * ROOM]);
        }
      } else {
#pragma unroll
        for (int k = 0; k < VEC; k++) {
          if (has >> (other + k * STEP) & 1) ((C *)parts)[first + k * WARP] = from[k * STEP * ROOM];
        }
      }
      __syncwarp();
    }
  }
  if (mine.column < 0) return;
  if (a.dweight_parts) store_part<T>(a.dweight_parts, to + mine.column, end_dweight, a);
  if (a.dbias_parts) store_part<T>(a.dbias_parts, to + mine.column, end_dbias, a);
}

#endif
