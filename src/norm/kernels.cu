/* The normalization kernels for one element type, ELEMENT, which the build names. Every kernel's
 * name says what it is for; src/norm/cuda.c puts the same names together. */
#include "norm/cuda_blocks.cuh"
#include "norm/cuda_passes.cuh"
#include "norm/cuda_stream.cuh"
#include "norm/cuda_strided.cuh"
#include "norm/cuda_warps.cuh"

#if defined(ONEPASS_ELEMENT_f32)
typedef float element;
#elif defined(ONEPASS_ELEMENT_f64)
typedef double element;
#elif defined(ONEPASS_ELEMENT_f16)
typedef __half element;
#define ONEPASS_IS_HALF
#elif defined(ONEPASS_ELEMENT_bf16)
typedef __nv_bfloat16 element;
#define ONEPASS_IS_HALF
#endif

enum { VECTOR = vector_of<element>::count, COLUMNS_VECTOR = VECTOR < 4 ? VECTOR : 4 };

/* Packs of a thread where a block has a row. launch_cuda.c knows them, too. */
enum { PACKS = 4 };

#define KERNEL_AT(threads, blocks, name, call)                  \
  extern "C" __global__ void __launch_bounds__(threads, blocks) \
      name(const __grid_constant__ norm_args args) {            \
    call;                                                       \
  }

/* Two blocks on a multiprocessor at least: up to 128 registers a thread. */
#define KERNEL(threads, name, call) KERNEL_AT(threads, threads > 256 ? 1 : 2, name, call)

#define STREAM_KERNEL(name, MOMENTS, BACKWARD)                                  \
  extern "C" __global__ void __launch_bounds__(                                 \
      STREAM_MOST_THREADS, MOMENTS || BACKWARD || sizeof(element) == 8 ? 1 : 2) \
      name(const __grid_constant__ norm_args args) {                            \
    extern __shared__ __align__(16) char shared[];                              \
    stream<element, MOMENTS, BACKWARD>(args, shared).run();                     \
  }

/* A lane has at most 16 elements of a row, and backward 8. */
#define WARPS_KERNELS_OF(name, MOMENTS)                                                            \
  KERNEL(WARPS_BLOCK, name##_forward_vector_1, (warps_forward<element, MOMENTS, VECTOR, 1>(args))) \
  KERNEL(WARPS_BLOCK, name##_forward_vector_2, (warps_forward<element, MOMENTS, VECTOR, 2>(args))) \
  KERNEL(WARPS_BLOCK, name##_backward_vector_1,                                                    \
         (warps_backward<element, MOMENTS, VECTOR, 1>(args)))                                      \
  KERNEL(WARPS_BLOCK, name##_forward_scalar_1, (warps_forward<element, MOMENTS, 1, 1>(args)))      \
  KERNEL(WARPS_BLOCK, name##_forward_scalar_2, (warps_forward<element, MOMENTS, 1, 2>(args)))      \
  KERNEL(WARPS_BLOCK, name##_forward_scalar_4, (warps_forward<element, MOMENTS, 1, 4>(args)))      \
  KERNEL(WARPS_BLOCK, name##_forward_scalar_8, (warps_forward<element, MOMENTS, 1, 8>(args)))      \
  KERNEL(WARPS_BLOCK, name##_backward_scalar_1, (warps_backward<element, MOMENTS, 1, 1>(args)))    \
  KERNEL(WARPS_BLOCK, name##_backward_scalar_2, (warps_backward<element, MOMENTS, 1, 2>(args)))    \
  KERNEL(WARPS_BLOCK, name##_backward_scalar_4, (warps_backward<element, MOMENTS, 1, 4>(args)))    \
  KERNEL_AT(WARPS_BLOCK, 1, name##_backward_scalar_8,                                              \
            (warps_backward<element, MOMENTS, 1, 8>(args)))

#ifdef ONEPASS_IS_HALF
#define WARPS_MORE_PACKS(name, MOMENTS)
#else
#define WARPS_MORE_PACKS(name, MOMENTS)                                                            \
  KERNEL(WARPS_BLOCK, name##_forward_vector_4, (warps_forward<element, MOMENTS, VECTOR, 4>(args))) \
  KERNEL(WARPS_BLOCK, name##_backward_vector_2, (warps_backward<element, MOMENTS, VECTOR, 2>(args)))
#endif

#define BLOCKS_KERNELS_OF(name, MOMENTS)                                     \
  KERNEL_AT(BLOCKS_MOST_THREADS, VECTOR == 4 ? 2 : 1, name##_forward_vector, \
            (blocks_forward<element, MOMENTS, VECTOR, PACKS, false>(args)))  \
  KERNEL_AT(BLOCKS_MOST_THREADS, 1, name##_forward_phased,                   \
            (blocks_forward<element, MOMENTS, VECTOR, PACKS, true>(args)))   \
  KERNEL_AT(BLOCKS_MOST_THREADS, 1, name##_forward_scalar,                   \
            (blocks_forward<element, MOMENTS, 1, 8, false>(args)))           \
  KERNEL_AT(BLOCKS_MOST_THREADS, 1, name##_backward_vector,                  \
            (blocks_backward<element, MOMENTS, VECTOR, PACKS, false>(args))) \
  KERNEL_AT(BLOCKS_MOST_THREADS, 1, name##_backward_phased,                  \
            (blocks_backward<element, MOMENTS, VECTOR, PACKS, true>(args)))  \
  KERNEL_AT(BLOCKS_MOST_THREADS, 1, name##_backward_scalar,                  \
            (blocks_backward<element, MOMENTS, 1, 8, false>(args)))

#define KERNELS_OF(op, MOMENTS)                                                         \
  WARPS_KERNELS_OF(op##_warps, MOMENTS)                                                 \
  WARPS_MORE_PACKS(op##_warps, MOMENTS)                                                 \
  BLOCKS_KERNELS_OF(op##_blocks, MOMENTS)                                               \
  STREAM_KERNEL(op##_stream_forward, MOMENTS, false)                                    \
  STREAM_KERNEL(op##_stream_backward, MOMENTS, true)                                    \
  KERNEL(256, op##_gather_forward, (passes_gather<element, MOMENTS, false>(args)))      \
  KERNEL(256, op##_gather_backward, (passes_gather<element, MOMENTS, true>(args)))      \
  KERNEL_AT(256, VECTOR == 2 ? 2 : 3, op##_apply_forward,                               \
            (passes_forward<element, MOMENTS>(args)))                                   \
  KERNEL_AT(256, VECTOR == 2 ? 2 : 3, op##_apply_backward_vector,                       \
            (passes_backward<element, MOMENTS, VECTOR>(args)))                          \
  KERNEL(256, op##_apply_backward_scalar, (passes_backward<element, MOMENTS, 1>(args))) \
  KERNEL(256, op##_strided_forward, (strided_forward<element, MOMENTS>(args)))          \
  KERNEL(256, op##_strided_backward, (strided_backward<element, MOMENTS>(args)))

KERNELS_OF(abs, false)
KERNEL(256, abs_merge_forward, (passes_merge<element, false, false>(args)))
KERNEL(256, abs_merge_backward, (passes_merge<element, false, true>(args)))
KERNEL(COLUMNS_BLOCK, abs_columns_forward_vector, (columns<element, false, COLUMNS_VECTOR>(args)))
KERNEL(COLUMNS_BLOCK, abs_columns_forward_scalar, (columns<element, false, 1>(args)))
KERNEL(COLUMNS_BLOCK, abs_columns_backward_vector, (columns<element, true, COLUMNS_VECTOR>(args)))
KERNEL(COLUMNS_BLOCK, abs_columns_backward_scalar, (columns<element, true, 1>(args)))

KERNELS_OF(moments, true)
KERNEL(256, moments_merge_forward, (passes_merge<element, true, false>(args)))
KERNEL(256, moments_merge_backward, (passes_merge<element, true, true>(args)))
KERNEL(256, moments_offsets, (strided_offsets<element>(args)))
KERNEL(256, moments_strided_sums, (strided_sums<element>(args)))
KERNEL(SUM_PARTS_BLOCK, moments_sum_parts, (sum_parts<element>(args)))
