"""Estimates of training steps of JAX next to XLA's own figures."""
