/* The four element types, and single elements of them as doubles; and the type of indices. */
#ifndef ONEPASS_CORE_DTYPE_H
#define ONEPASS_CORE_DTYPE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "onepass.h"

typedef enum onepass_type {
  ONEPASS_TYPE_F32,
  ONEPASS_TYPE_F64,
  ONEPASS_TYPE_F16,
  ONEPASS_TYPE_BF16,
  ONEPASS_TYPE_COUNT,
  ONEPASS_TYPE_I64 = ONEPASS_TYPE_COUNT, /* of indices, which are no elements */
  ONEPASS_TYPE_UNKNOWN = -1
} onepass_type;

onepass_type onepass_type_of(onepass_dtype dtype);
const char *onepass_type_name(onepass_type type);

static inline int64_t onepass_type_size(onepass_type type) {
  return type == ONEPASS_TYPE_F32                               ? 4
         : type == ONEPASS_TYPE_F64 || type == ONEPASS_TYPE_I64 ? 8
                                                                : 2;
}

/* The type sums and saved statistics have: f64 for f64, f32 for the others. */
static inline onepass_type onepass_type_of_sums(onepass_type type) {
  return type == ONEPASS_TYPE_F64 ? ONEPASS_TYPE_F64 : ONEPASS_TYPE_F32;
}

double onepass_load(onepass_type type, const void *base, int64_t index);
void onepass_store(onepass_type type, void *base, int64_t index, double value);

static inline float onepass_bits_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t onepass_float_to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* A double to a float such that rounding the float to a half type gives what rounding the double would: rounded to odd,
 * so that no tie appears that was not there. */
static inline float onepass_float_for_half(double value) {
  const float nearest = (float)value;
  const uint32_t inexact = (double)nearest != value, beyond = fabs((double)nearest) > fabs(value);
  return onepass_bits_to_float((onepass_float_to_bits(nearest) - beyond) | inexact);
}

static inline float onepass_float_from_bf16(uint16_t half) {
  return onepass_bits_to_float((uint32_t)half << 16);
}

/* To nearest, ties to even; a NaN stays one. */
static inline uint16_t onepass_bf16_from_float(float value) {
  uint32_t bits = onepass_float_to_bits(value);
  if (value != value) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float onepass_float_from_f16(uint16_t half) {
  /* Moving the exponent and mantissa up and multiplying by 2^112 rebiases the exponent and makes
   * subnormals normal in one exact step; only Inf and NaN need their exponent filled in. */
  float magnitude = onepass_bits_to_float((uint32_t)(half & 0x7fff) << 13) * 0x1p112f;
  uint32_t bits = onepass_float_to_bits(magnitude);
  if ((half & 0x7c00) == 0x7c00) bits |= 0x7f800000;
  return onepass_bits_to_float(bits | (uint32_t)(half & 0x8000) << 16);
}

/* To nearest, ties to even; too large becomes Inf; a NaN stays one. */
static inline uint16_t onepass_f16_from_float(float value) {
  uint32_t bits = onepass_float_to_bits(value);
  uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return (uint16_t)(sign | 0x7e00);
  if (bits >= 0x47800000) return (uint16_t)(sign | 0x7c00);
  if (bits < 0x38800000) { /* below 2^-14: let an addition round to a multiple of 2^-24 */
    float rounded = onepass_bits_to_float(bits) + 0.5f;
    return (uint16_t)(sign | (onepass_float_to_bits(rounded) - 0x3f000000));
  }
  return (uint16_t)(sign | (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
}

#endif
