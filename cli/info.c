#include <inttypes.h>
#include <onepass.h>
#include <stdio.h>

#include "buffers.h"
#include "cli.h"
#include "copy.h"
#include "gpu.h"
#include "options.h"
#include "table.h"

enum { MOST_GPUS = 64 };

typedef struct found_gpu {
  onepass_cuda_info info;
  double copy; /* bytes per second; 0: could not be measured */
} found_gpu;

typedef struct findings {
  onepass_cpu_info cpu;
  int64_t memory;
  double copy_one, copy_all; /* bytes per second, on one thread and on all */
  found_gpu gpus[MOST_GPUS];
  int32_t gpu_count;
  char no_gpu[256]; /* why there is none */
} findings;

/* Far beyond the last cache, but no more than an eighth of the memory for both buffers. */
static int64_t copy_size(const onepass_cpu_info *cpu, int64_t memory) {
  int64_t size = 256 << 20;
  if (cpu->last > size / 4) size = 4 * cpu->last;
  if (size > memory / 16) size = memory / 16;
  return size / 4096 * 4096;
}

static double find_gpu_copy(int32_t device, int64_t l2) {
  gpu gpu;
  progress("measuring the copy bandwidth of GPU %" PRId32, device);
  if (!gpu_open(&gpu, device)) return 0;
  double copy = gpu_copy_bandwidth(&gpu, l2);
  gpu_close(&gpu);
  return copy;
}

static void find_gpus(findings *found) {
  int32_t count = 0;
  onepass_status status = onepass_get_cuda_count(&count);
  for (int32_t i = 0; i < count && i < MOST_GPUS && status == ONEPASS_OK; i++) {
    found_gpu *gpu = &found->gpus[i];
    status = onepass_get_cuda_info(i, &gpu->info);
    if (status != ONEPASS_OK) break;
    gpu->copy = find_gpu_copy(i, gpu->info.l2);
    found->gpu_count++;
  }
  if (status != ONEPASS_OK)
    snprintf(found->no_gpu, sizeof found->no_gpu, "%s", onepass_last_message());
}

static void find_out(findings *found) {
  found->memory = available_memory();
  int64_t size = copy_size(&found->cpu, found->memory);
  progress("measuring the copy bandwidth of one thread");
  found->copy_one = copy_bandwidth(size, 1);
  progress("measuring the copy bandwidth of %" PRId32 " threads", found->cpu.threads);
  found->copy_all =
      found->cpu.threads > 1 ? copy_bandwidth(size, found->cpu.threads) : found->copy_one;
  find_gpus(found);
  progress(NULL);
}

static void print_gpus_json(json *json, const findings *found) {
  json_list_begin(json, "gpus");
  for (int32_t i = 0; i < found->gpu_count; i++) {
    const onepass_cuda_info *info = &found->gpus[i].info;
    char capability[24];
    snprintf(capability, sizeof capability, "%" PRId32 ".%" PRId32, info->major, info->minor);
    json_list_next(json);
    json_text(json, "name", info->name);
    json_text(json, "compute_capability", capability);
    json_integer(json, "multiprocessors", info->multiprocessors);
    json_integer(json, "memory", info->memory);
    json_integer(json, "cache_l2", info->l2);
    json_integer(json, "shared_per_block", info->shared);
    json_integer(json, "driver", info->driver);
    json_number(json, "copy_gbps", found->gpus[i].copy / 1e9);
  }
  json_list_end(json);
  if (found->no_gpu[0]) json_text(json, "gpus_reason", found->no_gpu);
}

static void print_json(const findings *found) {
  json json;
  json_begin(&json);
  json_text(&json, "version", onepass_version_string());
  json_text(&json, "build", found->cpu.build);
  json_text(&json, "cpu", found->cpu.name);
  json_text(&json, "vector", found->cpu.vector);
  json_integer(&json, "threads", found->cpu.threads);
  json_integer(&json, "cache_l1", found->cpu.l1);
  json_integer(&json, "cache_l2", found->cpu.l2);
  json_integer(&json, "cache_last", found->cpu.last);
  json_integer(&json, "memory_available", found->memory);
  json_number(&json, "copy_gbps_one_thread", found->copy_one / 1e9);
  json_number(&json, "copy_gbps_all_threads", found->copy_all / 1e9);
  print_gpus_json(&json, found);
  json_end(&json);
}

static void print_gpus(const findings *found) {
  for (int32_t i = 0; i < found->gpu_count; i++) {
    const onepass_cuda_info *info = &found->gpus[i].info;
    char memory[32], l2[32];
    format_bytes(memory, sizeof memory, (double)info->memory);
    format_bytes(l2, sizeof l2, (double)info->l2);
    printf("%-9s %" PRId32 ": %s, compute capability %" PRId32 ".%" PRId32 ", %" PRId32
           " multiprocessors, %s, L2 %s, driver for CUDA %" PRId32 ".%" PRId32 "\n",
           i ? "" : "gpus", i, info->name, info->major, info->minor, info->multiprocessors, memory,
           l2, info->driver / 1000, info->driver % 1000 / 10);
    printf("%-9s    copy %.1f GB/s (read + written)\n", "", found->gpus[i].copy / 1e9);
  }
  if (found->no_gpu[0]) printf("%-9s %s\n", found->gpu_count ? "" : "gpus", found->no_gpu);
}

static void print_text(const findings *found) {
  char l1[32], l2[32], last[32], memory[32];
  format_bytes(l1, sizeof l1, (double)found->cpu.l1);
  format_bytes(l2, sizeof l2, (double)found->cpu.l2);
  format_bytes(last, sizeof last, (double)found->cpu.last);
  format_bytes(memory, sizeof memory, (double)found->memory);
  printf("version   %s\n", onepass_version_string());
  printf("build     %s\n", found->cpu.build);
  printf("cpu       %s\n", found->cpu.name);
  printf("vector    %s\n", found->cpu.vector);
  printf("caches    L1 %s, L2 %s, last level %s\n", l1, l2, last);
  printf("threads   %" PRId32 "\n", found->cpu.threads);
  printf("memory    %s available\n", memory);
  printf("copy      %.1f GB/s on one thread, %.1f GB/s on %" PRId32 " (read + written)\n",
         found->copy_one / 1e9, found->copy_all / 1e9, found->cpu.threads);
  print_gpus(found);
}

int run_info(int count, char **arguments) {
  bool as_json = false, help;
  const option options[] = {{.name = "--json", .kind = OPTION_FLAG, .target = &as_json}, {0}};
  int failed = read_options("info", count, arguments, options, &help);
  if (failed) return failed;
  if (help) {
    fputs(help_text("info"), stdout);
    return EXIT_FINE;
  }
  findings found = {.gpu_count = 0};
  if (onepass_get_cpu_info(&found.cpu) != ONEPASS_OK)
    return usage_error("info", "%s", onepass_last_message());
  find_out(&found);
  (as_json ? print_json : print_text)(&found);
  return EXIT_FINE;
}
