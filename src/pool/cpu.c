/* Pooling on CPU threads: every task is a segment of one line, which is a plane of avg_pool1d. */
#include "pool/cpu.h"

#include "core/plan.h"
#include "cpu/machine.h"
#include "cpu/threads.h"

enum { LEAST_SEGMENT = 16384 }; /* outputs; shorter lines are one task each */

static const onepass_pool_kernels *kernels_at(onepass_vector_level level, onepass_type type) {
#if defined(__x86_64__)
  if (level == ONEPASS_VECTOR_AVX512) return onepass_pool_kernels_avx512(type);
  if (level == ONEPASS_VECTOR_AVX2) return onepass_pool_kernels_avx2(type);
  return onepass_pool_kernels_sse2(type);
#elif defined(__aarch64__)
#if defined(ONEPASS_HAS_NEON_BF16)
  if (level == ONEPASS_VECTOR_NEON_BF16) return onepass_pool_kernels_neon_bf16(type);
#endif
  (void)level;
  return onepass_pool_kernels_neon(type);
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

void onepass_pool_choose_cpu(onepass_plan *plan, int threads, onepass_vector_level level) {
  onepass_pool_problem *p = &plan->problem.pool;
  if (!onepass_pool_is_plain(p)) {
    plan->run = onepass_pool_run_reference;
    return;
  }
  threads = onepass_threads_worth(threads, plan->info.bytes);
  p->kernels = kernels_at(level, p->type);
  p->stream = p->wide.long_step == 1 && p->wide.pooled_step == 1 &&
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
  plan->info.vector = onepass_vector_name(level);
  plan->info.threads = p->threads;
  plan->info.workspace = p->scratch_size * (size_t)p->threads;
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
