/* How many blocks a kernel has at most that lets the next one begin before it ends: see let_next_begin in ptx.cuh. Fewer if
 * the next one is of the same run, and waits for parts of a result. Both C and CUDA C++ read this. */
#ifndef ONEPASS_CUDA_TURNS_H
#define ONEPASS_CUDA_TURNS_H

enum { ONEPASS_FEW_BLOCKS = 512, ONEPASS_FEW_BLOCKS_OF_PARTS = 64 };

#endif
