"""Ops: the results that an op makes on CUDA, if its meta kernel does not give them."""
