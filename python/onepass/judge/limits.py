"""How far from the memory's speed, and what no program can reach."""

from typing import Any, Dict, NamedTuple, Optional

from .bench import Bench
from .stats import Estimate
from .timing import Times

__all__ = ["Distance", "distance"]

# Of the floor: a median this far below it, with its whole interval, is no measurement error.
IMPOSSIBLE = 0.8


class Distance(NamedTuple):
    bytes: int
    of_copy: Estimate
    copy_speed: float  # bytes a second, read and written
    floor: float  # seconds: each byte once, at the highest speed that was seen for it
    impossible: Optional[str]

    def to_json(self) -> Dict[str, Any]:
        return {"bytes": self.bytes, "of_copy": self.of_copy.rounded(), "floor_ms": self.floor * 1e3,
                "copy_gb_s": self.copy_speed / 1e9, "impossible": self.impossible}


def distance(bench: Bench, times: Times) -> Distance:
    """A copy moves half of the bytes in and half of them out; `read` and `write` as many in one direction. If
    that is so little that most of their time is what a call costs, flushing the caches tells how fast the
    memory is."""
    half = bench.bytes // 8 * 4
    copy, read, write = (times.of(name) for name in ("copy", "read", "write"))
    copy_speed = 2 * half / copy.median
    seen = max(copy_speed, bench.device.memory_speed if bench.bytes < bench.device.flushed else 0.0)
    read_speed = max(seen, half / read.low)
    write_speed = max(seen, half / write.low)
    needed = min(1.0, bench.needed) * bench.input_bytes + bench.parameter_bytes
    floor = needed / read_speed + bench.output_bytes / write_speed
    candidate, eager = times.of("candidate"), times.of("eager")
    impossible = None
    if candidate.high < IMPOSSIBLE * floor and eager.median > IMPOSSIBLE * floor:
        speed = (needed + bench.output_bytes) / candidate.median
        impossible = (
            f"{candidate.median * 1e3:.3g} ms for {bench.bytes / 1e6:.4g} MB is {speed / 1e9:.4g} GB/s, "
            f"where this memory reads {read_speed / 1e9:.4g} and writes {write_speed / 1e9:.4g} GB/s at "
            f"most: the least possible is {floor * 1e3:.3g} ms. The work is not done in the time that is "
            "taken, or not done at all")
    return Distance(bench.bytes, times.ratio("copy", "candidate"), copy_speed, floor, impossible)
