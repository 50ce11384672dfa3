"""Integrations: rooms that the trainings of other libraries open and close, by an extension point of theirs.

Each module imports its library, and nothing else does: huggingface, lightning, keras, skorch, monai (and any engine of
ignite), fastai and ray. docs/integrations.md says for each what to add to a script, and what was tested.
"""
