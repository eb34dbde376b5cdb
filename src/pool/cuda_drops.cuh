/* Maxima, backward, where planes of dx are dense: a block has a tile of dx, which may be some whole planes, in shared
 * memory. Every output drops its gradient there, at its index, if that is in the tile.
 *
 * Threads must not drop on the same element at once, and always in the same order. So outputs are dealt out to classes
 * whose windows have nothing in common: those of rows take turns with barriers in between, and within a row, which is
 * one warp's, neighbouring lanes do. An index that is not in its output's own window counts for nothing. */
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
    return is_in(window_along(a, 0, d), z) && is_in(window_along(a, 1, h), y) &&
           is_in(window_along(a, 2, w), x);
  }

  /* One class of rows. */
  __device__ void drop_rows(int class_deep, int class_high) const {
    const int classes_deep = a.drops.classes[0], classes_high = a.drops.classes[1],
              classes_wide = a.drops.classes[2];
    const int rows_deep = deep.in_class(class_deep, classes_deep),
              rows_high = high.in_class(class_high, classes_high);
    const int rows = planes * rows_deep * rows_high;
    if (rows == 0 || wide.count <= 0) return;
    /* Several short rows at once. */
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    const int at_once = wide.count < WARP ? WARP / wide.count : 1;
    const int lane_row = at_once > 1 ? lane / wide.count : 0, start = lane - lane_row * wide.count;
    for (int turn = warp * at_once; turn < rows; turn += BLOCK / WARP * at_once) {
      const int row = turn + lane_row;
      const bool has_row = lane_row < at_once && row < rows;
      const int whole = row / rows_high, local = whole / rows_deep;
      const int d = deep.first + class_deep + (whole - local * rows_deep) * classes_deep,
                h = high.first + class_high + (row - whole * rows_high) * classes_high;
      const element *dy =
          (const element *)a.tensor[ONEPASS_BOX_DY] +
          (plane + local) * a.outer_step[ONEPASS_BOX_DY] +
          (d * (int)a.axis[0].step[ONEPASS_BOX_DY] + h * (int)a.axis[1].step[ONEPASS_BOX_DY]);
      const int64_t *indices = (const int64_t *)a.tensor[ONEPASS_BOX_INDICES] +
                               (plane + local) * a.outer_step[ONEPASS_BOX_INDICES] +
                               (d * (int)a.axis[0].step[ONEPASS_BOX_INDICES] +
                                h * (int)a.axis[1].step[ONEPASS_BOX_INDICES]);
      for (int chunk = 0; chunk < wide.count; chunk += WARP) {
        const int at = chunk + start, w = wide.first + at;
        const bool exists = has_row && at < wide.count;
        int64_t index = -1;
        sums value = 0;
        if (exists) {
          index = indices[w * (int)a.axis[2].step[ONEPASS_BOX_INDICES]];
          value = widen(dy[w * (int)a.axis[2].step[ONEPASS_BOX_DY]]);
        }
        const int64_t place = index - first;
        const bool hit = place >= 0 && place < size && window_holds(d, h, w, (int)index);
        sums *to = tile + (local * size + (int)place);
        if (classes_wide == 1) {
          if (hit) *to += value;
        } else {
          const int own = at % classes_wide;
          for (int turns = 0; turns < classes_wide; turns++) {
            if (hit && own == turns) *to += value;
            __syncwarp();
          }
        }
      }
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
      __syncthreads();
    }
  }
  drops.store();
}

#endif
