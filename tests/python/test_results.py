"""Results over a grid of options, types and layouts, against PyTorch in float64."""

from typing import Callable, ContextManager, Dict, Optional, Tuple

import onepass.functional as F
import pytest
import torch
from conftest import FLOATS, assert_near, l1_norm_of_torch

Way = Callable[[], ContextManager[object]]

LAYOUTS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "permuted": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "sliced": lambda x: torch.cat([x, x], -1)[..., :x.shape[-1]],
    "every other": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "expanded": lambda x: x[:1].expand(x.shape),
    "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
}

each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
each_type = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def random(shape: Tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=torch.float64).to(dtype)


def check(ours: Callable[..., torch.Tensor], exact: Callable[..., torch.Tensor],
          *tensors: Optional[torch.Tensor], way: Way) -> None:
    """The output and all gradients, against float64 on the CPU: on a GPU, PyTorch's gradient of a padded
    avg_pool1d over a transposed tensor is wrong in many versions (pytorch/pytorch#188344)."""
    mine = [None if t is None else t.detach().requires_grad_() for t in tensors]
    # Contiguous, as the gradient of a group_norm without weights over channels_last crashes 2.0.1.
    wide = [None if t is None else t.detach().cpu().double().contiguous().requires_grad_() for t in tensors]
    with way():
        actual = ours(*mine)
        with torch.no_grad():
            torch.testing.assert_close(ours(*mine), actual, rtol=0, atol=0, equal_nan=True)
    expected = exact(*wide)
    assert actual.dtype == mine[0].dtype
    assert_near(actual, expected)
    grad = torch.randn_like(expected).to(actual)
    given = [(m, w) for m, w in zip(mine, wide) if m is not None]
    grads = torch.autograd.grad(actual, [m for m, _ in given], grad)
    exact_grads = torch.autograd.grad(expected, [w for _, w in given], grad.cpu().double())
    for actual_grad, exact_grad, (tensor, _) in zip(grads, exact_grads, given):
        assert actual_grad.dtype == tensor.dtype and actual_grad.shape == tensor.shape
        assert_near(actual_grad, exact_grad)


@each_type
@each_layout
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("affine", ["neither", "weight", "bias", "both"])
def test_layer_norm(dtype: torch.dtype, layout: Callable[[torch.Tensor], torch.Tensor], axes: int,
                    affine: str, device: str, way: Way) -> None:
    x = layout(random((5, 6, 35), dtype, device))
    shape = x.shape[-axes:]
    weight = random(shape, dtype, device) if affine in ("weight", "both") else None
    bias = random(shape, dtype, device) if affine in ("bias", "both") else None
    check(lambda x, w, b: F.layer_norm(x, shape, w, b, 1e-3),
          lambda x, w, b: torch.nn.functional.layer_norm(x, shape, w, b, 1e-3), x, weight, bias, way=way)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_layer_norm_of_halves_with_float_weights(dtype: torch.dtype, device: str, way: Way) -> None:
    x = random((7, 64), dtype, device)
    weight, bias = random((64,), torch.float32, device), random((64,), torch.float32, device)
    check(lambda x, w, b: F.layer_norm(x, (64,), w, b),
          lambda x, w, b: torch.nn.functional.layer_norm(x, (64,), w, b), x, weight, bias, way=way)


@each_type
@each_layout
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("mode", ["mean", "sum"])
@pytest.mark.parametrize("eps", [0.0, 0.25])
def test_l1_norm(dtype: torch.dtype, layout: Callable[[torch.Tensor], torch.Tensor], dim: int,
                 mode: str, eps: float, device: str, way: Way) -> None:
    x = layout(random((5, 6, 35), dtype, device))
    check(lambda x: F.l1_norm(x, dim, mode, eps), lambda x: l1_norm_of_torch(x, dim, mode, eps), x,
          way=way)


@each_type
@each_layout
@pytest.mark.parametrize("kernel, stride, padding", [
    (1, 1, 0), (2, None, 0), (3, 2, 1), (8, 1, 4), (8, 3, 2), (35, 1, 0), (4, 7, 2)])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_avg_pool1d(dtype: torch.dtype, layout: Callable[[torch.Tensor], torch.Tensor], kernel: int,
                    stride: Optional[int], padding: int, ceil_mode: bool, count_include_pad: bool,
                    device: str, way: Way) -> None:
    x = layout(random((5, 6, 35), dtype, device))
    options = (kernel, kernel if stride is None else stride, padding, ceil_mode, count_include_pad)
    check(lambda x: F.avg_pool1d(x, kernel, stride, *options[2:]),
          lambda x: torch.nn.functional.avg_pool1d(x, *options), x, way=way)


def test_channels_last(device: str, way: Way) -> None:
    x = random((2, 6, 5, 7), torch.float32, device).to(memory_format=torch.channels_last)
    check(lambda x: F.layer_norm(x, (5, 7)),
          lambda x: torch.nn.functional.layer_norm(x, (5, 7)), x, way=way)
    check(F.l1_norm, l1_norm_of_torch, x, way=way)
    assert F.l1_norm(x).stride() == l1_norm_of_torch(x).stride()
    assert F.layer_norm(x, (5, 7)).stride() == torch.nn.functional.layer_norm(x, (5, 7)).stride()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (0, 2, 4), (2, 0, 4)], ids=str)
def test_empty_norms(shape: Tuple[int, ...], device: str, way: Way) -> None:
    x = random(shape, torch.float32, device)
    weight = random(shape[-1:], torch.float32, device)
    check(lambda x, w: F.layer_norm(x, shape[-1:], w),
          lambda x, w: torch.nn.functional.layer_norm(x, shape[-1:], w), x, weight, way=way)
    check(F.l1_norm, l1_norm_of_torch, x, way=way)


def test_pooling_without_batches_or_channels(device: str, way: Way) -> None:
    check(lambda x: F.avg_pool1d(x, 2), lambda x: torch.nn.functional.avg_pool1d(x, 2),
          random((3, 8), torch.float32, device), way=way)
    check(lambda x: F.avg_pool1d(x, 2), lambda x: torch.nn.functional.avg_pool1d(x, 2),
          random((0, 3, 8), torch.float32, device), way=way)
    with way(), pytest.raises(RuntimeError):
        F.avg_pool1d(random((2, 0, 8), torch.float32, device), 2)


def test_rows_of_zeros_and_special_values(device: str, way: Way) -> None:
    x = random((6, 9), torch.float32, device)
    x[1] = 0
    x[2, 3], x[3, 3], x[4, 3] = float("nan"), float("inf"), -float("inf")
    with way():
        torch.testing.assert_close(F.l1_norm(x), l1_norm_of_torch(x), equal_nan=True)
        torch.testing.assert_close(F.layer_norm(x, (9,)), torch.nn.functional.layer_norm(x, (9,)),
                                   equal_nan=True)


def test_more_axes_than_the_library_has_are_pytorch_s(device: str, way: Way) -> None:
    x = random((2,) * 9, torch.float32, device)
    check(lambda x: F.layer_norm(x, (2, 2)), lambda x: torch.nn.functional.layer_norm(x, (2, 2)), x,
          way=way)
    check(F.l1_norm, l1_norm_of_torch, x, way=way)


def test_numbers_whose_sign_is_still_to_be_changed(device: str, way: Way) -> None:
    x = torch.randn(3, 8, dtype=torch.complex64, device=device).conj().imag
    assert x.is_neg()
    with way():
        torch.testing.assert_close(F.l1_norm(x), l1_norm_of_torch(x))
        torch.testing.assert_close(F.layer_norm(x, (8,)), torch.nn.functional.layer_norm(x, (8,)))
        torch.testing.assert_close(F.avg_pool1d(x, 2), torch.nn.functional.avg_pool1d(x, 2))


def test_complex_numbers_are_pytorch_s(device: str) -> None:
    x = torch.randn(3, 8, dtype=torch.complex64, device=device)
    torch.testing.assert_close(F.l1_norm(x), l1_norm_of_torch(x))


@pytest.mark.parametrize("rows, columns", [(3, 100_000), (2000, 33), (64, 4095)])
def test_longer_rows(rows: int, columns: int, device: str) -> None:
    x = random((rows, columns), torch.float32, device)
    weight = random((columns,), torch.float32, device)
    check(lambda x, w: F.layer_norm(x, (columns,), w),
          lambda x, w: torch.nn.functional.layer_norm(x, (columns,), w), x, weight, way=_direct)
    check(F.l1_norm, l1_norm_of_torch, x, way=_direct)
    check(lambda x: F.avg_pool1d(x, 8, 1, 4), lambda x: torch.nn.functional.avg_pool1d(x, 8, 1, 4), x,
          way=_direct)


def _direct() -> ContextManager[object]:
    return torch.autograd.set_grad_enabled(True)
