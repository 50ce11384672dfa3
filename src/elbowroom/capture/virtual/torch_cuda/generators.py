"""Generators of random numbers on the virtual device: torch's own of the host, with cuda as their device.

Nothing is drawn on the device, so the numbers do not matter. A generator needs no memory there (rig).
"""

from __future__ import annotations

from typing import Any, final

import torch

from elbowroom.capture.virtual.tensor import CUDA

_OF_TORCH = torch.Generator
_KIND: Any = type(_OF_TORCH)


class _GeneratorKind(_KIND):
    """Class of the replacement of `torch.Generator`: torch's own generators are instances of it."""

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, _OF_TORCH)


@final
class Generator(_OF_TORCH, metaclass=_GeneratorKind):
    """`torch.Generator` that can be made on cuda."""

    _home: torch.device

    def __new__(cls, device: Any = None) -> Generator:
        home = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cpu")
        made: Generator = super().__new__(cls, "cpu" if home.type == "cuda" else home)  # pyright: ignore[reportCallIssue]
        made._home = home
        return made

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._home

    def get_state(self) -> torch.Tensor:
        """Return the state; on cuda its seed and its offset, 16 bytes."""
        if self._home.type != "cuda":
            return super().get_state()
        return torch.tensor([self.initial_seed() % 2**63, 0], dtype=torch.int64, device="cpu").view(torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> Generator:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._home.type != "cuda":
            super().set_state(new_state)
            return self
        self.manual_seed(int(new_state.view(torch.int64)[0]))
        return self

    def clone_state(self) -> Generator:
        made = Generator(self._home)
        made.set_state(self.get_state())
        return made

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, state: torch.Generator) -> Generator:
        self.set_state(state.get_state())
        return self

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> Generator:
        return self

    def __reduce__(self) -> Any:
        return _rebuilt, (str(self._home), self.get_state())


def _rebuilt(device: str, state: torch.Tensor) -> Generator:
    made = Generator(device)
    made.set_state(state)
    return made


def changes(gpus: int) -> list[tuple[Any, str, Any]]:
    """Return the patches of Python, with a default generator for each of the GPUs."""
    return [(torch, "Generator", Generator), (torch.cuda, "default_generators", (Generator(CUDA),) * gpus)]
