/* Between launch_cuda.c, which decides, cuda.c, which launches, and the kernels. Both C and CUDA
 * C++ read this. */
#ifndef ONEPASS_NORM_CUDA_H
#define ONEPASS_NORM_CUDA_H

#include "cuda/divider.h"
#include "cuda/turns.h"
#include "norm/norm.h"

/* The sums of a row, of a part of it, or what follows from them, as the kernels exchange them.
 *             forward                       backward
 *   ABS       a: sum of |x|                 a: sum of |x|   b: sum of dy x
 *   MOMENTS   a: mean  b: sum of (x-mean)²  a: sum of g = dy w   b: sum of g z   c: sum of z,
 *                                           with z = (x - saved mean) * rstd */
enum { ONEPASS_NORM_MOST_SUMS = 3 };

/* Rows of a team, more than can be between gathering and writing. Of twice as many a block's letters are kept, so that
 * none is written over before all have read it. */
enum { ONEPASS_NORM_STREAM_ROWS = 32, ONEPASS_NORM_TIDE_ROWS = 8 };
#define ONEPASS_NORM_MAIL_SLOTS(rows) (2 * (rows))

/* What the statistic is made with, in a type of sums. */
typedef struct onepass_norm_numbers32 {
  float eps, share, one_over_n;
} onepass_norm_numbers32;

/* The argument of every kernel; each uses its part. What most use is side by side: a kernel waits for every line of it that
 * it reads first. */
typedef struct onepass_norm_args {
  onepass_ahead ahead;
  int32_t few_blocks; /* for let_next_begin */
  uint32_t zero;      /* for widen_anew */
  onepass_buffers at;
  double eps;
  double share; /* of an element in the statistic: 1/n for a mean, 1 for a sum */
  double one_over_n;
  onepass_norm_numbers32
      f32;             /* the same three: converting them would take a kernel as long as a row */
  int32_t denominator; /* MOMENTS: an onepass_denominator */
  int32_t activation;  /* an onepass_activation */
  int32_t fused;       /* there is a residual or an activation */
  int32_t clamp;       /* the denominator is not less than eps, rather than eps more */
  int32_t
      team; /* lanes (warps) or blocks (stream, tide) that share a row; lanes side by side (columns); threads that share a column's
                        parts */
  int32_t chunks;       /* wide, columns: packs of a thread in shared memory */
  int32_t ring;         /* stream: rows in shared memory; tide: chunks */
  int32_t copies;       /* stream, tide: of a letter */
  int32_t f32_weights;  /* weight, bias, dweight and dbias are f32 though x is f16 or bf16 */
  int32_t narrow_parts; /* warps, ring: there is one part, which is of x's type */
  int32_t
      aligned; /* ring, stream, wide: every row starts at a multiple of 16 bytes; singles: rows are side by side */
  int32_t lookahead;  /* stream: rows that are gathered before a row's sums are waited for;
                             * blocks: how far ahead the row is that is asked for */
  int32_t prefetched; /* stream: the row that comes to the second-level cache is so many behind the
                             * one that was asked for */
  int32_t groups;     /* weights by channel: row r is group r % groups of a batch, ... */
  int32_t group_channels;     /* ... which has so many channels, ... */
  onepass_divider by_channel; /* ... each of so many elements */
  int64_t slice;              /* elements of a row that a block has */
  int64_t
      segments; /* passes: of a row; columns: strips side by side; sums of dweight: partial sums */
  int64_t row_group; /* passes: rows whose dweight is summed, or weights are read, by one block */
  unsigned long long *mail;          /* stream, tide */
  double *sums;                      /* passes, strided: sums or coefficients of rows */
  void *dweight_parts, *dbias_parts; /* partial sums, in the type of sums, part after part */
  /* phased: where rows start anywhere, the packs of weight and bias are in the same place of 16 bytes in one of so many
   * copies, each an element further on than the one before, and so long. 0: there are none. */
  void *weight_copies, *bias_copies;
  int64_t copy_length;
  onepass_walk rows, elements;
  onepass_divider by_axis[ONEPASS_MAX_NDIM]; /* by the sizes of the axes of rows */
} onepass_norm_args;

#endif
