#include "measure_check.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"

enum { CHECKED_ELEMENTS = 4 << 20 /* of the first rows; the last row is checked as well */ };

/* ---- How much of a result is checked ---- */

/* The axis along which the problem can be cut into problems of their own, or -1. */
static int32_t slice_axis(const problem *problem) {
  if (problem->op->family == FAMILY_POOL) return 0;
  switch (problem->op->rows) {
    case ROWS_GROUPS:
      return 0;
    case ROWS_CHANNELS:
      return 1;
    default:
      return problem->norm.axis > 0 ? 0 : -1;
  }
}

static int64_t slices_checked(const problem *problem, int64_t elements) {
  int32_t axis = slice_axis(problem);
  if (axis < 0) return problem->shape[0];
  int64_t all = problem->shape[axis], head = CHECKED_ELEMENTS / (elements / all);
  return head < 1 ? 1 : head < all ? head : all;
}

/* Are there sums over slices? A channel's are all in its own. */
static bool sums_all_rows(const problem *problem) {
  const unsigned sums = ROLE_BIT(DWEIGHT) | ROLE_BIT(DBIAS);
  return (problem->roles & sums) && slice_axis(problem) == 0;
}

int64_t operand_bytes(const operand operands[ROLES]) {
  int64_t bytes = 0;
  for (role role = X; role < ROLES; role++)
    if (operands[role].ndim > 0)
      bytes += 2 * GUARD + operands[role].span * dtype_size(operands[role].dtype);
  return bytes;
}

int64_t checking_memory(const problem *problem, const operand operands[ROLES], bool on_gpu) {
  const operand *result = &operands[problem->direction == ONEPASS_FORWARD ? Y : DX];
  int32_t axis = slice_axis(problem);
  int64_t slices = slices_checked(problem, result->elements);
  int64_t all = problem->shape[axis > 0 ? axis : 0];
  int64_t brought = on_gpu ? operand_bytes(operands) : 0;
  /* slices along another axis than the first are brought with all that is between them */
  int64_t some =
      result->elements / all * slices * 8 + (axis > 0 ? brought : brought / all * slices);
  int64_t whole = result->elements * dtype_size(result->dtype) + brought;
  return sums_all_rows(problem) && whole > some ? whole : some;
}

/* ---- Checking ---- */

/* The axis of a role's tensor that is cut with the problem, or -1. */
static int32_t axis_cut(const problem *problem, role role) {
  switch (role) {
    case WEIGHT:
    case BIAS:
    case DWEIGHT:
    case DBIAS:
    case RUNNING_MEAN:
    case RUNNING_VAR:
      return slice_axis(problem) == 1 ? 0 : -1;
    case MEAN:
    case RSTD:
      return 0;
    default:
      return slice_axis(problem);
  }
}

/* The slices [first, first + count) of a problem, in the same memory. */
static void narrow(const problem *whole, const operand operands[ROLES], int64_t first,
                   int64_t count, problem *narrowed, operand slices[ROLES]) {
  *narrowed = *whole;
  narrowed->shape[slice_axis(whole)] = count;
  memcpy(slices, operands, ROLES * sizeof *slices);
  for (role role = X; role < ROLES; role++) {
    operand *operand = &slices[role];
    int32_t axis = axis_cut(whole, role);
    if (operand->ndim == 0 || axis < 0) continue;
    operand->data += first * operand->strides[axis] * dtype_size(operand->dtype);
    operand->elements = operand->elements / operand->shape[axis] * count;
    operand->shape[axis] = count;
    operand->compact = operand->compact && axis == 0;
    operand->span = span_of(operand);
  }
}

/* The operands as they are for the CPU: those of a GPU are brought, but no outputs that are not
 * looked at. The caller frees `here` with operands_free, whatever comes of it. */
static bool bring(gpu *gpu, const problem *problem, const operand operands[ROLES], unsigned roles,
                  operand here[ROLES]) {
  memcpy(here, operands, ROLES * sizeof *here);
  bool brought = true;
  for (role role = X; role < ROLES; role++) {
    operand *operand = &here[role];
    operand->memory = NULL;
    if (!gpu || operand->ndim == 0) continue;
    operand->device = (onepass_device){ONEPASS_CPU, 0};
    operand->data = NULL;
    if (role_is_output(problem, role) && !(roles >> role & 1)) continue;
    int64_t bytes = operand->span * dtype_size(operand->dtype);
    operand->memory = operand->data = allocate_bytes(bytes);
    if (!operand->memory) gpu->reason = "not enough memory to bring the result to the host";
    brought = brought && operand->memory &&
              gpu_download(gpu, operand->memory, operands[role].data, bytes);
  }
  return brought;
}

static bool check_part(const problem *problem, const operand operands[ROLES], gpu *gpu,
                       unsigned native, unsigned roles, verdict *verdict, const char **reason) {
  operand here[ROLES], want[ROLES] = {{.ndim = 0}};
  bool brought = bring(gpu, problem, operands, roles, here);
  onepass_status status = brought ? run_reference(problem, here, native, want) : ONEPASS_OK;
  bool judged = brought && status == ONEPASS_OK && judge(problem, here, want, roles, verdict);
  operands_free(want);
  operands_free(here);
  if (!brought)
    *reason = gpu->reason;
  else if (status == ONEPASS_OUT_OF_MEMORY || (status == ONEPASS_OK && !judged))
    *reason = "not enough memory for the reference";
  else if (status != ONEPASS_OK)
    *reason = onepass_last_message();
  return judged;
}

static bool check_slices(const problem *whole, const operand operands[ROLES], gpu *gpu,
                         int64_t first, int64_t count, verdict *verdict, const char **reason) {
  problem narrowed;
  operand slices[ROLES];
  narrow(whole, operands, first, count, &narrowed, slices);
  unsigned roles = ALL_ROLES;
  if (sums_all_rows(whole)) roles &= ~(ROLE_BIT(DWEIGHT) | ROLE_BIT(DBIAS));
  return check_part(&narrowed, slices, gpu, 0, roles, verdict, reason);
}

bool check_result(const problem *problem, const operand operands[ROLES], gpu *gpu, verdict *verdict,
                  const char **reason) {
  int32_t axis = slice_axis(problem);
  if (axis < 0) return check_part(problem, operands, gpu, 0, ALL_ROLES, verdict, reason);
  const operand *result = &operands[problem->direction == ONEPASS_FORWARD ? Y : DX];
  int64_t all = problem->shape[axis], head = slices_checked(problem, result->elements);
  if (!check_slices(problem, operands, gpu, 0, head, verdict, reason)) return false;
  if (head < all && !check_slices(problem, operands, gpu, all - 1, 1, verdict, reason))
    return false;
  return !sums_all_rows(problem) ||
         check_part(problem, operands, gpu, ROLE_BIT(DX), ROLE_BIT(DWEIGHT) | ROLE_BIT(DBIAS),
                    verdict, reason);
}
