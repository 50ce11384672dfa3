"""`python -m tests.fuzz`: random cases by the thousand: what was looked at, and the seeds of what does not hold."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable

from elbowroom.errors import ElbowroomError
from tests.fuzz import cases, properties, trainings

FOUND = (AssertionError, ElbowroomError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What a case may end in without ending the programme."""


EXAMINE: dict[str, Callable[[int], Counter[str]]] = {
    "plans": lambda seed: properties.examine(cases.case(seed)),
    "trainings": lambda seed: trainings.examine(trainings.case(seed)),
    "weights": lambda seed: trainings.examine_with_all_away(trainings.case(seed)),
}
"""Looks at the case of a seed, and says what there was."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--of", choices=EXAMINE, default="plans", help="which cases (default: %(default)s)")
    parser.add_argument("--cases", type=int, default=2000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many (default: never)")
    given = parser.parse_args()
    total, broken, begin = Counter[str](), dict[int, str](), time.monotonic()
    for seed in range(given.seed, given.seed + given.cases):
        if time.monotonic() - begin > given.seconds:
            break
        try:
            total += EXAMINE[given.of](seed)
        except FOUND:
            broken[seed] = traceback.format_exc(limit=-2)
            print(f"seed {seed}:\n{broken[seed]}", flush=True)
    for what, count in total.items():
        print(f"{count:8,d} {what}")
    print(f"{len(broken):8,d} broken" + (f": seeds {', '.join(map(str, broken))}" if broken else ""))
    print(f"{time.monotonic() - begin:8,.0f} s")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
