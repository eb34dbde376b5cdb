/*
 * The whole pooling family on the GPU: every operator, direction and option, in both layouts and at any
 * address, against the CPU's reference; what scripts/sanitize_cuda.sh also runs.
 *
 *   cuda_pools [TYPE...]    f32 f64 f16 bf16; all of them when none is named
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "gpu.h"

enum layout { COMPACT, CHANNELS_LAST, SPREAD, LAYOUTS };
static const char *const layout_name[LAYOUTS] = {"compact", "channels last", "spread"};

typedef struct pool_case {
  onepass_pool pool;
  int64_t shape[5];  /* of x: N, C and the pooled axes */
  int64_t pooled[3]; /* if adaptive: what they become */
  enum layout layout;
  int shift; /* elements from a 64-byte boundary to the first one of every tensor */
  bool indices, nans, ties;
  bool stray; /* backward: some indices are not in their windows, or nowhere */
} pool_case;

static long runs[2][3][ONEPASS_CUDA_KERNEL_COUNT];
static double worst; /* of all runs, in units of what is allowed */

/* ---- Cases ----------------------------------------------------------------------------------- */

#define AVG(s, k, st, pad)                                                             \
  {                                                                                    \
    .op = ONEPASS_AVG_POOL, .spatial = s, .kernel = {k, k, k}, .stride = {st, st, st}, \
    .padding = {                                                                       \
      pad,                                                                             \
      pad,                                                                             \
      pad                                                                              \
    }                                                                                  \
  }
#define MAX(s, k, st, pad, d)                                                          \
  {                                                                                    \
    .op = ONEPASS_MAX_POOL, .spatial = s, .kernel = {k, k, k}, .stride = {st, st, st}, \
    .padding = {pad, pad, pad}, .dilation = {                                          \
      d,                                                                               \
      d,                                                                               \
      d                                                                                \
    }                                                                                  \
  }
#define LP(s, k, st, exponent)                                                        \
  {                                                                                   \
    .op = ONEPASS_LP_POOL, .spatial = s, .kernel = {k, k, k}, .stride = {st, st, st}, \
    .p = exponent                                                                     \
  }
#define ADAPTIVE(s, which) \
  { .op = which, .spatial = s, .adaptive = 1 }

/* What each kernel is for, with several tiles, steps and chunks, and the last of each only in part. */
static const pool_case known[] = {
    {.pool = AVG(2, 11, 11, 0), .shape = {1, 2, 210, 1020}},
    {.pool = MAX(2, 4, 1, 1, 1), .shape = {2, 2, 140, 512}},
    {.pool = MAX(2, 4, 1, 1, 1), .shape = {1, 3, 130, 200}, .indices = true, .ties = true},
    {.pool = MAX(1, 8, 1, 4, 3), .shape = {3, 23, 3000}},
    {.pool = MAX(1, 8, 1, 4, 3), .shape = {3, 23, 600}, .indices = true, .nans = true},
    {.pool = MAX(3, 3, 2, 1, 3), .shape = {1, 2, 30, 41, 64}},
    {.pool = MAX(3, 3, 2, 1, 3), .shape = {1, 2, 20, 41, 64}, .indices = true, .nans = true},
    {.pool = AVG(3, 3, 2, 1), .shape = {1, 2, 40, 37, 128}},
    {.pool = MAX(2, 3, 2, 1, 1), .shape = {3, 5, 112, 112}, .indices = true},
    {.pool = MAX(2, 3, 2, 1, 1), .shape = {3, 40, 56, 56}, .stray = true},
    {.pool = MAX(2, 3, 2, 1, 1), .shape = {3, 5, 55, 55}, .indices = true, .nans = true},
    {.pool = MAX(2, 2, 2, 1, 2), .shape = {4, 33, 1, 64}}, /* windows of nothing but padding */
    {.pool = AVG(2, 2, 2, 0), .shape = {4, 33, 28, 28}},
    {.pool = AVG(2, 3, 1, 1), .shape = {4, 9, 7, 7}},
    /* Squares a row apart. */
    {.pool = AVG(2, 2, 1, 0), .shape = {2, 3, 33, 64}},
    {.pool = AVG(2, 3, 1, 1), .shape = {2, 3, 70, 72}},
    {.pool = AVG(2, 4, 1, 2), .shape = {1, 3, 35, 136}},
    {.pool = AVG(2, 2, 1, 1), .shape = {1, 2, 33, 640}},
    {.pool = AVG(2, 3, 1, 1), .shape = {1, 2, 40, 71}},
    {.pool = AVG(2, 4, 1, 2), .shape = {1, 2, 30, 515}},
    {.pool = MAX(2, 2, 1, 1, 1), .shape = {2, 3, 33, 64}, .nans = true},
    {.pool = MAX(2, 3, 1, 1, 1), .shape = {2, 3, 70, 72}, .nans = true},
    {.pool = MAX(2, 5, 1, 2, 1), .shape = {2, 3, 44, 80}, .nans = true},
    /* Windows that have kernels of their own, from rows of whole packs and from long ones that are not. */
    {.pool = MAX(1, 2, 2, 0, 1), .shape = {5, 7, 800}},
    {.pool = MAX(1, 3, 1, 1, 1), .shape = {5, 7, 800}, .nans = true},
    {.pool = MAX(1, 3, 1, 1, 1), .shape = {5, 7, 801}, .indices = true, .ties = true},
    {.pool = MAX(1, 3, 2, 1, 1), .shape = {5, 7, 803}, .nans = true},
    {.pool = MAX(2, 2, 2, 1, 1), .shape = {2, 3, 40, 64}, .indices = true, .ties = true},
    {.pool = AVG(2, 2, 2, 1), .shape = {2, 3, 40, 64}},
    {.pool = AVG(2, 3, 2, 1), .shape = {2, 3, 41, 301}},
    {.pool = MAX(2, 3, 2, 0, 1), .shape = {2, 3, 41, 301}, .indices = true, .nans = true},
    {.pool = AVG(3, 2, 2, 1), .shape = {1, 3, 9, 12, 64}},
    {.pool = MAX(3, 2, 2, 0, 1), .shape = {1, 3, 9, 12, 64}, .indices = true, .ties = true},
    {.pool = MAX(3, 2, 2, 1, 1), .shape = {1, 3, 9, 12, 64}},
    {.pool = AVG(3, 3, 1, 1), .shape = {1, 2, 9, 10, 32}},
    {.pool = MAX(3, 3, 1, 1, 1), .shape = {1, 2, 9, 10, 32}, .nans = true},
    {.pool = MAX(3, 3, 1, 0, 1), .shape = {1, 2, 9, 10, 40}, .indices = true, .ties = true},
    {.pool = MAX(3, 3, 2, 1, 1), .shape = {1, 2, 13, 14, 64}},
    {.pool = MAX(3, 3, 2, 1, 1), .shape = {1, 2, 13, 14, 64}, .indices = true, .nans = true},
    /* Rows that no window has. */
    {.pool = MAX(2, 2, 3, 0, 1), .shape = {2, 3, 50, 61}},
    {.pool = MAX(2, 3, 2, 1, 2), .shape = {2, 3, 41, 64}, .indices = true},
    {.pool = AVG(2, 2, 70, 0), .shape = {1, 2, 300, 300}},
    {.pool = MAX(2, 3, 2, 1, 1),
     .shape = {2, 64, 28, 28},
     .layout = CHANNELS_LAST,
     .indices = true},
    {.pool = AVG(2, 3, 2, 1), .shape = {2, 48, 29, 31}, .layout = CHANNELS_LAST},
    {.pool = AVG(3, 2, 2, 0), .shape = {1, 16, 9, 10, 11}, .layout = CHANNELS_LAST},
    {.pool = ADAPTIVE(2, ONEPASS_AVG_POOL), .shape = {5, 19, 56, 56}, .pooled = {1, 1}},
    {.pool = ADAPTIVE(2, ONEPASS_AVG_POOL), .shape = {1, 2, 200, 301}, .pooled = {1, 1}},
    {.pool = ADAPTIVE(2, ONEPASS_AVG_POOL), .shape = {2, 3, 224, 224}, .pooled = {7, 7}},
    {.pool = ADAPTIVE(2, ONEPASS_AVG_POOL), .shape = {2, 3, 100, 99}, .pooled = {7, 6}},
    {.pool = ADAPTIVE(2, ONEPASS_AVG_POOL),
     .shape = {2, 32, 14, 14},
     .pooled = {1, 1},
     .layout = CHANNELS_LAST},
    /* Large windows of channels side by side: one tile of them or several, the last only in part; parts
     * of a window for few lanes and for many; windows at the edges. */
    {.pool = ADAPTIVE(2, ONEPASS_AVG_POOL),
     .shape = {5, 8, 30, 31},
     .pooled = {1, 1},
     .layout = CHANNELS_LAST},
    {.pool = ADAPTIVE(2, ONEPASS_AVG_POOL),
     .shape = {3, 264, 23, 24},
     .pooled = {1, 1},
     .layout = CHANNELS_LAST},
    {.pool = ADAPTIVE(2, ONEPASS_AVG_POOL),
     .shape = {3, 256, 7, 7},
     .pooled = {1, 1},
     .layout = CHANNELS_LAST},
    {.pool = ADAPTIVE(2, ONEPASS_AVG_POOL),
     .shape = {2, 48, 40, 45},
     .pooled = {7, 7},
     .layout = CHANNELS_LAST},
    {.pool = AVG(2, 16, 16, 0), .shape = {2, 48, 49, 50}, .layout = CHANNELS_LAST},
    {.pool = AVG(2, 7, 5, 3), .shape = {1, 264, 23, 24}, .layout = CHANNELS_LAST},
    {.pool = {.op = ONEPASS_AVG_POOL,
              .spatial = 2,
              .kernel = {7, 8},
              .stride = {6, 7},
              .padding = {2, 3},
              .count_include_pad = 1,
              .ceil_mode = 1},
     .shape = {2, 8, 29, 31},
     .layout = CHANNELS_LAST},
    {.pool = AVG(3, 4, 4, 1), .shape = {1, 48, 11, 13, 12}, .layout = CHANNELS_LAST},
    {.pool = ADAPTIVE(3, ONEPASS_AVG_POOL),
     .shape = {2, 16, 9, 10, 11},
     .pooled = {2, 3, 2},
     .layout = CHANNELS_LAST},
    {.pool = ADAPTIVE(1, ONEPASS_AVG_POOL),
     .shape = {2, 24, 501},
     .pooled = {3},
     .layout = CHANNELS_LAST},
    {.pool = MAX(2, 16, 16, 0, 1),
     .shape = {2, 48, 49, 50},
     .layout = CHANNELS_LAST,
     .indices = true,
     .ties = true},
    {.pool = MAX(2, 7, 6, 3, 1), .shape = {1, 264, 23, 24}, .layout = CHANNELS_LAST, .nans = true},
    {.pool = ADAPTIVE(2, ONEPASS_MAX_POOL),
     .shape = {3, 256, 7, 7},
     .pooled = {1, 1},
     .layout = CHANNELS_LAST,
     .indices = true,
     .nans = true},
    {.pool = ADAPTIVE(2, ONEPASS_MAX_POOL),
     .shape = {2, 8, 30, 31},
     .pooled = {1, 1},
     .layout = CHANNELS_LAST,
     .indices = true,
     .ties = true},
    {.pool = ADAPTIVE(2, ONEPASS_MAX_POOL),
     .shape = {2, 48, 40, 45},
     .pooled = {7, 7},
     .layout = CHANNELS_LAST,
     .indices = true,
     .nans = true},
    {.pool = MAX(3, 4, 4, 1, 1),
     .shape = {1, 48, 11, 13, 12},
     .layout = CHANNELS_LAST,
     .indices = true,
     .ties = true,
     .nans = true},
    {.pool = ADAPTIVE(3, ONEPASS_MAX_POOL),
     .shape = {1, 3, 20, 30, 40},
     .pooled = {2, 3, 4},
     .indices = true,
     .nans = true},
    {.pool = ADAPTIVE(3, ONEPASS_MAX_POOL),
     .shape = {1, 3, 20, 30, 40},
     .pooled = {1, 1, 1},
     .indices = true,
     .ties = true},
    {.pool = ADAPTIVE(1, ONEPASS_MAX_POOL), .shape = {2, 3, 70001}, .pooled = {3}, .indices = true},
    {.pool = ADAPTIVE(1, ONEPASS_AVG_POOL), .shape = {2, 3, 5}, .pooled = {9}},
    {.pool = LP(2, 3, 2, 2), .shape = {2, 3, 40, 41}},
    {.pool = LP(1, 7, 3, 3), .shape = {2, 3, 1000}, .layout = SPREAD},
    {.pool = LP(3, 2, 2, 1), .shape = {2, 3, 10, 11, 12}},
};

static uint64_t state = 88172645463325252u;
static int64_t pick(int64_t low, int64_t high) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return low + (int64_t)((state >> 11) % (uint64_t)(high - low + 1));
}

static onepass_status pooled_length(const pool_case *c, int a, int64_t *pooled) {
  if (c->pool.adaptive) {
    *pooled = c->pooled[a];
    return ONEPASS_OK;
  }
  return onepass_pool_length_dilated(c->shape[2 + a], c->pool.kernel[a], c->pool.stride[a],
                                     c->pool.padding[a], c->pool.dilation[a], c->pool.ceil_mode,
                                     pooled);
}

/* Anything that is a pooling, of at most some thousands of elements; false if this one is not. */
static bool any_case(pool_case *c) {
  static const int64_t longest[] = {900, 60, 20};
  static const double exponents[] = {1, 2, 3, 1.5};
  onepass_pool *pool = &c->pool;
  *c = (pool_case){.layout = (enum layout)(pick(0, 1) ? COMPACT : pick(0, LAYOUTS - 1)),
                   .shift = pick(0, 1) ? 0 : (int)pick(1, 7),
                   .nans = pick(0, 4) == 0,
                   .ties = pick(0, 2) == 0,
                   .indices = pick(0, 1),
                   .stray = pick(0, 3) == 0};
  pool->op = (onepass_pool_op)pick(0, 2);
  pool->spatial = (int32_t)pick(1, 3);
  pool->adaptive = pool->op != ONEPASS_LP_POOL && pick(0, 3) == 0;
  c->indices = c->indices && pool->op == ONEPASS_MAX_POOL;
  c->shape[0] = pick(1, 3);
  c->shape[1] = pick(0, 1) ? pick(1, 9) : 8 * pick(1, 2);
  const bool even = pick(0, 1), alike = pick(0, 1);
  if (pool->op == ONEPASS_LP_POOL) pool->p = exponents[pick(0, 3)];
  if (!pool->adaptive) pool->ceil_mode = (int32_t)pick(0, 1);
  if (pool->op == ONEPASS_AVG_POOL && !pool->adaptive) {
    pool->count_include_pad = (int32_t)pick(0, 1);
    pool->divisor = pick(0, 4) == 0 ? pick(1, 9) : 0;
  }
  int64_t elements = c->shape[0] * c->shape[1];
  for (int a = 0; a < pool->spatial; a++) {
    int64_t *length = &c->shape[2 + a];
    *length = pick(1, longest[pool->spatial - 1]);
    if (even && a == pool->spatial - 1) *length = (*length + 7) / 8 * 8;
    elements *= *length;
    if (pool->adaptive) {
      c->pooled[a] = pick(1, pick(0, 1) ? *length + 2 : 3);
    } else {
      pool->kernel[a] = pick(1, pick(0, 3) ? 5 : 12);
      pool->stride[a] = pick(0, 3) ? pick(1, 3) : pool->kernel[a];
      if (pool->op != ONEPASS_LP_POOL) pool->padding[a] = pick(0, pool->kernel[a] / 2);
      if (pool->op == ONEPASS_MAX_POOL) pool->dilation[a] = pick(0, 2) ? 1 : pick(1, 4);
      if (a && alike) {
        pool->kernel[a] = pool->kernel[0];
        pool->stride[a] = pool->stride[0];
        pool->padding[a] = pool->padding[0];
        pool->dilation[a] = pool->dilation[0];
      }
    }
    int64_t pooled;
    if (pooled_length(c, a, &pooled) != ONEPASS_OK) return false;
  }
  return elements <= 40000;
}

static const char *describe(const pool_case *c, onepass_dtype dtype, int kernel) {
  static char text[512];
  const onepass_pool *p = &c->pool;
  int used = snprintf(text, sizeof text, "%s%s pool of %s", p->adaptive ? "adaptive " : "",
                      p->op == ONEPASS_AVG_POOL   ? "avg"
                      : p->op == ONEPASS_MAX_POOL ? "max"
                                                  : "lp",
                      dtype_name(dtype));
  for (int d = 0; d < 2 + p->spatial; d++) {
    used += snprintf(text + used, sizeof text - (size_t)used, "%s%lld", d ? "x" : " ",
                     (long long)c->shape[d]);
  }
  for (int a = 0; a < p->spatial; a++) {
    used += snprintf(text + used, sizeof text - (size_t)used, " [k%lld s%lld p%lld d%lld to %lld]",
                     (long long)p->kernel[a], (long long)p->stride[a], (long long)p->padding[a],
                     (long long)p->dilation[a], (long long)c->pooled[a]);
  }
  snprintf(text + used, sizeof text - (size_t)used,
           " ceil %d include %d divisor %lld p %g, %s, shift %d, %s%s, kernel %s",
           (int)p->ceil_mode, (int)p->count_include_pad, (long long)p->divisor, p->p,
           layout_name[c->layout], c->shift, c->indices ? "indices, " : "",
           p->direction == ONEPASS_BACKWARD ? "backward" : "forward", gpu_kernel_name[kernel]);
  return text;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static array *make_array(const pool_case *c, onepass_dtype dtype, const int64_t *shape) {
  const int ndim = 2 + c->pool.spatial;
  int order[ONEPASS_MAX_NDIM], count = 0;
  int64_t strides[ONEPASS_MAX_NDIM], step = c->layout == SPREAD ? 2 : 1;
  for (int d = 0; d < ndim; d++) {
    if (d != 1 || c->layout != CHANNELS_LAST) order[count++] = d;
  }
  if (c->layout == CHANNELS_LAST) order[count] = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[order[d]] = step;
    step *= shape[order[d]];
  }
  return array_new_strided(dtype, ndim, shape, strides, c->shift);
}

static int64_t *index_of(const array *a, int64_t i) {
  int64_t position = 0;
  for (int d = a->tensor.ndim - 1; d >= 0; d--) {
    position += i % a->shape[d] * a->strides[d];
    i /= a->shape[d];
  }
  return (int64_t *)array_data(a) + position;
}

/* An array's bytes on the device, guards and all. */
typedef struct twin {
  array *host;
  onepass_tensor tensor;
} twin;

static twin twin_new(array *host) {
  twin t = {host, {0}};
  if (host == NULL) return t;
  t.tensor = host->tensor;
  t.tensor.data = gpu_allocate(host->block_size);
  t.tensor.device = (onepass_device){ONEPASS_CUDA, 0};
  return t;
}

static const onepass_tensor *tensor_of(const twin *t) { return t->host ? &t->tensor : NULL; }

static gpu_copy copy_of(const twin *t) {
  return (gpu_copy){t->tensor.data, t->host->block, t->host->block_size};
}

enum { IS_X, IS_Y, IS_INDICES, IS_DY, IS_DX, TENSORS };

typedef struct trial {
  pool_case of;
  onepass_dtype dtype;
  array *host[TENSORS]; /* NULL: not part of this one */
  array *wanted, *wanted_indices;
  twin device[TENSORS];
} trial;

static void fill(trial *t, array *a, bool is_x) {
  for (int64_t i = 0; i < a->count; i++) {
    double value = t->of.ties && is_x ? (double)pick(-1, 2) : (double)pick(-1000, 1000) / 400;
    if (is_x && t->of.pool.op == ONEPASS_LP_POOL) value = fabs(value) + 0.25;
    if (is_x && t->of.nans && pick(0, 30) == 0) value = (double)NAN;
    if (is_x && t->of.nans && pick(0, 30) == 0 && t->of.pool.op == ONEPASS_MAX_POOL) {
      value = -(double)INFINITY;
    }
    array_set(a, i, value);
  }
}

static void expect_reference(const trial *t, const onepass_pool *pool, onepass_tensors tensors) {
  const onepass_options options = {.reference = 1};
  const onepass_status status = pool_once(pool, &tensors, &options);
  EXPECT(status == ONEPASS_OK, "%s: %s", describe(&t->of, t->dtype, 0), onepass_last_message());
}

/* Inputs, and what the reference makes of them. The backward's y and indices are the forward's. */
static void make_trial(trial *t) {
  const bool back = t->of.pool.direction == ONEPASS_BACKWARD,
             max = t->of.pool.op == ONEPASS_MAX_POOL, lp = t->of.pool.op == ONEPASS_LP_POOL;
  const int ndim = 2 + t->of.pool.spatial;
  int64_t pooled[5] = {t->of.shape[0], t->of.shape[1]};
  for (int a = 0; a < t->of.pool.spatial; a++) pooled_length(&t->of, a, &pooled[2 + a]);
  array *x = make_array(&t->of, t->dtype, t->of.shape), *y = make_array(&t->of, t->dtype, pooled);
  array *indices = make_array(&t->of, ONEPASS_I64, pooled);
  array *made = array_new(ONEPASS_F64, ndim, pooled),
        *places = array_new(ONEPASS_I64, ndim, pooled);
  fill(t, x, true);
  onepass_pool forward = t->of.pool;
  forward.direction = ONEPASS_FORWARD;
  expect_reference(
      t, &forward,
      (onepass_tensors){
          .x = &x->tensor, .y = &made->tensor, .indices = max ? &places->tensor : NULL});
  if (!back) {
    t->host[IS_X] = x, t->host[IS_Y] = y, t->wanted = made;
    if (t->of.indices) {
      t->host[IS_INDICES] = indices, t->wanted_indices = places;
    } else {
      array_free(indices), array_free(places);
    }
    return;
  }
  array *dy = make_array(&t->of, t->dtype, pooled), *dx = make_array(&t->of, t->dtype, t->of.shape);
  array *gradient = array_new(ONEPASS_F64, ndim, t->of.shape);
  fill(t, dy, false);
  array_copy_values(y, made);
  int64_t plane = 1;
  for (int a = 0; a < t->of.pool.spatial; a++) plane *= t->of.shape[2 + a];
  for (int64_t i = 0; i < places->count && max; i++) {
    const bool strays = t->of.stray && pick(0, 3) == 0;
    *index_of(indices, i) = strays ? pick(-2, plane + 1) : *index_of(places, i);
  }
  expect_reference(t, &t->of.pool,
                   (onepass_tensors){.x = lp ? &x->tensor : NULL,
                                     .y = lp ? &y->tensor : NULL,
                                     .indices = max ? &indices->tensor : NULL,
                                     .dy = &dy->tensor,
                                     .dx = &gradient->tensor});
  t->host[IS_DY] = dy, t->host[IS_DX] = dx, t->wanted = gradient;
  if (lp) {
    t->host[IS_X] = x, t->host[IS_Y] = y;
  } else {
    array_free(x), array_free(y);
  }
  if (max) {
    t->host[IS_INDICES] = indices;
  } else {
    array_free(indices);
  }
  array_free(made), array_free(places);
}

static void free_trial(trial *t) {
  for (int i = 0; i < TENSORS; i++) {
    if (t->host[i]) gpu_free(t->device[i].tensor.data);
    array_free(t->host[i]);
  }
  array_free(t->wanted), array_free(t->wanted_indices);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

/* Maxima are what they are; all else is rounded. */
static double distance_of(const trial *t, const array *made) {
  const bool exact = t->of.pool.op == ONEPASS_MAX_POOL && t->of.pool.direction == ONEPASS_FORWARD;
  const double unit = dtype_unit(t->dtype), arithmetic = 64 * dtype_unit(dtype_of_stats(t->dtype));
  const double smallest = t->dtype.bits == 16 && t->dtype.code == 2 ? ldexp(1, -25) : 1e-300;
  double largest = 2.5, far = 0;
  for (int64_t i = 0; i < made->count; i++) {
    const double wanted = fabs(array_get(t->wanted, i));
    if (isfinite(wanted) && wanted > largest) largest = wanted;
  }
  for (int64_t i = 0; i < made->count; i++) {
    const double actual = array_get(made, i), wanted = array_get(t->wanted, i);
    if ((isnan(actual) && isnan(wanted)) || actual == wanted) continue;
    const double bound = exact ? 0 : arithmetic * largest + 1.01 * unit * fabs(wanted) + smallest;
    const double distance = fabs(actual - wanted) / bound;
    if (!(distance <= far)) far = isnan(distance) ? (double)INFINITY : distance;
  }
  return far;
}

static bool same_indices(const trial *t) {
  if (!t->wanted_indices) return true;
  for (int64_t i = 0; i < t->wanted_indices->count; i++) {
    if (*index_of(t->host[IS_INDICES], i) != *index_of(t->wanted_indices, i)) return false;
  }
  return true;
}

static bool is_output(const trial *t, int which) {
  const bool back = t->of.pool.direction == ONEPASS_BACKWARD;
  return back ? which == IS_DX : which == IS_Y || which == IS_INDICES;
}

static void expect_kernel_right(trial *t, int kernel) {
  const onepass_options options = {.cuda_kernel = kernel};
  const onepass_tensors tensors = {.x = tensor_of(&t->device[IS_X]),
                                   .y = tensor_of(&t->device[IS_Y]),
                                   .indices = tensor_of(&t->device[IS_INDICES]),
                                   .dy = tensor_of(&t->device[IS_DY]),
                                   .dx = tensor_of(&t->device[IS_DX])};
  onepass_plan *plan = NULL;
  const onepass_status status = onepass_plan_pool(&plan, &t->of.pool, &tensors, &options);
  if (kernel != ONEPASS_CUDA_BEST && status == ONEPASS_BAD_OPTION) return;
  if (!EXPECT(status == ONEPASS_OK, "%s: %s", describe(&t->of, t->dtype, kernel),
              onepass_last_message())) {
    return;
  }
  gpu_copy inputs_and_outputs[TENSORS], outputs[TENSORS];
  int all = 0, written = 0;
  for (int i = 0; i < TENSORS; i++) {
    if (!t->host[i]) continue;
    inputs_and_outputs[all++] = copy_of(&t->device[i]);
    if (!is_output(t, i)) continue;
    outputs[written++] = copy_of(&t->device[i]);
    array_repaint(t->host[i]);
  }
  gpu_to_device(inputs_and_outputs, all);
  const onepass_buffers buffers = buffers_of(&tensors);
  EXPECT_OK(onepass_run(plan, &buffers, NULL, 0, NULL));
  gpu_to_host(outputs, written);
  onepass_plan_destroy(plan);
  bool guards_hold = true;
  for (int i = 0; i < TENSORS; i++) {
    if (t->host[i] && is_output(t, i)) guards_hold = guards_hold && array_guards_hold(t->host[i]);
  }
  const bool back = t->of.pool.direction == ONEPASS_BACKWARD;
  const double distance = distance_of(t, t->host[back ? IS_DX : IS_Y]);
  if (distance > worst) worst = distance;
  EXPECT(distance <= 1, "%s: %g times the bound", describe(&t->of, t->dtype, kernel), distance);
  EXPECT(same_indices(t), "%s: other indices", describe(&t->of, t->dtype, kernel));
  EXPECT(guards_hold, "%s: wrote outside an output", describe(&t->of, t->dtype, kernel));
  runs[back][t->of.pool.op][kernel]++;
}

static void expect_case_right(const pool_case *c, onepass_dtype dtype) {
  static const int kernels[] = {ONEPASS_CUDA_BEST, ONEPASS_CUDA_WINDOWS, ONEPASS_CUDA_STRIDED};
  for (int back = 0; back < 2; back++) {
    trial t = {.of = *c, .dtype = dtype};
    t.of.pool.direction = back ? ONEPASS_BACKWARD : ONEPASS_FORWARD;
    make_trial(&t);
    for (int i = 0; i < TENSORS; i++) t.device[i] = twin_new(t.host[i]);
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
      expect_kernel_right(&t, kernels[k]);
    }
    free_trial(&t);
  }
}

static void expect_type_right(onepass_dtype dtype) {
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    pool_case c = known[i];
    expect_case_right(&c, dtype);
    c.shift = 1;
    if (c.shape[0] * c.shape[1] < 50) expect_case_right(&c, dtype);
  }
  for (int done = 0; done < 250;) {
    pool_case c;
    if (!any_case(&c)) continue;
    expect_case_right(&c, dtype);
    done++;
  }
}

static bool is_named(onepass_dtype dtype, int count, char **names) {
  for (int i = 0; i < count; i++) {
    if (strcmp(names[i], dtype_name(dtype)) == 0) return true;
  }
  return count == 0;
}

int main(int count, char **names) {
  static const char *const op_names[] = {"avg", "max", "lp"};
  if (!gpu_open("cuda_pools")) return EXPECT_SKIPPED;
  for (int d = 0; d < 4; d++) {
    if (is_named(every_dtype[d], count - 1, names + 1)) expect_type_right(every_dtype[d]);
  }
  for (int back = 0; back < 2; back++) {
    for (int op = 0; op < 3; op++) {
      printf("%-3s %-8s  %ld runs of the best kernel, %ld of windows, %ld of strided\n",
             op_names[op], back ? "backward" : "forward", runs[back][op][ONEPASS_CUDA_BEST],
             runs[back][op][ONEPASS_CUDA_WINDOWS], runs[back][op][ONEPASS_CUDA_STRIDED]);
      EXPECT(runs[back][op][ONEPASS_CUDA_BEST] > 0, "no run of %s", op_names[op]);
    }
  }
  printf("cuda_pools: at most %.3g times the bound\n", worst);
  gpu_close();
  return expect_report("cuda_pools");
}
