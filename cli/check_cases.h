/* What `onepass check` tries: the list of cases, in a fixed order. */
#ifndef ONEPASS_CLI_CHECK_CASES_H
#define ONEPASS_CLI_CHECK_CASES_H

#include <stdint.h>

#include "problem.h"

typedef enum effort { EFFORT_QUICK, EFFORT_NORMAL, EFFORT_FULL } effort;

/* What x is filled with. */
typedef enum values {
  VALUES_NORMAL,
  VALUES_OFFSET, /* a mean that is large against the deviation */
  VALUES_TINY,
  VALUES_HUGE,
  VALUES_ZEROS, /* some elements are 0, and in every third row all of them */
  VALUES_NAN,   /* one element is NaN */
  VALUES_INF,   /* one element is infinite */
  VALUES_KINDS
} values;

/* Which output has the memory of which input. */
typedef enum in_place {
  SEPARATE,
  Y_OVER_X,
  Y_OVER_RESIDUAL,
  SUM_OVER_X,
  SUM_OVER_RESIDUAL,
  DX_OVER_X,
  DX_OVER_DY,
  DX_OVER_DSUM,
  IN_PLACE_KINDS
} in_place;

typedef struct check_case {
  int64_t number; /* in the list of this effort and kind of device */
  problem problem;
  layout layout;
  values values;
  in_place in_place;
} check_case;

const char *values_name(values values);
const char *in_place_name(in_place in_place);
role in_place_output(in_place in_place);
role in_place_input(in_place in_place);

/* Call visit on every case, ordered by operator, then direction, then type. On a GPU there are more
 * of them, which take each of its kernels to its limits. */
typedef void (*case_visitor)(void *context, const check_case *check_case);
void visit_cases(effort effort, bool cuda, case_visitor visit, void *context);

#endif
