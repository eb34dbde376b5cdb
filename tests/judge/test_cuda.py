"""What only a GPU can do to a judge: streams, kernels that run on, its memory."""

import pytest
from conftest import HONEST, Judge, forward, why_no_cuda
from onepass.judge.devices import Device

if why_no_cuda():
    pytest.skip(f"the judge on a GPU: {why_no_cuda()}", allow_module_level=True)

PASSED = ("slower", "rethink", "good", "accepted", "at the limit")
BUSY = 20_000_000  # cycles, about 10 ms


@pytest.fixture(autouse=True)
def _on_a_gpu(device: Device) -> None:
    if device.kind != "cuda":
        pytest.skip("for GPUs only")


def test_a_side_stream_counts(against: Judge) -> None:
    """Ordered as it should be; whoever times the current stream alone sees nothing of it."""
    judgement = against("rows", forward(f"""
        here = torch.cuda.current_stream()
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            torch.cuda._sleep({BUSY})
            y = {HONEST}
        here.wait_stream(self.side)
        return y
        """, init="self.side = torch.cuda.Stream()"), calls=8)
    assert judgement.verdict == "slower", judgement
    assert judgement.details["time"]["candidate_ms"]["median"] > 5.0


def test_a_side_stream_that_nobody_waits_for(against: Judge) -> None:
    judgement = against("rows", forward(f"""
        with torch.cuda.stream(self.side):
            torch.cuda._sleep({BUSY // 10})
            return {HONEST}
        """, init="self.side = torch.cuda.Stream()"))
    assert judgement.verdict == "wrong" and "not ordered" in judgement.reason, judgement


NO_WAITING = """
torch.cuda.synchronize = lambda *a: None
torch.cuda.Stream.synchronize = lambda *a: None
"""


def test_says_that_it_is_done_before_its_kernels_are(against: Judge) -> None:
    judgement = against("rows", forward(f"torch.cuda._sleep({BUSY})\nreturn {HONEST}", before=NO_WAITING))
    assert judgement.verdict in ("wrong", "cheating"), judgement


def test_is_late_only_when_it_is_timed(against: Judge) -> None:
    """Right in every single call; in batches it answers before its kernels have run."""
    judgement = against("rows", forward(f"""
        self.calls += 1
        if self.calls > 25:
            torch.cuda.synchronize = lambda *a: None
            torch.cuda._sleep({BUSY // 4})
        return {HONEST}
        """, init="self.calls = 0"))
    assert judgement.verdict in ("wrong", "cheating"), judgement


def test_kernels_that_run_between_calls(against: Judge) -> None:
    """They would slow down the reference, or look at inputs that have not been given out."""
    judgement = against("rows", forward(f"""
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(2_000_000_000)
        return {HONEST}
        """, before=NO_WAITING, init="self.side = torch.cuda.Stream()"))
    assert judgement.verdict not in ("good", "accepted", "at the limit"), judgement


def test_allocates_the_gpus_memory_without_end(against: Judge) -> None:
    judgement = against("rows", forward("while True: self.held.append(torch.empty(1 << 28, device='cuda'))",
                                        init="self.held = []"))
    assert judgement.verdict == "broken" and "memory" in judgement.reason, judgement


def test_leaks_the_gpus_memory(against: Judge) -> None:
    judgement = against("rows", forward(f"self.held.append(torch.empty_like(x))\nreturn {HONEST}",
                                        init="self.held = []"))
    assert judgement.verdict == "broken" and "grows by" in judgement.reason, judgement


def test_an_assertion_in_a_kernel(against: Judge) -> None:
    judgement = against("rows", forward("return x[torch.full((48,), 1 << 40, device='cuda')]"))
    assert judgement.verdict == "broken", judgement
    assert against("rows", forward(f"return {HONEST}")).verdict in PASSED


def test_says_that_its_result_lies_at_an_odd_address(against: Judge) -> None:
    """Where a kernel of the judge's would fail, and the judge with it."""
    judgement = against("rows", forward(f"return {HONEST}", before="""
        import sys
        Runner = sys.modules["__main__"].Runner
        truly = Runner.home_of
        def home_of(self, address):
            base, size, handle = truly(self, address)
            return base - 1, size, handle
        Runner.home_of = home_of
        """))
    assert judgement.verdict == "cheating" and "odd address" in judgement.reason, judgement
    assert against("rows", forward(f"return {HONEST}")).verdict in PASSED


def test_a_result_on_the_cpu(against: Judge) -> None:
    judgement = against("rows", forward(f"return ({HONEST}).cpu()"))
    assert judgement.verdict == "wrong" and "not on the cuda device" in judgement.reason, judgement
