/* The normalization kernels for one element type, ELEMENT, which the build names. Every kernel's
 * name says what it is for; src/norm/cuda.c puts the same names together. */
#include "norm/cuda_passes.cuh"
#include "norm/cuda_strided.cuh"
#include "norm/cuda_stream.cuh"
#include "norm/cuda_warps.cuh"

#if defined(ONEPASS_ELEMENT_f32)
typedef float element;
#elif defined(ONEPASS_ELEMENT_f64)
typedef double element;
#elif defined(ONEPASS_ELEMENT_f16)
typedef __half element;
#elif defined(ONEPASS_ELEMENT_bf16)
typedef __nv_bfloat16 element;
#endif

enum { VECTOR = vector_of<element>::count, COLUMNS_VECTOR = VECTOR < 4 ? VECTOR : 4 };

#define KERNEL(threads, name, call) \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ norm_args args) { call; }

#define STREAM_KERNEL(name, MOMENTS, BACKWARD)                                            \
  extern "C" __global__ void __launch_bounds__(STREAM_MOST_THREADS, 1)                        \
      name(const __grid_constant__ norm_args args) {                                         \
    extern __shared__ __align__(16) char shared[];                                           \
    stream<element, MOMENTS, BACKWARD>(args, shared).run();                               \
  }

/* name ## _vN_pM: packs of N elements, at most M of them a lane. */
#define WARPS_KERNELS_OF(name, MOMENTS, VEC, tag)                                                      \
  KERNEL(WARPS_BLOCK, name##_forward_##tag##_1, (warps_forward<element, MOMENTS, VEC, 1>(args)))       \
  KERNEL(WARPS_BLOCK, name##_forward_##tag##_2, (warps_forward<element, MOMENTS, VEC, 2>(args)))       \
  KERNEL(WARPS_BLOCK, name##_forward_##tag##_4, (warps_forward<element, MOMENTS, VEC, 4>(args)))       \
  KERNEL(WARPS_BLOCK, name##_forward_##tag##_8, (warps_forward<element, MOMENTS, VEC, 8>(args)))       \
  KERNEL(WARPS_BLOCK, name##_backward_##tag##_1, (warps_backward<element, MOMENTS, VEC, 1>(args)))     \
  KERNEL(WARPS_BLOCK, name##_backward_##tag##_2, (warps_backward<element, MOMENTS, VEC, 2>(args)))     \
  KERNEL(WARPS_BLOCK, name##_backward_##tag##_4, (warps_backward<element, MOMENTS, VEC, 4>(args)))

#define KERNELS_OF(op, MOMENTS)                                                                         \
  WARPS_KERNELS_OF(op##_warps, MOMENTS, VECTOR, vector)                                                 \
  WARPS_KERNELS_OF(op##_warps, MOMENTS, 1, scalar)                                                      \
  STREAM_KERNEL(op##_stream_forward, MOMENTS, false)                                                    \
  STREAM_KERNEL(op##_stream_backward, MOMENTS, true)                                                    \
  KERNEL(256, op##_gather_forward, (passes_gather<element, MOMENTS, false>(args)))                      \
  KERNEL(256, op##_gather_backward, (passes_gather<element, MOMENTS, true>(args)))                      \
  KERNEL(256, op##_apply_forward, (passes_forward<element, MOMENTS>(args)))                             \
  KERNEL(256, op##_apply_backward_vector, (passes_backward<element, MOMENTS, VECTOR>(args)))            \
  KERNEL(256, op##_apply_backward_scalar, (passes_backward<element, MOMENTS, 1>(args)))                 \
  KERNEL(256, op##_strided_forward, (strided_forward<element, MOMENTS>(args)))                          \
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
KERNEL(1024, moments_sum_parts, (sum_parts<element>(args)))
