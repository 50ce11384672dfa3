"""Patches: changes of torch.cuda while a virtual device is on, and of the few functions that ask C++ for devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from elbowroom.capture.virtual import wrappers
from elbowroom.capture.virtual.compilers import scripted
from elbowroom.capture.virtual.host_values.values import as_virtual_cpu
from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.ops import compressed, flex, nested, sparse
from elbowroom.capture.virtual.tensor import is_real_floats, is_real_host, is_virtual
from elbowroom.capture.virtual.torch_cuda import (
    attributes,
    cuda_build,
    cuda_streams,
    dlpack,
    factories,
    generators,
    graphs,
    pickling,
    processes,
    replicas,
    storage_methods,
    types,
    unmanaged,
)
from elbowroom.capture.virtual.torch_cuda.cuda_build import say
from elbowroom.capture.virtual.torch_cuda.library_settings import ModelledDevice
from elbowroom.torch_compat.core import grouping_changes, variable_functions
from elbowroom.torch_compat.data_loader import LoaderHere
from elbowroom.torch_compat.device_modules import scripted_as

Change = tuple[Any, str, Any]


@contextmanager
def patched(changes: list[Change]) -> Iterator[None]:
    """Set attributes, and put the old ones back at the end."""
    before: list[tuple[Any, str, Any, bool]] = []
    with scripted_as([(value, getattr(holder, name, None)) for holder, name, value in changes]):
        try:
            for holder, name, value in changes:
                own = name in vars(holder)
                before.append((holder, name, getattr(holder, name, None), own))
                setattr(holder, name, value)
            yield
        finally:
            _put_back(before)


def _put_back(before: list[tuple[Any, str, Any, bool]]) -> None:
    for holder, name, value, own in reversed(before):
        if own:
            setattr(holder, name, value)
        else:
            delattr(holder, name)


def _grouped(lists: Any, with_indices: bool = False) -> dict[Any, Any]:
    """Group optimizer tensors by device and dtype; torch's own C++ would see meta tensors."""
    groups: dict[Any, Any] = {}
    for index, first in enumerate(lists[0]):
        made = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for column, values in zip(made[0], lists, strict=True):
            if values:
                column.append(values[index])
        made[1].append(index)
    return groups if with_indices else {key: (columns, []) for key, (columns, _) in groups.items()}


def _loading() -> list[Change]:
    """Return the changes that keep DataLoaders in this process, as a worker would inherit half a device."""
    from torch.utils.data import DataLoader

    def iterate(self: Any) -> Any:
        held = {name: vars(self).get(name) for name in ("num_workers", "prefetch_factor", "timeout")}
        vars(self).update(num_workers=0, prefetch_factor=None, timeout=0)
        try:
            return LoaderHere(self, works=bool(held["num_workers"]))
        finally:
            vars(self).update(held)

    return [(DataLoader, "_get_iterator", iterate)]


def _parameters() -> list[Change]:
    """Return the changes by which parameters made on the CPU have no bytes, as inputs and their gradients have none.

    The values of small ones are known, and drawn from the script's own generator.
    """
    made = torch.nn.Parameter.__new__

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if is_real_floats(data):
            data = as_virtual_cpu(data)
        return made(cls, data, requires_grad)

    return [(torch.nn.Parameter, "__new__", staticmethod(new))]


def _recurrent() -> list[Change]:
    """Return the changes of recurrent networks on the host, whose C++ compares devices of inputs and weights itself."""

    def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            lists = [each for each in args if isinstance(each, list | tuple)]
            if any(map(is_virtual, [weight for each in lists for weight in each])):
                args = tuple(map(_without_bytes, args))
            return function(*args)

        return run

    functions = variable_functions()
    names = ("lstm", "gru", "rnn_tanh", "rnn_relu")
    return [(functions, name, on_host(getattr(functions, name))) for name in names]


def _without_bytes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return as_virtual_cpu(value) if value.is_floating_point() and is_real_host(value) else value
    return [_without_bytes(each) for each in value] if isinstance(value, list | tuple) else value


def _flattens(tensor: torch.Tensor) -> bool:
    """Return whether torch flattens a weight: Python's check excludes bfloat16, so such RNN weights are copied."""
    return tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES


def _profiling() -> Callable[..., None]:
    """Limit torch's profiler to the host: a build for the CPU has no events of cuda, and warns at each op."""
    begin = torch.autograd.profiler.profile.__init__

    def init(self: Any, *args: Any, **how: Any) -> None:
        begin(self, *args, **how | {"use_device": None})

    return init


def _of_tensors(ledger: Ledger) -> list[Change]:
    """Return the changes of what Python asks of tensors without bytes, whatever device they are on."""
    return [
        *attributes.changes(),
        *wrappers.changes(),
        *dlpack.changes(),
        *storage_methods.changes(ledger),
        *factories.changes(),
        *grouping_changes(_grouped),
        *pickling.changes(ledger),
        *scripted.changes(ledger),
        *unmanaged.changes(ledger),
        *processes.changes(ledger),
        *_loading(),
    ]


def _of_cuda(settings: ModelledDevice, ledger: Ledger) -> list[Change]:
    """Return the changes of torch.cuda and of what works for tensors on cuda alone."""
    from torch.backends.cudnn import rnn

    found: list[Change] = [*cuda_build.changes(settings, ledger), *cuda_streams.changes()]
    cudnn: dict[str, Any] = {"is_acceptable": _flattens, "is_available": say(True), "version": say(91900)}
    found += [(torch.backends.cudnn, name, value) for name, value in cudnn.items()]
    modes = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}
    found.append((rnn, "get_cudnn_mode", modes.__getitem__))
    found.append((torch.compiler, "cudagraph_mark_step_begin", say(None)))
    found += [*replicas.changes(ledger), *flex.changes(ledger)]
    found.append((torch, "_use_cudnn_rnn_flatten_weight", say(True)))
    found.append((torch.autograd.profiler.profile, "__init__", _profiling()))
    found += [*generators.changes(settings.gpus), *types.changes(), *nested.changes(), *graphs.changes(ledger)]
    found.append((torch, "sparse_coo_tensor", sparse.on_device(torch.sparse_coo_tensor)))
    found += compressed.changes()
    return found


def changes(settings: ModelledDevice, ledger: Ledger) -> list[Change]:
    """Return all changes while the device is on."""
    found = _of_tensors(ledger)
    if settings.fake_host:
        found += [*_parameters(), *_recurrent()]
    return found if settings.ram else [*found, *_of_cuda(settings, ledger)]
