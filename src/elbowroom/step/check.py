"""check: may this plan run on this trace? One answer for planners, simulator and runtime."""

from __future__ import annotations

from elbowroom.errors import InvalidPlan, UsageError
from elbowroom.machine import Machine, TierName
from elbowroom.plan import Plan, Recompute, Swap
from elbowroom.step.algorithms import why_not_chosen, with_algorithms
from elbowroom.step.idle_windows import STATES
from elbowroom.step.last_step import LastStep, last_step, listed, op_label, peak_point, storage_label, why_kept
from elbowroom.step.moves import Moves, is_away, moves_of_plan, need, tier_peak, tiers_of_plan, windows_by_storage
from elbowroom.step.recipes import check_recipe
from elbowroom.step.routes import route_to, staging_bytes
from elbowroom.step.trace_diff import first_difference
from elbowroom.trace import Trace
from elbowroom.units import format_bytes


def check(trace: Trace, plan: Plan, machine: Machine | None = None, other: Trace | None = None) -> None:
    """Raise unless a plan can run on its trace (and machine) with unchanged numbers and inside its budget.

    Args:
        trace: the training.
        plan: the plan to check.
        machine: where it runs; its tiers must hold what the plan puts there.
        other: the trace that the plan was made for, if at hand. If it is not `trace`, the error says where the two
            first differ.

    Raises:
        InvalidPlan: names the storage, the op and the rule that is broken.
    """
    if other is not None and plan.trace_id == other.id != trace.id:
        found = first_difference(trace, other)
        where = f"it differs first in this: {found}" if found else "they differ in times only"
        raise InvalidPlan(f"{_of_another(trace, plan)}; {where}; plan again with elbowroom.plan for this trace")
    check_step(last_step(trace), plan, machine)


def check_step(step: LastStep, plan: Plan, machine: Machine | None = None) -> None:
    """Check a plan as `check` does, given the facts of the last step."""
    if plan.trace_id != step.trace.id:
        raise InvalidPlan(f"{_of_another(step.trace, plan)}; plan again with elbowroom.plan for this trace")
    window_of = step.window_of
    ticks = set(step.ticks.tolist())
    windows = step.windows_of((swap.storage, swap.out_after_op) for swap in plan.swaps)
    for swap, n in zip(plan.swaps, windows, strict=True):
        if problem := _problem(step, swap, n, ticks):
            raise InvalidPlan(f"{_named(step, swap.storage)} must be kept: {problem}; leave it out of the plan's swaps")
    for algorithm in plan.algorithms:
        if problem := why_not_chosen(step, algorithm):
            raise InvalidPlan(
                f"algorithm {algorithm.choice!r} for op {algorithm.op}: {problem}; leave it out of the plan"
            )
    for recompute in plan.recomputes:
        if problem := _no_recompute(step, recompute, window_of, ticks):
            first, before = _named(step, recompute.storages[0]), recompute.before_op
            raise InvalidPlan(f"{first} cannot be recomputed before op {before}: {problem}; leave that out of the plan")
    step = with_algorithms(step, plan.algorithms)
    moves = moves_of_plan(step, plan)
    _check_inputs(step, moves)
    _check_budget(step, plan, moves)
    if machine is not None:
        _check_machine(step, plan, moves, machine)


def _named(step: LastStep, storage: int) -> str:
    return storage_label(step.trace, storage) if storage < len(step.trace.storages) else f"storage {storage}"


def _of_another(trace: Trace, plan: Plan) -> str:
    return f"the plan was made for trace {plan.trace_id!r}, this is trace {trace.id!r}"


def _problem(step: LastStep, swap: Swap, n: int | None, ticks: set[int]) -> str | None:
    """Say what is wrong with one swap, as a clause; None if nothing is."""
    if swap.storage >= len(step.trace.storages):
        return f"the trace has only storages 0 to {len(step.trace.storages) - 1}"
    if n is None and step.trace.storages[swap.storage].category in STATES:
        return "the ops of the last step leave it no time in which nothing uses it"
    if n is None:
        return f"autograd does not save it in the last step (ops {step.first_op} to {step.end_op - 1})"
    if n >= len(step.saves):
        return _misplaced_state(step, swap, n, ticks)
    return why_kept(step, n) or _misplaced(step, swap, n, ticks) or _touched(step, swap, n)


def _misplaced(step: LastStep, swap: Swap, n: int, ticks: set[int]) -> str | None:
    """Say why the runtime cannot start or end the swap where the plan does; None if it can."""
    save, back = step.saves[n], swap.back_before_op
    idle_from, first_read = int(step.idle_from[n]), int(step.first_read[n])
    if swap.out_after_op != save.saved_at - 1:
        when = "before autograd saves it" if swap.out_after_op < save.saved_at - 1 else "too late"
        return f"out_after_op {swap.out_after_op} is {when}; allowed is {save.saved_at - 1}"
    if not save.read_at:
        return None if back == step.end_op else f"it is never read back, so back_before_op must be {step.end_op}"
    if back > first_read:
        return f"back_before_op {back} is after its first read at position {first_read}"
    if back <= idle_from:
        return f"back_before_op {back} is not after position {idle_from}, from which it is idle"
    if back not in ticks:
        return f"back_before_op {back} is not a position at which autograd saves or reads a storage"
    return None


def _misplaced_state(step: LastStep, swap: Swap, n: int, ticks: set[int]) -> str | None:
    """Say why the swap of an optimizer state or gradient may not start or end there; None if it may."""
    out, back = int(step.idle_from[n]) - 1, swap.back_before_op
    next_use = int(step.first_read[n])
    cyclic = next_use <= out
    if swap.out_after_op != out:
        return f"out_after_op {swap.out_after_op} is not its last use before it is idle; allowed is {out}"
    if not step.returns[n]:
        return None if back == next_use else f"it is not used again, so back_before_op must be {next_use}"
    if cyclic and not (step.first_op <= back <= next_use or out + 1 < back <= step.end_op):
        ways = f"{step.first_op} to {next_use}, in the next step, or {out + 2} to {step.end_op}"
        return f"back_before_op {back} is not before its next use; allowed are {ways}"
    if not cyclic and not out + 1 < back <= next_use:
        return f"back_before_op {back} is not before its next use; allowed are {out + 2} to {next_use}"
    if back not in ticks and back not in (next_use, step.first_op, step.end_op):
        return f"back_before_op {back} is no position at which autograd saves or reads a storage, nor its next use"
    return None


def _touched(step: LastStep, swap: Swap, n: int) -> str | None:
    """Say which op uses the storage while it is away; None if none does."""
    op = int(step.used_op[n])
    if op < swap.back_before_op and op < step.end_op:
        window = f"[{int(step.idle_from[n])}, {swap.back_before_op})"
        return f"{op_label(step.trace, op)} uses it while it is away in {window}"
    return None


def _no_recompute(step: LastStep, recompute: Recompute, window_of: dict[int, int], ticks: set[int]) -> str | None:
    """Say what is wrong with one recompute, inputs aside (`_check_inputs`); None if nothing is."""
    before = recompute.before_op
    if problem := check_recipe(step, recompute):
        return problem
    if before not in ticks:
        return f"before_op {before} is not a position at which autograd saves or reads a storage"
    for storage in recompute.storages:
        if before <= (idle_from := int(step.idle_from[window_of[storage]])):
            return f"before_op {before} is not after position {idle_from}, from which storage {storage} is idle"
    return None


def _check_inputs(step: LastStep, moves: Moves) -> None:
    """Raise unless all that each recipe reads is on the device when it runs."""
    windows = windows_by_storage(step, moves)
    for rebuild in moves.rebuilds:
        storages = listed(step.storage_of(rebuild.n))
        for storage, first, last in zip(storages, listed(rebuild.begin), listed(rebuild.end), strict=True):
            # A recipe rebuilds its storages after its position: later recipes there find them, earlier ones do not.
            windows[storage] = [(first, last + 1)]
    for rebuild in moves.rebuilds:
        point = int(step.point_of[rebuild.position - step.first_op])
        for storage in rebuild.inputs:
            if not step.born[storage] <= point < step.gone[storage]:
                gone = "is not allocated then"
            elif any(is_away(point, *window) for window in windows.get(storage, ())):
                gone = "is away or not rebuilt yet"
            else:
                continue
            raise InvalidPlan(
                f"the recipe before op {rebuild.position} reads {storage_label(step.trace, storage)}, which {gone}; "
                "keep that one, bring it back before, or leave the recompute out of the plan"
            )
        for storage in listed(step.storage_of(rebuild.n)):
            ((first, last),) = windows[storage]
            windows[storage] = [(first, min(last, point))]


def _check_budget(step: LastStep, plan: Plan, moves: Moves) -> None:
    needed = need(step, moves)
    peak = int(needed.max())
    if peak > plan.budget_bytes:
        op = step.op_at(peak_point(step, needed))
        raise InvalidPlan(
            f"the plan holds {format_bytes(peak)} ({peak} bytes) at {op_label(step.trace, op)}, above its budget of "
            f"{format_bytes(plan.budget_bytes)} ({plan.budget_bytes} bytes); raise the budget or swap more there"
        )


def _check_machine(step: LastStep, plan: Plan, moves: Moves, machine: Machine) -> None:
    """Raise unless every tier of the plan exists, is linked to the device and has room."""
    tiers = tiers_of_plan(step, plan, moves)
    capacity = {tier.name: tier.capacity_bytes for tier in machine.tiers}
    for name in sorted(set(tiers)):
        if name not in capacity or not _linked(machine, name):
            raise InvalidPlan(
                f"the plan swaps to {name!r}, which machine {machine.name!r} does not link to its device; "
                f"its tiers are {', '.join(capacity)}; plan again for this machine"
            )
        held = tier_peak(step, moves, [tier == name for tier in tiers])
        if held > capacity[name]:
            raise InvalidPlan(
                f"the plan puts up to {format_bytes(held)} ({held} bytes) on {name!r}, which holds "
                f"{format_bytes(capacity[name])} ({capacity[name]} bytes) on machine {machine.name!r}; "
                "give it more room, raise the budget or plan again for this machine"
            )
    staged = [size for size, name in zip(listed(moves.size), tiers, strict=True) if name == "disk"]
    if staged and len(route_to(machine, "disk")) > 1:
        room = staging_bytes(step, moves, machine, tiers)
        if max(staged) > room:
            raise InvalidPlan(
                f"the plan leaves {format_bytes(room)} ({room} bytes) of 'host' for storages on their way to the disk, "
                f"the largest of which has {format_bytes(max(staged))} ({max(staged)} bytes); give 'host' more room or "
                "swap less to it"
            )


def _linked(machine: Machine, tier: TierName) -> bool:
    try:
        return bool(route_to(machine, tier))
    except UsageError:
        return False
