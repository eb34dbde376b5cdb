/*
 * How a GPU would go about group_norm and batch_norm, for GPUs that need not be here: what a choice says is
 * what the kernels of cuda_cells.cuh take for granted.
 *
 * SPDX-License-Identifier: MIT
 */
#include "launch.h"

typedef enum arrangement {
  COMPACT,
  CHANNELS_LAST,
  SLICED,      /* some channels of a tensor with one more */
  SLICED_LAST, /* the same with channels last */
  PITCHED,     /* a gap behind every cell */
  SPREAD,      /* every second element */
  ARRANGEMENTS
} arrangement;

static const char *const arrangement_names[] = {"compact",     "channels last", "sliced",
                                                "sliced last", "pitched",       "spread"};

enum {
  WEIGHTS = 1,
  SUMMED = 2,
  RUNNING = 4,
  GIVEN = 8,
  RESIDUAL = 16,
  SAVED = 32,
  ALL_EXTRAS = 64
};

typedef struct cells_case {
  bool grouped, backward;
  int type;
  int extras;
  arrangement arrangement;
  int64_t batches, channels, height, width, groups;
} cells_case;

typedef struct cells_trial {
  cells_case of;
  const gpu *on;
  onepass_cuda_kernel asked;
  bool aligned;
  onepass_plan plan;
  onepass_cells_launch launch;
  int64_t size, vec, sums_size, cells, spatial;
} cells_trial;

static const char *describe(const cells_trial *t) {
  static char text[512];
  const cells_case *of = &t->of;
  const onepass_cells_launch *l = &t->launch;
  snprintf(text, sizeof text,
           "%s %s %s %lldx%lldx%lldx%lld in %lld groups, extras %d, %s, on %s, asked for %d, "
           "aligned %d: %s vector %d grids %lld %lld %lld %lld team %d slice %lld segments %lld",
           of->grouped ? "group_norm" : "batch_norm", of->backward ? "backward" : "forward",
           type_names[of->type], (long long)of->batches, (long long)of->channels,
           (long long)of->height, (long long)of->width, (long long)of->groups, of->extras,
           arrangement_names[of->arrangement], t->on->name, (int)t->asked, (int)t->aligned,
           kernel_name(l->kernel), (int)l->vector, (long long)l->gather_grid,
           (long long)l->merge_grid, (long long)l->sum_grid, (long long)l->apply_grid, (int)l->team,
           (long long)l->slice, (long long)l->segments);
  return text;
}

#define CELLS(condition) PROMISE(t, describe, condition)

static void make(cells_trial *t) {
  const cells_case *of = &t->of;
  const arrangement how = of->arrangement;
  const bool last = how == CHANNELS_LAST || how == SLICED_LAST, back = of->backward;
  const int64_t shape[4] = {of->batches, of->channels, of->height, of->width};
  const int64_t channels = shape[1] + (how == SLICED || how == SLICED_LAST);
  const int64_t step = how == SPREAD ? 2 : last ? channels : 1;
  int64_t strides[4] = {0, 1, step * shape[3], step};
  strides[0] = strides[2] * shape[2];
  if (!last) {
    strides[1] = strides[0] + (how == PITCHED);
    strides[0] = strides[1] * channels;
  }
  const onepass_device cpu = {ONEPASS_CPU, 0};
  const onepass_dtype saved_type = of->type == F64 ? types[F64] : types[F32];
  const int64_t rows[2] = {of->batches, of->groups};
  const onepass_tensor x = {NULL, cpu, 4, types[of->type], shape, strides, 0};
  const onepass_tensor by_channel = {NULL, cpu, 1, types[of->type], &shape[1], NULL, 0};
  const onepass_tensor saved = {
      NULL, cpu, of->grouped ? 2 : 1, saved_type, of->grouped ? rows : &shape[1], NULL, 0};
  const bool running = !back && (of->extras & (RUNNING | GIVEN));
  const onepass_tensors tensors = {.x = &x,
                                   .weight = of->extras & WEIGHTS ? &by_channel : NULL,
                                   .bias = !back && (of->extras & WEIGHTS) ? &by_channel : NULL,
                                   .y = back ? NULL : &x,
                                   .mean = back || (of->extras & SAVED) ? &saved : NULL,
                                   .rstd = back || (of->extras & SAVED) ? &saved : NULL,
                                   .dy = back ? &x : NULL,
                                   .dx = back ? &x : NULL,
                                   .dweight = back && (of->extras & SUMMED) ? &by_channel : NULL,
                                   .dbias = back && (of->extras & SUMMED) ? &by_channel : NULL,
                                   .residual = !back && (of->extras & RESIDUAL) ? &x : NULL,
                                   .running_mean = running ? &by_channel : NULL,
                                   .running_var = running ? &by_channel : NULL};
  const onepass_norm norm = {.op = of->grouped ? ONEPASS_GROUP_NORM : ONEPASS_BATCH_NORM,
                             .direction = back ? ONEPASS_BACKWARD : ONEPASS_FORWARD,
                             .eps = 1e-5,
                             .groups = of->grouped ? of->groups : 0,
                             .use_running = (of->extras & GIVEN) != 0,
                             .momentum = 0.1};
  EXPECT_OK(onepass_make_norm(&t->plan, &norm, &tensors, NULL));
  t->size = onepass_type_size(t->plan.problem.norm.type);
  t->vec = 16 / t->size;
  t->sums_size = saved_type.bits / 8;
  t->spatial = shape[2] * shape[3];
  t->cells = of->batches * of->channels;
}

static bool choose(cells_trial *t) {
  return onepass_cells_choose(&t->plan.problem.norm, &t->plan.layouts, &t->on->properties, t->asked,
                              t->aligned, &t->launch);
}

static bool is_last(const cells_trial *t) {
  return t->of.arrangement == CHANNELS_LAST || t->of.arrangement == SLICED_LAST;
}

/* ---- What each kernel takes for granted --------------------------------------------------------- */

static void expect_runs(const cells_trial *t) {
  const onepass_cells_launch *l = &t->launch;
  const arrangement how = t->of.arrangement;
  CELLS(t->spatial == 1 || (!is_last(t) && how != SPREAD) || t->of.channels == 1);
  CELLS(l->positions == t->spatial);
  CELLS(l->team == 256 || (is_power_of_two(l->team) && l->team <= 32));
  CELLS(l->slice * l->segments >= t->spatial && l->slice * (l->segments - 1) < t->spatial);
  CELLS(l->segments == 1 || (l->team == 256 && l->slice % t->vec == 0));
  CELLS(l->slice <= 1 << 30);
  CELLS(l->parts == t->of.batches * l->segments);
  CELLS(l->gather_grid == divide_up(t->cells * l->segments, 256 / l->team));
  CELLS(l->range_cells == 1 || l->range_cells == t->of.channels || l->range_cells == t->cells);
  if (how == PITCHED && t->cells > 1) CELLS(l->range_cells == 1 || t->of.channels == 1);
  if (how == SLICED) CELLS(l->range_cells <= t->of.channels || t->of.batches == 1);
  if (how == COMPACT) CELLS(l->range_cells == t->cells);
}

/* Packs of a thread: kernels.cu. */
static void expect_runs_written(const cells_trial *t) {
  const onepass_cells_launch *l = &t->launch;
  const int64_t of_block = 256 * (t->of.backward ? 2 : 4) * t->vec;
  const int64_t reached = l->range_cells * t->spatial + t->vec - 1;
  CELLS(l->apply_pieces == divide_up(reached, of_block));
  CELLS(l->apply_grid == t->cells / l->range_cells * l->apply_pieces);
}

static void expect_lanes(const cells_trial *t) {
  const onepass_cells_launch *l = &t->launch;
  CELLS(is_last(t) || t->spatial == 1 || t->of.channels == 1);
  CELLS(!l->vector || (t->aligned && t->of.channels % t->vec == 0));
  CELLS(!l->vector || t->of.arrangement != SLICED_LAST || t->spatial * t->of.batches == 1);
  CELLS(!t->of.grouped || !l->as_one);
  CELLS(l->positions == t->spatial * (l->as_one ? t->of.batches : 1));
  CELLS(is_power_of_two(l->team) && l->team <= 32);
  const int64_t batches = l->as_one ? 1 : t->of.batches;
  const int64_t strips = divide_up(t->of.channels, l->team * (l->vector ? t->vec : 1));
  CELLS(l->slice * l->segments >= l->positions && l->slice * (l->segments - 1) < l->positions);
  CELLS(l->parts == batches * l->segments);
  CELLS(l->gather_grid == strips * l->parts);
  CELLS(l->apply_pieces == divide_up(l->positions, l->apply_slice));
  CELLS(l->apply_grid == strips * batches * l->apply_pieces);
  /* No more of the lanes idle than a quarter, unless fewer would not read a sector. */
  const int64_t all = strips * l->team * (l->vector ? t->vec : 1);
  CELLS((all - t->of.channels) * 4 <= all || l->team * (l->vector ? 16 : t->size) <= 64 ||
        t->of.channels < 8);
}

static void expect_merge(const cells_trial *t) {
  const onepass_cells_launch *l = &t->launch;
  const cells_case *of = &t->of;
  const bool moved = !of->backward && (of->extras & RUNNING) && !(of->extras & GIVEN) &&
                     of->batches > 0 && onepass_has(&t->plan.layouts, ONEPASS_ROLE_RUNNING_MEAN);
  const bool summed = of->backward && (of->extras & SUMMED);
  if (!of->grouped) {
    CELLS(l->merge_grid == divide_up(of->channels, 4));
    CELLS(l->sum_grid == 0);
    return;
  }
  const int64_t rows = of->batches * of->groups;
  CELLS(is_power_of_two(l->merge_team) && l->merge_team <= 32);
  CELLS(is_power_of_two(l->merge_cell) && l->merge_cell <= l->merge_team);
  CELLS(l->merge_grid == divide_up(rows, 256 / l->merge_team));
  CELLS(l->sum_grid == (summed || moved ? divide_up(of->channels, 4) : 0));
}

/* Everything has room, and nothing overlaps. */
static void expect_workspace(const cells_trial *t) {
  const onepass_cells_launch *l = &t->launch;
  const int64_t numbers = t->of.grouped ? t->cells : t->of.channels;
  const size_t sums =
      (size_t)(l->parts * t->of.channels * (t->of.backward ? 3 * t->sums_size : 16));
  CELLS(l->sums_at + sums <= l->numbers_at || sums == 0);
  CELLS(l->numbers_at % 256 == 0 && l->before_at % 256 == 0 && l->rows_at % 256 == 0);
  const size_t behind = l->numbers_at + (size_t)(numbers * 4 * t->sums_size);
  CELLS(behind <= l->workspace);
  if (t->of.backward) {
    CELLS(l->before_at >= behind);
    CELLS(l->before_at + (size_t)(numbers * t->sums_size) <= l->workspace);
  } else if (l->sum_grid) {
    CELLS(l->rows_at >= behind && l->rows_at + (size_t)(t->cells * 16) <= l->workspace);
  }
}

static void expect_choice(cells_trial *t) {
  onepass_cells_launch again;
  if (!choose(t)) {
    CELLS(t->asked != ONEPASS_CUDA_BEST && t->asked != ONEPASS_CUDA_STRIDED);
    return;
  }
  const onepass_cells_launch *l = &t->launch;
  onepass_cells_choose(&t->plan.problem.norm, &t->plan.layouts, &t->on->properties, t->asked,
                       t->aligned, &again);
  CELLS(memcmp(&again, l, sizeof again) == 0);
  CELLS(t->asked == ONEPASS_CUDA_BEST || l->kernel == t->asked);
  CELLS(l->gather_grid >= 0 && l->gather_grid <= INT32_MAX);
  CELLS(l->apply_grid >= 0 && l->apply_grid <= INT32_MAX);
  CELLS(l->direct == (!t->of.backward && (t->of.extras & GIVEN) && !(t->of.extras & SAVED)));
  if (l->direct) {
    CELLS(l->workspace == 0 && l->merge_grid == 0 && l->sum_grid == 0);
  } else {
    expect_merge(t);
    expect_workspace(t);
  }
  const bool given = t->of.extras & GIVEN,
             gathers = !given || (t->of.backward && (t->of.extras & SUMMED));
  CELLS((l->gather_grid > 0) == (gathers && t->cells * t->spatial > 0));
  CELLS((l->apply_grid > 0) == (t->cells * t->spatial > 0));
  CELLS((l->segments > 0) == (l->gather_grid > 0));
  if (l->apply_grid == 0) return;
  if (l->kernel == ONEPASS_CUDA_PASSES) {
    if (gathers) expect_runs(t);
    expect_runs_written(t);
  } else if (l->kernel == ONEPASS_CUDA_COLUMNS) {
    if (gathers) expect_lanes(t);
  } else {
    CELLS(l->kernel == ONEPASS_CUDA_STRIDED);
    CELLS(!gathers || (l->segments == 1 && l->parts == t->of.batches));
  }
}

/* ---- Cases ----------------------------------------------------------------------------------- */

static void expect_every_choice(const cells_case *of) {
  static const onepass_cuda_kernel asked[] = {ONEPASS_CUDA_BEST, ONEPASS_CUDA_PASSES,
                                              ONEPASS_CUDA_COLUMNS, ONEPASS_CUDA_STRIDED,
                                              ONEPASS_CUDA_RING};
  for (int g = 0; g < GPUS; g++) {
    cells_trial t = {.of = *of, .on = &gpus[g]};
    make(&t);
    for (int k = 0; k < COUNT(asked); k++) {
      for (int aligned = 0; aligned < 2; aligned++) {
        t.asked = asked[k];
        t.aligned = aligned;
        expect_choice(&t);
      }
    }
  }
}

static void expect_sizes(void) {
  static const int64_t sizes[][4] = {
      {2, 6, 7, 7},      {256, 2048, 7, 7}, {64, 64, 512, 512}, {32, 256, 64, 64},  {1, 1, 1, 1},
      {37, 64, 1, 1},    {1, 2, 1, 70001},  {3, 0, 4, 4},       {0, 6, 4, 4},       {2, 6, 0, 4},
      {4, 30, 5, 5},     {1, 3, 224, 224},  {1, 8, 4096, 4096}, {4096, 16, 3, 3},   {2, 320, 8, 8},
      {16, 1, 100, 100}, {1, 96, 56, 56},   {8, 2050, 2, 2},    {1, 1, 65536, 4096}};
  for (int s = 0; s < COUNT(sizes); s++) {
    const int64_t channels = sizes[s][1];
    for (int extras = 0; extras < ALL_EXTRAS; extras++) {
      for (int how = 0; how < ARRANGEMENTS; how++) {
        for (int which = 0; which < 6; which++) {
          cells_case of = {.grouped = which > 1,
                           .backward = which % 2,
                           .type = (s + extras + how + which) % TYPES,
                           .extras = extras,
                           .arrangement = (arrangement)how,
                           .batches = sizes[s][0],
                           .channels = channels,
                           .height = sizes[s][2],
                           .width = sizes[s][3]};
          of.groups = which <= 3 && channels ? channels : channels % 2 ? 1 : channels / 2;
          if (of.groups == 0) of.groups = 1;
          if (of.grouped && of.groups != channels) of.extras &= ~(RUNNING | GIVEN);
          expect_every_choice(&of);
        }
      }
    }
  }
}

static onepass_cells_launch best_of(cells_case of) {
  cells_trial t = {.of = of, .on = &gpus[H200], .aligned = true};
  make(&t);
  expect_choice(&t);
  return t.launch;
}

/* The sizes that the library is measured with. */
static void expect_known_choices(void) {
  const cells_case resnet = {
      .type = BF16, .batches = 256, .channels = 2048, .height = 7, .width = 7};
  onepass_cells_launch l = best_of(resnet);
  EXPECT_TEXT(kernel_name(l.kernel), "passes");
  EXPECT_INT(l.team, 2); /* 8 slots, 4 a lane */
  EXPECT_INT(l.segments, 1);
  EXPECT_INT(l.range_cells, 256 * 2048);
  const cells_case large = {
      .type = F32, .batches = 64, .channels = 64, .height = 512, .width = 512};
  l = best_of(large);
  EXPECT_TEXT(kernel_name(l.kernel), "passes");
  EXPECT_INT(l.team, 256);
  EXPECT_INT(l.slice, 32768);
  EXPECT_INT(l.gather_grid, 32768);
  const cells_case last = {.type = BF16,
                           .arrangement = CHANNELS_LAST,
                           .batches = 32,
                           .channels = 256,
                           .height = 64,
                           .width = 64};
  l = best_of(last);
  EXPECT_TEXT(kernel_name(l.kernel), "columns");
  EXPECT_INT(l.vector, 1);
  EXPECT_INT(l.as_one, 1);
  EXPECT_INT(l.team, 32);
  cells_case grouped = last;
  grouped.grouped = true;
  grouped.groups = 32;
  l = best_of(grouped);
  EXPECT_TEXT(kernel_name(l.kernel), "columns");
  EXPECT_INT(l.as_one, 0);
  EXPECT_INT(l.merge_team, 32);
  const cells_case flat = {.type = F32, .batches = 1000, .channels = 512, .height = 1, .width = 1};
  EXPECT_TEXT(kernel_name(best_of(flat).kernel), "columns");
  cells_case spread = large;
  spread.arrangement = SPREAD;
  EXPECT_TEXT(kernel_name(best_of(spread).kernel), "strided");
}

/* Groups of channels as rows that a team of blocks reads once, chunk by chunk or in whole slices. */
static void expect_stream(cells_case of, bool tide, int64_t grid, int32_t team, int32_t ring) {
  cells_trial t = {.of = of, .on = &gpus[H200]};
  onepass_norm_launch l;
  of.grouped = true;
  t.of = of;
  make(&t);
  if (!EXPECT(onepass_norm_choose_cuda(&t.plan.problem.norm, &t.plan.layouts, &t.on->properties,
                                       ONEPASS_CUDA_BEST, ONEPASS_NORM_ALIGNED, &l),
              "%s", describe(&t))) {
    return;
  }
  EXPECT_TEXT(kernel_name(l.kernel), "stream");
  EXPECT_INT(l.grid, grid);
  EXPECT_INT(l.team, team);
  EXPECT_INT(l.ring, ring);
  EXPECT_INT(l.channels, tide);
  EXPECT_INT(l.tide, tide);
  const int32_t workers = l.tide ? 384 : 512, packs = l.tide ? l.chunks : l.packs;
  EXPECT(l.slice <= packs * workers * t.vec, "%s", describe(&t));
  EXPECT(l.shared == (size_t)(l.ring * (l.tide ? 1 : packs) * workers * 16), "%s", describe(&t));
  EXPECT(l.tide || (l.lookahead >= 1 && l.lookahead + 2 == l.ring), "%s", describe(&t));
}

static void expect_groups_in_streams(void) {
  cells_case of = {.type = F32,
                   .extras = WEIGHTS,
                   .batches = 112,
                   .channels = 64,
                   .height = 512,
                   .width = 512,
                   .groups = 8};
  expect_stream(of, true, 132, 132, 37);
  of.extras = 0;
  expect_stream(of, true, 132, 132, 37);
  of.type = BF16;
  expect_stream(of, true, 132, 44, 37);
  of.batches = 1; /* of eight rows: slices begin sooner */
  expect_stream(of, false, 132, 132, 6);
  of.batches = 112;
  of.extras = WEIGHTS;
  of.groups = 64; /* instance_norm */
  expect_stream(of, true, 132, 6, 37);
  of.type = F32;
  expect_stream(of, true, 132, 11, 37);
  of.height = 256;
  expect_stream(of, true, 132, 6, 37);
}

int main(void) {
  expect_sizes();
  expect_known_choices();
  expect_groups_in_streams();
  return expect_report("test_launch_cells");
}
