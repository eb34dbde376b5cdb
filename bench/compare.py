#!/usr/bin/env python3
"""onepass against PyTorch on a GPU: eager, torch.compile and, where importable, Liger.

One process; the contenders take turns, on a cold cache, forward and backward. Before a point is
timed, what onepass computed is compared with PyTorch in float64 on some rows; a wrong result makes
the exit status 1. See gpu_timing.py for how times are taken.

    bench/compare.py --json h200.json --markdown h200.md --plot h200.png
    bench/compare.py --points 'layer_norm.*4095' --dtype f32 --dir bwd
    bench/compare.py --random 300 --seed 1 --random-only --json random.json
    bench/compare.py --family --json family.json
    bench/compare.py --against eager,compile,package
    bench/compare.py --render h200.json random.json --markdown h200.md --plot h200.png

torch.compile compiles each of the fixed points for its own shape, and those of --random once for
any shape (dynamic=True): compiling every one of them would take hours.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import report
from cases import DIRECTIONS, Point, fixed_points, random_points

PEERS = ("eager", "compile", "liger")
PACKAGE = "package"  # onepass once more, through the Python package and, backward, autograd


def parse_options(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    root = Path(__file__).resolve().parent.parent
    library = os.environ.get("ONEPASS_LIBRARY", root / "build" / "release" / "libonepass.so")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    chosen = parser.add_argument_group("what is measured")
    chosen.add_argument("--points", type=re.compile, metavar="REGEX", default=re.compile(""),
                        help="only what this is found in, such as 'layer_norm 16384x4095 f32 fwd'")
    chosen.add_argument("--dtype", choices=("f32", "bf16"), help="only this type")
    chosen.add_argument("--dir", choices=DIRECTIONS, help="only this direction")
    chosen.add_argument("--against", type=lambda text: text.split(","), default=list(PEERS),
                        metavar="PEERS", help="default: eager,compile,liger; package: onepass by Python")
    chosen.add_argument("--random", type=int, default=0, metavar="N",
                        help="also this many random shapes")
    chosen.add_argument("--random-only", action="store_true", help="no fixed points")
    chosen.add_argument("--family", action="store_true",
                        help="also the other operators, through the Python package")
    chosen.add_argument("--family-only", action="store_true", help="nothing but these")
    chosen.add_argument("--seed", type=int, default=int(time.time()),
                        help="of the shapes and the data; default: the time")
    chosen.add_argument("--library", type=Path, default=Path(library),
                        help="default: ONEPASS_LIBRARY, or build/release/libonepass.so")
    chosen.add_argument("--commit", default="", help="what was built, for the record")
    output = parser.add_argument_group("what is written")
    output.add_argument("--json", type=Path, metavar="FILE", help="after every point")
    output.add_argument("--markdown", type=Path, metavar="FILE", help="a table with the targets")
    output.add_argument("--plot", type=Path, metavar="FILE", help="a picture (needs matplotlib)")
    output.add_argument("--render", type=Path, nargs="+", metavar="JSON",
                        help="measure nothing: take the points of these files")
    options = parser.parse_args(arguments)
    if not set(options.against) <= {*PEERS, PACKAGE}:
        parser.error(f"--against takes some of {','.join((*PEERS, PACKAGE))}")
    if options.random < 0:
        parser.error("--random is not negative")
    return options


def selected(points: Sequence[Any], options: argparse.Namespace) -> List[Any]:
    return [point for point in points
            if options.dtype in (None, point.dtype) and options.dir in (None, point.direction)
            and options.points.search(point.label())]


def driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe_run(options: argparse.Namespace, machine: Dict[str, Any]) -> Dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"machine": {**machine, "driver": driver_version()}, "commit": options.commit,
            "date": now.strftime("%Y-%m-%d %H:%M UTC"), "seed": options.seed,
            "random": options.random, "failures": [], "points": []}


def write_json(path: Optional[Path], run: Dict[str, Any]) -> None:
    """In one step: a run that is cut short leaves the points before."""
    if path:
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(run, indent=1) + "\n")
        part.replace(path)


def open_bench(options: argparse.Namespace) -> Any:
    try:
        from gpu_points import Bench  # needs PyTorch and a GPU, which --render does not

        return Bench(options.library, options.against, options.seed)
    except (ImportError, OSError) as missing:
        sys.exit(f"compare: {missing}")


def measure_all(options: argparse.Namespace) -> Dict[str, Any]:
    alone = options.random_only or options.family_only
    fixed = [] if alone else selected(fixed_points(), options)
    drawn = selected(random_points(options.random, options.seed), options)
    with open_bench(options) as bench:
        run = describe_run(options, bench.machine())
        print(f"{run['machine']}\nseed {options.seed}, {options.random} random shapes")
        print(report.HEADER, flush=True)
        for number, point in enumerate(fixed + drawn, 1):
            print(f"[{number}/{len(fixed) + len(drawn)}] {point.label()}", file=sys.stderr,
                  flush=True)
            measure_one(bench, point, number > len(fixed), run)
            write_json(options.json, run)
        if options.family or options.family_only:
            measure_family(bench, options, run)
    return run


def measure_family(bench: Any, options: argparse.Namespace, run: Dict[str, Any]) -> None:
    from family import PROBLEMS  # needs the Python package besides

    for problem in selected(PROBLEMS, options):
        print(problem.label(), file=sys.stderr, flush=True)
        try:
            run["points"].append(bench.measure_problem(problem))
            print(report.text_line(run["points"][-1]), flush=True)
        except ValueError as wrong:
            run["failures"].append(f"{problem.label()}: {wrong}")
        write_json(options.json, run)


def measure_one(bench: Any, point: Point, drawn: bool, run: Dict[str, Any]) -> None:
    """Adds the point, or why onepass failed at it, to the run."""
    try:
        line = bench.measure(point, drawn)
    except ValueError as wrong:
        run["failures"].append(f"{point.label()}: {wrong}")
        print(f"compare: {run['failures'][-1]}", file=sys.stderr, flush=True)
        return
    run["points"].append(line)
    if not drawn:
        print(report.text_line(line), flush=True)


def merged(paths: Sequence[Path]) -> Dict[str, Any]:
    """The runs of one machine as one: the first one's description, everyone's points. A point that was
    measured again is the last run's, and says at which commit if that is another one."""
    runs = [json.loads(path.read_text()) for path in paths]
    result = {**runs[0], "failures": []}
    points = {}
    for run in runs:
        elsewhere = {} if run["commit"] == result["commit"] else {"commit": run["commit"]}
        for line in run["points"]:
            name = tuple(line[key] for key in ("set", "op", "label", "dtype", "dir"))
            points[name] = {**elsewhere, **line}
        result["failures"] += run["failures"]
        if run["random"]:
            result.update(random=run["random"], seed=run["seed"])
    return {**result, "points": list(points.values())}


def main() -> int:
    options = parse_options()
    run = report.mend_copies(merged(options.render) if options.render else measure_all(options))
    for line in [*report.random_summary(run), *report.package_summary(run)]:
        print(line)
    write_json(options.json, run)
    if options.markdown:
        options.markdown.write_text(report.markdown(run, options.plot))
    if options.plot:
        report.draw(run, options.plot)
    if run["failures"]:
        print(f"compare: {len(run['failures'])} points failed", file=sys.stderr)
    return 1 if run["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
