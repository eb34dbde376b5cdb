#include "cuda/short_ptx.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of numbered names. */
enum { LABEL = 6, KINDS };
static const char *const prefixes[KINDS] = {"%r", "%rd", "%rs", "%f", "%fd", "%p", "$L__BB"};

/* The numbers of a kind, the last one named first. */
typedef struct recent {
  uint32_t *numbers;
  size_t count, room;
} recent;

typedef struct translation {
  const char *next, *end;
  char *out;
  size_t length, room;
  recent kinds[KINDS];
  bool is_short, failed; /* the text is short PTX; it is none, or there is no memory */
} translation;

static bool grow(void **array, size_t size, size_t *room) {
  const size_t wanted = *room ? *room * 2 : 1024;
  void *larger = realloc(*array, wanted * size);
  if (!larger) return false;
  *array = larger;
  *room = wanted;
  return true;
}

static void put(translation *t, const char *text, size_t length) {
  while (!t->failed && t->room - t->length <= length) {
    void *out = t->out;
    t->failed = !grow(&out, 1, &t->room);
    t->out = out;
  }
  if (t->failed) return;
  memcpy(t->out + t->length, text, length);
  t->length += length;
}

static void put_number(translation *t, size_t number) {
  char digits[20];
  size_t at = sizeof digits;
  do {
    digits[--at] = (char)('0' + number % 10);
    number /= 10;
  } while (number);
  put(t, digits + at, sizeof digits - at);
}

/* ---- What was named ------------------------------------------------------------------------------- */

static void move_to_front(recent *kind, size_t place) {
  const uint32_t number = kind->numbers[place];
  memmove(kind->numbers + 1, kind->numbers, place * sizeof number);
  kind->numbers[0] = number;
}

static bool name_new(recent *kind, uint32_t number) {
  if (kind->count == kind->room) {
    void *numbers = kind->numbers;
    if (!grow(&numbers, sizeof number, &kind->room)) return false;
    kind->numbers = numbers;
  }
  kind->numbers[kind->count++] = number;
  move_to_front(kind, kind->count - 1);
  return true;
}

/* ---- Reading -------------------------------------------------------------------------------------- */

static bool is_digit(const translation *t, const char *at) {
  return at < t->end && *at >= '0' && *at <= '9';
}

static bool starts_with(const translation *t, const char *prefix) {
  const size_t length = strlen(prefix);
  return (size_t)(t->end - t->next) >= length && !memcmp(t->next, prefix, length);
}

static uint32_t read_number(translation *t) {
  uint32_t number = 0;
  for (; is_digit(t, t->next); t->next++) number = number * 10 + (uint32_t)(*t->next - '0');
  return number;
}

/* The kind of the name here, with a number or, in short PTX, a +; KINDS if there is none. */
static int find_kind(const translation *t) {
  if (*t->next != '%' && *t->next != '$') return KINDS;
  for (int kind = 0; kind < KINDS; kind++) {
    const char *behind = t->next + strlen(prefixes[kind]);
    if (!starts_with(t, prefixes[kind])) continue;
    if (is_digit(t, behind) || (t->is_short && behind < t->end && *behind == '+')) return kind;
  }
  return KINDS;
}

static void shorten_name(translation *t, int kind) {
  recent *names = &t->kinds[kind];
  uint32_t number = read_number(t);
  if (kind == LABEL && t->end - t->next > 1 && *t->next == '_' && is_digit(t, t->next + 1)) {
    t->next++; /* that was the function's number */
    number = read_number(t);
  }
  size_t place = 0;
  while (place < names->count && names->numbers[place] != number) place++;
  if (place == names->count) {
    put(t, "+", 1);
    t->failed |= !name_new(names, number);
  } else {
    put_number(t, place);
    move_to_front(names, place);
  }
}

static void lengthen_name(translation *t, int kind) {
  recent *names = &t->kinds[kind];
  if (*t->next == '+') {
    t->next++;
    t->failed |= !name_new(names, (uint32_t)names->count + 1);
  } else {
    const size_t place = read_number(t);
    t->failed |= place >= names->count;
    if (!t->failed) move_to_front(names, place);
  }
  if (!t->failed) put_number(t, names->numbers[0]);
}

static char *translate(const char *text, size_t *length, bool is_short) {
  translation t = {.next = text, .end = text + *length, .is_short = is_short};
  while (t.next < t.end && !t.failed) {
    if (starts_with(&t, ".entry") || starts_with(&t, ".func")) {
      for (int kind = 0; kind < KINDS; kind++) t.kinds[kind].count = 0;
    }
    const int kind = find_kind(&t);
    const size_t verbatim = kind == KINDS ? 1 : strlen(prefixes[kind]);
    put(&t, t.next, verbatim);
    t.next += verbatim;
    if (kind == KINDS) continue;
    if (is_short) {
      lengthen_name(&t, kind);
    } else {
      shorten_name(&t, kind);
    }
  }
  put(&t, "", 1);
  for (int kind = 0; kind < KINDS; kind++) free(t.kinds[kind].numbers);
  if (t.failed) {
    free(t.out);
    return NULL;
  }
  *length = t.length - 1;
  return t.out;
}

char *onepass_shorten_ptx(const char *text, size_t *length) {
  return translate(text, length, false);
}
char *onepass_lengthen_ptx(const char *text, size_t *length) {
  return translate(text, length, true);
}
