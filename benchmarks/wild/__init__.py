"""Training scripts that others wrote, estimated and run as they are: `python -m benchmarks.wild SCRIPTS DATA`."""
