/* How many lanes, packs and blocks rows take that are short enough for the registers of a warp, and rows of one element. */
#include "norm/launch_choice.h"

/* As in the kernels' headers. */
enum {
  WARP = 32,
  WARPS_THREADS = 256,
  WARPS_ROWS = 2,
  WARPS_FEW_THREADS = 64,
  SINGLES_THREADS = 256,
  SINGLES_MOST_THREADS = 1024,
  SINGLES_ROWS = 4,
  SINGLES_MANY = 3 << 16 /* bytes */
};

/* ---- Rows of one element ---------------------------------------------------------------------- */

static bool choose_singles(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  if (c->n != 1 || c->rows == 0 || c->p->rows.ndim > 1 || c->fused ||
      (c->moments && c->p->op->denominator != ONEPASS_BY_DEVIATION)) {
    return false;
  }
  l->packs = 1;
  l->block = SINGLES_THREADS;
  /* Of many, packs; forward, moments of several rows a thread. Where they are summed, threads go on. */
  const bool packed = !c->moments && c->rows * c->size >= SINGLES_MANY &&
                      c->alignment == ONEPASS_NORM_ALIGNED && onepass_rows_are_side_by_side(c);
  const int64_t units = packed ? onepass_divide_up(c->rows, c->vec) : c->rows;
  const int64_t blocks = onepass_divide_up(units, SINGLES_THREADS),
                many = 4 * (int64_t)c->device->multiprocessors;
  l->width = packed ? ONEPASS_NORM_VECTOR : ONEPASS_NORM_SCALAR;
  l->grid = onepass_least(blocks, !c->moments ? INT32_MAX : many);
  if (c->moments && !c->p->backward)
    l->grid = onepass_most(l->grid, onepass_divide_up(blocks, SINGLES_ROWS));
  if (l->grid > INT32_MAX) return false;
  if (c->summed && onepass_can_be_direct(c) && c->rows <= 2 * SINGLES_MOST_THREADS) {
    l->block = (int32_t)onepass_least(onepass_round_up(c->rows, WARP), SINGLES_MOST_THREADS);
    l->grid = 1;
  }
  l->singles = true;
  l->launches = 1;
  onepass_reserve_parts(c, l->grid);
  return true;
}

/* ---- Short rows -------------------------------------------------------------------------------- */

/* Of a block, backward; kernels.cu has the same numbers. */
static int32_t most_warps_threads(const onepass_norm_choice *c) {
  const bool light = c->l->width == ONEPASS_NORM_SCALAR && c->l->packs <= 4;
  return 4 * WARPS_THREADS / (light ? 1 : 2) / (c->size == 8 ? 2 : 1);
}

/* Blocks on a multiprocessor, backward, by the registers that their kernels have. */
static int64_t warps_at_once(const onepass_norm_choice *c) {
  const onepass_norm_launch *l = c->l;
  if (l->width == ONEPASS_NORM_SCALAR && c->size < 8) return l->packs <= 4 ? 4 : 3;
  return l->packs == 1 ? 3 : 2;
}

/* One block, if it can have all rows at once: it then writes dweight and dbias itself, and no other launch adds up those
 * of several. A team has a row at a time, or two of few packs (kernels.cu has the same numbers). */
static void prefer_one_block(const onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  if (!c->summed || !onepass_can_be_direct(c)) return;
  const bool twice = l->packs == 1 || (l->packs == 2 && l->width == ONEPASS_NORM_SCALAR);
  const int32_t most = most_warps_threads(c);
  const int64_t rows_of_thread = twice ? 2 : 1;
  int32_t block = c->rows == 1 ? WARP : WARPS_THREADS; /* a single row's sums are its own */
  while (block < most && c->rows > block / l->team * rows_of_thread) block *= 2;
  if (c->rows > block / l->team * rows_of_thread) return;
  l->block = block;
  l->grid = 1;
}

bool onepass_choose_warps(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  if (choose_singles(c)) return true;
  l->width = onepass_takes_vectors(c) ? ONEPASS_NORM_VECTOR : ONEPASS_NORM_SCALAR;
  const int64_t vec = l->width ? c->vec : 1, packs_of_row = onepass_divide_up(c->n, vec);
  const int64_t most_packs = !l->width ? 8 : c->fused ? 4 : 2;
  if (c->n == 0 || c->rows == 0 || packs_of_row > WARP * most_packs) return false;
  if (c->fused && (c->p->backward || c->size == 8)) return false;
  /* Several packs a lane are several loads under way, and fewer lanes to add up the sums of. Single elements: a row's
   * lanes still read 128 bytes at once. Backward a lane has sums of its columns, so it has few. */
  const int64_t lanes_worth = !l->width ? 128 / c->size : c->p->backward ? WARP : 1;
  l->packs = 1;
  while (l->packs < onepass_least(4, most_packs) && packs_of_row >= 2 * l->packs * lanes_worth) {
    l->packs *= 2;
  }
  while (packs_of_row > WARP * l->packs) l->packs *= 2;
  if (c->fused) l->packs = (int32_t)most_packs; /* there is one kernel of each width */
  l->team = (int32_t)onepass_power_of_two_from(onepass_divide_up(packs_of_row, l->packs));
  l->squares = c->squares && l->width;
  l->full = l->width && !c->p->backward && l->packs == 2 && packs_of_row == 2 * l->team &&
            onepass_has_full_kernels(c);
  /* Backward goes on from row to row. */
  const bool few = l->width && !c->fused && !c->p->backward;
  const int64_t rows_of_team = few ? WARPS_ROWS : 1;
  l->block = few ? WARPS_FEW_THREADS : WARPS_THREADS;
  const int64_t blocks = onepass_divide_up(c->rows, l->block / l->team * rows_of_team);
  /* Where nothing is summed over rows, a row a team: a new block costs no more than a new row. */
  l->grid =
      c->summed ? onepass_least(blocks, warps_at_once(c) * c->device->multiprocessors) : blocks;
  prefer_one_block(c);
  if (l->grid > INT32_MAX) l->grid = INT32_MAX; /* backward goes on from row to row */
  if (l->grid < blocks && !c->p->backward) return false;
  l->launches = 1;
  l->shared = c->summed ? (size_t)(l->block / WARP * 2 * c->n * c->sums_size) : 0;
  onepass_reserve_parts(c, l->grid);
  return true;
}
