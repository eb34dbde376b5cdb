/* A CUDA device as the command uses it: memory, copies, a stream and events. In a build without
 * CUDA opening one fails and says so, and nothing else has to know. */
#ifndef ONEPASS_CLI_GPU_H
#define ONEPASS_CLI_GPU_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gpu {
  int32_t device;
  void *stream;       /* a CUstream of its own; everything below is queued there */
  const char *reason; /* why the latest call that failed did; text that stays */
} gpu;

/* Make the device current in this thread, which is the one that may use and close the gpu. */
bool gpu_open(gpu *gpu, int32_t device);
void gpu_close(gpu *gpu);

/* Bytes of device memory that are free; 0 when that cannot be found out. */
int64_t gpu_available(gpu *gpu);

/* At least one byte, at a multiple of 256; NULL when there is none. gpu_free waits for the device,
 * and takes NULL. */
void *gpu_allocate(gpu *gpu, int64_t bytes);
void gpu_free(gpu *gpu, void *memory);

/* From and to memory of the host; finished on return, as is all that was queued before. */
bool gpu_upload(gpu *gpu, void *to, const void *from, int64_t bytes);
bool gpu_download(gpu *gpu, void *to, const void *from, int64_t bytes);

/* Within the device; only queued. */
bool gpu_copy(gpu *gpu, void *to, const void *from, int64_t bytes);
bool gpu_fill(gpu *gpu, void *to, unsigned char value, int64_t bytes);

/* Fill with pieces of a block of at least two elements, from odd places in it that differ from
 * piece to piece and seed to seed, so that rows of the result are not alike; only queued. */
bool gpu_tile(gpu *gpu, void *to, int64_t bytes, const void *block, int64_t block_bytes,
              int64_t element_bytes, uint64_t seed);

/* Wait for all that is queued: on the gpu's stream, on the default stream. */
bool gpu_wait(gpu *gpu);
bool gpu_wait_default(gpu *gpu);

/* Events; NULL when there is none to be had. */
void *gpu_event(gpu *gpu);
void gpu_event_free(gpu *gpu, void *event);
bool gpu_mark(gpu *gpu, void *event);

/* Seconds between two marks that have been waited for; negative on failure. */
double gpu_seconds(gpu *gpu, void *from, void *to);

#endif
