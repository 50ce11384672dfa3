"""The model of the allocator beside the real one, on every event."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elbowroom.allocator import replay
from tests.core.allocator_streams import SETTINGS, at_end, random_stream
from tests.fakecuda.rig import NAMES, answers, rig_folder

STREAMS = int(os.environ.get("ELBOWROOM_RIG_STREAMS", "10"))
FIRST = int(os.environ.get("ELBOWROOM_RIG_SEED", "1000000"))


@pytest.fixture
def rig() -> Path:
    folder = rig_folder()
    if folder is None:
        pytest.skip("ELBOWROOM_RIG is not set: no rig with the real allocator")
    return folder


@pytest.mark.timeout(0)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda text: text or "defaults")
def test_the_model_says_what_the_real_allocator_says_after_every_event(rig: Path, settings: str) -> None:
    for seed in range(FIRST, FIRST + STREAMS):
        # given a random stream
        stream = random_stream(seed, length=150, settings=settings)

        # when both replay it
        real, real_end = answers(rig, stream)
        model = replay(stream.events, settings, stream.capacity_bytes, events_done=stream.events_done)

        # then they agree
        for name in NAMES:
            curve = getattr(model, name).tolist()
            first = next((i for i, (a, b) in enumerate(zip(curve, real[name], strict=True)) if a != b), None)
            assert first is None, (
                f"seed {seed}, event {first} {stream.events[first]}, {name}: "
                f"model {curve[first]}, real {real[name][first]}; {stream.capacity_bytes=}, {stream.events_done}"
            )
        assert at_end(model) == {name: real_end[name] for name in at_end(model)}, f"seed {seed}"
