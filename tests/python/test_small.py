"""Small tensors that need a gradient: PyTorch's own operators take less time than recording it in Python."""

from typing import Iterator

import onepass
import pytest
import torch
from conftest import AVG_POOL1D, L1_NORM, LAYER_NORM, SMALL_BY_DEFAULT, Pair
from onepass import _native


@pytest.fixture(autouse=True)
def limits() -> Iterator[None]:
    _native.set_small(*SMALL_BY_DEFAULT)
    yield
    _native.set_small(-1, -1)


def recorded_by(y: torch.Tensor) -> str:
    return type(y.grad_fn).__name__


def largest(device: str) -> int:
    """Elements of a small tensor."""
    return SMALL_BY_DEFAULT[device == "cuda"]


@pytest.mark.parametrize("pair", [LAYER_NORM, AVG_POOL1D], ids=["layer_norm", "avg_pool1d"])
def test_small_gradients_are_recorded_by_pytorch(pair: Pair, device: str) -> None:
    if pair is AVG_POOL1D and device == "cpu":
        pytest.skip("on a CPU onepass's takes less time")
    x = torch.randn(largest(device) // 64, 64, device=device, requires_grad=True)
    y, expected = pair[0](x), pair[1](x)
    assert recorded_by(y) == recorded_by(expected)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)


@pytest.mark.parametrize("pair", [LAYER_NORM, AVG_POOL1D], ids=["layer_norm", "avg_pool1d"])
def test_larger_ones_are_recorded_by_onepass(pair: Pair, device: str) -> None:
    x = torch.randn(largest(device) // 64 + 1, 64, device=device, requires_grad=True)
    assert recorded_by(pair[0](x)) != recorded_by(pair[1](x))


def test_pytorch_has_no_l1_norm(device: str) -> None:
    x = torch.randn(4, 64, device=device, requires_grad=True)
    assert recorded_by(L1_NORM[0](x)) != recorded_by(L1_NORM[1](x))


def test_without_a_gradient_no_tensor_is_small(device: str) -> None:
    x = torch.randn(4, 64, device=device)
    assert _native.kind_or_small(x) == _native.PLAIN
    with torch.no_grad():
        assert _native.kind_or_small(x.requires_grad_()) == _native.PLAIN
    assert _native.kind_or_small(x) == _native.SMALL


def test_weights_alone_may_need_it(device: str) -> None:
    x = torch.randn(4, 64, device=device)
    module = onepass.nn.LayerNorm(64, device=device)
    assert _native.kind_or_small(x, module.weight, module.bias) == _native.SMALL
    module(x).sum().backward()
    assert module.weight.grad is not None and module.bias.grad is not None


def test_errors_name_the_argument(device: str) -> None:
    x = torch.randn(4, 64, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        onepass.functional.layer_norm(x, (63,))
