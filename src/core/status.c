#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_message[512];

onepass_status onepass_fail(onepass_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_message, sizeof last_message, format, arguments);
  va_end(arguments);
  return status;
}

const char *onepass_last_message(void) { return last_message; }

const char *onepass_status_name(onepass_status status) {
  static const char *const names[] = {
      [ONEPASS_OK] = "ONEPASS_OK",
      [ONEPASS_NULL_POINTER] = "ONEPASS_NULL_POINTER",
      [ONEPASS_BAD_OPERATOR] = "ONEPASS_BAD_OPERATOR",
      [ONEPASS_BAD_OPTION] = "ONEPASS_BAD_OPTION",
      [ONEPASS_BAD_DEVICE] = "ONEPASS_BAD_DEVICE",
      [ONEPASS_BAD_DTYPE] = "ONEPASS_BAD_DTYPE",
      [ONEPASS_BAD_NDIM] = "ONEPASS_BAD_NDIM",
      [ONEPASS_BAD_SHAPE] = "ONEPASS_BAD_SHAPE",
      [ONEPASS_BAD_STRIDES] = "ONEPASS_BAD_STRIDES",
      [ONEPASS_BAD_AXIS] = "ONEPASS_BAD_AXIS",
      [ONEPASS_BAD_KERNEL] = "ONEPASS_BAD_KERNEL",
      [ONEPASS_BAD_WINDOW_STRIDE] = "ONEPASS_BAD_WINDOW_STRIDE",
      [ONEPASS_BAD_PADDING] = "ONEPASS_BAD_PADDING",
      [ONEPASS_OVERLAP] = "ONEPASS_OVERLAP",
      [ONEPASS_MISALIGNED] = "ONEPASS_MISALIGNED",
      [ONEPASS_BAD_WORKSPACE] = "ONEPASS_BAD_WORKSPACE",
      [ONEPASS_OUT_OF_MEMORY] = "ONEPASS_OUT_OF_MEMORY",
      [ONEPASS_BAD_STREAM] = "ONEPASS_BAD_STREAM",
      [ONEPASS_CUDA_ERROR] = "ONEPASS_CUDA_ERROR",
  };
  if ((unsigned)status >= sizeof names / sizeof *names) return "unknown onepass_status";
  return names[status];
}

int onepass_version(void) { return ONEPASS_VERSION; }

const char *onepass_version_string(void) { return ONEPASS_VERSION_STRING; }
