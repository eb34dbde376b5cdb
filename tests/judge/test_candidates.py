"""Candidates that are wrong or broken: a verdict with its reason, in bounded time, whatever they do."""

import time

import pytest
from conftest import HEAD, HONEST, REFERENCES, Judge, forward
from onepass.judge import process

WRONG = {
    "another shape": ("return x[:, :-1] / 1", "shape"),
    "another type": (f"return ({HONEST}).double()", "float64"),
    "other strides": (f"return ({HONEST}).t().contiguous().t()", "strides"),
    "two results": (f"y = {HONEST}\nreturn y, y", "gave 2 tensors"),
    "a wrong batch": (f"y = {HONEST}\nreturn y if x.shape[0] == 48 else y * 1.1", "batch"),
    "wrong for tiny inputs": (f"return torch.where(x.abs() < 1e-5, x, {HONEST})", "tiny"),
    "wrong for negative inputs": ("return x / x.mean(1, keepdim=True)", "negative"),
    "its input": ("return x", "of 98304 elements"),
    "one wrong element": (f"y = {HONEST}\ny[17, 1234] *= 1.01\nreturn y", "1 of 98304"),
}


@pytest.mark.parametrize("how", WRONG)
def test_wrong(against: Judge, how: str) -> None:
    body, reason = WRONG[how]
    judgement = against("rows", forward(body))
    assert judgement.verdict == "wrong" and reason in judgement.reason, judgement
    assert judgement.exit_status == 20


BROKEN = {
    "raises": ("raise ValueError('no luck')", "", "exception: ValueError: no luck"),
    "no tensor": ("return 'a result'", "", "returned str"),
    "a segmentation fault": ("ctypes.string_at(8)", "import ctypes", "SIGSEGV"),
    "an abort": ("os.abort()", "import os", "SIGABRT"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken(against: Judge, how: str) -> None:
    body, before, reason = BROKEN[how]
    text = forward(f"print('the last words', flush=True)\n{body}\nreturn x", before=before)
    judgement = against("rows", text)
    assert judgement.verdict == "broken" and reason in judgement.reason, judgement
    assert "the last words" in judgement.details["tail"]
    assert judgement.exit_status == 21


def test_a_syntax_error(against: Judge) -> None:
    judgement = against("rows", f"{HEAD}class ModelNew(nn.Module:\n")
    assert judgement.verdict == "broken" and "SyntaxError" in judgement.reason


ENDLESS = {
    "a call": forward("while True: pass"),
    "a call that takes no signals": forward("while True: time.sleep(1)", before="""
        import signal, time
        for number in range(1, 32):
            if number not in (9, 19):
                signal.signal(number, signal.SIG_IGN)
        """),
    "compiling": "import subprocess\nsubprocess.run(['sh', '-c', 'sleep 1000 & sleep 1000'])\n",
}


def test_closes_its_pipe_and_runs_on(against: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "DYING", 0.5)
    judgement = against("rows", forward("os.close(PIPE)\nwhile True: time.sleep(1)", before="""
        import json, os, sys, time
        PIPE = json.loads(sys.argv[1])["descriptors"]["replies"]
        """))
    assert judgement.verdict == "broken" and "closed its pipe" in judgement.reason, judgement


@pytest.mark.parametrize("what", ENDLESS)
def test_endless(against: Judge, what: str) -> None:
    start = time.monotonic()
    judgement = against("rows", ENDLESS[what], build_timeout=2.0, timeout=4.0)
    assert judgement.verdict == "broken" and "hang" in judgement.reason, judgement
    assert time.monotonic() - start < 20


def test_allocates_without_end(against: Judge) -> None:
    judgement = against("rows", forward("while True: self.held.append(torch.ones(1 << 22))",
                                        init="self.held = []"), memory=2 << 30)
    assert judgement.verdict == "broken" and "memory" in judgement.reason, judgement


def test_allocates_without_end_in_another_process(against: Judge) -> None:
    judgement = against("rows", forward("""
        subprocess.run([sys.executable, "-c", "x = []\\nwhile True: x.append(bytearray(1 << 24))"])
        return x
        """, before="import subprocess, sys"), memory=2 << 30)
    assert judgement.verdict == "broken" and "memory" in judgement.reason, judgement


def test_leaks(against: Judge) -> None:
    judgement = against("rows", forward(f"self.held.append(torch.ones(1 << 16))\nreturn {HONEST}",
                                        init="self.held = []"))
    assert judgement.verdict == "broken" and "grows by" in judgement.reason, judgement
    assert 200 < float(judgement.reason.split("grows by ")[1].split(" KiB")[0]) < 350


NON_FINITE = {
    "nan_to_num": (f"return torch.nan_to_num({HONEST})", "wrong"),
    "as PyTorch": (f"return {HONEST}", ""),
}


@pytest.mark.parametrize("how", NON_FINITE)
def test_nan_and_inf_on_request(against: Judge, how: str) -> None:
    body, verdict = NON_FINITE[how]
    judgement = against("rows", forward(body), non_finite=True)
    assert (judgement.verdict == "wrong") == (verdict == "wrong"), judgement


LAYER_NORM = """
class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.{name} = nn.LayerNorm(size)

    def forward(self, x):
        return {result}
"""


def test_parameters_are_copied_by_name(against: Judge) -> None:
    judgement = against("layer_norm", HEAD + LAYER_NORM.format(name="ln", result="self.ln(x)"))
    assert judgement.details["parameters"] == "by name"
    assert all(case["passed"] for case in judgement.details["right"])


def test_parameters_of_other_names_come_from_the_seed(against: Judge) -> None:
    judgement = against("layer_norm", HEAD + LAYER_NORM.format(name="norm", result="self.norm(x)"))
    assert judgement.details["parameters"] == "by seed"
    assert all(case["passed"] for case in judgement.details["right"])


def test_weights_cannot_be_left_out(against: Judge) -> None:
    """Ones and zeros, as they are initialized, would let them."""
    result = "nn.functional.layer_norm(x, x.shape[1:])"
    judgement = against("layer_norm", HEAD + LAYER_NORM.format(name="ln", result=result))
    assert judgement.verdict == "wrong", judgement


UNSTABLE = """((x - x.mean(1, keepdim=True)) / ((x * x).mean(1, keepdim=True) - x.mean(1, keepdim=True) ** 2
            + 1e-5).sqrt()) * self.ln.weight + self.ln.bias"""


def test_an_unstable_variance_is_found_by_an_offset(against: Judge) -> None:
    judgement = against("layer_norm", HEAD + LAYER_NORM.format(name="ln", result=UNSTABLE))
    assert judgement.verdict == "wrong" and "large offset" in judgement.reason, judgement


BACKWARD = """
class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return {honest}

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = {honest}
        return {factor} * torch.autograd.grad(y, x, g)[0]
"""


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_gradients(against: Judge, factor: float) -> None:
    # Another text of the same reference: a bench has one direction.
    reference = REFERENCES["rows"].replace("rows, columns", "rows , columns")
    before = BACKWARD.format(honest=HONEST, factor=factor)
    judgement = against(reference, forward("return Wrong.apply(x)", before=before), backward=True)
    if factor == 1.0:
        assert judgement.verdict in ("slower", "rethink", "good", "accepted", "at the limit"), judgement
    else:
        assert judgement.verdict == "wrong" and "result 2 of 2" in judgement.reason, judgement
