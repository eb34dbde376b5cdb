/* Rows that stream through the shared memory of the whole chip.
 *
 * All blocks run at once and do row after row together; each has the same slice of every row, so its
 * part of weight and bias is read once and its part of dweight and dbias is summed in shared memory. A slice is seen as slots of 16
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

#include <type_traits>

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

/* VEC numbers from shared memory, `first` of any alignment: whole aligned vectors, and a choice. */
template <class C, int VEC>
__device__ inline void load_shifted(C (&to)[VEC], const C *from, int first) {
  const int N = 16 / sizeof(C);
  const int shift = first & (N - 1);
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

template <class T, bool MOMENTS, bool BACKWARD>
struct stream {
  typedef typename sums_of<T>::type C;
  static const int VEC = vector_of<T>::count, SLOTS = ONEPASS_NORM_CHUNK_SLOTS;
  static const int SUMS = BACKWARD ? (MOMENTS ? 3 : 2) : (MOMENTS ? 2 : 1), WORDS = 2 * SUMS;
  typedef typename vector_of<T>::type slot_type;
  typedef slice_view<T> view_type;
  typedef plain_sums<C, SUMS> sums_type;

  const norm_args &a;
  int threads, rank, length;
  int chunk_slots; /* of all threads */
  int64_t begin;
  /* Shared memory. */
  slot_type *x_ring;
  int dy_after_x, ring_slots; /* dy's ring lies behind that of x */
  C *weight, *bias, *dweight, *dbias, *warp_sums;
  double *total, *parts; /* the merged sums of a row, and those of each block */
  C *guesses; /* at the means of the rows under way: y may lie over x, so they are kept */
  /* The next chunk to ask for: its row, and where this thread's first slot of it comes from and goes
   * to. */
  int64_t asked_row;
  const T *asked_x, *asked_dy;
  view_type asked;
  int asked_slot, asked_place;

  __device__ stream(const norm_args &args, char *shared) : a(args) {
    threads = blockDim.x;
    chunk_slots = threads * SLOTS;
    rank = blockIdx.x;
    begin = rank * a.slice;
    const int64_t rest = a.elements.count - begin;
    length = (int)(rest < a.slice ? rest : a.slice);
    lay_out(shared);
    asked_place = threadIdx.x;
    ask_of_row(0);
  }

  /* stream_fixed in launch_cuda.c knows the same sizes. */
  __device__ void lay_out(char *shared) {
    const int64_t columns = (a.slice + 7) / 8 * 8 + 8;
    ring_slots = dy_after_x = a.ring * chunk_slots;
    x_ring = (slot_type *)shared;
    C *numbers = (C *)(x_ring + (BACKWARD ? 2 : 1) * ring_slots);
    weight = bias = dweight = dbias = NULL;
    if (MOMENTS && a.shared_weights && a.at.weight) weight = numbers, numbers += columns;
    if (MOMENTS && a.shared_weights && a.at.bias) bias = numbers, numbers += columns;
    if (MOMENTS && BACKWARD && a.dweight_parts) dweight = numbers, numbers += columns;
    if (MOMENTS && BACKWARD && a.dbias_parts) dbias = numbers, numbers += columns;
    total = (double *)numbers;
    parts = total + ONEPASS_NORM_MOST_SUMS + 1;
    warp_sums = (C *)(parts + a.team * SUMS);
    guesses = warp_sums + 2 * STREAM_MOST_WARPS * ONEPASS_NORM_MOST_SUMS;
  }

  __device__ void prepare() {
    for (int i = threadIdx.x; i < length; i += threads) {
      if (weight) weight[i] = weight_at<T>(a.at.weight, begin + i, a);
      if (bias) bias[i] = weight_at<T>(a.at.bias, begin + i, a);
      if (dweight) dweight[i] = 0;
      if (dbias) dbias[i] = 0;
    }
    __syncthreads();
  }

  __device__ const T *x_slice(int64_t row) const {
    return row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row) + begin;
  }

  /* ---- Loads ---- */

  __device__ void ask_of_row(int64_t row) {
    asked_row = row;
    asked_slot = threadIdx.x;
    if (row >= a.rows.count) {
      asked.phase = asked.end = 0; /* a row without slots */
      return;
    }
    asked_x = x_slice(row);
    asked = view_type(asked_x, length);
    asked_x -= asked.phase;
    if (BACKWARD) asked_dy = row_of<T>(a.at.dy, a, ONEPASS_ROLE_DY, row) + begin - asked.phase;
  }

  /* dy whose rows are aligned otherwise than those of x. */
  __device__ void copy_elements(slot_type *to, int slot) const {
#pragma unroll 1
    for (int j = 0; j < VEC; j++) {
      if (asked.has(slot * VEC + j)) to->v[j] = asked_dy[slot * VEC + j];
    }
  }

  __device__ void ask_for_next_chunk() {
    const int slots = asked.slots();
    const bool alike = !BACKWARD || (uintptr_t)asked_dy % 16 == 0;
#pragma unroll
    for (int k = 0; k < SLOTS; k++) {
      const int slot = asked_slot + k * threads;
      if (slot >= slots) continue;
      const int left = (asked.end - slot * VEC) * (int)sizeof(T), valid = left < 16 ? left : 16;
      slot_type *to = x_ring + asked_place + k * threads;
      copy_async(to, asked_x + slot * VEC, valid);
      if (BACKWARD && alike) copy_async(to + dy_after_x, asked_dy + slot * VEC, valid);
      if (BACKWARD && !alike) copy_elements(to + dy_after_x, slot);
    }
    commit_copies();
    asked_place += chunk_slots;
    if (asked_place >= ring_slots) asked_place -= ring_slots;
    asked_slot += chunk_slots;
    if (asked_slot >= a.chunks * chunk_slots) ask_of_row(asked_row + 1);
  }

  /* ---- Weights ---- */

  /* Of a whole slot, whose first element is number `first` of the slice. */
  __device__ void load_weights(C (&to)[VEC], const C *waiting, const void *in_memory, int first,
                               C otherwise) const {
    if (waiting) {
      load_shifted(to, waiting, first);
    } else if (in_memory) {
      load_weights_at<T>(to, in_memory, begin + first, a);
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) to[j] = otherwise;
    }
  }

  __device__ C load_weight(const C *waiting, const void *in_memory, int element,
                           C otherwise) const {
    if (waiting) return waiting[element];
    return in_memory ? weight_at<T>(in_memory, begin + element, a) : otherwise;
  }

  /* ---- Sums ---- */

  __device__ void add_slot(sums_type &mine, const slot_type *at, int first, C mean, C rstd) const {
    C x[VEC];
    widen_pack(x, *at);
    if constexpr (BACKWARD) {
      C dy[VEC], w[VEC];
      widen_pack(dy, at[dy_after_x]);
      if (MOMENTS) load_weights(w, weight, a.at.weight, first, 1);
#pragma unroll
      for (int j = 0; j < VEC; j++)
        add_product<MOMENTS>(mine, x[j], dy[j], MOMENTS ? w[j] : 1, mean, rstd);
    } else if constexpr (MOMENTS) {
      add_deviations(mine, x, mean);
    } else {
      add_magnitudes(mine, x);
    }
  }

  __device__ void add_some_of_slot(sums_type &mine, const slot_type *at, const view_type &view,
                                   int slot, C mean, C rstd) const {
#pragma unroll 1
    for (int j = 0; j < VEC; j++) {
      const int position = slot * VEC + j;
      if (!view.has(position)) continue;
      const C x[1] = {(C)widen(at->v[j])};
      if constexpr (BACKWARD) {
        const C w = MOMENTS ? load_weight(weight, a.at.weight, position - view.phase, 1) : 1;
        add_product<MOMENTS>(mine, x[0], (C)widen(at[dy_after_x].v[j]), w, mean, rstd);
      } else if constexpr (MOMENTS) {
        add_deviations(mine, x, mean);
      } else {
        add_magnitudes(mine, x);
      }
    }
  }

  /* This thread's part of the sums of a row whose first chunk is at `place`. */
  __device__ sums_type gather(const view_type &view, int place, int behind, C mean, C rstd) const {
    sums_type mine;
    mine.clear();
    for (int slot = threadIdx.x; slot < a.chunks * chunk_slots; slot += chunk_slots, behind--) {
      const slot_type *at = x_ring + place + threadIdx.x;
      wait_for_copies(behind);
      if (view.is_whole(slot) && view.is_whole(slot + (SLOTS - 1) * threads)) {
#pragma unroll
        for (int k = 0; k < SLOTS; k++) {
          add_slot(mine, at + k * threads, (slot + k * threads) * VEC - view.phase, mean, rstd);
        }
      } else {
#pragma unroll 1
        for (int k = 0; k < SLOTS; k++, at += threads) {
          const int here = slot + k * threads;
          if (view.is_whole(here)) {
            add_slot(mine, at, here * VEC - view.phase, mean, rstd);
          } else {
            add_some_of_slot(mine, at, view, here, mean, rstd);
          }
        }
      }
      place += chunk_slots;
      if (place >= ring_slots) place -= ring_slots;
    }
    return mine;
  }

  /* One barrier; `turn` alternates. */
  __device__ sums_type sum_threads(const sums_type &mine, int turn) const {
    return sum_block(mine, (sums_type *)warp_sums + turn * STREAM_MOST_WARPS);
  }

  /* The sums of this block's slice of a row as doubles, which every thread gets. Forward, `mean` is a
   * guess; if the moments about it lost bits, for all threads alike, they are gathered about a better
   * one. */
  __device__ void gather_slice(int64_t row, int turn, int place, int behind, C mean, C rstd,
                               double (&part)[SUMS]) const {
    const view_type view(x_slice(row), length);
    if constexpr (MOMENTS && !BACKWARD) {
      const C guess = mean;
      for (int attempt = 0;; attempt++) {
        const sums_type sums = sum_threads(gather(view, place, behind, mean, 0), turn);
        const row_moments<C> found(sums, mean, (C)length);
        part[0] = (double)(mean - guess) + (double)found.more; /* all blocks have the same guess */
        part[1] = found.squares;
        if (!found.lossy || attempt == 1) break;
        mean += found.more;
        __syncthreads(); /* the sums have been read */
      }
    } else {
      const sums_type sums = sum_threads(gather(view, place, behind, mean, rstd), turn);
#pragma unroll
      for (int i = 0; i < SUMS; i++) part[i] = sums.v[i];
    }
  }

  /* ---- Exchange between the blocks ---- */

  __device__ unsigned long long *mail_of(int64_t sequence) const {
    return a.mail + (sequence % ONEPASS_NORM_MAIL_SLOTS) * a.team * WORDS;
  }

  /* Every block has the same sums in all its threads; some of them send a word each. */
  __device__ void send(int64_t sequence, const double (&part)[SUMS]) const {
    const unsigned long long tag = (unsigned long long)(unsigned)(sequence + 1) << 32;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
      const unsigned long long bits = (unsigned long long)__double_as_longlong(part[i]);
      unsigned long long *to = mail_of(sequence) + rank * WORDS + 2 * i;
      if (threadIdx.x == 2 * i) send_global(to, tag | (unsigned)bits);
      if (threadIdx.x == 2 * i + 1) send_global(to + 1, tag | (bits >> 32));
    }
  }

  __device__ double elements_of(int block) const {
    const int64_t rest = a.elements.count - block * a.slice;
    return (double)(rest < a.slice ? rest : a.slice);
  }

  /* All threads fetch words, so that their waits overlap; the first warp merges the parts, in their
   * order within a lane and the lanes in theirs. */
  __device__ void receive(int64_t sequence, double (&whole)[SUMS]) {
    const unsigned long long *mail = mail_of(sequence);
    unsigned *words = (unsigned *)parts;
    for (int i = threadIdx.x; i < a.team * WORDS; i += threads) {
      unsigned long long word;
      do {
        word = read_global(mail + i);
      } while ((unsigned)(word >> 32) != (unsigned)(sequence + 1));
      words[i] = (unsigned)word;
    }
    __syncthreads();
    if (threadIdx.x < WARP) merge_parts();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SUMS; i++) whole[i] = total[i];
  }

  __device__ void merge_parts() {
    plain_sums<double, SUMS> merged;
    merged.clear();
    for (int from = threadIdx.x; from < a.team; from += WARP) {
#pragma unroll
      for (int i = 0; i < SUMS; i++) {
        merged.v[i] +=
            parts[from * SUMS + i] * (MOMENTS && !BACKWARD && i == 0 ? elements_of(from) : 1);
      }
    }
    merged = sum_lanes(merged, WARP);
    if constexpr (MOMENTS && !BACKWARD) {
      /* The squares about the mean of all blocks. */
      const double mean = merged.v[0] * a.one_over_n;
      plain_sums<double, 1> apart;
      apart.clear();
      for (int from = threadIdx.x; from < a.team; from += WARP) {
        const double distance = parts[from * SUMS] - mean;
        apart.v[0] += distance * distance * elements_of(from);
      }
      merged.v[0] = mean;
      merged.v[1] += sum_lanes(apart, WARP).v[0];
    }
    if (threadIdx.x == 0) {
#pragma unroll
      for (int i = 0; i < SUMS; i++) total[i] = merged.v[i];
    }
  }

  /* ---- Results ---- */

  /* sums[first + j] += terms[j]; nobody else has these columns of this row, and the next row's come
   * after a barrier. */
  __device__ void add_to(C *sums, const C (&terms)[VEC], int first) const {
    const int N = 16 / sizeof(C);
    if (!sums) return;
    if (first % N == 0) {
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
      for (int j = 0; j < VEC; j++) sums[first + j] += terms[j];
    }
  }

  __device__ C forward_of(const row_scale<C> &scale, C x, C w, C b) const {
    const C v = apply_scale<MOMENTS>(scale, x);
    return MOMENTS ? v * w + b : v;
  }

  __device__ C backward_of(const row_gradient<C> &gradient, C x, C dy, C w, C &of_weight) const {
    if constexpr (MOMENTS) {
      const C z = normalized(gradient, x);
      of_weight = dy * z;
      return apply_moments_gradient(gradient, z, dy * w);
    } else {
      return apply_l1_gradient(gradient, x, dy);
    }
  }

  typedef typename std::conditional<BACKWARD, row_gradient<C>, row_scale<C>>::type coefficients;

  /* A whole slot; first is the number of its first element. */
  __device__ void apply_to_slot(const coefficients &row, T *out, const slot_type *at, int first,
                                bool alike) const {
    C x[VEC], w[VEC], result[VEC];
    widen_pack(x, *at);
    if (MOMENTS) load_weights(w, weight, a.at.weight, first, 1);
    if constexpr (BACKWARD) {
      C dy[VEC], of_weight[VEC];
      widen_pack(dy, at[dy_after_x]);
#pragma unroll
      for (int j = 0; j < VEC; j++)
        result[j] = backward_of(row, x[j], dy[j], MOMENTS ? w[j] : 1, of_weight[j]);
      if (MOMENTS) {
        add_to(dweight, of_weight, first);
        add_to(dbias, dy, first);
      }
    } else {
      C b[VEC];
      if (MOMENTS) load_weights(b, bias, a.at.bias, first, 0);
#pragma unroll
      for (int j = 0; j < VEC; j++)
        result[j] = forward_of(row, x[j], MOMENTS ? w[j] : 1, MOMENTS ? b[j] : 0);
    }
    const slot_type packed = narrow_pack<C, T, VEC>(result);
    if (alike) {
      store_once(out + first, packed);
    } else {
#pragma unroll
      for (int j = 0; j < VEC; j++) out[first + j] = packed.v[j];
    }
  }

  __device__ void apply_to_some_of_slot(const coefficients &row, T *out, const slot_type *at,
                                        const view_type &view, int slot) const {
#pragma unroll 1
    for (int j = 0; j < VEC; j++) {
      const int element = slot * VEC + j - view.phase;
      if (!view.has(slot * VEC + j)) continue;
      const C x = widen(at->v[j]), w = MOMENTS ? load_weight(weight, a.at.weight, element, 1) : 1;
      C result;
      if constexpr (BACKWARD) {
        C of_weight;
        const C dy = widen(at[dy_after_x].v[j]);
        result = backward_of(row, x, dy, w, of_weight);
        if (MOMENTS && dweight) dweight[element] += of_weight;
        if (MOMENTS && dbias) dbias[element] += dy;
      } else {
        result = forward_of(row, x, w, MOMENTS ? load_weight(bias, a.at.bias, element, 0) : 0);
      }
      out[element] = narrow_to<T>::from(result);
    }
  }

  __device__ void apply(int64_t row, int place, const coefficients &coefficients_of_row) {
    const view_type view(x_slice(row), length);
    const int role = BACKWARD ? ONEPASS_ROLE_DX : ONEPASS_ROLE_Y;
    T *out = row_of<T>(BACKWARD ? a.at.dx : a.at.y, a, role, row) + begin;
    const bool alike = phase_of(out) == view.phase;
    const coefficients c = coefficients_of_row;
    for (int slot = threadIdx.x; slot < a.chunks * chunk_slots; slot += chunk_slots) {
      const slot_type *at = x_ring + place + threadIdx.x;
      if (view.is_whole(slot) && view.is_whole(slot + (SLOTS - 1) * threads)) {
#pragma unroll
        for (int k = 0; k < SLOTS; k++) {
          apply_to_slot(c, out, at + k * threads, (slot + k * threads) * VEC - view.phase, alike);
        }
      } else {
#pragma unroll 1
        for (int k = 0; k < SLOTS; k++, at += threads) {
          const int here = slot + k * threads;
          if (view.is_whole(here)) {
            apply_to_slot(c, out, at, here * VEC - view.phase, alike);
          } else {
            apply_to_some_of_slot(c, out, at, view, here);
          }
        }
      }
      ask_for_next_chunk();
      place += chunk_slots;
      if (place >= ring_slots) place -= ring_slots;
    }
  }

  __device__ row_scale<C> scale_of(int64_t row, const double (&whole)[SUMS], C guess) const {
    if constexpr (MOMENTS) {
      const double mean = (double)guess + whole[0];
      const row_scale<C> scale = scale_by_moments<C>(mean, whole[1], a);
      if (rank == 0 && threadIdx.x == 0) {
        if (a.at.mean) *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row) = (C)mean;
        if (a.at.rstd) *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row) = scale.scale;
      }
      return scale;
    } else {
      return scale_by_sum<C>(whole[0], a);
    }
  }

  __device__ row_gradient<C> gradient_of(const double (&whole)[SUMS], C mean, C rstd) const {
    if constexpr (MOMENTS) {
      return gradient_by_moments<C>(whole[0], whole[1], whole[2], mean, rstd, a);
    } else {
      return gradient_by_sums<C>(whole[0], whole[1], a);
    }
  }

  __device__ void write_parts() const {
    __syncthreads();
    for (int i = threadIdx.x; i < length; i += threads) {
      if (dweight) ((C *)a.dweight_parts)[begin + i] = dweight[i];
      if (dbias) ((C *)a.dbias_parts)[begin + i] = dbias[i];
    }
  }

  /* ---- All rows ---- */

  /* What a row needs from memory besides its elements: backward its mean and rstd, forward a guess at
   * its mean. Asked for a row ahead. */
  struct row_knowledge {
    C mean, rstd;
  };

  __device__ row_knowledge know(int64_t row) const {
    row_knowledge known = {0, 0};
    if (!MOMENTS || row >= a.rows.count) return known;
    if (BACKWARD) {
      known.mean = *row_of<C>(a.at.mean, a, ONEPASS_ROLE_MEAN, row);
      known.rstd = *row_of<C>(a.at.rstd, a, ONEPASS_ROLE_RSTD, row);
    } else {
      known.mean =
          guess_mean((const T *)row_of<T>(a.at.x, a, ONEPASS_ROLE_X, row), a.elements.count);
    }
    return known;
  }

  /* The sums of `lookahead` more rows are sent before those of a row are waited for. */
  __device__ void run() {
    for (int i = 0; i < a.ring; i++) ask_for_next_chunk();
    prepare();
    const int row_slots = a.chunks * chunk_slots, lag = a.lookahead;
    const int64_t count = a.rows.count;
    int gathered = 0, applied = 0; /* places in the ring */
    row_knowledge next = know(0);
    for (int64_t row = 0; row < count + lag; row++) {
      double part[SUMS];
      if (row < count) {
        const row_knowledge now = next;
        next = know(row + 1);
        if (MOMENTS && !BACKWARD && threadIdx.x == 0)
          guesses[row % ONEPASS_NORM_MAIL_SLOTS] = now.mean;
        gather_slice(row, (int)(row & 1), gathered, a.ring - 1 - lag * a.chunks, now.mean, now.rstd,
                     part);
        send(row, part);
        gathered += row_slots;
        if (gathered >= ring_slots) gathered -= ring_slots;
      }
      if (row < lag) continue;
      receive(row - lag, part);
      if constexpr (BACKWARD) {
        const row_knowledge known = know(row - lag);
        apply(row - lag, applied, gradient_of(part, known.mean, known.rstd));
      } else {
        apply(row - lag, applied,
              scale_of(row - lag, part, guesses[(row - lag) % ONEPASS_NORM_MAIL_SLOTS]));
      }
      applied += row_slots;
      if (applied >= ring_slots) applied -= ring_slots;
    }
    wait_for_all_but<0>();
    if (MOMENTS && BACKWARD) write_parts();
  }
};

#endif
