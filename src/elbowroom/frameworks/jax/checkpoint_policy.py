"""Checkpoint policy: a plan for a trace of JAX as a policy of `jax.checkpoint`.

JAX asks a policy for each primitive that it meets under the checkpoint, with the shapes that it reads, and nothing of
the place. So what the plan decides is joined by name. A value that no save of the trace is, is recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, final

import jax  # pyright: ignore[reportMissingImports]
from jax import checkpoint_policies  # pyright: ignore[reportMissingImports]
from jax.ad_checkpoint import checkpoint_name  # pyright: ignore[reportMissingImports]

from elbowroom.errors import UsageError
from elbowroom.frameworks.jax.flat_trace import JaxCapture
from elbowroom.frameworks.jax.jax_capture import capture_of
from elbowroom.frameworks.jax.jaxpr_reader import policy_key
from elbowroom.plan import Plan

Decision = Literal["keep", "offload", "recompute"]

_BY_NAME = "name"
_SAVE = checkpoint_policies.everything_saveable
_RECOMPUTE = checkpoint_policies.nothing_saveable
_OFFLOAD = checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=[_BY_NAME],
    offload_src="device",
    offload_dst="pinned_host",
)
"""Asked for the one name that it offloads, it gives JAX's own word for offloading."""


@final
class PlanPolicy:
    """A policy of `jax.checkpoint`.

    Attributes:
        decisions: what becomes of values, by what tells them: "name NAME", or a primitive and the shapes that it reads.
    """

    def __init__(self, decisions: Mapping[str, Decision]) -> None:
        self.decisions = dict(decisions)

    @property
    def kept(self) -> tuple[str, ...]:
        """What stays on the device."""
        return self._decided("keep")

    @property
    def offloaded(self) -> tuple[str, ...]:
        """What goes to pinned host memory, and comes back for backward."""
        return self._decided("offload")

    @property
    def recomputed(self) -> tuple[str, ...]:
        """What is computed again in backward."""
        return self._decided("recompute")

    def _decided(self, decision: Decision) -> tuple[str, ...]:
        return tuple(key for key, each in self.decisions.items() if each == decision)

    def __call__(self, prim: Any, *avals: Any, **params: Any) -> Any:
        """Answer JAX: save, offload or recompute the results of a primitive."""
        decision = self.decisions.get(policy_key(prim.name, avals, params), "recompute")
        if decision == "offload":
            return _OFFLOAD(_name_primitive(), name=_BY_NAME)
        return (_SAVE if decision == "keep" else _RECOMPUTE)(prim, *avals, **params)

    def __repr__(self) -> str:
        return f"<Policy: {len(self.kept)} kept, {len(self.offloaded)} offloaded, {len(self.recomputed)} recomputed>"


@cache
def _name_primitive() -> Any:
    """Return the primitive of `checkpoint_name`: JAX's policies know it by identity, and no module exports it."""
    return jax.make_jaxpr(lambda x: checkpoint_name(x, _BY_NAME))(0.0).jaxpr.eqns[0].primitive


def policy_of(plan: Plan) -> PlanPolicy:
    """Return the policy of a plan: see `elbowroom.policy`."""
    if type(plan) is not Plan:
        raise UsageError(f"policy: given {type(plan).__name__}; allowed is a Plan, as elbowroom.plan makes it")
    capture = capture_of(plan.trace_id)
    if capture is None:
        raise UsageError(
            f"policy: given a plan for trace {plan.trace_id}, which no capture_jax of this process made; allowed is a "
            "plan for such a trace; capture the same step with the same arguments first"
        )
    return PlanPolicy(decisions_of(plan, capture))


def decisions_of(plan: Plan, capture: JaxCapture) -> dict[str, Decision]:
    """Return what becomes of each key: a recompute of one of its storages goes before a swap, a swap before keeping."""
    swapped = {swap.storage for swap in plan.swaps}
    recomputed = {storage for each in plan.recomputes for storage in each.storages}
    found: dict[str, Decision] = {}
    for storage, key in capture.keys.items():
        if storage in recomputed:
            found[key] = "recompute"
        elif storage in swapped and found.get(key) != "recompute":
            found[key] = "offload"
        else:
            found.setdefault(key, "keep")
    return found
