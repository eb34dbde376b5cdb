/*
 * Any bytes as a description: a status, never a crash. The bytes become a norm or a pool, options
 * and tensors, with small, huge, negative and missing values alike. A plan that is created and
 * whose tensors are small is also run, on buffers of exactly the size it needs, so that
 * AddressSanitizer sees a read or write outside them. Plans for a GPU, where there is one, are only
 * made.
 *
 * Most random shapes disagree, so that only the first check would ever be seen. A bit in the bytes
 * therefore makes the tensors fit x first; further bytes then break some fields.
 *
 * SPDX-License-Identifier: MIT
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onepass.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ROLES = sizeof(onepass_tensors) / sizeof(void *), SMALL = 16 * 1024 };
enum {
  X,
  WEIGHT,
  BIAS,
  Y,
  MEAN,
  RSTD,
  DY,
  DX,
  DWEIGHT,
  DBIAS,
  RESIDUAL,
  SUM,
  DSUM,
  RUNNING_MEAN,
  RUNNING_VAR,
  INDICES
};

static void require(int holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "promise broken: %s (\"%s\")\n", what, onepass_last_message());
  abort();
}

/* ---- Bytes into values: when they run out, zeros follow */

typedef struct source {
  const uint8_t *data;
  size_t size;
} source;

static uint8_t take_byte(source *s) {
  if (s->size == 0) return 0;
  s->size--;
  return *s->data++;
}

static int64_t take_int(source *s) {
  static const int64_t edges[] = {0,         -1,        INT64_MAX,     INT64_MIN,
                                  INT32_MAX, INT32_MIN, INT64_MAX / 2, INT64_MAX / 4 + 1};
  uint8_t kind = take_byte(s);
  uint64_t wide = 0;
  if (kind < 160) return kind % 16; /* mostly small, as shapes are */
  if (kind < 224) return (int64_t)(kind % 64) * 8 + take_byte(s) % 8;
  if (kind < 248) return edges[kind % 8];
  for (int i = 0; i < 8; i++) wide = wide << 8 | take_byte(s);
  int64_t value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* Mostly from `least` on, `count` values; else anything. */
static int64_t take_likely(source *s, int64_t least, int64_t count) {
  uint8_t kind = take_byte(s);
  return kind < 224 ? least + kind % count : take_int(s);
}

static onepass_dtype take_dtype(source *s) {
  const onepass_dtype known[4] = {ONEPASS_F32, ONEPASS_F64, ONEPASS_F16, ONEPASS_BF16};
  uint8_t kind = take_byte(s);
  if (kind < 240) return known[kind % 4];
  onepass_dtype dtype = {take_byte(s), take_byte(s), take_byte(s)};
  return dtype;
}

static double take_double(source *s) {
  const double common[4] = {0, 1e-5, 1, 1e3};
  uint8_t kind = take_byte(s);
  double value;
  uint64_t bits = 0;
  if (kind < 200) return common[kind % 4];
  for (int i = 0; i < 8; i++) bits = bits << 8 | take_byte(s);
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* ---- Tensors */

typedef struct part {
  onepass_tensor tensor;
  int64_t shape[16];
  int64_t strides[16];
  int present;
} part;

static void link_part(part *p) {
  p->tensor.shape = p->shape;
  if (p->tensor.strides != NULL) p->tensor.strides = p->strides;
}

static void take_tensor(source *s, part *p) {
  uint8_t flags = take_byte(s);
  memset(p, 0, sizeof *p);
  p->present = 1;
  p->tensor.device.type = ONEPASS_CPU;
  p->tensor.dtype = take_dtype(s);
  p->tensor.ndim = 1 + take_byte(s) % 5;
  if (flags >= 240) p->tensor.ndim = (int32_t)take_int(s);
  for (int d = 0; d < 16; d++) p->shape[d] = p->strides[d] = 1;
  for (int d = 0; d < 9 && d < p->tensor.ndim; d++) p->shape[d] = take_int(s);
  if (flags & 2) {
    for (int d = 0; d < 9 && d < p->tensor.ndim; d++) p->strides[d] = take_int(s);
    p->tensor.strides = p->strides;
  }
  link_part(p);
}

/* The sizes that a pooling makes of x's; adaptive ones may be any, so x's will do. */
static void fit_pooled(part *p, const onepass_pool *pool) {
  for (int a = 0; a < pool->spatial && a < 3 && !pool->adaptive; a++) {
    const int at = p->tensor.ndim - pool->spatial + a;
    int64_t pooled;
    if (at < 0) continue;
    if (onepass_pool_length_dilated(p->shape[at], pool->kernel[a], pool->stride[a],
                                    pool->padding[a], pool->dilation[a], pool->ceil_mode,
                                    &pooled) == ONEPASS_OK) {
      require(pooled >= 1, "a pooled length below 1");
      p->shape[at] = pooled;
    }
  }
}

static int is_saved(int role) { return role == MEAN || role == RSTD; }

static int is_weight(int role) {
  return role == WEIGHT || role == BIAS || role == DWEIGHT || role == DBIAS ||
         role == RUNNING_MEAN || role == RUNNING_VAR;
}

/* The same for operators by channel. */
static void fit_channels(part *p, const part *x, int role, const onepass_norm *norm) {
  const int ndim = x->tensor.ndim;
  if (ndim < 2) return;
  if (is_weight(role) || (is_saved(role) && norm->op == ONEPASS_BATCH_NORM)) {
    p->tensor.ndim = 1;
    p->shape[0] = x->shape[1];
  } else if (is_saved(role)) {
    p->tensor.ndim = 2;
    p->shape[1] = norm->groups;
  }
}

/* A tensor of the shape that x asks of this role, so that the checks further in are reached. */
static void fit(part *p, const part *x, int role, int is_pool, const onepass_pool *pool,
                const onepass_norm *norm, int first) {
  int ndim = x->tensor.ndim;
  *p = *x;
  p->tensor.strides = NULL;
  if (ndim < 1 || ndim > ONEPASS_MAX_NDIM) {
    link_part(p);
    return;
  }
  if (is_pool && (role == Y || role == DY || role == INDICES)) fit_pooled(p, pool);
  if (is_pool && role == INDICES) p->tensor.dtype = ONEPASS_I64;
  if (first < 0 || first >= ndim) first = ndim - 1;
  int count = ndim - first;
  if (norm->axes > 0 && norm->axes < count) count = norm->axes;
  if (norm->axes == 0 && (norm->op == ONEPASS_L1_NORM || norm->op == ONEPASS_L2_NORM)) count = 1;
  if (is_saved(role)) p->tensor.dtype = x->tensor.dtype.bits == 64 ? ONEPASS_F64 : ONEPASS_F32;
  if (norm->op == ONEPASS_GROUP_NORM || norm->op == ONEPASS_BATCH_NORM) {
    fit_channels(p, x, role, norm);
  } else if (is_saved(role)) {
    for (int d = first; d < first + count; d++) p->shape[d] = 1;
  } else if (is_weight(role)) {
    p->tensor.ndim = count;
    memcpy(p->shape, x->shape + first, (size_t)count * sizeof *p->shape);
  }
  link_part(p);
}

static void break_field(source *s, part *parts) {
  part *p = &parts[take_byte(s) % ROLES];
  uint8_t field = take_byte(s);
  switch (field % 9) {
    case 0:
      p->present = !p->present;
      break;
    case 1:
      p->tensor.ndim = (int32_t)take_int(s);
      break;
    case 2:
      p->shape[take_byte(s) % 8] = take_int(s);
      break;
    case 3:
      p->strides[take_byte(s) % 8] = take_int(s);
      p->tensor.strides = p->strides;
      break;
    case 4:
      p->tensor.dtype = take_dtype(s);
      break;
    case 5:
      p->tensor.device.type = (int32_t)take_int(s);
      break;
    case 6:
      p->tensor.shape = NULL;
      break;
    case 7:
      p->tensor.strides = NULL;
      break;
    default:
      p->tensor.device.id = (int32_t)take_int(s);
      break;
  }
}

/* ---- Running what was planned, in memory of exactly the size it needs */

/* The bytes from the first element to the end of the last; SMALL or more when it is too large. The
 * plan has accepted the tensor, so nothing is negative and nothing overflows. */
static size_t bytes_of(const onepass_tensor *t) {
  uint64_t last = 0;
  int64_t step = 1;
  for (int d = t->ndim - 1; d >= 0; d--) {
    if (t->shape[d] == 0) return 0;
    uint64_t stride = (uint64_t)(t->strides ? t->strides[d] : step);
    uint64_t reach = (uint64_t)(t->shape[d] - 1);
    if (reach && stride && (stride >= SMALL || reach >= SMALL)) return SMALL;
    last += reach ? reach * stride : 0;
    if (last >= SMALL) return SMALL;
    if (t->shape[d] > 1) step *= t->shape[d];
  }
  return (size_t)((last + 1) * (t->dtype.bits / 8));
}

/* Repeated elements make a large tensor of little memory: bound the work, too. */
static int is_small(const onepass_tensor *t) {
  int64_t count = 1;
  for (int d = 0; d < t->ndim; d++) {
    if (t->shape[d] >= SMALL) return 0;
    count *= t->shape[d];
    if (count >= SMALL) return 0;
  }
  return bytes_of(t) < SMALL;
}

static void run(const onepass_plan *plan, const part *parts) {
  void *buffers[ROLES] = {0};
  onepass_buffers named;
  size_t needed = onepass_plan_workspace(plan);
  void *workspace = NULL;
  for (int r = 0; r < ROLES; r++) {
    if (parts[r].present && !is_small(&parts[r].tensor)) return;
  }
  if (needed > 64 * SMALL) return;
  for (int r = 0; r < ROLES; r++) {
    if (!parts[r].present) continue;
    size_t bytes = bytes_of(&parts[r].tensor);
    buffers[r] = malloc(bytes ? bytes : 1);
    if (buffers[r] == NULL) abort();
    memset(buffers[r], 0x3C, bytes); /* an ordinary number in every type */
  }
  if (needed && (workspace = aligned_alloc(64, (needed + 63) / 64 * 64)) == NULL) abort();
  memcpy(&named, buffers, sizeof named);
  onepass_status status = onepass_run(plan, &named, workspace, needed, NULL);
  require(status == ONEPASS_OK, "a plan that was made does not run");
  free(workspace);
  for (int r = 0; r < ROLES; r++) free(buffers[r]);
}

/* All tensors on one device, so that more than the check for that is reached. */
static void put_on_gpu(source *s, part *parts) {
  const int32_t id = (int32_t)take_likely(s, 0, 2);
  for (int r = 0; r < ROLES; r++) parts[r].tensor.device = (onepass_device){ONEPASS_CUDA, id};
}

static int is_on_gpu(const part *parts) {
  for (int r = 0; r < ROLES; r++) {
    if (parts[r].present) return parts[r].tensor.device.type == ONEPASS_CUDA;
  }
  return 0;
}

static void plan_and_run(source *s, int is_pool, part *parts, const onepass_norm *norm,
                         const onepass_pool *pool) {
  const onepass_tensor *pointers[ROLES];
  onepass_tensors tensors;
  onepass_plan *plan = (onepass_plan *)(void *)parts;
  onepass_plan_info info;
  onepass_options options = {0};
  uint8_t flags = take_byte(s);
  options.threads = flags % 4;
  if (flags >= 0xF0) options.threads = (int32_t)take_int(s);
  if ((flags & 0xF0) == 0xE0) options.vector_level = (int32_t)take_int(s);
  if (flags & 0x20) options.reference = 1;
  if (options.threads > 8) options.threads = -options.threads; /* do not start thousands */
  if ((flags & 0x0F) == 0x0F) put_on_gpu(s, parts);
  if ((flags & 0x0F) == 0x0F || (flags & 0xF0) == 0xD0) {
    options.cuda_kernel = (int32_t)take_likely(s, 0, ONEPASS_CUDA_KERNEL_COUNT);
  }
  for (int r = 0; r < ROLES; r++) pointers[r] = parts[r].present ? &parts[r].tensor : NULL;
  memcpy(&tensors, pointers, sizeof tensors);
  onepass_status status =
      is_pool ? onepass_plan_pool(&plan, flags == 0xEF ? NULL : pool, &tensors, &options)
              : onepass_plan_norm(&plan, flags == 0xEF ? NULL : norm, &tensors, &options);
  require(status >= ONEPASS_OK && status <= ONEPASS_CUDA_ERROR, "an unknown status");
  if (status != ONEPASS_OK) {
    require(plan == NULL, "a failed plan is not NULL");
    require(onepass_last_message()[0] != '\0', "a failure without a message");
    require(strchr(onepass_last_message(), '\n') == NULL, "a message of several lines");
    return;
  }
  require(onepass_plan_describe(plan, &info) == ONEPASS_OK, "a plan that cannot be described");
  require(info.bytes >= 0, "a description that makes no sense");
  require(is_on_gpu(parts) ? info.grid >= 0 && info.launches >= 0 : info.threads >= 1,
          "a description that makes no sense");
  if (!is_on_gpu(parts)) run(plan, parts);
  onepass_plan_destroy(plan);
}

/* Which roles a call uses: norm forward and backward, then those of each pool. */
static const char used[8][ROLES + 1] = {"1221220000220220", "1220111122002000", "1001000000000000",
                                        "0000001100000000", "1001000000000002", "0000001100000001",
                                        "1001000000000000", "1001001100000000"};

static void take_pool(source *s, onepass_pool *pool) {
  const uint8_t flags = take_byte(s);
  pool->op = (onepass_pool_op)(flags % 3);
  pool->spatial = 1 + flags / 3 % 3;
  pool->adaptive = flags >= 192;
  pool->ceil_mode = take_byte(s) & 1;
  for (int a = 0; a < 3 && !pool->adaptive; a++) {
    pool->kernel[a] = take_likely(s, 1, 9);
    pool->stride[a] = take_likely(s, 1, 6);
    pool->padding[a] = take_likely(s, 0, pool->op == ONEPASS_LP_POOL ? 1 : 4);
    pool->dilation[a] = take_likely(s, 0, pool->op == ONEPASS_MAX_POOL ? 4 : 1);
  }
  if (pool->adaptive) pool->ceil_mode = take_byte(s) > 250;
  if (pool->op == ONEPASS_AVG_POOL && !pool->adaptive) {
    pool->count_include_pad = take_byte(s) & 1;
    pool->divisor = take_likely(s, 0, 3);
  }
  if (pool->op == ONEPASS_LP_POOL) pool->p = take_byte(s) < 192 ? 2 : take_double(s);
}

/* Those that this operator has no use for, most of the time left out. */
static char use_of(const onepass_norm *norm, int role, char use) {
  const int by_channel = norm->op == ONEPASS_GROUP_NORM || norm->op == ONEPASS_BATCH_NORM;
  const int plain = norm->op == ONEPASS_L1_NORM || norm->op == ONEPASS_L2_NORM;
  const int centered = by_channel || norm->op == ONEPASS_LAYER_NORM;
  if (role == RUNNING_MEAN || role == RUNNING_VAR) {
    if (!by_channel) return '0';
    return norm->use_running && use != '0' ? '1' : use;
  }
  if (plain && (is_weight(role) || role == RESIDUAL || role == SUM || role == DSUM)) return '0';
  if (!centered && (role == MEAN || role == BIAS || role == DBIAS)) return '0';
  if (norm->op == ONEPASS_L1_NORM && role == RSTD) return '0';
  if (role == BIAS && norm->direction == ONEPASS_BACKWARD && !norm->activation) return '0';
  return use;
}

/* Mostly what makes sense for the operator. */
static void take_options(source *s, onepass_norm *norm) {
  const int by_channel = norm->op == ONEPASS_GROUP_NORM || norm->op == ONEPASS_BATCH_NORM;
  const int plain = norm->op == ONEPASS_L1_NORM || norm->op == ONEPASS_L2_NORM;
  const uint8_t flags = take_byte(s);
  if (by_channel || (flags & 7) == 7) norm->use_running = flags >> 3 & 1;
  if (by_channel) norm->momentum = (flags & 0x30) == 0x30 ? take_double(s) : 0.5;
  if (by_channel && (flags & 7) != 7) norm->axis = 0;
  if (!by_channel) norm->axes = (int32_t)take_likely(s, 0, 2);
  if (plain || (flags & 7) == 6) norm->clamp = flags >> 6 & 1;
  if (!plain || (flags & 7) == 5) norm->activation = (onepass_activation)take_likely(s, 0, 5);
  if (norm->op == ONEPASS_GROUP_NORM || (flags & 7) == 4) norm->groups = take_likely(s, 1, 6);
}

static void take_enumerations(source *s, onepass_norm *norm, onepass_pool *pool) {
  norm->op = (onepass_norm_op)take_int(s);
  norm->direction = pool->direction = (onepass_direction)take_int(s);
  norm->reduction = (onepass_reduction)take_int(s);
  norm->axes = (int32_t)take_int(s);
  norm->groups = take_int(s);
  norm->activation = (onepass_activation)take_int(s);
  norm->momentum = take_double(s);
  pool->op = (onepass_pool_op)take_int(s);
  pool->spatial = (int32_t)take_int(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  source s = {data, size};
  uint8_t flags = take_byte(&s);
  int is_pool = flags & 1, backward = flags >> 1 & 1, fitting = flags & 0x3C;
  part parts[ROLES];
  onepass_norm norm = {0};
  onepass_pool pool = {0};
  norm.op = (onepass_norm_op)(take_byte(&s) % (ONEPASS_BATCH_NORM + 1));
  norm.direction = pool.direction = (onepass_direction)backward;
  norm.axis = (int32_t)take_likely(&s, -3, 6);
  norm.reduction = norm.op == ONEPASS_L1_NORM ? (onepass_reduction)(flags >> 7) : ONEPASS_MEAN;
  norm.eps = take_double(&s);
  take_options(&s, &norm);
  take_pool(&s, &pool);
  const int pool_row = 2 * (1 + (int)pool.op);
  if (!fitting) take_enumerations(&s, &norm, &pool); /* one in sixteen: they are anything, too */
  take_tensor(&s, &parts[X]);
  int ndim = parts[X].tensor.ndim;
  if (fitting && norm.op == ONEPASS_GROUP_NORM && norm.use_running && ndim > 1) {
    norm.groups = parts[X].shape[1]; /* only channels of their own have running statistics */
  }
  int first = norm.axis < 0 && ndim > 0 ? norm.axis + ndim : norm.axis;
  part x = parts[X];
  x.tensor.shape = x.shape;
  for (int r = 0; r < ROLES; r++) {
    char use = used[(is_pool ? pool_row : 0) + backward][r];
    if (!is_pool) use = use_of(&norm, r, use);
    if (fitting) {
      if (r != X) fit(&parts[r], &x, r, is_pool, &pool, &norm, first);
    } else if (r != X) {
      take_tensor(&s, &parts[r]);
    }
    parts[r].present = use == '1' || (use == '2' && take_byte(&s) % 4);
  }
  if (!is_pool && fitting) { /* pairs */
    parts[SUM].present &= parts[RESIDUAL].present;
    parts[RUNNING_VAR].present = parts[RUNNING_MEAN].present;
  }
  if (fitting) {
    for (int breaks = take_byte(&s) % 4; breaks > 0; breaks--) break_field(&s, parts);
  }
  plan_and_run(&s, is_pool, parts, &norm, &pool);
  return 0;
}
