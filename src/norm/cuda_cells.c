/* A normalization by channel on a GPU: the names of its kernels, their arguments, and their order. */
#include <stdio.h>

#include "core/plan.h"
#include "norm/cells.h"

/* ---- Planning -------------------------------------------------------------------------------- */

static onepass_status add_step(const onepass_plan *plan, onepass_cells_way *way, const char *layout,
                               const char *step, const char *suffix, int64_t grid) {
  const onepass_norm_problem *p = &plan->problem.norm;
  if (grid == 0) return ONEPASS_OK;
  char name[64];
  snprintf(name, sizeof name, "cells_%s%s_%s%s", layout, step, p->backward ? "backward" : "forward",
           suffix);
  onepass_cuda_launch *launch = &way->steps[way->step_count++];
  *launch = (onepass_cuda_launch){.grid = grid, .block = ONEPASS_CELLS_BLOCK};
  return onepass_cuda_load(plan->device, ONEPASS_CUDA_NORM, p->type, name, launch);
}

static onepass_status add_steps(const onepass_plan *plan, onepass_cells_way *way) {
  const onepass_norm_problem *p = &plan->problem.norm;
  const onepass_cells_launch *l = &way->launch;
  const bool fast = l->kernel == ONEPASS_CUDA_PASSES || l->vector;
  const char *layout = l->kernel == ONEPASS_CUDA_PASSES    ? "runs_"
                       : l->kernel == ONEPASS_CUDA_STRIDED ? "strided_"
                       : l->vector                         ? "lanes_"
                                                           : "scalar_";
  const char *rows = p->op->view == ONEPASS_VIEW_GROUPS ? "groups_" : "channels_";
  const bool residual = onepass_has(&plan->layouts, ONEPASS_ROLE_RESIDUAL),
             dsum = onepass_has(&plan->layouts, ONEPASS_ROLE_DSUM);
  /* What a step has to do besides; the slow kernels always look. */
  const bool gathers_more = p->backward ? p->activation != 0 : residual;
  const bool applies_more = p->activation || residual || dsum;
  onepass_status status =
      add_step(plan, way, layout, "gather", fast && gathers_more ? "_fused" : "", l->gather_grid);
  if (status == ONEPASS_OK) status = add_step(plan, way, rows, "merge", "", l->merge_grid);
  if (status == ONEPASS_OK) status = add_step(plan, way, "", "sum_batches", "", l->sum_grid);
  if (status != ONEPASS_OK) return status;
  return add_step(plan, way, layout, "apply", fast && applies_more ? "_fused" : "", l->apply_grid);
}

/* ---- Running --------------------------------------------------------------------------------- */

static bool is_whole(int role) {
  return role == ONEPASS_ROLE_X || role == ONEPASS_ROLE_Y || role == ONEPASS_ROLE_DY ||
         role == ONEPASS_ROLE_DX || role == ONEPASS_ROLE_RESIDUAL || role == ONEPASS_ROLE_SUM ||
         role == ONEPASS_ROLE_DSUM;
}

static bool is_aligned(const onepass_buffers *buffers) {
  uintptr_t all = 0;
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (is_whole(role)) all |= (uintptr_t)onepass_buffer(buffers, role);
  }
  return all % 16 == 0;
}

static void set_strides(const onepass_plan *plan, const onepass_cells_launch *l,
                        onepass_cells_args *args) {
  const onepass_norm_problem *p = &plan->problem.norm;
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!onepass_has(&plan->layouts, role)) continue;
    int64_t *stride = args->stride[role];
    const int64_t *given = plan->layouts.of[role].stride;
    if (is_whole(role)) {
      stride[ONEPASS_OF_BATCHES] = l->as_one ? 0 : p->cells.stride[0][role];
      stride[ONEPASS_OF_CHANNELS] = p->cells.stride[1][role];
      stride[ONEPASS_OF_POSITIONS] = p->spatial.count == 1 || p->spatial.ndim == 0
                                         ? p->cells.stride[0][role]
                                         : p->spatial.stride[0][role];
    } else if (plan->layouts.of[role].ndim == 2) { /* mean and rstd of groups */
      stride[ONEPASS_OF_BATCHES] = given[0];
      stride[ONEPASS_OF_CHANNELS] = given[1];
    } else {
      stride[ONEPASS_OF_CHANNELS] = given[0];
    }
  }
}

onepass_status onepass_cells_queue(const onepass_plan *plan, const onepass_buffers *buffers,
                                   char *workspace, void *stream) {
  const onepass_norm_problem *p = &plan->problem.norm;
  const onepass_cells_way *way = &plan->cuda.cells.ways[is_aligned(buffers) ? 0 : 1];
  const onepass_cells_launch *l = &way->launch;
  const int64_t n = p->elements.count;
  onepass_cells_args args = {
      .at = *buffers,
      .spatial = p->spatial,
      .batches = p->batches,
      .channels = p->channels,
      .positions = l->positions,
      .groups = l->direct ? 0 : p->groups, /* directly, all batches have the same numbers */
      .group_channels = p->groups ? p->channels / p->groups : 1,
      .row_elements = n,
      .eps = p->eps,
      .momentum = p->momentum,
      /* Rows of nothing have no mean, and no gradient either. */
      .one_over_n = n == 0 && p->backward ? 0 : 1 / (double)n,
      .f32_weights = p->weight_type != p->type,
      .activation = p->activation,
      .given = p->use_running,
      .direct = l->direct,
      .streams = l->streams,
      .reads_sum = l->gather_grid && buffers->sum,
      .moves = !p->use_running && buffers->running_mean && p->batches > 0,
      .team = l->team,
      .merge_team = l->merge_team,
      .merge_cell = l->merge_cell,
      .slice = l->slice,
      .segments = l->segments,
      .parts = l->parts,
      .apply_slice = l->apply_slice,
      .apply_pieces = l->apply_pieces,
      .range_cells = l->range_cells,
      .by_positions = onepass_divider_of(l->positions),
      .by_channels = onepass_divider_of(p->channels),
      .by_group = onepass_divider_of(p->groups ? p->channels / p->groups : 1),
      .sums = workspace + l->sums_at,
      .numbers = workspace + l->numbers_at,
      .before = p->backward ? workspace + l->before_at : NULL,
      .rows = (double *)(workspace + l->rows_at)};
  set_strides(plan, l, &args);
  onepass_status status = ONEPASS_OK;
  for (int i = 0; i < way->step_count && status == ONEPASS_OK; i++) {
    status = onepass_cuda_queue(&way->steps[i], &args, stream);
  }
  return status;
}

onepass_status onepass_cells_plan_cuda(onepass_plan *plan, onepass_cuda_kernel asked) {
  const onepass_norm_problem *p = &plan->problem.norm;
  onepass_cells_cuda *ways = &plan->cuda.cells;
  const onepass_cuda_properties *device = onepass_cuda_properties_of(plan->device);
  for (int i = 0; i < 2; i++) {
    onepass_cells_way *way = &ways->ways[i];
    if (!onepass_cells_choose(p, &plan->layouts, device, asked, i == 0, &way->launch)) {
      return onepass_fail(ONEPASS_BAD_OPTION,
                          "options.cuda_kernel = %d (%s): expected one that can do this %s",
                          (int)asked, onepass_cuda_kernel_name(asked), p->op->name);
    }
    const onepass_status status = add_steps(plan, way);
    if (status != ONEPASS_OK) return status;
    if (way->launch.workspace > plan->info.workspace) plan->info.workspace = way->launch.workspace;
  }
  const onepass_cells_launch *l = &ways->ways[0].launch;
  plan->info.kernel = onepass_cuda_kernel_name(l->kernel);
  plan->info.grid = l->gather_grid ? l->gather_grid : l->apply_grid;
  plan->info.block = ONEPASS_CELLS_BLOCK;
  plan->info.cluster = 1;
  plan->info.launches = ways->ways[0].step_count;
  plan->queue = onepass_cells_queue;
  return ONEPASS_OK;
}
