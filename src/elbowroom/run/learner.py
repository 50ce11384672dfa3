"""Learning: turns recordings of steps into what the next steps of their kind do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import final

from elbowroom.capture.assemble import StepRead, step_read
from elbowroom.capture.rates import with_rates_of
from elbowroom.capture.recording.recorder import Recorder
from elbowroom.capture.steady import steady, with_idle_of, with_idle_of_capture
from elbowroom.errors import Infeasible, UsageError, again
from elbowroom.machine import Machine, TierName
from elbowroom.notices import Once
from elbowroom.planners.budget.run_budget import Course, keeping_bytes, without
from elbowroom.planners.request import PlanRequest, ResolvedBudget
from elbowroom.run.background_planning import BackgroundPlanner
from elbowroom.run.beforehand import Question
from elbowroom.run.conv_algorithms import LayerChoices
from elbowroom.run.forked import NoRoom
from elbowroom.run.frugal import Frugal
from elbowroom.run.given_plan import GivenPlan, warn_of_peak
from elbowroom.run.hard_room import HardRoom, Needs, UnsureLimit
from elbowroom.run.kind_totals import beyond
from elbowroom.run.met_kinds import MetKinds
from elbowroom.run.options import live_modules
from elbowroom.run.recompute.call_recorder import Calls
from elbowroom.run.recompute.controller import Recomputing
from elbowroom.run.recompute.planning import Planned
from elbowroom.run.refusals import Refusals
from elbowroom.run.run_warnings import help_without_limit, to_observe, warn_unplanned
from elbowroom.run.similar_shapes import Target
from elbowroom.run.step_kinds import StepKind, known_of
from elbowroom.run.step_planning import (
    Before,
    better_plan,
    first_plan,
    plan_after_proof,
    plan_of,
    plan_of_calls,
    scaled_plan,
    smaller_plan,
)
from elbowroom.run.step_question import Answer, Explores, Followed, MadePlan, Next, RefusedPlan, StepQuestion
from elbowroom.timeline import Timeline
from elbowroom.trace import Trace
from elbowroom.units import format_exact_bytes

MAX_EXPLORED = 2
"""Most kinds of steps without a plan that may each run one more step with everything away, to learn more.

If shapes change each time, no step of the kind may come again, and the training would go on beyond its budget."""

MOST_CORRECTIONS = 2
"""Most times that a kind of step is planned again because it reserved more than its budget."""

STAYS = 4
"""Steps in a row in which recipes are refused, after which a step is observed anew; twice as many each time."""

MOST_ANEW = 2
"""Most times that a step is observed anew as recipes are refused. After that, what is refused is never dropped."""

MOST_SHORT = 3
"""Observed steps of one signature in which memory ran out, after which its steps go on without a plan."""
SURE_SHARE = 0.8
"""Share of the budget: if a first step needs less, later ones surely fit too; else one more is recorded."""


@final
class Learner:
    """All kinds of steps that were observed.

    Args:
        machine: this computer with assumed rates; the attribute `machine` has the measured ones later.
        budget: the budgets of all tiers.
        asked: the knobs of the plans.
        tier: the lower tier.
        given: a plan to follow in place of planning.
        recomputing: what is known of recomputes.
        layers: what is known of the algorithms of the layers.
        held_to: how the budget follows a hard limit on the process; None without such a limit.
        most_bytes: returns the most bytes that a caching allocator has held in this run; 0 without one.

    Attributes:
        free_bytes: bytes of the device from which an `auto` budget was made; 0 for any other.
        min_size_bytes: smaller storages stay.
        follows: whether `min_size_bytes` follows from the budget.
        frugal: the policy for steps without a plan.
        unplanned_as: why some steps follow no plan for good, and what would help; "" if there are none.
    """

    def __init__(
        self,
        machine: Machine,
        budget: ResolvedBudget,
        asked: PlanRequest,
        tier: TierName,
        given: GivenPlan | None,
        recomputing: Recomputing,
        layers: LayerChoices,
        held_to: HardRoom | None = None,
        most_bytes: Callable[[], int] = int,
    ) -> None:
        self.machine = machine
        self.budget_bytes = budget.device_bytes
        self.free_bytes = budget.free_bytes
        self._budget = budget
        self._asked = asked
        self.min_size_bytes, self.follows = asked.min_size_bytes, asked.follows
        self._tier: TierName = tier
        self._given = given
        self._recomputing = recomputing
        self._compiled_backward = False
        self._held_to = held_to
        self._once = Once()
        self.layers = layers
        self.met_kinds = MetKinds(asked.min_size_bytes)
        self.frugal = Frugal()
        self._most_bytes = most_bytes
        self._unmet: dict[Hashable, Trace] = {}
        self._explored: set[Hashable] = set()
        self._met: set[Hashable] = set()
        self._nearby = self.met_kinds.nearby
        self._frugal_bytes = 0
        self._hopeless: set[Hashable] = set()
        self._scaled: dict[Target, StepKind | Infeasible | None] = {}
        self._background = BackgroundPlanner(None if held_to is None else held_to.apart)
        self._unplanned: set[Hashable] = set()
        self.unplanned_as = ""
        self._had_no_room: set[Hashable] = set()
        self._ran_short, self._lacked = Counter[Hashable](), dict[Hashable, int]()
        self._refusals = Refusals()
        self._reserved_more: dict[Hashable, int] = {}
        self._captured: StepKind | None = None
        self._anew = Counter[Hashable]()

    def question(self, path: str | None, module: str | None, arguments: Sequence[str]) -> Question:
        """Return the question how a script fits into the budget: see Note: [Beforehand] in beforehand.py.

        Args:
            path: path of the script; None if it is a module.
            module: dotted name of the module.
            arguments: its command-line arguments.

        Raises:
            UsageError: such a check cannot answer for the settings of this run.
        """
        asked = self._asked
        unknown = {
            "another allocator": self.machine.allocator == "exact" and bool(self.machine.compute_capability),
            "a plan": self._given is not None,
            "parameters that may move": asked.parameters,
            "include or exclude": bool(asked.include or asked.exclude),
            "managed memory": bool(asked.managed_bytes),
        }
        if found := [what for what, is_so in unknown.items() if is_so]:
            raise UsageError(
                f"run: given {found[0]} and --check; allowed is a CUDA device with torch's own allocator, or the CPU, "
                "and a plan that the run makes of all modules; leave --check out: a budget that is too small is then "
                "refused after two steps"
            )
        return Question(
            path=path,
            module=module,
            arguments=tuple(arguments),
            budget_bytes=self.budget_bytes if self._held_to is None else self._held_to.most_bytes(),
            free_bytes=self.free_bytes,
            allow=asked.allow,
            min_size_bytes=asked.min_size_bytes,
            follows=asked.follows,
            planner=asked.planner,
            options=asked.options,
            measures_first=self._held_to is not None,
        )

    def begin_with(self, trace: Trace, course: Course, allocator: str) -> None:
        """Follow a plan of a capture of the script from the first step on, made for these settings of the allocator."""
        self.machine = replace(self.machine, allocator=allocator)
        self._captured = replace(known_of(trace, course, self.machine, self.budget_bytes), is_captured=True)

    @property
    def unsure_limit(self) -> UnsureLimit | None:
        """The hard limit that a refusal named from one request for memory; None if there is no such refusal."""
        return None if self._held_to is None else self._held_to.unsure

    def refused_beforehand(self, found: Infeasible) -> Infeasible:
        """Return the refusal of a capture, with the hard limit that is too low named."""
        return found if self._held_to is None else self._held_to.refused_beforehand(found)

    @property
    def limit_bytes(self) -> int:
        """The most that steps under a plan may hold: the budget, and most of the margin that `auto` leaves."""
        return self.budget_bytes + self._budget.spare_bytes

    @property
    def shared(self) -> str:
        """What is divided among the ranks of this computer, as a line; "" if nothing is."""
        named = ", ".join(self._budget.divided)
        return f"divided among the {self._budget.sharers} ranks of this computer: {named}" if named else ""

    @property
    def in_parts(self) -> bool:
        """Whether observed steps run their optimizers in parts, so that optimizer states may move."""
        return self._asked.in_parts

    @property
    def gradients(self) -> bool:
        """Whether gradients leave in observed steps, so that plans may move them, the given one included."""
        return self._asked.gradients or (self._given is not None and self.in_parts)

    @property
    def parameters(self) -> bool:
        """Whether uses of parameters are recorded, so that plans may move them."""
        return self._asked.parameters

    def starts_anew(self) -> bool:
        """Forget all plans if a hard limit was lowered: the next step shows what it leaves. Returns whether it was."""
        if self._held_to is None or not self._held_to.was_lowered() or self._given is not None:
            return False
        self._background.all_arrived()
        self.met_kinds.start_anew()
        self._scaled.clear()
        self._had_no_room.clear()
        self._ran_short.clear()
        self._lacked.clear()
        self._frugal_bytes = 0
        return True

    def expected(self, key: Hashable) -> StepKind | None:
        """Return the kind that a step of this signature will most likely be; None: observe it.

        Raises:
            Infeasible: the planning thread has found that no plan meets the budget.
        """
        self._background.all_arrived()
        if key in self._unplanned or self.met_kinds.awaits(key):
            return None
        known = self.met_kinds.expected(key)
        may_lack_states = self._given is None and known is not None and not self._is_sure(known)
        if known is not None and may_lack_states and self.met_kinds.wants_states(key, known):
            return None
        return known or self._nearby.of(key) or self._of_scaled(key) or self._begins(key)

    def _is_sure(self, known: StepKind) -> bool:
        """Whether a kind surely fits, whatever its first step did not show."""
        return known.course.peak_bytes < SURE_SHARE * self.budget_bytes and not known.plan.swaps

    def _begins(self, key: Hashable) -> StepKind | None:
        """Return the kind that a capture of the script has shown, for the first step that may be of it."""
        known, self._captured = self._captured, None
        if known is not None:
            self.met_kinds.learnt(key, known)
        return known

    def _of_scaled(self, key: Hashable) -> StepKind | None:
        """Return the made up kind that a step of new sizes follows; None if there is none (yet)."""
        for target in self._nearby.targets(key) if self._given is None else ():
            if target not in self._scaled and (trace := self._nearby.scaled(target)) is not None:
                self._scaled[target] = None
                work = partial(scaled_plan, self._question(target, trace))
                self._background.make(target, work, partial(self._made_up, target, trace), (trace,))
            if target in self._scaled and not isinstance(self._scaled[target], Infeasible):
                return self._nearby.of(key)  # or it is being planned
        return None

    def _made_up(self, target: Target, trace: Trace, found: Callable[[], StepKind | Infeasible]) -> None:
        """Note the plan for a scaled trace, or that there is none."""
        try:
            self._scaled[target] = made = found()
        except NoRoom:  # below a hard limit
            return
        if not isinstance(made, Infeasible):
            made.keep_all_bytes = keeping_bytes(trace, self.machine)
            self._nearby.made_up(target, made)

    def may_be_recorded(self, key: Hashable) -> bool:
        """Whether a step of this signature may be recorded: not while it is planned, and not too often.

        If no plan for its sizes meets the budget, its first step is watched instead: see `too_large`.
        """
        targets = list(self._nearby.targets(key))
        is_too_large = bool(targets) and isinstance(self._scaled.get(targets[-1]), Infeasible)
        if is_too_large and self._given is None and not self.met_kinds.totals.of(key).steps:
            return False
        if self._background.under_way(key) or any(map(self._background.under_way, targets)):
            return False
        return self.met_kinds.records_few()

    def is_to_measure(self, known: StepKind) -> bool:
        """Whether to record a step of a kind that was made up: what it holds was never measured.

        Below a hard limit the records would take what is left for storages.
        """
        is_new = known.keep_all_bytes > 0 and not known.measured
        return is_new and self._held_to is None and self.met_kinds.records_few()

    def is_unplanned(self, key: Hashable) -> bool:
        """Whether no plan for steps of this signature will be made: a hard limit has no room for planning."""
        return key in self._unplanned

    def read(self, key: Hashable, recorder: Recorder) -> Callable[[], StepRead] | None:
        """End the recording of a step of this signature.

        Returns:
            A function that returns what there is to learn from it; None if a hard limit has no room to read it.
        """
        if self._held_to is None:
            return partial(step_read, recorder.stop(), self._tier, self.machine)
        found = self._held_to.read(recorder, self._tier, self.machine)
        if found is None:
            self._has_no_room(key, "what was recorded of a step cannot be read")
            return None
        return lambda: found

    def reserved_more(self, key: Hashable, known: StepKind, more_bytes: int) -> None:
        """Plan again, for `more_bytes` less: a settled step has left that much reserved beyond the budget.

        Storages that stay lie where the steps before the plan put them, and those of the model in segments that the run
        did not choose. So the free space around them differs from the simulated one.
        """
        tried = self._reserved_more.get(key, 0)
        is_ours = self._given is None and known.rebuilder is None and not (known.shared or known.chosen)
        if not is_ours or tried == MOST_CORRECTIONS or self._background.under_way(key):
            return
        self._reserved_more[key] = tried + 1
        less_bytes = max(1, known.course.peak_bytes - more_bytes)
        work = partial(smaller_plan, self._question(key, known.trace), less_bytes, known)

        def apply(made: Callable[[], StepKind]) -> StepKind | None:
            with suppress(NoRoom):
                return self._follows(key, made())
            return None

        self._background.make(key, work, apply, (known.trace,))

    @property
    def spare_bytes(self) -> int:
        """Bytes of saves for which there is room in RAM in a step without a plan: twice what such a step held is left.

        So a training that fits by far is not swapped because its steps are all different.
        """
        if self.machine.allocator != "exact" or not self._frugal_bytes:
            return 0
        return max(0, self.budget_bytes - 2 * self._frugal_bytes)

    def too_large(self, key: Hashable, held_bytes: int) -> Infeasible:
        """Return the refusal of a step without a plan that came to hold more than the budget."""
        problems = (self._scaled.get(target) for target in self._nearby.targets(key))
        least_bytes = max((each.least_feasible_bytes for each in problems if isinstance(each, Infeasible)), default=0)
        least_bytes = max(least_bytes, held_bytes)
        return Infeasible(
            f"budget: given {format_exact_bytes(self.budget_bytes)}.\n"
            f"A step of {self.met_kinds.totals.of(key).inputs}, which is new, holds {format_exact_bytes(held_bytes)},\n"
            "although all that it saves leaves at once.\n"
            f"Give at least {format_exact_bytes(least_bytes)}, or make the largest inputs smaller.",
            budget_bytes=self.budget_bytes,
            least_feasible_bytes=least_bytes,
        )

    def observed(self, key: Hashable, step: StepRead, *, first: bool) -> StepKind | None:
        """Learn from a step that was swapped whole.

        Args:
            key: its signature.
            step: what was recorded of it.
            first: whether it was the first step of the training, or of an optimizer (see steady.py).

        Returns:
            What to do from now on; None if that needs another observation.

        Raises:
            Infeasible: no plan meets the budget.
            InvalidPlan: the given plan is not for this step.
        """
        trace = step.trace
        was_least = self.frugal.leaves_at_save(key)
        self.frugal.learnt(key, trace)
        held = steady(trace) if first else trace  # its memory is rounded up
        self._frugal_bytes = max(self._frugal_bytes, step.peak_bytes)
        if was_least and beyond(step.peak_bytes, self.budget_bytes):  # another step would show nothing else
            self._hopeless.add(key)
        self._recorded(key, step, held)
        self._hold(step.peak_bytes, planned=False)
        return self._plan_first(key, trace, held, first=first)

    def _plan_first(self, key: Hashable, trace: Trace, held: Trace, *, first: bool) -> StepKind | None:
        """Plan after an observed step: see `observed`. `held` is its trace with the memory of a steady step."""
        if self._given is not None and self._given.plan.recomputes:
            if not first:  # which may make states, or weights
                self._unmet[key] = trace
            return None
        if first and self.parameters and keeping_bytes(held, self.machine) > self.budget_bytes:
            return None  # without an optimizer the first step counts no uses of parameters, the next one does
        trace = self.layers.offered(held)

        def apply(found: Callable[[], Answer]) -> StepKind | None:
            try:
                known = self._made(key, found(), None, may_wait=first)
            except NoRoom:
                self._has_no_room(key, "steps cannot be planned")
                return None
            if known is None:
                if not first and key not in self._unplanned:
                    self._unmet[key] = trace
                return None
            known.refined = self._is_sure(known) and not self.layers.wanted
            self.met_kinds.learnt(key, known)
            return known

        question = self._question(key, trace)
        if first and self.in_parts:  # the next step shows how long gradients live: so it explores with them away
            question = replace(question, may_explore=False)
        work = partial(first_plan, question)
        return self._background.make(key, work, apply, (trace,))

    def _has_no_room(self, key: Hashable, what: str) -> None:
        """Go on without a plan for steps of this signature, if a hard limit leaves no room for one a second time.

        The first time something else may hold the room for a moment, such as files that wait to be written.
        """
        if key in self._had_no_room:
            self._goes_unplanned(key, what)
        self._had_no_room.add(key)

    def ran_short(self, key: Hashable, needed_bytes: int) -> None:
        """Note that memory ran out in an observed step, so that nothing could be learnt from it.

        Args:
            key: its signature.
            needed_bytes: the least that would have been enough where it ran out; 0 if that is not known.
        """
        self._ran_short[key] += 1
        self._lacked[key] = max(self._lacked.get(key, 0), needed_bytes)
        if self._ran_short[key] >= MOST_SHORT and not self.is_unplanned(key):
            self._goes_unplanned(key, "memory runs out in each step that is observed", seen_bytes=self._lacked[key])

    def _goes_unplanned(self, key: Hashable, why: str, least_bytes: int = 0, seen_bytes: int | None = None) -> None:
        """Follow no plan in steps of this signature from now on: they can do with what the first one had.

        Args:
            key: the signature.
            why: the reason, in words.
            least_bytes: the least budget that a plan was found to meet; 0 if that is not known.
            seen_bytes: the least with which a step may be observed, or 0; None if one was.
        """
        if self._held_to is not None:
            helps = to_observe("limit", seen_bytes) if seen_bytes else self._held_to.help_of(least_bytes)
            self._held_to.is_short(why, helps)
        else:
            helps = to_observe("budget", seen_bytes) if seen_bytes else help_without_limit(least_bytes)
            inputs = self.met_kinds.totals.of(key).inputs
            warn_unplanned(self._once, inputs, self.budget_bytes, helps, is_planned=seen_bytes is None)
        self.unplanned_as = self.unplanned_as or f"{why}. {helps}"
        self._unplanned.add(key)
        self.met_kinds.forget_all(key)

    def _need_no_plan(self) -> bool:
        """Whether steps that no plan holds go on without one, and are not refused.

        A step without a plan holds as little as it can. So it goes on where a hard limit set the budget, and where such
        a step has held the budget.
        """
        if self._given is not None:
            return False
        if self._held_to is not None:
            return self._held_to.sets(self.budget_bytes)
        return 0 < self._most_bytes() <= self.limit_bytes

    def _hold(self, peak_bytes: int, *, planned: bool) -> None:
        """Set the budget to what a hard limit leaves, after a recorded step in which storages held `peak_bytes`."""
        if self._held_to is None:
            return
        if planned:
            self.budget_bytes = self._held_to.budget_after_plan(peak_bytes, self.budget_bytes)
        else:
            self.budget_bytes = self._held_to.budget_bytes(peak_bytes)
        self._budget = self._budget.on_device(self.budget_bytes)

    def _question(self, key: Hashable, trace: Trace) -> StepQuestion:
        """Return all that planning a step of this signature depends on, as it is now."""
        return StepQuestion(
            trace=trace,
            machine=self.machine,
            budget=self._budget,
            asked=self._asked,
            given=self._given,
            compiled_backward=self._compiled_backward,
            recomputes=self._recomputing.allowed,
            banned=self._recomputing.banned,
            other_kinds_bytes=self._refusals.others_bytes(key),
            explored=key in self._explored,
            may_explore=self._may_explore(key),
        )

    def _may_explore(self, key: Hashable) -> bool:
        """Whether a step of this signature may run with everything away. It may hold more than a hard limit allows."""
        if self._held_to is not None or key in self._hopeless:
            return False
        return key not in self._explored and len(self._explored - self._met) < MAX_EXPLORED

    def _made(self, key: Hashable, answer: Answer, before: StepKind | None, *, may_wait: bool) -> StepKind | None:
        """Apply the answer of planning.

        Args:
            key: the signature of the step.
            answer: the answer to its question.
            before: what steps of the kind do until now; None if they are observed.
            may_wait: whether another step may be observed before a refusal is raised.

        Returns:
            What to do from now on; None if nothing is known.

        Raises:
            Infeasible, InvalidPlan: no plan meets the budget.
        """
        match answer:
            case MadePlan(known):
                if before is not None:
                    self._met.add(key)
                self._warn_of_peak(known)
                return known
            case Followed(known):
                return known
            case Explores(known, refused):
                if self._may_explore(key):  # another kind may have taken the last chance meanwhile
                    self._explored.add(key)
                    if before is None:
                        self._refusals.note(key, refused.least_bytes)
                    return known
                return self._refuse(key, refused, may_wait=may_wait)
            case RefusedPlan():
                return self._refuse(key, answer, may_wait=may_wait)
            case Next.OBSERVE_STATES if before is not None:
                self.met_kinds.wants(key, before.schedule.saved)
        return before

    def _refuse(self, key: Hashable, refused: RefusedPlan, *, may_wait: bool) -> None:
        if refused.least_bytes:
            self._refusals.note(key, refused.least_bytes)
        if not may_wait:
            if self._need_no_plan():
                self._goes_unplanned(key, "no plan holds steps", refused.least_bytes)
                return
            found = refused.explained()
            raise again(found if self._held_to is None else self._held_to.explained(found))

    def _warn_of_peak(self, known: StepKind) -> None:
        """Warn once if the given plan holds more here than its budget."""
        if self._given is not None and known.course.peak_bytes > self.budget_bytes:
            warn_of_peak(self._once, known.course.peak_bytes, self.budget_bytes)

    def _seen(self, step: StepRead) -> None:
        """Learn from a recorded step which modules exist, and what was compiled."""
        self._asked = self._asked.among(live_modules)
        if step.compiled:  # compiled code uses parameters past all operators
            self._asked = without(self._asked, "parameter")
        self._recomputing.recorded(step.compiled, self._given and self._given.plan)
        self._compiled_backward |= step.compiled_backward

    def _recorded(self, key: Hashable, step: StepRead, trace: Trace) -> None:
        """Learn from an observed step what needs no plan: modules, rates, memory."""
        self._seen(step)
        self.machine = with_rates_of(self.machine, step.happenings)
        self.met_kinds.totals.recorded(key, step.peak_bytes, keeping_bytes(trace, self.machine))
        self.met_kinds.observed(key)

    def ran(self, key: Hashable, known: StepKind, step: StepRead) -> tuple[StepKind, Timeline]:
        """Learn from a step that ran under a plan: it is steady, and has the durations of a planned step.

        Args:
            key: its signature.
            known: the kind that it was taken for.
            step: what was recorded of it.

        Returns:
            What to do from now on, and the measured timeline of the step.

        Raises:
            Infeasible: no plan meets the budget, and neither does the one that the step ran under.
        """
        self._seen(step)
        line = replace(step.line, trace_id=known.trace.id, outside_bytes=self.machine.outside_bytes)
        self.met_kinds.totals.recorded(key, line.peak_allocated_bytes, 0)
        if known.shared:
            self.met_kinds.measured(known)
            if beyond(line.peak_allocated_bytes, self.budget_bytes):
                self.met_kinds.held_more(key, known, known.schedule.saved)
            return known, line
        if known.refined and known.plan.decides:
            return known, line
        self.machine = with_rates_of(self.machine, step.happenings)
        trace = (with_idle_of_capture if known.is_captured else with_idle_of)(step.trace, known.trace)
        self.met_kinds.totals.of(key).keep_all_bytes = keeping_bytes(trace or step.trace, self.machine)
        was_refined, known.refined = known.refined, True
        if trace is None and not was_refined:
            if not known.is_captured:
                self.met_kinds.surprised(key, known.schedule.saved)
            return known, line
        if not self._background.under_way(key):
            # without moves it does not matter from when on a storage is idle
            self._hold(line.peak_allocated_bytes, planned=True)
            known = self._better(key, known, trace, self.layers.offered(trace or step.trace))
        return known, line

    def _better(self, key: Hashable, known: StepKind, alike: Trace | None, trace: Trace) -> StepKind:
        """Plan again, for a steady step. Returns what to do from now on: the new plan, or the old one until then."""

        def apply(found: Callable[[], Answer]) -> StepKind | None:
            try:
                better = self._made(key, found(), known, may_wait=False)
            except NoRoom:  # the plan that the step followed is good enough
                return known
            if better is not known and better is not None:
                self.met_kinds.learnt(key, better)
            return better

        before = Before(
            plan=known.plan, rebuilds=known.rebuilder is not None, alike=alike, is_captured=known.is_captured
        )
        work = partial(better_plan, self._question(key, trace), before)
        shared = (trace, known.trace, *([] if alike is None else [alike]))
        return self._background.make(key, work, apply, shared) or known

    def wants_calls(self, key: Hashable, known: StepKind | None) -> bool:
        """Whether a step of this signature, taken for this kind, should record its calls."""
        return known.wants_calls if known is not None else key in self._unmet

    def called(self, key: Hashable, known: StepKind | None, calls: Calls) -> StepKind | None:
        """Learn from the calls of a step.

        Args:
            key: its signature.
            known: its kind; None if it was observed, as no plan with swaps alone meets the budget.
            calls: its recorded calls.

        Returns:
            What to do from now on.

        Raises:
            Infeasible: no plan meets the budget.
        """
        trace = known.trace if known is not None else self._unmet.pop(key)
        if known is not None:
            known.wants_calls = False
        work = partial(plan_of_calls, self._question(key, trace), calls, is_needed=known is None)

        def apply(made: Callable[[], Planned | None]) -> StepKind | None:
            try:
                return self._follows(key, made())
            except NoRoom:
                if known is None:
                    self._unmet[key] = trace
                    self._has_no_room(key, "steps cannot be planned")
                return None
            except (Infeasible, MemoryError) as problem:
                if not self._need_no_plan():
                    raise
                least_bytes = problem.least_feasible_bytes if isinstance(problem, Infeasible) else 0
            if known is None:
                self._goes_unplanned(key, "no plan holds steps", least_bytes)
            return None

        return self._background.make(key, work, apply, (trace, *calls.parts())) or known

    def _follows(self, key: Hashable, found: Planned | StepKind | None) -> StepKind | None:
        """Follow a new plan from now on, in place of what was known of the kind."""
        known = self._recomputing.carried_out(found) if isinstance(found, Planned) else found
        if known is not None:
            self.met_kinds.learnt(key, known)
        return known

    def proven(self, key: Hashable, known: StepKind, wrong: set[int]) -> StepKind:
        """Learn from a step that proves its recomputes.

        Args:
            key: its signature.
            known: its kind.
            wrong: saves that were not rebuilt with the same bits.
        """
        self._recomputing.ban(wrong)
        if self._background.under_way(key):  # until that plan is made, steps go on proving
            return known
        if not wrong:
            known.proofs -= 1
            return known
        question = replace(self._question(key, known.trace), machine=known.machine)
        without = self._question(key, self.layers.offered(known.trace))
        work = partial(plan_after_proof, question, without, known.calls)

        def apply(made: Callable[[], Planned | StepKind]) -> StepKind | None:
            with suppress(NoRoom):  # steps go on proving, and with each proof a plan is tried
                return self._follows(key, made())

        parts = [] if known.calls is None else known.calls.parts()
        return self._background.make(key, work, apply, (question.trace, without.trace, *parts)) or known

    def refused(self, key: Hashable, known: StepKind, saves: set[int]) -> StepKind:
        """Learn from a step under recipes which of them were refused: it called something else than the recorded one.

        Where that stays so, a step is observed anew, and with it what it calls.

        Args:
            key: its signature.
            known: its kind.
            saves: what was swapped in place of being dropped.
        """
        known.others_in_row = known.others_in_row + 1 if saves else 0
        tries = self._anew[key]
        if known.others_in_row < STAYS << tries or self._given is not None or self._background.under_way(key):
            return known
        known.others_in_row = 0
        self._anew[key] += 1
        if tries >= MOST_ANEW:
            return self.proven(key, known, saves)
        self.met_kinds.wants(key, known.schedule.saved)
        return known

    def step_begins(self) -> None:
        """Note that a step begins: before the first one, a hard limit leaves most for storages."""
        if self._held_to is not None:
            self._held_to.begins()

    def refusal(self, problem: BaseException, needs: Needs) -> Infeasible | None:
        """Return what to raise for an error that ends the run, if a hard limit on the process caused it."""
        if self._held_to is None:
            return None
        return self._held_to.refusal(problem, self.budget_bytes, needs)

    def no_recomputes(self) -> None:
        """Plan all kinds of steps without recomputes from now on."""
        self._recomputing.stop()
        for key, known in self.met_kinds:
            if known.rebuilder is None:
                continue
            self.met_kinds.forget(key, known)
            with suppress(Infeasible):  # raised where the next step was observed
                question = self._question(key, self.layers.offered(known.trace))
                self.met_kinds.learnt(key, replace(plan_of(question), refined=True))

    def close(self) -> None:
        """Drop plans under way, and make no more."""
        self._background.close()
