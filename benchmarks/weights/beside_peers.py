"""Trains beside peers that move weights: `python -m benchmarks.weights.beside_peers --rig FOLDER --packages FOLDER`.

The rig's device is the limit: past it an allocation fails, as on a card. Each way of ways.py is searched for the least
device on which it trains five steps. elbowroom trains on devices of each peer's own peak too. The bytes that a step
moves are counted where the driver copies. Memory and bytes are those of the CUDA build; numbers and times are not.
A row that the result file has is not run again. `--table` only writes the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.on_rig import add_options, checked_rig, said
from benchmarks.results import RESULTS, ROOT, commit, write_between, write_result

CASE = "weights_peers"
STEPS = 5
MODELS = {
    "gpt2": "GPT-2-like: 8 blocks of width 1024, 16,384 words, 1 x 256 tokens, fp32",
    "llama": "Llama-like: 6 blocks of width 2048, hidden 5632, 8,192 words, 1 x 256 tokens, bf16",
    "mlp": "MLP: 12 layers of 4096 x 4096, 64 rows, fp32",
}
OURS = "elbowroom"
DEEPSPEED = "DeepSpeed ZeRO-3, offloaded"
PEERS = ("plain", "FSDP2, CPUOffloadPolicy", "torchao, CPUOffloadOptimizer", "torchao, gradients too", DEEPSPEED)
RIG = {
    "FAKECUDA_CC": "90",
    "FAKECUDA_COPIES": str(1 << 16),
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
"""Large copies do nothing: numbers are meaningless there anyway."""
BACKED = {DEEPSPEED: {"FAKECUDA_BACKING": str(64 << 30)}}
"""DeepSpeed reads the lengths of lists back from the device, so its memory has bytes."""
DOCS = ROOT / "docs" / "benchmarks.md"
START = "<!-- weights beside peers: made by python -m benchmarks.weights.beside_peers, do not edit -->"
END = "<!-- weights beside peers end -->"
MIB = 2**20
Result = dict[str, Any]


def found_on(rig: Path, packages: list[Path], model: str, way: str, within: list[int]) -> Result:
    """What least_on_rig.py finds of a way, without plans of earlier runs."""
    spec = {"model": model, "way": way, "steps": STEPS, "within": within}
    with TemporaryDirectory() as folder:
        variables = {**RIG, **BACKED.get(way, {}), "ELBOWROOM_CACHE_DIR": folder}
        found = said(rig, "-m", "benchmarks.weights.least_on_rig", spec=spec, packages=packages, variables=variables)
    return {**found, "commit": commit()}


def run(rig: Path, packages: list[Path], models: list[str], out: Path) -> None:
    """Run what a result file has not yet, and write it after each way."""
    result: Result = json.loads(out.read_text()) if out.exists() else {"case": CASE, "steps": STEPS, "models": {}}
    for model in models:
        ways: Result = result["models"].setdefault(model, {})
        for way in (*PEERS, OURS):
            if way in ways:
                continue
            peaks = sorted(
                {each["free"]["peak_bytes"] for name, each in ways.items() if name != "plain" and "free" in each}
            )
            ways[way] = found_on(rig, packages, model, way, peaks if way == OURS else [])
            print(model, way, json.dumps(ways[way]), file=sys.stderr, flush=True)
            write_result(out, {**result, "date": f"{datetime.date.today()}"})


def table(result: Result) -> str:
    """The rows as Markdown."""
    heads = ("way to train", "least device", "its own peak", "moved at its peak", "moved by elbowroom there")
    lines: list[str] = []
    for model, ways in result["models"].items():
        sizes = next((each for each in ways.values() if "weights_bytes" in each), None)
        if sizes is None:
            continue
        weights, modules = _mib(sizes["weights_bytes"]), _mib(sizes["modules_bytes"])
        lines += [
            "",
            f"{MODELS[model]}. Weights {weights} MiB; the two largest layers with gradients and states {modules}.",
        ]
        lines += ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        lines += [f"| {' | '.join(_cells(way, found, ways.get(OURS, {})))} |" for way, found in ways.items()]
    rows = [each for ways in result["models"].values() for each in ways.values()]
    versions = next(each["versions"] for each in rows if "versions" in each)
    of = ", ".join(f"{name} {version}" for name, version in versions.items())
    made = f"{result['date']}, commit {', '.join(sorted({each['commit'] for each in rows}))}"
    note = f"<sub>{made}; MiB, out of the device and back in one step; {of} on the rig, no GPU</sub>"
    return "\n".join([*lines[1:], "", note])


def _cells(way: str, found: Result, ours: Result) -> Iterator[str]:
    yield way
    if "not_run" in found:
        yield from ("", "", "", f"not run: {found['not_run']}")
        return
    yield _mib(found["least_bytes"])
    free = found["free"]
    if free is None:
        yield from ("", f"{_moved(found['at_least'])} at its least", "")
        return
    yield _mib(free["peak_bytes"])
    yield _moved(free)
    within = ours.get("within", {}).get(str(free["peak_bytes"]))
    yield _moved(within) if within else "" if way == "plain" else "refused" if ours else "not run yet"


def _moved(peaks: Result) -> str:
    return f"{_mib(peaks['out_bytes'])} and {_mib(peaks['back_bytes'])}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.0f}"


def main() -> None:
    options = argparse.ArgumentParser(description="Least devices of trainings whose weights move, on the rig.")
    add_options(options)
    options.add_argument("--model", choices=tuple(MODELS), action="append", help="only this model; may be repeated")
    options.add_argument("--packages", type=Path, help="folder with torchao, deepspeed and what they import")
    options.add_argument("--out", type=Path, help="the result file; today's by default")
    given = options.parse_args()
    out = given.out or RESULTS / f"{CASE}_rig_{datetime.date.today():%Y%m%d}.json"
    if not given.table:
        packages = [given.packages] if given.packages else []
        run(checked_rig(options, given), packages, given.model or list(MODELS), out)
    newest = given.out or max(RESULTS.glob(f"{CASE}_rig_*.json"), key=lambda path: path.name)
    write_between(DOCS, START, END, table(json.loads(newest.read_text())))


if __name__ == "__main__":
    main()
