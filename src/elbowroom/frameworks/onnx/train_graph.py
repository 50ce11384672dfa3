"""Train graph: python -m elbowroom.frameworks.onnx.train_graph model.onnx trains an ONNX graph for some steps.

The verbs of `elbowroom` run it in place of a script where they are given a file that ends in .onnx.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from elbowroom.capture.script.said_remarks import say
from elbowroom.frameworks.graph_options import add_options, sizes_of
from elbowroom.frameworks.onnx.graph_model import load
from elbowroom.frameworks.onnx.graph_training import GraphLosses, batch_of, optimizer_of, train


def main(words: Sequence[str] | None = None) -> None:
    """Train a graph as the words of a command line say."""
    parser = argparse.ArgumentParser(prog="python -m elbowroom.frameworks.onnx.train_graph")
    parser.add_argument("path")
    add_options(parser)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args(words)
    model = load(
        given.path,
        batch=given.batch,
        sizes=sizes_of(given.dim),
        frozen=given.frozen or (),
        outputs=given.output or (),
        inplace=given.inplace,
        norms=not given.folded,
        logits=given.loss in (None, "auto", "cross_entropy"),
        values=False,
        notes=say,
    )
    losses = GraphLosses(model, given.loss or "auto")
    model.to(given.device)
    optimizer = optimizer_of(given.optimizer or "adamw", model)
    train(
        model,
        optimizer,
        batch_of(model),
        losses.targets(),
        losses,
        device=given.device,
        steps=given.steps,
        amp=given.amp or "",
    )


if __name__ == "__main__":
    main()
