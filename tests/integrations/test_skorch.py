"""The callback for skorch: numbers are the same, searches over grids included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import elbowroom as er
from tests.integrations.both_ways import blocks, outcome, rows, same_within, tight
from tests.torch.helpers import MIN_SIZE_BYTES, Outcome, assert_equal, moved_categories

skorch: Any = pytest.importorskip("skorch", reason="skorch is not installed: `make test-integrations` does that")
ours: Any = pytest.importorskip("elbowroom.integrations.skorch")

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

WIDTH, ROWS, BATCHES = 32, 512, 8


class Wide(torch.nn.Module):
    def __init__(self, width: int = WIDTH, depth: int = 4) -> None:
        super().__init__()
        self.blocks = blocks(width, depth)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


def net(callback: Any, others: Any = (), **options: Any) -> Any:
    torch.manual_seed(0)
    callbacks = [*others, *([] if callback is None else [("room", callback)])]
    given = {"batch_size": ROWS, "max_epochs": 2, "lr": 1e-3, "optimizer": torch.optim.AdamW, "verbose": 0}
    return skorch.NeuralNetRegressor(Wide, **given | options, callbacks=callbacks)


def fitted(found: Any) -> Outcome:
    names = ("train_loss", "valid_loss")
    return outcome([line[name] for line in found.history for name in names if name in line], found.module_)


def data(batches: int = BATCHES, size: int = ROWS, width: int = WIDTH) -> Any:
    x = rows(batches * size, width).numpy()
    return x, x


WAYS: dict[str, dict[str, Any]] = {
    "validated": {},
    "without validation": {"train_split": None},
    "momentum": {"optimizer": torch.optim.SGD, "optimizer__momentum": 0.9},
}


@pytest.mark.parametrize("way", WAYS)
def test_skorch_gives_the_same_numbers_within_a_budget(way: str) -> None:
    same_within(lambda callback: fitted(net(callback, **WAYS[way]).fit(*data())), ours.SkorchRoom)


def test_optimizer_states_leave_though_the_optimizer_gets_a_closure() -> None:
    options = {"module__width": 64, "module__depth": 6, "batch_size": 4, "train_split": None}

    def train(callback: Any) -> Outcome:
        return fitted(net(callback, **options).fit(*data(size=4, width=64)))

    room = same_within(train, ours.SkorchRoom, share=0.1, allow=("swap", "state"))

    assert "optimizer_state" in moved_categories(room)


def test_a_training_goes_on_from_files_that_were_saved_within_a_budget(tmp_path: Path) -> None:
    files = {f"f_{name}": str(tmp_path / name) for name in ("params", "optimizer", "history")}

    def first(callback: Any) -> Any:
        found = net(callback, max_epochs=1).fit(*data())
        found.save_params(**files)
        return found

    def second(callback: Any) -> Outcome:
        found = net(callback, max_epochs=1).initialize()
        found.load_params(**files)
        return fitted(found.partial_fit(*data()))

    # when
    plain = fitted(first(None).partial_fit(*data()))
    budget = tight(lambda callback: fitted(first(callback)), ours.SkorchRoom)
    assert_equal(fitted(first(ours.SkorchRoom(budget, min_size=MIN_SIZE_BYTES))), fitted(first(None)))
    first(ours.SkorchRoom(budget, min_size=MIN_SIZE_BYTES))
    inside = second(ours.SkorchRoom(budget, min_size=MIN_SIZE_BYTES))
    # then
    assert_equal(Outcome([], inside.state), Outcome([], plain.state))


def test_a_search_over_a_grid_trains_each_net_within_the_budget() -> None:
    selection: Any = pytest.importorskip("sklearn.model_selection")

    def searched(callback: Any) -> Any:
        grid = {"lr": [1e-3, 1e-2]}
        search = selection.GridSearchCV(net(callback, train_split=None), grid, cv=2, scoring="r2")
        return search.fit(*data()).cv_results_["mean_test_score"].tolist()

    assert searched(ours.SkorchRoom("1TiB")) == searched(None)


class Breaks(skorch.callbacks.Callback):
    """Ends a training with an error after its first epoch."""

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        raise KeyError("a mistake of the user")


def test_a_room_that_an_error_left_open_is_closed_by_hand() -> None:
    callback = ours.SkorchRoom("1TiB")
    with pytest.raises(KeyError, match="a mistake of the user"):
        net(callback, [Breaks()]).fit(*data())
    callback.close()
    with er.within("1TiB"):
        pass
