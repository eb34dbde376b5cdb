/* Between launch_cuda.c, which decides, cuda.c, which launches, and the kernels. Both C and CUDA
 * C++ read this. */
#ifndef ONEPASS_NORM_CUDA_H
#define ONEPASS_NORM_CUDA_H

#include "core/tensor.h"

/* The sums of a row, of a part of it, or what follows from them, as the kernels exchange them.
 *             forward                       backward
 *   ABS       a: sum of |x|                 a: sum of |x|   b: sum of dy x
 *   MOMENTS   a: mean  b: sum of (x-mean)²  a: sum of g = dy w   b: sum of g z   c: sum of z,
 *                                           with z = (x - saved mean) * rstd */
enum { ONEPASS_NORM_MOST_SUMS = 3 };

/* A mailbox of the stream kernels holds words of 32 bits with a tag of 32 bits. */
enum { ONEPASS_NORM_MAIL_SLOTS = 8, ONEPASS_NORM_MOST_WORDS = 2 * ONEPASS_NORM_MOST_SUMS };

/* Slots of 16 bytes that a thread of the stream kernels moves at once. */
enum { ONEPASS_NORM_CHUNK_SLOTS = 4 };

/* The argument of every kernel; each uses its part. */
typedef struct onepass_norm_args {
  onepass_buffers at;
  onepass_walk rows, elements;
  double eps;
  double share; /* of an element in the statistic: 1/n for a mean, 1 for a sum */
  double one_over_n;
  int32_t team; /* lanes (warps) or blocks (stream) that share a row; threads that share a column's
                        parts */
  int32_t chunks;           /* stream: of a slice, at most */
  int32_t ring;             /* stream: chunks in shared memory */
  int32_t f32_weights;      /* weight, bias, dweight and dbias are f32 though x is f16 or bf16 */
  int32_t shared_weights;   /* stream: weight and bias wait in shared memory */
  int32_t lookahead;        /* stream: rows that are gathered before a row's sums are waited for */
  int64_t slice;            /* elements of a row that a block has */
  int64_t segments;         /* passes: of a row; sums of dweight: partial sums */
  int64_t row_group;        /* passes, backward: rows whose dweight is summed by one block */
  unsigned long long *mail; /* stream */
  double *sums;             /* passes, strided: sums or coefficients of rows */
  void *dweight_parts, *dbias_parts; /* partial sums, in the type of sums, part after part */
} onepass_norm_args;

#endif
