/* Moments lane by lane; part of cpu_template.h, behind cpu_columns.h. Lanes are rows side by side, or channels
 * side by side; `positions` are what is summed over, each with its elements dense in memory, `at` elements
 * from the start. Sums are per lane, in the type of sums for a block of positions, in double beyond. */

/* One lane of a block, in double, where the type of sums does not do. */
NEVER_INLINE onepass_row_sums NAME(lane_in_double)(const T *x, const int64_t *at, int64_t count) {
  onepass_row_sums sums = {0};
  bool infinite = false, not_a_number = false;
  for (int64_t k = 0; k < count; k++) {
    const double v = (double)GET(x + at[k]);
    sums.a += v / (double)count;
    infinite |= v - v != 0 && v == v;
    not_a_number |= v != v;
  }
  for (int64_t k = 0; k < count; k++) {
    const double deviation = (double)GET(x + at[k]) - sums.a;
    sums.b += deviation * deviation;
  }
  sums.c = not_a_number ? (double)NAN : infinite;
  return sums;
}

/* A guess at the mean of every lane: that of the first positions, or that of the block before. */
ALWAYS_INLINE void NAME(guess_means)(C *shift, const T *x, const int64_t *at, int64_t count,
                                     int64_t width, bool first, const onepass_lane_sums *sums) {
  if (!first) {
    for (int64_t j = 0; j < width; j++) shift[j] = (C)sums->a[j];
    return;
  }
  const int64_t few = count < 4 ? count : 4;
  const V share = ALL((C)1 / (C)few);
  FOR_EACH_VECTOR(width, {
    V sum = {0};
    for (int64_t k = 0; k < few; k++) sum += NAME(load_of)(x + at[k] + j, 0, here);
    STOREC(shift + j, sum * share, false);
  })
}

/* Whether positions follow each other in memory: what is ahead of one is wanted soon. */
ALWAYS_INLINE bool NAME(back_to_back)(const int64_t *at, int64_t count, int64_t width) {
  return at[count - 1] - at[0] == (count - 1) * width;
}

/* Adds four positions to the sums of `vectors` vectors of lanes from j on, 4 or 1; of a single one, `here`
 * lanes. */
ALWAYS_INLINE void NAME(sum_four)(const int vectors, const bool ahead, const T *const *from,
                                  int64_t j, int64_t here, const C *shift, C *sum, C *squares) {
  V v[4][4], d[4], s[4], a[4], b[4];
  UNROLL for (int i = 0; i < 4; i++) {
    if (vectors == 4) {
      if (ahead) prefetch_ahead(from[i] + j, 4 * W * sizeof(T));
      LOADS(v[i], from[i] + j, 4);
    } else {
      v[i][0] = NAME(load_of)(from[i] + j, 0, here);
    }
  }
  LOADSC(s, shift + j, vectors);
  LOADSC(a, sum + j, vectors);
  LOADSC(b, squares + j, vectors);
  UNROLL for (int u = 0; u < vectors; u++) {
    UNROLL for (int i = 0; i < 4; i++) d[i] = v[i][u] - s[u];
    a[u] += NAME(tree)(d, 4);
    b[u] += NAME(dot)(d, d, 4);
  }
  STORESC(sum + j, a, vectors, false);
  STORESC(squares + j, b, vectors, false);
}

/* Sums of the deviations from `shift` and of their squares. */
NEVER_INLINE void NAME(sum_lanes)(const T *x, const int64_t *at, int64_t count, int64_t width,
                                  const C *shift, C *sum, C *squares) {
  const int64_t room = (width + W - 1) / W * W;
  memset(sum, 0, (size_t)room * sizeof(C));
  memset(squares, 0, (size_t)room * sizeof(C));
  const bool ahead = NAME(back_to_back)(at, count, width);
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) {
    const T *const from[4] = {x + at[k], x + at[k + 1], x + at[k + 2], x + at[k + 3]};
    int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W)
      NAME(sum_four)(4, ahead, from, i, W, shift, sum, squares);
    FOR_EACH_VECTOR(width - i, {
      NAME(sum_four)(1, ahead, from, i + j, here, shift, sum, squares);
    })
  }
  for (; k < count; k++) {
    FOR_EACH_VECTOR(width, {
      const V v = NAME(load_of)(x + at[k] + j, 0, here) - LOADC(shift + j);
      STOREC(sum + j, LOADC(sum + j) + v, false);
      STOREC(squares + j, FMA(v, v, LOADC(squares + j)), false);
    })
  }
}

/* Whether subtracting the square of the mean would lose more than two bits of some lane's squares. */
ALWAYS_INLINE bool NAME(lane_is_lossy)(C sum, C squares, double one_over_n) {
  const double of_mean = (double)sum * (double)sum * one_over_n, q = (double)squares - of_mean;
  return !(of_mean <= 4 * q && q < INFINITY) && !(sum == 0 && squares == 0);
}

ALWAYS_INLINE bool NAME(lanes_are_lossy)(const C *sum, const C *squares, int64_t width,
                                         double one_over_n) {
  int lossy = 0;
  for (int64_t j = 0; j < width; j++) lossy |= NAME(lane_is_lossy)(sum[j], squares[j], one_over_n);
  return lossy;
}

/* Lossy lanes once more, from the cache, about the mean that was found: those alone, so that no lane's bits depend on
 * which others are beside it. */
__attribute__((cold)) NEVER_INLINE void NAME(sum_lossy_lanes)(const T *x, const int64_t *at,
                                                              int64_t count, int64_t width,
                                                              C *shift, C *sum, C *squares) {
  enum { SOME = 64 };
  const double one_over_n = 1 / (double)count;
  C mean[SOME] = {0}, of_some[SOME], squares_of_some[SOME];
  for (int64_t first = 0; first < width; first += SOME) {
    const int64_t some = width - first < SOME ? width - first : SOME;
    if (!NAME(lanes_are_lossy)(sum + first, squares + first, some, one_over_n)) continue;
    for (int64_t j = 0; j < some; j++) {
      mean[j] = shift[first + j] + (C)((double)sum[first + j] * one_over_n);
    }
    NAME(sum_lanes)(x + first, at, count, some, mean, of_some, squares_of_some);
    for (int64_t j = 0; j < some; j++) {
      if (!NAME(lane_is_lossy)(sum[first + j], squares[first + j], one_over_n)) continue;
      shift[first + j] = mean[j];
      sum[first + j] = of_some[j];
      squares[first + j] = squares_of_some[j];
    }
  }
}

/* To the sums of `before` positions those of `count` more, at most ONEPASS_LANE_BLOCK. scratch has room for
 * ONEPASS_LANE_SCRATCH numbers a lane, and whole vectors. */
static void NAME(gather_lanes)(const void *x_start, const int64_t *at, int64_t count, int64_t width,
                               int64_t before, const onepass_lane_sums *sums, void *scratch) {
  const T *x = x_start;
  const int64_t room = (width + W - 1) / W * W;
  const double n = (double)count, one_over_n = 1 / n, share = n / (n + (double)before);
  C *shift = scratch, *sum = shift + room, *squares = sum + room;
  double *a = sums->a, *b = sums->b;
  NAME(guess_means)(shift, x, at, count, width, before == 0, sums);
  NAME(sum_lanes)(x, at, count, width, shift, sum, squares);
  bool lossy = NAME(lanes_are_lossy)(sum, squares, width, one_over_n);
  if (lossy) {
    NAME(sum_lossy_lanes)(x, at, count, width, shift, sum, squares);
    lossy = NAME(lanes_are_lossy)(sum, squares, width, one_over_n);
  }
  if (!before) {
    for (int64_t j = 0; j < width; j++) a[j] = b[j] = sums->c[j] = 0;
  }
  if (!lossy) {
    for (int64_t j = 0; j < width; j++) {
      const double s = (double)sum[j] * one_over_n, q = (double)squares[j] - s * s * n;
      const double apart = (double)shift[j] + s - a[j];
      a[j] += apart * share;
      b[j] += q + apart * apart * (double)before * share;
    }
    return;
  }
  for (int64_t j = 0; j < width; j++) {
    const double s = (double)sum[j] * one_over_n;
    onepass_row_sums all = {a[j], b[j], sums->c[j]};
    onepass_row_sums chunk = {.a = (double)shift[j] + s, .b = (double)squares[j] - s * s * n};
    if (NAME(lane_is_lossy)(sum[j], squares[j], one_over_n)) {
      chunk = NAME(lane_in_double)(x + j, at, count);
    }
    onepass_merge_forward(ONEPASS_STATISTIC_MOMENTS, &all, (double)before, chunk, n);
    a[j] = all.a;
    b[j] = all.b;
    sums->c[j] = all.c;
  }
}

/* One position, whole cache lines one after the other: cores then write them without reading them first. */
ALWAYS_INLINE void NAME(apply_position)(const bool weighted, const bool ahead, T *to, const T *from,
                                        int64_t width, const C *shift, const C *scale,
                                        const C *offset, V w, V b) {
  int64_t i = 0;
  for (; i + 4 * W <= width; i += 4 * W) {
    V v[4], s[4], f[4], o[4];
    if (ahead) prefetch_ahead(from + i, 4 * W * sizeof(T));
    LOADS(v, from + i, 4);
    LOADSC(s, shift + i, 4);
    LOADSC(f, scale + i, 4);
    LOADSC(o, offset + i, 4);
    UNROLL for (int u = 0; u < 4; u++) {
      v[u] = FMA(v[u] - s[u], f[u], o[u]);
      if (weighted) v[u] = FMA(v[u], w, b);
    }
    STORES(to + i, v, 4, false);
  }
  FOR_EACH_VECTOR(width - i, {
    const V x = NAME(load_of)(from + i + j, 0, here) - LOADC(shift + i + j);
    V v = FMA(x, LOADC(scale + i + j), LOADC(offset + i + j));
    if (weighted) v = FMA(v, w, b);
    NAME(store_some)(to + i + j, v, here);
  })
}

/* y = ((x - shift) * scale + offset), then * weight + bias of the position if there are any. */
static void NAME(apply_lanes)(const onepass_norm_problem *p, void *y, const int64_t *y_at,
                              const void *x, const int64_t *x_at, int64_t count, int64_t width,
                              const onepass_lane_scales *scales, const void *weight,
                              const void *bias) {
  const T *from = x;
  T *to = y;
  const bool wide = NAME(weights_of)(p, weight, bias).wide;
  const bool ahead = NAME(back_to_back)(x_at, count, width);
  for (int64_t k = 0; k < count; k++) {
    if (weight || bias) {
      const V w = ALL(weight ? NAME(get_weight)(weight, wide, k) : 1);
      const V b = ALL(bias ? NAME(get_weight)(bias, wide, k) : 0);
      NAME(apply_position)
      (true, ahead, to + y_at[k], from + x_at[k], width, scales->shift, scales->scale,
       scales->offset, w, b);
    } else {
      NAME(apply_position)
      (false, ahead, to + y_at[k], from + x_at[k], width, scales->shift, scales->scale,
       scales->offset, ALL(1), ALL(0));
    }
  }
}

/* Adds to the sums of g = dy w, g z and z with z = (x - mean) * rstd; w is the position's. */
static void NAME(gather_backward_lanes)(const onepass_norm_problem *p, const void *x_start,
                                        const int64_t *x_at, const void *dy_start,
                                        const int64_t *dy_at, int64_t count, int64_t width,
                                        const onepass_lane_gradients *lanes, const void *weight,
                                        const onepass_lane_sums *sums, void *scratch) {
  const T *x = x_start, *dy = dy_start;
  const C *mean = lanes->mean, *rstd = lanes->rstd;
  const bool wide = NAME(weights_of)(p, weight, NULL).wide;
  const int64_t room = (width + W - 1) / W * W;
  C *a = scratch, *b = a + room, *c = b + room;
  memset(a, 0, (size_t)(3 * room) * sizeof(C));
  int64_t k = 0;
  for (; k + 2 <= count; k += 2) {
    const V w0 = ALL(weight ? NAME(get_weight)(weight, wide, k) : 1);
    const V w1 = ALL(weight ? NAME(get_weight)(weight, wide, k + 1) : 1);
    FOR_EACH_VECTOR(width, {
      const V m = LOADC(mean + j);
      const V r = LOADC(rstd + j);
      const V z0 = (NAME(load_of)(x + x_at[k] + j, 0, here) - m) * r;
      const V z1 = (NAME(load_of)(x + x_at[k + 1] + j, 0, here) - m) * r;
      const V g0 = NAME(load_of)(dy + dy_at[k] + j, 0, here) * w0;
      const V g1 = NAME(load_of)(dy + dy_at[k + 1] + j, 0, here) * w1;
      STOREC(a + j, LOADC(a + j) + (g0 + g1), false);
      STOREC(b + j, LOADC(b + j) + FMA(g0, z0, g1 * z1), false);
      STOREC(c + j, LOADC(c + j) + (z0 + z1), false);
    })
  }
  for (; k < count; k++) {
    const V w = ALL(weight ? NAME(get_weight)(weight, wide, k) : 1);
    FOR_EACH_VECTOR(width, {
      const V z = (NAME(load_of)(x + x_at[k] + j, 0, here) - LOADC(mean + j)) * LOADC(rstd + j);
      const V g = NAME(load_of)(dy + dy_at[k] + j, 0, here) * w;
      STOREC(a + j, LOADC(a + j) + g, false);
      STOREC(b + j, FMA(g, z, LOADC(b + j)), false);
      STOREC(c + j, LOADC(c + j) + z, false);
    })
  }
  for (int64_t j = 0; j < width; j++) {
    sums->a[j] += (double)a[j];
    sums->b[j] += (double)b[j];
    sums->c[j] += (double)c[j];
  }
}

/* dx = dy w * by_dy + (x - mean) * rstd * by_z + constant. */
static void NAME(apply_backward_lanes)(const onepass_norm_problem *p, void *dx_start,
                                       const int64_t *dx_at, const void *x_start,
                                       const int64_t *x_at, const void *dy_start,
                                       const int64_t *dy_at, int64_t count, int64_t width,
                                       const onepass_lane_gradients *lanes, const void *weight) {
  const T *x = x_start, *dy = dy_start;
  T *dx = dx_start;
  const C *mean = lanes->mean, *rstd = lanes->rstd, *by_dy = lanes->by_dy, *by_z = lanes->by_z;
  const C *constant = lanes->constant;
  const bool wide = NAME(weights_of)(p, weight, NULL).wide;
  for (int64_t k = 0; k < count; k++) {
    const T *from = x + x_at[k], *grad = dy + dy_at[k];
    T *to = dx + dx_at[k];
    const V w = ALL(weight ? NAME(get_weight)(weight, wide, k) : 1);
    FOR_EACH_VECTOR(width, {
      const V z = (NAME(load_of)(from + j, 0, here) - LOADC(mean + j)) * LOADC(rstd + j);
      const V g = NAME(load_of)(grad + j, 0, here) * w;
      const V direct = FMA(g, LOADC(by_dy + j), LOADC(constant + j));
      NAME(store_some)(to + j, FMA(z, LOADC(by_z + j), direct), here);
    })
  }
}

/* To dweight and dbias of each position the sums of dy z and dy over its lanes, with z as it is for dx, but about its mean. */
static void NAME(sum_weight_lanes)(const void *x_start, const int64_t *x_at, const void *dy_start,
                                   const int64_t *dy_at, int64_t count, int64_t width,
                                   const onepass_lane_gradients *lanes, void *dweight,
                                   void *dbias) {
  const T *x = x_start, *dy = dy_start;
  const C *mean = lanes->mean, *rstd = lanes->rstd, *offset = lanes->offset;
  for (int64_t k = 0; k < count; k++) {
    V by_weight = {0}, by_bias = {0};
    FOR_EACH_VECTOR(width, {
      const V deviation = NAME(load_of)(x + x_at[k] + j, 0, here) - LOADC(mean + j);
      const V z = ONLY(FMA(deviation, LOADC(rstd + j), LOADC(offset + j)), 0, here);
      const V g = NAME(load_of)(dy + dy_at[k] + j, 0, here);
      by_weight = FMA(g, z, by_weight);
      by_bias += g;
    })
    ((C *)dweight)[k] += FOLD(by_weight);
    ((C *)dbias)[k] += FOLD(by_bias);
  }
}

#undef FOR_EACH_VECTOR
