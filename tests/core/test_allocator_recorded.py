"""The model of the allocator beside what the real one said, on every event; recorded, so that no rig is needed.

tests/data/allocator/README.md says how the records were made.
"""

from __future__ import annotations

import json
import lzma
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from elbowroom.allocator import replay
from tests.core.allocator_streams import SETTINGS, at_end

RECORDS = Path(__file__).parents[1] / "data" / "allocator" / "rig.json.xz"


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    return json.loads(lzma.decompress(RECORDS.read_bytes()))


@pytest.fixture(scope="module")
def streams(records: dict[str, Any]) -> list[dict[str, Any]]:
    return records["streams"]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda text: text or "defaults")
def test_the_model_says_what_the_real_allocator_said_after_every_event(records: dict[str, Any], settings: str) -> None:
    of_settings = [stream for stream in records["streams"] if stream["settings"] == settings]
    assert len(of_settings) >= 50
    for stream in of_settings:
        # given events, a capacity and what the real allocator answered
        events, capacity = stream["events"], stream["capacity_bytes"]

        # when the model replays them
        done = replay(events, settings, capacity, events_done=stream["events_done"])

        # then each statistic is the same after each event, and so are those at the end
        for name, changes in stream["answers"].items():
            assert getattr(done, name).tolist() == list(accumulate(changes)), f"{name}, {capacity=}, {events=}"
        said = dict(zip(records["at_end"], stream["at_end"], strict=True))
        assert at_end(done) == {name: said[name] for name in at_end(done)}, f"{capacity=}, {events=}"


def test_the_records_hold_what_is_hard(streams: list[dict[str, Any]]) -> None:
    # so that the test above cannot pass on easy streams alone
    assert sum(len(stream["events"]) for stream in streams) > 100_000
    assert sum(any(stream["answers"]["out_of_memory"]) for stream in streams) > 300
    assert sum(any(stream["answers"]["retries"]) for stream in streams) > 500
    assert sum(stream["events_done"] == "at synchronize" for stream in streams) > 500
