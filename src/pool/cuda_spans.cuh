/* Neighbouring elements at any address, brought by aligned loads of 16 bytes and shifted in registers, and what
 * windows make of them. */
#ifndef ONEPASS_POOL_CUDA_SPANS_CUH
#define ONEPASS_POOL_CUDA_SPANS_CUH

#include "cuda/elements.cuh"

/* So many packs of 16 bytes hold SPAN elements, wherever these begin. */
template <int SPAN>
struct span_of {
  enum { PACKS = (SPAN + VEC - 2) / VEC + 1, WORDS = PACKS * 4 };
};

__device__ inline sums element_of_words(const unsigned *words, int i) {
  if constexpr (sizeof(element) == 8) {
    return (sums)__hiloint2double((int)words[2 * i + 1], (int)words[2 * i]);
  } else if constexpr (sizeof(element) == 4) {
    return (sums)__uint_as_float(words[i]);
  } else {
    union {
      unsigned short bits;
      element value;
    } u;
    u.bits = (unsigned short)(words[i / 2] >> (i % 2 * 16));
    return (sums)widen(u.value);
  }
}

/* What begins `phase` bytes into the words becomes their beginning. */
template <int SPAN>
__device__ inline void shift_words(unsigned (&words)[span_of<SPAN>::WORDS + 1], int phase) {
  const int WORDS = span_of<SPAN>::WORDS;
  words[WORDS] = 0;
#pragma unroll
  for (int bit = 1; bit >= 0; bit--) {
    const bool shifted = phase >> (bit + 2) & 1;
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
      const unsigned stays = words[i], comes = i + (1 << bit) < WORDS ? words[i + (1 << bit)] : 0;
      words[i] = shifted ? comes : stays;
    }
  }
  if (sizeof(element) == 2) {
    const unsigned half = (phase & 2) * 8;
#pragma unroll
    for (int i = 0; i < WORDS; i++) words[i] = __funnelshift_r(words[i], words[i + 1], half);
  }
}

/* An element less. */
template <int WORDS>
__device__ inline void shift_words_by_one(unsigned (&words)[WORDS]) {
#pragma unroll
  for (int i = 0; i + 1 < WORDS; i++) {
    if constexpr (sizeof(element) == 8) {
      words[i] = i + 2 < WORDS ? words[i + 2] : 0;
    } else {
      words[i] = sizeof(element) == 4 ? words[i + 1] : __funnelshift_r(words[i], words[i + 1], 16);
    }
  }
}

/* From shared memory, `phase` bytes behind where a pack begins: the packs that hold at least one of the elements. */
template <int SPAN>
__device__ static void load_span(sums (&to)[SPAN], const char *from, int phase) {
  const uint4 *aligned = (const uint4 *)from;
  unsigned words[span_of<SPAN>::WORDS + 1];
#pragma unroll
  for (int i = 0; i < span_of<SPAN>::PACKS; i++) {
    uint4 part = {0, 0, 0, 0};
    if (i * 16 < phase + SPAN * (int)sizeof(element)) part = aligned[i];
    words[4 * i] = part.x, words[4 * i + 1] = part.y, words[4 * i + 2] = part.z,
              words[4 * i + 3] = part.w;
  }
  shift_words<SPAN>(words, phase);
#pragma unroll
  for (int i = 0; i < SPAN; i++) to[i] = element_of_words(words, i);
}

/* Of COUNT elements, each STEP behind the one before, the sum or (MAX) the largest: as a tree whose small
 * branches neighbouring windows share. */
template <bool MAX, int COUNT, int STEP>
__device__ inline sums tree_of(const sums *v) {
  if constexpr (COUNT == 1) {
    return v[0];
  } else {
    const int LEFT = COUNT > 8 ? 8 : COUNT > 4 ? 4 : COUNT > 2 ? 2 : 1;
    const sums left = tree_of<MAX, LEFT, STEP>(v),
               right = tree_of<MAX, COUNT - LEFT, STEP>(v + LEFT * STEP);
    return MAX ? larger_of(left, right) : left + right;
  }
}

#endif
