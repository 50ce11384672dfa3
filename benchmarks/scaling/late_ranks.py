"""Ranks that wait for others: stages of a pipeline, and equal ranks of which one is slow; in simulation.

python -m benchmarks.scaling.late_ranks            # about ten minutes; writes a result file and docs/scaling.md
python -m benchmarks.scaling.late_ranks --table    # only the page
"""

from __future__ import annotations

import argparse
import datetime
from typing import Any

import torch

from benchmarks.results import RESULTS, ROOT, commit, newest_results, write_between, write_result
from benchmarks.scaling.__main__ import PAGE, STUDY
from benchmarks.scaling.trainings import captured
from elbowroom.answers.exchanges import step_times
from elbowroom.capture.job_rank import JobRank
from elbowroom.capture.script import capture_script
from elbowroom.hardware.interconnects import Interconnect
from elbowroom.machine import Machine
from elbowroom.step.exchange_times import with_exchange_times
from elbowroom.step.partners import slowed, with_partners, with_stragglers
from elbowroom.trace import Trace
from elbowroom.version import installed_version

PIPELINE = ROOT / "benchmarks" / "ranks" / "pipeline.py"
GPU, STAGES = "h100-sxm", 4
SCHEDULES = (("GPipe", 1), ("1F1B", 1), ("Interleaved1F1B", 2))
"""Schedules of torch.distributed.pipelining, each with the parts of the model that a rank has."""
MICRO_BATCHES = (4, 8)
SLOWNESS = (1.0, 1.05, 1.1, 1.25, 1.5)
"""What a slow rank's ops take, as a multiple of what those of the other ranks take."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--table", action="store_true", help="only the page")
    if not options.parse_args().table:
        versions = {"elbowroom": installed_version(), "torch": torch.__version__}
        found = {"stragglers": stragglers(), "pipelines": pipelines()}
        path = RESULTS / f"late-ranks_cpu_{datetime.date.today():%Y%m%d}.json"
        write_result(path, {"case": "late-ranks", "commit": commit(), "versions": versions, **found})
    result = newest_results(RESULTS)["late-ranks"]
    for name, table in (("pipelines", pipeline_table), ("stragglers", straggler_table)):
        write_between(PAGE, f"<!-- table: {name} -->", f"<!-- end of table: {name} -->", table(result))


def pipelines() -> list[dict[str, Any]]:
    """Capture all stages of each schedule, and run their steps together."""
    rows: list[dict[str, Any]] = []
    for schedule, parts in SCHEDULES:
        for batches in MICRO_BATCHES:
            words = ["--schedule", schedule, "--stages", str(parts), "--micro-batches", str(batches), "--static"]
            machine = Machine.of(GPU)
            alone = {
                rank: capture_script(PIPELINE, words, machine=machine, job=JobRank.of(rank, STAGES))
                for rank in range(STAGES)
            }
            together = with_partners(alone)
            times = [_times(together[rank]) for rank in range(STAGES)]
            rows.append({
                "schedule": schedule,
                "parts": parts,
                "micro_batches": batches,
                "stages": STAGES,
                "step_ns": [step_ns for step_ns, _ in times],
                "wait_ns": [wait_ns for _, wait_ns in times],
                "alone_ns": [_times(alone[rank])[0] for rank in range(STAGES)],
                "formula_part": (STAGES - 1) / (parts * batches + STAGES - 1),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def stragglers() -> list[dict[str, Any]]:
    """Have one of 8 ranks of a data parallel training be slow."""
    rows: list[dict[str, Any]] = []
    for text, gpu in STUDY:
        trace = with_exchange_times(captured("resnet50", gpu, 8, 8), Interconnect.of(text))
        for factor in SLOWNESS:
            found = with_stragglers(trace, {rank: factor if rank == 7 else 1.0 for rank in range(8)})
            (step_ns, wait_ns), (slow_ns, slow_wait_ns) = _times(found[0]), _times(found[7])
            row = {"step_ns": step_ns, "wait_ns": wait_ns, "slow_step_ns": slow_ns, "slow_wait_ns": slow_wait_ns}
            rows.append({"gpu": gpu, "interconnect": text, "slowness": factor, **row})
            rows[-1]["alone_ns"] = _times(slowed(trace, factor))[0]
            print(rows[-1], flush=True)
    return rows


def pipeline_table(result: dict[str, Any]) -> str:
    """A row for each schedule and number of micro-batches."""
    lines = [
        "| schedule | micro-batches | step | alone | rank 0 waits | rank 3 waits | bubble of equal stages |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in result["pipelines"]:
        step, waits = max(row["step_ns"]), row["wait_ns"]
        name = row["schedule"] + (f", {row['parts']} parts a rank" if row["parts"] > 1 else "")
        lines.append(
            f"| {name} | {row['micro_batches']} | {step / 1e6:.1f} ms | {max(row['alone_ns']) / 1e6:.1f} ms | "
            f"{waits[0] / step:.1%} | {waits[-1] / step:.1%} | {row['formula_part']:.1%} |"
        )
    return "\n".join([_made_by(result), "", *lines])


def straggler_table(result: dict[str, Any]) -> str:
    """A row for each slowness."""
    lines = [
        "| GPU, interconnect | its ops take | step of all | alone it takes | it waits | the others wait |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in result["stragglers"]:
        times = (row[name] / 1e6 for name in ("step_ns", "alone_ns", "slow_wait_ns", "wait_ns"))
        cells = " | ".join(f"{each:.1f} ms" for each in times)
        lines.append(f"| {row['gpu']}, `{row['interconnect']}` | {row['slowness']:g} times | {cells} |")
    return "\n".join([_made_by(result), "", *lines])


def _made_by(result: dict[str, Any]) -> str:
    return f"Simulated; torch {result['versions']['torch']}; commit {result['commit']}, {result['file'][-13:-5]}."


def _times(trace: Trace) -> tuple[int, int]:
    times = step_times(trace)
    assert times is not None
    return times.step_ns, times.wait_ns


if __name__ == "__main__":
    main()
