"""Every module of PyTorch's own database, with all dropped that may be: what changes later changes no bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_flatten

from tests.databases.changes import FIRST, mismatches, recomputed_bytes, telling_all, train_changing
from tests.databases.forced import Fed
from tests.databases.test_module_db import DTYPE, first_input, modules
from tests.torch.helpers import Setup, Training

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS_OF_NUMBERS = FIRST + 8
RATES = ("p", "dropout")
NUMBERS = (
    *("eps", "momentum", "alpha", "beta", "margin", "delta", "label_smoothing", "lambd", "min_val", "max_val", "k"),
    *("negative_slope", "threshold", "value", "lower", "upper", "norm_type"),
)
"""Attributes of modules that are passed on to an op, if they are floats."""

SETTINGS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        (
            *("inplace", "full", "log_input", "log_target", "count_include_pad", "zero_infinity", "norm_first"),
            *("add_zero_attn", "scale_grad_by_freq"),
        ),
        lambda value: not value,
    ),
    "approximate": lambda _: "tanh",
    "reduction": lambda _: "sum",
    "nonlinearity": lambda value: "relu" if value == "tanh" else "tanh",
    "padding_mode": lambda _: "circular",
}
"""Attribute -> what it is from the change on."""

NOT_SET = {
    **dict.fromkeys((f"nn.{lazy}ConvTranspose{n}d" for lazy in ("", "Lazy") for n in (1, 2, 3)), "pads zeros alone"),
    "nn.BCELoss": "its input leaves what it allows",
}


NOT_FROZEN = {"nn.Embedding": "it has one parameter, and no other input that learns"}
NOT_IN_BFLOAT16 = {"nn.LSTM": "oneDNN has no such LSTM here"}

NOTHING_DROPPED = {
    **dict.fromkeys(("nn.MarginRankingLoss", "nn.HingeEmbeddingLoss"), "an op in place, see NOT_MADE_AGAIN"),
    **{f"nn.CircularPad{n}d": "all that is saved is filled slice by slice" for n in (1, 2, 3)},
}
"""Modules of which no storage has a recipe that a run can carry out."""


class Changing(Fed):
    """A module on its inputs, then numbers that change: a scale, noise, and a buffer that is filled.

    Args:
        module: the module.
        given: its positional and named arguments.
    """

    def __init__(self, module: nn.Module, given: tuple[Any, dict[str, Any]]) -> None:
        super().__init__(given)
        self.module, self.t = module, 0
        self.register_buffer("factor", torch.ones(()))
        self.factor: Tensor

    def forward(self) -> Tensor:
        args, kwargs = self.taken()
        found, _ = tree_flatten(self.module(*args, **kwargs))
        parts = [self.scaled(each.float()) for each in found if isinstance(each, Tensor) and each.requires_grad]
        return torch.stack(parts).sum()

    def scaled(self, x: Tensor) -> Tensor:
        noisy = x * (1 + 0.25 * self.t) + torch.randn_like(x) * (0.1 + 0.01 * self.t)
        return torch.tanh(noisy * self.factor).square().sum()


Change = Callable[[Changing], None]


def numbers_of(module: nn.Module) -> list[tuple[nn.Module, str, float]]:
    """(module, attribute, value) of each number in a module and those in it; rates are 0.3."""
    found: list[tuple[nn.Module, str, float]] = []
    for each in module.modules():
        for name, value in list(vars(each).items()):
            if not isinstance(value, float):
                continue
            if name in NUMBERS:
                found.append((each, name, value or 0.05))
            elif name == "dropout" or (name == "p" and isinstance(each, _DropoutNd)):
                found.append((each, name, 0.3))
    return found


def with_numbers(made: Changing) -> Change:
    """Return what lets all numbers change from step to step."""
    numbers = numbers_of(made.module)

    def change(model: Changing) -> None:
        for module, name, value in numbers:
            setattr(module, name, value - 0.02 * model.t if name in RATES else value * (1 + 0.02 * model.t))
        with torch.no_grad():
            model.factor.fill_(1 + 0.125 * model.t)

    return change


def with_settings(_: Changing) -> Change:
    """Return what changes settings at one step."""

    def change(model: Changing) -> None:
        if model.t == 1:
            for module in model.module.modules():
                for name, value in list(vars(module).items()):
                    if name in SETTINGS and isinstance(value, (bool, str)):
                        setattr(module, name, SETTINGS[name](value))

    return change


def with_frozen(_: Changing) -> Change:
    """Return what stops every other parameter from learning at one step."""

    def change(model: Changing) -> None:
        if model.t == 1:
            for n, parameter in enumerate(model.module.parameters()):
                parameter.requires_grad_(bool(n % 2))

    return change


def with_evaluation(_: Changing) -> Change:
    return lambda model: model.module.train(not model.t) and None


def setup_of(info: Any, changing: Callable[[Changing], Change], *, bfloat16: bool = False) -> Setup:
    """A training of a module, or the test is skipped."""
    if torch.float32 not in info.supported_dtypes("cpu"):
        pytest.skip("it has no float32 gradient on the CPU")
    given = first_input(info)
    if given is None:
        pytest.skip("the database has no input for it")

    def setup() -> Training:
        made = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
        inputs = given.forward_input
        model = Changing(made.to(DTYPE.get(info.name, torch.float32)), (inputs.args, inputs.kwargs))
        optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(1))], lr=1e-3)
        change = changing(model)

        def step(number: int) -> Tensor:
            model.t = max(0, number - FIRST + 1)
            change(model)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16 and model.t > 0):
                loss = model()
            loss.backward()
            optimizer.step()
            return telling_all(loss, model)

        return Training(step, [model], [optimizer])

    return setup


@pytest.mark.parametrize("info", modules())
def test_numbers_of_a_module_may_change_in_each_step(info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # when
    room = train_changing(setup_of(info, with_numbers), monkeypatch, STEPS_OF_NUMBERS)
    # then the plan goes on
    assert mismatches(room) == 0
    again = recomputed_bytes(room)
    assert again == [again[0]] * len(again)
    assert (again[0] > 0) == (info.name not in NOTHING_DROPPED)


@pytest.mark.parametrize("info", modules())
def test_settings_of_a_module_may_change_once(info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if info.name in NOT_SET:
        pytest.skip(NOT_SET[info.name])
    setup = setup_of(info, with_settings)
    (model,) = setup().modules
    settings = {name for each in model.module.modules() for name, value in vars(each).items() if value is not None}
    if settings.isdisjoint(SETTINGS):
        pytest.skip("it has no setting")
    # when
    room = train_changing(setup, monkeypatch)
    # then what it calls then is recomputed
    assert (recomputed_bytes(room)[-1] > 0) == (info.name not in NOTHING_DROPPED)


@pytest.mark.parametrize("info", modules())
def test_parameters_of_a_module_may_be_frozen(info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if info.name in NOT_FROZEN:
        pytest.skip(NOT_FROZEN[info.name])
    setup = setup_of(info, with_frozen)
    (model,) = setup().modules
    if not list(model.module.parameters()):
        pytest.skip("it has no parameters")
    # when
    room = train_changing(setup, monkeypatch)
    # then
    assert (recomputed_bytes(room)[-1] > 0) == (info.name not in NOTHING_DROPPED)


@pytest.mark.parametrize("info", modules())
def test_a_module_may_be_evaluated_from_a_step_on(info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # when
    room = train_changing(setup_of(info, with_evaluation), monkeypatch)
    # then
    assert (recomputed_bytes(room)[-1] > 0) == (info.name not in NOTHING_DROPPED)


@pytest.mark.parametrize("info", modules())
def test_a_module_may_be_under_autocast_from_a_step_on(info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if info.name in NOT_IN_BFLOAT16:
        pytest.skip(NOT_IN_BFLOAT16[info.name])
    # when
    room = train_changing(setup_of(info, with_numbers, bfloat16=True), monkeypatch)
    # then
    assert (recomputed_bytes(room)[-1] > 0) == (info.name not in NOTHING_DROPPED)
