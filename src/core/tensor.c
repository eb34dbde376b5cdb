#include "core/tensor.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/status.h"

_Static_assert(sizeof(onepass_tensors) == ONEPASS_ROLE_COUNT * sizeof(void *), "a role each");
_Static_assert(sizeof(onepass_buffers) == ONEPASS_ROLE_COUNT * sizeof(void *), "a role each");

const char *onepass_role_name(onepass_role role) {
  static const char *const names[] = {
      "x",       "weight", "bias",     "y",   "mean", "rstd",         "dy",          "dx",
      "dweight", "dbias",  "residual", "sum", "dsum", "running_mean", "running_var", "indices"};
  return names[role];
}

onepass_shape_text onepass_format_shape(int ndim, const int64_t *sizes) {
  onepass_shape_text shape = {"["};
  size_t length = 1;
  for (int axis = 0; axis < ndim; axis++) {
    int written = snprintf(shape.text + length, sizeof shape.text - length, "%s%" PRId64,
                           axis ? ", " : "", sizes[axis]);
    if (written < 0 || (length += (size_t)written) >= sizeof shape.text - 5) {
      length = sizeof shape.text - 5; /* room for the ending below */
      memcpy(shape.text + length - 3, "...", 3);
      break;
    }
  }
  memcpy(shape.text + length, "]", 2);
  return shape;
}

/* ---- Reading and checking -------------------------------------------------------------------- */

static onepass_status read_sizes(const onepass_tensor *tensor, const char *name,
                                 onepass_layout *layout) {
  int64_t bytes = onepass_type_size(layout->type); /* as if sizes of 0 were 1 */
  layout->count = 1;
  for (int axis = 0; axis < layout->ndim; axis++) {
    const int64_t size = layout->shape[axis] = tensor->shape[axis];
    if (size < 0) {
      return onepass_fail(ONEPASS_BAD_SHAPE, "%s.shape[%d] = %" PRId64 ": expected 0 or more", name,
                          axis, size);
    }
    if (__builtin_mul_overflow(bytes, size ? size : 1, &bytes)) {
      return onepass_fail(ONEPASS_BAD_SHAPE, "%s.shape = %s: expected fewer than 2^63 bytes in all",
                          name, onepass_format_shape(layout->ndim, tensor->shape).text);
    }
    layout->count *= size;
  }
  return ONEPASS_OK;
}

static onepass_status read_strides(const onepass_tensor *tensor, const char *name,
                                   onepass_layout *layout) {
  int64_t compact = 1, last = 0;
  for (int axis = layout->ndim - 1; axis >= 0; axis--) {
    const int64_t size = layout->shape[axis];
    const int64_t stride = layout->stride[axis] = tensor->strides ? tensor->strides[axis] : compact;
    if (stride < 0) {
      return onepass_fail(ONEPASS_BAD_STRIDES, "%s.strides[%d] = %" PRId64 ": expected 0 or more",
                          name, axis, stride);
    }
    int64_t reach = 0, bytes;
    if (layout->count > 0 &&
        (__builtin_mul_overflow(size - 1, stride, &reach) ||
         __builtin_add_overflow(last, reach, &last) || last == INT64_MAX ||
         __builtin_mul_overflow(last + 1, onepass_type_size(layout->type), &bytes))) {
      return onepass_fail(ONEPASS_BAD_STRIDES,
                          "%s.strides[%d] = %" PRId64
                          ": expected an extent of fewer than 2^63 bytes for %s.shape = %s",
                          name, axis, stride, name,
                          onepass_format_shape(layout->ndim, layout->shape).text);
    }
    compact *= size ? size : 1;
  }
  layout->span = layout->count ? last + 1 : 0;
  /* Without elements the strides were not bounded, and nobody follows them. */
  if (!layout->count) memset(layout->stride, 0, sizeof layout->stride);
  return ONEPASS_OK;
}

/* Whether two positions of a layout may be one element. Strides that grow past the extent of all
 * smaller ones never repeat; layouts that manage without that are not worth telling apart. */
static bool repeats_elements(const onepass_layout *layout) {
  if (layout->count < 2) return false;
  int64_t extent = 1; /* of the axes looked at so far, in elements */
  bool seen[ONEPASS_MAX_NDIM] = {false};
  for (int step = 0; step < layout->ndim; step++) {
    int smallest = -1;
    for (int axis = 0; axis < layout->ndim; axis++) {
      if (seen[axis] || layout->shape[axis] == 1) continue;
      if (smallest < 0 || layout->stride[axis] < layout->stride[smallest]) smallest = axis;
    }
    if (smallest < 0) break;
    if (layout->stride[smallest] < extent) return true;
    seen[smallest] = true;
    extent += (layout->shape[smallest] - 1) * layout->stride[smallest];
  }
  return false;
}

static onepass_status read_tensor(const onepass_tensor *tensor, const char *name, bool written,
                                  bool indices, onepass_layout *layout) {
  if (tensor->ndim < 1 || tensor->ndim > ONEPASS_MAX_NDIM) {
    return onepass_fail(ONEPASS_BAD_NDIM, "%s.ndim = %d: expected 1 to %d", name, (int)tensor->ndim,
                        ONEPASS_MAX_NDIM);
  }
  if (!tensor->shape) {
    return onepass_fail(ONEPASS_NULL_POINTER, "%s.shape = NULL: expected %d sizes", name,
                        (int)tensor->ndim);
  }
  layout->ndim = tensor->ndim;
  layout->type = onepass_type_of(tensor->dtype);
  if (layout->type == ONEPASS_TYPE_UNKNOWN || (layout->type == ONEPASS_TYPE_I64) != indices) {
    return onepass_fail(ONEPASS_BAD_DTYPE, "%s.dtype = {code %d, bits %d, lanes %d}: expected %s",
                        name, tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes,
                        indices ? "i64" : "f32, f64, f16 or bf16");
  }
  onepass_status status = read_sizes(tensor, name, layout);
  if (status == ONEPASS_OK) status = read_strides(tensor, name, layout);
  if (status != ONEPASS_OK) return status;
  if (written && repeats_elements(layout)) {
    return onepass_fail(ONEPASS_BAD_STRIDES,
                        "%s.strides = %s: expected each element of this output once", name,
                        onepass_format_shape(layout->ndim, layout->stride).text);
  }
  return ONEPASS_OK;
}

static onepass_status check_device(onepass_device device, const char *name) {
  if (device.type == ONEPASS_CPU) {
    if (device.id == 0) return ONEPASS_OK;
    return onepass_fail(ONEPASS_BAD_DEVICE, "%s.device.id = %d: expected 0 for the CPU", name,
                        (int)device.id);
  }
  if (device.type == ONEPASS_CUDA) return ONEPASS_OK; /* opened once all else is right */
  return onepass_fail(ONEPASS_BAD_DEVICE, "%s.device.type = %d: expected %d (CPU) or %d (CUDA)",
                      name, (int)device.type, ONEPASS_CPU, ONEPASS_CUDA);
}

onepass_status onepass_read_tensors(const onepass_tensors *tensors, onepass_signature signature,
                                    const char *op, onepass_layouts *layouts) {
  if (!tensors) {
    return onepass_fail(ONEPASS_NULL_POINTER, "tensors = NULL: expected the tensors of %s", op);
  }
  *layouts = (onepass_layouts){.written = signature.written};
  const char *first = NULL;
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    const char *name = onepass_role_name(role);
    const onepass_tensor *tensor = ((const onepass_tensor *const *)tensors)[role];
    if (!tensor) {
      if (!(signature.required & ONEPASS_BIT(role))) continue;
      return onepass_fail(ONEPASS_NULL_POINTER, "%s = NULL: %s needs it", name, op);
    }
    if (!((signature.required | signature.optional) & ONEPASS_BIT(role))) {
      return onepass_fail(ONEPASS_BAD_OPTION, "%s = %p: expected NULL, as %s does not take it",
                          name, (const void *)tensor, op);
    }
    onepass_status status = check_device(tensor->device, name);
    if (status != ONEPASS_OK) return status;
    if (!first) {
      layouts->device = tensor->device;
      first = name;
    } else if (tensor->device.type != layouts->device.type ||
               tensor->device.id != layouts->device.id) {
      return onepass_fail(ONEPASS_BAD_DEVICE,
                          "%s.device = {%d, %d}: expected {%d, %d}, where %s is", name,
                          (int)tensor->device.type, (int)tensor->device.id,
                          (int)layouts->device.type, (int)layouts->device.id, first);
    }
    status = read_tensor(tensor, name, signature.written & ONEPASS_BIT(role),
                         role == ONEPASS_ROLE_INDICES, &layouts->of[role]);
    if (status != ONEPASS_OK) return status;
    layouts->present |= ONEPASS_BIT(role);
  }
  layouts->written &= layouts->present;
  return ONEPASS_OK;
}

onepass_status onepass_expect_type(const onepass_layouts *layouts, onepass_role role,
                                   onepass_type type, const char *because) {
  const onepass_type actual = layouts->of[role].type;
  if (actual == type) return ONEPASS_OK;
  return onepass_fail(ONEPASS_BAD_DTYPE, "%s.dtype = %s: expected %s, %s", onepass_role_name(role),
                      onepass_type_name(actual), onepass_type_name(type), because);
}

onepass_status onepass_expect_shape(const onepass_layouts *layouts, onepass_role role, int ndim,
                                    const int64_t *shape, const char *because) {
  const onepass_layout *layout = &layouts->of[role];
  if (layout->ndim == ndim && !memcmp(layout->shape, shape, (size_t)ndim * sizeof *shape)) {
    return ONEPASS_OK;
  }
  return onepass_fail(ONEPASS_BAD_SHAPE, "%s.shape = %s: expected %s, %s", onepass_role_name(role),
                      onepass_format_shape(layout->ndim, layout->shape).text,
                      onepass_format_shape(ndim, shape).text, because);
}

/* ---- The addresses of a run ------------------------------------------------------------------ */

static bool same_layout(const onepass_layout *a, const onepass_layout *b) {
  if (a->type != b->type || a->ndim != b->ndim) return false;
  for (int axis = 0; axis < a->ndim; axis++) {
    if (a->shape[axis] != b->shape[axis]) return false;
    if (a->shape[axis] > 1 && a->stride[axis] != b->stride[axis]) return false;
  }
  return true;
}

/* The axis with the longest step, or -1 for a single element. */
static int widest_axis(const onepass_layout *layout) {
  int widest = -1;
  for (int axis = 0; axis < layout->ndim; axis++) {
    if (layout->shape[axis] == 1) continue;
    if (widest < 0 || layout->stride[axis] > layout->stride[widest]) widest = axis;
  }
  return widest;
}

/* Whether two tensors may share an element. Two slices of one buffer, say the left and the right
 * half of its rows, interleave without sharing: their longest step is the same, and within one step
 * each keeps to its own part. */
static bool share_memory(const char *a, const onepass_layout *la, const char *b,
                         const onepass_layout *lb) {
  const uintptr_t start_a = (uintptr_t)a, start_b = (uintptr_t)b;
  const int64_t size_a = onepass_type_size(la->type), size_b = onepass_type_size(lb->type);
  if (!la->count || !lb->count) return false;
  if (start_a + (uint64_t)(la->span * size_a) <= start_b) return false;
  if (start_b + (uint64_t)(lb->span * size_b) <= start_a) return false;
  const int axis_a = widest_axis(la), axis_b = widest_axis(lb);
  if (axis_a < 0 || axis_b < 0) return true;
  const int64_t step = la->stride[axis_a] * size_a;
  if (step == 0 || step != lb->stride[axis_b] * size_b) return true;
  const int64_t part_a = (la->span - (la->shape[axis_a] - 1) * la->stride[axis_a]) * size_a;
  const int64_t part_b = (lb->span - (lb->shape[axis_b] - 1) * lb->stride[axis_b]) * size_b;
  const int64_t ahead = (int64_t)(start_b > start_a ? start_b - start_a : start_a - start_b) % step;
  const int64_t first = start_b > start_a ? part_a : part_b;
  const int64_t second = start_b > start_a ? part_b : part_a;
  return !(first <= ahead && ahead + second <= step);
}

static bool may_be_in_place(onepass_role output, onepass_role input,
                            const onepass_in_place *in_place, int in_place_count) {
  for (int i = 0; i < in_place_count; i++) {
    if (in_place[i].output == output && in_place[i].input == input) return true;
  }
  return false;
}

static onepass_status check_apart(const onepass_layouts *layouts, const onepass_buffers *buffers,
                                  onepass_role output, onepass_role other, bool in_place) {
  const onepass_layout *lo = &layouts->of[output], *lt = &layouts->of[other];
  const char *o = onepass_buffer(buffers, output), *t = onepass_buffer(buffers, other);
  if (in_place && o == t && same_layout(lo, lt)) return ONEPASS_OK;
  if (!share_memory(o, lo, t, lt)) return ONEPASS_OK;
  return onepass_fail(ONEPASS_OVERLAP, "%s = %p overlaps %s = %p: expected memory of its own%s",
                      onepass_role_name(output), (const void *)o, onepass_role_name(other),
                      (const void *)t, in_place ? ", or one address and one layout" : "");
}

onepass_status onepass_check_buffers(const onepass_layouts *layouts, const onepass_buffers *buffers,
                                     const onepass_in_place *in_place, int in_place_count) {
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    const char *address = onepass_buffer(buffers, role);
    const char *name = onepass_role_name(role);
    if (!onepass_has(layouts, role)) {
      if (!address) continue;
      return onepass_fail(ONEPASS_BAD_OPTION,
                          "buffers.%s = %p: expected NULL, as it is not planned", name,
                          (const void *)address);
    }
    const onepass_layout *layout = &layouts->of[role];
    if (!layout->count) continue;
    if (!address) {
      return onepass_fail(ONEPASS_NULL_POINTER, "%s = NULL: expected %s with %" PRId64 " elements",
                          name, onepass_format_shape(layout->ndim, layout->shape).text,
                          layout->count);
    }
    if ((uintptr_t)address % (uint64_t)onepass_type_size(layout->type)) {
      return onepass_fail(ONEPASS_MISALIGNED, "%s = %p: expected a multiple of %d bytes for %s",
                          name, (const void *)address, (int)onepass_type_size(layout->type),
                          onepass_type_name(layout->type));
    }
  }
  for (int output = 0; output < ONEPASS_ROLE_COUNT; output++) {
    if (!(layouts->written & ONEPASS_BIT(output))) continue;
    for (int other = 0; other < ONEPASS_ROLE_COUNT; other++) {
      if (other == output || !onepass_has(layouts, other)) continue;
      const bool allowed = may_be_in_place(output, other, in_place, in_place_count);
      onepass_status status = check_apart(layouts, buffers, output, other, allowed);
      if (status != ONEPASS_OK) return status;
    }
  }
  return ONEPASS_OK;
}

/* ---- Walks ----------------------------------------------------------------------------------- */

static bool joins_previous(const onepass_walk *walk, unsigned roles, const int64_t *stride_of,
                           int64_t size) {
  for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
    if (!(roles & ONEPASS_BIT(role))) continue;
    if (walk->stride[walk->ndim - 1][role] != stride_of[role] * size) return false;
  }
  return true;
}

onepass_walk onepass_walk_axes(const onepass_layouts *layouts, unsigned roles, unsigned trailing,
                               int first, const int64_t *shape, const int *axes, int axis_count) {
  onepass_walk walk = {.count = 1};
  for (int i = 0; i < axis_count; i++) {
    const int64_t size = shape[axes[i]];
    walk.count *= size;
    if (size == 1) continue;
    int64_t stride_of[ONEPASS_ROLE_COUNT] = {0};
    for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
      const int own = axes[i] - (trailing & ONEPASS_BIT(role) ? first : 0);
      if (!(roles & ONEPASS_BIT(role)) || own < 0 || own >= layouts->of[role].ndim) continue;
      stride_of[role] = layouts->of[role].stride[own];
    }
    const bool joins = walk.ndim > 0 && joins_previous(&walk, roles, stride_of, size);
    const int at = joins ? walk.ndim - 1 : walk.ndim++;
    walk.size[at] = joins ? walk.size[at] * size : size;
    for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) walk.stride[at][role] = stride_of[role];
  }
  return walk;
}

int64_t onepass_walk_offset_of_many_axes(const onepass_walk *walk, onepass_role role,
                                         int64_t position) {
  int64_t offset = 0;
  for (int axis = walk->ndim - 1; axis > 0; axis--) {
    const int64_t size = walk->size[axis] ? walk->size[axis] : 1; /* 0: there are no positions */
    offset += position % size * walk->stride[axis][role];
    position /= size;
  }
  return offset + position * walk->stride[0][role];
}

onepass_walk onepass_walk_without(const onepass_walk *walk, int axis) {
  onepass_walk rest = *walk;
  rest.ndim--;
  rest.count = walk->size[axis] ? walk->count / walk->size[axis] : 0;
  for (int at = axis; at < rest.ndim; at++) {
    rest.size[at] = walk->size[at + 1];
    for (int role = 0; role < ONEPASS_ROLE_COUNT; role++) {
      rest.stride[at][role] = walk->stride[at + 1][role];
    }
  }
  return rest;
}

static void copy_elements(char *to, int64_t to_stride, const char *from, int64_t from_stride,
                          int64_t element_size, int64_t count) {
#define COPY_AS(type)                                                    \
  for (int64_t i = 0; i < count; i++) {                                  \
    ((type *)to)[i * to_stride] = ((const type *)from)[i * from_stride]; \
  }
  if (element_size == 2) {
    COPY_AS(uint16_t)
  } else if (element_size == 4) {
    COPY_AS(uint32_t)
  } else {
    COPY_AS(uint64_t)
  }
#undef COPY_AS
}

/* Call copy_elements for every run of positions that differ only in the last axis. */
#define FOR_EACH_RUN(walk, role, begin, count, body)                        \
  for (int64_t done = 0, run; done < (count); done += run) {                \
    const int last = (walk)->ndim - 1;                                      \
    const int64_t length = last < 0 ? 1 : (walk)->size[last];               \
    const int64_t stride = last < 0 ? 1 : (walk)->stride[last][role];       \
    run = length - ((begin) + done) % length;                               \
    if (run > (count)-done) run = (count)-done;                             \
    const int64_t offset = onepass_walk_offset(walk, role, (begin) + done); \
    body                                                                    \
  }

void onepass_pack(void *dense, const void *base, const onepass_walk *walk, onepass_role role,
                  int64_t element_size, int64_t begin, int64_t count) {
  FOR_EACH_RUN(walk, role, begin, count, {
    copy_elements((char *)dense + done * element_size, 1,
                  (const char *)base + offset * element_size, stride, element_size, run);
  })
}

void onepass_unpack(const void *dense, void *base, const onepass_walk *walk, onepass_role role,
                    int64_t element_size, int64_t begin, int64_t count) {
  FOR_EACH_RUN(walk, role, begin, count, {
    copy_elements((char *)base + offset * element_size, stride,
                  (const char *)dense + done * element_size, 1, element_size, run);
  })
}
