/* One call of the library: an operator, a direction, types and shapes, and the tensors that make
 * it up. Both check and bench build on this. */
#ifndef ONEPASS_CLI_PROBLEM_H
#define ONEPASS_CLI_PROBLEM_H

#include <onepass.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum op_kind { OP_L1_NORM, OP_LAYER_NORM, OP_AVG_POOL1D, OP_COUNT } op_kind;

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

typedef struct problem {
  op_kind op;
  onepass_direction direction;
  onepass_dtype dtype, weight_dtype;
  int32_t ndim;
  int64_t shape[ONEPASS_MAX_NDIM]; /* of x, or of dx for pooling backward */

  int32_t axis; /* norms; counted from the front */
  onepass_reduction reduction;
  double eps;
  bool weight, bias; /* layer_norm: given, and their gradients wanted */
  bool stats;        /* layer_norm forward: mean and rstd wanted */
  bool keep_axes;    /* mean and rstd have ones in place of the normalized axes */

  int64_t kernel, stride, padding, pooled; /* avg_pool1d; pooled is the output's length */
  bool ceil_mode, count_include_pad;
} problem;

/* How the elements of an operand lie in memory. */
typedef enum layout {
  LAYOUT_COMPACT,
  LAYOUT_OFFSET,        /* compact, but one element away from an aligned address */
  LAYOUT_TRANSPOSED,    /* the first axis is the innermost */
  LAYOUT_SLICED,        /* every second element of rows that are longer still */
  LAYOUT_CHANNELS_LAST, /* axis 1 is the innermost */
  LAYOUT_BROADCAST,     /* inputs repeat along axis 0 (stride 0); outputs are compact */
  LAYOUTS
} layout;

/* The tensor in one role, with its memory. */
typedef struct operand {
  onepass_dtype dtype;
  int32_t ndim; /* 0: the call does not use it */
  int64_t shape[ONEPASS_MAX_NDIM], strides[ONEPASS_MAX_NDIM];
  int64_t elements;
  int64_t span; /* elements of memory from the first to the last one */
  bool compact;
  onepass_device device; /* of memory and data; the CPU unless moved */
  unsigned char *memory; /* with guard bands on both sides; NULL when borrowed from another */
  int64_t memory_size;
  unsigned char *data;
  unsigned char *twin; /* as memory, on a GPU; NULL where there is none */
} operand;

enum { GUARD = 256, PATTERN = 0xa5 };

const char *role_name(role role);
const char *direction_name(onepass_direction direction);
const char *layout_name(layout layout);
bool role_is_output(role role, onepass_direction direction);

/* The view (outer, length, inner) of the tensor: what is summed or pooled is `length`. */
typedef struct view {
  int64_t outer, length, inner;
} view;
view problem_view(const problem *problem);

/* Shapes, strides and sizes of all operands; those the call does not use get ndim 0. Nothing is
 * allocated. False when a size does not fit in 64 bits. */
bool problem_operands(const problem *problem, layout layout, operand operands[ROLES]);

/* Say that all operands are on a device; what they point to stays as it is. */
void operands_on(onepass_device device, operand operands[ROLES]);

/* Memory for one operand; false when there is none. operand_allocate fills it with PATTERN;
 * operand_reserve leaves the first touch to the threads that will work on it. */
bool operand_reserve(operand *operand, layout layout);
bool operand_allocate(operand *operand, layout layout);
void operands_free(operand operands[ROLES]);

/* Logical elements first, first + step, ... of an operand as doubles. */
void operand_load(const operand *operand, int64_t first, int64_t step, int64_t count, double *to);
unsigned char *operand_at(const operand *operand, int64_t index);

/* Plan the problem for operands of these shapes, strides and types. */
onepass_status problem_plan(const problem *problem, const operand operands[ROLES],
                            const onepass_options *options, onepass_plan **plan);
onepass_tensor operand_tensor(const operand *operand);
onepass_buffers operand_buffers(const operand operands[ROLES]);

/* Plan and run with the plain loops in double. want gets the inputs of `operands` and new compact
 * f64 outputs, except for roles in `native`, a set of bits, that keep the problem's type. The
 * caller frees want with operands_free, whatever the status. */
onepass_status run_reference(const problem *problem, const operand operands[ROLES], unsigned native,
                             operand want[ROLES]);

#endif
