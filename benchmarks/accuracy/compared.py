"""Makes the table of ops that were compared with the rig, from the records of jobs and of single ops."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.accuracy.runner import read_records
from benchmarks.results import ROOT

TABLE = ROOT / "src" / "elbowroom" / "capture" / "virtual" / "ops" / "compared.json"
Record = dict[str, Any]


def write(out: Path) -> None:
    """Read OUT/rig.jsonl and OUT/singles.jsonl, and write the table of the package."""
    records = [record for kind in ("rig", "singles") for record in read_records(out / f"{kind}.jsonl").values()]
    table = table_of(records)
    TABLE.write_text(rendered(table))
    equal = sum(bool(record.get("equal")) for record in records)
    print(f"{len(table)} ops, from {equal} of {len(records)} cases whose events are equal: {TABLE}")


def table_of(records: Iterable[Record]) -> dict[str, dict[str, Record]]:
    """By op and dtype: in how many equal cases it ran, and on which compute capabilities."""
    table: dict[str, dict[str, Record]] = {}
    for record in records:
        if not record.get("equal"):
            continue
        for form in record["compared"]:
            op, _, dtype = form.partition(" ")
            entry = table.setdefault(op, {}).setdefault(dtype, {"cases": 0, "capabilities": []})
            entry["cases"] += 1
            entry["capabilities"] = sorted({*entry["capabilities"], record["capability"]})
    return table


def rendered(table: dict[str, dict[str, Record]]) -> str:
    """JSON, a line for each op."""
    lines = [f"  {json.dumps(op)}: {json.dumps(table[op], sort_keys=True)}" for op in sorted(table)]
    said = "made by python -m benchmarks.accuracy compared, do not edit"
    return f'{{"about": {json.dumps(said)}, "ops": {{\n' + ",\n".join(lines) + "\n}}\n"
