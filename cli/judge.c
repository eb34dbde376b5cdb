#include "judge.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "buffers.h"
#include "judge_trial.h"

void verdict_merge(verdict *verdict, const struct verdict *found) {
  struct verdict merged = found->of_bound > verdict->of_bound ? *found : *verdict;
  merged.absolute = fmax(found->absolute, verdict->absolute);
  merged.relative = fmax(found->relative, verdict->relative);
  merged.wrong = found->wrong + verdict->wrong;
  *verdict = merged;
}

/* ---- One element ---- */

typedef struct precision {
  double rounding; /* half a unit in the last place, relative */
  double floor;    /* half the smallest subnormal, and a little for what happens around it */
  double largest;
} precision;

static precision precision_of(onepass_dtype dtype) {
  if (dtype_equal(dtype, ONEPASS_F64)) return (precision){0x1p-53, 0x1p-1070, DBL_MAX};
  if (dtype_equal(dtype, ONEPASS_F32)) return (precision){0x1p-24, 0x1p-148, FLT_MAX};
  if (dtype_equal(dtype, ONEPASS_F16)) return (precision){0x1p-11, 0x1p-25, 65504};
  if (dtype_equal(dtype, ONEPASS_I64)) return (precision){0, 0, DBL_MAX}; /* exact */
  return (precision){0x1p-8, 0x1p-133, 0x1.fep127};
}

/* Above 1 is wrong; infinitely wrong for a NaN or an infinity out of place. */
static double error_of_bound(precision precision, double got, double want, double arithmetic) {
  double bound =
      arithmetic * (1 + precision.rounding) + fabs(want) * precision.rounding + precision.floor;
  if (isnan(want)) return isnan(got) ? 0 : INFINITY;
  if (got == want) return 0;
  if (isinf(want) || isinf(got)) {
    bool overflows = fabs(want) + bound >= precision.largest;
    bool same_side = signbit(got) == signbit(want);
    if (overflows && same_side && (isinf(got) || fabs(got) >= precision.largest)) return 0;
    return isfinite(bound) || isinf(want) ? INFINITY : 0;
  }
  if (!isfinite(bound)) return 0;
  return isnan(got) ? INFINITY : fabs(got - want) / bound;
}

void compare(const trial *trial, role role, int64_t index, double got, double want,
             double arithmetic) {
  verdict *verdict = trial->verdict;
  double of_bound = error_of_bound(precision_of(trial->got[role].dtype), got, want, arithmetic);
  double error = fabs(got - want);
  if (isfinite(error) && isfinite(arithmetic)) {
    if (error > verdict->absolute) verdict->absolute = error;
    double relative = error / fmax(1, fabs(want));
    if (relative > verdict->relative) verdict->relative = relative;
  }
  if (of_bound > 1) verdict->wrong++;
  if (of_bound <= verdict->of_bound) return;
  verdict->of_bound = of_bound;
  verdict->role = role;
  verdict->index = index;
  verdict->got = got;
  verdict->want = want;
}

bool wants(const trial *trial, role role) {
  return trial->got[role].ndim > 0 && (trial->roles >> role & 1);
}

double reference_slack(int64_t terms) { return 4 + (double)terms / 4; }

double sum_slack(const trial *trial, int64_t terms) {
  double slack = 6 + log2(terms > 1 ? (double)terms : 1);
  return trial->unit < 0x1p-50 ? slack + reference_slack(terms) : slack;
}

double load_one(const operand *operand, int64_t index) {
  double value;
  operand_load(operand, index, 1, 1, &value);
  return value;
}

bool judge(const problem *problem, const operand got[ROLES], const operand want[ROLES],
           unsigned roles, verdict *verdict) {
  trial trial = {.problem = problem, .got = got, .want = want, .roles = roles, .verdict = verdict};
  trial.view = problem_view(problem);
  trial.unit = dtype_equal(problem->dtype, ONEPASS_F64) ? 0x1p-53 : 0x1p-24;
  return (problem->op->family == FAMILY_POOL ? judge_pool : judge_norm)(&trial);
}
