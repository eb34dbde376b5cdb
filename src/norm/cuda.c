/* A normalization on a GPU: the names of its kernels, their arguments, and their order. */
#include "norm/cuda.h"

#include <stdio.h>
#include <string.h>

#include "core/plan.h"

enum { SUM_PARTS_BLOCK = 256, MERGE_BLOCK = 256, MERGE_ROWS = 8, SHIFT_BLOCK = 256 };

typedef struct naming {
  const onepass_plan *plan;
  const char *statistic;
  const char *direction;
  const char *fused; /* "_fused", or nothing */
} naming;

static naming name_kernels(const onepass_plan *plan) {
  const onepass_norm_problem *p = &plan->problem.norm;
  naming names = {.plan = plan, .direction = p->backward ? "backward" : "forward"};
  const unsigned extra = ONEPASS_BIT(ONEPASS_ROLE_RESIDUAL) | ONEPASS_BIT(ONEPASS_ROLE_DSUM);
  names.fused = p->activation || (plan->layouts.present & extra) ? "_fused" : "";
  names.statistic = p->op->statistic == ONEPASS_STATISTIC_ABS ? "abs" : "moments";
  return names;
}

static onepass_status add_step(const onepass_plan *plan, onepass_norm_way *way, const char *name,
                               onepass_cuda_launch step) {
  const onepass_status status =
      onepass_cuda_load(plan->device, ONEPASS_CUDA_NORM, plan->problem.norm.type, name, &step);
  way->steps[way->step_count++] = step;
  return status;
}

static onepass_status add_main_step(const naming *n, onepass_norm_way *way) {
  const onepass_norm_launch *l = &way->launch;
  const onepass_norm_problem *p = &n->plan->problem.norm;
  const bool moments = p->op->statistic == ONEPASS_STATISTIC_MOMENTS;
  const char *width = l->width == ONEPASS_NORM_VECTOR ? "vector" : "scalar";
  /* Kernels that hold weights as they are in memory come in two kinds. */
  const char *weights = l->channels                            ? "_channels"
                        : moments && p->weight_type != p->type ? "_f32"
                                                               : "";
  const onepass_cuda_launch step = {
      .grid = l->grid, .block = l->block, .cooperative = l->cooperative, .shared = l->shared};
  const char *statistic = l->squares ? "squares" : n->statistic;
  char name[64];
  switch (l->kernel) {
    case ONEPASS_CUDA_WARPS:
      if (l->singles) {
        snprintf(name, sizeof name, "%s_singles_%s", statistic, n->direction);
        break;
      }
      snprintf(name, sizeof name, "%s_warps_%s_%s_%d%s%s%s", statistic, n->direction, width,
               (int)l->packs, n->fused, l->full ? "_full" : "",
               l->width == ONEPASS_NORM_VECTOR ? weights : "");
      break;
    case ONEPASS_CUDA_BLOCKS:
      snprintf(name, sizeof name, "%s_%s%s%s", statistic,
               l->wide                           ? "wide_forward"
               : l->width == ONEPASS_NORM_PHASED ? "phased_forward"
               : l->packs == 8                   ? "blocks_forward_long"
               : l->packs == 2                   ? "blocks_forward_thin"
               : l->full                         ? "blocks_forward_late_full"
               : l->broad                        ? "blocks_forward_late"
                                                 : "blocks_forward",
               n->fused, weights);
      break;
    case ONEPASS_CUDA_RING:
      snprintf(name, sizeof name, "%s_ring_%s_%s%s", statistic, n->direction,
               l->broad ? "broad" : "narrow", weights);
      break;
    case ONEPASS_CUDA_STREAM:
      snprintf(name, sizeof name, "%s_%s_%s%s", n->statistic, l->tide ? "tide" : "stream",
               n->direction, weights);
      break;
    case ONEPASS_CUDA_COLUMNS:
      snprintf(name, sizeof name, "%s_columns_%s_%s", statistic, n->direction, width);
      break;
    default:
      snprintf(name, sizeof name, "%s_strided_%s%s", n->statistic, n->direction, n->fused);
  }
  return add_step(n->plan, way, name, step);
}

static onepass_status add_passes(const naming *n, onepass_norm_way *way) {
  const onepass_norm_launch *l = &way->launch;
  const onepass_norm_problem *p = &n->plan->problem.norm;
  const char *width = *n->fused                         ? n->fused
                      : !p->backward                    ? ""
                      : l->width == ONEPASS_NORM_VECTOR ? "_vector"
                                                        : "_scalar";
  char name[64];
  snprintf(name, sizeof name, "%s_gather_%s%s", n->statistic, n->direction, width);
  onepass_status status =
      add_step(n->plan, way, name, (onepass_cuda_launch){.grid = l->grid, .block = l->block});
  if (status != ONEPASS_OK) return status;
  if (l->merges) {
    snprintf(name, sizeof name, "%s_merge_%s", n->statistic, n->direction);
    const int64_t merging = (p->rows.count + MERGE_ROWS - 1) / MERGE_ROWS;
    status =
        add_step(n->plan, way, name, (onepass_cuda_launch){.grid = merging, .block = MERGE_BLOCK});
    if (status != ONEPASS_OK) return status;
  }
  snprintf(name, sizeof name, "%s_apply_%s%s%s", n->statistic, n->direction, width,
           l->by_rows ? "_rows" : "");
  return add_step(n->plan, way, name,
                  (onepass_cuda_launch){.grid = l->apply_grid, .block = l->block});
}

/* What strided rows need before dx is written, which may be over x or dy. */
static onepass_status add_strided_sums(const naming *n, onepass_norm_way *way) {
  const onepass_norm_launch *l = &way->launch;
  const onepass_status status = add_step(n->plan, way, "moments_offsets",
                                         (onepass_cuda_launch){.grid = l->grid, .block = l->block});
  if (status != ONEPASS_OK) return status;
  return add_step(n->plan, way, *n->fused ? "moments_strided_sums_fused" : "moments_strided_sums",
                  (onepass_cuda_launch){.grid = l->apply_grid, .block = l->block});
}

/* Of weight and bias, before rows that start anywhere. */
static onepass_status add_copies(const naming *n, onepass_norm_way *way) {
  const onepass_norm_problem *p = &n->plan->problem.norm;
  const int64_t threads = 2 * way->launch.copy_length;
  return add_step(n->plan, way,
                  p->weight_type != p->type ? "moments_shift_weights_f32" : "moments_shift_weights",
                  (onepass_cuda_launch){.grid = (threads + SHIFT_BLOCK - 1) / SHIFT_BLOCK,
                                        .block = SHIFT_BLOCK});
}

static onepass_status add_sum_of_parts(const naming *n, onepass_norm_way *way) {
  const int64_t columns = n->plan->problem.norm.elements.count;
  return add_step(
      n->plan, way, "moments_sum_parts",
      (onepass_cuda_launch){
          .grid = 2 * ((columns * way->launch.adders + SUM_PARTS_BLOCK - 1) / SUM_PARTS_BLOCK),
          .block = SUM_PARTS_BLOCK});
}

static onepass_status add_steps(const onepass_plan *plan, onepass_norm_way *way) {
  const naming names = name_kernels(plan);
  const onepass_norm_problem *p = &plan->problem.norm;
  const bool sums_weights = (plan->layouts.written & (ONEPASS_BIT(ONEPASS_ROLE_DWEIGHT) |
                                                      ONEPASS_BIT(ONEPASS_ROLE_DBIAS))) != 0;
  const bool saves = (plan->layouts.written &
                      (ONEPASS_BIT(ONEPASS_ROLE_MEAN) | ONEPASS_BIT(ONEPASS_ROLE_RSTD))) != 0;
  onepass_status status = ONEPASS_OK;
  const bool has_rows = p->rows.count > 0 && (p->elements.count > 0 || saves);
  if (has_rows && way->launch.kernel == ONEPASS_CUDA_PASSES) {
    status = add_passes(&names, way);
  } else if (has_rows) {
    if (way->launch.kernel == ONEPASS_CUDA_STRIDED && sums_weights) {
      status = add_strided_sums(&names, way);
    }
    if (way->launch.copy_length) status = add_copies(&names, way);
    if (status == ONEPASS_OK) status = add_main_step(&names, way);
  }
  if (status == ONEPASS_OK && sums_weights && p->elements.count > 0 && !way->launch.direct) {
    status = add_sum_of_parts(&names, way);
  }
  way->ahead = onepass_norm_choose_ahead(&way->launch, &plan->layouts,
                                         onepass_cuda_properties_of(plan->device));
  return status;
}

/* ---- Running --------------------------------------------------------------------------------- */

static onepass_norm_alignment alignment_of(const onepass_buffers *buffers) {
  const void *const shaped[] = {buffers->x,        buffers->y,   buffers->dy,  buffers->dx,
                                buffers->residual, buffers->sum, buffers->dsum};
  const uintptr_t x = (uintptr_t)buffers->x;
  uintptr_t all = (uintptr_t)buffers->weight | (uintptr_t)buffers->bias, apart = 0;
  for (size_t i = 0; i < sizeof shaped / sizeof *shaped; i++) {
    if (!shaped[i]) continue;
    all |= (uintptr_t)shaped[i];
    apart |= (uintptr_t)shaped[i] - x;
  }
  if (all % 16 == 0) return ONEPASS_NORM_ALIGNED;
  return apart % 16 == 0 ? ONEPASS_NORM_ALIKE : ONEPASS_NORM_ANYWHERE;
}

static onepass_status queue_norm(const onepass_plan *plan, const onepass_buffers *buffers,
                                 char *workspace, void *stream) {
  const onepass_norm_problem *p = &plan->problem.norm;
  const onepass_norm_way *way = &plan->cuda.norm.ways[alignment_of(buffers)];
  const onepass_norm_launch *l = &way->launch;
  const bool sums_weights = (buffers->dweight || buffers->dbias) && !l->direct;
  onepass_norm_args args = {
      .few_blocks = sums_weights ? ONEPASS_FEW_BLOCKS_OF_PARTS
                    : l->singles ? ONEPASS_FEW_BLOCKS_OF_SINGLES
                                 : ONEPASS_FEW_BLOCKS,
      .at = *buffers,
      .rows = p->rows,
      .elements = p->elements,
      .eps = p->eps,
      .share = p->divide_by_count ? p->one_over_n : 1,
      .one_over_n = p->one_over_n,
      .f32 = {.eps = (float)p->eps,
              .share = p->divide_by_count ? (float)p->one_over_n : 1,
              .one_over_n = (float)p->one_over_n},
      .denominator = (int32_t)p->op->denominator,
      .activation = (int32_t)p->activation,
      .fused = p->activation || buffers->residual,
      .clamp = p->clamp,
      .team = l->team,
      .chunks = l->chunks,
      .ring = l->ring,
      .copies = l->copies,
      .f32_weights = p->weight_type != p->type,
      .aligned = l->width == ONEPASS_NORM_VECTOR,
      .lookahead = l->lookahead,
      .prefetched = l->prefetched,
      .groups = (int32_t)p->groups,
      .group_channels = p->groups ? (int32_t)(p->channels / p->groups) : 1,
      .by_channel = l->by_channel,
      .slice = l->slice,
      .segments = l->segments,
      .row_group = l->row_group,
      .mail = (unsigned long long *)(workspace + l->mail_at),
      .sums = (double *)(workspace + l->sums_at),
      .dweight_parts = buffers->dweight ? workspace + l->dweight_at : NULL,
      .dbias_parts = buffers->dbias ? workspace + l->dbias_at : NULL,
      .weight_copies = buffers->weight ? workspace + l->weight_copies_at : NULL,
      .bias_copies = buffers->bias ? workspace + l->bias_copies_at : NULL,
      .copy_length = l->copy_length};
  memcpy(args.by_axis, plan->cuda.norm.by_axis, sizeof args.by_axis);
  if (l->direct) {
    args.dweight_parts = buffers->dweight;
    args.dbias_parts = buffers->dbias;
    args.narrow_parts = p->weight_type != onepass_type_of_sums(p->type);
  }
  onepass_find_ahead(&way->ahead, buffers, &args.ahead);
  onepass_status status = ONEPASS_OK;
  if (l->mail_size && way->step_count) {
    status = onepass_cuda_queue_zeros(args.mail, l->mail_size, stream);
  }
  for (int i = 0; i < way->step_count && status == ONEPASS_OK; i++) {
    if (sums_weights && i + 1 == way->step_count) {
      args.segments = l->parts;
      args.team = l->adders;
    }
    status = onepass_cuda_queue(&way->steps[i], &args, stream);
  }
  return status;
}

static void describe(onepass_plan *plan) {
  const onepass_norm_way *way = &plan->cuda.norm.ways[ONEPASS_NORM_ALIGNED];
  const onepass_norm_launch *l = &way->launch;
  plan->info.kernel = onepass_cuda_kernel_name(l->kernel);
  plan->info.grid = l->grid;
  plan->info.block = l->block;
  plan->info.cluster = 1;
  plan->info.shared = l->shared;
  plan->info.launches = way->step_count + (l->mail_size ? 1 : 0);
}

/* What the kernels would otherwise divide by, or for. */
static void find_dividers(onepass_plan *plan) {
  onepass_norm_problem *p = &plan->problem.norm;
  p->one_over_n = 1 / (double)p->elements.count;
  for (int axis = 0; axis < p->rows.ndim; axis++)
    plan->cuda.norm.by_axis[axis] = onepass_divider_of(p->rows.size[axis]);
}

onepass_status onepass_norm_plan_cuda(onepass_plan *plan, onepass_cuda_kernel asked) {
  onepass_norm_problem *p = &plan->problem.norm;
  onepass_norm_cuda *ways = &plan->cuda.norm;
  const onepass_cuda_properties *device = onepass_cuda_properties_of(plan->device);
  find_dividers(plan);
  for (int i = 0; i < ONEPASS_NORM_ALIGNMENTS; i++) {
    onepass_norm_way *way = &ways->ways[i];
    bool possible = onepass_norm_choose_cuda(p, &plan->layouts, device, asked, i, &way->launch);
    if (!possible && i == ONEPASS_NORM_ALIGNED) {
      return onepass_fail(ONEPASS_BAD_OPTION,
                          "options.cuda_kernel = %d (%s): expected one that can do this %s",
                          (int)asked, onepass_cuda_kernel_name(asked), p->op->name);
    }
    /* Where buffers turn out not to be aligned, another kernel may have to step in. */
    if (!possible) {
      onepass_norm_choose_cuda(p, &plan->layouts, device, ONEPASS_CUDA_BEST, i, &way->launch);
    }
    const onepass_status status = add_steps(plan, way);
    if (status != ONEPASS_OK) return status;
    if (way->launch.workspace > plan->info.workspace) plan->info.workspace = way->launch.workspace;
  }
  describe(plan);
  plan->queue = queue_norm;
  return ONEPASS_OK;
}

/* ---- Groups of channels as rows --------------------------------------------------------------- */

static onepass_status queue_groups(const onepass_plan *plan, const onepass_buffers *buffers,
                                   char *workspace, void *stream) {
  return (alignment_of(buffers) == ONEPASS_NORM_ALIGNED ? queue_norm : onepass_cells_queue)(
      plan, buffers, workspace, stream);
}

onepass_status onepass_groups_plan_cuda(onepass_plan *plan, onepass_cuda_kernel asked) {
  onepass_norm_problem *p = &plan->problem.norm;
  onepass_norm_way *way = &plan->cuda.norm.ways[ONEPASS_NORM_ALIGNED];
  const onepass_cuda_properties *device = onepass_cuda_properties_of(plan->device);
  const bool as_rows = p->op->view == ONEPASS_VIEW_GROUPS &&
                       onepass_norm_choose_cuda(p, &plan->layouts, device, asked,
                                                ONEPASS_NORM_ALIGNED, &way->launch);
  /* Cells in any case: buffers may turn out not to be aligned. */
  onepass_status status = onepass_cells_plan_cuda(plan, as_rows ? ONEPASS_CUDA_BEST : asked);
  if (status != ONEPASS_OK || !as_rows) return status;
  find_dividers(plan);
  way->launch.by_channel = onepass_divider_of(p->spatial.count);
  status = add_steps(plan, way);
  if (way->launch.workspace > plan->info.workspace) plan->info.workspace = way->launch.workspace;
  describe(plan);
  plan->queue = queue_groups;
  return status;
}
