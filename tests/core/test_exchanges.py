"""What a process of many exchanges with the others in a step."""

from __future__ import annotations

import pytest

from elbowroom.answers.exchanges import Collectives, collectives_of, kind_of
from elbowroom.report.answer import rendered
from tests.core.test_answer import ANSWER, text_of
from tests.core.test_estimate import MIB, Story


def sharded() -> Story:
    """Two steps; in each a weight of 1 MiB is gathered to 8, and its gradient of 8 MiB is scattered to 1."""
    story = Story()
    story.there("weight", 1, "parameter")
    story.there("whole", 8, "parameter")
    story.there("gradient", 8, "gradient")
    for _ in range(2):
        story.op("c10d._allgather_base", reads="weight", writes="whole")
        story.op("aten.mm", reads="whole")
        story.op("c10d._reduce_scatter_base", phase="backward", reads="gradient", writes="weight")
        story.op("_c10d_functional.all_reduce", phase="backward", reads="weight", writes="weight")
        story.op("_c10d_functional.wait_tensor", phase="backward", reads="weight")
        story.end_step()
    return story


def test_the_collectives_of_the_last_step_count_with_what_is_whole() -> None:
    assert collectives_of(sharded().trace()) == (
        Collectives("all-gather", 1, 8 * MIB, 1),
        Collectives("reduce-scatter", 1, 8 * MIB, 1),
        Collectives("all-reduce", 1, 1 * MIB, 1),
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("c10d.allreduce_coalesced", "all-reduce"),
        ("c10d.all_gather_into_tensor", "all-gather"),
        ("c10d.reduce_scatter_tensor", "reduce-scatter"),
        ("c10d.alltoall_base", "all-to-all"),
        ("c10d.scatter", "scatter"),
        ("c10d.recv_anysource", "receive"),
        ("c10d.barrier", ""),
        ("aten.scatter", ""),
    ],
)
def test_the_kind_of_a_collective_follows_from_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_the_answer_has_a_table_of_them_where_there_are_any() -> None:
    text = text_of(rendered("train.py", [ANSWER], [sharded().trace()]))

    assert "What a step exchanges with other processes" in " ".join(text.split())
    assert [line.split() for line in text.splitlines() if line.startswith("all-")] == [
        ["all-gather", "1", "8.0", "MiB"],
        ["all-reduce", "1", "1.0", "MiB"],
    ]
    assert "exchanges" not in text_of(rendered("train.py", [ANSWER]))
