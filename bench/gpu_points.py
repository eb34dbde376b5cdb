"""One point of the comparison on a GPU: its operands, the check of onepass's results, the times."""

import ctypes
import math
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Type

import torch
import torch._dynamo

from cases import Case, Point
from contenders import (
    Compiler,
    Operands,
    calls_of,
    copy_calls,
    eager_calls,
    liger_function,
    package_function,
)
from gpu_timing import (
    REPLAY_BYTES,
    L2Cache,
    Line,
    Race,
    Recorder,
    brief,
    give_back_memory,
)
from onepass_torch import Call, OnepassError, Plan, load_library
from operands import (
    DTYPES,
    OUTPUTS,
    TOLERANCE,
    backward_tensors,
    forward_tensors,
    partial_difference,
    random_inputs,
)

if TYPE_CHECKING:
    from family import Problem

__all__ = ["Bench"]

MOST_CALLS = 32  # of a recording, if they move less than REPLAY_BYTES
REPETITIONS = {"fixed": (11, 41), "random": (5, 15), "family": (7, 21)}


class Trial:
    """A point's operands, a set for each call of a recording, and onepass's plan for them."""

    def __init__(self, library: ctypes.CDLL, point: Point) -> None:
        self.point, self.library = point, library
        self.plans: List[Plan] = []
        first = self.new_operands()
        self.plan = self.new_plan(point.direction, first)
        count = math.ceil(REPLAY_BYTES / max(1, self.plan.info.bytes))
        self.operands = [first]
        self.operands += [self.new_operands() for _ in range(min(count, MOST_CALLS) - 1)]
        self.calls = [self.plan.call(one.tensors) for one in self.operands]

    def new_plan(self, direction: str, operands: Operands) -> Plan:
        plan = Plan(self.library, self.point.case, direction, operands.tensors)
        self.plans.append(plan)
        return plan

    def new_operands(self) -> Operands:
        case = self.point.case
        inputs = random_inputs(case, DTYPES[self.point.dtype], "cuda")
        forward = Operands(inputs, forward_tensors(case, inputs))
        if self.point.direction == "fwd":
            return forward
        if case.op == "layer_norm":  # the backward pass takes mean and rstd from it
            if not self.plans:
                self.new_plan("fwd", forward)
            self.plans[0].call(forward.tensors)()
        return Operands(inputs, backward_tensors(case, forward.tensors))

    def check(self, call: Call, operands: Operands) -> float:
        """How far onepass is from float64 after the call. Outputs hold NaN before it."""
        for role in OUTPUTS[self.point.direction]:
            if role in operands.tensors:
                operands.tensors[role].fill_(math.nan)
        call()
        error = partial_difference(self.point.case, operands.inputs, operands.tensors)
        if not error <= TOLERANCE[self.point.dtype]:
            raise ValueError(f"differs from float64 by {error:.2g} of the largest value, expected "
                             f"at most {TOLERANCE[self.point.dtype]:g}")
        return error

    def destroy(self) -> None:
        torch.cuda.synchronize()
        for plan in self.plans:
            plan.destroy()


class Bench:
    """The library, its competitors and the GPU, for as many points as wanted; OSError where library
    or GPU is missing. As a context it makes a stream of its own the current one, since the default
    one cannot be captured."""

    def __init__(self, library: Path, peers: Sequence[str], seed: int) -> None:
        if not torch.cuda.is_available():
            raise OSError("PyTorch finds no CUDA device")
        self.library, self.peers = load_library(library), peers
        torch.manual_seed(seed)
        self.stream = torch.cuda.stream(torch.cuda.Stream())
        self.cache, self.compiler = L2Cache(), Compiler()
        self.liger = liger_function() if "liger" in peers else None

    def __enter__(self) -> "Bench":
        torch.cuda.synchronize()
        self.stream.__enter__()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.stream.__exit__(kind, error, trace)

    def machine(self) -> Dict[str, Any]:
        properties = torch.cuda.get_device_properties(0)
        return {"gpu": properties.name, "multiprocessors": properties.multi_processor_count,
                "memory": properties.total_memory,
                "l2": getattr(properties, "L2_cache_size", 0), "torch": torch.__version__,
                "cuda": torch.version.cuda, "liger": self.liger is not None,
                "onepass": self.library.onepass_version_string().decode()}

    def measure(self, point: Point, drawn: bool) -> Line:
        """Raises ValueError if onepass cannot do the point, or does it wrong."""
        trial: Optional[Trial] = None
        try:
            trial = Trial(self.library, point)
            return self.measure_trial(trial, drawn)
        except OnepassError as refusal:
            raise ValueError(str(refusal)) from refusal
        finally:
            if trial:
                trial.destroy()
            del trial
            give_back_memory()

    def measure_problem(self, problem: "Problem") -> Line:
        """The same for a problem of the family."""
        from family import measure  # needs the Python package besides

        try:
            return measure(problem, self.peers,
                           lambda race: race.run(self.cache, *REPETITIONS["family"]))
        finally:
            torch._dynamo.reset()
            give_back_memory()

    def measure_trial(self, trial: Trial, drawn: bool) -> Line:
        recorder = Recorder()
        race = Race({"onepass": trial.calls,
                     "copy": copy_calls(trial.plan.info.bytes, len(trial.calls))}, {}, {})
        error = trial.check(trial.calls[0], trial.operands[0])
        for name, calls in race.calls.items():
            race.recordings[name] = recorder.record(calls)
        error = max(error, trial.check(race.recordings["onepass"].queue, trial.operands[-1]))
        for name, make in self.competitors(trial.point, drawn).items():
            try:
                calls = make(trial.operands)
                race.recordings[name] = recorder.record(calls)
                race.calls[name] = calls
            except Exception as failure:  # theirs may fail in any way, and is then left out
                race.notes[name] = brief(failure)
        return {"set": "random" if drawn else "fixed", **describe_trial(trial),
                "max_difference": error, "compile": "dynamic" if drawn else "static",
                **race.run(self.cache, *REPETITIONS["random" if drawn else "fixed"])}

    def competitors(self, point: Point,
                    drawn: bool) -> Dict[str, Callable[[Sequence[Operands]], List[Call]]]:
        """Liger compiles for every shape, so it is left out where shapes are drawn."""
        compiled = self.compiler.for_any_shape if drawn else self.compiler.for_this_shape
        every: Dict[str, Callable[[Sequence[Operands]], List[Call]]] = {
            "eager": lambda operands: eager_calls(point, operands),
            "compile": lambda operands: calls_of(compiled(point), point.direction, operands),
            "package": lambda operands: calls_of(package_function(point.case), point.direction, operands)}
        if self.liger and point.case.op == "layer_norm" and not drawn:
            liger = self.liger
            every["liger"] = lambda operands: calls_of(liger, point.direction, operands)
        return {name: make for name, make in every.items() if name in self.peers}


def describe_trial(trial: Trial) -> Line:
    point, info = trial.point, trial.plan.info
    return {**describe_case(point.case), "dtype": point.dtype, "dir": point.direction,
            "bytes": info.bytes, "kernel": info.kernel.decode(), "grid": info.grid,
            "block": info.block, "cluster": info.cluster, "shared": info.shared,
            "launches": info.launches, "workspace": info.workspace, "calls": len(trial.calls)}


def describe_case(case: Case) -> Dict[str, Any]:
    shape = {"op": case.op, "shape": list(case.shape), "label": case.label()}
    if case.op == "avg_pool1d":
        return {**shape, "kernel_size": case.kernel, "stride": case.stride,
                "padding": case.padding}
    return {**shape, "axis": case.axis}
