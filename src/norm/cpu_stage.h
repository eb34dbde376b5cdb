/* Pieces on their way in and out where something is fused with a norm: the residual before it, the activation
 * behind it. Part of cpu_template.h. Such a piece is in the type of sums, so that nothing is rounded between
 * the norm and the activation; it stays in the cache. */

/* to = x, or x + residual as rounded to the type of x, which goes to `sum` if that is not NULL. */
static void NAME(stage)(void *to, const void *x_start, const void *residual, void *sum,
                        int64_t count) {
  C *wide = to;
  const T *x = x_start, *more = residual;
  T *sums = sum;
  int64_t i = 0;
  for (; i + W <= count; i += W) {
    V v = LOAD(x + i);
    if (more) {
      v += LOAD(more + i);
      if (sizeof(T) != sizeof(C)) {
        T rounded[W];
        STORE(rounded, v, false);
        v = LOAD(rounded);
      }
      if (sums) STORE(sums + i, v, false);
    }
    STOREC(wide + i, v, false);
  }
  for (; i < count; i++) {
    T rounded = x[i];
    if (more) PUT(&rounded, GET(x + i) + GET(more + i));
    wide[i] = GET(&rounded);
    if (sums) sums[i] = rounded;
  }
}

/* to = from, plus `more` if that is not NULL. */
static void NAME(unstage)(void *to, const void *from, const void *more_start, int64_t count) {
  T *narrow = to;
  const C *wide = from;
  const T *more = more_start;
  int64_t i = 0;
  for (; i + W <= count; i += W) {
    V v = LOADC(wide + i);
    if (more) v += LOAD(more + i);
    STORE(narrow + i, v, false);
  }
  for (; i < count; i++) PUT(narrow + i, more ? wide[i] + GET(more + i) : wide[i]);
}

ALWAYS_INLINE V NAME(gelu_argument)(V x) { /* twice that of tanh: 1 + tanh(u) is 2 logistic(2 u) */
  const C by = (C)(2 * 0.79788456080286535588);
  return x * by * FMA(x * x, ALL((C)0.044715), ALL(1));
}

ALWAYS_INLINE V NAME(activated)(const onepass_activation activation, V x) {
  switch (activation) {
    case ONEPASS_RELU:
      return CHOOSE(x < 0, ALL(0), x); /* a NaN stays one */
    case ONEPASS_GELU:
      return x * BELOW(x);
    case ONEPASS_GELU_TANH:
      return x * LOGISTIC(NAME(gelu_argument)(x));
    case ONEPASS_SILU:
      return x * LOGISTIC(x);
    default:
      return x;
  }
}

/* Far out slopes are 0 and 1, and their terms must not overflow. */
ALWAYS_INLINE V NAME(slope)(const onepass_activation activation, V x) {
  const V near = CLAMP(x, -40, 40);
  V slope;
  switch (activation) {
    case ONEPASS_RELU:
      return CHOOSE(x > 0, ALL(1), ALL(0));
    case ONEPASS_GELU:
      slope = FMA(near * (C)0.39894228040143267794, EXP(near * near * (C)-0.5), BELOW(near));
      break;
    case ONEPASS_GELU_TANH: {
      const C by = (C)(2 * 0.79788456080286535588);
      const V s = LOGISTIC(NAME(gelu_argument)(near));
      const V inner = by * FMA(near * near, ALL((C)(3 * 0.044715)), ALL(1));
      slope = FMA(near * inner, s * (1 - s), s);
      break;
    }
    case ONEPASS_SILU: {
      const V s = LOGISTIC(near);
      slope = FMA(near, s * (1 - s), s);
      break;
    }
    default:
      return ALL(1);
  }
  return CHOOSE(x < -1000, ALL(0), slope); /* no little of -Inf, which would be Inf */
}

/* Two vectors at a time, so that constants, more than there are registers, are loaded half as often. The last
 * elements go through a vector of their own. */
ALWAYS_INLINE void NAME(activate_all)(const onepass_activation activation, C *y, int64_t count) {
  int64_t i = 0;
  for (; i + 2 * W <= count; i += 2 * W) {
    const V first = NAME(activated)(activation, LOADC(y + i));
    STOREC(y + i + W, NAME(activated)(activation, LOADC(y + i + W)), false);
    STOREC(y + i, first, false);
  }
  for (; i + W <= count; i += W) {
    STOREC(y + i, NAME(activated)(activation, LOADC(y + i)), false);
  }
  if (i == count) return;
  const V rest = NAME(activated)(activation, NAME(load_sums_of)(y + i, 0, count - i));
  STORE_LANESC(y + i, rest, 0, count - i);
}

ALWAYS_INLINE void NAME(multiply_by_slopes)(const onepass_activation activation, C *dy, const C *at,
                                            int64_t count) {
  int64_t i = 0;
  for (; i + 2 * W <= count; i += 2 * W) {
    const V first = LOADC(dy + i) * NAME(slope)(activation, LOADC(at + i));
    STOREC(dy + i + W, LOADC(dy + i + W) * NAME(slope)(activation, LOADC(at + i + W)), false);
    STOREC(dy + i, first, false);
  }
  for (; i + W <= count; i += W) {
    STOREC(dy + i, LOADC(dy + i) * NAME(slope)(activation, LOADC(at + i)), false);
  }
  if (i == count) return;
  const V slopes = NAME(slope)(activation, NAME(load_sums_of)(at + i, 0, count - i));
  STORE_LANESC(dy + i, NAME(load_sums_of)(dy + i, 0, count - i) * slopes, 0, count - i);
}

#define WITH_CONSTANT_ACTIVATION(call, ...) \
  switch (activation) {                     \
    case ONEPASS_RELU:                      \
      call(ONEPASS_RELU, __VA_ARGS__);      \
      break;                                \
    case ONEPASS_GELU:                      \
      call(ONEPASS_GELU, __VA_ARGS__);      \
      break;                                \
    case ONEPASS_GELU_TANH:                 \
      call(ONEPASS_GELU_TANH, __VA_ARGS__); \
      break;                                \
    case ONEPASS_SILU:                      \
      call(ONEPASS_SILU, __VA_ARGS__);      \
      break;                                \
    default:                                \
      break;                                \
  }

static void NAME(activate)(onepass_activation activation, void *y, int64_t count) {
  WITH_CONSTANT_ACTIVATION(NAME(activate_all), y, count)
}

static void NAME(pass_slope)(onepass_activation activation, void *dy, const void *at,
                             int64_t count) {
  WITH_CONSTANT_ACTIVATION(NAME(multiply_by_slopes), dy, at, count)
}

#undef WITH_CONSTANT_ACTIVATION
