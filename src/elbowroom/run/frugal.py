"""Frugal steps: how a step without a plan holds as little as it can.

Note: [Frugal]
A step without a plan swaps every large storage and waits for each write. What is known decides when one leaves:

- An op may save a storage first and fill it afterwards, as rrelu_with_noise does with its noise. Written at its save,
  it would have the wrong bytes. So a storage leaves at the first tick at which only autograd holds it.
- If no recorded step of the same module wrote a storage after its save, each storage leaves at its save. It is freed
  the moment that the code lets it go, and not at the next tick. This is the least that a step can hold.

In RAM some storages stay in a step that is not recorded, if the budget has room for twice what the largest observed
step held. They take what is beyond that.

On the CPU the training waits for the write. On CUDA the storage's stream does (Note: [Streams] in
engine/tiers/host.py). A frugal step that is recorded is an observed step.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

from elbowroom.run.step_kinds import Signature
from elbowroom.step.last_step import last_step
from elbowroom.trace import Trace


@final
class Frugal:
    """Policy for the steps of a run that follow no plan: Note: [Frugal]."""

    def __init__(self) -> None:
        self._fills_late: dict[Hashable, bool] = {}

    def learnt(self, key: Hashable, trace: Trace) -> None:
        """Learn from a recorded step with this signature."""
        module = _module_of(key)
        self._fills_late[module] = self._fills_late.get(module, False) or _fills_late(trace)

    def leaves_at_save(self, key: Hashable) -> bool:
        """Whether storages leave at their saves in a step with this signature, rather than at a later tick."""
        return not self._fills_late.get(_module_of(key), True)


def _module_of(key: Hashable) -> Hashable:
    return key.module if isinstance(key, Signature) else None


def _fills_late(trace: Trace) -> bool:
    """Return whether the step writes a storage after autograd has saved it."""
    step = last_step(trace)
    return bool((step.written_op[: len(step.saves)] < step.end_op).any())
