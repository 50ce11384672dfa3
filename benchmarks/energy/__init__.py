"""Joules of a step: simulated ones beside published measurements, and plans chosen by energy beside those by time."""
