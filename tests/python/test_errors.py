"""Bad input: the exception PyTorch raises, and a message that names the argument."""

from typing import Any, Callable, ContextManager, Dict

import onepass.functional as F
import pytest
import torch
from conftest import l1_norm_of_torch

X = torch.ones(2, 3, 8)

# A call of both, and the argument that is wrong.
LAYER_NORM: Dict[str, Any] = {
    "another shape": (lambda f: f(X, (7,)), "normalized_shape"),
    "too long a shape": (lambda f: f(X, (1, 2, 3, 8)), "normalized_shape"),
    "no shape": (lambda f: f(X, ()), "normalized_shape"),
    "a number for a shape": (lambda f: f(X, 8), "normalized_shape"),
    "no axes": (lambda f: f(torch.tensor(1.0), (1,)), "input"),
    "integers": (lambda f: f(X.int(), (8,)), "input"),
    "not a tensor": (lambda f: f([1.0], (1,)), "input"),
    "sparse": (lambda f: f(X.to_sparse(), (8,)), "input"),
    "weight of another shape": (lambda f: f(X, (8,), torch.ones(7)), "weight"),
    "weight of another rank": (lambda f: f(X, (8,), torch.ones(1, 8)), "weight"),
    "bias of another shape": (lambda f: f(X, (8,), None, torch.ones(7)), "bias"),
    "weight of another type": (lambda f: f(X, (8,), torch.ones(8).double()), "weight"),
    "half a weight": (lambda f: f(X, (8,), torch.ones(8).half()), "weight"),
    "bias of another type": (lambda f: f(X, (8,), torch.ones(8), torch.ones(8).double()), "bias"),
    "weight on another device": (lambda f: f(X, (8,), torch.ones(8, device="meta")), "weight"),
}
AVG_POOL1D: Dict[str, Any] = {
    "no kernel": (lambda f: f(X, 0), "kernel_size"),
    "negative kernel": (lambda f: f(X, -1), "kernel_size"),
    "too large a kernel": (lambda f: f(X, 9), "kernel_size"),
    "two kernels": (lambda f: f(X, (2, 2)), "kernel_size"),
    "half a kernel": (lambda f: f(X, 2.5), "kernel_size"),
    "no stride": (lambda f: f(X, 2, 0), "stride"),
    "negative stride": (lambda f: f(X, 2, -1), "stride"),
    "too much padding": (lambda f: f(X, 4, 1, 3), "padding"),
    "negative padding": (lambda f: f(X, 4, 1, -1), "padding"),
    "one axis": (lambda f: f(X[0, 0], 2), "input"),
    "four axes": (lambda f: f(X[None], 2), "input"),
    "no channels": (lambda f: f(X[:, :0], 2), "input"),
    "nothing to pool": (lambda f: f(X[..., :0], 2), "input"),
    "not a tensor": (lambda f: f(None, 2), "input"),
    "sparse": (lambda f: f(X.to_sparse(), 2), "input"),
}
L1_NORM: Dict[str, Any] = {
    "no such axis": (lambda f: f(X, 3), "dim"),
    "no such negative axis": (lambda f: f(X, -4), "dim"),
    "integers": (lambda f: f(X.int()), "input"),
    "not a tensor": (lambda f: f("x"), "input"),
}
CASES = [
    pytest.param(ours, theirs, call, argument, id=f"{name}: {what}")
    for name, ours, theirs, table in (
        ("layer_norm", F.layer_norm, torch.nn.functional.layer_norm, LAYER_NORM),
        ("avg_pool1d", F.avg_pool1d, torch.nn.functional.avg_pool1d, AVG_POOL1D),
        ("l1_norm", F.l1_norm, l1_norm_of_torch, L1_NORM),
    )
    for what, (call, argument) in table.items()
]


@pytest.mark.parametrize("ours, theirs, call, argument", CASES)
@pytest.mark.parametrize("grad", [False, True])
def test_as_pytorch_and_by_name(
    ours: Callable[..., Any], theirs: Callable[..., Any], call: Callable[..., Any], argument: str,
    grad: bool, way: Callable[[], ContextManager[object]],
) -> None:
    with torch.set_grad_enabled(grad):
        with pytest.raises(Exception) as expected:
            call(theirs)
        with way(), pytest.raises(Exception) as raised:
            call(ours)
    assert type(raised.value) is type(expected.value)
    assert argument in str(raised.value)
    assert str(expected.value) in str(raised.value) or theirs is l1_norm_of_torch


def test_integers_have_no_average(way: Callable[[], ContextManager[object]]) -> None:
    """PyTorch's CPU operator averages integers; then so do we."""
    x = torch.arange(16).reshape(1, 2, 8)
    try:
        expected = torch.nn.functional.avg_pool1d(x, 2)
    except RuntimeError as error:
        with way(), pytest.raises(type(error), match="input"):
            F.avg_pool1d(x, 2)
    else:
        with way():
            assert torch.equal(F.avg_pool1d(x, 2), expected)


def test_l1_norm_of_integers_in_either_mode() -> None:
    for mode in ("mean", "sum"):
        with pytest.raises(RuntimeError, match="input"):
            F.l1_norm(X.int(), mode=mode)
    with pytest.raises(ValueError, match="mode"):
        F.l1_norm(X, mode="max")
