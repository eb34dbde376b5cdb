"""What every pooling operator should give, from its definition: windows are lists of positions.

Tensors are nested in nothing: a plane is a list of numbers in row-major order and the sizes of its
axes. Gradients are scattered from the outputs, where the library gathers them.
"""

import itertools
import math
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from oracle import total

__all__ = ["Axis", "avg", "avg_backward", "lp", "lp_backward", "maximum", "maximum_backward",
           "power", "windows"]

Plane = List[float]


class Axis(NamedTuple):
    """One pooled axis. Adaptive ones know their pooled length, the others find it."""

    length: int
    kernel: int = 0
    stride: int = 0
    padding: int = 0
    dilation: int = 1
    ceil_mode: bool = False
    adaptive: int = 0

    def positions(self, output: int) -> List[int]:
        """All positions of a window, those in the padding and beyond it too."""
        if self.adaptive:
            first = math.floor(output * self.length / self.adaptive)
            last = math.ceil((output + 1) * self.length / self.adaptive)
            return list(range(first, last))
        start = output * self.stride - self.padding
        return [start + k * self.dilation for k in range(self.kernel)]

    @property
    def pooled(self) -> int:
        """Count windows one by one: one ends within the padded input, or, with ceil_mode, it is the
        first that does not and starts before the input ends."""
        if self.adaptive:
            return self.adaptive
        count = 0
        while self.positions(count)[-1] < self.length + self.padding:
            count += 1
        previous_fits_exactly = (count > 0 and
                                 self.positions(count - 1)[-1] == self.length + self.padding - 1)
        starts_inside = count * self.stride - self.padding < self.length
        return count + (self.ceil_mode and not previous_fits_exactly and starts_inside)


class Window(NamedTuple):
    inside: List[int]  # numbers of its elements in the plane, in row-major order
    counted: int  # of them, the padding included, as far as the padded input goes
    first: int  # the number that its first element would have


def windows(axes: Sequence[Axis]) -> Iterator[Window]:
    """The window of each output, in row-major order."""
    for output in itertools.product(*(range(axis.pooled) for axis in axes)):
        sides = [axis.positions(o) for axis, o in zip(axes, output)]
        inside = [[i for i in side if 0 <= i < axis.length] for axis, side in zip(axes, sides)]
        first = [min(i for i in side if i >= 0) for side in sides]
        counted = math.prod(len([i for i in side if i < axis.length + axis.padding])
                            for axis, side in zip(axes, sides))
        yield Window([number(axes, at) for at in itertools.product(*inside)], counted,
                     number(axes, first))


def number(axes: Sequence[Axis], at: Sequence[int]) -> int:
    result = 0
    for axis, i in zip(axes, at):
        result = result * axis.length + i
    return result


def size_of(axes: Sequence[Axis]) -> int:
    return math.prod(axis.length for axis in axes)


def divisor_of(window: Window, count_include_pad: bool, divisor: int) -> int:
    return divisor or (window.counted if count_include_pad else len(window.inside))


def avg(x: Plane, axes: Sequence[Axis], count_include_pad: bool = False, divisor: int = 0) -> Plane:
    return [total([x[i] for i in w.inside]) / divisor_of(w, count_include_pad, divisor)
            for w in windows(axes)]


def scatter(axes: Sequence[Axis], shares: Iterator[Tuple[int, float]]) -> Plane:
    terms: List[List[float]] = [[] for _ in range(size_of(axes))]
    for i, share in shares:
        terms[i].append(share)
    return [total(t) for t in terms]


def avg_backward(dy: Plane, axes: Sequence[Axis], count_include_pad: bool = False,
                 divisor: int = 0) -> Plane:
    return scatter(axes, ((i, g / divisor_of(w, count_include_pad, divisor))
                          for g, w in zip(dy, windows(axes)) for i in w.inside))


def maximum(x: Plane, axes: Sequence[Axis]) -> Tuple[Plane, List[int]]:
    """The first largest, or the last NaN; a window of nothing but padding has -inf."""
    y, indices = [], []
    for w in windows(axes):
        nans = [i for i in w.inside if math.isnan(x[i])]
        largest: Optional[int] = nans[-1] if nans else None
        if not nans and w.inside:
            largest = max(w.inside, key=lambda i: (x[i], -i))
        y.append(-math.inf if largest is None else x[largest])
        indices.append(w.first if largest is None else largest)
    return y, indices


def maximum_backward(dy: Plane, indices: Sequence[int], axes: Sequence[Axis]) -> Plane:
    return scatter(axes, ((i, g) for g, i, w in zip(dy, indices, windows(axes)) if i in w.inside))


def power(x: float, exponent: float) -> float:
    """C's pow for a positive or negative base, and what a square root has no answer for is NaN."""
    if abs(exponent) == 0.5 and x < 0:
        return math.nan
    try:
        result = x**exponent
    except ZeroDivisionError:
        return math.inf
    except OverflowError:
        return math.inf
    return math.nan if isinstance(result, complex) else result


def lp(x: Plane, axes: Sequence[Axis], p: float) -> Plane:
    whole = math.prod(axis.kernel for axis in axes)
    means = [total([power(x[i], p) for i in w.inside]) / len(w.inside) for w in windows(axes)]
    return [power(mean * whole, 1 / p) for mean in means]


def lp_backward(dy: Plane, x: Plane, axes: Sequence[Axis], p: float) -> Plane:
    """The chain rule through y = m^(1/p), m = (mean of x^p) * (size of a whole window). The rule for
    m = 0 and m = NaN is that of sign(m) * relu(|m|)."""
    whole = math.prod(axis.kernel for axis in axes)

    def shares() -> Iterator[Tuple[int, float]]:
        for g, w in zip(dy, windows(axes)):
            m = total([power(x[i], p) for i in w.inside]) / len(w.inside) * whole
            slope = 0.0 if m == 0 else g * power(m, 1 / p - 1) / p * whole / len(w.inside)
            for i in w.inside:
                yield i, slope * 0 if math.isnan(m) else slope

    return [s * (p * power(v, p - 1)) for s, v in zip(scatter(axes, shares()), x)]
