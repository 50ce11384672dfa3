"""Paged optimizer states: managed memory, of which an estimate says how much there is."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.capture.virtual.torch_cuda.paged import SAID
from tests.torch.virtual_gpu import H100


def asks_the_library(*_: Any, **_how: Any) -> Any:
    raise RuntimeError("Missing dependency: libcublas.so.13")


def test_paged_states_are_told_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("bitsandbytes.functional")
    module.get_paged = module.prefetch_tensor = module.elementwise_func = asks_the_library
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", module)

    with VirtualDevice(H100, None) as device:
        weights = torch.zeros(1024, 1024, device="cuda")
        states = [module.get_paged(1024, 1024, dtype=torch.uint8, device=weights.device) for _ in range(2)]
        module.elementwise_func("fill", states[0], None, 0)
        module.prefetch_tensor(states[0])
        assert torch.cuda.memory_allocated() == weights.nbytes

    assert [(each.is_paged, each.page_deviceid, each.device.type) for each in states] == [(True, 0, "cpu")] * 2
    assert device.ledger.remarks == {("unsupported", SAID.format("2.0 MiB")): 1}
    with pytest.raises(RuntimeError, match="libcublas"):
        module.get_paged(1)
