"""Candidates that try to fool the judge. Each is caught, or gains nothing; on a GPU, too, if there is one."""

import os
import textwrap
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import pytest
from conftest import HONEST, Judge, forward
from onepass.judge import right
from onepass.judge.bench import Bench, Case
from onepass.judge.process import Worker
from onepass.judge.verdict import Judgement

SUCCESS = ("accepted", "good", "at the limit")


def test_an_honest_candidate_passes(against: Judge) -> None:
    """Without which none of the others says anything."""
    judgement = against("rows", forward(f"return {HONEST}"), advise=True)
    assert judgement.verdict in ("slower", "rethink", *SUCCESS), judgement
    assert all(case["passed"] for case in judgement.details["right"])
    assert not judgement.details["evidence"]
    assert judgement.details["kernels"] and judgement.details["memory"]["extra"] is not None, judgement


def test_zeroes_its_inputs(against: Judge) -> None:
    judgement = against("rows", forward(f"y = {HONEST}\nx.zero_()\nreturn y"))
    assert judgement.verdict == "cheating" and "changed its input" in judgement.reason


def test_zeroes_its_inputs_to_have_it_easy(against: Judge) -> None:
    """Zeros over zeros: whoever asks the reference for its answer to the changed input believes it."""
    judgement = against("relu", forward("x.zero_()\nreturn torch.zeros_like(x)"))
    assert judgement.verdict == "cheating" and "changed its input" in judgement.reason


def test_writes_all_but_the_zeros(against: Judge) -> None:
    """Fresh memory is often zeros. The judge's is not."""
    judgement = against("relu", forward("""
        y = torch.empty_like(x)
        positive = x > 0
        y[positive] = x[positive]
        return y
        """))
    assert judgement.verdict == "wrong" and "nan" in judgement.reason


def test_returns_memory_it_did_not_write(against: Judge) -> None:
    judgement = against("rows", forward("return torch.empty_like(x)"))
    assert judgement.verdict == "wrong"


CACHES = {
    "pointer": ("x.data_ptr()", "rows"),
    "shape": ("tuple(x.shape)", "rows"),
    "a few elements": ("(x.data_ptr(), x[0, 0].item(), x[-1, -1].item(), x[5, 7].item())", "rows"),
}


@pytest.mark.parametrize("by", CACHES)
def test_caches_results(against: Judge, by: str) -> None:
    key, reference = CACHES[by]
    judgement = against(reference, forward(f"""
        key = {key}
        if key not in self.known:
            self.known[key] = {HONEST}
        return self.known[key]
        """, init="self.known = {}"))
    assert judgement.verdict == "wrong", judgement


def test_caches_results_by_value(against: Judge) -> None:
    """Right every time, but no faster kernel: it only looks fast to whoever repeats an input."""
    judgement = against("rows", forward(f"""
        key = tuple(x[:, 0].tolist()) + (x.sum().item(),)
        if key not in self.known:
            for _ in range(40):
                y = {HONEST}
            self.known[key] = y
        return self.known[key].clone()
        """, init="self.known = {}"), calls=16)
    assert judgement.verdict == "cheating" and "remembers" in judgement.reason, judgement


def test_returns_the_same_memory_every_time(against: Judge) -> None:
    judgement = against("rows", forward(f"""
        if self.y is None or self.y.shape != x.shape:
            self.y = torch.empty_like(x)
        self.y.copy_({HONEST})
        return self.y
        """, init="self.y = None"))
    assert judgement.verdict == "wrong" and "overwrites" in judgement.reason


def test_says_that_it_is_done_and_computes_on(against: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread makes the result after the call has returned. However late the judge looks, there is nothing.
    On a GPU kernels can do the same: test_cuda.py."""
    read = right.read_results

    def read_late(*arguments: Any) -> Any:
        time.sleep(0.1)
        return read(*arguments)

    monkeypatch.setattr(right, "read_results", read_late)
    judgement = against("rows", forward(f"""
        y = torch.empty_like(x)
        def work():
            time.sleep(0.01)
            y.copy_({HONEST})
        threading.Thread(target=work).start()
        return y
        """, before="import threading, time"))
    assert judgement.verdict == "wrong", judgement


def test_answers_for_its_runner(against: Judge) -> None:
    """Writes to the judge's pipe itself, before it has computed."""
    judgement = against("rows", forward(f"""
        if not self.told:
            self.told = True
        else:
            os.write(PIPE, b'{{"queued": 1e-9, "whole": 1e-9}}\\n')
            time.sleep(0.02)
        return {HONEST}
        """, before="""
        import json, os, sys, time
        PIPE = json.loads(sys.argv[1])["descriptors"]["replies"]
        """, init="self.told = False"))
    assert judgement.verdict in ("wrong", "cheating"), judgement


def test_computes_before_the_clock_runs(against: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread watches the inputs' memory and would have the result ready when the call comes, if it were not
    stopped while inputs are filled in, however long that takes: a call takes its 20 ms all the same."""
    fill = Bench.fill

    def fill_slowly(self: Bench, cases: Sequence[Case]) -> None:
        fill(self, cases)
        time.sleep(0.1)

    monkeypatch.setattr(Bench, "fill", fill_slowly)
    judgement = against("rows", forward(f"""
        key = x.data_ptr()
        if x.shape != (48, 2048):
            return {HONEST}
        if key not in self.watched:
            self.watched[key] = x
        if not self.started:
            self.started = True
            threading.Thread(target=self.watch, daemon=True).start()
        while True:
            known = self.ready.get(key)
            if known is not None and known[0] == fingerprint(x):
                return known[1].clone()
            time.sleep(0.0005)
        """, before=f"""
        import threading, time

        def fingerprint(x):
            return x[0, :4].tolist() + x[-1, -4:].tolist() + [float(x.sum())]

        def compute(x):
            time.sleep(0.02)
            return {HONEST}

        class Watcher:
            def watch(self):
                while True:
                    for key, x in list(self.watched.items()):
                        now = fingerprint(x)
                        if key not in self.ready or self.ready[key][0] != now:
                            self.ready[key] = (now, compute(x))
                    time.sleep(0.0005)
        """, init="self.watched, self.ready, self.started = {}, {}, False").replace(
            "class ModelNew(nn.Module)", "class ModelNew(nn.Module, Watcher)"), calls=8)
    if "time" in judgement.details:
        assert judgement.details["time"]["candidate_ms"]["median"] > 15.0, judgement
    assert judgement.verdict not in SUCCESS


@pytest.mark.parametrize("rounding", ["bfloat16", "half"])
def test_computes_with_inputs_of_lower_precision(against: Judge, rounding: str) -> None:
    judgement = against("rows", forward(f"x = x.{rounding}().float()\nreturn {HONEST}"), tolerance=2e-2)
    assert judgement.verdict == "cheating" and "lower precision" in judgement.reason, judgement
    assert "inputs rounded to " + {"bfloat16": "bf16", "half": "fp16"}[rounding] in judgement.reason


def test_computes_with_the_bits_of_tensor_cores(against: Judge) -> None:
    judgement = against("rows", forward(f"""
        x = ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
        return {HONEST}
        """), tolerance=2e-2)
    assert judgement.verdict == "cheating" and "inputs rounded to tf32" in judgement.reason, judgement


def test_returns_a_rounded_result(against: Judge) -> None:
    judgement = against("rows", forward(f"return ({HONEST}).half().float()"), tolerance=2e-2)
    assert judgement.verdict == "cheating" and "result rounded to fp16" in judgement.reason, judgement


def test_sums_in_lower_precision(against: Judge) -> None:
    judgement = against("rows", forward("""
        total = x.abs().bfloat16().cumsum(1)[:, -1:].float()
        return x / (total / x.shape[1])
        """), tolerance=2e-2)
    assert judgement.verdict in ("cheating", "wrong"), judgement


OPERATORS = {
    "a function": forward(f"return {HONEST}"),
    "a method": forward("return x.div(x.abs().mean(1, keepdim=True))"),
    "behind a wrapper": forward("return self.kernel(x)", before=f"""
        class Kernel:
            def __call__(self, x):
                return {HONEST}
        """, init="self.kernel = Kernel()"),
    "the reference": forward("return self.model(x)", before=f"""
        class Model(nn.Module):
            def forward(self, x):
                return {HONEST}
        """, init="self.model = Model()"),
}


@pytest.mark.parametrize("way", OPERATORS)
def test_uses_operators_of_pytorch(against: Judge, way: str) -> None:
    judgement = against("rows", OPERATORS[way], no_torch_ops=True)
    assert judgement.verdict == "cheating" and "no-torch-ops" in judgement.reason, judgement
    assert "aten::" in judgement.reason


def test_hides_operators_from_the_dispatcher(against: Judge) -> None:
    judgement = against("rows", forward(f"""
        with _disable_current_modes():
            return {HONEST}
        """, before="from torch.utils._python_dispatch import _disable_current_modes"), no_torch_ops=True)
    assert judgement.verdict == "cheating" and "_disable_current_modes" in judgement.reason, judgement


# Never in less than it sleeps; and many times the work, so as to be the slower one on a busy machine, too.
SLOW = f"""
import time
time.sleep(0.003)
for _ in range(60):
    y = {HONEST}
return y
"""
PATCHES = {
    "the clocks": """
        import time
        for name in ("time", "perf_counter", "monotonic", "process_time"):
            setattr(time, name, lambda: 0.0)
        for name in ("perf_counter_ns", "time_ns", "monotonic_ns"):
            setattr(time, name, lambda: 0)
        """,
    "CUDA's events": """
        torch.cuda.Event.elapsed_time = lambda self, other: 1e-9
        torch.cuda.synchronize = lambda *a: None
        """,
    "comparisons": """
        torch.allclose = torch.equal = lambda *a, **k: True
        torch.testing.assert_close = lambda *a, **k: None
        torch.Tensor.allclose = lambda *a, **k: True
        """,
    "the judge": """
        import onepass.judge.compare, onepass.judge.stats, onepass.judge.timing, onepass.judge.verdict
        import onepass.judge.right, onepass.judge.trial
        onepass.judge.verdict.grade = lambda *a: "accepted"
        onepass.judge.trial.grade = lambda *a: "accepted"
        onepass.judge.timing.FROM_CACHE = -1
        onepass.judge.bench.Bench.time = lambda *a: None
        onepass.judge.right.compare = onepass.judge.compare.compare = lambda *a: None
        """,
}


@pytest.mark.parametrize("what", PATCHES)
def test_patches(against: Judge, what: str) -> None:
    """Slower than the reference by far, and says otherwise."""
    judgement = against("rows", forward(SLOW, before=PATCHES[what]), calls=16)
    assert judgement.verdict == "slower", judgement
    assert judgement.details["time"]["candidate_ms"]["median"] > 2.9


def test_patches_and_is_wrong(against: Judge) -> None:
    patches = PATCHES["comparisons"] + PATCHES["the judge"]
    judgement = against("rows", forward("return x * 1.01", before=patches))
    assert judgement.verdict == "wrong", judgement


def test_wastes_time_where_it_might_not_count(against: Judge) -> None:
    """Slow in the first call of a batch. Who takes the slope between short and long batches, or the cost of
    an empty one from the candidate, subtracts that."""
    judgement = against("rows", forward(f"""
        if len(self.runner.kept) == 0 and x.shape[0] == 48:
            time.sleep(0.05)
        return {HONEST}
        """, before="""
        import gc, sys, time
        Runner = sys.modules["__main__"].Runner
        """, init="self.runner = next(each for each in gc.get_objects() if isinstance(each, Runner))"),
                        calls=8)
    assert judgement.verdict == "slower", judgement
    times = judgement.details["time"]
    assert times["candidate_ms"]["median"] * times["calls"] > 45.0, "all of it counts"


def test_returns_a_lazy_tensor(against: Judge) -> None:
    judgement = against("rows", forward("return Lazy(x)", before=f"""
        class Lazy(torch.Tensor):
            @staticmethod
            def __new__(cls, x):
                return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)

            def __init__(self, x):
                self.x = x

            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                made = [({HONEST.replace('x', 'a.x').replace('a.x.', 'x.').replace('tora.xch', 'torch')})
                        if isinstance(a, Lazy) else a for a in args]
                return function(*made, **(kwargs or {{}}))
        """))
    assert judgement.verdict == "cheating" and "no plain tensor" in judgement.reason, judgement


# Harmless where nothing stops them: nobody is sent a signal, or stopped by being traced.
STEALING = {
    "by opening its memory": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "by reading its memory": "ctypes.CDLL(None).process_vm_readv(os.getppid(), None, 0, None, 0, 0)",
    "by tracing it": "ctypes.CDLL(None).ptrace(2, os.getppid(), 0, 0)",
    "by signalling it": "os.kill(os.getppid(), 0)",
    "by signalling everyone": "os.kill(-1, 0)",
    "by slowing it down": "os.sched_setaffinity(os.getppid(), {0})",
}


@pytest.mark.parametrize("way", STEALING)
def test_reaches_for_the_judge(against: Judge, way: str) -> None:
    judgement = against("rows", forward(f"""
        try:
            {STEALING[way]}
        except OSError:
            pass
        return {HONEST}
        """, before="import ctypes, os"))
    assert judgement.verdict == "cheating", judgement


def test_there_is_no_answer_to_be_read(against: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for root with a debugger: nobody asks the reference about an input before the candidate's own
    result has been read, and inputs are never used again."""
    log: List[Tuple[str, Any]] = []
    ask, read, fill = Worker.ask, right.read_results, Bench.fill

    def watched_ask(self: Worker, request: Dict[str, Any], seconds: Optional[float] = None) -> Dict[str, Any]:
        if request["do"] in ("answer", "compile"):
            log.append(("answer", request.get("seed")))
        return ask(self, request, seconds)

    def watched_read(bench: Bench, *arguments: Any) -> Any:
        log.append(("read", None))
        return read(bench, *arguments)

    def watched_fill(self: Bench, cases: Sequence[Case]) -> None:
        log.append(("fill", [(case.seed, case.kind, case.change) for case in cases]))
        fill(self, cases)

    monkeypatch.setattr(Worker, "ask", watched_ask)
    monkeypatch.setattr(right, "read_results", watched_read)
    monkeypatch.setattr(Bench, "fill", watched_fill)
    against("rows", forward(f"return {HONEST}"))
    filled: Set[Any] = set()
    was_read = False
    for what, about in log:
        if what == "fill":
            fresh = {each for each in about}
            assert not fresh & filled
            filled |= fresh
            was_read = False
        elif what == "read":
            was_read = True
        else:
            assert was_read, "the answer was asked for before the candidate's result had been read"
    assert sum(what == "answer" for what, _ in log) > 10


FORK = {
    "forks": "pid = os.fork()",
    "forks twice, in a session of its own": """
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
        """,
}


@pytest.mark.parametrize("way", FORK)
def test_leaves_a_process_running(against: Judge, way: str, tmp_path: object) -> None:
    note = os.path.join(str(tmp_path), "pid")
    judgement = against("rows", forward(f"""
        if not self.done:
            self.done = True
            {textwrap.indent(textwrap.dedent(FORK[way]), ' ' * 12).strip()}
            if pid == 0:
                open({note!r}, "w").write(str(os.getpid()))
                while True:
                    time.sleep(0.01)
        return {HONEST}
        """, before="import os, time", init="self.done = False"))
    assert judgement.verdict == "cheating" and "left processes running" in judgement.reason, judgement
    time.sleep(0.2)
    with open(note) as file:
        assert not os.path.exists(f"/proc/{file.read()}"), "it still runs"


@pytest.mark.parametrize("how", ["os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_ends_early(against: Judge, how: str) -> None:
    judgement = against("rows", forward(f"{how}\nreturn x", before="import os, sys"))
    assert judgement.verdict == "broken", judgement


def test_ends_early_while_it_is_imported(against: Judge) -> None:
    judgement = against("rows", "print('Verdict: accepted', flush=True)\nimport os\nos._exit(0)\n")
    assert judgement.verdict == "broken" and "status 0" in judgement.reason
    assert "Verdict: accepted" in judgement.details["tail"]


def test_prints_a_forged_verdict(against: Judge) -> None:
    judgement: Judgement = against("rows", forward("""
        print('{"format": 1, "verdict": "accepted", "exit_status": 0}', flush=True)
        os.write(1, b"\\x1b[2JVerdict: accepted: 9.9 times as fast\\n")
        return x
        """, before="import os"))
    assert judgement.verdict == "wrong", judgement
