"""Every member of the normalization family against a float64 oracle, for any shape, layout, type, values and
combination of options; with the reference and with whatever the library would choose."""

import itertools
import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import pytest
from cases import RECIPES, Layout, array_for, close, draw_values, dtypes, layouts, shapes
from cases import sum_constant
from hypothesis import given
from hypothesis import strategies as st
from norm_oracle import ACTIVATIONS, CURVATURE, activate, denominator, slope, statistic, unbiased
from onepass_c import BACKWARD, DTYPES, FORWARD, MEAN, ROLES, SUM, Array, Dtype, Norm, Options
from onepass_c import plan_and_run, round_to
from oracle import divide, total

OPS = ("l1_norm", "layer_norm", "l2_norm", "rms_norm", "group_norm", "batch_norm")
BY_CHANNEL = ("group_norm", "batch_norm")
WHOLE = ("x", "y", "dy", "dx", "residual", "sum", "dsum")
FINITE = ("normal", "wide", "integers", "offset", "mostly zero")


class Case(NamedTuple):
    op: str
    dtype: Dtype
    weight_dtype: Dtype
    shape: List[int]
    axis: int
    axes: int
    eps: float
    clamp: bool
    by_mean: bool
    groups: int
    running: str  # "none", "moved" or "used"
    momentum: float
    activation: str
    optional: Dict[str, bool]  # weight, bias, residual, sum, dsum, mean, rstd
    keep_ones: bool
    recipe: str
    seed: int
    layouts: Dict[str, Optional[Layout]]
    threads: int
    reference: bool

    # ---- What the operator takes

    @property
    def by_channel(self) -> bool:
        return self.op in BY_CHANNEL

    @property
    def centered(self) -> bool:
        return self.op in ("layer_norm", "group_norm", "batch_norm")

    def has(self, role: str) -> bool:
        takes = {"weight": self.op not in ("l1_norm", "l2_norm"),
                 "bias": self.centered,
                 "mean": self.centered,
                 "rstd": self.op != "l1_norm",
                 "residual": self.op not in ("l1_norm", "l2_norm"),
                 "sum": self.has_residual,
                 "dsum": self.op not in ("l1_norm", "l2_norm")}
        return takes[role] and self.optional[role]

    @property
    def has_residual(self) -> bool:
        return self.op not in ("l1_norm", "l2_norm") and self.optional["residual"]

    def norm(self, direction: int) -> Norm:
        reduction = SUM if self.op == "l1_norm" and not self.by_mean else MEAN
        return Norm(OPS.index(self.op), direction, 0 if self.by_channel else self.axis, reduction,
                    self.eps, self.axes, self.clamp, self.groups, self.running == "used",
                    self.momentum, ACTIVATIONS.index(self.activation))

    @property
    def options(self) -> Options:
        return Options(self.threads, 0, int(self.reference), 0)

    # ---- Which elements make a row, and which weight each has

    @property
    def inside(self) -> Tuple[int, int]:
        first = self.axis % len(self.shape)
        count = self.axes or (1 if self.op in ("l1_norm", "l2_norm") else len(self.shape) - first)
        return first, first + count

    def rows(self) -> List[List[int]]:
        rows: Dict[Tuple[int, ...], List[int]] = {}
        for i, index in enumerate(itertools.product(*map(range, self.shape))):
            rows.setdefault(self.row_of(index), []).append(i)
        return [rows[key] for key in sorted(rows)]

    def row_of(self, index: Tuple[int, ...]) -> Tuple[int, ...]:
        if self.op == "batch_norm":
            return (index[1],)
        if self.op == "group_norm":
            return index[0], index[1] // (self.shape[1] // self.groups)
        first, last = self.inside
        return index[:first] + index[last:]

    def weight_numbers(self) -> List[int]:
        """Which of the weights each element has."""
        first, last = (1, 2) if self.by_channel else self.inside
        inner, count = math.prod(self.shape[last:]), math.prod(self.shape[first:last])
        return [i // inner % count for i in range(math.prod(self.shape))]

    @property
    def weight_shape(self) -> List[int]:
        first, last = (1, 2) if self.by_channel else self.inside
        return self.shape[first:last]

    @property
    def saved_shape(self) -> List[int]:
        if self.op == "batch_norm":
            return [self.shape[1]]
        if self.op == "group_norm":
            return [self.shape[0], self.groups]
        first, last = self.inside
        if self.keep_ones or last - first == len(self.shape):
            return self.shape[:first] + [1] * (last - first) + self.shape[last:]
        return self.shape[:first] + self.shape[last:]

    # ---- Arrays

    def array(self, role: str, output: bool = False) -> Array:
        if role in WHOLE:
            shape, dtype = self.shape, self.dtype
        elif role in ("mean", "rstd"):
            shape, dtype = self.saved_shape, self.dtype.stats
        else:
            shape, dtype = self.weight_shape, self.weight_dtype
        array = array_for(dtype, shape, self.layouts[role], may_repeat=not output)
        if not output:
            array.fill(self.values(role, array.count, dtype))
        return array

    def values(self, role: str, count: int, dtype: Dtype) -> List[float]:
        recipe = self.recipe
        if role not in ("x", "dy") or (role == "dy" and recipe in ("wide", "offset")):
            recipe = "normal"
        values = draw_values(recipe, self.seed * 16 + ROLES.index(role), count, dtype)
        return [0.25 + abs(v) for v in values] if role == "running_var" else values

    def forward_arrays(self) -> Dict[str, Array]:
        arrays = {"x": self.array("x"), "y": self.array("y", output=True)}
        for role in ("weight", "bias", "residual"):
            if self.has(role):
                arrays[role] = self.array(role)
        for role in ("sum", "mean", "rstd"):
            if self.has(role):
                arrays[role] = self.array(role, output=True)
        if self.running != "none":
            for role in ("running_mean", "running_var"):
                arrays[role] = self.array(role, output=True)
                values = self.values(role, arrays[role].count, self.weight_dtype)
                arrays[role].fill([round_to(self.weight_dtype, v) for v in values])
        return arrays

    def backward_arrays(self) -> Dict[str, Array]:
        """With the statistics that a forward in this type would have saved."""
        arrays = {"x": self.array("x"), "dy": self.array("dy"), "dx": self.array("dx", output=True)}
        for role in ("weight", "dsum"):
            if self.has(role):
                arrays[role] = self.array(role)
        if self.has("bias") and self.activation != "none":
            arrays["bias"] = self.array("bias")
        for role in ("weight", "bias"):
            if self.has(role):
                arrays["d" + role] = self.array("d" + role, output=True)
        if self.op == "l1_norm":
            return arrays
        x = arrays["x"].values()
        saved = [self.statistic_to_save([x[i] for i in row], r) for r, row in enumerate(self.rows())]
        for which, role in enumerate(("mean", "rstd")):
            if role == "mean" and not self.centered:
                continue
            arrays[role] = self.array(role, output=True)
            arrays[role].fill([round_to(self.dtype.stats, s[which]) for s in saved])
        return arrays

    def statistic_to_save(self, x: List[float], row: int) -> Tuple[float, float]:
        if self.running == "used":  # any numbers, and not those of the row
            return self.values("running_mean", row + 1, self.dtype.stats)[row], 0.5
        s = statistic(self.op, x, self.eps_of_forward, self.clamp)
        return s.mean, s.rstd

    @property
    def eps_of_forward(self) -> float:
        return self.eps if self.op == "l2_norm" else self.eps or 1e-5


ROLE_NAMES = [role for role in ROLES if role != "indices"]
CHANNELS_LAST = [0, 7, 1, 2, 3, 4, 5, 6]  # keys of the axes' order in memory


@st.composite
def channel_shapes(draw: st.DrawFn) -> List[int]:
    batches, channels = draw(st.integers(1, 6)), draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12, 17, 40)))
    if draw(st.integers(0, 19)) == 0:
        batches = 0
    room = max(1, 1500 // max(1, batches * channels))
    behind = draw(st.sampled_from((0, 1, 1, 2, 2, 3)))
    shape = [batches, channels]
    for _ in range(behind):
        size = draw(st.one_of(st.integers(1, 5), st.integers(1, max(1, min(room, 300)))))
        shape.append(min(size, room))
        room //= shape[-1]
    if draw(st.integers(0, 7)) == 0:
        shape[0] = max(1, min(200, 1500 // max(1, math.prod(shape[1:]))))
    return shape


@st.composite
def shared_layouts(draw: st.DrawFn) -> Dict[str, Optional[Layout]]:
    """Each tensor has its own layout or, more like what people do, the whole ones have one, which may be
    channels_last."""
    each = {role: draw(layouts()) for role in ROLE_NAMES}
    kind = draw(st.sampled_from(("each", "compact", "channels_last", "one")))
    one = draw(layouts()) if kind == "one" else None
    if one:
        one = one._replace(repeated=[False] * 8)
    if kind == "channels_last":
        one = Layout(CHANNELS_LAST, 1, draw(st.sampled_from((0, 0, 1))), draw(st.integers(0, 5)),
                     [False] * 8)
    return each if kind == "each" else {role: one if role in WHOLE else each[role]
                                        for role in ROLE_NAMES}


@st.composite
def cases(draw: st.DrawFn, ops: Sequence[str] = OPS, recipes: Sequence[str] = RECIPES,
          only: Optional[Dtype] = None) -> Case:
    op = draw(st.sampled_from(ops))
    dtype = only or draw(dtypes)
    by_channel = op in BY_CHANNEL
    shape = draw(channel_shapes() if by_channel else shapes())
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    divisors = [g for g in range(1, shape[1] + 1) if shape[1] % g == 0] if by_channel else []
    groups = draw(st.sampled_from(divisors + [shape[1]])) if op == "group_norm" else 0
    has_running = op == "batch_norm" or (op == "group_norm" and groups == shape[1])
    return Case(
        op=op,
        dtype=dtype,
        weight_dtype=DTYPES["f32"] if dtype.size == 2 and draw(st.booleans()) else dtype,
        shape=shape,
        axis=axis,
        axes=0 if by_channel else draw(st.integers(0, len(shape) - axis % len(shape))),
        eps=draw(st.sampled_from((0.0, 1e-5, 1e-3, 1.0, 30.0))),
        clamp=op in ("l1_norm", "l2_norm") and draw(st.booleans()),
        by_mean=draw(st.booleans()),
        groups=groups,
        running=draw(st.sampled_from(("none", "moved", "used"))) if has_running else "none",
        momentum=draw(st.sampled_from((0.0, 0.1, 0.5, 1.0))) if by_channel else 0.0,
        activation="none" if op in ("l1_norm", "l2_norm") else draw(
            st.sampled_from(("none", "none", "none", "none") + ACTIVATIONS)),
        optional={role: draw(st.booleans()) for role in
                  ("weight", "bias", "residual", "sum", "dsum", "mean", "rstd")},
        keep_ones=draw(st.booleans()),
        recipe=draw(st.sampled_from(recipes)),
        seed=draw(st.integers(0, 2**32)),
        layouts=draw(shared_layouts()),
        threads=draw(st.integers(0, 4)),
        reference=draw(st.integers(0, 3)) == 0,
    )


# ---- Running and checking ------------------------------------------------------------------------


def run(case: Case, direction: int, arrays: Dict[str, Array],
        options: Optional[Options] = None) -> None:
    result = plan_and_run(case.norm(direction), arrays, options or case.options)
    assert result.status == "OK", result
    for role, array in arrays.items():
        assert array.guards_hold(), f"written between or outside the elements of {role}"


def check(array: Array, role: str, expected: Sequence[float], bounds: Sequence[float]) -> None:
    for i, (actual, wanted, bound) in enumerate(zip(array.values(), expected, bounds)):
        if role in ("mean", "running_mean") and math.isinf(wanted) and math.isnan(actual):
            continue  # sums and the merging of chunks may meet Inf - Inf (docs/numerics.md)
        assert close(actual, wanted, bound, array.dtype), (
            f"{role}[{i}] of {array.dtype.name} is {actual!r}, not {wanted!r} within {bound:.3g}")


def weights_of(case: Case, values: Dict[str, List[float]], role: str, otherwise: float) -> List[float]:
    """For every element."""
    if role not in values:
        return [otherwise] * math.prod(case.shape)
    return [values[role][k] for k in case.weight_numbers()]


class Forward:
    """What a forward should give and how far off it may be: lists by element, row and channel. A bound of
    infinity where no arithmetic in this type has anything to say."""

    def __init__(self, case: Case, before: Dict[str, List[float]]) -> None:
        self.case, self.before = case, before
        self.unit = case.dtype.stats.unit
        count = math.prod(case.shape)
        self.x = before["x"]
        if "residual" in before:
            self.x = [round_to(case.dtype, self.rounded_once(a + b))
                      for a, b in zip(self.x, before["residual"])]
        self.y, self.y_bound = [0.0] * count, [0.0] * count
        self.mean: List[float] = []
        self.mean_bound: List[float] = []
        self.rstd: List[float] = []
        self.rstd_bound: List[float] = []
        self.moved = {role: list(before.get(role, ())) for role in ("running_mean", "running_var")}
        self.moved_bound = [0.0] * len(self.moved["running_var"])
        self.weight = weights_of(case, before, "weight", 1.0)
        self.bias = weights_of(case, before, "bias", 0.0)
        self.channels = case.weight_numbers() if case.by_channel else []
        self.statistics = []
        for row in case.rows():
            self.do_row(row)
        if self.moved["running_var"]:
            self.move_running()

    def rounded_once(self, value: float) -> float:
        """Halves are added in f32, where their sum is exact enough to be rounded again."""
        return value if self.case.dtype.name == "f64" else round_to(DTYPES["f32"], value)

    def do_row(self, row: List[int]) -> None:
        case, n = self.case, len(row)
        x = [self.x[i] for i in row]
        s = statistic(case.op, x, case.eps, case.clamp, case.by_mean)
        if case.running == "used":
            channel = self.channels[row[0]]
            mean, variance = (self.before[r][channel] for r in ("running_mean", "running_var"))
            s = s._replace(mean=mean, variance=variance, rstd=divide(1.0, math.sqrt(variance + case.eps)))
        self.statistics.append((row, s))
        constant = sum_constant(n) * self.unit
        off = constant
        if case.centered:
            off *= 1 + max(max(abs(v) for v in x), abs(s.mean)) * s.rstd
        if not off < 0.01 and not math.isnan(s.rstd):
            off = math.inf  # nothing is left of a constant row without eps
        self.mean.append(s.mean)
        self.mean_bound.append(constant * max(abs(v) for v in x + [s.mean]))
        self.rstd.append(s.rstd)
        self.rstd_bound.append(2 * off * abs(s.rstd) if s.rstd else 0)
        for i in row:
            hat = (self.x[i] - s.mean) * s.rstd
            pre = hat * self.weight[i] + self.bias[i]
            bound = 2 * off * (case.centered + abs(hat)) * abs(self.weight[i]) if off else 0.0
            self.y_bound[i] = activated_bound(case, pre, bound + 4 * self.unit * abs(self.bias[i]))
            self.y[i] = activate(case.activation, pre)

    def move_running(self) -> None:
        case = self.case
        if case.running == "used":
            return
        for channel in range(case.shape[1]):
            rows = [(row, s) for row, s in self.statistics if self.channels[row[0]] == channel]
            averages = (total([s.mean for _, s in rows]) / max(1, len(rows)),
                        total([unbiased(s, len(row)) for row, s in rows]) / max(1, len(rows)))
            if not rows:
                return
            largest = max(abs(self.x[i]) for row, _ in rows for i in row)
            for role, average in zip(("running_mean", "running_var"), averages):
                old = self.before[role][channel]
                self.moved[role][channel] = (1 - case.momentum) * old + case.momentum * average
            # The variance of numbers that are far from zero is off by their size; of one number it is NaN.
            variance = 0.0 if math.isnan(averages[1]) else abs(averages[1])
            self.moved_bound[channel] = 4 * self.unit * (1 + sum_constant(len(rows[0][0])) * (
                largest + variance + largest * math.sqrt(variance)))


def activated_bound(case: Case, pre: float, bound: float) -> float:
    """An activation's slope is at most 1.13, and its own error some units of its result or, where that is
    1 + erf(...) with little left, of its argument."""
    if case.activation in ("none", "relu"):
        return bound
    unit = case.dtype.stats.unit
    return 1.2 * bound + unit * (16 * abs(activate(case.activation, pre)) + 4 * min(abs(pre), 10.0))


@given(cases())
def test_forward_is_the_definition(case: Case) -> None:
    arrays = case.forward_arrays()
    before = {role: array.values() for role, array in arrays.items()}
    run(case, FORWARD, arrays)
    expected = Forward(case, before)
    check(arrays["y"], "y", expected.y, expected.y_bound)
    if "sum" in arrays:
        check(arrays["sum"], "sum", expected.x, [0.0] * len(expected.x))
    if not expected.statistics:
        return  # the statistics of nothing are whatever they are; the guards held
    if "mean" in arrays:
        check(arrays["mean"], "mean", expected.mean, expected.mean_bound)
    if "rstd" in arrays:
        check(arrays["rstd"], "rstd", expected.rstd, expected.rstd_bound)
    for role, values in expected.moved.items():
        if role in arrays:
            check(arrays[role], role, values, expected.moved_bound)


# ---- Backward ------------------------------------------------------------------------------------


class Backward:
    """What a backward should give, from the saved statistics as the forward rounded them."""

    def __init__(self, case: Case, before: Dict[str, List[float]]) -> None:
        self.case, self.before, self.unit = case, before, case.dtype.stats.unit
        count = math.prod(case.shape)
        self.dx, self.dx_bound = [0.0] * count, [0.0] * count
        self.numbers = case.weight_numbers()
        self.by_weight: List[List[Tuple[float, float]]] = [
            [] for _ in range(math.prod(case.weight_shape))]
        self.by_bias: List[List[Tuple[float, float]]] = [[] for _ in self.by_weight]
        self.weight = weights_of(case, before, "weight", 1.0)
        self.bias = weights_of(case, before, "bias", 0.0)
        for r, row in enumerate(case.rows()):
            if case.op == "l1_norm":
                self.do_l1_row(row)
            else:
                self.do_row(r, row)

    def do_l1_row(self, row: List[int]) -> None:
        case = self.case
        x, dy = [self.before["x"][i] for i in row], [self.before["dy"][i] for i in row]
        share = 1 / len(row) if case.by_mean else 1.0
        norm = total([abs(v) for v in x]) * share
        d = denominator(norm, case.eps, case.clamp)
        products = [g * v for g, v in zip(dy, x)]
        by_sign = 0.0 if case.clamp and norm < case.eps else 1.0
        both = divide(divide(total(products), d), d) * share * by_sign
        size = divide(divide(total([abs(p) for p in products]), d), d) * share * by_sign
        for i, v, g in zip(row, x, dy):
            self.dx[i] = divide(g, d) - ((v > 0) - (v < 0)) * both
            self.dx_bound[i] = 2 * sum_constant(len(row)) * self.unit * (abs(divide(g, d)) + size)
            if abs(norm - case.eps) <= 1e-6 * norm and case.clamp:
                self.dx_bound[i] = math.inf  # on the edge of the clamp

    def share(self, rstd: float, n: int) -> Tuple[float, float]:
        """How much of z sum(g z) is taken off, and how uncertain that is."""
        case = self.case
        if case.running == "used":
            return 0.0, 0.0
        if case.op != "l2_norm":
            return 1 / n, 0.0
        rest = 1 - case.eps * rstd  # |x| / d
        if case.clamp:
            return float(rest > 4 * self.unit), float(0 < abs(rest) < 2.0**-19)
        if rest <= 0:
            return 0.0, 0.0
        return 1 / rest, min(1.0, 8 * self.unit / rest) / rest

    def do_row(self, r: int, row: List[int]) -> None:
        case, n, unit = self.case, len(row), self.unit
        rstd = self.before["rstd"][r]
        x, dy = [self.before["x"][i] for i in row], [self.before["dy"][i] for i in row]
        mean = self.before["mean"][r] if case.centered else 0.0
        # A kernel may take the saved mean, which is rounded, or find the mean again.
        largest = max(abs(v) for v in x + [mean])
        off = 4 * unit * largest * rstd if case.centered else 0.0
        z = [(v - mean) * rstd for v in x]
        weight, bias = [self.weight[i] for i in row], [self.bias[i] for i in row]
        pre = [a * w + b for a, w, b in zip(z, weight, bias)]
        pre_off = [(off + 4 * unit * abs(a)) * abs(w) + 4 * unit * abs(b)
                   for a, w, b in zip(z, weight, bias)]
        steep = [slope(case.activation, p) for p in pre]
        steep_off = [slope_bound(case, p, o) for p, o in zip(pre, pre_off)]
        g = [a * s for a, s in zip(dy, steep)]
        g_off = [abs(a) * s for a, s in zip(dy, steep_off)]
        gw, gw_off = [a * w for a, w in zip(g, weight)], [abs(a * w) for a, w in zip(g_off, weight)]
        share, share_off = self.share(rstd, n)
        centered = case.centered and case.running != "used"
        dot, dot_size = (total([f(a * b) for a, b in zip(gw, z)]) for f in (float, abs))
        dot_off = total([a * abs(b) for a, b in zip(gw_off, z)])
        sum_, sum_size = total(gw), total([abs(a) for a in gw])
        for k, i in enumerate(row):
            dx = gw[k] - z[k] * dot * share - (sum_ * share if centered else 0.0)
            size = abs(gw[k]) + abs(z[k]) * dot_size * share + sum_size * share
            moved = off * (dot_size + (abs(z[k]) + off) * sum_size) * share
            moved += gw_off[k] + (abs(z[k]) * dot_off + total(gw_off)) * share
            moved += abs(z[k]) * dot_size * share_off
            dsum = self.before["dsum"][i] if "dsum" in self.before else 0.0
            self.dx[i] = dx * rstd + dsum
            self.dx_bound[i] = (2 * sum_constant(n) * unit * size + moved) * rstd + 2 * unit * abs(dsum)
            self.by_weight[self.numbers[i]].append(
                (g[k] * z[k], abs(g[k]) * (unit * self.far(mean, rstd) + off) + g_off[k] * abs(z[k])))
            self.by_bias[self.numbers[i]].append((g[k], g_off[k]))

    def far(self, mean: float, rstd: float) -> float:
        """Sums by channel may be made of x and not of its deviations, as long as those are near."""
        return 8 * min(2.0, abs(mean) * rstd)

    def gradient_of(self, terms: List[List[Tuple[float, float]]]) -> Tuple[List[float], List[float]]:
        return ([total([t for t, _ in some]) for some in terms],
                [2 * sum_constant(len(some)) * self.unit * total([abs(t) + o for t, o in some])
                 + total([o for _, o in some]) for some in terms])


def slope_bound(case: Case, pre: float, off: float) -> float:
    if case.activation == "none":
        return 0.0
    if case.activation == "relu":
        return float(abs(pre) <= off)  # a step
    return CURVATURE[case.activation] * off + 24 * case.dtype.stats.unit


@given(cases(recipes=FINITE))
def test_backward_is_the_derivative(case: Case) -> None:
    arrays = case.backward_arrays()
    before = {role: array.values() for role, array in arrays.items()}
    if any(not math.isfinite(v) for v in before.get("rstd", ())):
        return  # rows of zeros without eps
    run(case, BACKWARD, arrays)
    expected = Backward(case, before)
    check(arrays["dx"], "dx", expected.dx, expected.dx_bound)
    if "dweight" in arrays:
        check(arrays["dweight"], "dweight", *expected.gradient_of(expected.by_weight))
    if "dbias" in arrays:
        check(arrays["dbias"], "dbias", *expected.gradient_of(expected.by_bias))


# ---- In place, and the same bits whatever the threads --------------------------------------------

PLACES = {FORWARD: (("y", "x"), ("y", "residual"), ("sum", "x"), ("sum", "residual")),
          BACKWARD: (("dx", "x"), ("dx", "dy"), ("dx", "dsum"))}


def outputs(direction: int, arrays: Dict[str, Array]) -> Dict[str, bytes]:
    names = ("y sum mean rstd running_mean running_var" if direction == FORWARD
             else "dx dweight dbias").split()
    return {role: arrays[role].bits() for role in names if role in arrays}


def arrays_for(case: Case, direction: int) -> Dict[str, Array]:
    return case.forward_arrays() if direction == FORWARD else case.backward_arrays()


@given(cases(), st.sampled_from((FORWARD, BACKWARD)), st.data())
def test_in_place_gives_the_same_bits(case: Case, direction: int, data: st.DataObject) -> None:
    for role in WHOLE:
        if case.layouts[role]:
            case.layouts[role] = case.layouts[role]._replace(repeated=[False] * 8)
    there = arrays_for(case, direction)
    possible = [pair for pair in PLACES[direction] if pair[0] in there and pair[1] in there]
    output, over = data.draw(st.sampled_from(possible))
    case.layouts[output] = case.layouts[over]
    apart = arrays_for(case, direction)  # laid out as in place: other layouts may have other bits
    run(case, direction, apart)
    together = arrays_for(case, direction)
    together[output] = together[over]
    other = data.draw(st.sampled_from(possible))
    if other[0] != output and other[1] != over and case.layouts[other[0]] == case.layouts[other[1]]:
        together[other[0]] = together[other[1]]
    run(case, direction, together)
    assert outputs(direction, together) == outputs(direction, apart)


@given(cases(), st.sampled_from((FORWARD, BACKWARD)), st.integers(1, 9))
def test_threads_do_not_show_in_the_bits(case: Case, direction: int, threads: int) -> None:
    found = []
    for count in (1, threads):
        arrays = arrays_for(case, direction)
        run(case, direction, arrays, Options(count, 0, 0, 0))
        found.append({role: arrays[role].bits_of_numbers() for role in outputs(direction, arrays)})
    assert found[0] == found[1]


# ---- Tensors of several chunks, against the reference --------------------------------------------

LARGE = (
    ("batch_norm", [3, 5, 5000], 0, False), ("batch_norm", [2, 24, 700], 0, True),
    ("batch_norm", [1400, 10], 0, False), ("batch_norm", [300, 3, 49], 0, False),
    ("batch_norm", [1, 1, 132000], 0, False), ("group_norm", [2, 8, 3000], 2, False),
    ("group_norm", [2, 8, 5000], 8, False), ("group_norm", [3, 64, 49], 4, False),
    ("group_norm", [2, 24, 700], 3, True), ("group_norm", [3, 600, 9], 600, True),
    ("layer_norm", [2, 300, 40], 0, False), ("rms_norm", [2, 300, 40], 0, False),
    ("l2_norm", [2, 300, 40], 0, False), ("layer_norm", [3, 9000, 1], 0, False),
)


def large_case(op: str, shape: List[int], groups: int, channels_last: bool, dtype: str,
               activation: str) -> Case:
    layout = Layout(CHANNELS_LAST, 1, 0, 0, [False] * 8) if channels_last else None
    plain = op in ("l1_norm", "l2_norm")
    by_channel = op in BY_CHANNEL
    running = op == "batch_norm" or groups == shape[1]
    return Case(op, DTYPES[dtype], DTYPES[dtype], shape, 1, 0 if by_channel else 1, 1e-5, False, True,
                groups, "moved" if running else "none", 0.5 if running else 0.0,
                "none" if plain else activation,
                {role: role not in ("residual", "sum", "dsum") or activation != "none"
                 for role in ("weight", "bias", "residual", "sum", "dsum", "mean", "rstd")},
                False, "normal", 7, {role: layout if role in WHOLE else None for role in ROLE_NAMES},
                2, False)


@pytest.mark.parametrize("direction", (FORWARD, BACKWARD))
@pytest.mark.parametrize("dtype,activation", (("f32", "none"), ("bf16", "none"), ("f32", "gelu"),
                                              ("f16", "silu"), ("f64", "gelu_tanh")))
@pytest.mark.parametrize("op,shape,groups,channels_last", LARGE)
def test_large_ones_agree_with_the_reference(op: str, shape: List[int], groups: int,
                                             channels_last: bool, dtype: str, activation: str,
                                             direction: int) -> None:
    if math.prod(shape) > 50000 and (dtype, activation) != ("f32", "none"):
        return  # several segments, which have nothing to do with types; and long to look at in Python
    case = large_case(op, shape, groups, channels_last, dtype, activation)
    fast, slow = arrays_for(case, direction), arrays_for(case, direction)
    run(case, direction, fast)
    run(case, direction, slow, Options(0, 0, 1, 0))
    names = [role for role in fast if role in (
        "y sum mean rstd running_mean running_var" if direction == FORWARD
        else "dx dweight dbias").split()]
    unit = case.dtype.unit * (32 if dtype == "f64" else 1)  # the reference sums in f64, too
    for role in names:
        terms = 4 + (math.sqrt(math.prod(shape)) if role in ("dweight", "dbias") else 0)
        if role == "dx" and case.activation != "none":  # a slope is off by what its terms are
            terms += math.prod(max(map(abs, fast[r].values())) for r in ("dy", "weight", "rstd"))
        for i, (a, b) in enumerate(zip(fast[role].values(), slow[role].values())):
            assert abs(a - b) <= 4 * unit * (terms + abs(b)), (role, i, a, b)
