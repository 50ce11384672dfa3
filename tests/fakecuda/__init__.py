MOVES = ("swap", "state")
"""Means of runs whose bytes matter. The rig's kernels do nothing, so that no recompute gives again what was there."""
