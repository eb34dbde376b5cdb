"""A run of the judge as a page to look at, as Markdown and as JSON. The page needs no network, no script."""

import html
import json
import os
import time
from typing import Any, Dict, List, Optional, Sequence

from .charts import Bar, Point, roofline, speedups
from .verdict import Judgement

__all__ = ["markdown_of", "page_of", "write_report"]

ORDER = ["at the limit", "accepted", "good", "rethink", "slower", "wrong", "broken", "cheating", "skipped"]
SIGNS = {"at the limit": "★", "accepted": "✓", "good": "●", "rethink": "◐", "slower": "▼", "wrong": "✗",
         "broken": "✗", "cheating": "⚑", "skipped": "–"}


def write_report(path: str, judgements: Sequence[Judgement], title: str) -> None:
    """FILE.html, FILE.md and FILE.json."""
    base = os.path.splitext(path)[0]
    contents = {path: page_of(judgements, title), base + ".md": markdown_of(judgements, title),
                base + ".json": json.dumps([public(j) for j in judgements], indent=1) + "\n"}
    for name, text in contents.items():
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)


def public(judgement: Judgement) -> Dict[str, Any]:
    """Without the folders of the machine it ran on."""
    line = judgement.to_json()
    line["reference"], line["candidate"] = name_of(judgement.reference), short_label(judgement)
    return line


def name_of(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def label_of(judgement: Judgement) -> str:
    return f"{name_of(judgement.reference)} · {short_label(judgement)}"


def short_label(judgement: Judgement) -> str:
    """Its file's name; of a ModelNew in the reference's own file, what it is made with."""
    if judgement.candidate != judgement.reference:
        return name_of(judgement.candidate)
    return str(judgement.details.get("made_with", "ModelNew"))


def get(details: Dict[str, Any], *path: str) -> Optional[float]:
    value: Any = details
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def number(value: Optional[float], unit: str = "", digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}g}{unit}"


def speed(value: Optional[float]) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}×" if value >= 100 else f"{value:.3g}×"


# Markdown

def markdown_of(judgements: Sequence[Judgement], title: str) -> str:
    lines = [f"# {title}", "", machine_of(judgements), "",
             "| reference | candidate | verdict | eager ms | new ms | speedup | over compile | of copy |",
             "|---|---|---|---|---|---|---|---|"]
    for j in judgements:
        d = j.details
        lines.append(f"| {name_of(j.reference)} | {short_label(j)} | **{j.verdict}** | "
                     f"{number(get(d, 'time', 'eager_ms', 'median'))} | "
                     f"{number(get(d, 'time', 'candidate_ms', 'median'))} | "
                     f"{speed(get(d, 'speedup', 'median'))} | "
                     f"{speed(get(d, 'speedup_over_compile', 'median'))} | "
                     f"{number(get(d, 'limit', 'of_copy', 'median'), '', 2)} |")
    for j in judgements:
        lines += ["", f"## {label_of(j)}: {j.verdict}", "", j.reason]
        lines += [f"- next (up to {a['gain']:.2g}×): {a['text']}" for a in j.details.get("advice", [])]
        lines += [f"- evidence: {text}" for text in j.details.get("evidence", [])[1:]]
        lines += [f"- note: {text}" for text in j.details.get("notes", [])]
    return "\n".join(lines) + "\n"


def machine_of(judgements: Sequence[Judgement]) -> str:
    names = {j.details["device"]["name"]: None for j in judgements if "device" in j.details}
    return ", ".join(names) or "nothing was judged"


# HTML

STYLE = """
:root{--bg:#fbfbfa;--panel:#fff;--ink:#1c1e21;--soft:#5f6670;--line:#e3e4e6;--grid:#e9eaec;
--limit:#0b7a75;--accepted:#1b7f3b;--good:#3a7bd5;--rethink:#b7791f;--slower:#b4552d;--bad:#b3261e;
--none:#8a9099;
--mono:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
@media(prefers-color-scheme:dark){:root{--bg:#131518;--panel:#1b1e22;--ink:#e8e9eb;--soft:#9aa1ab;--line:#2c3036;
--grid:#272b31;--limit:#3fc1b8;--accepted:#5cc97e;--good:#74a9f0;--rethink:#e0a94c;--slower:#e08a63;--bad:#f07f76;
--none:#7d838c}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1080px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:17px;margin:40px 0 4px}
p.lead{color:var(--soft);margin:0 0 20px}
p.caption{color:var(--soft);margin:0 0 12px;font-size:13.5px;max-width:76ch}
.counts{display:flex;flex-wrap:wrap;gap:8px;margin:18px 0 8px}
.tag{display:inline-block;padding:1px 9px;border-radius:99px;border:1px solid currentColor;font-weight:600;
font-size:12.5px;white-space:nowrap}
.tag b{font-weight:700}
.at-the-limit{color:var(--limit)}.accepted{color:var(--accepted)}.good{color:var(--good)}
.rethink{color:var(--rethink)}.slower{color:var(--slower)}.wrong,.broken,.cheating{color:var(--bad)}
.skipped{color:var(--none)}
.panel{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:16px 18px;
overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:7px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-size:12.5px;color:var(--soft);font-weight:600}
tr:last-child td{border-bottom:0}
th:nth-child(-n+3),td:nth-child(-n+3){text-align:left}
tr.first td{border-top:2px solid var(--line)}
td.name{font-weight:600}
svg{display:block;width:100%;height:auto;
font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
svg text{fill:var(--ink)}svg text.soft{fill:var(--soft)}
svg .grid{stroke:var(--grid);stroke-width:1}svg .axis{stroke:var(--soft);stroke-width:1}
svg .mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
svg .copy{stroke:var(--limit);stroke-width:1.75}
svg .shape{fill:currentColor}
svg .ring{fill:var(--panel);stroke:var(--ink);stroke-width:1.5}svg text.sign{fill:currentColor}
svg text.value{font-weight:600}
svg .hollow{fill:var(--panel);stroke:currentColor;stroke-width:2}
svg .whisker{stroke:var(--ink);stroke-width:1.25;opacity:.75}
details{border-bottom:1px solid var(--line);padding:10px 0}
details:last-child{border-bottom:0}
summary{cursor:pointer;list-style:none;display:flex;gap:12px;align-items:baseline;flex-wrap:wrap}
summary::-webkit-details-marker{display:none}
summary::before{content:"▸";color:var(--soft)}
details[open] summary::before{content:"▾"}
summary .name{font-weight:600}
summary .why{color:var(--soft);flex:1 1 420px}
.inside{padding:8px 0 6px 22px}
.inside ul{margin:6px 0 10px;padding-left:18px}
.inside li{margin:3px 0}
.gain{font-weight:600;color:var(--good)}
.inside table{width:auto;margin:6px 0 12px;font-size:13.5px}
.inside th,.inside td{padding:3px 12px 3px 0}
.inside th:nth-child(-n+3),.inside td:nth-child(-n+3){text-align:right}
.inside th:first-child,.inside td:first-child{text-align:left}
pre{background:var(--bg);border:1px solid var(--line);border-radius:6px;padding:10px 12px;overflow-x:auto;
font:12.5px/1.45 var(--mono);margin:6px 0}
footer{color:var(--soft);font-size:13px;margin-top:36px}
@media(max-width:640px){main{padding:24px 14px}.panel{padding:12px}}
"""


def escape(text: Any) -> str:
    return html.escape(str(text), quote=True)


def css_class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def tag(verdict: str, text: Optional[str] = None) -> str:
    return f'<span class="tag {css_class(verdict)}">{SIGNS[verdict]} {escape(text or verdict)}</span>'


def page_of(judgements: Sequence[Judgement], title: str) -> str:
    counts = "".join(tag(verdict, f"{sum(j.verdict == verdict for j in judgements)} {verdict}")
                     for verdict in ORDER if any(j.verdict == verdict for j in judgements))
    measured = [j for j in judgements if "speedup" in j.details]
    sections = [table_of(judgements)]
    if measured:
        sections += [bars_section(measured), roofline_section(measured)]
    sections.append(details_section(judgements))
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width,initial-scale=1">'
            f'<meta name="color-scheme" content="light dark">'
            f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
            f"<h1>{escape(title)}</h1><p class=\"lead\">{escape(machine_of(judgements))} · {date}</p>\n"
            f'<div class="counts">{counts}</div>\n' + "\n".join(sections) +
            "\n<footer>Made by onepass-judge. Times are medians of the judge's own clock; whiskers and "
            "ranges have the median inside in 95 of 100 cases.</footer>\n</main></body></html>\n")


def table_of(judgements: Sequence[Judgement]) -> str:
    rows, before = [], ""
    for j in judgements:
        d = j.details
        first = name_of(j.reference) != before
        before = name_of(j.reference)
        rows.append(
            f'<tr{" class=first" if first and rows else ""}><td>{escape(before) if first else ""}</td>'
            f'<td class="name">{escape(short_label(j))}</td><td>{tag(j.verdict)}</td>'
            f"<td>{number(get(d, 'time', 'eager_ms', 'median'))}</td>"
            f"<td>{number(get(d, 'time', 'candidate_ms', 'median'))}</td>"
            f"<td><b>{speed(get(d, 'speedup', 'median'))}</b></td>"
            f"<td>{speed(get(d, 'speedup_over_compile', 'median'))}</td>"
            f"<td>{percent(get(d, 'limit', 'of_copy', 'median'))}</td></tr>")
    heads = "".join(f"<th>{head}</th>" for head in ("task", "candidate", "verdict", "PyTorch ms", "new ms",
                                                    "speedup", "over compile", "of the copy"))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return section("Verdicts", "Speedup is against PyTorch eager. 100 % of the copy is the speed at which "
                   "this memory copies as many bytes.", table)


def section(title: str, caption: str, content: str) -> str:
    return f'<h2>{title}</h2><p class="caption">{escape(caption)}</p><div class="panel">{content}</div>'


def percent(value: Optional[float]) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def bars_section(measured: Sequence[Judgement]) -> str:
    bars = [Bar(name_of(j.reference), short_label(j), css_class(j.verdict), SIGNS[j.verdict],
                j.details["speedup"]["median"], j.details["speedup"]["low"], j.details["speedup"]["high"],
                get(j.details, "speedup_over_compile", "median")) for j in measured]
    ring = " The ring is the speedup over torch.compile." if any(bar.over_compile for bar in bars) else ""
    return section("How much faster", "Times as fast as PyTorch eager, on a logarithmic scale, with the "
                   f"interval of the median.{ring}", speedups(bars))


def roofline_section(measured: Sequence[Judgement]) -> str:
    points, lines = [], []
    for j in measured:
        d = j.details
        speed_of_copy = d["limit"]["copy_gb_s"] * 1e9
        lines.append(speed_of_copy)
        points.append(Point(name_of(j.reference), short_label(j), css_class(j.verdict), d["limit"]["bytes"],
                            d["time"]["candidate_ms"]["median"] / 1e3, d["time"]["eager_ms"]["median"] / 1e3))
    copy = sorted(lines)[len(lines) // 2]
    return section("How far from the limit", "Time of a call against the bytes that must move. The line is "
                   f"the copy, {copy / 1e9:.4g} GB/s; on it nothing is left to gain. A thread leads from "
                   "PyTorch (hollow) down to the candidates.", roofline(points, copy))


def details_section(judgements: Sequence[Judgement]) -> str:
    blocks = []
    for j in judgements:
        blocks.append(f"<details><summary>{tag(j.verdict)}<span class=name>{escape(label_of(j))}</span>"
                      f"<span class=why>{escape(j.reason)}</span></summary>"
                      f'<div class="inside">{inside_of(j)}</div></details>')
    return section("Each candidate", "Open one for what it was asked, what it answered, and what to try "
                   "next.", "".join(blocks))


def inside_of(judgement: Judgement) -> str:
    d = judgement.details
    parts: List[str] = []
    if d.get("evidence"):
        parts.append("<b>Evidence</b>" + items(d["evidence"]))
    if d.get("advice"):
        advice = "".join(f"<li><span class=gain>up to {a['gain']:.2g}×</span> {escape(a['text'])}</li>"
                         for a in d["advice"])
        parts.append(f"<b>What next</b><ul>{advice}</ul>")
    if "time" in d:
        parts.append(times_table(d))
    if d.get("right"):
        parts.append(right_table(d["right"]))
    facts = facts_of(d)
    if facts:
        parts.append(f"<p class=caption>{escape(' · '.join(facts))}</p>")
    if d.get("notes"):
        parts.append(items(d["notes"]))
    if d.get("tail"):
        parts.append(f"<b>The last lines it printed</b><pre>{escape(d['tail'])}</pre>")
    return "".join(parts) or "<p class=caption>Nothing more is known.</p>"


def items(texts: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def times_table(d: Dict[str, Any]) -> str:
    names = {"eager_ms": "PyTorch eager", "compile_ms": "torch.compile", "candidate_ms": "candidate",
             "copy_ms": "copy of the same bytes"}
    rows = ""
    for key, label in names.items():
        if key in d["time"]:
            middle, low, high = (number(d["time"][key][each], "", 4) for each in ("median", "low", "high"))
            rows += f"<tr><td>{label}</td><td>{middle}</td><td>{low} – {high}</td></tr>"
    return f"<table><thead><tr><th>time, ms</th><th>median</th><th>range</th></tr></thead>{rows}</table>"


def right_table(cases: Sequence[Dict[str, Any]]) -> str:
    rows = "".join(f"<tr><td>{escape(case['input'])}</td><td>{case['relative_error']:.1e}</td>"
                   f"<td>{case['pytorch_error']:.1e}</td></tr>" for case in cases)
    return ("<table><thead><tr><th>input</th><th>its error</th><th>PyTorch's</th></tr></thead>"
            f"{rows}</table>")


def facts_of(d: Dict[str, Any]) -> List[str]:
    facts = []
    if "limit" in d:
        facts.append(f"{d['limit']['bytes'] / 1e6:.4g} MB must move")
        facts.append(f"copy {d['limit']['copy_gb_s']:.4g} GB/s")
    if "build_s" in d:
        facts.append(f"built in {d['build_s']:.3g} s")
    if get(d, "memory", "extra") is not None:
        facts.append(f"{d['memory']['extra'] / 1e6:.3g} MB of extra memory")
    if "memory" in d:
        growth, calls = d["memory"]["growth_per_call"], d["memory"]["calls"]
        facts.append(f"{growth / 1024:.2g} KiB of growth a call in {calls} calls")
    if "time" in d:
        facts.append(f"{d['time']['calls']} calls a batch, {d['time']['candidate_ms']['count']} batches")
    if d.get("kernels"):
        names = [str(k.get("name")) for k in d["kernels"] if k.get("device") == "cuda"]
        if names:
            facts.append(f"{len(names)} kernels: {', '.join(name[:50] for name in names[:4])}")
    if "seed" in d:
        facts.append(f"seed {d['seed']}")
    return facts


