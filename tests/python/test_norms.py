"""The normalizations beyond LayerNorm and L1Norm: results, running statistics, fusions, layouts, errors."""

from typing import Any, Callable, ContextManager, Dict, Optional, Tuple

import onepass
import onepass.functional as F
import pytest
import torch
from conftest import ACTIVATIONS, PAIRS, VERSION, assert_near, rms_norm_of_torch
from onepass import _native
from test_results import check, each_type, random
from torch.nn import functional as T

Way = Callable[[], ContextManager[object]]

LAYOUTS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(1, 3, 0, 2).contiguous().permute(2, 0, 3, 1),
    "every other": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
    "expanded": lambda x: x[:1].expand(x.shape),
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
each_affine = pytest.mark.parametrize("affine", ["neither", "weight", "bias", "both"])
Layout = Callable[[torch.Tensor], torch.Tensor]


def affine_of(affine: str, shape: Tuple[int, ...], dtype: torch.dtype, device: str
              ) -> Tuple[Optional[torch.Tensor], Optional[torch.Tensor]]:
    return (random(shape, dtype, device) if affine in ("weight", "both") else None,
            random(shape, dtype, device) if affine in ("bias", "both") else None)


def group_norm_of_torch(x: torch.Tensor, groups: int, weight: Optional[torch.Tensor],
                        bias: Optional[torch.Tensor], eps: float) -> torch.Tensor:
    """torch.nn.functional.group_norm, which 2.0.1 has no gradient of with a bias alone."""
    y = T.group_norm(x, groups, None, None, eps)
    ones = (1,) * (x.dim() - 2)
    y = y if weight is None else y * weight.reshape(-1, *ones)
    return y if bias is None else y + bias.reshape(-1, *ones)


# ---- Results ------------------------------------------------------------------------------------


@each_type
@each_layout
@each_affine
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm(dtype: torch.dtype, layout: Layout, affine: str, groups: int, device: str,
                    way: Way) -> None:
    x = layout(random((3, 6, 4, 5), dtype, device))
    check(lambda x, w, b: F.group_norm(x, groups, w, b, 1e-3),
          lambda x, w, b: group_norm_of_torch(x, groups, w, b, 1e-3), x,
          *affine_of(affine, (6,), dtype, device), way=way)


@each_type
@each_layout
@each_affine
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm(dtype: torch.dtype, layout: Layout, affine: str, training: bool, device: str,
                    way: Way) -> None:
    x = layout(random((3, 6, 4, 5), dtype, device))
    mean, var = random((6,), dtype, device), random((6,), dtype, device).abs() + 0.5

    def call(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x, w, b: f(x, mean.to(x, copy=True), var.to(x, copy=True), w, b, training, 0.3, 1e-3)

    check(call(F.batch_norm), call(T.batch_norm), x, *affine_of(affine, (6,), dtype, device), way=way)


@each_type
@each_layout
@pytest.mark.parametrize("affine", ["neither", "both"])
@pytest.mark.parametrize("use_input_stats", [False, True])
def test_instance_norm(dtype: torch.dtype, layout: Layout, affine: str, use_input_stats: bool,
                       device: str, way: Way) -> None:
    x = layout(random((3, 6, 4, 5), dtype, device))
    mean, var = random((6,), dtype, device), random((6,), dtype, device).abs() + 0.5

    def call(f: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda x, w, b: f(x, mean.to(x, copy=True), var.to(x, copy=True), w, b, use_input_stats,
                                 0.3, 1e-3)

    check(call(F.instance_norm), call(T.instance_norm), x, *affine_of(affine, (6,), dtype, device), way=way)


@each_type
@each_layout
@pytest.mark.parametrize("axes", [1, 2, 4])
@pytest.mark.parametrize("affine", ["neither", "weight"])
@pytest.mark.parametrize("eps", [None, 1e-2])
def test_rms_norm(dtype: torch.dtype, layout: Layout, axes: int, affine: str, eps: Optional[float],
                  device: str, way: Way) -> None:
    x = layout(random((3, 6, 4, 5), dtype, device))
    shape = x.shape[-axes:]
    # From 2.4 to 2.6 PyTorch took that of halves themselves; test_default_eps_of_rms_norm compares with it.
    of_input = dtype == torch.float64 or (2, 4) <= VERSION <= (2, 6)
    default = torch.finfo(dtype if of_input else torch.float32).eps
    check(lambda x, w: F.rms_norm(x, shape, w, eps),
          lambda x, w: rms_norm_of_torch(x, shape, w, default if eps is None else eps), x,
          affine_of(affine, shape, dtype, device)[0], way=way)


@pytest.mark.skipif(not hasattr(T, "rms_norm"), reason="this PyTorch has no rms_norm")
@each_type
def test_default_eps_of_rms_norm(dtype: torch.dtype, device: str, way: Way) -> None:
    x = (torch.randn(3, 8, device=device) * 2e-4).to(dtype)
    with way():
        torch.testing.assert_close(F.rms_norm(x, (8,)), T.rms_norm(x, (8,)))


@each_type
@each_layout
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_rms_norm_over_any_axis(dtype: torch.dtype, layout: Layout, dim: int, device: str, way: Way) -> None:
    x = layout(random((3, 6, 4, 5), dtype, device))
    weight = random((x.shape[dim],), dtype, device)
    check(lambda x, w: F.rms_norm(x, w.shape, w, 1e-5, dim=dim),
          lambda x, w: rms_norm_of_torch(x.movedim(dim, -1), w.shape, w, 1e-5).movedim(-1, dim), x, weight,
          way=way)


@each_type
@each_layout
@pytest.mark.parametrize("p, dim, eps", [
    (2, 1, 1e-12), (2.0, -1, 1.5), (1, 0, 1e-12), (1.0, 2, 4.0), (2, (1, 2), 5.0), (1, (-2, -1), 1e-12)])
def test_normalize(dtype: torch.dtype, layout: Layout, p: float, dim: Any, eps: float, device: str,
                   way: Way) -> None:
    x = layout(random((3, 6, 4, 5), dtype, device))
    check(lambda x: F.normalize(x, p, dim, eps), lambda x: T.normalize(x, p, dim, eps), x, way=way)


@pytest.mark.parametrize("p, dim", [(2, (0, 3)), (2, (2, 1)), (3, 1), (float("inf"), 1)])
def test_normalize_that_is_pytorch_s(p: float, dim: Any, device: str, way: Way) -> None:
    check(lambda x: F.normalize(x, p, dim), lambda x: T.normalize(x, p, dim),
          random((3, 6, 4, 5), torch.float32, device), way=way)


def test_normalize_of_zeros_and_into_a_tensor(device: str, way: Way) -> None:
    x = random((4, 8), torch.float32, device)
    x[1] = 0
    out = torch.empty_like(x)
    with way():
        for p in (1, 2):
            torch.testing.assert_close(F.normalize(x, p), T.normalize(x, p))
        assert F.normalize(x, out=out) is out
    torch.testing.assert_close(out, T.normalize(x))


@each_type
@each_layout
@pytest.mark.parametrize("dim, eps", [(1, 0.0), (-1, 0.5), ((2, 3), 0.0), ((0, 2), 0.1)])
def test_l2_norm(dtype: torch.dtype, layout: Layout, dim: Any, eps: float, device: str, way: Way) -> None:
    x = layout(random((3, 6, 4, 5), dtype, device))
    check(lambda x: F.l2_norm(x, dim, eps),
          lambda x: x / (x.square().sum(dim, keepdim=True).sqrt() + eps), x, way=way)


@each_type
@each_layout
def test_frobenius_norm(dtype: torch.dtype, layout: Layout, device: str, way: Way) -> None:
    check(F.frobenius_norm, lambda x: x / x.square().sum().sqrt(),
          layout(random((3, 6, 4, 5), dtype, device)), way=way)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 7), (2, 6, 3, 4), (2, 6, 3, 2, 4)], ids=str)
def test_ranks(shape: Tuple[int, ...], device: str, way: Way) -> None:
    x, weight = random(shape, torch.float32, device), random((6,), torch.float32, device)
    check(lambda x, w: F.group_norm(x, 2, w), lambda x, w: T.group_norm(x, 2, w), x, weight, way=way)
    check(lambda x, w: F.batch_norm(x, None, None, w, training=True),
          lambda x, w: T.batch_norm(x, None, None, w, training=True), x, weight, way=way)
    if len(shape) > 2:
        check(lambda x, w: F.instance_norm(x, None, None, w),
              lambda x, w: T.instance_norm(x, None, None, w), x, weight, way=way)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_with_float_weights(dtype: torch.dtype, device: str, way: Way) -> None:
    """As in a model under autocast: its weights and running statistics stay float32."""
    x, wide = random((5, 6, 7), dtype, device), torch.float32
    weight, bias = random((6,), wide, device), random((6,), wide, device)
    check(lambda x, w, b: F.group_norm(x, 3, w, b), lambda x, w, b: T.group_norm(x, 3, w, b), x, weight,
          bias, way=way)
    mean, var = torch.zeros(6, device=device), torch.ones(6, device=device)
    for training in (True, False):
        check(lambda x, w, b, training=training: F.batch_norm(x, mean, var, w, b, training),
              lambda x, w, b, training=training: T.batch_norm(
                  x, mean.cpu().double(), var.cpu().double(), w, b, training), x, weight, bias, way=way)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 2, 4), (2, 0, 4)], ids=str)
def test_empty(shape: Tuple[int, ...], device: str, way: Way) -> None:
    x = random(shape, torch.float32, device)
    check(lambda x: F.rms_norm(x, shape[-1:]), lambda x: rms_norm_of_torch(x, shape[-1:]), x, way=way)
    check(F.normalize, T.normalize, x, way=way)
    for ours, theirs in ((lambda x: F.group_norm(x, 1), lambda x: T.group_norm(x, 1)),
                         (lambda x: F.batch_norm(x, None, None, training=True),
                          lambda x: T.batch_norm(x, None, None, training=True)),
                         (F.instance_norm, T.instance_norm)):
        try:
            expected = theirs(x)
        except Exception as error:
            with way(), pytest.raises(type(error), match="input"):
                ours(x)
        else:
            with way():
                torch.testing.assert_close(ours(x), expected)


# ---- Layouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 6, 3, 4), (2, 6, 3, 2, 4), (2, 6, 1, 1), (1, 1, 3, 4)], ids=str)
def test_channels_last_is_kept(shape: Tuple[int, ...], device: str, way: Way) -> None:
    channels_last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = random(shape, torch.float32, device).to(memory_format=channels_last).requires_grad_()
    calls = {
        "group_norm": lambda f: f(x, 1),
        "batch_norm": lambda f: f(x, None, None, training=True),
        "normalize": lambda f: f(x),
    }
    for name, call in calls.items():
        with way():
            y = call(getattr(F, name))
        assert y.is_contiguous(memory_format=channels_last), name
        # With sizes of 1 strides are a matter of taste, and PyTorch's group_norm on CUDA does not keep them.
        if 1 not in shape and (name, device) != ("group_norm", "cuda"):
            assert y.stride() == call(getattr(T, name)).stride(), name
        grad, = torch.autograd.grad(y.square().sum(), x)
        assert grad.is_contiguous(memory_format=channels_last), name
    if shape[2:] != (1, 1):
        with way():
            y = F.instance_norm(x)
        assert y.is_contiguous(memory_format=channels_last)


# ---- Running statistics -------------------------------------------------------------------------


@pytest.mark.parametrize("name, shape", [
    ("BatchNorm1d", (5, 6)), ("BatchNorm1d", (5, 6, 7)), ("BatchNorm2d", (3, 6, 4, 5)),
    ("BatchNorm3d", (2, 6, 2, 3, 2)), ("InstanceNorm1d", (5, 6, 7)), ("InstanceNorm2d", (3, 6, 4, 5)),
    ("InstanceNorm2d", (6, 4, 5)), ("InstanceNorm3d", (2, 6, 2, 3, 2))])
@pytest.mark.parametrize("options", [
    {}, {"affine": True, "track_running_stats": True}, {"momentum": None}, {"momentum": 0.4},
    {"track_running_stats": False}, {"affine": False}], ids=str)
def test_modules_with_running_statistics(name: str, shape: Tuple[int, ...], options: Dict[str, Any],
                                         device: str, way: Way) -> None:
    ours = getattr(onepass.nn, name)(6, **options).to(device)
    theirs = getattr(torch.nn, name)(6, **options).to(device)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    for step in range(4):
        ours.train(step != 2)
        theirs.train(step != 2)
        x = random(shape, torch.float32, device) * 3 + 1
        mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        try:
            expected = theirs(other)
        except TypeError as error:
            pytest.skip(f"this PyTorch's {name} does not take that: {error}")
        with way():
            y = ours(mine)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        grad = torch.randn_like(y)
        y.backward(grad)
        expected.backward(grad)
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)
    for (key, value), expected in zip(ours.state_dict().items(), theirs.state_dict().values()):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}")
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4)


def test_autograd_is_told_of_changed_statistics_as_by_pytorch(device: str) -> None:
    x = random((3, 6, 4), torch.float32, device)
    for name in ("batch_norm", "instance_norm"):
        changes = []
        for f in (F, T):
            mean, var = torch.zeros(6, device=device), torch.ones(6, device=device)
            getattr(f, name)(x, mean, var, None, None, True)
            changes.append((mean._version > 0, var._version > 0))
        assert changes[0] == changes[1]


def test_evaluation_then_training_then_backward(device: str) -> None:
    """The gradient is of the statistics that were used, which training has moved on meanwhile."""
    module = onepass.nn.BatchNorm1d(6).to(device).eval()
    x = random((8, 6), torch.float32, device).requires_grad_()
    y = module(x)
    module.train()(x.detach() * 5)
    grad, = torch.autograd.grad(y.sum(), x)
    if device == "cpu":
        torch.testing.assert_close(grad, torch.full_like(x, (1 + module.eps)**-0.5))


def test_statistics_that_need_a_gradient_are_an_error(device: str, way: Way) -> None:
    x = random((4, 6), torch.float32, device)
    mean, var = torch.zeros(6, device=device, requires_grad=True), torch.ones(6, device=device)
    with way(), pytest.raises(RuntimeError, match="running_mean"):
        F.batch_norm(x, mean, var, training=True)


# ---- Fusions ------------------------------------------------------------------------------------

FUSED: Dict[str, Tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "layer_norm": (lambda x, w, b, a: F.layer_norm(x, (6,), w, b, activation=a),
                   lambda x, w, b: T.layer_norm(x, (6,), w, b)),
    "rms_norm": (lambda x, w, b, a: F.rms_norm(x, (6,), w, 1e-5, activation=a) + b,
                 lambda x, w, b: rms_norm_of_torch(x, (6,), w, 1e-5)),
    "group_norm": (lambda x, w, b, a: F.group_norm(x, 2, w, b, activation=a),
                   lambda x, w, b: T.group_norm(x, 2, w, b)),
    "batch_norm": (lambda x, w, b, a: F.batch_norm(x, None, None, w, b, True, activation=a),
                   lambda x, w, b: T.batch_norm(x, None, None, w, b, True)),
    "batch_norm of evaluation": (
        lambda x, w, b, a: F.batch_norm(x, *torch.ones(2, 6).to(x), w, b, activation=a),
        lambda x, w, b: T.batch_norm(x, *torch.ones(2, 6).to(x), w, b)),
}


@each_type
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", FUSED)
def test_activations(dtype: torch.dtype, activation: str, name: str, device: str, way: Way) -> None:
    ours, theirs = FUSED[name]

    def exact(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = ACTIVATIONS[activation](theirs(x, w, b))
        return y + b if name == "rms_norm" else y

    x = random((7, 6), dtype, device)
    check(lambda x, w, b: ours(x, w, b, activation), exact, x, random((6,), dtype, device),
          random((6,), dtype, device), way=way)


@each_type
@each_layout
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_residuals(dtype: torch.dtype, layout: Layout, activation: Optional[str], device: str,
                   way: Way) -> None:
    x, residual = layout(random((3, 6, 4, 5), dtype, device)), random((3, 6, 4, 5), dtype, device)
    weight, bias = random((4, 5), dtype, device), random((4, 5), dtype, device)
    activate = ACTIVATIONS.get(activation, lambda x: x)

    def both(results: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.stack(results)

    check(lambda x, r, w, b: both(F.add_layer_norm(x, r, (4, 5), w, b, 1e-3, activation)),
          lambda x, r, w, b: both((activate(T.layer_norm(x + r, (4, 5), w, b, 1e-3)), x + r)),
          x, residual, weight, bias, way=way)
    check(lambda x, r, w: both(F.add_rms_norm(x, r, (4, 5), w, 1e-3, activation)),
          lambda x, r, w: both((activate(rms_norm_of_torch(x + r, (4, 5), w, 1e-3)), x + r)),
          x, residual, weight, way=way)


def test_residuals_that_are_not_covered(device: str, way: Way) -> None:
    """A residual that is spread over the input, or of another type: then it is the composition."""
    x, residual = random((3, 4, 8), torch.float32, device), random((8,), torch.float32, device)
    with way():
        for given in (residual, random((3, 4, 8), torch.float64, device).requires_grad_()):
            y, total = F.add_layer_norm(x, given, (8,))
            torch.testing.assert_close(total, x + given)
            torch.testing.assert_close(y, T.layer_norm(x + given, (8,)))
    with way(), pytest.raises(RuntimeError, match="residual"):
        F.add_rms_norm(x, torch.ones(7, device=device), (8,))


def test_unknown_activations() -> None:
    x = torch.ones(2, 6)
    calls = [lambda: F.layer_norm(x, (6,), activation="tanh"),
             lambda: F.rms_norm(x, (6,), activation="tanh"), lambda: F.group_norm(x, 2, activation="tanh"),
             lambda: onepass.nn.LayerNorm(6, activation="tanh"),
             lambda: F.batch_norm(x, None, None, training=True, activation="tanh"),
             lambda: F.add_layer_norm(x, x, (6,), activation="tanh")]
    for call in calls:
        with pytest.raises(ValueError, match="activation.*tanh"):
            call()


# ---- What the library does not cover ------------------------------------------------------------


def test_everything_works_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU that has no kernels for it: all is composed of PyTorch's operators."""
    monkeypatch.setattr(_native, "norm", lambda *_: None)
    monkeypatch.setattr(_native, "layer_norm", lambda *_: None)
    for name, (ours, theirs) in PAIRS.items():
        for grad in (False, True):
            x = torch.randn(4, 3, 8, requires_grad=grad)
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5,
                                       msg=lambda m, n=name: f"{n}: {m}")
    x, weight = torch.randn(7, 6), torch.randn(6)
    for ours, theirs in (pair for name, pair in FUSED.items() if name != "rms_norm"):
        torch.testing.assert_close(ours(x, weight, weight, "silu"), T.silu(theirs(x, weight, weight)))
    y, total = F.add_rms_norm(x, x, (6,), weight, 1e-5, "relu")
    torch.testing.assert_close(y, rms_norm_of_torch(x + x, (6,), weight, 1e-5).relu())
    torch.testing.assert_close(total, x + x)
    torch.testing.assert_close(F.frobenius_norm(x), x / x.norm())
    torch.testing.assert_close(F.l2_norm(x, 0, 0.5), x / (x.norm(dim=0, keepdim=True) + 0.5))
    by_dim = F.rms_norm(x, (7,), torch.ones(7), 1e-5, dim=0)
    torch.testing.assert_close(by_dim, x * torch.rsqrt(x.square().mean(0, keepdim=True) + 1e-5))
    mean, var = torch.zeros(6), torch.ones(6)
    F.batch_norm(x, mean, var, training=True, activation="relu")
    torch.testing.assert_close(mean, 0.1 * x.mean(0))


def test_rms_norm_over_axes_that_are_not_there() -> None:
    x = torch.ones(2, 3, 4)
    for shape, dim in (((3,), 3), ((3,), -4), ((4, 2), -1), ((2,), 1), ((), 1)):
        with pytest.raises((IndexError, RuntimeError), match="dim"):
            F.rms_norm(x, shape, dim=dim)


# ---- Larger tensors, which other kernels do ------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 64, 40, 40), (64, 100), (4, 6, 3000)], ids=str)
def test_larger(shape: Tuple[int, ...], device: str) -> None:
    x = random(shape, torch.float32, device)
    weight, bias = (random(shape[1:2], torch.float32, device) for _ in range(2))
    for ours, theirs in (
        (lambda x, w, b: F.group_norm(x, 2, w, b), lambda x, w, b: T.group_norm(x, 2, w, b)),
        (lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
         lambda x, w, b: T.batch_norm(x, None, None, w, b, True)),
    ):
        check(ours, theirs, x, weight, bias, way=torch.enable_grad)
    y = F.frobenius_norm(x)
    assert_near(y, x.double() / x.double().norm())
