"""Ops: the results that an op makes on CUDA, where its meta kernel does not say them."""
