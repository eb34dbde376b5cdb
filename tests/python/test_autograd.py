"""Gradients: of any subset, any order, and under PyTorch's own machinery."""

import itertools
import re
from typing import Callable, ContextManager, Tuple

import onepass.functional as F
import pytest
import torch
from conftest import Pair, Watching
from torch.utils.checkpoint import checkpoint

Way = Callable[[], ContextManager[object]]


def doubles(*shape: int, device: str) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)


@pytest.mark.parametrize("shape, axes", [((3, 5), 1), ((2, 3, 4), 2), ((4,), 1)])
def test_layer_norm_gradcheck(shape: Tuple[int, ...], axes: int, device: str, way: Way) -> None:
    normalized = shape[-axes:]
    tensors = [doubles(*s, device=device) for s in (shape, normalized, normalized)]

    def call(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with way():
            return F.layer_norm(x, normalized, w, b)

    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(call, tensors)


@pytest.mark.parametrize("operator", [F.add_layer_norm, F.add_rms_norm], ids=lambda f: f.__name__)
def test_gradcheck_with_a_residual(operator: Callable[..., Tuple[torch.Tensor, torch.Tensor]],
                                   device: str, way: Way) -> None:
    x, residual, weight = doubles(3, 2, 4, device=device), doubles(3, 2, 4, device=device), doubles(
        4, device=device)

    def call(*tensors: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        with way():
            return operator(*tensors[:2], (4,), tensors[2], activation="silu")

    assert torch.autograd.gradcheck(call, (x, residual, weight))
    assert torch.autograd.gradgradcheck(call, (x, residual, weight))
    y, total = call(x, residual, weight)
    of_y = torch.autograd.grad(y.sum(), (x, residual, weight), retain_graph=True)
    of_sum = torch.autograd.grad(total.sum(), (x, residual), retain_graph=True)
    both = torch.autograd.grad(y.sum() + total.sum(), (x, residual, weight))
    torch.testing.assert_close(of_y[0], of_y[1])
    torch.testing.assert_close(of_sum, (torch.ones_like(x),) * 2)
    torch.testing.assert_close(both, (of_y[0] + 1, of_y[1] + 1, of_y[2]))


@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_gradcheck(training: bool, device: str, way: Way) -> None:
    tensors = [doubles(3, 2, 4, device=device), doubles(2, device=device), doubles(2, device=device)]
    mean, var = torch.rand(2, 2, dtype=torch.float64, device=device) + 0.5

    def call(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with way():
            return F.batch_norm(x, mean.clone(), var.clone(), w, b, training, activation="gelu")

    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(call, tensors)


def test_gradcheck(pair: Pair, device: str, way: Way) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        with way():
            return pair[0](x)

    x = doubles(2, 3, 7, device=device)
    assert torch.autograd.gradcheck(call, (x,))
    assert torch.autograd.gradgradcheck(call, (x,))


@pytest.mark.parametrize("subset", list(itertools.product([False, True], repeat=3)), ids=str)
def test_requires_grad_on_any_subset(subset: Tuple[bool, ...], device: str, way: Way) -> None:
    values = [torch.randn(4, 6, device=device), torch.randn(6, device=device),
              torch.randn(6, device=device)]
    ours = [v.clone().requires_grad_(need) for v, need in zip(values, subset)]
    theirs = [v.clone().requires_grad_(need) for v, need in zip(values, subset)]
    with way():
        y = F.layer_norm(ours[0], (6,), *ours[1:])
    expected = torch.nn.functional.layer_norm(theirs[0], (6,), *theirs[1:])
    assert y.requires_grad == any(subset)
    if any(subset):
        y.square().sum().backward()
        expected.square().sum().backward()
    for mine, other in zip(ours, theirs):
        assert (mine.grad is None) == (other.grad is None)
        if other.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_expanded_gradient(pair: Pair, device: str, way: Way) -> None:
    x, z = (torch.randn(4, 3, 8, device=device).requires_grad_() for _ in range(2))
    z.data.copy_(x.data)
    with way():
        pair[0](x).sum().backward()
    pair[1](z).sum().backward()
    torch.testing.assert_close(x.grad, z.grad, rtol=1e-4, atol=1e-5)


def test_batched_gradients(pair: Pair, device: str) -> None:
    x = torch.randn(4, 3, 8, device=device, requires_grad=True)
    y, z = pair[0](x), pair[1](x)
    grads = torch.randn(5, *y.shape, device=device)
    torch.testing.assert_close(
        torch.autograd.grad(y, x, grads, is_grads_batched=True),
        torch.autograd.grad(z, x, grads, is_grads_batched=True), rtol=1e-4, atol=1e-5)


def test_only_backward_is_watched(pair: Pair, device: str) -> None:
    x = torch.randn(4, 3, 8, device=device, requires_grad=True)
    y = pair[0](x).square().sum()
    expected, = torch.autograd.grad(y, x, retain_graph=True)
    with Watching():
        actual, = torch.autograd.grad(y, x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_third_derivative(pair: Pair, device: str) -> None:
    x = doubles(2, 3, 6, device=device)

    def third(operator: Callable[..., torch.Tensor]) -> torch.Tensor:
        value = operator(x).pow(4).sum()
        for _ in range(3):
            value, = torch.autograd.grad(value.sum(), x, create_graph=True)
        return value

    try:
        expected = third(pair[1])
    except RuntimeError as error:  # PyTorch's batch_norm has two
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            third(pair[0])
        return
    torch.testing.assert_close(third(pair[0]), expected)


def test_graph_can_be_kept_and_gradients_add_up(pair: Pair, device: str) -> None:
    x = torch.randn(4, 3, 8, device=device, requires_grad=True)
    y = pair[0](x).square().sum()
    y.backward(retain_graph=True)
    once = x.grad.clone()
    y.backward()
    torch.testing.assert_close(x.grad, 2 * once)


def test_changing_what_was_saved_is_noticed(device: str) -> None:
    x = torch.randn(4, 8, device=device, requires_grad=True)
    z = x * 1
    y = F.layer_norm(z, (8,))
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_checkpoint(pair: Pair, device: str) -> None:
    x = torch.randn(4, 3, 8, device=device, requires_grad=True)
    expected, = torch.autograd.grad(pair[0](x).square().sum(), x)
    for use_reentrant in (False, True):
        y = checkpoint(pair[0], x, use_reentrant=use_reentrant)
        actual, = torch.autograd.grad(y.square().sum(), x)[:1] if not use_reentrant else (None,)
        if use_reentrant:  # which only knows backward()
            x.grad = None
            y.square().sum().backward()
            actual = x.grad
        torch.testing.assert_close(actual, expected)


def test_no_grad_and_inference_mode(pair: Pair, device: str, way: Way) -> None:
    x = torch.randn(4, 3, 8, device=device, requires_grad=True)
    expected = pair[1](x).detach()
    with way():
        with torch.no_grad():
            y = pair[0](x)
        with torch.inference_mode():
            z = pair[0](x)
            torch.testing.assert_close(pair[0](z[..., :4].clone()), pair[1](z[..., :4].clone()))
    assert not y.requires_grad and not y.is_inference()
    assert not z.requires_grad and z.is_inference()
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(z, expected)
