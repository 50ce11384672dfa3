"""Layouts of `elbowroom largest`: several --vary, or ranks and degrees: captures, and the answer in JSON or as text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from elbowroom.capture.script.layout_knobs import RANKS, LayoutGrid, grid_of
from elbowroom.capture.script.script_knobs import Range
from elbowroom.cli import output, ranks, scripts
from elbowroom.cli.answer_types import LayoutsAnswer, TriedLayout
from elbowroom.cli.progress import progress
from elbowroom.errors import CaptureError, UsageError
from elbowroom.step.partners import with_partners
from elbowroom.watch import Watch

if TYPE_CHECKING:
    from elbowroom.answers.job_layouts import Layout, Layouts
    from elbowroom.machine import Machine
    from elbowroom.trace import Trace

WITHOUT = ("multiple_of", "within", "planner", "allow")


def execute(arguments: argparse.Namespace, script: scripts.Script, varied: Sequence[Range]) -> int:
    """Look at the layouts, and say which one is the cheapest that fits."""
    for name in WITHOUT:
        if getattr(arguments, name) not in (None, 1):
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option}: given with layouts, which are searched without it; leave it out")
    machine = scripts.machine_of(arguments.gpu)
    by_ranks = arguments.ranks is None and any(vary.name == RANKS for vary in varied)
    size = (None, arguments.local) if by_ranks else ranks.size_of(arguments)
    grid = grid_of(varied, script.path, script.arguments, *size)
    looked = ranks.numbers_of(arguments)
    with progress() as say:
        watch = Watch(say, arguments.timeout)
        found = _looked_at(script, machine, grid, looked, arguments, watch)
    if arguments.json:
        output.write_answer(figures(script.label, grid, found), output.STDOUT)
    else:
        from elbowroom.report.layouts_table import layouts_rendered

        output.console().print(layouts_rendered(script.label, found, grid.how, grid.left_out))
    return 0 if found.cheapest else 1


def _looked_at(
    script: scripts.Script,
    machine: Machine,
    grid: LayoutGrid,
    looked: Sequence[int],
    arguments: argparse.Namespace,
    watch: Watch,
) -> Layouts:
    from elbowroom.answers.job_layouts import layouts_of

    places = grid.places()

    def captured(place: Mapping[str, int]) -> list[Trace]:
        count = grid.ranks_of(place)
        wanted = [count - 1 if rank < 0 else rank for rank in looked] or range(ranks.checked_all(count))
        found = {rank: _captured(script, machine, grid, place, rank, arguments, watch) for rank in wanted}
        return list(with_partners(found).values())

    return layouts_of(places, grid.ranks_of, captured, machine, searched=grid.span, watch=watch)


def _captured(
    script: scripts.Script,
    machine: Machine,
    grid: LayoutGrid,
    place: Mapping[str, int],
    rank: int,
    arguments: argparse.Namespace,
    watch: Watch,
) -> Trace:
    """Capture one rank of a layout.

    Raises:
        CaptureError: it could not be captured.
        TimeOver: the time is over.
    """
    from elbowroom.answers.job_layouts import words_of

    turned, what = grid.turned(script.arguments, place), words_of(place.items())
    watch.say(what)
    try:
        trace = script.capture(
            turned.arguments,
            machine=machine,
            steps=arguments.steps,
            timeout_s=watch.left_s(),
            environment=turned.environment,
            constants=turned.constants,
            job=grid.job(rank, place),
            interconnect=arguments.interconnect,
            on_phase=lambda phase: watch.say(f"{what}: {phase}"),
            network=arguments.network,
        )
    except CaptureError as problem:
        if watch.is_over:
            raise watch.over() from problem
        guessed = "".join(f" ({how})" for how in grid.how)
        raise CaptureError(f"with {what}{guessed}: {problem}", ours=problem.ours) from problem
    watch.left_s()  # raises if the limit cut the capture short: that is no answer for this layout
    return trace


def figures(script: str, grid: LayoutGrid, found: Layouts) -> LayoutsAnswer:
    """The answer for programs."""
    cheapest, least = found.cheapest, found.least_gpu_time
    front = found.front
    return LayoutsAnswer(
        script=script,
        machine=found.machine,
        capacity_bytes=found.capacity_bytes,
        cheapest=None if cheapest is None else found.layouts.index(cheapest),
        least_gpu_time=None if least is None else found.layouts.index(least),
        left_out=grid.left_out,
        early=found.early,
        layouts=tuple(_figures(each, found, is_on_front=each in front) for each in found.layouts),
    )


def _figures(layout: Layout, found: Layouts, *, is_on_front: bool) -> TriedLayout:
    answer = layout.answer
    equal_ns = found.equal_work_ns(layout)
    return TriedLayout(
        values=dict(layout.values),
        ranks=layout.ranks,
        fits=layout.fits,
        sure=answer is not None and answer.sure,
        needed_bytes=None if answer is None else answer.needed_bytes,
        peak_allocated_bytes=None if answer is None else answer.peak_allocated_bytes,
        peak_reserved_bytes=None if answer is None else answer.peak_reserved_bytes,
        step_ns=None if answer is None else layout.step_ns,
        work_flops=layout.work_flops,
        equal_work_ns=None if answer is None else equal_ns,
        equal_work_gpu_ns=None if answer is None else equal_ns * layout.ranks,
        on_front=is_on_front,
        problem=layout.problem,
    )
