/* What the pooling operators are: their checks, their lengths, their view of the tensor. */
#include <inttypes.h>
#include <math.h>

#include "core/plan.h"

/* ---- The operators --------------------------------------------------------------------------- */

#define X       ONEPASS_BIT(ONEPASS_ROLE_X)
#define Y       ONEPASS_BIT(ONEPASS_ROLE_Y)
#define DY      ONEPASS_BIT(ONEPASS_ROLE_DY)
#define DX      ONEPASS_BIT(ONEPASS_ROLE_DX)
#define INDICES ONEPASS_BIT(ONEPASS_ROLE_INDICES)

typedef struct pool_operator {
  const char *name[ONEPASS_POOL_AXES]; /* with one to three pooled axes */
  const char *adaptive_name[ONEPASS_POOL_AXES];
  onepass_signature forward, backward;
  bool takes_padding, takes_dilation, takes_divisor, takes_p;
} pool_operator;

static const pool_operator operators[] = {
    [ONEPASS_AVG_POOL] = {.name = {"avg_pool1d", "avg_pool2d", "avg_pool3d"},
                          .adaptive_name = {"adaptive_avg_pool1d", "adaptive_avg_pool2d",
                                            "adaptive_avg_pool3d"},
                          .forward = {.required = X | Y, .written = Y},
                          .backward = {.required = DY | DX, .written = DX},
                          .takes_padding = true,
                          .takes_divisor = true},
    [ONEPASS_MAX_POOL] =
        {.name = {"max_pool1d", "max_pool2d", "max_pool3d"},
         .adaptive_name = {"adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"},
         .forward = {.required = X | Y, .optional = INDICES, .written = Y | INDICES},
         .backward = {.required = DY | INDICES | DX, .written = DX},
         .takes_padding = true,
         .takes_dilation = true},
    [ONEPASS_LP_POOL] = {.name = {"lp_pool1d", "lp_pool2d", "lp_pool3d"},
                         .forward = {.required = X | Y, .written = Y},
                         .backward = {.required = X | Y | DY | DX, .written = DX},
                         .takes_p = true},
};
enum { OPERATOR_COUNT = sizeof operators / sizeof *operators };

static const char *name_of(const onepass_pool *pool) {
  const pool_operator *op = &operators[pool->op];
  const int axes = pool->spatial - 1;
  return pool->adaptive ? op->adaptive_name[axes] : op->name[axes];
}

/* ---- One window ------------------------------------------------------------------------------ */

/* "[1]" behind a field's name in messages about the second of several pooled axes. */
static const char *axis_name(int axis, int spatial) {
  static const char *const names[] = {"[0]", "[1]", "[2]"};
  return spatial == 1 ? "" : names[axis];
}

static onepass_status check_window(int64_t kernel, int64_t stride, int64_t padding,
                                   int64_t dilation, const char *axis) {
  if (kernel < 1) {
    return onepass_fail(ONEPASS_BAD_KERNEL, "kernel%s = %" PRId64 ": expected 1 or more", axis,
                        kernel);
  }
  if (stride < 1) {
    return onepass_fail(ONEPASS_BAD_WINDOW_STRIDE, "stride%s = %" PRId64 ": expected 1 or more",
                        axis, stride);
  }
  if (padding < 0 || padding > kernel / 2) {
    return onepass_fail(ONEPASS_BAD_PADDING,
                        "padding%s = %" PRId64 ": expected 0 to %" PRId64
                        ", half of kernel%s = %" PRId64,
                        axis, padding, kernel / 2, axis, kernel);
  }
  if (dilation < 1) {
    return onepass_fail(ONEPASS_BAD_OPTION, "dilation%s = %" PRId64 ": expected 1 or more", axis,
                        dilation);
  }
  return ONEPASS_OK;
}

static onepass_status window_too_large(int64_t kernel, int64_t dilation, int64_t padded,
                                       const char *axis) {
  if (dilation == 1) {
    return onepass_fail(ONEPASS_BAD_KERNEL,
                        "kernel%s = %" PRId64 ": expected at most %" PRId64
                        ", the length with its padding",
                        axis, kernel, padded);
  }
  return onepass_fail(ONEPASS_BAD_KERNEL,
                      "kernel%s = %" PRId64 ": expected with dilation%s = %" PRId64
                      " a window of at most %" PRId64 ", the length with its padding",
                      axis, kernel, axis, dilation, padded);
}

static onepass_status length_of_axis(int64_t length, int64_t kernel, int64_t stride,
                                     int64_t padding, int64_t dilation, int32_t ceil_mode,
                                     const char *axis, int64_t *pooled) {
  const onepass_status status = check_window(kernel, stride, padding, dilation, axis);
  if (status != ONEPASS_OK) return status;
  if (length < 1) {
    return onepass_fail(ONEPASS_BAD_SHAPE,
                        "length%s = %" PRId64 ": expected 1 or more to pool over", axis, length);
  }
  int64_t extent, padded, end;
  if (__builtin_mul_overflow(kernel - 1, dilation, &extent) ||
      __builtin_add_overflow(extent, 1, &extent)) {
    extent = INT64_MAX;
  }
  const bool overflows = __builtin_add_overflow(length, 2 * padding, &padded);
  /* With ceil_mode one window may hang over the end by less than a stride, even the only one. */
  if (!overflows && extent > padded && !(ceil_mode && extent - padded < stride)) {
    return window_too_large(kernel, dilation, padded, axis);
  }
  if (overflows || __builtin_add_overflow(padded, stride, &end) ||
      __builtin_add_overflow(end, extent, &end)) {
    return onepass_fail(ONEPASS_BAD_SHAPE,
                        "length%s = %" PRId64 ": with kernel = %" PRId64 ", stride = %" PRId64
                        ", padding = %" PRId64 ", dilation = %" PRId64
                        " expected positions below 2^63",
                        axis, length, kernel, stride, padding, dilation);
  }
  const int64_t room = padded > extent ? padded - extent : 0; /* for the window to move in */
  *pooled = room / stride + 1 + (ceil_mode && room % stride != 0);
  /* A window that hangs over the end must still start inside the input or its left padding. */
  if (ceil_mode && (*pooled - 1) * stride >= length + padding) --*pooled;
  return ONEPASS_OK;
}

onepass_status onepass_pool_length_dilated(int64_t length, int64_t kernel, int64_t stride,
                                           int64_t padding, int64_t dilation, int32_t ceil_mode,
                                           int64_t *pooled) {
  if (!pooled) {
    return onepass_fail(ONEPASS_NULL_POINTER, "pooled = NULL: expected where to put the length");
  }
  return length_of_axis(length, kernel, stride, padding, dilation ? dilation : 1, ceil_mode, "",
                        pooled);
}

onepass_status onepass_pool_length(int64_t length, int64_t kernel, int64_t stride, int64_t padding,
                                   int32_t ceil_mode, int64_t *pooled) {
  return onepass_pool_length_dilated(length, kernel, stride, padding, 1, ceil_mode, pooled);
}

/* ---- The description ------------------------------------------------------------------------- */

static onepass_status not_taken(onepass_status status, const onepass_pool *pool, const char *field,
                                int axis, int64_t value) {
  return onepass_fail(status, "pool.%s%s = %" PRId64 ": expected 0, as %s does not take it", field,
                      axis < 0 ? "" : axis_name(axis, pool->spatial), value, name_of(pool));
}

/* An adaptive window has no sizes of its own. */
static onepass_status check_adaptive(const onepass_pool *pool) {
  for (int a = 0; a < pool->spatial; a++) {
    if (pool->kernel[a]) {
      return not_taken(ONEPASS_BAD_KERNEL, pool, "kernel", a, pool->kernel[a]);
    }
    if (pool->stride[a]) {
      return not_taken(ONEPASS_BAD_WINDOW_STRIDE, pool, "stride", a, pool->stride[a]);
    }
    if (pool->padding[a]) {
      return not_taken(ONEPASS_BAD_PADDING, pool, "padding", a, pool->padding[a]);
    }
  }
  if (pool->ceil_mode) return not_taken(ONEPASS_BAD_OPTION, pool, "ceil_mode", -1, pool->ceil_mode);
  return ONEPASS_OK;
}

static onepass_status check_windows(const onepass_pool *pool) {
  for (int a = 0; a < pool->spatial; a++) {
    const onepass_status status =
        check_window(pool->kernel[a], pool->stride[a], pool->padding[a],
                     pool->dilation[a] ? pool->dilation[a] : 1, axis_name(a, pool->spatial));
    if (status != ONEPASS_OK) return status;
    if (pool->padding[a] && !operators[pool->op].takes_padding) {
      return not_taken(ONEPASS_BAD_PADDING, pool, "padding", a, pool->padding[a]);
    }
  }
  return ONEPASS_OK;
}

/* What only some of the operators take. */
static onepass_status check_extras(const onepass_pool *pool) {
  const pool_operator *op = &operators[pool->op];
  const bool divides = op->takes_divisor && !pool->adaptive;
  for (int a = 0; a < pool->spatial; a++) {
    const bool taken = pool->adaptive       ? pool->dilation[a] == 0
                       : op->takes_dilation ? pool->dilation[a] >= 0
                                            : pool->dilation[a] == 0 || pool->dilation[a] == 1;
    if (!taken) return not_taken(ONEPASS_BAD_OPTION, pool, "dilation", a, pool->dilation[a]);
  }
  if (pool->count_include_pad && !divides) {
    return not_taken(ONEPASS_BAD_OPTION, pool, "count_include_pad", -1, pool->count_include_pad);
  }
  if (pool->divisor && !divides) {
    return not_taken(ONEPASS_BAD_OPTION, pool, "divisor", -1, pool->divisor);
  }
  if (pool->divisor < 0) {
    return onepass_fail(ONEPASS_BAD_OPTION,
                        "pool.divisor = %" PRId64 ": expected 0 (the window's size) or more",
                        pool->divisor);
  }
  if (op->takes_p ? !(pool->p > 0) || isinf(pool->p) : pool->p != 0) {
    return onepass_fail(ONEPASS_BAD_OPTION, "pool.p = %g: expected %s for %s", pool->p,
                        op->takes_p ? "a number above 0" : "0", name_of(pool));
  }
  return ONEPASS_OK;
}

static onepass_status check_description(const onepass_pool *pool) {
  if (!pool) return onepass_fail(ONEPASS_NULL_POINTER, "pool = NULL: expected a description");
  if ((int)pool->op < 0 || (int)pool->op >= OPERATOR_COUNT) {
    return onepass_fail(ONEPASS_BAD_OPERATOR, "pool.op = %d: expected an onepass_pool_op",
                        (int)pool->op);
  }
  if (pool->direction != ONEPASS_FORWARD && pool->direction != ONEPASS_BACKWARD) {
    return onepass_fail(ONEPASS_BAD_OPERATOR,
                        "pool.direction = %d: expected 0 (forward) or 1 (backward)",
                        (int)pool->direction);
  }
  if (pool->spatial < 1 || pool->spatial > ONEPASS_POOL_AXES) {
    return onepass_fail(ONEPASS_BAD_OPERATOR, "pool.spatial = %d: expected 1 to %d",
                        (int)pool->spatial, ONEPASS_POOL_AXES);
  }
  if (!name_of(pool)) {
    return onepass_fail(ONEPASS_BAD_OPERATOR, "pool.adaptive = %d: expected 0 for %s",
                        (int)pool->adaptive, operators[pool->op].name[pool->spatial - 1]);
  }
  const onepass_status status = pool->adaptive ? check_adaptive(pool) : check_windows(pool);
  return status == ONEPASS_OK ? check_extras(pool) : status;
}

/* ---- The tensors ----------------------------------------------------------------------------- */

/* What adaptive pooling counts with: elements times outputs. */
static onepass_status check_parts(int64_t length, int64_t pooled, const char *axis) {
  int64_t product;
  if (length < 1) {
    return onepass_fail(ONEPASS_BAD_SHAPE,
                        "length%s = %" PRId64 ": expected 1 or more to pool over", axis, length);
  }
  if (__builtin_mul_overflow(length, pooled, &product) ||
      __builtin_add_overflow(product, length > pooled ? length : pooled, &product)) {
    return onepass_fail(ONEPASS_BAD_SHAPE,
                        "length%s = %" PRId64 ": expected less than 2^63 in all for %" PRId64
                        " outputs",
                        axis, length, pooled);
  }
  return ONEPASS_OK;
}

/* The sizes of the pooled tensors, from those of the long ones; adaptive ones are what they are. */
static onepass_status pooled_shape(const onepass_pool *pool, const onepass_layout *longer,
                                   const onepass_layout *pooled, int64_t *shape) {
  memcpy(shape, longer->shape, sizeof longer->shape);
  for (int a = 0; a < pool->spatial; a++) {
    const int at = longer->ndim - pool->spatial + a;
    const char *name = axis_name(a, pool->spatial);
    onepass_status status;
    if (pool->adaptive) {
      if (pooled->ndim == longer->ndim) shape[at] = pooled->shape[at];
      status = check_parts(longer->shape[at], shape[at], name);
    } else {
      status = length_of_axis(longer->shape[at], pool->kernel[a], pool->stride[a], pool->padding[a],
                              pool->dilation[a] ? pool->dilation[a] : 1, pool->ceil_mode, name,
                              &shape[at]);
    }
    if (status != ONEPASS_OK) return status;
  }
  return ONEPASS_OK;
}

/* Every tensor but x, or backward dx, follows from that one. */
static onepass_status check_shapes(const onepass_pool *pool, const onepass_layouts *layouts,
                                   onepass_role long_role, onepass_role pooled_role) {
  static const char *const expected_ndim[] = {"3 (N, C, L) or 2 (C, L)",
                                              "4 (N, C, H, W) or 3 (C, H, W)",
                                              "5 (N, C, D, H, W) or 4 (C, D, H, W)"};
  const onepass_layout *longer = &layouts->of[long_role];
  const char *because = long_role == ONEPASS_ROLE_X ? "x pooled" : "dx pooled";
  if (longer->ndim != pool->spatial + 1 && longer->ndim != pool->spatial + 2) {
    return onepass_fail(ONEPASS_BAD_NDIM, "%s.ndim = %d: expected %s", onepass_role_name(long_role),
                        longer->ndim, expected_ndim[pool->spatial - 1]);
  }
  int64_t shape[ONEPASS_MAX_NDIM];
  onepass_status status = pooled_shape(pool, longer, &layouts->of[pooled_role], shape);
  const onepass_role pooled_roles[] = {pooled_role, ONEPASS_ROLE_Y, ONEPASS_ROLE_INDICES};
  for (int i = 0; i < 3 && status == ONEPASS_OK; i++) {
    if (!onepass_has(layouts, pooled_roles[i])) continue;
    status = onepass_expect_shape(layouts, pooled_roles[i], longer->ndim, shape, because);
  }
  if (status == ONEPASS_OK && long_role == ONEPASS_ROLE_DX &&
      onepass_has(layouts, ONEPASS_ROLE_X)) {
    status = onepass_expect_shape(layouts, ONEPASS_ROLE_X, longer->ndim, longer->shape, "as dx");
  }
  return status;
}

/* Whose type the others have. */
static onepass_role first_input(const onepass_layouts *layouts) {
  return onepass_has(layouts, ONEPASS_ROLE_X) ? ONEPASS_ROLE_X : ONEPASS_ROLE_DY;
}

/* What the reference writes may also be f64. */
static onepass_status check_types(const onepass_layouts *layouts, bool reference) {
  const onepass_role first = first_input(layouts);
  for (int role = 0; role < ONEPASS_ROLE_INDICES; role++) {
    if (!onepass_has(layouts, role)) continue;
    const bool written = layouts->written & ONEPASS_BIT(role);
    if (reference && written && layouts->of[role].type == ONEPASS_TYPE_F64) continue;
    const onepass_status status = onepass_expect_type(layouts, role, layouts->of[first].type,
                                                      first == ONEPASS_ROLE_X ? "as x" : "as dy");
    if (status != ONEPASS_OK) return status;
  }
  return ONEPASS_OK;
}

/* ---- The plan -------------------------------------------------------------------------------- */

static onepass_pool_axis describe_axis(const onepass_pool *pool, const onepass_layouts *layouts,
                                       onepass_role long_role, onepass_role pooled_role, int a) {
  const int at = layouts->of[long_role].ndim - pool->spatial + a;
  /* A single element has no next one, however far away: loops would overflow on their way to it. */
  const bool spread = pool->adaptive || (pool->dilation[a] && pool->kernel[a] > 1);
  const int64_t dilation = spread ? pool->dilation[a] : 1;
  onepass_pool_axis axis = {
      .kernel = pool->kernel[a],
      .stride = pool->stride[a],
      .padding = pool->padding[a],
      .dilation = dilation,
      .extent = pool->adaptive ? 0 : (pool->kernel[a] - 1) * dilation + 1,
      .length = layouts->of[long_role].shape[at],
      .pooled = layouts->of[pooled_role].shape[at],
      .long_step = layouts->of[long_role].stride[at],
      .pooled_step = layouts->of[pooled_role].stride[at],
      .adaptive = pool->adaptive != 0,
      .count_include_pad = pool->count_include_pad != 0,
  };
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (onepass_has(layouts, role)) axis.step[role] = layouts->of[role].stride[at];
  }
  return axis;
}

static void describe_problem(onepass_pool_problem *p, const onepass_pool *pool,
                             const onepass_layouts *layouts, onepass_role long_role,
                             onepass_role pooled_role) {
  static const onepass_pool_axis none = {
      .kernel = 1, .stride = 1, .dilation = 1, .extent = 1, .length = 1, .pooled = 1};
  const onepass_layout *longer = &layouts->of[long_role];
  const int unused = ONEPASS_POOL_AXES - pool->spatial;
  *p = (onepass_pool_problem){
      .op = pool->op,
      .backward = pool->direction == ONEPASS_BACKWARD,
      .adaptive = pool->adaptive != 0,
      .count_include_pad = pool->count_include_pad != 0,
      .spatial = pool->spatial,
      .type = layouts->of[first_input(layouts)].type,
      .divisor = (double)pool->divisor,
      .p = pool->p,
      .elements = 1,
      .planes = onepass_walk_axes(layouts, layouts->present, 0, 0, longer->shape,
                                  (const int[]){0, 1}, longer->ndim - pool->spatial),
  };
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) {
    p->axis[a] =
        a < unused ? none : describe_axis(pool, layouts, long_role, pooled_role, a - unused);
    p->elements *= (double)p->axis[a].kernel;
  }
  p->one_over_kernel = p->adaptive ? 0 : 1 / (double)p->wide.kernel;
}

onepass_status onepass_make_pool(onepass_plan *plan, const onepass_pool *pool,
                                 const onepass_tensors *tensors, const onepass_options *options) {
  onepass_choices choices;
  onepass_status status = check_description(pool);
  if (status == ONEPASS_OK) status = onepass_read_options(options, &choices);
  if (status != ONEPASS_OK) return status;

  const bool back = pool->direction == ONEPASS_BACKWARD;
  const onepass_role long_role = back ? ONEPASS_ROLE_DX : ONEPASS_ROLE_X;
  const onepass_role pooled_role = back ? ONEPASS_ROLE_DY : ONEPASS_ROLE_Y;
  const pool_operator *op = &operators[pool->op];
  *plan = (onepass_plan){0};
  status = onepass_read_tensors(tensors, back ? op->backward : op->forward, name_of(pool),
                                &plan->layouts);
  if (status == ONEPASS_OK) status = check_shapes(pool, &plan->layouts, long_role, pooled_role);
  if (status == ONEPASS_OK) status = check_types(&plan->layouts, choices.reference);
  if (status == ONEPASS_OK) status = onepass_open_plan_device(plan, &choices);
  if (status != ONEPASS_OK) return status;

  describe_problem(&plan->problem.pool, pool, &plan->layouts, long_role, pooled_role);
  plan->info = (onepass_plan_info){.op = name_of(pool),
                                   .kernel = "reference",
                                   .vector = "double",
                                   .threads = 1,
                                   .bytes = onepass_bytes_to_move(&plan->layouts)};
  if (plan->device) {
    plan->info.vector = "cuda";
    return onepass_pool_plan_cuda(plan, choices.cuda_kernel);
  }
  if (choices.reference) {
    plan->run = onepass_pool_run_reference;
  } else {
    onepass_pool_choose_cpu(plan, choices.threads, choices.level);
  }
  return ONEPASS_OK;
}
