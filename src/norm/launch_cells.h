/* How a GPU goes about a normalization by channel: a pure function of the problem and the device. */
#ifndef ONEPASS_NORM_LAUNCH_CELLS_H
#define ONEPASS_NORM_LAUNCH_CELLS_H

#include "cuda/device.h"
#include "norm/cells.h"
#include "norm/norm.h"

typedef struct onepass_cells_launch {
  onepass_cuda_kernel kernel; /* runs are ONEPASS_CUDA_PASSES, lanes ONEPASS_CUDA_COLUMNS */
  bool vector;                /* lanes: 16 bytes at a time */
  /* Blocks of each step; 0: there is no such step. All have ONEPASS_CELLS_BLOCK threads. */
  int64_t gather_grid, merge_grid, sum_grid, apply_grid;
  bool direct;  /* apply finds the statistic by itself */
  bool streams; /* x may still be in the cache when apply reads it */
  bool as_one;  /* lanes: positions of all batches are taken as those of one */
  /* As in onepass_cells_args. */
  int32_t team, merge_team, merge_cell;
  int64_t positions, slice, segments, parts, apply_slice, apply_pieces, range_cells;
  /* Where things are in the workspace. */
  size_t sums_at, numbers_at, before_at, rows_at, workspace;
} onepass_cells_launch;

enum { ONEPASS_CELLS_BLOCK = 256 };

/* `aligned`: all tensors shaped as x start at multiples of 16 bytes. `asked`: a kernel, or
 * ONEPASS_CUDA_BEST. False if the kernel that was asked for cannot do the problem. */
bool onepass_cells_choose(const onepass_norm_problem *problem, const onepass_layouts *layouts,
                          const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                          bool aligned, onepass_cells_launch *launch);

#endif
