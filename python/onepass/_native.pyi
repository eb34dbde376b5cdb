"""The C library for PyTorch's tensors; _native.c says what it promises."""

from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

from torch import Tensor, dtype

PLAIN: int
NEEDS_GRAD: int
SMALL: int
NO_STATISTICS: int
STATISTICS: int
STATISTICS_TENSOR: int
version: str

def setup(
    exchange: Any,
    tensor_type: type,
    parameter_type: type,
    modes: Tuple[Callable[[], object], ...],
    grad_enabled: Callable[[], bool],
    forward_ad: Any,
    threads: Callable[[], int],
    stream: Callable[[int], int],
    workspace: Callable[[int, int], Tensor],
    empty_like: Callable[..., Tensor],
    contiguous: Dict[str, Any],
    float32: Dict[str, Any],
    int64: Dict[str, Any],
    dtypes: Dict[dtype, Tuple[int, int]],
    /,
) -> None: ...
def kind(*tensors: Optional[Tensor]) -> int: ...
def kind_or_small(*tensors: Optional[Tensor]) -> int: ...
def kind_or_small_on_gpu(*tensors: Optional[Tensor]) -> int: ...
def set_small(on_cpu: int, on_cuda: int, /) -> Tuple[int, int]: ...
def covers_cuda(index: int, /) -> bool: ...
def norm(
    description: Tuple[Any, ...],
    statistics: int,
    x: Tensor,
    residual: Optional[Tensor],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    /,
) -> Optional[Tuple[Tensor, Optional[Tensor], Union[Tensor, bytes, None]]]: ...
def norm_backward(
    description: Tuple[Any, ...],
    dy: Tensor,
    dsum: Optional[Tensor],
    x: Tensor,
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    statistics: Union[Tensor, bytes, None],
    wants_weight: bool,
    wants_bias: bool,
    /,
) -> Optional[Tuple[Tensor, Optional[Tensor], Optional[Tensor]]]: ...
def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    eps: float,
    statistics: int,
    /,
) -> Any: ...
def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Optional[Tensor],
    bias: Optional[Tensor],
    statistics: Union[Tensor, bytes],
    wants_weight: bool,
    wants_bias: bool,
    /,
) -> Optional[Tuple[Tensor, Optional[Tensor], Optional[Tensor]]]: ...
def l1_norm(x: Tensor, dim: int, by_sum: bool, eps: float, /) -> Optional[Tensor]: ...
def l1_norm_backward(
    dy: Tensor, x: Tensor, dim: int, by_sum: bool, eps: float, /
) -> Optional[Tensor]: ...
def pool(description: Tuple[Any, ...], indices: bool, x: Tensor, /) -> Any: ...
def pool_backward(
    description: Tuple[Any, ...],
    dy: Tensor,
    shape: Sequence[int],
    channels_last: bool,
    indices: Optional[Tensor],
    x: Optional[Tensor],
    y: Optional[Tensor],
    /,
) -> Optional[Tensor]: ...
def covers_pool(
    description: Tuple[Any, ...], dtype: Tuple[int, int], index: int, channels_last: bool, /
) -> bool: ...
def avg_pool1d(
    x: Tensor,
    kernel: Union[int, Sequence[int]],
    stride: Union[int, Sequence[int], None],
    padding: Union[int, Sequence[int]],
    ceil_mode: bool,
    count_include_pad: bool,
    /,
) -> Optional[Tensor]: ...
def avg_pool1d_backward(
    dy: Tensor,
    length: int,
    kernel: int,
    stride: int,
    padding: int,
    ceil_mode: bool,
    count_include_pad: bool,
    /,
) -> Optional[Tensor]: ...
