/* The pooling kernels for one element type, which the build names. src/pool/launch_cuda*.c choose among them by
 * their names. */
#include "cuda/elements.cuh"

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

enum { VEC = vector_of<element>::count, BLOCK = 256, WARP = 32 };

#include "pool/cuda_bands.cuh"
#include "pool/cuda_boxes.cuh"
#include "pool/cuda_drops.cuh"
#include "pool/cuda_points.cuh"
#include "pool/cuda_returns.cuh"
#include "pool/cuda_slides.cuh"
#include "pool/cuda_teams.cuh"
#include "pool/cuda_walks.cuh"
#include "pool/cuda_windows.cuh"

/* ---- Lines --------------------------------------------------------------------------------------- */

/* Every kernel awaits its turn, and the next one may begin early if this one has few blocks. */
#define KERNEL_AT(threads, blocks, type, name, call)            \
  extern "C" __global__ void __launch_bounds__(threads, blocks) \
      name(const __grid_constant__ type args) {                 \
    await_turn();                                               \
    let_next_begin(ONEPASS_FEW_BLOCKS);                         \
    call;                                                       \
  }

/* Many lines are so little that it mostly takes the time to come from memory. */
#define LINE_KERNEL_AT(blocks, type, name, call)              \
  extern "C" __global__ void __launch_bounds__(BLOCK, blocks) \
      name(const __grid_constant__ type args) {               \
    ask_ahead(args.ahead);                                    \
    await_turn();                                             \
    let_next_begin(ONEPASS_FEW_BLOCKS);                       \
    call;                                                     \
  }

#define KERNEL(name, call) LINE_KERNEL_AT(1, pool_args, name, call)

#define SMALL_KERNEL(K, S) KERNEL(windows_##K##_##S, (small_windows<K, S>(args)))

SMALL_KERNEL(2, 1)
SMALL_KERNEL(3, 1)
SMALL_KERNEL(4, 1)
SMALL_KERNEL(5, 1)
SMALL_KERNEL(8, 1)
#ifdef ONEPASS_IS_HALF
SMALL_KERNEL(2, 2)
SMALL_KERNEL(3, 2)
SMALL_KERNEL(4, 2)
#endif
KERNEL(windows_any, (any_windows(args)))
KERNEL(windows_doubled, (doubled_windows(args)))
KERNEL(windows_warp, (warp_windows(args)))
KERNEL(windows_strided, (strided_windows(args)))

#define POINT_KERNEL(name, call) \
  LINE_KERNEL_AT(sizeof(element) == 8 ? 2 : 4, point_args, points_##name, call)

POINT_KERNEL(any, (point_windows<0>(args)))
POINT_KERNEL(1, (point_windows<1>(args)))
POINT_KERNEL(2, (point_windows<2>(args)))
POINT_KERNEL(3, (point_windows<3>(args)))
POINT_KERNEL(4, (point_windows<4>(args)))
POINT_KERNEL(5, (point_windows<5>(args)))
POINT_KERNEL(6, (point_windows<6>(args)))
POINT_KERNEL(7, (point_windows<7>(args)))
POINT_KERNEL(8, (point_windows<8>(args)))
POINT_KERNEL(scaled, (point_scales(args)))
POINT_KERNEL(backward_any, (point_gradients<0>(args)))
POINT_KERNEL(backward_1, (point_gradients<1>(args)))
POINT_KERNEL(backward_2, (point_gradients<2>(args)))
POINT_KERNEL(backward_3, (point_gradients<3>(args)))
POINT_KERNEL(backward_4, (point_gradients<4>(args)))

/* ---- Boxes ------------------------------------------------------------------------------------- */

#define BOX_KERNEL(name, call) KERNEL_AT(BLOCK, 1, box_args, name, call)

#define BOX_KERNELS(op, OP)                                             \
  BOX_KERNEL(boxes_##op##_forward, (box_forward<int32_t, OP, 1>(args))) \
  BOX_KERNEL(boxes_##op##_backward, (box_backward<int32_t, OP, 1>(args)))

BOX_KERNELS(avg, BOX_AVG)
BOX_KERNELS(max, BOX_MAX)
BOX_KERNELS(lp, BOX_LP)
BOX_KERNEL(boxes_forward_wide, (box_forward<int64_t, BOX_ANY, 1>(args)))
BOX_KERNEL(boxes_backward_wide, (box_backward<int64_t, BOX_ANY, 1>(args)))
BOX_KERNEL(boxes_avg_forward_channels, (box_forward<int32_t, BOX_AVG, VEC>(args)))
BOX_KERNEL(boxes_avg_backward_channels, (box_backward<int32_t, BOX_AVG, VEC>(args)))
BOX_KERNEL(boxes_max_forward_channels, (box_forward<int32_t, BOX_MAX, VEC>(args)))
BOX_KERNEL(teams_avg, (team_windows<BOX_AVG>(args)))
BOX_KERNEL(teams_max, (team_windows<BOX_MAX>(args)))
/* Packs of halves need so many registers that four blocks would leave none for loads under way. */
#define CHANNEL_TEAM_KERNEL(name, OP) \
  KERNEL_AT(BLOCK, sizeof(element) == 2 ? 3 : 4, box_args, name, (team_channels<OP>(args)))
CHANNEL_TEAM_KERNEL(teams_avg_channels, BOX_AVG)
CHANNEL_TEAM_KERNEL(teams_max_channels, BOX_MAX)

/* Blocks of a multiprocessor, by the registers that they need: no kernel may spill. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
enum { WALKS_OF_FLOATS = 6, STEPS = 12, SLIDES = 6, SLIDES_OF_HALVES = 5 };
#else
enum { WALKS_OF_FLOATS = 5, STEPS = 10, SLIDES = 5, SLIDES_OF_HALVES = 3 };
#endif
static constexpr int walks_at_once(int op, bool indices, int width, int rows, int columns,
                                   int dilation) {
  if (width == 1) {
    if (indices || sizeof(element) == 8) return columns ? 8 : 5;
    return op == BOX_MAX && !columns ? 6 : STEPS;
  }
  if (sizeof(element) == 2) return indices ? 3 : 4;
  if (indices) return 4;
  return rows > 1 && dilation > 1 ? 5 : rows > 1 ? WALKS_OF_FLOATS : 7;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
enum { RETURNS = sizeof(element) == 8 ? 3 : 4, DROPS = RETURNS };
#else
enum { RETURNS = 1, DROPS = 3 };
#endif
KERNEL_AT(BLOCK, RETURNS, box_args, returns_avg, (return_gradients(args)))
KERNEL_AT(BLOCK, DROPS, box_args, drops_max, (drop_gradients(args)))
KERNEL_AT(CHANNEL_DROPS_BLOCK, 6, box_args, drops_max_channels, (drop_channel_gradients(args)))

/* Threads that walk: the outputs of each, the window's rows and columns in a plane, its stride and dilation along a
 * row. With no columns it is any. */
#define WALK_KERNEL(name, OP, INDICES, WIDTH, ROWS, COLUMNS, STRIDE, DILATION)                \
  KERNEL_AT(WALK_BLOCK, walks_at_once(OP, INDICES, WIDTH, ROWS, COLUMNS, DILATION), box_args, \
            name, (walk_windows<OP, INDICES, WIDTH, ROWS, COLUMNS, STRIDE, DILATION>(args)))
#define WALK(op, OP, INDICES, ROWS, COLUMNS, STRIDE, DILATION)                                 \
  WALK_KERNEL(walks_##op##_##ROWS##_##COLUMNS##_##STRIDE##_##DILATION, OP, INDICES, VEC, ROWS, \
              COLUMNS, STRIDE, DILATION)
/* A single output, for short rows: those are seldom made of packs. */
#define STEP(op, OP, INDICES, ROWS, COLUMNS) \
  WALK_KERNEL(steps_##op##_##ROWS##_##COLUMNS, OP, INDICES, 1, ROWS, COLUMNS, 1, 1)
#define STEPS_OF(op, OP, INDICES) \
  STEP(op, OP, INDICES, 1, 2)     \
  STEP(op, OP, INDICES, 1, 3)     \
  STEP(op, OP, INDICES, 0, 0)
#define WALKS_OF(op, OP, INDICES)   \
  WALK(op, OP, INDICES, 1, 2, 2, 1) \
  WALK(op, OP, INDICES, 1, 3, 1, 1) \
  WALK(op, OP, INDICES, 1, 3, 2, 1) \
  WALK(op, OP, INDICES, 2, 2, 2, 1) \
  WALK(op, OP, INDICES, 3, 3, 1, 1) \
  WALK(op, OP, INDICES, 3, 3, 2, 1)

STEPS_OF(avg, BOX_AVG, false)
STEPS_OF(max, BOX_MAX, false)
STEPS_OF(max_indices, BOX_MAX, true)

/* Two doubles at a time would hardly be faster than one. */
#if !defined(ONEPASS_ELEMENT_f64)
/* By registers, as above. */
static constexpr int slides_at_once(int op) {
  return (sizeof(element) == 2 ? SLIDES_OF_HALVES : SLIDES) - (op == BOX_AVG);
}
#define BAND_KERNEL(name, OP) KERNEL_AT(BANDS_BLOCK, 2, box_args, name, (band_windows<OP>(args)))
#define SLIDE(op, OP, K)                                                   \
  KERNEL_AT(SLIDES_BLOCK, slides_at_once(OP), box_args, slides_##op##_##K, \
            (slide_windows<OP, K>(args)))
BAND_KERNEL(bands_avg, BOX_AVG)
BAND_KERNEL(bands_max, BOX_MAX)
WALKS_OF(avg, BOX_AVG, false)
WALKS_OF(max, BOX_MAX, false)
WALKS_OF(max_indices, BOX_MAX, true)
SLIDE(avg, BOX_AVG, 2)
SLIDE(avg, BOX_AVG, 3)
SLIDE(avg, BOX_AVG, 4)
SLIDE(max, BOX_MAX, 2)
SLIDE(max, BOX_MAX, 3)
SLIDE(max, BOX_MAX, 4)
SLIDE(max, BOX_MAX, 5)
WALK(max, BOX_MAX, false, 1, 8, 1, 3)
WALK(max, BOX_MAX, false, 3, 3, 2, 3)
#endif
