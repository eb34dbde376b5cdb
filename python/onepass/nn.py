"""The operators as modules.

LayerNorm and AvgPool1d are torch.nn's own classes with another forward, so that arguments,
attributes, initialization, state_dicts and isinstance() are what they were.
"""

import torch
from torch import Tensor

from . import functional

__all__ = ["AvgPool1d", "L1Norm", "LayerNorm"]


class LayerNorm(torch.nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.layer_norm(
                input, self.normalized_shape, self.weight, self.bias, self.eps)
        else:
            # self.weight takes half a microsecond to find; with parametrizations, and in replicas,
            # it is not a parameter.
            own = self._parameters
            weight = own["weight"] if "weight" in own else self.weight
            bias = own["bias"] if "bias" in own else self.bias
            return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class AvgPool1d(torch.nn.AvgPool1d):
    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.avg_pool1d(
                input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
                self.count_include_pad)
        else:
            return functional.avg_pool1d(
                input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
                self.count_include_pad)


class L1Norm(torch.nn.Module):
    """x / (mean of abs(x) over dim + eps), or with mode="sum" over the sum."""

    __constants__ = ["dim", "mode", "eps"]

    def __init__(self, dim: int = 1, mode: str = "mean", eps: float = 0.0) -> None:
        super().__init__()
        if mode not in ("mean", "sum"):
            raise ValueError(f'L1Norm: mode must be "mean" or "sum", but got {mode!r}')
        self.dim, self.mode, self.eps = dim, mode, eps

    def forward(self, input: Tensor) -> Tensor:
        return functional.l1_norm(input, self.dim, self.mode, self.eps)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, mode={self.mode!r}, eps={self.eps}"
