/* The pooling kernels for one element type, which the build names.
 *
 * Forward, output o of a line is the mean of inputs o*stride - padding and the kernel - 1 after it.
 * Backward, output i (an element of dx) is the sum of dy/divisor over the windows that hold it. Most
 * outputs are plain: all their inputs exist and are divided by the kernel. The others, near the ends
 * of a line, are made one by one by edge_output, which knows all the rules.
 *
 * Stores are of 16 aligned bytes wherever a line's outputs start: a line is seen as slots, of which
 * only the first and the last may be partly another line's. Inputs are read through the L1 cache,
 * where neighbours meet, so each comes from memory once. */
#include "cuda/elements.cuh"
#include "pool/cuda.h"

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
typedef onepass_pool_args pool_args;

enum { VEC = vector_of<element>::count, BLOCK = 256, WARP = 32, SLOTS = 4, WIDE_OUTPUTS = 8 };

#include "pool/cuda_bands.cuh"
#include "pool/cuda_boxes.cuh"
#include "pool/cuda_drops.cuh"
#include "pool/cuda_points.cuh"
#include "pool/cuda_returns.cuh"
#include "pool/cuda_slides.cuh"
#include "pool/cuda_spans.cuh"
#include "pool/cuda_teams.cuh"
#include "pool/cuda_walks.cuh"

/* ---- Where things are ------------------------------------------------------------------------ */

__device__ static int64_t line_offset(const onepass_walk &walk, int role, int64_t line) {
  if (walk.ndim <= 1) return line * walk.stride[role][0];
  int64_t offset = 0;
  for (int axis = walk.ndim - 1; axis > 0; axis--) {
    offset += line % walk.size[axis] * walk.stride[role][axis];
    line /= walk.size[axis];
  }
  return offset + line * walk.stride[role][0];
}

__device__ static const element *in_line(const pool_args &a, int64_t line) {
  return (const element *)a.in + line_offset(a.lines, a.in_role, line);
}

__device__ static element *out_line(const pool_args &a, int64_t line) {
  return (element *)a.out + line_offset(a.lines, a.out_role, line);
}

/* ---- One output by all the rules --------------------------------------------------------------- */

struct window {
  int64_t begin, end, divisor;
};

__device__ static window window_of(const pool_args &a, int64_t pooled) {
  window w;
  w.begin = pooled * a.stride - a.padding;
  w.end = w.begin + a.kernel;
  if (w.end > a.length + a.padding) w.end = a.length + a.padding;
  const int64_t with_padding = w.end - w.begin;
  if (w.begin < 0) w.begin = 0;
  if (w.end > a.length) w.end = a.length;
  w.divisor = a.count_include_pad ? with_padding : w.end - w.begin;
  return w;
}

/* In double: the window may be of any length. */
__device__ static sums edge_output(const pool_args &a, const element *in, int64_t output) {
  double sum = 0;
  if (!a.backward) {
    const window w = window_of(a, output);
    for (int64_t i = w.begin; i < w.end; i++) sum += widen(in[i * a.in_step]);
    return (sums)(sum / (double)w.divisor);
  }
  const int64_t at = output + a.padding;
  int64_t first = at < a.kernel ? 0 : (at - a.kernel) / a.stride + 1, last = at / a.stride;
  if (last > a.pooled - 1) last = a.pooled - 1;
  for (int64_t o = first; o <= last; o++)
    sum += (double)widen(in[o * a.in_step]) / (double)window_of(a, o).divisor;
  return (sums)sum;
}

/* ---- Slots of 16 bytes of a line's outputs ----------------------------------------------------- */

/* A block has `lines_of_block` short lines, `lanes` threads each, or one of the tiles of a long one,
 * SLOTS slots a thread. */
struct output_slot {
  const element *in;
  element *out;  /* the line's first output */
  int64_t first; /* output at the slot's first position; may be before the line's first */
  bool exists;
  __device__ output_slot(const pool_args &a) {
    int64_t line;
    unsigned slot;
    if (a.lanes == 0) {
      line = blockIdx.x / (unsigned)a.tiles;
      slot = blockIdx.x % (unsigned)a.tiles * (BLOCK * SLOTS) + threadIdx.x;
    } else {
      line = (int64_t)blockIdx.x * a.lines_of_block + threadIdx.x / (unsigned)a.lanes;
      slot = threadIdx.x % (unsigned)a.lanes;
    }
    exists = line < a.lines.count;
    in = in_line(a, exists ? line : 0);
    out = out_line(a, exists ? line : 0);
    first = (int64_t)slot * VEC - phase_of(out);
  }
  __device__ bool is_plain(const pool_args &a) const {
    return first >= a.plain_begin && first + VEC <= a.plain_end;
  }
};

/* Not in line: it is long, and rarely needed. */
__device__ static __noinline__ void store_edge(const pool_args &a, const element *in, element *out,
                                               int64_t first) {
#pragma unroll 1
  for (int j = 0; j < VEC; j++) {
    const int64_t output = first + j;
    if (output >= 0 && output < a.outputs)
      out[output] = narrow_to<element>::from(edge_output(a, in, output));
  }
}

__device__ static void store_plain(element *out, sums (&v)[VEC], sums factor) {
#pragma unroll
  for (int j = 0; j < VEC; j++) v[j] *= factor;
  store_streaming(out, narrow_pack<sums, element, VEC>(v));
}

/* ---- Kernels ------------------------------------------------------------------------------------ */

/* Inputs lo.. of a line, `bytes` of them from an aligned address on, to shared memory, without waiting;
 * what lies outside the line becomes zeros. */
__device__ static void bring_tile(char *tile, const element *in, int64_t inputs, int64_t lo,
                                  int bytes) {
  const int SIZE = sizeof(element);
  const char *from = (const char *)(in + lo);
  const int64_t line_begin = -lo * SIZE, line_end = (inputs - lo) * SIZE; /* counted from `from` */
  for (int at = threadIdx.x * 16; at < bytes; at += BLOCK * 16) {
    if (at >= line_begin) {
      const int64_t left = line_end - at;
      if (left > 0) {
        copy_async(tile + at, from + at, left < 16 ? (int)left : 16);
      } else {
        *(uint4 *)(tile + at) = make_uint4(0, 0, 0, 0);
      }
    } else { /* the line begins here, or later */
      for (int j = 0; j < 16; j += SIZE) {
        const bool inside = at + j >= line_begin && at + j < line_end;
        *(element *)(tile + at + j) =
            inside ? *(const element *)(from + at + j) : narrow_to<element>::from(0);
      }
    }
  }
  commit_copies();
  wait_for_all_but<0>();
  __syncthreads();
}

/* Small kernels that are known when this is compiled. A block brings the inputs of a tile of its line
 * to shared memory; a thread then makes SLOTS slots of outputs from registers. `offset` is from an
 * output's number, times the stride, to its first input's. Every window is divided by the kernel, so windows at the
 * ends of a line need nothing but zeros around it. */
template <int K, int S>
__device__ static void small_windows(const pool_args &a) {
  extern __shared__ __align__(16) char tile[];
  const int SPAN = (VEC - 1) * S + K, OUTPUTS = BLOCK * SLOTS * VEC;
  const unsigned line = blockIdx.x / (unsigned)a.tiles, number = blockIdx.x % (unsigned)a.tiles;
  const element *in = in_line(a, line);
  element *out = out_line(a, line);
  const int64_t offset = a.backward ? a.padding - a.kernel + 1 : -a.padding;
  const int64_t first = (int64_t)number * OUTPUTS - phase_of(out);
  const int64_t made_end = first + OUTPUTS < a.outputs ? first + OUTPUTS : a.outputs;
  const int phase = phase_of(in + (first * S + offset));
  const int64_t lo = first * S + offset - phase;
  bring_tile(tile, in, a.inputs, lo,
             (int)((made_end - 1) * S + offset + K - lo) * (int)sizeof(element));
#pragma unroll
  for (int k = 0; k < SLOTS; k++) {
    const int64_t here = first + (threadIdx.x + k * BLOCK) * VEC;
    if (here + VEC <= 0 || here >= a.outputs) continue;
    sums v[SPAN], made[VEC];
    load_span<SPAN>(v, tile + (int)(here * S + offset - lo) * (int)sizeof(element));
#pragma unroll
    for (int j = 0; j < VEC; j++) made[j] = tree_of<false, K, 1>(v + j * S);
    if (here >= 0 && here + VEC <= a.outputs) {
      store_plain(out + here, made, (sums)a.one_over_kernel);
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if (here + j >= 0 && here + j < a.outputs) {
          out[here + j] = narrow_to<element>::from(made[j] * (sums)a.one_over_kernel);
        }
      }
    }
  }
}

/* Any kernel and stride, a few terms an output. */
__device__ static void any_windows_of(const pool_args &a, const output_slot &slot) {
  if (!slot.is_plain(a)) {
    store_edge(a, slot.in, slot.out, slot.first);
    return;
  }
  sums out[VEC];
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    const int64_t output = slot.first + j;
    int64_t begin, end;
    if (a.backward) {
      const int64_t at = output + a.padding;
      begin = at < a.kernel ? 0 : (at - a.kernel) / a.stride + 1;
      end = at / a.stride + 1;
    } else {
      begin = output * a.stride - a.padding;
      end = begin + a.kernel;
    }
    sums sum = 0;
    for (int64_t i = begin; i < end; i++) sum += widen(slot.in[i]);
    out[j] = sum;
  }
  store_plain(slot.out + slot.first, out, (sums)a.one_over_kernel);
}

__device__ static void any_windows(const pool_args &a) {
  output_slot slot(a);
  if (!slot.exists) return;
#pragma unroll 1
  for (int k = 0; k < (a.lanes ? 1 : SLOTS); k++, slot.first += BLOCK * VEC)
    any_windows_of(a, slot);
}

/* Long windows that overlap much: sums of 1, 2, 4, ... neighbours are made in shared memory, each
 * from the one before, and every output takes those that make up its window. A block makes `tile`
 * outputs of one line; thread t has the outputs t, t + BLOCK, ... */
__device__ static void doubled_windows(const pool_args &a) {
  extern __shared__ __align__(16) char shared[];
  const int64_t tiles = (a.outputs + a.tile - 1) / a.tile;
  const int64_t line = blockIdx.x / tiles, first = blockIdx.x % tiles * a.tile;
  const int count = (int)(a.outputs - first < a.tile ? a.outputs - first : a.tile);
  const element *in = in_line(a, line);
  element *out = out_line(a, line);
  const int64_t offset = a.backward ? a.padding - a.kernel + 1 : first * a.stride - a.padding;
  const int64_t start = a.backward ? first + offset : offset;
  const int64_t step = a.backward ? 1 : a.stride;
  const int span = (int)((count - 1) * step + a.kernel);
  sums *now = (sums *)shared, *next = now + span;
  for (int i = threadIdx.x; i < span; i += BLOCK) {
    const int64_t at = start + i;
    sums v = 0;
    if (at >= 0 && at < a.inputs) {
      v = widen(in[at]);
      if (a.backward) v /= (sums)window_of(a, at).divisor;
    }
    now[i] = v;
  }
  sums mine[WIDE_OUTPUTS];
#pragma unroll
  for (int k = 0; k < WIDE_OUTPUTS; k++) mine[k] = 0;
  int taken = 0;
  for (int64_t width = 1; width <= a.kernel; width *= 2) {
    __syncthreads();
    if (a.kernel & width) {
#pragma unroll
      for (int k = 0; k < WIDE_OUTPUTS; k++) {
        const int output = threadIdx.x + k * BLOCK;
        if (output < count) mine[k] += now[output * step + taken];
      }
      taken += (int)width;
    }
    for (int i = threadIdx.x; i + width < span; i += BLOCK) next[i] = now[i] + now[i + width];
    sums *swap = now;
    now = next;
    next = swap;
  }
#pragma unroll
  for (int k = 0; k < WIDE_OUTPUTS; k++) {
    const int output = threadIdx.x + k * BLOCK;
    if (output >= count) continue;
    sums divisor = 1;
    if (!a.backward) divisor = (sums)window_of(a, first + output).divisor;
    out[first + output] = narrow_to<element>::from(mine[k] / divisor);
  }
}

/* Long windows that hardly overlap, and windows too long for shared memory: a warp an output. */
__device__ static void warp_windows(const pool_args &a) {
  const int64_t index = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / WARP;
  const int lane = threadIdx.x % WARP;
  if (index >= a.outputs * a.lines.count) return;
  const int64_t line = index / a.outputs, output = index % a.outputs;
  const element *in = in_line(a, line);
  const window w = window_of(a, output);
  double sum = 0;
  for (int64_t start = w.begin + lane; start < w.end; start += 64 * WARP) {
    sums part = 0;
    for (int64_t i = start; i < w.end && i < start + 64 * WARP; i += WARP) part += widen(in[i]);
    sum += part;
  }
  for (int mask = WARP / 2; mask; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (lane == 0)
    out_line(a, line)[output] = narrow_to<element>::from((sums)(sum / (double)w.divisor));
}

/* Any strides: a thread an output. */
__device__ static void strided_windows(const pool_args &a) {
  const int64_t index = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
  if (index >= a.outputs * a.lines.count) return;
  const int64_t line = index / a.outputs, output = index % a.outputs;
  out_line(a, line)[output * a.out_step] =
      narrow_to<element>::from(edge_output(a, in_line(a, line), output));
}

#define KERNEL(name, call)                               \
  extern "C" __global__ void __launch_bounds__(BLOCK, 1) \
      name(const __grid_constant__ pool_args args) {     \
    await_turn();                                        \
    let_next_begin(ONEPASS_FEW_BLOCKS);                  \
    call;                                                \
  }

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

#define POINT_KERNEL(name, call)                                                    \
  extern "C" __global__ void __launch_bounds__(BLOCK, sizeof(element) == 8 ? 2 : 4) \
      points_##name(const __grid_constant__ point_args args) {                      \
    await_turn();                                                                   \
    let_next_begin(ONEPASS_FEW_BLOCKS);                                             \
    call;                                                                           \
  }

POINT_KERNEL(any, (point_windows<0>(args)))
POINT_KERNEL(1, (point_windows<1>(args)))
POINT_KERNEL(2, (point_windows<2>(args)))
POINT_KERNEL(3, (point_windows<3>(args)))
POINT_KERNEL(4, (point_windows<4>(args)))
POINT_KERNEL(5, (point_windows<5>(args)))
POINT_KERNEL(6, (point_windows<6>(args)))
POINT_KERNEL(7, (point_windows<7>(args)))
POINT_KERNEL(8, (point_windows<8>(args)))
POINT_KERNEL(backward_any, (point_gradients<0>(args)))
POINT_KERNEL(backward_1, (point_gradients<1>(args)))
POINT_KERNEL(backward_2, (point_gradients<2>(args)))
POINT_KERNEL(backward_3, (point_gradients<3>(args)))
POINT_KERNEL(backward_4, (point_gradients<4>(args)))

/* ---- Boxes ------------------------------------------------------------------------------------- */

#define BOX_KERNEL(name, call)                           \
  extern "C" __global__ void __launch_bounds__(BLOCK, 1) \
      name(const __grid_constant__ box_args args) {      \
    await_turn();                                        \
    let_next_begin(ONEPASS_FEW_BLOCKS);                  \
    call;                                                \
  }

#define BOX_KERNELS(op, OP)                                                  \
  BOX_KERNEL(boxes_##op##_forward, (box_forward<int32_t, OP, 1>(args)))      \
  BOX_KERNEL(boxes_##op##_backward, (box_backward<int32_t, OP, 1>(args)))    \
  BOX_KERNEL(boxes_##op##_forward_wide, (box_forward<int64_t, OP, 1>(args))) \
  BOX_KERNEL(boxes_##op##_backward_wide, (box_backward<int64_t, OP, 1>(args)))

BOX_KERNELS(avg, BOX_AVG)
BOX_KERNELS(max, BOX_MAX)
BOX_KERNELS(lp, BOX_LP)
BOX_KERNEL(boxes_avg_forward_channels, (box_forward<int32_t, BOX_AVG, VEC>(args)))
BOX_KERNEL(boxes_avg_backward_channels, (box_backward<int32_t, BOX_AVG, VEC>(args)))
BOX_KERNEL(boxes_max_forward_channels, (box_forward<int32_t, BOX_MAX, VEC>(args)))
BOX_KERNEL(teams_avg, (team_windows<BOX_AVG>(args)))
BOX_KERNEL(teams_max, (team_windows<BOX_MAX>(args)))
/* Packs of halves need so many registers that four blocks would leave none for loads under way. */
#define CHANNEL_TEAM_KERNEL(name, OP)                                               \
  extern "C" __global__ void __launch_bounds__(BLOCK, sizeof(element) == 2 ? 3 : 4) \
      name(const __grid_constant__ box_args args) {                                 \
    await_turn();                                                                   \
    let_next_begin(ONEPASS_FEW_BLOCKS);                                             \
    team_channels<OP>(args);                                                        \
  }
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
extern "C" __global__ void __launch_bounds__(BLOCK, RETURNS)
    returns_avg(const __grid_constant__ box_args args) {
  await_turn();
  let_next_begin(ONEPASS_FEW_BLOCKS);
  return_gradients(args);
}
extern "C" __global__ void __launch_bounds__(BLOCK, DROPS)
    drops_max(const __grid_constant__ box_args args) {
  await_turn();
  let_next_begin(ONEPASS_FEW_BLOCKS);
  drop_gradients(args);
}
extern "C" __global__ void __launch_bounds__(CHANNEL_DROPS_BLOCK, 6)
    drops_max_channels(const __grid_constant__ box_args args) {
  await_turn();
  let_next_begin(ONEPASS_FEW_BLOCKS);
  drop_channel_gradients(args);
}

/* Threads that walk: the outputs of each, the window's rows and columns in a plane, its stride and dilation along a
 * row. With no columns it is any. */
#define WALK_KERNEL(name, OP, INDICES, WIDTH, ROWS, COLUMNS, STRIDE, DILATION) \
  extern "C" __global__ void __launch_bounds__(                                \
      WALK_BLOCK, walks_at_once(OP, INDICES, WIDTH, ROWS, COLUMNS, DILATION))  \
      name(const __grid_constant__ box_args args) {                            \
    await_turn();                                                              \
    let_next_begin(ONEPASS_FEW_BLOCKS);                                        \
    walk_windows<OP, INDICES, WIDTH, ROWS, COLUMNS, STRIDE, DILATION>(args);   \
  }
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
#define BAND_KERNEL(name, OP)                                  \
  extern "C" __global__ void __launch_bounds__(BANDS_BLOCK, 2) \
      name(const __grid_constant__ box_args args) {            \
    await_turn();                                              \
    let_next_begin(ONEPASS_FEW_BLOCKS);                        \
    band_windows<OP>(args);                                    \
  }
#define SLIDE(op, OP, K)                                                         \
  extern "C" __global__ void __launch_bounds__(SLIDES_BLOCK, slides_at_once(OP)) \
      slides_##op##_##K(const __grid_constant__ box_args args) {                 \
    await_turn();                                                                \
    let_next_begin(ONEPASS_FEW_BLOCKS);                                          \
    slide_windows<OP, K>(args);                                                  \
  }
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
