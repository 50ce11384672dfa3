"""PyTorch's caching allocator as a pure function: replay the events of a training, get the bytes held after each.

It needs no torch and no GPU. settings.py has the settings. device_allocator.py serves requests, release.py gives memory
back under pressure, and expandable.py has the segments that grow. replay.py is the loop over events, within.py that
loop within one capacity after another. statistics.py has the figures.
"""

from __future__ import annotations

from elbowroom.allocator.replay import EventsDone, replay
from elbowroom.allocator.settings import AllocatorSettings, parse_settings
from elbowroom.allocator.statistics import Replay

__all__ = ["AllocatorSettings", "EventsDone", "Replay", "parse_settings", "replay"]
