"""What to try next, drawn from what was measured, each with its number and what it could gain."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

__all__ = ["Advice", "Measured", "advise"]


class Advice(NamedTuple):
    about: str
    gain: float  # how many times faster it might get, if nothing else is in the way
    text: str

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
    kernels: Sequence[Dict[str, Any]]  # name, and where known device, blocks, microseconds
    counters: Dict[str, float]  # of the hardware: bytes read and written, sectors a request, spills

    @property
    def most(self) -> float:
        """What there is to gain until the copy's speed."""
        return 1.0 / max(self.of_copy, 1e-9)

    @property
    def host_bound(self) -> bool:
        return self.small is not None and self.small_share <= 0.5 and self.small >= 0.5 * self.seconds


def advise(measured: Measured) -> List[Advice]:
    """The largest gain first."""
    rules = (host_bound, many_passes, extra_memory, several_kernels, few_blocks, waits_inside,
             narrow_accesses, spills)
    found = [advice for rule in rules for advice in rule(measured)]
    return sorted(found, key=lambda advice: -advice.gain)


def host_bound(m: Measured) -> List[Advice]:
    if m.small is None or not m.host_bound:
        return []
    rest = max(m.seconds - m.small * (1 - m.small_share), m.of_copy * m.seconds, 1e-9)
    return [Advice("host", m.seconds / rest, (
        f"a call on {m.small_share:.1%} of the data takes {m.small * 1e6:.0f} µs of the whole call's "
        f"{m.seconds * 1e6:.0f} µs: time goes into Python, launches and allocation, not into data. Launch "
        "less, or capture the call in a CUDA graph"))]


def many_passes(m: Measured) -> List[Advice]:
    counted = m.counters.get("bytes_read", 0.0) + m.counters.get("bytes_written", 0.0)
    if counted:
        passes = counted / m.bytes
        return [] if passes < 1.15 else [Advice("passes", passes, (
            f"the hardware counted {counted / 1e6:.4g} MB moved to and from memory, {passes:.2f} times the "
            f"{m.bytes / 1e6:.4g} MB that must be: something is read or written again. Keep it in registers "
            "or shared memory"))]
    if m.most < 1.3 or m.host_bound:
        return []
    why = ("it is read or written more than once, or too few accesses are under way at a time"
           if m.most < 3.5 else "more than any sensible number of passes, so the accesses themselves are "
           "slow: scattered, narrow, or one at a time")
    return [Advice("passes", m.most, (
        f"the time is that of moving the data {m.most:.1f} times ({m.of_copy:.2f} of the copy's speed): "
        f"{why}. Each byte once is the aim"))]


def extra_memory(m: Measured) -> List[Advice]:
    if m.extra is None or m.extra < 0.2 * m.bytes:
        return []
    # What lies in memory in between is written once and read once.
    gain = min((m.bytes + 2.0 * m.extra) / m.bytes, m.most)
    return [Advice("intermediate", gain, (
        f"a call takes {m.extra / 1e6:.4g} MB of memory beyond its result, {m.extra / m.bytes:.2f} of all "
        "that must move: an intermediate is written and read again. Fuse the steps"))]


def several_kernels(m: Measured) -> List[Advice]:
    launched = [str(kernel["name"])[:40] for kernel in m.kernels if kernel.get("device") == "cuda"]
    if len(launched) < 2 or m.of_copy > 0.9:
        return []
    names = ", ".join(launched[:3]) + (", ..." if len(launched) > 3 else "")
    return [Advice("launches", min(float(len(launched)), m.most), (
        f"{len(launched)} kernels a call ({names}): each reads what the one before it wrote. One kernel "
        "could do"))]


def few_blocks(m: Measured) -> List[Advice]:
    found = []
    for kernel in m.kernels:
        blocks, time = kernel.get("blocks"), kernel.get("microseconds")
        long = time and time >= 0.3 * m.seconds * 1e6
        if blocks and long and blocks < m.multiprocessors:
            found.append(Advice("blocks", min(m.multiprocessors / blocks, m.most), (
                f"{str(kernel['name'])[:60]} has {blocks} blocks for {m.multiprocessors} multiprocessors: "
                "the others are idle. Split rows over more blocks")))
    return found


def waits_inside(m: Measured) -> List[Advice]:
    if m.device != "cuda" or m.queued < 0.9 or m.host_bound:
        return []
    return [Advice("waiting", 1.1, (
        f"calls return only after {m.queued:.0%} of the time that their work takes: something waits for the "
        "GPU inside (.item(), .cpu(), a synchronization). Let it run ahead"))]


def narrow_accesses(m: Measured) -> List[Advice]:
    sectors = m.counters.get("sectors_per_request")
    if not sectors or 3.5 <= sectors <= 16.5:
        return []
    if sectors > 16.5:
        return [Advice("accesses", sectors / 16.0, (
            f"a load of a warp touches {sectors:.1f} sectors of 32 bytes, where 4 to 16 would do: "
            "neighbouring threads read far apart. Let them read neighbours"))]
    return [Advice("accesses", min(1.3, m.most), (
        f"a load of a warp brings {sectors:.1f} sectors of 32 bytes; 16 bytes a thread would be 16. Load "
        "vectors of four floats"))]


def spills(m: Measured) -> List[Advice]:
    spilled = m.counters.get("local_sectors", 0.0) * 32
    if spilled < 0.01 * m.bytes:
        return []
    return [Advice("spills", 1.0 + spilled / m.bytes, (
        f"{spilled / 1e6:.3g} MB of registers were spilled to memory and back. Hold less in a thread"))]
