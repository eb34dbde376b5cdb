"""The examples work, at sizes that take no time."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL = {
    "l1_norm": {"batch_size": 5, "dim": 1023},
    "layer_norm": {"batch_size": 3, "features": 2, "dim1": 9, "dim2": 11},
    "avg_pool1d": {"batch_size": 2, "in_channels": 3, "input_length": 100},
}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / "kernelbench" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SMALL)
def test_kernelbench(name: str, device: str) -> None:
    example = load(name)
    vars(example).update(SMALL[name])
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
