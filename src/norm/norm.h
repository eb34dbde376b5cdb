/*
 * The normalization family. Every member views its tensor as rows of elements: a row is what one
 * statistic is gathered over, wherever its elements lie. Forward, a row's statistic gives a shift
 * and a scale, and y = (x - shift) * scale * weight + bias. Backward, a row needs sums of products
 * with dy.
 *
 * A member is an entry of the table in problem.c (its name, its view and its statistic), a
 * reference in reference.c, and its statistic's terms in cpu_forward.h and cpu_backward.h.
 */
#ifndef ONEPASS_NORM_NORM_H
#define ONEPASS_NORM_NORM_H

#include "core/tensor.h"

typedef enum onepass_statistic {
  ONEPASS_STATISTIC_ABS,     /* sum of |x|: y = x * scale */
  ONEPASS_STATISTIC_MOMENTS, /* mean and variance: y = (x - mean) * rstd * weight + bias */
  ONEPASS_STATISTIC_COUNT
} onepass_statistic;

typedef struct onepass_norm_reference onepass_norm_reference;

typedef struct onepass_norm_operator {
  const char *name;
  onepass_statistic statistic;
  bool trailing_axes;   /* a row spans the axes from `axis` to the last, not just `axis` */
  bool takes_reduction; /* ONEPASS_SUM is possible */
  onepass_signature forward, backward;
  void (*reference_forward)(const onepass_norm_reference *row);
  void (*reference_backward)(const onepass_norm_reference *row);
} onepass_norm_operator;

/* How the CPU goes about it; problem.c says when. */
typedef enum onepass_norm_strategy {
  ONEPASS_NORM_REFERENCE,
  ONEPASS_NORM_ROWS,    /* a thread takes whole rows: reads the next while it writes this one */
  ONEPASS_NORM_SPLIT,   /* all statistics first, then all rows column block by column block */
  ONEPASS_NORM_COLUMNS, /* lanes run across rows, whose elements are far apart */
  ONEPASS_NORM_STRATEGY_COUNT
} onepass_norm_strategy;

typedef struct onepass_norm_problem {
  const onepass_norm_operator *op;
  const struct onepass_norm_kernels *kernels;
  onepass_norm_strategy strategy;
  bool backward;
  bool divide_by_count; /* the statistic is a mean, not a sum */
  bool packed;         /* some rows are not dense in memory: copy chunks of them before and after */
  bool stream;         /* what moves exceeds the caches: write past them */
  bool packed_weights; /* weight or bias is not dense: copy them first */
  void (*widen_weights)(void *to, const void *from, int64_t count); /* or, if not NULL, do this */
  int threads;
  double eps;
  double one_over_n;        /* of the elements in a row */
  onepass_type type;        /* of x, y, dy, dx */
  onepass_type weight_type; /* of weight, bias, dweight, dbias */
  onepass_type
      held_weight_type;  /* as the CPU's kernels read them: that, or f32 if they are widened */
  onepass_walk rows;     /* over the rows */
  onepass_walk elements; /* over the elements of a row */
  int lane_axis;         /* COLUMNS: the axis of `rows` that lies dense in memory */
  int64_t row_block;     /* ROWS backward: rows whose dweight and dbias are summed together */
  int64_t strip;         /* COLUMNS: rows done together */
  int64_t tasks;         /* pieces for the threads to share */
  int64_t chunks;        /* of a row, each summed by itself */
  int64_t segment;       /* SPLIT: elements of all rows done together */
  /* Where things are in the workspace, in bytes from its start. */
  size_t sums_at, scales_at, partials_at, weights_at, scratch_at, scratch_size;
} onepass_norm_problem;

/* What a reference is given: one row, as doubles through these accessors. */
struct onepass_norm_reference {
  const onepass_norm_problem *problem;
  const onepass_layouts *layouts;
  const onepass_buffers *buffers;
  int64_t row;
  double *dweight, *dbias; /* running sums over the rows, backward */
};

struct onepass_plan;
void onepass_norm_run_reference(const struct onepass_plan *plan, const onepass_buffers *buffers,
                                void *workspace);
void onepass_norm_run_cpu(const struct onepass_plan *plan, const onepass_buffers *buffers,
                          void *workspace);
void onepass_norm_run_empty(const struct onepass_plan *plan, const onepass_buffers *buffers,
                            void *workspace);

/* Choose the strategy, kernels and workspace of a checked problem; launch.c. */
void onepass_norm_choose_cpu(struct onepass_plan *plan, int threads, onepass_vector_level level);

void onepass_norm_l1_forward(const onepass_norm_reference *row);
void onepass_norm_l1_backward(const onepass_norm_reference *row);
void onepass_norm_layer_forward(const onepass_norm_reference *row);
void onepass_norm_layer_backward(const onepass_norm_reference *row);

#endif
