"""Recipes: the short programs of a trace's own ops that rebuild a saved storage, and the proof that they may.

A torch-free description of what recomputing needs: `options` offers, `check_recipe` judges, `why_not` explains.
"""

from elbowroom.recipes.options import Option, blocks, options, peak_of_recipe, why_not
from elbowroom.recipes.rules import check_recipe, inputs_of, random_ops, statistics_ops
from elbowroom.recipes.segments import stretches

__all__ = [
    "Option",
    "blocks",
    "check_recipe",
    "inputs_of",
    "options",
    "peak_of_recipe",
    "random_ops",
    "statistics_ops",
    "stretches",
    "why_not",
]
