"""Models of the planning benchmark, written after their papers."""
