/* How kernels that follow each other overlap. Both C and CUDA C++ read this. */
#ifndef ONEPASS_CUDA_TURNS_H
#define ONEPASS_CUDA_TURNS_H

#include <stdint.h>

/* How many blocks a kernel has at most that lets the next one begin before it ends: see let_next_begin in ptx.cuh. Fewer if
 * the next one is of the same run, and waits for parts of a result; more of rows of one element, of which a multiprocessor
 * has room for eight. */
enum {
  ONEPASS_FEW_BLOCKS = 512,
  ONEPASS_FEW_BLOCKS_OF_PARTS = 64,
  ONEPASS_FEW_BLOCKS_OF_SINGLES = 1024
};

/* What a kernel that begins before its turn does while it waits: it has inputs brought to the second-level cache (ask_ahead in
 * ptx.cuh), and reads its arguments (touch_arguments in norm/cuda_common.cuh). */
enum { ONEPASS_AHEAD_MOST = 8, ONEPASS_AHEAD_LINE = 128 };
typedef struct onepass_ahead {
  int32_t count;
  int32_t arguments;                  /* whether it reads them */
  uint32_t lines[ONEPASS_AHEAD_MOST]; /* of the cache */
  const char *first[ONEPASS_AHEAD_MOST];
} onepass_ahead;

#endif
