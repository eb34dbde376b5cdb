"""A textbook kernel in CUDA: a thread an output, which adds up its window."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

REQUIRES = ["cuda", "nvcc", "ninja"]

SOURCE = r"""
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void average_windows(const float *x, float *y, long length, long outputs, long count, int kernel,
                                int stride, int padding) {
  const long index = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const long line = index / outputs, start = index % outputs * stride - padding;
  float total = 0.0f;
  for (long i = max(start, 0L); i < min(start + kernel, length); i++) total += x[line * length + i];
  y[index] = total / kernel;
}

torch::Tensor avg_pool1d(torch::Tensor x, long kernel, long stride, long padding) {
  const long length = x.size(2), outputs = (length + 2 * padding - kernel) / stride + 1;
  auto y = torch::empty({x.size(0), x.size(1), outputs}, x.options());
  const long count = y.numel();
  average_windows<<<(count + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), length, outputs, count, kernel, stride, padding);
  return y;
}
"""

DECLARATION = "torch::Tensor avg_pool1d(torch::Tensor x, long kernel, long stride, long padding);"

module = load_inline("average_windows", cpp_sources=DECLARATION, cuda_sources=SOURCE,
                     functions=["avg_pool1d"])


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int = 1, padding: int = 0):
        super().__init__()
        self.arguments = (kernel_size, stride, padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.avg_pool1d(x, *self.arguments)
