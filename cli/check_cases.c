#include "check_cases.h"

#include "buffers.h"
#include "check_list.h"

const char *values_name(values values) {
  static const char *const names[VALUES_KINDS] = {"normal", "offset", "tiny", "huge",
                                                  "zeros",  "nan",    "inf"};
  return names[values];
}

static const struct {
  const char *name;
  role output, input;
} in_place_kinds[IN_PLACE_KINDS] = {[SEPARATE] = {"no", ROLES, ROLES},
                                    [Y_OVER_X] = {"over x", Y, X},
                                    [Y_OVER_RESIDUAL] = {"over residual", Y, RESIDUAL},
                                    [SUM_OVER_X] = {"sum over x", SUM, X},
                                    [SUM_OVER_RESIDUAL] = {"sum over residual", SUM, RESIDUAL},
                                    [DX_OVER_X] = {"over x", DX, X},
                                    [DX_OVER_DY] = {"over dy", DX, DY},
                                    [DX_OVER_DSUM] = {"over dsum", DX, DSUM}};

const char *in_place_name(in_place in_place) { return in_place_kinds[in_place].name; }
role in_place_output(in_place in_place) { return in_place_kinds[in_place].output; }
role in_place_input(in_place in_place) { return in_place_kinds[in_place].input; }

const int64_t cuda_lengths[CUDA_LENGTHS] = {
    1,     2,     3,     31,    32,    33,    127,    128,    129,    511,  512,
    513,   1023,  1024,  1025,  2047,  2048,  2049,   4095,   4096,   4097, 8191,
    16384, 16385, 32768, 65535, 65536, 65537, 100003, 262144, 1048577};

void add_case(list *list, check_case check_case) {
  check_case.number = list->number++;
  list->visit(list->context, &check_case);
}

check_case with_shape(const list *list, const shape_row *row) {
  check_case check_case = list->common;
  set_shape(&check_case.problem, row->sizes, row->ndim);
  return check_case;
}

bool is_f32(const list *list) { return dtype_equal(list->common.problem.dtype, ONEPASS_F32); }

void visit_cases(effort effort, bool cuda, case_visitor visit, void *context) {
  list list = {.effort = effort, .cuda = cuda, .visit = visit, .context = context};
  for (int i = 0; i < op_count; i++)
    for (int direction = 0; direction < 2; direction++)
      for (int dtype = 0; dtype < DTYPES; dtype++) {
        list.common.problem =
            make_problem(&op_table[i], (onepass_direction)direction, dtype_at(dtype));
        (op_table[i].family == FAMILY_POOL ? add_pool_cases : add_norm_cases)(&list);
      }
}
