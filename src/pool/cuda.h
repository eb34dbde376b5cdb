/* Between the pooling kernels and the code that launches them. Both C and CUDA C++ read this. */
#ifndef ONEPASS_POOL_CUDA_H
#define ONEPASS_POOL_CUDA_H

#include "core/tensor.h"
#include "cuda/divider.h"
#include "cuda/turns.h"

/* The argument of every kernel. A kernel makes lines of `outputs` elements from lines of `inputs`
 * elements: y from x, or dx from dy. */
typedef struct onepass_pool_args {
  const void *in;
  void *out;
  onepass_walk lines;
  int32_t in_role, out_role;
  int64_t inputs, outputs;
  int64_t in_step, out_step; /* from one element of a line to the next */
  /* The pooling itself. */
  int64_t length, pooled, kernel, stride, padding;
  int32_t backward, count_include_pad;
  int32_t uniform; /* every window is divided by the kernel */
  double one_over_kernel;
  /* windows: outputs begin..end need no element beyond the line and no divisor but the kernel. */
  int64_t plain_begin, plain_end;
  /* windows: a line's slots, or by doubling its outputs, are shared by `tiles` blocks, or a block has several lines. */
  int32_t tiles, lanes, lines_of_block;
  int32_t tile; /* outputs of a block */
  onepass_ahead ahead;
} onepass_pool_args;

/* The argument of the kernels of points, which make lines that lie back to back, `outputs` each, from others of `inputs`
 * that are in_step apart. Positions in a line have 32 bits; where `total` is more than `most`, blocks first look for the
 * line they begin in. */
typedef struct onepass_point_args {
  const void *in;
  void *out;
  int64_t total, in_step;
  int32_t outputs, inputs, step,
      offset; /* output o begins at input o * step + offset, or backward at stride `step` */
  onepass_divider by_outputs, by_stride;
  float one_over_kernel_f32;
  int32_t kernel, padding, most;
  int32_t uniform, count_include_pad; /* as above */
  double one_over_kernel;
  onepass_ahead ahead;
} onepass_point_args;

/* ---- Boxes: windows over up to three axes ------------------------------------------------------ */

/* The tensors of such a pooling, in this order wherever there is one of something for each. */
enum {
  ONEPASS_BOX_X,
  ONEPASS_BOX_Y,
  ONEPASS_BOX_INDICES,
  ONEPASS_BOX_DY,
  ONEPASS_BOX_DX,
  ONEPASS_BOX_TENSORS
};

enum { ONEPASS_BOX_AVG, ONEPASS_BOX_MAX, ONEPASS_BOX_LP };

typedef struct onepass_box_axis {
  int64_t kernel, stride, padding, dilation, extent, length, pooled; /* as in onepass_pool_axis */
  int64_t count;                     /* of what threads make: y's, or backward dx's */
  int64_t step[ONEPASS_BOX_TENSORS]; /* from one element to the next */
  /* Output o's window holds element e if e * element_scale - o * output_scale + ahead is at least 0, less than `reach`
   * and a multiple of the dilation. The second is the stride unless windows are adaptive. */
  int64_t element_scale, output_scale, ahead, reach;
  onepass_divider by_count, by_output_scale, by_dilation, by_pooled;
} onepass_box_axis;

/* Walks: along the first of the three axes, `chunk` of its outputs a thread. A block has `lanes` neighbours along the
 * last axis, of several rows. Slides: `by_high`; `even`: pairs of outputs are words. Returns and drops: `even`, of dx. */
typedef struct onepass_box_walk {
  int32_t lanes; /* a power of two */
  int32_t chunk;
  int32_t ring;   /* planes that a thread remembers, or 0 where windows are of one plane */
  int32_t steady; /* rows of inputs are whole packs of 16 bytes apart */
  int32_t even;   /* rows of outputs begin at multiples of 16 bytes, and are made of such */
  int64_t blocks_wide, chunks;
  onepass_divider by_blocks_wide, by_chunks, by_high;
  uint64_t gaps;         /* bit i: planes i more than a multiple of the stride are in no window */
  int64_t index_step[3]; /* what a step along an axis adds to an index */
} onepass_box_walk;

/* Bands and slides: a row of outputs is `strips` of `outputs` each, and a strip is made by `lanes` threads. */
typedef struct onepass_box_strips {
  int32_t outputs, strips;
  onepass_divider by_strips, by_groups;
  int32_t lanes; /* a power of two */
  int32_t
      at_once; /* bands: rows of inputs that are asked for at a time, if there are registers for them */
  int32_t rows,
      groups; /* slides: rows of outputs that a strip has, and how many times as many there are */
  int32_t by_packs; /* slides: rows are whole packs of 16 bytes apart, and begin with one */
} onepass_box_strips;

/* Drops: a block has `planes` whole planes of dx, or a tile of one that lies side by side in memory. */
typedef struct onepass_box_drops {
  int32_t planes;
  int32_t tile[3], tiles[3]; /* elements along each axis, and how many tiles there are */
  int32_t classes[3];        /* outputs that many apart have windows with nothing in common */
} onepass_box_drops;

/* The argument of every kernel of boxes. What is not pooled has `outer` times `inner` positions.
 * Threads go through what they make in the order outer, inner, axes; or, with channels_last, outer,
 * axes, inner. */
typedef struct onepass_box_args {
  void *tensor[ONEPASS_BOX_TENSORS];
  onepass_box_axis axis[3];
  int64_t outer, inner;
  int64_t outer_step[ONEPASS_BOX_TENSORS], inner_step[ONEPASS_BOX_TENSORS];
  onepass_divider by_inner;
  int32_t packs; /* returns: 16 bytes each, of a plane */
  onepass_divider by_packs;
  int32_t channels_last;
  /* Each group of blocks has `group` outer positions, so that 32 bits count what a group makes. */
  int64_t group, group_blocks;
  onepass_divider by_group_blocks;
  int32_t op; /* ONEPASS_BOX_AVG and so on, for kernels that are for all of them */
  int32_t adaptive, count_include_pad;
  int32_t many_terms; /* add up in double */
  int32_t uniform;    /* every sum is multiplied by `factor` */
  double factor;
  double divisor, p, elements;
  /* Threads that make an output together: a warp's or a block's. Where channels lie side by side, a
   * power of two that make team_lanes packs of 16 bytes of them: one of team_tiles that channels are. */
  int32_t team, team_lanes;
  int64_t team_tiles;
  onepass_box_walk walk;
  onepass_box_strips strips;
  onepass_box_drops drops;
} onepass_box_args;

#endif
