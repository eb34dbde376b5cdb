/* What the choices of kernels for boxes have in common, and the ones that have files of their own. Each `choose`
 * is false if its kernels cannot do the problem, or would not be the fastest; the launch is then worth nothing
 * but for the arguments that describe the problem, which walks turn. */
#ifndef ONEPASS_POOL_LAUNCH_CUDA_BOXES_H
#define ONEPASS_POOL_LAUNCH_CUDA_BOXES_H

#include "pool/plan_cuda.h"

enum {
  ONEPASS_BOX_BLOCK = 256, /* threads, where a launch does not say otherwise */
  ONEPASS_BOX_WARP = 32,
  ONEPASS_BOX_MOST = 1 << 30 /* of what kernels count in 32 bits */
};

/* Whether positions in a plane, and all that is made of them on the way, stay below 2^31. */
bool onepass_box_is_narrow(const onepass_box_args *args);

/* What threads make in one outer position. */
double onepass_box_made_of_outer(const onepass_box_args *args, int64_t pack);

/* Whether an element is in two windows or fewer on average, and windows have no gaps. */
bool onepass_box_hardly_overlap(const onepass_box_args *args);

bool onepass_box_choose_walks(const onepass_pool_problem *p, bool indices, bool any_address,
                              const onepass_cuda_properties *device, onepass_box_launch *l);
bool onepass_box_choose_bands(const onepass_pool_problem *p, bool indices, bool any_address,
                              const onepass_cuda_properties *device, onepass_box_launch *l);
bool onepass_box_choose_returns(const onepass_pool_problem *p, bool any_address,
                                onepass_box_launch *l);
bool onepass_box_choose_drops(const onepass_pool_problem *p, bool any_address,
                              onepass_box_launch *l);
bool onepass_box_choose_channel_drops(const onepass_pool_problem *p,
                                      const onepass_cuda_properties *device, onepass_box_launch *l);

#endif
