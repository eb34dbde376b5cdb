/* Large windows that hardly overlap, forward: a warp or a whole block makes an output, its lanes side by
 * side along the rows of the window. Rows that follow one another without a gap, as those of a whole
 * plane do, are one. */
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
      total += (double)part;
      part = 0;
      terms = 0;
    }
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
  int64_t rest = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / team;
  int at[3];
#pragma unroll
  for (int k = 2; k >= 0; k--) {
    at[k] = (int)(rest % a.axis[k].pooled);
    rest /= a.axis[k].pooled;
  }
  const int64_t inner = rest % a.inner, outer = rest / a.inner;
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

#endif
