"""Recipes: the short programs of a trace's own ops that rebuild a saved storage, and the proof that they may.

A torch-free description of what recomputing needs: `options` offers, `check_recipe` judges, `why_not` explains.
"""

from elbowroom.step.recipes.recompute_options import Option, blocks, options, peak_of_recipe, why_not
from elbowroom.step.recipes.rules import check_recipe, inputs_of, random_ops, statistics_ops
from elbowroom.step.recipes.segments import stretches

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
