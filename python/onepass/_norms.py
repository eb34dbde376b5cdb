"""The normalizations, a function for each.

What one adds to _norm_operator.py is how its arguments become a description, and which function of PyTorch's
does what the library does not. LayerNorm and L1Norm, which have quicker ways of their own, are in
_layer_norm.py and _l1_norm.py.
"""

from typing import Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ._activations import activate, activation_code
from ._norm_operator import (
    ANYTHING,
    BATCH,
    GROUP,
    L1,
    L2,
    NOTHING,
    ON_GPU,
    RMS,
    Norm,
    by_length,
    rms_norm_by_torch,
)
from ._torch import ERRORS, explain, has_kernel, is_compiling, mark_as_changed

__all__ = [
    "add_rms_norm", "batch_norm", "frobenius_norm", "group_norm", "instance_norm", "l2_norm", "normalize",
    "rms_norm",
]

_RMS_NORM = Norm("rms_norm", RMS, "rms_norm")
_GROUP_NORM = Norm("group_norm", GROUP, "group_norm")
_INSTANCE_NORM = Norm("instance_norm", GROUP, "instance_norm")
_BATCH_NORM = Norm("batch_norm", BATCH, "batch_norm")
_L2_NORM = Norm("l2_norm", L2, "linalg_vector_norm")
_L1_NORMALIZE = Norm("l1_normalize", L1, "norm.ScalarOpt_dim")

# ---- By channel ---------------------------------------------------------------------------------


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
    *,
    activation: Optional[str] = None,
) -> Tensor:
    """torch.nn.functional.group_norm, and then the activation: "relu", "gelu", "gelu_tanh" or "silu"."""
    code = activation_code(activation)
    done = None
    if num_groups != -1:
        done = _GROUP_NORM.call((GROUP, 0, 0, num_groups, eps, False, False, 0.0, code),
                                NOTHING if code else ANYTHING, input, None, weight, bias)
        if done:
            return done[0]
    if code:
        return activate(group_norm(input, num_groups, weight, bias, eps), activation)
    try:
        if done is not None and _has_more_than_one(input) and num_groups > 0:
            return torch.group_norm(input, num_groups, weight, bias, eps)
        return torch.nn.functional.group_norm(input, num_groups, weight, bias, eps)
    except ERRORS as error:
        raise explain(error, "group_norm", input=input, num_groups=num_groups, weight=weight, bias=bias,
                      eps=eps) from None


def _has_more_than_one(input: Tensor) -> bool:
    """Values of each channel; otherwise torch.nn.functional has an error, which takes it 5 us to decide."""
    shape = input.shape
    return len(shape) > 1 and input.numel() > shape[1]


def batch_norm(
    input: Tensor,
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    activation: Optional[str] = None,
) -> Tensor:
    """torch.nn.functional.batch_norm, and then the activation."""
    code = activation_code(activation)
    done = _BATCH_NORM.call((BATCH, 0, 0, 0, eps, False, not training, momentum, code),
                            NOTHING if code else ANYTHING, input, None, weight, bias, running_mean,
                            running_var)
    if done:
        return done[0]
    if code:
        return activate(batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps),
                        activation)
    try:
        if done is not None and _has_more_than_one(input) and eps > 0:
            return torch.batch_norm(input, weight, bias, running_mean, running_var, training, momentum,
                                    eps, torch.backends.cudnn.enabled)
        return torch.nn.functional.batch_norm(input, running_mean, running_var, weight, bias, training,
                                              momentum, eps)
    except ERRORS as error:
        raise explain(error, "batch_norm", input=input, running_mean=running_mean, running_var=running_var,
                      weight=weight, bias=bias, training=training, momentum=momentum, eps=eps) from None


def instance_norm(
    input: Tensor,
    running_mean: Optional[Tensor] = None,
    running_var: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.instance_norm."""
    done = _INSTANCE_NORM.call((GROUP, 0, 0, -1, eps, False, not use_input_stats, momentum, 0), NOTHING,
                               input, None, weight, bias, running_mean, running_var)
    if done is not None:
        if running_mean is not None and use_input_stats and not is_compiling():
            mark_as_changed(running_mean)  # which PyTorch does not do in batch_norm
            mark_as_changed(running_var)
        return done[0]
    try:
        return torch.nn.functional.instance_norm(input, running_mean, running_var, weight, bias,
                                                 use_input_stats, momentum, eps)
    except ERRORS as error:
        raise explain(error, "instance_norm", input=input, running_mean=running_mean,
                      running_var=running_var, weight=weight, bias=bias, use_input_stats=use_input_stats,
                      momentum=momentum, eps=eps) from None


# ---- RMSNorm ------------------------------------------------------------------------------------


def _rms_norm_of_torch(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    eps: Optional[float],
    dim: Optional[int],
) -> Tensor:
    if dim is None and hasattr(torch.nn.functional, "rms_norm"):
        return torch.nn.functional.rms_norm(input, normalized_shape, weight, eps)
    shape, first = tuple(normalized_shape), dim if dim is not None else -len(normalized_shape)
    if not 1 <= len(shape) <= input.dim():
        raise RuntimeError(f"expected 1 to {input.dim()} normalized axes, but got {len(shape)}")
    if not -input.dim() <= first <= input.dim() - len(shape) or first + len(shape) > 0 > first:
        raise IndexError(f"there are no {len(shape)} axes from {first} on in {tuple(input.shape)}")
    axes = tuple(first % input.dim() + i for i in range(len(shape)))
    if tuple(input.shape[axis] for axis in axes) != shape:
        raise RuntimeError(f"expected {shape} at axes {axes}, but got {tuple(input.shape)}")
    if weight is not None and tuple(weight.shape) != shape:
        raise RuntimeError(f"expected a weight of shape {shape}, but got {tuple(weight.shape)}")
    if not input.is_floating_point() and not input.is_complex():
        raise NotImplementedError(f'"rms_norm" not implemented for {input.dtype}')
    return rms_norm_by_torch(input, axes, weight, _default_eps(input) if eps is None else eps)


def _eps_of_halves() -> Optional[float]:
    """float32's, as halves are summed in it; from 2.4 to 2.6 PyTorch took that of the input's type."""
    if hasattr(torch.nn.functional, "rms_norm"):
        x = torch.full((1, 1), 2.0**-10, dtype=torch.float16)
        if torch.nn.functional.rms_norm(x, (1,)).item() < 0.5:
            return None
    return torch.finfo(torch.float32).eps


_EPS_OF_HALVES = _eps_of_halves()
# Of its own on a GPU; without one PyTorch makes rms_norm of four other operators.
_HAS_KERNEL = has_kernel("_fused_rms_norm", "CUDA")
_EPS_OF_FLOAT, _EPS_OF_DOUBLE = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def _default_eps(input: Tensor) -> float:
    dtype = getattr(input, "dtype", None)
    if dtype == torch.float32:
        return _EPS_OF_FLOAT
    if dtype == torch.float16 or dtype == torch.bfloat16:
        return torch.finfo(dtype).eps if _EPS_OF_HALVES is None else _EPS_OF_HALVES
    return _EPS_OF_DOUBLE


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor] = None,
    eps: Optional[float] = None,
    *,
    dim: Optional[int] = None,
    activation: Optional[str] = None,
) -> Tensor:
    """torch.nn.functional.rms_norm, and then the activation. With `dim` the axes from that one on are
    normalized rather than the last ones."""
    code = activation_code(activation)
    done = None
    if dim is None:
        done = _call_rms_norm(input, None, normalized_shape, weight, eps, code)
    elif normalized_shape and tuple(input.shape[dim:][:len(normalized_shape)]) == tuple(normalized_shape):
        done = _RMS_NORM.call((RMS, dim, len(normalized_shape), 0,
                               _default_eps(input) if eps is None else eps, False, False, 0.0, code),
                              NOTHING, input, None, weight, None)
    if done:
        return done[0]
    if code:
        return activate(rms_norm(input, normalized_shape, weight, eps, dim=dim), activation)
    try:
        if done is not None:  # small
            return torch.rms_norm(input, normalized_shape, weight, eps)
        return _rms_norm_of_torch(input, normalized_shape, weight, eps, dim)
    except ERRORS as error:
        raise explain(error, "rms_norm", input=input, normalized_shape=normalized_shape, weight=weight,
                      eps=eps, dim=dim) from None


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor] = None,
    eps: Optional[float] = None,
    activation: Optional[str] = None,
) -> Tuple[Tensor, Tensor]:
    """rms_norm(input + residual, ...), and input + residual."""
    code = activation_code(activation)
    done = _call_rms_norm(input, residual, normalized_shape, weight, eps, code)
    if done is not None:
        return done[0], done[1]
    try:
        total = torch.add(input, residual)
    except ERRORS as error:
        raise explain(error, "add_rms_norm", input=input, residual=residual) from None
    return rms_norm(total, normalized_shape, weight, eps, activation=activation), total


def _call_rms_norm(
    input: Tensor,
    residual: Optional[Tensor],
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    eps: Optional[float],
    code: int,
) -> Optional[Tuple[Optional[Tensor], ...]]:
    if isinstance(normalized_shape, int):  # an error; not an axis
        return None
    small = ON_GPU if _HAS_KERNEL and residual is None and not code else NOTHING
    return _RMS_NORM.call((RMS, normalized_shape, 0, 0, _default_eps(input) if eps is None else eps, False,
                           False, 0.0, code), small, input, residual, weight, None)


# ---- By length ----------------------------------------------------------------------------------

Dim = Union[int, Sequence[int]]


def _first_and_count(dim: Dim) -> Tuple[int, int]:
    """Of axes that follow each other; otherwise there are -1."""
    if isinstance(dim, int):
        return dim, 1
    if isinstance(dim, (tuple, list)) and len(dim) > 0:
        first = dim[0]
        if all(isinstance(axis, int) and axis == first + i for i, axis in enumerate(dim)):
            if first >= 0 or first + len(dim) <= 0:
                return first, len(dim)
    return 0, -1


def l2_norm(input: Tensor, dim: Dim = 1, eps: float = 0.0) -> Tensor:
    """input / (sqrt(sum of input^2 over dim) + eps)."""
    axis, axes = _first_and_count(dim)
    done = _L2_NORM.call((L2, axis, axes, 0, eps, False, False, 0.0, 0), NOTHING, input, None, None, None)
    if done is not None:
        return done[0]
    try:
        return by_length(input, 2, dim, eps)
    except ERRORS as error:
        raise explain(error, "l2_norm", input=input, dim=dim, eps=eps) from None


def frobenius_norm(input: Tensor) -> Tensor:
    """input / sqrt(sum of all input^2)."""
    if isinstance(input, Tensor) and input.dim() > 0:
        done = _L2_NORM.call((L2, 0, input.dim(), 0, 0.0, False, False, 0.0, 0), NOTHING, input, None, None,
                             None)
        if done is not None:
            return done[0]
    try:
        return input / torch.linalg.vector_norm(input)
    except ERRORS as error:
        raise explain(error, "frobenius_norm", input=input) from None


def normalize(
    input: Tensor,
    p: float = 2.0,
    dim: Dim = 1,
    eps: float = 1e-12,
    out: Optional[Tensor] = None,
) -> Tensor:
    """torch.nn.functional.normalize."""
    if out is None and isinstance(p, (int, float)) and (p == 1 or p == 2) and isinstance(eps, (int, float)):
        axis, axes = _first_and_count(dim)
        norm = _L2_NORM if p == 2 else _L1_NORMALIZE
        done = norm.call((norm.op, axis, axes, 0, eps, True, False, 0.0, 0), NOTHING, input, None, None, None)
        if done is not None:
            return done[0]
    try:
        return torch.nn.functional.normalize(input, p, dim, eps, out)
    except ERRORS as error:
        raise explain(error, "normalize", input=input, p=p, dim=dim, eps=eps, out=out) from None
