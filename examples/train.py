"""Trains a small transformer twice, with torch.nn's modules and patched with onepass's.

Both start from the same weights and see the same data: series of numbers that are one of a few noisy
waves, to be told apart. The losses are the same up to rounding; the times are printed.

    python3 examples/train.py [--device cuda] [--steps 50] [--width 768] ...
"""

import argparse
import copy
import time
from typing import List, Tuple

import onepass
import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, num_heads=width // 64 or 1, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class WaveClassifier(nn.Module):
    """A series is smoothed, cut into patches, and passed through transformer blocks."""

    def __init__(self, width: int, depth: int, patch: int, classes: int) -> None:
        super().__init__()
        self.smooth = nn.AvgPool1d(8, stride=1, padding=4)
        self.embed = nn.Conv1d(1, width, kernel_size=patch, stride=patch)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, series: Tensor) -> Tensor:
        patches = self.embed(self.smooth(series)).transpose(1, 2)
        return self.head(self.norm(self.blocks(patches)).mean(dim=1))


def waves(count: int, length: int, classes: int, device: str) -> Tuple[Tensor, Tensor]:
    labels = torch.randint(classes, (count,), device=device)
    phase = 6.3 * torch.rand(count, 1, device=device)
    time_axis = torch.linspace(0, 50, length, device=device)
    clean = torch.sin(time_axis * (1 + labels[:, None]) + phase)
    return (clean + 0.5 * torch.randn(count, length, device=device))[:, None], labels


def train(model: nn.Module, series: Tensor, labels: Tensor, steps: int) -> Tuple[List[float], float]:
    """The loss of every step, and the seconds that all but the first took."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, start = [], 0.0
    for step in range(steps):
        if step == 1:
            start = now(series)
        loss = nn.functional.cross_entropy(model(series), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    seconds = now(series) - start
    return [loss.item() for loss in losses], seconds


def now(tensor: Tensor) -> float:
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    options = parser.parse_args()

    torch.manual_seed(0)
    series, labels = waves(options.batch, options.length, 4, options.device)
    model = WaveClassifier(options.width, options.depth, patch=32, classes=4).to(options.device)
    patched = copy.deepcopy(model)
    print(onepass.patch(patched))

    losses, seconds = train(model, series, labels, options.steps)
    patched_losses, patched_seconds = train(patched, series, labels, options.steps)
    steps = max(1, options.steps - 1)
    print(f"torch.nn: {1e3 * seconds / steps:8.2f} ms a step, loss {losses[0]:.5f} to {losses[-1]:.5f}")
    print(f"patched:  {1e3 * patched_seconds / steps:8.2f} ms a step, "
          f"loss {patched_losses[0]:.5f} to {patched_losses[-1]:.5f}")
    for step, (loss, patched_loss) in enumerate(zip(losses, patched_losses)):
        if abs(loss - patched_loss) > 1e-3 * abs(loss):
            raise SystemExit(f"the losses differ from step {step} on: {loss} and {patched_loss}")
    print("the losses are the same up to rounding")


if __name__ == "__main__":
    main()
