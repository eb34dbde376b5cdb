"""The judge's parts, one by one: what needs no process of its own."""

import ast
import ctypes
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Callable, Dict, List, Tuple

import onepass.judge
import pytest
import torch
from onepass.judge.advice import Measured, advise
from onepass.judge.compare import compare, precision_of
from onepass.judge.counters import parse
from onepass.judge.inputs import ADVERSARIAL, change, round_to_tf32
from onepass.judge.limits import distance
from onepass.judge.memory import Spec, device_bytes, layout_of, view_of
from onepass.judge.operators import evasions, forbidden
from onepass.judge.source import classes_of, load_reference, requirements_of
from onepass.judge.stats import Estimate, estimate
from onepass.judge.timing import Times, share_when_quiet
from onepass.judge.trial import leak_in
from onepass.judge.verdict import Judgement, grade, near_thresholds, worst_status
from onepass.judge.wire import Place, Table
from onepass.judge.worker import fill_new_memory

Write = Callable[[str, str], Path]
SOURCES = sorted(Path(onepass.judge.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_sources_are_python_38(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


# Statistics

def test_the_interval_has_the_median_inside_as_often_as_it_says() -> None:
    generator = random.Random(7)
    inside = 0
    for _ in range(2000):
        found = estimate([generator.lognormvariate(0.0, 1.0) for _ in range(15)])
        inside += found.low <= 1.0 <= found.high
    assert 0.94 < inside / 2000 < 0.985


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 15])
def test_the_interval_of_few_values(count: int) -> None:
    found = estimate(list(range(count)))
    assert found.low <= found.median <= found.high
    assert (found.low, found.high) == (0, count - 1) or count > 5


def around(value: float, spread: float = 0.01) -> Estimate:
    return Estimate(value, value * (1 - spread), value * (1 + spread), 15)


GRADES: List[Tuple[float, float, str]] = [
    (0.9, 0.2, "slower"), (1.2, 0.5, "rethink"), (1.6, 0.5, "good"), (2.5, 0.5, "accepted"),
    (0.8, 0.96, "at the limit"), (30.0, 0.97, "at the limit")]


@pytest.mark.parametrize("speedup,of_copy,word", GRADES)
def test_grades(speedup: float, of_copy: float, word: str) -> None:
    assert grade(around(speedup), around(of_copy)) == word


def test_near_a_threshold_is_said() -> None:
    assert "on both sides of 2" in near_thresholds(around(2.01), around(0.5))[0]
    assert near_thresholds(around(2.5), around(0.5)) == []


def test_a_suite_exits_with_its_worst() -> None:
    judged = [Judgement("r", "c", verdict, "", {}) for verdict in ("accepted", "slower", "wrong", "broken")]
    assert worst_status(judged) == 21 and worst_status(judged[:2]) == 0


# Comparing

def rows() -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, the right answer and PyTorch's."""
    x = torch.rand(16, 1000)
    return x, x.double() / x.double().abs().mean(1, keepdim=True), x / x.abs().mean(1, keepdim=True)


def test_pytorchs_own_result_is_right() -> None:
    _, exact, own = rows()
    outcome = compare(own, exact, own, 1e-4)
    assert outcome.passed and outcome.error == outcome.pytorch and outcome.bits > 22


def test_tolerance_shrinks_with_the_answer() -> None:
    """Zeros are not an answer where everything is small."""
    exact = torch.full((100,), 1e-7, dtype=torch.float64)
    own = exact.float()
    assert compare(own, exact, own, 1e-4).passed
    assert not compare(torch.zeros(100), exact, own, 1e-4).passed


def test_what_pytorch_loses_is_forgiven() -> None:
    exact = torch.ones(100, dtype=torch.float64)
    own = exact.float() + 0.01
    assert compare(exact.float() + 0.03, exact, own, 1e-4).passed
    assert not compare(exact.float() + 0.05, exact, own, 1e-4).passed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_must_be_the_same(value: float) -> None:
    exact = torch.ones(100, dtype=torch.float64)
    exact[3] = value
    own = exact.float()
    assert compare(own, exact, own, 1e-4).passed
    assert not compare(torch.ones(100), exact, own, 1e-4).passed
    assert not compare(own.roll(1), exact, own, 1e-4).passed


def test_an_unstable_but_single_precision_result_is_no_cheat() -> None:
    x, exact, own = rows()
    noise = own * (1 + 3e-7 * torch.randn_like(own))
    assert precision_of(noise, exact, compare(noise, exact, own, 1e-2), {}) is None


@pytest.mark.parametrize("kind", ["bf16", "fp16", "tf32"])
def test_rounded_inputs_are_told_by_their_errors(kind: str) -> None:
    x, exact, own = rows()
    rounded: Dict[str, torch.Tensor] = {"bf16": x.bfloat16().float(), "fp16": x.half().float(),
                                        "tf32": round_to_tf32(x)}
    answers = {name: y.double() / y.double().abs().mean(1, keepdim=True) for name, y in rounded.items()}
    result = rounded[kind] / rounded[kind].abs().mean(1, keepdim=True)
    found = precision_of(result, exact, compare(result, exact, own, 1e-1), answers)
    assert found and found.kind == f"inputs rounded to {kind}" and found.correlation > 0.9


# The limit

def times(candidate: float, eager: float = 10e-3) -> Times:
    seconds = {"candidate": candidate, "eager": eager, "copy": 1e-3, "read": 0.5e-3, "write": 0.5e-3}
    rounds = {name: [value * (1 + 0.001 * i) for i in range(7)] for name, value in seconds.items()}
    return Times(4, rounds, 0.0, 0.1)


def test_a_busy_machine_neither_accuses_nor_acquits() -> None:
    equal = [3.0, 33.0, 3.1, 9.0, 3.2, 12.0, 3.0, 3.1, 40.0]
    fresh = [10.0, 10.1, 25.0, 10.0, 10.2, 31.0, 17.0, 10.0, 10.0]
    assert share_when_quiet(list(zip(equal, fresh))) == pytest.approx(0.3, abs=0.05)
    random.shuffle(equal)
    assert share_when_quiet(list(zip(equal, fresh))) == pytest.approx(0.3, abs=0.05)
    computed = [10.0] * len(fresh)
    assert share_when_quiet(list(zip(computed, fresh))) == pytest.approx(1, abs=0.05)
    assert share_when_quiet([*zip(computed, fresh)][:3]) > 0.9
    mostly_busy = [31.0, 30.0, 29.0, 10.0, 35.0, 31.0, 33.0, 30.0, 29.0]
    assert share_when_quiet([*zip(computed, mostly_busy)]) > 0.9


def fake_bench(needed: float = 1.0, flushed: int = 80_000_000) -> SimpleNamespace:
    device = SimpleNamespace(memory_speed=150e9, flushed=flushed)
    return SimpleNamespace(bytes=80_000_000, input_bytes=40_000_000, output_bytes=40_000_000,
                           parameter_bytes=0, needed=needed, device=device)


def test_faster_than_the_memory_is_impossible() -> None:
    far = distance(fake_bench(), times(0.5e-3))
    assert far.impossible and "159.5 GB/s" in far.impossible
    assert "the least possible is 1 ms" in far.impossible
    assert distance(fake_bench(), times(0.95e-3)).impossible is None


def test_calls_that_take_a_moment_say_little_of_the_memory() -> None:
    assert distance(fake_bench(flushed=80_000_001), times(0.5e-3)).impossible is None
    far = distance(fake_bench(flushed=80_000_001), times(0.4e-3))
    assert far.impossible and "reads 150 and writes 150 GB/s" in far.impossible


def test_who_need_not_read_everything_may_be_faster() -> None:
    assert distance(fake_bench(needed=0.01), times(0.6e-3)).impossible is None


def test_a_reference_that_is_as_fast_refutes_the_bound() -> None:
    assert distance(fake_bench(), times(0.5e-3, eager=0.55e-3)).impossible is None


# Advice

MEASURED = Measured(1e-3, 0.9, 80_000_000, 1e-5, 0.01, 0.1, 0, "cuda", 132, [], {})


def test_nothing_to_say_at_the_limit() -> None:
    assert advise(MEASURED) == []


ADVICE: Dict[str, Tuple[Dict[str, object], str]] = {
    "passes": ({"of_copy": 0.4}, "2.5 times"),
    "host": ({"small": 0.9e-3}, "900 µs"),
    "intermediate": ({"extra": 40_000_000}, "40 MB"),
    "blocks": ({"of_copy": 0.1, "kernels": [{"name": "k", "blocks": 16, "microseconds": 900}]},
               "16 blocks for 132"),
    "launches": ({"of_copy": 0.4, "kernels": [{"name": name, "device": "cuda"} for name in "ab"]},
                 "2 kernels"),
    "waiting": ({"queued": 0.97}, "97%"),
    "accesses": ({"counters": {"sectors_per_request": 31.0}}, "31.0 sectors"),
    "spills": ({"counters": {"local_sectors": 1e6}}, "32 MB"),
}


@pytest.mark.parametrize("about", ADVICE)
def test_advice_has_its_number_and_its_gain(about: str) -> None:
    changed, number = ADVICE[about]
    found = [a for a in advise(MEASURED._replace(**changed)) if a.about == about]
    assert len(found) == 1 and number in found[0].text and found[0].gain > 1.0


def test_counters_are_believed_before_times() -> None:
    counted = {"bytes_read": 120e6, "bytes_written": 40e6}
    found = advise(MEASURED._replace(of_copy=0.3, counters=counted))
    assert "the hardware counted 160 MB" in found[0].text and found[0].gain == 2.0


NCU = """==PROF== Connected to process 1 (/usr/bin/python3)
==PROF== Profiling "rows": 0%....100% - 1 pass
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","rows","dram__bytes_read.sum","byte","80,000,000"
"0","1","rows","l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio","sector","4.02"
"1","1","merge","dram__bytes_read.sum","byte","1,000"
"1","1","merge","dram__bytes_write.sum","byte","40,000,000"
"""


def test_the_hardwares_counters_are_added_up() -> None:
    found = parse(NCU)
    assert found == {"bytes_read": 80_001_000.0, "bytes_written": 40_000_000.0, "sectors_per_request": 4.02}
    refused = parse("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n")
    assert isinstance(refused, str) and "ERR_NVGPUCTRPERM" in refused


# Leaks

def levels(seen: int, held: int) -> List[Tuple[int, int]]:
    """Of memory that grows by so much from each look to the next."""
    return [(10 ** 9 + number * seen, 10 ** 8 + number * held) for number in range(5)]


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_leak_is_found_by_the_allocators_account(kind: str) -> None:
    """8 KiB a call, 25 calls from look to look: less than a segment of a GPU's memory in all."""
    assert leak_in(levels(0, 25 * 8192), 100, kind) == 100 * 8192
    assert leak_in(levels(0, 25 * 512), 100, kind) == 0


def test_a_leak_past_the_allocator_is_seen() -> None:
    assert leak_in(levels(2 << 20, 0), 100, "cuda") == 8 << 20
    assert leak_in(levels(25 * 4096, 0), 100, "cpu") == 100 * 4096
    assert leak_in(levels(25 * 4096, 0), 100, "cuda") == 0


def test_a_cache_that_fills_up_is_no_leak() -> None:
    assert leak_in([(0, 0), (1 << 30, 1 << 30), (2 << 30, 2 << 30), (2 << 30, 2 << 30), (3 << 30, 3 << 30)],
                   100, "cuda") == 0


# Sources

BOTH = """
import os, torch
STATE = []
torch.nn.functional.relu = None
STATE.append(os.environ.setdefault("SEEN", "1"))
size = 4

def helper(x):
    return x + size

class Model(torch.nn.Module):
    def forward(self, x):
        return helper(x)

class Spoiler:
    Model.forward = None

Model.slow = True

class ModelNew(Model):
    pass

def get_inputs():
    return [torch.rand(size)]

def get_init_inputs():
    return []
"""


def test_a_candidate_in_the_references_file_cannot_touch_it(write: Write) -> None:
    path = write("both.py", BOTH)
    relu = torch.nn.functional.relu
    names = load_reference(str(path), {"size": 6})
    assert torch.nn.functional.relu is relu
    assert "ModelNew" not in names and "Spoiler" not in names and not hasattr(names["Model"], "slow")
    assert len(names["get_inputs"]()[0]) == 6
    assert float(names["Model"]()(torch.zeros(1))) == 6.0


def test_a_number_that_is_not_there_cannot_be_set(write: Write) -> None:
    with pytest.raises(ValueError, match="no 'rows' to set"):
        load_reference(str(write("both.py", BOTH)), {"rows": 6})


def test_requirements_are_read_without_running(write: Write) -> None:
    path = write("candidate.py", 'REQUIRES = ["cuda", "triton"]\nclass ModelNew: pass\nraise SystemExit\n')
    assert requirements_of(str(path)) == ["cuda", "triton"] and "ModelNew" in classes_of(str(path))


EVASIVE = ["getattr(torch, 'me' + 'an')(x)", "eval('x.mean()')", "torch._C._nn.gelu(x)", "torch.compile(f)",
           "from torch import compile", "torch.cuda.CUDAGraph()", "s = 'at::mean(x)'", "__import__('torch')"]


@pytest.mark.parametrize("text", EVASIVE)
def test_ways_around_the_dispatcher(text: str) -> None:
    assert evasions(ast.parse(text))


def test_what_a_kernel_needs_is_allowed(write: Write) -> None:
    path = write("candidate.py", "s = 'torch::empty_like(x); at::cuda::getCurrentCUDAStream();'\n")
    allowed = ["aten::empty.memory_format", "aten::detach.default", "aten::view.default"]
    assert forbidden(str(path), allowed) == []
    assert forbidden(str(path), ["aten::mean.dim"]) == ["the operator aten::mean.dim"]


# Memory and messages

def test_inputs_lie_apart() -> None:
    specs = [Spec((3, 5), (5, 1), 0), Spec((7,), (1,), 3)]
    offsets, size = layout_of(specs, 0)
    assert offsets == [0, 512] and size == 1024


def test_a_tensor_at_an_address() -> None:
    memory = torch.zeros(4096, dtype=torch.uint8)
    view = view_of(memory, 512, Spec((2, 3), (1, 2), 0))
    view.copy_(torch.arange(6.0).view(2, 3))
    assert view.stride() == (1, 2) and view.storage_offset() == 0
    assert memory[512:536].view(torch.float32).tolist() == [0, 3, 1, 4, 2, 5]
    assert device_bytes(memory.data_ptr(), 4, torch.device("cpu")).data_ptr() == memory.data_ptr()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_new_memory_is_no_number() -> None:
    """Whatever the heap looks like: neither blocks that come from the system nor those freed before are left
    out, but for those of a few elements, which a thread may keep for itself. (PyTorch asks malloc, but not in
    every build.)"""
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]

    def take(size: int) -> int:
        block = ctypes.c_void_p()
        assert libc.posix_memalign(ctypes.byref(block), ctypes.c_size_t(64), ctypes.c_size_t(size)) == 0
        return block.value or 0

    generator = random.Random(5)
    taken = []
    for size in [generator.randrange(1, 1 << generator.randrange(1, 24)) for _ in range(300)]:
        taken.append(take(size))
        ctypes.memset(taken[-1], 1, size)
    for block in taken[::2]:
        libc.free(block)
    del taken[::2]
    fill_new_memory(True)
    try:
        for size in [generator.randrange(4096, 1 << generator.randrange(13, 22)) for _ in range(400)]:
            taken.append(take(size))
            assert ctypes.string_at(taken[-1], size) == b"\xff" * size
    finally:
        fill_new_memory(False)
        for block in taken:
            libc.free(block)


def test_the_table_refuses_nonsense(tmp_path: Path) -> None:
    from onepass.judge.memory import shared_memory
    table = Table(shared_memory("table", Table.BYTES))
    place = Place(0, 1, 3, 0, 4096, 0, 0, (2, 3), (3, 1), b"h" * 64)
    table.write([place])
    assert table.read() == [place]
    table.write([place._replace(strides=(-3, 1))])
    with pytest.raises(ValueError, match="strides"):
        table.read()
    table.memory[:8] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(ValueError, match="entries"):
        table.read()


@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_inputs_can_be_made_again(kind: str) -> None:
    x = torch.rand(10, 10)
    first, again = change(kind, [x], 5)[0], change(kind, [x.clone()], 5)[0]
    assert torch.equal(first, again) and first.shape == x.shape and not torch.equal(first, x)
