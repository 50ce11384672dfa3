"""Answers: what people ask of a training, worked out from its trace."""
