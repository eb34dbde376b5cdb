/* The normalization kernels of one vector level: every statistic and type, made from the templates. A level that is
 * for bf16 has no others (ONEPASS_ONLY_BF16). */
#include "norm/cpu.h"

#include <math.h>

#include "cpu/simd_math.h"
#include "cpu/template.h"

enum { SHORT_ROW = 256 }; /* elements; shorter rows are done in batches */

#ifndef ONEPASS_ONLY_BF16
#define ELEMENT f32
#define WEIGHTS f32
#define SUMS    f32
#include "norm/cpu_template.h"

#define ELEMENT f64
#define WEIGHTS f64
#define SUMS    f64
#include "norm/cpu_template.h"

#define ELEMENT f16
#define WEIGHTS f16
#define SUMS    f32
#include "norm/cpu_template.h"

#define ELEMENT f16
#define WEIGHTS f32
#define SUMS    f32
#include "norm/cpu_template.h"
#endif

#define ELEMENT bf16
#define WEIGHTS bf16
#define SUMS    f32
#include "norm/cpu_template.h"

#define ELEMENT bf16
#define WEIGHTS f32
#define SUMS    f32
#include "norm/cpu_template.h"

const onepass_norm_kernels *JOIN2(onepass_norm_kernels_, ONEPASS_LEVEL)(onepass_statistic statistic,
                                                                        onepass_type type,
                                                                        onepass_type weight_type) {
  const bool f32_weights = weight_type == ONEPASS_TYPE_F32;
  switch (type) {
#ifndef ONEPASS_ONLY_BF16
    case ONEPASS_TYPE_F32:
      return &kernels_f32_f32[statistic];
    case ONEPASS_TYPE_F64:
      return &kernels_f64_f64[statistic];
    case ONEPASS_TYPE_F16:
      return f32_weights ? &kernels_f16_f32[statistic] : &kernels_f16_f16[statistic];
#endif
    default:
      return f32_weights ? &kernels_bf16_f32[statistic] : &kernels_bf16_bf16[statistic];
  }
}
