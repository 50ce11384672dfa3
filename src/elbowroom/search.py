"""Search: `largest()` finds the largest value of a training that fits a GPU, by captures on a virtual one.

`layouts()` does the same for layouts of a job of many ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

from elbowroom.answers.job_layouts import Layouts, layouts_of, words_of
from elbowroom.answers.largest import Largest
from elbowroom.answers.largest import largest as search
from elbowroom.answers.slowdown import SlowdownNeed, within_slowdown
from elbowroom.answers.tried_values import TriedValues
from elbowroom.capture import capture
from elbowroom.capture.script import STEPS, capture_script
from elbowroom.capture.script.layout_knobs import LayoutGrid, grid_of
from elbowroom.capture.script.script_knobs import Knob, Range, find_knob
from elbowroom.errors import CaptureError, UsageError
from elbowroom.machine import Machine
from elbowroom.planners import Means, means_of, parts_for
from elbowroom.step.least_size import least_size
from elbowroom.step.partners import with_partners
from elbowroom.trace import Trace
from elbowroom.watch import Watch


class Options(TypedDict, total=False):
    """Options of `largest`.

    Attributes:
        argv: arguments of a script.
        multiple_of: only multiples of it are tried.
        steps: optimizer steps that each capture records (3).
        slowdown: let a plan swap and recompute, as long as the step takes at most this factor of its time.
        allow: with `slowdown`: the means of these plans, as for `elbowroom.plan`.
        watch: reports progress, and ends the search early with the largest value so far.
    """

    argv: Sequence[str]
    multiple_of: int
    steps: int
    slowdown: float | None
    allow: Sequence[Means] | None
    watch: Watch | None


def largest(
    setup_of: Callable[..., Callable[[], Any]] | str | os.PathLike[str],
    vary: str,
    lower: int,
    upper: int,
    machine: str | Machine,
    **options: Unpack[Options],
) -> Largest:
    """Find the largest value of one argument of a training with which it fits a GPU.

    Each value that is tried is captured on a virtual GPU: 4 to 6 values on real models. The search ends when a value
    fits and one at most 1 % larger does not.

    Args:
        setup_of: `setup_of(batch_size=8)` builds model, optimizer and data for this value and returns the function
            that does one step. Or the path of a script, which runs unchanged in a child process.
        vary: the name of that argument. For a script: its argument, environment variable or constant.
        lower: the smallest value that is tried.
        upper: the largest value that is tried.
        machine: the GPU, by its name or as a Machine.
        options: argv, multiple_of, steps, slowdown, allow, watch: see `Options` in search.py.

    Returns:
        The largest value that fits (`value`), the next one that does not, and every value that was tried, with needs.

    Raises:
        UsageError: an argument is not allowed.
        CaptureError: the training fails with the smallest value.
    """
    _check(options)
    target = machine if isinstance(machine, Machine) else Machine.of(machine)
    tried = _tried(_way_to_capture(setup_of, vary, (lower, upper), target, options), vary, target, options)
    ends = {"least": lower, "most": upper, "multiple_of": options.get("multiple_of", 1)}
    others = {"same": tried.is_same, "slowdown": tried.slowdown, "watch": options.get("watch")}
    return search(tried.needed_bytes, target.tiers[0].capacity_bytes, **ends, **others)


class LayoutOptions(TypedDict, total=False):
    """Options of `layouts`.

    Attributes:
        argv: arguments of the script.
        ranks: processes of the job, if `vary` does not say it.
        local: processes on each computer; all of up to 8 by default.
        interconnect: how the ranks reach each other, as for `capture_script`; by default what is usual with the GPU.
        look_at: ranks that are captured of each layout, -1 for the last one (0 alone).
        steps: optimizer steps that each capture records (3).
        watch: reports progress, and ends the search early with the layouts so far.
    """

    argv: Sequence[str]
    ranks: int | None
    local: int | None
    interconnect: str | None
    look_at: Sequence[int]
    steps: int
    watch: Watch | None


def layouts(
    path: str | os.PathLike[str], vary: Sequence[str], machine: str | Machine, **options: Unpack[LayoutOptions]
) -> Layouts:
    """Look at layouts of a torchrun script: which ones fit a GPU, and what a step takes.

    Args:
        path: the script, which runs unchanged as one rank of each layout.
        vary: what differs between layouts, as in `--vary`: `("ranks=8..64", "tp=1,2,4", "micro_batch=1..64")`.
        machine: the GPU of each rank, by its name or as a Machine.
        options: argv, ranks, local, look_at, steps, watch: see `LayoutOptions` in search.py.

    Returns:
        The layouts, the cheapest one that fits (`cheapest`) and those that no other one beats (`front`).

    Raises:
        UsageError: an argument is not allowed.
        CaptureError: the script fails in every layout.
    """
    if unknown := [name for name in options if name not in LayoutOptions.__annotations__]:
        allowed = ", ".join(LayoutOptions.__annotations__)
        raise UsageError(f"layouts: given {unknown[0]}; allowed are also {allowed}")
    target = machine if isinstance(machine, Machine) else Machine.of(machine)
    script, argv = os.fspath(path), tuple(options.get("argv", ()))
    varied = [Range.of(text) for text in ([vary] if isinstance(vary, str) else vary)]
    grid = grid_of(varied, script, argv, options.get("ranks"), options.get("local"))

    def captured(place: Mapping[str, int]) -> list[Trace]:
        ranks = [grid.job(rank, place).rank for rank in options.get("look_at", (0,))]
        found = {rank: _of_layout(script, grid, place, rank, target, options) for rank in ranks}
        return list(with_partners(found).values())

    watch = options.get("watch")
    return layouts_of(grid.places(), grid.ranks_of, captured, target, searched=grid.span, watch=watch)


def _of_layout(
    script: str, grid: LayoutGrid, place: Mapping[str, int], rank: int, target: Machine, options: LayoutOptions
) -> Trace:
    """Capture one rank of a layout."""
    turned = grid.turned(tuple(options.get("argv", ())), place)
    try:
        return capture_script(
            script,
            turned.arguments,
            machine=target,
            steps=options.get("steps", STEPS),
            environment=turned.environment,
            constants=turned.constants,
            job=grid.job(rank, place),
            interconnect=options.get("interconnect"),
        )
    except CaptureError as problem:
        raise CaptureError(f"with {words_of(place.items())}: {problem}", ours=problem.ours) from problem


def _way_to_plan(target: Machine, options: Options) -> Callable[[int, Trace], SlowdownNeed] | None:
    """Return the function that plans a value's trace within the slowdown; None if no slowdown is given."""
    slowdown = options.get("slowdown")
    if slowdown is None:
        return None
    allow, watch = options.get("allow"), options.get("watch")

    def planned(_value: int, trace: Trace) -> SlowdownNeed:
        return within_slowdown(trace, target, slowdown, watch=watch, allow=allow)

    return planned


def _check(options: Options) -> None:
    if unknown := [name for name in options if name not in Options.__annotations__]:
        raise UsageError(f"largest: given {unknown[0]}; allowed are also {', '.join(Options.__annotations__)}")
    slowdown = options.get("slowdown")
    if slowdown is not None and not 1 <= slowdown < float("inf"):
        raise UsageError(f"largest: given slowdown={slowdown}; allowed is a factor of 1 or more, such as 1.2")
    if options.get("allow") is not None and slowdown is None:
        raise UsageError("largest: given allow without slowdown, and so nothing is planned; give slowdown too")


def _tried(
    capture_with: Callable[[int, Mapping[str, Any]], Trace], vary: str, target: Machine, options: Options
) -> TriedValues:
    """Return estimates of a training by the value of `vary`, each made once."""

    def captured(value: int, parts: Mapping[str, Any] | None = None) -> Trace:
        try:
            return capture_with(value, parts or {})
        except CaptureError as problem:
            raise CaptureError(f"with {vary} = {value}: {problem}", ours=problem.ours) from problem

    parts = parts_for(means_of(options.get("allow")), least_size(target.tiers[0].capacity_bytes))
    in_parts = partial(captured, parts=parts) if parts["in_parts"] else None
    return TriedValues(captured, target, _way_to_plan(target, options), in_parts)


def _way_to_capture(
    setup_of: Callable[..., Callable[[], Any]] | str | os.PathLike[str],
    vary: str,
    ends: tuple[int, int],
    target: Machine,
    options: Options,
) -> Callable[[int, Mapping[str, Any]], Trace]:
    """Return the function that captures the training with a value of `vary`, and further options of a capture."""
    argv, steps = tuple(options.get("argv", ())), options.get("steps", STEPS)
    if isinstance(setup_of, str | os.PathLike):
        knob = find_knob(Range.of(f"{vary}={ends[0]}..{ends[1]}"), os.fspath(setup_of), argv)
        return _of_script(os.fspath(setup_of), knob, argv, target, steps)
    if not callable(setup_of):
        raise UsageError(
            f"largest: given setup_of={type(setup_of).__name__}; allowed is a function, or the path of a script"
        )
    if argv:
        raise UsageError("largest: given argv and a function; allowed is argv with the path of a script; leave it out")
    of_value: Callable[..., Callable[[], Any]] = setup_of

    def captured(value: int, others: Mapping[str, Any]) -> Trace:
        return capture(partial(of_value, **{vary: value}), target, steps, **others)

    return captured


def _of_script(
    path: str, knob: Knob, argv: tuple[str, ...], target: Machine, steps: int
) -> Callable[[int, Mapping[str, Any]], Trace]:
    def captured(value: int, others: Mapping[str, Any]) -> Trace:
        turned = knob.turned(argv, value)
        return capture_script(
            path,
            turned.arguments,
            machine=target,
            steps=steps,
            environment=turned.environment,
            constants=turned.constants,
            **others,
        )

    return captured
