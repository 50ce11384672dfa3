"""Baselines: the planners of the literature, and the simplest ones."""
