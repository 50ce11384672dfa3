"""Launchers and child processes of a run: launchers start scripts in processes that each need a run of their own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from elbowroom.cli import launchers
from elbowroom.errors import UsageError

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "lightning.fabric.cli": "fabric run",
    "lightning_fabric.cli": "fabric run",
}
PROGRAMS = {"torchrun": "torchrun", "accelerate": "accelerate", "fabric": "fabric", "deepspeed": "deepspeed"}
OF_TORCHRUN = ("fabric", "fabric run", "deepspeed")
"""Launchers that cannot start a module with `-m`; torchrun starts their scripts in the same way."""
OF_PROGRAMS = ("mpirun", "mpiexec", "srun")
"""Launchers that start a program, such as python."""
PYTHON = ("python", "python3")


def refuse(words: Sequence[str], options: Sequence[str], *, is_module: bool) -> None:
    """Raise UsageError with the command to use if a launcher, or python, is to be run.

    Args:
        words: the command line to run.
        options: options of the run, for the processes that it starts.
        is_module: whether the first word is a module.
    """
    words = words[1:] if words and words[0] == "--" else words
    if not words or (not is_module and Path(words[0]).is_file() and words[0].endswith(".py")):
        return
    if not is_module and Path(words[0]).name in PYTHON and words[1:2] == ["-m"] and MODULES.get("".join(words[2:3])):
        words, is_module = words[2:], True
    name = MODULES.get(words[0]) if is_module else PROGRAMS.get(Path(words[0]).name)
    if name is not None:
        raise _launched(words[0], _other_way_round(name, words[1:], options))
    if not is_module and Path(words[0]).name in OF_PROGRAMS and (at := _python_in(words)) is not None:
        raise _launched(words[0], [*words[: at + 1], *_inside(options), *words[at + 1 :]])
    if not is_module and _python_in(words) == 0:
        command = shlex.join(["elbowroom", "run", *options, *words[1:]])
        raise UsageError(
            f"run: given {words[0]!r}; allowed is a script, which this Python runs, or -m and a module; leave the word "
            f"out: {command}"
        )


def _launched(launcher: str, command: Sequence[str]) -> UsageError:
    return UsageError(
        f"run: given the launcher {launcher!r}, which starts the training in processes of its own, and a budget is one "
        f"process's; have it start elbowroom in each of them: {shlex.join(command)}"
    )


def _other_way_round(name: str, words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Return the launcher's command line with elbowroom before the script."""
    mine, script = _split(words)
    if name not in OF_TORCHRUN:
        return [*name.split(), *mine, *_inside(options), *script]
    given = dict(launchers.read(mine))
    variables = [f"{variable}={value}" for variable, value in launchers.fabric_variables(given).items()]
    around = ["env", *variables] if name.startswith("fabric") else []
    processes = str(launchers.count(given, launchers.PROCESSES))
    return [*around, "torchrun", "--nproc-per-node", processes, *_inside(options), *script]


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the launcher's own words; and the script, or -m and the module, with its words."""
    for at, word in enumerate(words):
        if word.endswith(".py"):
            return list(words[:at]), list(words[at:])
        if word in ("-m", "--module"):
            return list(words[:at]), ["-m", *words[at + 1 :]]
    return list(words), ["SCRIPT"]


def _inside(options: Sequence[str]) -> list[str]:
    return ["-m", "elbowroom", "run", *options]


def _python_in(words: Sequence[str]) -> int | None:
    """Return the place of python in words that run a script or a module; None without one."""
    return next((at for at, word in enumerate(words) if Path(word).name in PYTHON), None)


@final
class Children:
    """Scripts with which this process started others, as far as it can see. There is one object in a process.

    Attributes:
        scripts: their paths.
    """

    def __init__(self) -> None:
        self.scripts: list[str] = []
        self._on = True
        sys.addaudithook(self._hear)

    def close(self) -> None:
        """Stop listening; an audit hook cannot be removed."""
        self._on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on or event != "subprocess.Popen":
            return
        words = arguments[1]
        words = [str(word) for word in words] if isinstance(words, (list, tuple)) else [str(words)]
        if any(Path(word).name.startswith("python") for word in words[:1]) and "elbowroom" not in words:
            self.scripts += [word for word in words[1:] if word.endswith(".py")][:1]
