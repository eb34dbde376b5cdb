#include "operators.h"

#include <stddef.h>

#define BIT(role) ROLE_BIT(role)
#define SAVED     (BIT(MEAN) | BIT(RSTD))
#define FUSED     (BIT(RESIDUAL) | BIT(SUM) | BIT(DSUM))

/* The roles of operators that are alike. */
#define PLAIN_NORM .family = FAMILY_NORM, .roles = {BIT(X) | BIT(Y), BIT(X) | BIT(DY) | BIT(DX)}
#define LENGTH_NORM                                                     \
  .family = FAMILY_NORM, .norm = ONEPASS_L2_NORM, .divisor = BY_LENGTH, \
  .roles = {BIT(X) | BIT(Y) | BIT(RSTD), BIT(X) | BIT(DY) | BIT(DX) | BIT(RSTD)}
#define CENTERED_NORM_WITH(more_forward, more_backward)                                    \
  .family = FAMILY_NORM, .divisor = BY_DEVIATION, .eps = 1e-5,                             \
  .roles = {BIT(X) | BIT(Y) | BIT(WEIGHT) | BIT(BIAS) | SAVED | (more_forward),            \
            BIT(X) | BIT(DY) | BIT(DX) | BIT(WEIGHT) | BIT(DWEIGHT) | BIT(DBIAS) | SAVED | \
                (more_backward)}
#define RMS_NORM_WITH(more_forward, more_backward)                                           \
  .family = FAMILY_NORM, .norm = ONEPASS_RMS_NORM, .rows = ROWS_TRAILING, .divisor = BY_RMS, \
  .eps = 1e-6,                                                                               \
  .roles = {BIT(X) | BIT(Y) | BIT(WEIGHT) | BIT(RSTD) | (more_forward),                      \
            BIT(X) | BIT(DY) | BIT(DX) | BIT(WEIGHT) | BIT(DWEIGHT) | BIT(RSTD) | (more_backward)}
#define AVG_POOL(axes)                                                \
  .family = FAMILY_POOL, .pool = ONEPASS_AVG_POOL, .spatial = (axes), \
  .roles = {BIT(X) | BIT(Y), BIT(DY) | BIT(DX)}
#define MAX_POOL(axes)                                                \
  .family = FAMILY_POOL, .pool = ONEPASS_MAX_POOL, .spatial = (axes), \
  .roles = {BIT(X) | BIT(Y) | BIT(INDICES), BIT(DY) | BIT(DX) | BIT(INDICES)}
#define LP_POOL(axes)                                                \
  .family = FAMILY_POOL, .pool = ONEPASS_LP_POOL, .spatial = (axes), \
  .roles = {BIT(X) | BIT(Y), BIT(X) | BIT(Y) | BIT(DY) | BIT(DX)}

const op_entry op_table[] = {
    {.name = "l1_norm",
     .is_main = true,
     PLAIN_NORM,
     .norm = ONEPASS_L1_NORM,
     .rows = ROWS_ALONG_AXIS,
     .divisor = BY_MAGNITUDE,
     .shapes = {{2, {1024, 65535}}},
     .gpu_first = {32768}},
    {.name = "l2_norm", LENGTH_NORM, .shapes = {{2, {16384, 4096}}}, .gpu_first = {131072}},
    {.name = "normalize",
     LENGTH_NORM,
     .clamp = true,
     .eps = 1e-12,
     .shapes = {{2, {65536, 1024}}},
     .gpu_first = {524288}},
    {.name = "frobenius_norm", LENGTH_NORM, .rows = ROWS_WHOLE, .shapes = {{2, {4096, 4096}}}},
    {.name = "layer_norm",
     .is_main = true,
     CENTERED_NORM_WITH(0, 0),
     .norm = ONEPASS_LAYER_NORM,
     .rows = ROWS_TRAILING,
     .shapes = {{2, {65536, 1024}}, {4, {16, 64, 256, 256}}},
     .gpu_first = {32768}},
    {.name = "add_layer_norm",
     CENTERED_NORM_WITH(BIT(RESIDUAL) | BIT(SUM), BIT(DSUM)),
     .norm = ONEPASS_LAYER_NORM,
     .rows = ROWS_TRAILING,
     .shapes = {{2, {65536, 1024}}}},
    {.name = "rms_norm",
     RMS_NORM_WITH(0, 0),
     .shapes = {{2, {16384, 4096}}},
     .gpu_first = {131072}},
    {.name = "add_rms_norm",
     RMS_NORM_WITH(BIT(RESIDUAL) | BIT(SUM), BIT(DSUM)),
     .shapes = {{2, {16384, 4096}}}},
    {.name = "group_norm",
     CENTERED_NORM_WITH(0, 0),
     .variants = FUSED,
     .norm = ONEPASS_GROUP_NORM,
     .rows = ROWS_GROUPS,
     .shapes = {{4, {16, 256, 128, 128}}}},
    {.name = "instance_norm",
     CENTERED_NORM_WITH(0, 0),
     .variants = FUSED | RUNNING_ROLES,
     .norm = ONEPASS_GROUP_NORM,
     .rows = ROWS_GROUPS,
     .group_a_channel = true,
     .shapes = {{4, {16, 64, 256, 256}}}},
    {.name = "batch_norm",
     CENTERED_NORM_WITH(0, 0),
     .variants = FUSED | RUNNING_ROLES,
     .norm = ONEPASS_BATCH_NORM,
     .rows = ROWS_CHANNELS,
     .shapes = {{4, {16, 256, 128, 128}}}},

    {.name = "avg_pool1d",
     .is_main = true,
     AVG_POOL(1),
     .shapes = {{3, {8, 128, 65536}}},
     .gpu_first = {64},
     .kernel = 8,
     .stride = 1},
    {.name = "avg_pool2d",
     AVG_POOL(2),
     .shapes = {{4, {16, 64, 256, 256}}},
     .kernel = 3,
     .stride = 2},
    {.name = "avg_pool3d",
     AVG_POOL(3),
     .shapes = {{5, {4, 64, 64, 64, 64}}},
     .kernel = 3,
     .stride = 2},
    {.name = "max_pool1d", MAX_POOL(1), .shapes = {{3, {8, 128, 65536}}}, .kernel = 3, .stride = 2},
    {.name = "max_pool2d",
     MAX_POOL(2),
     .shapes = {{4, {16, 64, 256, 256}}},
     .kernel = 3,
     .stride = 2},
    {.name = "max_pool3d",
     MAX_POOL(3),
     .shapes = {{5, {4, 64, 64, 64, 64}}},
     .kernel = 3,
     .stride = 2},
    {.name = "lp_pool1d", LP_POOL(1), .shapes = {{3, {8, 128, 65536}}}, .kernel = 4, .stride = 2},
    {.name = "lp_pool2d",
     LP_POOL(2),
     .shapes = {{4, {16, 64, 256, 256}}},
     .kernel = 2,
     .stride = 2},
    {.name = "lp_pool3d",
     LP_POOL(3),
     .shapes = {{5, {4, 64, 64, 64, 64}}},
     .kernel = 2,
     .stride = 2},
    {.name = "adaptive_avg_pool1d",
     AVG_POOL(1),
     .adaptive = true,
     .shapes = {{3, {8, 128, 65536}}},
     .output = 1000},
    {.name = "adaptive_avg_pool2d",
     AVG_POOL(2),
     .adaptive = true,
     .shapes = {{4, {64, 256, 64, 64}}},
     .output = 7},
    {.name = "adaptive_avg_pool3d",
     AVG_POOL(3),
     .adaptive = true,
     .shapes = {{5, {16, 64, 40, 40, 40}}},
     .output = 7},
    {.name = "adaptive_max_pool1d",
     MAX_POOL(1),
     .adaptive = true,
     .shapes = {{3, {8, 128, 65536}}},
     .output = 1000},
    {.name = "adaptive_max_pool2d",
     MAX_POOL(2),
     .adaptive = true,
     .shapes = {{4, {64, 256, 64, 64}}},
     .output = 7},
    {.name = "adaptive_max_pool3d",
     MAX_POOL(3),
     .adaptive = true,
     .shapes = {{5, {16, 64, 40, 40, 40}}},
     .output = 7},
};

enum { OP_COUNT = sizeof op_table / sizeof *op_table };
const int op_count = OP_COUNT;

/* ---- What --op may say ---- */

enum { CHOOSE_ALL = OP_COUNT, CHOOSE_FAMILY };

const char *const *op_choices(void) {
  static const char *choices[OP_COUNT + FAMILIES + 2];
  static const char *const families[FAMILIES] = {[FAMILY_NORM] = "norm", [FAMILY_POOL] = "pool"};
  for (int i = 0; i < OP_COUNT; i++) choices[i] = op_table[i].name;
  choices[CHOOSE_ALL] = "all";
  for (int i = 0; i < FAMILIES; i++) choices[CHOOSE_FAMILY + i] = families[i];
  return choices;
}

int ops_all(void) { return CHOOSE_ALL; }

bool is_one_op(int choice) { return choice >= 0 && choice < OP_COUNT; }

bool op_is_chosen(int choice, const op_entry *op) {
  if (choice == OPS_MAIN) return op->is_main;
  if (choice == CHOOSE_ALL) return true;
  if (choice >= CHOOSE_FAMILY) return (int)op->family == choice - CHOOSE_FAMILY;
  return op == &op_table[choice];
}

/* ---- What they take ---- */

static bool is_norm(const op_entry *op) { return op->family == FAMILY_NORM; }

bool takes_axis(const op_entry *op) {
  return is_norm(op) && (op->rows == ROWS_ALONG_AXIS || op->rows == ROWS_TRAILING);
}

bool takes_groups(const op_entry *op) {
  return is_norm(op) && op->rows == ROWS_GROUPS && !op->group_a_channel;
}

bool takes_activation(const op_entry *op) { return op->roles[ONEPASS_FORWARD] & BIT(WEIGHT); }

bool takes_window(const op_entry *op) { return !is_norm(op) && !op->adaptive; }

bool takes_padding(const op_entry *op) { return takes_window(op) && op->pool != ONEPASS_LP_POOL; }

bool takes_dilation(const op_entry *op) { return takes_window(op) && op->pool == ONEPASS_MAX_POOL; }

bool takes_output(const op_entry *op) { return !is_norm(op) && op->adaptive; }

bool weights_by_channel(const op_entry *op) {
  return is_norm(op) && (op->rows == ROWS_GROUPS || op->rows == ROWS_CHANNELS);
}
