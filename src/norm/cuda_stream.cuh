/* Rows that stream through shared memory.
 *
 * A team of blocks (one, the blocks of a cluster, or blocks anywhere on the chip) does row after
 * row; each block has the same slice of all its rows, so its part of weight and bias is read once
 * and its part of dweight and dbias is summed in shared memory. A slice is seen as slots of 16
 * aligned bytes: the first and the last one may be partly another's, whatever the row's length, so
 * odd lengths cost next to nothing. Thread t has the slots t, t + threads, ...; only the sums of a
 * row are exchanged.
 *
 * Slots move in chunks through a ring: a thread asks for the chunk `ring` chunks ahead as soon as it
 * has written the one in its place. So loads are under way while sums are exchanged and while
 * results are written, and memory never waits for arithmetic.
 *
 * Moves each element of x (and dy) once and each element of y (or dx) once. */
#ifndef ONEPASS_NORM_CUDA_STREAM_CUH
#define ONEPASS_NORM_CUDA_STREAM_CUH

#include "norm/cuda_common.cuh"

enum { STREAM_MOST_THREADS = 512, STREAM_MOST_WARPS = STREAM_MOST_THREADS / WARP };

/* ---- Tagged words: a word and its tag arrive together, so nothing else has to be ordered ------ */

__device__ inline void send_global(unsigned long long *to, unsigned long long word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ inline unsigned long long read_global(const unsigned long long *from) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}

#if __CUDA_ARCH__ >= 900
__device__ inline void send_to_block(unsigned long long *own, int rank, unsigned long long word) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"((unsigned)__cvta_generic_to_shared(own)), "r"(rank));
  asm volatile("st.relaxed.cluster.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(word) : "memory");
}

__device__ inline unsigned long long read_own(const unsigned long long *own) {
  unsigned long long word;
  asm volatile("ld.relaxed.cluster.shared::cta.u64 %0, [%1];"
               : "=l"(word)
               : "r"((unsigned)__cvta_generic_to_shared(own))
               : "memory");
  return word;
}

__device__ inline void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif

/* VEC numbers from shared memory, `first` of any alignment: whole aligned vectors, and a choice. */
template <class C, int VEC> __device__ inline void load_shifted(C (&to)[VEC], const C *from, int first) {
  const int N = 16 / sizeof(C);
  const int shift = first % N;
  C all[VEC + N];
#pragma unroll
  for (int i = 0; i < VEC + N; i += N) {
    if (i == VEC && shift == 0) break;
    const pack<C, N> part = *(const pack<C, N> *)(from + (first - shift) + i);
#pragma unroll
    for (int j = 0; j < N; j++) all[i + j] = part.v[j];
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    if (shift != k) continue;
#pragma unroll
    for (int j = 0; j < VEC; j++) to[j] = all[j + k];
  }
}

/* ---- A block at work -------------------------------------------------------------------------- */

template <class T, bool MOMENTS, bool BACKWARD> struct stream {
  typedef typename sums_of<T>::type C;
  static const int VEC = vector_of<T>::count, SLOTS = ONEPASS_NORM_CHUNK_SLOTS;
  typedef typename vector_of<T>::type slot_type;
  static const int SUMS = BACKWARD ? (MOMENTS ? 3 : 2) : (MOMENTS ? 2 : 1), WORDS = 2 * SUMS;

  typedef slice_view<T> view_type;

  const norm_args &a;
  int threads, rank, length;
  int64_t begin, team_index, teams;
  /* shared memory */
  slot_type *x_ring, *dy_ring;
  C *weight, *bias, *dweight, *dbias, *warp_sums;
  double *total;
  unsigned long long *own_mail;
  /* the next chunk to ask for */
  int64_t next_row;
  int next_chunk, next_place;
  /* the chunks in the ring */
  int place; /* of the first chunk of the row that is gathered or applied next */

  __device__ stream(const norm_args &args, char *shared) : a(args) {
    threads = blockDim.x;
    rank = blockIdx.x % a.team;
    team_index = blockIdx.x / a.team;
    teams = gridDim.x / a.team;
    begin = rank * a.slice;
    const int64_t rest = a.elements.count - begin;
    length = (int)(rest < a.slice ? rest : a.slice);
    lay_out(shared);
    next_row = team_index;
    next_chunk = next_place = place = 0;
  }

  /* onepass_norm_stream_shared in launch_cuda.c knows the same sizes. */
  __device__ void lay_out(char *shared) {
    const int ring_slots = a.ring * SLOTS * threads;
    const int64_t columns = (a.slice + 7) / 8 * 8 + 8;
    x_ring = (slot_type *)shared;
    dy_ring = x_ring + ring_slots;
    C *numbers = (C *)(x_ring + (BACKWARD ? 2 : 1) * ring_slots);
    weight = bias = dweight = dbias = NULL;
    if (MOMENTS && a.shared_weights && a.at.weight) weight = numbers, numbers += columns;
    if (MOMENTS && a.shared_weights && a.at.bias) bias = numbers, numbers += columns;
    if (MOMENTS && BACKWARD && a.dweight_parts) dweight = numbers, numbers += columns;
    if (MOMENTS && BACKWARD && a.dbias_parts) dbias = numbers, numbers += columns;
    total = (double *)numbers;
    warp_sums = (C *)(total + 2 * ONEPASS_NORM_MOST_SUMS);
    own_mail = (unsigned long long *)(warp_sums + 2 * STREAM_MOST_WARPS * ONEPASS_NORM_MOST_SUMS);
  }

  __device__ void prepare() {
    for (int i = threadIdx.x; i < length; i += threads) {
      if (weight) weight[i] = weight_at<T>(a.at.weight, begin + i, a);
      if (bias) bias[i] = weight_at<T>(a.at.bias, begin + i, a);
      if (dweight) dweight[i] = 0;
      if (dbias) dbias[i] = 0;
    }
#if __CUDA_ARCH__ >= 900
    if (a.exchange == ONEPASS_NORM_CLUSTER) {
      for (int i = threadIdx.x; i < ONEPASS_NORM_MAIL_SLOTS * a.team * WORDS; i += threads) own_mail[i] = 0;
      meet_cluster();
    }
#endif
    __syncthreads();
  }

  __device__ const T *x_slice(int64_t row) const { return row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row) + begin; }
  __device__ const T *dy_slice(int64_t row) const { return row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, row) + begin; }

  __device__ int at_ring(int chunk_place, int k) const { return (chunk_place * SLOTS + k) * threads + threadIdx.x; }

  /* ---- Loads ---- */

  __device__ void copy_slot(slot_type *to, const T *slice, const view_type &view, int slot) const {
    const int left = (view.end - slot * VEC) * (int)sizeof(T);
    copy_async(to, slice - view.phase + slot * VEC, left < 16 ? left : 16);
  }

  /* dy whose rows are aligned otherwise than those of x. */
  __device__ void copy_elements(slot_type *to, const T *slice, const view_type &view, int slot) const {
    for (int j = 0; j < VEC; j++) {
      const int position = slot * VEC + j;
      if (view.has(position)) to->v[j] = slice[position - view.phase];
    }
  }

  __device__ void ask_for_next_chunk() {
    if (next_row < a.rows.count) {
      const T *x = x_slice(next_row);
      const view_type view(x, length);
      const T *dy = BACKWARD ? dy_slice(next_row) : NULL;
      const bool alike = !BACKWARD || phase_of(dy) == view.phase;
#pragma unroll
      for (int k = 0; k < SLOTS; k++) {
        const int slot = (next_chunk * SLOTS + k) * threads + threadIdx.x;
        if (slot >= view.slots()) continue;
        const int to = at_ring(next_place, k);
        copy_slot(&x_ring[to], x, view, slot);
        if (BACKWARD && alike) copy_slot(&dy_ring[to], dy, view, slot);
        if (BACKWARD && !alike) copy_elements(&dy_ring[to], dy, view, slot);
      }
    }
    commit_copies();
    if (++next_place == a.ring) next_place = 0;
    if (++next_chunk == a.chunks) {
      next_chunk = 0;
      next_row += teams;
    }
  }

  __device__ int after(int chunk_place) const { return chunk_place + 1 == a.ring ? 0 : chunk_place + 1; }

  /* ---- Sums ---- */

  /* Deviations from `first`, an element of the row: a large mean costs no precision. */
  __device__ moments<C> gather_moments(const view_type &view, int from, int behind, C first) const {
    thread_moments<C> mine;
    mine.clear();
    for (int chunk = 0; chunk < a.chunks; chunk++, from = after(from)) {
      wait_for_copies(behind - chunk);
#pragma unroll
      for (int k = 0; k < SLOTS; k++) {
        const int slot = (chunk * SLOTS + k) * threads + threadIdx.x;
        if (slot >= view.slots()) continue;
        C v[VEC];
        widen_pack(v, x_ring[at_ring(from, k)]);
        add_slot(mine, v, view, slot, first);
      }
    }
    return mine.finish();
  }

  __device__ plain_sums<C, 1> gather_abs(const view_type &view, int from, int behind) const {
    plain_sums<C, 1> mine;
    mine.clear();
    for (int chunk = 0; chunk < a.chunks; chunk++, from = after(from)) {
      wait_for_copies(behind - chunk);
#pragma unroll
      for (int k = 0; k < SLOTS; k++) {
        const int slot = (chunk * SLOTS + k) * threads + threadIdx.x;
        if (slot >= view.slots()) continue;
        C v[VEC];
        widen_pack(v, x_ring[at_ring(from, k)]);
        mine.v[0] += sum_of_slot(v, view, slot);
      }
    }
    return mine;
  }

  __device__ plain_sums<C, SUMS> gather_products(const view_type &view, int from, int behind, C mean, C rstd) const {
    plain_sums<C, SUMS> mine;
    mine.clear();
    for (int chunk = 0; chunk < a.chunks; chunk++, from = after(from)) {
      wait_for_copies(behind - chunk);
#pragma unroll
      for (int k = 0; k < SLOTS; k++) {
        const int slot = (chunk * SLOTS + k) * threads + threadIdx.x;
        if (slot >= view.slots()) continue;
        C x[VEC], dy[VEC], w[VEC];
        widen_pack(x, x_ring[at_ring(from, k)]);
        widen_pack(dy, dy_ring[at_ring(from, k)]);
        if (MOMENTS) weights_of(w, weight, a.at.weight, view, slot, 1);
        add_products<MOMENTS>(mine, x, dy, w, view, slot, mean, rstd);
      }
    }
    return mine;
  }

  /* One barrier; `turn` alternates. */
  template <class S> __device__ S sum_threads(const S &mine, int turn) const {
    return sum_block(mine, (S *)warp_sums + turn * STREAM_MOST_WARPS);
  }

  /* The sums of this block's slice of a row as doubles, which every thread gets. */
  __device__ void gather(int64_t row, int turn, int from, int behind, C first, double (&part)[SUMS]) {
    const view_type view(x_slice(row), length);
    if constexpr (BACKWARD) {
      C mean = 0, rstd = 0;
      if (MOMENTS) {
        mean = *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row);
        rstd = *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
      }
      const plain_sums<C, SUMS> sums = sum_threads(gather_products(view, from, behind, mean, rstd), turn);
#pragma unroll
      for (int i = 0; i < SUMS; i++) part[i] = sums.v[i];
    } else if constexpr (MOMENTS) {
      const moments<C> sums = sum_threads(gather_moments(view, from, behind, first), turn);
      part[0] = (double)first + (double)sums.mean;
      part[1] = sums.squares;
    } else {
      part[0] = sum_threads(gather_abs(view, from, behind), turn).v[0];
    }
  }

  /* ---- Exchange between the blocks of a team ---- */

  __device__ unsigned long long *mail_of(int64_t sequence, int from) const {
    unsigned long long *mail = own_mail;
    if (a.exchange == ONEPASS_NORM_GLOBAL) {
      mail = a.mail + team_index * ONEPASS_NORM_MAIL_SLOTS * a.team * WORDS;
    }
    return mail + ((int)(sequence % ONEPASS_NORM_MAIL_SLOTS) * a.team + from) * WORDS;
  }

  __device__ void send(int64_t sequence, const double (&part)[SUMS]) {
    if (threadIdx.x >= WARP) return;
    unsigned long long *to = mail_of(sequence, rank);
    const unsigned long long tag = (unsigned long long)(unsigned)(sequence + 1) << 32;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
      const unsigned long long bits = (unsigned long long)__double_as_longlong(part[i]);
      const unsigned long long low = tag | (unsigned)bits, high = tag | (bits >> 32);
      if (a.exchange == ONEPASS_NORM_GLOBAL) {
        if (threadIdx.x == 0) {
          send_global(to + 2 * i, low);
          send_global(to + 2 * i + 1, high);
        }
      } else {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x < a.team) {
          send_to_block(to + 2 * i, threadIdx.x, low);
          send_to_block(to + 2 * i + 1, threadIdx.x, high);
        }
#endif
      }
    }
  }

  __device__ unsigned receive_word(const unsigned long long *from, unsigned tag) const {
    unsigned long long word = 0;
    do {
#if __CUDA_ARCH__ >= 900
      word = a.exchange == ONEPASS_NORM_GLOBAL ? read_global(from) : read_own(from);
#else
      word = read_global(from);
#endif
    } while ((unsigned)(word >> 32) != tag);
    return (unsigned)word;
  }

  /* Merge the parts of all blocks, in their order within a lane and the lanes in theirs. */
  __device__ void receive(int64_t sequence, double (&whole)[SUMS]) {
    double *result = total + sequence % 2 * ONEPASS_NORM_MOST_SUMS;
    if (threadIdx.x < WARP) {
      double part[SUMS];
      moments<double> merged_moments;
      plain_sums<double, SUMS> merged;
      merged_moments.clear();
      merged.clear();
      for (int from = threadIdx.x; from < a.team; from += WARP) {
        const unsigned long long *mail = mail_of(sequence, from);
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
          const unsigned low = receive_word(mail + 2 * i, (unsigned)(sequence + 1));
          const unsigned high = receive_word(mail + 2 * i + 1, (unsigned)(sequence + 1));
          part[i] = __hiloint2double((int)high, (int)low);
        }
        if constexpr (MOMENTS && !BACKWARD) {
          const int64_t rest = a.elements.count - from * a.slice;
          merged_moments.merge(moments<double>{(double)(rest < a.slice ? rest : a.slice), part[0], part[1]});
        } else {
#pragma unroll
          for (int i = 0; i < SUMS; i++) merged.v[i] += part[i];
        }
      }
      if constexpr (MOMENTS && !BACKWARD) {
        merged_moments = sum_lanes(merged_moments, WARP);
        part[0] = merged_moments.mean;
        part[1] = merged_moments.squares;
      } else {
        merged = sum_lanes(merged, WARP);
#pragma unroll
        for (int i = 0; i < SUMS; i++) part[i] = merged.v[i];
      }
      if (threadIdx.x == 0) {
#pragma unroll
        for (int i = 0; i < SUMS; i++) result[i] = part[i];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SUMS; i++) whole[i] = result[i];
  }

  /* ---- Results ---- */

  __device__ void weights_of(C (&to)[VEC], const C *waiting, const void *in_memory, const view_type &view, int slot,
                             C otherwise) const {
    const int first = slot * VEC - view.phase;
    if (!in_memory) {
#pragma unroll
      for (int j = 0; j < VEC; j++) to[j] = otherwise;
    } else if (view.is_whole(slot)) {
      if (waiting) {
        load_shifted(to, waiting, first);
      } else {
        load_weights_at<T>(to, in_memory, begin + first, a);
      }
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        to[j] = otherwise;
        if (!view.has(slot * VEC + j)) continue;
        to[j] = waiting ? waiting[first + j] : weight_at<T>(in_memory, begin + first + j, a);
      }
    }
  }

  /* sums[first + j] += terms[j]; nobody else has these columns of this row, and the next row's come
   * after a barrier. */
  __device__ void add_to(C *sums, const C (&terms)[VEC], const view_type &view, int slot) const {
    const int N = 16 / sizeof(C), first = slot * VEC - view.phase;
    if (!sums) return;
    if (view.phase == 0 && view.is_whole(slot)) {
#pragma unroll
      for (int i = 0; i < VEC; i += N) {
        pack<C, N> *at = (pack<C, N> *)(sums + first + i);
        pack<C, N> part = *at;
#pragma unroll
        for (int j = 0; j < N; j++) part.v[j] += terms[i + j];
        *at = part;
      }
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if (view.has(slot * VEC + j)) sums[first + j] += terms[j];
      }
    }
  }

  __device__ void apply_forward(int64_t row, const double (&whole)[SUMS]) {
    const view_type view(x_slice(row), length);
    T *y = row_of<T>(a.at.y, a, ONEPASS_ROLE_Y, row) + begin;
    const bool alike = phase_of(y) == view.phase;
    row_scale<C> scale;
    if constexpr (MOMENTS) {
      scale = scale_by_moments<C>(whole[0], whole[1], a);
      if (rank == 0 && threadIdx.x == 0) {
        if (a.at.mean) *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = (C)whole[0];
        if (a.at.rstd) *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) = scale.scale;
      }
    } else {
      scale = scale_by_sum<C>(whole[0], a);
    }
    for (int chunk = 0; chunk < a.chunks; chunk++, place = after(place)) {
#pragma unroll
      for (int k = 0; k < SLOTS; k++) {
        const int slot = (chunk * SLOTS + k) * threads + threadIdx.x;
        if (slot >= view.slots()) continue;
        C v[VEC], w[VEC], b[VEC];
        widen_pack(v, x_ring[at_ring(place, k)]);
        if (MOMENTS) weights_of(w, weight, a.at.weight, view, slot, 1);
        if (MOMENTS) weights_of(b, bias, a.at.bias, view, slot, 0);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
          v[j] = apply_scale<MOMENTS>(scale, v[j]);
          if (MOMENTS) v[j] = v[j] * w[j] + b[j];
        }
        store_slot(y, v, view, slot, alike);
      }
      ask_for_next_chunk();
    }
  }

  __device__ void apply_backward(int64_t row, const double (&whole)[SUMS]) {
    const view_type view(x_slice(row), length);
    T *dx = row_of<T>(a.at.dx, a, ONEPASS_ROLE_DX, row) + begin;
    const bool alike = phase_of(dx) == view.phase;
    row_gradient<C> gradient;
    if constexpr (MOMENTS) {
      gradient = gradient_by_moments<C>(whole[0], whole[1], whole[2], *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row),
                                        *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row), a);
    } else {
      gradient = gradient_by_sums<C>(whole[0], whole[1], a);
    }
    for (int chunk = 0; chunk < a.chunks; chunk++, place = after(place)) {
#pragma unroll
      for (int k = 0; k < SLOTS; k++) {
        const int slot = (chunk * SLOTS + k) * threads + threadIdx.x;
        if (slot >= view.slots()) continue;
        C x[VEC], dy[VEC], w[VEC], out[VEC];
        widen_pack(x, x_ring[at_ring(place, k)]);
        widen_pack(dy, dy_ring[at_ring(place, k)]);
        if constexpr (MOMENTS) {
          weights_of(w, weight, a.at.weight, view, slot, 1);
          C of_weight[VEC];
#pragma unroll
          for (int j = 0; j < VEC; j++) {
            const C z = normalized(gradient, x[j]);
            of_weight[j] = dy[j] * z;
            out[j] = apply_moments_gradient(gradient, z, dy[j] * w[j]);
          }
          add_to(dweight, of_weight, view, slot);
          add_to(dbias, dy, view, slot);
        } else {
#pragma unroll
          for (int j = 0; j < VEC; j++) out[j] = apply_l1_gradient(gradient, x[j], dy[j]);
        }
        store_slot(dx, out, view, slot, alike);
      }
      ask_for_next_chunk();
    }
  }

  __device__ void write_parts() {
    __syncthreads();
    const int64_t at = team_index * a.elements.count + begin;
    for (int i = threadIdx.x; i < length; i += threads) {
      if (dweight) ((C *)a.dweight_parts)[at + i] = dweight[i];
      if (dbias) ((C *)a.dbias_parts)[at + i] = dbias[i];
    }
  }

  __device__ C first_of(int64_t row) const {
    return MOMENTS && !BACKWARD && row < a.rows.count ? (C)widen(*x_slice(row)) : 0;
  }

  /* ---- All rows ---- */

  __device__ void run() {
    for (int i = 0; i < a.ring; i++) ask_for_next_chunk();
    prepare();
    double part[SUMS], whole[SUMS];
    const bool shares = a.exchange != ONEPASS_NORM_ALONE;
    int64_t sequence = 0, row = team_index;
    C first = first_of(row + teams);
    int gathered = place; /* where the next row to gather begins */
    gather(row, 0, gathered, a.ring - 1, first_of(row), part);
    if (shares) send(0, part);
    for (; row < a.rows.count; row += teams, sequence++) {
      const bool more = row + teams < a.rows.count;
      const C now = first;
      first = first_of(row + 2 * teams);
      gathered += a.chunks;
      if (gathered >= a.ring) gathered -= a.ring;
      if (a.lookahead && more) {
        gather(row + teams, (sequence + 1) % 2, gathered, a.ring - 1 - a.chunks, now, part);
        send(sequence + 1, part);
      }
      if (shares) {
        receive(sequence, whole);
      } else {
#pragma unroll
        for (int i = 0; i < SUMS; i++) whole[i] = part[i];
      }
      if constexpr (BACKWARD) {
        apply_backward(row, whole);
      } else {
        apply_forward(row, whole);
      }
      if (!a.lookahead && more) {
        gather(row + teams, (sequence + 1) % 2, gathered, a.ring - 1, now, part);
        if (shares) send(sequence + 1, part);
      }
    }
    wait_for_all_but<0>();
    if (MOMENTS && BACKWARD) write_parts();
  }
};

#endif
