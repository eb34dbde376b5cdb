/*
 * Stands in for a test of the GPU in a build without CUDA.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdio.h>

#include "expect.h"

int main(void) {
  printf("skip: %s: this build has no CUDA\n", TEST_NAME);
  return EXPECT_SKIPPED;
}
