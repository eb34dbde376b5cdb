/* Rows that lie side by side, their elements far apart: lanes run across rows. Part of
 * cpu_template.h.
 *
 * A strip of `width` neighbouring rows is read element by element: its elements k are dense in
 * memory, those k + 1 are a stride away. Sums are per lane, four elements at a time, in groups of 128
 * that are added in double. The strip is read twice, for its sums and to be scaled. */

enum { NAME(group) = 128 };

/* Visit vectors of a strip: whole ones at j, then the rest of it through a zero-filled buffer.
 * `body` uses at(p), the vector there, and put(p, v). */
#define FOR_EACH_VECTOR(width, body)   \
  {                                    \
    int64_t j = 0;                     \
    for (; j + W <= (width); j += W) { \
      const int64_t here = W;          \
      body                             \
    }                                  \
    if (j < (width)) {                 \
      const int64_t here = (width)-j;  \
      body                             \
    }                                  \
  }

ALWAYS_INLINE void NAME(store_some)(T *p, V v, int64_t count) {
  if (count == W) {
    STORE(p, v, false);
  } else {
    STORE_LANES(p, v, 0, count);
  }
}

/* Scratch of a strip: two totals in double and two vectors in the type of sums a row. C arrays have
 * room for whole vectors. */
typedef struct NAME(strip) {
  double *total, *total_products;
  C *sums, *products;
} NAME(strip);

ALWAYS_INLINE NAME(strip) NAME(lay_out_strip)(double *scratch, int64_t width) {
  const int64_t room = (width + W - 1) / W * W;
  return (NAME(strip)){scratch, scratch + room, (C *)(scratch + 2 * room),
                       (C *)(scratch + 3 * room)};
}

/* total[j] = sum of |x| and, with dy, total_products[j] = sum of dy x, for each row j of the strip.
 */
ALWAYS_INLINE void NAME(gather_strip)(const bool with_products, const NAME(strip) * s, const T *x,
                                      int64_t x_stride, const T *dy, int64_t dy_stride, int64_t n,
                                      int64_t width) {
  const int64_t room = (width + W - 1) / W * W;
  memset(s->total, 0, (size_t)(2 * room) * sizeof(double));
  for (int64_t start = 0; start < n; start += NAME(group)) {
    const int64_t end = n - start < NAME(group) ? n : start + NAME(group);
    memset(s->sums, 0, (size_t)room * sizeof(C));
    memset(s->products, 0, (size_t)room * sizeof(C));
    int64_t k =
        start; /* four together: of equal numbers one after the other, rounding errors add up */
    for (; k + 4 <= end; k += 4) {
      FOR_EACH_VECTOR(width, {
        V v[4];
        V g[4];
        UNROLL for (int i = 0; i < 4; i++) {
          v[i] = NAME(load_of)(x + (k + i) * x_stride + j, 0, here);
          if (with_products) g[i] = NAME(load_of)(dy + (k + i) * dy_stride + j, 0, here);
        }
        if (with_products) {
          STOREC(s->products + j, LOADC(s->products + j) + NAME(dot)(g, v, 4), false);
        }
        UNROLL for (int i = 0; i < 4; i++) v[i] = ABS(v[i]);
        STOREC(s->sums + j, LOADC(s->sums + j) + NAME(tree)(v, 4), false);
      })
    }
    for (; k < end; k++) {
      FOR_EACH_VECTOR(width, {
        const V v = NAME(load_of)(x + k * x_stride + j, 0, here);
        STOREC(s->sums + j, LOADC(s->sums + j) + ABS(v), false);
        if (with_products) {
          const V g = NAME(load_of)(dy + k * dy_stride + j, 0, here);
          STOREC(s->products + j, FMA(g, v, LOADC(s->products + j)), false);
        }
      })
    }
    for (int64_t j = 0; j < width; j++) s->total[j] += (double)s->sums[j];
    for (int64_t j = 0; with_products && j < width; j++) {
      s->total_products[j] += (double)s->products[j];
    }
  }
}

/* Lanes of rows that 1 / denominator is no factor for are divided: those alone, so that no row's bits depend on which others
 * are in its strip. */
NEVER_INLINE V NAME(divide_lanes)(V scaled, V x, const double *denominators, int64_t count) {
  for (int64_t lane = 0; lane < count; lane++) {
    if (!onepass_needs_division(JOIN2(TYPE_, SUMS), denominators[lane])) continue;
    scaled[lane] = (C)((double)x[lane] / denominators[lane]);
  }
  return scaled;
}

NEVER_INLINE V NAME(divide_gradient_lanes)(V scaled, const T *x, const T *dy, const NAME(strip) * s,
                                           int64_t first, int64_t count) {
  for (int64_t lane = 0; lane < count; lane++) {
    const onepass_row_gradient row = {.denominator = s->total[first + lane],
                                      .slope = s->total_products[first + lane]};
    if (!onepass_needs_division(JOIN2(TYPE_, SUMS), row.denominator)) continue;
    T divided;
    NAME(divide_gradient)(&divided, x + lane, dy + lane, 1, &row);
    scaled[lane] = GET(&divided);
  }
  return scaled;
}

/* What onepass_scale_row does to a row, to all of a strip: a loop without branches. Leaves denominators in place of totals, and
 * tells whether some have no reciprocal to multiply with. */
ALWAYS_INLINE bool NAME(scale_sums)(const onepass_norm_problem *p, const NAME(strip) * s,
                                    int64_t width) {
  const double share = p->divide_by_count ? p->one_over_n : 1, eps = p->eps;
  double *total = s->total;
  if (p->clamp) {
    for (int64_t j = 0; j < width; j++) total[j] = total[j] * share < eps ? eps : total[j] * share;
  } else {
    for (int64_t j = 0; j < width; j++) total[j] = total[j] * share + eps;
  }
  int64_t exact = 0;
  for (int64_t j = 0; j < width; j++) {
    s->sums[j] = (C)(1 / total[j]);
    exact |= onepass_needs_division(JOIN2(TYPE_, SUMS), total[j]);
  }
  return exact;
}

static void NAME(forward_columns_abs)(const onepass_norm_problem *p, void *y_start,
                                      int64_t y_stride, const void *x_start, int64_t x_stride,
                                      int64_t width, double *scratch) {
  const T *x = x_start;
  T *y = y_start;
  const int64_t n = p->elements.count;
  const NAME(strip) s = NAME(lay_out_strip)(scratch, width);
  NAME(gather_strip)(false, &s, x, x_stride, NULL, 0, n, width);
  const bool exact = NAME(scale_sums)(p, &s, width);
  for (int64_t k = 0; k < n; k++) {
    const T *from = x + k * x_stride;
    T *to = y + k * y_stride;
    FOR_EACH_VECTOR(width, {
      const V v = NAME(load_of)(from + j, 0, here);
      V scaled = v * LOADC(s.sums + j);
      if (exact) scaled = NAME(divide_lanes)(scaled, v, s.total + j, here);
      NAME(store_some)(to + j, scaled, here);
    })
  }
}

static void NAME(backward_columns_abs)(const onepass_norm_problem *p, void *dx_start,
                                       int64_t dx_stride, const void *x_start, int64_t x_stride,
                                       const void *dy_start, int64_t dy_stride, int64_t width,
                                       double *scratch) {
  const T *x = x_start, *dy = dy_start;
  T *dx = dx_start;
  const int64_t n = p->elements.count;
  const NAME(strip) s = NAME(lay_out_strip)(scratch, width);
  NAME(gather_strip)(true, &s, x, x_stride, dy, dy_stride, n, width);
  bool exact = false;
  for (int64_t j = 0; j < width; j++) {
    const onepass_row_gradient row = onepass_gradient_of_row(
        p, (onepass_row_sums){.a = s.total[j], .b = s.total_products[j]}, 0, 0);
    s.total[j] = row.denominator;
    s.total_products[j] = row.slope;
    s.sums[j] = (C)row.scale;
    s.products[j] = (C)row.slope;
    exact |= row.exact;
  }
  for (int64_t k = 0; k < n; k++) {
    const T *from = x + k * x_stride, *grad = dy + k * dy_stride;
    T *to = dx + k * dx_stride;
    FOR_EACH_VECTOR(width, {
      const V d = NAME(load_of)(grad + j, 0, here);
      const V sign = SIGNED(ALL(1), NAME(load_of)(from + j, 0, here));
      V scaled = FMA(d, LOADC(s.sums + j), -sign * LOADC(s.products + j));
      if (exact) scaled = NAME(divide_gradient_lanes)(scaled, from + j, grad + j, &s, j, here);
      NAME(store_some)(to + j, scaled, here);
    })
  }
}
