#define _POSIX_C_SOURCE 200809L
#include "problem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buffers.h"

const char *const activation_choices[] = {"none", "relu", "gelu", "gelu_tanh", "silu", NULL};

const char *role_name(role role) {
  static const char *const names[ROLES] = {
      "x",       "weight", "bias",     "y",   "mean", "rstd",         "dy",          "dx",
      "dweight", "dbias",  "residual", "sum", "dsum", "running_mean", "running_var", "indices"};
  return names[role];
}

const char *direction_name(onepass_direction direction) {
  return direction == ONEPASS_FORWARD ? "fwd" : "bwd";
}

const char *layout_name(layout layout) {
  static const char *const names[LAYOUTS] = {"compact", "offset",        "transposed",
                                             "sliced",  "channels-last", "broadcast"};
  return names[layout];
}

/* ---- Descriptions ---- */

problem make_problem(const op_entry *op, onepass_direction direction, onepass_dtype dtype) {
  problem problem = {.op = op,
                     .direction = direction,
                     .dtype = dtype,
                     .weight_dtype = dtype,
                     .roles = op->roles[direction]};
  problem.norm =
      (onepass_norm){.op = op->norm, .direction = direction, .clamp = op->clamp, .eps = op->eps};
  problem.pool = (onepass_pool){.op = op->pool,
                                .direction = direction,
                                .spatial = op->spatial,
                                .adaptive = op->adaptive,
                                .p = op->pool == ONEPASS_LP_POOL ? 2 : 0};
  return problem;
}

void set_shape(problem *problem, const int64_t *sizes, int32_t ndim) {
  problem->ndim = ndim;
  memcpy(problem->shape, sizes, (size_t)ndim * sizeof *sizes);
  if (problem->op->family != FAMILY_NORM) return;
  if (problem->op->rows == ROWS_WHOLE) problem->norm.axes = ndim;
  if (problem->op->rows == ROWS_GROUPS && ndim > 1) {
    int64_t channels = sizes[1], groups = channels > 0 ? channels : 1;
    if (!problem->op->group_a_channel && groups > 32) groups = 32;
    while (channels % groups) groups--;
    problem->norm.groups = groups;
  }
}

void set_axis(problem *problem, int32_t axis) {
  if (takes_axis(problem->op)) problem->norm.axis = axis;
}

void set_activation(problem *problem, onepass_activation activation) {
  problem->norm.activation = activation;
  if (problem->direction == ONEPASS_FORWARD) return;
  bool biased = has_role(problem, DBIAS);
  if (activation && biased) problem->roles |= ROLE_BIT(BIAS);
}

onepass_status set_pooled(problem *problem) {
  const onepass_pool *pool = &problem->pool;
  for (int a = 0; a < pool->spatial && !pool->adaptive; a++) {
    int64_t length = problem->shape[problem->ndim - pool->spatial + a];
    onepass_status status =
        onepass_pool_length_dilated(length, pool->kernel[a], pool->stride[a], pool->padding[a],
                                    pool->dilation[a], pool->ceil_mode, &problem->pooled[a]);
    if (status != ONEPASS_OK) return status;
  }
  return ONEPASS_OK;
}

bool role_is_updated(const problem *problem, role role) {
  return has_role(problem, role) && (RUNNING_ROLES & ROLE_BIT(role)) && !problem->norm.use_running;
}

bool role_is_output(const problem *problem, role role) {
  const unsigned forward =
      ROLE_BIT(Y) | ROLE_BIT(MEAN) | ROLE_BIT(RSTD) | ROLE_BIT(SUM) | ROLE_BIT(INDICES);
  const unsigned backward = ROLE_BIT(DX) | ROLE_BIT(DWEIGHT) | ROLE_BIT(DBIAS);
  unsigned outputs = problem->direction == ONEPASS_FORWARD ? forward : backward;
  return (outputs & ROLE_BIT(role)) || role_is_updated(problem, role);
}

void format_sizes(char *text, size_t size, const int64_t *sizes, int32_t count) {
  bool alike = true;
  for (int32_t i = 1; i < count; i++) alike = alike && sizes[i] == sizes[0];
  format_shape(text, size, sizes, alike ? 1 : count);
}

static void format_window(char *text, size_t size, const onepass_pool *pool) {
  const struct {
    const char *letter;
    const int64_t *sizes;
    bool shown;
  } parts[] = {{"k", pool->kernel, true},
               {" s", pool->stride, true},
               {" p", pool->padding, pool->op != ONEPASS_LP_POOL},
               {" d", pool->dilation, pool->dilation[0] > 1}};
  size_t used = 0;
  for (int i = 0; i < 4; i++) {
    char sizes[72];
    if (!parts[i].shown || used >= size) continue;
    format_sizes(sizes, sizeof sizes, parts[i].sizes, pool->spatial);
    used += (size_t)snprintf(text + used, size - used, "%s%s", parts[i].letter, sizes);
  }
}

static void format_rows(char *text, size_t size, const problem *problem) {
  switch (problem->op->rows) {
    case ROWS_WHOLE:
      snprintf(text, size, "all axes");
      return;
    case ROWS_CHANNELS:
      snprintf(text, size, "each channel");
      return;
    case ROWS_GROUPS:
      if (problem->op->group_a_channel)
        snprintf(text, size, "each channel");
      else
        snprintf(text, size, "%" PRId64 " groups", problem->norm.groups);
      return;
    case ROWS_ALONG_AXIS:
    case ROWS_TRAILING:
      snprintf(text, size, "axis %" PRId32, problem->norm.axis - problem->ndim);
  }
}

void format_arguments(char *text, size_t size, const problem *problem) {
  if (problem->op->family == FAMILY_POOL && problem->op->adaptive) {
    char sizes[72];
    format_shape(sizes, sizeof sizes, problem->pooled, problem->op->spatial);
    snprintf(text, size, "to %s", sizes);
  } else if (problem->op->family == FAMILY_POOL) {
    format_window(text, size, &problem->pool);
  } else {
    format_rows(text, size, problem);
    size_t used = strlen(text);
    if (problem->norm.activation && used < size)
      snprintf(text + used, size - used, ", %s", activation_choices[problem->norm.activation]);
  }
}

/* ---- Rows ---- */

int64_t product(const int64_t *sizes, int32_t first, int32_t last) {
  int64_t product = 1;
  for (int32_t i = first; i < last; i++) product *= sizes[i];
  return product;
}

/* The axes first to last - 1 are a row's; of norms that have such. */
typedef struct span_of_axes {
  int32_t first, last;
} span_of_axes;

static span_of_axes normalized_axes(const problem *problem) {
  int32_t first = problem->norm.axis, axes = problem->norm.axes;
  if (problem->op->rows == ROWS_TRAILING) return (span_of_axes){first, problem->ndim};
  return (span_of_axes){first, first + (axes ? axes : 1)};
}

view problem_view(const problem *problem) {
  const int64_t *shape = problem->shape;
  int32_t ndim = problem->ndim;
  if (problem->op->family == FAMILY_POOL) {
    int64_t length = product(shape, ndim - problem->op->spatial, ndim);
    int64_t planes = product(shape, 0, ndim - problem->op->spatial);
    return (view){planes, length, 1, length, 1, length, 0};
  }
  if (problem->op->rows == ROWS_GROUPS) {
    int64_t length = shape[1] / problem->norm.groups * product(shape, 2, ndim);
    return (view){shape[0] * problem->norm.groups, length, 1, length, 1, length, 0};
  }
  if (problem->op->rows == ROWS_CHANNELS) {
    int64_t behind = product(shape, 2, ndim);
    return (view){shape[1], shape[0] * behind, 1, behind, 1, behind, shape[1] * behind};
  }
  span_of_axes axes = normalized_axes(problem);
  int64_t length = product(shape, axes.first, axes.last), inner = product(shape, axes.last, ndim);
  int64_t rows = product(shape, 0, axes.first) * inner;
  return (view){rows, length, inner, length * inner, inner, length, 0};
}

int64_t weight_count(const problem *problem) {
  if (weights_by_channel(problem->op)) return problem->shape[1];
  return problem_view(problem).length;
}

int64_t weight_of(const problem *problem, const view *view, int64_t row, int64_t element) {
  if (problem->op->rows == ROWS_CHANNELS) return row;
  if (problem->op->rows != ROWS_GROUPS) return element;
  int64_t channels = problem->shape[1] / problem->norm.groups; /* of a group */
  int64_t spatial =
      view->length > channels ? view->length / channels : 1; /* or no elements at all */
  return row % problem->norm.groups * channels + element / spatial;
}

/* ---- Shapes and layouts ---- */

static onepass_dtype role_dtype(const problem *problem, role role) {
  switch (role) {
    case WEIGHT:
    case BIAS:
    case DWEIGHT:
    case DBIAS:
    case RUNNING_MEAN:
    case RUNNING_VAR:
      return problem->weight_dtype;
    case MEAN:
    case RSTD:
      return problem->dtype.bits == 64 ? ONEPASS_F64 : ONEPASS_F32;
    case INDICES:
      return ONEPASS_I64;
    default:
      return problem->dtype;
  }
}

static int32_t weight_shape(const problem *problem, int64_t *shape) {
  span_of_axes axes = normalized_axes(problem);
  if (weights_by_channel(problem->op)) axes = (span_of_axes){1, 2};
  memcpy(shape, problem->shape + axes.first, (size_t)(axes.last - axes.first) * sizeof *shape);
  return axes.last - axes.first;
}

static int32_t saved_shape(const problem *problem, int64_t *shape) {
  if (problem->op->rows == ROWS_CHANNELS) {
    shape[0] = problem->shape[1];
    return 1;
  }
  if (problem->op->rows == ROWS_GROUPS) {
    shape[0] = problem->shape[0];
    shape[1] = problem->norm.groups;
    return 2;
  }
  span_of_axes axes = normalized_axes(problem);
  bool keep = problem->keep_axes || axes.last - axes.first == problem->ndim;
  int32_t ndim = 0;
  for (int32_t i = 0; i < problem->ndim; i++) {
    bool normalized = i >= axes.first && i < axes.last;
    if (!normalized || keep) shape[ndim++] = normalized ? 1 : problem->shape[i];
  }
  return ndim;
}

static int32_t role_shape(const problem *problem, role role, int64_t *shape) {
  int32_t ndim = problem->ndim;
  memcpy(shape, problem->shape, (size_t)ndim * sizeof *shape);
  switch (role) {
    case WEIGHT:
    case BIAS:
    case DWEIGHT:
    case DBIAS:
    case RUNNING_MEAN:
    case RUNNING_VAR:
      return weight_shape(problem, shape);
    case MEAN:
    case RSTD:
      return saved_shape(problem, shape);
    case Y:
    case DY:
    case INDICES:
      for (int32_t a = 0; problem->op->family == FAMILY_POOL && a < problem->op->spatial; a++)
        shape[ndim - problem->op->spatial + a] = problem->pooled[a];
      return ndim;
    default:
      return ndim;
  }
}

/* The axis that is the innermost in memory comes last in `order`. */
static void memory_order(int32_t ndim, layout layout, int32_t *order) {
  for (int32_t i = 0; i < ndim; i++) order[i] = i;
  if (layout == LAYOUT_TRANSPOSED)
    for (int32_t i = 0; i < ndim; i++) order[i] = ndim - 1 - i;
  if (layout == LAYOUT_CHANNELS_LAST && ndim > 1) {
    for (int32_t i = 1; i < ndim - 1; i++) order[i] = i + 1;
    order[ndim - 1] = 1;
  }
}

int64_t span_of(const operand *operand) {
  int64_t span = operand->elements > 0 ? 1 : 0;
  for (int32_t i = 0; i < operand->ndim && operand->elements > 0; i++)
    span += (operand->shape[i] - 1) * operand->strides[i];
  return span;
}

/* Strides, elements and span. False when they do not fit in 64 bits. */
static bool lay_out(operand *operand, layout layout, bool output) {
  int32_t order[ONEPASS_MAX_NDIM];
  memory_order(operand->ndim, layout, order);
  int64_t stride = layout == LAYOUT_SLICED ? 2 : 1;
  operand->elements = 1;
  operand->compact = layout == LAYOUT_COMPACT || layout == LAYOUT_OFFSET;
  for (int32_t i = operand->ndim - 1; i >= 0; i--) {
    int32_t axis = order[i];
    int64_t size = operand->shape[axis] > 0 ? operand->shape[axis] : 1;
    operand->strides[axis] = stride;
    if (__builtin_mul_overflow(operand->elements, operand->shape[axis], &operand->elements))
      return false;
    if (layout == LAYOUT_SLICED && i == operand->ndim - 1) size += 3;
    if (__builtin_mul_overflow(stride, size, &stride) || stride > INT64_MAX / 16) return false;
  }
  if (layout == LAYOUT_BROADCAST && !output) operand->strides[0] = 0;
  if (layout == LAYOUT_BROADCAST && output) operand->compact = true;
  operand->span = span_of(operand);
  return true;
}

bool problem_operands(const problem *problem, layout layout, operand operands[ROLES]) {
  memset(operands, 0, ROLES * sizeof *operands);
  for (role role = X; role < ROLES; role++) {
    if (!has_role(problem, role)) continue;
    operand *operand = &operands[role];
    operand->device = (onepass_device){ONEPASS_CPU, 0};
    operand->dtype = role_dtype(problem, role);
    operand->ndim = role_shape(problem, role, operand->shape);
    /* what does not have the batches cannot repeat along them, and statistics must be right */
    bool saved = (ROLE_BIT(MEAN) | ROLE_BIT(RSTD)) & ROLE_BIT(role);
    bool kept = saved && problem->op->rows == ROWS_CHANNELS;
    if (!lay_out(operand, layout, kept || role_is_output(problem, role))) return false;
  }
  return true;
}

void operands_on(onepass_device device, operand operands[ROLES]) {
  for (role role = X; role < ROLES; role++) operands[role].device = device;
}

/* ---- Memory ---- */

bool operand_reserve(operand *operand, layout layout) {
  int64_t size = dtype_size(operand->dtype);
  int64_t shift = layout == LAYOUT_OFFSET ? size : 0;
  operand->memory_size = GUARD + shift + operand->span * size + GUARD;
  operand->memory = allocate_bytes(operand->memory_size);
  if (!operand->memory) return false;
  operand->data = operand->memory + GUARD + shift;
  return true;
}

bool operand_allocate(operand *operand, layout layout) {
  if (!operand_reserve(operand, layout)) return false;
  memset(operand->memory, PATTERN, (size_t)operand->memory_size);
  return true;
}

void operands_free(operand operands[ROLES]) {
  for (role role = X; role < ROLES; role++) {
    free(operands[role].memory);
    operands[role].memory = NULL;
  }
}

unsigned char *operand_at(const operand *operand, int64_t index) {
  int64_t offset = operand->compact ? index : 0;
  for (int32_t i = operand->ndim - 1; i >= 0 && !operand->compact; i--) {
    offset += index % operand->shape[i] * operand->strides[i];
    index /= operand->shape[i];
  }
  return operand->data + offset * dtype_size(operand->dtype);
}

void operand_load(const operand *operand, int64_t first, int64_t step, int64_t count, double *to) {
  if (operand->compact) {
    load_elements(operand->dtype, operand_at(operand, first), step, count, to);
    return;
  }
  for (int64_t i = 0; i < count; i++)
    load_elements(operand->dtype, operand_at(operand, first + i * step), 1, 1, to + i);
}

/* ---- Calls ---- */

onepass_tensor operand_tensor(const operand *operand) {
  return (onepass_tensor){.data = operand->data,
                          .device = operand->device,
                          .ndim = operand->ndim,
                          .dtype = operand->dtype,
                          .shape = operand->shape,
                          .strides = operand->strides};
}

onepass_buffers operand_buffers(const operand operands[ROLES]) {
  return (onepass_buffers){.x = operands[X].data,
                           .weight = operands[WEIGHT].data,
                           .bias = operands[BIAS].data,
                           .y = operands[Y].data,
                           .mean = operands[MEAN].data,
                           .rstd = operands[RSTD].data,
                           .dy = operands[DY].data,
                           .dx = operands[DX].data,
                           .dweight = operands[DWEIGHT].data,
                           .dbias = operands[DBIAS].data,
                           .residual = operands[RESIDUAL].data,
                           .sum = operands[SUM].data,
                           .dsum = operands[DSUM].data,
                           .running_mean = operands[RUNNING_MEAN].data,
                           .running_var = operands[RUNNING_VAR].data,
                           .indices = operands[INDICES].data};
}

onepass_status problem_plan(const problem *problem, const operand operands[ROLES],
                            const onepass_options *options, onepass_plan **plan) {
  onepass_tensor tensors[ROLES];
  const onepass_tensor *used[ROLES];
  for (role role = X; role < ROLES; role++) {
    tensors[role] = operand_tensor(&operands[role]);
    used[role] = operands[role].ndim > 0 ? &tensors[role] : NULL;
  }
  onepass_tensors all;
  memcpy(&all, used, sizeof all);
  if (problem->op->family == FAMILY_POOL)
    return onepass_plan_pool(plan, &problem->pool, &all, options);
  return onepass_plan_norm(plan, &problem->norm, &all, options);
}

problem forward_of(const problem *backward) {
  problem forward = *backward;
  forward.direction = forward.norm.direction = forward.pool.direction = ONEPASS_FORWARD;
  forward.norm.activation = ONEPASS_NO_ACTIVATION;
  forward.norm.use_running = 0;
  unsigned needed = ROLE_BIT(X) | ROLE_BIT(Y) | ROLE_BIT(MEAN) | ROLE_BIT(RSTD) | ROLE_BIT(INDICES);
  forward.roles = backward->op->roles[ONEPASS_FORWARD] & needed;
  return forward;
}

/* What a role that is moved on was before. */
static void copy_values(operand *to, const operand *from) {
  for (int64_t i = 0; i < from->elements; i++) {
    double value;
    operand_load(from, i, 1, 1, &value);
    store_element(to->dtype, operand_at(to, i), value);
  }
}

onepass_status run_reference(const problem *problem, const operand operands[ROLES], unsigned native,
                             operand want[ROLES]) {
  memcpy(want, operands, ROLES * sizeof *want);
  bool allocated = true;
  for (role role = X; role < ROLES; role++) {
    want[role].memory = NULL;
    if (want[role].ndim == 0 || !role_is_output(problem, role)) continue;
    if (role != INDICES && !(native >> role & 1)) want[role].dtype = ONEPASS_F64;
    lay_out(&want[role], LAYOUT_COMPACT, true);
    bool got_memory = operand_allocate(&want[role], LAYOUT_COMPACT);
    if (got_memory && role_is_updated(problem, role)) copy_values(&want[role], &operands[role]);
    allocated = allocated && got_memory;
  }
  if (!allocated) return ONEPASS_OUT_OF_MEMORY;
  onepass_options options = {.reference = 1};
  onepass_plan *plan = NULL;
  onepass_status status = problem_plan(problem, want, &options, &plan);
  if (status == ONEPASS_OK) {
    onepass_buffers buffers = operand_buffers(want);
    size_t size = onepass_plan_workspace(plan);
    void *workspace = size ? allocate_bytes((int64_t)size) : NULL;
    status = size && !workspace ? ONEPASS_OUT_OF_MEMORY
                                : onepass_run(plan, &buffers, workspace, size, NULL);
    free(workspace);
  }
  onepass_plan_destroy(plan);
  return status;
}
