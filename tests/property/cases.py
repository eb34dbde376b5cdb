"""Random calls for the property tests: shapes, layouts, types and values.

Values come from a seed and a recipe instead of one draw an element, which keeps examples small and
makes shrinking find the shape first, which is what a bug usually is about.
"""

import math
import random
from typing import Dict, List, NamedTuple, Optional, Sequence

from hypothesis import strategies as st

from onepass_c import CUDA_KERNELS, DTYPES, Array, Dtype, Options, compact_strides, round_to

__all__ = [
    "Layout", "NormCase", "PoolCase", "RECIPES", "array_for", "close", "draw_values", "dtypes", "layouts",
    "norm_cases", "pool_cases", "row_indices", "shapes", "sum_constant",
]

dtypes = st.sampled_from([DTYPES[name] for name in ("f32", "f64", "f16", "bf16")])

# ---- Values --------------------------------------------------------------------------------------

RECIPES = ("normal", "wide", "integers", "offset", "mostly zero", "special")


def draw_values(recipe: str, seed: int, count: int, dtype: Dtype) -> List[float]:
    """`count` numbers of the type. No recipe but "special" has NaN or infinities, and all stay far
    enough from the type's limits that squares and sums in its arithmetic do not overflow."""
    rng = random.Random(seed)
    reach = 3 if dtype.name == "f16" else 9

    def one() -> float:
        if recipe == "wide":
            return rng.choice((-1, 1)) * 10 ** rng.uniform(-reach, reach)
        if recipe == "integers":
            return float(rng.randint(-3, 3))
        if recipe == "offset":
            return 100 + rng.gauss(0, 1)
        if recipe == "mostly zero":
            return rng.gauss(0, 1) if rng.random() < 0.2 else 0.0
        if recipe == "special" and rng.random() < 0.05:
            return rng.choice((math.nan, math.inf, -math.inf))
        return rng.gauss(0, 1)

    # Through f32 first: the packing of bf16 wants that.
    wide = dtype if dtype.name == "f64" else DTYPES["f32"]
    return [round_to(dtype, round_to(wide, one())) for _ in range(count)]


# ---- Layouts -------------------------------------------------------------------------------------


class Layout(NamedTuple):
    order: List[float]  # a key for each axis; axes lie in memory in the order of their keys
    innermost: int
    gap: int
    shift: int
    repeated: List[bool]  # axes with stride 0, where that is allowed


@st.composite
def layouts(draw: st.DrawFn) -> Optional[Layout]:
    """None is compact, at a 64-byte boundary; half of all."""
    if draw(st.booleans()):
        return None
    return Layout(
        draw(st.permutations(range(8))),
        draw(st.sampled_from((1, 1, 2, 3))),
        draw(st.integers(0, 3)),
        draw(st.integers(0, 17)),
        draw(st.lists(st.sampled_from((False, False, True)), min_size=8, max_size=8)),
    )


def array_for(dtype: Dtype, shape: Sequence[int], layout: Optional[Layout],
              may_repeat: bool) -> Array:
    if layout is None:
        return Array(dtype, shape)
    strides = [0] * len(shape)
    step = layout.innermost
    for axis in sorted(range(len(shape)), key=lambda a: layout.order[a], reverse=True):
        strides[axis] = step
        step = step * max(shape[axis], 1) + layout.gap
    if may_repeat:
        strides = [0 if repeat else s for s, repeat in zip(strides, layout.repeated)]
    return Array(dtype, shape, strides, layout.shift)


# ---- How to run ----------------------------------------------------------------------------------

cuda_kernels = st.integers(0, CUDA_KERNELS - 1)


def options_for(device: str, threads: int, cuda_kernel: int) -> Options:
    return Options(0, 0, 0, cuda_kernel) if device == "cuda" else Options(threads, 0, 0, 0)


# ---- Norms ---------------------------------------------------------------------------------------


class NormCase(NamedTuple):
    dtype: Dtype
    weight_dtype: Dtype
    shape: List[int]
    axis: int  # as given, perhaps negative
    eps: float
    mean: bool  # l1_norm: by mean|x|, not sum|x|
    has_weight: bool
    has_bias: bool
    keep_ones: bool  # mean and rstd keep the normalized axes as ones
    recipe: str
    seed: int
    layouts: Dict[str, Optional[Layout]]
    threads: int
    cuda_kernel: int

    def options(self, device: str) -> Options:
        return options_for(device, self.threads, self.cuda_kernel)

    @property
    def first(self) -> int:
        return self.axis % len(self.shape)

    def values(self, role: str, count: int, dtype: Dtype) -> List[float]:
        recipe = self.recipe
        if role in ("weight", "bias") or (role == "dy" and recipe in ("wide", "offset")):
            recipe = "normal"
        return draw_values(recipe, self.seed * 16 + hash_role(role), count, dtype)

    def array(self, role: str, shape: Sequence[int], dtype: Dtype, output: bool) -> Array:
        array = array_for(dtype, shape, self.layouts[role], may_repeat=not output)
        if not output:
            array.fill(self.values(role, array.count, dtype))
        return array

    def stats_shape(self) -> List[int]:
        kept = self.shape[:self.first]
        if self.keep_ones or not kept:
            return kept + [1] * (len(self.shape) - self.first)
        return kept


def hash_role(role: str) -> int:
    return ("x", "weight", "bias", "y", "mean", "rstd", "dy", "dx", "dweight", "dbias").index(role)


@st.composite
def shapes(draw: st.DrawFn) -> List[int]:
    ndim = draw(st.sampled_from((1, 2, 2, 3, 3, 4, 5, 8)))
    largest = {1: 8, 2: 8, 3: 6, 4: 4, 5: 3, 8: 2}[ndim]
    shape = draw(st.lists(st.integers(0 if draw(st.integers(0, 9)) == 0 else 1, largest),
                          min_size=ndim, max_size=ndim))
    if draw(st.booleans()):
        others = math.prod(shape) or 1
        long = draw(st.integers(0, ndim - 1))
        shape[long] = draw(st.integers(1, max(1, min(300, 1200 * max(shape[long], 1) // others))))
    return shape


@st.composite
def norm_cases(draw: st.DrawFn, recipes: Sequence[str] = RECIPES,
               only: Optional[Dtype] = None) -> NormCase:
    dtype = only or draw(dtypes)
    shape = draw(shapes())
    half = dtype.size == 2
    return NormCase(
        dtype=dtype,
        weight_dtype=DTYPES["f32"] if half and draw(st.booleans()) else dtype,
        shape=shape,
        axis=draw(st.integers(-len(shape), len(shape) - 1)),
        eps=draw(st.sampled_from((0.0, 1e-5, 1e-3, 1.0))),
        mean=draw(st.booleans()),
        has_weight=draw(st.booleans()),
        has_bias=draw(st.booleans()),
        keep_ones=draw(st.booleans()),
        recipe=draw(st.sampled_from(recipes)),
        seed=draw(st.integers(0, 2**32)),
        layouts={role: draw(layouts()) for role in
                 ("x", "weight", "bias", "y", "mean", "rstd", "dy", "dx", "dweight", "dbias")},
        threads=draw(st.integers(0, 4)),
        cuda_kernel=draw(cuda_kernels),
    )


def row_indices(shape: Sequence[int], first: int, last: int) -> List[List[int]]:
    """The elements of each row when axes first..last-1 are normalized, as row-major numbers."""
    strides = compact_strides(shape)
    step = strides[last - 1]
    length = math.prod(shape[first:last])
    outer, inner = math.prod(shape[:first]), math.prod(shape[last:])
    return [[(o * length + k) * step + i for k in range(length)]
            for o in range(outer) for i in range(inner)]


# ---- Pools ---------------------------------------------------------------------------------------


class PoolCase(NamedTuple):
    dtype: Dtype
    outer: List[int]
    length: int
    kernel: int
    stride: int
    padding: int
    ceil_mode: bool
    count_include_pad: bool
    recipe: str
    seed: int
    input_layout: Optional[Layout]
    output_layout: Optional[Layout]
    threads: int
    cuda_kernel: int

    def options(self, device: str) -> Options:
        return options_for(device, self.threads, self.cuda_kernel)

    def values(self, count: int) -> List[float]:
        return draw_values(self.recipe, self.seed, count, self.dtype)


@st.composite
def pool_cases(draw: st.DrawFn, recipes: Sequence[str] = RECIPES,
               only: Optional[Dtype] = None) -> PoolCase:
    kernel = draw(st.one_of(st.integers(1, 10), st.integers(1, 40)))
    padding = draw(st.integers(0, kernel // 2))
    shortest = max(1, kernel - 2 * padding)
    outer = [draw(st.integers(1, 4))]
    if draw(st.booleans()):
        outer.insert(0, draw(st.integers(0, 3)))
    return PoolCase(
        dtype=only or draw(dtypes),
        outer=outer,
        length=shortest + draw(st.one_of(st.integers(0, 20), st.integers(0, 200))),
        kernel=kernel,
        stride=draw(st.one_of(st.integers(1, 12), st.integers(13, 24))),
        padding=padding,
        ceil_mode=draw(st.booleans()),
        count_include_pad=draw(st.booleans()),
        recipe=draw(st.sampled_from(recipes)),
        seed=draw(st.integers(0, 2**32)),
        input_layout=draw(layouts()),
        output_layout=draw(layouts()),
        threads=draw(st.integers(0, 4)),
        cuda_kernel=draw(cuda_kernels),
    )


# ---- Comparing -----------------------------------------------------------------------------------


def sum_constant(n: int) -> float:
    """How many units of roundoff a sum of n terms may be off, relative to the sum of their sizes.
    Any order with eight partial sums or more stays within n / 8 for the partial sums and a few more
    to put them together and for the operations around the sum."""
    return 8 + n / 8


def close(actual: float, expected: float, bound: float, dtype: Dtype) -> bool:
    """Whether actual is what a right kernel may give: arithmetic errors up to `bound`, then one
    rounding to the type, which loses half a unit or, near zero, half the smallest step."""
    if math.isnan(expected):
        return math.isnan(actual)
    if math.isinf(expected):
        return actual == expected
    # 1.01 because the value that is rounded is itself a little off.
    bound += 1.01 * dtype.unit * abs(expected) + 1.01 * dtype.smallest
    if abs(expected) + bound >= dtype.largest and math.isinf(actual):
        return (actual > 0) == (expected > 0)
    return abs(actual - expected) <= bound
