/* What the parts of the onepass command share: exit statuses, errors, and the subcommands. */
#ifndef ONEPASS_CLI_H
#define ONEPASS_CLI_H

#include <stdbool.h>
#include <stdint.h>

enum { EXIT_FINE = 0, EXIT_OFF = 1, EXIT_USAGE = 2 };

/* Print "onepass: COMMAND: ..." as one line on stderr; command may be NULL. Returns EXIT_USAGE. */
__attribute__((format(printf, 2, 3))) int usage_error(const char *command, const char *format, ...);

/* The subcommands: arguments after the subcommand's name, and an exit status back. */
int run_info(int count, char **arguments);
int run_check(int count, char **arguments);
int run_bench(int count, char **arguments);

/* The help of a subcommand, or NULL for a name that is not one. help_text(NULL) is the overview. */
const char *help_text(const char *command);

/* A line on stderr that is overwritten by the next one; nothing when stderr is not a terminal.
 * Call progress(NULL) before printing anything else. */
__attribute__((format(printf, 1, 2))) void progress(const char *format, ...);

/* Seconds of a clock that never goes backwards. */
double seconds_now(void);

/* The median of some values, which are sorted on the way. */
double median(double *values, int64_t count);

#endif
