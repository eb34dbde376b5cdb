"""What PyTorch can wrap around a call: autocast, transforms, subclasses, fake tensors, settings."""

import threading
from typing import Callable, ContextManager, List

import onepass
import onepass.functional as F
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from conftest import Pair
from onepass import _native
from torch._subclasses.fake_tensor import FakeTensorMode

Way = Callable[[], ContextManager[object]]

# ---- Autocast -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_autocast_as_pytorch_does(pair: Pair, dtype: torch.dtype, device: str, way: Way) -> None:
    x = torch.randn(4, 3, 8, device=device).to(dtype).requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        try:
            expected = pair[1](x)
        except RuntimeError:
            pytest.skip(f"this PyTorch does not have it for {dtype} on {device}")
        with way():
            y = pair[0](x)
    assert y.dtype == expected.dtype
    tolerance = 1e-5 if y.dtype in (torch.float32, torch.float64) else 2e-2
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)
    assert torch.autograd.grad(y.sum(), x)[0].dtype == dtype


def test_autocast_casts_weights(device: str, way: Way) -> None:
    x = torch.randn(4, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(8, device=device, dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = torch.nn.functional.layer_norm(x, (8,), weight)
        with way():
            y = F.layer_norm(x, (8,), weight)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected)
    assert torch.autograd.grad(y.sum(), weight)[0].dtype == torch.bfloat16


# ---- Transforms of functions --------------------------------------------------------------------


@pytest.mark.parametrize("in_dim", [0, 1])
def test_vmap(pair: Pair, in_dim: int, device: str) -> None:
    x = torch.randn(5, 4, 3, 8, device=device)
    for requires_grad in (False, True):
        x.requires_grad_(requires_grad)
        torch.testing.assert_close(
            torch.func.vmap(pair[0], in_dims=in_dim)(x), torch.func.vmap(pair[1], in_dims=in_dim)(x))


def test_vmap_over_weights_only(device: str) -> None:
    x = torch.randn(4, 8, device=device, requires_grad=True)
    weights = torch.randn(3, 8, device=device, requires_grad=True)
    torch.testing.assert_close(
        torch.func.vmap(lambda w: F.layer_norm(x, (8,), w))(weights),
        torch.func.vmap(lambda w: torch.nn.functional.layer_norm(x, (8,), w))(weights))


def test_grad_jvp_and_hessian(pair: Pair, device: str) -> None:
    x = torch.randn(2, 3, 6, device=device, dtype=torch.float64)
    ours, theirs = (lambda x, f=f: f(x).pow(3).sum() for f in pair)
    torch.testing.assert_close(torch.func.grad(ours)(x), torch.func.grad(theirs)(x))
    torch.testing.assert_close(torch.func.jvp(pair[0], (x,), (x.cos(),)),
                               torch.func.jvp(pair[1], (x,), (x.cos(),)))
    torch.testing.assert_close(torch.func.hessian(ours)(x), torch.func.hessian(theirs)(x))


def test_functional_call(device: str) -> None:
    module = onepass.nn.LayerNorm(8).to(device)
    x = torch.randn(4, 8, device=device)
    weights = {"weight": torch.randn(8, device=device), "bias": torch.randn(8, device=device)}
    torch.testing.assert_close(torch.func.functional_call(module, weights, (x,)),
                               torch.nn.functional.layer_norm(x, (8,), *weights.values()))


def test_forward_mode(pair: Pair, device: str) -> None:
    x, tangent = torch.randn(2, 3, 6, device=device), torch.randn(2, 3, 6, device=device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        ours, theirs = (forward_ad.unpack_dual(f(dual)) for f in pair)
    torch.testing.assert_close(ours.primal, theirs.primal)
    torch.testing.assert_close(ours.tangent, theirs.tangent)


# ---- Tensors that are not just data -------------------------------------------------------------


class Tagged(torch.Tensor):
    """A subclass that records which functions it went through."""

    calls: List[str] = []

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN204, ANN206
        cls.calls.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


def test_subclasses_see_pytorch_s_operator(device: str) -> None:
    x = torch.randn(4, 8, device=device)
    Tagged.calls.clear()
    y = F.layer_norm(x.as_subclass(Tagged), (8,))
    assert isinstance(y, Tagged) and "layer_norm" in Tagged.calls
    torch.testing.assert_close(y.as_subclass(torch.Tensor), F.layer_norm(x, (8,)))


def test_fake_tensors(pair: Pair, device: str) -> None:
    x = torch.randn(4, 3, 8, device=device)
    with FakeTensorMode() as mode:
        y = pair[0](mode.from_tensor(x))
    expected = pair[1](x)
    assert (y.shape, y.dtype, y.device, y.stride()) == (
        expected.shape, expected.dtype, expected.device, expected.stride())


def test_meta_tensors(pair: Pair) -> None:
    x = torch.empty(4, 3, 8, device="meta", requires_grad=True)
    y = pair[0](x)
    assert y.is_meta and y.shape == pair[1](x).shape
    y.sum().backward()
    assert x.grad.is_meta


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(device: str) -> None:
    pieces = [torch.randn(2, 8, device=device), torch.randn(3, 8, device=device)]
    nested = torch.nested.nested_tensor(pieces)
    weight, bias = torch.randn(8, device=device), torch.randn(8, device=device)
    y = F.layer_norm(nested, (8,), weight, bias)
    for piece, result in zip(pieces, y.unbind()):
        torch.testing.assert_close(result, torch.nn.functional.layer_norm(piece, (8,), weight, bias))


# ---- Settings -----------------------------------------------------------------------------------


def test_deterministic_mode_and_repeated_calls(pair: Pair, device: str) -> None:
    x = torch.randn(64, 3, 1000, device=device, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        results = [pair[0](x) for _ in range(3)]
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in results]
    finally:
        torch.use_deterministic_algorithms(False)
    for y, grad in zip(results, grads):
        assert torch.equal(y, results[0]) and torch.equal(grad, grads[0])


def test_default_dtype_and_device_do_not_matter(pair: Pair, device: str) -> None:
    x = torch.randn(4, 3, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    expected = pair[0](x)
    torch.set_default_dtype(torch.float64)
    try:
        y = pair[0](x)
        y.sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert y.dtype == torch.bfloat16 and torch.equal(y, expected)
    with torch.device("meta"):
        assert torch.equal(pair[0](x), expected)


def test_threads_are_pytorch_s(pair: Pair) -> None:
    x = torch.randn(64, 3, 1000)
    threads = torch.get_num_threads()
    expected = pair[0](x)
    try:
        torch.set_num_threads(1)
        assert torch.equal(pair[0](x), expected)
    finally:
        torch.set_num_threads(threads)


def test_many_threads_at_once(pair: Pair, device: str) -> None:
    inputs = [torch.randn(n, 3, 50, device=device) for n in range(1, 9)]
    expected = [pair[1](x) for x in inputs]
    failures = []

    def work(index: int) -> None:
        for turn in range(100):
            which = (index + turn) % len(inputs)
            if not torch.allclose(pair[0](inputs[which]), expected[which], rtol=1e-4, atol=1e-5):
                failures.append((index, which))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_more_signatures_than_plans_are_kept(device: str) -> None:
    for columns in list(range(1, 3000, 2)) * 2:
        x = torch.full((1, columns), 4.0, device=device)  # so that 1/sum, times x, is 1/columns rounded once
        assert torch.equal(F.l1_norm(x, mode="sum"), torch.full_like(x, 1 / columns))


def test_plain_calls_are_direct() -> None:
    """What is to be quick really is: a PyTorch in which it is not wants looking at."""
    x = torch.randn(4, 8)
    assert _native.kind(x, None, torch.nn.Parameter(x)) == _native.PLAIN | _native.NEEDS_GRAD
    with torch.no_grad():
        assert _native.kind(x, torch.nn.Parameter(x)) == _native.PLAIN
    assert _native.kind(x.as_subclass(Tagged)) == 0
