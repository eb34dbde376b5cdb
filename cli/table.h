/* Output: tables for people and JSON lines for programs. */
#ifndef ONEPASS_CLI_TABLE_H
#define ONEPASS_CLI_TABLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct column {
  const char *title;
  int width;
  bool right; /* numbers end in line, words begin in line */
} column;

/* One line of a table; with NULL for cells, the titles. A row is shown at once. */
void table_row(const column *columns, int count, const char *const *cells);

/* One JSON object on one line: begin, any number of fields, end. Numbers that JSON has no way to
 * write become null. */
typedef struct json {
  int fields;
  int listed; /* objects in the array that is being written */
} json;

void json_begin(json *json);
void json_text(json *json, const char *name, const char *value);
void json_integer(json *json, const char *name, int64_t value);
void json_number(json *json, const char *name, double value);
void json_flag(json *json, const char *name, bool value);
void json_sizes(json *json, const char *name, const int64_t *values, int32_t count);
void json_end(json *json);

/* A field that is an array of objects: begin, and for each object next and its fields, end. */
void json_list_begin(json *json, const char *name);
void json_list_next(json *json);
void json_list_end(json *json);

#endif
