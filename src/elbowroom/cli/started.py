"""Launchers start scripts in processes of their own, which a run in this one knows nothing of: each needs its own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from elbowroom.errors import UsageError

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "lightning.fabric.cli": "fabric run",
    "lightning_fabric.cli": "fabric run",
}
PROGRAMS = {"torchrun": "torchrun", "accelerate": "accelerate", "fabric": "fabric", "deepspeed": "deepspeed"}
WITHOUT_MODULES = ("fabric", "fabric run", "deepspeed")
"""Those that start no module, as `-m` would: torchrun does the same for their scripts."""


def refuse(words: Sequence[str], options: Sequence[str], *, is_module: bool) -> None:
    """Raise UsageError with the command to use where a launcher is to be run.

    Args:
        words: the command line of what is to be run.
        options: those of the run, for the processes that it starts.
        is_module: whether the first word is a module.
    """
    words = words[1:] if words and words[0] == "--" else words
    name = None
    if words:
        name = MODULES.get(words[0]) if is_module else PROGRAMS.get(Path(words[0]).name)
    if name is None:
        return
    command = shlex.join(_other_way_round(name, words[1:], options))
    raise UsageError(
        f"run: given the launcher {words[0]!r}, which starts the training in processes of its own, and a budget is one "
        f"process's; have it start elbowroom in each of them: {command}"
    )


def _other_way_round(name: str, words: Sequence[str], options: Sequence[str]) -> list[str]:
    """The launcher, and elbowroom before the script."""
    at = next((n for n, word in enumerate(words) if word.endswith(".py")), len(words))
    mine, script = list(words[:at]), list(words[at:]) or ["SCRIPT"]
    if name in WITHOUT_MODULES:
        name, mine = "torchrun", ["--nproc-per-node", "1"]
    return [*name.split(), *mine, "-m", "elbowroom", "run", *options, *script]


@final
class Children:
    """Scripts that other processes were started with, as far as this one sees it. There is one in a process.

    Attributes:
        scripts: their paths.
    """

    def __init__(self) -> None:
        self.scripts: list[str] = []
        self._on = True
        sys.addaudithook(self._hear)

    def close(self) -> None:
        """Listen no more: a hook cannot be taken out."""
        self._on = False

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on or event != "subprocess.Popen":
            return
        words = arguments[1]
        words = [str(word) for word in words] if isinstance(words, (list, tuple)) else [str(words)]
        if any(Path(word).name.startswith("python") for word in words[:1]) and "elbowroom" not in words:
            self.scripts += [word for word in words[1:] if word.endswith(".py")][:1]
