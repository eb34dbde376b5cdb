"""The kernels of a call, as PyTorch's profiler sees them. Runs in the candidate's process: for advice
only."""

import json
import os
import tempfile
from typing import Any, Callable, Dict, List

__all__ = ["extra_memory_of", "kernels_of"]


def kernels_of(call: Callable[[], Any], device: str) -> List[Dict[str, Any]]:
    """On a GPU with grid, block, registers and time; on the CPU the operators."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=activities) as profiled:
        call()
        if device == "cuda":
            torch.cuda.synchronize()
    if device != "cuda":
        return [{"name": event.key, "device": "cpu", "count": event.count}
                for event in profiled.key_averages() if not event.key.startswith("[")][:20]
    kernels = [event for event in events_of(profiled) if event.get("cat") == "kernel"]
    return [describe(event) for event in kernels[:50]]


def extra_memory_of(call: Callable[[], Any], device: str) -> int:
    """Bytes of PyTorch's allocators that a call takes at most, beyond what its result keeps."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = call()
        if device == "cuda":
            torch.cuda.synchronize()
    changes = sorted((event["ts"], int(event["args"]["Bytes"])) for event in events_of(profiled)
                     if event.get("name") == "[memory]"
                     and event["args"].get("Device Type") == (1 if device == "cuda" else 0))
    del result
    held, most = 0, 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most - max(held, 0)


def events_of(profiled: Any) -> List[Dict[str, Any]]:
    path = os.path.join(tempfile.gettempdir(), "trace.json")
    profiled.export_chrome_trace(path)
    with open(path) as file:
        return json.load(file)["traceEvents"]


def describe(event: Dict[str, Any]) -> Dict[str, Any]:
    about = event.get("args", {})
    grid = about.get("grid") or [0]
    blocks = 1
    for size in grid:
        blocks *= int(size)
    return {"name": str(event.get("name"))[:120], "device": "cuda", "microseconds": event.get("dur"),
            "blocks": blocks, "block": about.get("block"), "registers": about.get("registers per thread"),
            "shared": about.get("shared memory")}
