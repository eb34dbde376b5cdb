/* What a kernel does before its turn: it asks for all of its inputs, if there is so little that it mostly waits for memory, and
 * reads its arguments. */
#ifndef ONEPASS_CUDA_AHEAD_H
#define ONEPASS_CUDA_AHEAD_H

#include "core/tensor.h"
#include "cuda/device.h"
#include "cuda/turns.h"

typedef struct onepass_ahead_roles {
  bool arguments;
  int32_t count;
  onepass_role role[ONEPASS_AHEAD_MOST];
  int64_t bytes[ONEPASS_AHEAD_MOST];
} onepass_ahead_roles;

/* For a plan. Nothing if there are more blocks than a kernel has that may begin early, and no inputs if their threads would
 * have more than a few lines each. */
onepass_ahead_roles onepass_choose_ahead(const onepass_layouts *layouts, int64_t grid,
                                         int32_t block, int64_t few_blocks,
                                         const onepass_cuda_properties *device);

/* For a run: where they are. */
void onepass_find_ahead(const onepass_ahead_roles *roles, const onepass_buffers *buffers,
                        onepass_ahead *ahead);

#endif
