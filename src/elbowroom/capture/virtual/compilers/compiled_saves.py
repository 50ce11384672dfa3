"""Compiled saves: what a compiled function would keep for its backward: its graph is traced without bytes, and divided.

Note: [Tracing for cuda on the host]
Without CUDA, C++ ends the process when autograd meets a fake tensor on cuda. So tensors are fake ones of the
host. Parts in which the host differs from CUDA are replaced by CUDA's: the kernel of attention, and autocast's lists of
ops in float32. The partitioner's choice follows from ops, shapes and dtypes, not from devices.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getclosurevars
from types import FunctionType, MethodType
from typing import Any, final

import torch

from elbowroom.capture.virtual.ops import attention, casting
from elbowroom.torch_compat.compiler import (
    faking,
    is_graph_break,
    kept_bytes,
    quiet,
    raise_in,
    without_autocast_on_cpu,
)
from elbowroom.torch_compat.core import OpOverrides

aten: Any = torch.ops.aten
CPU = torch.device("cpu")
PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size, slice, type(Ellipsis))
"""Types of arguments that are passed on as they are."""
LATE = "tracing it takes too long"
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class UnknownSaves(Exception):
    """The saves are not known; the message says why."""


class _TimeIsOver(BaseException):
    """The time of a trace is over."""


@final
@dataclass(frozen=True, slots=True)
class TensorForm:
    """The form of a tensor, without its bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorForm:
        """Return the form of a tensor.

        Raises:
            UnknownSaves: it is of a subclass, or not strided.
        """
        if type(tensor) not in _TENSORS or tensor.layout is not torch.strided:
            raise UnknownSaves(f"it is given a {type(tensor).__name__} of layout {tensor.layout}")
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)

    def fake(self) -> torch.Tensor:
        """Make a tensor of this form, in a context of fake tensors."""
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=CPU)
        return made.requires_grad_(self.requires_grad)


def forms(value: Any) -> Any:
    """Return arguments with forms in place of tensors.

    Raises:
        UnknownSaves: one may hold tensors that are not seen.
    """
    if isinstance(value, torch.Tensor):
        return TensorForm.of(value)
    if type(value) in (tuple, list):
        return type(value)(forms(each) for each in value)
    if type(value) is dict:
        return {name: forms(each) for name, each in value.items()}
    if type(value) in PLAIN:
        return value
    raise UnknownSaves(f"it is given a {type(value).__name__}")


def _fakes(value: Any) -> Any:
    if isinstance(value, TensorForm):
        return value.fake()
    if type(value) in (tuple, list):
        return type(value)(_fakes(each) for each in value)
    return {name: _fakes(each) for name, each in value.items()} if type(value) is dict else value


@final
@dataclass(frozen=True, slots=True)
class CompiledCall:
    """One call of a compiled function.

    Attributes:
        held: returns the module or function that is called; None if the script has dropped it.
        arguments: positional and named arguments, as `forms` returns them.
        autocast: dtype of autocast on cuda, if it was on.
        training: the mode of each module in it.
    """

    held: Callable[[], Any]
    arguments: Any
    autocast: torch.dtype | None
    training: tuple[bool, ...]


def modules_of(function: Any) -> list[torch.nn.Module]:
    """Return the outermost modules of a function: itself, its owner, those in its closure and its globals."""
    if isinstance(function, torch.nn.Module):
        return [function]
    if isinstance(function, MethodType):
        owner = function.__self__
        own = [owner] if isinstance(owner, torch.nn.Module) else list(getattr(owner, "__dict__", {}).values())
        return [*_modules(own), *modules_of(function.__func__)]
    if not isinstance(function, FunctionType):
        return []
    try:
        seen = getclosurevars(function)
    except ValueError:  # a name in it is not bound yet
        return []
    return _modules([*seen.nonlocals.values(), *seen.globals.values()])


def _modules(values: list[Any]) -> list[torch.nn.Module]:
    return [each for each in values if isinstance(each, torch.nn.Module)]


def kept_by(call: CompiledCall, limit_s: float) -> int:
    """Return the bytes that the compiled forward of a call keeps for its backward.

    Args:
        call: the call.
        limit_s: seconds after which the trace is given up.

    Raises:
        UnknownSaves: the compiler cannot trace it, or not in time.
    """
    if limit_s <= 0:
        raise UnknownSaves(LATE)
    found: list[int | BaseException] = []

    def work() -> None:
        try:
            found.append(_traced(call))
        except BaseException as problem:  # noqa: BLE001  the estimate goes on after any error of the compiler
            found.append(problem)

    thread = threading.Thread(target=work, daemon=True, name="elbowroom: torch.compile")
    thread.start()
    thread.join(limit_s)
    ended = time.monotonic() + 2
    while thread.is_alive() and thread.ident is not None and time.monotonic() < ended:
        raise_in(thread.ident, _TimeIsOver)
        thread.join(0.1)
    if not found or isinstance(found[0], _TimeIsOver):
        raise UnknownSaves(LATE)
    if isinstance(found[0], UnknownSaves):
        raise found[0]
    if isinstance(found[0], BaseException):
        raise UnknownSaves(_why(found[0]))
    return found[0]


def _why(problem: BaseException) -> str:
    first = next(iter(str(problem).splitlines()), "")
    return f"its graph breaks ({first})" if is_graph_break(problem) else f"tracing it ends with {_name(problem)}"


def _name(problem: BaseException) -> str:
    """Return the name of the cause, which the compiler's own errors wrap."""
    return type(problem.__cause__ or problem).__name__


def _traced(call: CompiledCall) -> int:
    function = call.held()
    if function is None:
        raise UnknownSaves("the script has dropped it")
    modules = [each for root in modules_of(function) for each in root.modules()]
    with quiet(), faking(), _in_place_of(modules, call.training), _as_on_cuda(call.autocast):
        args, kwargs = _fakes(call.arguments)
        return kept_bytes(function, args, kwargs)


@contextmanager
def _in_place_of(modules: list[torch.nn.Module], training: tuple[bool, ...]) -> Iterator[None]:
    """Replace the tensors of modules by fake ones, and set their modes as in the call."""
    fakes: dict[int, torch.Tensor] = {}
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []
    try:
        for module, mode in zip(modules, training, strict=True):
            places: list[dict[str, Any]] = [vars(module), *_owned(module)]
            for place in places:
                before.append((place, dict(place)))
                place.update({name: _fake_of(each, fakes) for name, each in place.items() if _is_tensor(each)})
            vars(module)["training"] = mode
        yield
    finally:
        for place, values in reversed(before):
            place.update(values)


def _owned(module: torch.nn.Module) -> tuple[Any, Any]:
    """Return a module's own parameters and buffers, by name."""
    own = vars(module)
    return own["_parameters"], own["_buffers"]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _fake_of(tensor: torch.Tensor, fakes: dict[int, torch.Tensor]) -> torch.Tensor:
    made = fakes.get(id(tensor))
    if made is None:
        made = TensorForm.of(tensor).fake()
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made.detach(), tensor.requires_grad)
        fakes[id(tensor)] = made
    return made


@contextmanager
def _as_on_cuda(autocast: torch.dtype | None) -> Iterator[None]:
    """Give the host CUDA's attention and autocast: Note: [Tracing for cuda on the host]."""
    overrides = OpOverrides()
    try:
        overrides.put(aten.scaled_dot_product_attention.default, "AutogradCPU", attention.attend)
        if autocast is None:
            yield
            return
        for op in casting.in_float32():
            overrides.put(op, "AutocastCPU", _in_float32(op))
        with torch.autocast("cpu", dtype=autocast):
            yield
    finally:
        overrides.close()


def _in_float32(op: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast_on_cpu():
            cast = [_wide(each) for each in args]
            return op(*cast, **{name: _wide(each) for name, each in kwargs.items()})

    return kernel


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return [_wide(each) for each in value] if isinstance(value, list | tuple) else value
