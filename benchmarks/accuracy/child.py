"""One case in a process of its own: libraries are patched by the virtual device, and memory is measured."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODES = {
    "rig": "benchmarks.accuracy.rig:run",
    "memtracker": "benchmarks.accuracy.memtracker:run",
    "accelerate": "benchmarks.accuracy.formulas:accelerate",
    "torchinfo": "benchmarks.accuracy.formulas:torchinfo",
    "public": "benchmarks.accuracy.public:run",
    "snapshots": "benchmarks.accuracy.snapshots:run",
}


def serve(request: dict[str, Any], answer: str) -> None:
    """Write the answer to a request into a file, as JSON; {"error": ...} where it fails.

    Args:
        request: `mode` and what that mode takes.
        answer: name of the file; what is printed goes to a file beside it.
    """
    log = os.open(f"{answer}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    warnings.simplefilter("ignore")
    began = time.time()
    found: dict[str, Any] = {}
    try:
        define_torchvision_ops()
        module, _, name = MODES[request.pop("mode")].partition(":")
        run: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), name)
        found = run(**request)
    except Exception as problem:  # noqa: BLE001  whatever a library raises is this case's result
        place = traceback.extract_tb(problem.__traceback__)[-1]
        found["error"] = f"{type(problem).__name__}: {str(problem)[:300]} ({Path(place.filename).name}:{place.lineno})"
    found["seconds"] = round(time.time() - began, 2)
    found["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(answer).write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # a virtual device's libraries may leave threads behind


def define_torchvision_ops() -> None:
    """Declare torchvision's compiled ops where they cannot be loaded, so that the package imports."""
    import torch

    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:  # operator torchvision::nms does not exist
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_kept"] = library  # a library that dies takes its ops along
