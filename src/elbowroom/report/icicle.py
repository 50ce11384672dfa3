"""Icicle: a tree of memory as SVG. A box is as wide as its bytes, and what is in it stands below it.

Places are percentages, so the picture follows the width of the page without a script. web/icicle.js makes a box as wide
as the picture when it is chosen, by click or key. Each box is an item of a tree for readers who do not see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from elbowroom.answers.memory_tree import MemoryNode
from elbowroom.report.drawings import TEXT
from elbowroom.trace import Category
from elbowroom.units import format_bytes

BOX = 24
"""Height of a box in pixels."""
MOST_DEEP = 16
"""Levels that are drawn."""
COLOURS_OF: dict[Category, str] = {
    "parameter": "#2f6fd6",
    "gradient": "#8b78df",
    "optimizer_state": "#4cae84",
    "buffer": "#a3a7af",
    "input": "#d66fa3",
    "activation": "#e59432",
    "temporary": "#c9b037",
    "workspace": "#7d8b99",
    "context": "#5a5f66",
}
"""Values of web/page.css for files that stand alone."""
DARK: tuple[Category, ...] = ("parameter", "context")
"""Categories whose colour needs a bright text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node of the tree and its place.

    Attributes:
        node: what it shows.
        depth: its row, from 0.
        left: where it begins, as a share of the picture.
        width: how wide it is, as a share of the picture.
        number: its place among the parts of the node above it, from 1.
        count: how many parts that node has.
    """

    node: MemoryNode
    depth: int
    left: float
    width: float
    number: int
    count: int


def boxes_of(root: MemoryNode) -> Iterator[Box]:
    """Yield the boxes of a tree, each before its parts."""
    if root.size_bytes:
        yield from _below(Box(node=root, depth=0, left=0.0, width=1.0, number=1, count=1), root.size_bytes)


def _below(box: Box, all_bytes: int) -> Iterator[Box]:
    yield box
    left, parts = box.left, box.node.parts
    for number, part in enumerate(parts if box.depth + 1 < MOST_DEEP else (), 1):
        width = part.size_bytes / all_bytes
        depth = box.depth + 1
        yield from _below(
            Box(node=part, depth=depth, left=left, width=width, number=number, count=len(parts)), all_bytes
        )
        left += width


def icicle(root: MemoryNode, label: str) -> str:
    """Draw a tree of memory.

    Args:
        root: the tree; one without bytes gives "".
        label: what the picture shows, for readers who do not see it.
    """
    boxes = list(boxes_of(root))
    if not boxes:
        return ""
    height = (max(box.depth for box in boxes) + 1) * BOX
    drawn = "".join(_drawn(box, root.size_bytes) for box in boxes)
    return (
        f'<svg class="icicle" width="100%" height="{height}" role="tree" '
        f'aria-label="{escape(label)}" style="font:{TEXT}">{drawn}</svg>'
    )


def named(node: MemoryNode) -> str:
    """Name a node by its whole path."""
    if node.parts:
        return node.path or node.name
    return f"{node.path} {node.name}".strip()


def shared(node: MemoryNode, all_bytes: int) -> str:
    """Return the bytes of a node and its share of all."""
    return f"{format_bytes(node.size_bytes)}, {node.size_bytes / all_bytes:.1%}"


def _drawn(box: Box, all_bytes: int) -> str:
    node = box.node
    said = escape(f"{named(node)}: {shared(node, all_bytes)}")
    text = escape(f"{node.name} {format_bytes(node.size_bytes)}")
    more = ' aria-expanded="true"' if node.parts else ""
    return (
        f'<svg class="box" x="{box.left:.4%}" y="{box.depth * BOX}" width="{box.width:.4%}" height="{BOX - 1}" '
        f'role="treeitem" aria-level="{box.depth + 1}" aria-posinset="{box.number}" aria-setsize="{box.count}"{more} '
        f'aria-label="{said}" data-left="{box.left:.6f}" data-width="{box.width:.6f}" data-depth="{box.depth}">'
        f'<title>{said}</title><rect width="100%" height="100%" style="{_paint(node)}"/>'
        f'<text x="5" y="16" style="fill:{_ink(node)}">{text}</text></svg>'
    )


def _paint(node: MemoryNode) -> str:
    """Return the style of a box; a hairline in the colour of the page parts it from the next."""
    fill = f"var(--{node.category},{COLOURS_OF[node.category]})" if node.category else "var(--module,#dcdfe6)"
    return f"fill:{fill};stroke:var(--card,#ffffff);stroke-width:1px"


def _ink(node: MemoryNode) -> str:
    """Return the colour of a box's text, which can be read on the colour of the box."""
    if node.category in DARK:
        return "var(--on-dark,#ffffff)"
    return "var(--on-bright,#14161a)" if node.category else "var(--ink,#1d1f23)"
