"""Recipes: short programs of a trace's own ops that rebuild saved storages, and the proof that they give the same bits.

This package needs no torch. `options` offers recomputes to planners; `check_recipe` judges one.
"""

from elbowroom.step.recipes.recompute_options import (
    RecomputeOption,
    blocks,
    options,
    peak_of_recipe,
    recompute_for,
)
from elbowroom.step.recipes.rules import check_recipe, inputs_of
from elbowroom.step.recipes.segments import stretches

__all__ = [
    "RecomputeOption",
    "blocks",
    "check_recipe",
    "inputs_of",
    "options",
    "peak_of_recipe",
    "recompute_for",
    "stretches",
]
