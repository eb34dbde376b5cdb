/* Between the pooling kernels and the code that launches them. Both C and CUDA C++ read this. */
#ifndef ONEPASS_POOL_CUDA_H
#define ONEPASS_POOL_CUDA_H

#include "core/tensor.h"

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
  /* windows: a line's slots are shared by `tiles` blocks, or a block has several lines. */
  int32_t tiles, lanes, lines_of_block;
  int32_t tile; /* outputs of a block */
} onepass_pool_args;

#endif
