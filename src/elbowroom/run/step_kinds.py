"""Kinds of steps of a training, and what has been learnt of each: signature, trace, plan, schedule."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from elbowroom.capture.layers import Chosen
from elbowroom.engine.tensor_subclasses import inside
from elbowroom.engine.tiers.ranges import bytes_for
from elbowroom.machine import Machine, TierName
from elbowroom.plan import Plan
from elbowroom.planners.budget.run_budget import Course
from elbowroom.run.conv_algorithms import Choices, chosen_of
from elbowroom.run.recompute.call_recorder import Calls
from elbowroom.run.recompute.recompute_run import Rebuilder
from elbowroom.step.last_step import last_step, listed
from elbowroom.step.moves import each_once, moves_of_plan, peak_in_one_go, tiers_of_plan
from elbowroom.step.schedule import Schedule, Turn, compile_schedule, turns_of
from elbowroom.torch_compat.core import parameters_of
from elbowroom.torch_compat.subclasses import wraps_others
from elbowroom.trace import Trace

ALIKE_SHARE = 0.8
"""Smallest allowed ratio of input sizes of a step to those of the step whose plan it follows: see similar_shapes.py."""
_ALIKE_BYTES_SHARE = ALIKE_SHARE**4
"""Smallest allowed ratio of saved bytes. An attention map has height² · width² of an image: four sizes in all."""
LEAST_UNCHECKED = 15
"""Unchecked steps in a row at first."""
PATIENCE = 3
"""Observed steps in which a kind that was met once is waited for. A step that broke off never comes again."""
_UNKNOWN = object()
"""Stands for an argument that may be anything, such as an object of the user's."""
_TELLING = (int, str, type(None), torch.dtype, torch.device)
"""Types of arguments whose value says all about them."""


Saved = tuple[tuple[int, str], ...]
"""What a step has saved: (size_bytes, dtype) in order."""


class Signature(NamedTuple):
    """Signature of a step: known before it begins, and different for different kinds of steps.

    Attributes:
        module: identity of the outermost module, and its mode (training or evaluation).
        shapes: shapes of its positional arguments, and of its keyword arguments.
    """

    module: Hashable
    shapes: Hashable


@dataclass(slots=True)
class Seen:
    """Record of the last steps of a kind that keeps everything: see hook_sampling.py.

    Attributes:
        details: details of the last checked step, see `details`.
        made: nodes of autograd's graph that it made, and bytes that it asked the allocator for.
        calls: number of calls of its outermost module, where they are counted; else 1.
        alike: number of checked steps in a row that were equal in these.
        unchecked: number of steps since then that were not checked.
        most_unchecked: number of such steps after which one is checked.
    """

    details: Hashable = None
    made: tuple[int, int] = (0, 0)
    calls: int = 1
    alike: int = 0
    unchecked: int = 0
    most_unchecked: int = LEAST_UNCHECKED


@dataclass(slots=True, eq=False)
class StepKind:
    """One kind of step and what to do in it.

    Attributes:
        trace: the observed step.
        course: its plan, and how to follow it.
        schedule: the plan, compiled to actions at ticks.
        machine: the links as measured while observing.
        refined: whether the trace is of a steady step, with the durations of a step under a plan.
        in_parts: whether the steps of optimizers are carried out in parts.
        rebuilder: carries out its recomputes; None if it has none.
        proofs: number of further steps that must prove the recomputes.
        calls: the calls of a step of this kind, if they were recorded.
        wants_calls: whether a step of this kind should record its calls.
        others_in_row: number of its last steps in which recipes were refused: they called something else.
        chosen: path of a layer -> the algorithms of its calls.
        seen: how its last steps ran.
        tier_of: window -> the tier that it goes to; windows are those of saves and of optimizer states.
        turns: what to do with each save.
        begun: whether a step of this kind has begun.
        ran: number of steps that were of this kind, and followed it to their ends.
        begins_empty: whether the last one began with an empty cache, as another kind's step came before it.
        shared: whether slightly smaller steps follow its plan: see similar_shapes.py.
        explores: whether it shows how little a step can hold: no plan meets the budget.
        is_captured: whether its trace is a capture of the script: Note: [Beforehand] in beforehand.py.
        keep_all_bytes: bytes that keeping everything takes, if no step was recorded to say it; else 0.
        measured: whether a step of this kind, if it is shared, was recorded.
    """

    trace: Trace
    course: Course
    schedule: Schedule
    machine: Machine
    refined: bool
    in_parts: bool = False
    rebuilder: Rebuilder | None = None
    proofs: int = 0
    calls: Calls | None = None
    wants_calls: bool = False
    others_in_row: int = 0
    chosen: Choices = field(default_factory=dict[str, list[Chosen]])
    seen: Seen = field(default_factory=Seen)
    begun: bool = False
    ran: int = 0
    begins_empty: bool = False
    shared: bool = False
    explores: bool = False
    is_captured: bool = False
    keep_all_bytes: int = 0
    measured: bool = False
    _for_nearby: StepKind | None = field(init=False, default=None)
    tier_of: Mapping[int, TierName] = field(init=False)
    turns: tuple[Turn, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.tier_of = dict(zip(self.schedule.swapped, self.schedule.tiers, strict=True))
        self.turns = turns_of(self.schedule)

    @property
    def plan(self) -> Plan:
        """Plan of this kind: what is swapped and what is recomputed."""
        return self.course.plan

    @property
    def planned_bytes(self) -> int:
        """The most that its plan holds; 0 if it only explores."""
        return 0 if self.explores else self.course.peak_bytes

    @property
    def moves(self) -> bool:
        """Whether storages leave the device."""
        return bool(self.schedule.swapped or self.schedule.dropped)

    def has_room_for_another(self, limit_bytes: int) -> bool:
        """Whether what two steps save fits below a limit: an evaluation with gradients may hold two of its forwards."""
        return self.course.peak_bytes + sum(size_bytes for size_bytes, _ in self.schedule.saved) <= limit_bytes

    @property
    def runs_as_ever(self) -> bool:
        """Whether a step of this kind needs no action, and has nothing more to teach."""
        return self.refined and not (self.moves or self.in_parts or self.chosen or self.wants_calls)

    def is_recorded(self, measure: bool) -> bool:
        """Whether to record a step of this kind: to learn from it, or to measure it once all is learnt."""
        return not self.refined or (measure and not (self.proofs or self.wants_calls or self.shared))

    def fits(self, n: int, saved: tuple[int, str]) -> bool:
        """Whether the n-th save may be `saved`, a (size_bytes, dtype). A shared kind allows smaller sizes."""
        expected = self.schedule.saved
        if n >= len(expected):
            return False
        if not self.shared:
            return expected[n] == saved
        (size_bytes, dtype), (found_bytes, found_dtype) = expected[n], saved
        return dtype == found_dtype and _ALIKE_BYTES_SHARE * size_bytes <= found_bytes <= size_bytes

    def was(self, saved: Saved) -> bool:
        """Whether a step whose saves were exactly these was of this kind."""
        if not self.shared:
            return saved == self.schedule.saved
        return len(saved) == len(self.schedule.saved) and all(self.fits(n, each) for n, each in enumerate(saved))

    def for_nearby(self) -> StepKind | None:
        """Return this kind for slightly smaller steps; None if it has recomputes, algorithms or a limit of one size."""
        if self.rebuilder is not None or self.chosen or self.course.at_limit:
            return None
        if self._for_nearby is None:
            self._for_nearby = replace(self, refined=True, wants_calls=False, seen=Seen(), begun=False, shared=True)
        return self._for_nearby

    def does_as(self, other: StepKind) -> bool:
        """Whether steps of this kind save what those of another do, and move the same."""
        ours, theirs = self.plan, other.plan
        does = self.schedule.saved, ours.swaps, ours.recomputes, ours.algorithms
        return does == (other.schedule.saved, theirs.swaps, theirs.recomputes, theirs.algorithms)

    def agrees(self, saved: Saved) -> bool:
        """Whether a step with these saves so far may be of this kind."""
        return saved == self.schedule.saved[: len(saved)]


@dataclass(slots=True)
class UnknownKind:
    """Kind of step that was met but never recorded.

    Attributes:
        saved: its saves.
        whole: whether these are all its saves; else they are the first ones.
        tries: number of further observed steps in which it is waited for.
    """

    saved: Saved
    whole: bool
    tries: int = PATIENCE

    def found(self, known: StepKind) -> bool:
        """Whether to wait no longer: an observed step was of this kind, or enough others were observed in vain."""
        self.tries -= 1
        same = known.schedule.saved == self.saved if self.whole else known.agrees(self.saved)
        return same or self.tries == 0


def known_of(trace: Trace, course: Course, machine: Machine, budget_bytes: int) -> StepKind:
    """Return the kind of step for a trace and the course of its plan."""
    schedule = compile_schedule(trace, course.plan, course.waiting)
    whole_bytes = max(course.peak_bytes, peak_in_one_go(last_step(trace)))
    # With a limit of the allocator, a step has to run exactly as it was simulated.
    needs_parts = schedule.carried or schedule.gradients or course.at_limit or whole_bytes > budget_bytes
    needs_parts = needs_parts or schedule.uses  # which number the operators of the parts
    in_parts = has_parts(trace) and bool(needs_parts)
    chosen = chosen_of(trace, course.plan)
    return StepKind(trace, course, schedule, machine, refined=False, in_parts=in_parts, chosen=chosen)


def has_parts(trace: Trace) -> bool:
    """Return whether optimizers' steps were carried out in parts."""
    return any(part.kind == "optimizer" for part in trace.parts)


def lower_bytes(known: StepKind) -> dict[TierName, int]:
    """Return the bytes that each lower tier needs for all that the plan of a step swaps."""
    step, plan = last_step(known.trace), known.plan
    moves = moves_of_plan(step, plan)
    points = step.points(step.saved_at[moves.n])
    points[moves.n >= len(step.saves)] = 0  # an optimizer state stays there into the next step
    begin, end = listed(points), listed(step.gone[step.storage_of(moves.n)])
    stays: dict[TierName, list[tuple[int, int, int]]] = {}
    once, sizes = each_once(step, moves.n).tolist(), listed(moves.size)
    for first, tier, *stay in zip(once, tiers_of_plan(step, plan, moves), begin, end, sizes, strict=True):
        if not first:
            continue
        stays.setdefault(tier, []).append((stay[0], stay[1], stay[2]))
    if known.proofs:  # what is dropped is swapped out too
        dropped = np.array(sorted(known.schedule.dropped), np.int64)
        begin, end = listed(step.points(step.saved_at[dropped])), listed(step.gone[step.storage_of(dropped)])
        below: TierName = known.machine.links[0].lower
        stays.setdefault(below, []).extend(zip(begin, end, listed(step.size[dropped]), strict=True))
    return {tier: bytes_for(found) for tier, found in stays.items()}


def signature(module: torch.nn.Module | None, args: Any, keywords: Any) -> Signature | None:
    """Return the signature of a step; None if no module is called.

    Args:
        module: the outermost module.
        args: its positional arguments.
        keywords: its keyword arguments, or None if they are not known. Steps that differ only there then have the same
            signature; they are recognised as they run.
    """
    if module is None:
        return None
    # Modules are identified by their first parameter: a slice of a Sequential is a new module each time.
    what = (type(module), id(next(parameters_of(module), None)), module.training)
    return Signature(what, (_shapes(args), _shapes(keywords)))


def may_train(module: torch.nn.Module, arguments: Any, device: torch.device) -> bool:
    """Return whether the call of an outermost module may begin a step.

    A transform of one picture, which a data loader calls in the training's own process, is a module as well. If it
    began the step, the step would be known by that picture, whatever the size of the batch.

    Args:
        module: the outermost module.
        arguments: all that it is called with.
        device: what the training computes on.

    Returns:
        False if the module has no parameter, and no tensor in the arguments needs a gradient or is on an accelerator.
        What it saves for backward all the same begins a step then.
    """
    if next(parameters_of(module), None) is not None:
        return True
    return any(each.requires_grad or each.device.type == device.type != "cpu" for each in _tensors_in(arguments))


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _tensors_in(each)
    elif isinstance(value, Mapping):
        for each in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _tensors_in(each)


def details(args: Any, keywords: Any) -> Hashable:
    """Return further details that identify a step before it begins; None if the arguments do not say all.

    Args:
        args: positional arguments of the outermost module.
        keywords: its keyword arguments; None if they are not known.
    """
    found = (autocast_settings(), *_details(args), *_details(keywords)) if keywords is not None else (_UNKNOWN,)
    return None if _UNKNOWN in found else found


def autocast_settings() -> Hashable:
    """Return the type of autocast for each kind of device; None where it is off."""
    on, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    return dtype("cpu") if on("cpu") else None, dtype("cuda") if on("cuda") else None


def _details(value: Any) -> Iterator[Hashable]:
    if isinstance(value, torch.Tensor):
        yield tuple(value.shape), value.dtype, value.requires_grad, value.device
    elif isinstance(value, (tuple, list)):
        yield len(value)  # pyright: ignore[reportUnknownArgumentType]
        for each in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _details(each)
    elif isinstance(value, Mapping):
        yield tuple(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
        for each in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _details(each)
    elif isinstance(value, float):  # such as a temperature, which sets no shape
        yield float
    else:
        yield value if isinstance(value, _TELLING) else _UNKNOWN


def _shapes(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        if wraps_others(value):  # a jagged tensor has a new symbol for its size each time
            return (type(value).__name__, *map(_shapes, inside(value)))
        return (tuple(value.shape), value.dtype, value.requires_grad)
    if isinstance(value, (tuple, list)):
        return tuple(_shapes(each) for each in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, dict):
        return tuple((str(key), _shapes(each)) for key, each in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return type(value).__name__
