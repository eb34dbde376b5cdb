"""PyTorch's own samples and error inputs for its operators, given to ours."""

import importlib.util
import re
import sys
import types
import unittest
from typing import Any, Callable, ContextManager, Dict, List

import onepass
import pytest
import torch
from conftest import FLOATS, assert_near

# Of expecttest PyTorch's test utilities only use this, for tests that are not run here.
if importlib.util.find_spec("expecttest") is None:
    sys.modules["expecttest"] = types.SimpleNamespace(ACCEPT=False, TestCase=unittest.TestCase)

opinfo = pytest.importorskip(
    "torch.testing._internal.common_methods_invocations",
    reason="PyTorch's OpInfo needs numpy, before 2.1 also pyyaml")

OURS = {
    f"nn.functional.{name}": getattr(onepass.functional, name)
    for name in (
        "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
        "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
        "batch_norm", "group_norm", "instance_norm", "layer_norm", "max_pool1d", "max_pool2d",
        "max_pool3d", "normalize", "rms_norm")
    if hasattr(torch.nn.functional, name)
}
# Variants, as batch_norm has one without cuDNN, have the same samples.
OPERATORS = [op for op in opinfo.op_db if op.name in OURS and not op.variant_test_name]
each_operator = pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name.split(".")[-1])


SAMPLES: Dict[Any, List[Any]] = {}


def samples(op: Any, device: str, dtype: torch.dtype, requires_grad: bool = False,
            most: int = 60) -> List[Any]:
    """Of many, as max_pool2d has, some that are spread over all. Making them takes longer than a copy."""
    key = (op.name, device)
    if key not in SAMPLES:
        SAMPLES[key] = list(op.sample_inputs(device, torch.float64, True))
        SAMPLES[key] = SAMPLES[key][::-(-len(SAMPLES[key]) // 60) | 1]

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().to(dtype, copy=True).requires_grad_(requires_grad and value.requires_grad)

    return [sample.transform(copy) for sample in SAMPLES[key][::-(-len(SAMPLES[key]) // most) | 1]]


def test_all_operators_have_samples() -> None:
    assert {op.name for op in OPERATORS} == set(OURS)


@each_operator
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_samples(op: Any, dtype: torch.dtype, device: str,
                 way: Callable[[], ContextManager[object]]) -> None:
    if dtype not in op.supported_dtypes(device):
        pytest.skip(f"this PyTorch has no {op.name} of {dtype} on {device}")
    for sample in samples(op, device, dtype):
        wide = widened(sample)
        expected = op(wide.input, *wide.args, **wide.kwargs)
        with way():
            actual = OURS[op.name](sample.input, *sample.args, **sample.kwargs)
        assert type(actual) is type(expected)
        if isinstance(actual, tuple):
            assert torch.equal(actual[1], expected[1]) and actual[1].stride() == expected[1].stride()
            actual, expected = actual[0], expected[0]
        assert actual.dtype == dtype and actual.shape == expected.shape
        assert actual.stride() == expected.stride() or actual.numel() == 0
        assert_near(actual, expected)


def tensors_of(sample: Any) -> List[torch.Tensor]:
    given = [sample.input, *sample.args, *sample.kwargs.values()]
    return [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]


def first(results: Any) -> torch.Tensor:
    """What is differentiable: without the indices."""
    return results[0] if isinstance(results, tuple) else results


def widened(sample: Any) -> Any:
    def widen(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().double().clone().requires_grad_(value.requires_grad)

    return sample.transform(widen)


@each_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_samples(op: Any, dtype: torch.dtype, device: str,
                              way: Callable[[], ContextManager[object]]) -> None:
    for sample in samples(op, device, dtype, requires_grad=True):
        wide = widened(sample)
        exact = op(wide.input, *wide.args, **wide.kwargs)
        with way():
            actual = OURS[op.name](sample.input, *sample.args, **sample.kwargs)
        actual, exact = first(actual), first(exact)
        grad = torch.randn_like(actual)
        grads = torch.autograd.grad(actual, tensors_of(sample), grad)
        exact_grads = torch.autograd.grad(exact, tensors_of(wide), grad.double())
        for actual_grad, exact_grad in zip(grads, exact_grads):
            # Rows that hardly vary have gradients that are differences of terms up to 1/sqrt(eps).
            assert_near(actual_grad, exact_grad, terms=320.0)


@pytest.mark.parametrize("op", [op for op in OPERATORS if op.error_inputs_func is not None],
                         ids=lambda op: op.name.split(".")[-1])
def test_error_inputs(op: Any, device: str, way: Callable[[], ContextManager[object]]) -> None:
    for error_input in op.error_inputs(device):
        sample = error_input.sample_input
        with way(), pytest.raises(error_input.error_type) as raised:
            OURS[op.name](sample.input, *sample.args, **sample.kwargs)
        assert re.search(error_input.error_regex, str(raised.value))


@each_operator
def test_gradcheck(op: Any, device: str, way: Callable[[], ContextManager[object]]) -> None:
    for sample in samples(op, device, torch.float64, requires_grad=True, most=20):
        tensors = tensors_of(sample)
        if not tensors or sample.input.numel() == 0:
            continue

        def call(*_: torch.Tensor, sample: Any = sample) -> torch.Tensor:
            with way():
                return first(OURS[op.name](sample.input, *sample.args, **sample.kwargs))

        # Along one direction each; test_autograd.py looks along all axes.
        assert torch.autograd.gradcheck(call, tensors, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)
