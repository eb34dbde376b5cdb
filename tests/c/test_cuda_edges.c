/*
 * On a GPU onepass writes its outputs and its workspace and nothing else, wherever these start.
 *
 * SPDX-License-Identifier: MIT
 */
#include "gpu.h"

static void expect_stays_inside(const call_form *form) {
  call *host = call_new_as(form);
  call *reference = call_reference(host);
  gpu_call *g = gpu_call_new(host);
  gpu_try_every_kernel(g, host, reference, NULL, expect_gpu_right);
  gpu_call_free(g);
  call_free(reference);
  call_free(host);
}

/* Lengths around the widths of vectors, warps and blocks. */
static void test_nothing_around_the_outputs_is_written(void) {
  const int64_t columns[] = {1,    2,    3,    7,    8,    9,    31,   32,   33,   63,
                             64,   65,   127,  128,  129,  255,  257,  511,  513,  1023,
                             1024, 1025, 2047, 2049, 4095, 4096, 4097, 8191, 10001};
  for (size_t c = 0; c < sizeof columns / sizeof *columns; c++) {
    for (int64_t rows = 1; rows <= 9; rows += 4) {
      for (int k = 0; k < KINDS; k++) {
        const int64_t shape[2] = {rows, columns[c]};
        const onepass_dtype dtype = every_dtype[(c + (size_t)rows + (size_t)k) % 4];
        if (k >= POOL_FORWARD && columns[c] < 2) continue;
        expect_stays_inside(&(call_form){.kind = (enum kind)k,
                                         .dtype = dtype,
                                         .weight_dtype = dtype,
                                         .ndim = 2,
                                         .shape = shape,
                                         .axis = 1});
      }
    }
  }
}

/* Each array by itself one element off 16 bytes, and all of them, in rows of even and odd length. */
static void test_every_array_may_start_one_element_off(void) {
  const int64_t shapes[][2] = {{5, 64}, {3, 127}, {4, 1024}, {3, 1025}, {2, 4095}, {1, 20001}};
  const int all = ROLES;
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (int k = 0; k < KINDS; k++) {
      for (int off = 0; off <= all; off++) {
        if (off < ROLES && !role_is_used((enum kind)k, (enum role)off)) continue;
        for (int d = 0; d < 4; d++) {
          call_form form = {.kind = (enum kind)k,
                            .dtype = every_dtype[d],
                            .weight_dtype = dtype_size(every_dtype[d]) == 2 && off % 2
                                                ? ONEPASS_F32
                                                : every_dtype[d],
                            .ndim = 2,
                            .shape = shapes[s],
                            .axis = 1};
          for (int r = 0; r < ROLES; r++) form.shift[r] = off == r || off == all;
          expect_stays_inside(&form);
        }
      }
    }
  }
}

/* Windows of every kind, lines that start anywhere. */
static void test_windows_stay_inside(void) {
  const int64_t windows[][3] = {{8, 1, 4}, {2, 2, 0},   {3, 1, 1},
                                {5, 7, 2}, {33, 1, 16}, {64, 3, 0}};
  const int64_t lengths[] = {64, 65, 257, 4095, 10000};
  for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
      for (int k = POOL_FORWARD; k <= POOL_BACKWARD; k++) {
        for (int off = 0; off < 2; off++) {
          const int64_t shape[3] = {2, 3, lengths[l]};
          const onepass_dtype dtype = every_dtype[(w + l) % 4];
          call_form form = {.kind = (enum kind)k,
                            .dtype = dtype,
                            .weight_dtype = dtype,
                            .ndim = 3,
                            .shape = shape,
                            .axis = -1,
                            .kernel = windows[w][0],
                            .stride = windows[w][1],
                            .padding = windows[w][2]};
          for (int r = 0; r < ROLES; r++) form.shift[r] = off;
          expect_stays_inside(&form);
        }
      }
    }
  }
}

int main(void) {
  if (!gpu_open("test_cuda_edges")) return EXPECT_SKIPPED;
  test_nothing_around_the_outputs_is_written();
  test_every_array_may_start_one_element_off();
  test_windows_stay_inside();
  return expect_report("test_cuda_edges");
}
