/* A family's kernels for one type, ONEPASS_KERNELS and ONEPASS_ELEMENT_*, compiled for the emulated GPU: what
 * CUDA C++ has and C++ has not, and then the kernels themselves.
 *
 * SPDX-License-Identifier: MIT */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math.h>
#include <string.h>

#include "machine.h"

/* Every block in flight has a thread of the operating system, and so its own. */
#undef __shared__
#undef __align__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__       thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, blocks)
#define __grid_constant__
#undef __noinline__
#define __noinline__ __attribute__((noinline))

#define threadIdx (machine_self->index)
#define blockIdx  (machine_self->block->index)
#define blockDim  (machine_self->block->threads)
#define gridDim   (machine_self->block->grid)

static inline void __syncthreads() { machine_sync_block(0); }
static inline int __syncthreads_or(int so) { return machine_sync_block(so != 0); }
static inline void __threadfence_block() {}

/* ---- Lanes ---------------------------------------------------------------------------------------------- */

enum { SHUFFLE = 0x100, SHUFFLE_XOR = 0x200, SHUFFLE_DOWN = 0x300, VOTE = 0x400, SYNC = 0x500 };

static inline unsigned own_lane() { return threadIdx.x % MACHINE_LANES; }

static inline void expect_all_lanes(unsigned mask) {
  if (mask != 0xffffffffu) machine_fault("lanes %x meet: only whole warps are emulated", mask);
}

template <class T>
static inline T value_of_lane(unsigned operation, T value, unsigned lane) {
  static_assert(sizeof(T) <= 8, "a lane passes a word on");
  unsigned long long word = 0;
  memcpy(&word, &value, sizeof value);
  word = machine_meet(operation + sizeof(T), word)[lane % MACHINE_LANES];
  memcpy(&value, &word, sizeof value);
  return value;
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane) {
  expect_all_lanes(mask);
  return value_of_lane(SHUFFLE, value, (unsigned)lane);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int with) {
  expect_all_lanes(mask);
  return value_of_lane(SHUFFLE_XOR, value, own_lane() ^ (unsigned)with);
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width) {
  expect_all_lanes(mask);
  const unsigned lane = own_lane(), within = lane % (unsigned)width;
  return value_of_lane(SHUFFLE_DOWN, value, within + by < (unsigned)width ? lane + by : lane);
}

static inline unsigned lanes_that_say_so(unsigned mask, int so) {
  expect_all_lanes(mask);
  const unsigned long long *votes = machine_meet(VOTE, so != 0);
  unsigned lanes = 0;
  for (int i = 0; i < MACHINE_LANES; i++) lanes |= (unsigned)votes[i] << i;
  return lanes;
}
static inline int __any_sync(unsigned mask, int so) { return lanes_that_say_so(mask, so) != 0; }
static inline int __all_sync(unsigned mask, int so) {
  return lanes_that_say_so(mask, so) == 0xffffffffu;
}
static inline unsigned __ballot_sync(unsigned mask, int so) { return lanes_that_say_so(mask, so); }
static inline void __syncwarp() { machine_meet(SYNC, 0); }

/* What the compiler may rely on. */
#define __builtin_assume(so) ((so) ? (void)0 : machine_fault("this does not hold: %s", #so))

/* ---- Numbers and memory --------------------------------------------------------------------------------- */

static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz((unsigned)bits) : 32; }
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
static inline double __hiloint2double(int high, int low) {
  const unsigned long long bits = (unsigned long long)(unsigned)high << 32 | (unsigned)low;
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline float rsqrtf(float v) { return 1 / sqrtf(v); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
static inline void __stcs(T *p, const T &value) {
  *p = value;
}

/* ---- The kernels ---------------------------------------------------------------------------------------- */

/* What a launch asks for in bytes, under every name that kernels give it. */
#define DYNAMIC_SHARED(name) alignas(1024) static thread_local char name[MACHINE_SHARED_BYTES]
DYNAMIC_SHARED(places);
DYNAMIC_SHARED(sums_of_warps);
DYNAMIC_SHARED(tile_memory);
DYNAMIC_SHARED(tile);
DYNAMIC_SHARED(shared);

#include ONEPASS_KERNELS
