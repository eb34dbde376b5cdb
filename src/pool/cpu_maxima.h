/* Gradients of maxima, for one element type; after cpu_gradients.h, see cpu_kernels.c. A task is a plane, to
 * which indices scatter what dy has. They may be anything: an output counts if its window holds what its index
 * names. Windows of two by two side by side are written as a whole instead, which needs no zeros before. */

/* ---- Two by two ------------------------------------------------------------------------------ */

/* As wide as a sum; -1, which is no element's number, if it is negative or does not fit. */
ALWAYS_INLINE I NAME(short_index)(int64_t index) {
  const I low = (I)index, high = sizeof(I) == 8 ? 0 : (I)(index >> 32);
  return (high | low >> (8 * sizeof(I) - 1)) ? -1 : low;
}

/* dy if its maximum is here, or 0: with masks, as compilers make no vectors of a choice. */
ALWAYS_INLINE C NAME(if_here)(C dy, I index, I here) {
  I bits;
  memcpy(&bits, &dy, sizeof bits);
  bits &= -(I)(index == here);
  memcpy(&dy, &bits, sizeof bits);
  return dy;
}

/* Both rows, or one, that `count` windows lie in; their first elements have numbers `first` and `second`. */
static void NAME(pick_rows)(C *restrict upper, C *restrict lower, const C *restrict dy,
                            const int64_t *restrict indices, I first, I second, int64_t count) {
  for (int64_t o = 0; o < count; o++) {
    const I ahead = NAME(short_index)(indices[o]) - (I)(2 * o);
    upper[2 * o] = NAME(if_here)(dy[o], ahead, first);
    upper[2 * o + 1] = NAME(if_here)(dy[o], ahead, first + 1);
    lower[2 * o] = NAME(if_here)(dy[o], ahead, second);
    lower[2 * o + 1] = NAME(if_here)(dy[o], ahead, second + 1);
  }
}
static void NAME(pick_row)(C *restrict row, const C *restrict dy, const int64_t *restrict indices,
                           I first, int64_t count) {
  for (int64_t o = 0; o < count; o++) {
    const I ahead = NAME(short_index)(indices[o]) - (I)(2 * o);
    row[2 * o] = NAME(if_here)(dy[o], ahead, first);
    row[2 * o + 1] = NAME(if_here)(dy[o], ahead, first + 1);
  }
}

/* Rows and columns behind the last window are 0. */
static void NAME(pick_plane)(const onepass_pool_problem *p, C *plane, const int64_t *steps,
                             const C *dy, const int64_t *indices) {
  const int64_t deep_kernel = p->deep.kernel, high_kernel = p->high.kernel;
  const int64_t columns = p->wide.length, pooled = p->wide.pooled;
  for (int64_t d = 0; d < p->deep.length; d++) {
    const int64_t level = d / deep_kernel;
    for (int64_t h = 0; h < p->high.length; h += high_kernel) {
      C *row = plane + d * steps[0] + h * steps[1], *below = row + steps[1];
      const int64_t first = (d * p->high.length + h) * columns;
      const int64_t high = high_kernel == 2 ? h / 2 : h;
      if (level >= p->deep.pooled || high >= p->high.pooled) {
        NAME(fill)(row, columns, 0); /* the last one */
        if (high_kernel == 2 && h + 1 < p->high.length) NAME(fill)(below, columns, 0);
        continue;
      }
      const C *from = dy + level * p->deep.pooled_step + high * p->high.pooled_step;
      const int64_t *where = indices + level * p->deep.step[ONEPASS_ROLE_INDICES] +
                             high * p->high.step[ONEPASS_ROLE_INDICES];
      if (high_kernel == 2) {
        NAME(pick_rows)(row, below, from, where, (I)first, (I)(first + columns), pooled);
        NAME(fill)(below + 2 * pooled, columns - 2 * pooled, 0);
      } else {
        NAME(pick_row)(row, from, where, (I)first, pooled);
      }
      NAME(fill)(row + 2 * pooled, columns - 2 * pooled, 0);
    }
  }
}

/* ---- Any others ------------------------------------------------------------------------------ */

/* Where elements of a plane are, and what it takes to find them without a division. */
typedef struct NAME(places) {
  const int64_t *steps;
  bool dense;   /* an element's index says where it is, and rows of dy and indices are dense */
  bool simple;  /* windows have no gaps and one size */
  bool in_twos; /* and are two wide, up to two high, side by side and inside the plane */
  uint64_t elements, one_over_rows, one_over_columns, one_over_dilation;
} NAME(places);

/* A row of dy, where places are dense and windows simple, on planes of so many axes longer than 1. */
ALWAYS_INLINE void NAME(scatter_simple_row)(const onepass_pool_problem *p, C *plane,
                                            const NAME(places) * places, const T *dy,
                                            const int64_t *indices, onepass_window deep,
                                            onepass_window high, const int axes) {
  const uint64_t rows = (uint64_t)p->high.length, columns = (uint64_t)p->wide.length;
  const uint64_t one_over_rows = places->one_over_rows;
  const uint64_t one_over_columns = places->one_over_columns;
  const uint64_t stride = (uint64_t)p->wide.stride, extent = (uint64_t)p->wide.extent;
  const uint64_t top = (uint64_t)high.begin, height = (uint64_t)(high.end - high.begin);
  const uint64_t front = (uint64_t)deep.begin, depth = (uint64_t)(deep.end - deep.begin);
  const int64_t pooled = p->wide.pooled;
  uint64_t start = -(uint64_t)p->wide.padding;
  for (int64_t o = 0; o < pooled; o++, start += stride) {
    const uint64_t index = (uint64_t)indices[o];
    uint64_t column = index, row = 0, level = 0;
    bool held = axes > 1 || index < columns; /* beyond the plane there are no rows of a window */
    if (axes > 1) {
      row = (uint64_t)((onepass_wide_product)index * one_over_columns >> 64);
      column -= row * columns;
    }
    if (axes > 2) {
      level = (uint64_t)((onepass_wide_product)row * one_over_rows >> 64);
      row -= level * rows;
      held &= level - front < depth;
    }
    if (axes > 1) held &= row - top < height;
    held &= column - start < extent; /* not below it, either */
    if (held) plane[index] += GET(dy + o);
  }
}

static void NAME(scatter_any_row)(const onepass_pool_problem *p, C *plane,
                                  const NAME(places) * places, const T *dy, const int64_t *indices,
                                  onepass_window deep, onepass_window high) {
  const onepass_pool_axis *wide = &p->wide;
  const uint64_t rows = (uint64_t)p->high.length, columns = (uint64_t)wide->length;
  const uint64_t dilation = (uint64_t)wide->dilation;
  uint64_t start = -(uint64_t)wide->padding, extent = (uint64_t)wide->extent;
  parts part = first_part(wide->length, wide->pooled);
  for (int64_t o = 0; o < wide->pooled; o++, start += (uint64_t)wide->stride) {
    if (wide->adaptive) {
      start = (uint64_t)part.begin;
      extent = (uint64_t)(part.end - part.begin);
      next_part(&part);
    }
    const uint64_t index = (uint64_t)indices[o * wide->step[ONEPASS_ROLE_INDICES]];
    if (index >= places->elements) continue;
    uint64_t row = times_one_over(index, columns, places->one_over_columns);
    const uint64_t column = index - row * columns;
    const uint64_t level = times_one_over(row, rows, places->one_over_rows);
    row -= level * rows;
    if (column - start >= extent) continue; /* below it, too */
    if (dilation > 1 && !is_multiple(column - start, dilation, places->one_over_dilation)) continue;
    if (!window_has(high, (int64_t)row) || !window_has(deep, (int64_t)level)) continue;
    plane[(int64_t)level * places->steps[0] + (int64_t)row * places->steps[1] +
          (int64_t)column * places->steps[2]] += GET(dy + o * wide->pooled_step);
  }
}

/* With 0 axes, those of any planes. */
ALWAYS_INLINE void NAME(scatter_rows)(const onepass_pool_problem *p, C *plane,
                                      const NAME(places) * places, const T *dy,
                                      const int64_t *indices, const int axes) {
  const int64_t deep_step = p->deep.step[ONEPASS_ROLE_INDICES];
  const int64_t high_step = p->high.step[ONEPASS_ROLE_INDICES];
  for (int64_t d = 0; d < p->deep.pooled; d++) {
    const onepass_window deep = onepass_window_of(&p->deep, d);
    for (int64_t h = 0; h < p->high.pooled; h++) {
      const onepass_window high = onepass_window_of(&p->high, h);
      const T *row = dy + d * p->deep.pooled_step + h * p->high.pooled_step;
      const int64_t *own = indices + d * deep_step + h * high_step;
      if (axes) {
        NAME(scatter_simple_row)(p, plane, places, row, own, deep, high, axes);
      } else {
        NAME(scatter_any_row)(p, plane, places, row, own, deep, high);
      }
    }
  }
}

static void NAME(scatter_plane)(const onepass_pool_problem *p, C *plane,
                                const NAME(places) * places, const T *dy, const int64_t *indices) {
  if (!places->dense || !places->simple) {
    NAME(scatter_rows)(p, plane, places, dy, indices, 0);
  } else if (p->deep.length == 1 && p->high.length == 1) {
    NAME(scatter_rows)(p, plane, places, dy, indices, 1);
  } else if (p->deep.length == 1) {
    NAME(scatter_rows)(p, plane, places, dy, indices, 2);
  } else {
    NAME(scatter_rows)(p, plane, places, dy, indices, 3);
  }
}

/* All of it at once where that is possible: a line that two rows share would be written twice. */
static void NAME(clear_plane)(const onepass_pool_problem *p, C *plane, const int64_t *steps,
                              bool packed) {
  if (packed) {
    NAME(fill)(plane, p->deep.length * p->high.length * p->wide.length, 0);
    return;
  }
  for (int64_t d = 0; d < p->deep.length; d++) {
    for (int64_t h = 0; h < p->high.length; h++) {
      C *row = plane + d * steps[0] + h * steps[1];
      for (int64_t w = 0; w < p->wide.length; w++) row[w * steps[2]] = 0;
    }
  }
}

static NAME(places) NAME(places_of)(const onepass_pool_problem *p, const int64_t *steps) {
  const onepass_pool_axis *deep = &p->deep, *high = &p->high, *wide = &p->wide;
  NAME(places)
  places = {
      .steps = steps,
      .elements = (uint64_t)(deep->length * high->length * wide->length),
      .one_over_rows = one_over((uint64_t)high->length),
      .one_over_columns = one_over((uint64_t)wide->length),
      .one_over_dilation = one_over((uint64_t)(wide->dilation ? wide->dilation : 1)),
      .simple = !wide->adaptive && wide->length > 1 && (high->length > 1 || deep->length == 1),
      .in_twos =
          wide->kernel == 2 && high->kernel <= 2 && steps[2] == 1 && wide->pooled >= LEAST_IN_TWOS};
  places.dense = wide->step[ONEPASS_ROLE_INDICES] == 1 && wide->pooled_step == 1;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    const onepass_pool_axis *axis = &p->axis[a];
    places.simple &= axis->dilation <= 1;
    places.in_twos &= !axis->adaptive && axis->dilation == 1 && axis->padding == 0 &&
                      axis->stride == axis->kernel && axis->pooled * axis->kernel <= axis->length;
  }
  places.in_twos &= places.dense;
  places.dense &= has_packed_plane(p, steps);
  return places;
}

static void NAME(maxima_backward)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                                  int64_t begin, int64_t end, void *scratch) {
  const int64_t steps[] = {p->deep.long_step, p->high.long_step, p->wide.long_step};
  const int64_t packed[] = {p->high.length * p->wide.length, p->wide.length, 1};
  /* Halves are summed in a plane of their own. */
  const NAME(places) places = NAME(places_of)(p, IS_SUMS ? steps : packed);
  for (int64_t number = begin; number < end; number++) {
    T *dx = (T *)buffers->dx + onepass_walk_offset(&p->planes, ONEPASS_ROLE_DX, number);
    C *plane = IS_SUMS ? (C *)(void *)dx : (C *)scratch;
    const T *dy = (const T *)buffers->dy + onepass_walk_offset(&p->planes, ONEPASS_ROLE_DY, number);
    const int64_t *indices = (const int64_t *)buffers->indices +
                             onepass_walk_offset(&p->planes, ONEPASS_ROLE_INDICES, number);
    if (IS_SUMS && places.in_twos) {
      NAME(pick_plane)(p, plane, places.steps, (const C *)(const void *)dy, indices);
      continue;
    }
    NAME(clear_plane)(p, plane, places.steps, has_packed_plane(p, places.steps));
    NAME(scatter_plane)(p, plane, &places, dy, indices);
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
