"""The figures of an accuracy table, from lists of errors and of events. Pure; no torch."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.accuracy.corpus import LEVELS, Line

UNDER = 0.01
"""An estimate that is more than 1 % below what was measured is an under-estimate."""

Record = dict[str, Any]


def error_of(simulated: int, measured: int) -> float:
    """Simulated over measured, less 1: negative where the estimate is too low."""
    return simulated / measured - 1


def percentile(values: Sequence[float], percent: float) -> float:
    """Smallest value that at least `percent` % of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def spread(errors: Sequence[float]) -> Record:
    """Median, 95th percentile and worst of the sizes of errors; the worst keeps its sign."""
    sizes = [abs(error) for error in errors]
    return {
        "n": len(errors),
        "median": round(statistics.median(sizes), 6),
        "p95": round(percentile(sizes, 95), 6),
        "worst": round(max(errors, key=abs), 6),
        "lowest": round(min(errors), 6),
        "under_share": round(sum(error < -UNDER for error in errors) / len(errors), 4),
    }


def numbered(events: Iterable[Line]) -> list[Line]:
    """Events with storages numbered by first appearance."""
    first: dict[int, int] = {}
    return [(what, first.setdefault(number, len(first)), size) for what, number, size in events]


def digest(events: Iterable[Line]) -> str:
    """SHA-256 of numbered events, as the corpus has it."""
    return hashlib.sha256("".join(f"{what} {n} {size}\n" for what, n, size in events).encode()).hexdigest()


def first_difference(theirs: Sequence[Line], mine: Sequence[Line], ops: Sequence[str]) -> Record | None:
    """Where two sequences of numbered events part; None where they do not.

    Args:
        theirs: of the rig.
        mine: of the virtual device.
        ops: op of each of `mine`.
    """
    place = next((i for i, pair in enumerate(zip(theirs, mine, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        if len(theirs) == len(mine):
            return None
        place = min(len(theirs), len(mine))
    at = min(place, len(ops) - 1)
    return {
        "equal_events": place,
        "op": ops[at] if ops else "",
        "expected": list(theirs[place]) if place < len(theirs) else None,
        "found": list(mine[place]) if place < len(mine) else None,
    }


def summary(records: Sequence[Record]) -> Record:
    """Figures of each family and of all, from the records of cases."""
    families = dict.fromkeys(record["family"] for record in records)
    grouped = {family: [r for r in records if r["family"] == family] for family in families}
    return {
        "families": {family: figures(members) for family, members in grouped.items()},
        "all": figures(records),
        "out_of_memory": verdicts(records),
    }


def figures(records: Sequence[Record]) -> Record:
    """Figures of some cases."""
    done = [record for record in records if "simulated" in record]
    found: Record = {"n": len(records), "failed": len(records) - len(done)}
    if not done:
        return found
    told = [record["equal"] for record in done if record.get("equal") is not None]
    if told:
        found["equal_share"] = round(sum(told) / len(told), 4)
        found["equal_n"] = len(told)
    for level in LEVELS:
        errors = [
            error_of(record["simulated"][level], record["measured"][level])
            for record in done
            if level in record["measured"] and level in record["simulated"]
        ]
        if errors:
            found[level] = spread(errors)
    return found


def verdicts(records: Sequence[Record]) -> Record:
    """How often "out of memory" was rightly said, and how often the step it happens in."""
    told = [verdict for record in records for verdict in record.get("verdicts", ())]
    wrong = [v["id"] for v in told if v["simulated"] != v["measured"]]
    failed = [v for v in told if v["measured"] and v["simulated"]]
    return {
        "n": len(told),
        "right": len(told) - len(wrong),
        "said_to_fit_but_did_not": sum(v["measured"] and not v["simulated"] for v in told),
        "said_not_to_fit_but_did": sum(v["simulated"] and not v["measured"] for v in told),
        "same_step": sum(v["step"] == v["measured_step"] for v in failed),
        "same_step_n": len(failed),
        "wrong": wrong,
    }
