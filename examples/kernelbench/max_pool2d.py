"""Reference: 2-D max pooling."""

import onepass
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int = 0, dilation: int = 1):
        super().__init__()
        self.max_pool = nn.MaxPool2d(
            kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.max_pool(x)


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int, padding: int = 0, dilation: int = 1):
        super().__init__()
        self.max_pool = onepass.nn.MaxPool2d(
            kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.max_pool(x)


batch_size = 32
in_channels = 64
height = 512
width = 512
kernel_size = 4
stride = 1
padding = 1
dilation = 1


def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [kernel_size, stride, padding, dilation]
