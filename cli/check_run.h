/* Running one case of `onepass check`. */
#ifndef ONEPASS_CLI_CHECK_RUN_H
#define ONEPASS_CLI_CHECK_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "check_cases.h"
#include "gpu.h"
#include "judge.h"

typedef struct checker {
  uint64_t seed;
  int32_t levels[3]; /* the vector levels of this CPU, best last */
  int level_count;
  int32_t threads[4]; /* the first is run twice; all must give the same bits */
  int thread_count;
} checker;

/* What became of a case on one of a GPU's kernels. */
typedef struct kernel_run {
  const char *name; /* the plan's own word for it */
  int32_t asked;    /* an onepass_cuda_kernel */
  bool passed;
  double of_bound;
} kernel_run;

enum { MOST_NAMES = 6 };

typedef struct outcome {
  bool passed;
  const char *names[MOST_NAMES]; /* of the kernels that ran, in the plans' words */
  int name_count;
  verdict verdict;
  char reason[512]; /* why it did not pass: the first reason */
  kernel_run kernels[ONEPASS_CUDA_KERNEL_COUNT];
  int kernel_count;
} outcome;

/* Find out which vector levels there are. */
void find_levels(checker *checker);

/* On every vector level, or on a GPU (NULL: on the CPU) with every kernel that can do the problem:
 * the result is within bounds of the reference, nothing around the outputs or the workspace is
 * touched, and every number of threads and a second run give the same bits. Then the same once more
 * through the one-call function, where there is one. */
void run_case(const checker *checker, const check_case *check_case, gpu *gpu, outcome *outcome);

#endif
