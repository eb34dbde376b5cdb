"""The examples work, at sizes that take no time."""

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"

TASKS = sorted(path.stem for path in (EXAMPLES / "kernelbench").glob("*.py"))
SIZES = json.loads((EXAMPLES / "kernelbench" / "sizes.json").read_text())
ODD = {"dim": 1023, "dim1": 9, "dim2": 11, "dim3": 13, "input_length": 100, "depth": 7, "height": 23,
       "width": 25}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / "kernelbench" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_tasks_have_sizes() -> None:
    for name in ("cpu", "tiny"):
        assert sorted(SIZES[name]) == TASKS
        for task in TASKS:
            example = load(task)
            assert set(SIZES[name][task]) <= set(vars(example))
            vars(example).update(SIZES[name][task], torch=torch_of_shapes)
            assert sum(example.get_inputs()) <= 64 << 20


class torch_of_shapes:
    """In place of torch: how many bytes the inputs have."""

    @staticmethod
    def rand(*shape: int) -> int:
        return 4 * math.prod(shape)


@pytest.mark.parametrize("name", TASKS)
def test_kernelbench(name: str, device: str) -> None:
    example = load(name)
    vars(example).update(SIZES["tiny"][name])
    vars(example).update({key: value for key, value in ODD.items() if hasattr(example, key)})
    arguments = example.get_init_inputs()
    model, new = example.Model(*arguments).to(device), example.ModelNew(*arguments).to(device)
    new.load_state_dict(model.state_dict())
    inputs = [x.to(device) for x in example.get_inputs()]
    torch.testing.assert_close(new(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


def test_training(device: str) -> None:
    printed = subprocess.run(
        [sys.executable, str(EXAMPLES / "train.py"), "--device", device, "--steps", "4", "--batch", "4",
         "--length", "512", "--width", "64", "--depth", "2"],
        check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
    assert "6 modules replaced" in printed and "the losses are the same" in printed
