/* Windows that hardly share rows, of dense rows of whole packs, forward. A warp has a strip, some neighbouring
 * outputs of a row, and walks down from row to row of outputs: a lane puts its few columns together from all rows
 * of a window, and outputs are put together from columns, which meet in shared memory. */
#ifndef ONEPASS_POOL_CUDA_BANDS_CUH
#define ONEPASS_POOL_CUDA_BANDS_CUH

#include "pool/cuda_boxes.cuh"

enum {
  BANDS_BLOCK = 256,
  BAND_ROWS = 4,                             /* at most, that are asked for at a time */
  BAND_PACKS = sizeof(element) == 2 ? 1 : 2, /* of a lane, in a row */
  BAND_COLUMNS = WARP * VEC * BAND_PACKS,
  BAND_MEMORY = BAND_COLUMNS + BAND_COLUMNS / 32
};

/* The rows of a window, one after the other. */
struct band_rows {
  const element *row; /* where the lane's pack is */
  int left, until_next_plane, high;
  int move, plane_move;
  /* x: where the lane's pack is in the plane's first row */
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
  sums *const columns;  /* the warp's, in shared memory */
  int first, count;     /* outputs of the strip */
  int begin;            /* column of its first window, where a pack begins */
  bool has[BAND_PACKS]; /* columns that exist, and are some window's */
  pack<element, VEC> v[BAND_ROWS][BAND_PACKS];

  __device__ window_band(const box_args &args, sums *memory, int strip)
      : a(args), columns(memory), first(strip * args.walk.chunk) {
    const onepass_box_axis &along = a.axis[2];
    const int left = (int)along.pooled - first;
    count = left < a.walk.chunk ? left : a.walk.chunk;
    const int from = first * (int)along.stride - (int)along.padding;
    begin = from - (from % VEC + VEC) % VEC;
    const int end = from + (count - 1) * (int)along.stride + (int)along.extent;
#pragma unroll
    for (int i = 0; i < BAND_PACKS; i++) {
      const int column = begin + column_of(i);
      has[i] = column >= 0 && column < end && column < (int)along.length;
    }
  }
  __device__ static int lane() { return (int)threadIdx.x % WARP; }
  __device__ static int column_of(int i) { return (lane() + i * WARP) * VEC; }
  /* So that windows of 4, 8 or 16 columns do not all begin in the same few banks. */
  __device__ static int place_of(int column) { return column + column / 32; }
  __device__ static sums nothing() { return OP == BOX_MAX ? -(sums)INFINITY : (sums)0; }
  __device__ static sums together(sums a, sums b) {
    return OP == BOX_MAX ? larger_of(a, b) : a + b;
  }

  __device__ void ask(const band_rows &from) {
    band_rows rows = from;
#pragma unroll
    for (int u = 0; u < BAND_ROWS; u++, rows.step()) {
#pragma unroll
      for (int i = 0; i < BAND_PACKS; i++) {
        if (u < a.walk.ring && rows.left > 0 && has[i])
          v[u][i] = load_pack<element, VEC>(rows.row + i * (WARP * VEC));
      }
    }
  }
  __device__ void take(sums (&mine)[BAND_PACKS][VEC], band_rows &rows) const {
#pragma unroll
    for (int u = 0; u < BAND_ROWS; u++) {
      if (u >= a.walk.ring || rows.left <= 0) continue;
#pragma unroll
      for (int i = 0; i < BAND_PACKS; i++) {
        if (!has[i]) continue;
        sums w[VEC];
        widen_pack(w, v[u][i]);
#pragma unroll
        for (int j = 0; j < VEC; j++) mine[i][j] = together(mine[i][j], w[j]);
      }
      rows.step();
    }
  }
  /* The first of them have been asked for. */
  __device__ void gather(sums (&mine)[BAND_PACKS][VEC], band_rows rows) {
#pragma unroll
    for (int i = 0; i < BAND_PACKS; i++) {
#pragma unroll
      for (int j = 0; j < VEC; j++) mine[i][j] = nothing();
    }
    for (;;) {
      take(mine, rows);
      if (rows.left <= 0) break;
      ask(rows);
    }
  }
  __device__ void store(const sums (&mine)[BAND_PACKS][VEC]) const {
#pragma unroll
    for (int i = 0; i < BAND_PACKS; i++) {
#pragma unroll
      for (int j = 0; j < VEC; j++) columns[place_of(column_of(i) + j)] = mine[i][j];
    }
  }
  /* y: where the row of outputs begins; divisor: of the other axes */
  __device__ void finish(element *y, sums divisor) const {
    for (int i = lane(); i < count; i += WARP) {
      const box_side<int> window = window_along(a, 2, first + i);
      sums all = nothing();
      for (int at = window.begin; at < window.end; at += window.step)
        all = together(all, columns[place_of(at - begin)]);
      if (OP == BOX_AVG) all = a.uniform ? all * (sums)a.factor : all / (divisor * window.divisor);
      y[(first + i) * (int)a.axis[2].step[ONEPASS_BOX_Y]] = narrow_to<element>::from(all);
    }
  }
};

/* Strips side by side are those of warps side by side. A warp has `lanes` rows of outputs; the first inputs of the
 * next are on their way while it finishes one. */
template <int OP>
__device__ static void band_windows(const box_args &a) {
  extern __shared__ __align__(16) char tile_memory[];
  const onepass_box_axis &rows = a.axis[1], &planes = a.axis[0];
  const int warp = threadIdx.x / WARP;
  unsigned rest = blockIdx.x * (BANDS_BLOCK / WARP) + warp;
  const int strip = (int)(rest % (unsigned)a.walk.chunks);
  rest /= (unsigned)a.walk.chunks;
  int high = (int)(rest % (unsigned)a.walk.blocks_wide) * a.walk.lanes;
  rest /= (unsigned)a.walk.blocks_wide;
  const unsigned outer = (unsigned)divide_by((int)rest, planes.by_count, 0);
  const int deep = (int)(rest - outer * (unsigned)planes.pooled);
  if (outer >= a.outer) return;
  window_band<OP> band(a, (sums *)tile_memory + warp * BAND_MEMORY, strip);
  const element *x = (const element *)a.tensor[ONEPASS_BOX_X] +
                     (int64_t)outer * a.outer_step[ONEPASS_BOX_X] + band.begin + band.lane() * VEC;
  element *y = (element *)a.tensor[ONEPASS_BOX_Y] + (int64_t)outer * a.outer_step[ONEPASS_BOX_Y] +
               deep * planes.step[ONEPASS_BOX_Y];
  const box_side<int> of_planes = window_along(a, 0, deep);
  const int last = high + a.walk.lanes < (int)rows.pooled ? high + a.walk.lanes : (int)rows.pooled;
  band.ask(band_rows(a, x, of_planes, window_along(a, 1, high)));
  for (; high < last; high++) {
    const box_side<int> of_rows = window_along(a, 1, high);
    sums mine[BAND_PACKS][VEC];
    band.gather(mine, band_rows(a, x, of_planes, of_rows));
    if (high + 1 < last) band.ask(band_rows(a, x, of_planes, window_along(a, 1, high + 1)));
    band.store(mine);
    __syncwarp();
    band.finish(y + high * (int)rows.step[ONEPASS_BOX_Y], of_planes.divisor * of_rows.divisor);
    __syncwarp();
  }
}

#endif
