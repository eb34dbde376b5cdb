/* Squares of K rows and columns that are one element apart, forward. Some lanes of a warp have a strip and walk down,
 * from row to row of outputs: a lane puts each of its columns together from K rows, which it has in registers, then K
 * columns, of which its neighbour has some. Outputs pass through shared memory, so that neighbours store neighbours.
 *
 * Where rows are whole packs apart a lane has a pack of them, and otherwise columns that are `lanes` apart. */
#ifndef ONEPASS_POOL_CUDA_SLIDES_CUH
#define ONEPASS_POOL_CUDA_SLIDES_CUH

#include "pool/cuda_boxes.cuh"
#include "pool/cuda_spans.cuh"
#include "pool/cuda_walks.cuh"

enum {
  SLIDES_BLOCK = 128,
  SLIDE_MARGIN = 16 /* columns between two strips in shared memory */
};

/* A lane's columns of one row or several: as words as long as nothing but their maximum is taken, as sums otherwise.
 * `along` makes the windows that begin with these columns, of which the next lane may have the rest. */
template <class T>
struct slide_words {
  unsigned w[4];
  __device__ void take(const uint4 &row) { w[0] = row.x, w[1] = row.y, w[2] = row.z, w[3] = row.w; }
  __device__ static slide_words together(const slide_words &a, const slide_words &b) {
    slide_words both;
#pragma unroll
    for (int i = 0; i < 4; i++) both.w[i] = larger_words(a.w[i], b.w[i], T());
    return both;
  }
  template <int K>
  __device__ slide_words along(int lanes) const {
    enum { MORE = K / 2 };
    unsigned v[4 + MORE];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = w[i];
#pragma unroll
    for (int i = 0; i < MORE; i++) v[4 + i] = __shfl_down_sync(0xffffffffu, w[i], 1, lanes);
    slide_words all = *this;
#pragma unroll
    for (int k = 1; k < K; k++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const unsigned next =
            k % 2 ? __funnelshift_r(v[i + k / 2], v[i + k / 2 + 1], 16) : v[i + k / 2];
        all.w[i] = larger_words(all.w[i], next, T());
      }
    }
    return all;
  }
  __device__ pack<T, 8> narrow() const { return *(const pack<T, 8> *)w; }
};
template <int OP>
struct slide_sums {
  sums v[VEC];
  __device__ void take(const uint4 &row) { widen_pack(v, *(const pack<element, VEC> *)&row); }
  __device__ static slide_sums together(const slide_sums &a, const slide_sums &b) {
    slide_sums both;
#pragma unroll
    for (int j = 0; j < VEC; j++)
      both.v[j] = OP == BOX_MAX ? larger_of(a.v[j], b.v[j]) : a.v[j] + b.v[j];
    return both;
  }
  template <int K>
  __device__ slide_sums along(int lanes) const {
    sums all[VEC + K - 1];
#pragma unroll
    for (int j = 0; j < VEC; j++) all[j] = v[j];
#pragma unroll
    for (int k = 0; k < K - 1; k++) all[VEC + k] = __shfl_down_sync(0xffffffffu, v[k], 1, lanes);
    slide_sums made;
#pragma unroll
    for (int j = 0; j < VEC; j++) made.v[j] = tree_of<OP == BOX_MAX, K, 1>(all + j);
    return made;
  }
  __device__ pack<element, VEC> narrow() const { return narrow_pack<sums, element, VEC>(v); }
};

/* COUNT rows as a tree whose small branches neighbouring windows share. */
template <int COUNT, class C>
__device__ inline C join_rows(const C *rows) {
  if constexpr (COUNT == 1) {
    return rows[0];
  } else {
    const int LEFT = COUNT > 4 ? 4 : COUNT > 2 ? 2 : 1;
    return C::together(join_rows<LEFT>(rows), join_rows<COUNT - LEFT>(rows + LEFT));
  }
}

/* PACKS: as `by_packs`; LANES: as `lanes`, if they are a whole warp, or 0. */
template <int OP, int K, bool PACKS, int LANES>
struct window_slide {
  static const bool WORDS = OP == BOX_MAX && sizeof(element) == 2;
  /* Rows that are asked for together, while the ones before are worked on. Sums of halves, and halves that come one
   * by one, fill the registers. */
  static const int TURN = sizeof(element) == 2 && (OP == BOX_AVG || !PACKS) ? 2 : 4;
  typedef typename choice<WORDS, slide_words<element>, slide_sums<OP>>::type columns;
  const box_args &a;
  const onepass_box_axis &deep; /* the axis that is walked along */
  const int lanes, lane;
  int first, count; /* outputs of the strip */
  int begin;        /* the strip's first column */
  int shift;        /* how far behind it the first window's is */
  unsigned has;     /* bit j: the lane's column j exists; a pack's all do or none */
  const element *x; /* where the lane's first column is in row 0 */
  int move;
  char *stage;

  __device__ window_slide(const box_args &args, char *memory, int strip, const element *plane,
                          bool exists)
      : a(args),
        deep(args.axis[0]),
        lanes(LANES ? LANES : args.strips.lanes),
        lane((int)threadIdx.x & (lanes - 1)),
        first(strip * args.strips.outputs),
        move((int)args.axis[0].step[ONEPASS_BOX_X]),
        stage(memory) {
    const onepass_box_axis &along = a.axis[2];
    const int left = exists ? (int)along.pooled - first : 0;
    count = left < a.strips.outputs ? left : a.strips.outputs;
    begin = first - (int)along.padding;
    shift = PACKS ? (begin % VEC + VEC) % VEC : 0;
    begin -= shift;
    const int end = shift + count + K - 1; /* behind the last window */
    has = 0;
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      const int column = column_of(j);
      if (begin + column >= 0 && begin + column < (int)along.length &&
          (PACKS ? lane * VEC : column) < end)
        has |= 1u << j;
    }
    if (count <= 0) has = 0;
    x = plane + begin + column_of(0);
  }
  __device__ int column_of(int j) const { return PACKS ? lane * VEC + j : lane + j * lanes; }

  __device__ uint4 ask(int row, int end) const {
    const unsigned none = OP == BOX_MAX ? LEAST_WORD : 0u;
    const bool there = (unsigned)row < (unsigned)end;
    const element *from = x + row * move;
    if constexpr (PACKS) {
      uint4 words = make_uint4(none, none, none, none);
      if (there) words = load_word<16>(from);
      return words;
    } else {
      union {
        uint4 words;
        element v[VEC];
      } u;
      u.words = make_uint4(none, none, none, none);
      const unsigned exist = there ? has : 0;
#pragma unroll
      for (int j = 0; j < VEC; j++, from += lanes) {
        stay_address(from);
        if (exist >> j & 1) u.v[j] = *from;
      }
      return u.words;
    }
  }

  /* ---- From columns to outputs ------------------------------------------------------------------ */

  /* From columns that are `lanes` apart to neighbouring ones. */
  __device__ columns turned(const columns &made) const {
    typedef typename choice<WORDS, element, sums>::type part;
    union {
      columns all;
      part v[VEC];
    } u;
    u.all = made;
    part *const to = (part *)stage;
#pragma unroll
    for (int j = 0; j < VEC; j++) to[lane + j * lanes] = u.v[j];
    __syncwarp();
#pragma unroll
    for (int j = 0; j < VEC; j++) u.v[j] = to[lane * VEC + j];
    __syncwarp();
    return u.all;
  }
  /* Outputs of a lane that are side by side in memory. */
  static const int TOGETHER = sizeof(element) == 2 ? 2 : 1;
  /* Windows that begin with the strip's columns become neighbouring outputs of neighbouring lanes. `to` is where the
   * lane's first ones are. */
  __device__ void store(element *to, const pack<element, VEC> &made, bool exists) const {
    *(pack<element, VEC> *)(stage + lane * 16) = made;
    __syncwarp();
    const int left = exists ? count - TOGETHER * lane : 0;
    if constexpr (sizeof(element) == 2) {
      store_pairs(to, left);
    } else {
      const element *from = (const element *)stage + (shift + lane);
#pragma unroll
      for (int j = 0; j < VEC; j++, step(to)) {
        if (j * lanes < left) *to = from[j * lanes];
      }
    }
    __syncwarp();
  }
  __device__ void store_pairs(element *to, int left) const {
    const unsigned *from = (const unsigned *)stage + (shift / 2 + lane);
    unsigned two[VEC / 2];
#pragma unroll
    for (int j = 0; j < VEC / 2; j++) two[j] = from[j * lanes];
    if (shift % 2) {
#pragma unroll
      for (int j = 0; j < VEC / 2; j++) two[j] = __funnelshift_r(two[j], from[j * lanes + 1], 16);
    }
    if (a.walk.even) {
#pragma unroll
      for (int j = 0; j < VEC / 2; j++, step(to)) {
        if (2 * j * lanes < left) *(unsigned *)to = two[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < VEC / 2; j++, step(to)) {
        const pack<element, 2> both = *(const pack<element, 2> *)&two[j];
        if (2 * j * lanes < left) to[0] = both.v[0];
        if (2 * j * lanes + 1 < left) to[1] = both.v[1];
      }
    }
  }
  /* To the lane's next outputs. An address is known by the one before unless the distance is a constant: those of all
   * would take too many registers. */
  __device__ void step(element *&to) const {
    to += TOGETHER * lanes;
    if (LANES == 0) stay_address(to);
  }
  /* factor: one over the divisors along the row, or 1 if windows are uniform */
  __device__ pack<element, VEC> make(columns made, int output, const sums (&factor)[VEC]) const {
    if constexpr (!PACKS) made = turned(made);
    made = made.template along<K>(lanes);
    if constexpr (OP == BOX_AVG) {
      const sums of_rows = a.uniform ? (sums)a.factor : 1 / (sums)walk_divisor(a, 0, output);
#pragma unroll
      for (int j = 0; j < VEC; j++) made.v[j] *= of_rows * factor[j];
    }
    return made.narrow();
  }

  /* ---- From row to row ------------------------------------------------------------------------- */

  /* y: where the strip begins in the first row of outputs */
  __device__ void walk(element *y, int output, int last) const {
    sums factor[VEC];
    if (OP == BOX_AVG) one_over_divisors(factor, a, 1, first + lane * VEC - shift);
    int row = output - (int)deep.padding; /* the first of the first window */
    const int below = last - (int)deep.padding + K - 1;
    const int end = has == 0 ? 0 : below < (int)deep.length ? below : (int)deep.length;
    columns held[K - 1 + TURN];
    uint4 now[TURN], next[TURN];
#pragma unroll
    for (int k = 0; k < K - 1; k++) held[k].take(ask(row + k, end));
    row += K - 1;
#pragma unroll
    for (int i = 0; i < TURN; i++) now[i] = ask(row + i, end);
    element *to = y + (output * deep.step[ONEPASS_BOX_Y] + TOGETHER * lane);
    stay_address(to);
    const int64_t down = deep.step[ONEPASS_BOX_Y];
    /* All strips of a warp make as many turns. */
    for (int turn = 0; turn < a.strips.rows; turn += TURN) {
      row += TURN;
#pragma unroll
      for (int i = 0; i < TURN; i++) next[i] = ask(row + i, end);
#pragma unroll
      for (int i = 0; i < TURN; i++, to += down, output++) {
        held[K - 1 + i].take(now[i]);
        store(to, make(join_rows<K>(held + i), output, factor), output < last);
      }
#pragma unroll
      for (int k = 0; k < K - 1; k++) held[k] = held[TURN + k];
#pragma unroll
      for (int i = 0; i < TURN; i++) now[i] = next[i];
    }
  }
};

template <int OP, int K>
__device__ static void slide_windows(const box_args &a) {
  extern __shared__ __align__(16) char tile_memory[];
  const onepass_box_strips &s = a.strips;
  const int lanes = s.lanes, log_lanes = __popc(lanes - 1), team = (int)threadIdx.x >> log_lanes;
  const int number = (int)blockIdx.x * (SLIDES_BLOCK >> log_lanes) + team;
  const int all_rows = divide_by(number, s.by_strips, 0), strip = number - all_rows * s.strips;
  const int plane = divide_by(all_rows, s.by_groups, 0);
  const int output = (all_rows - plane * s.groups) * s.rows;
  const int outer = divide_by(plane, a.walk.by_high, 0);
  const int high = plane - outer * (int)a.axis[1].pooled;
  const bool exists = outer < a.outer; /* or else only the rest of the warp needs these lanes */
  const int end = output + s.rows, pooled = (int)a.axis[0].pooled;
  const int last = !exists ? output : end < pooled ? end : pooled;
  const element *x = (const element *)a.tensor[ONEPASS_BOX_X] +
                     outer * a.outer_step[ONEPASS_BOX_X] +
                     high * (int)a.axis[1].stride * a.axis[1].step[ONEPASS_BOX_X];
  element *y = (element *)a.tensor[ONEPASS_BOX_Y] + outer * a.outer_step[ONEPASS_BOX_Y] +
               high * a.axis[1].step[ONEPASS_BOX_Y] + strip * s.outputs;
  char *memory = tile_memory + team * ((lanes * VEC + SLIDE_MARGIN) * (int)sizeof(sums));
  if (!s.by_packs) {
    window_slide<OP, K, false, 0>(a, memory, strip, x, exists).walk(y, output, last);
  } else if (lanes == WARP) {
    window_slide<OP, K, true, WARP>(a, memory, strip, x, exists).walk(y, output, last);
  } else {
    window_slide<OP, K, true, 0>(a, memory, strip, x, exists).walk(y, output, last);
  }
}

#endif
