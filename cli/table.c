#include "table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

void table_row(const column *columns, int count, const char *const *cells) {
  for (int i = 0; i < count; i++) {
    const char *cell = cells ? cells[i] : columns[i].title;
    bool last = i == count - 1;
    int width = columns[i].right ? columns[i].width : last ? 0 : -columns[i].width;
    printf("%*s%s", width, cell, last ? "\n" : "  ");
  }
  fflush(stdout);
}

/* A string in quotes, with what JSON does not allow in one escaped. */
static void print_quoted(const char *text) {
  putchar('"');
  for (; *text; text++) {
    unsigned char letter = (unsigned char)*text;
    if (letter == '"' || letter == '\\')
      printf("\\%c", letter);
    else if (letter < 0x20)
      printf("\\u%04x", letter);
    else
      putchar(letter);
  }
  putchar('"');
}

static void begin_field(json *json, const char *name) {
  if (json->fields++) printf(", ");
  print_quoted(name);
  printf(": ");
}

void json_begin(json *json) {
  json->fields = 0;
  putchar('{');
}

void json_text(json *json, const char *name, const char *value) {
  begin_field(json, name);
  print_quoted(value);
}

void json_integer(json *json, const char *name, int64_t value) {
  begin_field(json, name);
  printf("%" PRId64, value);
}

void json_number(json *json, const char *name, double value) {
  begin_field(json, name);
  if (isfinite(value))
    printf("%.6g", value);
  else
    printf("null");
}

void json_flag(json *json, const char *name, bool value) {
  begin_field(json, name);
  printf(value ? "true" : "false");
}

void json_sizes(json *json, const char *name, const int64_t *values, int32_t count) {
  begin_field(json, name);
  putchar('[');
  for (int32_t i = 0; i < count; i++) printf("%s%" PRId64, i ? ", " : "", values[i]);
  putchar(']');
}

void json_end(json *json) {
  json->fields = 0;
  printf("}\n");
  fflush(stdout);
}

void json_list_begin(json *json, const char *name) {
  begin_field(json, name);
  json->listed = 0;
  putchar('[');
}

void json_list_next(json *json) {
  fputs(json->listed++ ? "}, {" : "{", stdout);
  json->fields = 0;
}

void json_list_end(json *json) {
  fputs(json->listed ? "}]" : "]", stdout);
  json->fields = 1; /* the array itself */
}
