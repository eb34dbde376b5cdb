"""What onepass is compared with on a GPU: PyTorch eager, torch.compile, Liger and a copy."""

from functools import partial
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch._dynamo
import torch._functorch.config

from cases import Case, Point
from onepass_torch import EPS, Call, Tensors
from operands import DTYPES, Function, forward_tensors, gradients, random_inputs, torch_function

__all__ = ["Compiler", "Operands", "calls_of", "copy_calls", "eager_calls", "liger_function",
           "package_function"]

# What torch.compile sees first, and tunes for, when it compiles for any shape.
HINT = {"l1_norm": (2000, 2000), "layer_norm": (2000, 2000), "avg_pool1d": (1, 2000, 2000)}


class Operands(NamedTuple):
    """The tensors of one call: what the operator is given, and all of them by their part."""
    inputs: Tensors
    tensors: Tensors


def calls_of(function: Function, direction: str, operands: Sequence[Operands]) -> List[Call]:
    """Forward, or the backward pass alone."""
    if direction == "fwd":
        return [partial(function, *one.inputs.values()) for one in operands]
    return [gradients(function, one.inputs, one.tensors["dy"]) for one in operands]


def eager_calls(point: Point, operands: Sequence[Operands]) -> List[Call]:
    if point.case.op == "layer_norm" and point.direction == "bwd":
        return [layer_norm_backward(point.case, one) for one in operands]
    return calls_of(torch_function(point.case), point.direction, operands)


def layer_norm_backward(case: Case, operands: Operands) -> Call:
    """PyTorch's own backward operator, without autograd around it."""
    t = operands.tensors
    normalized = list(t["weight"].shape)
    saved = tuple(t["x"].shape[:case.axis]) + (1,) * len(normalized)
    return partial(torch.ops.aten.native_layer_norm_backward, t["dy"], t["x"], normalized,
                   t["mean"].view(saved), t["rstd"].view(saved), t["weight"],
                   operands.inputs["bias"], [True, True, True])


def copy_calls(byte_count: int, count: int) -> List[Call]:
    """Copies that read and write `byte_count` bytes in all, or hardly more: in a graph, one whose size is not
    at most 65535 times a power of two runs at two thirds of the speed."""
    unit = 512
    while byte_count // 2 > 32768 * unit:
        unit *= 2
    half = -(-byte_count // (2 * unit)) * unit
    calls: List[Call] = []
    for _ in range(count):
        source = torch.randn(half // 4, device="cuda")
        calls.append(partial(torch.empty_like(source).copy_, source))
    return calls


def package_function(case: Case) -> Function:
    """onepass as users of its Python package call it; modules call the same."""
    from onepass import functional  # which nothing else here needs

    if case.op == "l1_norm":
        return partial(functional.l1_norm, dim=case.axis)
    if case.op == "layer_norm":
        return lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias, EPS)
    return lambda x: functional.avg_pool1d(x, case.kernel, case.stride, case.padding)


class Compiler:
    """torch.compile in its default mode, for one shape or for any."""

    def __init__(self) -> None:
        self.functions: Dict[Tuple[Case, str, str], Function] = {}
        # Compiled backward passes would otherwise refuse to run twice on the same graph.
        configure(torch._functorch.config, False, "donated_buffer")
        # Windows are constants to it, as they are in a module; only sizes vary.
        configure(torch._dynamo.config, True, "specialize_int")
        configure(torch._dynamo.config, True, "specialize_float")
        # Past its limits it would go on with eager's kernels and say nothing.
        configure(torch._dynamo.config, 1024, "recompile_limit", "cache_size_limit")
        configure(torch._dynamo.config, 1024, "accumulated_recompile_limit",
                  "accumulated_cache_size_limit")
        configure(torch._dynamo.config, True, "fail_on_recompile_limit_hit")

    def for_this_shape(self, point: Point) -> Function:
        torch._dynamo.reset()
        return torch.compile(torch_function(point.case), dynamic=False)

    def for_any_shape(self, point: Point) -> Function:
        """Compiled once for an operator, type, direction and window (and by PyTorch itself again
        where a size is 1)."""
        key = (point.case._replace(shape=()), point.dtype, point.direction)
        if key not in self.functions:
            function = torch.compile(torch_function(point.case), dynamic=True)
            hint = point.case._replace(shape=HINT[point.case.op])
            inputs = random_inputs(hint, DTYPES[point.dtype], "cuda")
            dy = torch.randn_like(forward_tensors(hint, inputs)["y"])
            calls_of(function, point.direction, [Operands(inputs, {"dy": dy})])[0]()
            self.functions[key] = function
        return self.functions[key]


def configure(settings: Any, value: Any, *names: str) -> None:
    """Sets the first of the names that this version of PyTorch knows, if any."""
    for name in names:
        if hasattr(settings, name):
            setattr(settings, name, value)
            return


def liger_function() -> Optional[Function]:
    """Liger's layer norm, where it can be imported."""
    try:
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    except ImportError:
        return None

    def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, weight.numel())
        y = LigerLayerNormFunction.apply(rows, weight.flatten(), bias.flatten(), EPS)
        return y.view_as(x)

    return layer_norm
