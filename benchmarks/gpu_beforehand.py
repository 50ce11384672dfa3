"""What a GPU was measured to need, beside what is said without it: `python -m benchmarks.gpu_beforehand FILE`.

FILE is one that benchmarks.gpu wrote. Each training of its parts `memory` and `steps` is captured on a virtual GPU of
the same name, with everything kept. The figures are added to the file, as "beforehand". Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import elbowroom as er
from benchmarks.gpu import LARGE, MORE_MODELS, Report
from benchmarks.planning.models import setup_of
from tests.fakecuda.within_models import MODELS

Setup = Callable[[], Callable[[], Any]]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("file", type=Path, help="what benchmarks.gpu wrote")
    path = options.parse_args().file
    report = json.loads(path.read_text())
    report["beforehand"] = {"torch": torch.__version__, **beforehand(report)}
    path.write_text(json.dumps(report, indent=1) + "\n")


def beforehand(report: Report) -> Report:
    """Estimates of all trainings of a report, by part and name."""
    machine = er.Machine.of(report["machine"]["gpu"].removeprefix("NVIDIA "))
    found: Report = {"memory": {}, "steps": {}}
    for part, name, setup in setups(report):
        line = er.simulate(er.capture(setup, machine), machine)
        found[part][name] = {
            "allocated_bytes": line.peak_allocated_bytes,
            "reserved_bytes": line.peak_reserved_bytes,
            "step_ns": line.step_ns,
        }
    return found


def setups(report: Report) -> Iterator[tuple[str, str, Setup]]:
    """The trainings of a report: part, name and setup."""
    for name in report.get("memory", {}):
        yield "memory", name, MODELS[name] if name in MODELS else setup_of(name, **MORE_MODELS[name])
    for name in report.get("steps", {}):
        yield "steps", name, setup_of(name, **LARGE[name])


if __name__ == "__main__":
    main()
