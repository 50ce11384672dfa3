"""Launchers of trainings: `elbowroom estimate torchrun --nproc-per-node 2 train.py` looks at one of the processes.

A launcher starts children, and these would have no virtual GPU. So its words are parsed here. Its script takes its
place, and gets the environment variables that the launcher would set for a child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from elbowroom.errors import UsageError

COMMANDS = {"torchrun": "", "accelerate": "launch", "fabric": "run", "deepspeed": ""}
"""Names of launchers, each with the word that must follow."""

MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "lightning.fabric.cli")
"""Launchers as modules, after -m."""

_NAMES = {"accelerate.commands.launch": "accelerate", "lightning.fabric.cli": "fabric"}

PROCESSES = ("nproc-per-node", "num-processes", "num-gpus", "devices")
"""Options for the number of processes on a computer."""

NODES = ("nnodes", "num-machines", "num-nodes")
"""Options for the number of computers."""

VARIABLE_OF = {
    "accelerate": {
        "mixed-precision": "ACCELERATE_MIXED_PRECISION",
        "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        "dynamo-backend": "ACCELERATE_DYNAMO_BACKEND",
    },
    "fabric": {"precision": "LT_PRECISION", "strategy": "LT_STRATEGY"},
}
"""Options that a launcher passes on by the environment."""


class Launched(NamedTuple):
    """A command without its launcher.

    Attributes:
        words: words of a verb: its own options, the script or -m and a module, "--", the script's words.
        environment: variables that the launcher sets for the process that is estimated.
    """

    words: list[str]
    environment: dict[str, str]


def without_launcher(words: Sequence[str], verbs: Sequence[str]) -> Launched:
    """Take the launcher out of a command line.

    Raises:
        UsageError: no script follows a launcher.
    """
    given = list(words)
    at = _place(given) if given and given[0] in verbs else None
    if at is None:
        return Launched(given, {})
    is_module = given[at] == "-m"
    name = _NAMES.get(given[at + 1], "torchrun") if is_module else Path(given[at]).name
    rest = [each for each in given[at + 1 + is_module :] if each != "--"]
    options, target = _split(rest, given[at])
    return Launched([*given[:at], *target], _environment(name, dict(read(options))))


def _place(words: Sequence[str]) -> int | None:
    """Return the place of a launcher before any "--"; None if there is none."""
    own = words[: words.index("--")] if "--" in words else words
    for at, word in enumerate(own):
        after = words[at + 1] if at + 1 < len(words) else ""
        if at and own[at - 1] != "-m" and Path(word).name in COMMANDS:
            needed = COMMANDS[Path(word).name]
            if not needed or needed == after or (after == "--" and needed in words):
                return at
        if word == "-m" and after in MODULES:
            return at
    return None


def _split(words: list[str], launcher: str) -> tuple[list[str], list[str]]:
    """Return the launcher's own options, and the script as words of a verb."""
    for at, word in enumerate(words):
        if word.endswith(".py") and Path(word).is_file():
            return words[:at], [word, "--", *words[at + 1 :]]
        if word in ("-m", "--module") and at + 1 < len(words):
            return words[:at], ["-m", words[at + 1], "--", *words[at + 2 :]]
    raise UsageError(
        f"{launcher}: given no script after it that is there; allowed is the launcher's own command line, as in "
        "`elbowroom estimate torchrun --nproc-per-node 1 train.py`; check the path"
    )


def read(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield options with their values, without dashes; "" for a flag."""
    for at, word in enumerate(options):
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            after = options[at + 1] if at + 1 < len(options) else ""
            yield name.replace("_", "-"), value or ("" if after.startswith("-") else after)


def fabric_variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which `fabric run` passes its options on."""
    names = {**VARIABLE_OF["fabric"], "accelerator": "LT_ACCELERATOR", "num-nodes": "LT_NUM_NODES"}
    given = {name: options[option] for option, name in names.items() if options.get(option)}
    return {"LT_CLI_USED": "1", "LT_DEVICES": str(count(options, PROCESSES)), **given}


def _environment(launcher: str, options: Mapping[str, str]) -> dict[str, str]:
    local = count(options, PROCESSES)
    size = local * count(options, NODES)
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}
    ranks |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(local)}
    alone = launcher == "accelerate" and size == 1  # which starts one process without a group
    variables = {} if alone else ranks
    if launcher == "fabric":
        variables = {"LT_CLI_USED": "1", "LT_ACCELERATOR": "cuda", "LT_DEVICES": str(local)}
        variables |= ranks if size > 1 else {}
    for option, name in VARIABLE_OF.get(launcher, {}).items():
        if options.get(option):
            variables[name] = options[option]
    return variables


def count(options: Mapping[str, str], names: Sequence[str]) -> int:
    """Return the number that an option gives; 1 if it is not given, or a word such as "gpu" or "auto"."""
    said = next((options[name] for name in names if name in options), "1").rpartition(":")[2]
    return max(int(said), 1) if said.isdigit() else 1
