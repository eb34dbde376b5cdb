/* How many blocks and how much shared memory a normalization takes on a GPU where the elements of a row are not side by
 * side: `columns`, where those of neighbouring rows are, and `strided` otherwise. */
#include "norm/launch_choice.h"

/* As in the kernels' headers. */
enum {
  COLUMNS_BLOCK = 256,
  COLUMNS_KEPT = 8,
  COLUMNS_KEPT_BACKWARD = 4,
  COLUMNS_WIDE = 256, /* bytes that lanes read together, if there are enough strips for the chip */
  COLUMNS_NARROWEST = 64, /* and if rows can wait in shared memory then */
  COLUMNS_MEMORY = 22528, /* shared memory of a block besides the rows, at most */
  STRIDED_BLOCK = 256
};

/* ---- columns --------------------------------------------------------------------------------- */

bool onepass_rows_are_side_by_side(const onepass_norm_choice *c) {
  const onepass_walk *rows = &c->p->rows;
  for (int i = 0; i < ONEPASS_WHOLE_ROLE_COUNT; i++) {
    if (onepass_has(c->layouts, onepass_whole_roles[i]) &&
        rows->stride[rows->ndim - 1][onepass_whole_roles[i]] != 1) {
      return false;
    }
  }
  return true;
}

static bool lanes_are_dense(const onepass_norm_choice *c) {
  const onepass_walk *rows = &c->p->rows;
  /* Sums over rows, which are the lanes here, are for `strided`. */
  if (c->summed || c->n == 0 || c->rows == 0 || rows->ndim == 0 || c->p->elements.ndim > 1 ||
      c->n > INT32_MAX / 2) {
    return false;
  }
  return onepass_rows_are_side_by_side(c);
}

bool onepass_choose_columns(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  if (!lanes_are_dense(c)) return false;
  const onepass_walk *rows = &c->p->rows;
  const int64_t inner = rows->size[rows->ndim - 1];
  const int64_t pack = onepass_least(c->vec, 4); /* more would not fit in the registers */
  bool vector = inner % pack == 0 && onepass_rows_are_aligned(c, pack, 1);
  for (int i = 0; i < ONEPASS_WHOLE_ROLE_COUNT; i++) {
    if (onepass_has(c->layouts, onepass_whole_roles[i]) && c->n > 1 &&
        c->p->elements.stride[0][onepass_whole_roles[i]] % pack) {
      vector = false;
    }
  }
  l->width = vector ? ONEPASS_NORM_VECTOR : ONEPASS_NORM_SCALAR;
  const int64_t vec = vector ? pack : 1, bytes = vec * c->size, batches = c->rows / inner;
  const int64_t kept = c->p->backward ? COLUMNS_KEPT_BACKWARD : COLUMNS_KEPT;
  /* As wide as rows can wait in registers, or else as COLUMNS_WIDE says ... */
  int64_t lanes = COLUMNS_BLOCK;
  while (c->n > kept * (COLUMNS_BLOCK / lanes) && lanes / 2 * bytes >= COLUMNS_WIDE) lanes /= 2;
  while (lanes > 1 && lanes / 2 * vec >= inner) lanes /= 2;
  /* ... but narrower where there would be fewer blocks than the chip has room for. */
  while (lanes / 2 * bytes >= ONEPASS_SECTOR && onepass_divide_up(inner, lanes * vec) * batches <
                                                    4 * (int64_t)c->device->multiprocessors) {
    lanes /= 2;
  }
  /* What registers have no room for waits in shared memory, of two blocks on a multiprocessor. */
  const int64_t room =
      onepass_least(c->device->shared_block, c->device->shared_multiprocessor / 2) - COLUMNS_MEMORY;
  for (int64_t narrow = lanes;; narrow /= 2) {
    const int64_t rest = onepass_divide_up(c->n, COLUMNS_BLOCK / narrow) - kept;
    const int64_t shared = rest * COLUMNS_BLOCK * bytes * (c->p->backward ? 2 : 1);
    if (shared <= room) {
      lanes = narrow;
      l->chunks = (int32_t)onepass_most(rest, 0);
      l->shared = (size_t)onepass_most(shared, 0);
      break;
    }
    if (narrow / 2 * bytes < COLUMNS_NARROWEST) break; /* they are read twice */
  }
  l->segments = onepass_divide_up(inner, lanes * vec);
  if (l->segments * batches > INT32_MAX) return false;
  l->squares = c->p->op->denominator != ONEPASS_BY_DEVIATION && c->moments;
  l->team = (int32_t)lanes;
  l->block = COLUMNS_BLOCK;
  l->grid = l->segments * batches;
  l->launches = 1;
  return true;
}

/* ---- strided --------------------------------------------------------------------------------- */

bool onepass_choose_strided(onepass_norm_choice *c) {
  onepass_norm_launch *l = c->l;
  const int64_t chip = c->device->multiprocessors;
  l->block = STRIDED_BLOCK;
  l->grid = onepass_least(c->rows, 16 * chip);
  l->launches = 1;
  if (c->summed) {
    const int64_t pieces = onepass_most(1, onepass_divide_up(c->n, STRIDED_BLOCK));
    const int64_t rows = onepass_most(1, c->rows);
    l->row_group =
        onepass_divide_up(rows, onepass_least(rows, onepass_divide_up(8 * chip, pieces)));
    const int64_t groups = onepass_divide_up(c->rows, l->row_group);
    l->apply_grid = groups * pieces;
    l->launches = 3;
    l->sums_at = onepass_reserve(l, c->rows * (int64_t)sizeof(double));
    onepass_reserve_parts(c, groups);
    if (l->apply_grid > INT32_MAX) return false;
  }
  return true;
}
