"""Tensors that are more than a storage, and graphs that are made anew in backward: no number changes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from elbowroom.run.recompute.call_recorder import CallRecorder
from tests.torch.helpers import assert_equal, assert_same_within, mlp, ordinary, train, train_within


class Scaled(Tensor):
    """Wraps a tensor without a storage of its own, as quantised and distributed tensors do."""

    held: Tensor

    @staticmethod
    def __new__(cls: type, held: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, requires_grad=held.requires_grad)
        made.held = held.detach()
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = tree_map(lambda each: each.held if isinstance(each, Scaled) else each, (args, kwargs or {}))
        return tree_map(lambda each: Scaled(each) if isinstance(each, Tensor) else each, func(*bare[0], **bare[1]))


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([mlp(depth=3) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        ops: Any = [torch.ops.aten.addmm.default]

        def contexts() -> Any:
            return create_selective_checkpoint_contexts(ops)

        for layer in self.layers:
            again: Any = checkpoint(layer, x.sin() * x, use_reentrant=False, context_fn=contexts)
            x = x + again
        return x


def test_selective_checkpoints_of_the_user_change_no_number() -> None:
    assert_same_within(lambda: ordinary(Around(), torch.randn(96, 64)))


def test_tensors_that_wrap_others_change_no_number() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = mlp(), mlp()

        def forward(self, x: Tensor) -> Tensor:
            wrapped = Scaled(torch.linspace(0, 1, x.numel()).view_as(x))
            factor = (wrapped.sin() * wrapped).held
            return self.after(self.before(x) * factor)

    assert_same_within(lambda: ordinary(Wrapped(), torch.randn(96, 64)))


def test_calls_with_wrapping_tensors_and_under_modes_are_recorded_and_change_no_number() -> None:
    x = torch.linspace(0, 1, 12)
    expected = x.sin() * x

    def run() -> Tensor:
        wrapped = Scaled(x)
        with FlopCounterMode(display=False):
            return (wrapped.sin() * x).held

    # when
    recorder = CallRecorder(torch.device("cpu"))
    recorder.start()
    try:
        found = run()
    finally:
        recorder.stop()
    calls = [call for group in recorder.stop().groups for call in group.calls]
    # then both were met, and cannot be made again with a tensor that is more than its bytes
    assert torch.equal(found, expected)
    met = {call.name: call.unfit for call in calls if call.name in ("aten.sin", "aten.mul")}
    assert set(met) == {"aten.sin", "aten.mul"}
    assert all(met.values())


def test_sparse_and_complex_tensors_beside_dense_ones_change_no_number() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = mlp(), mlp()

        def forward(self, x: Tensor) -> Tensor:
            x = self.before(x)
            z = torch.fft.fft(x)
            mask = torch.eye(96).to_sparse()
            return self.after(torch.sparse.mm(mask, (z * z.conj()).real.sqrt() + x))

    # when
    setup = lambda: ordinary(Mixed(), torch.randn(96, 64))  # noqa: E731
    plain = train(setup)
    inside, room = train_within(setup)
    # then
    assert_equal(inside, plain)
    assert room.steps[-1].swapped_out_bytes > 0
