/* Forward over dense rows; part of cpu_template.h.
 *
 * Rows are done in blocks of 32 elements: a block is summed as a tree, the blocks of a run in the
 * lanes of one vector, and so are the runs of a chunk. What is left after the whole blocks goes
 * vector by vector, the last elements as part of a vector that ends where they end. */

#define BLOCK 32
#define RUN   (16 * BLOCK)    /* no sum is the result of many additions in a row */
#define U     (BLOCK / W)     /* vectors in a block */
#define G     (U < 4 ? U : 4) /* vectors in a group */

/* Sums below this may lack what is subnormal. */
#define LEAST_DOTS (JOIN2(HAS_DOTS_, ELEMENT) ? 0x1p-100 : 0)

typedef struct NAME(sums) {
  V a, b;
} NAME(sums);

typedef struct NAME(scale) {
  V shift, scale, offset;
} NAME(scale);

ALWAYS_INLINE void NAME(add_lanes)(NAME(sums) * lanes, const NAME(sums) * more) {
  lanes->a += more->a;
  lanes->b += more->b;
}

/* centered: sums of deviations from `shift`, otherwise of the elements themselves. */
ALWAYS_INLINE void NAME(gather_block)(const onepass_statistic statistic, const bool centered,
                                      NAME(sums) * lanes, const T *x, V shift) {
#if JOIN2(HAS_DOTS_, ELEMENT)
  if (!centered) {
    UNROLL for (int j = 0; j < BLOCK; j += 2 * W) {
      ADD_DOTS(&lanes->a, &lanes->b, x + j, statistic == ONEPASS_STATISTIC_ABS);
    }
    return;
  }
#endif
  V v[U];
  LOADS(v, x, U);
  UNROLL for (int j = 0; j < U; j++) {
    if (statistic == ONEPASS_STATISTIC_ABS) v[j] = ABS(v[j]);
    if (centered) v[j] -= shift;
  }
  lanes->a += NAME(tree)(v, U);
  if (statistic == ONEPASS_STATISTIC_MOMENTS) lanes->b += NAME(dot)(v, v, U);
}

/* Finish the sums of a chunk whose elements before `begin` are in `lanes` and, the last of them, in
 * `run`: in the order in which a chunk is always summed, whatever else is done along with it. */
ALWAYS_INLINE NAME(sums)
    NAME(gather_rest)(onepass_statistic statistic, bool centered, NAME(sums) lanes, NAME(sums) run,
                      const T *x, C shift, int64_t begin, int64_t n) {
  int64_t i = begin;
  for (; i + BLOCK <= n; i += BLOCK) {
    if (statistic == ONEPASS_STATISTIC_ABS) {
      NAME(gather_block)(ONEPASS_STATISTIC_ABS, false, &run, x + i, ALL(0));
    } else if (centered) {
      NAME(gather_block)(ONEPASS_STATISTIC_MOMENTS, true, &run, x + i, ALL(shift));
    } else {
      NAME(gather_block)(ONEPASS_STATISTIC_MOMENTS, false, &run, x + i, ALL(0));
    }
  }
  NAME(sums) rest = {0};
  for (; i < n; i += W) {
    const int64_t at = i + W <= n ? i : NAME(last_vector)(n);
    V v = NAME(load_of)(x, at, n);
    if (statistic == ONEPASS_STATISTIC_ABS) v = ABS(v);
    if (centered) v -= ALL(shift);
    v = ONLY(v, i - at, n - at);
    rest.a += v;
    if (statistic == ONEPASS_STATISTIC_MOMENTS) rest.b = FMA(v, v, rest.b);
  }
  NAME(add_lanes)(&lanes, &run);
  NAME(add_lanes)(&lanes, &rest);
  return lanes;
}

/* affine: 1 weight, 2 bias, 3 both, 0 neither. */
ALWAYS_INLINE V NAME(apply_vector)(const onepass_statistic statistic, const bool centered,
                                   const int affine, const NAME(scale) * s, V v, V weight, V bias) {
  if (statistic == ONEPASS_STATISTIC_ABS) return v * s->scale;
  v = FMA(centered ? v - s->shift : v, s->scale, s->offset);
  if (affine == 3) return FMA(v, weight, bias);
  return affine == 1 ? v * weight : affine == 2 ? v + bias : v;
}

ALWAYS_INLINE void NAME(apply_block)(const onepass_statistic statistic, const bool centered,
                                     const int affine, bool stream, const NAME(scale) * s, T *y,
                                     const T *x, NAME(weights) weights, int64_t at) {
  UNROLL for (int k = 0; k < U; k += G) { /* groups small enough for the registers */
    V v[G], w[G] = {0}, b[G] = {0};       /* whole arrays at a time, so that loads pair up */
    LOADS(v, x + at + k * W, G);
    if (affine & 1) NAME(load_weights)(w, weights.weight, weights.wide, at + k * W, G);
    if (affine & 2) NAME(load_weights)(b, weights.bias, weights.wide, at + k * W, G);
    UNROLL for (int j = 0; j < G; j++) {
      v[j] = NAME(apply_vector)(statistic, centered, affine, s, v[j], w[j], b[j]);
    }
    STORES(y + at + k * W, v, G, stream);
  }
}

/* Elements begin..end of n, vector by vector. Fewer than a vector are done as part of one: what it
 * has too much of is not stored. */
ALWAYS_INLINE void NAME(apply_rest)(onepass_statistic statistic, bool centered, int affine,
                                    const NAME(scale) * s, T *y, const T *x, NAME(weights) weights,
                                    int64_t begin, int64_t end, int64_t n) {
  const V none = {0};
  for (int64_t i = begin; i < end; i += W) {
    const bool whole = i + W <= end;
    const int64_t at = whole || i + W <= n ? i : NAME(last_vector)(n);
    const bool wide = weights.wide;
    const V w = affine & 1 ? NAME(load_weights_of)(weights.weight, wide, at, n) : none;
    const V b = affine & 2 ? NAME(load_weights_of)(weights.bias, wide, at, n) : none;
    const V v = NAME(apply_vector)(statistic, centered, affine, s, NAME(load_of)(x, at, n), w, b);
    if (whole) {
      STORE(y + i, v, false);
    } else {
      STORE_LANES(y + at, v, i - at, end - at);
    }
  }
}

/* Gather a chunk of the next row and apply this row's scale to as many elements, block by block:
 * reads from memory and writes to it overlap, as in a copy. Without `apply` or `gather` it does one
 * of them; without `gather` it fetches from `next` what comes soon. */
ALWAYS_INLINE NAME(sums)
    NAME(do_chunk)(const onepass_statistic statistic, const bool centered, const int affine,
                   bool stream, const bool gather, const bool apply, const T *next,
                   int64_t gather_count, C shift, const NAME(scale) * s, T *y, const T *x,
                   NAME(weights) weights, int64_t apply_count) {
  NAME(sums) lanes = {0}, run = {0};
  const NAME(scale) own = *s; /* a copy whose address nobody has stays in registers */
  const int64_t gather_end = gather_count / BLOCK * BLOCK, apply_end = apply_count / BLOCK * BLOCK;
  const int64_t end = !gather                            ? apply_end
                      : !apply || gather_end < apply_end ? gather_end
                                                         : apply_end;
  int64_t i = 0;
  while (i < end) {
    const int64_t run_end = gather && i + RUN < end ? i + RUN : end;
    for (; i < run_end; i += BLOCK) {
      if (gather) {
        prefetch_ahead(next + i, BLOCK * sizeof(T));
        NAME(gather_block)(statistic, centered, &run, next + i, ALL(shift));
      }
      if (!gather) prefetch_soon(next + i, BLOCK * sizeof(T));
      if (apply) {
        NAME(apply_block)
        (statistic, centered, affine, stream, &own, y, x, weights, i);
      }
    }
    if (gather && i % RUN == 0) {
      NAME(add_lanes)(&lanes, &run);
      run = (NAME(sums)){0};
    }
  }
  /* Where y is not aligned the two counts differ by less than a block. */
  if (apply && i < apply_count) {
    NAME(apply_rest)
    (statistic, centered, affine, s, y, x, weights, i, apply_count, apply_count);
  }
  if (!gather) return lanes;
  if (i == gather_count) {
    NAME(add_lanes)(&lanes, &run);
    return lanes;
  }
  return NAME(gather_rest)(statistic, centered, lanes, run, next, shift, i, gather_count);
}

/* ---- The sums of a chunk --------------------------------------------------------------------- */

ALWAYS_INLINE NAME(sums) NAME(gather_only)(const onepass_statistic statistic, const bool centered,
                                           const T *x, int64_t count, C shift) {
  const NAME(scale) none = {0};
  return NAME(do_chunk)(statistic, centered, 0, false, true, false, x, count, shift, &none, NULL,
                        NULL, (NAME(weights)){0}, 0);
}

/* The mean and the sum of squares about it, from sums about `shift`. `lossy` is set if the mean is
 * so far from the shift that subtracting its square loses more than two bits (of few elements:
 * one), or if the squares overflow or are too small to be trusted. */
ALWAYS_INLINE onepass_row_sums NAME(moments_of)(const NAME(sums) * lanes, C shift, int64_t count,
                                                bool *lossy) {
  const double n = (double)count, sum = (double)FOLD(lanes->a);
  const double of_mean = sum * sum / n, squares = (double)FOLD(lanes->b) - of_mean;
  *lossy = !(of_mean <= (count <= 4 * BLOCK ? 1 : 4) * squares && squares < INFINITY &&
             squares >= LEAST_DOTS);
  return (onepass_row_sums){.a = (double)shift + sum / n, .b = squares < 0 ? 0 : squares};
}

/* For deviations whose squares are beyond the type of sums: one element after the other, in double.
 */
NEVER_INLINE onepass_row_sums NAME(moments_in_double)(const T *x, int64_t count) {
  onepass_row_sums sums = {0};
  for (int64_t i = 0; i < count; i++) sums.a += (double)GET(x + i);
  sums.a /= (double)count;
  for (int64_t i = 0; i < count; i++) {
    const double deviation = (double)GET(x + i) - sums.a;
    sums.b += deviation * deviation;
  }
  bool infinite = false, not_a_number = false;
  for (int64_t i = 0; i < count; i++) {
    const C v = GET(x + i);
    infinite |= v - v != 0 && v == v;
    not_a_number |= v != v;
  }
  sums.c = infinite && !not_a_number;
  if (not_a_number) sums.c = (double)NAN;
  return sums;
}

NEVER_INLINE onepass_row_sums NAME(moments_about)(const T *x, int64_t count, C shift) {
  const NAME(sums) lanes = NAME(gather_only)(ONEPASS_STATISTIC_MOMENTS, true, x, count, shift);
  bool lossy;
  const onepass_row_sums sums = NAME(moments_of)(&lanes, shift, count, &lossy);
  return sums.b < INFINITY ? sums : NAME(moments_in_double)(x, count);
}

/* The sum of |x| where some are so small that a sum of dots leaves them out. */
NEVER_INLINE double NAME(small_sum)(const T *x, int64_t count) {
  const NAME(sums) lanes = NAME(gather_only)(ONEPASS_STATISTIC_ABS, true, x, count, 0);
  return (double)FOLD(lanes.a);
}

/* The sums of a chunk from its lanes; gathers again, from the cache, where they lost too much. */
ALWAYS_INLINE onepass_row_sums NAME(chunk_sums)(const onepass_statistic statistic,
                                                const NAME(sums) * lanes, const T *x, int64_t count,
                                                C shift) {
  if (statistic == ONEPASS_STATISTIC_ABS) {
    const double sum = (double)FOLD(lanes->a);
    return (onepass_row_sums){.a = sum < LEAST_DOTS ? NAME(small_sum)(x, count) : sum};
  }
  bool lossy;
  const onepass_row_sums sums = NAME(moments_of)(lanes, shift, count, &lossy);
  return lossy ? NAME(moments_about)(x, count, (C)sums.a) : sums;
}

/* Whether a chunk should be gathered about a shift, judging by its first block: is the mean there
 * more than two deviations from 0? Short chunks are sooner gathered twice than looked at. */
ALWAYS_INLINE bool NAME(look_ahead)(const onepass_statistic statistic, const T *x, int64_t count,
                                    C *shift) {
  *shift = 0;
  if (statistic == ONEPASS_STATISTIC_ABS || count < 64 * BLOCK) return false;
  NAME(sums) sums = {0};
  NAME(gather_block)(statistic, false, &sums, x, ALL(0));
  const C mean = FOLD(sums.a) / BLOCK, square = FOLD(sums.b) / BLOCK;
  if (5 * mean * mean <= 4 * square) return false;
  *shift = mean;
  return true;
}

ALWAYS_INLINE onepass_row_sums NAME(gather_chunk)(const onepass_statistic statistic, const T *x,
                                                  int64_t count) {
  C shift;
  const bool centered = NAME(look_ahead)(statistic, x, count, &shift);
  const NAME(sums) lanes = centered ? NAME(gather_only)(statistic, true, x, count, shift)
                                    : NAME(gather_only)(statistic, false, x, count, 0);
  return NAME(chunk_sums)(statistic, &lanes, x, count, shift);
}

static onepass_row_sums NAME(gather_abs)(const void *x, int64_t count) {
  return NAME(gather_chunk)(ONEPASS_STATISTIC_ABS, x, count);
}

static onepass_row_sums NAME(gather_moments)(const void *x, int64_t count) {
  return NAME(gather_chunk)(ONEPASS_STATISTIC_MOMENTS, x, count);
}

NEVER_INLINE onepass_row_sums NAME(gather_row)(onepass_statistic statistic, const T *x,
                                               int64_t count) {
  onepass_row_sums sums = {0};
  for (int64_t i = 0; i < count; i += ONEPASS_NORM_CHUNK) {
    const int64_t length = count - i < ONEPASS_NORM_CHUNK ? count - i : ONEPASS_NORM_CHUNK;
    const onepass_row_sums chunk = statistic == ONEPASS_STATISTIC_ABS
                                       ? NAME(gather_abs)(x + i, length)
                                       : NAME(gather_moments)(x + i, length);
    onepass_merge_forward(statistic, &sums, (double)i, chunk, (double)length);
  }
  return sums;
}

/* ---- Whole rows ------------------------------------------------------------------------------ */

/* For denominators without a usable reciprocal: rows of subnormals, or of zeros. */
static void NAME(divide)(T *y, const T *x, int64_t count, double denominator) {
  for (int64_t i = 0; i < count; i++) {
    PUT(y + i, (C)((double)GET(x + i) / denominator));
  }
}

ALWAYS_INLINE NAME(scale) NAME(scale_of)(const onepass_row_scale *row) {
  return (NAME(scale)){ALL((C)row->shift), ALL((C)row->scale), ALL((C)row->offset)};
}

/* Elements of y before its first whole cache line go first; short rows are not worth it. */
ALWAYS_INLINE int64_t NAME(apply_head)(const onepass_statistic statistic, const int affine,
                                       bool stream, bool centered, const NAME(scale) * s, T *y,
                                       const T *x, NAME(weights) weights, int64_t n) {
  const int64_t unaligned = stream || n >= 4 * BLOCK ? NAME(to_alignment)(y) : 0;
  const int64_t head = unaligned < n ? unaligned : n;
  if (head) NAME(apply_rest)(statistic, centered, affine, s, y, x, weights, 0, head, n);
  return head;
}

/* Apply a row's scale to n elements of it. */
ALWAYS_INLINE void NAME(apply_dense)(const onepass_statistic statistic, const int affine,
                                     bool stream, const onepass_row_scale *row,
                                     const NAME(scale) * s, T *y, const T *x, NAME(weights) weights,
                                     int64_t n) {
  const T *soon = row->soon_x ? row->soon_x : x + 1024 / sizeof(T);
#define APPLY(centered) \
  NAME(do_chunk)(statistic, centered, affine, stream, false, true, soon, 0, 0, s, y, x, weights, n)
  if (ONE_COPY) {
    APPLY(row->centered);
  } else if (row->centered) {
    APPLY(true);
  } else {
    APPLY(false);
  }
#undef APPLY
}

ALWAYS_INLINE void NAME(apply_only)(const onepass_statistic statistic, const int affine,
                                    bool stream, const onepass_row_scale *row, T *y, const T *x,
                                    NAME(weights) weights, int64_t n) {
  if (row->exact) {
    NAME(divide)(y, x, n, row->denominator);
    return;
  }
  const NAME(scale) s = NAME(scale_of)(row);
  const int64_t head =
      NAME(apply_head)(statistic, affine, stream, row->centered, &s, y, x, weights, n);
  NAME(apply_dense)
  (statistic, affine, stream, row, &s, y + head, x + head, NAME(weights_from)(weights, head),
   n - head);
}

static void NAME(apply_moments)(const onepass_norm_problem *p, const onepass_row_scale *row,
                                void *y, const void *x, const void *weight, const void *bias,
                                int64_t count);

/* Apply this row's scale to `apply` elements while gathering `count` of the next row. */
ALWAYS_INLINE onepass_row_sums NAME(apply_and_gather_chunk)(
    const onepass_statistic statistic, const int affine, bool stream, const onepass_norm_problem *p,
    const onepass_row_scale *row, const NAME(scale) * s, T *y, const T *x, NAME(weights) weights,
    int64_t apply, const T *next, int64_t count) {
  C shift;
  const bool moments = statistic == ONEPASS_STATISTIC_MOMENTS;
  const bool far = NAME(look_ahead)(statistic, next, count, &shift);
  if (moments && far != row->centered) { /* a row unlike its neighbour: not both in one loop */
    NAME(apply_moments)(p, row, y, x, weights.weight, weights.bias, apply);
    return NAME(gather_moments)(next, count);
  }
  NAME(sums) lanes;
#define BOTH(centered)                                                                           \
  lanes = NAME(do_chunk)(statistic, centered, affine, stream, true, true, next, count, shift, s, \
                         y, x, weights, apply)
  if (moments && ONE_COPY) {
    BOTH(far);
  } else if (moments && far) {
    BOTH(true);
  } else {
    BOTH(false);
  }
#undef BOTH
  return NAME(chunk_sums)(statistic, &lanes, next, count, shift);
}

ALWAYS_INLINE onepass_row_sums NAME(apply_and_gather)(const onepass_statistic statistic,
                                                      const int affine, bool stream,
                                                      const onepass_norm_problem *p,
                                                      const onepass_row_scale *row, T *y,
                                                      const T *x, NAME(weights) weights,
                                                      const T *next, int64_t n) {
  const NAME(scale) s = NAME(scale_of)(row);
  int64_t applied =
      NAME(apply_head)(statistic, affine, stream, row->centered, &s, y, x, weights, n);
  onepass_row_sums sums = {0};
  for (int64_t i = 0; i < n; i += ONEPASS_NORM_CHUNK) {
    const int64_t left = n - i, to_apply = n - applied;
    const int64_t count = left < ONEPASS_NORM_CHUNK ? left : ONEPASS_NORM_CHUNK;
    const int64_t apply = to_apply < ONEPASS_NORM_CHUNK ? to_apply : ONEPASS_NORM_CHUNK;
    const onepass_row_sums chunk = NAME(apply_and_gather_chunk)(
        statistic, affine, stream, p, row, &s, y + applied, x + applied,
        NAME(weights_from)(weights, applied), apply, next + i, count);
    onepass_merge_forward(statistic, &sums, (double)i, chunk, (double)count);
    applied += apply;
  }
  return sums;
}

/* ---- The same with run-time choices made constants ------------------------------------------- */

static void NAME(apply_abs)(const onepass_norm_problem *p, const onepass_row_scale *row, void *y,
                            const void *x, const void *weight, const void *bias, int64_t count) {
  (void)weight, (void)bias;
  NAME(apply_only)(ONEPASS_STATISTIC_ABS, 0, STREAMS(p), row, y, x, (NAME(weights)){0}, count);
}

static void NAME(apply_moments)(const onepass_norm_problem *p, const onepass_row_scale *row,
                                void *y, const void *x, const void *weight, const void *bias,
                                int64_t count) {
  const NAME(weights) weights = NAME(weights_of)(p, weight, bias);
#define APPLY(affine) \
  NAME(apply_only)(ONEPASS_STATISTIC_MOMENTS, affine, STREAMS(p), row, y, x, weights, count)
  const int affine = (weight ? 1 : 0) | (bias ? 2 : 0);
  if (ONE_COPY) {
    APPLY(affine);
  } else if (affine == 3) {
    APPLY(3);
  } else if (bias) {
    APPLY(2);
  } else if (weight) {
    APPLY(1);
  } else {
    APPLY(0);
  }
#undef APPLY
}

ALWAYS_INLINE void NAME(save)(const onepass_norm_problem *p, const onepass_buffers *buffers,
                              int64_t row, const onepass_row_scale *scale) {
  C *mean = buffers->mean, *rstd = buffers->rstd;
  if (mean) mean[onepass_walk_offset(&p->rows, ONEPASS_ROLE_MEAN, row)] = (C)scale->mean;
  if (rstd) rstd[onepass_walk_offset(&p->rows, ONEPASS_ROLE_RSTD, row)] = (C)scale->rstd;
}

/* Short rows spend their time waiting for a sum to become a scale, so several are kept in flight:
 * gather a batch, make all its scales, apply them. */
NEVER_INLINE void NAME(do_short_rows)(onepass_statistic statistic, const onepass_norm_problem *p,
                                      const onepass_buffers *buffers, int64_t begin, int64_t end) {
  enum { BATCH = 16 };
  const int64_t n = p->elements.count;
  for (int64_t first = begin; first < end; first += BATCH) {
    const int rows = end - first < BATCH ? (int)(end - first) : BATCH;
    onepass_row_sums sums[BATCH];
    onepass_row_scale scales[BATCH];
    for (int i = 0; i < rows; i++) {
      const T *x = (const T *)buffers->x + onepass_walk_offset(&p->rows, ONEPASS_ROLE_X, first + i);
      sums[i] =
          statistic == ONEPASS_STATISTIC_ABS ? NAME(gather_abs)(x, n) : NAME(gather_moments)(x, n);
    }
    for (int i = 0; i < rows; i++) scales[i] = onepass_scale_row(p, sums[i]);
    for (int i = 0; i < rows; i++) {
      if (statistic == ONEPASS_STATISTIC_MOMENTS) NAME(save)(p, buffers, first + i, &scales[i]);
      const T *x = (const T *)buffers->x + onepass_walk_offset(&p->rows, ONEPASS_ROLE_X, first + i);
      T *y = (T *)buffers->y + onepass_walk_offset(&p->rows, ONEPASS_ROLE_Y, first + i);
      (statistic == ONEPASS_STATISTIC_ABS ? NAME(apply_abs) : NAME(apply_moments))(
          p, &scales[i], y, x, buffers->weight, buffers->bias, n);
    }
  }
}

NEVER_INLINE void NAME(apply_row)(onepass_statistic statistic, const onepass_norm_problem *p,
                                  onepass_row_sums sums, T *y, const T *x, const void *weight,
                                  const void *bias) {
  const onepass_row_scale scale = onepass_scale_row(p, sums);
  (statistic == ONEPASS_STATISTIC_ABS ? NAME(apply_abs) : NAME(apply_moments))(
      p, &scale, y, x, weight, bias, p->elements.count);
}

/* A row's scale stays in registers: from memory, where it would be written number by number, it
 * could not be read as a whole before the stores of the row before it are done. */
ALWAYS_INLINE void NAME(do_rows)(const onepass_statistic statistic, const int affine,
                                 const onepass_norm_problem *p, const onepass_buffers *buffers,
                                 int64_t begin, int64_t end) {
  const int64_t n = p->elements.count;
  const bool stream = STREAMS(p);
  const NAME(weights) weights = NAME(weights_of)(p, buffers->weight, buffers->bias);
  const T *x = buffers->x, *next = x + onepass_walk_offset(&p->rows, ONEPASS_ROLE_X, begin);
  onepass_row_sums sums = NAME(gather_row)(statistic, next, n);
  for (int64_t row = begin; row < end; row++) {
    const onepass_row_scale scale = onepass_scale_row(p, sums);
    if (statistic == ONEPASS_STATISTIC_MOMENTS) NAME(save)(p, buffers, row, &scale);
    const T *this = next;
    T *y = (T *)buffers->y + onepass_walk_offset(&p->rows, ONEPASS_ROLE_Y, row);
    const bool last = row + 1 == end;
    if (!last) next = x + onepass_walk_offset(&p->rows, ONEPASS_ROLE_X, row + 1);
    if (last || scale.exact) {
      NAME(apply_row)(statistic, p, sums, y, this, weights.weight, weights.bias);
      if (!last) sums = NAME(gather_row)(statistic, next, n);
    } else {
      sums =
          NAME(apply_and_gather)(statistic, affine, stream, p, &scale, y, this, weights, next, n);
    }
  }
}

static void NAME(forward_rows_abs)(const onepass_norm_problem *p, const onepass_buffers *buffers,
                                   int64_t begin, int64_t end) {
  if (p->elements.count <= SHORT_ROW) {
    NAME(do_short_rows)(ONEPASS_STATISTIC_ABS, p, buffers, begin, end);
    return;
  }
  NAME(do_rows)(ONEPASS_STATISTIC_ABS, 0, p, buffers, begin, end);
}

/* A bias alone is too rare for a copy of all that: one row after the other. */
static void NAME(do_rows_with_bias)(const onepass_norm_problem *p, const onepass_buffers *buffers,
                                    int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    const T *x = (const T *)buffers->x + onepass_walk_offset(&p->rows, ONEPASS_ROLE_X, row);
    T *y = (T *)buffers->y + onepass_walk_offset(&p->rows, ONEPASS_ROLE_Y, row);
    const onepass_row_sums sums = NAME(gather_row)(ONEPASS_STATISTIC_MOMENTS, x, p->elements.count);
    const onepass_row_scale scale = onepass_scale_row(p, sums);
    NAME(save)(p, buffers, row, &scale);
    NAME(apply_moments)(p, &scale, y, x, NULL, buffers->bias, p->elements.count);
  }
}

static void NAME(forward_rows_moments)(const onepass_norm_problem *p,
                                       const onepass_buffers *buffers, int64_t begin, int64_t end) {
  if (p->elements.count <= SHORT_ROW) {
    NAME(do_short_rows)(ONEPASS_STATISTIC_MOMENTS, p, buffers, begin, end);
    return;
  }
  if (ONE_COPY) {
    const int affine = (buffers->weight ? 1 : 0) | (buffers->bias ? 2 : 0);
    NAME(do_rows)(ONEPASS_STATISTIC_MOMENTS, affine, p, buffers, begin, end);
  } else if (buffers->weight && buffers->bias) {
    NAME(do_rows)(ONEPASS_STATISTIC_MOMENTS, 3, p, buffers, begin, end);
  } else if (buffers->weight) {
    NAME(do_rows)(ONEPASS_STATISTIC_MOMENTS, 1, p, buffers, begin, end);
  } else if (!buffers->bias) {
    NAME(do_rows)(ONEPASS_STATISTIC_MOMENTS, 0, p, buffers, begin, end);
  } else {
    NAME(do_rows_with_bias)(p, buffers, begin, end);
  }
}

#undef BLOCK
#undef RUN
#undef LEAST_DOTS
#undef U
#undef G
