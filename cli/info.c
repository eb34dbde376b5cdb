#include <inttypes.h>
#include <onepass.h>
#include <stdio.h>

#include "buffers.h"
#include "cli.h"
#include "copy.h"
#include "options.h"
#include "table.h"

static const char no_gpu[] = "none (this build has no CUDA backend)";

typedef struct findings {
  onepass_cpu_info cpu;
  int64_t memory;
  double copy_one, copy_all; /* bytes per second, on one thread and on all */
} findings;

/* Far beyond the last cache, but no more than an eighth of the memory for both buffers. */
static int64_t copy_size(const onepass_cpu_info *cpu, int64_t memory) {
  int64_t size = 256 << 20;
  if (cpu->last > size / 4) size = 4 * cpu->last;
  if (size > memory / 16) size = memory / 16;
  return size / 4096 * 4096;
}

static void find_out(findings *found) {
  found->memory = available_memory();
  int64_t size = copy_size(&found->cpu, found->memory);
  progress("measuring the copy bandwidth of one thread");
  found->copy_one = copy_bandwidth(size, 1);
  progress("measuring the copy bandwidth of %" PRId32 " threads", found->cpu.threads);
  found->copy_all =
      found->cpu.threads > 1 ? copy_bandwidth(size, found->cpu.threads) : found->copy_one;
  progress(NULL);
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
  json_sizes(&json, "gpus", NULL, 0);
  json_end(&json);
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
  printf("gpus      %s\n", no_gpu);
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
  findings found;
  if (onepass_get_cpu_info(&found.cpu) != ONEPASS_OK)
    return usage_error("info", "%s", onepass_last_message());
  find_out(&found);
  (as_json ? print_json : print_text)(&found);
  return EXIT_FINE;
}
