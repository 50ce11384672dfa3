"""Step times beside those that peers published: `python -m benchmarks.weights.published`. Ours are simulated.

torchao's README has the time of a step and the most allocated bytes of one training without and with three ways to
keep optimizer states on the host. The same shapes are captured on that GPU, and planned within the same bytes: those
that the allocator reserves, which are more than what is allocated. `--table` only writes the page.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, ROOT, facts, newest_results, result_path, write_between, write_result
from elbowroom.answers.planned_training import WITH_PARAMETERS, planned_training
from elbowroom.capture.script.script import capture_script
from elbowroom.machine import Machine
from elbowroom.units import format_bytes, format_ns

CASE = "weights_published"
SCRIPT = Path(__file__).with_name("vit_giant.py")
GPU = "rtx4070ti-super"
SOURCE = "https://github.com/pytorch/ao/blob/main/torchao/optim/README.md"
GB, S = 10**9, 10**9
PUBLISHED: dict[str, tuple[int, int]] = {
    "none": (1270 * S // 1000, 982 * GB // 100),
    "DeepSpeed ZeRO-Offload, as torchao ran it": (3130 * S // 1000, 685 * GB // 100),
    "torchao CPUOffloadOptimizer": (1520 * S // 1000, 524 * GB // 100),
    "torchao CPUOffloadOptimizer, gradients too": (1530 * S // 1000, 401 * GB // 100),
}
"""Peer -> nanoseconds of a step, and the most allocated bytes: `SOURCE`, section "Optimizer CPU offload"."""
HOST_BYTES = 64 << 30
DOCS = ROOT / "docs" / "benchmarks.md"
START = "<!-- weights published: made by python -m benchmarks.weights.published, do not edit -->"
END = "<!-- weights published end -->"


def planned() -> Iterator[dict[str, Any]]:
    """Yield a row for each published one."""
    trace = capture_script(SCRIPT, machine=GPU, in_parts=True)
    machine = Machine.of(GPU)
    for peer, (step_ns, size_bytes) in PUBLISHED.items():
        begin_s = time.monotonic()
        capacities = {"device": size_bytes + machine.outside_bytes, "host": HOST_BYTES}
        tiers = tuple(replace(t, capacity_bytes=capacities.get(t.name, t.capacity_bytes)) for t in machine.tiers)
        found = planned_training(trace, replace(machine, tiers=tiers), (WITH_PARAMETERS,))
        if found is None:
            raise RuntimeError(f"{SCRIPT.name} on {GPU}: the trace is too long to be planned")
        took_s = round(time.monotonic() - begin_s, 1)
        yield {"peer": peer, "step_ns": step_ns, "size_bytes": size_bytes, "plan": asdict(found), "took_s": took_s}


def table(result: dict[str, Any]) -> str:
    """The rows as Markdown."""
    heads = ("on the host", "memory", "step, published", "times none", "elbowroom, simulated", "times keeping", "host")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    none_ns = PUBLISHED["none"][0]
    lines += [f"| {' | '.join(_cells(row, none_ns))} |" for row in result["rows"]]
    source = f"torch {result['versions']['torch']}; benchmarks/results/{result['file']}"
    return "\n".join([*lines, "", f"<sub>{result['date']}, ours simulated; published: {SOURCE}; {source}</sub>"])


def _cells(row: dict[str, Any], none_ns: int) -> Iterator[str]:
    plan = row["plan"]
    yield row["peer"]
    yield format_bytes(row["size_bytes"])
    yield format_ns(row["step_ns"])
    yield f"{row['step_ns'] / none_ns:.2f}"
    if not plan["fits"]:
        yield from (f"refused below {format_bytes(plan['needed_bytes'])}", "", "")
        return
    yield format_ns(plan["step_ns"])
    yield f"{plan['step_ns'] / plan['kept_step_ns']:.2f}"
    yield format_bytes(plan["host_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Plan a training whose step time was published with other tools.")
    parser.add_argument("--table", action="store_true", help="only write the table, from the newest result file")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the result file")
    given = parser.parse_args()
    if not given.table:
        path = result_path(given.out, CASE)
        rows = list(planned())
        write_result(path, {"case": CASE, "date": f"{datetime.date.today()}", **facts(), "gpu": GPU, "rows": rows})
    found = newest_results(given.out).get(CASE)
    if found is not None:
        write_between(DOCS, START, END, table(found))


if __name__ == "__main__":
    main()
