"""The process in which a candidate, or the reference, runs: answers the judge's requests, one by one.

In a candidate's process nothing here can be relied on once the candidate has been imported: it may have
changed any of it. The judge takes the time itself, reads the results itself, and knows what they must be.
"""

import ctypes
import gc
import importlib.util
import json
import os
import resource
import sys
import time
import traceback
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .guard import die_with_parent, lower_oom_score, restrain

LARGEST_FILE = 4 << 30


class AllocatorState(ctypes.Structure):
    """The C library's struct mallinfo2, of which one field is wanted."""
    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "in_use", "fordblks",
                 "keepcost")]


def confine(options: Dict[str, Any]) -> List[str]:
    """Before anything of anybody else's runs."""
    die_with_parent()
    lower_oom_score()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    limit = LARGEST_FILE if hard == resource.RLIM_INFINITY else min(hard, LARGEST_FILE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return restrain(options["protected"], options["guarded"]) if options["role"] == "candidate" else []


def watch(options: Dict[str, Any], tell: Callable[[Dict[str, Any]], None]) -> None:
    """Python's own account of what the candidate opens and whom it signals: evidence, while it lasts."""
    closed = tuple(f"/proc/{pid}/" for pid in options["protected"])
    protected = set(options["protected"])

    def look(event: str, arguments: Tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(closed):
            tell({"evidence": f"it opened {arguments[0]}, which is the judge's"})
        elif event == "os.kill" and abs(int(arguments[0])) in protected:
            tell({"evidence": f"it sent signal {int(arguments[1])} to the judge"})

    sys.addaudithook(look)


def fill_new_memory(on: bool) -> None:
    """Whether glibc fills what malloc gives with bytes of ones, which are NaN in every type: the complement
    of the lowest byte here, and nothing at all for 0."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        perturb = -6  # as malloc.h numbers it
        libc.mallopt(perturb, 0x100 if on else 0)


class Runner:
    """Models by name, inputs in shared memory, and what the last calls have given."""

    def __init__(self, options: Dict[str, Any], guards: List[str]) -> None:
        import torch

        from .memory import Driver, Spec, map_shared, view_of
        from .wire import DTYPES, Place, Table
        self.torch, self.Spec, self.Place, self.DTYPES = torch, Spec, Place, DTYPES
        self.view_of, self.map_shared = view_of, map_shared
        self.options, self.guards = options, guards
        self.device = torch.device(options["device"])
        self.table = Table(options["descriptors"]["table"])
        self.models: Dict[str, Any] = {}
        self.layouts: Dict[str, List[List[Any]]] = {}
        self.values: List[Any] = []
        self.kept: List[List[Any]] = []
        self.arena: Any = None
        torch.set_num_threads(options["threads"])
        self.driver: Optional[Driver] = None
        if self.device.type == "cuda":
            torch.zeros(1, device=self.device)
            self.driver = Driver()

    # Requests

    def do_hello(self, request: Dict[str, Any]) -> Dict[str, Any]:
        return {"guards": self.guards, "torch": self.torch.__version__}

    def do_arena(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Where inputs will be."""
        if self.driver:
            from .memory import device_bytes
            address = self.driver.open(bytes.fromhex(request["handle"])) + request["offset"]
            self.arena = device_bytes(address, request["size"], self.device)
        else:
            self.arena = self.map_shared(self.options["descriptors"]["arena"], request["size"])
        return {}

    def do_layout(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """How inputs of one kind lie in each slot. An argument is a tensor, or the number of a value."""
        slots = []
        for slot in range(request["slots"]):
            start = slot * request["slot_bytes"]
            slots.append([self.values[each["value"]] if "value" in each else
                          self.view_of(self.arena, start + each["offset"],
                                       self.Spec(tuple(each["shape"]), tuple(each["strides"]), each["dtype"]))
                          for each in request["arguments"]])
        self.layouts[request["name"]] = slots
        return {}

    def do_build(self, request: Dict[str, Any]) -> Dict[str, Any]:
        torch = self.torch
        start = time.monotonic()
        module = load_module(self.options["path"], "candidate")
        made = torch.load(request["construction"], map_location="cpu", weights_only=False)
        self.values = made["values"]
        torch.manual_seed(request["seed"])
        model = module.ModelNew(*made["arguments"])
        copied = copy_parameters(model, made["state"]) if made["state"] else "none"
        if copied == "by seed":
            torch.manual_seed(request["seed"])
            model = module.ModelNew(*made["arguments"])
        self.models["candidate"] = model.to(self.device)
        return {"copied": copied, "seconds": time.monotonic() - start}

    def do_release(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Forgets the last results, and fills the memory they leave with NaN, and on a CPU all that malloc
        gives until the next release: a result that is not written will have some in it. (Not every build of
        PyTorch asks malloc for its tensors, so the memory that results leave counts on CPUs, too.)"""
        torch = self.torch
        self.kept.clear()
        if not self.driver:
            fill_new_memory(bool(request.get("poison")))
        if request.get("poison"):
            blocks = [torch.full((size // 4 + 1,), float("nan"), device=self.device)[:size // 4 + 1]
                      for size in request["poison"]]
            self.synchronize()
            del blocks
        return {}

    def do_trim(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Gives free memory back, so that what is held can be seen from outside; and how much the allocator
        itself says is held, to the byte."""
        gc.collect()
        if self.driver:
            self.torch.cuda.empty_cache()
            self.driver.exported.clear()
            return {"held": self.torch.cuda.memory_allocated()}
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)
        if not hasattr(libc, "mallinfo2"):
            return {"held": 0}
        libc.mallinfo2.restype = AllocatorState
        return {"held": libc.mallinfo2().in_use}

    def do_run(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The calls that are timed and checked: a model on the inputs of each slot, results kept."""
        model, slots = self.models[request["model"]], self.layouts[request["layout"]]
        call = self.call_backward if request.get("backward") else self.call_forward
        if request.get("ordered"):
            call = self.call_in_order
        start = time.perf_counter()
        for slot in request["slots"]:
            self.kept.append(call(model, slots[slot]))
        queued = time.perf_counter() - start
        self.write_places(self.kept)
        self.synchronize()
        return {"queued": queued, "whole": time.perf_counter() - start}

    def do_repeat(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Many calls whose results nobody wants."""
        model, slots = self.models[request["model"]], self.layouts[request["layout"]]
        call = self.call_backward if request.get("backward") else self.call_forward
        for index in range(request["count"]):
            call(model, slots[request["slots"][index % len(request["slots"])]])
        self.synchronize()
        return {}

    def do_peak(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Memory that a call takes beyond its result. An account of the candidate's own process: for advice,
        not for the verdict."""
        from .profile import extra_memory_of
        model, slots = self.models[request["model"]], self.layouts[request["layout"]]
        call = self.call_backward if request.get("backward") else self.call_forward
        return {"extra": extra_memory_of(lambda: call(model, slots[0]), self.device.type)}

    def do_operators(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Which of PyTorch's operators a call uses, as its dispatcher sees them."""
        from .operators import names_of
        model, slots = self.models[request["model"]], self.layouts[request["layout"]]
        return {"operators": names_of(lambda: self.call_forward(model, slots[0]))}

    def do_profile(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """The kernels that a call launches, by PyTorch's profiler; for advice."""
        from .profile import kernels_of
        model, slots = self.models[request["model"]], self.layouts[request["layout"]]
        return {"kernels": kernels_of(lambda: self.call_forward(model, slots[0]), self.device.type)}

    # Calls

    def fresh(self, arguments: Sequence[Any]) -> List[Any]:
        return [each.detach() if isinstance(each, self.torch.Tensor) else each for each in arguments]

    def call_forward(self, model: Any, arguments: Sequence[Any]) -> List[Any]:
        with self.torch.no_grad():
            return flatten(model(*self.fresh(arguments[:self.count(arguments)])))

    def count(self, arguments: Sequence[Any]) -> int:
        """Those that the model takes; gradients of results come after."""
        return self.options["arguments"] or len(arguments)

    def call_backward(self, model: Any, arguments: Sequence[Any]) -> List[Any]:
        """Results, gradients of inputs, gradients of parameters by name."""
        torch, count = self.torch, self.count(arguments)
        inputs = self.fresh(arguments[:count])
        wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
        for x in wanted:
            x.requires_grad_()
        parameters = getattr(model, "named_parameters", lambda: ())()
        wanted += [p for _, p in sorted(parameters, key=lambda pair: pair[0]) if p.requires_grad]
        results = flatten(model(*inputs))
        differentiable = [y for y in results if y.requires_grad]
        gradients = arguments[count:][:len(differentiable)]
        found = torch.autograd.grad(differentiable, wanted, [g.detach() for g in gradients],
                                    allow_unused=True)
        return [y.detach() for y in results] + [torch.zeros_like(x) if g is None else g
                                                for g, x in zip(found, wanted)]

    def call_in_order(self, model: Any, arguments: Sequence[Any]) -> List[Any]:
        """As in a program that does not wait: inputs are made on the current stream just before, after a
        while in which nothing may be read, and results are taken on it just after."""
        torch = self.torch
        made = [torch.full_like(x, float("nan")) if isinstance(x, torch.Tensor) and x.is_floating_point()
                else x for x in arguments]
        torch.cuda.synchronize()
        torch.cuda._sleep(5_000_000)
        for x, source in zip(made, arguments):
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                x.copy_(source)
        return [y.clone() for y in self.call_forward(model, made)]

    def synchronize(self) -> None:
        if self.driver:
            self.torch.cuda.synchronize()

    # Results

    def write_places(self, calls: Sequence[Sequence[Any]]) -> None:
        self.table.write([self.place_of(result, call, part) for call, results in enumerate(calls)
                          for part, result in enumerate(results)])

    def place_of(self, result: Any, call: int, part: int) -> Any:
        torch = self.torch
        if not isinstance(result, torch.Tensor):
            raise TypeError(f"returned {type(result).__name__}, expected a tensor or several")
        plain = (type(result) in (torch.Tensor, torch.nn.Parameter) and result.layout == torch.strided
                 and not result.is_conj() and not result.is_neg())
        if not plain:
            return self.Place(call, part, 0, -1, 0, 0, 0, (), (), b"")
        here = result.device.type == self.device.type
        dtype = self.DTYPES.index(result.dtype) if result.dtype in self.DTYPES else -1
        address, base, size, handle = result.data_ptr(), 0, 0, b""
        if self.driver and here and address:
            base, size, handle = self.home_of(address)
        return self.Place(call, part, 1 | 2 * here, dtype, address, base, size, tuple(result.shape),
                          tuple(result.stride()), handle)

    def home_of(self, address: int) -> Tuple[int, int, bytes]:
        """The allocation of a result on a GPU, with its handle; without one if that is the inputs' memory,
        which is the judge's and which drivers do not let this process hand on."""
        assert self.driver is not None
        if self.arena is not None and 0 <= address - self.arena.data_ptr() < self.arena.numel():
            return self.arena.data_ptr(), self.arena.numel(), b""
        base, size = self.driver.allocation_of(address)
        return base, size, self.driver.export(base, size)


def load_module(path: str, name: str) -> ModuleType:
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def copy_parameters(model: Any, state: Dict[str, Any]) -> str:
    """By name where the names and shapes are the same; else the same seed must do."""
    own = model.state_dict()
    if set(own) == set(state) and all(own[name].shape == state[name].shape for name in own):
        model.load_state_dict(state)
        return "by name"
    return "by seed"


def flatten(result: Any) -> List[Any]:
    if isinstance(result, (tuple, list)):
        return [each for part in result for each in flatten(part)]
    if isinstance(result, dict):
        return [each for key in sorted(result, key=str) for each in flatten(result[key])]
    return [result]


def describe(error: BaseException) -> Dict[str, Any]:
    text = f"{type(error).__name__}: {error}".strip()
    lowered = text.lower()
    compiling = ("error building extension" in lowered or "compilationerror" in lowered
                 or "ninja" in lowered or isinstance(error, SyntaxError))
    memory = isinstance(error, MemoryError) or "out of memory" in lowered or "not enough memory" in lowered
    kind = "compile" if compiling else "memory" if memory else "exception"
    return {"error": " ".join(text.split())[:1500], "kind": kind}


def serve(options: Dict[str, Any], guards: List[str]) -> None:
    descriptors = options["descriptors"]
    requests = os.fdopen(descriptors["requests"], "rb", buffering=0)
    pending = b""

    def tell(message: Dict[str, Any]) -> None:
        os.write(descriptors["replies"], json.dumps(message).encode() + b"\n")

    if options["role"] == "reference":
        from .trusted import Reference
        runner: Runner = Reference(options, guards)
    else:
        runner = Runner(options, guards)
        watch(options, tell)
    tell({"ready": True, "guards": guards, "torch": runner.torch.__version__})
    while True:
        while b"\n" not in pending:
            data = requests.read(65536)
            if not data:
                return
            pending += data
        line, _, pending = pending.partition(b"\n")
        request = json.loads(line)
        if request["do"] == "end":
            return
        try:
            reply = getattr(runner, f"do_{request['do']}")(request)
        except KeyboardInterrupt:
            return
        except Exception as error:
            traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            reply = describe(error)
        tell(reply)


def main() -> None:
    if sys.argv[1] == "nursery":
        from .nursery import await_work
        options = await_work(int(sys.argv[2]))
    else:
        options = json.loads(sys.argv[1])
    guards = confine(options)
    try:
        serve(options, guards)
    finally:
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
