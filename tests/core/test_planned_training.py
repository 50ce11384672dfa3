"""Planned training: what an estimate says beside "does not fit", from a plan that is found quickly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.answers import planned_training as module
from elbowroom.answers.estimate import estimate
from elbowroom.answers.planned_training import PlannedTraining, planned_training
from elbowroom.machine import Machine, Tier
from elbowroom.report.answer import planned_sentence, rendered
from elbowroom.trace import Op, Part, Remark, Trace
from tests.core.build import Build, chain, machine
from tests.core.test_answer import ANSWER, text_of

GIB = 2**30
PIECE = 8192
"""Bytes of a storage that may move: twice the least size."""


def device_of(pieces: float, outside: int = 0) -> Machine:
    made = machine(outside=outside)
    return replace(made, tiers=(Tier(name="device", capacity_bytes=int(pieces * PIECE) + outside), made.tiers[1]))


def of_weights() -> Trace:
    """Three weights of a piece each, which forward and backward read one after the other, and the optimizer writes."""
    build = Build()
    weights = [build.storage(PIECE, "parameter") for _ in range(3)]
    for weight in weights:
        build.op("forward", 10 * PIECE, reads=(weight,))
    build.phase = "backward"
    for weight in reversed(weights):
        build.op("backward", 10 * PIECE, reads=(weight,))
    build.phase = "optimizer"
    for weight in weights:
        build.op("apply", 10 * PIECE, reads=(weight,), writes=(weight,))
    parts = tuple(Part(first_op=op, end_op=op + 1, storages=()) for op in (6, 7, 8))
    return replace(build.trace(), parts=parts)


def test_a_step_that_does_not_fit_is_planned_and_its_time_is_that_of_the_plan() -> None:
    # four pieces saved one after the other, on a device of three: an op takes ten times as long as a copy
    trace = chain([PIECE] * 4, ns=10 * PIECE)

    found = estimate(trace, device_of(3)).planned

    assert found is not None
    assert (found.fits, found.means, found.allow) == (True, ("swap", "state", "gradient"), ())
    assert found.kept_step_ns == 8 * 10 * PIECE
    assert found.slowdown == 1.0
    assert (found.host_bytes, found.disk_bytes % PIECE) == (0, 0)
    assert found.disk_bytes >= PIECE
    assert found.needed_bytes <= 3 * PIECE


def test_what_fits_is_not_planned_and_neither_is_what_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = chain([PIECE] * 4)
    assert estimate(trace, device_of(3), plans=False).planned is None

    monkeypatch.setattr(module, "course_within", None)  # calling it would fail
    assert estimate(trace, device_of(5)).planned is None


def test_parameters_move_only_where_nothing_less_is_enough() -> None:
    trace = of_weights()
    small = device_of(2)

    found = planned_training(trace, small)

    assert found is not None
    assert (found.fits, found.means) == (True, ("swap", "state", "gradient", "parameter"))
    assert found.allow == ("swap", "recompute", "state", "gradient", "parameter")
    assert found.disk_bytes >= PIECE
    compiled = replace(trace, remarks=(Remark(kind="compiled", name="it", count=1),))
    refused = planned_training(compiled, small)
    assert refused is not None
    assert (refused.fits, refused.needed_bytes) == (False, 3 * PIECE)


def test_only_the_ways_that_are_given_are_tried() -> None:
    found = planned_training(of_weights(), device_of(2), (module.WITHOUT_PARAMETERS,))

    assert found is not None
    assert (found.fits, found.means, found.needed_bytes) == (False, ("swap", "state", "gradient"), 3 * PIECE)


def test_neither_gradients_nor_parameters_move_with_other_processes() -> None:
    trace = of_weights()
    reduced = Op(name="c10d.allreduce_", module="", phase="backward", reads=(0,), writes=(0,), duration_ns=1)

    found = planned_training(replace(trace, ops=(*trace.ops[:-1], reduced)), device_of(2))

    assert found is not None
    assert (found.fits, found.means) == (False, ("swap", "state"))


def test_the_least_that_was_found_counts_what_lies_outside_the_allocator() -> None:
    # two ops of which each holds one piece beside the temporary of another: no plan needs less than both
    trace = chain([PIECE] * 3, temporary=PIECE)

    found = planned_training(trace, device_of(1, outside=500))

    assert found is not None
    assert (found.fits, found.slowdown, found.needed_bytes) == (False, 1.0, 2 * PIECE + 500)


def test_a_trace_that_would_take_minutes_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = chain([PIECE] * 4)
    monkeypatch.setattr(module, "MOST_EVENTS", len(trace.events) - 1)
    assert planned_training(trace, device_of(3)) is None
    assert planned_training(trace, device_of(0)) is None


def test_no_plan_is_searched_for_among_means_that_leave_too_much_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # given three weights that stay without the means "parameter", on a device of two
    asked: list[tuple[str, ...]] = []
    searched = module.course_within
    monkeypatch.setattr(module, "course_within", lambda request: asked.append(request.asked.allow) or searched(request))
    found = planned_training(of_weights(), device_of(2))
    assert found is not None
    assert found.fits
    assert asked == [("swap", "state", "gradient", "parameter")]


def test_the_second_plan_is_not_begun_once_the_first_took_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", -1.0)
    monkeypatch.setattr(module, "least_allocated", lambda _: 0)
    found = planned_training(of_weights(), device_of(2))
    assert found is not None
    assert (found.fits, found.means) == (False, ("swap", "state", "gradient"))


def planned(**changes: object) -> PlannedTraining:
    found = PlannedTraining(
        fits=True,
        means=("swap", "state", "gradient"),
        step_ns=141,
        kept_step_ns=100,
        host_bytes=38 * GIB,
        disk_bytes=0,
        needed_bytes=20 * GIB,
    )
    return replace(found, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "it trains on this card at about 1.4 times the step time, with 38.00 GiB of host memory"),
        ({"step_ns": 104}, "it trains on this card at the step time, with 38.00 GiB of host memory"),
        ({"host_bytes": 0}, "it trains on this card at about 1.4 times the step time"),
        (
            {"disk_bytes": 2 * GIB},
            "it trains on this card at about 1.4 times the step time, with 38.00 GiB of host memory and 2.00 GiB on "
            "the disk",
        ),
    ],
)
def test_the_sentence_has_the_time_and_the_memory_below(changes: dict[str, object], sentence: str) -> None:
    assert planned_sentence(planned(**changes)) == sentence


def test_the_answer_says_it_is_simulated_and_what_to_run() -> None:
    full = replace(ANSWER, fits=False, capacity_bytes=2**20)

    text = " ".join(text_of(rendered("train.py", [replace(full, planned=planned())])).split())
    assert "With a plan it trains on this card at about 1.4 times the step time" in text
    assert "That is simulated, of a plan that was found quickly: `elbowroom run` trains so." in text
    of_all = planned(means=("swap", "state", "gradient", "parameter"))
    text = " ".join(text_of(rendered("train.py", [replace(full, planned=of_all)])).split())
    assert "`elbowroom run --allow swap,recompute,state,gradient,parameter` trains so." in text
    text = " ".join(text_of(rendered("train.py", [replace(full, planned=planned(fits=False))])).split())
    assert "No plan that was tried makes it fit: the least found needs 20.00 GiB of device memory." in text


def test_the_table_of_several_gpus_has_it_in_a_column() -> None:
    full = replace(ANSWER, fits=False, capacity_bytes=2**20)
    answers = [ANSWER, replace(full, planned=planned()), replace(full, planned=planned(fits=False))]

    text = text_of(rendered("train.py", answers), width=200)
    assert "with a plan" in text
    assert "1.4x, 38.00 GiB off it" in text
    assert "needs 20.00 GiB" in text
    assert "with a plan" not in text_of(rendered("train.py", [ANSWER, full]), width=200)
