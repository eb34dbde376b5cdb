"""What every member of the normalization family should give, in float64, one row at a time.

A row is a list of float. The operators differ in what is subtracted from a row and what it is divided by; all
the rest (weights, residual, activation) is done by the caller, element by element.
"""

import math
from typing import NamedTuple

from oracle import Row, divide, total

__all__ = ["ACTIVATIONS", "CURVATURE", "Statistic", "activate", "denominator", "slope", "statistic",
           "unbiased"]

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")
CURVATURE = {"none": 0.0, "relu": 0.0, "gelu": 0.8, "gelu_tanh": 0.9, "silu": 0.5}  # at most


class Statistic(NamedTuple):
    mean: float  # what is subtracted
    variance: float  # about it, counted with n
    rstd: float  # what is multiplied with


def root(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def denominator(norm: float, eps: float, clamp: bool) -> float:
    if not clamp:
        return norm + eps
    return norm if not norm < eps else eps  # a NaN stays one


def statistic(op: str, x: Row, eps: float, clamp: bool = False, by_mean: bool = True) -> Statistic:
    n = len(x)
    if op == "l1_norm":
        norm = total([abs(v) for v in x])
        return Statistic(0.0, 0.0, divide(1.0, denominator(norm / n if by_mean else norm, eps, clamp)))
    mean = 0.0 if op in ("l2_norm", "rms_norm") else divide(total(x), n)
    squares = total([(v - mean) * (v - mean) for v in x])
    if op == "l2_norm":
        return Statistic(0.0, squares / n, divide(1.0, denominator(root(squares), eps, clamp)))
    variance = squares / n
    return Statistic(mean, variance, divide(1.0, root(variance + eps)))


def unbiased(s: Statistic, n: int) -> float:
    return divide(s.variance * n, n - 1.0)


def activate(name: str, x: float) -> float:
    if name == "none" or math.isnan(x):
        return x
    if name == "relu":
        return max(x, 0.0)
    if name == "gelu":
        return x * 0.5 * math.erfc(-x / math.sqrt(2))
    if name == "gelu_tanh":
        u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return x * logistic(2 * u)  # 0.5 (1 + tanh(u))
    return x * logistic(x)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def slope(name: str, x: float) -> float:
    """The derivative, by the product rule, of what `activate` computes."""
    if name == "none" or math.isnan(x):
        return 1.0 if name == "none" else x
    if name == "relu":
        return float(x > 0)
    if name == "gelu":
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return 0.5 * math.erfc(-x / math.sqrt(2)) + x * density
    if name == "gelu_tanh":
        by = math.sqrt(2 / math.pi)
        s = logistic(2 * by * (x + 0.044715 * x**3))
        return s + x * 2 * s * (1 - s) * by * (1 + 3 * 0.044715 * x * x)
    s = logistic(x)
    return s + x * s * (1 - s)
