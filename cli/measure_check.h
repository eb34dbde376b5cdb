/* Checking the result of a problem that is about to be timed. */
#ifndef ONEPASS_CLI_MEASURE_CHECK_H
#define ONEPASS_CLI_MEASURE_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu.h"
#include "judge.h"
#include "problem.h"

/* Compare what a run has written with the reference: the first slices along the axis it can be cut along,
 * the last one, and sums over all of them. Operands on a GPU are brought to the host for that; gpu is
 * NULL where they are there already. On failure *reason says why. */
bool check_result(const problem *problem, const operand operands[ROLES], gpu *gpu, verdict *verdict,
                  const char **reason);

/* Bytes of host memory that takes, beside the operands. */
int64_t checking_memory(const problem *problem, const operand operands[ROLES], bool on_gpu);

/* Bytes of memory the operands take. */
int64_t operand_bytes(const operand operands[ROLES]);

#endif
