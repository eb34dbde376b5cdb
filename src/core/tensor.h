/* Tensors as the families see them: checked copies of the caller's, addressed by their role, and
 * walks over some of their axes at once. */
#ifndef ONEPASS_CORE_TENSOR_H
#define ONEPASS_CORE_TENSOR_H

#include <stdbool.h>

#include "core/dtype.h"

/* In the order of onepass_tensors and onepass_buffers. */
typedef enum onepass_role {
  ONEPASS_ROLE_X,
  ONEPASS_ROLE_WEIGHT,
  ONEPASS_ROLE_BIAS,
  ONEPASS_ROLE_Y,
  ONEPASS_ROLE_MEAN,
  ONEPASS_ROLE_RSTD,
  ONEPASS_ROLE_DY,
  ONEPASS_ROLE_DX,
  ONEPASS_ROLE_DWEIGHT,
  ONEPASS_ROLE_DBIAS,
  ONEPASS_ROLE_RESIDUAL,
  ONEPASS_ROLE_SUM,
  ONEPASS_ROLE_DSUM,
  ONEPASS_ROLE_RUNNING_MEAN,
  ONEPASS_ROLE_RUNNING_VAR,
  ONEPASS_ROLE_INDICES,
  ONEPASS_ROLE_COUNT
} onepass_role;

#define ONEPASS_BIT(role) (1u << (role))

const char *onepass_role_name(onepass_role role);

typedef struct onepass_layout {
  onepass_type type;
  int ndim;
  int64_t shape[ONEPASS_MAX_NDIM];
  int64_t stride[ONEPASS_MAX_NDIM];
  int64_t count; /* elements */
  int64_t span;  /* elements from the first in memory to one past the last */
} onepass_layout;

typedef struct onepass_layouts {
  unsigned present; /* a bit for each role that has a tensor */
  unsigned written; /* a bit for each of those that is an output */
  onepass_device device;
  onepass_layout of[ONEPASS_ROLE_COUNT];
} onepass_layouts;

/* Which tensors an operator takes in one direction, as sets of role bits. */
typedef struct onepass_signature {
  unsigned required;
  unsigned optional;
  unsigned written;
} onepass_signature;

/* Copy and check each tensor by itself: presence, device, type, dimensions, sizes, strides. */
onepass_status onepass_read_tensors(const onepass_tensors *tensors, onepass_signature signature,
                                    const char *op, onepass_layouts *layouts);

static inline bool onepass_has(const onepass_layouts *layouts, onepass_role role) {
  return layouts->present & ONEPASS_BIT(role);
}

/* The tensor `role` must have `type`; `because` says who decides that, such as "as x". */
onepass_status onepass_expect_type(const onepass_layouts *layouts, onepass_role role,
                                   onepass_type type, const char *because);

/* The tensor `role` must have these sizes. */
onepass_status onepass_expect_shape(const onepass_layouts *layouts, onepass_role role, int ndim,
                                    const int64_t *shape, const char *because);

/* Write "[2, 3, 4]" for a message. */
typedef struct onepass_shape_text {
  char text[12 * ONEPASS_MAX_NDIM + 96];
} onepass_shape_text;
onepass_shape_text onepass_format_shape(int ndim, const int64_t *sizes);

/* The pointer a role has in the buffers of a run. */
static inline char *onepass_buffer(const onepass_buffers *buffers, onepass_role role) {
  return ((char *const *)buffers)[role];
}

/* Check the addresses of a run: present, aligned, and no output on top of anything else. The pairs
 * (output, input) in `in_place` may be one buffer with one layout. */
typedef struct onepass_in_place {
  onepass_role output, input;
} onepass_in_place;
onepass_status onepass_check_buffers(const onepass_layouts *layouts, const onepass_buffers *buffers,
                                     const onepass_in_place *in_place, int in_place_count);

/* A walk visits the positions of some axes in row-major order and knows, for every role, how many
 * elements away from its first the tensor's element at a position is. */
typedef struct onepass_walk {
  int ndim;
  int64_t count;
  /* Axis after axis: most walks have one, and all that they need is together. */
  int64_t stride[ONEPASS_MAX_NDIM][ONEPASS_ROLE_COUNT];
  int64_t size[ONEPASS_MAX_NDIM];
} onepass_walk;

/* A walk over the listed axes of `shape` for every tensor in `roles`. A tensor in `trailing` has
 * only the axes from `first` on: its axis 0 is axis `first` of the shape. A tensor that lacks an
 * axis stays where it is. Neighbouring axes that every role crosses in one stride become one; axes
 * of size one disappear. */
onepass_walk onepass_walk_axes(const onepass_layouts *layouts, unsigned roles, unsigned trailing,
                               int first, const int64_t *shape, const int *axes, int axis_count);

/* Take one axis out of a walk, for a kernel that goes along it by itself. */
onepass_walk onepass_walk_without(const onepass_walk *walk, int axis);

int64_t onepass_walk_offset_of_many_axes(const onepass_walk *walk, onepass_role role,
                                         int64_t position);

static inline int64_t onepass_walk_offset(const onepass_walk *walk, onepass_role role,
                                          int64_t position) {
  if (position == 0) return 0; /* which also is the only one without axes, or with axes of size 0 */
  if (walk->ndim > 1) return onepass_walk_offset_of_many_axes(walk, role, position);
  return position * walk->stride[0][role];
}

/* Whether a role's elements on this walk lie one after the other. */
static inline bool onepass_walk_is_dense(const onepass_walk *walk, onepass_role role) {
  return walk->ndim == 0 || (walk->ndim == 1 && walk->stride[0][role] == 1);
}

/* Copy positions begin..begin+count of a walk between a tensor and a dense buffer of the same type.
 */
void onepass_pack(void *dense, const void *base, const onepass_walk *walk, onepass_role role,
                  int64_t element_size, int64_t begin, int64_t count);
void onepass_unpack(const void *dense, void *base, const onepass_walk *walk, onepass_role role,
                    int64_t element_size, int64_t begin, int64_t count);

#endif
