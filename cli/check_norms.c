#include "buffers.h"
#include "check_list.h"

/* ---- Norms ---- */

/* Leave roles out of the call; those it does not have do not matter. */
static void leave_out(problem *problem, unsigned roles) { problem->roles &= ~roles; }

static void set_l1_variant(problem *problem, uint64_t bits) {
  problem->norm.reduction = bits & 1 ? ONEPASS_SUM : ONEPASS_MEAN;
  problem->norm.clamp = bits >> 2 & 1;
  /* near the mean of |x|, so that some rows are clamped and some are not */
  problem->norm.eps = bits & 2 ? (problem->norm.clamp ? 0.8 : 1e-3) : 0;
}

static void set_l2_variant(problem *problem, uint64_t bits) {
  bool forward = problem->direction == ONEPASS_FORWARD;
  if (forward && (bits & 1)) leave_out(problem, ROLE_BIT(RSTD));
  problem->keep_axes = (bits & 4) == 0;
  if (bits & 2) problem->norm.eps = problem->norm.clamp ? 3 : 1e-3;
}

/* Sums and running statistics, where the operator may have them. */
static void set_fusions(problem *problem, uint64_t bits) {
  bool forward = problem->direction == ONEPASS_FORWARD;
  unsigned possible = problem->op->variants;
  if ((bits >> 8 & 3) == 0) problem->roles |= possible & ROLE_BIT(forward ? RESIDUAL : DSUM);
  if ((bits >> 8 & 7) == 0 && forward) problem->roles |= possible & ROLE_BIT(SUM);
  if ((bits >> 10 & 3) == 0) leave_out(problem, ROLE_BIT(forward ? SUM : DSUM));
  bool running = (possible & RUNNING_ROLES) && problem->shape[1] > 0 && (bits >> 12 & 3);
  if (running && forward) problem->roles |= RUNNING_ROLES;
  if (running) problem->norm.use_running = (bits >> 12 & 3) == 3;
  if (running && !problem->norm.use_running) problem->norm.momentum = 0.1;
  const onepass_activation activations[16] = {
      [12] = ONEPASS_RELU, ONEPASS_GELU, ONEPASS_GELU_TANH, ONEPASS_SILU};
  set_activation(problem, activations[bits >> 4 & 15]);
}

static void set_groups(problem *problem, uint64_t bits) {
  int64_t channels = problem->shape[1];
  if (!takes_groups(problem->op) || channels == 0) return;
  int64_t largest = channels > 1 ? channels / 2 : 1;
  while (channels % largest) largest--;
  const int64_t choices[] = {1, channels, largest, problem->norm.groups};
  problem->norm.groups = choices[bits >> 14 & 3];
}

static void set_weighted_variant(check_case *check_case, uint64_t bits) {
  problem *problem = &check_case->problem;
  bool forward = problem->direction == ONEPASS_FORWARD;
  if (bits & 1) leave_out(problem, ROLE_BIT(WEIGHT) | ROLE_BIT(DWEIGHT));
  if (bits & 2) leave_out(problem, ROLE_BIT(BIAS) | ROLE_BIT(DBIAS));
  if (forward && (bits & 4)) leave_out(problem, ROLE_BIT(MEAN) | ROLE_BIT(RSTD));
  problem->keep_axes = (bits & 5) == 0;
  problem->norm.eps = check_case->values == VALUES_TINY ? 0 : bits & 4 ? 1e-3 : 1e-5;
  if (problem->dtype.bits == 16 && (bits & 8)) problem->weight_dtype = ONEPASS_F32;
  set_fusions(problem, bits);
  if (weights_by_channel(problem->op)) set_groups(problem, bits);
}

/* The options of a norm, from random bits. The lowest four have the most to say. */
enum { VARIANTS = 16 };

static void set_variant(check_case *check_case, uint64_t bits) {
  problem *problem = &check_case->problem;
  bool room = problem->norm.axis + 2 <= problem->ndim;
  if (problem->op->rows == ROWS_ALONG_AXIS && room && (bits >> 3 & 3) == 3) problem->norm.axes = 2;
  if (problem->op->divisor == BY_MAGNITUDE)
    set_l1_variant(problem, bits);
  else if (problem->op->divisor == BY_LENGTH)
    set_l2_variant(problem, bits);
  else
    set_weighted_variant(check_case, bits);
  if (check_case->in_place == SEPARATE) return;
  bool both = has_role(problem, in_place_output(check_case->in_place)) &&
              has_role(problem, in_place_input(check_case->in_place));
  if (!both) check_case->in_place = SEPARATE;
}

/* A norm in some of its variants: every one in a full check, otherwise a few that change from case
 * to case. */
static void add_norm(list *list, check_case check_case) {
  const int counts[] = {1, 3, VARIANTS};
  for (int i = 0; i < counts[list->effort]; i++) {
    struct check_case variant = check_case;
    uint64_t bits = random_bits(1, (uint64_t)list->number);
    if (list->effort == EFFORT_FULL) bits = (bits & ~(uint64_t)(VARIANTS - 1)) | (uint64_t)i;
    set_variant(&variant, bits);
    add_case(list, variant);
  }
}

/* In one variant. */
static void add_one_norm(list *list, check_case check_case) {
  set_variant(&check_case, random_bits(3, (uint64_t)list->number));
  add_case(list, check_case);
}

/* How many axes make a difference. */
static int32_t axes_of(const list *list, const shape_row *row) {
  return takes_axis(list->common.problem.op) ? row->ndim : 1;
}

/* ---- Rows along axes ---- */

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
      set_axis(&check_case.problem, 1);
      add_norm(list, check_case);
    }
}

/* Every axis, or every number of last axes. */
static void add_axes(list *list) {
  static const shape_row shapes[] = {
      {1, {37}},          {3, {2, 3, 5}},    {3, {4, 33, 7}}, {4, {3, 2, 17, 9}},   {3, {1, 1, 1}},
      {4, {2, 5, 8, 8}},  {3, {65, 3, 129}}, {2, {300, 20}},  {5, {2, 2, 3, 2, 5}}, {3, {7, 1, 64}},
      {3, {3, 1025, 40}}, {2, {4097, 6}},    {2, {1000, 3}},  {2, {200, 16}},       {2, {129, 1}}};
  const int shape_counts[] = {4, COUNT(shapes), COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (int32_t axis = 0; axis < axes_of(list, &shapes[i]); axis++) {
      check_case check_case = with_shape(list, &shapes[i]);
      set_axis(&check_case.problem, axis);
      add_norm(list, check_case);
    }
}

static void add_norm_layouts(list *list) {
  static const shape_row shapes[] = {{3, {3, 5, 33}}, {2, {6, 129}}, {4, {2, 3, 4, 9}},
                                     {2, {67, 12}},   {2, {40, 64}}, {3, {2, 70, 130}},
                                     {2, {3, 4099}}};
  const int shape_counts[] = {3, 6, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (layout layout = LAYOUT_OFFSET; layout < LAYOUTS; layout++)
      for (int32_t axis = 0; axis < axes_of(list, &shapes[i]); axis++) {
        if (list->effort == EFFORT_QUICK && (i + (int)layout + axis) % 2) continue;
        check_case check_case = with_shape(list, &shapes[i]);
        set_axis(&check_case.problem, axis);
        check_case.layout = layout;
        add_norm(list, check_case);
      }
}

static void add_in_place(list *list) {
  static const shape_row shapes[] = {
      {2, {5, 65}}, {3, {3, 8, 40}}, {2, {131, 7}}, {2, {7, 1025}}, {2, {2, 70001}}};
  static const layout layouts[] = {LAYOUT_COMPACT, LAYOUT_SLICED, LAYOUT_OFFSET};
  const int shape_counts[] = {3, 4, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (int j = 0; j < COUNT(layouts); j++)
      for (in_place in_place = Y_OVER_X; in_place < IN_PLACE_KINDS; in_place++) {
        check_case check_case = with_shape(list, &shapes[i]);
        if (!has_role(&check_case.problem, in_place_output(in_place)) ||
            !has_role(&check_case.problem, in_place_input(in_place)))
          continue;
        set_axis(&check_case.problem, list->effort == EFFORT_QUICK ? 1 : (i + j) % 2);
        check_case.layout = layouts[j];
        check_case.in_place = in_place;
        add_norm(list, check_case);
      }
}

static void add_norm_values(list *list) {
  static const shape_row shapes[] = {{2, {7, 33}},   {3, {4, 65, 5}}, {2, {70, 6}},
                                     {2, {3, 1025}}, {2, {9, 4096}},  {3, {2, 129, 64}}};
  const int shape_counts[] = {3, 5, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (values values = VALUES_OFFSET; values < VALUES_KINDS; values++) {
      check_case check_case = with_shape(list, &shapes[i]);
      set_axis(&check_case.problem, 1);
      check_case.values = values;
      add_norm(list, check_case);
    }
}

static void add_empty_norms(list *list) {
  static const shape_row shapes[] = {
      {1, {0}}, {2, {0, 5}}, {2, {4, 0}}, {3, {2, 0, 3}}, {3, {2, 3, 0}}};
  for (int i = 0; i < COUNT(shapes); i++) {
    check_case check_case = with_shape(list, &shapes[i]);
    set_axis(&check_case.problem, shapes[i].ndim - 1);
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
  const int shape_counts[] = {0, list->common.problem.op->is_main ? 4 : 2, COUNT(shapes)};
  for (int i = 0; i < shape_counts[list->effort]; i++)
    for (int32_t axis = 0; axis < axes_of(list, &shapes[i]); axis++) {
      bool one_row = axis == 0 && list->common.problem.op->rows != ROWS_ALONG_AXIS;
      if (shapes[i].sizes[0] * shapes[i].sizes[1] > 1 << 24 && one_row) continue;
      check_case check_case = with_shape(list, &shapes[i]);
      set_axis(&check_case.problem, axis);
      set_variant(&check_case, (uint64_t)(i & 1 ? 2 : 0));
      add_case(list, check_case);
    }
}

/* ---- Norms on a GPU ---- */

/* A row length as many rows, as misaligned rows, in place, and as one row far from zero. */
static void add_cuda_length(list *list, int64_t length, int form) {
  int64_t many = (1 << 18) / length;
  const int64_t rows[CUDA_FORMS] = {many < 1 ? 1 : many < 4099 ? many : 4099, 3, 2, 1};
  shape_row row = {2, {rows[form], length}};
  check_case check_case = with_shape(list, &row);
  set_axis(&check_case.problem, 1);
  if (form == 1) check_case.layout = LAYOUT_OFFSET;
  bool backward = check_case.problem.direction == ONEPASS_BACKWARD;
  if (form == 2) check_case.in_place = !backward ? Y_OVER_X : length % 2 ? DX_OVER_DY : DX_OVER_X;
  if (form == 3) check_case.values = VALUES_OFFSET;
  add_one_norm(list, check_case);
}

static void add_cuda_lengths(list *list) {
  for (int i = 0; i < CUDA_LENGTHS; i++)
    for (int form = 0; form < CUDA_FORMS; form++) {
      bool turn = form == i % CUDA_FORMS, next_turn = form == (i + 2) % CUDA_FORMS;
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
    set_axis(&check_case.problem, 1);
    set_variant(&check_case, 0);
    add_case(list, check_case);
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
    set_axis(&check_case.problem, 1);
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
      set_axis(&check_case.problem, 1);
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

static void add_axis_norms(list *list) {
  add_lengths(list);
  add_axes(list);
  add_norm_layouts(list);
  add_in_place(list);
  add_norm_values(list);
  add_empty_norms(list);
  add_large_norms(list);
  if (list->cuda) add_cuda_norms(list);
}

/* ---- Channels: x is (N, C, ...) ---- */

static const shape_row channel_shapes[] = {
    {2, {3, 5}},          {3, {2, 6, 7}},         {4, {2, 8, 5, 3}},  {2, {33, 31}},
    {3, {1, 3, 1025}},    {4, {3, 12, 4, 4}},     {3, {5, 1, 33}},    {5, {2, 4, 2, 3, 3}},
    {4, {2, 32, 7, 7}},   {2, {1, 64}},           {3, {1, 7, 1}},     {3, {4, 64, 65}},
    {4, {1, 2, 33, 33}},  {3, {17, 6, 129}},      {2, {64, 1000}},    {4, {2, 256, 3, 3}},
    {3, {2, 3, 4097}},    {4, {1, 96, 14, 14}},   {3, {3, 10, 2049}}, {3, {1, 2, 65535}},
    {4, {8, 64, 28, 28}}, {3, {2, 16, 30000}},    {2, {4096, 128}},   {4, {4, 512, 16, 16}},
    {3, {1, 1, 1000003}}, {4, {16, 32, 112, 112}}};

static void add_channel_shapes(list *list) {
  const int counts[] = {20, 22, COUNT(channel_shapes)}, small = 19;
  for (int i = 0; i < counts[list->effort]; i++) {
    check_case check_case = with_shape(list, &channel_shapes[i]);
    (i < small ? add_norm : add_one_norm)(list, check_case);
  }
}

static void add_channel_layouts(list *list) {
  static const shape_row shapes[] = {{4, {2, 6, 5, 7}},  {3, {3, 4, 33}},      {2, {6, 12}},
                                     {4, {2, 32, 9, 9}}, {5, {2, 4, 3, 2, 5}}, {3, {2, 3, 2049}}};
  const int counts[] = {4, COUNT(shapes), COUNT(shapes)};
  for (int i = 0; i < counts[list->effort]; i++)
    for (layout layout = LAYOUT_OFFSET; layout < LAYOUTS; layout++) {
      check_case check_case = with_shape(list, &shapes[i]);
      check_case.layout = layout;
      add_norm(list, check_case);
    }
}

static void add_channel_in_place(list *list) {
  static const shape_row shapes[] = {{4, {2, 6, 5, 7}}, {3, {3, 8, 129}}};
  static const layout layouts[] = {LAYOUT_COMPACT, LAYOUT_CHANNELS_LAST, LAYOUT_OFFSET};
  for (int i = 0; i < COUNT(shapes); i++)
    for (int j = 0; j < COUNT(layouts); j++)
      for (in_place in_place = Y_OVER_X; in_place < IN_PLACE_KINDS; in_place++) {
        check_case check_case = with_shape(list, &shapes[i]);
        unsigned roles = check_case.problem.roles | check_case.problem.op->variants;
        if (!(roles >> in_place_output(in_place) & roles >> in_place_input(in_place) & 1)) continue;
        check_case.layout = layouts[j];
        check_case.in_place = in_place;
        add_norm(list, check_case);
      }
}

static void add_channel_values(list *list) {
  static const shape_row shapes[] = {{4, {3, 6, 5, 7}}, {3, {4, 8, 129}}, {2, {65, 6}}};
  for (int i = 0; i < COUNT(shapes); i++)
    for (values values = VALUES_OFFSET; values < VALUES_KINDS; values++) {
      check_case check_case = with_shape(list, &shapes[i]);
      check_case.values = values;
      add_norm(list, check_case);
    }
}

static void add_empty_channels(list *list) {
  static const shape_row shapes[] = {{2, {0, 4}}, {3, {2, 0, 3}}, {3, {2, 4, 0}}};
  for (int i = 0; i < COUNT(shapes); i++) add_norm(list, with_shape(list, &shapes[i]));
}

static void add_cuda_channels(list *list) {
  for (int i = 0; i < CUDA_LENGTHS; i++) {
    if (list->effort == EFFORT_QUICK && i % 3 && !is_f32(list)) continue;
    shape_row row = {3, {2, cuda_lengths[i] > 65536 ? 2 : 6, cuda_lengths[i]}};
    check_case check_case = with_shape(list, &row);
    if (i % 4 == 1) check_case.layout = LAYOUT_OFFSET;
    if (i % 4 == 3) check_case.layout = LAYOUT_CHANNELS_LAST;
    add_one_norm(list, check_case);
  }
}

static void add_channel_norms(list *list) {
  add_channel_shapes(list);
  add_channel_layouts(list);
  add_channel_in_place(list);
  add_channel_values(list);
  add_empty_channels(list);
  if (list->cuda) add_cuda_channels(list);
}

void add_norm_cases(list *list) {
  (weights_by_channel(list->common.problem.op) ? add_channel_norms : add_axis_norms)(list);
}
