"""The reference's side of a judgement: its process, the inputs' memory, and the clock.

A bench is set up once for a reference and serves any number of candidates, one after the other.
"""

import os
import random
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .devices import Device, Elements, Peek
from .guard import show
from .memory import Spec, layout_of
from .nursery import Forked, give_up_nursery, nursery_pids
from .process import Failure, Limits, Worker
from .wire import Place

__all__ = ["Bench", "Case", "Options", "Timed"]

MOST_CALLS = 64
RAW = "raw"  # the layout in which a slot is a row of numbers, for the copy


class Options(NamedTuple):
    """What the command was asked for."""
    device: str = "auto"
    tolerance: float = 1e-4
    backward: bool = False
    no_torch_ops: bool = False
    non_finite: bool = False
    quick: bool = False
    compile: bool = True
    timeout: float = 600.0
    build_timeout: float = 300.0
    memory: int = 0  # bytes; 0 is chosen
    threads: int = 1
    seed: int = 0
    overrides: Dict[str, Any] = {}
    rounds: int = 0  # 0 is chosen
    build_cache: str = ""
    ncu: bool = False
    advise: bool = True  # what no verdict depends on
    calls: int = MOST_CALLS  # in a timed batch, at most


class Case(NamedTuple):
    """An input, by what it is made from."""
    kind: str
    seed: int
    batch: int = 0
    change: int = 0

    def label(self) -> str:
        return self.kind + (f", batch {self.batch}" if self.batch else "")


class Timed(NamedTuple):
    seconds: float
    places: List[Place]
    peek: Peek
    elements: Elements  # that were looked for
    disturbed: bool  # the judge had to open memory while the clock ran
    hint: Dict[str, Any]  # what the worker says of it


class Bench:
    """Raises Failure where the reference itself does not work."""

    def __init__(self, path: str, options: Options, device: Device) -> None:
        self.path, self.options, self.device = os.path.abspath(path), options, device
        self.workers: List[Worker] = []
        self.secret = random.Random(options.seed)
        self.slots = self.slot_bytes = 0
        limits = Limits(options.build_timeout, options.build_timeout, float("inf"), options.memory)
        self.notes: List[str] = []
        # Whether a GPU's memory can be shared with a process that is hidden or restrained is the driver's
        # business.
        for guarded in (True, False) if device.kind == "cuda" else (True,):
            self.guarded = guarded
            try:
                self.reference = self.start("reference", self.path, limits, 0)
                self.set_up()
                return
            except Failure as failure:
                self.close()
                if not guarded or device.kind != "cuda":
                    raise
                self.weaken(failure)
            except BaseException:
                self.close()
                raise

    def weaken(self, failure: Failure) -> None:
        self.guarded = False
        show()
        self.notes.append("weaker guards: sharing the GPU's memory failed with them "
                          f"({failure.reason[:120]})")

    def start(self, role: str, path: str, limits: Limits, arguments: int,
              environment: Optional[Dict[str, str]] = None) -> Worker:
        """A worker, ready and frozen."""
        def siblings() -> Set[int]:
            return {worker.pid for worker in self.workers}
        protected = [os.getpid(), *nursery_pids(), *siblings()]
        worker = Worker(role, {"path": path, "device": self.device.kind, "threads": self.options.threads,
                               "protected": protected, "arguments": arguments, "guarded": self.guarded},
                        limits, self.device.descriptors(), lambda: siblings() - {worker.pid},
                        {**(environment or {}), "OMP_NUM_THREADS": str(self.options.threads)})
        self.workers.append(worker)
        try:
            ready = worker.wait_until_ready()
            worker.guards = [str(each) for each in ready.get("guards", [])]
            worker.open_memory()
            worker.freeze()
            worker.ask({"do": "hello"})
        except BaseException as error:
            worker.close()
            self.workers.remove(worker)
            if not isinstance(error, Failure) or not isinstance(worker.process, Forked):
                raise
            give_up_nursery()
            return self.start(role, path, limits, arguments, environment)
        worker.shared_bytes = self.slots * self.slot_bytes
        return worker

    def start_candidate(self, path: str, limits: Limits, environment: Dict[str, str]) -> Worker:
        """Ready, and with the inputs' memory open, before anything of the candidate's runs."""
        worker = self.start("candidate", path, limits, self.inputs, environment)
        try:
            worker.ask(self.arena)
        except Failure as failure:
            self.stop(worker)
            if not self.guarded or self.device.kind != "cuda":
                raise
            self.weaken(failure)
            return self.start_candidate(path, limits, environment)
        return worker

    def stop(self, worker: Worker) -> List[str]:
        left = worker.left_behind()
        self.workers.remove(worker)
        return left

    def close(self) -> None:
        self.device.forget()
        for worker in self.workers:
            worker.close()
        self.workers.clear()

    # Setting up

    def set_up(self) -> None:
        worker, options = self.reference, self.options
        self.model_seed = self.secret.randrange(1 << 31)
        self.construction = os.path.join(worker.sandbox, "construction")
        about = worker.ask({"do": "describe", "seed": self.model_seed, "backward": options.backward,
                            "overrides": options.overrides, "construction": self.construction},
                           options.build_timeout)
        self.arguments: List[Dict[str, Any]] = about["arguments"]
        self.inputs = int(about["inputs"])  # the first so many arguments; gradients come after
        self.results = [Spec(tuple(s), tuple(t), d) for s, t, d in about["results"]]
        self.gradients = [Spec(tuple(s), tuple(t), d) for s, t, d in about["gradients"]]
        self.batches: List[int] = about["batches"]
        self.needed = float(about["needed"])
        if not about["varies"]:
            self.notes.append("get_inputs gives the same values whatever the seed; noise was added to them")
        specs = [Spec(tuple(a["shape"]), tuple(a["strides"]), a["dtype"])
                 for a in self.arguments if "shape" in a]
        self.input_bytes = sum(spec.bytes for spec in specs)
        self.output_bytes = sum(spec.bytes for spec in [*self.results, *self.gradients])
        self.parameter_bytes = int(about["parameter_bytes"])
        self.bytes = self.input_bytes + self.output_bytes + self.parameter_bytes
        offsets, self.slot_bytes = layout_of(specs, at_least=self.bytes // 2 + 8)
        remaining = iter(offsets)
        for argument in self.arguments:
            if "shape" in argument:
                argument["offset"] = next(remaining)
        per_call = self.slot_bytes + self.output_bytes
        self.slots = max(2, min(MOST_CALLS, self.device.room() // max(1, per_call)))
        self.arena = self.device.arena(self.slots * self.slot_bytes)
        worker.shared_bytes = self.slots * self.slot_bytes
        worker.ask(self.arena)
        self.lay_out(worker)
        worker.ask({"do": "contenders"})
        for place in self.run(worker, self.request("idle", [0])):
            self.device.read(worker, place)
        self.tidy()

    def lay_out(self, worker: Worker) -> None:
        """Tells a worker how inputs lie in the memory it shares."""
        worker.ask(self.layout(RAW, [{"shape": [self.bytes // 8], "strides": [1], "dtype": 0, "offset": 0}]))
        for batch in (0, *self.batches):
            arguments = [{**a, "shape": [batch, *a["shape"][1:]]} if batch and "shape" in a else a
                         for a in self.arguments]
            worker.ask(self.layout(str(batch), arguments))

    def layout(self, name: str, arguments: Sequence[Dict[str, Any]]) -> Dict[str, Any]:
        return {"do": "layout", "name": name, "slots": self.slots, "slot_bytes": self.slot_bytes,
                "arguments": arguments}

    def new_seed(self) -> int:
        return self.secret.randrange(1 << 31)

    def expected(self, batch: int) -> List[Spec]:
        """What a result must look like."""
        if not batch:
            return [*self.results, *self.gradients]
        return [Spec((batch, *spec.shape[1:]), spec.strides, spec.dtype) for spec in self.results]

    # Requests

    def fill(self, cases: Sequence[Case]) -> None:
        """Slot after slot, while no candidate runs."""
        self.reference.ask({"do": "fill", "layout": str(cases[0].batch), "batch": cases[0].batch, "fill": [
            {"slot": slot, "seed": case.seed, "kind": case.kind, "change": case.change}
            for slot, case in enumerate(cases)]})

    def release(self, worker: Worker, poison: bool) -> None:
        sizes = [spec.room for spec in [*self.results, *self.gradients]] * 2 if poison else []
        worker.ask({"do": "release", "poison": sizes})

    def trimmed(self, worker: Worker) -> Tuple[int, int]:
        """Bytes that a worker has when it has given back what it could, as seen from outside; and what its
        allocator says it holds, which is finer but an account of its own."""
        self.device.forget()
        reply = worker.ask({"do": "trim"})
        return self.device.used(worker), int(reply.get("held") or 0)

    def tidy(self) -> None:
        """On a GPU: gives back what the judge and the reference do not need, for there is only one memory."""
        if self.device.kind == "cuda":
            self.trimmed(self.reference)

    def request(self, model: str, slots: Sequence[int], layout: str = "0", **more: Any) -> Dict[str, Any]:
        backward = self.options.backward and layout != RAW and model != "idle"
        return {"do": "run", "model": model, "layout": layout, "slots": list(slots), "backward": backward,
                **more}

    def run(self, worker: Worker, request: Dict[str, Any], seconds: Optional[float] = None) -> List[Place]:
        """Calls that are not timed. The worker is frozen when its results are read."""
        worker.ask(request, seconds)
        return read_table(worker)

    def time(self, worker: Worker, request: Dict[str, Any], look: bool = True) -> Timed:
        """The clock is the judge's: from letting the worker go until it has answered and, on a GPU, until
        elements of two calls' results have been seen."""
        calls = len(request["slots"]) if look else 0
        watched = set(random.SystemRandom().sample(range(calls), min(calls, 2)))
        elements = self.device.choose_elements(self.expected(0))
        opened = self.device.opened
        worker.send(request)
        start = time.perf_counter()
        worker.thaw()
        try:
            hint = worker.wait(worker.limits.call)
            places = read_table(worker) if self.device.kind == "cuda" else []
            peek = self.device.peek(worker, sorted(watched), places, elements)
            seconds = time.perf_counter() - start
        finally:
            worker.freeze()
        disturbed = self.device.opened != opened
        return Timed(seconds, places or read_table(worker), peek, elements, disturbed, hint)


def read_table(worker: Worker) -> List[Place]:
    try:
        return worker.table.read()
    except ValueError as error:
        raise worker.failure("protocol", str(error), cheats=True) from None
