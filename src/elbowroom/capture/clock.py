"""Host time to device time, between marks that both have passed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import final


@final
class DeviceClock:
    """Stretches the host's time between marks to that of the device.

    Args:
        marks: (when the host set it, when the device came to it), at least one, in the order they were set.
    """

    def __init__(self, marks: Sequence[tuple[int, int]]) -> None:
        self._host_ns = [host_ns for host_ns, _ in marks]
        self._device_ns: list[int] = []
        for _, device_ns in marks:  # of several streams: time does not run backwards
            self._device_ns.append(max(device_ns, self._device_ns[-1] if self._device_ns else device_ns))

    def at(self, host_ns: int) -> int:
        """When the device did what the host handed out at this time."""
        behind = bisect_right(self._host_ns, host_ns)
        before = max(behind - 1, 0)
        start_ns, from_ns = self._host_ns[before], self._device_ns[before]
        if not 0 < behind < len(self._host_ns):
            return from_ns + host_ns - start_ns
        host_took_ns, device_took_ns = self._host_ns[behind] - start_ns, self._device_ns[behind] - from_ns
        return from_ns + (host_ns - start_ns) * device_took_ns // max(1, host_took_ns)
