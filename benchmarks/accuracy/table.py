"""Sums records up in benchmarks/results/accuracy_DATE.json, and that file in the tables of docs/accuracy.md."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.corpus import LEVELS
from benchmarks.accuracy.figures import figures, summary
from benchmarks.accuracy.public_figures import public_summary, public_table
from benchmarks.accuracy.runner import read_records
from benchmarks.results import RESULTS, ROOT, commit, write_between, write_result

START = "<!-- accuracy: made by python -m benchmarks.accuracy table, do not edit -->"
END = "<!-- accuracy end -->"
DOCUMENT = ROOT / "docs" / "accuracy.md"
PACKAGES = ("torch", "transformers", "timm", "torchvision", "diffusers", "monai", "segmentation_models_pytorch")
PACKAGES += ("accelerate", "torchinfo")
BASELINES = {
    "memtracker": "torch's MemTracker (fake tensors)",
    "accelerate": "accelerate estimate-memory",
    "torchinfo": "torchinfo's estimated total",
}
KINDS = ("rig", *BASELINES, "snapshots", "public")
SETTINGS = {"steps": 3, "cudnn_workspace_bytes": 0, "cublas_handles": 1, "rig_torch": "2.11.0+cu130"}
Record = dict[str, Any]


def write(out: Path) -> None:
    """Read OUT/*.jsonl, write the result file and the document's tables.

    What OUT has no records of is kept from the newest result file, with its versions.
    """
    kinds = {kind: [*read_records(out / f"{kind}.jsonl").values()] for kind in KINDS}
    made = {**_versions(), "python": platform.python_version(), "commit": commit()}
    result: Record = _newest() if not kinds["rig"] else {"case": "accuracy", "versions": made, "settings": SETTINGS}
    if kinds["rig"]:
        result |= {name: kept for name, kept in _newest().items() if name in ("baselines", "snapshots", "public")}
        result["rig"] = summary(kinds["rig"])
        result["cases"] = [_short(record) for record in kinds["rig"]]
        found = {BASELINES[kind]: _beside(kinds["rig"], kinds[kind]) for kind in BASELINES if kinds[kind]}
        result["baselines"] = found or result.get("baselines", {})
    if kinds["snapshots"] or "snapshots" not in result:
        result["snapshots"] = [_short(record) for record in kinds["snapshots"]]
    if kinds["public"]:
        older: Record | None = result.get("public") and {"versions": result["versions"], **result["public"]}
        result["public"] = with_older({**public_summary(kinds["public"]), "versions": made}, older)
    path = RESULTS / f"accuracy_{datetime.date.today():%Y%m%d}.json"
    write_result(path, result)
    if DOCUMENT.exists():
        write_between(DOCUMENT, START, END, tables(result))
    print(tables(result))


def with_older(public: Record, older: Record | None) -> Record:
    """Figures of public tables, with those of an earlier file for families that were not run again."""
    kept = {name: row for name, row in (older or {}).get("families", {}).items() if name not in public["families"]}
    if older is None or not kept:
        return public
    when = older.get("versions", {}).get("commit", "an earlier run")
    families = {**public["families"], **{name: {"kept": when, **row} for name, row in kept.items()}}
    tables = set(public["tables"])
    left_out = [*public["left_out"], *(row for row in older["left_out"] if row["table"] not in tables)]
    rivals = {**{name: told for name, told in older.get("rivals", {}).items() if name in kept}, **public["rivals"]}
    return {**public, "families": families, "rivals": rivals, "all": None, "left_out": left_out}


def _newest() -> Record:
    files = sorted(RESULTS.glob("accuracy_*.json"))
    if not files:
        raise SystemExit("table: given no records of kind rig, and no earlier result file; run the kind rig first")
    return json.loads(files[-1].read_text())


def _beside(rig: Sequence[Record], other: Sequence[Record]) -> Record:
    """Another tool's figures, and elbowroom's on the cases that it could run."""
    done = {record["id"] for record in other if "simulated" in record}
    return {"other": figures(other), "elbowroom": figures([record for record in rig if record["id"] in done])}


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _short(record: Record) -> Record:
    kept = ("id", "family", "error", "measured", "simulated", "equal", "events", "measured_events", "difference")
    kept += ("seconds", "peak_rss_bytes", "remarks")
    return {key: record[key] for key in kept if key in record}


def tables(result: Record) -> str:
    """All tables as Markdown."""
    parts = [rig_table(result["rig"]), verdict_line(result["rig"]["out_of_memory"])]
    if result.get("baselines"):
        parts.append(baseline_table(result["baselines"]))
    if result.get("snapshots"):
        parts.append(snapshot_table(result["snapshots"]))
    if "public" in result:
        parts.append(public_table(result["public"]))
        parts.append(_made_with("The measured tables were made", result["public"].get("versions", {})))
    return "\n\n".join([*filter(None, parts), _made_with("Made", result["versions"])])


def _made_with(what: str, versions: Record) -> str:
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{what} with {told}." if told else ""


def rig_table(rig: Record) -> str:
    """A line per family: how many, how many sequences are equal, errors of the reserved and of the allocated peak."""
    lines = [
        "| family | cases | failed | sequences equal | reserved: median | p95 | worst | under by > 1 % "
        "| allocated: median | p95 | worst | under by > 1 % |",
        "|---|" + "---|" * 11,
    ]
    for name, row in [*rig["families"].items(), ("**all**", rig["all"])]:
        equal = f"{row['equal_share']:.0%} of {row['equal_n']}" if "equal_share" in row else ""
        cells = [name, str(row["n"]), str(row["failed"]), equal]
        for level in ("reserved", "allocated"):
            cells += _cells(row.get(level))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(errors: Record | None) -> list[str]:
    if errors is None:
        return [""] * 4
    return [
        f"{errors['median']:.3%}",
        f"{errors['p95']:.2%}",
        f"{errors['worst']:+.2%}",
        f"{errors['under_share']:.1%}",
    ]


def verdict_line(told: Record) -> str:
    """How often "out of memory" was right."""
    if not told["n"]:
        return "No run with less room was replayed."
    return (
        f"Out of memory or not: {told['right']} of {told['n']} verdicts right ({told['right'] / told['n']:.1%}); "
        f"{told['said_to_fit_but_did_not']} said to fit but did not, {told['said_not_to_fit_but_did']} the other way. "
        f"Of the {told['same_step_n']} jobs rightly said to fail, {told['same_step']} fail in the step that was said."
    )


def baseline_table(baselines: dict[str, Record]) -> str:
    """Other tools, and elbowroom on the same cases."""
    lines = ["| tool | cases | failed | level | median | p95 | worst | under by > 1 % |", "|---|" + "---|" * 7]
    for name, found in baselines.items():
        for tool, row in ((name, found["other"]), ("elbowroom, same cases", found["elbowroom"])):
            for level in LEVELS[:2]:
                if level in row:
                    cells = [tool, str(row[level]["n"]), str(row["failed"]), level, *_cells(row[level])]
                    lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def snapshot_table(snapshots: Sequence[Record]) -> str:
    """Steps of a real GPU."""
    lines = [
        "| snapshot | events | equal before the first difference | peak requested: GPU | simulated | reserved: GPU "
        "| simulated |",
        "|---|" + "---|" * 6,
    ]
    for record in snapshots:
        if "error" in record:
            lines.append(f"| {record['id']} | {record['error']} | | | | | |")
            continue
        events = record["measured_events"]
        same = events if record["equal"] else record["difference"]["equal_events"]
        cells = [record["id"], f"{events:,}", f"{same:,}"]
        for level in ("requested", "reserved"):
            cells += [f"{record['measured'][level]:,}", f"{record['simulated'][level]:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
