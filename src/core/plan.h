/* A plan: a checked problem of one family and what it takes to run it. */
#ifndef ONEPASS_CORE_PLAN_H
#define ONEPASS_CORE_PLAN_H

#include "core/status.h"
#include "core/tensor.h"
#include "norm/norm.h"
#include "norm/plan_cuda.h"
#include "pool/plan_cuda.h"
#include "pool/pool.h"

/* Plans own nothing but themselves, so the one-call helpers keep them on the stack; making one is
 * cheap enough (docs/design.md has the time) that nothing needs to be cached. */
struct onepass_plan {
  onepass_layouts layouts;
  onepass_plan_info info;
  /* On the CPU. */
  void (*run)(const onepass_plan *plan, const onepass_buffers *buffers, void *workspace);
  /* On a CUDA device, which is NULL otherwise. */
  const onepass_cuda_device *device;
  onepass_status (*queue)(const onepass_plan *plan, const onepass_buffers *buffers, char *workspace,
                          void *stream);
  const onepass_in_place *in_place;
  int in_place_count;
  union {
    onepass_norm_problem norm;
    onepass_pool_problem pool;
  } problem;
  union {
    struct { /* groups of channels may be done either way */
      onepass_norm_cuda norm;
      onepass_cells_cuda cells;
    };
    onepass_pool_cuda pool;
  } cuda;
};

/* Fill in a plan; src/norm/problem.c and src/pool/problem.c. */
onepass_status onepass_make_norm(onepass_plan *plan, const onepass_norm *norm,
                                 const onepass_tensors *tensors, const onepass_options *options);
onepass_status onepass_make_pool(onepass_plan *plan, const onepass_pool *pool,
                                 const onepass_tensors *tensors, const onepass_options *options);

/* The options, checked and with their defaults filled in. */
typedef struct onepass_choices {
  int threads;
  onepass_vector_level level;
  bool reference;
  onepass_cuda_kernel cuda_kernel;
} onepass_choices;
onepass_status onepass_read_options(const onepass_options *options, onepass_choices *choices);

/* Open the plan's device if it is a CUDA device; checks that the options make sense there. */
onepass_status onepass_open_plan_device(onepass_plan *plan, const onepass_choices *choices);

/* Bytes of all tensors of a plan, each counted once: what must move. */
int64_t onepass_bytes_to_move(const onepass_layouts *layouts);

/* Few enough threads that each has work worth waking it for. */
int onepass_threads_worth(int threads, int64_t bytes);

#endif
