"""Where the virtual device's events part from the rig's, by kind: `python -m benchmarks.accuracy.differences [OUT]`.

Prints Markdown, the most frequent kind first: what is to be mended next.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.accuracy.runner import read_records
from benchmarks.results import ROOT

Record = dict[str, Any]


def kind_of(difference: Record) -> str:
    """What sort of difference it is: a pure function of the two events and the op."""
    expected, found = difference["expected"], difference["found"]
    op = difference["op"].partition(" [")[0]
    phase = difference["op"].partition("[")[2].partition("]")[0]
    place = f"{op} in {phase}" if op else "the end"
    if expected is None or found is None:
        return f"{place}: one sequence ends"
    if expected[0] != found[0]:
        words = {"a": "allocates", "f": "frees"}
        return f"{place}: the rig {words[expected[0]]} where the virtual device {words[found[0]]}"
    if expected[0] == "f" or expected[2] == found[2]:
        return f"{place}: another storage is freed"
    return f"{place}: another size is allocated"


def report(records: Iterable[Record]) -> str:
    """Markdown: the kinds of first differences, each with its cases."""
    told = [record for record in records if record.get("equal") is not None]
    differing = [record for record in told if not record["equal"]]
    kinds: dict[str, list[Record]] = defaultdict(list)
    for record in differing:
        difference = record.get("difference")
        kinds[kind_of(difference) if difference else "no history of the rig to compare with"].append(record)
    lines = [f"{len(told) - len(differing)} of {len(told)} sequences equal."]
    for kind, members in sorted(kinds.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        lines += ["", f"## {len(members)} x {kind}", *(_line(record) for record in members)]
    return "\n".join(lines)


def _line(record: Record) -> str:
    reserved = record["simulated"]["reserved"] / record["measured"]["reserved"] - 1
    difference = record.get("difference")
    if not difference:
        return f"- {record['id']} (reserved {reserved:+.2%})"
    return (
        f"- {record['id']} (reserved {reserved:+.2%}): after {difference['equal_events']} equal events, rig "
        f"{difference['expected']}, virtual device {difference['found']} in {difference['op']}"
    )


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "accuracy"
    records = read_records(out / "rig.jsonl").values()
    print(report(records))
    failed = [record for record in records if "error" in record]
    if failed:
        print(f"\n## {len(failed)} x failed", *(f"- {r['id']}: {r['error']}" for r in failed), sep="\n")


if __name__ == "__main__":
    main()
