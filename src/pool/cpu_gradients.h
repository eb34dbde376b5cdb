/* Gradients of planes, for one element type; after cpu_planes.h, see cpu_kernels.c.
 *
 * Of averages and roots they are window sums once more: a task is a piece of a row of dx. The rows of
 * dy whose windows hold that row are added up, each over its divisor, into a line of gradients, and
 * those that hold an element along that line are summed. Those of maxima are in cpu_maxima.h. */

/* ---- Averages and roots: what one row of dy passes on ---------------------------------------- */

/* What dx has of y and dy before the factor that all of an element's have; see share_of_root in the
 * reference. */
static void NAME(slopes)(const onepass_pool_problem *p, C *slope, const T *dy, const T *y,
                         int64_t count) {
  const int64_t dy_step = p->wide.step[ONEPASS_ROLE_DY], y_step = p->wide.step[ONEPASS_ROLE_Y];
  for (int64_t o = 0; o < count; o++) {
    const C value = GET(y + o * y_step);
    const C power = p->p == 1 ? 1 : p->p == 2 ? 1 / value : NAME(power)(value, 1 - p->p);
    C share = GET(dy + o * dy_step) * (power / (C)p->p);
    if (value != value) share *= 0;
    slope[o] = value == 0 ? 0 : share;
  }
}

/* Adaptive windows, on a whole line, have one of three sizes. */
static void NAME(divide_by_parts)(const onepass_pool_axis *wide, C *line) {
  const int64_t least = wide->length / wide->pooled;
  C one_over[3];
  for (int i = 0; i < 3; i++) one_over[i] = (C)(1 / (double)(least + i));
  for (parts at = first_part(wide->length, wide->pooled); at.part < wide->pooled; next_part(&at)) {
    line[at.part] *= one_over[at.end - at.begin - least];
  }
}

/* Outputs from..to of all rows whose windows hold row (deep, high) of dx, without the divisor of the
 * last axis. */
static void NAME(gather_gradients)(const onepass_pool_problem *p, C *line, const T *dy, const T *y,
                                   onepass_window deep, onepass_window high, int64_t from,
                                   int64_t to, C *spare) {
  NAME(joiner) j = {.line = line, .length = to - from, .how = ONEPASS_JOIN_WEIGHTED};
  const bool as_they_are = p->wide.pooled_step == 1 && p->op != ONEPASS_LP_POOL;
  for (int64_t d = deep.begin; d < deep.end; d++) {
    const double deep_divisor = (double)onepass_window_of(&p->deep, d).divisor;
    for (int64_t h = high.begin; h < high.end; h++) {
      const double divisor = p->divisor != 0
                                 ? p->divisor
                                 : deep_divisor * (double)onepass_window_of(&p->high, h).divisor;
      const C weight = (C)(1 / divisor);
      const T *row =
          dy + d * p->deep.pooled_step + h * p->high.pooled_step + from * p->wide.pooled_step;
      if (as_they_are) {
        NAME(join_next)(&j, row, weight);
        continue;
      }
      if (p->op == ONEPASS_LP_POOL) {
        const T *root = y + d * p->deep.step[ONEPASS_ROLE_Y] + h * p->high.step[ONEPASS_ROLE_Y] +
                        from * p->wide.step[ONEPASS_ROLE_Y];
        NAME(slopes)(p, spare, row, root, to - from);
      } else {
        NAME(unpack)(spare, row, p->wide.pooled_step, to - from);
      }
      NAME(join_next_sums)(&j, spare, weight);
    }
  }
  NAME(join_end)(&j);
  if (p->divisor != 0) return;
  /* The divisor of the last axis, which is the same for all but a few. */
  const double whole = p->op == ONEPASS_LP_POOL ? p->elements : 1;
  if (p->wide.adaptive) {
    NAME(divide_by_parts)(&p->wide, line);
    return;
  }
  const onepass_window inner = inner_outputs(&p->wide, from, to);
  for (int64_t o = from; o < to; o++) {
    if (o == inner.begin) o = inner.end;
    if (o == to) break;
    line[o - from] *= (C)(whole / (double)onepass_window_of(&p->wide, o).divisor);
  }
  OF_SUM(put_scaled)
  (line + (inner.begin - from), 1, line + (inner.begin - from), inner.end - inner.begin,
   (C)(whole / (double)p->wide.kernel));
}

/* ---- What elements get of a line of gradients ------------------------------------------------ */

/* Windows without gaps between them, of a size that the compiler knows. */
ALWAYS_INLINE void NAME(repeat)(C *restrict out, const C *restrict gradients, int64_t count,
                                const int times) {
  for (int64_t o = 0; o < count; o++) {
    UNROLL for (int r = 0; r < times; r++) out[o * times + r] = gradients[o];
  }
}

/* Elements from..to where no two windows overlap. */
static void NAME(spread_apart)(const onepass_pool_problem *p, C *out, const C *gradients,
                               int64_t first, int64_t from, int64_t to) {
  const int64_t kernel = p->wide.kernel, stride = p->wide.stride, padding = p->wide.padding;
  int64_t o = first, done = from; /* elements up to `done` are there */
  while (done < to && o < p->wide.pooled) {
    const int64_t start = o * stride - padding;
    if (start == done && kernel == stride && kernel <= 4) {
      int64_t whole = (to - done) / kernel;
      if (whole > p->wide.pooled - o) whole = p->wide.pooled - o;
      if (kernel == 2) NAME(repeat)(out + (done - from), gradients + (o - first), whole, 2);
      if (kernel == 3) NAME(repeat)(out + (done - from), gradients + (o - first), whole, 3);
      if (kernel == 4) NAME(repeat)(out + (done - from), gradients + (o - first), whole, 4);
      if (kernel > 1 && whole > 0) {
        o += whole;
        done += whole * kernel;
        continue;
      }
    }
    for (; done < start && done < to; done++) out[done - from] = 0;
    const int64_t end = start + kernel < to ? start + kernel : to;
    const C gradient = gradients[o - first];
    for (; done < end; done++) out[done - from] = gradient;
    o++;
  }
  for (; done < to; done++) out[done - from] = 0;
}

/* Elements from..to: gradients are put where their windows start, and windows that end there are
 * summed. */
static void NAME(spread_over)(const onepass_pool_problem *p, C *out, const C *gradients,
                              int64_t first, int64_t from, int64_t to, C *laid_out, C *spare) {
  /* A window that holds element i starts, counting the padding, at i + padding - kernel + 1 or later.
   */
  const int64_t start = from + p->wide.padding - p->wide.kernel + 1;
  const int64_t end = to + p->wide.padding;
  NAME(fill)(laid_out, end - start, 0);
  for (int64_t o = first; o < p->wide.pooled && o * p->wide.stride < end; o++) {
    laid_out[o * p->wide.stride - start] = gradients[o - first];
  }
  NAME(sum_laid_out)(out, laid_out, p->wide.kernel, 1, to - from, spare);
}

static void NAME(spread_parts)(const onepass_pool_problem *p, C *out, const C *gradients) {
  int64_t done = 0; /* elements that are there, some of them to be added to */
  for (parts at = first_part(p->wide.length, p->wide.pooled); at.part < p->wide.pooled;
       next_part(&at)) {
    const C gradient = gradients[at.part];
    int64_t i = at.begin;
    for (; i < done; i++) out[i] += gradient;
    for (; i < at.end; i++) out[i] = gradient;
    done = at.end;
  }
}

/* Elements from..to of a row of dx whose windows along the other axes are these. */
static void NAME(gradient_of_row)(const onepass_pool_problem *p, C *out, const T *dy, const T *y,
                                  onepass_window deep, onepass_window high, int64_t from,
                                  int64_t to, void *scratch) {
  C *gradients = NAME(buffer)(p, scratch, 0), *laid_out = NAME(buffer)(p, scratch, 2);
  C *spare = NAME(buffer)(p, scratch, 3);
  const int64_t first = onepass_outputs_of(&p->wide, from).begin;
  const int64_t last = onepass_outputs_of(&p->wide, to - 1).end;
  if (first >= last || deep.begin >= deep.end || high.begin >= high.end) {
    NAME(fill)(out, to - from, 0);
    return;
  }
  NAME(gather_gradients)(p, gradients, dy, y, deep, high, first, last, spare);
  if (p->wide.adaptive) {
    NAME(spread_parts)(p, out, gradients);
  } else if (p->wide.stride >= p->wide.kernel) {
    NAME(spread_apart)(p, out, gradients, first, from, to);
  } else {
    NAME(spread_over)(p, out, gradients, first, from, to, laid_out, spare);
  }
}

/* Planes that have one average each. */
static void NAME(spread_whole)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                               int64_t begin, int64_t end) {
  const C scale = (C)(1 / (p->divisor != 0 ? p->divisor : (double)p->wide.length));
  const int64_t count = p->wide.length;
  for (int64_t plane = begin; plane < end; plane++) {
    const T *dy = (const T *)buffers->dy + onepass_walk_offset(&p->planes, ONEPASS_ROLE_DY, plane);
    T *dx = (T *)buffers->dx + onepass_walk_offset(&p->planes, ONEPASS_ROLE_DX, plane);
    const C share = GET(dy) * scale;
    int64_t i = 0;
    for (; i + W <= count; i += W) STORE(dx + i, ALL(share), false);
    for (; i < count; i++) PUT(dx + i, share);
  }
}

static void NAME(planes_backward)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                                  int64_t begin, int64_t end, void *scratch) {
  if (p->windows == ONEPASS_POOL_WHOLE) {
    NAME(spread_whole)(p, buffers, begin, end);
    return;
  }
  C *out = NAME(buffer)(p, scratch, 1), *spare = NAME(buffer)(p, scratch, 3);
  const int64_t dx_step = p->wide.step[ONEPASS_ROLE_DX], x_step = p->wide.step[ONEPASS_ROLE_X];
  piece at = piece_of(p, begin, p->deep.length, p->high.length, p->wide.length);
  piece before = {0};
  onepass_window deep = {0}, high = {0}, high_before = {0};
  for (int64_t task = begin; task < end; task++) {
    if (task == begin || at.deep != before.deep) deep = onepass_outputs_of(&p->deep, at.deep);
    if (task == begin || at.high != before.high) high = onepass_outputs_of(&p->high, at.high);
    /* Rows that the same windows hold are the same. */
    const bool again = task > begin && at.plane == before.plane && at.deep == before.deep &&
                       at.from == before.from && high.begin == high_before.begin &&
                       high.end == high_before.end;
    if (!again) {
      const T *y = NULL;
      if (p->op == ONEPASS_LP_POOL) {
        y = (const T *)buffers->y + onepass_walk_offset(&p->planes, ONEPASS_ROLE_Y, at.plane);
      }
      NAME(gradient_of_row)
      (p, out, (const T *)buffers->dy + onepass_walk_offset(&p->planes, ONEPASS_ROLE_DY, at.plane),
       y, deep, high, at.from, at.to, scratch);
    }
    const int64_t count = at.to - at.from;
    const C *result = out;
    if (p->op == ONEPASS_LP_POOL) {
      const T *x = (const T *)buffers->x + offset_of_row(p, ONEPASS_ROLE_X, &at);
      NAME(unpack)(spare, x + at.from * x_step, x_step, count);
      NAME(raise)(spare, count, p->p - 1);
      for (int64_t i = 0; i < count; i++) spare[i] = out[i] * ((C)p->p * spare[i]);
      result = spare;
    }
    T *dx = (T *)buffers->dx + offset_of_row(p, ONEPASS_ROLE_DX, &at);
    NAME(put_all)(dx + at.from * dx_step, dx_step, result, count);
    before = at;
    high_before = high;
    next_piece(p, &at, p->deep.length, p->high.length, p->wide.length);
  }
}
