/*
 * Normalizations for the tests of launch choices.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef LAUNCH_NORMS_H
#define LAUNCH_NORMS_H

#include "launch.h"

/* How x, y, dy and dx lie in memory. Rows are on two axes, which are one where they can be. */
typedef enum arrangement {
  COMPACT,
  PITCHED,      /* one element more from row to row */
  ROUNDED,      /* rows start at multiples of 16 bytes whatever their length */
  APART,        /* rows of x and of the outputs start at different places of 16 bytes */
  ALIKE,        /* other strides, but the same places */
  PERMUTED,     /* the axes of the rows the other way round */
  REPEATED,     /* one row of x over and over */
  ACROSS,       /* neighbouring rows side by side */
  ACROSS_ODD,   /* so that the next element is anywhere */
  SPREAD,       /* every second element */
  SPREAD_SCALE, /* the same of weight and bias */
  ARRANGEMENTS
} arrangement;

static const char *const arrangement_names[] = {"compact",    "pitched",  "rounded",     "apart",
                                                "alike",      "permuted", "repeated",    "across",
                                                "across odd", "spread",   "spread scale"};

enum {
  WEIGHT = 1,
  BIAS = 2,
  SAVED = 4,
  DWEIGHT = 8,
  DBIAS = 16,
  F32_WEIGHTS = 32,
  LENGTHS = 64, /* l2_norm in place of layer_norm */
  ROOTS = 128,  /* rms_norm */
  FUSED = 256,  /* forward, x + residual */
  EVERYTHING = WEIGHT | BIAS | SAVED | DWEIGHT | DBIAS
};

typedef struct norm_case {
  bool layer_norm, backward;
  int type;
  int extras; /* of the above */
  arrangement arrangement;
  int64_t rows, n;
} norm_case;

typedef struct norm_trial {
  norm_case of;
  const gpu *on;
  onepass_cuda_kernel asked;
  onepass_norm_alignment alignment;
  onepass_plan plan;
  onepass_norm_launch launch;
  /* For short. */
  int64_t size, vec, sums_size;
  int summed, sums;
} norm_trial;

static inline const char *describe_norm(const norm_trial *t) {
  static char text[512];
  const norm_case *of = &t->of;
  const onepass_norm_launch *l = &t->launch;
  snprintf(
      text, sizeof text,
      "%s %s %s %lldx%lld extras %d %s on %s, asked for %d, alignment %d: %s width %d packs %d "
      "grid %lld block %d shared %zu team %d slice %lld",
      !of->layer_norm          ? "l1_norm"
      : (of->extras & LENGTHS) ? "l2_norm"
      : (of->extras & ROOTS)   ? "rms_norm"
                               : "layer_norm",
      of->backward ? "backward" : "forward", type_names[of->type], (long long)of->rows,
      (long long)of->n, of->extras, arrangement_names[of->arrangement], t->on->name, (int)t->asked,
      (int)t->alignment, kernel_name(l->kernel), (int)l->width, (int)l->packs, (long long)l->grid,
      (int)l->block, l->shared, (int)l->team, (long long)l->slice);
  return text;
}

#define NORM(condition) PROMISE(t, describe_norm, condition)

/* The strides of a tensor shaped as x. */
static inline void arrange(const norm_case *of, bool output, const int64_t *shape,
                           int64_t *strides) {
  const int64_t outer = shape[0], inner = shape[1], n = shape[2];
  int64_t pitch = n, step = 1;
  if (of->arrangement == PITCHED || (of->arrangement == APART && output)) pitch = n + 1;
  if (of->arrangement == ALIKE && output) pitch = n + 8;
  if (of->arrangement == ROUNDED) pitch = up_to(n, 8) + 8;
  if (of->arrangement == SPREAD) pitch = 2 * n, step = 2;
  strides[0] = inner * pitch, strides[1] = pitch, strides[2] = step;
  if (of->arrangement == PERMUTED) strides[0] = pitch, strides[1] = outer * pitch;
  if (of->arrangement == REPEATED && !output) strides[0] = strides[1] = 0;
  if (of->arrangement == ACROSS || of->arrangement == ACROSS_ODD) {
    strides[1] = 1;
    strides[2] = inner + (of->arrangement == ACROSS_ODD);
    strides[0] = strides[2] * n;
  }
}

/* The problem of a case, as a plan for the CPU, which needs no device. */
static inline void make_norm(norm_trial *t) {
  const norm_case *of = &t->of;
  const int64_t outer = of->arrangement >= PERMUTED && of->rows % 2 == 0 ? 2 : 1;
  const int64_t shape[3] = {outer, of->rows / outer, of->n};
  const bool f32_weights = (of->extras & F32_WEIGHTS) && of->type >= F16;
  const onepass_dtype dtype = types[of->type], weight_dtype = f32_weights ? types[F32] : dtype;
  const onepass_dtype saved_dtype = of->type == F64 ? types[F64] : types[F32];
  const int64_t weight_step = of->arrangement == SPREAD_SCALE ? 2 : 1;
  int64_t in_strides[3], out_strides[3];
  arrange(of, false, shape, in_strides);
  arrange(of, true, shape, out_strides);
  const onepass_device cpu = {ONEPASS_CPU, 0};
  const onepass_tensor in = {NULL, cpu, 3, dtype, shape, in_strides, 0};
  const onepass_tensor out = {NULL, cpu, 3, dtype, shape, out_strides, 0};
  const onepass_tensor scale = {NULL, cpu, 1, weight_dtype, &shape[2], &weight_step, 0};
  const onepass_tensor dscale = {NULL, cpu, 1, weight_dtype, &shape[2], NULL, 0};
  const onepass_tensor saved = {NULL, cpu, 2, saved_dtype, shape, NULL, 0};
  const bool layer = of->layer_norm && !(of->extras & (LENGTHS | ROOTS)), back = of->backward;
  const bool weighted = of->layer_norm && !(of->extras & LENGTHS);
  const bool saves = of->layer_norm && (back || (of->extras & SAVED));
  const onepass_tensors tensors = {
      .x = &in,
      .weight = weighted && (of->extras & WEIGHT) ? &scale : NULL,
      .bias = layer && !back && (of->extras & BIAS) ? &scale : NULL,
      .y = back ? NULL : &out,
      .mean = saves && layer ? &saved : NULL,
      .rstd = saves ? &saved : NULL,
      .dy = back ? &in : NULL,
      .dx = back ? &out : NULL,
      .dweight = weighted && back && (of->extras & DWEIGHT) ? &dscale : NULL,
      .dbias = layer && back && (of->extras & DBIAS) ? &dscale : NULL,
      .residual = weighted && !back && (of->extras & FUSED) ? &in : NULL};
  const onepass_norm norm = {.op = !of->layer_norm          ? ONEPASS_L1_NORM
                                   : (of->extras & LENGTHS) ? ONEPASS_L2_NORM
                                   : (of->extras & ROOTS)   ? ONEPASS_RMS_NORM
                                                            : ONEPASS_LAYER_NORM,
                             .direction = back ? ONEPASS_BACKWARD : ONEPASS_FORWARD,
                             .axis = 2,
                             .eps = 1e-5};
  EXPECT_OK(onepass_make_norm(&t->plan, &norm, &tensors, NULL));
  t->size = dtype.bits / 8;
  t->vec = 16 / t->size;
  t->sums_size = saved_dtype.bits / 8;
  t->summed = (tensors.dweight != NULL) + (tensors.dbias != NULL);
  t->sums = back ? (of->layer_norm ? 3 : 2) : (of->layer_norm ? 2 : 1);
}

static inline bool choose_norm(norm_trial *t) {
  return onepass_norm_choose_cuda(&t->plan.problem.norm, &t->plan.layouts, &t->on->properties,
                                  t->asked, t->alignment, &t->launch);
}

static inline bool has(const norm_trial *t, onepass_role role) {
  return onepass_has(&t->plan.layouts, role);
}

#endif
