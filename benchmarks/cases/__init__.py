"""The models that are measured. Each module has `build(seed, checkpointed=False) -> Job` and the text `DESCRIPTION`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

CASES = ("unet3d", "resnet50", "gpt2", "lstm", "resnet300")
"""Large ones, for `benchmarks.run`."""

FITTING = ("small_mlp", "small_cnn")
"""Small ones with short steps, for `benchmarks.overhead`."""


def load_case(name: str) -> ModuleType:
    """The module of one case; imports torch."""
    if name not in CASES + FITTING:
        raise ValueError(f"no benchmark case {name!r}: the cases are {', '.join(CASES + FITTING)}")
    return importlib.import_module(f"{__name__}.{name}")
