"""The problems that the comparisons run: what they are called, which are fixed, how others are
drawn. Needs nothing but Python."""

import math
import random
from typing import List, NamedTuple, Sequence, Tuple

__all__ = ["DIRECTIONS", "OPS", "Case", "Point", "fixed_points", "random_points"]

OPS = ("l1_norm", "layer_norm", "avg_pool1d")
DIRECTIONS = ("fwd", "bwd")

LARGEST_SIZE = 10**6  # of the rows and of the columns that are drawn
LARGEST_TENSOR = 2 << 30  # bytes
WINDOWS_DRAWN = 5  # for one run: torch.compile compiles anew for every window


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


class Point(NamedTuple):
    """A case in one type and direction."""
    case: Case
    dtype: str
    direction: str

    def label(self) -> str:
        return f"{self.case.op} {self.case.label()} {self.dtype} {self.direction}"


def fixed_points() -> List[Point]:
    """The problems the project promises a speed for."""
    matrices = ((32768, 1024), (16384, 4096), (16384, 4095), (8192, 8192), (4096, 16384),
                (2048, 65536), (1048576, 128), (256, 1048576))
    problems = [(Case("l1_norm", (32768, 65535)), "f32"),
                (Case("layer_norm", (16, 64, 256, 256), axis=-3), "f32"),
                (Case("avg_pool1d", (64, 128, 65536)), "f32")]
    problems += [(Case("layer_norm", shape), dtype)
                 for dtype in ("f32", "bf16") for shape in matrices]
    return [Point(case, dtype, direction)
            for case, dtype in problems for direction in DIRECTIONS]


def random_points(count: int, seed: int) -> List[Point]:
    """`count` cases, each in both directions; the same ones for the same seed."""
    source = random.Random(seed)
    windows = [random_window(source) for _ in range(WINDOWS_DRAWN)]
    points = []
    for _ in range(count):
        dtype = source.choice(("f32", "bf16"))
        case = random_case(source, windows, 4 if dtype == "f32" else 2)
        points += [Point(case, dtype, direction) for direction in DIRECTIONS]
    return points


def random_case(source: random.Random, windows: Sequence[Tuple[int, int, int]],
                element_size: int) -> Case:
    if source.random() < 0.7:
        return Case(source.choice(("l1_norm", "layer_norm")), random_matrix(source, element_size))
    kernel, stride, padding = source.choice(windows)
    while True:
        rows, length = random_matrix(source, element_size)
        if length + 2 * padding >= kernel:
            return Case("avg_pool1d", (1, rows, length), kernel=kernel, stride=stride,
                        padding=padding)


def random_matrix(source: random.Random, element_size: int) -> Tuple[int, int]:
    while True:
        rows, columns = random_size(source, LARGEST_SIZE), random_size(source, LARGEST_SIZE)
        if rows * columns * element_size <= LARGEST_TENSOR:
            return rows, columns


def random_window(source: random.Random) -> Tuple[int, int, int]:
    kernel = random_size(source, 16)
    return kernel, source.randint(1, kernel), source.randint(0, kernel // 2)


def random_size(source: random.Random, largest: int) -> int:
    """1 to largest, each power of ten as likely as the next."""
    return min(largest, int(math.exp(source.uniform(0, math.log(largest + 1)))))
