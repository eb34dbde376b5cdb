"""What to try next, drawn from what was measured. Each piece says the number it comes from and what it could gain."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

__all__ = ["Advice", "Measured", "advise"]


class Advice(NamedTuple):
    about: str
    text: str
    gain: float  # how many times faster it might get, if nothing else is in the way

    def to_json(self) -> Dict[str, Any]:
        return {"about": self.about, "text": self.text, "gain": round(self.gain, 2)}


class Measured(NamedTuple):
    seconds: float  # a call
    of_copy: float
    bytes: int
    small: Optional[float]  # seconds of a call on the smallest batch
    small_share: float  # of the data that is
    queued: float  # share of the time until the last call of a batch has returned
    extra: Optional[int]  # bytes of memory beyond results
    device: str
    multiprocessors: int
    kernels: Sequence[Dict[str, Any]]  # name, and where known grid, block, registers, microseconds
    counters: Dict[str, float]  # of the hardware: bytes read and written, sectors a request, spills


def advise(measured: Measured) -> List[Advice]:
    """The largest gain first."""
    rules = (host_bound, many_passes, extra_memory, several_kernels, few_blocks, waits_inside, narrow_accesses,
             spills)
    found = [advice for rule in rules for advice in rule(measured)]
    return sorted(found, key=lambda advice: -advice.gain)


def host_bound(m: Measured) -> List[Advice]:
    if m.small is None or m.small_share > 0.5 or m.small < 0.5 * m.seconds:
        return []
    return [Advice("host", f"a call on {m.small_share:.1%} of the data takes {m.small * 1e6:.0f} µs of the whole "
                   f"call's {m.seconds * 1e6:.0f} µs: time goes into Python, launches and allocation, not into "
                   "data. Launch less, or capture the call in a CUDA graph", m.seconds / max(
                       m.seconds - m.small * (1 - m.small_share), m.of_copy * m.seconds, 1e-9))]


def many_passes(m: Measured) -> List[Advice]:
    moved = 1.0 / max(m.of_copy, 1e-9)
    counted = m.counters.get("bytes_read", 0.0) + m.counters.get("bytes_written", 0.0)
    if counted:
        passes = counted / m.bytes
        if passes < 1.15:
            return []
        return [Advice("passes", f"the hardware counted {counted / 1e6:.4g} MB moved to and from memory, {passes:.2f} "
                       f"times the {m.bytes / 1e6:.4g} MB that must be: something is read or written again. Keep it "
                       "in registers or shared memory", passes)]
    if moved < 1.3 or (m.small is not None and m.small > 0.5 * m.seconds):
        return []
    return [Advice("passes", f"the time is that of moving the data {moved:.1f} times ({m.of_copy:.2f} of the "
                   "copy's speed): " + ("it is read or written more than once, or too few accesses are under way "
                                        "at a time. " if moved < 3.5 else
                                        "more than any sensible number of passes. The accesses themselves are "
                                        "slow: scattered, narrow, or one at a time. ") +
                   "Each byte once is the aim", moved)]


def extra_memory(m: Measured) -> List[Advice]:
    if m.extra is None or m.extra < 0.2 * m.bytes:
        return []
    # What lies in memory in between is written once and read once.
    gain = (m.bytes + 2.0 * m.extra) / m.bytes
    return [Advice("intermediate", f"a call takes {m.extra / 1e6:.4g} MB of memory beyond its result, "
                   f"{m.extra / m.bytes:.2f} of all that must move: an intermediate is written and read again. "
                   "Fuse the steps", min(gain, 1.0 / max(m.of_copy, 1e-9)))]


def several_kernels(m: Measured) -> List[Advice]:
    launched = [k for k in m.kernels if k.get("device") == "cuda"]
    if len(launched) < 2 or m.of_copy > 0.9:
        return []
    names = ", ".join(str(k["name"])[:40] for k in launched[:3])
    return [Advice("launches", f"{len(launched)} kernels a call ({names}{', ...' if len(launched) > 3 else ''}): each "
                   "reads what the one before it wrote. One kernel could do",
                   min(float(len(launched)), 1.0 / max(m.of_copy, 1e-9)))]


def few_blocks(m: Measured) -> List[Advice]:
    found = []
    for kernel in m.kernels:
        blocks, time = kernel.get("blocks"), kernel.get("microseconds")
        if not blocks or not time or not m.multiprocessors or time < 0.3 * m.seconds * 1e6:
            continue
        if blocks < m.multiprocessors:
            found.append(Advice("blocks", f"{str(kernel['name'])[:60]} has {blocks} blocks for {m.multiprocessors} "
                                "multiprocessors: the others are idle. Split rows over more blocks",
                                min(m.multiprocessors / blocks, 1.0 / max(m.of_copy, 1e-9))))
    return found


def waits_inside(m: Measured) -> List[Advice]:
    if m.device != "cuda" or m.queued < 0.9 or (m.small is not None and m.small > 0.5 * m.seconds):
        return []
    return [Advice("waiting", f"calls return only after {m.queued:.0%} of the time that their work takes: something "
                   "waits for the GPU inside (.item(), .cpu(), a synchronization). Let it run ahead", 1.1)]


def narrow_accesses(m: Measured) -> List[Advice]:
    sectors = m.counters.get("sectors_per_request")
    if not sectors or (3.5 <= sectors <= 16.5):
        return []
    if sectors > 16.5:
        return [Advice("accesses", f"a load of a warp touches {sectors:.1f} sectors of 32 bytes, where 4 to 16 would do: "
                       "neighbouring threads read far apart. Let them read neighbours", sectors / 16.0)]
    return [Advice("accesses", f"a load of a warp brings {sectors:.1f} sectors of 32 bytes; 16 bytes a thread would be "
                   "16. Load vectors of four floats", min(1.3, 1.0 / max(m.of_copy, 1e-9)))]


def spills(m: Measured) -> List[Advice]:
    spilled = m.counters.get("local_sectors", 0.0) * 32
    if spilled < 0.01 * m.bytes:
        return []
    return [Advice("spills", f"{spilled / 1e6:.3g} MB of registers were spilled to memory and back. Hold less in a "
                   "thread", 1.0 + spilled / m.bytes)]
