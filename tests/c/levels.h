/*
 * Which vector levels this CPU has, from what it says is its best.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef LEVELS_H
#define LEVELS_H

#include "expect.h"

enum { LEVELS = ONEPASS_VECTOR_NEON_BF16 + 1 };

/* By what name a plan goes that runs on the level; the first two depend on the processor. */
static const char *const level_name[LEVELS] = {"best", "baseline", "avx2", "avx512", "neon_bf16"};

static inline int cpu_has_level(int level) {
  onepass_cpu_info info;
  if (!EXPECT_OK(onepass_get_cpu_info(&info))) return 0;
  if (level <= ONEPASS_VECTOR_BASELINE) return 1;
  if (strcmp(info.vector, level_name[level]) == 0) return 1;
  return level == ONEPASS_VECTOR_AVX2 && strcmp(info.vector, "avx512") == 0;
}

#endif
