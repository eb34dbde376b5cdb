/* Which kernel and how many blocks a pooling over up to three axes takes on a GPU: a pure function of
 * the problem. */
#include <string.h>

#include "core/numbers.h"
#include "core/plan.h"

enum {
  BLOCK = 256,
  WARP = 32,
  FEW_TERMS = 64,           /* of an output, that one thread adds up in the type of sums */
  MOST_POSITIONS = 1 << 30, /* of what kernels count in 32 bits */
  LARGE_WINDOW = 192,       /* elements that are worth a warp */
  WINDOW_OF_BLOCK = 8192,   /* elements that are worth a block */
  WINDOW_OF_PARTS = 24,     /* elements that are worth parts, where channels lie side by side */
  FEWEST_OF_PART = 4,       /* elements of a part */
  LARGE_PART = 32,          /* elements that keep a thread busy for long enough */
  LINE_OF_LANES = 8,        /* that have 128 bytes of channels, which memory has in one place */
  FEWEST_LANES = 4,         /* if there are more packs than that */
  MOST_ALONG = 64,          /* elements of a window along an axis, that a thread goes through */
  LONG_ROW = 32,            /* packs of a row whose ends, within packs, do not matter */
  WALK_BLOCK = 128,         /* threads that walk */
  SLIDES_BLOCK = 128,
  SLIDE_ROWS = 12,   /* of outputs, that a strip has; more would be further apart in memory */
  SLIDE_TURN = 4,    /* rows that a strip asks for at a time, at most */
  SLIDE_MARGIN = 16, /* columns between two strips in shared memory, as in cuda_slides.cuh */
  BANDS_BLOCK = 512,
  FEWEST_PACKS_OF_BAND = 4, /* in a row of inputs */
  BAND_WALK = 4,            /* rows of outputs that a strip has, at most */
  MOST_ROWS_OF_BAND = 64,   /* of a window */
  FEWEST_OF_BAND = 16,      /* elements of a window, so that bands beat walks */
  DROPS_BYTES = 49152,      /* of a tile of gradients */
  PLANES_AT_ONCE = 4        /* at most, that a walk asks for before it looks at the first */
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

/* Whether an element is in two windows or fewer on average, and windows have no gaps. */
static bool hardly_overlap(const onepass_box_args *args) {
  double read = 1;
  /* An adaptive window overlaps its neighbours by an element or two. */
  for (int a = 0; a < ONEPASS_POOL_AXES && !args->adaptive; a++) {
    if (args->axis[a].dilation != 1) return false;
    read *= (double)args->axis[a].extent / (double)args->axis[a].stride;
  }
  return read <= 2;
}

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
                                 .count = args->outer};
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
  *strips = strips_of(&axis[2], vec, by_packs, WARP);
  strips->by_packs = by_packs;
  const double units = (double)args->outer * (double)axis[1].pooled * (double)strips->strips;
  if (strips->lanes == 0 || units * (double)axis[0].pooled > MOST_POSITIONS) return false;
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

static bool choose_walks(const onepass_pool_problem *p, bool indices, bool any_address,
                         const onepass_cuda_properties *device, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  onepass_box_walk *walk = &args->walk;
  const onepass_box_axis *axis = args->axis;
  const int64_t vec = 16 / onepass_type_size(p->type);
  const int op = p->op == ONEPASS_AVG_POOL ? 0 : indices ? 2 : 1;
  if (p->backward || p->op == ONEPASS_LP_POOL || args->adaptive || args->inner != 1 ||
      args->outer == 0 || args->outer > MOST_POSITIONS || !is_narrow(args)) {
    return false;
  }
  turn_axes(args);
  if (axis[0].pooled == 0 || axis[1].pooled == 0 || axis[2].pooled == 0 ||
      axis[2].step[ONEPASS_BOX_X] != 1 || axis[2].step[ONEPASS_BOX_Y] != 1 ||
      (indices && axis[2].step[ONEPASS_BOX_INDICES] != 1) || !has_handy_windows(args) ||
      args->outer > MOST_POSITIONS / axis[1].pooled) {
    return false;
  }
  l->kernel = ONEPASS_CUDA_WINDOWS;
  walk->steady = has_steady_rows(args, ONEPASS_BOX_X, vec);
  walk->by_high = divider_of(axis[1].pooled);
  const bool may_be_wide = vec > 2 && (walk->steady || axis[2].length >= LONG_ROW * vec);
  if (choose_slides(p, indices, any_address, device, l)) return true;
  l->name = name_walk(axis, op, may_be_wide);
  /* Outputs one by one, of windows that have little in common: there is nothing to remember. */
  const int64_t narrow =
      vec == 8 ? 2 : 3; /* columns whose walks are the faster ones all the same */
  if (is_step(l->name) && hardly_overlap(args) && axis[2].kernel > narrow) return false;
  l->block = WALK_BLOCK;
  const bool is_wide = !is_step(l->name);
  const int64_t width = is_wide ? vec : 1, places = onepass_divide_up(axis[2].pooled, width);
  /* Neighbouring rows of a block share what they read. */
  const int64_t most_lanes = axis[1].pooled > 1 ? 2 * WARP / width : WALK_BLOCK;
  walk->lanes = 1;
  while (walk->lanes < places && walk->lanes < most_lanes) walk->lanes *= 2;
  walk->blocks_wide = onepass_divide_up(places, walk->lanes);
  walk->even = l->aligned = !any_address && is_wide && axis[2].pooled % vec == 0 &&
                            has_steady_rows(args, ONEPASS_BOX_Y, vec);
  const int64_t groups = onepass_divide_up(args->outer * axis[1].pooled, WALK_BLOCK / walk->lanes);
  walk->chunk = (int32_t)chunk_of(&axis[0], groups * walk->blocks_wide, device);
  walk->chunks = onepass_divide_up(axis[0].pooled, walk->chunk);
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
static bool choose_bands(const onepass_pool_problem *p, bool indices, bool any_address,
                         const onepass_cuda_properties *device, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  onepass_box_strips *strips = &args->strips;
  const onepass_box_axis *axis = args->axis, *along = &axis[2];
  const int64_t vec = 16 / onepass_type_size(p->type);
  if (vec == 2 || any_address || indices || p->backward || p->op == ONEPASS_LP_POOL ||
      args->adaptive || args->inner != 1 || args->outer == 0 || !is_narrow(args) ||
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
  if (strips->lanes == 0 || all == 0 || all > MOST_POSITIONS) return false;
  /* A few rows, if there are enough of them: finding out where to begin takes as long as a row. */
  const int64_t walk = vec == 4 && rows >= 8 ? BAND_WALK / 2 : BAND_WALK;
  const int64_t enough = 4 * (int64_t)device->multiprocessors;
  strips->rows = (int32_t)onepass_most(
      1, onepass_least(walk, (int64_t)all * strips->lanes / BANDS_BLOCK / enough));
  strips->groups = (int32_t)onepass_divide_up(axis[1].pooled, strips->rows);
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

/* ---- Teams ----------------------------------------------------------------------------------- */

/* Large windows that hardly overlap, of dense rows. */
static bool choose_teams(const onepass_pool_problem *p, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  const onepass_box_axis *axis = args->axis;
  const int64_t outputs = axis[0].pooled * axis[1].pooled * axis[2].pooled;
  const double terms = terms_of(p, args);
  if (p->backward || p->op == ONEPASS_LP_POOL || axis[2].step[ONEPASS_BOX_X] != 1 ||
      !is_narrow(args) || outputs == 0 || args->outer == 0 || args->inner == 0 ||
      terms < LARGE_WINDOW || !hardly_overlap(args)) {
    return false;
  }
  args->team = terms < WINDOW_OF_BLOCK ? WARP : BLOCK;
  l->kernel = ONEPASS_CUDA_WINDOWS;
  l->name = p->op == ONEPASS_AVG_POOL ? "teams_avg" : "teams_max";
  l->shared = args->team == BLOCK ? BLOCK / WARP * (sizeof(double) + sizeof(int32_t)) : 0;
  l->grid = onepass_divide_up(args->outer * args->inner * outputs, BLOCK / args->team);
  return l->grid <= INT32_MAX;
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* Whether planes of dx are dense; how many elements they have. */
static bool has_dense_gradients(const onepass_pool_problem *p, const onepass_box_args *args,
                                int64_t *elements) {
  if (!p->backward || args->inner != 1 || args->outer == 0 || !is_narrow(args)) return false;
  *elements = 1;
  for (int a = ONEPASS_POOL_AXES - 1; a >= 0; a--) {
    if (args->axis[a].length > 1 && args->axis[a].step[ONEPASS_BOX_DX] != *elements) return false;
    *elements *= args->axis[a].length;
  }
  return *elements > 0;
}

/* Averages: a thread has 16 bytes. */
static bool choose_returns(const onepass_pool_problem *p, bool any_address, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  const int64_t vec = 16 / onepass_type_size(p->type);
  int64_t elements;
  if (p->op != ONEPASS_AVG_POOL || args->many_terms || !has_dense_gradients(p, args, &elements))
    return false;
  const int64_t packs = onepass_divide_up(elements, vec);
  if (args->outer > MOST_POSITIONS / packs) return false;
  args->packs = (int32_t)packs;
  args->by_packs = divider_of(packs);
  args->walk.even = l->aligned = !any_address && elements % vec == 0 &&
                                 (args->outer == 1 || args->outer_step[ONEPASS_BOX_DX] % vec == 0);
  l->kernel = ONEPASS_CUDA_WINDOWS;
  l->name = "returns_avg";
  l->grid = onepass_divide_up(args->outer * packs, BLOCK);
  return true;
}

/* As many neighbouring outputs as may have elements in common. */
static int64_t classes_along(const onepass_box_axis *axis, bool adaptive) {
  if (!adaptive) return onepass_divide_up(axis->extent, axis->stride);
  const int64_t pooled = onepass_most(axis->pooled, 1), length = onepass_most(axis->length, 1);
  return onepass_divide_up(pooled, length) + 1;
}

/* Maxima: a block has a tile, of whole rows if it has several of them, and of whole planes likewise. */
static bool choose_drops(const onepass_pool_problem *p, bool any_address, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  onepass_box_drops *drops = &args->drops;
  const onepass_box_axis *axis = args->axis;
  const int64_t vec = 16 / onepass_type_size(p->type);
  const int64_t sums = onepass_type_size(onepass_type_of_sums(p->type)), room = DROPS_BYTES / sums;
  int64_t elements, size = 1, tiles = 1;
  if (p->op != ONEPASS_MAX_POOL || !has_dense_gradients(p, args, &elements)) return false;
  for (int a = ONEPASS_POOL_AXES - 1; a >= 0; a--) {
    const int64_t classes = classes_along(&axis[a], args->adaptive);
    if (classes > WARP) return false; /* pieces of rows are that long */
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

/* ---- Teams of channels ----------------------------------------------------------------------- */

/* Elements of a window, of which some at the edges have fewer and some adaptive ones a few more. */
static int64_t positions_of(const onepass_box_args *args) {
  int64_t positions = 1;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    const onepass_box_axis *axis = &args->axis[a];
    positions *= args->adaptive ? onepass_divide_up(axis->length, axis->pooled)
                                : onepass_least(axis->kernel, axis->length);
  }
  return positions;
}

/* Into how many parts so many lanes of a block may cut a window. */
static int64_t most_parts(int64_t lanes, int64_t positions) {
  int64_t parts = 2;
  while (parts < BLOCK / lanes && positions >= 2 * parts * FEWEST_OF_PART) parts *= 2;
  return parts;
}

/* As many as have 512 bytes of channels. */
static int64_t lanes_for(int64_t packs) {
  int64_t lanes = 1;
  while (lanes < packs && lanes < WARP) lanes *= 2;
  /* Fewer, if fewer are left idle. */
  while (lanes > LINE_OF_LANES && onepass_divide_up(packs, lanes / 2) * (lanes / 2) <
                                      onepass_divide_up(packs, lanes) * lanes) {
    lanes /= 2;
  }
  return lanes;
}

/* Large windows that hardly overlap, of channels side by side. */
static bool choose_channel_teams(const onepass_pool_problem *p, bool any_address,
                                 const onepass_cuda_properties *device, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  const int64_t size = onepass_type_size(p->type), vec = 16 / size, packs = args->inner / vec;
  if (any_address || p->backward || packs == 0 || !is_narrow(args) || !has_packs(p, args, vec) ||
      made_of_outer(args, vec) == 0 || !hardly_overlap(args)) {
    return false;
  }
  const int64_t positions = positions_of(args);
  const double outputs = (double)args->outer * made_of_outer(args, args->inner);
  if (positions < WINDOW_OF_PARTS || outputs == 0 || outputs * (double)packs > MOST_POSITIONS) {
    return false;
  }
  /* Threads that have so much on its way that memory has no pause. */
  const int64_t enough = 3 * BLOCK * (int64_t)device->multiprocessors;
  const int64_t whole = (int64_t)outputs * packs;
  int64_t lanes = lanes_for(packs), parts = 2;
  while (lanes > FEWEST_LANES && whole * most_parts(lanes, positions) < enough &&
         most_parts(lanes / 2, positions) > most_parts(lanes, positions)) {
    lanes /= 2;
  }
  /* Parts are joined in the end, so small ones are only for when there are few. */
  while (parts < most_parts(lanes, positions) &&
         (positions > parts * LARGE_PART || whole * parts < 2 * enough)) {
    parts *= 2;
  }
  args->team = (int32_t)(lanes * parts);
  args->team_lanes = (int32_t)lanes;
  args->team_tiles = onepass_divide_up(packs, lanes);
  args->by_inner = divider_of(args->team_tiles);
  const bool max = p->op == ONEPASS_MAX_POOL;
  l->kernel = ONEPASS_CUDA_STRIDED;
  l->name = max ? "teams_max_channels" : "teams_avg_channels";
  l->aligned = true;
  l->shared = (size_t)(BLOCK * vec *
                       (onepass_type_size(onepass_type_of_sums(p->type)) +
                        (max ? (int64_t)sizeof(int32_t) : 0)));
  l->grid = onepass_divide_up((int64_t)outputs * args->team_tiles, BLOCK / args->team);
  return true;
}

/* ---- The choice ------------------------------------------------------------------------------ */

bool onepass_pool_choose_boxes(const onepass_pool_problem *p, bool indices, bool any_address,
                               const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                               onepass_box_launch *launch) {
  *launch = (onepass_box_launch){.block = BLOCK};
  describe(p, &launch->args);
  const onepass_box_args plain = launch->args;
  if (asked == ONEPASS_CUDA_BEST || asked == ONEPASS_CUDA_WINDOWS) {
    if (choose_bands(p, indices, any_address, device, launch) || choose_teams(p, launch) ||
        choose_returns(p, any_address, launch) || choose_drops(p, any_address, launch) ||
        choose_walks(p, indices, any_address, device, launch)) {
      return true;
    }
    launch->args = plain;
    launch->block = BLOCK;
    launch->shared = 0;
    launch->aligned = false;
  }
  if (asked != ONEPASS_CUDA_BEST && asked != ONEPASS_CUDA_STRIDED) return false;
  if (choose_channel_teams(p, any_address, device, launch)) return true;
  choose_thread_an_output(p, any_address, launch);
  return launch->grid <= INT32_MAX;
}
