/* Averages along lines, neighbouring outputs a thread.
 *
 * Forward, output o of a line is the mean of inputs o*stride - padding and the kernel - 1 after it.
 * Backward, output i (an element of dx) is the sum of dy/divisor over the windows that hold it. Most
 * outputs are plain: all their inputs exist and are divided by the kernel. The others, near the ends
 * of a line, are made one by one by edge_output, which knows all the rules.
 *
 * Stores are of 16 aligned bytes wherever a line's outputs start: a line is seen as slots, of which
 * only the first and the last may be partly another line's. Inputs are read through the L1 cache,
 * where neighbours meet, so each comes from memory once. */
#ifndef ONEPASS_POOL_CUDA_WINDOWS_CUH
#define ONEPASS_POOL_CUDA_WINDOWS_CUH

#include "cuda/elements.cuh"
#include "pool/cuda.h"
#include "pool/cuda_spans.cuh"

typedef onepass_pool_args pool_args;

enum { SLOTS = 4, WIDE_OUTPUTS = 8 };

/* ---- Where things are ------------------------------------------------------------------------ */

/* Where a line's inputs and outputs begin. */
struct line_place {
  const element *in;
  element *out;
  /* I: wide enough for all lines */
  template <class I>
  __device__ line_place(const pool_args &a, I line) {
    int64_t from = 0, to = 0;
    const auto add = [&](int axis, int64_t steps) {
      from += steps * a.lines.stride[axis][a.in_role];
      to += steps * a.lines.stride[axis][a.out_role];
    };
#pragma unroll 1 /* there is a division in it */
    for (int axis = a.lines.ndim - 1; axis > 0; axis--) {
      const I size = (I)a.lines.size[axis], whole = line / size;
      add(axis, line - whole * size);
      line = whole;
    }
    add(0, line);
    in = (const element *)a.in + from;
    out = (element *)a.out + to;
  }
};

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
    const element *from = in + w.begin * a.in_step;
    for (int64_t i = w.begin; i < w.end; i++, from += a.in_step) sum += widen(*from);
    return (sums)(sum / (double)w.divisor);
  }
  const int64_t at = output + a.padding;
  int64_t first = at < a.kernel ? 0 : (at - a.kernel) / a.stride + 1, last = at / a.stride;
  if (last > a.pooled - 1) last = a.pooled - 1;
#pragma unroll 1 /* there is a division in it */
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
    const line_place place(a, exists ? line : 0);
    in = place.in;
    out = place.out;
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

/* Those of 16 bytes of outputs that are the line's. */
__device__ inline void store_part(element *out, const pack<element, VEC> &made, int begin,
                                  int end) {
  union {
    pack<element, VEC> elements;
    unsigned words[5];
  } u;
  u.elements = made;
  u.words[4] = 0;
#pragma unroll 1
  for (int j = 0; j < VEC; j++) {
    if (j >= begin && j < end) out[j] = u.elements.v[0];
    shift_words_by_one(u.words);
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
#pragma unroll 1
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
  const line_place place(a, line);
  const int64_t offset = a.backward ? a.padding - a.kernel + 1 : -a.padding;
  const int64_t first = (int64_t)number * OUTPUTS - phase_of(place.out);
  /* Counted from the tile's first output on: those of the line. */
  const int begin = first < 0 ? (int)-first : 0;
  const int end = a.outputs - first < OUTPUTS ? (int)(a.outputs - first) : OUTPUTS;
  const int phase = phase_of(place.in + (first * S + offset));
  bring_tile(tile, place.in, a.inputs, first * S + offset - phase,
             ((end - 1) * S + K + phase) * (int)sizeof(element));
  element *out = place.out + (first + threadIdx.x * VEC);
#pragma unroll
  for (int k = 0; k < SLOTS; k++, out += BLOCK * VEC) {
    const int at = ((int)threadIdx.x + k * BLOCK) * VEC;
    if (at >= end) continue;
    sums v[SPAN], made[VEC];
    load_span<SPAN>(v, tile + at * S * (int)sizeof(element), phase * (int)sizeof(element));
#pragma unroll
    for (int j = 0; j < VEC; j++)
      made[j] = tree_of<false, K, 1>(v + j * S) * (sums)a.one_over_kernel;
    const pack<element, VEC> all = narrow_pack<sums, element, VEC>(made);
    if (at >= begin && at + VEC <= end) {
      store_streaming(out, all);
    } else {
      store_part(out, all, begin - at, end - at);
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
  for (int k = 0; k < VEC; k++) out[k] = 0;
#pragma unroll 1 /* divisions and a loop */
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
    append(out, sum);
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
  const unsigned line = blockIdx.x / (unsigned)a.tiles;
  const int64_t first = (int64_t)(blockIdx.x - line * (unsigned)a.tiles) * a.tile;
  const int count = (int)(a.outputs - first < a.tile ? a.outputs - first : a.tile);
  const line_place place(a, line);
  const int64_t offset = a.backward ? a.padding - a.kernel + 1 : first * a.stride - a.padding;
  const int64_t start = a.backward ? first + offset : offset;
  const int64_t step = a.backward ? 1 : a.stride;
  const int span = (int)((count - 1) * step + a.kernel);
  sums *now = (sums *)shared, *next = now + span;
  for (int i = threadIdx.x; i < span; i += BLOCK) {
    const int64_t at = start + i;
    sums v = 0;
    if (at >= 0 && at < a.inputs) v = widen(place.in[at]);
    now[i] = v;
  }
  if (a.backward) {
#pragma unroll 1
    for (int i = threadIdx.x; i < span; i += BLOCK) {
      const int64_t at = start + i;
      if (at >= 0 && at < a.inputs) now[i] /= (sums)window_of(a, at).divisor;
    }
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
#pragma unroll 1 /* there is a division in it */
  for (int output = threadIdx.x; output < count; output += BLOCK) {
    sums divisor = 1;
    if (!a.backward) divisor = (sums)window_of(a, first + output).divisor;
    place.out[first + output] = narrow_to<element>::from(mine[0] / divisor);
#pragma unroll
    for (int k = 1; k < WIDE_OUTPUTS; k++) mine[k - 1] = mine[k];
  }
}

/* Long windows that hardly overlap, and windows too long for shared memory: a warp an output. */
__device__ static void warp_windows(const pool_args &a) {
  const int64_t index = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / WARP;
  const int lane = threadIdx.x % WARP;
  if (index >= a.outputs * a.lines.count) return;
  const int64_t line = index / a.outputs, output = index - line * a.outputs;
  const line_place place(a, line);
  const window w = window_of(a, output);
  double sum = 0;
  for (int64_t start = w.begin + lane; start < w.end; start += 64 * WARP) {
    sums part = 0;
    for (int64_t i = start; i < w.end && i < start + 64 * WARP; i += WARP)
      part += widen(place.in[i]);
    sum += part;
  }
  for (int mask = WARP / 2; mask; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  if (lane == 0) place.out[output] = narrow_to<element>::from((sums)(sum / (double)w.divisor));
}

/* Any strides: a thread an output. */
__device__ static void strided_windows(const pool_args &a) {
  const int64_t index = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
  if (index >= a.outputs * a.lines.count) return;
  const int64_t line = index / a.outputs, output = index - line * a.outputs;
  const line_place place(a, line);
  place.out[output * a.out_step] = narrow_to<element>::from(edge_output(a, place.in, output));
}

#endif
