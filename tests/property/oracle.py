"""What the operators should give, in float64 and the shortest code that is obviously right.

Each function takes rows (lists of float) and gives rows back. Sums are math.fsum, whose error is
one rounding, so the oracle's own error is that of a few float64 operations.
"""

import math
from typing import List, Sequence, Tuple

__all__ = [
    "Row", "avg_pool", "avg_pool_backward", "divide", "l1_backward", "l1_forward", "layer_backward",
    "layer_forward", "pooled_length", "total", "window_of",
]

Row = List[float]


def total(values: Sequence[float]) -> float:
    """The sum as IEEE arithmetic has it: NaN and infinities do what they do in C."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def divide(a: float, b: float) -> float:
    """a / b in IEEE arithmetic, where Python raises."""
    if b != 0:
        return a / b
    if a == 0 or math.isnan(a):
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def sign(x: float) -> float:
    return x if math.isnan(x) else (x > 0) - (x < 0)


def l1_forward(x: Row, mean: bool, eps: float) -> Row:
    denominator = total([abs(v) for v in x])
    if mean and x:
        denominator /= len(x)
    return [divide(v, denominator + eps) for v in x]


def l1_backward(dy: Row, x: Row, mean: bool, eps: float) -> Row:
    """y = x / d, d = c sum|x| + eps: dx = dy / d - c sign(x) sum(dy x) / d^2."""
    c = 1 / len(x) if mean and x else 1.0
    d = total([abs(v) for v in x]) * c + eps
    both = divide(divide(total([g * v for g, v in zip(dy, x)]), d), d) * c
    return [divide(g, d) - sign(v) * both for g, v in zip(dy, x)]


def layer_forward(x: Row, weight: Row, bias: Row, eps: float) -> Tuple[Row, float, float]:
    n = len(x)
    mean = divide(total(x), n)
    variance = divide(total([(v - mean) * (v - mean) for v in x]), n)
    spread = variance + eps
    rstd = divide(1.0, math.sqrt(spread)) if spread >= 0 else math.nan
    return [(v - mean) * rstd * w + b for v, w, b in zip(x, weight, bias)], mean, rstd


def layer_backward(dy: Row, x: Row, weight: Row, mean: float, rstd: float) -> Row:
    """From the saved statistics, as the forward rounded them."""
    n = len(x)
    hats = [(v - mean) * rstd for v in x]
    g = [d * w for d, w in zip(dy, weight)]
    g_mean = divide(total(g), n)
    gh_mean = divide(total([a * h for a, h in zip(g, hats)]), n)
    return [rstd * (a - g_mean - h * gh_mean) for a, h in zip(g, hats)]


def pooled_length(length: int, kernel: int, stride: int, padding: int, ceil_mode: bool) -> int:
    """Count windows one by one: the first starts at -padding, each next one `stride` later. A
    window counts if it ends inside the padded input; with ceil_mode one more that is cut off does, as long
    as it starts before the end of the input."""
    count = 0
    while True:
        start = count * stride - padding
        if start + kernel <= length + padding:
            count += 1
        elif ceil_mode and start < length and start - stride + kernel < length + padding:
            return count + 1
        else:
            return count


def window_of(i: int, length: int, kernel: int, stride: int, padding: int,
              count_include_pad: bool) -> Tuple[int, int, int]:
    """First element, one past the last, and the divisor of window i."""
    start = i * stride - padding
    end = min(start + kernel, length + padding)
    inside = max(start, 0), min(end, length)
    return inside[0], inside[1], end - start if count_include_pad else inside[1] - inside[0]


def avg_pool(x: Row, pooled: int, kernel: int, stride: int, padding: int,
             count_include_pad: bool) -> Row:
    y = []
    for i in range(pooled):
        first, last, divisor = window_of(i, len(x), kernel, stride, padding, count_include_pad)
        y.append(total(x[first:last]) / divisor)
    return y


def avg_pool_backward(dy: Row, length: int, kernel: int, stride: int, padding: int,
                      count_include_pad: bool) -> Row:
    shares: List[List[float]] = [[] for _ in range(length)]
    for i, g in enumerate(dy):
        first, last, divisor = window_of(i, length, kernel, stride, padding, count_include_pad)
        for k in range(first, last):
            shares[k].append(g / divisor)
    return [total(s) for s in shares]
