/* Which kernel, how many blocks and how much shared memory a normalization takes on a GPU.
 *
 * The ladder: a row waits for its statistic in the registers of some lanes of a warp if it is short, of
 * a block, or of the blocks of a cluster; beyond that it is read twice. With fewer rows than would fill
 * the chip, rows are shared by more blocks than they would need. */
#include "norm/launch_cuda.h"

#include <string.h>

#include "norm/cpu.h"

enum {
  WARP = 32,
  WARPS_BLOCK = 256,
  LONGEST_FOR_WARPS = 256, /* a warp could have more, but blocks do it faster */
  BLOCKS_MOST_THREADS = 512,
  STREAM_MOST_THREADS = 512,
  STREAM_FEWEST_THREADS = 64,
  PASSES_BLOCK = 256,
  COLUMNS_BLOCK = 512,
  STRIDED_BLOCK = 256,
  MOST_CLUSTER = 16,
  MOST_WARPS = 16
};

/* A choice in the making. */
typedef struct choice {
  const onepass_norm_problem *p;
  const onepass_layouts *layouts;
  const onepass_cuda_properties *device;
  onepass_norm_alignment alignment;
  bool moments;
  int64_t rows, n;
  int64_t size; /* of an element */
  int64_t vec;  /* elements in 16 bytes */
  int64_t sums_size;
  int weights; /* of weight and bias, how many there are */
  int summed;  /* of dweight and dbias */
  onepass_norm_launch *l;
} choice;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t up_to(int64_t a, int64_t step) { return onepass_divide_up(a, step) * step; }

static int64_t power_of_two_from(int64_t a) {
  int64_t power = 1;
  while (power < a) power *= 2;
  return power;
}

/* ---- What the strides allow ------------------------------------------------------------------ */

static const onepass_role whole_roles[] = {ONEPASS_ROLE_X, ONEPASS_ROLE_Y, ONEPASS_ROLE_DY,
                                           ONEPASS_ROLE_DX};
static const onepass_role weight_roles[] = {ONEPASS_ROLE_WEIGHT, ONEPASS_ROLE_BIAS};

/* Elements of a row one after the other in every tensor. dweight and dbias are written by a kernel
 * that takes any stride. */
static bool is_dense(const choice *c) {
  for (int i = 0; i < 4; i++) {
    if (onepass_has(c->layouts, whole_roles[i]) &&
        !onepass_walk_is_dense(&c->p->elements, whole_roles[i])) {
      return false;
    }
  }
  for (int i = 0; i < 2; i++) {
    if (onepass_has(c->layouts, weight_roles[i]) &&
        !onepass_walk_is_dense(&c->p->elements, weight_roles[i])) {
      return false;
    }
  }
  return true;
}

/* Whether packs of `vec` elements are aligned in every row of every tensor shaped as x; the last
 * axes of the rows may be left out. */
static bool rows_are_aligned(const choice *c, int64_t vec, int first_axis_from_end) {
  const onepass_walk *rows = &c->p->rows;
  if (c->alignment != ONEPASS_NORM_ALIGNED) return false;
  for (int i = 0; i < 4; i++) {
    if (!onepass_has(c->layouts, whole_roles[i])) continue;
    for (int axis = 0; axis < rows->ndim - first_axis_from_end; axis++) {
      if (rows->stride[whole_roles[i]][axis] % vec) return false;
    }
  }
  return true;
}

/* Whether the rows of all tensors shaped as x start at the same place of their 16 bytes. */
static bool rows_are_alike(const choice *c) {
  const onepass_walk *rows = &c->p->rows;
  if (c->alignment == ONEPASS_NORM_ANYWHERE || rows->ndim > 1) return false;
  for (int i = 1; i < 4; i++) {
    if (!onepass_has(c->layouts, whole_roles[i])) continue;
    for (int axis = 0; axis < rows->ndim; axis++) {
      const int64_t apart = rows->stride[whole_roles[i]][axis] - rows->stride[ONEPASS_ROLE_X][axis];
      if (apart % c->vec) return false;
    }
  }
  return true;
}

static bool takes_vectors(const choice *c) {
  return c->n % c->vec == 0 && rows_are_aligned(c, c->vec, 0);
}

/* ---- Workspace ------------------------------------------------------------------------------- */

static size_t reserve(onepass_norm_launch *l, int64_t bytes) {
  const size_t at = l->workspace;
  l->workspace += (size_t)up_to(bytes, 256);
  return at;
}

static void reserve_parts(const choice *c, int64_t parts) {
  onepass_norm_launch *l = c->l;
  l->parts = parts;
  l->adders = (int32_t)least(power_of_two_from(onepass_divide_up(parts, 8)), WARP);
  if (!c->summed) return;
  l->launches++;
  const int64_t bytes = parts * c->n * c->sums_size;
  if (onepass_has(c->layouts, ONEPASS_ROLE_DWEIGHT)) l->dweight_at = reserve(l, bytes);
  if (onepass_has(c->layouts, ONEPASS_ROLE_DBIAS)) l->dbias_at = reserve(l, bytes);
}

static int sums_of_row(const choice *c) {
  return c->p->backward ? (c->moments ? 3 : 2) : (c->moments ? 2 : 1);
}

/* ---- warps ----------------------------------------------------------------------------------- */

static bool choose_warps(choice *c) {
  onepass_norm_launch *l = c->l;
  l->width = takes_vectors(c) ? ONEPASS_NORM_VECTOR : ONEPASS_NORM_SCALAR;
  const int64_t vec = l->width ? c->vec : 1, packs_of_row = onepass_divide_up(c->n, vec);
  const int64_t most_packs =
      l->width ? least(c->p->backward ? 2 : 4, (c->p->backward ? 8 : 16) / vec) : 8;
  if (c->n == 0 || c->rows == 0 || packs_of_row > WARP * most_packs) return false;
  /* Several packs a lane are several loads under way; a row's lanes still read 64 bytes at once. */
  const int64_t lanes_worth = most(1, 64 / (vec * c->size));
  l->packs = 1;
  while (l->packs < least(4, most_packs) && packs_of_row >= 2 * l->packs * lanes_worth) {
    l->packs *= 2;
  }
  while (packs_of_row > WARP * l->packs) l->packs *= 2;
  l->team = (int32_t)power_of_two_from(onepass_divide_up(packs_of_row, l->packs));
  l->block = WARPS_BLOCK;
  const int64_t blocks = onepass_divide_up(c->rows, WARPS_BLOCK / l->team);
  l->grid = least(blocks, (int64_t)c->device->multiprocessors * (c->summed ? 4 : 64));
  l->launches = 1;
  l->shared = c->summed ? (size_t)(WARPS_BLOCK / WARP * c->n * c->sums_size) : 0;
  reserve_parts(c, l->grid);
  return true;
}

/* ---- blocks and clusters --------------------------------------------------------------------- */

/* Registers of a thread of blocks_backward, as the compiler reports them. */
static int64_t registers_of_blocks(const choice *c, onepass_norm_width width) {
  if (width == ONEPASS_NORM_PHASED) return 120;
  if (c->size == 8) return width == ONEPASS_NORM_VECTOR ? 112 : 128;
  return c->size == 2 && width == ONEPASS_NORM_VECTOR ? 96 : 80;
}

/* Slices of a row in the registers of `team` blocks. */
static bool fit_blocks(choice *c, int64_t team) {
  onepass_norm_launch *l = c->l;
  const int64_t slice = up_to(onepass_divide_up(c->n, team), 128 / c->size);
  if (c->n == 0 || c->rows == 0 || (team > 1 && slice * (team - 1) >= c->n)) return false;
  l->width = takes_vectors(c)    ? ONEPASS_NORM_VECTOR
             : rows_are_alike(c) ? ONEPASS_NORM_PHASED
                                 : ONEPASS_NORM_SCALAR;
  l->packs = l->width == ONEPASS_NORM_SCALAR ? 8 : 4;
  const int64_t vec = l->width == ONEPASS_NORM_SCALAR ? 1 : c->vec;
  /* A phased row may reach into one pack more. */
  const int64_t elements = least(slice, c->n) + (l->width == ONEPASS_NORM_PHASED ? vec - 1 : 0);
  const int64_t threads =
      up_to(onepass_divide_up(onepass_divide_up(elements, vec), l->packs), WARP);
  if (threads > BLOCKS_MOST_THREADS) return false;
  l->team = (int32_t)team;
  l->slice = slice;
  l->block = (int32_t)threads;
  /* slice_gradient in cuda_blocks.cuh knows the same sizes. */
  const bool phased = l->width == ONEPASS_NORM_PHASED;
  const int arrays = c->p->backward ? c->summed + (phased ? c->weights : 0) : 0;
  l->shared = (size_t)(arrays * (slice + (phased ? 8 : 0)) * c->sums_size);
  if ((int64_t)l->shared > c->device->shared_block - 1024) return false;
  /* Where nothing is summed over rows, a row a team: a new block costs no more than a new row. */
  int64_t teams = least(c->rows, INT32_MAX / team);
  if (c->summed) {
    const int64_t by_shared = c->device->shared_multiprocessor / ((int64_t)l->shared + 2048);
    const int64_t by_registers = 65536 / (registers_of_blocks(c, l->width) * threads);
    const int64_t resident = least(most(1, by_registers), by_shared);
    if (resident < 1) return false;
    teams = least(teams, most(1, resident * c->device->multiprocessors / team));
  }
  /* All phased rows of a block start at the same place of their 16 bytes. */
  if (phased && teams < c->rows) teams = most(c->vec, teams - teams % c->vec);
  l->grid = teams * team;
  l->cluster = (int32_t)team;
  l->launches = 1;
  return true;
}

static bool choose_blocks(choice *c) {
  if (!fit_blocks(c, 1)) return false;
  reserve_parts(c, c->l->grid);
  return true;
}

/* The smallest cluster of small blocks, so that several run on a multiprocessor and one works while
 * another waits; larger ones while the chip is not filled. */
static bool choose_clusters(choice *c) {
  const onepass_norm_launch nothing = *c->l;
  onepass_norm_launch best = nothing;
  bool fits = false;
  if (c->device->major < 9) return false;
  for (int64_t team = 2; team <= MOST_CLUSTER; team *= 2) {
    *c->l = nothing;
    if (!fit_blocks(c, team)) {
      if (fits) break;
      continue;
    }
    best = *c->l;
    fits = true;
    if (best.block <= 256 && c->rows * team >= c->device->multiprocessors) break;
  }
  if (!fits) return false;
  *c->l = best;
  reserve_parts(c, best.grid / best.team);
  return true;
}

/* ---- grid: rows stream through the shared memory of all blocks -------------------------------- */

/* Bytes of shared memory besides the ring. stream::lay_out knows the same sizes. */
static int64_t stream_fixed(const choice *c, int64_t team, int64_t slice, bool shared_weights) {
  const int64_t columns = up_to(slice, 8) + 8;
  const int arrays = (shared_weights ? c->weights : 0) + c->summed;
  const int64_t parts =
      (ONEPASS_NORM_MOST_SUMS + 1 + team * sums_of_row(c)) * (int64_t)sizeof(double);
  return arrays * columns * c->sums_size + parts +
         (2 * MOST_WARPS * ONEPASS_NORM_MOST_SUMS + ONEPASS_NORM_MAIL_SLOTS) * c->sums_size;
}

static bool fit_stream(choice *c, int64_t team, int64_t slice, bool shared_weights) {
  onepass_norm_launch *l = c->l;
  if (slice > INT32_MAX / 2) return false;
  const int64_t slots = slice / c->vec + !(takes_vectors(c));
  const int64_t threads = least(
      most(up_to(onepass_divide_up(slots, ONEPASS_NORM_CHUNK_SLOTS), WARP), STREAM_FEWEST_THREADS),
      STREAM_MOST_THREADS);
  const int64_t chunk = threads * ONEPASS_NORM_CHUNK_SLOTS;
  const int64_t chunks = onepass_divide_up(slots, chunk);
  const int64_t chunk_bytes = chunk * 16 * (c->p->backward ? 2 : 1);
  const int64_t fixed = stream_fixed(c, team, slice, shared_weights);
  const int64_t room = c->device->shared_block - fixed;
  int64_t ring = room > 0 ? room / chunk_bytes : 0;
  if (ring > 6 * chunks) ring = 6 * chunks;
  if (ring < chunks + onepass_divide_up(chunks, 4)) return false;
  l->team = (int32_t)team;
  l->slice = slice;
  l->block = (int32_t)threads;
  l->chunks = (int32_t)chunks;
  l->ring = (int32_t)ring;
  l->shared_weights = shared_weights;
  l->lookahead = (int32_t)least(3, ring / chunks - 1);
  l->shared = (size_t)(ring * chunk_bytes + fixed);
  l->grid = team;
  l->cooperative = true;
  l->launches = 2;
  return true;
}

static bool choose_grid(choice *c) {
  onepass_norm_launch *l = c->l;
  if (c->n == 0 || c->rows == 0) return false;
  /* Slices of whole lines: fewer blocks than there are may be enough for the row. */
  const int64_t slice = up_to(onepass_divide_up(c->n, c->device->multiprocessors), 128 / c->size);
  const int64_t team = onepass_divide_up(c->n, slice);
  if (team < 2) return false;
  if (!fit_stream(c, team, slice, true) && (c->p->backward || !fit_stream(c, team, slice, false))) {
    return false;
  }
  l->mail_size =
      (size_t)(ONEPASS_NORM_MAIL_SLOTS * team * 2 * sums_of_row(c) * (int64_t)sizeof(uint64_t));
  l->mail_at = reserve(l, (int64_t)l->mail_size);
  reserve_parts(c, 1);
  return true;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static bool choose_passes(choice *c) {
  onepass_norm_launch *l = c->l;
  const int64_t chip = c->device->multiprocessors;
  if (c->n == 0 || c->rows == 0) return false;
  l->width = takes_vectors(c) ? ONEPASS_NORM_VECTOR : ONEPASS_NORM_SCALAR;
  const int64_t share = onepass_divide_up(c->n, onepass_divide_up(16 * chip, c->rows));
  l->slice = up_to(least(most(share, 4096), INT32_MAX / 4), 1024);
  l->segments = onepass_divide_up(c->n, l->slice);
  l->grid = c->rows * l->segments;
  l->block = PASSES_BLOCK;
  l->row_group = c->rows;
  if (c->p->backward) {
    /* backward_packs in cuda_passes.cuh */
    const int64_t packs = !l->width ? 4 : c->vec == 8 ? 1 : 2;
    const int64_t width = PASSES_BLOCK * packs * (l->width ? c->vec : 1);
    const int64_t pieces = onepass_divide_up(c->n, width);
    /* Without sums over rows, each row is a group. */
    const int64_t groups =
        c->summed ? least(c->rows, onepass_divide_up(8 * chip, pieces)) : c->rows;
    l->row_group = onepass_divide_up(c->rows, groups);
    l->apply_grid = onepass_divide_up(c->rows, l->row_group) * pieces;
  } else {
    /* forward_packs in cuda_passes.cuh */
    const int64_t packs = c->size == 2 ? 2 : 4;
    const int64_t width = (PASSES_BLOCK * packs - 1) * c->vec;
    l->apply_grid = c->rows * onepass_divide_up(c->n, width);
  }
  if (l->grid > INT32_MAX || l->apply_grid > INT32_MAX) return false;
  l->launches = 3;
  l->sums_at = reserve(l, l->grid * sums_of_row(c) * (int64_t)sizeof(double));
  reserve_parts(c, onepass_divide_up(c->rows, l->row_group));
  return true;
}

/* ---- columns --------------------------------------------------------------------------------- */

static bool lanes_are_dense(const choice *c) {
  const onepass_walk *rows = &c->p->rows;
  if (c->moments || c->n == 0 || c->rows == 0 || rows->ndim == 0 || c->p->elements.ndim > 1)
    return false;
  for (int i = 0; i < 4; i++) {
    if (onepass_has(c->layouts, whole_roles[i]) &&
        rows->stride[whole_roles[i]][rows->ndim - 1] != 1) {
      return false;
    }
  }
  return true;
}

static bool choose_columns(choice *c) {
  onepass_norm_launch *l = c->l;
  if (!lanes_are_dense(c)) return false;
  const onepass_walk *rows = &c->p->rows;
  const int64_t inner = rows->size[rows->ndim - 1];
  const int64_t pack = least(c->vec, 4); /* more would not fit in the registers */
  bool vector = inner % pack == 0 && rows_are_aligned(c, pack, 1);
  for (int i = 0; i < 4; i++) {
    if (onepass_has(c->layouts, whole_roles[i]) && c->n > 1 &&
        c->p->elements.stride[whole_roles[i]][0] % pack) {
      vector = false;
    }
  }
  l->width = vector ? ONEPASS_NORM_VECTOR : ONEPASS_NORM_SCALAR;
  const int64_t vec = vector ? pack : 1;
  /* Narrower strips where there would be fewer blocks than multiprocessors. */
  int64_t lanes = WARP, blocks;
  for (;; lanes /= 2) {
    blocks = onepass_divide_up(inner, lanes * vec) * (c->rows / inner);
    if (blocks >= 2 * (int64_t)c->device->multiprocessors || lanes * vec * c->size <= 32) break;
  }
  while (lanes > 1 && lanes / 2 * vec >= inner) lanes /= 2;
  blocks = onepass_divide_up(inner, lanes * vec) * (c->rows / inner);
  if (blocks > INT32_MAX) return false;
  l->team = (int32_t)lanes;
  l->block = COLUMNS_BLOCK;
  l->grid = blocks;
  l->launches = 1;
  return true;
}

/* ---- strided --------------------------------------------------------------------------------- */

static bool choose_strided(choice *c) {
  onepass_norm_launch *l = c->l;
  const int64_t chip = c->device->multiprocessors;
  l->block = STRIDED_BLOCK;
  l->grid = least(c->rows, 16 * chip);
  l->launches = 1;
  if (c->summed) {
    const int64_t pieces = most(1, onepass_divide_up(c->n, STRIDED_BLOCK));
    const int64_t rows = most(1, c->rows);
    l->row_group = onepass_divide_up(rows, least(rows, onepass_divide_up(8 * chip, pieces)));
    const int64_t groups = onepass_divide_up(c->rows, l->row_group);
    l->apply_grid = groups * pieces;
    l->launches = 3;
    l->sums_at = reserve(l, c->rows * (int64_t)sizeof(double));
    reserve_parts(c, groups);
    if (l->apply_grid > INT32_MAX) return false;
  }
  return true;
}

/* ---- The ladder ------------------------------------------------------------------------------ */

static bool try_kernel(choice *c, onepass_cuda_kernel kernel) {
  *c->l = (onepass_norm_launch){.kernel = kernel, .cluster = 1, .team = 1};
  if (kernel == ONEPASS_CUDA_STRIDED) return choose_strided(c);
  if (kernel == ONEPASS_CUDA_COLUMNS) return choose_columns(c);
  /* row_of in cuda_common.cuh divides by 32-bit sizes. */
  if (!is_dense(c) || (c->p->rows.ndim > 1 && c->rows > UINT32_MAX)) return false;
  switch (kernel) {
    case ONEPASS_CUDA_WARPS:
      return choose_warps(c);
    case ONEPASS_CUDA_BLOCKS:
      return choose_blocks(c);
    case ONEPASS_CUDA_CLUSTERS:
      return choose_clusters(c);
    case ONEPASS_CUDA_GRID:
      return choose_grid(c);
    case ONEPASS_CUDA_PASSES:
      return choose_passes(c);
    default:
      return false;
  }
}

/* Whether one block a row would leave most of the chip without work. */
static bool leaves_chip_idle(const choice *c) {
  return c->rows * 2 < c->device->multiprocessors && c->n * c->size > 32768;
}

/* Clusters of many blocks wait for each other too long: with rows enough to fill the chip, reading
 * twice is faster. */
static bool suits_clusters(const choice *c) {
  return leaves_chip_idle(c) || (c->l->team <= 4 && (!c->p->backward || c->size >= 4));
}

static bool choose_best(choice *c) {
  if (!is_dense(c)) {
    return try_kernel(c, ONEPASS_CUDA_COLUMNS) || try_kernel(c, ONEPASS_CUDA_STRIDED);
  }
  if (c->n <= LONGEST_FOR_WARPS && try_kernel(c, ONEPASS_CUDA_WARPS)) return true;
  if (!leaves_chip_idle(c) && try_kernel(c, ONEPASS_CUDA_BLOCKS)) return true;
  if (try_kernel(c, ONEPASS_CUDA_CLUSTERS) && suits_clusters(c)) return true;
  return try_kernel(c, ONEPASS_CUDA_PASSES) || try_kernel(c, ONEPASS_CUDA_STRIDED);
}

bool onepass_norm_choose_cuda(const onepass_norm_problem *problem, const onepass_layouts *layouts,
                              const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                              onepass_norm_alignment alignment, onepass_norm_launch *launch) {
  const int64_t size = onepass_type_size(problem->type);
  choice c = {.p = problem,
              .layouts = layouts,
              .device = device,
              .alignment = alignment,
              .moments = problem->op->statistic == ONEPASS_STATISTIC_MOMENTS,
              .rows = problem->rows.count,
              .n = problem->elements.count,
              .size = size,
              .vec = 16 / size,
              .sums_size = onepass_type_size(onepass_type_of_sums(problem->type)),
              .weights = onepass_has(layouts, ONEPASS_ROLE_WEIGHT) +
                         onepass_has(layouts, ONEPASS_ROLE_BIAS),
              .summed = onepass_has(layouts, ONEPASS_ROLE_DWEIGHT) +
                        onepass_has(layouts, ONEPASS_ROLE_DBIAS),
              .l = launch};
  return asked == ONEPASS_CUDA_BEST ? choose_best(&c) : try_kernel(&c, asked);
}

const char *onepass_cuda_kernel_name(onepass_cuda_kernel kernel) {
  static const char *const names[] = {"best",   "warps",   "blocks",  "clusters", "grid",
                                      "passes", "columns", "strided", "windows"};
  return names[kernel];
}
