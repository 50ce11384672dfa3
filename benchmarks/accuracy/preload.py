"""Imported once by the server that children are forked from: what takes seconds to import and is the same for all."""

from __future__ import annotations

import contextlib
import importlib

from benchmarks.accuracy.child import define_torchvision_ops

LIBRARIES = (
    "torch._dynamo",
    "elbowroom.capture.virtual",
    "elbowroom.allocator",
    "torchvision.models",
    "timm",
    "transformers.modeling_utils",
)

define_torchvision_ops()
for _library in LIBRARIES:
    # A library that is missing is named by the cases that need it.
    with contextlib.suppress(Exception):
        importlib.import_module(_library)
