/* The copy that operators are measured against. */
#ifndef ONEPASS_CLI_COPY_H
#define ONEPASS_CLI_COPY_H

#include <stdint.h>

#include "gpu.h"

typedef enum copy_method {
  COPY_MEMCPY,    /* one memcpy for each thread */
  COPY_STREAMING, /* stores that do not read the destination into the cache first */
  COPY_METHODS
} copy_method;

/* Both addresses are multiples of 64. */
void copy_bytes(copy_method method, void *to, const void *from, int64_t bytes, int32_t threads);

/* Bytes per second, counting each byte read and each byte written, of the faster method on buffers
 * of this size. Returns 0 when there is no memory for them. */
double copy_bandwidth(int64_t bytes, int32_t threads);

/* The same for a copy within a GPU, on buffers far larger than its second-level cache: the median.
 * Returns 0 when there is no memory for them. */
double gpu_copy_bandwidth(gpu *gpu, int64_t l2);

#endif
