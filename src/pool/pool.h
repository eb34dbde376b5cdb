/*
 * The pooling family: a window slides along the last axis (later: axes) of the tensor, and every
 * line of the tensor is pooled by itself. Coordinates: output o looks at elements o * stride -
 * padding up to kernel further; elements outside 0..length are padding and count as zeros.
 */
#ifndef ONEPASS_POOL_POOL_H
#define ONEPASS_POOL_POOL_H

#include "core/tensor.h"

typedef struct onepass_pool_problem {
  const struct onepass_pool_kernels *kernels;
  bool backward;
  bool count_include_pad;
  bool stream; /* what moves exceeds the caches: write past them */
  int threads;
  onepass_type type;
  int64_t kernel, stride, padding;
  double one_over_kernel;
  int64_t length, pooled;         /* elements of a line before and after pooling */
  int64_t long_step, pooled_step; /* from one element of such a line to the next */
  onepass_walk lines;             /* over the lines, all axes but the last */
  int64_t segment;                /* elements of an output line that one task does */
  size_t scratch_size;            /* a worker */
} onepass_pool_problem;

/* The elements output o averages, without the padding, and what their sum is divided by. */
typedef struct onepass_window {
  int64_t begin, end;
  int64_t divisor;
} onepass_window;

static inline onepass_window onepass_window_of(const onepass_pool_problem *p, int64_t output) {
  int64_t begin = output * p->stride - p->padding, end = begin + p->kernel;
  if (end > p->length + p->padding)
    end = p->length + p->padding; /* ceil_mode: hangs over the end */
  const int64_t with_padding = end - begin;
  if (begin < 0) begin = 0;
  if (end > p->length) end = p->length;
  return (onepass_window){begin, end, p->count_include_pad ? with_padding : end - begin};
}

struct onepass_plan;
void onepass_pool_run_reference(const struct onepass_plan *plan, const onepass_buffers *buffers,
                                void *workspace);
void onepass_pool_run_cpu(const struct onepass_plan *plan, const onepass_buffers *buffers,
                          void *workspace);

/* Choose the kernels, threads and workspace of a checked problem; cpu.c. */
void onepass_pool_choose_cpu(struct onepass_plan *plan, int threads, onepass_vector_level level);

#endif
