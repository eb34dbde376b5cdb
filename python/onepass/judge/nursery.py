"""Where workers come from. Importing PyTorch takes seconds: one process does it once, and workers are forks.

It has seen nothing of any candidate's and uses no GPU, so a fork is as good as a process of its own, and
starts in a few milliseconds. It is made by two forks: a worker whose parent has ended falls to the judge,
which can wait for it as for any other child. Candidates can reach the nursery as little as the judge.
"""

import array
import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from .guard import die_with_parent, hide, show

__all__ = ["Forked", "Nursery", "await_work", "give_up_nursery", "nursery_for", "nursery_pids"]

MOST_MESSAGE = 1 << 18
MOST_DESCRIPTORS = 16


class Forked:
    """A child of the judge's that it did not start itself, with what subprocess.Popen has for one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: Optional[int] = None
        self.lock = threading.Lock()

    def poll(self) -> Optional[int]:
        with self.lock:
            if self.returncode is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # somebody else has waited for it
                    pid, status = self.pid, 0
                if pid:
                    killed = os.WIFSIGNALED(status)
                    self.returncode = -os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
            return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        give_up = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            status = self.poll()
            if status is not None:
                return status
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            time.sleep(0.001)


class Nursery:
    """The judge's end. `environment` is what libraries read when they are loaded."""

    def __init__(self, environment: Dict[str, str]) -> None:
        self.environment = environment
        self.socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "onepass.judge.worker", "nursery", str(other.fileno())],
                cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, pass_fds=(other.fileno(),), start_new_session=True)
        self.pid = self.process.pid
        atexit.register(self.close)

    def fork(self, options: Dict[str, Any], folder: str, environment: Dict[str, str], output: int,
             descriptors: Dict[str, int], seconds: float) -> Forked:
        """A worker. Raises OSError where that does not work."""
        message = {"options": options, "folder": folder, "environment": environment,
                   "descriptors": list(descriptors)}
        passed = array.array("i", [output, *descriptors.values()])
        self.socket.settimeout(seconds)
        self.socket.sendmsg([json.dumps(message).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
        reply = self.socket.recv(64)
        if not reply:
            raise OSError("the process that workers are forked from has ended")
        pid = int(reply)
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # orphans do not fall to the judge
            os.kill(pid, signal.SIGKILL)
            raise
        return Forked(pid)

    def close(self) -> None:
        atexit.unregister(self.close)
        self.socket.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_nursery: Optional[Nursery] = None
_given_up = False


def nursery_for(environment: Dict[str, str]) -> Optional[Nursery]:
    """The judge's one and only, or None if workers have to be started one by one."""
    global _nursery
    if _given_up:
        return None
    if _nursery is None or _nursery.environment != environment:
        if _nursery is not None:
            _nursery.close()
        _nursery = Nursery(environment)
    return _nursery


def nursery_pids() -> Set[int]:
    return set() if _nursery is None else {_nursery.pid}


def give_up_nursery() -> None:
    """Once a fork did not work: what the libraries at hand make of forks is their business."""
    global _nursery, _given_up
    _given_up = True
    if _nursery is not None:
        _nursery.close()
        _nursery = None


# Inside

def await_work(descriptor: int) -> Dict[str, Any]:
    """Forks workers until the judge is gone. Returns in each of them, with its options."""
    die_with_parent()
    hide()
    import torch  # noqa: F401

    from . import trusted  # noqa: F401
    gc.collect()
    gc.freeze()  # what is here now is never garbage: looking for some need not look at it
    with socket.socket(fileno=descriptor) as judge:
        while True:
            data, passed = receive(judge)
            if not data:
                os._exit(0)
            ours, theirs = os.pipe()
            between = os.fork()
            if between == 0:
                between = os.getpid()
                worker = os.fork()
                if worker:
                    os.write(theirs, str(worker).encode())
                    os._exit(0)
                os.close(ours)
                os.close(theirs)
                break
            for each in (theirs, *passed):
                os.close(each)
            os.waitpid(between, 0)  # now the worker is the judge's
            judge.send(os.read(ours, 64))
            os.close(ours)
    while os.getppid() == between:  # whoever is its parent when it asks to die with it
        time.sleep(0.0002)
    return become_worker(json.loads(data.decode()), passed)


def receive(judge: socket.socket) -> Tuple[bytes, List[int]]:
    passed = array.array("i")
    data, control, _, _ = judge.recvmsg(MOST_MESSAGE, socket.CMSG_SPACE(MOST_DESCRIPTORS * passed.itemsize))
    for level, kind, content in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            passed.frombytes(content[:len(content) // passed.itemsize * passed.itemsize])
    return data, list(passed)


def become_worker(message: Dict[str, Any], passed: Sequence[int]) -> Dict[str, Any]:
    """As if it had been started with that."""
    show()  # the judge has to read it
    os.setsid()
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["environment"])
    output, *others = passed
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    for descriptor in others:
        os.set_inheritable(descriptor, False)
    options: Dict[str, Any] = {**message["options"], "descriptors": dict(zip(message["descriptors"], others))}
    sys.argv[1:] = [json.dumps(options)]
    return options
