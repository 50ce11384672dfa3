"""Plans of a scanned model as policies of `jax.checkpoint`: what XLA makes of them, and whether bits stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import export
from jax.ad_checkpoint import checkpoint_name

import elbowroom as er
from benchmarks.jax.models import KEY, JaxCase
from elbowroom.planners import Means

LAYERS, WIDTH, ROWS = 8, 256, 2048
GPU = "rtx3060"
PLANS: tuple[tuple[float, tuple[Means, ...]], ...] = (
    (0.8, ("swap",)),
    (0.6, ("recompute",)),
    (0.4, ("swap", "recompute")),
)
"""Parts of what keeping everything takes, each with the means of the plan."""
FIELDS = ("argument_size_in_bytes", "output_size_in_bytes", "temp_size_in_bytes")


def loss_with(policy: Any) -> Callable[..., Any]:
    """Return the loss, each layer of it under a checkpoint with the policy; None for no checkpoint."""

    def layer(h: Any, weights: Any) -> Any:
        up, down = weights
        inner = checkpoint_name(h @ up, "up")
        active = checkpoint_name(jax.nn.gelu(inner), "active")
        return checkpoint_name(h + active @ down, "out"), None

    body = layer if policy is None else jax.checkpoint(layer, policy=policy, prevent_cse=False)

    def loss(params: Any, x: Any, y: Any) -> Any:
        h, _ = jax.lax.scan(body, x, params)
        return jnp.mean((h - y) ** 2)

    return loss


def case_with(policy: Any) -> JaxCase:
    """Return a step with the policy, and real arrays."""
    rule = optax.adam(1e-3)
    shapes = ((LAYERS, WIDTH, 4 * WIDTH), (LAYERS, 4 * WIDTH, WIDTH))
    params = tuple(jax.random.normal(jax.random.fold_in(KEY, n), shape) / 16 for n, shape in enumerate(shapes))
    x = jax.random.normal(KEY, (ROWS, WIDTH))

    def step(params: Any, states: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss_with(policy))(params, x, y)
        updates, states = rule.update(gradients, states)
        return optax.apply_updates(params, updates), states, value

    return JaxCase(jax.jit(step, donate_argnums=(0, 1)), (params, rule.init(params), x, x / 2))


def xla_bytes(case: JaxCase) -> int:
    """Return what XLA's program of a step takes on one device: arguments, results and temporaries."""
    compiled = case.step.lower(*case.arguments).compile()
    found = getattr(compiled, "compiled", compiled).memory_analysis()
    if not hasattr(found, FIELDS[0]):
        found = compiled.compiled.memory_analysis()
    return sum(getattr(found, name) for name in FIELDS) - found.alias_size_in_bytes


def policy_rows() -> Iterator[dict[str, Any]]:
    """Yield a row without a plan, and one for each plan."""
    plain = case_with(None)
    trace = er.capture_jax(plain.step, *plain.arguments, machine=GPU)
    machine = er.Machine.of(GPU)
    most = er.simulate(trace, machine).peak_allocated_bytes
    yield {"means": [], "budget_bytes": 0, "estimate_bytes": most, "xla_bytes": xla_bytes(plain)}
    params, _, x, y = plain.arguments
    wanted = jax.jit(jax.grad(loss_with(None)))(params, x, y)
    for part, means in PLANS:
        plan = er.plan(trace, machine, int(most * part), allow=means)
        policy = er.policy(plan)
        case = case_with(policy)
        found = jax.jit(jax.grad(loss_with(policy)))(params, x, y)
        exported = export.export(case.step, platforms=["cuda"])(*case.arguments).mlir_module()
        yield {
            "means": list(means),
            "budget_bytes": plan.budget_bytes,
            "plan_bytes": er.simulate(trace, machine, plan).peak_allocated_bytes,
            "estimate_bytes": er.simulate(er.capture_jax(case.step, *case.arguments), machine).peak_allocated_bytes,
            "xla_bytes": xla_bytes(case),
            "decided": {name: len(getattr(policy, name)) for name in ("kept", "offloaded", "recomputed")},
            "pinned_host": exported.count("pinned_host"),
            "bits_equal": all(
                np.array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))
                for a, b in zip(wanted, found, strict=True)
            ),
        }
