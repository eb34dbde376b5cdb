/* Threads for filling and copying memory, and for jobs that have threads of their own. */
#ifndef ONEPASS_CLI_PARALLEL_H
#define ONEPASS_CLI_PARALLEL_H

#include <stdint.h>

typedef void (*parallel_body)(const void *context, int64_t first, int64_t last);

/* Call body on [0, count) cut into one range for each thread, always the same ranges. */
void parallel_for(int32_t threads, int64_t count, parallel_body body, const void *context);

/* The same on POSIX threads: inside a thread of OpenMP's there would be no more of them. */
void parallel_jobs(int32_t threads, int64_t count, parallel_body body, const void *context);

#endif
