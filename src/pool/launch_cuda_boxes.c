/* Which kernel and how many blocks a pooling over up to three axes takes on a GPU: a pure function of
 * the problem. */
#include <string.h>

#include "core/numbers.h"
#include "core/plan.h"

enum {
  BLOCK = 256,
  WARP = 32,
  FEW_TERMS = 64,             /* of an output, that one thread adds up in the type of sums */
  MOST_POSITIONS = 1 << 30,   /* of what kernels count in 32 bits */
  LARGE_WINDOW = 192,         /* elements that are worth a warp */
  WINDOW_OF_BLOCK = 8192,     /* elements that are worth a block */
  SMALL_PLANE = 16384,        /* bytes of planes that tiles hold as a whole */
  LONGEST_ROW = 4096,         /* bytes of a row that tiles do not cut */
  SHORTEST_ROW = 64,          /* bytes of a row worth a tile */
  MOST_ROWS = 64,             /* of outputs in a tile */
  BYTES_OF_STEP = 20480,      /* on their way to a block, at least while a step is worked on */
  BYTES_OF_LONG_STEP = 36864, /* where each step begins with rows of the one before */
  SHARED_OF_SYSTEM = 1024     /* bytes of shared memory that a block costs beside its own */
};

static const onepass_role role_of[] = {
    [ONEPASS_BOX_X] = ONEPASS_ROLE_X,   [ONEPASS_BOX_Y] = ONEPASS_ROLE_Y,
    [ONEPASS_BOX_DY] = ONEPASS_ROLE_DY, [ONEPASS_BOX_INDICES] = ONEPASS_ROLE_INDICES,
    [ONEPASS_BOX_DX] = ONEPASS_ROLE_DX,
};

/* ---- The problem as kernels see it ----------------------------------------------------------- */

/* n / divisor is (n * multiplier / 2^32 + n) >> shift for every n below 2^31. */
static onepass_box_divider divider_of(int64_t divisor) {
  onepass_box_divider d = {1, 0};
  if (divisor < 1 || divisor > INT32_MAX) return d; /* not used then */
  while (((int64_t)1 << d.shift) < divisor) d.shift++;
  const uint64_t above = ((uint64_t)1 << d.shift) - (uint64_t)divisor;
  d.multiplier = (uint32_t)((above << 32) / (uint64_t)divisor + 1);
  return d;
}

/* Adaptive windows that are all alike are ordinary ones. */
static bool has_equal_parts(const onepass_pool_problem *p) {
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    if (p->axis[a].pooled == 0 || p->axis[a].length % p->axis[a].pooled != 0) return false;
  }
  return true;
}

static onepass_box_axis axis_of(const onepass_pool_problem *p, int a, bool equal_parts) {
  const onepass_pool_axis *from = &p->axis[a];
  onepass_box_axis axis = {.kernel = from->kernel,
                           .stride = from->stride,
                           .padding = from->padding,
                           .dilation = from->dilation,
                           .extent = from->extent,
                           .length = from->length,
                           .pooled = from->pooled,
                           .count = p->backward ? from->length : from->pooled};
  if (p->adaptive && equal_parts) {
    axis.kernel = axis.stride = axis.extent = from->length / from->pooled;
    axis.dilation = 1;
  }
  for (int t = 0; t < ONEPASS_BOX_TENSORS; t++) axis.step[t] = from->step[role_of[t]];
  axis.by_count = divider_of(axis.count);
  axis.by_stride = divider_of(axis.stride);
  return axis;
}

/* Whether every sum is divided by the same number. */
static bool is_uniform(const onepass_pool_problem *p, const onepass_box_args *args) {
  if (p->divisor != 0) return true;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    const onepass_box_axis *axis = &args->axis[a];
    if (args->adaptive || (axis->padding && !args->count_include_pad) ||
        (axis->pooled - 1) * axis->stride + axis->extent > axis->length + 2 * axis->padding) {
      return false;
    }
  }
  return true;
}

/* At most, in one output. */
static double terms_of(const onepass_pool_problem *p, const onepass_box_args *args) {
  double terms = 1;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    const onepass_box_axis *axis = &args->axis[a];
    const int64_t parts = onepass_most(axis->pooled, 1);
    if (!p->backward) {
      terms *= (double)(args->adaptive ? axis->length / parts + 2 : axis->kernel);
    } else {
      terms *= (double)(args->adaptive ? parts / axis->length + 2
                                       : onepass_divide_up(axis->extent, axis->stride));
    }
  }
  return terms;
}

/* The tensor that windows lie in, x or dx, and the one that threads make, y or dx. */
static int long_tensor(const onepass_pool_problem *p) {
  return p->backward ? ONEPASS_BOX_DX : ONEPASS_BOX_X;
}
static int made_tensor(const onepass_pool_problem *p) {
  return p->backward ? ONEPASS_BOX_DX : ONEPASS_BOX_Y;
}

/* Whether channels lie closer together than what is pooled. */
static bool is_channels_last(const onepass_pool_problem *p, int64_t channel_step) {
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    const onepass_pool_axis *axis = &p->axis[a];
    if (axis->length > 1 && axis->step[role_of[long_tensor(p)]] <= channel_step) return false;
  }
  return true;
}

static void describe(const onepass_pool_problem *p, onepass_box_args *args) {
  const bool equal_parts = p->adaptive && has_equal_parts(p);
  const onepass_walk *planes = &p->planes;
  *args = (onepass_box_args){.outer = 1,
                             .inner = 1,
                             .adaptive = p->adaptive && !equal_parts,
                             .count_include_pad = p->count_include_pad,
                             .divisor = p->divisor,
                             .p = p->p,
                             .elements = p->elements};
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) args->axis[a] = axis_of(p, a, equal_parts);
  const int last = planes->ndim - 1;
  const int64_t *long_strides = planes->stride[role_of[long_tensor(p)]];
  args->channels_last = last >= 0 && is_channels_last(p, long_strides[last]);
  /* A walk has at most two axes: batches and channels. */
  const int inner = planes->ndim == 2 || args->channels_last ? last : -1;
  const int outer = inner == 0 ? -1 : planes->ndim - 1 - (inner >= 0);
  if (inner >= 0) args->inner = planes->size[inner];
  if (outer >= 0) args->outer = planes->size[outer];
  for (int t = 0; t < ONEPASS_BOX_TENSORS; t++) {
    if (inner >= 0) args->inner_step[t] = planes->stride[role_of[t]][inner];
    if (outer >= 0) args->outer_step[t] = planes->stride[role_of[t]][outer];
  }
  args->uniform = is_uniform(p, args);
  if (args->uniform) {
    double elements = p->divisor;
    if (elements == 0) {
      elements = (double)args->axis[0].kernel * (double)args->axis[1].kernel *
                 (double)args->axis[2].kernel;
    }
    args->factor = 1 / elements;
  }
  args->many_terms = terms_of(p, args) > FEW_TERMS;
}

/* ---- A thread an output ---------------------------------------------------------------------- */

/* Whether positions in a plane, and all that is made of them on the way, stay below 2^31. */
static bool is_narrow(const onepass_box_args *args) {
  const double limit = MOST_POSITIONS;
  double offset[ONEPASS_BOX_TENSORS] = {0}, elements = 1;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    const onepass_box_axis *axis = &args->axis[a];
    const double length = (double)axis->length, pooled = (double)axis->pooled;
    elements *= length;
    if (length > limit || (double)axis->padding > limit || (double)axis->extent > limit ||
        (double)axis->dilation > limit || pooled * (double)axis->stride > limit ||
        (double)axis->stride > limit) {
      return false;
    }
    if (args->adaptive && (length + 1) * (pooled + 1) > limit) return false;
    for (int t = 0; t < ONEPASS_BOX_TENSORS; t++) {
      const bool is_long = t == ONEPASS_BOX_X || t == ONEPASS_BOX_DX;
      offset[t] += (is_long ? length : pooled) * (double)axis->step[t];
      if (offset[t] > limit) return false;
    }
  }
  return elements <= limit;
}

/* What threads make in one outer position. */
static double made_of_outer(const onepass_box_args *args, int64_t pack) {
  return (double)(args->inner / pack) * (double)args->axis[0].count * (double)args->axis[1].count *
         (double)args->axis[2].count;
}

/* Whether 16 bytes of channels are one access in every tensor that lies where 16 bytes begin. */
static bool has_packs(const onepass_pool_problem *p, const onepass_box_args *args, int64_t vec) {
  if (!args->channels_last || args->inner % vec != 0 || p->op == ONEPASS_LP_POOL) return false;
  for (int t = 0; t < ONEPASS_BOX_TENSORS; t++) {
    const bool used = t != ONEPASS_BOX_INDICES && args->inner_step[t] != 0;
    if (!used) continue;
    if (args->inner_step[t] != 1 || args->outer_step[t] % vec != 0) return false;
    for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
      if (args->axis[a].step[t] % vec != 0) return false;
    }
  }
  /* A tensor that says the same for all channels has a step of 0. */
  return args->inner_step[made_tensor(p)] == 1 &&
         args->inner_step[p->backward ? ONEPASS_BOX_DY : ONEPASS_BOX_X] == 1;
}

enum { NARROW, WIDE, CHANNELS };

static void choose_thread_an_output(const onepass_pool_problem *p, bool any_address,
                                    onepass_box_launch *l) {
  static const char *const names[3][2][3] = {
      [ONEPASS_AVG_POOL] = {{"boxes_avg_forward", "boxes_avg_forward_wide",
                             "boxes_avg_forward_channels"},
                            {"boxes_avg_backward", "boxes_avg_backward_wide",
                             "boxes_avg_backward_channels"}},
      [ONEPASS_MAX_POOL] = {{"boxes_max_forward", "boxes_max_forward_wide",
                             "boxes_max_forward_channels"},
                            {"boxes_max_backward", "boxes_max_backward_wide",
                             "boxes_max_backward_channels"}},
      [ONEPASS_LP_POOL] = {{"boxes_lp_forward", "boxes_lp_forward_wide", NULL},
                           {"boxes_lp_backward", "boxes_lp_backward_wide", NULL}},
  };
  onepass_box_args *args = &l->args;
  const int64_t vec = 16 / onepass_type_size(p->type);
  int way = is_narrow(args) && made_of_outer(args, 1) <= MOST_POSITIONS ? NARROW : WIDE;
  if (way == NARROW && !any_address && has_packs(p, args, vec)) way = CHANNELS;
  const int64_t pack = way == CHANNELS ? vec : 1;
  const double made = made_of_outer(args, pack);
  l->kernel = ONEPASS_CUDA_STRIDED;
  l->name = names[p->op][p->backward][way];
  l->aligned = way == CHANNELS;
  args->by_inner = divider_of(args->inner / pack);
  if (made == 0 || args->outer == 0) {
    l->grid = 0;
  } else if (way == WIDE) {
    /* Tensors that exist have so few elements that this is exact. */
    args->group = args->outer;
    args->group_blocks = l->grid = onepass_divide_up((int64_t)made * args->outer, BLOCK);
  } else {
    args->group = onepass_least(args->outer, onepass_most(1, (int64_t)(MOST_POSITIONS / made)));
    args->group_blocks = onepass_divide_up((int64_t)made * args->group, BLOCK);
    args->by_group_blocks = divider_of(args->group_blocks);
    l->grid = args->group_blocks * onepass_divide_up(args->outer, args->group);
  }
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* Inputs that neighbouring outputs need. */
static int64_t span_of(const onepass_box_axis *axis, int64_t outputs) {
  return onepass_least((outputs - 1) * axis->stride + axis->extent, axis->length);
}

static bool is_trivial(const onepass_box_axis *axis) {
  return axis->length == 1 && axis->kernel == 1;
}

/* The axes as a block walks through them. Planes that are small, and lines, are walked from one to the
 * next, others from their top to their bottom. */
static void turn_axes(onepass_box_args *args, int64_t size) {
  onepass_box_axis *axis = args->axis;
  const int64_t wide = axis[2].length, high = axis[1].length;
  onepass_box_tiles *tiles = &args->tiles;
  if (!is_trivial(&axis[0])) {
    memcpy(tiles->index_step, (int64_t[]){high * wide, wide, 1}, sizeof tiles->index_step);
  } else if (is_trivial(&axis[1]) || high * wide * size <= SMALL_PLANE) {
    axis[0] = (onepass_box_axis){.kernel = 1,
                                 .stride = 1,
                                 .dilation = 1,
                                 .extent = 1,
                                 .length = args->outer,
                                 .pooled = args->outer,
                                 .count = args->outer};
    memcpy(axis[0].step, args->outer_step, sizeof axis[0].step);
    args->outer = 1;
    memcpy(tiles->index_step, (int64_t[]){0, wide, 1}, sizeof tiles->index_step);
  } else {
    const onepass_box_axis none = axis[0];
    axis[0] = axis[1];
    axis[1] = none;
    memcpy(tiles->index_step, (int64_t[]){wide, 0, 1}, sizeof tiles->index_step);
  }
}

/* Whether rows are dense and begin at the same place of 16 bytes. */
static bool has_even_rows(const onepass_box_args *args, int64_t size) {
  static const int tensors[] = {ONEPASS_BOX_X, ONEPASS_BOX_Y, ONEPASS_BOX_INDICES};
  for (int i = 0; i < 3; i++) {
    if (args->axis[2].step[tensors[i]] > 1) return false;
  }
  for (int a = 0; a < 2; a++) {
    if (args->axis[a].length > 1 && args->axis[a].step[ONEPASS_BOX_X] * size % 16 != 0)
      return false;
  }
  return args->axis[2].step[ONEPASS_BOX_X] == 1 && args->axis[2].step[ONEPASS_BOX_Y] == 1;
}

/* Windows that leave no large gaps, of as many elements as a thread may go through. */
static bool has_handy_windows(const onepass_box_args *args) {
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    if (args->axis[a].stride > 2 * args->axis[a].extent || args->axis[a].kernel > 64) return false;
  }
  return args->axis[0].kernel * args->axis[1].kernel <= 128;
}

typedef struct tile_sizes {
  int64_t step, high, wide, ring, rows, pitch, shared;
  double cost; /* bytes read for each that is needed */
} tile_sizes;

static tile_sizes size_tile(const onepass_box_args *args, int64_t size, int64_t column_size,
                            int64_t step, int64_t high, int64_t wide) {
  const onepass_box_axis *axis = args->axis;
  const int64_t span = span_of(&axis[2], wide);
  tile_sizes s = {.step = step,
                  .high = high,
                  .wide = wide,
                  .ring = span_of(&axis[0], 2 * step),
                  .rows = span_of(&axis[1], high),
                  .pitch = onepass_round_up(span * size + 15, 16)};
  s.shared = s.ring * s.rows * s.pitch;
  if (!args->tiles.rows_are_one && !args->tiles.down)
    s.shared += step * high * (s.pitch / size) * column_size;
  const int64_t needed_high = high < axis[1].pooled ? high * axis[1].stride : axis[1].length;
  const int64_t needed_wide = wide < axis[2].pooled ? wide * axis[2].stride : axis[2].length;
  s.cost = (double)s.rows / (double)needed_high * (double)s.pitch / (double)(needed_wide * size);
  return s;
}

/* The sizes that read least twice, of those that fit; shared is 0 if none do. */
static tile_sizes find_sizes(const onepass_box_args *args, int64_t size, int64_t column_size,
                             int64_t limit) {
  static const int64_t cuts[] = {1, 2, 3, 4, 6, 8, 12, 16};
  const onepass_box_axis *high = &args->axis[1], *wide = &args->axis[2];
  const int64_t fewest = onepass_divide_up(wide->length * size, LONGEST_ROW);
  tile_sizes best = {.shared = 0};
  for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
    int64_t columns =
        onepass_divide_up(wide->pooled, onepass_least(fewest * cuts[i], wide->pooled));
    if (columns < wide->pooled && columns > WARP) columns = onepass_round_up(columns, WARP);
    tile_sizes here = size_tile(args, size, column_size, 1, 1, columns);
    if (here.shared > limit) continue;
    for (int64_t rows = 2; rows <= onepass_least(high->pooled, MOST_ROWS); rows++) {
      const tile_sizes taller = size_tile(args, size, column_size, 1, rows, columns);
      if (taller.shared > limit) break;
      here = taller;
    }
    /* As many tiles, all of the same height. */
    const int64_t even =
        onepass_divide_up(high->pooled, onepass_divide_up(high->pooled, here.high));
    here = size_tile(args, size, column_size, 1, even, columns);
    if (!best.shared || here.cost < best.cost * 0.98) best = here;
  }
  if (!best.shared) return best;
  for (int64_t step = 2; step <= args->axis[0].pooled; step *= 2) {
    const tile_sizes longer = size_tile(args, size, column_size, step, best.high, best.wide);
    const int64_t brought = step * args->axis[0].stride * longer.rows * longer.pitch;
    const int64_t enough = args->tiles.down ? BYTES_OF_LONG_STEP : BYTES_OF_STEP;
    if (longer.shared > limit || brought > enough) break;
    best = longer;
  }
  return best;
}

/* Threads that share each of `rows` rows of `items`: those with which a block is done first, at least a
 * warp if rows are that long. */
static int32_t lanes_for(int64_t items, int64_t rows) {
  int32_t best = 1;
  while (best < items && best < WARP) best *= 2;
  int64_t turns = onepass_divide_up(items, best) * onepass_divide_up(rows, BLOCK / best);
  for (int32_t lanes = 2 * best; lanes <= BLOCK; lanes *= 2) {
    const int64_t here = onepass_divide_up(items, lanes) * onepass_divide_up(rows, BLOCK / lanes);
    if (here < turns || (here == turns && lanes <= items)) {
      turns = here;
      best = lanes;
    }
  }
  return best;
}

/* The chunk that makes at least so many blocks, if there are as many outputs. */
static int64_t chunk_for(const onepass_box_axis *axis, int64_t blocks, int64_t others) {
  return onepass_divide_up(axis->pooled,
                           onepass_least(axis->pooled, onepass_divide_up(blocks, others)));
}

/* Outputs of the first axis that a block walks along: so many that little is read twice at its
 * beginning, so few that the last blocks do not run alone for long. */
static int64_t chunk_of(const onepass_box_axis *axis, int64_t step, int64_t others,
                        const onepass_cuda_properties *device) {
  const int64_t overlap = onepass_most(axis->extent - axis->stride, 0);
  const int64_t worth = onepass_most(16 * step, onepass_divide_up(20 * overlap, axis->stride));
  const int64_t few = 12 * (int64_t)device->multiprocessors, many = 4 * few;
  int64_t chunk = onepass_least(worth, axis->pooled);
  if (onepass_divide_up(axis->pooled, chunk) * others < many) {
    const int64_t bearable = onepass_most(4 * step, onepass_divide_up(10 * overlap, axis->stride));
    chunk = onepass_most(chunk_for(axis, many, others), onepass_least(chunk, bearable));
  }
  if (onepass_divide_up(axis->pooled, chunk) * others < few) chunk = chunk_for(axis, few, others);
  return onepass_least(onepass_round_up(chunk, step), axis->pooled);
}

static bool choose_tiles(const onepass_pool_problem *p, bool indices,
                         const onepass_cuda_properties *device, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  onepass_box_tiles *tiles = &args->tiles;
  const int64_t size = onepass_type_size(p->type);
  const int64_t sums = onepass_type_size(onepass_type_of_sums(p->type));
  const int64_t column_size = sums + (indices ? (int64_t)sizeof(int32_t) : 0);
  if (p->backward || p->op == ONEPASS_LP_POOL || args->adaptive || args->inner != 1 ||
      args->outer == 0 || args->outer > MOST_POSITIONS || !is_narrow(args)) {
    return false;
  }
  turn_axes(args, size);
  const onepass_box_axis *axis = args->axis;
  if (axis[0].pooled == 0 || axis[1].pooled == 0 || axis[2].pooled == 0 ||
      axis[2].length * size < SHORTEST_ROW || !has_even_rows(args, size) ||
      !has_handy_windows(args)) {
    return false;
  }
  tiles->rows_are_one = axis[0].kernel == 1 && axis[1].kernel == 1;
  if (is_trivial(&axis[1]) && axis[0].kernel >= 2 && axis[0].kernel <= 4 && axis[0].stride == 1 &&
      axis[0].dilation == 1) {
    tiles->down = (int32_t)axis[0].kernel;
  }
  const int64_t third = device->shared_multiprocessor / 3 - SHARED_OF_SYSTEM;
  const int64_t half = device->shared_multiprocessor / 2 - SHARED_OF_SYSTEM;
  tile_sizes s = find_sizes(args, size, column_size, third);
  if (!s.shared || s.cost > 1.25) {
    const tile_sizes larger = find_sizes(args, size, column_size, half);
    if (larger.shared && (!s.shared || larger.cost < 0.95 * s.cost)) s = larger;
  }
  if (!s.shared) return false;
  tiles->step = (int32_t)s.step;
  tiles->high = (int32_t)s.high;
  tiles->wide = (int32_t)s.wide;
  tiles->ring = (int32_t)s.ring;
  tiles->rows = (int32_t)s.rows;
  tiles->pitch = (int32_t)s.pitch;
  tiles->tiles_high = onepass_divide_up(axis[1].pooled, s.high);
  tiles->tiles_wide = onepass_divide_up(axis[2].pooled, s.wide);
  tiles->row_lanes = lanes_for(s.pitch / 16, s.step * axis[0].stride * s.rows);
  tiles->column_lanes = lanes_for(s.pitch / 16, s.step * s.high);
  tiles->made_lanes = lanes_for(s.wide, s.step * s.high);
  tiles->by_rows = divider_of(s.rows);
  tiles->by_high = divider_of(s.high);
  const int64_t others = args->outer * tiles->tiles_high * tiles->tiles_wide;
  tiles->chunk = chunk_of(&axis[0], s.step, others, device);
  tiles->chunks = onepass_divide_up(axis[0].pooled, tiles->chunk);
  l->kernel = ONEPASS_CUDA_WINDOWS;
  l->name = p->op == ONEPASS_AVG_POOL ? "tiles_avg" : indices ? "tiles_max_indices" : "tiles_max";
  l->grid = others * tiles->chunks;
  l->shared = (size_t)s.shared;
  return l->grid <= INT32_MAX;
}

/* ---- Teams ----------------------------------------------------------------------------------- */

/* Large windows that hardly overlap, of dense rows. */
static bool choose_teams(const onepass_pool_problem *p, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  const onepass_box_axis *axis = args->axis;
  const int64_t outputs = axis[0].pooled * axis[1].pooled * axis[2].pooled;
  double read = 1;
  if (p->backward || p->op == ONEPASS_LP_POOL || axis[2].step[ONEPASS_BOX_X] != 1 ||
      !is_narrow(args) || outputs == 0 || args->outer == 0 || args->inner == 0) {
    return false;
  }
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    if (!args->adaptive && axis[a].dilation != 1) return false;
    /* An adaptive window overlaps its neighbours by an element or two. */
    read *= args->adaptive ? 1 : (double)axis[a].extent / (double)axis[a].stride;
  }
  const double terms = terms_of(p, args);
  if (terms < LARGE_WINDOW || read > 2) return false;
  args->team = terms < WINDOW_OF_BLOCK ? WARP : BLOCK;
  l->kernel = ONEPASS_CUDA_WINDOWS;
  l->name = p->op == ONEPASS_AVG_POOL ? "teams_avg" : "teams_max";
  l->shared = args->team == BLOCK ? BLOCK / WARP * (sizeof(double) + sizeof(int32_t)) : 0;
  l->grid = onepass_divide_up(args->outer * args->inner * outputs, BLOCK / args->team);
  return l->grid <= INT32_MAX;
}

/* ---- The choice ------------------------------------------------------------------------------ */

bool onepass_pool_choose_boxes(const onepass_pool_problem *p, bool indices, bool any_address,
                               const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                               onepass_box_launch *launch) {
  *launch = (onepass_box_launch){.block = BLOCK};
  describe(p, &launch->args);
  const onepass_box_args plain = launch->args;
  if (asked == ONEPASS_CUDA_BEST || asked == ONEPASS_CUDA_WINDOWS) {
    if (choose_teams(p, launch) || choose_tiles(p, indices, device, launch)) return true;
    launch->args = plain;
  }
  if (asked != ONEPASS_CUDA_BEST && asked != ONEPASS_CUDA_STRIDED) return false;
  choose_thread_an_output(p, any_address, launch);
  return launch->grid <= INT32_MAX;
}
