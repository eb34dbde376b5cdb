"""The norms against the float64 oracle, for any shape, layout, type and values."""

import math
from typing import Dict, List, Optional, Tuple

import oracle
from cases import NormCase, close, norm_cases, row_indices, sum_constant
from hypothesis import given, note
from hypothesis import strategies as st
from onepass_c import BACKWARD, DTYPES, FORWARD, L1_NORM, LAYER_NORM, MEAN, SUM
from onepass_c import Array, Norm, Options, plan_and_run, round_to

F64 = DTYPES["f64"]
FINITE = ("normal", "wide", "integers", "offset", "mostly zero")


def norm_of(case: NormCase, op: int, direction: int) -> Norm:
    reduction = MEAN if op == LAYER_NORM or case.mean else SUM
    return Norm(op, direction, case.axis, reduction, case.eps)


def run(device: str, norm: Norm, arrays: Dict[str, Array],
        options: Optional[Options] = None) -> None:
    result = plan_and_run(norm, arrays, options, device)
    assert result.status == "OK", result
    for role, array in arrays.items():
        assert array.guards_hold(), f"written between or outside the elements of {role}"


def l1_arrays(case: NormCase, backward: bool) -> Dict[str, Array]:
    inputs = ("x", "dy") if backward else ("x",)
    arrays = {role: case.array(role, case.shape, case.dtype, output=False) for role in inputs}
    output = "dx" if backward else "y"
    arrays[output] = case.array(output, case.shape, case.dtype, output=True)
    return arrays


def l1_rows(case: NormCase) -> List[List[int]]:
    return row_indices(case.shape, case.first, case.first + 1)


def layer_rows(case: NormCase) -> List[List[int]]:
    return row_indices(case.shape, case.first, len(case.shape))


def layer_arrays(case: NormCase) -> Dict[str, Array]:
    normalized = case.shape[case.first:]
    arrays = {"x": case.array("x", case.shape, case.dtype, output=False),
              "y": case.array("y", case.shape, case.dtype, output=True)}
    if case.has_weight:
        arrays["weight"] = case.array("weight", normalized, case.weight_dtype, output=False)
    if case.has_bias:
        arrays["bias"] = case.array("bias", normalized, case.weight_dtype, output=False)
    for role in ("mean", "rstd"):
        arrays[role] = case.array(role, case.stats_shape(), case.dtype.stats, output=True)
    return arrays


def layer_backward_arrays(case: NormCase) -> Dict[str, Array]:
    """With the statistics that a forward in this type would have saved."""
    normalized = case.shape[case.first:]
    arrays = {role: case.array(role, case.shape, case.dtype, output=False) for role in ("x", "dy")}
    arrays["dx"] = case.array("dx", case.shape, case.dtype, output=True)
    if case.has_weight:
        arrays["weight"] = case.array("weight", normalized, case.weight_dtype, output=False)
        arrays["dweight"] = case.array("dweight", normalized, case.weight_dtype, output=True)
    if case.has_bias:
        arrays["dbias"] = case.array("dbias", normalized, case.weight_dtype, output=True)
    x = arrays["x"].values()
    ones = [1.0] * math.prod(normalized)
    saved = [oracle.layer_forward([x[i] for i in row], ones, ones, case.eps or 1e-5)[1:]
             for row in layer_rows(case)]
    for which, role in enumerate(("mean", "rstd")):
        arrays[role] = case.array(role, case.stats_shape(), case.dtype.stats, output=True)
        arrays[role].fill([round_to(case.dtype.stats, s[which]) for s in saved])
    return arrays


class Outcome:
    """The values of all arrays after a run, unpacked once."""

    def __init__(self, arrays: Dict[str, Array]) -> None:
        self.dtypes = {role: array.dtype for role, array in arrays.items()}
        self.values = {role: array.values() for role, array in arrays.items()}

    def __getitem__(self, role: str) -> List[float]:
        return self.values[role]

    def check(self, role: str, i: int, expected: float, bound: float) -> None:
        actual, dtype = self.values[role][i], self.dtypes[role]
        assert close(actual, expected, bound, dtype), (
            f"{role}[{i}] of {dtype.name} is {actual!r}, not {expected!r} within {bound:.3g}")


@given(norm_cases())
def test_l1_norm_is_x_over_its_mean_or_sum(device: str, case: NormCase) -> None:
    arrays = l1_arrays(case, backward=False)
    run(device, norm_of(case, L1_NORM, FORWARD), arrays, case.options(device))
    got = Outcome(arrays)
    x = got["x"]
    unit = case.dtype.stats.unit
    for row in l1_rows(case):
        expected = oracle.l1_forward([x[i] for i in row], case.mean, case.eps)
        for i, y in zip(row, expected):
            # No cancellation: the denominator's relative error is the sum's.
            got.check("y", i, y, sum_constant(len(row)) * unit * abs(y))


@given(norm_cases())
def test_the_gradient_of_l1_norm_is_the_formulas(device: str, case: NormCase) -> None:
    arrays = l1_arrays(case, backward=True)
    run(device, norm_of(case, L1_NORM, BACKWARD), arrays, case.options(device))
    got = Outcome(arrays)
    x, dy = got["x"], got["dy"]
    unit = case.dtype.stats.unit
    for row in l1_rows(case):
        if not row:
            continue
        xs, gs = [x[i] for i in row], [dy[i] for i in row]
        c = 1 / len(row) if case.mean else 1.0
        d = oracle.total([abs(v) for v in xs]) * c + case.eps
        products = oracle.total([abs(g * v) for g, v in zip(gs, xs)])
        second = oracle.divide(oracle.divide(products, d), d) * c
        for i, dx in zip(row, oracle.l1_backward(gs, xs, case.mean, case.eps)):
            # The two terms cancel; their sizes set the error.
            terms = abs(oracle.divide(dy[i], d)) + second
            got.check("dx", i, dx, 2 * sum_constant(len(row)) * unit * terms)


@given(norm_cases())
def test_layer_norm_is_the_formulas(device: str, case: NormCase) -> None:
    arrays = layer_arrays(case)
    run(device, norm_of(case, LAYER_NORM, FORWARD), arrays, case.options(device))
    got = Outcome(arrays)
    x = got["x"]
    n = math.prod(case.shape[case.first:])
    weight = got["weight"] if case.has_weight else [1.0] * n
    bias = got["bias"] if case.has_bias else [0.0] * n
    unit = case.dtype.stats.unit
    if n == 0:
        return  # the statistics of nothing are whatever they are; the guards held
    for r, row in enumerate(layer_rows(case)):
        xs = [x[i] for i in row]
        expected, mean, rstd = oracle.layer_forward(xs, weight, bias, case.eps)
        largest = max(abs(v) for v in xs)
        # x - mean is off by the sum's error, which 1 / deviation magnifies: a relative error of the
        # normalized value that no arithmetic in this type avoids. Where nothing is left of it
        # (a constant row without eps) there is nothing to compare.
        off = sum_constant(n) * unit * (1 + largest * rstd)
        if not off < 0.01 and not math.isnan(rstd):
            continue
        got.check("mean", r, mean, sum_constant(n) * unit * largest)
        got.check("rstd", r, rstd, 2 * off * abs(rstd))
        for k, i in enumerate(row):
            hat = abs(xs[k] - mean) * rstd
            bound = 2 * off * (1 + hat) * abs(weight[k]) + 4 * unit * abs(bias[k])
            got.check("y", i, expected[k], bound)


def mean_error(x: List[float], rstd: float, unit: float) -> float:
    """The saved mean is rounded to the type of the statistics. A kernel may use it or do better and
    find the mean again; normalized values then differ by that rounding over the deviation."""
    return 4 * unit * max((abs(v) for v in x), default=0.0) * rstd


@given(norm_cases(recipes=FINITE))
def test_the_gradients_of_layer_norm_are_the_formulas(device: str, case: NormCase) -> None:
    arrays = layer_backward_arrays(case)
    run(device, norm_of(case, LAYER_NORM, BACKWARD), arrays, case.options(device))
    got = Outcome(arrays)
    x, dy = got["x"], got["dy"]
    n = math.prod(case.shape[case.first:])
    weight = got["weight"] if case.has_weight else [1.0] * n
    means, rstds = got["mean"], got["rstd"]
    unit = case.dtype.stats.unit
    rows = layer_rows(case)
    for r, row in enumerate(rows):
        xs, gs = [x[i] for i in row], [dy[i] for i in row]
        hats = [abs(v - means[r]) * rstds[r] for v in xs]
        g = [abs(a * w) for a, w in zip(gs, weight)]
        g_mean = oracle.divide(oracle.total(g), n)
        gh_mean = oracle.divide(oracle.total([a * h for a, h in zip(g, hats)]), n)
        expected = oracle.layer_backward(gs, xs, weight, means[r], rstds[r])
        off = mean_error(xs, rstds[r], unit)
        for k, i in enumerate(row):
            terms = rstds[r] * (g[k] + g_mean + hats[k] * gh_mean)
            moved = rstds[r] * off * (gh_mean + (hats[k] + off) * g_mean)
            got.check("dx", i, expected[k], sum_constant(n) * unit * terms + moved)
    for k in range(n):
        hats = [(x[row[k]] - means[r]) * rstds[r] for r, row in enumerate(rows)]
        gs = [dy[row[k]] for row in rows]
        products = [a * h for a, h in zip(gs, hats)]
        constant = sum_constant(len(rows)) * unit
        if case.has_weight:
            moved = oracle.total([abs(a) * mean_error([x[i] for i in row], rstds[r], unit)
                                  for a, (r, row) in zip(gs, enumerate(rows))])
            got.check("dweight", k, oracle.total(products),
                      constant * oracle.total([abs(p) for p in products]) + moved)
        if case.has_bias:
            got.check("dbias", k, oracle.total(gs),
                      constant * oracle.total([abs(a) for a in gs]))


# ---- Gradients against finite differences --------------------------------------------------------


def loss(device: str, norm: Norm, arrays: Dict[str, Array], dy: List[float]) -> float:
    run(device, norm, arrays)
    return math.fsum(g * y for g, y in zip(dy, arrays["y"].values()))


def slopes(device: str, norm: Norm, arrays: Dict[str, Array], role: str,
           dy: List[float]) -> List[float]:
    """The central difference of the loss by each element of one input."""
    step = 1e-5
    values = arrays[role].values()
    result = []
    for i, value in enumerate(values):
        ends = []
        for moved in (value - step, value + step):
            arrays[role].fill(values[:i] + [moved] + values[i + 1:])
            ends.append(loss(device, norm, arrays, dy))
        result.append((ends[1] - ends[0]) / (2 * step))
    arrays[role].fill(values)
    return result


def away_from_zero(values: List[float]) -> List[float]:
    """|x| has no derivative at 0, and a difference must not step across it."""
    return [math.copysign(0.1 + abs(v), v) for v in values]


small_rows = st.tuples(st.integers(1, 3), st.integers(2, 6))


@given(small_rows, st.booleans(), st.sampled_from((0.0, 1e-3)), norm_cases(["normal"], only=F64))
def test_the_gradient_of_l1_norm_is_the_slope(device: str, shape: Tuple[int, int], mean: bool,
                                              eps: float, case: NormCase) -> None:
    count = math.prod(shape)
    dy = case.values("dy", count, F64)
    x = away_from_zero(case.values("x", count, F64))
    forward = {"x": Array(F64, shape).fill(x), "y": Array(F64, shape)}
    backward = {"x": forward["x"], "dy": Array(F64, shape).fill(dy), "dx": Array(F64, shape)}
    reduction = MEAN if mean else SUM
    run(device, Norm(L1_NORM, BACKWARD, 1, reduction, eps), backward)
    wanted = slopes(device, Norm(L1_NORM, FORWARD, 1, reduction, eps), forward, "x", dy)
    note(f"x {x}, dy {dy}")
    for actual, slope in zip(backward["dx"].values(), wanted):
        # The difference's own error: step^2 times a third derivative, and roundoff over step.
        assert abs(actual - slope) <= 1e-5 * (1 + abs(slope)) * 10, (actual, slope)


@given(small_rows, st.sampled_from((1e-3, 0.1, 1.0)), norm_cases(["normal"], only=F64))
def test_the_gradients_of_layer_norm_are_the_slopes(device: str, shape: Tuple[int, int], eps: float,
                                                    case: NormCase) -> None:
    count, columns = math.prod(shape), shape[1]
    dy = case.values("dy", count, F64)
    arrays = {
        "x": Array(F64, shape).fill(case.values("x", count, F64)),
        "weight": Array(F64, [columns]).fill(case.values("weight", columns, F64)),
        "bias": Array(F64, [columns]).fill(case.values("bias", columns, F64)),
        "y": Array(F64, shape), "mean": Array(F64, [shape[0]]), "rstd": Array(F64, [shape[0]]),
    }
    forward = Norm(LAYER_NORM, FORWARD, -1, MEAN, eps)
    run(device, forward, arrays)
    backward = {role: arrays[role] for role in ("x", "weight", "mean", "rstd")}
    backward.update(dy=Array(F64, shape).fill(dy), dx=Array(F64, shape),
                    dweight=Array(F64, [columns]), dbias=Array(F64, [columns]))
    run(device, Norm(LAYER_NORM, BACKWARD, -1, MEAN, eps), backward)
    for role in ("x", "weight", "bias"):
        wanted = slopes(device, forward, arrays, role, dy)
        for actual, slope in zip(backward["d" + role].values(), wanted):
            # Curvature grows as 1 / deviation^3, and eps keeps that under about 30^3 here.
            assert abs(actual - slope) <= 1e-4 * (1 + abs(slope)), (role, actual, slope)


# ---- Invariances ---------------------------------------------------------------------------------

powers = st.integers(-6, 6).map(lambda e: 2.0**e)


@given(norm_cases(["normal", "integers", "mostly zero"], only=DTYPES["f32"]), powers)
def test_l1_norm_does_not_see_the_scale_of_x(device: str, case: NormCase, factor: float) -> None:
    """By a power of two not one bit of the result changes."""
    case = case._replace(eps=0.0)
    arrays = l1_arrays(case, backward=False)
    norm = norm_of(case, L1_NORM, FORWARD)
    run(device, norm, arrays, case.options(device))
    before = arrays["y"].bits()
    arrays["x"].fill([v * factor for v in arrays["x"].values()])
    run(device, norm, arrays, case.options(device))
    assert arrays["y"].bits() == before


@given(norm_cases(["normal"]))
def test_a_norm_of_minus_x_is_minus_the_norm(device: str, case: NormCase) -> None:
    case = case._replace(eps=1e-3, has_bias=False)
    both = ((L1_NORM, l1_arrays(case, backward=False)), (LAYER_NORM, layer_arrays(case)))
    for op, arrays in both:
        norm = norm_of(case, op, FORWARD)
        run(device, norm, arrays, case.options(device))
        before = arrays["y"].values()
        arrays["x"].fill([-v for v in arrays["x"].values()])
        run(device, norm, arrays, case.options(device))
        assert [-v for v in arrays["y"].values()] == before


@given(norm_cases(["normal"], only=DTYPES["f32"]), powers)
def test_gradients_are_linear_in_dy(device: str, case: NormCase, factor: float) -> None:
    case = case._replace(eps=1e-3)
    both = ((L1_NORM, l1_arrays(case, backward=True)), (LAYER_NORM, layer_backward_arrays(case)))
    for op, arrays in both:
        norm = norm_of(case, op, BACKWARD)
        run(device, norm, arrays, case.options(device))
        outputs = [role for role in ("dx", "dweight", "dbias") if role in arrays]
        before = {role: arrays[role].values() for role in outputs}
        arrays["dy"].fill([v * factor for v in arrays["dy"].values()])
        run(device, norm, arrays, case.options(device))
        for role in outputs:
            assert arrays[role].values() == [v * factor for v in before[role]], role


# ---- The same bits -------------------------------------------------------------------------------


def outputs_of(device: str, norm: Norm, arrays: Dict[str, Array],
               options: Options) -> Tuple[List[bytes], List[bytes]]:
    """Their bits, and those of what is no NaN."""
    run(device, norm, arrays, options)
    outputs = [arrays[role] for role in ("y", "mean", "rstd", "dx", "dweight", "dbias")
               if role in arrays]
    return [array.bits() for array in outputs], [array.bits_of_numbers() for array in outputs]


@given(norm_cases(), st.integers(1, 9))
def test_neither_time_nor_threads_show_in_the_bits(device: str, case: NormCase,
                                                   threads: int) -> None:
    for norm, arrays in (
        (norm_of(case, L1_NORM, FORWARD), l1_arrays(case, backward=False)),
        (norm_of(case, L1_NORM, BACKWARD), l1_arrays(case, backward=True)),
        (norm_of(case, LAYER_NORM, FORWARD), layer_arrays(case)),
        (norm_of(case, LAYER_NORM, BACKWARD), layer_backward_arrays(case)),
    ):
        one, again, many = (
            outputs_of(device, norm, arrays, case._replace(threads=count).options(device))
            for count in (1, 1, threads))
        assert one == again and one[1] == many[1]


@given(norm_cases(FINITE))
def test_the_reference_agrees_with_the_oracle(case: NormCase) -> None:
    """The fast kernels are checked with it elsewhere, so it is checked here."""
    arrays = layer_arrays(case)
    arrays["y"] = Array(F64, case.shape)
    norm = norm_of(case, LAYER_NORM, FORWARD)
    result = plan_and_run(norm, arrays, Options(0, 0, 1, 0))
    assert result.status == "OK", result
    x, y = arrays["x"].values(), arrays["y"].values()
    n = math.prod(case.shape[case.first:])
    weight = arrays["weight"].values() if case.has_weight else [1.0] * n
    bias = arrays["bias"].values() if case.has_bias else [0.0] * n
    for row in layer_rows(case) if n else []:
        xs = [x[i] for i in row]
        expected, _, rstd = oracle.layer_forward(xs, weight, bias, case.eps)
        off = sum_constant(8 * n) * F64.unit * (1 + max(abs(v) for v in xs) * rstd)
        if not off < 1e-6:
            continue
        for k, i in enumerate(row):
            bound = 4 * off * (1 + abs(expected[k]) + abs(weight[k]) + abs(bias[k]))
            assert close(y[i], expected[k], bound, F64), (y[i], expected[k])
