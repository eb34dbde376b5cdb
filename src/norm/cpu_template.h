/* One instance of the normalization kernels. Included with
 *   ELEMENT  the type of x, y, dy, dx        WEIGHTS  of weight and bias        SUMS  of sums: f32 or f64
 * Functions take the statistic and whatever else changes the inner loop as constants and are inlined, so
 * each combination becomes its own loop. NAME(f) is f for this instance. */
#define NAME(f) JOIN3(f, ELEMENT, WEIGHTS)
#define T       JOIN2(element_, ELEMENT)
#define WT      JOIN2(element_, WEIGHTS)
#define C       JOIN2(scalar_, SUMS)
#define V       JOIN2(vector_, SUMS)
#define W       JOIN2(lanes_, SUMS)
#define LOAD    JOIN2(load_, ELEMENT)
#define LOADW   JOIN2(load_, WEIGHTS)
#define LOADC   JOIN2(load_, SUMS)
#define STORE   JOIN2(store_, ELEMENT)
#define STOREC  JOIN2(store_, SUMS)
#define ALL     JOIN2(all_, SUMS)
#define FIRST   JOIN2(first_, SUMS)
#define FMA     JOIN2(fma_, SUMS)
#define ABS     JOIN2(abs_, SUMS)
#define SIGNED  JOIN2(signed_, SUMS)
#define GET     JOIN2(get_, ELEMENT)
#define PUT     JOIN2(put_, ELEMENT)

/* The sum of all lanes of `count` vectors, halves upon halves, so that the order of additions is the
 * same for every vector width. count is a power of two. */
ALWAYS_INLINE C NAME(fold)(const V *lanes, const int count) {
  V v[16];
  UNROLL for (int j = 0; j < count; j++) v[j] = lanes[j];
  UNROLL for (int half = count / 2; half > 0; half /= 2) {
    UNROLL for (int j = 0; j < half; j++) v[j] += v[j + half];
  }
  C lane[W];
  memcpy(lane, &v[0], sizeof lane);
  UNROLL for (int half = W / 2; half > 0; half /= 2) {
    UNROLL for (int j = 0; j < half; j++) lane[j] += lane[j + half];
  }
  return lane[0];
}

/* How many elements to do before p is aligned for whole-vector stores of T. */
ALWAYS_INLINE int64_t NAME(to_alignment)(const T *p) {
  const uintptr_t vector = W * sizeof(T);
  return (int64_t)((vector - (uintptr_t)p % vector) % vector / sizeof(T));
}

#include "norm/cpu_forward.h"

#include "norm/cpu_backward.h"

#include "norm/cpu_columns.h"

static const onepass_norm_kernels NAME(kernels)[ONEPASS_STATISTIC_COUNT] = {
    [ONEPASS_STATISTIC_ABS] = {.forward_rows = NAME(forward_rows_abs),
                               .gather = NAME(gather_abs),
                               .apply = NAME(apply_abs),
                               .gather_backward = NAME(gather_backward_abs),
                               .apply_backward = NAME(apply_backward_abs),
                               .forward_columns = NAME(forward_columns_abs),
                               .backward_columns = NAME(backward_columns_abs)},
    [ONEPASS_STATISTIC_MOMENTS] = {.forward_rows = NAME(forward_rows_moments),
                                   .gather = NAME(gather_moments),
                                   .apply = NAME(apply_moments),
                                   .gather_backward = NAME(gather_backward_moments),
                                   .apply_backward = NAME(apply_backward_moments)},
};

#undef NAME
#undef T
#undef WT
#undef C
#undef V
#undef W
#undef LOAD
#undef LOADW
#undef LOADC
#undef STORE
#undef STOREC
#undef ALL
#undef FIRST
#undef FMA
#undef ABS
#undef SIGNED
#undef GET
#undef PUT
#undef ELEMENT
#undef WEIGHTS
#undef SUMS
