"""Random nonsense as a description: always a status and a message, never a write."""

import ctypes
import math
from typing import Any, Dict, List, Tuple

from cases import NormCase, norm_cases
from hypothesis import given, note
from hypothesis import strategies as st
from onepass_c import BACKWARD, CUDA_KERNELS, DEVICES, DTYPES, FORWARD, L1_NORM, LAYER_NORM, STATUS
from onepass_c import Array, Device, Norm, Options, Pool, last_message, lib, pool_length, tensors_of
from test_norms import layer_arrays, layer_backward_arrays, norm_of

int32s = st.one_of(st.integers(-3, 12), st.integers(-(2**31), 2**31 - 1))
int64s = st.one_of(st.integers(-3, 12), st.integers(-(2**63), 2**63 - 1),
                   st.sampled_from((2**31, 2**32, 2**61, 2**62, 2**63 - 1, -(2**63))))

# One change to one tensor: the field and what it becomes.
changes = st.one_of(
    st.tuples(st.just("ndim"), int32s.filter(lambda n: n < 1 or n > 8)),
    st.tuples(st.just("shape"), int64s),
    st.tuples(st.just("strides"), int64s),
    st.tuples(st.just("code"), st.integers(0, 255)),
    st.tuples(st.just("bits"), st.integers(0, 255)),
    st.tuples(st.just("lanes"), st.integers(0, 65535)),
    st.tuples(st.just("device"), int32s),
    st.tuples(st.just("no shape"), st.none()),
    st.tuples(st.just("missing"), st.none()),
)


def apply(arrays: Dict[str, Array], role: str, field: str, value: Any, at: int) -> None:
    tensor = arrays[role].tensor
    if field == "ndim":
        tensor.ndim = value
    elif field == "shape":
        arrays[role].c_shape[at % len(arrays[role].shape)] = value
    elif field == "strides":
        arrays[role].c_strides[at % len(arrays[role].shape)] = value
    elif field == "device":
        tensor.device.type = value
    elif field == "no shape":
        tensor.shape = ctypes.POINTER(ctypes.c_int64)()
    elif field == "missing":
        arrays.pop(role)
    else:
        setattr(tensor.dtype, field, value)


def put_on(device: str, arrays: Dict[str, Array]) -> None:
    """As far as descriptions go: nothing is run on the arrays."""
    for array in arrays.values():
        array.tensor.device = Device(DEVICES[device], 0)


def plan_only(description: ctypes.Structure, arrays: Dict[str, Array], options: Options) -> str:
    """Plan; nothing is run, since what the tensors now claim may not be there."""
    plan = ctypes.c_void_p(1)
    make = lib.onepass_plan_norm if isinstance(description, Norm) else lib.onepass_plan_pool
    tensors = tensors_of(arrays)
    status = make(ctypes.byref(plan), ctypes.byref(description), ctypes.byref(tensors),
                  ctypes.byref(options))
    assert 0 <= status < len(STATUS)
    if status:
        message = last_message()
        assert plan.value is None
        assert message and "\n" not in message
        note(f"{STATUS[status]}: {message}")
    else:
        assert plan.value
        lib.onepass_plan_destroy(plan)
    return STATUS[status]


@given(norm_cases(["normal"]), st.booleans(), st.data())
def test_a_broken_tensor_gets_a_status_and_nothing_is_written(device: str, case: NormCase,
                                                              backward: bool,
                                                              data: "st.DataObject") -> None:
    arrays = layer_backward_arrays(case) if backward else layer_arrays(case)
    put_on(device, arrays)
    kept = dict(arrays)  # what a change takes away must still be unwritten
    before = {role: array.raw() for role, array in kept.items()}
    changed: List[Tuple[str, str, Any]] = []
    for _ in range(data.draw(st.integers(1, 3))):
        role = data.draw(st.sampled_from(sorted(arrays)))
        field, value = data.draw(changes)
        apply(arrays, role, field, value, data.draw(st.integers(0, 7)))
        changed.append((role, field, value))
    status = plan_only(norm_of(case, LAYER_NORM, BACKWARD if backward else FORWARD), arrays,
                       Options(0, 0, 0, 0))
    for role, field, _ in changed:
        if field in ("ndim", "no shape") or (field == "missing" and role in ("x", "y", "dy", "dx")):
            assert status != "OK", changed
    assert {role: array.raw() for role, array in kept.items()} == before


@given(norm_cases(["normal"]), st.sampled_from((L1_NORM, LAYER_NORM)), int32s, int32s, int32s,
       st.floats(), int32s, int32s, int32s)
def test_a_broken_description_gets_a_status(device: str, case: NormCase, op: int, direction: int,
                                            axis: int, reduction: int, eps: float, threads: int,
                                            level: int, kernel: int) -> None:
    arrays = {role: array for role, array in layer_arrays(case).items()
              if op == LAYER_NORM or role in ("x", "y")}
    put_on(device, arrays)
    status = plan_only(Norm(op, direction, axis, reduction, eps), arrays,
                       Options(threads, level, 0, kernel))
    rank = len(case.shape)
    if (not -rank <= axis < rank or direction not in (FORWARD, BACKWARD) or reduction not in (0, 1)
            or math.isnan(eps) or eps < 0 or threads < 0 or not 0 <= level <= 4
            or not 0 <= kernel < CUDA_KERNELS):
        assert status != "OK"


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), int32s, int32s, int32s, int64s, int64s,
       int64s, int32s, int32s)
def test_a_broken_pool_gets_a_status(device: str, shape: List[int], op: int, direction: int,
                                     spatial: int, kernel: int, stride: int, padding: int,
                                     ceil_mode: int, count_include_pad: int) -> None:
    arrays = {role: Array(DTYPES["f32"], shape) for role in ("x", "y")}
    put_on(device, arrays)
    before = {role: array.raw() for role, array in arrays.items()}
    pool = Pool(op, direction, spatial, (kernel,), (stride,), (padding,), ceil_mode,
                count_include_pad)
    status = plan_only(pool, arrays, Options(0, 0, 0, 0))
    # Without p there is no lp_pool, and only an average counts its padding.
    is_described = op == 0 or (op == 1 and not count_include_pad)
    if not is_described or direction or spatial != 1 or len(shape) not in (2, 3):
        assert status != "OK"
    else:
        length_status, pooled = pool_length(shape[-1], kernel, stride, padding, ceil_mode)
        assert (status == "OK") == (length_status == "OK" and pooled == shape[-1])
    assert {role: array.raw() for role, array in arrays.items()} == before


@given(int64s, int64s, int64s, int64s, int32s)
def test_pool_length_of_anything_gets_a_status(length: int, kernel: int, stride: int, padding: int,
                                               ceil_mode: int) -> None:
    status, pooled = pool_length(length, kernel, stride, padding, ceil_mode)
    if status == "OK":
        assert pooled >= 1
        assert kernel >= 1 and stride >= 1 and 0 <= 2 * padding <= kernel
    else:
        assert last_message()
        assert pooled == -1
