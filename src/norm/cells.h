/* Normalizations by channel on a GPU, between launch_cells.c, which decides, cuda_cells.c, which
 * launches, and the kernels of cuda_cells*.cuh. Both C and CUDA C++ read this.
 *
 * x is [batches, channels, ...]; a *cell* is one channel of one batch. A row, which has one statistic, is
 * some neighbouring cells of a batch (group_norm) or all cells of a channel (batch_norm). Cells lie as
 *   runs      elements of a cell one after the other
 *   lanes     channels one after the other: lanes run across them
 *   strided   anyhow
 * and are done in up to four steps: gather (the sums of parts of cells), merge (the statistic of rows and
 * what follows for every cell), sum over batches (dweight, dbias, running statistics of group_norm), apply. */
#ifndef ONEPASS_NORM_CELLS_H
#define ONEPASS_NORM_CELLS_H

#include "core/tensor.h"
#include "cuda/divider.h"

enum { ONEPASS_OF_BATCHES, ONEPASS_OF_CHANNELS, ONEPASS_OF_POSITIONS };

typedef struct onepass_cells_args {
  onepass_buffers at;
  /* From batch to batch, channel to channel and (lanes) position to position. mean and rstd: from group to
   * group in place of channels; of batch_norm there is one batch of them. Lanes: a batch may stand for all
   * of them, if they lie one after the other. */
  int64_t stride[ONEPASS_ROLE_COUNT][3];
  onepass_walk spatial; /* strided: over the elements of a cell */
  int64_t batches, channels;
  int64_t positions; /* elements of a cell; lanes: of all batches if they are taken as one */
  int64_t groups;    /* of a batch; 0: a row is a channel of all batches */
  int64_t group_channels;
  int64_t row_elements;
  double eps, momentum, one_over_n;
  int32_t f32_weights; /* weight, bias and so on are f32 though x is f16 or bf16 */
  int32_t activation;
  int32_t given;        /* the statistic is not that of x */
  int32_t direct;       /* ... and apply takes it from running_mean and running_var itself */
  int32_t streams;      /* results leave the cache first */
  int32_t reads_sum;    /* apply: sum holds x + residual already */
  int32_t moves;        /* running_mean and running_var are moved on */
  int32_t team;         /* runs: threads that share a part; lanes: lanes that run across channels */
  int32_t merge_team;   /* lanes that share a row of group_norm ... */
  int32_t merge_cell;   /* ... and those of them that share a cell */
  int64_t slice;        /* positions of a part */
  int64_t segments;     /* parts of a cell; 0: nothing is gathered */
  int64_t parts;        /* of a channel: segments of all (merged) batches */
  int64_t apply_slice;  /* lanes: positions of a block */
  int64_t range_cells;  /* runs: cells that lie one after the other: 1, a batch's or all */
  int64_t apply_pieces; /* runs: blocks of a range; lanes: of a batch */
  onepass_divider by_positions, by_channels, by_group;
  /* In the workspace. sums: [batch][segment][channel] of doubles (mean, squares) or, backward, of three
   * numbers of the type of sums. */
  void *sums;
  void *numbers; /* what apply does to a cell: [cell] or, of batch_norm, [channel] */
  void *before;  /* backward with an activation: see cell_numbers in cuda_cells.cuh */
  double *rows;  /* [row] of mean and variance, for the running statistics of group_norm */
} onepass_cells_args;

#endif
