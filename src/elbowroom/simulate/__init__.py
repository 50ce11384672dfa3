"""Simulation: the time and the bytes of a step under a plan."""
