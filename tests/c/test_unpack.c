/*
 * Kernels are packed in .tar.xz archives: what CMake packs comes out as it was, and a damaged archive is refused or
 * unpacked to something else, with nothing read or written outside of it.
 *
 *   test_unpack ARCHIVE SMALL_ARCHIVE FOLDER FILE...    the archives have these files of the folder
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "cuda/unpack.h"
#include "expect.h"

static uint8_t *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  *size = 0;
  if (!EXPECT(file != NULL, "%s cannot be read", path)) return NULL;
  fseek(file, 0, SEEK_END);
  *size = (size_t)ftell(file);
  rewind(file);
  uint8_t *bytes = malloc(*size + 1);
  EXPECT_INT(fread(bytes, 1, *size, file), *size);
  fclose(file);
  return bytes;
}

static void expect_file(uint8_t *tar, size_t tar_size, const char *folder, const char *name) {
  char path[4096];
  size_t size, found_size;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  uint8_t *wanted = read_file(path, &size);
  const uint8_t *found = onepass_find_in_tar(tar, tar_size, name, &found_size);
  if (EXPECT(found != NULL, "%s is not in the archive", name)) {
    EXPECT_INT(found_size, size);
    EXPECT(found_size == size && !memcmp(found, wanted, size), "%s differs", name);
  }
  free(wanted);
}

static void test_files_come_out_as_they_were(const char *archive, const char *folder, int count,
                                             char **names) {
  size_t packed_size, size;
  uint8_t *packed = read_file(archive, &packed_size);
  uint8_t *tar = onepass_unpack_xz(packed, packed_size, &size);
  if (EXPECT(tar != NULL, "%s cannot be unpacked", archive)) {
    for (int i = 0; i < count; i++) expect_file(tar, size, folder, names[i]);
    EXPECT(!onepass_find_in_tar(tar, size, "no such file", &size),
           "a file was found that is not there");
  }
  free(tar);
  free(packed);
}

/* In memory of just its size, so that AddressSanitizer sees what is read behind it. */
static void unpack_copy(const uint8_t *packed, size_t packed_size) {
  size_t size;
  uint8_t *copy = malloc(packed_size + !packed_size);
  memcpy(copy, packed, packed_size);
  uint8_t *tar = onepass_unpack_xz(copy, packed_size, &size);
  if (tar) onepass_find_in_tar(tar, size, "no such file", &size);
  free(tar);
  free(copy);
}

static void test_a_part_of_an_archive_is_refused(const uint8_t *packed, size_t packed_size) {
  for (size_t length = 0; length < packed_size; length++) {
    size_t size;
    uint8_t *copy = malloc(length + 1);
    memcpy(copy, packed, length);
    uint8_t *tar = onepass_unpack_xz(copy, length, &size);
    EXPECT(!tar, "%d of %d bytes were unpacked", (int)length, (int)packed_size);
    free(tar);
    free(copy);
  }
}

static void test_no_byte_makes_it_read_elsewhere(uint8_t *packed, size_t packed_size) {
  for (size_t i = 0; i < packed_size; i++) {
    const uint8_t right = packed[i];
    for (int change = 0; change < 3; change++) {
      packed[i] = (uint8_t)(change == 0 ? right ^ 1 : change == 1 ? right ^ 0x80 : ~right);
      unpack_copy(packed, packed_size);
    }
    packed[i] = right;
  }
  size_t size;
  uint8_t *tar = onepass_unpack_xz(packed, packed_size, &size);
  EXPECT(tar != NULL, "the archive itself, as it was: %d bytes", (int)packed_size);
  free(tar);
}

int main(int count, char **arguments) {
  if (!EXPECT(count > 4, "usage: test_unpack ARCHIVE SMALL_ARCHIVE FOLDER FILE...")) return 2;
  test_files_come_out_as_they_were(arguments[1], arguments[3], count - 4, arguments + 4);
  size_t size;
  uint8_t *small = read_file(arguments[2], &size);
  test_a_part_of_an_archive_is_refused(small, size);
  test_no_byte_makes_it_read_elsewhere(small, size);
  free(small);
  return expect_report("test_unpack");
}
