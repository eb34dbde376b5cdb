/* Kernels are kept as .tar.xz archives, a sixth of what they are without. This unpacks them. */
#ifndef ONEPASS_CUDA_UNPACK_H
#define ONEPASS_CUDA_UNPACK_H

#include <stddef.h>
#include <stdint.h>

/* What an .xz file holds; NULL if it is damaged, of a kind that xz does not write with LZMA2 alone, or there is no memory. The caller
 * frees it. */
uint8_t *onepass_unpack_xz(const uint8_t *packed, size_t packed_size, size_t *size);

/* The file `name` of a .tar archive, and its size; NULL if it is not there. */
const uint8_t *onepass_find_in_tar(const uint8_t *archive, size_t archive_size, const char *name,
                                   size_t *size);

#endif
