/*
 * Every CUDA kernel, operator, direction and type, once on each of a few small shapes: what
 * scripts/sanitize_cuda.sh runs under compute-sanitizer, and a test by itself.
 *
 *   cuda_kernels [TYPE...] [PART]    f32 f64 f16 bf16; all of them when none is named. PART: norms, large, short, infinite,
 *                                    far, long, ahead, singles, pools or empty
 *
 * SPDX-License-Identifier: MIT
 */
#include <math.h>
#include <stdlib.h>

#include "gpu.h"

/* Small ones of each rung: odd lengths, whole vectors, one more and one less than a power of two. The first ones are not
 * so small, then come those of short rows: parts of their own, so that sanitizers have several at a time. */
enum { LARGE = 2, SHORT = 13 };
static const struct {
  int ndim;
  int64_t shape[3];
  int axis;
} problems[] = {{2, {280, 4100}, 1} /* rows in turn */,
                {2, {2, 600000}, 1},
                {2, {3, 1}, 1},
                {2, {700, 1}, 1},
                {2, {3001, 1}, 1},
                {2, {5, 7}, 1},
                {2, {3, 33}, 1},
                {2, {4, 128}, 1},
                {2, {3, 127}, 1},
                {2, {300, 24}, 1},
                {2, {150, 64}, 1},
                /* As many as a large block has at once, backward. */
                {2, {60, 64}, 1},
                {2, {100, 17}, 1},
                {2, {12, 200}, 1},
                {2, {15, 145}, 1},
                {2, {2, 1025}, 1},
                {2, {2, 4095}, 1},
                {2, {2, 4096}, 1},
                {2, {1, 20000}, 1},
                {2, {1, 70001}, 1},
                {2, {33, 40}, 0},
                {2, {70, 129}, 0},
                {3, {2, 600, 17}, 1},
                {3, {3, 4, 65}, -1},
                {2, {2, 8192}, 1},
                {2, {2, 16384}, 1},
                {2, {3, 100000}, 1},
                /* Across: in registers alone, in shared memory, too, and read twice. */
                {2, {7, 9000}, 0},
                {3, {3, 150, 500}, 1},
                {3, {6, 700, 64}, 1},
                {2, {9000, 12}, 0}};
enum { PROBLEMS = sizeof problems / sizeof *problems };

static const int64_t windows[][3] = {{3, 2, 1}, {8, 1, 4}, {2, 2, 0}, {5, 7, 2}, {40, 1, 20},
                                     {1, 1, 0}, {6, 2, 0}, {9, 2, 4}, {4, 3, 1}};

static long runs[ONEPASS_CUDA_KERNEL_COUNT];

static void expect_described(const onepass_plan *plan, const gpu_call *g, int kernel) {
  onepass_plan_info info = {0};
  EXPECT_OK(onepass_plan_describe(plan, &info));
  EXPECT_TEXT(info.vector, "cuda");
  EXPECT(info.kernel && info.kernel[0], "%s: no kernel is named", gpu_label_of(g).text);
  EXPECT(info.grid >= 1 && info.block >= 1 && info.cluster >= 1 && info.launches >= 1,
         "%s: %lld blocks of %d threads in clusters of %d, %d launches", gpu_label_of(g).text,
         (long long)info.grid, (int)info.block, (int)info.cluster, (int)info.launches);
  EXPECT_INT(info.workspace, onepass_plan_workspace(plan));
  runs[kernel]++;
}

/* Takes the call, and frees it. */
static void try_every_kernel(call *host, void (*expect)(const gpu_call *, call *, const call *)) {
  call *reference = call_reference(host);
  gpu_call *g = gpu_call_new(host);
  gpu_try_every_kernel(g, host, reference, expect_described, expect);
  gpu_call_free(g);
  call_free(reference);
  call_free(host);
}

/* The same with one kernel. */
static void expect_right_by(onepass_cuda_kernel kernel, call *host) {
  call *reference = call_reference(host);
  gpu_call *g = gpu_call_new(host);
  gpu_try_kernel(g, host, reference, kernel, expect_described, expect_gpu_right);
  gpu_call_free(g);
  call_free(reference);
  call_free(host);
}

/* Aligned, and everything one element off. Half types with a weight of their own type and of f32. */
static void expect_right_at_any_address(call_form form) {
  for (int off = 0; off < 2; off++) {
    for (int r = 0; r < ROLES; r++) form.shift[r] = off;
    form.weight_dtype = off && dtype_size(form.dtype) == 2 ? ONEPASS_F32 : form.dtype;
    try_every_kernel(call_new_as(&form), expect_gpu_right);
  }
}

/* Problems `begin` to `end`. */
static void expect_problems_right(onepass_dtype dtype, int begin, int end) {
  for (int p = begin; p < end; p++) {
    for (int k = L1_FORWARD; k < ALL_KINDS; k++) {
      if (k == POOL_FORWARD || k == POOL_BACKWARD) continue;
      expect_right_at_any_address((call_form){.kind = (enum kind)k,
                                              .dtype = dtype,
                                              .ndim = problems[p].ndim,
                                              .shape = problems[p].shape,
                                              .axis = problems[p].axis});
    }
  }
}

static void expect_norms_right(onepass_dtype dtype) {
  expect_problems_right(dtype, LARGE + SHORT, PROBLEMS);
}
static void expect_short_norms_right(onepass_dtype dtype) {
  expect_problems_right(dtype, LARGE, LARGE + SHORT);
}
static void expect_large_norms_right(onepass_dtype dtype) {
  expect_problems_right(dtype, 0, LARGE);
}

/* Inf, -Inf, NaN, 0 or another number where the reference has such a one. */
static int is_such_a_number(double actual, double wanted) {
  if (isnan(wanted)) return isnan(actual);
  return isinf(wanted) || wanted == 0 ? actual == wanted : isfinite(actual);
}

static void expect_gpu_as_infinite(const gpu_call *g, call *host, const call *reference) {
  EXPECT(gpu_download(g, host), "%s: wrote to an input or around it", gpu_label_of(g).text);
  for (int r = 0; r < ROLES; r++) {
    const array *a = host->role[r];
    if (a == NULL || !role_is_output(host->kind, (enum role)r)) continue;
    for (int64_t i = 0; i < a->count; i++) {
      const double actual = array_get(a, i), wanted = array_get(reference->role[r], i);
      if (is_such_a_number(actual, wanted)) continue;
      EXPECT(0, "%s, with Inf: %s %lld is %g, expected %g", gpu_label_of(g).text, role_name[r],
             (long long)i, actual, wanted);
      break;
    }
  }
}

/* The first element of a row, from which its mean is guessed, and one of another row, or of the same. */
static void expect_infinite_rows_right(onepass_dtype dtype) {
  const enum kind kinds[] = {L1_FORWARD, LAYER_FORWARD, RMS_FORWARD, L2_FORWARD};
  for (int p = 0; p < PROBLEMS; p++) {
    for (int k = 0; k < 4; k++) {
      call *host = call_new(kinds[k], dtype, problems[p].ndim, problems[p].shape, problems[p].axis);
      array_set(host->role[X], 0, (double)INFINITY);
      array_set(host->role[X], host->role[X]->count / 2, -(double)INFINITY);
      try_every_kernel(host, expect_gpu_as_infinite);
    }
  }
}

/* Rows so far from 0 that halves of them are summed once more; with weights of f32, too, where rows are aligned. */
static void expect_far_rows_right(onepass_dtype dtype) {
  const enum kind kinds[] = {LAYER_FORWARD, RMS_FORWARD};
  const int64_t shapes[][2] = {{40, 64}, {5, 100}, {2, 8192}, {1, 20000}};
  const bool half = dtype_size(dtype) == 2;
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (int k = 0; k < (half ? 4 : 2); k++) {
      call *host = call_new_as(&(call_form){.kind = kinds[k % 2],
                                            .dtype = dtype,
                                            .ndim = 2,
                                            .shape = shapes[s],
                                            .axis = 1,
                                            .weight_dtype = k < 2 ? dtype : ONEPASS_F32});
      call_fill(host, 7, 100, 1);
      try_every_kernel(host, expect_gpu_right);
    }
  }
}

/* Rows that blocks share: as they are, and with a mean that their first elements say nothing of. */
static void expect_shared_rows_right(onepass_dtype dtype, int64_t rows, int64_t n) {
  const enum kind kinds[] = {LAYER_FORWARD, RMS_FORWARD, L2_FORWARD};
  const int64_t shape[2] = {rows, n};
  for (int k = 0; k < 2 * 3; k++) {
    call *host = call_new(kinds[k / 2], dtype, 2, shape, 1);
    if (k % 2) {
      call_fill(host, 7, 100, 1);
      for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < 8; i++) array_set(host->role[X], row * n + i, -100);
      }
    }
    expect_right_by(ONEPASS_CUDA_STREAM, host);
  }
}

/* Shared by the whole chip: enough rows that places of their sums and letters are used again, and rows of which shared
 * memory has no room for two. And so many that a block has rows to itself, or two blocks have them. */
static void expect_long_rows_right(onepass_dtype dtype) {
  const int64_t size = (int64_t)dtype_size(dtype);
  onepass_cuda_info info = {0};
  EXPECT_OK(onepass_get_cuda_info(0, &info));
  const int64_t chip = info.multiprocessors;
  expect_shared_rows_right(dtype, 17, chip * (36352 / size));
  expect_shared_rows_right(dtype, 3, chip * (127008 / size));
  if (size > 4) return;
  const bool half = size == 2;
  expect_shared_rows_right(dtype, (half ? 2 : 3) * chip + 1, half ? 40000 : 17408);
  expect_shared_rows_right(dtype, (half ? 1 : 2) * chip + 1, half ? 100000 : 28676);
}

/* So many rows that x and y are more than the second-level cache, of which blocks ask for rows ahead. */
static void expect_rows_ahead_right(onepass_dtype dtype) {
  const int64_t size = (int64_t)dtype_size(dtype), n = 16384 / size;
  const struct {
    enum kind kind;
    int64_t n;
  } forms[] = {
      {LAYER_FORWARD, n}, {LAYER_FORWARD, n - 1}, {L1_FORWARD, 2 * n - 1}, {FUSED_FORWARD, n}};
  for (int i = 0; i < (size < 8 ? 4 : 3); i++) { /* no doubles are fused there */
    const int64_t shape[2] = {gpu_l2() / 2 / (forms[i].n * size) + 40, forms[i].n};
    expect_right_by(ONEPASS_CUDA_BLOCKS, call_new(forms[i].kind, dtype, 2, shape, 1));
  }
}

/* So many rows of one element that threads have packs of them, or several. dy is about 0, as its
 * sum is to fit in a half. */
static void expect_many_singles_right(onepass_dtype dtype) {
  const enum kind kinds[] = {L1_FORWARD, L1_BACKWARD, LAYER_FORWARD, LAYER_BACKWARD};
  const int64_t shape[2] = {140001, 1};
  for (int k = 0; k < 2 * 4; k++) {
    call_form form = {.kind = kinds[k / 2],
                      .dtype = dtype,
                      .ndim = 2,
                      .shape = shape,
                      .axis = 1,
                      .weight_dtype = dtype};
    for (int r = 0; r < ROLES; r++) form.shift[r] = k % 2;
    call *host = call_new_as(&form);
    if (host->role[DY]) array_fill_random(host->role[DY], 7, 0, 1);
    expect_right_by(ONEPASS_CUDA_WARPS, host);
  }
}

static void expect_pools_right(onepass_dtype dtype) {
  const int64_t shapes[][3] = {{1, 3, 24},   {1, 3, 33},   {1, 3, 128},  {1, 3, 1025},
                               {1, 3, 4096}, {1, 3, 6001}, {2, 2501, 1}, {1, 70, 2}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
      if (windows[w][0] > shapes[s][2] + 2 * windows[w][2]) continue;
      for (int k = POOL_FORWARD; k <= POOL_BACKWARD; k++) {
        expect_right_at_any_address((call_form){.kind = (enum kind)k,
                                                .dtype = dtype,
                                                .ndim = 3,
                                                .shape = shapes[s],
                                                .axis = -1,
                                                .kernel = windows[w][0],
                                                .stride = windows[w][1],
                                                .padding = windows[w][2]});
      }
    }
  }
}

static void expect_nothing_done(const gpu_call *g, call *host, const call *reference) {
  if (!host->role[MEAN] || host->role[MEAN]->count == 0) {
    expect_gpu_right(g, host, reference);
    return;
  }
  /* The statistics of nothing are whatever they are. */
  EXPECT(gpu_download(g, host), "%s: wrote to an input", gpu_label_of(g).text);
  EXPECT(call_guards_hold(host), "%s: wrote outside an output", gpu_label_of(g).text);
}

/* No elements are no work, with every kernel that takes them; no rows still make a dweight of zeros.
 */
static void expect_empty_is_fine(enum kind kind, onepass_dtype dtype, const int64_t *shape,
                                 int axis) {
  call *host = call_new(kind, dtype, 3, shape, axis);
  call *reference = call_reference(host);
  gpu_call *g = gpu_call_new(host);
  gpu_try_every_kernel(g, host, reference, NULL, expect_nothing_done);
  EXPECT(!kind_has_helper(g->call.kind) || call_helper(&g->call) == ONEPASS_OK, "%s: %s",
         gpu_label_of(g).text, onepass_last_message());
  gpu_call_free(g);
  call_free(reference);
  call_free(host);
}

static void expect_empty_tensors_right(onepass_dtype dtype) {
  const int64_t shapes[][3] = {{0, 3, 9}, {4, 0, 9}, {0, 0, 9}, {4, 3, 0}, {0, 3, 0}, {4, 0, 0}};
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (int k = 0; k < KINDS; k++) {
      for (int axis = -3; axis < 0; axis++) {
        if (k >= POOL_FORWARD && (axis != -1 || shapes[s][2] == 0 || shapes[s][1] == 0)) continue;
        expect_empty_is_fine((enum kind)k, dtype, shapes[s], axis);
      }
    }
  }
}

static const struct {
  const char *name;
  void (*expect)(onepass_dtype dtype);
} parts[] = {{"norms", expect_norms_right},       {"large", expect_large_norms_right},
             {"short", expect_short_norms_right}, {"infinite", expect_infinite_rows_right},
             {"far", expect_far_rows_right},      {"long", expect_long_rows_right},
             {"ahead", expect_rows_ahead_right},  {"singles", expect_many_singles_right},
             {"pools", expect_pools_right},       {"empty", expect_empty_tensors_right}};
enum { PARTS = sizeof parts / sizeof *parts };

static int is_part(const char *name) {
  for (int p = 0; p < PARTS; p++) {
    if (strcmp(name, parts[p].name) == 0) return 1;
  }
  return 0;
}

/* Among the types that are named, or the parts. */
static int is_named(const char *wanted, int want_part, int count, char **names) {
  int others = 0;
  for (int i = 0; i < count; i++) {
    if (is_part(names[i]) != want_part) continue;
    if (strcmp(names[i], wanted) == 0) return 1;
    others++;
  }
  return others == 0;
}

static void expect_every_kernel_ran(void) {
  for (int kernel = 1; kernel < ONEPASS_CUDA_KERNEL_COUNT; kernel++) {
    printf("%-10s %ld runs\n", gpu_kernel_name[kernel], runs[kernel]);
    EXPECT(runs[kernel] > 0, "no run of kernel %s", gpu_kernel_name[kernel]);
  }
}

int main(int count, char **names) {
  if (!gpu_open("cuda_kernels")) return EXPECT_SKIPPED;
  int skipped = 0;
  for (int d = 0; d < 4; d++) {
    if (!is_named(dtype_name(every_dtype[d]), 0, count - 1, names + 1)) continue;
    for (int p = 0; p < PARTS; p++) {
      if (is_named(parts[p].name, 1, count - 1, names + 1))
        parts[p].expect(every_dtype[d]);
      else
        skipped++;
    }
  }
  if (skipped == 0) expect_every_kernel_ran();
  gpu_close();
  return expect_report("cuda_kernels");
}
