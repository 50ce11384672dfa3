"""Compiled: torch.compile on the virtual device runs as eager, with a remark on what it would save for backward.

Each compiled call with gradients is noted with the bytes that eager saves in it. After the last step the compiler's own
partitioner gives what the compiled forward keeps (compiled_saves.py). That changes no figure of the estimate. Fused
kernels have other temporaries, which are not known. And a user may not compile what a library does.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, NamedTuple, final

import torch

from elbowroom.capture.virtual.compilers.compiled_saves import CompiledCall, UnknownSaves, forms, kept_by, modules_of
from elbowroom.capture.virtual.ledger import BLOCK_BYTES, Ledger
from elbowroom.units import format_bytes

Change = tuple[Any, str, Any]
COMPILED = "torch.compile (as eager, which mostly holds more; pools of CUDA graphs are not counted)"
KNOWN = "forward of {} saves {} for backward where eager saves {}: about {} {} in {}"
SAME = "forward of {} saves {} for backward, as eager does"
UNKNOWN = "forward of {}: not known, as {}"
LIMIT_S = 20.0
"""Most seconds of all traces together."""


@final
@dataclass(slots=True)
class _Alike:
    """Calls that do the same.

    Attributes:
        label: name of the called function or module.
        eager_bytes: bytes that eager saves in each call.
        first: the first call; or the reason why its saves are not known.
        since_backward: number of calls since a backward began.
        most: the largest such number.
    """

    label: str
    eager_bytes: int
    first: CompiledCall | UnknownSaves
    since_backward: int = 0
    most: int = 0


@final
@dataclass(slots=True)
class _Function:
    """A function that a script compiles: its name, why it is not followed ("" if it is), and the forms of its calls.

    It is freed when the script drops it; `held` keeps it once the script is left.
    """

    function: weakref.ref[Any]
    label: str
    why: str
    seen: set[str] = field(default_factory=set[str])
    held: Any = None


@final
class Compiled:
    """Record of compiled functions and their calls.

    Args:
        ledger: ledger of the virtual device.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._modules: dict[int, _Function] = {}
        self._functions: list[_Function] = []
        self._alike: dict[tuple[Any, ...], _Alike] = {}
        self._inside = False

    def changes(self) -> list[Change]:
        """Return the patches of Python."""
        call: Any = torch.nn.Module.__call__
        modules = self._modules

        @functools.wraps(call)
        def called(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            known = modules.get(id(module))
            if known is None:
                return call(module, *args, **kwargs)
            return self._called(known, functools.partial(call, module), args, kwargs)

        return [
            (torch.nn.Module, "__call__", called),
            (torch, "compile", self._compile),
            (torch.nn.Module, "compile", lambda module, *_args, **how: self._compile(module, **how) and None),
        ]

    @property
    def _compile(self) -> Callable[..., Any]:
        """Make the replacement of torch.compile, which returns its argument, with a remark.

        A module gets itself as its `_orig_mod`, as scripts read that.
        """

        def compile_not(model: Any = None, **options: Any) -> Any:
            if model is None:
                return functools.partial(compile_not, **options)
            self._ledger.remark("unsupported", COMPILED)
            if isinstance(model, torch.nn.Module):
                vars(model)["_orig_mod"] = model
                number = id(model)
                function = weakref.ref(model, lambda _: self._modules.pop(number, None))
                self._modules[number] = self._followed(function, type(model).__name__, options)
                return model
            return self._noted(model, options)

        return compile_not

    def _followed(self, function: weakref.ref[Any], label: str, options: dict[str, Any]) -> _Function:
        known = _Function(function, label, _unfollowed(options))
        self._functions.append(known)
        return known

    def hold(self) -> None:
        """Keep the present functions: the script is left, and drops after that are not recorded."""
        for known in self._functions:
            known.held = known.function()

    def _noted(self, function: Any, options: dict[str, Any]) -> Any:
        """Return a function whose calls are noted."""
        if not isinstance(function, FunctionType | MethodType) or str(function.__module__).startswith("elbowroom."):
            return function
        known = self._followed(weakref.ref(function), function.__qualname__, options)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return self._called(known, function, args, kwargs)

        return called

    def backward_begins(self) -> None:
        """Note that a backward begins: it reads what forwards have saved."""
        for alike in self._alike.values():
            alike.since_backward = 0

    def _called(self, known: _Function, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._inside or not torch.is_grad_enabled():
            return run(*args, **kwargs)
        try:
            call: CompiledCall | UnknownSaves = _call_of(known, args, kwargs)
        except UnknownSaves as why:
            call = why.with_traceback(None)  # its frames hold the tensors
        storages = len(self._ledger.storages)
        given = self._ledger.numbers_of(each for each in _tensors((args, kwargs)) if each.requires_grad)
        self._inside = True
        try:
            output = run(*args, **kwargs)
        finally:
            self._inside = False
        self._note(known, call, self._saved_bytes(storages, given, output))
        return output

    def _saved_bytes(self, storages: int, given: tuple[int, ...], output: Any) -> int:
        """Count the bytes of these storages and of later ones that autograd holds by now, except results."""
        saved = {each.storage for each in self._ledger.saves if each.storage >= storages or each.storage in given}
        saved = (saved & self._ledger.live()).difference(self._ledger.numbers_of(_tensors(output)))
        return sum(self._ledger.storages[number].size_bytes for number in saved if not self._is_weight(number))

    def _is_weight(self, number: int) -> bool:
        return self._ledger.storages[number].category in ("parameter", "buffer")

    def _note(self, known: _Function, call: CompiledCall | UnknownSaves, eager_bytes: int) -> None:
        form = repr(call) if isinstance(call, UnknownSaves) else repr((call.arguments, call.autocast))
        known.seen.add(form)
        if len(known.seen) > 1:
            call = UnknownSaves("it is called with several shapes")
        key = known.label, form, eager_bytes, _weights(known.function()), len(known.seen) > 1
        alike = self._alike.setdefault(key, _Alike(known.label, eager_bytes, call))
        alike.since_backward += 1
        alike.most = max(alike.most, alike.since_backward)

    def tell(self, limit_s: float = LIMIT_S) -> dict[CompiledSaves, int]:
        """Trace the called functions, and add remarks on their saves; the device must be off.

        Returns:
            The known saves, each with the number of calls whose saves are held at a time.
        """
        ended = time.monotonic() + limit_s
        counts: dict[CompiledSaves, int] = {}
        for alike in self._alike.values():
            try:
                known = _known(alike, ended - time.monotonic())
            except UnknownSaves as why:
                self._ledger.remarks["compiled", UNKNOWN.format(alike.label, why)] = 1
            else:
                counts[known] = counts.get(known, 0) + alike.most
        self._alike.clear()
        for known, times in counts.items():
            self._ledger.remark("compiled", known.said(times))
        return counts


@final
class CompiledSaves(NamedTuple):
    """What a call saves for backward, compiled and as eager: whole blocks of the allocator."""

    label: str
    kept_bytes: int
    eager_bytes: int

    def said(self, times: int) -> str:
        """Return the remark for a number of calls."""
        less = self.eager_bytes - self.kept_bytes
        kept, eager = format_bytes(self.kept_bytes), format_bytes(self.eager_bytes)
        if kept == eager:
            return SAME.format(self.label, kept)
        calls = "one call" if times == 1 else f"{times} calls"
        more = "less" if less > 0 else "more"
        return KNOWN.format(self.label, kept, eager, format_bytes(abs(less) * times), more, calls)


def _known(alike: _Alike, limit_s: float) -> CompiledSaves:
    """Return what calls save.

    Raises:
        UnknownSaves: it is not known what they would save.
    """
    if isinstance(alike.first, UnknownSaves):
        raise alike.first
    if not alike.eager_bytes:
        raise UnknownSaves("eager saves nothing in it, as under checkpointing")
    return CompiledSaves(alike.label, _rounded(kept_by(alike.first, limit_s)), _rounded(alike.eager_bytes))


def _rounded(size_bytes: int) -> int:
    """Round up to whole blocks of the allocator, so that calls that differ in a few numbers get one remark."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _unfollowed(options: dict[str, Any]) -> str:
    """Say why a function compiled with these options is not followed; "" if it is."""
    if options.get("disable"):
        return "compiling is disabled"
    if options.get("dynamic"):
        return "its shapes are dynamic"
    backend = options.get("backend", "inductor")
    return "" if backend == "inductor" else f"its backend is {backend!r}"


def _call_of(known: _Function, args: Any, kwargs: Any) -> CompiledCall:
    if known.why:
        raise UnknownSaves(known.why)
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    training = tuple(each.training for root in modules_of(known.function()) for each in root.modules())
    return CompiledCall(lambda: known.held, forms((args, kwargs)), autocast, training)


def _weights(function: Any) -> str:
    """Return what distinguishes modules of one class: names, shapes and types of their weights."""
    of_all = (each.named_parameters() for each in modules_of(function))
    return repr([(name, tuple(p.shape), p.dtype, p.requires_grad) for named in of_all for name, p in named])


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in the result of a call."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
