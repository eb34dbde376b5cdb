/* Gradients of planes, for one element type; after cpu_planes.h, see cpu_kernels.c.
 *
 * Of averages and roots they are window sums once more: a task is a piece of a row of dx. The rows of
 * dy whose windows hold that row are added up, each over its divisor, into a line of gradients, and
 * those that hold an element along that line are summed. Of maxima, indices say where they go. */

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
  const onepass_window inner = p->wide.adaptive ? (onepass_window){.begin = to, .end = to}
                                                : inner_outputs(&p->wide, from, to);
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

/* Elements from..to where no two windows overlap. */
static void NAME(spread_apart)(const onepass_pool_problem *p, C *out, const C *gradients,
                               int64_t first, int64_t from, int64_t to) {
  NAME(fill)(out, to - from, 0);
  for (int64_t o = first; o < p->wide.pooled; o++) {
    const int64_t start = o * p->wide.stride - p->wide.padding;
    if (start >= to) break;
    const int64_t begin = start < from ? from : start;
    const int64_t end = start + p->wide.kernel < to ? start + p->wide.kernel : to;
    for (int64_t i = begin; i < end; i++) out[i - from] = gradients[o - first];
  }
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
  NAME(fill)(out, p->wide.length, 0);
  for (parts at = first_part(p->wide.length, p->wide.pooled); at.part < p->wide.pooled;
       next_part(&at)) {
    for (int64_t i = at.begin; i < at.end; i++) out[i] += gradients[at.part];
  }
}

static void NAME(planes_backward)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                                  int64_t begin, int64_t end, void *scratch) {
  C *gradients = NAME(buffer)(p, scratch, 0), *out = NAME(buffer)(p, scratch, 1);
  C *laid_out = NAME(buffer)(p, scratch, 2), *spare = NAME(buffer)(p, scratch, 3);
  const int64_t dx_step = p->wide.step[ONEPASS_ROLE_DX], x_step = p->wide.step[ONEPASS_ROLE_X];
  for (int64_t task = begin; task < end; task++) {
    const piece at = piece_of(p, task, p->deep.length, p->high.length, p->wide.length);
    const T *dy =
        (const T *)buffers->dy + onepass_walk_offset(&p->planes, ONEPASS_ROLE_DY, at.plane);
    const T *y = NULL;
    if (p->op == ONEPASS_LP_POOL) {
      y = (const T *)buffers->y + onepass_walk_offset(&p->planes, ONEPASS_ROLE_Y, at.plane);
    }
    const int64_t first = onepass_outputs_of(&p->wide, at.from).begin;
    const int64_t last = onepass_outputs_of(&p->wide, at.to - 1).end;
    if (first < last) {
      NAME(gather_gradients)
      (p, gradients, dy, y, onepass_outputs_of(&p->deep, at.deep),
       onepass_outputs_of(&p->high, at.high), first, last, spare);
    }
    if (first >= last) {
      NAME(fill)(out, at.to - at.from, 0);
    } else if (p->wide.adaptive) {
      NAME(spread_parts)(p, out, gradients);
    } else if (p->wide.stride >= p->wide.kernel) {
      NAME(spread_apart)(p, out, gradients, first, at.from, at.to);
    } else {
      NAME(spread_over)(p, out, gradients, first, at.from, at.to, laid_out, spare);
    }
    const int64_t count = at.to - at.from;
    if (p->op == ONEPASS_LP_POOL) {
      const T *x = (const T *)buffers->x + offset_of_row(p, ONEPASS_ROLE_X, &at);
      NAME(unpack)(spare, x + at.from * x_step, x_step, count);
      NAME(raise)(spare, count, p->p - 1);
      for (int64_t i = 0; i < count; i++) out[i] *= (C)p->p * spare[i];
    }
    T *dx = (T *)buffers->dx + offset_of_row(p, ONEPASS_ROLE_DX, &at);
    NAME(put_all)(dx + at.from * dx_step, dx_step, out, count);
  }
}

/* ---- Maxima: a task is a plane --------------------------------------------------------------- */

/* Adds a row of dy to the elements that its indices name, as far as its windows hold them. `steps`
 * are those of the plane. */
static void NAME(scatter_row)(const onepass_pool_problem *p, C *plane, const int64_t *steps,
                              const T *dy, const int64_t *indices, onepass_window deep,
                              onepass_window high) {
  const onepass_pool_axis *wide = &p->wide;
  const int64_t index_step = wide->step[ONEPASS_ROLE_INDICES];
  const int64_t elements = p->deep.length * p->high.length * wide->length;
  parts part = first_part(wide->length, wide->pooled);
  int64_t start = -wide->padding, extent = wide->extent;
  for (int64_t o = 0; o < wide->pooled; o++, start += wide->stride) {
    if (wide->adaptive) {
      start = part.begin;
      extent = part.end - part.begin;
      next_part(&part);
    }
    const int64_t index = indices[o * index_step];
    if (index < 0 || index >= elements) continue;
    /* A plane has less than 2^31 elements, and short numbers are faster to divide. */
    uint32_t row = 0, depth = 0, column = (uint32_t)index;
    if (p->spatial > 1) {
      row = column / (uint32_t)wide->length;
      column -= row * (uint32_t)wide->length;
    }
    if (p->spatial > 2) {
      depth = row / (uint32_t)p->high.length;
      row -= depth * (uint32_t)p->high.length;
    }
    const int64_t into = column - start;
    if (into < 0 || into >= extent || (wide->dilation > 1 && into % wide->dilation) ||
        !window_has(high, row) || !window_has(deep, depth)) {
      continue;
    }
    plane[depth * steps[0] + row * steps[1] + column * steps[2]] += GET(dy + o * wide->pooled_step);
  }
}

static void NAME(maxima_backward)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                                  int64_t begin, int64_t end, void *scratch) {
  const int64_t steps[] = {p->deep.long_step, p->high.long_step, p->wide.long_step};
  const int64_t packed[] = {p->high.length * p->wide.length, p->wide.length, 1};
  for (int64_t number = begin; number < end; number++) {
    T *dx = (T *)buffers->dx + onepass_walk_offset(&p->planes, ONEPASS_ROLE_DX, number);
    /* Halves are summed in a plane of their own. */
    C *plane = IS_SUMS ? (C *)(void *)dx : (C *)scratch;
    const int64_t *plane_steps = IS_SUMS ? steps : packed;
    for (piece at = {.plane = number}; at.deep < p->deep.length; at.deep++) {
      for (at.high = 0; at.high < p->high.length; at.high++) {
        C *row = plane + at.deep * plane_steps[0] + at.high * plane_steps[1];
        for (int64_t w = 0; w < p->wide.length; w++) row[w * plane_steps[2]] = 0;
      }
    }
    for (piece at = {.plane = number}; at.deep < p->deep.pooled; at.deep++) {
      for (at.high = 0; at.high < p->high.pooled; at.high++) {
        NAME(scatter_row)
        (p, plane, plane_steps, (const T *)buffers->dy + offset_of_row(p, ONEPASS_ROLE_DY, &at),
         (const int64_t *)buffers->indices + offset_of_row(p, ONEPASS_ROLE_INDICES, &at),
         onepass_window_of(&p->deep, at.deep), onepass_window_of(&p->high, at.high));
      }
    }
    if (IS_SUMS) continue;
    for (piece at = {.plane = number}; at.deep < p->deep.length; at.deep++) {
      for (at.high = 0; at.high < p->high.length; at.high++) {
        NAME(put_all)
        (dx + at.deep * steps[0] + at.high * steps[1], steps[2],
         plane + at.deep * packed[0] + at.high * packed[1], p->wide.length);
      }
    }
  }
}
