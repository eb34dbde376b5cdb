"""onepass.nn stands in for torch.nn: arguments, attributes, checkpoints, copies, devices, hooks."""

import copy
import inspect
import io
import pickle
from typing import Any, Dict, Optional, Tuple

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
for name in ("BatchNorm1d", "InstanceNorm1d"):
    CASES[name] = (name, (6,), {})
    CASES[f"{name} with all options"] = (name, (6, 1e-3, 0.2, True, True), {})
    CASES[f"{name} with none"] = (name, (6,), {"affine": False, "track_running_stats": False})
CASES["group_norm"] = ("GroupNorm", (3, 6), {})
CASES["group_norm without weights"] = ("GroupNorm", (3, 6, 1e-3, False), {})
if VERSION >= (2, 4):
    CASES["rms_norm"] = ("RMSNorm", (8,), {})
    CASES["rms_norm of two axes"] = ("RMSNorm", ((6, 8), 1e-3), {"dtype": torch.bfloat16})
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
    mine = dict(inspect.signature(type(ours)).parameters)
    assert mine.pop("activation", None) is None or ours.activation is None
    assert mine == dict(inspect.signature(type(theirs)).parameters)
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
    ours = inspect.signature(onepass.functional.avg_pool1d).parameters
    assert list(ours) == ["input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"]
    for name in ("batch_norm", "group_norm", "instance_norm", "layer_norm", "normalize", "rms_norm"):
        if hasattr(torch.nn.functional, name):
            ours, theirs = (inspect.signature(getattr(module, name)).parameters.values()
                            for module in (onepass.functional, torch.nn.functional))
            mine = [(p.name, p.default) for p in ours if p.kind != p.KEYWORD_ONLY]
            assert mine == [(p.name, p.default) for p in theirs], name


ACTIVATED = {
    "LayerNorm": (8,), "RMSNorm": (8,), "GroupNorm": (3, 6), "BatchNorm1d": (6,),
}


@pytest.mark.parametrize("name", ACTIVATED)
def test_activations(name: str, device: str) -> None:
    plain = getattr(onepass.nn, name)(*ACTIVATED[name]).to(device)
    module = getattr(onepass.nn, name)(*ACTIVATED[name], activation="silu").to(device)
    shuffle(plain)
    module.load_state_dict(plain.state_dict())
    x = torch.randn(3, 6, 8, device=device)
    for training in (True, False):
        expected = torch.nn.functional.silu(plain.train(training)(x))
        torch.testing.assert_close(module.train(training)(x), expected, rtol=1e-4, atol=1e-5)
    assert "activation='silu'" in repr(module) and "activation" not in repr(plain)
    assert pickle.loads(pickle.dumps(module)).activation == copy.deepcopy(module).activation == "silu"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ACTIVATED)
@pytest.mark.parametrize("activation", [None, "gelu_tanh"])
def test_scripts(name: str, activation: Optional[str]) -> None:
    if name == "RMSNorm" and VERSION < (2, 4):
        pytest.skip("this PyTorch has no rms_norm")
    module = getattr(onepass.nn, name)(*ACTIVATED[name], activation=activation)
    x = torch.randn(3, 6, 8)
    torch.testing.assert_close(torch.jit.script(module)(x), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_scripts_of_instance_norm() -> None:
    module, x = onepass.nn.InstanceNorm1d(6, track_running_stats=True), torch.randn(3, 6, 8)
    torch.testing.assert_close(torch.jit.script(module)(x), module(x), rtol=1e-4, atol=1e-5)


def test_modules_that_add() -> None:
    x, residual = torch.randn(2, 3, 5, 8)
    for module, plain in ((onepass.nn.AddLayerNorm(8, eps=0.1, activation="relu"),
                           onepass.nn.LayerNorm(8, eps=0.1, activation="relu")),
                          (onepass.nn.AddRMSNorm(8), onepass.nn.RMSNorm(8))):
        shuffle(module)
        plain.load_state_dict(module.state_dict())
        y, total = module(x, residual)
        torch.testing.assert_close(total, x + residual)
        torch.testing.assert_close(y, plain(x + residual))


def test_l2_and_frobenius_norm() -> None:
    x = torch.randn(3, 5)
    assert repr(onepass.nn.L2Norm()) == "L2Norm(dim=1, eps=0.0)" and not onepass.nn.L2Norm().state_dict()
    torch.testing.assert_close(onepass.nn.L2Norm(0, eps=1.0)(x), x / (x.norm(dim=0, keepdim=True) + 1.0))
    torch.testing.assert_close(onepass.nn.FrobeniusNorm()(x), x / x.norm())


def test_rms_norm_is_as_pytorch_has_it_now() -> None:
    module = onepass.nn.RMSNorm((6, 8), elementwise_affine=False)
    assert module.normalized_shape == (6, 8) and module.eps is None and module.weight is None
    assert repr(module) == "RMSNorm((6, 8), eps=None, elementwise_affine=False)"
    module = onepass.nn.RMSNorm(8, 1e-3)
    assert list(module.state_dict()) == ["weight"] and torch.equal(module.weight, torch.ones(8))
