"""What the operators need of PyTorch, whichever version it is.

A call of an operator goes one of four ways:

direct       Plain tensors, nothing watching: straight to the C library, with an autograd.Function
             around it where a gradient is needed. This is the way that has to be quick.
operator     Somebody wants to see the call rather than its result: torch.compile, export, fake
             tensors. They get an operator of the library `onepass`, registered with PyTorch below.
PyTorch      Anything else: tensor subclasses, vmap, forward-mode AD, torch.jit.trace, types and
             devices that onepass does not cover, and everything that is an error.
"""

from typing import Any, Callable, Dict, NoReturn, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _native

__all__ = [
    "DIRECT", "DIRECT_WITH_GRAD", "NotCovered", "define", "differentiate", "explain",
    "has_known_type", "is_compiling", "is_traceable", "needs_grad",
]

DIRECT = _native.PLAIN
DIRECT_WITH_GRAD = _native.PLAIN | _native.NEEDS_GRAD


class NotCovered(Exception):
    """What the C library leaves to PyTorch, seen from within an autograd.Function."""


# ---- What the binding has to know of this PyTorch ---------------------------------------------------

# Modes in which a tensor's elements are not all there is to it, or in which somebody has to see
# every operator. Should a later PyTorch lack one of these functions, no call is direct any more.
_MODES = (
    "_len_torch_function_stack",
    "_len_torch_dispatch_stack",
    "_are_functorch_transforms_active",
    "_get_tracing_state",
)


def _always() -> bool:
    return True


def _allocate(size: int, device: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))


def _no_stream(device: int) -> NoReturn:
    raise RuntimeError("this PyTorch has no CUDA streams")


_native.setup(
    getattr(Tensor, "__dlpack_c_exchange_api__", None),
    Tensor,
    torch.nn.Parameter,
    torch.strided,
    tuple(getattr(torch._C, name, _always) for name in _MODES),
    torch._C._is_any_autocast_enabled,
    torch.is_grad_enabled,
    forward_ad,
    torch.get_num_threads,
    getattr(torch._C, "_cuda_getCurrentRawStream", _no_stream),
    _allocate,
    {torch.float32: (2, 32), torch.float64: (2, 64), torch.float16: (2, 16),
     torch.bfloat16: (4, 16)},
)

# ---- Which way a call goes --------------------------------------------------------------------------

# A constant for torch.compile; before 2.1 it had another name.
if hasattr(torch, "compiler"):
    is_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
else:
    is_compiling = torch._utils.is_compiling

_TRACED_TYPES = ("FakeTensor", "FunctionalTensor")


def is_traceable(*tensors: Optional[Tensor]) -> bool:
    """Whether a call that is not direct is one for the registered operator."""
    given = [tensor for tensor in tensors if tensor is not None]
    return not (
        torch.overrides.has_torch_function(given)
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state()
        or forward_ad._current_level >= 0
        or any(
            type(tensor) not in (Tensor, torch.nn.Parameter)
            and type(tensor).__name__ not in _TRACED_TYPES
            for tensor in given
        )
    )


def _covers_cuda(index: int) -> bool:
    return _native.covers_cuda(index)


# torch.compile takes the answer as a constant, as torch.compiler.assume_constant_result would have it;
# calling that would import the compiler.
_covers_cuda._dynamo_marked_constant = True  # type: ignore[attr-defined]


def has_known_type(tensor: Tensor) -> bool:
    """Whether onepass has kernels for tensors of this type and rank, on this device."""
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        return False
    if tensor.layout != torch.strided or tensor.is_neg() or not 1 <= tensor.dim() <= 8:
        return False
    if tensor.device.type == "cuda":
        return _covers_cuda(tensor.device.index)
    return tensor.device.type == "cpu"


def needs_grad(*tensors: Optional[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


# ---- PyTorch's own operators ------------------------------------------------------------------------


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)} on {value.device}"
    return repr(value)


def explain(operator: Callable[..., Tensor], name: str, arguments: Dict[str, Any]) -> Tensor:
    """PyTorch's own operator; when it raises, the message also says what the arguments were."""
    try:
        return operator(*arguments.values())
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        # Subclasses such as torch.cuda.OutOfMemoryError have constructors of their own.
        known = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError)
        if type(error) not in known:
            raise
        given = ", ".join(f"{key}: {_describe(value)}" for key, value in arguments.items())
        raise type(error)(f"{error} [{name}() got {given}]") from None


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


# ---- Operators for those who want to see calls ------------------------------------------------------

_library = torch.library.Library("onepass", "DEF")


def define(
    schema: str,
    kernel: Callable[..., Any],
    meta: Callable[..., Any],
    autograd: Optional[Callable[..., Any]] = None,
    autocast_cuda: Optional[Callable[..., Any]] = None,
) -> Callable[..., Any]:
    """Registers an operator torch.ops.onepass.<name> that torch.compile treats as one piece."""
    name = schema.split("(")[0]
    _library.define(schema)
    _library.impl(name, kernel, "CPU")
    _library.impl(name, kernel, "CUDA")
    _library.impl(name, meta, "Meta")
    if autograd is not None:
        _library.impl(name, autograd, "Autograd")
    if autocast_cuda is not None:
        _library.impl(name, autocast_cuda, "AutocastCUDA")
    return getattr(torch.ops.onepass, name)
