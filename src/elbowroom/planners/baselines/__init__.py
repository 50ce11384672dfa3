"""Baselines: planners of the literature, and the simplest planners."""
