"""Plans fine-tuning of large models on small cards: `python -m benchmarks.weights`. All its times are simulated.

Each shape of fine_tuning.py is captured on a virtual GPU, and planned for a device with less memory than that GPU has.
The result is one file, and a table in docs/benchmarks.md that is made of it. `--table` only writes the table.
"""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, ROOT, facts, newest_results, replace_between, result_path, write_result
from elbowroom.answers.planned_training import WITH_PARAMETERS, planned_training
from elbowroom.capture.script.script import capture_script
from elbowroom.machine import Machine
from elbowroom.units import format_bytes, format_ns

CASE = "weights_virtual"
SCRIPT = Path(__file__).with_name("fine_tuning.py")
GIB = 2**30
CARDS = {"llama-8b": 24 * GIB, "llama-13b-lora": 12 * GIB, "gpt2-xl": 6 * GIB}
"""Device memory that each shape trains within, memory outside the allocator included."""
HOST_BYTES = 128 * GIB
"""RAM of the computer, of which a run takes nine tenths at most."""
GPUS = ("rtx4090", "h100")
DOCS = ROOT / "docs" / "benchmarks.md"
START = "<!-- weights: made by python -m benchmarks.weights, do not edit -->"
END = "<!-- weights end -->"
TITLES = {
    "llama-8b": "Llama 3 8B, all weights, bf16, AdamW",
    "llama-13b-lora": "Llama 2 13B, LoRA of rank 16, bf16, AdamW",
    "gpt2-xl": "GPT-2 XL, all weights, bf16, AdamW",
}


def planned(shape: str, gpu: str) -> dict[str, Any]:
    """Capture a shape on a GPU, and plan it for the memory of its card."""
    begin_s = time.monotonic()
    trace = capture_script(SCRIPT, ["--shape", shape], machine=gpu, in_parts=True)
    machine = Machine.of(gpu)
    capacities = {"device": CARDS[shape], "host": HOST_BYTES}
    tiers = tuple(replace(t, capacity_bytes=capacities.get(t.name, t.capacity_bytes)) for t in machine.tiers)
    found = planned_training(trace, replace(machine, tiers=tiers), (WITH_PARAMETERS,))
    if found is None:
        raise RuntimeError(f"{shape} on {gpu}: the trace is too long to be planned")
    return {
        "shape": shape,
        "gpu": gpu,
        "card_bytes": CARDS[shape],
        "ram_bytes": HOST_BYTES,
        "parameter_bytes": sum(each.size_bytes for each in trace.storages if each.category == "parameter"),
        "plan": asdict(found),
        "took_s": round(time.monotonic() - begin_s, 1),
    }


def table(result: dict[str, Any]) -> str:
    """The rows as Markdown."""
    heads = ("training", "card", "weights", "GPU", "step, simulated", "times everything kept", "host", "moves")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(_cells(row))} |" for row in result["rows"]]
    versions = result["versions"]
    source = f"torch {versions['torch']}; benchmarks/results/{result['file']}"
    return "\n".join([*lines, "", f"<sub>{result['date']}, simulated; {source}</sub>"])


def _cells(row: dict[str, Any]) -> Iterator[str]:
    plan = row["plan"]
    yield TITLES[row["shape"]]
    yield format_bytes(row["card_bytes"])
    yield format_bytes(row["parameter_bytes"])
    yield row["gpu"]
    if not plan["fits"]:
        yield f"does not fit: needs {format_bytes(plan['needed_bytes'])}"
        yield from ("", "", ", ".join(plan["means"]))
        return
    yield format_ns(plan["step_ns"])
    yield f"{plan['step_ns'] / plan['kept_step_ns']:.2f}"
    yield format_bytes(plan["host_bytes"])
    yield ", ".join(plan["means"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Plan fine-tuning of large models on small cards.")
    parser.add_argument("--shape", choices=tuple(CARDS), action="append", help="only this shape; may be repeated")
    parser.add_argument("--gpu", choices=GPUS, action="append", help="only this GPU; may be repeated")
    parser.add_argument("--table", action="store_true", help="only write the table, from the newest result file")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the result file")
    arguments = parser.parse_args()
    if not arguments.table:
        rows: list[dict[str, Any]] = []
        for shape in arguments.shape or CARDS:
            for gpu in arguments.gpu or GPUS:
                rows.append(planned(shape, gpu))
                print(rows[-1], flush=True)
        path = result_path(arguments.out, CASE)
        write_result(path, {"case": CASE, "date": f"{datetime.date.today()}", **facts(), "rows": rows})
        print(path)
    found = newest_results(arguments.out).get(CASE)
    if found is not None:
        DOCS.write_text(replace_between(DOCS.read_text(), START, END, table(found)))


if __name__ == "__main__":
    main()
