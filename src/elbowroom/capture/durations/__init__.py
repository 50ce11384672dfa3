"""Durations: how long an op takes on a GPU that is not there."""
