/* Planes whose neighbours in memory are other planes (channels_last), for one element type; after
 * cpu_planes.h, see cpu_kernels.c. Lanes run across channels: what is at one position of all of them
 * is a row, and a window is some rows to join. A task is a row of positions. */

/* ---- Forward --------------------------------------------------------------------------------- */

/* Where the NaNs of these channels are, in windows that have one. */
static void NAME(fix_channels)(const onepass_pool_problem *p, const C *best, int64_t *indices,
                               const T *x, int64_t count,
                               const onepass_window windows[ONEPASS_POOL_AXES]) {
  for (int64_t c = 0; c < count; c++) {
    if (best[c] == best[c]) continue;
    indices[c] = NAME(last_nan)(p, x + c, windows[0], windows[1], windows[2]);
  }
}

/* line[c] = the square of row[c], and with it what line[c] was if there is `more`. */
static void NAME(add_squares)(C *line, const T *row, int64_t count, bool more) {
  int64_t c = 0;
  for (; c + W <= count; c += W) {
    const V square = LOAD(row + c) * LOAD(row + c);
    STOREC(line + c, more ? LOADC(line + c) + square : square, false);
  }
  for (; c < count; c++) line[c] = (more ? line[c] : 0) + GET(row + c) * GET(row + c);
}

/* Channels 0..count at one output. */
static void NAME(channels_output)(const onepass_pool_problem *p, T *y, int64_t *indices, const T *x,
                                  const onepass_window windows[ONEPASS_POOL_AXES], int64_t count,
                                  void *scratch) {
  C *line = NAME(buffer)(p, scratch, 0);
  I *where = (I *)(void *)NAME(buffer)(p, scratch, 1);
  const onepass_window deep = windows[0], high = windows[1], wide = windows[2];
  const bool maxima = p->op == ONEPASS_MAX_POOL;
  NAME(joiner)
  j = {.line = line, .length = count, .how = maxima ? ONEPASS_JOIN_MAXIMA : ONEPASS_JOIN_SUMS};
  if (indices) {
    const int64_t first = (deep.begin * p->high.length + high.begin) * p->wide.length + wide.begin;
    NAME(fill)(line, count, NOTHING);
    for (int64_t c = 0; c < count; c++) where[c] = (I)first;
  }
  for (int64_t d = deep.begin; d < deep.end; d += deep.step) {
    for (int64_t h = high.begin; h < high.end; h += high.step) {
      const T *row = x + d * p->deep.long_step + h * p->high.long_step;
      if (p->op == ONEPASS_LP_POOL) {
        C *powers = NAME(buffer)(p, scratch, 1);
        for (int64_t w = wide.begin; w < wide.end; w += wide.step) {
          if (p->p == 2) {
            NAME(add_squares)(line, row + w * p->wide.long_step, count, j.more);
            j.more = true;
            continue;
          }
          NAME(unpack)(powers, row + w * p->wide.long_step, 1, count);
          NAME(raise)(powers, count, p->p);
          NAME(join_next_sums)(&j, powers, 1);
        }
        continue;
      }
      if (!indices) {
        for (int64_t w = wide.begin; w < wide.end; w += wide.step) {
          NAME(join_next)(&j, row + w * p->wide.long_step, 1);
        }
        continue;
      }
      const T *rows[JOINED_AT_ONCE];
      I numbers[JOINED_AT_ONCE];
      int waiting = 0;
      for (int64_t w = wide.begin; w < wide.end; w += wide.step) {
        rows[waiting] = row + w * p->wide.long_step;
        numbers[waiting] = (I)((d * p->high.length + h) * p->wide.length + w);
        if (++waiting < JOINED_AT_ONCE && w + wide.step < wide.end) continue;
        NAME(find_maxima)(line, where, rows, numbers, waiting, count);
        waiting = 0;
      }
    }
  }
  if (!indices) NAME(join_end)(&j);
  if (maxima) {
    NAME(put_all)(y, 1, line, count);
  } else {
    NAME(put_outputs)(p, y, 1, line, count, onepass_divisor_of(p, windows));
  }
  if (!indices) return;
  bool odd = false;
  for (int64_t c = 0; c < count; c++) odd |= line[c] != line[c];
  for (int64_t c = 0; c < count; c++) indices[c] = where[c];
  if (odd) NAME(fix_channels)(p, line, indices, x, count, windows);
}

static void NAME(channels_forward)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                                   int64_t begin, int64_t end, void *scratch) {
  for (int64_t task = begin; task < end; task++) {
    const piece at = piece_of(p, task, p->deep.pooled, p->high.pooled, p->wide.pooled);
    const T *x = (const T *)buffers->x + onepass_walk_offset(&p->planes, ONEPASS_ROLE_X, at.plane);
    T *y = (T *)buffers->y + offset_of_row(p, ONEPASS_ROLE_Y, &at);
    onepass_window windows[] = {
        onepass_window_of(&p->deep, at.deep), onepass_window_of(&p->high, at.high), {.begin = 0}};
    for (int64_t o = at.from; o < at.to; o++) {
      windows[2] = onepass_window_of(&p->wide, o);
      int64_t *indices = NULL;
      if (p->has_indices) {
        indices = (int64_t *)buffers->indices + offset_of_row(p, ONEPASS_ROLE_INDICES, &at) +
                  o * p->wide.step[ONEPASS_ROLE_INDICES];
      }
      for (int64_t c = 0; c < p->channels; c += ONEPASS_POOL_TILE) {
        const int64_t count =
            p->channels - c < ONEPASS_POOL_TILE ? p->channels - c : ONEPASS_POOL_TILE;
        NAME(channels_output)
        (p, y + o * p->wide.pooled_step + c, indices ? indices + c : NULL, x + c, windows, count,
         scratch);
      }
    }
  }
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Channels 0..count of the gradient of an average at one element. */
static void NAME(channels_element)(const onepass_pool_problem *p, T *dx, const T *dy,
                                   const onepass_window outputs[ONEPASS_POOL_AXES], int64_t count,
                                   void *scratch) {
  NAME(joiner)
  j = {.line = NAME(buffer)(p, scratch, 0), .length = count, .how = ONEPASS_JOIN_WEIGHTED};
  onepass_window windows[ONEPASS_POOL_AXES];
  for (int64_t d = outputs[0].begin; d < outputs[0].end; d++) {
    windows[0] = onepass_window_of(&p->deep, d);
    for (int64_t h = outputs[1].begin; h < outputs[1].end; h++) {
      windows[1] = onepass_window_of(&p->high, h);
      for (int64_t w = outputs[2].begin; w < outputs[2].end; w++) {
        windows[2] = onepass_window_of(&p->wide, w);
        NAME(join_next)
        (&j, dy + d * p->deep.pooled_step + h * p->high.pooled_step + w * p->wide.pooled_step,
         (C)(1 / onepass_divisor_of(p, windows)));
      }
    }
  }
  NAME(join_end)(&j);
  NAME(put_all)(dx, 1, j.line, count);
}

/* To channels 0..count of a line, what those have for an element that see their maximum there. */
static void NAME(add_picked)(C *restrict line, const T *restrict dy,
                             const int64_t *restrict indices, I element, int64_t count) {
  for (int64_t c = 0; c < count; c++) {
    line[c] += NAME(if_here)(GET(dy + c), NAME(short_index)(indices[c]), element);
  }
}

/* The same for a maximum: an output has something for the element if its window holds it, and its index
 * names it. */
static void NAME(channels_maximum)(const onepass_pool_problem *p, T *dx, const T *dy,
                                   const int64_t *indices,
                                   const onepass_window outputs[ONEPASS_POOL_AXES],
                                   const int64_t position[ONEPASS_POOL_AXES], int64_t count,
                                   void *scratch) {
  const int64_t element =
      (position[0] * p->high.length + position[1]) * p->wide.length + position[2];
  C *line = NAME(buffer)(p, scratch, 0);
  NAME(fill)(line, count, 0);
  for (int64_t d = outputs[0].begin; d < outputs[0].end; d++) {
    if (!window_has(onepass_window_of(&p->deep, d), position[0])) continue;
    for (int64_t h = outputs[1].begin; h < outputs[1].end; h++) {
      if (!window_has(onepass_window_of(&p->high, h), position[1])) continue;
      for (int64_t w = outputs[2].begin; w < outputs[2].end; w++) {
        if (!window_has(onepass_window_of(&p->wide, w), position[2])) continue;
        NAME(add_picked)
        (line, dy + d * p->deep.pooled_step + h * p->high.pooled_step + w * p->wide.pooled_step,
         indices + d * p->deep.step[ONEPASS_ROLE_INDICES] + h * p->high.step[ONEPASS_ROLE_INDICES] +
             w * p->wide.step[ONEPASS_ROLE_INDICES],
         (I)element, count);
      }
    }
  }
  NAME(put_all)(dx, 1, line, count);
}

static void NAME(channels_backward)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                                    int64_t begin, int64_t end, void *scratch) {
  for (int64_t task = begin; task < end; task++) {
    const piece at = piece_of(p, task, p->deep.length, p->high.length, p->wide.length);
    const T *dy =
        (const T *)buffers->dy + onepass_walk_offset(&p->planes, ONEPASS_ROLE_DY, at.plane);
    const int64_t *indices = NULL;
    if (p->has_indices) {
      indices = (const int64_t *)buffers->indices +
                onepass_walk_offset(&p->planes, ONEPASS_ROLE_INDICES, at.plane);
    }
    T *dx = (T *)buffers->dx + offset_of_row(p, ONEPASS_ROLE_DX, &at);
    onepass_window outputs[] = {
        onepass_outputs_of(&p->deep, at.deep), onepass_outputs_of(&p->high, at.high), {.begin = 0}};
    for (int64_t i = at.from; i < at.to; i++) {
      outputs[2] = onepass_outputs_of(&p->wide, i);
      for (int64_t c = 0; c < p->channels; c += ONEPASS_POOL_TILE) {
        const int64_t count =
            p->channels - c < ONEPASS_POOL_TILE ? p->channels - c : ONEPASS_POOL_TILE;
        T *to = dx + i * p->wide.long_step + c;
        if (indices) {
          const int64_t position[] = {at.deep, at.high, i};
          NAME(channels_maximum)
          (p, to, dy + c, indices + c, outputs, position, count, scratch);
        } else {
          NAME(channels_element)(p, to, dy + c, outputs, count, scratch);
        }
      }
    }
  }
}
