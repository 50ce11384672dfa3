"""The parts of benchmarks.gpu, each run in a process of its own: `python -m benchmarks.gpu_cases PART ARGUMENTS`.

What is found is told at once, as a line with its place in the report: whoever ends this process keeps it.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

import elbowroom as er
from benchmarks.gpu import MORE_MODELS, ROOT, Report
from benchmarks.gpu_direct import direct
from benchmarks.gpu_peers import PEERS, Absent, around_steps, largest, trained
from benchmarks.gpu_turns import turn
from benchmarks.planning.models import setup_of
from benchmarks.results import commit
from elbowroom.run.background_planning import THREAD_NAME
from elbowroom.run.room import run_of
from tests.fakecuda.within import plain, within
from tests.fakecuda.within_models import MODELS

STEPS = 5
"""Timed steps of each method, after those that elbowroom needs to observe and plan."""
WARM = 4
WARM_WITHIN = 10
"""Steps within a budget before the timed ones: recomputes are learnt and proven in the first six."""
TESTS_S = 100
STEPS_WITHIN = 8
"""Steps in which the memory within a budget is looked at: the last one is of the plan with all its recomputes."""
TRIES = 3
"""Budgets before the one whose refusal is told."""
NO_GPU = {"not_run": "not measured: this is no GPU"}
Around = Callable[[], AbstractContextManager[object]]


def tell(place: list[str], found: Report) -> None:
    print("@@" + json.dumps([place, found]), flush=True)


def is_gpu() -> bool:
    """Whether kernels do anything here."""
    return torch.cuda.is_available() and "fake" not in torch.cuda.get_device_name().lower()


def facts() -> None:
    """The machine and the versions."""
    if not torch.cuda.is_available():
        tell(["machine"], {"gpu": "none", "is_gpu": False})
        return
    import numpy

    properties = torch.cuda.get_device_properties(0)
    versions = {"torch": torch.__version__, "numpy": numpy.__version__, "python": sys.version.split()[0]}
    found = {"gpu": properties.name, "is_gpu": is_gpu(), "total_bytes": properties.total_memory, **outside()}
    tell(["machine"], {**found, "versions": {**versions, "commit": commit()}})


def outside() -> Report:
    """What the driver and the libraries take beside PyTorch's allocator."""
    from elbowroom.capture.outside_probe import measure_outside

    try:
        return measure_outside()._asdict() if is_gpu() else {}
    except er.UsageError as problem:
        return {"outside": str(problem)}


def tests(file: str) -> None:
    """What `pytest -m gpu` says of a file of tests/gpu."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", f"tests/gpu/{file}"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TESTS_S, check=False)
    except subprocess.TimeoutExpired as cut:
        said = (cut.stdout or b"").decode("utf-8", "replace")
        tell(["tests", file], {"exit_code": None, "tail": f"{said[-1500:]}\nended after {TESTS_S} s"})
    else:
        tell(["tests", file], {"exit_code": done.returncode, "tail": (done.stdout + done.stderr)[-1500:]})


def link() -> None:
    """Rates of copies from and to page-locked memory."""
    from elbowroom.capture.link_probe import measure_link

    tell(["link"], measure_link()._asdict() if is_gpu() else NO_GPU)


def past_the_host() -> None:
    """Rates of the way to the disk past the host."""
    tell(["direct"], direct() if is_gpu() else NO_GPU)


def memory(*names: str) -> None:
    """Peaks at 75 % of what plain training reserves, as the allocator and the driver say, beside the simulation."""
    for name in names:
        make = MODELS[name] if name in MODELS else setup_of(name, **MORE_MODELS[name])
        try:
            found = _memory_of(make)
        except Exception as problem:  # noqa: BLE001 - it is what is reported
            found = {"not_run": f"{type(problem).__name__}: {problem}"[:300]}
        tell(["memory", name], {"measured": is_gpu(), **found})
        gc.collect()
        torch.cuda.empty_cache()


def _memory_of(make: Callable[[], Callable[[], Any]]) -> Report:
    kept = plain(make())
    gc.collect()
    torch.cuda.empty_cache()
    run = in_budget(
        lambda budget_bytes: within(make(), budget_bytes, STEPS_WITHIN, wait_for_plans), int(0.75 * kept[1])
    )
    last = run["steps"][-1]
    return {
        "plain_allocated_bytes": kept[0],
        "plain_reserved_bytes": kept[1],
        "budget_bytes": run["budget_bytes"],
        **{key: run[key] for key in ("refused_bytes",) if key in run},
        "simulated": run["simulated"],
        "allocator": {"allocated": last["allocated"], "reserved": last["reserved"]},
        "pinned_bytes": last["pinned"],
    }


def wait_for_plans() -> None:
    """Plans that are being made beside the training are made when this returns."""
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join()


def steps(name: str, settings: str, plain_bytes: str, *methods: str) -> None:
    """Step times and peaks of some methods on one case, in turn."""
    plain_reserved = int(plain_bytes)
    for method in methods:
        try:
            found = _method(name, method, json.loads(settings), plain_reserved)
        except Exception as problem:  # noqa: BLE001 - it is what is reported
            found = {"not_run": f"{type(problem).__name__}: {problem}"[:600]}
        plain_reserved = found.get("reserved_bytes", 0) if method == "plain" else plain_reserved
        tell(["steps", name, method], {"measured": is_gpu(), **found})
        gc.collect()
        torch.cuda.empty_cache()


def _method(name: str, method: str, settings: Report, plain_bytes: int) -> Report:
    if method.startswith("within "):
        if not plain_bytes:
            return {"not_run": "plain training did not run"}
        share = int(method.removeprefix("within ").removesuffix("%"))
        return in_budget(partial(_timed_room, name, settings), plain_bytes * share // 100)
    with torch.device("cuda"):
        step, model = trained(name, settings)
    if method not in PEERS:
        return timed(step)
    try:
        return timed(step, around_steps(method, model))
    except Absent as problem:
        return {"not_run": str(problem)}


def in_budget(run: Callable[[int], Report], budget_bytes: int) -> Report:
    """A run within a budget; within the least that is named, a few times, where that is refused."""
    asked_bytes = budget_bytes
    for _ in range(TRIES):
        try:
            found = run(budget_bytes)
        except er.Infeasible as problem:
            budget_bytes = problem.least_feasible_bytes
        else:
            return found if budget_bytes == asked_bytes else {**found, "refused_bytes": asked_bytes}
        gc.collect()
        torch.cuda.empty_cache()
    return run(budget_bytes)


def _timed_room(name: str, settings: Report, budget_bytes: int) -> Report:
    with torch.device("cuda"):  # to fill a model on the host takes longer than to train it
        step = setup_of(name, **settings)()
    with er.within(budget_bytes) as room:
        found = timed(step, warm=WARM_WITHIN)
        line, pinned_bytes = room.simulated, run_of(room).pinned_bytes
    assert line is not None
    return {
        **found,
        "budget_bytes": budget_bytes,
        **({"simulated_step_ns": line.step_ns} if is_gpu() else {}),
        "simulated_reserved_bytes": line.peak_reserved_bytes,
        "swapped_out_bytes": room.steps[-1].swapped_out_bytes,
        "pinned_bytes": pinned_bytes,
    }


def timed(step: Callable[[], object], around: Around = nullcontext, warm: int = WARM) -> Report:
    """Steps after the warm ones, each in a context: the peaks, and where kernels do anything the median time."""
    for _ in range(warm):
        with turn(alone=False), around():
            step()
            torch.cuda.synchronize()
        wait_for_plans()
    torch.cuda.reset_peak_memory_stats()
    took_ns: list[int] = []
    with turn(alone=True):
        for _ in range(STEPS):
            start_ns = time.perf_counter_ns()
            with around():
                step()
            torch.cuda.synchronize()
            took_ns.append(time.perf_counter_ns() - start_ns)
    peaks = {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "steps": STEPS,
    }
    times = {"step_ns": int(statistics.median(took_ns)), "step_least_ns": min(took_ns)}
    return {**peaks, **times} if is_gpu() else peaks


def searched(name: str, within_or_plain: str, settings: str, limit_bytes: str) -> None:
    """The largest batch or resolution: see benchmarks.gpu_peers."""
    for found in largest(name, within_or_plain, settings, limit_bytes):
        tell(["largest", name, within_or_plain], {"measured": is_gpu(), **found})


PARTS: dict[str, Callable[..., None]] = {
    "facts": facts, "tests": tests, "link": link, "direct": past_the_host,
    "memory": memory, "steps": steps, "largest": searched,
}  # fmt: skip


if __name__ == "__main__":
    PARTS[sys.argv[1]](*sys.argv[2:])
