"""Plans of a run for a budget of reserved bytes, if the device has a caching allocator.

Planners count allocated bytes. The allocator reserves more, by the free memory between blocks. How much is known once a
plan is played (elbowroom/simulate/repeated_steps.py). So a plan is made for the whole budget. If it reserves more,
plans are made for less and less, until one fits. If no plan fits, one may do whose blocks fit below the budget as the
allocator's limit. There the allocator gives its cache back to the driver, which hands memory out anew.

One plan decides whether a budget is refused: everything is away, and back on demand.

Note: [The least limit]
Below a larger limit blocks lie elsewhere, and may fit no more: the steps of a net fit below 142 MiB and not below 160.
So limits are looked at from the bytes in blocks upwards, whatever the budget is. The first one below which the blocks
fit is the least limit. A plan whose blocks do not fit below the whole budget runs below its least limit. So there is a
least budget, and every larger one is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import count

from elbowroom.allocator.blocks import SEGMENT_BYTES
from elbowroom.allocator.settings import parse_settings
from elbowroom.errors import Infeasible
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.planners import Asking, Judge, Means, any_recompute, asking
from elbowroom.planners.budget.confirm_reserved import replayed
from elbowroom.planners.budget.infeasible import followed, with_reserved
from elbowroom.planners.budget.least import first_met
from elbowroom.planners.budget.remedies import Refused, with_remedies
from elbowroom.planners.budget.reserved_search import Descending, Look, search
from elbowroom.planners.problem import OF_STATES
from elbowroom.planners.request import PlanRequest, ResolvedBudget
from elbowroom.simulate.repeated_steps import Cycle, cycle, early_waits, fits_below, waits_at_saves
from elbowroom.simulate.reserved_curve import AllocatorUse
from elbowroom.simulate.simulate import simulate
from elbowroom.step.last_step import LastStep, last_step, listed
from elbowroom.step.moves import Moves, moves_of_plan, need, peak_in_one_go, tiers_of_plan
from elbowroom.timeline import Curve, Timeline
from elbowroom.trace import Trace
from elbowroom.units import format_exact_bytes

PLANNER = "swap_greedy"
PLANNER_OF_STATES = "swap_states"
PLANNER_OF_EVERYTHING = "on_demand"
PLANNER_OF_RECOMPUTES = "optimal" if find_spec("highspy") else "capuchin"
"""The best planner that knows recomputes; without the solver, the best one that needs no solver."""
BUDGETS_TRIED = 5
"""Most plans that are tried for one budget."""
ROUNDS_OF_RECOMPUTES = 3
SPARE_PAGES = 2
"""Pages of the allocator that a plan at a limit leaves free: for small storages unknown to it, and another layout.

So does a plan that a training begins with. It knows the workspaces of libraries from a model alone. So does one that
moves parameters: what stays as it begins may lie in segments that the run did not make."""
SPARE_SHARE = 16
"""A plan that moves parameters leaves one such part of the budget free at most: small budgets have few pages."""
LIMIT_SHARE = 100
"""The next limit that is looked at is larger by one such part, and by a segment at least."""
TIME_LIMIT_S = 2.0
"""Time limit of each program that a planner solves: training waits for the plan."""
SLOW = 1.05
"""If a course is slower by this factor than the fastest plan for allocated bytes, a longer search is worth it: the
training has a safe plan meanwhile, and the better one lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Plan, and how a run follows it.

    Attributes:
        plan: what to swap and to recompute.
        waiting: position of a tick -> number of writes that must have ended there; None if only room counts.
        peak_bytes: the most bytes, as a budget of the device counts them.
        begins_bytes: bytes in blocks where its steps begin; 0 without a caching allocator.
        at_limit: whether it keeps within the budget only as the allocator gives its cache back at a limit: Note: [At
            the limit] in simulate/reserved_curve.py.
        is_kept: whether an earlier start of the training made it: see kept_courses.py.
    """

    plan: Plan
    waiting: Mapping[int, int] | None
    peak_bytes: int
    begins_bytes: int = 0
    at_limit: bool = False
    is_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseRequest:
    """Request of a run for one kind of step. It is immutable, so any thread may plan it.

    Attributes:
        trace: the trace of the step.
        machine: the machine that it runs on.
        budget: the budgets of the tiers.
        asked: knobs of the plan.
        judge: tells whether a recompute can be carried out.
        from_first: whether the plan is followed from the first step of the training on.
    """

    trace: Trace
    machine: Machine
    budget: ResolvedBudget
    asked: PlanRequest
    judge: Judge = any_recompute
    from_first: bool = False

    @property
    def use(self) -> AllocatorUse:
        """How the steps use the allocator."""
        return AllocatorUse(self.machine.allocator, from_first=self.from_first)

    def within(self, device_bytes: int) -> CourseRequest:
        """Return the request for another budget of the device."""
        return replace(self, budget=self.budget.on_device(device_bytes))

    def following(self, device_bytes: int) -> CourseRequest:
        """Return the request for another budget of the device, with the least size that follows it.

        A budget that this machine does not have is planned for on one that has it.
        """
        device, *lower = self.machine.tiers
        device = replace(device, capacity_bytes=max(device.capacity_bytes, device_bytes))
        machine = replace(self.machine, tiers=(device, *lower))
        return replace(self.within(device_bytes), machine=machine, asked=self.asked.with_budget(device_bytes))

    def without(self, *means: Means) -> CourseRequest:
        """Return the request without some means."""
        return replace(self, asked=without(self.asked, *means))


def course_within(request: CourseRequest, *, soon: bool = False) -> Course:
    """Return a plan whose peak is within the device's budget. Optimizer states move only if nothing else meets it.

    With managed memory, the bytes that no plan can avoid may lie there. So may they in the budget's margin.

    Args:
        request: the request.
        soon: take a plan that needs the least, if it is within the budget: it need not be fast.

    Raises:
        Infeasible: no plan that was tried is within the budget.
    """
    allowed_bytes, more_bytes = request.budget.device_bytes, request.asked.managed_bytes + request.budget.spare_bytes
    most_bytes = allowed_bytes + more_bytes
    for turn in count():
        try:
            return _course_within(request.within(allowed_bytes), soon=soon)
        except Infeasible as problem:
            if allowed_bytes == most_bytes:
                raise
            least_bytes = problem.least_feasible_bytes
        # Managed memory is slow, so use as little as possible.
        wanted_bytes = allowed_bytes + more_bytes // 8 if turn else least_bytes
        allowed_bytes = min(most_bytes, max(wanted_bytes, allowed_bytes + 1))
    raise AssertionError("the last turn returns or raises")


def without(asked: PlanRequest, *means: Means) -> PlanRequest:
    """Return the knobs without some means."""
    return replace(asked, allow=tuple(each for each in asked.allow if each not in means))


def least_allocated(request: CourseRequest) -> int:
    """Return the least budget of allocated bytes that one plan can meet, in a fraction of the time of a course."""
    try:
        return _asking(request).plan(1).budget_bytes
    except Infeasible as problem:
        return problem.least_feasible_bytes


def remedied(problem: Infeasible, request: CourseRequest) -> Infeasible:
    """Return the refusal with what would help added.

    Args:
        problem: the refusal.
        request: the refused request; moving optimizer states is considered if its trace has parts for them.
    """

    def asked_of(trace: Trace, asked: PlanRequest, device_bytes: int) -> CourseRequest:
        budget = request.budget.on_device(device_bytes)
        return replace(request, trace=trace, asked=asked, budget=budget, judge=any_recompute)

    return with_remedies(
        problem,
        Refused(
            trace=request.trace,
            asked=request.asked,
            plan=lambda trace, asked, device_bytes: course_within(asked_of(trace, asked, device_bytes), soon=True),
            allocated=lambda trace, asked: least_allocated(asked_of(trace, asked, 1)),
        ),
    )


def _course_within(request: CourseRequest, *, soon: bool) -> Course:
    ways = _ways(request)
    of_saves = ways[0]
    if request.machine.allocator == "exact":
        return _exact_within(request)
    tried, budget_bytes = _Tried(), request.budget.device_bytes
    moves_everything = _moves_everything(request.asked)
    if soon:
        if last := _frugal_course(request):
            return last
        if moves_everything:
            raise _refused_reserved(request)
    with suppress(Infeasible):
        if found := _first(of_saves, tried):
            return found
    last = None if soon else _frugal_course(request)
    if last is None and moves_everything:
        raise _refused_reserved(request)
    found = _less_allocated(ways, tried) or _fastest_at_limit(request, tried.plans)
    found = _of_reserved(request, tried, found) or found or last
    if found is None:
        raise _refused_reserved(request, [made for made in tried.plans if made.moves])
    return replace(found, plan=replace(found.plan, budget_bytes=budget_bytes))


def _frugal_course(request: CourseRequest) -> Course | None:
    """Return the course of a plan that needs the least; None if no such plan is within the budget."""
    return _at_limit(request.trace, request.use, _frugalest(request), request.budget.device_bytes)


def _less_allocated(ways: Sequence[CourseRequest], tried: _Tried) -> Course | None:
    """Return the first course found within the budget, of plans for fewer allocated bytes; the first way was begun."""
    for way in ways:
        with suppress(Infeasible):
            found = None if way is ways[0] else _first(way, tried)
            if found := found or _searched(way, tried):
                return found
    return None


def _fastest_at_limit(request: CourseRequest, tried: Sequence[Plan]) -> Course | None:
    """Return the course at a limit of the allocator that is the fastest, waits for the driver included.

    Plans that move nothing are left out: their steps run without hooks, so nothing could hold them to a limit.
    """
    budget_bytes = request.budget.device_bytes
    found = [_at_limit(request.trace, request.use, [made], budget_bytes) for made in tried if made.moves]
    return min(filter(None, found), key=lambda each: _step_ns(request, each), default=None)


def _step_ns(request: CourseRequest, course: Course) -> int:
    """Return the time of a step along a course, waits for the driver included."""
    limit_bytes = course.peak_bytes if course.at_limit else request.budget.device_bytes
    return replayed(request.trace, request.machine, course.plan, limit_bytes).step_ns


def _of_reserved(request: CourseRequest, tried: _Tried, found: Course | None) -> Course | None:
    """Return a faster course than the one found, of the planner that counts reserved bytes and waits for the driver.

    It is asked if the course is much slower than the fastest plan for allocated bytes. None if there is no such
    planner, or no faster course.
    """
    if request.asked.planner is not None or _planner(request.asked.allow) != "optimal":
        return None
    within_ns = 2**62 if found is None else _step_ns(request, found)
    exact = replace(request.machine, allocator="exact")
    if within_ns <= SLOW * min((simulate(request.trace, exact, made).step_ns for made in tried.plans), default=0):
        return None
    allowed_bytes = request.budget.device_bytes - _spare_bytes(request.machine.allocator)
    with suppress(Infeasible):
        allocator, limit_s = request.machine.allocator, request.asked.time_limit_s
        made = _asking(request.within(allowed_bytes), allocator, limit_s).plan(allowed_bytes)
        other = tried.add(request, made) or _fastest_at_limit(request, [made])
        return other if other is not None and _step_ns(request, other) < within_ns else None
    return None


def _ways(request: CourseRequest) -> list[CourseRequest]:
    """Return the requests to try: optimizer states and gradients stay in the first one."""
    of_saves = request.without(*OF_STATES)
    return [of_saves] if of_saves.asked == request.asked else [of_saves, request]


def _exact_within(request: CourseRequest) -> Course:
    """Return a course where allocated bytes are what the device holds. Raises Infeasible."""
    try:
        return _exact_course(request)
    except Infeasible as problem:  # keep the text alone: the error would keep the frames of the training alive
        refused = str(problem), problem.least_feasible_bytes
    raise _refused_exact(request, *refused)


def _exact_course(request: CourseRequest) -> Course:
    """Return such a course, or raise the refusal of the last way, which does not look for what larger budgets allow."""
    refused = "", 0
    for way in _ways(request):
        try:
            tried = _Tried()
            if found := _first(way, tried) or _searched(way, tried):
                return found
        except Infeasible as problem:
            refused = str(problem), problem.least_feasible_bytes
    raise _refused(request, *refused)


def _refused(request: CourseRequest, why: str, least_bytes: int) -> Infeasible:
    """Return the error for a budget of allocated bytes: one that its own frame keeps would keep a training alive."""
    return Infeasible(why, budget_bytes=request.budget.device_bytes, least_feasible_bytes=least_bytes)


def _refused_exact(request: CourseRequest, why: str, least_bytes: int) -> Infeasible:
    """Return that error with the least budget that is met where the least size of what moves follows the budget."""
    found = _refused(request, why, least_bytes)
    if request.asked.with_budget(least_bytes) == request.asked:
        return found
    most_bytes = keeping_bytes(request.trace, request.machine)
    met_bytes = first_met(least_bytes, lambda size: _exact_course(request.following(size)), most_bytes)
    return found if met_bytes == least_bytes else followed(found, met_bytes)


def _moves_everything(asked: PlanRequest) -> bool:
    """Whether the plan that moves everything is among those that may be made: no other one needs less."""
    return asked.planner is None and "swap" in asked.allow


def _frugalest(request: CourseRequest) -> list[Plan]:
    """Return the plans that need the least. If they all fail a budget and may move everything, it is refused.

    They move something: a step that moves nothing runs without hooks, so nothing could hold it to a limit.
    """
    asked, plans = request.asked, list[Plan]()
    if _moves_everything(asked):
        plans.append(_everything(request))
    if asked.planner is not None or "recompute" in asked.allow:
        with suppress(Infeasible):
            plans.append(_asking(request).plan(least_allocated(request)))
    return [made for made in plans if made.moves]


def _refused_reserved(request: CourseRequest, tried: Sequence[Plan] = ()) -> Infeasible:
    """Return the error for a budget of reserved bytes that neither the frugalest plans nor the tried ones meet."""
    budget_bytes = request.budget.device_bytes
    least_bytes = _least_budget(request, tried)
    try:
        _asking(replace(request, asked=_of_everything(request))).plan(1)
        why = f"budget: given {format_exact_bytes(budget_bytes)} of reserved memory.\nGive more."
    except Infeasible as problem:
        why = str(problem).replace(f"given {format_exact_bytes(1)}", f"given {format_exact_bytes(budget_bytes)}")
    found = Infeasible(
        with_reserved(why, least_bytes),
        budget_bytes=budget_bytes,
        least_feasible_bytes=least_bytes,
        counts_reserved=True,
    )
    met_bytes = least_bytes
    while True:
        other = request.following(met_bytes)
        if other.asked == request.asked or _at_limit(other.trace, other.use, _frugalest(other), met_bytes):
            return found if met_bytes == least_bytes else followed(found, met_bytes)
        request, met_bytes = other, max(met_bytes + SEGMENT_BYTES, _least_budget(other))


@dataclass(slots=True)
class _Tried:
    """Plans tried for a budget, and the least that the allocator reserves for one of them."""

    plans: list[Plan] = field(default_factory=list[Plan])
    least_bytes: int = 0

    def add(self, request: CourseRequest, made: Plan) -> Course | None:
        """Add a plan. Returns its first course within the budget, or None."""
        self.plans.append(made)
        budget_bytes = request.budget.device_bytes
        spare_bytes = _spare_bytes(request.machine.allocator) if made.moves else 0
        if not request.from_first:
            most_bytes = budget_bytes // SPARE_SHARE if _moves_parameters(request.trace, made) else 0
            spare_bytes = min(spare_bytes, most_bytes)
        for way in _courses(request.trace, request.machine, made, request.use):
            self.least_bytes = min(self.least_bytes or way.peak_bytes, way.peak_bytes)
            if way.peak_bytes + spare_bytes <= budget_bytes:
                return replace(way, plan=replace(made, budget_bytes=budget_bytes))
        return None


def _moves_parameters(trace: Trace, made: Plan) -> bool:
    return any(trace.storages[swap.storage].category == "parameter" for swap in made.swaps)


def _first(request: CourseRequest, tried: _Tried) -> Course | None:
    """Return a course of the plan for the whole budget, if there is one within it. Raises Infeasible."""
    return tried.add(request, _asking(request).plan(_allowed(request)))


def _allowed(request: CourseRequest) -> int:
    """Return the allocated bytes to plan for: a budget above what the machine has is no limit here."""
    return min(request.budget.device_bytes, request.machine.tiers[0].capacity_bytes)


def _searched(request: CourseRequest, tried: _Tried) -> Course | None:
    """Return the first course found within the budget, of plans for fewer and fewer allocated bytes."""
    found, ask = None, _asking(request)

    def look(allowed_bytes: int) -> Look:
        nonlocal found
        try:
            found = tried.add(request, ask.plan(allowed_bytes))
        except Infeasible as problem:
            return Look(fits=False, least_bytes=problem.least_feasible_bytes)
        return Look(fits=found is not None)

    rounds = ROUNDS_OF_RECOMPUTES if "recompute" in request.asked.allow else BUDGETS_TRIED
    search(Descending(_allowed(request)), look, rounds, first=Look(fits=False))
    return found


def _of_everything(request: CourseRequest) -> PlanRequest:
    """Return the knobs of the plan that moves everything for as long as possible."""
    return replace(request.asked, planner=PLANNER_OF_EVERYTHING, options={})


def _everything(request: CourseRequest) -> Plan:
    """Return the plan that moves everything for as long as possible, whatever the device has."""
    ask = _asking(replace(request, asked=_of_everything(request)))
    try:
        return ask.plan(request.machine.tiers[0].capacity_bytes)
    except Infeasible as problem:
        least_bytes = problem.least_feasible_bytes
    return ask.plan(least_bytes)


def exploring(request: CourseRequest) -> Course | None:
    """Return a course that shows how little a step can hold: everything leaves as soon as its last use ends.

    An observed step cannot show this: it holds what it writes until the next tick. None if the run has its own planner
    or may not swap, or if the lower tiers have no room for everything.
    """
    trace, machine, asked = request.trace, request.machine, request.asked
    if asked.planner is not None or "swap" not in asked.allow:
        return None
    of_states: list[Means] = [each for each in OF_STATES if each in asked.allow]  # here they may be too much
    allow: tuple[Means, ...] = ("swap", *of_states)
    of_saves = replace(request.within(machine.tiers[0].capacity_bytes), asked=replace(asked, allow=allow))
    try:
        made = _everything(replace(of_saves, judge=any_recompute))
    except Infeasible:
        return None
    step = last_step(trace)
    moves = moves_of_plan(step, made)
    peak_bytes = int(need(step, moves).max())
    if of_states:
        waiting = early_waits(step, moves, tiers_of_plan(step, made, moves), None, before_idle=True)
        return Course(plan=made, waiting=waiting, peak_bytes=peak_bytes)
    return Course(plan=made, waiting=waits_at_saves(step, moves), peak_bytes=peak_bytes)


def _asking(request: CourseRequest, allocator: str = "exact", time_limit_s: float = TIME_LIMIT_S) -> Asking:
    planner = request.asked.planner or _planner(request.asked.allow)
    asked = replace(request.asked, planner=planner, follows=False, time_limit_s=time_limit_s)
    machine = replace(request.machine, allocator=allocator)
    return asking(request.trace, machine, request.budget, asked, judge=request.judge)


def _planner(allow: Sequence[Means]) -> str:
    if "recompute" in allow or "algorithm" in allow:
        return PLANNER_OF_RECOMPUTES
    return PLANNER if set(OF_STATES).isdisjoint(allow) else PLANNER_OF_STATES


def course_of(trace: Trace, machine: Machine, made: Plan, budget_bytes: int | None = None) -> Course:
    """Return the course of a plan with the least waits; within the budget if there is such a course.

    Args:
        trace: the trace of the step.
        machine: the machine that it runs on.
        made: the plan.
        budget_bytes: budget of the device; None for any course.
    """
    use = AllocatorUse(machine.allocator)
    ways = _courses(trace, machine, made, use)
    first = next(ways)
    if budget_bytes is None or first.peak_bytes <= budget_bytes:
        return first
    found = next((way for way in ways if way.peak_bytes <= budget_bytes), None)
    if found is None and made.moves and machine.allocator != "exact":
        found = _at_limit(trace, use, [made], budget_bytes)
    return found or first


def keeping_bytes(trace: Trace, machine: Machine, *, from_first: bool = False) -> int:
    """Return the peak of a step that keeps everything, as a budget counts it; `from_first` is that of the request."""
    nothing = _of_nothing(trace, machine.tiers[0].capacity_bytes)
    in_one_go = peak_in_one_go(last_step(trace)) if trace.device != "cpu" else 0  # there each parameter is by itself
    use = AllocatorUse(machine.allocator, from_first=from_first)
    return max(next(_courses(trace, machine, nothing, use)).peak_bytes, in_one_go)


def _of_nothing(trace: Trace, budget_bytes: int) -> Plan:
    """Return the plan that keeps everything."""
    return Plan(trace_id=trace.id, planner="keep", budget_bytes=budget_bytes)


def keeping_within(trace: Trace, machine: Machine, most_bytes: int) -> Course | None:
    """Return the course that keeps everything from the first step on; None if its blocks do not fit on the device.

    Args:
        trace: the trace of the step.
        machine: the machine that it runs on.
        most_bytes: what the device has: the allocator empties its cache before it fails there. A page is left.
    """
    nothing = _of_nothing(trace, most_bytes)
    step, limit_bytes = last_step(trace), most_bytes - page_bytes(machine.allocator)
    moves, use = moves_of_plan(step, nothing), AllocatorUse(machine.allocator, from_first=True)
    least_bytes = max(peak_in_one_go(step), int(need(step, moves).max()))
    if least_bytes > limit_bytes or not fits_below(step, moves, {}, use)(limit_bytes):
        return None
    held = cycle(step, moves, {}, use, limit_bytes=limit_bytes)
    return Course(plan=nothing, waiting={}, peak_bytes=held.most_reserved, begins_bytes=held.begin_allocated)


def _courses(trace: Trace, machine: Machine, made: Plan, use: AllocatorUse) -> Iterator[Course]:
    """Yield courses of a plan in which compute waits for copies alone, the one with the least waits first."""
    step = last_step(trace)
    moves = moves_of_plan(step, made)
    if machine.allocator == "exact":
        yield Course(plan=made, waiting=None, peak_bytes=int(need(step, moves).max()))
        return
    tiers = tiers_of_plan(step, made, moves)
    for rates, before_idle in ((machine, False), (None, False), (None, True)):
        waiting = early_waits(step, moves, tiers, rates, before_idle=before_idle)
        held = cycle(step, moves, waiting, use)
        yield Course(plan=made, waiting=waiting, peak_bytes=held.most_reserved, begins_bytes=held.begin_allocated)


def page_bytes(settings: str) -> int:
    """Return the least that the allocator takes from the driver for a large storage.

    At a limit it counts the storage, and takes whole pages. So it may exceed the limit by less than one.

    Args:
        settings: settings of the allocator, as in PYTORCH_ALLOC_CONF.
    """
    given = parse_settings(settings)
    return given.large_segment_bytes if given.expandable_segments else SEGMENT_BYTES


def _spare_bytes(settings: str) -> int:
    """Return what a plan leaves free that may lie otherwise than simulated; `settings` are those of the allocator."""
    return 0 if settings == "exact" else SPARE_PAGES * page_bytes(settings)


def _at_limit(trace: Trace, use: AllocatorUse, plans: Sequence[Plan], budget_bytes: int) -> Course | None:
    """Return the course of the first plan whose blocks fit below a limit of the allocator that is within the budget."""
    most_bytes = budget_bytes - _spare_bytes(use.settings)
    for made in plans:
        step, moves, waiting = _frugal(trace, made)
        is_enough = fits_below(step, moves, waiting, use)
        least_bytes = _least_limit(step, moves, is_enough, most_bytes)
        if least_bytes is None:
            continue
        limit_bytes = most_bytes if is_enough(most_bytes) else least_bytes
        begins_bytes = cycle(step, moves, waiting, use, limit_bytes=limit_bytes).begin_allocated
        return Course(plan=made, waiting=waiting, peak_bytes=limit_bytes, begins_bytes=begins_bytes, at_limit=True)
    return None


def _least_limit(step: LastStep, moves: Moves, is_enough: Callable[[int], bool], most_bytes: int) -> int | None:
    """Return the allocator's least limit for a plan: Note: [The least limit]. None if it is beyond `most_bytes`."""
    limit_bytes = _whole(int(need(step, moves).max()))
    while limit_bytes <= most_bytes:
        if is_enough(limit_bytes):
            return limit_bytes
        limit_bytes += _whole(limit_bytes // LIMIT_SHARE)
    return None


def _whole(size_bytes: int) -> int:
    """Return a size in whole segments, at least one."""
    return max(1, -(-size_bytes // SEGMENT_BYTES)) * SEGMENT_BYTES


def _frugal(trace: Trace, made: Plan) -> tuple[LastStep, Moves, dict[int, int]]:
    """Return the step, the moves of a plan, and the waits with which everything leaves as soon as possible."""
    step = last_step(trace)
    moves = moves_of_plan(step, made)
    return step, moves, early_waits(step, moves, tiers_of_plan(step, made, moves), None, before_idle=True)


def _least_budget(request: CourseRequest, tried: Sequence[Plan] = ()) -> int:
    """Return the least budget that one of the plans which need the least keeps within, in whole SEGMENT_BYTES.

    Args:
        request: the request.
        tried: plans to consider as well.
    """
    trace, spare_bytes = request.trace, _spare_bytes(request.machine.allocator)
    met_bytes = keeping_bytes(trace, request.machine, from_first=request.from_first)
    for made in (*_frugalest(request), *tried):
        step, moves, waiting = _frugal(trace, made)
        is_enough = fits_below(step, moves, waiting, request.use)
        limit_bytes = _least_limit(step, moves, is_enough, met_bytes - spare_bytes)
        met_bytes = met_bytes if limit_bytes is None else limit_bytes + spare_bytes
    return _whole(met_bytes)


def simulated(trace: Trace, machine: Machine, course: Course, *, begins_empty: bool = False) -> Timeline:
    """Simulate one of many steps under a plan; `begins_empty`: each begins with an empty cache."""
    line = simulate(trace, machine, course.plan)
    if machine.allocator == "exact":
        return line
    step = last_step(trace)
    moves = moves_of_plan(step, course.plan)
    steps = 1 if begins_empty else 0
    limit_bytes, use = course.peak_bytes if course.at_limit else None, AllocatorUse(machine.allocator)
    held: Cycle = cycle(step, moves, course.waiting or {}, use, steps, limit_bytes)
    at_ns = tuple(span.start_ns for span in line.spans if span.kind == "op")
    device = [
        Curve(tier="device", kind="allocated", at_ns=at_ns, size_bytes=tuple(listed(held.allocated))),
        Curve(tier="device", kind="reserved", at_ns=at_ns, size_bytes=tuple(listed(held.reserved))),
    ]
    return replace(line, curves=(*device, *(curve for curve in line.curves if curve.tier != "device")))
