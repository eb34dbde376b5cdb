"""Small tensors that need a gradient: PyTorch's own operators take less time than recording it in Python."""

from typing import Any, Iterator, Tuple

import onepass
import pytest
import torch
from conftest import AVG_POOL1D, BATCH_NORM, GROUP_NORM, L1_NORM, LAYER_NORM, SMALL_BY_DEFAULT, Pair
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


each_with_a_limit = pytest.mark.parametrize(
    "pair", [LAYER_NORM, AVG_POOL1D, GROUP_NORM, BATCH_NORM],
    ids=["layer_norm", "avg_pool1d", "group_norm", "batch_norm"])


@each_with_a_limit
def test_small_gradients_are_recorded_by_pytorch(pair: Pair, device: str) -> None:
    x = torch.randn(largest(device) // 64, 64, device=device, requires_grad=True)
    y, expected = pair[0](x), pair[1](x)
    if pair is AVG_POOL1D and device == "cpu":  # where onepass's takes less time
        assert recorded_by(y) != recorded_by(expected)
        torch.testing.assert_close(y, expected)
    else:
        assert recorded_by(y) == recorded_by(expected)
        torch.testing.assert_close(y, expected, rtol=0, atol=0)


@pytest.mark.skipif(not hasattr(torch, "rms_norm"), reason="this PyTorch has no rms_norm")
def test_rms_norm_is_small_where_pytorch_has_a_kernel(device: str) -> None:
    x = torch.randn(4, 64, device=device, requires_grad=True)
    weight = torch.randn(64, device=device)
    for ours, theirs in ((onepass.functional.rms_norm(*call), torch.rms_norm(*call)) for call in (
            (x, (64,)), (x, (64,), weight), (x, (64,), weight, 1e-3))):
        torch.testing.assert_close(ours, theirs)
        by_pytorch = device == "cuda" and "FusedRmsNorm" in recorded_by(theirs)
        assert (recorded_by(ours) == recorded_by(theirs)) == by_pytorch
    with pytest.raises(RuntimeError, match="normalized_shape"):
        onepass.functional.rms_norm(x, (63,))


@each_with_a_limit
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
    with pytest.raises(RuntimeError, match="num_groups"):
        onepass.functional.group_norm(x, 3)
    with pytest.raises(ZeroDivisionError, match="num_groups"):
        onepass.functional.group_norm(x, 0)
    for call in (lambda x: onepass.functional.group_norm(x, 64), BATCH_NORM[0]):
        with pytest.raises(ValueError, match="more than 1 value per channel.*input"):
            call(x[:1])


def test_small_batches_move_running_statistics_on(device: str) -> None:
    x = torch.randn(4, 64, device=device, requires_grad=True)
    ours, theirs = onepass.nn.BatchNorm1d(64).to(device), torch.nn.BatchNorm1d(64).to(device)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("window", [
    (8, 1, 4, False, True), ((3,), None, (1,), True, False), (5, 3, 2, True, True)])
def test_small_lines_are_pooled_as_rows(device: str, window: Tuple[Any, ...],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "kind_or_small_on_gpu", _native.kind_or_small)  # so that a CPU does it, too
    x = torch.randn(3, 5, 17, device=device, requires_grad=True)
    ours = onepass.functional.avg_pool1d(x, *window)
    theirs = torch.nn.functional.avg_pool1d(x, window[0], window[1] or (), *window[2:])
    assert recorded_by(ours).startswith("AvgPool2D")
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    grad = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, grad) for y in (ours, theirs)), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="padding"):
        onepass.functional.avg_pool1d(x, 3, 1, 2)
    turned = x.mT.detach().requires_grad_()
    ours, theirs = (pool(y, 3, 1, 1) for pool, y in ((onepass.functional.avg_pool1d, turned),
                                                     (torch.nn.functional.avg_pool1d, turned.double().cpu())))
    torch.testing.assert_close(ours.double().cpu(), theirs)
    grad = torch.randn_like(theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, turned, grad.to(ours)),
                               torch.autograd.grad(theirs, turned, grad))
