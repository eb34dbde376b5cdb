"""Where the candidate runs, as the judge sees it: shared inputs, other processes' results, cold caches."""

import math
import os
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from .memory import Driver, Spec, device_bytes, shared_memory
from .process import Worker, own_memory, read_text
from .wire import DTYPES, HERE, Place

__all__ = ["Cpu", "Cuda", "Device", "open_device"]

ARENA_MOST = 1 << 42  # of address space; only what is written to takes memory
SAMPLES = 4096
LEAST_FREE = 1 << 30  # bytes on a GPU


class Device:
    """What both have."""
    kind: str
    name: str
    least_batch: float  # seconds that a timed batch should take
    opened = 0  # allocations of other processes that had to be opened so far
    flushed = 0  # bytes that a flush reads and writes
    memory_speed = 0.0  # the highest of any flush: of these bytes a second

    def descriptors(self) -> Dict[str, int]:
        return {}

    def arena(self, size: int) -> Dict[str, Any]:
        """Makes room for inputs; the request that tells a worker of it."""
        raise NotImplementedError

    def read(self, worker: Worker, place: Place) -> torch.Tensor:
        """A copy of a frozen worker's result, dense. Raises Failure."""
        raise NotImplementedError

    def flush(self) -> float:
        """Leaves nothing of anybody's data in the caches. Returns the seconds it took."""
        seconds = self.move_other_data()
        self.memory_speed = max(self.memory_speed, self.flushed / seconds)
        return seconds

    def move_other_data(self) -> float:
        raise NotImplementedError

    def choose_elements(self, specs: Sequence[Spec]) -> "Elements":
        """Some of each result, that only the judge knows; chosen before the clock runs."""
        return []

    def peek(self, worker: Worker, calls: Sequence[int], places: Sequence[Place],
             elements: "Elements") -> "Peek":
        """Those elements of the results of some calls, at once and within the time that is taken."""
        raise NotImplementedError

    def used(self, worker: Worker) -> int:
        raise NotImplementedError

    def over_limit(self) -> int:
        """Bytes of the device's memory that a candidate has too many."""
        return 0

    def room(self) -> int:
        """Bytes that inputs and results of a timed batch may take."""
        raise NotImplementedError

    def forget(self) -> None:
        """Lets go of other processes' memory; what is needed again is opened again."""

    def close(self) -> None:
        pass


# For each part of a result: its shape, and some of its elements as one index an axis.
Elements = List[Tuple[Tuple[int, ...], Tuple[torch.Tensor, ...]]]
# By (call, part): what was there.
Peek = Dict[Tuple[int, int], torch.Tensor]


def total_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    for line in read_text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return total_memory() // 2


def cpu_name() -> str:
    fields = {}
    for line in read_text("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields.get("model name") or " ".join(
        [os.uname().machine, "CPU", *(["part " + fields["CPU part"]] if "CPU part" in fields else [])])


def last_level_cache() -> int:
    largest = 0
    for index in range(6):
        text = read_text(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size").strip()
        if text.endswith("K"):
            largest = max(largest, int(text[:-1]) << 10)
    return largest


class Cpu(Device):
    """Results are read out of the frozen process, wherever it has put them."""
    kind, least_batch = "cpu", 0.02

    def __init__(self, threads: int) -> None:
        self.name = f"{cpu_name()}, {threads} thread{'s' if threads > 1 else ''}"
        self.descriptor = shared_memory("arena", ARENA_MOST)
        size = min(max(2 * last_level_cache(), 32 << 20), 256 << 20)
        self.other_data = torch.zeros(size // 4)
        self.flushed = 2 * size
        self.size = 0

    def descriptors(self) -> Dict[str, int]:
        return {"arena": self.descriptor}

    def arena(self, size: int) -> Dict[str, Any]:
        self.size = size
        return {"do": "arena", "size": size}

    def read(self, worker: Worker, place: Place) -> torch.Tensor:
        dtype = DTYPES[place.dtype]
        if place.bytes == 0:
            return torch.empty(place.shape, dtype=dtype)
        data = worker.read(place.address, place.bytes)
        whole = torch.frombuffer(data, dtype=dtype)
        return whole.as_strided(place.shape, place.strides).contiguous()

    def move_other_data(self) -> float:
        start = time.perf_counter()
        self.other_data.add_(1.0)
        return time.perf_counter() - start

    def peek(self, worker: Worker, calls: Sequence[int], places: Sequence[Place],
             elements: Elements) -> Peek:
        return {}  # a process that is stopped computes nothing: there is time to look at all of it

    def used(self, worker: Worker) -> int:
        return own_memory(worker.pid, self.size)

    def room(self) -> int:
        return min(1 << 30, available_memory() // 6)

    def close(self) -> None:
        os.close(self.descriptor)


class Cuda(Device):
    """Results are opened by their handles. A frozen process's kernels run on, so a few elements of the
    results are looked at before the clock stops: who says that it is done must be done."""
    kind, least_batch = "cuda", 0.01

    def __init__(self, threads: int) -> None:
        self.device = torch.device("cuda", 0)
        self.name = torch.cuda.get_device_name(0)
        torch.zeros(1, device=self.device)
        self.driver = Driver()
        properties = torch.cuda.get_device_properties(0)
        self.multiprocessors = properties.multi_processor_count
        cache = getattr(properties, "L2_cache_size", 0)
        self.source = torch.zeros(max(256 << 20, 3 * cache) // 4, device=self.device)
        self.target = torch.zeros_like(self.source)
        self.flushed = 2 * 4 * self.source.numel()
        self.memory: Optional[torch.Tensor] = None
        self.secret = torch.Generator(device=self.device)
        self.secret.seed()
        for _ in range(3):
            self.flush()
        self.quiet_flush = min(self.flush() for _ in range(5))
        self.before = torch.cuda.mem_get_info(0)[0]

    def arena(self, size: int) -> Dict[str, Any]:
        self.memory = None
        torch.cuda.empty_cache()
        self.memory = torch.empty(size, dtype=torch.uint8, device=self.device)
        base, whole = self.driver.allocation_of(self.memory.data_ptr())
        self.driver.exported.clear()
        torch.cuda.synchronize()
        return {"do": "arena", "size": size, "handle": self.driver.export(base, whole).hex(),
                "offset": self.memory.data_ptr() - base}

    def home_of(self, worker: Worker, place: Place) -> Tuple[int, int]:
        """Address and size, here, of the allocation in which a result lies."""
        if self.memory is not None and not any(place.handle):  # in the inputs' memory
            return self.memory.data_ptr(), self.memory.numel()
        try:
            new = place.handle not in self.driver.opened
            opened = self.driver.open(place.handle)
            _, size = self.driver.allocation_of(opened)
        except OSError as error:
            raise worker.failure("protocol", f"its result cannot be opened: {error}") from None
        self.opened += new
        return opened, size

    def view(self, worker: Worker, place: Place) -> torch.Tensor:
        opened, size = self.home_of(worker, place)
        offset = place.address - place.base
        if offset < 0 or offset + place.bytes > size:
            raise worker.failure("protocol", "its result lies outside of its memory", cheats=True)
        if offset % place.itemsize:  # by the offset, which counts: a kernel of the judge's would fail there
            raise worker.failure("protocol", "its result lies at an odd address", cheats=True)
        part = device_bytes(opened + offset, place.bytes, self.device)
        return part.view(DTYPES[place.dtype]).as_strided(place.shape, place.strides)

    def read(self, worker: Worker, place: Place) -> torch.Tensor:
        if place.bytes == 0:
            return torch.empty(place.shape, dtype=DTYPES[place.dtype], device=self.device)
        copy = self.view(worker, place).clone(memory_format=torch.contiguous_format)
        torch.cuda.synchronize()
        return copy

    def move_other_data(self) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.target.copy_(self.source)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3

    def choose_elements(self, specs: Sequence[Spec]) -> Elements:
        chosen: Elements = []
        for spec in specs:
            count = max(1, math.prod(spec.shape))
            coordinates, rest = [], torch.randint(count, (SAMPLES,), device=self.device,
                                                      generator=self.secret)
            for size in reversed(spec.shape):
                coordinates.append(rest % max(1, size))
                rest = torch.div(rest, max(1, size), rounding_mode="floor")
            chosen.append((spec.shape, tuple(reversed(coordinates))))
        torch.cuda.synchronize()
        return chosen

    def peek(self, worker: Worker, calls: Sequence[int], places: Sequence[Place],
             elements: Elements) -> Peek:
        found: Peek = {}
        for place in places:
            if place.call not in calls or not 0 <= place.part < len(elements) or not place.flags & HERE:
                continue
            shape, coordinates = elements[place.part]
            if place.shape == shape and place.dtype >= 0 and place.bytes and shape:
                found[(place.call, place.part)] = self.view(worker, place)[coordinates].cpu()
        return found

    def used(self, worker: Worker) -> int:
        return own_memory(worker.pid, 0) + max(0, self.before - torch.cuda.mem_get_info(0)[0])

    def over_limit(self) -> int:
        """Bytes that are missing where the judge itself needs some."""
        return max(0, LEAST_FREE - torch.cuda.mem_get_info(0)[0])

    def room(self) -> int:
        return int(torch.cuda.mem_get_info(0)[0] * 0.35)

    def close(self) -> None:
        self.memory = None
        self.driver.close_all()
        torch.cuda.empty_cache()

    def forget(self) -> None:
        torch.cuda.synchronize()
        self.driver.close_all()
        torch.cuda.empty_cache()


def open_device(kind: str, threads: int) -> Device:
    """Raises OSError where there is none."""
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return Cpu(threads)
    if not torch.cuda.is_available():
        raise OSError("PyTorch finds no CUDA device")
    return Cuda(threads)

