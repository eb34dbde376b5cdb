/*
 * Kernels for GPUs to come are kept as short PTX: what it becomes again is what it was, but for the numbers of registers and
 * labels, of which no two became one; and what is no short PTX is refused, with nothing read outside of it.
 *
 *   test_short_ptx FILE...    kernels of the library, in PTX; without any, those of this file alone
 *
 * SPDX-License-Identifier: MIT
 */
#include "cuda/short_ptx.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "expect.h"

static const char some_ptx[] =
    ".version 8.0\n.visible .entry first(\n\t.param .b64 first_param_0[8]\n)\n{\n"
    "\t.reg .pred \t%p<3>;\n\t.reg .b32 \t%r<200>;\n\t.reg .b64 \t%rd<9>;\n\n"
    "\tmov.u32 \t%r7, %tid.x;\n\tmov.u64 \t%rd8, %clock64;\n\tld.global.u32 \t%r100, [%rd8+16];\n"
    "$L__BB0_3:\n\tadd.s32 \t%r9, %r7, %r100;\n\tsetp.lt.u32 \t%p2, %r9, 12;\n"
    "\t@%p2 bra \t$L__BB0_3;\n\tbra.uni \t$L__BB0_1;\n$L__BB0_1:\n\tret;\n\n}\n"
    ".func second()\n{\n\tmov.b32 \t%r100, 7;\n\tmov.f64 \t%fd1, 0d0000000000000000;\n\tret;\n}\n";
static const char some_short_ptx[] =
    ".version 8.0\n.visible .entry first(\n\t.param .b64 first_param_0[8]\n)\n{\n"
    "\t.reg .pred \t%p<3>;\n\t.reg .b32 \t%r<200>;\n\t.reg .b64 \t%rd<9>;\n\n"
    "\tmov.u32 \t%r+, %tid.x;\n\tmov.u64 \t%rd+, %clock64;\n\tld.global.u32 \t%r+, [%rd0+16];\n"
    "$L__BB+:\n\tadd.s32 \t%r+, %r2, %r2;\n\tsetp.lt.u32 \t%p+, %r2, 12;\n"
    "\t@%p0 bra \t$L__BB0;\n\tbra.uni \t$L__BB+;\n$L__BB0:\n\tret;\n\n}\n"
    ".func second()\n{\n\tmov.b32 \t%r+, 7;\n\tmov.f64 \t%fd+, 0d0000000000000000;\n\tret;\n}\n";

/* ---- What names become ----------------------------------------------------------------------------- */

enum { OTHER, KINDS = 8, MOST_NUMBERS = 1 << 14 };
static const char *const kinds[KINDS] = {"", "%r", "%rd", "%rs", "%f", "%fd", "%p", "$L__BB"};

/* By kind: the number that became this one, and the other way round. */
static uint32_t became[2][KINDS][MOST_NUMBERS];

/* Moves on behind a name, and gives its kind and its number, a label's last one. */
static int read_name(const char **at, uint32_t *number) {
  const char *name = (*at)++;
  while (isalpha((unsigned char)**at) || **at == '_') (*at)++;
  int kind = KINDS - 1;
  while (kind != OTHER && (strlen(kinds[kind]) != (size_t)(*at - name) ||
                           strncmp(kinds[kind], name, (size_t)(*at - name)) != 0))
    kind--;
  if (!isdigit((unsigned char)**at)) return OTHER;
  char *end;
  *number = (uint32_t)strtoul(*at, &end, 10);
  if (kind == KINDS - 1 && *end == '_') *number = (uint32_t)strtoul(end + 1, &end, 10);
  *at = end;
  return kind;
}

static bool is_one_to_one(int kind, uint32_t was, uint32_t is) {
  if (kind == OTHER) return was == is;
  if (was >= MOST_NUMBERS - 1 || is >= MOST_NUMBERS - 1) return false;
  uint32_t *forth = &became[0][kind][was], *back = &became[1][kind][is];
  if (!*forth && !*back) {
    *forth = is + 1;
    *back = was + 1;
  }
  return *forth == is + 1 && *back == was + 1;
}

/* The length of what is alike. */
static size_t compare(const char *was, const char *is) {
  const char *begin = was;
  while (*was && *is) {
    if (!strncmp(was, ".entry", 6) || !strncmp(was, ".func", 5)) memset(became, 0, sizeof became);
    if (*was != *is) break;
    if (*was != '%' && *was != '$') {
      was++;
      is++;
      continue;
    }
    uint32_t number = 0, new_number = 0;
    const char *name = was;
    const int kind = read_name(&was, &number), new_kind = read_name(&is, &new_number);
    if (kind != new_kind || !is_one_to_one(kind, number, new_number)) return (size_t)(name - begin);
  }
  return (size_t)(was - begin) + (*is != 0);
}

static void expect_renamed_alone(const char *text, size_t length, const char *name) {
  size_t short_length = length;
  char *shorter = onepass_shorten_ptx(text, &short_length);
  if (!EXPECT(shorter != NULL && short_length < length, "%s has %d bytes, %d before", name,
              (int)short_length, (int)length))
    return;
  size_t long_length = short_length;
  char *longer = onepass_lengthen_ptx(shorter, &long_length);
  if (EXPECT(longer != NULL, "%s cannot be lengthened", name)) {
    EXPECT_INT(strlen(longer), long_length);
    const size_t alike = compare(text, longer);
    EXPECT(alike == length, "%s: %.60s became something else", name,
           text + (alike < length ? alike : 0));
  }
  free(longer);
  free(shorter);
}

/* ---- The tests ------------------------------------------------------------------------------------- */

static void test_kernels_of_a_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!EXPECT(file != NULL, "%s cannot be read", path)) return;
  fseek(file, 0, SEEK_END);
  const size_t size = (size_t)ftell(file);
  rewind(file);
  char *text = calloc(size + 1, 1);
  EXPECT_INT(fread(text, 1, size, file), size);
  fclose(file);
  expect_renamed_alone(text, size, path);
  free(text);
}

static void test_names_become_ages(void) {
  size_t length = sizeof some_ptx - 1;
  char *shorter = onepass_shorten_ptx(some_ptx, &length);
  EXPECT_TEXT(shorter, some_short_ptx);
  EXPECT_INT(length, sizeof some_short_ptx - 1);
  free(shorter);
  expect_renamed_alone(some_ptx, sizeof some_ptx - 1, "an example");
}

static void test_nothing_becomes_nothing(void) {
  size_t length = 0;
  char *text = onepass_lengthen_ptx("", &length);
  EXPECT_TEXT(text, "");
  free(text);
}

/* In memory of just its size, so that AddressSanitizer sees what is read behind it. */
static char *lengthen_copy(const char *text, size_t length) {
  char *copy = malloc(length + !length);
  memcpy(copy, text, length);
  char *longer = onepass_lengthen_ptx(copy, &length);
  free(copy);
  return longer;
}

static void test_names_that_were_not_there_are_refused(void) {
  static const char *const texts[] = {"%r0",     "%r+, %r1", "%r+ .entry %r0",
                                      "$L__BB0", "%rd+ %r0", "%f+ %f99999999999999999999"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    char *longer = lengthen_copy(texts[i], strlen(texts[i]));
    EXPECT(!longer, "%s became %s", texts[i], longer);
    free(longer);
  }
}

static void test_any_part_and_any_byte(void) {
  char text[sizeof some_short_ptx];
  for (size_t length = 0; length < sizeof text; length++) {
    char *part = lengthen_copy(some_short_ptx, length);
    EXPECT(part != NULL, "%d of %d bytes were refused", (int)length, (int)sizeof text);
    free(part);
    for (int byte = 0; byte < 256; byte += 5) {
      memcpy(text, some_short_ptx, sizeof text);
      text[length] = (char)byte;
      free(lengthen_copy(text, sizeof text - 1));
    }
  }
}

int main(int count, char **paths) {
  test_names_become_ages();
  test_nothing_becomes_nothing();
  test_names_that_were_not_there_are_refused();
  test_any_part_and_any_byte();
  for (int i = 1; i < count; i++) test_kernels_of_a_file(paths[i]);
  return expect_report("test_short_ptx");
}
