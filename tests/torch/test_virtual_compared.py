"""Ops that were never compared with the CUDA build of torch are named, with how often they ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.capture.virtual.ops.compared import Compared, read_table
from elbowroom.machine import Machine

aten: Any = torch.ops.aten


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    """An op of somebody else's, with its shapes and nothing more."""
    made = torch.library.Library("elbowroom_tests", "DEF")
    made.define("doubled(Tensor x) -> Tensor")
    made.impl("doubled", torch.empty_like, "Meta")
    yield made
    made._destroy()


def remarks_of(work: Any) -> dict[str, int]:
    with VirtualDevice(Machine.of("h100-sxm"), None) as device:
        work()
    return {name: count for (kind, name), count in device.ledger.remarks.items() if kind == "not_compared"}


def test_an_op_of_somebody_elses_is_named_with_its_dtype_and_count(library: torch.library.Library) -> None:
    # given an op that no rig has seen, run twice in half precision
    def work() -> None:
        given = torch.empty(8, device="cuda", dtype=torch.float16)
        torch.ops.elbowroom_tests.doubled(torch.ops.elbowroom_tests.doubled(given))

    # then it is in the remarks
    assert remarks_of(work) == {"elbowroom_tests.doubled.default float16": 2}


def test_what_was_compared_and_what_allocates_nothing_is_not_named() -> None:
    # given a product, which is in the table, a view of it, and work on the host
    assert "float32" in read_table()["aten.mm.default"]

    def work() -> None:
        given = torch.empty(8, 8, device="cuda")
        (given @ given).view(64).t()
        torch.ones(8).cumsum(0).erfinv()

    # then nothing is remarked
    assert remarks_of(work) == {}


def test_a_pointwise_op_counts_for_every_dtype_and_another_for_its_own() -> None:
    # given a table with both kinds of op
    known = Compared({"aten.add.Tensor": ["any"], "aten.sum.default": ["float32"]})
    with VirtualDevice(Machine.of("h100-sxm"), None):
        halves, floats = (torch.empty(4, device="cuda", dtype=dtype) for dtype in (torch.float16, torch.float32))

        # then
        assert known.has(known.form(aten.add.Tensor, [halves]))
        assert known.has(known.form(aten.sum.default, [floats]))
        assert known.form(aten.sum.default, [halves]) == "aten.sum.default float16"
        assert not known.has("aten.sum.default float16")


def test_the_trace_of_a_training_says_what_was_not_compared(library: torch.library.Library) -> None:
    # given a model that uses such an op
    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + torch.ops.elbowroom_tests.doubled(x.detach())

    with VirtualDevice(Machine.of("h100-sxm"), 2) as device:
        model = Model(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.zeros(4, 8, device="cuda")).sum().backward()
            optimizer.step()

    # then its trace counts it: twice, once a step
    named = {(each.kind, each.name): each.count for each in device.trace().remarks}
    assert named["not_compared", "elbowroom_tests.doubled.default float32"] == 2
