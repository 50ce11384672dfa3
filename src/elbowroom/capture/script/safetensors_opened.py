"""Files of safetensors: read to the CPU and moved from there, as the library copies to a GPU below PyTorch.

Large tensors of the virtual GPU are written as holes, which are read as zeros. So a checkpoint of billions of numbers
takes neither time nor room. The format (https://github.com/huggingface/safetensors) is the length of a header, the
header in JSON, and the tensors' bytes.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from typing import Any, Self, final

from elbowroom.capture.script.overlay import Overlay


def opener(overlay: Overlay, real: Any) -> Any:
    """Make the replacement of `safetensors.safe_open`."""

    def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", **how: Any) -> Any:
        to = str(device)
        if framework not in ("pt", "torch", "pytorch") or to == "cpu":
            return real(overlay.reading(filename), framework, **{"device": device, **how})
        return Opened(real(overlay.reading(filename), framework, **how), device)

    return safe_open


LARGE_BYTES = 2**26
"""Least bytes of virtual tensors in a file that is written with holes."""
_SMALL_BYTES = 2**16
"""Most bytes of a tensor that is written as the library does, with its assumed values."""


def saver(_: Overlay, save: Any) -> Any:
    """Make the replacement of `safetensors.torch.save_file`."""

    @functools.wraps(save)
    def save_file(
        tensors: Mapping[str, Any], filename: Any, metadata: Mapping[str, str] | None = None, **how: Any
    ) -> None:
        from elbowroom.capture.virtual.tensor import is_virtual
        from elbowroom.capture.virtual.torch_cuda.attributes import on_host

        if sum(tensor.nbytes for tensor in tensors.values() if is_virtual(tensor)) < LARGE_BYTES:
            found = {name: on_host(each) if is_virtual(each) else each for name, each in tensors.items()}
            save(found, filename, metadata, **how)  # which reads the bytes of tensors of the host at their addresses
            return
        names = {dtype: name for name, dtype in save.__globals__["_TYPES"].items()}
        with open(filename, "wb") as file:
            _write(file, tensors, names, metadata)

    return save_file


def _write(file: Any, tensors: Mapping[str, Any], names: Mapping[Any, str], metadata: Mapping[str, str] | None) -> None:
    """Write a file with holes; tensors with the largest elements come first."""
    import torch

    from elbowroom.capture.virtual.tensor import is_virtual

    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    ordered = sorted(tensors.items(), key=lambda each: (-each[1].element_size(), each[0]))
    end = 0
    for name, tensor in ordered:
        place = [end, end + tensor.nbytes]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        end = place[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        if is_virtual(tensor) and tensor.nbytes > _SMALL_BYTES:
            file.seek(tensor.nbytes, os.SEEK_CUR)
        else:
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    file.truncate(8 + len(text) + end)


@final
class _Part:
    """A tensor of a file that is read in parts."""

    def __init__(self, part: Any, device: Any) -> None:
        self._part, self._device = part, device

    def __getitem__(self, what: Any) -> Any:
        return self._part[what].to(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


@final
class Opened:
    """An opened file whose tensors go to a device."""

    def __init__(self, file: Any, device: Any) -> None:
        self._file, self._device = file, device

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *problem: object) -> None:
        self._file.__exit__(*problem)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> Any:
        return self._file.get_tensor(name).to(self._device)

    def get_tensors(self, *names: Any) -> dict[str, Any]:
        return {name: tensor.to(self._device) for name, tensor in self._file.get_tensors(*names).items()}

    def get_slice(self, name: str) -> _Part:
        return _Part(self._file.get_slice(name), self._device)
