"""Recordings that end within an op: a step may end as autograd saves for the first op of the next one."""

from __future__ import annotations

import torch

from elbowroom.capture.recording.profiler_stream import Item, OpSeen, ProfilerStream


def test_an_op_in_which_a_recording_ends_has_not_ended_before_it_began() -> None:
    # given a recording that ends as exp saves its result
    stream, items = ProfilerStream(torch.device("cpu")), list[Item]()
    x = torch.ones(1000, requires_grad=True)

    def pack(saved: torch.Tensor) -> torch.Tensor:
        items.extend(stream.stop())
        return saved

    # when
    assert stream.start()
    with stream.mark(0):
        y = x + 1
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        y.exp()

    # then the op before is there, and each op that ends has begun
    open_ops: list[str] = []
    names: list[str] = []
    for item in items:
        if isinstance(item.what, OpSeen) and item.ends:
            assert open_ops.pop() == item.what.name
            names.append(item.what.name)
        elif isinstance(item.what, OpSeen):
            open_ops.append(item.what.name)
    assert open_ops == []
    assert "aten.add" in names
