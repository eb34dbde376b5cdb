/* Sums of all windows of `kernel` neighbouring elements, for one element type; see cpu_kernels.c.
 *
 * A window's sum is a tree: sums of two neighbours, of four (both made in registers as the elements
 * stream in), then of as many fours as the window has, plus up to three single elements. No running
 * sum is carried along, so errors do not build up and a NaN stays in the windows that hold it. */
#define NAME(f)   JOIN2(f, JOIN2(_, ELEMENT))
#define OF_SUM(f) JOIN2(f, JOIN2(_, SUMS))
#define T         JOIN2(element_, ELEMENT)
#define C         JOIN2(scalar_, SUMS)
#define V         JOIN2(vector_, SUMS)
#define W         JOIN2(lanes_, SUMS)
#define LOAD      JOIN2(load_, ELEMENT)
#define LOADC     JOIN2(load_, SUMS)
#define STORE     JOIN2(store_, ELEMENT)
#define LOADS     JOIN2(loads_, ELEMENT)
#define STORES    JOIN2(stores_, ELEMENT)
#define STOREC    JOIN2(store_, SUMS)
#define ALL       JOIN2(all_, SUMS)
#define ON1       JOIN2(on1_, SUMS)
#define ON2       JOIN2(on2_, SUMS)
#define ON4       JOIN2(on4_, SUMS)
#define LOAD_PART JOIN2(load_part_, ELEMENT)
#define ONLY      JOIN2(only_, SUMS)
#define ACROSS    JOIN2(sums_across_, SUMS)
#define GET       JOIN2(get_, ELEMENT)
#define PUT       JOIN2(put_, ELEMENT)

/* fours[i] = x[i] + ... + x[i + 3] for i in 0..count; x has count + 3 elements. */
static void NAME(sum_fours)(C *fours, const T *x, int64_t count) {
  int64_t i = 0;
  if (count + 3 >= 3 * W) {
    V here = LOAD(x), after = LOAD(x + W);
    V twos = here + ON1(here, after);
    UNROLL_4 for (; i + 3 * W <= count + 3; i += W) {
      prefetch_ahead(x + i, W * sizeof(T));
      here = after;
      after = LOAD(x + i + 2 * W);
      const V next_twos = here + ON1(here, after);
      STOREC(fours + i, twos + ON2(twos, next_twos), false);
      twos = next_twos;
    }
  }
  for (; i < count; i++) {
    fours[i] = (GET(x + i) + GET(x + i + 1)) + (GET(x + i + 2) + GET(x + i + 3));
  }
}

/* The sums of a vector of windows from i on: of `quads` fours and `singles` elements, which are the last of a window and
 * begin with `tail`. */
ALWAYS_INLINE V NAME(windows_at)(const C *fours, const int quads, const T *tail, const int singles,
                                 int64_t i) {
  V sum = LOADC(fours + i);
  UNROLL for (int q = 1; q < quads; q++) sum += LOADC(fours + i + 4 * q);
  UNROLL for (int s = 0; s < singles; s++) sum += LOAD(tail + i + s);
  return sum;
}

/* Fewer outputs than a vector has. */
ALWAYS_INLINE void NAME(finish_few)(T *y, const C *fours, int quads, const T *tail, int singles,
                                    int64_t count, C scale) {
  for (int64_t i = 0; i < count; i++) {
    C sum = fours[i];
    for (int q = 1; q < quads; q++) sum += fours[i + 4 * q];
    for (int s = 0; s < singles; s++) sum += GET(tail + i + s);
    PUT(y + i, sum * scale);
  }
}

/* y[i] = (the sum of the window from i on) * scale, for i in 0..count; `tail` has count + singles - 1 elements. The last
 * vector may overlap the one before it. */
ALWAYS_INLINE void NAME(finish_windows)(T *y, const C *fours, const int quads, const T *tail,
                                        const int singles, int64_t count, C scale, bool stream) {
  if (count < W) {
    NAME(finish_few)(y, fours, quads, tail, singles, count, scale);
    return;
  }
  int64_t i = 0;
  UNROLL_4 for (; i + W <= count; i += W) {
    STORE(y + i, NAME(windows_at)(fours, quads, tail, singles, i) * ALL(scale), stream);
  }
  if (i == count) return;
  i = count - W;
  STORE(y + i, NAME(windows_at)(fours, quads, tail, singles, i) * ALL(scale), false);
}

/* Windows of one to three elements need no fours. */
ALWAYS_INLINE V NAME(small_windows_at)(const T *x, const int kernel, int64_t i) {
  V sum = LOAD(x + i);
  UNROLL for (int s = 1; s < kernel; s++) sum += LOAD(x + i + s);
  return sum;
}

ALWAYS_INLINE void NAME(sum_few)(T *y, const T *x, int kernel, int64_t count, C scale) {
  for (int64_t i = 0; i < count; i++) {
    C sum = GET(x + i);
    for (int s = 1; s < kernel; s++) sum += GET(x + i + s);
    PUT(y + i, sum * scale);
  }
}

ALWAYS_INLINE void NAME(sum_small_windows)(T *y, const T *x, const int kernel, int64_t count,
                                           C scale, bool stream) {
  if (count < W) {
    NAME(sum_few)(y, x, kernel, count, scale);
    return;
  }
  int64_t i = 0;
  UNROLL_4 for (; i + W <= count; i += W) {
    prefetch_ahead(x + i, W * sizeof(T));
    STORE(y + i, NAME(small_windows_at)(x, kernel, i) * ALL(scale), stream);
  }
  if (i == count) return;
  i = count - W;
  STORE(y + i, NAME(small_windows_at)(x, kernel, i) * ALL(scale), false);
}

/* Windows of eight, the most common large ones, stay in registers all the way. Returns how many of
 * the `count` outputs it did; the rest is too near the end of x, which has count + 7 elements. */
ALWAYS_INLINE int64_t NAME(sum_eights)(T *y, const T *x, int64_t count, C scale, bool stream) {
  int64_t i = 0;
  enum { GROUP = 4 };
  if (count + 7 < (3 + GROUP) * W) return 0;
  const V first = LOAD(x), second = LOAD(x + W);
  V ahead = LOAD(x + 2 * W);
  V twos = second + ON1(second, ahead);
  const V first_twos = first + ON1(first, second);
  V fours = first_twos + ON2(first_twos, twos);
  for (; i + (3 + GROUP) * W <= count + 7; i += GROUP * W) {
    V raw[GROUP + 1], two[GROUP + 1], four[GROUP + 1]; /* each from where the last group ended */
    raw[0] = ahead;
    two[0] = twos;
    four[0] = fours;
    prefetch_ahead(x + i, GROUP * W * sizeof(T));
    LOADS(raw + 1, x + i + 3 * W, GROUP);
    UNROLL for (int j = 0; j < GROUP; j++) {
      two[j + 1] = raw[j] + LOAD(x + i + (2 + j) * W + 1);
      four[j + 1] = two[j] + ON2(two[j], two[j + 1]);
    }
    UNROLL for (int j = 0; j < GROUP; j++) raw[j] =
        (four[j] + ON4(four[j], four[j + 1])) * ALL(scale);
    STORES(y + i, raw, GROUP, stream);
    ahead = raw[GROUP]; /* the others hold results now */
    twos = two[GROUP];
    fours = four[GROUP];
  }
  return i;
}

/* Windows of many fours: fours become eights, sixteens, ... in place, and `sums` collects those
 * that the window's length is made of, smallest first. Both buffers have room for whole vectors
 * past their end. */
static void NAME(sum_large_windows)(T *y, C *fours, C *sums, int64_t quads, const T *tail,
                                    int singles, int64_t count, C scale) {
  for (int64_t i = 0; i < count; i++) {
    C sum = 0;
    for (int s = 0; s < singles; s++) sum += GET(tail + i + s);
    sums[i] = sum;
  }
  int64_t offset = 0, valid = count + 4 * (quads - 1); /* how many of `fours` are sums still */
  for (int64_t size = 4; quads; size *= 2, quads /= 2) {
    if (quads & 1) {
      UNROLL_4 for (int64_t i = 0; i < count; i += W) {
        STOREC(sums + i, LOADC(sums + i) + LOADC(fours + i + offset), false);
      }
      offset += size;
    }
    valid -= size;
    if (quads == 1) break;
    UNROLL_4 for (int64_t i = 0; i < valid; i += W) {
      STOREC(fours + i, LOADC(fours + i) + LOADC(fours + i + size), false);
    }
  }
  for (int64_t i = 0; i < count; i++) PUT(y + i, sums[i] * scale);
}

/* y[i] = (x[i] + ... + x[i + kernel - 1]) * scale for i in 0..count, at most a tile of them.
 * scratch has room for two times (a tile + kernel + 64) sums. y is aligned for whole vectors if
 * `stream`. */
static void NAME(sum_tile)(T *y, const T *x, int64_t kernel, int64_t count, C scale, C *scratch,
                           bool stream) {
  const int64_t quads = kernel / 4;
  const int singles = (int)(kernel % 4);
  const T *tail = x + 4 * quads;
  const bool streams =
      ONEPASS_HAS_STREAMS && stream; /* asked for every vector: no loop is there twice */
#define CASE(q, s)                                                     \
  NAME(finish_windows)(y, scratch, q, tail, s, count, scale, streams); \
  return
#define SMALL_CASE(k)                                      \
  NAME(sum_small_windows)(y, x, k, count, scale, streams); \
  return
  if (kernel == 1) {
    SMALL_CASE(1);
  }
  if (kernel == 2) {
    SMALL_CASE(2);
  }
  if (kernel == 3) {
    SMALL_CASE(3);
  }
  NAME(sum_fours)(scratch, x, count + 4 * (quads - 1));
  if (quads == 1 && singles == 0) {
    CASE(1, 0);
  }
  if (quads == 1 && singles == 1) {
    CASE(1, 1);
  }
  if (quads == 1 && singles == 2) {
    CASE(1, 2);
  }
  if (quads == 1 && singles == 3) {
    CASE(1, 3);
  }
  if (quads == 2 && singles == 0) {
    CASE(2, 0);
  }
  if (quads == 2 && singles == 1) {
    CASE(2, 1);
  }
  if (quads == 4 && singles == 0) {
    CASE(4, 0);
  }
#undef CASE
#undef SMALL_CASE
  if (quads <= ADDED_ONE_BY_ONE) {
    NAME(finish_windows)(y, scratch, (int)quads, tail, singles, count, scale, false);
    return;
  }
  C *sums = scratch + ONEPASS_POOL_TILE + kernel + 64;
  NAME(sum_large_windows)(y, scratch, sums, quads, tail, singles, count, scale);
}

/* The sum of one window by itself, in 32 lanes and then, every 4096 elements, in double. */
static double NAME(sum_window)(const T *x, int64_t count) {
  enum { LANES = 32, CHUNK = 4096 };
  double total = 0;
  int64_t i = 0;
  while (count - i >= LANES) {
    const int64_t end = (count - i < CHUNK ? i + (count - i) / LANES * LANES : i + CHUNK);
    V sums[LANES / W] = {0};
    for (; i < end; i += LANES) {
      UNROLL for (int j = 0; j < LANES / W; j++) sums[j] += LOAD(x + i + j * W);
    }
    C lane[LANES];
    memcpy(lane, sums, sizeof lane);
    for (int half = LANES / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    }
    total += (double)lane[0];
  }
  for (; i < count; i++) total += (double)GET(x + i);
  return total;
}

/* The sums of W windows some way apart: each in the lanes of a vector, which are added up for all of them at once. Of the
 * last window as much is read as whole vectors reach; windows from `count` on are the last one again. */
ALWAYS_INLINE V NAME(sums_apart)(const T *x, int64_t kernel, int64_t stride, int64_t count) {
  V sums[W] = {0};
  int64_t i = 0;
#define WINDOW(j) (x + ((j) < count ? (j) : count - 1) * stride + i)
  for (; i + W <= kernel; i += W) {
    UNROLL for (int j = 0; j < W; j++) sums[j] += LOAD(WINDOW(j));
  }
  if (i < kernel) {
    UNROLL for (int j = 0; j < W; j++) sums[j] += ONLY(LOAD(WINDOW(j)), 0, kernel - i);
  }
#undef WINDOW
  return ACROSS(sums);
}

/* sums[o] = the sum of the window from x[o * stride] on. The last vector may overlap the one before it. */
NEVER_INLINE void NAME(sum_apart)(C *sums, const T *x, int64_t kernel, int64_t stride,
                                  int64_t count) {
  if (count < W) {
    const V few = NAME(sums_apart)(x, kernel, stride, count);
    memcpy(sums, &few, (size_t)count * sizeof(C));
    return;
  }
  for (int64_t o = 0; o < count; o += W) {
    if (o > count - W) o = count - W;
    STOREC(sums + o, NAME(sums_apart)(x + o * stride, kernel, stride, W), false);
  }
}
