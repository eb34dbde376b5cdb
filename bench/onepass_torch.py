"""The C interface of onepass for PyTorch's tensors, on the CPU or a GPU, through ctypes."""

import ctypes
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, Callable, Dict, Sequence

import torch

from cases import DIRECTIONS, OPS, Case

__all__ = ["EPS", "Call", "OnepassError", "Plan", "Tensors", "load_library"]

EPS = 1e-5  # layer_norm's; l1_norm has none here
ROLES = ("x", "weight", "bias", "y", "mean", "rstd", "dy", "dx", "dweight", "dbias",
         "residual", "sum", "dsum", "running_mean", "running_var", "indices")
DTYPE_CODES = {torch.float32: (2, 32), torch.bfloat16: (4, 16)}
DEVICE_CODES = {"cpu": 1, "cuda": 2}

Tensors = Dict[str, torch.Tensor]
Call = Callable[[], Any]


class Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class Dtype(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("device", Device), ("ndim", c_int32), ("dtype", Dtype),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class CTensors(ctypes.Structure):
    _fields_ = [(role, POINTER(Tensor)) for role in ROLES]


class Buffers(ctypes.Structure):
    _fields_ = [(role, c_void_p) for role in ROLES]


class Norm(ctypes.Structure):
    _fields_ = [("op", c_int32), ("direction", c_int32), ("axis", c_int32), ("reduction", c_int32),
                ("eps", c_double), ("axes", c_int32), ("clamp", c_int32), ("groups", c_int64),
                ("use_running", c_int32), ("momentum", c_double), ("activation", c_int32)]


class Pool(ctypes.Structure):
    _fields_ = [("op", c_int32), ("direction", c_int32), ("spatial", c_int32),
                ("kernel", c_int64 * 3), ("stride", c_int64 * 3), ("padding", c_int64 * 3),
                ("ceil_mode", c_int32), ("count_include_pad", c_int32), ("dilation", c_int64 * 3),
                ("divisor", c_int64), ("adaptive", c_int32), ("p", c_double)]


class Options(ctypes.Structure):
    _fields_ = [("threads", c_int32), ("vector_level", c_int32), ("reference", c_int32),
                ("cuda_kernel", c_int32)]


class PlanInfo(ctypes.Structure):
    _fields_ = [("op", c_char_p), ("kernel", c_char_p), ("vector", c_char_p), ("threads", c_int32),
                ("bytes", c_int64), ("workspace", c_size_t), ("grid", c_int64), ("block", c_int32),
                ("cluster", c_int32), ("shared", c_size_t), ("launches", c_int32)]


class OnepassError(RuntimeError):
    """What onepass refused, in its own words."""


def load_library(path: Path) -> ctypes.CDLL:
    """Raises OSError where there is no such library."""
    library = ctypes.CDLL(str(path))
    library.onepass_last_message.restype = c_char_p
    library.onepass_version_string.restype = c_char_p
    library.onepass_run.argtypes = [c_void_p, c_void_p, c_void_p, c_size_t, c_void_p]
    library.onepass_plan_describe.argtypes = [c_void_p, c_void_p]
    library.onepass_plan_destroy.argtypes = [c_void_p]
    library.onepass_plan_destroy.restype = None
    return library


def c_tensor(tensor: torch.Tensor) -> Tensor:
    assert tensor.is_contiguous()
    device = Device(DEVICE_CODES[tensor.device.type], tensor.device.index or 0)
    shape = (c_int64 * tensor.dim())(*tensor.shape)
    return Tensor(None, device, tensor.dim(), Dtype(*DTYPE_CODES[tensor.dtype], 1), shape, None, 0)


def description_of(case: Case, direction: str) -> ctypes.Structure:
    back = DIRECTIONS.index(direction)
    if case.op == "avg_pool1d":
        return Pool(0, back, 1, (case.kernel, 1, 1), (case.stride, 1, 1), (case.padding, 0, 0), 0,
                    1)
    eps = EPS if case.op == "layer_norm" else 0.0
    return Norm(OPS.index(case.op), back, case.axis, 0, eps)


class Plan:
    """One operator on tensors like the given ones, and its workspace on their device."""

    def __init__(self, library: ctypes.CDLL, case: Case, direction: str, tensors: Tensors,
                 threads: int = 0) -> None:
        self.library, self.handle, self.info = library, c_void_p(), PlanInfo()
        c_tensors = {role: c_tensor(tensor) for role, tensor in tensors.items()}
        given = CTensors(**{role: ctypes.pointer(tensor) for role, tensor in c_tensors.items()})
        description, options = description_of(case, direction), Options(threads, 0, 0, 0)
        pooling = isinstance(description, Pool)
        make = library.onepass_plan_pool if pooling else library.onepass_plan_norm
        self.check(make(byref(self.handle), byref(description), byref(given), byref(options)))
        self.check(library.onepass_plan_describe(self.handle, byref(self.info)))
        self.device = next(iter(tensors.values())).device
        self.memory = torch.empty(self.info.workspace + 64, dtype=torch.uint8, device=self.device)
        self.workspace = (self.memory.data_ptr() + 63) // 64 * 64

    def check(self, status: int) -> None:
        if status != 0:
            raise OnepassError(self.library.onepass_last_message().decode())

    def call(self, tensors: Tensors, fresh: Sequence[str] = ()) -> Call:
        """A call that runs on these tensors, the `fresh` ones allocated anew each time; on a GPU on
        the stream that is PyTorch's current one when it is called."""
        buffers = Buffers(**{role: tensor.data_ptr() for role, tensor in tensors.items()})
        run, handle, size = self.library.onepass_run, self.handle, self.info.workspace
        given, workspace = byref(buffers), c_void_p(self.workspace)
        on_gpu = self.device.type == "cuda"

        def run_once() -> None:
            kept = [torch.empty_like(tensors[role]) for role in fresh]
            for role, tensor in zip(fresh, kept):
                setattr(buffers, role, tensor.data_ptr())
            stream = torch.cuda.current_stream(self.device).cuda_stream if on_gpu else None
            self.check(run(handle, given, workspace, size, stream))

        return run_once

    def destroy(self) -> None:
        self.library.onepass_plan_destroy(self.handle)
