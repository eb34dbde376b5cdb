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
from typing import Dict, List, Sequence, Tuple

__all__ = ["adopt_orphans", "die_with_parent", "hide", "lower_oom_score", "restrain"]

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38
SECCOMP_MODE_FILTER = 2

# Numbers of system calls: kill, tkill, tgkill, rt_sigqueueinfo, pidfd_open and, refused in any form,
# ptrace, process_vm_readv, process_vm_writev, userfaultfd, pidfd_getfd.
SYSTEM_CALLS: Dict[str, Tuple[int, Sequence[int], Sequence[int]]] = {
    "x86_64": (0xC000003E, (62, 200, 234, 129, 434), (101, 310, 311, 323, 438)),
    "aarch64": (0xC00000B7, (129, 130, 131, 138, 434), (117, 270, 271, 282, 438)),
}


def prctl(option: int, argument: int = 0, pointer: int = 0) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(pointer), 0, 0) == 0


def hide() -> bool:
    """No process of this user may read this one's memory or files in /proc any more."""
    return prctl(PR_SET_DUMPABLE, 0)


def adopt_orphans() -> bool:
    """Whoever is left behind by a child becomes a child of this process, and is found."""
    return prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    return prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def restrain(protected: Sequence[int]) -> List[str]:
    """Of the calling process and all it will start: no capabilities, no new ones, and an end at once for
    tracing any process or signalling a protected one. Returns the guards that hold."""
    held = []
    if prctl(PR_SET_NO_NEW_PRIVS, 1):
        held.append("no_new_privileges")
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


def filter_system_calls(protected: Sequence[int]) -> bool:
    """A program for the kernel's packet filter machine: loads what is asked for, jumps, returns."""
    known = SYSTEM_CALLS.get(platform.machine())
    if known is None:
        return False
    architecture, signalling, refused = known
    targets = sorted({value & 0xFFFFFFFF for pid in protected for value in (pid, -pid)}
                     | {0xFFFFFFFF})  # -1: everyone
    load, equal, end = 0x20, 0x15, 0x06
    kill, allow = 0x80000000, 0x7FFF0000
    program: List[Tuple[int, int, int, int]] = [(load, 0, 0, 4), (equal, 1, 0, architecture),
                                                (end, 0, 0, allow), (load, 0, 0, 0)]
    for number in refused:
        program += [(equal, 0, 1, number), (end, 0, 0, kill)]
    for number in signalling:
        # If it is this call: its first argument against each target, then back to the number.
        body: List[Tuple[int, int, int, int]] = [(load, 0, 0, 16)]
        for target in targets:
            body += [(equal, 0, 1, target), (end, 0, 0, kill)]
        body += [(end, 0, 0, allow)]
        program += [(equal, 0, len(body), number), *body]
    program.append((end, 0, 0, allow))
    code = b"".join(struct.pack("<HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(code)
    header = ctypes.create_string_buffer(
        struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer)))
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def lower_oom_score() -> None:
    """The kernel, out of memory, shall end this process and not the judge."""
    try:
        with open(f"/proc/{os.getpid()}/oom_score_adj", "w") as score:
            score.write("1000")
    except OSError:
        pass
