"""PyTorch's caching allocator as a pure function: replay the events of a training, get the bytes held after each.

No torch, no GPU. settings.py has what may be set, device_allocator.py how a request is served, release.py what is
given back under pressure, expandable.py the segments that grow, replay.py the loop over events, within.py that loop
within one capacity after another, and statistics.py the figures.
"""

from __future__ import annotations

from elbowroom.allocator.replay import EventsDone, replay
from elbowroom.allocator.settings import AllocatorSettings, parse_settings
from elbowroom.allocator.statistics import Replay

__all__ = ["AllocatorSettings", "EventsDone", "Replay", "parse_settings", "replay"]
