"""For all tests that need torch: one thread, a quick start of recordings, and no complaint about a tmpfs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: the runtime and the capture need it")


def pytest_configure(config: pytest.Config) -> None:
    """A temporary directory in RAM refuses O_DIRECT, which is said once; that is not what most tests are about."""
    config.addinivalue_line("filterwarnings", "ignore:elbowroom. the file system of:RuntimeWarning")


@pytest.fixture(scope="session", autouse=True)
def quick_recordings() -> Iterator[None]:
    """Put what imports made out of the garbage collector's sight: every recording looks through all that is in it."""
    from tests.torch.helpers import mlp, ordinary, train_within

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train_within(lambda: ordinary(mlp(), torch.randn(64, 64)))  # what a first run imports
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def plans_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no clock decides which step is the first to follow one, but in tests/torch/test_planning_beside.py."""
    from elbowroom.run import background_planning as beside

    monkeypatch.setattr(beside, "PATIENCE_S", 600.0)


@pytest.fixture(autouse=True)
def compiled_code_is_forgotten() -> Iterator[None]:
    """Parameters stay in a process that has compiled code: the next test is not such a process."""
    from elbowroom.torch_compat.op_calls import has_compiled

    yield
    if has_compiled():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
