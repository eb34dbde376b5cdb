"""Medians, and how well they are known."""

import math
import statistics
from typing import Dict, NamedTuple, Sequence

__all__ = ["Estimate", "estimate"]


class Estimate(NamedTuple):
    """A median with an interval that has it inside in 95 of 100 cases, whatever the distribution."""
    median: float
    low: float
    high: float
    count: int

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(self.median * factor, self.low * factor, self.high * factor, self.count)

    def straddles(self, threshold: float) -> bool:
        return self.low < threshold < self.high

    def rounded(self, digits: int = 6) -> Dict[str, float]:
        return {"median": shorten(self.median, digits), "low": shorten(self.low, digits),
                "high": shorten(self.high, digits), "count": self.count}


def shorten(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else value


def estimate(values: Sequence[float]) -> Estimate:
    """The interval is between two order statistics: the median is below the k-th smallest of n with the
    probability that fewer than k of n fair coins show heads. Of fewer than six values it is all of them."""
    ordered = sorted(values)
    count = len(ordered)
    rank, tail = 0, 0.0
    while rank < (count - 1) // 2:
        tail += math.comb(count, rank) / 2.0 ** count
        if tail > 0.025:
            break
        rank += 1
    rank = max(0, rank - 1)
    return Estimate(statistics.median(ordered), ordered[rank], ordered[count - 1 - rank], count)
