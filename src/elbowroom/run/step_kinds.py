"""What has been learnt of the steps of a training: one `StepKind` per signature."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from elbowroom.capture.layers import Chosen
from elbowroom.engine.residence import AllocatorBytes
from elbowroom.engine.tiers.ranges import bytes_for
from elbowroom.engine.wrapped_tensors import inside
from elbowroom.machine import Machine, TierName
from elbowroom.plan import Plan
from elbowroom.planners.budget.run_budget import Course
from elbowroom.run.conv_algorithms import Choices, chosen_of
from elbowroom.run.recompute.calls import Calls
from elbowroom.run.recompute.rebuild import Rebuilder
from elbowroom.step.last_step import last_step, listed
from elbowroom.step.moves import moves_of_plan, peak_in_one_go, tiers_of_plan
from elbowroom.step.schedule import Schedule, Turn, compile_schedule, turns_of
from elbowroom.torch_compat.subclasses import wraps_others
from elbowroom.trace import Trace

ALIKE_SHARE = 0.8
"""Of each size of a known step's inputs, what a step has at least that follows its plan: see similar_shapes.py."""
_ALIKE_BYTES_SHARE = ALIKE_SHARE**4
"""Of what a known step saves: a storage may have two sizes of an image, each twice, as attention does."""
PATIENCE = 3
"""A kind of step that was met once is waited for in so many observed steps; one that broke off never comes again."""
_UNTOLD = "untold"
"""In place of an argument that may be anything, such as an object of the user's."""
_TELLING = (int, str, type(None), torch.dtype, torch.device)
"""Kinds of arguments whose value tells all about them."""


Saved = tuple[tuple[int, str], ...]
"""What a step has saved: (size_bytes, dtype) in order."""


class Signature(NamedTuple):
    """What tells kinds of steps apart before they begin.

    Attributes:
        module: what tells of the outermost module, and of its mode.
        shapes: of its positional arguments, and of those by name.
    """

    module: Hashable
    shapes: Hashable


@dataclass(slots=True)
class Seen:
    """How the last steps of a kind ran that keeps everything: see unhooked.py.

    Attributes:
        details: of the last checked one, see `details`.
        made: nodes of autograd's graph and bytes of the allocator that it took.
        alike: so many checked steps in a row were like this.
        unchecked: so many steps since then were not checked.
    """

    details: Hashable = None
    made: tuple[int, int] = (0, 0)
    alike: int = 0
    unchecked: int = 0


@dataclass(slots=True, eq=False)
class StepKind:
    """One kind of step and what to do in it.

    Attributes:
        trace, course, schedule: as observed, planned, compiled.
        machine: the links as measured while observing.
        refined: whether the trace is of a steady step, and its durations of a step under a plan.
        in_parts: whether the steps of optimizers are carried out in parts.
        rebuilder: carries out its recomputes, None where it has none.
        proofs: so many steps more must prove these.
        calls: of a step of this kind, where they were recorded.
        wants_calls: whether a step of this kind should record them.
        chosen: by path of the layer, the algorithms that its calls run with.
        seen: how its last steps ran.
        tier_of: where what is away goes, by window: those of saves, and of optimizer states.
        turns: what to do with each save.
        begun: whether a step of this kind has begun.
        begins_empty: whether the last one began with an empty cache, as another kind's step came before it.
        found: what lay on the device where the first one began, if it has a limit.
        shared: whether steps follow this that are a little smaller than the trace: see similar_shapes.py.
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
    chosen: Choices = field(default_factory=dict[str, list[Chosen]])
    seen: Seen = field(default_factory=Seen)
    begun: bool = False
    begins_empty: bool = False
    found: AllocatorBytes | None = None
    shared: bool = False
    _for_nearby: StepKind | None = field(init=False, default=None)
    tier_of: Mapping[int, TierName] = field(init=False)
    turns: tuple[Turn, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.tier_of = dict(zip(self.schedule.swapped, self.schedule.tiers, strict=True))
        self.turns = turns_of(self.schedule)

    @property
    def plan(self) -> Plan:
        """What is swapped and what is recomputed."""
        return self.course.plan

    @property
    def moves(self) -> bool:
        """Whether storages leave the device."""
        return bool(self.schedule.swapped or self.schedule.dropped)

    @property
    def runs_as_ever(self) -> bool:
        """Whether there is nothing to do in a step of this kind, and nothing to learn from it."""
        return self.refined and not (self.moves or self.in_parts or self.chosen or self.wants_calls)

    def is_recorded(self, measure: bool) -> bool:
        """Whether a step of this kind is recorded: to learn from it, or to measure one when all is learnt."""
        return not self.refined or (measure and not (self.proofs or self.wants_calls or self.shared))

    def fits(self, n: int, saved: tuple[int, str]) -> bool:
        """Whether the n-th save of a step of this kind is (size_bytes, dtype), or for a shared one may be."""
        expected = self.schedule.saved
        if n >= len(expected):
            return False
        if not self.shared:
            return expected[n] == saved
        (size_bytes, dtype), (found_bytes, found_dtype) = expected[n], saved
        return dtype == found_dtype and _ALIKE_BYTES_SHARE * size_bytes <= found_bytes <= size_bytes

    def was(self, saved: Saved) -> bool:
        """Whether a step that has saved these storages, and no more, was of this kind."""
        if not self.shared:
            return saved == self.schedule.saved
        return len(saved) == len(self.schedule.saved) and all(self.fits(n, each) for n, each in enumerate(saved))

    def for_nearby(self) -> StepKind | None:
        """This for steps that are a little smaller; None where something in it is of one size."""
        if self.rebuilder is not None or self.chosen or self.course.limit_bytes is not None:
            return None
        if self._for_nearby is None:
            self._for_nearby = replace(self, refined=True, wants_calls=False, seen=Seen(), begun=False, shared=True)
        return self._for_nearby

    def agrees(self, saved: Saved) -> bool:
        """Whether a step that has saved these storages so far may be of this kind."""
        return saved == self.schedule.saved[: len(saved)]


@dataclass(slots=True)
class UnknownKind:
    """A kind of step that was met and is not known: all it saved, or where `whole` is not set how it began."""

    saved: Saved
    whole: bool
    tries: int = PATIENCE

    def found(self, known: StepKind) -> bool:
        """Whether an observed step was of this kind, or enough others were observed in vain."""
        self.tries -= 1
        same = known.schedule.saved == self.saved if self.whole else known.agrees(self.saved)
        return same or self.tries == 0


def known_of(trace: Trace, course: Course, machine: Machine, budget_bytes: int) -> StepKind:
    """A kind of step whose plan is made."""
    schedule = compile_schedule(trace, course.plan, course.waiting, course.emptied)
    whole_bytes = max(course.peak_bytes, peak_in_one_go(last_step(trace)))
    # With a limit of the allocator, what runs is what was played.
    needs_parts = schedule.carried or schedule.gradients or course.limit_bytes or whole_bytes > budget_bytes
    in_parts = bool(trace.parts) and bool(needs_parts)
    chosen = chosen_of(trace, course.plan)
    return StepKind(trace, course, schedule, machine, refined=False, in_parts=in_parts, chosen=chosen)


def lower_bytes(known: StepKind) -> dict[TierName, int]:
    """What the tiers below must have to hold all that the plan of a step swaps, as long as it does."""
    step, plan = last_step(known.trace), known.plan
    moves = moves_of_plan(step, plan)
    points = step.points(step.saved_at[moves.n])
    points[moves.n >= len(step.saves)] = 0  # a state is there in the next step too
    begin, end = listed(points), listed(step.gone[step.storage_of(moves.n)])
    stays: dict[TierName, list[tuple[int, int, int]]] = {}
    for tier, *stay in zip(tiers_of_plan(step, plan, moves), begin, end, listed(moves.size), strict=True):
        stays.setdefault(tier, []).append((stay[0], stay[1], stay[2]))
    if known.proofs:  # what is dropped lies below too
        dropped = np.array(sorted(known.schedule.dropped), np.int64)
        begin, end = listed(step.points(step.saved_at[dropped])), listed(step.gone[step.storage_of(dropped)])
        first: TierName = known.machine.links[0].lower
        stays.setdefault(first, []).extend(zip(begin, end, listed(step.size[dropped]), strict=True))
    return {tier: bytes_for(found) for tier, found in stays.items()}


def signature(module: torch.nn.Module | None, args: Any, keywords: Any) -> Signature | None:
    """The signature of a step; None where no module is called.

    Args:
        module: the outermost one.
        args: its positional arguments.
        keywords: those by name; None where they are not known: steps that differ only there are told apart as they run.
    """
    if module is None:
        return None
    # By its first parameter: a slice of a Sequential is a new module each time.
    told = (type(module), id(next(module.parameters(), None)), module.training)
    return Signature(told, (_shapes(args), _shapes(keywords)))


def details(args: Any, keywords: Any) -> Hashable:
    """What else a step is told apart by, where all must be known beforehand; None where arguments do not tell all.

    Args:
        args: positional arguments of the outermost module.
        keywords: those by name; None where they are not known.
    """
    settings = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))
    found = (settings, *_details(args), *_details(keywords)) if keywords is not None else (_UNTOLD,)
    return None if _UNTOLD in found else found


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
        yield value if isinstance(value, _TELLING) else _UNTOLD


def _shapes(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        if wraps_others(value):  # a jagged one has a new symbol for its own size each time
            return (type(value).__name__, *map(_shapes, inside(value)))
        return (tuple(value.shape), value.dtype, value.requires_grad)
    if isinstance(value, (tuple, list)):
        return tuple(_shapes(each) for each in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, dict):
        return tuple((str(key), _shapes(each)) for key, each in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return type(value).__name__
