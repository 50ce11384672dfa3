"""torch.cuda.gds.GdsFile as a plain file, through host memory: what it moves, and how it fails."""

from __future__ import annotations

import os
from typing import Any, final

import torch

from elbowroom.engine.tiers.streams import bytes_of


@final
class PlainGdsFile:
    """Moves whole storages on the calling thread, as torch's own does, and raises what that raises.

    Attributes:
        fails: words, such as "cuFileWrite", of the calls that fail from now on.
        comes_short: whether a write leaves out its second half and says so, as torch does after 2.13.
        moved: (what, bytes, offset) of each call.
    """

    opened = 0

    def __init__(self, filename: str, flags: int) -> None:
        self.descriptor = os.open(filename, flags)
        self.fails: set[str] = set()
        self.comes_short = False
        self.moved: list[tuple[str, int, int]] = []
        type(self).opened += 1

    def __del__(self) -> None:
        os.close(self.descriptor)
        type(self).opened -= 1

    def save_storage(self, storage: torch.UntypedStorage, offset: int = 0) -> None:
        self._begins("cuFileWrite", storage, offset)
        content = bytes_of(storage).cpu().numpy().tobytes()
        if self.comes_short:
            os.pwrite(self.descriptor, content[: len(content) // 2], offset)
            raise RuntimeError(f"cuFileWrite handled only {len(content) // 2} of {len(content)} bytes")
        os.pwrite(self.descriptor, content, offset)

    def load_storage(self, storage: torch.UntypedStorage, offset: int = 0) -> None:
        self._begins("cuFileRead", storage, offset)
        content = os.pread(self.descriptor, storage.nbytes(), offset)
        found: Any = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        bytes_of(storage)[: len(content)].copy_(found)

    def _begins(self, what: str, storage: torch.UntypedStorage, offset: int) -> None:
        self.moved.append((what, storage.nbytes(), offset))
        if what in self.fails:
            raise RuntimeError(f"{what} failed: cufile io error")
