"""Memory that the judge shares with its workers, and tensors in it.

On the CPU that is an anonymous file, sealed so that nobody can shrink it under another's feet; on a GPU an
allocation of the judge's that the workers open by its handle. Either way a tensor is made of an address: of
no array library, and of no PyTorch function that a version lacks.
"""

import ctypes
import fcntl
import mmap
import os
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch

from .wire import DTYPES, span

__all__ = ["Driver", "Spec", "device_bytes", "layout_of", "map_shared", "shared_memory", "view_of"]

ADD_SEALS, SEALS = 1033, 0x1 | 0x2 | 0x4  # none later, no shrinking, no growing
ALIGNMENT = 512


class Spec(NamedTuple):
    """A tensor that a slot has room for."""
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    dtype: int  # index in DTYPES

    @staticmethod
    def of(tensor: torch.Tensor) -> "Spec":
        return Spec(tuple(tensor.shape), tuple(tensor.stride()), DTYPES.index(tensor.dtype))

    @property
    def bytes(self) -> int:
        """That its elements take, not counting gaps."""
        count = 1
        for size in self.shape:
            count *= size
        return count * torch.empty(0, dtype=DTYPES[self.dtype]).element_size()

    @property
    def room(self) -> int:
        return span(self.shape, self.strides) * torch.empty(0, dtype=DTYPES[self.dtype]).element_size()


def layout_of(specs: Sequence[Spec], at_least: int) -> Tuple[List[int], int]:
    """Offsets of tensors in a slot, and the slot's size."""
    offsets, end = [], 0
    for spec in specs:
        offsets.append(end)
        end += -(-max(spec.room, 1) // ALIGNMENT) * ALIGNMENT
    return offsets, max(end, -(-at_least // ALIGNMENT) * ALIGNMENT)


def shared_memory(name: str, size: int) -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, ADD_SEALS, SEALS)
    return descriptor


def map_shared(descriptor: int, size: int) -> torch.Tensor:
    """The first bytes of it. They stay mapped until the process ends."""
    mapped = mmap.mmap(descriptor, size)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def view_of(memory: torch.Tensor, offset: int, spec: Spec) -> torch.Tensor:
    """A tensor at that offset of the bytes, with a storage that begins there."""
    dtype = DTYPES[spec.dtype]
    if spec.room == 0:
        return torch.empty(spec.shape, dtype=dtype, device=memory.device)
    part = device_bytes(memory.data_ptr() + offset, spec.room, memory.device)
    return part.view(dtype).as_strided(spec.shape, spec.strides)


class _DLDevice(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_descriptions: Dict[Tuple[int, int, str], Tuple[_DLManagedTensor, Any]] = {}  # must outlive their tensors


def device_bytes(address: int, size: int, device: torch.device) -> torch.Tensor:
    """Bytes at an address, which whoever calls keeps valid."""
    kept = _descriptions.get((address, size, str(device)))
    if kept is None:
        shape = (ctypes.c_int64 * 1)(size)
        where = _DLDevice(2, device.index or 0) if device.type == "cuda" else _DLDevice(1, 0)
        kept = (_DLManagedTensor(_DLTensor(address, where, 1, 1, 8, 1, shape, None, 0), None, None), shape)
        _descriptions[(address, size, str(device))] = kept
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype = ctypes.py_object
    new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new_capsule(ctypes.addressof(kept[0]), b"dltensor", None)
    return torch.utils.dlpack.from_dlpack(capsule)


class _Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class Driver:
    """The few calls of the CUDA driver that share memory between processes. A context must be current,
    which PyTorch's first use of a GPU sees to."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.exported: Dict[Tuple[int, int], bytes] = {}
        self.opened: Dict[bytes, int] = {}

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(status, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'?').decode()} ({status})")

    def allocation_of(self, address: int) -> Tuple[int, int]:
        """Start and size of the allocation that an address lies in."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value, size.value

    def export(self, base: int, size: int) -> bytes:
        """The handle of an allocation. Kept, as long as nothing says that it was freed."""
        if (base, size) not in self.exported:
            handle = _Handle()
            self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
            self.exported[(base, size)] = ctypes.string_at(ctypes.byref(handle), 64)
        return self.exported[(base, size)]

    def open(self, handle: bytes) -> int:
        """The address of another process's allocation in this one. It stays open."""
        if handle not in self.opened:
            address = ctypes.c_uint64()
            passed = _Handle()
            ctypes.memmove(ctypes.byref(passed), handle, 64)
            self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), passed, ctypes.c_uint(1))
            self.opened[handle] = address.value
        return self.opened[handle]

    def close_all(self) -> None:
        for address in self.opened.values():
            self.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))
        self.opened.clear()
