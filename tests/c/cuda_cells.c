/*
 * group_norm and batch_norm on a GPU, with every option, layout and kernel on small shapes, against the
 * CPU's reference. Which of them go together is drawn by lot, always the same way.
 *
 *   cuda_cells [TYPE...]    f32 f64 f16 bf16; all of them when none is named
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdlib.h>

#include "gpu.h"

enum { TRIALS = 400 };

typedef enum arrangement {
  COMPACT,
  CHANNELS_LAST,
  SLICED,        /* some channels of a tensor with one more */
  SLICED_LAST,   /* the same with channels last */
  PITCHED,       /* a gap behind every cell */
  SPREAD,        /* every second element */
  BATCHES_INNER, /* batches behind channels */
  ARRANGEMENTS
} arrangement;
static const char *const arrangement_names[] = {
    "compact", "channels last", "sliced", "sliced last", "pitched", "spread", "batches inner"};

static const struct {
  int ndim;
  int64_t shape[4];
} shapes[] = {
    {4, {2, 6, 7, 7}},  {4, {3, 32, 5, 5}},   {3, {2, 4, 4999}},   {3, {1, 2, 70001}},
    {2, {37, 64}},      {2, {5, 30}},         {4, {2, 64, 8, 8}},  {4, {1, 3, 33, 31}},
    {3, {4, 16, 1}},    {3, {7, 5, 3}},       {4, {2, 320, 3, 3}}, {4, {1, 8, 64, 65}},
    {3, {1, 1, 9}},     {4, {2, 12, 24, 24}}, {3, {40, 24, 2}},    {3, {2, 128, 515}},
    {2, {1, 7}},        {2, {300, 8}},        {4, {8, 1, 4, 4}},   {3, {2, 2, 16384}},
    {3, {3, 4, 25600}},
};

typedef struct trial {
  onepass_norm norm;
  onepass_dtype dtype;
  arrangement arrangement;
  double offset;
  array *role[ROLES]; /* NULL where it is not used */
  int written[ROLES];
  int over[ROLES]; /* an output that lies where another role does; -1: none */
  char text[320];
} trial;

static uint64_t state;
static long runs[ONEPASS_CUDA_KERNEL_COUNT];

static int64_t draw(int64_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (int64_t)((state >> 20) % (uint64_t)below);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static int is_whole(int role) {
  return role == X || role == Y || role == DY || role == DX || role == RESIDUAL || role == SUM ||
         role == DSUM;
}

static void lay_out(arrangement how, int ndim, const int64_t *shape, int64_t *strides) {
  const int64_t channels = shape[1] + (how == SLICED || how == SLICED_LAST);
  int64_t step = how == SPREAD ? 2 : how == CHANNELS_LAST || how == SLICED_LAST ? channels : 1;
  for (int d = ndim - 1; d >= 2; d--) {
    strides[d] = step;
    step *= shape[d];
  }
  if (how == CHANNELS_LAST || how == SLICED_LAST) {
    strides[1] = 1;
    strides[0] = step;
  } else if (how == BATCHES_INNER) {
    strides[0] = step;
    strides[1] = step * shape[0];
  } else {
    strides[1] = step + (how == PITCHED);
    strides[0] = strides[1] * channels;
  }
}

static void make_array(trial *t, int role, const int64_t *shape, int ndim, onepass_dtype weights,
                       int64_t shift) {
  int64_t strides[4];
  if (is_whole(role)) {
    lay_out(t->arrangement, ndim, shape, strides);
    t->role[role] = array_new_strided(t->dtype, ndim, shape, strides, shift);
  } else if (role == MEAN || role == RSTD) {
    const int64_t of_groups[2] = {shape[0], t->norm.groups};
    const int grouped = t->norm.op == ONEPASS_GROUP_NORM;
    t->role[role] =
        array_new(dtype_of_stats(t->dtype), grouped ? 2 : 1, grouped ? of_groups : &shape[1]);
  } else {
    const int64_t step = 1 + draw(2);
    t->role[role] = array_new_strided(weights, 1, &shape[1], &step, draw(3));
  }
}

static void fill(trial *t) {
  for (int r = 0; r < ROLES; r++) {
    if (!t->role[r]) continue;
    const uint64_t seed = 1 + (uint64_t)draw(1 << 20);
    array_fill_random(t->role[r], seed, r == X || r == RUNNING_MEAN ? t->offset : 0.5, 1);
    for (int64_t i = 0; (r == RUNNING_VAR || r == RSTD) && i < t->role[r]->count; i++) {
      array_set(t->role[r], i, 0.3 + fabs(array_get(t->role[r], i)));
    }
  }
}

static onepass_tensors tensors_of(array *const *role) {
  call c = {.kind = L1_FORWARD};
  memcpy(c.role, role, sizeof c.role);
  return call_tensors(&c);
}

/* The same tensors, compact, outputs in f64, done by the reference. */
static void make_reference(const trial *t, array **reference) {
  const onepass_options options = {.reference = 1};
  for (int r = 0; r < ROLES; r++) {
    const array *a = t->role[r];
    reference[r] =
        a == NULL ? NULL : array_compact(a, t->written[r] ? ONEPASS_F64 : a->tensor.dtype);
  }
  const onepass_tensors tensors = tensors_of(reference);
  if (norm_once(&t->norm, &tensors, &options) != ONEPASS_OK) {
    fprintf(stderr, "%s: the reference failed: %s\n", t->text, onepass_last_message());
    exit(2);
  }
}

/* mean and rstd of x as a forward would save them. */
static void fill_saved(trial *t) {
  array *role[ROLES] = {0};
  trial forward = *t;
  forward.norm.direction = ONEPASS_FORWARD;
  forward.norm.activation = ONEPASS_NO_ACTIVATION;
  role[X] = array_compact(t->role[X], t->dtype);
  role[Y] = array_new(t->dtype, t->role[X]->tensor.ndim, t->role[X]->shape);
  role[MEAN] = array_new(ONEPASS_F64, t->role[MEAN]->tensor.ndim, t->role[MEAN]->shape);
  role[RSTD] = array_new(ONEPASS_F64, t->role[MEAN]->tensor.ndim, t->role[MEAN]->shape);
  const onepass_tensors tensors = tensors_of(role);
  EXPECT_OK(norm_once(&forward.norm, &tensors, &(onepass_options){.reference = 1}));
  array_copy_values(t->role[MEAN], role[MEAN]);
  array_copy_values(t->role[RSTD], role[RSTD]);
  for (int r = 0; r < ROLES; r++) array_free(role[r]);
}

/* ---- What is drawn --------------------------------------------------------------------------- */

static void draw_roles(const trial *t, int by_channel, int *used) {
  const int back = t->norm.direction == ONEPASS_BACKWARD;
  used[X] = 1;
  used[WEIGHT] = draw(4) != 0;
  if (back) {
    used[MEAN] = used[RSTD] = used[DY] = used[DX] = 1;
    used[DWEIGHT] = draw(4) != 0;
    used[DBIAS] = draw(4) != 0;
    used[DSUM] = draw(3) == 0;
    used[BIAS] = t->norm.activation && draw(3) != 0;
    return;
  }
  used[Y] = 1;
  used[BIAS] = draw(4) != 0;
  used[MEAN] = draw(3) != 0;
  used[RSTD] = draw(3) != 0;
  used[RESIDUAL] = draw(3) == 0;
  used[SUM] = used[RESIDUAL] && draw(3) != 0;
  used[RUNNING_MEAN] = t->norm.use_running || (by_channel && draw(2));
}

static void draw_in_place(trial *t) {
  static const int pairs[][2] = {{Y, X},  {Y, RESIDUAL}, {SUM, X},  {SUM, RESIDUAL},
                                 {DX, X}, {DX, DY},      {DX, DSUM}};
  const int64_t which = draw(14);
  for (int r = 0; r < ROLES; r++) t->over[r] = -1;
  if (which >= 7) return;
  const int out = pairs[which][0], in = pairs[which][1];
  if (t->role[out] && t->role[in]) t->over[out] = in;
}

static void draw_trial(trial *t, onepass_dtype dtype) {
  const int s = (int)draw(sizeof shapes / sizeof *shapes), ndim = shapes[s].ndim;
  const int64_t *shape = shapes[s].shape, channels = shape[1];
  int used[ROLES] = {0};
  *t = (trial){.dtype = dtype, .arrangement = (arrangement)draw(ARRANGEMENTS)};
  if (draw(2)) t->arrangement = (arrangement)draw(2); /* most are one of these */
  t->norm.op = draw(2) ? ONEPASS_GROUP_NORM : ONEPASS_BATCH_NORM;
  t->norm.direction = draw(2) ? ONEPASS_FORWARD : ONEPASS_BACKWARD;
  t->norm.eps = 1e-5;
  t->norm.activation = (onepass_activation)(draw(2) ? draw(5) : 0);
  t->offset = draw(4) ? 0.25 : 30;
  const int plain = draw(3) == 0; /* groups that can be taken as rows */
  if (plain) {
    t->norm.op = ONEPASS_GROUP_NORM;
    t->arrangement = COMPACT;
    t->norm.activation = ONEPASS_NO_ACTIVATION;
  }
  if (t->norm.op == ONEPASS_GROUP_NORM) {
    do {
      t->norm.groups = draw(3) ? 1 + draw(channels) : channels;
    } while (channels % t->norm.groups);
  }
  const int by_channel = t->norm.op == ONEPASS_BATCH_NORM || t->norm.groups == channels;
  t->norm.use_running = by_channel && !plain && draw(4) == 0;
  t->norm.momentum = by_channel && !t->norm.use_running ? 0.3 : 0;
  draw_roles(t, by_channel, used);
  if (plain) {
    used[RESIDUAL] = used[SUM] = used[DSUM] = used[RUNNING_MEAN] = used[DWEIGHT] = used[DBIAS] = 0;
    if (t->norm.direction == ONEPASS_BACKWARD) used[WEIGHT] = 0;
  }
  used[RUNNING_VAR] = used[RUNNING_MEAN];
  const onepass_dtype weights = dtype_size(dtype) == 2 && draw(2) ? ONEPASS_F32 : dtype;
  const int64_t shift = !plain && draw(3) == 0 ? draw(9) : 0, apart = !plain && draw(6) == 0;
  for (int r = 0; r < ROLES; r++) {
    if (used[r]) make_array(t, r, shape, ndim, weights, shift + (apart ? r % 3 : 0));
    t->written[r] = used[r] && (r == Y || r == SUM || r == DX || r == DWEIGHT || r == DBIAS);
  }
  if (t->norm.direction == ONEPASS_FORWARD) {
    t->written[MEAN] = used[MEAN];
    t->written[RSTD] = used[RSTD];
    t->written[RUNNING_MEAN] = t->written[RUNNING_VAR] = used[RUNNING_MEAN] && !t->norm.use_running;
  }
  if (apart) {
    for (int r = 0; r < ROLES; r++) t->over[r] = -1;
  } else {
    draw_in_place(t);
  }
  fill(t);
  if (t->norm.use_running && draw(2)) { /* one element, which is no other's business */
    array_set(t->role[X], draw(t->role[X]->count), draw(2) ? (double)INFINITY : -(double)INFINITY);
  }
  if (t->norm.direction == ONEPASS_BACKWARD && !t->norm.use_running) fill_saved(t);
  int length =
      snprintf(t->text, sizeof t->text,
               "%s %s of %s %lldx%lldx.., %s, groups %lld, running %d, activation %d, off %lld%s:",
               t->norm.op == ONEPASS_GROUP_NORM ? "group_norm" : "batch_norm",
               t->norm.direction == ONEPASS_BACKWARD ? "backward" : "forward", dtype_name(dtype),
               (long long)shape[0], (long long)shape[1], arrangement_names[t->arrangement],
               (long long)t->norm.groups, (int)t->norm.use_running, (int)t->norm.activation,
               (long long)shift, apart ? " and apart" : "");
  for (int r = 0; r < ROLES; r++) {
    if (!used[r]) continue;
    length += snprintf(t->text + length, sizeof t->text - (size_t)length, " %s%s", role_name[r],
                       t->over[r] >= 0 ? " (over another)" : "");
  }
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static double largest(const array *a, double otherwise) {
  double size = a ? 0 : otherwise;
  for (int64_t i = 0; a && i < a->count; i++) {
    const double value = fabs(array_get(a, i));
    if (isfinite(value) && value > size) size = value;
  }
  return size;
}

/* How large the terms of a result may be. */
static double size_of_terms(const trial *t, array *const *reference, int role) {
  const double x =
      largest(t->role[X], 0) + largest(t->role[RESIDUAL], 0) +
      (t->norm.use_running ? largest(t->role[RUNNING_MEAN], 0) + largest(t->role[MEAN], 0) : 0);
  const double weight = largest(t->role[WEIGHT], 1), bias = largest(t->role[BIAS], 0);
  const double dy = largest(t->role[DY], 0), spread = 1 / sqrt(t->norm.eps);
  const double rstd = reference[RSTD]          ? largest(reference[RSTD], 0)
                      : t->norm.use_running    ? 1 / sqrt(0.3)
                      : t->role[X]->count < 64 ? spread
                                               : 16;
  const double count = (double)t->role[X]->count;
  switch (role) {
    case Y:
      return 1.2 * (x * rstd * weight + bias);
    case MEAN:
    case RUNNING_MEAN:
      return x + largest(reference[role], 0);
    case RSTD:
      return rstd * (1 + x * rstd * x * rstd);
    case RUNNING_VAR:
      return x * x + largest(reference[role], 0);
    case DX:
      return 1.5 * dy * weight * rstd * (1 + x * rstd) * (1 + x * rstd) + largest(t->role[DSUM], 0);
    default: /* dweight and dbias. Doubles show that the saved mean is off, for all elements alike */
      return dy * (1 + x * rstd) * (t->dtype.bits == 64 ? count : sqrt(count) * 4);
  }
}

static double distance_of(const trial *t, array *const *reference, int role, const array *actual) {
  const onepass_dtype dtype = actual->tensor.dtype;
  const double unit = dtype_unit(dtype), sums_unit = dtype_unit(dtype_of_stats(dtype));
  /* The reference adds up in the plain order, which shows where results are doubles, too. */
  const double steps = 24 + (dtype.bits == 64 ? sqrt((double)t->role[X]->count) : 0);
  const double arithmetic = role == SUM ? 0 : steps * sums_unit * size_of_terms(t, reference, role);
  const double smallest = dtype.bits == 16 && dtype.code == 2 ? ldexp(1, -24) : 1e-300;
  array *rounded = array_compact(reference[role], dtype); /* what is too large is infinite */
  const double distance = array_distance(actual, rounded, arithmetic + smallest, 2.52 * unit);
  array_free(rounded);
  return distance;
}

/* ---- Running --------------------------------------------------------------------------------- */

typedef struct on_device {
  array arrays[ROLES];
  array *role[ROLES];
} on_device;

static void upload(const trial *t, on_device *d) {
  gpu_copy copies[ROLES];
  int count = 0;
  for (int r = 0; r < ROLES; r++) {
    if (!t->role[r] || t->over[r] >= 0) continue;
    const int is_input = !t->written[r] || r == RUNNING_MEAN || r == RUNNING_VAR;
    if (!is_input) array_repaint(t->role[r]);
    copies[count++] =
        (gpu_copy){d->arrays[r].tensor.data, t->role[r]->block, t->role[r]->block_size};
  }
  gpu_to_device(copies, count);
}

static void allocate(const trial *t, on_device *d) {
  memset(d, 0, sizeof *d);
  for (int pass = 0; pass < 2; pass++) {
    for (int r = 0; r < ROLES; r++) {
      if (!t->role[r] || (t->over[r] >= 0) != pass) continue;
      array *a = &d->arrays[r];
      *a = *t->role[r];
      a->tensor.shape = a->shape;
      a->tensor.strides = a->strides;
      a->tensor.device.type = ONEPASS_CUDA;
      a->tensor.data = pass ? d->arrays[t->over[r]].tensor.data : gpu_allocate(a->block_size);
      d->role[r] = a;
    }
  }
}

static void release(const trial *t, on_device *d) {
  for (int r = 0; r < ROLES; r++) {
    if (t->role[r] && t->over[r] < 0) gpu_free(d->arrays[r].tensor.data);
  }
}

/* The blocks of all arrays as the device has them; for free_blocks. */
static void download(const trial *t, const on_device *d, unsigned char **blocks) {
  gpu_copy copies[ROLES];
  int count = 0;
  for (int r = 0; r < ROLES; r++) {
    blocks[r] = NULL;
    if (!t->role[r]) continue;
    blocks[r] = malloc(t->role[r]->block_size);
    if (blocks[r] == NULL) exit(2);
    copies[count++] = (gpu_copy){d->arrays[r].tensor.data, blocks[r], t->role[r]->block_size};
  }
  gpu_to_host(copies, count);
}

static void free_blocks(unsigned char **blocks) {
  for (int r = 0; r < ROLES; r++) free(blocks[r]);
}

/* What is in a block, by itself, once nothing else has been written. */
static array *find_written(const trial *t, unsigned char *block, int role) {
  const array *host = t->role[role];
  array *copy =
      array_new_strided(host->tensor.dtype, host->tensor.ndim, host->shape, host->strides, 0);
  array view = *host;
  view.block = block;
  view.tensor.data = block;
  array_copy_values(copy, &view);
  EXPECT(t->over[role] >= 0 || array_guards_hold(&view), "%s: wrote outside %s", t->text,
         role_name[role]);
  int is_over = 0;
  for (int r = 0; r < ROLES; r++) is_over |= t->over[r] == role;
  EXPECT(t->written[role] || is_over || memcmp(block, host->block, host->block_size) == 0,
         "%s: wrote to %s", t->text, role_name[role]);
  return copy;
}

static void run_kernel(trial *t, on_device *d, array *const *reference, int kernel) {
  const onepass_options options = {.cuda_kernel = kernel};
  const onepass_tensors tensors = tensors_of(d->role);
  const onepass_buffers buffers = buffers_of(&tensors);
  onepass_plan *plan = NULL;
  const onepass_status status = onepass_plan_norm(&plan, &t->norm, &tensors, &options);
  if (kernel != ONEPASS_CUDA_BEST && status == ONEPASS_BAD_OPTION) return;
  EXPECT(status == ONEPASS_OK, "%s: %s", t->text, onepass_last_message());
  if (status != ONEPASS_OK) return;
  gpu_workspace workspace = gpu_workspace_new(plan);
  array *first[ROLES] = {0};
  for (int time = 0; time < 2; time++) { /* twice the same, whatever is in the workspace */
    gpu_workspace_scramble(&workspace, (uint64_t)time);
    upload(t, d);
    EXPECT_OK(onepass_run(plan, &buffers, workspace.address, workspace.size, NULL));
    unsigned char *blocks[ROLES];
    download(t, d, blocks);
    for (int r = 0; r < ROLES; r++) {
      if (!t->role[r]) continue;
      array *found = find_written(t, blocks[r], r);
      if (time == 0 && t->written[r]) {
        const double distance = distance_of(t, reference, r, found);
        EXPECT(distance <= 1, "%s, kernel %s: %s is %g times the bound off", t->text,
               gpu_kernel_name[kernel], role_name[r], distance);
        first[r] = found;
        continue;
      }
      EXPECT(!t->written[r] || array_same_bits(found, first[r]), "%s, kernel %s: %s differs",
             t->text, gpu_kernel_name[kernel], role_name[r]);
      array_free(found);
    }
    free_blocks(blocks);
  }
  EXPECT(gpu_workspace_guards_hold(&workspace), "%s: wrote outside the workspace", t->text);
  for (int r = 0; r < ROLES; r++) array_free(first[r]);
  gpu_workspace_free(&workspace);
  onepass_plan_destroy(plan);
  runs[kernel]++;
}

static void try_one(onepass_dtype dtype) {
  trial t;
  array *reference[ROLES];
  on_device d;
  draw_trial(&t, dtype);
  make_reference(&t, reference);
  allocate(&t, &d);
  for (int k = 0; k < ONEPASS_CUDA_KERNEL_COUNT; k++) run_kernel(&t, &d, reference, k);
  release(&t, &d);
  for (int r = 0; r < ROLES; r++) {
    array_free(t.role[r]);
    array_free(reference[r]);
  }
}

static int is_named(onepass_dtype dtype, int count, char **names) {
  for (int i = 0; i < count; i++) {
    if (strcmp(names[i], dtype_name(dtype)) == 0) return 1;
  }
  return count == 0;
}

int main(int count, char **names) {
  if (!gpu_open("cuda_cells")) return EXPECT_SKIPPED;
  const char *trials = getenv("ONEPASS_TEST_TRIALS");
  for (int d = 0; d < 4; d++) {
    if (!is_named(every_dtype[d], count - 1, names + 1)) continue;
    state = 88172645463325252u + (uint64_t)d;
    for (int i = 0; i < (trials ? atoi(trials) : TRIALS); i++) try_one(every_dtype[d]);
  }
  for (int k = 0; k < ONEPASS_CUDA_KERNEL_COUNT; k++) {
    if (runs[k]) printf("%-10s %ld runs\n", gpu_kernel_name[k], runs[k]);
  }
  gpu_close();
  return expect_report("cuda_cells");
}
