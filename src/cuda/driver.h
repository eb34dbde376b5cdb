/* The CUDA driver, opened at run time: nothing here is linked against it, so the same library works
 * where there is none. Only compiled where nvcc, and so cuda.h, is there; src/cuda/none.c answers
 * for builds without. */
#ifndef ONEPASS_CUDA_DRIVER_H
#define ONEPASS_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

/* cuda.h gives some of these a version suffix by a macro; names and types below follow it. */
#define ONEPASS_CUDA_FUNCTIONS(F)      \
  F(cuInit)                            \
  F(cuDriverGetVersion)                \
  F(cuGetErrorName)                    \
  F(cuGetErrorString)                  \
  F(cuDeviceGetCount)                  \
  F(cuDeviceGet)                       \
  F(cuDeviceGetName)                   \
  F(cuDeviceGetAttribute)              \
  F(cuDeviceTotalMem)                  \
  F(cuDevicePrimaryCtxRetain)          \
  F(cuCtxGetCurrent)                   \
  F(cuCtxPushCurrent)                  \
  F(cuCtxPopCurrent)                   \
  F(cuCtxSynchronize)                  \
  F(cuModuleLoadData)                  \
  F(cuModuleGetFunction)               \
  F(cuFuncSetAttribute)                \
  F(cuFuncGetAttribute)                \
  F(cuLaunchKernelEx)                  \
  F(cuThreadExchangeStreamCaptureMode) \
  F(cuPointerGetAttributes)            \
  F(cuMemGetInfo)                      \
  F(cuMemAlloc)                        \
  F(cuMemFree)                         \
  F(cuMemAllocAsync)                   \
  F(cuMemFreeAsync)                    \
  F(cuMemcpyHtoD)                      \
  F(cuMemcpyDtoH)                      \
  F(cuMemcpyHtoDAsync)                 \
  F(cuMemcpyDtoHAsync)                 \
  F(cuMemcpyDtoDAsync)                 \
  F(cuMemsetD8Async)                   \
  F(cuMemsetD32Async)                  \
  F(cuStreamCreate)                    \
  F(cuStreamDestroy)                   \
  F(cuStreamSynchronize)               \
  F(cuStreamGetCtx)                    \
  F(cuStreamBeginCapture)              \
  F(cuStreamEndCapture)                \
  F(cuEventCreate)                     \
  F(cuEventDestroy)                    \
  F(cuEventRecord)                     \
  F(cuEventElapsedTime)                \
  F(cuGraphInstantiateWithFlags)       \
  F(cuGraphLaunch)                     \
  F(cuGraphExecDestroy)                \
  F(cuGraphDestroy)

#define ONEPASS_CUDA_POINTER(name) __typeof__(name) *name;
typedef struct onepass_cuda_api {
  ONEPASS_CUDA_FUNCTIONS(ONEPASS_CUDA_POINTER)
} onepass_cuda_api;

/* The driver's functions, opened and initialized on the first call. NULL where that is not possible:
 * *reason then says why. */
const onepass_cuda_api *onepass_cuda_open(const char **reason);

#endif
