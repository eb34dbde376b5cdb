"""The normalizations: one way to the C library for all of them, then a function for each.

A call is a description, as _native.norm takes it, and tensors. What an operator adds is how its arguments
become a description, and which function of PyTorch's does what the library does not. LayerNorm and L1Norm
have quicker ways of their own, in _layer_norm.py and _l1_norm.py.
"""

import math
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.autograd import Function

from . import _native
from ._torch import (
    DIRECT,
    DIRECT_WITH_GRAD,
    ERRORS,
    OPERATOR,
    SMALL,
    NotCovered,
    below_autograd,
    casts_under_autocast,
    define,
    differentiate,
    explain,
    has_known_type,
    is_compiling,
    mark_as_changed,
    needs_grad,
    to_float32,
    way_back,
    way_of_watched,
)

__all__ = [
    "Norm", "activate", "activation_code", "add_rms_norm", "batch_norm", "frobenius_norm", "group_norm",
    "instance_norm", "l2_norm", "normalize", "rms_norm",
]

# onepass_norm_op
L1, LAYER, L2, RMS, GROUP, BATCH = range(6)

# onepass_norm: op, axis (or normalized_shape), axes, groups (-1: a group a channel), eps, clamp,
# use_running, momentum, activation.
Description = Tuple[int, Union[int, Sequence[int]], int, int, float, bool, bool, float, int]

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


# ---- Layouts ------------------------------------------------------------------------------------


def _is_channels_last(tensor: Tensor) -> bool:
    """The strides that torch.empty has for that memory format; _tensors.c has the same."""
    if tensor.dim() not in (4, 5) or tensor.stride(1) != 1 or tensor.numel() == 0:
        return False
    expected = tensor.shape[1]
    for axis in (*range(tensor.dim() - 1, 1, -1), 0):
        if tensor.stride(axis) != expected:
            return False
        expected = expected * tensor.shape[axis]
    return True


def _format_of(op: int, input: Tensor) -> torch.memory_format:
    """Of y, sum and dx; layout_of in _norms.c says the same."""
    if op in (L1, L2):
        return torch.preserve_format
    if op != LAYER and _is_channels_last(input):
        return torch.channels_last if input.dim() == 4 else torch.channels_last_3d
    return torch.contiguous_format


def _dense(op: int, input: Tensor) -> Tensor:
    """A GPU would read what has gaps element by element."""
    if not input.is_cuda or input.is_contiguous() or op in (L1, L2):
        return input
    return input.contiguous(memory_format=_format_of(op, input))


def _laid_out_as(op: int, input: Tensor, grad: Tensor) -> Tensor:
    """An expanded gradient, as of sum(), would be read element by element."""
    if input.is_contiguous():
        return grad.contiguous()
    return grad if op in (L1, L2) else grad.contiguous(memory_format=_format_of(op, input))


# ---- By PyTorch's operators, for second derivatives ---------------------------------------------


def _axes_of(description: Description, input: Tensor) -> Tuple[int, ...]:
    op, axis, axes = description[:3]
    first = axis % input.dim() if isinstance(axis, int) else input.dim() - len(axis)
    return tuple(range(first, first + axes if axes else first + 1 if op in (L1, L2) else input.dim()))


def _rms_norm_by_torch(
    input: Tensor, axes: Sequence[int], weight: Optional[Tensor], eps: float
) -> Tensor:
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    output = wide * torch.rsqrt(wide.pow(2).mean(axes, keepdim=True) + eps)
    if weight is not None:
        output = output * weight.reshape(weight.shape + (1,) * (input.dim() - 1 - axes[-1]))
    return output.to(input.dtype)


def _by_length(
    input: Tensor, ord: int, axes: Union[int, Sequence[int]], eps: float, clamp: bool = False
) -> Tensor:
    length = torch.linalg.vector_norm(input, ord, axes, keepdim=True)
    if clamp:
        return input / length.clamp_min(eps)
    return input / (length + eps if eps != 0 else length)


def _with_statistics(
    input: Tensor,
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    statistics: Union[Tensor, bytes],
) -> Tensor:
    """Evaluation by channel: the statistics are constants."""
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    if not isinstance(statistics, Tensor):
        statistics = torch.frombuffer(bytearray(statistics), dtype=wide.dtype).reshape(2, -1)
    ones = (1,) * (input.dim() - 2)
    mean, rstd = statistics.reshape((2, -1, input.shape[1]) + ones)
    output = (wide - mean) * rstd
    if weight is not None:
        output = output * weight.reshape((-1,) + ones)
    if bias is not None:
        output = output + bias.reshape((-1,) + ones)
    return output.to(input.dtype)


def _by_torch(
    description: Description,
    input: Tensor,
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    statistics: Union[Tensor, bytes, None],
) -> Tensor:
    op, _, _, groups, eps, clamp, use_running, _, code = description
    F = torch.nn.functional
    if use_running:
        output = _with_statistics(input, weight, bias, statistics)
    elif op in (L1, L2):
        return _by_length(input, 1 if op == L1 else 2, _axes_of(description, input), eps, clamp)
    elif op == RMS:
        output = _rms_norm_by_torch(input, _axes_of(description, input), weight, eps)
    elif op == LAYER:
        shape = input.shape[_axes_of(description, input)[0]:]
        output = F.layer_norm(input, shape, weight, bias, eps)
    elif op == BATCH:
        output = F.batch_norm(input, None, None, weight, bias, True, 0.0, eps)
    elif groups == -1:
        output = F.instance_norm(input, None, None, weight, bias, True, 0.0, eps)
    else:
        output = F.group_norm(input, groups, weight, bias, eps)
    return next(function for number, function in _ACTIVATIONS.values() if number == code)(output)


# ---- With the C library -------------------------------------------------------------------------


class _Norm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        norm: "Norm",
        input: Tensor,
        residual: Optional[Tensor],
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        running_mean: Optional[Tensor],
        running_var: Optional[Tensor],
        description: Description,
    ) -> Tuple[Tensor, ...]:
        results = _native.norm(description, _native.STATISTICS, input, residual, weight, bias,
                               running_mean, running_var)
        if results is None:
            raise NotCovered(norm.name)
        output, total, statistics = results
        ctx.save_for_backward(input if total is None else total, weight, bias)
        ctx.rest = (norm, description, statistics)
        if total is None:
            return output,
        ctx.set_materialize_grads(False)
        return output, total

    @staticmethod
    def backward(
        ctx: Any, grad: Optional[Tensor], grad_sum: Optional[Tensor] = None, *_: None
    ) -> Tuple[Optional[Tensor], ...]:
        input, weight, bias = ctx.saved_tensors
        norm, description, statistics = ctx.rest
        _, *needs = ctx.needs_input_grad[:5]
        rest = (None,) * (len(ctx.needs_input_grad) - 5)
        if grad is None:  # at most the sum was used
            return None, grad_sum, grad_sum if needs[1] else None, None, None, *rest
        wanted = (needs[0] or needs[1], needs[2], needs[3])
        way = way_back(grad, grad_sum, input, weight, bias)
        grads: Optional[Tuple[Optional[Tensor], ...]] = None
        if way == DIRECT:
            grads = _native.norm_backward(
                description, _laid_out_as(norm.op, input, grad),
                None if grad_sum is None else _laid_out_as(norm.op, input, grad_sum),
                input, weight, bias, statistics, wanted[1], wanted[2])
        elif way == OPERATOR and not isinstance(statistics, bytes):
            grads = norm.backward_operator(
                grad, grad_sum, input, weight, bias, statistics, *_fields(description, input), wanted[1:])
        if grads is None:
            grads = differentiate(
                lambda x, w, b: _by_torch(description, x, w, b, statistics),
                (input, weight, bias), wanted, grad)
            if grad_sum is not None and wanted[0]:
                grads = (grads[0] + grad_sum, *grads[1:])
        of_input, of_weight, of_bias = (g if want else None for g, want in zip(grads, wanted))
        return None, of_input, of_input if needs[1] else None, of_weight, of_bias, *rest


# Function.apply itself only looks whether a functorch transform is active, which is known here.
_apply = super(Function, _Norm).apply

# ---- For torch.compile and export ---------------------------------------------------------------


class _TracedNorm(_Norm):
    @staticmethod
    def forward(ctx: Any, norm: "Norm", *arguments: Any) -> Tuple[Tensor, ...]:
        with below_autograd():
            output, total, statistics, *running = norm.operator(*arguments)
        input, residual, weight, bias = arguments[:4]
        ctx.save_for_backward(input if residual is None else total, weight, bias)
        ctx.rest = (norm, (norm.op, *arguments[6:]), statistics)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*([total] if residual is None else []), statistics, *running)
        return (output, total, statistics, *running)


def _fields(description: Description, input: Tensor) -> Tuple[Any, ...]:
    """A description as registered operators take it: without the operator, and the axis a number."""
    axis = description[1]
    return (axis if isinstance(axis, int) else input.dim() - len(axis), *description[2:])


def _moves_on(running_mean: Optional[Tensor], description: Description) -> bool:
    return running_mean is not None and not description[6]


def _count(lengths: Sequence[int]) -> int:
    count = 1
    for length in lengths:
        count = count * length
    return count


def _empty_statistics(description: Description, input: Tensor) -> Tensor:
    op, _, _, groups = description[:4]
    if op == L1:
        return input.new_empty(0)
    if op == BATCH:
        rows = input.shape[1]
    elif op == GROUP:
        rows = input.shape[0] * (input.shape[1] if groups == -1 else groups)
    else:
        inside = _axes_of(description, input)
        rows = _count([n for axis, n in enumerate(input.shape) if axis not in inside])
    dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
    return input.new_empty((1 if op in (L2, RMS) else 2, rows), dtype=dtype)


_FIELDS = ("int axis, int axes, SymInt groups, float eps, bool clamp, bool use_running, float momentum,"
           " int activation")


class Norm:
    """One operator of the family, called with a description: (output, sum with the residual or None, ...);
    None if the library does not cover the call; () if it may be small and is: then PyTorch's is quicker.
    `of_torch` is the operator that autocast knows."""

    def __init__(self, name: str, op: int, of_torch: str) -> None:
        self.name, self.op = name, op
        self.casts = casts_under_autocast(of_torch)
        self.operator = define(
            f"{name}(Tensor input, Tensor? residual, Tensor? weight, Tensor? bias, Tensor? running_mean,"
            f" Tensor? running_var, {_FIELDS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
            self._forward, self._forward_meta, self._forward_autograd,
            self._forward_autocast if self.casts else None)
        self.backward_operator = define(
            f"{name}_backward(Tensor grad, Tensor? grad_sum, Tensor input, Tensor? weight, Tensor? bias,"
            f" Tensor statistics, {_FIELDS}, bool[2] wanted) -> (Tensor, Tensor, Tensor)",
            self._backward, self._backward_meta)

    def __call__(
        self,
        description: Description,
        may_be_small: bool,
        input: Tensor,
        residual: Optional[Tensor],
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        running_mean: Optional[Tensor] = None,
        running_var: Optional[Tensor] = None,
    ) -> Optional[Tuple[Optional[Tensor], ...]]:
        if is_compiling():
            way = OPERATOR
        else:
            kind = _native.kind_or_small if may_be_small else _native.kind
            way = (kind(input, residual, weight, bias, running_mean, running_var)
                   or way_of_watched(input, residual, weight, bias, running_mean, running_var))
            if way & DIRECT and input.is_cuda:
                if self.casts and torch.is_autocast_enabled():
                    if residual is not None:  # whose sum keeps its type
                        return None
                    input, weight, bias = to_float32(input), to_float32(weight), to_float32(bias)
                input = _dense(self.op, input)
        if way == DIRECT:
            return _native.norm(description, _native.NO_STATISTICS, input, residual, weight, bias,
                                running_mean, running_var)
        if way == DIRECT_WITH_GRAD:
            for tensor in (running_mean, running_var):
                if tensor is not None and tensor.requires_grad:  # an error
                    return None
            try:
                return _apply(self, input, residual, weight, bias, running_mean, running_var, description)
            except NotCovered:
                return None
        if way == OPERATOR and self._covers(description, input, residual, weight, bias, running_mean,
                                            running_var):
            results = self.operator(input, residual, weight, bias, running_mean, running_var,
                                    *_fields(description, input))
            if _moves_on(running_mean, description):
                running_mean.copy_(results[3])
                running_var.copy_(results[4])
            return results
        return () if way == SMALL else None

    def _covers(
        self,
        description: Description,
        input: Tensor,
        residual: Optional[Tensor],
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        running_mean: Optional[Tensor],
        running_var: Optional[Tensor],
    ) -> bool:
        """For those who look at tensors without data; where there is data the C library decides."""
        op, axis, axes, groups, eps, _, use_running, momentum, activation = description
        fused = residual is not None or activation != 0
        name = f"fused_{self.name}" if fused and op != LAYER else self.name
        if not isinstance(input, Tensor) or not has_known_type(input, name):
            return False
        if not isinstance(eps, (int, float)) or not 0 <= eps < math.inf:
            return False
        if residual is not None:
            if self.casts and input.device.type == "cuda" and torch.is_autocast_enabled():
                return False
            if residual.shape != input.shape or residual.dtype != input.dtype:
                return False
            if residual.device != input.device:
                return False
        if op in (GROUP, BATCH):
            if not _covers_channels(description, input):
                return False
            if not isinstance(momentum, (int, float)) or not 0 <= momentum <= 1:
                return False
            if (running_mean is None) != (running_var is None) or (use_running and running_mean is None):
                return False
            shape = (input.shape[1],)
        elif isinstance(axis, int):
            if not -input.dim() <= axis < input.dim() or not 0 <= axes <= input.dim() - axis % input.dim():
                return False
            shape = tuple(input.shape[i] for i in _axes_of(description, input))
        else:
            if not isinstance(axis, (tuple, list)) or not 1 <= len(axis) <= input.dim():
                return False
            shape = tuple(axis)
            if tuple(input.shape[-len(shape):]) != shape:
                return False
        given = [t for t in (weight, bias, running_mean, running_var) if t is not None]
        for tensor in given:
            if tuple(tensor.shape) != shape or tensor.device != input.device:
                return False
            if tensor.dtype != given[0].dtype:
                return False
            if tensor.dtype != input.dtype and not (
                tensor.dtype == torch.float32 and input.dtype in (torch.float16, torch.bfloat16)
            ):
                return False
        return running_mean is None or not (running_mean.requires_grad or running_var.requires_grad)

    # What is registered with PyTorch. Running statistics are not changed but returned anew, so that the
    # operators are functions, which every version of the compiler understands.

    def _forward(
        self,
        input: Tensor,
        residual: Optional[Tensor],
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        running_mean: Optional[Tensor],
        running_var: Optional[Tensor],
        *fields: Any,
    ) -> Tuple[Tensor, ...]:
        description = (self.op, *fields)
        if _moves_on(running_mean, description):
            running_mean, running_var = running_mean.clone(), running_var.clone()
        results = _native.norm(description, _native.STATISTICS_TENSOR, _dense(self.op, input), residual,
                               weight, bias, running_mean, running_var)
        if results is None:
            raise NotCovered(self.name)
        moved = (running_mean, running_var) if _moves_on(running_mean, description) else (None, None)
        return tuple(input.new_empty(0) if t is None else t for t in (*results, *moved))

    def _forward_meta(
        self,
        input: Tensor,
        residual: Optional[Tensor],
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        running_mean: Optional[Tensor],
        running_var: Optional[Tensor],
        *fields: Any,
    ) -> Tuple[Tensor, ...]:
        description = (self.op, *fields)
        memory_format = _format_of(self.op, input)
        moves_on = _moves_on(running_mean, description)
        return (
            torch.empty_like(input, memory_format=memory_format),
            input.new_empty(0) if residual is None
            else torch.empty_like(input, memory_format=memory_format),
            _empty_statistics(description, input),
            torch.empty_like(running_mean) if moves_on else input.new_empty(0),
            torch.empty_like(running_var) if moves_on else input.new_empty(0),
        )

    def _forward_autograd(self, *arguments: Any) -> Tuple[Tensor, ...]:
        if needs_grad(*arguments[:4]):
            return _TracedNorm.apply(self, *arguments)
        with below_autograd():
            return self.operator(*arguments)

    def _forward_autocast(self, *arguments: Any) -> Tuple[Tensor, ...]:
        with torch.autocast("cuda", enabled=False):
            return self.operator(*map(to_float32, arguments[:4]), *arguments[4:])

    def _backward(
        self,
        grad: Tensor,
        grad_sum: Optional[Tensor],
        input: Tensor,
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        statistics: Tensor,
        *rest: Any,
    ) -> Tuple[Tensor, ...]:
        *fields, wanted = rest
        input = _dense(self.op, input)
        grads = _native.norm_backward(
            (self.op, *fields), _laid_out_as(self.op, input, grad),
            None if grad_sum is None else _laid_out_as(self.op, input, grad_sum),
            input, weight, bias, statistics, *wanted)
        if grads is None:
            raise NotCovered(f"{self.name}_backward")
        return tuple(input.new_empty(0) if grad is None else grad for grad in grads)

    def _backward_meta(
        self,
        grad: Tensor,
        grad_sum: Optional[Tensor],
        input: Tensor,
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        statistics: Tensor,
        *rest: Any,
    ) -> Tuple[Tensor, ...]:
        wanted: List[bool] = rest[-1]
        return (
            torch.empty_like(input, memory_format=_format_of(self.op, input)),
            *(torch.empty_like(t, memory_format=torch.contiguous_format) if want else input.new_empty(0)
              for t, want in zip((weight, bias), wanted)),
        )


def _covers_channels(description: Description, input: Tensor) -> bool:
    """As check_channels in _norms.c: what PyTorch has no error for, nor an opinion of its own."""
    op, _, _, groups, eps, _, use_running, _, _ = description
    if input.dim() < 2 or input.numel() == 0 or (op == BATCH and eps <= 0):
        return False
    if not isinstance(groups, (int, torch.SymInt)):
        return False
    if op == GROUP and groups != -1 and (groups < 1 or input.shape[1] % groups != 0):
        return False
    spatial = _count(input.shape[2:])
    return use_running or (spatial if groups == -1 else input.shape[0] * spatial) != 1


# ---- The operators ------------------------------------------------------------------------------

_RMS_NORM = Norm("rms_norm", RMS, "rms_norm")
_GROUP_NORM = Norm("group_norm", GROUP, "group_norm")
_INSTANCE_NORM = Norm("instance_norm", GROUP, "instance_norm")
_BATCH_NORM = Norm("batch_norm", BATCH, "batch_norm")
_L2_NORM = Norm("l2_norm", L2, "linalg_vector_norm")
_L1_NORMALIZE = Norm("l1_normalize", L1, "norm.ScalarOpt_dim")


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
        done = _GROUP_NORM((GROUP, 0, 0, num_groups, eps, False, False, 0.0, code), not code, input, None,
                           weight, bias)
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
    done = _BATCH_NORM((BATCH, 0, 0, 0, eps, False, not training, momentum, code), not code, input, None,
                       weight, bias, running_mean, running_var)
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
    done = _INSTANCE_NORM((GROUP, 0, 0, -1, eps, False, not use_input_stats, momentum, 0), False, input,
                          None, weight, bias, running_mean, running_var)
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


# ---- RMSNorm


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
    return _rms_norm_by_torch(input, axes, weight, _default_eps(input) if eps is None else eps)


def _eps_of_halves() -> Optional[float]:
    """float32's, as halves are summed in it; from 2.4 to 2.6 PyTorch took that of the input's type."""
    if hasattr(torch.nn.functional, "rms_norm"):
        x = torch.full((1, 1), 2.0**-10, dtype=torch.float16)
        if torch.nn.functional.rms_norm(x, (1,)).item() < 0.5:
            return None
    return torch.finfo(torch.float32).eps


_EPS_OF_HALVES = _eps_of_halves()
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
        done = _RMS_NORM((RMS, dim, len(normalized_shape), 0, _default_eps(input) if eps is None else eps,
                          False, False, 0.0, code), False, input, None, weight, None)
    if done is not None:
        return done[0]
    if code:
        return activate(rms_norm(input, normalized_shape, weight, eps, dim=dim), activation)
    try:
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
    return _RMS_NORM((RMS, normalized_shape, 0, 0, _default_eps(input) if eps is None else eps, False,
                      False, 0.0, code), False, input, residual, weight, None)


# ---- By length

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
    done = _L2_NORM((L2, axis, axes, 0, eps, False, False, 0.0, 0), False, input, None, None, None)
    if done is not None:
        return done[0]
    try:
        return _by_length(input, 2, dim, eps)
    except ERRORS as error:
        raise explain(error, "l2_norm", input=input, dim=dim, eps=eps) from None


def frobenius_norm(input: Tensor) -> Tensor:
    """input / sqrt(sum of all input^2)."""
    if isinstance(input, Tensor) and input.dim() > 0:
        done = _L2_NORM((L2, 0, input.dim(), 0, 0.0, False, False, 0.0, 0), False, input, None, None, None)
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
        done = norm((norm.op, axis, axes, 0, eps, True, False, 0.0, 0), False, input, None, None, None)
        if done is not None:
            return done[0]
    try:
        return torch.nn.functional.normalize(input, p, dim, eps, out)
    except ERRORS as error:
        raise explain(error, "normalize", input=input, p=p, dim=dim, eps=eps, out=out) from None
