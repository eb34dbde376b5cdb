"""The onepass command as a user meets it: its help, its errors, its tables and its JSON.

The command is the one that the environment variable ONEPASS_CLI names.
"""

import functools
import json
import os
import re
import subprocess
from typing import Any, Dict, List

import pytest

CLI = os.environ.get("ONEPASS_CLI", "")
assert CLI, "set ONEPASS_CLI to the path of the onepass command"

KEYS = {"op", "dir", "dtype", "shape", "device", "threads", "ms", "gbps", "copy_ms", "of_copy",
        "max_err"}
GPU_KEYS = {"grid", "block", "cluster", "shared", "launches", "host_us", "kernel", "workspace"}
NORMS = ["l1_norm", "l2_norm", "normalize", "frobenius_norm", "layer_norm", "add_layer_norm",
         "rms_norm", "add_rms_norm", "group_norm", "instance_norm", "batch_norm"]
POOLS = [f"{kind}_pool{axes}d" for kind in ("avg", "max", "lp", "adaptive_avg", "adaptive_max")
         for axes in (1, 2, 3)]
POOL_SHAPES = {"1": "3x5x257", "2": "2x3x17x19", "3": "2x2x9x8x11"}
GPU_KERNELS = ["warps", "blocks", "ring", "stream", "passes", "columns", "strided", "windows",
               "points"]


def onepass(*arguments: str, timeout: float = 600) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([CLI, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, text=True, timeout=timeout)


def bench(*arguments: str) -> List[Dict[str, Any]]:
    result = onepass("bench", "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@functools.lru_cache(maxsize=None)
def info() -> Dict[str, Any]:
    result = onepass("info", "--json")
    assert result.returncode == 0, result.stderr
    found: Dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "cuda" and not info()["gpus"]:
        pytest.skip(info()["gpus_reason"])
    return name


@pytest.mark.parametrize("arguments", [
    ["--help"], ["-h"], ["help"], ["help", "bench"], ["bench", "--help"], ["check", "--help"],
    ["info", "--help"],
])
def test_help_is_on_stdout(arguments: List[str]) -> None:
    result = onepass(*arguments)
    assert result.returncode == 0
    assert "usage: onepass" in result.stdout
    assert result.stderr == ""


def test_every_command_is_in_the_help() -> None:
    text = onepass("--help").stdout
    for command in ("info", "check", "bench"):
        assert re.search(rf"^\s+{command}\b", text, flags=re.MULTILINE)


@pytest.mark.parametrize("command", ["check", "bench"])
def test_every_operator_is_in_the_help(command: str) -> None:
    text = onepass("help", command).stdout
    for name in NORMS + [name for name in POOLS if name.endswith("1d")]:
        assert re.search(rf"\b{name}\b", text), name


def test_the_version_is_the_headers() -> None:
    header = os.path.join(os.path.dirname(__file__), "..", "..", "include", "onepass.h")
    with open(header, encoding="utf-8") as file:
        version = re.search(r'ONEPASS_VERSION_STRING "([^"]+)"', file.read())
    assert version
    result = onepass("--version")
    assert (result.returncode, result.stdout) == (0, f"onepass {version.group(1)}\n")


# ---- Mistakes: one clear line, exit status 2 -----------------------------------------------------

MISTAKES = [
    # what is given, and what the line must say
    ([], "command"),
    (["dance"], "dance"),
    (["--frobnicate"], "--frobnicate"),
    (["bench", "--frobnicate"], "--frobnicate"),
    (["check", "--frobnicate"], "--frobnicate"),
    (["info", "--frobnicate"], "--frobnicate"),
    (["bench", "stray"], "stray"),
    (["bench", "--op"], "--op"),
    (["bench", "--op", "l3_norm"], "l3_norm"),
    (["bench", "--op", ""], "--op"),
    (["bench", "--dtype", "int8"], "int8"),
    (["bench", "--dir", "sideways"], "sideways"),
    (["bench", "--device", "abacus"], "abacus"),
    (["bench", "--device", "cpu", "--cuda-kernel", "ring"], "ring"),
    (["bench", "--cuda-kernel", "abacus"], "abacus"),
    (["bench", "--threads", "-1"], "-1"),
    (["bench", "--threads", "two"], "two"),
    (["bench", "--threads", "1.5"], "1.5"),
    (["bench", "--threads", "99999999999999999999"], "99999999999999999999"),
    (["bench", "--shape", "wide"], "wide"),
    (["bench", "--shape", ""], "--shape"),
    (["bench", "--shape", "64x"], "64x"),
    (["bench", "--shape", "x64"], "x64"),
    (["bench", "--shape", "64xx64"], "64xx64"),
    (["bench", "--shape", "64x-3"], "64x-3"),
    (["bench", "--shape", "64 x 3"], "64 x 3"),
    (["bench", "--shape", "1x1x1x1x1x1x1x1x1"], "1x1x1x1x1x1x1x1x1"),
    (["bench", "--shape", "99999999999999999999x2"], "99999999999999999999x2"),
    (["bench", "--shape", "9223372036854775807x9223372036854775807"], "9223372036854775807"),
    (["bench", "--op", "l1_norm", "--shape", "1000000x1000000"], "1000000x1000000"),
    (["bench", "--op", "l1_norm", "--shape", "0x5"], "0x5"),
    (["bench", "--op", "avg_pool1d", "--shape", "7"], "ndim = 1"),
    (["bench", "--op", "avg_pool1d", "--shape", "2x3x4x5"], "ndim = 4"),
    (["bench", "--op", "avg_pool1d", "--shape", "2x3x64", "--kernel", "0"], "kernel"),
    (["bench", "--op", "avg_pool1d", "--shape", "2x3x4", "--kernel", "99", "--padding", "0"], "99"),
    (["bench", "--op", "avg_pool1d", "--shape", "2x3x64", "--kernel", "4", "--padding", "3"], "3"),
    (["bench", "--op", "l1_norm", "--shape", "4x5", "--axis", "2"], "2"),
    (["bench", "--op", "l1_norm", "--kernel", "3"], "--kernel is for poolings"),
    (["bench", "--op", "avg_pool2d", "--axis", "1"], "--axis is for norms"),
    (["bench", "--op", "layer_norm", "--groups", "4"], "--groups is for group_norm"),
    (["bench", "--groups", "4"], "--op"),
    (["bench", "--op", "group_norm", "--shape", "2x6x9", "--groups", "4"], "groups = 4"),
    (["bench", "--op", "group_norm", "--groups", "0"], "--groups 0"),
    (["bench", "--op", "group_norm", "--shape", "7"], "ndim = 1"),
    (["bench", "--op", "batch_norm", "--shape", "7"], "ndim = 1"),
    (["bench", "--op", "l2_norm", "--activation", "relu"], "--activation is for"),
    (["bench", "--op", "layer_norm", "--activation", "tanh"], "gelu_tanh"),
    (["bench", "--op", "avg_pool2d", "--shape", "7"], "ndim = 1"),
    (["bench", "--op", "max_pool3d", "--shape", "2x3x4"], "ndim = 3"),
    (["bench", "--op", "avg_pool1d", "--kernel", "3x3"], "3x3"),
    (["bench", "--op", "avg_pool2d", "--kernel", "3x"], "3x"),
    (["bench", "--op", "avg_pool2d", "--kernel", "2x2x2x2"], "2x2x2x2"),
    (["bench", "--op", "avg_pool2d", "--stride", "0"], "--stride 0"),
    (["bench", "--op", "avg_pool2d", "--dilation", "2"], "--dilation is for max_pool"),
    (["bench", "--op", "lp_pool1d", "--padding", "1"], "--padding is for"),
    (["bench", "--op", "max_pool2d", "--output", "7"], "--output is for adaptive"),
    (["bench", "--op", "adaptive_avg_pool2d", "--kernel", "3"], "--kernel is for"),
    (["bench", "--op", "adaptive_avg_pool2d", "--output", "0"], "--output 0"),
    (["bench", "--op", "max_pol2d"], "did you mean max_pool2d?"),
    (["bench", "--json=yes"], "--json"),
    (["check", "--op", "l3_norm"], "l3_norm"),
    (["check", "stray"], "stray"),
    (["check", "--dtype", "f8"], "--dtype f8"),
    (["check", "--jobs", "0"], "--jobs 0"),
    (["check", "--jobs", "many"], "--jobs many"),
    (["info", "stray"], "stray"),
]


@pytest.mark.parametrize("arguments,says", MISTAKES, ids=lambda v: " ".join(v) if
                         isinstance(v, list) else None)
def test_a_mistake_is_one_clear_line_and_exit_status_2(arguments: List[str], says: str) -> None:
    result = onepass(*arguments)
    lines = result.stderr.splitlines()
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("onepass: ")
    assert says in lines[0]


@pytest.mark.parametrize("command", ["check", "bench"])
def test_a_gpu_that_is_not_there_is_one_clear_line(command: str) -> None:
    if info()["gpus"]:
        pytest.skip("there is a GPU here")
    result = onepass(command, "--device", "cuda")
    lines = result.stderr.splitlines()
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith(f"onepass: {command}: ")
    assert re.search(r"no CUDA device: .+", lines[0])


def test_a_vector_level_is_not_for_a_gpu() -> None:
    if not info()["gpus"]:
        pytest.skip(info()["gpus_reason"])
    result = onepass("bench", "--device", "cuda", "--vector", "baseline")
    assert result.returncode == 2
    assert "--vector baseline" in result.stderr


# ---- info, check, bench --------------------------------------------------------------------------


def test_info_says_what_this_machine_is() -> None:
    result = onepass("info")
    assert result.returncode == 0, result.stderr
    for word in ("version", "build", "cpu", "vector", "cache", "threads", "copy", "gpu"):
        assert word in result.stdout.lower(), word
    assert re.search(r"[0-9.]+ GB/s", result.stdout)
    if not info()["gpus"]:
        assert re.search(r"^gpus +no CUDA device: .+", result.stdout, flags=re.MULTILINE)


def test_info_lists_gpus_as_objects_or_says_why_there_are_none() -> None:
    found = info()
    if not found["gpus"]:
        assert found["gpus_reason"].startswith("no CUDA device: ")
    for gpu in found["gpus"]:
        assert gpu["name"]
        assert re.fullmatch(r"\d+\.\d+", gpu["compute_capability"])
        for key in ("multiprocessors", "memory", "cache_l2", "shared_per_block", "driver",
                    "copy_gbps"):
            assert gpu[key] > 0, key


def test_a_quick_check_passes(device: str) -> None:
    result = onepass("check", "--quick", "--device", device)
    assert result.returncode == 0, result.stdout + result.stderr
    for word in NORMS + POOLS + ["f32", "f64", "f16", "bf16"]:
        assert re.search(rf"\b{word}\b", result.stdout), word


def test_a_check_of_one_operator_shows_only_that(device: str) -> None:
    result = onepass("check", "--quick", "--op", "avg_pool1d", "--device", device)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "avg_pool1d" in result.stdout
    assert "layer_norm" not in result.stdout


def test_a_check_of_one_type_is_its_part_of_the_whole() -> None:
    def lines_of(*options: str) -> List[Dict[str, Any]]:
        result = onepass("check", "--quick", "--op", "avg_pool1d", "--device", "cpu", "--json", *options)
        assert result.returncode == 0, result.stdout + result.stderr
        return [line for line in map(json.loads, result.stdout.splitlines()) if "dtype" in line]

    whole = lines_of()
    assert {line["dtype"] for line in whole} == {"f32", "f64", "f16", "bf16"}
    assert lines_of("--dtype", "bf16") == [line for line in whole if line["dtype"] == "bf16"]
    assert lines_of("--dtype", "all") == whole


def test_cases_side_by_side_come_to_the_same() -> None:
    def table(jobs: str) -> str:
        result = onepass("check", "--quick", "--op", "pool", "--device", "cpu", "--jobs", jobs)
        assert result.returncode == 0, result.stdout + result.stderr
        return re.sub(r"\([0-9.]+ s\)", "", result.stdout)

    assert table("1") == table("5")


@pytest.mark.parametrize("op", ["layer_norm", "batch_norm", "max_pool2d"])
def test_a_check_says_what_ran(device: str, op: str) -> None:
    result = onepass("check", "--quick", "--op", op, "--device", device, "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    groups = [line for line in lines if "dtype" in line]
    assert {(li["op"], li["dir"], li["dtype"]) for li in groups} == {
        (op, direction, dtype) for direction in ("fwd", "bwd")
        for dtype in ("f32", "f64", "f16", "bf16")}
    for line in groups:
        assert {"cases", "failed", "worst_of_bound", "max_err", "max_abs_err", "ok"} <= set(line)
        assert line["ok"] and line["failed"] == 0
        assert line["kernels"] and line["cases"] > 0


def test_a_family_has_its_operators_and_no_others() -> None:
    result = onepass("check", "--quick", "--op", "pool", "--device", "cpu", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    assert {line["op"] for line in map(json.loads, result.stdout.splitlines())
            if "op" in line} == set(POOLS)


def test_a_check_takes_the_gpu_if_there_is_one() -> None:
    result = onepass("check", "--quick", "--op", "l1_norm", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    kernels = [line["kernel"] for line in map(json.loads, result.stdout.splitlines())
               if "kernel" in line]
    assert bool(kernels) == bool(info()["gpus"])


def test_a_check_on_a_gpu_reaches_every_kernel() -> None:
    if not info()["gpus"]:
        pytest.skip(info()["gpus_reason"])
    result = onepass("check", "--quick", "--device", "cuda", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.returncode == 0, result.stdout + result.stderr
    assert lines[-1]["unreached"] == ""
    for line in lines:
        if "kernel" in line:
            assert line["ok"] and line["cases"] > 0 and line["worst_of_bound"] <= 1


def test_bench_prints_one_json_object_a_line(device: str) -> None:
    lines = bench("--shape", "64x1000", "--op", "l1_norm", "--device", device)
    assert {(line["op"], line["dir"]) for line in lines} == {("l1_norm", "fwd"), ("l1_norm", "bwd")}
    for line in lines:
        assert KEYS <= set(line)
        assert line["dtype"] == "f32"
        assert line["device"] == device
        assert line["shape"] in ([64, 1000], "64x1000")
        assert line["threads"] >= 1
        assert line["ms"] > 0 and line["copy_ms"] > 0 and line["gbps"] > 0
        assert line["of_copy"] == pytest.approx(line["copy_ms"] / line["ms"], rel=0.05, abs=0.01)
        assert 0 <= line["max_err"] < 1e-4
        assert (GPU_KEYS <= set(line)) == (device == "cuda")


def test_bench_takes_the_gpu_if_there_is_one() -> None:
    lines = bench("--shape", "64x1000", "--op", "l1_norm", "--dir", "fwd", "--reps", "5")
    assert lines[0]["device"] == ("cuda" if info()["gpus"] else "cpu")


@pytest.mark.parametrize("op,shape", [("l1_norm", "33x257"), ("layer_norm", "33x257"),
                                      ("avg_pool1d", "3x5x257")])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_bench_does_every_operator_and_type(device: str, op: str, shape: str, dtype: str) -> None:
    lines = bench("--op", op, "--shape", shape, "--dtype", dtype, "--dir", "fwd", "--threads", "1",
                  "--device", device)
    assert [(li["op"], li["dtype"], li["dir"], li["threads"]) for li in lines] == [
        (op, dtype, "fwd", 1)]


@pytest.mark.parametrize("op", NORMS + POOLS)
def test_bench_knows_every_operator(device: str, op: str) -> None:
    shape = POOL_SHAPES[op[-2]] if op in POOLS else "6x8x65"
    result = onepass("bench", "--json", "--op", op, "--shape", shape, "--reps", "5", "--device",
                     device)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["op"], line["dir"]) for line in lines] == [(op, "fwd"), (op, "bwd")]
    for line in lines:
        assert KEYS <= set(line)
        assert line["ok"] and 0 <= line["max_err"] < 1e-4


def test_bench_takes_what_the_operators_take() -> None:
    def first(*arguments: str) -> Dict[str, Any]:
        return bench("--device", "cpu", "--dir", "fwd", "--reps", "5", *arguments)[0]

    line = first("--op", "group_norm", "--shape", "2x12x65", "--groups", "4", "--activation", "silu")
    assert (line["groups"], line["activation"]) == (4, "silu")
    line = first("--op", "l2_norm", "--shape", "2x12x65", "--axis", "1")
    assert line["axis"] == -2
    line = first("--op", "max_pool2d", "--shape", "2x3x40x41", "--kernel", "3x5", "--stride", "2",
                 "--padding", "1x0", "--dilation", "1x2")
    assert [line[key] for key in ("kernel_size", "stride", "padding", "dilation")] == [
        [3, 5], [2, 2], [1, 0], [1, 2]]
    line = first("--op", "avg_pool1d", "--shape", "2x3x40", "--kernel", "4")
    assert [line[key] for key in ("kernel_size", "stride", "padding")] == [4, 1, 2]
    line = first("--op", "adaptive_max_pool3d", "--shape", "2x9x9x9", "--output", "2x3x4")
    assert line["output"] == [2, 3, 4]


@pytest.mark.parametrize("kernel", GPU_KERNELS)
def test_bench_uses_the_kernel_that_is_asked_for_or_says_why_not(kernel: str) -> None:
    if not info()["gpus"]:
        pytest.skip(info()["gpus_reason"])
    result = onepass("bench", "--json", "--op", "layer_norm", "--shape", "64x1024", "--reps", "5",
                     "--device", "cuda", "--cuda-kernel", kernel)
    assert result.returncode in (0, 2), result.stderr
    if result.returncode == 2:
        assert len(result.stderr.splitlines()) == 1
    for line in map(json.loads, result.stdout.splitlines()):
        assert line["kernel"] == kernel
        assert line["ok"]


def test_bench_prints_a_table_with_the_columns(device: str) -> None:
    result = onepass("bench", "--shape", "64x1000", "--op", "layer_norm", "--dir", "bwd",
                     "--device", device, "-v")
    assert result.returncode == 0, result.stderr
    more = ["vector", "threads"] if device == "cpu" else ["grid", "block", "cluster", "launches"]
    for word in ["op", "dir", "dtype", "shape", "time", "GB/s", "copy", "layer_norm", "bwd",
                 "64x1000", "kernel", "workspace"] + more:
        assert word in result.stdout, word
    assert result.stderr == ""  # progress is for terminals


def test_output_that_cannot_be_written_is_an_error() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run([CLI, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode != 0
    assert len(result.stderr.splitlines()) == 1
