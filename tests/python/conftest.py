"""Where the package is tried, and what it is compared with.

A test that takes `device` runs on the CPU and, where PyTorch and onepass find one, on a GPU; where not,
test_cuda.py is skipped with the reason, for all of them. A test that takes `way` runs twice: as most calls
go, straight to the C library, and as torch.compile and export see it, through the operators that are
registered with PyTorch. No tensor is too small to be onepass's, but in test_small.py.
"""

import sys
from contextlib import nullcontext
from typing import Callable, ContextManager, Dict, Optional, Sequence, Tuple

import onepass
import pytest
import torch
from onepass import _native
from torch.overrides import TorchFunctionMode

SMALL_BY_DEFAULT = _native.set_small(-1, -1)  # elements on a CPU and on a GPU
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def why_no_cuda() -> Optional[str]:
    if not torch.cuda.is_available():
        return "PyTorch has no CUDA device"
    if not _native.covers_cuda(0):
        return "onepass has no CUDA device: a build for CPUs, or compute capability below 8.0"
    return None


@pytest.fixture(params=["cpu"] if why_no_cuda() else ["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def reset_compiler() -> None:
    """It takes some functions of different tests for one, and compiles each a few times only."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


class Watching(TorchFunctionMode):
    """Changes nothing, but has to see every operator."""

    def __torch_function__(self, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN204, ANN206
        return function(*args, **(kwargs or {}))


@pytest.fixture(params=["direct", "operator"])
def way(request: pytest.FixtureRequest) -> Callable[[], ContextManager[object]]:
    return nullcontext if request.param == "direct" else Watching


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def assert_near(actual: torch.Tensor, exact: torch.Tensor, terms: float = 1.0) -> None:
    """Within the rounding of the type, of each element, of the largest one, or of terms that large."""
    finite = exact[exact.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    tolerance = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.cpu().double(), exact.cpu().double(), rtol=tolerance,
                               atol=tolerance * max(terms, largest), equal_nan=True)


def l1_norm_of_torch(x: torch.Tensor, dim: int = 1, mode: str = "mean",
                     eps: float = 0.0) -> torch.Tensor:
    size = torch.abs(x)
    total = size.mean(dim, keepdim=True) if mode == "mean" else size.sum(dim, keepdim=True)
    return x / (total + eps)


def rms_norm_of_torch(x: torch.Tensor, shape: Sequence[int], weight: Optional[torch.Tensor] = None,
                      eps: Optional[float] = None) -> torch.Tensor:
    """torch.nn.functional.rms_norm, which 2.4 has first."""
    wide = x if x.dtype == torch.float64 else x.float()
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    y = wide * torch.rsqrt(wide.square().mean([-1 - i for i in range(len(shape))], keepdim=True) + eps)
    return (y if weight is None else y * weight).to(x.dtype)


ACTIVATIONS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}

# Each operator with a call that PyTorch can make as well: (ours, PyTorch's).
Pair = Tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]
LAYER_NORM: Pair = (
    lambda x: onepass.functional.layer_norm(x, x.shape[-1:]),
    lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
)
L1_NORM: Pair = (onepass.functional.l1_norm, l1_norm_of_torch)
AVG_POOL1D: Pair = (
    lambda x: onepass.functional.avg_pool1d(x, 4, 2, 1),
    lambda x: torch.nn.functional.avg_pool1d(x, 4, 2, 1),
)
GROUP_NORM: Pair = (
    lambda x: onepass.functional.group_norm(x, 1),
    lambda x: torch.nn.functional.group_norm(x, 1),
)
BATCH_NORM: Pair = (
    lambda x: onepass.functional.batch_norm(x, None, None, training=True),
    lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
)
PAIRS: Dict[str, Pair] = {
    "layer_norm": LAYER_NORM,
    "l1_norm": L1_NORM,
    "avg_pool1d": AVG_POOL1D,
    "group_norm": GROUP_NORM,
    "batch_norm": BATCH_NORM,
    "instance_norm": (onepass.functional.instance_norm, torch.nn.functional.instance_norm),
    "rms_norm": (
        lambda x: onepass.functional.rms_norm(x, x.shape[-1:]),
        lambda x: rms_norm_of_torch(x, x.shape[-1:]),
    ),
    "normalize": (onepass.functional.normalize, torch.nn.functional.normalize),
    "avg_pool2d": (
        lambda x: onepass.functional.avg_pool2d(x, (1, 2), (1, 2), (0, 1), False, False),
        lambda x: torch.nn.functional.avg_pool2d(x, (1, 2), (1, 2), (0, 1), False, False),
    ),
    "max_pool1d": (
        lambda x: onepass.functional.max_pool1d(x, 4, 2, 1),
        lambda x: torch.nn.functional.max_pool1d(x, 4, 2, 1),
    ),
    "adaptive_avg_pool2d": (
        lambda x: onepass.functional.adaptive_avg_pool2d(x, (2, None)),
        lambda x: torch.nn.functional.adaptive_avg_pool2d(x, (2, None)),
    ),
    "lp_pool1d": (
        lambda x: onepass.functional.lp_pool1d(x, 2, 3, 2),
        lambda x: torch.nn.functional.lp_pool1d(x, 2, 3, 2),
    ),
    "add_layer_norm": (
        lambda x: sum(onepass.functional.add_layer_norm(x, x * 0.5, x.shape[-1:], activation="gelu")),
        lambda x: torch.nn.functional.gelu(LAYER_NORM[1](x + x * 0.5)) + (x + x * 0.5),
    ),
}


@pytest.fixture(params=PAIRS.values(), ids=PAIRS)
def pair(request: pytest.FixtureRequest) -> Pair:
    """Any of the operators, for a tensor of three axes."""
    return request.param
