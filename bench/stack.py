"""A ViT-B-like stack of blocks, forward and backward, with torch.nn's norms and patched with onepass's.

    python3 bench/stack.py [--device cuda] [--batch 64] [--depth 12]

Two comparisons in one run: the norms alone, as many as the stack has, one after the other on inputs of
their own; and the whole stack. On a GPU times are those between events, on a CPU those of the clock; medians of
rounds that the two models take in turn.
"""

import argparse
import copy
import statistics
import time
from typing import Callable, Dict, List

import onepass
import torch
from torch import Tensor, nn

TOKENS, WIDTH, HEADS = 197, 768, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def attend(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Stack(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(depth)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(x))


def whole_stack(model: nn.Module, inputs: List[Tensor], grad: Tensor) -> None:
    model(inputs[0]).backward(grad)


def norms_alone(model: nn.Module, inputs: List[Tensor], grad: Tensor) -> None:
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    outputs = [norm(inputs[i % len(inputs)]) for i, norm in enumerate(norms)]
    torch.autograd.backward(outputs, [grad] * len(outputs))


def milliseconds(work: Callable[[], None], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def compare(models: Dict[str, nn.Module], run: Callable[..., None], inputs: List[Tensor], grad: Tensor,
            rounds: int) -> Dict[str, float]:
    times: Dict[str, List[float]] = {name: [] for name in models}
    for _ in range(rounds + 3):
        for name, model in models.items():
            model.zero_grad(set_to_none=True)
            for x in inputs:
                x.grad = None
            times[name].append(milliseconds(lambda: run(model, inputs, grad), grad.device.type))
    return {name: statistics.median(values[3:]) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.manual_seed(0)
    original = Stack(options.depth).to(options.device, torch.bfloat16)
    patched = copy.deepcopy(original)
    onepass.patch(patched)
    models = {"PyTorch": original, "onepass": patched}
    shape = (options.batch, TOKENS, WIDTH)
    inputs = [torch.randn(shape, device=options.device, dtype=torch.bfloat16, requires_grad=True)
              for _ in range(4)]
    grad = torch.randn(shape, device=options.device, dtype=torch.bfloat16)
    with torch.no_grad():
        apart = (original(inputs[0]) - patched(inputs[0])).abs().max().item()
    print(f"PyTorch {torch.__version__}, {options.device}; {options.depth} blocks, {shape}, bf16, "
          f"forward and backward, ms; outputs differ by {apart:.1e} at most")
    print(f"{'':14}{'PyTorch':>10}{'onepass':>10}{'faster':>9}")
    for name, run in (("norms alone", norms_alone), ("whole stack", whole_stack)):
        times = compare(models, run, inputs, grad, options.rounds)
        print(f"{name:14}{times['PyTorch']:10.3f}{times['onepass']:10.3f}"
              f"{times['PyTorch'] / times['onepass']:8.2f}x")


if __name__ == "__main__":
    main()
