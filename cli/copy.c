#define _POSIX_C_SOURCE 200809L
#include "copy.h"

#include <stdlib.h>
#include <string.h>

#include "buffers.h"
#include "cli.h"
#include "parallel.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { BLOCK = 64 };

typedef struct copy {
  copy_method method;
  unsigned char *to;
  const unsigned char *from;
} copy;

#if defined(__SSE2__)

static void stream_blocks(unsigned char *to, const unsigned char *from, int64_t blocks) {
  for (int64_t i = 0; i < blocks; i++, to += BLOCK, from += BLOCK) {
    __m128i a = _mm_load_si128((const __m128i *)(const void *)from);
    __m128i b = _mm_load_si128((const __m128i *)(const void *)(from + 16));
    __m128i c = _mm_load_si128((const __m128i *)(const void *)(from + 32));
    __m128i d = _mm_load_si128((const __m128i *)(const void *)(from + 48));
    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
  }
  _mm_sfence();
}

#elif defined(__aarch64__)

static void stream_blocks(unsigned char *to, const unsigned char *from, int64_t blocks) {
  for (int64_t i = 0; i < blocks; i++, to += BLOCK, from += BLOCK)
    __asm__ volatile(
        "ldp q0, q1, [%1]\n\t"
        "ldp q2, q3, [%1, #32]\n\t"
        "stnp q0, q1, [%0]\n\t"
        "stnp q2, q3, [%0, #32]"
        :
        : "r"(to), "r"(from)
        : "v0", "v1", "v2", "v3", "memory");
}

#else

static void stream_blocks(unsigned char *to, const unsigned char *from, int64_t blocks) {
  memcpy(to, from, (size_t)(blocks * BLOCK));
}

#endif

static void copy_range(const void *context, int64_t first, int64_t last) {
  const copy *copy = context;
  unsigned char *to = copy->to + first * BLOCK;
  const unsigned char *from = copy->from + first * BLOCK;
  if (copy->method == COPY_MEMCPY)
    memcpy(to, from, (size_t)((last - first) * BLOCK));
  else
    stream_blocks(to, from, last - first);
}

void copy_bytes(copy_method method, void *to, const void *from, int64_t bytes, int32_t threads) {
  copy copy = {method, to, from};
  int64_t whole = bytes / BLOCK * BLOCK;
  parallel_for(threads, bytes / BLOCK, copy_range, &copy);
  memcpy(copy.to + whole, copy.from + whole, (size_t)(bytes - whole));
}

double copy_bandwidth(int64_t bytes, int32_t threads) {
  enum { REPETITIONS = 7 };
  void *from = allocate_bytes(bytes), *to = allocate_bytes(bytes);
  double fastest = 0;
  if (from && to) {
    fill_bytes(from, bytes, 1, threads);
    fill_bytes(to, bytes, 2, threads);
    for (int i = 0; i < REPETITIONS * COPY_METHODS; i++) {
      double start = seconds_now();
      copy_bytes((copy_method)(i % COPY_METHODS), to, from, bytes, threads);
      double speed = 2 * (double)bytes / (seconds_now() - start);
      if (speed > fastest) fastest = speed;
    }
  }
  free(from);
  free(to);
  return fastest;
}

/* ---- On a GPU ---- */

enum { RANDOM_BLOCK = 64 << 20, GPU_REPETITIONS = 21 };

/* Random bytes: a memory moves zeros with less power, and so faster. */
static bool fill_on_gpu(gpu *gpu, unsigned char *to, int64_t bytes) {
  unsigned char *block = allocate_bytes(RANDOM_BLOCK);
  if (!block) return false;
  fill_bytes(block, RANDOM_BLOCK, 1, 1);
  bool filled = gpu_upload(gpu, to, block, RANDOM_BLOCK) &&
                gpu_tile(gpu, to + RANDOM_BLOCK, bytes - RANDOM_BLOCK, to, RANDOM_BLOCK, 1, 1);
  free(block);
  return filled;
}

/* Seconds for one copy, or 0. */
static double time_gpu_copy(gpu *gpu, void *to, const void *from, int64_t bytes) {
  double times[GPU_REPETITIONS];
  void *start = gpu_event(gpu), *end = gpu_event(gpu);
  bool timed = start && end && gpu_copy(gpu, to, from, bytes);
  for (int i = 0; i < GPU_REPETITIONS && timed; i++) {
    timed = gpu_mark(gpu, start) && gpu_copy(gpu, to, from, bytes) && gpu_mark(gpu, end) &&
            gpu_wait(gpu);
    times[i] = timed ? gpu_seconds(gpu, start, end) : 0;
  }
  gpu_event_free(gpu, start);
  gpu_event_free(gpu, end);
  return timed ? median(times, GPU_REPETITIONS) : 0;
}

double gpu_copy_bandwidth(gpu *gpu, int64_t l2) {
  int64_t bytes = 512 << 20, available = gpu_available(gpu);
  if (bytes < 16 * l2) bytes = 16 * l2;
  while (bytes > available / 4 && bytes > 2 * (int64_t)RANDOM_BLOCK) bytes /= 2;
  unsigned char *from = gpu_allocate(gpu, bytes), *to = gpu_allocate(gpu, bytes);
  double seconds = 0;
  if (from && to && fill_on_gpu(gpu, from, bytes)) seconds = time_gpu_copy(gpu, to, from, bytes);
  gpu_free(gpu, from);
  gpu_free(gpu, to);
  return seconds > 0 ? 2 * (double)bytes / seconds : 0;
}
