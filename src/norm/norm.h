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

/* What the moments of a row are made into. */
typedef enum onepass_denominator {
  ONEPASS_BY_DEVIATION, /* sqrt(variance + eps), the mean being subtracted */
  ONEPASS_BY_RMS,       /* sqrt(mean of squares + eps) */
  ONEPASS_BY_LENGTH     /* sqrt(sum of squares), plus eps or not below it */
} onepass_denominator;

typedef enum onepass_norm_view {
  ONEPASS_VIEW_AXES,    /* a row spans some neighbouring axes */
  ONEPASS_VIEW_GROUPS,  /* (N, C, ...): some channels of one batch and all that is behind them */
  ONEPASS_VIEW_CHANNELS /* (N, C, ...): all batches of one channel */
} onepass_norm_view;

typedef struct onepass_norm_reference onepass_norm_reference;

typedef struct onepass_norm_operator {
  const char *name;
  onepass_statistic statistic;
  onepass_denominator denominator; /* MOMENTS */
  onepass_norm_view view;
  bool trailing_axes; /* if not told, a row spans the axes from `axis` to the last, not just one */
  bool takes_reduction; /* ONEPASS_SUM is possible */
  bool takes_clamp;
  bool takes_fusions; /* a residual before and an activation behind */
  onepass_signature forward, backward;
  void (*reference_forward)(const onepass_norm_reference *row);
  void (*reference_backward)(const onepass_norm_reference *row);
} onepass_norm_operator;

/* How the CPU goes about it; problem.c says when. */
typedef enum onepass_norm_strategy {
  ONEPASS_NORM_REFERENCE,
  ONEPASS_NORM_ROWS,        /* a thread takes whole rows: reads the next while it writes this one */
  ONEPASS_NORM_SPLIT,       /* all statistics first, then all rows column block by column block */
  ONEPASS_NORM_COLUMNS,     /* lanes run across rows, whose elements are far apart */
  ONEPASS_NORM_CELLS,       /* by channel: a thread takes whole rows, cell by cell */
  ONEPASS_NORM_SPLIT_CELLS, /* all statistics first, then all cells */
  ONEPASS_NORM_LANES,       /* lanes run across channels; a thread takes a batch */
  ONEPASS_NORM_SPLIT_LANES, /* likewise, all statistics first */
  ONEPASS_NORM_STRATEGY_COUNT
} onepass_norm_strategy;

typedef struct onepass_norm_problem {
  const onepass_norm_operator *op;
  const struct onepass_norm_kernels
      *kernels; /* of the tensors' type, or of that of sums if staged */
  const struct onepass_norm_kernels *staging; /* if something is fused: to that type and back */
  onepass_norm_strategy strategy;
  bool backward;
  bool divide_by_count; /* the statistic is a mean, not a sum */
  bool clamp;           /* the denominator is not less than eps, rather than eps more */
  bool use_running;     /* the statistic is given */
  onepass_activation activation;
  double momentum;
  bool packed;         /* some rows are not dense in memory: copy chunks of them before and after */
  bool stream;         /* what moves exceeds the caches: write past them */
  bool packed_weights; /* weight or bias is not dense: copy them first */
  void (*widen_weights)(void *to, const void *from, int64_t count); /* or, if not NULL, do this */
  void (*narrow_sums)(void *to, const double *sums, int64_t count); /* of dweight and dbias */
  int threads;
  double eps;
  double one_over_n;        /* of the elements in a row */
  onepass_type type;        /* of x, y, dy, dx */
  onepass_type weight_type; /* of weight, bias, dweight, dbias */
  onepass_type
      held_weight_type;  /* as the CPU's kernels read them: that, or f32 if they are widened */
  onepass_walk rows;     /* over the rows */
  onepass_walk elements; /* over the elements of a row */
  /* With weights by channel: the C channels are in `groups` rows (VIEW_GROUPS) or a row each
   * (VIEW_CHANNELS) of every batch, and a channel of a batch is a cell of `spatial` elements. */
  int64_t batches, channels, groups;
  onepass_walk cells;   /* [batches, channels], never merged */
  onepass_walk spatial; /* over the elements of a cell */
  bool runs_are_rows;   /* CELLS forward: the cells of a row lie back to back */
  bool applies_rows;    /* and are applied together, */
  bool spreads_weights; /* with a weight and a bias for every element of a batch */
  bool moves_running;   /* there are running statistics to be moved on */
  int lane_axis;        /* COLUMNS: the axis of `rows` that lies dense in memory */
  bool keeps_dy;        /* ROWS backward: dy of a row before the activation waits in scratch */
  int64_t row_block;    /* ROWS backward: rows whose dweight and dbias are summed together */
  bool turned;          /* ROWS: short ones, done side by side in scratch memory */
  int64_t strip;        /* COLUMNS, turned ROWS: rows, LANES: channels done together */
  int64_t tasks;        /* pieces for the threads to share */
  int64_t chunks;       /* of a row, each summed by itself */
  int64_t segment;      /* SPLIT: elements of all rows done together */
  /* Where things are in the workspace, in bytes from its start. */
  size_t sums_at, scales_at, moments_at, partials_at, weights_at, scratch_at, scratch_size;
} onepass_norm_problem;

/* What a reference is given: one row, as doubles through these accessors. */
struct onepass_norm_reference {
  const onepass_norm_problem *problem;
  const onepass_layouts *layouts;
  const onepass_buffers *buffers;
  int64_t row;
  /* Sums over the rows for every weight: dweight and dbias or, forward, what running_mean and
   * running_var are moved by. */
  double *by_weight, *by_bias;
};

static inline bool onepass_norm_by_channel(const onepass_norm_problem *problem) {
  return problem->op->view != ONEPASS_VIEW_AXES;
}

/* The channel of an element of a row. */
static inline int64_t onepass_norm_channel(const onepass_norm_problem *p, int64_t row,
                                           int64_t element) {
  if (p->op->view == ONEPASS_VIEW_CHANNELS) return row;
  const int64_t spatial = p->spatial.count ? p->spatial.count : 1; /* 0: there are no elements */
  return row % p->groups * (p->channels / p->groups) + element / spatial;
}

/* Activations and their slopes, in double; reference.c. */
double onepass_activate(onepass_activation activation, double x);
double onepass_activation_slope(onepass_activation activation, double x);

struct onepass_plan;
void onepass_norm_run_reference(const struct onepass_plan *plan, const onepass_buffers *buffers,
                                void *workspace);
size_t onepass_norm_reference_workspace(const onepass_norm_problem *problem);
void onepass_norm_run_cpu(const struct onepass_plan *plan, const onepass_buffers *buffers,
                          void *workspace);
void onepass_norm_run_empty(const struct onepass_plan *plan, const onepass_buffers *buffers,
                            void *workspace);

/* Choose the strategy, kernels and workspace of a checked problem; launch.c. */
void onepass_norm_choose_cpu(struct onepass_plan *plan, int threads, onepass_vector_level level);

void onepass_norm_l1_forward(const onepass_norm_reference *row);
void onepass_norm_l1_backward(const onepass_norm_reference *row);
void onepass_norm_moments_forward(const onepass_norm_reference *row);
void onepass_norm_moments_backward(const onepass_norm_reference *row);

#endif
