"""The activations that some operators do to their output in the same pass."""

from typing import Optional

import torch
from torch import Tensor

__all__ = ["activate", "activate_by_code", "activation_code"]

# onepass_activation, and PyTorch's own.
_ACTIVATIONS = {
    None: (0, lambda x: x),
    "relu": (1, torch.nn.functional.relu),
    "gelu": (2, torch.nn.functional.gelu),
    "gelu_tanh": (3, lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "silu": (4, torch.nn.functional.silu),
}


def activation_code(activation: Optional[str]) -> int:
    if activation not in _ACTIVATIONS:
        names = ", ".join(repr(name) for name in _ACTIVATIONS)
        raise ValueError(f"activation must be one of {names}, but got {activation!r}")
    return _ACTIVATIONS[activation][0]


def activate(x: Tensor, activation: Optional[str]) -> Tensor:
    return _ACTIVATIONS[activation][1](x)


def activate_by_code(x: Tensor, code: int) -> Tensor:
    return next(function for number, function in _ACTIVATIONS.values() if number == code)(x)
