/* Poolings backward on a GPU: how dx is cut into packs or tiles. */
#include "core/numbers.h"
#include "core/plan.h"
#include "pool/launch_cuda_boxes.h"

enum {
  DROPS_BYTES = 49152, /* of a tile of gradients */
  CHANNEL_DROPS_BLOCK = 128,
  CHANNEL_DROPS_BYTES = 256, /* of a tile of one channel */
  FEWEST_OF_TILE = 8         /* elements, however few tiles that makes */
};

/* ---- Gradients ------------------------------------------------------------------------------- */

/* Whether planes of dx are dense; how many elements they have. */
static bool has_dense_gradients(const onepass_pool_problem *p, const onepass_box_args *args,
                                int64_t *elements) {
  if (!p->backward || args->inner != 1 || args->outer == 0 || !onepass_box_is_narrow(args))
    return false;
  *elements = 1;
  for (int a = ONEPASS_POOL_AXES - 1; a >= 0; a--) {
    if (args->axis[a].length > 1 && args->axis[a].step[ONEPASS_BOX_DX] != *elements) return false;
    *elements *= args->axis[a].length;
  }
  return *elements > 0;
}

/* Averages: a thread has 16 bytes. */
bool onepass_box_choose_returns(const onepass_pool_problem *p, bool any_address,
                                onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  const int64_t vec = 16 / onepass_type_size(p->type);
  int64_t elements;
  if (p->op != ONEPASS_AVG_POOL || args->many_terms || !has_dense_gradients(p, args, &elements))
    return false;
  const int64_t packs = onepass_divide_up(elements, vec);
  if (args->outer > ONEPASS_BOX_MOST / packs) return false;
  args->packs = (int32_t)packs;
  args->by_packs = onepass_divider_of(packs);
  args->walk.even = l->aligned = !any_address && elements % vec == 0 &&
                                 (args->outer == 1 || args->outer_step[ONEPASS_BOX_DX] % vec == 0);
  l->kernel = ONEPASS_CUDA_WINDOWS;
  l->name = "returns_avg";
  l->grid = onepass_divide_up(args->outer * packs, ONEPASS_BOX_BLOCK);
  return true;
}

/* As many neighbouring outputs as may have elements in common. */
static int64_t classes_along(const onepass_box_axis *axis, bool adaptive) {
  if (!adaptive) return onepass_divide_up(axis->extent, axis->stride);
  const int64_t pooled = onepass_most(axis->pooled, 1), length = onepass_most(axis->length, 1);
  return onepass_divide_up(pooled, length) + 1;
}

/* Maxima: a block has a tile, of whole rows if it has several of them, and of whole planes likewise. */
bool onepass_box_choose_drops(const onepass_pool_problem *p, bool any_address,
                              onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  onepass_box_drops *drops = &args->drops;
  const onepass_box_axis *axis = args->axis;
  const int64_t vec = 16 / onepass_type_size(p->type);
  const int64_t sums = onepass_type_size(onepass_type_of_sums(p->type)), room = DROPS_BYTES / sums;
  int64_t elements, size = 1, tiles = 1;
  if (p->op != ONEPASS_MAX_POOL || !has_dense_gradients(p, args, &elements)) return false;
  for (int a = ONEPASS_POOL_AXES - 1; a >= 0; a--) {
    const int64_t classes = classes_along(&axis[a], args->adaptive);
    if (classes > ONEPASS_BOX_WARP) return false; /* pieces of rows are that long */
    drops->classes[a] = (int32_t)onepass_least(classes, onepass_most(axis[a].pooled, 1));
    /* Tiles of about the same size, that begin with packs. */
    const int64_t fits = tiles == 1 ? onepass_most(room / size, 1) : 1;
    int64_t tile = onepass_divide_up(axis[a].length, onepass_divide_up(axis[a].length, fits));
    if (a == 2) tile = onepass_least(onepass_round_up(tile, vec), axis[a].length);
    drops->tile[a] = (int32_t)tile;
    drops->tiles[a] = (int32_t)onepass_divide_up(axis[a].length, tile);
    size *= drops->tile[a];
    tiles *= drops->tiles[a];
  }
  const bool side_by_side = args->outer == 1 || args->outer_step[ONEPASS_BOX_DX] == elements;
  drops->planes = 1;
  if (tiles == 1 && side_by_side) {
    drops->planes = (int32_t)onepass_least(onepass_most(room / 2 / elements, 1), args->outer);
  }
  const int64_t outer_step = args->outer > 1 ? args->outer_step[ONEPASS_BOX_DX] : 0;
  args->walk.even = l->aligned = !any_address && elements % vec == 0 && outer_step % vec == 0 &&
                                 (tiles == 1 || axis[2].length % vec == 0);
  const double blocks = (double)onepass_divide_up(args->outer, drops->planes) * (double)tiles;
  if (blocks > INT32_MAX) return false;
  l->kernel = ONEPASS_CUDA_WINDOWS;
  l->name = "drops_max";
  l->shared = (size_t)(drops->planes * size * sums);
  l->grid = (int64_t)blocks;
  return true;
}

/* How far a tile's windows reach beyond it along an axis, and how far apart they are. */
static int64_t reach_of(const onepass_box_axis *axis, bool adaptive, int64_t *apart) {
  *apart = adaptive ? onepass_divide_up(axis->length, onepass_most(axis->pooled, 1)) : axis->stride;
  return adaptive ? 1 : onepass_most(axis->extent - axis->stride, 0);
}

/* A tile of at most so many elements: whole steps of the windows, and long where they reach far. */
static void choose_tile(const onepass_box_args *args, int64_t room, onepass_box_drops *drops) {
  int64_t tile[ONEPASS_POOL_AXES], apart[ONEPASS_POOL_AXES], reach[ONEPASS_POOL_AXES], size = 1;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    reach[a] = reach_of(&args->axis[a], args->adaptive, &apart[a]);
    tile[a] = onepass_least(onepass_least(apart[a], args->axis[a].length), room);
    size *= tile[a];
  }
  while (size > room) {
    int longest = 0;
    for (int a = 1; a < ONEPASS_POOL_AXES; a++) longest = tile[a] > tile[longest] ? a : longest;
    size = size / tile[longest] * onepass_divide_up(tile[longest], 2);
    tile[longest] = onepass_divide_up(tile[longest], 2);
  }
  for (;;) {
    int best = -1;
    for (int a = ONEPASS_POOL_AXES - 1; a >= 0; a--) {
      if (tile[a] >= args->axis[a].length) continue;
      if (best < 0 || reach[a] * tile[best] > reach[best] * tile[a]) best = a;
    }
    if (best < 0 || 2 * size > room) break;
    tile[best] *= 2;
    size *= 2;
  }
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    const int64_t length = args->axis[a].length;
    /* Of about the same size. */
    int64_t even = onepass_divide_up(length, onepass_divide_up(length, tile[a]));
    if (tile[a] % apart[a] == 0) even = onepass_round_up(even, apart[a]);
    drops->tile[a] = (int32_t)onepass_least(even, length);
    drops->tiles[a] = (int32_t)onepass_divide_up(length, drops->tile[a]);
  }
}

/* Maxima of channels that lie side by side: a thread has a tile of one of them. */
bool onepass_box_choose_channel_drops(const onepass_pool_problem *p,
                                      const onepass_cuda_properties *device,
                                      onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  const int64_t sums = onepass_type_size(onepass_type_of_sums(p->type));
  if (p->op != ONEPASS_MAX_POOL || !p->backward || !args->channels_last ||
      !onepass_box_is_narrow(args) || args->outer == 0 || onepass_box_made_of_outer(args, 1) == 0) {
    return false;
  }
  double tiles;
  for (int64_t room = CHANNEL_DROPS_BYTES / sums;; room /= 2) {
    choose_tile(args, room, &args->drops);
    tiles = (double)args->drops.tiles[0] * (double)args->drops.tiles[1] *
            (double)args->drops.tiles[2] * (double)args->inner * (double)args->outer;
    if (room <= FEWEST_OF_TILE || tiles >= 1024.0 * device->multiprocessors) break;
  }
  if (tiles > ONEPASS_BOX_MOST) return false;
  const int64_t size = (int64_t)args->drops.tile[0] * args->drops.tile[1] * args->drops.tile[2];
  args->by_inner = onepass_divider_of(args->inner);
  l->kernel = ONEPASS_CUDA_WINDOWS;
  l->name = "drops_max_channels";
  l->block = CHANNEL_DROPS_BLOCK;
  l->shared = (size_t)(size * CHANNEL_DROPS_BLOCK * sums);
  l->grid = onepass_divide_up((int64_t)tiles, CHANNEL_DROPS_BLOCK);
  return true;
}
