"""What the CUDA path holds beside what was simulated, for the models of tests/fakecuda: `python -m benchmarks.peaks`.

Each model trains on the rig (tools/rig: the real CUDA build of PyTorch, without a GPU) plain and within budgets, six
steps each; allocated and reserved bytes of the last step stand beside the simulated ones. Memory is true on the rig,
times are not, so none are told. Some models are run again by naming them. `--table` writes docs/benchmarks.md anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.on_rig import add_options, checked_rig, keep, said
from benchmarks.results import RESULTS, ROOT, commit, newest_results, write_between

CASE = "peaks"
SHARES = (0.9, 0.7, 0.5)
"""Budgets, of what plain training reserves."""
STEPS = 6
ALL = (
    "perceptron", "residual net", "residual net in bfloat16", "perceptron in micro-batches", "vgg",
    "separable convolutions", "autoencoder", "volume net", "plane net", "language model", "language model in bfloat16",
    "vision transformer", "recurrent net", "dense net", "adversarial nets",
)  # fmt: skip
"""Of tests/fakecuda/within_models.py, which needs torch."""
PAGE = ROOT / "docs" / "benchmarks.md"
START = "<!-- peaks: made by python -m benchmarks.peaks --table, do not edit -->"
END = "<!-- peaks end -->"
MIB = 2**20
Result = dict[str, Any]


def on_the_rig(rig: Path, model: str) -> Result:
    """What tests/fakecuda/within.py says of one model."""
    script = str(ROOT / "tests" / "fakecuda" / "within.py")
    found = said(rig, script, spec={"model": model, "shares": SHARES, "steps": STEPS})
    return {"plain": found["plain"], "commit": commit(), "runs": [_row(run) for run in found["runs"]]}


def _row(run: Result) -> Result:
    """A run; where its budget was refused, that, and the run within the least one that was named."""
    if "least_feasible_bytes" in run:
        refused = {key: run[key] for key in ("share", "least_feasible_bytes") if key in run}
        return {**refused, "at_least": _row(run["at_least"])} if "at_least" in run else refused
    last = run["steps"][-1]
    measured = {kind: last[kind] for kind in ("allocated", "reserved", "pinned")}
    mismatches = sum(step["mismatches"] for step in run["figures"])
    kept = {key: run[key] for key in ("share", "budget_bytes", "simulated") if key in run}
    return {**kept, "measured": measured, "moved_bytes": run["plan"]["bytes"], "mismatches": mismatches}


def rows(models: dict[str, Result]) -> Iterator[str]:
    """Of the table: one per model and budget."""
    kinds = "allocated: simulated, measured | reserved: simulated, measured"
    yield f"| model | plain reserved | budget | {kinds} | swapped out |"
    yield "|---|---|---|---|---|---|"
    for name, found in models.items():
        for run in found["runs"]:
            model = f"{name} | {_mib(found['plain']['reserved'])}" if run is found["runs"][0] else " | "
            first = f"| {model} | {run['share']:.0%}"
            if "least_feasible_bytes" in run:
                first += f" is refused, {_mib(run['least_feasible_bytes'])} is the least"
            met = _met(run)
            if met is None:
                yield f"{first} | | | |"
                continue
            pairs = [f"{_mib(met['simulated'][k])}, {_mib(met['measured'][k])}" for k in ("allocated", "reserved")]
            yield f"{first}: {_mib(met['budget_bytes'])} | {pairs[0]} | {pairs[1]} | {_mib(met['moved_bytes'])} |"


def _met(run: Result) -> Result | None:
    """What ran within a budget: the one that was asked for, or the least that was named."""
    while run and "measured" not in run:
        run = run.get("at_least", {})
    return run or None


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f}"


def table(result: Result) -> str:
    """The section of the page."""
    asked = [run for found in result["models"].values() for run in found["runs"]]
    met = [found for run in asked if (found := _met(run))]
    off = [
        abs(r["measured"][k] - r["simulated"][k]) / r["simulated"][k] for r in met for k in ("allocated", "reserved")
    ]
    over = sum(run["measured"]["reserved"] > run["budget_bytes"] for run in met)
    commits = ", ".join(sorted({found["commit"] for found in result["models"].values()}))
    refused = [run for run in asked if "measured" not in run]
    least_met = sum(_met(run) is not None for run in refused)
    text = (
        f"{len(result['models'])} models at three budgets each: {len(asked) - len(refused)} were met as asked for and "
        f"{len(refused)} refused; the least that was named then was met {least_met} times. {over} were exceeded; the "
        f"largest difference between simulated and measured is {max(off):.2%}. MiB; torch 2.11 on the rig, no GPU; "
        f"commit {commits}, {result['date']}."
    )
    return "\n".join([text, "", *rows(result["models"])])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("models", nargs="*", help="names in tests/fakecuda/within_models.py; all by default")
    add_options(options)
    given = options.parse_args()
    newest = newest_results(RESULTS).get(CASE, {"models": {}})
    if not given.table:
        rig = checked_rig(options, given)
        for model in given.models or ALL:
            newest["models"][model] = found = on_the_rig(rig, model)
            print(model, json.dumps(found), flush=True)
            keep(CASE, {"models": newest["models"]})
    write_between(PAGE, START, END, table(newest_results(RESULTS)[CASE]))


if __name__ == "__main__":
    main()
