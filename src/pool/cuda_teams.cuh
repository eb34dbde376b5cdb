/* Large windows that hardly overlap, forward: a warp or a whole block makes an output, its lanes side by
 * side along the rows of the window. Rows that follow one another without a gap, as those of a whole
 * plane do, are one.
 *
 * Where channels lie side by side, lanes are side by side along the channels, each with 16 bytes of them,
 * and the team's parts share out the positions of the window. */
#ifndef ONEPASS_POOL_CUDA_TEAMS_CUH
#define ONEPASS_POOL_CUDA_TEAMS_CUH

#include "pool/cuda_boxes.cuh"

/* What one lane, and in the end all of them, have found. Sums are in double from time to time, as a
 * window may have any number of elements. */
template <int OP>
struct team_value {
  sums part;
  double total; /* MAX: unused */
  int index, terms;
  __device__ void start(int first) {
    part = OP == BOX_MAX ? -(sums)INFINITY : (sums)0;
    total = 0;
    index = first;
    terms = 0;
  }
  /* A lane takes its values in the order of their indices. */
  __device__ void take(sums v, int at) {
    if constexpr (OP == BOX_MAX) {
      if (v > part || v != v) {
        part = v;
        index = at;
      }
    } else {
      part += v;
    }
  }
  __device__ void take_pack(const pack<element, VEC> &p, int at) {
    sums v[VEC];
    widen_pack(v, p);
#pragma unroll
    for (int j = 0; j < VEC; j++) take(v[j], at + j);
    settle();
  }
  __device__ void settle() {
    if (OP != BOX_MAX && ++terms == 16) {
      add_up();
      terms = 0;
    }
  }
  __device__ void add_up() {
    if (OP == BOX_MAX) return;
    total += (double)part;
    part = 0;
  }
  __device__ void join(sums v, double other, int at) {
    if constexpr (OP == BOX_MAX) {
      const bool is_nan = v != v, was_nan = part != part;
      if (is_nan ? !was_nan || at > index : v > part || (v == part && at < index)) {
        part = v;
        index = at;
      }
    } else {
      total += other;
    }
  }
};

/* Among the lanes of a warp, then among the warps of a team; the first lane has it all. */
template <int OP>
__device__ inline void join_team(team_value<OP> &mine, int team, char *shared) {
  mine.total += OP == BOX_MAX ? 0.0 : (double)mine.part;
  for (int mask = WARP / 2; mask; mask /= 2) {
    const sums v = OP == BOX_MAX ? __shfl_xor_sync(0xffffffffu, mine.part, mask) : (sums)0;
    const int at = OP == BOX_MAX ? __shfl_xor_sync(0xffffffffu, mine.index, mask) : 0;
    const double other = OP == BOX_MAX ? 0.0 : __shfl_xor_sync(0xffffffffu, mine.total, mask);
    mine.join(v, other, at);
  }
  if (team == WARP) return;
  double *values = (double *)shared;
  int *places = (int *)(values + BLOCK / WARP);
  if (threadIdx.x % WARP == 0) {
    values[threadIdx.x / WARP] = OP == BOX_MAX ? (double)mine.part : mine.total;
    places[threadIdx.x / WARP] = mine.index;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll 1
  for (int w = 1; w < BLOCK / WARP; w++) mine.join((sums)values[w], values[w], places[w]);
}

/* The elements of one row, n of them side by side, whose first has the index `first`. */
template <int OP>
__device__ inline void take_row(team_value<OP> &mine, const element *row, int n, int first,
                                int lane, int team) {
  const int phase = phase_of(row), ahead = phase ? VEC - phase : 0, head = ahead < n ? ahead : n;
  if (lane < head) mine.take(widen(row[lane]), first + lane);
  const int packs = (n - head) / VEC, tail = head + packs * VEC;
  const element *aligned = row + head;
  int i = lane;
  for (; i + 3 * team < packs; i += 4 * team) {
    pack<element, VEC> p[4];
#pragma unroll
    for (int k = 0; k < 4; k++) p[k] = load_pack<element, VEC>(aligned + (i + k * team) * VEC);
#pragma unroll
    for (int k = 0; k < 4; k++) mine.take_pack(p[k], first + head + (i + k * team) * VEC);
  }
  for (; i < packs; i += team) {
    mine.take_pack(load_pack<element, VEC>(aligned + i * VEC), first + head + i * VEC);
  }
  if (tail + lane < n) mine.take(widen(row[tail + lane]), first + tail + lane);
  mine.settle();
}

/* Rows of which one after the other would leave most lanes idle: lanes go through slots of 16 bytes of
 * all of them. */
template <int OP>
__device__ inline void take_rows(team_value<OP> &mine, const box_args &a, const element *x,
                                 const box_side<int> (&w)[3], int rows_high, int rows, int n,
                                 int lane, int team) {
  const int slots = (n + 2 * VEC - 2) / VEC;
  for (int i = lane; i < rows * slots; i += team) {
    const int r = i / slots, d = w[0].begin + r / rows_high * w[0].step,
              h = w[1].begin + r % rows_high * w[1].step;
    const element *row = x + d * (int)a.axis[0].step[ONEPASS_BOX_X] +
                         h * (int)a.axis[1].step[ONEPASS_BOX_X] + w[2].begin;
    const int first = (d * (int)a.axis[1].length + h) * (int)a.axis[2].length + w[2].begin;
    const int at = (i - r * slots) * VEC - phase_of(row);
    if (at >= 0 && at + VEC <= n) {
      mine.take_pack(load_pack<element, VEC>(row + at), first + at);
    } else {
#pragma unroll 1
      for (int j = 0; j < VEC; j++) {
        if (at + j >= 0 && at + j < n) mine.take(widen(row[at + j]), first + at + j);
      }
      mine.settle();
    }
  }
}

template <int OP>
__device__ static void team_windows(const box_args &a) {
  extern __shared__ __align__(16) char tile_memory[];
  const int team = a.team, lane = (int)threadIdx.x & (team - 1);
  int64_t rest = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) >> __popc(team - 1);
  int at[3];
  const auto next = [&](int64_t count) {
    const int64_t whole = divide_long(rest, count), left = rest - whole * count;
    rest = whole;
    return left;
  };
#pragma unroll
  for (int k = 2; k >= 0; k--) at[k] = (int)next(a.axis[k].pooled);
  const int64_t inner = next(a.inner), outer = rest;
  if (outer >= a.outer) return; /* all lanes of a team do */
  const element *x = (const element *)a.tensor[ONEPASS_BOX_X] +
                     outer * a.outer_step[ONEPASS_BOX_X] + inner * a.inner_step[ONEPASS_BOX_X];
  box_side<int> w[3];
#pragma unroll
  for (int k = 0; k < 3; k++) w[k] = window_along(a, k, at[k]);
  const int high = (int)a.axis[1].length, wide = (int)a.axis[2].length;
  team_value<OP> mine;
  mine.start((w[0].begin * high + w[1].begin) * wide + w[2].begin);

  /* Dilation is not for teams, so windows are never empty and leave no gaps. */
  int n = w[2].end - w[2].begin, rows_high = w[1].end - w[1].begin, rows = w[0].end - w[0].begin;
  const bool joined = n == wide && a.axis[1].step[ONEPASS_BOX_X] == wide;
  const bool all_joined =
      joined && rows_high == high && a.axis[0].step[ONEPASS_BOX_X] == (int64_t)high * wide;
  if (joined) {
    n *= rows_high;
    rows_high = 1;
  }
  if (all_joined) {
    n *= rows;
    rows = 1;
  }
  rows *= rows_high;
  if (rows == 1) {
    const element *row = x + w[0].begin * (int)a.axis[0].step[ONEPASS_BOX_X] +
                         w[1].begin * (int)a.axis[1].step[ONEPASS_BOX_X] + w[2].begin;
    take_row(mine, row, n, mine.index, lane, team);
  } else {
    take_rows(mine, a, x, w, rows_high, rows, n, lane, team);
  }
  join_team(mine, team, tile_memory);
  if (lane != 0) return;
  const auto offset = [&](int tensor) {
    return outer * a.outer_step[tensor] + inner * a.inner_step[tensor] +
           at[0] * a.axis[0].step[tensor] + at[1] * a.axis[1].step[tensor] +
           at[2] * a.axis[2].step[tensor];
  };
  if (OP != BOX_MAX) {
    const double divisor = (double)box_divisor(a, w[0].divisor, w[1].divisor, w[2].divisor);
    mine.part = (sums)(mine.total / divisor);
  } else if (a.tensor[ONEPASS_BOX_INDICES]) {
    ((int64_t *)a.tensor[ONEPASS_BOX_INDICES])[offset(ONEPASS_BOX_INDICES)] = mine.index;
  }
  ((element *)a.tensor[ONEPASS_BOX_Y])[offset(ONEPASS_BOX_Y)] = narrow_to<element>::from(mine.part);
}

/* ---- Channels side by side ------------------------------------------------------------------- */

/* Positions of a window, counted from its first, in order and every so many of them. Unsigned: those
 * after the last may be anywhere, and are never used. */
struct window_steps {
  unsigned d, h, i, by_d, by_h, by_i, rows, columns;
  __device__ void start(const box_side<int> (&w)[3], int first, int every) {
    rows = (unsigned)(w[1].end - w[1].begin);
    columns = (unsigned)(w[2].end - w[2].begin);
    split(first, d, h, i);
    split(every, by_d, by_h, by_i);
  }
  __device__ void advance() {
    i += by_i;
    h += by_h;
    d += by_d;
    if (i >= columns) {
      i -= columns;
      h++;
    }
    if (h >= rows) {
      h -= rows;
      d++;
    }
  }

 private:
  __device__ void split(int position, unsigned &deep, unsigned &high, unsigned &wide) const {
    const unsigned row = (unsigned)position / columns;
    wide = (unsigned)position - row * columns;
    deep = row / rows;
    high = row - deep * rows;
  }
};

/* Whether all positions of a window are as far apart as two of a row. */
__device__ inline bool is_one_row(const box_args &a, const box_side<int> (&w)[3]) {
  const int deep = w[0].end - w[0].begin, rows = w[1].end - w[1].begin;
  const int64_t high = a.axis[1].length, wide = a.axis[2].length,
                row = wide * a.axis[2].step[ONEPASS_BOX_X];
  if (deep * rows == 1) return true;
  return w[2].end - w[2].begin == wide && a.axis[1].step[ONEPASS_BOX_X] == row &&
         (deep == 1 || (rows == high && a.axis[0].step[ONEPASS_BOX_X] == high * row));
}

/* A pack, or what changes no result. */
template <int OP>
__device__ inline pack<element, VEC> load_or_nothing(bool there, const element *x) {
  union {
    uint4 raw;
    pack<element, VEC> elements;
  } u;
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    u.elements.v[j] = narrow_to<element>::from(OP == BOX_MAX ? -(sums)INFINITY : (sums)0);
  }
  if (there) u.raw = load_word<16>(x);
  return u.elements;
}

/* A pack of channels at the positions of a window that are one of the team's parts. The window begins at
 * x, where the index is `first`. */
template <int OP, bool ONE_ROW>
__device__ inline void take_positions(team_value<OP> (&mine)[VEC], const box_args &a,
                                      const element *x, const box_side<int> (&w)[3], int first,
                                      int part, int parts) {
  enum { AT_ONCE = 4, FEW_ROUNDS = 8 }; /* so many are added up in the type of sums */
  const unsigned high = (unsigned)a.axis[1].length, wide = (unsigned)a.axis[2].length;
  const unsigned step = (unsigned)a.axis[2].step[ONEPASS_BOX_X];
  const int positions = (w[0].end - w[0].begin) * (w[1].end - w[1].begin) * (w[2].end - w[2].begin);
  window_steps at;
  if (!ONE_ROW) at.start(w, part, parts);
  int rounds = 0;
  for (int i = part; i < positions; i += AT_ONCE * parts) {
    pack<element, VEC> p[AT_ONCE];
    unsigned index[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      unsigned offset;
      if (ONE_ROW) {
        index[k] = (unsigned)(i + k * parts);
        offset = index[k] * step;
      } else {
        index[k] = (at.d * high + at.h) * wide + at.i;
        offset = at.d * (unsigned)a.axis[0].step[ONEPASS_BOX_X] +
                 at.h * (unsigned)a.axis[1].step[ONEPASS_BOX_X] + at.i * step;
        at.advance();
      }
      index[k] += (unsigned)first;
      p[k] = load_or_nothing<OP>(i + k * parts < positions, x + offset);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      sums v[VEC];
      widen_pack(v, p[k]);
#pragma unroll
      for (int j = 0; j < VEC; j++) mine[j].take(v[j], (int)index[k]);
    }
    if (OP != BOX_MAX && ++rounds == FEW_ROUNDS) {
      rounds = 0;
#pragma unroll
      for (int j = 0; j < VEC; j++) mine[j].add_up();
    }
  }
}

template <int OP>
__device__ static void team_channels(const box_args &a) {
  extern __shared__ __align__(16) char tile_memory[];
  sums *values = (sums *)tile_memory;
  int *places = (int *)(values + BLOCK * VEC);
  /* Powers of two, whose ones below them are their logarithms. */
  const int lanes = a.team_lanes, team = a.team, log_lanes = __popc(lanes - 1),
            log_team = __popc(team - 1);
  const int thread = (int)threadIdx.x, rank = thread & (team - 1), part = rank >> log_lanes,
            parts = team >> log_lanes;
  int rest = (int)blockIdx.x * (BLOCK >> log_team) + (thread >> log_team);
  const auto next = [&](onepass_divider by, int count) {
    const int whole = divide_by(rest, by, count), left = rest - whole * count;
    rest = whole;
    return left;
  };
  const int tile = next(a.by_inner, (int)a.team_tiles) * lanes * VEC;
  int at[3];
  box_side<int> w[3];
#pragma unroll
  for (int k = 2; k >= 0; k--) {
    at[k] = next(a.axis[k].by_count, (int)a.axis[k].pooled);
    w[k] = window_along(a, k, at[k]);
  }
  const int64_t outer = rest;
  const int first =
      (w[0].begin * (int)a.axis[1].length + w[1].begin) * (int)a.axis[2].length + w[2].begin;
  const sums divisor = box_divisor(a, w[0].divisor, w[1].divisor, w[2].divisor);

  team_value<OP> mine[VEC];
#pragma unroll
  for (int j = 0; j < VEC; j++) mine[j].start(first);
  const int own = tile + (rank & (lanes - 1)) * VEC;
  if (outer < a.outer && own < a.inner) {
    const element *x = (const element *)a.tensor[ONEPASS_BOX_X] +
                       outer * a.outer_step[ONEPASS_BOX_X] + own +
                       (w[0].begin * (int)a.axis[0].step[ONEPASS_BOX_X] +
                        w[1].begin * (int)a.axis[1].step[ONEPASS_BOX_X] +
                        w[2].begin * (int)a.axis[2].step[ONEPASS_BOX_X]);
    if (is_one_row(a, w)) {
      take_positions<OP, true>(mine, a, x, w, first, part, parts);
    } else {
      take_positions<OP, false>(mine, a, x, w, first, part, parts);
    }
  }
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    mine[j].add_up();
    values[thread * VEC + j] = OP == BOX_MAX ? mine[j].part : (sums)mine[j].total;
    if (OP == BOX_MAX) places[thread * VEC + j] = mine[j].index;
  }
  __syncthreads();
  if (outer >= a.outer) return;

  /* Each of the team's threads joins all that there is of a channel. */
  const auto offset = [&](int tensor) {
    return outer * a.outer_step[tensor] + at[0] * a.axis[0].step[tensor] +
           at[1] * a.axis[1].step[tensor] + at[2] * a.axis[2].step[tensor];
  };
  element *y = (element *)a.tensor[ONEPASS_BOX_Y] + offset(ONEPASS_BOX_Y);
  int64_t *indices = (int64_t *)a.tensor[ONEPASS_BOX_INDICES];
  if (indices) indices += offset(ONEPASS_BOX_INDICES);
  for (int c = rank; c < lanes * VEC && tile + c < a.inner; c += team) {
    team_value<OP> all;
    all.start(first);
    for (int s = 0, from = (thread - rank) * VEC + c; s < parts; s++, from += lanes * VEC) {
      all.join(values[from], (double)values[from], OP == BOX_MAX ? places[from] : 0);
    }
    y[tile + c] = narrow_to<element>::from(OP == BOX_MAX ? all.part : (sums)all.total / divisor);
    if (OP == BOX_MAX && indices) {
      indices[(tile + c) * a.inner_step[ONEPASS_BOX_INDICES]] = all.index;
    }
  }
}

#endif
