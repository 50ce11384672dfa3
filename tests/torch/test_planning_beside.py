"""Plans that take long are made beside the training: steps go on, within the budget and with the same numbers."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.capture.recording.observing_director import Observing
from elbowroom.planners import Means
from elbowroom.run import background_planning as beside
from elbowroom.run import step_planning as swaps
from elbowroom.run.learner import Learner
from elbowroom.run.recompute import planning as recomputes
from elbowroom.run.room import run_of
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Outcome,
    Setup,
    Training,
    assert_equal,
    finish,
    mlp,
    needs,
    ordinary,
    same_within,
    seeded,
    tight_budget,
    train,
    train_within,
)
from tests.torch.test_recompute_trust import ChangingThroughout
from tests.torch.test_recompute_trust import training as trained

STEPS = 8


class Gate:
    """Planning waits before it, if it is closed, and training for no plan then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._open = threading.Event()
        made = swaps.kept_or_planned

        def through(*args: Any, **more: Any) -> Any:
            assert self._open.wait(60)
            return made(*args, **more)

        for module in (swaps, recomputes):
            monkeypatch.setattr(module, "kept_or_planned", through)
        self.open()

    def close(self) -> None:
        self._monkeypatch.setattr(beside, "PATIENCE_S", 0.0)
        self._open.clear()

    def open(self) -> None:
        """Have what waits planned, too."""
        self._monkeypatch.setattr(beside, "PATIENCE_S", 60.0)
        self._open.set()
        for thread in threading.enumerate():
            if thread.name == "elbowroom planning":
                thread.join()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def usual() -> Training:
    return ordinary(mlp(), torch.randn(256, 64))


def with_gate(gate: Gate, closes: int | None, opens: int, of: Setup = usual) -> Setup:
    """A training whose steps from one number to another, less one, plan in vain."""

    def setup() -> Training:
        gate.open()
        training = of()
        bare = training.step

        def step(number: int) -> Tensor:
            if number == opens:
                gate.open()
            found = bare(number)
            if number == closes:
                gate.close()
            return found

        training.step = step
        return training

    return setup


def test_steps_go_on_swapped_whole_until_the_plan_is_made(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a planner that is at work from the end of the first step to the beginning of that of number 5
    setup = with_gate(gate, 0, 5)
    plain = train(setup, STEPS)
    budget = tight_budget(setup)
    recorded: list[Any] = []
    record = Observing.record
    monkeypatch.setattr(Observing, "record", lambda *given: recorded.append(given) or record(*given))

    # when
    inside, room = train_within(setup, STEPS, budget, allow=["swap"])

    # then the first step alone is recorded, and those after it hold and move what it does
    assert_equal(inside, plain)
    assert [step.mode for step in room.steps] == ["observe"] + ["frugal"] * 4 + ["plan"] * 3
    assert len(recorded) == 1
    assert len({step.swapped_out_bytes for step in room.steps[:5]}) == 1
    assert room.steps[5].swapped_out_bytes < room.steps[4].swapped_out_bytes
    assert sum(step.mismatches for step in room.steps) == 0


def test_a_plan_is_followed_until_a_better_one_is_made(gate: Gate) -> None:
    # given a first plan at once; the second step is recorded, and planned for from its end on
    setup = with_gate(gate, 1, 5)
    plain = train(setup, STEPS)
    budget = tight_budget(setup)
    with er.within(budget, min_size=MIN_SIZE_BYTES, allow=["swap"]) as room:
        training, losses, traces = seeded(setup), list[Tensor](), list[er.Trace | None]()
        for number in range(STEPS):
            losses.append(training.step(number))
            traces.append(room.trace)

    # then the better one, made for the trace of that step, is followed from the step on that begins once it is there
    assert_equal(Outcome(losses, training.state()), plain)
    assert [step.mode for step in room.steps] == ["observe"] + ["plan"] * 7
    assert traces[0] is None
    assert all(trace is traces[1] for trace in traces[1:6])
    assert all(trace is traces[6] for trace in traces[6:])
    assert traces[5] is not traces[6]


def test_a_budget_that_cannot_be_met_is_said_where_a_step_begins_once_that_is_known(gate: Gate) -> None:
    setup = with_gate(gate, 1, 4)
    least, _ = needs(with_gate(gate, None, 0))
    training = seeded(setup)

    # when the first step's plan is made at once: its memory is rounded up, and it says nothing
    def run() -> None:
        with er.within(least // 2, min_size=MIN_SIZE_BYTES, allow=["swap"]):
            finish(training, STEPS)

    with pytest.raises(er.Infeasible, match="The least that"):
        run()
    # then training goes on without
    finish(training, STEPS, 4)


def test_steps_go_on_swapped_whole_until_recomputes_are_planned(gate: Gate) -> None:
    # given calls that the third step records, and a plan of what they can make again that is made by number 5
    def budget(_: Setup) -> int:
        least, peak = needs(with_gate(gate, None, 0), allow=("recompute",))
        return least + (peak - least) // 3

    # when
    room = same_within(with_gate(gate, 2, 5), STEPS + 1, budget, allow=["recompute"])

    # then two of the steps that follow it prove it, and the rest copies nothing
    assert [step.mode for step in room.steps] == ["observe"] * 3 + ["frugal"] * 2 + ["plan"] * 4
    assert [step.recomputed_bytes > 0 for step in room.steps] == [False] * 5 + [True] * 4
    assert [step.swapped_out_bytes > 0 for step in room.steps] == [True] * 7 + [False] * 2
    assert sum(step.mismatches for step in room.steps) == 0


def test_what_is_rebuilt_wrong_lies_below_too_until_another_plan_is_made(gate: Gate) -> None:
    # given a factor that changes from number 3 on, in which recomputes are proven, and no other plan before number 6
    def changing() -> Training:
        return trained(ChangingThroughout(3))()

    setup = with_gate(gate, 3, 6, changing)
    plain = train(setup, STEPS)
    least, peak = needs(changing, allow=("recompute",))
    losses, training = list[Tensor](), seeded(setup)

    # when
    def run() -> None:
        for number in range(STEPS + 8):
            losses.append(training.step(number).clone())

    with (
        pytest.warns(RuntimeWarning, match="did not come out the same when they were recomputed"),
        pytest.raises(er.Infeasible),  # in the end nothing can be recomputed any more
        er.within(least + (peak - least) // 6, min_size=MIN_SIZE_BYTES, allow=["recompute"]) as room,
    ):
        run()

    # then all that is dropped is swapped too, and backward gets that
    assert len(room.steps) >= 6
    assert [step.mismatches > 0 for step in room.steps][:6] == [False] * 3 + [True] * 3
    assert all(step.swapped_out_bytes > 0 for step in room.steps[:6])
    assert all(torch.equal(found, loss) for found, loss in zip(losses, plain.losses, strict=False))


def test_leaving_ends_a_planning_that_would_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    # given plans that are searched for without an end
    begun = threading.Event()

    def endless(*_: Any, **__: Any) -> Any:
        begun.set()
        while True:
            pass

    budget = tight_budget(usual)
    for module in (swaps, recomputes):
        monkeypatch.setattr(module, "kept_or_planned", endless)
    monkeypatch.setattr(beside, "PATIENCE_S", 0.0)
    before = threading.active_count()

    # when the training ends
    with er.within(budget, min_size=MIN_SIZE_BYTES, allow=["swap"]) as room:
        finish(seeded(usual), 2)
        assert begun.wait(60)

    # then so does the search
    assert threading.active_count() == before
    assert "2 steps, no plan yet" in room.summary()


def test_leaving_waits_for_the_planning(gate: Gate) -> None:
    setup = with_gate(gate, 0, STEPS)
    budget = tight_budget(setup)
    before = threading.active_count()
    later = threading.Timer(0.2, gate.open)

    with er.within(budget, min_size=MIN_SIZE_BYTES, allow=["swap"]) as room:
        finish(seeded(setup), 3)
        later.start()
    later.join()

    assert [step.mode for step in room.steps] == ["observe"] + ["frugal"] * 2
    assert threading.active_count() == before
    assert "3 steps, no plan yet" in room.summary()


class Owned(dict[Any, Any]):
    """A dictionary that notes in which threads it is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.changed_in: set[str] = set()

    def __setitem__(self, key: Any, value: Any) -> None:
        self.changed_in.add(threading.current_thread().name)
        super().__setitem__(key, value)


class OwnedSet(set[Any]):
    """A set that notes in which threads something is added."""

    def __init__(self) -> None:
        super().__init__()
        self.changed_in: set[str] = set()

    def add(self, element: Any) -> None:
        self.changed_in.add(threading.current_thread().name)
        super().add(element)


@pytest.mark.parametrize(
    ("share", "allow"),
    # with states a second step is observed before one explores
    [(1.0, ("swap", "state")), (1.0, ("swap",)), (0.9, ("swap",)), (0.5, ("swap",))],
)
def test_planning_changes_nothing_that_the_training_reads(share: float, allow: Sequence[Means]) -> None:
    # given a run whose records note which threads change them, and a budget that is met, explored for or refused
    least, _ = needs(usual, allow=allow)
    with er.within(int(share * least), min_size=MIN_SIZE_BYTES, allow=allow) as room:
        learner: Any = run_of(room)._learner
        owned = {name: OwnedSet() for name in ("_explored", "_met")} | {"_wanted": Owned(), "_known": Owned()}
        for name, records in owned.items():
            setattr(learner if hasattr(learner, name) else learner.met_kinds, name, records)
        # when
        with suppress(er.Infeasible):
            finish(seeded(usual), STEPS)
    # then the training's own thread alone has
    assert owned["_known"].changed_in | owned["_explored"].changed_in
    assert set[str]().union(*(records.changed_in for records in owned.values())) == {threading.main_thread().name}


def test_what_is_planned_from_does_not_change() -> None:
    # given all questions that a run asks of its planning thread
    asked: list[Any] = []
    make = beside.BackgroundPlanner.make

    def noted(self: Any, key: Any, work: Any, then: Any, shared: Any = ()) -> Any:
        asked.append(work)
        return make(self, key, work, then, shared)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside.BackgroundPlanner, "make", noted)
        train_within(usual, STEPS)
    # then each is a function of the package and arguments of which none is an object of the run
    assert asked
    for work in asked:
        assert isinstance(work, partial)
        assert inspect.isfunction(work.func)
        question, *_ = work.args
        assert type(question).__dataclass_params__.frozen
        assert not any(isinstance(getattr(question, field.name), Learner) for field in fields(question))


def test_a_plan_that_was_carried_out_is_kept_where_nothing_better_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # given that no plan meets the budget again, and that the present one cannot be read in the new records
    def setup() -> Training:
        return ordinary(mlp(64, 6), torch.randn(64, 64))

    plain, made, asked = train(setup, STEPS), swaps.plan_of, list[object]()

    def once(question: swaps.StepQuestion) -> swaps.StepKind:
        asked.append(question)
        if len(asked) == 1:
            return made(question)
        raise er.Infeasible("too little", budget_bytes=1, least_feasible_bytes=2)

    def unreadable(*_: object) -> None:
        raise er.InvalidPlan("it reads what is away")

    monkeypatch.setattr(swaps, "plan_of", once)
    monkeypatch.setattr(swaps, "course_of_moved", unreadable)
    # when
    inside, room = train_within(setup, STEPS)
    # then
    assert len(asked) > 1
    assert_equal(inside, plain)
    assert [(step.mode, step.mismatches) for step in room.steps[1:]] == [("plan", 0)] * (STEPS - 1)
