/* Poolings forward of planes whose rows are dense: how threads walk through them, slide along them or share bands. */
#include <string.h>

#include "core/numbers.h"
#include "core/plan.h"
#include "pool/launch_cuda_boxes.h"

enum {
  MOST_ALONG = 64,  /* elements of a window along an axis, that a thread goes through */
  LONG_ROW = 32,    /* packs of a row whose ends, within packs, do not matter */
  WALK_BLOCK = 128, /* threads that walk */
  SLIDES_BLOCK = 128,
  SLIDE_ROWS = 12,   /* of outputs, that a strip has; more would be further apart in memory */
  SLIDE_TURN = 4,    /* rows that a strip asks for at a time, at most */
  SLIDE_MARGIN = 16, /* columns between two strips in shared memory, as in cuda_slides.cuh */
  BANDS_BLOCK = 512,
  FEWEST_PACKS_OF_BAND = 4, /* in a row of inputs */
  BAND_WALK = 4,            /* rows of outputs that a strip has, at most */
  MOST_ROWS_OF_BAND = 64,   /* of a window */
  FEWEST_OF_BAND = 16,      /* elements of a window, so that bands beat walks */
  PLANES_AT_ONCE = 4        /* at most, that a walk asks for before it looks at the first */
};

/* ---- Walks ----------------------------------------------------------------------------------- */

static bool is_trivial(const onepass_box_axis *axis) {
  return axis->length == 1 && axis->kernel == 1;
}

/* The axes as threads walk through them: planes from their top to their bottom, lines from one to the next. */
static void turn_axes(onepass_box_args *args) {
  onepass_box_axis *axis = args->axis;
  const int64_t wide = axis[2].length, high = axis[1].length;
  int64_t *index_step = args->walk.index_step;
  if (!is_trivial(&axis[0])) {
    memcpy(index_step, (int64_t[]){high * wide, wide, 1}, sizeof args->walk.index_step);
  } else if (is_trivial(&axis[1])) {
    axis[0] = (onepass_box_axis){.kernel = 1,
                                 .stride = 1,
                                 .dilation = 1,
                                 .extent = 1,
                                 .length = args->outer,
                                 .pooled = args->outer,
                                 .count = args->outer,
                                 .by_dilation = onepass_divider_of(1)};
    memcpy(axis[0].step, args->outer_step, sizeof axis[0].step);
    args->outer = 1;
    memcpy(index_step, (int64_t[]){0, wide, 1}, sizeof args->walk.index_step);
  } else {
    const onepass_box_axis none = axis[0];
    axis[0] = axis[1];
    axis[1] = none;
    memcpy(index_step, (int64_t[]){wide, 0, 1}, sizeof args->walk.index_step);
  }
}

/* Windows of as many elements as a thread may go through. */
static bool has_handy_windows(const onepass_box_args *args) {
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    if (args->axis[a].kernel > MOST_ALONG) return false;
  }
  return args->axis[0].extent <= MOST_ALONG && args->axis[0].kernel * args->axis[1].kernel <= 128;
}

/* Planes that no window has, by what is left of them after the stride. */
static uint64_t gaps_of(const onepass_box_axis *axis) {
  uint64_t gaps = 0;
  if (axis->stride > 64) return 0; /* all are looked at */
  for (int64_t left = 0; left < axis->stride; left++) {
    bool found = false;
    for (int64_t k = 0; k < axis->kernel; k++) found |= k * axis->dilation % axis->stride == left;
    if (!found) gaps |= UINT64_C(1) << left;
  }
  return gaps;
}

/* The chunk that makes at least so many blocks, if there are as many outputs. */
static int64_t chunk_for(const onepass_box_axis *axis, int64_t blocks, int64_t others) {
  return onepass_divide_up(axis->pooled,
                           onepass_least(axis->pooled, onepass_divide_up(blocks, others)));
}

/* Outputs of the first axis that a thread walks along: so many that little is read twice at its
 * beginning, so few that the last blocks do not run alone for long. */
static int64_t chunk_of(const onepass_box_axis *axis, int64_t others,
                        const onepass_cuda_properties *device) {
  const int64_t overlap = onepass_most(axis->extent - axis->stride, 0);
  const int64_t worth = onepass_most(16, onepass_divide_up(20 * overlap, axis->stride));
  const int64_t few = 12 * (int64_t)device->multiprocessors, many = 4 * few;
  int64_t chunk = onepass_least(worth, axis->pooled);
  if (onepass_divide_up(axis->pooled, chunk) * others < many) {
    const int64_t bearable = onepass_most(4, onepass_divide_up(10 * overlap, axis->stride));
    chunk = onepass_most(chunk_for(axis, many, others), onepass_least(chunk, bearable));
  }
  if (onepass_divide_up(axis->pooled, chunk) * others < few) chunk = chunk_for(axis, few, others);
  return onepass_least(chunk, axis->pooled);
}

/* Kernels for windows of so many rows and columns, with that stride and dilation along their rows; 0 is any. Only
 * those whose names begin with "steps" make a single output at a time. */
#define OF_THREE(kind, window) \
  { kind "avg" window, kind "max" window, kind "max_indices" window }
static const struct {
  int64_t rows, columns, stride, dilation;
  const char *name[3]; /* averages, maxima, maxima and where they are */
} walks[] = {{1, 2, 2, 1, OF_THREE("walks_", "_1_2_2_1")},
             {1, 3, 1, 1, OF_THREE("walks_", "_1_3_1_1")},
             {1, 3, 2, 1, OF_THREE("walks_", "_1_3_2_1")},
             {2, 2, 2, 1, OF_THREE("walks_", "_2_2_2_1")},
             {3, 3, 1, 1, OF_THREE("walks_", "_3_3_1_1")},
             {3, 3, 2, 1, OF_THREE("walks_", "_3_3_2_1")},
             {1, 8, 1, 3, {NULL, "walks_max_1_8_1_3", NULL}},
             {3, 3, 2, 3, {NULL, "walks_max_3_3_2_3", NULL}},
             {1, 2, 0, 1, OF_THREE("steps_", "_1_2")},
             {1, 3, 0, 1, OF_THREE("steps_", "_1_3")},
             {0, 0, 0, 0, OF_THREE("steps_", "_0_0")}};
static bool is_or_any(int64_t number, int64_t wanted) { return number == 0 || number == wanted; }

static bool is_step(const char *name) { return strncmp(name, "steps", 5) == 0; }

static const char *name_walk(const onepass_box_axis *axis, int op, bool may_be_wide) {
  for (size_t i = 0;; i++) {
    const char *name = walks[i].name[op];
    if (name && (may_be_wide || is_step(name)) && is_or_any(walks[i].rows, axis[1].kernel) &&
        is_or_any(walks[i].columns, axis[2].kernel) && is_or_any(walks[i].stride, axis[2].stride) &&
        is_or_any(walks[i].dilation, axis[2].dilation)) {
      return name;
    }
  }
}

/* Whether rows are whole packs of 16 bytes apart. */
static bool has_steady_rows(const onepass_box_args *args, int tensor, int64_t vec) {
  const bool is_long = tensor == ONEPASS_BOX_X;
  if (args->outer > 1 && args->outer_step[tensor] % vec) return false;
  for (int a = 0; a < 2; a++) {
    const onepass_box_axis *axis = &args->axis[a];
    if ((is_long ? axis->length : axis->pooled) > 1 && axis->step[tensor] % vec) return false;
  }
  return true;
}

/* Strips of an axis, each made by a power of two of threads with a pack of columns each: as few threads as will do,
 * and of as many strips as few. */
static onepass_box_strips strips_of(const onepass_box_axis *along, int64_t vec, bool by_packs,
                                    int64_t most_lanes) {
  onepass_box_strips best = {0};
  for (int64_t lanes = 4; lanes <= most_lanes; lanes *= 2) {
    /* Columns between the first pack that a strip needs and its last window's end, at most. */
    const bool begins_with_packs = along->stride % vec == 0 && along->padding % vec == 0;
    const int64_t before = by_packs && !begins_with_packs ? vec - 1 : 0;
    const int64_t room = lanes * vec - before - along->extent;
    if (room < 0) continue;
    /* Strips begin with even outputs, which halves are stored two by two from. */
    int64_t most = room / along->stride + 1;
    if (most > 1 && most < along->pooled) most -= most % 2;
    const int64_t strips = onepass_divide_up(along->pooled, most);
    if (best.lanes && strips * lanes > (int64_t)best.strips * best.lanes) continue;
    const int64_t outputs = onepass_divide_up(along->pooled, strips);
    best = (onepass_box_strips){.outputs = (int32_t)onepass_least(outputs + outputs % 2, most),
                                .strips = (int32_t)strips,
                                .by_strips = onepass_divider_of(strips),
                                .lanes = (int32_t)lanes};
  }
  return best;
}

/* ---- Slides ---------------------------------------------------------------------------------- */

/* Squares of 2 to 5 that are an element apart. */
static bool choose_slides(const onepass_pool_problem *p, bool indices, bool any_address,
                          const onepass_cuda_properties *device, onepass_box_launch *l) {
  static const char *const names[][2] = {{"slides_avg_2", "slides_max_2"},
                                         {"slides_avg_3", "slides_max_3"},
                                         {"slides_avg_4", "slides_max_4"},
                                         {NULL, "slides_max_5"}};
  onepass_box_args *args = &l->args;
  onepass_box_strips *strips = &args->strips;
  const onepass_box_axis *axis = args->axis;
  const int64_t vec = 16 / onepass_type_size(p->type), kernel = axis[0].kernel;
  if (indices || vec == 2 || kernel < 2 || kernel > 5 || axis[2].kernel != kernel ||
      axis[1].kernel != 1 || axis[0].stride != 1 || axis[0].dilation != 1 || axis[2].stride != 1 ||
      axis[2].dilation != 1 || !names[kernel - 2][p->op == ONEPASS_MAX_POOL]) {
    return false;
  }
  const bool by_packs = args->walk.steady && !any_address && axis[2].length % vec == 0;
  *strips = strips_of(&axis[2], vec, by_packs, ONEPASS_BOX_WARP);
  strips->by_packs = by_packs;
  const double units = (double)args->outer * (double)axis[1].pooled * (double)strips->strips;
  if (strips->lanes == 0 || units * (double)axis[0].pooled > ONEPASS_BOX_MOST) return false;
  const int64_t blocks = onepass_divide_up((int64_t)units * strips->lanes, SLIDES_BLOCK);
  const bool max = p->op == ONEPASS_MAX_POOL;
  strips->rows =
      (int32_t)onepass_least(max && kernel < 5 ? 8 : SLIDE_ROWS, axis[0].pooled); /* measured */
  const int64_t enough = 12 * (int64_t)device->multiprocessors;
  while (strips->rows > SLIDE_TURN &&
         onepass_divide_up(axis[0].pooled, strips->rows) * blocks < enough) {
    strips->rows -= SLIDE_TURN;
  }
  strips->groups = (int32_t)onepass_divide_up(axis[0].pooled, strips->rows);
  strips->by_groups = onepass_divider_of(strips->groups);
  l->name = names[kernel - 2][max];
  l->block = SLIDES_BLOCK;
  args->walk.even = !any_address && axis[2].pooled % 2 == 0 &&
                    has_steady_rows(args, ONEPASS_BOX_Y, 2) &&
                    (strips->strips == 1 || strips->outputs % 2 == 0);
  l->aligned = by_packs || args->walk.even;
  const int64_t columns = SLIDES_BLOCK * vec + SLIDES_BLOCK / strips->lanes * SLIDE_MARGIN;
  l->shared = (size_t)(columns * onepass_type_size(onepass_type_of_sums(p->type)));
  l->grid = onepass_divide_up((int64_t)units * strips->groups, SLIDES_BLOCK / strips->lanes);
  return true;
}

bool onepass_box_choose_walks(const onepass_pool_problem *p, bool indices, bool any_address,
                              const onepass_cuda_properties *device, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  onepass_box_walk *walk = &args->walk;
  const onepass_box_axis *axis = args->axis;
  const int64_t vec = 16 / onepass_type_size(p->type);
  const int op = p->op == ONEPASS_AVG_POOL ? 0 : indices ? 2 : 1;
  if (p->backward || p->op == ONEPASS_LP_POOL || args->adaptive || args->inner != 1 ||
      args->outer == 0 || args->outer > ONEPASS_BOX_MOST || !onepass_box_is_narrow(args)) {
    return false;
  }
  turn_axes(args);
  if (axis[0].pooled == 0 || axis[1].pooled == 0 || axis[2].pooled == 0 ||
      axis[2].step[ONEPASS_BOX_X] != 1 || axis[2].step[ONEPASS_BOX_Y] != 1 ||
      (indices && axis[2].step[ONEPASS_BOX_INDICES] != 1) || !has_handy_windows(args) ||
      args->outer > ONEPASS_BOX_MOST / axis[1].pooled) {
    return false;
  }
  l->kernel = ONEPASS_CUDA_WINDOWS;
  walk->steady = has_steady_rows(args, ONEPASS_BOX_X, vec);
  walk->by_high = onepass_divider_of(axis[1].pooled);
  const bool may_be_wide = vec > 2 && (walk->steady || axis[2].length >= LONG_ROW * vec);
  if (choose_slides(p, indices, any_address, device, l)) return true;
  l->name = name_walk(axis, op, may_be_wide);
  /* Outputs one by one, of windows that have little in common: there is nothing to remember. */
  const int64_t narrow =
      vec == 8 ? 2 : 3; /* columns whose walks are the faster ones all the same */
  if (is_step(l->name) && onepass_box_hardly_overlap(args) && axis[2].kernel > narrow) return false;
  l->block = WALK_BLOCK;
  const bool is_wide = !is_step(l->name);
  const int64_t width = is_wide ? vec : 1, places = onepass_divide_up(axis[2].pooled, width);
  /* Neighbouring rows of a block share what they read. */
  const int64_t most_lanes = axis[1].pooled > 1 ? 2 * ONEPASS_BOX_WARP / width : WALK_BLOCK;
  walk->lanes = 1;
  while (walk->lanes < places && walk->lanes < most_lanes) walk->lanes *= 2;
  walk->blocks_wide = onepass_divide_up(places, walk->lanes);
  walk->by_blocks_wide = onepass_divider_of(walk->blocks_wide);
  walk->even = l->aligned = !any_address && is_wide && axis[2].pooled % vec == 0 &&
                            has_steady_rows(args, ONEPASS_BOX_Y, vec);
  const int64_t groups = onepass_divide_up(args->outer * axis[1].pooled, WALK_BLOCK / walk->lanes);
  walk->chunk = (int32_t)chunk_of(&axis[0], groups * walk->blocks_wide, device);
  walk->chunks = onepass_divide_up(axis[0].pooled, walk->chunk);
  walk->by_chunks = onepass_divider_of(walk->chunks);
  l->grid = groups * walk->blocks_wide * walk->chunks;
  l->shared = WALK_BLOCK * 16;
  if (axis[0].kernel > 1 || axis[0].stride > 1 || axis[0].padding > 0) {
    const int64_t sums = onepass_type_size(onepass_type_of_sums(p->type));
    const int64_t slot = WALK_BLOCK * width * (sums + (indices ? (int64_t)sizeof(int32_t) : 0));
    walk->ring = (int32_t)axis[0].extent + PLANES_AT_ONCE - 1;
    walk->gaps = gaps_of(&axis[0]);
    l->shared += (size_t)(walk->ring * slot);
  }
  return l->grid <= INT32_MAX && l->shared <= (size_t)device->shared_block;
}

/* ---- Bands ----------------------------------------------------------------------------------- */

/* Rows of a window that are asked for at a time: about as many in each turn. */
static int32_t rows_at_once(int64_t rows, int64_t type_size) {
  const int64_t most = type_size == 2 ? 4 : 6; /* as in cuda_bands.cuh */
  return (int32_t)onepass_divide_up(rows, onepass_divide_up(rows, most));
}

/* Windows that hardly share rows and have some elements each. */
bool onepass_box_choose_bands(const onepass_pool_problem *p, bool indices, bool any_address,
                              const onepass_cuda_properties *device, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  onepass_box_strips *strips = &args->strips;
  const onepass_box_axis *axis = args->axis, *along = &axis[2];
  const int64_t vec = 16 / onepass_type_size(p->type);
  if (vec == 2 || any_address || indices || p->backward || p->op == ONEPASS_LP_POOL ||
      args->adaptive || args->inner != 1 || args->outer == 0 || !onepass_box_is_narrow(args) ||
      along->length % vec || along->step[ONEPASS_BOX_X] != 1 || along->pooled < 2 ||
      along->length < FEWEST_PACKS_OF_BAND * vec || 2 * along->extent < along->stride ||
      !has_steady_rows(args, ONEPASS_BOX_X, vec)) {
    return false;
  }
  /* Narrow windows have walks of their own. */
  const double most_read = along->kernel > 3 ? 2.5 : 1.34;
  double rows = 1, read = 1;
  for (int a = 0; a < 2; a++) {
    rows *= (double)axis[a].kernel;
    read *= (double)axis[a].extent / (double)axis[a].stride;
  }
  if (rows > MOST_ROWS_OF_BAND || read > most_read || rows * (double)along->kernel < FEWEST_OF_BAND)
    return false;
  *strips = strips_of(along, vec, true, BANDS_BLOCK);
  const double units = (double)args->outer * (double)axis[0].pooled * (double)strips->strips;
  const double all = units * (double)axis[1].pooled;
  if (strips->lanes == 0 || all == 0 || all > ONEPASS_BOX_MOST) return false;
  /* A few rows, if there are enough of them: finding out where to begin takes as long as a row. */
  const int64_t walk = vec == 4 && rows >= 8 ? BAND_WALK / 2 : BAND_WALK;
  const int64_t enough = 4 * (int64_t)device->multiprocessors;
  strips->rows = (int32_t)onepass_most(
      1, onepass_least(walk, (int64_t)all * strips->lanes / BANDS_BLOCK / enough));
  strips->groups = (int32_t)onepass_divide_up(axis[1].pooled, strips->rows);
  strips->by_groups = onepass_divider_of(strips->groups);
  strips->at_once = rows_at_once((int64_t)rows, onepass_type_size(p->type));
  l->kernel = ONEPASS_CUDA_WINDOWS;
  l->name = p->op == ONEPASS_AVG_POOL ? "bands_avg" : "bands_max";
  l->aligned = true;
  l->block = BANDS_BLOCK;
  const int64_t columns = BANDS_BLOCK * vec + BANDS_BLOCK * vec / 32; /* as in cuda_bands.cuh */
  l->shared = (size_t)(columns * onepass_type_size(onepass_type_of_sums(p->type)));
  l->grid = onepass_divide_up((int64_t)units * strips->groups, BANDS_BLOCK / strips->lanes);
  return true;
}
