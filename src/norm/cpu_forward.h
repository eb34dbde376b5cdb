/* Forward over dense rows; part of cpu_template.h.
 *
 * A block is 32 elements, kept in as many lanes of sums, whatever the vector width: on every level an
 * element meets the same lane, so levels with fused multiply-add agree to the bit. What is left of a
 * chunk after its whole blocks goes through a zero-filled block on the stack. */

#define BLOCK 32
#define U     (BLOCK / W) /* vectors in a block */

#define WEIGHT_AT(i) (affine & 1 ? weight + (i) : NULL)
#define BIAS_AT(i)   (affine & 2 ? bias + (i) : NULL)

typedef struct NAME(lanes) {
  V a[U], b[U];
} NAME(lanes);

typedef struct NAME(scale) {
  V shift, scale, offset;
} NAME(scale);

ALWAYS_INLINE void NAME(gather_block)(const onepass_statistic statistic, NAME(lanes) *lanes,
                                      const T *x, V shift, const bool partial, int64_t count) {
  UNROLL for (int j = 0; j < U; j++) {
    const V v = LOAD(x + j * W);
    if (statistic == ONEPASS_STATISTIC_ABS) {
      lanes->a[j] += ABS(v);
    } else {
      V d = v - shift;
      if (partial) d = FIRST(d, count - j * W);
      lanes->a[j] += d;
      lanes->b[j] = FMA(d, d, lanes->b[j]);
    }
  }
}

/* Once a row at most, so the choice of loop is made at run time to keep the code small. */
NEVER_INLINE void NAME(gather_rest)(onepass_statistic statistic, NAME(lanes) *lanes, const T *x,
                                    C near, int64_t count) {
  T block[BLOCK] = {0};
  memcpy(block, x, (size_t)count * sizeof(T));
  NAME(gather_block)(statistic, lanes, block, ALL(near), true, count);
}

/* affine: 1 weight, 2 bias, 3 both, 0 neither. */
ALWAYS_INLINE void NAME(apply_block)(const onepass_statistic statistic, const int affine,
                                     const bool stream, const NAME(scale) *s, T *y, const T *x,
                                     const WT *weight, const WT *bias) {
  UNROLL for (int j = 0; j < U; j++) {
    V v = LOAD(x + j * W);
    if (statistic == ONEPASS_STATISTIC_ABS) {
      v *= s->scale;
    } else {
      v = FMA(v - s->shift, s->scale, s->offset);
      if (affine == 3) v = FMA(v, LOADW(weight + j * W), LOADW(bias + j * W));
      if (affine == 1) v *= LOADW(weight + j * W);
      if (affine == 2) v += LOADW(bias + j * W);
    }
    STORE(y + j * W, v, stream);
  }
}

NEVER_INLINE void NAME(apply_rest)(onepass_statistic statistic, int affine, const NAME(scale) *s,
                                   T *y, const T *x, const WT *weight, const WT *bias,
                                   int64_t count) {
  T in[BLOCK] = {0}, out[BLOCK];
  WT w[BLOCK] = {0}, b[BLOCK] = {0};
  memcpy(in, x, (size_t)count * sizeof(T));
  if (affine & 1) memcpy(w, weight, (size_t)count * sizeof(WT));
  if (affine & 2) memcpy(b, bias, (size_t)count * sizeof(WT));
  NAME(apply_block)(statistic, affine, false, s, out, in, w, b);
  memcpy(y, out, (size_t)count * sizeof(T));
}

/* A value near the mean of a chunk: the mean of its first 128 elements. Deviations from it have squares
 * at most 33 times those from the true mean (docs/numerics.md), so one pass is enough. */
ALWAYS_INLINE C NAME(near_mean)(const T *x, int64_t count) {
  const int64_t some = count < 128 ? count : 128;
  V sum[U] = {0};
  int64_t i = 0;
  for (; i + BLOCK <= some; i += BLOCK) {
    UNROLL for (int j = 0; j < U; j++) sum[j] += LOAD(x + i + j * W);
  }
  if (i < some) {
    T block[BLOCK] = {0};
    memcpy(block, x + i, (size_t)(some - i) * sizeof(T));
    UNROLL for (int j = 0; j < U; j++) sum[j] += LOAD(block + j * W);
  }
  return NAME(fold)(sum, U) / (C)some;
}

ALWAYS_INLINE onepass_row_sums NAME(chunk_sums)(const onepass_statistic statistic,
                                                const NAME(lanes) *lanes, C shift, int64_t count) {
  const double a = (double)NAME(fold)(lanes->a, U);
  if (statistic == ONEPASS_STATISTIC_ABS) return (onepass_row_sums){.a = a};
  const double squares = (double)NAME(fold)(lanes->b, U) - a * a / (double)count;
  return (onepass_row_sums){.a = (double)shift + a / (double)count, .b = squares < 0 ? 0 : squares};
}

/* Gather a chunk of the next row and apply this row's scale to as many elements, block by block: reads
 * from memory and writes to it overlap, as in a copy. Without `apply` or `gather` it does one of them. */
ALWAYS_INLINE onepass_row_sums NAME(do_chunk)(const onepass_statistic statistic, const int affine,
                                              const bool stream, const bool gather,
                                              const bool apply, const T *next,
                                              int64_t gather_count, const NAME(scale) *s, T *y,
                                              const T *x, const WT *weight, const WT *bias,
                                              int64_t apply_count) {
  NAME(lanes) lanes = {0};
  const NAME(scale) own = *s; /* a copy whose address nobody has stays in registers */
  const C near =
      gather && statistic == ONEPASS_STATISTIC_MOMENTS ? NAME(near_mean)(next, gather_count) : 0;
  const int64_t gather_end = gather_count / BLOCK * BLOCK, apply_end = apply_count / BLOCK * BLOCK;
  const int64_t end = !gather ? apply_end : !apply || gather_end < apply_end ? gather_end : apply_end;
  int64_t i = 0;
  for (; i < end; i += BLOCK) {
    if (gather) {
      prefetch_ahead(next + i, BLOCK * sizeof(T));
      NAME(gather_block)(statistic, &lanes, next + i, ALL(near), false, 0);
    }
    if (apply) {
      NAME(apply_block)(statistic, affine, stream, &own, y + i, x + i, WEIGHT_AT(i), BIAS_AT(i));
    }
  }
  /* Where y is not aligned the two counts differ by less than a block, hence at most two rests. */
  for (int64_t k = i; apply && k < apply_count; k += BLOCK) {
    const int64_t rest = apply_count - k < BLOCK ? apply_count - k : BLOCK;
    NAME(apply_rest)(statistic, affine, s, y + k, x + k, WEIGHT_AT(k), BIAS_AT(k), rest);
  }
  if (!gather) return (onepass_row_sums){0};
  NAME(lanes) all = lanes; /* lanes itself must not have its address taken */
  for (int64_t k = i; k < gather_count; k += BLOCK) {
    const int64_t rest = gather_count - k < BLOCK ? gather_count - k : BLOCK;
    NAME(gather_rest)(statistic, &all, next + k, near, rest);
  }
  return NAME(chunk_sums)(statistic, &all, near, gather_count);
}

ALWAYS_INLINE onepass_row_sums NAME(gather_chunk)(const onepass_statistic statistic, const T *x,
                                                  int64_t count) {
  const NAME(scale) none = {0};
  return NAME(do_chunk)(statistic, 0, false, true, false, x, count, &none, NULL, NULL, NULL, NULL,
                        0);
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

/* For denominators without a usable reciprocal: rows of subnormals, or of zeros. */
static void NAME(divide)(T *y, const T *x, int64_t count, double denominator) {
  for (int64_t i = 0; i < count; i++) {
    PUT(y + i, (C)((double)GET(x + i) / denominator));
  }
}

ALWAYS_INLINE NAME(scale) NAME(scale_of)(const onepass_row_scale *row) {
  return (NAME(scale)){ALL((C)row->shift), ALL((C)row->scale), ALL((C)row->offset)};
}

/* Elements of y before its first aligned vector go first; short rows are not worth it. */
ALWAYS_INLINE int64_t NAME(apply_head)(const onepass_statistic statistic, const int affine,
                                       const bool stream, const NAME(scale) *s, T *y, const T *x,
                                       const WT *weight, const WT *bias, int64_t n) {
  const int64_t unaligned = stream || n >= 4 * BLOCK ? NAME(to_alignment)(y) : 0;
  const int64_t head = unaligned < n ? unaligned : n;
  if (head) NAME(apply_rest)(statistic, affine, s, y, x, weight, bias, head);
  return head;
}

/* Apply a row's scale to n elements of it. */
ALWAYS_INLINE void NAME(apply_only)(const onepass_statistic statistic, const int affine,
                                    const bool stream, const onepass_row_scale *row, T *y,
                                    const T *x, const WT *weight, const WT *bias, int64_t n) {
  if (statistic == ONEPASS_STATISTIC_ABS && row->exact) {
    NAME(divide)(y, x, n, row->denominator);
    return;
  }
  const NAME(scale) s = NAME(scale_of)(row);
  const int64_t head = NAME(apply_head)(statistic, affine, stream, &s, y, x, weight, bias, n);
  NAME(do_chunk)(statistic, affine, stream, false, true, NULL, 0, &s, y + head, x + head,
                 WEIGHT_AT(head), BIAS_AT(head), n - head);
  if (stream) end_streams();
}

/* Apply this row's scale while gathering the sums of the next. */
ALWAYS_INLINE onepass_row_sums NAME(apply_and_gather)(const onepass_statistic statistic,
                                                      const int affine, const bool stream,
                                                      const onepass_row_scale *row, T *y,
                                                      const T *x, const WT *weight, const WT *bias,
                                                      const T *next, int64_t n) {
  const NAME(scale) s = NAME(scale_of)(row);
  int64_t applied = NAME(apply_head)(statistic, affine, stream, &s, y, x, weight, bias, n);
  onepass_row_sums sums = {0};
  for (int64_t i = 0; i < n; i += ONEPASS_NORM_CHUNK) {
    const int64_t left = n - i, to_apply = n - applied;
    const int64_t length = left < ONEPASS_NORM_CHUNK ? left : ONEPASS_NORM_CHUNK;
    const int64_t apply = to_apply < ONEPASS_NORM_CHUNK ? to_apply : ONEPASS_NORM_CHUNK;
    const onepass_row_sums chunk = NAME(do_chunk)(
        statistic, affine, stream, true, true, next + i, length, &s, y + applied, x + applied,
        WEIGHT_AT(applied), BIAS_AT(applied), apply);
    onepass_merge_forward(statistic, &sums, (double)i, chunk, (double)length);
    applied += apply;
  }
  return sums;
}

/* ---- The same with run-time choices made constants -------------------------------------------------- */

#define WITH_CONSTANT_STREAM(call, statistic, affine, ...) \
  if (ONEPASS_HAS_STREAMS && p->stream) {                  \
    call(statistic, affine, true, __VA_ARGS__);            \
  } else {                                                 \
    call(statistic, affine, false, __VA_ARGS__);           \
  }
#define WITH_CONSTANT_AFFINE(call, statistic, affine, ...)         \
  if ((affine) == 3) {                                             \
    WITH_CONSTANT_STREAM(call, statistic, 3, __VA_ARGS__)          \
  } else if ((affine) == 2) {                                      \
    WITH_CONSTANT_STREAM(call, statistic, 2, __VA_ARGS__)          \
  } else if ((affine) == 1) {                                      \
    WITH_CONSTANT_STREAM(call, statistic, 1, __VA_ARGS__)          \
  } else {                                                         \
    WITH_CONSTANT_STREAM(call, statistic, 0, __VA_ARGS__)          \
  }

static void NAME(apply_abs)(const onepass_norm_problem *p, const onepass_row_scale *row, void *y,
                            const void *x, const void *weight, const void *bias, int64_t count) {
  WITH_CONSTANT_STREAM(NAME(apply_only), ONEPASS_STATISTIC_ABS, 0, row, y, x, weight, bias, count)
}

static void NAME(apply_moments)(const onepass_norm_problem *p, const onepass_row_scale *row,
                                void *y, const void *x, const void *weight, const void *bias,
                                int64_t count) {
  const int affine = (weight ? 1 : 0) | (bias ? 2 : 0);
  WITH_CONSTANT_AFFINE(NAME(apply_only), ONEPASS_STATISTIC_MOMENTS, affine, row, y, x, weight, bias,
                       count)
}

ALWAYS_INLINE void NAME(do_rows)(const onepass_statistic statistic, const int affine,
                                 const bool stream, const onepass_norm_problem *p,
                                 const onepass_buffers *buffers, int64_t begin, int64_t end) {
  const int64_t n = p->elements.count;
  const T *x = buffers->x, *next = x + onepass_walk_offset(&p->rows, ONEPASS_ROLE_X, begin);
  onepass_row_sums sums = NAME(gather_row)(statistic, next, n);
  for (int64_t row = begin; row < end; row++) {
    const onepass_row_scale scale = onepass_scale_row(p, sums);
    if (statistic == ONEPASS_STATISTIC_MOMENTS) {
      C *mean = buffers->mean, *rstd = buffers->rstd;
      if (mean) mean[onepass_walk_offset(&p->rows, ONEPASS_ROLE_MEAN, row)] = (C)scale.mean;
      if (rstd) rstd[onepass_walk_offset(&p->rows, ONEPASS_ROLE_RSTD, row)] = (C)scale.rstd;
    }
    const T *this = next;
    const WT *weight = buffers->weight, *bias = buffers->bias;
    T *y = (T *)buffers->y + onepass_walk_offset(&p->rows, ONEPASS_ROLE_Y, row);
    const bool last = row + 1 == end;
    if (!last) next = x + onepass_walk_offset(&p->rows, ONEPASS_ROLE_X, row + 1);
    if (last || scale.exact) {
      (statistic == ONEPASS_STATISTIC_ABS ? NAME(apply_abs) : NAME(apply_moments))(
          p, &scale, y, this, weight, bias, n);
      if (!last) sums = NAME(gather_row)(statistic, next, n);
    } else {
      sums = NAME(apply_and_gather)(statistic, affine, stream, &scale, y, this, weight, bias, next,
                                    n);
    }
  }
  if (stream) end_streams();
}

static void NAME(forward_rows_abs)(const onepass_norm_problem *p, const onepass_buffers *buffers,
                                   int64_t begin, int64_t end) {
  WITH_CONSTANT_STREAM(NAME(do_rows), ONEPASS_STATISTIC_ABS, 0, p, buffers, begin, end)
}

static void NAME(forward_rows_moments)(const onepass_norm_problem *p,
                                       const onepass_buffers *buffers, int64_t begin, int64_t end) {
  const int affine = (buffers->weight ? 1 : 0) | (buffers->bias ? 2 : 0);
  WITH_CONSTANT_AFFINE(NAME(do_rows), ONEPASS_STATISTIC_MOMENTS, affine, p, buffers, begin, end)
}

#undef WITH_CONSTANT_STREAM
#undef WITH_CONSTANT_AFFINE
#undef WEIGHT_AT
#undef BIAS_AT
#undef BLOCK
#undef U
