"""What elbowroom costs and saves on real models, measured. Start with `python -m benchmarks.run --help`."""
