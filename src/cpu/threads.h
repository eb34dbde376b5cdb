/* Splitting work over CPU threads. */
#ifndef ONEPASS_CPU_THREADS_H
#define ONEPASS_CPU_THREADS_H

#include <stdint.h>

#ifdef _OPENMP
#define ONEPASS_THREAD_LIBRARY "OpenMP threads"
#else
#define ONEPASS_THREAD_LIBRARY "POSIX threads"
#endif

/* How many threads a plan uses when its options do not say. */
int onepass_default_threads(void);

/* Do tasks begin..end. `worker` is below the number of threads, and no two run at once with one. */
typedef void onepass_task(void *context, int worker, int64_t begin, int64_t end);

/* Do tasks 0..count on at most `threads` threads, each a contiguous share, and return when all are
 * done. Fewer threads, even one, do the same work: a task must not depend on the split. */
void onepass_parallel(int threads, int64_t count, onepass_task *task, void *context);

#endif
