"""python -m benchmarks.scaling: steps on 1 to 4,096 ranks in simulation; writes a result file and docs/scaling.md.

python -m benchmarks.scaling            # about ten minutes
python -m benchmarks.scaling --table    # only the page
"""

from __future__ import annotations

import argparse
import datetime
from dataclasses import replace
from typing import Any

import torch

from benchmarks.results import RESULTS, ROOT, commit, newest_results, write_between, write_result
from benchmarks.scaling.published import PUBLISHED, Published
from benchmarks.scaling.trainings import captured
from elbowroom.answers.exchanges import step_times
from elbowroom.hardware.interconnects import Communicator, Interconnect, all_reduce_ns
from elbowroom.machine import Machine
from elbowroom.planners import plan
from elbowroom.simulate.simulate import simulate
from elbowroom.step.exchange_times import kind_of, with_exchange_times
from elbowroom.step.last_step import last_step
from elbowroom.trace import Trace
from elbowroom.version import installed_version

PAGE = ROOT / "docs" / "scaling.md"
RANKS = (1, 8, 32, 128, 512, 1024, 4096)
ALGORITHMS = ("ring", "tree", "hierarchical")
STUDY = (("nvlink-2,4xedr", "v100-sxm2-16gb"), ("pcie-4,1xethernet-100", "rtx4090"))
SWAPPED = ("rtx4090", "pcie-4,1xethernet-100")
BUDGET = 0.6
"""Part of what the training needs that is left to it where it swaps."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--table", action="store_true", help="only the page")
    if not options.parse_args().table:
        versions = {"elbowroom": installed_version(), "torch": torch.__version__}
        found = {"published": [_published(row) for row in PUBLISHED], "study": _study(), "swapped": _swapped()}
        path = RESULTS / f"scaling_cpu_{datetime.date.today():%Y%m%d}.json"
        write_result(path, {"case": "scaling", "commit": commit(), "versions": versions, **found})
    result = newest_results(RESULTS)["scaling"]
    for name, table in (("published", published_table), ("study", study_table), ("swapped", swapped_table)):
        write_between(PAGE, f"<!-- table: {name} -->", f"<!-- end of table: {name} -->", table(result))


def on_ranks(trace: Trace, ranks: int, local: int) -> Trace:
    """Return the trace of a rank of another number of ranks: its groups of all ranks have as many."""
    local = min(local, ranks)
    groups = tuple(Communicator(ranks, local, local) for _ in trace.communicators)
    return replace(trace, communicators=groups)


def step_ns(trace: Trace, ranks: int, local: int, wires: Interconnect) -> int:
    """Return the simulated time of a step on some ranks."""
    times = step_times(with_exchange_times(on_ranks(trace, ranks, local), wires))
    assert times is not None
    return times.step_ns


def _published(row: Published) -> dict[str, Any]:
    wires = Interconnect.of(row.interconnect)
    trace = captured(row.training, row.gpu, row.local, row.local)
    base, here = (step_ns(trace, ranks, row.local, wires) for ranks in (row.base, row.ranks))
    print(row.title, row.ranks, base / here, row.part, flush=True)
    return {**row._asdict(), "simulated_part": base / here, "base_step_ns": base, "step_ns": here}


def _study() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for text, gpu in STUDY:
        wires, trace = Interconnect.of(text), captured("resnet50", gpu, 8, 8)
        for algorithm in ALGORITHMS:
            steps = {ranks: _with_algorithm(trace, ranks, algorithm, wires) for ranks in RANKS}
            rows.append({"gpu": gpu, "interconnect": text, "algorithm": algorithm, "step_ns": steps})
            print(rows[-1], flush=True)
    return rows


def _with_algorithm(trace: Trace, ranks: int, algorithm: str, wires: Interconnect) -> int:
    """Return the time of a step whose all-reduces use one algorithm."""
    many = with_exchange_times(on_ranks(trace, ranks, 8), wires)
    ops = list(many.ops)
    for each in many.exchanges:
        number = each.op
        if kind_of(ops[number].name) == "all-reduce":
            took = all_reduce_ns(algorithm, each.size_bytes, many.communicators[each.communicator], wires)
            ops[number] = replace(ops[number], duration_ns=took)
    return int(last_step(replace(many, ops=tuple(ops))).at_ns[-1])


def _swapped() -> list[dict[str, Any]]:
    """Data parallelism on top of swapping: the plan of one rank, on more and more ranks."""
    gpu, text = SWAPPED
    machine, wires = Machine.of(gpu), Interconnect.of(text)
    trace = captured("resnet50", gpu, 8, 8)
    kept = simulate(with_exchange_times(on_ranks(trace, 1, 1), wires), machine)
    budget = int(BUDGET * kept.peak_reserved_bytes)
    rows: list[dict[str, Any]] = []
    for ranks in RANKS:
        many = with_exchange_times(on_ranks(trace, ranks, 8), wires)
        row: dict[str, Any] = {"ranks": ranks, "kept_step_ns": simulate(many, machine).step_ns, "budget_bytes": budget}
        for shared in (1, 2):
            there = replace(machine, links=tuple(replace(link, shared_by=shared) for link in machine.links))
            line = simulate(many, there, plan(many, there, budget, planner="swap_greedy", allow=("swap",)))
            row |= {f"step_ns_{shared}": line.step_ns, f"stall_ns_{shared}": line.stall_ns, "wait_ns": line.wait_ns}
        rows.append(row)
        print(row, flush=True)
    return rows


def published_table(result: dict[str, Any]) -> str:
    """The published rows."""
    lines = ["| training | GPUs | of | measured | simulated | apart | interconnect |", "|---|--:|--:|--:|--:|--:|---|"]
    for row in result["published"]:
        part, found = row["part"], row["simulated_part"]
        lines.append(
            f"| {row['title']} | {row['ranks']} | {row['base']} | {part:.1%} | {found:.1%} | {found - part:+.1%} | "
            f"`{row['interconnect']}` |"
        )
    sources = [
        f"- {title}: {source}." for title, source in {r["title"]: r["source"] for r in result["published"]}.items()
    ]
    return "\n".join([_made_by(result), "", *lines, "", *sources])


def study_table(result: dict[str, Any]) -> str:
    """Time of a step by algorithm and ranks, as a part of that of one rank."""
    head = "".join(f" {ranks:,} |" for ranks in RANKS)
    lines = [f"| GPU, interconnect | all-reduce |{head}", "|---|---|" + "--:|" * len(RANKS)]
    for row in result["study"]:
        steps = {int(ranks): taken for ranks, taken in row["step_ns"].items()}
        parts = "".join(f" {steps[1] / steps[ranks]:.1%} |" for ranks in RANKS)
        lines.append(f"| {row['gpu']}, `{row['interconnect']}` | {row['algorithm']} |{parts}")
    return "\n".join([_made_by(result), "", *lines])


def swapped_table(result: dict[str, Any]) -> str:
    """Time of a step that swaps, by ranks."""
    lines = [
        "| ranks | everything kept | with swaps | stall | with swaps on half the link | stall |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for row in result["swapped"]:
        times = (row["kept_step_ns"], *(row[f"{what}_ns_{n}"] for n in (1, 2) for what in ("step", "stall")))
        lines.append(f"| {row['ranks']:,} | " + " | ".join(f"{each / 1e6:.1f} ms" for each in times) + " |")
    return "\n".join([_made_by(result), "", *lines])


def _made_by(result: dict[str, Any]) -> str:
    return f"Simulated; torch {result['versions']['torch']}; commit {result['commit']}, {result['file'][-13:-5]}."


if __name__ == "__main__":
    main()
