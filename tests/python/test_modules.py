"""onepass.nn stands in for torch.nn: arguments, attributes, checkpoints, copies, devices, hooks."""

import copy
import inspect
import io
import pickle
from typing import Any, Dict, Tuple

import onepass
import pytest
import torch
from conftest import VERSION

CASES: Dict[str, Tuple[str, Tuple[Any, ...], Dict[str, Any]]] = {
    "layer_norm": ("LayerNorm", (8,), {}),
    "layer_norm of two axes": ("LayerNorm", ((6, 8),), {"eps": 0.1}),
    "layer_norm without weights": ("LayerNorm", ([8],), {"elementwise_affine": False}),
    "layer_norm in bfloat16": ("LayerNorm", (8,), {"dtype": torch.bfloat16}),
    "avg_pool1d": ("AvgPool1d", (2,), {}),
    "avg_pool1d with all options": ("AvgPool1d", (4, 3, 2, True, False), {}),
    "avg_pool1d with tuples": ("AvgPool1d", ((4,),), {"stride": (2,), "padding": (1,)}),
}
if VERSION >= (2, 1):
    CASES["layer_norm without bias"] = ("LayerNorm", (8,), {"bias": False})

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def modules(case: Tuple[str, Tuple[Any, ...], Dict[str, Any]]) -> Tuple[torch.nn.Module, torch.nn.Module]:
    name, args, options = case
    return getattr(onepass.nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)


def shuffle(module: torch.nn.Module) -> None:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)


@each_case
def test_signature_attributes_and_repr(case: Any) -> None:
    ours, theirs = modules(case)
    assert inspect.signature(type(ours)) == inspect.signature(type(theirs))
    assert repr(ours) == repr(theirs) and ours.extra_repr() == theirs.extra_repr()
    public = {key: value for key, value in vars(theirs).items() if not key.startswith("_")}
    assert {key: vars(ours)[key] for key in public} == public
    assert isinstance(ours, type(theirs))
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        assert torch.equal(mine, other)  # the same initialization


@each_case
def test_checkpoints_of_one_load_into_the_other(case: Any) -> None:
    ours, theirs = modules(case)
    x = torch.randn(3, 6, 8).to(next(iter(theirs.parameters()), torch.empty(0)).dtype)
    for source, target in ((ours, theirs), (theirs, ours)):
        shuffle(source)
        target.load_state_dict(source.state_dict())
        assert list(source.state_dict()) == list(target.state_dict())
        tolerance = 2e-2 if x.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(ours(x), theirs(x), rtol=tolerance, atol=tolerance)


@each_case
def test_copies(case: Any) -> None:
    module, _ = modules(case)
    shuffle(module)
    x = torch.randn(3, 6, 8).to(next(iter(module.parameters()), torch.empty(0)).dtype)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file) if VERSION < (2, 4) else torch.load(file, weights_only=False)
    for other in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert type(other) is type(module)
        assert torch.equal(other(x), module(x))


def test_conversion(device: str) -> None:
    module = onepass.nn.LayerNorm(8).to(device)
    shuffle(module)
    x = torch.randn(3, 8, device=device)
    expected = module.double()(x.double())
    for convert, dtype in (("half", torch.float16), ("bfloat16", torch.bfloat16),
                           ("float", torch.float32)):
        converted = getattr(copy.deepcopy(module), convert)()
        y = converted(x.to(dtype))
        assert y.dtype == dtype
        torch.testing.assert_close(y.double(), expected, rtol=5e-2, atol=5e-2)
    mixed = copy.deepcopy(module).float()
    assert mixed(x.bfloat16()).dtype == torch.bfloat16


def test_hooks() -> None:
    module, seen = onepass.nn.LayerNorm(8), []
    module.register_forward_pre_hook(lambda *_: seen.append("before"))
    module.register_forward_hook(lambda *_: seen.append("after"))
    module.register_full_backward_hook(lambda *_: seen.append("backward"))
    module(torch.randn(2, 8, requires_grad=True)).sum().backward()
    assert seen == ["before", "after", "backward"]


def test_replicas_as_dataparallel_makes_them(device: str) -> None:
    module = onepass.nn.LayerNorm(8).to(device)
    replica = module._replicate_for_data_parallel()
    for name, parameter in module.named_parameters():
        setattr(replica, name, parameter.detach().clone())
    x = torch.randn(3, 8, device=device)
    torch.testing.assert_close(replica(x), module(x))


def test_parametrizations() -> None:
    module = onepass.nn.LayerNorm(8)

    class Double(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 2 * weight

    torch.nn.utils.parametrize.register_parametrization(module, "weight", Double())
    x = torch.randn(3, 8)
    torch.testing.assert_close(module(x), 2 * torch.nn.functional.layer_norm(x, (8,)))


def test_l1_norm() -> None:
    module = onepass.nn.L1Norm()
    assert (module.dim, module.mode, module.eps) == (1, "mean", 0.0)
    assert not module.state_dict() and repr(module) == "L1Norm(dim=1, mode='mean', eps=0.0)"
    x = torch.randn(3, 5)
    torch.testing.assert_close(module(x), x / x.abs().mean(1, keepdim=True))
    torch.testing.assert_close(onepass.nn.L1Norm(-1, mode="sum", eps=1.0)(x),
                               x / (x.abs().sum(1, keepdim=True) + 1.0))
    assert pickle.loads(pickle.dumps(module)).mode == "mean"
    with pytest.raises(ValueError, match="mode"):
        onepass.nn.L1Norm(mode="max")


def test_public_names() -> None:
    for module in (onepass, onepass.nn, onepass.functional):
        for name in module.__all__:
            assert hasattr(module, name)
    for name in ("layer_norm", "avg_pool1d"):
        ours = inspect.signature(getattr(onepass.functional, name)).parameters
        assert list(ours) == {
            "layer_norm": ["input", "normalized_shape", "weight", "bias", "eps"],
            "avg_pool1d": ["input", "kernel_size", "stride", "padding", "ceil_mode",
                           "count_include_pad"],
        }[name]
