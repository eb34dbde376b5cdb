"""Replacing the modules of a model in place."""

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Dict, Iterable, NamedTuple, Optional, Tuple, Type, Union

import torch
from torch.nn import Module

from . import _relatives, nn

__all__ = ["Summary", "patch", "unpatch"]

Choice = Union[str, Type[Module]]

# torch.nn's class and ours, which differ in one method: forward, or what it calls.
_TWINS: Dict[Type[Module], Type[Module]] = {
    getattr(torch.nn, name): getattr(nn, name)
    for name in (
        "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d",
        "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "BatchNorm1d",
        "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
        "LPPool1d", "LPPool2d", "LPPool3d", "LayerNorm", "MaxPool1d", "MaxPool2d", "MaxPool3d", "RMSNorm",
    )
    if hasattr(torch.nn, name)
}


def _method_of(base: Type[Module]) -> str:
    return "_apply_instance_norm" if hasattr(base, "_apply_instance_norm") else "forward"


class Summary(NamedTuple):
    """What was done to a model's modules, by their names: which class it was, or why it stayed."""

    replaced: Dict[str, str]
    left: Dict[str, str]

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} modules replaced, {len(self.left)} left alone"]
        lines += [f"  {name or '(the model)'}: {what}" for name, what in self.replaced.items()]
        lines += [f"  {name or '(the model)'} left alone: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def patch(
    model: Module,
    *,
    only: Union[None, Choice, Iterable[Choice]] = None,
    verbose: bool = False,
) -> Summary:
    """Make every module of a model that onepass.nn has onepass's, the model itself included.

    Modules stay the objects they are, with their parameters, buffers, hooks and flags; only their
    class changes. Subclasses are replaced, too, unless they have a forward of their own; of those, and
    of classes that are not torch.nn's, the norms of timm, torchvision and transformers that prove to
    compute the same. `only` says which: a class, a pattern for names such as "encoder.*", or several of
    these.
    """
    summary = Summary({}, {})
    verdicts: Dict[Any, _relatives.Verdict] = {}
    for name, module in model.named_modules():
        own = type(module)
        if _is_ours(own) or not _chosen(name, module, only):
            continue
        new, why = _class_for(module, verdicts)
        if new is not None:
            module.__class__ = new
            summary.replaced[name] = own.__qualname__
        elif why is not None:
            summary.left[name] = f"{own.__module__}.{own.__qualname__} {why}"
    if verbose:
        print(summary)
    return summary


def unpatch(model: Module, *, verbose: bool = False) -> Summary:
    """Make every module of onepass.nn's the torch.nn class it stands for, if there is one, and every other
    one that was patched what it was."""
    summary = Summary({}, {})
    for name, module in model.named_modules():
        own, base = type(module), _base_of(type(module))
        if isinstance(module, _PatchedSubclass):
            original = _original(own)
        elif base is not None and own is _TWINS[base]:
            original = base
        else:
            continue
        if module.__dict__.get("activation") is not None:
            summary.left[name] = f"{own.__qualname__} has an activation, which torch.nn's does not do"
            continue
        module.__class__ = original
        summary.replaced[name] = own.__qualname__
    if verbose:
        print(summary)
    return summary


def _base_of(own: Type[Module]) -> Optional[Type[Module]]:
    return next((base for base in _TWINS if issubclass(own, base)), None)


def _is_ours(own: Type[Module]) -> bool:
    if own.__module__ == nn.__name__ or issubclass(own, _PatchedSubclass):
        return True
    base = _base_of(own)
    method = "" if base is None else _method_of(base)
    return base is not None and getattr(own, method) is getattr(_TWINS[base], method)


def _class_for(
    module: Module, verdicts: Dict[Any, _relatives.Verdict]
) -> Tuple[Optional[Type[Module]], Optional[str]]:
    """A module's new class. If there is none: why it stays, unless nobody would expect it to change."""
    own = type(module)
    base, why = _base_of(own), None
    if base is not None:
        why = _why_not(module, base)
        if why is None:
            return _TWINS[base] if own is base else _patched_subclass(own, None), None
    if _relatives.is_candidate(own):
        call, why = _relatives.judge(module, verdicts)
        if call is not None:
            return _patched_subclass(own, call), None
    return None, why


def _why_not(module: Module, base: Type[Module]) -> Optional[str]:
    """What keeps a module from being replaced."""
    for method in ("forward", _method_of(base)):
        if getattr(type(module), method) is not getattr(base, method) or method in vars(module):
            return f"has a {method} of its own"
    return "has an activation of its own" if hasattr(module, "activation") else None


def _chosen(name: str, module: Module, only: Union[None, Choice, Iterable[Choice]]) -> bool:
    if only is None:
        return True
    if isinstance(only, str):
        return fnmatchcase(name, only)
    if isinstance(only, type):
        return isinstance(module, only)
    return any(_chosen(name, module, choice) for choice in only)


# ---- Classes that are not torch.nn's own --------------------------------------------------------


class _PatchedSubclass:
    """First base of a patched class, whose second one is the class it was made from. Nobody can import
    the patched class by name, so its objects are pickled by way of the original."""

    _relative_call: Optional[str] = None  # what a relative's forward is replaced with

    def __reduce_ex__(self, protocol: Any) -> Tuple[Any, ...]:
        _, _, *state = super().__reduce_ex__(max(int(protocol), 2))
        return (_new_patched, (_original(type(self)), self._relative_call), *state)


def _original(patched: type) -> type:
    return patched.__bases__[1]


@lru_cache(maxsize=None)
def _patched_subclass(own: Type[Module], relative_call: Optional[str]) -> Type[Module]:
    added: Dict[str, Any] = {"__module__": own.__module__, "__qualname__": own.__qualname__,
                             "__doc__": own.__doc__}
    if relative_call is not None:
        added.update(_relative_call=relative_call, forward=_relatives.forward_of(own, relative_call))
    else:
        base = _base_of(own)
        twin, method = _TWINS[base], _method_of(base)
        added[method] = getattr(twin, method)
        if hasattr(twin, "activation"):
            added["activation"] = None
            added["__constants__"] = [*own.__constants__, "activation"]
    return type(own.__name__, (_PatchedSubclass, own), added)


def _new_patched(own: Type[Module], relative_call: Optional[str] = None) -> Module:
    patched = _patched_subclass(own, relative_call)
    return patched.__new__(patched)
