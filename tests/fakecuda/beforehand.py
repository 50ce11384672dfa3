"""Runs inside the rig: whether a training refuses a budget.

stdin: one JSON object {"model": name, "budget_bytes": n, "steps": n}. Prints one JSON object after "@@".
"""

from __future__ import annotations

import json
import sys

from tests.fakecuda.within import tried, trust


def main() -> None:
    spec = json.load(sys.stdin)
    trust()
    print("@@" + json.dumps({"least_feasible_bytes": 0, **tried(spec, spec["budget_bytes"])}))


if __name__ == "__main__":
    main()
