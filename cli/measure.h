/* Timing one problem against a copy, after checking its result. */
#ifndef ONEPASS_CLI_MEASURE_H
#define ONEPASS_CLI_MEASURE_H

#include <onepass.h>
#include <stdbool.h>
#include <stdint.h>

#include "gpu.h"
#include "judge.h"
#include "problem.h"

typedef struct measure_options {
  gpu *gpu; /* NULL: the CPU */
  int32_t threads, vector_level, cuda_kernel;
  int64_t repetitions; /* 0: about a second's worth */
  int64_t rotation;    /* bytes that are used before the same ones come again */
} measure_options;

typedef struct measurement {
  onepass_plan_info plan;
  verdict verdict;
  int64_t repetitions;
  double seconds, copy_seconds; /* medians */
  double host_seconds;          /* GPU: what a call of onepass_run takes on the host; median */
} measurement;

/* Bytes of memory it takes to measure a problem; negative when 64 bits cannot count them. */
typedef struct memory_need {
  int64_t host, device;
} memory_need;
memory_need measure_memory(const problem *problem, bool on_gpu);

/* On failure *reason says why. */
bool measure(const problem *problem, const measure_options *options, measurement *measurement,
             const char **reason);

#endif
