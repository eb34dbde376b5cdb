/* Windows that hardly share rows, of dense rows of whole packs, forward. Some neighbouring threads have a strip of a
 * row of outputs, all of it if they are enough: a thread puts its few columns together from all rows of a window, and
 * outputs are put together from columns, which meet in shared memory. */
#ifndef ONEPASS_POOL_CUDA_BANDS_CUH
#define ONEPASS_POOL_CUDA_BANDS_CUH

#include "pool/cuda_boxes.cuh"

enum { BANDS_BLOCK = 512 };
/* Rows that are asked for at a time, at most, by the registers that there are. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
enum { BAND_ROWS = sizeof(element) == 2 ? 4 : 6 };
#else
enum { BAND_ROWS = sizeof(element) == 2 ? 3 : 5 };
#endif

/* The rows of a window, one after the other. */
struct band_rows {
  const element *row; /* where the thread's pack is */
  int left, until_next_plane, high;
  int move, plane_move;
  /* x: where the thread's pack is in the plane's first row */
  __device__ band_rows(const box_args &a, const element *x, const box_side<int> &planes,
                       const box_side<int> &rows) {
    const int row_step = (int)a.axis[1].step[ONEPASS_BOX_X];
    const int plane_step = (int)a.axis[0].step[ONEPASS_BOX_X];
    high = count(rows);
    left = high * count(planes);
    until_next_plane = high;
    move = rows.step * row_step;
    plane_move = planes.step * plane_step - high * move;
    row = x + (planes.begin * plane_step + rows.begin * row_step);
  }
  __device__ static int count(const box_side<int> &w) {
    const int length = w.end - w.begin;
    return w.step == 1 ? length : (length + w.step - 1) / w.step;
  }
  __device__ void step() {
    row += move;
    if (--until_next_plane == 0) {
      row += plane_move;
      until_next_plane = high;
    }
    left--;
  }
};

template <int OP>
struct window_band {
  const box_args &a;
  sums *const columns; /* the strip's, in shared memory */
  const int lanes, lane;
  int first, count; /* outputs of the strip */
  int begin;        /* column of its first window, where a pack begins */

  __device__ window_band(const box_args &args, sums *memory, int strip)
      : a(args),
        columns(memory),
        lanes(args.strips.lanes),
        lane((int)threadIdx.x & (args.strips.lanes - 1)),
        first(strip * args.strips.outputs) {
    const onepass_box_axis &along = a.axis[2];
    const int left = (int)along.pooled - first;
    count = left < a.strips.outputs ? left : a.strips.outputs;
    const int from = first * (int)along.stride - (int)along.padding;
    begin = from - (from % VEC + VEC) % VEC;
  }
  /* So that windows of 4, 8 or 16 columns do not all begin in the same few banks. */
  __device__ static int place_of(int column) { return column + column / 32; }
  __device__ static sums nothing() { return OP == BOX_MAX ? -(sums)INFINITY : (sums)0; }
  __device__ static sums together(sums a, sums b) {
    return OP == BOX_MAX ? larger_of(a, b) : a + b;
  }

  /* Whether the thread's columns exist, and are some window's. */
  __device__ bool has_columns() const {
    const onepass_box_axis &along = a.axis[2];
    const int column = begin + lane * VEC;
    const int end =
        (first + count - 1) * (int)along.stride - (int)along.padding + (int)along.extent;
    return column >= 0 && column < end && column < (int)along.length;
  }
  __device__ void gather(sums (&mine)[VEC], band_rows rows) const {
    const int at_once = a.strips.at_once < BAND_ROWS ? a.strips.at_once : BAND_ROWS;
    while (rows.left > 0) {
      const int asked = rows.left < at_once ? rows.left : at_once;
      pack<element, VEC> v[BAND_ROWS];
#pragma unroll
      for (int u = 0; u < BAND_ROWS; u++) {
        if (u >= asked) continue;
        v[u] = load_pack<element, VEC>(rows.row);
        rows.step();
      }
#pragma unroll
      for (int u = 0; u < BAND_ROWS; u++) {
        if (u >= asked) continue;
        sums w[VEC];
        widen_pack(w, v[u]);
#pragma unroll
        for (int j = 0; j < VEC; j++) mine[j] = together(mine[j], w[j]);
      }
    }
  }
  __device__ void store(const sums (&mine)[VEC]) const {
#pragma unroll
    for (int j = 0; j < VEC; j++) columns[place_of(lane * VEC + j)] = mine[j];
  }
  /* Until all threads of the strip have come here. */
  __device__ void wait() const {
    if (lanes > WARP) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  }
  /* y: where the row of outputs begins; divisor: of the other axes */
  __device__ void finish(element *y, sums divisor) const {
    for (int i = lane; i < count; i += lanes) {
      const box_side<int> window = window_along(a, 2, first + i);
      sums all = nothing();
      for (int at = window.begin; at < window.end; at += window.step)
        all = together(all, columns[place_of(at - begin)]);
      if (OP == BOX_AVG) all = a.uniform ? all * (sums)a.factor : all / (divisor * window.divisor);
      y[(first + i) * (int)a.axis[2].step[ONEPASS_BOX_Y]] = narrow_to<element>::from(all);
    }
  }
};

/* Threads side by side have strips side by side, then rows one below the other, `rows` of them each. */
template <int OP>
__device__ static void band_windows(const box_args &a) {
  extern __shared__ __align__(16) char tile_memory[];
  const onepass_box_strips &s = a.strips;
  const onepass_box_axis &rows = a.axis[1], &planes = a.axis[0];
  const int log_lanes = __popc(s.lanes - 1), team = (int)threadIdx.x >> log_lanes;
  const int number = (int)blockIdx.x * (BANDS_BLOCK >> log_lanes) + team;
  const int all_rows = divide_by(number, s.by_strips, 0), strip = number - all_rows * s.strips;
  const int all_planes = divide_by(all_rows, s.by_groups, 0);
  int high = (all_rows - all_planes * s.groups) * s.rows;
  const int outer = divide_by(all_planes, planes.by_count, 0);
  const int deep = all_planes - outer * (int)planes.pooled;
  const bool exists = outer < a.outer; /* or else only the barriers need these threads */
  const int memory = s.lanes * VEC + s.lanes * VEC / 32;
  const window_band<OP> band(a, (sums *)tile_memory + team * memory, strip);
  const bool gathers = exists && band.has_columns();
  const element *x = (const element *)a.tensor[ONEPASS_BOX_X] +
                     outer * a.outer_step[ONEPASS_BOX_X] + band.begin + band.lane * VEC;
  element *y = (element *)a.tensor[ONEPASS_BOX_Y] + outer * a.outer_step[ONEPASS_BOX_Y] +
               deep * planes.step[ONEPASS_BOX_Y] + high * rows.step[ONEPASS_BOX_Y];
  for (int i = 0; i < s.rows; i++, high++, y += rows.step[ONEPASS_BOX_Y]) {
    const bool has_row = high < (int)rows.pooled;
    const box_side<int> of_planes = window_along(a, 0, deep), of_rows = window_along(a, 1, high);
    sums mine[VEC];
#pragma unroll
    for (int j = 0; j < VEC; j++) mine[j] = band.nothing();
    if (gathers && has_row) band.gather(mine, band_rows(a, x, of_planes, of_rows));
    if (i > 0) band.wait(); /* until the row before has been made */
    band.store(mine);
    band.wait();
    if (exists && has_row) band.finish(y, of_planes.divisor * of_rows.divisor);
  }
}

#endif
