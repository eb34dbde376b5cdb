/* Timing one problem against a copy, after checking its result. */
#ifndef ONEPASS_CLI_MEASURE_H
#define ONEPASS_CLI_MEASURE_H

#include <onepass.h>
#include <stdbool.h>
#include <stdint.h>

#include "judge.h"
#include "problem.h"

typedef struct measure_options {
  int32_t threads, vector_level;
  int64_t repetitions; /* 0: about a second's worth */
  int64_t last_cache;  /* bytes; what is timed comes from beyond it */
} measure_options;

typedef struct measurement {
  onepass_plan_info plan;
  verdict verdict;
  int64_t repetitions;
  double seconds, copy_seconds; /* medians */
} measurement;

/* Bytes of memory it takes to measure a problem; negative when 64 bits cannot count them. */
int64_t measure_memory(const problem *problem);

/* On failure *reason says why. */
bool measure(const problem *problem, const measure_options *options, measurement *measurement,
             const char **reason);

#endif
