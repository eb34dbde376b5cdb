"""A ViT-B-like stack of blocks, forward and backward, with torch.nn's norms and patched with onepass's.

    python3 bench/stack.py [--device cuda] [--batch 64] [--depth 12]

Two comparisons in one run: the norms alone, as many as the stack has, each on an input of its own; and the
whole stack. On a GPU both are recorded in CUDA graphs, and what is timed is the GPU's work, between events
around several replays. Launched one by one, as they are, too, the norms take the host longer than the GPU.
On a CPU it is the clock's time. Medians of rounds that the two models take in turn.
"""

import argparse
import copy
from functools import partial
from typing import Dict, List, Sequence

import onepass
import torch
from torch import Tensor, nn

from model_timing import REPLAYS, Work, compare, print_head, print_row, recorded

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


def whole_stack(model: nn.Module, inputs: List[Tensor], grad: Tensor) -> Sequence[Tensor]:
    return torch.autograd.grad(model(inputs[0]), [inputs[0], *model.parameters()], grad)


def norms_alone(model: nn.Module, inputs: List[Tensor], grad: Tensor) -> Sequence[Tensor]:
    """Gradients are given out and not added up: nothing but the norms runs."""
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    outputs = [norm(x) for norm, x in zip(norms, inputs)]
    wanted = [*inputs, *(parameter for norm in norms for parameter in norm.parameters())]
    return torch.autograd.grad(outputs, wanted, [grad] * len(outputs))


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
              for _ in range(2 * options.depth + 1)]
    grad = torch.randn(shape, device=options.device, dtype=torch.bfloat16)
    with torch.no_grad():
        apart = (original(inputs[0]) - patched(inputs[0])).abs().max().item()
    print(f"PyTorch {torch.__version__}, {options.device}; {options.depth} blocks, {shape}, bf16, "
          f"forward and backward, ms; outputs differ by {apart:.1e} at most")
    print_head("PyTorch", "onepass", "faster")
    device = grad.device.type
    tasks = {"norms alone": norms_alone, "whole stack": whole_stack}
    works: Dict[str, Dict[str, Work]] = {
        task: {name: partial(run, model, inputs, grad) for name, model in models.items()}
        for task, run in tasks.items()}
    for task, both in works.items():
        name = task if device == "cpu" else f"{task}, launched one by one"
        print_row(name, compare(both, device, 1, options.rounds))
    if device == "cuda":
        for task, both in works.items():
            graphs = {name: recorded(work) for name, work in both.items()}
            print_row(task, compare(graphs, device, REPLAYS, options.rounds))
            del graphs  # and the memory that is theirs alone


if __name__ == "__main__":
    main()
