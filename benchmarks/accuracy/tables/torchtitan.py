"""torchtitan's table of Llama 3.1 on 8 to 512 H100: no row is of one process, and most are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy.tables.row import Row, lines

SHARDED = "weights sharded by FSDP over many GPUs: its buffers need a process group, which a capture does not start"
COMPILED = "the same, with torch.compile, float8, tensor, context or pipeline parallelism"


def rows(folder: Path) -> Iterator[Row]:
    """The rows of torchtitan_llama3_h100_202412.csv."""
    for number, (_, _, variant, *_) in enumerate(lines(folder / "torchtitan_llama3_h100_202412.csv")):
        yield Row(id=f"torchtitan-{number}", family="torchtitan", reason=SHARDED if variant == "FSDP" else COMPILED)
