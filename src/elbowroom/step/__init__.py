"""One step of a trace, and what a plan does to it."""
