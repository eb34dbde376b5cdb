"""A folder of references and candidates, judged one after the other.

`NAME.py` is a reference if it has Model; if it has ModelNew as well, that is a candidate, and so is every
file in the folder NAME/ that has ModelNew. `sizes.json` may have other values for a reference's numbers, by a
name of the set and the name of the reference.
"""

import glob
import importlib.util
import json
import os
import shutil
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from .bench import Bench, Options
from .devices import Device
from .process import Failure
from .source import classes_of, requirements_of
from .trial import judge_candidate
from .verdict import Judgement

__all__ = ["Pair", "find_pairs", "judge_suite", "sizes_of"]


class Pair(NamedTuple):
    reference: str
    candidate: str


def find_pairs(folder: str) -> List[Pair]:
    """Raises OSError if there is no such folder."""
    if not os.path.isdir(folder):
        raise OSError(f"{folder} is no folder")
    pairs = []
    for reference in sorted(glob.glob(os.path.join(folder, "*.py"))):
        names = names_in(reference)
        if "Model" not in names:
            continue
        if "ModelNew" in names:
            pairs.append(Pair(reference, reference))
        inside = os.path.join(os.path.splitext(reference)[0], "*.py")
        pairs += [Pair(reference, path) for path in sorted(glob.glob(inside)) if is_candidate(path)]
    return pairs


def names_in(path: str) -> List[str]:
    try:
        return list(classes_of(path))
    except (OSError, SyntaxError, ValueError):
        return []


def is_candidate(path: str) -> bool:
    """Also what cannot be parsed: that is for a verdict."""
    try:
        return "ModelNew" in classes_of(path)
    except (SyntaxError, ValueError):
        return True


def sizes_of(folder: str, name: str) -> Dict[str, Dict[str, Any]]:
    """By reference. Raises ValueError where there is no such set."""
    if not name:
        return {}
    try:
        with open(os.path.join(folder, "sizes.json")) as file:
            return json.load(file)[name]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"no sizes {name!r} in {folder}/sizes.json ({error})") from None


def missing_requirement(path: str, device: str) -> Optional[str]:
    try:
        needed = requirements_of(path)
    except (SyntaxError, ValueError):
        return None
    for each in needed:
        if each in ("cuda", "cpu"):
            if each != device:
                return f"needs the device {each}"
        elif importlib.util.find_spec(each) is None and shutil.which(each) is None:
            return f"needs {each}, which is not here"
    return None


def judge_suite(folder: str, options: Options, device: Device, sizes: Dict[str, Dict[str, Any]],
                say: Callable[[int, int, str], None]) -> Iterator[Judgement]:
    """One bench for all candidates of a reference."""
    pairs = find_pairs(folder)
    bench: Optional[Bench] = None
    try:
        for number, pair in enumerate(pairs):
            label = os.path.relpath(pair.candidate, folder)
            say(number, len(pairs), label)
            why = missing_requirement(pair.candidate, device.kind)
            if why:
                yield skipped(pair, why)
                continue
            try:
                if bench is None or bench.path != os.path.abspath(pair.reference):
                    if bench:
                        bench.close()
                    bench = None
                    name = os.path.splitext(os.path.basename(pair.reference))[0]
                    overrides = {**options.overrides, **sizes.get(name, {})}
                    bench = Bench(pair.reference, options._replace(overrides=overrides), device)
                yield judge_candidate(bench, pair.candidate,
                                      lambda text, n=number, c=label: say(n, len(pairs), f"{c}: {text}"))
            except Failure as failure:
                yield skipped(pair, f"the reference fails: {failure.reason}")
                if bench:
                    bench.close()
                bench = None
    finally:
        if bench:
            bench.close()


def skipped(pair: Pair, why: str) -> Judgement:
    return Judgement(os.path.abspath(pair.reference), os.path.abspath(pair.candidate), "skipped", why,
                     {"notes": [], "evidence": []})
