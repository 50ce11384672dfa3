"""One script on the rig: alone with plenty of memory, then on cards that are too small for it, alone and in a run.

The rig (tools/rig) is the CUDA build of PyTorch without a GPU. Memory is true there, and a card refuses more than it
has. Numbers are not true: what a run does to them is compared on the CPU.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elbowroom.answers.estimate import estimate
from elbowroom.machine import Machine
from elbowroom.step.workspaces import without_workspaces
from elbowroom.trace import Trace

from . import trial
from .manifest import Script
from .sandbox import Sandbox
from .survey import Survey, environment_for, figures_of, named_row, sandbox_of, without_places
from .trial import Done

PLENTY_BYTES = 40 << 30
MARGIN = 0.9
"""A run takes that share of what is free; a card for the least that a refusal names is as much larger."""
OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|out of memory", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """Where the CUDA build is, and what its Python finds."""

    folder: Path
    packages: tuple[Path, ...]
    """Folders of libraries that scripts import; none of them may hold a torch."""

    @property
    def python(self) -> str:
        return str(self.folder / "fake_torch.sh")


def try_cards(survey: Survey, rig: Rig, script: Script) -> dict[str, Any]:
    """The row of one script: alone, estimated, and on each card."""
    start = time.monotonic()
    row = named_row(script) | {"arguments": script.rig, "stopped_after_steps": script.steps}
    try:
        alone = _alone(survey, rig, script, PLENTY_BYTES)
        row["alone"] = alone
        if alone["exit_code"] == 0 and alone["reserved_bytes"]:
            if "estimate" in survey.trials:
                row["estimate"] = _estimate(survey, script, alone)
            if "cards" in survey.trials:
                row["cards"] = [_card(survey, rig, script, alone, share) for share in script.cards]
    except (OSError, RuntimeError, ValueError) as error:
        row["not_tried"] = f"{type(error).__name__}: {error}"
    text = json.dumps(row).replace(f"{rig.folder}/unpacked/", "site-packages/")
    return json.loads(without_places(text, survey)) | {"seconds": round(time.monotonic() - start, 1)}


def _card(survey: Survey, rig: Rig, script: Script, alone: dict[str, Any], share: float) -> dict[str, Any]:
    """A card of that share of what the script reserves alone."""
    capacity_bytes = int(share * alone["reserved_bytes"]) >> 21 << 21
    return {
        "share": share,
        "capacity_bytes": capacity_bytes,
        "alone": _alone(survey, rig, script, capacity_bytes),
        "run": _within_card(survey, rig, script, capacity_bytes),
    }


def _alone(survey: Survey, rig: Rig, script: Script, capacity_bytes: int) -> dict[str, Any]:
    done, memory = _on_card(survey, rig, script, sandbox_of(survey, script), capacity_bytes, [])
    return _row(done) | memory


def _within_card(survey: Survey, rig: Rig, script: Script, capacity_bytes: int) -> dict[str, Any]:
    """`elbowroom run` without options; once more on a card for the least that a refusal names."""
    row = _run_once(survey, rig, script, capacity_bytes)
    least_bytes = row["figures"].get("least_feasible_bytes", 0)
    if row["exit_code"] not in (0, None) and least_bytes > MARGIN * capacity_bytes:
        larger_bytes = (int(least_bytes / MARGIN) >> 21) + 1 << 21
        again = _run_once(survey, rig, script, larger_bytes)
        return again | {"capacity_bytes": larger_bytes, "refused": {"said": row["said"], "least_bytes": least_bytes}}
    return row


def _run_once(survey: Survey, rig: Rig, script: Script, capacity_bytes: int) -> dict[str, Any]:
    made = sandbox_of(survey, script)
    figures = made.temporary / "figures.json"
    words = ["-m", "elbowroom", "run", "--json", str(figures)]
    done, memory = _on_card(survey, rig, script, made, capacity_bytes, words)
    read = figures_of(json.loads(figures.read_text())) if figures.exists() else {}
    own = [line for line in done.errors.splitlines() if line.startswith("elbowroom:")]
    kept = {key: value for key, value in read.items() if key.endswith("_bytes")}
    return _row(done) | memory | {"figures": kept, "summary": own[-3:]}


def _on_card(
    survey: Survey, rig: Rig, script: Script, made: Sandbox, capacity_bytes: int, before: list[str]
) -> tuple[Done, dict[str, Any]]:
    """The script on a card, after some words, and what its process says of the card's memory."""
    memory = made.temporary / "memory.json"
    environment = environment_for(survey, script, made) | _card_environment(survey, capacity_bytes)
    environment["PYTHONPATH"] = os.pathsep.join((environment["PYTHONPATH"], *map(str, rig.packages)))
    environment |= {"ELBOWROOM_WILD_MEMORY": str(memory), "ELBOWROOM_WILD_STEPS": str(script.steps)}
    words = [rig.python, *before, str(made.script), *script.rig_arguments]
    done = trial.run_command(words, made.folder, environment, survey.limit_s)
    found = json.loads(memory.read_text()) if memory.exists() else {"steps": 0, "reserved_bytes": 0}
    return done, found


def _card_environment(survey: Survey, capacity_bytes: int) -> dict[str, str]:
    gpu = Machine.of(survey.gpu)
    return {
        "FAKECUDA_CAPACITY": str(capacity_bytes),
        "FAKECUDA_BACKING": "0",
        "FAKECUDA_COPIES": str(1 << 16),
        "FAKECUDA_CC": str(gpu.compute_capability),
        "FAKECUDA_SMS": str(gpu.multiprocessors),
    }


def _row(done: Done) -> dict[str, Any]:
    text = done.errors + done.output
    return {**done.row(), "ran_out": done.exit_code not in (0, None) and bool(OUT_OF_MEMORY.search(text))}


def _estimate(survey: Survey, script: Script, alone: dict[str, Any]) -> dict[str, Any]:
    """What an estimate says, and the same events without workspaces of convolutions, which the rig does not have."""
    made = sandbox_of(survey, script)
    trace = made.temporary / "trace.json"
    options = ["--gpu", survey.gpu, "--json", "--timeout", str(survey.limit_s), "-o", str(trace)]
    words = [survey.python, "-m", "elbowroom", "estimate", *options, str(made.script), "--", *script.rig_arguments]
    done = trial.run_command(words, made.folder, environment_for(survey, script, made), survey.limit_s + 60)
    row = done.row() | {"exit_code": done.exit_code}
    if not trace.exists():
        return row
    found = Trace.load(trace)
    without = estimate(without_workspaces(found), Machine.of(survey.gpu), plans=False)
    held = alone["reserved_after_steps_bytes"]
    count = len(found.steps) * alone["optimizers"]  # the script's steps, each of all optimizers
    return row | {
        "steps": len(found.steps),
        "reserved_bytes": without.peak_reserved_bytes,
        "alone_reserved_bytes": held[count - 1] if len(held) >= count else alone["reserved_bytes"],
    }
