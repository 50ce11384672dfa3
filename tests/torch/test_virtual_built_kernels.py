"""DeepSpeed's FusedAdam and DeepSpeedCPUAdam on the virtual device: Python makes the states, no kernel is built."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100

BUILDER = """
class OpBuilder:
    def __init__(self, name):
        self.name = name

    def load(self, verbose=False):
        raise RuntimeError("nvcc is not there")
"""
SIZE = 1000


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that has the builder where DeepSpeed has it."""
    folder = tmp_path / "deepspeed" / "ops" / "op_builder"
    folder.mkdir(parents=True)
    for each in (tmp_path / "deepspeed", tmp_path / "deepspeed" / "ops", folder):
        (each / "__init__.py").write_text("")
    (folder / "builder.py").write_text(BUILDER)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("builder")
def test_a_kernel_of_deepspeed_is_passed_over_and_allocates_nothing() -> None:
    with VirtualDevice(H100, steps=None) as device:
        from deepspeed.ops.op_builder.builder import OpBuilder  # pyright: ignore[reportMissingImports]

        kernel = OpBuilder("fused_adam").load()
        lists = [[torch.zeros(SIZE, device="cuda")] for _ in range(4)]
        before = len(device.ledger.events)
        kernel.multi_tensor_adam(2048, None, lists, 1e-3, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)
        assert len(device.ledger.events) == before
        line = device.ledger.ops[-1]
        assert line.name == "deepspeed.multi_tensor_adam"
        assert line.writes == device.ledger.numbers_of(each[0] for each in lists[1:])
        assert [name for kind, name in device.ledger.remarks if kind == "unsupported" and "multi_tensor_adam" in name]


@pytest.mark.usefixtures("builder")
def test_the_kernel_of_an_optimizer_of_the_host_touches_no_bytes() -> None:
    # given tensors of the host, whose bytes are not there from 1 MiB on
    with VirtualDevice(H100, steps=None) as device:
        from deepspeed.ops.op_builder.builder import OpBuilder  # pyright: ignore[reportMissingImports]

        kernel = OpBuilder("cpu_adam").load()
        tensors = [torch.zeros(2**18) for _ in range(4)]
        before = len(device.ledger.events)

        # when it is called as DeepSpeedCPUAdam does
        kernel.create_adam(0, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
        kernel.adam_update(0, 1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, *tensors)
        kernel.destroy_adam(0)

        # then nothing is allocated, and it is said
        assert len(device.ledger.events) == before
        assert [name for kind, name in device.ledger.remarks if kind == "unsupported" and "adam_update" in name]


@pytest.mark.usefixtures("builder")
def test_other_kernels_of_deepspeed_are_built_as_ever() -> None:
    with VirtualDevice(H100, steps=None):
        from deepspeed.ops.op_builder.builder import OpBuilder  # pyright: ignore[reportMissingImports]

        with pytest.raises(RuntimeError, match="nvcc"):
            OpBuilder("fused_lamb").load()
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        del sys.modules[name]
