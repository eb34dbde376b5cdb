/* The normalization kernels of one vector level: every statistic and type, made from the templates. Levels that do
 * nothing for other types than bf16 have those alone; docs/experiments.md shows it of AVX-512. */
#include "norm/cpu.h"

#include <math.h>

#include "cpu/simd_math.h"
#include "cpu/template.h"

#if defined(__AVX512F__)
#define ONEPASS_ONLY_BF16
#endif

enum { SHORT_ROW = 256 }; /* elements; forward, shorter rows are done in batches */

#ifndef ONEPASS_ONLY_BF16
#define ELEMENT f32
#define SUMS    f32
#include "norm/cpu_template.h"

#define ELEMENT f64
#define SUMS    f64
#include "norm/cpu_template.h"

#define ELEMENT f16
#define SUMS    f32
#include "norm/cpu_template.h"
#endif

#define ELEMENT bf16
#define SUMS    f32
#include "norm/cpu_template.h"

const onepass_norm_kernels *JOIN2(onepass_norm_kernels_, ONEPASS_LEVEL)(onepass_statistic statistic,
                                                                        onepass_type type) {
  switch (type) {
#ifndef ONEPASS_ONLY_BF16
    case ONEPASS_TYPE_F32:
      return &kernels_f32[statistic];
    case ONEPASS_TYPE_F64:
      return &kernels_f64[statistic];
    case ONEPASS_TYPE_F16:
      return &kernels_f16[statistic];
#endif
    case ONEPASS_TYPE_BF16:
      return &kernels_bf16[statistic];
    default:
      return NULL;
  }
}
