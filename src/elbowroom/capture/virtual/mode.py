"""Mode: the dispatch mode of the virtual device; every op passes here, below autograd and autocast.

An op on virtual tensors runs its meta kernel, which gives shapes, strides and dtypes. The ledger notes the allocations
of the CUDA build. An op on real CPU tensors runs unchanged, so data pipelines keep their values.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

import torch

from elbowroom.capture.durations.compute_types import compute_type
from elbowroom.capture.durations.op_line import OpLine
from elbowroom.capture.virtual.host_values.known_values import KnownValues
from elbowroom.capture.virtual.host_values.plausible import Plausible
from elbowroom.capture.virtual.host_values.values import give_up_bytes
from elbowroom.capture.virtual.ledger import Ledger
from elbowroom.capture.virtual.ops import collectives, compressed, dependent_shapes, kernels, unknown_ops
from elbowroom.capture.virtual.ops.compared import Compared
from elbowroom.capture.virtual.ops.effects import (
    bytes_of,
    changed,
    described,
    effects_of,
    moved_bytes,
    takes_tensors,
)
from elbowroom.capture.virtual.ops.shapes import Shapes
from elbowroom.capture.virtual.ops.sparse import is_compressed
from elbowroom.capture.virtual.saves import Saves
from elbowroom.capture.virtual.scratch_memory import scratch
from elbowroom.capture.virtual.tensor import (
    CPU,
    CUDA,
    LARGE_BYTES,
    META,
    AsMeta,
    Inside,
    home_of,
    is_virtual,
    meta_like,
    plain,
    virtual,
)
from elbowroom.capture.virtual.torch_cuda.factories import META_ASKED
from elbowroom.capture.virtual.torch_cuda.library_settings import ModelledDevice
from elbowroom.capture.virtual.torch_cuda.storage_methods import pinned
from elbowroom.capture.virtual.updates import BackwardUpdates
from elbowroom.torch_compat.core import (
    DispatchMode,
    backward_code,
    decomposition_of,
    fakes_tensors,
    has_kernel_for,
    in_backward,
    in_place_list_ops,
    next_node_number,
    node_number,
    views,
    with_kernel_of_all,
)
from elbowroom.torch_compat.device_modules import is_traced, traceable, untraced
from elbowroom.torch_compat.operators import reads_bytes
from elbowroom.torch_compat.subclasses import adds_no_dispatch
from elbowroom.trace import Phase

aten: Any = torch.ops.aten
FACTORIES = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
    aten.rand.default,
    aten.randn.default,
}
MADE_OF_OPS = {
    aten.affine_grid_generator.default,
    aten.affine_grid_generator_backward.default,
    aten._pack_padded_sequence.default,
    aten._pack_padded_sequence_backward.default,
    aten._pad_packed_sequence.default,
}
"""Ops whose one kernel for all devices calls other ops; these are noted as on CUDA."""

DRAWN_IN_PLACE = {aten.uniform_.default, aten.normal_.default, aten.bernoulli_.float, aten.exponential_.default}
"""Ops that leave a tensor's shape, and ask C++ for a cuda device where torch makes shapes of fake tensors."""

BY_NAME = dependent_shapes.BY_NAME | collectives.BY_NAME
"""Ops of other libraries that have a replacement."""

GROWS = ("aten.resize_", "aten.resize_as_")
"""Ops that may give a tensor's storage another size."""

Special = Callable[["VirtualMode", Any, tuple[Any, ...], dict[str, Any]], Any]


@final
class VirtualMode(DispatchMode):
    """Mode that runs ops without bytes and keeps the ledger.

    Args:
        ledger: where everything is noted.
        settings: the device.
        specials: replacements of ops.
        routes: composite ops whose CUDA variant differs, by name; used if autograd has not decomposed them.
    """

    def __init__(
        self,
        ledger: Ledger,
        settings: ModelledDevice,
        specials: Mapping[Any, Special],
        routes: Mapping[Any, Callable[..., Any]],
    ) -> None:
        super().__init__()
        self.ledger = ledger
        self.settings = settings
        self.path = ""
        self.optimizing = False
        self.off = False
        self.saves: Saves | None = None
        self.updates: BackwardUpdates | None = None
        self.made_once: set[str] = set()
        self.phase_outside: Phase = "forward"
        self._specials = specials
        self._routes = routes
        self._composite: dict[Any, bool] = {}
        self._quiet = 0
        self._passed_on: Any = None
        self._of_wrapper = False
        self._lock = threading.RLock()
        self.sole_uses = 0
        self.watch_adds: Callable[[int], None] | None = None
        self._path_of_node: dict[int, str] = {}
        self._backward_code = backward_code()
        self._nothing_back = in_place_list_ops()
        self._shapes = Shapes()
        self._kernels = kernels.of(settings)
        self._settled = views()
        self._blas = scratch.BlasWorkspaces(settings)
        self._compared = Compared()
        self._taken_apart: set[Any] = set()
        self.plausible = Plausible()
        self.values = KnownValues(self.plausible)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given: dict[str, Any] = kwargs or {}
        if self.off:
            return func(*args, **given)
        if is_traced():
            return self._traced(func, types, args, given)
        if fakes_tensors():
            if func in DRAWN_IN_PLACE:
                return args[0]
            with AsMeta():
                return func(*args, **given)
        if types and not all(map(adds_no_dispatch, types)):
            self._passed_on = func
            return NotImplemented  # Note: [Wrappers] in wrappers.py
        self._of_wrapper, self._passed_on = self._passed_on is func, None
        if args and isinstance(args[0], int | float):
            args = _with_tensors(func, args)
        special = self._specials.get(func)
        if special is None and func.namespace != "aten":
            special = BY_NAME.get(func.name())
        if special is not None:
            return special(self, func, args, given)
        return self.run(func, args, given)

    def _traced(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an op that torch.jit.trace has noted; it notes a convolution later, by the name of its kernels."""
        if func is aten.convolution.default:
            with self, traceable():
                return aten._convolution.default(*args, False, False, True, True)
        with untraced():
            return self.__torch_dispatch__(func, types, args, kwargs)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one op: really, or without bytes."""
        home = self._home(func, args, kwargs)
        if home is None:
            locked = kwargs.pop("pin_memory", None)
            return pinned(func(*args, **kwargs)) if locked else func(*args, **kwargs)
        if home is META:
            with Inside():
                return func(*args, **kwargs)
        with self._lock:
            if self.settings.ram:
                self._without_bytes(func, args, kwargs)
            if self._is_composite(func):
                with self:
                    return self._routes.get(func, func.decompose)(*args, **kwargs)
            if func in MADE_OF_OPS:
                with self:
                    return with_kernel_of_all(func, args, kwargs)
            made = self.note(func, args, kwargs, self._compute(func, args, kwargs, home))
            if kwargs.get("pin_memory"):
                pinned(made)
            if func not in self._taken_apart:
                self.values.follow(func, args, kwargs, made, self.path)
            return made

    def _without_bytes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the bytes from tensors that an op is about to change by others that have none, as sums of losses."""
        for target in changed(effects_of(func), args, kwargs):
            give_up_bytes(target)

    def forked(self) -> None:
        """Give what is made on the host its bytes: a worker that reads data makes the values of its batches."""
        self.settings = replace(self.settings, fake_host=False)

    def item(self, tensor: torch.Tensor) -> Any:
        """Return the number in a tensor for C++ that bypasses modes, as `torch.tensor([x, y])` of cuda tensors does."""
        return self.__torch_dispatch__(torch.ops.aten._local_scalar_dense.default, (), (tensor,))

    # Where it runs

    def _home(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
        """Return the device of an op's results; None for an op that really runs on the host."""
        wanted = kwargs.get("device") or _among(args)
        if wanted is not None and wanted.type == "meta" and META_ASKED.depth:
            return META if any(map(is_virtual, tensors_in(args, kwargs))) else None
        if wanted is not None and wanted.type == "meta" and (self.settings.ram or not self.ledger.peak_bytes):
            return CPU  # C++ refers to the device of a virtual tensor, and no tensor has been on cuda so far
        if wanted is not None and wanted.type != "cpu":
            return None if self.settings.ram else CUDA  # where there is none, torch says so
        homes = {home for tensor in tensors_in(args, kwargs) if (home := home_of(tensor)) is not None}
        if homes:
            return CPU if wanted is not None or CUDA not in homes else CUDA
        return CPU if self.settings.fake_host and func in FACTORIES and _is_large(args, kwargs) else None

    def _is_composite(self, func: Any) -> bool:
        known = self._composite.get(func)
        if known is None:
            taken_apart = has_kernel_for(func, "CompositeImplicitAutograd") and not has_kernel_for(func, "Meta")
            known = self._composite[func] = taken_apart and func not in self._kernels
        return known

    # What it gives

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], home: torch.device) -> Any:
        if func in self._nothing_back:
            return None
        args, kwargs = _for_meta(args, kwargs)
        kernel: Any = self._kernels.get(func, func)

        def compute() -> Any:
            if func not in compressed.PLAIN and any(map(is_compressed, args)):
                raise compressed.refused(func, args)
            try:
                with Inside():
                    return kernel(*args, **kwargs)
            except RuntimeError as problem:
                if not unknown_ops.lacks_kernel(problem):
                    raise
                return self._decomposed(func, args, kwargs)

        if func in self._settled:
            return _wrapped(compute(), home)
        args = tuple(map(_plain, args))
        return _wrapped(self._shapes.make(func, args, kwargs, compute), home)

    def _decomposed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = decomposition_of(func)
        if known is None:
            outcome = self.values.computed(func, args, kwargs)
            if outcome is not None:
                self.ledger.remark("unknown_op", unknown_ops.ON_HOST.format(func))
                return _as_meta(outcome.found)
            made, said = unknown_ops.run(func, args, kwargs)
            self.ledger.remark("unknown_op", said)
            return made
        self.ledger.remark("unknown_op", str(func))
        self._taken_apart.add(func)
        self._quiet += 1
        try:
            with self:
                return known(*args, **kwargs)
        finally:
            self._quiet -= 1

    # What is noted of it

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> Any:
        """Note an op and its allocations; return its results."""
        with self._lock:
            return made if self._quiet else self._noted(func, args, kwargs, made)

    def _noted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> Any:
        ledger = self.ledger
        if self.saves is not None:
            self.saves.tick()
        backward = in_backward()
        ledger.streams.op(backward)
        path = self._path(backward)
        given = [tensor for tensor in tensors_in(args, kwargs) if self.settings.ram or is_virtual(tensor)]
        if self.settings.ram:
            ledger.met(given)
        effects = effects_of(func)
        reads = () if effects.views or not reads_bytes(_name(func)) else ledger.numbers_of(given)
        results = [made] if isinstance(made, torch.Tensor) else list(tensors_in((made,), {}))
        phase: Phase = "backward" if backward else "optimizer" if self.optimizing else self.phase_outside
        index, storages = len(ledger.ops), len(ledger.storages)
        form = self._form(func, [*given, *results])
        source_line = self._source_line(backward)
        line = OpLine(_name(func), path, phase, reads, (), form=form, source_line=source_line)
        ledger.ops.append(
            line._replace(stream=ledger.streams.current(), exchange=collectives.exchanged(ledger, func, args, given))
        )
        scratch.allocate(self, func, args, kwargs, results)
        if not effects.views:
            new = tuple(number for number in ledger.numbers_of(results) if number >= storages)
            targets = list(changed(effects, args, kwargs))
            if _name(func) in GROWS:
                ledger.grown(targets)
            written = ledger.numbers_of(targets)
            if self.updates is not None and not self.optimizing:
                self.updates.written(written)
            ledger.ops[index] = ledger.ops[index]._replace(
                writes=tuple(dict.fromkeys((*written, *new))),
                arguments=described(args, kwargs),
                dtype=compute_type(_name(func), _dtype_of(given), self.settings.facts.compute_capability),
                moved_bytes=moved_bytes(func, _name(func), given, results, args, kwargs),
            )
        return made

    def launch(self, name: str, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """Note a kernel that torch does not know: the tensors that it reads and changes; it allocates nothing."""
        with self._lock:
            if self.saves is not None:
                self.saves.tick()
            backward = in_backward()
            phase: Phase = "backward" if backward else "optimizer" if self.optimizing else self.phase_outside
            numbers = self.ledger.numbers_of(written)
            if self.updates is not None and not self.optimizing:
                self.updates.written(numbers)
            moved = sum(map(bytes_of, (*read, *written)))
            reads, dtype = self.ledger.numbers_of(read), str(read[0].dtype)[6:]
            line = OpLine(name, self._path(backward), phase, reads, numbers, dtype=dtype, moved_bytes=moved)
            line = line._replace(source_line=self._source_line(backward), stream=self.ledger.streams.current())
            self.ledger.ops.append(line)
            for tensor in written:
                self.values.drop(tensor)

    @contextmanager
    def collective(
        self,
        name: str,
        read: list[torch.Tensor],
        written: list[torch.Tensor],
        group: int | None = None,
        peer: int | None = None,
    ) -> Iterator[None]:
        """Note a collective of tensors on the GPU; the copies inside, which stand for it, are no ops.

        Args:
            name: its name.
            read: tensors that it reads.
            written: tensors that it writes.
            group: number of its communicator in the ledger.
            peer: rank in the job of the other process, if it is a message.
        """
        with self._lock:
            reads, writes = self.ledger.numbers_of(read), self.ledger.numbers_of(written)
            if not self.off and (reads or writes):
                if self.saves is not None:
                    self.saves.tick()
                backward = in_backward()
                phase: Phase = "backward" if backward else "optimizer" if self.optimizing else self.phase_outside
                line = OpLine(name, self._path(backward), phase, reads, writes)
                size_bytes = max(sum(map(bytes_of, read)), sum(map(bytes_of, written)))
                exchange = None if group is None else (group, size_bytes, peer)
                stream = self.ledger.streams.current()
                line = line._replace(source_line=self._source_line(backward), stream=stream, exchange=exchange)
                self.ledger.ops.append(line)
            self._quiet += 1
            try:
                yield
            finally:
                self._quiet -= 1

    def _form(self, func: Any, tensors: list[torch.Tensor]) -> str:
        """Return an op's form, with a remark if no such op was compared with the CUDA build."""
        form = self._compared.form(func, tensors)
        if not self._compared.has(form):
            self.ledger.remark("not_compared", form)
        return form

    def _path(self, backward: bool) -> str:
        if not backward:
            if self.path:
                self._path_of_node[next_node_number() - 1] = self.path
            return self.path
        return self.path or self._path_of_node.get(node_number(), "")

    def _source_line(self, backward: bool) -> int | None:
        """Return the number of the user's line; a forward that backward runs again has its own line."""
        lines = self.ledger.source_lines
        if not backward:
            return lines.of_forward(next_node_number() - 1)
        return lines.here() if self.path else lines.of_backward(node_number())

    def forget_nodes(self) -> None:
        """Forget the autograd nodes of a step that is over."""
        self._path_of_node.clear()
        self.ledger.source_lines.forget_nodes()
        self.ledger.streams.step()
        self.plausible.step()

    def blas(self, *, lt: bool = False) -> None:
        """Note that an op uses a cuBLAS handle, whose first use makes its workspace; by cuBLASLt if `lt`."""
        self._blas.asked(self.ledger, backward=in_backward(), lt=lt)

    def from_engine(self) -> bool:
        """Return whether the present op comes from the autograd engine itself, not from code it runs, as DTensor's."""
        if self._of_wrapper:
            return False
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_name != "__torch_dispatch__":
            frame = frame.f_back
        return frame.f_back is not None and frame.f_back.f_code is self._backward_code


def _among(args: tuple[Any, ...]) -> torch.device | None:
    """Return a device among positional arguments: in inference mode an op comes as called (`aten.to.device`)."""
    return next((each for each in args if type(each) is type(CUDA)), None)


def tensors_in(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments, those in lists included."""
    for each in args:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from tensors_in(each, {})
    for each in kwargs.values():
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from tensors_in(each, {})


def _for_meta(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments as meta kernels need them: no other device, no pinned memory, no generator, no bytes."""
    kwargs = {name: _seen_as_meta(value) for name, value in kwargs.items() if name != "pin_memory"}
    if kwargs.get("device") is not None:
        kwargs["device"] = META
    return tuple(map(_seen_as_meta, args)), kwargs


def _plain(value: Any) -> Any:
    """Return a virtual tensor of a user's subclass as one of torch's: meta kernels call methods it may override."""
    if isinstance(value, torch.Tensor):
        return plain(value)
    if isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in value):
        return [_plain(each) for each in value]
    return value


def _seen_as_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if is_virtual(value) or not value.dim() else meta_like(value)
    if isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in value):
        return [_seen_as_meta(each) for each in value]
    return None if isinstance(value, torch.Generator) else value


def _as_meta(made: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return meta_like(made)
    return type(made)(map(_as_meta, made)) if type(made) in (list, tuple) else made


def _wrapped(made: Any, home: torch.device) -> Any:
    if isinstance(made, torch.Tensor):
        return made if is_virtual(made) else virtual(made, home)
    if isinstance(made, list | tuple):
        return (
            type(made)(_wrapped(each, home) for each in made)
            if type(made) in (list, tuple)
            else tuple(_wrapped(each, home) for each in made)
        )
    return made


def _is_large(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point or not args or isinstance(args[0], torch.Tensor):
        return False
    elements = 1
    for size in args[0]:
        elements *= size
    return elements * dtype.itemsize >= LARGE_BYTES


def _with_tensors(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with tensors where an op needs them: TorchScript's numbers arrive as Python's."""
    return tuple(map(_as_tensor, args, takes_tensors(func)))


def _as_tensor(value: Any, wanted: bool) -> Any:
    if not wanted or not isinstance(value, int | float):
        return value
    dtype = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float64
    return torch.scalar_tensor(value, dtype=dtype, device=CPU)


def _dtype_of(tensors: list[torch.Tensor]) -> str:
    """Return the type of the first tensor; empty without one."""
    return str(tensors[0].dtype)[6:] if tensors else ""


def _name(func: Any) -> str:
    return func.name().partition(".")[0].replace("::", ".")
