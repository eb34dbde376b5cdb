"""Poolings of common networks, forward and backward, by PyTorch's operators and by onepass's.

    python3 bench/pools.py [--device cuda] [--points REGEX] [--scale 1]

On a GPU both are recorded in CUDA graphs, so that what launching takes does not count, and what is timed is
the GPU's work; on a CPU it is the clock's time. Backward is a graph that has forward in it, less forward's
time. Medians of rounds that the two take in turn. `--scale` divides the batches, for machines with less
memory.
"""

import argparse
import re
from functools import partial
from typing import Any, Dict, Iterator, NamedTuple, Sequence, Tuple

import onepass
import torch
from model_timing import REPLAYS, compare, print_head, print_row, recorded
from torch import Tensor

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
WINDOWS: Dict[str, Sequence[Tuple[Tuple[int, ...], int, int, int]]] = {
    "1d": (((64, 192, 65536), 8, 1, 4), ((64, 128, 4096), 3, 2, 1), ((64, 128, 4096), 2, 2, 0)),
    "2d": (((64, 64, 112, 112), 3, 2, 1), ((64, 256, 56, 56), 2, 2, 0), ((64, 192, 28, 28), 3, 1, 1),
           ((16, 64, 512, 512), 4, 1, 1), ((16, 64, 512, 512), 7, 7, 0), ((64, 64, 224, 224), 16, 16, 0)),
    "3d": (((16, 32, 64, 64, 64), 3, 2, 1), ((16, 32, 64, 64, 64), 2, 2, 0),
           ((4, 64, 32, 56, 56), 3, 1, 1)),
}
ADAPTIVE = (((64, 2048, 7, 7), 1), ((64, 512, 28, 28), 7), ((64, 256, 56, 56), 1), ((64, 256, 30, 30), 7))


class Point(NamedTuple):
    name: str
    operator: str
    arguments: Tuple[int, ...]
    shape: Tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool


def points() -> Iterator[Point]:
    for type_name, dtype in TYPES.items():
        for axes, windows in WINDOWS.items():
            for shape, kernel, stride, padding in windows:
                for kind in ("max", "avg"):
                    for last in ((False, True) if axes == "2d" and shape[-1] < 256 else (False,)):
                        operator = f"{kind}_pool{axes}"
                        name = f"{operator} {type_name} {'x'.join(map(str, shape))} k{kernel} s{stride}"
                        yield Point(name + f" p{padding}" + " channels_last" * last, operator,
                                    (kernel, stride, padding), shape, dtype, last)
        for shape, parts in ADAPTIVE:
            for kind in ("max", "avg"):
                for last in (False, True):
                    operator = f"adaptive_{kind}_pool2d"
                    yield Point(f"{operator} {type_name} {'x'.join(map(str, shape))} to {parts}"
                                f"{' channels_last' * last}", operator, (parts,), shape, dtype, last)


def forward(pool: Any, x: Tensor, arguments: Tuple[int, ...]) -> Sequence[Tensor]:
    with torch.no_grad():
        return [pool(x, *arguments)]


def both(pool: Any, x: Tensor, arguments: Tuple[int, ...], dy: Tensor) -> Sequence[Tensor]:
    return torch.autograd.grad(pool(x, *arguments), x, dy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--points", type=re.compile, default=re.compile(""), metavar="REGEX")
    parser.add_argument("--scale", type=int, default=1, metavar="N")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(options.device).type
    print(f"PyTorch {torch.__version__}, {options.device}, ms")
    print_head("PyTorch", "onepass", "faster")
    for point in points():
        if not options.points.search(point.name):
            continue
        shape = (max(1, point.shape[0] // options.scale), *point.shape[1:])
        x = torch.randn(shape, device=options.device, dtype=point.dtype)
        if point.channels_last:
            x = x.to(memory_format=torch.channels_last)
        x.requires_grad_()
        pools = {"PyTorch": getattr(torch.nn.functional, point.operator),
                 "onepass": getattr(onepass.functional, point.operator)}
        dy = torch.randn_like(pools["PyTorch"](x, *point.arguments))
        given = (x, point.arguments)
        tasks = {"forward": {name: partial(forward, pool, *given) for name, pool in pools.items()},
                 "both": {name: partial(both, pool, *given, dy) for name, pool in pools.items()}}
        times: Dict[str, Dict[str, float]] = {}
        for task, works in tasks.items():
            if device == "cuda":
                works = {name: recorded(work) for name, work in works.items()}
            times[task] = compare(works, device, REPLAYS if device == "cuda" else 1, options.rounds)
        times["backward"] = {name: times["both"][name] - times["forward"][name] for name in pools}
        print(point.name)
        for task in ("forward", "backward"):
            print_row(f"  {task}", times[task])


if __name__ == "__main__":
    main()
