"""Recipes: the short programs of a trace's own ops that rebuild a saved storage, and the proof that they may.

A torch-free description of what recomputing needs: `options` offers, `check_recipe` judges.
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
