"""A trial in a process of its own: a training that fails leaves things behind, and a device keeps its capacity."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `work` returns in a forked process, as JSON has it. Raises RuntimeError: it failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as problem:  # noqa: BLE001 - the parent says it
            said = {"error": f"{type(problem).__name__}: {problem}"}
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = json.loads(pipe.read() or '{"error": "the trial was killed"}')
    os.waitpid(child, 0)
    if "error" in found:
        raise RuntimeError(found["error"])
    return found
