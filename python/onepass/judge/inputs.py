"""Inputs that are like the reference's own, and inputs that kernels find hard.

All are made in the reference's process from a seed, so that they can be made again after a candidate had
them: what it may have done to its copy does not matter.
"""

from typing import Callable, Dict, Sequence

import torch

__all__ = ["ADVERSARIAL", "NON_FINITE", "change", "round_to_tf32"]


def scale_of(x: torch.Tensor, large: float) -> float:
    """Large factors that the type can take."""
    return {torch.float16: min(large, 64.0)}.get(x.dtype, large)


def with_zeros(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x * (torch.rand(x.shape, generator=generator, device=x.device) < 0.5)


def constant(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.full_like(x, 0.7)


def with_one(value: float) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    def put(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return put_at_random(x, value, generator)
    return put


def put_at_random(x: torch.Tensor, value: float, generator: torch.Generator) -> torch.Tensor:
    changed = x.clone()
    where = torch.randint(max(1, x.numel()), (1,), generator=generator, device=x.device)
    if x.numel():
        changed.view(-1)[where] = value
    return changed


Change = Callable[[torch.Tensor, torch.Generator], torch.Tensor]

ADVERSARIAL: Dict[str, Change] = {
    "large offset": lambda x, g: x + scale_of(x, 1000.0),
    "tiny": lambda x, g: x / scale_of(x, 1e6),
    "huge": lambda x, g: x * scale_of(x, 1e6),
    "negative": lambda x, g: -x.abs(),
    "constant": constant,
    "with zeros": with_zeros,
}
NON_FINITE: Dict[str, Change] = {
    "with a NaN": with_one(float("nan")),
    "with an Inf": with_one(float("inf")),
}
# The same values but for one element: who looks at a few of them only, to know an input again, does not see
# it.
ONE_CHANGED = "one element changed"


def change(kind: str, inputs: Sequence[torch.Tensor], seed: int) -> Sequence[torch.Tensor]:
    """The inputs as that kind has them. Integers stay as they are."""
    every: Dict[str, Change] = {**ADVERSARIAL, **NON_FINITE}
    if kind == "fresh":
        return inputs
    if kind == ONE_CHANGED:
        every[kind] = lambda x, g: put_at_random(x, 3.0 * float(x.abs().max()) + 1.0, g)
    changed = []
    for x in inputs:
        generator = torch.Generator(device=x.device)
        generator.manual_seed(seed)
        changed.append(every[kind](x, generator) if x.is_floating_point() else x)
    return changed


def round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """To the ten bits after the point that tensor cores keep."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & -0x2000).view(torch.float32)
