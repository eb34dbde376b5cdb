/*
 * How a GPU would go about pooling lines, for GPUs that need not be here; see test_launch_cuda.c.
 *
 * SPDX-License-Identifier: MIT
 */
#include "launch.h"

typedef struct pool_case {
  bool backward, spread;
  int type;
  int64_t lines, length, kernel, stride, padding;
  bool own_divisors; /* of windows at the ends */
} pool_case;

typedef struct pool_trial {
  pool_case of;
  const gpu *on;
  onepass_cuda_kernel asked;
  onepass_plan plan;
  onepass_pool_launch launch;
  bool dense;
  int64_t size, sums_size, outputs;
} pool_trial;

static const char *describe_pool(const pool_trial *t) {
  static char text[512];
  const pool_case *of = &t->of;
  const onepass_pool_launch *l = &t->launch;
  snprintf(text, sizeof text,
           "avg_pool1d %s %s %lldx%lld kernel %lld stride %lld padding %lld%s on %s, asked for %d: "
           "%s grid %lld shared %zu tiles %d lanes %d tile %d",
           of->backward ? "backward" : "forward", type_names[of->type], (long long)of->lines,
           (long long)of->length, (long long)of->kernel, (long long)of->stride,
           (long long)of->padding, of->spread ? " spread" : "", t->on->name, (int)t->asked,
           l->name ? l->name : "none", (long long)l->grid, l->shared, (int)l->tiles, (int)l->lanes,
           (int)l->tile);
  return text;
}

#define POOL(condition) PROMISE(t, describe_pool, condition)

/* False where no window fits. */
static bool make_pool(pool_trial *t) {
  const pool_case *of = &t->of;
  const onepass_pool pool = {.op = ONEPASS_AVG_POOL,
                             .direction = of->backward ? ONEPASS_BACKWARD : ONEPASS_FORWARD,
                             .spatial = 1,
                             .count_include_pad = !of->own_divisors,
                             .kernel = {of->kernel},
                             .stride = {of->stride},
                             .padding = {of->padding}};
  const int64_t step = of->spread ? 2 : 1;
  int64_t pooled;
  if (onepass_pool_length(of->length, of->kernel, of->stride, of->padding, 0, &pooled))
    return false;
  const int64_t long_shape[2] = {of->lines, of->length}, pooled_shape[2] = {of->lines, pooled};
  const int64_t long_strides[2] = {step * of->length, step}, pooled_strides[2] = {pooled, 1};
  const onepass_device cpu = {ONEPASS_CPU, 0};
  const onepass_tensor longer = {NULL, cpu, 2, types[of->type], long_shape, long_strides, 0};
  const onepass_tensor shorter = {NULL, cpu, 2, types[of->type], pooled_shape, pooled_strides, 0};
  const onepass_tensors tensors = {.x = of->backward ? NULL : &longer,
                                   .y = of->backward ? NULL : &shorter,
                                   .dy = of->backward ? &shorter : NULL,
                                   .dx = of->backward ? &longer : NULL};
  /* The reference's plan: what the CPU's kernels make of a problem is their own. */
  const onepass_options options = {.reference = 1};
  EXPECT_OK(onepass_make_pool(&t->plan, &pool, &tensors, &options));
  t->dense = !of->spread || of->length == 1;
  t->size = types[of->type].bits / 8;
  t->sums_size = of->type == F64 ? 8 : 4;
  t->outputs = of->backward ? of->length : pooled;
  return true;
}

static bool choose_pool(pool_trial *t) {
  return onepass_pool_choose_cuda(&t->plan.problem.pool, t->dense, &t->on->properties, t->asked,
                                  &t->launch);
}

/* The slots of a line, of which the first may start before it, are shared by its threads. */
static void expect_slots_are_shared(const pool_trial *t) {
  const onepass_pool_launch *l = &t->launch;
  const int64_t vec = 16 / t->size, slots = divide_up(t->outputs + vec - 1, vec);
  if (l->lanes) {
    POOL(is_power_of_two(l->lanes) && l->lanes * l->lines_of_block == l->block);
    POOL(l->lanes >= slots);
    POOL(l->grid == divide_up(t->of.lines, l->lines_of_block));
  } else {
    POOL(l->tiles * (int64_t)l->block * 4 >= slots);
    POOL((l->tiles - 1) * (int64_t)l->block * 4 < slots);
    POOL(l->grid == l->tiles * t->of.lines);
  }
}

static void expect_windows(const pool_trial *t) {
  const onepass_pool_launch *l = &t->launch;
  const pool_case *of = &t->of;
  const int64_t step = of->backward ? 1 : of->stride;
  long long kernel = 0, stride = 0;
  if (l->kernel == ONEPASS_CUDA_POINTS) {
    const bool all_alike = onepass_pool_is_uniform(&t->plan.problem.pool);
    POOL(of->kernel <= 32 && of->length <= INT32_MAX / 4);
    if (strcmp(l->name, "points_scaled") == 0) {
      /* Each output from one input, at the same place, and none of more than four packs a thread. */
      POOL(t->outputs == (of->backward ? t->plan.problem.pool.wide.pooled : of->length));
      POOL((of->kernel == 1 && of->stride == 1) || t->outputs == 1);
      POOL(l->grid * l->block * 4 * (16 / t->size) >= t->outputs * of->lines);
      POOL((l->grid - 1) * l->block * (16 / t->size) < t->outputs * of->lines);
      return;
    }
    POOL(l->grid == divide_up(t->outputs * of->lines, 4 * l->block));
    if (sscanf(l->name, "points_backward_%lld", &kernel) == 1) {
      POOL(of->backward && all_alike && kernel == divide_up(of->kernel, of->stride));
    } else if (strcmp(l->name, "points_backward_any") == 0) {
      POOL(of->backward);
    } else {
      POOL(sscanf(l->name, "points_%lld", &kernel) != 1 || kernel == of->kernel);
      POOL(!of->backward || (of->stride == 1 && all_alike));
    }
  } else if (sscanf(l->name, "windows_%lld_%lld", &kernel, &stride) == 2) {
    /* small_windows has the inputs of a whole tile in shared memory, from any alignment on. */
    const int64_t outputs = (int64_t)l->block * 4 * (16 / t->size);
    POOL(kernel == of->kernel && stride == of->stride && (!of->backward || stride == 1));
    POOL(stride == 1 || t->size == 2);
    POOL(!l->lanes);
    POOL((int64_t)l->shared >= up_to(((outputs - 1) * step + kernel) * t->size + 15, 16));
    expect_slots_are_shared(t);
  } else if (strcmp(l->name, "windows_any") == 0) {
    expect_slots_are_shared(t);
  } else if (strcmp(l->name, "windows_doubled") == 0) {
    POOL(l->tile >= 1 && l->tile <= 8 * l->block);
    POOL((int64_t)l->shared >= 2 * ((l->tile - 1) * step + of->kernel) * t->sums_size);
    POOL(l->tiles == divide_up(t->outputs, l->tile) && l->grid == l->tiles * of->lines);
    POOL(!of->backward || of->stride == 1);
  } else {
    POOL(strcmp(l->name, "windows_warp") == 0);
    POOL(!of->backward);
    POOL(l->grid == divide_up(t->outputs * of->lines, l->block / 32));
  }
}

static void expect_pool_launch(const pool_trial *t) {
  const onepass_pool_launch *l = &t->launch;
  POOL(t->asked == ONEPASS_CUDA_BEST || l->kernel == t->asked);
  POOL(l->block == 256);
  POOL(l->grid <= INT32_MAX && l->grid >= (t->of.lines > 0 ? 1 : 0));
  POOL((int64_t)l->shared <= t->on->properties.shared_block);
  if (l->kernel != ONEPASS_CUDA_STRIDED) {
    POOL(t->dense);
    POOL((l->kernel == ONEPASS_CUDA_POINTS) == (strncmp(l->name, "points_", 7) == 0));
    expect_windows(t);
  } else {
    POOL(strcmp(l->name, "windows_strided") == 0);
    POOL(l->grid == divide_up(t->outputs * t->of.lines, l->block));
  }
}

static void try_pool(pool_trial *t) {
  if (!make_pool(t)) return;
  for (int asked = 0; asked < ONEPASS_CUDA_KERNEL_COUNT; asked++) {
    t->asked = (onepass_cuda_kernel)asked;
    memset(&t->launch, 0x5a, sizeof t->launch);
    const bool possible = choose_pool(t);
    const bool back_to_back = t->dense && !(t->of.spread && t->of.backward && t->of.lines > 1);
    const bool suits = asked == ONEPASS_CUDA_BEST || asked == ONEPASS_CUDA_STRIDED ||
                       (asked == ONEPASS_CUDA_WINDOWS && t->dense) ||
                       (asked == ONEPASS_CUDA_POINTS && back_to_back && t->of.kernel <= 32 &&
                        t->of.lines > 0 && t->outputs > 0);
    POOL(possible == suits);
    if (!possible) continue;
    expect_pool_launch(t);
    const onepass_pool_launch first = t->launch;
    memset(&t->launch, 0, sizeof t->launch);
    choose_pool(t);
    POOL(first.kernel == t->launch.kernel && first.name == t->launch.name &&
         first.grid == t->launch.grid && first.shared == t->launch.shared &&
         first.tiles == t->launch.tiles && first.lanes == t->launch.lanes &&
         first.lines_of_block == t->launch.lines_of_block && first.tile == t->launch.tile);
  }
}

static void test_pools_keep_what_kernels_take_for_granted(void) {
  static const int64_t lines[] = {0, 1, 7, 8192, 1048577};
  static const int64_t lengths[] = {
      1, 2, 31, 255, 1016, 1017, 1024, 2041, 4097, 8192, 65536, 65537, (int64_t)1 << 24};
  static const int64_t kernels[] = {1,    2,    3,    4,    5,    6,    7,     8,   9,
                                    15,   16,   17,   31,   32,   33,   64,    100, 1000,
                                    4096, 6143, 6144, 6400, 8192, 8193, 100000};
  static const int64_t strides[] = {1, 2, 3, 4, 5, 7, 8, 33, 1000};
  pool_trial t = {0};
  const int every = COUNT(lines) * COUNT(lengths) * COUNT(kernels) * COUNT(strides) * TYPES * 4;
  for (int which = 0; which < every; which++) {
    int rest = which;
    t.of.backward = rest % 2, rest /= 2;
    t.of.spread = rest % 2, rest /= 2;
    t.of.type = rest % TYPES, rest /= TYPES;
    t.of.lines = lines[rest % COUNT(lines)], rest /= COUNT(lines);
    t.of.length = lengths[rest % COUNT(lengths)], rest /= COUNT(lengths);
    t.of.stride = strides[rest % COUNT(strides)], rest /= COUNT(strides);
    t.of.kernel = kernels[rest];
    t.of.padding = rest % 3 ? t.of.kernel / 2 : 0;
    t.of.own_divisors = rest % 2;
    if (t.of.lines * t.of.length > (int64_t)1 << 36) continue; /* more than any device has */
    for (int on = 0; on < GPUS; on += 2) {
      t.on = &gpus[on];
      try_pool(&t);
    }
  }
}

static void test_known_pools_have_known_kernels(void) {
  static const struct {
    pool_case of;
    onepass_cuda_kernel kernel;
    const char *name;
  } known[] = {
      {{false, false, F32, 8192, 65536, 8, 1, 4, false}, ONEPASS_CUDA_WINDOWS, "windows_8_1"},
      {{true, false, F32, 8192, 65536, 8, 1, 4, false}, ONEPASS_CUDA_WINDOWS, "windows_8_1"},
      {{false, false, F32, 8192, 65536, 8, 1, 4, true}, ONEPASS_CUDA_POINTS, "points_8"},
      {{false, false, BF16, 8192, 65536, 2, 2, 0, false}, ONEPASS_CUDA_WINDOWS, "windows_2_2"},
      {{true, false, BF16, 8192, 65536, 2, 2, 0, false}, ONEPASS_CUDA_POINTS, "points_backward_1"},
      {{false, false, F32, 8192, 100, 8, 1, 4, false}, ONEPASS_CUDA_POINTS, "points_8"},
      {{false, false, F32, 8192, 100, 9, 1, 4, false}, ONEPASS_CUDA_POINTS, "points_any"},
      {{false, false, F32, 63, 65536, 8, 1, 4, false}, ONEPASS_CUDA_POINTS, "points_8"},
      {{false, false, F32, 64, 65536, 8, 1, 4, false}, ONEPASS_CUDA_WINDOWS, "windows_8_1"},
      {{false, false, F32, 8192, 65536, 2, 2, 0, false}, ONEPASS_CUDA_POINTS, "points_2"},
      {{true, false, F32, 8192, 65536, 3, 2, 1, false}, ONEPASS_CUDA_POINTS, "points_backward_2"},
      {{true, false, F32, 8192, 65536, 3, 2, 1, true}, ONEPASS_CUDA_POINTS, "points_backward_any"},
      {{true, false, F32, 8192, 65536, 9, 2, 1, false}, ONEPASS_CUDA_POINTS, "points_backward_any"},
      {{false, false, F32, 8192, 65536, 1000, 1, 0, false},
       ONEPASS_CUDA_WINDOWS,
       "windows_doubled"},
      {{false, false, F32, 8192, 65536, 1000, 1000, 0, false},
       ONEPASS_CUDA_WINDOWS,
       "windows_warp"},
      {{false, true, F32, 8192, 65536, 8, 1, 4, false}, ONEPASS_CUDA_STRIDED, "windows_strided"},
      {{false, false, BF16, 8, 139707, 1, 1, 0, false}, ONEPASS_CUDA_POINTS, "points_scaled"},
      {{true, false, F32, 79843, 1, 3, 2, 1, false}, ONEPASS_CUDA_POINTS, "points_scaled"},
      {{false, false, F32, 4096, 1, 3, 2, 1, false}, ONEPASS_CUDA_POINTS, "points_scaled"},
      {{false, false, F32, 4095, 1, 3, 2, 1, false}, ONEPASS_CUDA_POINTS, "points_3"},
      {{false, false, F32, 429, 1, 2, 1, 1, false}, ONEPASS_CUDA_POINTS, "points_2"},
      {{false, false, F32, 429, 10, 1, 2, 0, false}, ONEPASS_CUDA_POINTS, "points_1"},
  };
  for (int i = 0; i < COUNT(known); i++) {
    pool_trial t = {.of = known[i].of, .on = &gpus[H200]};
    EXPECT(make_pool(&t) && choose_pool(&t), "%s", describe_pool(&t));
    EXPECT_INT(t.launch.kernel, known[i].kernel);
    EXPECT_TEXT(t.launch.name, known[i].name);
  }
}

int main(void) {
  test_pools_keep_what_kernels_take_for_granted();
  test_known_pools_have_known_kernels();
  return expect_report("test_launch_cuda_pools");
}
