"""Plain PyTorch: the mean over a view that has every window as an axis."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, kernel_size: int, stride: int = 1, padding: int = 0):
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (self.padding, self.padding)).unfold(-1, self.kernel_size, self.stride).mean(-1)
