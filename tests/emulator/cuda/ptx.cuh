/* What the instructions of src/cuda/ptx.cuh do, in C++, for the emulated GPU. Found instead of it, as its
 * folder is searched first. */
#ifndef ONEPASS_CUDA_PTX_CUH
#define ONEPASS_CUDA_PTX_CUH

#include "cuda/turns.h"

template <class T>
inline T load_in_place(const T *p) {
  if ((uintptr_t)p % sizeof(T)) machine_fault("a load from %p, of %zu bytes", p, sizeof(T));
  return *p;
}

inline void post_word(unsigned long long *p, unsigned long long word) {
  __atomic_store_n(p, word, __ATOMIC_RELAXED);
  machine_got_further();
}
inline unsigned long long look_at_word(const unsigned long long *p) {
  machine_take_turns();
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}

inline void prefetch_bytes(const void *, unsigned) {}
static inline void prefetch(const void *) {}

inline void copy_async(void *shared, const void *global, int valid) {
  machine_copy_async(shared, global, valid);
}
inline void copy_async_alone(void *shared, const void *global, int valid) {
  machine_copy_async(shared, global, valid);
}
inline void commit_copies() { machine_commit_copies(); }
template <int N>
inline void wait_for_all_but() {
  machine_wait_for_all_but(N);
}

/* Arrivals of a phase in the high half, those still missing above the lowest bit, which is the parity. */
inline void init_barrier(unsigned long long *barrier, int arrivals) {
  *barrier = (unsigned long long)arrivals << 32 | (unsigned)arrivals << 1;
}
inline void arrive(unsigned long long *barrier) {
  *barrier -= 2;
  machine_got_further();
  if ((*barrier & 0xfffffffe) == 0) {
    *barrier = *barrier >> 32 << 32 | *barrier >> 32 << 1 | ((*barrier & 1) ^ 1);
  }
}
inline bool is_over(unsigned long long *barrier, unsigned parity) {
  return (*(volatile unsigned long long *)barrier & 1) != parity;
}
inline void await(unsigned long long *barrier, unsigned parity) {
  while (!is_over(barrier, parity)) machine_take_turns();
}

enum { RANGE_ARRIVALS = 1 };
inline void bring_range(void *shared, const void *global, unsigned bytes,
                        unsigned long long *barrier) {
  if (threadIdx.x % 32) return;
  if (((uintptr_t)shared | (uintptr_t)global | bytes) % 16)
    machine_fault("a copy from %p to %p, of %u bytes", global, shared, bytes);
  memcpy(shared, global, bytes);
  arrive(barrier);
}
inline void announce_barriers() {}

inline float larger_of(float a, float b) { return b > a || b != b ? b : a; }

template <class T>
inline unsigned larger_words(unsigned a, unsigned b, T) {
  T both[2][2];
  memcpy(both[0], &a, sizeof a);
  memcpy(both[1], &b, sizeof b);
  for (int i = 0; i < 2; i++) {
    const float left = (float)both[0][i], right = (float)both[1][i];
    if (right > left || right != right) both[0][i] = both[1][i];
  }
  memcpy(&a, both[0], sizeof a);
  return a;
}

/* Here launches never overlap. */
inline void await_turn() {}
inline void let_next_begin(unsigned) {}
inline void ask_ahead(const onepass_ahead &) {}

template <class T>
inline void stay_address(T *&) {}
inline void stay_word(unsigned &) {}
inline void stay_words(uint4 &) {}

#endif
