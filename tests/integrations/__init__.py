"""Trainings of libraries within a budget. Processes that a test starts import this package first, as its modules do."""

from benchmarks.accuracy.child import define_torchvision_ops

define_torchvision_ops()
