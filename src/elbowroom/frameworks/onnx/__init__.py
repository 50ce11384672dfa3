"""ONNX: graphs that other frameworks wrote, as modules of PyTorch that train (docs/onnx.md).

`load` needs the library onnx (the extra `onnx`). `python -m elbowroom.frameworks.onnx.train_graph model.onnx` trains a
graph on numbers that mean nothing, as the verbs of `elbowroom` do where they are given a file that ends in .onnx.
"""

from __future__ import annotations

from elbowroom.frameworks.onnx.graph_model import GraphModel, load

__all__ = ["GraphModel", "load"]
