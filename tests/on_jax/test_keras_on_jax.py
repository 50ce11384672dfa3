"""Keras 3 on JAX: its train step is captured as any other."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax: make test-jax")
keras = pytest.importorskip("keras", reason="needs Keras: make test-jax")

import jax.numpy as jnp  # noqa: E402  # pyright: ignore[reportMissingImports]

import elbowroom as er  # noqa: E402
from benchmarks.jax.models import JaxCase  # noqa: E402
from benchmarks.jax.policies import xla_bytes  # noqa: E402


def test_the_train_step_of_a_model_is_at_least_what_xla_takes() -> None:
    if keras.backend.backend() != "jax":
        pytest.skip("Keras was imported on another backend")
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = jnp.zeros((64, 28, 28, 1)), jnp.zeros(64, jnp.int32)
    model.train_on_batch(images, labels)
    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = tuple([each.value for each in group] for group in (*groups, model.metrics_variables))
    step = jax.jit(model.train_step, donate_argnums=0)

    trace = er.capture_jax(step, state, (images, labels))
    line = er.simulate(trace, er.Machine.of("t4"))

    assert line.peak_allocated_bytes >= xla_bytes(JaxCase(step, (state, (images, labels))))
    assert {"parameter", "optimizer_state", "buffer"} <= dict(line.breakdown()).keys()
