"""One training step over eight devices, cut in four ways: run where XLA has eight devices on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.jax.models import JaxCase

WIDTH, INNER, LAYERS, ROWS = 512, 2048, 4, 4096


def _loss(params: Any, x: Any, y: Any) -> Any:
    for up, down in params:
        x = x + jax.nn.relu(x @ up) @ down
    return jnp.mean((x - y) ** 2)


def _case(devices: tuple[int, ...], names: tuple[str, ...], up: Any, down: Any, rows: Any) -> JaxCase:
    mesh = jax.make_mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))
    rule = optax.adam(1e-3)

    def array(*shape: int, cut: Any = ()) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*cut)))

    params = [(array(WIDTH, INNER, cut=up), array(INNER, WIDTH, cut=down)) for _ in range(LAYERS)]
    first, *others = jax.eval_shape(rule.init, params)
    states = (first._replace(mu=params, nu=params, count=array()), *others)
    shardings = [jax.tree.map(lambda each: each.sharding, part) for part in (params, states)]

    def step(params: Any, states: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(_loss)(params, x, y)
        updates, states = rule.update(gradients, states)
        return optax.apply_updates(params, updates), states, value

    batch = array(ROWS, WIDTH, cut=rows)
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(*shardings, None))
    return JaxCase(jitted, (params, states, batch, batch))


SHARDED: dict[str, Callable[[], JaxCase]] = {
    "data parallel, 8 devices": partial(_case, (8,), ("d",), (), (), ("d",)),
    "FSDP, 8 devices": partial(_case, (8,), ("d",), ("d",), ("d",), ("d",)),
    "tensor parallel, 8 devices": partial(_case, (8,), ("m",), (None, "m"), ("m",), ()),
    "data and tensor parallel, 2 x 4 devices": partial(_case, (2, 4), ("d", "m"), (None, "m"), ("m",), ("d",)),
}
