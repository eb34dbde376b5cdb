"""Plain PyTorch, step by step, as the formula is written."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        axes = tuple(range(-self.ln.weight.dim(), 0))
        variance, mean = torch.var_mean(x, dim=axes, keepdim=True, unbiased=False)
        return (x - mean) * torch.rsqrt(variance + self.ln.eps) * self.ln.weight + self.ln.bias
