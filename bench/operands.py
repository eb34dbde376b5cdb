"""The tensors of a case, what PyTorch computes from them, and the comparison in float64."""

import math
import random
from typing import Callable, List, Optional, Sequence

import torch
import torch.nn.functional as F

from cases import Case
from onepass_torch import EPS, Call, Tensors

__all__ = ["DTYPES", "OUTPUTS", "TOLERANCE", "backward_tensors", "difference", "exact",
           "forward_tensors", "gradients", "partial_difference", "random_inputs", "torch_function"]

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"f32": 5e-4, "bf16": 8e-3}  # of the largest value, or of 1 if that is larger
OUTPUTS = {"fwd": ("y", "mean", "rstd"), "bwd": ("dx", "dweight", "dbias")}

Function = Callable[..., torch.Tensor]


# ---- Tensors by their part in a call -------------------------------------------------------------


def random_inputs(case: Case, dtype: torch.dtype, device: str = "cpu") -> Tensors:
    x = torch.randn(case.shape, device=device)
    x += 0.1 * x.sign()  # near 0 the gradient of l1_norm is a difference of huge numbers
    tensors = {"x": x.to(dtype)}
    if case.op == "layer_norm":
        normalized = case.shape[case.axis:]
        tensors["weight"] = torch.randn(normalized, dtype=dtype, device=device)
        tensors["bias"] = torch.randn(normalized, dtype=dtype, device=device)
    return tensors


def forward_tensors(case: Case, inputs: Tensors) -> Tensors:
    x = inputs["x"]
    if case.op == "layer_norm":
        kept = case.shape[:case.axis] or (1,)
        saved = {role: x.new_empty(kept, dtype=torch.float32) for role in ("mean", "rstd")}
        return {**inputs, "y": torch.empty_like(x), **saved}
    if case.op == "l1_norm":
        return {**inputs, "y": torch.empty_like(x)}
    pooled = (case.shape[-1] + 2 * case.padding - case.kernel) // case.stride + 1
    return {**inputs, "y": x.new_empty((*case.shape[:-1], pooled))}


def backward_tensors(case: Case, forward: Tensors) -> Tensors:
    tensors = {"dy": torch.randn_like(forward["y"]), "dx": torch.empty_like(forward["x"])}
    if case.op != "avg_pool1d":
        tensors["x"] = forward["x"]
    if case.op == "layer_norm":
        tensors.update({role: forward[role] for role in ("weight", "mean", "rstd")})
        tensors.update({"dweight": torch.empty_like(forward["weight"]),
                        "dbias": torch.empty_like(forward["bias"])})
    return tensors


# ---- PyTorch -------------------------------------------------------------------------------------


def torch_function(case: Case) -> Function:
    """The operator as users of PyTorch write it: of x and, for layer_norm, weight and bias."""
    if case.op == "l1_norm":
        axis = case.axis
        return lambda x: x / x.abs().mean(dim=axis, keepdim=True)
    if case.op == "layer_norm":
        return lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, EPS)
    kernel, stride, padding = case.kernel, case.stride, case.padding
    return lambda x: F.avg_pool1d(x, kernel, stride, padding)


def gradients(function: Function, inputs: Tensors, dy: torch.Tensor) -> Call:
    """A call that gives the gradients in the order of OUTPUTS, and runs nothing but the backward
    pass: the forward pass has been here, and its graph is kept."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs.values()]
    y = function(*leaves)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


# ---- In float64 ----------------------------------------------------------------------------------


def exact(case: Case, inputs: Tensors, dy: Optional[torch.Tensor]) -> Sequence[torch.Tensor]:
    """What PyTorch gives in float64: y or, with dy, the gradients."""
    wide = {role: tensor.double() for role, tensor in inputs.items()}
    function = torch_function(case)
    return [function(*wide.values())] if dy is None else gradients(function, wide, dy.double())()


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest value, or over 1 if that is smaller."""
    worst, largest = 0.0, 1.0
    for a, b in zip(actual.flatten().split(1 << 22), expected.flatten().split(1 << 22)):
        wide = b.double()
        apart = (a.double() - wide).abs().max().item()
        worst = max(worst, apart if math.isfinite(apart) else math.inf)
        largest = max(largest, wide.abs().max().item())
    return worst / largest


def some_of(count: int) -> List[int]:
    """The first, the last and a few others."""
    inside = random.sample(range(count), min(count, 4))
    return sorted({0, min(1, count - 1), max(0, count - 2), count - 1, *inside})


def partial_difference(case: Case, inputs: Tensors, tensors: Tensors) -> float:
    """How far the outputs among `tensors` are from float64, for some of the rows (with sums over
    all rows, some of the columns). For l1_norm the axis must be the last."""
    count = math.prod(case.shape[:case.axis])
    rows = some_of(count)
    part = {role: tensor.reshape(count, -1)[rows] if role == "x" else tensor.flatten()
            for role, tensor in inputs.items()}
    dy = tensors["dy"].reshape(count, -1)[rows] if "dy" in tensors else None
    small = case._replace(shape=tuple(part["x"].shape), axis=-1)
    result = tensors["y" if dy is None else "dx"].reshape(count, -1)[rows]
    worst = difference(result, exact(small, part, dy)[0])
    if case.op == "layer_norm":
        saved = statistics_difference(part["x"], tensors, rows)
        worst = max(worst, saved if dy is None else sums_difference(tensors, count))
    return worst


def statistics_difference(x: torch.Tensor, tensors: Tensors, rows: List[int]) -> float:
    wide = x.double()
    variance = wide.var(dim=-1, unbiased=False)
    return max(difference(tensors["mean"].flatten()[rows], wide.mean(dim=-1)),
               difference(tensors["rstd"].flatten()[rows], (variance + EPS).rsqrt()))


def sums_difference(tensors: Tensors, count: int) -> float:
    """Of dweight and dbias, from the saved mean and rstd."""
    columns = some_of(tensors["weight"].numel())
    x, dy = (tensors[role].reshape(count, -1)[:, columns].double() for role in ("x", "dy"))
    mean, rstd = (tensors[role].double().reshape(count, 1) for role in ("mean", "rstd"))
    dweight, dbias = (tensors[role].flatten()[columns] for role in ("dweight", "dbias"))
    return max(difference(dweight, (dy * (x - mean) * rstd).sum(dim=0)),
               difference(dbias, dy.sum(dim=0)))
