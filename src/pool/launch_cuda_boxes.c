/* Which kernel and how many blocks a pooling over up to three axes takes on a GPU: a pure function of
 * the problem. */
#include "pool/launch_cuda_boxes.h"

#include "core/numbers.h"
#include "core/plan.h"

enum {
  FEW_TERMS = 64,         /* of an output, that one thread adds up in the type of sums */
  LARGE_WINDOW = 192,     /* elements that are worth a warp */
  WINDOW_OF_BLOCK = 8192, /* elements that are worth a block */
  WINDOW_OF_PARTS = 24,   /* elements that are worth parts, where channels lie side by side */
  FEWEST_OF_PART = 4,     /* elements of a part */
  LARGE_PART = 32,        /* elements that keep a thread busy for long enough */
  LINE_OF_LANES = 8,      /* that have 128 bytes of channels, which memory has in one place */
  FEWEST_LANES = 4        /* if there are more packs than that */
};

static const onepass_role role_of[] = {
    [ONEPASS_BOX_X] = ONEPASS_ROLE_X,   [ONEPASS_BOX_Y] = ONEPASS_ROLE_Y,
    [ONEPASS_BOX_DY] = ONEPASS_ROLE_DY, [ONEPASS_BOX_INDICES] = ONEPASS_ROLE_INDICES,
    [ONEPASS_BOX_DX] = ONEPASS_ROLE_DX,
};

/* ---- The problem as kernels see it ----------------------------------------------------------- */

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
  const bool adaptive = p->adaptive && !equal_parts;
  if (p->adaptive) axis.dilation = 1;
  if (p->adaptive && equal_parts)
    axis.kernel = axis.stride = axis.extent = from->length / from->pooled;
  axis.element_scale = adaptive ? axis.pooled : 1;
  axis.output_scale = adaptive ? axis.length : axis.stride;
  axis.ahead = adaptive ? axis.pooled - 1 : axis.padding;
  axis.reach = adaptive ? axis.length + axis.pooled - 1 : axis.extent;
  for (int t = 0; t < ONEPASS_BOX_TENSORS; t++) axis.step[t] = from->step[role_of[t]];
  axis.by_count = onepass_divider_of(axis.count);
  axis.by_output_scale = onepass_divider_of(axis.output_scale);
  axis.by_dilation = onepass_divider_of(axis.dilation);
  axis.by_pooled = onepass_divider_of(axis.pooled);
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
  static const int32_t op_of[] = {[ONEPASS_AVG_POOL] = ONEPASS_BOX_AVG,
                                  [ONEPASS_MAX_POOL] = ONEPASS_BOX_MAX,
                                  [ONEPASS_LP_POOL] = ONEPASS_BOX_LP};
  *args = (onepass_box_args){.outer = 1,
                             .inner = 1,
                             .op = op_of[p->op],
                             .adaptive = p->adaptive && !equal_parts,
                             .count_include_pad = p->count_include_pad,
                             .divisor = p->divisor,
                             .p = p->p,
                             .elements = p->elements};
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) args->axis[a] = axis_of(p, a, equal_parts);
  const int last = planes->ndim - 1;
  args->channels_last =
      last >= 0 && is_channels_last(p, planes->stride[last][role_of[long_tensor(p)]]);
  /* A walk has at most two axes: batches and channels. */
  const int inner = planes->ndim == 2 || args->channels_last ? last : -1;
  const int outer = inner == 0 ? -1 : planes->ndim - 1 - (inner >= 0);
  if (inner >= 0) args->inner = planes->size[inner];
  if (outer >= 0) args->outer = planes->size[outer];
  for (int t = 0; t < ONEPASS_BOX_TENSORS; t++) {
    if (inner >= 0) args->inner_step[t] = planes->stride[inner][role_of[t]];
    if (outer >= 0) args->outer_step[t] = planes->stride[outer][role_of[t]];
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
bool onepass_box_is_narrow(const onepass_box_args *args) {
  const double limit = ONEPASS_BOX_MOST;
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
double onepass_box_made_of_outer(const onepass_box_args *args, int64_t pack) {
  return (double)(args->inner / pack) * (double)args->axis[0].count * (double)args->axis[1].count *
         (double)args->axis[2].count;
}

/* Whether 16 bytes of channels are one access in every tensor that lies where 16 bytes begin. */
static bool has_packs(const onepass_pool_problem *p, const onepass_box_args *args, int64_t vec) {
  const bool has_kernel = p->op == ONEPASS_AVG_POOL || (p->op == ONEPASS_MAX_POOL && !p->backward);
  if (!args->channels_last || args->inner % vec != 0 || !has_kernel) return false;
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

/* For all operators: planes that large are rare. */
#define FORWARD_WIDE  "boxes_forward_wide"
#define BACKWARD_WIDE "boxes_backward_wide"

static void choose_thread_an_output(const onepass_pool_problem *p, bool any_address,
                                    onepass_box_launch *l) {
  static const char *const names[3][2][3] = {
      [ONEPASS_AVG_POOL] = {{"boxes_avg_forward", FORWARD_WIDE, "boxes_avg_forward_channels"},
                            {"boxes_avg_backward", BACKWARD_WIDE, "boxes_avg_backward_channels"}},
      [ONEPASS_MAX_POOL] = {{"boxes_max_forward", FORWARD_WIDE, "boxes_max_forward_channels"},
                            {"boxes_max_backward", BACKWARD_WIDE, NULL}},
      [ONEPASS_LP_POOL] = {{"boxes_lp_forward", FORWARD_WIDE, NULL},
                           {"boxes_lp_backward", BACKWARD_WIDE, NULL}},
  };
  onepass_box_args *args = &l->args;
  const int64_t vec = 16 / onepass_type_size(p->type);
  int way = onepass_box_is_narrow(args) && onepass_box_made_of_outer(args, 1) <= ONEPASS_BOX_MOST
                ? NARROW
                : WIDE;
  if (way == NARROW && !any_address && has_packs(p, args, vec)) way = CHANNELS;
  const int64_t pack = way == CHANNELS ? vec : 1;
  const double made = onepass_box_made_of_outer(args, pack);
  l->kernel = ONEPASS_CUDA_STRIDED;
  l->name = names[p->op][p->backward][way];
  l->aligned = way == CHANNELS;
  args->by_inner = onepass_divider_of(args->inner / pack);
  if (made == 0 || args->outer == 0) {
    l->grid = 0;
  } else if (way == WIDE) {
    /* Tensors that exist have so few elements that this is exact. */
    args->group = args->outer;
    args->group_blocks = l->grid =
        onepass_divide_up((int64_t)made * args->outer, ONEPASS_BOX_BLOCK);
  } else {
    args->group = onepass_least(args->outer, onepass_most(1, (int64_t)(ONEPASS_BOX_MOST / made)));
    args->group_blocks = onepass_divide_up((int64_t)made * args->group, ONEPASS_BOX_BLOCK);
    args->by_group_blocks = onepass_divider_of(args->group_blocks);
    l->grid = args->group_blocks * onepass_divide_up(args->outer, args->group);
  }
}

/* Whether an element is in two windows or fewer on average, and windows have no gaps. */
bool onepass_box_hardly_overlap(const onepass_box_args *args) {
  double read = 1;
  /* An adaptive window overlaps its neighbours by an element or two. */
  for (int a = 0; a < ONEPASS_POOL_AXES && !args->adaptive; a++) {
    if (args->axis[a].dilation != 1) return false;
    read *= (double)args->axis[a].extent / (double)args->axis[a].stride;
  }
  return read <= 2;
}

/* ---- Teams ----------------------------------------------------------------------------------- */

/* Large windows that hardly overlap, of dense rows. */
static bool choose_teams(const onepass_pool_problem *p, onepass_box_launch *l) {
  onepass_box_args *args = &l->args;
  const onepass_box_axis *axis = args->axis;
  const int64_t outputs = axis[0].pooled * axis[1].pooled * axis[2].pooled;
  const double terms = terms_of(p, args);
  if (p->backward || p->op == ONEPASS_LP_POOL || axis[2].step[ONEPASS_BOX_X] != 1 ||
      !onepass_box_is_narrow(args) || outputs == 0 || args->outer == 0 || args->inner == 0 ||
      terms < LARGE_WINDOW || !onepass_box_hardly_overlap(args)) {
    return false;
  }
  args->team = terms < WINDOW_OF_BLOCK ? ONEPASS_BOX_WARP : ONEPASS_BOX_BLOCK;
  l->kernel = ONEPASS_CUDA_WINDOWS;
  l->name = p->op == ONEPASS_AVG_POOL ? "teams_avg" : "teams_max";
  l->shared = args->team == ONEPASS_BOX_BLOCK
                  ? ONEPASS_BOX_BLOCK / ONEPASS_BOX_WARP * (sizeof(double) + sizeof(int32_t))
                  : 0;
  l->grid = onepass_divide_up(args->outer * args->inner * outputs, ONEPASS_BOX_BLOCK / args->team);
  return l->grid <= INT32_MAX;
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
  while (parts < ONEPASS_BOX_BLOCK / lanes && positions >= 2 * parts * FEWEST_OF_PART) parts *= 2;
  return parts;
}

/* As many as have 512 bytes of channels. */
static int64_t lanes_for(int64_t packs) {
  int64_t lanes = 1;
  while (lanes < packs && lanes < ONEPASS_BOX_WARP) lanes *= 2;
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
  if (any_address || p->backward || packs == 0 || !onepass_box_is_narrow(args) ||
      !has_packs(p, args, vec) || onepass_box_made_of_outer(args, vec) == 0 ||
      !onepass_box_hardly_overlap(args)) {
    return false;
  }
  const int64_t positions = positions_of(args);
  const double outputs = (double)args->outer * onepass_box_made_of_outer(args, args->inner);
  if (positions < WINDOW_OF_PARTS || outputs == 0 || outputs * (double)packs > ONEPASS_BOX_MOST) {
    return false;
  }
  /* Threads that have so much on its way that memory has no pause. */
  const int64_t enough = 3 * ONEPASS_BOX_BLOCK * (int64_t)device->multiprocessors;
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
  args->by_inner = onepass_divider_of(args->team_tiles);
  const bool max = p->op == ONEPASS_MAX_POOL;
  l->kernel = ONEPASS_CUDA_STRIDED;
  l->name = max ? "teams_max_channels" : "teams_avg_channels";
  l->aligned = true;
  l->shared = (size_t)(ONEPASS_BOX_BLOCK * vec *
                       (onepass_type_size(onepass_type_of_sums(p->type)) +
                        (max ? (int64_t)sizeof(int32_t) : 0)));
  l->grid = onepass_divide_up((int64_t)outputs * args->team_tiles, ONEPASS_BOX_BLOCK / args->team);
  return true;
}

/* ---- The choice ------------------------------------------------------------------------------ */

bool onepass_pool_choose_boxes(const onepass_pool_problem *p, bool indices, bool any_address,
                               const onepass_cuda_properties *device, onepass_cuda_kernel asked,
                               onepass_box_launch *launch) {
  *launch = (onepass_box_launch){.block = ONEPASS_BOX_BLOCK};
  describe(p, &launch->args);
  const onepass_box_args plain = launch->args;
  if (asked == ONEPASS_CUDA_BEST || asked == ONEPASS_CUDA_WINDOWS) {
    if (onepass_box_choose_bands(p, indices, any_address, device, launch) ||
        choose_teams(p, launch) || onepass_box_choose_returns(p, any_address, launch) ||
        onepass_box_choose_drops(p, any_address, launch) ||
        onepass_box_choose_channel_drops(p, device, launch) ||
        onepass_box_choose_walks(p, indices, any_address, device, launch)) {
      return true;
    }
    launch->args = plain;
    launch->block = ONEPASS_BOX_BLOCK;
    launch->shared = 0;
    launch->aligned = false;
  }
  if (asked != ONEPASS_CUDA_BEST && asked != ONEPASS_CUDA_STRIDED) return false;
  if (choose_channel_teams(p, any_address, device, launch)) return true;
  choose_thread_an_output(p, any_address, launch);
  return launch->grid <= INT32_MAX;
}
