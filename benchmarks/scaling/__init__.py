"""Scaling in simulation: steps of data parallel trainings on 1 to 4,096 ranks, and published tables."""
