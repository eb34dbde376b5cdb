/* The normalization kernels for one element type, ELEMENT, which the build names. Every kernel's
 * name says what it is for; src/norm/cuda.c puts the same names together. */
#include "norm/cuda_blocks.cuh"
#include "norm/cuda_cells_lanes.cuh"
#include "norm/cuda_cells_merge.cuh"
#include "norm/cuda_cells_runs.cuh"
#include "norm/cuda_columns.cuh"
#include "norm/cuda_passes.cuh"
#include "norm/cuda_ring.cuh"
#include "norm/cuda_singles.cuh"
#include "norm/cuda_stream.cuh"
#include "norm/cuda_strided.cuh"
#include "norm/cuda_tide.cuh"
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

typedef sums_of<element>::type sums;

enum { VECTOR = vector_of<element>::count, COLUMNS_VECTOR = VECTOR < 4 ? VECTOR : 4 };

/* Of x and dy together more would leave too few rows in the shared memory of GPUs before 9.0. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { STREAM_FLOATS_BACKWARD = 2, PHASED_FLOATS_BLOCKS = 2 /* or it spills */ };
#else
enum { STREAM_FLOATS_BACKWARD = 4, PHASED_FLOATS_BLOCKS = 3 };
#endif

/* Blocks on a multiprocessor; from 10.0 on the compiler would spill for more of them. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
enum { WARPS_BLOCKS = 12, LATE_FULL_BLOCKS = 2 };
#else
enum { WARPS_BLOCKS = 16, LATE_FULL_BLOCKS = 3 };
#endif

/* Backward few rows may have a block of more threads than the 256 that many have: of kernels with single elements, up to
 * four a lane, and of the others. launch_warps.c knows them, too. */
enum { WARPS_MOST_THREADS = VECTOR == 2 ? 512 : 1024, WARPS_MORE_THREADS = WARPS_MOST_THREADS / 2 };

/* Packs of a thread: a narrow and a broad kernel for each direction of `ring`, and those of `stream`;
 * with weights of more bytes than the elements, fewer. launch_cuda.c knows them, too. */
template <class W, bool MOMENTS>
struct packs {
  static const bool MANY_BYTES = MOMENTS && sizeof(W) > sizeof(element);
  static const int RING_FORWARD_NARROW = MANY_BYTES ? 2 : 3,
                   RING_FORWARD_BROAD = MANY_BYTES ? 3 : 4;
  static const int RING_BACKWARD_NARROW = VECTOR == 4 ? 3 : 2,
                   RING_BACKWARD_BROAD = VECTOR == 4 ? 4 : 3;
  static const int STREAM_FORWARD = MANY_BYTES || VECTOR == 2 ? 2 : 4,
                   STREAM_BACKWARD = MANY_BYTES || VECTOR == 2 ? 1
                                     : VECTOR == 4             ? STREAM_FLOATS_BACKWARD
                                                               : 2;
};

/* Plain ones await their turn by themselves, or need not, as `stream` and `tide`, whose blocks all run at once and so not early. */
#define PLAIN_KERNEL(threads, blocks, name, call)               \
  extern "C" __global__ void __launch_bounds__(threads, blocks) \
      name(const __grid_constant__ norm_args args) {            \
    call;                                                       \
  }
/* Those that come before or after the ones that read x, or read what is spread over memory. */
#define PATIENT_KERNEL(threads, name, call) \
  PLAIN_KERNEL(threads, 2, name, await_turn(); let_next_begin((unsigned)args.few_blocks); call)
#define KERNEL_AT(threads, blocks, name, call)                                                    \
  PLAIN_KERNEL(threads, blocks, name, ask_ahead(args.ahead); touch_arguments(args); await_turn(); \
               let_next_begin((unsigned)args.few_blocks); call)

/* Two blocks on a multiprocessor at least: up to 128 registers a thread. */
#define KERNEL(threads, name, call) KERNEL_AT(threads, threads > 256 ? 1 : 2, name, call)

/* Single elements: a lane has at most 8 of a row. */
#define WARPS_SCALAR_KERNELS(name, MOMENTS)                                                 \
  KERNEL(256, name##_forward_scalar_1, (warps_forward<element, sums, MOMENTS, 1, 1>(args))) \
  KERNEL(256, name##_forward_scalar_2, (warps_forward<element, sums, MOMENTS, 1, 2>(args))) \
  KERNEL(256, name##_forward_scalar_4, (warps_forward<element, sums, MOMENTS, 1, 4>(args))) \
  KERNEL(256, name##_forward_scalar_8, (warps_forward<element, sums, MOMENTS, 1, 8>(args))) \
  KERNEL(WARPS_MOST_THREADS, name##_backward_scalar_1,                                      \
         (warps_backward<element, sums, MOMENTS, 1, 1, 2>(args)))                           \
  KERNEL(WARPS_MOST_THREADS, name##_backward_scalar_2,                                      \
         (warps_backward<element, sums, MOMENTS, 1, 2, 2>(args)))                           \
  KERNEL(WARPS_MOST_THREADS, name##_backward_scalar_4,                                      \
         (warps_backward<element, sums, MOMENTS, 1, 4, 1>(args)))                           \
  KERNEL_AT(WARPS_MORE_THREADS, 1, name##_backward_scalar_8,                                \
            (warps_backward<element, sums, MOMENTS, 1, 8, 1>(args)))

/* With two packs and two rows a lane, still 1024 threads on a multiprocessor. */
#define WARPS_KERNELS(name, suffix, W, STATISTIC)                                         \
  KERNEL_AT(WARPS_FEW_THREADS, 8, name##_forward_vector_1##suffix,                        \
            (warps_forward<element, W, STATISTIC, VECTOR, 1, WARPS_ROWS>(args)))          \
  KERNEL_AT(WARPS_FEW_THREADS, VECTOR > 2 && sizeof(W) * VECTOR == 16 ? WARPS_BLOCKS : 8, \
            name##_forward_vector_2##suffix,                                              \
            (warps_forward<element, W, STATISTIC, VECTOR, 2, WARPS_ROWS>(args)))          \
  KERNEL(WARPS_MORE_THREADS, name##_backward_vector_1##suffix,                            \
         (warps_backward<element, W, STATISTIC, VECTOR, 1, 2>(args)))                     \
  KERNEL(WARPS_MORE_THREADS, name##_backward_vector_2##suffix,                            \
         (warps_backward<element, W, STATISTIC, VECTOR, 2, 1>(args)))

/* Rows of which every thread has as many packs. */
#define FULL_WARPS_KERNEL(name, suffix, W, STATISTIC)                                     \
  KERNEL_AT(WARPS_FEW_THREADS, VECTOR > 2 && sizeof(W) * VECTOR == 16 ? WARPS_BLOCKS : 8, \
            name##_forward_vector_2_full##suffix,                                         \
            (warps_forward<element, W, STATISTIC, VECTOR, 2, WARPS_ROWS, false, true>(args)))
FULL_WARPS_KERNEL(abs_warps, , element, OF_MAGNITUDES)
#ifndef ONEPASS_ELEMENT_f64
FULL_WARPS_KERNEL(squares_warps, , element, OF_SQUARES)
#endif
FULL_WARPS_KERNEL(moments_warps, , element, OF_MOMENTS)
#ifdef ONEPASS_IS_HALF
FULL_WARPS_KERNEL(moments_warps, _f32, float, OF_MOMENTS)
KERNEL_AT(
    BLOCKS_MOST_THREADS, LATE_FULL_BLOCKS, moments_blocks_forward_late_full,
    (blocks_forward<element, element, OF_MOMENTS, BLOCKS_PACKS, false, false, false, true>(args)))
#endif

#define BLOCKS_KERNELS(op, suffix, W, MOMENTS)                                                     \
  KERNEL_AT(blocks_early_threads(VECTOR),                                                          \
            VECTOR == 2   ? 2                                                                      \
            : VECTOR == 8 ? 7                                                                      \
                          : 6,                                                                     \
            op##_blocks_forward##suffix,                                                           \
            (blocks_forward < element, W, MOMENTS, BLOCKS_PACKS,                                   \
             MOMENTS && sizeof(W) * VECTOR == 16 > (args)))                                        \
  KERNEL_AT(BLOCKS_MOST_THREADS,                                                                   \
            VECTOR == 2   ? 1                                                                      \
            : VECTOR == 4 ? 3                                                                      \
                          : 2,                                                                     \
            op##_blocks_forward_late##suffix,                                                      \
            (blocks_forward<element, W, MOMENTS, BLOCKS_PACKS, false>(args)))                      \
  KERNEL_AT(BLOCKS_MOST_THREADS, 1, op##_blocks_forward_long##suffix,                              \
            (blocks_forward<element, W, MOMENTS, BLOCKS_MANY_PACKS,                                \
                            (MOMENTS && VECTOR > 2 && sizeof(W) * VECTOR == 16)>(args)))           \
  KERNEL_AT(RING_FEW_THREADS, VECTOR == 2 ? 1 : 2, op##_ring_forward_narrow##suffix,               \
            (ring_forward<element, W, MOMENTS, packs<W, MOMENTS>::RING_FORWARD_NARROW>(args)))     \
  KERNEL_AT(RING_MOST_THREADS, 1, op##_ring_forward_broad##suffix,                                 \
            (ring_forward<element, W, MOMENTS, packs<W, MOMENTS>::RING_FORWARD_BROAD>(args)))      \
  KERNEL_AT(RING_MOST_THREADS, 1, op##_ring_backward_narrow##suffix,                               \
            (ring_backward<element, W, MOMENTS, packs<W, MOMENTS>::RING_BACKWARD_NARROW>(args)))   \
  KERNEL_AT(VECTOR == 4 ? RING_MOST_THREADS : RING_FEW_THREADS, 1,                                 \
            op##_ring_backward_broad##suffix,                                                      \
            (ring_backward<element, W, MOMENTS, packs<W, MOMENTS>::RING_BACKWARD_BROAD>(args)))    \
  PLAIN_KERNEL(STREAM_THREADS, 1, op##_stream_forward##suffix,                                     \
               (stream_rows<element, W, MOMENTS, false, packs<W, MOMENTS>::STREAM_FORWARD>(args))) \
  PLAIN_KERNEL(STREAM_THREADS, 1, op##_stream_backward##suffix,                                    \
               (stream_rows<element, W, MOMENTS, true, packs<W, MOMENTS>::STREAM_BACKWARD>(args)))

#define KERNELS_OF(op, MOMENTS)                                                                  \
  WARPS_SCALAR_KERNELS(op##_warps, MOMENTS)                                                      \
  WARPS_KERNELS(op##_warps, , element, MOMENTS)                                                  \
  BLOCKS_KERNELS(op, , element, MOMENTS)                                                         \
  KERNEL(256, op##_gather_forward, (passes_gather<element, MOMENTS, false>(args)))               \
  KERNEL(256, op##_gather_backward_scalar, (passes_gather<element, MOMENTS, true>(args)))        \
  KERNEL(256, op##_gather_backward_vector, (passes_gather_aligned<element, MOMENTS>(args)))      \
  PLAIN_KERNEL(256, VECTOR == 2 ? 2 : 3, op##_apply_forward,                                     \
               (passes_forward<element, MOMENTS>(args)))                                         \
  PLAIN_KERNEL(256, VECTOR == 2 ? 2 : 3, op##_apply_backward_vector,                             \
               (passes_backward<element, MOMENTS, VECTOR>(args)))                                \
  PLAIN_KERNEL(256, 2, op##_apply_backward_scalar, (passes_backward<element, MOMENTS, 1>(args))) \
  PATIENT_KERNEL(256, op##_strided_forward, (strided_forward<element, MOMENTS>(args)))           \
  PATIENT_KERNEL(256, op##_strided_backward, (strided_backward<element, MOMENTS>(args)))

/* Blocks on a multiprocessor: as many as there are registers for. Doubles take more of them, and so does what
 * the compiler makes for GPUs from 10.0 on. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define COLUMNS_BLOCKS(blocks) (VECTOR == 2 || blocks < 4 ? 2 : 3)
#else
#define COLUMNS_BLOCKS(blocks) (VECTOR == 2 ? 2 : blocks)
#endif
/* Without let_next_begin, for which they have no register to spare: there are many blocks of them anyway. */
#define COLUMNS_KERNELS(name, STATISTIC, FORWARD)                                              \
  PLAIN_KERNEL(COLUMNS_BLOCK, COLUMNS_BLOCKS(FORWARD), name##_columns_forward_vector,          \
               await_turn();                                                                   \
               (columns_forward<element, STATISTIC, COLUMNS_VECTOR>(args)))                    \
  PLAIN_KERNEL(COLUMNS_BLOCK, COLUMNS_BLOCKS(4), name##_columns_forward_scalar, await_turn();  \
               (columns_forward<element, STATISTIC, 1>(args)))                                 \
  PLAIN_KERNEL(COLUMNS_BLOCK, COLUMNS_BLOCKS(3), name##_columns_backward_vector, await_turn(); \
               (columns_backward<element, STATISTIC, COLUMNS_VECTOR>(args)))                   \
  PLAIN_KERNEL(COLUMNS_BLOCK, COLUMNS_BLOCKS(3), name##_columns_backward_scalar, await_turn(); \
               (columns_backward<element, STATISTIC, 1>(args)))

COLUMNS_KERNELS(abs, OF_MAGNITUDES, 4)
COLUMNS_KERNELS(squares, OF_SQUARES, 4)
COLUMNS_KERNELS(moments, OF_MOMENTS, 3)

KERNELS_OF(abs, false)
KERNEL(256, abs_singles_forward, (single_magnitudes<element, false>(args)))
KERNEL(256, abs_singles_backward, (single_magnitudes<element, true>(args)))
KERNEL_AT(WIDE_MOST_THREADS, 1, abs_wide_forward, (wide_forward<element, OF_MAGNITUDES>(args)))
PATIENT_KERNEL(256, abs_merge_backward, (passes_merge<element, false, true>(args)))

/* No mean to take off and no bias to add: less to do, and fewer registers. Doubles go the way of moments. */
#ifndef ONEPASS_ELEMENT_f64
WARPS_KERNELS(squares_warps, , element, OF_SQUARES)
KERNEL_AT(BLOCKS_MOST_THREADS, 2, squares_blocks_forward,
          (blocks_forward<element, element, OF_SQUARES, BLOCKS_PACKS, true>(args)))
KERNEL_AT(BLOCKS_MOST_THREADS, 1, squares_blocks_forward_long,
          (blocks_forward<element, element, OF_SQUARES, BLOCKS_MANY_PACKS, true>(args)))
KERNEL_AT(WIDE_MOST_THREADS, 1, squares_wide_forward, (wide_forward<element, OF_SQUARES>(args)))
KERNEL_AT(
    RING_MOST_THREADS, 1, squares_ring_backward_narrow,
    (ring_backward<element, element, OF_SQUARES, packs<element, true>::RING_BACKWARD_NARROW>(args)))
KERNEL_AT(RING_MOST_THREADS, 1, squares_ring_backward_broad,
          (ring_backward<element, element, OF_SQUARES, 4>(args)))
#endif

KERNELS_OF(moments, true)
KERNEL(256, moments_singles_forward, (single_moments_forward<element>(args)))
KERNEL(SINGLES_MOST_THREADS, moments_singles_backward, (single_moments_backward<element>(args)))
PLAIN_KERNEL(256, VECTOR == 2 ? 3 : 4, moments_apply_forward_rows,
             (passes_forward_rows<element>(args)))
PATIENT_KERNEL(256, moments_merge_forward, (passes_merge<element, true, false>(args)))
PATIENT_KERNEL(256, moments_merge_backward, (passes_merge<element, true, true>(args)))
PATIENT_KERNEL(256, moments_offsets, (strided_offsets<element>(args)))
PATIENT_KERNEL(256, moments_strided_sums, (strided_sums<element>(args)))
PATIENT_KERNEL(SUM_PARTS_BLOCK, moments_sum_parts, (sum_parts<element>(args)))

#ifdef ONEPASS_ELEMENT_f32
/* Fewer packs and more threads, for which halves have too much to do. */
KERNEL_AT(BLOCKS_MOST_THREADS, 4, abs_blocks_forward_thin,
          (blocks_forward<element, element, OF_MAGNITUDES, BLOCKS_FEW_PACKS, false>(args)))
KERNEL_AT(BLOCKS_MOST_THREADS, 4, moments_blocks_forward_thin,
          (blocks_forward<element, element, OF_MOMENTS, BLOCKS_FEW_PACKS, false>(args)))
#endif

/* With a residual before the norm or an activation behind it: fewer kinds, as more is moved and done. Doubles are read
 * twice. */
#define FUSED_KERNELS(op, suffix, W, STATISTIC)                                       \
  KERNEL(256, op##_warps_forward_vector_4_fused##suffix,                              \
         (warps_forward<element, W, STATISTIC, VECTOR, 4, 1, true>(args)))            \
  KERNEL_AT(BLOCKS_MOST_THREADS, 2, op##_blocks_forward_fused##suffix,                \
            (blocks_forward<element, W, STATISTIC, BLOCKS_PACKS, false, true>(args))) \
  KERNEL_AT(BLOCKS_MOST_THREADS, 1, op##_blocks_forward_long_fused##suffix,           \
            (blocks_forward<element, W, STATISTIC, BLOCKS_MANY_PACKS, false, true>(args)))

#ifndef ONEPASS_ELEMENT_f64
FUSED_KERNELS(moments, , element, OF_MOMENTS)
FUSED_KERNELS(squares, , element, OF_SQUARES)
KERNEL(256, moments_warps_forward_scalar_8_fused,
       (warps_forward<element, sums, true, 1, 8, 1, true>(args)))
#endif
KERNEL(256, moments_gather_forward_fused, (passes_gather_sums<element>(args)))
PATIENT_KERNEL(256, moments_apply_forward_fused, (passes_forward_fused<element>(args)))
KERNEL(256, moments_gather_backward_fused, (passes_gather_aligned<element, true, true>(args)))
PLAIN_KERNEL(256, 2, moments_apply_backward_fused,
             (passes_backward<element, true, VECTOR, true>(args)))
PATIENT_KERNEL(256, moments_strided_forward_fused, (strided_forward<element, true, true>(args)))
PATIENT_KERNEL(256, moments_strided_backward_fused, (strided_backward<element, true, true>(args)))
PATIENT_KERNEL(256, moments_strided_sums_fused, (strided_sums<element, true>(args)))
#ifdef ONEPASS_IS_HALF
FUSED_KERNELS(moments, _f32, float, OF_MOMENTS)
WARPS_KERNELS(moments_warps, _f32, float, true)
BLOCKS_KERNELS(moments, _f32, float, true)
#endif

/* Rows that start anywhere. Of doubles a ring moves them as fast. */
#ifndef ONEPASS_ELEMENT_f64
#define PHASED_BLOCKS(W) (VECTOR == 4 ? PHASED_FLOATS_BLOCKS : sizeof(W) == 2 ? 5 : 4)
#define PHASED_KERNEL(name, W, STATISTIC)                      \
  PLAIN_KERNEL(phased_threads(VECTOR), PHASED_BLOCKS(W), name, \
               (phased_forward<element, W, STATISTIC>(args)))
PHASED_KERNEL(abs_phased_forward, element, OF_MAGNITUDES)
PHASED_KERNEL(squares_phased_forward, element, OF_SQUARES)
PHASED_KERNEL(moments_phased_forward, element, OF_MOMENTS)
PATIENT_KERNEL(SHIFT_BLOCK, moments_shift_weights, (make_shifted_copies<element, element>(args)))
#endif
#ifdef ONEPASS_IS_HALF
PHASED_KERNEL(moments_phased_forward_f32, float, OF_MOMENTS)
PATIENT_KERNEL(SHIFT_BLOCK, moments_shift_weights_f32, (make_shifted_copies<element, float>(args)))
#endif

/* Weights by channel, where rows are groups of channels that are read once. */
#ifndef ONEPASS_ELEMENT_f64
KERNEL_AT(BLOCKS_MOST_THREADS, 2, moments_blocks_forward_channels,
          (blocks_forward<element, element, true, BLOCKS_PACKS, false, false, true>(args)))
KERNEL_AT(BLOCKS_MOST_THREADS, 1, moments_blocks_forward_long_channels,
          (blocks_forward<element, element, true, BLOCKS_MANY_PACKS, false, false, true>(args)))
PLAIN_KERNEL(TIDE_THREADS, 1, moments_tide_forward_channels, (tide_rows<element, false>(args)))
PLAIN_KERNEL(TIDE_THREADS, 1, moments_tide_forward, (tide_rows<element, true>(args)))
#endif

#define CELLS_KERNEL(blocks, name, call)                              \
  extern "C" __global__ void __launch_bounds__(CELLS_BLOCK, blocks)   \
      cells_##name(const __grid_constant__ onepass_cells_args args) { \
    await_turn();                                                     \
    let_next_begin(ONEPASS_FEW_BLOCKS_OF_PARTS);                      \
    call;                                                             \
  }

/* In two kinds: with residual, activation and dsum, or without. */
#define CELLS_KERNELS(direction, suffix, BACKWARD, FUSED)                                         \
  CELLS_KERNEL(2, runs_gather_##direction##suffix, (runs_gather<element, BACKWARD, FUSED>(args))) \
  CELLS_KERNEL(2, runs_apply_##direction##suffix,                                                 \
               (runs_apply < element, BACKWARD, FUSED, BACKWARD ? 2 : 4 > (args)))                \
  CELLS_KERNEL(2, lanes_gather_##direction##suffix,                                               \
               (lanes_gather<element, VECTOR, BACKWARD, FUSED>(args)))                            \
  CELLS_KERNEL(2, lanes_apply_##direction##suffix,                                                \
               (lanes_apply<element, VECTOR, BACKWARD, FUSED>(args)))

/* Those for everything that is not aligned, or not dense at all. */
#define CELLS_SLOW_KERNELS(direction, BACKWARD)                                                \
  CELLS_KERNEL(2, scalar_gather_##direction, (lanes_gather<element, 1, BACKWARD, true>(args))) \
  CELLS_KERNEL(2, scalar_apply_##direction, (lanes_apply<element, 1, BACKWARD, true>(args)))   \
  CELLS_KERNEL(2, strided_gather_##direction, (any_gather<element, BACKWARD>(args)))           \
  CELLS_KERNEL(2, strided_apply_##direction, (any_apply<element, BACKWARD>(args)))             \
  CELLS_KERNEL(2, groups_merge_##direction, (groups_merge_##direction<element>(args)))         \
  CELLS_KERNEL(2, channels_merge_##direction, (channels_merge_##direction<element>(args)))     \
  CELLS_KERNEL(2, sum_batches_##direction, (sum_batches<element, BACKWARD>(args)))

CELLS_KERNELS(forward, , false, false)
CELLS_KERNELS(forward, _fused, false, true)
CELLS_KERNELS(backward, , true, false)
CELLS_KERNELS(backward, _fused, true, true)
CELLS_SLOW_KERNELS(forward, false)
CELLS_SLOW_KERNELS(backward, true)
