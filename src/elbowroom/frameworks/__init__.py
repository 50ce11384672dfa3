"""Frameworks: what other frameworks wrote: graphs as trainings of PyTorch, jitted steps of JAX as traces."""
