"""On CPU: a script that trains on the CPU, and those of its own options that would put it on the GPU."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

AGAINST = ("no-cuda", "no-accel", "no-gpu", "disable-cuda", "use-cpu", "cpu", "cpu-only", "force-cpu")
"""Options that keep a training on the CPU."""
FOR = ("accel", "cuda", "use-cuda", "use-gpu", "gpu", "gpus", "gpu-id", "gpu-ids", "device", "devices", "accelerator")
"""Options that put a training on a GPU, the plainest first."""
_PLAIN = ("store_true", "BooleanOptionalAction")
_VALUES = {"gpu": "0", "gpus": "1", "gpu-id": "0", "gpu-ids": "0", "devices": "1", "accelerator": "gpu"}
"""Values of such options if they take one; the others get cuda."""


def hint(script: str, arguments: Sequence[str]) -> str:
    """Say what to try, by the options that a script has and those that it was given.

    Args:
        script: its path; modules that it imported from its own folder are searched too.
        arguments: its words.
    """
    given = {word.partition("=")[0]: word for word in arguments if word.startswith("-")}
    known = options(script)
    for word in given:
        if _plain(word) in AGAINST:
            return f"leave out {word}"
    wanted = [name for name in FOR if name in known and known[name][0] not in given]
    if wanted:
        option, takes_value = known[wanted[0]]
        return f"did you mean {option}{' ' + _VALUES.get(wanted[0], 'cuda') if takes_value else ''}?"
    for name in FOR:
        if name in known:
            word = known[name][0]
            return f"it was given {given[word]}; give {word} another value, such as {_VALUES.get(name, 'cuda')}"
    return 'move its model and data to the GPU, as in model.to("cuda")'


def _plain(option: str) -> str:
    return option.lstrip("-").replace("_", "-")


def options(script: str) -> dict[str, tuple[str, bool]]:
    """Return a script's options by plain names: as the script writes them, and whether they take a value."""
    found: dict[str, tuple[str, bool]] = {}
    for path in (script, *_next_to(script)):
        with suppress(OSError, SyntaxError, ValueError):
            for option, takes_value in _named(ast.parse(Path(path).read_bytes())):
                found.setdefault(_plain(option), (option, takes_value))
    return found


def _next_to(script: str) -> list[str]:
    """Return the files of modules that a script imported from its own folder or below."""
    folder = os.path.dirname(os.path.realpath(script)) + os.sep
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    return [each for each in files if each.startswith(folder) and "site-packages" not in each and each.endswith(".py")]


def _named(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield the options that calls name, as in argparse, click and absl: the name, and whether it takes a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            words = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            long = next((word for word in words if word.startswith("--")), None)
            if long is not None:
                yield long.partition("/")[0], not _is_switch(node)


def _is_switch(call: ast.Call) -> bool:
    said = [ast.unparse(each.value) for each in call.keywords if each.arg in ("action", "is_flag")]
    return any(word in each for each in said for word in (*_PLAIN, "True"))
