/* CUDA devices: what they are like, the kernels loaded on them, and queueing work there. */
#ifndef ONEPASS_CUDA_DEVICE_H
#define ONEPASS_CUDA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"

/* What launch choices depend on. */
typedef struct onepass_cuda_properties {
  int32_t major, minor;
  int32_t multiprocessors;
  int32_t shared_block;          /* bytes of shared memory a block may have */
  int32_t shared_multiprocessor; /* bytes all blocks of a multiprocessor have */
  int64_t l2;
} onepass_cuda_properties;

typedef enum onepass_cuda_family {
  ONEPASS_CUDA_NORM,
  ONEPASS_CUDA_POOL,
  ONEPASS_CUDA_FAMILIES
} onepass_cuda_family;

typedef struct onepass_cuda_device onepass_cuda_device;

/* A kernel that has been loaded on a device; NULL: none. */
typedef struct CUfunc_st *onepass_cuda_function;

/* One kernel launch. */
typedef struct onepass_cuda_launch {
  onepass_cuda_function function;
  int64_t grid;
  int32_t block;
  bool cooperative; /* all blocks run at once */
  bool early;       /* may begin before what is ahead of it has ended: the kernel waits by itself */
  size_t shared;
} onepass_cuda_launch;

/* Whether this build has the backend at all. */
bool onepass_cuda_is_built(void);

/* Open device `id`, its primary context and nothing else. `argument` names what asked for it. */
onepass_status onepass_cuda_open_device(int32_t id, const char *argument,
                                        const onepass_cuda_device **device);
const onepass_cuda_properties *onepass_cuda_properties_of(const onepass_cuda_device *device);

/* Gives a launch the kernel `name` of a family for elements of `type`; loads what is not yet loaded. A
 * kernel that may use more shared memory than any block has at first is given it. */
onepass_status onepass_cuda_load(const onepass_cuda_device *device, onepass_cuda_family family,
                                 onepass_type type, const char *name, onepass_cuda_launch *launch);

/* What is wrong with an address or a stream for work on this device; ONEPASS_OK if nothing. */
onepass_status onepass_cuda_check_memory(const onepass_cuda_device *device, const char *name,
                                         const void *address);
onepass_status onepass_cuda_check_stream(const onepass_cuda_device *device, void *stream);

/* ONEPASS_OK unless this process uses CUDA devices through onepass and the address is one's. */
onepass_status onepass_cuda_check_host_memory(const char *name, const void *address);

/* Between these, the device's context is current; the caller's comes back. */
onepass_status onepass_cuda_enter(const onepass_cuda_device *device, bool *entered);
void onepass_cuda_leave(bool entered);

/* args: the one argument of the kernel, a struct by value. */
onepass_status onepass_cuda_queue(const onepass_cuda_launch *launch, const void *args,
                                  void *stream);
onepass_status onepass_cuda_queue_zeros(void *address, size_t bytes, void *stream);

/* Memory for the one-call helpers, in the order of the default stream. */
onepass_status onepass_cuda_allocate(const onepass_cuda_device *device, size_t bytes,
                                     void **address);
void onepass_cuda_free(const onepass_cuda_device *device, void *address);

#endif
