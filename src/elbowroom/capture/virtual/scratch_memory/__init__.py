"""Scratch memory: what the CUDA kernel of an op allocates besides its results."""
