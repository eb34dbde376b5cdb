"""Every pooling operator against its definition in float64: one to three axes, any windows, layouts,
types and values. avg_pool1d has more tests in test_pools.py."""

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import oracle_pools as oracle
from cases import Layout, array_for, close, cuda_kernels, draw_values, dtypes, layouts, options_for
from cases import sum_constant
from hypothesis import assume, given
from hypothesis import strategies as st
from onepass_c import AVG_POOL, BACKWARD, DTYPES, FORWARD, I64, LP_POOL, MAX_POOL, Array, Dtype
from onepass_c import Options, Pool, plan_and_run, pool_length

VALUES = ("normal", "integers", "offset", "mostly zero", "special")
ROLES = ("x", "y", "dy", "dx", "indices")


class Case(NamedTuple):
    op: int
    dtype: Dtype
    outer: List[int]
    axes: List[oracle.Axis]
    count_include_pad: bool
    divisor: int
    p: float
    recipe: str
    seed: int
    layouts: Dict[str, Optional[Layout]]
    reference: bool
    threads: int
    cuda_kernel: int

    def pool(self, direction: int) -> Pool:
        def each(field: Callable[[oracle.Axis], int]) -> Sequence[int]:
            return tuple(field(axis) for axis in self.axes)

        adaptive = self.axes[0].adaptive > 0
        return Pool(self.op, direction, len(self.axes), each(lambda a: a.kernel),
                    each(lambda a: a.stride), each(lambda a: a.padding), self.axes[0].ceil_mode,
                    self.count_include_pad,
                    (0,) if adaptive else each(lambda a: a.dilation), self.divisor, adaptive, self.p)

    def array(self, role: str) -> Array:
        """x, dy and what a test fills in by itself; outputs have the pattern."""
        pooled = role in ("y", "dy", "indices")
        shape = self.outer + [a.pooled if pooled else a.length for a in self.axes]
        dtype = I64 if role == "indices" else self.dtype
        array = array_for(dtype, shape, self.layouts[role], may_repeat=role in ("x", "dy"))
        if role in ("x", "dy"):
            recipe = "normal" if role == "dy" and self.recipe == "offset" else self.recipe
            array.fill(draw_values(recipe, self.seed + ROLES.index(role), array.count, dtype))
        return array

    def options(self, device: str) -> Options:
        options = options_for(device, self.threads, self.cuda_kernel)
        options.reference = self.reference and device == "cpu"
        return options

    def planes(self, array: Array) -> List[List[float]]:
        values, count = array.values(), math.prod(self.outer)
        size = len(values) // count if count else 0
        return [values[i * size:(i + 1) * size] for i in range(count)]

    @property
    def unit(self) -> float:
        return self.dtype.stats.unit


@st.composite
def axes_of(draw: st.DrawFn, op: int, spatial: int, ceil_mode: bool) -> oracle.Axis:
    kernel = draw(st.integers(1, 5 if spatial > 1 else 12))
    padding = draw(st.integers(0, kernel // 2)) if op != LP_POOL else 0
    dilation = draw(st.sampled_from((1, 1, 2, 3))) if op == MAX_POOL else 1
    shortest = max(1, (kernel - 1) * dilation + 1 - 2 * padding)
    length = shortest + draw(st.integers(0, {1: 40, 2: 9, 3: 4}[spatial]))
    return oracle.Axis(length, kernel, draw(st.integers(1, 5)), padding, dilation, ceil_mode)


@st.composite
def cases(draw: st.DrawFn, op: int, adaptive: bool = False) -> Case:
    spatial = draw(st.integers(1, 3))
    if adaptive:
        most = {1: 40, 2: 10, 3: 6}[spatial]
        axes = [oracle.Axis(draw(st.integers(1, most)), adaptive=draw(st.integers(1, most)))
                for _ in range(spatial)]
    else:
        ceil_mode = draw(st.booleans())
        axes = [draw(axes_of(op, spatial, ceil_mode)) for _ in range(spatial)]
    outer = [draw(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, 3))]
    if draw(st.booleans()):
        outer.insert(0, draw(st.integers(0, 2)))
    divides = op == AVG_POOL and not adaptive
    return Case(
        op=op,
        dtype=draw(dtypes),
        outer=outer,
        axes=axes,
        count_include_pad=divides and draw(st.booleans()),
        divisor=draw(st.sampled_from((0, 0, 1, 7))) if divides else 0,
        p=draw(st.sampled_from((1.0, 2.0, 3.0, 0.5, 1.5))) if op == LP_POOL else 0.0,
        recipe=draw(st.sampled_from(VALUES)),
        seed=draw(st.integers(0, 2**32)),
        layouts={role: draw(layouts()) for role in ROLES},
        reference=draw(st.booleans()),
        threads=draw(st.integers(0, 4)),
        cuda_kernel=draw(cuda_kernels),
    )


def run(device: str, case: Case, direction: int, arrays: Dict[str, Array]) -> None:
    result = plan_and_run(case.pool(direction), arrays, case.options(device), device)
    assert result.status == "OK", result
    for role, array in arrays.items():
        assert array.guards_hold(), f"written between or outside the elements of {role}"


def expect_close(case: Case, actual: List[float], wanted: List[float], bounds: List[float]) -> None:
    for i, (a, w, bound) in enumerate(zip(actual, wanted, bounds)):
        assert close(a, w, bound if math.isfinite(bound) else 0.0, case.dtype), (i, a, w, bound)


def terms_of(case: Case) -> int:
    """Elements of a window at most, which is also more than the windows of an element."""
    return max([len(w.inside) for w in oracle.windows(case.axes)] or [0]) + 1


# ---- Averages ------------------------------------------------------------------------------------

averages = st.booleans().flatmap(lambda adaptive: cases(AVG_POOL, adaptive))


@given(averages)
def test_an_average_is_the_mean_of_each_window(device: str, case: Case) -> None:
    arrays = {role: case.array(role) for role in ("x", "y")}
    run(device, case, FORWARD, arrays)
    rule = (case.axes, case.count_include_pad, case.divisor)
    for x, y in zip(case.planes(arrays["x"]), case.planes(arrays["y"])):
        sizes = oracle.avg([abs(v) for v in x], *rule)
        expect_close(case, y, oracle.avg(x, *rule),
                     [sum_constant(terms_of(case)) * case.unit * s for s in sizes])


@given(averages)
def test_the_gradient_of_an_average_spreads_each_window(device: str, case: Case) -> None:
    arrays = {role: case.array(role) for role in ("dy", "dx")}
    run(device, case, BACKWARD, arrays)
    rule = (case.axes, case.count_include_pad, case.divisor)
    windows = 1 + max(len(w.inside) for w in oracle.windows(case.axes)) * 8
    for dy, dx in zip(case.planes(arrays["dy"]), case.planes(arrays["dx"])):
        sizes = oracle.avg_backward([abs(v) for v in dy], *rule)
        expect_close(case, dx, oracle.avg_backward(dy, *rule),
                     [sum_constant(windows) * case.unit * s for s in sizes])


# ---- Maxima --------------------------------------------------------------------------------------

maxima = st.booleans().flatmap(lambda adaptive: cases(MAX_POOL, adaptive))


@given(maxima, st.booleans())
def test_a_maximum_and_its_index_are_exact(device: str, case: Case, with_indices: bool) -> None:
    arrays = {role: case.array(role) for role in ("x", "y", "indices")}
    if not with_indices:
        arrays.pop("indices")
    run(device, case, FORWARD, arrays)
    for i, (x, y) in enumerate(zip(case.planes(arrays["x"]), case.planes(arrays["y"]))):
        wanted, indices = oracle.maximum(x, case.axes)
        assert all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(y, wanted))
        if with_indices:
            assert case.planes(arrays["indices"])[i] == indices


@given(maxima)
def test_the_gradient_of_a_maximum_goes_where_it_was(device: str, case: Case) -> None:
    arrays = {role: case.array(role) for role in ("dy", "indices", "dx")}
    xs = case.planes(case.array("x"))
    indices = [oracle.maximum(x, case.axes)[1] for x in xs]
    arrays["indices"].fill([i for plane in indices for i in plane])
    run(device, case, BACKWARD, arrays)
    for dy, dx, where in zip(case.planes(arrays["dy"]), case.planes(arrays["dx"]), indices):
        sizes = oracle.maximum_backward([abs(v) for v in dy], where, case.axes)
        expect_close(case, dx, oracle.maximum_backward(dy, where, case.axes),
                     [sum_constant(8 * terms_of(case)) * case.unit * s for s in sizes])


@given(maxima)
def test_any_index_is_harmless(device: str, case: Case) -> None:
    """What is not in the plane is not written, whatever the indices are."""
    arrays = {role: case.array(role) for role in ("dy", "indices", "dx")}
    wild = (-1, -(2**63), 2**63 - 1, 2**40, math.prod(a.length for a in case.axes))
    arrays["indices"].fill([wild[i % 5] for i in range(arrays["indices"].count)])
    run(device, case, BACKWARD, arrays)
    assert all(v == 0 for v in arrays["dx"].values())


# ---- Roots of sums of powers ---------------------------------------------------------------------


def condition(x: List[float], case: Case) -> List[float]:
    """By how much a window's sum of powers magnifies the errors of its terms."""
    sums = oracle.avg([oracle.power(v, case.p) for v in x], case.axes)
    sizes = oracle.avg([abs(oracle.power(v, case.p)) for v in x], case.axes)
    return [size / abs(s) if s and math.isfinite(s) else 0.0 for s, size in zip(sums, sizes)]


@given(cases(LP_POOL))
def test_lp_pool_is_the_root_of_the_sum_of_powers(device: str, case: Case) -> None:
    arrays = {role: case.array(role) for role in ("x", "y")}
    run(device, case, FORWARD, arrays)
    error = (sum_constant(terms_of(case)) + 8 * case.p) * max(1.0, 1 / case.p) * case.unit
    for x, y in zip(case.planes(arrays["x"]), case.planes(arrays["y"])):
        wanted = oracle.lp(x, case.axes, case.p)
        # Where a sum of mixed signs all but vanishes, only p = 1 is smooth.
        near_zero = [c > 1e3 and case.p != 1 for c in condition(x, case)]
        bounds = [abs(w) * c * error + 1e-30 for w, c in zip(wanted, condition(x, case))]
        expect_close(case, [a for a, n in zip(y, near_zero) if not n],
                     [a for a, n in zip(wanted, near_zero) if not n],
                     [a for a, n in zip(bounds, near_zero) if not n])


@given(cases(LP_POOL))
def test_the_gradient_of_lp_pool_follows_the_chain_rule(device: str, case: Case) -> None:
    arrays = {role: case.array(role) for role in ("x", "y", "dy", "dx")}
    xs = case.planes(arrays["x"])
    arrays["y"].fill([v for x in xs for v in oracle.lp(x, case.axes, case.p)])
    # y is given rounded: it must have its digits, and there must be some.
    assume(all(v == 0 or math.isnan(v) or 1e3 * case.dtype.smallest / case.dtype.unit < abs(v)
               for v in arrays["y"].values()))
    assume(all(c <= 1e3 for x in xs for c in condition(x, case)))
    assume(not any(math.isinf(v) for v in arrays["y"].values()) or case.recipe == "special")
    run(device, case, BACKWARD, arrays)
    error = (sum_constant(8 * terms_of(case)) + 8 * case.p) * case.unit
    error += 2 * (abs(case.p - 1) + 0.1) * case.dtype.unit
    for x, dy, dx in zip(xs, case.planes(arrays["dy"]), case.planes(arrays["dx"])):
        wanted = oracle.lp_backward(dy, x, case.axes, case.p)
        sizes = oracle.lp_backward([abs(v) for v in dy], x, case.axes, case.p)
        expect_close(case, dx, wanted, [abs(s) * error for s in sizes])


# ---- Sizes ---------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 12), st.integers(0, 6),
       st.integers(1, 5), st.booleans())
def test_the_dilated_length_is_the_number_of_windows(length: int, kernel: int, stride: int,
                                                     padding: int, dilation: int,
                                                     ceil_mode: bool) -> None:
    status, pooled = pool_length(length, kernel, stride, padding, ceil_mode, dilation)
    over = (kernel - 1) * dilation + 1 - (length + 2 * padding)
    if 2 * padding > kernel:
        assert status == "BAD_PADDING"
    elif over > (stride - 1 if ceil_mode else 0):
        assert status == "BAD_KERNEL"
    else:
        assert status == "OK"
        axis = oracle.Axis(length, kernel, stride, padding, dilation, ceil_mode)
        assert pooled == axis.pooled


def test_no_outputs_of_an_adaptive_pool_are_no_work() -> None:
    pool = Pool(AVG_POOL, FORWARD, 2, (0,), (0,), (0,), 0, 0, (0,), 0, 1, 0.0)
    arrays = {"x": Array(DTYPES["f32"], [2, 3, 4]), "y": Array(DTYPES["f32"], [2, 0, 3])}
    assert plan_and_run(pool, arrays).status == "OK"
    pool.direction = BACKWARD
    arrays = {"dy": arrays["y"], "dx": arrays["x"]}
    assert plan_and_run(pool, arrays).status == "OK"
    assert arrays["dx"].values() == [0.0] * 24
