"""The engine: moves bytes out of a training's way and back, as it is told. It decides nothing."""
