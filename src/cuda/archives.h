/* The kernels that are embedded in the library. */
#ifndef ONEPASS_CUDA_ARCHIVES_H
#define ONEPASS_CUDA_ARCHIVES_H

#include "cuda/device.h"

/* A .tar.xz with the kernels of a family, a file for each element type. */
typedef struct onepass_kernel_archive {
  onepass_cuda_family family;
  int32_t capability; /* ten times the major number, and the minor one */
  bool is_ptx;        /* which the driver compiles, for this capability and all that come later */
  const uint8_t *begin, *end;
} onepass_kernel_archive;

/* The best one for a GPU: machine code if there is some, or else PTX; NULL if there is neither. */
const onepass_kernel_archive *onepass_find_kernels(onepass_cuda_family family, int32_t major,
                                                   int32_t minor);

#endif
