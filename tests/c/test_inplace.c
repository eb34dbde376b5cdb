/*
 * A norm may write in place: y over x, dx over x, dx over dy, with the same bits as elsewhere.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "calls.h"
#include "expect.h"

static const int64_t shapes[][3] = {
    {1, 1, 1},    {4, 3, 9},  {2, 50, 257},   {1, 1, 70001},
    {5, 1, 4096}, {64, 2, 3}, {1, 2, 300000}, {1, 3000, 16},
};

/* Strides (2c, 1, 2): every other element, in another order. */
static array *make_interleaved(enum role role, onepass_dtype dtype, int ndim,
                               const int64_t *shape) {
  if (role == WEIGHT || role == BIAS || ndim < 3) return array_new(dtype, ndim, shape);
  int64_t strides[3] = {2 * shape[1] * shape[2] + 1, 2 * shape[2], 2};
  return array_new_strided(dtype, ndim, shape, strides, 1);
}

static array *make_compact(enum role role, onepass_dtype dtype, int ndim, const int64_t *shape) {
  (void)role;
  return array_new(dtype, ndim, shape);
}

/* Runs the call once elsewhere and once with `output` at the address of `input`. */
static void expect_in_place(enum kind kind, onepass_dtype dtype, const int64_t *shape, int axis,
                            enum role output, enum role input, array_maker maker) {
  call *elsewhere = call_new_with(kind, dtype, dtype, 3, shape, axis, maker);
  call *in_place = call_new_with(kind, dtype, dtype, 3, shape, axis, maker);
  array *spare = in_place->role[output];
  const char *name = kind_name[kind];
  EXPECT_OK(call_run(elsewhere));
  in_place->role[output] = in_place->role[input];
  EXPECT_OK(call_run(in_place));
  EXPECT(array_same_bits(in_place->role[input], elsewhere->role[output]),
         "%s of %s, %dx%dx%d over axis %d, %s over %s: other bits than elsewhere", name,
         dtype_name(dtype), (int)shape[0], (int)shape[1], (int)shape[2], axis, role_name[output],
         role_name[input]);
  EXPECT(call_guards_hold(in_place), "%s, %s over %s wrote outside", name, role_name[output],
         role_name[input]);
  in_place->role[output] = spare;
  EXPECT(array_untouched(spare), "%s wrote to a buffer it was not given", name);
  /* The helper takes the same. */
  call_fill(in_place, 1, 0.25, 1);
  in_place->role[output] = in_place->role[input];
  EXPECT_OK(call_helper(in_place));
  EXPECT(array_same_bits(in_place->role[input], elsewhere->role[output]),
         "the helper of %s, %s over %s: other bits", name, role_name[output], role_name[input]);
  in_place->role[output] = spare;
  call_free(elsewhere);
  call_free(in_place);
}

static void test_a_norm_writes_in_place(void) {
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (size_t d = 0; d < 4; d++) {
      onepass_dtype dtype = every_dtype[d];
      if (shapes[s][2] > 70000 && d != 0) continue; /* the longest rows in f32 only */
      for (int m = 0; m < 2; m++) {
        array_maker maker = m ? make_interleaved : make_compact;
        for (int axis = 0; axis < 3; axis++) {
          expect_in_place(L1_FORWARD, dtype, shapes[s], axis, Y, X, maker);
          expect_in_place(L1_BACKWARD, dtype, shapes[s], axis, DX, X, maker);
          expect_in_place(L1_BACKWARD, dtype, shapes[s], axis, DX, DY, maker);
        }
        for (int axis = 1; axis < 3; axis++) {
          expect_in_place(LAYER_FORWARD, dtype, shapes[s], axis, Y, X, maker);
          expect_in_place(LAYER_BACKWARD, dtype, shapes[s], axis, DX, X, maker);
          expect_in_place(LAYER_BACKWARD, dtype, shapes[s], axis, DX, DY, maker);
        }
      }
    }
  }
}

int main(void) {
  test_a_norm_writes_in_place();
  return expect_report("test_inplace");
}
