"""Runs the accuracy benchmark: `python -m benchmarks.accuracy [KIND ...]`.

Without a word: rig and table. Records are streamed to OUT/KIND.jsonl, so that an interrupted run goes on where it was;
`--again` starts anew. `table` sums them up in benchmarks/results/accuracy_DATE.json and docs/accuracy.md. `singles`
compares ops one at a time with the rig; `compared` makes the package's table of compared ops of all that was equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.accuracy import compared, public, singles
from benchmarks.accuracy.corpus import DATA, Case, read_corpus
from benchmarks.accuracy.runner import child, run_all
from benchmarks.results import ROOT

SNAPSHOTS = {
    "wed_medium_128_train": (128, False),
    "wed_medium_256_train": (256, False),
    "wed_medium_1024_train": (1024, True),
}
"""Tokens, and whether under autocast."""
KINDS = ("rig", "memtracker", "accelerate", "torchinfo", "snapshots", "public", "singles", "compared", "table")
Record = dict[str, Any]


def main() -> None:
    given = _arguments()
    for kind in given.kinds or ["rig", "table"]:
        if kind == "table":
            from benchmarks.accuracy.table import write

            write(given.out)
            continue
        if kind == "compared":
            compared.write(given.out)
            continue
        if kind == "singles":
            singles.run(given.rig.resolve(), given.out / "singles.jsonl")
            continue
        path = given.out / f"{kind}.jsonl"
        if given.again and path.exists():
            path.rename(path.with_suffix(".before.jsonl"))
        run_all(path, _asked(kind, given), given.jobs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--family", action="append", help="only cases of this family")
    parser.add_argument("--case", action="append", help="only this case; of public tables, those with this in their id")
    parser.add_argument("--lib", action="append", help="only models of this library")
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time")
    parser.add_argument("--limit-s", type=int, default=600, help="time for a case")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "accuracy")
    parser.add_argument(
        "--data", type=Path, default=DATA, help="folder with corpus.jsonl or corpus.jsonl.gz, and hist/"
    )
    parser.add_argument("--snapshots", type=Path, default=ROOT / "tests" / "data" / "allocator")
    parser.add_argument("--public", type=Path, help="folder of the public tables, *.csv")
    parser.add_argument("--table", action="append", help=f"only this one of {', '.join(public.TABLES)}")
    parser.add_argument("--histories", type=Path, help="folder with more full histories, ID.jsonl.gz")
    parser.add_argument("--rig", type=Path, help="folder of the rig (tools/rig), for singles")
    parser.add_argument("--again", action="store_true", help="forget the records there are")
    given = parser.parse_args()
    unknown = set(given.kinds) - set(KINDS)
    if unknown:
        parser.error(f"given {' '.join(sorted(unknown))}; allowed are {', '.join(KINDS)}")
    if "singles" in given.kinds and not given.rig:
        parser.error(
            "given singles without a rig; build one as tools/rig/README.md says, and name its folder with --rig"
        )
    if "public" in given.kinds and not given.public:
        parser.error("given public without a folder; name the one of the public tables with --public")
    return given


def _asked(kind: str, given: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Record]]]:
    if kind == "public":
        yield from public.asked(given.public, given.limit_s, given.table, given.case)
    elif kind == "snapshots":
        for name, (tokens, autocast) in SNAPSHOTS.items():
            request: Record = {"mode": kind, "data": str(given.snapshots), "name": name}
            request |= {"tokens": tokens, "autocast": autocast}
            yield name, lambda n=name, r=request: {"id": n, "family": "real GPU", **child(r, given.limit_s)}
    else:
        for case in read_corpus(given.data):
            if _wanted(case, given):
                yield case.id, lambda case=case: _record(kind, case, given)


def _wanted(case: Case, given: argparse.Namespace) -> bool:
    library = (case.spec.get("model") or case.spec["gan"][0])["lib"]
    return (
        (not given.family or case.family in given.family)
        and (not given.case or case.id in given.case)
        and (not given.lib or library in given.lib)
    )


def _record(kind: str, case: Case, given: argparse.Namespace) -> Record:
    request: Record = {"mode": kind, "spec": case.spec, "data": str(given.data.resolve())}
    if kind == "rig":
        request |= {
            "sha256": case.result.get("history", {}).get("sha256_steps23"),
            "history": _history(case.id, [given.data / "hist", given.histories]),
            "capacities": [{"id": each.id, "env": each.spec["env"]} for each in case.capacities],
        }
    answer = child(request, given.limit_s)
    measured = {each.id: each for each in case.capacities}
    for verdict in answer.get("verdicts", ()):
        real = measured[verdict["id"]]
        verdict |= {"measured": real.out_of_memory, "measured_step": real.result["step"], "family": real.family}
    return {"id": case.id, "family": case.family, "measured": case.peaks, **answer}


def _history(name: str, folders: list[Path | None]) -> str | None:
    files = (folder / f"{name}.jsonl.gz" for folder in folders if folder)
    return next((str(file.resolve()) for file in files if file.exists()), None)


if __name__ == "__main__":
    main()
