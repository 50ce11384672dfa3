"""Ops without a meta kernel: a run on the host says what they make, or it is taken to be like an argument.

Such are some of torch's own and those of extensions that registered no fake kernel. The host runs an op on tensors of
one half and 0, up to a bound in bytes. An op that has no kernel there either (one for CUDA, or Triton's) gives tensors
like its first. A remark names it in both cases, as nobody knows what it needs inside.
"""

from __future__ import annotations

from typing import Any

import torch

from elbowroom.capture.virtual.host_values.known_values import KnownValues
from elbowroom.capture.virtual.ops.effects import changed, effects_of
from elbowroom.capture.virtual.tensor import CPU, META, is_virtual
from elbowroom.errors import CaptureError
from elbowroom.torch_compat.core import no_dispatch, schema_of, without_torch_function

HOST_BYTES = 2**28
"""Most bytes that are made on the host to find an op's form."""
ASSUMED = 0.5
ON_HOST = "{} (run on the host for the form of its results)"
NO_FAKE = ("fake impl", "fake tensor", "FakeTensor", "meta tensors", "Meta tensors", "meta device", "new_dynamic_size")
"""Words of torch's errors about an op that has no kernel for tensors without bytes, or that reads values."""


def lacks_kernel(problem: RuntimeError) -> bool:
    """Return whether an op failed because it has no kernel for tensors without bytes."""
    return isinstance(problem, NotImplementedError) or any(words in str(problem) for words in NO_FAKE)


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str]:
    """Results of an op as meta tensors, and the remark to be made.

    Raises:
        CaptureError: neither a run on the host nor its declaration says what it makes.
    """
    found = _on_host(func, args, kwargs)
    if found is not None:
        return found, ON_HOST.format(func)
    return _like_first(func, args, kwargs), f"{func} (no fake kernel: results taken to be like its first tensor)"


def _on_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op on real tensors of the same form; return None if that fails."""
    if _bytes_of((args, kwargs)) > HOST_BYTES:
        return None
    given: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        with no_dispatch(), without_torch_function():
            real = [_real(each, given) for each in args]
            named = {name: CPU if name == "device" else _real(each, given) for name, each in kwargs.items()}
            return _as_meta(func(*real, **named), given)
    except Exception:  # noqa: BLE001  whatever a kernel says of made-up numbers, the host does not know
        return None


def _bytes_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(_bytes_of, value.values()))
    return sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else 0


def _real(value: Any, given: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """Make a tensor of the host for each tensor without bytes; note the pairs."""
    if isinstance(value, list | tuple):
        return [_real(each, given) for each in value]
    if not isinstance(value, torch.Tensor) or not (is_virtual(value) or value.is_meta):
        return value
    known = None if KnownValues.current is None else KnownValues.current.of(value)
    given.append((value, _made_up(value) if known is None else known.clone()))
    return given[-1][1]


def _made_up(tensor: torch.Tensor) -> torch.Tensor:
    number = ASSUMED if tensor.dtype.is_floating_point or tensor.dtype.is_complex else 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = torch.full((max(last + 1, 0),), number, dtype=tensor.dtype, device=CPU)
    return flat.as_strided(tensor.shape, tensor.stride())


def _as_meta(made: Any, given: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    if isinstance(made, torch.Tensor):
        same = next((tensor for tensor, real in given if real is made), None)
        return made.to(META) if same is None else same
    if isinstance(made, list | tuple):
        return tuple(_as_meta(each, given) for each in made)
    return made


def _like_first(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    written = list(changed(effects_of(func), args, kwargs))
    returns = schema_of(func).returns
    if not returns:
        return None
    if written and len(written) == len(returns):
        return written[0] if len(written) == 1 else tuple(written)
    first = next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)), None)
    if first is None or any(str(each.type) != "Tensor" for each in returns):
        raise CaptureError(
            f"{func}: given an op that has no meta kernel and no decomposition, and does not run on the host; allowed "
            "are ops with any of these; register one with torch.library.register_fake"
        )
    made = [torch.empty_like(first, device=META) for _ in returns]
    return made[0] if len(made) == 1 else tuple(made)
