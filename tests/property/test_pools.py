"""AvgPool1d against the float64 oracle, for any window, layout, type and values."""

import math
from typing import Dict, List, Optional

import oracle
from cases import PoolCase, array_for, close, pool_cases, sum_constant
from hypothesis import given
from hypothesis import strategies as st
from onepass_c import BACKWARD, DTYPES, FORWARD, Array, Options, Pool, plan_and_run, pool_length

F64 = DTYPES["f64"]


def pool_of(case: PoolCase, direction: int) -> Pool:
    return Pool(0, direction, 1, (case.kernel,), (case.stride,), (case.padding,), case.ceil_mode,
                case.count_include_pad)


def pooled_of(case: PoolCase) -> int:
    return oracle.pooled_length(case.length, case.kernel, case.stride, case.padding,
                                case.ceil_mode)


def run(device: str, pool: Pool, arrays: Dict[str, Array],
        options: Optional[Options] = None) -> None:
    result = plan_and_run(pool, arrays, options, device)
    assert result.status == "OK", result
    for role, array in arrays.items():
        assert array.guards_hold(), f"written between or outside the elements of {role}"


def forward_arrays(case: PoolCase) -> Dict[str, Array]:
    x = array_for(case.dtype, case.outer + [case.length], case.input_layout, may_repeat=True)
    x.fill(case.values(x.count))
    y = array_for(case.dtype, case.outer + [pooled_of(case)], case.output_layout, may_repeat=False)
    return {"x": x, "y": y}


def backward_arrays(case: PoolCase) -> Dict[str, Array]:
    dy = array_for(case.dtype, case.outer + [pooled_of(case)], case.input_layout, may_repeat=True)
    dy.fill(case.values(dy.count))
    dx = array_for(case.dtype, case.outer + [case.length], case.output_layout, may_repeat=False)
    return {"dy": dy, "dx": dx}


def rows_of(array: Array) -> List[List[float]]:
    values, length = array.values(), array.shape[-1]
    return [values[i:i + length] for i in range(0, len(values), length)]


@given(pool_cases())
def test_avg_pool_is_the_mean_of_each_window(device: str, case: PoolCase) -> None:
    arrays = forward_arrays(case)
    run(device, pool_of(case, FORWARD), arrays, case.options(device))
    window = (case.kernel, case.stride, case.padding, case.count_include_pad)
    unit = case.dtype.stats.unit
    for x, y in zip(rows_of(arrays["x"]), rows_of(arrays["y"])):
        expected = oracle.avg_pool(x, len(y), *window)
        sizes = oracle.avg_pool([abs(v) for v in x], len(y), *window)
        for i, (actual, wanted, size) in enumerate(zip(y, expected, sizes)):
            bound = sum_constant(case.kernel) * unit * size if math.isfinite(size) else 0.0
            assert close(actual, wanted, bound, case.dtype), (i, actual, wanted, bound)


@given(pool_cases())
def test_the_gradient_of_avg_pool_spreads_each_window(device: str, case: PoolCase) -> None:
    arrays = backward_arrays(case)
    run(device, pool_of(case, BACKWARD), arrays, case.options(device))
    window = (case.length, case.kernel, case.stride, case.padding, case.count_include_pad)
    unit = case.dtype.stats.unit
    for dy, dx in zip(rows_of(arrays["dy"]), rows_of(arrays["dx"])):
        expected = oracle.avg_pool_backward(dy, *window)
        sizes = oracle.avg_pool_backward([abs(v) for v in dy], *window)
        for i, (actual, wanted, size) in enumerate(zip(dx, expected, sizes)):
            bound = sum_constant(case.kernel) * unit * size if math.isfinite(size) else 0.0
            assert close(actual, wanted, bound, case.dtype), (i, actual, wanted, bound)


@given(pool_cases(["normal"], only=F64))
def test_the_gradient_of_avg_pool_is_its_adjoint(device: str, case: PoolCase) -> None:
    """<dy, pool(x)> = <gradient(dy), x>: exactly what a linear operator's gradient is."""
    forward, backward = forward_arrays(case), backward_arrays(case)
    run(device, pool_of(case, FORWARD), forward, case.options(device))
    run(device, pool_of(case, BACKWARD), backward, case.options(device))
    dy, y = backward["dy"].values(), forward["y"].values()
    dx, x = backward["dx"].values(), forward["x"].values()
    left = math.fsum(a * b for a, b in zip(dy, y))
    right = math.fsum(a * b for a, b in zip(dx, x))
    sizes = math.fsum(abs(a * b) for a, b in zip(dy, y)) + math.fsum(
        abs(a * b) for a, b in zip(dx, x))
    assert abs(left - right) <= 2 * sum_constant(case.kernel) * F64.unit * sizes + 1e-300


@given(pool_cases(["normal", "integers"], only=DTYPES["f32"]), st.integers(-6, 6))
def test_avg_pool_is_linear(device: str, case: PoolCase, exponent: int) -> None:
    """By a power of two, to the last bit."""
    for direction, arrays in ((FORWARD, forward_arrays(case)), (BACKWARD, backward_arrays(case))):
        given_role, result_role = ("x", "y") if direction == FORWARD else ("dy", "dx")
        run(device, pool_of(case, direction), arrays, case.options(device))
        before = arrays[result_role].values()
        arrays[given_role].fill([v * 2.0**exponent for v in arrays[given_role].values()])
        run(device, pool_of(case, direction), arrays, case.options(device))
        assert arrays[result_role].values() == [v * 2.0**exponent for v in before]


@given(pool_cases(), st.integers(1, 9))
def test_neither_time_nor_threads_show_in_the_bits(device: str, case: PoolCase,
                                                   threads: int) -> None:
    for direction, arrays in ((FORWARD, forward_arrays(case)), (BACKWARD, backward_arrays(case))):
        result_role = "y" if direction == FORWARD else "dx"
        bits = []
        for count in (1, 1, threads):
            run(device, pool_of(case, direction), arrays,
                case._replace(threads=count).options(device))
            bits.append((arrays[result_role].bits(), arrays[result_role].bits_of_numbers()))
        assert bits[0] == bits[1] and bits[0][1] == bits[2][1]


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 20), st.integers(0, 10),
       st.booleans())
def test_the_pooled_length_is_the_number_of_windows(length: int, kernel: int, stride: int,
                                                    padding: int, ceil_mode: bool) -> None:
    status, pooled = pool_length(length, kernel, stride, padding, ceil_mode)
    if 2 * padding > kernel:
        assert status == "BAD_PADDING"
    elif kernel - (length + 2 * padding) > (stride - 1 if ceil_mode else 0):
        assert status == "BAD_KERNEL"
    else:
        assert status == "OK"
        assert pooled == oracle.pooled_length(length, kernel, stride, padding, ceil_mode)
