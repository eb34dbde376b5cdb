/* Options of the subcommands: a table of what may be given, and where it goes. */
#ifndef ONEPASS_CLI_OPTIONS_H
#define ONEPASS_CLI_OPTIONS_H

#include <onepass.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct shape {
  int32_t ndim; /* 0: not given */
  int64_t sizes[ONEPASS_MAX_NDIM];
} shape;

typedef enum option_kind {
  OPTION_FLAG,   /* target: bool */
  OPTION_NUMBER, /* target: int64_t, from least to most */
  OPTION_CHOICE, /* target: int, the index in choices */
  OPTION_SHAPE,  /* target: shape */
  OPTION_SIZES   /* target: shape, at most `most` sizes that are at least `least` */
} option_kind;

typedef struct option {
  const char *name; /* "--threads", or "-v" */
  option_kind kind;
  void *target;
  int64_t least, most;
  const char *const *choices; /* ends with NULL */
} option;

/* Read the arguments into the options' targets; options ends with a NULL name. Returns 0, or prints
 * one line and returns EXIT_USAGE. Sets *help and stops at --help or -h. */
int read_options(const char *command, int count, char **arguments, const option *options,
                 bool *help);

/* Of the names (ending with NULL), the one that is nearest to a mistyped one; NULL if none is near.
 */
const char *nearest_name(const char *given, const char *const *names);

/* "1024x65535" */
void format_shape(char *text, size_t size, const int64_t *sizes, int32_t ndim);

/* The choices that several commands have in common. */
extern const char *const device_choices[]; /* cpu, cuda, auto */
enum { DEVICE_CPU, DEVICE_CUDA, DEVICE_AUTO };
extern const char *const cuda_kernel_choices[]; /* in the order of onepass_cuda_kernel */

/* Turn DEVICE_AUTO into what this machine has. Returns 0 when the command can run on the device,
 * otherwise prints one line and returns EXIT_USAGE. */
int choose_device(const char *command, int *device);

#endif
