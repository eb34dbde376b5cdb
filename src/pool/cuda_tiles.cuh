/* Windows over dense rows, forward: a block walks along the first axis with a tile of outputs of the
 * other two. The rows it needs come to shared memory, each once, while it works on those before. Windows
 * are taken apart: first across rows, 16 bytes a thread, into one row for each row of outputs, then
 * along these.
 *
 * Every row begins at the same place of its 16 bytes, so elements of a column lie below each other. */
#ifndef ONEPASS_POOL_CUDA_TILES_CUH
#define ONEPASS_POOL_CUDA_TILES_CUH

#include "pool/cuda_boxes.cuh"

/* Outputs along an axis and the inputs that exist for them. */
struct tile_span {
  int first, count, begin, end;
  __device__ tile_span(const onepass_box_axis &axis, int from, int most) {
    const int left = (int)axis.pooled - from, stride = (int)axis.stride;
    first = from;
    count = left < most ? left : most;
    begin = from * stride - (int)axis.padding;
    end = begin + (count - 1) * stride + (int)axis.extent;
    if (begin < 0) begin = 0;
    if (end > (int)axis.length) end = (int)axis.length;
  }
};

/* A maximum so far and where it is, or, without INDICES, a sum or a maximum. */
template <int OP, bool INDICES>
struct tile_value {
  sums value;
  int index;
  __device__ void start(int first) {
    value = OP == BOX_MAX ? -(sums)INFINITY : (sums)0;
    index = first;
  }
  /* Of values that come in the order of their indices. */
  __device__ void take(sums v, int at) {
    if constexpr (INDICES) {
      if (v > value || v != v) {
        value = v;
        index = at;
      }
    } else {
      value = OP == BOX_MAX ? larger_of(value, v) : value + v;
    }
  }
  /* In any order: the first of several largest, the last of several NaNs. */
  __device__ void take_any(sums v, int at) {
    if constexpr (INDICES) {
      const bool is_nan = v != v, was_nan = value != value;
      const bool better = is_nan ? !was_nan || at > index : v > value || (v == value && at < index);
      if (better) {
        value = v;
        index = at;
      }
    } else {
      take(v, at);
    }
  }
};

template <int OP, bool INDICES>
struct tile_walk {
  const box_args &a;
  const onepass_box_tiles &t;
  const tile_span high, wide;
  const char *from; /* the 16 bytes in which the tile's first row begins */
  int phase;        /* where in them, in elements */
  int row_bytes;
  char *raw;        /* the ring */
  sums *columns;    /* of rows that are one of outputs each: sums or maxima across rows */
  int *column_rows; /* where those maxima are */
  int column_pitch;
  int plane, slot; /* a plane in the ring, and its place there */

  __device__ tile_walk(const box_args &args, char *shared, int64_t outer, int high_tile,
                       int wide_tile)
      : a(args),
        t(args.tiles),
        high(args.axis[1], high_tile * args.tiles.high, args.tiles.high),
        wide(args.axis[2], wide_tile * args.tiles.wide, args.tiles.wide) {
    const element *first = (const element *)a.tensor[ONEPASS_BOX_X] +
                           outer * a.outer_step[ONEPASS_BOX_X] +
                           high.begin * a.axis[1].step[ONEPASS_BOX_X] + wide.begin;
    phase = phase_of(first);
    from = (const char *)(first - phase);
    row_bytes = (phase + wide.end - wide.begin) * (int)sizeof(element);
    raw = shared;
    column_pitch = t.pitch / (int)sizeof(element);
    columns = (sums *)(shared + t.ring * t.rows * t.pitch);
    column_rows = (int *)(columns + t.step * t.high * column_pitch);
  }

  __device__ int slot_of(int which) const {
    const int at = slot + which - plane;
    return at < t.ring ? at : at - t.ring;
  }

  /* Planes begin..end on their way. */
  __device__ void bring(int begin, int end) const {
    const int lanes = t.row_lanes, lane = (int)threadIdx.x & (lanes - 1);
    const int64_t plane_step = a.axis[0].step[ONEPASS_BOX_X] * (int64_t)sizeof(element),
                  row_step = a.axis[1].step[ONEPASS_BOX_X] * (int64_t)sizeof(element);
    for (int r = (int)threadIdx.x / lanes; r < (end - begin) * t.rows; r += BLOCK / lanes) {
      const int which = divide_by(r, t.by_rows, 0), row = r - which * t.rows;
      if (row >= high.end - high.begin) continue;
      char *to = raw + (slot_of(begin + which) * t.rows + row) * t.pitch;
      const char *line = from + (begin + which) * plane_step + row * row_step;
      for (int at = lane * 16; at < row_bytes; at += lanes * 16) {
        const int left = row_bytes - at;
        copy_async_alone(to + at, line + at, left < 16 ? left : 16);
      }
    }
  }

  /* The window along an axis, without what only divisors need. */
  __device__ static box_side<int> window_of(const onepass_box_axis &axis, int output) {
    box_side<int> w;
    w.step = (int)axis.dilation;
    w.begin = output * (int)axis.stride - (int)axis.padding;
    w.end = w.begin + (int)axis.extent;
    if (w.end > (int)axis.length) w.end = (int)axis.length;
    if (w.begin < 0) {
      w.begin = w.step == 1 ? 0 : w.begin % w.step;
      if (w.begin < 0) w.begin += w.step;
    }
    return w;
  }

  __device__ int index_of(const box_side<int> &deep, const box_side<int> &rows) const {
    return deep.begin * (int)t.index_step[0] + rows.begin * (int)t.index_step[1];
  }

  __device__ static void take(tile_value<OP, INDICES> (&made)[VEC], const char *from, int index) {
    sums v[VEC];
    widen_pack(v, *(const pack<element, VEC> *)from);
#pragma unroll
    for (int j = 0; j < VEC; j++) made[j].take(v[j], index);
  }

  /* Across the rows of the windows of outputs first..first+count of the first axis. */
  __device__ void reduce_rows(int first, int count) const {
    const int lanes = t.column_lanes, lane = (int)threadIdx.x & (lanes - 1);
    const int plane_bytes = t.rows * t.pitch, ring_bytes = t.ring * plane_bytes;
    for (int r = (int)threadIdx.x / lanes; r < count * t.high; r += BLOCK / lanes) {
      const int which = divide_by(r, t.by_high, 0), h = r - which * t.high;
      if (h >= high.count) continue;
      const box_side<int> deep = window_of(a.axis[0], first + which),
                          rows = window_of(a.axis[1], high.first + h);
      const int start = slot_of(deep.begin) * plane_bytes + (rows.begin - high.begin) * t.pitch;
      const int plane_move = deep.step * plane_bytes, row_move = rows.step * t.pitch;
      const int plane_index = deep.step * (int)t.index_step[0],
                row_index = rows.step * (int)t.index_step[1];
      for (int at = lane * 16; at < row_bytes; at += lanes * 16) {
        tile_value<OP, INDICES> made[VEC];
        int index = index_of(deep, rows), place = start + at;
#pragma unroll
        for (int j = 0; j < VEC; j++) made[j].start(index);
        if (t.rows == 1 && rows.begin < rows.end) {
#pragma unroll 4
          for (int d = deep.begin; d < deep.end; d += deep.step) {
            take(made, raw + place, index);
            place += plane_move;
            if (place >= ring_bytes) place -= ring_bytes;
            index += plane_index;
          }
        } else {
          for (int d = deep.begin; d < deep.end; d += deep.step) {
            int row = place, here = index;
#pragma unroll 4
            for (int i = rows.begin; i < rows.end; i += rows.step) {
              take(made, raw + row, here);
              row += row_move;
              here += row_index;
            }
            place += plane_move;
            if (place >= ring_bytes) place -= ring_bytes;
            index += plane_index;
          }
        }
        store_columns(made, r * column_pitch + at / (int)sizeof(element));
      }
    }
  }

  /* In pieces of 16 bytes, or else lanes would meet in the same banks. */
  __device__ void store_columns(const tile_value<OP, INDICES> (&made)[VEC], int to) const {
    enum { SUMS = 16 / sizeof(sums), INTS = VEC < 4 ? VEC : 4 };
#pragma unroll
    for (int j = 0; j < VEC; j += SUMS) {
      pack<sums, SUMS> piece;
#pragma unroll
      for (int i = 0; i < SUMS; i++) piece.v[i] = made[j + i].value;
      *(pack<sums, SUMS> *)(columns + to + j) = piece;
    }
    if constexpr (INDICES) {
#pragma unroll
      for (int j = 0; j < VEC; j += INTS) {
        pack<int, INTS> piece;
#pragma unroll
        for (int i = 0; i < INTS; i++) piece.v[i] = made[j + i].index;
        *(pack<int, INTS> *)(column_rows + to + j) = piece;
      }
    }
  }

  template <int COUNT, class T>
  __device__ void take_few(tile_value<OP, INDICES> &made, const T *row, const int *row_indices,
                           int first_index, int begin) const {
    sums v[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; k++) v[k] = (sums)widen(row[begin + k]);
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
      const int i = begin + k;
      made.take_any(v[k], !INDICES ? 0 : row_indices ? row_indices[i] + i : first_index + i);
    }
  }

  /* Along one row: the output whose window is w. */
  template <class T>
  __device__ tile_value<OP, INDICES> make(const box_side<int> &w, const T *row,
                                          const int *row_indices, int first_index) const {
    tile_value<OP, INDICES> made;
    made.start(first_index + w.begin);
    const int width = w.end - w.begin;
    if (w.step == 1 && width <= 4) {
      if (width == 2) {
        take_few<2>(made, row, row_indices, first_index, w.begin);
      } else if (width == 3) {
        take_few<3>(made, row, row_indices, first_index, w.begin);
      } else if (width == 4) {
        take_few<4>(made, row, row_indices, first_index, w.begin);
      } else if (width == 1) {
        take_few<1>(made, row, row_indices, first_index, w.begin);
      }
      return made;
    }
#pragma unroll 4
    for (int i = w.begin; i < w.end; i += w.step) {
      const int index = !INDICES ? 0 : row_indices ? row_indices[i] + i : first_index + i;
      made.take_any((sums)widen(row[i]), index);
    }
    return made;
  }

  __device__ void divide(sums &sum, int d, int h, int w) const {
    if (OP != BOX_AVG) return;
    if (a.uniform) {
      sum *= (sums)a.factor;
    } else {
      sum /= box_divisor(a, window_along(a, 0, d).divisor, window_along(a, 1, h).divisor,
                         window_along(a, 2, w).divisor);
    }
  }

  /* Windows of K rows, one row apart: a thread goes down a column and keeps what it has made along the
   * last K rows. */
  template <int K>
  __device__ void make_down(int64_t outer, int first, int count) const {
    const int lanes = t.made_lanes, lane = (int)threadIdx.x & (lanes - 1);
    const int each = (count * lanes + BLOCK - 1) / BLOCK, begin = (int)threadIdx.x / lanes * each;
    const int end = begin + each < count ? begin + each : count;
    const int shift = phase - wide.begin, length = (int)a.axis[0].length;
    if (begin >= end) return;
    for (int c = lane; c < wide.count; c += lanes) {
      const box_side<int> w = window_of(a.axis[2], wide.first + c);
      const bool is_square = w.step == 1 && w.end - w.begin == K;
      element *y = (element *)a.tensor[ONEPASS_BOX_Y] + outer * a.outer_step[ONEPASS_BOX_Y] +
                   (first + begin) * a.axis[0].step[ONEPASS_BOX_Y] + wide.first + c;
      int64_t *indices = nullptr;
      if (INDICES) {
        indices = (int64_t *)a.tensor[ONEPASS_BOX_INDICES] +
                  outer * a.outer_step[ONEPASS_BOX_INDICES] +
                  (first + begin) * a.axis[0].step[ONEPASS_BOX_INDICES] + wide.first + c;
      }
      int row = first + begin - (int)a.axis[0].padding;
      tile_value<OP, INDICES> last[K];
#pragma unroll
      for (int k = 0; k < K; k++) last[k].start(0);
      for (int made = begin - (K - 1); made < end; made++, row++) {
#pragma unroll
        for (int k = 0; k + 1 < K; k++) last[k] = last[k + 1];
        last[K - 1].start(0);
        if (row >= 0 && row < length) {
          const element *from = (const element *)(raw + slot_of(row) * t.pitch) + shift;
          const int first_index = row * (int)t.index_step[0];
          if (is_square) {
            take_few<K>(last[K - 1], from, nullptr, first_index, w.begin);
          } else {
            last[K - 1] = make(w, from, nullptr, first_index);
          }
        }
        if (made < begin) continue; /* not yet K rows */
        const int top = row - (K - 1);
        tile_value<OP, INDICES> all;
        all.start(INDICES ? (top < 0 ? 0 : top) * (int)t.index_step[0] + w.begin : 0);
#pragma unroll
        for (int k = 0; k < K; k++) all.take(last[k].value, last[k].index);
        divide(all.value, first + made, 0, wide.first + c);
        *y = narrow_to<element>::from(all.value);
        y += a.axis[0].step[ONEPASS_BOX_Y];
        if (INDICES) {
          *indices = all.index;
          indices += a.axis[0].step[ONEPASS_BOX_INDICES];
        }
      }
    }
  }

  /* Along the rows that reduce_rows has made or, where windows are of one row, along the inputs. */
  __device__ void make_outputs(int64_t outer, int first, int count) const {
    const int lanes = t.made_lanes, lane = (int)threadIdx.x & (lanes - 1);
    const int shift = phase - wide.begin; /* from an element's number to its place in its row */
    element *y = (element *)a.tensor[ONEPASS_BOX_Y] + outer * a.outer_step[ONEPASS_BOX_Y] +
                 first * a.axis[0].step[ONEPASS_BOX_Y] +
                 high.first * a.axis[1].step[ONEPASS_BOX_Y] + wide.first;
    int64_t *indices = nullptr;
    if (INDICES) {
      indices = (int64_t *)a.tensor[ONEPASS_BOX_INDICES] +
                outer * a.outer_step[ONEPASS_BOX_INDICES] +
                first * a.axis[0].step[ONEPASS_BOX_INDICES] +
                high.first * a.axis[1].step[ONEPASS_BOX_INDICES] + wide.first;
    }
    for (int c = lane; c < wide.count; c += lanes) {
      const box_side<int> w = window_of(a.axis[2], wide.first + c);
      for (int r = (int)threadIdx.x / lanes; r < count * t.high; r += BLOCK / lanes) {
        int which = r, h = 0;
        if (t.high > 1) {
          which = divide_by(r, t.by_high, 0);
          h = r - which * t.high;
          if (h >= high.count) continue;
        }
        box_side<int> deep, rows;
        if (INDICES || t.rows_are_one) {
          deep = window_of(a.axis[0], first + which);
          rows = window_of(a.axis[1], high.first + h);
        }
        const int first_index = INDICES ? index_of(deep, rows) : 0;
        tile_value<OP, INDICES> made;
        if (t.rows_are_one) {
          const char *row =
              raw + (slot_of(deep.begin) * t.rows + rows.begin - high.begin) * t.pitch;
          made = make(w, (const element *)row + shift, (const int *)nullptr, first_index);
        } else {
          const int at = r * column_pitch + shift;
          made = make(w, columns + at, column_rows + at, first_index);
        }
        divide(made.value, first + which, high.first + h, wide.first + c);
        y[which * a.axis[0].step[ONEPASS_BOX_Y] + h * a.axis[1].step[ONEPASS_BOX_Y] + c] =
            narrow_to<element>::from(made.value);
        if (INDICES) {
          indices[which * a.axis[0].step[ONEPASS_BOX_INDICES] +
                  h * a.axis[1].step[ONEPASS_BOX_INDICES] + c] = made.index;
        }
      }
    }
  }
};

template <int OP, bool INDICES>
__device__ static void tiles_of_windows(const box_args &a) {
  extern __shared__ __align__(16) char tile_memory[];
  const onepass_box_tiles &t = a.tiles;
  const onepass_box_axis &deep = a.axis[0];
  unsigned rest = blockIdx.x;
  const int wide_tile = (int)(rest % (unsigned)t.tiles_wide);
  rest /= (unsigned)t.tiles_wide;
  const int high_tile = (int)(rest % (unsigned)t.tiles_high);
  rest /= (unsigned)t.tiles_high;
  const int chunk = (int)(rest % (unsigned)t.chunks);
  const int64_t outer = rest / (unsigned)t.chunks;
  tile_walk<OP, INDICES> walk(a, tile_memory, outer, high_tile, wide_tile);
  const int begin = chunk * (int)t.chunk, left = (int)deep.pooled - begin;
  const int end = begin + (left < (int)t.chunk ? left : (int)t.chunk);

  tile_span now(deep, begin, end - begin < t.step ? end - begin : t.step);
  walk.plane = now.begin;
  walk.slot = 0;
  walk.bring(now.begin, now.end);
  commit_copies();
  for (int brought = now.end; now.first < end;) {
    const int next_first = now.first + t.step;
    const tile_span next(deep, next_first, end - next_first < t.step ? end - next_first : t.step);
    if (next_first < end) {
      walk.bring(next.begin > brought ? next.begin : brought, next.end);
      if (next.end > brought) brought = next.end;
    }
    commit_copies();
    wait_for_all_but<1>();
    __syncthreads();
    if (t.down) {
      if (t.down == 2) {
        walk.template make_down<2>(outer, now.first, now.count);
      } else if (t.down == 3) {
        walk.template make_down<3>(outer, now.first, now.count);
      } else {
        walk.template make_down<4>(outer, now.first, now.count);
      }
    } else {
      if (!t.rows_are_one) {
        walk.reduce_rows(now.first, now.count);
        __syncthreads();
      }
      walk.make_outputs(outer, now.first, now.count);
    }
    /* Where outputs are made from the rows themselves, these must not be overwritten yet. */
    if (t.down || t.rows_are_one) __syncthreads();
    walk.slot = (walk.slot + next.begin - walk.plane) % t.ring;
    walk.plane = next.begin;
    now = next;
  }
}

#endif
