/* Outputs of planes, for one element type; after cpu_rows.h, see cpu_kernels.c.
 *
 * A task is a piece of one row of outputs. The rows of x that its windows reach over are joined
 * element by element into a line of sums, then windows are joined along that line: taps of the line,
 * shifted against each other, are rows once more. No window uses what another has summed up. */

/* Scratch is a few buffers of p->room sums each. */
static C *NAME(buffer)(const onepass_pool_problem *p, void *scratch, int number) {
  return (C *)scratch + number * p->room;
}

/* ---- Powers, of lp_pool ---------------------------------------------------------------------- */

/* As in the reference. */
static C NAME(power)(C x, double exponent) {
  if (exponent == 0.5) return (C)sqrt((double)x);
  if (exponent == -0.5) return (C)(1 / sqrt((double)x));
  return (C)pow((double)x, exponent);
}

static void NAME(raise)(C *line, int64_t count, double exponent) {
  if (exponent == 1) return;
  if (exponent == 2) {
    for (int64_t i = 0; i < count; i++) line[i] *= line[i];
  } else if (exponent == 3) {
    for (int64_t i = 0; i < count; i++) line[i] *= line[i] * line[i];
  } else if (exponent == 0.5) {
    for (int64_t i = 0; i < count; i++) line[i] = (C)sqrt((double)line[i]);
  } else {
    for (int64_t i = 0; i < count; i++) line[i] = NAME(power)(line[i], exponent);
  }
}

/* ---- Windows along a line -------------------------------------------------------------------- */

/* Every stride-th element of a line from `residue` on becomes a row of its own, so that windows
 * however far apart have taps of neighbours. */
ALWAYS_INLINE void NAME(split_evenly)(C *restrict phases, const C *restrict line, int64_t length,
                                      const int stride, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    UNROLL for (int r = 0; r < stride; r++) phases[r * length + i] = line[i * stride + r];
  }
}

typedef struct NAME(taps) {
  int count;
  const C *row[ONEPASS_POOL_MOST_TAPS];
} NAME(taps);

/* The taps of windows `stride` apart along a line of `span` elements: row[k][o] is element k of
 * window o. */
static NAME(taps)
    NAME(taps_of)(const onepass_pool_axis *wide, const C *line, int64_t span, C *phases) {
  NAME(taps) taps = {.count = (int)wide->kernel};
  const int64_t stride = wide->stride, dilation = wide->dilation;
  if (stride == 1) {
    for (int k = 0; k < taps.count; k++) taps.row[k] = line + k * dilation;
    return taps;
  }
  const int64_t length = (span - 1) / stride + 1, whole = span / stride;
  if (stride == 2) {
    NAME(split_evenly)(phases, line, length, 2, whole);
  } else if (stride == 3) {
    NAME(split_evenly)(phases, line, length, 3, whole);
  } else if (stride == 4) {
    NAME(split_evenly)(phases, line, length, 4, whole);
  }
  uint32_t done = 0;
  for (int k = 0; k < taps.count; k++) {
    const int64_t residue = k * dilation % stride;
    C *phase = phases + residue * length;
    taps.row[k] = phase + k * dilation / stride;
    if (done >> residue & 1) continue;
    done |= 1u << residue;
    for (int64_t i = stride <= SPLIT_EVENLY ? whole : 0; i * stride + residue < span; i++) {
      phase[i] = line[i * stride + residue];
    }
  }
  return taps;
}

static bool NAME(has_taps)(const onepass_pool_axis *wide) {
  return wide->kernel <= ONEPASS_POOL_MOST_TAPS && wide->stride <= ONEPASS_POOL_MOST_TAPS;
}

static void NAME(join_taps)(C *out, const NAME(taps) * taps, int64_t count, onepass_join how) {
  for (int k = 0; k < taps->count; k += JOINED_AT_ONCE) {
    const int some = taps->count - k < JOINED_AT_ONCE ? taps->count - k : JOINED_AT_ONCE;
    OF_SUM(join_rows)(out, taps->row + k, NULL, some, k > 0, count, how);
  }
}

/* Maxima of twos, of fours, ... in place, until few of them make up a window. */
static void NAME(join_doubled)(const onepass_pool_axis *wide, C *out, C *line, int64_t span,
                               int64_t count) {
  const int64_t most = wide->stride == 1 ? JOINED_AT_ONCE : 2;
  int64_t have = 1;
  for (; have * most < wide->kernel; have *= 2) {
    const int64_t next = have * wide->dilation;
    const C *const rows[] = {line, line + next};
    span -= next;
    OF_SUM(join_rows)(line, rows, NULL, 2, false, span, ONEPASS_JOIN_MAXIMA);
  }
  NAME(taps) taps = {0};
  for (int64_t k = 0; k < wide->kernel; k += have) {
    const int64_t from = wide->kernel - k < have ? wide->kernel - have : k;
    taps.row[taps.count++] = line + from * wide->dilation;
  }
  if (wide->stride == 1) {
    NAME(join_taps)(out, &taps, count, ONEPASS_JOIN_MAXIMA);
    return;
  }
  for (int64_t o = 0; o < count; o++) {
    C largest = taps.row[0][o * wide->stride];
    for (int t = 1; t < taps.count; t++) {
      largest = NAME(join_one)(largest, taps.row[t][o * wide->stride], ONEPASS_JOIN_MAXIMA);
    }
    out[o] = largest;
  }
}

/* out[o] = what the window from line[o * stride] on joins to. The line is used up. */
static void NAME(join_windows)(const onepass_pool_problem *p, C *out, C *line, int64_t count,
                               C *spare) {
  const onepass_pool_axis *wide = &p->wide;
  const int64_t span = (count - 1) * wide->stride + wide->extent;
  const bool maxima = p->op == ONEPASS_MAX_POOL;
  const bool apart =
      !maxima && wide->stride > SPLIT_EVENLY && is_summed_apart(wide->kernel, wide->stride);
  if (NAME(has_taps)(wide) && wide->stride > 1 && !apart) {
    const NAME(taps) taps = NAME(taps_of)(wide, line, span, spare);
    NAME(join_taps)(out, &taps, count, maxima ? ONEPASS_JOIN_MAXIMA : ONEPASS_JOIN_SUMS);
  } else if (maxima) {
    NAME(join_doubled)(wide, out, line, span, count);
  } else {
    NAME(sum_laid_out)(out, line, wide->kernel, wide->stride, count, spare);
  }
}

/* ---- Rows to a line -------------------------------------------------------------------------- */

/* What the rows of a plane that windows reach over have from column `from` on. */
static void NAME(join_columns)(const onepass_pool_problem *p, C *line, const T *x,
                               onepass_window deep, onepass_window high, int64_t from,
                               int64_t count, C *spare) {
  NAME(joiner)
  j = {.line = line,
       .length = count,
       .how = p->op == ONEPASS_MAX_POOL ? ONEPASS_JOIN_MAXIMA : ONEPASS_JOIN_SUMS};
  const bool as_they_are = p->wide.long_step == 1 && p->op != ONEPASS_LP_POOL;
  for (int64_t d = deep.begin; d < deep.end; d += deep.step) {
    for (int64_t h = high.begin; h < high.end; h += high.step) {
      const T *row = x + d * p->deep.long_step + h * p->high.long_step + from * p->wide.long_step;
      if (as_they_are) {
        NAME(join_next)(&j, row, 1);
        continue;
      }
      NAME(unpack)(spare, row, p->wide.long_step, count);
      if (p->op == ONEPASS_LP_POOL) NAME(raise)(spare, count, p->p);
      NAME(join_next_sums)(&j, spare, 1);
    }
  }
  NAME(join_end)(&j);
}

/* Columns `from` to `to` of those rows, padding and all. */
static void NAME(join_padded)(const onepass_pool_problem *p, C *line, const T *x,
                              onepass_window deep, onepass_window high, int64_t from, int64_t to,
                              C *spare) {
  const C none = p->op == ONEPASS_MAX_POOL ? NOTHING : 0;
  const int64_t begin = inside_of(from, p->wide.length), end = inside_of(to, p->wide.length);
  NAME(fill)(line, begin - from, none);
  if (begin < end) {
    NAME(join_columns)(p, line + (begin - from), x, deep, high, begin, end - begin, spare);
  }
  NAME(fill)(line + (end - from), to - end, none);
}

/* ---- Sums to outputs ------------------------------------------------------------------------- */

/* Of windows that all have the same divisor. */
static void NAME(put_outputs)(const onepass_pool_problem *p, T *y, int64_t step, C *sums,
                              int64_t count, double divisor) {
  if (p->op == ONEPASS_LP_POOL) {
    OF_SUM(put_scaled)(sums, 1, sums, count, (C)(p->elements / divisor));
    NAME(raise)(sums, count, 1 / p->p);
    NAME(put_all)(y, step, sums, count);
  } else {
    NAME(put_scaled)(y, step, sums, count, (C)(1 / divisor));
  }
}

/* Outputs from..to of a row from their sums; `rows` is the factor of the divisor that other axes have,
 * and `inner` are the outputs whose windows lie inside the row. */
static void NAME(put_row)(const onepass_pool_problem *p, T *y, C *sums, int64_t from, int64_t to,
                          onepass_window inner, double rows) {
  const int64_t step = p->wide.pooled_step;
  if (p->op == ONEPASS_MAX_POOL) {
    NAME(put_all)(y + from * step, step, sums, to - from);
    return;
  }
  if (p->divisor != 0) {
    NAME(put_outputs)(p, y + from * step, step, sums, to - from, p->divisor);
    return;
  }
  for (int64_t o = from; o < to; o++) {
    if (o == inner.begin) o = inner.end;
    if (o == to) break;
    NAME(put_outputs)
    (p, y + o * step, step, sums + (o - from), 1,
     rows * (double)onepass_window_of(&p->wide, o).divisor);
  }
  if (inner.begin < inner.end) {
    NAME(put_outputs)
    (p, y + inner.begin * step, step, sums + (inner.begin - from), inner.end - inner.begin,
     rows * (double)p->wide.kernel);
  }
}

/* ---- Values: three kinds of windows ---------------------------------------------------------- */

static void NAME(even_outputs)(const onepass_pool_problem *p, T *y, const T *x, onepass_window deep,
                               onepass_window high, int64_t from, int64_t to, void *scratch) {
  C *line = NAME(buffer)(p, scratch, 0), *sums = NAME(buffer)(p, scratch, 1);
  C *spare = NAME(buffer)(p, scratch, 2);
  const int64_t start = from * p->wide.stride - p->wide.padding;
  const int64_t span = (to - from - 1) * p->wide.stride + p->wide.extent;
  const bool at_once = IS_SUMS && p->op == ONEPASS_MAX_POOL && p->wide.pooled_step == 1;
  if (at_once) sums = (C *)(void *)(y + from);
  NAME(join_padded)(p, line, x, deep, high, start, start + span, spare);
  NAME(join_windows)(p, sums, line, to - from, spare);
  if (!at_once) {
    NAME(put_row)
    (p, y, sums, from, to, inner_outputs(&p->wide, from, to),
     (double)deep.divisor * (double)high.divisor);
  }
}

/* Short rows, begin..end of all: several of them one behind the other are one line, on which some
 * windows mean nothing. */
static void NAME(even_rows)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                            int64_t begin, int64_t end, void *scratch) {
  C *line = NAME(buffer)(p, scratch, 0), *sums = NAME(buffer)(p, scratch, 1);
  C *spare = NAME(buffer)(p, scratch, 2);
  const int64_t pooled = p->wide.pooled;
  const int64_t span = (pooled - 1) * p->wide.stride + p->wide.extent;
  const int64_t windows = (span - 1) / p->wide.stride + 1, pitch = windows * p->wide.stride;
  const int64_t most = ONEPASS_POOL_POSITIONS / pitch < ONEPASS_POOL_MOST_ROWS
                           ? ONEPASS_POOL_POSITIONS / pitch
                           : ONEPASS_POOL_MOST_ROWS;
  const onepass_window inner = inner_outputs(&p->wide, 0, pooled);
  const C none = p->op == ONEPASS_MAX_POOL ? NOTHING : 0;
  piece at = piece_of(p, begin, p->deep.pooled, p->high.pooled, pooled);
  while (begin < end) {
    const int64_t count = end - begin < most ? end - begin : most;
    T *y[ONEPASS_POOL_MOST_ROWS];
    double rows[ONEPASS_POOL_MOST_ROWS];
    for (int64_t r = 0; r < count; r++) {
      const onepass_window deep = onepass_window_of(&p->deep, at.deep);
      const onepass_window high = onepass_window_of(&p->high, at.high);
      NAME(join_padded)
      (p, line + r * pitch,
       (const T *)buffers->x + onepass_walk_offset(&p->planes, ONEPASS_ROLE_X, at.plane), deep,
       high, -p->wide.padding, span - p->wide.padding, spare);
      NAME(fill)(line + r * pitch + span, pitch - span, none);
      y[r] = (T *)buffers->y + offset_of_row(p, ONEPASS_ROLE_Y, &at);
      rows[r] = (double)deep.divisor * (double)high.divisor;
      next_piece(p, &at, p->deep.pooled, p->high.pooled, pooled);
    }
    NAME(join_windows)(p, sums, line, (count - 1) * windows + pooled, spare);
    for (int64_t r = 0; r < count; r++) {
      NAME(put_row)(p, y[r], sums + r * windows, 0, pooled, inner, rows[r]);
    }
    begin += count;
  }
}

/* The largest of a run of sums, NaN if there is one. */
static C NAME(largest_of)(const C *run, int64_t count) {
  C largest = run[0];
  int64_t i = 1;
  if (count >= 2 * W) {
    V most = LOADC(run + count - W);
    for (i = 0; i + W <= count; i += W) most = MOST(most, LOADC(run + i));
    C lane[W];
    memcpy(lane, &most, sizeof lane);
    largest = lane[0];
    for (int l = 1; l < W; l++) largest = NAME(join_one)(largest, lane[l], ONEPASS_JOIN_MAXIMA);
    return largest;
  }
  for (; i < count; i++) largest = NAME(join_one)(largest, run[i], ONEPASS_JOIN_MAXIMA);
  return largest;
}

/* If the run has something larger than the best so far, or a NaN, where it is; otherwise -1. */
static int64_t NAME(look_for_larger)(C *best, const C *run, int64_t count) {
  if (count < 2 * W) {
    C most = *best;
    int64_t found = -1;
    for (int64_t i = 0; i < count; i++) {
      if (!(run[i] > most || run[i] != run[i])) continue;
      most = run[i];
      found = i;
    }
    *best = most;
    return found;
  }
  const C largest = NAME(largest_of)(run, count);
  if (!(largest > *best || largest != largest)) return -1;
  *best = largest;
  if (largest != largest) {
    int64_t last = count - 1;
    while (run[last] == run[last]) last--;
    return last;
  }
  int64_t first = 0;
  while (run[first] != largest) first++;
  return first;
}

/* The sum of a run that is not long. */
static C NAME(sum_run)(const T *run, int64_t count) {
  if (count < W) {
    C sum = GET(run);
    for (int64_t i = 1; i < count; i++) sum += GET(run + i);
    return sum;
  }
  V sum[4] = {LOAD(run)};
  int64_t i = W;
  for (; i + 4 * W <= count; i += 4 * W) {
    UNROLL for (int j = 0; j < 4; j++) sum[j] += LOAD(run + i + j * W);
  }
  for (; i + W <= count; i += W) sum[1] += LOAD(run + i);
  if (i < count) sum[2] += ONLY(LOAD(run + count - W), W - (count - i), W);
  return FOLD((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* Planes that have one average each. */
static void NAME(whole_averages)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                                 int64_t begin, int64_t end) {
  const C scale = (C)(1 / (p->divisor != 0 ? p->divisor : (double)p->wide.length));
  for (int64_t plane = begin; plane < end; plane++) {
    const T *x = (const T *)buffers->x + onepass_walk_offset(&p->planes, ONEPASS_ROLE_X, plane);
    T *y = (T *)buffers->y + onepass_walk_offset(&p->planes, ONEPASS_ROLE_Y, plane);
    PUT(y, NAME(sum_run)(x, p->wide.length) * scale);
  }
}

/* The windows of adaptive pooling, on a line that is there as a whole. */
static void NAME(uneven_outputs)(const onepass_pool_problem *p, T *y, const T *x,
                                 onepass_window deep, onepass_window high, void *scratch) {
  C *line = NAME(buffer)(p, scratch, 0), *out = NAME(buffer)(p, scratch, 1);
  NAME(join_columns)
  (p, line, x, deep, high, 0, p->wide.length, NAME(buffer)(p, scratch, 2));
  const double rows = (double)deep.divisor * (double)high.divisor;
  for (parts at = first_part(p->wide.length, p->wide.pooled); at.part < p->wide.pooled;
       next_part(&at)) {
    const int64_t count = at.end - at.begin;
    out[at.part] =
        p->op == ONEPASS_MAX_POOL
            ? NAME(largest_of)(line + at.begin, count)
            : (C)((double)OF_SUM(sum_run)(line + at.begin, count) / (rows * (double)count));
  }
  NAME(put_all)(y, p->wide.pooled_step, out, p->wide.pooled);
}

/* Windows too large for a line: piece by piece. Returns what `sum` or `largest` it comes to. */
static double NAME(sum_of_box)(const onepass_pool_problem *p, const T *x, onepass_window deep,
                               onepass_window high, onepass_window wide, C *piece) {
  double sum = 0;
  for (int64_t d = deep.begin; d < deep.end; d += deep.step) {
    for (int64_t h = high.begin; h < high.end; h += high.step) {
      const T *row = x + d * p->deep.long_step + h * p->high.long_step;
      if (p->wide.long_step == 1 && p->op == ONEPASS_AVG_POOL) {
        sum += NAME(sum_window)(row + wide.begin, wide.end - wide.begin);
        continue;
      }
      for (int64_t w = wide.begin; w < wide.end; w += ONEPASS_POOL_TILE) {
        const int64_t count = wide.end - w < ONEPASS_POOL_TILE ? wide.end - w : ONEPASS_POOL_TILE;
        NAME(unpack)(piece, row + w * p->wide.long_step, p->wide.long_step, count);
        if (p->op == ONEPASS_LP_POOL) NAME(raise)(piece, count, p->p);
        sum += OF_SUM(sum_window)(piece, count);
      }
    }
  }
  return sum;
}

static C NAME(largest_of_box)(const onepass_pool_problem *p, const T *x, onepass_window deep,
                              onepass_window high, onepass_window wide, C *piece, int64_t *index) {
  C largest = NOTHING;
  *index = (deep.begin * p->high.length + high.begin) * p->wide.length + wide.begin;
  for (int64_t d = deep.begin; d < deep.end; d += deep.step) {
    for (int64_t h = high.begin; h < high.end; h += high.step) {
      const T *row = x + d * p->deep.long_step + h * p->high.long_step;
      int64_t left = wide.begin < wide.end ? (wide.end - wide.begin - 1) / wide.step + 1 : 0;
      for (int64_t w = wide.begin; left > 0; w += ONEPASS_POOL_TILE * wide.step) {
        const int64_t count = left < ONEPASS_POOL_TILE ? left : ONEPASS_POOL_TILE;
        NAME(unpack)(piece, row + w * p->wide.long_step, wide.step * p->wide.long_step, count);
        const int64_t at = NAME(look_for_larger)(&largest, piece, count);
        if (at >= 0) *index = (d * p->high.length + h) * p->wide.length + w + at * wide.step;
        left -= count;
      }
    }
  }
  return largest;
}

static void NAME(single_outputs)(const onepass_pool_problem *p, T *y, int64_t *indices, const T *x,
                                 onepass_window deep, onepass_window high, int64_t from, int64_t to,
                                 void *scratch) {
  C *piece = NAME(buffer)(p, scratch, 0);
  for (int64_t o = from; o < to; o++) {
    const onepass_window wide = onepass_window_of(&p->wide, o);
    T *at = y + o * p->wide.pooled_step;
    if (p->op == ONEPASS_MAX_POOL) {
      int64_t index;
      PUT(at, NAME(largest_of_box)(p, x, deep, high, wide, piece, &index));
      if (indices) indices[o * p->wide.step[ONEPASS_ROLE_INDICES]] = index;
    } else {
      const onepass_window windows[] = {deep, high, wide};
      const double mean =
          NAME(sum_of_box)(p, x, deep, high, wide, piece) / onepass_divisor_of(p, windows);
      if (p->op == ONEPASS_LP_POOL) {
        PUT(at, NAME(power)((C)(mean * p->elements), 1 / p->p));
      } else {
        PUT(at, (C)mean);
      }
    }
  }
}

/* ---- Maxima and where they are --------------------------------------------------------------- */

/* The last NaN of a window. */
static int64_t NAME(last_nan)(const onepass_pool_problem *p, const T *x, onepass_window deep,
                              onepass_window high, onepass_window wide) {
  int64_t index = 0;
  for (int64_t d = deep.begin; d < deep.end; d += deep.step) {
    for (int64_t h = high.begin; h < high.end; h += high.step) {
      const T *row = x + d * p->deep.long_step + h * p->high.long_step;
      for (int64_t w = wide.begin; w < wide.end; w += wide.step) {
        const C value = GET(row + w * p->wide.long_step);
        if (value != value) index = (d * p->high.length + h) * p->wide.length + w;
      }
    }
  }
  return index;
}

/* Row after row, and in each of them tap after tap, which is the order of indices. */
static void NAME(even_maxima)(const onepass_pool_problem *p, T *y, int64_t *indices, const T *x,
                              onepass_window deep, onepass_window high, int64_t from, int64_t to,
                              void *scratch) {
  C *best = NAME(buffer)(p, scratch, 0), *line = NAME(buffer)(p, scratch, 2);
  I *where = (I *)(void *)NAME(buffer)(p, scratch, 1);
  const int64_t count = to - from, start = from * p->wide.stride - p->wide.padding;
  const int64_t span = (count - 1) * p->wide.stride + p->wide.extent;
  const int64_t begin = inside_of(start, p->wide.length);
  const int64_t end = inside_of(start + span, p->wide.length);
  const int64_t first = (deep.begin * p->high.length + high.begin) * p->wide.length;
  NAME(fill)(best, count, NOTHING);
  for (int64_t o = 0; o < count; o++) where[o] = 0;
  NAME(fill)(line, begin - start, NOTHING);
  NAME(fill)(line + (end - start), start + span - end, NOTHING);
  for (int64_t d = deep.begin; d < deep.end && begin < end; d += deep.step) {
    for (int64_t h = high.begin; h < high.end; h += high.step) {
      const int64_t row = (d * p->high.length + h) * p->wide.length - first;
      NAME(unpack)
      (line + (begin - start),
       x + d * p->deep.long_step + h * p->high.long_step + begin * p->wide.long_step,
       p->wide.long_step, end - begin);
      const NAME(taps) taps = NAME(taps_of)(&p->wide, line, span, NAME(buffer)(p, scratch, 3));
      I numbers[ONEPASS_POOL_MOST_TAPS];
      for (int k = 0; k < taps.count; k++) numbers[k] = (I)(row + k * p->wide.dilation);
      OF_SUM(find_maxima)(best, where, taps.row, numbers, taps.count, count);
    }
  }
  NAME(put_all)(y + from * p->wide.pooled_step, p->wide.pooled_step, best, count);
  const int64_t step = p->wide.step[ONEPASS_ROLE_INDICES];
  bool odd = false;
  for (int64_t o = 0; o < count; o++) odd |= !(best[o] > NOTHING);
  indices += from * step;
  if (step == 1) {
    for (int64_t o = 0; o < count; o++) indices[o] = first + start + o * p->wide.stride + where[o];
  } else {
    for (int64_t o = 0; o < count; o++) {
      indices[o * step] = first + start + o * p->wide.stride + where[o];
    }
  }
  for (int64_t o = 0; odd && o < count; o++) {
    if (best[o] > NOTHING) continue;
    const onepass_window wide = onepass_window_of(&p->wide, from + o);
    indices[o * step] =
        best[o] != best[o] ? NAME(last_nan)(p, x, deep, high, wide) : first + wide.begin;
  }
}

static void NAME(uneven_maxima)(const onepass_pool_problem *p, T *y, int64_t *indices, const T *x,
                                onepass_window deep, onepass_window high, void *scratch) {
  C *best = NAME(buffer)(p, scratch, 0), *line = NAME(buffer)(p, scratch, 1);
  const int64_t step = p->wide.step[ONEPASS_ROLE_INDICES];
  NAME(fill)(best, p->wide.pooled, NOTHING);
  for (int64_t d = deep.begin; d < deep.end; d++) {
    for (int64_t h = high.begin; h < high.end; h++) {
      const int64_t row = (d * p->high.length + h) * p->wide.length;
      const bool is_first = d == deep.begin && h == high.begin;
      const T *start = x + d * p->deep.long_step + h * p->high.long_step;
      const bool as_it_is = IS_SUMS && p->wide.long_step == 1;
      const C *run = as_it_is ? (const C *)(const void *)start : line;
      if (!as_it_is) NAME(unpack)(line, start, p->wide.long_step, p->wide.length);
      for (parts at = first_part(p->wide.length, p->wide.pooled); at.part < p->wide.pooled;
           next_part(&at)) {
        const int64_t found =
            NAME(look_for_larger)(best + at.part, run + at.begin, at.end - at.begin);
        if (found >= 0 || is_first) {
          indices[at.part * step] = row + at.begin + (found < 0 ? 0 : found);
        }
      }
    }
  }
  NAME(put_all)(y, p->wide.pooled_step, best, p->wide.pooled);
}

/* ---- Tasks ----------------------------------------------------------------------------------- */

static void NAME(planes_forward)(const onepass_pool_problem *p, const onepass_buffers *buffers,
                                 int64_t begin, int64_t end, void *scratch) {
  if (p->windows == ONEPASS_POOL_WHOLE) {
    NAME(whole_averages)(p, buffers, begin, end);
    return;
  }
  /* A stride beyond that would overflow what follows. */
  if (p->windows == ONEPASS_POOL_EVEN && p->tiles == 1 && !p->has_indices &&
      p->wide.stride <= ONEPASS_POOL_POSITIONS && p->wide.pooled <= ONEPASS_POOL_POSITIONS &&
      (p->wide.pooled + 1) * p->wide.stride + p->wide.extent <= ONEPASS_POOL_POSITIONS / 2) {
    NAME(even_rows)(p, buffers, begin, end, scratch);
    return;
  }
  piece at = piece_of(p, begin, p->deep.pooled, p->high.pooled, p->wide.pooled);
  for (int64_t task = begin; task < end; task++) {
    const onepass_window deep = onepass_window_of(&p->deep, at.deep);
    const onepass_window high = onepass_window_of(&p->high, at.high);
    const T *x = (const T *)buffers->x + onepass_walk_offset(&p->planes, ONEPASS_ROLE_X, at.plane);
    T *y = (T *)buffers->y + offset_of_row(p, ONEPASS_ROLE_Y, &at);
    int64_t *indices = NULL;
    if (p->has_indices) {
      indices = (int64_t *)buffers->indices + offset_of_row(p, ONEPASS_ROLE_INDICES, &at);
    }
    if (p->windows == ONEPASS_POOL_SINGLE) {
      NAME(single_outputs)(p, y, indices, x, deep, high, at.from, at.to, scratch);
    } else if (p->windows == ONEPASS_POOL_UNEVEN) {
      if (indices) {
        NAME(uneven_maxima)(p, y, indices, x, deep, high, scratch);
      } else {
        NAME(uneven_outputs)(p, y, x, deep, high, scratch);
      }
    } else if (indices) {
      NAME(even_maxima)(p, y, indices, x, deep, high, at.from, at.to, scratch);
    } else {
      NAME(even_outputs)(p, y, x, deep, high, at.from, at.to, scratch);
    }
    next_piece(p, &at, p->deep.pooled, p->high.pooled, p->wide.pooled);
  }
}
