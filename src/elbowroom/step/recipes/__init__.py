"""Recipes: short programs of a trace's own ops that rebuild saved storages, and the proof that they give the same bits.

This package needs no torch. `options` offers recomputes to planners; `check_recipe` judges one.
"""

from elbowroom.step.recipes.closure import Closure, closure
from elbowroom.step.recipes.history import history
from elbowroom.step.recipes.recompute_options import (
    RecomputeOption,
    blocks,
    option_of,
    options,
    peak_of_recipe,
    recompute_for,
)
from elbowroom.step.recipes.rules import check_recipe, inputs_of, not_droppable
from elbowroom.step.recipes.segments import stretches

__all__ = [
    "Closure",
    "RecomputeOption",
    "blocks",
    "check_recipe",
    "closure",
    "history",
    "inputs_of",
    "not_droppable",
    "option_of",
    "options",
    "peak_of_recipe",
    "recompute_for",
    "stretches",
]
