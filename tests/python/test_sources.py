"""The package's own sources: Python 3.8, and only what its standard library has."""

import ast
from pathlib import Path
from typing import Iterator, Tuple

import onepass
import pytest

PACKAGE = Path(onepass.__file__).parent
SOURCES = sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("*.pyi")])

# All that is imported from the standard library, looked up in the documentation of Python 3.8.
IN_PYTHON_38 = {
    "contextlib": {"contextmanager"},
    "fnmatch": {"fnmatchcase"},
    "functools": {"lru_cache"},
    "inspect": {"Parameter", "signature"},
    "math": {"inf", "prod"},
    "typing": {"Any", "Callable", "Dict", "Iterable", "Iterator", "List", "NamedTuple", "NoReturn",
               "Optional", "Sequence", "Set", "Tuple", "Type", "Union"},
}


def imported(tree: ast.AST) -> Iterator[Tuple[str, str]]:
    """What is taken from which module, be it `from m import n` or `m.n`."""
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in modules:
                yield node.value.id, node.attr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_python_38(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for module, name in imported(tree):
        if module.split(".")[0] != "torch":
            assert name in IN_PYTHON_38.get(module, set()), f"{module}.{name}"


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "_native.pyi").exists()
