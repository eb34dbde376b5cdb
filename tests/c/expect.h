/*
 * Checks for the C tests: each failed one prints where, what and the values, and is counted.
 * A test program ends with `return expect_report("name");`, which is its exit status.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef EXPECT_H
#define EXPECT_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "onepass.h"

#define EXPECT_SKIPPED 77 /* the exit status that CTest shows as "Skipped" */

static long expect_checks;
static long expect_failures;

/* One check. The message says what was being done, so that a row of a table can be found again. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
static inline int
expect_that(int holds, const char *file, int line, const char *what, const char *format, ...) {
  expect_checks++;
  if (holds) return 1;
  expect_failures++;
  if (expect_failures <= 50) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d: expected %s: ", file, line, what);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
  }
  return 0;
}

/* EXPECT(condition, "format", values...) */
#define EXPECT(condition, ...) expect_that((condition), __FILE__, __LINE__, #condition, __VA_ARGS__)

#define EXPECT_INT(actual, wanted) \
  expect_int((long long)(actual), (long long)(wanted), __FILE__, __LINE__, #actual " == " #wanted)
#define EXPECT_TEXT(actual, wanted) \
  expect_text((actual), (wanted), __FILE__, __LINE__, #actual " == " #wanted)
#define EXPECT_OK(call) expect_ok((call), __FILE__, __LINE__, #call)

static inline int expect_int(long long actual, long long wanted, const char *file, int line,
                             const char *what) {
  return expect_that(actual == wanted, file, line, what, "%lld is not %lld", actual, wanted);
}

static inline int expect_text(const char *actual, const char *wanted, const char *file, int line,
                              const char *what) {
  return expect_that(actual != NULL && strcmp(actual, wanted) == 0, file, line, what,
                     "\"%s\" is not \"%s\"", actual ? actual : "(null)", wanted);
}

static inline int expect_ok(onepass_status status, const char *file, int line, const char *what) {
  return expect_that(status == ONEPASS_OK, file, line, what, "%s: %s", onepass_status_name(status),
                     onepass_last_message());
}

/* A program that has checked nothing has proven nothing, and fails. */
static inline int expect_report(const char *name) {
  printf("%s: %ld checks, %ld failed\n", name, expect_checks, expect_failures);
  return expect_failures != 0 || expect_checks == 0;
}

#endif
