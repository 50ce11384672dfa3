"""Energy meters: joules that the computer itself counts, of an NVIDIA board by NVML or of the processor by RAPL.

NVML counts what a board took since the driver was loaded, from Volta on (nvmlDeviceGetTotalEnergyConsumption). RAPL
counts what the packages of a processor took, and their memory where it has a counter of its own, in
/sys/class/powercap; most systems let only root read it. Both count for all processes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, final

from elbowroom.hardware import nvml

MeterSource = Literal["NVML", "RAPL"]
POWERCAP = Path("/sys/class/powercap")
MEMORY = "dram"
"""Name of the zone of a package's memory, which is not part of the package's own count."""


class EnergyCounter(NamedTuple):
    """A counter that only rises, until it begins anew.

    Attributes:
        read: returns thousandths of a joule; None if it cannot be read any more.
        range_millijoules: where it begins anew; 0 for one that does not.
    """

    read: Callable[[], int | None]
    range_millijoules: int


@final
class EnergyMeter:
    """Sums what counters count from its making on.

    Args:
        source: who counts.
        counters: the counters, all of which can be read.
    """

    def __init__(self, source: MeterSource, counters: Sequence[EnergyCounter]) -> None:
        self.source: MeterSource = source
        self._counters = list(counters)
        self._last = [counter.read() for counter in counters]
        self._total = 0

    def millijoules(self) -> int | None:
        """Return the sum until now; None once a counter could not be read.

        A counter that began anew more than once since the last call is taken to have done so once.
        """
        for i, counter in enumerate(self._counters):
            now, before = counter.read(), self._last[i]
            if now is None or before is None:
                self._last[i] = None
                return None
            self._total += now - before + (counter.range_millijoules if now < before else 0)
            self._last[i] = now
        return self._total


def meter_of(device: str, index: int = 0, powercap: Path = POWERCAP) -> EnergyMeter | None:
    """Return a meter of a device; None if the computer has none that can be read.

    Args:
        device: "cuda" for a GPU, else the processor.
        index: which of the visible GPUs.
        powercap: folder of the zones of RAPL.
    """
    of_gpu = [EnergyCounter(lambda: nvml.total_millijoules(index), 0)]
    counters = of_gpu if device == "cuda" else list(_rapl(powercap))
    if not counters or any(counter.read() is None for counter in counters):
        return None
    return EnergyMeter("NVML" if device == "cuda" else "RAPL", counters)


def _rapl(powercap: Path) -> Iterator[EnergyCounter]:
    """Yield the counters of packages, and of their memory: zones such as intel-rapl:0 and intel-rapl:0:1."""
    for zone in sorted(powercap.glob("intel-rapl:*")):
        is_package = zone.name.count(":") == 1
        most = _number(zone / "max_energy_range_uj")
        if most is not None and (is_package or _name(zone) == MEMORY):
            yield EnergyCounter(_reader(zone / "energy_uj"), most // 1000)


def _reader(path: Path) -> Callable[[], int | None]:
    def read() -> int | None:
        microjoules = _number(path)
        return None if microjoules is None else microjoules // 1000

    return read


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
