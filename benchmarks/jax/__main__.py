"""python -m benchmarks.jax: estimates of steps of JAX beside XLA's own figures; writes a result file and docs/jax.md.

python -m benchmarks.jax            # about a quarter of an hour; needs jax, flax, equinox, optax and dm-haiku
python -m benchmarks.jax --only checkpoints    # one group; the others as in the newest result, which is named
python -m benchmarks.jax --table    # only the page
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib import metadata
from typing import Any

from benchmarks.results import RESULTS, ROOT, commit, newest_results, result_path, write_between, write_result
from elbowroom.units import format_bytes

CASE = "jax"
PAGE = ROOT / "docs" / "jax.md"
PACKAGES = ("elbowroom", "jax", "jaxlib", "flax", "equinox", "optax", "dm-haiku")
NO_LIBRARY = "--xla_cpu_experimental_ynn_fusion_type="
BARRIERS = "--xla_disable_hlo_passes=cse_barrier_expander"
"""Keeps the barriers of `jax.checkpoint`. XLA's CPU compiler removes them before it merges equal ops, and so undoes the
checkpoint. For GPUs it removes them after scheduling (xla/service/gpu/gpu_compiler.cc, "post-scheduling-passes").
"""
FLAGS = {
    "models": "",
    "fused": NO_LIBRARY,
    "checkpoints": f"{NO_LIBRARY} {BARRIERS}",
    "sharded": f"--xla_force_host_platform_device_count=8 {NO_LIBRARY}",
    "policies": NO_LIBRARY,
}
"""XLA's flags by group of rows. XLA's flags count for a process, so each group has one of its own."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--table", action="store_true", help="only the page")
    options.add_argument("--only", choices=FLAGS, help="measure one group")
    options.add_argument("--group", choices=FLAGS, help="print the rows of one group")
    chosen = options.parse_args()
    if chosen.group:
        print(json.dumps(rows(chosen.group)))
        return
    if not chosen.table:
        write_result(result_path(RESULTS, CASE), _measured(chosen.only))
    result = newest_results(RESULTS)[CASE]
    tables = {
        "models": models_table(result),
        "checkpoints": bounds_table(result, "checkpoints", ("estimate", "XLA, fused, barriers kept")),
        "sharded": bounds_table(result, "sharded", ("estimate of one device", "XLA, fused")),
        "policies": policies_table(result),
    }
    for name, table in tables.items():
        write_between(PAGE, f"<!-- table: {name} -->", f"<!-- end of table: {name} -->", table)


def _measured(only: str | None) -> dict[str, Any]:
    """Measure all groups, or one; then the others are those of the newest result, with its commit and versions.

    Raises:
        SystemExit: the newest result is of other versions.
    """
    versions = {name: metadata.version(name) for name in PACKAGES}
    made = {"case": CASE, "commit": commit(), "versions": versions}
    if only is None:
        return made | {group: _in_process(group, flags) for group, flags in FLAGS.items()}
    before = newest_results(RESULTS)[CASE]
    if before["versions"] != versions:
        raise SystemExit(f"--only: given with {versions}, and the newest result has {before['versions']}; measure all")
    groups = {group: before[group] for group in FLAGS if group in before}
    others = {"commit": before["commit"], "groups": sorted(groups.keys() - {only})}
    return made | groups | {"before": others, only: _in_process(only, FLAGS[only])}


def _in_process(group: str, flags: str) -> list[dict[str, Any]]:
    environment = {**os.environ, "XLA_FLAGS": flags, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "benchmarks.jax", "--group", group]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def rows(group: str) -> list[dict[str, Any]]:
    """Return the rows of a group; imports JAX, after its flags are set."""
    from benchmarks.jax.policies import policy_rows

    if group == "policies":
        return list(policy_rows())
    if group == "sharded":
        from benchmarks.jax.sharded import SHARDED as CASES
    else:
        from benchmarks.jax.models import CASES
    if group == "checkpoints":
        CASES = {name: make for name, make in CASES.items() if "remat" in name}
    return [_row(name, make()) for name, make in CASES.items()]


def _row(name: str, case: Any) -> dict[str, Any]:
    import elbowroom as er
    from benchmarks.jax.policies import xla_bytes

    trace = er.capture_jax(case.step, *case.arguments)
    estimate = er.simulate(trace, er.Machine.of("a100-40gb")).peak_allocated_bytes
    print(name, file=sys.stderr, flush=True)
    return {"name": name, "ops": len(trace.ops), "estimate_bytes": estimate, "xla_bytes": xla_bytes(case)}


def models_table(result: dict[str, Any]) -> str:
    """The models as Markdown."""
    lines = ["| step | estimate | XLA | estimate / XLA | XLA, fused | estimate / XLA, fused |", f"|{'---|' * 6}"]
    for row, fused in zip(result["models"], result["fused"], strict=True):
        cells = [row["name"], format_bytes(row["estimate_bytes"])]
        for each in (row, fused):
            cells += [format_bytes(each["xla_bytes"]), f"{row['estimate_bytes'] / each['xla_bytes']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _source(result)])


def bounds_table(result: dict[str, Any], group: str, heads: tuple[str, str]) -> str:
    """The steps of a group next to one figure of XLA as Markdown; `heads` name the estimate and that figure."""
    lines = [f"| step | {' | '.join(heads)} | estimate / XLA |", f"|{'---|' * 4}"]
    for row in result[group]:
        sizes = [format_bytes(row["estimate_bytes"]), format_bytes(row["xla_bytes"])]
        lines.append(f"| {row['name']} | {' | '.join(sizes)} | {row['estimate_bytes'] / row['xla_bytes']:.2f} |")
    return "\n".join([*lines, "", _source(result)])


def policies_table(result: dict[str, Any]) -> str:
    """The policies as Markdown."""
    heads = (
        "means",
        "budget",
        "plan",
        "policy",
        "estimate with it",
        "XLA, fused",
        "pinned_host in CUDA's program",
        "bits",
    )
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in result["policies"]:
        sizes = [format_bytes(row["estimate_bytes"]), format_bytes(row["xla_bytes"])]
        if not row["means"]:
            lines.append(f"| none | | | | {sizes[0]} | {sizes[1]} | | |")
            continue
        decided = ", ".join(f"{count} {name}" for name, count in row["decided"].items() if count)
        planned = [format_bytes(row["budget_bytes"]), format_bytes(row["plan_bytes"])]
        bits = "equal" if row["bits_equal"] else "differ"
        cells = [", ".join(row["means"]), *planned, decided, *sizes, str(row["pinned_host"]), bits]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _source(result)])


def _source(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items() if name != "elbowroom")
    return f"<sub>{versions}; benchmarks/results/{result['file']}</sub>"


if __name__ == "__main__":
    main()
