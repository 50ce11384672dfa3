"""Mapped files: tensors whose bytes are a file on a disk.

`numpy.memmap` and `torch.load(mmap=True)` give such tensors, and transformers reads weights from safetensors so. They
are no memory of the process, unless they are trained: the kernel drops their pages and reads them again. Trained ones
are copied page by page as they are written.
"""

from __future__ import annotations

from contextlib import suppress

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
        known = vars(storage)[MAPPED] = not storage.resizable() and _is_mapped(storage.data_ptr())
    return bool(known)


def _is_mapped(address: int) -> bool:
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            area, _, _, _, inode, *name = line.split(maxsplit=5)
            begin, _, end = area.partition("-")
            if int(begin, 16) <= address < int(end, 16):
                return inode != "0" and bool(name) and not name[0].startswith(IN_MEMORY)
    return False
