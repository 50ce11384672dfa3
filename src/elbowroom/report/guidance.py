"""Guidance: what a report answers in words. Does it fit, what would another budget cost, and what to try next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from elbowroom.answers.estimate import Estimate
from elbowroom.answers.pareto import Pareto, Point
from elbowroom.hardware import gpus
from elbowroom.report.answer import planned_sentence, verdict
from elbowroom.report.subject import Subject
from elbowroom.timeline import Timeline
from elbowroom.units import format_bytes, format_ns

TOLERANCE = 0.01
"""A run that is above its budget by less than this part of it counts as within, as in `elbowroom run`."""
MUCH_STALL = 0.02
"""From this part of a step on, stalls are worth a larger budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a training fits.

    Attributes:
        fits: None if no record says it.
        sentences: the answer, the most important first.
    """

    fits: bool | None
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """Something to try.

    Attributes:
        command: a command line.
        why: what it answers.
    """

    command: str
    why: str


def fit_of(subject: Subject) -> Fit:
    """Say whether the training fits: by the measured step, else by the plan, else by the estimate."""
    if subject.measured is not None:
        return _of_measured(subject, subject.measured)
    if subject.plan is not None and subject.simulated is not None:
        return _of_plan(subject, subject.simulated)
    if subject.estimate is not None:
        return _of_estimate(subject.estimate)
    line = subject.simulated or subject.kept
    if line is None and subject.pareto is not None:
        curve = subject.pareto
        needed = f"everything kept needs {format_bytes(curve.kept_peak_bytes)} of {curve.machine}"
        return Fit(fits=None, sentences=(f"With a budget a step may do with less: {needed}, simulated.",))
    if line is None:
        return Fit(fits=None, sentences=("No record says on which machine: give a machine or a timeline as well.",))
    if subject.machine is None:
        return Fit(fits=None, sentences=(f"A step needs {_held(line)}, simulated.", "No record says on which machine."))
    return _on_machine(line, subject.machine.tiers[0].capacity_bytes, "simulated")


def _of_measured(subject: Subject, line: Timeline) -> Fit:
    if subject.plan is None:
        if subject.machine is None:
            return Fit(fits=True, sentences=(f"It ran: a step held {_held(line)}, measured.",))
        return _on_machine(line, subject.machine.tiers[0].capacity_bytes, "measured")
    return _in_budget(subject, line, "measured")


def _of_plan(subject: Subject, line: Timeline) -> Fit:
    found = _in_budget(subject, line, "simulated")
    if subject.machine is None or line.peak_device_bytes <= subject.machine.tiers[0].capacity_bytes:
        return found
    capacity = format_bytes(subject.machine.tiers[0].capacity_bytes)
    over = (
        f"It does not fit the device: with what is outside the allocator it needs "
        f"{format_bytes(line.peak_device_bytes)} of {capacity}. Give a smaller budget."
    )
    return Fit(fits=False, sentences=(over, *found.sentences))


def _in_budget(subject: Subject, line: Timeline, source: str) -> Fit:
    plan = subject.plan
    assert plan is not None
    held_bytes, budget = line.peak_reserved_bytes, format_bytes(plan.budget_bytes)
    within = held_bytes <= plan.budget_bytes * (1 + (TOLERANCE if source == "measured" else 0))
    if held_bytes <= plan.budget_bytes:
        head = f"It fits: a step holds {_held(line)} within the budget of {budget}, {source}."
    else:
        said = "It fits but for less than 1 %" if within else "It passes its budget"
        head = f"{said}: a step holds {_held(line)}, {source}; the budget is {budget}."
    return Fit(fits=within, sentences=(head, *_beside_kept(subject, line, source)))


def _beside_kept(subject: Subject, line: Timeline, source: str) -> Iterator[str]:
    """Compare a step with the one that keeps everything. Only simulated times are compared with simulated ones."""
    kept = subject.kept
    if kept is None:
        return
    needs = f"With everything kept, simulated, it would hold {_held(kept)}"
    if source == "measured" or not kept.step_ns:
        yield f"{needs}."
    else:
        yield f"{needs}; a step takes {line.step_ns / kept.step_ns:.3f} times as long as that."


def _of_estimate(answer: Estimate) -> Fit:
    sentences = [f"On {answer.machine} it {verdict(answer)}."]
    sentences.append(f"It needs at least {format_bytes(answer.needed_bytes)} of {format_bytes(answer.capacity_bytes)}.")
    if answer.planned is not None and answer.planned.fits:
        sentences.append(f"With a plan {planned_sentence(answer.planned)}; that is simulated.")
    return Fit(fits=answer.fits, sentences=tuple(sentences))


def _on_machine(line: Timeline, capacity_bytes: int, source: str) -> Fit:
    fits = line.peak_device_bytes <= capacity_bytes
    capacity = format_bytes(capacity_bytes)
    said = "It fits" if fits else "It does not fit"
    text = f"{said}: a step needs {format_bytes(line.peak_device_bytes)} of {capacity} on the device, {source}."
    return Fit(fits=fits, sentences=(text,))


def _held(line: Timeline) -> str:
    return format_bytes(line.peak_reserved_bytes)


def budget_sentences(subject: Subject) -> tuple[str, ...]:
    """Say what a smaller or larger budget would cost; empty without a curve."""
    return tuple(_curve_sentences(subject, subject.pareto)) if subject.pareto is not None else ()


def _curve_sentences(subject: Subject, curve: Pareto) -> Iterator[str]:
    kept = f"{format_bytes(curve.kept_peak_bytes)} and a step of {format_ns(curve.kept_step_ns)}"
    yield f"Everything kept needs {kept} on {curve.machine}. All figures of the curve are simulated."
    own_bytes = subject.plan.budget_bytes if subject.plan is not None else None
    for planner in curve.planners:
        points = curve.of(planner)
        by = f" ({planner})" if len(curve.planners) > 1 else ""
        yield f"The least budget{by} is {_point(curve, points[0])}."
        if own_bytes is None:
            continue
        below = [point for point in points if point.budget_bytes < own_bytes]
        above = [point for point in points if point.budget_bytes > own_bytes]
        if below[1:]:
            yield f"The next smaller one{by} is {_point(curve, below[-1])}."
        if above:
            yield f"The next larger one{by} is {_point(curve, above[0])}."


def _point(curve: Pareto, point: Point) -> str:
    return f"{format_bytes(point.budget_bytes)}, with a step {curve.slowdown(point):.3f} times as long"


def next_steps(subject: Subject) -> tuple[NextStep, ...]:
    """Return what to try next, as commands; where a name is not known, "train.py" and the like stand for it."""
    return tuple(_next_steps(subject, fit_of(subject)))


def _next_steps(subject: Subject, fit: Fit) -> Iterator[NextStep]:
    trace, plan, names = subject.trace, subject.plan, subject.names
    gpu = _gpu(subject)
    if trace is not None and subject.machine is None:
        yield NextStep(command=f"elbowroom estimate {names.trace} --gpu rtx4090", why="whether it fits a GPU, by name")
    if plan is None:
        yield from _without_plan(subject, fit, gpu)
        return
    if subject.measured is None:
        command = f"elbowroom run --plan {names.plan} {names.script} {names.arguments}".rstrip()
        yield NextStep(command=command, why="trains under this plan")
    if (more_bytes := _worthwhile(subject)) is not None:
        command = f"elbowroom plan {names.trace}{gpu} --budget {more_bytes}B"
        yield NextStep(command=command, why="waits less, with more memory")
    if subject.pareto is None and trace is not None:
        command = f"elbowroom plan {names.trace}{gpu} --pareto curve.html"
        yield NextStep(command=command, why="what each budget costs, as a curve")
    if subject.measured is not None:
        command = "elbowroom report this.timeline.json other.timeline.json -o compare.html"
        yield NextStep(command=command, why="compares this run with another one")
    elif gpu:
        yield NextStep(command=names.of("study budget", gpu), why="what more memory would bring")


def _without_plan(subject: Subject, fit: Fit, gpu: str) -> Iterator[NextStep]:
    names = subject.names
    if fit.fits is False:
        yield NextStep(command=names.of("plan", gpu), why="a plan with which it fits, and what that costs")
        if gpu:
            yield NextStep(command=names.of("study gpu"), why="which card is enough, with a plan or without")
    if gpu:
        command = names.of("largest", f" --vary batch_size=1..4096{gpu}")
        yield NextStep(command=command, why="the largest batch that fits without a plan")
    if fit.fits and subject.trace is not None:
        half = subject.kept or subject.simulated
        if half is not None and half.peak_reserved_bytes >= 2**21:
            size = f"{half.peak_reserved_bytes // 2**21}MiB"
            yield NextStep(command=names.of("plan", f"{gpu} --budget {size}"), why="what half of the memory costs")


def _gpu(subject: Subject) -> str:
    """Return the option that names the machine; "" for this computer, and for a GPU that no name is known of."""
    name = subject.machine.name if subject.machine is not None else ""
    return f" --gpu {shlex.quote(name)}" if name and gpus.known(name) is not None else ""


def _worthwhile(subject: Subject) -> int | None:
    """Return the next larger budget on the curve, if the step waits for copies; None without a curve."""
    line, plan = subject.measured or subject.simulated, subject.plan
    if line is None or plan is None or subject.pareto is None or line.stall_ns < MUCH_STALL * line.step_ns:
        return None
    larger = [point.budget_bytes for point in subject.pareto.points if point.budget_bytes > plan.budget_bytes]
    return min(larger, default=None)
