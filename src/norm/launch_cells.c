/* How normalizations by channel are cut into blocks on a GPU. */
#include "norm/launch_cells.h"

#include "norm/cpu.h"

/* As in cuda_cells.cuh. */
enum {
  WARP = 32,
  SECTOR = 32,
  BLOCK = ONEPASS_CELLS_BLOCK,
  MERGE_LANES = 4,
  FORWARD_PACKS = 4, /* of a thread that writes runs; kernels.cu */
  BACKWARD_PACKS = 2,
  TEAM_SLOTS = 4,        /* of a lane, at least, before more lanes share a run */
  MOST_WARP_SLOTS = 512, /* of a run that no more than a warp shares */
  MOST_OF_LANE = 64      /* positions */
};
static const int64_t MOST_CELLS = 1 << 30, MOST_POSITIONS = 1 << 30, MOST_PARTS_OF_ROW = 2048;

typedef struct choice {
  const onepass_norm_problem *p;
  const onepass_layouts *layouts;
  int64_t chip; /* multiprocessors */
  int64_t l2;
  bool aligned;
  int64_t batches, channels, spatial, cells;
  int64_t size, vec; /* of an element; elements in 16 bytes */
  onepass_cells_launch *l;
} choice;

static bool is_grouped(const choice *c) { return c->p->op->view == ONEPASS_VIEW_GROUPS; }

/* ---- What the strides allow ------------------------------------------------------------------ */

static const onepass_role whole_roles[] = {
    ONEPASS_ROLE_X,        ONEPASS_ROLE_Y,   ONEPASS_ROLE_DY,  ONEPASS_ROLE_DX,
    ONEPASS_ROLE_RESIDUAL, ONEPASS_ROLE_SUM, ONEPASS_ROLE_DSUM};
enum { WHOLE_ROLES = sizeof whole_roles / sizeof *whole_roles };

typedef bool (*stride_rule)(const choice *c, onepass_role role);

static bool holds_for_all(const choice *c, stride_rule rule) {
  for (int i = 0; i < WHOLE_ROLES; i++) {
    if (onepass_has(c->layouts, whole_roles[i]) && !rule(c, whole_roles[i])) return false;
  }
  return true;
}

static bool cell_is_dense(const choice *c, onepass_role role) {
  return onepass_walk_is_dense(&c->p->spatial, role);
}

/* The cells of a batch, or all of them, one after the other. */
static bool batch_is_dense(const choice *c, onepass_role role) {
  return c->channels == 1 || c->p->cells.stride[1][role] == c->spatial;
}
static bool all_is_dense(const choice *c, onepass_role role) {
  return batch_is_dense(c, role) &&
         (c->batches == 1 || c->p->cells.stride[0][role] == c->spatial * c->channels);
}

static bool channels_are_dense(const choice *c, onepass_role role) {
  return (c->channels == 1 || c->p->cells.stride[1][role] == 1) && c->p->spatial.ndim <= 1;
}

/* From the last position of a batch to the first one of the next is as far as between others. */
static bool batches_follow(const choice *c, onepass_role role) {
  return c->spatial == 1 || c->batches == 1 ||
         c->p->cells.stride[0][role] == c->spatial * c->p->spatial.stride[0][role];
}

static bool positions_are_aligned(const choice *c, onepass_role role) {
  return (c->batches == 1 || c->p->cells.stride[0][role] % c->vec == 0) &&
         (c->spatial == 1 || c->p->spatial.stride[0][role] % c->vec == 0);
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static bool choose_runs(choice *c) {
  onepass_cells_launch *l = c->l;
  if (!holds_for_all(c, cell_is_dense) || c->cells > MOST_CELLS || c->spatial > MOST_POSITIONS)
    return false;
  l->range_cells = holds_for_all(c, all_is_dense)     ? c->cells
                   : holds_for_all(c, batch_is_dense) ? c->channels
                                                      : 1;
  l->positions = c->spatial;
  const int64_t slots = onepass_divide_up(c->spatial + c->vec - 1, c->vec);
  l->slice = c->spatial;
  if (slots <= MOST_WARP_SLOTS) {
    l->team = (int32_t)onepass_least(
        onepass_power_of_two_from(onepass_divide_up(slots, TEAM_SLOTS)), WARP);
  } else {
    const int64_t in_row = is_grouped(c) ? c->channels / c->p->groups : c->batches;
    const int64_t share = onepass_divide_up(c->spatial, onepass_divide_up(8 * c->chip, c->cells));
    l->team = BLOCK;
    l->slice = onepass_least(onepass_most(share, TEAM_SLOTS * BLOCK * c->vec),
                             8 * TEAM_SLOTS * BLOCK * c->vec);
    l->slice = onepass_most(l->slice, onepass_divide_up(c->spatial * in_row, MOST_PARTS_OF_ROW));
    l->slice = onepass_round_up(l->slice, BLOCK * c->vec);
  }
  l->segments = onepass_divide_up(c->spatial, l->slice);
  l->parts = c->batches * l->segments;
  l->gather_grid = onepass_divide_up(c->cells * l->segments, BLOCK / l->team);
  const int64_t packs = BLOCK * (c->p->backward ? BACKWARD_PACKS : FORWARD_PACKS);
  l->apply_pieces = onepass_divide_up(l->range_cells * c->spatial + c->vec - 1, packs * c->vec);
  l->apply_grid = c->cells / l->range_cells * l->apply_pieces;
  return c->cells * l->segments <= INT32_MAX && l->apply_grid <= INT32_MAX;
}

/* ---- Lanes ----------------------------------------------------------------------------------- */

/* As many as run across channels without too many of them idle, and still read a sector at once. */
static int64_t lanes_across(const choice *c, int64_t packs, int64_t vec) {
  int64_t lanes = WARP;
  while (lanes > 1) {
    const int64_t all = onepass_round_up(packs, lanes);
    const bool idle = 8 * (all - packs) > all && lanes / 2 * vec * c->size >= SECTOR;
    if (lanes / 2 < packs && !idle) break;
    lanes /= 2;
  }
  return lanes;
}

/* Positions of a block: shares of `blocks` in all, or a few less, as one more than there is room for would run alone
 * in the end. Few enough for each thread. */
static int64_t positions_of_block(int64_t positions, int64_t threads, int64_t others,
                                  int64_t blocks, int64_t fewest) {
  const int64_t share = onepass_divide_up(positions, onepass_most(1, blocks / others));
  return onepass_round_up(
      onepass_least(onepass_most(share, fewest * threads), MOST_OF_LANE * threads), threads);
}

static bool choose_lanes(choice *c) {
  onepass_cells_launch *l = c->l;
  if (!holds_for_all(c, channels_are_dense) || c->cells > MOST_CELLS ||
      c->spatial * c->batches > INT64_MAX / 64) {
    return false;
  }
  l->vector = c->aligned && c->channels % c->vec == 0 && holds_for_all(c, positions_are_aligned);
  const int64_t vec = l->vector ? c->vec : 1, packs = onepass_divide_up(c->channels, vec);
  l->as_one = !is_grouped(c) && holds_for_all(c, batches_follow);
  l->positions = l->as_one ? c->batches * c->spatial : c->spatial;
  l->team = (int32_t)lanes_across(c, packs, vec);
  const int64_t batches = l->as_one ? 1 : c->batches, threads = BLOCK / l->team;
  const int64_t strips = onepass_divide_up(packs, l->team), others = strips * batches;
  l->slice = positions_of_block(l->positions, threads, others, 2 * c->chip, 8);
  l->slice =
      onepass_most(l->slice, onepass_round_up(onepass_divide_up(l->positions, 1 << 20), threads));
  l->segments = onepass_divide_up(l->positions, l->slice);
  l->parts = batches * l->segments;
  l->gather_grid = strips * l->parts;
  l->apply_slice = positions_of_block(l->positions, threads, others, 4 * c->chip, 4);
  l->apply_pieces = onepass_divide_up(l->positions, l->apply_slice);
  l->apply_grid = others * l->apply_pieces;
  return l->gather_grid <= INT32_MAX && l->apply_grid <= INT32_MAX;
}

/* ---- Any strides ----------------------------------------------------------------------------- */

static bool choose_strided(choice *c) {
  onepass_cells_launch *l = c->l;
  l->team = BLOCK;
  l->positions = l->slice = c->spatial;
  l->segments = 1;
  l->parts = c->batches;
  l->gather_grid = l->apply_grid = onepass_least(c->cells, 16 * c->chip);
  return true;
}

/* ---- What is left out, and what all have in common ----------------------------------------------- */

static bool sums_weights(const choice *c) {
  return onepass_has(c->layouts, ONEPASS_ROLE_DWEIGHT) ||
         onepass_has(c->layouts, ONEPASS_ROLE_DBIAS);
}

static bool moves_running(const choice *c) {
  return !c->p->backward && !c->p->use_running && c->batches > 0 &&
         onepass_has(c->layouts, ONEPASS_ROLE_RUNNING_MEAN);
}

static void choose_merge(choice *c) {
  onepass_cells_launch *l = c->l;
  if (is_grouped(c)) {
    const int64_t width = c->channels / c->p->groups;
    const int64_t team =
        onepass_least(onepass_power_of_two_from(onepass_most(1, width * l->segments)), WARP);
    l->merge_team = (int32_t)team;
    l->merge_cell = (int32_t)onepass_most(
        1, onepass_least(onepass_power_of_two_from(l->segments),
                         team / onepass_least(team, onepass_power_of_two_from(width))));
    l->merge_grid = onepass_divide_up(c->batches * c->p->groups, BLOCK / team);
    if (sums_weights(c) || moves_running(c))
      l->sum_grid = onepass_divide_up(c->channels, MERGE_LANES);
  } else {
    l->merge_grid = onepass_divide_up(c->channels, MERGE_LANES);
  }
}

static size_t reserve(onepass_cells_launch *l, int64_t bytes) {
  const size_t at = l->workspace;
  l->workspace += (size_t)onepass_round_up(bytes, 256);
  return at;
}

static void reserve_workspace(choice *c) {
  onepass_cells_launch *l = c->l;
  const int64_t sums_size = onepass_type_size(onepass_type_of_sums(c->p->type));
  const int64_t numbers = is_grouped(c) ? c->cells : c->channels;
  const int64_t of_part = c->p->backward ? 3 * sums_size : 2 * (int64_t)sizeof(double);
  if (l->segments) l->sums_at = reserve(l, l->parts * c->channels * of_part);
  l->numbers_at = reserve(l, numbers * 4 * sums_size);
  if (c->p->backward) l->before_at = reserve(l, numbers * sums_size);
  if (is_grouped(c) && moves_running(c))
    l->rows_at = reserve(l, c->cells * 2 * (int64_t)sizeof(double));
}

static bool try_kernel(choice *c, onepass_cuda_kernel kernel) {
  onepass_cells_launch *l = c->l;
  *l = (onepass_cells_launch){.kernel = kernel, .team = 1, .range_cells = 1};
  if (kernel != ONEPASS_CUDA_PASSES && kernel != ONEPASS_CUDA_COLUMNS &&
      kernel != ONEPASS_CUDA_STRIDED) {
    return false;
  }
  /* Of nothing any kernel is right. */
  if (c->cells * c->spatial > 0 && !(kernel == ONEPASS_CUDA_PASSES    ? choose_runs(c)
                                     : kernel == ONEPASS_CUDA_COLUMNS ? choose_lanes(c)
                                                                      : choose_strided(c))) {
    return false;
  }
  if (c->p->use_running && (!c->p->backward || !sums_weights(c))) {
    l->gather_grid = l->segments = l->parts = 0;
  }
  l->streams = c->cells * c->spatial * c->size <= 4 * c->l2;
  l->direct = !c->p->backward && c->p->use_running && !onepass_has(c->layouts, ONEPASS_ROLE_MEAN) &&
              !onepass_has(c->layouts, ONEPASS_ROLE_RSTD);
  if (l->direct) return true;
  choose_merge(c);
  reserve_workspace(c);
  return true;
}

bool onepass_cells_choose(const onepass_norm_problem *problem, const onepass_layouts *layouts,
                          const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                          bool aligned, onepass_cells_launch *launch) {
  const int64_t size = onepass_type_size(problem->type);
  choice c = {.p = problem,
              .layouts = layouts,
              .chip = device->multiprocessors,
              .l2 = device->l2,
              .aligned = aligned,
              .batches = problem->batches,
              .channels = problem->channels,
              .spatial = problem->spatial.count,
              .cells = problem->batches * problem->channels,
              .size = size,
              .vec = 16 / size,
              .l = launch};
  if (asked != ONEPASS_CUDA_BEST) return try_kernel(&c, asked);
  /* Of cells of one element the channels are what is dense. */
  if (c.spatial != 1 && try_kernel(&c, ONEPASS_CUDA_PASSES)) return true;
  return try_kernel(&c, ONEPASS_CUDA_COLUMNS) || try_kernel(&c, ONEPASS_CUDA_PASSES) ||
         try_kernel(&c, ONEPASS_CUDA_STRIDED);
}
