/* The pooling kernels of one vector level, made from the template for every type. */
#include "pool/cpu.h"

#include "cpu/template.h"

enum {
  REDUCED_ONE_BY_ONE = 16, /* from this stride on, summing every window by itself is cheaper */
  ADDED_ONE_BY_ONE = 8     /* up to so many fours a window adds them up; beyond, it doubles them */
};

#define ELEMENT f32
#define SUMS    f32
#include "pool/cpu_sums.h"
#include "pool/cpu_template.h"
#undef ELEMENT
#undef SUMS

#define ELEMENT f64
#define SUMS    f64
#include "pool/cpu_sums.h"
#include "pool/cpu_template.h"
#undef ELEMENT
#undef SUMS

#define ELEMENT f16
#define SUMS    f32
#include "pool/cpu_sums.h"
#include "pool/cpu_template.h"
#undef ELEMENT
#undef SUMS

#define ELEMENT bf16
#define SUMS    f32
#include "pool/cpu_sums.h"
#include "pool/cpu_template.h"
#undef ELEMENT
#undef SUMS

const onepass_pool_kernels *JOIN2(onepass_pool_kernels_, ONEPASS_LEVEL)(onepass_type type) {
  static const onepass_pool_kernels of_type[ONEPASS_TYPE_COUNT] = {
      [ONEPASS_TYPE_F32] = {forward_f32, backward_f32},
      [ONEPASS_TYPE_F64] = {forward_f64, backward_f64},
      [ONEPASS_TYPE_F16] = {forward_f16, backward_f16},
      [ONEPASS_TYPE_BF16] = {forward_bf16, backward_bf16},
  };
  return &of_type[type];
}
