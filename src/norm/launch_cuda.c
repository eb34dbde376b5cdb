/* Which kernel, how many blocks and how much shared memory a normalization takes on a GPU.
 *
 * The ladder: a row waits for its statistic in the registers of a warp if it is short, in the shared
 * memory of one block if it fits there with room to load ahead, of a cluster, or of all blocks on the
 * chip; beyond that it is read twice. With fewer rows than would fill the chip, rows are shared by
 * more blocks than they would need. */
#include "norm/launch_cuda.h"

#include <string.h>

#include "norm/cpu.h"

enum {
  WARP = 32,
  WARPS_BLOCK = 256,
  STREAM_MOST_THREADS = 512,
  STREAM_FEWEST_THREADS = 64,
  PASSES_BLOCK = 256,
  PASSES_PACKS = 4,
  COLUMNS_BLOCK = 512,
  STRIDED_BLOCK = 256,
  MOST_CLUSTER = 16,
  MOST_WARPS = 16,
  FIXED_SHARED = (2 * ONEPASS_NORM_MOST_SUMS + 2 * MOST_WARPS * ONEPASS_NORM_MOST_SUMS) * 8,
  RESERVED_SHARED = 1024 /* of every block, by the system */
};

/* A choice in the making. */
typedef struct choice {
  const onepass_norm_problem *p;
  const onepass_layouts *layouts;
  const onepass_cuda_properties *device;
  bool aligned;
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
  if (!c->aligned) return false;
  for (int i = 0; i < 4; i++) {
    if (!onepass_has(c->layouts, whole_roles[i])) continue;
    for (int axis = 0; axis < rows->ndim - first_axis_from_end; axis++) {
      if (rows->stride[whole_roles[i]][axis] % vec) return false;
    }
  }
  return true;
}

static bool takes_vectors(const choice *c) { return c->n % c->vec == 0 && rows_are_aligned(c, c->vec, 0); }

/* ---- Workspace ------------------------------------------------------------------------------- */

static size_t reserve(onepass_norm_launch *l, int64_t bytes) {
  const size_t at = l->workspace;
  l->workspace += (size_t)up_to(bytes, 256);
  return at;
}

static void reserve_parts(const choice *c, int64_t parts) {
  onepass_norm_launch *l = c->l;
  l->parts = parts;
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
  l->vector = takes_vectors(c);
  const int64_t vec = l->vector ? c->vec : 1, packs_of_row = onepass_divide_up(c->n, vec);
  const int64_t most_packs = !c->p->backward ? 8 : least(4, 16 / vec);
  if (c->n == 0 || packs_of_row > WARP * most_packs) return false;
  /* Several packs a lane are several loads under way; a row's lanes still read 128 bytes at once. */
  const int64_t lanes_worth = most(1, 128 / (vec * c->size));
  l->packs = 1;
  while (l->packs < 4 && l->packs < most_packs && packs_of_row >= 2 * l->packs * lanes_worth) {
    l->packs *= 2;
  }
  while (packs_of_row > WARP * l->packs) l->packs *= 2;
  l->team = (int32_t)power_of_two_from(onepass_divide_up(packs_of_row, l->packs));
  l->block = WARPS_BLOCK;
  const int64_t blocks = onepass_divide_up(c->rows, WARPS_BLOCK / l->team);
  l->grid = least(blocks, (int64_t)c->device->multiprocessors * (c->p->backward ? 4 : 32));
  l->launches = 1;
  l->shared = c->summed ? (size_t)(WARPS_BLOCK / WARP * c->n * c->sums_size) : 0;
  reserve_parts(c, l->grid);
  return true;
}

/* ---- blocks, clusters, grid: one kernel, teams of more and more blocks ------------------------ */

/* Bytes of shared memory besides the ring. stream::lay_out knows the same sizes. */
static int64_t stream_fixed(const choice *c, int64_t team, int64_t slice, bool shared_weights,
                            onepass_norm_exchange exchange) {
  const int64_t columns = up_to(slice, 8) + 8;
  const int arrays = (shared_weights ? c->weights : 0) + c->summed;
  const int64_t mail =
      exchange == ONEPASS_NORM_CLUSTER
          ? ONEPASS_NORM_MAIL_SLOTS * team * 2 * sums_of_row(c) * (int64_t)sizeof(uint64_t)
          : 0;
  return arrays * columns * c->sums_size + FIXED_SHARED + mail;
}

/* Fit slices of a row over `team` blocks with `per_multiprocessor` blocks on each. */
static bool fit_stream(choice *c, int64_t team, int64_t per_multiprocessor, bool shared_weights,
                       onepass_norm_exchange exchange) {
  onepass_norm_launch *l = c->l;
  const int64_t slice = up_to(onepass_divide_up(c->n, team), 128 / c->size);
  if (slice * (team - 1) >= c->n || slice > INT32_MAX / 2) return false;
  const int64_t slots = slice / c->vec + !(takes_vectors(c));
  int64_t threads = power_of_two_from(onepass_divide_up(slots, 4));
  threads = least(most(threads, STREAM_FEWEST_THREADS), STREAM_MOST_THREADS);
  const int64_t chunk = threads * ONEPASS_NORM_CHUNK_SLOTS;
  const int64_t chunks = onepass_divide_up(slots, chunk);
  const int64_t chunk_bytes = chunk * 16 * (c->p->backward ? 2 : 1);
  const int64_t room =
      least(c->device->shared_multiprocessor / per_multiprocessor - RESERVED_SHARED,
            c->device->shared_block) -
      stream_fixed(c, team, slice, shared_weights, exchange);
  int64_t ring = room > 0 ? room / chunk_bytes : 0;
  if (ring > 4 * chunks) ring = 4 * chunks;
  if (ring < chunks + onepass_divide_up(chunks, 2)) return false;
  l->team = (int32_t)team;
  l->exchange = exchange;
  l->slice = slice;
  l->block = (int32_t)threads;
  l->chunks = (int32_t)chunks;
  l->ring = (int32_t)ring;
  l->shared_weights = shared_weights;
  l->lookahead = team > 1 && ring >= 2 * chunks;
  l->shared = (size_t)(ring * chunk_bytes + stream_fixed(c, team, slice, shared_weights, exchange));
  const int64_t resident = per_multiprocessor * c->device->multiprocessors;
  l->grid = least(c->rows, most(1, resident / team)) * team;
  l->cluster = exchange == ONEPASS_NORM_CLUSTER ? (int32_t)team : 1;
  l->cooperative = exchange == ONEPASS_NORM_GLOBAL;
  l->launches = 1;
  return true;
}

/* As many blocks on a multiprocessor as registers allow, fewer if their shared memory is short. */
static bool fit_team(choice *c, int64_t team, onepass_norm_exchange exchange) {
  const int64_t threads = c->p->backward ? 512 : 1024; /* that a multiprocessor has registers for */
  for (int64_t blocks = threads / STREAM_FEWEST_THREADS; blocks >= 1; blocks /= 2) {
    if (fit_stream(c, team, blocks, true, exchange) && c->l->block * blocks <= threads) return true;
  }
  return false;
}

static bool choose_blocks(choice *c) {
  if (c->n == 0 || !fit_team(c, 1, ONEPASS_NORM_ALONE)) return false;
  reserve_parts(c, c->l->grid);
  return true;
}

/* The smallest cluster that holds a row; larger ones while the chip is not filled. */
static bool choose_clusters(choice *c) {
  const int64_t chip = c->device->multiprocessors;
  bool fits = false;
  if (c->device->major < 9 || c->n == 0) return false;
  for (int64_t team = 2; team <= MOST_CLUSTER; team *= 2) {
    onepass_norm_launch before = *c->l;
    if (fit_team(c, team, ONEPASS_NORM_CLUSTER)) {
      fits = true;
      if (c->rows * team >= chip) break;
    } else if (fits) {
      *c->l = before;
      break;
    }
  }
  if (!fits) return false;
  reserve_parts(c, c->l->grid / c->l->team);
  return true;
}

static bool choose_grid(choice *c) {
  onepass_norm_launch *l = c->l;
  const int64_t chip = c->device->multiprocessors;
  if (c->n == 0) return false;
  /* Slices of whole lines: fewer blocks than there are may be enough for the row. */
  const int64_t slice = up_to(onepass_divide_up(c->n, chip), 128 / c->size);
  const int64_t team = onepass_divide_up(c->n, slice);
  if (team < 2) return false;
  if (!fit_stream(c, team, 1, true, ONEPASS_NORM_GLOBAL) &&
      !(fit_stream(c, team, 1, false, ONEPASS_NORM_GLOBAL) && !c->p->backward)) {
    return false;
  }
  l->grid = team;
  l->mail_size =
      (size_t)(ONEPASS_NORM_MAIL_SLOTS * team * 2 * sums_of_row(c) * (int64_t)sizeof(uint64_t));
  l->mail_at = reserve(l, (int64_t)l->mail_size);
  l->launches++;
  reserve_parts(c, 1);
  return true;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static bool choose_passes(choice *c) {
  onepass_norm_launch *l = c->l;
  const int64_t chip = c->device->multiprocessors;
  if (c->n == 0) return false;
  l->vector = takes_vectors(c);
  const int64_t share = onepass_divide_up(c->n, onepass_divide_up(16 * chip, c->rows));
  l->slice = up_to(least(most(share, 4096), INT32_MAX / 4), 1024);
  l->segments = onepass_divide_up(c->n, l->slice);
  l->grid = c->rows * l->segments;
  l->block = PASSES_BLOCK;
  l->row_group = c->rows;
  if (c->p->backward) {
    const int64_t width = (int64_t)PASSES_BLOCK * PASSES_PACKS * (l->vector ? c->vec : 1);
    const int64_t pieces = onepass_divide_up(c->n, width);
    /* Without sums over rows, each row is a group. */
    const int64_t groups = c->summed ? least(c->rows, onepass_divide_up(8 * chip, pieces)) : c->rows;
    l->row_group = onepass_divide_up(c->rows, groups);
    l->apply_grid = onepass_divide_up(c->rows, l->row_group) * pieces;
  } else {
    const int64_t width = ((int64_t)PASSES_BLOCK * PASSES_PACKS - 1) * c->vec;
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
  if (c->moments || c->n == 0 || rows->ndim == 0 || c->p->elements.ndim > 1) return false;
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
  l->vector = inner % pack == 0 && rows_are_aligned(c, pack, 1);
  for (int i = 0; i < 4; i++) {
    if (onepass_has(c->layouts, whole_roles[i]) && c->n > 1 &&
        c->p->elements.stride[whole_roles[i]][0] % pack) {
      l->vector = false;
    }
  }
  const int64_t vec = l->vector ? pack : 1;
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
    l->row_group = onepass_divide_up(c->rows, least(c->rows, onepass_divide_up(8 * chip, pieces)));
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
  if (!is_dense(c)) return false;
  switch (kernel) {
    case ONEPASS_CUDA_WARPS: return choose_warps(c);
    case ONEPASS_CUDA_BLOCKS: return choose_blocks(c);
    case ONEPASS_CUDA_CLUSTERS: return choose_clusters(c);
    case ONEPASS_CUDA_GRID: return choose_grid(c);
    case ONEPASS_CUDA_PASSES: return choose_passes(c);
    default: return false;
  }
}

/* Whether one block a row would leave most of the chip without work. */
static bool leaves_chip_idle(const choice *c) {
  return c->rows * 2 < c->device->multiprocessors && c->n * c->size > 32768;
}

static bool choose_best(choice *c) {
  static const onepass_cuda_kernel ladder[] = {
      ONEPASS_CUDA_WARPS, ONEPASS_CUDA_BLOCKS,  ONEPASS_CUDA_CLUSTERS,
      ONEPASS_CUDA_GRID,  ONEPASS_CUDA_PASSES, ONEPASS_CUDA_STRIDED};
  if (!is_dense(c)) {
    return try_kernel(c, ONEPASS_CUDA_COLUMNS) || try_kernel(c, ONEPASS_CUDA_STRIDED);
  }
  for (int i = 0; i < 6; i++) {
    if (ladder[i] == ONEPASS_CUDA_BLOCKS && leaves_chip_idle(c)) continue;
    if (try_kernel(c, ladder[i])) return true;
  }
  return false;
}

bool onepass_norm_choose_cuda(const onepass_norm_problem *problem, const onepass_layouts *layouts,
                              const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                              bool aligned, onepass_norm_launch *launch) {
  const int64_t size = onepass_type_size(problem->type);
  choice c = {.p = problem,
              .layouts = layouts,
              .device = device,
              .aligned = aligned,
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
  static const char *const names[] = {"best", "warps",   "blocks",  "clusters", "grid",
                                      "passes", "columns", "strided", "windows"};
  return names[kernel];
}
