#define _POSIX_C_SOURCE 200809L
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

int usage_error(const char *command, const char *format, ...) {
  fflush(stdout);
  fprintf(stderr, "onepass: ");
  if (command) fprintf(stderr, "%s: ", command);
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  return EXIT_USAGE;
}

void progress(const char *format, ...) {
  if (!isatty(STDERR_FILENO)) return;
  flockfile(stderr); /* workers may call, too */
  fputs("\r\033[K", stderr);
  if (format) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
  }
  fflush(stderr);
  funlockfile(stderr);
}

double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double median(double *values, int64_t count) {
  qsort(values, (size_t)count, sizeof *values, compare_doubles);
  return (values[(count - 1) / 2] + values[count / 2]) / 2;
}
