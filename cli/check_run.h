/* Running one case of `onepass check`. */
#ifndef ONEPASS_CLI_CHECK_RUN_H
#define ONEPASS_CLI_CHECK_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "check_cases.h"
#include "judge.h"

typedef struct checker {
  uint64_t seed;
  int32_t levels[3]; /* the vector levels of this CPU, best last */
  int level_count;
  int32_t threads[4]; /* the first is run twice; all must give the same bits */
  int thread_count;
} checker;

typedef struct outcome {
  bool passed;
  verdict verdict;
  char reason[512]; /* why it did not pass */
} outcome;

/* Find out which vector levels there are. */
void find_levels(checker *checker);

/* On every vector level: the result is within bounds of the reference, nothing around the outputs
 * or the workspace is touched, and every number of threads and a second run give the same bits.
 * Then the same once more through the one-call function. */
void run_case(const checker *checker, const check_case *check_case, outcome *outcome);

#endif
