/* LayerNorm on a GPU: memory and a stream come from the CUDA runtime, and onepass_run queues its work
 * on that stream, between a copy to the GPU and a copy back. Where there is no GPU that onepass can
 * use, the program says why and ends. */
#include <cuda_runtime.h>
#include <math.h>
#include <onepass.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 512, COLUMNS = 4096, ELEMENTS = ROWS * COLUMNS };

static const size_t bytes = ELEMENTS * sizeof(float);

typedef struct device_side {
  float *x, *y;
  void *workspace; /* device memory, too */
  cudaStream_t stream;
} device_side;

/* A plan needs shapes, types and the device, but no data. */
static onepass_status make_plan(onepass_plan **plan) {
  static const int64_t shape[] = {ROWS, COLUMNS};
  const onepass_tensor matrix = {
      .device = {ONEPASS_CUDA, 0}, .ndim = 2, .dtype = ONEPASS_F32, .shape = shape};
  const onepass_norm layer_norm = {.op = ONEPASS_LAYER_NORM, .axis = -1, .eps = 1e-5};
  return onepass_plan_norm(plan, &layer_norm, &(onepass_tensors){.x = &matrix, .y = &matrix}, NULL);
}

/* What cudaMalloc gives is aligned to more than the 64 bytes that a workspace needs. */
static int allocate(device_side *gpu, size_t workspace) {
  return cudaSetDevice(0) == cudaSuccess && cudaStreamCreate(&gpu->stream) == cudaSuccess &&
         cudaMalloc((void **)&gpu->x, bytes) == cudaSuccess &&
         cudaMalloc((void **)&gpu->y, bytes) == cudaSuccess &&
         cudaMalloc(&gpu->workspace, workspace) == cudaSuccess;
}

static void release(const device_side *gpu) {
  cudaFree(gpu->x);
  cudaFree(gpu->y);
  cudaFree(gpu->workspace);
  if (gpu->stream) cudaStreamDestroy(gpu->stream);
}

/* Nothing here waits for the GPU but the last line. */
static int normalize(const onepass_plan *plan, const device_side *gpu, const float *x, float *y) {
  const onepass_buffers buffers = {.x = gpu->x, .y = gpu->y};
  if (cudaMemcpyAsync(gpu->x, x, bytes, cudaMemcpyHostToDevice, gpu->stream) != cudaSuccess) {
    return 0;
  }
  if (onepass_run(plan, &buffers, gpu->workspace, onepass_plan_workspace(plan), gpu->stream) !=
      ONEPASS_OK) {
    fprintf(stderr, "%s\n", onepass_last_message());
    return 0;
  }
  return cudaMemcpyAsync(y, gpu->y, bytes, cudaMemcpyDeviceToHost, gpu->stream) == cudaSuccess &&
         cudaStreamSynchronize(gpu->stream) == cudaSuccess;
}

/* Every row of y has mean 0 and variance 1. */
static int is_normalized(const float *y) {
  for (int row = 0; row < ROWS; row++) {
    double sum = 0, squares = 0;
    for (int i = 0; i < COLUMNS; i++) {
      const double v = y[row * COLUMNS + i];
      sum += v;
      squares += v * v;
    }
    if (fabs(sum / COLUMNS) > 1e-4 || fabs(squares / COLUMNS - 1) > 1e-3) return 0;
  }
  return 1;
}

/* Rows of sines, each with another mean. */
static void fill(float *x) {
  for (int i = 0; i < ELEMENTS; i++) x[i] = sinf((float)(i % 1000)) + (float)(i / COLUMNS % 10);
}

int main(void) {
  onepass_plan *plan;
  const onepass_status status = make_plan(&plan);
  if (status != ONEPASS_OK) {
    printf("%s\n", onepass_last_message());
    return status == ONEPASS_BAD_DEVICE ? 0 : 1; /* no GPU is no error of this program */
  }
  onepass_plan_info info;
  onepass_plan_describe(plan, &info);
  printf("%s by %s: %lld blocks of %d threads, %zu bytes of workspace\n", info.op, info.kernel,
         (long long)info.grid, (int)info.block, info.workspace);

  device_side gpu = {0};
  float *x = malloc(bytes), *y = malloc(bytes);
  int right = x && y && allocate(&gpu, info.workspace);
  if (right) {
    fill(x);
    right = normalize(plan, &gpu, x, y) && is_normalized(y);
  }
  printf("%s\n", right ? "every row has mean 0 and variance 1" : "failed");
  release(&gpu);
  free(x);
  free(y);
  onepass_plan_destroy(plan);
  return right ? 0 : 1;
}
