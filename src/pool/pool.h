/*
 * The pooling family: a window slides over the last one to three axes of the tensor, and every
 * plane, one position of all other axes, is pooled by itself. Problems always have three pooled
 * axes: those that an operator lacks come first and have one element and one window.
 *
 * Coordinates: along an axis, output o looks at elements o * stride - padding, `dilation` apart,
 * `kernel` of them; elements outside 0..length are padding. Adaptive pooling cuts the axis into as
 * many parts as there are outputs, rounded outwards to whole elements.
 */
#ifndef ONEPASS_POOL_POOL_H
#define ONEPASS_POOL_POOL_H

#include "core/tensor.h"

enum { ONEPASS_POOL_AXES = 3 };

typedef struct onepass_pool_axis {
  int64_t kernel, stride, padding, dilation; /* 0 if adaptive */
  int64_t extent;                            /* from a window's first element to past its last */
  int64_t length, pooled;                    /* elements before and after pooling */
  int64_t long_step, pooled_step;            /* from one element to the next of x or dx, y or dy */
  int64_t step[ONEPASS_ROLE_COUNT];          /* the same for every tensor */
  bool adaptive;
  bool count_include_pad;
} onepass_pool_axis;

struct onepass_pool_problem;
/* Tasks begin..end, with scratch memory of one worker. */
typedef void onepass_pool_task(const struct onepass_pool_problem *problem,
                               const onepass_buffers *buffers, int64_t begin, int64_t end,
                               void *scratch);

typedef struct onepass_pool_problem {
  const struct onepass_pool_kernels *kernels;
  onepass_pool_op op;
  bool backward;
  bool adaptive;
  bool count_include_pad;
  bool stream; /* what moves exceeds the caches: write past them */
  int threads;
  int spatial; /* axes the operator has; the last ones of the three below */
  onepass_type type;
  union {
    onepass_pool_axis axis[ONEPASS_POOL_AXES];
    struct {
      onepass_pool_axis deep, high, wide;
    };
  };
  double divisor;         /* avg_pool: if not 0, of every window */
  double p;               /* lp_pool */
  double elements;        /* of a window, padding and all; adaptive: 0 */
  double one_over_kernel; /* along the last axis */
  onepass_walk planes;    /* over all axes that are not pooled */
  int64_t segment;        /* elements of an output line that one task does */
  size_t scratch_size;    /* a worker */
  /* Beyond avg_pool1d, see cpu.h. */
  onepass_pool_task *task;
  int64_t tasks, tiles; /* all of them, and those of a row */
  int windows;          /* an onepass_pool_windows, of the last axis */
  int64_t room;         /* sums in each of a worker's buffers */
  int64_t channels;     /* that lanes run across */
  bool has_indices;
} onepass_pool_problem;

/* avg_pool1d as such, which has kernels everywhere. */
static inline bool onepass_pool_is_plain(const onepass_pool_problem *p) {
  return p->op == ONEPASS_AVG_POOL && p->spatial == 1 && !p->adaptive && p->divisor == 0;
}

/* ---- Windows: the one place that knows what they hold ---------------------------------------- */

/* The elements of output o along an axis: begin, begin + step, ... up to end, without the padding.
 * Far dilated ones may all be padding: then begin is not below end. The divisor of an average is
 * the product of its axes' divisors. */
typedef struct onepass_window {
  int64_t begin, end, step;
  int64_t divisor;
} onepass_window;

/* Of `parts` equal parts of `whole` elements; whole * parts and both added to it are below 2^63. */
static inline int64_t onepass_part_begin(int64_t part, int64_t whole, int64_t parts) {
  return part * whole / parts;
}
static inline int64_t onepass_part_end(int64_t part, int64_t whole, int64_t parts) {
  return ((part + 1) * whole + parts - 1) / parts;
}

static inline onepass_window onepass_window_of(const onepass_pool_axis *axis, int64_t output) {
  if (axis->adaptive) {
    const int64_t from = onepass_part_begin(output, axis->length, axis->pooled);
    const int64_t to = onepass_part_end(output, axis->length, axis->pooled);
    return (onepass_window){from, to, 1, to - from};
  }
  int64_t begin = output * axis->stride - axis->padding, end = begin + axis->extent;
  if (end > axis->length + axis->padding) {
    end = axis->length + axis->padding; /* ceil_mode: hangs over the end */
  }
  const int64_t with_padding = end - begin;
  if (begin < 0) begin = axis->dilation == 1 ? 0 : begin % axis->dilation;
  if (begin < 0) begin += axis->dilation;
  if (end > axis->length) end = axis->length;
  return (onepass_window){begin, end, axis->dilation,
                          axis->count_include_pad ? with_padding : end - begin};
}

static inline bool onepass_window_holds(onepass_window window, int64_t element) {
  return element >= window.begin && element < window.end &&
         (element - window.begin) % window.step == 0;
}

/* The outputs whose windows may hold an element: with dilation, not all of them do. */
static inline onepass_window onepass_outputs_of(const onepass_pool_axis *axis, int64_t element) {
  if (axis->adaptive) {
    if (axis->pooled == 0) return (onepass_window){.step = 1};
    return (onepass_window){.begin = onepass_part_begin(element, axis->pooled, axis->length),
                            .end = onepass_part_end(element, axis->pooled, axis->length),
                            .step = 1};
  }
  const int64_t before = element + axis->padding - axis->extent; /* windows from here have ended */
  const int64_t last = (element + axis->padding) / axis->stride;
  return (onepass_window){.begin = before < 0 ? 0 : before / axis->stride + 1,
                          .end = last < axis->pooled ? last + 1 : axis->pooled,
                          .step = 1};
}

/* What the sum over the windows of the three axes is divided by. In double, as large padding goes
 * beyond 2^63. */
static inline double onepass_divisor_of(const onepass_pool_problem *p,
                                        const onepass_window windows[ONEPASS_POOL_AXES]) {
  if (p->divisor != 0) return p->divisor;
  return (double)windows[0].divisor * (double)windows[1].divisor * (double)windows[2].divisor;
}

struct onepass_plan;
void onepass_pool_run_reference(const struct onepass_plan *plan, const onepass_buffers *buffers,
                                void *workspace);
void onepass_pool_run_cpu(const struct onepass_plan *plan, const onepass_buffers *buffers,
                          void *workspace);

/* Choose the kernels, threads and workspace of a checked problem; cpu.c. What has no kernels is left
 * to the reference. */
void onepass_pool_choose_cpu(struct onepass_plan *plan, int threads, onepass_vector_level level);

#endif
