/*
 * Every GPU from compute capability 8.0 on is given kernels that it can run: machine code made for it or for an earlier
 * one with its major number, or else PTX; and the archives that are embedded hold all types of both families.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "cuda/archives.h"
#include "cuda/short_ptx.h"
#include "cuda/unpack.h"
#include "expect.h"

static const char *const family_names[] = {"norm", "pool"};

/* What the GPUs that there are, and some that are to come, are given by a build for 8.0, 9.0, 10.0 and 12.0. */
static const struct {
  int major, minor;
  int given; /* ten times the major number, and the minor one; 0: nothing */
  bool is_ptx;
} gpus[] = {{7, 5, 0, false},    {8, 0, 80, false},   {8, 6, 80, false},   {8, 9, 80, false},
            {9, 0, 90, false},   {10, 0, 100, false}, {10, 3, 100, false}, {11, 0, 100, true},
            {12, 0, 120, false}, {12, 1, 120, false}, {13, 0, 100, true}};

static void test_each_gpu_is_given_what_it_can_run(onepass_cuda_family family) {
  for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
    const onepass_kernel_archive *archive =
        onepass_find_kernels(family, gpus[i].major, gpus[i].minor);
    EXPECT((archive != NULL) == (gpus[i].given != 0), "%s for %d.%d", family_names[family],
           gpus[i].major, gpus[i].minor);
    if (!archive) continue;
    EXPECT(archive->family == family && archive->capability == gpus[i].given &&
               archive->is_ptx == gpus[i].is_ptx,
           "%s for %d.%d: %s of %d", family_names[family], gpus[i].major, gpus[i].minor,
           archive->is_ptx ? "PTX" : "machine code", (int)archive->capability);
  }
}

/* PTX, which is kept short, begins with comments, and machine code as any ELF file does. */
static void expect_kernels(const uint8_t *image, size_t size, bool is_ptx, const char *name) {
  EXPECT(size > 100000, "%s has %d bytes", name, (int)size);
  EXPECT(!memcmp(image, is_ptx ? "//" : "\177ELF", is_ptx ? 2 : 4), "%s begins with %.4s", name,
         (const char *)image);
  if (!is_ptx) return;
  size_t length = size;
  char *text = onepass_lengthen_ptx((const char *)image, &length);
  EXPECT(text && length > size && strstr(text, ".entry") && strstr(text, "%r1,"),
         "%s is no short PTX", name);
  free(text);
}

static void test_archives_hold_all_types(const onepass_kernel_archive *archive) {
  static const char *const types[] = {"f32", "f64", "f16", "bf16"};
  size_t size;
  uint8_t *tar = onepass_unpack_xz(archive->begin, (size_t)(archive->end - archive->begin), &size);
  if (!EXPECT(tar != NULL, "%s of %d cannot be unpacked", family_names[archive->family],
              (int)archive->capability))
    return;
  for (size_t t = 0; t < 4; t++) {
    char name[32];
    size_t length;
    snprintf(name, sizeof name, "%s_%s", family_names[archive->family], types[t]);
    const uint8_t *image = onepass_find_in_tar(tar, size, name, &length);
    if (EXPECT(image != NULL, "%s of %d is missing", name, (int)archive->capability))
      expect_kernels(image, length, archive->is_ptx, name);
  }
  free(tar);
}

int main(void) {
  for (onepass_cuda_family family = 0; family < ONEPASS_CUDA_FAMILIES; family++) {
    test_each_gpu_is_given_what_it_can_run(family);
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
      const onepass_kernel_archive *archive =
          onepass_find_kernels(family, gpus[i].major, gpus[i].minor);
      const bool is_seen = i > 0 && gpus[i].given == gpus[i - 1].given; /* look at each once */
      if (archive && !is_seen) test_archives_hold_all_types(archive);
    }
  }
  return expect_report("test_archives");
}
