/* The part of a plan that a pooling on a GPU needs, and how it is chosen. */
#ifndef ONEPASS_POOL_PLAN_CUDA_H
#define ONEPASS_POOL_PLAN_CUDA_H

#include "cuda/ahead.h"
#include "cuda/device.h"
#include "pool/cuda.h"
#include "pool/pool.h"

typedef struct onepass_pool_launch {
  onepass_cuda_kernel kernel;
  const char *name; /* of the kernel function */
  int64_t grid;
  int32_t block;
  size_t shared;
  int32_t tiles, lanes, lines_of_block, tile; /* as in onepass_pool_args */
  bool many_terms;                            /* in an output that one thread adds up */
  onepass_point_args point_args;              /* points: but for the addresses */
} onepass_pool_launch;

/* False if the kernel that was asked for cannot do the problem. */
bool onepass_pool_choose_cuda(const onepass_pool_problem *problem, bool dense,
                              const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                              onepass_pool_launch *launch);

/* Whether every window is divided by the kernel's size. */
bool onepass_pool_is_uniform(const onepass_pool_problem *problem);

/* Elements of a line of y, or backward of dx. */
int64_t onepass_pool_outputs(const onepass_pool_problem *problem);

/* Everything but avg_pool1d as such: windows over up to three axes. */
typedef struct onepass_box_launch {
  onepass_cuda_kernel kernel;
  const char *name;
  int64_t grid;
  int32_t block;
  size_t shared;
  bool aligned;          /* every tensor must begin at a multiple of 16 bytes */
  onepass_box_args args; /* but for the addresses */
} onepass_box_launch;

/* False if the kernel that was asked for cannot do the problem. any_address: nothing may be taken for
 * granted about addresses; otherwise, a launch may come out as `aligned`. */
bool onepass_pool_choose_boxes(const onepass_pool_problem *problem, bool indices, bool any_address,
                               const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                               onepass_box_launch *launch);

/* A second launch, for buffers that the first is not for. */
typedef struct onepass_pool_cuda {
  onepass_cuda_launch step, other_step;
  onepass_ahead_roles ahead; /* lines */
  union {
    onepass_pool_launch launch;
    struct {
      onepass_box_launch box, other_box;
    };
  };
} onepass_pool_cuda;

struct onepass_plan;
onepass_status onepass_pool_plan_cuda(struct onepass_plan *plan, onepass_cuda_kernel asked);

#endif
