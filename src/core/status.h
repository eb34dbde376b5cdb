/* The status and its message: the one way a function of onepass says that something is wrong. */
#ifndef ONEPASS_CORE_STATUS_H
#define ONEPASS_CORE_STATUS_H

#include "onepass.h"

/* Keep the message for this thread and give the status back, so that callers can
 * `return onepass_fail(ONEPASS_BAD_AXIS, "axis = %d: expected ...", axis);`. */
__attribute__((format(printf, 2, 3))) onepass_status onepass_fail(onepass_status status,
                                                                  const char *format, ...);

#endif
