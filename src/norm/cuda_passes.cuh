/* Rows that blocks do not hold in registers, or too few to be worth keeping blocks in step: three
 * kernels. The first sums segments of rows, the second merges those sums, the third reads x (and dy)
 * again, from the last-level cache where it still is there, and writes the results. */
#ifndef ONEPASS_NORM_CUDA_PASSES_CUH
#define ONEPASS_NORM_CUDA_PASSES_CUH

#include "norm/cuda_slices.cuh"

enum { PASSES_BLOCK = 256, PASSES_MOST_ROWS = 16 /* whose weights are held */ };

/* Packs of a thread. */
__host__ __device__ constexpr int forward_packs(int vec) { return vec == 8 ? 2 : 4; }
__host__ __device__ constexpr int backward_packs(int vec) {
  return vec == 8 ? 1 : vec == 1 ? 4 : 2;
}

template <bool MOMENTS, bool BACKWARD>
struct pass_sums {
  static const int count = BACKWARD ? (MOMENTS ? 3 : 2) : (MOMENTS ? 2 : 1);
};

template <bool MOMENTS, bool BACKWARD, class T, class C, int N, int SUMS>
__device__ inline void add_all(plain_sums<C, SUMS> &mine, C (&x)[N], const C (&dy)[N],
                               const C (&w)[N], C mean, C rstd) {
  if constexpr (BACKWARD) {
#pragma unroll
    for (int j = 0; j < N; j++)
      add_product<MOMENTS>(mine, x[j], dy[j], MOMENTS ? w[j] : 1, mean, rstd);
  } else if constexpr (MOMENTS) {
    add_deviations<T>(mine, x, mean);
  } else {
    add_magnitudes(mine, x);
  }
}

/* Once more about the mean, which turned out to be far from the guess. */
template <class T, class C>
__device__ inline row_moments<C> gather_about(const T *x, const slice_view<T> &view, C about,
                                              int length, plain_sums<C, 2> *of_warps) {
  const int VEC = vector_of<T>::count;
  plain_sums<C, 2> mine;
  mine.clear();
  for (int slot = threadIdx.x; slot < view.slots(); slot += PASSES_BLOCK) {
    C v[VEC];
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      v[j] = view.has(slot * VEC + j) ? widen(x[slot * VEC + j - view.phase]) : (C)0;
    }
    if (view.is_whole(slot)) {
      add_deviations<T>(mine, v, about);
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        C one[1] = {v[j]};
        if (view.has(slot * VEC + j)) add_deviations<T>(mine, one, about);
      }
    }
  }
  __syncthreads(); /* the first sums have been read */
  return row_moments<C>(sum_block(mine, of_warps), about, 1 / (C)length);
}

/* A block sums one segment, `slice` elements, of one row; neighbouring blocks the same segment of all
 * rows. */
template <class T, bool MOMENTS, bool BACKWARD>
__device__ inline void passes_gather(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = pass_sums<MOMENTS, BACKWARD>::count;
  const int AHEAD = BACKWARD && VEC == 8 ? 2 : 4; /* slots that are loaded together */
  __shared__ C of_warps[PASSES_BLOCK / WARP * ONEPASS_NORM_MOST_SUMS];
  const int64_t row = blockIdx.x % a.rows.count, segment = blockIdx.x / a.rows.count,
                begin = segment * a.slice;
  const int64_t rest = a.elements.count - begin;
  const int length = (int)(rest < a.slice ? rest : a.slice);
  const T *x = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row) + begin;
  const T *dy = BACKWARD ? row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, row) + begin : NULL;
  const slice_view<T> view(x, length);
  C first = 0, mean = 0, rstd = 0;
  if (MOMENTS && !BACKWARD) first = guess_mean(x - begin, a);
  if (MOMENTS && BACKWARD) {
    mean = saved_mean(row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row), a);
    rstd = *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
  }
  plain_sums<C, SUMS> mine;
  mine.clear();
  for (int start = threadIdx.x; start < view.slots(); start += AHEAD * PASSES_BLOCK) {
    C v[AHEAD][VEC], g[AHEAD][VEC], w[AHEAD][VEC];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int slot = start + k * PASSES_BLOCK, at = slot * VEC - view.phase;
      if (slot >= view.slots()) continue;
      if (view.is_whole(slot)) {
        widen_pack(v[k], *(const pack<T, VEC> *)(x + at));
        if (BACKWARD) load_any(g[k], dy + at);
        if (BACKWARD && MOMENTS && a.at.weight)
          load_weights_at<T>(w[k], a.at.weight, begin + at, a);
      } else {
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          const bool here = view.has(slot * VEC + j);
          v[k][j] = here ? widen(x[at + j]) : (C)0;
          if (BACKWARD) g[k][j] = here ? widen(dy[at + j]) : (C)0;
          if (BACKWARD && MOMENTS && a.at.weight) {
            w[k][j] = here ? weight_at<T>(a.at.weight, begin + at + j, a) : (C)0;
          }
        }
      }
      if (BACKWARD && MOMENTS && !a.at.weight) {
#pragma unroll
        for (int j = 0; j < VEC; j++) w[k][j] = 1;
      }
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int slot = start + k * PASSES_BLOCK;
      if (slot >= view.slots()) continue;
      if (view.is_whole(slot)) {
        add_all<MOMENTS, BACKWARD, T>(mine, v[k], g[k], w[k], BACKWARD ? mean : first, rstd);
      } else {
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          C one[1] = {v[k][j]};
          const C one_dy[1] = {BACKWARD ? g[k][j] : 0},
                  one_w[1] = {BACKWARD && MOMENTS ? w[k][j] : 1};
          if (view.has(slot * VEC + j))
            add_all<MOMENTS, BACKWARD, T>(mine, one, one_dy, one_w, BACKWARD ? mean : first, rstd);
        }
      }
    }
  }
  double *to = a.sums + (row * a.segments + segment) * SUMS;
  const plain_sums<C, SUMS> all = sum_block(mine, (plain_sums<C, SUMS> *)of_warps);
  if constexpr (MOMENTS && !BACKWARD) {
    row_moments<C> found(all, first, 1 / (C)length, lossless<T>::SQUARES, is_centered(a));
    if (found.lossy)
      found = gather_about(x, view, finite_guess(first + found.more), length,
                           (plain_sums<C, 2> *)of_warps);
    if (threadIdx.x == 0) {
      to[0] =
          (double)(found.about - first) + (double)found.more; /* all segments have the same guess */
      to[1] = found.squares;
    }
  } else {
    if (threadIdx.x < SUMS) to[threadIdx.x] = all.v[threadIdx.x];
  }
}

/* The sums of x and a residual, which all start at the same place of their 16 bytes. They are written on the
 * way, if they are asked for. The guess is 0: the first elements may be written over. */
template <class T>
__device__ inline void passes_gather_sums(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count;
  __shared__ plain_sums<C, 2> of_warps[2][PASSES_BLOCK / WARP];
  const int64_t row = blockIdx.x % a.rows.count, segment = blockIdx.x / a.rows.count,
                begin = segment * a.slice;
  const int64_t rest = a.elements.count - begin;
  const int length = (int)(rest < a.slice ? rest : a.slice);
  const summed_row<T> from(a, row);
  const slice_view<T> view(from.x + begin, length);
  const auto gather = [&](C about, auto take_pack, auto take_one) {
    plain_sums<C, 2> mine;
    mine.clear();
    for (int slot = threadIdx.x; slot < view.slots(); slot += PASSES_BLOCK) {
      const int64_t at = begin + slot * VEC - view.phase;
      if (view.is_whole(slot)) {
        C v[VEC];
        widen_pack(v, take_pack(at));
        add_deviations<T>(mine, v, about);
        continue;
      }
      for (int j = 0; j < VEC; j++) {
        if (!view.has(slot * VEC + j)) continue;
        C one[1] = {(C)widen(take_one(at + j).v[0])};
        add_deviations<T>(mine, one, about);
      }
    }
    return mine;
  };
  C about = 0;
  plain_sums<C, 2> sums =
      sum_block(gather(
                    about, [&](int64_t at) { return from.template take<VEC>(at); },
                    [&](int64_t at) { return from.template take<1>(at); }),
                of_warps[0]);
  row_moments<C> found(sums, about, 1 / (C)length, lossless<T>::SQUARES, is_centered(a));
  if (found.lossy) { /* a thread reads what it has written itself */
    about = finite_guess(found.more);
    sums = sum_block(gather(
                         about, [&](int64_t at) { return from.template take_again<VEC>(at); },
                         [&](int64_t at) { return from.template take_again<1>(at); }),
                     of_warps[1]);
    found = row_moments<C>(sums, about, 1 / (C)length);
  }
  double *to = a.sums + (row * a.segments + segment) * 2;
  if (threadIdx.x == 0) {
    to[0] = (double)found.about + (double)found.more;
    to[1] = found.squares;
  }
}

/* The same backward where every row is aligned: packs are held as they are, so that more of them are under
 * way. */
template <class T, bool MOMENTS, bool FUSED = false>
__device__ inline void passes_gather_aligned(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = pass_sums<MOMENTS, true>::count,
            AHEAD = FUSED ? 2 : 4;
  __shared__ plain_sums<C, SUMS> of_warps[PASSES_BLOCK / WARP];
  const int64_t row = blockIdx.x % a.rows.count, segment = blockIdx.x / a.rows.count,
                begin = segment * a.slice;
  const int64_t rest = a.elements.count - begin;
  const int length = (int)(rest < a.slice ? rest : a.slice);
  const T *x = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row) + begin,
          *dy = row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, row) + begin;
  const C mean = MOMENTS ? saved_mean(row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row), a) : 0,
          rstd = MOMENTS ? *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) : 0;
  plain_sums<C, SUMS> mine;
  mine.clear();
  for (int start = threadIdx.x * VEC; start < length; start += AHEAD * PASSES_BLOCK * VEC) {
    pack<T, VEC> x_of[AHEAD], dy_of[AHEAD];
    C w[AHEAD][VEC];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int at = start + k * PASSES_BLOCK * VEC;
      if (at >= length) continue;
      x_of[k] = *(const pack<T, VEC> *)(x + at);
      dy_of[k] = *(const pack<T, VEC> *)(dy + at);
      if (MOMENTS && a.at.weight) load_aligned_weights<T>(w[k], a.at.weight, begin + at, a);
    }
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      if (start + k * PASSES_BLOCK * VEC >= length) continue;
      if (MOMENTS && !a.at.weight) {
#pragma unroll
        for (int j = 0; j < VEC; j++) w[k][j] = 1;
      }
      C v[VEC], g[VEC];
      widen_pack(v, x_of[k]);
      widen_pack(g, dy_of[k]);
      if constexpr (FUSED) {
        C b[VEC];
        if (a.at.bias)
          load_aligned_weights<T>(b, a.at.bias, begin + start + k * PASSES_BLOCK * VEC, a);
#pragma unroll
        for (int j = 0; j < VEC; j++)
          b[j] = (v[j] - mean) * rstd * w[k][j] + (a.at.bias ? b[j] : (C)0);
        multiply_by_slopes(a.activation, g, b);
      }
      add_products<MOMENTS>(mine, v, g, w[k], mean, rstd);
    }
  }
  const plain_sums<C, SUMS> all = sum_block(mine, of_warps);
  double *to = a.sums + (row * a.segments + segment) * SUMS;
  if (threadIdx.x < SUMS) to[threadIdx.x] = all.v[threadIdx.x];
}

__device__ inline double elements_of_segment(const norm_args &a, int64_t segment) {
  const int64_t rest = a.elements.count - segment * a.slice;
  return (double)(rest < a.slice ? rest : a.slice);
}

/* A warp merges the sums of a row's segments in place of those of its first segment. Backward, what
 * follows from them takes that place, in the type of sums. Magnitudes are merged by those who write. */
template <class T, bool MOMENTS, bool BACKWARD>
__device__ inline void passes_merge(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = pass_sums<MOMENTS, BACKWARD>::count;
  const int64_t row = (int64_t)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
  const int lane = threadIdx.x % WARP;
  if (row >= a.rows.count) return;
  double *sums = a.sums + row * a.segments * SUMS;
  if constexpr (MOMENTS && !BACKWARD) {
    plain_sums<double, 2> mine;
    plain_sums<double, 1> apart;
    mine.clear();
    apart.clear();
    for (int64_t i = lane; i < a.segments; i += WARP) {
      mine.v[0] += sums[i * SUMS] * elements_of_segment(a, i);
      mine.v[1] += sums[i * SUMS + 1];
    }
    mine = sum_lanes(mine, WARP);
    const double apart_from_guess = mine.v[0] * a.one_over_n;
    for (int64_t i = lane; i < a.segments; i += WARP) {
      const double distance = sums[i * SUMS] - apart_from_guess;
      apart.v[0] += distance * distance * elements_of_segment(a, i);
    }
    const double squares = mine.v[1] + sum_lanes(apart, WARP).v[0];
    const T *x = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row);
    const double guess = a.fused ? 0 : (double)guess_mean(x, a);
    const double mean = guess + apart_from_guess;
    __syncwarp();
    if (lane != 0) return;
    sums[0] = mean;
    sums[1] = squares;
    if (a.at.mean) *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = (C)mean;
    if (a.at.rstd) {
      *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) =
          scale_by_moments<C>(mean, squares, a).scale;
    }
  } else {
    plain_sums<double, SUMS> mine;
    mine.clear();
    for (int64_t i = lane; i < a.segments; i += WARP) {
#pragma unroll
      for (int k = 0; k < SUMS; k++) mine.v[k] += sums[i * SUMS + k];
    }
    mine = sum_lanes(mine, WARP);
    __syncwarp();
    C *found = (C *)sums;
    if (lane != 0) return;
    if constexpr (MOMENTS && BACKWARD) {
      const row_gradient<C> gradient =
          gradient_by_moments<C>(mine.v[0], mine.v[1], mine.v[2],
                                 saved_mean(row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row), a),
                                 *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row), a);
      found[0] = gradient.offset;
      found[1] = gradient.by_z;
      found[2] = gradient.constant;
    } else if constexpr (BACKWARD) {
      const row_gradient<C> gradient = gradient_by_sums<C>(mine.v[0], mine.v[1], a);
      found[0] = gradient.denominator;
      found[1] = gradient.slope;
    }
  }
}

/* What passes_merge has left of a row. */
template <bool MOMENTS, class C>
__device__ inline row_gradient<C> merged_gradient(const norm_args &a, int64_t row) {
  const C *found = (const C *)(a.sums + row * a.segments * pass_sums<MOMENTS, true>::count);
  row_gradient<C> gradient = {0};
  if constexpr (MOMENTS) {
    gradient.mean = saved_mean(row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row), a);
    gradient.rstd = *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
    gradient.offset = found[0];
    gradient.by_z = found[1];
    gradient.constant = found[2];
  } else {
    gradient.denominator = found[0];
    gradient.far = find_second_factor(gradient.scale, found[0]);
    gradient.slope = found[1];
  }
  return gradient;
}

/* Those who write ask for their part of x and the weights before they wait for what the kernels of this run ahead of them
 * leave: those have waited for everything that inputs may depend on. */
__device__ inline void await_gathered(const norm_args &a) {
  await_turn();
  let_next_begin((unsigned)a.few_blocks);
}

/* The elements of a slot that is partly another's. */
template <class T, bool MOMENTS, class C>
__device__ inline void write_edge(const norm_args &a, const row_scale<C> &scale,
                                  const slice_view<T> &view, int slot, const T *x, T *y,
                                  int64_t begin) {
  if (view.is_whole(slot) || (threadIdx.x == 1 && slot == 0)) return;
#pragma unroll 1
  for (int j = 0; j < slice_view<T>::VEC; j++) {
    const int at = slot * slice_view<T>::VEC + j - view.phase;
    if (!view.has(at + view.phase)) continue;
    C v = apply_scale<MOMENTS>(scale, (C)widen(x[at]));
    if (MOMENTS && a.at.weight) v *= weight_at<T>(a.at.weight, begin + at, a);
    if (MOMENTS && a.at.bias) v += weight_at<T>(a.at.bias, begin + at, a);
    y[at] = narrow_to<T>::from(v);
  }
}

/* Block b writes a few slots a thread, less one as rows may not be aligned, of one row.
 * What was read last comes first: it may still be in the cache. Neighbouring blocks have the same
 * columns of all rows, so weight and bias come from memory once. */
template <class T, bool MOMENTS>
__device__ inline void passes_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, SUMS = pass_sums<MOMENTS, false>::count,
            PACKS = forward_packs(VEC);
  const int width = (PASSES_BLOCK * PACKS - 1) * VEC;
  const int64_t block = (int64_t)gridDim.x - 1 - blockIdx.x;
  const int64_t row = block % a.rows.count, begin = block / a.rows.count * width;
  const int64_t rest = a.elements.count - begin;
  const T *x = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row) + begin;
  T *y = row_of<T>(a.at.y, a, ONEPASS_ROLE_Y, row) + begin;
  const slice_view<T> view(x, (int)(rest < width ? rest : width));
  const bool alike = phase_of(y) == view.phase;
  const double *sums = a.sums + row * a.segments * SUMS;
  /* The loads of all slots first, so that they are under way together. */
  pack<T, VEC> x_of[PACKS];
  C weight[PACKS][VEC], bias[PACKS][VEC];
#pragma unroll
  for (int k = 0; k < PACKS; k++) {
    const int slot = threadIdx.x + k * PASSES_BLOCK, at = slot * VEC - view.phase;
    if (!view.is_whole(slot)) continue;
    x_of[k] = load_pack<T, VEC>(x + at);
    if (MOMENTS && a.at.weight) load_weights_at<T>(weight[k], a.at.weight, begin + at, a);
    if (MOMENTS && a.at.bias) load_weights_at<T>(bias[k], a.at.bias, begin + at, a);
  }
  await_gathered(a);
  row_scale<C> scale;
  if constexpr (MOMENTS) {
    scale = scale_by_moments<C>(sums[0], sums[1], a);
  } else {
    __shared__ plain_sums<double, 1> of_warps[PASSES_BLOCK / WARP];
    plain_sums<double, 1> mine;
    mine.clear();
#pragma unroll 2
    for (int i = threadIdx.x; i < (int)a.segments; i += PASSES_BLOCK) mine.v[0] += sums[i];
    scale = scale_by_sum<C>(sum_block(mine, of_warps).v[0], a);
  }
#pragma unroll
  for (int k = 0; k < PACKS; k++) {
    const int slot = threadIdx.x + k * PASSES_BLOCK, at = slot * VEC - view.phase;
    if (!view.is_whole(slot)) continue;
    C v[VEC];
    widen_pack(v, x_of[k]);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      v[j] = apply_scale<MOMENTS>(scale, v[j]);
      if (MOMENTS && a.at.weight) v[j] *= weight[k][j];
      if (MOMENTS && a.at.bias) v[j] += bias[k][j];
    }
    const pack<T, VEC> out = narrow_pack<C, T, VEC>(v);
    if (alike) {
      store_pack(y + at, out);
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) y[at + j] = out.v[j];
    }
  }
  if (threadIdx.x < 2)
    write_edge<T, MOMENTS>(a, scale, view, threadIdx.x ? view.slots() - 1 : 0, x, y, begin);
}

/* The same for aligned rows that have weights: a block writes the same columns of `row_group` rows, whose weights
 * wait in registers. Read again for each row, even from the second-level cache, they would be most of what the
 * block reads. */
template <class T>
__device__ inline void passes_forward_rows(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, ROWS = 4; /* that are loaded together */
  __shared__ row_scale<C> scales[PASSES_MOST_ROWS];
  const int64_t block = (int64_t)gridDim.x - 1 - blockIdx.x;
  const int64_t groups = (a.rows.count + a.row_group - 1) / a.row_group;
  const int64_t group = block % groups,
                column = (block / groups * PASSES_BLOCK + threadIdx.x) * VEC;
  const int64_t first = group * a.row_group, rest = a.rows.count - first;
  const int count = (int)(rest < a.row_group ? rest : a.row_group);
  const bool exists = column < a.elements.count;
  const int64_t x_step = a.rows.stride[0][ONEPASS_ROLE_X],
                y_step = a.rows.stride[0][ONEPASS_ROLE_Y];
  const T *x = (const T *)a.at.x + first * x_step + column;
  T *y = (T *)a.at.y + first * y_step + column;
  C weight[VEC], bias[VEC];
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    weight[j] = 1;
    bias[j] = 0;
  }
  if (exists && a.at.weight) load_aligned_weights<T>(weight, a.at.weight, column, a);
  if (exists && a.at.bias) load_aligned_weights<T>(bias, a.at.bias, column, a);
  await_gathered(a);
  if (threadIdx.x < count) {
    const double *sums = a.sums + (first + threadIdx.x) * a.segments * 2;
    scales[threadIdx.x] = scale_by_moments<C>(sums[0], sums[1], a);
  }
  __syncthreads();
  if (!exists) return;
  for (int row = 0; row < count; row += ROWS, x += ROWS * x_step, y += ROWS * y_step) {
    pack<T, VEC> x_of[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
      if (row + k < count) x_of[k] = load_pack<T, VEC>(x + k * x_step);
    }
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
      if (row + k >= count) continue;
      const row_scale<C> scale = scales[row + k];
      C v[VEC];
      widen_pack(v, x_of[k]);
#pragma unroll
      for (int j = 0; j < VEC; j++) v[j] = apply_scale<true>(scale, v[j]) * weight[j] + bias[j];
      store_pack(y + k * y_step, narrow_pack<C, T, VEC>(v));
    }
  }
}

/* The same with a residual, an activation, or both. */
template <class T>
__device__ inline void passes_forward_fused(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int VEC = vector_of<T>::count, PACKS = forward_packs(VEC);
  const int width = (PASSES_BLOCK * PACKS - 1) * VEC;
  const int64_t block = (int64_t)gridDim.x - 1 - blockIdx.x;
  const int64_t row = block % a.rows.count, begin = block / a.rows.count * width;
  const int64_t rest = a.elements.count - begin;
  const summed_row<T> from(a, row);
  T *y = row_of<T>(a.at.y, a, ONEPASS_ROLE_Y, row);
  const slice_view<T> view(from.x + begin, (int)(rest < width ? rest : width));
  const double *sums = a.sums + row * a.segments * 2;
  pack<T, VEC> x_of[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; k++) {
    const int slot = threadIdx.x + k * PASSES_BLOCK;
    if (view.is_whole(slot))
      x_of[k] = from.template take_again<VEC>(begin + slot * VEC - view.phase);
  }
  const row_scale<C> scale = scale_by_moments<C>(sums[0], sums[1], a);
  const auto write = [&](const pack<T, VEC> &x, int k, int activation) {
    const int slot = threadIdx.x + k * PASSES_BLOCK;
    const int64_t at = begin + slot * VEC - view.phase;
    if (!view.is_whole(slot)) return;
    C v[VEC], weight[VEC], bias[VEC];
    widen_pack(v, x);
    if (a.at.weight) load_weights_at<T>(weight, a.at.weight, at, a);
    if (a.at.bias) load_weights_at<T>(bias, a.at.bias, at, a);
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      v[j] = apply_scale<true>(scale, v[j]);
      if (a.at.weight) v[j] *= weight[j];
      if (a.at.bias) v[j] += bias[j];
    }
    activate_all(activation, v);
    store_pack(y + at, narrow_pack<C, T, VEC>(v));
  };
  write_fused(x_of, a.activation, write);
  if (threadIdx.x >= 2) return;
  /* The elements of the first and the last slot, where they are partly another's. */
  const int slot = threadIdx.x ? view.slots() - 1 : 0;
  if (view.is_whole(slot) || (threadIdx.x == 1 && slot == 0)) return;
#pragma unroll 1
  for (int j = 0; j < VEC; j++) {
    const int64_t at = begin + slot * VEC + j - view.phase;
    if (!view.has(slot * VEC + j)) continue;
    C v = apply_scale<true>(scale, (C)widen(from.template take_again<1>(at).v[0]));
    if (a.at.weight) v *= weight_at<T>(a.at.weight, at, a);
    if (a.at.bias) v += weight_at<T>(a.at.bias, at, a);
    y[at] = narrow_to<T>::from(activate(a.activation, v));
  }
}

/* A block has the same columns of `row_group` rows, so that dweight and dbias are summed in
 * registers. VEC is 1 where rows are not all aligned. */
template <class T, bool MOMENTS, int VEC, bool FUSED = false>
__device__ inline void passes_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int PACKS = backward_packs(VEC);
  const int64_t width = (int64_t)PASSES_BLOCK * PACKS * VEC, n = a.elements.count;
  const int64_t pieces = (n + width - 1) / width, group = blockIdx.x / pieces;
  const int64_t begin = blockIdx.x % pieces * width + threadIdx.x * VEC, step = PASSES_BLOCK * VEC;
  const int64_t first_row = group * a.row_group;
  const int64_t last_row =
      first_row + a.row_group < a.rows.count ? first_row + a.row_group : a.rows.count;
  C weight[PACKS][VEC], dweight[PACKS][VEC], dbias[PACKS][VEC];
#pragma unroll
  for (int k = 0; k < PACKS; k++) {
#pragma unroll
    for (int j = 0; j < VEC; j++) weight[k][j] = 1, dweight[k][j] = dbias[k][j] = 0;
    if (MOMENTS && a.at.weight && begin + k * step < n) {
      load_aligned_weights<T>(weight[k], a.at.weight, begin + k * step, a);
    }
  }
  pack<T, VEC> next_x[PACKS], next_dy[PACKS]; /* on their way while a row is worked on */
  const auto ask = [&](int64_t row) {
    const T *x = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row),
            *dy = row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, row);
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
      if (begin + k * step >= n) continue;
      next_x[k] = load_pack<T, VEC>(x + begin + k * step);
      next_dy[k] = load_pack<T, VEC>(dy + begin + k * step);
    }
  };
  ask(last_row - 1);
  await_gathered(a);
  for (int64_t row = last_row - 1; row >= first_row; row--) {
    T *dx = row_of<T>(a.at.dx, a, ONEPASS_ROLE_DX, row);
    pack<T, VEC> at_x[PACKS], at_dy[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; k++) at_x[k] = next_x[k], at_dy[k] = next_dy[k];
    if (row > first_row) ask(row - 1);
    const row_gradient<C> gradient = merged_gradient<MOMENTS, C>(a, row);
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
      if (begin + k * step >= n) continue;
      C v[VEC], g[VEC], out[VEC];
      widen_pack(v, at_x[k]);
      widen_pack(g, at_dy[k]);
      C more[VEC]; /* fused alone */
      if constexpr (FUSED) {
        C before[VEC];
#pragma unroll
        for (int j = 0; j < VEC; j++) before[j] = more[j] = 0;
        if (a.at.bias) load_aligned_weights<T>(before, a.at.bias, begin + k * step, a);
        if (a.at.dsum)
          widen_pack(more, load_pack<T, VEC>(row_of<T>(a.at.dsum, a, ONEPASS_ROLE_DSUM, row) +
                                             begin + k * step));
#pragma unroll
        for (int j = 0; j < VEC; j++) before[j] += normalized(gradient, v[j]) * weight[k][j];
        multiply_by_slopes(a.activation, g, before);
      }
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if constexpr (MOMENTS) {
          const C z = normalized(gradient, v[j]);
          dweight[k][j] += g[j] * z;
          dbias[k][j] += g[j];
          out[j] = apply_moments_gradient(gradient, z, g[j] * weight[k][j]);
          if (FUSED) out[j] += more[j];
        } else {
          out[j] = apply_l1_gradient(gradient, v[j], g[j]);
        }
      }
      store_pack(dx + begin + k * step, narrow_pack<C, T, VEC>(out));
    }
  }
  if (!MOMENTS) return;
#pragma unroll
  for (int k = 0; k < PACKS; k++) {
    if (begin + k * step >= n) continue;
#pragma unroll
    for (int j = 0; j < VEC; j++) {
      const int64_t to = group * n + begin + k * step + j;
      if (a.dweight_parts) ((C *)a.dweight_parts)[to] = dweight[k][j];
      if (a.dbias_parts) ((C *)a.dbias_parts)[to] = dbias[k][j];
    }
  }
}

#endif
