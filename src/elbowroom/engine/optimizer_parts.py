"""Parts of an optimizer's step: the parameters of each part, and the states that may leave the device.

Note: [Parts]
A step that needs all states of its optimizer on the device at once would save no memory. So the optimizer's own step
function runs on some of the parameters at a time: for each call, `param_groups` holds only these. The bits are the same
if each parameter is updated by itself. All steps in `EACH_BY_ITSELF` do so, with any options. Ops over lists of tensors
(foreach, fused) do for each tensor what they do for it alone. Any other step runs as one part: its states may be away
between two steps. The sizes of the parameters alone decide which go together, so every step has the same parts.

Note: [Closures]
A step of `EACH_BY_ITSELF` calls its closure once, with gradients on, before all else. So the closure is called before
the parts, and the parts have none. Forward and backward in it are then those of any training. A step that is not known
may call its closure often: it runs as it is, and what it needs is brought back before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch

from elbowroom.engine.storages import storage_of
from elbowroom.step.handed_gradients import PARTS
from elbowroom.torch_compat.core import holders_of, storage_key, tensor_uses

EACH_BY_ITSELF = frozenset(
    f"{name}.step"
    for name in (
        "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop",
        "Rprop", "SGD", "SparseAdam",
    )
)  # fmt: skip
"""Steps of torch.optim that update each parameter by itself, after one call of the closure, if there is one.

Checked in the source of 2.11.0 and 2.13.0.
"""

Groups = tuple[tuple[dict[str, Any], list[torch.Tensor]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
    """Parameters of one part.

    Attributes:
        groups: parameter groups of the optimizer, each with its parameters of the part.
        all: whether these are all parameters of the optimizer, so that its step runs as it is.
        ours: whether the step is one of torch.optim that updates each parameter by itself.
    """

    groups: Groups
    all: bool
    ours: bool = False

    def parameters(self) -> Iterator[torch.Tensor]:
        """Yield the parameters, in the order of the groups."""
        for _, parameters in self.groups:
            yield from parameters


def closure_of(optimizer: torch.optim.Optimizer, step: Any, args: Any, kwargs: Any) -> Callable[[], Any] | None:
    """Return the closure that a step calls once, before all else; None if it has none or may call it otherwise.

    Args:
        optimizer: the optimizer.
        step: the function of its class that does the step.
        args: arguments of the call, the optimizer first.
        kwargs: keyword arguments of the call.
    """
    given = [*args[1:], *kwargs.values()]
    return given[0] if len(given) == 1 and callable(given[0]) and _each_by_itself(optimizer, step) else None


def portions_of(
    optimizer: torch.optim.Optimizer, step: Any, args: Any, kwargs: Any, min_size_bytes: int
) -> list[Portion]:
    """Return the parts of an optimizer's step; none if it runs as it is: with arguments, or small parameters only.

    Args:
        optimizer: the optimizer.
        step: the function of its class that does the step.
        args: arguments of the call, the optimizer first.
        kwargs: keyword arguments of the call.
        min_size_bytes: states smaller than this stay where they are.
    """
    with_arguments = any(value is not None for value in (*args[1:], *kwargs.values()))
    if with_arguments or not isinstance(mapping_of(optimizer), dict):
        return []
    groups = [(group, p) for group in optimizer.param_groups for p in group["params"]]
    sizes = [p.numel() * p.element_size() for _, p in groups]
    if max(sizes, default=0) < min_size_bytes:
        return []
    if not _each_by_itself(optimizer, step):
        return [whole(optimizer)]
    most, found, held = max(sum(sizes) // PARTS, min_size_bytes), list[Portion](), 0
    begin = 0
    for i, size in enumerate(sizes):
        if i > begin and held + size > most:
            found.append(_portion(groups[begin:i], all=False))
            begin, held = i, 0
        held += size
    found.append(_portion(groups[begin:], all=begin == 0))
    return found


def whole(optimizer: torch.optim.Optimizer) -> Portion:
    """Return all parameters of an optimizer as one part."""
    return Portion(tuple((group, list(group["params"])) for group in optimizer.param_groups), all=True)


def _each_by_itself(optimizer: torch.optim.Optimizer, step: Any) -> bool:
    """Tell whether it is a known step of torch.optim, and no subclass has changed what it calls."""
    made = getattr(type(optimizer), "_init_group", step)
    ours = all(str(each.__module__).startswith("torch.optim.") for each in (step, made))
    return ours and step.__qualname__ in EACH_BY_ITSELF


def _portion(members: list[tuple[dict[str, Any], torch.Tensor]], *, all: bool) -> Portion:  # noqa: A002
    groups: list[tuple[dict[str, Any], list[torch.Tensor]]] = []
    for group, parameter in members:
        if not groups or groups[-1][0] is not group:
            groups.append((group, []))
        groups[-1][1].append(parameter)
    return Portion(tuple(groups), all, ours=True)


@contextmanager
def only(optimizer: torch.optim.Optimizer, portion: Portion) -> Iterator[None]:
    """Context in which the optimizer has only the parameters of a part."""
    if portion.all:
        yield
        return
    groups = optimizer.param_groups
    before = [(group, group["params"]) for group, _ in portion.groups]
    optimizer.param_groups = [group for group, _ in portion.groups]
    for group, parameters in portion.groups:
        group["params"] = parameters
    try:
        yield
    finally:
        for group, parameters in before:
            group["params"] = parameters
        optimizer.param_groups = groups


AtPart = Callable[[torch.optim.Optimizer, Portion], None]


@final
class InTurn:
    """Carries out steps of optimizers part by part. A step without parts, or inside another one, runs whole.

    Args:
        begins: called with the optimizer and the part before each part.
        ends: called with the same after each part.
        whole: called with the optimizer before a step that has no parts.

    Attributes:
        inside: whether a step is being carried out in parts.
    """

    def __init__(
        self, begins: AtPart, ends: AtPart, whole: Callable[[torch.optim.Optimizer], None] = lambda _: None
    ) -> None:
        self.inside = False
        self._begins, self._ends, self._whole = begins, ends, whole

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        step: Callable[..., Any],
        args: Any,
        kwargs: Any,
        min_size_bytes: int | None,
    ) -> Any:
        """Carry out a step, and return what its last part returns.

        Args:
            optimizer: the optimizer.
            step: the function of its class that does the step.
            args: arguments of the call.
            kwargs: keyword arguments of the call.
            min_size_bytes: states smaller than this never move; None runs the step whole.
        """
        if self.inside or torch.compiler.is_compiling():
            return step(*args, **kwargs)
        parts = [] if min_size_bytes is None else portions_of(optimizer, step, args, kwargs, min_size_bytes)
        if not parts:
            self._whole(optimizer)
            return step(*args, **kwargs)
        self.inside, found = True, None
        try:
            for portion in parts:
                self._begins(optimizer, portion)
                with only(optimizer, portion):
                    found = step(*args, **kwargs)
                self._ends(optimizer, portion)
        finally:
            self.inside = False
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Storage with optimizer states, or a gradient, on it.

    Attributes:
        storage: the storage.
        dtype: dtype of the first state on it.
        size_bytes: its bytes, on the device or away.
        held: whether other code refers to a state on it, or to its mapping, and could use it unnoticed.
    """

    storage: torch.UntypedStorage
    dtype: torch.dtype
    size_bytes: int
    held: bool


def mapping_of(optimizer: torch.optim.Optimizer) -> Any:
    """Return the states of an optimizer without bringing any back; None if the instance itself has none."""
    return vars(optimizer).get("state")


def movable(
    optimizer: torch.optim.Optimizer, portion: Portion, where: torch.device, away: Mapping[int, int], least_bytes: int
) -> list[Found]:
    """Return the storages of a part's states that can be emptied, in the order of parameters and states.

    Args:
        optimizer: the optimizer of the states.
        portion: the part.
        where: the device that states may leave.
        away: storage key -> bytes, for storages that are away.
        least_bytes: smaller storages stay.
    """
    states = mapping_of(optimizer)
    if not isinstance(states, dict):
        return []
    lone = sys.getrefcount(states) <= _LONE_MAPPING  # pyright: ignore[reportUnknownArgumentType]
    found: dict[int, list[tuple[torch.UntypedStorage, torch.dtype, bool]]] = {}
    for parameter in portion.parameters():
        for tensor, counts in _states_of(states, parameter):
            storage = storage_of(tensor) if _plain(tensor, where) else None
            if storage is not None and away.get(key := storage_key(storage), storage.nbytes()) >= least_bytes:
                others = not lone or any(count > most for count, most in zip(counts, _LONE, strict=True))
                found.setdefault(key, []).append((storage, tensor.dtype, others))
    return [
        Found(
            storage=storage,
            dtype=tensors[0][1],
            size_bytes=away.get(key, storage.nbytes()),
            held=any(others for _, _, others in tensors) or holders_of(storage) > len(tensors) + 1,
        )
        for key, tensors in found.items()
        if is_resizable(storage := tensors[0][0])
    ]


def _states_of(states: Any, parameter: torch.Tensor) -> Iterator[tuple[torch.Tensor, tuple[int, int, int]]]:
    """Yield the tensors among the states of a parameter, with the counts of references to their mapping and to them."""
    values = states.get(parameter)
    if isinstance(values, dict):
        of_values = sys.getrefcount(values)  # pyright: ignore[reportUnknownArgumentType]
        for value in values.values():  # pyright: ignore[reportUnknownVariableType]
            if type(value) is torch.Tensor:
                yield value, (of_values, sys.getrefcount(value), tensor_uses(value))


def _lone() -> tuple[int, int, int]:
    """Return the counts of a state that nobody else refers to."""
    parameter = torch.empty(1)
    states = {parameter: {"state": torch.empty(1)}}
    return next(counts for _, counts in _states_of(states, parameter))


_LONE = _lone()
_LONE_MAPPING = 3
"""References to an optimizer's mapping if nobody else has one: the optimizer's, ours, and that of `getrefcount`."""


def _plain(tensor: torch.Tensor, where: torch.device) -> bool:
    return tensor.device == where and tensor.layout is torch.strided and not tensor.requires_grad


def is_resizable(storage: torch.UntypedStorage) -> bool:
    """Tell whether a storage can be emptied."""
    return storage.resizable() and not (storage.device.type == "cpu" and storage.is_shared())
