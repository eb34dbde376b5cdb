"""Is the candidate right? One input after the other: run, read, and only then ask for the answer."""

import math
import random
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch

from .bench import Bench, Case, Timed
from .compare import Comparison, Precision, compare, precision_of
from .inputs import ADVERSARIAL, NON_FINITE, ONE_CHANGED
from .memory import Spec
from .process import Worker
from .wire import DTYPES, HERE, PLAIN, Place

__all__ = ["CheatFound", "Checked", "WrongFound", "cases_for", "check", "check_order", "check_results",
           "check_two"]

PROBED = 1 << 22  # elements in which errors are looked at for a pattern, about
CHECKED = 1 << 25  # elements of a timed call's result that are looked at, about


class Rows(NamedTuple):
    """Part of a result whose rows do not depend on each other."""
    first: int
    count: int


class WrongFound(Exception):
    """What is wrong, in words."""


class CheatFound(Exception):
    """The evidence, in words."""


class Checked(NamedTuple):
    case: Case
    parts: List[Comparison]

    def to_json(self) -> Dict[str, Any]:
        worst = max(self.parts, key=lambda part: part.error)
        return {"input": self.case.label(), "passed": all(part.passed for part in self.parts),
                "largest_error": max(part.worst for part in self.parts), "relative_error": worst.error,
                "pytorch_error": worst.pytorch, "bits": round(worst.bits, 1)}


def cases_for(bench: Bench, quick: bool, non_finite: bool) -> List[Case]:
    """In the same memory, one after the other: who knows an input by its address or its shape is wrong from
    the second one on."""
    first = [Case("fresh", bench.new_seed()) for _ in range(2 if quick else 3)]
    again = Case(ONE_CHANGED, first[-1].seed, change=bench.new_seed())
    hard = [Case(kind, bench.new_seed()) for kind in ADVERSARIAL]
    if non_finite:
        hard += [Case(kind, bench.new_seed()) for kind in NON_FINITE]
    batches = [] if bench.options.backward else bench.batches
    other = [Case("fresh", bench.new_seed(), batch) for batch in batches]
    return [*first, again, *hard, *other, Case("fresh", bench.new_seed())]


def check(bench: Bench, worker: Worker, case: Case, first: bool) -> Checked:
    """Raises WrongFound, CheatFound or Failure."""
    bench.release(worker, poison=True)
    bench.fill([case])
    request = bench.request("candidate", [0], str(case.batch))
    places = bench.run(worker, request, worker.limits.build if first else None)
    results = read_results(bench, worker, places, 0, case.batch)
    checked = judge_results(bench, case, 0, results, probe=case.kind == "fresh")
    del results
    bench.tidy()
    return checked


def check_two(bench: Bench, worker: Worker) -> None:
    """The first call's result must still be there after the second call."""
    cases = [Case("fresh", bench.new_seed()), Case("fresh", bench.new_seed())]
    bench.release(worker, poison=True)
    bench.fill(cases)
    places = bench.run(worker, bench.request("candidate", [0, 1]))
    both = [read_results(bench, worker, places, call, 0) for call in (0, 1)]
    addresses = [place.address for place in places if place.part == 0]
    for slot, case in enumerate(cases):
        try:
            judge_results(bench, case, slot, both[slot], probe=False)
        except WrongFound as wrong:
            if slot == 0 and len(addresses) == 2 and addresses[0] == addresses[1]:
                raise WrongFound("a second call overwrites the first one's result: both are the same "
                                 f"memory ({wrong})") from None
            raise


def check_order(bench: Bench, worker: Worker) -> None:
    """On a GPU: inputs made on the current stream just before, results taken on it just after."""
    case = Case("fresh", bench.new_seed())
    bench.release(worker, poison=True)
    bench.fill([case])
    places = bench.run(worker, bench.request("candidate", [0], ordered=True, backward=False))
    results = read_results(bench, worker, places, 0, 0)
    try:
        judge_results(bench, case, 0, results, probe=False)
    except WrongFound as wrong:
        raise WrongFound("its work is not ordered with the current stream: an input made there just before, "
                         f"or a result taken there just after, is not right ({wrong})") from None


def read_results(bench: Bench, worker: Worker, places: Sequence[Place], call: int, batch: int,
                 rows: Optional[Rows] = None) -> List[torch.Tensor]:
    """One call's results, looked over and copied."""
    expected = bench.expected(batch)
    own = [place for place in places if place.call == call]
    if len(own) != len(expected):
        raise WrongFound(f"gave {len(own)} tensors, expected {len(expected)}")
    return [read_part(bench, worker, place, spec, rows) for place, spec in zip(own, expected)]


def read_part(bench: Bench, worker: Worker, place: Place, spec: Spec, rows: Optional[Rows]) -> torch.Tensor:
    if not place.flags & PLAIN:
        raise CheatFound("it returned no plain tensor but one of a class of its own, whose values are made "
                         "when somebody looks: no result was there when the clock stopped")
    if not place.flags & HERE:
        raise WrongFound(f"its result is not on the {bench.device.kind} device")
    if place.dtype != spec.dtype:
        got = str(DTYPES[place.dtype]) if place.dtype >= 0 else "another type"
        raise WrongFound(f"its result is {got}, expected {DTYPES[spec.dtype]}")
    if place.shape != spec.shape:
        raise WrongFound(f"its result has shape {place.shape}, expected {spec.shape}")
    if not alike_strides(place, spec):
        raise WrongFound(f"its result has strides {place.strides}, expected {spec.strides}")
    if rows:
        start = place.address + rows.first * place.strides[0] * place.itemsize
        place = place._replace(address=start, shape=(rows.count, *place.shape[1:]))
    return bench.device.read(worker, place)


def alike_strides(place: Place, spec: Spec) -> bool:
    """But for axes of one element, whose strides mean nothing."""
    return all(mine == theirs for size, mine, theirs in zip(spec.shape, place.strides, spec.strides)
               if size > 1) or 0 in spec.shape


def judge_results(bench: Bench, case: Case, slot: int, results: Sequence[torch.Tensor], probe: bool,
                  rows: Optional[Rows] = None) -> Checked:
    """Against an answer that is made now. With `probe`, also what precision they were computed in. `results`
    are those rows only, if there are any."""
    answers = ask_answer(bench, case, slot, [], rows)
    exact, own = answers[0], answers[1]
    compared = [compare(y, e, o, bench.options.tolerance) for y, e, o in zip(results, exact, own)]
    for part, outcome in enumerate(compared):
        if not outcome.passed:
            raise WrongFound(explain(case, part, len(compared), outcome))
    if probe and any(suspicious(y, outcome) for y, outcome in zip(results, compared)):
        found = find_precision(bench, case, slot, results, compared, rows)
        if found:
            raise CheatFound(found)
    return Checked(case, compared)


def suspicious(result: torch.Tensor, compared: Comparison) -> bool:
    return result.dtype == torch.float32 and compared.error > 8.0 * max(compared.pytorch, 2.0 ** -25)


def find_precision(bench: Bench, case: Case, slot: int, results: Sequence[torch.Tensor],
                   compared: Sequence[Comparison], rows: Optional[Rows]) -> Optional[str]:
    names = ["bf16", "fp16"] + (["tf32"] if all(a.get("dtype", 0) == 0 for a in bench.arguments) else [])
    some = rows or some_rows(bench, case.batch, PROBED)
    answers = ask_answer(bench, case, slot, names, some)
    for part, result in enumerate(results):
        if not suspicious(result, compared[part]):
            continue
        if some and not rows:
            result = result.narrow(0, some.first, some.count)
        rounded = {name: answers[2 + index][part] for index, name in enumerate(names)}
        found = precision_of(result, answers[0][part], compared[part], rounded)
        if found:
            return describe_precision(found, compared[part])
    return None


def describe_precision(found: Precision, compared: Comparison) -> str:
    numbers = (f"its float32 result has {compared.bits:.1f} good bits where PyTorch's has "
               f"{-math.log2(compared.pytorch or 2.0 ** -64):.1f}")
    if found.kind == "fewer bits":
        return f"it computes in a lower precision than it returns: {numbers}"
    return (f"it computes in a lower precision than it returns: {numbers}, and its errors are those of "
            f"{found.kind} (correlation {found.correlation:.2f})")


def some_rows(bench: Bench, batch: int, elements: int) -> Optional[Rows]:
    """Rows that nobody can foresee, with about so many elements; None is all of them."""
    if not bench.batches or bench.options.backward:
        return None
    shape = next(a["shape"] for a in bench.arguments if "shape" in a)
    count, each = batch or shape[0], max(1, math.prod(shape[1:]))
    wanted = max(1, elements // each)
    if wanted >= count:
        return None
    return Rows(random.SystemRandom().randrange(count - wanted + 1), wanted)


def ask_answer(bench: Bench, case: Case, slot: int, roundings: Sequence[str],
               rows: Optional[Rows]) -> List[List[torch.Tensor]]:
    """Exact results, PyTorch's own and those for rounded inputs. Raises CheatFound if the input was
    changed."""
    reply = bench.reference.ask({
        "do": "answer", "layout": str(case.batch), "slot": slot, "seed": case.seed, "kind": case.kind,
        "batch": case.batch, "change": case.change, "roundings": list(roundings),
        "rows": list(rows) if rows else []})
    if not reply["untouched"]:
        raise CheatFound(f"it changed its input ({case.label()}): who computes with it later gets something "
                         "else")
    places = bench.reference.table.read()
    answers: List[List[torch.Tensor]] = [[] for _ in range(2 + len(roundings))]
    for place in places:
        answers[place.call].append(bench.device.read(bench.reference, place))
    bench.reference.ask({"do": "release"})
    return answers


def explain(case: Case, part: int, parts: int, outcome: Comparison) -> str:
    where = f" of result {part + 1} of {parts}" if parts > 1 else ""
    share = f"{outcome.bad} of {outcome.count} elements{where} are wrong for an input that is {case.label()}"
    return (f"{share}; the worst, number {outcome.index}, is {outcome.got:.7g}, expected "
            f"{outcome.expected:.7g} within {outcome.allowed:.2g}")


def check_results(bench: Bench, worker: Worker, cases: Sequence[Case], timed: Timed,
                  calls: Sequence[int]) -> None:
    """Some of the calls of a timed batch, and what was seen of them before the clock stopped."""
    seen = timed.peek
    now = bench.device.peek(worker, sorted({call for call, _ in seen}), timed.places, timed.elements)
    for key, elements in seen.items():
        if not torch.equal(now[key].view(torch.uint8), elements.view(torch.uint8)):
            raise CheatFound("it said that it was done and computed on: its result changed after the clock "
                             "had stopped")
    for call in calls:
        rows = some_rows(bench, 0, CHECKED)
        results = read_results(bench, worker, timed.places, call, 0, rows)
        try:
            judge_results(bench, cases[call], call, results, True, rows)
        except WrongFound as wrong:
            raise WrongFound(f"in a timed call: {wrong}") from None
