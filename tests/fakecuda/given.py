"""Runs inside the rig: a training that follows a plan made from a capture on a GPU that was not there.

stdin: one JSON object {"model": name, "plan": file, "trace": file, "steps": n}. Prints one JSON object after "@@".
"""

from __future__ import annotations

import json
import sys
import warnings

import elbowroom as er
from tests.fakecuda.within import within
from tests.fakecuda.within_models import MODELS


def main() -> None:
    spec = json.load(sys.stdin)
    plan, trace = er.Plan.load(spec["plan"]), er.Trace.load(spec["trace"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = within(MODELS[spec["model"]](), None, spec["steps"], plan=plan, trace=trace)
    print("@@" + json.dumps({"run": run, "told": [str(each.message) for each in told]}))


if __name__ == "__main__":
    main()
