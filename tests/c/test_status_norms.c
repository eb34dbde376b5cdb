/*
 * The normalization family's own options and tensors: what an operator has no use for, or what makes no
 * sense together, is refused with its own status and a message that says so.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "array.h"
#include "calls.h"
#include "expect.h"
#include "refusal.h"

enum { N = 4, C = 6, S = 5 };

typedef struct problem {
  onepass_norm norm;
  array *role[ROLES];
} problem;

static const int64_t whole[3] = {N, C, S}, by_channel[1] = {C}, by_batch[2] = {N, C};

static void add(problem *p, enum role role, int ndim, const int64_t *shape) {
  p->role[role] = array_new(ONEPASS_F32, ndim, shape);
}

/* A good call of every operator on (N, C, S), with all that it requires and the weights. */
static problem good(onepass_norm_op op, onepass_direction direction) {
  problem p = {.norm = {.op = op, .direction = direction, .eps = 1e-5}};
  const int channels = op == ONEPASS_GROUP_NORM || op == ONEPASS_BATCH_NORM;
  const int backward = direction == ONEPASS_BACKWARD;
  const int64_t *rows = op == ONEPASS_BATCH_NORM ? by_channel : by_batch;
  const int row_axes = op == ONEPASS_BATCH_NORM ? 1 : 2;
  p.norm.axis = channels ? 0 : 2;
  p.norm.groups = op == ONEPASS_GROUP_NORM ? C : 0;
  add(&p, X, 3, whole);
  add(&p, backward ? DX : Y, 3, whole);
  if (backward) add(&p, DY, 3, whole);
  if (backward && op != ONEPASS_L1_NORM) add(&p, RSTD, row_axes, rows);
  if (backward && (channels || op == ONEPASS_LAYER_NORM)) add(&p, MEAN, row_axes, rows);
  if (channels) add(&p, WEIGHT, 1, by_channel);
  return p;
}

static void discard(problem *p) {
  for (int r = 0; r < ROLES; r++) array_free(p->role[r]);
}

static onepass_status plan(const problem *p, onepass_plan **plan) {
  const onepass_tensor *pointers[ROLES];
  onepass_tensors tensors;
  for (int r = 0; r < ROLES; r++) pointers[r] = p->role[r] ? &p->role[r]->tensor : NULL;
  memcpy(&tensors, pointers, sizeof tensors);
  return onepass_plan_norm(plan, &p->norm, &tensors, NULL);
}

static void axes_too_many(problem *p) { p->norm.axes = 2; }
static void axes_negative(problem *p) { p->norm.axes = -1; }
static void axis_1(problem *p) { p->norm.axis = 1; }
static void axes_1(problem *p) { p->norm.axes = 1; }
static void clamp_1(problem *p) { p->norm.clamp = 1; }
static void groups_0(problem *p) { p->norm.groups = 0; }
static void groups_2(problem *p) { p->norm.groups = 2; }
static void groups_4(problem *p) { p->norm.groups = 4; }
static void groups_negative(problem *p) { p->norm.groups = -3; }
static void groups_huge(problem *p) { p->norm.groups = INT64_MAX; }
static void use_running(problem *p) { p->norm.use_running = 1; }
static void momentum_2(problem *p) { p->norm.momentum = 2; }
static void momentum_negative(problem *p) { p->norm.momentum = -0.5; }
static void momentum_nan(problem *p) { p->norm.momentum = (double)NAN; }
static void momentum_half(problem *p) { p->norm.momentum = 0.5; }
static void activation_relu(problem *p) { p->norm.activation = ONEPASS_RELU; }
static void activation_9(problem *p) { p->norm.activation = (onepass_activation)9; }
static void activation_negative(problem *p) { p->norm.activation = (onepass_activation)-1; }
static void reduction_sum(problem *p) { p->norm.reduction = ONEPASS_SUM; }
static void a_bias(problem *p) { add(p, BIAS, 1, (int64_t[]){S}); }
static void a_mean(problem *p) { add(p, MEAN, 2, by_batch); }
static void a_weight(problem *p) { add(p, WEIGHT, 1, (int64_t[]){S}); }
static void a_residual(problem *p) { add(p, RESIDUAL, 3, whole); }
static void a_sum(problem *p) { add(p, SUM, 3, whole); }
static void a_dsum(problem *p) { add(p, DSUM, 3, whole); }
static void short_residual(problem *p) { add(p, RESIDUAL, 3, (int64_t[]){N, C, S - 1}); }
static void long_weight(problem *p) {
  array_free(p->role[WEIGHT]);
  add(p, WEIGHT, 1, (int64_t[]){C + 1});
}
static void f64_residual(problem *p) { p->role[RESIDUAL] = array_new(ONEPASS_F64, 3, whole); }
static void a_running_mean(problem *p) { add(p, RUNNING_MEAN, 1, by_channel); }
static void a_running_var(problem *p) { add(p, RUNNING_VAR, 1, by_channel); }
static void running_in_groups(problem *p) {
  p->norm.groups = 2;
  a_running_mean(p);
  a_running_var(p);
}
static void running_too_short(problem *p) {
  add(p, RUNNING_MEAN, 1, (int64_t[]){C - 1});
  a_running_var(p);
}
static void mean_by_batch_alone(problem *p) {
  array_free(p->role[MEAN]);
  add(p, MEAN, 1, (int64_t[]){N});
}
static void no_rstd(problem *p) {
  array_free(p->role[RSTD]);
  p->role[RSTD] = NULL;
}
static void bias_for_no_activation(problem *p) { add(p, BIAS, 1, by_channel); }
static void one_axis(problem *p) {
  for (int r = 0; r < ROLES; r++) {
    if (p->role[r] && p->role[r]->tensor.ndim == 3) p->role[r]->tensor.ndim = 1;
  }
}

enum { FORWARD = 1, BACKWARD = 2, BOTH = 3 };
#define OP(name) (1 << ONEPASS_##name##_NORM)
enum {
  L1 = OP(L1),
  LAYER = OP(LAYER),
  L2 = OP(L2),
  RMS = OP(RMS),
  GROUP = OP(GROUP),
  BATCH = OP(BATCH),
  AXES = L1 | LAYER | L2 | RMS,
  CHANNELS = GROUP | BATCH
};

static const struct fault {
  const char *name;
  int ops, directions;
  void (*break_it)(problem *p);
  onepass_status status;
  const char *argument, *value;
} faults[] = {
    {"2 axes from the last", AXES, BOTH, axes_too_many, ONEPASS_BAD_AXIS, "axes", "2"},
    {"-1 axes", AXES, BOTH, axes_negative, ONEPASS_BAD_AXIS, "axes", "-1"},
    {"an axis", CHANNELS, BOTH, axis_1, ONEPASS_BAD_OPTION, "axis", "1"},
    {"axes", CHANNELS, BOTH, axes_1, ONEPASS_BAD_OPTION, "axes", "1"},
    {"clamp", LAYER | RMS | CHANNELS, BOTH, clamp_1, ONEPASS_BAD_OPTION, "clamp", "1"},
    {"groups", AXES | BATCH, BOTH, groups_2, ONEPASS_BAD_OPTION, "groups", "2"},
    {"no groups", GROUP, BOTH, groups_0, ONEPASS_BAD_SHAPE, "groups", "0"},
    {"4 groups of 6", GROUP, BOTH, groups_4, ONEPASS_BAD_SHAPE, "groups", "4"},
    {"-3 groups", GROUP, BOTH, groups_negative, ONEPASS_BAD_SHAPE, "groups", "-3"},
    {"2^63-1 groups", GROUP, BOTH, groups_huge, ONEPASS_BAD_SHAPE, "groups", "9223372036854775807"},
    {"use_running", AXES, BOTH, use_running, ONEPASS_BAD_OPTION, "use_running", "1"},
    {"use_running without", CHANNELS, FORWARD, use_running, ONEPASS_NULL_POINTER, "running_mean",
     NULL},
    {"momentum 2", GROUP | BATCH, BOTH, momentum_2, ONEPASS_BAD_OPTION, "momentum", "2"},
    {"momentum -0.5", CHANNELS, BOTH, momentum_negative, ONEPASS_BAD_OPTION, "momentum", "-0.5"},
    {"momentum NaN", CHANNELS, BOTH, momentum_nan, ONEPASS_BAD_OPTION, "momentum", "nan"},
    {"momentum", AXES, BOTH, momentum_half, ONEPASS_BAD_OPTION, "momentum", "0.5"},
    {"an activation", L1 | L2, BOTH, activation_relu, ONEPASS_BAD_OPTION, "activation", "1"},
    {"activation 9", LAYER | RMS | CHANNELS, BOTH, activation_9, ONEPASS_BAD_OPTION, "activation",
     "9"},
    {"activation -1", LAYER | RMS | CHANNELS, BOTH, activation_negative, ONEPASS_BAD_OPTION,
     "activation", "-1"},
    {"a sum for a mean", LAYER | L2 | RMS | CHANNELS, BOTH, reduction_sum, ONEPASS_BAD_OPERATOR,
     "reduction", "1"},
    {"a bias", L1 | L2 | RMS, BOTH, a_bias, ONEPASS_BAD_OPTION, "bias", NULL},
    {"a weight", L1 | L2, BOTH, a_weight, ONEPASS_BAD_OPTION, "weight", NULL},
    {"a mean", L1 | L2 | RMS, BOTH, a_mean, ONEPASS_BAD_OPTION, "mean", NULL},
    {"a residual", L1 | L2, BOTH, a_residual, ONEPASS_BAD_OPTION, "residual", NULL},
    {"a residual backward", LAYER | RMS | CHANNELS, BACKWARD, a_residual, ONEPASS_BAD_OPTION,
     "residual", NULL},
    {"a sum without residual", LAYER | RMS | CHANNELS, FORWARD, a_sum, ONEPASS_BAD_OPTION, "sum",
     NULL},
    {"dsum forward", LAYER | RMS | CHANNELS, FORWARD, a_dsum, ONEPASS_BAD_OPTION, "dsum", NULL},
    {"dsum", L1 | L2, BACKWARD, a_dsum, ONEPASS_BAD_OPTION, "dsum", NULL},
    {"a short residual", LAYER | RMS | CHANNELS, FORWARD, short_residual, ONEPASS_BAD_SHAPE,
     "residual", "4"},
    {"an f64 residual", LAYER | RMS | CHANNELS, FORWARD, f64_residual, ONEPASS_BAD_DTYPE,
     "residual", NULL},
    {"7 weights for 6 channels", CHANNELS, BOTH, long_weight, ONEPASS_BAD_SHAPE, "weight", "7"},
    {"running_mean alone", CHANNELS, FORWARD, a_running_mean, ONEPASS_NULL_POINTER, "running_var",
     NULL},
    {"running_var alone", CHANNELS, FORWARD, a_running_var, ONEPASS_NULL_POINTER, "running_mean",
     NULL},
    {"running_mean", AXES, FORWARD, a_running_mean, ONEPASS_BAD_OPTION, "running_mean", NULL},
    {"running_mean backward", CHANNELS, BACKWARD, a_running_mean, ONEPASS_BAD_OPTION,
     "running_mean", NULL},
    {"running statistics of groups", GROUP, FORWARD, running_in_groups, ONEPASS_BAD_OPTION,
     "running_mean", NULL},
    {"a short running_mean", CHANNELS, FORWARD, running_too_short, ONEPASS_BAD_SHAPE,
     "running_mean", "5"},
    {"a mean of 4", CHANNELS, BACKWARD, mean_by_batch_alone, ONEPASS_BAD_SHAPE, "mean", "4"},
    {"no rstd", LAYER | L2 | RMS | CHANNELS, BACKWARD, no_rstd, ONEPASS_NULL_POINTER, "rstd", NULL},
    {"a bias without activation", CHANNELS, BACKWARD, bias_for_no_activation, ONEPASS_BAD_OPTION,
     "bias", NULL},
    {"one axis", CHANNELS, BOTH, one_axis, ONEPASS_BAD_NDIM, "x", "1"},
};

static void expect_refused(const struct fault *f, int op, int direction) {
  char label[120];
  problem p = good((onepass_norm_op)op, (onepass_direction)direction);
  onepass_plan *made = (onepass_plan *)(void *)&p;
  snprintf(label, sizeof label, "operator %d, direction %d: %s", op, direction, f->name);
  f->break_it(&p);
  const onepass_status status = plan(&p, &made);
  expect_status(status, f->status, label);
  if (status == ONEPASS_OK) {
    onepass_plan_destroy(made);
  } else {
    expect_message(label, f->argument, f->value);
    EXPECT(made == NULL, "%s: *plan is not NULL after a failure", label);
  }
  discard(&p);
}

static void test_what_makes_no_sense_is_refused(void) {
  for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
    for (int op = ONEPASS_L1_NORM; op <= ONEPASS_BATCH_NORM; op++) {
      for (int direction = 0; direction < 2; direction++) {
        if (!(faults[f].ops >> op & 1) || !(faults[f].directions >> direction & 1)) continue;
        expect_refused(&faults[f], op, direction);
      }
    }
  }
}

static void test_what_makes_sense_is_taken(void) {
  for (int op = ONEPASS_L1_NORM; op <= ONEPASS_BATCH_NORM; op++) {
    for (int direction = 0; direction < 2; direction++) {
      problem p = good((onepass_norm_op)op, (onepass_direction)direction);
      onepass_plan *made = NULL;
      onepass_plan_info info;
      const onepass_status status = plan(&p, &made);
      EXPECT(status == ONEPASS_OK, "operator %d, direction %d: %s", op, direction,
             onepass_last_message());
      if (status == ONEPASS_OK) EXPECT_OK(onepass_plan_describe(made, &info));
      onepass_plan_destroy(made);
      discard(&p);
    }
  }
}

int main(void) {
  test_what_makes_no_sense_is_refused();
  test_what_makes_sense_is_taken();
  return expect_report("test_status_norms");
}
