"""Scripted: TorchScript and torch.export on the virtual device: tracing, and modules in files.

C++ writes a virtual tensor as one on "meta", without bytes. So a file gets one more record: the parameters and buffers
as `torch.save` writes them. A load puts them in their places. Constants of the code are made on the GPU.
"""

from __future__ import annotations

import functools
import io
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.tensor import CUDA, AsMeta, is_real_host, is_virtual, meta_like, virtual
from elbowroom.capture.virtual.torch_cuda.pickling import mapped
from elbowroom.torch_compat.device_modules import without_modes

Change = tuple[Any, str, Any]
RECORD = "elbowroom.tensors"
"""Name of the record in a file."""
TRACED = "torch.jit.trace (what is traced runs op by op; kernels that TorchScript fuses would allocate less)"
UNTRACED = "torch.jit.trace (this could not be traced without values: it runs as it is, has no graph, cannot be saved)"
_loading: ContextVar[bool] = ContextVar("loading", default=False)


def arrived(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a virtual tensor for one without bytes that C++ moves to "meta" while it loads a file."""
    if not _loading.get() or tensor.data_ptr() or not tensor.numel():
        return None
    return virtual(meta_like(tensor), mapped(tensor.nbytes, str(CUDA)))


def _record(module: Any) -> bytes | None:
    """Pickle the tensors of a module by name; None if no tensor is virtual or without bytes."""
    named = dict([*module.named_parameters(), *module.named_buffers()])
    held = {name: tensor.detach() for name, tensor in named.items() if is_virtual(tensor)}
    if not held and named:
        return None
    with io.BytesIO() as file:
        torch.save(held, file)
        return file.getvalue()


def _with_record(save: Callable[..., Any]) -> Callable[..., Any]:
    """Make a saving method of scripted modules that writes the record too."""

    @functools.wraps(save)
    def saved(self: Any, *args: Any, _extra_files: Any = None, **how: Any) -> Any:
        record = _record(self)
        added = {} if record is None else {RECORD: record}
        return save(self, *args, _extra_files={**(_extra_files or {}), **added}, **how)

    return saved


def _found(file: Any) -> bytes | None:
    """Return the record in a file."""
    try:
        with zipfile.ZipFile(file) as archive:
            name = next((each for each in archive.namelist() if each.endswith(f"/extra/{RECORD}")), None)
            return None if name is None else archive.read(name)
    except zipfile.BadZipFile:
        return None


def _read(f: Any) -> tuple[Any, bytes | None]:
    """Return the object that C++ loads from, and the record in it."""
    if isinstance(f, str | os.PathLike):
        if not os.path.isfile(f):
            return f, None
        with open(f, "rb") as file:
            return f, _found(file)
    content = f.read()
    return io.BytesIO(content), _found(io.BytesIO(content))


@contextmanager
def _brings() -> Iterator[None]:
    """Context in which C++ loads a file with a record."""
    before = _loading.set(True)
    try:
        yield
    finally:
        _loading.reset(before)


def _put(module: Any, held: dict[str, torch.Tensor], place: Any) -> None:
    """Give a module its tensors: those of the record, and the others moved to their device."""
    parts = dict(module.named_modules())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        path, _, attribute = name.rpartition(".")
        wanted = held.get(name)
        if wanted is None and place is not None and is_real_host(tensor):
            wanted = tensor.detach().to(mapped(tensor.nbytes, "cpu"))
        if wanted is not None:
            setattr(parts[path], attribute, wanted.requires_grad_(tensor.requires_grad))


def _loader(load: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of `torch.jit.load`."""

    @functools.wraps(load)
    def loaded(f: Any, map_location: Any = None, *args: Any, **how: Any) -> Any:
        f, record = _read(f)
        if record is None:
            return load(f, map_location, *args, **how)
        held = torch.load(io.BytesIO(record), map_location)
        with _brings():
            module = load(f, None, *args, **how)
        _put(module, held, map_location)
        return module

    return loaded


def _tracer(ledger: Ledger) -> Callable[..., Any]:
    """Make the replacement of `torch.jit.trace`: a function that cannot be traced without values runs as it is."""
    trace: Any = torch.jit.trace

    @functools.wraps(trace)
    def traced(func: Any, example_inputs: Any = None, *args: Any, **how: Any) -> Any:
        given = example_inputs if isinstance(example_inputs, tuple | list) else (example_inputs,)
        if not any(map(is_virtual, given)):
            return trace(func, example_inputs, *args, **how)
        try:
            made = trace(func, example_inputs, *args, **{**how, "check_trace": False})
        except Exception:  # noqa: BLE001  a tracer may fail in any way without values
            ledger.remark("unsupported", UNTRACED)
            return func
        ledger.remark("unsupported", TRACED)
        return made

    return traced


def _exporter(export: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `torch.export.export` and the like, which make tensors of their own kind: they see tensors on "meta"."""

    @functools.wraps(export)
    def exported(*args: Any, **how: Any) -> Any:
        with AsMeta(), without_modes():
            return export(*args, **how)

    return exported


def changes(ledger: Ledger) -> list[Change]:
    """Return the changes of torch while the device is on."""
    program: Any = torch.export.ExportedProgram
    jit: Any = torch.jit
    saves = [
        (kind, name) for kind in (jit.ScriptModule, jit.RecursiveScriptModule) for name in ("save", "save_to_buffer")
    ]
    return [
        (torch.jit, "trace", _tracer(ledger)),
        (torch.jit, "load", _loader(torch.jit.load)),
        (torch.export, "export", _exporter(torch.export.export)),
        (program, "run_decompositions", _exporter(program.run_decompositions)),
        *((kind, name, _with_record(getattr(kind, name))) for kind, name in saves),
    ]
