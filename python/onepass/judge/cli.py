"""The command."""

import argparse
import json
import os
import secrets
import sys
from typing import Any, Dict, List, NoReturn, Optional, Sequence, TextIO

import torch

from .bench import Bench, Options
from .devices import Device, available_memory, open_device
from .guard import adopt_orphans, hide
from .process import Failure
from .report import short_label, write_report
from .source import classes_of
from .suite import find_pairs, judge_suite, sizes_of
from .trial import judge_candidate
from .verdict import BAD_USAGE, CANNOT_JUDGE, Judgement, worst_status

__all__ = ["main"]

DESCRIPTION = """\
Is this kernel right, is it faster, how far is it from the limit, and what next?

REFERENCE.py has the classes and functions Model, get_inputs and get_init_inputs;
CANDIDATE.py has ModelNew, of any kind: inline CUDA, Triton, plain PyTorch, onepass.
Without CANDIDATE.py, ModelNew is in REFERENCE.py as well.
"""
EPILOG = """\
examples:
  onepass-judge layer_norm.py my_layer_norm.py
  onepass-judge --quick --no-compile layer_norm.py      while trying things out
  onepass-judge --tol 1e-2 --backward reference.py candidate.py
  onepass-judge --set batch_size=64 reference.py        a smaller problem
  onepass-judge --suite examples/kernelbench --report report.html

verdicts and exit statuses:
   0  accepted      at least twice as fast as PyTorch
   0  at the limit  within 5 % of the speed of a memory copy, whatever the speedup
  10  good          1.5 to 2 times as fast
  11  rethink       1 to 1.5 times as fast
  12  slower        slower than PyTorch
  20  wrong         another answer than the reference's
  21  broken        does not compile, crashes, hangs, takes too much memory, leaks
  22  cheating      with the evidence
   2  bad usage
   3  the reference or this machine is not fit to judge with
A suite exits with the worst of wrong, broken and cheating, or 0.
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"onepass-judge: {message} (--help explains)", file=sys.stderr)
        sys.exit(BAD_USAGE)


def make_parser() -> Parser:
    parser = Parser(prog="onepass-judge", description=DESCRIPTION, epilog=EPILOG,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("reference", metavar="REFERENCE.py", nargs="?")
    add("candidate", metavar="CANDIDATE.py", nargs="?")
    add("--suite", metavar="DIR", help="judge every pair in a folder: NAME.py with its own ModelNew, and "
                                       "NAME/*.py")
    add("--report", metavar="FILE.html", help="also write a page to look at, and FILE.md and FILE.json "
                                              "beside it")
    add("--json", action="store_true", help="print JSON, one object a candidate")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    add("--tol", type=float, default=1e-4, metavar="T", help="relative and absolute tolerance (1e-4)")
    add("--backward", action="store_true", help="gradients, too: they are checked, and forward and backward "
                                                "timed")
    add("--no-torch-ops", action="store_true", help="the candidate may not compute with PyTorch's operators")
    add("--non-finite", action="store_true", help="inputs with NaN and Inf, too")
    add("--quick", action="store_true", help="fewer inputs and repetitions")
    add("--no-compile", action="store_true", help="do not compare with torch.compile")
    add("--rounds", type=int, default=0, metavar="N", help="repetitions of the timing (15, quick 7)")
    add("--timeout", type=float, default=600.0, metavar="S", help="seconds a candidate may take in all (600)")
    add("--build-timeout", type=float, default=300.0, metavar="S",
        help="seconds for its import, construction and first call (300)")
    add("--memory", type=float, default=0.0, metavar="GIB", help="memory it may take (three quarters of what "
                                                                 "is free)")
    add("--threads", type=int, default=0, metavar="N", help="threads of the CPU (all)")
    add("--seed", type=int, default=None, metavar="N",
        help="repeat a run's inputs. Without it they cannot be foreseen; it is printed in the end")
    add("--set", action="append", default=[], metavar="NAME=VALUE", dest="overrides",
        help="give a number of the reference's file another value, such as batch_size=64")
    add("--sizes", metavar="NAME", default="", help="with --suite: take the values of that name from "
                                                    "DIR/sizes.json")
    add("--build-cache", metavar="DIR", default="", help="keep compiled extensions there, by the candidate's "
                                                         "source")
    add("--ncu", action="store_true", help="ask Nsight Compute for the hardware's counters, where it is "
                                           "permitted")
    return parser


def options_of(arguments: argparse.Namespace, parser: Parser) -> Options:
    for name in ("tol", "timeout", "build_timeout"):
        if not getattr(arguments, name) > 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(arguments, name):g}, expected more than 0")
    if arguments.memory < 0 or arguments.rounds < 0 or arguments.threads < 0:
        parser.error("--memory, --rounds and --threads cannot be negative")
    threads = arguments.threads or len(os.sched_getaffinity(0))
    return Options(
        device=arguments.device, tolerance=arguments.tol, backward=arguments.backward,
        no_torch_ops=arguments.no_torch_ops, non_finite=arguments.non_finite, quick=arguments.quick,
        compile=not arguments.no_compile, timeout=arguments.timeout, build_timeout=arguments.build_timeout,
        memory=int(arguments.memory * 2**30) or available_memory() * 3 // 4, threads=threads,
        seed=secrets.randbits(48) if arguments.seed is None else arguments.seed,
        overrides=parse_overrides(arguments.overrides, parser), rounds=arguments.rounds,
        build_cache=os.path.abspath(arguments.build_cache) if arguments.build_cache else "",
        ncu=arguments.ncu)


def parse_overrides(texts: Sequence[str], parser: Parser) -> Dict[str, Any]:
    values: Dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            values[name] = json.loads(value)
        except ValueError:
            parser.error(f"--set {text}: expected NAME=NUMBER")
    return values


def check_files(reference: str, candidate: str, parser: Parser) -> None:
    for path, needed in ((reference, ("Model", "get_inputs", "get_init_inputs")), (candidate, ("ModelNew",))):
        try:
            names = classes_of(path)
        except OSError as error:
            parser.error(f"{path}: {error.strerror}")
        except (SyntaxError, ValueError) as error:
            if path == candidate and path != reference:
                return  # the candidate's own fault, and a verdict
            parser.error(f"{path}: {error}")
        missing = [name for name in needed if name not in names]
        if missing:
            parser.error(f"{path} has no {', no '.join(missing)}")


def check_suite(arguments: argparse.Namespace, parser: Parser) -> None:
    try:
        if not find_pairs(arguments.suite):
            parser.error(f"{arguments.suite} has no NAME.py with Model and a ModelNew beside it")
        sizes_of(arguments.suite, arguments.sizes)
    except (OSError, ValueError) as error:
        parser.error(str(error))


class Progress:
    """A line on a terminal that says what is being done."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.shown = stream, stream.isatty()
        self.prefix = ""

    def __call__(self, text: str) -> None:
        if self.shown:
            self.stream.write(f"\r\033[K{self.prefix}{text}")
            self.stream.flush()

    def clear(self) -> None:
        if self.shown:
            self.stream.write("\r\033[K")
            self.stream.flush()


def main(given: Optional[Sequence[str]] = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(given)
    if arguments.suite:
        if arguments.reference:
            parser.error("--suite takes the files of its folder; no REFERENCE.py beside it")
    elif not arguments.reference:
        parser.error("which REFERENCE.py?")
    if arguments.sizes and not arguments.suite:
        parser.error("--sizes goes with --suite")
    options = options_of(arguments, parser)
    if arguments.suite:
        check_suite(arguments, parser)
    else:
        check_files(arguments.reference, arguments.candidate or arguments.reference, parser)
    adopt_orphans()
    hide()
    torch.set_num_threads(options.threads)
    progress = Progress(sys.stderr)
    try:
        device = open_device(options.device, options.threads)
    except OSError as error:
        print(f"onepass-judge: {error}", file=sys.stderr)
        return CANNOT_JUDGE
    judge = judge_folder if arguments.suite else judge_one
    try:
        return judge(arguments, options, device, progress)
    finally:
        progress.clear()
        device.close()


def judge_one(arguments: argparse.Namespace, options: Options, device: Device, progress: Progress) -> int:
    progress("the reference")
    try:
        bench = Bench(arguments.reference, options, device)
    except Failure as failure:
        progress.clear()
        print(f"onepass-judge: the reference fails: {failure.reason}", file=sys.stderr)
        return CANNOT_JUDGE
    try:
        judgement = judge_candidate(bench, arguments.candidate or arguments.reference, progress)
    except Failure as failure:
        progress.clear()
        print(f"onepass-judge: the reference fails: {failure.reason}", file=sys.stderr)
        return CANNOT_JUDGE
    finally:
        bench.close()
    progress.clear()
    print_judgement(judgement, arguments.json)
    if arguments.report:
        write_report(arguments.report, [judgement], f"{os.path.basename(arguments.reference)}, judged")
    return judgement.exit_status


def judge_folder(arguments: argparse.Namespace, options: Options, device: Device, progress: Progress) -> int:
    judgements: List[Judgement] = []
    sizes = sizes_of(arguments.suite, arguments.sizes)

    def say(number: int, count: int, text: str) -> None:
        done = 20 * number // max(1, count)
        progress(f"[{'#' * done}{'.' * (20 - done)}] {number + 1}/{count} {text}")

    for judgement in judge_suite(arguments.suite, options, device, sizes, say):
        progress.clear()
        judgements.append(judgement)
        if arguments.json:
            print(json.dumps(judgement.to_json()), flush=True)
        else:
            print(line_of(judgement), flush=True)
    progress.clear()
    if arguments.report:
        title = f"{os.path.basename(os.path.abspath(arguments.suite))}, judged"
        write_report(arguments.report, judgements, title)
    return worst_status(judgements)


def line_of(judgement: Judgement) -> str:
    """A suite's candidate in one line."""
    name = f"{os.path.basename(judgement.reference)[:-3]} · {short_label(judgement)}"
    return f"{name:34} {judgement.verdict:13} {judgement.reason}"


def print_judgement(judgement: Judgement, as_json: bool) -> None:
    if as_json:
        print(json.dumps(judgement.to_json()))
    else:
        print("\n".join(lines_of(judgement)))


def lines_of(judgement: Judgement) -> List[str]:
    details = judgement.details
    lines = []
    if "time" in details:
        times = details["time"]
        lines.append(f"Original time: {times['eager_ms']['median']:.4g} ms, New time: "
                     f"{times['candidate_ms']['median']:.4g} ms, Speedup: "
                     f"{details['speedup']['median']:.2f}x")
    lines.append(f"Verdict: {judgement.verdict}: {judgement.reason}")
    lines += [f"  evidence: {text}" for text in details.get("evidence", [])[1:]]
    if details.get("tail"):
        lines += ["  the last lines it printed:", *(f"  | {line}" for line in details["tail"].splitlines())]
    for advice in details.get("advice", []):
        lines.append(f"  next (up to {advice['gain']:.2g}x): {advice['text']}")
    lines += [f"  note: {text}" for text in details.get("notes", [])]
    lines.append(f"  {details['device']['name']}; seed {details['seed']}; {details['seconds']} s")
    return lines
