/* How a GPU goes about a normalization: a pure function of the problem and the device. */
#ifndef ONEPASS_NORM_LAUNCH_CUDA_H
#define ONEPASS_NORM_LAUNCH_CUDA_H

#include "cuda/ahead.h"
#include "cuda/device.h"
#include "norm/cuda.h"
#include "norm/norm.h"

/* Where the buffers of x, y, dy, dx, weight and bias start. */
typedef enum onepass_norm_alignment {
  ONEPASS_NORM_ALIGNED, /* at multiples of 16 bytes */
  ONEPASS_NORM_ALIKE,   /* x, y, dy and dx equally far from multiples of 16 bytes */
  ONEPASS_NORM_ANYWHERE,
  ONEPASS_NORM_ALIGNMENTS
} onepass_norm_alignment;

/* How a thread goes along a row. */
typedef enum onepass_norm_width {
  ONEPASS_NORM_SCALAR, /* element by element */
  ONEPASS_NORM_VECTOR, /* 16 bytes at a time, every row being aligned */
  ONEPASS_NORM_PHASED  /* 16 aligned bytes at a time, wherever rows start */
} onepass_norm_width;

typedef struct onepass_norm_launch {
  onepass_cuda_kernel kernel;
  onepass_norm_width width; /* warps, blocks, passes, columns */
  int32_t packs;            /* warps, ring, stream: a thread has at most so many */
  bool full;                /* warps, blocks: each thread has as many */
  bool singles;             /* warps: rows are of one element, and a thread has some by itself */
  bool wide;                /* blocks: with shared memory */
  bool broad;    /* ring: the kernel with more packs a thread; blocks: with more threads */
  bool by_rows;  /* passes, forward: a block writes the same columns of several rows */
  bool merges;   /* passes: a launch of its own merges the sums of segments */
  bool squares;  /* the kernel that has loops for squares, without a mean and a bias */
  bool tide;     /* stream: slices come chunk by chunk */
  bool channels; /* blocks, tide: weights, if there are any, are those of channels, ... */
  onepass_divider by_channel; /* ... each of so many elements */
  int64_t grid;
  int32_t block;
  bool cooperative;
  size_t shared;
  /* As in onepass_norm_args. */
  int32_t team, chunks, ring, copies, lookahead, prefetched;
  int64_t slice, segments, row_group, copy_length;
  int64_t apply_grid; /* passes: blocks of the last kernel; strided: of the sums over rows */
  int64_t parts;      /* partial sums of dweight and dbias */
  int32_t adders;     /* threads that add up the parts of a column */
  bool direct;        /* there is one part, and it is dweight and dbias themselves */
  /* Where things are in the workspace. */
  size_t mail_at, mail_size, sums_at, dweight_at, dbias_at, weight_copies_at, bias_copies_at,
      workspace;
  int32_t launches;
} onepass_norm_launch;

/* `asked`: a kernel, or ONEPASS_CUDA_BEST. False if the kernel that was asked for cannot do the problem. */
bool onepass_norm_choose_cuda(const onepass_norm_problem *problem, const onepass_layouts *layouts,
                              const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                              onepass_norm_alignment alignment, onepass_norm_launch *launch);

/* What the first of its kernels does before its turn. */
onepass_ahead_roles onepass_norm_choose_ahead(const onepass_norm_launch *launch,
                                              const onepass_layouts *layouts,
                                              const onepass_cuda_properties *device);

/* "warps", "blocks", "ring", "stream", "passes", "columns", "strided", "windows" */
const char *onepass_cuda_kernel_name(onepass_cuda_kernel kernel);

#endif
