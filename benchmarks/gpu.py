"""`python -m benchmarks.gpu`: everything that is to be measured on a GPU, in one command of less than nine minutes.

Needs the CUDA build of torch, numpy and this project; pytest for the first part. No network. Runs `pytest -m gpu`,
measures the link, memory beside the simulation for many models, and step times beside plain training and the peers that
torch brings. Each case is a child process, and none begins that would not end in time. Writes
benchmarks/results/gpu_<machine>_<date>.json. On the rig, where kernels do nothing, all of it runs, every case says
"measured": false, and nothing is written unless --out names a file.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_direct import direct

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 520
"""Of the whole command."""
CASE_S = 75
"""Of one case; no case begins with less than this left."""
SHARES = (0.75, 0.5, 0.25)
LARGE: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 256},
    "unet3d": {"resolution": 128},
    "gpt2_medium": {"batch": 8},
    "llama_1b": {"batch": 2},
}
"""Cases of benchmarks/planning/models.py for step times, and what differs from their own settings."""
SEARCHED: dict[str, dict[str, Any]] = {"resnet50": {}, "unet3d": {"batch": 1, "base": 16}}
"""Cases whose largest batch or resolution is searched, and what differs from their own settings."""
METHODS = ("plain", "within 50%", "save_on_cpu", "checkpoint on blocks", "within 25%")
LATER = ("within 75%", "OffloadActivations of TRL", "compiled, memory budget 0.5")
"""Ways to train, those first that are wanted most; the later ones come once memory has been looked at."""
MORE_MODELS: dict[str, dict[str, Any]] = {
    "vgg16": {"batch": 16},
    "inception_v3": {"batch": 8},
    "deeplabv3": {"batch": 2, "resolution": 257},
    "gpt2_small": {"batch": 2, "tokens": 512},
    "nmt": {"batch": 16, "tokens": 20},
    "llama_1b": {"batch": 1, "tokens": 512, "layers": 4},
}
"""Cases of benchmarks/planning/models.py whose memory is put beside the simulation, after those of tests/fakecuda."""
STEPS = 5
"""Timed steps of each method, after those that elbowroom needs to observe and plan."""
WARM = 4
Report = dict[str, Any]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", help="file to write; by default one in benchmarks/results")
    options.add_argument("--small", action="store_true", help="small settings of every case, for the rig")
    options.add_argument("--child", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        print("@@" + json.dumps(CHILDREN[given.child.split()[0]](*given.child.split("|")[1:])))
        return
    report = measured(given.small)
    if given.out or report["measured"]:
        path = Path(given.out) if given.out else _path(report)
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written: {path}")
    print(summary(report))


def _path(report: Report) -> Path:
    name = "".join(c if c.isalnum() else "-" for c in report["machine"]["gpu"].lower())
    return ROOT / "benchmarks" / "results" / f"gpu_{name}_{datetime.date.today():%Y%m%d}.json"


def measured(small: bool) -> Report:
    """All parts that there is time for, the most wanted first."""
    until = time.monotonic() + LIMIT_S
    facts = child("facts")
    report: Report = {
        "version": 1,
        "date": f"{datetime.date.today():%Y-%m-%d}",
        "machine": {"gpu": "unknown", **facts},
        "measured": bool(facts.get("is_gpu")),
        "tests": _tests(until),
        "link": child("link") if facts.get("is_gpu") else {"not_run": "not measured: this is no GPU"},
        "direct": child("direct") if facts.get("is_gpu") else {"not_run": "not measured: this is no GPU"},
        "steps": {},
        "memory": {},
        "largest": {},
    }
    _all_steps(report, METHODS, until, small)
    for names in _groups(small):
        found = _in_time(until, partial(child, "memory", *names))
        report["memory"].update(found if "not_run" not in found else dict.fromkeys(names, found))
    for name, within in ((name, within) for name in SEARCHED for within in ("plain", "within")):
        settings = json.dumps({"resolution": 128} if small and name == "resnet50" else SEARCHED[name])
        found = _in_time(until, partial(child, "largest", name, within, settings, str(1 << 30 if small else 8 << 30)))
        report["largest"].setdefault(name, {})[within] = {"measured": report["measured"], **found}
    _all_steps(report, LATER, until, small)
    return report


def _all_steps(report: Report, methods: Sequence[str], until: float, small: bool) -> None:
    """Step times of some methods on every case; without times where kernels do nothing."""
    times = ("step_ns", "step_least_ns", "simulated_step_ns")
    for name, method in ((name, method) for name in LARGE for method in methods):
        settings = json.dumps((SMALL if small else LARGE)[name])
        plain = report["steps"].get(name, {}).get("plain", {}).get("reserved_bytes", 0)
        found = _in_time(until, partial(child, "steps", name, method, settings, str(plain)))
        if not report["measured"]:
            found = {key: value for key, value in found.items() if key not in times} | {"ran": "not_run" not in found}
        report["steps"].setdefault(name, {})[method] = {"measured": report["measured"], **found}


SMALL: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 16, "resolution": 128},
    "unet3d": {"resolution": 32, "base": 8},
    "gpt2_medium": {"batch": 1, "tokens": 64},
    "llama_1b": {"batch": 1, "tokens": 64, "layers": 2},
}


def _groups(small: bool) -> Iterator[list[str]]:
    """Models whose memory is put beside the simulation, a few to a process."""
    from tests.fakecuda.within_models import MODELS

    names = [*MODELS, *MORE_MODELS][: 3 if small else None]
    for at in range(0, len(names), 3):
        yield names[at : at + 3]


def _in_time(until: float, run: Callable[[], Report]) -> Report:
    left = until - time.monotonic()
    return run() if left > CASE_S else {"not_run": f"no time: {left:.0f} s left"}


def _tests(until: float) -> Report:
    """What `pytest -m gpu` says."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return {"exit_code": None, "tail": f"ended after 120 s, {until - time.monotonic():.0f} s left"}
    return {"exit_code": done.returncode, "tail": (done.stdout + done.stderr)[-1500:]}


def child(*arguments: str) -> Report:
    """The answer of a child process; {"not_run": why} where it has none."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--child", "|".join((arguments[0] + " ", *arguments[1:]))]
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "KINETO_LOG_LEVEL": "5"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=CASE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"not_run": f"ended after {CASE_S} s"}
    if "@@" not in done.stdout:
        return {"not_run": done.stderr.strip()[-600:]}
    return json.loads(done.stdout.rpartition("@@")[2])


# In a child


def facts() -> Report:
    """The machine and the versions."""
    import numpy
    import torch

    from benchmarks.results import commit

    if not torch.cuda.is_available():
        return {"gpu": "none", "is_gpu": False}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "is_gpu": "fake" not in properties.name.lower(),
        "total_bytes": properties.total_memory,
        "versions": {
            "torch": torch.__version__, "numpy": numpy.__version__, "commit": commit(),
            "python": sys.version.split()[0],
        },
    }  # fmt: skip


def link() -> Report:
    """Rates of copies from and to page-locked memory."""
    from elbowroom.capture.link_probe import measure_link

    return measure_link()._asdict()


def memory(*names: str) -> Report:
    """Peaks at 75 % of what plain training reserves, as the allocator and the driver say, beside the simulation."""
    import torch

    from benchmarks.planning.models import setup_of
    from tests.fakecuda.within import plain, within
    from tests.fakecuda.within_models import MODELS

    found: Report = {}
    for name in names:
        make = MODELS[name] if name in MODELS else setup_of(name, **MORE_MODELS[name])
        step = make()
        kept = plain(step)
        del step
        torch.cuda.empty_cache()
        step = make()
        before_bytes = _used_bytes() - torch.cuda.memory_reserved()
        try:
            run = within(step, int(0.75 * kept[1]), 6)
        except Exception as problem:  # noqa: BLE001 - it is what is reported
            found[name] = {"plain_reserved_bytes": kept[1], "not_run": f"{type(problem).__name__}: {problem}"[:300]}
        else:
            last = run["steps"][-1]
            found[name] = {
                "plain_reserved_bytes": kept[1],
                "budget_bytes": run["budget_bytes"],
                "simulated": run["simulated"],
                "allocator": {"allocated": last["allocated"], "reserved": last["reserved"]},
                "driver_bytes": _used_bytes() - before_bytes,
                "nvml_used_bytes": nvml_used_bytes(),
                "pinned_bytes": last["pinned"],
            }
        del step
        torch.cuda.empty_cache()
    return found


def _used_bytes() -> int:
    import torch

    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return total_bytes - free_bytes


def steps(name: str, method: str, settings: str, plain_bytes: str) -> Report:
    """Step times and peaks of one method on one case."""
    import elbowroom as er
    from benchmarks.gpu_peers import PEERS, Absent, around_steps, trained

    step, model = trained(name, json.loads(settings))
    if method == "plain":
        return _timed(step)
    if method in PEERS:
        try:
            around = around_steps(method, model)
        except Absent as problem:
            return {"not_run": str(problem)}
        return _timed(step, around)
    share = int(method.removeprefix("within ").removesuffix("%")) / 100
    if plain_bytes == "0":
        return {"not_run": "plain training did not run"}
    budget = int(share * int(plain_bytes))
    with er.within(budget) as room:
        found = _timed(step)
        line, pinned_bytes = room.simulated, room.pinned_bytes
    assert line is not None
    return {
        **found,
        "budget_bytes": budget,
        "simulated_step_ns": line.step_ns,
        "simulated_reserved_bytes": line.peak_reserved_bytes,
        "swapped_out_bytes": room.steps[-1].swapped_out_bytes,
        "pinned_bytes": pinned_bytes,
    }


def _timed(step: Callable[[], object], around: Callable[[], AbstractContextManager[object]] = nullcontext) -> Report:
    """Steps after the warm ones, each in a context: the median time, and the peaks."""
    import torch

    for _ in range(WARM):
        with around():
            step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    took_ns: list[int] = []
    for _ in range(STEPS):
        start_ns = time.perf_counter_ns()
        with around():
            step()
        torch.cuda.synchronize()
        took_ns.append(time.perf_counter_ns() - start_ns)
    return {
        "step_ns": int(statistics.median(took_ns)),
        "step_least_ns": min(took_ns),
        "steps": STEPS,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def largest(*arguments: str) -> Report:
    """See benchmarks.gpu_peers."""
    from benchmarks.gpu_peers import largest as found

    return found(*arguments)


def nvml_used_bytes() -> int | None:
    """What the driver's own library says is in use on the first device, by all processes; None where it is silent."""

    class Memory(ctypes.Structure):
        _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))

    try:
        library, handle, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), Memory()
        asked = (
            library.nvmlInit_v2(),
            library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)),
            library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)),
        )
    except (OSError, AttributeError):
        return None
    return None if any(asked) else int(memory.used)


CHILDREN: dict[str, Callable[..., Report]] = {
    "facts": facts, "link": link, "direct": direct, "memory": memory, "steps": steps, "largest": largest,
}  # fmt: skip


def summary(report: Report) -> str:
    """A few lines for people."""
    lines = [f"{report['machine']['gpu']}: " + ("measured" if report["measured"] else "not measured: this is no GPU")]
    lines.append(f"tests: exit code {report['tests']['exit_code']}")
    for name, methods in report["steps"].items():
        plain_ns = methods.get("plain", {}).get("step_ns")
        for method, found in methods.items():
            if found.get("ran"):
                lines.append(f"{name}, {method}: ran, not measured")
            elif "step_ns" not in found or not plain_ns:
                lines.append(f"{name}, {method}: {found.get('not_run', 'no plain step to compare with')[-120:]}")
            else:
                reserved = f"{found['reserved_bytes'] / 2**20:.0f} MiB reserved"
                lines.append(f"{name}, {method}: {found['step_ns'] / plain_ns:.3f} of plain, {reserved}")
    past_the_host = report["direct"]
    lines.append(
        f"to the disk past the host: {past_the_host['out_bytes_per_s'] / 2**30:.2f} GiB/s out, "
        f"{past_the_host['back_bytes_per_s'] / 2**30:.2f} GiB/s back"
        if "out_bytes_per_s" in past_the_host
        else f"to the disk past the host: {(past_the_host.get('refused') or past_the_host['not_run'])[-200:]}"
    )
    for name, found in report["largest"].items():
        told = (f"{w} {f.get('largest', f.get('not_run', '')[-80:])}" for w, f in found.items())
        lines.append(f"largest {name}: {', '.join(told)}" + ("" if report["measured"] else " (ran, not measured)"))
    for name, found in report["memory"].items():
        if "allocator" in found:
            off = found["simulated"]["reserved"] - found["allocator"]["reserved"]
            lines.append(f"memory of {name}: simulated less measured reserved {off / 2**20:+.1f} MiB")
        else:
            lines.append(f"memory of {name}: {found['not_run'][-120:]}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
