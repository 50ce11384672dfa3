"""Measures what elbowroom costs and saves: `python -m benchmarks.run [--case NAME ...]`.

For each case, and for budgets of 75, 50 and 25 % of the activation peak of plain training, one child process that
trains under `within` alone (memory, bytes moved, bit equality with plain) and one that times plain steps and steps
within in turn. Beside it the same of torch.utils.checkpoint on the model's blocks. A case that has a result of today is
skipped, so an interrupted run goes on where it was. docs/benchmarks.md says what each figure means.
"""

from __future__ import annotations

import argparse
import datetime
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from benchmarks.results import RESULTS, facts, ratio, result_path, run_child, write_result

FRACTIONS = (0.75, 0.50, 0.25)
SEED = 0
STEPS = 8
"""Steps whose losses and weights are compared; the last ones run the final plan."""
STEPS_PER_ROUND = 3


def measure_case(case: str, rounds: int) -> dict[str, Any]:
    """Everything one result file holds."""
    about = facts()
    say(case, "plain training")
    plain = run_child("train", case=case, seed=SEED, steps=STEPS, checkpointed=False)
    return {
        "case": case,
        "description": plain.pop("description"),
        "date": f"{datetime.date.today()}",
        **about,
        "settings": {"seed": SEED, "steps": STEPS, "rounds": rounds, "steps_per_round": STEPS_PER_ROUND},
        "plain": plain,
        "checkpoint": measure_checkpoint(case, plain, rounds),
        "within": [measure_within(case, plain, fraction, rounds) for fraction in FRACTIONS],
    }


def measure_checkpoint(case: str, plain: dict[str, Any], rounds: int) -> dict[str, Any]:
    """torch.utils.checkpoint on the model's blocks."""
    say(case, "torch.utils.checkpoint")
    memory = run_child("train", case=case, seed=SEED, steps=STEPS, checkpointed=True)
    del memory["description"]
    times = run_child("time_checkpoint", case=case, seed=SEED, rounds=rounds, steps=STEPS_PER_ROUND)
    return {**memory, **equality(plain, memory), **ratio(**times)}


def measure_within(case: str, plain: dict[str, Any], fraction: float, rounds: int) -> dict[str, Any]:
    """elbowroom at one budget; what the planner says where it is infeasible."""
    activations = plain["peak_allocated_bytes"] - plain["held_bytes"]
    budget_bytes = plain["held_bytes"] + int(fraction * activations)
    say(case, f"within {fraction:.0%} of the activation peak")
    given = {"fraction": fraction, "budget_bytes": budget_bytes}
    memory = run_child("train_within", case=case, seed=SEED, steps=STEPS, budget_bytes=budget_bytes)
    if "infeasible" in memory:
        return {**given, **memory}
    times = run_child(
        "time_within", case=case, seed=SEED, budget_bytes=budget_bytes, rounds=rounds, steps=STEPS_PER_ROUND
    )
    return {**given, **memory, **equality(plain, memory), **ratio(**times)}


def equality(plain: dict[str, Any], other: dict[str, Any]) -> dict[str, bool]:
    """Whether the same numbers came out: every loss, and every parameter and buffer after the last step."""
    losses = plain["losses"] == other["losses"]
    return {"losses_equal": losses, "bit_equal": losses and plain["weights_sha256"] == other["weights_sha256"]}


def say(case: str, what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {case}: {what}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what elbowroom costs and saves on real models.")
    parser.add_argument("--case", nargs="+", choices=CASES, default=CASES, help="the cases to measure (all)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for the result files")
    parser.add_argument("--rounds", type=int, default=2, help="of three timed steps each (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="measure cases that have a result of today, too")
    arguments = parser.parse_args()
    for case in arguments.case:
        path = result_path(arguments.out, case)
        if path.exists() and not arguments.again:
            print(f"{case}: {path} is of today, skipped (--again measures it anew)")
            continue
        write_result(path, measure_case(case, arguments.rounds))
        print(f"{case}: wrote {path}")


if __name__ == "__main__":
    main()
