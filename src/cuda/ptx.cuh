/* Instructions that CUDA C++ has no words for: all the PTX there is. tests/emulator has a file of the same
 * name with what they do in plain C++. */
#ifndef ONEPASS_CUDA_PTX_CUH
#define ONEPASS_CUDA_PTX_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/turns.h"

/* ---- Loads and stores ---- */

/* Loads that stay where they are written: the compiler would put others together, and hold on to more. */
__device__ inline uint4 load_in_place(const uint4 *p) {
  uint4 raw;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(p));
  return raw;
}
__device__ inline unsigned load_in_place(const unsigned *p) {
  unsigned raw;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(raw) : "l"(p));
  return raw;
}
__device__ inline unsigned short load_in_place(const unsigned short *p) {
  unsigned short raw;
  asm volatile("ld.global.u16 %0, [%1];" : "=h"(raw) : "l"(p));
  return raw;
}

/* Words that blocks leave for each other. */
__device__ inline void post_word(unsigned long long *p, unsigned long long word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
}
__device__ inline unsigned long long look_at_word(const unsigned long long *p) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
  return word;
}

/* Brings whole 16 bytes to the second-level cache. */
__device__ inline void prefetch_bytes(const void *address, unsigned bytes) {
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 12 /* earlier assemblers do not know it */
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
#endif
}

/* What will be needed soon comes to the second-level cache. */
__device__ inline void prefetch(const void *address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/* ---- Copies from global to shared memory that do not wait ---- */

/* 16 bytes of which the first `valid` are read; the others become zeros. The 256 bytes around them come to the
 * second-level cache: who asks for a little of many rows finds the rest of it there. */
__device__ inline void copy_async(void *shared, const void *global, int valid) {
  const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
               "r"(valid)
               : "memory");
}
/* Nothing but these bytes: who asks for a whole row at once needs no more. */
__device__ inline void copy_async_alone(void *shared, const void *global, int valid) {
  const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(valid)
               : "memory");
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N>
__device__ inline void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- From launch to launch ---- */

/* A kernel may begin while what was queued before it still runs, and waits here until that has ended and all it wrote
 * can be read; before, it may look at nothing in memory but its arguments. */
__device__ inline void await_turn() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Brings to the second-level cache what this kernel will read, from where it has to come. What is being written there meanwhile
 * is no matter: that cache is where writes become visible. All blocks ask for a share. */
__device__ inline void ask_ahead(const onepass_ahead &ahead) {
#if __CUDA_ARCH__ >= 900
  const unsigned threads = gridDim.x * blockDim.x;
#pragma unroll 1
  for (int i = 0; i < ahead.count; i++) {
#pragma unroll 1
    for (unsigned line = threadIdx.x * gridDim.x + blockIdx.x; line < ahead.lines[i];
         line += threads)
      prefetch(ahead.first[i] + (size_t)line * ONEPASS_AHEAD_LINE);
  }
#endif
}

/* The next kernel may begin now if this one has few blocks, and else when they end: blocks that come early crowd onto
 * the few multiprocessors that have room for them. */
__device__ inline void let_next_begin(unsigned few_blocks) {
#if __CUDA_ARCH__ >= 900
  if (gridDim.x <= few_blocks) asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* ---- Barriers in shared memory ---- */

__device__ inline void init_barrier(unsigned long long *barrier, int arrivals) {
  asm volatile(
      "mbarrier.init.shared.b64 [%0], %1;" ::"r"((unsigned)__cvta_generic_to_shared(barrier)),
      "r"(arrivals)
      : "memory");
}

__device__ inline void arrive(unsigned long long *barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(
                   (unsigned)__cvta_generic_to_shared(barrier))
               : "memory");
}

/* The phase of that parity has ended. */
__device__ inline bool is_over(unsigned long long *barrier, unsigned parity) {
  unsigned over;
  asm volatile(
      "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
      " selp.u32 %0, 1, 0, p; }"
      : "=r"(over)
      : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(parity)
      : "memory");
  return over;
}

/* Until it has ended. */
__device__ inline void await(unsigned long long *barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  const unsigned address = (unsigned)__cvta_generic_to_shared(barrier);
  unsigned over;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(over)
        : "r"(address), "r"(parity)
        : "memory");
  } while (!over);
#else
  while (!is_over(barrier, parity)) continue;
#endif
}

/* ---- Ranges that come to shared memory, of which a barrier is told ---- */

/* By a warp, whole 16 bytes and at multiples of them. It is read once: it leaves the second-level cache before anything
 * else does. */
#if __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ >= 12 /* earlier assemblers do not know it */
enum { RANGE_ARRIVALS = 1 };                           /* of the barrier */
__device__ inline void bring_range(void *shared, const void *global, unsigned bytes,
                                   unsigned long long *barrier) {
  if (threadIdx.x % 32) return;
  const unsigned to = (unsigned)__cvta_generic_to_shared(shared),
                 on = (unsigned)__cvta_generic_to_shared(barrier);
  asm volatile(
      "{ .reg .b64 once; createpolicy.fractional.L2::evict_first.b64 once, 1.0;"
      " mbarrier.arrive.expect_tx.shared.b64 _, [%3], %2;"
      " cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1], %2, [%3], once; }" ::"r"(to),
      "l"(global), "r"(bytes), "r"(on)
      : "memory");
}
/* Barriers that have been set up are known to who copies; a barrier of the block follows. */
__device__ inline void announce_barriers() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#else
enum { RANGE_ARRIVALS = 32 };
__device__ inline void bring_range(void *shared, const void *global, unsigned bytes,
                                   unsigned long long *barrier) {
  for (unsigned at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
    copy_async_alone((char *)shared + at, (const char *)global + at, 16);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                   (unsigned)__cvta_generic_to_shared(barrier))
               : "memory");
}
__device__ inline void announce_barriers() {}
#endif

/* ---- Numbers ---- */

/* The larger one, or a NaN if either is one. */
__device__ inline float larger_of(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

/* The same of two halves each. */
__device__ inline unsigned larger_words(unsigned a, unsigned b, __half) {
  unsigned c;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
__device__ inline unsigned larger_words(unsigned a, unsigned b, __nv_bfloat16) {
  unsigned c;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

/* An address is held, and not worked out again at every use. */
template <class T>
__device__ inline void stay_address(T *&address) {
  asm volatile("" : "+l"(address));
}

/* Here a word is needed, and no sooner what could be made of it. */
__device__ inline void stay_word(unsigned &word) { asm volatile("" : "+r"(word)); }
__device__ inline void stay_words(uint4 &words) {
  asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
}

#endif
