#include "buffers.h"
#include "check_list.h"

/* Fill in the pooled sizes and add, unless the window does not fit into the input. */
static void add_pool(list *list, check_case check_case) {
  if (set_pooled(&check_case.problem) == ONEPASS_OK) add_case(list, check_case);
}

/* ---- Windows ---- */

typedef struct window {
  int64_t kernel, stride, padding, dilation;
} window;

/* Along one axis; what the operator does not take is left out. */
static void set_window(check_case *check_case, int axis, window window) {
  problem *problem = &check_case->problem;
  problem->pool.kernel[axis] = window.kernel;
  problem->pool.stride[axis] = window.stride;
  problem->pool.padding[axis] = takes_padding(problem->op) ? window.padding : 0;
  problem->pool.dilation[axis] = takes_dilation(problem->op) ? window.dilation : 0;
}

static void set_windows(check_case *check_case, window window) {
  for (int a = 0; a < check_case->problem.op->spatial; a++) set_window(check_case, a, window);
}

/* What is not along an axis, from random bits. */
static void set_flags(check_case *check_case, uint64_t bits) {
  problem *problem = &check_case->problem;
  bool average = problem->op->pool == ONEPASS_AVG_POOL;
  problem->pool.ceil_mode = bits & 1;
  problem->pool.count_include_pad = average && (bits & 2) == 0;
  if (average && (bits >> 2 & 7) == 7) problem->pool.divisor = 5;
  const double powers[] = {2, 2, 3, 1, 2, 1.5, 2, 0.5};
  if (problem->op->pool == ONEPASS_LP_POOL) problem->pool.p = powers[bits >> 5 & 7];
  bool forward = problem->direction == ONEPASS_FORWARD;
  if (forward && (bits >> 8 & 3) == 0) problem->roles &= ~ROLE_BIT(INDICES);
}

/* The shapes that windows are tried on, by the number of pooled axes. */
enum { LISTED_SHAPES = 10 };
static const shape_row pool_shapes[POOL_AXES][LISTED_SHAPES] = {{{3, {2, 3, 64}},
                                                                 {2, {3, 129}},
                                                                 {3, {1, 2, 255}},
                                                                 {2, {2, 67}},
                                                                 {3, {3, 1, 7}},
                                                                 {2, {1, 1}},
                                                                 {3, {2, 40, 17}},
                                                                 {3, {3, 1, 1031}},
                                                                 {3, {2, 2, 4097}},
                                                                 {2, {300, 9}}},
                                                                {{4, {2, 3, 8, 8}},
                                                                 {3, {2, 7, 9}},
                                                                 {4, {1, 2, 33, 17}},
                                                                 {4, {1, 1, 5, 65}},
                                                                 {4, {2, 20, 7, 7}},
                                                                 {3, {3, 31, 31}},
                                                                 {4, {1, 2, 1, 12}},
                                                                 {4, {2, 1, 129, 3}},
                                                                 {4, {1, 3, 56, 57}},
                                                                 {4, {1, 1, 9, 1025}}},
                                                                {{5, {1, 2, 4, 5, 6}},
                                                                 {4, {2, 3, 7, 5}},
                                                                 {5, {2, 1, 8, 8, 8}},
                                                                 {5, {1, 1, 3, 17, 33}},
                                                                 {4, {3, 1, 4, 9}},
                                                                 {5, {1, 9, 5, 5, 5}},
                                                                 {5, {2, 2, 6, 1, 7}},
                                                                 {5, {1, 2, 9, 14, 14}},
                                                                 {4, {1, 16, 16, 17}},
                                                                 {5, {1, 1, 5, 6, 129}}}};

/* What networks have. */
static void add_usual_windows(list *list) {
  static const window windows[] = {{2, 2, 0, 1}, {3, 2, 1, 1}, {3, 1, 1, 1}, {1, 1, 0, 1},
                                   {5, 1, 2, 1}, {3, 3, 0, 1}, {7, 2, 3, 1}, {4, 4, 0, 1},
                                   {2, 1, 0, 1}, {3, 2, 0, 2}, {2, 3, 1, 3}};
  int spatial = list->common.problem.op->spatial;
  const int shape_counts[] = {2, 6, LISTED_SHAPES};
  for (int i = 0; i < COUNT(windows); i++)
    for (int j = 0; j < shape_counts[list->effort]; j++) {
      int chosen = list->effort == EFFORT_FULL ? j : (3 * i + j) % LISTED_SHAPES;
      check_case check_case = with_shape(list, &pool_shapes[spatial - 1][chosen]);
      set_windows(&check_case, windows[i]);
      set_flags(&check_case, random_bits(4, (uint64_t)list->number));
      add_pool(list, check_case);
    }
}

/* Each axis has a window of its own. */
static void add_mixed_windows(list *list) {
  static const int64_t kernels[] = {1, 2, 3, 4, 5, 7, 8, 11};
  int spatial = list->common.problem.op->spatial;
  const int counts[] = {2, 8, 40};
  for (int i = 0; i < LISTED_SHAPES; i++)
    for (int j = 0; j < counts[list->effort]; j++) {
      check_case check_case = with_shape(list, &pool_shapes[spatial - 1][i]);
      for (int a = 0; a < spatial; a++) {
        uint64_t bits = random_bits(5 + (uint64_t)a, (uint64_t)(i * 64 + j));
        int64_t length = check_case.problem.shape[check_case.problem.ndim - spatial + a];
        int64_t kernel = kernels[bits & (spatial == 3 ? 3 : 7)]; /* all of them are multiplied */
        if (kernel > length) kernel = length;
        const int64_t strides[] = {1, 2, 3, kernel}, paddings[] = {0, kernel / 2, kernel / 4, 0};
        const int64_t dilations[] = {1, 1, 2, 3};
        set_window(&check_case, a,
                   (window){kernel, strides[bits >> 3 & 3], paddings[bits >> 5 & 3],
                            dilations[bits >> 7 & 3]});
      }
      set_flags(&check_case, random_bits(4, (uint64_t)list->number));
      add_pool(list, check_case);
    }
}

/* Every layout and all kinds of values. */
static void add_pool_layouts_and_values(list *list) {
  static const window windows[] = {{3, 1, 1, 1}, {8, 1, 4, 1}, {4, 4, 0, 1},
                                   {5, 7, 2, 1}, {2, 2, 0, 1}, {3, 2, 1, 2}};
  static const shape_row shapes[POOL_AXES][3] = {
      {{3, {3, 4, 65}}, {2, {5, 129}}, {3, {2, 33, 40}}},
      {{4, {3, 4, 9, 11}}, {3, {5, 8, 17}}, {4, {2, 17, 10, 8}}},
      {{5, {3, 2, 8, 9, 8}}, {4, {3, 8, 8, 11}}, {5, {2, 9, 8, 8, 10}}}};
  int spatial = list->common.problem.op->spatial;
  int window_count = list->effort == EFFORT_QUICK ? 1 : COUNT(windows);
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < window_count; j++) {
      check_case check_case = with_shape(list, &shapes[spatial - 1][i]);
      set_windows(&check_case, windows[(i + j) % COUNT(windows)]);
      if (spatial == 3) set_windows(&check_case, windows[(2 * i + j) % 3 + 3]);
      for (layout layout = LAYOUT_OFFSET; layout < LAYOUTS; layout++) {
        check_case.layout = layout;
        set_flags(&check_case, random_bits(4, (uint64_t)list->number));
        add_pool(list, check_case);
      }
      check_case.layout = LAYOUT_COMPACT;
      for (values values = VALUES_OFFSET; values < VALUES_KINDS; values++) {
        check_case.values = values;
        set_flags(&check_case, random_bits(4, (uint64_t)list->number));
        add_pool(list, check_case);
      }
    }
}

static void add_empty_pools(list *list) {
  static const shape_row shapes[POOL_AXES][3] = {
      {{3, {0, 3, 10}}, {3, {2, 0, 10}}, {2, {0, 10}}},
      {{4, {0, 3, 5, 6}}, {4, {2, 0, 5, 6}}, {3, {0, 5, 6}}},
      {{5, {0, 3, 5, 6, 4}}, {5, {2, 0, 5, 6, 4}}, {4, {0, 5, 6, 4}}}};
  int spatial = list->common.problem.op->spatial;
  for (int i = 0; i < 3; i++) {
    check_case check_case = with_shape(list, &shapes[spatial - 1][i]);
    set_windows(&check_case, (window){3, 2, 1, 1});
    set_flags(&check_case, 0);
    add_pool(list, check_case);
  }
}

/* ---- Along one axis: every kernel, stride and padding ---- */

/* One window on lengths that end before, on and after a window. */
static void add_line_window(list *list, window window, unsigned flags) {
  static const shape_row shapes[] = {{3, {2, 3, 64}},   {2, {3, 129}}, {3, {1, 2, 255}},
                                     {3, {3, 1, 1031}}, {2, {2, 67}},  {3, {2, 2, 4097}}};
  const int shape_counts[] = {1, 2, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++) {
    uint64_t chosen = random_bits(2, (uint64_t)list->number) % 5;
    int index = list->effort == EFFORT_FULL ? i : (int)((chosen + (uint64_t)i) % 5);
    check_case check_case = with_shape(list, &shapes[index]);
    set_windows(&check_case, window);
    set_flags(&check_case, flags);
    add_pool(list, check_case);
  }
}

static void add_line_windows(list *list) {
  static const int64_t kernels[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 64};
  int padding_count = takes_padding(list->common.problem.op) ? 3 : 1;
  for (int i = 0; i < COUNT(kernels); i++) {
    int64_t kernel = kernels[i];
    const int64_t strides[] = {1, 2, 3, 5, kernel, kernel + 3};
    const int64_t paddings[] = {0, kernel / 2, kernel / 4};
    for (int j = 0; j < COUNT(strides); j++)
      for (int k = 0; k < padding_count; k++)
        for (unsigned flags = 0; flags < 4; flags++) {
          /* quick: one padding and one pair of flags for each kernel and stride */
          bool one_of_flags = flags == (unsigned)(i + 3 * j + k) % 4;
          bool one_of_all = one_of_flags && k == (i + j) % padding_count;
          bool all = list->effort == EFFORT_FULL || list->common.problem.op->is_main;
          if (list->effort == EFFORT_QUICK ? one_of_all : all || one_of_flags)
            add_line_window(list, (window){kernel, strides[j], paddings[k], 1}, flags | 256);
        }
  }
}

static void add_line_lengths(list *list) {
  static const int64_t lengths[] = {1,   2,   3,    7,    31,   32,   33,   63,   65,
                                    127, 128, 1023, 1025, 4095, 4096, 8191, 65535};
  for (int i = 0; i < COUNT(lengths); i++) {
    shape_row row = {3, {1, i % 2 + 1, lengths[i]}};
    check_case check_case = with_shape(list, &row);
    int64_t kernel = lengths[i] < 8 ? lengths[i] : 8;
    set_windows(&check_case, (window){kernel, i % 3 ? 1 : 2, kernel / 2, 1});
    set_flags(&check_case, (unsigned)i % 4 | 256);
    add_pool(list, check_case);
  }
}

/* Many lines, and long ones. */
static void add_large_lines(list *list) {
  static const shape_row shapes[] = {
      {3, {300, 7, 16}},   {2, {3000, 9}},          {2, {2, 200003}},    {3, {8, 16, 65536}},
      {3, {8, 52, 65536}}, {2, {1, (1 << 22) + 3}}, {3, {20000, 3, 501}}};
  const int counts[] = {1, 3, COUNT(shapes)};
  for (int i = 0; i < counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &shapes[i]);
    set_windows(&check_case, (window){8, 1, 4, 1});
    set_flags(&check_case, (unsigned)i % 4);
    add_pool(list, check_case);
    set_windows(&check_case, (window){3, 2, 1, 1});
    set_flags(&check_case, (unsigned)(i + 1) % 4 | 256);
    add_pool(list, check_case);
  }
}

static void add_lines(list *list) {
  add_line_windows(list);
  add_line_lengths(list);
  add_large_lines(list);
}

static void add_large_planes(list *list) {
  static const shape_row shapes[POOL_AXES][4] = {{{0, {0}}},
                                                 {{4, {2, 16, 56, 56}},
                                                  {4, {1, 3, 224, 225}},
                                                  {4, {8, 64, 112, 112}},
                                                  {4, {1, 2, 2049, 1023}}},
                                                 {{5, {1, 4, 16, 28, 28}},
                                                  {5, {1, 1, 33, 65, 65}},
                                                  {5, {2, 16, 32, 64, 64}},
                                                  {5, {1, 1, 129, 128, 130}}}};
  const int counts[] = {0, 2, 4};
  int spatial = list->common.problem.op->spatial;
  for (int i = 0; i < counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &shapes[spatial - 1][i]);
    set_windows(&check_case, i % 2 ? (window){2, 2, 0, 1} : (window){3, 2, 1, 1});
    set_flags(&check_case, 256);
    add_pool(list, check_case);
  }
}

/* ---- Adaptive ---- */

static void set_output(check_case *check_case, int axis, uint64_t choice) {
  problem *problem = &check_case->problem;
  int64_t length = problem->shape[problem->ndim - problem->op->spatial + axis];
  const int64_t outputs[] = {1, 2, 3, 7, length, length + 3, length > 1 ? length / 2 : 1, 5};
  problem->pooled[axis] = outputs[choice & 7];
}

static void set_outputs(check_case *check_case, uint64_t bits) {
  for (int a = 0; a < check_case->problem.op->spatial; a++)
    set_output(check_case, a, bits >> (3 * a));
  bool forward = check_case->problem.direction == ONEPASS_FORWARD;
  if (forward && (bits >> 16 & 3) == 0) check_case->problem.roles &= ~ROLE_BIT(INDICES);
}

static void add_adaptive_shapes(list *list) {
  int spatial = list->common.problem.op->spatial;
  const int counts[] = {3, 10, 40};
  for (int i = 0; i < LISTED_SHAPES; i++)
    for (int j = 0; j < counts[list->effort]; j++) {
      check_case check_case = with_shape(list, &pool_shapes[spatial - 1][i]);
      set_outputs(&check_case, random_bits(6, (uint64_t)list->number));
      add_case(list, check_case);
    }
}

static void add_adaptive_layouts_and_values(list *list) {
  int spatial = list->common.problem.op->spatial;
  const int counts[] = {2, 5, LISTED_SHAPES};
  for (int i = 0; i < counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &pool_shapes[spatial - 1][i]);
    for (layout layout = LAYOUT_OFFSET; layout < LAYOUTS; layout++) {
      check_case.layout = layout;
      set_outputs(&check_case, random_bits(6, (uint64_t)list->number));
      add_case(list, check_case);
    }
    check_case.layout = LAYOUT_COMPACT;
    for (values values = VALUES_OFFSET; values < VALUES_KINDS; values++) {
      check_case.values = values;
      set_outputs(&check_case, random_bits(6, (uint64_t)list->number));
      add_case(list, check_case);
    }
  }
}

/* No batches, and a pooling to nothing. */
static void add_empty_adaptive(list *list) {
  int spatial = list->common.problem.op->spatial;
  check_case check_case = with_shape(list, &pool_shapes[spatial - 1][0]);
  set_outputs(&check_case, 0);
  check_case.problem.pooled[spatial - 1] = 0;
  add_case(list, check_case);
  check_case.problem.pooled[spatial - 1] = 2;
  check_case.problem.shape[0] = 0;
  add_case(list, check_case);
}

/* ---- Along one axis on a GPU ---- */

static void add_cuda_lines(list *list) {
  static const window windows[] = {{8, 1, 4, 1}, {3, 2, 1, 1}, {2, 2, 0, 1}, {64, 1, 32, 1}};
  for (int i = 0; i < CUDA_LENGTHS; i++)
    for (int form = 0; form < CUDA_FORMS; form++) {
      bool turn = form == i % CUDA_FORMS;
      if (list->effort == EFFORT_QUICK && !(turn && (is_f32(list) || i % 3 == 0))) continue;
      if (list->effort == EFFORT_NORMAL && !(is_f32(list) || turn)) continue;
      shape_row row = {2, {form + 1, cuda_lengths[i]}};
      check_case check_case = with_shape(list, &row);
      if (form == 1) check_case.layout = LAYOUT_OFFSET;
      set_windows(&check_case, windows[(i + form) % COUNT(windows)]);
      set_flags(&check_case, (unsigned)(i + form) % 4 | 256);
      add_pool(list, check_case);
    }
}

/* Windows that are wider than what a block would like to hold, and very many lines. */
static void add_cuda_windows(list *list) {
  static const window windows[] = {{129, 1, 64, 1},       {1000, 7, 0, 1},
                                   {1000, 1, 500, 1},     {300, 500, 150, 1},
                                   {5000, 4999, 2500, 1}, {16385, 512, 8192, 1}};
  static const shape_row shapes[] = {{2, {2, 16385}}, {3, {3, 2, 20011}}};
  static const shape_row lines[] = {{2, {4099, 65}}, {3, {3, 700, 1025}}, {2, {100003, 9}}};
  const int counts[] = {2, COUNT(windows), COUNT(windows)};
  const int line_counts[] = {1, 2, COUNT(lines)};
  if (list->effort != EFFORT_FULL && list->common.problem.dtype.bits == 64) return;
  for (int i = 0; i < counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &shapes[i % COUNT(shapes)]);
    set_windows(&check_case, windows[i]);
    set_flags(&check_case, (unsigned)i % 4 | 256);
    add_pool(list, check_case);
  }
  for (int i = 0; i < line_counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &lines[i]);
    set_windows(&check_case, (window){8, 1, 4, 1});
    set_flags(&check_case, (unsigned)i % 4 | 256);
    add_pool(list, check_case);
  }
}

/* ---- All ---- */

static void add_windowed(list *list) {
  bool lines = list->common.problem.op->spatial == 1;
  add_usual_windows(list);
  add_mixed_windows(list);
  add_pool_layouts_and_values(list);
  add_empty_pools(list);
  (lines ? add_lines : add_large_planes)(list);
  if (list->cuda && lines) {
    add_cuda_lines(list);
    add_cuda_windows(list);
  }
}

static void add_adaptive(list *list) {
  add_adaptive_shapes(list);
  add_adaptive_layouts_and_values(list);
  add_empty_adaptive(list);
}

void add_pool_cases(list *list) {
  (list->common.problem.op->adaptive ? add_adaptive : add_windowed)(list);
}
