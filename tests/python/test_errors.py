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
CHANNELS = {
    "not a tensor": (lambda f: f([1.0]), "input"),
    "one axis": (lambda f: f(torch.ones(3)), "input"),
    "integers": (lambda f: f(X.int()), "input"),
    "sparse": (lambda f: f(X.to_sparse()), "input"),
    "weight of another length": (lambda f: f(X, weight=torch.ones(4)), "weight"),
    "weight of another type": (lambda f: f(X, weight=torch.ones(3).double()), "weight"),
    "bias of another length": (lambda f: f(X, weight=torch.ones(3), bias=torch.ones(2)), "bias"),
    "weight on another device": (lambda f: f(X, weight=torch.ones(3, device="meta")), "weight"),
}
GROUP_NORM: Dict[str, Any] = {
    **{what: (lambda f, call=call: call(lambda x, **options: f(x, 3, **options)), argument)
       for what, (call, argument) in CHANNELS.items()},
    "groups that do not divide": (lambda f: f(X, 2), "num_groups"),
    "no groups": (lambda f: f(X, 0), "num_groups"),
    "fewer groups than none": (lambda f: f(X, -1), "num_groups"),
    "half a group": (lambda f: f(X, 1.5), "num_groups"),
    "one value a group": (lambda f: f(X[:1, :, 0], 3), "input"),
}
BATCH_NORM: Dict[str, Any] = {
    **{what: (lambda f, call=call: call(lambda x, **options: f(x, None, None, training=True, **options)),
              argument)
       for what, (call, argument) in CHANNELS.items() if what != "integers"},
    "one value a channel": (lambda f: f(X[:1, :, 0], None, None, training=True), "input"),
    "no statistics": (lambda f: f(X, None, None), "running_mean"),
    "half of the statistics": (lambda f: f(X, torch.ones(3), None), "running_var"),
    "statistics of another length": (
        lambda f: f(X, torch.ones(4), torch.ones(4), training=True), "running_mean"),
    "statistics of another type": (
        lambda f: f(X, torch.ones(3).double(), torch.ones(3).double(), training=True), "running_mean"),
    "no momentum": (lambda f: f(X, torch.ones(3), torch.ones(3), None, None, True, None), "momentum"),
    "no eps": (lambda f: f(X, None, None, training=True, eps=None), "eps"),
}
INSTANCE_NORM: Dict[str, Any] = {
    **{what: case for what, case in CHANNELS.items() if what != "integers"},
    "one value a channel": (lambda f: f(X[..., :1]), "input"),
    "no statistics": (lambda f: f(X, use_input_stats=False), "running_mean"),
}
NORMALIZE: Dict[str, Any] = {
    "no such axis": (lambda f: f(X, dim=3), "dim"),
    "no such second axis": (lambda f: f(X, dim=(2, 3)), "dim"),
    "integers": (lambda f: f(X.int()), "input"),
    "not a tensor": (lambda f: f("x"), "input"),
}
RMS_NORM: Dict[str, Any] = {
    what: LAYER_NORM[what]
    for what in ("another shape", "too long a shape", "no shape", "a number for a shape", "no axes",
                 "integers", "not a tensor", "weight of another shape", "weight of another rank")
}


def _l2_norm_of_torch(x: torch.Tensor, dim: int = 1) -> torch.Tensor:
    return x / torch.linalg.vector_norm(x, 2, dim, keepdim=True)


L2_NORM: Dict[str, Any] = {key: NORMALIZE[key] for key in ("no such axis", "integers", "not a tensor")}

CASES = [
    pytest.param(ours, theirs, call, argument, id=f"{name}: {what}")
    for name, ours, theirs, table in (
        ("layer_norm", F.layer_norm, torch.nn.functional.layer_norm, LAYER_NORM),
        ("avg_pool1d", F.avg_pool1d, torch.nn.functional.avg_pool1d, AVG_POOL1D),
        ("l1_norm", F.l1_norm, l1_norm_of_torch, L1_NORM),
        ("group_norm", F.group_norm, torch.nn.functional.group_norm, GROUP_NORM),
        ("batch_norm", F.batch_norm, torch.nn.functional.batch_norm, BATCH_NORM),
        ("instance_norm", F.instance_norm, torch.nn.functional.instance_norm, INSTANCE_NORM),
        ("rms_norm", F.rms_norm, getattr(torch.nn.functional, "rms_norm", None), RMS_NORM),
        ("normalize", F.normalize, torch.nn.functional.normalize, NORMALIZE),
        ("l2_norm", F.l2_norm, _l2_norm_of_torch, L2_NORM),
    )
    if theirs is not None
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
