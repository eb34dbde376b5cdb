"""Models of timm and transformers, as they are and patched with onepass: what changes, and what it takes.

    python3 bench/models.py [--device cuda] [--small] [--json FILE] [NAME ...]

ResNet-50 and ConvNeXt-T of timm and a Llama of transformers, with random weights. For each: how many modules
are replaced; how far outputs and gradients are apart, relative to the largest value, and how far both are
from the same model in a wider type; and the times of a forward pass in evaluation and of a training step's
forward and backward pass. On a GPU these are launched one by one and, where that works, recorded in CUDA
graphs. On a CPU it is the clock's time; --small makes sizes that are meant for it. A model whose package is
not there is skipped.
"""

import argparse
import copy
import importlib
import json
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import onepass
import torch
from torch import Tensor, nn

from model_timing import REPLAYS, Work, compare, print_head, print_row, recorded

AGREEMENT_BATCH = 8  # of images: enough to see, and in float64 soon done


class Task(NamedTuple):
    name: str
    package: str
    make: Callable[[Any, bool], nn.Module]  # of the package, and whether it is to be small
    inputs: Callable[[bool], Tensor]
    dtype: torch.dtype = torch.float32  # of the weights
    autocast: Optional[torch.dtype] = None
    channels_last: bool = False

    def wide(self) -> torch.dtype:
        """The type that errors are seen in."""
        return torch.float64 if (self.autocast or self.dtype) == torch.float32 else torch.float32


# ---- Models -------------------------------------------------------------------------------------


def image_model(name: str, timm: Any, small: bool) -> nn.Module:
    del small  # images are
    return timm.create_model(name, pretrained=False)


def images(small: bool) -> Tensor:
    return torch.randn((2, 3, 64, 64) if small else (64, 3, 224, 224))


class LastHidden(nn.Module):
    """A transformer that returns a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, use_cache=False).last_hidden_state


def llama(transformers: Any, small: bool) -> nn.Module:
    hidden, layers, heads, inner = (64, 2, 2, 128) if small else (2048, 8, 16, 5632)
    config = transformers.LlamaConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
        intermediate_size=inner, vocab_size=1000 if small else 32000)
    return LastHidden(transformers.LlamaModel(config))


def tokens(small: bool) -> Tensor:
    return torch.randint(3, 1000, (2, 32) if small else (4, 1024))


RESNET, CONVNEXT = partial(image_model, "resnet50"), partial(image_model, "convnext_tiny")
TASKS = [
    Task("resnet50, f32", "timm", RESNET, images),
    Task("resnet50, bf16 autocast, channels last", "timm", RESNET, images, autocast=torch.bfloat16,
         channels_last=True),
    Task("convnext_tiny, f32", "timm", CONVNEXT, images),
    Task("convnext_tiny, bf16 autocast", "timm", CONVNEXT, images, autocast=torch.bfloat16),
    Task("llama, bf16", "transformers", llama, tokens, torch.bfloat16),
]


def randomize_scales(model: nn.Module) -> None:
    """New models have ones, or where a branch begins with nothing, zeros: those hide what is done to them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and not name.endswith("bias"):
                parameter.normal_(1.0, 0.2)


# ---- What is done with them ---------------------------------------------------------------------


def run(task: Task, model: nn.Module, x: Tensor) -> Tensor:
    if task.autocast is None or x.dtype == torch.float64:
        return model(x)
    # A cache of cast weights would not outlive the recording of a graph.
    with torch.autocast(x.device.type, task.autocast, cache_enabled=False):
        return model(x)


def forward(task: Task, model: nn.Module, x: Tensor, grad: Tensor) -> Sequence[Tensor]:
    with torch.no_grad():
        return [run(task, model, x)]


def forward_and_backward(task: Task, model: nn.Module, x: Tensor, grad: Tensor) -> Sequence[Tensor]:
    y = run(task, model, x)
    return [y.detach(), *torch.autograd.grad(y, list(model.parameters()), grad.to(y))]


# ---- Agreement ----------------------------------------------------------------------------------


def distance(some: Sequence[Tensor], others: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest one, relative to the largest value."""
    apart = max((a.to(e.dtype) - b.to(e.dtype)).abs().max().item() for a, b, e in zip(some, others, exact))
    return apart / max(e.abs().max().item() for e in exact)


def agreement(
    task: Task, models: Dict[str, nn.Module], x: Tensor, grad: Tensor
) -> Dict[str, Dict[str, float]]:
    """For each result, how far the two are apart, and the errors of both."""
    wide, x, grad = task.wide(), x[:AGREEMENT_BATCH], grad[:AGREEMENT_BATCH]
    runs = {name: (task, copy.deepcopy(model), x) for name, model in models.items()}  # statistics move on
    runs["exact"] = (task._replace(autocast=None), copy.deepcopy(models["PyTorch"]).to(wide),
                     x.to(wide) if x.is_floating_point() else x)
    results: Dict[str, Dict[str, Sequence[Tensor]]] = {
        what: {} for what in ("output, training", "gradients", "output, evaluation")}
    for name, (how, model, given) in runs.items():
        output, *gradients = forward_and_backward(how, model.train(), given, grad)
        results["output, training"][name], results["gradients"][name] = [output], gradients
        results["output, evaluation"][name] = forward(how, model.eval(), given, grad)
    return {what: {"apart": distance(of["onepass"], of["PyTorch"], of["exact"]),
                   "PyTorch": distance(of["PyTorch"], of["exact"], of["exact"]),
                   "onepass": distance(of["onepass"], of["exact"], of["exact"])}
            for what, of in results.items()}


# ---- Times --------------------------------------------------------------------------------------


def times(
    task: Task, models: Dict[str, nn.Module], x: Tensor, grad: Tensor, rounds: int
) -> Dict[str, Dict[str, Any]]:
    device = x.device.type
    result: Dict[str, Dict[str, Any]] = {}
    for in_graphs in (False, True) if device == "cuda" else (False,):
        for what, work in (("forward, evaluation", forward), ("forward and backward", forward_and_backward)):
            both: Dict[str, Work] = {
                name: partial(work, task, model.train(work is forward_and_backward), x, grad)
                for name, model in models.items()}
            name = what if in_graphs or device == "cpu" else f"{what}, launched one by one"
            try:
                if in_graphs:
                    both = {name: recorded(work) for name, work in both.items()}
            except RuntimeError as error:
                result[name] = {"not recorded": str(error).splitlines()[0]}
                print(f"  {name}: not recorded, {result[name]['not recorded']}", flush=True)
                continue
            result[name] = compare(both, device, REPLAYS if in_graphs else 1, rounds)
            print_row(f"  {name}", result[name])
            del both  # and the memory that is theirs alone
    return result


def measure(task: Task, package: Any, options: argparse.Namespace) -> Dict[str, Any]:
    torch.manual_seed(0)
    with torch.device(options.device):
        model, x = task.make(package, options.small), task.inputs(options.small)
    randomize_scales(model)
    model = model.to(task.dtype)
    if task.channels_last:
        model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
    with torch.no_grad():
        grad = torch.randn_like(model.eval()(x), dtype=torch.float32)
    patched = copy.deepcopy(model)
    summary = onepass.patch(patched)
    models = {"PyTorch": model, "onepass": patched}
    print(f"\n{task.name}, {tuple(x.shape)}: {len(summary.replaced)} modules replaced, "
          f"{len(summary.left)} left alone", flush=True)
    print_head("PyTorch", "onepass", "apart")
    errors = agreement(task, models, x, grad)
    kind = str(task.wide()).split(".")[1]
    for what, values in errors.items():
        print(f"  {what + ', from ' + kind + ' by':42}{values['PyTorch']:10.1e}{values['onepass']:10.1e}"
              f"{values['apart']:10.1e}", flush=True)
    print_head("ms", "ms", "faster")
    return {"model": task.name, "shape": list(x.shape), "replaced": len(summary.replaced),
            "left": summary.left, "errors": errors,
            "milliseconds": times(task, models, x, grad, options.rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models whose names begin so; all of them")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a moment's work for a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else options.device
    print(f"PyTorch {torch.__version__}, {where}", flush=True)
    results: List[Dict[str, Any]] = []
    for task in TASKS:
        if options.names and not task.name.startswith(tuple(options.names)):
            continue
        try:
            package = importlib.import_module(task.package)
        except ImportError as error:
            print(f"\n{task.name}: skipped, there is no {task.package} ({error})", flush=True)
            continue
        results.append({"version": package.__version__, **measure(task, package, options)})
        if options.device.startswith("cuda"):
            torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "device": where, "models": results}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
