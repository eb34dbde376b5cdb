#include "check_cases.h"

#include <string.h>

#include "buffers.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

const char *values_name(values values) {
  static const char *const names[VALUES_KINDS] = {"normal", "offset", "tiny", "huge",
                                                  "zeros",  "nan",    "inf"};
  return names[values];
}

const char *in_place_name(in_place in_place) {
  static const char *const names[] = {"no", "over x", "over dy"};
  return names[in_place];
}

typedef struct shape_row {
  int32_t ndim;
  int64_t sizes[ONEPASS_MAX_NDIM];
} shape_row;

/* Where the list is: the effort, and the operator, direction and type that all cases now have. */
typedef struct list {
  effort effort;
  bool cuda;
  case_visitor visit;
  void *context;
  int64_t number;
  check_case common;
} list;

static void add(list *list, check_case check_case) {
  check_case.number = list->number++;
  list->visit(list->context, &check_case);
}

static check_case with_shape(const list *list, const shape_row *row) {
  check_case check_case = list->common;
  check_case.problem.ndim = row->ndim;
  memcpy(check_case.problem.shape, row->sizes, sizeof row->sizes);
  return check_case;
}

/* ---- Norms ---- */

/* The options of a norm, numbered: reduction and eps, or which of weight, bias, saved statistics
 * there are, and their forms. */
static int variants_of(op_kind op) { return op == OP_L1_NORM ? 4 : 16; }

static void set_variant(check_case *check_case, uint64_t variant) {
  problem *problem = &check_case->problem;
  if (problem->op == OP_L1_NORM) {
    problem->reduction = variant & 1 ? ONEPASS_SUM : ONEPASS_MEAN;
    problem->eps = variant & 2 ? 1e-3 : 0;
    return;
  }
  problem->weight = (variant & 1) == 0;
  problem->bias = (variant & 2) == 0;
  problem->stats = (variant & 4) == 0 || problem->direction == ONEPASS_BACKWARD;
  problem->keep_axes = (variant & 5) == 0;
  problem->eps = check_case->values == VALUES_TINY ? 0 : variant & 4 ? 1e-3 : 1e-5;
  if (problem->dtype.bits == 16 && (variant & 8)) problem->weight_dtype = ONEPASS_F32;
}

/* A norm in some of its variants: every one in a full check, otherwise a few that change from case
 * to case. */
static void add_norm(list *list, check_case check_case) {
  int all = variants_of(check_case.problem.op);
  int count = list->effort == EFFORT_QUICK ? 1 : list->effort == EFFORT_NORMAL ? 3 : all;
  uint64_t first = count == all ? 0 : random_bits(1, (uint64_t)list->number);
  for (int i = 0; i < count; i++) {
    struct check_case variant = check_case;
    set_variant(&variant, (first + (uint64_t)(i * 5)) % (uint64_t)all);
    add(list, variant);
  }
}

static void add_lengths(list *list) {
  static const int64_t lengths[] = {1,   2,   3,   7,    31,   32,   33,   63,   64,   65,
                                    127, 128, 129, 1023, 1025, 4095, 4096, 4097, 8191, 65535};
  static const int64_t rows[] = {1, 3, 2, 5, 19, 64, 257};
  const int row_counts[] = {1, 4, 7};
  for (int i = 0; i < COUNT(lengths); i++)
    for (int j = 0; j < row_counts[list->effort]; j++) {
      int64_t count = list->effort == EFFORT_QUICK ? rows[i % 3] : rows[j];
      if (count > 1 && lengths[i] * count > (list->effort == EFFORT_FULL ? 1 << 21 : 1 << 16))
        count = 1 + j % 2;
      shape_row row = {2, {count, lengths[i]}};
      check_case check_case = with_shape(list, &row);
      check_case.problem.axis = 1;
      add_norm(list, check_case);
    }
}

/* Every axis, or every number of last axes. */
static void add_axes(list *list) {
  static const shape_row shapes[] = {{1, {37}},          {3, {2, 3, 5}},     {3, {4, 33, 7}},
                                     {4, {3, 2, 17, 9}}, {3, {1, 1, 1}},     {4, {2, 5, 8, 8}},
                                     {3, {65, 3, 129}},  {2, {300, 20}},     {5, {2, 2, 3, 2, 5}},
                                     {3, {7, 1, 64}},    {3, {3, 1025, 40}}, {2, {4097, 6}}};
  const int shape_counts[] = {4, COUNT(shapes), COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (int32_t axis = 0; axis < shapes[i].ndim; axis++) {
      check_case check_case = with_shape(list, &shapes[i]);
      check_case.problem.axis = axis;
      add_norm(list, check_case);
    }
}

static void add_norm_layouts(list *list) {
  static const shape_row shapes[] = {{3, {3, 5, 33}}, {2, {6, 129}},     {4, {2, 3, 4, 9}},
                                     {2, {40, 64}},   {3, {2, 70, 130}}, {2, {3, 4099}}};
  const int shape_counts[] = {3, 5, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (layout layout = LAYOUT_OFFSET; layout < LAYOUTS; layout++)
      for (int32_t axis = 0; axis < shapes[i].ndim; axis++) {
        if (list->effort == EFFORT_QUICK && (i + (int)layout + axis) % 2) continue;
        check_case check_case = with_shape(list, &shapes[i]);
        check_case.problem.axis = axis;
        check_case.layout = layout;
        add_norm(list, check_case);
      }
}

static void add_in_place(list *list) {
  static const shape_row shapes[] = {
      {2, {5, 65}}, {3, {3, 8, 40}}, {2, {7, 1025}}, {2, {2, 70001}}};
  static const layout layouts[] = {LAYOUT_COMPACT, LAYOUT_SLICED, LAYOUT_OFFSET};
  const int shape_counts[] = {2, 3, COUNT(shapes)};
  in_place last = list->common.problem.direction == ONEPASS_FORWARD ? OVER_X : OVER_DY;
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (int j = 0; j < COUNT(layouts); j++)
      for (in_place in_place = OVER_X; in_place <= last; in_place++) {
        check_case check_case = with_shape(list, &shapes[i]);
        check_case.problem.axis = list->effort == EFFORT_QUICK ? 1 : (i + j) % 2;
        check_case.layout = layouts[j];
        check_case.in_place = in_place;
        add_norm(list, check_case);
      }
}

static void add_norm_values(list *list) {
  static const shape_row shapes[] = {
      {2, {7, 33}}, {3, {4, 65, 5}}, {2, {3, 1025}}, {2, {9, 4096}}, {3, {2, 129, 64}}};
  const int shape_counts[] = {2, 4, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (values values = VALUES_OFFSET; values < VALUES_KINDS; values++) {
      check_case check_case = with_shape(list, &shapes[i]);
      check_case.problem.axis = 1;
      check_case.values = values;
      add_norm(list, check_case);
    }
}

static void add_empty_norms(list *list) {
  static const shape_row shapes[] = {
      {1, {0}}, {2, {0, 5}}, {2, {4, 0}}, {3, {2, 0, 3}}, {3, {2, 3, 0}}};
  for (int i = 0; i < COUNT(shapes); i++) {
    check_case check_case = with_shape(list, &shapes[i]);
    check_case.problem.axis = shapes[i].ndim - 1;
    add_norm(list, check_case);
  }
}

/* Large ones: many rows, long rows, and in a full check more than 100 MB of f32. One variant each.
 */
static void add_large_norms(list *list) {
  static const shape_row shapes[] = {{2, {4096, 64}},    {2, {700, 1025}},        {2, {2, 300007}},
                                     {3, {8, 300, 129}}, {2, {1, (1 << 20) + 7}}, {2, {3, 3000017}},
                                     {2, {100003, 33}},  {4, {6, 16, 128, 128}},  {2, {1024, 8191}},
                                     {2, {1031, 26000}}};
  const int shape_counts[] = {0, 4, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (int32_t axis = 0; axis < shapes[i].ndim; axis++) {
      if (shapes[i].sizes[0] * shapes[i].sizes[1] > 1 << 24 && axis == 0 &&
          list->common.problem.op == OP_LAYER_NORM)
        continue;
      check_case check_case = with_shape(list, &shapes[i]);
      check_case.problem.axis = axis;
      set_variant(&check_case, (uint64_t)(i & 1 ? 2 : 0));
      add(list, check_case);
    }
}

/* ---- Norms on a GPU ---- */

/* Around the powers of two at which kernels begin and end, and beyond what a chip can hold. */
static const int64_t cuda_lengths[] = {1,     2,     3,     31,    32,     33,     127,    128,
                                       129,   511,   512,   513,   1023,   1024,   1025,   2047,
                                       2048,  2049,  4095,  4096,  4097,   8191,   16384,  16385,
                                       32768, 65535, 65536, 65537, 100003, 262144, 1048577};

enum { CUDA_LENGTHS = COUNT(cuda_lengths), FORMS = 4 };

static bool is_f32(const list *list) {
  return dtype_equal(list->common.problem.dtype, ONEPASS_F32);
}

static void add_one_norm(list *list, check_case check_case) {
  set_variant(&check_case, random_bits(3, (uint64_t)list->number) %
                               (uint64_t)variants_of(check_case.problem.op));
  add(list, check_case);
}

/* A row length as many rows, as misaligned rows, in place, and as one row far from zero. */
static void add_cuda_length(list *list, int64_t length, int form) {
  int64_t many = (1 << 18) / length;
  const int64_t rows[FORMS] = {many < 1 ? 1 : many < 4099 ? many : 4099, 3, 2, 1};
  shape_row row = {2, {rows[form], length}};
  check_case check_case = with_shape(list, &row);
  check_case.problem.axis = 1;
  if (form == 1) check_case.layout = LAYOUT_OFFSET;
  bool backward = check_case.problem.direction == ONEPASS_BACKWARD;
  if (form == 2) check_case.in_place = backward && length % 2 ? OVER_DY : OVER_X;
  if (form == 3) check_case.values = VALUES_OFFSET;
  add_one_norm(list, check_case);
}

static void add_cuda_lengths(list *list) {
  for (int i = 0; i < CUDA_LENGTHS; i++)
    for (int form = 0; form < FORMS; form++) {
      bool turn = form == i % FORMS, next_turn = form == (i + 2) % FORMS;
      if (list->effort == EFFORT_QUICK && !(turn && (is_f32(list) || i % 3 == 0))) continue;
      if (list->effort == EFFORT_NORMAL && !(is_f32(list) || turn || next_turn)) continue;
      add_cuda_length(list, cuda_lengths[i], form);
    }
}

/* More rows than fit on the chip at once, so that whatever works on rows comes back for more. */
static void add_cuda_rows(list *list) {
  static const shape_row shapes[] = {{2, {9001, 33}},  {2, {2601, 513}},  {2, {33003, 33}},
                                     {2, {9001, 129}}, {2, {1301, 1025}}, {2, {700, 2049}},
                                     {2, {300, 8191}}, {2, {290, 16385}}, {2, {140, 65537}}};
  const int counts[] = {2, COUNT(shapes) - 1, COUNT(shapes)};
  for (int i = 0; i < counts[list->effort]; i++) {
    if (list->effort != EFFORT_FULL && !is_f32(list)) break;
    check_case check_case = with_shape(list, &shapes[i]);
    check_case.problem.axis = 1;
    set_variant(&check_case, 0);
    add(list, check_case);
  }
}

/* Rows whose elements lie far apart: few and many of them, short and long. */
static void add_cuda_columns(list *list) {
  static const shape_row shapes[] = {{2, {130, 513}},   {2, {5001, 30}},   {2, {1, 4097}},
                                     {2, {33, 4097}},   {2, {1024, 1025}}, {2, {2, 65537}},
                                     {2, {31, 100003}}, {2, {70001, 33}}};
  const int counts[] = {2, 6, COUNT(shapes)};
  for (int i = 0; i < counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &shapes[i]);
    check_case.problem.axis = 1;
    check_case.layout = LAYOUT_TRANSPOSED;
    add_one_norm(list, check_case);
  }
}

/* What is special about the values of a row must come through whatever shares the row. */
static void add_cuda_values(list *list) {
  static const shape_row shapes[] = {{2, {3, 4097}}, {2, {2, 65537}}, {2, {1, 262144}}};
  const int counts[] = {1, is_f32(list) ? 3 : 2, 3};
  for (int i = 0; i < counts[list->effort]; i++)
    for (values values = VALUES_OFFSET; values < VALUES_KINDS; values++) {
      if (list->effort == EFFORT_QUICK && !is_f32(list)) continue;
      check_case check_case = with_shape(list, &shapes[i]);
      check_case.problem.axis = 1;
      check_case.values = values;
      add_one_norm(list, check_case);
    }
}

static void add_cuda_norms(list *list) {
  add_cuda_lengths(list);
  add_cuda_rows(list);
  add_cuda_columns(list);
  add_cuda_values(list);
}

static void add_norms(list *list) {
  add_lengths(list);
  add_axes(list);
  add_norm_layouts(list);
  add_in_place(list);
  add_norm_values(list);
  add_empty_norms(list);
  add_large_norms(list);
  if (list->cuda) add_cuda_norms(list);
}

/* ---- Pooling ---- */

/* Fill in the pooled length and add, unless the window does not fit into the input. */
static void add_pool(list *list, check_case check_case) {
  problem *problem = &check_case.problem;
  int64_t length = problem->shape[problem->ndim - 1];
  onepass_status status =
      onepass_pool_length(length, problem->kernel, problem->stride, problem->padding,
                          problem->ceil_mode, &problem->pooled);
  if (status == ONEPASS_OK) add(list, check_case);
}

static void set_window(check_case *check_case, int64_t kernel, int64_t stride, int64_t padding,
                       unsigned flags) {
  check_case->problem.kernel = kernel;
  check_case->problem.stride = stride;
  check_case->problem.padding = padding;
  check_case->problem.ceil_mode = flags & 1;
  check_case->problem.count_include_pad = (flags & 2) == 0;
}

/* One window on lengths that end before, on and after a window. */
static void add_window(list *list, int64_t kernel, int64_t stride, int64_t padding,
                       unsigned flags) {
  static const shape_row shapes[] = {{3, {2, 3, 64}},   {2, {3, 129}}, {3, {1, 2, 255}},
                                     {3, {3, 1, 1031}}, {2, {2, 67}},  {3, {2, 2, 4097}}};
  const int shape_counts[] = {1, 2, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++) {
    uint64_t chosen = random_bits(2, (uint64_t)list->number) % 5;
    int index = list->effort == EFFORT_FULL ? i : (int)((chosen + (uint64_t)i) % 5);
    check_case check_case = with_shape(list, &shapes[index]);
    set_window(&check_case, kernel, stride, padding, flags);
    add_pool(list, check_case);
  }
}

static void add_windows(list *list) {
  static const int64_t kernels[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 64};
  for (int i = 0; i < COUNT(kernels); i++) {
    int64_t kernel = kernels[i];
    const int64_t strides[] = {1, 2, 3, 5, kernel, kernel + 3};
    const int64_t paddings[] = {0, kernel / 2, kernel / 4};
    for (int j = 0; j < COUNT(strides); j++)
      for (int k = 0; k < COUNT(paddings); k++)
        for (unsigned flags = 0; flags < 4; flags++) {
          /* quick: one padding and one pair of flags for each kernel and stride */
          bool chosen = k == (i + j) % 3 && flags == (unsigned)(i + 3 * j) % 4;
          if (list->effort != EFFORT_QUICK || chosen)
            add_window(list, kernel, strides[j], paddings[k], flags);
        }
  }
}

static void add_pool_lengths(list *list) {
  static const int64_t lengths[] = {1,   2,   3,    7,    31,   32,   33,   63,   65,
                                    127, 128, 1023, 1025, 4095, 4096, 8191, 65535};
  for (int i = 0; i < COUNT(lengths); i++) {
    shape_row row = {3, {1, i % 2 + 1, lengths[i]}};
    check_case check_case = with_shape(list, &row);
    int64_t kernel = lengths[i] < 8 ? lengths[i] : 8;
    set_window(&check_case, kernel, i % 3 ? 1 : 2, kernel / 2, (unsigned)i);
    add_pool(list, check_case);
  }
}

static void add_pool_layouts_and_values(list *list) {
  static const shape_row shapes[] = {{3, {3, 4, 65}}, {2, {5, 129}}, {3, {2, 33, 40}}};
  static const int64_t windows[][3] = {{3, 1, 1}, {8, 1, 4}, {4, 4, 0}, {5, 7, 2}};
  int window_count = list->effort == EFFORT_QUICK ? 1 : COUNT(windows);
  for (int i = 0; i < COUNT(shapes); i++)
    for (int j = 0; j < window_count; j++) {
      const int64_t *window = windows[(i + j) % COUNT(windows)];
      check_case check_case = with_shape(list, &shapes[i]);
      set_window(&check_case, window[0], window[1], window[2], (unsigned)(i + j));
      for (layout layout = LAYOUT_OFFSET; layout < LAYOUTS; layout++) {
        check_case.layout = layout;
        add_pool(list, check_case);
      }
      check_case.layout = LAYOUT_COMPACT;
      for (values values = VALUES_OFFSET; values < VALUES_KINDS; values++) {
        check_case.values = values;
        add_pool(list, check_case);
      }
    }
}

static void add_odd_pools(list *list) {
  static const shape_row shapes[] = {
      {3, {0, 3, 10}},         {3, {2, 0, 10}},     {2, {0, 10}},        {3, {300, 7, 16}},
      {2, {3000, 9}},          {2, {2, 200003}},    {3, {8, 16, 65536}}, {3, {8, 52, 65536}},
      {2, {1, (1 << 22) + 3}}, {3, {20000, 3, 501}}};
  const int shape_counts[] = {4, 6, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &shapes[i]);
    set_window(&check_case, 8, 1, 4, (unsigned)i);
    add_pool(list, check_case);
    set_window(&check_case, 3, 2, 1, (unsigned)i + 1);
    add_pool(list, check_case);
  }
}

/* ---- Pooling on a GPU ---- */

static void add_cuda_lines(list *list) {
  static const int64_t windows[][3] = {{8, 1, 4}, {3, 2, 1}, {2, 2, 0}, {64, 1, 32}};
  for (int i = 0; i < CUDA_LENGTHS; i++)
    for (int form = 0; form < FORMS; form++) {
      bool turn = form == i % FORMS;
      if (list->effort == EFFORT_QUICK && !(turn && (is_f32(list) || i % 3 == 0))) continue;
      if (list->effort == EFFORT_NORMAL && !(is_f32(list) || turn)) continue;
      const int64_t *window = windows[(i + form) % COUNT(windows)];
      shape_row row = {2, {form + 1, cuda_lengths[i]}};
      check_case check_case = with_shape(list, &row);
      if (form == 1) check_case.layout = LAYOUT_OFFSET;
      set_window(&check_case, window[0], window[1], window[2], (unsigned)(i + form));
      add_pool(list, check_case);
    }
}

/* Windows that are wider than what a block would like to hold, and very many lines. */
static void add_cuda_windows(list *list) {
  static const int64_t windows[][3] = {{129, 1, 64},    {1000, 7, 0},       {1000, 1, 500},
                                       {300, 500, 150}, {5000, 4999, 2500}, {16385, 512, 8192}};
  static const shape_row shapes[] = {{2, {2, 16385}}, {3, {3, 2, 20011}}};
  static const shape_row lines[] = {{2, {4099, 65}}, {3, {3, 700, 1025}}, {2, {100003, 9}}};
  const int counts[] = {2, COUNT(windows), COUNT(windows)};
  const int line_counts[] = {1, 2, COUNT(lines)};
  if (list->effort != EFFORT_FULL && list->common.problem.dtype.bits == 64) return;
  for (int i = 0; i < counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &shapes[i % COUNT(shapes)]);
    set_window(&check_case, windows[i][0], windows[i][1], windows[i][2], (unsigned)i);
    add_pool(list, check_case);
  }
  for (int i = 0; i < line_counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &lines[i]);
    set_window(&check_case, 8, 1, 4, (unsigned)i);
    add_pool(list, check_case);
  }
}

static void add_cuda_pools(list *list) {
  add_cuda_lines(list);
  add_cuda_windows(list);
}

static void add_pools(list *list) {
  add_windows(list);
  add_pool_lengths(list);
  add_pool_layouts_and_values(list);
  add_odd_pools(list);
  if (list->cuda) add_cuda_pools(list);
}

void visit_cases(effort effort, bool cuda, case_visitor visit, void *context) {
  list list = {.effort = effort, .cuda = cuda, .visit = visit, .context = context};
  for (op_kind op = 0; op < OP_COUNT; op++)
    for (int direction = 0; direction < 2; direction++)
      for (int dtype = 0; dtype < DTYPES; dtype++) {
        list.common.problem = (problem){.op = op,
                                        .direction = (onepass_direction)direction,
                                        .dtype = dtype_at(dtype),
                                        .weight_dtype = dtype_at(dtype)};
        (op == OP_AVG_POOL1D ? add_pools : add_norms)(&list);
      }
}
