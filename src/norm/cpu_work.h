/* What the strategies on CPU threads share: the work at hand, and pieces of rows or cells as the kernels
 * want them: dense, and, where something is fused, summed with the residual and in the type of sums. */
#ifndef ONEPASS_NORM_CPU_WORK_H
#define ONEPASS_NORM_CPU_WORK_H

#include "core/plan.h"
#include "norm/cpu.h"

typedef struct onepass_norm_work {
  const onepass_plan *plan;
  const onepass_norm_problem *problem;
  onepass_buffers buffers; /* with weight and bias dense */
  char *workspace;
} onepass_norm_work;

/* Elements that a walk visits, from where another walk is at `number`: a row, or a cell. */
typedef struct onepass_stretch {
  const onepass_walk *runs;
  int64_t number;
  const onepass_walk *elements;
} onepass_stretch;

static inline char *onepass_scratch_for(const onepass_norm_work *w, int worker) {
  if (!w->problem->scratch_size) return NULL;
  return w->workspace + w->problem->scratch_at + (size_t)worker * w->problem->scratch_size;
}

/* The ONEPASS_LANE_VALUES that tell what is done to a lane. */
enum {
  ONEPASS_LANE_SHIFT,
  ONEPASS_LANE_SCALE,
  ONEPASS_LANE_OFFSET,
  ONEPASS_LANE_SAVED_MEAN,
  ONEPASS_LANE_SAVED_RSTD,
  ONEPASS_LANE_BY_DY,
  ONEPASS_LANE_BY_Z,
  ONEPASS_LANE_CONSTANT
};

/* Numbers in the type of sums. */
static inline int64_t onepass_sums_size(const onepass_norm_problem *p) {
  return onepass_type_size(onepass_type_of_sums(p->type));
}
static inline void onepass_put_sum(const onepass_norm_problem *p, void *base, int64_t lane,
                                   double value) {
  if (p->type == ONEPASS_TYPE_F64) {
    ((double *)base)[lane] = value;
  } else {
    ((float *)base)[lane] = (float)value;
  }
}

/* A worker's scratch begins with pieces of ONEPASS_NORM_CHUNK elements, if rows are packed or staged. */
enum {
  ONEPASS_PACKED_X,  /* also packed outputs */
  ONEPASS_PACKED_DY, /* or the residual */
  ONEPASS_PACKED_MORE,
  ONEPASS_STAGED_X,
  ONEPASS_STAGED_DY,
  ONEPASS_STAGED_OUTPUT,
  ONEPASS_PIECES
};

static inline size_t onepass_piece_bytes(const onepass_norm_problem *p) {
  return ONEPASS_NORM_CHUNK * (size_t)onepass_type_size(onepass_type_of_sums(p->type));
}

static inline int onepass_pieces_kept(const onepass_norm_problem *p) {
  return p->staging ? ONEPASS_PIECES : p->packed ? ONEPASS_STAGED_X : 0;
}

static inline char *onepass_piece_at(const onepass_norm_problem *p, char *scratch, int piece) {
  if (!scratch) return NULL;
  if (piece > onepass_pieces_kept(p)) piece = onepass_pieces_kept(p); /* the rest of the scratch */
  return scratch + (size_t)piece * onepass_piece_bytes(p);
}

/* Where a run's element `begin` is. */
static inline char *onepass_element_at(const onepass_norm_work *w, onepass_role role,
                                       const onepass_stretch *run, int64_t begin) {
  return onepass_buffer(&w->buffers, role) +
         (onepass_walk_offset(run->runs, role, run->number) + begin) *
             onepass_type_size(w->problem->type);
}

/* Elements begin..begin+count of a run, at most a chunk of them if they are packed or staged: x forward, with
 * the residual added; `again` if they have been read before. */
const char *onepass_read_summed(const onepass_norm_work *w, const onepass_stretch *run,
                                int64_t begin, int64_t count, bool again, char *scratch);
/* The same of x and dy backward, in that order. If dy is staged it goes to
 * `staged` or, if that is NULL, to its piece of the scratch. */
const char *onepass_read_x(const onepass_norm_work *w, const onepass_stretch *run, int64_t begin,
                           int64_t count, char *scratch);
const char *onepass_read_dy(const onepass_norm_work *w, const onepass_stretch *run, int64_t begin,
                            int64_t count, char *staged, char *scratch);
/* dy as it was before the activation, which was of what `before` makes of x. */
void onepass_pass_activation(const onepass_norm_work *w, const char *x, char *dy,
                             const onepass_row_scale *before, const char *weight, const char *bias,
                             int64_t count, char *scratch);

/* Where to write such a piece of y or dx, and, once it is written, bringing it there. */
char *onepass_place_to_write(const onepass_norm_work *w, onepass_role role,
                             const onepass_stretch *run, int64_t begin, char *scratch);
void onepass_finish_piece(const onepass_norm_work *w, onepass_role role, const onepass_stretch *run,
                          int64_t begin, int64_t count, char *scratch);

double onepass_saved_at(const onepass_norm_work *w, onepass_role role, int64_t row);
void onepass_save_row(const onepass_norm_work *w, int64_t row, const onepass_row_scale *scale);

/* A weight, a bias or a running statistic; `otherwise` where the plan has none. */
double onepass_channel_value(const onepass_norm_work *w, onepass_role role, int64_t channel,
                             double otherwise);
void onepass_put_channel_value(const onepass_norm_work *w, onepass_role role, int64_t channel,
                               double value);
/* Move the running statistics of a channel towards these, which its rows have on average. */
void onepass_move_running(const onepass_norm_work *w, int64_t channel, double mean,
                          double variance);

/* By channel, cell by cell: cpu_cells.c. Lane by lane: cpu_lanes.c. */
void onepass_norm_run_cells(onepass_norm_work *w);
void onepass_norm_run_lanes(onepass_norm_work *w);

/* Rows side by side, strip by strip, and rows that are turned for it: cpu_strips.c. What a worker needs for a strip is at
 * the end of its scratch. dweight and dbias, if not NULL, are added to, in the type of sums. */
size_t onepass_norm_strip_bytes(const onepass_norm_problem *p);
void onepass_norm_do_strips(void *work, int worker, int64_t begin, int64_t end);
void onepass_norm_forward_turned(const onepass_norm_work *w, int worker, int64_t begin,
                                 int64_t end);
void onepass_norm_backward_turned(const onepass_norm_work *w, int worker, int64_t begin,
                                  int64_t end, void *dweight, void *dbias);

#endif
