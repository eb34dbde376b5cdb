#define _POSIX_C_SOURCE 200809L
#include "problem.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"

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

bool role_is_output(role role, onepass_direction direction) {
  if (direction == ONEPASS_FORWARD) return role == Y || role == MEAN || role == RSTD;
  return role == DX || role == DWEIGHT || role == DBIAS;
}

static int64_t product(const int64_t *sizes, int32_t first, int32_t last) {
  int64_t product = 1;
  for (int32_t i = first; i < last; i++) product *= sizes[i];
  return product;
}

view problem_view(const problem *problem) {
  int32_t axis = problem->op == OP_AVG_POOL1D ? problem->ndim - 1 : problem->axis;
  int32_t end = problem->op == OP_L1_NORM ? axis + 1 : problem->ndim;
  return (view){product(problem->shape, 0, axis), product(problem->shape, axis, end),
                product(problem->shape, end, problem->ndim)};
}

/* ---- Shapes and layouts ---- */

static bool uses(const problem *problem, role role) {
  bool forward = problem->direction == ONEPASS_FORWARD;
  bool layer = problem->op == OP_LAYER_NORM;
  switch (role) {
    case X:
      return forward || problem->op != OP_AVG_POOL1D;
    case Y:
      return forward;
    case DY:
    case DX:
      return !forward;
    case WEIGHT:
      return layer && problem->weight;
    case BIAS:
      return layer && problem->bias && forward;
    case DWEIGHT:
      return layer && problem->weight && !forward;
    case DBIAS:
      return layer && problem->bias && !forward;
    case MEAN:
    case RSTD:
      return layer && (problem->stats || !forward);
    case ROLES:
      break;
  }
  return false;
}

static onepass_dtype role_dtype(const problem *problem, role role) {
  switch (role) {
    case WEIGHT:
    case BIAS:
    case DWEIGHT:
    case DBIAS:
      return problem->weight_dtype;
    case MEAN:
    case RSTD:
      return problem->dtype.bits == 64 ? ONEPASS_F64 : ONEPASS_F32;
    default:
      return problem->dtype;
  }
}

static int32_t role_shape(const problem *problem, role role, int64_t *shape) {
  int32_t ndim = problem->ndim, normalized = ndim - problem->axis;
  memcpy(shape, problem->shape, (size_t)ndim * sizeof *shape);
  switch (role) {
    case WEIGHT:
    case BIAS:
    case DWEIGHT:
    case DBIAS:
      memcpy(shape, problem->shape + problem->axis, (size_t)normalized * sizeof *shape);
      return normalized;
    case MEAN:
    case RSTD:
      for (int32_t i = problem->axis; i < ndim; i++) shape[i] = 1;
      return problem->keep_axes || problem->axis == 0 ? ndim : problem->axis;
    case Y:
    case DY:
      if (problem->op == OP_AVG_POOL1D) shape[ndim - 1] = problem->pooled;
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
  operand->span = operand->elements > 0 ? 1 : 0;
  for (int32_t i = 0; i < operand->ndim && operand->elements > 0; i++)
    operand->span += (operand->shape[i] - 1) * operand->strides[i];
  return true;
}

bool problem_operands(const problem *problem, layout layout, operand operands[ROLES]) {
  memset(operands, 0, ROLES * sizeof *operands);
  for (role role = X; role < ROLES; role++) {
    if (!uses(problem, role)) continue;
    operand *operand = &operands[role];
    operand->device = (onepass_device){ONEPASS_CPU, 0};
    operand->dtype = role_dtype(problem, role);
    operand->ndim = role_shape(problem, role, operand->shape);
    if (!lay_out(operand, layout, role_is_output(role, problem->direction))) return false;
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
  if (problem->op == OP_AVG_POOL1D) {
    onepass_pool pool = {.op = ONEPASS_AVG_POOL,
                         .direction = problem->direction,
                         .spatial = 1,
                         .kernel = {problem->kernel},
                         .stride = {problem->stride},
                         .padding = {problem->padding},
                         .ceil_mode = problem->ceil_mode,
                         .count_include_pad = problem->count_include_pad};
    return onepass_plan_pool(plan, &pool, &all, options);
  }
  onepass_norm norm = {.op = problem->op == OP_L1_NORM ? ONEPASS_L1_NORM : ONEPASS_LAYER_NORM,
                       .direction = problem->direction,
                       .axis = problem->axis,
                       .reduction = problem->reduction,
                       .eps = problem->eps};
  return onepass_plan_norm(plan, &norm, &all, options);
}

onepass_status run_reference(const problem *problem, const operand operands[ROLES], unsigned native,
                             operand want[ROLES]) {
  memcpy(want, operands, ROLES * sizeof *want);
  bool allocated = true;
  for (role role = X; role < ROLES; role++) {
    want[role].memory = NULL;
    if (want[role].ndim == 0 || !role_is_output(role, problem->direction)) continue;
    if (!(native >> role & 1)) want[role].dtype = ONEPASS_F64;
    lay_out(&want[role], LAYOUT_COMPACT, true);
    allocated = operand_allocate(&want[role], LAYOUT_COMPACT) && allocated;
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
