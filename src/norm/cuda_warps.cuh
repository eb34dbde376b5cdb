/* Rows short enough for the registers of a warp.
 *
 * `team` neighbouring lanes, a power of two, hold a row: lane l has the packs l, l + team, ... of VEC
 * elements each, at most PACKS of them. With VEC > 1 every row starts at a multiple of the pack's
 * size; rows that do not are done with VEC = 1, where neighbouring lanes still read neighbouring
 * elements. Forward a team has ROWS rows; backward its block stays for many rows, ROWS at a time, so that
 * dweight and dbias are summed in registers.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_WARPS_CUH
#define ONEPASS_NORM_CUDA_WARPS_CUH

#include "norm/cuda_slices.cuh"

/* Rows of a team and threads of a block, forward, where lanes have whole packs; launch_warps.c knows them, too. */
enum { WARPS_ROWS = 2, WARPS_FEW_THREADS = 64 };

/* A lane's place in its row. */
struct team_lane {
  int team, lane;
  int row;      /* of the block's teams, which this one has */
  int of_block; /* teams of a block */
  __device__ team_lane(const norm_args &a) {
    const int shift = 31 - __clz(a.team); /* it is a power of two */
    team = a.team;
    lane = threadIdx.x & (a.team - 1);
    row = threadIdx.x >> shift;
    of_block = blockDim.x >> shift;
  }
  __device__ int column(int i, int vec) const { return (lane + i * team) * vec; }
};

template <class T, int VEC, int PACKS>
__device__ inline void load_row(pack<T, VEC> (&to)[PACKS], const T *row, const team_lane &w, int n,
                                bool active) {
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
    const int column = w.column(i, VEC);
    to[i] = load_pack_if<T, VEC>(active && column < n, row + column);
    stay_packed(to[i]);
  }
}

/* A lane's weights. Single elements are held as numbers of the type of sums, and their type is looked at once: loads behind
 * branches of their own would wait for each other. */
template <class T, bool FULL, class W, int VEC, int PACKS>
__device__ inline void load_lane_weights(pack<W, VEC> (&to)[PACKS], const void *weights,
                                         float absent, const team_lane &w, const norm_args &a) {
  const int n = (int)a.elements.count;
  const auto has = [&](int i) { return FULL || w.column(i, VEC) < n; };
  if constexpr (VEC > 1) {
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      if (has(i)) to[i] = aligned_weights<W, VEC>(weights, w.column(i, VEC), absent);
    }
  } else {
#pragma unroll
    for (int i = 0; i < PACKS; i++) to[i].v[0] = (W)absent;
    if (!weights) return;
    if (sizeof(T) == 2 && a.f32_weights) {
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        if (has(i)) to[i].v[0] = (W)((const float *)weights)[w.column(i, 1)];
      }
    } else {
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        if (has(i)) to[i].v[0] = (W)widen(((const T *)weights)[w.column(i, 1)]);
      }
    }
  }
}

/* The mean of the row's first pack, which its first lane has. */
template <class T, class C, int VEC>
__device__ inline C guess_of_team(const pack<T, VEC> &first, const team_lane &w,
                                  const norm_args &a) {
  /* As guess_mean. Of a single element it is the mean. */
  if (sizeof(T) == 2 && (VEC > 1 || a.elements.count > 1)) return 0;
  /* Packs of floats have kernels for squares. */
  if ((VEC == 1 || sizeof(T) == 8) && !is_centered(a)) return 0;
  return __shfl_sync(ALL_LANES, mean_of_pack<T, C>(first), (int)(threadIdx.x % WARP) - w.lane);
}

/* The moments of a block's rows, which are stored side by side when all are known: row by row they would be a quarter of
 * what is asked of the second-level cache. */
template <class C, int ROWS>
struct block_moments {
  C means[WARPS_FEW_THREADS * ROWS], rstds[WARPS_FEW_THREADS * ROWS];
  __device__ void keep(const row_scale<C> (&scale)[ROWS], const team_lane &w) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      if (w.lane != 0) continue;
      means[r * w.of_block + w.row] = scale[r].mean;
      rstds[r * w.of_block + w.row] = scale[r].scale;
    }
  }
  template <bool ONE_AXIS>
  __device__ void save(const team_lane &w, const norm_args &a) const {
    if (!a.at.mean && !a.at.rstd) return;
    __syncthreads();
    const int rows = w.of_block * ROWS;
    for (int i = threadIdx.x; i < rows; i += blockDim.x) {
      const int64_t row = (int64_t)blockIdx.x * rows + i;
      if (row >= a.rows.count) break;
      if (a.at.mean) *row_of<C, ONE_AXIS>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = means[i];
      if (a.at.rstd) *row_of<C, ONE_AXIS>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) = rstds[i];
    }
  }
};

/* A lane has the same columns of a team's ROWS rows: weights are loaded once for them. FULL: rows are on one axis, and every
 * lane has PACKS packs of them, so there is nothing to look for. */
template <class T, class W, int STATISTIC, int VEC, int PACKS, int ROWS = 1, bool FUSED = false,
          bool FULL = false>
__device__ inline void warps_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const bool WEIGHTS = STATISTIC != OF_MAGNITUDES, MOMENTS = STATISTIC == OF_MOMENTS;
  const int SUMS = sum_count<STATISTIC>::FORWARD;
  const int n = (int)a.elements.count;
  const team_lane w(a);
  const int64_t first = (int64_t)blockIdx.x * w.of_block * ROWS + w.row;
  const int64_t left = a.rows.count - first;
  const int rows = (int)(left < ROWS * w.of_block ? left : ROWS * w.of_block);
  const auto is_active = [&](int r) { return r * w.of_block < rows; };
  const auto row = [&](int r) { return is_active(r) ? first + r * w.of_block : 0; };
  const auto has = [&](int i) { return FULL || w.column(i, VEC) < n; };
  pack<T, VEC> x[ROWS][PACKS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    if constexpr (FUSED) {
      const summed_row<T> from(a, row(r));
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        x[r][i] = {};
        if (is_active(r) && has(i)) x[r][i] = from.template take<VEC>(w.column(i, VEC));
      }
    } else {
      const T *from = row_of<T, FULL>(a.at.x, a, ONEPASS_ROLE_X, row(r));
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        x[r][i] = load_pack_if<T, VEC>(is_active(r) && has(i), from + w.column(i, VEC));
        stay_packed(x[r][i]);
      }
    }
  }
  pack<W, VEC> weight[WEIGHTS ? PACKS : 1], bias[MOMENTS ? PACKS : 1];
  if constexpr (WEIGHTS) load_lane_weights<T, FULL>(weight, a.at.weight, 1, w, a);
  if constexpr (MOMENTS) load_lane_weights<T, FULL>(bias, a.at.bias, 0, w, a);
  C guess[ROWS] = {0};
#pragma unroll
  for (int r = 0; r < ROWS && MOMENTS; r++) guess[r] = guess_of_team<T, C, VEC>(x[r][0], w, a);
  row_scale<C> scale[ROWS];
  about_guess<T, FULL>(guess, [&](const C(&about)[ROWS], int again) {
    if (FULL && again) {
#pragma unroll
      for (int r = 0; r < ROWS; r++) widen_anew(x[r], a.zero);
    }
    plain_sums<C, ROWS * SUMS> all; /* of all rows at once, as each step waits for the one before */
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      plain_sums<C, SUMS> mine;
      mine.clear();
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        if (has(i)) gather_forward<STATISTIC>(mine, x[r][i], about[r]);
        stay_packed(x[r][i]);
      }
#pragma unroll
      for (int s = 0; s < SUMS; s++) all.v[r * SUMS + s] = mine.v[s];
    }
    all = sum_lanes(all, w.team);
    bool found = true;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      plain_sums<C, SUMS> sums;
#pragma unroll
      for (int s = 0; s < SUMS; s++) sums.v[s] = all.v[r * SUMS + s];
      found &= find_scale<STATISTIC, T, FULL>(scale[r], sums, guess[r], again, a);
    }
    /* The lanes of all teams go on together. */
    return !MOMENTS || __all_sync(ALL_LANES, found);
  });
  const bool TOGETHER = WEIGHTS && ROWS > 1;
  __shared__ block_moments<C, ROWS> moments;
  if (TOGETHER) moments.keep(scale, w);
#pragma unroll
  for (int r = 0; r < ROWS && WEIGHTS && !TOGETHER; r++) {
    if (w.lane == 0 && is_active(r)) save_moments<false>(scale[r], row(r), a);
  }
  const auto y = [&](int r) { return row_of<T, FULL>(a.at.y, a, ONEPASS_ROLE_Y, row(r)); };
  if constexpr (FUSED) { /* a row, whose weights take turns with its packs */
    T *const to = y(0);
    write_fused(x[0], a.activation, [&](const pack<T, VEC> &of_x, int i, int activation) {
      const int k = activation ? 0 : i, l = MOMENTS ? k : 0;
      if (is_active(0) && has(i))
        store_pack(to + w.column(i, VEC),
                   apply_forward<STATISTIC, T, W>(of_x, weight[k], bias[l], scale[0], activation));
      if (activation) {
        rotate(weight);
        rotate(bias);
      }
    });
  }
  about_shifts<T, FULL>(scale, [&](const row_scale<C>(&by)[ROWS]) {
#pragma unroll
    for (int i = 0; i < PACKS && !FUSED; i++) {
      const int column = w.column(i, VEC), k = WEIGHTS ? i : 0, l = MOMENTS ? i : 0;
      if (!has(i)) continue;
      if (WEIGHTS) stay_packed(weight[k]);
      if (MOMENTS) stay_packed(bias[l]);
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const pack<T, VEC> made =
            apply_forward<STATISTIC, T, W>(x[r][i], weight[k], bias[l], by[r]);
        /* Found anew for every pack: addresses of two rows take more registers than there are. */
        if (is_active(r)) store_pack(y(r) + column, made);
      }
    }
  });
  if (TOGETHER) moments.template save<FULL>(w, a);
}

/* dweight and dbias, or this block's part of them: first the teams of a warp are added up, then the warps, of which there
 * are 8, 16 or 32, each in their order. A block that has all rows writes the numbers themselves, which may be of x's type. */
template <class T, class C, int VEC, int PACKS>
__device__ inline void sum_over_block(C (&dweight)[PACKS][VEC], C (&dbias)[PACKS][VEC],
                                      const team_lane &w, C *shared, const norm_args &a) {
  const int n = (int)a.elements.count, warps = blockDim.x / WARP, AT_ONCE = 8;
  C *const of_warp = shared + threadIdx.x / WARP * 2 * n;
  if (a.rows.count == 1) { /* which the first team has */
#pragma unroll
    for (int k = 0; k < PACKS * VEC; k++) {
      const int i = k / VEC, j = k % VEC, column = w.column(i, VEC) + j;
      if ((int)threadIdx.x >= w.team || column >= n) continue;
      if (a.dweight_parts) store_part<T>(a.dweight_parts, column, dweight[i][j], a);
      if (a.dbias_parts) store_part<T>(a.dbias_parts, column, dbias[i][j], a);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      for (int mask = w.team; mask < WARP; mask *= 2) {
        dweight[i][j] += __shfl_xor_sync(ALL_LANES, dweight[i][j], mask);
        dbias[i][j] += __shfl_xor_sync(ALL_LANES, dbias[i][j], mask);
      }
      const int column = w.column(i, VEC) + j;
      if (threadIdx.x % WARP < w.team && column < n) {
        of_warp[column] = dweight[i][j];
        of_warp[n + column] = dbias[i][j];
      }
    }
  }
  __syncthreads();
  for (int place = threadIdx.x; place < 2 * n; place += blockDim.x) {
    void *const to = place < n ? a.dweight_parts : a.dbias_parts;
    const int column = place < n ? place : place - n;
    if (!to) continue;
    C sum = 0;
#pragma unroll 1
    for (int warp = 0; warp < warps; warp += AT_ONCE) {
#pragma unroll
      for (int k = 0; k < AT_ONCE; k++) sum += shared[(warp + k) * 2 * n + place];
    }
    store_part<T>(to, (int64_t)blockIdx.x * n + column, sum, a);
  }
}

template <class T, class W, int STATISTIC, int VEC, int PACKS, int ROWS>
__device__ inline void warps_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  extern __shared__ __align__(16) char sums_of_warps[];
  const bool WEIGHTS = STATISTIC != OF_MAGNITUDES, MOMENTS = STATISTIC == OF_MOMENTS;
  const int SUMS = sum_count<STATISTIC>::BACKWARD, n = (int)a.elements.count;
  /* Where all tensors have their rows is found at once, but for as many halves as leave no registers for that. */
  const bool TOGETHER = !(WEIGHTS && VEC == 1 && PACKS == 8 && sizeof(T) == 2);
  const team_lane w(a);
  pack<W, VEC> weight[WEIGHTS ? PACKS : 1];
  C dweight[WEIGHTS ? PACKS : 1][VEC], dbias[WEIGHTS ? PACKS : 1][VEC];
  /* Single halves are widened as they are loaded, so they are waited for: the first rows are to be on their way by then. */
  bool late_weights = WEIGHTS && VEC == 1 && sizeof(T) == 2;
  if constexpr (WEIGHTS) {
    if (!late_weights) load_lane_weights<T, false>(weight, a.at.weight, 1, w, a);
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
#pragma unroll
      for (int j = 0; j < VEC; j++) dweight[i][j] = dbias[i][j] = 0;
    }
  }
  const int64_t step = (int64_t)gridDim.x * w.of_block * ROWS;
  for (int64_t block_first = (int64_t)blockIdx.x * w.of_block * ROWS; block_first < a.rows.count;
       block_first += step) {
    const int64_t first = block_first + w.row * ROWS;
    pack<T, VEC> x[ROWS][PACKS], dy[ROWS][PACKS];
    C mean[ROWS], rstd[ROWS];
    int64_t of_dx[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const bool active = first + r < a.rows.count;
      const int64_t row = active ? first + r : 0;
      if constexpr (TOGETHER) {
        int64_t of[WEIGHTS ? 5 : 3];
        if constexpr (WEIGHTS) {
          find_row(of,
                   {ONEPASS_ROLE_X, ONEPASS_ROLE_DY, ONEPASS_ROLE_DX, ONEPASS_ROLE_MEAN,
                    ONEPASS_ROLE_RSTD},
                   a, row);
        } else {
          find_row(of, {ONEPASS_ROLE_X, ONEPASS_ROLE_DY, ONEPASS_ROLE_DX}, a, row);
        }
        load_row(x[r], (const T *)a.at.x + of[0], w, n, active);
        load_row(dy[r], (const T *)a.at.dy + of[1], w, n, active);
        of_dx[r] = of[2];
        mean[r] = rstd[r] = 0;
        if constexpr (MOMENTS) mean[r] = saved_mean((const C *)a.at.mean + of[3], a);
        if constexpr (WEIGHTS) rstd[r] = ((const C *)a.at.rstd)[of[4]];
      } else {
        load_row(x[r], row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row), w, n, active);
        load_row(dy[r], row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, row), w, n, active);
        mean[r] = MOMENTS ? saved_mean(row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row), a) : 0;
        rstd[r] = WEIGHTS ? *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) : 0;
      }
    }
    if constexpr (WEIGHTS && VEC == 1 && sizeof(T) == 2) {
      if (late_weights) load_lane_weights<T, false>(weight, a.at.weight, 1, w, a);
      late_weights = false;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const bool active = first + r < a.rows.count;
      if (r > 0 && !__any_sync(ALL_LANES, active)) break;
      plain_sums<C, SUMS> sums;
      sums.clear();
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        const int k = WEIGHTS ? i : 0;
        if (w.column(i, VEC) < n) {
          C v[VEC], g[VEC], by[VEC];
          if (WEIGHTS) stay_packed(weight[k]);
          widen_pack(v, x[r][i]);
          widen_pack(g, dy[r][i]);
          if (WEIGHTS) widen_pack(by, weight[k]);
          add_products<STATISTIC>(sums, v, g, by, mean[r], rstd[r]);
        }
        stay_packed(x[r][i]);
        stay_packed(dy[r][i]);
      }
      sums = sum_lanes(sums, w.team);
      if (STATISTIC == OF_MAGNITUDES && !active) sums.v[0] = 1; /* dividing by 0 takes longer */
      const row_gradient<C> gradient = find_gradient<STATISTIC>(sums, mean[r], rstd[r], a);
      if (!active) continue;
      T *const dx =
          TOGETHER ? (T *)a.at.dx + of_dx[r] : row_of<T>(a.at.dx, a, ONEPASS_ROLE_DX, first + r);
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        const int column = w.column(i, VEC), k = WEIGHTS ? i : 0;
        if (column >= n) continue;
        if (WEIGHTS) stay_packed(weight[k]);
        store_pack(dx + column, apply_backward<STATISTIC, T, W>(x[r][i], dy[r][i], weight[k],
                                                                gradient, dweight[k], dbias[k]));
      }
    }
  }
  if constexpr (WEIGHTS) {
    if (a.dweight_parts || a.dbias_parts)
      sum_over_block<T>(dweight, dbias, w, (C *)sums_of_warps, a);
  }
}

#endif
