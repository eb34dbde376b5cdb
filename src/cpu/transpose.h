/* Small matrices, turned. */
#ifndef ONEPASS_CPU_TRANSPOSE_H
#define ONEPASS_CPU_TRANSPOSE_H

#include <stdint.h>

/* to[k][j] = from[j][k] for elements of 2, 4 or 8 bytes, j below `rows` and k below `columns`. Rows are so many elements
 * apart, and the two do not overlap. */
void onepass_transpose(int64_t size, void *to, int64_t to_step, const void *from, int64_t from_step,
                       int64_t rows, int64_t columns);

#endif
