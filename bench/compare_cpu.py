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
from functools import partial
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

# PyTorch and onepass may bring a thread library each. Idle threads of one must not spin while the
# other is timed; read when the libraries are loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

try:
    import torch
except ImportError as error:
    print(f"compare_cpu: PyTorch cannot be imported ({error}): nothing to compare with")
    sys.exit(0)

from cases import DIRECTIONS, OPS, Case
from onepass_torch import Call, Plan, load_library
from operands import (
    DTYPES,
    OUTPUTS,
    TOLERANCE,
    backward_tensors,
    difference,
    exact,
    forward_tensors,
    gradients,
    random_inputs,
    torch_function,
)

LEAST_SECONDS = 2e-3  # of one repetition

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


# ---- One case ------------------------------------------------------------------------------------


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
        function = torch_function(case)
        for _ in range(2):
            inputs = random_inputs(case, DTYPES[dtype])
            tensors = forward_tensors(case, inputs)
            theirs: Call = partial(function, *inputs.values())
            if direction == "bwd":
                forward = self.plan(library, case, "fwd", tensors, options.threads)
                forward.call(tensors)()
                tensors = backward_tensors(case, tensors)
                theirs = gradients(function, inputs, tensors["dy"])
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


def load_library_or_exit(path: Path) -> ctypes.CDLL:
    try:
        return load_library(path)
    except OSError as error:
        sys.exit(f"compare_cpu: {error}; build the library with make, or give --library")


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
    library = load_library_or_exit(options.library)
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
