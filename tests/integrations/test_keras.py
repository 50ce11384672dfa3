"""The callback for Keras 3 on torch: validated, saved and resumed trainings keep their bits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import elbowroom as er
from tests.integrations.both_ways import alone, rows, same_within, tight
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, assert_equal

os.environ["KERAS_BACKEND"] = "torch"
keras: Any = pytest.importorskip("keras", reason="keras is not installed: `make test-integrations` does that")
ours: Any = pytest.importorskip("elbowroom.integrations.keras")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BATCHES, ROWS, WIDTH = 7, 768, 32


def functional(optimizer: Any) -> Any:
    keras.utils.set_random_seed(0)
    dense = [keras.layers.Dense(2 * WIDTH, activation="relu") for _ in range(5)]
    model = keras.Sequential([keras.Input((WIDTH,)), *dense, keras.layers.Dropout(0.1), keras.layers.Dense(WIDTH)])
    model.compile(optimizer=optimizer, loss="mse")
    return model


class Own(keras.Model):
    """A model with a forward of its own, which lets go of what layers return."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = [keras.layers.Dense(2 * WIDTH, activation="relu") for _ in range(5)]
        self.last = keras.layers.Dense(WIDTH)

    def call(self, x: Any) -> Any:
        for layer in self.dense:
            x = layer(x)
        return self.last(x)


def subclass(optimizer: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = Own()
    model.compile(optimizer=optimizer, loss="mse")
    model(keras.ops.zeros((1, WIDTH)))
    return model


def told(history: Any, model: Any) -> Outcome:
    values = [value for name in sorted(history.history) for value in history.history[name]]
    weights = {str(n): torch.from_numpy(np.array(weight)) for n, weight in enumerate(model.get_weights())}
    return Outcome([torch.tensor(value, dtype=torch.float64) for value in values], weights)


def fit(model: Any, callback: Any, others: Any = (), epochs: int = 2, first: int = 0) -> Outcome:
    x = rows(BATCHES * ROWS, WIDTH).numpy()
    callbacks = [*others, *([] if callback is None else [callback])]
    options = {"shuffle": False, "verbose": 0, "batch_size": ROWS, "epochs": epochs, "initial_epoch": first}
    return told(model.fit(x, x, validation_data=(x[:ROWS], x[:ROWS]), callbacks=callbacks, **options), model)


OPTIMIZERS = {
    "adamw": lambda: keras.optimizers.AdamW(1e-3),
    "accumulated": lambda: keras.optimizers.AdamW(1e-3, gradient_accumulation_steps=2),
    "clipped": lambda: keras.optimizers.SGD(1e-2, momentum=0.9, global_clipnorm=0.1),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("make", [functional, subclass])
def test_keras_gives_the_same_numbers_within_a_budget(make: Any, optimizer: str) -> None:
    room = same_within(lambda callback: fit(make(OPTIMIZERS[optimizer]()), callback), ours.KerasRoom)

    assert len(room.steps) == 2 * BATCHES


def test_a_training_goes_on_from_a_file_that_was_saved_within_a_budget(tmp_path: Path) -> None:
    def train(callback: Any, name: str) -> Outcome:
        saves = keras.callbacks.ModelCheckpoint(str(tmp_path / f"{name}{{epoch}}.keras"))
        return fit(functional(OPTIMIZERS["adamw"]()), callback, [saves])

    def resumed(callback: Any, name: str) -> Outcome:
        keras.utils.set_random_seed(1)  # dropout goes on from seeds of the process
        return fit(keras.saving.load_model(tmp_path / f"{name}1.keras"), callback, first=1)

    # when
    plain = train(None, "plain")
    budget = tight(lambda callback: train(callback, "plenty"), ours.KerasRoom)
    within = ours.KerasRoom(budget, min_size=MIN_SIZE_BYTES)
    whole = alone(lambda callback: train(callback, "within"), within)
    others = resumed(None, "plain")
    room = same_within(lambda callback: resumed(callback, "within"), ours.KerasRoom)
    second = alone(lambda callback: resumed(callback, "within"), None)
    # then
    assert_equal(whole, plain)
    assert_equal(second, others)
    assert len(room.steps) == BATCHES


class Breaks(keras.callbacks.Callback):
    """Ends a training with an error after some steps."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            raise KeyError("a mistake of the user")


def test_a_room_that_an_error_left_open_is_closed_by_the_next_training_or_by_hand() -> None:
    callback = ours.KerasRoom("1TiB", min_size=MIN_SIZE_BYTES)
    with pytest.raises(KeyError, match="a mistake of the user"):
        fit(functional(OPTIMIZERS["adamw"]()), callback, [Breaks()])

    assert_equal(fit(functional(OPTIMIZERS["adamw"]()), callback), fit(functional(OPTIMIZERS["adamw"]()), None))
    with pytest.raises(KeyError):
        fit(functional(OPTIMIZERS["adamw"]()), callback, [Breaks()])
    callback.close()
    with er.within("1TiB"):
        pass


def test_another_backend_than_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")

    with pytest.raises(er.UsageError, match=r"given Keras on jax; allowed is torch; set KERAS_BACKEND=torch"):
        ours.KerasRoom("1GiB")
