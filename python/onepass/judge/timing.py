"""How fast is it? Contenders take turns, each on the same fresh inputs and with cold caches."""

import random
import statistics
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .bench import RAW, Bench, Case
from .process import Failure, Worker
from .right import CheatFound, check_results
from .stats import Estimate, estimate

__all__ = ["Race", "Times", "prepare_compiled"]

ROUNDS = {False: 15, True: 7}
WARM_UP = 2  # rounds
CHECKED_CALLS = 2  # of each timed batch
REPEATED_ROUNDS, CONFIRMING_ROUNDS = 3, 13
FROM_CACHE = 0.6  # of a fresh input's time: less for an input seen before is no computation
BUSY = 3.0  # times the usual: what copying takes the judge if another process keeps the GPU busy


class Times(NamedTuple):
    """Seconds of a call, in each round."""
    calls: int
    seconds: Dict[str, List[float]]
    idle: float  # of a batch without work, which was taken off
    queued: float  # share of the candidate's time after which its last call had returned; its own account

    def of(self, name: str) -> Estimate:
        return estimate(self.seconds[name])

    def ratio(self, one: str, other: str) -> Estimate:
        return estimate([a / b for a, b in zip(self.seconds[one], self.seconds[other])])


class Race:
    def __init__(self, bench: Bench, candidate: Worker, compiled: bool) -> None:
        self.bench, self.candidate = bench, candidate
        self.compiled = compiled
        self.hints: List[float] = []
        self.flushes: List[float] = []

    def worker_of(self, name: str) -> Worker:
        return self.candidate if name == "candidate" else self.bench.reference

    def once(self, name: str, slots: Sequence[int], layout: str = "0") -> float:
        """Seconds of a batch, as the judge's clock has it."""
        bench = self.bench
        layout = RAW if name in ("copy", "read", "write") else layout
        self.flushes.append(bench.device.flush())
        look = layout == "0"
        timed = bench.time(self.worker_of(name), bench.request(name, slots, layout), look)
        self.last = timed
        if name == "candidate":
            whole = float(timed.hint.get("whole") or 0.0)
            self.hints.append(float(timed.hint.get("queued") or 0.0) / whole if whole > 0 else 0.0)
        return timed.seconds

    def idle(self, calls: int, layout: str) -> float:
        """What a batch costs in which nothing is computed: taken from the reference's process, never from the
        candidate's, which might take its time there."""
        return statistics.median(self.once("idle", range(min(calls, 2)), layout) for _ in range(7))

    def choose_calls(self) -> int:
        """So many that a batch takes long enough for the clock, as far as there is memory."""
        bench = self.bench
        names = ["candidate", "eager"]
        for worker in {self.candidate, bench.reference}:
            bench.release(worker, poison=True)  # which touches it
        self.prepare([Case("fresh", bench.new_seed()) for _ in range(2)])
        idle = self.idle(1, "0")
        for name in names:
            self.once(name, [0])
        shortest = min(max(self.once(name, [1]) - idle, 1e-6) for name in names)
        wanted = int(bench.device.least_batch / shortest) + 1
        return max(1, min(bench.slots, bench.options.calls, wanted))

    def run(self, quick: bool, rounds: int) -> Times:
        bench = self.bench
        calls = self.choose_calls()
        # What could know the right answers goes after the candidate, which has had its turn by then.
        before, after = ["copy", "read", "write"], ["eager"] + ["compile"] * self.compiled
        idle_looking, idle_not = self.idle(calls, "0"), self.idle(calls, RAW)
        chance = random.SystemRandom()
        self.flushes.clear()
        wanted = rounds or ROUNDS[quick]
        every: List[Dict[str, float]] = []  # rounds, those with a disturbance, too
        quiet: List[Dict[str, float]] = []
        for number in range(2 * wanted + WARM_UP):
            cases = [Case("fresh", bench.new_seed()) for _ in range(calls)]
            self.prepare(cases)
            order = [*before, "candidate"]
            chance.shuffle(order)
            chance.shuffle(after)
            spent: Dict[str, float] = {}
            disturbed = False
            for name in [*order, *after]:
                idle = idle_not if name in before else idle_looking
                spent[name] = max(self.once(name, range(calls)) - idle, 1e-7) / calls
                disturbed = disturbed or self.last.disturbed
                if name == "candidate":
                    picked = chance.sample(range(calls), min(calls, CHECKED_CALLS))
                    check_results(bench, self.candidate, cases, self.last, picked)
                bench.release(self.worker_of(name), poison=False)
            if number < WARM_UP:
                continue
            # Memory that is new to the judge takes time to open, which is nobody's. Who has new memory in
            # most rounds is counted with that.
            every.append(spent)
            if not disturbed:
                quiet.append(spent)
            if len(quiet) == wanted:
                break
        counted = quiet if len(quiet) == wanted else every
        seconds = {name: [spent[name] for spent in counted] for name in counted[0]}
        self.check_quiet()
        return Times(calls, seconds, idle_looking, statistics.median(self.hints))

    def prepare(self, cases: Sequence[Case]) -> None:
        for worker in (self.candidate, self.bench.reference):
            self.bench.release(worker, poison=False)
        self.bench.fill(cases)

    def check_quiet(self) -> None:
        usual = getattr(self.bench.device, "quiet_flush", 0.0)
        typical = statistics.median(self.flushes)
        if usual and typical > BUSY * usual:
            raise CheatFound(f"the GPU is busy while the candidate is stopped: copying {typical * 1e3:.2f} "
                             f"ms instead of {usual * 1e3:.2f} ms; its kernels run on between calls")

    def check_repeated(self, times: Times) -> Optional[float]:
        """The same values again, in other memory, must take their time. Pairs of batches, one after the
        other, so that a machine that is busy for a while is no evidence; and more before one is accused."""
        calls = times.calls
        if calls < 2 or times.of("candidate").median * calls < 1e-3:
            return None
        # The first of the batch has never been seen: it costs as much as ever.
        limit = FROM_CACHE + (1 - FROM_CACHE) / calls
        pairs = [self.repeated_pair(times, number % 2 == 0) for number in range(REPEATED_ROUNDS)]
        if share_when_quiet(pairs) < limit:
            pairs += [self.repeated_pair(times, number % 2 == 0) for number in range(CONFIRMING_ROUNDS)]
        share = share_when_quiet(pairs)
        if len(pairs) > REPEATED_ROUNDS and share < limit:
            raise CheatFound(f"it remembers results by the values of the input: a batch of {calls} equal "
                             f"inputs took {share:.2f} of the time of {calls} different ones, by the "
                             f"quicker ones of {len(pairs)} tries")
        return share

    def repeated_pair(self, times: Times, fresh_first: bool) -> Tuple[float, float]:
        """Times of equal inputs and of different ones."""
        bench, spent = self.bench, {}
        for fresh in (fresh_first, not fresh_first):
            seeds = [bench.new_seed() for _ in range(times.calls)]
            self.prepare([Case("fresh", seed if fresh else seeds[0]) for seed in seeds])
            spent[fresh] = max(self.once("candidate", range(times.calls)) - times.idle, 1e-7)
        return spent[False], spent[True]

    def small(self, batch: int) -> float:
        """Seconds of a call on little data."""
        bench = self.bench
        calls = max(1, min(bench.slots, 16))
        idle = self.idle(calls, str(batch))
        spent = []
        for _ in range(5):
            self.prepare([Case("fresh", bench.new_seed(), batch) for _ in range(calls)])
            spent.append((self.once("candidate", range(calls), str(batch)) - idle) / calls)
        return max(statistics.median(spent), 0.0)


def share_when_quiet(pairs: Sequence[Tuple[float, float]]) -> float:
    """Of the first times in the second ones. A machine that is busy now and then makes some of them longer,
    and none shorter. Compared with the shortest of the second ones is the first one a quarter of the way up:
    who is accused has done so again and again, in less time than the others ever took."""
    first, second = (sorted(times) for times in zip(*pairs))
    return first[len(pairs) // 4] / second[0]


def prepare_compiled(bench: Bench) -> Optional[str]:
    """Compiles the reference with torch.compile; or why not."""
    try:
        bench.fill([Case("fresh", bench.new_seed())])
        bench.reference.ask({"do": "compile", "layout": "0"}, bench.options.build_timeout)
    except Failure as failure:
        if failure.kind in ("exception", "compile", "memory"):
            return failure.reason[:200]
        raise
    return None
