"""Norms of model libraries that have a forward of their own, or nothing to do with torch.nn's, and compute
what onepass does all the same.

They are found by name, and a name is no proof: Gemma's RMSNorm multiplies by 1 + weight, and what a library
computes differs from version to version. So a module is a relative only if its forward and ours give the same
results, of inputs and weights that are drawn here. Nothing of those libraries is imported.
"""

from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor
from torch.nn import Module

from . import functional
from ._torch import is_compiling

__all__ = ["Verdict", "forward_of", "is_candidate", "judge"]

# ---- What they compute --------------------------------------------------------------------------


def _parameters_of(module: Module) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    return getattr(module, "weight", None), getattr(module, "bias", None)


def _eps_of(module: Module) -> float:
    if is_compiling():  # early versions do not follow __dict__, which is quicker to look into
        return module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps
    own = module.__dict__
    return own["variance_epsilon"] if "variance_epsilon" in own else own["eps"]


def _layer_norm(module: Module, x: Tensor) -> Tensor:
    weight, bias = _parameters_of(module)
    shape = x.shape[-1:] if weight is None else weight.shape
    return functional.layer_norm(x, shape, weight, bias, _eps_of(module))


def _layer_norm_2d(module: Module, x: Tensor) -> Tensor:
    """The output is channels_last whatever x is, as theirs: what follows was chosen for that."""
    return _layer_norm(module, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _rms_norm(module: Module, x: Tensor) -> Tensor:
    weight, _ = _parameters_of(module)
    shape = x.shape[-1:] if weight is None else weight.shape
    return functional.rms_norm(x, shape, weight, _eps_of(module))


def _rms_norm_2d(module: Module, x: Tensor) -> Tensor:
    weight, _ = _parameters_of(module)
    return functional.rms_norm(x, x.shape[1:2], weight, _eps_of(module), dim=1)


# By names that go into pickles.
_CALLS: Dict[str, Callable[[Module, Tensor], Tensor]] = {
    "layer_norm": _layer_norm, "layer_norm_2d": _layer_norm_2d,
    "rms_norm": _rms_norm, "rms_norm_2d": _rms_norm_2d,
}

# ---- Who they are -------------------------------------------------------------------------------


class _Family(NamedTuple):
    packages: Tuple[str, ...]
    names: Tuple[str, ...]
    calls: Tuple[str, ...]  # the first that proves to be right is taken
    calls_operator: bool = False  # of PyTorch's, whose types ours has in autocast and without


_TRANSFORMERS = ("transformers", "transformers_modules")  # the latter are downloaded with a model

_FAMILIES = (
    _Family(("timm",), ("LayerNorm",), ("layer_norm",), True),
    _Family(("timm", "torchvision"), ("LayerNorm2d",), ("layer_norm_2d",), True),
    _Family(("timm",), ("RmsNorm",), ("rms_norm",)),
    _Family(("timm",), ("RmsNorm2d",), ("rms_norm_2d",)),
    _Family(_TRANSFORMERS, ("*RMSNorm", "*RmsNorm"), ("rms_norm",)),
    # T5's and its copies' are RMS norms; those of vision models have either layout.
    _Family(_TRANSFORMERS, ("*LayerNorm", "*LayerNorm2d"), ("rms_norm", "layer_norm", "layer_norm_2d")),
)


def _family_of(own: Type[Module]) -> Optional[_Family]:
    """Of the class whose forward it is."""
    author = next(base for base in own.__mro__ if "forward" in vars(base))
    package = author.__module__.split(".")[0]
    for family in _FAMILIES:
        if package in family.packages and any(fnmatchcase(author.__name__, name) for name in family.names):
            return family
    return None


def is_candidate(own: Type[Module]) -> bool:
    return _family_of(own) is not None


# ---- Whether they compute it --------------------------------------------------------------------


class Verdict(NamedTuple):
    call: Optional[str]  # what computes the same, if anything does
    why: str  # not


_OF_EVERY_MODULE = frozenset(vars(Module()))


def judge(module: Module, known: Dict[Any, Verdict]) -> Verdict:
    """`known` keeps verdicts: a model has many norms, and few kinds of them."""
    if "forward" in vars(module):
        return Verdict(None, "has a forward of its own on the object")
    if module._modules or module._buffers or not set(module._parameters) <= {"weight", "bias"}:
        return Verdict(None, "has more than a weight and a bias")
    if getattr(module, "_fast_norm", False):  # timm's, which has types of its own in autocast
        return Verdict(None, "has _fast_norm set")
    parameters = tuple((name, p if p is None else (p.dtype, *p.shape))
                       for name, p in module._parameters.items())
    attributes = tuple((name, repr(value)) for name, value in vars(module).items()
                       if name not in _OF_EVERY_MODULE)
    kind = (type(module), parameters, attributes)
    if kind not in known:
        calls = _family_of(type(module)).calls
        proven = next((call for call in calls if _computes(module, call)), None)
        known[kind] = Verdict(proven, f"has a forward of its own that does not compute {' or '.join(calls)}")
    return known[kind]


def _computes(module: Module, call: str) -> bool:
    """Whether both give the same, in float32 and in the module's own type."""
    given = [p for p in module._parameters.values() if p is not None]
    types = {torch.float32: None, **{p.dtype: None for p in given}}
    shape = tuple(given[0].shape) if given else tuple(getattr(module, "normalized_shape", (16,)))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for dtype in types:
            double = _with_random_parameters(module, dtype, generator)
            for x in _inputs(call, shape, dtype, generator):
                try:
                    expected = type(module).forward(double, x)
                except Exception:  # whatever it says to an input that is not for it
                    if dtype == torch.float32:
                        return False
                    continue  # early versions have no halves on the CPU
                try:
                    if not _agree(_CALLS[call](double, x), expected):
                        return False
                except Exception:  # such as that there is no eps, or that the result is no tensor
                    return False
    return True


def _random(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)


def _with_random_parameters(module: Module, dtype: torch.dtype, generator: torch.Generator) -> Module:
    """The same class and attributes; the module's own weights may be all ones, or on a device, or nowhere."""
    double = type(module).__new__(type(module))
    double.__dict__.update(vars(module))
    double.__dict__["_parameters"] = {
        name: p if p is None else torch.nn.Parameter(_random(p.shape, generator).to(dtype), False)
        for name, p in module._parameters.items()}
    return double


def _inputs(
    call: str, shape: Tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> Iterator[Tensor]:
    """Ordinary ones; and in float32 ones whose squares are about as large as eps, and smaller; and ones far
    from zero. Of several ranks, unless there is but one."""
    kinds = [((2, 3), 1.0, 0.0), ((5,), 1e-3, 0.0), ((2, 1, 3), 1e-6, 0.0), ((2, 3), 1.0, 30.0)]
    for rows, size, offset in kinds if dtype == torch.float32 else kinds[:1]:
        whole = (2, *shape, 3, 5) if call.endswith("_2d") else (*rows, *shape)
        yield (offset + size * _random(whole, generator)).to(dtype)


_TOLERANCES = {torch.float32: 2e-5, torch.float64: 2e-5}  # some compute doubles in float32


def _agree(actual: Tensor, expected: Tensor) -> bool:
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    tolerance = _TOLERANCES.get(actual.dtype, 2e-2)  # halves, which some round at each step
    apart = (actual.double() - expected.double()).abs().max()
    return bool(apart <= tolerance * expected.double().abs().max())


# ---- Their new forward --------------------------------------------------------------------------


def _has_one_type(module: Module, x: Tensor) -> bool:
    """What type comes of several is for each of them to say, as it is in autocast."""
    if x.dtype in (torch.float16, torch.bfloat16) and torch.is_autocast_enabled():
        return False
    return all(p is None or p.dtype == x.dtype for p in _parameters_of(module))


def forward_of(own: Type[Module], call: str) -> Callable[..., Any]:
    """For a subclass of `own`, of whose objects that call has been proven."""
    family = _family_of(own)
    original, compute = own.forward, _CALLS[call]
    any_type = family is not None and family.calls_operator

    def forward(self: Module, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and not named and (any_type or _has_one_type(self, given[0])):
            return compute(self, given[0])
        return original(self, *given, **named)
    return forward
