"""Memory of default plans below a hard limit, on the rig: `python -m benchmarks.default_plans --rig FOLDER [CASE ...]`.

Models of benchmarks.planning train within 75, 50, 35 and 25 % of what plain training reserves. The device of the rig
has exactly that many bytes: an allocation beyond them fails, as on a card. The rig (tools/rig) is the real CUDA build
of PyTorch without a GPU. Memory is true there and times are not: a copy takes no time. So the links are given the rates
of an RTX 4090, and plans swap and recompute. Where a budget is refused, the least that is named is trained within, and
again what that names, up to `TRIES` times.
`--table` writes docs/planning.md anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.on_rig import add_options, checked_rig, keep, made_of, mib, said
from benchmarks.results import RESULTS, ROOT, commit, newest_results, write_between

CASE = "default_plans"
CASES: dict[str, dict[str, Any]] = {
    "resnet50": {},
    "inception_v3": {},
    "deeplabv3": {},
    "vgg16": {},
    "unet3d": {},
    "gpt2_small": {"batch": 2},
    "resnet200": {},
    "nmt": {},
}
"""Name in benchmarks.planning -> settings that differ. More than 3,072 tokens are sorted, which the rig cannot do."""
SHARES = (0.75, 0.5, 0.35, 0.25)
STEPS = 12
TRIES = 4
LINKS_OF = "rtx4090"
RIG = {"FAKECUDA_CC": "89", "FAKECUDA_COPIES": str(1 << 16)}
"""Large copies do nothing: numbers are meaningless there anyway."""
PAGE = ROOT / "docs" / "planning.md"
START = "<!-- default plans: made by python -m benchmarks.default_plans --table, do not edit -->"
END = "<!-- default plans end -->"
Result = dict[str, Any]


def on_the_rig(rig: Path, case: str, budget_bytes: int = 0) -> Result:
    """What a process on the rig says of one training; its device holds the budget and no more. 0: plain training."""
    limit = {"FAKECUDA_CAPACITY": str(budget_bytes)} if budget_bytes else {}
    started = time.monotonic()
    found = said(rig, "-m", "benchmarks.default_plans", "--child", case, str(budget_bytes), variables={**RIG, **limit})
    return {**found, "took_s": round(time.monotonic() - started, 1), "commit": commit()}


def all_of(rig: Path, case: str) -> Iterator[Result]:
    """Plain training, then each budget; where one is refused, the least that is named."""
    plain = on_the_rig(rig, case)
    yield plain
    for share in SHARES:
        found = on_the_rig(rig, case, int(share * plain["reserved"]))
        yield {"share": share, **found}
        tries = 0
        while found["outcome"] == "refused" and tries < TRIES:
            tries += 1
            found = on_the_rig(rig, case, found["least_feasible_bytes"])
            yield {"share": share, "is_least": True, **found}
        if tries:
            return


# On the rig


def child(case: str, budget_bytes: int) -> Result:
    """The peaks of one training."""
    import torch

    import elbowroom as er
    from benchmarks.planning.models import setup_of
    from tests.fakecuda.within import plain, trust, within

    trust()
    _links_of(LINKS_OF)
    torch.manual_seed(0)
    try:
        step = setup_of(case, **CASES[case])()
        if not budget_bytes:
            allocated, reserved = plain(step)
            return {"outcome": "plain", "allocated": allocated, "reserved": reserved}
        run = within(step, budget_bytes, STEPS)
    except er.Infeasible as problem:
        least_bytes = problem.least_feasible_bytes
        return {"outcome": "refused", "budget": budget_bytes, "least_feasible_bytes": least_bytes, "why": str(problem)}
    except torch.OutOfMemoryError as problem:
        return {"outcome": "out of memory", "budget": budget_bytes, "why": str(problem)}
    steps, figures, last = run["steps"], run["figures"], run["figures"][-1]
    return {
        "outcome": "trained",
        "budget": budget_bytes,
        "steps": len(steps),
        "reserved": max(each["reserved"] for each in steps),
        "reserved_each": [each["reserved"] for each in steps],
        "allocated": max(each["allocated"] for each in steps),
        "simulated_reserved": run["simulated"]["reserved"] if "simulated" in run else None,
        "mode": steps[-1]["mode"],
        "surprised_steps": [number for number, each in enumerate(figures, 1) if each["mismatches"]],
        "moved_bytes": last["out"],
        "recomputed_bytes": run["recomputed"][-1],
        "states": run["plan"]["states"] if "plan" in run else 0,
    }


def _links_of(gpu: str) -> None:
    """Let every run count with the link of a GPU: copies take no time on the rig."""
    from dataclasses import replace

    from elbowroom.machine import Machine
    from elbowroom.run import learner

    link = Machine.of(gpu).links[0]
    rates = {"out_bytes_per_s": link.out_bytes_per_s, "back_bytes_per_s": link.back_bytes_per_s}

    def with_rates(machine: Machine, _: Any) -> Machine:
        return replace(machine, links=(replace(machine.links[0], **rates), *machine.links[1:]))

    setattr(learner, "with_rates_of", with_rates)  # noqa: B010


# The table


def rows(cases: dict[str, list[Result]]) -> Iterator[str]:
    """Of the table."""
    yield "| model | budget | of plain training | swapped a step | recomputed | reserved | simulated | of the budget |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for name, (plain, *runs) in cases.items():
        for run in runs:
            share = f"{run['budget'] / plain['reserved']:.0%}" + (", the least" if run.get("is_least") else "")
            start = f"| {name} | {mib(run['budget'])} | {share} |"
            if run["outcome"] == "trained":
                simulated = run["simulated_reserved"]
                simulated = mib(simulated) if simulated and simulated <= run["budget"] else "no plan"
                shown = [mib(run[figure]) for figure in ("moved_bytes", "recomputed_bytes", "reserved")]
                yield f"{start} {' | '.join(shown)} | {simulated} | {run['reserved'] / run['budget']:.3f} |"
            else:
                yield f"{start} {run['outcome']} | | | | |"


def table(result: Result) -> str:
    """The table with what it was made of."""
    return "\n".join([made_of(result, f"8.9, {STEPS} steps"), "", *rows(result["cases"])])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    add_options(options)
    options.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        case, budget = given.cases
        print("@@" + json.dumps(child(case, int(budget))))
        return
    newest = newest_results(RESULTS).get(CASE, {"cases": {}})
    if not given.table:
        rig = checked_rig(options, given)
        for case in given.cases or CASES:
            newest["cases"][case] = []
            for run in all_of(rig, case):
                print(case, json.dumps(run), file=sys.stderr, flush=True)
                newest["cases"][case].append(run)
                keep(CASE, {"cases": newest["cases"]})
    write_between(PAGE, START, END, table(newest_results(RESULTS)[CASE]))


if __name__ == "__main__":
    main()
