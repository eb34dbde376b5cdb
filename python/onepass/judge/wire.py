"""What the judge and its two workers say to each other.

Requests and replies are lines of JSON on pipes. Where a worker's results lie is written to a table in
shared memory instead, so that telling it costs a microsecond a call and not a line of text within the time
that is taken. The judge believes nothing in the table: an address is a place to look at, and what lies there
must be right.
"""

import json
import mmap
import struct
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch

__all__ = ["DTYPES", "Place", "Table", "decode", "encode", "span"]

MOST_DIMS = 8
ENTRY = struct.Struct(f"<8q{MOST_DIMS}q{MOST_DIMS}q64s")
ENTRIES = 4096
DTYPES: Sequence[torch.dtype] = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
    torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128)
PLAIN, HERE = 1, 2  # flags: exactly a torch.Tensor, strided; on the right device


class Place(NamedTuple):
    """Where a tensor lies in the memory of the process that wrote this down."""
    call: int
    part: int  # which of the call's results
    flags: int
    dtype: int  # index in DTYPES, -1 for another one
    address: int
    base: int  # of the allocation, on a GPU
    size: int  # of the allocation, on a GPU
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    handle: bytes  # of the allocation, on a GPU; zeros if that is the inputs' memory

    @property
    def itemsize(self) -> int:
        return torch.empty(0, dtype=DTYPES[self.dtype]).element_size()

    @property
    def bytes(self) -> int:
        return span(self.shape, self.strides) * self.itemsize


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie between the first and the last one, both included."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


class Table:
    """The places of a worker's latest results, in memory that it shares with the judge."""

    BYTES = 8 + ENTRIES * ENTRY.size

    def __init__(self, descriptor: int) -> None:
        self.memory = mmap.mmap(descriptor, self.BYTES)

    def write(self, places: Sequence[Place]) -> None:
        for index, place in enumerate(places[:ENTRIES]):
            padding = (0,) * (MOST_DIMS - len(place.shape))
            ENTRY.pack_into(self.memory, 8 + index * ENTRY.size, place.call, place.part, place.flags,
                            place.dtype, place.address, place.base, place.size, len(place.shape),
                            *place.shape, *padding, *place.strides, *padding, place.handle)
        struct.pack_into("<q", self.memory, 0, min(len(places), ENTRIES))

    def read(self) -> List[Place]:
        """Raises ValueError for what no honest worker writes."""
        count, = struct.unpack_from("<q", self.memory, 0)
        if not 0 <= count <= ENTRIES:
            raise ValueError(f"its table of results has {count} entries")
        return [self._read_one(index) for index in range(count)]

    def _read_one(self, index: int) -> Place:
        values = ENTRY.unpack_from(self.memory, 8 + index * ENTRY.size)
        call, part, flags, dtype, address, base, size, dims = values[:8]
        if not 0 <= dims <= MOST_DIMS or not -1 <= dtype < len(DTYPES):
            raise ValueError(f"its table of results says {dims} axes, type {dtype}")
        shape, strides = values[8:8 + dims], values[8 + MOST_DIMS:8 + MOST_DIMS + dims]
        if any(not 0 <= n < 1 << 48 for n in shape) or any(not 0 <= n < 1 << 48 for n in strides):
            raise ValueError(f"its table of results says shape {shape}, strides {strides}")
        return Place(call, part, flags, dtype, address, base, size, shape, strides, values[-1])


def encode(message: Dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> Dict[str, Any]:
    """Raises ValueError for anything that is not an object."""
    message = json.loads(line.decode("utf-8", "replace"))
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message
