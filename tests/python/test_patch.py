"""onepass.patch changes the class of modules and nothing else."""

import copy
import io
import pickle
import sys
from types import ModuleType
from typing import Callable, List, Type

import onepass
import pytest
import torch
from conftest import VERSION
from test_compile import needs_compile


class OwnForward(torch.nn.LayerNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + 1


class OwnName(torch.nn.LayerNorm):
    """Nothing but another name and a default."""

    def __init__(self, size: int) -> None:
        super().__init__(size, eps=0.5)


class Block(torch.nn.Module):
    """As in a transformer, with a pooling layer for good measure."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(16)
        self.attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm2 = OwnName(16)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
        self.head = torch.nn.Sequential(OwnForward(16), torch.nn.AvgPool1d(4))
        self.shared = self.norm1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.head(self.shared(x + self.mlp(self.norm2(x))))


def losses(model: torch.nn.Module, x: torch.Tensor) -> list:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = []
    for _ in range(3):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def test_patch_and_unpatch() -> None:
    model = Block().eval()
    x = torch.randn(2, 5, 16)
    expected, keys, text = model(x), list(model.state_dict()), repr(model)
    before = [(name, id(module)) for name, module in model.named_modules()]
    parameters = [(name, id(p)) for name, p in model.named_parameters()]
    hooked = []
    model.norm1.register_forward_hook(lambda *_: hooked.append(True))

    summary = onepass.patch(model)
    assert summary.replaced == {"norm1": "LayerNorm", "norm2": "OwnName", "head.1": "AvgPool1d"}
    assert list(summary.left) == ["head.0"] and "forward of its own" in summary.left["head.0"]
    assert "3 modules replaced, 1 left alone" in str(summary)
    assert type(model.norm1) is onepass.nn.LayerNorm and isinstance(model.norm2, OwnName)
    assert type(model.head[0]) is OwnForward and model.shared is model.norm1
    assert [(name, id(module)) for name, module in model.named_modules()] == before
    assert [(name, id(p)) for name, p in model.named_parameters()] == parameters
    assert list(model.state_dict()) == keys and repr(model) == text and not model.norm1.training
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    assert hooked
    assert not onepass.patch(model).replaced  # there is nothing left to do

    assert onepass.unpatch(model).replaced == summary.replaced
    assert type(model.norm1) is torch.nn.LayerNorm and type(model.norm2) is OwnName
    assert torch.equal(model(x), expected)


def test_the_model_itself() -> None:
    model = torch.nn.LayerNorm(8)
    assert onepass.patch(model).replaced == {"": "LayerNorm"}
    assert type(model) is onepass.nn.LayerNorm


@pytest.mark.parametrize("only, replaced", [
    (torch.nn.AvgPool1d, ["head.1"]), ("norm*", ["norm1", "norm2"]), (["norm2", torch.nn.AvgPool1d], [
        "norm2", "head.1"]), ([], []), ("head.*", ["head.1"])])
def test_only(only: object, replaced: list) -> None:
    assert list(onepass.patch(Block(), only=only).replaced) == replaced


def test_verbose(capsys: pytest.CaptureFixture) -> None:
    onepass.patch(Block(), verbose=True)
    onepass.patch(Block())
    assert capsys.readouterr().out.count("modules replaced") == 1


def test_a_forward_set_on_the_object_is_left_alone() -> None:
    model = torch.nn.LayerNorm(8)
    model.forward = lambda x: x
    assert list(onepass.patch(model).left) == [""]


def copies_of(model: torch.nn.Module) -> List[torch.nn.Module]:
    """Made in every way there is, and of the same classes."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file) if VERSION < (2, 4) else torch.load(file, weights_only=False)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded]
    for other in copies:
        assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]
    return copies


def test_copies_of_a_patched_model() -> None:
    model = Block().eval()
    onepass.patch(model)
    x = torch.randn(2, 5, 16)
    for other in copies_of(model):
        assert torch.equal(other(x), model(x))
        onepass.unpatch(other)
        assert type(other.norm2) is OwnName


def test_training_gives_the_same_losses(device: str) -> None:
    model = Block().to(device)
    patched = copy.deepcopy(model)
    onepass.patch(patched)
    x = torch.randn(4, 5, 16, device=device)
    assert losses(patched, x) == pytest.approx(losses(model, x), rel=1e-4)


class Residual(torch.nn.Module):
    """As in a ResNet, with a branch of each normalization that convolutional networks have."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = torch.nn.Sequential(
            torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(),
            torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.InstanceNorm2d(8, affine=True))
        self.last = torch.nn.BatchNorm2d(8, momentum=None)
        self.head = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4),
                                        torch.nn.BatchNorm1d(4, affine=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.last(x + self.branch(x))))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolutional_network(memory_format: torch.memory_format, device: str) -> None:
    model = Residual().to(device).to(memory_format=memory_format)
    patched = copy.deepcopy(model)
    assert sorted(onepass.patch(patched).replaced.values()) == [
        "BatchNorm1d", "BatchNorm2d", "BatchNorm2d", "GroupNorm", "InstanceNorm2d"]
    x = torch.randn(4, 8, 6, 6, device=device).to(memory_format=memory_format)
    assert losses(patched, x) == pytest.approx(losses(model, x), rel=1e-4)
    for (name, mine), other in zip(patched.state_dict().items(), model.state_dict().values()):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    with torch.no_grad():
        torch.testing.assert_close(patched.eval()(x), model.eval()(x), rtol=1e-3, atol=1e-4)
    onepass.unpatch(patched)
    assert [type(m) for m in patched.modules()] == [type(m) for m in model.modules()]


@pytest.mark.skipif(not hasattr(torch.nn, "RMSNorm"), reason="this PyTorch has no RMSNorm")
def test_llama_block(device: str) -> None:
    class Llama(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = torch.nn.RMSNorm(16, eps=1e-6), torch.nn.RMSNorm(16, eps=1e-6)
            self.attention = torch.nn.MultiheadAttention(16, 2, bias=False, batch_first=True)
            self.gate, self.up, self.down = (torch.nn.Linear(*shape, bias=False)
                                             for shape in ((16, 32), (16, 32), (32, 16)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm1(x)
            x = x + self.attention(y, y, y, need_weights=False)[0]
            y = self.norm2(x)
            return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))

    model = torch.nn.Sequential(Llama(), Llama(), torch.nn.RMSNorm(16)).to(device)
    patched = copy.deepcopy(model)
    assert list(onepass.patch(patched).replaced.values()) == ["RMSNorm"] * 5
    x = torch.randn(2, 5, 16, device=device)
    assert losses(patched, x) == pytest.approx(losses(model, x), rel=1e-4)
    compiled = torch.compile(patched, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), patched(x), rtol=1e-4, atol=1e-5)


def test_what_is_left_alone() -> None:
    class Deviating(torch.nn.InstanceNorm1d):
        def _apply_instance_norm(self, input: torch.Tensor) -> torch.Tensor:
            return input

    class OwnActivation(torch.nn.BatchNorm1d):
        activation = torch.nn.ReLU()

    class Renamed(torch.nn.InstanceNorm1d):
        pass

    model = torch.nn.Sequential(
        torch.nn.SyncBatchNorm(6), torch.nn.LazyBatchNorm1d(), Deviating(6), OwnActivation(6), Renamed(6),
        onepass.nn.AddLayerNorm(8), onepass.nn.GroupNorm(2, 6, activation="relu"))
    summary = onepass.patch(model)
    assert summary.replaced == {"4": "test_what_is_left_alone.<locals>.Renamed"}
    assert list(summary.left) == ["2", "3"]
    assert "_apply_instance_norm of its own" in summary.left["2"]
    assert "activation of its own" in summary.left["3"]
    x = torch.randn(3, 6, 8)
    torch.testing.assert_close(model[4](x), torch.nn.functional.instance_norm(x), rtol=1e-4, atol=1e-5)
    model[1](x)  # now it is a BatchNorm1d
    assert onepass.patch(model).replaced == {"1": "BatchNorm1d"}
    summary = onepass.unpatch(model)
    assert list(summary.replaced) == ["1", "4"] and list(summary.left) == ["6"]
    assert type(model[6]) is onepass.nn.GroupNorm and type(model[4]) is Renamed


@pytest.mark.filterwarnings("ignore")
def test_scripts_of_patched_models() -> None:
    class Renamed(torch.nn.BatchNorm2d):
        pass

    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), Renamed(3), torch.nn.InstanceNorm2d(3)).eval()
    x = torch.randn(2, 3, 4, 4)
    expected = model(x)
    assert len(onepass.patch(model).replaced) == 3
    torch.testing.assert_close(torch.jit.script(model)(x), expected, rtol=1e-4, atol=1e-5)


def test_transformer_encoder(device: str) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device)
    x = torch.randn(3, 5, 16, device=device)
    for training in (True, False):
        model.train(training)
        expected = model(x)
        assert len(onepass.patch(model).replaced) == 4
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
        onepass.unpatch(model)


# ---- Norms of model libraries -------------------------------------------------------------------


def of(package: str) -> Callable[[Type[torch.nn.Module]], Type[torch.nn.Module]]:
    """Makes a class look as if it were that package's."""

    def give(own: Type[torch.nn.Module]) -> Type[torch.nn.Module]:
        own.__module__ = package
        return own
    return give


@of("transformers.models.some")
class SomeRMSNorm(torch.nn.Module):
    """As Llama's: rounds what is normalized, and promotes it with the weight."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        wide = hidden_states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden_states.dtype)


@of("transformers.models.other")
class OtherLayerNorm(SomeRMSNorm):
    """As T5's."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


@of("transformers.models.gemma")
class GemmaLikeRMSNorm(SomeRMSNorm):
    """Is not what it is called. With its first weights, zeros, it even gives an RMS norm of the input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (wide * (1 + self.weight.float())).to(x.dtype)


@of("transformers.models.some")
class OtherEpsRMSNorm(SomeRMSNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


@of("transformers.models.some")
class GatedRMSNorm(SomeRMSNorm):
    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return SomeRMSNorm.forward(self, x) * gate


@of("transformers.models.some")
class ShiftedRMSNorm(SomeRMSNorm):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.register_buffer("shift", torch.zeros(size))


@of("timm.layers.norm")
class LayerNorm2d(torch.nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.layer_norm(
            x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


@of("timm.layers.norm")
class LayerNorm(torch.nn.LayerNorm):
    _fast_norm = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


@of("timm.layers.norm")
class RmsNorm2d(torch.nn.Module):
    def __init__(self, size: int, affine: bool = True) -> None:
        super().__init__()
        self.normalized_shape, self.eps = (size,), 1e-6
        self.register_parameter("weight", torch.nn.Parameter(torch.ones(size)) if affine else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps)
        return x if self.weight is None else x * self.weight.reshape(1, -1, 1, 1)


class DerivedRMSNorm(SomeRMSNorm):
    """Of a package that nobody knows, with a forward that is known."""


def relatives() -> torch.nn.Module:
    """In one model: first over the channels of (N, 8, H, 8), then over its last axis."""
    return torch.nn.Sequential(LayerNorm2d(8), RmsNorm2d(8), RmsNorm2d(8, False), SomeRMSNorm(8),
                               OtherLayerNorm(8, 1e-3), LayerNorm(8), DerivedRMSNorm(8))


def randomize(model: torch.nn.Module) -> torch.nn.Module:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    return model


def gradients(model: torch.nn.Module, *inputs: torch.Tensor) -> List[torch.Tensor]:
    """The output, and gradients of everything."""
    y = model(*inputs)
    y = getattr(y, "last_hidden_state", y)
    wanted = [t for t in (*inputs, *model.parameters()) if t.requires_grad]
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, wanted, grad, allow_unused=True)]


def assert_same(
    patched: torch.nn.Module, model: torch.nn.Module, *inputs: torch.Tensor, tolerance: float = 1e-4
) -> None:
    mine, expected = gradients(patched, *inputs), gradients(model, *inputs)
    assert mine[0].stride() == expected[0].stride()
    largest = max(grad.abs().max().item() for grad in expected[1:] if grad is not None)
    for actual, exact in zip(mine, expected):
        assert (actual is None) == (exact is None)
        if exact is not None:
            torch.testing.assert_close(actual, exact, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_relatives(memory_format: torch.memory_format, device: str) -> None:
    model = randomize(relatives()).to(device)
    patched = copy.deepcopy(model)
    hooked = []
    patched[3].register_forward_hook(lambda *_: hooked.append(True))
    summary = onepass.patch(patched)
    assert list(summary.replaced.values()) == [type(m).__qualname__ for m in model] and not summary.left
    assert repr(patched) == repr(model) and not onepass.patch(patched).replaced
    x = torch.randn(2, 8, 5, 8, device=device).to(memory_format=memory_format).requires_grad_()
    assert_same(patched, model, x)
    assert hooked
    for mine, other in zip(patched, model):  # each by itself, too, with the same strides
        assert_same(mine, other, x)
    assert onepass.unpatch(patched).replaced == summary.replaced
    assert [type(m) for m in patched] == [type(m) for m in model]


def test_relatives_use_onepass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = relatives()
    onepass.patch(model)
    calls = []
    for name in ("layer_norm", "rms_norm"):
        def counted(*args: object, name: str = name, own: Callable = getattr(onepass.functional, name),
                    **options: object) -> torch.Tensor:
            calls.append(name)
            return own(*args, **options)
        monkeypatch.setattr(onepass.functional, name, counted)
    x = torch.randn(2, 8, 5, 8)
    model(x)
    assert calls == ["layer_norm", *["rms_norm"] * 4, "layer_norm", "rms_norm"]
    calls.clear()
    model[3](hidden_states=x)  # by the name that the original has for it
    assert not calls


def test_impostors_are_left_alone() -> None:
    with_forward = SomeRMSNorm(8)
    with_forward.forward = lambda x: x
    fast = LayerNorm(8)
    fast._fast_norm = True
    names = {GemmaLikeRMSNorm(8): "does not compute", OtherEpsRMSNorm(8): "does not compute",
             GatedRMSNorm(8): "does not compute", ShiftedRMSNorm(8): "more than a weight",
             with_forward: "on the object", fast: "_fast_norm"}
    torch.nn.init.zeros_(next(iter(names)).weight)
    model = torch.nn.Sequential(*names)
    before = [type(m) for m in model]
    summary = onepass.patch(model)
    assert not summary.replaced and [type(m) for m in model] == before
    for why, expected in zip(summary.left.values(), names.values()):
        assert expected in why
    same_name = of("elsewhere")(type("LlamaRMSNorm", (torch.nn.Module,), {"forward": SomeRMSNorm.forward}))
    assert not any(onepass.patch(same_name()))  # not even listed


def test_each_kind_is_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = SomeRMSNorm.forward
    monkeypatch.setattr(SomeRMSNorm, "forward", lambda *args: calls.append(args[1].shape) or forward(*args))
    model = torch.nn.Sequential(*[SomeRMSNorm(size, eps) for size in (8, 16) for eps in (1e-5, 1e-6)
                                  for _ in range(5)])
    state = torch.random.get_rng_state()
    assert len(onepass.patch(model).replaced) == 20
    assert {shape[-1] for shape in calls} == {8, 16} and len(calls) < 20
    assert torch.equal(torch.random.get_rng_state(), state)


def test_relatives_on_meta() -> None:
    model = relatives().to("meta")
    assert len(onepass.patch(model).replaced) == 7  # their weights are not needed for it
    assert model(torch.randn(2, 8, 5, 8, device="meta")).shape == (2, 8, 5, 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_relatives_keep_their_types(dtype: torch.dtype, device: str) -> None:
    model = randomize(relatives()).to(device)
    x = torch.randn(2, 8, 5, 8, device=device)
    for weights, given in ((dtype, dtype), (torch.float32, dtype), (dtype, torch.float32)):
        for norm in model.to(weights):
            patched = copy.deepcopy(norm)
            assert onepass.patch(patched).replaced
            try:
                expected = norm(x.to(given))
            except RuntimeError:  # some of PyTorch's operators have errors for several types
                continue
            y = patched(x.to(given))
            assert y.dtype == expected.dtype
            torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="autocast on CUDA")
def test_relatives_in_autocast() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = randomize(relatives()).to("cuda", dtype)
        patched = copy.deepcopy(model)
        onepass.patch(patched)
        for given in (torch.float32, torch.bfloat16):
            x = torch.randn(2, 8, 5, 8, device="cuda", dtype=given)
            for mine, other in zip(patched, model):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    y, expected = mine(x), other(x)
                assert y.dtype == expected.dtype
                torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)


def test_copies_of_relatives(monkeypatch: pytest.MonkeyPatch) -> None:
    for own in (SomeRMSNorm, LayerNorm2d, RmsNorm2d):  # where pickle looks for them
        package = ModuleType(own.__module__.split(".")[0])
        monkeypatch.setitem(sys.modules, package.__name__, package)
        monkeypatch.setitem(sys.modules, own.__module__, sys.modules[__name__])
    model = randomize(torch.nn.Sequential(LayerNorm2d(8), RmsNorm2d(8), SomeRMSNorm(8)))
    onepass.patch(model)
    x = torch.randn(2, 8, 5, 8)
    for other in copies_of(model):
        assert list(other.state_dict()) == list(model.state_dict())
        assert torch.equal(other(x), model(x))
        onepass.unpatch(other)
        assert [type(m) for m in other] == [LayerNorm2d, RmsNorm2d, SomeRMSNorm]


@needs_compile
def test_compiled_relatives(device: str) -> None:
    model = randomize(relatives()).to(device)
    onepass.patch(model)
    x = torch.randn(2, 8, 5, 8, device=device, requires_grad=True)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for mine, other in zip(gradients(compiled, x), gradients(model, x)):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)


# ---- Models of libraries ------------------------------------------------------------------------


def randomize_patched(model: torch.nn.Module, summary: onepass.Summary) -> None:
    """Weights that are all ones, as new models have them, would hide what is done with them."""
    for name in summary.replaced:
        for parameter in model.get_submodule(name).parameters():
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)


def assert_patched_agrees(
    model: torch.nn.Module, expected: dict, *inputs: torch.Tensor, tolerance: float
) -> None:
    patched = copy.deepcopy(model)
    summary = onepass.patch(patched)
    counts = {name: list(summary.replaced.values()).count(name) for name in summary.replaced.values()}
    assert counts == expected and not summary.left
    randomize_patched(patched, summary)
    model.load_state_dict(patched.state_dict())
    for training in (False, True):
        assert_same(patched.train(training), model.train(training), *inputs, tolerance=tolerance)


@pytest.mark.parametrize("name, expected", [
    ("resnet50", {"BatchNorm2d": 53, "MaxPool2d": 1, "AdaptiveAvgPool2d": 1}),
    ("convnext_tiny", {"LayerNorm2d": 5, "LayerNorm": 18, "AdaptiveAvgPool2d": 1}),
    ("vit_tiny_patch16_224", {"LayerNorm": 25})])
def test_timm_models(name: str, expected: dict, device: str) -> None:
    timm = pytest.importorskip("timm")
    size = 224 if name.startswith("vit") else 64
    x = torch.randn(2, 3, size, size, device=device, dtype=torch.float64, requires_grad=True)
    model = timm.create_model(name, pretrained=False).to(device, torch.float64)
    assert_patched_agrees(model, expected, x, tolerance=1e-8)


def test_torchvision_model(device: str) -> None:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.convnext_tiny(stochastic_depth_prob=0.0).to(device, torch.float64)
    x = torch.randn(2, 3, 64, 64, device=device, dtype=torch.float64, requires_grad=True)
    assert_patched_agrees(model, {"LayerNorm2d": 5, "LayerNorm": 18, "AdaptiveAvgPool2d": 1}, x,
                          tolerance=1e-8)


SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
             vocab_size=100)


@pytest.mark.parametrize("name, norm, count", [
    ("Llama", "LlamaRMSNorm", 5), ("Mistral", "MistralRMSNorm", 5), ("Qwen2", "Qwen2RMSNorm", 5),
    ("T5Encoder", "T5LayerNorm", 5)])
def test_transformers_models(name: str, norm: str, count: int, device: str) -> None:
    transformers = pytest.importorskip("transformers")
    if name == "T5Encoder":
        config = transformers.T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
                                       vocab_size=100, dropout_rate=0.0)
    else:
        config = getattr(transformers, f"{name}Config")(**SIZES, num_key_value_heads=2)
    model = getattr(transformers, f"{name}Model")(config).to(device)
    tokens = torch.arange(10, device=device).reshape(1, 10)
    assert_patched_agrees(model, {norm: count}, tokens, tolerance=1e-4)


def test_transformers_gemma() -> None:
    """Multiplies by 1 + weight."""
    transformers = pytest.importorskip("transformers")
    model = transformers.GemmaModel(transformers.GemmaConfig(**SIZES, num_key_value_heads=2))
    summary = onepass.patch(model)
    assert not summary.replaced and len(summary.left) == 5


def test_transformers_model(device: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).eval().to(device)
    tokens = torch.arange(10, device=device).reshape(1, 10)
    with torch.no_grad():
        expected = model(tokens).last_hidden_state
        assert len(onepass.patch(model).replaced) == 5
        torch.testing.assert_close(model(tokens).last_hidden_state, expected, rtol=1e-3, atol=1e-4)
