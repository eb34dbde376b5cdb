/*
 * How a GPU would go about a problem, for GPUs that need not be here: a choice is made for every
 * problem, it depends on nothing but the problem and the device, and what it says is what the
 * kernels take for granted.
 *
 * SPDX-License-Identifier: MIT
 */
#include "cuda/ahead.h"
#include "launch_norms.h"

/* Whether from row to row, or along another axis, all tensors shaped as x move by multiples of
 * `pack` elements; or, `alike`, by as much more or less as x does. */
static bool moves_by_packs(const norm_trial *t, int axis, int64_t pack, bool alike) {
  const onepass_layout *x = &t->plan.layouts.of[ONEPASS_ROLE_X];
  const onepass_role roles[] = {ONEPASS_ROLE_X, ONEPASS_ROLE_Y, ONEPASS_ROLE_DY, ONEPASS_ROLE_DX};
  for (int i = 0; i < 4; i++) {
    if (!has(t, roles[i]) || x->shape[axis] <= 1) continue;
    const int64_t stride = t->plan.layouts.of[roles[i]].stride[axis];
    if ((stride - (alike ? x->stride[axis] : 0)) % pack) return false;
  }
  return true;
}

static void expect_width_is_allowed(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  if (l->kernel == ONEPASS_CUDA_COLUMNS || l->width == ONEPASS_NORM_SCALAR || l->singles) return;
  const bool phased = l->width == ONEPASS_NORM_PHASED;
  NORM(t->alignment != ONEPASS_NORM_ANYWHERE);
  NORM(moves_by_packs(t, 0, t->vec, phased) && moves_by_packs(t, 1, t->vec, phased));
  if (phased) {
    NORM(l->kernel == ONEPASS_CUDA_BLOCKS || l->kernel == ONEPASS_CUDA_RING ||
         l->kernel == ONEPASS_CUDA_STREAM);
  } else {
    NORM(t->alignment == ONEPASS_NORM_ALIGNED);
    NORM(t->of.n % t->vec == 0);
  }
}

/* Slices are exactly the row, and only the last one may be shorter. */
static void expect_slices_are_the_row(const norm_trial *t, int64_t slices) {
  const int64_t slice = t->launch.slice;
  NORM(slice > 0 && slices > 0);
  NORM(slices * slice >= t->of.n);
  NORM((slices - 1) * slice < t->of.n);
  NORM(slices == 1 || slice % t->vec == 0);
}

static bool has_f32_weights(const norm_trial *t) {
  return t->of.layer_norm && (t->of.extras & F32_WEIGHTS) && t->of.type >= F16 &&
         (has(t, ONEPASS_ROLE_WEIGHT) || has(t, ONEPASS_ROLE_BIAS) ||
          has(t, ONEPASS_ROLE_DWEIGHT) || has(t, ONEPASS_ROLE_DBIAS));
}

/* Whether there is no mean, and a kernel that has no loops for one would do. */
static bool has_squares(const norm_trial *t) {
  return t->size < 8 && t->of.layer_norm && (t->of.extras & (LENGTHS | ROOTS)) &&
         !has_f32_weights(t);
}

/* Rows are multiplied by a number and nothing else. */
static bool is_plain(const norm_trial *t) {
  return !t->of.layer_norm ||
         (t->size < 8 && (t->of.extras & (LENGTHS | ROOTS)) && !has(t, ONEPASS_ROLE_WEIGHT));
}

/* Kernels for full rows take it that each of so many threads has as many packs, that rows are on one axis, and that a
 * mean is taken off where there are moments. */
static void expect_full(const norm_trial *t, int64_t threads) {
  const onepass_norm_launch *l = &t->launch;
  if (!l->full) return;
  NORM(threads * l->packs * t->vec == t->of.n);
  NORM(t->plan.problem.norm.rows.ndim <= 1);
  NORM(!t->of.layer_norm || l->squares || !(t->of.extras & (LENGTHS | ROOTS)));
}

/* Rows of one element: a thread has one, or a pack, or forward up to four, or where they are summed goes on. */
static void expect_singles(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  NORM(t->of.n == 1 && l->packs == 1 && l->shared == 0);
  NORM(!t->of.layer_norm || !(t->of.extras & (LENGTHS | ROOTS)));
  NORM(l->block == 256 || (l->grid == 1 && l->direct && l->block <= 1024));
  /* Packs are of rows side by side. */
  const bool packed = l->width == ONEPASS_NORM_VECTOR;
  const int64_t units = packed ? divide_up(t->of.rows, t->vec) : t->of.rows;
  NORM(t->plan.problem.norm.rows.ndim <= 1);
  NORM(!packed || (!t->of.layer_norm && t->alignment == ONEPASS_NORM_ALIGNED));
  const onepass_role roles[] = {ONEPASS_ROLE_X, ONEPASS_ROLE_Y, ONEPASS_ROLE_DY, ONEPASS_ROLE_DX};
  for (int i = 0; i < 4 && packed; i++)
    NORM(!has(t, roles[i]) || t->plan.problem.norm.rows.stride[0][roles[i]] == 1);
  NORM((l->grid - 1) * l->block < units);
  NORM((t->of.layer_norm && t->of.backward) || l->grid == INT32_MAX ||
       l->grid * l->block * (t->of.layer_norm ? 4 : 1) >= units);
  NORM(!t->summed || l->parts == l->grid);
}

/* Threads of a block of which a row's lanes are parts. Backward, a block that has all rows may have more. */
static bool has_threads(const norm_trial *t, bool vector) {
  const onepass_norm_launch *l = &t->launch;
  const int32_t most = 1024 / (!vector && l->packs <= 4 ? 1 : 2) / (t->size == 8 ? 2 : 1);
  if (vector && !t->of.backward) return l->block == 64;
  if (l->block == 32) return t->of.backward && t->of.rows == 1 && l->direct;
  return l->block == 256 || (t->of.backward && l->grid == 1 && l->direct && l->block <= most &&
                             l->block > 256 && is_power_of_two(l->block));
}

static void expect_warps(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  if (l->singles) {
    expect_singles(t);
    return;
  }
  const bool vector = l->width == ONEPASS_NORM_VECTOR;
  const int64_t vec = vector ? t->vec : 1;
  const int64_t of_block = l->block / l->team * (vector && !t->of.backward ? 2 : 1);
  /* The kernels that are compiled. */
  NORM(is_power_of_two(l->packs) && l->packs <= (vector ? 2 : 8));
  NORM(l->squares == (has_squares(t) && vector));
  NORM(has_threads(t, vector));
  NORM(is_power_of_two(l->team) && l->team <= 32);
  NORM(!l->full || (vector && !t->of.backward && l->packs == 2));
  expect_full(t, l->team);
  NORM(l->team * l->packs * vec >= t->of.n);
  NORM((l->grid - 1) * of_block < t->of.rows);
  NORM(t->of.backward || l->grid * of_block >= t->of.rows); /* forward a team has one row or two */
  NORM(!t->summed || (int64_t)l->shared >= l->block / 32 * 2 * t->of.n * t->sums_size);
  NORM(!t->summed || l->parts == l->grid);
}

/* Packs that a slice may reach into: one that is not aligned starts anywhere in 32 bytes. */
static int64_t packs_reached(const norm_trial *t, int64_t elements) {
  const int64_t before = t->launch.width == ONEPASS_NORM_VECTOR ? 0 : 32 / t->size - 1;
  return divide_up(elements + before, t->vec);
}

/* Whether all rows of each of so many blocks, or teams, start at the same place of 32 bytes. */
static bool rows_are_in_phase(const norm_trial *t, int64_t blocks) {
  const onepass_layout *x = &t->plan.layouts.of[ONEPASS_ROLE_X];
  return blocks == t->of.rows || t->launch.width == ONEPASS_NORM_VECTOR ||
         blocks * x->stride[1] * t->size % 32 == 0;
}

/* Rows that start anywhere, and copies of their weights. */
static void expect_phased(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  const int64_t size = onepass_type_size(t->plan.problem.norm.weight_type);
  const bool weight = has(t, ONEPASS_ROLE_WEIGHT), bias = has(t, ONEPASS_ROLE_BIAS);
  NORM(t->size <= 4 && l->packs == 4 && l->block <= (t->size == 2 ? 256 : 512) && l->shared == 0);
  if (t->plan.problem.norm.op->statistic == ONEPASS_STATISTIC_ABS) {
    NORM(t->size == 2 || l->block <= 224); /* longer ones are wide */
  }
  /* Packs that are all the row's, behind one that is in the same 32 bytes as the first of them. */
  NORM(l->block * l->packs >= t->of.n / t->vec + 1);
  NORM(l->launches == 1 + (weight || bias));
  NORM((l->copy_length > 0) == (weight || bias));
  if (!l->copy_length) return;
  NORM(l->copy_length >= t->of.n + t->vec - 1 && l->copy_length * size % 128 == 0);
  const int64_t bytes = l->copy_length * t->vec * size;
  NORM(!weight || (int64_t)(l->weight_copies_at + (size_t)bytes) <= (int64_t)l->workspace);
  NORM(!bias || (int64_t)(l->bias_copies_at + (size_t)bytes) <= (int64_t)l->workspace);
  NORM(!weight || !bias || (int64_t)(l->bias_copies_at - l->weight_copies_at) >= bytes);
}

static void expect_blocks(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  NORM(!t->of.backward && l->grid == t->of.rows);
  NORM(l->squares == has_squares(t));
  if (l->width == ONEPASS_NORM_PHASED && !l->wide) {
    expect_phased(t);
    return;
  }
  NORM(l->width == ONEPASS_NORM_VECTOR || (l->width == ONEPASS_NORM_PHASED && is_plain(t)));
  /* The kernels that are compiled: four packs early or late, or as squares; two of f32; and eight. */
  NORM(l->wide || l->packs == 4 || l->packs == 8 || (l->packs == 2 && t->size == 4 && !l->squares));
  const bool early = !l->wide && l->packs == 4 && !l->broad && !l->squares;
  NORM(l->block <= (l->wide ? 1024 : !early ? 512 : t->size == 8 ? 256 : 128));
  const int64_t packs = l->wide ? (t->size == 8 ? 3 : 5) + (int64_t)l->chunks : l->packs;
  NORM(l->block * packs >= packs_reached(t, t->of.n));
  NORM(!l->wide || is_plain(t));
  NORM((int64_t)l->shared >= (int64_t)l->chunks * l->block * 16);
  NORM(!l->full || (l->broad && t->size == 2 && t->of.layer_norm && !has_f32_weights(t)));
  expect_full(t, l->block);
  /* What is asked for ahead, and the y that is written meanwhile, stay in a quarter of the second-level cache; rows that
   * fit there are not asked for. */
  const int64_t chip = t->on->properties.multiprocessors, l2 = t->on->properties.l2;
  const int64_t row = t->of.n * t->size;
  NORM(l->lookahead == 0 ||
       (l->packs == 8 ? l->lookahead == chip : 2 * l->lookahead * row <= l2 / 4));
  NORM(l->lookahead == 0 || l->packs == 8 || (row >= 4096 && 2 * t->of.rows * row > l2));
  NORM(l->lookahead == 0 || l->wide || l->width == ONEPASS_NORM_VECTOR ||
       (t->of.layer_norm && t->size == 2 && !l->squares));
}

static void expect_ring(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  /* The kernels that are compiled; kernels.cu names them narrow and broad. */
  const int narrow = t->of.backward ? (t->size == 4 ? 3 : 2) : has_f32_weights(t) ? 2 : 3;
  NORM(l->squares == (has_squares(t) && t->of.backward));
  NORM(l->packs == (l->broad && l->squares && t->size < 8 ? 4 : narrow + l->broad));
  const bool few = t->of.backward ? l->broad && t->size != 4 && !l->squares : !l->broad;
  NORM(l->block <= (few ? 384 : 512));
  NORM(l->block * l->packs >= packs_reached(t, t->of.n));
  NORM((int64_t)l->shared >= (t->of.backward ? 4 : 3) * l->packs * l->block * 16);
  NORM(l->grid <= t->of.rows && rows_are_in_phase(t, l->grid));
  NORM(!t->summed || l->parts == l->grid);
}

/* Blocks of teams, all on the chip at once. No letter is written over one that a slower block has yet to read. */
static void expect_teams(const norm_trial *t, int32_t rows_between) {
  const onepass_norm_launch *l = &t->launch;
  expect_slices_are_the_row(t, l->team);
  NORM(l->team >= (l->tide ? 1 : 2) && l->grid % l->team == 0);
  NORM(l->grid <= t->on->properties.multiprocessors);
  NORM(l->grid / l->team <= t->of.rows);
  NORM(l->copies >= 1 && l->copies <= 32);
  NORM(l->cooperative == (l->team > 1) &&
       l->launches == 1 + (l->team > 1) + (t->summed && !l->direct));
  if (l->team == 1) { /* it waits for no other */
    NORM(l->mail_size == 0);
    return;
  }
  NORM((int64_t)l->mail_size ==
       2 * rows_between * l->copies * l->grid * t->sums * (t->sums_size / 4) * 8);
}

static void expect_stream(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  const int64_t teams = l->grid / l->team, workers = 512;
  expect_teams(t, 32);
  NORM(l->block == workers + 96);
  const bool heavy = has_f32_weights(t) || t->size == 8;
  const bool floats = t->size == 4 && t->on->properties.major >= 9;
  NORM(l->packs == (t->of.backward ? (heavy ? 1 : floats ? 4 : 2) : heavy ? 2 : 4));
  NORM(workers * l->packs >= packs_reached(t, l->slice));
  NORM(l->slice * t->size % 128 == 0);
  /* One slice is on its way while others wait for their sums. */
  NORM(l->lookahead >= 1 && l->lookahead + 2 == l->ring && l->lookahead + 2 < 32);
  NORM((int64_t)l->shared >= (t->of.backward ? 2 : 1) * (int64_t)l->ring * l->packs * workers * 16);
  NORM(!t->of.layer_norm || rows_are_in_phase(t, teams));
  NORM(!t->summed || l->parts == teams);
}

static void expect_tide(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  const int64_t writers = 384, chunk = writers * t->vec, biases = 3;
  const bool by_column = !l->channels;
  expect_teams(t, 8);
  NORM(l->block == writers + 128 && t->on->properties.major >= 9);
  NORM(!t->of.backward && t->of.layer_norm && l->width == ONEPASS_NORM_VECTOR);
  NORM(by_column == (has(t, ONEPASS_ROLE_WEIGHT) || has(t, ONEPASS_ROLE_BIAS)));
  NORM(!by_column || (l->chunks <= (t->size == 2 ? 22 : 21) && t->size < 8 && !has_f32_weights(t)));
  /* Every slice has its chunks, the last one at most one less. */
  NORM(l->slice % t->vec == 0 && l->chunks == divide_up(l->slice, chunk));
  NORM(l->slice >= chunk && l->team * l->slice - t->of.n < chunk);
  /* A row and some of the next; not more rows than there are places for. */
  NORM(2 * l->ring >= 3 * l->chunks && l->ring <= 6 * l->chunks && l->ring <= 40);
  NORM((int64_t)l->shared == (l->ring + (by_column ? biases : 0)) * writers * 16);
}

static void expect_passes(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  const int64_t block = 256, rows = t->of.rows, n = t->of.n;
  expect_slices_are_the_row(t, l->segments);
  NORM(l->slice <= INT32_MAX - 16);
  NORM(l->grid == rows * l->segments);
  NORM(l->block == block);
  if (l->by_rows) {
    NORM(!t->of.backward && l->width == ONEPASS_NORM_VECTOR && rows > 1);
    NORM(l->row_group >= 1 && l->row_group <= 16);
    NORM(l->apply_grid == divide_up(rows, l->row_group) * divide_up(n, block * t->vec));
  } else if (!t->of.backward) {
    const int64_t packs = t->vec == 8 ? 2 : 4; /* forward_packs in cuda_passes.cuh */
    NORM(l->apply_grid == rows * divide_up(n, (block * packs - 1) * t->vec));
  } else {
    const int64_t vec = l->width == ONEPASS_NORM_VECTOR ? t->vec : 1;
    const int64_t packs = vec == 8 ? 1 : vec == 1 ? 4 : 2; /* backward_packs in cuda_passes.cuh */
    const int64_t groups = divide_up(rows, l->row_group);
    NORM(l->row_group >= 1 && l->row_group <= rows);
    NORM(l->apply_grid == groups * divide_up(n, block * packs * vec));
    NORM(!t->summed || l->parts == groups);
  }
  NORM(l->apply_grid >= 1 && l->apply_grid <= INT32_MAX);
  NORM(l->merges == (t->of.backward || t->of.layer_norm)); /* magnitudes: by those who write */
  NORM(l->launches == 2 + l->merges + (t->summed && !l->direct));
}

static void expect_columns(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  const bool vector = l->width == ONEPASS_NORM_VECTOR;
  const onepass_walk *rows = &t->plan.problem.norm.rows;
  const int64_t vec = vector ? least(t->vec, 4) : 1, inner = rows->size[rows->ndim - 1];
  NORM(!t->summed);
  NORM(l->block == 256 && is_power_of_two(l->team) && l->team <= 256);
  NORM(l->segments == divide_up(inner, l->team * vec));
  NORM(l->grid == l->segments * (t->of.rows / inner));
  /* Of a thread's elements the first are in registers, the others all in shared memory or none. */
  const int64_t kept = t->of.backward ? 4 : 8, all = divide_up(t->of.n, 256 / l->team);
  NORM(l->chunks == 0 || l->chunks == all - kept);
  NORM((int64_t)l->shared == l->chunks * 256 * vec * t->size * (t->of.backward ? 2 : 1));
  if (vector) {
    NORM(t->alignment == ONEPASS_NORM_ALIGNED && inner % vec == 0);
    NORM(rows->ndim == 1 || moves_by_packs(t, 0, vec, false));
    NORM(moves_by_packs(t, 2, vec, false));
  }
}

static void expect_strided(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  NORM(l->block == 256 && l->grid <= t->of.rows);
  if (!t->summed) return;
  const int64_t groups = divide_up(t->of.rows, l->row_group);
  NORM(l->row_group >= 1);
  NORM(l->parts == groups);
  NORM(l->apply_grid >= groups * divide_up(t->of.n, 256) && l->apply_grid <= INT32_MAX);
}

/* What a run keeps in the workspace: regions side by side. */
static void expect_workspace(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  const bool passes = l->kernel == ONEPASS_CUDA_PASSES;
  const bool strided = l->kernel == ONEPASS_CUDA_STRIDED && t->summed;
  const int64_t sums = passes ? l->grid * t->sums : strided ? t->of.rows : 0;
  const size_t parts = l->direct ? 0 : (size_t)(l->parts * t->of.n * t->sums_size);
  const struct {
    size_t at, size;
  } regions[] = {{l->mail_at, l->mail_size},
                 {l->sums_at, (size_t)sums * 8},
                 {l->dweight_at, has(t, ONEPASS_ROLE_DWEIGHT) ? parts : 0},
                 {l->dbias_at, has(t, ONEPASS_ROLE_DBIAS) ? parts : 0}};
  for (int i = 0; i < 4; i++) {
    if (!regions[i].size) continue;
    NORM(regions[i].at % 256 == 0);
    NORM(regions[i].at + regions[i].size <= l->workspace);
    for (int j = 0; j < i; j++) {
      NORM(!regions[j].size || regions[j].at + regions[j].size <= regions[i].at ||
           regions[i].at + regions[i].size <= regions[j].at);
    }
  }
  NORM(!t->summed || (is_power_of_two(l->adders) && l->adders <= 32));
  NORM(!l->direct || (t->summed && l->parts == 1));
  NORM(!l->direct || t->size == t->sums_size || has_f32_weights(t) ||
       l->kernel == ONEPASS_CUDA_WARPS || l->kernel == ONEPASS_CUDA_RING);
}

/* What is asked for before a kernel's turn: all inputs that are dense, by few blocks whose threads have a few lines each; or
 * nothing. Its arguments, too, but not where a thread has rows of one element one by one. */
static void expect_ahead(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  const onepass_cuda_properties *device = &t->on->properties;
  const onepass_layouts *layouts = &t->plan.layouts;
  const onepass_ahead_roles ahead = onepass_norm_choose_ahead(l, layouts, device);
  const bool few = device->major >= 9 && l->grid <= (l->singles ? 1024 : 512);
  int64_t lines = 0;
  int dense = 0;
  for (int r = 0; r < ONEPASS_ROLE_COUNT; r++) {
    const onepass_layout *of = &layouts->of[r];
    if (!has(t, (onepass_role)r) || (layouts->written & ONEPASS_BIT(r))) continue;
    if (of->count == 0 || of->span != of->count) continue;
    if (dense++ >= ahead.count) continue;
    NORM(ahead.role[dense - 1] == (onepass_role)r);
    NORM(ahead.bytes[dense - 1] == of->count * (int64_t)onepass_type_size(of->type));
    lines += divide_up(ahead.bytes[dense - 1], 128);
  }
  NORM(ahead.count == 0 || ahead.count == dense);
  NORM(ahead.count == 0 ||
       (device->major >= 9 && lines <= 1 << 16 && lines <= 4 * l->grid * l->block));
  NORM(ahead.count == 0 || few);
  NORM(ahead.arguments == (few && (!l->singles || l->width == ONEPASS_NORM_VECTOR)));
  const bool small = t->of.rows * t->of.n <= 1024 && l->grid == 1 && l->block >= 32;
  NORM(ahead.count == dense || device->major < 9 || !small || t->size > 4);
}

static void expect_launch(const norm_trial *t) {
  const onepass_norm_launch *l = &t->launch;
  const onepass_cuda_properties *device = &t->on->properties;
  const bool saves = has(t, ONEPASS_ROLE_MEAN) && !t->of.backward;
  const bool works = t->of.rows > 0 && (t->of.n > 0 || saves);
  /* More than team_memory in cuda_letters.cuh, and than what the others sum blocks in. */
  const int64_t static_shared = l->kernel == ONEPASS_CUDA_COLUMNS  ? 20608
                                : l->kernel != ONEPASS_CUDA_STREAM ? 1536
                                : l->tide                          ? 2048
                                : t->sums_size == 8                ? 16384
                                                                   : 8192;
  NORM(t->asked == ONEPASS_CUDA_BEST || l->kernel == t->asked);
  NORM(l->grid <= INT32_MAX && l->grid >= (works ? 1 : 0));
  NORM(l->block > 0 && l->block <= 1024 && l->block % 32 == 0);
  NORM((int64_t)l->shared + static_shared <= device->shared_block);
  NORM(l->cooperative == (l->kernel == ONEPASS_CUDA_STREAM && l->team > 1));
  expect_width_is_allowed(t);
  expect_workspace(t);
  expect_ahead(t);
  switch (l->kernel) {
    case ONEPASS_CUDA_WARPS:
      expect_warps(t);
      break;
    case ONEPASS_CUDA_BLOCKS:
      expect_blocks(t);
      break;
    case ONEPASS_CUDA_RING:
      expect_ring(t);
      break;
    case ONEPASS_CUDA_STREAM:
      (l->tide ? expect_tide : expect_stream)(t);
      break;
    case ONEPASS_CUDA_PASSES:
      expect_passes(t);
      break;
    case ONEPASS_CUDA_COLUMNS:
      expect_columns(t);
      break;
    case ONEPASS_CUDA_STRIDED:
      expect_strided(t);
      break;
    default:
      NORM(!"a kernel of the norms");
  }
}

static bool same_launch(const onepass_norm_launch *a, const onepass_norm_launch *b) {
  return a->kernel == b->kernel && a->width == b->width && a->packs == b->packs &&
         a->singles == b->singles && a->grid == b->grid && a->block == b->block &&
         a->wide == b->wide && a->broad == b->broad && a->squares == b->squares &&
         a->tide == b->tide && a->cooperative == b->cooperative && a->shared == b->shared &&
         a->team == b->team && a->chunks == b->chunks && a->ring == b->ring &&
         a->lookahead == b->lookahead && a->slice == b->slice && a->segments == b->segments &&
         a->row_group == b->row_group && a->apply_grid == b->apply_grid && a->parts == b->parts &&
         a->adders == b->adders && a->mail_at == b->mail_at && a->mail_size == b->mail_size &&
         a->sums_at == b->sums_at && a->dweight_at == b->dweight_at && a->dbias_at == b->dbias_at &&
         a->workspace == b->workspace && a->launches == b->launches;
}

/* Whatever was in the launch before. */
static void expect_same_again(norm_trial *t) {
  const onepass_norm_launch first = t->launch;
  memset(&t->launch, 0x5a, sizeof t->launch);
  choose_norm(t);
  NORM(same_launch(&first, &t->launch));
}

/* A problem with every kernel and alignment on one device. */
static void try_norm(norm_trial *t) {
  for (int asked = 0; asked <= ONEPASS_CUDA_KERNEL_COUNT; asked++) {
    for (int alignment = 0; alignment < ONEPASS_NORM_ALIGNMENTS; alignment++) {
      t->asked = (onepass_cuda_kernel)asked;
      t->alignment = (onepass_norm_alignment)alignment;
      const bool possible = choose_norm(t);
      if (asked == ONEPASS_CUDA_BEST || asked == ONEPASS_CUDA_STRIDED) NORM(possible);
      if (asked >= ONEPASS_CUDA_WINDOWS) NORM(!possible);
      if (!possible) continue;
      expect_launch(t);
      if (alignment == ONEPASS_NORM_ALIGNED) expect_same_again(t);
    }
  }
}

static const int64_t row_counts[] = {0,   1,   2,    3,     16,    65,      66,        74,
                                     107, 132, 1000, 16384, 65537, 1048576, INT32_MAX, 4294967296};
static const int64_t short_lengths[] = {0,   1,   2,   3,   4,   5,   7,   8,   9,   15,  16,
                                        17,  31,  32,  33,  63,  64,  65,  100, 127, 128, 129,
                                        192, 255, 256, 257, 384, 511, 512, 513, 768};
/* Every layout, type, direction and extra at once, few sizes. */
static void test_choices_keep_what_kernels_take_for_granted(void) {
  static const int64_t rows[] = {0, 1, 3, 66, 1000, 65536},
                       lengths[] = {0, 1, 8, 129, 256, 4095, 4096, 65536, 1048577};
  static const int extras[] = {0,
                               EVERYTHING,
                               WEIGHT | SAVED | DBIAS | F32_WEIGHTS,
                               BIAS | DWEIGHT,
                               SAVED | LENGTHS,
                               WEIGHT | DWEIGHT | ROOTS,
                               WEIGHT | SAVED | F32_WEIGHTS | ROOTS};
  norm_trial t;
  for (int which = 0; which < 4 * TYPES * ARRANGEMENTS * COUNT(extras); which++) {
    int rest = which;
    t.of.layer_norm = rest % 2, rest /= 2;
    t.of.backward = rest % 2, rest /= 2;
    t.of.type = rest % TYPES, rest /= TYPES;
    t.of.arrangement = (arrangement)(rest % ARRANGEMENTS), rest /= ARRANGEMENTS;
    t.of.extras = extras[rest];
    if (!t.of.layer_norm && rest) continue;
    for (int i = 0; i < COUNT(rows) * COUNT(lengths); i++) {
      t.of.rows = rows[i % COUNT(rows)], t.of.n = lengths[i / COUNT(rows)];
      make_norm(&t);
      t.on = &gpus[(which + i) % GPUS];
      try_norm(&t);
    }
  }
}

/* ---- Every length, as far as it matters ------------------------------------------------------ */

static void try_length(norm_trial *t, int64_t n) {
  if (n < 0) return;
  t->of.n = n;
  make_norm(t);
  try_norm(t);
}

/* A number that differs where launches differ in more than size. */
static int64_t kind_of_best(norm_trial *t, int64_t n) {
  t->of.n = n;
  make_norm(t);
  t->asked = ONEPASS_CUDA_BEST;
  t->alignment = ONEPASS_NORM_ALIGNED;
  if (!choose_norm(t)) return -1;
  const onepass_norm_launch *l = &t->launch;
  return ((l->kernel * 4 + l->width) * 16 + l->packs) * 2 + l->wide;
}

/* Somewhere from low to high, in steps of 8, the choice becomes another: there, and around it. */
static void try_boundary(norm_trial *t, int64_t low, int64_t high) {
  const int64_t kind = kind_of_best(t, low);
  while (high - low > 8) {
    const int64_t middle = low + (high - low) / 16 * 8;
    if (kind_of_best(t, middle) == kind) {
      low = middle;
    } else {
      high = middle;
    }
  }
  for (int64_t n = low - 1; n <= high + 1; n++) try_length(t, n);
}

/* Lengths 8k + odd up to beyond 2^31, and every boundary between rungs on the way. */
static void climb(norm_trial *t, int64_t odd) {
  int64_t below = odd, kind = kind_of_best(t, below);
  for (int64_t n = 8; n < (int64_t)1 << 33; n += up_to(n / 5, 8) ? up_to(n / 5, 8) : 8) {
    if (t->of.rows && n > ((int64_t)1 << 44) / t->of.rows) break;
    const int64_t here = kind_of_best(t, n + odd);
    if (here != kind) try_boundary(t, below, n + odd);
    kind = here;
    below = n + odd;
    try_length(t, below);
  }
}

static void test_every_boundary_between_the_rungs(void) {
  norm_trial t;
  for (int which = 0; which < GPUS * 4 * TYPES * COUNT(row_counts); which++) {
    int rest = which;
    t.on = &gpus[rest % GPUS], rest /= GPUS;
    t.of.layer_norm = rest % 2, rest /= 2;
    t.of.backward = rest % 2, rest /= 2;
    t.of.type = rest % TYPES, rest /= TYPES;
    t.of.rows = row_counts[rest];
    t.of.arrangement = COMPACT;
    t.of.extras =
        WEIGHT | BIAS | SAVED | (which % 3 ? DWEIGHT | DBIAS : 0) | (which % 4 ? 0 : ROOTS);
    for (int i = 0; i < COUNT(short_lengths); i++) try_length(&t, short_lengths[i]);
    climb(&t, 0);
    climb(&t, 1);
    climb(&t, 4);
  }
}

int main(void) {
  test_choices_keep_what_kernels_take_for_granted();
  test_every_boundary_between_the_rungs();
  return expect_report("test_launch_cuda");
}
