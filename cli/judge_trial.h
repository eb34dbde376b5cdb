/* What the judges of the families share. */
#ifndef ONEPASS_CLI_JUDGE_TRIAL_H
#define ONEPASS_CLI_JUDGE_TRIAL_H

#include "judge.h"

/* What is known while judging one problem. */
typedef struct trial {
  const problem *problem;
  const operand *got, *want;
  unsigned roles;
  verdict *verdict;
  view view;
  double unit; /* of the arithmetic: 2^-24 or 2^-53 */
} trial;

/* One element; `arithmetic` is what it may be off by before it is rounded to its type. */
void compare(const trial *trial, role role, int64_t index, double got, double want,
             double arithmetic);

bool wants(const trial *trial, role role);
double load_one(const operand *operand, int64_t index);

/* What the reference, which adds doubles one after the other, may be off by: mostly the root of the
 * count, but a part of the count itself where the values are alike. */
double reference_slack(int64_t terms);

/* What to multiply the unit roundoff with for a sum of this many terms. */
double sum_slack(const trial *trial, int64_t terms);

/* False when out of memory. */
bool judge_norm(const trial *trial);
bool judge_pool(const trial *trial);

#endif
