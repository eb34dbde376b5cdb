#include <errno.h>
#include <onepass.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "options.h"

typedef struct command {
  const char *name;
  int (*run)(int count, char **arguments);
} command;

static const command commands[] = {{"info", run_info}, {"check", run_check}, {"bench", run_bench}};

enum { COMMANDS = sizeof commands / sizeof *commands };

static int unknown_command(const char *given) {
  const char *names[COMMANDS + 2] = {"help"};
  for (int i = 0; i < COMMANDS; i++) names[i + 1] = commands[i].name;
  const char *nearest = nearest_name(given, names);
  const char *what = given[0] == '-' ? "option" : "command";
  if (nearest) return usage_error(NULL, "unknown %s '%s'; did you mean %s?", what, given, nearest);
  return usage_error(NULL, "unknown %s '%s'; expected info, check, bench or help", what, given);
}

static int show_help(const char *topic) {
  const char *text = help_text(topic);
  if (!text) return unknown_command(topic);
  fputs(text, stdout);
  return EXIT_FINE;
}

static int dispatch(int count, char **arguments) {
  if (count == 0) return usage_error(NULL, "no command given; expected info, check, bench or help");
  const char *name = arguments[0];
  if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return show_help(NULL);
  if (strcmp(name, "help") == 0) return show_help(count > 1 ? arguments[1] : NULL);
  if (strcmp(name, "--version") == 0) {
    printf("onepass %s\n", onepass_version_string());
    return EXIT_FINE;
  }
  for (int i = 0; i < COMMANDS; i++)
    if (strcmp(name, commands[i].name) == 0) return commands[i].run(count - 1, arguments + 1);
  return unknown_command(name);
}

int main(int argc, char **argv) {
  int status = dispatch(argc > 0 ? argc - 1 : 0, argv + 1);
  if (fflush(stdout) == 0 && !ferror(stdout)) return status;
  fprintf(stderr, "onepass: writing the output: %s\n", strerror(errno));
  return EXIT_OFF;
}
