"""A GPU's memory through its driver, for arrays that the tests make on the host.

Nothing but the driver is needed: neither the CUDA toolkit nor a Python package.
"""

import ctypes
import functools
from ctypes import POINTER, c_int, c_size_t, c_uint64, c_void_p

__all__ = ["Gpu", "gpu"]

ARENA = 64 << 20  # bytes; what one call needs is far less
ALIGNMENT = 256  # of every piece, as memory from the driver has it


class Gpu:
    """Device 0, with an arena from which calls take their memory piece by piece."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        context, arena, device = c_void_p(), c_uint64(), c_int()
        self._call("cuInit", [c_int], 0)
        self._call("cuDeviceGet", [POINTER(c_int), c_int], ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", [POINTER(c_void_p), c_int], ctypes.byref(context),
                   device)
        self._call("cuCtxSetCurrent", [c_void_p], context)
        self._call("cuMemAlloc_v2", [POINTER(c_uint64), c_size_t], ctypes.byref(arena), ARENA)
        self._arena = arena.value
        self._used = 0

    def _call(self, name: str, types: list, *arguments: object) -> None:
        function = getattr(self._driver, name)
        function.argtypes = types
        result = function(*arguments)
        if result:
            raise RuntimeError(f"{name} gave the CUDA error {result}")

    def clear(self) -> None:
        """What was taken is free again."""
        self._used = 0

    def take(self, size: int) -> int:
        """The address of `size` bytes on the device."""
        address = self._arena + self._used
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        if self._used > ARENA:
            raise MemoryError(f"a call needs more than the {ARENA} bytes set aside for it")
        return address

    def upload(self, device: int, host: int, size: int) -> None:
        self._call("cuMemcpyHtoD_v2", [c_uint64, c_void_p, c_size_t], device, host, size)

    def download(self, host: int, device: int, size: int) -> None:
        self._call("cuMemcpyDtoH_v2", [c_void_p, c_uint64, c_size_t], host, device, size)

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize", [])


@functools.lru_cache(maxsize=None)
def gpu() -> Gpu:
    return Gpu()
