/* Between gathering and applying: the sums of parts become those of rows, and these the numbers of cells. */
#ifndef ONEPASS_NORM_CUDA_CELLS_MERGE_CUH
#define ONEPASS_NORM_CUDA_CELLS_MERGE_CUH

#include "norm/cuda_cells.cuh"

__device__ inline double elements_of_part(const cells_args &a, int64_t segment) {
  return (double)(segment + 1 < a.segments ? a.slice : a.positions - segment * a.slice);
}

/* z as in channel_scale, but with the saved mean and rstd; dx = g * weight * rstd + z * by_z + constant. */
struct row_slopes {
  double offset, by_z, constant;
  __device__ row_slopes(const cells_args &a, double rstd, double sum, double dot, double of_z) {
    offset = by_z = constant = 0;
    if (a.given) return;
    offset = -of_z * a.one_over_n;
    by_z = -rstd * (dot + offset * sum) * a.one_over_n;
    constant = -rstd * sum * a.one_over_n;
  }
};

template <class T, class C>
__device__ inline void store_backward(const cells_args &a, int64_t number, int64_t channel, C mean,
                                      C rstd, const row_slopes &row) {
  const C weight = channel_number<T>(a.at.weight, a, ONEPASS_ROLE_WEIGHT, channel, 1),
          bias = channel_number<T>(a.at.bias, a, ONEPASS_ROLE_BIAS, channel, 0);
  const cell_numbers<C> with = {mean, (C)(row.by_z * rstd), rstd * weight,
                                (C)(row.by_z * row.offset + row.constant)};
  ((cell_numbers<C> *)a.numbers)[number] = with;
  if (a.before) ((C *)a.before)[number] = (C)(row.offset * weight + bias);
}

template <class C>
__device__ inline void save_row(const cells_args &a, int64_t batch, int64_t row, double mean,
                                C rstd) {
  if (a.at.mean) *cell_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, batch, row) = (C)mean;
  if (a.at.rstd) *cell_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, batch, row) = rstd;
}

template <class T>
__device__ inline void move_running(const cells_args &a, int64_t channel, double mean,
                                    double variance) {
  const double old_mean =
                   channel_number<T>(a.at.running_mean, a, ONEPASS_ROLE_RUNNING_MEAN, channel, 0),
               old_variance =
                   channel_number<T>(a.at.running_var, a, ONEPASS_ROLE_RUNNING_VAR, channel, 0);
  set_channel_number<T>(a.at.running_mean, a, ONEPASS_ROLE_RUNNING_MEAN, channel,
                        old_mean + a.momentum * (mean - old_mean));
  set_channel_number<T>(a.at.running_var, a, ONEPASS_ROLE_RUNNING_VAR, channel,
                        old_variance + a.momentum * (variance - old_variance));
}

__device__ inline double unbiased(const cells_args &a, double variance) {
  return variance * (double)a.row_elements / (double)(a.row_elements - 1);
}

/* group_norm: `merge_team` lanes have a row. */
template <class T>
__device__ inline void groups_merge_forward(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int team = a.merge_team, lane = threadIdx.x % team;
  const int64_t row = (int64_t)blockIdx.x * (CELLS_BLOCK / team) + threadIdx.x / team;
  const bool there = row < a.batches * a.groups;
  const int64_t batch = (unsigned)row / (unsigned)a.groups, group = row - batch * a.groups,
                width = a.group_channels;
  const double *sums =
      (const double *)a.sums + (batch * a.segments * a.channels + group * width) * 2;
  const int64_t parts = there ? width * a.segments : 0; /* segment by segment */
  plain_sums<double, 2> mine;
  plain_sums<double, 1> apart;
  mine.clear();
  apart.clear();
#pragma unroll 2
  for (int64_t i = lane; i < parts; i += team) {
    const unsigned segment = (unsigned)i / (unsigned)width;
    const double *part = sums + (segment * a.channels + (i - segment * width)) * 2;
    mine.v[0] += part[0] * elements_of_part(a, segment);
    mine.v[1] += part[1];
  }
  mine = sum_lanes(mine, team);
  double mean = mine.v[0] * a.one_over_n;
#pragma unroll 2
  for (int64_t i = lane; i < parts; i += team) {
    const unsigned segment = (unsigned)i / (unsigned)width;
    const double *part = sums + (segment * a.channels + (i - segment * width)) * 2;
    apart.v[0] += (part[0] - mean) * (part[0] - mean) * elements_of_part(a, segment);
  }
  const double squares = mine.v[1] + sum_lanes(apart, team).v[0];
  double variance = squares * a.one_over_n;
  if (!there) return;
  if (a.given) { /* a group is a channel */
    mean = channel_number<T>(a.at.running_mean, a, ONEPASS_ROLE_RUNNING_MEAN, group, 0);
    variance = channel_number<T>(a.at.running_var, a, ONEPASS_ROLE_RUNNING_VAR, group, 0);
  }
  const channel_scale<C> result(a, mean, variance);
#pragma unroll 1
  for (int64_t i = lane; i < width; i += team)
    ((cell_numbers<C> *)a.numbers)[batch * a.channels + group * width + i] =
        forward_numbers<T>(a, group * width + i, result);
  if (lane != 0) return;
  save_row(a, batch, group, mean, result.scale);
  if (a.moves) {
    a.rows[row * 2] = mean;
    a.rows[row * 2 + 1] = unbiased(a, variance);
  }
}

/* `merge_cell` of these lanes have a cell at a time. What is left of a cell's sums for dweight and dbias
 * takes the place of those of its first segment. */
template <class T>
__device__ inline void groups_merge_backward(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  const int team = a.merge_team, lane = threadIdx.x % team;
  const int of_cell = a.merge_cell, within = lane % of_cell, at_once = team / of_cell;
  const int64_t row = (int64_t)blockIdx.x * (CELLS_BLOCK / team) + threadIdx.x / team;
  const bool there = row < a.batches * a.groups;
  const int64_t batch = (unsigned)row / (unsigned)a.groups, group = row - batch * a.groups,
                width = a.group_channels;
  C *sums = (C *)a.sums + (batch * a.segments * a.channels + group * width) * 3;
  plain_sums<double, 3> mine;
  mine.clear();
  for (int64_t first = 0; a.segments && first < width; first += at_once) {
    const int64_t i = first + lane / of_cell;
    plain_sums<double, 3> cell;
    cell.clear();
    if (there && i < width) {
#pragma unroll 2
      for (int64_t segment = within; segment < a.segments; segment += of_cell) {
#pragma unroll
        for (int k = 0; k < 3; k++) cell.v[k] += sums[(segment * a.channels + i) * 3 + k];
      }
    }
    cell = sum_lanes(cell, of_cell);
    if (!there || i >= width || within != 0) continue;
    const double weight =
        channel_number<T>(a.at.weight, a, ONEPASS_ROLE_WEIGHT, group * width + i, 1);
    mine.v[0] += weight * cell.v[0];
    mine.v[1] += weight * cell.v[1];
    mine.v[2] += cell.v[2];
    sums[i * 3] = (C)cell.v[0];
    sums[i * 3 + 1] = (C)cell.v[1];
  }
  mine = sum_lanes(mine, team);
  __syncwarp();
  if (!there) return;
  const C mean = *cell_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, batch, group),
          rstd = *cell_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, batch, group);
  const row_slopes slopes(a, rstd, mine.v[0], mine.v[1], mine.v[2]);
#pragma unroll 1
  for (int64_t i = lane; i < width; i += team) {
    store_backward<T>(a, batch * a.channels + group * width + i, group * width + i, mean, rstd,
                      slopes);
    if (a.segments)
      sums[i * 3 + 1] = (C)((double)sums[i * 3 + 1] + slopes.offset * (double)sums[i * 3]);
  }
}

/* The sums of the threads of a block that have the same channel: some lanes run across channels. */
template <class S>
__device__ inline S sum_across(S mine, S (&shared)[CELLS_WARPS][MERGE_LANES]) {
#pragma unroll
  for (int mask = MERGE_LANES; mask < WARP; mask *= 2) mine.merge(mine.of_lane(mask));
  if (threadIdx.x % WARP < MERGE_LANES) shared[threadIdx.x / WARP][threadIdx.x % WARP] = mine;
  __syncthreads();
  mine = shared[0][threadIdx.x % MERGE_LANES];
#pragma unroll
  for (int warp = 1; warp < CELLS_WARPS; warp++)
    mine.merge(shared[warp][threadIdx.x % MERGE_LANES]);
  return mine;
}

/* batch_norm: a row is a channel. */
template <class T>
__device__ inline void channels_merge_forward(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<double, 2> of_sums[CELLS_WARPS][MERGE_LANES];
  __shared__ plain_sums<double, 1> of_apart[CELLS_WARPS][MERGE_LANES];
  const int first = threadIdx.x / MERGE_LANES;
  const int64_t channel = (int64_t)blockIdx.x * MERGE_LANES + threadIdx.x % MERGE_LANES;
  const double *sums = (const double *)a.sums + channel * 2;
  const int64_t parts = channel < a.channels ? a.parts : 0;
  plain_sums<double, 2> mine;
  plain_sums<double, 1> apart;
  mine.clear();
  apart.clear();
#pragma unroll 4
  for (int64_t p = first; p < parts; p += CELLS_BLOCK / MERGE_LANES) {
    const double *part = sums + p * a.channels * 2;
    mine.v[0] += part[0] * elements_of_part(a, (unsigned)p % (unsigned)a.segments);
    mine.v[1] += part[1];
  }
  mine = sum_across(mine, of_sums);
  double mean = mine.v[0] * a.one_over_n;
#pragma unroll 4
  for (int64_t p = first; p < parts; p += CELLS_BLOCK / MERGE_LANES) {
    const double distance = sums[p * a.channels * 2] - mean;
    apart.v[0] += distance * distance * elements_of_part(a, (unsigned)p % (unsigned)a.segments);
  }
  const double squares = mine.v[1] + sum_across(apart, of_apart).v[0];
  double variance = squares * a.one_over_n;
  if (channel >= a.channels || first != 0) return;
  if (a.given) {
    mean = channel_number<T>(a.at.running_mean, a, ONEPASS_ROLE_RUNNING_MEAN, channel, 0);
    variance = channel_number<T>(a.at.running_var, a, ONEPASS_ROLE_RUNNING_VAR, channel, 0);
  }
  const channel_scale<C> result(a, mean, variance);
  ((cell_numbers<C> *)a.numbers)[channel] = forward_numbers<T>(a, channel, result);
  save_row(a, 0, channel, mean, result.scale);
  if (a.moves) move_running<T>(a, channel, mean, unbiased(a, variance));
}

template <class T>
__device__ inline void channels_merge_backward(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<double, 3> of_sums[CELLS_WARPS][MERGE_LANES];
  const int first = threadIdx.x / MERGE_LANES;
  const int64_t channel = (int64_t)blockIdx.x * MERGE_LANES + threadIdx.x % MERGE_LANES;
  const C *sums = (const C *)a.sums + channel * 3;
  const int64_t parts = channel < a.channels ? a.parts : 0;
  plain_sums<double, 3> mine;
  mine.clear();
#pragma unroll 4
  for (int64_t p = first; p < parts; p += CELLS_BLOCK / MERGE_LANES) {
#pragma unroll
    for (int k = 0; k < 3; k++) mine.v[k] += sums[p * a.channels * 3 + k];
  }
  mine = sum_across(mine, of_sums);
  if (channel >= a.channels || first != 0) return;
  const C mean = *cell_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, 0, channel),
          rstd = *cell_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, 0, channel);
  const double weight = channel_number<T>(a.at.weight, a, ONEPASS_ROLE_WEIGHT, channel, 1);
  const row_slopes slopes(a, rstd, weight * mine.v[0], weight * mine.v[1], mine.v[2]);
  store_backward<T>(a, channel, channel, mean, rstd, slopes);
  set_channel_number<T>(a.at.dweight, a, ONEPASS_ROLE_DWEIGHT, channel,
                        mine.v[1] + slopes.offset * mine.v[0]);
  set_channel_number<T>(a.at.dbias, a, ONEPASS_ROLE_DBIAS, channel, mine.v[0]);
}

/* group_norm: what is summed over batches. */
template <class T, bool BACKWARD>
__device__ inline void sum_batches(const cells_args &a) {
  typedef typename sums_of<T>::type C;
  __shared__ plain_sums<double, 2> of_sums[CELLS_WARPS][MERGE_LANES];
  const int first = threadIdx.x / MERGE_LANES;
  const int64_t channel = (int64_t)blockIdx.x * MERGE_LANES + threadIdx.x % MERGE_LANES;
  const int64_t batches = channel < a.channels ? a.batches : 0;
  plain_sums<double, 2> mine;
  mine.clear();
#pragma unroll 4
  for (int64_t batch = first; batch < batches; batch += CELLS_BLOCK / MERGE_LANES) {
    if (BACKWARD) {
      if (!a.segments) continue;
      const C *sums = (const C *)a.sums + (batch * a.segments * a.channels + channel) * 3;
      mine.v[0] += sums[0];
      mine.v[1] += sums[1];
    } else {
      mine.v[0] += a.rows[(batch * a.channels + channel) * 2];
      mine.v[1] += a.rows[(batch * a.channels + channel) * 2 + 1];
    }
  }
  mine = sum_across(mine, of_sums);
  if (channel >= a.channels || first != 0) return;
  if (BACKWARD) {
    set_channel_number<T>(a.at.dweight, a, ONEPASS_ROLE_DWEIGHT, channel, mine.v[1]);
    set_channel_number<T>(a.at.dbias, a, ONEPASS_ROLE_DBIAS, channel, mine.v[0]);
  } else {
    move_running<T>(a, channel, mine.v[0] / (double)a.batches, mine.v[1] / (double)a.batches);
  }
}

#endif
