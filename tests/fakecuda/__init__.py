"""Tests on the rig: the CUDA build of PyTorch without a GPU."""

MOVES = ("swap", "state")
"""Means of runs on the rig where a test asks for no others.

Kernels do nothing there, so no recompute gives again what was there. Whether one helps depends on the machine's speed.
"""

FIXED = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
"""Environment of a user who chose fixed segments: what is reserved there is simulated to 1 %."""
SHARED = {"FAKECUBLAS_SHARED": "1"}
"""All threads share a cuBLAS handle, for tests whose budgets were chosen so."""
