"""Files of safetensors: read to the CPU, and moved from there, as the library copies to a GPU below PyTorch."""

from __future__ import annotations

from typing import Any, Self, final

from elbowroom.capture.script.overlay import Overlay


def opener(overlay: Overlay, real: Any) -> Any:
    """What stands for `safetensors.safe_open`."""

    def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", **how: Any) -> Any:
        to = str(device)
        if framework not in ("pt", "torch", "pytorch") or to == "cpu":
            return real(overlay.reading(filename), framework, **{"device": device, **how})
        return Opened(real(overlay.reading(filename), framework, **how), device)

    return safe_open


@final
class _Part:
    """A tensor of a file of which parts are read."""

    def __init__(self, part: Any, device: Any) -> None:
        self._part, self._device = part, device

    def __getitem__(self, what: Any) -> Any:
        return self._part[what].to(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)


@final
class Opened:
    """A file whose tensors are wanted on a device."""

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
