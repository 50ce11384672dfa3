"""`python -m benchmarks.gpu`: everything that is to be measured on a GPU, in one command of less than nine minutes.

Needs the CUDA build of torch and numpy; other packages that the machine lacks (highspy, which plans; pytest, for the
first part) come from a folder of wheels, `--wheels FOLDER`, as nothing is fetched. Runs `pytest -m gpu`, measures the
link, memory beside the simulation for many models, and step times beside plain training and the peers. Groups of parts
run in the order in which they are wanted. Each part has its own process and its own limit, and tells what it finds as
it finds it. The parts of a group run at once; steps that are timed run alone on the GPU (gpu_turns.py). The file is
written anew after each part, so that a run that is cut short leaves what it has. It is
benchmarks/results/gpu/<machine>_<date>.json. On the rig, where kernels do nothing, all of it runs, every case says
"measured": false without any times, and nothing is written unless --out names a file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_turns import TURNS
from benchmarks.peaks import ALL

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 520
"""Of the whole command."""
LEAST_S = 10
"""No part begins with less than this left."""
LARGE: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 256},
    "gpt2_medium": {"batch": 8},
    "unet3d": {"resolution": 128},
    "llama_1b": {"batch": 4, "precision": "bfloat16"},
}
"""Cases of benchmarks/planning/models.py for step times, and what differs from their own settings."""
SMALL: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 8, "resolution": 64},
    "gpt2_medium": {"size": "small", "batch": 1, "tokens": 64},
    "unet3d": {"resolution": 32, "base": 8},
    "llama_1b": {"size": "small", "batch": 1, "tokens": 64},
}
METHODS = (
    "plain",
    "save_on_cpu",
    "OffloadActivations of TRL",
    "checkpoint on blocks",
    "within 50%",
    "within 25%",
    "within 75%",
)
LATER = ("compiled, memory budget 0.5",)
"""Ways to train: those that take least time first; a minute for the compiler is there once the others have run."""
SEARCHED: dict[str, dict[str, Any]] = {"resnet50": {}, "unet3d": {"batch": 1, "base": 16}}
"""Cases whose largest batch or resolution is searched, and what differs from their own settings."""
MORE_MODELS: dict[str, dict[str, Any]] = {
    "vgg16": {"batch": 16},
    "inception_v3": {"batch": 8},
    "deeplabv3": {"batch": 2, "resolution": 257},
    "gpt2_small": {"batch": 2, "tokens": 512},
    "nmt": {"batch": 16, "tokens": 20},
    "llama_1b": {"batch": 1, "tokens": 512, "layers": 4},
}
"""Cases of benchmarks/planning/models.py whose memory is put beside the simulation, after those of tests/fakecuda."""
MODELS_AT_ONCE = 4
"""Whose memory one process looks at."""
TESTS_S = 110
"""Of each file of tests."""
Report = dict[str, Any]
Told = tuple[list[str], Report]
"""Where in the report something goes, and what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one process looks at.

    Attributes:
        limit_s: it is ended after so long.
        arguments: of its function in benchmarks/gpu_cases.py, the name first.
        expects: places in the report where a reason goes if it tells nothing for them.
    """

    limit_s: int
    arguments: tuple[str, ...]
    expects: tuple[tuple[str, ...], ...]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--out", type=Path, help="file to write; by default one in benchmarks/results")
    options.add_argument("--small", action="store_true", help="small settings of every case, for the rig")
    options.add_argument("--wheels", type=Path, help="folder of wheels with what this Python lacks")
    options.add_argument(
        "--limit", type=int, default=LIMIT_S, help="seconds for all; above the default, parts may take more too"
    )
    options.add_argument(
        "--only", nargs="+", default=[], help="parts to run, as named in took_s: facts memory steps ..."
    )
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.wheels:
            unpacked(given.wheels, Path(folder))
        environment = environment_with(Path(folder))
        report = measured(
            given.small, given.limit, given.out, lambda part, limit_s: run(part, limit_s, environment), given.only
        )
    print(summary(report))


def unpacked(wheels: Path, folder: Path) -> None:
    """Wheels are archives of what lies in site-packages; no installer is needed for those without scripts."""
    found = sorted(wheels.glob("*.whl"))
    if not found:
        raise SystemExit(f"--wheels: given {wheels}, which holds no .whl; make it as docs/benchmarks.md says")
    for wheel in found:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)


def environment_with(folder: Path) -> dict[str, str]:
    """Of the processes of all parts: the wheels come before what this Python has itself."""
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"), str(folder))))
    return {**os.environ, "PYTHONPATH": path, "KINETO_LOG_LEVEL": "5", TURNS: str(folder / "turns")}


def measured(
    small: bool,
    limit_s: int,
    out: Path | None,
    look: Callable[[Part, float], Iterator[Told]],
    only: Sequence[str] = (),
) -> Report:
    """All parts that there is time for, in order; the file is written after each.

    Args:
        small: small settings of all cases.
        limit_s: for all of it.
        out: file to write; None for the usual one, of a GPU only.
        look: runs a part for so many seconds at most, and gives what it tells.
        only: names of the parts that are wanted, by the first of their group; empty for all.
    """
    until = time.monotonic() + limit_s
    report: Report = {"version": 3, "date": f"{datetime.date.today():%Y-%m-%d}", "small": small, "measured": False}

    def looked(part: Part) -> tuple[list[Told], float]:
        begin_s = time.monotonic()
        left_s = until - begin_s
        told = look(part, min(part.limit_s * max(1, limit_s / LIMIT_S), left_s)) if left_s > LEAST_S else iter(())
        return list(told) or [([], {"not_run": f"no time: {left_s:.0f} s left"})], time.monotonic() - begin_s

    for group in groups(small, report):
        if only and group[0].arguments[0] not in only:
            continue
        for place in (place for part in group for place in part.expects):
            put(report, list(place), {"not_run": "under way"})  # in this order, whichever part ends first
        with ThreadPoolExecutor(len(group)) as pool:
            under_way = {pool.submit(looked, part): part for part in group}
            for ended in as_completed(under_way):
                _put_all(report, under_way[ended], *ended.result())
                report["measured"] = bool(report.get("machine", {}).get("is_gpu"))
                path = out or (_path(report) if report["measured"] else None)
                if path:
                    _write(path, report)
    return report


def _put_all(report: Report, part: Part, told: Sequence[Told], took_s: float) -> None:
    """What a part told, why it told no more, and its time."""
    missing, why = list(part.expects), "ended before"
    for place, found in told:
        why = found.get("not_run", "ended before")
        if place:
            put(report, place, found)
            missing = [each for each in missing if list(each) != place]
    for place in missing:
        put(report, list(place), {"not_run": why})
    name, took = " ".join(part.arguments[:2]), report.setdefault("took_s", {})
    took[name] = round(took.get(name, 0.0) + took_s, 1)


def put(report: Report, place: Sequence[str], found: Report) -> None:
    """Something into its place, beside what is there."""
    outer = _place_of(report, place)
    before = {key: value for key, value in outer.get(place[-1], {}).items() if key != "not_run"}
    outer[place[-1]] = {**before, **found}


def _place_of(report: Report, place: Sequence[str]) -> Report:
    """What holds a place."""
    for name in place[:-1]:
        report = report.setdefault(name, {})
    return report


def _write(path: Path, report: Report) -> None:
    """In one go, so that no run leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(report, indent=1) + "\n")
    beside.replace(path)


def _path(report: Report) -> Path:
    name = "".join(c if c.isalnum() else "-" for c in report["machine"]["gpu"].lower())
    small = "_small" if report["small"] else ""
    return ROOT / "benchmarks" / "results" / "gpu" / f"{name}{small}_{datetime.date.today():%Y%m%d}.json"


def groups(small: bool, report: Report) -> Iterator[list[Part]]:
    """Groups of parts, those first that are wanted most. Later ones look at what the report has by then."""
    yield [Part(limit_s=40, arguments=("facts",), expects=(("machine",),))]
    yield [Part(limit_s=TESTS_S, arguments=("tests", file), expects=(("tests", file),)) for file in test_files()]
    yield [Part(limit_s=30, arguments=("link",), expects=(("link",),))]
    cases = SMALL if small else LARGE
    yield _steps(METHODS, 240, cases, report)
    yield [_memory_part(group) for group in batched(memory_models(), MODELS_AT_ONCE)]
    yield [Part(limit_s=30, arguments=("direct",), expects=(("direct",),))]
    yield _steps(LATER, 120, cases, report)
    yield [
        _largest_part(name, within, settings, small)
        for name, settings in SEARCHED.items()
        for within in ("plain", "within")
    ]


def test_files() -> list[str]:
    """Files of tests that need a GPU."""
    return sorted(path.name for path in (ROOT / "tests" / "gpu").glob("test_*.py"))


def _memory_part(names: Sequence[str]) -> Part:
    return Part(limit_s=120, arguments=("memory", *names), expects=tuple(("memory", name) for name in names))


def _largest_part(name: str, within: str, settings: Report, small: bool) -> Part:
    told = json.dumps({"resolution": 128} if small and name == "resnet50" else settings)
    arguments = ("largest", name, within, told, str(1 << 30 if small else 8 << 30))
    return Part(limit_s=90, arguments=arguments, expects=(("largest", name, within),))


def _steps(methods: Sequence[str], limit_s: int, cases: Mapping[str, Report], report: Report) -> list[Part]:
    parts: list[Part] = []
    for name, settings in cases.items():
        plain = report.get("steps", {}).get(name, {}).get("plain", {}).get("reserved_bytes", 0)
        expects = tuple(("steps", name, method) for method in methods)
        arguments = ("steps", name, json.dumps(settings), str(plain), *methods)
        parts.append(Part(limit_s=limit_s, arguments=arguments, expects=expects))
    return parts


def batched(names: Sequence[str], size: int) -> list[Sequence[str]]:
    """Groups of so many, the last one of what is left."""
    return [names[at : at + size] for at in range(0, len(names), size)]


def memory_models() -> list[str]:
    """Models whose memory is put beside the simulation: those of tests/fakecuda, and some of the planning benchmark."""
    return [*ALL, *MORE_MODELS]


CASES = (sys.executable, "-m", "benchmarks.gpu_cases")


def run(part: Part, limit_s: float, environment: Mapping[str, str], command: Sequence[str] = CASES) -> Iterator[Told]:
    """What the process of a part tells until it ends, or is ended; last, with no place, why it tells no more."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, *part.arguments],
            cwd=ROOT,
            env=dict(environment),
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
            why = f"ended with exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            why = f"ended after {limit_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its own children
            process.wait()
        out.seek(0)
        errors.seek(0)
        yield from (told_in(line) for line in out if line.startswith("@@") and line.endswith("\n"))
        tail = re.sub(r"\s+", " ", errors.read()[-600:])
    yield [], {"not_run": f"{why}: {tail}" if process.returncode > 0 else why}


def told_in(line: str) -> Told:
    place, found = json.loads(line.removeprefix("@@"))
    return place, found


def summary(report: Report) -> str:
    """A few lines for people."""
    machine = report.get("machine", {})
    lines = [f"{machine.get('gpu', 'unknown')}: " + ("measured" if report["measured"] else "not measured: no GPU")]
    lines += [
        f"{name}: exit code {found.get('exit_code')}, {_last(found)}" for name, found in report.get("tests", {}).items()
    ]
    for name, methods in report.get("steps", {}).items():
        plain_ns = methods.get("plain", {}).get("step_ns")
        lines += [f"{name}, {method}: {_step(found, plain_ns)}" for method, found in methods.items()]
    for name, found in report.get("largest", {}).items():
        told = (f"{w} {_largest(f)}" for w, f in found.items())
        lines.append(f"largest {name}: {', '.join(told)}" + ("" if report["measured"] else " (ran, not measured)"))
    lines.append(f"to the disk past the host: {_direct(report.get('direct', {}))}")
    lines += [f"memory of {name}: {_memory(found)}" for name, found in report.get("memory", {}).items()]
    return "\n".join(lines)


def _last(found: Report) -> str:
    return (found.get("tail", "").strip().splitlines() or [found.get("not_run", "")])[-1]


def _step(found: Report, plain_ns: int | None) -> str:
    if "not_run" in found:
        return found["not_run"][:160]
    reserved = f"{found['reserved_bytes'] / 2**20:.0f} MiB reserved"
    refused = f", as {found['refused_bytes'] / 2**20:.0f} MiB were refused" if "refused_bytes" in found else ""
    if not plain_ns or "step_ns" not in found:
        return f"ran, not measured; {reserved}{refused}"
    return f"{found['step_ns'] / plain_ns:.3f} of plain, {reserved}{refused}"


def _largest(found: Report) -> str:
    if "not_run" in found:
        return found["not_run"][-80:]
    return f"{found['largest']}" if found.get("through", True) else f"{found['largest']} or more, as its time was up"


def _direct(found: Report) -> str:
    if "out_bytes_per_s" not in found:
        return (found.get("refused") or found.get("not_run", ""))[-200:]
    return f"{found['out_bytes_per_s'] / 2**30:.2f} GiB/s out, {found['back_bytes_per_s'] / 2**30:.2f} GiB/s back"


def _memory(found: Report) -> str:
    if "allocator" not in found:
        return found["not_run"][:160]
    off = found["simulated"]["reserved"] - found["allocator"]["reserved"]
    return f"simulated less measured reserved {off / 2**20:+.1f} MiB"


if __name__ == "__main__":
    main()
