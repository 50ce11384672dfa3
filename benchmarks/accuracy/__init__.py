"""How far the estimate is from what was measured: see docs/accuracy.md. `python -m benchmarks.accuracy --help`."""
