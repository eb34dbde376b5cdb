"""onepass.patch changes the class of modules and nothing else."""

import copy
import io
import pickle

import onepass
import pytest
import torch
from conftest import VERSION


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


def test_copies_of_a_patched_model() -> None:
    model = Block().eval()
    onepass.patch(model)
    x = torch.randn(2, 5, 16)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file) if VERSION < (2, 4) else torch.load(file, weights_only=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert [type(m) for m in other.modules()] == [type(m) for m in model.modules()]
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


def test_timm_model(device: str) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval().to(device)
    x = torch.randn(1, 3, 224, 224, device=device)
    with torch.no_grad():
        expected = model(x)
        summary = onepass.patch(model)
        assert summary.replaced or summary.left
        torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["resnet50", "convnext_tiny"])
def test_timm_convolutional_models(name: str, device: str) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, pretrained=False).to(device)
    patched = copy.deepcopy(model)
    onepass.patch(patched)
    x = torch.randn(2, 3, 64, 64, device=device)
    for training in (False, True):
        y, expected = patched.train(training)(x), model.train(training)(x)
        torch.testing.assert_close(y, expected, rtol=1e-2, atol=1e-3)


def test_transformers_llama(device: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                      intermediate_size=64, vocab_size=100)
    model = transformers.LlamaModel(config).eval().to(device)
    tokens = torch.arange(10, device=device).reshape(1, 10)
    with torch.no_grad():
        expected = model(tokens).last_hidden_state
        onepass.patch(model)
        torch.testing.assert_close(model(tokens).last_hidden_state, expected, rtol=1e-3, atol=1e-4)


def test_transformers_model(device: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                     intermediate_size=64, vocab_size=100)
    model = transformers.BertModel(config).eval().to(device)
    tokens = torch.arange(10, device=device).reshape(1, 10)
    with torch.no_grad():
        expected = model(tokens).last_hidden_state
        assert len(onepass.patch(model).replaced) == 5
        torch.testing.assert_close(model(tokens).last_hidden_state, expected, rtol=1e-3, atol=1e-4)


def test_torchvision_model(device: str) -> None:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.convnext_tiny().eval().to(device)
    x = torch.randn(1, 3, 64, 64, device=device)
    with torch.no_grad():
        expected = model(x)
        summary = onepass.patch(model)
        assert summary.left  # its LayerNorm2d permutes first
        torch.testing.assert_close(model(x), expected, rtol=1e-3, atol=1e-3)
