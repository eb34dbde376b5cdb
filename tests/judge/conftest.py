"""A bench for each small reference, shared by tests that follow one another: a candidate costs little more
than a fork, on a GPU a context. There is one bench at a time: tests of the same reference stand together.

Candidates are written in the tests, as text; `against` judges one.
"""

import textwrap
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest
import torch
from onepass.judge.bench import Bench, Options
from onepass.judge.devices import Device, available_memory, open_device
from onepass.judge.guard import adopt_orphans
from onepass.judge.trial import judge_candidate
from onepass.judge.verdict import Judgement

REFERENCES: Dict[str, str] = {
    # Divides every row by the mean of its absolute values.
    "rows": """
        import torch

        class Model(torch.nn.Module):
            def forward(self, x):
                return x / torch.mean(torch.abs(x), dim=1, keepdim=True)

        rows, columns = 48, 2048

        def get_inputs():
            return [torch.rand(rows, columns)]

        def get_init_inputs():
            return []
        """,
    # Half of the right answer is zeros, which is also what memory often holds.
    "relu": """
        import torch

        class Model(torch.nn.Module):
            def forward(self, x):
                return torch.relu(x)

        def get_inputs():
            return [torch.randn(48, 2048)]

        def get_init_inputs():
            return []
        """,
    "layer_norm": """
        import torch

        class Model(torch.nn.Module):
            def __init__(self, size):
                super().__init__()
                self.ln = torch.nn.LayerNorm(size)

            def forward(self, x):
                return self.ln(x)

        def get_inputs():
            return [torch.rand(32, 500)]

        def get_init_inputs():
            return [500]
        """,
}
HEAD = "import torch\nfrom torch import nn\n"
HONEST = "x / torch.mean(torch.abs(x), dim=1, keepdim=True)"


def forward(body: str, before: str = "", init: str = "pass") -> str:
    """A candidate with that body of `forward(self, x)`."""
    def indented(text: str) -> str:
        return textwrap.indent(textwrap.dedent(text), " " * 8)
    return (f"{HEAD}{textwrap.dedent(before)}\nclass ModelNew(nn.Module):\n"
            f"    def __init__(self, *arguments):\n        super().__init__()\n{indented(init)}\n"
            f"    def forward(self, x):\n{indented(body)}\n")


def why_no_cuda() -> Optional[str]:
    return None if torch.cuda.is_available() else "PyTorch has no CUDA device"


DEVICES = ["cpu"] if why_no_cuda() else ["cpu", "cuda"]


def options(**changed: Any) -> Options:
    """Without advice, which no verdict depends on and for which PyTorch's profiler has to be imported."""
    base = Options(device="cpu", quick=True, compile=False, timeout=60.0, build_timeout=30.0, rounds=3,
                   memory=min(8 << 30, available_memory() // 2), threads=2, seed=12345, advise=False)
    return base._replace(**changed)


@pytest.fixture(scope="session", autouse=True)
def _orphans() -> None:
    adopt_orphans()


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = open_device(request.param, 2)
    yield opened
    opened.close()


Judge = Callable[..., Judgement]


@pytest.fixture(scope="session")
def against(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """`against(reference, candidate, **options)` is the judgement of a candidate's text."""
    folder = tmp_path_factory.mktemp("references")
    benches: Dict[str, Bench] = {}
    counter: List[int] = [0]

    def judge(reference: str, candidate: str, **changed: Any) -> Judgement:
        asked = options(device=device.kind, **changed)
        if reference not in benches:
            for bench in benches.values():
                bench.close()
            benches.clear()
            path = folder / f"{reference if reference in REFERENCES else 'other'}.py"
            path.write_text(textwrap.dedent(REFERENCES.get(reference, reference)))
            benches[reference] = Bench(str(path), asked, device)
        bench = benches[reference]
        bench.options = asked
        counter[0] += 1
        place = folder / f"candidate{counter[0]}" / "candidate.py"
        place.parent.mkdir()
        place.write_text(candidate)
        return judge_candidate(bench, str(place), lambda text: None)

    yield judge
    for bench in benches.values():
        bench.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def put(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path
    return put
