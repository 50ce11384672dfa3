"""Traces of steps of JAX, held against XLA's own memory analysis on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax: make test-jax")

import jax.numpy as jnp  # noqa: E402  # pyright: ignore[reportMissingImports]

import elbowroom as er  # noqa: E402
from benchmarks.jax.__main__ import FLAGS  # noqa: E402
from benchmarks.jax.models import CASES  # noqa: E402
from benchmarks.jax.policies import case_with, loss_with, xla_bytes  # noqa: E402
from benchmarks.jax.sharded import SHARDED  # noqa: E402
from elbowroom.planners import Means  # noqa: E402

MACHINE = er.Machine.of("rtx3060")
QUICK = ("MLP, Flax", "GPT by scan with remat, Flax", "GRU by scan, Equinox", "LSTM by scan, Haiku")


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")  # labels and images are donated too
@pytest.mark.parametrize("name", QUICK)
def test_an_estimate_is_at_least_what_xla_takes(name: str) -> None:
    case = CASES[name]()
    estimate = er.estimate(er.capture_jax(case.step, *case.arguments), MACHINE)

    assert estimate.peak_allocated_bytes >= xla_bytes(case)


@pytest.mark.parametrize("name", list(SHARDED))
def test_an_estimate_of_one_device_of_several_is_at_least_what_xla_takes(name: str) -> None:
    case = SHARDED[name]()
    held = er.simulate(er.capture_jax(case.step, *case.arguments), MACHINE).peak_allocated_bytes

    assert held >= xla_bytes(case)


def test_arguments_may_be_shapes_and_the_trace_is_the_same() -> None:
    case = case_with(None)
    shapes = jax.eval_shape(lambda *arrays: arrays, *case.arguments)

    assert er.capture_jax(case.step, *shapes).id == er.capture_jax(case.step, *case.arguments).id


def test_arguments_that_are_not_donated_are_there_twice() -> None:
    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)

    shapes = jax.ShapeDtypeStruct((256, 256), jnp.float32), jax.ShapeDtypeStruct((8, 256), jnp.float32)
    once, twice = (jax.jit(step, donate_argnums=donated) for donated in ((0,), ()))
    held = [dict(er.simulate(er.capture_jax(each, *shapes), MACHINE).breakdown()) for each in (once, twice)]

    # 256 * 256 * 4 bytes of w, and as many of the new w
    assert [each["parameter"] for each in held] == [256 * 1024, 2 * 256 * 1024]


def test_a_plain_function_is_captured_as_a_jitted_one() -> None:
    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)

    shapes = jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((8, 64), jnp.float32)
    held = [er.simulate(er.capture_jax(each, *shapes), MACHINE).peak_allocated_bytes for each in (step, jax.jit(step))]

    assert held[0] == held[1]


@pytest.mark.parametrize("means", ["swap", "recompute"])
def test_a_policy_of_a_plan_keeps_the_bits_and_takes_less(means: Means) -> None:
    plain = case_with(None)
    trace = er.capture_jax(plain.step, *plain.arguments, machine=MACHINE)
    most = er.simulate(trace, MACHINE).peak_allocated_bytes
    plan = er.plan(trace, MACHINE, int(0.6 * most), allow=[means])
    policy = er.policy(plan)
    case = case_with(policy)

    assert er.simulate(er.capture_jax(case.step, *case.arguments), MACHINE).peak_allocated_bytes <= plan.budget_bytes
    params, _, x, y = plain.arguments
    wanted, found = (jax.jit(jax.grad(loss_with(each)))(params, x, y) for each in (None, policy))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(wanted, found, strict=True))
    if means == "recompute":  # on the CPU XLA counts what is offloaded as its own
        assert xla_bytes(case) <= plan.budget_bytes < xla_bytes(plain)


def test_a_policy_with_swaps_annotates_the_program_of_cuda_with_pinned_host() -> None:
    from jax import export  # pyright: ignore[reportMissingImports]

    plain = case_with(None)
    trace = er.capture_jax(plain.step, *plain.arguments, machine=MACHINE)
    plan = er.plan(trace, MACHINE, int(0.6 * er.simulate(trace, MACHINE).peak_allocated_bytes), allow=["swap"])
    policy = er.policy(plan)
    programs = (export.export(case_with(each).step, platforms=["cuda"])(*plain.arguments) for each in (None, policy))
    counts = [program.mlir_module().count('_xla_buffer_placement = "pinned_host"') for program in programs]

    assert policy.offloaded
    assert counts[0] == 0
    assert counts[1] >= len(policy.offloaded)  # a layer may have several values that a policy cannot distinguish


def test_a_plan_for_another_trace_is_refused() -> None:
    plan = er.Plan(trace_id="0" * 16, planner="keep_all", budget_bytes=1)

    with pytest.raises(er.UsageError, match="which no capture_jax of this process made"):
        er.policy(plan)


def test_a_step_that_jax_cannot_trace_is_an_error_with_its_reason() -> None:
    with pytest.raises(er.CaptureError, match=r"JAX cannot trace the step: .*make static what is no array"):
        er.capture_jax(jax.jit(lambda x: x if x > 0 else -x), jnp.ones(()))
    with pytest.raises(er.UsageError, match="allowed is a function, jitted or not"):
        er.capture_jax(3)  # pyright: ignore[reportArgumentType]


def test_steps_with_checkpoints_are_below_their_bounds_where_the_compiler_keeps_the_barriers() -> None:
    # given XLA's CPU compiler without the pass that undoes checkpoints; its flags count for a process
    surroundings = {**os.environ, "XLA_FLAGS": FLAGS["checkpoints"]}
    command = [sys.executable, "-m", "benchmarks.jax", "--group", "checkpoints"]
    done = subprocess.run(command, env=surroundings, stdout=subprocess.PIPE, text=True, check=True, timeout=600)

    found = {row["name"]: row for row in json.loads(done.stdout.splitlines()[-1])}

    assert set(found) == {"GPT by scan with remat, Flax", "transformer with dropout and remat, Haiku"}
    assert all(row["xla_bytes"] <= row["estimate_bytes"] <= 1.5 * row["xla_bytes"] for row in found.values())
