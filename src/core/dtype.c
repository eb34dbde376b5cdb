#include "core/dtype.h"

#include <math.h>

static const struct {
  onepass_dtype dtype;
  const char *name;
} types[] = {
    [ONEPASS_TYPE_F32] = {{2, 32, 1}, "f32"}, [ONEPASS_TYPE_F64] = {{2, 64, 1}, "f64"},
    [ONEPASS_TYPE_F16] = {{2, 16, 1}, "f16"}, [ONEPASS_TYPE_BF16] = {{4, 16, 1}, "bf16"},
    [ONEPASS_TYPE_I64] = {{0, 64, 1}, "i64"},
};

onepass_type onepass_type_of(onepass_dtype dtype) {
  for (int type = 0; type <= ONEPASS_TYPE_I64; type++) {
    const onepass_dtype known = types[type].dtype;
    if (dtype.code == known.code && dtype.bits == known.bits && dtype.lanes == known.lanes) {
      return (onepass_type)type;
    }
  }
  return ONEPASS_TYPE_UNKNOWN;
}

int64_t onepass_type_size(onepass_type type) { return types[type].dtype.bits / 8; }

const char *onepass_type_name(onepass_type type) { return types[type].name; }

onepass_type onepass_type_of_sums(onepass_type type) {
  return type == ONEPASS_TYPE_F64 ? ONEPASS_TYPE_F64 : ONEPASS_TYPE_F32;
}

double onepass_load(onepass_type type, const void *base, int64_t index) {
  switch (type) {
    case ONEPASS_TYPE_F64:
      return ((const double *)base)[index];
    case ONEPASS_TYPE_F16:
      return onepass_float_from_f16(((const uint16_t *)base)[index]);
    case ONEPASS_TYPE_BF16:
      return onepass_float_from_bf16(((const uint16_t *)base)[index]);
    default:
      return ((const float *)base)[index];
  }
}

/* A double to a float such that rounding the float to a half type gives what rounding the double
 * would: round to odd, so that no tie appears that was not there. */
static float float_for_half(double value) {
  float nearest = (float)value;
  if (!isfinite(nearest) || (double)nearest == value) return nearest;
  if (onepass_float_to_bits(nearest) & 1) return nearest;
  return nextafterf(nearest, (double)nearest < value ? INFINITY : -INFINITY);
}

void onepass_store(onepass_type type, void *base, int64_t index, double value) {
  switch (type) {
    case ONEPASS_TYPE_F64:
      ((double *)base)[index] = value;
      break;
    case ONEPASS_TYPE_F16:
      ((uint16_t *)base)[index] = onepass_f16_from_float(float_for_half(value));
      break;
    case ONEPASS_TYPE_BF16:
      ((uint16_t *)base)[index] = onepass_bf16_from_float(float_for_half(value));
      break;
    default:
      ((float *)base)[index] = (float)value;
  }
}
