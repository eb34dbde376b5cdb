/* Pooling on CPU threads. For avg_pool1d every task is a segment of one line, which is a plane; for
 * all others, a tile of a row of a plane. */
#include "pool/cpu.h"

#include "core/plan.h"
#include "cpu/machine.h"
#include "cpu/threads.h"

enum {
  LEAST_SEGMENT = 16384,  /* outputs; shorter lines are one task each */
  SHORT_LINE = 64,        /* elements; forward, up to here a line is done as a plane */
  SHORT_DENSE_LINE = 256, /* up to here if windows are one apart */
  LEAST_APART = 8, /* backward, strides from which zeros are no loss if windows do not overlap */
  LEAST_STREAMED_LINE = 2048, /* bytes; shorter ones are mostly beginnings and ends */
  LEAST_CHANNELS = 4          /* fewer of them leave lanes idle */
};

/* Of a level, or, for what it has no kernels of its own, of the one below. */
static const onepass_pool_kernels *kernels_at(onepass_vector_level level, onepass_type type) {
#if defined(__x86_64__)
  const onepass_pool_kernels *kernels = NULL;
  if (level == ONEPASS_VECTOR_AVX512) kernels = onepass_pool_kernels_avx512(type);
  if (kernels) return kernels;
  return level == ONEPASS_VECTOR_BASELINE ? onepass_pool_kernels_sse2(type)
                                          : onepass_pool_kernels_avx2(type);
#elif defined(__aarch64__)
  const onepass_pool_kernels *kernels = NULL;
#if defined(ONEPASS_HAS_NEON_BF16)
  if (level == ONEPASS_VECTOR_NEON_BF16) kernels = onepass_pool_kernels_neon_bf16(type);
#endif
  (void)level;
  return kernels ? kernels : onepass_pool_kernels_neon(type);
#else
  (void)level;
  return onepass_pool_kernels_generic(type);
#endif
}

static int64_t output_length(const onepass_pool_problem *p) {
  return p->backward ? p->wide.length : p->wide.pooled;
}

static int64_t segments_of(const onepass_pool_problem *p) {
  return (output_length(p) - 1) / p->segment + 1;
}

/* Whether a line is done as a plane of one row: where several short ones are to be done at a time, and for gradients
 * of windows with strides, which planes do without the zeros in between. */
static bool is_better_as_plane(const onepass_pool_problem *p) {
  const onepass_pool_axis *wide = &p->wide;
  if (!p->backward) return wide->length <= (wide->stride == 1 ? SHORT_DENSE_LINE : SHORT_LINE);
  const bool apart = wide->stride >= wide->kernel && wide->stride >= LEAST_APART;
  return wide->stride > 1 && wide->stride < ONEPASS_POOL_LEAST_STEP && !apart &&
         wide->length > SHORT_LINE && wide->kernel <= ONEPASS_POOL_WIDEST_EVEN;
}

static void choose_lines(onepass_plan *plan, int threads) {
  onepass_pool_problem *p = &plan->problem.pool;
  p->stream = p->wide.long_step == 1 && p->wide.pooled_step == 1 &&
              output_length(p) * onepass_type_size(p->type) >= LEAST_STREAMED_LINE &&
              plan->info.bytes > onepass_this_machine()->last;
  /* Whole lines, unless there are fewer than threads. */
  const int64_t share =
      p->planes.count >= threads ? output_length(p) : (output_length(p) - 1) / threads + 1;
  p->segment = share > LEAST_SEGMENT ? share : LEAST_SEGMENT;
  const int64_t tasks = p->planes.count * segments_of(p);
  p->threads = tasks < threads ? (tasks ? (int)tasks : 1) : threads;
  p->scratch_size = (onepass_pool_scratch(p) + 63) / 64 * 64;
  plan->run = onepass_pool_run_cpu;
  plan->info.kernel = p->wide.kernel > ONEPASS_POOL_WIDEST_TILED ? "wide_windows"
                      : p->wide.stride > 1 || p->wide.long_step != 1 || p->wide.pooled_step != 1
                          ? "tiled_windows"
                          : "dense_windows";
}

typedef struct work {
  const onepass_pool_problem *problem;
  const onepass_buffers *buffers;
  char *workspace;
} work;

static char *line_of(const work *w, onepass_role role, int64_t line) {
  return onepass_buffer(w->buffers, role) +
         onepass_walk_offset(&w->problem->planes, role, line) * onepass_type_size(w->problem->type);
}

static void do_segments(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const onepass_pool_problem *p = w->problem;
  const int64_t segments = segments_of(p), length = output_length(p);
  void *scratch = w->workspace + (size_t)worker * p->scratch_size;
  for (int64_t task = begin; task < end; task++) {
    const int64_t line = task / segments, from = task % segments * p->segment;
    const int64_t to = length - from < p->segment ? length : from + p->segment;
    if (p->backward) {
      p->kernels->backward(p, line_of(w, ONEPASS_ROLE_DX, line), line_of(w, ONEPASS_ROLE_DY, line),
                           from, to, scratch);
    } else {
      p->kernels->forward(p, line_of(w, ONEPASS_ROLE_Y, line), line_of(w, ONEPASS_ROLE_X, line),
                          from, to, scratch);
    }
  }
}

void onepass_pool_run_cpu(const onepass_plan *plan, const onepass_buffers *buffers,
                          void *workspace) {
  const onepass_pool_problem *p = &plan->problem.pool;
  work w = {.problem = p, .buffers = buffers, .workspace = workspace};
  onepass_parallel(p->threads, p->planes.count * segments_of(p), do_segments, &w);
}

/* ---- Planes ---------------------------------------------------------------------------------- */

/* Whether one window holds the whole axis. */
static bool is_whole(const onepass_pool_axis *axis) {
  return !axis->adaptive && axis->pooled == 1 && axis->padding == 0 && axis->dilation == 1 &&
         axis->kernel == axis->length;
}

/* Adaptive windows of equal parts are windows like any other. */
static void even_out(onepass_pool_axis *axis) {
  if (!axis->adaptive || axis->pooled == 0 || axis->length % axis->pooled != 0) return;
  axis->kernel = axis->stride = axis->extent = axis->length / axis->pooled;
  axis->padding = 0;
  axis->dilation = 1;
  axis->adaptive = false;
}

/* Where one window holds two axes, rows lie one behind the other and make one long row. */
static void merge_into_last(onepass_pool_problem *p, onepass_pool_axis *outer) {
  static const onepass_role long_roles[] = {ONEPASS_ROLE_X, ONEPASS_ROLE_DX};
  onepass_pool_axis *wide = &p->wide;
  if (!is_whole(outer) || !is_whole(wide)) return;
  for (int i = 0; i < 2; i++) {
    const int64_t step = wide->step[long_roles[i]];
    if (outer->length > 1 && outer->step[long_roles[i]] != step * wide->length) return;
  }
  wide->length *= outer->length;
  wide->kernel = wide->stride = wide->extent = wide->length;
  outer->length = outer->kernel = outer->stride = outer->extent = 1;
}

static int64_t plane_length(const onepass_pool_problem *p) {
  return p->deep.length * p->high.length * p->wide.length;
}

static onepass_pool_windows windows_of(const onepass_pool_problem *p) {
  const onepass_pool_axis *wide = &p->wide;
  if (wide->adaptive) {
    const bool fits =
        wide->length <= ONEPASS_POOL_WHOLE_LINE && wide->pooled <= ONEPASS_POOL_WHOLE_LINE;
    return fits ? ONEPASS_POOL_UNEVEN : ONEPASS_POOL_SINGLE;
  }
  const bool one_row = p->deep.length == 1 && p->high.length == 1;
  if (p->op == ONEPASS_AVG_POOL && is_whole(wide) && one_row && p->deep.pooled == 1 &&
      p->high.pooled == 1 && wide->long_step == 1 && wide->length <= ONEPASS_POOL_WIDEST_EVEN) {
    return ONEPASS_POOL_WHOLE;
  }
  if (p->backward && wide->stride >= wide->kernel) return ONEPASS_POOL_EVEN;
  const bool too_many_taps =
      wide->kernel > ONEPASS_POOL_MOST_TAPS || wide->stride > ONEPASS_POOL_MOST_TAPS;
  if (wide->extent > ONEPASS_POOL_WIDEST_EVEN || (p->has_indices && too_many_taps)) {
    return ONEPASS_POOL_SINGLE;
  }
  return is_whole(wide) && one_row && !p->backward ? ONEPASS_POOL_SINGLE : ONEPASS_POOL_EVEN;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Tiles of a row, all about the same, and the room for one in a buffer. */
static void choose_tiles(onepass_pool_problem *p) {
  const onepass_pool_axis *wide = &p->wide;
  const int64_t length = output_length(p);
  const bool apart = p->backward && wide->stride >= wide->kernel;
  int64_t most = length;
  if (p->windows == ONEPASS_POOL_EVEN) {
    most = p->backward ? ONEPASS_POOL_POSITIONS : (ONEPASS_POOL_POSITIONS - 1) / wide->stride + 1;
    p->room = ONEPASS_POOL_POSITIONS + (apart ? 0 : wide->extent) + 2 * ONEPASS_POOL_MOST_TAPS;
  } else if (p->windows == ONEPASS_POOL_UNEVEN) {
    p->room = larger(wide->length, wide->pooled);
  } else if (p->windows == ONEPASS_POOL_SINGLE) {
    most = wide->adaptive ? 1 : larger(1, ONEPASS_POOL_WIDEST_TILED / wide->extent);
    p->room = ONEPASS_POOL_TILE;
  }
  p->room = (p->room + 64 + 15) / 16 * 16;
  p->tiles = length ? (length - 1) / most + 1 : 0;
  p->segment = p->tiles ? (length - 1) / p->tiles + 1 : 0;
}

/* Whether all tensors have the innermost axis that is not pooled in one piece: channels_last. */
static bool has_dense_channels(const onepass_plan *plan) {
  const onepass_walk *planes = &plan->problem.pool.planes;
  if (planes->ndim == 0 || planes->size[planes->ndim - 1] < LEAST_CHANNELS) return false;
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (onepass_has(&plan->layouts, role) && planes->stride[planes->ndim - 1][role] != 1) {
      return false;
    }
  }
  return true;
}

/* False if they lie otherwise. */
static bool choose_channels(onepass_plan *plan, int threads) {
  onepass_pool_problem *p = &plan->problem.pool;
  const int64_t length = output_length(p);
  p->has_indices = onepass_has(&plan->layouts, ONEPASS_ROLE_INDICES);
  if (p->backward && p->op == ONEPASS_LP_POOL) return false;
  if (p->has_indices && plane_length(p) > INT32_MAX) return false;
  if (!has_dense_channels(plan)) return false;
  p->channels = p->planes.size[p->planes.ndim - 1];
  p->planes = onepass_walk_without(&p->planes, p->planes.ndim - 1);
  p->tiles = length > 0;
  p->segment = length;
  p->room = ONEPASS_POOL_TILE;
  p->task = p->backward ? p->kernels->channels_backward : p->kernels->channels_forward;
  p->tasks = p->planes.count * p->tiles *
             (p->backward ? p->deep.length * p->high.length : p->deep.pooled * p->high.pooled);
  p->scratch_size = 2 * (size_t)(p->room * onepass_type_size(onepass_type_of_sums(p->type)));
  plan->info.kernel = "channels";
  p->threads = p->tasks < threads ? (p->tasks ? (int)p->tasks : 1) : threads;
  return true;
}

/* False if there are no kernels. */
static bool choose_planes(onepass_plan *plan, int threads) {
  onepass_pool_problem *p = &plan->problem.pool;
  const int64_t sum_size = onepass_type_size(onepass_type_of_sums(p->type));
  p->has_indices = onepass_has(&plan->layouts, ONEPASS_ROLE_INDICES);
  if (p->has_indices && plane_length(p) > INT32_MAX) return false;
  for (int a = 0; a < ONEPASS_POOL_AXES; a++) even_out(&p->axis[a]);
  if (p->backward && p->op == ONEPASS_MAX_POOL) {
    const bool halves = onepass_type_size(p->type) < sum_size;
    if (halves && plane_length(p) > ONEPASS_POOL_LARGEST_PLANE) return false;
    p->task = p->kernels->maxima_backward;
    p->tasks = p->planes.count;
    p->scratch_size = halves ? ((size_t)(plane_length(p) * sum_size) + 63) / 64 * 64 : 0;
  } else {
    merge_into_last(p, &p->high);
    if (p->high.length == 1) merge_into_last(p, &p->deep);
    p->windows = windows_of(p);
    if (p->backward && p->windows == ONEPASS_POOL_SINGLE) return false;
    choose_tiles(p);
    p->task = p->backward ? p->kernels->planes_backward : p->kernels->planes_forward;
    p->tasks = p->planes.count * p->tiles *
               (p->backward ? p->deep.length * p->high.length : p->deep.pooled * p->high.pooled);
    p->scratch_size = ONEPASS_POOL_BUFFERS * (size_t)(p->room * sum_size);
  }
  plan->info.kernel = p->has_indices ? "planes_indices" : "planes";
  p->threads = p->tasks < threads ? (p->tasks ? (int)p->tasks : 1) : threads;
  return true;
}

static void do_tasks(void *context, int worker, int64_t begin, int64_t end) {
  const work *w = context;
  const size_t size = w->problem->scratch_size;
  char *scratch = size ? w->workspace + (size_t)worker * size : NULL;
  w->problem->task(w->problem, w->buffers, begin, end, scratch);
}

static void run_planes(const onepass_plan *plan, const onepass_buffers *buffers, void *workspace) {
  const onepass_pool_problem *p = &plan->problem.pool;
  work w = {.problem = p, .buffers = buffers, .workspace = workspace};
  onepass_parallel(p->threads, p->tasks, do_tasks, &w);
}

/* ---- The choice ------------------------------------------------------------------------------ */

void onepass_pool_choose_cpu(onepass_plan *plan, int threads, onepass_vector_level level) {
  onepass_pool_problem *p = &plan->problem.pool;
  threads = onepass_threads_worth(threads, plan->info.bytes);
  p->kernels = kernels_at(level, p->type);
  if (onepass_pool_is_plain(p) && !is_better_as_plane(p)) {
    choose_lines(plan, threads);
  } else if (choose_channels(plan, threads) || choose_planes(plan, threads)) {
    plan->run = run_planes;
  } else {
    plan->run = onepass_pool_run_reference;
    return;
  }
  plan->info.vector = onepass_vector_name(level);
  plan->info.threads = p->threads;
  plan->info.workspace = p->scratch_size * (size_t)p->threads;
}
