"""What the papers' headlines are with our plans: `python -m benchmarks.planning.headlines --traces FOLDER`.

For each headline the largest value that trains with everything kept and the largest that a plan makes fit, found by few
captures, and how much longer the planned step takes than one that keeps everything on a device that held it. All of it
is simulated; the papers measured. Writes benchmarks/results/headlines_<machine it ran on>_<date>.json.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.planning.models import trace_of
from benchmarks.planning.rows import Row, kept, least_bytes, roomy, row
from benchmarks.results import RESULTS, facts, result_path, write_result
from elbowroom.answers.estimate import estimate
from elbowroom.answers.largest import largest
from elbowroom.machine import Machine
from elbowroom.trace import Trace

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One figure of a paper.

    Attributes:
        said: what was published, and by whom.
        case: of benchmarks.planning.models.
        gpu: the GPU it was measured on, by the name of the database.
        host_bytes: assumed of the computer around it.
        vary: the setting that grows; "" where only one training is planned.
        least, most, multiple_of: where to search.
        power: the figure grows with this power of the setting (3: voxels of a cube).
        settings: of the case.
        allocator: its settings, as in PYTORCH_ALLOC_CONF.
    """

    said: str
    case: str
    gpu: str
    host_bytes: int
    vary: str = ""
    least: int = 1
    most: int = 1
    multiple_of: int = 1
    power: int = 1
    settings: tuple[tuple[str, Any], ...] = ()
    allocator: str = ""


HEADLINES: dict[str, Headline] = {
    "resnet50 batch, 12 GB": Headline(
        said="4.6x (batch 144 to 664), under 10 % slower (Meng et al. 2017)",
        case="resnet50",
        gpu="titan-x-maxwell",
        host_bytes=256 * GIB,
        vary="batch",
        least=8,
        most=2048,
        multiple_of=8,
    ),
    "resnet50 batch, 16 GB NVLink": Headline(
        said="4.9x (TFLMS, 1807.02037)",
        case="resnet50",
        gpu="v100-nvlink-power9",
        host_bytes=512 * GIB,
        vary="batch",
        least=8,
        most=4096,
        multiple_of=8,
    ),
    "unet3d voxels, 16 GB NVLink": Headline(
        said="5.6x (TFLMS, ISMM 2019)",
        case="unet3d",
        gpu="v100-nvlink-power9",
        host_bytes=512 * GIB,
        vary="resolution",
        least=32,
        most=512,
        multiple_of=16,
        power=3,
        allocator="expandable_segments:True",
    ),
    "vgg16 batch 256, 12 GB": Headline(
        said="trains, 18 % slower (vDNN, MICRO 2016)",
        case="vgg16",
        gpu="titan-x-maxwell",
        host_bytes=64 * GIB,
        allocator="expandable_segments:True",
    ),
    "resnet200 batch 32": Headline(
        said="peak 10662 to 3052 MB (Meng et al. 2017)",
        case="resnet200",
        gpu="titan-x-maxwell",
        host_bytes=256 * GIB,
    ),
    "resnet2000, 12 GB": Headline(
        said="trains (Meng et al. 2017)", case="resnet2000", gpu="titan-x-maxwell", host_bytes=256 * GIB
    ),
}


def allowed_bytes(gpu: str) -> int:
    """What the allocator may reserve on a GPU: all but what lies outside it."""
    machine = Machine.of(gpu)
    return machine.tiers[0].capacity_bytes - machine.outside_bytes


def machine_of(headline: Headline) -> Machine:
    """The GPU, any budget allowed, below it the host that is assumed."""
    machine = roomy(headline.gpu)
    tiers = (
        replace(tier, capacity_bytes=headline.host_bytes) if tier.name == "host" else tier for tier in machine.tiers
    )
    return replace(machine, tiers=tuple(tiers), allocator=headline.allocator)


def figures(headline: Headline, folder: str, limit_s: float) -> Row:
    """What comes of one headline."""
    machine, allowed = machine_of(headline), allowed_bytes(headline.gpu)

    def trace_at(value: int) -> Trace:
        changes = {headline.vary: value} if headline.vary else {}
        return trace_of(headline.case, headline.gpu, folder, **dict(headline.settings), **changes)

    found: Row = {"said": headline.said, "gpu": headline.gpu, "allocator": headline.allocator, "allowed_bytes": allowed}
    value = 0
    if headline.vary:
        limits = {"least": headline.least, "most": headline.most, "multiple_of": headline.multiple_of}
        plain = largest(
            lambda v: estimate(trace_at(v), Machine.of(headline.gpu), plans=False).needed_bytes,
            machine_capacity(headline),
            **limits,
        )
        planned = largest(lambda v: least_bytes(trace_at(v), machine, limit_s), allowed, **limits)
        if plain.fits is None or planned.fits is None:
            return found | {"infeasible": True}
        value = planned.fits.value
        times = (value / plain.fits.value) ** headline.power
        found |= {"vary": headline.vary, "plain": plain.fits.value, "planned": value, "times": times}
    trace = trace_at(value)
    keep = kept(trace, machine)
    return found | {
        "kept": keep,
        "row": row(trace, machine, "optimal", allowed, keep, limit_s),
        "least_bytes": least_bytes(trace, machine, limit_s),
    }


def machine_capacity(headline: Headline) -> int:
    """All of the device, as `estimate` counts what lies outside the allocator too."""
    return Machine.of(headline.gpu).tiers[0].capacity_bytes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning.headlines", description=__doc__)
    parser.add_argument("--traces", required=True, help="folder that keeps the traces; not one of the repository")
    parser.add_argument("--only", action="append", choices=list(HEADLINES))
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a planner may search (default: %(default)s)")
    parser.add_argument("--out", help="result file; by default one of benchmarks/results by machine and date")
    given = parser.parse_args()
    path = Path(given.out) if given.out else result_path(RESULTS, "headlines")
    result: dict[str, Any] = {"case": "headlines", "simulated": True, **facts(), "headlines": {}}
    for name in given.only or HEADLINES:
        made = figures(HEADLINES[name], given.traces, given.limit)
        result["headlines"][name] = made
        print(name, {k: v for k, v in made.items() if k not in ("kept", "row")}, made.get("row"), flush=True)
        write_result(path, result)


if __name__ == "__main__":
    main()
