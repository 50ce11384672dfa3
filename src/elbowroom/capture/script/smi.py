"""SMI: an `nvidia-smi` for scripts that call it: a program, first on the PATH, that reports the virtual GPU.

It answers `--query-gpu`, `-L`, and anything else with a line for the GPU. No process uses the GPU. The
driver's version, the temperature and the power are stand-ins, as there is no GPU.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from shlex import quote

from elbowroom.hardware.gpus import title_of
from elbowroom.machine import Machine

_UUID = "GPU-00000000-0000-0000-0000-000000000000"
_PROGRAM = """import json, sys
FACTS = json.loads({facts!r})
given = dict(word.partition("=")[::2] for word in sys.argv[1:])
asked = given.get("--query-gpu") or given.get("--query")
form = given.get("--format", "")
if "--query-gpu" in sys.argv[1:]:
    asked = sys.argv[sys.argv.index("--query-gpu") + 1]
if "--format" in sys.argv[1:]:
    form = sys.argv[sys.argv.index("--format") + 1]
if asked:
    names = asked.split(",")
    rows = [FACTS.get(name.strip(), ["[N/A]", ""]) for name in names]
    units = "nounits" not in form
    if "noheader" not in form:
        print(", ".join(name.strip() for name in names))
    print(", ".join(value + (unit if units else "") for value, unit in rows))
elif "-L" in sys.argv or "--list-gpus" in sys.argv:
    print("GPU 0:", FACTS["name"][0], "(UUID: " + FACTS["uuid"][0] + ")")
elif not any(word.startswith("--query") for word in sys.argv):
    print("NVIDIA-SMI  GPU 0:", FACTS["name"][0], FACTS["memory.used"][0] + "MiB /", FACTS["memory.total"][0] + "MiB")
"""


def install(folder: Path, machine: Machine) -> None:
    """Put the program on the PATH of programs and shells that this process starts."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    answers = programs / "answers.py"
    answers.write_text(_PROGRAM.format(facts=json.dumps(_facts(machine))), encoding="utf-8")
    program = programs / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -IS {quote(str(answers))} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    os.environ["PATH"] = os.pathsep.join(filter(None, (str(programs), os.environ.get("PATH"))))


def _facts(machine: Machine) -> dict[str, tuple[str, str]]:
    """Return the fields of a query: each has a value and the unit after it."""
    total = str(machine.tiers[0].capacity_bytes >> 20)
    known = {
        "memory.total": (total, " MiB"),
        "memory.free": (total, " MiB"),
        "memory.used": ("0", " MiB"),
        "utilization.gpu": ("0", " %"),
        "utilization.memory": ("0", " %"),
        "temperature.gpu": ("40", ""),
        "power.draw": ("60.00", " W"),
    }
    plain = {"index": "0", "count": "1", "name": title_of(machine.name), "uuid": _UUID, "driver_version": "580.65.06"}
    aliases = {"gpu_name": "name", "gpu_uuid": "uuid"}
    found = known | {name: (value, "") for name, value in plain.items()}
    return found | {name: found[of] for name, of in aliases.items()}
