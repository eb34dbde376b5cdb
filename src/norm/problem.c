/* What the normalization operators are: their table, their view of the tensor, and their checks. */
#include <inttypes.h>
#include <math.h>

#include "core/plan.h"

#define BIT(role)    ONEPASS_BIT(ONEPASS_ROLE_##role)
#define WHOLE_ROLES  (BIT(X) | BIT(Y) | BIT(DY) | BIT(DX) | BIT(RESIDUAL) | BIT(SUM) | BIT(DSUM))
#define WEIGHT_ROLES (BIT(WEIGHT) | BIT(BIAS) | BIT(DWEIGHT) | BIT(DBIAS))
#define RUNNING      (BIT(RUNNING_MEAN) | BIT(RUNNING_VAR))
#define SAVED_ROLES  (BIT(MEAN) | BIT(RSTD)) /* shaped as the rows */

#define FUSED (BIT(RESIDUAL) | BIT(SUM))

/* What those that work with moments have in common: `saved` is what backward needs of a row. */
#define BY_MOMENTS(saved, weights_forward, weights_backward, more_forward)              \
  .statistic = ONEPASS_STATISTIC_MOMENTS,                                               \
  .forward = {.required = BIT(X) | BIT(Y),                                              \
              .optional = (saved) | (weights_forward) | (more_forward),                 \
              .written = BIT(Y) | BIT(SUM) | SAVED_ROLES},                              \
  .backward = {.required = BIT(X) | BIT(DY) | BIT(DX) | (saved),                        \
               .optional = (weights_backward) | ((more_forward)&FUSED ? BIT(DSUM) : 0), \
               .written = BIT(DX) | BIT(DWEIGHT) | BIT(DBIAS)},                         \
  .reference_forward = onepass_norm_moments_forward,                                    \
  .reference_backward = onepass_norm_moments_backward

/* And those that have a mean, a weight and a bias, too. */
#define WITH_MEAN(more_forward)                                           \
  .takes_fusions = true, BY_MOMENTS(SAVED_ROLES, BIT(WEIGHT) | BIT(BIAS), \
                                    BIT(WEIGHT) | BIT(DWEIGHT) | BIT(DBIAS), more_forward)

static const onepass_norm_operator operators[] = {
    [ONEPASS_L1_NORM] = {.name = "l1_norm",
                         .statistic = ONEPASS_STATISTIC_ABS,
                         .takes_reduction = true,
                         .takes_clamp = true,
                         .forward = {.required = BIT(X) | BIT(Y), .written = BIT(Y)},
                         .backward = {.required = BIT(X) | BIT(DY) | BIT(DX), .written = BIT(DX)},
                         .reference_forward = onepass_norm_l1_forward,
                         .reference_backward = onepass_norm_l1_backward},
    [ONEPASS_LAYER_NORM] = {.name = "layer_norm", .trailing_axes = true, WITH_MEAN(FUSED)},
    [ONEPASS_L2_NORM] = {.name = "l2_norm",
                         .denominator = ONEPASS_BY_LENGTH,
                         .takes_clamp = true,
                         BY_MOMENTS(BIT(RSTD), 0, 0, 0)},
    [ONEPASS_RMS_NORM] = {.name = "rms_norm",
                          .denominator = ONEPASS_BY_RMS,
                          .trailing_axes = true,
                          .takes_fusions = true,
                          BY_MOMENTS(BIT(RSTD), BIT(WEIGHT), BIT(WEIGHT) | BIT(DWEIGHT), FUSED)},
    [ONEPASS_GROUP_NORM] = {.name = "group_norm",
                            .view = ONEPASS_VIEW_GROUPS,
                            WITH_MEAN(FUSED | RUNNING)},
    [ONEPASS_BATCH_NORM] = {.name = "batch_norm",
                            .view = ONEPASS_VIEW_CHANNELS,
                            WITH_MEAN(FUSED | RUNNING)},
};

/* Each element is read before it is written over. */
static const onepass_in_place in_place[] = {
    {ONEPASS_ROLE_Y, ONEPASS_ROLE_X},          {ONEPASS_ROLE_DX, ONEPASS_ROLE_X},
    {ONEPASS_ROLE_DX, ONEPASS_ROLE_DY},        {ONEPASS_ROLE_DX, ONEPASS_ROLE_DSUM},
    {ONEPASS_ROLE_Y, ONEPASS_ROLE_RESIDUAL},   {ONEPASS_ROLE_SUM, ONEPASS_ROLE_X},
    {ONEPASS_ROLE_SUM, ONEPASS_ROLE_RESIDUAL},
};

/* ---- Checks ---------------------------------------------------------------------------------- */

static onepass_status check_flag(const char *name, int64_t value, bool allowed, const char *op) {
  if (allowed || value == 0) return ONEPASS_OK;
  return onepass_fail(ONEPASS_BAD_OPTION, "norm.%s = %" PRId64 ": expected 0 for %s", name, value,
                      op);
}

static onepass_status check_options(const onepass_norm *norm, const onepass_norm_operator *op) {
  const bool by_axes = op->view == ONEPASS_VIEW_AXES, grouped = op->view == ONEPASS_VIEW_GROUPS;
  onepass_status status = check_flag("axis", norm->axis, by_axes, op->name);
  if (status == ONEPASS_OK) status = check_flag("axes", norm->axes, by_axes, op->name);
  if (status == ONEPASS_OK) status = check_flag("clamp", norm->clamp, op->takes_clamp, op->name);
  if (status == ONEPASS_OK) status = check_flag("groups", norm->groups, grouped, op->name);
  if (status == ONEPASS_OK) {
    status = check_flag("use_running", norm->use_running, !by_axes, op->name);
  }
  if (status == ONEPASS_OK) {
    status = check_flag("activation", norm->activation, op->takes_fusions, op->name);
  }
  if (status != ONEPASS_OK) return status;
  if ((unsigned)norm->activation > ONEPASS_SILU) {
    return onepass_fail(ONEPASS_BAD_OPTION, "norm.activation = %d: expected 0 to %d",
                        (int)norm->activation, (int)ONEPASS_SILU);
  }
  if (!(norm->momentum >= 0 && norm->momentum <= 1) || (by_axes && norm->momentum != 0)) {
    return onepass_fail(ONEPASS_BAD_OPTION, "norm.momentum = %g: expected %s", norm->momentum,
                        by_axes ? "0, as there are no running statistics" : "0 to 1");
  }
  return ONEPASS_OK;
}

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
  return check_options(norm, &operators[norm->op]);
}

/* The tensors of this very call. */
static onepass_signature signature_of(const onepass_norm *norm) {
  const onepass_norm_operator *op = &operators[norm->op];
  onepass_signature signature = norm->direction == ONEPASS_BACKWARD ? op->backward : op->forward;
  if (norm->direction == ONEPASS_BACKWARD) {
    /* The slope of the activation is taken where it was, bias and all. */
    if (norm->activation && (op->forward.optional & BIT(BIAS))) signature.optional |= BIT(BIAS);
  } else if (norm->use_running) {
    signature.required |= RUNNING;
    signature.optional &= ~RUNNING;
  } else {
    signature.written |= signature.optional & RUNNING;
  }
  return signature;
}

static onepass_status check_pairs(const onepass_layouts *layouts) {
  if (onepass_has(layouts, ONEPASS_ROLE_SUM) && !onepass_has(layouts, ONEPASS_ROLE_RESIDUAL)) {
    return onepass_fail(ONEPASS_BAD_OPTION, "sum: expected NULL, as there is no residual");
  }
  if (onepass_has(layouts, ONEPASS_ROLE_RUNNING_MEAN) !=
      onepass_has(layouts, ONEPASS_ROLE_RUNNING_VAR)) {
    return onepass_fail(ONEPASS_NULL_POINTER,
                        "running_%s = NULL: expected both running_mean and running_var, or neither",
                        onepass_has(layouts, ONEPASS_ROLE_RUNNING_MEAN) ? "var" : "mean");
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
                                   first_weight == ONEPASS_ROLE_WEIGHT ? "as weight"
                                   : first_weight == ONEPASS_ROLE_BIAS ? "as bias"
                                                                       : "as running_mean");
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

/* How the tensors are seen: the axes of x, one of them perhaps taken apart. */
typedef struct view {
  onepass_layouts layouts; /* tensors shaped as x or as the rows, with all axes */
  int ndim;
  int64_t shape[ONEPASS_MAX_NDIM];
  bool inside[ONEPASS_MAX_NDIM]; /* axes that lie in a row */
  int first;                     /* of those, the first */
  int count;                     /* and how many there are */
} view;

/* mean and rstd: the axes that are not normalized, and for the others ones or nothing. */
static onepass_status check_saved_shape(const onepass_layouts *layouts, onepass_role role,
                                        const view *view) {
  const onepass_layout *saved = &layouts->of[role];
  int64_t with_ones[ONEPASS_MAX_NDIM], without[ONEPASS_MAX_NDIM] = {1};
  int left = 0;
  for (int axis = 0; axis < view->ndim; axis++) {
    with_ones[axis] = view->inside[axis] ? 1 : view->shape[axis];
    if (!view->inside[axis]) without[left++] = view->shape[axis];
  }
  if (!left) left = 1; /* there are no tensors without axes */
  if (saved->ndim == left) {
    return onepass_expect_shape(layouts, role, left, without, "x's axes that are not normalized");
  }
  return onepass_expect_shape(layouts, role, view->ndim, with_ones,
                              "x's axes that are not normalized, ones for the others or left out");
}

static onepass_status check_shapes(const onepass_layouts *layouts, const view *view,
                                   bool by_channel, int64_t groups) {
  const onepass_layout *x = &layouts->of[ONEPASS_ROLE_X];
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!onepass_has(layouts, role)) continue;
    onepass_status status;
    if (ONEPASS_BIT(role) & WHOLE_ROLES) {
      status = onepass_expect_shape(layouts, role, x->ndim, x->shape, "as x");
    } else if (ONEPASS_BIT(role) & SAVED_ROLES) {
      if (!by_channel) {
        status = check_saved_shape(layouts, role, view);
      } else if (groups) {
        status = onepass_expect_shape(layouts, role, 2, (int64_t[]){x->shape[0], groups},
                                      "batches and groups");
      } else {
        status = onepass_expect_shape(layouts, role, 1, &x->shape[1], "x's channels");
      }
    } else if (by_channel) {
      status = onepass_expect_shape(layouts, role, 1, &x->shape[1], "x's channels");
    } else {
      status = onepass_expect_shape(layouts, role, view->count, x->shape + view->first,
                                    "x's normalized axes");
    }
    if (status != ONEPASS_OK) return status;
  }
  return ONEPASS_OK;
}

static onepass_status choose_axes(const onepass_norm *norm, const onepass_norm_operator *op,
                                  const onepass_layout *x, view *view) {
  const int ndim = x->ndim;
  if (norm->axis < -ndim || norm->axis >= ndim) {
    return onepass_fail(ONEPASS_BAD_AXIS, "norm.axis = %d: expected %d to %d, as x has %d axes",
                        (int)norm->axis, -ndim, ndim - 1, ndim);
  }
  view->first = norm->axis < 0 ? norm->axis + ndim : norm->axis;
  if (norm->axes < 0 || norm->axes > ndim - view->first) {
    return onepass_fail(ONEPASS_BAD_AXIS,
                        "norm.axes = %d: expected 0 (default) to %d, as x has %d axes from %d on",
                        (int)norm->axes, ndim - view->first, ndim - view->first, view->first);
  }
  view->count = norm->axes ? norm->axes : op->trailing_axes ? ndim - view->first : 1;
  for (int axis = view->first; axis < view->first + view->count; axis++) view->inside[axis] = true;
  return ONEPASS_OK;
}

/* x is (N, C, ...); the channels of a group become an axis of their own. */
static onepass_status choose_channels(const onepass_norm *norm, const onepass_norm_operator *op,
                                      const onepass_layout *x, view *view) {
  const bool grouped = op->view == ONEPASS_VIEW_GROUPS;
  if (x->ndim < 2 || x->ndim + grouped > ONEPASS_MAX_NDIM) {
    return onepass_fail(ONEPASS_BAD_NDIM, "x.ndim = %d: expected 2 to %d, (N, C, ...), for %s",
                        x->ndim, ONEPASS_MAX_NDIM - grouped, op->name);
  }
  if (!grouped) {
    for (int axis = 0; axis < x->ndim; axis++) view->inside[axis] = axis != 1;
    return ONEPASS_OK;
  }
  const int64_t most = x->shape[1] ? x->shape[1] : 1; /* no channels are one group of none */
  if (norm->groups < 1 || norm->groups > most || x->shape[1] % norm->groups) {
    return onepass_fail(ONEPASS_BAD_SHAPE,
                        "norm.groups = %" PRId64 ": expected a divisor of the %" PRId64
                        " channels of x",
                        norm->groups, x->shape[1]);
  }
  view->ndim++;
  for (int axis = 2; axis < view->ndim; axis++) view->inside[axis] = true;
  return ONEPASS_OK;
}

/* An axis taken apart into two. */
static void split_channels(onepass_layout *layout, int64_t groups) {
  const int64_t channels = layout->shape[1] / groups, stride = layout->stride[1];
  for (int axis = layout->ndim; axis > 2; axis--) {
    layout->shape[axis] = layout->shape[axis - 1];
    layout->stride[axis] = layout->stride[axis - 1];
  }
  layout->ndim++;
  layout->shape[1] = groups;
  layout->stride[1] = stride * channels;
  layout->shape[2] = channels;
  layout->stride[2] = stride;
}

/* mean and rstd with the axes that they leave out, along which they stay where they are. */
static void spread_saved(onepass_layout *saved, const view *view) {
  if (saved->ndim == view->ndim) return;
  const onepass_layout given = *saved;
  for (int axis = 0, next = 0; axis < view->ndim; axis++) {
    saved->shape[axis] = view->inside[axis] ? 1 : view->shape[axis];
    saved->stride[axis] = view->inside[axis] ? 0 : given.stride[next++];
  }
  saved->ndim = view->ndim;
}

static onepass_status look_at(const onepass_norm *norm, const onepass_norm_operator *op,
                              const onepass_layouts *layouts, view *view) {
  const onepass_layout *x = &layouts->of[ONEPASS_ROLE_X];
  const bool by_channel = op->view != ONEPASS_VIEW_AXES;
  view->ndim = x->ndim;
  memcpy(view->shape, x->shape, sizeof view->shape);
  onepass_status status = (by_channel ? choose_channels : choose_axes)(norm, op, x, view);
  if (status == ONEPASS_OK) status = check_shapes(layouts, view, by_channel, norm->groups);
  if (status != ONEPASS_OK) return status;
  if (norm->groups && norm->groups != x->shape[1] &&
      (norm->use_running || onepass_has(layouts, ONEPASS_ROLE_RUNNING_MEAN))) {
    return onepass_fail(ONEPASS_BAD_OPTION,
                        "running_mean: expected NULL, as groups have several channels");
  }
  view->layouts = *layouts;
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!onepass_has(layouts, role)) continue;
    onepass_layout *layout = &view->layouts.of[role];
    if (norm->groups && (ONEPASS_BIT(role) & WHOLE_ROLES)) split_channels(layout, norm->groups);
  }
  memcpy(view->shape, view->layouts.of[ONEPASS_ROLE_X].shape, sizeof view->shape);
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (onepass_has(layouts, role) && (ONEPASS_BIT(role) & SAVED_ROLES)) {
      spread_saved(&view->layouts.of[role], view);
    }
  }
  return ONEPASS_OK;
}

/* ---- The view -------------------------------------------------------------------------------- */

static void view_as_rows(const view *view, onepass_norm_problem *problem) {
  int outer[ONEPASS_MAX_NDIM], inner[ONEPASS_MAX_NDIM], outer_count = 0, inner_count = 0;
  for (int axis = 0; axis < view->ndim; axis++) {
    if (view->inside[axis]) {
      inner[inner_count++] = axis;
    } else {
      outer[outer_count++] = axis;
    }
  }
  const bool by_channel = onepass_norm_by_channel(problem);
  const unsigned roles = view->layouts.present, weights = by_channel ? 0 : WEIGHT_ROLES;
  problem->rows = onepass_walk_axes(&view->layouts, roles & (WHOLE_ROLES | SAVED_ROLES), 0, 0,
                                    view->shape, outer, outer_count);
  problem->elements = onepass_walk_axes(&view->layouts, roles & (WHOLE_ROLES | weights), weights,
                                        view->first, view->shape, inner, inner_count);
}

static void view_as_cells(const onepass_layouts *layouts, int64_t groups,
                          onepass_norm_problem *problem) {
  const onepass_layout *x = &layouts->of[ONEPASS_ROLE_X];
  const unsigned roles = layouts->present & WHOLE_ROLES;
  int behind[ONEPASS_MAX_NDIM];
  for (int axis = 2; axis < x->ndim; axis++) behind[axis - 2] = axis;
  problem->batches = x->shape[0];
  problem->channels = x->shape[1];
  problem->groups = groups;
  problem->spatial = onepass_walk_axes(layouts, roles, 0, 0, x->shape, behind, x->ndim - 2);
  problem->cells = (onepass_walk){
      .ndim = 2, .count = x->shape[0] * x->shape[1], .size = {x->shape[0], x->shape[1]}};
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!(roles & ONEPASS_BIT(role))) continue;
    problem->cells.stride[0][role] = layouts->of[role].stride[0];
    problem->cells.stride[1][role] = layouts->of[role].stride[1];
  }
}

/* ---- The plan -------------------------------------------------------------------------------- */

/* Nothing to be fast with; what becomes of running statistics and of dweight is the reference's to say. */
static bool is_empty_by_channel(const onepass_norm_problem *p) {
  return onepass_norm_by_channel(p) && (p->rows.count == 0 || p->elements.count == 0);
}

onepass_status onepass_make_norm(onepass_plan *plan, const onepass_norm *norm,
                                 const onepass_tensors *tensors, const onepass_options *options) {
  onepass_choices choices;
  onepass_norm_problem *problem = &plan->problem.norm;
  onepass_status status = check_description(norm);
  if (status == ONEPASS_OK) status = onepass_read_options(options, &choices);
  if (status != ONEPASS_OK) return status;
  *plan =
      (onepass_plan){.in_place = in_place, .in_place_count = sizeof in_place / sizeof *in_place};
  *problem = (onepass_norm_problem){.op = &operators[norm->op],
                                    .backward = norm->direction == ONEPASS_BACKWARD,
                                    .divide_by_count = norm->reduction == ONEPASS_MEAN,
                                    .clamp = norm->clamp != 0,
                                    .use_running = norm->use_running != 0,
                                    .activation = norm->activation,
                                    .momentum = norm->momentum,
                                    .eps = norm->eps};
  const onepass_norm_operator *op = problem->op;
  view view = {.first = 0};
  status = onepass_read_tensors(tensors, signature_of(norm), op->name, &plan->layouts);
  if (status == ONEPASS_OK) status = check_pairs(&plan->layouts);
  if (status == ONEPASS_OK) {
    status = check_types(&plan->layouts, choices.reference, &problem->weight_type);
  }
  if (status == ONEPASS_OK) status = look_at(norm, op, &plan->layouts, &view);
  if (status == ONEPASS_OK) status = onepass_open_plan_device(plan, &choices);
  if (status != ONEPASS_OK) return status;

  problem->type = plan->layouts.of[ONEPASS_ROLE_X].type;
  view_as_rows(&view, problem);
  if (onepass_norm_by_channel(problem)) view_as_cells(&plan->layouts, norm->groups, problem);
  plan->info = (onepass_plan_info){.op = op->name,
                                   .kernel = "reference",
                                   .vector = "double",
                                   .threads = 1,
                                   .bytes = onepass_bytes_to_move(&plan->layouts)};
  if (plan->device) {
    plan->info.vector = "cuda";
    return (onepass_norm_by_channel(problem) ? onepass_groups_plan_cuda : onepass_norm_plan_cuda)(
        plan, choices.cuda_kernel);
  }
  if (choices.reference || is_empty_by_channel(problem)) {
    plan->run = onepass_norm_run_reference;
    plan->info.workspace = onepass_norm_reference_workspace(problem);
  } else {
    onepass_norm_choose_cpu(plan, choices.threads, choices.level);
  }
  return ONEPASS_OK;
}
