"""What keeps a candidate's process away from the judge's, as far as Linux allows without another user.

The judge and the reference's process are not dumpable: other processes of the same user cannot read or
write their memory. Root could all the same, so a candidate that runs as root loses its capabilities; and
a filter of system calls ends a candidate that traces, reads or signals the judge. Each guard that holds is
named in the verdict. None of them is what the verdict rests on: expected answers do not exist while a
candidate computes.
"""

import ctypes
import os
import platform
import signal
import struct
from typing import Dict, List, NamedTuple, Sequence, Tuple

__all__ = ["adopt_orphans", "die_with_parent", "hide", "lower_oom_score", "restrain", "show"]

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
SECCOMP_MODE_FILTER = 2

class SystemCalls(NamedTuple):
    """Their numbers on an architecture."""
    architecture: int
    refused: Sequence[int]  # ptrace, process_vm_readv, process_vm_writev, userfaultfd, pidfd_getfd
    # Not on a protected process: kill, tkill, tgkill, rt_sigqueueinfo, pidfd_open, sched_setparam,
    # sched_setscheduler, sched_setaffinity, sched_setattr, prlimit64, migrate_pages, move_pages
    on_process: Sequence[int]
    on_self: Sequence[int]  # not on another one: setpriority, ioprio_set


SYSTEM_CALLS: Dict[str, SystemCalls] = {
    "x86_64": SystemCalls(0xC000003E, (101, 310, 311, 323, 438),
                          (62, 200, 234, 129, 434, 142, 144, 203, 314, 302, 256, 279), (141, 251)),
    "aarch64": SystemCalls(0xC00000B7, (117, 270, 271, 282, 438),
                           (129, 130, 131, 138, 434, 118, 119, 122, 274, 261, 238, 239), (140, 30)),
}


def prctl(option: int, argument: int = 0, pointer: int = 0) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(pointer), 0, 0) == 0


def hide() -> bool:
    """No process of this user may read this one's memory or files in /proc any more."""
    return prctl(PR_SET_DUMPABLE, 0)


def show() -> bool:
    """Undoes hide."""
    return prctl(PR_SET_DUMPABLE, 1)


def adopt_orphans() -> bool:
    """Whoever is left behind by a child becomes a child of this process, and is found."""
    return prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    return prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def restrain(protected: Sequence[int], fully: bool) -> List[str]:
    """Of the calling process and all it will start: no capabilities, no new ones, and an end at once for
    tracing any process or signalling a protected one. Returns the guards that hold."""
    held = []
    if prctl(PR_SET_NO_NEW_PRIVS, 1):
        held.append("no_new_privileges")
    if not fully:
        return held
    if drop_capabilities():
        held.append("no_capabilities")
    if held and held[0] == "no_new_privileges" and filter_system_calls(protected):
        held.append("system_call_filter")
    return held


def drop_capabilities() -> bool:
    for capability in range(64):
        prctl(PR_CAPBSET_DROP, capability)  # only root may, and only root has to
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("<Ii", 0x20080522, 0)
    libc.capset(header, bytes(24))
    with open("/proc/self/status") as status:
        effective = [line.split()[1] for line in status if line.startswith("CapEff:")]
    return effective == ["0" * 16]


Step = Tuple[int, int, int, int]  # of a program: what, how far to jump if so, if not, with what
LOAD, IS, END = 0x20, 0x15, 0x06
KILL, ALLOW = 0x80000000, 0x7FFF0000
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24  # where they are in what the kernel shows


def filter_system_calls(protected: Sequence[int]) -> bool:
    """A program for the kernel's packet filter, which looks at every system call from now on."""
    calls = SYSTEM_CALLS.get(platform.machine())
    if calls is None:
        return False
    targets = sorted({value & 0xFFFFFFFF for pid in protected for value in (pid, -pid)}
                     | {0xFFFFFFFF})  # -1: everyone
    program: List[Step] = [(LOAD, 0, 0, ARCHITECTURE), (IS, 1, 0, calls.architecture), (END, 0, 0, ALLOW),
                           (LOAD, 0, 0, NUMBER)]
    for number in calls.refused:
        program += [(IS, 0, 1, number), (END, 0, 0, KILL)]
    on_targets: List[Step] = [(LOAD, 0, 0, FIRST)]
    for target in targets:
        on_targets += [(IS, 0, 1, target), (END, 0, 0, KILL)]
    on_targets.append((END, 0, 0, ALLOW))
    on_others: List[Step] = [(LOAD, 0, 0, SECOND), (IS, 1, 0, 0), (END, 0, 0, KILL), (END, 0, 0, ALLOW)]
    for numbers, body in ((calls.on_process, on_targets), (calls.on_self, on_others)):
        for number in numbers:
            program += [(IS, 0, len(body), number), *body]
    program.append((END, 0, 0, ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(code)))
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def lower_oom_score() -> None:
    """The kernel, out of memory, shall end this process and not the judge."""
    try:
        with open(f"/proc/{os.getpid()}/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass
