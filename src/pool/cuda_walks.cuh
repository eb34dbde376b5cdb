/* Windows, forward, of dense rows: a thread has a place in the last two axes, 16 bytes of outputs wide where the
 * window is one of those below, and walks along the first axis. What its windows hold of each plane that it comes
 * to is worked out once, from inputs that neighbours share through the L1 cache, and put together to outputs in a
 * ring in shared memory, in which every thread has a place of its own. */
#ifndef ONEPASS_POOL_CUDA_WALKS_CUH
#define ONEPASS_POOL_CUDA_WALKS_CUH

#include "pool/cuda_boxes.cuh"
#include "pool/cuda_spans.cuh"

enum { WALK_BLOCK = 128 };

/* A word of -inf. Doubles are made one by one and need none. */
#if defined(ONEPASS_ELEMENT_f32)
static const unsigned LEAST_WORD = 0xff800000u;
#elif defined(ONEPASS_ELEMENT_f16)
static const unsigned LEAST_WORD = 0xfc00fc00u;
#else
static const unsigned LEAST_WORD = 0xff80ff80u;
#endif

/* Sums or maxima so far, of WIDTH windows side by side, and with INDICES where the maxima are. */
template <int OP, bool INDICES, int WIDTH>
struct walk_values {
  sums value[WIDTH];
  int index[INDICES ? WIDTH : 1];
  __device__ static sums nothing() { return OP == BOX_MAX ? -(sums)INFINITY : (sums)0; }
  __device__ void start() {
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
      value[j] = nothing();
      if (INDICES) index[j] = 0;
    }
  }
  /* Of values that come in the order of their indices: the first of several largest, the last of several NaNs. */
  __device__ void take(int j, sums v, int at) {
    if constexpr (INDICES) {
      if (v > value[j] || v != v) {
        value[j] = v;
        index[j] = at;
      }
    } else {
      value[j] = OP == BOX_MAX ? larger_of(value[j], v) : value[j] + v;
    }
  }
  __device__ void take_all(const walk_values &later) {
#pragma unroll
    for (int j = 0; j < WIDTH; j++) take(j, later.value[j], INDICES ? later.index[j] : 0);
  }
};

/* The terms of a window along an axis that exist: begin to end, where the first of all would be at `at`. */
struct walk_terms {
  int begin, end, at;
  __device__ walk_terms(const onepass_box_axis &axis, int output) {
    const int dilation = (int)axis.dilation, kernel = (int)axis.kernel;
    at = output * (int)axis.stride - (int)axis.padding;
    begin = at < 0 ? (-at + dilation - 1) / dilation : 0;
    const int room = (int)axis.length - at;
    end = room <= (kernel - 1) * dilation ? (room + dilation - 1) / dilation : kernel;
  }
  __device__ bool has(int term) const { return term >= begin && term < end; }
  __device__ int first(const onepass_box_axis &axis) const {
    return at + begin * (int)axis.dilation;
  }
};

template <bool FIRST, class A, class B>
struct choice {
  typedef A type;
};
template <class A, class B>
struct choice<false, A, B> {
  typedef B type;
};

/* Of 16 bytes of a row those that are in it. Not in line: rows that begin or end within 16 bytes are rare. */
__device__ static __noinline__ uint4 load_part(const element *row, int first, int length,
                                               uint4 words) {
  union {
    uint4 words;
    element v[VEC];
  } u;
  u.words = words;
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    if (first + j >= 0 && first + j < length) u.v[j] = row[first + j];
  }
  return u.words;
}

/* WIDTH outputs, side by side, of windows that have ROWS by COLUMNS elements in a plane, with that STRIDE and DILATION
 * along their rows. 0 COLUMNS or ROWS are any, for a single output. */
template <int OP, bool INDICES, int WIDTH, int ROWS, int COLUMNS, int STRIDE, int DILATION>
struct window_walk {
  static const int SPAN = (WIDTH - 1) * STRIDE + (COLUMNS - 1) * DILATION + 1;
  /* Planes that are asked for before the first of them is looked at. */
  static const int AT_ONCE = COLUMNS == 0 || ROWS > 1 || SPAN > 3 * VEC ? 1 : WIDTH == 1 ? 4 : 2;
  /* Where little is under way at a time. */
  static const bool LOOKS_AHEAD = WIDTH > 1 && ROWS == 1 && AT_ONCE == 1;
  typedef walk_values<OP, INDICES, WIDTH> values;
  const box_args &a;
  const onepass_box_walk &t;
  const onepass_box_axis &deep;
  int high, wide; /* the thread's place */
  int count;      /* of its outputs that exist; not more than 0 if none do */
  bool has_row;   /* or else the place is beyond the last row */
  walk_terms rows, columns;
  const element *x; /* the row of the first term in plane 0, if it exists, where that row begins */
  element *y;
  int64_t *indices;
  int row_index; /* of the element where that row begins */
  /* Of the 16-byte packs that a row's terms are in: how far into them these begin, in bytes, and which packs are all
   * in the row, and which in part. The same for all rows if steps are of whole packs. */
  struct row_packs {
    int phase, first; /* element of the first pack */
    unsigned whole, part;
  } packs;
  sums factor[WIDTH]; /* one over the divisor of the last two axes, unless windows are uniform */
  char *stage;        /* the warp's */
  char *ring;

  __device__ window_walk(const box_args &args, char *shared, int64_t outer, int high_, int wide_,
                         bool has_row_)
      : a(args),
        t(args.walk),
        deep(args.axis[0]),
        high(high_),
        wide(wide_),
        has_row(has_row_),
        rows(args.axis[1], high_),
        columns(args.axis[2], wide_) {
    const auto start = [&](int tensor) {
      return outer * a.outer_step[tensor] + high * a.axis[1].step[tensor] +
             wide * a.axis[2].step[tensor];
    };
    const int left = (int)a.axis[2].pooled - wide;
    count = !has_row ? 0 : left < WIDTH ? left : WIDTH;
    x = (const element *)a.tensor[ONEPASS_BOX_X] + outer * a.outer_step[ONEPASS_BOX_X] +
        rows.at * (int)a.axis[1].step[ONEPASS_BOX_X];
    y = (element *)a.tensor[ONEPASS_BOX_Y] + start(ONEPASS_BOX_Y);
    indices =
        INDICES ? (int64_t *)a.tensor[ONEPASS_BOX_INDICES] + start(ONEPASS_BOX_INDICES) : nullptr;
    row_index = INDICES ? rows.at * (int)t.index_step[1] : 0;
    if (OP == BOX_AVG && !a.uniform) {
      const sums of_rows = window_along(a, 1, high).divisor;
#pragma unroll
      for (int j = 0; j < WIDTH; j++)
        factor[j] = 1 / (of_rows * window_along(a, 2, wide + j).divisor);
    }
    if constexpr (WIDTH > 1) packs = packs_of(x);
    stage = shared + threadIdx.x / WARP * (WARP * 16);
    ring = shared + WALK_BLOCK * 16;
  }

  /* ---- One plane ------------------------------------------------------------------------------ */

  __device__ row_packs packs_of(const element *row) const {
    const int length = (int)a.axis[2].length;
    row_packs p;
    p.phase = (int)((uintptr_t)(row + columns.at) % 16);
    p.first = columns.at - p.phase / (int)sizeof(element);
    p.whole = p.part = 0;
#pragma unroll
    for (int i = 0; i < span_of<SPAN>::PACKS; i++) {
      const int at = p.first + i * VEC;
      if (i * 16 >= p.phase + SPAN * (int)sizeof(element)) continue;
      if (at >= 0 && at + VEC <= length) {
        p.whole |= 1u << i;
      } else if (at + VEC > 0 && at < length) {
        p.part |= 1u << i;
      }
    }
    return p;
  }
  struct row_words {
    unsigned words[span_of<SPAN>::WORDS + 1];
    int phase;
  };
  __device__ static uint4 no_words() {
    const unsigned word = OP == BOX_MAX ? LEAST_WORD : 0u;
    return make_uint4(word, word, word, word);
  }
  struct row_terms {
    sums v[COLUMNS ? COLUMNS : 1];
  };
  __device__ void ask(row_terms &r, const element *row, bool there) const {
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) {
      r.v[k] = values::nothing();
      if (there && columns.has(k)) r.v[k] = widen(row[columns.at + k * DILATION]);
    }
  }
  __device__ void answer(values &made, row_terms &r, int index) const {
#pragma unroll
    for (int k = 0; k < COLUMNS; k++) made.take(0, r.v[k], index + columns.at + k * DILATION);
  }
  __device__ void ask(row_words &r, const element *row, bool there) const {
    row_packs p = packs;
    if (!t.steady) p = packs_of(row);
    const unsigned whole = there ? p.whole : 0, part = there ? p.part : 0;
    const element *from = row + p.first;
    r.phase = p.phase;
#pragma unroll
    for (int i = 0; i < span_of<SPAN>::PACKS; i++) {
      uint4 pack = no_words();
      if (whole >> i & 1) pack = load_word<16>(from + i * VEC);
      r.words[4 * i] = pack.x, r.words[4 * i + 1] = pack.y, r.words[4 * i + 2] = pack.z,
                  r.words[4 * i + 3] = pack.w;
    }
    if (part == 0) return;
#pragma unroll
    for (int i = 0; i < span_of<SPAN>::PACKS; i++) {
      if (!(part >> i & 1)) continue;
      const uint4 pack = load_part(row, p.first + i * VEC, (int)a.axis[2].length, no_words());
      r.words[4 * i] = pack.x, r.words[4 * i + 1] = pack.y, r.words[4 * i + 2] = pack.z,
                  r.words[4 * i + 3] = pack.w;
    }
  }
  /* index: of the row's first element */
  __device__ void answer(values &made, row_words &r, int index) const {
    sums v[SPAN];
    /* Without padding and with one row of it the shift is known; it takes as long as all the rest otherwise, unless
     * there are indices. */
    if (INDICES) {
      shift_span<SPAN>(v, r.words, r.phase);
      take_row(made, v, index);
    } else if (r.phase == 0) {
#pragma unroll
      for (int i = 0; i < SPAN; i++) v[i] = element_of_words(r.words, i);
      take_row(made, v, index);
    } else if (r.phase == 16 - (int)sizeof(element)) {
#pragma unroll
      for (int i = 0; i < SPAN; i++) v[i] = element_of_words(r.words, i + VEC - 1);
      take_row(made, v, index);
    } else {
      shift_span<SPAN>(v, r.words, r.phase);
      take_row(made, v, index);
    }
  }
  __device__ void take_row(values &made, const sums (&v)[SPAN], int index) const {
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
      if constexpr (INDICES) {
#pragma unroll
        for (int k = 0; k < COLUMNS; k++) {
          const int at = j * STRIDE + k * DILATION;
          made.take(j, v[at], index + columns.at + at);
        }
      } else {
        made.take(j, tree_of<OP == BOX_MAX, COLUMNS, DILATION>(v + j * STRIDE), 0);
      }
    }
  }
  /* Any number of terms: eight are asked for together and, of what is left, four. UNIT: without dilation. */
  template <bool UNIT>
  __device__ void go_through(values &made, const element *plane, int index) const {
    const int row_move = (int)(a.axis[1].dilation * a.axis[1].step[ONEPASS_BOX_X]);
    const int move = UNIT ? 1 : (int)a.axis[2].dilation;
    for (int j = rows.begin; j < rows.end; j++) {
      int k = columns.begin, left = columns.end - k;
      const element *from = plane + (j * row_move + columns.at + k * move);
      int at = INDICES ? index + j * (int)a.axis[1].dilation * (int)t.index_step[1] + columns.at +
                             k * move
                       : 0;
      for (; left >= 8; left -= 8, from += 8 * move, at += 8 * move) {
        sums v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = widen(from[i * move]);
#pragma unroll
        for (int i = 0; i < 8; i++) made.take(0, v[i], at + i * move);
      }
      for (; left > 0; left -= 4, from += 4 * move, at += 4 * move) {
        sums v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          v[i] = values::nothing();
          if (i < left) v[i] = widen(from[i * move]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) made.take(0, v[i], at + i * move);
      }
    }
  }
  /* AT_ONCE planes, of which those that are no plane or no window's hold nothing. */
  template <bool ALL>
  __device__ void visit(values (&made)[AT_ONCE], int first) const {
    const int64_t step = deep.step[ONEPASS_BOX_X];
    const element *plane = x + first * step;
    const int index = row_index + first * (int)t.index_step[0];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) made[u].start();
    if constexpr (COLUMNS == 0) {
      if (exists<ALL>(first) && count > 0) {
        if (OP == BOX_AVG || a.axis[2].dilation == 1) {
          go_through<true>(made[0], plane, index);
        } else {
          go_through<false>(made[0], plane, index);
        }
      }
    } else {
      const int row_move = (int)(a.axis[1].dilation * a.axis[1].step[ONEPASS_BOX_X]);
      typename choice<(WIDTH > 1), row_words, row_terms>::type r[AT_ONCE][ROWS ? ROWS : 1];
      if constexpr (LOOKS_AHEAD) look_ahead(plane + 2 * step, first + 2);
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        const bool there = exists<ALL>(first + u);
#pragma unroll
        for (int j = 0; j < ROWS; j++)
          ask(r[u][j], plane + u * step + j * row_move, there && (ROWS == 1 || rows.has(j)));
      }
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
          answer(made[u], r[u][j],
                 index + u * (int)t.index_step[0] +
                     j * (int)a.axis[1].dilation * (int)t.index_step[1]);
        }
      }
    }
  }
  /* A pack of each lane comes to the second-level cache: together they are what is new to the warp there. */
  __device__ void look_ahead(const element *plane, int number) const {
    if (number < (int)deep.length && (packs.whole >> 1 & 1)) prefetch(plane + packs.first + VEC);
  }
  template <bool ALL>
  __device__ bool exists(int plane) const {
    if (plane < 0 || plane >= (int)deep.length) return false;
    return ALL || t.gaps == 0 || !(t.gaps >> ((plane + (int)deep.padding) % (int)deep.stride) & 1);
  }

  /* ---- Outputs -------------------------------------------------------------------------------- */

  __device__ void finish(int output, values &all) const {
    if (OP == BOX_AVG) {
      const sums of_planes = a.uniform ? (sums)a.factor : 1 / window_along(a, 0, output).divisor;
#pragma unroll
      for (int j = 0; j < WIDTH; j++) all.value[j] *= a.uniform ? of_planes : of_planes * factor[j];
    }
    if constexpr (INDICES) store_indices(output, all);
    element *to = y + output * deep.step[ONEPASS_BOX_Y];
    if constexpr (WIDTH == 1) {
      if (count > 0) *to = narrow_to<element>::from(all.value[0]);
    } else {
      const pack<element, VEC> made = narrow_pack<sums, element, VEC>(all.value);
      if (t.even) {
        if (count > 0) store_pack(to, made);
      } else {
        store_side_by_side(to, made);
      }
    }
  }
  /* A row of outputs that begins anywhere: through the warp's shared memory, so that lanes that are neighbours
   * write what is side by side. */
  __device__ void store_side_by_side(element *to, const pack<element, VEC> &made) const {
    const int lanes = t.lanes < WARP ? t.lanes : WARP, lane = (int)threadIdx.x & (lanes - 1);
    const int mine = (int)threadIdx.x & (WARP - 1), group = mine - lane;
    *(pack<element, VEC> *)(stage + mine * 16) = made;
    __syncwarp();
    const element *from = (const element *)(stage + group * 16);
    const int left = (int)a.axis[2].pooled - (wide - lane * VEC); /* from the group's first on */
    element *row = to - lane * VEC;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
      const int at = i * lanes + lane;
      if (has_row && at < left) row[at] = from[at];
    }
    __syncwarp();
  }
  __device__ void store_indices(int output, values &all) const {
    int64_t *to = indices + output * deep.step[ONEPASS_BOX_INDICES];
#pragma unroll
    for (int j = 0; j < WIDTH; j++) {
      /* Of nothing but -inf it is the first. */
      if (!(all.value[j] > -(sums)INFINITY) && all.value[j] == all.value[j]) {
        const walk_terms planes(deep, output), terms(a.axis[2], wide + j);
        all.index[j] = planes.first(deep) * (int)t.index_step[0] +
                       rows.first(a.axis[1]) * (int)t.index_step[1] + terms.first(a.axis[2]);
      }
    }
    if (WIDTH > 1 && t.even && count == WIDTH) {
#pragma unroll
      for (int j = 0; j + 1 < WIDTH; j += 2)
        *(longlong2 *)(to + j) = make_longlong2(all.index[j], all.index[j + 1]);
    } else {
#pragma unroll
      for (int j = 0; j < WIDTH; j++) {
        if (j < count) to[j] = all.index[j];
      }
    }
  }

  /* Windows of one plane each. */
  __device__ void pass(int begin, int end) const {
    for (int first = begin; first < end; first += AT_ONCE) {
      values made[AT_ONCE];
      visit<true>(made, first);
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        if (first + u < end) finish(first + u, made[u]);
      }
    }
  }

  /* Any windows, by way of a ring that holds a window's planes and those asked for with its last one. */
  __device__ void circle(int begin, int end) const {
    const int size = t.ring, extent = (int)deep.extent, stride = (int)deep.stride;
    const int length = (int)deep.length, padding = (int)deep.padding;
    const int top = begin * stride - padding, bottom = (end - 1) * stride - padding + extent;
    int first = top < 0 ? 0 : top, slot = 0, output = begin;
    const int last = bottom < length ? bottom : length;
    while (output < end) {
      if (first < last) {
        values made[AT_ONCE];
        visit<false>(made, first);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
          remember(slot + u < size ? slot + u : slot + u - size, made[u]);
      }
      const int next = first + AT_ONCE;
      for (; output < end; output++) {
        const int under = output * stride - padding + extent; /* behind the window's last plane */
        if (next < under && next < last) break;
        values all = recall(output, first, slot);
        finish(output, all);
      }
      first = next;
      slot = slot + AT_ONCE < size ? slot + AT_ONCE : slot + AT_ONCE - size;
    }
  }

  /* In a slot of the ring pieces of at most 16 bytes of each thread lie side by side. */
  enum {
    PIECE = WIDTH * sizeof(sums) < 16 ? (int)(WIDTH * sizeof(sums)) : 16,
    IN_PIECE = PIECE / (int)sizeof(sums),
    SLOT = WALK_BLOCK * WIDTH * (int)(sizeof(sums) + (INDICES ? sizeof(int) : 0)),
    INDEX_PIECE = WIDTH < 4 ? WIDTH : 4
  };
  __device__ void remember(int at, const values &made) const {
    char *to = ring + at * SLOT;
#pragma unroll
    for (int j = 0; j < WIDTH; j += IN_PIECE) {
      pack<sums, IN_PIECE> piece;
#pragma unroll
      for (int i = 0; i < IN_PIECE; i++) piece.v[i] = made.value[j + i];
      *((pack<sums, IN_PIECE> *)to + threadIdx.x) = piece;
      to += WALK_BLOCK * PIECE;
    }
    if constexpr (INDICES) {
#pragma unroll
      for (int j = 0; j < WIDTH; j += INDEX_PIECE) {
        pack<int, INDEX_PIECE> piece;
#pragma unroll
        for (int i = 0; i < INDEX_PIECE; i++) piece.v[i] = made.index[j + i];
        *((pack<int, INDEX_PIECE> *)to + threadIdx.x) = piece;
        to += WALK_BLOCK * INDEX_PIECE * (int)sizeof(int);
      }
    }
  }
  __device__ void take_from_ring(values &all, int at) const {
    const char *from = ring + at * SLOT;
    values one;
#pragma unroll
    for (int j = 0; j < WIDTH; j += IN_PIECE) {
      const pack<sums, IN_PIECE> piece = *((const pack<sums, IN_PIECE> *)from + threadIdx.x);
#pragma unroll
      for (int i = 0; i < IN_PIECE; i++) one.value[j + i] = piece.v[i];
      from += WALK_BLOCK * PIECE;
    }
    if constexpr (INDICES) {
#pragma unroll
      for (int j = 0; j < WIDTH; j += INDEX_PIECE) {
        const pack<int, INDEX_PIECE> piece = *((const pack<int, INDEX_PIECE> *)from + threadIdx.x);
#pragma unroll
        for (int i = 0; i < INDEX_PIECE; i++) one.index[j + i] = piece.v[i];
        from += WALK_BLOCK * INDEX_PIECE * (int)sizeof(int);
      }
    }
    all.take_all(one);
  }
  /* What a window holds, where plane `first` is in that slot. */
  __device__ values recall(int output, int first, int slot) const {
    const walk_terms planes(deep, output);
    const int size = t.ring, move = (int)deep.dilation;
    int at = slot + planes.first(deep) - first;
    if (at < 0) at += size;
    if (at >= size) at -= size;
    values all;
    all.start();
    for (int k = planes.begin; k < planes.end; k++) {
      take_from_ring(all, at);
      at += move;
      if (at >= size) at -= size;
    }
    return all;
  }
};

/* A block has `lanes` neighbouring places of as many rows as it has threads for, of any planes. */
template <int OP, bool INDICES, int WIDTH, int ROWS, int COLUMNS, int STRIDE, int DILATION>
__device__ static void walk_windows(const box_args &a) {
  extern __shared__ __align__(16) char tile_memory[];
  typedef window_walk<OP, INDICES, WIDTH, ROWS, COLUMNS, STRIDE, DILATION> walk_type;
  const onepass_box_walk &t = a.walk;
  unsigned rest = blockIdx.x;
  const int lane = (int)threadIdx.x & (t.lanes - 1);
  const int wide = ((int)(rest % (unsigned)t.blocks_wide) * t.lanes + lane) * WIDTH;
  rest /= (unsigned)t.blocks_wide;
  const int chunk = (int)(rest % (unsigned)t.chunks);
  rest /= (unsigned)t.chunks;
  const int64_t row = (int64_t)rest * (WALK_BLOCK / t.lanes) + threadIdx.x / (unsigned)t.lanes;
  const int high_count = (int)a.axis[1].pooled;
  const int64_t outer = high_count == 1 ? row : divide_by((int)row, t.by_high, 0);
  /* Those who have no place stay, as their warp needs them to store. */
  const bool has_row = outer < a.outer;
  const int begin = chunk * t.chunk, left = (int)a.axis[0].pooled - begin;
  const int end = begin + (left < t.chunk ? left : t.chunk);
  const walk_type walk(a, tile_memory, has_row ? outer : 0,
                       has_row ? (int)(row - outer * high_count) : 0, wide, has_row);
  if (t.ring == 0) {
    walk.pass(begin, end);
  } else {
    walk.circle(begin, end);
  }
}

#endif
