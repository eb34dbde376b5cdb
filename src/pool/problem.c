/* What the pooling operators are: their checks, their lengths, their view of the tensor. */
#include <inttypes.h>

#include "core/plan.h"

/* ---- Checks ---------------------------------------------------------------------------------- */

static onepass_status check_window(int64_t kernel, int64_t stride, int64_t padding) {
  if (kernel < 1) {
    return onepass_fail(ONEPASS_BAD_KERNEL, "kernel = %" PRId64 ": expected 1 or more", kernel);
  }
  if (stride < 1) {
    return onepass_fail(ONEPASS_BAD_WINDOW_STRIDE, "stride = %" PRId64 ": expected 1 or more",
                        stride);
  }
  if (padding < 0 || padding > kernel / 2) {
    return onepass_fail(ONEPASS_BAD_PADDING,
                        "padding = %" PRId64 ": expected 0 to %" PRId64
                        ", half of kernel = %" PRId64,
                        padding, kernel / 2, kernel);
  }
  return ONEPASS_OK;
}

onepass_status onepass_pool_length(int64_t length, int64_t kernel, int64_t stride, int64_t padding,
                                   int32_t ceil_mode, int64_t *pooled) {
  if (!pooled) {
    return onepass_fail(ONEPASS_NULL_POINTER, "pooled = NULL: expected where to put the length");
  }
  const onepass_status status = check_window(kernel, stride, padding);
  if (status != ONEPASS_OK) return status;
  if (length < 1) {
    return onepass_fail(ONEPASS_BAD_SHAPE, "length = %" PRId64 ": expected 1 or more to pool over",
                        length);
  }
  int64_t padded, end;
  const bool overflows = __builtin_add_overflow(length, 2 * padding, &padded);
  /* With ceil_mode one window may hang over the end by less than a stride, even the only one. */
  if (!overflows && kernel > padded && !(ceil_mode && kernel - padded < stride)) {
    return onepass_fail(ONEPASS_BAD_KERNEL,
                        "kernel = %" PRId64 ": expected at most %" PRId64
                        ", the length with its padding",
                        kernel, padded);
  }
  if (overflows || __builtin_add_overflow(padded, stride, &end) ||
      __builtin_add_overflow(end, kernel, &end)) {
    return onepass_fail(ONEPASS_BAD_SHAPE,
                        "length = %" PRId64 ": with kernel = %" PRId64 ", stride = %" PRId64
                        ", padding = %" PRId64 " expected positions below 2^63",
                        length, kernel, stride, padding);
  }
  const int64_t room = padded > kernel ? padded - kernel : 0; /* for the window to move in */
  *pooled = room / stride + 1 + (ceil_mode && room % stride != 0);
  /* A window that hangs over the end must still start inside the input or its left padding. */
  if (ceil_mode && (*pooled - 1) * stride >= length + padding) --*pooled;
  return ONEPASS_OK;
}

static onepass_status check_description(const onepass_pool *pool) {
  if (!pool) return onepass_fail(ONEPASS_NULL_POINTER, "pool = NULL: expected a description");
  if (pool->op != ONEPASS_AVG_POOL) {
    return onepass_fail(ONEPASS_BAD_OPERATOR, "pool.op = %d: expected an onepass_pool_op",
                        (int)pool->op);
  }
  if (pool->direction != ONEPASS_FORWARD && pool->direction != ONEPASS_BACKWARD) {
    return onepass_fail(ONEPASS_BAD_OPERATOR,
                        "pool.direction = %d: expected 0 (forward) or 1 (backward)",
                        (int)pool->direction);
  }
  if (pool->spatial != 1) {
    return onepass_fail(ONEPASS_BAD_OPERATOR, "pool.spatial = %d: expected 1", (int)pool->spatial);
  }
  return check_window(pool->kernel[0], pool->stride[0], pool->padding[0]);
}

/* The long tensor (x or dx) decides; the pooled one (y or dy) must fit it. */
static onepass_status check_tensors(const onepass_pool *pool, const onepass_layouts *layouts,
                                    onepass_role long_role, onepass_role pooled_role,
                                    bool reference) {
  const onepass_layout *longer = &layouts->of[long_role];
  const char *name = onepass_role_name(long_role);
  if (longer->ndim != 2 && longer->ndim != 3) {
    return onepass_fail(ONEPASS_BAD_NDIM, "%s.ndim = %d: expected 3 (N, C, L) or 2 (C, L)", name,
                        longer->ndim);
  }
  int64_t expected[ONEPASS_MAX_NDIM];
  memcpy(expected, longer->shape, sizeof expected);
  int64_t *length = &expected[longer->ndim - 1];
  onepass_status status = onepass_pool_length(*length, pool->kernel[0], pool->stride[0],
                                              pool->padding[0], pool->ceil_mode, length);
  if (status != ONEPASS_OK) return status;
  status = onepass_expect_shape(layouts, pooled_role, longer->ndim, expected,
                                pool->direction == ONEPASS_FORWARD ? "x pooled" : "dx pooled");
  if (status != ONEPASS_OK) return status;
  const onepass_role input = pool->direction == ONEPASS_FORWARD ? long_role : pooled_role;
  const onepass_role output = pool->direction == ONEPASS_FORWARD ? pooled_role : long_role;
  if (reference && layouts->of[output].type == ONEPASS_TYPE_F64) return ONEPASS_OK;
  return onepass_expect_type(layouts, output, layouts->of[input].type,
                             input == ONEPASS_ROLE_X ? "as x" : "as dy");
}

/* ---- The plan -------------------------------------------------------------------------------- */

onepass_status onepass_make_pool(onepass_plan *plan, const onepass_pool *pool,
                                 const onepass_tensors *tensors, const onepass_options *options) {
  static const onepass_signature forward = {
      .required = ONEPASS_BIT(ONEPASS_ROLE_X) | ONEPASS_BIT(ONEPASS_ROLE_Y),
      .written = ONEPASS_BIT(ONEPASS_ROLE_Y)};
  static const onepass_signature backward = {
      .required = ONEPASS_BIT(ONEPASS_ROLE_DY) | ONEPASS_BIT(ONEPASS_ROLE_DX),
      .written = ONEPASS_BIT(ONEPASS_ROLE_DX)};
  onepass_choices choices;
  onepass_status status = check_description(pool);
  if (status == ONEPASS_OK) status = onepass_read_options(options, &choices);
  if (status != ONEPASS_OK) return status;

  const bool back = pool->direction == ONEPASS_BACKWARD;
  const onepass_role long_role = back ? ONEPASS_ROLE_DX : ONEPASS_ROLE_X;
  const onepass_role pooled_role = back ? ONEPASS_ROLE_DY : ONEPASS_ROLE_Y;
  *plan = (onepass_plan){0};
  status = onepass_read_tensors(tensors, back ? backward : forward, "avg_pool1d", &plan->layouts);
  if (status == ONEPASS_OK) {
    status = check_tensors(pool, &plan->layouts, long_role, pooled_role, choices.reference);
  }
  if (status == ONEPASS_OK) status = onepass_open_plan_device(plan, &choices);
  if (status != ONEPASS_OK) return status;

  const onepass_layout *longer = &plan->layouts.of[long_role];
  const onepass_layout *pooled = &plan->layouts.of[pooled_role];
  const int last = longer->ndim - 1;
  plan->problem.pool = (onepass_pool_problem){
      .backward = back,
      .count_include_pad = pool->count_include_pad != 0,
      .type = back ? pooled->type : longer->type,
      .kernel = pool->kernel[0],
      .stride = pool->stride[0],
      .padding = pool->padding[0],
      .one_over_kernel = 1 / (double)pool->kernel[0],
      .length = longer->shape[last],
      .pooled = pooled->shape[last],
      .long_step = longer->stride[last],
      .pooled_step = pooled->stride[last],
      .lines = onepass_walk_axes(&plan->layouts, plan->layouts.present, 0, 0, longer->shape,
                                 (const int[]){0, 1}, last),
  };
  plan->info = (onepass_plan_info){.op = "avg_pool1d",
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
