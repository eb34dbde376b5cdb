#!/usr/bin/env python3
"""onepass against PyTorch's CPU operators: one process, the same threads, the same data.

Each case is first compared with PyTorch in float64, element by element, then timed: repetitions of
onepass, PyTorch and a copy of the same bytes take turns, and the medians are shown. A repetition
lasts at least 2 ms, so small cases are called many times in it, from Python on both sides.

PyTorch allocates its outputs in every call. So that this compares operators and not the system's
memory, the C library is told to keep freed memory (`--outputs reused`, the default); with
`--outputs fresh` it is not, and onepass gets newly allocated outputs, too.

    bench/compare_cpu.py --threads 1
    bench/compare_cpu.py --op l1_norm --dtype f32 --json results.jsonl
    bench/compare_cpu.py --sweep
"""

import argparse
import ctypes
import json
import math
import os
import statistics
import sys
import time
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

# PyTorch and onepass may bring a thread library each. Idle threads of one must not spin while the
# other is timed; read when the libraries are loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"compare_cpu: PyTorch cannot be imported ({error}): nothing to compare with")
    sys.exit(0)

OPS = ("l1_norm", "layer_norm", "avg_pool1d")
DIRECTIONS = ("fwd", "bwd")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"f32": 5e-4, "bf16": 8e-3}  # of the largest value, or of 1 if that is larger
EPS = 1e-5
LEAST_SECONDS = 2e-3  # of one repetition
ROLES = ("x", "weight", "bias", "y", "mean", "rstd", "dy", "dx", "dweight", "dbias")
OUTPUTS = {"fwd": ("y", "mean", "rstd"), "bwd": ("dx", "dweight", "dbias")}

Tensors = Dict[str, torch.Tensor]
Call = Callable[[], Any]


class Case(NamedTuple):
    op: str
    shape: Tuple[int, ...]
    axis: int = -1  # l1_norm: the axis; layer_norm: the first normalized one
    kernel: int = 8
    stride: int = 1
    padding: int = 4

    def label(self) -> str:
        text = "x".join(map(str, self.shape))
        if self.op == "avg_pool1d":
            return f"{text} k{self.kernel} s{self.stride} p{self.padding}"
        return text if self.axis == -1 else f"{text} axis {self.axis}"


STANDARD = (
    Case("l1_norm", (1024, 65535)),
    Case("layer_norm", (65536, 1024)),
    Case("layer_norm", (16, 64, 256, 256), axis=-3),
    Case("avg_pool1d", (8, 128, 65536)),
)


def sweep_cases() -> Iterator[Case]:
    """From one row to 100 000 and from one column to a million, odd ones among them."""
    matrices = ((1, 1), (1, 1000), (1, 100003), (1, 1000000), (2, 300007), (3, 65537), (17, 17),
                (64, 1), (64, 4095), (64, 4096), (300, 769), (1000, 33), (4096, 256), (10000, 100),
                (100000, 1), (100000, 10), (100000, 129))
    for shape in matrices:
        yield Case("l1_norm", shape)
        yield Case("layer_norm", shape)
    yield Case("l1_norm", (8, 512, 300), axis=1)
    yield Case("l1_norm", (2000, 700), axis=0)
    yield Case("layer_norm", (4, 64, 56, 56), axis=-3)
    windows = (((1, 1, 100), 3, 1, 1), ((1, 1, 1000000), 8, 1, 4), ((4, 64, 1000), 2, 2, 0),
               ((4, 64, 1000), 3, 1, 1), ((4, 64, 1000), 3, 2, 1), ((2, 32, 10007), 5, 1, 2),
               ((2, 32, 10007), 7, 3, 3), ((2, 32, 10007), 16, 16, 0),
               ((2, 32, 10007), 100, 1, 50), ((2, 32, 10007), 1000, 250, 0),
               ((1000, 16, 32), 8, 1, 4), ((8, 16, 65536), 8, 4, 2))
    for line, kernel, stride, padding in windows:
        yield Case("avg_pool1d", line, kernel=kernel, stride=stride, padding=padding)


# ---- The C interface -----------------------------------------------------------------------------


class Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class Dtype(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device", Device), ("ndim", c_int32), ("dtype", Dtype),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class CTensors(ctypes.Structure):
    _fields_ = [(role, POINTER(Tensor)) for role in ROLES]


class Buffers(ctypes.Structure):
    _fields_ = [(role, c_void_p) for role in ROLES]


class Norm(ctypes.Structure):
    _fields_ = [("op", c_int32), ("direction", c_int32), ("axis", c_int32), ("reduction", c_int32),
                ("eps", c_double)]


class Pool(ctypes.Structure):
    _fields_ = [("op", c_int32), ("direction", c_int32), ("spatial", c_int32),
                ("kernel", c_int64 * 3), ("stride", c_int64 * 3), ("padding", c_int64 * 3),
                ("ceil_mode", c_int32), ("count_include_pad", c_int32)]


class Options(ctypes.Structure):
    _fields_ = [("threads", c_int32), ("vector_level", c_int32), ("reference", c_int32)]


class PlanInfo(ctypes.Structure):
    _fields_ = [("op", c_char_p), ("kernel", c_char_p), ("vector", c_char_p), ("threads", c_int32),
                ("bytes", c_int64), ("workspace", c_size_t)]


def load_library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        sys.exit(f"compare_cpu: {error}; build the library with make, or give --library")
    library.onepass_last_message.restype = c_char_p
    library.onepass_run.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]
    library.onepass_plan_describe.argtypes = [c_void_p, c_void_p]
    library.onepass_plan_destroy.argtypes = [c_void_p]
    return library


def c_tensor(tensor: torch.Tensor) -> Tensor:
    code, bits = {torch.float32: (2, 32), torch.bfloat16: (4, 16)}[tensor.dtype]
    shape = (c_int64 * tensor.dim())(*tensor.shape)
    return Tensor(None, Device(1, 0), tensor.dim(), Dtype(code, bits, 1), shape, None, 0)


class Plan:
    """One operator on tensors like the given ones, and its workspace."""

    def __init__(self, library: ctypes.CDLL, case: Case, direction: str, tensors: Tensors,
                 threads: int) -> None:
        self.library, self.handle, self.info = library, c_void_p(), PlanInfo()
        back = DIRECTIONS.index(direction)
        c_tensors = {role: c_tensor(tensor) for role, tensor in tensors.items()}
        given = CTensors(**{role: ctypes.pointer(tensor) for role, tensor in c_tensors.items()})
        options = Options(threads, 0, 0)
        if case.op == "avg_pool1d":
            description: Any = Pool(0, back, 1, (case.kernel, 1, 1), (case.stride, 1, 1),
                                    (case.padding, 0, 0), 0, 1)
            make = library.onepass_plan_pool
        else:
            eps = EPS if case.op == "layer_norm" else 0.0
            description = Norm(OPS.index(case.op), back, case.axis, 0, eps)
            make = library.onepass_plan_norm
        self.check(make(byref(self.handle), byref(description), byref(given), byref(options)))
        self.check(library.onepass_plan_describe(self.handle, byref(self.info)))
        self.memory = torch.empty(self.info.workspace + 64, dtype=torch.uint8)
        self.workspace = (self.memory.data_ptr() + 63) // 64 * 64

    def check(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(self.library.onepass_last_message().decode())

    def call(self, tensors: Tensors, fresh: Sequence[str] = ()) -> Call:
        """A call that runs on these tensors, the `fresh` ones allocated anew each time."""
        buffers = Buffers(**{role: tensor.data_ptr() for role, tensor in tensors.items()})
        size, nothing = self.info.workspace, c_void_p()
        run, handle, workspace = self.library.onepass_run, self.handle, c_void_p(self.workspace)

        def run_once() -> None:
            kept = [torch.empty_like(tensors[role]) for role in fresh]
            for role, tensor in zip(fresh, kept):
                setattr(buffers, role, tensor.data_ptr())
            if run(handle, byref(buffers), workspace, size, nothing) != 0:
                raise RuntimeError(self.library.onepass_last_message().decode())

        return run_once

    def destroy(self) -> None:
        self.library.onepass_plan_destroy(self.handle)


# ---- One case ------------------------------------------------------------------------------------


def torch_forward(case: Case, t: Tensors) -> torch.Tensor:
    if case.op == "l1_norm":
        return t["x"] / t["x"].abs().mean(dim=case.axis, keepdim=True)
    if case.op == "layer_norm":
        return F.layer_norm(t["x"], t["x"].shape[case.axis:], t["weight"], t["bias"], EPS)
    return F.avg_pool1d(t["x"], case.kernel, case.stride, case.padding)


def random_inputs(case: Case, dtype: torch.dtype) -> Tensors:
    x = torch.randn(case.shape)
    x += 0.1 * x.sign()  # near 0 the gradient of l1_norm is a difference of huge numbers
    tensors = {"x": x.to(dtype)}
    if case.op == "layer_norm":
        normalized = case.shape[case.axis:]
        tensors["weight"] = torch.randn(normalized, dtype=dtype)
        tensors["bias"] = torch.randn(normalized, dtype=dtype)
    return tensors


def forward_tensors(case: Case, inputs: Tensors) -> Tensors:
    x = inputs["x"]
    if case.op == "layer_norm":
        kept = case.shape[:case.axis] or (1,)
        saved = {role: torch.empty(kept, dtype=torch.float32) for role in ("mean", "rstd")}
        return {**inputs, "y": torch.empty_like(x), **saved}
    if case.op == "l1_norm":
        return {**inputs, "y": torch.empty_like(x)}
    pooled = (case.shape[-1] + 2 * case.padding - case.kernel) // case.stride + 1
    return {**inputs, "y": torch.empty(case.shape[:-1] + (pooled,), dtype=x.dtype)}


def backward_tensors(case: Case, forward: Tensors) -> Tensors:
    tensors = {"dy": torch.randn(forward["y"].shape, dtype=forward["y"].dtype),
               "dx": torch.empty_like(forward["x"])}
    if case.op != "avg_pool1d":
        tensors["x"] = forward["x"]
    if case.op == "layer_norm":
        tensors.update({role: forward[role] for role in ("weight", "mean", "rstd")})
        tensors.update({"dweight": torch.empty_like(forward["weight"]),
                        "dbias": torch.empty_like(forward["bias"])})
    return tensors


def torch_backward(case: Case, inputs: Tensors, dy: torch.Tensor) -> Call:
    """Gradients in the order of OUTPUTS. The graph is made once and kept."""
    leaves = {role: tensor.detach().requires_grad_() for role, tensor in inputs.items()}
    y = torch_forward(case, leaves)
    wanted = tuple(leaves.values())
    return lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True)


def exact(case: Case, inputs: Tensors, dy: Optional[torch.Tensor]) -> Sequence[torch.Tensor]:
    """What PyTorch gives in float64: y or, with dy, the gradients."""
    wide = {role: tensor.double() for role, tensor in inputs.items()}
    if dy is None:
        return [torch_forward(case, wide)]
    return torch_backward(case, wide, dy.double())()


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest value, or over 1 if that is smaller."""
    worst, largest = 0.0, 1.0
    for a, b in zip(actual.flatten().split(1 << 22), expected.flatten().split(1 << 22)):
        wide = b.double()
        worst = max(worst, (a.double() - wide).abs().max().item())
        largest = max(largest, wide.abs().max().item())
    return worst / largest if math.isfinite(worst) else math.inf


class Pair(NamedTuple):
    """The two sides on one set of data."""
    ours: Call
    theirs: Call


class Trial:
    """A case in one direction and type: two sets of random data, so that no run finds its inputs
    where the last one left them."""

    def __init__(self, library: ctypes.CDLL, case: Case, direction: str, dtype: str,
                 options: argparse.Namespace) -> None:
        self.plans: List[Plan] = []
        self.pairs: List[Pair] = []
        self.difference, self.bytes, self.kernel = 0.0, 0, ""
        for _ in range(2):
            inputs = random_inputs(case, DTYPES[dtype])
            tensors = forward_tensors(case, inputs)
            theirs: Call = lambda inputs=inputs: torch_forward(case, inputs)  # type: ignore[misc]
            if direction == "bwd":
                forward = self.plan(library, case, "fwd", tensors, options.threads)
                forward.call(tensors)()
                tensors = backward_tensors(case, tensors)
                theirs = torch_backward(case, inputs, tensors["dy"])
            plan = self.plan(library, case, direction, tensors, options.threads)
            self.bytes, self.kernel = plan.info.bytes, plan.info.kernel.decode()
            outputs = [role for role in OUTPUTS[direction] if role in tensors]
            plan.call(tensors)()
            if not self.pairs:
                self.compare([tensors[role] for role in outputs],
                             exact(case, inputs, tensors.get("dy")))
            fresh = outputs if options.outputs == "fresh" else ()
            self.pairs.append(Pair(plan.call(tensors, fresh), theirs))

    def plan(self, *arguments: Any) -> Plan:
        self.plans.append(Plan(*arguments))
        return self.plans[-1]

    def compare(self, ours: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
        for a, b in zip(ours, expected):  # PyTorch's forward keeps mean and rstd to itself
            self.difference = max(self.difference, difference(a, b))

    def destroy(self) -> None:
        for plan in self.plans:
            plan.destroy()


def seconds_of(call: Call, calls: int) -> float:
    time.sleep(0.003)  # the other side's threads go to sleep
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def calls_for(call: Call) -> int:
    call()
    return max(1, math.ceil(LEAST_SECONDS / max(seconds_of(call, 1), 1e-7)))


def copies_of(byte_count: int) -> List[Call]:
    """Two ways to move as many bytes; the faster one counts."""
    half = max(1, byte_count // 2)
    source, target = torch.ones(half, dtype=torch.uint8), torch.zeros(half, dtype=torch.uint8)
    return [lambda: target.copy_(source),
            lambda: ctypes.memmove(target.data_ptr(), source.data_ptr(), half)]


def measure(trial: Trial, repetitions: int) -> Tuple[float, float, float]:
    """Median seconds of onepass, PyTorch and the copy."""
    copies = copies_of(trial.bytes)
    first = trial.pairs[0]
    counts = [calls_for(call) for call in (first.ours, first.theirs, *copies)]
    times: List[List[float]] = [[] for _ in counts]
    for i in range(repetitions):
        pair = trial.pairs[i % len(trial.pairs)]
        for k, call in enumerate((pair.ours, pair.theirs, *copies)):
            times[k].append(seconds_of(call, counts[k]))
    ours, theirs, *copying = map(statistics.median, times)
    return ours, theirs, min(copying)


# ---- The program ---------------------------------------------------------------------------------

HEADER = (f"{'op':<11}{'dir':<5}{'dtype':<7}{'shape':<26}{'onepass ms':>11}{'torch ms':>11}"
          f"{'speedup':>9}{'of copy':>9}")


def format_line(line: Dict[str, Any]) -> str:
    return (f"{line['op']:<11}{line['dir']:<5}{line['dtype']:<7}{line['shape']:<26}"
            f"{line['onepass_ms']:>11.4g}{line['torch_ms']:>11.4g}{line['speedup']:>9.2f}"
            f"{line['of_copy']:>9.2f}")


def compare(library: ctypes.CDLL, case: Case, direction: str, dtype: str,
            options: argparse.Namespace) -> Dict[str, Any]:
    trial = Trial(library, case, direction, dtype, options)
    if trial.difference > TOLERANCE[dtype]:
        sys.exit(f"compare_cpu: {case.op} {direction} {dtype} {case.label()}: differs from float64 "
                 f"by {trial.difference:.2g} of the largest value, expected at most "
                 f"{TOLERANCE[dtype]:g}")
    ours, theirs, copy = measure(trial, options.reps)
    trial.destroy()
    return {"op": case.op, "dir": direction, "dtype": dtype, "shape": case.label(),
            "threads": options.threads, "onepass_ms": ours * 1e3, "torch_ms": theirs * 1e3,
            "copy_ms": copy * 1e3, "speedup": theirs / ours, "of_copy": copy / ours,
            "max_difference": trial.difference, "kernel": trial.kernel, "bytes": trial.bytes,
            "outputs": options.outputs, "torch": torch.__version__}


def keep_freed_memory() -> None:
    """Ask glibc not to give freed memory back to the system; elsewhere there is nothing to ask."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX
    mallopt(trim_threshold, -1)
    mallopt(mmap_max, 0)


def parse_options() -> argparse.Namespace:
    root = Path(__file__).resolve().parent.parent
    library = os.environ.get("ONEPASS_LIBRARY", root / "build" / "release" / "libonepass.so")
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(),
                        help="for both sides; default: PyTorch's own number, %(default)s")
    parser.add_argument("--scale", type=float, default=1.0,
                        help="fraction of the first size of each shape, for small machines")
    parser.add_argument("--op", choices=OPS, help="only this operator")
    parser.add_argument("--dtype", choices=sorted(DTYPES), help="only this type")
    parser.add_argument("--dir", choices=DIRECTIONS, help="only this direction")
    parser.add_argument("--reps", type=int, default=15, help="repetitions; default %(default)s")
    parser.add_argument("--outputs", choices=("reused", "fresh"), default="reused",
                        help="whether allocating outputs is timed; see the top of this file")
    parser.add_argument("--sweep", action="store_true",
                        help="many smaller and odd shapes; shows the ten worst")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write an object a line")
    parser.add_argument("--library", type=Path, default=Path(library),
                        help="default: ONEPASS_LIBRARY, or build/release/libonepass.so")
    options = parser.parse_args()
    if options.threads < 1 or options.reps < 1 or not 0 < options.scale <= 1:
        parser.error("--threads and --reps are at least 1, --scale is above 0 and at most 1")
    return options


def selected(options: argparse.Namespace) -> Iterator[Tuple[Case, str, str]]:
    for case in sweep_cases() if options.sweep else STANDARD:
        if options.op not in (None, case.op):
            continue
        first = max(1, round(case.shape[0] * options.scale))
        scaled = case._replace(shape=(first,) + case.shape[1:])
        for dtype in [options.dtype] if options.dtype else ["f32"] if options.sweep else DTYPES:
            for direction in [options.dir] if options.dir else DIRECTIONS:
                yield scaled, direction, dtype


def print_worst(lines: List[Dict[str, Any]]) -> None:
    slower = sum(line["speedup"] < 1 for line in lines)
    print(f"{len(lines)} measured, {slower} slower than PyTorch; the ten worst:")
    print(HEADER)
    for line in sorted(lines, key=lambda line: line["speedup"])[:10]:
        print(format_line(line))


def main() -> None:
    options = parse_options()
    library = load_library(options.library)
    if options.outputs == "reused":
        keep_freed_memory()
    torch.set_num_threads(options.threads)
    torch.manual_seed(int(time.time()))
    print(f"PyTorch {torch.__version__}, {options.threads} threads, outputs {options.outputs}")
    if not options.sweep:
        print(HEADER, flush=True)
    lines: List[Dict[str, Any]] = []
    for case, direction, dtype in selected(options):
        lines.append(compare(library, case, direction, dtype, options))
        if not options.sweep:
            print(format_line(lines[-1]), flush=True)
    if options.sweep:
        print_worst(lines)
    if options.json:
        options.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
