/*
 * How a GPU would go about pooling over up to three axes, for GPUs that need not be here; see test_launch_cuda.c.
 *
 * SPDX-License-Identifier: MIT
 */
#include "launch.h"

typedef struct box_case {
  onepass_pool pool;
  int type;
  int64_t shape[5];  /* N, C and the pooled axes */
  int64_t pooled[3]; /* if adaptive: what they become */
  bool channels_last, spread, indices;
} box_case;

typedef struct box_trial {
  box_case of;
  const gpu *on;
  onepass_cuda_kernel asked;
  bool any_address;
  onepass_plan plan;
  onepass_box_launch launch;
  int64_t pooled[5];
} box_trial;

static const char *describe_box(const box_trial *t) {
  static char text[700];
  const onepass_pool *p = &t->of.pool;
  const onepass_box_launch *l = &t->launch;
  const onepass_box_walk *w = &l->args.walk;
  int used = snprintf(text, sizeof text, "op %d direction %d adaptive %d %s", (int)p->op,
                      (int)p->direction, (int)p->adaptive, type_names[t->of.type]);
  for (int d = 0; d < 2 + p->spatial; d++) {
    used += snprintf(text + used, sizeof text - (size_t)used, " %lld->%lld",
                     (long long)t->of.shape[d], (long long)t->pooled[d]);
  }
  snprintf(text + used, sizeof text - (size_t)used,
           " kernel %lld stride %lld padding %lld dilation %lld%s%s%s on %s, asked for %d: %s grid "
           "%lld shared %zu lanes %d chunk %d ring %d",
           (long long)p->kernel[0], (long long)p->stride[0], (long long)p->padding[0],
           (long long)p->dilation[0], t->of.channels_last ? " channels last" : "",
           t->of.spread ? " spread" : "", t->of.indices ? " indices" : "", t->on->name,
           (int)t->asked, l->name ? l->name : "none", (long long)l->grid, l->shared, (int)w->lanes,
           (int)w->chunk, (int)w->ring);
  return text;
}

#define BOX(condition) PROMISE(t, describe_box, condition)

static void strides_of(const box_case *of, const int64_t *shape, int64_t *strides) {
  const int ndim = 2 + of->pool.spatial;
  int64_t step = of->spread ? 2 : 1;
  if (of->channels_last) {
    strides[1] = step;
    step *= shape[1];
  }
  for (int d = ndim - 1; d >= 0; d--) {
    if (d == 1 && of->channels_last) continue;
    strides[d] = step;
    step *= shape[d];
  }
}

/* False where no window fits, or the tensor would be larger than tensors are. */
static bool make_box(box_trial *t) {
  const box_case *of = &t->of;
  const onepass_pool *pool = &of->pool;
  const bool back = pool->direction == ONEPASS_BACKWARD, lp = pool->op == ONEPASS_LP_POOL;
  const int ndim = 2 + pool->spatial;
  int64_t long_strides[5], pooled_strides[5];
  t->pooled[0] = of->shape[0], t->pooled[1] = of->shape[1];
  for (int a = 0; a < pool->spatial; a++) {
    t->pooled[2 + a] = of->pooled[a];
    if (!pool->adaptive && onepass_pool_length_dilated(
                               of->shape[2 + a], pool->kernel[a], pool->stride[a], pool->padding[a],
                               pool->dilation[a], pool->ceil_mode, &t->pooled[2 + a])) {
      return false;
    }
  }
  strides_of(of, of->shape, long_strides);
  strides_of(of, t->pooled, pooled_strides);
  const onepass_device cpu = {ONEPASS_CPU, 0};
  const onepass_tensor longer = {NULL, cpu, ndim, types[of->type], of->shape, long_strides, 0};
  const onepass_tensor shorter = {NULL, cpu, ndim, types[of->type], t->pooled, pooled_strides, 0};
  const onepass_tensor indices = {NULL, cpu, ndim, ONEPASS_I64, t->pooled, pooled_strides, 0};
  const onepass_tensors tensors = {.x = !back || lp ? &longer : NULL,
                                   .y = !back || lp ? &shorter : NULL,
                                   .dy = back ? &shorter : NULL,
                                   .dx = back ? &longer : NULL,
                                   .indices = of->indices ? &indices : NULL};
  /* The reference's plan: what the CPU's kernels make of a problem is their own. */
  const onepass_options options = {.reference = 1};
  return onepass_make_pool(&t->plan, pool, &tensors, &options) == ONEPASS_OK;
}

static bool divides(onepass_divider divider, int64_t by) {
  const int64_t numbers[] = {0, 1, by - 1, by, by + 1, 1000 * by - 1, 1000 * by, INT32_MAX};
  for (int i = 0; i < COUNT(numbers); i++) {
    if (numbers[i] > INT32_MAX) continue;
    const uint64_t high = ((uint64_t)numbers[i] * divider.multiplier) >> 32;
    if ((int64_t)((high + (uint64_t)numbers[i]) >> divider.shift) != numbers[i] / by) return false;
    if (high + (uint64_t)numbers[i] > UINT32_MAX) return false; /* what the kernel has */
  }
  return true;
}

/* Whether kernels find the elements of windows, and divide as they need to: at the ends of some windows of each axis. */
static bool knows_windows(const onepass_box_args *a) {
  for (int k = 0; k < 3; k++) {
    const onepass_box_axis *x = &a->axis[k];
    const int64_t outputs[] = {0, 1, x->pooled / 2, x->pooled - 1};
    for (int i = 0; i < COUNT(outputs); i++) {
      const int64_t o = outputs[i];
      if (o < 0 || o >= x->pooled) continue;
      const int64_t begin = a->adaptive ? o * x->length / x->pooled : o * x->stride - x->padding;
      const int64_t end =
          a->adaptive ? divide_up((o + 1) * x->length, x->pooled) : begin + x->extent;
      const int64_t elements[] = {begin - 1, begin, begin + 1, begin + x->dilation, end - 1, end};
      for (int j = 0; j < COUNT(elements); j++) {
        const int64_t e = elements[j];
        if (e < 0 || e >= x->length) continue;
        const int64_t distance = e * x->element_scale - o * x->output_scale + x->ahead;
        const bool held = e >= begin && e < end && (e - begin) % x->dilation == 0;
        const bool found = distance >= 0 && distance < x->reach && distance % x->dilation == 0;
        if (held != found) return false;
      }
    }
    if (x->dilation <= INT32_MAX && !divides(x->by_dilation, x->dilation)) return false;
    if (x->output_scale <= INT32_MAX && !divides(x->by_output_scale, x->output_scale)) return false;
    if (x->pooled > 0 && x->pooled <= INT32_MAX && !divides(x->by_pooled, x->pooled)) return false;
  }
  return true;
}

static void expect_thread_an_output(const box_trial *t) {
  const onepass_box_launch *l = &t->launch;
  const onepass_box_args *a = &l->args;
  const bool wide = strstr(l->name, "_wide"), channels = strstr(l->name, "_channels");
  const int64_t pack = channels ? 16 * 8 / types[t->of.type].bits : 1;
  int64_t made = a->inner / pack;
  BOX(l->kernel == ONEPASS_CUDA_STRIDED && l->shared == 0);
  BOX(a->op == (t->of.pool.op == ONEPASS_AVG_POOL   ? ONEPASS_BOX_AVG
                : t->of.pool.op == ONEPASS_MAX_POOL ? ONEPASS_BOX_MAX
                                                    : ONEPASS_BOX_LP));
  BOX(channels == l->aligned && !(channels && t->any_address));
  BOX(a->inner % pack == 0 && (!channels || a->channels_last));
  for (int k = 0; k < 3; k++) made *= a->axis[k].count;
  if (made == 0 || a->outer == 0) {
    BOX(l->grid == 0);
    return;
  }
  BOX(l->grid == a->group_blocks * divide_up(a->outer, a->group));
  BOX(a->group_blocks * l->block >= a->group * made);
  if (wide) {
    BOX(a->group == a->outer);
    return;
  }
  BOX(a->group * made <= 1 << 30 && a->group_blocks * l->block <= INT32_MAX);
  BOX(divides(a->by_group_blocks, a->group_blocks) && divides(a->by_inner, a->inner / pack));
  for (int k = 0; k < 3; k++) {
    const onepass_box_axis *axis = &a->axis[k];
    BOX(divides(axis->by_count, axis->count));
    BOX(axis->length + axis->padding + axis->extent <= INT32_MAX);
    BOX(axis->pooled * axis->stride + axis->extent <= INT32_MAX);
    BOX(!a->adaptive || (axis->pooled + 1) * (axis->length + 1) <= INT32_MAX);
    for (int r = 0; r < ONEPASS_BOX_TENSORS; r++) {
      const bool is_long = r == ONEPASS_BOX_X || r == ONEPASS_BOX_DX;
      BOX((is_long ? axis->length : axis->pooled) * axis->step[r] <= 1 << 30);
    }
  }
}

/* Whether the planes that walks leave out are those that no window has. */
static bool knows_gaps(const onepass_box_axis *axis, uint64_t gaps) {
  for (int64_t plane = 0; plane < axis->stride && axis->stride <= 64; plane++) {
    bool is_held = false;
    for (int64_t k = 0; k < axis->kernel; k++) {
      for (int64_t first = 0; first <= k * axis->dilation; first += axis->stride)
        is_held |= k * axis->dilation - first == plane;
    }
    if ((gaps >> plane & 1) == is_held) return false;
  }
  return axis->stride <= 64 || gaps == 0;
}

static void expect_walks(const box_trial *t) {
  const onepass_box_launch *l = &t->launch;
  const onepass_box_args *a = &l->args;
  const onepass_box_axis *axis = a->axis;
  const onepass_box_walk *w = &a->walk;
  const int64_t sums = t->of.type == F64 ? 8 : 4, vec = 16 * 8 / types[t->of.type].bits;
  const char *op = t->of.pool.op == ONEPASS_AVG_POOL ? "avg"
                   : t->of.indices                   ? "max_indices"
                                                     : "max";
  const bool steps = strncmp(l->name, "steps_", 6) == 0; /* an output at a time */
  const char *window = strchr(l->name, '_') + 1 + strlen(op);
  int rows = 1, columns = 0, stride = 1, dilation = 1;
  if (steps) {
    BOX(sscanf(window, "_%d_%d", &rows, &columns) == 2);
    stride = (int)axis[2].stride;
  } else {
    BOX(sscanf(window, "_%d_%d_%d_%d", &rows, &columns, &stride, &dilation) == 4);
  }
  const int64_t width = steps ? 1 : vec, places = divide_up(axis[2].pooled, width);
  BOX(t->of.pool.direction == ONEPASS_FORWARD && !a->adaptive && !t->of.spread && a->inner == 1);
  BOX(l->block == 128 && is_power_of_two(w->lanes) && w->lanes <= 128 && w->chunk >= 1);
  BOX(strncmp(strchr(l->name, '_') + 1, op, strlen(op)) == 0);
  BOX(rows == 0 || axis[1].kernel == rows);
  BOX(columns == 0 ||
      (axis[2].kernel == columns && axis[2].stride == stride && axis[2].dilation == dilation));
  BOX(axis[2].step[ONEPASS_BOX_X] == 1 && axis[2].step[ONEPASS_BOX_Y] == 1);
  BOX(w->chunks == divide_up(axis[0].pooled, w->chunk) && divides(w->by_chunks, w->chunks));
  BOX(w->blocks_wide == divide_up(places, w->lanes));
  BOX(divides(w->by_blocks_wide, w->blocks_wide) && divides(axis[0].by_dilation, axis[0].dilation));
  BOX(l->grid == w->chunks * w->blocks_wide * divide_up(a->outer * axis[1].pooled, 128 / w->lanes));
  BOX(a->outer * axis[1].pooled <= 1 << 30 && divides(w->by_high, axis[1].pooled));
  BOX(w->even == l->aligned && !(w->even && t->any_address));
  BOX(!w->even || (!steps && axis[2].pooled % vec == 0));
  BOX(l->shared >= 128 * 16);
  if (w->ring == 0) {
    BOX(axis[0].kernel == 1 && axis[0].stride == 1 && axis[0].padding == 0);
  } else {
    /* The planes of a window, and three that are asked for with its last one. */
    BOX(w->ring >= axis[0].extent + 3 && w->ring > axis[0].dilation * (axis[0].kernel > 1));
    BOX((int64_t)l->shared >=
        128 * (16 + w->ring * width * (sums + (t->of.indices ? (int64_t)sizeof(int32_t) : 0))));
    BOX(knows_gaps(&axis[0], w->gaps) && divides(axis[0].by_output_scale, axis[0].stride));
  }
}

/* The bytes and positions that threads of a team share out, and where their parts meet. */
static void expect_channel_teams(const box_trial *t) {
  const onepass_box_launch *l = &t->launch;
  const onepass_box_args *a = &l->args;
  const int64_t vec = 16 * 8 / types[t->of.type].bits, packs = a->inner / vec;
  const int64_t sums = t->of.type == F64 ? 8 : 4, lanes = a->team_lanes;
  const bool max = t->of.pool.op == ONEPASS_MAX_POOL;
  int64_t outputs = a->outer, positions = 1;
  for (int k = 0; k < 3; k++) {
    const onepass_box_axis *axis = &a->axis[k];
    outputs *= axis->pooled;
    positions *= a->adaptive                   ? divide_up(axis->length, axis->pooled)
                 : axis->kernel < axis->length ? axis->kernel
                                               : axis->length;
    BOX(a->adaptive || axis->dilation == 1);
    BOX(divides(axis->by_count, axis->pooled));
    BOX(axis->step[ONEPASS_BOX_X] % vec == 0 && axis->step[ONEPASS_BOX_Y] % vec == 0);
    BOX(axis->length * axis->step[ONEPASS_BOX_X] <= 1 << 30);
  }
  BOX(strcmp(l->name, max ? "teams_max_channels" : "teams_avg_channels") == 0);
  BOX(t->of.pool.direction == ONEPASS_FORWARD && l->kernel == ONEPASS_CUDA_STRIDED);
  BOX(l->aligned && !t->any_address && l->block == 256);
  BOX(a->channels_last && a->inner % vec == 0 && a->inner_step[ONEPASS_BOX_X] == 1 &&
      a->inner_step[ONEPASS_BOX_Y] == 1);
  BOX(is_power_of_two(lanes) && lanes <= 32 && lanes < 2 * packs);
  /* A power of two of parts, each of some positions. */
  BOX(is_power_of_two(a->team) && a->team >= 2 * lanes && a->team <= 256);
  BOX(a->team / lanes * 4 <= positions && positions >= 24);
  BOX(a->team_tiles == divide_up(packs, lanes) && divides(a->by_inner, a->team_tiles));
  BOX(outputs * a->team_tiles <= 1 << 30 &&
      l->grid == divide_up(outputs * a->team_tiles, 256 / a->team));
  BOX((int64_t)l->shared == 256 * vec * (sums + (max ? (int64_t)sizeof(int32_t) : 0)));
}

/* Strips hold all columns of their windows, and together all outputs, without a thread that is not needed. */
static void expect_strips(const box_trial *t, int64_t vec, bool by_packs, int64_t most_lanes) {
  const onepass_box_axis *along = &t->launch.args.axis[2];
  const onepass_box_strips *s = &t->launch.args.strips;
  const int64_t columns = s->lanes * vec;
  BOX(is_power_of_two(s->lanes) && s->lanes >= 4 && s->lanes <= most_lanes);
  BOX(s->outputs >= 1 && s->strips == divide_up(along->pooled, s->outputs));
  BOX(divides(s->by_strips, s->strips) && divides(s->by_groups, s->groups));
  for (int64_t strip = 0; strip < s->strips && strip < 5; strip++) {
    const int64_t from = strip * s->outputs * along->stride - along->padding;
    const int64_t begin = by_packs ? from - (from % vec + vec) % vec : from;
    BOX(from + (s->outputs - 1) * along->stride + along->extent - begin <= columns);
  }
  if (s->strips > 1 && s->lanes < most_lanes) {
    /* Twice as many lanes and half as many strips would not do. */
    const int64_t room = 2 * columns - (by_packs ? vec - 1 : 0) - along->extent;
    BOX(2 * divide_up(along->pooled, room / along->stride + 1) >= s->strips);
  }
}

static void expect_bands(const box_trial *t) {
  const onepass_box_launch *l = &t->launch;
  const onepass_box_args *a = &l->args;
  const onepass_box_axis *axis = a->axis, *along = &axis[2];
  const int64_t vec = 16 * 8 / types[t->of.type].bits;
  BOX(strcmp(l->name, t->of.pool.op == ONEPASS_MAX_POOL ? "bands_max" : "bands_avg") == 0);
  BOX(t->of.pool.direction == ONEPASS_FORWARD && !t->of.indices && !a->adaptive && a->inner == 1);
  BOX(l->aligned && !t->any_address && along->length % vec == 0 && l->block == 512);
  BOX(along->step[ONEPASS_BOX_X] == 1 && (axis[1].length == 1 || axis[1].step[0] % vec == 0) &&
      (axis[0].length == 1 || axis[0].step[0] % vec == 0));
  expect_strips(t, vec, true, 512);
  const int64_t rows = axis[0].kernel * axis[1].kernel, at_once = a->strips.at_once;
  const int64_t most = vec == 8 ? 4 : 6;
  BOX(at_once >= 1 && at_once <= most && divide_up(rows, at_once) == divide_up(rows, most));
  const onepass_box_strips *s = &a->strips;
  BOX(divides(axis[0].by_count, axis[0].pooled));
  BOX(s->rows >= 1 && s->rows <= 4 && s->groups == divide_up(axis[1].pooled, s->rows));
  BOX((int64_t)l->shared == 512 * vec * 33 / 32 * 4);
  BOX(l->grid == divide_up(a->outer * axis[0].pooled * s->groups * s->strips, 512 / s->lanes));
}

static void expect_slides(const box_trial *t) {
  const onepass_box_launch *l = &t->launch;
  const onepass_box_args *a = &l->args;
  const onepass_box_axis *axis = a->axis;
  const onepass_box_strips *s = &a->strips;
  const int64_t vec = 16 * 8 / types[t->of.type].bits;
  const char *format = t->of.pool.op == ONEPASS_MAX_POOL ? "slides_max_%d" : "slides_avg_%d";
  int kernel = 0;
  BOX(sscanf(l->name, format, &kernel) == 1 && kernel >= 2 && kernel <= 5);
  for (int k = 0; k < 3; k += 2) {
    BOX(axis[k].kernel == kernel && axis[k].stride == 1 && axis[k].dilation == 1);
    BOX(!s->by_packs || (k == 0 ? axis[k].length == 1 || axis[k].step[ONEPASS_BOX_X] % vec == 0
                                : axis[k].length % vec == 0));
  }
  BOX(axis[1].kernel == 1 && divides(a->walk.by_high, axis[1].pooled));
  BOX(t->of.pool.direction == ONEPASS_FORWARD && !t->of.indices && !a->adaptive && a->inner == 1);
  BOX(l->block == 128 && !(l->aligned && t->any_address) && (l->aligned || !s->by_packs));
  BOX(axis[2].step[ONEPASS_BOX_X] == 1 && axis[2].step[ONEPASS_BOX_Y] == 1);
  expect_strips(t, vec, s->by_packs, 32);
  BOX(s->rows >= 1 && s->rows <= 12 && s->groups == divide_up(axis[0].pooled, s->rows));
  BOX((int64_t)l->shared == (128 * vec + 128 / s->lanes * 16) * 4);
  /* Pairs of outputs are stored as words. */
  BOX(!a->walk.even ||
      (l->aligned && axis[2].pooled % 2 == 0 && (s->strips == 1 || s->outputs % 2 == 0)));
  BOX(a->outer * axis[1].pooled <= 1 << 30);
  BOX(l->grid == divide_up(a->outer * axis[1].pooled * s->strips * s->groups, 128 / s->lanes));
}

static bool has_dense_gradients(const onepass_box_args *a) {
  int64_t elements = 1;
  for (int k = 2; k >= 0; k--) {
    if (a->axis[k].length > 1 && a->axis[k].step[ONEPASS_BOX_DX] != elements) return false;
    elements *= a->axis[k].length;
  }
  return a->inner == 1;
}

static void expect_returns(const box_trial *t) {
  const onepass_box_launch *l = &t->launch;
  const onepass_box_args *a = &l->args;
  const int64_t vec = 16 * 8 / types[t->of.type].bits;
  const int64_t elements = a->axis[0].length * a->axis[1].length * a->axis[2].length;
  BOX(t->of.pool.op == ONEPASS_AVG_POOL && t->of.pool.direction == ONEPASS_BACKWARD);
  BOX(has_dense_gradients(a) && !a->many_terms);
  BOX(a->packs == divide_up(elements, vec) && divides(a->by_packs, a->packs));
  BOX(a->outer * a->packs <= 1 << 30 && l->grid == divide_up(a->outer * a->packs, 256));
  for (int k = 0; k < 3; k++) BOX(divides(a->axis[k].by_count, a->axis[k].length));
  BOX(a->walk.even == l->aligned && !(l->aligned && t->any_address));
  BOX(!l->aligned ||
      (elements % vec == 0 && (a->outer == 1 || a->outer_step[ONEPASS_BOX_DX] % vec == 0)));
}

/* Tiles lie side by side in memory and make up planes; outputs as many apart as there are classes have no element in
 * common. */
static void expect_drops(const box_trial *t) {
  const onepass_box_launch *l = &t->launch;
  const onepass_box_args *a = &l->args;
  const onepass_box_drops *d = &a->drops;
  const int64_t vec = 16 * 8 / types[t->of.type].bits, sums = t->of.type == F64 ? 8 : 4;
  int64_t elements = 1, size = 1, tiles = 1;
  BOX(t->of.pool.op == ONEPASS_MAX_POOL && t->of.pool.direction == ONEPASS_BACKWARD);
  BOX(has_dense_gradients(a));
  for (int k = 2; k >= 0; k--) {
    const onepass_box_axis *axis = &a->axis[k];
    BOX(d->tile[k] == 1 || tiles == 1); /* the faster axes are whole */
    BOX(d->tiles[k] == divide_up(axis->length, d->tile[k]));
    BOX(d->classes[k] >= 1 && d->classes[k] <= 32);
    for (int64_t o = 0; o + d->classes[k] < axis->pooled && o < 70; o++) {
      const int64_t next = o + d->classes[k];
      if (a->adaptive) {
        BOX(divide_up((o + 1) * axis->length, axis->pooled) <= next * axis->length / axis->pooled);
      } else {
        BOX(o * axis->stride + axis->extent <= next * axis->stride);
      }
    }
    BOX(divides(axis->by_count, axis->length));
    elements *= axis->length;
    size *= d->tile[k];
    tiles *= d->tiles[k];
  }
  BOX(d->planes == 1 || (tiles == 1 && a->outer_step[ONEPASS_BOX_DX] == elements));
  BOX(d->planes >= 1 && (int64_t)l->shared == d->planes * size * sums);
  BOX(l->grid == divide_up(a->outer, d->planes) * tiles);
  BOX(a->walk.even == l->aligned && !(l->aligned && t->any_address));
  BOX(!l->aligned || (elements % vec == 0 && (tiles == 1 || a->axis[2].length % vec == 0) &&
                      (d->tiles[2] == 1 || d->tile[2] % vec == 0)));
}

/* Tiles of any shape, one for each channel and thread. */
static void expect_channel_drops(const box_trial *t) {
  const onepass_box_launch *l = &t->launch;
  const onepass_box_args *a = &l->args;
  const onepass_box_drops *d = &a->drops;
  const int64_t sums = t->of.type == F64 ? 8 : 4;
  int64_t size = 1, tiles = 1;
  BOX(t->of.pool.op == ONEPASS_MAX_POOL && t->of.pool.direction == ONEPASS_BACKWARD);
  BOX(a->channels_last && l->block == 128 && !l->aligned);
  for (int k = 0; k < 3; k++) {
    const onepass_box_axis *axis = &a->axis[k];
    BOX(d->tile[k] >= 1 && d->tile[k] <= axis->length);
    BOX(d->tiles[k] == divide_up(axis->length, d->tile[k]));
    BOX(divides(axis->by_count, axis->length));
    size *= d->tile[k];
    tiles *= d->tiles[k];
  }
  BOX(divides(a->by_inner, a->inner));
  BOX(size * sums <= 256 && (int64_t)l->shared == size * 128 * sums);
  BOX(a->outer * a->inner * tiles <= 1 << 30);
  BOX(l->grid == divide_up(a->outer * a->inner * tiles, 128));
}

static void expect_box_launch(const box_trial *t) {
  const onepass_box_launch *l = &t->launch;
  const onepass_box_args *a = &l->args;
  BOX(t->asked == ONEPASS_CUDA_BEST || l->kernel == t->asked);
  BOX(l->grid >= 0 && l->grid <= INT32_MAX);
  BOX((int64_t)l->shared <= t->on->properties.shared_block);
  BOX(l->block == 256 || l->name[0] == 'w' || l->name[0] == 's' || l->name[0] == 'b' ||
      strcmp(l->name, "drops_max_channels") == 0);
  /* Walks, steps and slides turn axes, one of which may be lines that follow each other. */
  if (l->name[0] != 'w' && l->name[0] != 's') BOX(knows_windows(a));
  if (strncmp(l->name, "boxes_", 6) == 0) {
    expect_thread_an_output(t);
  } else if (strncmp(l->name, "walks_", 6) == 0 || strncmp(l->name, "steps_", 6) == 0) {
    expect_walks(t);
  } else if (strncmp(l->name, "slides_", 7) == 0) {
    expect_slides(t);
  } else if (strncmp(l->name, "bands_", 6) == 0) {
    expect_bands(t);
  } else if (strcmp(l->name, "returns_avg") == 0) {
    expect_returns(t);
  } else if (strcmp(l->name, "drops_max") == 0) {
    expect_drops(t);
  } else if (strcmp(l->name, "drops_max_channels") == 0) {
    expect_channel_drops(t);
  } else if (strncmp(l->name, "teams_", 6) == 0 && strstr(l->name, "_channels")) {
    expect_channel_teams(t);
  } else {
    BOX(strncmp(l->name, "teams_", 6) == 0);
    BOX(a->team == 32 || (a->team == 256 && l->shared >= 8 * 12));
    BOX(l->grid ==
        divide_up(a->outer * a->inner * a->axis[0].pooled * a->axis[1].pooled * a->axis[2].pooled,
                  256 / a->team));
    BOX(!t->of.spread && a->axis[2].step[ONEPASS_BOX_X] == 1);
  }
}

static void try_box(box_trial *t) {
  if (!make_box(t) || onepass_pool_is_plain(&t->plan.problem.pool)) return;
  for (int which = 0; which < 2 * ONEPASS_CUDA_KERNEL_COUNT; which++) {
    t->asked = (onepass_cuda_kernel)(which / 2);
    t->any_address = which % 2;
    memset(&t->launch, 0x5a, sizeof t->launch);
    const bool possible =
        onepass_pool_choose_boxes(&t->plan.problem.pool, t->of.indices, t->any_address,
                                  &t->on->properties, t->asked, &t->launch);
    if (t->asked == ONEPASS_CUDA_BEST || t->asked == ONEPASS_CUDA_STRIDED) BOX(possible);
    if (t->asked != ONEPASS_CUDA_BEST && t->asked != ONEPASS_CUDA_STRIDED &&
        t->asked != ONEPASS_CUDA_WINDOWS) {
      BOX(!possible);
    }
    if (possible) expect_box_launch(t);
  }
}

static void test_boxes_keep_what_kernels_take_for_granted(void) {
  static const int64_t planes[][2] = {{1, 1}, {3, 8}, {64, 192}, {300, 4096}, {0, 4}};
  static const int64_t lengths[][3] = {{1, 1, 1},       {7, 7, 7},        {16, 16, 16},
                                       {55, 55, 55},    {56, 56, 56},     {128, 128, 256},
                                       {1, 2048, 2048}, {3, 5, 65536},    {2, 3, (int64_t)1 << 31},
                                       {1000, 1, 8},    {1 << 20, 2, 64}, {40000, 40000, 4}};
  static const int64_t windows[][4] = {{1, 1, 0, 1},  {2, 2, 0, 1},   {3, 2, 1, 1},  {4, 1, 1, 1},
                                       {8, 1, 4, 3},  {11, 11, 0, 1}, {3, 2, 1, 3},  {2, 9, 1, 1},
                                       {3, 1, 1, 40}, {65, 1, 0, 1},  {64, 64, 0, 1}};
  static const int64_t parts[] = {1, 2, 7, 60};
  enum { WINDOWS = COUNT(windows), WAYS = WINDOWS + COUNT(parts) };
  box_trial t = {0};
  const int every = COUNT(planes) * COUNT(lengths) * WAYS * 3 * 3 * 2 * 3;
  for (int which = 0; which < every; which++) {
    int rest = which;
    t.of = (box_case){.type = which % TYPES};
    const int layout = rest % 3;
    rest /= 3;
    t.of.channels_last = layout == 1, t.of.spread = layout == 2;
    t.of.pool.direction = rest % 2 ? ONEPASS_BACKWARD : ONEPASS_FORWARD, rest /= 2;
    t.of.pool.op = (onepass_pool_op)(rest % 3), rest /= 3;
    t.of.pool.spatial = rest % 3 + 1, rest /= 3;
    const int way = rest % WAYS;
    rest /= WAYS;
    const int64_t *length = lengths[rest % COUNT(lengths)];
    rest /= COUNT(lengths);
    memcpy(t.of.shape, planes[rest], sizeof planes[rest]);
    t.of.pool.ceil_mode = way < WINDOWS && which % 5 == 0;
    t.of.pool.adaptive = way >= WINDOWS;
    t.of.pool.p = t.of.pool.op == ONEPASS_LP_POOL ? 2 : 0;
    t.of.indices = t.of.pool.op == ONEPASS_MAX_POOL &&
                   (t.of.pool.direction == ONEPASS_BACKWARD || which % 7 < 3);
    for (int a = 0; a < t.of.pool.spatial; a++) {
      t.of.shape[2 + a] = length[3 - t.of.pool.spatial + a];
      if (t.of.pool.adaptive) {
        t.of.pooled[a] = parts[way - WINDOWS];
        continue;
      }
      t.of.pool.kernel[a] = windows[way][0];
      t.of.pool.stride[a] = windows[way][1];
      if (t.of.pool.op != ONEPASS_LP_POOL) t.of.pool.padding[a] = windows[way][2];
      if (t.of.pool.op == ONEPASS_MAX_POOL) t.of.pool.dilation[a] = windows[way][3];
    }
    double elements = (double)t.of.shape[0] * (double)t.of.shape[1];
    for (int a = 0; a < t.of.pool.spatial; a++) elements *= (double)t.of.shape[2 + a];
    if (elements > (double)((int64_t)1 << 38)) continue; /* more than any device has */
    for (int on = 0; on < GPUS; on += 2) {
      t.on = &gpus[on];
      try_box(&t);
    }
  }
}

static void test_known_boxes_have_known_kernels(void) {
#define SAME(k) \
  { k, k, k }
#define BOX_CASE(which, axes, k, s, pad, d) \
  .pool = {.op = which,                     \
           .spatial = axes,                 \
           .kernel = SAME(k),               \
           .stride = SAME(s),               \
           .padding = SAME(pad),            \
           .dilation = SAME(d)}
#define BACKWARD .pool.direction = ONEPASS_BACKWARD
  static const struct {
    box_case of;
    const char *name;
  } known[] = {
      {{BOX_CASE(ONEPASS_AVG_POOL, 2, 11, 11, 0, 0), .shape = {16, 64, 2048, 2048}}, "bands_avg"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 7, 7, 0, 1), .shape = {16, 64, 512, 512}}, "bands_max"},
      {{BOX_CASE(ONEPASS_AVG_POOL, 2, 7, 7, 0, 0), .shape = {16, 64, 56, 56}}, "bands_avg"},
      {{BOX_CASE(ONEPASS_AVG_POOL, 2, 7, 7, 0, 0), .shape = {16, 64, 57, 57}}, "boxes_avg_forward"},
      {{BOX_CASE(ONEPASS_AVG_POOL, 2, 7, 2, 0, 0), .shape = {16, 64, 57, 57}}, "steps_avg_0_0"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 5, 1, 2, 1), .shape = {16, 64, 13, 13}}, "slides_max_5"},
      {{BOX_CASE(ONEPASS_AVG_POOL, 2, 3, 2, 1, 0), .shape = {64, 64, 112, 112}, BACKWARD},
       "returns_avg"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 3, 2, 1, 1), .shape = {64, 64, 112, 112}, .indices = true,
        BACKWARD},
       "drops_max"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 3, 2, 1, 1), .shape = {64, 64, 112, 112}, .indices = true,
        .channels_last = true, BACKWARD},
       "drops_max_channels"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 4, 1, 1, 1), .shape = {32, 64, 512, 512}}, "slides_max_4"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 1, 8, 1, 4, 3), .shape = {64, 192, 65536}}, "walks_max_1_8_1_3"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 3, 3, 2, 1, 3), .shape = {16, 32, 128, 128, 128}},
       "walks_max_3_3_2_3"},
      {{BOX_CASE(ONEPASS_AVG_POOL, 3, 3, 2, 1, 0), .shape = {16, 32, 128, 128, 256}},
       "walks_avg_3_3_2_1"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 3, 2, 1, 1), .shape = {256, 64, 112, 112}, .indices = true},
       "walks_max_indices_1_3_2_1"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 3, 2, 1, 1), .shape = {256, 64, 112, 112},
        .channels_last = true},
       "boxes_max_forward_channels"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 3, 2, 1, 1), .shape = {256, 64, 55, 55}}, "steps_max_1_3"},
      {{.pool = {.op = ONEPASS_AVG_POOL, .spatial = 2, .adaptive = 1},
        .shape = {256, 512, 56, 56},
        .pooled = {1, 1}},
       "teams_avg"},
      {{.pool = {.op = ONEPASS_AVG_POOL, .spatial = 2, .adaptive = 1},
        .shape = {64, 256, 56, 56},
        .pooled = {1, 1},
        .channels_last = true},
       "teams_avg_channels"},
      {{.pool = {.op = ONEPASS_MAX_POOL, .spatial = 2, .adaptive = 1},
        .shape = {64, 2048, 7, 7},
        .pooled = {1, 1},
        .channels_last = true,
        .indices = true},
       "teams_max_channels"},
      {{BOX_CASE(ONEPASS_AVG_POOL, 2, 16, 16, 0, 0), .shape = {64, 256, 112, 112},
        .channels_last = true},
       "teams_avg_channels"},
      /* Windows that share most of their elements, and channels that are not whole packs. */
      {{BOX_CASE(ONEPASS_AVG_POOL, 2, 16, 4, 0, 0), .shape = {64, 256, 112, 112},
        .channels_last = true},
       "boxes_avg_forward_channels"},
      {{BOX_CASE(ONEPASS_AVG_POOL, 2, 16, 16, 0, 0), .shape = {64, 255, 112, 112},
        .channels_last = true},
       "boxes_avg_forward"},
      {{.pool = {.op = ONEPASS_LP_POOL, .spatial = 1, .kernel = {3}, .stride = {2}, .p = 2},
        .shape = {2, 3, 100}},
       "boxes_lp_forward"},
      {{BOX_CASE(ONEPASS_MAX_POOL, 1, 3, 2, 1, 1), .shape = {1, 1, (int64_t)1 << 31}},
       "boxes_forward_wide"},
  };
  for (int i = 0; i < COUNT(known); i++) {
    box_trial t = {.of = known[i].of, .on = &gpus[H200]};
    EXPECT(
        make_box(&t) && onepass_pool_choose_boxes(&t.plan.problem.pool, t.of.indices, false,
                                                  &t.on->properties, ONEPASS_CUDA_BEST, &t.launch),
        "%s", describe_box(&t));
    EXPECT_TEXT(t.launch.name, known[i].name);
  }
}

/* Tiles are long where windows reach far, made of whole steps of them, and small where there are few. */
static void test_known_channel_drops_have_known_tiles(void) {
  static const struct {
    box_case of;
    int32_t tile[3];
  } known[] = {
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 3, 2, 1, 1), .shape = {64, 64, 112, 112}}, {1, 8, 8}},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 3, 1, 1, 1), .shape = {64, 192, 28, 28}}, {1, 7, 7}},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 2, 2, 0, 1), .shape = {64, 256, 56, 56}}, {1, 2, 28}},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 16, 16, 0, 1), .shape = {64, 256, 56, 56}}, {1, 8, 8}},
      {{BOX_CASE(ONEPASS_MAX_POOL, 3, 3, 1, 1, 1), .shape = {8, 64, 32, 56, 56}}, {4, 4, 4}},
      {{BOX_CASE(ONEPASS_MAX_POOL, 1, 8, 1, 4, 1), .shape = {64, 192, 65536}}, {1, 1, 64}},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 3, 2, 1, 1), .shape = {1, 8, 16, 16}}, {1, 2, 4}},
  };
  for (int i = 0; i < COUNT(known); i++) {
    box_trial t = {.of = known[i].of, .on = &gpus[H200]};
    t.of.pool.direction = ONEPASS_BACKWARD;
    t.of.type = F32;
    t.of.indices = t.of.channels_last = true;
    EXPECT(
        make_box(&t) && onepass_pool_choose_boxes(&t.plan.problem.pool, t.of.indices, false,
                                                  &t.on->properties, ONEPASS_CUDA_BEST, &t.launch),
        "%s", describe_box(&t));
    EXPECT_TEXT(t.launch.name, "drops_max_channels");
    EXPECT(memcmp(t.launch.args.drops.tile, known[i].tile, sizeof known[i].tile) == 0,
           "%s: a tile of %d x %d x %d", describe_box(&t), (int)t.launch.args.drops.tile[0],
           (int)t.launch.args.drops.tile[1], (int)t.launch.args.drops.tile[2]);
  }
}

/* Teams of channels: wide ones that make a few outputs, narrow ones where only those are enough. */
static void test_known_channel_teams_have_known_sizes(void) {
  static const struct {
    box_case of;
    int64_t lanes, parts, grid;
  } known[] = {
      {{.pool = {.op = ONEPASS_AVG_POOL, .spatial = 2, .adaptive = 1},
        .type = F32,
        .shape = {64, 256, 56, 56},
        .pooled = {1, 1},
        .channels_last = true},
       8,
       32,
       512},
      {{.pool = {.op = ONEPASS_AVG_POOL, .spatial = 2, .adaptive = 1},
        .type = F32,
        .shape = {64, 2048, 7, 7},
        .pooled = {1, 1},
        .channels_last = true},
       32,
       8,
       1024},
      {{.pool = {.op = ONEPASS_AVG_POOL, .spatial = 2, .adaptive = 1},
        .type = F32,
        .shape = {4096, 2048, 7, 7},
        .pooled = {1, 1},
        .channels_last = true},
       32,
       2,
       16384},
      {{BOX_CASE(ONEPASS_AVG_POOL, 2, 16, 16, 0, 0), .type = F32, .shape = {64, 256, 112, 112},
        .channels_last = true},
       32,
       8,
       6272},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 16, 16, 0, 1), .type = F32, .shape = {64, 264, 112, 112},
        .channels_last = true},
       8,
       8,
       7056},
      {{BOX_CASE(ONEPASS_MAX_POOL, 2, 16, 16, 0, 1), .type = BF16, .shape = {64, 8, 112, 112},
        .channels_last = true},
       1,
       64,
       784},
  };
  for (int i = 0; i < COUNT(known); i++) {
    box_trial t = {.of = known[i].of, .on = &gpus[H200]};
    EXPECT(
        make_box(&t) && onepass_pool_choose_boxes(&t.plan.problem.pool, t.of.indices, false,
                                                  &t.on->properties, ONEPASS_CUDA_BEST, &t.launch),
        "%s", describe_box(&t));
    EXPECT_INT(t.launch.args.team_lanes, known[i].lanes);
    EXPECT_INT(t.launch.args.team / t.launch.args.team_lanes, known[i].parts);
    EXPECT_INT(t.launch.grid, known[i].grid);
  }
}

int main(void) {
  test_boxes_keep_what_kernels_take_for_granted();
  test_known_boxes_have_known_kernels();
  test_known_channel_drops_have_known_tiles();
  test_known_channel_teams_have_known_sizes();
  return expect_report("test_launch_cuda_boxes");
}
