/* Rows that fit in the registers of a block, or of the blocks of a cluster.
 *
 * A team, one block or the blocks of a cluster, does row after row. Thread t of a block has the packs
 * t, t + threads, ... of VEC elements of the block's slice, at most PACKS of them. With VEC > 1 packs
 * are aligned. Rows that do not start at a multiple of a pack's size are PHASED: their first and last
 * packs are partly another row's and are looked at element by element; this takes tensors whose rows
 * all start at the same place in a pack. Otherwise VEC is 1. Threads have many packs and blocks few threads, so that what is done once a row
 * is done by few, and several blocks share a multiprocessor: some load while others sum or store. weight
 * and bias come from the L1 cache; dweight and dbias are summed in shared memory, by the thread that has
 * the columns.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_BLOCKS_CUH
#define ONEPASS_NORM_CUDA_BLOCKS_CUH

#include "norm/cuda_common.cuh"

enum { BLOCKS_MOST_THREADS = 512, BLOCKS_MOST_CLUSTER = 16 };

/* ---- Sums of a team ---------------------------------------------------------------------------- */

#if __CUDA_ARCH__ >= 900
__device__ inline void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

/* A number in the shared memory of the cluster's block `rank`, at the place where `own` is here. */
__device__ inline float read_of_block(const float *own, int rank) {
  unsigned address;
  float value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"((unsigned)__cvta_generic_to_shared(own)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

__device__ inline double read_of_block(const double *own, int rank) {
  unsigned address;
  double value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"((unsigned)__cvta_generic_to_shared(own)), "r"(rank));
  asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(value) : "r"(address) : "memory");
  return value;
}
#endif

/* Two turns, so that one barrier a sum is enough. */
template <class C, int SUMS>
struct team_memory {
  plain_sums<C, SUMS> of_warps[2][BLOCKS_MOST_THREADS / WARP];
  plain_sums<C, SUMS> of_block[2];
};

template <class C, int SUMS>
__device__ inline plain_sums<C, SUMS> sum_team(plain_sums<C, SUMS> mine,
                                               team_memory<C, SUMS> &memory, int &turn, int team) {
  mine = sum_block(mine, memory.of_warps[turn]);
#if __CUDA_ARCH__ >= 900
  if (team > 1) {
    const int lane = threadIdx.x % WARP;
    if (threadIdx.x == 0) memory.of_block[turn] = mine;
    meet_cluster();
#pragma unroll
    for (int i = 0; i < SUMS; i++)
      mine.v[i] = lane < team ? read_of_block(&memory.of_block[turn].v[i], lane) : 0;
    mine = sum_lanes(mine, BLOCKS_MOST_CLUSTER);
#pragma unroll
    for (int i = 0; i < SUMS; i++) mine.v[i] = __shfl_sync(ALL_LANES, mine.v[i], 0);
  }
#endif
  turn ^= 1;
  return mine;
}

/* ---- A block's part of its rows ---------------------------------------------------------------- */

struct block_slice {
  int64_t begin, row, teams;
  int length, rank;
  __device__ block_slice(const norm_args &a) {
    rank = blockIdx.x % a.team;
    row = blockIdx.x / a.team;
    teams = gridDim.x / a.team;
    begin = rank * a.slice;
    const int64_t rest = a.elements.count - begin;
    length = (int)(rest < a.slice ? rest : a.slice);
  }
};

/* Which elements of a slice a pack holds: those from `first` on, VEC of them if it is whole. */
template <class T, int VEC, bool PHASED>
struct pack_view {
  int phase, length;
  __device__ pack_view(const T *slice, int elements)
      : phase(PHASED ? phase_of(slice) : 0), length(elements) {}
  __device__ int column(int i) const { return (int)(threadIdx.x + i * blockDim.x) * VEC; }
  __device__ int first(int i) const { return column(i) - phase; }
  __device__ bool is_whole(int i) const {
    return (!PHASED || first(i) >= 0) && first(i) + VEC <= length;
  }
  /* Partly. A pack of rows that are not phased is whole or has nothing. */
  __device__ bool has_some(int i) const {
    return PHASED && first(i) + VEC > 0 && first(i) < length;
  }
  __device__ bool has(int element) const { return element >= 0 && element < length; }
};

template <class T, int VEC, int PACKS, bool PHASED>
__device__ inline void load_packs(pack<T, VEC> (&to)[PACKS], const T *slice,
                                  const pack_view<T, VEC, PHASED> &view) {
#pragma unroll
  for (int i = 0; i < PACKS; i++) {
    if (view.is_whole(i)) {
      to[i] = load_once<T, VEC>(slice + view.first(i));
    } else if (view.has_some(i)) {
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if (view.has(view.first(i) + j)) to[i].v[j] = slice[view.first(i) + j];
      }
    }
  }
}

template <bool MOMENTS, class C, int N, int SUMS>
__device__ inline void add_forward(plain_sums<C, SUMS> &mine, const C (&v)[N], C guess) {
  if constexpr (MOMENTS) {
    add_deviations(mine, v, guess);
  } else {
    add_magnitudes(mine, v);
  }
}

/* Weights that are not aligned as the elements are may be at any address. */
template <class T, bool PHASED, class C, int N>
__device__ inline void load_weights_for(C (&to)[N], const void *weights, int64_t column,
                                        const norm_args &a) {
  if (PHASED) {
    load_weights_at<T>(to, weights, column, a);
  } else {
    load_aligned_weights<T>(to, weights, column, a);
  }
}

template <class T, bool MOMENTS, bool PHASED, class C, int N>
__device__ inline void apply_forward(C (&v)[N], const row_scale<C> &scale, const norm_args &a,
                                     int64_t column) {
  C part[N];
#pragma unroll
  for (int j = 0; j < N; j++) v[j] = apply_scale<MOMENTS>(scale, v[j]);
  if (MOMENTS && a.at.weight) {
    load_weights_for<T, PHASED>(part, a.at.weight, column, a);
#pragma unroll
    for (int j = 0; j < N; j++) v[j] *= part[j];
  }
  if (MOMENTS && a.at.bias) {
    load_weights_for<T, PHASED>(part, a.at.bias, column, a);
#pragma unroll
    for (int j = 0; j < N; j++) v[j] += part[j];
  }
}

template <class T, bool MOMENTS, int VEC, int PACKS, bool PHASED>
__device__ inline void blocks_forward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = MOMENTS ? 2 : 1;
  __shared__ team_memory<C, SUMS> memory;
  block_slice s(a);
  int turn = 0;
  for (; s.row < a.rows.count; s.row += s.teams) {
    const T *row = row_of<T>(a.at.x, a, ONEPASS_ROLE_X, s.row);
    const pack_view<T, VEC, PHASED> view(row + s.begin, s.length);
    pack<T, VEC> x[PACKS];
    load_packs(x, row + s.begin, view);
    C guess = MOMENTS ? guess_mean(row, a.elements.count) : 0;
    row_scale<C> scale;
    for (int attempt = 0;; attempt++) {
      plain_sums<C, SUMS> mine;
      mine.clear();
#pragma unroll
      for (int i = 0; i < PACKS; i++) {
        C v[VEC];
        widen_pack(v, x[i]);
        if (view.is_whole(i)) {
          add_forward<MOMENTS>(mine, v, guess);
        } else if (view.has_some(i)) {
#pragma unroll
          for (int j = 0; j < VEC; j++) {
            const C one[1] = {v[j]};
            if (view.has(view.first(i) + j)) add_forward<MOMENTS>(mine, one, guess);
          }
        }
      }
      mine = sum_team(mine, memory, turn, a.team);
      if constexpr (MOMENTS) {
        const row_moments<C> found(mine, guess, (C)a.elements.count);
        if (found.lossy && attempt == 0) { /* it was no good guess; for all threads alike */
          guess += found.more;
          continue;
        }
        scale.scale = one_over_root(found.squares * (C)a.one_over_n + (C)a.eps);
        scale.shift = guess;
        scale.offset = -found.more * scale.scale;
        if (s.rank == 0 && threadIdx.x == 0) {
          if (a.at.mean) *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, s.row) = guess + found.more;
          if (a.at.rstd) *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, s.row) = scale.scale;
        }
      } else {
        scale = scale_by_sum<C>(mine.v[0], a);
      }
      break;
    }
    T *y = row_of<T>(a.at.y, a, ONEPASS_ROLE_Y, s.row) + s.begin;
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int at = view.first(i);
      C v[VEC];
      stay_packed(x[i]);
      widen_pack(v, x[i]);
      if (view.is_whole(i)) {
        apply_forward<T, MOMENTS, PHASED>(v, scale, a, s.begin + at);
        store_once(y + at, narrow_pack<C, T, VEC>(v));
      } else if (view.has_some(i)) {
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          C one[1] = {v[j]};
          if (!view.has(at + j)) continue;
          apply_forward<T, MOMENTS, false>(one, scale, a, s.begin + at + j);
          y[at + j] = narrow_to<T>::from(one[0]);
        }
      }
    }
  }
#if __CUDA_ARCH__ >= 900
  if (a.team > 1) meet_cluster(); /* others may still read this block's sums */
#endif
}

/* sums[j] += terms[j] in shared memory; a column is one thread's alone. */
template <class C, int N>
__device__ inline void add_columns(C *sums, const C (&terms)[N]) {
  const int STEP = N * sizeof(C) < 16 ? N : 16 / (int)sizeof(C);
#pragma unroll
  for (int i = 0; i < N; i += STEP) {
    pack<C, STEP> part = *(pack<C, STEP> *)(sums + i);
#pragma unroll
    for (int j = 0; j < STEP; j++) part.v[j] += terms[i + j];
    *(pack<C, STEP> *)(sums + i) = part;
  }
}

/* What backward does with a block's slice. Columns are counted as packs are: column 0 is where the first
 * pack begins, which in phased rows is before the slice does. All rows of a block have the same phase, so
 * a thread has the same columns of all of them, and weights wait in shared memory as it needs them. */
template <class T, bool MOMENTS, bool PHASED>
struct slice_gradient {
  typedef typename sums_of<T>::type C;
  static const int SUMS = MOMENTS ? 3 : 2;
  const norm_args &a;
  int64_t begin;
  C *weight, *dweight, *dbias; /* in shared memory, or NULL */

  /* fit_blocks in launch_cuda.c knows the same sizes. */
  __device__ slice_gradient(const norm_args &args, const block_slice &s, char *shared, int phase)
      : a(args), begin(s.begin - phase), weight(NULL), dweight(NULL), dbias(NULL) {
    C *numbers = (C *)shared;
    const int64_t columns = a.slice + (PHASED ? 8 : 0);
    if (MOMENTS && a.dweight_parts) dweight = numbers, numbers += columns;
    if (MOMENTS && a.dbias_parts) dbias = numbers, numbers += columns;
    if (MOMENTS && PHASED && a.at.weight) weight = numbers;
    for (int at = phase + threadIdx.x; at < phase + s.length; at += blockDim.x) {
      if (dweight) dweight[at] = 0;
      if (dbias) dbias[at] = 0;
      if (weight) weight[at] = weight_at<T>(a.at.weight, begin + at, a);
    }
    __syncthreads();
  }

  template <int N>
  __device__ void weights_at(C (&w)[N], int column) const {
#pragma unroll
    for (int j = 0; j < N; j++) w[j] = 1;
    if (!MOMENTS || !a.at.weight) return;
    if (PHASED) {
      load_aligned(w, (const C *)weight + column);
    } else {
      load_aligned_weights<T>(w, a.at.weight, begin + column, a);
    }
  }

  template <int N>
  __device__ void gather(plain_sums<C, SUMS> &mine, const C (&x)[N], const C (&dy)[N], int column,
                         C mean, C rstd) const {
    C w[N];
    weights_at(w, column);
#pragma unroll
    for (int j = 0; j < N; j++) add_product<MOMENTS>(mine, x[j], dy[j], w[j], mean, rstd);
  }

  /* dx takes the place of x. */
  template <int N>
  __device__ void apply(C (&x)[N], const C (&dy)[N], int column,
                        const row_gradient<C> &gradient) const {
    if constexpr (MOMENTS) {
      C w[N], of_weight[N];
      weights_at(w, column);
#pragma unroll
      for (int j = 0; j < N; j++) {
        const C z = normalized(gradient, x[j]);
        of_weight[j] = dy[j] * z;
        x[j] = apply_moments_gradient(gradient, z, dy[j] * w[j]);
      }
      if (dweight) add_columns(dweight + column, of_weight);
      if (dbias) add_columns(dbias + column, dy);
    } else {
#pragma unroll
      for (int j = 0; j < N; j++) x[j] = apply_l1_gradient(gradient, x[j], dy[j]);
    }
  }

  __device__ void write_parts(const block_slice &s, int phase) const {
    __syncthreads();
    const int64_t part = blockIdx.x / a.team * a.elements.count + begin;
    for (int at = phase + threadIdx.x; at < phase + s.length; at += blockDim.x) {
      if (dweight) ((C *)a.dweight_parts)[part + at] = dweight[at];
      if (dbias) ((C *)a.dbias_parts)[part + at] = dbias[at];
    }
  }
};

template <class T, bool MOMENTS, int VEC, int PACKS, bool PHASED>
__device__ inline void blocks_backward(const norm_args &a) {
  typedef typename sums_of<T>::type C;
  const int SUMS = MOMENTS ? 3 : 2;
  __shared__ team_memory<C, SUMS> memory;
  extern __shared__ __align__(16) char column_memory[];
  block_slice s(a);
  int turn = 0;
  const pack_view<T, VEC, PHASED> view(row_of<T>(a.at.x, a, ONEPASS_ROLE_X, s.row) + s.begin,
                                       s.length);
  const slice_gradient<T, MOMENTS, PHASED> slice(a, s, column_memory, view.phase);
  for (; s.row < a.rows.count; s.row += s.teams) {
    pack<T, VEC> x[PACKS], dy[PACKS];
    load_packs(x, (const T *)row_of<T>(a.at.x, a, ONEPASS_ROLE_X, s.row) + s.begin, view);
    load_packs(dy, (const T *)row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, s.row) + s.begin, view);
    C mean = 0, rstd = 0;
    if (MOMENTS) {
      mean = *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, s.row);
      rstd = *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, s.row);
    }
    plain_sums<C, SUMS> mine;
    mine.clear();
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      C v[VEC], g[VEC];
      widen_pack(v, x[i]);
      widen_pack(g, dy[i]);
      if (view.is_whole(i)) {
        slice.gather(mine, v, g, view.column(i), mean, rstd);
      } else if (view.has_some(i)) {
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          const C one[1] = {v[j]}, one_dy[1] = {g[j]};
          if (view.has(view.first(i) + j))
            slice.gather(mine, one, one_dy, view.column(i) + j, mean, rstd);
        }
      }
    }
    mine = sum_team(mine, memory, turn, a.team);
    row_gradient<C> gradient;
    if constexpr (MOMENTS) {
      gradient = gradient_by_moments<C>(mine.v[0], mine.v[1], mine.v[2], mean, rstd, a);
    } else {
      gradient = gradient_by_sums<C>(mine.v[0], mine.v[1], a);
    }
    T *dx = row_of<T>(a.at.dx, a, ONEPASS_ROLE_DX, s.row) + s.begin;
#pragma unroll
    for (int i = 0; i < PACKS; i++) {
      const int at = view.first(i);
      C v[VEC], g[VEC];
      stay_packed(x[i]);
      stay_packed(dy[i]);
      widen_pack(v, x[i]);
      widen_pack(g, dy[i]);
      if (view.is_whole(i)) {
        slice.apply(v, g, view.column(i), gradient);
        store_once(dx + at, narrow_pack<C, T, VEC>(v));
      } else if (view.has_some(i)) {
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          C one[1] = {v[j]};
          const C one_dy[1] = {g[j]};
          if (!view.has(at + j)) continue;
          slice.apply(one, one_dy, view.column(i) + j, gradient);
          dx[at + j] = narrow_to<T>::from(one[0]);
        }
      }
    }
  }
  slice.write_parts(s, view.phase);
#if __CUDA_ARCH__ >= 900
  if (a.team > 1) meet_cluster(); /* others may still read this block's sums */
#endif
}

#endif
