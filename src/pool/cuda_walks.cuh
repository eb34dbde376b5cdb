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
    begin = at < 0 ? divide_by(-at + dilation - 1, axis.by_dilation, 0) : 0;
    const int room = (int)axis.length - at;
    end = kernel;
    if (room <= (kernel - 1) * dilation)
      end = room > 0 ? divide_by(room + dilation - 1, axis.by_dilation, 0) : 0;
  }
  __device__ bool has(int term) const { return term >= begin && term < end; }
  __device__ int first(const onepass_box_axis &axis) const {
    return at + begin * (int)axis.dilation;
  }
};

/* What an average is divided by along an axis; walks have neither dilation nor adaptive windows then. */
__device__ inline int walk_divisor(const box_args &a, int axis, int output) {
  const onepass_box_axis &x = a.axis[axis];
  const int length = (int)x.length, padding = (int)x.padding;
  const int most = a.count_include_pad ? length + padding : length;
  int begin = output * (int)x.stride - padding, end = begin + (int)x.extent;
  if (end > most) end = most;
  if (begin < 0 && !a.count_include_pad) begin = 0;
  return end - begin;
}

/* One over what WIDTH neighbouring outputs are divided by along the last axis, and all along others. Or 1, if windows are
 * uniform. */
template <int WIDTH>
__device__ inline void one_over_divisors(sums (&factor)[WIDTH], const box_args &a, sums others,
                                         int first) {
#pragma unroll
  for (int j = 0; j < WIDTH; j++) factor[j] = 1;
#pragma unroll 1 /* there is a division in it */
  for (int j = 0; j < WIDTH && !a.uniform; j++) {
    append(factor, 1 / (others * (sums)walk_divisor(a, 2, first + j)));
  }
}

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
  row += first;
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    if ((unsigned)(first + j) < (unsigned)length) u.v[j] = row[j];
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
  sums factor[WIDTH]; /* one over the divisor of the last two axes, or 1 if windows are uniform */
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
    if (OP == BOX_AVG) one_over_divisors(factor, a, (sums)walk_divisor(a, 1, high), wide);
    if constexpr (WIDTH > 1) packs = packs_of(x);
    stage = shared + threadIdx.x / WARP * (WARP * 16);
    ring = shared + WALK_BLOCK * 16;
  }

  /* ---- One plane ------------------------------------------------------------------------------ */

  __device__ row_packs packs_of(const element *row) const {
    row_packs p;
    p.phase = (int)((uintptr_t)(row + columns.at) % 16);
    p.first = columns.at - p.phase / (int)sizeof(element);
    /* Counted from the first pack on: where the row begins and ends, as far as packs are needed. */
    const int needed = (p.phase + SPAN * (int)sizeof(element) + 15) / 16 * VEC;
    const int before = -p.first, left = (int)a.axis[2].length - p.first;
    const unsigned begin = (unsigned)(before < 0 ? 0 : before > needed ? needed : before);
    const unsigned end = (unsigned)(left < 0 ? 0 : left > needed ? needed : left);
    p.whole = bits_of((begin + VEC - 1) / VEC, end / VEC);
    p.part = bits_of(begin / VEC, (end + VEC - 1) / VEC) & ~p.whole;
    return p;
  }
  __device__ static unsigned bits_of(unsigned begin, unsigned end) {
    return begin < end ? (1u << end) - (1u << begin) : 0;
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
    if (!INDICES && r.phase == 16 - (int)sizeof(element)) {
#pragma unroll
      for (int i = 0; i < SPAN; i++) v[i] = element_of_words(r.words, i + VEC - 1);
      take_row(made, v, index);
    } else {
      if (INDICES || r.phase != 0) shift_words<SPAN>(r.words, r.phase);
#pragma unroll
      for (int i = 0; i < SPAN; i++) v[i] = element_of_words(r.words, i);
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
#pragma unroll 1
      for (; left >= 8; left -= 8, from += 8 * move, at += 8 * move) {
        sums v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = widen(from[i * move]);
#pragma unroll
        for (int i = 0; i < 8; i++) made.take(0, v[i], at + i * move);
      }
#pragma unroll 1
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
  __device__ void visit(values (&made)[AT_ONCE], int first) const {
    const int64_t step = deep.step[ONEPASS_BOX_X];
    const element *plane = x + first * step;
    const int index = row_index + first * (int)t.index_step[0];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) made[u].start();
    if constexpr (COLUMNS == 0) {
      if (exists(first) && count > 0) {
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
        const bool there = exists(first + u);
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
  __device__ bool exists(int plane) const {
    if (plane >= (int)deep.length) return false;
    if (t.gaps == 0) return true;
    const int at = plane + (int)deep.padding;
    return !(t.gaps >> (at - divide_by(at, deep.by_output_scale, 0) * (int)deep.stride) & 1);
  }

  /* ---- Outputs -------------------------------------------------------------------------------- */

  __device__ void finish(int output, values &all) const {
    if (OP == BOX_AVG) {
      const sums of_planes = a.uniform ? (sums)a.factor : 1 / (sums)walk_divisor(a, 0, output);
#pragma unroll
      for (int j = 0; j < WIDTH; j++) all.value[j] *= of_planes * factor[j];
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
    const element *from = (const element *)(stage + group * 16) + lane;
    /* Outputs of the row from the lane's first place in the group on. */
    const int left = has_row ? (int)a.axis[2].pooled - wide + lane * (VEC - 1) : 0;
    to -= lane * (VEC - 1);
#pragma unroll
    for (int i = 0; i < VEC; i++, to += lanes) {
      stay_address(to);
      if (i * lanes < left) *to = from[i * lanes];
    }
    __syncwarp();
  }
  /* The first column that output j's window has. */
  __device__ int first_column(int j) const {
    if (WIDTH == 1) return columns.first(a.axis[2]);
    const int at = columns.at + j * STRIDE;
    return at < 0 ? (at % DILATION + DILATION) % DILATION : at;
  }
  __device__ void store_indices(int output, values &all) const {
    int64_t *to = indices + output * deep.step[ONEPASS_BOX_INDICES];
    bool any_least = false;
#pragma unroll
    for (int j = 0; j < WIDTH; j++) any_least |= all.value[j] == -(sums)INFINITY;
    if (any_least) { /* of nothing but -inf the index is the first */
      const walk_terms planes(deep, output);
      const int row =
          planes.first(deep) * (int)t.index_step[0] + rows.first(a.axis[1]) * (int)t.index_step[1];
#pragma unroll
      for (int j = 0; j < WIDTH; j++) {
        if (all.value[j] == -(sums)INFINITY) all.index[j] = row + first_column(j);
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

  /* From plane to plane: windows of one each are made at once, others by way of a ring that holds a window's planes and
   * those asked for with its last one. */
  __device__ void go(int begin, int end) const {
    const int size = t.ring, extent = (int)deep.extent, stride = (int)deep.stride;
    const int length = (int)deep.length, padding = (int)deep.padding;
    const int top = begin * stride - padding, bottom = (end - 1) * stride - padding + extent;
    int first = top < 0 ? 0 : top, slot = 0, output = begin;
    const int last = bottom < length ? bottom : length;
#pragma unroll 1
    while (output < end) {
      const int next = first + AT_ONCE;
      values made[AT_ONCE];
      if (first < last) {
        visit(made, first);
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
          if (size) remember(slot + u < size ? slot + u : slot + u - size, made[u]);
        }
      }
#pragma unroll 1
      for (; output < end; output++) {
        const int under = output * stride - padding + extent; /* behind the window's last plane */
        if (next < under && next < last) break;
        if (size) made[0] = recall(output, first, slot);
        finish(output, made[0]);
#pragma unroll
        for (int u = 1; u < AT_ONCE; u++) made[u - 1] = made[u];
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
#pragma unroll(WIDTH == 1 ? 4 : 1)
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
  const int lane = (int)threadIdx.x & (t.lanes - 1);
  const int log_lanes = __popc(t.lanes - 1); /* of a power of two */
  const int above = divide_by((int)blockIdx.x, t.by_blocks_wide, 0);
  const int wide = (((int)blockIdx.x - above * (int)t.blocks_wide) * t.lanes + lane) * WIDTH;
  const int group = divide_by(above, t.by_chunks, 0), chunk = above - group * (int)t.chunks;
  const int64_t row = (int64_t)group * (WALK_BLOCK >> log_lanes) + (threadIdx.x >> log_lanes);
  const int high_count = (int)a.axis[1].pooled;
  const int64_t outer = high_count == 1 ? row : divide_by((int)row, t.by_high, 0);
  /* Those who have no place stay, as their warp needs them to store. */
  const bool has_row = outer < a.outer;
  const int begin = chunk * t.chunk, left = (int)a.axis[0].pooled - begin;
  const int end = begin + (left < t.chunk ? left : t.chunk);
  const walk_type walk(a, tile_memory, has_row ? outer : 0,
                       has_row ? (int)(row - outer * high_count) : 0, wide, has_row);
  walk.go(begin, end);
}

#endif
