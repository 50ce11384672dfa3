"""Recomputing: the calls of a step, made again to rebuild what was dropped."""
