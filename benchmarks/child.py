"""One measurement in a process of its own: `python -m benchmarks.child REQUEST RESULT`.

REQUEST is JSON with `mode` and what that mode takes; RESULT names the file that the answer is written to, as JSON.
Resident memory can only be measured so: what an earlier training left behind would count.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import elbowroom
from benchmarks import measure
from benchmarks.cases import load_case
from benchmarks.job import Job
from benchmarks.saves import time_saves
from elbowroom.run import background_planning

OBSERVED_STEPS = 2
"""The first steps under `within` of a job that fits: it observes and plans; they are not counted."""

UNSETTLED_STEPS = 6
"""The first steps of one that does not fit, not counted either. Plans are waited for. One step is observed, one follows
a first plan, one records its calls, two prove recomputes, and one is the first without copies."""

Answer = dict[str, Any]


def train(*, case: str, seed: int, steps: int, checkpointed: bool) -> Answer:
    """Plain training, or with torch.utils.checkpoint on the blocks: losses, weights and memory."""
    module = load_case(case)
    job = module.build(seed, checkpointed)
    before = measure.resident_bytes()
    losses = [job.step() for _ in range(steps)]
    answer = {
        "description": module.DESCRIPTION,
        "losses": losses,
        "weights_sha256": measure.weights_sha256(job),
        **resident_since(before),
    }
    held = measure.held_bytes(job)
    return {**answer, "held_bytes": held, "peak_allocated_bytes": held + measure.profiled_growth_bytes(job.step)}


def train_within(*, case: str, seed: int, steps: int, budget_bytes: int) -> Answer:
    """Training under `within` and nothing else: losses, weights, memory, and what was moved."""
    job = load_case(case).build(seed)
    before = measure.resident_bytes()
    try:
        with elbowroom.within(budget_bytes) as room:
            losses = [job.step() for _ in range(steps)]
            answer = {"losses": losses, "weights_sha256": measure.weights_sha256(job), **resident_since(before)}
            end_step()
            figures = room.steps[-1]
            room.measure_next_step()
            job.step()
    except elbowroom.Infeasible as error:
        return {"infeasible": str(error), "least_feasible_bytes": error.least_feasible_bytes}
    keep_all = elbowroom.simulate(room.trace, room.machine)
    return {
        **answer,
        "modes": [step.mode for step in room.steps],
        "mismatches": sum(step.mismatches for step in room.steps),
        "swaps": len(room.plan.swaps),
        "recomputed_bytes": figures.recomputed_bytes,
        "swapped_out_bytes": figures.swapped_out_bytes,
        "swapped_back_bytes": figures.swapped_back_bytes,
        "stall_ns": figures.stall_ns,
        "peak_allocated_bytes": room.measured.peak_allocated_bytes,
        "simulated_peak_allocated_bytes": room.simulated.peak_allocated_bytes,
        "simulated_step_ns": room.simulated.step_ns,
        "simulated_stall_ns": room.simulated.stall_ns,
        "simulated_keep_all_peak_allocated_bytes": keep_all.peak_allocated_bytes,
        "simulated_keep_all_step_ns": keep_all.step_ns,
    }


def resident_since(before: int) -> Answer:
    """Resident bytes before the first step and at their peak up to now."""
    return {"bare_rss_bytes": before, "peak_rss_bytes": measure.resident_bytes("VmHWM")}


def time_within(*, case: str, seed: int, budget_bytes: int, rounds: int, steps: int) -> Answer:
    """Plain steps outside `within` and steps inside it, in turn, in one process and on one model."""
    background_planning.PATIENCE_S = 600.0  # else the timed steps might not be those of the final plan
    job = load_case(case).build(seed)
    job.step()
    plain: list[int] = []
    inside: list[int] = []
    try:
        for _ in range(rounds):
            plain += timed(job.step, steps)
            inside += _time_inside(job, budget_bytes, steps)
    except elbowroom.Infeasible as error:
        return {"infeasible": str(error), "least_feasible_bytes": error.least_feasible_bytes}
    plain += timed(job.step, steps)
    return {"plain_step_ns": plain, "step_ns": inside}


def _time_inside(job: Job, budget_bytes: int, steps: int) -> list[int]:
    with elbowroom.within(budget_bytes) as room:
        for _ in range(UNSETTLED_STEPS):
            job.step()
        end_step()
        step_ns = timed(job.step, steps)
    if "observe" in {step.mode for step in room.steps[UNSETTLED_STEPS:]}:
        raise RuntimeError(f"steps after the first {UNSETTLED_STEPS} were still observed: {room.steps}")
    return step_ns


def end_step() -> None:
    """Have `within` notice that a step is over, as any call of a module does: planning is then not part of the next."""
    with torch.no_grad():
        torch.nn.Identity()(torch.zeros(1))


def time_checkpoint(*, case: str, seed: int, rounds: int, steps: int) -> Answer:
    """Plain steps and checkpointed steps, in turn, in one process, on two models from one seed."""
    plain_job = load_case(case).build(seed)
    checkpoint_job = load_case(case).build(seed, True)
    plain_job.step()
    checkpoint_job.step()
    plain: list[int] = []
    checkpointed: list[int] = []
    for _ in range(rounds):
        plain += timed(plain_job.step, steps)
        checkpointed += timed(checkpoint_job.step, steps)
    plain += timed(plain_job.step, steps)
    return {"plain_step_ns": plain, "step_ns": checkpointed}


def time_fitting(*, case: str, seed: int, budget_bytes: int, rounds: int, steps: int) -> Answer:
    """As `time_within`, for a job that fits: its observed steps are timed too."""
    module = load_case(case)
    job = module.build(seed)
    timed(job.step, steps)
    plain: list[int] = []
    observed: list[int] = []
    inside: list[int] = []
    modes: set[str] = set()
    for _ in range(rounds):
        plain += timed(job.step, steps)
        with elbowroom.within(budget_bytes) as room:
            observed += timed(job.step, OBSERVED_STEPS)
            end_step()
            inside += timed(job.step, steps)
        modes |= {step.mode for step in room.steps[OBSERVED_STEPS:]}
    return {
        "description": module.DESCRIPTION,
        "modes": sorted(modes),
        "plain_step_ns": plain,
        "observed_step_ns": observed,
        "step_ns": inside,
    }


def timed(step: Callable[[], object], count: int) -> list[int]:
    """Nanoseconds of each of `count` calls."""
    durations_ns = []
    for _ in range(count):
        start_ns = time.perf_counter_ns()
        step()
        durations_ns.append(time.perf_counter_ns() - start_ns)
    return durations_ns


def facts() -> Answer:
    """Versions, threads and what this computer has; the disk's rates are measured."""
    import platform

    import numpy

    machine = elbowroom.Machine.here(measure=True, device="cpu")
    return {
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "threads": torch.get_num_threads(),
        "disk": [
            {"out_bytes_per_s": link.out_bytes_per_s, "back_bytes_per_s": link.back_bytes_per_s}
            for link in machine.links
            if link.lower == "disk"
        ],
    }


MODES: dict[str, Callable[..., Answer]] = {
    "train": train,
    "train_within": train_within,
    "time_within": time_within,
    "time_checkpoint": time_checkpoint,
    "time_fitting": time_fitting,
    "time_saves": time_saves,
    "facts": facts,
}


def main() -> None:
    request = json.loads(sys.argv[1])
    answer = MODES[request.pop("mode")](**request)
    Path(sys.argv[2]).write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # a thread of autograd's that is still there for CUDA ends the process with SIGABRT now and then


if __name__ == "__main__":
    main()
