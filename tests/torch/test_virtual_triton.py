"""Triton's kernels: launches are passed over; what they read and change is noted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _triton

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.capture.virtual.compilers.triton_kernels import L2_BYTES, SAID, stored_through
from tests.torch.virtual_gpu import H100

tl: Any = None


def scaled(X: Any, Y: Any, rows: Any, BLOCK: Any) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    into = Y + at
    tl.store(into, tl.load(X + at, mask=at < rows) * 2, mask=at < rows)


def gathered(X: Any, places: Any, Y: Any) -> None:
    place = tl.load(places + tl.program_id(0))
    tl.store(Y + place, tl.load(X + place))


def summed(X: Any, total: Any) -> None:
    tl.atomic_add(total, tl.sum(tl.load(X + tl.arange(0, 8))))


def through_another(X: Any, Y: Any) -> None:
    scaled(X, Y, 8, 8)


@pytest.mark.parametrize(
    ("kernel", "pointers", "expected"),
    [
        (scaled, {"X", "Y"}, {"Y"}),
        (gathered, {"X", "places", "Y"}, {"Y"}),
        (summed, {"X", "total"}, {"total"}),
        (through_another, {"X", "Y"}, {"X", "Y"}),
    ],
)
def test_a_kernel_writes_through_what_its_stores_are_made_of(kernel: Any, pointers: Any, expected: Any) -> None:
    stored = stored_through(kernel)
    assert stored is not None
    assert stored & pointers == expected


def test_a_kernel_without_source_may_write_through_anything() -> None:
    assert stored_through(len) is None


LIKE_TRITON = {
    "__init__.py": "",
    "run/__init__.py": "",
    "runtime/jit.py": """
class JITFunction:
    def __init__(self, fn):
        self.fn = fn
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(grid=grid, warmup=False, *args, **kwargs)
    def run(self, *args, grid, warmup, **kwargs):
        raise RuntimeError("0 active drivers")
""",
    "runtime/driver.py": """
class Config:
    _active = None
    @property
    def active(self):
        if self._active is None:
            raise RuntimeError("0 active drivers")
        return self._active
driver = Config()
""",
    "testing.py": """
def do_bench(fn, quantiles=None):
    raise RuntimeError("0 active drivers")
""",
}
"""The parts of Triton that a launch passes through."""


def forget_triton() -> dict[str, Any]:
    """Take Triton's modules away, and what torch remembers of whether it is there."""
    for function in vars(_triton).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "triton"}


@pytest.fixture
def like_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    real = forget_triton()
    for name, text in LIKE_TRITON.items():
        file = tmp_path / "triton" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget_triton()  # torch would take the rest of it for the real one
    sys.modules.update(real)


@pytest.mark.usefixtures("like_triton")
def test_a_launch_is_noted_and_not_made() -> None:
    # given a kernel of a module that is imported when the device is on already
    with VirtualDevice(H100, steps=None) as device:
        from triton.runtime import jit  # pyright: ignore[reportMissingImports]

        kernel = jit.JITFunction(scaled)
        counts = torch.tensor([1, 2, 3]).cuda()
        x, y = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
        before = device.ledger.allocated_bytes
        # when it is launched
        kernel[(1,)](x, y, 8, BLOCK=8)
        kernel[(1,)](counts, Y=y, rows=8, BLOCK=8)
        # then the op reads both and changes one, nothing is allocated, and only what changed is not known any more
        line = device.ledger.ops[-2]
        assert (line.name, len(line.reads), len(line.writes)) == ("triton.scaled", 2, 1)
        assert line.writes == device.ledger.numbers_of([y])
        assert line.moved_bytes == 3 * 8 * 4
        assert device.ledger.allocated_bytes == before
        assert x.sum().item() == 8.0
        assert counts.tolist() == [1, 2, 3]
        assert not device._mode.values.is_certain(y)
    assert device.ledger.remarks["unsupported", SAID.format("scaled")] == 2
    with pytest.raises(RuntimeError, match="0 active drivers"):
        kernel[(1,)](torch.ones(8), torch.ones(8), 8, BLOCK=8)


@pytest.mark.usefixtures("like_triton")
def test_trials_hold_what_clears_the_cache_of_the_gpu() -> None:
    from triton import testing  # pyright: ignore[reportMissingImports]
    from triton.runtime import driver  # pyright: ignore[reportMissingImports]

    with VirtualDevice(H100, steps=None) as device:
        launched: list[int] = []
        assert testing.do_bench(lambda: launched.append(1), quantiles=(0.5, 0.2, 0.8)) == [1.0, 1.0, 1.0]
        assert launched
        assert device.ledger.peak_bytes == L2_BYTES
        told = driver.driver.active.utils.get_device_properties(0)
        assert (told["multiprocessor_count"], told["max_shared_mem"]) == (132, 232448)
        assert driver.driver.active.get_device_capability(0) == (9, 0)
    with pytest.raises(RuntimeError, match="0 active drivers"):
        testing.do_bench(lambda: None)
    with pytest.raises(RuntimeError, match="0 active drivers"):
        driver.driver.active.get_current_device()
