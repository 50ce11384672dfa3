"""Recipes: the short programs of a trace's own ops that rebuild a saved storage, and the proof that they may.

A torch-free description of what recomputing needs: `options` offers, `check_recipe` judges.
"""

from elbowroom.step.recipes.recompute_options import Option, blocks, options, peak_of_recipe
from elbowroom.step.recipes.rules import check_recipe, inputs_of
from elbowroom.step.recipes.segments import stretches

__all__ = [
    "Option",
    "blocks",
    "check_recipe",
    "inputs_of",
    "options",
    "peak_of_recipe",
    "stretches",
]
