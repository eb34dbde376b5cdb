"""The reference's process: makes inputs, knows the right answers, and is timed like a candidate.

It is asked for the right answer to an input only after the candidate's own answer has been read.
"""

import copy
import os
import random
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from .guard import hide
from .inputs import change, round_to_tf32
from .memory import Spec
from .source import load_reference
from .wire import DTYPES
from .worker import Runner, flatten

__all__ = ["Reference"]

SLICE_BYTES = 256 << 20  # of float64 at a time, where the answer may be made in slices
ROUNDINGS: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bf16": lambda x: x.bfloat16().double(),
    "fp16": lambda x: x.half().double(),
    "tf32": lambda x: round_to_tf32(x).double(),
}


class Reference(Runner):
    def do_hello(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """From now on nobody but the judge, which has opened it already, reads this process's memory."""
        return {"hidden": self.options["guarded"] and hide()}

    def do_describe(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """What the reference takes and gives, and a file with what a candidate is constructed from."""
        folder = os.path.dirname(self.options["path"])
        sys.path.append(folder)
        self.names = load_reference(self.options["path"], request["overrides"])
        self.varies = True
        torch.manual_seed(request["seed"])
        made = self.names["get_init_inputs"]()
        torch.manual_seed(request["seed"])
        model = self.names["Model"](*made).to(self.device)
        self.models["eager"] = model
        self.states = {"initial": copy.deepcopy(model.state_dict())}
        self.varies = not same(self.base_inputs(1), self.base_inputs(2))
        self.backward = request["backward"]
        inputs = self.base_inputs(request["seed"])
        self.values = [x for x in inputs if not isinstance(x, torch.Tensor)]
        self.options["arguments"] = len(inputs)
        results = self.call_forward(model, inputs)
        if not same(results, self.call_forward(model, inputs), close=True):
            raise ValueError("the reference gives another answer to the same input: it cannot be a reference")
        self.result_specs = [Spec.of(y) for y in results]
        randomized = self.randomize_parameters(request["seed"], inputs)
        self.batches = self.find_batches(inputs, results)
        self.states["random"] = copy.deepcopy(model.state_dict())
        self.exact_model = copy.deepcopy(model).double()
        everything = self.arguments(request["seed"], "fresh", 0)
        torch.save({"arguments": list(made), "values": self.values,
                    "state": to_cpu(model.state_dict())}, request["construction"])
        parameters = sum(p.numel() * p.element_size() for p in model.state_dict().values())
        return {"arguments": self.describe_arguments(everything), "inputs": len(inputs),
                "results": [list(spec) for spec in self.result_specs],
                "gradients": self.describe_gradients(everything) if self.backward else [],
                "parameter_bytes": parameters, "randomized": randomized, "batches": self.batches,
                "needed": self.needed_fraction(inputs), "varies": self.varies}

    def describe_arguments(self, arguments: Sequence[Any]) -> List[Dict[str, Any]]:
        described, values = [], 0
        for x in arguments:
            if isinstance(x, torch.Tensor):
                spec = Spec.of(x)
                described.append({"shape": spec.shape, "strides": spec.strides, "dtype": spec.dtype})
            else:
                described.append({"value": values})
                values += 1
        return described

    def describe_gradients(self, arguments: Sequence[Any]) -> List[Any]:
        found = self.call_backward(self.models["eager"], arguments)
        return [list(Spec.of(g)) for g in found[len(self.result_specs):]]

    # Inputs

    def base_inputs(self, seed: int) -> List[Any]:
        """What get_inputs gives under a seed; made on the device if it can be."""
        self.seed(seed)
        if self.device.type == "cuda":
            try:
                with self.device:
                    inputs = self.names["get_inputs"]()
            except Exception:
                self.seed(seed)
                inputs = self.names["get_inputs"]()
        else:
            inputs = self.names["get_inputs"]()
        inputs = [x.detach().to(self.device) if isinstance(x, torch.Tensor) else x for x in inputs]
        if not self.varies:  # the file seeds by itself: what is fresh has to be made here
            self.seed(seed)
            inputs = [x + 0.25 * spread(x) * torch.randn_like(x)
                      if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
        return inputs

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % (1 << 32))

    def arguments(self, seed: int, kind: str, batch: int, change_seed: int = 0) -> List[Any]:
        """Inputs of a kind, and what a backward pass starts from. A batch of 0 is all of it."""
        inputs = self.base_inputs(seed)
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        changed = iter(change(kind, tensors, change_seed or seed))
        inputs = [next(changed) if isinstance(x, torch.Tensor) else x for x in inputs]
        if batch:
            inputs = [x.narrow(0, 0, batch) if isinstance(x, torch.Tensor) else x for x in inputs]
        if not self.backward:
            return inputs
        self.seed(seed + 1)
        shapes = [(batch, *spec.shape[1:]) if batch else spec.shape for spec in self.result_specs]
        return inputs + [torch.randn(shape, dtype=DTYPES[spec.dtype], device=self.device)
                         for shape, spec in zip(shapes, self.result_specs)
                         if DTYPES[spec.dtype].is_floating_point]

    def do_fill(self, request: Dict[str, Any]) -> Dict[str, Any]:
        slots = self.layouts[request["layout"]]
        for each in request["fill"]:
            made = self.arguments(each["seed"], each["kind"], request["batch"], each.get("change", 0))
            for target, x in zip(slots[each["slot"]], made):
                if isinstance(x, torch.Tensor):
                    target.copy_(x)
        self.synchronize()
        return {}

    # Answers

    def do_answer(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The results in float64, PyTorch's own, and those for rounded inputs; and whether the input is
        still what it was."""
        self.kept.clear()
        made = self.arguments(request["seed"], request["kind"], request["batch"], request.get("change", 0))
        slot = self.layouts[request["layout"]][request["slot"]]
        untouched = [same_bits(x, y) for x, y in zip(slot, made) if isinstance(x, torch.Tensor)]
        if request.get("rows"):
            made = [x.narrow(0, *request["rows"]) if isinstance(x, torch.Tensor) else x for x in made]
        self.kept = [self.exactly(made), self.own(made)]
        for rounding in request.get("roundings", []):
            rounded = [ROUNDINGS[rounding](x) if isinstance(x, torch.Tensor) and x.is_floating_point()
                       else x for x in made]
            self.kept.append(self.exactly(rounded))
        self.write_places(self.kept)
        self.synchronize()
        return {"untouched": all(untouched)}

    def own(self, arguments: Sequence[Any]) -> List[Any]:
        call = self.call_backward if self.backward else self.call_forward
        return call(self.models["eager"], arguments)

    def exactly(self, arguments: Sequence[Any]) -> List[Any]:
        call = self.call_backward if self.backward else self.call_forward
        size = 8 * sum(x.numel() for x in arguments if isinstance(x, torch.Tensor))
        if self.backward or not self.batches or size <= SLICE_BYTES:
            return call(self.exact_model, [in_double(x) for x in arguments])
        count = next(x.shape[0] for x in arguments if isinstance(x, torch.Tensor))
        step = max(1, count * SLICE_BYTES // size)
        results: Optional[List[torch.Tensor]] = None
        for start in range(0, count, step):
            stop = min(start + step, count)
            part = call(self.exact_model, [in_double(x[start:stop]) if isinstance(x, torch.Tensor) else x
                                           for x in arguments])
            if results is None:
                results = [torch.empty((count, *y.shape[1:]), dtype=y.dtype, device=y.device) for y in part]
            for whole, piece in zip(results, part):
                whole[start:stop] = piece
        return results or []

    # What is timed

    def do_contenders(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The copy and the like, which the memory's speed is known by."""
        idle = [torch.zeros(spec.shape, dtype=DTYPES[spec.dtype], device=self.device)
                for spec in self.result_specs]
        self.models.update({
            "copy": lambda x: torch.empty_like(x).copy_(x), "read": lambda x: x.sum(),
            "write": lambda x: torch.full_like(x, 1.0), "idle": lambda *_: idle})
        return {}

    def do_compile(self, request: Dict[str, Any]) -> Dict[str, Any]:
        model = torch.compile(self.models["eager"])
        call = self.call_backward if self.backward else self.call_forward
        call(model, self.layouts[request["layout"]][0])
        self.models["compile"] = model
        return {}

    def do_parameters(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Those that the seed gives, for a candidate whose parameters have other names, or the random
        ones."""
        self.models["eager"].load_state_dict(self.states[request["which"]])
        self.exact_model = copy.deepcopy(self.models["eager"]).double()
        return {}

    # What kind of function it is

    def randomize_parameters(self, seed: int, inputs: Sequence[Any]) -> bool:
        """Weights of one and biases of zero are easily left out: others are given to both."""
        model = self.models["eager"]
        self.seed(seed + 2)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.add_(0.25 * torch.randn_like(parameter))
        if all(bool(y.isfinite().all()) for y in self.call_forward(model, inputs)
               if y.is_floating_point()):
            return any(True for _ in model.parameters())
        model.load_state_dict(self.states["initial"])
        return False

    def find_batches(self, inputs: Sequence[Any], results: Sequence[torch.Tensor]) -> List[int]:
        """Other batch sizes that the reference takes, if what it makes of one item does not depend on the
        others; or none."""
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        if not tensors or any(x.dim() == 0 for x in [*tensors, *results]):
            return []
        count = tensors[0].shape[0]
        if count < 2 or any(x.shape[0] != count for x in [*tensors, *results]):
            return []
        whole = self.call_forward(self.models["eager"], inputs)
        for start, stop in ((0, count // 2), (count - 1, count)):
            try:
                some = [x[start:stop] if isinstance(x, torch.Tensor) else x for x in inputs]
                part = self.call_forward(self.models["eager"], some)
            except Exception:
                return []
            if not same(part, [y[start:stop] for y in whole], close=True):
                return []
        return sorted({1, count - 1, count // 2 + 1} - {count, 0})

    def needed_fraction(self, inputs: Sequence[Any]) -> float:
        """Of the input's elements, how many the result depends on, as far as gradients tell; 1 where they
        do not. Who pools with strides wider than windows need not read all."""
        if self.batches:
            inputs = [x[:1] if isinstance(x, torch.Tensor) else x for x in inputs]
        leaves = [x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point()
                  else x for x in inputs]
        wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
        if not wanted or sum(x.numel() for x in wanted) > 1 << 27:
            return 1.0
        try:
            results = [y for y in flatten(self.models["eager"](*leaves)) if y.requires_grad]
            found = torch.autograd.grad([(y * torch.rand_like(y)).sum() for y in results], wanted,
                                        allow_unused=True)
        except Exception:
            return 1.0
        touched = sum(int((g != 0).sum()) for g in found if g is not None)
        return touched / max(1, sum(x.numel() for x in wanted))


def spread(x: torch.Tensor) -> float:
    deviation = float(x.float().std()) if x.numel() > 1 else 0.0
    return deviation if deviation > 0 else 1.0


def in_double(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def to_cpu(state: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
    return {name: value.detach().cpu() for name, value in state.items()}


def same(xs: Sequence[Any], ys: Sequence[Any], close: bool = False) -> bool:
    """With `close`, but for what another order of summing does."""
    def alike(x: torch.Tensor, y: torch.Tensor) -> bool:
        if x.shape != y.shape:
            return False
        if not close or not x.is_floating_point():
            return torch.equal(x, y)
        return torch.allclose(x, y, rtol=1e-3, atol=1e-5, equal_nan=True)
    pairs: List[Tuple[Any, Any]] = list(zip(xs, ys))
    return len(xs) == len(ys) and all(alike(x, y) for x, y in pairs if isinstance(x, torch.Tensor))


def same_bits(x: torch.Tensor, y: torch.Tensor) -> bool:
    """NaN equals NaN here."""
    if x.numel() == 0:
        return True

    def bits(z: torch.Tensor) -> torch.Tensor:
        return z.detach().contiguous().view(-1).view(torch.uint8)
    step = 1 << 28
    a, b = bits(x), bits(y)
    return all(torch.equal(a[i:i + step], b[i:i + step]) for i in range(0, a.numel(), step))
