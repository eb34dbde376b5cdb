"""Reference: 3-D max pooling."""

import onepass
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int = 0, dilation: int = 1):
        super().__init__()
        self.max_pool = nn.MaxPool3d(
            kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.max_pool(x)


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int = 0, dilation: int = 1):
        super().__init__()
        self.max_pool = onepass.nn.MaxPool3d(
            kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.max_pool(x)


batch_size = 16
in_channels = 32
dim1 = 128
dim2 = 128
dim3 = 128
kernel_size = 3
stride = 2
padding = 1
dilation = 3


def get_inputs():
    return [torch.rand(batch_size, in_channels, dim1, dim2, dim3)]


def get_init_inputs():
    return [kernel_size, stride, padding, dilation]
