/* The operators that the command knows, in one table: a new one is a new entry. */
#ifndef ONEPASS_CLI_OPERATORS_H
#define ONEPASS_CLI_OPERATORS_H

#include <onepass.h>
#include <stdbool.h>
#include <stdint.h>

#include "options.h"

/* The tensors of a call by their part in it, in the order of onepass_tensors. */
typedef enum role {
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
} role;

#define ROLE_BIT(role) (1u << (role))
#define RUNNING_ROLES  (ROLE_BIT(RUNNING_MEAN) | ROLE_BIT(RUNNING_VAR))

typedef enum family { FAMILY_NORM, FAMILY_POOL, FAMILIES } family;

/* What a norm gathers one statistic over. */
typedef enum rows_kind {
  ROWS_ALONG_AXIS, /* one axis, or some neighbouring ones */
  ROWS_TRAILING,   /* from an axis to the last */
  ROWS_WHOLE,      /* everything */
  ROWS_GROUPS,     /* (N, C, ...): some channels of a batch and all that is behind them */
  ROWS_CHANNELS    /* (N, C, ...): a channel of all batches and all that is behind it */
} rows_kind;

/* What a norm divides a row by; the bounds of check follow from it. */
typedef enum divisor_kind {
  BY_MAGNITUDE, /* sum or mean of |x| */
  BY_LENGTH,    /* sqrt(sum x^2) */
  BY_RMS,       /* sqrt(mean x^2 + eps) */
  BY_DEVIATION  /* sqrt(variance + eps), the mean being subtracted */
} divisor_kind;

enum { POOL_AXES = 3, BENCH_SHAPES = 2 };

typedef struct op_entry {
  const char *name;
  family family;
  bool is_main;      /* bench shows it when nothing is asked for */
  unsigned roles[2]; /* forward and backward: sets of bits, with all that training needs */
  unsigned variants; /* roles that check adds in some cases */

  onepass_norm_op norm; /* norms */
  rows_kind rows;
  divisor_kind divisor;
  bool clamp;
  bool group_a_channel;
  double eps;

  onepass_pool_op pool; /* pools */
  int32_t spatial;
  bool adaptive;

  /* What bench takes when it is not told. */
  shape shapes[BENCH_SHAPES];      /* f32 tensors of about 256 MiB; ndim 0: none */
  int64_t gpu_first[BENCH_SHAPES]; /* the first size on a GPU; 0: the same */
  int64_t kernel, stride, output;
} op_entry;

/* The table, in the order in which operators are shown. */
extern const op_entry op_table[];
extern const int op_count;

/* The names of the table, then the choices below; ends with NULL. */
const char *const *op_choices(void);

/* Values of --op beyond the table's: everything, a family, and bench's own choice. */
enum { OPS_MAIN = -1 };
int ops_all(void);
bool op_is_chosen(int choice, const op_entry *op);
bool is_one_op(int choice);

/* What operators take, for options that suit only some of them. */
bool takes_axis(const op_entry *op);
bool takes_groups(const op_entry *op);
bool takes_activation(const op_entry *op);
bool takes_window(const op_entry *op);
bool takes_padding(const op_entry *op);
bool takes_dilation(const op_entry *op);
bool takes_output(const op_entry *op);
bool weights_by_channel(const op_entry *op); /* x is (N, C, ...) */

#endif
