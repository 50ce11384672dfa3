"""What `within` costs where the job fits: `python -m benchmarks.overhead`.

Many short steps, plain and within in turn in one process, under a budget that is never reached. The first steps within,
which observe, are reported apart: they are paid once per shape.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import Any

from benchmarks.cases import FITTING
from benchmarks.results import RESULTS, facts, ratio, result_path, run_child, write_result

BUDGET_BYTES = 64 << 30
SEED = 0
ROUNDS = 10
STEPS_PER_ROUND = {"small_mlp": 200, "small_cnn": 25}


def measure_case(case: str) -> dict[str, Any]:
    """Timed steps of one case."""
    settings = {"seed": SEED, "rounds": ROUNDS, "steps": STEPS_PER_ROUND[case], "budget_bytes": BUDGET_BYTES}
    answer = run_child("time_fitting", case=case, **settings)
    observed = ratio(answer["plain_step_ns"], answer["observed_step_ns"])
    return {
        "case": case,
        "description": answer["description"],
        "settings": settings,
        "modes": answer["modes"],
        **ratio(answer["plain_step_ns"], answer["step_ns"]),
        "observed": {key: observed[key] for key in ("n", "median_step_ns", "ratio", "ratio_min", "ratio_max")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what elbowroom costs where the job fits.")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory for the result file")
    arguments = parser.parse_args()
    cases = [measure_case(case) for case in FITTING]
    path = result_path(arguments.out, "overhead")
    write_result(path, {"case": "overhead", "date": f"{datetime.date.today()}", **facts(), "cases": cases})
    for case in cases:
        print(f"{case['case']}: step time within / plain {case['ratio']}, n = {case['n']}")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
