"""Every float op of PyTorch's database: recording its calls changes no bit, and making them again gives the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

from elbowroom.run.recompute import call_recorder as calls
from elbowroom.run.recompute.call_recorder import CallRecorder, Calls, CallStorage, tensors_of, views_of
from elbowroom.run.recompute.recompute_programs import Impossible, Program, check_filled
from elbowroom.run.recompute.replay_calls import Storages, replay
from elbowroom.step.recipes.tables import RANDOM
from tests.torch.helpers import same_bits

CPU = torch.device("cpu")
LEFT_OUT = {"linalg.lstsq": "leaves a part of its result unwritten"}
OPS = [
    op
    for op in op_db
    if torch.float32 in op.supported_dtypes("cpu") and op.supports_autograd and op.name not in LEFT_OUT
]
SAMPLES = 4
NAMES = [f"{op.name}.{op.variant_test_name}" for op in OPS]


def results(op: Any, sample: Any) -> list[Tensor]:
    torch.manual_seed(3)
    return list(tensors_of(op(sample.input, *sample.args, **sample.kwargs)))


def alike(one: list[Tensor], other: list[Tensor]) -> bool:
    pairs = zip(one, other, strict=True)
    return len(one) == len(other) and all(
        mine.layout != torch.strided or same_bits(mine.detach(), theirs.detach()) for mine, theirs in pairs
    )


def recorded(op: Any, sample: Any) -> tuple[list[Tensor], Calls]:
    recorder = CallRecorder(CPU)
    recorder.start()
    try:
        found = results(op, sample)
    finally:
        seen = recorder.stop()
    return found, seen


def made_again(seen: Calls, found: list[Tensor]) -> list[Tensor] | None:
    """The results that the recorded calls make again; None where not all of them can be."""
    every = [call for group in seen.groups for call in group.calls]
    made = {source for call in every for source in call.results.values()}
    inputs = {
        view.source: None for call in every for view in views_of((call.args, call.kwargs)) if view.source not in made
    }
    if not every or any(call.unfit or call.name.endswith("_") or call.name in RANDOM for call in every):
        return None  # inputs that changed are gone, and the random ops of the database set seeds of their own
    if any(tensor.is_conj() or tensor.is_neg() for tensor in found):
        return None
    try:
        check_filled(every, made)
    except Impossible:
        return None
    alive = [source.alive() for source in inputs]
    for n, source in enumerate(inputs):
        source.saved = n
    program = Program(
        index=0,
        label="by hand",
        ops=tuple(range(len(every))),
        calls=tuple(every),
        dies=tuple(() for _ in every),
        makes={},
        entries=frozenset(),
        owners=(),
        copied=frozenset(),
        draws=frozenset(),
        flags=every[0].flags,
    )
    torch.manual_seed(3)
    kept: Storages = {}
    replay(program, lambda n: _there(alive[n]), {}, CPU, kept, lambda _: None)
    by_key = {id(source.alive()): source for source in made if source.alive() is not None}
    return [_laid_out(kept, by_key.get(id(tensor.untyped_storage())), tensor) for tensor in found]


def _there(storage: torch.UntypedStorage | None) -> torch.UntypedStorage:
    assert storage is not None
    return storage


def _laid_out(kept: Storages, source: CallStorage | None, like: Tensor) -> Tensor:
    if source is None:
        return like  # a view of an argument
    return torch.empty(0, dtype=like.dtype).set_(kept[source], like.storage_offset(), like.shape, like.stride())  # pyright: ignore[reportArgumentType]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPS, ids=NAMES)
def test_calls_are_recorded_and_made_again_with_the_same_bits(op: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_owners", dict)  # a search through all objects, here without a use
    for sample in list(op.sample_inputs("cpu", torch.float32, requires_grad=True))[:SAMPLES]:
        # given an op that gives the same twice
        plain = results(op, sample)
        if any(tensor.layout != torch.strided for tensor in plain) or not alike(plain, results(op, sample)):
            continue
        # when
        found, seen = recorded(op, sample)
        # then
        assert alike(found, plain)
        assert [mine.grad_fn is None for mine in found] == [theirs.grad_fn is None for theirs in plain]
        again = made_again(seen, found)
        assert again is None or alike(again, plain)
