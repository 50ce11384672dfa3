"""Planner `optimal`: a mixed-integer program, searches around it, and its bound."""
