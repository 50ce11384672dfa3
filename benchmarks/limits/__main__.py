"""Runs the benchmark of hard limits: `python -m benchmarks.limits --rig FOLDER [--only NAME] [--table]`."""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

from benchmarks.limits import page, rig
from benchmarks.limits.workloads import WORKLOADS
from benchmarks.on_rig import add_options, checked_rig
from benchmarks.results import RESULTS


def main() -> None:
    options = argparse.ArgumentParser(description=rig.__doc__)
    add_options(options)
    options.add_argument("--only", action="append", choices=WORKLOADS, metavar="NAME", help="a workload; repeatable")
    options.add_argument("--way", action="append", choices=rig.WAYS, help="of running elbowroom; repeatable")
    options.add_argument("--packages", type=Path, help="folder with MONAI, einops, transformers, peft, diffusers, TRL")
    options.add_argument("--out", type=Path, help="the result file; today's by default")
    given = options.parse_args()
    if given.table:
        newest = given.out or max(RESULTS.glob(f"{rig.CASE}_rig_*.json"), key=lambda path: path.name)
        page.write(json.loads(newest.read_text()))
        return
    out = given.out or RESULTS / f"{rig.CASE}_rig_{datetime.date.today():%Y%m%d}.json"
    packages = [given.packages] if given.packages else []
    rig.run(checked_rig(options, given), packages, given.only or list(WORKLOADS), given.way or list(rig.WAYS), out)


if __name__ == "__main__":
    main()
