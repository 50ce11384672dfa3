"""Loaders of transformers, accelerate and diffusers in a run: nothing has the whole model, and nothing is left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.engine.hub_loading import NAMES, ONE_BY_ONE, HubLoading
from elbowroom.engine.storages import RAW_STORAGE

FREE = {0: 10, "cpu": 90}
WITH_HOST = {0: 100, "cpu": 0}


def nothing(_parameter: nn.Parameter) -> None: ...


def free_memory(max_memory: dict[Any, int] | None = None) -> dict[Any, int]:
    """What accelerate's function of that name gives: what is free, or what was given."""
    return dict(FREE if max_memory is None else max_memory)


def put(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Put a parameter past the module's methods, as accelerate does."""
    path, _, last = name.rpartition(".")
    module.get_submodule(path)._parameters[last] = nn.Parameter(value)


def read(checkpoint_file: str, device_map: Any = None) -> tuple[str, Any]:
    """What accelerate reads, and where to."""
    return checkpoint_file, device_map


FUNCTIONS: dict[str, Any] = {"set_module_tensor_to_device": put, "load_state_dict": read}


@pytest.fixture(autouse=True)
def _without_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(ONE_BY_ONE, raising=False)
    for name, _ in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    assert ONE_BY_ONE not in os.environ


def imported(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules with the names and functions of these libraries, as if a script had imported them just now."""
    found: dict[str, Any] = {module: ModuleType(module) for module, _ in NAMES}
    for module, name in NAMES:
        setattr(found[module], name, FUNCTIONS.get(name, free_memory))
        monkeypatch.setitem(sys.modules, module, found[module])
    return found


def test_a_device_of_its_own_counts_what_the_host_has_and_no_block_is_taken_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given one GPU, and libraries that are imported once the run is open
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    loading = HubLoading(nothing)
    libraries = imported(monkeypatch)
    # when
    loading.look()
    # then the whole model goes to the device, one parameter after the other, and what a script says counts
    assert libraries["transformers.integrations.accelerate"].accelerate_max_memory() == WITH_HOST
    assert libraries["accelerate.utils.modeling"].get_max_memory() == WITH_HOST
    assert libraries["accelerate.utils.modeling"].get_max_memory({0: 5, "cpu": 7}) == {0: 5, "cpu": 7}
    assert libraries["transformers.modeling_utils"].caching_allocator_warmup("model", {}, None) is None
    assert libraries["accelerate.utils.modeling"].load_state_dict("weights", device_map={"": 0}) == ("weights", None)
    assert os.environ[ONE_BY_ONE] == "1"
    # and all is as before once the run has ended
    loading.close()
    assert all(getattr(libraries[module], name) is FUNCTIONS.get(name, free_memory) for module, name in NAMES)


def test_what_is_put_past_the_methods_of_modules_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    seen: list[nn.Parameter] = []
    libraries = imported(monkeypatch)
    loading = HubLoading(seen.append)
    model = nn.Sequential(nn.Linear(2, 2))
    # when
    libraries["accelerate.utils.modeling"].set_module_tensor_to_device(model, "0.weight", torch.ones(2, 2))
    loading.close()
    # then
    assert [id(each) for each in seen] == [id(model[0].weight)]


def test_parameters_that_accelerate_puts_leave_as_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model without bytes, and a run
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    weights = {f"{n}.weight": torch.full((64, 64), float(n)) for n in range(4)}
    libraries = imported(monkeypatch)
    with er.within("1GiB", device="cpu", allow=("swap", "state", "parameter"), min_size=1024):
        # when
        for name in list(weights):
            put_by_them = libraries["accelerate.utils.modeling"].set_module_tensor_to_device
            put_by_them(model, name, weights.pop(name))
        # then only the last one has its bytes there
        empty = [RAW_STORAGE(each).nbytes() == 0 for each in model.parameters()]
        assert empty == [True, True, True, False]
        assert [each.mean().item() for each in model.parameters()] == [0.0, 1.0, 2.0, 3.0]


def test_several_devices_get_what_each_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    libraries = imported(monkeypatch)
    loading = HubLoading(nothing)
    assert libraries["accelerate.utils.modeling"].get_max_memory() == FREE
    loading.close()


def test_what_others_have_set_stays_when_the_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a script that loads one by one anyway, and replaces a function while the run is open
    libraries = imported(monkeypatch)
    monkeypatch.setenv(ONE_BY_ONE, "true")
    loading = HubLoading(nothing)
    libraries["accelerate.utils.modeling"].get_max_memory = sorted
    # when
    loading.close()
    # then
    assert libraries["accelerate.utils.modeling"].get_max_memory is sorted
    assert os.environ[ONE_BY_ONE] == "true"
    monkeypatch.delenv(ONE_BY_ONE)


def test_a_run_that_moves_parameters_has_them_load_so_from_the_first_module_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with er.within("1GiB", device="cpu", allow=("swap", "parameter")):
        libraries = imported(monkeypatch)
        nn.Linear(2, 2)  # a script makes its model before weights are loaded
        assert libraries["transformers.modeling_utils"].caching_allocator_warmup is not free_memory
    assert libraries["transformers.modeling_utils"].caching_allocator_warmup is free_memory


def test_a_run_that_moves_none_leaves_them_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with er.within("1GiB", device="cpu"):
        libraries = imported(monkeypatch)
        nn.Linear(2, 2)
        assert libraries["transformers.modeling_utils"].caching_allocator_warmup is free_memory
        assert ONE_BY_ONE not in os.environ
