/* A pooling on a GPU: its argument and its launch. */
#include "pool/cuda.h"

#include <string.h>

#include "core/plan.h"

/* ---- Running --------------------------------------------------------------------------------- */

/* Outputs begin..end whose inputs all exist and are all divided by the kernel. */
static void find_plain(const onepass_pool_problem *p, onepass_pool_args *args) {
  /* Windows first..last lie inside the line. */
  const int64_t first = (p->wide.padding + p->wide.stride - 1) / p->wide.stride;
  const int64_t room = p->wide.length - p->wide.kernel + p->wide.padding;
  const int64_t last = room < 0                                 ? -1
                       : room / p->wide.stride < p->wide.pooled ? room / p->wide.stride
                                                                : p->wide.pooled - 1;
  if (!p->backward) {
    args->plain_begin = first;
    args->plain_end = last + 1;
    return;
  }
  /* Elements whose windows are all among those, and exist. */
  args->plain_begin = first * p->wide.stride - p->wide.padding + p->wide.kernel - 1;
  args->plain_end = (last + 1) * p->wide.stride - p->wide.padding;
  if (args->plain_end > p->wide.length) args->plain_end = p->wide.length;
  if (last < first) args->plain_end = args->plain_begin;
}

static onepass_status queue_points(const onepass_plan *plan, const onepass_buffers *buffers,
                                   char *workspace, void *stream) {
  const bool backward = plan->problem.pool.backward;
  onepass_point_args args = plan->cuda.pool.launch.point_args;
  (void)workspace;
  args.in = backward ? buffers->dy : buffers->x;
  args.out = backward ? buffers->dx : buffers->y;
  onepass_find_ahead(&plan->cuda.pool.ahead, buffers, &args.ahead);
  return onepass_cuda_queue(&plan->cuda.pool.step, &args, stream);
}

static onepass_status queue_pool(const onepass_plan *plan, const onepass_buffers *buffers,
                                 char *workspace, void *stream) {
  const onepass_pool_problem *p = &plan->problem.pool;
  const onepass_pool_launch *l = &plan->cuda.pool.launch;
  (void)workspace;
  if (!plan->cuda.pool.step.grid) return ONEPASS_OK;
  onepass_pool_args args = {.in = p->backward ? buffers->dy : buffers->x,
                            .out = p->backward ? buffers->dx : buffers->y,
                            .lines = p->planes,
                            .in_role = p->backward ? ONEPASS_ROLE_DY : ONEPASS_ROLE_X,
                            .out_role = p->backward ? ONEPASS_ROLE_DX : ONEPASS_ROLE_Y,
                            .inputs = p->backward ? p->wide.pooled : p->wide.length,
                            .outputs = onepass_pool_outputs(p),
                            .in_step = p->backward ? p->wide.pooled_step : p->wide.long_step,
                            .out_step = p->backward ? p->wide.long_step : p->wide.pooled_step,
                            .length = p->wide.length,
                            .pooled = p->wide.pooled,
                            .kernel = p->wide.kernel,
                            .stride = p->wide.stride,
                            .padding = p->wide.padding,
                            .backward = p->backward,
                            .count_include_pad = p->count_include_pad,
                            .uniform = onepass_pool_is_uniform(p),
                            .one_over_kernel = p->one_over_kernel,
                            .tiles = l->tiles,
                            .lanes = l->lanes,
                            .lines_of_block = l->lines_of_block,
                            .tile = l->tile};
  /* Many terms are added in double, as at the edges. */
  if (l->many_terms) {
    args.plain_begin = args.plain_end = 0;
  } else {
    find_plain(p, &args);
  }
  onepass_find_ahead(&plan->cuda.pool.ahead, buffers, &args.ahead);
  return onepass_cuda_queue(&plan->cuda.pool.step, &args, stream);
}

/* Elements of a line one after the other in both tensors; a single one is nowhere else. */
static bool is_dense(const onepass_pool_problem *p) {
  return (p->wide.long_step == 1 || p->wide.length == 1) &&
         (p->wide.pooled_step == 1 || p->wide.pooled == 1);
}

static onepass_status cannot_do(const onepass_plan *plan, onepass_cuda_kernel asked) {
  return onepass_fail(ONEPASS_BAD_OPTION,
                      "options.cuda_kernel = %d (%s): expected one that can do this %s", (int)asked,
                      onepass_cuda_kernel_name(asked), plan->info.op);
}

static void describe_launch(onepass_plan *plan, onepass_cuda_kernel kernel,
                            const onepass_cuda_launch *step) {
  plan->info.kernel = onepass_cuda_kernel_name(kernel);
  plan->info.grid = step->grid;
  plan->info.block = step->block;
  plan->info.cluster = 1;
  plan->info.shared = step->shared;
  plan->info.launches = step->grid ? 1 : 0;
}

static onepass_status plan_lines(onepass_plan *plan, onepass_cuda_kernel asked) {
  const onepass_pool_problem *p = &plan->problem.pool;
  onepass_pool_launch *l = &plan->cuda.pool.launch;
  const onepass_cuda_properties *device = onepass_cuda_properties_of(plan->device);
  if (!onepass_pool_choose_cuda(p, is_dense(p), device, asked, l)) return cannot_do(plan, asked);
  onepass_cuda_launch *step = &plan->cuda.pool.step;
  *step = (onepass_cuda_launch){.grid = l->grid, .block = l->block, .shared = l->shared};
  plan->cuda.pool.ahead =
      onepass_choose_ahead(&plan->layouts, l->grid, l->block, ONEPASS_FEW_BLOCKS, device);
  plan->queue = l->kernel == ONEPASS_CUDA_POINTS ? queue_points : queue_pool;
  describe_launch(plan, l->kernel, step);
  return onepass_cuda_load(plan->device, ONEPASS_CUDA_POOL, p->type, l->name, step);
}

/* ---- Boxes ------------------------------------------------------------------------------------- */

static bool is_aligned(const onepass_box_args *args) {
  uintptr_t bits = 0;
  for (int t = 0; t < ONEPASS_BOX_TENSORS; t++) {
    if (t != ONEPASS_BOX_INDICES) bits |= (uintptr_t)args->tensor[t];
  }
  return bits % 16 == 0;
}

static onepass_status queue_boxes(const onepass_plan *plan, const onepass_buffers *buffers,
                                  char *workspace, void *stream) {
  const onepass_pool_cuda *cuda = &plan->cuda.pool;
  (void)workspace;
  if (!cuda->step.grid) return ONEPASS_OK;
  onepass_box_args args = cuda->box.args;
  for (int t = 0; t < ONEPASS_BOX_TENSORS; t++) {
    static const onepass_role roles[] = {ONEPASS_ROLE_X, ONEPASS_ROLE_Y, ONEPASS_ROLE_INDICES,
                                         ONEPASS_ROLE_DY, ONEPASS_ROLE_DX};
    void *address = onepass_buffer(buffers, roles[t]);
    args.tensor[t] = onepass_has(&plan->layouts, roles[t]) ? address : NULL;
  }
  if (!cuda->box.aligned || is_aligned(&args)) {
    return onepass_cuda_queue(&cuda->step, &args, stream);
  }
  onepass_box_args other = cuda->other_box.args;
  memcpy(other.tensor, args.tensor, sizeof other.tensor);
  return onepass_cuda_queue(&cuda->other_step, &other, stream);
}

static onepass_status load_box(onepass_plan *plan, const onepass_box_launch *box,
                               onepass_cuda_launch *step) {
  *step = (onepass_cuda_launch){.grid = box->grid, .block = box->block, .shared = box->shared};
  return onepass_cuda_load(plan->device, ONEPASS_CUDA_POOL, plan->problem.pool.type, box->name,
                           step);
}

static onepass_status plan_boxes(onepass_plan *plan, onepass_cuda_kernel asked) {
  const onepass_pool_problem *p = &plan->problem.pool;
  onepass_pool_cuda *cuda = &plan->cuda.pool;
  const onepass_cuda_properties *device = onepass_cuda_properties_of(plan->device);
  const bool indices = onepass_has(&plan->layouts, ONEPASS_ROLE_INDICES);
  if (!onepass_pool_choose_boxes(p, indices, false, device, asked, &cuda->box)) {
    return cannot_do(plan, asked);
  }
  onepass_status status = load_box(plan, &cuda->box, &cuda->step);
  if (status == ONEPASS_OK && cuda->box.aligned) {
    /* Where buffers turn out not to be aligned, another kernel may have to step in. */
    if (!onepass_pool_choose_boxes(p, indices, true, device, asked, &cuda->other_box)) {
      onepass_pool_choose_boxes(p, indices, true, device, ONEPASS_CUDA_BEST, &cuda->other_box);
    }
    status = load_box(plan, &cuda->other_box, &cuda->other_step);
  }
  plan->queue = queue_boxes;
  describe_launch(plan, cuda->box.kernel, &cuda->step);
  return status;
}

onepass_status onepass_pool_plan_cuda(onepass_plan *plan, onepass_cuda_kernel asked) {
  return onepass_pool_is_plain(&plan->problem.pool) ? plan_lines(plan, asked)
                                                    : plan_boxes(plan, asked);
}
