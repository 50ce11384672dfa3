"""Small programs with one construct of JAX each: an estimate is at least what XLA takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax: make test-jax")

import jax.numpy as jnp  # noqa: E402  # pyright: ignore[reportMissingImports]
from jax import lax  # noqa: E402  # pyright: ignore[reportMissingImports]

import elbowroom as er  # noqa: E402
from benchmarks.jax.models import JaxCase  # noqa: E402
from benchmarks.jax.policies import xla_bytes  # noqa: E402

SHAPES = (jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32))


@jax.custom_vjp
def own_gradient(x: Any) -> Any:
    return jnp.sin(x)


own_gradient.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))


def inner_scan(start: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.tanh(c), c), start, None, length=3)[0]


LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "custom_vjp": lambda w, x: own_gradient(x @ w).sum(),
    "cond": lambda w, x: lax.cond(x.sum() > 0, lambda: (x @ w).sum(), lambda: ((x @ w) ** 2).sum()),
    "switch": lambda w, x: lax.switch(1, [jnp.sum, lambda y: (y**2).sum()], x @ w),
    "map": lambda w, x: lax.map(lambda row: row @ w, x).sum(),
    "associative scan": lambda w, x: lax.associative_scan(jnp.add, x @ w).sum(),
    "transform": lambda w, x: jnp.abs(jnp.fft.rfft(x @ w)).sum(),
    "sort": lambda w, x: jnp.sort(x @ w).sum(),
    "gather": lambda w, _x: w[jnp.array([1, 2, 3])].sum(),
    "bfloat16": lambda w, x: (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).sum().astype(jnp.float32),
    "cholesky": lambda w, _x: jnp.linalg.cholesky(w @ w.T + jnp.eye(64)).sum(),
    "reversed scan": lambda w, x: lax.scan(lambda c, r: (jnp.tanh(r @ w + c), c), x[0], x, reverse=True)[1].sum(),
    "scan in a scan": lambda w, x: lax.scan(lambda c, r: (inner_scan(c + r @ w), c), x[0], x)[1].sum(),
    "callback": lambda w, x: (jax.debug.print("{}", x.sum()), (x @ w).sum())[1],
}


@pytest.mark.parametrize("name", LOSSES)
def test_an_estimate_of_a_construct_is_at_least_what_xla_takes(name: str) -> None:
    step = jax.jit(lambda w, x: w - 0.1 * jax.grad(LOSSES[name])(w, x), donate_argnums=0)
    held = er.simulate(er.capture_jax(step, *SHAPES), er.Machine.of("t4")).peak_allocated_bytes

    assert held >= xla_bytes(JaxCase(step, SHAPES))


def test_an_estimate_of_a_loop_with_an_unknown_end_says_that_its_turns_are_not_known() -> None:
    step = jax.jit(lambda w: lax.while_loop(lambda w: w.sum() > 1, lambda w: w / 2, w))
    trace = er.capture_jax(step, SHAPES[0])

    assert "the number of turns of a while loop" in [remark.name for remark in trace.remarks]


def test_static_and_named_arguments_are_taken_as_the_step_takes_them() -> None:
    step = jax.jit(lambda w, n, *, x: w * n + x.sum(), static_argnums=1)

    assert {op.name for op in er.capture_jax(step, SHAPES[0], 3, x=SHAPES[1]).ops} == {
        "jax.mul",
        "jax.add",
        "jax.reduce_sum",
    }


@pytest.mark.parametrize("step", [lambda w: w, lambda _w: None, lambda _w: 3.0])
def test_a_step_that_computes_nothing_is_an_error(step: Callable[..., Any]) -> None:
    with pytest.raises(er.CaptureError, match="computes nothing of what it returns"):
        er.capture_jax(step, SHAPES[0])
