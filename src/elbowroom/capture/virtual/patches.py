"""What Python says of torch.cuda while a virtual device is on, and the few functions that ask C++ for devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, final

import torch

from elbowroom.capture.virtual import attributes, factories, flex, generators, pickling, replicas, types
from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.settings import Settings
from elbowroom.capture.virtual.tensor import CUDA, LARGE_BYTES, is_real_host
from elbowroom.capture.virtual.values import as_virtual_cpu
from elbowroom.runtime._torch_compat import grouping_changes, single_process_iterator

Change = tuple[Any, str, Any]


@contextmanager
def patched(changes: list[Change]) -> Iterator[None]:
    """Set attributes, and put the old ones back at the end."""
    before: list[tuple[Any, str, Any, bool]] = []
    try:
        for holder, name, value in changes:
            own = name in vars(holder)
            before.append((holder, name, getattr(holder, name, None), own))
            setattr(holder, name, value)
        yield
    finally:
        for holder, name, value, own in reversed(before):
            if own:
                setattr(holder, name, value)
            else:
                delattr(holder, name)


@final
class _Event:
    """A CUDA event of a device on which everything is over at once."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def record(self, _stream: Any = None) -> None: ...

    def wait(self, _stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _end: Any) -> float:
        return 1.0


@final
class _Stream:
    """The one stream there is."""

    device = CUDA
    device_index = 0
    stream_id = 0
    cuda_stream = 0

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_problem: object) -> None: ...

    def wait_stream(self, _stream: Any) -> None: ...

    def wait_event(self, _event: Any) -> None: ...

    def record_event(self, _event: Any = None) -> _Event:
        return _Event()

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False


@contextmanager
def _nothing(*_args: Any, **_kwargs: Any) -> Iterator[None]:
    yield


def _say(value: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: value


class _Properties(SimpleNamespace):
    """What `torch.cuda.get_device_properties` gives; notes when the script looks at what tells GPUs of a kind apart."""

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        major, minor = divmod(settings.facts.compute_capability, 10)
        super().__init__(
            major=major,
            minor=minor,
            multi_processor_count=settings.facts.multiprocessors,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536,
            is_integrated=0,
            is_multi_gpu_board=0,
            gcnArchName="",
            L2_cache_size=50 * 2**20,
            shared_memory_per_block=48 * 1024,
            shared_memory_per_block_optin=227 * 1024,
            uuid="",
        )
        self._settings, self._ledger = settings, ledger

    @property
    def name(self) -> str:
        self._ledger.asked.add("name")
        return self._settings.name

    @property
    def total_memory(self) -> int:
        self._ledger.asked.add("memory")
        return self._settings.total_bytes


def _memory(settings: Settings, ledger: Ledger) -> list[Change]:
    def free_and_total(*_args: Any) -> tuple[int, int]:
        ledger.asked.add("memory")
        return max(settings.total_bytes - ledger.allocated_bytes, 0), settings.total_bytes

    def statistics(*_args: Any, **_kwargs: Any) -> dict[str, int]:
        now = {f"{kind}_bytes.all.current": ledger.allocated_bytes for kind in ("allocated", "reserved", "active")}
        peak = {f"{kind}_bytes.all.peak": ledger.peak_bytes for kind in ("allocated", "reserved", "active")}
        return {**now, **peak, "num_alloc_retries": 0, "num_ooms": 0}

    def reset(*_args: Any, **_kwargs: Any) -> None:
        ledger.peak_bytes = ledger.allocated_bytes

    now, peak = (lambda *_: ledger.allocated_bytes), (lambda *_: ledger.peak_bytes)
    held: dict[str, Any] = {
        "mem_get_info": free_and_total,
        "memory_allocated": now,
        "memory_reserved": now,
        "memory_cached": now,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "max_memory_cached": peak,
        "memory_stats": statistics,
        "memory_summary": _say(""),
        "reset_peak_memory_stats": reset,
        "reset_max_memory_allocated": reset,
        "empty_cache": _say(None),
        "set_per_process_memory_fraction": _say(None),
    }
    return [(holder, name, value) for name, value in held.items() for holder in (torch.cuda, torch.cuda.memory)]


def _queries(settings: Settings, ledger: Ledger) -> list[Change]:
    properties = _Properties(settings, ledger)
    said: dict[str, Any] = {
        "is_available": _say(True),
        "is_initialized": _say(True),
        "is_bf16_supported": _say(settings.facts.compute_capability >= 80),
        "device_count": _say(1),
        "current_device": _say(0),
        "get_device_name": lambda *_args, **_kwargs: properties.name,
        "get_device_capability": _say(divmod(settings.facts.compute_capability, 10)),
        "get_device_properties": _say(properties),
        "get_arch_list": _say([f"sm_{settings.facts.compute_capability}"]),
        "can_device_access_peer": _say(False),
        "init": _say(None),
        "_lazy_init": _say(None),
        "set_device": _say(None),
        "synchronize": _say(None),
        "ipc_collect": _say(None),
        "utilization": _say(100),
    }
    random = _random()
    changes: list[Change] = [(torch.cuda, name, value) for name, value in (said | _streams() | random).items()]
    changes += [(torch.cuda.random, name, value) for name, value in random.items() if name in vars(torch.cuda.random)]
    return changes + _accelerator()


def _random() -> dict[str, Any]:
    return {
        "manual_seed": _say(None),
        "manual_seed_all": _say(None),
        "seed": _say(None),
        "seed_all": _say(None),
        "initial_seed": _say(0),
        "get_rng_state": _say(torch.zeros(16, dtype=torch.uint8)),
        "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8)],
        "set_rng_state": _say(None),
        "set_rng_state_all": _say(None),
    }


def _streams() -> dict[str, Any]:
    return {
        "Event": _Event,
        "Stream": _Stream,
        "is_current_stream_capturing": _say(False),
        "current_stream": lambda *_: _Stream(),
        "default_stream": lambda *_: _Stream(),
        "set_stream": _say(None),
        "stream": _nothing,
        "device": _nothing,
        "device_of": _nothing,
    }


def _accelerator() -> list[Change]:
    said: dict[str, Any] = {
        "is_available": _say(True),
        "current_accelerator": _say(torch.device("cuda")),
        "device_count": _say(1),
        "current_device_index": _say(0),
        "current_device_idx": _say(0),
        "current_stream": lambda *_: _Stream(),
        "synchronize": _say(None),
    }
    return [(torch.accelerator, name, value) for name, value in said.items()]


def _grouped(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
    """torch's grouping of optimizer tensors by device and dtype, whose C++ would see meta tensors."""
    groups: dict[Any, Any] = {}
    for index, first in enumerate(lists[0]):
        made = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for column, values in zip(made[0], lists, strict=True):
            if values:
                column.append(values[index])
        made[1].append(index)
    return groups if with_indices else {key: (columns, []) for key, (columns, _) in groups.items()}


def _loading() -> list[Change]:
    """DataLoaders stay in this process, where no worker could inherit half a device; pinning is a no-op."""
    from torch.utils.data import DataLoader

    def iterate(self: Any) -> Any:
        held = {name: vars(self).get(name) for name in ("num_workers", "prefetch_factor", "timeout", "pin_memory")}
        vars(self).update(num_workers=0, prefetch_factor=None, timeout=0, pin_memory=False)
        try:
            return single_process_iterator(self)
        finally:
            vars(self).update(held)

    return [
        (DataLoader, "_get_iterator", iterate),
        (torch.Tensor, "pin_memory", lambda self, device=None: self),
        (torch.Tensor, "is_pinned", lambda self, device=None: False),
    ]


def _parameters() -> list[Change]:
    """Large parameters made on the CPU have no bytes."""
    made = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (torch.Tensor, torch.nn.Parameter) and is_real_host(data) and data.nbytes >= LARGE_BYTES:
            data = as_virtual_cpu(data)
        return made(cls, data, requires_grad)

    return [(torch.nn.Parameter, "__new__", staticmethod(new))]


def _flattens(tensor: torch.Tensor) -> bool:
    """Python's check leaves bfloat16 out, C++'s does not: such RNN weights are copied together at each forward."""
    return tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES


COMPILED = "torch.compile (as eager, which holds as much or more; pools of CUDA graphs are not counted)"


def _uncompiled(ledger: Ledger) -> list[Change]:
    """torch.compile gives back what it is given: what its kernels allocate is not followed, which a remark says.

    A module knows itself as the original of what was compiled of it, as scripts ask for that.
    """

    def compile_not(model: Any = None, **_options: Any) -> Any:
        ledger.remark("unsupported", COMPILED)
        if isinstance(model, torch.nn.Module):
            vars(model)["_orig_mod"] = model
        return (lambda decorated: compile_not(decorated)) if model is None else model

    def compile_itself(self: torch.nn.Module, *_args: Any, **_options: Any) -> None:
        compile_not(self)

    return [
        (torch, "compile", compile_not),
        (torch.nn.Module, "compile", compile_itself),
        (torch.compiler, "cudagraph_mark_step_begin", _say(None)),
    ]


def changes(settings: Settings, ledger: Ledger) -> list[Change]:
    """Everything that is changed while the device is on."""
    from torch.backends.cudnn import rnn

    found: list[Change] = [*_queries(settings, ledger), *_memory(settings, ledger), *_loading()]
    if settings.fake_host:
        found += _parameters()
    cudnn: dict[str, Any] = {"is_acceptable": _flattens, "is_available": _say(True), "version": _say(91900)}
    found += [(torch.backends.cudnn, name, value) for name, value in cudnn.items()]
    modes = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
    found.append((rnn, "get_cudnn_mode", modes.__getitem__))
    found += [*_uncompiled(ledger), *replicas.changes(ledger), *flex.changes(ledger)]
    found.append((torch, "_use_cudnn_rnn_flatten_weight", _say(True)))
    found.append((torch._C, "_cuda_getCurrentRawStream", _say(0)))  # asked for as bitsandbytes is imported
    found += generators.changes()
    found += [*attributes.changes(), *types.changes(), *factories.changes(), *grouping_changes(_grouped)]
    found += pickling.changes(ledger)
    return found
