/* Rows joined element by element into one line, for one element type; after cpu_sums.h, see
 * cpu_kernels.c. Everything beyond avg_pool1d is made of this: windows that reach over several rows,
 * the taps of a window along its line, and whole windows where lanes run across channels. */

#define MOST           JOIN2(max_, SUMS)
#define PICK           JOIN2(pick_, SUMS)
#define FOLD           JOIN2(fold_, SUMS)
#define LOAD_PARTC     JOIN2(load_part_, SUMS)
#define STORE_LANESC   JOIN2(store_lanes_, SUMS)
#define ALL_INTS       JOIN2(all_ints_, SUMS)
#define LOADI          JOIN2(load_ints_, SUMS)
#define STOREI         JOIN2(store_ints_, SUMS)
#define I              JOIN2(integer_, SUMS) /* as wide as a sum */
#define IV             JOIN2(integers_, SUMS)
#define IS_SUMS        (sizeof(T) == sizeof(C)) /* elements are sums already */
#define NOTHING        (-(C)INFINITY)           /* what a maximum starts with */
#define JOINED_AT_ONCE 4

/* ---- Sums, weighted sums and maxima ---------------------------------------------------------- */

ALWAYS_INLINE C NAME(join_one)(C a, C b, const onepass_join how) {
  if (how != ONEPASS_JOIN_MAXIMA) return a + b;
  return a > b || a != a ? a : b; /* NaN wins */
}
ALWAYS_INLINE V NAME(join)(V a, V b, const onepass_join how) {
  return how == ONEPASS_JOIN_MAXIMA ? MOST(a, b) : a + b;
}

ALWAYS_INLINE V NAME(join_terms)(const V *term, const int count, const onepass_join how) {
  V all = NAME(join)(term[0], term[1], how);
  if (count == 1) return term[0];
  if (count == 3) return NAME(join)(all, term[2], how);
  return count == 2 ? all : NAME(join)(all, NAME(join)(term[2], term[3], how), how);
}

ALWAYS_INLINE V NAME(join_at)(const C *line, const T *const *rows, const C *weights,
                              const int count, const bool more, int64_t i, const onepass_join how) {
  V term[JOINED_AT_ONCE] = {0};
  UNROLL for (int r = 0; r < count; r++) {
    term[r] = LOAD(rows[r] + i);
    if (how == ONEPASS_JOIN_WEIGHTED) term[r] *= ALL(weights[r]);
  }
  const V all = NAME(join_terms)(term, count, how);
  return more ? NAME(join)(LOADC(line + i), all, how) : all;
}

/* Fewer elements than a vector has. */
ALWAYS_INLINE void NAME(join_few)(C *line, const T *const *rows, const C *weights, int count,
                                  bool more, int64_t length, onepass_join how) {
  V term[JOINED_AT_ONCE] = {0};
  for (int r = 0; r < count; r++) {
    term[r] = LOAD_PART(rows[r], length);
    if (how == ONEPASS_JOIN_WEIGHTED) term[r] *= ALL(weights[r]);
  }
  V all = NAME(join_terms)(term, count, how);
  if (more) all = NAME(join)(LOAD_PARTC(line, length), all, how);
  STORE_LANESC(line, all, 0, length);
}

/* line[i] = rows[0][i] and so on joined, and with them what line[i] was if there is `more`. */
ALWAYS_INLINE void NAME(join_group)(C *line, const T *const *rows, const C *weights,
                                    const int count, const bool more, int64_t length,
                                    const onepass_join how) {
  if (length < W) {
    NAME(join_few)(line, rows, weights, count, more, length, how);
    return;
  }
  /* The last vector may overlap the one before it, so it is made first. */
  const V last = NAME(join_at)(line, rows, weights, count, more, length - W, how);
  int64_t i = 0;
  UNROLL_4 for (; i + W < length; i += W) {
    STOREC(line + i, NAME(join_at)(line, rows, weights, count, more, i, how), false);
  }
  STOREC(line + length - W, last, false);
}

ALWAYS_INLINE void NAME(join_counted)(C *line, const T *const *rows, const C *weights, int count,
                                      bool more, int64_t length, const onepass_join how) {
#define CASE(c)                                                   \
  if (ONE_COPY) {                                                 \
    NAME(join_group)(line, rows, weights, c, more, length, how);  \
  } else if (more) {                                              \
    NAME(join_group)(line, rows, weights, c, true, length, how);  \
  } else {                                                        \
    NAME(join_group)(line, rows, weights, c, false, length, how); \
  }
  if (count == 1) {
    CASE(1)
  } else if (count == 2) {
    CASE(2)
  } else if (count == 3) {
    CASE(3)
  } else {
    CASE(4)
  }
#undef CASE
}

/* One to JOINED_AT_ONCE rows. */
static void NAME(join_rows)(C *line, const T *const *rows, const C *weights, int count, bool more,
                            int64_t length, onepass_join how) {
  if (ONE_COPY) {
    NAME(join_counted)(line, rows, weights, count, more, length, how);
  } else if (how == ONEPASS_JOIN_MAXIMA) {
    NAME(join_counted)(line, rows, weights, count, more, length, ONEPASS_JOIN_MAXIMA);
  } else if (how == ONEPASS_JOIN_WEIGHTED) {
    NAME(join_counted)(line, rows, weights, count, more, length, ONEPASS_JOIN_WEIGHTED);
  } else {
    NAME(join_counted)(line, rows, weights, count, more, length, ONEPASS_JOIN_SUMS);
  }
}

/* Any number of them, handed in one by one. */
typedef struct NAME(joiner) {
  C *line;
  int64_t length;
  onepass_join how;
  int waiting;
  bool more;
  const T *row[JOINED_AT_ONCE];
  C weight[JOINED_AT_ONCE];
} NAME(joiner);

ALWAYS_INLINE void NAME(join_waiting)(NAME(joiner) * j) {
  if (j->waiting == 0) return;
  NAME(join_rows)(j->line, j->row, j->weight, j->waiting, j->more, j->length, j->how);
  j->waiting = 0;
  j->more = true;
}

ALWAYS_INLINE void NAME(join_next)(NAME(joiner) * j, const T *row, C weight) {
  j->row[j->waiting] = row;
  j->weight[j->waiting] = weight;
  if (++j->waiting == JOINED_AT_ONCE) NAME(join_waiting)(j);
}

/* The same for a row that has been made a line of sums. */
ALWAYS_INLINE void NAME(join_next_sums)(NAME(joiner) * j, const C *row, C weight) {
  OF_SUM(join_rows)(j->line, &row, &weight, 1, j->more, j->length, j->how);
  j->more = true;
}

static void NAME(join_end)(NAME(joiner) * j) {
  NAME(join_waiting)(j);
  if (j->more) return;
  const C none = j->how == ONEPASS_JOIN_MAXIMA ? NOTHING : 0;
  for (int64_t i = 0; i < j->length; i++) j->line[i] = none;
}

/* ---- Maxima that know where they are from ---------------------------------------------------- */

/* Rows come in the order of their elements' indices, so that of equals the first stays. Where a
 * maximum is NaN, `where` is anything. */
ALWAYS_INLINE void NAME(find_at)(C *best, I *where, const T *const *rows, const I *numbers,
                                 const int count, int64_t i) {
  V largest = LOADC(best + i);
  IV number = LOADI(where + i);
  UNROLL for (int r = 0; r < count; r++) {
    const V term = LOAD(rows[r] + i);
    number = PICK((IV)(term > largest), ALL_INTS(numbers[r]), number);
    largest = MOST(largest, term);
  }
  STOREC(best + i, largest, false);
  STOREI(where + i, number);
}

ALWAYS_INLINE void NAME(find_group)(C *best, I *where, const T *const *rows, const I *numbers,
                                    const int count, int64_t length) {
  int64_t i = 0;
  for (; i + W <= length; i += W) NAME(find_at)(best, where, rows, numbers, count, i);
  if (i == length) return;
  if (length >= W) { /* to look twice finds the same */
    NAME(find_at)(best, where, rows, numbers, count, length - W);
    return;
  }
  for (; i < length; i++) {
    for (int r = 0; r < count; r++) {
      const C term = GET(rows[r] + i);
      if (term > best[i]) where[i] = numbers[r];
      best[i] = NAME(join_one)(best[i], term, ONEPASS_JOIN_MAXIMA);
    }
  }
}

/* best[i] = the largest of rows[r][i] and of what it was, where[i] = numbers[r] if it is a row's. */
static void NAME(find_maxima)(C *best, I *where, const T *const *rows, const I *numbers, int count,
                              int64_t length) {
  for (; count >= 4; count -= 4, rows += 4, numbers += 4) {
    NAME(find_group)(best, where, rows, numbers, 4, length);
  }
  if (count == 3) NAME(find_group)(best, where, rows, numbers, 3, length);
  if (count == 2) NAME(find_group)(best, where, rows, numbers, 2, length);
  if (count == 1) NAME(find_group)(best, where, rows, numbers, 1, length);
}

/* ---- To and from elements -------------------------------------------------------------------- */

static void NAME(fill)(C *line, int64_t count, C value) {
  for (int64_t i = 0; i < count; i++) line[i] = value;
}

/* `count` elements `step` apart as sums. */
NEVER_INLINE void NAME(unpack)(C *line, const T *row, int64_t step, int64_t count) {
  int64_t i = 0;
  if (step == 1) {
    for (; i + W <= count; i += W) STOREC(line + i, LOAD(row + i), false);
    if (i < count && count >= W) {
      STOREC(line + count - W, LOAD(row + count - W), false);
      return;
    }
  }
  for (; i < count; i++) line[i] = GET(row + i * step);
}

/* Sums, times a scale, as elements `step` apart. */
NEVER_INLINE void NAME(put_scaled)(T *y, int64_t step, const C *sums, int64_t count, C scale) {
  int64_t i = 0;
  if (step == 1) {
    for (; i + W <= count; i += W) STORE(y + i, LOADC(sums + i) * ALL(scale), false);
    if (i < count && count >= W && (const void *)y != (const void *)sums) {
      STORE(y + count - W, LOADC(sums + count - W) * ALL(scale), false);
      return;
    }
  }
  for (; i < count; i++) PUT(y + i * step, sums[i] * scale);
}

NEVER_INLINE void NAME(put_all)(T *y, int64_t step, const C *sums, int64_t count) {
  int64_t i = 0;
  if (step == 1) {
    for (; i + W <= count; i += W) STORE(y + i, LOADC(sums + i), false);
    if (i < count && count >= W) {
      STORE(y + count - W, LOADC(sums + count - W), false);
      return;
    }
  }
  for (; i < count; i++) PUT(y + i * step, sums[i]);
}
