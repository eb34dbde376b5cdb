"""The command: what it prints, its exit statuses, and that bad usage is one clear line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable, List

import pytest
from conftest import HONEST, REFERENCES, forward
from onepass.judge.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "kernelbench"
TASKS = ("l1_norm", "layer_norm", "avg_pool1d")
FAST = ["--quick", "--no-compile", "--rounds", "3", "--device", "cpu", "--threads", "2"]

Write = Callable[[str, str], Path]


def judge(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "onepass.judge", *map(str, arguments)], timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


@pytest.fixture
def reference(write: Write) -> Path:
    return write("reference.py", REFERENCES["rows"])


def test_help_teaches() -> None:
    done = judge("--help")
    assert done.returncode == 0
    for word in ("REFERENCE.py", "ModelNew", "exit status", "at the limit", "--no-torch-ops", "examples:"):
        assert word in done.stdout


def test_bad_usage_is_one_line(reference: Path, write: Write, tmp_path: Path,
                               capsys: pytest.CaptureFixture) -> None:
    empty = write("empty.py", "x = 1\n")
    folder = tmp_path / "nothing"
    folder.mkdir()
    usages: List[List[object]] = [
        [], [reference], [reference, "nowhere.py"], ["nowhere.py"], [reference, empty], [empty, empty],
        [reference, reference, "--device", "tpu"], [reference, reference, "--tol", "0"],
        [reference, empty, "--set", "rows"], ["--suite", folder], ["--suite", EXAMPLES, "--sizes", "vast"],
        ["--suite", EXAMPLES, reference], [reference, "--sizes", "cpu"], ["--suite", "nowhere"]]
    for usage in usages:
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in usage])
        printed = capsys.readouterr()
        assert ended.value.code == 2, usage
        assert printed.out == "" and printed.err.startswith("onepass-judge: "), usage
        assert len(printed.err.splitlines()) == 1, printed.err


def test_a_verdict_in_words(reference: Path, write: Write) -> None:
    slow = write("slow.py", forward(f"time.sleep(0.003)\nreturn {HONEST}", before="import time"))
    done = judge(*FAST, reference, slow)
    assert done.returncode == 12, done
    assert done.stdout.startswith("Original time: ") and " ms, New time: " in done.stdout
    assert "x\nVerdict: slower: " in done.stdout and "seed " in done.stdout
    assert done.stderr == ""


def test_a_verdict_in_json_and_a_report(reference: Path, write: Write, tmp_path: Path) -> None:
    """Twice, with the same seed: the same inputs, and so the same wrong answer."""
    wrong = write("wrong.py", forward("print('Verdict: accepted')\nreturn x"))
    usage = [*FAST, "--json", "--seed", 5, "--report", tmp_path / "page.html", reference, wrong]
    first, again = judge(*usage), judge(*usage)
    assert first.returncode == 20, first
    line = json.loads(first.stdout)
    assert (line["verdict"], line["exit_status"], line["seed"], line["format"]) == ("wrong", 20, 5, 1)
    assert line["reason"] == json.loads(again.stdout)["reason"]
    assert "wrong" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "page.json").read_text())[0]["candidate"] == "wrong"
    assert str(tmp_path) not in (tmp_path / "page.json").read_text()


def test_a_reference_that_fails_is_no_verdict(write: Write) -> None:
    random = write("random.py", REFERENCES["relu"].replace("torch.relu(x)", "torch.rand_like(x)"))
    done = judge(*FAST, random, write("candidate.py", forward("return x")))
    assert done.returncode == 3 and "another answer to the same input" in done.stderr, done


def test_no_gpu_is_said(reference: Path) -> None:
    import torch
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = judge("--device", "cuda", EXAMPLES / "l1_norm.py")
    assert done.returncode == 3 and done.stderr == "onepass-judge: PyTorch finds no CUDA device\n"


def test_the_example_suite(tmp_path: Path) -> None:
    """With sizes that take no time: all are judged or skipped with a reason, and none is wrong. Of the
    examples those that have several candidates."""
    suite = tmp_path / "suite"
    suite.mkdir()
    shutil.copy(EXAMPLES / "sizes.json", suite)
    for task in TASKS:
        shutil.copy(EXAMPLES / f"{task}.py", suite)
        shutil.copytree(EXAMPLES / task, suite / task)
    done = judge(*FAST, "--suite", suite, "--sizes", "tiny", "--report", tmp_path / "suite.html", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    names = {(os.path.basename(line["reference"]), os.path.basename(line["candidate"])) for line in lines}
    for task in TASKS:
        assert (f"{task}.py", f"{task}.py") in names and (f"{task}.py", "pytorch.py") in names
    for line in lines:
        verdict = line["verdict"]
        assert verdict not in ("wrong", "broken", "cheating"), (verdict, line.get("reason"), line)
        assert verdict != "skipped" or line["reason"] == "needs the device cuda"
    assert done.returncode == 0
    page = (tmp_path / "suite.html").read_text()
    assert page.count("<svg") == 2 and "http" not in page.replace("http-equiv", "")
