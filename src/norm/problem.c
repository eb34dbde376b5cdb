/* What the normalization operators are: their table, their view of the tensor, and their checks. */
#include <inttypes.h>
#include <math.h>

#include "core/plan.h"

#define X       ONEPASS_BIT(ONEPASS_ROLE_X)
#define WEIGHT  ONEPASS_BIT(ONEPASS_ROLE_WEIGHT)
#define BIAS    ONEPASS_BIT(ONEPASS_ROLE_BIAS)
#define Y       ONEPASS_BIT(ONEPASS_ROLE_Y)
#define MEAN    ONEPASS_BIT(ONEPASS_ROLE_MEAN)
#define RSTD    ONEPASS_BIT(ONEPASS_ROLE_RSTD)
#define DY      ONEPASS_BIT(ONEPASS_ROLE_DY)
#define DX      ONEPASS_BIT(ONEPASS_ROLE_DX)
#define DWEIGHT ONEPASS_BIT(ONEPASS_ROLE_DWEIGHT)
#define DBIAS   ONEPASS_BIT(ONEPASS_ROLE_DBIAS)

#define WHOLE_ROLES  (X | Y | DY | DX)                 /* shaped as x */
#define WEIGHT_ROLES (WEIGHT | BIAS | DWEIGHT | DBIAS) /* shaped as the normalized axes */
#define SAVED_ROLES  (MEAN | RSTD)                     /* shaped as the other axes */

static const onepass_norm_operator operators[] = {
    [ONEPASS_L1_NORM] = {.name = "l1_norm",
                         .statistic = ONEPASS_STATISTIC_ABS,
                         .takes_reduction = true,
                         .forward = {.required = X | Y, .written = Y},
                         .backward = {.required = X | DY | DX, .written = DX},
                         .reference_forward = onepass_norm_l1_forward,
                         .reference_backward = onepass_norm_l1_backward},
    [ONEPASS_LAYER_NORM] = {.name = "layer_norm",
                            .statistic = ONEPASS_STATISTIC_MOMENTS,
                            .trailing_axes = true,
                            .forward = {.required = X | Y,
                                        .optional = WEIGHT | BIAS | MEAN | RSTD,
                                        .written = Y | MEAN | RSTD},
                            .backward = {.required = X | DY | MEAN | RSTD | DX,
                                         .optional = WEIGHT | DWEIGHT | DBIAS,
                                         .written = DX | DWEIGHT | DBIAS},
                            .reference_forward = onepass_norm_layer_forward,
                            .reference_backward = onepass_norm_layer_backward},
};

static const onepass_in_place in_place[] = {
    {ONEPASS_ROLE_Y, ONEPASS_ROLE_X},
    {ONEPASS_ROLE_DX, ONEPASS_ROLE_X},
    {ONEPASS_ROLE_DX, ONEPASS_ROLE_DY},
};

/* ---- Checks ---------------------------------------------------------------------------------- */

static onepass_status check_description(const onepass_norm *norm) {
  if (!norm) return onepass_fail(ONEPASS_NULL_POINTER, "norm = NULL: expected a description");
  if ((unsigned)norm->op >= sizeof operators / sizeof *operators) {
    return onepass_fail(ONEPASS_BAD_OPERATOR, "norm.op = %d: expected an onepass_norm_op",
                        (int)norm->op);
  }
  if (norm->direction != ONEPASS_FORWARD && norm->direction != ONEPASS_BACKWARD) {
    return onepass_fail(ONEPASS_BAD_OPERATOR,
                        "norm.direction = %d: expected 0 (forward) or 1 (backward)",
                        (int)norm->direction);
  }
  const bool sum_allowed = operators[norm->op].takes_reduction;
  if (norm->reduction != ONEPASS_MEAN && !(norm->reduction == ONEPASS_SUM && sum_allowed)) {
    return onepass_fail(ONEPASS_BAD_OPERATOR, "norm.reduction = %d: expected 0 (mean)%s for %s",
                        (int)norm->reduction, sum_allowed ? " or 1 (sum)" : "",
                        operators[norm->op].name);
  }
  if (!isfinite(norm->eps) || norm->eps < 0) {
    return onepass_fail(ONEPASS_BAD_OPTION, "norm.eps = %g: expected a finite number, 0 or more",
                        norm->eps);
  }
  return ONEPASS_OK;
}

/* The reference may write f64 whatever it reads, so that nothing is lost before the comparison. */
static bool is_free_output(const onepass_layouts *layouts, int role, bool reference) {
  return reference && layouts->of[role].type == ONEPASS_TYPE_F64 &&
         ((layouts->written | SAVED_ROLES) & ONEPASS_BIT(role));
}

static onepass_status check_types(const onepass_layouts *layouts, bool reference,
                                  onepass_type *weight_type) {
  const onepass_type type = layouts->of[ONEPASS_ROLE_X].type;
  const bool half = type == ONEPASS_TYPE_F16 || type == ONEPASS_TYPE_BF16;
  int first_weight = -1;
  *weight_type = type;
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!onepass_has(layouts, role) || is_free_output(layouts, role, reference)) continue;
    onepass_status status = ONEPASS_OK;
    if (ONEPASS_BIT(role) & WHOLE_ROLES) {
      status = onepass_expect_type(layouts, role, type, "as x");
    } else if (ONEPASS_BIT(role) & SAVED_ROLES) {
      status = onepass_expect_type(layouts, role, onepass_type_of_sums(type),
                                   "the type of statistics of x");
    } else if (first_weight >= 0) {
      status = onepass_expect_type(layouts, role, *weight_type,
                                   first_weight == ONEPASS_ROLE_WEIGHT ? "as weight" : "as bias");
    } else {
      first_weight = role;
      *weight_type = layouts->of[role].type;
      if (half && *weight_type == ONEPASS_TYPE_F32) continue;
      status = onepass_expect_type(layouts, role, type, half ? "as x, or f32" : "as x");
    }
    if (status != ONEPASS_OK) return status;
  }
  return ONEPASS_OK;
}

/* mean and rstd: the axes before `first`, and then either nothing or a one for each other axis. */
static onepass_status check_saved_shape(const onepass_layouts *layouts, onepass_role role,
                                        int first) {
  const onepass_layout *x = &layouts->of[ONEPASS_ROLE_X], *saved = &layouts->of[role];
  int64_t expected[ONEPASS_MAX_NDIM];
  for (int axis = 0; axis < x->ndim; axis++) expected[axis] = axis < first ? x->shape[axis] : 1;
  const int short_ndim = first ? first : 1; /* there are no tensors without axes */
  const int ndim = saved->ndim == short_ndim ? short_ndim : x->ndim;
  return onepass_expect_shape(layouts, role, ndim, expected,
                              "x's axes that are not normalized, ones for the others or left out");
}

static onepass_status check_shapes(const onepass_layouts *layouts, int first) {
  const onepass_layout *x = &layouts->of[ONEPASS_ROLE_X];
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!onepass_has(layouts, role)) continue;
    onepass_status status;
    if (ONEPASS_BIT(role) & WHOLE_ROLES) {
      status = onepass_expect_shape(layouts, role, x->ndim, x->shape, "as x");
    } else if (ONEPASS_BIT(role) & WEIGHT_ROLES) {
      status = onepass_expect_shape(layouts, role, x->ndim - first, x->shape + first,
                                    "x's normalized axes");
    } else {
      status = check_saved_shape(layouts, role, first);
    }
    if (status != ONEPASS_OK) return status;
  }
  return ONEPASS_OK;
}

static onepass_status check_axis(const onepass_norm *norm, int ndim, int *axis) {
  if (norm->axis < -ndim || norm->axis >= ndim) {
    return onepass_fail(ONEPASS_BAD_AXIS, "norm.axis = %d: expected %d to %d, as x has %d axes",
                        (int)norm->axis, -ndim, ndim - 1, ndim);
  }
  *axis = norm->axis < 0 ? norm->axis + ndim : norm->axis;
  return ONEPASS_OK;
}

/* ---- The view -------------------------------------------------------------------------------- */

static void view_as_rows(const onepass_layouts *layouts, int axis, onepass_norm_problem *problem) {
  const onepass_layout *x = &layouts->of[ONEPASS_ROLE_X];
  const int end = problem->op->trailing_axes ? x->ndim : axis + 1;
  int outer[ONEPASS_MAX_NDIM], inner[ONEPASS_MAX_NDIM], outer_count = 0, inner_count = 0;
  for (int a = 0; a < x->ndim; a++) {
    if (a >= axis && a < end) {
      inner[inner_count++] = a;
    } else {
      outer[outer_count++] = a;
    }
  }
  const unsigned roles = layouts->present;
  problem->rows = onepass_walk_axes(layouts, roles & (WHOLE_ROLES | SAVED_ROLES), 0, 0, x->shape,
                                    outer, outer_count);
  problem->elements = onepass_walk_axes(layouts, roles & (WHOLE_ROLES | WEIGHT_ROLES), WEIGHT_ROLES,
                                        axis, x->shape, inner, inner_count);
}

/* ---- The plan -------------------------------------------------------------------------------- */

onepass_status onepass_make_norm(onepass_plan *plan, const onepass_norm *norm,
                                 const onepass_tensors *tensors, const onepass_options *options) {
  onepass_choices choices;
  int axis = 0;
  onepass_norm_problem *problem = &plan->problem.norm;
  onepass_status status = check_description(norm);
  if (status == ONEPASS_OK) status = onepass_read_options(options, &choices);
  if (status != ONEPASS_OK) return status;
  *plan = (onepass_plan){.in_place = in_place, .in_place_count = 3};
  *problem = (onepass_norm_problem){.op = &operators[norm->op],
                                    .backward = norm->direction == ONEPASS_BACKWARD,
                                    .divide_by_count = norm->reduction == ONEPASS_MEAN,
                                    .eps = norm->eps};
  const onepass_norm_operator *op = problem->op;
  status = onepass_read_tensors(tensors, problem->backward ? op->backward : op->forward, op->name,
                                &plan->layouts);
  if (status != ONEPASS_OK) return status;
  const onepass_layout *x = &plan->layouts.of[ONEPASS_ROLE_X];
  status = check_axis(norm, x->ndim, &axis);
  if (status == ONEPASS_OK) {
    status = check_types(&plan->layouts, choices.reference, &problem->weight_type);
  }
  if (status == ONEPASS_OK) status = check_shapes(&plan->layouts, axis);
  if (status == ONEPASS_OK) status = onepass_open_plan_device(plan, &choices);
  if (status != ONEPASS_OK) return status;

  problem->type = x->type;
  view_as_rows(&plan->layouts, axis, problem);
  plan->info = (onepass_plan_info){.op = op->name,
                                   .kernel = "reference",
                                   .vector = "double",
                                   .threads = 1,
                                   .bytes = onepass_bytes_to_move(&plan->layouts)};
  if (plan->device) {
    plan->info.vector = "cuda";
    return onepass_norm_plan_cuda(plan, choices.cuda_kernel);
  }
  if (choices.reference) {
    plan->run = onepass_norm_run_reference;
    plan->info.workspace = ((size_t)problem->elements.count * 2 + 1) * sizeof(double);
  } else {
    onepass_norm_choose_cpu(plan, choices.threads, choices.level);
  }
  return ONEPASS_OK;
}
