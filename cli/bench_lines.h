/* What `onepass bench` is asked for, and the lines that come of it. */
#ifndef ONEPASS_CLI_BENCH_LINES_H
#define ONEPASS_CLI_BENCH_LINES_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu.h"
#include "options.h"
#include "problem.h"

enum { BOTH_DIRECTIONS = 2, NOT_GIVEN = INT32_MIN, MOST_LINES = 512 };

extern const char *const vector_choices[];

/* What the command line asks for. */
typedef struct request {
  int op, dtype, direction, vector, device, cuda_kernel, activation;
  shape shape, kernel, stride, padding, dilation, output; /* ndim 0: not given */
  int64_t axis, groups, threads, repetitions;
  bool json, verbose;
  gpu *gpu; /* NULL: the CPU */
} request;

/* The lines to be measured, all known to be possible before the first is. */
typedef struct lines {
  problem problems[MOST_LINES];
  int count;
} lines;

/* Options that say nothing about any of the operators, and shapes with nothing in them. Returns 0,
 * or prints one line and returns EXIT_USAGE; so does collect_lines. */
int check_request(const request *request);
int collect_lines(const request *request, lines *lines);

int32_t vector_level(const request *request);

#endif
