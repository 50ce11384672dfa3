"""Recomputing: repeats the calls of a step to rebuild what was dropped."""
