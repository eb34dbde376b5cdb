/* Is a result right? Every element is compared with the float64 reference, within a bound made of
 *
 *   one rounding to the output's type                         rounding * |want|
 *   the rounding errors of the arithmetic it took to get it   c * unit * (magnitude of the terms)
 *
 * where unit is 2^-24 for f32, f16 and bf16 inputs and 2^-53 for f64, and c grows with the
 * logarithm of the number of terms, as it does for sums that are made of partial sums. The terms
 * are those of the operator's own formula, so that a result near zero that comes from large terms
 * that cancel is not asked for digits it cannot have, and nothing else is forgiven. */
#ifndef ONEPASS_CLI_JUDGE_H
#define ONEPASS_CLI_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

#include "problem.h"

typedef struct verdict {
  double of_bound; /* the largest error as a multiple of its bound; over 1 is wrong */
  double absolute; /* the largest |got - want| */
  double relative; /* the largest |got - want| / max(1, |want|) */
  int64_t wrong;   /* elements out of bounds */
  role role;       /* the element that is furthest out */
  int64_t index;
  double got, want;
} verdict;

/* Take what another verdict has found into this one. */
void verdict_merge(verdict *verdict, const struct verdict *found);

/* Compare the outputs in `roles`, a set of bits, and update the verdict (all zeros at first). `got`
 * are the operands as they were run, `want` those of run_reference. False when out of memory. */
bool judge(const problem *problem, const operand got[ROLES], const operand want[ROLES],
           unsigned roles, verdict *verdict);

enum { ALL_ROLES = (1 << ROLES) - 1 };

#endif
