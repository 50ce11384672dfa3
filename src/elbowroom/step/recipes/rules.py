"""Rules: may these storages be dropped and rebuilt with the same bits by running these ops again?

Note: [Why a recipe gives the same bits]
A recipe runs ops again, in their order, right before op `before_op`. By induction, each op
computes what it did the first time, if three rules hold:
(1) it gives the same results for the same arguments (tables.py); random ops get the random state of their first run;
(2) each storage that it reads holds what it held at the first run. Either no op of the recipe has made that storage:
    then it must be on the device, and no op may have written it since. Or the recipe has made it: then every op that
    wrote it before this read must be in the recipe;
(3) it writes only storages that the recipe makes, so that nothing else changes. Running statistics are the exception:
    no result depends on them, and the second run gets copies (tables.py: STATISTICS).
The rebuilt storages are complete if all their writers are in the recipe.
"""

from __future__ import annotations

from elbowroom.plan import Recompute
from elbowroom.step.last_step import LastStep, op_label, why_kept
from elbowroom.step.recipes.history import History, history


def check_recipe(step: LastStep, recompute: Recompute) -> str | None:
    """Say why a recompute would not give the same numbers, as a clause that names op and rule; None if it does.

    Whether its inputs are on the device is the plan's business: `inputs_of` names them. Cost: linear in the recipe.
    """
    known = history(step)
    last = max(recompute.recipe)
    if min(recompute.recipe) < step.first_op or last >= step.end_op:
        return f"its recipe has ops outside the last step, {step.first_op} to {step.end_op - 1}"
    if not last < recompute.before_op <= step.end_op:
        return f"its recipe runs before op {recompute.before_op}, and has op {last}; allowed are ops before that one"
    for storage in recompute.storages:
        if problem := not_droppable(step, known, storage, recompute.before_op):
            return f"storage {storage}: {problem}"
    return _wrong_run(step, known, recompute)


def inputs_of(step: LastStep, recompute: Recompute) -> tuple[int, ...]:
    """Return the storages that a recipe reads and does not make, ascending: they must be on the device when it runs."""
    known = history(step)
    made: set[int] = set()
    inputs: set[int] = set()
    for i in recompute.recipe:
        made.update(known.makes.get(i, ()))
        inputs.update(storage for storage in known.reads[i - step.first_op] if storage not in made)
    return tuple(sorted(inputs))


def not_droppable(step: LastStep, known: History, storage: int, before_op: int) -> str | None:
    """Say why a storage may not be dropped until `before_op`; None if it may."""
    n = known.save_of.get(storage)
    if n is None:
        return "autograd does not save it in the last step"
    if problem := why_kept(step, n):
        return problem
    if not step.returns[n]:
        return "it is never read back, so nothing has to rebuild it"
    if before_op > step.first_read[n]:
        return f"it is read back before op {int(step.first_read[n])}, and its recipe runs before op {before_op}"
    if before_op < step.idle_from[n]:
        return f"it is in use until op {int(step.idle_from[n])}, and its recipe runs before op {before_op}"
    if step.used_op[n] < step.end_op:
        return f"{op_label(step.trace, int(step.used_op[n]))} uses it while it is dropped"
    return None


def _wrong_run(step: LastStep, known: History, recompute: Recompute) -> str | None:
    """Say which rule of Note: [Why a recipe gives the same bits] is broken; None if all hold."""
    made: set[int] = set()
    again: set[int] = set()
    for i in recompute.recipe:
        problem = known.refused[i - step.first_op] or _wrong_read(known, i, made, again, recompute.before_op)
        if problem is None:
            made.update(known.makes.get(i, ()))
            problem = _wrong_write(known, i, made, again)
        if problem is not None:
            return f"{op_label(step.trace, i)} {problem}"
        again.add(i)
    for storage in recompute.storages:
        if storage not in made:
            return f"no op of its recipe makes storage {storage}"
        if missing := _missing(known, storage, recompute.before_op, again):
            return f"its recipe lacks {op_label(step.trace, missing[0])}, which writes storage {storage}"
    return None


def _wrong_read(known: History, i: int, made: set[int], again: set[int], before_op: int) -> str | None:
    for storage in known.reads[i - known.first_op]:
        if storage in made:
            if missing := _missing(known, storage, i, again):
                return f"reads storage {storage}, and the recipe lacks op {missing[0]}, which writes it before"
        elif not known.alive(storage, before_op):
            return f"reads storage {storage}, which is not there before op {before_op} and not made by the recipe"
        elif (writer := known.written(storage, i, before_op)) is not None:
            return f"reads storage {storage}, which op {writer} has written since"
    return None


def _wrong_write(known: History, i: int, made: set[int], again: set[int]) -> str | None:
    for storage in known.writes[i - known.first_op]:
        if storage not in made:
            return f"writes storage {storage}, which the recipe does not make"
        if missing := _missing(known, storage, i, again):
            return f"writes storage {storage}, and the recipe lacks op {missing[0]}, which writes it before"
    return None


def _missing(known: History, storage: int, before: int, again: set[int]) -> list[int]:
    """Return the ops before `before` that write a storage and do not run again."""
    return [w for w in known.writers_before(storage, before) if w not in again]
