"""Module paths: names of weights and nodes as the dotted paths of modules, so that answers name the parts of a net."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

LEAVES = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


class GraphPart(nn.Module):
    """A part of a net that only holds others."""


def path_of_weight(name: str) -> str:
    """Return the module of a weight, such as layer1.0.conv1 of layer1.0.conv1.weight; "" if the name has none."""
    above, dot, leaf = name.rpartition(".")
    return above if dot and (leaf in LEAVES or leaf.startswith(("weight_", "bias_"))) else ""


def path_of_node(name: str) -> str:
    """Return the module of a node.

    torch.onnx writes /layer1/layer1.0/conv1/Conv: a child of a list or a Sequential repeats the name of its parent.
    """
    pieces = [piece for piece in name.split("/") if piece][:-1]
    found: list[str] = []
    for piece in pieces:
        if found and piece.startswith(f"{found[-1]}."):
            found[-1] = piece
        else:
            found.append(piece)
    return ".".join(found)


def place_of(root: nn.Module, path: str) -> nn.Module:
    """Return the module at a path; missing ones are made."""
    found = root
    for piece in _pieces(path):
        below = found._modules.get(piece)  # noqa: SLF001  `get_submodule` raises where there is none
        if below is None:
            below = GraphPart()
            found.add_module(piece, below)
        found = below
    return found


def put(root: nn.Module, path: str, module: nn.Module) -> None:
    """Add a module at a path, with a number behind its name if the path is taken."""
    above, _, leaf = _joined(path).rpartition(".")
    parent = place_of(root, above)
    name, count = leaf, 1
    while hasattr(parent, name):
        count += 1
        name = f"{leaf}_{count}"
    parent.add_module(name, module)


def put_parameter(root: nn.Module, name: str, parameter: nn.Parameter) -> tuple[nn.Module, str]:
    """Add a parameter at the path that is its name; return where it is."""
    above, _, leaf = _joined(name).rpartition(".")
    parent, leaf = place_of(root, above), leaf or "weight"
    while hasattr(parent, leaf):
        leaf += "_"
    parent.register_parameter(leaf, parameter)
    return parent, leaf


def _pieces(path: str) -> Sequence[str]:
    pieces = [re.sub(r"\W", "_", piece) for piece in path.split(".") if piece]
    return [f"{piece}_" if piece in _TAKEN else piece for piece in pieces]


def _joined(path: str) -> str:
    return ".".join(_pieces(path)) or "layer"


_TAKEN = frozenset(dir(nn.Module()))
"""Names that a module has itself."""
