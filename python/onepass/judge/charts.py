"""Two charts as SVG: bars of speedups, and times against bytes. Colours come from the page, by class."""

import html
import math
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

__all__ = ["Bar", "Point", "roofline", "speedups"]

WIDTH = 1000
Scale = Callable[[float], float]  # from a value to a place


class Bar(NamedTuple):
    group: str
    label: str
    kind: str  # the verdict, as a class
    sign: str
    value: float
    low: float
    high: float
    over_compile: Optional[float]


class Point(NamedTuple):
    task: str
    label: str
    kind: str
    bytes: int
    seconds: float
    eager: float


class Name(NamedTuple):
    """A piece of text in the chart, about as wide as its letters are many."""
    left: float
    height: float
    text: str

    def meets(self, other: "Name") -> bool:
        def right(name: Name) -> float:
            return name.left + 6.6 * len(name.text)
        beside = right(self) < other.left or self.left > right(other)
        return not beside and abs(self.height - other.height) < 14.0


def escape(text: str) -> str:
    return html.escape(text, quote=True)


def nice_ticks(low: float, high: float, steps: Sequence[float]) -> List[float]:
    ticks = [step * 10.0 ** power for power in range(-12, 16) for step in steps]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text_at(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def picture(height: float, about: str, parts: Sequence[str]) -> str:
    return (f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(about)}">'
            f'{"".join(parts)}</svg>')


def speedups(bars: Sequence[Bar]) -> str:
    """From 1, to the right if faster, to the left if slower."""
    left, right, row, gap, top = 170, 96, 24, 16, 26
    least = min(0.5, *(bar.low for bar in bars), *(bar.over_compile or 1.0 for bar in bars))
    most = max(4.0, *(bar.high for bar in bars), *(bar.over_compile or 1.0 for bar in bars))
    low, high = math.log(max(least, 1e-3) * 0.92), math.log(most * 1.08)

    def x(value: float) -> float:
        place = (math.log(min(max(value, 1e-3), 1e9)) - low) / (high - low)
        return left + place * (WIDTH - left - right)

    parts: List[str] = []
    y, before = top, ""
    body: List[str] = []
    for bar in bars:
        if bar.group != before:
            y += gap if before else 4
            before = bar.group
            body.append(f'<text x="0" y="{y + 14}" font-weight="600">{escape(bar.group)}</text>')
            y += row - 2
        body.append(one_bar(bar, x, y))
        y += row
    bottom = y + 6
    ticks = nice_ticks(math.exp(low), math.exp(high), (1, 2, 5))
    for tick in ticks:
        parts.append(line("grid", x(tick), top - 6, x(tick), bottom)
                     + text_at(x(tick), top - 11, f"{number(tick)}×", "soft", "middle"))
    for mark, text in ((1.0, ""), (2.0, "accepted from here")):
        parts.append(line("axis" if mark == 1.0 else "mark", x(mark), top - 6, x(mark), bottom))
        if text:
            parts.append(text_at(x(mark) + 5, bottom + 14, text, "soft"))
    height = bottom + 22
    return picture(height, "Bar chart of speedups over PyTorch eager", parts + body)


def one_bar(bar: Bar, x: Scale, y: float) -> str:
    one, end = x(1.0), x(bar.value)
    start, width = min(one, end), max(abs(end - one), 1.5)
    middle = y + 9
    low, high = x(bar.low), x(bar.high)
    ring = ""
    if bar.over_compile:
        ring = (f'<circle class="ring" cx="{x(bar.over_compile):.1f}" cy="{middle}" r="4.5"><title>'
                f"{number(bar.over_compile)}× over torch.compile</title></circle>")
    return (f'<g class="{bar.kind}"><text x="14" y="{y + 13}">{escape(bar.label)}</text>'
            f'<rect class="shape" x="{start:.1f}" y="{y + 1}" width="{width:.1f}" height="16" rx="2.5">'
            f"<title>{escape(bar.group)} {escape(bar.label)}: {number(bar.value)}× "
            f"({number(bar.low)} to {number(bar.high)})</title></rect>"
            + line("whisker", low, middle, high, middle)
            + line("whisker", low, middle - 3, low, middle + 3)
            + line("whisker", high, middle - 3, high, middle + 3) + ring
            + text_at(WIDTH - 34, y + 13, f"{number(bar.value)}×", "value", "end")
            + text_at(WIDTH - 18, y + 13, bar.sign, "sign", "middle") + "</g>")


def roofline(points: Sequence[Point], copy_speed: float) -> str:
    left, right, top, bottom, height = 74, 210, 14, 46, 440
    fewest, largest = min(p.bytes for p in points), max(p.bytes for p in points)
    x_low, x_high = math.log10(fewest / 2.2), math.log10(largest * 2.2)
    times = [t for p in points for t in (p.seconds, p.eager)]
    y_low = math.log10(min(*times, fewest / 2.2 / copy_speed) / 1.15)
    y_high = math.log10(max(*times, largest / copy_speed) * 1.5)

    def x(size: float) -> float:
        return left + (math.log10(size) - x_low) / (x_high - x_low) * (WIDTH - left - right)

    def y(seconds: float) -> float:
        return top + (y_high - math.log10(seconds)) / (y_high - y_low) * (height - top - bottom)

    parts: List[str] = []
    for tick in nice_ticks(10 ** y_low, 10 ** y_high, (1,) if y_high - y_low > 2.5 else (1, 2, 5)):
        parts.append(line("grid", left, y(tick), WIDTH - right, y(tick))
                     + text_at(left - 8, y(tick) + 4, duration(tick), "soft", "end"))
    for tick in nice_ticks(10 ** x_low, 10 ** x_high, (1, 2, 5) if x_high - x_low < 2.5 else (1,)):
        parts.append(line("grid", x(tick), top, x(tick), height - bottom)
                     + text_at(x(tick), height - bottom + 18, amount(tick), "soft", "middle"))
    parts.append(text_at((left + WIDTH - right) / 2, height - 6, "bytes that must move", "soft", "middle"))
    start, end = 10 ** x_low, 10 ** x_high
    name = Name(x(end) + 6, y(end / copy_speed), "the copy")
    parts.append(line("copy", x(start), y(start / copy_speed), x(end), y(end / copy_speed))
                 + text_at(name.left, name.height + 4, name.text, "soft"))
    parts += threads(points, x, y, [name])
    return picture(height, "Time against bytes, with the line of the copy", parts)


def threads(points: Sequence[Point], x: Scale, y: Scale, placed: List[Name]) -> List[str]:
    """From PyTorch down to the candidates of each task, with their names where those that are placed leave
    room."""
    parts: List[str] = []
    tasks: Dict[str, List[Point]] = {}
    for point in points:
        tasks.setdefault(point.task, []).append(point)
    for task, group in tasks.items():
        middle, eager = x(group[0].bytes), sorted(point.eager for point in group)[len(group) // 2]
        fastest = min(point.seconds for point in group)
        about = f"{escape(task)} in PyTorch eager: {duration(eager)}"
        parts.append(line("mark", middle, y(eager), middle, y(fastest))
                     + '<g class="skipped">'
                     f'<circle class="hollow" cx="{middle:.1f}" cy="{y(eager):.1f}" r="5">'
                     f"<title>{about}</title></circle></g>")
    for point in sorted(points, key=lambda each: each.seconds):
        middle, height = x(point.bytes), y(point.seconds)
        text = f"{point.task} · {point.label}, {duration(point.seconds)}"
        name = with_room(Name(middle + 18, height, text), placed)
        placed.append(name)
        parts.append(
            f'<g class="{point.kind}"><circle class="shape" cx="{middle:.1f}" cy="{height:.1f}" r="5.5">'
            f"<title>{escape(text)}</title></circle>"
            + line("whisker", middle + 7, height, middle + 15, name.height)
            + text_at(name.left, name.height + 4, text) + "</g>")
    return parts


def with_room(name: Name, placed: Sequence[Name]) -> Name:
    """At the nearest height at which it meets no other."""
    for step in range(40):
        for height in (name.height - 4.0 * step, name.height + 4.0 * step):
            moved = name._replace(height=height)
            if not any(moved.meets(other) for other in placed):
                return moved
    return name


def duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def amount(size: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= 0.9995 * factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"
