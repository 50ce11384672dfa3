"""Graph options: the words of a command line that say how an ONNX graph trains. No torch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from elbowroom.errors import UsageError

MODULE = "elbowroom.frameworks.onnx.train_graph"
"""Module that is run in place of a script, with the graph as its first word."""
ENDING = ".onnx"
OPTIMIZERS = ("adamw", "adam", "sgd", "momentum", "rmsprop", "adagrad", "adadelta", "nadam", "adafactor")
LOSSES = ("auto", "cross_entropy", "nll", "bce", "mse", "l1", "sum")
PRECISIONS = ("bf16", "fp16")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser, as a group of their own."""
    group = parser.add_argument_group(f"of an ONNX graph ({ENDING}) in place of a script")
    group.add_argument("--train", action="store_true", help="make a training step of it, which is the default")
    group.add_argument("--optimizer", choices=OPTIMIZERS, default=None, help="optimizer (default: adamw)")
    group.add_argument("--batch", type=int, metavar="N", help="samples of a batch, where the graph leaves them free")
    group.add_argument(
        "--dim", action="append", metavar="NAME=SIZE", help="size of another free dimension, by name or as input:axis"
    )
    group.add_argument("--loss", choices=LOSSES, default=None, help="loss (default: auto, which follows the output)")
    group.add_argument("--output", action="append", metavar="NAME", help="output with a loss (default: the first)")
    group.add_argument("--frozen", action="append", metavar="GLOB", help="names of weights that are not trained")
    group.add_argument("--inplace", action="store_true", help="activations overwrite what is free to be")
    group.add_argument("--folded", action="store_true", help="leave batch norms out that the export folded away")
    group.add_argument("--amp", choices=PRECISIONS, default=None, help="train with autocast")


def words_of(given: argparse.Namespace) -> Iterator[str]:
    """Yield the options that were given, as words."""
    for name in ("optimizer", "batch", "loss", "amp"):
        if (value := getattr(given, name)) is not None:
            yield from (f"--{name}", str(value))
    for name in ("dim", "output", "frozen"):
        for value in getattr(given, name) or ():
            yield from (f"--{name}", value)
    for name in ("train", "inplace", "folded"):
        if getattr(given, name):
            yield f"--{name}"


def sizes_of(given: Sequence[str] | None) -> dict[str, int]:
    """Return the sizes of --dim by name.

    Raises:
        UsageError: one is not of the form NAME=SIZE.
    """
    sizes: dict[str, int] = {}
    for word in given or ():
        name, _, size = word.rpartition("=")
        if not name or not size.isdigit() or not int(size):
            raise UsageError(
                f"--dim: given {word!r}; allowed is NAME=SIZE with a whole number of at least 1; write for example "
                "--dim sequence=128"
            )
        sizes[name] = int(size)
    return sizes
