#include "core/dtype.h"

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

const char *onepass_type_name(onepass_type type) { return types[type].name; }

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

void onepass_store(onepass_type type, void *base, int64_t index, double value) {
  switch (type) {
    case ONEPASS_TYPE_F64:
      ((double *)base)[index] = value;
      break;
    case ONEPASS_TYPE_F16:
      ((uint16_t *)base)[index] = onepass_f16_from_float(onepass_float_for_half(value));
      break;
    case ONEPASS_TYPE_BF16:
      ((uint16_t *)base)[index] = onepass_bf16_from_float(onepass_float_for_half(value));
      break;
    default:
      ((float *)base)[index] = (float)value;
  }
}
