/* Windows over up to three axes, for any strides and options: a thread makes one output or, of
 * channels that lie side by side, 16 bytes of them. Forward it goes over its window, backward over the
 * outputs whose windows hold its element: nothing is added up by several threads, so results are always
 * the same. Inputs are read through the L1 cache.
 *
 * I, the type that positions are counted in, is 32 bits wide wherever a plane allows it: divisions of
 * 64 bits would take longer than all the rest. */
#ifndef ONEPASS_POOL_CUDA_BOXES_CUH
#define ONEPASS_POOL_CUDA_BOXES_CUH

#include "cuda/elements.cuh"
#include "pool/cuda.h"

typedef onepass_box_args box_args;

/* BOX_ANY: the operator that the argument names. */
enum { BOX_AVG = ONEPASS_BOX_AVG, BOX_MAX = ONEPASS_BOX_MAX, BOX_LP = ONEPASS_BOX_LP, BOX_ANY };
template <int OP>
__device__ inline bool is_op(const box_args &a, int op) {
  return OP == BOX_ANY ? a.op == op : OP == op;
}

/* ---- Positions --------------------------------------------------------------------------------- */

/* Not in line: it is long, and rarely needed. */
__device__ static __noinline__ int64_t divide_long(int64_t n, int64_t by) { return n / by; }
__device__ inline int64_t divide_by(int64_t n, onepass_divider, int64_t by) {
  return divide_long(n, by);
}
__device__ inline int32_t divide_by(int32_t n, onepass_divider d, int64_t) {
  return (int32_t)divide((unsigned)n, d);
}

/* What a thread makes. */
template <class I>
struct box_place {
  int64_t outer, inner;
  I at[3];
  bool exists;
  template <int PACK>
  __device__ static box_place find(const box_args &a) {
    box_place p;
    I rest, group;
    if constexpr (sizeof(I) == 4) {
      group = divide_by((I)blockIdx.x, a.by_group_blocks, 0);
      rest =
          (I)((blockIdx.x - (unsigned)group * (unsigned)a.group_blocks) * blockDim.x + threadIdx.x);
    } else {
      group = 0;
      rest = (I)blockIdx.x * blockDim.x + threadIdx.x;
    }
    I inner = 0;
    const I inners = (I)(a.inner / PACK);
    if (a.channels_last) inner = next(rest, a.by_inner, inners);
#pragma unroll
    for (int k = 2; k >= 0; k--) {
      p.at[k] = 0;
      if (a.axis[k].count > 1) p.at[k] = next(rest, a.axis[k].by_count, (I)a.axis[k].count);
    }
    if (!a.channels_last && inners > 1) inner = next(rest, a.by_inner, inners);
    p.outer = (int64_t)group * a.group + rest;
    p.inner = (int64_t)inner * PACK;
    p.exists = rest < a.group && p.outer < a.outer;
    return p;
  }
  /* Where the thread's plane of a tensor begins. */
  template <class T>
  __device__ T *plane(const box_args &a, int tensor) const {
    return (T *)a.tensor[tensor] + outer * a.outer_step[tensor] + inner * a.inner_step[tensor];
  }
  __device__ I offset(const box_args &a, int tensor) const {
    return at[0] * (I)a.axis[0].step[tensor] + at[1] * (I)a.axis[1].step[tensor] +
           at[2] * (I)a.axis[2].step[tensor];
  }

 private:
  __device__ static I next(I &rest, onepass_divider divider, I count) {
    const I whole = divide_by(rest, divider, count), left = rest - whole * count;
    rest = whole;
    return left;
  }
};

/* As onepass_window. */
template <class I>
struct box_side {
  I begin, end, step;
  sums divisor;
};

template <class I>
__device__ inline box_side<I> window_along(const box_args &a, int axis, I output) {
  const onepass_box_axis &x = a.axis[axis];
  const I length = (I)x.length, padding = (I)x.padding, dilation = (I)x.dilation;
  box_side<I> w;
  if (a.adaptive) {
    const I pooled = (I)x.pooled;
    w.begin = divide_by(output * length, x.by_pooled, pooled);
    w.end = divide_by((output + 1) * length + pooled - 1, x.by_pooled, pooled);
    w.step = 1;
    w.divisor = (sums)(w.end - w.begin);
    return w;
  }
  w.begin = output * (I)x.stride - padding;
  w.end = w.begin + (I)x.extent;
  if (w.end > length + padding) w.end = length + padding;
  const I with_padding = w.end - w.begin;
  /* The first of the window's elements that exists. */
  if (w.begin < 0) w.begin += divide_by(dilation - 1 - w.begin, x.by_dilation, dilation) * dilation;
  if (w.end > length) w.end = length;
  w.step = dilation;
  w.divisor = (sums)(a.count_include_pad ? with_padding : w.end - w.begin);
  return w;
}

/* Whether the window of an output along an axis holds an element that there is. */
template <class I>
__device__ inline bool holds_along(const box_args &a, int axis, I output, I element) {
  const onepass_box_axis &x = a.axis[axis];
  const I dilation = (I)x.dilation;
  const I distance = element * (I)x.element_scale - output * (I)x.output_scale + (I)x.ahead;
  return distance >= 0 && distance < (I)x.reach &&
         (dilation == 1 || divide_by(distance, x.by_dilation, dilation) * dilation == distance);
}

/* The outputs whose windows may hold an element. */
template <class I>
__device__ inline void outputs_along(const box_args &a, int axis, I element, I &begin, I &end) {
  const onepass_box_axis &x = a.axis[axis];
  const I pooled = (I)x.pooled, scale = (I)x.output_scale;
  const I at = element * (I)x.element_scale + (I)x.ahead, before = at - (I)x.reach;
  begin = before < 0 ? 0 : divide_by(before, x.by_output_scale, scale) + 1;
  end = divide_by(at, x.by_output_scale, scale) + 1;
  if (end > pooled) end = pooled;
}

/* The divisor of an average whose windows along the axes have these. */
__device__ inline sums box_divisor(const box_args &a, sums deep, sums high, sums wide) {
  return a.divisor != 0 ? (sums)a.divisor : deep * high * wide;
}

/* ---- Values ------------------------------------------------------------------------------------ */

template <int PACK>
__device__ inline void load_values(sums (&to)[PACK], const element *from) {
  if constexpr (PACK == 1) {
    to[0] = widen(*from);
  } else {
    widen_pack(to, load_pack<element, PACK>(from));
  }
}

template <int PACK>
__device__ inline void store_values(element *to, const sums (&from)[PACK]) {
  if constexpr (PACK == 1) {
    *to = narrow_to<element>::from(from[0]);
  } else {
    store_pack(to, narrow_pack<sums, element, PACK>(from));
  }
}

/* A half is a square root, which -inf has none of though pow gives it one. */
__device__ inline double power(double x, double exponent) {
  if (exponent == 0.5) return sqrt(x);
  if (exponent == -0.5) return 1 / sqrt(x);
  return pow(x, exponent);
}

/* Exponents that are usual go without pow, which nothing is as slow as. In double, as powers go far
 * beyond what they are powers of. */
__device__ inline double power_of(double x, double p) {
  return p == 2 ? x * x : p == 1 ? x : power(x, p);
}

/* Terms of a sum: some in the type of sums, and those in double where there are many. */
struct long_sum {
  sums part = 0;
  double total = 0;
  int terms = 0;
  __device__ void add(const box_args &a, sums value) {
    part += value;
    if (a.many_terms && ++terms == 32) {
      total += (double)part;
      part = 0;
      terms = 0;
    }
  }
  __device__ void add_exactly(double value) { total += value; }
  __device__ sums value(const box_args &a) const {
    return a.many_terms ? (sums)(total + (double)part) : part;
  }
};

/* ---- Forward ----------------------------------------------------------------------------------- */

template <class I, int OP, int PACK>
__device__ static void box_forward(const box_args &a) {
  const box_place<I> place = box_place<I>::template find<PACK>(a);
  if (!place.exists) return;
  const element *x = place.template plane<const element>(a, ONEPASS_BOX_X);
  box_side<I> w[3];
#pragma unroll
  for (int k = 0; k < 3; k++) w[k] = window_along(a, k, place.at[k]);
  const I high = (I)a.axis[1].length, wide = (I)a.axis[2].length;
  const bool max = is_op<OP>(a, BOX_MAX), lp = is_op<OP>(a, BOX_LP);
  long_sum sum[PACK];
  sums largest[PACK], v[PACK];
  I index[PACK];
#pragma unroll
  for (int j = 0; j < PACK; j++) {
    largest[j] = -(sums)INFINITY;
    index[j] = (w[0].begin * high + w[1].begin) * wide + w[2].begin;
  }
  /* take: a channel's value, and its index */
  const auto go_through = [&](auto take) {
    for (I d = w[0].begin; d < w[0].end; d += w[0].step) {
      for (I h = w[1].begin; h < w[1].end; h += w[1].step) {
        const element *row =
            x + (d * (I)a.axis[0].step[ONEPASS_BOX_X] + h * (I)a.axis[1].step[ONEPASS_BOX_X]);
        for (I i = w[2].begin; i < w[2].end; i += w[2].step) {
          load_values(v, row + i * (I)a.axis[2].step[ONEPASS_BOX_X]);
#pragma unroll
          for (int j = 0; j < PACK; j++) take(j, (d * high + h) * wide + i);
        }
      }
    }
  };
  if (OP == BOX_AVG && !a.many_terms) { /* what the compiler asks for many of at a time */
    go_through([&](int j, I) { sum[j].part += v[j]; });
  } else {
    go_through([&](int j, I at) {
      if (lp) {
        sum[j].add_exactly(power_of((double)v[j], a.p));
      } else if (!max) {
        sum[j].add(a, v[j]);
      } else if (v[j] > largest[j] || v[j] != v[j]) {
        /* The first of several largest, but the last of several NaNs. */
        largest[j] = v[j];
        index[j] = at;
      }
    });
  }
  element *y = place.template plane<element>(a, ONEPASS_BOX_Y) + place.offset(a, ONEPASS_BOX_Y);
  if (max) {
    store_values(y, largest);
    if (a.tensor[ONEPASS_BOX_INDICES]) {
      int64_t *indices = place.template plane<int64_t>(a, ONEPASS_BOX_INDICES) +
                         place.offset(a, ONEPASS_BOX_INDICES);
#pragma unroll
      for (int j = 0; j < PACK; j++) indices[j * a.inner_step[ONEPASS_BOX_INDICES]] = index[j];
    }
    return;
  }
  const sums divisor = box_divisor(a, w[0].divisor, w[1].divisor, w[2].divisor);
#pragma unroll
  for (int j = 0; j < PACK; j++) {
    if (lp) {
      const double sum_of_all = sum[j].total / (double)divisor * a.elements;
      v[j] = (sums)(a.p == 2   ? sqrt(sum_of_all)
                    : a.p == 1 ? sum_of_all
                               : power(sum_of_all, 1 / a.p));
    } else {
      v[j] = sum[j].value(a) / divisor;
    }
  }
  store_values(y, v);
}

/* ---- Backward ---------------------------------------------------------------------------------- */

/* What an output of lp_pool adds to its elements, without what their own values have to do with it;
 * share_of_root in reference.c. */
__device__ inline double share_of_root(const box_args &a, double y, double dy, double divisor) {
  if (y == 0) return 0;
  const double slope = dy * (a.p == 2 ? 0.5 / y : a.p == 1 ? 1 : power(y, 1 - a.p) / a.p);
  return (y != y ? 0 * slope : slope) * a.elements / divisor;
}

template <class I, int OP, int PACK>
__device__ static void box_backward(const box_args &a) {
  const box_place<I> place = box_place<I>::template find<PACK>(a);
  if (!place.exists) return;
  const element *dy = place.template plane<const element>(a, ONEPASS_BOX_DY);
  const bool max = is_op<OP>(a, BOX_MAX), lp = is_op<OP>(a, BOX_LP);
  const element *y = lp ? place.template plane<const element>(a, ONEPASS_BOX_Y) : nullptr;
  const int64_t *indices =
      max ? place.template plane<const int64_t>(a, ONEPASS_BOX_INDICES) : nullptr;
  const int64_t own =
      ((int64_t)place.at[0] * a.axis[1].length + place.at[1]) * a.axis[2].length + place.at[2];
  const bool dilated = a.axis[0].dilation > 1 || a.axis[1].dilation > 1 || a.axis[2].dilation > 1;
  I begin[3], end[3];
#pragma unroll
  for (int k = 0; k < 3; k++) outputs_along(a, k, place.at[k], begin[k], end[k]);
  long_sum sum[PACK];
  sums v[PACK], roots[PACK];
  const auto along = [&](int tensor, I d, I h, I i) {
    return d * (I)a.axis[0].step[tensor] + h * (I)a.axis[1].step[tensor] +
           i * (I)a.axis[2].step[tensor];
  };
  for (I d = begin[0]; d < end[0]; d++) {
    for (I h = begin[1]; h < end[1]; h++) {
      if (max) {
        for (I i = begin[2]; i < end[2]; i++) {
#pragma unroll
          for (int j = 0; j < PACK; j++) {
            if (indices[along(ONEPASS_BOX_INDICES, d, h, i) +
                        j * a.inner_step[ONEPASS_BOX_INDICES]] != own) {
              continue;
            }
            /* Without dilation every one of these windows holds the element. */
            if (!dilated ||
                (holds_along(a, 0, d, place.at[0]) && holds_along(a, 1, h, place.at[1]) &&
                 holds_along(a, 2, i, place.at[2]))) {
              sum[j].add(
                  a, widen(dy[along(ONEPASS_BOX_DY, d, h, i) + j * a.inner_step[ONEPASS_BOX_DY]]));
            }
          }
        }
      } else {
        sums above = 1; /* the divisor of the first two axes */
        if (!a.uniform) above = window_along(a, 0, d).divisor * window_along(a, 1, h).divisor;
        for (I i = begin[2]; i < end[2]; i++) {
          sums divisor = 1;
          if (!a.uniform) {
            divisor = box_divisor(a, above, 1, window_along(a, 2, i).divisor);
          }
          load_values(v, dy + along(ONEPASS_BOX_DY, d, h, i));
          if (lp) load_values(roots, y + along(ONEPASS_BOX_Y, d, h, i));
#pragma unroll
          for (int j = 0; j < PACK; j++) {
            if (lp) {
              sum[j].add_exactly(share_of_root(a, roots[j], v[j], divisor));
            } else {
              sum[j].add(a, a.uniform ? v[j] : v[j] / divisor);
            }
          }
        }
      }
    }
  }
  if (lp) {
    load_values(roots, place.template plane<const element>(a, ONEPASS_BOX_X) +
                           place.offset(a, ONEPASS_BOX_X));
  }
#pragma unroll
  for (int j = 0; j < PACK; j++) {
    if (lp) {
      const double x = (double)roots[j],
                   shares = a.uniform ? sum[j].total * a.factor : sum[j].total;
      v[j] = (sums)(shares * (a.p == 2 ? 2 * x : a.p == 1 ? 1 : a.p * power(x, a.p - 1)));
    } else {
      v[j] = sum[j].value(a);
      if (!max && a.uniform) v[j] *= (sums)a.factor;
    }
  }
  store_values(place.template plane<element>(a, ONEPASS_BOX_DX) + place.offset(a, ONEPASS_BOX_DX),
               v);
}

#endif
