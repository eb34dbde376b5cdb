/* Rows that lie side by side, their elements far apart: lanes run across rows. Part of
 * cpu_template.h.
 *
 * A strip of `width` neighbouring rows is read element by element: its elements k are dense in
 * memory, those k + 1 are a stride away. Sums are per lane, in groups of 128 elements that are
 * added in double. The strip is read twice, for its sums and to be scaled. */

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
    for (int64_t k = start; k < end; k++) {
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

static void NAME(forward_columns_abs)(const onepass_norm_problem *p, void *y_start,
                                      const void *x_start, int64_t width, double *scratch) {
  const T *x = x_start;
  T *y = y_start;
  const int64_t n = p->elements.count;
  const int64_t x_stride = n > 1 ? p->elements.stride[0][ONEPASS_ROLE_X] : 0;
  const int64_t y_stride = n > 1 ? p->elements.stride[0][ONEPASS_ROLE_Y] : 0;
  const NAME(strip) s = NAME(lay_out_strip)(scratch, width);
  NAME(gather_strip)(false, &s, x, x_stride, NULL, 0, n, width);
  bool exact = false;
  for (int64_t j = 0; j < width; j++) {
    const onepass_row_scale row = onepass_scale_row(p, (onepass_row_sums){.a = s.total[j]});
    s.total[j] = row.denominator;
    s.sums[j] = (C)row.scale;
    exact |= row.exact;
  }
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
                                       const void *x_start, const void *dy_start, int64_t width,
                                       double *scratch) {
  const T *x = x_start, *dy = dy_start;
  T *dx = dx_start;
  const int64_t n = p->elements.count;
  const int64_t x_stride = n > 1 ? p->elements.stride[0][ONEPASS_ROLE_X] : 0;
  const int64_t dy_stride = n > 1 ? p->elements.stride[0][ONEPASS_ROLE_DY] : 0;
  const int64_t dx_stride = n > 1 ? p->elements.stride[0][ONEPASS_ROLE_DX] : 0;
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
