/*
 * Rows may start anywhere: every row length around a vector's width, every offset from a cache
 * line, with the guard bands around each output untouched.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "calls.h"
#include "expect.h"

static int64_t shift_inputs, shift_outputs;
static enum kind the_kind;

static array *make_shifted(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  int64_t strides[ONEPASS_MAX_NDIM];
  int64_t step = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = step;
    step *= shape[d];
  }
  return array_new_strided(dtype, ndim, shape, strides,
                           role_is_output(the_kind, role) ? shift_outputs : shift_inputs);
}

static void expect_right_at(enum kind kind, onepass_dtype dtype, int ndim, const int64_t *shape,
                            int axis) {
  the_kind = kind;
  call *c = call_new_with(kind, dtype, dtype, ndim, shape, axis, make_shifted);
  if (EXPECT_OK(call_run(c))) {
    call *reference = call_reference(c);
    double distance = call_distance(c, reference);
    EXPECT(distance <= 1,
           "%s of %s %dx%d, inputs %d and outputs %d elements off: %g times the bound",
           kind_name[kind], dtype_name(dtype), (int)shape[0], (int)shape[1], (int)shift_inputs,
           (int)shift_outputs, distance);
    EXPECT(call_guards_hold(c), "%s of %s %dx%d, %d and %d elements off: wrote outside",
           kind_name[kind], dtype_name(dtype), (int)shape[0], (int)shape[1], (int)shift_inputs,
           (int)shift_outputs);
    call_free(reference);
  }
  call_free(c);
}

static void test_every_row_length_is_right_at_every_offset(void) {
  for (size_t d = 0; d < 4; d++) {
    for (int64_t columns = 1; columns <= 70; columns += columns < 35 ? 1 : 7) {
      const int64_t shape[2] = {3, columns};
      for (int64_t shift = 0; shift < 4; shift++) {
        shift_inputs = shift;
        shift_outputs = (shift * 3 + columns) % 8;
        for (int k = 0; k < KINDS; k++) {
          if (k >= POOL_FORWARD && columns < 2) continue;
          expect_right_at((enum kind)k, every_dtype[d], 2, shape, 1);
        }
        expect_right_at(L1_FORWARD, every_dtype[d], 2, shape, 0);
        expect_right_at(L1_BACKWARD, every_dtype[d], 2, shape, 0);
      }
    }
  }
}

static void test_long_rows_are_right_at_every_offset(void) {
  const int64_t lengths[] = {255, 257, 1023, 4095, 4097, 65535, 131073};
  for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
    const int64_t shape[2] = {3, lengths[l]};
    for (int64_t shift = 0; shift < 16; shift += 5) {
      shift_inputs = shift;
      shift_outputs = 15 - shift;
      for (int k = 0; k < KINDS; k++) {
        expect_right_at((enum kind)k, l % 2 ? ONEPASS_BF16 : ONEPASS_F32, 2, shape, 1);
      }
    }
  }
}

/* Windows of every size at the left edge, in the middle and at the right edge. */
static void test_every_window_is_right_at_every_offset(void) {
  const int64_t lengths[] = {1, 2, 5, 16, 33, 100};
  for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
    for (int64_t kernel = 1; kernel <= 12; kernel++) {
      for (int64_t padding = 0; padding <= kernel / 2; padding++) {
        for (int64_t stride = 1; stride <= 5; stride++) {
          for (int flags = 0; flags < 4; flags++) {
            for (int k = POOL_FORWARD; k <= POOL_BACKWARD; k++) {
              const int64_t length = lengths[l];
              int64_t pooled;
              if (kernel > length + 2 * padding) continue;
              the_kind = (enum kind)k;
              shift_inputs = stride % 4;
              shift_outputs = kernel % 8;
              EXPECT_OK(onepass_pool_length(length, kernel, stride, padding, flags & 1, &pooled));
              const int64_t shape[2] = {2, length}, out[2] = {2, pooled};
              call c = {.kind = the_kind};
              c.pool = (onepass_pool){.direction = (onepass_direction)(k - POOL_FORWARD),
                                      .spatial = 1,
                                      .kernel = {kernel},
                                      .stride = {stride},
                                      .padding = {padding},
                                      .ceil_mode = flags & 1,
                                      .count_include_pad = flags >> 1};
              enum role from = k == POOL_FORWARD ? X : DY, to = k == POOL_FORWARD ? Y : DX;
              onepass_dtype dtype = every_dtype[(kernel + stride) % 4];
              c.role[from] = make_shifted(from, dtype, 2, from == X ? shape : out);
              c.role[to] = make_shifted(to, dtype, 2, to == DX ? shape : out);
              call_fill(&c, 3, 0.25, 1);
              EXPECT_OK(call_run(&c));
              call *reference = call_reference(&c);
              double distance = call_distance(&c, reference);
              EXPECT(distance <= 1,
                     "%s of %s, length %d, kernel %d, stride %d, padding %d, ceil_mode %d, "
                     "count_include_pad %d: %g times the bound",
                     kind_name[k], dtype_name(dtype), (int)length, (int)kernel, (int)stride,
                     (int)padding, flags & 1, flags >> 1, distance);
              EXPECT(call_guards_hold(&c), "%s wrote outside", kind_name[k]);
              call_free(reference);
              array_free(c.role[from]);
              array_free(c.role[to]);
            }
          }
        }
      }
    }
  }
}

int main(void) {
  test_every_row_length_is_right_at_every_offset();
  test_long_rows_are_right_at_every_offset();
  test_every_window_is_right_at_every_offset();
  return expect_report("test_alignment");
}
