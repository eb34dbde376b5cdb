"""The hardware's own counters of a candidate's kernels, through Nsight Compute, where it is here and
permitted.

As a program this is what Nsight Compute runs: one call of the candidate between a start and a stop of
profiling.
"""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Sequence, Union

from .process import clean_environment

__all__ = ["counters_of", "parse"]

METRICS = {
    "dram__bytes_read.sum": "bytes_read",
    "dram__bytes_write.sum": "bytes_written",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio": "sectors_per_request",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": "local_sectors",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum": "local_sectors",
}
SECONDS = 120.0


def counters_of(path: str, construction: str, arguments: Sequence[Dict[str, Any]],
                extra: Dict[str, str]) -> Union[Dict[str, float], str]:
    """By name; or why there are none."""
    tool = shutil.which("ncu")
    if tool is None:
        return "there is no ncu"
    sandbox = tempfile.mkdtemp(prefix="onepass-judge-counters-")
    try:
        asked = json.dumps({"path": path, "construction": construction, "arguments": list(arguments)})
        process = subprocess.Popen(
            [tool, "--csv", "--print-units", "base", "--profile-from-start", "off",
             "--metrics", ",".join(METRICS), sys.executable, "-m", "onepass.judge.counters", asked],
            cwd=sandbox, env=clean_environment(sandbox, extra), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            printed, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"ncu took more than {SECONDS:.0f} s"
        return parse(printed.decode("utf-8", "replace"))
    finally:
        shutil.rmtree(sandbox, ignore_errors=True)


def parse(printed: str) -> Union[Dict[str, float], str]:
    """What ncu prints: remarks, then a table with a line for each kernel and metric."""
    lines = printed.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        remarks = [line for line in lines if line.startswith("==ERROR==")] or lines[-1:]
        return f"ncu gave no counters: {' '.join(remarks)[:200]}"
    found: Dict[str, float] = {}
    ratios: List[float] = []
    for row in csv.DictReader(lines[start:]):
        name = METRICS.get(row.get("Metric Name") or "")
        try:
            value = float((row.get("Metric Value") or "").replace(",", ""))
        except ValueError:
            continue
        if name == "sectors_per_request":
            ratios.append(value)
        elif name:
            found[name] = found.get(name, 0.0) + value
    if ratios:  # of the kernel that is worst
        found["sectors_per_request"] = max(ratios)
    return found


def main() -> None:
    import torch

    from .worker import copy_parameters, load_module
    asked = json.loads(sys.argv[1])
    made = torch.load(asked["construction"], map_location="cpu", weights_only=False)
    model = load_module(asked["path"], "candidate").ModelNew(*made["arguments"])
    if made["state"]:
        copy_parameters(model, made["state"])
    model = model.cuda()
    inputs = [made["values"][each["value"]] if "value" in each else example_of(each)
              for each in asked["arguments"]]
    with torch.no_grad():
        model(*inputs)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        model(*inputs)
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


def example_of(described: Dict[str, Any]) -> Any:
    import torch

    from .wire import DTYPES
    dtype = DTYPES[described["dtype"]]
    if dtype.is_floating_point:
        return torch.rand(described["shape"], device="cuda", dtype=dtype)
    return torch.zeros(described["shape"], device="cuda", dtype=dtype)


if __name__ == "__main__":
    main()
