/* Parts of lines, forward and backward, for one element type; after cpu_sums.h and cpu_rows.h, see cpu_kernels.c.
 *
 * The ways, from the fastest to the most general:
 *   dense           stride 1, windows (or, backward, gathers) inside a dense line: straight from memory
 *   known, apart    the same with strides, forward: small windows with loops of their own; others each in the
 *                   lanes of a vector
 *   tiled           a piece of the line is laid out as sums, with zeros for its padding, and windows are summed there
 *   stepped         backward, windows far apart: runs of one gradient
 *   wide            windows too large for a tile: one by one */

/* Elements from p to the next multiple of so many bytes. */
ALWAYS_INLINE int64_t NAME(to_multiple)(const T *p, int bytes) {
  return (int64_t)(-(uintptr_t)p % (uintptr_t)bytes / sizeof(T));
}

/* Outputs begin..end of a line whose windows start at x + begin and so on, all inside. Only whole cache lines are
 * streamed: to write the rest of one that is on its way past the caches takes many times as long. */
static void NAME(dense)(T *y, const T *x, int64_t kernel, int64_t begin, int64_t end, C *scratch,
                        bool stream) {
  const C scale = (C)(1 / (double)kernel);
  const int64_t head = NAME(to_multiple)(y + begin, stream ? CACHE_LINE : W * (int)sizeof(T));
  int64_t i = head < end - begin ? begin + head : end, whole = end;
  if (stream) whole -= (int64_t)((uintptr_t)(y + end) % CACHE_LINE / sizeof(T));
  if (begin < i) NAME(sum_tile)(y + begin, x + begin, kernel, i - begin, scale, scratch, false);
  if (kernel == 8 && W >= 4 && i < whole) {
    i += NAME(sum_eights)(y + i, x + i, whole - i, scale, ONEPASS_HAS_STREAMS && stream);
  }
  while (i < end) {
    const int64_t left = (i < whole ? whole : end) - i;
    const int64_t count = left < ONEPASS_POOL_TILE ? left : ONEPASS_POOL_TILE;
    NAME(sum_tile)(y + i, x + i, kernel, count, scale, scratch, stream && i < whole);
    i += count;
  }
}

/* The sums of `count` windows `stride` apart that start with `laid_out`, into `sums`. */
static void NAME(sum_laid_out)(C *sums, const C *laid_out, int64_t kernel, int64_t stride,
                               int64_t count, C *scratch) {
  if (is_summed_apart(kernel, stride)) {
    OF_SUM(sum_apart)(sums, laid_out, kernel, stride, count);
    return;
  }
  if (stride >= REDUCED_ONE_BY_ONE) {
    for (int64_t o = 0; o < count; o++) {
      sums[o] = (C)OF_SUM(sum_window)(laid_out + o * stride, kernel);
    }
    return;
  }
  const int64_t positions = (count - 1) * stride + 1;
  for (int64_t i = 0; i < positions; i += ONEPASS_POOL_TILE) {
    const int64_t some = positions - i < ONEPASS_POOL_TILE ? positions - i : ONEPASS_POOL_TILE;
    OF_SUM(sum_tile)(sums + i, laid_out + i, kernel, some, 1, scratch, false);
  }
  for (int64_t o = 1; o < count; o++) sums[o] = sums[o * stride];
}

/* Elements begin..end of a line as sums, zeros where it has none. */
NEVER_INLINE void NAME(lay_out)(C *to, const T *line, int64_t step, int64_t length, int64_t begin,
                                int64_t end) {
  int64_t i = begin;
  for (; i < end && i < 0; i++) to[i - begin] = 0;
  const int64_t inside = end < length ? end : length;
  if (step == 1) {
    for (; i + W <= inside; i += W) STOREC(to + (i - begin), LOAD(line + i), false);
  }
  for (; i < inside; i++) to[i - begin] = GET(line + i * step);
  for (; i < end; i++) to[i - begin] = 0;
}

/* How many outputs `stride` apart fit in a tile (or, past its size, in a window's worth). */
static int64_t NAME(outputs_in_tile)(const onepass_pool_problem *p, int64_t stride) {
  const int64_t room = p->wide.kernel > ONEPASS_POOL_TILE ? p->wide.kernel : ONEPASS_POOL_TILE;
  return (room - 1) / stride + 1;
}

/* Scratch, in sums: the piece laid out, then its window sums, then two buffers for sum_tile. */
static C *NAME(part_of)(const onepass_pool_problem *p, void *scratch, int part) {
  const int64_t room = p->wide.kernel > ONEPASS_POOL_TILE ? p->wide.kernel : ONEPASS_POOL_TILE;
  return (C *)scratch + part * (room + p->wide.kernel + 64);
}

/* What an output's sum is multiplied by: one over its divisor, which is the kernel wherever the
 * window is inside the line. */
ALWAYS_INLINE C NAME(share_of)(const onepass_pool_problem *p, int64_t output) {
  const int64_t begin = output * p->wide.stride - p->wide.padding;
  if (begin >= 0 && begin + p->wide.kernel <= p->wide.length) return (C)p->one_over_kernel;
  return 1 / (C)onepass_window_of(&p->wide, output).divisor;
}

ALWAYS_INLINE int64_t NAME(clamp)(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

/* Of those outputs `inner` are the ones whose windows lie inside the line. */
static void NAME(tiled)(const onepass_pool_problem *p, T *y, const T *x, int64_t begin, int64_t end,
                        onepass_window inner, void *scratch) {
  C *laid_out = NAME(part_of)(p, scratch, 0), *sums = NAME(part_of)(p, scratch, 1);
  const int64_t most = NAME(outputs_in_tile)(p, p->wide.stride);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = end - first < most ? end - first : most;
    const int64_t start = first * p->wide.stride - p->wide.padding;
    NAME(lay_out)
    (laid_out, x, p->wide.long_step, p->wide.length, start,
     start + (count - 1) * p->wide.stride + p->wide.kernel);
    NAME(sum_laid_out)
    (sums, laid_out, p->wide.kernel, p->wide.stride, count, NAME(part_of)(p, scratch, 2));
    const int64_t past = first + count, step = p->wide.pooled_step;
    const int64_t from = NAME(clamp)(inner.begin, first, past);
    const int64_t to = NAME(clamp)(inner.end, from, past);
    for (int64_t o = first; o < past; o++) {
      if (o == from) o = to;
      if (o == past) break;
      PUT(y + o * step, sums[o - first] * NAME(share_of)(p, o));
    }
    NAME(put_scaled)
    (y + from * step, step, sums + (from - first), to - from, (C)p->one_over_kernel);
  }
}

static void NAME(wide)(const onepass_pool_problem *p, T *y, const T *x, int64_t begin,
                       int64_t end) {
  for (int64_t o = begin; o < end; o++) {
    const onepass_window window = onepass_window_of(&p->wide, o);
    double sum = 0;
    if (p->wide.long_step == 1) {
      sum = NAME(sum_window)(x + window.begin, window.end - window.begin);
    } else {
      for (int64_t i = window.begin; i < window.end; i++) {
        sum += (double)GET(x + i * p->wide.long_step);
      }
    }
    PUT(y + o * p->wide.pooled_step, (C)(sum / (double)window.divisor));
  }
}

/* Small windows with strides to match, wholly inside a dense line: as constants the compiler turns
 * the strides into de-interleaving loads. x is where output 0 would start. */
ALWAYS_INLINE void NAME(stride_over_sums)(C *restrict sums, const C *restrict x, const int kernel,
                                          const int stride, int64_t begin, int64_t end, C scale) {
  for (int64_t o = begin; o < end; o++) {
    C sum = x[o * stride];
    UNROLL for (int k = 1; k < kernel; k++) sum += x[o * stride + k];
    sums[o] = sum * scale;
  }
}

/* Halves are made sums first, some at a time. */
ALWAYS_INLINE void NAME(stride_over)(T *restrict y, const T *restrict x, const int kernel,
                                     const int stride, int64_t begin, int64_t end, C scale) {
  if (sizeof(T) == sizeof(C)) {
    NAME(stride_over_sums)
    ((C *)(void *)y, (const C *)(const void *)x, kernel, stride, begin, end, scale);
    return;
  }
  enum { SOME = 256, LARGEST = 4 };
  C laid_out[LARGEST * SOME], sums[SOME];
  for (int64_t first = begin; first < end; first += SOME) {
    const int64_t count = end - first < SOME ? end - first : SOME;
    const int64_t from = first * stride, to = from + (count - 1) * stride + kernel;
    NAME(lay_out)(laid_out, x, 1, to, from, to);
    NAME(stride_over_sums)(sums, laid_out, kernel, stride, 0, count, scale);
    int64_t i = 0;
    for (; i + W <= count; i += W) STORE(y + first + i, LOADC(sums + i), false);
    for (; i < count; i++) PUT(y + first + i, sums[i]);
  }
}

static bool NAME(stride_over_known)(const onepass_pool_problem *p, T *y, const T *x, int64_t begin,
                                    int64_t end) {
  const C scale = (C)p->one_over_kernel;
  if (p->wide.kernel == 2 && p->wide.stride == 2) {
    NAME(stride_over)(y, x, 2, 2, begin, end, scale);
  } else if (p->wide.kernel == 3 && p->wide.stride == 2) {
    NAME(stride_over)(y, x, 3, 2, begin, end, scale);
  } else if (p->wide.kernel == 3 && p->wide.stride == 3) {
    NAME(stride_over)(y, x, 3, 3, begin, end, scale);
  } else if (p->wide.kernel == 4 && p->wide.stride == 4) {
    NAME(stride_over)(y, x, 4, 4, begin, end, scale);
  } else {
    return false;
  }
  return true;
}

/* Outputs begin..end, whose windows lie inside the line, as far as whole vectors of outputs go (cache lines, if they are
 * streamed, one of which begins at y + begin) and are not read beyond its end; returns where that is. */
static int64_t NAME(put_apart)(const onepass_pool_problem *p, T *y, const T *start, int64_t begin,
                               int64_t end) {
  const int64_t kernel = p->wide.kernel, stride = p->wide.stride;
  const C scale = (C)p->one_over_kernel;
  const bool stream = ONEPASS_HAS_STREAMS && p->stream;
  const int64_t room = p->wide.length + p->wide.padding - (kernel + W - 1) / W * W;
  const int64_t most = room < 0 ? 0 : room / stride + 1; /* before it windows may be read */
  int64_t o = begin, last = end < most ? end : most;
  if (stream) last -= (int64_t)((uintptr_t)(y + last) % CACHE_LINE / sizeof(T));
  for (; o + W <= last; o += W) {
    if (stride <= MOST_APART) prefetch_ahead(start + o * stride, W * (int)stride * (int)sizeof(T));
    STORE(y + o, NAME(sums_apart)(start + o * stride, kernel, stride, W) * ALL(scale), stream);
  }
  return o;
}

static void NAME(forward)(const onepass_pool_problem *p, void *y, const void *x, int64_t begin,
                          int64_t end, void *scratch) {
  if (p->wide.kernel > ONEPASS_POOL_WIDEST_TILED) {
    NAME(wide)(p, y, x, begin, end);
    return;
  }
  /* Outputs first..last have their window inside the line. */
  const int64_t inside =
      p->wide.length + p->wide.padding - p->wide.kernel; /* where the last of them starts */
  const int64_t first =
      NAME(clamp)((p->wide.padding + p->wide.stride - 1) / p->wide.stride, begin, end);
  const int64_t last = NAME(clamp)(inside < 0 ? 0 : inside / p->wide.stride + 1, first, end);
  const T *start = (const T *)x - p->wide.padding;
  int64_t from = begin, to = begin; /* what is done straight from memory */
  const bool dense = first < last && p->wide.long_step == 1 && p->wide.pooled_step == 1;
  if (dense && p->wide.stride == 1) {
    from = first, to = last;
    NAME(dense)(y, start, p->wide.kernel, from, to, scratch, p->stream);
  } else if (dense && NAME(stride_over_known)(p, y, start, first, last)) {
    from = first, to = last;
  } else if (dense && is_summed_apart(p->wide.kernel, p->wide.stride)) {
    const int64_t unaligned = p->stream ? NAME(to_multiple)((T *)y + first, CACHE_LINE) : 0;
    from = unaligned < last - first ? first + unaligned : last;
    to = NAME(put_apart)(p, y, start, from, last);
  }
  const onepass_window inner = {.begin = first, .end = last};
  NAME(tiled)(p, y, x, begin, from, inner, scratch);
  NAME(tiled)(p, y, x, to, end, inner, scratch);
}

/* ---- Backward: dx[i] sums dy[o] / divisor over the outputs o whose window holds i ------------ */

/* dy with its divisors applied and spread out to where its windows start: at[t - begin] is the
 * gradient of the window that starts at t - padding, 0 if none does. */
static void NAME(spread)(const onepass_pool_problem *p, C *at, const T *dy, int64_t begin,
                         int64_t end) {
  for (int64_t t = begin; t < end; t++) at[t - begin] = 0;
  const int64_t first = begin <= 0 ? 0 : (begin + p->wide.stride - 1) / p->wide.stride;
  for (int64_t o = first; o < p->wide.pooled && o * p->wide.stride < end; o++) {
    at[o * p->wide.stride - begin] = GET(dy + o * p->wide.pooled_step) * NAME(share_of)(p, o);
  }
}

static void NAME(tiled_backward)(const onepass_pool_problem *p, T *dx, const T *dy, int64_t begin,
                                 int64_t end, void *scratch) {
  C *laid_out = NAME(part_of)(p, scratch, 0), *sums = NAME(part_of)(p, scratch, 1);
  const int64_t most = NAME(outputs_in_tile)(p, 1);
  for (int64_t first = begin; first < end; first += most) {
    const int64_t count = end - first < most ? end - first : most;
    /* The windows that hold element i start, counting the padding, at i + padding - kernel + 1 or
     * later. */
    const int64_t start = first + p->wide.padding - p->wide.kernel + 1;
    NAME(spread)(p, laid_out, dy, start, start + count + p->wide.kernel - 1);
    NAME(sum_laid_out)(sums, laid_out, p->wide.kernel, 1, count, NAME(part_of)(p, scratch, 2));
    for (int64_t i = 0; i < count; i++) PUT(dx + (first + i) * p->wide.long_step, sums[i]);
  }
}

static void NAME(wide_backward)(const onepass_pool_problem *p, T *dx, const T *dy, int64_t begin,
                                int64_t end) {
  for (int64_t i = begin; i < end; i++) {
    const int64_t before =
        i + p->wide.padding - p->wide.kernel; /* windows that start here have ended */
    double sum = 0;
    for (int64_t o = before < 0 ? 0 : before / p->wide.stride + 1; o < p->wide.pooled; o++) {
      const onepass_window window = onepass_window_of(&p->wide, o);
      if (window.begin > i) break;
      sum += (double)GET(dy + o * p->wide.pooled_step) / (double)window.divisor;
    }
    PUT(dx + i * p->wide.long_step, (C)sum);
  }
}

/* Windows some way apart: from where one begins or ends to where the next one does, all elements have one gradient. */
static void NAME(stepped_backward)(const onepass_pool_problem *p, T *dx, const T *dy, int64_t begin,
                                   int64_t end) {
  const int64_t stride = p->wide.stride, kernel = p->wide.kernel, padding = p->wide.padding;
  const int64_t ended = begin + padding - kernel; /* windows that start here have */
  int64_t oldest = ended < 0 ? 0 : ended / stride + 1, newest = (begin + padding) / stride;
  for (int64_t i = begin; i < end;) {
    C sum = 0;
    for (int64_t o = oldest; o <= newest && o < p->wide.pooled; o++) {
      sum += GET(dy + o * p->wide.pooled_step) * NAME(share_of)(p, o);
    }
    T gradient;
    PUT(&gradient, sum);
    const int64_t next = (newest + 1) * stride - padding, over = oldest * stride + kernel - padding;
    const int64_t changes = next < over ? next : over, until = changes < end ? changes : end;
    for (; i < until; i++) dx[i * p->wide.long_step] = gradient;
    newest += next == changes;
    oldest += over == changes;
  }
}

static void NAME(backward)(const onepass_pool_problem *p, void *dx, const void *dy, int64_t begin,
                           int64_t end, void *scratch) {
  if (p->wide.stride >= ONEPASS_POOL_LEAST_STEP &&
      p->wide.kernel <= MOST_HOLDING * p->wide.stride) {
    NAME(stepped_backward)(p, dx, dy, begin, end);
    return;
  }
  if (p->wide.kernel > ONEPASS_POOL_WIDEST_TILED) {
    NAME(wide_backward)(p, dx, dy, begin, end);
    return;
  }
  if (p->wide.stride > 1 || p->wide.long_step != 1 || p->wide.pooled_step != 1) {
    NAME(tiled_backward)(p, dx, dy, begin, end, scratch);
    return;
  }
  /* Outputs whose divisor is the kernel, and the elements that only those hold. */
  const int64_t edge = p->count_include_pad ? 0 : p->wide.padding;
  const int64_t full_end =
      p->count_include_pad ? p->wide.pooled : p->wide.length + p->wide.padding - p->wide.kernel + 1;
  const int64_t reach =
      p->wide.kernel - 1 - p->wide.padding; /* element i is held from output i - reach on */
  const int64_t first = NAME(clamp)(edge + reach, begin, end);
  const int64_t last = NAME(clamp)(full_end - p->wide.padding, first, end);
  NAME(tiled_backward)(p, dx, dy, begin, first, scratch);
  if (first < last) {
    NAME(dense)(dx, (const T *)dy - reach, p->wide.kernel, first, last, scratch, p->stream);
  }
  NAME(tiled_backward)(p, dx, dy, last, end, scratch);
}
