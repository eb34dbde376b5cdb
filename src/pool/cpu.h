/* Between cpu.c, which splits pooling over threads, and cpu_kernels.c, which does parts of lines
 * and is compiled once for every vector level. */
#ifndef ONEPASS_POOL_CPU_H
#define ONEPASS_POOL_CPU_H

#include "pool/pool.h"

/* How rows become one. */
typedef enum onepass_join {
  ONEPASS_JOIN_SUMS,
  ONEPASS_JOIN_WEIGHTED, /* sums, each row times a number of its own */
  ONEPASS_JOIN_MAXIMA
} onepass_join;

/* What windows along the last axis are like. */
typedef enum onepass_pool_windows {
  ONEPASS_POOL_EVEN,   /* of one size: a tile of outputs at a time */
  ONEPASS_POOL_UNEVEN, /* adaptive: a whole line at a time */
  ONEPASS_POOL_WHOLE,  /* one average a plane, which is dense and not large */
  ONEPASS_POOL_SINGLE  /* too large for all of these: window by window */
} onepass_pool_windows;

typedef struct onepass_pool_kernels {
  /* Elements begin..end of an output line from an input line. */
  void (*forward)(const onepass_pool_problem *problem, void *y, const void *x, int64_t begin,
                  int64_t end, void *scratch);
  void (*backward)(const onepass_pool_problem *problem, void *dx, const void *dy, int64_t begin,
                   int64_t end, void *scratch);
  /* Everything else. A task is a tile of a row: of outputs, or backward of elements. */
  onepass_pool_task *planes_forward;
  onepass_pool_task *planes_backward; /* but of maxima */
  onepass_pool_task *maxima_backward; /* a task is a plane */
  /* Lanes across channels, a task is a row of positions. */
  onepass_pool_task *channels_forward, *channels_backward;
} onepass_pool_kernels;

enum {
  ONEPASS_POOL_TILE = 1024,          /* window sums made at a time, so that they stay in L1 */
  ONEPASS_POOL_WIDEST_TILED = 16384, /* larger windows are summed one by one */
  ONEPASS_POOL_POSITIONS = 2048,     /* where windows of a tile may start */
  ONEPASS_POOL_WIDEST_EVEN = 4096,   /* larger windows are looked at one by one */
  ONEPASS_POOL_WHOLE_LINE = 8192,    /* adaptive: longer lines are not laid out as a whole */
  ONEPASS_POOL_MOST_TAPS = 32,       /* kernels and strides up to here are split into taps */
  ONEPASS_POOL_MOST_ROWS = 64,       /* short rows that are done together */
  ONEPASS_POOL_LEAST_STEP = 16,      /* backward, from this stride on gradients come in runs */
  ONEPASS_POOL_BUFFERS = 6,
  ONEPASS_POOL_LARGEST_PLANE = 1 << 24 /* of halves, that are summed in scratch memory */
};

/* What the kernels want as scratch: four buffers of a tile and a window, in the type of sums. */
static inline size_t onepass_pool_scratch(const onepass_pool_problem *p) {
  const int64_t window = p->wide.kernel <= ONEPASS_POOL_WIDEST_TILED ? p->wide.kernel : 0;
  const int64_t tile = ONEPASS_POOL_TILE > window ? ONEPASS_POOL_TILE : window;
  return 4 * (size_t)(tile + window + 64) *
         (size_t)onepass_type_size(onepass_type_of_sums(p->type));
}

/* Those of a level; NULL if those of the level below are as fast. */
typedef const onepass_pool_kernels *onepass_pool_kernels_at_level(onepass_type type);
onepass_pool_kernels_at_level onepass_pool_kernels_sse2, onepass_pool_kernels_avx2,
    onepass_pool_kernels_avx512, onepass_pool_kernels_neon, onepass_pool_kernels_neon_bf16,
    onepass_pool_kernels_generic;

#endif
