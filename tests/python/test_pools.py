"""The poolings beyond AvgPool1d: results, indices, layouts, errors, modules, graphs."""

from typing import Any, Callable, ContextManager, Dict, List, Optional, Tuple

import onepass
import onepass.functional as F
import pytest
import torch
from conftest import VERSION, assert_near, reset_compiler
from onepass import _native, _pool_operator
from test_compile import DYNAMIC, needs_compile, needs_export, operators_in
from test_results import check, random
from torch.nn import functional as T

Way = Callable[[], ContextManager[object]]

SHAPES = {1: (2, 3, 23), 2: (2, 3, 9, 10), 3: (2, 3, 5, 6, 7)}
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}

# kernel, stride, padding, ceil_mode
WINDOWS: List[Tuple[int, Optional[int], int, bool]] = [
    (1, 1, 0, False), (2, None, 0, False), (3, 2, 1, False), (3, 2, 1, True), (4, 3, 2, True),
    (5, 1, 2, False)]

# Samples of the other types are in test_opinfo.py.
each_type = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_window = pytest.mark.parametrize("window", WINDOWS, ids=str)
each_rank = pytest.mark.parametrize("spatial", [1, 2, 3])


def layouts(spatial: int, dtype: torch.dtype, device: str) -> Dict[str, torch.Tensor]:
    x = random(SHAPES[spatial], dtype, device)
    made = {"contiguous": x, "unbatched": x[0], "every other": torch.stack([x, x], -1).flatten(-2)[..., ::2],
            "expanded": x[:1].expand(x.shape), "transposed": x.transpose(1, -1).contiguous().transpose(1, -1)}
    if spatial > 1:
        made["channels_last"] = x.contiguous(memory_format=FORMATS[spatial])
    return made


def functions(name: str) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    if not hasattr(T, name):
        pytest.skip(f"this PyTorch has no {name}")
    return getattr(F, name), getattr(T, name)


def check_both(name: str, x: torch.Tensor, way: Way, *arguments: Any) -> None:
    ours, theirs = functions(name)
    check(lambda x: ours(x, *arguments), lambda x: theirs(x, *arguments), x, way=way)


def check_each_layout(name: str, spatial: int, dtype: torch.dtype, device: str, way: Way,
                      *arguments: Any) -> None:
    for x in layouts(spatial, dtype, device).values():
        check_both(f"{name}{spatial}d", x, way, *arguments)


# ---- Results ------------------------------------------------------------------------------------


@each_type
@each_window
@pytest.mark.parametrize("spatial", [2, 3])
@pytest.mark.parametrize("options", [(False,), (True,), (True, 7)], ids=str)
def test_avg_pool(dtype: torch.dtype, window: Tuple[Any, ...], spatial: int, options: Tuple[Any, ...],
                  device: str, way: Way) -> None:
    check_each_layout("avg_pool", spatial, dtype, device, way, *window, *options)


@each_type
@each_window
@each_rank
@pytest.mark.parametrize("dilation", [1, 2])
def test_max_pool(dtype: torch.dtype, window: Tuple[Any, ...], spatial: int, dilation: int, device: str,
                  way: Way) -> None:
    kernel, stride, padding, ceil_mode = window
    if (kernel - 1) * dilation >= min(SHAPES[spatial][2:]) + 2 * padding:
        pytest.skip("no window fits")
    check_each_layout("max_pool", spatial, dtype, device, way, kernel, stride, padding, dilation, ceil_mode)


@each_type
@each_rank
@pytest.mark.parametrize("size", [1, 3, 5, 12])
@pytest.mark.parametrize("name", ["adaptive_avg_pool", "adaptive_max_pool"])
def test_adaptive_pool(name: str, dtype: torch.dtype, spatial: int, size: int, device: str, way: Way) -> None:
    check_each_layout(name, spatial, dtype, device, way, size)


@each_type
@each_window
@each_rank
@pytest.mark.parametrize("p", [1, 2, 2.5, 3.0])
def test_lp_pool(dtype: torch.dtype, window: Tuple[Any, ...], spatial: int, p: float, device: str,
                 way: Way) -> None:
    kernel, stride, padding, ceil_mode = window
    for x in layouts(spatial, dtype, device).values():
        x = x.abs() + 0.25  # whose powers are numbers and whose roots have gradients
        check_both(f"lp_pool{spatial}d", x, way, p, kernel, stride, ceil_mode)


@pytest.mark.parametrize("p", [1, 2, 3, 2.5, -1.0, float("inf"), -float("inf")])
def test_lp_pool_of_numbers_of_either_sign(p: float, device: str, way: Way) -> None:
    x = random((2, 3, 9, 10), torch.float64, device)
    x[0, 0, :4, :4] = 0  # where the gradient is 0
    check_both("lp_pool2d", x, way, p, 2)


@each_rank
def test_different_lengths_of_each_axis(spatial: int, device: str, way: Way) -> None:
    x = random(SHAPES[spatial], torch.float32, device)
    kernel, stride, padding = [4, 3, 2][:spatial], (1, 3, 2)[:spatial], (2, 0, 1)[:spatial]
    size = (4, 3, 7)[:spatial]
    for name in ("avg", "max"):
        check_both(f"{name}_pool{spatial}d", x, way, kernel, stride, padding)
        check_both(f"adaptive_{name}_pool{spatial}d", x, way, size)
        if spatial > 1:
            check_both(f"adaptive_{name}_pool{spatial}d", x, way, (None,) + size[1:])
    if spatial > 1:
        check_both(f"lp_pool{spatial}d", x.abs() + 1, way, 2, kernel, stride)


# ---- Maxima and their indices -------------------------------------------------------------------


@each_rank
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_indices_of_ties_and_nans(spatial: int, dtype: torch.dtype, device: str, way: Way) -> None:
    x = torch.randint(0, 3, SHAPES[spatial], device=device).to(dtype)
    x[torch.rand(x.shape, device=device) < 0.05] = float("nan")
    x[torch.rand(x.shape, device=device) < 0.3] = -float("inf")
    for each in (x, x[0], x.contiguous(memory_format=FORMATS.get(spatial, torch.contiguous_format))):
        for needs_grad in (False, True):
            each = each.detach().requires_grad_(needs_grad)
            for name, arguments in (("max_pool", (3, 2, 1)), ("max_pool", (2, 1, 1, 2, True)),
                                    ("adaptive_max_pool", (3,))):
                ours, theirs = functions(f"{name}{spatial}d")
                # Contiguous: over channels_last_3d PyTorch's own name elements outside of the window. Float:
                # not all versions have it for bfloat16.
                y, indices = theirs(each.detach().contiguous().float(), *arguments, return_indices=True)
                with way():
                    mine, my_indices = ours(each, *arguments, return_indices=True)
                    alone = ours(each, *arguments)
                    twice, _ = getattr(F, f"{name}{spatial}d_with_indices")(each, *arguments)
                assert torch.equal(my_indices, indices) and my_indices.dtype == torch.int64
                assert not my_indices.requires_grad and mine.requires_grad == needs_grad
                assert mine.stride() == my_indices.stride()
                for other in (mine, alone, twice):
                    torch.testing.assert_close(other.detach().float(), y, rtol=0, atol=0, equal_nan=True)


def test_indices_serve_unpooling(device: str, way: Way) -> None:
    x = random((2, 3, 8, 8), torch.float32, device).requires_grad_()
    with way():
        y, indices = F.max_pool2d(x, 2, return_indices=True)
    expected = T.max_unpool2d(*T.max_pool2d(x.detach(), 2, return_indices=True), 2)
    unpooled = T.max_unpool2d(y, indices, 2)
    torch.testing.assert_close(unpooled, expected)
    unpooled.sum().backward()
    torch.testing.assert_close(x.grad, (expected != 0).float())


def test_windows_that_have_only_padding(device: str, way: Way) -> None:
    """They have no gradient, of any order."""
    x = random((2, 3, 4, 1), torch.float64, device).requires_grad_()
    with way():
        y = F.max_pool2d(x, (1, 2), 1, (0, 1), (1, 2))
    assert y.shape == x.shape and (y == -float("inf")).all()
    grad = torch.ones_like(y)
    first, = torch.autograd.grad(y, x, grad, retain_graph=True)
    second, = torch.autograd.grad(y, x, grad, create_graph=True)
    assert not first.any() and not second.any()


def test_indices_are_only_kept_for_a_gradient(device: str) -> None:
    x = random((2, 3, 64), torch.float32, device)
    assert F.max_pool1d(x, 2).grad_fn is None
    y = F.max_pool1d(x.requires_grad_(), 2)
    kept, = y.grad_fn.saved_tensors
    assert kept.dtype == torch.int64 and kept.shape == y.shape
    assert F.adaptive_avg_pool1d(x, 2).grad_fn.saved_tensors == ()


# ---- Layouts and shapes -------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", [2, 3])
@pytest.mark.parametrize("name, arguments", [
    ("avg_pool", (2,)), ("max_pool", (2,)), ("adaptive_avg_pool", (2,)), ("adaptive_avg_pool", (1,)),
    ("adaptive_max_pool", (2,)), ("lp_pool", (2, 2))], ids=str)
def test_channels_last_is_kept(name: str, arguments: Tuple[Any, ...], spatial: int, device: str,
                               way: Way) -> None:
    ours, theirs = functions(f"{name}{spatial}d")
    x = random(SHAPES[spatial], torch.float32, device).contiguous(memory_format=FORMATS[spatial])
    x.requires_grad_()
    with way():
        y = ours(x, *arguments)
        grad, = torch.autograd.grad(y.sum(), x)
    assert y.is_contiguous(memory_format=FORMATS[spatial])
    assert grad.is_contiguous(memory_format=FORMATS[spatial])
    torch.testing.assert_close(y, theirs(x, *arguments))
    if spatial == 2:
        assert y.stride() == theirs(x, *arguments).stride()


@each_rank
def test_no_batches(spatial: int, device: str, way: Way) -> None:
    x = random((0, *SHAPES[spatial][1:]), torch.float32, device)
    for name, arguments in (("avg_pool", (2,)), ("max_pool", (2,)), ("adaptive_avg_pool", (2,)),
                            ("adaptive_max_pool", (2,))):
        ours, theirs = functions(f"{name}{spatial}d")
        with way():
            assert ours(x, *arguments).shape == theirs(x, *arguments).shape


@pytest.mark.parametrize("name", ["adaptive_avg_pool2d", "adaptive_max_pool2d"])
def test_pooling_to_nothing(name: str, device: str, way: Way) -> None:
    x = random((2, 3, 4, 4), torch.float32, device)
    with way():
        assert getattr(F, name)(x, (0, 2)).shape == (2, 3, 0, 2)


@pytest.mark.parametrize("divisor", [-3, 5])
def test_any_divisor(divisor: int, device: str, way: Way) -> None:
    x = random((2, 3, 4, 4), torch.float32, device)
    with way():
        y = F.avg_pool2d(x, 2, divisor_override=divisor)
    torch.testing.assert_close(y, T.avg_pool2d(x, 2, divisor_override=divisor))


@pytest.mark.parametrize("shape", [(4, 16, 30, 33), (2, 4, 1, 3000), (3, 300, 40)], ids=str)
def test_larger(shape: Tuple[int, ...], device: str) -> None:
    x = random(shape, torch.float32, device)
    for name, arguments in (("avg_pool", ((1, 3), 2, (0, 1))), ("max_pool", ((1, 5), 1, (0, 2))),
                            ("adaptive_avg_pool", ((1, 7),)), ("adaptive_max_pool", ((1, 7),)),
                            ("lp_pool", (2, (1, 4)))):
        check_both(f"{name}2d", x, torch.enable_grad, *arguments)


# ---- Errors -------------------------------------------------------------------------------------

X = torch.ones(2, 3, 8)
X2 = torch.ones(2, 3, 8, 8)
X3 = torch.ones(2, 3, 4, 8, 8)
WINDOW_ERRORS = {
    "no kernel": (0,), "negative kernel": (-1,), "too large a kernel": (9,), "half a kernel": (2.5,),
    "four kernels": ((2, 2, 2, 2),), "no stride": (2, 0), "negative stride": (2, -1),
    "too much padding": (4, 1, 3), "negative padding": (4, 1, -1), "padding of a kernel": (3, 1, 2)}
SIZE_ERRORS = {"negative": (-1,), "half": (1.5,), "four": ((1, 2, 3, 4),), "text": ("x",)}
ERRORS: Dict[str, Tuple[str, Callable[..., Any]]] = {}
for name, x in (("avg_pool2d", X2), ("avg_pool3d", X3), ("max_pool1d", X), ("max_pool2d", X2),
                ("max_pool3d", X3)):
    for what, arguments in WINDOW_ERRORS.items():
        ERRORS[f"{name}: {what}"] = (name, lambda f, x=x, arguments=arguments: f(x, *arguments))
    ERRORS[f"{name}: one axis"] = (name, lambda f: f(torch.ones(8), 2))
    ERRORS[f"{name}: six axes"] = (name, lambda f: f(torch.ones((2,) * 6), 2))
    ERRORS[f"{name}: no channels"] = (name, lambda f, x=x: f(x[:, :0], 2))
    ERRORS[f"{name}: nothing to pool"] = (name, lambda f, x=x: f(x[..., :0], 2))
    ERRORS[f"{name}: not a tensor"] = (name, lambda f: f([1.0], 2))
    ERRORS[f"{name}: sparse"] = (name, lambda f, x=x: f(x.to_sparse(), 2))
    ERRORS[f"{name}: a divisor of 0, or no dilation"] = (
        name, lambda f, x=x, name=name:
        f(x, 2, dilation=0) if "max" in name else f(x, 2, divisor_override=0))
for name, x in (("adaptive_avg_pool1d", X), ("adaptive_avg_pool2d", X2), ("adaptive_avg_pool3d", X3),
                ("adaptive_max_pool1d", X), ("adaptive_max_pool2d", X2), ("adaptive_max_pool3d", X3)):
    for what, arguments in SIZE_ERRORS.items():
        ERRORS[f"{name}: {what}"] = (name, lambda f, x=x, arguments=arguments: f(x, *arguments))
    ERRORS[f"{name}: one axis"] = (name, lambda f: f(torch.ones(8), 2))
    ERRORS[f"{name}: nothing to pool"] = (name, lambda f, x=x: f(x[..., :0], 2))
    ERRORS[f"{name}: not a tensor"] = (name, lambda f: f(None, 2))
for name, x in (("lp_pool1d", X), ("lp_pool2d", X2), ("lp_pool3d", X3)):
    ERRORS[f"{name}: no kernel"] = (name, lambda f, x=x: f(x, 2, 0))
    ERRORS[f"{name}: too large a kernel"] = (name, lambda f, x=x: f(x, 2, 9))
    ERRORS[f"{name}: no stride"] = (name, lambda f, x=x: f(x, 2, 2, 0))
    ERRORS[f"{name}: one axis"] = (name, lambda f: f(torch.ones(8), 2, 2))
    ERRORS[f"{name}: a text"] = (name, lambda f, x=x: f(x, "2", 2))
ERRORS["avg_pool3d: a kernel that only padding makes room for"] = ("avg_pool3d", lambda f: f(X3, 5, 1, 2))
ERRORS["lp_pool3d: a kernel that only ceil_mode makes room for"] = (
    "lp_pool3d", lambda f: f(X3, 2, 5, 3, True))
ERRORS["lp_pool1d: kernels"] = ("lp_pool1d", lambda f: f(X, 2, (2,)))
ERRORS["adaptive_max_pool2d: one size of two"] = ("adaptive_max_pool2d", lambda f: f(X2, (2,)))


@pytest.mark.parametrize("name, call", [
    pytest.param(name, call, id=what) for what, (name, call) in ERRORS.items() if hasattr(T, name)])
def test_as_pytorch(name: str, call: Callable[..., Any], way: Way) -> None:
    """Its result where it has one, or else its error, which tells what the arguments were."""
    try:
        expected = call(getattr(T, name))
    except Exception as error:
        with way(), pytest.raises(type(error)) as raised:
            call(getattr(F, name))
        assert type(raised.value) is type(error)
        assert str(error) in str(raised.value) and f"{name}() got input" in str(raised.value)
    else:
        with way():
            torch.testing.assert_close(call(getattr(F, name)), expected)


def test_types_that_are_pytorch_s(device: str, way: Way) -> None:
    x = torch.arange(24, device=device).reshape(1, 2, 12)
    try:
        expected = T.max_pool1d(x, 2)
    except RuntimeError as error:
        with way(), pytest.raises(type(error), match="input"):
            F.max_pool1d(x, 2)
    else:
        with way():
            assert torch.equal(F.max_pool1d(x, 2), expected)


@pytest.mark.parametrize("name", ["avg_pool3d", "max_pool3d", "adaptive_avg_pool3d", "adaptive_max_pool3d",
                                  "lp_pool3d", "lp_pool2d", "max_pool2d"])
@pytest.mark.parametrize("indices", [False, True])
def test_autocast_as_pytorch_does(name: str, indices: bool, device: str, way: Way) -> None:
    """On a CPU it makes some of them float32, but not max_pool3d with its indices."""
    ours, theirs = functions(name)
    x = random(SHAPES[int(name[-2])], torch.bfloat16, device).abs().requires_grad_()
    arguments: Tuple[Any, ...] = (2, 2) if "lp" in name else (2,)
    options = {"return_indices": True} if indices and "max" in name else {}
    with torch.autocast(device, dtype=torch.bfloat16):
        try:
            expected = theirs(x, *arguments, **options)
        except RuntimeError:
            pytest.skip(f"this PyTorch does not have {name} of bfloat16")
        with way():
            y = ours(x, *arguments, **options)
    y, expected = (y[0], expected[0]) if options else (y, expected)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
    assert torch.autograd.grad(y.sum(), x)[0].dtype == torch.bfloat16


def test_everything_works_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU that it has no kernels for."""
    monkeypatch.setattr(_native, "pool", lambda *_: None)
    for name, arguments in (("avg_pool2d", (2,)), ("max_pool2d", (2, None, 0, 1, False, True)),
                            ("adaptive_avg_pool2d", (2,)), ("adaptive_max_pool2d", (2,)),
                            ("lp_pool2d", (2, 2))):
        for needs_grad in (False, True):
            x = random(SHAPES[2], torch.float32, "cpu").requires_grad_(needs_grad)
            torch.testing.assert_close(getattr(F, name)(x, *arguments), getattr(T, name)(x, *arguments))


@pytest.mark.parametrize("name, arguments", [
    ("avg_pool2d", (3, 2, 1)), ("max_pool2d", (3, 2, 1)), ("adaptive_avg_pool2d", (2,)),
    ("adaptive_max_pool2d", (2,)), ("lp_pool2d", (2, 3))])
def test_gradients_without_the_library(name: str, arguments: Tuple[Any, ...], device: str,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "pool_backward", lambda *_: None)
    check_both(name, random(SHAPES[2], torch.float32, device).abs() + 0.1, torch.enable_grad, *arguments)


@pytest.mark.parametrize("name, arguments", [
    ("avg_pool2d", (3, 2, 1, True)), ("max_pool2d", (3, 2, 1, 2)), ("adaptive_avg_pool2d", (2,)),
    ("adaptive_max_pool3d", (2,)), ("lp_pool2d", (2, 3)), ("lp_pool1d", (3.0, 3))])
def test_gradcheck(name: str, arguments: Tuple[Any, ...], device: str, way: Way) -> None:
    shape = SHAPES[int(name[-2])]
    x = torch.randperm(torch.Size(shape).numel(), device=device).double().reshape(shape)  # without ties
    x = (x / x.max() + 0.5).requires_grad_()

    def call(x: torch.Tensor) -> torch.Tensor:
        with way():
            return getattr(F, name)(x, *arguments)

    assert torch.autograd.gradcheck(call, (x,), fast_mode=True, eps=1e-7)
    assert torch.autograd.gradgradcheck(call, (x,), fast_mode=True, eps=1e-7)


# ---- Modules ------------------------------------------------------------------------------------

MODULES: Dict[str, Tuple[str, Tuple[Any, ...], Dict[str, Any]]] = {}
for n in (1, 2, 3):
    MODULES[f"MaxPool{n}d"] = (f"MaxPool{n}d", (2,), {})
    MODULES[f"MaxPool{n}d with all options"] = (f"MaxPool{n}d", (3, 2, 1, 2, True, True), {})
    MODULES[f"AdaptiveAvgPool{n}d"] = (f"AdaptiveAvgPool{n}d", (3,), {})
    MODULES[f"AdaptiveMaxPool{n}d"] = (f"AdaptiveMaxPool{n}d", (3,), {})
    MODULES[f"AdaptiveMaxPool{n}d with indices"] = (f"AdaptiveMaxPool{n}d", (3, True), {})
    if hasattr(torch.nn, f"LPPool{n}d"):
        MODULES[f"LPPool{n}d"] = (f"LPPool{n}d", (2, 3, 2, True), {})
    if n > 1:
        MODULES[f"AvgPool{n}d"] = (f"AvgPool{n}d", (2,), {})
        MODULES[f"AvgPool{n}d with all options"] = (f"AvgPool{n}d", (3, 2, 1, True, False, 4), {})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MODULES.values(), ids=MODULES)
def test_modules(case: Tuple[str, Tuple[Any, ...], Dict[str, Any]], device: str) -> None:
    name, arguments, options = case
    ours, theirs = getattr(onepass.nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
    assert isinstance(ours, type(theirs)) and repr(ours) == repr(theirs)
    x = random(SHAPES[int(name[-2])], torch.float32, device)
    expected = theirs(x)
    torch.testing.assert_close(ours(x), expected)
    torch.testing.assert_close(torch.jit.script(ours)(x), expected)
    model = torch.nn.Sequential(theirs)
    assert list(onepass.patch(model).replaced) == ["0"] and type(model[0]) is type(ours)
    torch.testing.assert_close(model(x), expected)
    assert list(onepass.unpatch(model).replaced) == ["0"] and type(model[0]) is type(theirs)


def test_rms_norm_of_channels(device: str, way: Way) -> None:
    for shape in ((2, 6, 4, 5), (2, 6, 7)):
        x = random(shape, torch.float32, device)
        for affine in (False, True):
            module = onepass.nn.ChannelRMSNorm(6, 1e-5, affine).to(device)
            check(module, lambda x: x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-5), x, way=way)
    assert onepass.unpatch(torch.nn.Sequential(module)).replaced == {}


# ---- Graphs -------------------------------------------------------------------------------------


class Pools(torch.nn.Module):
    def __init__(self, nn: Any) -> None:
        super().__init__()
        self.pools = torch.nn.Sequential(
            nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1, count_include_pad=False), nn.LPPool2d(2, 2, 1),
            nn.AdaptiveMaxPool2d((6, None)), nn.AdaptiveAvgPool2d(3))
        self.indices = nn.MaxPool2d(2, 1, return_indices=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, indices = self.indices(self.pools(x))
        return y + indices


IN_GRAPH = {"max_pool2d", "avg_pool2d", "lp_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d"}


@needs_compile
@pytest.mark.parametrize("dynamic", DYNAMIC)
@pytest.mark.parametrize("channels_last", [False, True])
def test_compiles_to_one_graph(dynamic: bool, channels_last: bool, device: str) -> None:
    reset_compiler()
    ours, theirs = Pools(onepass.nn), Pools(torch.nn)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for length in (9, 11):
        x = random((2, 3, length, 10), torch.float32, device).abs()
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        grads = []
        # PyTorch's on the CPU: with channels_last its avg_pool2d has wrong gradients on CUDA.
        for module, of in ((compiled, x), (theirs, x.cpu())):
            for needs_grad in (False, True):
                y = module(of.requires_grad_(needs_grad))
            grads.append([tensor.cpu() for tensor in (y, *torch.autograd.grad(y.square().sum(), of))])
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@needs_compile
def test_compiles_3d_under_autocast(device: str) -> None:
    reset_compiler()
    x = random(SHAPES[3], torch.bfloat16, device)
    compiled = torch.compile(lambda x: F.avg_pool3d(x, 2), backend="eager", fullgraph=True)
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = T.avg_pool3d(x, 2).dtype
    for enabled in (False, True, False):  # it has to notice
        with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
            assert compiled(x).dtype == (expected if enabled else torch.bfloat16)


@needs_export
def test_export(device: str) -> None:
    module = Pools(onepass.nn)
    x = random((2, 3, 9, 10), torch.float32, device)
    program = torch.export.export(module, (x,))
    if device == "cpu":
        assert operators_in(program.graph) == IN_GRAPH
    torch.testing.assert_close(program.module()(x), module(x))


@pytest.mark.skipif(VERSION < (2, 5), reason="opcheck is from 2.4 on, and right later")
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "permuted"])
def test_opcheck(layout: str, device: str) -> None:
    x = random((2, 3, 6, 7), torch.float64, device).abs() + 0.1
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    elif layout == "permuted":
        x = x.transpose(2, 3)
    window = ([3, 2], [2, 1], [0, 0], [1, 1], True, False, 0)
    for name, *fields in (("max_pool2d", *window, 0.0, True), ("max_pool2d", *window, 0.0, False),
                          ("avg_pool2d", *window, 0.0, False), ("lp_pool2d", *window, 2.0, False),
                          ("adaptive_avg_pool2d", [2, 3], False), ("adaptive_max_pool2d", [2, 3], True)):
        pool = _pool_operator._POOLS[name]
        if pool._normal_if_covered(x, tuple(fields[:-1])) is None:
            continue
        torch.library.opcheck(pool.operator, (x.detach().requires_grad_(), *fields))
        y, indices = pool.operator(x, *fields[:-1], "max" in name)
        torch.library.opcheck(
            pool.backward_operator,
            (y, list(x.shape), layout == "channels_last", indices if "max" in name else None,
             x if name == "lp_pool2d" else None, y if name == "lp_pool2d" else None, *fields[:-1]))


def test_what_the_compiler_is_told_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is asked, with windows that it covers on a CPU."""
    for pool in _pool_operator._POOLS.values():
        for channels_last in (False, pool.spatial > 1):
            told = _pool_operator._covers_cuda(pool.name, torch.float32, 0, channels_last)
            assert told in (True, False) and (torch.cuda.is_available() or not told)
    given: List[Any] = []
    monkeypatch.setattr(_native, "covers_pool", lambda *arguments: given.append(arguments) or True)
    for pool in _pool_operator._POOLS.values():
        assert _pool_operator._covers_cuda(pool.name, torch.float32, 0, False)
    x = {spatial: torch.ones(shape) for spatial, shape in SHAPES.items()}
    for description, dtype, index, channels_last in given:
        assert (dtype, index, channels_last) == ((2, 32), 0, False)
        assert _native.pool(description, False, x[description[1]]) is not None


@needs_compile
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_compiler_can_ask(dynamic: bool) -> None:
    reset_compiler()

    def ask(x: torch.Tensor) -> torch.Tensor:
        pool = _pool_operator._POOLS["max_pool2d"]
        return x + _pool_operator._covers_cuda(pool.name, x.dtype, 0, pool.keeps_channels_last(x))

    compiled = torch.compile(ask, backend="eager", fullgraph=True, dynamic=dynamic)
    x = torch.zeros(2, 3, 4, 5)
    for each in (x, x.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(compiled(each), ask(each))


def test_larger_gradients_are_recorded_by_onepass_and_small_ones_by_pytorch() -> None:
    small = _native.set_small(1 << 12, 1 << 18)
    try:
        for size, name in ((32, "MaxPool"), (65, "_Pool")):
            x = torch.randn(1, 1, 64, size, requires_grad=True)
            assert name in type(F.max_pool2d(x, 2).grad_fn).__name__
    finally:
        _native.set_small(*small)
    assert_near(F.max_pool2d(x, 2), T.max_pool2d(x, 2).double())
