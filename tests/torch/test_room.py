"""The room is small, so that its names can stay."""

from __future__ import annotations

import elbowroom as er
from elbowroom.capture.virtual.torch_cuda.unmanaged import Unmanaged
from elbowroom.run.room import Room

NAMES = {
    "beyond_bytes",
    "end_step",
    "log_to",
    "machine",
    "measure_next_step",
    "measured",
    "place",
    "plan",
    "simulated",
    "steps",
    "summary",
    "trace",
}


def test_a_room_has_these_names_and_no_others() -> None:
    with er.within("1GiB") as room:
        assert {name for name in dir(room) if not name.startswith("_")} == NAMES
        assert isinstance(room, Room)


def test_what_stands_for_a_room_in_an_estimate_has_the_same_names() -> None:
    assert {name for name in dir(Unmanaged()) if not name.startswith("_")} == NAMES
