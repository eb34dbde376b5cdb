#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

const char *const device_choices[] = {"cpu", "cuda", "auto", NULL};
const char *const cuda_kernel_choices[] = {"best",    "warps",  "blocks",  "ring",
                                           "stream",  "passes", "columns", "strided",
                                           "windows", "points", NULL};

enum { LONGEST_NAME = 32, OLDEST_CUDA = 8 /* compute capability */ };

static int least_of(int a, int b, int c) {
  int least = a < b ? a : b;
  return least < c ? least : c;
}

/* How many letters must be added, removed or replaced to turn one name into the other. */
static int edit_distance(const char *from, const char *to) {
  int row[LONGEST_NAME + 1];
  int columns = (int)strlen(to);
  if (columns > LONGEST_NAME || strlen(from) > LONGEST_NAME) return LONGEST_NAME;
  for (int j = 0; j <= columns; j++) row[j] = j;
  for (int i = 1; from[i - 1]; i++) {
    int diagonal = row[0];
    row[0] = i;
    for (int j = 1; j <= columns; j++) {
      int replaced = diagonal + (from[i - 1] != to[j - 1]);
      diagonal = row[j];
      row[j] = least_of(row[j] + 1, row[j - 1] + 1, replaced);
    }
  }
  return row[columns];
}

const char *nearest_name(const char *given, const char *const *names) {
  const char *nearest = NULL;
  int smallest = 3; /* more than two slips is another word */
  for (; *names; names++) {
    int distance = edit_distance(given, *names);
    if (distance >= smallest || distance >= (int)strlen(*names)) continue;
    smallest = distance;
    nearest = *names;
  }
  return nearest;
}

void format_shape(char *text, size_t size, const int64_t *sizes, int32_t ndim) {
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < ndim && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? "x" : "", sizes[i]);
}

/* The names in a table of choices as "a, b or c". */
static void list_choices(char *text, size_t size, const char *const *choices) {
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; choices[i] && used < size; i++) {
    const char *joint = i == 0 ? "" : choices[i + 1] ? ", " : " or ";
    used += (size_t)snprintf(text + used, size - used, "%s%s", joint, choices[i]);
  }
}

static int read_choice(const char *command, const option *option, const char *value) {
  for (int i = 0; option->choices[i]; i++) {
    if (strcmp(option->choices[i], value) != 0) continue;
    *(int *)option->target = i;
    return 0;
  }
  char expected[1024];
  list_choices(expected, sizeof expected, option->choices);
  const char *nearest = nearest_name(value, option->choices);
  if (nearest)
    return usage_error(command, "%s %s: did you mean %s? Expected %s", option->name, value, nearest,
                       expected);
  return usage_error(command, "%s %s: expected %s", option->name, value, expected);
}

static int read_number(const char *command, const option *option, const char *value) {
  char *end;
  errno = 0;
  long long number = strtoll(value, &end, 10);
  bool digits = *value && strspn(value, "-0123456789") == strlen(value) && !*end;
  if (digits && errno == 0 && number >= option->least && number <= option->most) {
    *(int64_t *)option->target = number;
    return 0;
  }
  return usage_error(command, "%s %s: expected a whole number from %" PRId64 " to %" PRId64,
                     option->name, value, option->least, option->most);
}

/* Sizes joined by x, at most so many of them. */
static int read_shape(const char *command, const option *option, const char *value, int32_t most,
                      const char *expected) {
  shape parsed = {0};
  const char *at = value;
  bool well_formed = true;
  while (well_formed) {
    if (parsed.ndim == most)
      return usage_error(command, "%s %s: at most %" PRId32 " sizes", option->name, value, most);
    size_t digits = strspn(at, "0123456789");
    errno = 0;
    parsed.sizes[parsed.ndim++] = strtoll(at, NULL, 10);
    if (digits && errno == ERANGE)
      return usage_error(command, "%s %s: a size does not fit in 64 bits", option->name, value);
    well_formed = digits > 0;
    at += digits;
    if (*at != 'x') break;
    at++;
  }
  if (!well_formed || *at)
    return usage_error(command, "%s %s: expected %s", option->name, value, expected);
  *(shape *)option->target = parsed;
  return 0;
}

static int read_sizes(const char *command, const option *option, const char *value) {
  const char *expected = "a whole number, or one for each axis joined by x, such as 3x3";
  int failed = read_shape(command, option, value, (int32_t)option->most, expected);
  const shape *read = option->target;
  for (int32_t i = 0; i < read->ndim && !failed; i++)
    if (read->sizes[i] < option->least)
      failed = usage_error(command, "%s %s: expected %" PRId64 " or more", option->name, value,
                           option->least);
  return failed;
}

static int read_value(const char *command, const option *option, const char *value) {
  switch (option->kind) {
    case OPTION_CHOICE:
      return read_choice(command, option, value);
    case OPTION_NUMBER:
      return read_number(command, option, value);
    case OPTION_SHAPE:
      return read_shape(command, option, value, ONEPASS_MAX_NDIM,
                        "sizes joined by x, such as 1024x65535");
    case OPTION_SIZES:
      return read_sizes(command, option, value);
    case OPTION_FLAG:
      break;
  }
  return usage_error(command, "%s takes no value", option->name);
}

static const option *find_option(const option *options, const char *name, size_t length) {
  for (; options->name; options++)
    if (strlen(options->name) == length && strncmp(options->name, name, length) == 0)
      return options;
  return NULL;
}

static int unknown_option(const char *command, const option *options, const char *given) {
  if (given[0] != '-')
    return usage_error(command, "unexpected argument '%s'; see onepass %s --help", given, command);
  const char *names[32] = {"--help"};
  for (int i = 0; i < 30 && options[i].name; i++) names[i + 1] = options[i].name;
  const char *nearest = nearest_name(given, names);
  if (nearest) return usage_error(command, "unknown option %s; did you mean %s?", given, nearest);
  return usage_error(command, "unknown option %s; see onepass %s --help", given, command);
}

int read_options(const char *command, int count, char **arguments, const option *options,
                 bool *help) {
  *help = false;
  for (int i = 0; i < count; i++) {
    const char *given = arguments[i];
    if (strcmp(given, "--help") == 0 || strcmp(given, "-h") == 0) {
      *help = true;
      return 0;
    }
    const char *equals = given[0] == '-' ? strchr(given, '=') : NULL;
    size_t length = equals ? (size_t)(equals - given) : strlen(given);
    const option *option = find_option(options, given, length);
    if (!option) return unknown_option(command, options, given);
    if (option->kind == OPTION_FLAG && !equals) {
      *(bool *)option->target = true;
      continue;
    }
    const char *value = equals ? equals + 1 : i + 1 < count ? arguments[++i] : NULL;
    if (!value) return usage_error(command, "%s needs a value", option->name);
    int failed = read_value(command, option, value);
    if (failed) return failed;
  }
  return 0;
}

int choose_device(const char *command, int *device) {
  if (*device == DEVICE_CPU) return 0;
  int32_t count = 0;
  onepass_cuda_info info = {.major = 0};
  onepass_status status = onepass_get_cuda_count(&count);
  if (status == ONEPASS_OK) status = onepass_get_cuda_info(0, &info);
  if (*device == DEVICE_AUTO)
    *device = status == ONEPASS_OK && info.major >= OLDEST_CUDA ? DEVICE_CUDA : DEVICE_CPU;
  else if (status != ONEPASS_OK)
    return usage_error(command, "--device cuda: %s", onepass_last_message());
  return 0;
}
