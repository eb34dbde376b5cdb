"""What only a GPU can keep or break: streams, graphs, devices."""

from typing import Callable

import onepass
import onepass.functional as F
import pytest
import torch
from conftest import Pair, reset_compiler, why_no_cuda

if why_no_cuda():
    pytest.skip(f"everything on a GPU: {why_no_cuda()}", allow_module_level=True)


def test_work_is_queued_on_the_current_stream(pair: Pair) -> None:
    source = torch.randn(64, 3, 4096, device="cuda")
    expected = pair[1](source)
    stream = torch.cuda.Stream()
    x = torch.zeros_like(source)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.copy_(source)
        y = pair[0](x)
    stream.synchronize()
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("columns", [768, 65535, 1_000_000])
def test_cuda_graphs_forward(pair: Pair, columns: int) -> None:
    x = torch.randn(4, 2, columns, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), torch.no_grad():
        pair[0](x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        y = pair[0](x)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        # PyTorch's on the CPU: its adaptive_avg_pool2d on CUDA is wrong for long rows, or crashes.
        torch.testing.assert_close(y.cpu(), pair[1](x.cpu()), rtol=1e-4, atol=1e-5)


def test_cuda_graphs_of_a_training_step() -> None:
    model = torch.nn.Sequential(onepass.nn.LayerNorm(256), torch.nn.Linear(256, 256),
                                onepass.nn.LayerNorm(256)).cuda()
    x = torch.randn(64, 256, device="cuda")

    def step() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = model(x).pow(4).mean()
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    model.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        captured = step()
    grads = [p.grad for p in model.parameters()]
    x.copy_(torch.randn_like(x))
    graph.replay()
    replayed = [captured.clone()] + [g.clone() for g in grads]
    loss = step()
    torch.testing.assert_close(replayed, [loss] + [p.grad for p in model.parameters()])


def test_make_graphed_callables() -> None:
    model = onepass.nn.LayerNorm(256).cuda()
    x = torch.randn(64, 256, device="cuda", requires_grad=True)
    with torch.no_grad():  # or the weights would belong to a graph of the default stream's
        expected = torch.nn.functional.layer_norm(x, (256,), model.weight, model.bias)
    graphed = torch.cuda.make_graphed_callables(model, (x.detach().clone().requires_grad_(),))
    torch.testing.assert_close(graphed(x), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
def test_another_device_than_the_current_one(pair: Pair) -> None:
    x = torch.randn(64, 3, 4096, device="cuda:1", requires_grad=True)
    with torch.cuda.device(0):
        y = pair[0](x)
        y.sum().backward()
        assert torch.cuda.current_device() == 0
    assert y.device == x.device == x.grad.device
    torch.testing.assert_close(y, pair[1](x), rtol=1e-4, atol=1e-5)
    model = torch.nn.DataParallel(onepass.nn.LayerNorm(4096).cuda())
    torch.testing.assert_close(model(x), torch.nn.functional.layer_norm(x, (4096,)).to(0))


def test_weights_on_the_cpu_are_an_error() -> None:
    x = torch.randn(2, 8, device="cuda")
    with pytest.raises(RuntimeError, match="weight"):
        F.layer_norm(x, (8,), torch.ones(8))


def test_pinned_memory_is_memory_of_the_cpu(pair: Pair) -> None:
    x = torch.randn(4, 3, 8)
    torch.testing.assert_close(pair[0](x.pin_memory()), pair[0](x))


def test_scratch_memory_is_given_back() -> None:
    x = torch.randn(16, 4_000_000, device="cuda", requires_grad=True)
    weight = torch.ones(4_000_000, device="cuda", requires_grad=True)

    def step() -> int:
        F.layer_norm(x, (4_000_000,), weight).square().mean().backward()
        x.grad = weight.grad = None
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    first = step()
    assert [step() for _ in range(3)] == [first] * 3


def test_compiled_with_cuda_graphs(pair: Pair) -> None:
    reset_compiler()
    compiled: Callable[..., torch.Tensor] = torch.compile(
        lambda x: pair[0](x * 2) + 1, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        x = torch.randn(8, 3, 512, device="cuda")
        torch.testing.assert_close(compiled(x).clone(), pair[1](x * 2) + 1, rtol=1e-4, atol=1e-5)
