"""A worker: a process that the judge has started, stops and starts again, limits, and ends with all it left.

A worker is frozen (SIGSTOP, with all its descendants) except while it answers a request. So a candidate
cannot look at inputs before the clock runs, compute on after it has stopped, or slow down the reference.
"""

import json
import os
import select
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Union

from .memory import shared_memory
from .nursery import Forked, give_up_nursery, nursery_for, nursery_pids
from .wire import Table, decode, encode

__all__ = ["Failure", "Limits", "Worker", "clean_environment", "living_descendants"]

KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV",
                  "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CC", "CXX", "TORCH_CUDA_ARCH_LIST")
SANDBOXED = {"HOME": "home", "TMPDIR": "tmp", "TORCH_EXTENSIONS_DIR": "extensions",
             "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "CUDA_CACHE_PATH": "cuda",
             "XDG_CACHE_HOME": "cache"}
MOST_LINE = 1 << 20
POLL = 0.02
STARTING = 120.0  # seconds for Python, PyTorch and a GPU's context, which are nobody's
DYING = 10.0  # seconds for a process that has closed its pipe; a GPU's context takes some of them
TAIL_LINES = 24


class Failure(Exception):
    """A worker that did not do what was asked, by its `role`. `kind` is one of exception, compile, crash,
    exit, hang, memory, leak, protocol; `cheats` if that is evidence of a try to fool the judge."""

    def __init__(self, kind: str, reason: str, tail: str = "", cheats: bool = False) -> None:
        super().__init__(reason)
        self.role = ""
        self.kind, self.reason, self.tail, self.cheats = kind, reason, tail, cheats


class Limits(NamedTuple):
    build: float  # seconds: import, construction and the first call
    call: float  # seconds: any later request
    total: float  # seconds in which it was not frozen
    memory: int  # bytes of its own, all its processes together


def clean_environment(sandbox: str, extra: Dict[str, str]) -> Dict[str, str]:
    """Only what a compiler and PyTorch need, with every cache and temporary file in the sandbox."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    inside = {name: os.path.join(sandbox, folder) for name, folder in SANDBOXED.items()}
    for folder in inside.values():
        os.makedirs(folder, exist_ok=True)
    paths = [path or os.getcwd() for path in sys.path if not path.endswith(".zip")]
    return {
        **kept, **inside, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        # Memory that is freed stays mapped: a call's time is not that of the kernel clearing pages, and what
        # a result is made of has been poisoned.
        "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 24),
        **extra}


def read_text(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def state_of(pid: int) -> str:
    """R, S, D, T, Z, ..., or nothing if there is no such process."""
    text = read_text(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split()[0] if ")" in text else ""


def children_of(pid: int) -> List[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads
            for child in read_text(f"/proc/{pid}/task/{thread}/children").split()]


def living_descendants(pid: int, leaving_out: Set[int]) -> List[int]:
    found: List[int] = []
    waiting = [pid]
    while waiting:
        for child in children_of(waiting.pop()):
            if child in leaving_out or child in found:
                continue
            if state_of(child) in ("", "Z", "X"):
                continue
            found.append(child)
            waiting.append(child)
    return found


def own_memory(pid: int, shared_on_purpose: int) -> int:
    """Bytes that a process has touched, less the memory that the judge shares with it."""
    fields = {}
    for line in read_text(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssShmem"):
            fields[name] = int(value.split()[0]) << 10
    return fields.get("RssAnon", 0) + max(0, fields.get("RssShmem", 0) - shared_on_purpose)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def start_process(options: Dict[str, Any], sandbox: str, environment: Dict[str, str], output: int,
                  descriptors: Dict[str, int]) -> Union[Forked, "subprocess.Popen[bytes]"]:
    nursery = nursery_for({name: value for name, value in environment.items() if name not in SANDBOXED})
    if nursery:
        try:
            return nursery.fork(options, sandbox, environment, output, descriptors, STARTING)
        except OSError:
            give_up_nursery()
    return subprocess.Popen(
        [sys.executable, "-m", "onepass.judge.worker", json.dumps({**options, "descriptors": descriptors})],
        cwd=sandbox, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        pass_fds=tuple(descriptors.values()), start_new_session=True)


class Worker:
    """One of the judge's two processes. `siblings` are the other ones', whose fate is not this one's."""

    def __init__(self, role: str, arguments: Dict[str, Any], limits: Limits, shared: Dict[str, int],
                 siblings: Callable[[], Set[int]], environment: Dict[str, str]) -> None:
        self.role, self.limits, self.siblings = role, limits, siblings
        self.sandbox = tempfile.mkdtemp(prefix=f"onepass-judge-{role}-")
        self.shared_bytes = 0
        self.evidence: List[str] = []
        self.guards: List[str] = []
        self.thawed = time.monotonic()
        self.active = 0.0  # seconds, before it was last thawed
        self.buffer = b""
        self.also_stopped: List[int] = []
        self.device_memory: Optional[Callable[[], int]] = None  # bytes over the limit, if it has one
        table = shared_memory(f"{role}-table", Table.BYTES)
        self.table = Table(table)
        request_end, self.requests = os.pipe()
        self.replies, reply_end = os.pipe()
        self.log = os.path.join(self.sandbox, "output")
        descriptors = {**shared, "table": table, "requests": request_end, "replies": reply_end}
        options = {"role": role, "judge": os.getpid(), **arguments}
        with open(self.log, "wb") as output:
            self.process = start_process(options, self.sandbox, clean_environment(self.sandbox, environment),
                                         output.fileno(), descriptors)
        for descriptor in (table, request_end, reply_end):
            os.close(descriptor)
        self.pid = self.process.pid
        os.set_blocking(self.replies, False)
        # Opened now: a process that hides itself later can still be read.
        self.memory = -1
        self.frozen = False

    def open_memory(self) -> None:
        self.memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)

    # Stopping and going on

    def descendants(self) -> List[int]:
        """Those of the worker, and orphans that fell to the judge."""
        strangers = self.siblings() | nursery_pids() | {self.pid}
        own = living_descendants(self.pid, strangers)
        # The reference is trusted to leave none, and must not let go on what a candidate has left.
        return own if self.role == "reference" else own + living_descendants(os.getpid(), strangers)

    def freeze(self) -> None:
        """Returns when every thread has stopped."""
        if self.frozen or self.process.poll() is not None:
            return
        os.kill(self.pid, signal.SIGSTOP)
        self.active += time.monotonic() - self.thawed
        self.also_stopped = self.descendants()
        for pid in self.also_stopped:
            signal_quietly(pid, signal.SIGSTOP)
        give_up = time.monotonic() + 5.0
        while state_of(self.pid) not in ("T", "t", "Z", "") and time.monotonic() < give_up:
            time.sleep(0.0001)
        self.frozen = True

    def thaw(self) -> None:
        for pid in self.also_stopped:
            signal_quietly(pid, signal.SIGCONT)
        self.frozen = False
        self.thawed = time.monotonic()
        signal_quietly(self.pid, signal.SIGCONT)

    # Asking

    def send(self, request: Dict[str, Any]) -> None:
        try:
            os.write(self.requests, encode(request))
        except BrokenPipeError:
            failure = self.death()
            failure.role = self.role
            raise failure from None

    def ask(self, request: Dict[str, Any], seconds: Optional[float] = None) -> Dict[str, Any]:
        """Its reply. It is frozen before and after."""
        self.send(request)
        self.thaw()
        try:
            return self.wait(self.limits.call if seconds is None else seconds)
        finally:
            self.freeze()

    def wait_until_ready(self) -> Dict[str, Any]:
        """What it says before anything of the candidate's has run: that time does not count."""
        self.active = -STARTING
        ready = self.wait(STARTING)
        self.active, self.thawed = 0.0, time.monotonic()
        return ready

    def wait(self, seconds: float) -> Dict[str, Any]:
        """The next reply, of a worker that is running. Raises Failure."""
        try:
            return self.wait_for_reply(seconds)
        except Failure as failure:
            failure.role = self.role
            raise

    def wait_for_reply(self, seconds: float) -> Dict[str, Any]:
        left = self.limits.total - self.active
        give_up = self.thawed + min(seconds, left)
        looked = time.monotonic()
        while True:
            line, newline, rest = self.buffer.partition(b"\n")
            if newline:
                self.buffer = rest
                reply = self.understand(line)
                if reply is not None:
                    return reply
                continue
            ready, _, _ = select.select([self.replies], [], [], POLL)
            now = time.monotonic()
            if ready:
                self.read_some()
            elif self.process.poll() is not None:
                raise self.death()
            if now > give_up:
                self.kill()
                limit = f"{self.limits.total:.0f} s in all" if left < seconds else f"{seconds:.0f} s"
                raise Failure("hang", f"gave no answer within {limit}", self.tail())
            if now - looked > 0.05:
                looked = now
                self.check_memory()

    def read_some(self) -> None:
        try:
            data = os.read(self.replies, 65536)
        except BlockingIOError:
            return
        if not data:
            raise self.death()
        self.buffer += data
        if len(self.buffer) > MOST_LINE:
            raise Failure("protocol", "sent a reply without end", self.tail())

    def understand(self, line: bytes) -> Optional[Dict[str, Any]]:
        try:
            reply = decode(line)
        except ValueError:
            raise Failure("protocol", f"answered what its runner does not say: {line[:80]!r}",
                          self.tail(), cheats=True) from None
        if "evidence" in reply:
            self.evidence.append(str(reply["evidence"])[:500])
            return None
        if "error" in reply:
            raise Failure(str(reply.get("kind", "exception")), str(reply["error"])[:2000], self.tail())
        return reply

    def check_memory(self) -> None:
        used = sum(own_memory(pid, self.shared_bytes) for pid in [self.pid, *self.descendants()])
        if used > self.limits.memory:
            self.kill()
            raise Failure("memory", f"used more than the {self.limits.memory / 2**30:.3g} GiB of memory it "
                          f"may have ({used / 2**30:.3g} GiB when it was ended)", self.tail())
        over = self.device_memory() if self.device_memory else 0
        if over > 0:
            self.kill()
            raise Failure("memory", f"used {over / 2**30:.3g} GiB more of the GPU's memory than it may have",
                          self.tail())

    def death(self) -> Failure:
        """Why it answers no more."""
        try:
            status = self.process.wait(DYING)
        except subprocess.TimeoutExpired:
            self.kill()
            return Failure("protocol", "closed its pipe to the judge and ran on", self.tail())
        if status == -signal.SIGSYS:
            return Failure("crash", "was ended by the kernel for a system call that only serves to trace, "
                           "read or signal other processes (SIGSYS)", self.tail(), cheats=True)
        if status == -signal.SIGKILL and self.role == "candidate":
            return Failure("memory", "was killed, by itself or by a kernel that ran out of memory (SIGKILL)",
                           self.tail())
        if status < 0:
            return Failure("crash", f"crashed: {signal_name(-status)}", self.tail())
        return Failure("exit", f"ended with status {status} before it had answered", self.tail())

    def failure(self, kind: str, reason: str, cheats: bool = False) -> Failure:
        found = Failure(kind, reason, self.tail(), cheats)
        found.role = self.role
        return found

    def tail(self) -> str:
        """The last lines of what it printed, without what a terminal would obey."""
        try:
            with open(self.log, "rb") as output:
                output.seek(max(0, os.path.getsize(self.log) - 8192))
                text = output.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = ["".join(c if c.isprintable() or c == "\t" else "?" for c in line)[:300]
                 for line in text.splitlines() if line.strip()]
        return "\n".join(lines[-TAIL_LINES:])

    # Its memory

    def read(self, address: int, size: int, seconds: float = 30.0) -> bytearray:
        """Of a frozen worker's memory. Raises Failure where there is none."""
        data = bytearray(size)
        view, done = memoryview(data), 0
        alarm = Alarm(self, seconds)
        try:
            while done < size:
                count = os.preadv(self.memory, [view[done:done + (64 << 20)]], address + done)
                if count <= 0:
                    raise OSError("the end")
                done += count
        except (OSError, OverflowError) as error:
            raise self.failure("protocol", "its result lies where there is no memory to read "
                               f"({size} bytes at {address:#x}: {error})", cheats=True) from None
        finally:
            alarm.cancel()
        return data

    # The end

    def left_behind(self, patience: float = 3.0) -> List[str]:
        """Ends the worker in good order; the names of processes that outlive it."""
        if self.process.poll() is None:
            try:
                self.send({"do": "end"})
                self.thaw()
                self.process.wait(patience)
            except (subprocess.TimeoutExpired, Failure):
                pass
        if self.process.poll() is None:
            signal_quietly(self.pid, signal.SIGKILL)
            self.process.wait()
        give_up = time.monotonic() + patience
        for pid in self.also_stopped:
            signal_quietly(pid, signal.SIGCONT)
        while self.descendants() and time.monotonic() < give_up:
            self.reap()
            time.sleep(0.05)
        names = [f"{pid} ({read_text(f'/proc/{pid}/comm').strip()})" for pid in self.descendants()]
        self.close()
        return names

    def kill(self) -> None:
        """All of it, however deep, however detached."""
        give_up = time.monotonic() + 10.0
        while time.monotonic() < give_up:
            alive = self.descendants()
            if self.process.poll() is None:
                alive.append(self.pid)
            if not alive:
                break
            for pid in alive:
                signal_quietly(pid, signal.SIGKILL)
            self.reap()
            time.sleep(0.005)

    def reap(self) -> None:
        self.process.poll()
        for pid in set(children_of(os.getpid())) - self.siblings() - nursery_pids() - {self.pid}:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass

    def close(self) -> None:
        self.kill()
        self.reap()
        for descriptor in (self.requests, self.replies, self.memory):
            try:
                os.close(descriptor)
            except OSError:
                pass
        shutil.rmtree(self.sandbox, ignore_errors=True)


class Alarm:
    """Ends a worker whose memory cannot be read in time: somebody serves it page by page, and the judge
    waits in the kernel until that somebody is gone."""

    def __init__(self, worker: Worker, seconds: float) -> None:
        self.timer = threading.Timer(seconds, worker.kill)
        self.timer.daemon = True
        self.timer.start()

    def cancel(self) -> None:
        self.timer.cancel()


def signal_quietly(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
