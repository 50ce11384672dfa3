"""Study words: the answer of a what-if study in sentences, and as the rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from elbowroom.answers.link_study import LinkStudy, StudiedLink
from elbowroom.answers.study_points import Study, StudyPoint
from elbowroom.units import format_bytes, format_joules, format_ns

SAME_TIME = 1.05
"""Below this factor a step is said to take about as long."""
QUICK = "Times are simulated, and plans were found quickly: `elbowroom plan` may find a faster step."


def sentences(study: Study) -> tuple[str, ...]:
    """Return the answer in sentences, the one that was asked for first."""
    if study.kind == "budget":
        found = _of_budget(study)
    elif study.kind == "gpu":
        found = _of_gpus(study)
    else:
        found = _of_values(study)
    planned = any(point.outcome == "planned" for point in study.points)
    return tuple([each for each in (*found, study.early, QUICK if planned else "Times are simulated.") if each])


def time_words(point: StudyPoint) -> str:
    """Say how long a step takes, such as "1.10 s, 1.31 times as long as with memory for everything"."""
    assert point.step_ns is not None
    assert point.slowdown is not None
    said = format_ns(point.step_ns)
    if point.outcome == "kept":
        return f"{said}, with everything kept"
    if point.slowdown < SAME_TIME:
        return f"{said} with a plan, about as long as with memory for everything"
    return f"{said} with a plan, {point.slowdown:.2f} times as long as with memory for everything"


def _of_budget(study: Study) -> Iterator[str]:
    by_value = {point.value: point for point in study.points}
    own = by_value.get(study.own_bytes or -1)
    if own is not None:
        room = f"within the {format_bytes(own.value)} that {study.machine} has for it"
        yield f"{study.script}: {room}, {_how(own)}."
    more = by_value.get(study.more_bytes or -1)
    if own is not None and more is not None:
        yield _more(own, more)
    yield from _least(study)


def _how(point: StudyPoint) -> str:
    if point.step_ns is None:
        return _why_not(point)
    return f"a step takes {time_words(point)}"


def _why_not(point: StudyPoint) -> str:
    if point.outcome == "failed":
        return f"the script fails: {point.problem}"
    least = format_bytes(point.least_bytes or 0)
    return f"no plan was found; the least of the card that one was found to need is {least}"


def _more(own: StudyPoint, more: StudyPoint) -> str:
    head = f"With {format_bytes(more.value - own.value)} more"
    if more.step_ns is None:
        return f"{head} it does not train either."
    if own.step_ns is None:
        return f"{head} it trains: a step takes {time_words(more)}."
    saved = 1 - more.step_ns / own.step_ns if own.step_ns else 0.0
    if saved < SAME_TIME - 1:
        return f"{head} a step takes about as long: {format_ns(more.step_ns)}."
    return f"{head} a step takes {format_ns(more.step_ns)}, {saved:.0%} less."


def _least(study: Study) -> Iterator[str]:
    """Say which of the budgets looked at are enough."""
    trained = [point for point in study.points if point.step_ns is not None]
    fast = [point for point in trained if point.slowdown is not None and point.slowdown <= SAME_TIME]
    if fast:
        least = format_bytes(fast[0].value)
        yield f"Of the budgets looked at, {least} is the least that makes a step at most 5 % longer."
    if trained and trained[0] is not (fast[0] if fast else None):
        yield f"The least with which it trains is {format_bytes(trained[0].value)}: {time_words(trained[0])}."
    refused = [point for point in study.points if point.outcome == "no plan"]
    if refused and refused[-1].value != study.own_bytes:
        outside_bytes = refused[-1].memory_bytes - refused[-1].value
        least_bytes = (refused[-1].least_bytes or 0) - outside_bytes
        is_less = not trained or least_bytes < trained[0].value
        named = f"; the least budget that one was found for is {format_bytes(least_bytes)}" if is_less else ""
        yield f"No plan was found for {format_bytes(refused[-1].value)}{named}."


def _of_gpus(study: Study) -> Iterator[str]:
    trained = [point for point in study.points if point.step_ns is not None]
    kept = [point for point in trained if point.outcome == "kept"]
    if not trained:
        last = study.points[-1]
        yield f"{study.script}: no GPU of these is enough. On {last.machine}, the largest, {_why_not(last)}."
        return
    if kept:
        first = kept[0]
        need = f"it needs {format_bytes(first.needed_bytes or 0)} of {format_bytes(first.memory_bytes)}"
        step = f"a step takes {format_ns(first.step_ns or 0)}"
        yield f"{study.script}: the smallest GPU that keeps everything is {first.machine}: {need}, and {step}."
    else:
        yield f"{study.script}: no GPU that was looked at keeps everything."
    if trained[0].outcome == "planned":
        name = f"{trained[0].machine} ({format_bytes(trained[0].memory_bytes)})"
        host = f", with {format_bytes(trained[0].host_bytes)} of host memory" if trained[0].host_bytes else ""
        yield f"{name} is enough: {_how(trained[0])}{host}."
    if len(trained) > 1:
        fastest = min(trained, key=lambda point: point.step_ns or 0)
        yield f"The fastest that was looked at is {fastest.machine}: {format_ns(fastest.step_ns or 0)} a step."
    if study.not_looked:
        yield f"Not looked at, as the answer does not depend on them: {', '.join(study.not_looked)} (--gpu names any)."


def _of_values(study: Study) -> Iterator[str]:
    head = f"{study.script} on {study.machine}"
    kept = [point for point in study.points if point.outcome == "kept"]
    trained = [point for point in study.points if point.step_ns is not None]
    if not trained:
        first = study.points[0]
        yield f"{head}: not even {study.varied} = {first.value} trains: {_why_not(first)}."
        return
    if kept:
        need = f"needs {format_bytes(kept[-1].needed_bytes or 0)} of {format_bytes(kept[-1].memory_bytes)}"
        largest = f"{study.varied} = {kept[-1].value}, which {need}"
        yield f"{head}: the largest of these values that fits with everything kept is {largest}."
    else:
        yield f"{head}: no value of these fits with everything kept."
    if trained[-1].outcome == "planned":
        yield f"{study.varied} = {trained[-1].value} trains: a step takes {time_words(trained[-1])}."
    if study.kind == "batch" and len(trained) > 1:
        best = max(trained, key=rate_of)
        near = next(point for point in trained if rate_of(point) * SAME_TIME >= rate_of(best))
        from_there = "" if near is best else f"; from {near.value} on it is at most 5 % less"
        yield f"The most samples a second: {rate_of(best):,.1f}, with {best.value}{from_there}."
    refused = [point for point in study.points if point.step_ns is None]
    if refused:
        yield f"With {refused[0].value}, {_why_not(refused[0])}."


def rate_of(point: StudyPoint) -> float:
    """Return the samples a second of a point whose value counts the samples of a step; 0 if it does not train."""
    return point.value * 1e9 / point.step_ns if point.step_ns else 0.0


HOW = {"kept": "everything kept", "planned": "with a plan", "no plan": "no plan found", "failed": "fails"}
STUDY_COLUMNS: dict[str, Callable[[StudyPoint], str]] = {
    "needs, all kept": lambda point: "" if point.needed_bytes is None else format_bytes(point.needed_bytes),
    "trains": lambda point: _outcome(point),
    "step": lambda point: "" if point.step_ns is None else format_ns(point.step_ns),
    "times": lambda point: "" if point.slowdown is None else f"{point.slowdown:.2f}",
    "energy": lambda point: "" if point.energy is None else format_joules(point.energy.likely_millijoules),
    "samples a second": lambda point: f"{rate_of(point):,.1f}" if point.step_ns else "",
    "least with a plan": lambda point: "" if point.least_bytes is None else format_bytes(point.least_bytes),
    "swapped out": lambda point: format_bytes(point.out_bytes) if point.step_ns is not None else "",
    "on the host": lambda point: format_bytes(point.host_bytes) if point.step_ns is not None else "",
}
"""Columns of the table after those that name the case."""


def _outcome(point: StudyPoint) -> str:
    if point.retries:
        return f"everything kept, {point.retries} {'retry' if point.retries == 1 else 'retries'}"
    return HOW[point.outcome]


def study_table(study: Study) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of the columns, and a row for each case."""
    left_out = {"samples a second"} if study.kind != "batch" else set[str]()
    if study.kind == "gpu":
        first = {"GPU": lambda point: point.machine, "memory": lambda point: format_bytes(point.memory_bytes)}
    elif study.kind == "budget":
        left_out |= {"needs, all kept", "least with a plan"}  # it is the same in each row, and stands in a sentence
        first = {"budget": lambda point: _budget_name(study, point)}
    else:
        first = {study.varied: lambda point: str(point.value)}
    columns: dict[str, Callable[[StudyPoint], str]] = {**first}
    if all(point.energy is None for point in study.points):
        left_out.add("energy")
    if all(point.least_bytes is None for point in study.points):
        left_out.add("least with a plan")
    columns |= {name: show for name, show in STUDY_COLUMNS.items() if name not in left_out}
    return tuple(columns), [tuple(show(point) for show in columns.values()) for point in study.points]


def _budget_name(study: Study, point: StudyPoint) -> str:
    names = {study.own_bytes: f" ({study.machine})", study.more_bytes: " (with more)"}
    return f"{format_bytes(point.value)}{names.get(point.value, '')}"


LINK_COLUMNS: dict[str, Callable[[StudiedLink], str]] = {
    "GPU": lambda link: link.machine,
    "link out": lambda link: f"{format_bytes(link.out_bytes_per_s)}/s",
    "link back": lambda link: f"{format_bytes(link.back_bytes_per_s)}/s",
    "step, all kept": lambda link: format_ns(link.kept_step_ns),
    "budget": lambda link: format_bytes(link.budget_bytes),
    "step": lambda link: "no plan found" if link.step_ns is None else format_ns(link.step_ns),
    "times": lambda link: "" if link.slowdown is None else f"{link.slowdown:.2f}",
    "compute busy": lambda link: "" if link.step_ns is None else f"{link.utilisation:.0%}",
    "moved out": lambda link: format_bytes(link.out_bytes) if link.step_ns is not None else "",
    "moved back": lambda link: format_bytes(link.back_bytes) if link.step_ns is not None else "",
    "link busy out": lambda link: f"{link.out_busy:.0%}" if link.step_ns is not None else "",
    "link busy back": lambda link: f"{link.back_busy:.0%}" if link.step_ns is not None else "",
}


def link_sentences(study: LinkStudy) -> tuple[str, ...]:
    """Return the answer of a link study in sentences."""
    return tuple([each for each in (*_of_links(study), study.early, QUICK) if each])


def _of_links(study: LinkStudy) -> Iterator[str]:
    planned = [link for link in study.links if link.slowdown is not None]
    refused = [link for link in study.links if link.step_ns is None]
    budgets = {link.budget_bytes for link in study.links}
    share = study.links[0].budget_bytes / max(1, study.links[0].kept_bytes)
    same_bytes = format_bytes(study.links[0].budget_bytes) if len(budgets) == 1 else ""
    budget = same_bytes or f"{share:.0%} of what everything kept reserves,"
    if planned:
        best, worst = (choose(planned, key=lambda link: link.slowdown or 0.0) for choose in (min, max))
        same = f"on {best.machine} a step takes {best.slowdown:.2f} times as long as with everything kept"
        other = f", and {worst.slowdown:.2f} times on {worst.machine}" if best is not worst else ""
        yield f"{study.script}: within {budget} {same}{other}."
    for link in refused:
        least = format_bytes(link.least_feasible_bytes or 0)
        yield f"On {link.machine} no plan was found for {format_bytes(link.budget_bytes)}: the least is {least}."
    known = [link for link in study.links if link.least_bytes is not None]
    if known:
        parts = (f"{format_bytes(link.least_bytes or 0)} on {link.machine}" for link in known)
        yield f"The least budget for at most {study.slowdown:g} times the step: {', '.join(parts)}."


def link_table(study: LinkStudy) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the names of the columns, and a row for each GPU."""
    columns = dict(LINK_COLUMNS)
    columns[f"least for {study.slowdown:g}x"] = lambda link: (
        "" if link.least_bytes is None else format_bytes(link.least_bytes)
    )
    return tuple(columns), [tuple(show(link) for show in columns.values()) for link in study.links]
