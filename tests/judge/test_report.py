"""The report renders in a browser: everything inside the page, nothing over the edge, in light and dark."""

import json
import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from onepass.judge.report import markdown_of, page_of, write_report
from onepass.judge.verdict import Judgement

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VOID = {"meta", "br", "line", "rect", "circle", "path"}


def estimate(value: float) -> Dict[str, float]:
    return {"median": value, "low": value * 0.95, "high": value * 1.07, "count": 15}


def judged(task: str, name: str, verdict: str, speedup: float = 0.0, of_copy: float = 0.5) -> Judgement:
    details: Dict[str, Any] = {"device": {"kind": "cuda", "name": "A GPU <of> ours"}, "seed": 1,
                               "notes": ["a note"], "evidence": [], "build_s": 1.5}
    if speedup:
        details.update({
            "speedup": estimate(speedup), "speedup_over_compile": estimate(speedup / 2),
            "time": {"calls": 4, "idle_ms": 0.1, "eager_ms": estimate(10.0), "copy_ms": estimate(1.0),
                     "candidate_ms": estimate(10 / speedup), "compile_ms": estimate(5.0)},
            "limit": {"bytes": 10 ** 9 if task == "pool" else 10 ** 8, "of_copy": estimate(of_copy),
                      "copy_gb_s": 4000.0, "floor_ms": 0.9, "impossible": None},
            "memory": {"extra": 0, "growth_per_call": 0.0, "calls": 100}, "kernels": [],
            "right": [{"input": "fresh", "passed": True, "largest_error": 1e-7, "relative_error": 1e-8,
                       "pytorch_error": 1e-8, "bits": 24.0}],
            "advice": [{"about": "passes", "text": "the time is that of 2 passes", "gain": 2.0}]})
    if name == "onepass":
        details["made_with"] = "onepass"
    candidate = f"/x/{task}.py" if name == "onepass" else f"/x/{task}/{name}.py"
    return Judgement(f"/x/{task}.py", candidate, verdict, "a reason with <b>markup</b> & more", details)


JUDGEMENTS = [
    judged("pool", "onepass", "at the limit", 12.0, 0.97), judged("pool", "triton", "good", 1.7),
    judged("pool", "cuda_textbook", "slower", 0.4), judged("norm", "onepass", "accepted", 35.0),
    judged("norm", "textbook", "rethink", 1.2), judged("norm", "thief", "cheating"),
    judged("norm", "typo", "broken"), judged("norm", "sloppy", "wrong"),
    judged("norm", "elsewhere", "skipped")]


def a_real_run() -> List[Judgement]:
    """With as many names in one place as there are."""
    path = Path(__file__).parents[2] / "docs" / "results" / "judge-h200.json"
    judgements = []
    for line in json.loads(path.read_text()):
        reference, name = (line.pop(key) for key in ("reference", "candidate"))
        candidate = f"/x/{reference}.py" if name == "onepass" else f"/x/{reference}/{name}.py"
        judgements.append(Judgement(f"/x/{reference}.py", candidate, line["verdict"], line["reason"], line))
    return judgements


class Reader(HTMLParser):
    """Tags that are open, and what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: List[str] = []
        self.fetched: List[str] = []
        self.text: List[str] = []

    def handle_starttag(self, tag: str, attributes: List[Tuple[str, Optional[str]]]) -> None:
        self.fetched += [str(value) for name, value in attributes if name in ("src", "href", "xlink:href")]
        assert tag != "script"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_is_whole_and_fetches_nothing() -> None:
    reader = read(page_of(JUDGEMENTS, "a title & more"))
    assert reader.fetched == []
    text = " ".join(reader.text)
    for word in ("a title & more", "A GPU <of> ours", "at the limit", "cheating", "the copy", "35×",
                 "a reason with <b>markup</b>"):
        assert word in text, word


@pytest.mark.parametrize("judgements", [[], JUDGEMENTS[5:], JUDGEMENTS[:1]], ids=["none", "no times", "one"])
def test_there_may_be_little_to_show(judgements: List[Judgement]) -> None:
    read(page_of(judgements, "title"))
    assert markdown_of(judgements, "title").startswith("# title\n")


def test_markdown_and_json(tmp_path: Path) -> None:
    write_report(str(tmp_path / "r.html"), JUDGEMENTS, "title")
    lines = (tmp_path / "r.md").read_text().splitlines()
    assert "| norm | onepass | **accepted** | 10 | 0.286 | 35× | 17.5× | 0.5 |" in lines
    parsed = json.loads((tmp_path / "r.json").read_text())
    assert [line["verdict"] for line in parsed] == [j.verdict for j in JUDGEMENTS]
    assert parsed[1]["candidate"] == "triton" and "/x/" not in json.dumps(parsed)


def browser() -> str:
    found = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if not found:
        pytest.skip("rendering the report: there is no Chromium")
    return found


PROBE = """<script>
addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter(e => !e.closest("details:not([open])"))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".panel"));
  const texts = [...document.querySelectorAll("svg text")].map(e => e.getBoundingClientRect());
  const charts = [...document.querySelectorAll("svg")].map(s => [s, s.getBoundingClientRect()]);
  const out = charts.flatMap(([s, b]) => [...s.querySelectorAll("text")].filter(t => {
      const r = t.getBoundingClientRect();
      return r.right > b.right + 1 || r.left < b.left - 1 || r.bottom > b.bottom + 1 || r.top < b.top - 1 })
      .map(t => t.textContent));
  const over = [];
  texts.forEach((a, i) => texts.slice(i + 1).forEach(b => {
    const beside = a.left >= b.right - 1 || b.left >= a.right - 1;
    if (!beside && a.top < b.bottom - 4 && b.top < a.bottom - 4) over.push(1) }));
  const bars = [...document.querySelectorAll("svg rect.shape")].map(e => e.getBoundingClientRect().width);
  document.title = JSON.stringify({wide: wide.length, out, over: over.length, bars,
    ink: getComputedStyle(document.body).color, paper: getComputedStyle(document.body).backgroundColor});
});
</script>"""


@pytest.mark.parametrize("judgements", [JUDGEMENTS, a_real_run()], ids=["", "a real run"])
@pytest.mark.parametrize("width", [1100, 420])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_renders(tmp_path: Path, theme: str, width: int, judgements: List[Judgement]) -> None:
    page = tmp_path / "page.html"
    page.write_text(page_of(judgements, "title").replace("</body>", PROBE + "</body>"))
    settings = ["--blink-settings=preferredColorScheme=" + ("0" if theme == "dark" else "1")]
    done = subprocess.run(
        [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
         *settings, f"--window-size={width},1600", "--virtual-time-budget=3000", "--dump-dom", page.as_uri()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, timeout=120,
        env={**os.environ, "HOME": str(tmp_path)})
    title = done.stdout.split("<title>")[1].split("</title>")[0].replace("&quot;", '"').replace("&amp;", "&")
    seen = json.loads(title)
    assert seen["wide"] == 0 and seen["out"] == [] and seen["over"] == 0, seen
    assert len(seen["bars"]) == sum("time" in j.details for j in judgements) and min(seen["bars"]) > 1
    paper = sum(int(part) for part in seen["paper"][4:-1].split(",")[:3])
    ink = sum(int(part) for part in seen["ink"][4:-1].split(",")[:3])
    assert (paper > 600 > ink) if theme == "light" else (paper < 150 < ink), seen
