#define _GNU_SOURCE
#include "cpu/threads.h"

#ifdef _OPENMP
#include <omp.h>
#else
#include <pthread.h>
#include <unistd.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static int64_t share_begin(int64_t count, int threads, int worker) {
  /* The first count % threads workers take one more, which cannot overflow as a product would. */
  const int64_t each = count / threads, more = count % threads;
  return worker * each + (worker < more ? worker : more);
}

/* Stores that went past the caches are seen by other threads only behind a fence. One for each share is enough; one for
 * each piece of a row waits for memory every time. */
static void finish_streams(void) {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

static void do_share(onepass_task *task, void *context, int64_t count, int threads, int worker) {
  const int64_t begin = share_begin(count, threads, worker);
  const int64_t end = share_begin(count, threads, worker + 1);
  if (begin == end) return;
  task(context, worker, begin, end);
  finish_streams();
}

#ifdef _OPENMP

int onepass_default_threads(void) { return omp_get_max_threads(); }

void onepass_parallel(int threads, int64_t count, onepass_task *task, void *context) {
  if (threads > count) threads = (int)count;
  if (threads <= 1) {
    do_share(task, context, count, 1, 0);
    return;
  }
#pragma omp parallel num_threads(threads)
  do_share(task, context, count, omp_get_num_threads(), omp_get_thread_num());
}

#else

enum { MOST_THREADS = 256 };

int onepass_default_threads(void) {
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  if (processors < 1) return 1;
  return processors < MOST_THREADS ? (int)processors : MOST_THREADS;
}

typedef struct share {
  onepass_task *task;
  void *context;
  int64_t begin, end;
  int worker;
} share;

static void *start_share(void *argument) {
  const share *own = argument;
  own->task(own->context, own->worker, own->begin, own->end);
  finish_streams();
  return NULL;
}

void onepass_parallel(int threads, int64_t count, onepass_task *task, void *context) {
  if (threads > MOST_THREADS) threads = MOST_THREADS;
  if (threads > count) threads = (int)count;
  if (threads <= 1) {
    do_share(task, context, count, 1, 0);
    return;
  }
  pthread_t started[MOST_THREADS];
  share shares[MOST_THREADS];
  int running = 1; /* this thread takes the first share */
  for (; running < threads; running++) {
    shares[running] = (share){task, context, share_begin(count, threads, running),
                              share_begin(count, threads, running + 1), running};
    if (pthread_create(&started[running], NULL, start_share, &shares[running])) break;
  }
  do_share(task, context, count, threads, 0);
  for (int worker = running; worker < threads; worker++) {
    do_share(task, context, count, threads, worker); /* those that could not be started */
  }
  for (int worker = 1; worker < running; worker++) pthread_join(started[worker], NULL);
}

#endif
