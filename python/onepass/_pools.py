"""The poolings, a function for each.

What one adds to _pool_operator.py is how its arguments become fields, and which function of PyTorch's does
what the library does not. AvgPool1d, which has a quicker way of its own, is in _avg_pool1d.py.
"""

from typing import Any, Callable, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ._pool_operator import Pool
from ._torch import ERRORS, explain

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "avg_pool2d", "avg_pool3d", "lp_pool1d",
    "lp_pool2d", "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool2d_with_indices",
    "max_pool3d", "max_pool3d_with_indices",
]

Lengths = Union[int, Sequence[int]]


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"torch.nn.functional.{name}."
    return function


def _avg_pool(spatial: int) -> Callable[..., Tensor]:
    pool = Pool("avg_pool", spatial)

    def avg_pool(
        input: Tensor,
        kernel_size: Lengths,
        stride: Optional[Lengths] = None,
        padding: Lengths = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Optional[int] = None,
    ) -> Tensor:
        if divisor_override != 0:
            output = pool.call(input, (kernel_size, stride, padding, 1, ceil_mode, count_include_pad,
                                       divisor_override or 0, 0.0))
            if output is not None:
                return output
        try:
            return pool.of_torch(input, kernel_size, () if stride is None else stride, padding, ceil_mode,
                                 count_include_pad, divisor_override)
        except ERRORS as error:
            raise explain(error, pool.name, input=input, kernel_size=kernel_size, stride=stride,
                          padding=padding, ceil_mode=ceil_mode, count_include_pad=count_include_pad,
                          divisor_override=divisor_override) from None

    return _named(avg_pool, pool.name)


def _max_pool(spatial: int) -> Tuple[Callable[..., Any], Callable[..., Tuple[Tensor, Tensor]]]:
    pool = Pool("max_pool", spatial)

    def max_pool(
        input: Tensor,
        kernel_size: Lengths,
        stride: Optional[Lengths] = None,
        padding: Lengths = 0,
        dilation: Lengths = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Union[Tensor, Tuple[Tensor, Tensor]]:
        results = pool.call(input, (kernel_size, stride, padding, dilation, ceil_mode, False, 0, 0.0),
                            return_indices)
        if results is not None:
            return results
        try:
            return pool.of_torch(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        except ERRORS as error:
            raise explain(error, pool.name, input=input, kernel_size=kernel_size, stride=stride,
                          padding=padding, dilation=dilation, ceil_mode=ceil_mode,
                          return_indices=return_indices) from None

    def max_pool_with_indices(
        input: Tensor,
        kernel_size: Lengths,
        stride: Optional[Lengths] = None,
        padding: Lengths = 0,
        dilation: Lengths = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tuple[Tensor, Tensor]:
        return max_pool(input, kernel_size, stride, padding, dilation, ceil_mode, True)

    return _named(max_pool, pool.name), _named(max_pool_with_indices, f"{pool.name}_with_indices")


def _output_size(given: Any, input: Tensor, spatial: int) -> Any:
    """With the input's own lengths in place of None; () for what PyTorch has an error for."""
    if isinstance(given, (tuple, list)):
        if len(given) != spatial:
            return ()
        if spatial > 1 and isinstance(input, Tensor) and any(n is None for n in given):
            if input.dim() > spatial:
                return [n if m is None else m for m, n in zip(given, input.shape[-spatial:])]
    return given


def _adaptive_avg_pool(spatial: int) -> Callable[..., Tensor]:
    pool = Pool("adaptive_avg_pool", spatial)

    def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
        output = pool.call(input, (_output_size(output_size, input, spatial),))
        if output is not None:
            return output
        try:
            return pool.of_torch(input, output_size)
        except ERRORS as error:
            raise explain(error, pool.name, input=input, output_size=output_size) from None

    return _named(adaptive_avg_pool, pool.name)


def _adaptive_max_pool(spatial: int) -> Tuple[Callable[..., Any], Callable[..., Tuple[Tensor, Tensor]]]:
    pool = Pool("adaptive_max_pool", spatial)

    def adaptive_max_pool(
        input: Tensor, output_size: Any, return_indices: bool = False
    ) -> Union[Tensor, Tuple[Tensor, Tensor]]:
        results = pool.call(input, (_output_size(output_size, input, spatial),), return_indices)
        if results is not None:
            return results
        try:
            return pool.of_torch(input, output_size, return_indices)
        except ERRORS as error:
            raise explain(error, pool.name, input=input, output_size=output_size,
                          return_indices=return_indices) from None

    def adaptive_max_pool_with_indices(
        input: Tensor, output_size: Any, return_indices: bool = False
    ) -> Tuple[Tensor, Tensor]:
        return adaptive_max_pool(input, output_size, True)

    return (_named(adaptive_max_pool, pool.name),
            _named(adaptive_max_pool_with_indices, f"{pool.name}_with_indices"))


def _lp_pool(spatial: int) -> Callable[..., Tensor]:
    # PyTorch's is made of several operators.
    pool = Pool("lp_pool", spatial, f"pow.Tensor_Scalar avg_pool{spatial}d", may_be_small=False)

    def lp_pool(
        input: Tensor,
        norm_type: Union[int, float],
        kernel_size: Lengths,
        stride: Optional[Lengths] = None,
        ceil_mode: bool = False,
    ) -> Tensor:
        if isinstance(norm_type, (int, float)) and (spatial > 1 or isinstance(kernel_size, int)):
            output = pool.call(input, (kernel_size, stride, 0, 1, ceil_mode, False, 0, float(norm_type)))
            if output is not None:
                return output
        try:
            return pool.of_torch(input, norm_type, kernel_size, stride, ceil_mode)
        except ERRORS as error:
            raise explain(error, pool.name, input=input, norm_type=norm_type, kernel_size=kernel_size,
                          stride=stride, ceil_mode=ceil_mode) from None

    return _named(lp_pool, pool.name)


avg_pool2d, avg_pool3d = _avg_pool(2), _avg_pool(3)
max_pool1d, max_pool1d_with_indices = _max_pool(1)
max_pool2d, max_pool2d_with_indices = _max_pool(2)
max_pool3d, max_pool3d_with_indices = _max_pool(3)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_avg_pool, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool1d_with_indices = _adaptive_max_pool(1)
adaptive_max_pool2d, adaptive_max_pool2d_with_indices = _adaptive_max_pool(2)
adaptive_max_pool3d, adaptive_max_pool3d_with_indices = _adaptive_max_pool(3)
lp_pool1d, lp_pool2d = _lp_pool(1), _lp_pool(2)
if hasattr(torch.nn.functional, "lp_pool3d"):  # from 2.3 on
    lp_pool3d = _lp_pool(3)
