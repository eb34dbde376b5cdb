"""What the poolings share: their one way to the C library, its gradient, and the operators that torch.compile
sees. _pools.py has a function for each of them.

A call is a pooling, its fields and a tensor.
"""

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor
from torch.autograd import Function

from . import _native
from ._torch import (
    DIRECT,
    DIRECT_WITH_GRAD,
    FLOATS,
    FLOAT_TYPES,
    OPERATOR,
    NotCovered,
    below_autograd,
    define,
    differentiate,
    has_kernel,
    is_channels_last,
    is_compiling,
    quick_apply,
    to_float32,
    way_back,
    way_of_watched,
)

__all__ = ["Pool", "pooled_length"]

# onepass_pool_op
AVG, MAX, LP = range(3)

# Of onepass_pool: kernel, stride (None: the kernel), padding, dilation (None: there is none), ceil_mode,
# count_include_pad, divisor (0: the window's size), p. Of an adaptive one: the output's size.
Fields = Tuple[Any, ...]
_WINDOW = ("int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode,"
           " bool count_include_pad, int divisor, float p")
_SIZE = "SymInt[] output_size"

# ---- Arguments and sizes ------------------------------------------------------------------------


def _each(given: Any, spatial: int, least: int) -> Optional[List[int]]:
    """A number for each axis, as read_lengths in _pools.c; None if it is for PyTorch to say what is wrong."""
    numbers = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(numbers) == 1:
        numbers = numbers * spatial
    if len(numbers) != spatial:
        return None
    for number in numbers:
        if not isinstance(number, (int, torch.SymInt)) or number < least:
            return None
    return numbers


def pooled_length(length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """How long a pooled axis becomes, 0 or less if no window fits; include/onepass.h has the same."""
    room = length + 2 * padding - (kernel - 1) * dilation - 1
    count = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (count - 1) * stride >= length + padding:
        count -= 1  # that window would start in the padding
    return count


def _format(channels_last: bool, spatial: int) -> torch.memory_format:
    if channels_last:
        return torch.channels_last if spatial == 2 else torch.channels_last_3d
    return torch.contiguous_format


def _covers_cuda(name: str, dtype: torch.dtype, index: int, channels_last: bool) -> bool:
    """Whether that GPU has kernels for windows of all kinds; not for the call's own, whose numbers may be
    variables for the compiler."""
    pool = _POOLS[name]
    kinds: List[Fields] = [((3,) * pool.spatial,)]
    if not pool.adaptive:
        padding, p = (0, 2.0) if pool.op == LP else (1, 0.0)
        kinds = [(3, 2, padding, dilation, ceil_mode, pool.op == AVG and not ceil_mode, 0, p)
                 for dilation in ((1, 2) if pool.op == MAX else (1,)) for ceil_mode in (False, True)]
    return all(_native.covers_pool(pool.describe(fields), FLOATS[dtype], index, channels_last)
               for fields in kinds)


_covers_cuda._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as in _torch.py
_POOLS: Dict[str, "Pool"] = {}

# ---- Autocast -----------------------------------------------------------------------------------

try:
    torch.is_autocast_enabled("cpu")
    _is_autocast_on: Callable[[str], bool] = torch.is_autocast_enabled
except TypeError:  # before 2.4

    def _is_autocast_on(device: str) -> bool:
        return torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()

    _is_autocast_on._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as above; 2.0 knows but one


def _devices_that_cast(*names: str) -> Set[str]:
    """Where autocast makes the arguments of one of these operators float32."""
    keys = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
    return {device for device, key in keys.items() for name in names if has_kernel(name, key)}


# ---- By PyTorch's operators, for second derivatives ---------------------------------------------


def _by_torch(pool: "Pool", fields: Fields, input: Tensor) -> Tensor:
    if pool.adaptive:
        return pool.of_torch(input, fields[0])
    kernel, stride, padding, _, ceil_mode, count_include_pad, divisor, p = fields
    if pool.op == LP:
        if pool.spatial == 1 and not isinstance(kernel, int):
            kernel, = kernel
        return pool.of_torch(input, p, kernel, stride, ceil_mode)
    return pool.of_torch(input, kernel, () if stride is None else stride, padding, ceil_mode,
                         count_include_pad, divisor or None)


def _where_inside(pool: "Pool", fields: Fields, indices: Tensor, shape: Sequence[int]) -> Tensor:
    """Which indices are of an element of their window: dilation makes windows that have none."""
    kernel, stride, padding, dilation = pool.normal(fields)[:4]
    inside, rest = torch.ones_like(indices, dtype=torch.bool), indices
    for axis in range(-1, -1 - pool.spatial, -1):
        ones = (1,) * (-1 - axis)
        first = torch.arange(indices.shape[axis], device=indices.device) * stride[axis] - padding[axis]
        at = rest if axis == -pool.spatial else rest % shape[axis]
        steps = at - first.reshape(-1, *ones)
        inside &= (at >= 0) & (at < shape[axis]) & (steps >= 0) & (steps % dilation[axis] == 0)
        inside &= steps < kernel[axis] * dilation[axis]
        rest = torch.div(rest, shape[axis], rounding_mode="floor")
    return inside


def _scatter(pool: "Pool", fields: Fields, grad: Tensor, indices: Tensor, shape: Sequence[int]) -> Tensor:
    """The gradient of a maximum."""
    spatial = shape[-pool.spatial:]
    if not pool.adaptive and any(d > n for d, n in zip(pool.normal(fields)[3], spatial)):
        inside = _where_inside(pool, fields, indices, shape)
        grad, indices = grad.where(inside, grad.new_zeros(())), indices.where(inside, indices.new_zeros(()))
    planes = shape[:-pool.spatial]
    zeros = grad.new_zeros((*planes, math.prod(spatial)))
    return zeros.scatter_add(-1, indices.reshape(*planes, -1), grad.reshape(*planes, -1)).reshape(shape)


# ---- With the C library -------------------------------------------------------------------------


class _Pool(Function):
    @staticmethod
    def forward(ctx: Any, pool: "Pool", input: Tensor, fields: Fields, wants_indices: bool) -> Any:
        results = _native.pool(pool.describe(fields), pool.op == MAX, input)
        if results is None:
            raise NotCovered(pool.name)
        output, indices = results if pool.op == MAX else (results, None)
        _keep(ctx, pool, input, fields, output, indices)
        if not wants_indices:
            return output
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(indices)
        return output, indices

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor], *_: None) -> Tuple[Optional[Tensor], ...]:
        if grad is None:
            return None, None, None, None
        pool, fields, shape, channels_last = ctx.rest
        indices = input = output = None
        if pool.op == MAX:
            indices, = ctx.saved_tensors
        elif pool.op == LP:
            input, output = ctx.saved_tensors
        way = way_back(grad, indices, input, output)
        grad_input: Optional[Tensor] = None
        if way == DIRECT:
            # An expanded gradient, as of sum(), would be read element by element.
            grad = grad.contiguous(memory_format=_format(channels_last, pool.spatial))
            grad_input = _native.pool_backward(
                pool.describe(fields), grad, shape, channels_last, indices, input, output)
        elif way == OPERATOR:
            grad_input = pool.backward_operator(
                grad, shape, channels_last, indices, input, output, *pool.normal(fields))
        if grad_input is None and pool.op == MAX:
            grad_input = _scatter(pool, fields, grad, indices, shape)
        elif grad_input is None:
            if input is None:  # averages are linear: their gradient does not depend on where it is taken
                input = torch.zeros(shape, dtype=grad.dtype, device=grad.device, requires_grad=True)
            grad_input, = differentiate(lambda x: _by_torch(pool, fields, x), (input,), (True,), grad)
        return None, grad_input, None, None


def _keep(ctx: Any, pool: "Pool", input: Tensor, fields: Fields, output: Tensor,
          indices: Optional[Tensor]) -> None:
    if pool.op == MAX:
        ctx.save_for_backward(indices)
    elif pool.op == LP:
        ctx.save_for_backward(input, output)
    ctx.rest = (pool, fields, input.shape, not input.is_contiguous() and pool.keeps_channels_last(input))


_apply = quick_apply(_Pool)

# ---- For torch.compile and export ---------------------------------------------------------------


class _TracedPool(_Pool):
    @staticmethod
    def forward(ctx: Any, pool: "Pool", input: Tensor, fields: Fields, wants_indices: bool) -> Any:
        with below_autograd():
            output, indices = pool.operator(input, *fields, pool.op == MAX)
        _keep(ctx, pool, input, fields, output, indices)
        if not wants_indices:
            indices = input.new_empty(0, dtype=torch.int64)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(indices)
        return output, indices


# ---- An operator of the family ------------------------------------------------------------------


class Pool:
    """One operator of the family. `call`, with fields, gives the output, or it and the indices if asked for;
    None if the library does not cover the call or PyTorch's is quicker. `cast` are the operators that
    autocast knows."""

    def __init__(self, kind: str, spatial: int, cast: str = "", may_be_small: bool = True) -> None:
        self.name, self.spatial = f"{kind}{spatial}d", spatial
        self.op = MAX if "max" in kind else LP if "lp" in kind else AVG
        self.adaptive = kind.startswith("adaptive")
        self.may_be_small = may_be_small
        self.of_torch: Callable[..., Any] = getattr(torch.nn.functional, self.name)
        self.casts = _devices_that_cast(*(cast.split() or [self.name]))
        _POOLS[self.name] = self
        fields = _SIZE if self.adaptive else _WINDOW
        self.operator = define(
            f"{self.name}(Tensor input, {fields}, bool indices) -> (Tensor, Tensor)",
            self._forward, self._forward_meta,
            lambda input, *arguments: _TracedPool.apply(self, input, arguments[:-1], arguments[-1]))
        self.backward_operator = define(
            f"{self.name}_backward(Tensor grad, SymInt[] shape, bool channels_last, Tensor? indices,"
            f" Tensor? input, Tensor? output, {fields}) -> Tensor",
            self._backward, self._backward_meta)

    def call(self, input: Tensor, fields: Fields, wants_indices: bool = False) -> Any:
        if is_compiling():
            way = OPERATOR
        else:
            kind = _native.kind_or_small if self.may_be_small else _native.kind
            way = kind(input) or way_of_watched(input)
        if self.casts and way in (DIRECT, DIRECT_WITH_GRAD, OPERATOR):
            # max_pool3d is in autocast's list, but not with its indices
            if not (wants_indices and not self.adaptive) and input.device.type in self.casts:
                if _is_autocast_on(input.device.type):
                    input = to_float32(input)
        if way == DIRECT:
            return _native.pool(self.describe(fields), wants_indices, self._dense(input))
        if way == DIRECT_WITH_GRAD:
            try:
                return _apply(self, self._dense(input), fields, wants_indices)
            except NotCovered:
                return None
        if way == OPERATOR:
            normal = self._normal_if_covered(input, fields)
            if normal is not None:
                results = self.operator(input, *normal, wants_indices)
                return results if wants_indices else results[0]
        return None

    def describe(self, fields: Fields) -> Tuple[Any, ...]:
        """As _native.pool takes it."""
        if self.adaptive:
            return (self.op, self.spatial, True, fields[0], None, None, None, False, False, 0, 0.0)
        kernel, stride, padding, dilation, *rest = fields
        return (self.op, self.spatial, False, kernel, stride, padding,
                dilation if self.op == MAX else None, *rest)

    def normal(self, fields: Fields) -> Fields:
        """As the registered operators take it: a number for each axis. Only for what is covered."""
        if self.adaptive:
            return (_each(fields[0], self.spatial, 1),)
        kernel, stride, padding, dilation, *rest = fields
        return (_each(kernel, self.spatial, 1), _each(kernel if stride is None else stride, self.spatial, 1),
                _each(padding, self.spatial, 0), _each(dilation, self.spatial, 1), *rest)

    def keeps_channels_last(self, input: Tensor) -> bool:
        """As pools_channels_last in _pools.c."""
        if self.spatial == 1 or input.dim() != self.spatial + 2:
            return False
        return is_channels_last(input)

    def _dense(self, input: Tensor) -> Tensor:
        """A GPU would read what has gaps element by element."""
        if not input.is_cuda or input.is_contiguous() or self.keeps_channels_last(input):
            return input
        return input.contiguous()

    def _normal_if_covered(self, input: Tensor, fields: Fields) -> Optional[Fields]:
        """For those who look at tensors without data; where there is data the C library decides."""
        if not isinstance(input, Tensor) or input.dtype not in FLOAT_TYPES or input.layout != torch.strided:
            return None
        if input.dim() - self.spatial not in (1, 2) or input.numel() == 0:
            return None
        normal = self.normal(fields)
        if any(numbers is None for numbers in normal):
            return None
        if not self.adaptive:
            kernel, stride, padding, dilation, ceil_mode, count_include_pad, divisor, p = normal
            if not isinstance(divisor, int) or divisor < 0 or not isinstance(p, float):
                return None
            if self.op == LP and not 0 < p < math.inf:
                return None
            if not isinstance(ceil_mode, bool) or not isinstance(count_include_pad, bool):
                return None
            for axis in range(-self.spatial, 0):
                length = input.shape[axis]
                if 2 * padding[axis] > kernel[axis]:
                    return None
                if pooled_length(length, kernel[axis], stride[axis], padding[axis], dilation[axis],
                                 ceil_mode) < 1:
                    return None
                if self.spatial == 3 and self.op != MAX and length < kernel[axis]:
                    return None
        if input.device.type == "cuda":
            if not _covers_cuda(self.name, input.dtype, input.device.index, self.keeps_channels_last(input)):
                return None
        elif input.device.type != "cpu":
            return None
        return normal

    # What is registered with PyTorch. Without indices there is an empty tensor for them.

    def _forward(self, input: Tensor, *arguments: Any) -> Optional[Tuple[Tensor, Tensor]]:
        *fields, wants_indices = arguments
        results = _native.pool(self.describe(fields), wants_indices, self._dense(input))
        if results is None or wants_indices:
            return results
        return results, input.new_empty(0, dtype=torch.int64)

    def _forward_meta(self, input: Tensor, *arguments: Any) -> Tuple[Tensor, Tensor]:
        *fields, wants_indices = arguments
        outer, spatial = input.shape[:-self.spatial], input.shape[-self.spatial:]
        if self.adaptive:
            pooled = fields[0]
        else:
            pooled = [pooled_length(n, *window, fields[4]) for n, *window in zip(spatial, *fields[:4])]
        memory_format = _format(self.keeps_channels_last(input), self.spatial)
        output = torch.empty((*outer, *pooled), dtype=input.dtype, device=input.device,
                             memory_format=memory_format)
        if not wants_indices:
            return output, input.new_empty(0, dtype=torch.int64)
        return output, torch.empty_like(output, dtype=torch.int64, memory_format=memory_format)

    def _backward(
        self,
        grad: Tensor,
        shape: Sequence[int],
        channels_last: bool,
        indices: Optional[Tensor],
        input: Optional[Tensor],
        output: Optional[Tensor],
        *fields: Any,
    ) -> Optional[Tensor]:
        grad = grad.contiguous(memory_format=_format(channels_last, self.spatial))
        return _native.pool_backward(
            self.describe(fields), grad, shape, channels_last, indices, input, output)

    def _backward_meta(
        self, grad: Tensor, shape: Sequence[int], channels_last: bool, *_: Any
    ) -> Tensor:
        return torch.empty(shape, dtype=grad.dtype, device=grad.device,
                           memory_format=_format(channels_last, self.spatial))
