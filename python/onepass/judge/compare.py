"""Is a result right, and to how many bits?

The right answer is the reference's in float64. An element may be off by the tolerance, of itself and of the
typical element, and by a few times the worst error that PyTorch's own float32 result has on the same
input: nobody has to be better than PyTorch where the problem itself loses digits.
"""

import math
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

import torch

__all__ = ["Comparison", "Precision", "compare", "precision_of"]

PYTORCHS = 4.0  # times PyTorch's worst error is forgiven
CHUNK = 1 << 24
EPSILON = {torch.float32: 2.0 ** -23, torch.float64: 2.0 ** -52, torch.float16: 2.0 ** -10,
           torch.bfloat16: 2.0 ** -7}
# Errors that are at least this much worse than PyTorch's, and as large as this, are no rounding of float32.
WORSE, FEWEST_BITS = 32.0, 14.0
ALIKE = 0.5  # correlation of errors from which they have the same cause


class Comparison(NamedTuple):
    passed: bool
    worst: float  # largest error
    allowed: float  # at that element
    index: int  # of that element
    got: float
    expected: float
    bad: int  # elements out of bounds
    count: int
    error: float  # root of the mean square, relative to that of the right answer
    pytorch: float  # the same of PyTorch's own result

    @property
    def bits(self) -> float:
        return -math.log2(self.error) if self.error > 0 else 64.0


def chunks(count: int) -> Sequence[Tuple[int, int]]:
    return [(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)] or [(0, 0)]


def finite_square_mean(x: torch.Tensor) -> float:
    flat, total, count = x.reshape(-1), 0.0, 0
    for start, stop in chunks(flat.numel()):
        part = flat[start:stop].double()
        squares = float((part * part).sum())
        if math.isfinite(squares):
            total, count = total + squares, count + part.numel()
            continue
        part = part[part.isfinite()]
        total, count = total + float((part * part).sum()), count + part.numel()
    return total / count if count else 0.0


def compare(result: torch.Tensor, exact: torch.Tensor, own: torch.Tensor, tolerance: float) -> Comparison:
    """All three dense, of the same shape."""
    y, right, pytorch = result.reshape(-1), exact.reshape(-1), own.reshape(-1)
    size = math.sqrt(finite_square_mean(right))
    tolerance = max(tolerance, 2.0 * EPSILON.get(result.dtype, 0.0)) if result.is_floating_point() else 0.0
    forgiven = PYTORCHS * largest_error(pytorch, right)
    worst: Tuple[float, float, int, float, float] = (0.0, 0.0, 0, 0.0, 0.0)
    ratio, bad, squares, own_squares = -1.0, 0, 0.0, 0.0
    for start, stop in chunks(y.numel()):
        a, b, c = y[start:stop].double(), right[start:stop].double(), pytorch[start:stop].double()
        error = (a - b).abs()
        allowed = tolerance * (min(1.0, size) + torch.where(b.isfinite(), b.abs(), 0.0)) + forgiven
        squares_here = float((error * error).sum())
        if math.isfinite(squares_here) and bool((error <= allowed).all()):  # nearly always
            squares += squares_here
            own_squares += finite(float(((c - b) ** 2).sum()))
            if error.numel() and float(error.max()) > worst[0]:
                worst = at(int(error.argmax()), start, error, allowed, a, b)
            continue
        good = (error <= allowed) | (a == b) | (a == c) | (a.isnan() & (b.isnan() | c.isnan()))
        bad += int((~good).sum())
        over = torch.where(good, torch.where(error.isfinite(), error / (allowed + 1e-300), 0.0),
                           torch.where(error.isfinite(), error / (allowed + 1e-300), math.inf))
        if over.numel() and float(over.max()) > ratio:
            index = int(over.argmax())
            ratio = float(over[index])
            worst = at(index, start, error, allowed, a, b)
        known = b.isfinite() & c.isfinite() & a.isfinite()
        squares += float((error[known] ** 2).sum())
        own_squares += float(((c - b)[known] ** 2).sum())
    count = max(1, y.numel())
    scale = size or 1.0
    return Comparison(bad == 0, *worst, bad, y.numel(), math.sqrt(squares / count) / scale,
                      math.sqrt(own_squares / count) / scale)


def at(index: int, start: int, error: torch.Tensor, allowed: torch.Tensor, got: torch.Tensor,
       expected: torch.Tensor) -> Tuple[float, float, int, float, float]:
    return (float(error[index]), float(allowed[index]), start + index, float(got[index]),
            float(expected[index]))


def finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def largest_error(own: torch.Tensor, exact: torch.Tensor) -> float:
    worst = 0.0
    for start, stop in chunks(own.numel()):
        error = (own[start:stop].double() - exact[start:stop].double()).abs()
        largest = float(error.max()) if error.numel() else 0.0
        if not math.isfinite(largest):
            error = error[error.isfinite()]
            largest = float(error.max()) if error.numel() else 0.0
        worst = max(worst, largest)
    return worst


class Precision(NamedTuple):
    """What a result was computed in, if that is less than it is returned in."""
    kind: str  # such as "inputs rounded to bf16", or "fewer bits" where the errors are nobody's
    correlation: float


def precision_of(result: torch.Tensor, exact: torch.Tensor, compared: Comparison,
                 rounded_inputs: Dict[str, torch.Tensor]) -> Optional[Precision]:
    """Errors have a pattern: those of rounded inputs or of a rounded result are the same numbers whoever
    rounds."""
    if result.dtype != torch.float32 or compared.error <= 8.0 * max(compared.pytorch, 2.0 ** -25):
        return None
    flat, right = result.reshape(-1)[:CHUNK].double(), exact.reshape(-1)[:CHUNK].double()
    error = flat - right
    suspects = {f"inputs rounded to {name}": y.reshape(-1)[:CHUNK].double() - right
                for name, y in rounded_inputs.items()}
    single = right.float()
    suspects["result rounded to bf16"] = single.bfloat16().double() - right
    suspects["result rounded to fp16"] = single.half().double() - right
    found = max(((correlation(error, suspect), name) for name, suspect in suspects.items()),
                default=(0.0, ""))
    if found[0] >= ALIKE:
        return Precision(found[1], found[0])
    if compared.error > WORSE * compared.pytorch and compared.bits < FEWEST_BITS:
        return Precision("fewer bits", 0.0)
    return None


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    known = a.isfinite() & b.isfinite()
    a, b = a[known], b[known]
    scale = float(a.norm()) * float(b.norm())
    return float((a * b).sum()) / scale if scale > 0 else 0.0
