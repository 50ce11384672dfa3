"""Training under limits that are hard: the least each way of training gets by with, and what fails above it."""
