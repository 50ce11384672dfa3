"""Tests on the rig: the CUDA build of PyTorch without a GPU."""

MOVES = ("swap", "state")
"""Means of runs on the rig where a test asks for no others.

Kernels do nothing there, so no recompute gives again what was there. Whether one helps depends on the machine's speed.
"""

FIXED = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
"""Environment of a user who chose fixed segments: what is reserved there is simulated to 1 %."""
PAGES = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,large_segment_size_mb:12"}
"""Environment of a script under `elbowroom run`: the model too lies in expandable segments, with pages of 12 MiB."""
SHARED = {"FAKECUBLAS_SHARED": "1"}
"""All threads share a cuBLAS handle, for tests whose budgets were chosen so."""
