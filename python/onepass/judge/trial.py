"""One candidate against the reference, from its start to the verdict."""

import hashlib
import os
import shutil
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

from .advice import Measured, advise
from .bench import Bench, Case
from .counters import counters_of
from .limits import distance
from .operators import forbidden
from .process import Failure, Limits, Worker
from .right import CheatFound, WrongFound, cases_for, check, check_order, check_two
from .source import classes_of
from .timing import Race, Times, prepare_compiled
from .verdict import Judgement, grade, near_thresholds

__all__ = ["Trial", "judge_candidate"]

LEAK_CALLS = {False: 1000, True: 100}
LEAK_SECONDS = 15.0
# Bytes in 1000 calls. What is seen from outside comes in the segments that an allocator takes, on a GPU of
# 2 MiB and more, and less may be its habit; its own account is to the byte.
LEAK_SEEN = {"cpu": 1 << 20, "cuda": 8 << 20}
LEAK_HELD = 1 << 20

Say = Callable[[str], None]


def judge_candidate(bench: Bench, path: str, say: Say) -> Judgement:
    """Raises Failure only where the reference, or the machine, fails."""
    trial = Trial(bench, path, say)
    details = trial.details
    try:
        verdict, reason = trial.run()
    except WrongFound as wrong:
        verdict, reason = "wrong", str(wrong)
    except CheatFound as cheat:
        verdict, reason = "cheating", str(cheat)
    except Failure as failure:
        if failure.role == "reference" or trial.worker is None:
            raise
        verdict, reason = ("cheating" if failure.cheats else "broken"), f"{failure.kind}: {failure.reason}"
        details["tail"] = failure.tail
    finally:
        left = trial.end()
    evidence = trial.evidence
    if left:
        evidence.append(f"it left processes running: {', '.join(left)}")
    if verdict == "cheating":
        evidence.insert(0, reason)
    elif evidence:
        verdict, reason = "cheating", evidence[0]
    details["evidence"] = evidence
    details["notes"] = [*bench.notes, *trial.notes]
    details["seconds"] = round(time.monotonic() - trial.started, 1)
    return Judgement(bench.path, os.path.abspath(path), verdict, reason, details)


class Trial:
    def __init__(self, bench: Bench, path: str, say: Say) -> None:
        self.bench, self.path, self.say = bench, os.path.abspath(path), say
        self.worker: Optional[Worker] = None
        self.started = time.monotonic()
        self.evidence: List[str] = []
        self.notes: List[str] = []
        self.details: Dict[str, Any] = {"device": {"kind": bench.device.kind, "name": bench.device.name},
                                        "seed": bench.options.seed}
        if "onepass" in names_in(self.path):
            self.details["made_with"] = "onepass"

    def run(self) -> Any:
        options, bench = self.bench.options, self.bench
        self.build()
        worker = self.worker
        assert worker is not None
        self.say("is it right?")
        checked = []
        self.details["right"] = checked
        for number, case in enumerate(cases_for(bench, options.quick, options.non_finite)):
            self.say(f"is it right? {case.label()}")
            checked.append(check(bench, worker, case, first=number == 0).to_json())
        check_two(bench, worker)
        if bench.device.kind == "cuda" and not options.backward:
            check_order(bench, worker)
        if options.no_torch_ops:
            self.refuse_operators(worker)
        return self.measure(worker)

    def build(self) -> None:
        bench, options = self.bench, self.bench.options
        self.say("building")
        limits = Limits(options.build_timeout, min(options.timeout, 120.0), options.timeout, options.memory)
        worker = bench.start_candidate(self.path, limits, self.environment())
        self.worker = worker
        worker.device_memory = bench.device.over_limit
        self.details["guards"] = worker.guards
        construction = os.path.join(worker.sandbox, "construction")
        shutil.copyfile(bench.construction, construction)
        begin = time.monotonic()
        built = worker.ask({"do": "build", "construction": construction, "seed": bench.model_seed},
                           options.build_timeout)
        self.details["build_s"] = round(time.monotonic() - begin, 2)
        self.details["parameters"] = str(built.get("copied"))
        which = "initial" if built.get("copied") == "by seed" else "random"
        bench.reference.ask({"do": "parameters", "which": which})
        bench.lay_out(worker)

    def environment(self) -> Dict[str, str]:
        cache = self.bench.options.build_cache
        return {"TORCH_EXTENSIONS_DIR": os.path.join(cache, fingerprint(self.path))} if cache else {}

    def refuse_operators(self, worker: Worker) -> None:
        self.say("does it use PyTorch's operators?")
        self.bench.fill([Case("fresh", self.bench.new_seed())])
        reply = worker.ask({"do": "operators", "model": "candidate", "layout": "0"})
        used = forbidden(self.path, [str(name) for name in reply.get("operators", [])])
        if used:
            raise CheatFound(f"it uses what --no-torch-ops forbids: {'; '.join(used[:5])}")

    def measure(self, worker: Worker) -> Any:
        bench, options = self.bench, self.bench.options
        compiled = self.compile_reference() if options.compile else False
        self.say("is it faster?")
        bench.trimmed(bench.reference)
        bench.trimmed(worker)
        race = Race(bench, worker, compiled)
        times = race.run(options.quick, options.rounds)
        far = distance(bench, times)
        speedup = times.ratio("eager", "candidate")
        self.describe_times(times, compiled)
        self.details["limit"] = far.to_json()
        self.say("does it remember?")
        self.details["repeated"] = race.check_repeated(times)
        self.say("does it leak?")
        extra = self.extra_memory(worker) if options.advise else None
        self.details["memory"] = {"extra": extra, **self.growth(worker, times)}
        if options.advise:
            small = race.small(bench.batches[0]) if bench.batches and not options.backward else None
            measured = self.measured(times, far, extra, small, worker)
            self.details["advice"] = [advice.to_json() for advice in advise(measured)]
        self.notes.extend(near_thresholds(speedup, far.of_copy))
        if far.impossible:
            raise CheatFound(f"physically impossible: {far.impossible}")
        return grade(speedup, far.of_copy), self.sentence(times, far)

    def compile_reference(self) -> bool:
        """Once a bench."""
        bench = self.bench
        if not hasattr(bench, "uncompiled"):
            self.say("torch.compile")
            bench.uncompiled = prepare_compiled(bench)  # type: ignore[attr-defined]
        why: Optional[str] = bench.uncompiled  # type: ignore[attr-defined]
        if why:
            self.notes.append(f"not compared with torch.compile: {why}")
        return why is None

    def describe_times(self, times: Times, compiled: bool) -> None:
        names = ["eager", "candidate", "copy", *(["compile"] if compiled else [])]
        self.details["time"] = {"calls": times.calls, "idle_ms": times.idle * 1e3,
                                **{f"{name}_ms": times.of(name).scaled(1e3).rounded() for name in names}}
        self.details["speedup"] = times.ratio("eager", "candidate").rounded()
        if compiled:
            self.details["speedup_over_compile"] = times.ratio("compile", "candidate").rounded()

    def sentence(self, times: Times, far: Any) -> str:
        speedup = times.ratio("eager", "candidate")
        text = (f"{speedup.median:.3g} times as fast as PyTorch ({speedup.low:.3g} to {speedup.high:.3g}), "
                f"{far.of_copy.median:.2f} of the copy's speed")
        if "compile" in times.seconds:
            text += f", {times.ratio('compile', 'candidate').median:.3g} times as fast as torch.compile"
        return text

    # Memory

    def extra_memory(self, worker: Worker) -> Optional[int]:
        """Bytes that a call takes beyond its result, at most; as PyTorch's allocators in its process
        count."""
        bench = self.bench
        bench.release(worker, poison=False)
        bench.fill([Case("fresh", bench.new_seed())])
        try:
            return int(worker.ask({"do": "peak", "model": "candidate", "layout": "0",
                                   "backward": bench.options.backward})["extra"])
        except Failure as failure:
            if worker.process.poll() is not None:
                raise
            self.notes.append(f"its extra memory is not known: {failure.reason[:150]}")
            return None

    def growth(self, worker: Worker, times: Times) -> Dict[str, Any]:
        """Of memory, over many calls. Raises Failure for a leak."""
        bench, options = self.bench, self.bench.options
        batch = bench.batches[0] if bench.batches and not options.backward else 0
        each = times.of("candidate").median if not batch else times.of("candidate").median / 4
        count = max(20, min(LEAK_CALLS[options.quick], int(LEAK_SECONDS / max(each, 1e-6))))
        bench.release(worker, poison=False)
        slots = list(range(min(4, bench.slots)))
        bench.fill([Case("fresh", bench.new_seed(), batch) for _ in slots])
        request = {"do": "repeat", "model": "candidate", "layout": str(batch), "slots": slots,
                   "backward": options.backward, "count": max(1, count // 10)}
        worker.ask(request)
        levels = [bench.trimmed(worker)]
        for _ in range(4):
            worker.ask({**request, "count": max(1, count // 4)})
            levels.append(bench.trimmed(worker))
        leaked = leak_in(levels, count, bench.device.kind)
        if leaked:
            raise Failure("leak", f"its memory grows by {leaked / count / 1024:.1f} KiB a call "
                          f"({leaked / 2**20:.1f} MiB in {count} calls)", worker.tail())
        return {"growth_per_call": max(map(steady_growth, zip(*levels))) / count, "calls": count}

    # Advice

    def measured(self, times: Times, far: Any, extra: Optional[int], small: Optional[float],
                 worker: Worker) -> Measured:
        bench = self.bench
        whole = next((a["shape"][0] for a in bench.arguments if "shape" in a and a["shape"]), 1)
        share = bench.batches[0] / whole if bench.batches else 1.0
        kernels = []
        try:
            kernels = worker.ask({"do": "profile", "model": "candidate", "layout": "0"})["kernels"]
        except Failure as failure:
            if worker.process.poll() is not None:
                raise
            self.notes.append(f"no profile of its kernels: {failure.reason[:150]}")
        self.details["kernels"] = kernels[:20]
        counters: Dict[str, float] = {}
        if bench.options.ncu and bench.device.kind == "cuda":
            found = counters_of(self.path, bench.construction, bench.arguments[:bench.inputs],
                                self.environment())
            if isinstance(found, str):
                self.notes.append(f"no counters of the hardware: {found}")
            else:
                self.details["counters"] = counters = found
        return Measured(times.of("candidate").median, far.of_copy.median, bench.bytes, small, share,
                        times.queued, extra, bench.device.kind,
                        getattr(bench.device, "multiprocessors", 0), kernels, counters)

    def end(self) -> List[str]:
        if self.worker is None:
            return []
        self.evidence.extend(self.worker.evidence)
        left = self.bench.stop(self.worker)
        self.bench.device.forget()
        return left


def steady_growth(levels: Sequence[int]) -> int:
    """Of a quantity that was looked at five times: what it grows in all, by its later half, if it grows there
    every time. Caches fill up in the beginning and stop."""
    later = [after - before for before, after in zip(levels[2:], levels[3:])]
    return 2 * sum(later) if min(later) > 0.3 * max(later) > 0 else 0


def leak_in(levels: Sequence[Tuple[int, int]], count: int, kind: str) -> int:
    """Bytes that memory has grown by in so many calls, as seen from outside or by the allocator's account,
    if that is a leak; else 0."""
    limits = (LEAK_SEEN[kind], LEAK_HELD)
    grown = [steady_growth(each) for each in zip(*levels)]
    return max(each if each > limit * count / 1000 else 0 for each, limit in zip(grown, limits))


def names_in(path: str) -> Set[str]:
    try:
        return classes_of(path)
    except (OSError, SyntaxError, ValueError):
        return set()


def fingerprint(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]
