"""JAX: a jitted training step becomes a `Trace`, and a `Plan` becomes a policy of `jax.checkpoint`.

Nothing here imports jax before it is called; the extra `jax` installs it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from elbowroom.errors import UsageError
from elbowroom.machine import Machine
from elbowroom.plan import Plan
from elbowroom.trace import Trace

if TYPE_CHECKING:
    from elbowroom.frameworks.jax.checkpoint_policy import PlanPolicy

DEFAULT_GPU = "a100-40gb"
"""GPU whose rates give the times of ops, if none is named."""


def capture_jax(step: Callable[..., Any], *args: Any, machine: str | Machine = DEFAULT_GPU, **kwargs: Any) -> Trace:
    """Make a trace of a training step of JAX. Nothing is computed: arguments may be `jax.ShapeDtypeStruct`.

    The memory of the trace is an upper bound: XLA fuses ops, and then holds less. docs/jax.md compares both.

    Args:
        step: the function that does one step and returns the new state: under `jax.jit`, `nnx.jit`,
            `eqx.filter_jit`, or plain.
        args: its arguments, as it is called with them. Their shardings give the bytes of one device.
        machine: a GPU of the database or a Machine, whose rates give the times of ops.
        kwargs: further arguments of the step by name.

    Returns:
        A trace of one step. Saved are the values that forward makes and backward reads.

    Raises:
        UsageError: JAX is not installed, or `step` is no function.
        CaptureError: JAX cannot trace the step.
    """
    _need_jax("capture_jax")
    from elbowroom.frameworks.jax.jax_capture import captured

    return captured(step, args, kwargs, machine if isinstance(machine, Machine) else Machine.of(machine))


def policy(plan: Plan) -> PlanPolicy:
    """Make a policy of `jax.checkpoint` that carries out a plan: keep, offload to the host, or recompute by name.

        loss = jax.checkpoint(loss, policy=er.policy(plan))

    Values that `jax.ad_checkpoint.checkpoint_name` names are known by their names, others by their primitive and
    the shapes that it reads. What a policy cannot distinguish is treated alike: if the plan recomputes one, all are
    recomputed; if it swaps one, all are offloaded.

    Args:
        plan: made for a trace of `capture_jax`, in this process.

    Returns:
        The policy. Its `kept`, `offloaded` and `recomputed` are the names.

    Raises:
        UsageError: JAX is not installed, or no trace of this process is the plan's.
    """
    _need_jax("policy")
    from elbowroom.frameworks.jax.checkpoint_policy import policy_of

    return policy_of(plan)


def _need_jax(caller: str) -> None:
    if find_spec("jax") is None:
        raise UsageError(
            f"{caller}: JAX is not installed; allowed is JAX 0.10 or newer; "
            "install it with pip install 'elbowroom[jax]'"
        )
