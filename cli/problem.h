/* One call of the library: an operator, a direction, types and shapes, and the tensors that make
 * it up. Both check and bench build on this. */
#ifndef ONEPASS_CLI_PROBLEM_H
#define ONEPASS_CLI_PROBLEM_H

#include <onepass.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "operators.h"

typedef struct problem {
  const op_entry *op;
  onepass_direction direction;
  onepass_dtype dtype, weight_dtype;
  int32_t ndim;
  int64_t shape[ONEPASS_MAX_NDIM]; /* of x, or of dx for pooling backward */
  unsigned roles;                  /* the tensors of the call, a set of bits */
  onepass_norm norm;               /* the description: this one of norms */
  onepass_pool pool;               /* and this one of pools */
  int64_t pooled[POOL_AXES];       /* pools: the sizes of the output's last axes */
  bool keep_axes;                  /* mean and rstd have ones in place of the normalized axes */
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
extern const char *const activation_choices[]; /* in the order of onepass_activation */

/* ---- Descriptions ---- */

/* An operator as the table has it, still without a shape. */
problem make_problem(const op_entry *op, onepass_direction direction, onepass_dtype dtype);

/* The shape, and what follows from it; an axis means nothing to operators that take none. */
void set_shape(problem *problem, const int64_t *sizes, int32_t ndim);

/* Of the sizes first..last. */
int64_t product(const int64_t *sizes, int32_t first, int32_t last);
void set_axis(problem *problem, int32_t axis);

/* Backward needs the bias for the slope. */
void set_activation(problem *problem, onepass_activation activation);

/* The pooled sizes that follow from shape and window. */
onepass_status set_pooled(problem *problem);

static inline bool has_role(const problem *problem, role role) {
  return problem->roles >> role & 1;
}
bool role_is_output(const problem *problem, role role);
bool role_is_updated(const problem *problem, role role); /* read, too: running statistics */

/* What a line says beside its shape: "axis -1", "k3 s2 p1", "to 7x7". */
void format_arguments(char *text, size_t size, const problem *problem);

/* "3" where all are alike, or "3x5". */
void format_sizes(char *text, size_t size, const int64_t *sizes, int32_t count);

/* ---- Rows ---- */

/* The rows of a norm, each of `length` elements; of a pool, its planes. Some rows may lie side by
 * side, and a row may be in several runs, whose elements are `step` apart. */
typedef struct view {
  int64_t rows, length;
  int64_t side, pitch; /* rows side by side; from such a set to the next one's first element */
  int64_t step;
  int64_t run, hop; /* elements of a run; from a run's start to the next one's */
} view;
view problem_view(const problem *problem);

/* The logical number of a row's element. */
static inline int64_t view_element(const view *view, int64_t row, int64_t element) {
  int64_t start = row / view->side * view->pitch + row % view->side;
  if (element < view->run) return start + element * view->step;
  return start + element / view->run * view->hop + element % view->run * view->step;
}

/* Which weight an element of a row has, and how many there are. */
int64_t weight_of(const problem *problem, const view *view, int64_t row, int64_t element);
int64_t weight_count(const problem *problem);

/* ---- Operands ---- */

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

/* Elements of memory that an operand's strides span. */
int64_t span_of(const operand *operand);

/* ---- Calls ---- */

/* Plan the problem for operands of these shapes, strides and types. */
onepass_status problem_plan(const problem *problem, const operand operands[ROLES],
                            const onepass_options *options, onepass_plan **plan);
onepass_tensor operand_tensor(const operand *operand);
onepass_buffers operand_buffers(const operand operands[ROLES]);

/* The forward call that makes what this backward one reads of it; of norms, without fusions. */
problem forward_of(const problem *backward);

/* Plan and run with the plain loops in double. want gets the inputs of `operands` and new compact
 * f64 outputs, except for roles in `native`, a set of bits, that keep the problem's type, and for
 * indices. The caller frees want with operands_free, whatever the status. */
onepass_status run_reference(const problem *problem, const operand operands[ROLES], unsigned native,
                             operand want[ROLES]);

#endif
