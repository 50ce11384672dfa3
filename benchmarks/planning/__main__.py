"""Every planner on traces of real models and machines: `python -m benchmarks.planning --traces FOLDER`.

Writes benchmarks/results/planning_<machine it ran on>_<date>.json after every pair of model and GPU; rows of the same
trace that are there are not made again. All figures are simulated: step times are those of the cost model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.planning.models import CASES, trace_of
from benchmarks.planning.rows import PLANNERS, Row, again, budgets, kept, roomy, row
from benchmarks.results import RESULTS, commit, facts, result_path, write_result

PAIRS: dict[str, tuple[str, ...]] = {
    "resnet50": ("rtx4090", "h100-sxm", "titan-x-maxwell", "v100-nvlink-power9"),
    "vgg16": ("rtx4090", "titan-x-maxwell"),
    "unet3d": ("rtx4090", "h100-sxm", "v100-nvlink-power9"),
    "deeplabv3": ("rtx4090", "h100-sxm", "v100-sxm2-16gb"),
    "inception_v3": ("rtx4090", "m40-12gb"),
    "gpt2_small": ("rtx4090", "h100-sxm"),
    "gpt2_medium": ("rtx4090",),
    "gpt2_large": ("h100-sxm",),
    "llama_1b": ("h100-sxm",),
    "llama_7b_layers": ("h100-sxm",),
    "nmt": ("rtx4090", "m40-12gb"),
    "resnet200": ("rtx4090", "titan-x-maxwell"),
    "resnet1001": ("titan-x-maxwell",),
}
"""Which GPUs a model is planned for: two of today, and some that the papers used."""


def main() -> None:
    given = _arguments()
    path = Path(given.out) if given.out else result_path(RESULTS, "planning")
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"pairs": {}}
    result |= {"case": "planning", "simulated": True, **facts()}
    for case in given.case or PAIRS:
        for gpu in given.machine or PAIRS[case]:
            trace, machine = trace_of(case, gpu, given.traces, in_parts=True), roomy(gpu)
            known = result["pairs"].get(f"{case} on {gpu}")
            if known and known["trace_id"] == trace.id and not given.again:
                continue
            keep = kept(trace, machine)
            entry: dict[str, Any] = {
                "words": CASES[case].words,
                "settings": dict(CASES[case].settings),
                "commit": commit(),
                "time_limit_s": given.limit,
                "trace_id": trace.id,
                "ops": trace.steps[-1].end_op - trace.steps[-1].first_op,
                "saves": sum(save.saved_at >= trace.steps[-1].first_op for save in trace.saves),
                "kept": keep,
                "rows": [],
            }
            refused: dict[str, Row] = {}
            for label, budget_bytes in budgets(trace, machine, keep["peak_reserved_bytes"], given.limit, refused):
                for planner in given.planner or PLANNERS:
                    made = again(refused, planner, budget_bytes) or row(
                        trace, machine, planner, budget_bytes, keep, given.limit
                    )
                    refused |= {planner: made} if "least_feasible_bytes" in made else {}
                    entry["rows"].append({"budget": label, **made})
                    print(_line(case, gpu, entry["rows"][-1]), flush=True)
            result["pairs"][f"{case} on {gpu}"] = entry
            write_result(path, result)


def _line(case: str, gpu: str, made: Row) -> str:
    where = f"{case:15} {gpu:18} {made['budget']:>5} {made['planner']:17} {made['seconds']:7.1f} s"
    if "slowdown" not in made:
        return f"{where}  infeasible, least {made['least_feasible_bytes'] / 2**30:.2f} GiB"
    gap = f"  gap {made['gap']:.2%}" if "gap" in made else ""
    moved = (made["swapped_out_bytes"] + made["swapped_back_bytes"]) / 2**30
    return f"{where}  {made['slowdown']:.3f}x  {moved:.1f} GiB moved{gap}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--traces", required=True, help="folder that keeps the traces; not one of the repository")
    parser.add_argument("--case", action="append", choices=list(PAIRS), help="only these models")
    parser.add_argument("--machine", action="append", help="these GPUs in place of the models' own")
    parser.add_argument("--planner", action="append", choices=list(PLANNERS), help="only these planners")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a planner may search (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="make rows again that are there")
    parser.add_argument("--out", help="result file; by default one of benchmarks/results by machine and date")
    return parser.parse_args()


if __name__ == "__main__":
    main()
