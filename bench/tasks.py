"""The reference tasks in examples/kernelbench, forward: PyTorch's Model and the package's ModelNew.

    python3 bench/tasks.py [--device cuda] [--threads 2] [--full]

Without --full the inputs are scaled down to 256 MiB. Times are medians; every call makes its own output, as
it does in a model.
"""

import argparse
import importlib.util
import statistics
import time
from pathlib import Path
from types import ModuleType
from typing import Dict, List

import torch

EXAMPLES = Path(__file__).parents[1] / "examples" / "kernelbench"
SCALED: Dict[str, Dict[str, int]] = {
    "l1_norm": {"batch_size": 1024},
    "layer_norm": {},
    "avg_pool1d": {"batch_size": 8},
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)
    return task


def milliseconds(model: torch.nn.Module, inputs: List[torch.Tensor], rounds: int) -> float:
    times = []
    for _ in range(rounds + 2):
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        model(*inputs)
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"PyTorch {torch.__version__}, {options.device}, {options.threads} threads; milliseconds a call")
    print(f"{'task':12}{'PyTorch':>10}{'onepass':>10}{'faster':>10}  largest difference")
    for name, scale in SCALED.items():
        task = load(name)
        vars(task).update({} if options.full else scale)
        with torch.no_grad():
            model = task.Model(*task.get_init_inputs()).to(options.device)
            new = task.ModelNew(*task.get_init_inputs()).to(options.device)
            inputs = [x.to(options.device) for x in task.get_inputs()]
            apart = (model(*inputs) - new(*inputs)).abs_().max().item()
            times = [milliseconds(m, inputs, options.rounds) for m in (model, new)]
        print(f"{name:12}{times[0]:10.2f}{times[1]:10.2f}{times[0] / times[1]:9.1f}x  {apart:.1e}")


if __name__ == "__main__":
    main()
