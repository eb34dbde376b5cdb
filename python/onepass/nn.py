"""The operators as modules.

Those that torch.nn has are its own classes with another forward, so that arguments, attributes,
initialization, state_dicts and isinstance() are what they were. Some take an activation, which is done to
their output in the same pass: "relu", "gelu", "gelu_tanh" or "silu".
"""

import inspect
from typing import Any, Callable, Optional, Sequence, Tuple, Type, Union

import torch
from torch import Tensor

from . import functional
from ._activations import activation_code

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AddLayerNorm", "AddRMSNorm", "AvgPool1d", "AvgPool2d",
    "AvgPool3d", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "ChannelRMSNorm", "FrobeniusNorm",
    "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "L1Norm", "L2Norm", "LPPool1d",
    "LPPool2d", "LayerNorm", "MaxPool1d", "MaxPool2d", "MaxPool3d", "RMSNorm",
]

# ---- Activations --------------------------------------------------------------------------------


def _init_with_activation(base: Type[torch.nn.Module]) -> Callable[..., None]:
    """__init__ of a subclass of `base` that takes an activation besides."""

    def __init__(
        self: torch.nn.Module, *args: Any, activation: Optional[str] = None, **options: Any
    ) -> None:
        activation_code(activation)
        base.__init__(self, *args, **options)
        if activation is not None:
            self.activation = activation

    own = inspect.signature(base.__init__)
    added = inspect.Parameter("activation", inspect.Parameter.KEYWORD_ONLY, default=None,
                              annotation=Optional[str])
    __init__.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), added])
    return __init__


def _repr_with_activation(module: torch.nn.Module, text: str) -> str:
    return text if module.activation is None else f"{text}, activation={module.activation!r}"


def _activate_in_script(x: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return torch.nn.functional.relu(x)
    elif activation == "gelu":
        return torch.nn.functional.gelu(x)
    elif activation == "gelu_tanh":
        return torch.nn.functional.gelu(x, approximate="tanh")
    else:
        return torch.nn.functional.silu(x)


# ---- Over the last axes -------------------------------------------------------------------------


class LayerNorm(torch.nn.LayerNorm):
    __constants__ = [*torch.nn.LayerNorm.__constants__, "activation"]
    activation: Optional[str] = None
    __init__ = _init_with_activation(torch.nn.LayerNorm)

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            y = torch.nn.functional.layer_norm(
                input, self.normalized_shape, self.weight, self.bias, self.eps)
            if self.activation is not None:
                y = _activate_in_script(y, self.activation)
            return y
        else:
            # self.weight takes half a microsecond to find; with parametrizations, and in replicas,
            # it is not a parameter.
            own = self._parameters
            weight = own["weight"] if "weight" in own else self.weight
            bias = own["bias"] if "bias" in own else self.bias
            return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps,
                                         activation=self.activation)

    def extra_repr(self) -> str:
        return _repr_with_activation(self, super().extra_repr())


class AddLayerNorm(LayerNorm):
    """LayerNorm of the sum of two tensors: forward(input, residual) gives it and the sum."""

    def forward(self, input: Tensor, residual: Tensor) -> Tuple[Tensor, Tensor]:  # type: ignore[override]
        return functional.add_layer_norm(input, residual, self.normalized_shape, self.weight, self.bias,
                                         self.eps, self.activation)


if hasattr(torch.nn, "RMSNorm"):
    _RMSNorm = torch.nn.RMSNorm
else:  # before 2.4

    class _RMSNorm(torch.nn.Module):
        __constants__ = ["normalized_shape", "eps", "elementwise_affine"]

        def __init__(
            self,
            normalized_shape: Union[int, Sequence[int]],
            eps: Optional[float] = None,
            elementwise_affine: bool = True,
            device: Any = None,
            dtype: Any = None,
        ) -> None:
            super().__init__()
            shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
            self.normalized_shape, self.eps = tuple(shape), eps
            self.elementwise_affine = elementwise_affine
            weight = None
            if elementwise_affine:
                weight = torch.nn.Parameter(torch.empty(self.normalized_shape, device=device, dtype=dtype))
            self.register_parameter("weight", weight)
            self.reset_parameters()

        def reset_parameters(self) -> None:
            if self.elementwise_affine:
                torch.nn.init.ones_(self.weight)

        def extra_repr(self) -> str:
            return (f"{self.normalized_shape}, eps={self.eps}, "
                    f"elementwise_affine={self.elementwise_affine}")


class RMSNorm(_RMSNorm):
    __constants__ = [*_RMSNorm.__constants__, "activation"]
    activation: Optional[str] = None
    __init__ = _init_with_activation(_RMSNorm)

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            y = torch.rms_norm(x, self.normalized_shape, self.weight, self.eps)
            if self.activation is not None:
                y = _activate_in_script(y, self.activation)
            return y
        else:
            return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps,
                                       activation=self.activation)

    def extra_repr(self) -> str:
        return _repr_with_activation(self, super().extra_repr())


class AddRMSNorm(RMSNorm):
    """RMSNorm of the sum of two tensors: forward(input, residual) gives it and the sum."""

    def forward(self, input: Tensor, residual: Tensor) -> Tuple[Tensor, Tensor]:  # type: ignore[override]
        return functional.add_rms_norm(input, residual, self.normalized_shape, self.weight, self.eps,
                                       self.activation)


class ChannelRMSNorm(RMSNorm):
    """RMSNorm over dim 1 of (N, C, ...): ChannelRMSNorm(num_channels, eps, elementwise_affine)."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            y = torch.rms_norm(x.movedim(1, -1), self.normalized_shape, self.weight, self.eps)
            y = y.movedim(-1, 1)
            if self.activation is not None:
                y = _activate_in_script(y, self.activation)
            return y
        else:
            return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps, dim=1,
                                       activation=self.activation)


# ---- By channel ---------------------------------------------------------------------------------


class GroupNorm(torch.nn.GroupNorm):
    __constants__ = [*torch.nn.GroupNorm.__constants__, "activation"]
    activation: Optional[str] = None
    __init__ = _init_with_activation(torch.nn.GroupNorm)

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            y = torch.nn.functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)
            if self.activation is not None:
                y = _activate_in_script(y, self.activation)
            return y
        else:
            return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps,
                                         activation=self.activation)

    def extra_repr(self) -> str:
        return _repr_with_activation(self, super().extra_repr())


class _BatchNorm:
    """The forward of torch.nn's, which counts batches and decides whose statistics are used."""

    __constants__ = [*torch.nn.BatchNorm1d.__constants__, "activation"]
    activation: Optional[str] = None

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if self.momentum is None:
            factor = 0.0
        else:
            factor = self.momentum
        if self.training and self.track_running_stats:
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                if self.momentum is None:  # a cumulative average
                    factor = 1.0 / float(self.num_batches_tracked)
        if self.training:
            training = True
        else:
            training = (self.running_mean is None) and (self.running_var is None)
        mean = self.running_mean if not self.training or self.track_running_stats else None
        var = self.running_var if not self.training or self.track_running_stats else None
        if torch.jit.is_scripting():
            y = torch.nn.functional.batch_norm(
                input, mean, var, self.weight, self.bias, training, factor, self.eps)
            if self.activation is not None:
                y = _activate_in_script(y, self.activation)
            return y
        else:
            return functional.batch_norm(input, mean, var, self.weight, self.bias, training, factor,
                                         self.eps, activation=self.activation)

    def extra_repr(self) -> str:
        return _repr_with_activation(self, super().extra_repr())


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    __init__ = _init_with_activation(torch.nn.BatchNorm1d)


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    __init__ = _init_with_activation(torch.nn.BatchNorm2d)


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    __init__ = _init_with_activation(torch.nn.BatchNorm3d)


class _InstanceNorm:
    """What torch.nn's forward calls when it has looked at the shape."""

    __constants__ = [*torch.nn.InstanceNorm1d.__constants__, "axes_without_batch"]

    if not hasattr(torch, "export"):  # the compiler of 2.0 does not follow forward into methods of torch.nn's

        def forward(self, input: Tensor) -> Tensor:
            self._check_input_dim(input)
            if input.dim() == self.axes_without_batch:
                return self._apply_instance_norm(input.unsqueeze(0)).squeeze(0)
            return self._apply_instance_norm(input)

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        if self.momentum is None:
            momentum = 0.0
        else:
            momentum = self.momentum
        if torch.jit.is_scripting():
            return torch.nn.functional.instance_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias,
                self.training or not self.track_running_stats, momentum, self.eps)
        else:
            return functional.instance_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias,
                self.training or not self.track_running_stats, momentum, self.eps)


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    axes_without_batch = 2


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    axes_without_batch = 3


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    axes_without_batch = 4


# ---- By length ----------------------------------------------------------------------------------


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


class L2Norm(torch.nn.Module):
    """x / (sqrt(sum of x^2 over dim) + eps)."""

    __constants__ = ["dim", "eps"]

    def __init__(self, dim: Union[int, Sequence[int]] = 1, eps: float = 0.0) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, input: Tensor) -> Tensor:
        return functional.l2_norm(input, self.dim, self.eps)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, eps={self.eps}"


class FrobeniusNorm(torch.nn.Module):
    """x / sqrt(sum of all x^2)."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.frobenius_norm(input)


# ---- Pooling ------------------------------------------------------------------------------------


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


class AvgPool2d(torch.nn.AvgPool2d):
    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.avg_pool2d(
                input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
                self.count_include_pad, self.divisor_override)
        else:
            return functional.avg_pool2d(
                input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
                self.count_include_pad, self.divisor_override)


class AvgPool3d(torch.nn.AvgPool3d):
    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.avg_pool3d(
                input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
                self.count_include_pad, self.divisor_override)
        else:
            return functional.avg_pool3d(
                input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
                self.count_include_pad, self.divisor_override)


class MaxPool1d(torch.nn.MaxPool1d):
    def forward(self, input: Tensor):  # noqa: ANN201 - TorchScript infers which
        if torch.jit.is_scripting():
            return torch.nn.functional.max_pool1d(
                input, self.kernel_size, self.stride, self.padding, self.dilation,
                ceil_mode=self.ceil_mode, return_indices=self.return_indices)
        else:
            return functional.max_pool1d(
                input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
                self.return_indices)


class MaxPool2d(torch.nn.MaxPool2d):
    def forward(self, input: Tensor):  # noqa: ANN201 - TorchScript infers which
        if torch.jit.is_scripting():
            return torch.nn.functional.max_pool2d(
                input, self.kernel_size, self.stride, self.padding, self.dilation,
                ceil_mode=self.ceil_mode, return_indices=self.return_indices)
        else:
            return functional.max_pool2d(
                input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
                self.return_indices)


class MaxPool3d(torch.nn.MaxPool3d):
    def forward(self, input: Tensor):  # noqa: ANN201 - TorchScript infers which
        if torch.jit.is_scripting():
            return torch.nn.functional.max_pool3d(
                input, self.kernel_size, self.stride, self.padding, self.dilation,
                ceil_mode=self.ceil_mode, return_indices=self.return_indices)
        else:
            return functional.max_pool3d(
                input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode,
                self.return_indices)


class AdaptiveAvgPool1d(torch.nn.AdaptiveAvgPool1d):
    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.adaptive_avg_pool1d(input, self.output_size)
        else:
            return functional.adaptive_avg_pool1d(input, self.output_size)


class AdaptiveAvgPool2d(torch.nn.AdaptiveAvgPool2d):
    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.adaptive_avg_pool2d(input, self.output_size)
        else:
            return functional.adaptive_avg_pool2d(input, self.output_size)


class AdaptiveAvgPool3d(torch.nn.AdaptiveAvgPool3d):
    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.adaptive_avg_pool3d(input, self.output_size)
        else:
            return functional.adaptive_avg_pool3d(input, self.output_size)


class AdaptiveMaxPool1d(torch.nn.AdaptiveMaxPool1d):
    def forward(self, input: Tensor):  # noqa: ANN201 - TorchScript infers which
        if torch.jit.is_scripting():
            return torch.nn.functional.adaptive_max_pool1d(input, self.output_size, self.return_indices)
        else:
            return functional.adaptive_max_pool1d(input, self.output_size, self.return_indices)


class AdaptiveMaxPool2d(torch.nn.AdaptiveMaxPool2d):
    def forward(self, input: Tensor):  # noqa: ANN201 - TorchScript infers which
        if torch.jit.is_scripting():
            return torch.nn.functional.adaptive_max_pool2d(input, self.output_size, self.return_indices)
        else:
            return functional.adaptive_max_pool2d(input, self.output_size, self.return_indices)


class AdaptiveMaxPool3d(torch.nn.AdaptiveMaxPool3d):
    def forward(self, input: Tensor):  # noqa: ANN201 - TorchScript infers which
        if torch.jit.is_scripting():
            return torch.nn.functional.adaptive_max_pool3d(input, self.output_size, self.return_indices)
        else:
            return functional.adaptive_max_pool3d(input, self.output_size, self.return_indices)


class LPPool1d(torch.nn.LPPool1d):
    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.lp_pool1d(
                input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)
        else:
            return functional.lp_pool1d(
                input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)


class LPPool2d(torch.nn.LPPool2d):
    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return torch.nn.functional.lp_pool2d(
                input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)
        else:
            return functional.lp_pool2d(
                input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)


if hasattr(torch.nn, "LPPool3d"):  # from 2.3 on

    class LPPool3d(torch.nn.LPPool3d):
        def forward(self, input: Tensor) -> Tensor:
            if torch.jit.is_scripting():
                return torch.nn.functional.lp_pool3d(
                    input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)
            else:
                return functional.lp_pool3d(
                    input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    __all__ += ["LPPool3d"]
