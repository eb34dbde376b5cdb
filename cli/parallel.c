#define _POSIX_C_SOURCE 200809L
#include "parallel.h"

#include <pthread.h>
#include <stdbool.h>

enum { MOST_THREADS = 256 };

typedef struct range {
  parallel_body body;
  const void *context;
  int64_t first, last;
} range;

static int64_t cut(int64_t count, int32_t threads, int32_t part) {
  return count / threads * part + count % threads * part / threads;
}

static void *run_range(void *argument) {
  const range *range = argument;
  range->body(range->context, range->first, range->last);
  return NULL;
}

void parallel_jobs(int32_t threads, int64_t count, parallel_body body, const void *context) {
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  range ranges[MOST_THREADS];
  pthread_t others[MOST_THREADS];
  bool started[MOST_THREADS];
  for (int32_t part = 1; part < threads; part++) {
    ranges[part] = (range){body, context, cut(count, threads, part), cut(count, threads, part + 1)};
    started[part] = pthread_create(&others[part], NULL, run_range, &ranges[part]) == 0;
  }
  body(context, 0, cut(count, threads, 1));
  for (int32_t part = 1; part < threads; part++) {
    if (started[part])
      pthread_join(others[part], NULL);
    else
      run_range(&ranges[part]);
  }
}

void parallel_for(int32_t threads, int64_t count, parallel_body body, const void *context) {
#ifdef _OPENMP
  if (threads == 1) {
    body(context, 0, count);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int32_t part = 0; part < threads; part++)
    body(context, cut(count, threads, part), cut(count, threads, part + 1));
#else
  parallel_jobs(threads, count, body, context);
#endif
}
