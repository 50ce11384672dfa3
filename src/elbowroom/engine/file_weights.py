"""Weights of a file that are trained: each one gets a storage of its own, which can leave.

Note: [Weights of a file]
safetensors and `torch.load(mmap=True)` map a file, and give tensors on it. Such a storage cannot be emptied, and a page
that is written stays in memory. So a trained parameter gets a copy of its bytes on a storage of its own as training
begins. It is the same parameter: optimizers, modules and ties keep it. Parameters that share bytes go on sharing them.
Several on one storage are parted, so that each can leave by itself. Frozen ones stay, as the system drops their pages.

Nothing else may lie on these bytes, as it would not see what training writes. So a parameter stays on its file if

- the mapping is shared: what is written is to reach the file,
- another tensor lies on its storage, or on another storage with some of its bytes,
- code holds a storage over it, as a file of safetensors that is open does,
- Python has mapped a file there, as `numpy.memmap` does: an array on it cannot be seen.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import torch
from torch import nn

from elbowroom.engine.mapped_files import FileArea, area_of, file_areas
from elbowroom.engine.storages import RAW_STORAGE, alive_of
from elbowroom.engine.touched import put_on_host, storages_of
from elbowroom.torch_compat.core import holders_of, storage_key

OURS = 3
"""References to a storage of a list while it is looked at: the list's, the loop's and that of `getrefcount`."""

OnFile = Mapping[int, list[nn.Parameter]]
"""Storage key -> all parameters on that storage, which cannot be emptied."""


class Addresses(NamedTuple):
    """The addresses [begin, end) of some bytes."""

    begin: int
    end: int


def with_own_storages(found: OnFile, least_bytes: int) -> Iterator[list[nn.Parameter] | int]:
    """Give trained parameters on files storages of their own, one after the other.

    Yields the parameters that share a new storage once they are on it, or the bytes of a storage that stays.

    Args:
        found: parameters on storages that cannot be emptied.
        least_bytes: smaller ones get a storage if larger ones lay on the same one, and are not yielded.
    """
    areas = file_areas() if found else []
    lie_on = {key: area_of(RAW_STORAGE(parameters[0]), areas) for key, parameters in found.items()}
    if not any(lie_on.values()):
        return
    others = Others(_held_storages(), _spans_of(storages_of(alive_of(torch.Tensor))), _sizes_of_mapped())
    for key, area in lie_on.items():
        parameters = found[key]
        if area is None or not any(each.requires_grad for each in parameters):
            continue
        size_bytes = RAW_STORAGE(parameters[0]).nbytes()
        parts = _parts_of(parameters) if _are_alone(parameters, area, others) else None
        if parts is None:
            yield size_bytes
            continue
        for span, sharing in parts.items():
            if any(each.requires_grad for each in sharing):
                _move(span, sharing)
                if span.end - span.begin >= least_bytes:
                    yield sharing


class Others(NamedTuple):
    """What may lie on the bytes of parameters.

    Attributes:
        held: storages that code refers to itself.
        of_tensors: storages of all tensors.
        mapped_sizes: bytes of what Python has mapped.
    """

    held: dict[int, Addresses]
    of_tensors: dict[int, Addresses]
    mapped_sizes: set[int]


def _are_alone(parameters: list[nn.Parameter], area: FileArea, others: Others) -> bool:
    """Whether nothing but these parameters can lie on the bytes of their storage."""
    storage = RAW_STORAGE(parameters[0])
    key, span = storage_key(storage), _span(storage)
    if holders_of(storage) > len(parameters) + 1 or not area.is_private or span.end > area.end:
        return False
    if key in others.held or area.end - area.begin in others.mapped_sizes:
        return False
    spans = chain(others.held.items(), others.of_tensors.items())
    return not any(each != key and begin < span.end and span.begin < end for each, (begin, end) in spans)


def _held_storages() -> dict[int, Addresses]:
    """Return the storages that code refers to itself, and not only by tensors and slices."""
    held: list[torch.UntypedStorage] = []
    for each in [each for each in alive_of(torch.UntypedStorage) if isinstance(each, torch.UntypedStorage)]:
        of_torch = holders_of(each) > 1  # a tensor or a slice, for which torch has a reference
        if sys.getrefcount(each) > OURS + of_torch:
            held.append(each)
    return _spans_of(held)


def _spans_of(storages: Iterable[torch.UntypedStorage]) -> dict[int, Addresses]:
    return {storage_key(each): _span(each) for each in _fixed(storages)}


def _fixed(storages: Iterable[torch.UntypedStorage]) -> Iterator[torch.UntypedStorage]:
    return (each for each in storages if each.device.type == "cpu" and each.nbytes() and not each.resizable())


def _span(storage: torch.UntypedStorage) -> Addresses:
    return Addresses(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _sizes_of_mapped() -> set[int]:
    """Return the sizes, in whole pages, of all that Python has mapped. Its `mmap` does not say an address."""
    sizes: set[int] = set()
    for each in alive_of(mmap.mmap):
        with suppress(ValueError):  # it is closed
            sizes.add(-(-len(each) // mmap.PAGESIZE) * mmap.PAGESIZE)
    return sizes


def _parts_of(parameters: list[nn.Parameter]) -> dict[Addresses, list[nn.Parameter]] | None:
    """Part parameters on one storage into those that share bytes, by all bytes of each part.

    None if a part cannot lie at the begin of a storage, as one of them would not be aligned.
    """
    parts: dict[Addresses, list[nn.Parameter]] = {}
    last, sharing = Addresses(0, 0), list[nn.Parameter]()
    for each in sorted(parameters, key=_begin_of):
        begin = _begin_of(each)
        steps = sum((size - 1) * stride for size, stride in zip(each.shape, each.stride(), strict=True))
        end = begin + (steps + 1) * each.element_size() if each.numel() else begin
        if begin < last.end:
            del parts[last]
            last, sharing = Addresses(last.begin, max(end, last.end)), [*sharing, each]
        else:
            last, sharing = Addresses(begin, end), [each]
        if (begin - last.begin) % each.element_size():
            return None
        parts[last] = sharing
    return parts


def _begin_of(parameter: nn.Parameter) -> int:
    return RAW_STORAGE(parameter).data_ptr() + int(parameter.storage_offset()) * parameter.element_size()


def _move(span: Addresses, parameters: list[nn.Parameter]) -> None:
    """Give parameters a storage with a copy of these bytes."""
    storage = RAW_STORAGE(parameters[0])
    first = span.begin - storage.data_ptr()
    memory = torch.UntypedStorage(span.end - span.begin)
    memory.copy_(storage[first : first + memory.nbytes()])
    put_on_host(parameters, memory, first)
