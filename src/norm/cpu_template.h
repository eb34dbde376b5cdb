/* One instance of the normalization kernels. Included with
 *   ELEMENT  the type of x, y, dy, dx        SUMS  of sums: f32 or f64
 * Functions take the statistic and whatever else changes much of the inner loop as constants and are
 * inlined, so each combination becomes its own loop. NAME(f) is f for this instance. */
#define NAME(f)      JOIN2(f##_, ELEMENT)
#define T            JOIN2(element_, ELEMENT)
#define C            JOIN2(scalar_, SUMS)
#define V            JOIN2(vector_, SUMS)
#define W            JOIN2(lanes_, SUMS)
#define LOAD         JOIN2(load_, ELEMENT)
#define LOADC        JOIN2(load_, SUMS)
#define LOAD_PART    JOIN2(load_part_, ELEMENT)
#define LOAD_PARTC   JOIN2(load_part_, SUMS)
#define STORE        JOIN2(store_, ELEMENT)
#define LOADS        JOIN2(loads_, ELEMENT)
#define LOADSC       JOIN2(loads_, SUMS)
#define STORES       JOIN2(stores_, ELEMENT)
#define STORE_LANES  JOIN2(store_lanes_, ELEMENT)
#define STORE_LANESC JOIN2(store_lanes_, SUMS)
#define STORESC      JOIN2(stores_, SUMS)
#define STOREC       JOIN2(store_, SUMS)
#define ALL          JOIN2(all_, SUMS)
#define ONLY         JOIN2(only_, SUMS)
#define FMA          JOIN2(fma_, SUMS)
#define FOLD         JOIN2(fold_, SUMS)
#define ABS          JOIN2(abs_, SUMS)
#define SIGNED       JOIN2(signed_, SUMS)
#define ADD_DOTS     JOIN2(add_dots_, ELEMENT)
#define EXP          JOIN2(exp_, SUMS)
#define LOGISTIC     JOIN2(logistic_, SUMS)
#define BELOW        JOIN2(below_, SUMS)
#define CHOOSE       JOIN2(choose_, SUMS)
#define CLAMP        JOIN2(clamp_, SUMS)
#define GET          JOIN2(get_, ELEMENT)
#define PUT          JOIN2(put_, ELEMENT)
#define GETC         JOIN2(get_, SUMS)

/* Whether outputs are streamed: asked for every few vectors, as loops are long enough without a second copy of each. */
#define STREAMS(p) (ONEPASS_HAS_STREAMS && (p)->stream)

/* The sum of `count` vectors, a power of two, as a tree: more accurate than one after the other,
 * and easier on the register file, as every other operand is a result just made. */
ALWAYS_INLINE V NAME(tree)(const V *v, const int count) {
  V t[16];
  UNROLL for (int j = 0; j < count; j++) t[j] = v[j];
  UNROLL for (int half = 1; half < count; half *= 2) {
    UNROLL for (int j = 0; j + half < count; j += 2 * half) t[j] += t[j + half];
  }
  return t[0];
}

/* The sum of a[j] * b[j] over `count` vectors, in two chains. */
ALWAYS_INLINE V NAME(dot)(const V *a, const V *b, const int count) {
  if (count == 1) return a[0] * b[0];
  V even = a[0] * b[0], odd = a[1] * b[1];
  UNROLL for (int j = 2; j < count; j += 2) {
    even = FMA(a[j], b[j], even);
    odd = FMA(a[j + 1], b[j + 1], odd);
  }
  return even + odd;
}

/* How many elements to do before p is where a cache line begins: stores from there on write one line
 * after the other. And how many p is past where one began. */
enum { NAME(line) = 64 / sizeof(T) };
ALWAYS_INLINE int64_t NAME(past_alignment)(const T *p) {
  return (int64_t)((uintptr_t)p / sizeof(T) % NAME(line));
}
ALWAYS_INLINE int64_t NAME(to_alignment)(const T *p) {
  return (NAME(line) - NAME(past_alignment)(p)) % NAME(line);
}

/* The vector at p + `at` of n elements; if those are fewer than a vector: they, and then zeros. */
ALWAYS_INLINE V NAME(load_of)(const T *p, int64_t at, int64_t n) {
  return n >= W ? LOAD(p + at) : LOAD_PART(p, n);
}
ALWAYS_INLINE V NAME(load_sums_of)(const C *p, int64_t at, int64_t n) {
  return n >= W ? LOADC(p + at) : LOAD_PARTC(p, n);
}

/* Weights have the type of elements or, if they are wide, that of sums. Which, loops ask for every few vectors: a branch that
 * is always foreseen, for which all of them would else be there twice. */
typedef struct NAME(weights) {
  const void *weight, *bias; /* or NULL */
  bool wide;
} NAME(weights);

ALWAYS_INLINE NAME(weights)
    NAME(weights_of)(const onepass_norm_problem *p, const void *weight, const void *bias) {
  const bool wide = sizeof(T) != sizeof(C) && p->held_weight_type == JOIN2(TYPE_, SUMS);
  return (NAME(weights)){weight, bias, wide};
}

/* Those from element i on. */
ALWAYS_INLINE NAME(weights) NAME(weights_from)(NAME(weights) w, int64_t i) {
  const int64_t bytes = i * (int64_t)(w.wide ? sizeof(C) : sizeof(T));
  return (NAME(weights)){w.weight ? (const char *)w.weight + bytes : NULL,
                         w.bias ? (const char *)w.bias + bytes : NULL, w.wide};
}

ALWAYS_INLINE void NAME(load_weights)(V *v, const void *weight, bool wide, int64_t at,
                                      const int count) {
  if (wide) {
    LOADSC(v, (const C *)weight + at, count);
  } else {
    LOADS(v, (const T *)weight + at, count);
  }
}
ALWAYS_INLINE V NAME(load_weights_of)(const void *weight, bool wide, int64_t at, int64_t n) {
  return wide ? NAME(load_sums_of)(weight, at, n) : NAME(load_of)(weight, at, n);
}
ALWAYS_INLINE C NAME(get_weight)(const void *weight, bool wide, int64_t at) {
  return wide ? ((const C *)weight)[at] : GET((const T *)weight + at);
}

/* Where the last vector of n elements begins. */
ALWAYS_INLINE int64_t NAME(last_vector)(int64_t n) { return n >= W ? n - W : 0; }

#include "norm/cpu_forward.h"

#include "norm/cpu_backward.h"

#include "norm/cpu_columns.h"

#include "norm/cpu_lanes.h"

#include "norm/cpu_stage.h"

/* Weights in the type of sums, exactly. */
static void NAME(widen_weights)(void *to, const void *from, int64_t count) {
  C *wide = to;
  const T *weights = from;
  int64_t i = 0;
  for (; i + W <= count; i += W) STOREC(wide + i, LOAD(weights + i), false);
  for (; i < count; i++) wide[i] = GET(weights + i);
}

static void NAME(narrow_sums)(void *to, const double *sums, int64_t count) {
  enum { SOME = 256 };
  C part[SOME];
  for (int64_t first = 0; first < count; first += SOME) {
    const int64_t some = count - first < SOME ? count - first : SOME;
    T *elements = (T *)to + first;
    for (int64_t i = 0; i < some; i++) {
      part[i] = sizeof(T) == 2 ? (C)onepass_float_for_half(sums[first + i]) : (C)sums[first + i];
    }
    int64_t i = 0;
    for (; i + W <= some; i += W) STORE(elements + i, LOADC(part + i), false);
    for (; i < some; i++) PUT(elements + i, part[i]);
  }
}

static const onepass_norm_kernels NAME(kernels)[ONEPASS_STATISTIC_COUNT] = {
    [ONEPASS_STATISTIC_ABS] = {.forward_rows = NAME(forward_rows_abs),
                               .gather = NAME(gather_abs),
                               .apply = NAME(apply_abs),
                               .gather_backward = NAME(gather_backward_abs),
                               .apply_backward = NAME(apply_backward_abs),
                               .apply_gather_backward = NAME(apply_gather_backward_abs),
                               .forward_columns = NAME(forward_columns_abs),
                               .backward_columns = NAME(backward_columns_abs)},
    [ONEPASS_STATISTIC_MOMENTS] = {.forward_rows = NAME(forward_rows_moments),
                                   .gather = NAME(gather_moments),
                                   .apply = NAME(apply_moments),
                                   .gather_backward = NAME(gather_backward_moments),
                                   .apply_backward = NAME(apply_backward_moments),
                                   .apply_gather_backward = NAME(apply_gather_backward_moments),
                                   .widen_weights = NAME(widen_weights),
                                   .narrow_sums = NAME(narrow_sums),
                                   .gather_lanes = NAME(gather_lanes),
                                   .apply_lanes = NAME(apply_lanes),
                                   .gather_backward_lanes = NAME(gather_backward_lanes),
                                   .apply_backward_lanes = NAME(apply_backward_lanes),
                                   .sum_weight_lanes = NAME(sum_weight_lanes),
                                   .stage = NAME(stage),
                                   .unstage = NAME(unstage),
                                   .activate = NAME(activate),
                                   .pass_slope = NAME(pass_slope)},
};

#undef STREAMS
#undef NAME
#undef T
#undef C
#undef V
#undef W
#undef LOAD
#undef LOADC
#undef LOAD_PART
#undef LOAD_PARTC
#undef STORE
#undef LOADS
#undef LOADSC
#undef STORES
#undef STORE_LANES
#undef STORE_LANESC
#undef STORESC
#undef STOREC
#undef ALL
#undef ONLY
#undef FMA
#undef FOLD
#undef ABS
#undef SIGNED
#undef ADD_DOTS
#undef EXP
#undef LOGISTIC
#undef BELOW
#undef CHOOSE
#undef CLAMP
#undef GET
#undef PUT
#undef GETC
#undef ELEMENT
#undef SUMS
