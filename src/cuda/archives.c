#include "cuda/archives.h"

#define ARCHIVE(family, name, capability, is_ptx) \
  extern const uint8_t onepass_kernels_##name[], onepass_kernels_##name##_end[];
#include "archives.inc"
#undef ARCHIVE

#define ARCHIVE(family, name, capability, is_ptx) \
  {family, capability, is_ptx, onepass_kernels_##name, onepass_kernels_##name##_end},
static const onepass_kernel_archive archives[] = {
#include "archives.inc"
};
#undef ARCHIVE

/* Machine code runs on GPUs of the same major number, from its minor one on. */
static bool can_run(const onepass_kernel_archive *archive, int32_t capability) {
  return archive->capability <= capability &&
         (archive->is_ptx || archive->capability / 10 == capability / 10);
}

const onepass_kernel_archive *onepass_find_kernels(onepass_cuda_family family, int32_t major,
                                                   int32_t minor) {
  const onepass_kernel_archive *best = NULL;
  for (size_t i = 0; i < sizeof archives / sizeof *archives; i++) {
    const onepass_kernel_archive *archive = &archives[i];
    if (archive->family != family || !can_run(archive, major * 10 + minor)) continue;
    const bool is_better =
        !best || (best->is_ptx && !archive->is_ptx) ||
        (best->is_ptx == archive->is_ptx && archive->capability > best->capability);
    if (is_better) best = archive;
  }
  return best;
}
