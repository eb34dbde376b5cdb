/* Between cpu.c, which splits pooling over threads, and cpu_kernels.c, which does parts of lines
 * and is compiled once for every vector level. */
#ifndef ONEPASS_POOL_CPU_H
#define ONEPASS_POOL_CPU_H

#include "pool/pool.h"

typedef struct onepass_pool_kernels {
  /* Elements begin..end of an output line from an input line. */
  void (*forward)(const onepass_pool_problem *problem, void *y, const void *x, int64_t begin,
                  int64_t end, void *scratch);
  void (*backward)(const onepass_pool_problem *problem, void *dx, const void *dy, int64_t begin,
                   int64_t end, void *scratch);
} onepass_pool_kernels;

enum {
  ONEPASS_POOL_TILE = 1024,         /* window sums made at a time, so that they stay in L1 */
  ONEPASS_POOL_WIDEST_TILED = 16384 /* larger windows are summed one by one */
};

/* What the kernels want as scratch: four buffers of a tile and a window, in the type of sums. */
static inline size_t onepass_pool_scratch(const onepass_pool_problem *p) {
  const int64_t window = p->wide.kernel <= ONEPASS_POOL_WIDEST_TILED ? p->wide.kernel : 0;
  const int64_t tile = ONEPASS_POOL_TILE > window ? ONEPASS_POOL_TILE : window;
  return 4 * (size_t)(tile + window + 64) *
         (size_t)onepass_type_size(onepass_type_of_sums(p->type));
}

typedef const onepass_pool_kernels *onepass_pool_kernels_at_level(onepass_type type);
onepass_pool_kernels_at_level onepass_pool_kernels_sse2, onepass_pool_kernels_avx2,
    onepass_pool_kernels_avx512, onepass_pool_kernels_neon, onepass_pool_kernels_neon_bf16,
    onepass_pool_kernels_generic;

#endif
