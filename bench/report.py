"""What compare.py shows: lines of text, a Markdown page and a picture, from its JSON alone."""

import statistics
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

__all__ = ["HEADER", "draw", "markdown", "mend_copies", "package_summary", "random_summary", "text_line"]

PEERS = {"eager": "eager", "compile": "torch.compile", "liger": "Liger"}
NEVER_SLOWER = ("eager", "compile")  # than these, beyond the noise
NOISE = 1.03
ODD_COLUMNS, EVEN_COLUMNS, ODD_COST = 4095, 4096, 1.08
NAMES = {"l1_norm": "L1Norm", "layer_norm": "LayerNorm", "avg_pool1d": "AvgPool1d"}
DIRECTIONS = {"fwd": "forward", "bwd": "backward"}
COLORS = {"onepass": "#0b6e4f", "eager": "#8d99ae", "compile": "#e07a1f", "liger": "#7b4ea3"}

# At least this fraction of the copy's speed, forward and backward, for the fixed points.
TARGETS = {"l1_norm": {"fwd": 0.93, "bwd": 0.70}, "avg_pool1d": {"fwd": 0.93, "bwd": 0.90},
           "layer_norm": {"fwd": 0.85, "bwd": 0.60}}
FEW_HUGE_ROWS = {"fwd": 0.72, "bwd": 0.55}  # layer_norm over the last three axes

Line = Dict[str, Any]
Run = Dict[str, Any]


# ---- Copies --------------------------------------------------------------------------------------

LARGE = 64_000_000  # bytes, from which on copies should all have the same speed
SLOW = 0.85  # of the speed of the others


def mend_copies(run: Run) -> Run:
    """Large copies of some sizes run at two thirds of the speed of others. Their points are given against
    the others' median speed, and are marked with what their own copy would make of them."""
    large = [line for line in run["points"] if line["bytes"] >= LARGE]
    speeds = [line["bytes"] / line["us"]["copy"] for line in large]
    steady = [speed for speed in speeds if speed > SLOW * max(speeds)]
    for line, speed in zip(large, speeds):
        if "of_own_copy" not in line and speed < SLOW * statistics.median(steady):
            line["of_own_copy"] = line["of_copy"]
            line["of_copy"] = round(
                line["bytes"] / statistics.median(steady) / line["us"]["onepass"], 4)
    return run


def copy_us(line: Line) -> float:
    return line["of_copy"] * line["us"]["onepass"]


def of_copy(line: Line) -> str:
    return f"{line['of_copy']:.2f}{'*' if 'of_own_copy' in line else ''}"


# ---- One point -----------------------------------------------------------------------------------


def target(line: Line) -> float:
    if "target" in line:
        return line["target"]
    if line["op"] == "layer_norm" and line["axis"] != -1:
        return FEW_HUGE_ROWS[line["dir"]]
    return TARGETS[line["op"]][line["dir"]]


def ratio(line: Line, peer: str) -> Optional[float]:
    """How many times as long as onepass the peer takes."""
    return line["us"][peer] / line["us"]["onepass"] if peer in line["us"] else None


def slower_than(line: Line) -> List[str]:
    """Whom onepass is slower than, beyond the noise."""
    return [peer for peer in NEVER_SLOWER if (ratio(line, peer) or NOISE) < 1 / NOISE]


def misses(line: Line) -> List[str]:
    missed = [f"below {target(line):.2f}"] if line["of_copy"] < target(line) else []
    missed += [f"slower than {PEERS[peer]}" for peer in slower_than(line)]
    return missed + [f"no {PEERS[peer]}" for peer in NEVER_SLOWER if peer not in line["us"]]


def problem(line: Line) -> str:
    if line["set"] == "family":
        return f"{line['op']} {line['label'].replace('x', '×')}"
    shape = "×".join(map(str, line["shape"]))
    if line["op"] == "avg_pool1d":
        shape += f" k{line['kernel_size']} s{line['stride']} p{line['padding']}"
    elif line["axis"] != -1:
        shape += f" over the last {-line['axis']}"
    return f"{NAMES[line['op']]} {shape}"


def times(value: Optional[float]) -> str:
    return "–" if value is None else f"{value:.2f}"


def select(run: Run, kind: str) -> List[Line]:
    return [line for line in run["points"] if line["set"] == kind]


# ---- Text ----------------------------------------------------------------------------------------

HEADER = (f"{'problem':<40}{'dtype':<6}{'dir':<4}{'onepass us':>11}{'of_copy':>9}"
          f"{'eager/1p':>10}{'compile/1p':>11}{'liger/1p':>10}{'wall us':>10}  kernel")


def text_line(line: Line) -> str:
    eager, compiled, liger = (times(ratio(line, peer)) for peer in PEERS)
    return (f"{line['op'] + ' ' + line['label']:<40}{line['dtype']:<6}{line['dir']:<4}"
            f"{line['us']['onepass']:>11.2f}{line['of_copy']:>9.3f}{eager:>10}{compiled:>11}"
            f"{liger:>10}{line['wall_us']['onepass']:>10.2f}  {line['kernel']}")


def worst(lines: Sequence[Line], peer: str, count: int = 10) -> List[Line]:
    measured = [line for line in lines if peer in line["us"]]
    return sorted(measured, key=lambda line: ratio(line, peer) or 0.0)[:count]


def package_summary(run: Run) -> List[str]:
    """What the fixed points reach through the Python package, if that was measured."""
    lines = [line for line in select(run, "fixed") if "package" in line["us"]]
    made = [f"{'through the Python package':<40}{'dtype':<6}{'dir':<4}{'us':>11}{'of_copy':>9}{'target':>8}"
            f"{'eager':>8}{'compile':>9}"]
    for line in lines:
        us = line["us"]
        eager, compiled = (times(us[peer] / us["package"] if peer in us else None) for peer in NEVER_SLOWER)
        made.append(f"{line['op'] + ' ' + line['label']:<40}{line['dtype']:<6}{line['dir']:<4}"
                    f"{us['package']:>11.2f}{copy_us(line) / us['package']:>9.3f}{target(line):>8.2f}"
                    f"{eager:>8}{compiled:>9}")
    return made if lines else []


def random_summary(run: Run) -> List[str]:
    """The random shapes in lines of text; nothing if there are none."""
    lines = select(run, "random")
    text = []
    for peer in NEVER_SLOWER if lines else ():
        text += ["", tally(run, lines, peer), HEADER, *map(text_line, worst(lines, peer))]
    return text


def tally(run: Run, lines: Sequence[Line], peer: str) -> str:
    ratios = [ratio(line, peer) or 0.0 for line in lines if peer in line["us"]]
    if not ratios:
        return f"seed {run['seed']}: {PEERS[peer]} was not measured"
    slower = sum(peer in slower_than(line) for line in lines)
    return (f"{len(ratios)} random points (seed {run['seed']}) against {PEERS[peer]}: "
            f"median {statistics.median(ratios):.2f}, worst {min(ratios):.2f} times as fast; "
            f"{slower} slower beyond {NOISE - 1:.0%}. The ten worst:")


# ---- Markdown ------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def markdown(run: Run, picture: Optional[Path]) -> str:
    fixed, drawn = select(run, "fixed"), select(run, "random")
    text = heading(run)
    if picture:
        text += [f"![Fraction of the copy's speed]({picture.name})", ""]
    if fixed:
        text += points_section("Fixed points", "", fixed) + odd_section(fixed)
    family = select(run, "family")
    if family:
        text += points_section(
            "The family", "Other operators, through the Python package; for batch_norm in training "
            "and frobenius_norm the copy moves two reads and a write. ", family)
    if drawn:
        text += random_section(run, drawn)
    for failure in run["failures"]:
        text += [f"**Failed**: {failure}", ""]
    return "\n".join(text + omissions(run) + method(run))


def heading(run: Run) -> List[str]:
    machine = run["machine"]
    commit = f", commit {run['commit']}" if run["commit"] else ""
    liger = "Liger" if machine["liger"] else "no Liger"
    return [f"# onepass and PyTorch on {machine['gpu']}", "",
            f"onepass {machine['onepass']}{commit}; PyTorch {machine['torch']} (CUDA "
            f"{machine['cuda']}), {liger}; driver {machine['driver']}; {run['date']}.", "",
            "Made by `bench/compare.py`; the same numbers and more are in the JSON beside this "
            "file.", ""]


def points_section(title: str, note: str, fixed: Sequence[Line]) -> List[str]:
    rows = []
    for line in fixed:
        missed = misses(line)
        verdict = f"**missed**: {', '.join(missed)}" if missed else "met"
        peers = [times(ratio(line, peer)) for peer in PEERS]
        rows.append([problem(line), line["dtype"], DIRECTIONS[line["dir"]],
                     f"{line['us']['onepass']:.1f}", of_copy(line),
                     f"≥ {target(line):.2f}", *peers, f"{line['wall_us']['onepass']:.1f}",
                     verdict + (f" (at {line['commit']})" if "commit" in line else "")])
    header = ["problem", "type", "direction", "onepass µs", "of copy", "target", "eager",
              "torch.compile", "Liger", "wall µs", ""]
    met = sum(not misses(line) for line in fixed)
    return [f"## {title}", "",
            f"{note}{met} of {len(fixed)} met: `of copy` at least its target, and not slower than eager "
            f"or torch.compile beyond {NOISE - 1:.0%}. The columns of these and of Liger say how "
            "many times as long as onepass each takes, in GPU time.", "",
            *table(header, rows)]


def odd_section(fixed: Sequence[Line]) -> List[str]:
    """What a row that is not a whole number of vectors costs."""
    pairs = {(line["dtype"], line["dir"], line["shape"][-1]): line["us"]["onepass"]
             for line in fixed
             if line["op"] == "layer_norm" and line["shape"][-1] in (ODD_COLUMNS, EVEN_COLUMNS)}
    rows = []
    for (dtype, direction, columns), odd in pairs.items():
        even = pairs.get((dtype, direction, EVEN_COLUMNS))
        if columns == ODD_COLUMNS and even:
            verdict = "met" if odd / even <= ODD_COST else "**missed**"
            rows.append([dtype, DIRECTIONS[direction], f"{odd / even:.3f}", f"≤ {ODD_COST}",
                         verdict])
    if not rows:
        return []
    return [f"LayerNorm with {ODD_COLUMNS} columns, its time over that with {EVEN_COLUMNS}:", "",
            *table(["type", "direction", "time", "target", ""], rows)]


def random_section(run: Run, drawn: Sequence[Line]) -> List[str]:
    text = ["## Random shapes", "",
            "Rows and columns from 1 to 10^6, tensors up to 2 GiB; torch.compile with "
            "`dynamic=True`, compiled once for an operator, type, direction and window.", ""]
    header = ["problem", "type", "direction", "onepass µs", "of copy", "eager", "torch.compile",
              "kernel"]
    for peer in NEVER_SLOWER:
        rows = [[problem(line), line["dtype"], DIRECTIONS[line["dir"]],
                 f"{line['us']['onepass']:.2f}", of_copy(line),
                 *(times(ratio(line, each)) for each in NEVER_SLOWER), line["kernel"]]
                for line in worst(drawn, peer)]
        text += [tally(run, drawn, peer), "", *table(header, rows)]
    return text


def omissions(run: Run) -> List[str]:
    """Who was left out somewhere, or was not timed by a graph, and why."""
    found: Dict[str, List[str]] = {}  # by what comes before the first two colons
    for line in run["points"]:
        queued = {name: how for name, how in line["method"].items() if how != "graph"}
        left_out = {name: f"not measured: {note}" for name, note in line["notes"].items()}
        for name, reason in {**queued, **left_out}.items():
            kind = f"{name} {':'.join(reason.split(':')[:2])}"
            found.setdefault(kind, []).append(
                f"{problem(line)} {line['dtype']} {DIRECTIONS[line['dir']]}: {reason}")
    if not found:
        return []
    return ["## Left out or measured otherwise", "",
            *(f"- {kind}: {len(where)} points. The first: {where[0]}"
              for kind, where in found.items()), ""]


def method(run: Run) -> List[str]:
    random = f" --random {run['random']} --seed {run['seed']}" if run["random"] else ""
    return ["## How it was measured", "",
            "- One process; in every repetition onepass, eager, torch.compile, Liger and the copy "
            "take turns. Medians.",
            "- GPU time: calls on buffers of their own are captured in a CUDA graph, and a replay "
            "of it is timed with events and divided by the number of calls. Before each replay "
            "other data is copied through the L2 cache.",
            "- `of copy` is the time of a device-to-device copy that reads and writes as many "
            "bytes as the operator must move, over the time of onepass. With a star: that copy was "
            "slower than others of its size, whose median speed is taken instead.",
            "- Backward is the backward pass alone: PyTorch's own operator for LayerNorm, "
            "`torch.autograd.grad` on a kept graph otherwise.",
            "- `wall µs`: calls from Python through ctypes, queued without waiting, by the clock.",
            "- Before it was timed, every result was compared with float64 on some of its rows: "
            f"the largest difference is {largest_difference(run):.1g} of the largest value.", "",
            "To do it again:", "", "```sh",
            f"make && python3 bench/compare.py{random} --json FILE.json --markdown FILE.md "
            "--plot FILE.png", "```", ""]


def largest_difference(run: Run) -> float:
    return max((line["max_difference"] for line in run["points"]), default=0.0)


# ---- Picture -------------------------------------------------------------------------------------


def draw(run: Run, path: Path) -> None:
    """The fixed points as dots, a panel for each direction."""
    import matplotlib  # only pictures need it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fixed = select(run, "fixed")
    labels = list(dict.fromkeys(f"{problem(line)} {line['dtype']}" for line in fixed))
    figure, panels = pyplot.subplots(1, 2, sharey=True, sharex=True,
                                     figsize=(12, 1.8 + 0.34 * len(labels)))
    for panel, (direction, name) in zip(panels, DIRECTIONS.items()):
        lines = [line for line in fixed if line["dir"] == direction]
        draw_panel(panel, lines, labels)
        panel.set_title(name, loc="left", fontweight="bold")
    panels[0].set_yticks(range(len(labels)), labels)
    panels[0].invert_yaxis()
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="upper right", ncol=len(names), frameon=False)
    figure.suptitle(f"Speed as a fraction of a copy's, {run['machine']['gpu']}", x=0.01, ha="left")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_panel(panel: Any, lines: Sequence[Line], labels: Sequence[str]) -> None:
    rows = [labels.index(f"{problem(line)} {line['dtype']}") for line in lines]
    panel.axvline(1.0, color="#444444", linewidth=0.8)
    panel.grid(axis="x", color="#e5e5e5")
    panel.set_axisbelow(True)
    for row, line in zip(rows, lines):
        ours = line["of_copy"]
        others = [copy_us(line) / line["us"][peer] for peer in PEERS if peer in line["us"]]
        panel.hlines(row, min([ours, *others]), ours, color="#cccccc", linewidth=1.5, zorder=1)
    panel.scatter([target(line) for line in lines], rows, marker="|", s=140, color="#bb0000",
                  label="target", zorder=2)
    for name in ("liger", "compile", "eager", "onepass"):
        dots = [(copy_us(line) / line["us"][name], row)
                for row, line in zip(rows, lines) if name in line["us"]]
        if dots:
            panel.scatter([x for x, _ in dots], [y for _, y in dots], color=COLORS[name],
                          s=60 if name == "onepass" else 34, label=PEERS.get(name, name), zorder=3)
    panel.set_xlim(left=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.tick_params(axis="y", length=0)
