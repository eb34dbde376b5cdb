"""Times of whole models: what takes milliseconds and is larger than any cache. The two of a comparison take
turns, and the median of their rounds counts."""

import statistics
import time
from typing import Callable, Dict, List, Sequence

import torch
from torch import Tensor

__all__ = ["REPLAYS", "Work", "compare", "print_head", "print_row", "recorded"]

REPLAYS = 5  # in a row: the first one is late by what launching takes

Work = Callable[[], Sequence[Tensor]]


def recorded(work: Work) -> Work:
    """The same work as one CUDA graph. Whatever it does only once, such as loading kernels, must be done
    before it is recorded, and on a stream other than the default one."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()

    def replay() -> Sequence[Tensor]:
        graph.replay()
        return results
    return replay


def milliseconds(work: Work, device: str, times: int) -> float:
    """Of one of so many in a row."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(times):
            work()
        return 1e3 * (time.perf_counter() - start) / times
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


def compare(works: Dict[str, Work], device: str, times: int, rounds: int) -> Dict[str, float]:
    taken: Dict[str, List[float]] = {name: [] for name in works}
    for _ in range(rounds + 3):
        for name, work in works.items():
            taken[name].append(milliseconds(work, device, times))
    return {name: statistics.median(values[3:]) for name, values in taken.items()}


def print_head(*columns: str) -> None:
    print(f"{'':44}" + "".join(f"{column:>10}" for column in columns))


def print_row(name: str, times: Dict[str, float]) -> None:
    print(f"{name:44}{times['PyTorch']:10.3f}{times['onepass']:10.3f}"
          f"{times['PyTorch'] / times['onepass']:9.2f}x", flush=True)
