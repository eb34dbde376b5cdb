/* What tasks are pieces of, for all element types; see cpu_kernels.c. */

ALWAYS_INLINE int64_t inside_of(int64_t position, int64_t length) {
  return position < 0 ? 0 : position > length ? length : position;
}

/* Whether windows are summed each by itself, in the lanes of a vector. */
ALWAYS_INLINE bool is_summed_apart(int64_t kernel, int64_t stride) {
  return stride > 1 && kernel <= MOST_APART && (kernel - 1) / MOST_OVERLAP < stride;
}

__extension__ typedef unsigned __int128 onepass_wide_product;

/* Division of numbers below 2^32 by one that stays the same, exactly. */
ALWAYS_INLINE uint64_t one_over(uint64_t divisor) { return UINT64_MAX / divisor + 1; }
ALWAYS_INLINE uint64_t times_one_over(uint64_t number, uint64_t divisor, uint64_t one_over) {
  if (divisor == 1) return number; /* its inverse takes one bit too many */
  return (uint64_t)((onepass_wide_product)number * one_over >> 64);
}

ALWAYS_INLINE bool is_multiple(uint64_t number, uint64_t divisor, uint64_t one_over) {
  return times_one_over(number, divisor, one_over) * divisor == number;
}

/* As onepass_window_holds, without a division where there are no gaps. */
ALWAYS_INLINE bool window_has(onepass_window window, int64_t element) {
  return element >= window.begin && element < window.end &&
         (window.step == 1 || (element - window.begin) % window.step == 0);
}

/* Those of outputs from..to whose windows lie inside the axis, without its padding. */
static onepass_window inner_outputs(const onepass_pool_axis *axis, int64_t from, int64_t to) {
  const int64_t room = axis->length + axis->padding - axis->extent; /* where the last one starts */
  int64_t begin = (axis->padding + axis->stride - 1) / axis->stride;
  int64_t end = room < 0 ? 0 : room / axis->stride + 1;
  begin = begin < from ? from : begin > to ? to : begin;
  end = end < begin ? begin : end > to ? to : end;
  return (onepass_window){.begin = begin, .end = end, .step = 1};
}

/* The windows of adaptive pooling one after the other, without a division for each. */
typedef struct parts {
  int64_t part, begin, end;
  int64_t rest; /* begin is (begin * parts + rest) / parts exactly */
  int64_t count, each, more;
} parts;

static parts first_part(int64_t length, int64_t count) {
  parts p = {.count = count};
  if (count == 0) return p;
  p.each = length / count;
  p.more = length % count;
  p.end = p.each + (p.more > 0);
  return p;
}

static void next_part(parts *p) {
  p->part++;
  p->begin += p->each;
  p->rest += p->more;
  if (p->rest >= p->count) {
    p->rest -= p->count;
    p->begin++;
  }
  const int64_t rest = p->rest + p->more; /* of the part after this one, where this one ends */
  p->end = p->begin + p->each + (rest > p->count ? 2 : rest > 0);
}

/* Where a task is: a part of a row of a plane. */
typedef struct piece {
  int64_t plane, deep, high, from, to;
} piece;

static piece piece_of(const onepass_pool_problem *p, int64_t task, int64_t deep, int64_t high,
                      int64_t wide) {
  piece at = {.deep = 0};
  const int64_t tile = p->tiles == 1 ? 0 : task % p->tiles;
  int64_t row = p->tiles == 1 ? task : task / p->tiles;
  at.high = row % high;
  row /= high;
  at.deep = deep == 1 ? 0 : row % deep;
  at.plane = deep == 1 ? row : row / deep;
  at.from = tile * p->segment;
  at.to = wide - at.from < p->segment ? wide : at.from + p->segment;
  return at;
}

/* On to the next task. */
static void next_piece(const onepass_pool_problem *p, piece *at, int64_t deep, int64_t high,
                       int64_t wide) {
  at->from = at->to;
  if (at->from == wide) {
    at->from = 0;
    if (++at->high == high) {
      at->high = 0;
      if (++at->deep == deep) {
        at->deep = 0;
        at->plane++;
      }
    }
  }
  at->to = wide - at->from < p->segment ? wide : at->from + p->segment;
}

/* From the first element of a tensor to the first of that row. */
static int64_t offset_of_row(const onepass_pool_problem *p, onepass_role role, const piece *at) {
  return onepass_walk_offset(&p->planes, role, at->plane) + at->deep * p->deep.step[role] +
         at->high * p->high.step[role];
}

/* Whether elements of a plane with these steps lie one behind the other, as indices count them. */
static bool has_packed_plane(const onepass_pool_problem *p, const int64_t *steps) {
  return steps[2] == 1 && (p->high.length == 1 || steps[1] == p->wide.length) &&
         (p->deep.length == 1 || steps[0] == p->high.length * p->wide.length);
}
