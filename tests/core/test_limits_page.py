"""The table that benchmarks.limits makes of its results."""

from __future__ import annotations

from typing import Any

from benchmarks.limits.page import text_of

MIB = 2**20


def workload(least: int, peer: int, one_op: int) -> dict[str, Any]:
    """Least limits of ours and of a peer, and what one op holds, in MiB."""
    ended = {"way": "auto", "steps": 7, "commit": "abc"}
    points = [
        {**ended, "limit_bytes": least * MIB, "outcome": "trained"},
        {**ended, "limit_bytes": 2 * least * MIB, "outcome": "Infeasible", "steps": 2},
    ]
    peers = [{"peer": "save_on_cpu", "allocator": "native", "least": peer * MIB}]
    return {"points": points, "peers": peers, "one_op_bytes": one_op * MIB}


def test_the_page_says_which_workloads_reach_the_aim_and_where_one_op_prevents_it() -> None:
    # given a least limit of 0.7 of the peer's, and two of 0.9, where one op takes 0.8 and 0.6 of it
    workloads = {"vgg": workload(70, 100, 60), "plane net": workload(90, 100, 80), "dense net": workload(90, 100, 60)}
    # when
    text = text_of({"workloads": workloads, "date": "2026-01-01"})
    # then
    assert "1 of 3 reach 0.75 of the best peer's least limit; in 1 of the others one op alone" in text
    assert "| vgg | 60 |  | 100 |  |  | 70, 1 of 2 | 0.70 |" in text
    assert "- vgg, auto: failed at 140 (Infeasible, step 3)." in text
