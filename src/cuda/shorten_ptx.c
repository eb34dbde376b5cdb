/* Run while building: shorten_ptx FROM TO writes PTX as short PTX. */
#include <stdio.h>
#include <stdlib.h>

#include "cuda/short_ptx.h"

static char *read_text(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  if (!file) return NULL;
  fseek(file, 0, SEEK_END);
  const long size = ftell(file);
  rewind(file);
  char *text = size > 0 ? malloc((size_t)size) : NULL;
  if (text && fread(text, 1, (size_t)size, file) != (size_t)size) {
    free(text);
    text = NULL;
  }
  fclose(file);
  *length = (size_t)size;
  return text;
}

static int write_text(const char *path, const char *text, size_t length) {
  FILE *file = fopen(path, "wb");
  if (!file) return 0;
  const int is_written = fwrite(text, 1, length, file) == length;
  return fclose(file) == 0 && is_written;
}

int main(int count, char **arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: shorten_ptx FROM TO\n");
    return 2;
  }
  size_t length;
  char *text = read_text(arguments[1], &length);
  char *shorter = text ? onepass_shorten_ptx(text, &length) : NULL;
  const int is_done = shorter && write_text(arguments[2], shorter, length);
  if (!is_done) {
    fprintf(stderr, "shorten_ptx: %s cannot be read, or %s not written\n", arguments[1],
            arguments[2]);
  }
  free(text);
  free(shorter);
  return is_done ? 0 : 1;
}
