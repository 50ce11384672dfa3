"""Recipes: the short programs of a trace's own ops that rebuild a saved storage, and the proof that they may.

A torch-free description of what recomputing needs: `options` offers, `check_recipe` judges, `why_not` explains.
"""

from elbowroom.recipes.options import Option, options, peak_of_recipe, why_not
from elbowroom.recipes.rules import check_recipe, inputs_of, random_ops, statistics_ops

__all__ = [
    "Option",
    "check_recipe",
    "inputs_of",
    "options",
    "peak_of_recipe",
    "random_ops",
    "statistics_ops",
    "why_not",
]
