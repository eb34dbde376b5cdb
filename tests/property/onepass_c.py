"""The C interface of onepass through ctypes, and arrays in guarded memory of their own. A call on a
GPU copies them there and back.

The library is the one that the environment variable ONEPASS_LIBRARY names. Nothing but the standard
library is used, so that the tests run wherever Python does.
"""

import ctypes
import itertools
import math
import os
import struct
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint8, c_uint16
from ctypes import c_uint64, c_void_p
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import cuda

__all__ = [
    "Array", "AVG_POOL", "CUDA_KERNELS", "DEVICES", "DTYPES", "Device", "Dtype", "FORWARD", "BACKWARD",
    "I64", "L1_NORM", "LAYER_NORM", "LP_POOL", "MAX_POOL", "MEAN", "SUM", "Norm",
    "Options", "Pool", "Result", "ROLES", "STATUS",
    "compact_strides", "last_message", "lib", "plan_and_run", "pool_length", "round_to",
    "tensors_of", "why_no_cuda",
]

FORWARD, BACKWARD = 0, 1
L1_NORM, LAYER_NORM = 0, 1
AVG_POOL, MAX_POOL, LP_POOL = 0, 1, 2
MEAN, SUM = 0, 1

STATUS = (
    "OK NULL_POINTER BAD_OPERATOR BAD_OPTION BAD_DEVICE BAD_DTYPE BAD_NDIM BAD_SHAPE BAD_STRIDES "
    "BAD_AXIS BAD_KERNEL BAD_WINDOW_STRIDE BAD_PADDING OVERLAP MISALIGNED BAD_WORKSPACE "
    "OUT_OF_MEMORY BAD_STREAM CUDA_ERROR"
).split()
DEVICES = {"cpu": 1, "cuda": 2}  # onepass_device.type
CUDA_KERNELS = 9  # ONEPASS_CUDA_KERNEL_COUNT
ROLES = ("x weight bias y mean rstd dy dx dweight dbias"
         " residual sum dsum running_mean running_var indices").split()


class Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class DtypeCode(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DtypeCode),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class Tensors(ctypes.Structure):
    _fields_ = [(role, POINTER(Tensor)) for role in ROLES]


class Buffers(ctypes.Structure):
    _fields_ = [(role, c_void_p) for role in ROLES]


class Norm(ctypes.Structure):
    _fields_ = [
        ("op", c_int32),
        ("direction", c_int32),
        ("axis", c_int32),
        ("reduction", c_int32),
        ("eps", c_double),
        ("axes", c_int32),
        ("clamp", c_int32),
        ("groups", c_int64),
        ("use_running", c_int32),
        ("momentum", c_double),
        ("activation", c_int32),
    ]


class Pool(ctypes.Structure):
    _fields_ = [
        ("op", c_int32),
        ("direction", c_int32),
        ("spatial", c_int32),
        ("kernel", c_int64 * 3),
        ("stride", c_int64 * 3),
        ("padding", c_int64 * 3),
        ("ceil_mode", c_int32),
        ("count_include_pad", c_int32),
        ("dilation", c_int64 * 3),
        ("divisor", c_int64),
        ("adaptive", c_int32),
        ("p", c_double),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("threads", c_int32),
        ("vector_level", c_int32),
        ("reference", c_int32),
        ("cuda_kernel", c_int32),
    ]


def _load() -> ctypes.CDLL:
    path = os.environ.get("ONEPASS_LIBRARY")
    if not path:
        raise RuntimeError("set ONEPASS_LIBRARY to the path of libonepass.so")
    library = ctypes.CDLL(path)
    library.onepass_last_message.restype = c_char_p
    library.onepass_plan_workspace.restype = c_size_t
    library.onepass_plan_workspace.argtypes = [c_void_p]
    library.onepass_plan_destroy.restype = None
    library.onepass_plan_destroy.argtypes = [c_void_p]
    library.onepass_run.argtypes = [c_void_p, POINTER(Buffers), c_void_p, c_size_t, c_void_p]
    library.onepass_plan_norm.argtypes = [
        POINTER(c_void_p), POINTER(Norm), POINTER(Tensors), POINTER(Options)]
    library.onepass_plan_pool.argtypes = [
        POINTER(c_void_p), POINTER(Pool), POINTER(Tensors), POINTER(Options)]
    library.onepass_pool_length.argtypes = [
        c_int64, c_int64, c_int64, c_int64, c_int32, POINTER(c_int64)]
    library.onepass_pool_length_dilated.argtypes = [
        c_int64, c_int64, c_int64, c_int64, c_int64, c_int32, POINTER(c_int64)]
    library.onepass_get_cuda_count.argtypes = [POINTER(c_int32)]
    return library


lib = _load()


def last_message() -> str:
    return lib.onepass_last_message().decode()


def why_no_cuda() -> str:
    """The library's reason why there is no CUDA device; empty where there is one."""
    return last_message() if lib.onepass_get_cuda_count(ctypes.byref(c_int32())) else ""


# ---- Types ---------------------------------------------------------------------------------------


class Dtype(NamedTuple):
    name: str
    code: int
    size: int  # bytes of an element
    unit: float  # unit roundoff: half the distance from 1 to the next number
    smallest: float  # half the smallest step: what rounding may lose near zero
    largest: float

    @property
    def stats(self) -> "Dtype":
        """The type of sums, mean and rstd."""
        return DTYPES["f64"] if self.name == "f64" else DTYPES["f32"]


DTYPES: Dict[str, Dtype] = {
    "f32": Dtype("f32", 2, 4, 2.0**-24, 2.0**-150, 3.4028234663852886e38),
    "f64": Dtype("f64", 2, 8, 2.0**-53, 5e-324, 1.7976931348623157e308),
    "f16": Dtype("f16", 2, 2, 2.0**-11, 2.0**-25, 65504.0),
    "bf16": Dtype("bf16", 4, 2, 2.0**-8, 2.0**-134, 3.3895313892515355e38),
}
I64 = Dtype("i64", 0, 8, 0.0, 0.0, 2.0**63)  # indices only
LETTERS = {"f16": "<e", "f32": "<f", "f64": "<d", "i64": "<q"}


def _f32_bits(value: float) -> int:
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0xFF800000 if value < 0 else 0x7F800000


def _bf16_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    bits = _f32_bits(value)
    # Values in the tests come from f32, so rounding twice does not happen.
    return min(bits + 0x7FFF + (bits >> 16 & 1), 0xFFFFFFFF) >> 16


def pack(dtype: Dtype, value: float) -> bytes:
    """The bytes of a number in this type; what is too large becomes infinite."""
    if dtype.name == "bf16":
        return struct.pack("<H", _bf16_bits(value))
    letter = LETTERS[dtype.name]
    try:
        return struct.pack(letter, value)
    except OverflowError:
        return struct.pack(letter, math.copysign(math.inf, value))


def unpack(dtype: Dtype, data: bytes) -> float:
    if dtype.name == "bf16":
        return struct.unpack("<f", b"\0\0" + data)[0]
    return struct.unpack(LETTERS[dtype.name], data)[0]


def round_to(dtype: Dtype, value: float) -> float:
    """The nearest number of this type."""
    return unpack(dtype, pack(dtype, value))


# ---- Arrays --------------------------------------------------------------------------------------

GUARD = 64  # bytes on either side
PATTERN = 0xA5


def compact_strides(shape: Sequence[int]) -> List[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


class Array:
    """A tensor of any layout in a block of its own, filled with a pattern. Elements are numbered in
    row-major order of the shape; every byte that is no element must keep the pattern."""

    def __init__(self, dtype: Dtype, shape: Sequence[int], strides: Optional[Sequence[int]] = None,
                 shift: int = 0) -> None:
        self.dtype = dtype
        self.shape = list(shape)
        self.strides = list(compact_strides(shape) if strides is None else strides)
        self.count = math.prod(self.shape)
        extent = 0
        if self.count:
            extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides))
        self.size = GUARD + (shift + extent) * dtype.size + GUARD
        self._block = ctypes.create_string_buffer(self.size + 64)
        base = ctypes.addressof(self._block)
        self._start = -base % 64  # the guard starts on a 64-byte boundary
        ctypes.memset(base, PATTERN, self.size + 64)
        self.first = self._start + GUARD + shift * dtype.size
        self.c_shape = (c_int64 * max(len(self.shape), 1))(*self.shape)
        self.c_strides = (c_int64 * max(len(self.strides), 1))(*self.strides)
        self.tensor = Tensor(
            base + self._start, Device(1, 0), len(self.shape),
            DtypeCode(dtype.code, dtype.size * 8, 1), self.c_shape, self.c_strides,
            self.first - self._start)

    @property
    def start(self) -> int:
        """Where the block starts, guard and all; the first element is tensor.byte_offset later."""
        return ctypes.addressof(self._block) + self._start

    @property
    def address(self) -> int:
        return ctypes.addressof(self._block) + self.first

    def positions(self) -> Iterator[int]:
        """Where each element starts in the block."""
        for index in itertools.product(*map(range, self.shape)):
            yield self.first + self.dtype.size * sum(i * s for i, s in zip(index, self.strides))

    def fill(self, values: Sequence[float]) -> "Array":
        for position, value in zip(self.positions(), values):
            self._block[position:position + self.dtype.size] = pack(self.dtype, value)
        return self

    def values(self) -> List[float]:
        raw = self._block.raw
        size = self.dtype.size
        return [unpack(self.dtype, raw[p:p + size]) for p in self.positions()]

    def bits(self) -> bytes:
        raw = self._block.raw
        return b"".join(raw[p:p + self.dtype.size] for p in self.positions())

    def bits_of_numbers(self) -> bytes:
        """The same, but that one NaN is as good as another: which it is hangs on the order of operands."""
        bits, size = self.bits(), self.dtype.size
        elements = (bits[p:p + size] for p in range(0, len(bits), size))
        return b"".join(b"\xff" * size if math.isnan(unpack(self.dtype, element)) else element
                        for element in elements)

    def raw(self) -> bytes:
        return self._block.raw

    def guards_hold(self) -> bool:
        raw = bytearray(self._block.raw)
        for position in self.positions():
            raw[position:position + self.dtype.size] = bytes([PATTERN]) * self.dtype.size
        return raw == bytes([PATTERN]) * len(raw)


# ---- Calls ---------------------------------------------------------------------------------------


class Result(NamedTuple):
    status: str  # without ONEPASS_
    message: str  # empty when the status is OK
    stage: str  # "plan" or "run"


def tensors_of(arrays: Dict[str, Array]) -> Tensors:
    tensors = Tensors()
    for role, array in arrays.items():
        setattr(tensors, role, ctypes.pointer(array.tensor))
    return tensors


WORKSPACE_GUARD = 64  # bytes; also what a workspace is aligned to
WORKSPACE_PATTERN = b"\x5a"


def _room_for_workspace(size: int) -> "ctypes.Array":
    """Guards around the workspace, which may have to move up to a boundary."""
    whole = size + 3 * WORKSPACE_GUARD
    return ctypes.create_string_buffer(WORKSPACE_PATTERN * whole, whole)


def _expect_only_workspace_written(room: "ctypes.Array", start: int, size: int) -> None:
    outside = room.raw[:start] + room.raw[start + size:]
    assert outside == WORKSPACE_PATTERN * len(outside), "written outside the workspace"


def _run_on_cpu(plan: c_void_p, arrays: Dict[str, Array]) -> int:
    buffers = Buffers(**{role: array.address for role, array in arrays.items()})
    size = lib.onepass_plan_workspace(plan)
    room = _room_for_workspace(size)
    start = -ctypes.addressof(room) % WORKSPACE_GUARD + WORKSPACE_GUARD
    status = lib.onepass_run(plan, ctypes.byref(buffers),
                             ctypes.addressof(room) + start if size else None, size, None)
    _expect_only_workspace_written(room, start, size)
    return status


def _run_on_cuda(plan: c_void_p, arrays: Dict[str, Array]) -> int:
    """Whole blocks go there and come back, so that guards say what was written on the device."""
    gpu = cuda.gpu()
    gpu.clear()
    places = {role: gpu.take(array.size) for role, array in arrays.items()}
    size = lib.onepass_plan_workspace(plan)
    room = _room_for_workspace(size)
    place = gpu.take(len(room))
    for role, array in arrays.items():
        gpu.upload(places[role], array.start, array.size)
    gpu.upload(place, ctypes.addressof(room), len(room))
    buffers = Buffers(**{role: places[role] + array.tensor.byte_offset
                         for role, array in arrays.items()})
    workspace = place + WORKSPACE_GUARD if size else None
    status = lib.onepass_run(plan, ctypes.byref(buffers), workspace, size, None)
    gpu.synchronize()
    for role, array in arrays.items():
        gpu.download(array.start, places[role], array.size)
    gpu.download(ctypes.addressof(room), place, len(room))
    _expect_only_workspace_written(room, WORKSPACE_GUARD, size)
    return status


def _plan(description: ctypes.Structure, arrays: Dict[str, Array],
          options: Optional[Options]) -> Tuple[int, c_void_p]:
    plan = c_void_p(1)
    make = lib.onepass_plan_norm if isinstance(description, Norm) else lib.onepass_plan_pool
    tensors = tensors_of(arrays)
    status = make(ctypes.byref(plan), ctypes.byref(description), ctypes.byref(tensors),
                  ctypes.byref(options) if options else None)
    assert (plan.value is None) == (status != 0), "a plan and a failure, or neither"
    return status, plan


def plan_and_run(description: ctypes.Structure, arrays: Dict[str, Array],
                 options: Optional[Options] = None, device: str = "cpu") -> Result:
    """Plan and run a norm or a pool on the arrays, with a workspace of exactly the size needed. A
    kernel in the options that cannot do the problem is left out."""
    for array in arrays.values():
        array.tensor.device = Device(DEVICES[device], 0)
    status, plan = _plan(description, arrays, options)
    if STATUS[status] == "BAD_OPTION" and options and options.cuda_kernel:
        status, plan = _plan(description, arrays,
                             Options(options.threads, options.vector_level, options.reference, 0))
    if status:
        return Result(STATUS[status], last_message(), "plan")
    try:
        status = (_run_on_cuda if device == "cuda" else _run_on_cpu)(plan, arrays)
        return Result(STATUS[status], last_message() if status else "", "run")
    finally:
        lib.onepass_plan_destroy(plan)


def pool_length(length: int, kernel: int, stride: int, padding: int, ceil_mode: int,
                dilation: Optional[int] = None) -> Tuple[str, int]:
    pooled = c_int64(-1)
    if dilation is None:
        status = lib.onepass_pool_length(length, kernel, stride, padding, ceil_mode,
                                         ctypes.byref(pooled))
    else:
        status = lib.onepass_pool_length_dilated(length, kernel, stride, padding, dilation,
                                                 ceil_mode, ctypes.byref(pooled))
    return STATUS[status], pooled.value
