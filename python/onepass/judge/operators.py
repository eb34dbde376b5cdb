"""--no-torch-ops: a candidate must compute by itself.

Two looks. The source, which the judge reads itself, must not have the ways around the second one; and
PyTorch's dispatcher says which operators a call goes through, wherever it comes from: a method, a wrapper,
the reference itself, C++.
"""

import ast
import re
from typing import Any, Callable, Iterable, List, Set

__all__ = ["forbidden", "names_of"]

# What moves no numbers through arithmetic: memory, views, and filling what a kernel adds to.
ALLOWED = re.compile(
    r"^(aten::)?(empty|empty_like|empty_strided|new_empty|new_empty_strided|zeros|zeros_like|new_zeros|zero_|fill_|"
    r"view|_unsafe_view|_reshape_alias|reshape|as_strided|detach|alias|t|transpose|permute|unsqueeze|squeeze|expand|"
    r"select|slice|narrow|split|unbind|contiguous|clone|copy_|_to_copy|lift_fresh|is_pinned|record_stream|size|stride|"
    r"resize_|set_)(\..*)?$")
# Ways to hide a call from the dispatcher's observers, or from a reader.
EVASIVE_NAMES = {"exec", "eval", "compile", "__import__", "globals", "vars"}
EVASIVE_ATTRIBUTES = {"_C", "_disable_current_modes", "_pop_mode_temporarily", "_len_torch_dispatch_stack",
                      "_get_current_dispatch_mode", "_dispatch", "f_back", "__subclasses__",
                      # What was recorded or compiled before runs past the dispatcher.
                      "CUDAGraph", "make_graphed_callables"}
CPP_OPERATOR = re.compile(r"\b(?:at|torch)::(?:native::|_ops::|functional::|nn::)?([a-z_0-9]+)\s*\(")
CPP_ALLOWED = {"empty", "empty_like", "empty_strided", "zeros", "zeros_like", "from_blob", "device", "dtype",
               "getcurrentcudastream", "kfloat32"}


def names_of(call: Callable[[], Any]) -> List[str]:
    """Operators of PyTorch's own that a call goes through."""
    from torch.utils._python_dispatch import TorchDispatchMode
    seen: List[str] = []

    class Observer(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            seen.append(str(function).replace(".", "::", 1))
            return function(*args, **(kwargs or {}))

    with Observer():
        call()
    return sorted(set(seen))


def forbidden(path: str, operators: Iterable[str]) -> List[str]:
    """What of the source or of the operators that were seen is not allowed."""
    found = [f"the operator {name}" for name in operators
             if name.startswith("aten::") and not ALLOWED.match(name)]
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    return found + sorted(evasions(tree))


def evasions(tree: ast.AST) -> Set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in EVASIVE_NAMES:
                found.add(f"line {node.lineno} calls {node.func.id}(), behind which anything may be")
            if node.func.id == "getattr" and not all(isinstance(a, ast.Constant) for a in node.args[1:2]):
                found.add(f"line {node.lineno} looks up a name that is not written there (getattr)")
        elif isinstance(node, ast.Attribute) and (node.attr in EVASIVE_ATTRIBUTES or is_torch_compile(node)):
            found.add(f"line {node.lineno} reaches for {node.attr}, behind PyTorch's dispatcher")
        elif isinstance(node, ast.ImportFrom):
            found.update(f"line {node.lineno} reaches for {alias.name}, behind PyTorch's dispatcher"
                         for alias in node.names if alias.name in EVASIVE_ATTRIBUTES
                         or (node.module == "torch" and alias.name == "compile"))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for name in CPP_OPERATOR.findall(node.value):
                if name.lower() not in CPP_ALLOWED:
                    found.add(f"C++ that calls {name}, an operator of PyTorch's")
    return found


def is_torch_compile(node: ast.Attribute) -> bool:
    return node.attr == "compile" and isinstance(node.value, ast.Name) and node.value.id == "torch"
