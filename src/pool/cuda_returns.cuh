/* Averages, backward, where planes of dx are dense: a thread makes 16 bytes of one. It goes through the outputs whose windows
 * hold any of these elements, which its neighbours need, too, and find in the L1 cache; each is looked at once for
 * all elements. Nothing is added up by several threads, so results are always the same. */
#ifndef ONEPASS_POOL_CUDA_RETURNS_CUH
#define ONEPASS_POOL_CUDA_RETURNS_CUH

#include "pool/cuda_boxes.cuh"

/* Outputs that are asked for before the first of them is looked at. */
enum { RETURNS_AT_ONCE = 4 };

struct returned_pack {
  const box_args &a;
  const element *dy; /* of the plane */
  int first;         /* of the pack, in the plane */
  int at[3];         /* where the part of it is that lies in one row ... */
  int done, here;    /* ... elements before that, and in it */
  sums made[VEC];

  __device__ returned_pack(const box_args &args, int64_t plane, int position)
      : a(args), first(position), done(0) {
    dy = (const element *)a.tensor[ONEPASS_BOX_DY] + plane * a.outer_step[ONEPASS_BOX_DY];
    int rest = first;
#pragma unroll
    for (int k = 2; k > 0; k--) {
      const int whole = divide_by(rest, a.axis[k].by_count, 0);
      at[k] = rest - whole * (int)a.axis[k].count;
      rest = whole;
    }
    at[0] = rest;
#pragma unroll
    for (int j = 0; j < VEC; j++) made[j] = 0;
  }

  __device__ int offset(int tensor, int deep, int high) const {
    return deep * (int)a.axis[0].step[tensor] + high * (int)a.axis[1].step[tensor];
  }
  /* Outputs begin..end of a row. */
  __device__ void take_shares(int deep, int high, int begin, int end) {
    const element *row = dy + offset(ONEPASS_BOX_DY, deep, high);
    const int move = (int)a.axis[2].step[ONEPASS_BOX_DY];
    sums above = 1; /* the divisor of the first two axes */
    if (!a.uniform) above = window_along(a, 0, deep).divisor * window_along(a, 1, high).divisor;
    for (int wide = begin; wide < end; wide += RETURNS_AT_ONCE) {
      sums value[RETURNS_AT_ONCE];
#pragma unroll
      for (int u = 0; u < RETURNS_AT_ONCE; u++) {
        value[u] = 0;
        if (wide + u < end) value[u] = widen(row[(wide + u) * move]);
      }
#pragma unroll
      for (int u = 0; u < RETURNS_AT_ONCE; u++) {
        if (wide + u >= end) continue;
        /* Of the window, counted from the pack's first element. */
        int from = (wide + u) * (int)a.axis[2].stride - (int)a.axis[2].padding;
        int to = from + (int)a.axis[2].extent;
        if (a.adaptive || !a.uniform) {
          const box_side<int> window = window_along(a, 2, wide + u);
          value[u] /= box_divisor(a, above, 1, window.divisor);
          from = window.begin;
          to = window.end;
        }
        from += done - at[2];
        to += done - at[2];
        from = from < done ? done : from;
        to = to > done + here ? done + here : to;
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          if (j >= from && j < to) made[j] += value[u];
        }
      }
    }
  }

  /* The part that lies in the row of its first element. */
  __device__ void take_part() {
    const int left = (int)a.axis[2].length - at[2];
    here = VEC - done < left ? VEC - done : left;
    int begin[3], end[3], unused;
    outputs_along(a, 0, at[0], begin[0], end[0]);
    outputs_along(a, 1, at[1], begin[1], end[1]);
    outputs_along(a, 2, at[2], begin[2], unused);
    outputs_along(a, 2, at[2] + here - 1, unused, end[2]);
    for (int deep = begin[0]; deep < end[0]; deep++) {
      for (int high = begin[1]; high < end[1]; high++) {
        take_shares(deep, high, begin[2], end[2]);
      }
    }
  }
  __device__ void next_row() {
    done += here;
    at[2] = 0;
    if (++at[1] == (int)a.axis[1].length) {
      at[1] = 0;
      at[0]++;
    }
  }
};

__device__ static void return_gradients(const box_args &a) {
  const int index = (int)(blockIdx.x * BLOCK + threadIdx.x);
  const int plane = divide_by(index, a.by_packs, 0);
  if (plane >= a.outer) return;
  const int elements = (int)(a.axis[0].length * a.axis[1].length * a.axis[2].length);
  returned_pack pack(a, plane, (index - plane * a.packs) * VEC);
  const int left = elements - pack.first, count = left < VEC ? left : VEC;
  for (;;) {
    pack.take_part();
    pack.next_row();
    if (pack.done >= count) break;
  }
  if (a.uniform) {
#pragma unroll
    for (int j = 0; j < VEC; j++) pack.made[j] *= (sums)a.factor;
  }
  element *dx =
      (element *)a.tensor[ONEPASS_BOX_DX] + plane * a.outer_step[ONEPASS_BOX_DX] + pack.first;
  if (a.walk.even) {
    store_pack(dx, narrow_pack<sums, element, VEC>(pack.made));
  } else {
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      if (j < count) dx[j] = narrow_to<element>::from(pack.made[j]);
    }
  }
}

#endif
