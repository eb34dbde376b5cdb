"""The host time of one call on a small tensor, of onepass's operators and of PyTorch's own.

    python3 bench/host_cost.py [--device cuda] [--calls 5000]

Calls follow each other without waiting for the device: on a GPU this is the time until the work is queued.
The two take turns, and the quickest of several rounds counts, as whatever else the machine does only adds to
it. `grad` calls record what a gradient needs.
"""

import argparse
import math
import time
from typing import Callable, Dict, List, Sequence, Tuple

import onepass
import torch

ROUNDS = 15


def l1_norm_of_torch(x: torch.Tensor) -> torch.Tensor:
    return x / torch.mean(torch.abs(x), dim=1, keepdim=True)


def microseconds(operators: Sequence[Callable[..., object]], x: torch.Tensor, calls: int) -> List[float]:
    best = [math.inf] * len(operators)
    for _ in range(ROUNDS):
        for i, operator in enumerate(operators):
            if x.is_cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                operator(x)
            best[i] = min(best[i], (time.perf_counter() - start) / calls)
    return [1e6 * seconds for seconds in best]


def pairs(device: str) -> Dict[str, Tuple[torch.Tensor, Callable[..., object], Callable[..., object]]]:
    """Input, PyTorch's and ours; each has 256 elements."""
    x = torch.randn(4, 64, device=device)
    lines = torch.randn(2, 2, 64, device=device)
    weight, bias = torch.ones(64, device=device), torch.zeros(64, device=device)
    modules = [nn.LayerNorm(64).to(device) for nn in (torch.nn, onepass.nn)]
    rms_norms = [getattr(nn, "RMSNorm", onepass.nn.RMSNorm)(64).to(device)  # 2.4 has it first
                 for nn in (torch.nn, onepass.nn)]
    batch_norms = [nn.BatchNorm1d(2).to(device) for nn in (torch.nn, onepass.nn)]
    return {
        "functional.layer_norm": (
            x, lambda x: torch.nn.functional.layer_norm(x, (64,), weight, bias),
            lambda x: onepass.functional.layer_norm(x, (64,), weight, bias)),
        "nn.LayerNorm": (x, modules[0], modules[1]),
        "functional.avg_pool1d": (
            lines, lambda x: torch.nn.functional.avg_pool1d(x, 8, 1, 4),
            lambda x: onepass.functional.avg_pool1d(x, 8, 1, 4)),
        "functional.l1_norm": (x, l1_norm_of_torch, onepass.functional.l1_norm),
        "nn.RMSNorm": (x, rms_norms[0], rms_norms[1]),
        "functional.group_norm": (
            lines, lambda x: torch.nn.functional.group_norm(x, 2),
            lambda x: onepass.functional.group_norm(x, 2)),
        "nn.BatchNorm1d": (lines, batch_norms[0], batch_norms[1]),
        "functional.normalize": (x, torch.nn.functional.normalize, onepass.functional.normalize),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--calls", type=int, default=5000, help="in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, {options.device}; microseconds a call, {options.calls} calls")
    print(f"{'':24}{'mode':>8}{'PyTorch':>10}{'onepass':>10}{'faster':>10}")
    for name, (x, theirs, ours) in pairs(options.device).items():
        for mode in ("no_grad", "grad"):
            given = x.clone().requires_grad_(mode == "grad")
            with torch.set_grad_enabled(mode == "grad"):
                times = microseconds((theirs, ours), given, options.calls)
            print(f"{name:24}{mode:>8}{times[0]:10.2f}{times[1]:10.2f}{times[0] / times[1]:9.2f}x")


if __name__ == "__main__":
    main()
