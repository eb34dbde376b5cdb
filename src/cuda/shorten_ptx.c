/* Run while building: shorten_ptx FROM TO writes PTX as short PTX, or, with -l in front, short PTX as PTX. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/short_ptx.h"

static char *read_text(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  char *text = NULL;
  size_t room = 0;
  *length = 0;
  for (size_t got = 1; got > 0; *length += got) {
    if (room - *length < 1 << 20) {
      char *larger = realloc(text, room = 2 * room + (1 << 21));
      if (!larger) break;
      text = larger;
    }
    got = fread(text + *length, 1, room - *length, file);
  }
  fclose(file);
  return text;
}

static int write_text(const char *path, const char *text, size_t length) {
  FILE *file = fopen(path, "wb");
  if (!file) return 0;
  const int is_written = fwrite(text, 1, length, file) == length;
  return fclose(file) == 0 && is_written;
}

int main(int count, char **arguments) {
  const int lengthen = count == 4 && !strcmp(arguments[1], "-l");
  if (count != 3 && !lengthen) {
    fprintf(stderr, "usage: shorten_ptx [-l] FROM TO\n");
    return 2;
  }
  const char *from = arguments[count - 2], *to = arguments[count - 1];
  size_t length;
  char *text = read_text(from, &length);
  char *result = !text      ? NULL
                 : lengthen ? onepass_lengthen_ptx(text, &length)
                            : onepass_shorten_ptx(text, &length);
  const int is_done = result && write_text(to, result, length);
  if (!is_done) fprintf(stderr, "shorten_ptx: %s cannot be read, or %s not written\n", from, to);
  free(text);
  free(result);
  return is_done ? 0 : 1;
}
