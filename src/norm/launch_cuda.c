/* Which kernel, how many blocks and how much shared memory a normalization takes on a GPU.
 *
 * The ladder: a row waits for its statistic in the registers of some lanes of a warp if it is short, of a
 * block, in those and the shared memory of a block, or in the shared memory of a team of blocks; beyond
 * that it is read twice. With fewer rows than would fill the chip, rows are shared by more blocks than
 * they would need. */
#include "norm/launch_choice.h"

/* As in the kernels' headers. */
enum {
  WARP = 32,
  BLOCKS_MOST_THREADS = 512,
  BLOCKS_FEW_PACKS = 2,
  BLOCKS_PACKS = 4,
  BLOCKS_MANY_PACKS = 8,
  PHASED_LEAST = 8 << 20, /* bytes of rows that are worth copies of weights, by another launch */
  PHASED_LEAST_HALVES = 2 << 20,
  WIDE_MOST_THREADS = 1024,
  AHEAD_LEAST_ROW = 4096, /* bytes */
  AHEAD_SHARE = 10,       /* of the second-level cache a tenth */
  RING_MOST_THREADS = 512,
  RING_FEW_THREADS = 384,
  RING_FORWARD = 3,
  RING_BACKWARD = 2,
  RING_SPREAD_THREADS = 256,
  RING_SHORT = 1024, /* elements of rows of which sums are soon read again */
  STREAM_WORKERS = 512,
  STREAM_THREADS = STREAM_WORKERS + 3 * WARP,
  STREAM_ON_THE_WAY = 1,
  STREAM_MOST_LOOKAHEAD = 24,
  STREAM_MEMORY = 20480, /* shared memory of a stream kernel besides the rows, at most */
  TIDE_WRITERS = 384,
  TIDE_THREADS = TIDE_WRITERS + 4 * WARP,
  TIDE_MOST_CHUNKS = 21, /* of halves one more */
  TIDE_BIASES = 3,
  TIDE_MOST_RING = 40,
  TIDE_MEMORY = 2048, /* shared memory of a tide kernel besides the chunks, at most */
  TIDE_COPIES = 4,
  TIDE_LEAST_ROWS = 3,  /* of a team */
  TIDE_MOST_BLOCKS = 4, /* of a team, of floats */
  PASSES_BLOCK = 256,
  PASSES_MOST_ROWS = 16,
  REGISTERS = 65536 /* of a multiprocessor */
};

#define FUSED_ROLES                                                     \
  (ONEPASS_BIT(ONEPASS_ROLE_RESIDUAL) | ONEPASS_BIT(ONEPASS_ROLE_SUM) | \
   ONEPASS_BIT(ONEPASS_ROLE_DSUM))

/* ---- What the strides allow ------------------------------------------------------------------ */

const onepass_role onepass_whole_roles[ONEPASS_WHOLE_ROLE_COUNT] = {
    ONEPASS_ROLE_X,        ONEPASS_ROLE_Y,   ONEPASS_ROLE_DY,  ONEPASS_ROLE_DX,
    ONEPASS_ROLE_RESIDUAL, ONEPASS_ROLE_SUM, ONEPASS_ROLE_DSUM};
static const onepass_role weight_roles[] = {ONEPASS_ROLE_WEIGHT, ONEPASS_ROLE_BIAS};

/* Elements of a row one after the other in every tensor. dweight and dbias are written by a kernel
 * that takes any stride. */
static bool is_dense(const onepass_norm_choice *c) {
  for (int i = 0; i < ONEPASS_WHOLE_ROLE_COUNT; i++) {
    if (onepass_has(c->layouts, onepass_whole_roles[i]) &&
        !onepass_walk_is_dense(&c->p->elements, onepass_whole_roles[i])) {
      return false;
    }
  }
  for (int i = 0; i < 2 && !c->by_channel; i++) {
    if (onepass_has(c->layouts, weight_roles[i]) &&
        !onepass_walk_is_dense(&c->p->elements, weight_roles[i])) {
      return false;
    }
  }
  return true;
}

bool onepass_rows_are_aligned(const onepass_norm_choice *c, int64_t vec, int first_axis_from_end) {
  const onepass_walk *rows = &c->p->rows;
  if (c->alignment != ONEPASS_NORM_ALIGNED) return false;
  for (int i = 0; i < ONEPASS_WHOLE_ROLE_COUNT; i++) {
    if (!onepass_has(c->layouts, onepass_whole_roles[i])) continue;
    for (int axis = 0; axis < rows->ndim - first_axis_from_end; axis++) {
      if (rows->stride[axis][onepass_whole_roles[i]] % vec) return false;
    }
  }
  return true;
}

/* Whether the rows of all tensors shaped as x start at the same place of their 16 bytes. */
static bool rows_are_alike(const onepass_norm_choice *c) {
  const onepass_walk *rows = &c->p->rows;
  if (c->alignment == ONEPASS_NORM_ANYWHERE || rows->ndim > 1) return false;
  for (int i = 1; i < ONEPASS_WHOLE_ROLE_COUNT; i++) {
    if (!onepass_has(c->layouts, onepass_whole_roles[i])) continue;
    for (int axis = 0; axis < rows->ndim; axis++) {
      const int64_t apart =
          rows->stride[axis][onepass_whole_roles[i]] - rows->stride[axis][ONEPASS_ROLE_X];
      if (apart % c->vec) return false;
    }
  }
  return true;
}

bool onepass_takes_vectors(const onepass_norm_choice *c) {
  return c->n % c->vec == 0 && onepass_rows_are_aligned(c, c->vec, 0);
}

/* Whether a pack is never of two channels. */
static bool has_packs_of_channels(const onepass_norm_choice *c) {
  return c->p->spatial.count % c->vec == 0 && onepass_takes_vectors(c);
}

/* ---- Workspace ------------------------------------------------------------------------------- */

size_t onepass_reserve(onepass_norm_launch *l, int64_t bytes) {
  const size_t at = l->workspace;
  l->workspace += (size_t)onepass_round_up(bytes, 256);
  return at;
}

bool onepass_can_be_direct(const onepass_norm_choice *c) {
  static const onepass_role roles[] = {ONEPASS_ROLE_DWEIGHT, ONEPASS_ROLE_DBIAS};
  /* Only these make halves of them. */
  if (c->p->weight_type != onepass_type_of_sums(c->p->type) && c->l->kernel != ONEPASS_CUDA_WARPS &&
      c->l->kernel != ONEPASS_CUDA_RING) {
    return false;
  }
  for (int i = 0; i < 2; i++) {
    if (onepass_has(c->layouts, roles[i]) && !onepass_walk_is_dense(&c->p->elements, roles[i]))
      return false;
  }
  return true;
}

void onepass_reserve_parts(const onepass_norm_choice *c, int64_t parts) {
  onepass_norm_launch *l = c->l;
  l->parts = parts;
  l->adders = (int32_t)onepass_least(onepass_power_of_two_from(onepass_divide_up(parts, 16)), WARP);
  l->direct = c->summed && parts == 1 && onepass_can_be_direct(c);
  if (!c->summed || l->direct) return;
  l->launches++;
  const int64_t bytes = parts * c->n * c->sums_size;
  if (onepass_has(c->layouts, ONEPASS_ROLE_DWEIGHT)) l->dweight_at = onepass_reserve(l, bytes);
  if (onepass_has(c->layouts, ONEPASS_ROLE_DBIAS)) l->dbias_at = onepass_reserve(l, bytes);
}

static int sums_of_row(const onepass_norm_choice *c) {
  return c->p->backward ? (c->moments ? 3 : 2) : (c->moments ? 2 : 1);
}

bool onepass_has_full_kernels(const onepass_norm_choice *c) {
  const bool is_centered = c->p->op->denominator == ONEPASS_BY_DEVIATION;
  return !c->fused && c->p->rows.ndim <= 1 && (!c->moments || c->squares || is_centered);
}

/* ---- blocks: a row a block, forward ------------------------------------------------------------- */

/* Packs that a row may reach into: one that is not aligned starts anywhere in a sector. */
static int64_t packs_reached(const onepass_norm_choice *c) {
  const int64_t before = c->l->width == ONEPASS_NORM_VECTOR ? 0 : ONEPASS_SECTOR / c->size - 1;
  return onepass_divide_up(c->n + before, c->vec);
}

static bool has_f32_weights(const onepass_norm_choice *c) {
  return c->moments && !c->channels && c->p->weight_type != c->p->type;
}

/* In registers, `packs` of a row. */
static bool fit_blocks(onepass_norm_choice *c, int64_t packs) {
  onepass_norm_launch *l = c->l;
  const bool simple = !c->fused && !c->channels && !l->squares;
  const int64_t early = c->size == 8 ? 256 : 128; /* blocks_early_threads in cuda_blocks.cuh */
  /* Of halves a thread with few packs has too much to do besides. */
  const bool thin = simple && c->size == 4 && packs > BLOCKS_PACKS * early &&
                    packs <= BLOCKS_FEW_PACKS * BLOCKS_MOST_THREADS;
  const bool many = packs > BLOCKS_PACKS * BLOCKS_MOST_THREADS;
  l->packs = thin ? BLOCKS_FEW_PACKS : many ? BLOCKS_MANY_PACKS : BLOCKS_PACKS;
  if (packs > l->packs * BLOCKS_MOST_THREADS) return false;
  l->block = (int32_t)onepass_round_up(onepass_divide_up(packs, l->packs), WARP);
  l->broad = simple && !thin && !many && l->block > early;
  l->full = l->broad && c->size == 2 && c->moments && !has_f32_weights(c) &&
            packs == l->packs * l->block && onepass_has_full_kernels(c);
  return true;
}

/* In registers and shared memory. */
static bool fit_wide_blocks(onepass_norm_choice *c, int64_t packs) {
  onepass_norm_launch *l = c->l;
  const int64_t held = c->size == 8 ? 3 : 5; /* wide_packs in cuda_blocks.cuh */
  l->wide = true;
  l->packs = 0;
  l->squares = c->moments;
  l->block = (int32_t)onepass_least(onepass_round_up(onepass_divide_up(packs, held), WARP),
                                    WIDE_MOST_THREADS);
  l->chunks =
      (int32_t)onepass_least(onepass_most(0, onepass_divide_up(packs, l->block) - held), 1024);
  l->shared = (size_t)l->chunks * (size_t)l->block * 16;
  return (int64_t)l->shared <= c->device->shared_block - 2048;
}

/* In registers, rows that start anywhere. Places count from the sector that has the first whole pack. */
static bool fit_phased_blocks(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  const int64_t packs = c->n / c->vec + ONEPASS_SECTOR / 16 - 1;
  const int64_t threads = c->size == 2 ? 256 : 512; /* phased_threads in cuda_blocks.cuh */
  if (c->size == 8 || packs > BLOCKS_PACKS * threads) return false;
  /* L1Norm's longer ones of f32 are faster as wide blocks, by 5 to 25 % (docs/experiments.md). */
  if (!c->moments && c->size == 4 && packs > BLOCKS_PACKS * 224) return false;
  l->packs = BLOCKS_PACKS;
  l->block = (int32_t)onepass_round_up(onepass_divide_up(packs, l->packs), WARP);
  if (c->weights == 0) return true;
  const int64_t size = onepass_type_size(c->p->weight_type);
  l->copy_length = onepass_round_up(c->n + c->vec - 1, 128 / size);
  l->launches = 2;
  if (onepass_has(c->layouts, ONEPASS_ROLE_WEIGHT))
    l->weight_copies_at = onepass_reserve(l, c->vec * l->copy_length * size);
  if (onepass_has(c->layouts, ONEPASS_ROLE_BIAS))
    l->bias_copies_at = onepass_reserve(l, c->vec * l->copy_length * size);
  return true;
}

/* Rows that start anywhere and wait in registers: only those of halves with a mean do not take longer, up to a tenth, if
 * rows are asked for ahead. */
static bool loses_by_asking(const onepass_norm_choice *c) {
  const bool gains = c->size == 2 && c->moments && !c->squares;
  return c->l->width == ONEPASS_NORM_PHASED && !c->l->wide && !gains;
}

/* How far ahead the row is that a block asks the second-level cache for; 0: none. Where one row fills a multiprocessor, it
 * is the next one there. Where x and y are more than that cache holds, a tenth of it: with twice as much, y would drive
 * out rows before they are read. docs/experiments.md has the times. */
static int32_t find_lookahead(const onepass_norm_choice *c) {
  const int64_t row = c->n * c->size;
  if (c->l->packs == BLOCKS_MANY_PACKS) return c->device->multiprocessors;
  if (row < AHEAD_LEAST_ROW || c->rows * row <= c->device->l2 / 2) return 0;
  return loses_by_asking(c) ? 0 : (int32_t)(c->device->l2 / AHEAD_SHARE / row);
}

static bool fit_any_blocks(onepass_norm_choice *c) {
  const onepass_norm_width width = c->l->width;
  const int64_t packs = packs_reached(c);
  if (width == ONEPASS_NORM_VECTOR && fit_blocks(c, packs)) return true;
  if (width == ONEPASS_NORM_PHASED && !c->fused && fit_phased_blocks(c)) return true;
  return width != ONEPASS_NORM_SCALAR && c->plain && !c->fused && fit_wide_blocks(c, packs);
}

static bool choose_blocks(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  if (c->p->backward || c->n == 0 || c->rows == 0 || c->rows > INT32_MAX || c->n > INT32_MAX / 2)
    return false;
  if (c->size == 8 && (c->fused || c->channels)) return false;
  l->width = onepass_takes_vectors(c) ? ONEPASS_NORM_VECTOR
             : rows_are_alike(c)      ? ONEPASS_NORM_PHASED
                                      : ONEPASS_NORM_SCALAR;
  l->channels = c->channels;
  l->squares = c->squares;
  l->grid = c->rows;
  l->launches = 1;
  if (!fit_any_blocks(c)) return false;
  l->lookahead = find_lookahead(c);
  return true;
}

/* ---- ring: blocks that stay ------------------------------------------------------------------- */

/* Rows that a block, or a team of blocks, has start at the same place of a sector: its weights wait in
 * registers. The most such blocks, up to `most_blocks`; 0 if there are none. */
static int64_t blocks_in_phase(const onepass_norm_choice *c, int64_t most_blocks) {
  const int64_t blocks = onepass_least(most_blocks, c->rows);
  if (c->l->width == ONEPASS_NORM_VECTOR || blocks == c->rows) return blocks;
  const int64_t step = c->p->rows.stride[0][ONEPASS_ROLE_X] % ONEPASS_SECTOR * c->size;
  int64_t period = 1;
  while (period * step % ONEPASS_SECTOR) period *= 2;
  return blocks / period * period;
}

/* Packs of a thread: the narrow kernel or the broad one. kernels.cu has the same numbers. */
static int64_t ring_packs(const onepass_norm_choice *c, bool broad) {
  if (c->l->squares && broad) return 4;
  if (c->p->backward) return (c->size == 4 ? 3 : 2) + broad;
  return (has_f32_weights(c) ? 2 : 3) + broad;
}

static bool fit_ring(onepass_norm_choice *c, bool broad) {
  onepass_norm_launch *l = c->l;
  const int64_t packs = ring_packs(c, broad), needed = packs_reached(c);
  /* Where there are few rows to sum over, a thread has one pack, as it has the sums of all of them to store. */
  const bool spread = c->summed && needed <= RING_SPREAD_THREADS &&
                      c->rows <= (c->size == 2 ? 4 : 2) * (int64_t)c->device->multiprocessors;
  const int64_t threads =
      onepass_round_up(spread ? needed : onepass_divide_up(needed, packs), WARP);
  const bool small = !c->p->backward && !broad;
  const bool large = c->p->backward && broad && c->size != 4 && !l->squares;
  if (threads > (small || large ? RING_FEW_THREADS : RING_MOST_THREADS)) return false;
  const int64_t slots = c->p->backward ? 2 * RING_BACKWARD : RING_FORWARD;
  l->packs = (int32_t)packs;
  l->broad = broad;
  l->block = (int32_t)threads;
  l->shared = (size_t)(slots * packs * threads * 16);
  if ((int64_t)l->shared > c->device->shared_block - 2048) return false;
  /* By their launch bounds the kernels have no more registers than this. */
  const int64_t registers = small && c->size < 8 ? 80 : small || large ? 168 : 128;
  const int64_t resident =
      onepass_least(REGISTERS / (registers * threads),
                    c->device->shared_multiprocessor / ((int64_t)l->shared + 2048));
  int64_t blocks = onepass_most(1, resident) * c->device->multiprocessors;
  /* Of few long rows, several a block: each block's sums of dweight and dbias are written and read again. */
  if (c->summed) {
    const int64_t few = (c->n <= RING_SHORT       ? 4
                         : c->n <= 2 * RING_SHORT ? 2
                                                  : 1) *
                        (int64_t)c->device->multiprocessors;
    blocks = onepass_least(blocks, onepass_most(few, onepass_divide_up(c->rows, 4)));
  }
  l->grid = blocks_in_phase(c, blocks);
  l->launches = 1;
  return l->grid > 0;
}

/* Forward the one with the fewer idle places is better. Backward, where there is much to do for each, it is the one
 * with more threads at once; of floats both have as many registers, and narrow ones are less in each other's way. */
static bool is_narrow_better(const onepass_norm_choice *c, const onepass_norm_launch *narrow,
                             const onepass_norm_launch *broad) {
  const int64_t chip = c->device->multiprocessors;
  if (!c->p->backward)
    return (int64_t)narrow->packs * narrow->block < (int64_t)broad->packs * broad->block;
  return c->size == 4 || onepass_divide_up(narrow->grid, chip) * narrow->block >=
                             onepass_divide_up(broad->grid, chip) * broad->block;
}

static bool choose_ring(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  if (c->n == 0 || c->rows == 0 || c->n > INT32_MAX / 2 || c->p->rows.ndim > 1) return false;
  if (!onepass_takes_vectors(c) && !rows_are_alike(c)) return false;
  l->width = onepass_takes_vectors(c) ? ONEPASS_NORM_VECTOR : ONEPASS_NORM_PHASED;
  l->squares = c->squares && c->p->backward;
  const onepass_norm_launch nothing = *l;
  const bool narrow_fits = fit_ring(c, false);
  const onepass_norm_launch narrow = *l;
  *l = nothing;
  const bool broad_fits = fit_ring(c, true);
  if (!narrow_fits && !broad_fits) return false;
  if (!broad_fits || (narrow_fits && is_narrow_better(c, &narrow, l))) *l = narrow;
  onepass_reserve_parts(c, l->grid);
  return true;
}

/* ---- stream: teams of blocks ------------------------------------------------------------------ */

/* Packs of a worker. kernels.cu has the same numbers. */
static int64_t stream_packs(const onepass_norm_choice *c) {
  const bool few = has_f32_weights(c) || c->size == 8;
  if (c->p->backward) return few ? 1 : c->size == 4 && c->device->major >= 9 ? 4 : 2;
  return few ? 2 : 4;
}

/* Blocks of a team, for slices of up to `longest` elements; 0 if the chip has too few. As many teams as it has
 * room for, each as large as that leaves it. Slices are not so short that workers have no pack of them. */
static int64_t team_size(const onepass_norm_choice *c, int64_t longest, int64_t least) {
  const int64_t chip = c->device->multiprocessors;
  const int64_t needed = onepass_most(onepass_divide_up(c->n, longest), least);
  if (needed > chip) return 0;
  const int64_t most = onepass_least(chip / needed, c->rows);
  int64_t teams = most;
  /* Where a slice takes no more room than it needs, fewer teams if that leaves fewer multiprocessors without work. */
  for (int64_t fewer = most - 1; c->l->tide && 2 * fewer >= most && fewer > 0; fewer--) {
    if (chip % fewer < chip % teams) teams = fewer;
  }
  const int64_t wanted =
      onepass_least(chip / teams, onepass_divide_up(c->n, STREAM_WORKERS * c->vec));
  return onepass_most(needed, wanted);
}

/* What teams of blocks share, once slices are known. */
static void form_teams(const onepass_norm_choice *c, int64_t teams, int32_t rows_between) {
  onepass_norm_launch *l = c->l;
  l->grid = teams * l->team;
  l->launches = 1;
  if (l->team == 1) return; /* nobody to wait for */
  l->cooperative = true;
  l->launches = 2;
  l->mail_size = (size_t)(ONEPASS_NORM_MAIL_SLOTS(rows_between) * l->copies * l->grid *
                          sums_of_row(c) * c->sums_size * 2);
  l->mail_at = onepass_reserve(l, (int64_t)l->mail_size);
}

static bool choose_slices(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  const int64_t chip = c->device->multiprocessors;
  if (c->channels || (!onepass_takes_vectors(c) && !rows_are_alike(c))) return false;
  l->width = onepass_takes_vectors(c) ? ONEPASS_NORM_VECTOR : ONEPASS_NORM_PHASED;
  l->packs = (int32_t)stream_packs(c);
  const int64_t line = 128 / c->size;
  const int64_t whole = l->width == ONEPASS_NORM_VECTOR ? 0 : line;
  const int64_t of_worker = STREAM_WORKERS * c->vec, longest = l->packs * of_worker - whole;
  int64_t team = team_size(c, longest, 1);
  if (team == 0) return false;
  if (c->moments) { /* teams that are left out for their rows leave blocks to the others */
    const int64_t teams = blocks_in_phase(c, chip / team);
    if (teams < 1) return false;
    team = onepass_most(team, onepass_least(chip / teams, onepass_divide_up(c->n, of_worker)));
  }
  l->slice = onepass_round_up(onepass_divide_up(c->n, team), line);
  l->team = (int32_t)onepass_divide_up(c->n, l->slice);
  if (l->slice > longest || l->team < 2) return false;
  const int64_t slot = l->packs * STREAM_WORKERS * 16 * (c->p->backward ? 2 : 1);
  const int64_t ring = onepass_least((c->device->shared_block - STREAM_MEMORY) / slot,
                                     STREAM_MOST_LOOKAHEAD + 1 + STREAM_ON_THE_WAY);
  l->ring = (int32_t)ring;
  l->lookahead = (int32_t)(ring - 1 - STREAM_ON_THE_WAY);
  l->prefetched = c->size == 2 ? 2 : 1; /* measured */
  if (l->lookahead < 1) return false;
  l->shared = (size_t)(ring * slot);
  const int64_t teams =
      c->moments ? blocks_in_phase(c, chip / l->team) : onepass_least(chip / l->team, c->rows);
  if (teams < 1) return false;
  l->block = STREAM_THREADS;
  l->copies = 1;
  form_teams(c, teams, ONEPASS_NORM_STREAM_ROWS);
  onepass_reserve_parts(c, teams);
  return true;
}

/* Longer slices, which come chunk by chunk: there may be room for little more than one. From 9.0 on, where one thread can
 * copy a chunk. */
static bool choose_tide(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  const int64_t chip = c->device->multiprocessors;
  const bool by_column = c->weights && !c->channels;
  if (c->device->major < 9 || c->p->backward || !c->moments || !onepass_takes_vectors(c))
    return false;
  if (c->size == 8 || (by_column && has_f32_weights(c))) return false;
  const int64_t chunk = TIDE_WRITERS * c->vec, room = TIDE_WRITERS * 16;
  const int64_t slots = (c->device->shared_block - TIDE_MEMORY) / room;
  const int64_t ring = onepass_least(slots - (by_column ? TIDE_BIASES : 0), TIDE_MOST_RING);
  if (ring < 2) return false;
  /* Two rows at once, if they fit, or else a third of the next one while one waits for its sums. */
  const int64_t held = ring * 2 / 3,
                most = by_column ? onepass_least(held, TIDE_MOST_CHUNKS + (c->size == 2)) : held;
  l->tide = true;
  l->channels = !by_column;
  l->width = ONEPASS_NORM_VECTOR;
  l->packs = 1;
  /* Rows of halves do not wait for another block if that can be, or for one; others where all blocks have several. */
  const bool few = by_column && c->size == 2 && c->n <= 2 * most * chunk;
  const int64_t least = few || c->rows >= TIDE_LEAST_ROWS * chip ? 1 : 2;
  int64_t team = few ? 0 : team_size(c, onepass_least(ring / 2, most) * chunk, least);
  if (team == 0) team = team_size(c, most * chunk, least);
  if (team == 0) return false;
  /* Whole lines, or sectors: all slices have as many chunks, but for one that the last may have less. */
  const int64_t share = onepass_divide_up(c->n, team);
  l->slice = onepass_round_up(share, 128 / c->size);
  if (team * l->slice - c->n >= chunk) l->slice = onepass_round_up(share, ONEPASS_SECTOR / c->size);
  l->team = (int32_t)onepass_divide_up(c->n, l->slice);
  l->chunks = (int32_t)onepass_divide_up(l->slice, chunk);
  if (l->slice < chunk || l->chunks > most || l->team * l->slice - c->n >= chunk) return false;
  /* Not more rows at once than there are places for their sums. */
  l->ring = (int32_t)onepass_least(ring, (ONEPASS_NORM_TIDE_ROWS - 2) * l->chunks);
  l->shared = (size_t)((l->ring + (by_column ? TIDE_BIASES : 0)) * room);
  l->block = TIDE_THREADS;
  l->copies = by_column ? TIDE_COPIES : 1; /* measured */
  int64_t teams = onepass_least(chip / l->team, c->rows);
  /* No more of them than all are busy to the end. */
  if (few) teams = onepass_divide_up(c->rows, onepass_divide_up(c->rows, teams));
  form_teams(c, teams, ONEPASS_NORM_TIDE_ROWS);
  return true;
}

/* Whether chunks are faster than whole slices: teams have some rows each, as chunks take longer to begin,
 * and rows of floats are of a few blocks. docs/experiments.md has the times. */
static bool suits_tide(const onepass_norm_choice *c) {
  const onepass_norm_launch *l = c->l;
  const bool halves = c->size == 2;
  const int64_t least = halves && l->team <= 2 ? 2 : TIDE_LEAST_ROWS;
  return c->rows >= least * (l->grid / l->team) && (halves || l->team <= TIDE_MOST_BLOCKS);
}

static bool choose_stream(onepass_norm_choice *c) {
  const onepass_norm_launch nothing = *c->l;
  if (c->n == 0 || c->rows == 0 || c->p->rows.ndim > 1) return false;
  if (choose_tide(c) && suits_tide(c)) return true;
  *c->l = nothing;
  if (choose_slices(c)) return true;
  *c->l = nothing;
  return choose_tide(c);
}

/* ---- passes ---------------------------------------------------------------------------------- */

static bool choose_passes(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  const int64_t chip = c->device->multiprocessors;
  if (c->n == 0 || c->rows == 0) return false;
  l->width = onepass_takes_vectors(c) ? ONEPASS_NORM_VECTOR : ONEPASS_NORM_SCALAR;
  /* Fused ones have no loops for tensors that lie differently. */
  if (c->fused && !l->width && (c->p->backward || !rows_are_alike(c))) return false;
  const int64_t share = onepass_divide_up(c->n, onepass_divide_up(16 * chip, c->rows));
  l->slice = onepass_round_up(onepass_least(onepass_most(share, 4096), INT32_MAX / 4), 1024);
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
        c->summed ? onepass_least(c->rows, onepass_divide_up(8 * chip, pieces)) : c->rows;
    l->row_group = onepass_divide_up(c->rows, groups);
    l->apply_grid = onepass_divide_up(c->rows, l->row_group) * pieces;
  } else if (c->weights && !c->fused && l->width && c->rows > 1 && c->p->rows.ndim <= 1) {
    const int64_t pieces = onepass_divide_up(c->n, PASSES_BLOCK * c->vec);
    l->by_rows = true;
    l->row_group = onepass_least(onepass_most(c->rows * pieces / (16 * chip), 1), PASSES_MOST_ROWS);
    l->apply_grid = onepass_divide_up(c->rows, l->row_group) * pieces;
  } else {
    /* forward_packs in cuda_passes.cuh */
    const int64_t packs = c->size == 2 ? 2 : 4;
    const int64_t width = (PASSES_BLOCK * packs - 1) * c->vec;
    l->apply_grid = c->rows * onepass_divide_up(c->n, width);
  }
  if (l->grid > INT32_MAX || l->apply_grid > INT32_MAX) return false;
  l->merges = c->moments || c->p->backward; /* otherwise each block that writes does */
  l->launches = l->merges ? 3 : 2;
  l->sums_at = onepass_reserve(l, l->grid * sums_of_row(c) * (int64_t)sizeof(double));
  onepass_reserve_parts(c, onepass_divide_up(c->rows, l->row_group));
  return true;
}

/* ---- The ladder ------------------------------------------------------------------------------ */

/* Groups of channels as rows: where they are read once, which is more than those who work on cells can do. */
static bool can_take_groups(const onepass_norm_choice *c, onepass_cuda_kernel kernel) {
  const onepass_role roles[] = {ONEPASS_ROLE_WEIGHT, ONEPASS_ROLE_BIAS};
  const bool with_weights = kernel == ONEPASS_CUDA_BLOCKS || kernel == ONEPASS_CUDA_STREAM;
  if (kernel == ONEPASS_CUDA_STRIDED || kernel == ONEPASS_CUDA_COLUMNS ||
      kernel == ONEPASS_CUDA_PASSES || c->fused || c->summed || c->p->use_running ||
      onepass_has(c->layouts, ONEPASS_ROLE_RUNNING_MEAN)) {
    return false;
  }
  if (!c->channels) return true;
  for (int i = 0; i < 2; i++) {
    if (onepass_has(c->layouts, roles[i]) && c->p->channels > 1 &&
        c->layouts->of[roles[i]].stride[0] != 1) {
      return false;
    }
  }
  return with_weights && !c->p->backward && has_packs_of_channels(c);
}

static bool try_kernel(onepass_norm_choice *c, onepass_cuda_kernel kernel) {
  *c->l = (onepass_norm_launch){.kernel = kernel, .team = 1};
  if (c->by_channel && !can_take_groups(c, kernel)) return false;
  if (kernel == ONEPASS_CUDA_STRIDED) return onepass_choose_strided(c);
  if (c->fused && (kernel == ONEPASS_CUDA_COLUMNS || kernel == ONEPASS_CUDA_RING ||
                   kernel == ONEPASS_CUDA_STREAM)) {
    return false;
  }
  if (kernel == ONEPASS_CUDA_COLUMNS) return onepass_choose_columns(c);
  /* row_of in cuda_common.cuh divides numbers below 2^31. */
  if (!is_dense(c) || (c->p->rows.ndim > 1 && c->rows > INT32_MAX)) return false;
  switch (kernel) {
    case ONEPASS_CUDA_WARPS:
      return onepass_choose_warps(c);
    case ONEPASS_CUDA_BLOCKS:
      return choose_blocks(c);
    case ONEPASS_CUDA_RING:
      return choose_ring(c);
    case ONEPASS_CUDA_STREAM:
      return choose_stream(c);
    case ONEPASS_CUDA_PASSES:
      return choose_passes(c);
    default:
      return false;
  }
}

/* Whether one block a row would leave most of the chip without work that the others could do sooner, for all that they have to
 * tell each other. */
static bool leaves_chip_idle(const onepass_norm_choice *c) {
  return c->rows * 2 < c->device->multiprocessors &&
         c->n * c->size > (c->p->backward ? 32768 : 65536);
}

/* So little that blocks would wait for each other longer than it takes to read it twice, if launches overlap.
 * Backward, rows that are not aligned are read element by element, and with dweight and dbias there is more to be merged. */
static bool suits_passes(const onepass_norm_choice *c) {
  const bool aligned = onepass_takes_vectors(c);
  int64_t most; /* KiB of x */
  if (c->device->major < 9) return false;
  if (!c->p->backward) {
    most = c->moments || c->size == 2 ? 4096 : 12288;
  } else if (!c->moments) {
    most = aligned ? 8192 : 2048;
  } else {
    most = aligned && c->size > 2 ? 768 : 0;
  }
  return c->rows * c->n * c->size >> 10 < most;
}

/* A warp could hold more of a row, but blocks do such rows faster; and few rows of halves whose sums are in several parts,
 * as a lane would have those of sixteen columns. */
static bool suits_warps(const onepass_norm_choice *c) {
  const onepass_norm_launch *l = c->l;
  if (l->width == ONEPASS_NORM_SCALAR) return true;
  const bool has_many_sums = c->summed && !l->direct && c->size == 2 && l->packs == 2;
  if (has_many_sums && c->rows <= 2 * (int64_t)c->device->multiprocessors) return false;
  return c->n <= 64 * c->vec;
}

/* Others that rows fit in do some of them faster: few rows that start anywhere are not worth copies of their weights, by
 * another launch. */
static bool suits_blocks(const onepass_norm_choice *c) {
  const int64_t least = c->size == 2 ? PHASED_LEAST_HALVES : PHASED_LEAST;
  const bool is_short_of_rows = c->l->copy_length && c->rows * c->n * c->size < least;
  return c->l->packs <= BLOCKS_PACKS && !is_short_of_rows;
}

static bool choose_best(onepass_norm_choice *c) {
  if (!is_dense(c)) {
    return try_kernel(c, ONEPASS_CUDA_COLUMNS) || try_kernel(c, ONEPASS_CUDA_STRIDED);
  }
  if (try_kernel(c, ONEPASS_CUDA_WARPS) && suits_warps(c)) return true;
  if (!leaves_chip_idle(c)) {
    if (try_kernel(c, ONEPASS_CUDA_BLOCKS) && suits_blocks(c)) return true;
    if (try_kernel(c, ONEPASS_CUDA_RING)) return true;
    if (try_kernel(c, ONEPASS_CUDA_BLOCKS)) return true;
  }
  if (suits_passes(c) && try_kernel(c, ONEPASS_CUDA_PASSES)) return true;
  return try_kernel(c, ONEPASS_CUDA_STREAM) || try_kernel(c, ONEPASS_CUDA_PASSES) ||
         try_kernel(c, ONEPASS_CUDA_STRIDED);
}

bool onepass_norm_choose_cuda(const onepass_norm_problem *problem, const onepass_layouts *layouts,
                              const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                              onepass_norm_alignment alignment, onepass_norm_launch *launch) {
  const int64_t size = onepass_type_size(problem->type);
  onepass_norm_choice c = {
      .p = problem,
      .layouts = layouts,
      .device = device,
      .alignment = alignment,
      .moments = problem->op->statistic == ONEPASS_STATISTIC_MOMENTS,
      .fused = problem->activation || (layouts->present & FUSED_ROLES),
      /* Doubles have no kernels for squares alone. */
      .plain = problem->op->statistic == ONEPASS_STATISTIC_ABS ||
               (size < 8 && problem->op->denominator != ONEPASS_BY_DEVIATION &&
                !onepass_has(layouts, ONEPASS_ROLE_WEIGHT)),
      .squares = size < 8 && problem->op->denominator != ONEPASS_BY_DEVIATION &&
                 problem->op->statistic == ONEPASS_STATISTIC_MOMENTS &&
                 problem->weight_type == problem->type,
      .by_channel = onepass_norm_by_channel(problem),
      .channels = onepass_norm_by_channel(problem) && (onepass_has(layouts, ONEPASS_ROLE_WEIGHT) ||
                                                       onepass_has(layouts, ONEPASS_ROLE_BIAS)),
      .rows = problem->rows.count,
      .n = problem->elements.count,
      .size = size,
      .vec = 16 / size,
      .sums_size = onepass_type_size(onepass_type_of_sums(problem->type)),
      .weights =
          onepass_has(layouts, ONEPASS_ROLE_WEIGHT) + onepass_has(layouts, ONEPASS_ROLE_BIAS),
      .summed =
          onepass_has(layouts, ONEPASS_ROLE_DWEIGHT) + onepass_has(layouts, ONEPASS_ROLE_DBIAS),
      .l = launch};
  return asked == ONEPASS_CUDA_BEST ? choose_best(&c) : try_kernel(&c, asked);
}

onepass_ahead_roles onepass_norm_choose_ahead(const onepass_norm_launch *launch,
                                              const onepass_layouts *layouts,
                                              const onepass_cuda_properties *device) {
  const int64_t few_blocks = launch->singles ? ONEPASS_FEW_BLOCKS_OF_SINGLES : ONEPASS_FEW_BLOCKS;
  onepass_ahead_roles roles =
      onepass_choose_ahead(layouts, launch->grid, launch->block, few_blocks, device);
  /* One element after the other is soon done: waiting for arguments that it may not need would take longer. */
  if (launch->singles && launch->width == ONEPASS_NORM_SCALAR) roles.arguments = false;
  return roles;
}

const char *onepass_cuda_kernel_name(onepass_cuda_kernel kernel) {
  static const char *const names[] = {"best",   "warps",   "blocks",  "ring",    "stream",
                                      "passes", "columns", "strided", "windows", "points"};
  return names[kernel];
}
