/*
 * What every refused call has in common: the status, a message that names the argument and its
 * value, no plan, and outputs as they were.
 *
 * SPDX-License-Identifier: MIT
 */
#ifndef REFUSAL_H
#define REFUSAL_H

#include <ctype.h>

#include "calls.h"
#include "expect.h"

/* 1 when the message has the word on its own: "x" is in "x.ndim is 0", not in "expected". */
static inline int message_has(const char *message, const char *word) {
  size_t length = strlen(word);
  for (const char *at = strstr(message, word); at != NULL; at = strstr(at + 1, word)) {
    int starts = at == message || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
    int ends = !(isalnum((unsigned char)at[length]) || at[length] == '_');
    if (starts && ends) return 1;
  }
  return 0;
}

/* argument and value may be NULL where there is none to name. */
static inline void expect_message(const char *label, const char *argument, const char *value) {
  const char *message = onepass_last_message();
  EXPECT(message != NULL && message[0] != '\0', "%s: no message", label);
  if (message == NULL) return;
  EXPECT(strchr(message, '\n') == NULL, "%s: more than a line: %s", label, message);
  if (argument) {
    EXPECT(message_has(message, argument), "%s: \"%s\" does not name %s", label, message, argument);
  }
  if (value) {
    EXPECT(strstr(message, value) != NULL, "%s: \"%s\" does not say %s", label, message, value);
  }
}

static inline void expect_outputs_untouched(const call *c, const char *label) {
  for (int r = 0; r < ROLES; r++) {
    if (c->role[r] == NULL || !role_is_output(c->kind, (enum role)r)) continue;
    EXPECT(array_untouched(c->role[r]), "%s: %s was written", label, role_name[r]);
  }
}

static inline void expect_status(onepass_status status, onepass_status wanted, const char *label) {
  EXPECT(status == wanted, "%s: %s instead of %s (%s)", label, onepass_status_name(status),
         onepass_status_name(wanted), onepass_last_message());
}

/* Planning refuses the call. */
static inline void expect_plan_refused(const call *c, const char *label, onepass_status wanted,
                                       const char *argument, const char *value) {
  int anything;
  onepass_plan *plan = (onepass_plan *)(void *)&anything;
  onepass_status status = call_plan(c, &plan);
  expect_status(status, wanted, label);
  if (status == ONEPASS_OK) {
    onepass_plan_destroy(plan);
    return;
  }
  expect_message(label, argument, value);
  EXPECT(plan == NULL, "%s: *plan is not NULL after a failure", label);
}

/* The one-line function refuses the call. */
static inline void expect_helper_refused(const call *c, const char *label, onepass_status wanted,
                                         const char *argument, const char *value) {
  onepass_status status = call_helper(c);
  expect_status(status, wanted, label);
  if (status != ONEPASS_OK) {
    expect_message(label, argument, value);
    expect_outputs_untouched(c, label);
  }
}

#endif
