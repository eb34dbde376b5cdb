/* What a thread has of a row: packs of 16 aligned bytes, the first and the last of which may be partly
 * another row's. Gathering the sums of packs, and writing what they become. */
#ifndef ONEPASS_NORM_CUDA_SLICES_CUH
#define ONEPASS_NORM_CUDA_SLICES_CUH

#include "norm/cuda_common.cuh"

/* For other devices than compute capability 9.0 the compiler uses more registers for the same: a second copy
 * of the work on a row, without its special cases, would make it spill there. */
#if __CUDA_ARCH__ == 900
enum { SAVES_REGISTERS = 0 };
#else
enum { SAVES_REGISTERS = 1 };
#endif

/* Memory moves this many bytes together: packs are counted from a multiple of it. */
enum { SECTOR = 32 };

/* A row, or a slice of one, in positions: position 0 is its first element, where that is aligned, or else
 * the multiple of a sector before it. A pack is named by the position of its first element. */
template <class T>
struct slice_span {
  static const int VEC = vector_of<T>::count;
  int begin, end; /* positions of the first element and past the last */
  __device__ slice_span(const T *first, int length, bool aligned)
      : begin(aligned ? 0 : (int)((uintptr_t)first % SECTOR / sizeof(T))), end(begin + length) {}
  __device__ bool touches(int at) const { return at + VEC > begin && at < end; }
  __device__ bool holds(int at) const { return at >= begin && at + VEC <= end; }
  __device__ bool has(int position) const { return position >= begin && position < end; }
  /* Elements at positions from 0 up to `last`. */
  __device__ int count_below(int last) const {
    const int from = begin > 0 ? begin : 0, to = end < last ? end : last;
    return to > from ? to - from : 0;
  }
  /* Of a pack that the slice touches, up to the slice's end. */
  __device__ int bytes_from(int at) const {
    const int left = (end - at) * (int)sizeof(T);
    return left < 16 ? left : 16;
  }
};

/* The same for a thread all of whose packs are whole, which is most of them. */
template <class T>
struct whole_span {
  static const int VEC = vector_of<T>::count;
  int begin;
  __device__ explicit whole_span(const slice_span<T> &span) : begin(span.begin) {}
  __device__ bool touches(int) const { return true; }
  __device__ bool holds(int) const { return true; }
  __device__ bool has(int) const { return true; }
  __device__ int bytes_from(int) const { return 16; }
};

/* A row of which the packs that are all its own are dealt out to the threads of a block, PACKS each, and the
 * few elements before and behind them to the lanes of its last warp: none has special cases to look for. */
template <class T, int PACKS>
struct dealt_row {
  static const int VEC = vector_of<T>::count;
  slice_span<T> span;
  unsigned whole; /* a bit for each pack that this thread has */
  int column;     /* of its element before or behind them, or -1 */
  __device__ dealt_row(const T *first, int n, bool aligned)
      : span(first, n, aligned), whole(0), column(-1) {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      if (span.holds(position(i))) whole |= 1u << i;
    }
    const int until_aligned = (VEC - span.begin % VEC) % VEC;
    const int before = until_aligned < n ? until_aligned : n, behind = (n - before) % VEC;
    const int lane = threadIdx.x % WARP;
    if (threadIdx.x / WARP == blockDim.x / WARP - 1 && lane < before + behind)
      column = lane < before ? lane : n - before - behind + lane;
  }
  __device__ int position(int i) const { return (int)(threadIdx.x + i * blockDim.x) * VEC; }
  __device__ bool has(int i) const { return whole >> i & 1; }
};

/* ---- Weights ------------------------------------------------------------------------------------ */

/* Those of a pack, as they are in memory: W is the type of weight and bias, T or float. `first`: that of
 * the slice's first element. */
template <class W, class T>
__device__ inline pack<W, vector_of<T>::count> weights_of(const void *first, int at,
                                                          const slice_span<T> &span, float absent) {
  const int VEC = vector_of<T>::count;
  pack<W, VEC> to;
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    to.v[j] = narrow_to<W>::from(absent);
    if (first && span.has(at + j)) to.v[j] = ((const W *)first)[at + j - span.begin];
  }
  stay_packed(to);
  return to;
}

/* The same of aligned rows, where a pack is whole or has nothing. */
template <class W, int VEC>
__device__ inline pack<W, VEC> aligned_weights(const void *first, int at, float absent) {
  pack<W, VEC> to;
  if (!first) {
#pragma unroll
    for (int j = 0; j < VEC; j++) to.v[j] = narrow_to<W>::from(absent);
    stay_packed(to);
  } else if constexpr (sizeof(W) * VEC == 16) {
    *(uint4 *)&to = *(const uint4 *)((const W *)first + at);
  } else {
    load_aligned(to.v, (const W *)first + at);
  }
  return to;
}

/* The same of weights that all rows come back to, from a cache that other data passes through. */
template <class W, int VEC>
__device__ inline pack<W, VEC> held_weights(const void *first, int at, float absent) {
  pack<W, VEC> to;
  if (!first) return aligned_weights<W, VEC>(first, at, absent);
#pragma unroll
  for (int i = 0; i < VEC; i += 16 / sizeof(W))
    *(uint4 *)&to.v[i] = load_held((const W *)first + at + i);
  return to;
}

/* ---- Sums --------------------------------------------------------------------------------------- */

template <bool MOMENTS, class T, class C, int N, int SUMS>
__device__ inline void add_forward(plain_sums<C, SUMS> &mine, C (&v)[N], C guess) {
  if constexpr (MOMENTS) {
    add_deviations<T>(mine, v, guess);
  } else {
    add_magnitudes(mine, v);
  }
}

/* Elements of a pack that are not the row's take a value that adds nothing to its sums. */
template <class T, int VEC>
__device__ inline int fill_outside(pack<T, VEC> &elements, int at, const slice_span<T> &span,
                                   T with) {
  if constexpr (sizeof(T) == 2) { /* by words, or else every half would be cut out of its word */
    unsigned *words = (unsigned *)&elements;
    const pack<T, 2> two = {with, with};
    const unsigned fill = *(const unsigned *)&two;
#pragma unroll
    for (int j = 0; j < VEC; j += 2) {
      const unsigned keep =
          (span.has(at + j) ? 0xffffu : 0) | (span.has(at + j + 1) ? 0xffff0000u : 0);
      words[j / 2] = (words[j / 2] & keep) | (fill & ~keep);
    }
  } else {
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      if (!span.has(at + j)) elements.v[j] = with;
    }
  }
  const int before = span.begin - at, behind = at + VEC - span.end;
  return (before > 0 ? before : 0) + (behind > 0 ? behind : 0);
}
template <class T, int VEC>
__device__ inline int fill_outside(pack<T, VEC> &, int, const whole_span<T> &, T) {
  return 0;
}

/* A number of the type of sums that is one of T, too, so that elements can have it. */
template <class T, class C>
__device__ inline C rounded(C v) {
  return (C)widen(narrow_to<T>::from(v));
}

/* Another guess at the mean of a row: that of its first pack. */
template <class T, class C, int VEC>
__device__ inline C mean_of_pack(const pack<T, VEC> &first) {
  C sum = 0;
#pragma unroll
  for (int j = 0; j < VEC; j++) sum += (C)widen(first.v[j]);
  return rounded<T>(sum * (C)(1.0 / VEC));
}

/* Moments: about a guess that is rounded to T. */
template <bool MOMENTS, class T, class C, int SUMS, int VEC, class SPAN>
__device__ inline void gather_forward(plain_sums<C, SUMS> &mine, pack<T, VEC> &x, int at,
                                      const SPAN &span, C guess) {
  if (!span.holds(at)) fill_outside(x, at, span, narrow_to<T>::from(MOMENTS ? guess : 0));
  C v[VEC];
  widen_pack(v, x);
  add_forward<MOMENTS, T>(mine, v, guess);
}

template <bool MOMENTS, class C, int N, int SUMS>
__device__ inline void add_products(plain_sums<C, SUMS> &mine, const C (&x)[N], const C (&dy)[N],
                                    const C (&w)[N], C mean, C rstd) {
  plain_sums<C, SUMS> part; /* of its own, so that packs do not wait for each other */
  part.clear();
#pragma unroll
  for (int j = 0; j < N; j++)
    add_product<MOMENTS>(part, x[j], dy[j], MOMENTS ? w[j] : 1, mean, rstd);
  mine.merge(part);
}

template <bool MOMENTS, class T, class W, class C, int SUMS, int VEC, class SPAN>
__device__ inline void gather_backward(plain_sums<C, SUMS> &mine, pack<T, VEC> &x, pack<T, VEC> &dy,
                                       const pack<W, VEC> &w, int at, const SPAN &span, C mean,
                                       C rstd) {
  if (!span.holds(at)) {
    /* With a gradient of 0 they add nothing but to the sum of z, where they are taken off again. */
    const T near = narrow_to<T>::from(MOMENTS ? mean : 0);
    const int filled = fill_outside(x, at, span, near);
    fill_outside(dy, at, span, narrow_to<T>::from(0));
    if constexpr (MOMENTS) mine.v[2] -= filled * (((C)widen(near) - mean) * rstd);
  }
  C v[VEC], g[VEC], by[VEC];
  widen_pack(v, x);
  widen_pack(g, dy);
  if (MOMENTS) widen_pack(by, w);
  add_products<MOMENTS>(mine, v, g, by, mean, rstd);
}

/* ---- Results ------------------------------------------------------------------------------------ */

template <bool PLAIN = false, class T, int VEC, class SPAN>
__device__ inline void store_span(T *first, const pack<T, VEC> &out, int at, const SPAN &span) {
  T *to = first - span.begin + at;
  if (span.holds(at)) {
    if constexpr (PLAIN) {
      store_pack(to, out);
    } else {
      store_streaming(to, out);
    }
  } else {
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      if (span.has(at + j)) to[j] = out.v[j];
    }
  }
}

template <bool MOMENTS, class T, class W, class C, int VEC>
__device__ inline pack<T, VEC> apply_forward(const pack<T, VEC> &x, const pack<W, VEC> &w,
                                             const pack<W, VEC> &b, const row_scale<C> &scale) {
  C v[VEC];
  widen_pack(v, x);
  if constexpr (MOMENTS) {
    C by[VEC], more[VEC];
    widen_pack(by, w);
    widen_pack(more, b);
    take_off<T>(v, scale.shift);
#pragma unroll
    for (int j = 0; j < VEC; j++) v[j] = (v[j] * scale.scale + scale.offset) * by[j] + more[j];
  } else if (scale.divide) {
#pragma unroll
    for (int j = 0; j < VEC; j++) v[j] /= scale.denominator;
  } else {
#pragma unroll
    for (int j = 0; j < VEC; j++) v[j] *= scale.scale;
  }
  return narrow_pack<C, T, VEC>(v);
}

/* dweight and dbias of the pack's columns are added up; those of elements that are not the row's, too,
 * and never written. */
template <bool MOMENTS, class T, class W, class C, int VEC>
__device__ inline pack<T, VEC> apply_backward(const pack<T, VEC> &x, const pack<T, VEC> &dy,
                                              const pack<W, VEC> &w,
                                              const row_gradient<C> &gradient, C (&dweight)[VEC],
                                              C (&dbias)[VEC]) {
  C v[VEC], g[VEC], by[VEC];
  widen_pack(v, x);
  widen_pack(g, dy);
  if (MOMENTS) widen_pack(by, w);
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    if constexpr (MOMENTS) {
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
template <bool MOMENTS, class T, class C, int SUMS>
__device__ inline bool find_scale(row_scale<C> &scale, const plain_sums<C, SUMS> &sums, C &guess,
                                  bool again, const norm_args &a) {
  if constexpr (MOMENTS) {
    const row_moments<C> found(sums, guess, one_over_n<C>(a), lossless<T>::SQUARES);
    if (found.lossy && !again) {
      guess = rounded<T>(guess + found.more);
      return false;
    }
    scale.scale = one_over_root(found.squares * one_over_n<C>(a) + eps_of<C>(a));
    scale.shift = guess;
    scale.offset = -found.more * scale.scale;
    scale.denominator = guess + found.more; /* the mean */
  } else {
    scale = {};
    scale.denominator = sums.v[0] * share_of<C>(a) + eps_of<C>(a);
    scale.scale = 1 / scale.denominator;
    scale.divide = !is_normal(scale.scale);
  }
  return true;
}

template <bool ONE_AXIS, class C>
__device__ inline void save_moments(const row_scale<C> &scale, int64_t row, const norm_args &a) {
  if (a.at.mean) *row_of<C, ONE_AXIS>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = scale.denominator;
  if (a.at.rstd) *row_of<C, ONE_AXIS>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) = scale.scale;
}

template <bool MOMENTS, class C, int SUMS>
__device__ inline row_gradient<C> find_gradient(const plain_sums<C, SUMS> &sums, C mean, C rstd,
                                                const norm_args &a) {
  row_gradient<C> row = {0};
  if constexpr (MOMENTS) {
    row.mean = mean;
    row.rstd = rstd;
    row.offset = -sums.v[2] * one_over_n<C>(a);
    row.by_z = -rstd * (sums.v[1] + row.offset * sums.v[0]) * one_over_n<C>(a);
    row.constant = -rstd * sums.v[0] * one_over_n<C>(a);
  } else {
    row.denominator = sums.v[0] * share_of<C>(a) + eps_of<C>(a);
    row.scale = 1 / row.denominator;
    row.slope = sums.v[1] * share_of<C>(a) / row.denominator / row.denominator;
    row.divide = !is_normal(row.scale);
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
    const int64_t stride = a.rows.stride[role][0];
    first = (T *)base + team * stride;
    step = teams * stride;
    count = (int)((a.rows.count - team + teams - 1) / teams);
  }
  __device__ T *at(int i) const { return first + i * step; }
  __device__ int64_t number(int i) const { return team + (int64_t)i * teams; }
};

/* ---- Rows on their way ---------------------------------------------------------------------------- */

/* A thread's own places in shared memory for its packs of a few rows of some tensors: what it asks for
 * is read by itself alone, so no barrier is needed. */
template <class T, int PACKS, int TENSORS>
struct thread_ring {
  static const int VEC = vector_of<T>::count;
  char *mine;
  int threads;
  __device__ thread_ring(char *shared, int all) : mine(shared + threadIdx.x * 16), threads(all) {}
  __device__ int position(int i) const { return (int)(threadIdx.x + i * threads) * VEC; }
  __device__ pack<T, VEC> *place(int slot, int tensor, int i) const {
    return (pack<T, VEC> *)(mine + ((slot * TENSORS + tensor) * PACKS + i) * threads * 16);
  }
  /* Alike for a warp's threads. */
  __device__ bool has_whole_packs(const slice_span<T> &span) const {
    bool whole = !SAVES_REGISTERS;
    for (int i = 0; i < PACKS; i++) whole = whole && span.holds(position(i));
    return __all_sync(ALL_LANES, whole);
  }
  __device__ void ask(int slot, int tensor, const T *first, const slice_span<T> &span,
                      bool whole) const {
    if (whole) {
#pragma unroll
      for (int i = 0; i < PACKS; i++)
        copy_async(place(slot, tensor, i), first - span.begin + position(i), 16);
      return;
    }
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int at = position(i);
      if (span.touches(at))
        copy_async(place(slot, tensor, i), first - span.begin + at, span.bytes_from(at));
    }
  }
};

template <class C>
__device__ inline void store_part(int64_t to, C dweight, C dbias, const norm_args &a) {
  if (a.dweight_parts) ((C *)a.dweight_parts)[to] = dweight;
  if (a.dbias_parts) ((C *)a.dbias_parts)[to] = dbias;
}

/* A block's sums of dweight and dbias, which its threads have in registers, as a part. */
template <class T, class C, int PACKS>
__device__ inline void store_parts(const C (&dweight)[PACKS][vector_of<T>::count],
                                   const C (&dbias)[PACKS][vector_of<T>::count], int64_t part,
                                   int64_t begin, const thread_ring<T, PACKS, 2> &ring,
                                   const slice_span<T> &span, const norm_args &a) {
  const int64_t to = part * a.elements.count + begin - span.begin;
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
#pragma unroll
    for (int j = 0; j < vector_of<T>::count; j++) {
      const int position = ring.position(i) + j;
      if (span.has(position)) store_part(to + position, dweight[i][j], dbias[i][j], a);
    }
  }
}

#endif
