"""What a file of Python has, without running it."""

import ast
from typing import Any, Dict, List, Optional, Set

__all__ = ["classes_of", "load_reference", "requirements_of"]

ROOTS = ("Model", "get_inputs", "get_init_inputs")


def parse(path: str) -> ast.Module:
    """Raises OSError or SyntaxError."""
    with open(path, "rb") as file:
        return ast.parse(file.read(), path)


def classes_of(path: str) -> Set[str]:
    """Names that the file defines as classes, or imports or assigns at its top."""
    names: Set[str] = set()
    for statement in parse(path).body:
        names.update(bound_by(statement))
    return names


def requirements_of(path: str) -> List[str]:
    """What a candidate says it needs: `REQUIRES = ["cuda", "triton"]`."""
    for statement in parse(path).body:
        if isinstance(statement, ast.Assign) and bound_by(statement) == ["REQUIRES"]:
            try:
                return [str(each) for each in ast.literal_eval(statement.value)]
            except ValueError:
                return []
    return []


def bound_by(statement: ast.stmt) -> List[str]:
    """Names that a statement gives a meaning to, if that is all it does."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name.split(".")[0]) for alias in statement.names]
    targets: List[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)):
        targets = [statement.target]
    found = [name for target in targets for name in names_in_target(target)]
    return found if all(isinstance(target, (ast.Name, ast.Tuple)) for target in targets) else []


def names_in_target(target: ast.expr) -> List[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def names_used(statement: ast.stmt) -> Set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def without_candidate(tree: ast.Module) -> ast.Module:
    """Only what the reference needs, of a file that has the candidate as well: statements that bind names
    which Model, get_inputs and get_init_inputs reach. Nothing else of the file runs in the reference's
    process."""
    statements = {name: [s for s in tree.body if name in bound_by(s)]
                  for statement in tree.body for name in bound_by(statement)}
    reached: Set[str] = set()
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for statement in statements.get(name, []):
            waiting.extend(names_used(statement))
    kept = [s for s in tree.body if any(name in reached for name in bound_by(s))]
    return ast.Module(body=kept, type_ignores=[])


def load_reference(path: str, overrides: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """The reference's names, run in this process. Raises what the file raises."""
    tree = parse(path)
    if any("ModelNew" in bound_by(statement) for statement in tree.body):
        tree = without_candidate(tree)
    names: Dict[str, Any] = {"__name__": "reference", "__file__": path}
    exec(compile(tree, path, "exec"), names)
    for name, value in (overrides or {}).items():
        if name not in names:
            raise ValueError(f"the reference has no {name!r} to set")
        names[name] = value
    missing = [name for name in ROOTS if name not in names]
    if missing:
        raise ValueError(f"the reference has no {' and no '.join(missing)}")
    return names
