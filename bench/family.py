"""The rest of the family on a GPU, through the Python package: the problems of examples/kernelbench,
RMSNorm over rows, and norms by channel with channels last. Each is one module of PyTorch and one of onepass
with the same weights."""

import importlib.util
import math
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import onepass
import torch
from torch import Tensor, nn

from contenders import copy_calls
from gpu_timing import REPLAY_BYTES, Line, Race, Recorder, brief
from onepass_torch import Call
from operands import TOLERANCE, difference

__all__ = ["PROBLEMS", "Problem", "measure"]

EXAMPLES = Path(__file__).parents[1] / "examples" / "kernelbench"
MOST_CALLS = 16


class Rivals(NamedTuple):
    """The same function twice, and what it is given."""
    theirs: Callable[..., Any]
    ours: Callable[..., Any]
    inputs: Callable[[], List[Tensor]]


class Problem(NamedTuple):
    name: str
    shape: str
    target: float  # of the copy's speed
    make: Callable[[], Rivals]
    dtype: str = "f32"
    direction: str = "fwd"
    reads: int = 1  # of the first input

    def label(self) -> str:
        return f"{self.name} {self.shape} {self.dtype} {self.direction}"


def example(name: str) -> Rivals:
    """A problem as examples/kernelbench has it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)
    with torch.device("cuda"):
        theirs, ours = (model(*task.get_init_inputs()).cuda() for model in (task.Model, task.ModelNew))
    ours.load_state_dict(theirs.state_dict())

    def inputs() -> List[Tensor]:
        with torch.device("cuda"):
            return task.get_inputs()
    return Rivals(theirs, ours, inputs)


def rms_rows(rows: int, columns: int, residual: bool = False) -> Rivals:
    weight = torch.randn(columns, device="cuda", dtype=torch.bfloat16)

    def inputs() -> List[Tensor]:
        return [torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
                for _ in range(2 if residual else 1)]

    def theirs(x: Tensor, *added: Tensor) -> Any:
        total = x + added[0] if added else x
        y = nn.functional.rms_norm(total, (columns,), weight, 1e-6)
        return (y, total) if added else y

    def ours(x: Tensor, *added: Tensor) -> Any:
        if added:
            return onepass.functional.add_rms_norm(x, added[0], (columns,), weight, 1e-6)
        return onepass.functional.rms_norm(x, (columns,), weight, 1e-6)
    return Rivals(theirs, ours, inputs)


def channels_last(norm: str) -> Rivals:
    theirs = (nn.GroupNorm(32, 256) if norm == "group_norm" else nn.BatchNorm2d(256))
    theirs = theirs.to("cuda", torch.bfloat16)
    nn.init.normal_(theirs.weight)
    ours = onepass.nn.GroupNorm(32, 256) if norm == "group_norm" else onepass.nn.BatchNorm2d(256)
    ours = ours.to("cuda", torch.bfloat16)
    ours.load_state_dict(theirs.state_dict())

    def inputs() -> List[Tensor]:
        x = torch.randn(32, 256, 64, 64, device="cuda", dtype=torch.bfloat16)
        return [x.to(memory_format=torch.channels_last)]
    return Rivals(theirs, ours, inputs)


PROBLEMS: Tuple[Problem, ...] = (
    Problem("batch_norm2d", "64x64x512x512", 0.90, partial(example, "batch_norm2d"), reads=2),
    Problem("instance_norm2d", "112x64x512x512", 0.85, partial(example, "instance_norm2d")),
    Problem("group_norm", "112x64x512x512 8 groups", 0.80, partial(example, "group_norm")),
    Problem("rms_norm", "112x64x512x512 over 1", 0.92, partial(example, "rms_norm")),
    Problem("frobenius_norm", "112x64x512x512", 0.93, partial(example, "frobenius_norm"), reads=2),
    Problem("l2_norm", "32768x65535", 0.93, partial(example, "l2_norm")),
    Problem("max_pool1d", "64x192x65536 k8 s1 p4 d3", 0.90, partial(example, "max_pool1d")),
    Problem("max_pool2d", "32x64x512x512 k4 s1 p1", 0.88, partial(example, "max_pool2d")),
    Problem("max_pool3d", "16x32x128x128x128 k3 s2 p1 d3", 0.80, partial(example, "max_pool3d")),
    Problem("avg_pool2d", "16x64x2048x2048 k11", 0.95, partial(example, "avg_pool2d")),
    Problem("avg_pool3d", "16x32x128x128x256 k3 s2 p1", 0.85, partial(example, "avg_pool3d")),
    *(Problem("rms_norm", f"{rows}x{columns}", target, partial(rms_rows, rows, columns), "bf16", direction)
      for rows, columns in ((16384, 4096), (8192, 8192))
      for direction, target in (("fwd", 0.88), ("bwd", 0.60))),
    *(Problem("add_rms_norm", f"{rows}x{columns}", 0.88, partial(rms_rows, rows, columns, True), "bf16")
      for rows, columns in ((16384, 4096), (8192, 8192))),
    Problem("group_norm", "32x256x64x64 channels last", 0.75, partial(channels_last, "group_norm"), "bf16"),
    Problem("batch_norm2d", "32x256x64x64 channels last", 0.75, partial(channels_last, "batch_norm2d"),
            "bf16"),
)


def tensors_of(result: Any) -> Sequence[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def call_of(function: Callable[..., Any], problem: Problem, inputs: List[Tensor],
            dy: Optional[Tensor]) -> Call:
    if problem.direction == "fwd":
        def forward() -> Any:
            with torch.no_grad():
                return function(*inputs)
        return forward
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    y = function(*leaves)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def byte_count(problem: Problem, inputs: Sequence[Tensor], results: Sequence[Tensor],
               dy: Optional[Tensor]) -> int:
    sizes = [tensor.numel() * tensor.element_size() for tensor in (*inputs, *results)]
    extra = (problem.reads - 1) * inputs[0].numel() * inputs[0].element_size()
    return sum(sizes) + extra + (0 if dy is None else dy.numel() * dy.element_size())


def measure(problem: Problem, peers: Sequence[str], run: Callable[[Race], Line]) -> Line:
    """A line of the report; ValueError if onepass is wrong."""
    rivals = problem.make()
    inputs = rivals.inputs()
    with torch.no_grad():
        expected, results = tensors_of(rivals.theirs(*inputs)), tensors_of(rivals.ours(*inputs))
    error = max(difference(a, b) for a, b in zip(results, expected))
    if not error <= TOLERANCE[problem.dtype]:
        raise ValueError(f"differs from PyTorch by {error:.2g} of the largest value")
    dy = torch.randn_like(results[0]) if problem.direction == "bwd" else None
    moved = byte_count(problem, inputs, results, dy)
    count = min(MOST_CALLS, math.ceil(REPLAY_BYTES / moved))
    del expected, results
    sets = [inputs] + [rivals.inputs() for _ in range(count - 1)]
    makers: Dict[str, Callable[[], List[Call]]] = {
        "onepass": lambda: [call_of(rivals.ours, problem, one, dy) for one in sets],
        "copy": lambda: copy_calls(moved, count),
        "eager": lambda: [call_of(rivals.theirs, problem, one, dy) for one in sets],
        "compile": lambda: [call_of(torch.compile(rivals.theirs, dynamic=False), problem, one, dy)
                            for one in sets]}
    recorder = Recorder()
    race = Race({}, {}, {})
    for name, make in makers.items():
        if name not in ("onepass", "copy", *peers):
            continue
        try:
            calls = make()
            race.recordings[name] = recorder.record(calls)
            race.calls[name] = calls
        except Exception as failure:  # a competitor may fail in any way, and is then left out
            if name in ("onepass", "copy"):
                raise
            race.notes[name] = brief(failure)
    line = {"set": "family", "op": problem.name, "label": problem.shape, "dtype": problem.dtype,
            "dir": problem.direction, "bytes": moved, "calls": count, "target": problem.target,
            "max_difference": error, "kernel": "", **run(race)}
    return line
