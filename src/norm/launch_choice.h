/* What the files that choose a GPU's kernel for a normalization share: launch_cuda.c for rows that are dense,
 * launch_warps.c for the short ones among them, and launch_across.c for those that are not. */
#ifndef ONEPASS_NORM_LAUNCH_CHOICE_H
#define ONEPASS_NORM_LAUNCH_CHOICE_H

#include "norm/cpu.h"
#include "norm/launch_cuda.h"

enum { ONEPASS_SECTOR = 32, ONEPASS_WHOLE_ROLE_COUNT = 7 };

/* A choice in the making. */
typedef struct onepass_norm_choice {
  const onepass_norm_problem *p;
  const onepass_layouts *layouts;
  const onepass_cuda_properties *device;
  onepass_norm_alignment alignment;
  bool moments;
  bool fused;      /* something is added before the norm or done behind it */
  bool plain;      /* rows are multiplied by a number and nothing else */
  bool squares;    /* there is no mean and no bias, and weights are as the elements */
  bool by_channel; /* rows are groups of channels ... */
  bool channels;   /* ... that have weights */
  int64_t rows, n;
  int64_t size; /* of an element */
  int64_t vec;  /* elements in 16 bytes */
  int64_t sums_size;
  int weights; /* of weight and bias, how many there are */
  int summed;  /* of dweight and dbias */
  onepass_norm_launch *l;
} onepass_norm_choice;

/* Those of tensors shaped as x. */
extern const onepass_role onepass_whole_roles[ONEPASS_WHOLE_ROLE_COUNT];

/* Whether packs of `vec` elements are aligned in every row of every tensor shaped as x; the last
 * axes of the rows may be left out. */
bool onepass_rows_are_aligned(const onepass_norm_choice *c, int64_t vec, int first_axis_from_end);

/* Whether from one row to the next, along their last axis, it is one element in every tensor shaped as x. */
bool onepass_rows_are_side_by_side(const onepass_norm_choice *c);
/* Whether a thread can go along a row 16 bytes at a time. */
bool onepass_takes_vectors(const onepass_norm_choice *c);
/* Whether there are kernels for rows of which every thread has as many packs. */
bool onepass_has_full_kernels(const onepass_norm_choice *c);
/* Whether sums over rows can be written to dweight and dbias by the kernel that makes them. */
bool onepass_can_be_direct(const onepass_norm_choice *c);

/* Room in the workspace: where it begins. */
size_t onepass_reserve(onepass_norm_launch *l, int64_t bytes);
/* For so many parts of dweight and dbias, and the launch that adds them up. */
void onepass_reserve_parts(const onepass_norm_choice *c, int64_t parts);

/* False if the kernel cannot do the problem. */
bool onepass_choose_warps(onepass_norm_choice *c);
bool onepass_choose_columns(onepass_norm_choice *c);
bool onepass_choose_strided(onepass_norm_choice *c);

#endif
