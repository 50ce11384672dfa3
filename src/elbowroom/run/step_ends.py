"""Ends of steps in trainings without torch.optim: a step ends when parameters changed after a backward.

Keras, fastai and loops that are written by hand update parameters themselves: `p -= lr * p.grad`, `p.data.add_(...)`,
`p = (p - lr * p.grad).detach().requires_grad_()`. No hook sees such an update. So the parameters at the beginning of a
step are compared with those at the next forward: versions, addresses, and bits, as `p.data` has no version of its own.

Once an optimizer of torch steps, its steps are the training's, and parameters are not compared any more. An optimizer
that has not stepped yet is waited for: a script may change parameters before, as adversarial training does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import final

import torch

from elbowroom.engine.storages import RAW_STORAGE, alive_of, is_plain
from elbowroom.torch_compat.core import no_dispatch, parameters_of, version_of

LOOKED_AT = 16
"""Parameters whose bits are compared, evenly spaced: each update changes nearly all parameters."""
SAMPLES = 256
"""Elements of each such parameter that are compared, evenly spaced."""
PATIENCE = 3
"""Updates during which an optimizer of torch that has not stepped yet is waited for."""


@final
class ParameterVersion:
    """State of a parameter at the beginning of a step.

    Args:
        tensor: the parameter.
        looked_at: whether its bits are compared too.
    """

    __slots__ = ("_bits", "_gradient", "_place", "_reference", "_version")

    def __init__(self, tensor: torch.Tensor, *, looked_at: bool) -> None:
        self._reference = weakref.ref(tensor)
        self._version = version_of(tensor)
        self._place = _place_of(tensor)
        self._gradient = _gradient_of(tensor)
        self._bits = _bits_of(tensor) if looked_at else None

    @property
    def gone(self) -> bool:
        """Whether the parameter has been freed."""
        return self._reference() is None

    def trained(self) -> bool:
        """Whether it still exists, and its gradient has changed since."""
        tensor = self._reference()
        return tensor is not None and _gradient_of(tensor) != self._gradient

    def changed(self) -> bool:
        """Whether it has changed since."""
        tensor = self._reference()
        if tensor is None:
            return False
        if version_of(tensor) != self._version or _place_of(tensor) != self._place:
            return True
        return self._bits is not None and _bits_of(tensor) != self._bits


@final
class ParameterUpdates:
    """Tells whether parameters have changed since a step began.

    Attributes:
        active: whether to look: no optimizer of torch has stepped.
    """

    def __init__(self) -> None:
        self.active = True
        self._leaves: list[ParameterVersion] = []
        self._waited = 0

    def begin(self, root: torch.nn.Module | None, device: torch.device) -> None:
        """Begin a step, with a call of module `root` if any."""
        found = _trained(parameters_of(root) if root is not None else (), device)
        found = found or _trained(alive_of(torch.Tensor, torch.nn.Parameter), device)
        stride = max(1, len(found) // LOOKED_AT)
        with torch.no_grad(), no_dispatch():
            self._leaves = [ParameterVersion(tensor, looked_at=n % stride == 0) for n, tensor in enumerate(found)]

    def changed(self) -> bool:
        """Whether the step is over: parameters have changed, and no optimizer is waited for."""
        with torch.no_grad(), no_dispatch():
            if not self._replaced() and not any(leaf.changed() for leaf in self._leaves):
                return False
        self._waited += 1
        return self._waited > PATIENCE or not alive_of(torch.optim.Optimizer)

    def _replaced(self) -> bool:
        """Whether other parameters took their places: some are gone, and those that are left get no gradients."""
        return any(leaf.gone for leaf in self._leaves) and not any(leaf.trained() for leaf in self._leaves)


def _trained(tensors: Iterable[object], device: torch.device) -> list[torch.Tensor]:
    found = [each for each in tensors if isinstance(each, torch.Tensor) and each.requires_grad and each.is_leaf]
    return [each for each in found if each.device == device]


def _gradient_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    return None if tensor.grad is None else (id(tensor.grad), version_of(tensor.grad))


def _place_of(tensor: torch.Tensor) -> int:
    if not is_plain(tensor):
        return 0
    # not `tensor.data_ptr()`, which would tell that its address was taken (engine/raw_reads.py)
    return RAW_STORAGE(tensor).data_ptr() + int(tensor.storage_offset()) * tensor.element_size()


def _bits_of(tensor: torch.Tensor) -> bytes | None:
    """Return a sample of its elements as bytes; None if it has no elements of its own."""
    if not is_plain(tensor) or not tensor.numel():
        return None
    whole = tensor.detach()
    step = max(1, whole.numel() // SAMPLES)  # as_strided reads a dense tensor in any memory order
    some = torch.as_strided(whole, (min(SAMPLES, whole.numel()),), (step,), whole.storage_offset())
    return some.cpu().clone().view(torch.uint8).numpy().tobytes()
