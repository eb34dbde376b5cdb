"""Times of work on a GPU: contenders take turns, each on a cold cache.

A contender is a list of calls that do the same on buffers of their own. They are captured in one
CUDA graph, so that what is timed is the GPU's work alone, and so that a call of a few microseconds
is timed together with others. Before each replay, outside the timed region, other data is copied
through the L2 cache: none of the operands is in it, and half of it waits to be written back, as
after any operator before this one.
"""

import math
import statistics
import time
from functools import partial
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch

from onepass_torch import Call

__all__ = ["REPLAY_BYTES", "L2Cache", "Line", "Race", "Recorder", "Recording", "brief", "give_back_memory",
           "interleave", "wall_microseconds"]

FLUSH_BYTES = 256 << 20  # at least; also long enough to queue the replay behind it meanwhile
SLEEP_CYCLES = 200_000  # about 100 us: what queueing a call may take Python
SPREAD = 0.005  # of the median: when it is known well enough
CLOSE = 1.05  # times that differ less than this are measured as often as is allowed

REPLAY_BYTES = 512_000_000  # what the calls of a recording should move together
WALL_SECONDS = 0.01  # of a round of queued calls

Times = Dict[str, List[float]]
Line = Dict[str, Any]


class L2Cache:
    """What fills the second-level cache with other data."""

    def __init__(self) -> None:
        size = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0)
        self.source = torch.randn(max(FLUSH_BYTES, 3 * size) // 4, device="cuda")
        self.target = torch.empty_like(self.source)

    def flush(self) -> None:
        self.target.copy_(self.source)


class Recording(NamedTuple):
    queue: Call  # queues all calls on the current stream
    calls: int
    method: str  # "graph", or "queued" with the reason why capturing failed


class Recorder:
    """Captures calls. What the graphs of one recorder allocate shares memory, as they never run at
    the same time and nobody reads it. The current stream must not be the default one; and as
    PyTorch runs a backward pass on the stream of its forward pass, it must be the current one in
    both."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def record(self, calls: Sequence[Call]) -> Recording:
        queue_all(calls)  # compiles, loads kernels and chooses what is chosen once
        torch.cuda.synchronize()
        give_back_memory()
        graph = torch.cuda.CUDAGraph()
        try:
            capture(graph, calls, self.pool)
        except RuntimeError as error:
            self.pool = torch.cuda.graph_pool_handle()  # the failure may have spoilt the other
            return Recording(partial(queue_all, calls), len(calls), f"queued: {brief(error)}")
        graph.replay()
        torch.cuda.synchronize()
        return Recording(graph.replay, len(calls), "graph")


def give_back_memory() -> None:
    """What PyTorch holds in reserve, the memory of graphs that are gone included, once it is much: giving
    it back takes longer than most measurements."""
    if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory // 3:
        torch.cuda.empty_cache()


def capture(graph: torch.cuda.CUDAGraph, calls: Sequence[Call], pool: Any) -> None:
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        # Results are kept to the end, so that each call allocates its own and none is written over
        # while still in the cache.
        results = [call() for call in calls]
    finally:
        graph.capture_end()
    del results


def queue_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def brief(error: BaseException) -> str:
    """The first lines of what may be pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:200]}"


def interleave(recordings: Dict[str, Recording], cache: L2Cache, least: int, most: int) -> Times:
    """Microseconds of one call, for each repetition. All take their turn in each, in an order that
    moves on; at least `least` repetitions, and more until the medians are settled."""
    names = list(recordings)
    times: Times = {name: [] for name in names}
    while not settled(times, least, most):
        turn = len(times[names[0]]) % len(names)
        order = names[turn:] + names[:turn]
        events = {name: queue_timed(recordings[name], cache) for name in order}
        torch.cuda.synchronize()
        for name, (start, end) in events.items():
            times[name].append(start.elapsed_time(end) * 1e3 / recordings[name].calls)
    return times


def queue_timed(recording: Recording, cache: L2Cache) -> Tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if recording.method != "graph":
        torch.cuda._sleep(SLEEP_CYCLES * recording.calls)  # or Python's time would be measured
    cache.flush()
    start.record()
    recording.queue()
    end.record()
    return start, end


def settled(times: Times, least: int, most: int) -> bool:
    count = min(len(values) for values in times.values())
    if count < least or count >= most:
        return count >= most
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = medians["onepass"]
    close = any(median < CLOSE * ours for name, median in medians.items()
                if name not in ("onepass", "copy"))
    return not close and all(spread(values) < SPREAD for values in times.values())


def spread(values: Sequence[float]) -> float:
    """About the standard error of the median, as a fraction of it."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle / math.sqrt(len(values))


def wall_microseconds(calls: Sequence[Call], count: int) -> float:
    """Of one call among `count` that are queued from Python one after the other, the wait for the
    last one included. The median of three rounds."""
    rounds = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for i in range(count):
            calls[i % len(calls)]()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) * 1e6 / count)
    return statistics.median(rounds)


# ---- Several contenders --------------------------------------------------------------------------


class Race(NamedTuple):
    """Who takes part in a point, by name; notes say why others do not."""
    calls: Dict[str, List[Call]]
    recordings: Dict[str, Recording]
    notes: Dict[str, str]

    def run(self, cache: L2Cache, least: int, most: int) -> Line:
        times = interleave(self.recordings, cache, least, most)
        us = {name: statistics.median(values) for name, values in times.items()}
        wall = {name: wall_of(calls, us[name]) for name, calls in self.calls.items()
                if name != "copy"}
        return {"repetitions": len(times["onepass"]), "us": rounded(us), "wall_us": rounded(wall),
                "of_copy": round(us["copy"] / us["onepass"], 4), "notes": self.notes,
                "method": {name: each.method for name, each in self.recordings.items()}}


def wall_of(calls: Sequence[Call], microseconds: float) -> float:
    count = int(WALL_SECONDS * 1e6 / microseconds)
    return wall_microseconds(calls, min(max(count, 3), 100))


def rounded(times: Dict[str, float]) -> Dict[str, float]:
    return {name: round(value, 3) for name, value in times.items()}
