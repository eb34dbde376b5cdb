/* Maxima, backward. Where planes of dx are dense, a block has a tile of dx, which may be some whole planes, in shared
 * memory. Every output drops its gradient there, at its index, if that is in the tile.
 *
 * Threads must not drop on the same element at once, and always in the same order. So outputs are dealt out to classes
 * whose windows have nothing in common: those of rows take turns with barriers in between, and within a row
 * neighbouring lanes do. An index that is not in its output's own window counts for nothing. */
#ifndef ONEPASS_POOL_CUDA_DROPS_CUH
#define ONEPASS_POOL_CUDA_DROPS_CUH

#include "pool/cuda_boxes.cuh"

/* Along an axis: elements of the tile, and the outputs whose windows may hold one of them. */
struct drop_range {
  int begin, end, first, count;
  __device__ drop_range(const box_args &a, int axis, int number) {
    const int length = (int)a.axis[axis].length;
    begin = number * a.drops.tile[axis];
    end = begin + a.drops.tile[axis] < length ? begin + a.drops.tile[axis] : length;
    int last, unused;
    outputs_along(a, axis, begin, first, unused);
    outputs_along(a, axis, end - 1, unused, last);
    count = last - first;
  }
  /* Outputs of a class. */
  __device__ int in_class(int number, int classes) const {
    return number < count ? (count - number + classes - 1) / classes : 0;
  }
};

struct gradient_drops {
  const box_args &a;
  sums *const tile;
  const int64_t plane; /* the first one */
  const int planes;
  const drop_range deep, high, wide;
  const int size;  /* elements of a plane that the tile has */
  const int first; /* the first of them */

  __device__ gradient_drops(const box_args &args, sums *memory, int64_t first_plane, int number)
      : a(args),
        tile(memory),
        plane(first_plane),
        planes(
            (int)(a.outer - first_plane < a.drops.planes ? a.outer - first_plane : a.drops.planes)),
        deep(args, 0, number / (args.drops.tiles[1] * args.drops.tiles[2])),
        high(args, 1, number / args.drops.tiles[2] % args.drops.tiles[1]),
        wide(args, 2, number % args.drops.tiles[2]),
        size((deep.end - deep.begin) * (high.end - high.begin) * (wide.end - wide.begin)),
        first((deep.begin * (int)args.axis[1].length + high.begin) * (int)args.axis[2].length +
              wide.begin) {}

  /* Whether the window of an output holds an element of the plane. */
  __device__ bool window_holds(int d, int h, int w, int element_index) const {
    const int row = divide_by(element_index, a.axis[2].by_count, 0);
    const int x = element_index - row * (int)a.axis[2].length;
    const int z = divide_by(row, a.axis[1].by_count, 0), y = row - z * (int)a.axis[1].length;
    return holds_along(a, 0, d, z) && holds_along(a, 1, h, y) && holds_along(a, 2, w, x);
  }

  /* What a lane has of a row of outputs. */
  struct held_output {
    int64_t index;
    sums value;
    int plane, deep, high, wide;
  };
  /* A class of rows, of which warps have pieces: some short rows, or 32 outputs of a long one. */
  struct row_class {
    int class_deep, class_high;
    int rows_deep, rows_high, rows;
    int at_once;         /* rows of a piece */
    int lane_row, start; /* this lane's */
    int pieces;          /* of all rows ... */
    int of_row, first;   /* ... and of a row; the first is 0 or 1, and every other is taken */
  };

  __device__ held_output load(const row_class &c, int piece) const {
    held_output held = {-1, 0, 0, 0, 0, 0};
    if (piece >= c.pieces) return held;
    const int group = c.of_row == 1 ? piece : piece / c.of_row;
    const int row = group * c.at_once + c.lane_row;
    const int at = (c.first + 2 * (piece - group * c.of_row)) * WARP + c.start;
    if (row >= c.rows || c.lane_row >= c.at_once || at >= wide.count) return held;
    const int whole = row / c.rows_high;
    held.plane = planes == 1 ? 0 : whole / c.rows_deep;
    held.deep = deep.first + c.class_deep + (whole - held.plane * c.rows_deep) * a.drops.classes[0];
    held.high = high.first + c.class_high + (row - whole * c.rows_high) * a.drops.classes[1];
    held.wide = wide.first + at;
    const auto offset = [&](int tensor) {
      return (plane + held.plane) * a.outer_step[tensor] +
             (held.deep * (int)a.axis[0].step[tensor] + held.high * (int)a.axis[1].step[tensor] +
              held.wide * (int)a.axis[2].step[tensor]);
    };
    held.index = ((const int64_t *)a.tensor[ONEPASS_BOX_INDICES])[offset(ONEPASS_BOX_INDICES)];
    held.value = widen(((const element *)a.tensor[ONEPASS_BOX_DY])[offset(ONEPASS_BOX_DY)]);
    return held;
  }
  /* Lanes of windows that overlap take turns. */
  __device__ void drop(const held_output &held) const {
    const int64_t place = held.index - first;
    const bool hit = place >= 0 && place < size &&
                     window_holds(held.deep, held.high, held.wide, (int)held.index);
    sums *to = tile + (held.plane * size + (int)place);
    const int classes = a.drops.classes[2];
    if (classes == 1) {
      if (hit) *to += held.value;
      return;
    }
    const int own = (held.wide - wide.first) % classes;
#pragma unroll 1
    for (int turn = 0; turn < classes; turn++) {
      if (hit && own == turn) *to += held.value;
      __syncwarp();
    }
  }
  /* The next piece is on its way while one is worked on. Of long rows neighbouring pieces are different warps': first
   * every other one, then the rest. */
  __device__ void drop_rows(int class_deep, int class_high) const {
    row_class c;
    c.class_deep = class_deep;
    c.class_high = class_high;
    c.rows_deep = deep.in_class(class_deep, a.drops.classes[0]);
    c.rows_high = high.in_class(class_high, a.drops.classes[1]);
    c.rows = wide.count > 0 ? planes * c.rows_deep * c.rows_high : 0;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const bool is_short = wide.count <= WARP;
    c.at_once = is_short && wide.count > 0 ? WARP / wide.count : 1;
    c.lane_row = c.at_once > 1 ? lane / wide.count : 0;
    c.start = lane - c.lane_row * wide.count;
    const int chunks = (wide.count + WARP - 1) / WARP;
    for (c.first = 0; c.first < (is_short ? 1 : 2); c.first++) {
      c.of_row = is_short ? 1 : (chunks - c.first + 1) / 2;
      c.pieces = (c.rows + c.at_once - 1) / c.at_once * c.of_row;
      held_output held = {-1, 0, 0, 0, 0, 0};
#pragma unroll 1
      for (int piece = warp; piece < c.pieces + BLOCK / WARP; piece += BLOCK / WARP) {
        const held_output next = load(c, piece);
        if (piece != warp) drop(held);
        held = next;
      }
      __syncthreads();
    }
  }

  __device__ void store() const {
    element *dx =
        (element *)a.tensor[ONEPASS_BOX_DX] + plane * a.outer_step[ONEPASS_BOX_DX] + first;
    const int count = planes * size; /* planes lie side by side where there are several */
    if (a.walk.even) {
      for (int i = (int)threadIdx.x * VEC; i < count; i += BLOCK * VEC) {
        sums v[VEC];
#pragma unroll
        for (int j = 0; j < VEC; j++) v[j] = tile[i + j];
        store_pack(dx + i, narrow_pack<sums, element, VEC>(v));
      }
    } else {
      for (int i = (int)threadIdx.x; i < count; i += BLOCK)
        dx[i] = narrow_to<element>::from(tile[i]);
    }
  }
};

__device__ static void drop_gradients(const box_args &a) {
  extern __shared__ __align__(16) char tile_memory[];
  const int tiles = a.drops.tiles[0] * a.drops.tiles[1] * a.drops.tiles[2];
  const int64_t group = blockIdx.x / (unsigned)tiles;
  const gradient_drops drops(a, (sums *)tile_memory, group * a.drops.planes,
                             (int)(blockIdx.x % (unsigned)tiles));
  for (int i = threadIdx.x; i < drops.planes * drops.size; i += BLOCK) drops.tile[i] = 0;
  __syncthreads();
  for (int deep = 0; deep < a.drops.classes[0]; deep++) {
    for (int high = 0; high < a.drops.classes[1]; high++) {
      drops.drop_rows(deep, high);
    }
  }
  drops.store();
}

/* ---- Channels side by side ------------------------------------------------------------------- */

/* A thread has a tile of dx of one channel, a column of shared memory, and drops there whatever the outputs around it
 * have for it. No other thread has a part in it, so there are neither turns nor barriers. */
enum { CHANNEL_DROPS_BLOCK = 128, CHANNEL_DROPS_AHEAD = sizeof(element) == 8 ? 4 : 8 };

/* Goes through the outputs that a tile is in the windows of. */
struct drop_cursor {
  int deep, high, wide;
  __device__ drop_cursor(const drop_range (&tile)[3])
      : deep(tile[0].first), high(tile[1].first), wide(tile[2].first) {}
  __device__ void step(const drop_range (&tile)[3]) {
    if (++wide < tile[2].first + tile[2].count) return;
    wide = tile[2].first;
    if (++high < tile[1].first + tile[1].count) return;
    high = tile[1].first;
    deep++;
  }
  __device__ int offset(const box_args &a, int tensor) const {
    return deep * (int)a.axis[0].step[tensor] + high * (int)a.axis[1].step[tensor] +
           wide * (int)a.axis[2].step[tensor];
  }
};

/* Where in the tile an output drops, or -1. */
__device__ inline int place_of_drop(const box_args &a, const drop_range (&tile)[3],
                                    const drop_cursor &output, int64_t index) {
  const int high = (int)a.axis[1].length, wide = (int)a.axis[2].length;
  const int elements = (int)a.axis[0].length * high * wide;
  if (index < 0 || index >= elements) return -1;
  const int row = divide_by((int)index, a.axis[2].by_count, 0), x = (int)index - row * wide;
  int z = 0, y = row;
  if (a.axis[0].length > 1) {
    z = divide_by(row, a.axis[1].by_count, 0);
    y = row - z * high;
  }
  const bool hit = z >= tile[0].begin && z < tile[0].end && y >= tile[1].begin && y < tile[1].end &&
                   x >= tile[2].begin && x < tile[2].end && holds_along(a, 0, output.deep, z) &&
                   holds_along(a, 1, output.high, y) && holds_along(a, 2, output.wide, x);
  const int rows = tile[1].end - tile[1].begin, columns = tile[2].end - tile[2].begin;
  return hit ? ((z - tile[0].begin) * rows + y - tile[1].begin) * columns + x - tile[2].begin : -1;
}

__device__ static void drop_channel_gradients(const box_args &a) {
  extern __shared__ __align__(16) char tile_memory[];
  sums *column = (sums *)tile_memory + threadIdx.x;
  const int tiles = a.drops.tiles[0] * a.drops.tiles[1] * a.drops.tiles[2];
  const int thread = (int)(blockIdx.x * CHANNEL_DROPS_BLOCK + threadIdx.x);
  const int all = divide_by(thread, a.by_inner, 0), outer = all / tiles, number = all % tiles;
  const int64_t channel = thread - all * (int)a.inner;
  if (outer >= a.outer) return;
  const drop_range tile[3] = {{a, 0, number / (a.drops.tiles[1] * a.drops.tiles[2])},
                              {a, 1, number / a.drops.tiles[2] % a.drops.tiles[1]},
                              {a, 2, number % a.drops.tiles[2]}};
  const int size =
      (tile[0].end - tile[0].begin) * (tile[1].end - tile[1].begin) * (tile[2].end - tile[2].begin);
  for (int i = 0; i < size; i++) column[i * CHANNEL_DROPS_BLOCK] = 0;
  const auto plane = [&](int tensor) {
    return outer * a.outer_step[tensor] + channel * a.inner_step[tensor];
  };
  const int64_t *indices =
      (const int64_t *)a.tensor[ONEPASS_BOX_INDICES] + plane(ONEPASS_BOX_INDICES);
  const element *dy = (const element *)a.tensor[ONEPASS_BOX_DY] + plane(ONEPASS_BOX_DY);
  const int outputs = tile[0].count * tile[1].count * tile[2].count;
  drop_cursor asked(tile), dropped(tile);
  for (int first = 0; first < outputs; first += CHANNEL_DROPS_AHEAD) {
    int64_t index[CHANNEL_DROPS_AHEAD];
    element value[CHANNEL_DROPS_AHEAD];
#pragma unroll
    for (int k = 0; k < CHANNEL_DROPS_AHEAD; k++) {
      if (first + k >= outputs) break;
      index[k] = indices[asked.offset(a, ONEPASS_BOX_INDICES)];
      value[k] = dy[asked.offset(a, ONEPASS_BOX_DY)];
      asked.step(tile);
    }
#pragma unroll
    for (int k = 0; k < CHANNEL_DROPS_AHEAD; k++) {
      if (first + k >= outputs) break;
      const int place = place_of_drop(a, tile, dropped, index[k]);
      if (place >= 0) column[place * CHANNEL_DROPS_BLOCK] += widen(value[k]);
      dropped.step(tile);
    }
  }
  element *dx = (element *)a.tensor[ONEPASS_BOX_DX] + plane(ONEPASS_BOX_DX);
  int i = 0;
  for (int z = tile[0].begin; z < tile[0].end; z++) {
    for (int y = tile[1].begin; y < tile[1].end; y++) {
      element *row =
          dx + (z * (int)a.axis[0].step[ONEPASS_BOX_DX] + y * (int)a.axis[1].step[ONEPASS_BOX_DX]);
#pragma unroll 4
      for (int x = tile[2].begin; x < tile[2].end; x++, i++) {
        row[x * (int)a.axis[2].step[ONEPASS_BOX_DX]] =
            narrow_to<element>::from(column[i * CHANNEL_DROPS_BLOCK]);
      }
    }
  }
}

#endif
