"""detectron2's model zoo: detectors on V100s, most bytes allocated on one of 8 GPUs with 2 images each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy.tables.row import Row, lines

SIZES = (
    "compiled ops of detectron2, and the largest of 90,000 batches or more of images of random sizes: which one that "
    "was, and how many objects were in it, is not given"
)
NONE = "no memory is given"


def rows(folder: Path) -> Iterator[Row]:
    """The rows of detectron2_model_zoo.csv."""
    for number, (*_, memory, _) in enumerate(lines(folder / "detectron2_model_zoo.csv")):
        yield Row(id=f"detectron2-{number}", family="detectron2", reason=SIZES if memory else NONE)
