"""Mapped files: tensors whose bytes are a file on a disk.

`numpy.memmap` and `torch.load(mmap=True)` give such tensors, and transformers reads weights from safetensors so. They
are no memory of the process, unless they are trained: the kernel drops their pages and reads them again. Trained ones
are copied page by page as they are written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import torch

LEAST_BYTES = 2**20
"""Smaller storages are not looked at."""
IN_MEMORY = ("/dev/", "/memfd:", "/SYSV")
"""How the names of mapped files begin that are memory."""
MAPPED = "_elbowroom_mapped"
"""Attribute of a storage that says whether a file was found under it."""


def takes_no_memory(tensor: torch.Tensor) -> bool:
    """Return whether the bytes of a tensor are those of a file, and it is not trained."""
    return not tensor.requires_grad and of_file(tensor)


def of_file(tensor: torch.Tensor) -> bool:
    """Return whether the bytes of a tensor are those of a file that is mapped into memory."""
    if tensor.layout is not torch.strided:
        return False
    storage = tensor.untyped_storage()
    known = vars(storage).get(MAPPED)
    if known is None and tensor.device.type == "cpu" and storage.nbytes() >= LEAST_BYTES:
        known = vars(storage)[MAPPED] = not storage.resizable() and area_of(storage, file_areas()) is not None
    return bool(known)


class FileArea(NamedTuple):
    """Addresses under which a file is mapped.

    Attributes:
        begin: the first address.
        end: the address behind the last one.
        is_private: whether the process may write there, and the file does not change.
    """

    begin: int
    end: int
    is_private: bool


def file_areas() -> list[FileArea]:
    """Return all areas of files on a disk, in the order of their addresses. None where the system does not say it."""
    return list(_file_areas())


def _file_areas() -> Iterator[FileArea]:
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            area, rights, _, _, inode, *name = line.split(maxsplit=5)
            if inode != "0" and name and not name[0].startswith(IN_MEMORY):
                begin, _, end = area.partition("-")
                yield FileArea(int(begin, 16), int(end, 16), rights[:2] == "rw" and rights[3] == "p")


def area_of(storage: torch.UntypedStorage, areas: list[FileArea]) -> FileArea | None:
    """Return the area of a file in which a storage begins; None if it lies in none."""
    address = storage.data_ptr()
    place = bisect_right(areas, address, key=_begin) - 1
    return areas[place] if place >= 0 and address < areas[place].end else None


def _begin(area: FileArea) -> int:
    return area.begin
