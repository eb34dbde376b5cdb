/* Backward over dense rows; part of cpu_template.h. Built as forward is; a block is 16 elements, or
 * two vectors where those are longer, as there is more to keep in registers. */

#define BLOCK (2 * W > 16 ? 2 * W : 16)
#define U     (BLOCK / W)

typedef struct NAME(products) {
  V a, b, c;
} NAME(products);

ALWAYS_INLINE void NAME(add_products)(NAME(products) * sums, const NAME(products) * more) {
  sums->a += more->a;
  sums->b += more->b;
  sums->c += more->c;
}

/* Of the row that is gathered: its saved statistics. */
typedef struct NAME(saved) {
  V mean, rstd;
} NAME(saved);

typedef struct NAME(gradient) {
  V scale, slope, slope_sign; /* ABS: |slope|, and 1 or -1 against its sign */
  V mean, rstd, by_dy, offset, by_z, by_deviation, constant; /* MOMENTS */
} NAME(gradient);

ALWAYS_INLINE void NAME(gather_products)(const onepass_statistic statistic, const bool centered,
                                         const bool has_weight, NAME(products) * sums,
                                         const NAME(saved) * saved, const T *x, const T *dy,
                                         NAME(weights) weights, int64_t at) {
  V v[U], g[U], w[U] = {0};
  LOADS(v, x + at, U);
  LOADS(g, dy + at, U);
  if (has_weight) NAME(load_weights)(w, weights.weight, weights.wide, at, U);
  if (statistic == ONEPASS_STATISTIC_ABS) {
    sums->b += NAME(dot)(g, v, U);
    UNROLL for (int j = 0; j < U; j++) v[j] = ABS(v[j]);
    sums->a += NAME(tree)(v, U);
    return;
  }
  UNROLL for (int j = 0; j < U; j++) {
    if (has_weight) g[j] *= w[j];
    if (centered) v[j] = (v[j] - saved->mean) * saved->rstd;
  }
  sums->a += NAME(tree)(g, U);
  sums->b += NAME(dot)(g, v, U);
  if (centered) sums->c += NAME(tree)(v, U);
}

/* Elements begin..n, vector by vector, the last ones as part of a vector. */
ALWAYS_INLINE NAME(products)
    NAME(gather_products_rest)(onepass_statistic statistic, bool centered, bool has_weight,
                               const NAME(saved) * saved, const T *x, const T *dy,
                               NAME(weights) weights, int64_t begin, int64_t n) {
  NAME(products) sums = {0};
  for (int64_t i = begin; i < n; i += W) {
    const int64_t at = i + W <= n ? i : NAME(last_vector)(n);
    V v = NAME(load_of)(x, at, n), g = NAME(load_of)(dy, at, n);
    if (has_weight) g *= NAME(load_weights_of)(weights.weight, weights.wide, at, n);
    if (centered) v = (v - saved->mean) * saved->rstd;
    v = ONLY(v, i - at, n - at);
    g = ONLY(g, i - at, n - at);
    sums.b = FMA(g, v, sums.b);
    sums.a += statistic == ONEPASS_STATISTIC_ABS ? ABS(v) : g;
    if (centered) sums.c += v;
  }
  return sums;
}

/* x - mean is taken before anything is multiplied: where x is the mean, as in rows of one element,
 * dweight gets exactly nothing. As factors take it from there, that costs no operation more than
 * x * rstd - mean * rstd would. Returns dx; adds to dw and db. */
ALWAYS_INLINE V NAME(gradient_vector)(const onepass_statistic statistic, const bool centered,
                                      const bool has_weight, const bool sum_weights,
                                      const NAME(gradient) * r, V v, V d, V w, V *dw, V *db) {
  if (statistic == ONEPASS_STATISTIC_ABS) {
    return FMA(d, r->scale, SIGNED(r->slope, v) * r->slope_sign);
  }
  const V deviation = v - r->mean, scaled = d * r->by_dy;
  const V z = FMA(deviation, r->rstd, r->offset);
  const V direct = has_weight ? FMA(scaled, w, r->constant) : scaled + r->constant;
  if (sum_weights) {
    *dw = centered ? FMA(d, z, *dw) : FMA(scaled, deviation, *dw);
    *db += d;
  }
  return centered ? FMA(z, r->by_z, direct) : FMA(deviation, r->by_deviation, direct);
}

ALWAYS_INLINE void NAME(apply_gradient)(const onepass_statistic statistic, const bool centered,
                                        const bool has_weight, const bool sum_weights, bool stream,
                                        const NAME(gradient) * r, T *dx, const T *x, const T *dy,
                                        NAME(weights) weights, C *dweight, C *dbias, int64_t at) {
  V v[U], d[U], w[U] = {0}, dw[U] = {0},
                db[U] = {0}; /* whole arrays at a time, so that loads and stores pair up */
  LOADS(v, x + at, U);
  LOADS(d, dy + at, U);
  if (has_weight) NAME(load_weights)(w, weights.weight, weights.wide, at, U);
  if (sum_weights) {
    LOADSC(dw, dweight + at, U);
    LOADSC(db, dbias + at, U);
  }
  UNROLL for (int j = 0; j < U; j++) {
    v[j] = NAME(gradient_vector)(statistic, centered, has_weight, sum_weights, r, v[j], d[j], w[j],
                                 &dw[j], &db[j]);
  }
  STORES(dx + at, v, U, stream);
  if (sum_weights) {
    STORESC(dweight + at, dw, U, false);
    STORESC(dbias + at, db, U, false);
  }
}

/* Elements begin..end of n, vector by vector. Fewer than a vector are done as part of one: what it
 * has too much of is not stored. */
ALWAYS_INLINE void NAME(apply_gradient_rest)(onepass_statistic statistic, bool centered,
                                             bool has_weight, bool sum_weights,
                                             const NAME(gradient) * r, T *dx, const T *x,
                                             const T *dy, NAME(weights) weights, C *dweight,
                                             C *dbias, int64_t begin, int64_t end, int64_t n) {
  for (int64_t i = begin; i < end; i += W) {
    const int64_t at = i + W <= n ? i : NAME(last_vector)(n);
    const int64_t from = i - at, to = end - at < W ? end - at : W;
    const V w = has_weight ? NAME(load_weights_of)(weights.weight, weights.wide, at, n) : (V){0};
    V dw = {0}, db = {0};
    if (sum_weights) {
      dw = NAME(load_sums_of)(dweight, at, n);
      db = NAME(load_sums_of)(dbias, at, n);
    }
    const V v =
        NAME(gradient_vector)(statistic, centered, has_weight, sum_weights, r,
                              NAME(load_of)(x, at, n), NAME(load_of)(dy, at, n), w, &dw, &db);
    STORE_LANES(dx + at, v, from, to);
    if (sum_weights) {
      STORE_LANESC(dweight + at, dw, from, to);
      STORE_LANESC(dbias + at, db, from, to);
    }
  }
}

ALWAYS_INLINE onepass_row_sums NAME(row_sums_of)(const bool centered, const NAME(products) * sums) {
  return (onepass_row_sums){(double)FOLD(sums->a), (double)FOLD(sums->b),
                            centered ? (double)FOLD(sums->c) : 0};
}

ALWAYS_INLINE onepass_row_sums NAME(gather_backward_chunk)(const onepass_statistic statistic,
                                                           const bool centered,
                                                           const bool has_weight, const T *x,
                                                           const T *dy, NAME(weights) weights,
                                                           C mean, C rstd, int64_t count) {
  NAME(products) sums = {0};
  const NAME(saved) given = {ALL(mean), ALL(rstd)}, saved = given; /* saved stays in registers */
  int64_t i = 0;
  for (; i + BLOCK <= count; i += BLOCK) {
    prefetch_ahead(x + i, BLOCK * sizeof(T));
    prefetch_ahead(dy + i, BLOCK * sizeof(T));
    NAME(gather_products)
    (statistic, centered, has_weight, &sums, &saved, x, dy, weights, i);
  }
  if (i < count) {
    const NAME(products) rest = NAME(gather_products_rest)(statistic, centered, has_weight, &given,
                                                           x, dy, weights, i, count);
    NAME(add_products)(&sums, &rest);
  }
  return NAME(row_sums_of)(centered, &sums);
}

ALWAYS_INLINE NAME(gradient) NAME(gradient_of)(const onepass_row_gradient *row) {
  const C slope = (C)row->slope;
  return (NAME(gradient)){.scale = ALL((C)row->scale),
                          .slope = ALL(slope < 0 ? -slope : slope),
                          .slope_sign = ALL(slope < 0 ? 1 : -1),
                          .mean = ALL((C)row->mean),
                          .rstd = ALL((C)row->rstd),
                          .by_dy = ALL((C)row->by_dy),
                          .offset = ALL((C)row->offset),
                          .by_z = ALL((C)row->by_z),
                          .by_deviation = ALL((C)row->by_deviation),
                          .constant = ALL((C)row->constant)};
}

/* For denominators without a usable reciprocal. */
static void NAME(divide_gradient)(T *dx, const T *x, const T *dy, int64_t count,
                                  const onepass_row_gradient *row) {
  for (int64_t i = 0; i < count; i++) {
    const C v = GET(x + i);
    const double sign = (v > 0) - (v < 0);
    PUT(dx + i, (C)((double)GET(dy + i) / row->denominator - sign * row->slope));
  }
}

ALWAYS_INLINE void NAME(apply_gradient_chunk)(const onepass_statistic statistic,
                                              const bool centered, const bool has_weight,
                                              const bool sum_weights, bool stream,
                                              const onepass_row_gradient *row, T *dx, const T *x,
                                              const T *dy, NAME(weights) weights, C *dweight,
                                              C *dbias, int64_t count) {
  if (statistic == ONEPASS_STATISTIC_ABS && row->exact) {
    NAME(divide_gradient)(dx, x, dy, count, row);
    return;
  }
  const NAME(gradient) given = NAME(gradient_of)(row), r = given; /* r stays in registers */
  const int64_t head = stream || count >= 8 * BLOCK ? NAME(to_alignment)(dx) : 0;
  int64_t i = head < count ? head : count;
  if (i) {
    NAME(apply_gradient_rest)
    (statistic, centered, has_weight, sum_weights, &given, dx, x, dy, weights, dweight, dbias, 0, i,
     count);
  }
  /* A cache line that is streamed must be streamed as a whole, even if it has two blocks. */
  const int64_t whole = count - (stream ? NAME(past_alignment)(dx + count) : 0);
  for (; i + BLOCK <= whole; i += BLOCK) {
    prefetch_soon((const T *)row->soon_x + i, BLOCK * sizeof(T));
    prefetch_soon((const T *)row->soon_dy + i, BLOCK * sizeof(T));
    NAME(apply_gradient)
    (statistic, centered, has_weight, sum_weights, stream, &r, dx, x, dy, weights, dweight, dbias,
     i);
  }
  if (i < count) {
    NAME(apply_gradient_rest)
    (statistic, centered, has_weight, sum_weights, &given, dx, x, dy, weights, dweight, dbias, i,
     count, count);
  }
}

/* Apply a row's gradient to a chunk while gathering the same chunk of the next row: reads from
 * memory and writes to it overlap. dx is not aligned first: the two would part. */
ALWAYS_INLINE onepass_row_sums NAME(apply_and_gather_backward)(
    const onepass_statistic statistic, const bool centered, const bool has_weight,
    const bool sum_weights, const onepass_row_gradient *row, T *dx, const T *x, const T *dy,
    NAME(weights) weights, C *dweight, C *dbias, int64_t count, const onepass_next_row *next) {
  const NAME(gradient) given = NAME(gradient_of)(row), r = given;
  const NAME(saved) given_saved = {ALL((C)next->mean), ALL((C)next->rstd)}, saved = given_saved;
  const T *next_x = next->x, *next_dy = next->dy;
  NAME(products) sums = {0};
  int64_t i = 0;
  for (; i + BLOCK <= count; i += BLOCK) {
    prefetch_ahead(next_x + i, BLOCK * sizeof(T));
    prefetch_ahead(next_dy + i, BLOCK * sizeof(T));
    NAME(gather_products)
    (statistic, centered, has_weight, &sums, &saved, next_x, next_dy, weights, i);
    NAME(apply_gradient)
    (statistic, centered, has_weight, sum_weights, false, &r, dx, x, dy, weights, dweight, dbias,
     i);
  }
  if (i < count) {
    const NAME(products) rest = NAME(gather_products_rest)(
        statistic, centered, has_weight, &given_saved, next_x, next_dy, weights, i, count);
    NAME(add_products)(&sums, &rest);
    NAME(apply_gradient_rest)
    (statistic, centered, has_weight, sum_weights, &given, dx, x, dy, weights, dweight, dbias, i,
     count, count);
  }
  return NAME(row_sums_of)(centered, &sums);
}

/* ---- The same with run-time choices made constants ------------------------------------------- */

static onepass_row_sums NAME(gather_backward_abs)(const onepass_norm_problem *p, const void *x,
                                                  const void *dy, const void *weight, double mean,
                                                  double rstd, int64_t count) {
  (void)p, (void)weight, (void)mean, (void)rstd;
  return NAME(gather_backward_chunk)(ONEPASS_STATISTIC_ABS, false, false, x, dy, (NAME(weights)){0},
                                     0, 0, count);
}

static onepass_row_sums NAME(gather_backward_moments)(const onepass_norm_problem *p, const void *x,
                                                      const void *dy, const void *weight,
                                                      double mean, double rstd, int64_t count) {
  const NAME(weights) weights = NAME(weights_of)(p, weight, NULL);
#define GATHER(centered, has_weight)                                                         \
  return NAME(gather_backward_chunk)(ONEPASS_STATISTIC_MOMENTS, centered, has_weight, x, dy, \
                                     weights, (C)mean, (C)rstd, count)
  const bool delicate = onepass_is_delicate(mean, rstd);
  if (ONE_COPY) GATHER(delicate, weight != NULL);
  if (delicate) {
    if (weight) GATHER(true, true);
    GATHER(true, false);
  }
  if (weight) GATHER(false, true);
  GATHER(false, false);
#undef GATHER
}

static void NAME(apply_backward_abs)(const onepass_norm_problem *p, const onepass_row_gradient *row,
                                     void *dx, const void *x, const void *dy, const void *weight,
                                     void *dweight, void *dbias, int64_t count) {
  (void)weight;
  NAME(apply_gradient_chunk)
  (ONEPASS_STATISTIC_ABS, false, false, false, STREAMS(p), row, dx, x, dy, (NAME(weights)){0},
   dweight, dbias, count);
}

static void NAME(apply_backward_moments)(const onepass_norm_problem *p,
                                         const onepass_row_gradient *row, void *dx, const void *x,
                                         const void *dy, const void *weight, void *dweight,
                                         void *dbias, int64_t count) {
  const NAME(weights) weights = NAME(weights_of)(p, weight, NULL);
#define APPLY(centered, has_weight, sum_weights)                                             \
  NAME(apply_gradient_chunk)                                                                 \
  (ONEPASS_STATISTIC_MOMENTS, centered, has_weight, sum_weights, STREAMS(p), row, dx, x, dy, \
   weights, dweight, dbias, count)
#define APPLY_CENTERED_OR_NOT(...) \
  if (row->centered) {             \
    APPLY(true, __VA_ARGS__);      \
  } else {                         \
    APPLY(false, __VA_ARGS__);     \
  }
  if (ONE_COPY) {
    APPLY(row->centered, weight != NULL, dweight != NULL);
  } else if (weight && dweight) {
    APPLY_CENTERED_OR_NOT(true, true)
  } else if (weight) {
    APPLY_CENTERED_OR_NOT(true, false)
  } else if (dweight) {
    APPLY_CENTERED_OR_NOT(false, true)
  } else {
    APPLY_CENTERED_OR_NOT(false, false)
  }
#undef APPLY_CENTERED_OR_NOT
#undef APPLY
}

/* Together in one loop where both rows are of one kind and nothing is streamed, else one after the
 * other. */
static onepass_row_sums NAME(apply_gather_backward_abs)(const onepass_norm_problem *p,
                                                        const onepass_row_gradient *row, void *dx,
                                                        const void *x, const void *dy,
                                                        const void *weight, void *dweight,
                                                        void *dbias, int64_t count,
                                                        const onepass_next_row *next) {
  if (row->exact || STREAMS(p)) {
    NAME(apply_backward_abs)(p, row, dx, x, dy, weight, dweight, dbias, count);
    return NAME(gather_backward_abs)(p, next->x, next->dy, weight, 0, 0, count);
  }
  return NAME(apply_and_gather_backward)(ONEPASS_STATISTIC_ABS, false, false, false, row, dx, x, dy,
                                         (NAME(weights)){0}, dweight, dbias, count, next);
}

static onepass_row_sums NAME(apply_gather_backward_moments)(const onepass_norm_problem *p,
                                                            const onepass_row_gradient *row,
                                                            void *dx, const void *x, const void *dy,
                                                            const void *weight, void *dweight,
                                                            void *dbias, int64_t count,
                                                            const onepass_next_row *next) {
  const bool next_centered = onepass_is_delicate(next->mean, next->rstd);
  if (row->centered || next_centered || STREAMS(p)) {
    NAME(apply_backward_moments)(p, row, dx, x, dy, weight, dweight, dbias, count);
    return NAME(gather_backward_moments)(p, next->x, next->dy, weight, next->mean, next->rstd,
                                         count);
  }
  const NAME(weights) weights = NAME(weights_of)(p, weight, NULL);
#define TOGETHER(has_weight, sum_weights)                                                      \
  return NAME(apply_and_gather_backward)(ONEPASS_STATISTIC_MOMENTS, false, has_weight,         \
                                         sum_weights, row, dx, x, dy, weights, dweight, dbias, \
                                         count, next)
  if (ONE_COPY) TOGETHER(weight != NULL, dweight != NULL);
  if (weight && dweight) TOGETHER(true, true);
  if (weight) TOGETHER(true, false);
  if (dweight) TOGETHER(false, true);
  TOGETHER(false, false);
#undef TOGETHER
}

#undef BLOCK
#undef U
