"""What the operators need of PyTorch, whichever version it is.

A call of an operator goes one of these ways:

DIRECT            Nobody is watching: straight to the C library. This is the way that has to be quick.
DIRECT_WITH_GRAD  The same, in an autograd.Function.
SMALL             A gradient is needed of so small a tensor that recording it in Python, as an
                  autograd.Function does, would take longer than PyTorch's own operator does.
OPERATOR          Somebody wants to see the call rather than its result: torch.compile, export, fake
                  tensors. They get an operator that is registered with PyTorch, as one piece.
PYTORCH           Tensor subclasses, vmap, forward-mode AD, torch.jit.trace, all types and devices that
                  onepass does not cover, and everything that is an error.
"""

from contextlib import contextmanager
from typing import Any, Callable, Iterator, NoReturn, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from . import _native

__all__ = [
    "DIRECT", "DIRECT_WITH_GRAD", "ERRORS", "FLOATS", "FLOAT_TYPES", "OPERATOR", "PYTORCH", "SMALL",
    "NotCovered", "below_autograd", "casts_under_autocast", "define", "differentiate", "explain",
    "has_kernel", "has_known_type", "is_channels_last", "is_compiling", "mark_as_changed", "quick_apply",
    "to_float32", "way_back", "way_of_watched",
]

# As _native.kind() has them, and then what it does not tell apart.
DIRECT = _native.PLAIN
DIRECT_WITH_GRAD = _native.PLAIN | _native.NEEDS_GRAD
OPERATOR = 4
PYTORCH = 8
SMALL = _native.SMALL


class NotCovered(Exception):
    """What the C library leaves to PyTorch, seen from where only a result can be returned."""


# ---- What the binding has to know of this PyTorch -----------------------------------------------

# Whether somebody has to see every operator. Should a later PyTorch lack one of these functions, no
# call is direct any more.
_WATCHERS = (
    "_len_torch_function_stack",
    "_len_torch_dispatch_stack",
    "_are_functorch_transforms_active",
    "_is_tracing",
)


# The types that have kernels, and what DLPack calls them: code and bits.
FLOATS = {torch.float32: (2, 32), torch.float64: (2, 64), torch.float16: (2, 16), torch.bfloat16: (4, 16)}
FLOAT_TYPES = tuple(FLOATS)  # the compiler of 2.0 does not look types up in a dict


def _always() -> bool:
    return True


def _workspace(size: int, device: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))


def _no_stream(device: int) -> NoReturn:
    raise RuntimeError("this PyTorch has no CUDA streams")


_native.setup(
    getattr(Tensor, "__dlpack_c_exchange_api__", None),
    Tensor,
    torch.nn.Parameter,
    tuple(getattr(torch._C, name, _always) for name in _WATCHERS),
    torch.is_grad_enabled,
    forward_ad,
    torch.get_num_threads,
    getattr(torch._C, "_cuda_getCurrentRawStream", _no_stream),
    _workspace,
    torch.empty_like,
    {"memory_format": torch.contiguous_format},
    {"dtype": torch.float32},
    {"dtype": torch.int64},
    {**FLOATS, torch.int64: (0, 64)},
)

# Elements. On a GPU both operators are done with a MiB sooner than Python is with recording it.
_native.set_small(1 << 12, 1 << 18)

# ---- Which way a call goes ----------------------------------------------------------------------

# A constant for torch.compile; early versions have another name for it.
if hasattr(getattr(torch, "compiler", None), "is_dynamo_compiling"):
    is_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
else:
    is_compiling = torch._utils.is_compiling

_TRACED_TYPES = ("FakeTensor", "FunctionalTensor")


def way_of_watched(*tensors: Optional[Tensor]) -> int:
    """For a call that is not direct. The first tensor is the input."""
    if (
        torch._C._are_functorch_transforms_active()
        or torch._C._is_tracing()
        or forward_ad._current_level >= 0
        or not isinstance(tensors[0], Tensor)
    ):
        return PYTORCH
    for tensor in tensors:
        known = tensor is None or type(tensor) in (Tensor, torch.nn.Parameter)
        if not known and type(tensor).__name__ not in _TRACED_TYPES:
            return PYTORCH
    return OPERATOR


def way_back(*tensors: Optional[Tensor]) -> int:
    """For a gradient. One that will be differentiated itself is PyTorch's."""
    if torch.is_grad_enabled():
        return PYTORCH
    return _native.kind(*tensors) or way_of_watched(*tensors)


def _covers_cuda(index: int) -> bool:
    return _native.covers_cuda(index)


# torch.compile takes the answer as a constant, as torch.compiler.assume_constant_result would have it;
# calling that would import the compiler.
_covers_cuda._dynamo_marked_constant = True  # type: ignore[attr-defined]


def has_known_type(tensor: Tensor) -> bool:
    """Whether onepass has kernels for tensors of this type and rank, on this device."""
    if tensor.dtype not in FLOAT_TYPES:
        return False
    if tensor.layout != torch.strided or not 1 <= tensor.dim() <= 8:
        return False
    if tensor.device.type == "cuda":
        return _covers_cuda(tensor.device.index)
    return tensor.device.type == "cpu"


def is_channels_last(tensor: Tensor) -> bool:
    """The strides that torch.empty has for that memory format; _tensors.c has the same."""
    if tensor.dim() not in (4, 5) or tensor.stride(1) != 1 or tensor.numel() == 0:
        return False
    expected = tensor.shape[1]
    for axis in (*range(tensor.dim() - 1, 1, -1), 0):
        if tensor.stride(axis) != expected:
            return False
        expected = expected * tensor.shape[axis]
    return True


def quick_apply(function: Type[Function]) -> Callable[..., Any]:
    """function.apply for calls that are direct: what it does besides the base class's is to look whether a
    functorch transform is active, which is known then."""
    return super(Function, function).apply


# ---- Autocast and version counters --------------------------------------------------------------


def has_kernel(name: str, key: str) -> bool:
    """Whether this PyTorch has an operator of that name, with a kernel under that dispatch key."""
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    except RuntimeError:  # there is no such operator
        return False


def casts_under_autocast(name: str) -> bool:
    """Whether autocast on CUDA makes all arguments of PyTorch's operator float32, in this version."""
    return has_kernel(name, "AutocastCUDA")


def to_float32(tensor: Optional[Tensor]) -> Optional[Tensor]:
    """What it does to each of them."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.float()


def _set_next_version(tensor: Tensor) -> None:
    torch._C._autograd._unsafe_set_version_counter(tensor, tensor._version + 1)


_increment_version: Callable[[Tensor], None] = getattr(  # not in 2.0
    torch.autograd.graph, "increment_version", _set_next_version)


def mark_as_changed(tensor: Tensor) -> None:
    """Tells autograd that a tensor was written to."""
    if not tensor.is_inference():  # which have no version
        _increment_version(tensor)


# ---- PyTorch's own operators --------------------------------------------------------------------


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        layout = "" if value.layout == torch.strided else f"{value.layout} "
        shape = "nested" if value.is_nested else list(value.shape)
        return f"{layout}{value.dtype} {shape} on {value.device}"
    return repr(value)


# What operators raise for bad arguments. Subclasses, such as torch.cuda.OutOfMemoryError, are not meant.
ERRORS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError,
          ZeroDivisionError)


def explain(error: Exception, name: str, **arguments: Any) -> Exception:
    """PyTorch's error with the names of the arguments and what they were."""
    if type(error) not in ERRORS:
        return error
    given = ", ".join(f"{key}: {_describe(value)}" for key, value in arguments.items())
    return type(error)(f"{error} [{name}() got {given}]")


def differentiate(
    operator: Callable[..., Tensor],
    tensors: Sequence[Optional[Tensor]],
    wanted: Sequence[bool],
    grad: Tensor,
) -> Tuple[Optional[Tensor], ...]:
    """The gradients of PyTorch's own operator, which can be differentiated again."""
    create_graph = torch.is_grad_enabled()
    inputs = [t for t, want in zip(tensors, wanted) if want]
    with torch.enable_grad():
        grads = torch.autograd.grad(operator(*tensors), inputs, grad, create_graph=create_graph)
    remaining = iter(grads)
    return tuple(next(remaining) if want else None for want in wanted)


# ---- Operators for those who want to see calls --------------------------------------------------

_library = torch.library.Library("onepass", "DEF")

if hasattr(torch._C._AutoDispatchBelowAutograd, "__enter__"):
    below_autograd = torch._C._AutoDispatchBelowAutograd
else:  # before 2.1 it works for as long as it lives

    @contextmanager
    def below_autograd() -> Iterator[None]:
        guard = torch._C._AutoDispatchBelowAutograd()
        try:
            yield
        finally:
            del guard


def _needs_grad(arguments: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)


def define(
    schema: str,
    kernel: Callable[..., Any],
    meta: Callable[..., Any],
    traced: Optional[Callable[..., Any]] = None,
    casts: bool = False,
) -> Callable[..., Any]:
    """Registers an operator torch.ops.onepass.<name> that torch.compile treats as one piece.

    kernel  does it; gives None if the library does not cover the call, and where there are several results
            None for each that there is not, which becomes an empty tensor
    meta    makes the outputs without data
    traced  is `apply` of the autograd.Function that calls the operator, if it has a gradient
    casts   says whether autocast on CUDA makes the arguments float32
    """
    name = schema.split("(")[0]

    def compute(*arguments: Any) -> Any:
        results = kernel(*arguments)
        if results is None:
            raise NotCovered(name)
        if isinstance(results, tuple):
            return tuple(arguments[0].new_empty(0) if result is None else result for result in results)
        return results

    def record(*arguments: Any) -> Any:
        if _needs_grad(arguments):
            return traced(*arguments)
        with below_autograd():
            return operator(*arguments)

    def cast(*arguments: Any) -> Any:
        with torch.autocast("cuda", enabled=False):
            return operator(*(to_float32(a) if isinstance(a, Tensor) else a for a in arguments))

    _library.define(schema)
    _library.impl(name, compute, "CPU")
    _library.impl(name, compute, "CUDA")
    _library.impl(name, meta, "Meta")
    if traced is not None:
        _library.impl(name, record, "Autograd")
    if casts:
        _library.impl(name, cast, "AutocastCUDA")
    operator = getattr(torch.ops.onepass, name)
    return operator
