"""Where workers come from: forks of a process that candidates cannot reach, or processes of their own."""

import os
import signal
import subprocess
from typing import Any, List, Type

import pytest
from conftest import HONEST, Judge, forward
from onepass.judge import bench, nursery, process
from onepass.judge.nursery import Forked


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> List[Type[Any]]:
    """What each worker's process is."""
    kinds: List[Type[Any]] = []
    start = bench.Worker

    def watched(*arguments: Any) -> Any:
        worker = start(*arguments)
        kinds.append(type(worker.process))
        return worker

    monkeypatch.setattr(bench, "Worker", watched)
    return kinds


RAISES = forward("raise ValueError(os.environ['TORCH_EXTENSIONS_DIR'] + ' ' + os.getcwd())",
                 before="import os")


def test_workers_are_forks(against: Judge, started: List[Type[Any]]) -> None:
    judgement = against("rows", RAISES)
    assert judgement.verdict == "broken" and started[-1] is Forked, judgement
    extensions, folder = judgement.reason.split()[-2:]
    assert extensions == f"{folder}/extensions" and not os.path.exists(folder)


def test_workers_can_be_processes_of_their_own(against: Judge, started: List[Type[Any]],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "nursery_for", lambda environment: None)
    judgement = against("rows", RAISES)
    assert judgement.verdict == "broken" and started[-1] is subprocess.Popen, judgement
    assert "exception: ValueError" in judgement.reason


def test_the_judge_goes_on_without_a_nursery(against: Judge, started: List[Type[Any]],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "_given_up", False)  # for the tests that follow
    against("rows", RAISES)
    pid, = nursery.nursery_pids()
    os.kill(pid, signal.SIGKILL)
    assert against("rows", RAISES).verdict == "broken" and started[-1] is subprocess.Popen
    assert nursery.nursery_pids() == set()


REACHING = {
    "by opening its memory": "open('/proc/{pid}/mem', 'rb+')",
    "by signalling it": "os.kill({pid}, 0)",
    "by slowing it down": "os.sched_setaffinity({pid}, {{0}})",
}


@pytest.mark.parametrize("way", REACHING)
def test_reaches_for_what_it_was_forked_from(against: Judge, started: List[Type[Any]], way: str) -> None:
    against("rows", RAISES)
    pid, = nursery.nursery_pids()
    judgement = against("rows", forward(f"""
        try:
            {REACHING[way].format(pid=pid)}
        except OSError:
            pass
        return {HONEST}
        """, before="import os"))
    assert judgement.verdict == "cheating", judgement
    assert against("rows", RAISES).verdict == "broken" and started[-1] is Forked
