"""What the normalizations share: their one way to the C library, its gradient, and the operators that
torch.compile sees. _norms.py has a function for each of them.

A call is a description, as _native.norm takes it, and tensors.
"""

import math
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor
from torch.autograd import Function

from . import _native
from ._activations import activate_by_code
from ._torch import (
    DIRECT,
    DIRECT_WITH_GRAD,
    OPERATOR,
    SMALL,
    NotCovered,
    below_autograd,
    casts_under_autocast,
    define,
    differentiate,
    has_known_type,
    is_channels_last,
    is_compiling,
    quick_apply,
    to_float32,
    way_back,
    way_of_watched,
)

__all__ = [
    "ANYTHING", "BATCH", "GROUP", "L1", "L2", "LAYER", "NOTHING", "ON_GPU", "RMS", "Description", "Norm",
    "by_length", "dense", "fit", "rms_norm_by_torch",
]

# onepass_norm_op
L1, LAYER, L2, RMS, GROUP, BATCH = range(6)

# onepass_norm: op, axis (or normalized_shape), axes, groups (-1: a group a channel), eps, clamp,
# use_running, momentum, activation.
Description = Tuple[int, Union[int, Sequence[int]], int, int, float, bool, bool, float, int]

# ---- Layouts ------------------------------------------------------------------------------------


def _format_of(op: int, input: Tensor) -> torch.memory_format:
    """Of y, sum and dx; layout_of in _norms.c says the same."""
    if op in (L1, L2):
        return torch.preserve_format
    if op != LAYER and is_channels_last(input):
        return torch.channels_last if input.dim() == 4 else torch.channels_last_3d
    return torch.contiguous_format


def dense(op: int, input: Tensor) -> Tensor:
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


def rms_norm_by_torch(
    input: Tensor, axes: Sequence[int], weight: Optional[Tensor], eps: float
) -> Tensor:
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    output = wide * torch.rsqrt(wide.pow(2).mean(axes, keepdim=True) + eps)
    if weight is not None:
        output = output * weight.reshape(weight.shape + (1,) * (input.dim() - 1 - axes[-1]))
    return output.to(input.dtype)


def by_length(
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
        return by_length(input, 1 if op == L1 else 2, _axes_of(description, input), eps, clamp)
    elif op == RMS:
        output = rms_norm_by_torch(input, _axes_of(description, input), weight, eps)
    elif op == LAYER:
        shape = input.shape[_axes_of(description, input)[0]:]
        output = F.layer_norm(input, shape, weight, bias, eps)
    elif op == BATCH:
        output = F.batch_norm(input, None, None, weight, bias, True, 0.0, eps)
    elif groups == -1:
        output = F.instance_norm(input, None, None, weight, bias, True, 0.0, eps)
    else:
        output = F.group_norm(input, groups, weight, bias, eps)
    return activate_by_code(output, code)


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


_apply = quick_apply(_Norm)

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


# ---- What is covered, without data --------------------------------------------------------------


def fit(input: Tensor, shape: Tuple[int, ...], *parameters: Optional[Tensor]) -> bool:
    """Whether parameters have that shape and one type: the input's, or float32 where that is a half."""
    given = [tensor for tensor in parameters if tensor is not None]
    for tensor in given:
        if tuple(tensor.shape) != shape or tensor.device != input.device:
            return False
        if tensor.dtype != given[0].dtype:
            return False
        if tensor.dtype != input.dtype and not (
            tensor.dtype == torch.float32 and input.dtype in (torch.float16, torch.bfloat16)
        ):
            return False
    return True


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


# ---- An operator of the family ------------------------------------------------------------------

_FIELDS = ("int axis, int axes, SymInt groups, float eps, bool clamp, bool use_running, float momentum,"
           " int activation")


# What may be left to PyTorch because it is small: nothing, anything, or what is on a GPU.
NOTHING, ANYTHING, ON_GPU = range(3)
_KINDS = (_native.kind, _native.kind_or_small, _native.kind_or_small_on_gpu)


class Norm:
    """One operator of the family. `call`, with a description, gives (output, sum with the residual or None,
    ...); None if the library does not cover the call; () if it may be small and is: then PyTorch's is
    quicker. `of_torch` is the operator that autocast knows."""

    def __init__(self, name: str, op: int, of_torch: str) -> None:
        self.name, self.op = name, op
        self.casts = casts_under_autocast(of_torch)
        self.operator = define(
            f"{name}(Tensor input, Tensor? residual, Tensor? weight, Tensor? bias, Tensor? running_mean,"
            f" Tensor? running_var, {_FIELDS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
            self._forward, self._forward_meta,
            lambda *arguments: _TracedNorm.apply(self, *arguments), self.casts)
        self.backward_operator = define(
            f"{name}_backward(Tensor grad, Tensor? grad_sum, Tensor input, Tensor? weight, Tensor? bias,"
            f" Tensor statistics, {_FIELDS}, bool[2] wanted) -> (Tensor, Tensor, Tensor)",
            self._backward, self._backward_meta)

    def call(
        self,
        description: Description,
        small: int,
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
            way = (_KINDS[small](input, residual, weight, bias, running_mean, running_var)
                   or way_of_watched(input, residual, weight, bias, running_mean, running_var))
            if way & DIRECT and input.is_cuda:
                if self.casts and torch.is_autocast_enabled():
                    if residual is not None:  # whose sum keeps its type
                        return None
                    input, weight, bias = to_float32(input), to_float32(weight), to_float32(bias)
                input = dense(self.op, input)
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
        op, axis, axes, _, eps, _, use_running, momentum, _ = description
        if not isinstance(input, Tensor) or not has_known_type(input):
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
        if not fit(input, shape, weight, bias, running_mean, running_var):
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
    ) -> Optional[Tuple[Optional[Tensor], ...]]:
        description = (self.op, *fields)
        if _moves_on(running_mean, description):
            running_mean, running_var = running_mean.clone(), running_var.clone()
        results = _native.norm(description, _native.STATISTICS_TENSOR, dense(self.op, input), residual,
                               weight, bias, running_mean, running_var)
        if results is None:
            return None
        moved = (running_mean, running_var) if _moves_on(running_mean, description) else (None, None)
        return (*results, *moved)

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

    def _backward(
        self,
        grad: Tensor,
        grad_sum: Optional[Tensor],
        input: Tensor,
        weight: Optional[Tensor],
        bias: Optional[Tensor],
        statistics: Tensor,
        *rest: Any,
    ) -> Optional[Tuple[Optional[Tensor], ...]]:
        *fields, wanted = rest
        input = dense(self.op, input)
        return _native.norm_backward(
            (self.op, *fields), _laid_out_as(self.op, input, grad),
            None if grad_sum is None else _laid_out_as(self.op, input, grad_sum),
            input, weight, bias, statistics, *wanted)

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
