"""The C library for PyTorch's tensors; _native.c says what it promises."""

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from torch import Tensor, dtype, layout

PLAIN: int
NEEDS_GRAD: int
AUTOCAST: int
version: str

def setup(
    exchange: Any,
    tensor_type: type,
    parameter_type: type,
    strided: layout,
    modes: Tuple[Callable[[], object], ...],
    autocast: Callable[[], bool],
    grad_enabled: Callable[[], bool],
    forward_ad: Any,
    threads: Callable[[], int],
    stream: Callable[[int], int],
    allocate: Callable[[int, int], Tensor],
    dtypes: Dict[dtype, Tuple[int, int]],
    /,
) -> None: ...
def kind(*tensors: Optional[Tensor]) -> int: ...
def covers_cuda(index: int, /) -> bool: ...
def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
    y: Tensor,
    statistics: Optional[Tensor],
    /,
) -> bool: ...
def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    statistics: Tensor,
    dx: Tensor,
    dweight: Optional[Tensor],
    dbias: Optional[Tensor],
    /,
) -> bool: ...
def l1_norm(x: Tensor, dim: int, by_sum: bool, eps: float, y: Tensor, /) -> bool: ...
def l1_norm_backward(
    dy: Tensor, x: Tensor, dim: int, by_sum: bool, eps: float, dx: Tensor, /
) -> bool: ...
def avg_pool1d(
    x: Tensor,
    kernel: int,
    stride: int,
    padding: int,
    ceil_mode: bool,
    count_include_pad: bool,
    y: Tensor,
    /,
) -> bool: ...
def avg_pool1d_backward(
    dy: Tensor,
    kernel: int,
    stride: int,
    padding: int,
    ceil_mode: bool,
    count_include_pad: bool,
    dx: Tensor,
    /,
) -> bool: ...
