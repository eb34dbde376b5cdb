/*
 * The same inputs give the same bits, run after run, whatever is in the workspace before and
 * whatever else the GPU is doing: dweight and dbias, whose sums cross rows, included.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "gpu.h"

enum { RUNS = 100 };

static const size_t busy_size = (size_t)64 << 20;

/* Something that keeps memory and some of the chip busy, so that blocks start in another order. */
typedef struct busy {
  void *memory;
  CUstream stream;
} busy;

static void keep_busy(const busy *b, int run) {
  GPU(cuMemsetD8Async((CUdeviceptr)(uintptr_t)b->memory, (unsigned char)run, busy_size, b->stream));
}

/* The outputs' bytes, guard bands and all, of one run. */
typedef struct outputs {
  unsigned char *bytes[ROLES];
} outputs;

static outputs outputs_of(const call *host) {
  outputs o = {{NULL}};
  for (int r = 0; r < ROLES; r++) {
    if (host->role[r] == NULL || !role_is_output(host->kind, (enum role)r)) continue;
    o.bytes[r] = malloc(host->role[r]->block_size);
    if (o.bytes[r] == NULL) exit(2);
    memcpy(o.bytes[r], host->role[r]->block, host->role[r]->block_size);
  }
  return o;
}

static void outputs_free(outputs *o) {
  for (int r = 0; r < ROLES; r++) free(o->bytes[r]);
}

static void expect_same_bits(const gpu_call *g, const call *host, const outputs *first, int run) {
  for (int r = 0; r < ROLES; r++) {
    if (first->bytes[r] == NULL) continue;
    EXPECT(memcmp(first->bytes[r], host->role[r]->block, host->role[r]->block_size) == 0,
           "%s: %s has other bits in run %d than in the first", gpu_label_of(g).text, role_name[r],
           run);
  }
}

static void expect_repeatable(gpu_call *g, call *host, const call *reference, int kernel,
                              const busy *b) {
  onepass_plan *plan = gpu_plan(g, kernel);
  if (plan == NULL) return;
  gpu_workspace workspace = gpu_workspace_new(plan);
  gpu_upload(g, host);
  EXPECT_OK(gpu_run(plan, g, &workspace, NULL));
  expect_gpu_right(g, host, reference);
  outputs first = outputs_of(host);
  for (int run = 1; run < RUNS; run++) {
    if (run % 3) gpu_workspace_scramble(&workspace, (uint64_t)(run % 3 == 1 ? 0 : run));
    gpu_upload(g, host);
    if (run % 2) keep_busy(b, run);
    EXPECT_OK(gpu_run(plan, g, &workspace, NULL));
    gpu_download(g, host);
    expect_same_bits(g, host, &first, run);
  }
  EXPECT(gpu_workspace_guards_hold(&workspace), "%s: wrote outside the workspace",
         gpu_label_of(g).text);
  outputs_free(&first);
  gpu_workspace_free(&workspace);
  onepass_plan_destroy(plan);
}

int main(void) {
  const struct {
    int64_t shape[2];
    int axis;
  } problems[] = {{{3000, 31}, 1}, {{1000, 128}, 1}, {{301, 1025}, 1}, {{40, 4096}, 1},
                  {{5, 20000}, 1}, {{2, 70001}, 1},  {{1, 300007}, 1}, {{300, 200}, 0}};
  busy b;
  if (!gpu_open("test_cuda_repeatable")) return EXPECT_SKIPPED;
  b.memory = gpu_allocate(busy_size);
  GPU(cuStreamCreate(&b.stream, CU_STREAM_NON_BLOCKING));
  for (size_t p = 0; p < sizeof problems / sizeof *problems; p++) {
    for (int k = 0; k < KINDS; k++) {
      if (problems[p].axis == 0 && k > L1_BACKWARD) continue;
      for (int d = 0; d < 4; d += 3) { /* f32 and bf16 */
        call *host = call_new((enum kind)k, every_dtype[d], 2, problems[p].shape, problems[p].axis);
        call *reference = call_reference(host);
        gpu_call *g = gpu_call_new(host);
        for (int kernel = 0; kernel < ONEPASS_CUDA_KERNEL_COUNT; kernel++) {
          expect_repeatable(g, host, reference, kernel, &b);
        }
        gpu_call_free(g);
        call_free(reference);
        call_free(host);
      }
    }
  }
  GPU(cuStreamDestroy(b.stream));
  gpu_free(b.memory);
  return expect_report("test_cuda_repeatable");
}
