/* The part of a plan that a normalization on a GPU needs. */
#ifndef ONEPASS_NORM_PLAN_CUDA_H
#define ONEPASS_NORM_PLAN_CUDA_H

#include "cuda/ahead.h"
#include "norm/launch_cells.h"
#include "norm/launch_cuda.h"

enum { ONEPASS_NORM_MOST_STEPS = 4 };

/* One way to do it: its launches in their order. */
typedef struct onepass_norm_way {
  onepass_norm_launch launch;
  onepass_cuda_launch steps[ONEPASS_NORM_MOST_STEPS];
  int32_t step_count;
  onepass_ahead_roles ahead; /* of the first step */
} onepass_norm_way;

typedef struct onepass_norm_cuda {
  onepass_divider by_axis[ONEPASS_MAX_NDIM];      /* by the sizes of the axes of rows */
  onepass_norm_way ways[ONEPASS_NORM_ALIGNMENTS]; /* by where the buffers of a run start */
} onepass_norm_cuda;

/* The same of a normalization by channel; the second way is for buffers that are not aligned. */
typedef struct onepass_cells_way {
  onepass_cells_launch launch;
  onepass_cuda_launch steps[ONEPASS_NORM_MOST_STEPS];
  int32_t step_count;
} onepass_cells_way;

typedef struct onepass_cells_cuda {
  onepass_cells_way ways[2];
} onepass_cells_cuda;

struct onepass_plan;

/* Choose and load the kernels of a checked problem. */
onepass_status onepass_norm_plan_cuda(struct onepass_plan *plan, onepass_cuda_kernel asked);
onepass_status onepass_cells_plan_cuda(struct onepass_plan *plan, onepass_cuda_kernel asked);
/* Of a normalization by channel: as rows if that is possible, as cells otherwise. */
onepass_status onepass_groups_plan_cuda(struct onepass_plan *plan, onepass_cuda_kernel asked);

onepass_status onepass_cells_queue(const struct onepass_plan *plan, const onepass_buffers *buffers,
                                   char *workspace, void *stream);

#endif
