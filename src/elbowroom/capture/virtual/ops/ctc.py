"""CTC: the CTC loss of CUDA's own kernels, with its results and scratch memory (LossCTC.cu, LossCTC.cpp; rig).

Its tables are as wide as the longest target. If the lengths are unknown values of the device, the widest target that
the shapes allow is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from elbowroom.capture.virtual.host_values.known_values import KnownValues

if TYPE_CHECKING:
    from elbowroom.capture.virtual.scratch_memory.scratch import ScratchCall

aten: Any = torch.ops.aten
INDEX_BYTES = 8
REDUCED_BY_MEAN, REDUCED_BY_SUM = 1, 2


def _loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = REDUCED_BY_MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Compute the loss; lengths in tensors are first read on the host, but for a subclass (LossCTC.cpp: ctc_loss)."""
    longest = _longest(targets, target_lengths)
    inputs = [log_probs.shape[0]] * input_lengths.numel()
    lengths = _known(target_lengths) or [longest] * target_lengths.numel()
    return _loss_of_lists(log_probs, targets, inputs, lengths, blank, reduction, zero_infinity)


def _loss_of_lists(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = REDUCED_BY_MEAN,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """Compute the loss with lengths in lists: C++ would make their tensor, for the mean, out of the mode's sight."""
    made = aten._ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)[0]
    if zero_infinity:
        made = torch.where(made == float("inf"), torch.zeros((), device=made.device, dtype=made.dtype), made)
    if reduction == REDUCED_BY_MEAN:
        lengths = torch.tensor(list(target_lengths), device=made.device, dtype=made.dtype)
        shares = (lengths if made.dim() else lengths.squeeze()).clamp_min(1)
        del lengths
        return (made / shares).mean()
    return made.sum() if reduction == REDUCED_BY_SUM else made


def _known(lengths: torch.Tensor) -> list[int] | None:
    """Return the values of lengths; None if they are not known."""
    values = KnownValues.current
    found = lengths if values is None else values.of(lengths)
    if values is not None:
        values.reads += 1
    return None if found is None else found.flatten().tolist()


def _longest(targets: torch.Tensor, lengths: torch.Tensor) -> int:
    """Return the most labels of a target: the width of padded targets, or an even share of those in a row."""
    if targets.dim() > 1:
        return targets.shape[1]
    return -(-targets.numel() // max(lengths.numel(), 1))


def _forward(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    batched = log_probs.dim() == 3
    rows, batch = log_probs.shape[0], log_probs.shape[1] if batched else 1
    width = 2 * max(target_lengths, default=0) + 1
    likelihood = log_probs.new_empty((batch,) if batched else ())
    return likelihood, log_probs.new_empty((batch, rows, width) if batched else (rows, width))


def _backward(grad: torch.Tensor, log_probs: torch.Tensor, *_others: Any) -> torch.Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _numbers(call: ScratchCall) -> None:
    """Allocate lengths of targets and inputs, and the begins of targets."""
    log_probs = call.args[0 if call.func is aten._ctc_loss.default else 1]
    batch = log_probs.shape[1] if log_probs.dim() == 3 else 1
    for _ in range(3):
        call.temp(batch * INDEX_BYTES)


def _forward_rule(call: ScratchCall) -> None:
    _numbers(call)
    call.out(1, 0)


def _backward_rule(call: ScratchCall) -> None:
    _numbers(call)
    table = call.args[6]
    beta = call.temp(table.numel() * table.element_size())
    call.out(0)
    call.drop(beta)


ROUTES: dict[Any, Callable[..., Any]] = {aten.ctc_loss.Tensor: _loss, aten.ctc_loss.IntList: _loss_of_lists}

KERNELS: dict[Any, Callable[..., Any]] = {
    aten._ctc_loss.default: _forward,
    aten._ctc_loss_backward.default: _backward,
}

RULES: dict[Any, Callable[[ScratchCall], None]] = {
    aten._ctc_loss.default: _forward_rule,
    aten._ctc_loss_backward.default: _backward_rule,
}
