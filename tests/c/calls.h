/*
 * A call: one operator in one direction with all of its arrays, so that a test can say "for every
 * function" in one loop.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef CALLS_H
#define CALLS_H

#include "array.h"

enum role {
  X,
  WEIGHT,
  BIAS,
  Y,
  MEAN,
  RSTD,
  DY,
  DX,
  DWEIGHT,
  DBIAS,
  RESIDUAL,
  SUM,
  DSUM,
  RUNNING_MEAN,
  RUNNING_VAR,
  INDICES,
  ROLES
};
extern const char *const role_name[ROLES];

enum kind {
  L1_FORWARD,
  L1_BACKWARD,
  LAYER_FORWARD,
  LAYER_BACKWARD,
  RMS_FORWARD,
  RMS_BACKWARD,
  L2_FORWARD,
  L2_BACKWARD,
  POOL_FORWARD,
  POOL_BACKWARD,
  KINDS,
  FUSED_FORWARD = KINDS, /* layer_norm of x + residual, with an activation */
  FUSED_BACKWARD,
  ALL_KINDS
};
extern const char *const kind_name[ALL_KINDS];

typedef struct call {
  enum kind kind;
  onepass_norm norm; /* one of the two is used */
  onepass_pool pool;
  onepass_options options;
  array *role[ROLES];  /* NULL where the call does not use one */
  array *terms[ROLES]; /* of a reference's outputs: how large the numbers were that make them up */
} call;

/* Makes the array for one role; array_new where the layout does not matter. */
typedef array *(*array_maker)(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape);

/* A call on x of this shape, with every optional tensor. Inputs have random values, outputs the
 * pattern. Pooling is kernel 3, stride 2, padding 1. */
call *call_new(enum kind kind, onepass_dtype dtype, int ndim, const int64_t *shape, int axis);
call *call_new_with(enum kind kind, onepass_dtype dtype, onepass_dtype weight_dtype, int ndim,
                    const int64_t *shape, int axis, array_maker maker);

/* What a call is made of, where that does not say enough. */
typedef struct call_form {
  enum kind kind;
  onepass_dtype dtype, weight_dtype;
  int ndim;
  const int64_t *shape; /* x's, or for a pool's backward dx's */
  int axis;
  int64_t kernel, stride,
      padding;          /* of a pool; kernel 0 stands for kernel 3, stride 2, padding 1 */
  int64_t shift[ROLES]; /* elements from a 64-byte boundary to the first one of each array */
} call_form;
call *call_new_as(const call_form *form);
void call_free(call *c);

/* Gives the inputs new values; the saved statistics of a backward follow x. */
void call_fill(call *c, uint64_t seed, double offset, double scale);

int role_is_used(enum kind kind, enum role role);
int role_is_output(enum kind kind, enum role role);
int role_is_optional(enum kind kind, enum role role);

onepass_tensors call_tensors(const call *c);
onepass_status call_plan(const call *c, onepass_plan **plan);
onepass_status call_run(const call *c); /* plan, then run */
int kind_has_helper(enum kind kind);
onepass_status call_helper(
    const call *c); /* the one-line function or, on the CPU, what stands for it if there
                                              is none; the options do not apply */

/* The same call with the same input values, compact, outputs in f64, done by the reference. */
call *call_reference(const call *c);

/* How far c's outputs are from the reference's, in units of what its types allow: at most 1 is
 * right. Outputs that c does not have are left out. */
double call_distance(const call *c, const call *reference);

int call_outputs_same_bits(const call *a, const call *b);
int call_guards_hold(const call *c);

#endif
