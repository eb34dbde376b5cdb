#define _GNU_SOURCE
#include "cpu/machine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(ONEPASS_HAS_NEON_BF16)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "core/status.h"
#include "cpu/threads.h"
#include "cuda/device.h"

static onepass_machine machine;
static pthread_once_t looked_up = PTHREAD_ONCE_INIT;

/* ---- Name ------------------------------------------------------------------------------------ */

static void copy_name(const char *from) {
  snprintf(machine.name, sizeof machine.name, "%.*s", (int)strcspn(from, "\n"), from);
}

/* AArch64 gives an implementer and a part number in place of a name. */
static void name_from_part(unsigned implementer, unsigned part) {
  static const struct {
    unsigned implementer, part;
    const char *name;
  } known[] = {
      {0x41, 0xd03, "Arm Cortex-A53"},  {0x41, 0xd08, "Arm Cortex-A72"},
      {0x41, 0xd0b, "Arm Cortex-A76"},  {0x41, 0xd0c, "Arm Neoverse-N1"},
      {0x41, 0xd40, "Arm Neoverse-V1"}, {0x41, 0xd49, "Arm Neoverse-N2"},
      {0x41, 0xd4f, "Arm Neoverse-V2"}, {0x41, 0xd83, "Arm Neoverse-V3"},
      {0x46, 0x001, "Fujitsu A64FX"},   {0xc0, 0xac3, "Ampere-1"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (known[i].implementer == implementer && known[i].part == part) copy_name(known[i].name);
  }
  if (!machine.name[0] && part) {
    snprintf(machine.name, sizeof machine.name, "AArch64 implementer 0x%x part 0x%x", implementer,
             part);
  }
}

static void look_up_name(void) {
  unsigned implementer = 0, part = 0;
  char line[256];
  FILE *file = fopen("/proc/cpuinfo", "r");
  while (file && !machine.name[0] && fgets(line, sizeof line, file)) {
    const char *colon = strchr(line, ':');
    if (!colon) continue;
    if (!strncmp(line, "model name", 10)) copy_name(colon + 1 + strspn(colon + 1, " "));
    if (!strncmp(line, "CPU implementer", 15)) implementer = (unsigned)strtoul(colon + 1, NULL, 0);
    if (!strncmp(line, "CPU part", 8)) part = (unsigned)strtoul(colon + 1, NULL, 0);
  }
  if (file) fclose(file);
  if (!machine.name[0]) name_from_part(implementer, part);
  if (!machine.name[0]) copy_name("unknown");
}

/* ---- Caches ---------------------------------------------------------------------------------- */

/* One line of /sys/devices/system/cpu/cpu0/cache/index<index>/<entry>. */
static int read_cache_entry(int index, const char *entry, char *line, int size) {
  char path[96];
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, entry);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  const int found = fgets(line, size, file) != NULL;
  fclose(file);
  return found;
}

static void look_up_caches(void) {
  int64_t of_level[5] = {0};
  char line[64];
  for (int index = 0; index < 8; index++) {
    if (!read_cache_entry(index, "type", line, sizeof line)) break;
    if (!strncmp(line, "Instruction", 11)) continue;
    if (!read_cache_entry(index, "level", line, sizeof line)) continue;
    const long level = strtol(line, NULL, 10);
    if (level < 1 || level > 4 || !read_cache_entry(index, "size", line, sizeof line)) continue;
    char *unit;
    const int64_t size = strtol(line, &unit, 10);
    of_level[level] = size * (*unit == 'K' ? 1024 : *unit == 'M' ? 1024 * 1024 : 1);
  }
  machine.l1 = of_level[1] ? of_level[1] : 32 * 1024;
  machine.l2 = of_level[2] ? of_level[2] : 512 * 1024;
  machine.last = of_level[4] ? of_level[4] : of_level[3] ? of_level[3] : machine.l2;
}

/* ---- Vector level ---------------------------------------------------------------------------- */

static onepass_vector_level best_level(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return ONEPASS_VECTOR_BASELINE;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return ONEPASS_VECTOR_AVX512;
  }
  return ONEPASS_VECTOR_AVX2; /* every CPU with AVX2 has F16C */
#elif defined(ONEPASS_HAS_NEON_BF16)
  return getauxval(AT_HWCAP2) & HWCAP2_BF16 ? ONEPASS_VECTOR_NEON_BF16 : ONEPASS_VECTOR_BASELINE;
#else
  return ONEPASS_VECTOR_BASELINE;
#endif
}

/* x86-64 levels each contain those below; AArch64 has the baseline and perhaps one more. */
static int has_level(int32_t level, onepass_vector_level best) {
  if (level == ONEPASS_VECTOR_BASELINE || level == (int32_t)best) return 1;
  return level == ONEPASS_VECTOR_AVX2 && best == ONEPASS_VECTOR_AVX512;
}

const char *onepass_vector_name(onepass_vector_level level) {
  if (level == ONEPASS_VECTOR_AVX2) return "avx2";
  if (level == ONEPASS_VECTOR_AVX512) return "avx512";
  if (level == ONEPASS_VECTOR_NEON_BF16) return "neon_bf16";
#if defined(__x86_64__)
  return "sse2";
#elif defined(__aarch64__)
  return "neon";
#else
  return "generic";
#endif
}

onepass_status onepass_choose_level(int32_t asked, onepass_vector_level *level) {
  const onepass_vector_level best = onepass_this_machine()->level;
  if (asked != ONEPASS_VECTOR_BEST && !has_level(asked, best)) {
    return onepass_fail(ONEPASS_BAD_OPTION,
                        "options.vector_level = %d: expected a level this CPU has, %d (%s) at best",
                        (int)asked, (int)best, onepass_vector_name(best));
  }
  *level = asked ? (onepass_vector_level)asked : best;
  return ONEPASS_OK;
}

static void look_up(void) {
  look_up_name();
  look_up_caches();
  machine.level = best_level();
}

const onepass_machine *onepass_this_machine(void) {
  pthread_once(&looked_up, look_up);
  return &machine;
}

#if defined(__clang__)
#define BUILT_WITH "clang " __clang_version__ ", " ONEPASS_THREAD_LIBRARY
#else
#define BUILT_WITH "gcc " __VERSION__ ", " ONEPASS_THREAD_LIBRARY
#endif

onepass_status onepass_get_cpu_info(onepass_cpu_info *info) {
  if (!info) return onepass_fail(ONEPASS_NULL_POINTER, "info = NULL: expected an onepass_cpu_info");
  const onepass_machine *this = onepass_this_machine();
  memcpy(info->name, this->name, sizeof info->name);
  info->vector = onepass_vector_name(this->level);
  info->threads = onepass_default_threads();
  info->l1 = this->l1;
  info->l2 = this->l2;
  info->last = this->last;
  info->build = onepass_cuda_is_built() ? BUILT_WITH ", CUDA" : BUILT_WITH ", CPU only";
  return ONEPASS_OK;
}
